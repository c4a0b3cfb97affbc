"""On which axes of the grid values depend. An analysis; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.values import index_of, yielded_by
from tkc.passes.analysis.values import LOADS


def program_axes(
    values: Iterable[SSAValue], ends: bool = True, given: Iterable[SSAValue] = ()
) -> set[int]:
    """The grid axes on which values depend.

    Without `ends`, a loop's induction variable depends on the loop's lower bound alone: it walks
    over the same, whatever the trip count. given: values that are taken as they are.
    """
    return {
        op.axis.value.data for op in sources(values, ends, given) if isinstance(op, tile.ProgramId)
    }


def from_memory(values: Iterable[SSAValue]) -> bool:
    """Whether values depend on what a kernel loads: nothing is known then of how they differ
    between programs.
    """
    return any(isinstance(op, LOADS) for op in sources(values))


def sources(
    values: Iterable[SSAValue], ends: bool = True, given: Iterable[SSAValue] = ()
) -> set[Operation]:
    """The operations on which values depend; `ends` and `given` as in `program_axes`."""
    found: set[Operation] = set()
    seen, work = set(given), list(values)
    while work:
        v = work.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v.owner, Operation):
            inner = list(v.owner.walk())
            found.update(inner)
            work += [o for op in inner for o in op.operands]
        else:
            work += _of_argument(v.owner, index_of(v), ends)
    return found


def _of_argument(block: Block, index: int, ends: bool) -> list[SSAValue]:
    """What a loop's induction variable, or a value that it carries, depends on."""
    loop = block.parent_op()
    if isinstance(loop, scf.WhileOp):
        test, body = loop.before_region.block, loop.after_region.block
        return [*loop.operands, *yielded_by(test), *yielded_by(body)]
    if not isinstance(loop, scf.ForOp):
        return []
    if index > 0:
        return [*loop.operands, yielded_by(block)[index - 1]]
    return list(loop.operands) if ends else [loop.lb, loop.step]
