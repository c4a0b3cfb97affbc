"""fit-results: a dot whose result no registers hold is computed a part of its rows, or columns, at
a time, with all that is made of it.

    %d = tile.dot %a, %b, %c : tile<1000x96xf32>                           for %i = 0 to 896 step 128:
    %y = tile.add %d, %bias                                     ->           %d = tile.dot (%a from %i, 128 rows), %b, (%c from %i)
    tile.store %o[%m, %n] %y                                                 tile.store %o[%m + %i, %n] (%d + (%bias from %i))
                                                                           and the 104 rows that are
                                                                           left

A cut goes forward from the dot's result through whatever uses it, loops included, up to stores, and
back through what these need: loads are made of the part alone, and what constants, loads and pure
operations give is computed anew for it; what does not depend on the axis that is cut stays whole
(and so does a loop that gives such values too, without what is cut). Sums, products, maxima … along
the axis add up over the parts, and who waits for them moves behind. There is no cut where a part
waits for such a sum (a softmax along the axis), where another operation looks along it (a scan, a
sort, an argmax), where something else has effects between, or where a store may change what a later
part loads, or has stored.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Region

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.reductions import neutral, total_type
from tkc.ir.rewrite import before, erase
from tkc.ir.types import element_of
from tkc.passes import PassContext
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut, Part
from tkc.passes.plan import crowded
from tkc.passes.simplify import sweep

HELD, WARPS = (
    64,
    8,
)  # registers of a thread that a part's result takes, of so many warps where the user did not say


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        tried: set[tile.Dot] = set()
        while (
            dot := next((d for d in crowded(module, context) if d not in tried), None)
        ) is not None:
            tried.add(dot)
            extents, held = (
                dot.result.type.extents,
                (HELD if all(n & (n - 1) == 0 for n in dot.result.type.extents) else HELD // 4),
            )  # layouts of others have more elements than the tile
            parts = parted(
                extents,
                held
                * 4
                * 32
                * (context.options.num_warps or WARPS)
                * dot.result.type.size
                // dot.result.type.bytes,
            )
            for axis, (n, size) in enumerate(zip(extents, parts, strict=False)):
                if n == size:
                    continue
                try:
                    cut = Cut.of_result(dot, axis, context.overlaps)
                except NotCut:
                    continue
                context.decisions.append(
                    f"fit-results: a dot's {'x'.join(map(str, extents))} results do not fit"
                    f" registers: axis {axis} in parts of {size}"
                )
                _walk(cut, n, size)
                sweep(kernel)
                break


def parted(extents: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Extents of a part with at most so many elements: batches one by one, then the longer of rows
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
    return *batch, *(
        next((d for d in range(n, n // 2 - 1, -8) if d and whole % d == 0), n)
        for n, whole in zip((m, n), extents[-2:], strict=False)
    )


def _walk(cut: Cut, extent: int, size: int) -> None:
    """A loop over the parts, and one part more of what is left, in place of the operations that are
    cut. A loop or branch that gives something whole besides stays for it, without what it stored of
    parts; sweeping takes what only that needed."""
    last, whole = cut.ops[-1], extent - extent % size

    def constant(n):
        return before(last, tile.Constant(n, i32)).result

    sums = [
        before(
            last,
            tile.Constant(
                neutral(op.kind.data, element_of(op.result.type)),
                total_type(op.kind.data, op.result.type),
            ),
        ).result
        for op in cut.sums
    ]
    body = Block(arg_types=[i32, *(v.type for v in sums)])
    sums = before(
        last, scf.ForOp(constant(0), constant(whole), constant(size), sums, Region(body))
    ).results
    body.add_op(end := scf.YieldOp())
    end.operands = Part(cut, body.args[0], size).all(end, body.args[1:])
    if extent % size:
        sums = Part(cut, constant(whole), extent % size).all(last, sums)
    for op, value in zip(cut.sums, sums, strict=False):
        op.results[0].replace_all_uses_with(
            value
            if value.type == op.results[0].type
            else before(last, Cast(value, op.results[0].type)).result
        )
    for op in cut.late:
        op.detach()
        before(last, op)
    for op in reversed(cut.ops):
        for gone in (
            [inner for inner in op.walk() if inner in cut.frames and not inner.results]
            if any(r.first_use for r in op.results)
            else [op]
        ):
            erase(gone)
