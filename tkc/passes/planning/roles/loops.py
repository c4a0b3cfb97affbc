"""How often programs run the loops that dots stand in."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.values import made_of, parents, reached
from tkc.passes.analysis.program_axes import from_memory, program_axes


def is_conditional(loop: scf.ForOp) -> bool:
    """Whether programs may make a loop's iterations a different number of times, or not at all:
    it is in a loop without a count, in a branch, or in a loop whose bounds differ.
    """

    def differs(around: Operation) -> bool:
        if not isinstance(around, scf.ForOp):
            return not isinstance(around, (tile.Kernel, ModuleOp))
        bounds = [around.lb, around.ub, around.step]
        return bool(program_axes(bounds)) or from_memory(bounds)

    return any(map(differs, parents(loop)))


def differs_in_steps(bounds: Sequence[SSAValue], loops: Sequence[Operation]) -> bool:
    """Whether bounds are computed from the counter of one of these loops, or what it carries."""
    arguments = (v.owner for v in reached(bounds, made_of) if isinstance(v.owner, Block))
    return any(block.parent_op() in loops for block in arguments)
