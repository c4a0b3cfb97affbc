"""Shape operations: which register holds which element follows from the layouts, so almost none of
them is code.
"""

from __future__ import annotations

import numpy as np

from tkc.codegen.ptx.conversions import narrow
from tkc.codegen.ptx.coordinates import coordinate
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import Tile, packing
from tkc.codegen.ptx.writer import Operand
from tkc.ir import tile
from tkc.ir.layout import Layout, register_map
from tkc.ir.types import TileType, bits


def chosen(e: Emitter, t: TileType, sources: list[tuple[Tile, int]]) -> Tile:
    """A tile each of whose elements is an element of some tile of this thread: by bits, moved only
    where packing demands it.
    """
    p = packing(t.element, len(sources))
    if p == 1 and all(s.pack == 1 for s, _ in sources):
        return Tile.of(t, [s.registers[i] for s, i in sources])
    return Tile.of(
        t, [_gather(e, sources[i : i + p], bits(t.element)) for i in range(0, len(sources), p)]
    )


def _gather(e: Emitter, sources: list[tuple[Tile, int]], width: int) -> Operand:
    """One register of packed elements. Bytes of two registers are one instruction's."""
    if any(s is None for s, _ in sources):
        sources = [x if x[0] is not None else next(y for y in sources if y[0]) for x in sources]
    places = [(s.registers[i // s.pack], i % s.pack) for s, i in sources]
    first, whole = places[0][0], sources[0][0].pack == len(sources)
    if whole and all(raw == first and part == i for i, (raw, part) in enumerate(places)):
        return first
    if not any(isinstance(raw, str) for raw, _ in places):
        return sum(
            (raw >> part * width & (1 << width) - 1) << i * width
            for i, (raw, part) in enumerate(places)
        )
    pick = [(e.w.register(raw), part * width // 8) for raw, part in places]
    if len(pick) == 1:
        return (
            pick[0][0]
            if pick[0][1] == 0 and sources[0][0].pack == 1
            else e.w.op(
                "prmt.b32",
                "b32",
                pick[0][0],
                0,
                0x4440 | pick[0][1] if width == 8 else 0x4400 | pick[0][1] + 1 << 4 | pick[0][1],
            )
        )
    if width == 16:
        return _permute(e, pick[0], pick[1], lambda a, b: (a, a + 1, b, b + 1))
    if len(from_ := list(dict.fromkeys(raw for raw, _ in pick))) <= 2:
        return e.w.op(
            "prmt.b32",
            "b32",
            from_[0],
            from_[1] if len(from_) > 1 else 0,
            sum(4 * from_.index(raw) + part << 4 * i for i, (raw, part) in enumerate(pick)),
        )
    low, high = (_permute(e, pick[i], pick[i + 1], lambda a, b: (a, b, a, b)) for i in (0, 2))
    return e.w.op("prmt.b32", "b32", low, high, 0x5410)


def _permute(e: Emitter, a: tuple[str, int], b: tuple[str, int], bytes_of) -> str:
    """prmt of two registers: bytes from a's and b's first byte numbers (b's count from 4)."""
    same = a[0] == b[0]
    selector = sum(n << 4 * i for i, n in enumerate(bytes_of(a[1], b[1] + (0 if same else 4))))
    return e.w.op("prmt.b32", "b32", a[0], 0 if same else b[0], selector)


@emitter(tile.Arange)
def arange(e: Emitter, op: tile.Arange) -> None:
    t, start = op.result.type, op.start.value.data
    layout, wide = t.register_layout, bits(t.element) == 64
    found = []
    for r in range(layout.num_registers):
        at = coordinate(e, layout, r, 0)
        at = (
            at + start
            if not isinstance(at, str)
            else e.w.op("add.s32", "b32", at, start)
            if start
            else at
        )
        found.append(e.w.op("cvt.s64.s32", "b64", at) if wide and isinstance(at, str) else at)
    e.set(op.result, e.build(t, found))


@emitter(tile.Splat)
def splat(e: Emitter, op: tile.Splat) -> None:
    t, x = op.result.type, e.operand(op.arg)
    p = packing(t.element, t.register_layout.num_registers)
    raw = narrow(e, [x] * p, t.element)
    e.set(op.result, Tile.of(t, [raw] * (t.register_layout.num_registers // p)))


# ---- by choosing registers
# ----------------------------------------------------------------------------------------------
def deliver(e: Emitter, op, held: Layout, value: Tile, registers: list[int] | None = None) -> None:
    """A tile held as `held` (register i is number `registers[i]` of `value`) in the layout the
    result wants.
    """
    t = op.result.type
    sources = register_map(held, t.register_layout)
    if sources is None:
        e.fail(
            f"'{op.name}' leaves its result as {held}, but it is wanted as {t.register_layout}:"
            " convert it"
        )
    e.set(
        op.result,
        chosen(e, t, [(value, registers[r] if registers else r) for r in sources]),
        alias=True,
    )


@emitter(tile.Broadcast)
def broadcast(e: Emitter, op: tile.Broadcast) -> None:
    deliver(e, op, e.tile(op.arg).layout, e.tile(op.arg))


@emitter(tile.Reshape)
def reshape(e: Emitter, op: tile.Reshape) -> None:
    value = e.tile(op.arg)
    deliver(e, op, value.layout.reshape(op.result.type.extents), value)


@emitter(tile.Transpose)
def transpose(e: Emitter, op: tile.Transpose) -> None:
    value = e.tile(op.arg)
    deliver(e, op, value.layout.transpose(op.permutation.get_values()), value)


def _same_thread(value: Tile, t: TileType, want: np.ndarray) -> list[int] | None:
    """For each register of the result: the operand's register that holds, in every thread, the
    element at `want` [warps, lanes, registers, rank]; None where there is none. Places of the
    padding may hold anything."""
    have, real = value.layout.table(), (t.register_layout.table() < np.array(t.extents)).all(-1)
    span = (
        np.maximum(have.reshape(-1, have.shape[-1]).max(0), want.reshape(-1, want.shape[-1]).max(0))
        + 1
    )

    def number(at):
        return np.ravel_multi_index(
            tuple(np.moveaxis(np.maximum(at, 0), -1, 0)), span
        )  # a place before 0 is padding

    held, asked, found = number(have), number(want), []
    for r in range(asked.shape[2]):
        fits, one = None, np.argwhere(real[:, :, r])
        if len(one):  # candidates by one thread, then proven in all
            w, l = one[0]
            fits = next(
                (
                    c
                    for c in np.flatnonzero(held[w, l] == asked[w, l, r])
                    if ((held[:, :, c] == asked[:, :, r]) | ~real[:, :, r]).all()
                ),
                None,
            )
        else:
            fits = 0
        if fits is None:
            return None
        found.append(int(fits))
    return found


@emitter(tile.Slice)
def slice_(e: Emitter, op: tile.Slice) -> None:
    """By the elements that each thread has: register i of the result is that register of the
    operand in every thread.
    """
    value, t = e.tile(op.arg), op.result.type
    want = t.register_layout.table() * np.array(op.steps) + np.array(op.offsets.get_values())
    found = _same_thread(value, t, want)
    if found is None:
        e.fail(
            f"a slice at {list(op.offsets.get_values())} of {value.layout} takes elements of other"
            f" threads for {t.register_layout}: passes must send it through shared memory"
        )
    e.set(op.result, chosen(e, t, [(value, r) for r in found]), alias=True)


@emitter(tile.Concat)
def concat(e: Emitter, op: tile.Concat) -> None:
    parts, t = [e.tile(a) for a in op.args], op.result.type
    whole, sources = Layout.concat([p.layout for p in parts], op.axis.value.data)
    wanted = register_map(whole, t.register_layout)
    if wanted is None:
        e.fail(
            f"'tile.concat' leaves its result as {whole}, but it is wanted as {t.register_layout}:"
            " convert it"
        )
    e.set(
        op.result, chosen(e, t, [(parts[sources[r][0]], sources[r][1]) for r in wanted]), alias=True
    )


@emitter(tile.Flip)
def flip(e: Emitter, op: tile.Flip) -> None:
    """Within the threads: where the axis lies in registers alone."""
    value, t, axis = e.tile(op.arg), op.result.type, op.axis.value.data
    want = t.register_layout.table().copy()
    want[..., axis] = t.extents[axis] - 1 - want[..., axis]
    found = _same_thread(value, t, want)
    if found is None:
        e.fail(
            "a flip along an axis that lies across threads: passes must send it through shared"
            " memory"
        )
    e.set(op.result, chosen(e, t, [(value, r) for r in found]), alias=True)


@emitter(tile.Extract)
def extract(e: Emitter, op: tile.Extract) -> None:
    """One element for every thread: a shuffle inside a warp, shared memory among warps."""
    from tkc.codegen.ptx.global_memory import one_from

    value = e.tile(op.arg)
    e.set(op.result, one_from(e, value, tuple(op.index.get_values())))
