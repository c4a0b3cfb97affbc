"""Layouts of the three tiles of a dot, for each instruction.

wgmma   the accumulator's fragment; its factors stay in shared memory, or the left one in registers: for 16 bits the accumulator's
        layout is that of a left factor; for 8 bits too, but for the order of registers, if K is
        permuted.
mma     the fragments of tkc.ir.fragments; leading (batch) axes go into registers, so that batch b's fragments are one block of
        registers after the other.
fma     the accumulator is blocked, a few rows and columns to a thread. An operand's layout is the accumulator's without the
        other side's axis (those threads hold copies), and k in registers:

            acc  64x64: 4:1@1 … | 8:4@1 4:1@0 | …          a  64x4: 4:1@1 … | 8:* 4:1@0 | …          b  4x64: 4:1@1 4:1@0 … | 8:4@1 4:* | …

        so every product finds its three numbers in its own thread. k is taken `chunk` at a time, to
        bound the registers.
"""

from __future__ import annotations

from tkc.ir import tile
from tkc.ir.digits import Digit, copies
from tkc.ir.fragments import (
    mma_a,
    mma_accumulator,
    mma_b,
    wgmma_a,
    wgmma_a_permuted,
    wgmma_accumulator,
)
from tkc.ir.layout import WARP, Layout, blocked
from tkc.ir.plan import DotPlan
from tkc.ir.types import bits


def of_dot(dot: tile.Dot, plan: DotPlan) -> tuple[Layout | None, Layout | None, Layout]:
    """Layouts of a, b and the accumulator of a dot, whole k; None for a factor that is read in
    shared memory.
    """
    *batch, m, n = dot.acc.type.extents
    k = dot.a.type.extents[-1]
    if plan.instruction == "wgmma":
        held = (
            None
            if plan.a != "registers"
            else (
                wgmma_a_permuted(m, k, plan.warps[0])
                if plan.permuted
                else wgmma_a(m, k, plan.warps[0], bits(dot.a.type.element))
            )
        )
        return held, None, wgmma_accumulator(m, n, plan.warps[0])
    if plan.instruction == "fma":
        return of_fma(
            fma_accumulator(dot.acc.type.extents, bits(dot.acc.type.element), plan.warps), k
        )
    width = 32 if dot.precision.data.startswith("tf32") else bits(dot.a.type.element)
    parts = (
        mma_a(m, k, *plan.warps, bits=width),
        mma_b(k, n, *plan.warps, bits=width),
        mma_accumulator(m, n, *plan.warps),
    )
    for extent in reversed(batch):
        parts = tuple(p.expand(0).broadcast(0, extent) for p in parts)
    return parts


def fma_accumulator(shape: tuple[int, ...], width: int, warps: tuple[int, int]) -> Layout:
    """Eight lanes along n and four along m (others only where the tile is thinner), so that rows of
    dots of one height stay where they are; a lane takes up to 16 bytes of neighbours along n."""
    *batch, m, n = shape

    def power(x):
        return 1 << (x - 1).bit_length()

    lanes_m = min(WARP // min(8, power(n)), power(m))
    lanes_n = min(WARP // lanes_m, power(n))
    vector = min(max(1, 128 // width), power(-(-n // lanes_n)))
    ones = (1,) * len(batch)
    return blocked(tuple(shape), vector, (*ones, *warps), threads_per=(*ones, lanes_m, lanes_n))


def of_fma(acc: Layout, k: int) -> tuple[Layout, Layout, Layout]:
    return _operand(acc, acc.rank - 1, k), _operand(acc, acc.rank - 2, k), acc


def _operand(acc: Layout, axis: int, k: int) -> Layout:
    """The accumulator's layout with `axis` become k, wholly in registers (the fastest digit where k
    is the last axis).
    """
    shape = tuple(k if a == axis else n for a, n in enumerate(acc.shape))

    def spread(digits):
        return tuple(copies(d.extent) if d.axis == axis else d for d in digits)

    kept = tuple(d for d in acc.registers if d.axis != axis)
    inner = Digit(k, axis, 1)
    registers = (
        (inner, *kept)
        if axis == acc.rank - 1
        else (
            (*kept[:1], inner, *kept[1:])
            if kept and kept[0].axis == acc.rank - 1
            else (inner, *kept)
        )
    )
    return Layout(shape, registers, spread(acc.lanes), spread(acc.warps))
