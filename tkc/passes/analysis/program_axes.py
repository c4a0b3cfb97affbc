"""On which axes of the grid values depend. An analysis; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.passes.analysis.values import LOADS


def program_axes(
    values: Iterable[SSAValue], ends: bool = True, given: Iterable[SSAValue] = ()
) -> set[int]:
    """The grid axes on which values depend. Without `ends`, a loop's counter depends on where the
    loop begins alone: what it walks over is the same, of whatever length. given: values that are
    taken as they are."""
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
    """The operations on which values depend."""
    found, seen, work = set(), set(given), list(values)
    while work:
        v = work.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v.owner, Operation):
            inner = list(v.owner.walk())
            found.update(inner)
            work += [o for op in inner for o in op.operands]
        elif not ends and isinstance(v.owner.parent_op(), scf.ForOp) and v.index == 0:
            work += [v.owner.parent_op().lb, v.owner.parent_op().step]
        elif isinstance(v.owner.parent_op(), (scf.ForOp, scf.WhileOp)):
            work += v.owner.parent_op().operands
            if isinstance(v.owner.parent_op(), scf.ForOp) and v.index > 0:
                work.append(v.owner.last_op.operands[v.index - 1])  # what it becomes
    return found
