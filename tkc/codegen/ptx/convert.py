"""tile.convert: by choosing registers, or as lanes of a warp hand elements over (ir/lanes.py)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i1

from tkc.codegen.ptx.elementwise import select
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.reduce import shuffle
from tkc.codegen.ptx.shape import chosen
from tkc.codegen.ptx.shared_memory import sum_of_pieces
from tkc.codegen.ptx.values import Tile, compute_class, layout_of
from tkc.codegen.ptx.writer import Integer, Operand, as_integer
from tkc.ir import shared
from tkc.ir.lanes import Place, WarpConversion, is_own, lane_pieces, warp_conversion
from tkc.ir.layout import register_map
from tkc.ir.types import TileType, bits
from tkc.ir.values import tile_type


@emitter(shared.Convert)
def convert(e: Emitter, op: shared.Convert) -> None:
    """A tile in another layout of the same warps. Raises CompileError where elements move between
    warps.
    """
    value, t = e.tile(op.arg), tile_type(op.result)
    layout = layout_of(t)
    if value.layout == layout:
        return e.set(op.result, Tile.of(t, value.registers), alias=True)
    sources = register_map(value.layout, layout)
    if sources is not None:
        return e.set(op.result, chosen(e, t, [(value, r) for r in sources]), alias=True)
    found = warp_conversion(value.layout, layout)
    if found is None:
        e.fail(
            f"a conversion from {value.layout} to {layout} moves elements between warps, or lanes"
            " are no sums of those that read: passes must send it through shared memory"
        )
    e.set(op.result, _between_lanes(e, value.bytes, t, found))


def _between_lanes(e: Emitter, value: Tile, t: TileType, found: WarpConversion) -> Tile:
    """By swaps, then by fetches; packed elements stay together where they can."""
    pack = value.pack if found.keeps_together(value.pack) else 1
    together = pack > 1 or bits(value.element) >= 32
    kind = compute_class(value.element)
    words: list[Operand] = list(value.registers) if together else e.elements(value)
    for lane, register in found.swaps:
        upper = e.lane_bit(lane)
        for low in range(len(words)):
            high = low | register // pack
            if low == high:
                continue
            one, other = words[low], words[high]
            given = pick(e, kind, upper, one, other)
            got = shuffle(e, given, lane, kind)
            words[low] = pick(e, kind, upper, got, one)
            words[high] = pick(e, kind, upper, other, got)
    rows = [[(register // pack, lane) for register, lane in row] for row in found.fetches[::pack]]
    fetched = [_fetch(e, kind, words, row) for row in rows]
    if together:
        return Tile.of(t, [as_integer(x) for x in fetched])
    as_moved = TileType(t.shape, value.element, t.layout)
    return Tile.of(t, e.build(as_moved, fetched, exact=True).registers)


def pick(e: Emitter, kind: str, upper: str, yes: Operand, no: Operand) -> Operand:
    """One of two words, of elements that nobody computes with."""
    if kind == "pred":
        return select(e, i1, upper, yes, no)
    return e.w.op(f"selp.{kind}", kind, yes, no, upper)


def _fetch(e: Emitter, kind: str, words: Sequence[Operand], places: Sequence[Place]) -> Operand:
    """Word (register, lane) of each lane's choice: its own, or one shuffle for each register that
    any lane wants.
    """
    first, *others = dict.fromkeys(register for register, _ in places)
    if is_own(places):
        return words[first]
    lane = _by_lane(e, [lane for _, lane in places])
    answer = shuffle(e, words[first], lane, kind, "idx")
    for register in others:
        x = shuffle(e, words[register], lane, kind, "idx")
        wanted = _by_mask(e, sum(1 << i for i, (r, _) in enumerate(places) if r == register))
        answer = pick(e, kind, wanted, x, answer)
    return answer


def _by_lane(e: Emitter, values: list[int]) -> Integer:
    """A function of the lane, computed once."""

    def make() -> Integer:
        pieces = lane_pieces(values)
        assert pieces is not None, "conversions have sums of digits alone"
        return sum_of_pieces(e, values[0], pieces)

    return e.w.hoist(("by lane", tuple(values)), make, root=True)


def _by_mask(e: Emitter, mask: int) -> str:
    """Whether this lane's bit is set in a constant."""
    w = e.w

    def make() -> str:
        bit = w.op("shl.b32", "b32", w.register(1), e.lane())
        return w.op(
            "setp.ne.b32", "pred", w.op("and.b32", "b32", bit, mask - (mask >> 31 << 32)), 0
        )

    return w.hoist(("by mask", mask), make, root=True)
