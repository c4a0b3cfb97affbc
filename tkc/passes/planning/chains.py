"""Chains of small dots: each multiplies what the one before has made."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.rewrite import loop_of
from tkc.ir.values import tile_type
from tkc.passes.planning.pressure import demand, made_of_dots
from tkc.passes.planning.program import Program

MAX_REGISTERS = 96  # of a thread, for the tiles that one warp holds
FEWEST_SHARING = 4  # warps of which each may have rows of its own


def of_chain(program: Program, accumulators: int, say: Callable[[str], None]) -> int:
    """One warp, if it spares others that they meet between dots: of small tiles each would read
    what several made, and no loop has loads to hide. Else 0. accumulators: registers of its
    threads.
    """
    made = made_of_dots(program.kernel)
    if not any(_crosses_warps(d, made) for d in program.dots):
        return 0
    if any(loop_of(op) is not None for op in program.loads):
        return 0
    if max(accumulators, demand(program.kernel) // 32) > MAX_REGISTERS:
        return 0
    say(
        f"1 warps: {accumulators} registers of accumulators a thread; more would meet between dots,"
        " which multiply what others made"
    )
    return 1


def _crosses_warps(dot: tile.Dot, made: set[SSAValue]) -> bool:
    """Whether several warps would read an operand that one has made; of a left operand each may
    have rows of its own, if there are enough. made: by dots.
    """
    rows = tile_type(dot.a).extents[-2]
    return dot.b in made or dot.a in made and rows < 16 * FEWEST_SHARING
