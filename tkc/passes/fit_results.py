"""fit-results: a dot whose result no registers hold is computed a part of its rows, or columns, at a time, with all that is made of it.

    %d = tile.dot %a, %b, %c : tile<1000x96xf32>                           for %i = 0 to 896 step 128:
    %y = tile.add %d, %bias                                     ->           %d = tile.dot (%a from %i, 128 rows), %b, (%c from %i)
    tile.store %o[%m, %n] %y                                                 tile.store %o[%m + %i, %n] (%d + (%bias from %i))
                                                                           and the 104 rows that are left

A cut goes forward from the dot's result through whatever uses it, loops included, up to stores, and back through what these need: loads are made of the part alone, and what
constants, loads and pure operations give is computed anew for it; what does not depend on the axis that is cut stays whole. There is no cut where an operation looks along
the axis (a sum over it, a scan, a sort), where something else has effects between, or where a store may change what a later part loads.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Region

from tkc.ir import tile
from tkc.ir.rewrite import before, erase, erase_dead
from tkc.passes import PassContext
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut, Part
from tkc.passes.plan import crowded

HELD, WARPS = 64, 8                     # registers of a thread that a part's result takes, of so many warps where the user did not say


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        tried: set[tile.Dot] = set()
        while (dot := next((d for d in crowded(module, context) if d not in tried), None)) is not None:
            tried.add(dot)
            extents, held = dot.result.type.extents, HELD if all(n & (n - 1) == 0 for n in dot.result.type.extents) else HELD // 4        # layouts of others have more elements than the tile
            parts = parted(extents, held * 4 * 32 * (context.options.num_warps or WARPS) * dot.result.type.size // dot.result.type.bytes)
            for axis, (n, size) in enumerate(zip(extents, parts)):
                if n == size: continue
                try: cut = Cut(dot, axis, context.overlaps)
                except NotCut: continue
                context.decisions.append(f"fit-results: a dot's {'x'.join(map(str, extents))} results do not fit registers: axis {axis} in parts of {size}")
                _walk(cut, n, size)
                erase_dead(kernel.body.block)
                break


def parted(extents: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Extents of a part with at most so many elements: batches one by one, then the longer of rows and columns as a smaller power of two, or a little less where nothing is then left over."""
    *batch, m, n = extents
    if batch and m * n * batch[-1] > room: batch = [1] * len(batch)
    while m * n > room:
        if m >= n: m = 1 << (m - 1).bit_length() - 1
        else: n = 1 << (n - 1).bit_length() - 1
    return *batch, *(next((d for d in range(n, n // 2 - 1, -8) if d and whole % d == 0), n) for n, whole in zip((m, n), extents[-2:]))


def _walk(cut: Cut, extent: int, size: int) -> None:
    """A loop over the parts, and one part more of what is left, in place of the operations that are cut."""
    last, whole = cut.ops[-1], extent - extent % size
    constant = lambda n: before(last, tile.Constant(n, i32)).result
    body = Block(arg_types=[i32])
    before(last, scf.ForOp(constant(0), constant(whole), constant(size), [], Region(body)))
    body.add_op(end := scf.YieldOp())
    Part(cut, body.args[0], size).all(end)
    if extent % size: Part(cut, constant(whole), extent % size).all(last)
    for op in reversed(cut.ops): erase(op)
