"""Shape operations: which register holds which element follows from the layouts, so almost none of
them is code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tkc.codegen.ptx.coordinates import coordinate
from tkc.codegen.ptx.elements import narrow
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_from
from tkc.codegen.ptx.integers import add
from tkc.codegen.ptx.values import Tile, element_count, layout_of, packing
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir import shared, tile
from tkc.ir.layout import Layout, register_map
from tkc.ir.types import TileType, bits
from tkc.ir.values import tile_type

Source = tuple[Tile, int]  # an element of a tile of this thread


def chosen(e: Emitter, t: TileType, sources: Sequence[Source]) -> Tile:
    """A tile each of whose elements is an element of some tile of this thread: by bits, moved only
    where packing demands it.
    """
    p = packing(t.element, len(sources))
    if p == 1 and all(s.pack == 1 for s, _ in sources):
        return Tile.of(t, [s.registers[i] for s, i in sources])
    width = bits(t.element)
    found = [_gather(e, sources[i : i + p], width) for i in range(0, len(sources), p)]
    for i, raw in enumerate(found):
        known = [_known(e, source, at) for source, at in sources[i * p : (i + 1) * p]]
        if None not in known:
            e.remember(raw, [x for x in known if x is not None], t.element)
    return Tile.of(t, found)


def _known(e: Emitter, source: Tile, at: int) -> Operand | None:
    """An element of a tile, if it is in a register of its own already."""
    raw = source.registers[at // source.pack]
    known = e.widened.get((raw, source.element)) if isinstance(raw, str) else None
    return None if known is None else known[at % source.pack]


def _gather(e: Emitter, sources: Sequence[Source], width: int) -> Integer:
    """One register of packed elements. Bytes of two registers are one instruction's."""
    places = [(s.registers[i // s.pack], i % s.pack) for s, i in sources]
    first, pack = places[0][0], sources[0][0].pack
    if pack == len(sources) and all(place == (first, i) for i, place in enumerate(places)):
        return first
    constants = [(raw, part) for raw, part in places if not isinstance(raw, str)]
    if len(constants) == len(places):
        mask = (1 << width) - 1
        return sum(
            (raw >> part * width & mask) << i * width for i, (raw, part) in enumerate(constants)
        )
    return _picked(e, [(e.w.register(raw), part * width // 8) for raw, part in places], width, pack)


def _picked(e: Emitter, picked: list[tuple[str, int]], width: int, pack: int) -> str:
    """One register of elements of `width` bits, each (register, its first byte)."""
    if len(picked) == 1:
        raw, byte = picked[0]
        if byte == 0 and pack == 1:
            return raw
        selector = 0x4440 | byte if width == 8 else 0x4400 | byte + 1 << 4 | byte
        return e.w.op("prmt.b32", "b32", raw, 0, selector)
    if width == 16:
        (low, a), (high, b) = picked
        return _permute(e, [(low, a), (low, a + 1), (high, b), (high, b + 1)])
    if len({raw for raw, _ in picked}) <= 2:
        return _permute(e, picked)
    low, high = (_permute(e, [*picked[i : i + 2]] * 2) for i in (0, 2))
    return e.w.op("prmt.b32", "b32", low, high, 0x5410)


def _permute(e: Emitter, picked: Sequence[tuple[str, int]]) -> str:
    """prmt: a register of four bytes (register, number of the byte) of one or two registers."""
    registers = list(dict.fromkeys(raw for raw, _ in picked))
    numbers = [4 * registers.index(raw) + byte for raw, byte in picked]
    selector = sum(n << 4 * i for i, n in enumerate(numbers))
    other = registers[1] if len(registers) > 1 else 0
    return e.w.op("prmt.b32", "b32", registers[0], other, selector)


@emitter(tile.Arange)
def arange(e: Emitter, op: tile.Arange) -> None:
    """Coordinates of the registers, plus where the numbers start."""
    t = tile_type(op.result)
    is_wide, found = bits(t.element) == 64, []
    for r in range(element_count(t)):
        at = add(e, coordinate(e, layout_of(t), r, 0), op.start.value.data)
        found.append(e.w.op("cvt.s64.s32", "b64", at) if is_wide and isinstance(at, str) else at)
    e.set(op.result, e.build(t, found))


@emitter(tile.Splat)
def splat(e: Emitter, op: tile.Splat) -> None:
    """One register, in all places."""
    t, x = tile_type(op.result), e.operand(op.arg)
    p = packing(t.element, element_count(t))
    raw = narrow(e, [x] * p, t.element, exact=True)
    e.set(op.result, Tile.of(t, [raw] * (element_count(t) // p)))


# ---- by choosing registers
def mapped(e: Emitter, name: str, held: Layout, t: TileType) -> tuple[int, ...]:
    """For each register of a result of type `t` the register of `held` that has its element. Raises
    CompileError where another thread has it.
    """
    sources = register_map(held, layout_of(t))
    if sources is None:
        e.fail(
            f"'{name}' leaves its result as {held}, but it is wanted as {layout_of(t)}: convert it"
        )
    return sources


def deliver(e: Emitter, op: tile.Broadcast | tile.Reshape | tile.Transpose, held: Layout) -> None:
    """The operand, whose registers hold a tile as `held`, in the layout the result wants."""
    t, value = tile_type(op.result), e.tile(op.arg)
    sources = mapped(e, op.name, held, t)
    e.set(op.result, chosen(e, t, [(value, r) for r in sources]), alias=True)


@emitter(tile.Broadcast)
def broadcast(e: Emitter, op: tile.Broadcast) -> None:
    """The same registers, repeated."""
    deliver(e, op, e.tile(op.arg).layout)


@emitter(tile.Reshape)
def reshape(e: Emitter, op: tile.Reshape) -> None:
    """The same elements in another shape."""
    deliver(e, op, e.tile(op.arg).layout.reshape(tile_type(op.result).extents))


@emitter(tile.Transpose)
def transpose(e: Emitter, op: tile.Transpose) -> None:
    """The axes in another order."""
    permutation = [int(a) for a in op.permutation.get_values()]
    deliver(e, op, e.tile(op.arg).layout.transpose(permutation))


def _in_each_thread(
    e: Emitter,
    op: tile.Slice | tile.Flip,
    origin: Sequence[int],
    steps: Sequence[int],
    complaint: str,
) -> None:
    """Sets the result, each of whose registers is, in every thread, that register of the operand
    which holds, for the element at `at`, the one at origin + steps * at. Raises CompileError where
    there is none.
    """
    value, t = e.tile(op.arg), tile_type(op.result)
    found = _same_thread(value.layout, layout_of(t), tuple(origin), tuple(steps))
    if found is None:
        e.fail(f"{complaint}: passes must send it through shared memory")
    e.set(op.result, chosen(e, t, [(value, r) for r in found]), alias=True)


@lru_cache(1 << 12)
def _same_thread(
    operand: Layout, result: Layout, origin: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[int, ...] | None:
    """For each register of the result: the operand's register that holds, in every thread, the
    element at origin + steps * its own place; None where there is none. Places of the padding may
    hold anything.
    """
    have, places_of_result = operand.table(), result.table()
    want = places_of_result * np.array(steps) + np.array(origin)
    real: Any = (places_of_result < np.array(result.shape)).all(-1)
    flat = [a.reshape(-1, a.shape[-1]).max(0) for a in (have, want)]
    span = np.maximum(*flat) + 1

    def number(at: np.ndarray) -> np.ndarray:
        # a place before 0 is padding
        return np.ravel_multi_index(tuple(np.moveaxis(np.maximum(at, 0), -1, 0)), span)

    held, wanted = number(have), number(want)

    def source(r: int) -> int | None:
        places = np.argwhere(real[:, :, r])
        if not len(places):
            return 0
        warp, lane = places[0]  # candidates by one thread, then proven in all
        for c in np.flatnonzero(held[warp, lane] == wanted[warp, lane, r]):
            if ((held[:, :, c] == wanted[:, :, r]) | ~real[:, :, r]).all():
                return int(c)
        return None

    found: list[int] = []
    for r in range(wanted.shape[2]):
        fits = source(r)
        if fits is None:
            return None
        found.append(fits)
    return tuple(found)


@emitter(tile.Slice)
def slice_(e: Emitter, op: tile.Slice) -> None:
    """By the elements that each thread has: register i of the result is that register of the
    operand in every thread.
    """
    layout, offsets = layout_of(tile_type(op.result)), op.offsets.get_values()
    complaint = (
        f"a slice at {list(offsets)} of {e.tile(op.arg).layout} takes elements of other threads for"
        f" {layout}"
    )
    _in_each_thread(e, op, offsets, op.steps, complaint)


@emitter(tile.Concat)
def concat(e: Emitter, op: tile.Concat) -> None:
    """The registers of the operands, one after the other."""
    parts, t = [e.tile(a) for a in op.args], tile_type(op.result)
    whole, sources = Layout.concat([p.layout for p in parts], op.axis.value.data)
    elements = [sources[r] for r in mapped(e, op.name, whole, t)]
    e.set(op.result, chosen(e, t, [(parts[part], r) for part, r in elements]), alias=True)


@emitter(tile.Flip)
def flip(e: Emitter, op: tile.Flip) -> None:
    """Within the threads: where the axis lies in registers alone."""
    t, axis = tile_type(op.result), op.axis.value.data
    origin, steps = [0] * t.rank, [1] * t.rank
    origin[axis], steps[axis] = t.extents[axis] - 1, -1
    _in_each_thread(e, op, origin, steps, "a flip along an axis that lies across threads")


@emitter(shared.SpreadPartial)
def spread_partial(e: Emitter, op: shared.SpreadPartial) -> None:
    """Each register is that of what its warp's part of its line comes to."""
    value, t, axis = e.tile(op.arg), tile_type(op.result), op.axis.value.data

    def without(at: list[int]) -> tuple[int, ...]:
        return (*at[:axis], *at[axis + 1 :])

    lines_held = value.layout.offsets("registers").tolist()
    held = {without(at): r for r, at in reversed(list(enumerate(lines_held)))}
    wanted = [held[without(at)] for at in layout_of(t).offsets("registers").tolist()]
    e.set(op.result, chosen(e, t, [(value, r) for r in wanted]), alias=True)


@emitter(tile.Extract)
def extract(e: Emitter, op: tile.Extract) -> None:
    """One element for every thread: a shuffle inside a warp, shared memory among warps."""
    e.set(op.result, one_from(e, e.tile(op.arg), tuple(map(int, op.index.get_values()))))
