"""On which axes of the grid values depend. An analysis; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, Elementwise
from tkc.ir.types import TileType
from tkc.ir.values import defining_op, index_of, made_of, parents, yielded_by
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import LOADS


def program_axes(
    values: Iterable[SSAValue], ends: bool = True, given: Iterable[SSAValue] = ()
) -> set[int]:
    """The grid axes on which values depend.

    Without `ends`, a loop's induction variable depends on the loop's lower bound alone: it walks
    over the same, whatever the trip count. given: values that are taken as they are.
    """
    return set(_axes(tuple(values), ends, frozenset(given)))


@remembered
def _axes(values: tuple[SSAValue, ...], ends: bool, given: frozenset[SSAValue]) -> frozenset[int]:
    return frozenset(
        op.axis.value.data for op in sources(values, ends, given) if isinstance(op, tile.ProgramId)
    )


def direction(value: SSAValue, axis: int) -> int | None:
    """1 where an integer only grows with a program's place on a grid axis, -1 where it only falls,
    0 where it does not depend on it; None where that is not seen.
    """
    if axis not in program_axes([value]):
        return 0
    op = value.owner
    if isinstance(op, tile.ProgramId):
        return 1
    if not isinstance(op, (Elementwise, Cast)):
        return None
    first, *others = (direction(v, axis) for v in op.operands)
    name = op.name.removeprefix("tile.")
    if name in ("add", "max", "min", "cast"):
        return _joined([first, *others])
    if name in ("sub", "neg"):
        ways = [first, *others] if name == "sub" else [0, first]
        return _joined([ways[0], None if ways[1] is None else -ways[1]])
    if name in ("mul", "floordiv") and first is not None:
        by = defining_op(op.operands[1], tile.Constant)
        return first * int(np.sign(by.number)) if by is not None else None
    return None


def _joined(ways: list[int | None]) -> int | None:
    """Of integers that are added, or of which one is taken."""
    found = {way for way in ways if way != 0}
    return found.pop() if len(found) == 1 else None


def from_memory(values: Iterable[SSAValue]) -> bool:
    """Whether values depend on what a kernel loads, or computes of tiles: nothing is known then of
    how they differ between programs.
    """
    return any(
        isinstance(op, LOADS) or any(isinstance(r.type, TileType) for r in op.results)
        for op in sources(values)
    )


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
        if not isinstance(v.owner, Operation):
            work += _of_argument(v.owner, index_of(v), ends)
        elif isinstance(v.owner, (scf.ForOp, scf.WhileOp, scf.IfOp)):
            found.add(v.owner)
            work += _of_result(v.owner, index_of(v))
        else:
            inner = list(v.owner.walk()) if v.owner.regions else [v.owner]
            found.update(inner)
            work += [o for op in inner for o in op.operands]
    return found


def ways_to(op: Operation) -> Iterator[SSAValue]:
    """What decides whether, and how often, a program comes to an operation."""
    for around in parents(op):
        yield from decides(around)


def decides(around: Operation) -> Sequence[SSAValue]:
    """What decides whether, and how often, a program does what is inside a loop or a branch."""
    match around:
        case scf.ForOp():
            return (around.lb, around.ub, around.step)
        case scf.IfOp():
            return (around.cond,)
        case scf.WhileOp():
            return yielded_by(around.before_region.block)[:1]
    return ()


def made_through_loops(value: SSAValue) -> Sequence[SSAValue]:
    """What a value is computed of; of a loop's counter and of what it carries, its bounds too."""
    if isinstance(value.owner, Operation):
        return made_of(value)
    return _of_argument(value.owner, index_of(value), ends=True)


def _of_argument(block: Block, index: int, ends: bool) -> list[SSAValue]:
    """What a loop's induction variable, or a value that it carries, depends on."""
    loop = block.parent_op()
    if isinstance(loop, scf.WhileOp):
        condition, *handed = yielded_by(loop.before_region.block)
        if block is not loop.before_region.block:
            return [condition, handed[index]]
        return [condition, loop.operands[index], yielded_by(loop.after_region.block)[index]]
    if not isinstance(loop, scf.ForOp):
        return []
    bounds = [loop.lb, loop.ub, loop.step]
    if index > 0:
        return [*bounds, loop.iter_args[index - 1], yielded_by(block)[index - 1]]
    return bounds if ends else [loop.lb, loop.step]


def _of_result(op: scf.ForOp | scf.WhileOp | scf.IfOp, index: int) -> list[SSAValue]:
    """What a result of a loop or a branch depends on."""
    match op:
        case scf.ForOp():
            ends: tuple[SSAValue, ...] = (op.iter_args[index], yielded_by(op.body.block)[index])
        case scf.WhileOp():
            ends = (yielded_by(op.before_region.block)[1 + index],)
        case scf.IfOp():
            ends = tuple(yielded_by(region.block)[index] for region in op.regions)
    return [*decides(op), *ends]
