"""Shape operations: which register holds which element follows from the layouts, so almost none of them is code."""
from __future__ import annotations

import numpy as np

from tkc.codegen.ptx.conversions import narrow
from tkc.codegen.ptx.coordinates import coordinate
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import Tile, packing
from tkc.codegen.ptx.writer import Operand
from tkc.ir import tile
from tkc.ir.types import TileType, bits, is_bool


def chosen(e: Emitter, t: TileType, sources: list[tuple[Tile, int]]) -> Tile:
    """A tile each of whose elements is an element of some tile of this thread: by bits, moved only where packing demands it."""
    p = packing(t.element, len(sources))
    if p == 1 and all(s.pack == 1 for s, _ in sources): return Tile.of(t, [s.registers[i] for s, i in sources])
    return Tile.of(t, [_gather(e, sources[i:i + p], bits(t.element)) for i in range(0, len(sources), p)])


def _gather(e: Emitter, sources: list[tuple[Tile, int]], width: int) -> Operand:
    """One register of packed elements."""
    if any(s is None for s, _ in sources): sources = [x if x[0] is not None else next(y for y in sources if y[0]) for x in sources]
    places = [(s.registers[i // s.pack], i % s.pack) for s, i in sources]
    first, whole = places[0][0], sources[0][0].pack == len(sources)
    if whole and all(raw == first and part == i for i, (raw, part) in enumerate(places)): return first
    if not any(isinstance(raw, str) for raw, _ in places):
        return sum((raw >> part * width & (1 << width) - 1) << i * width for i, (raw, part) in enumerate(places))
    pick = [(e.w.register(raw), part * width // 8) for raw, part in places]
    if len(pick) == 1: return pick[0][0] if pick[0][1] == 0 and sources[0][0].pack == 1 else \
        e.w.op("prmt.b32", "b32", pick[0][0], 0, 0x4440 | pick[0][1] if width == 8 else 0x4400 | pick[0][1] + 1 << 4 | pick[0][1])
    if width == 16: return _permute(e, pick[0], pick[1], lambda a, b: (a, a + 1, b, b + 1))
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
        at = at + start if not isinstance(at, str) else e.w.op("add.s32", "b32", at, start) if start else at
        found.append(e.w.op("cvt.s64.s32", "b64", at) if wide and isinstance(at, str) else at)
    e.set(op.result, e.build(t, found))


@emitter(tile.Splat)
def splat(e: Emitter, op: tile.Splat) -> None:
    t, x = op.result.type, e.operand(op.arg)
    p = packing(t.element, t.register_layout.num_registers)
    raw = narrow(e, [x] * p, t.element)
    e.set(op.result, Tile.of(t, [raw] * (t.register_layout.num_registers // p)))
