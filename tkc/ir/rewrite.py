"""Changing IR in place without losing where it came from.

xDSL gives new operations an unknown location; these helpers stamp them with the location of what
they replace, so that an error or a profiler's line still points into the user's source after every
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, Region, SSAValue

from tkc.ir.elementwise import CLASSES, Select
from tkc.ir.text import is_unknown
from tkc.ir.tile import Constant
from tkc.ir.values import (
    block_of,
    holds,
    is_side_effect_free,
    made_of,
    parents,
    reached,
    terminator_of,
    yielded_by,
)

Op = TypeVar("Op", bound=Operation)


def stamp(op: Op, like: Operation) -> Op:
    """Gives an operation (and those inside it) the location of another, where it has none."""
    for inner in op.walk():
        if is_unknown(inner.location):
            inner.location = like.location
    return op


def before(anchor: Operation, *ops: Op) -> Op:
    """Inserts operations before the anchor, in order; returns the last."""
    for op in ops:
        stamp(op, anchor)
    block_of(anchor).insert_ops_before(ops, anchor)
    return ops[-1]


def after(anchor: Operation, *ops: Op) -> Op:
    """Inserts operations after the anchor, in order; returns the last."""
    for op in ops:
        stamp(op, anchor)
    block_of(anchor).insert_ops_after(ops, anchor)
    return ops[-1]


class Builder:
    """Writes operations before an anchor: `build(op)` gives the result of one, `build.add(a, b)`
    that of a function of two values, `build.number(n)` a constant. Python's numbers among values
    are constants of the other's type. `and_`, `or_` are the functions whose names are words of
    Python.
    """

    def __init__(self, anchor: Operation):
        self.anchor = anchor

    def do(self, op: Op) -> Op:
        return before(self.anchor, op)

    def __call__(self, op: Operation) -> SSAValue:
        return self.do(op).results[0]

    def number(self, n: int | float, t: Attribute = i32) -> SSAValue:
        return self(Constant(n, t))

    def of(self, x: SSAValue | int, t: Attribute = i32) -> SSAValue:
        return self.number(x, t) if isinstance(x, int) else x

    def _alike(self, *xs: SSAValue | int) -> list[SSAValue]:
        return [self.of(x, next((v.type for v in xs if not isinstance(v, int)), i32)) for x in xs]

    def __getattr__(self, name: str):
        return lambda a, b: self(CLASSES[name.rstrip("_")](*self._alike(a, b)))

    def select(self, condition: SSAValue, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        return self(Select(condition, *self._alike(a, b)))

    def up(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        return self.floordiv(self.add(a, b - 1 if isinstance(b, int) else self.sub(b, 1)), b)


def retype(value: SSAValue, t: Attribute) -> None:
    """Gives a value another type in place; xDSL would make another value, and lose what is noted of
    this one.
    """
    value._type = t


def replace(op: Operation, values: Sequence[SSAValue] | Operation) -> None:
    """Gives every use of the operation's results the new values (or the results of an operation put
    in its place), and erases it.
    """
    if isinstance(values, Operation):
        before(op, values)
        values = values.results
    for old, new in zip(op.results, values, strict=True):
        if new.name_hint is None:
            new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()


def erase(op: Operation) -> None:
    op.detach()
    op.erase()


def only_if(condition: SSAValue, op: Operation) -> None:
    """An operation without results, done where the condition holds."""
    inner = Block()
    branch = before(op, scf.IfOp(condition, [], Region(inner)))
    op.detach()
    inner.add_op(op)
    inner.add_op(stamp(scf.YieldOp(), branch))


def following(source: Operation | SSAValue, others: Iterable[Operation]) -> set[Operation]:
    """Which of some operations, in their order, depend on one, or on a value."""
    known, found = (
        set(source.results if isinstance(source, Operation) else (source,)),
        set[Operation](),
    )
    for other in others:
        if any(v in known for inner in other.walk() for v in inner.operands):
            found.add(other)
            known.update(other.results)
    return found


def holding(ops: Iterable[Operation], *kinds: type[Operation]) -> list[Operation]:
    """Those of some operations that are of these kinds, or have one inside."""
    return [op for op in ops if holds(op, kinds)]


def is_inside(value: SSAValue, round_it: Operation) -> bool:
    """Whether a value is defined in a region of an operation."""
    block = value.op.parent if isinstance(value, OpResult) else value.owner
    while block is not None:
        op = block.parent_op()
        if op is round_it:
            return True
        block = op.parent if op is not None else None
    return False


def loops_of(op: Operation) -> list[scf.ForOp | scf.WhileOp]:
    """The loops round an operation, inside out."""
    return [around for around in parents(op) if isinstance(around, (scf.ForOp, scf.WhileOp))]


def loop_of(op: Operation) -> scf.ForOp | scf.WhileOp | None:
    """The innermost loop round an operation."""
    return next(iter(loops_of(op)), None)


def erase_dead(block: Block) -> bool:
    """Erases operations without effect whose results are not used, here and in the regions inside.
    True if any went.
    """
    changed = False
    for op in reversed(list(block.ops)):
        for region in op.regions:
            for inner in region.blocks:
                changed |= erase_dead(inner)
        if op.results and not any(r.first_use for r in op.results) and is_side_effect_free(op):
            erase(op)
            changed = True
    return changed


def clone_slice(
    ops: Iterable[Operation], mapping: dict[SSAValue, SSAValue], anchor: Operation
) -> None:
    """Clones operations in order before the anchor, operands through the mapping, which then also
    maps their results.
    """
    for op in ops:
        before(anchor, op.clone(mapping))


def defining_slice(values: Iterable[SSAValue], block: Block) -> list[Operation]:
    """The operations of the block that the values are computed from, in block order."""

    def behind(v: SSAValue) -> Iterable[SSAValue]:
        return made_of(v) if isinstance(v, OpResult) and v.op.parent is block else ()

    wanted = {v.owner for v in reached(values, behind)}
    return [op for op in block.ops if op in wanted]


def slice_inside(values: Iterable[SSAValue], loop: scf.ForOp) -> list[Operation]:
    """The operations anywhere inside a loop that the values are computed from, in program order;
    of one with regions not also what is in them.
    """

    def behind(v: SSAValue) -> Iterable[SSAValue]:
        op = v.owner
        if isinstance(op, Block) or not loop.is_ancestor(op):
            return ()
        return [x for x in made_of(v) if not is_inside(x, op)]

    wanted = {v.owner for v in reached(values, behind)}
    return [op for op in loop.body.walk() if op in wanted]


def body_of(loop: scf.ForOp | scf.WhileOp) -> Block:
    """What a loop repeats."""
    return loop.body.block if isinstance(loop, scf.ForOp) else loop.after_region.block


def known_ahead(loop: scf.ForOp | scf.WhileOp) -> int | None:
    """How many iterations before its own a loop's counter is known: any number for a counted one
    (None); of a while, whose counter is its first carried value, as many as it carries one behind
    the other.
    """
    if isinstance(loop, scf.ForOp):
        return None
    args, yielded = body_of(loop).args, yielded_by(body_of(loop))
    return next(
        (i for i in range(len(yielded)) if i + 1 >= len(args) or yielded[i] is not args[i + 1]), 0
    )


def counted_slice(
    values: Iterable[SSAValue],
    loop: scf.ForOp | scf.WhileOp,
    also: Callable[[Operation], bool] = lambda op: False,
) -> list[Operation] | None:
    """The operations of a loop's body that the values are computed from, if all follows from the
    loop's counter and from what stands before the loop: `clone_slice` then makes them for another
    iteration. None where something is carried, or has effects (but for operations that `also`
    permits).
    """
    body, values = body_of(loop), list(values)
    ops = defining_slice(values, body)
    carried = known_ahead(loop) == 0 or any(
        isinstance(v, BlockArgument) and v.block is body and v.index > 0
        for v in {*values, *(v for op in ops for v in op.operands)}
    )
    return (
        None
        if carried or not all(is_side_effect_free(op) and not op.regions or also(op) for op in ops)
        else ops
    )


def with_results(branch: scf.IfOp, ways: Sequence[Sequence[SSAValue]]) -> list[SSAValue]:
    """What a branch gives that yields more, each way its own values."""
    for region, values in zip(branch.regions, ways, strict=True):
        terminator = terminator_of(region.block)
        terminator.operands = [*terminator.operands, *values]
    true, false = [branch.detach_region(region) for region in list(branch.regions)]
    types = [*(r.type for r in branch.results), *(v.type for v in ways[0])]
    new = before(branch, scf.IfOp(branch.cond, types, true, false))
    replace(branch, new.results[: len(branch.results)])
    return list(new.results[-len(ways[0]) :])


def _moved(loop: scf.WhileOp) -> tuple[Region, Region]:
    """Test and body of a loop, taken out of it."""
    regions = Region(), Region()
    for old, new in zip(loop.regions, regions, strict=True):
        old.move_blocks(new)
    return regions


def rebuild_while(loop: scf.WhileOp, extra: Sequence[SSAValue]) -> scf.WhileOp:
    """The loop with extra carried values after its own; its test passes them on as they are. The
    body's yield is the caller's to complete; the extra arguments of the body come last."""
    test, body = loop.before_region.block, loop.after_region.block
    added = []
    for value in extra:
        for block in (test, body):
            argument = block.insert_arg(value.type, len(block.args))
            argument.name_hint = value.name_hint
            if block is test:
                added.append(argument)
    terminator_of(test).operands = [*yielded_by(test), *added]
    regions = _moved(loop)
    new = scf.WhileOp(
        [*loop.arguments, *extra],
        [*(r.type for r in loop.results), *(v.type for v in extra)],
        *regions,
    )
    new.attributes |= loop.attributes
    before(loop, new)
    for old, result in zip(loop.results, new.results, strict=False):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    erase(loop)
    return new


def narrow_while(loop: scf.WhileOp, keep: Sequence[int]) -> scf.WhileOp:
    """The loop with only the carried values of those indices; its test passes on what it gets, and
    the others have no use.
    """
    test, body = loop.before_region.block, loop.after_region.block
    passed = yielded_by(test)
    terminator_of(test).operands = [passed[0], *(passed[1 + i] for i in keep)]
    terminator_of(body).operands = [yielded_by(body)[i] for i in keep]
    for block in (test, body):
        for i in reversed(range(len(block.args))):
            if i not in keep:
                block.erase_arg(block.args[i])
    regions = _moved(loop)
    new = scf.WhileOp(
        [loop.arguments[i] for i in keep], [loop.results[i].type for i in keep], *regions
    )
    new.attributes |= loop.attributes
    before(loop, new)
    for i, result in zip(keep, new.results, strict=False):
        result.name_hint = loop.results[i].name_hint
        loop.results[i].replace_all_uses_with(result)
    erase(loop)
    return new


def rebuild_for(loop: scf.ForOp, keep: Sequence[int], extra: Sequence[SSAValue] = ()) -> scf.ForOp:
    """The loop with only the carried values of those indices and with extra ones after them; the
    body moves, its yield is the caller's to complete (it yields the kept values; the extra block
    arguments come last). Results are replaced; a dropped carried value must have no use left."""
    body, old = loop.body.block, list(loop.iter_args)
    for value in extra:
        argument = body.insert_arg(value.type, len(body.args))
        argument.name_hint = value.name_hint
    terminator = terminator_of(body)
    stamp(new_yield := scf.YieldOp(*(terminator.operands[i] for i in keep)), terminator)
    terminator.detach()
    terminator.erase()
    body.add_op(new_yield)
    for i in reversed(range(len(old))):
        if i not in keep:
            body.erase_arg(body.args[1 + i])
    region = Region()
    loop.body.move_blocks(region)
    new = scf.ForOp(loop.lb, loop.ub, loop.step, [*(old[i] for i in keep), *extra], region)
    new.attributes |= loop.attributes
    before(loop, new)
    for position, i in enumerate(keep):
        new.results[position].name_hint = loop.results[i].name_hint
        loop.results[i].replace_all_uses_with(new.results[position])
    erase(loop)
    return new


def rebuild_if(
    branch: scf.IfOp, keep: Sequence[int], extra: Sequence[tuple[SSAValue, SSAValue]] = ()
) -> scf.IfOp:
    """The branch with only the results of those indices and with extra ones after them, given as
    (yielded if true, if false).
    """
    blocks = [
        branch.true_region.block,
        branch.false_region.block if branch.false_region.blocks else Block(),
    ]
    for side, block in enumerate(blocks):
        old = list(block.last_op.operands) if block.last_op is not None else []
        yielded = scf.YieldOp(*(old[i] for i in keep), *(pair[side] for pair in extra))
        if block.last_op is not None:
            erase(block.last_op)
        block.add_op(stamp(yielded, branch))
    regions = []
    for region, block in zip((branch.true_region, branch.false_region), blocks, strict=False):
        moved = Region()
        if region.blocks:
            region.move_blocks(moved)
        else:
            moved.add_block(block)
        regions.append(moved)
    types = [branch.results[i].type for i in keep] + [pair[0].type for pair in extra]
    new = scf.IfOp(branch.cond, types, regions[0], regions[1])
    before(branch, new)
    for position, i in enumerate(keep):
        new.results[position].name_hint = branch.results[i].name_hint
        branch.results[i].replace_all_uses_with(new.results[position])
    erase(branch)
    return new
