"""index-registers: an element whose place along an axis a number names is taken from its register.

    %e = tile.eq %places, %n
    %x = tile.select %e, %m, %zeros          ->     %s = tile.take %m, %n {axis = 1, first = 0}
    %s = tile.reduce sum[%x] {axis = 1}

Threads have no registers that a number names: each that may hold the element takes a comparison
and an addition here, and a choice by bits of the place there.

Where a loop of few iterations counts such places, its iterations are written out: which registers
each of them takes or changes is then known, and costs nothing.

    for %j = 0 to 32 step 1 iter_args(%m = %m0) {       %s0 = tile.take %m0, 0
      %s = tile.take %m, %j                             %e0 = tile.eq %places, 0
      %e = tile.eq %places, %j                   ->     %m1 = tile.select %e0, %s0, %m0
      %m1 = tile.select %e, %s, %m                      %s1 = tile.take %m1, 1
      yield %m1                                         %e1 = tile.eq %places, 1
    }                                                   …
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Operation

from tkc.ir import elementwise as ew
from tkc.ir import threads, tile
from tkc.ir.gathers import bits_along
from tkc.ir.known_elements import Found, known_elements, known_in_registers
from tkc.ir.reductions import only_place
from tkc.ir.rewrite import erase_dead, replace
from tkc.ir.types import TileType, is_bool
from tkc.ir.values import layout_of, operations_in, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.planning.demands import instructions
from tkc.passes.unroll_loops import iterations, write_out

MAX_ITERATIONS = 64
MAX_INSTRUCTIONS = 4096  # of all iterations: 64 KiB
LEAST_SAVED = 1 / 4  # of the instructions of an iteration


def run(module: ModuleOp, context: PassContext) -> None:
    """Takes elements from their registers, and writes out the loops that gain by it."""
    for kernel in tile.kernels_of(module):
        taken = [op for op in operations_in(kernel, tile.Reduce) if _take(op)]
        if taken:
            erase_dead(kernel.body.block)
            context.decisions.append(
                f"index-registers: {len(taken)} sums of one element are that element"
            )
        for loop in operations_in(kernel, scf.ForOp):
            if (count := _gains(loop)) is not None:
                write_out(loop, count)
                context.decisions.append(
                    f"index-registers: {count} iterations are written out, whose number names"
                    " registers"
                )


def _take(op: tile.Reduce) -> bool:
    """Replaces a sum of one element of each line, if the axis lies within a warp, and bits of a
    place name lane and register.
    """
    only, axis = only_place(op), op.axis.value.data
    if only is None or only.number.type != i32 or is_bool(tile_type(only.tile).element):
        return False
    layout = tile_type(only.tile).register_layout
    if layout is None or layout.warps_along(axis) * layout.blocks_along(axis) > 1:
        return False
    if any(bits_along(layout, axis, name) is None for name in ("lanes", "registers")):
        return False
    taken = threads.Take(only.tile, only.number, axis, only.first, op.results[0].type)
    replace(op, taken)
    return True


def _gains(loop: scf.ForOp) -> int | None:
    """How many iterations of a loop are written out; None where it stays a loop."""
    count, ops = iterations(loop), list(loop.body.block.ops)
    if count is None or not 1 < count <= MAX_ITERATIONS:
        return None
    if any(op.regions or isinstance(op, (tile.Dot, threads.DotAsync)) for op in ops):
        return None
    # what is known in the first iteration is known in all
    first: Found = {loop.body.block.args[0]: np.array(constant(loop.lb))}
    written = sum(map(_instructions, ops))
    saved = sum(_instructions(op) * _known(op, first) for op in ops)
    is_short = count * (written - saved) <= MAX_INSTRUCTIONS
    return count if is_short and saved and saved >= LEAST_SAVED * written else None


def _instructions(op: Operation) -> float:
    """That a thread runs for an operation."""
    if isinstance(op, threads.Take):
        layout = layout_of(op.arg)
        return layout.num_registers - layout.drop(op.axis.value.data).num_registers
    return instructions([op], 1)


def _known(op: Operation, numbers: Found) -> float:
    """The share of a choice or a comparison that is known where numbers are, and not without."""
    match op:
        case threads.Take():
            asked = op.number
        case ew.Select():
            asked = op.condition
        case ew.Elementwise() if isinstance(op.result.type, TileType):
            asked = op.result
        case _:
            return 0
    if known_elements(asked) is not None or (found := known_elements(asked, numbers)) is None:
        return 0
    if not isinstance(asked.type, TileType):
        return 1
    held = known_in_registers(found, layout_of(asked))
    return sum(x is not None for x in held) / len(held)
