"""tile.convert: by choosing registers, by swaps of registers between lanes, or by shuffles where
each lane finds its element in one other lane of its warp.
"""

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
from tkc.ir.exchanges import Step, lane_exchanges
from tkc.ir.lanes import Place, fetches, lane_pieces
from tkc.ir.layout import movement, register_map
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
    if movement(value.layout, layout) != "lanes":
        e.fail(
            f"a conversion from {value.layout} to {layout} moves elements between warps:"
            " passes must send it through shared memory"
        )
    exchanges = lane_exchanges(value.layout, layout)
    if exchanges is None:
        return e.set(op.result, by_shuffles(e, value, t))
    e.set(op.result, by_exchanges(e, value, t, *exchanges))


def by_exchanges(
    e: Emitter, value: Tile, t: TileType, steps: Sequence[Step], registers: Sequence[int]
) -> Tile:
    """Swaps of lanes' bits with registers' bits; packed elements stay together where they can."""
    pack, moved = value.pack, value.bytes
    if any(r % pack for _, r in steps) or any(
        r != registers[i - i % pack] + i % pack for i, r in enumerate(registers)
    ):
        pack = 1
    together = pack > 1 or bits(moved.element) >= 32
    kind = compute_class(moved.element)
    found: list[Operand] = list(moved.registers) if together else e.elements(moved)
    for lane, register in steps:
        upper = e.lane_bit(lane)
        for low in range(len(found)):
            high = low | register // pack
            if low == high:
                continue
            one, other = found[low], found[high]
            given = _pick(e, kind, upper, one, other)
            got = shuffle(e, given, lane, kind)
            found[low] = _pick(e, kind, upper, got, one)
            found[high] = _pick(e, kind, upper, other, got)
    chosen = [found[r // pack] for r in registers[::pack]]
    if together:
        return Tile.of(t, [as_integer(x) for x in chosen])
    return Tile.of(t, e.build(TileType(t.shape, moved.element, t.layout), chosen).registers)


def _pick(e: Emitter, kind: str, upper: str, yes: Operand, no: Operand) -> Operand:
    """One of two words, of elements that nobody computes with."""
    if kind == "pred":
        return select(e, i1, upper, yes, no)
    return e.w.op(f"selp.{kind}", kind, yes, no, upper)


def by_shuffles(e: Emitter, value: Tile, t: TileType) -> Tile:
    """For each register of the result: which register of which lane holds it; the few candidates
    are shuffled, one is taken.
    """
    src, dst, moved = value.layout, layout_of(t), value.bytes
    places = fetches(src, dst)
    if places is None:
        e.fail(
            f"{src} and {dst} differ in their warps, or a lane's element is in a lane that is no"
            " choice of digits: passes must send the tile through shared memory"
        )
    found = [_fetch(e, moved, row) for row in places]
    return Tile.of(t, e.build(TileType(t.shape, moved.element, t.layout), found).registers)


def _fetch(e: Emitter, value: Tile, places: Sequence[Place]) -> Operand:
    """Element (register, lane) of each lane's choice: one shuffle for each register that any lane
    wants.
    """
    kind = compute_class(value.element)
    lane = _by_lane(e, [lane for _, lane in places])

    def shuffled(register: int) -> tuple[Operand, Operand]:
        """What the lanes get of a register, and whether this one wants it."""
        x = shuffle(e, e.element(value, register), lane, kind, "idx")
        return x, _by_mask(e, sum(1 << i for i, (r, _) in enumerate(places) if r == register))

    first, *others = dict.fromkeys(r for r, _ in places)
    answer, _ = shuffled(first)
    for register in others:
        x, wanted = shuffled(register)
        answer = select(e, value.element, wanted, x, answer)
    return answer


def _by_lane(e: Emitter, values: list[int]) -> Integer:
    """A function of the lane, computed once."""

    def make() -> Integer:
        pieces = lane_pieces(values)
        assert pieces is not None, "fetches gives sums of digits alone"
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
