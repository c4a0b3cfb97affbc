"""tile.read and tile.write: ldmatrix and stmatrix where the layouts allow them, else vector
accesses.

Every address is split into a base of the thread, computed in the prologue, and a constant.  In a swizzled buffer the XOR keeps
constants from simply adding; but what is a multiple of the swizzle's period adds, and the rest XORs
with the thread's own part:

    offset(thread, register) = (offset(thread, first register) ^ flip) + step        flip, step constants of the register

`split` finds flip and step by asking SharedLayout for all threads at once, so an address is right
because it was compared, not because the algebra was; a register that fits no base so far gets a
base of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tkc.codegen.ptx.access import WIDEST, Group, both, load_tile, store_tile
from tkc.codegen.ptx.coordinates import digit, inside, is_first_copy, thread_offset
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.scalars import add, mul
from tkc.codegen.ptx.values import SharedView, Tile, registers_of
from tkc.codegen.ptx.writer import Operand
from tkc.ir import shared
from tkc.ir.fragments import MatrixPlan, matrix_access
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import bits, is_bool


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
    bases, places = [], []
    for i, column in enumerate(offsets.T):
        for b in bases:
            first = offsets[:, b]
            if (step := _constant(column - first)) is not None:
                places.append(Place(b, 0, step))
                break
            plain = int((column - first)[0] // atom * atom)
            found = next(
                (
                    Place(b, f, s)
                    for s in (plain, plain + atom)
                    if (f := _constant((column - s) ^ first)) is not None and 0 <= f < atom
                ),
                None,
            )
            if found:
                places.append(found)
                break
        else:
            bases.append(i)
            places.append(Place(i, 0, 0))
    return places


def _constant(column: np.ndarray) -> int | None:
    return int(column[0]) if (column == column[0]).all() else None


def swizzled_offset(e: Emitter, memory: SharedLayout, coords: list[Operand]) -> Operand:
    """SharedLayout.offset at run time: columns to panels, rows by their strides, then the XOR."""
    w, fast = e.w, memory.fast
    at: Operand = 0
    for axis, c in enumerate(coords):
        if axis != fast:
            at = add(e, at, mul(e, c, memory.strides[axis]))
    column, panel = coords[fast], memory.panel
    if memory.num_panels > 1:
        if not isinstance(column, str):
            index, column = divmod(column, panel)
        elif panel & panel - 1 == 0:
            index, column = (
                w.op("shr.u32", "b32", column, panel.bit_length() - 1),
                w.op("and.b32", "b32", column, panel - 1),
            )
        else:
            index = w.op("div.u32", "b32", column, panel)
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
    """The addresses of a tile's accesses in a buffer; `coords(i)` gives the run-time coordinates of
    access i.
    """

    def __init__(
        self,
        e: Emitter,
        view: SharedView,
        key,
        offsets: np.ndarray,
        coords: Callable[[int], list[Operand]],
    ):
        self.e, self.view, self.key, self.coords = e, view, key, coords
        self.places = split(offsets, max(view.memory.atom, 16))
        self.found: dict[tuple[int, int], str] = {}

    def __call__(self, i: int) -> tuple[str, int]:
        p = self.places[i]
        return self._base(p.base, p.flip), self.view.offset + p.step

    def _base(self, base: int, flip: int) -> str:
        """Base of the thread + that of the buffer; the buffer starts at a multiple of the period,
        so the XOR may come last.
        """
        if (base, flip) not in self.found:
            e = self.e
            if flip:
                self.found[base, flip] = e.w.op("xor.b32", "b32", self._base(base, 0), flip)
            else:
                own = e.w.hoist(
                    (self.key, self.view.memory, base, e.instance),
                    lambda: swizzled_offset(e, self.view.memory, self.coords(base)),
                )
                if self.view.base == e.shared_base():
                    at = e.w.hoist(
                        (self.key, self.view.memory, base, e.instance, "at"),
                        lambda: e.w.register(add(e, self.view.base, own)),
                    )
                else:
                    at = e.w.memo(
                        (self.key, self.view.memory, base, e.instance, self.view.base),
                        lambda: e.w.register(add(e, self.view.base, own)),
                    )
                self.found[base, flip] = at
        return self.found[base, flip]


# ---- plain vectors
# --------------------------------------------------------------------------------------------------
def vector_width(
    layout: Layout, memory: SharedLayout, offsets: np.ndarray, align: int = WIDEST
) -> int:
    """Elements that one access may move: consecutive registers at consecutive, aligned addresses in
    every thread, in a buffer that begins at a multiple of `align` bytes.
    """
    v = layout.vector(memory.fast, WIDEST // memory.itemsize)
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


def plain_groups(
    e: Emitter, layout: Layout, view: SharedView
) -> tuple[int, Callable[[int], Group]]:
    """(vector, place of the group that starts with a register) of a tile in a buffer."""
    memory = view.memory
    offsets = memory.offsets(layout.table()).reshape(-1, layout.num_registers)
    v = vector_width(layout, memory, offsets, view.align)
    constants, here = (
        layout.offsets("registers"),
        (layout if memory.spread == 1 else layout.within_block(memory.fast)),
    )

    def coords(i: int) -> list[Operand]:
        return [
            add(e, thread_offset(e, here, {a: 1}), int(constants[i * v, a]))
            for a in range(layout.rank)
        ]

    address = Addresses(e, view, ("plain", layout), offsets[:, ::v], coords)

    def group(r: int) -> Group:
        register, offset = address(r // v)
        return Group(register, offset + r % v * memory.itemsize, inside(e, layout, r))

    return v, group


# ---- ldmatrix, stmatrix
# -----------------------------------------------------------------------------------------------
def lane_pieces(values: np.ndarray) -> list[tuple[int, int, int]] | None:
    """A function of the lane as a sum of (lane >> shift & mask) * factor: [(shift, bits, factor)],
    None if it is none.
    """
    single = [int(values[1 << b] - values[0]) for b in range(5)]
    if any(
        values[lane] - values[0] != sum(s for b, s in enumerate(single) if lane >> b & 1)
        for lane in range(32)
    ):
        return None
    pieces: list[tuple[int, int, int]] = []
    for b, s in enumerate(single):
        if (
            s
            and pieces
            and pieces[-1][0] + pieces[-1][1] == b
            and pieces[-1][2] << pieces[-1][1] == s
        ):
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + 1, pieces[-1][2])
        elif s:
            pieces.append((b, 1, s))
    return pieces


def matrix_addresses(
    e: Emitter, plan: MatrixPlan, view: SharedView
) -> Callable[[int], tuple[str, int]] | None:
    """The address of the chunk that this lane names for instruction i; None if lanes are not digits
    of it.
    """
    layout, rows = plan.layout, plan.rows  # [warps, instructions, lanes, rank]
    pieces = [
        [lane_pieces(rows[0, i, :, a]) for a in range(layout.rank)] for i in range(rows.shape[1])
    ]
    if any(p is None for line in pieces for p in line):
        return None

    def coords(i: int) -> list[Operand]:
        found = []
        for a in range(layout.rank):
            at: Operand = int(rows[0, i, 0, a])
            for shift, width, factor in pieces[i][a]:
                at = add(
                    e,
                    at,
                    mul(e, digit(e, e.lane(), 1 << shift, 1 << width, shift + width == 5), factor),
                )
            warps = Layout(layout.shape, layout.registers, layout.lanes, layout.warps)
            from tkc.codegen.ptx.coordinates import along

            found.append(add(e, at, along(e, e.warp(), warps.warps, {a: 1})))
        return found

    offsets = plan.addresses().swapaxes(1, 2).reshape(-1, rows.shape[1])
    return Addresses(e, view, ("matrix", layout, plan.trans), offsets, coords)


def matrix_plan(
    e: Emitter, layout: Layout, view: SharedView, element, store: bool
) -> MatrixPlan | None:
    if (
        layout.is_padded
        or layout.num_blocks > 1
        or store
        and not e.target.stmatrix
        or is_bool(element)
        or view.align < WIDEST
    ):
        return None  # truth values are predicates
    if layout.num_warps != e.instance.warps:
        e.fail(f"the layout {layout} is of {layout.num_warps} warps, but {e.instance.warps} run it")
    plan = matrix_access(layout, view.memory, bits(element), store)
    return plan if plan is not None and registers_of_plan(plan) else None


def registers_of_plan(plan: MatrixPlan) -> bool:
    """Whether each word is one of the tile's 32-bit registers (elements 2i, 2i + 1, …)."""
    return all(
        word[0] % len(word) == 0 and word == tuple(range(word[0], word[0] + len(word)))
        for words in plan.words
        for word in words
    )


# ---- the operations
# --------------------------------------------------------------------------------------------------
@emitter(shared.Read)
def read(e: Emitter, op: shared.Read) -> None:
    t, view, home = op.result.type, e.value(op.buffer), e.home(op.result)
    layout = t.register_layout
    plan = matrix_plan(e, layout, view, t.element, store=False)
    address = matrix_addresses(e, plan, view) if plan else None
    if address is None:
        v, groups = plain_groups(e, layout, view)
        return e.set(op.result, load_tile(e, t, v, groups, None, "shared", into=home))
    kind, count = registers_of(t)
    registers, p = home or e.w.many(kind, count), 32 // bits(t.element)
    for i, words in enumerate(plan.words):
        base, offset = address(i)
        into = [registers[word[0] // p] for word in words]
        e.w.emit(
            f"ldmatrix.sync.aligned.m8n8.x{plan.count}{'.trans' if plan.trans else ''}.shared.b16"
            f" {{{', '.join(into)}}}, {Group(base, offset).text}"
        )
    e.set(op.result, Tile.of(t, registers))


@emitter(shared.Write)
def write(e: Emitter, op: shared.Write) -> None:
    value, view = e.tile(op.value), e.value(op.buffer)
    if op.everywhere is not None:
        return _write_everywhere(e, value, view, op.lone is not None)
    plan = matrix_plan(e, value.layout, view, value.element, store=True)
    address = matrix_addresses(e, plan, view) if plan else None
    if address is None:
        v, groups = plain_groups(e, value.layout, view)
        return store_tile(e, value, v, groups, "shared")
    p = 32 // bits(value.element)
    e.need("7.8")

    def held(i):
        return [e.w.register(value.registers[word[0] // p]) for word in plan.words[i]]

    if plan.exchanged:
        upper = e.w.hoist(
            "upper lanes", lambda: e.w.op("setp.ge.u32", "pred", e.lane(), 16), root=True
        )
    for i in range(len(plan.words)):
        base, offset = address(i)
        source = (
            held(i)
            if not plan.exchanged
            else [
                e.w.op("selp.b32", "b32", theirs, mine, upper)
                for mine, theirs in zip(held(i), held(plan.exchanged[i]), strict=False)
            ]
        )
        e.w.emit(
            f"stmatrix.sync.aligned.m8n8.x{plan.count}{'.trans' if plan.trans else ''}.shared.b16"
            f" {Group(base, offset).text}, {{{', '.join(source)}}}"
        )


def _write_everywhere(e: Emitter, value: Tile, view: SharedView, lone: bool) -> None:
    for _, v, there in everywhere(e, value.layout, view, lone):
        store_tile(e, value, v, there, "shared::cluster")


def everywhere(
    e: Emitter, layout: Layout, view: SharedView, lone: bool = False
) -> Iterator[tuple[Operand, int, Callable[[int], Group]]]:
    """(block, vector, place of the group that starts with a register) for every block of the
    cluster that a thread writes a tile to. Where the lanes of a warp hold copies, each writes to
    one block.
    """
    w, size = e.w, e.cluster[0] * e.cluster[1]
    v, groups = plain_groups(e, layout, view)
    if (
        alike := not lone
        and all(d.axis < 0 for d in layout.lanes)
        and size <= 32
        and not any(d.axis < 0 for d in (*layout.warps, *layout.blocks))
    ):
        own = w.hoist(
            ("lanes below", size), lambda: w.op("setp.lt.u32", "pred", e.lane(), size), root=True
        )
    else:
        own = is_first_copy(e, layout)
    for peer in [e.lane()] if alike else range(size):

        def there(r: int, peer=peer) -> Group:
            at = groups(r)
            return Group(
                w.memo(
                    ("far", at.address, peer),
                    lambda: w.op("mapa.shared::cluster.u32", "b32", at.address, peer),
                ),
                at.offset,
                both(e, at.held, own),
            )

        yield peer, v, there
