"""Layouts of the three tiles of a dot, for each instruction.

wgmma   the accumulator's fragment; its operands stay in shared memory, or the left one in
        registers: for 16 bits the accumulator's layout is that of a left operand; for 8 bits too,
        but for the order of registers, if K is permuted.
mma     the fragments of tkc.ir.fragments; leading (batch) axes go into registers, so that batch b's
        fragments are one block of registers after the other.
fma     the accumulator is blocked, a few rows and columns to a thread. An operand's layout is the
        accumulator's without the other side's axis (those threads hold copies), and k in registers:

            acc  64x64: 4:1@1 … | 8:4@1 4:1@0 | …
            a    64x4:  4:1@1 … | 8:* 4:1@0 | …
            b    4x64:  4:1@1 4:1@0 … | 8:4@1 4:* | …

        so every product finds its three numbers in its own thread. k is taken `chunk` at a time, to
        bound the registers.
"""

from __future__ import annotations

from collections.abc import Iterable

from tkc.ir import tile
from tkc.ir.digits import Digit, copies
from tkc.ir.fragments import (
    mma_a,
    mma_accumulator,
    mma_b,
    paired,
    wgmma_a,
    wgmma_a_permuted,
    wgmma_accumulator,
)
from tkc.ir.layout import WARP, Layout, blocked
from tkc.ir.plan import DotPlan
from tkc.ir.types import bits
from tkc.ir.values import tile_type

Layouts = tuple[Layout | None, Layout | None, Layout]


def of_dot(dot: tile.Dot, plan: DotPlan) -> Layouts:
    """Layouts of a, b and the accumulator of a dot, whole k; None for an operand that is read in
    shared memory.
    """
    acc, a = tile_type(dot.acc), tile_type(dot.a)
    k = a.extents[-1]
    if plan.instruction == "fma":
        return of_fma(fma_accumulator(acc.extents, bits(acc.element), plan.warps), k)
    *batch, m, n = acc.extents
    width = bits(a.element)
    if plan.instruction == "wgmma":
        groups, along_n = plan.warps
        left = None
        if plan.a == "registers":
            permuted = plan.permuted
            left = wgmma_a_permuted(m, k, groups) if permuted else wgmma_a(m, k, groups, width)
        result = wgmma_accumulator(m, n, groups, along_n)
        if plan.paired and left is not None:
            return paired(left), None, paired(result)
        return left, None, result
    if dot.precision.data.startswith("tf32"):
        width = 32

    def batched(fragment: Layout) -> Layout:
        for extent in reversed(batch):
            fragment = fragment.expand(0).broadcast(0, extent)
        return fragment

    return (
        batched(mma_a(m, k, *plan.warps, bits=width)),
        batched(mma_b(k, n, *plan.warps, bits=width)),
        batched(mma_accumulator(m, n, *plan.warps)),
    )


def fma_accumulator(shape: tuple[int, ...], width: int, warps: tuple[int, int]) -> Layout:
    """Eight lanes along n and four along m (others only where the tile is thinner), so that rows of
    dots of one height stay in place; a lane takes up to 16 bytes of neighbours along n. width: bits
    of an element.
    """
    *batch, m, n = shape

    def power(x: int) -> int:
        return 1 << (x - 1).bit_length()

    lanes_m = min(WARP // min(8, power(n)), power(m))
    lanes_n = min(WARP // lanes_m, power(n))
    vector = min(max(1, 128 // width), power(-(-n // lanes_n)))
    ones = (1,) * len(batch)
    return blocked(tuple(shape), vector, (*ones, *warps), threads_per=(*ones, lanes_m, lanes_n))


def of_fma(acc: Layout, k: int) -> tuple[Layout, Layout, Layout]:
    """Layouts of a, b and the accumulator of a dot by FMA, from the accumulator's."""
    return _operand(acc, acc.rank - 1, k), _operand(acc, acc.rank - 2, k), acc


def _operand(acc: Layout, axis: int, k: int) -> Layout:
    """The accumulator's layout with `axis` replaced by k, wholly in registers (the fastest digit
    where k is the last axis).
    """
    shape = tuple(k if a == axis else n for a, n in enumerate(acc.shape))

    def copied(digits: Iterable[Digit]) -> tuple[Digit, ...]:
        return tuple(copies(d.extent) if d.axis == axis else d for d in digits)

    registers = [d for d in acc.registers if d.axis != axis]
    last = acc.rank - 1
    # behind the vector along the last axis, where that is another
    at = 1 if axis != last and registers and registers[0].axis == last else 0
    registers.insert(at, Digit(k, axis, 1))
    return Layout(shape, tuple(registers), copied(acc.lanes), copied(acc.warps))
