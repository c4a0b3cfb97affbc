"""fit-results: a dot whose result no registers hold is computed a part of its rows, or columns, at
a time, with all that is made of it.

Before, for a result of 1000 rows:

    %d = tile.dot %a, %b, %c : tile<1000x96xf32>
    %y = tile.add %d, %bias
    tile.store %o[%m, %n] %y

After, and the 104 rows that are left in one part more behind the loop:

    for %i = 0 to 896 step 128:
      %d = tile.dot (%a from %i, 128 rows), %b, (%c from %i)
      tile.store %o[%m + %i, %n] (%d + (%bias from %i))

The cut goes forward from the dot's result through its uses, loops included, up to stores, and back
through what these need: loads are made of the part alone, and constants and pure operations are
repeated for it. What does not depend on the axis that is cut stays whole; so does a loop that
yields such values too, without the operations that are cut. Sums, products, maxima … along the axis
add up over the parts, and operations that wait for them move behind the loop. There is no cut where
a part waits for such a sum (a softmax along the axis), where another operation combines elements
along the axis (a scan, a sort, an argmax), where something else has effects between, or where a
store may change what a later part loads, or has stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.rewrite import before, erase
from tkc.ir.values import tile_type
from tkc.passes import PassContext
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut
from tkc.passes.cuts.parts import Part, cast_total, initial_totals, loop_over_parts
from tkc.passes.plan import crowded
from tkc.passes.simplify import sweep

REGISTERS_PER_PART = 64  # registers of a thread that a part's result takes
REGISTER_BYTES = 4
THREADS_PER_WARP = 32
DEFAULT_WARPS = 8  # where the user did not say


def run(module: ModuleOp, context: PassContext) -> None:
    """Cuts the dots that `crowded` names, one after the other, as far as they can be cut."""
    for kernel in module.body.block.ops:
        tried: set[tile.Dot] = set()
        while (found := _next(module, context, tried)) is not None:
            dot, share = found
            tried.add(dot)
            if _fit(dot, share, context):
                while sweep(kernel):
                    pass


def _next(
    module: ModuleOp, context: PassContext, tried: set[tile.Dot]
) -> tuple[tile.Dot, float] | None:
    return next((found for found in crowded(module, context) if found[0] not in tried), None)


def _fit(dot: tile.Dot, share: float, context: PassContext) -> bool:
    """Cuts a dot along the first axis along which it can be cut. Whether there is one. share: of
    the results of its loop, for which there are registers.
    """
    t = tile_type(dot.result)
    room = min(_elements_of_part(dot, context), int(t.size * share))
    for axis, size in ways_to_cut(t.extents, room):
        extent = t.extents[axis]
        try:
            cut = Cut.of_result(dot, axis, context.overlaps)
        except NotCut:
            continue
        context.decisions.append(
            f"fit-results: a dot's {'x'.join(map(str, t.extents))} results do not fit"
            f" registers: axis {axis} in parts of {size}"
        )
        _cut_in_loop(cut, extent, size)
        return True
    return False


def _elements_of_part(dot: tile.Dot, context: PassContext) -> int:
    """How many elements of a dot's result a thread block holds."""
    t, registers = tile_type(dot.result), REGISTERS_PER_PART
    if any(n & (n - 1) for n in t.extents):
        registers //= 4  # layouts of such tiles have more elements than the tile
    threads = THREADS_PER_WARP * (context.options.num_warps or DEFAULT_WARPS)
    return registers * REGISTER_BYTES * threads * t.size // t.bytes


def ways_to_cut(extents: tuple[int, ...], room: int) -> Iterator[tuple[int, int]]:
    """The axes along which a result can be cut so that a part has at most `room` elements, each
    with the extent of a part: those of the parts that fit best; columns, or rows, alone where the
    others cannot be cut.
    """
    best, rows, columns = part_extents(extents, room), len(extents) - 2, len(extents) - 1

    def alone(axis: int) -> int:
        left = max(1, room * extents[axis] // prod(extents))
        return part_extents((1, extents[axis]), left)[-1]

    sizes = [*enumerate(best[:columns]), (columns, alone(columns))]
    if best[rows] == extents[rows]:
        sizes.append((rows, alone(rows)))
    yield from ((axis, size) for axis, size in sizes if size < extents[axis])


def part_extents(extents: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Extents of a part with at most `room` elements: batches one by one, then the longer of rows
    and columns as a smaller power of two, or a little less where nothing is then left over.
    """
    *batch, m, n = extents
    if batch and m * n * batch[-1] > room:
        batch = [1] * len(batch)
    while m * n > room:
        if m >= n:
            m = 1 << (m - 1).bit_length() - 1
        else:
            n = 1 << (n - 1).bit_length() - 1
    return *batch, _without_rest(m, extents[-2]), _without_rest(n, extents[-1])


def _without_rest(size: int, extent: int) -> int:
    """The largest part, of at least half the size, that leaves nothing over; else the size."""
    smaller = range(size, size // 2 - 1, -8)
    return next((part for part in smaller if part and extent % part == 0), size)


def _cut_in_loop(cut: Cut, extent: int, size: int) -> None:
    """Puts a loop over the parts in place of the operations that are cut.

    A loop or branch that yields something whole besides stays for it, without the stores of parts;
    sweeping then removes what only parts needed.
    """
    last = cut.ops[-1]
    totals = loop_over_parts(
        last,
        extent,
        size,
        initial_totals(cut.reductions, last),
        lambda start, n, totals, anchor: Part(cut, start, n).all(anchor, totals),
    )
    for reduction, total in zip(cut.reductions, totals, strict=True):
        result = reduction.results[0]
        result.replace_all_uses_with(cast_total(total, result.type, last))
    for op in cut.delayed:
        op.detach()
        before(last, op)
    for op in reversed(cut.ops):
        for replaced in _replaced(op, cut):
            erase(replaced)


def _replaced(op: Operation, cut: Cut) -> list[Operation]:
    """What the parts replace of an operation: all of it, or the stores where it is still used."""
    if any(result.first_use for result in op.results):
        return [inner for inner in op.walk() if inner in cut.frames and not inner.results]
    return [op]
