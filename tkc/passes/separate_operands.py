"""separate-operands: a block that several dots of a loop read is loaded for each of them.

    %k = tile.load %a[%n, 0]                  %k0 = tile.load %a[%n, 0]
    %s = tile.dot %q, %k.T, …                 %s = tile.dot %q, %k0.T, …
    %d = tile.dot %p, %k, …           ->      %k1 = tile.load %a[%n, 0]
                                              %d = tile.dot %p, %k1, …

Warp roles release a stage of a ring when the one dot that reads it is over, and dots of different
operands may run in different iterations. Where a plan has roles only so, the program is changed;
elsewhere, and on targets without wgmma, it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue, Use

from tkc.errors import CompileError
from tkc.ir import tile
from tkc.ir.rewrite import before
from tkc.passes import PassContext
from tkc.passes.analysis.alias import unseen
from tkc.passes.plan import plan

ONE_ROLE = "plan: one role with mma.sync: "


def run(module: ModuleOp, context: PassContext) -> None:
    """Loads blocks once for each dot that reads them, if that makes warp roles possible."""
    if not context.target.wgmma or not _shared_loads(module) or not _why_not(module, context):
        return
    trial = module.clone()
    _separate(trial, context)
    if why := _why_not(trial, context):
        context.decisions.append(f"separate-operands: not done, it would not give roles: {why}")
        return
    count = _separate(module, context)
    context.decisions.append(
        f"separate-operands: {count} more loads, so that each dot reads a block of its own"
    )


def _why_not(module: ModuleOp, context: PassContext) -> str:
    """Why the plan of a module would have no warp roles; empty if it would."""
    try:
        made = plan(module, context)
    except CompileError as e:
        return str(e)
    reason = next((d for d in made.decisions if ONE_ROLE in d), "as asked")
    return "" if made.roles != "one" else reason.removeprefix(ONE_ROLE)


def _shared_loads(module: ModuleOp) -> list[tile.Load]:
    """The loads in loops that several dots read, or a dot and something else."""
    return [
        op
        for op in module.walk()
        if isinstance(op, tile.Load)
        and isinstance(op.parent_op(), scf.ForOp)
        and _operand_uses(op)
        and len(list(_leaves(op.result))) > 1
    ]


def _leaves(value: SSAValue) -> Iterator[tuple[Use, list[tile.Transpose]]]:
    """The uses of a value, and of its transposes with those on the way there."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, tile.Transpose):
            for leaf, between in _leaves(op.result):
                yield leaf, [op, *between]
        else:
            yield use, []


def _operand_uses(load: tile.Load) -> list[tuple[Use, list[tile.Transpose]]]:
    """The uses of a block as an operand of a dot in the load's own loop."""
    return [
        (use, between)
        for use, between in _leaves(load.result)
        if isinstance(use.operation, tile.Dot)
        and use.index < 2
        and use.operation.parent is load.parent
    ]


def _separate(module: ModuleOp, context: PassContext) -> int:
    """Gives each dot a load of its own, right before it; returns how many there are more."""
    count = 0
    for load in _shared_loads(module):
        uses = _operand_uses(load)
        keeps_one = len(uses) == len(list(_leaves(load.result)))
        for use, between in uses[1:] if keeps_one else uses:
            if unseen(load, use.operation, context.overlaps):
                _load_again(load, use, between)
                count += 1
    return count


def _load_again(load: tile.Load, use: Use, between: list[tile.Transpose]) -> None:
    new: Operation = before(use.operation, load.clone())
    value = new.results[0]
    for transpose in between:
        value = before(
            use.operation, tile.Transpose(value, transpose.permutation.get_values())
        ).result
    use.operation.operands[use.index] = value
    for transpose in reversed(between):
        if transpose.result.first_use is None:
            transpose.detach()
            transpose.erase()
