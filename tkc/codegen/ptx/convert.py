"""tile.convert: by choosing registers, or by shuffles where each lane finds its element in one
other lane of its warp.
"""

from __future__ import annotations

import numpy as np

from tkc.codegen.ptx.coordinates import digit
from tkc.codegen.ptx.elementwise import select
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.reduce import shuffle
from tkc.codegen.ptx.scalars import add, mul
from tkc.codegen.ptx.shape import chosen
from tkc.codegen.ptx.shared_memory import lane_pieces
from tkc.codegen.ptx.values import Tile, compute_class
from tkc.codegen.ptx.writer import Operand
from tkc.ir import shared
from tkc.ir.layout import Layout, movement, register_map
from tkc.ir.types import TileType


@emitter(shared.Convert)
def convert(e: Emitter, op: shared.Convert) -> None:
    value, t = e.tile(op.arg), op.result.type
    if value.layout == t.register_layout:
        return e.set(op.result, Tile.of(t, value.registers), alias=True)
    sources = register_map(value.layout, t.register_layout)
    if sources is not None:
        return e.set(op.result, chosen(e, t, [(value, r) for r in sources]), alias=True)
    if movement(value.layout, t.register_layout) != "lanes":
        e.fail(
            f"a conversion from {value.layout} to {t.register_layout} moves elements between warps:"
            " passes must send it through shared memory"
        )
    e.set(op.result, by_shuffles(e, value, t))


def by_shuffles(e: Emitter, value: Tile, t) -> Tile:
    """For each register of the result: which register of which lane holds it; the few candidates
    are shuffled, one is taken.
    """
    src, dst, moved = value.layout, t.register_layout, value.bytes
    if not np.array_equal(src.offsets("warps"), dst.offsets("warps")):
        e.fail(
            f"{src} and {dst} differ in their warps: passes must send the tile through shared"
            " memory"
        )
    owner = _owners(src)
    wanted = dst.table()[0]  # [lanes, registers, rank]
    found = []
    for r in range(dst.num_registers):
        homes = [owner.get(tuple(int(x) for x in wanted[lane, r])) for lane in range(32)]
        if None in homes:
            homes = [h or next(x for x in homes if x) for h in homes]
        found.append(_fetch(e, moved, homes))
    return Tile.of(t, e.build(TileType(t.shape, moved.element, t.layout), found).registers)


def _owners(src: Layout) -> dict[tuple[int, ...], tuple[int, int]]:
    """Coordinates within the first warp -> (register, lane)."""
    table = src.table()[0]
    return {
        tuple(table[lane, r].tolist()): (r, lane)
        for lane in reversed(range(32))
        for r in reversed(range(src.num_registers))
    }


def _fetch(e: Emitter, value: Tile, homes: list[tuple[int, int]]) -> Operand:
    """Element (register, lane) of each lane's choice: one shuffle for each register that any lane
    wants.
    """
    kind, answer = compute_class(value.element), None
    lane = _by_lane(e, [l for _, l in homes])
    for register in dict.fromkeys(r for r, _ in homes):
        x = shuffle(e, e.element(value, register), lane, kind, "idx")
        mine = _by_mask(e, sum(1 << i for i, (r, _) in enumerate(homes) if r == register))
        answer = x if answer is None else select(e, value.element, mine, x, answer)
    return answer


def _by_lane(e: Emitter, values: list[int]) -> Operand:
    """A function of the lane, computed once."""

    def make() -> Operand:
        pieces, at = lane_pieces(np.array(values)), values[0]
        if pieces is None:
            e.fail(
                "a conversion between lanes in an order that is no choice of digits: passes must"
                " send it through shared memory"
            )
        for shift, width, factor in pieces:
            at = add(
                e,
                at,
                mul(e, digit(e, e.lane(), 1 << shift, 1 << width, shift + width == 5), factor),
            )
        return at

    return e.w.hoist(("by lane", tuple(values)), make, root=True)


def _by_mask(e: Emitter, mask: int) -> Operand:
    """Whether this lane's bit is set in a constant."""
    w = e.w
    return w.hoist(
        ("by mask", mask),
        lambda: w.op(
            "setp.ne.b32",
            "pred",
            w.op(
                "and.b32",
                "b32",
                w.op("shl.b32", "b32", w.register(1), e.lane()),
                mask - (mask >> 31 << 32),
            ),
            0,
        ),
        root=True,
    )
