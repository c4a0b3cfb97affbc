"""Conversions between every two layouts that can meet in a kernel: level-1 modules, one for each
layout that is converted from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
from xdsl.builder import ImplicitBuilder
from xdsl.dialects.builtin import ModuleOp, bf16, f32, i8, i32, i64
from xdsl.ir import Block, Region

from tkc.ir import shared, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.fragments import mma_a, mma_accumulator, mma_b, wgmma_a, wgmma_accumulator
from tkc.ir.layout import Layout, blocked, movement
from tkc.ir.target import TARGETS
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType, bits
from tkc.ir.verify import verify
from tkc.passes.layouts.dot_layouts import fma_accumulator, of_fma

ELEMENTS = {"f32": f32, "bf16": bf16, "i8": i8, "i64": i64}
MATRICES = ((16, 16), (64, 64), (32, 128), (7, 100), (128, 48))
VECTORS = ((64,), (100,), (1000,))
WARPS = (1, 4, 8)


def _dropped(axis: int, make, *args) -> Layout:
    """A layout without one of its axes."""
    return make(*args).drop(axis)


@cache
def layouts(shape: tuple[int, ...], width: int, warps: int) -> dict[str, Layout]:
    """The layouts that select-layouts gives tiles of a shape: of copies, of the three operands of
    every instruction, of what is reduced.
    """
    found: dict[str, Layout] = {}

    def put(name: str, make) -> None:
        try:
            layout = make()
        except Exception:
            return  # no such fragment of this shape or these warps
        if layout.shape == shape and layout.num_warps == warps:
            found[name] = layout

    for vector in sorted({1, max(1, 32 // width), 128 // width}):
        put(f"blocked {vector}", partial(blocked, shape, vector, warps))
    if len(shape) == 1:
        for extent in (16, 64):
            rows, columns = (*shape, extent), (extent, *shape)
            for name, drop, dims, split in (
                ("row", 1, rows, (warps, 1)),
                ("column", 0, columns, (1, warps)),
            ):
                put(f"{name} of blocked {extent}", partial(_dropped, drop, blocked, dims, 4, warps))
                put(
                    f"{name} of mma {extent}",
                    partial(_dropped, drop, mma_accumulator, *dims, *split),
                )
        if warps % 4 == 0:
            put("row of wgmma", lambda: wgmma_accumulator(*shape, 64, warps // 4).drop(1))
        return found
    m, n = shape
    put("blocked columns", lambda: blocked(shape, max(1, 32 // width), warps, (0, 1)))
    for wm in sorted({1, warps}):
        wn = warps // wm
        put(f"mma {wm}x{wn}", partial(mma_accumulator, m, n, wm, wn))
        if width in (8, 16, 32):
            put(f"mma a {wm}x{wn}", partial(mma_a, m, n, wm, wn, bits=width))
            put(f"mma b {wm}x{wn}", partial(mma_b, m, n, wm, wn, bits=width))
    put("fma", lambda: fma_accumulator(shape, width, (warps, 1)))
    put("fma a", lambda: of_fma(fma_accumulator((m, 32), width, (warps, 1)), n)[0])
    if warps % 4 == 0:
        put("wgmma", lambda: wgmma_accumulator(m, n, warps // 4))
        if width in (8, 16):
            put("wgmma a", lambda: wgmma_a(m, n, warps // 4, bits=width))
    return found


def cases() -> Iterator[tuple[str, tuple[int, ...], int, str]]:
    """(element, shape, warps, the layout converted from)."""
    for element, t in ELEMENTS.items():
        for shape in (*MATRICES, *VECTORS):
            for warps in WARPS:
                for source in layouts(shape, bits(t), warps):
                    yield element, shape, warps, source


def targets(element: str, shape: tuple[int, ...], warps: int, source: str) -> list[str]:
    return [n for n in layouts(shape, bits(ELEMENTS[element]), warps) if n != source]


def movements(element: str, shape: tuple[int, ...], warps: int, source: str) -> Counter:
    known = layouts(shape, bits(ELEMENTS[element]), warps)
    return Counter(
        movement(known[source], known[n]) for n in targets(element, shape, warps, source)
    )


def module(element: str, shape: tuple[int, ...], warps: int, source: str) -> ModuleOp:
    """Twice a tile in its first layout, converted to each of the others and stored, one after the
    other.
    """
    t, known = ELEMENTS[element], layouts(shape, bits(ELEMENTS[element]), warps)

    def facts(*extents):
        return ArrayFacts(
            tuple(Fact(exact=n) for n in extents),
            tuple(Fact(exact=int(np.prod(extents[i + 1 :]))) for i in range(len(extents))),
            16,
        )

    names = targets(element, shape, warps, source)
    whole = TileType(shape, t, known[source])
    block = Block(
        arg_types=[
            ArrayType(len(shape), t, facts(*shape)),
            ArrayType(len(shape) + 1, t, facts(max(len(names), 1), *shape)),
        ]
    )
    with ImplicitBuilder(block):
        zero = tile.Constant(0, i32).result
        x = tile.Load(block.args[0], [zero] * len(shape), shape)
        x.result._type = whole
        twice = CLASSES["add"](x.result, x.result).result
        for k, name in enumerate(names):
            value = shared.Convert(twice, TileType(shape, t, known[name])).result
            tile.Store(
                block.args[1],
                [tile.Constant(k, i32).result] + [zero] * len(shape),
                value,
                [-1, *shape],
            )
        tile.Return()
    kernel = tile.Kernel("conversions", [], region=Region(block))
    kernel.set_integer("level", 1)
    kernel.set_integer("warps", warps)
    made = ModuleOp([kernel])
    verify(made)
    return made


def compiled(made: ModuleOp, target: str = "sm_90a"):
    """The rest of the pipeline, and the PTX."""
    from tkc.codegen.ptx.emit import emit
    from tkc.language.signature import Options
    from tkc.passes import pipeline

    pipeline.run(made, TARGETS[target], Options(), start="swizzle-shared")
    return emit(made, TARGETS[target])


def arrays(
    element: str, shape: tuple[int, ...], count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is converted, where it goes, what must be there."""
    from tkc.sim.level0 import NUMPY

    dtype = np.dtype(NUMPY[ELEMENTS[element]])
    x = (np.arange(int(np.prod(shape))) % 61).reshape(shape).astype(dtype)
    return (
        x,
        np.full((max(count, 1), *shape), 99).astype(dtype),
        np.stack([x + x] * max(count, 1)).astype(dtype),
    )
