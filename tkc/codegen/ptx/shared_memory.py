"""tile.read and tile.write: ldmatrix and stmatrix where the layouts allow them, else vector
accesses.

Every address is split into a base of the thread, computed in the prologue, and a constant.  In a
swizzled buffer the XOR keeps constants from simply adding; but what is a multiple of the swizzle's
period adds, and the rest XORs with the thread's own part:

    offset(thread, register) = (offset(thread, first register) ^ flip) + step

with `flip` and `step` constants of the register.  `split` finds them by evaluating SharedLayout for
all threads at once, so an address is right because it was compared, not because the algebra was; a
register that fits no base so far gets a base of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from xdsl.ir import Attribute

from tkc.codegen.ptx.access import MAX_ACCESS_BYTES, Group, both, load_tile, store_tile
from tkc.codegen.ptx.coordinates import (
    along,
    check_warps,
    digit,
    inside,
    is_first_copy,
    thread_offset,
)
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.integers import add, divide, is_power_of_two, mul
from tkc.codegen.ptx.values import SharedView, Tile, layout_of, registers_of
from tkc.codegen.ptx.writer import Integer, Operand, braced
from tkc.ir import shared
from tkc.ir.fragments import MatrixPlan, matrix_access
from tkc.ir.lanes import LanePieces, lane_pieces
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout, exchange_of, exchanged
from tkc.ir.types import bits, is_bool
from tkc.ir.values import tile_type


@dataclass(frozen=True)
class Place:
    """An access at (thread's base number `base` ^ flip) + step."""

    base: int
    flip: int
    step: int


def split(offsets: np.ndarray, atom: int) -> list[Place]:
    """offsets [threads, accesses] -> how each access follows from one before it.  `flip` stays
    below `atom`.
    """
    bases: list[int] = []
    places: list[Place] = []
    for i, column in enumerate(offsets.T):
        candidates = (_follows(column, offsets[:, b], b, atom) for b in bases)
        found = next((place for place in candidates if place is not None), None)
        if found is None:
            bases.append(i)
            found = Place(i, 0, 0)
        places.append(found)
    return places


def _follows(column: np.ndarray, first: np.ndarray, base: int, atom: int) -> Place | None:
    """How the offsets `column` follow from the offsets `first` of a base; None if they do not."""
    if (step := _constant(column - first)) is not None:
        return Place(base, 0, step)
    plain = int((column - first)[0] // atom * atom)
    for step in (plain, plain + atom):
        flip = _constant((column - step) ^ first)
        if flip is not None and 0 <= flip < atom:
            return Place(base, flip, step)
    return None


def _constant(column: np.ndarray) -> int | None:
    return int(column[0]) if (column == column[0]).all() else None


def swizzled_offset(e: Emitter, memory: SharedLayout, coords: list[Integer]) -> Integer:
    """SharedLayout.offset at run time: columns to panels, rows by their strides, then the XOR."""
    w, fast = e.w, memory.fast
    at: Integer = 0
    for axis, c in enumerate(coords):
        if axis != fast:
            at = add(e, at, mul(e, c, memory.strides[axis]))
    column, panel = coords[fast], memory.panel
    if memory.num_panels > 1:
        index = divide(e, column, panel)
        if not isinstance(column, str):
            column %= panel
        elif is_power_of_two(panel):
            column = w.op("and.b32", "b32", column, panel - 1)
        else:
            column = w.op("sub.s32", "b32", column, mul(e, index, panel))
        at = add(e, at, mul(e, index, memory.panel_stride))
    at = add(e, at, mul(e, column, memory.itemsize))
    mask = {32: 1, 64: 3, 128: 7}.get(memory.swizzle, 0)
    if not mask:
        return at
    if not isinstance(at, str):
        return memory.swizzled(at)
    chunk = w.op("and.b32", "b32", w.op("shr.u32", "b32", at, 3), mask << 4)
    return w.op("xor.b32", "b32", at, chunk)


class Addresses:
    """The addresses of a tile's accesses in a buffer; `coords(i)` returns the run-time
    coordinates of access i.
    """

    def __init__(
        self,
        e: Emitter,
        view: SharedView,
        key: Hashable,
        places: Sequence[Place],
        coords: Callable[[int], list[Integer]],
    ):
        self.e, self.view, self.key, self.coords, self.places = e, view, key, coords, places
        self.found: dict[tuple[int, int], str] = {}

    def __call__(self, i: int) -> tuple[str, int]:
        p = self.places[i]
        return self._base(p.base, p.flip), self.view.offset + p.step

    def _base(self, base: int, flip: int) -> str:
        """Base of the thread + that of the buffer; the buffer starts at a multiple of the period,
        so the XOR may come last.
        """
        if (base, flip) not in self.found:
            if flip:
                at = self.e.w.op("xor.b32", "b32", self._base(base, 0), flip)
            else:
                at = self._unflipped(base)
            self.found[base, flip] = at
        return self.found[base, flip]

    def _unflipped(self, base: int) -> str:
        e, view = self.e, self.view
        key = self.key, view.memory, base, e.instance
        own = e.w.hoist(key, lambda: swizzled_offset(e, view.memory, self.coords(base)))

        def make() -> str:
            return e.w.register(add(e, view.base, own))

        if view.base == e.shared_base():
            return e.w.hoist((*key, "at"), make)
        return e.w.memo((*key, view.base), make)


# ---- plain vectors
# --------------------------------------------------------------------------------------------------
def vector_width(
    layout: Layout, memory: SharedLayout, offsets: np.ndarray, align: int = MAX_ACCESS_BYTES
) -> int:
    """Elements that one access may move: consecutive registers at consecutive, aligned addresses in
    every thread, in a buffer that begins at a multiple of `align` bytes.
    """
    v = layout.vector(memory.fast, MAX_ACCESS_BYTES // memory.itemsize)
    while v > 1 and v * memory.itemsize > align:
        v //= 2
    while v > 1:
        groups = offsets.reshape(len(offsets), -1, v)
        if (groups[..., 0] % (v * memory.itemsize) == 0).all() and (
            groups == groups[..., :1] + np.arange(v) * memory.itemsize
        ).all():
            break
        v //= 2
    return v


@lru_cache(1 << 11)
def _vectors(
    layout: Layout, memory: SharedLayout, align: int, exchange: tuple[int, int] | None
) -> tuple[int, Sequence[Place]]:
    """Elements of an access, and how each follows from one before it: of a tile in a buffer that
    begins at a multiple of `align` bytes.
    """
    offsets = memory.offsets(layout.table()).reshape(-1, layout.num_registers)
    v = vector_width(layout, memory, offsets, align)
    starts = offsets[:, ::v]
    if exchange is not None:
        by_warp = starts.reshape(-1, 32, starts.shape[1]).swapaxes(1, 2)
        starts = exchanged(by_warp, *exchange).swapaxes(1, 2).reshape(starts.shape)
    return v, split(starts, max(memory.atom, 16))


def plain_groups(
    e: Emitter, layout: Layout, view: SharedView, exchange: tuple[int, int] | None = None
) -> tuple[int, Callable[[int], Group]]:
    """(vector, place of the group that starts with a register) of a tile in a buffer; exchange: of
    stores that some lanes make in another order (`exchange_of`).
    """
    memory = view.memory
    v, places = _vectors(layout, memory, view.align, exchange)
    constants = layout.offsets("registers")
    here = layout if memory.spread == 1 else layout.within_block(memory.fast)

    def coords(i: int) -> list[Integer]:
        found = [
            add(e, thread_offset(e, here, {a: 1}), int(constants[i * v, a]))
            for a in range(layout.rank)
        ]
        if exchange is not None:
            lane, bit = exchange
            other = constants[(i ^ 1 << bit) * v] - constants[i * v]
            is_other = digit(e, e.lane(), 1 << lane, 2, lane == 4)
            found = [
                add(e, x, mul(e, is_other, int(d))) if d else x
                for x, d in zip(found, other, strict=True)
            ]
        return found

    address = Addresses(e, view, ("plain", layout, exchange), places, coords)

    def group(r: int) -> Group:
        register, offset = address(r // v)
        return Group(register, offset + r % v * memory.itemsize, inside(e, layout, r))

    return v, group


# ---- ldmatrix, stmatrix
# -----------------------------------------------------------------------------------------------
def sum_of_pieces(e: Emitter, start: Integer, pieces: LanePieces) -> Integer:
    """start + the sum of (lane >> shift & mask) * weight over the pieces."""
    for shift, width, weight in pieces:
        value = digit(e, e.lane(), 1 << shift, 1 << width, shift + width == 5)
        start = add(e, start, mul(e, value, weight))
    return start


def matrix_addresses(
    e: Emitter, plan: MatrixPlan, view: SharedView
) -> Callable[[int], tuple[str, int]] | None:
    """The address of the chunk that this lane names for instruction i; None if lanes are not digits
    of it.
    """
    layout, chunks = plan.layout, _chunks(plan)
    if chunks is None:
        return None

    def coords(i: int) -> list[Integer]:
        return [
            add(e, sum_of_pieces(e, start, pieces), along(e, e.warp(), layout.warps, {a: 1}))
            for a, (start, pieces) in enumerate(chunks.of_lanes[i])
        ]

    return Addresses(e, view, ("matrix", layout, plan.trans), chunks.places, coords)


class _Chunks(NamedTuple):
    """Of the instructions of a plan: for each axis the first lane's coordinate and its digits of
    the lane; and how the addresses follow from one another.
    """

    of_lanes: list[list[tuple[int, LanePieces]]]
    places: Sequence[Place]


@lru_cache(1 << 11)
def _chunks(plan: MatrixPlan) -> _Chunks | None:
    """None where lanes are not digits of the chunks that they name."""
    rows = plan.rows  # [warps, instructions, lanes, rank]
    of_lanes: list[list[tuple[int, LanePieces]]] = []
    for i in range(rows.shape[1]):
        lanes = rows[0, i].T  # [rank, lanes]
        found = [(int(line[0]), lane_pieces(line)) for line in lanes]
        of_lanes.append([(start, pieces) for start, pieces in found if pieces is not None])
        if len(of_lanes[-1]) < len(found):
            return None
    offsets = plan.addresses().swapaxes(1, 2).reshape(-1, rows.shape[1])
    return _Chunks(of_lanes, split(offsets, max(plan.shared.atom, 16)))


def matrix_plan(
    e: Emitter, layout: Layout, view: SharedView, element: Attribute, store: bool
) -> tuple[MatrixPlan, Callable[[int], tuple[str, int]]] | None:
    """How matrix instructions move a tile, and the address that this lane names for instruction i;
    None where they cannot. Truth values are predicates.
    """
    if layout.is_padded or layout.num_blocks > 1 or is_bool(element):
        return None
    if store and not e.target.stmatrix or view.align < MAX_ACCESS_BYTES:
        return None
    check_warps(e, layout)
    plan = matrix_access(layout, view.memory, bits(element), store)
    if plan is None or not registers_of_plan(plan):
        return None
    address = matrix_addresses(e, plan, view)
    return None if address is None else (plan, address)


def registers_of_plan(plan: MatrixPlan) -> bool:
    """Whether each word is one of the tile's 32-bit registers (elements 2i, 2i + 1, …)."""
    return all(
        word[0] % len(word) == 0 and word == tuple(range(word[0], word[0] + len(word)))
        for words in plan.words
        for word in words
    )


# ---- the operations
@emitter(shared.Read)
def read(e: Emitter, op: shared.Read) -> None:
    """A tile from a buffer."""
    t, view, into = tile_type(op.result), e.view(op.buffer), e.destination(op.result)
    matrix = matrix_plan(e, layout_of(t), view, t.element, store=False)
    if matrix is None:
        v, groups = plain_groups(e, layout_of(t), view)
        return e.set(op.result, load_tile(e, t, v, groups, None, "shared", into=into))
    plan, address = matrix
    registers, p = into or e.w.many(*registers_of(t)), 32 // bits(t.element)
    for i, words in enumerate(plan.words):
        place = Group(*address(i)).text
        targets = braced(registers[word[0] // p] for word in words)
        e.w.emit(
            f"ldmatrix.sync.aligned.m8n8.x{plan.count}{'.trans' if plan.trans else ''}.shared.b16"
            f" {targets}, {place}"
        )
    e.set(op.result, Tile.of(t, registers))


def _exchanged(e: Emitter, value: Tile, vector: int, lane: int, bit: int) -> Tile:
    """A tile of 32 bits with registers in the order in which each lane stores them."""
    w, step = e.w, vector << bit
    held = [w.register(r) for r in value.registers]
    is_other = w.hoist(
        ("lanes with bit", lane),
        lambda: w.op("setp.ne.u32", "pred", w.op("and.b32", "b32", e.lane(), 1 << lane), 0),
        root=True,
    )
    mixed = [w.op("selp.b32", "b32", held[r ^ step], held[r], is_other) for r in range(len(held))]
    return replace(value, registers=mixed)


@emitter(shared.Write)
def write(e: Emitter, op: shared.Write) -> None:
    """A tile to a buffer, perhaps that of every block of the cluster."""
    value, view = e.tile(op.value), e.view(op.buffer)
    if op.everywhere is not None:
        for _, v, there in everywhere(e, value.layout, view, op.lone is not None):
            store_tile(e, value, v, there, "shared::cluster")
        return
    matrix = matrix_plan(e, value.layout, view, value.element, store=True)
    if matrix is None:
        v, groups = plain_groups(e, value.layout, view)
        exchange = None
        if bits(value.element) == 32:
            exchange = exchange_of(value.layout, view.memory, v)
        if exchange is not None:
            value = _exchanged(e, value, v, *exchange)
            v, groups = plain_groups(e, value.layout, view, exchange)
        return store_tile(e, value, v, groups, "shared")
    plan, address = matrix
    p, w, exchanged = 32 // bits(value.element), e.w, plan.exchanged
    e.need("7.8")

    def held(i: int) -> list[str]:
        return [w.register(value.registers[word[0] // p]) for word in plan.words[i]]

    def upper() -> str:
        return w.op("setp.ge.u32", "pred", e.lane(), 16)

    if exchanged:
        is_upper = w.hoist("upper lanes", upper, root=True)
    for i in range(len(plan.words)):
        place, source = Group(*address(i)).text, held(i)
        if exchanged:
            source = [
                w.op("selp.b32", "b32", theirs, own, is_upper)
                for own, theirs in zip(source, held(exchanged[i]), strict=True)
            ]
        w.emit(
            f"stmatrix.sync.aligned.m8n8.x{plan.count}{'.trans' if plan.trans else ''}.shared.b16"
            f" {place}, {braced(source)}"
        )


def _one_block_a_lane(layout: Layout, blocks: int) -> bool:
    """Whether the lanes of a warp hold copies, one at least for each block of the cluster."""
    if blocks > 32 or any(d.axis >= 0 for d in layout.lanes):
        return False
    return not any(d.axis < 0 for d in (*layout.warps, *layout.blocks))


def everywhere(
    e: Emitter, layout: Layout, view: SharedView, lone: bool = False, to: Integer | None = None
) -> Iterator[tuple[Integer, int, Callable[[int], Group]]]:
    """(block, vector, place of the group that starts with a register) for every block of the
    cluster that a thread writes a tile to, or the one named. Where the lanes of a warp hold copies,
    each writes to one block.
    """
    w, size = e.w, e.cluster[0] * e.cluster[1]
    v, groups = plain_groups(e, layout, view)
    peers: list[Integer] = list(range(size)) if to is None else [to]
    own: Operand
    if to is None and not lone and _one_block_a_lane(layout, size):
        own = w.hoist(
            ("lanes below", size), lambda: w.op("setp.lt.u32", "pred", e.lane(), size), root=True
        )
        peers = [e.lane()]
    else:
        own = is_first_copy(e, layout)

    def there(peer: Integer, r: int) -> Group:
        at = groups(r)
        address = w.memo(
            ("far", at.address, peer),
            lambda: w.op("mapa.shared::cluster.u32", "b32", at.address, peer),
        )
        return Group(address, at.offset, both(e, at.held, own))

    for peer in peers:
        yield peer, v, partial(there, peer)
