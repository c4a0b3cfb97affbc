"""tile.gather: the tile goes to shared memory, element by element at its row-major place, and each
thread reads there what its places name.
"""

from __future__ import annotations

from math import prod

from tkc.codegen.ptx.access import Group, load_tile, store_tile
from tkc.codegen.ptx.barriers import meet
from tkc.codegen.ptx.coordinates import inside, number, thread_offset
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.integers import add, mul, narrowed
from tkc.codegen.ptx.values import layout_of
from tkc.codegen.ptx.writer import Integer, as_integer
from tkc.ir import shared, tile
from tkc.ir.layout import Layout
from tkc.ir.types import bits
from tkc.ir.values import tile_type


@emitter(tile.Gather)
def gather(e: Emitter, op: tile.Gather) -> None:
    """The tile in shared memory, read by its places."""
    w, value, t, axis = e.w, e.tile(op.arg), tile_type(op.result), op.axis.value.data
    own, at = e.own_scratch(shared.scratch(op))
    source = tile_type(op.arg)
    size = max(1, bits(source.element) // 8)
    steps = {a: size * prod(source.extents[a + 1 :]) for a in range(source.rank)}
    base = w.op("add.s32", "b32", own, at)

    def address(layout: Layout, r: int, steps: dict[int, int]) -> Integer:
        constant = sum(number(layout, r, a) * step for a, step in steps.items())
        return add(e, add(e, base, thread_offset(e, layout, steps)), constant)

    def written(r: int) -> Group:
        return Group(address(value.layout, r, steps), 0, inside(e, value.layout, r))

    meet(e)
    store_tile(e, value, 1, written, "shared")
    meet(e)
    layout, places = layout_of(t), e.tile(op.index)
    others = {a: step for a, step in steps.items() if a != axis}

    def read(r: int) -> Group:
        place = narrowed(e, as_integer(e.element(places, r)))
        here = add(e, address(layout, r, others), mul(e, place, steps[axis]))
        return Group(here, 0, inside(e, layout, r))

    e.set(op.result, load_tile(e, t, 1, read, None, "shared"))
