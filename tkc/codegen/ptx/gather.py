"""tile.gather: each register of the result by shuffles (ir/gathers.py), or the tile goes to shared
memory, element by element at its row-major place, and each thread reads there what its places name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tkc.codegen.ptx.access import Group, load_tile, store_tile
from tkc.codegen.ptx.barriers import meet
from tkc.codegen.ptx.convert import pick
from tkc.codegen.ptx.coordinates import inside, number, thread_offset
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.integers import add, mul, narrowed
from tkc.codegen.ptx.reduce import moved_bits, shuffle
from tkc.codegen.ptx.values import compute_class, layout_of
from tkc.codegen.ptx.writer import Integer, Operand, as_integer
from tkc.ir import tile
from tkc.ir.gathers import Candidate, LaneGather, lanes_of_places
from tkc.ir.layout import WARP, Layout
from tkc.ir.scratch import scratch
from tkc.ir.types import bits
from tkc.ir.values import tile_type


@emitter(tile.Gather)
def gather(e: Emitter, op: tile.Gather) -> None:
    """By shuffles, or by way of shared memory."""
    found = lanes_of_places(op)
    if found is None:
        return _through_memory(e, op)
    value, places, t = e.tile(op.arg), e.tile(op.index), tile_type(op.result)
    asked = sorted({c.register for row in found.rows for c in row})
    kind, elements = compute_class(value.element), {r: e.element(value, r) for r in asked}
    # words are chosen among, which a number of floats is not
    held = {r: e.w.register(x, kind) if isinstance(x, float) else x for r, x in elements.items()}
    lanes = _Lanes(e, found, kind, held)
    answers = [lanes.fetched(row, e.element(places, r)) for r, row in enumerate(found.rows)]
    e.set(op.result, e.build(t, answers, exact=True))


@dataclass(frozen=True)
class _Lanes:
    """What registers of other lanes hold. elements: of the registers that are asked for."""

    e: Emitter
    found: LaneGather
    kind: str
    elements: Mapping[int, Operand]

    def fetched(self, row: Sequence[Candidate], place: Operand) -> Operand:
        """The element at a place, which is in one of these registers."""
        at = narrowed(self.e, as_integer(place))
        lane = 0 if all(c.is_own for c in row) else self._lane(at)
        return self._chosen(row, at, lane, self.found.register_bits)

    def _lane(self, place: Integer) -> Integer:
        """The lane that holds a place: this one's bits but for those along the axis."""
        e, bits = self.e, self.found.lane_bits
        own = WARP - 1 - sum(weight for _, weight in bits)
        lane: Integer = e.w.op("and.b32", "b32", e.lane(), own) if own else 0
        return add(e, lane, moved_bits(e, place, bits))

    def _chosen(
        self, row: Sequence[Candidate], place: Integer, lane: Integer, bits: Sequence[int]
    ) -> Operand:
        """By the bits of a place, from the highest down."""
        e = self.e
        if len(row) == 1:
            x = self.elements[row[0].register]
            return x if row[0].is_own else shuffle(e, x, lane, self.kind, "idx")
        *lower, bit = bits
        parts = [[c for c in row if bool(c.part & bit) == upper] for upper in (False, True)]
        if not all(parts):
            return self._chosen(row, place, lane, lower)
        no, yes = (self._chosen(part, place, lane, lower) for part in parts)
        if not isinstance(place, str):
            return yes if place & bit else no
        return pick(e, self.kind, _has_bit(e, place, bit), yes, no)


def _has_bit(e: Emitter, x: str, bit: int) -> str:
    masked = e.w.op("and.b32", "b32", x, bit)
    return e.w.op("setp.ne.b32", "pred", masked, 0)


def _through_memory(e: Emitter, op: tile.Gather) -> None:
    w, value, t, axis = e.w, e.tile(op.arg), tile_type(op.result), op.axis.value.data
    own, at = e.own_scratch(scratch(op))
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
