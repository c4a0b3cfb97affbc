"""separate-operands: a block that several dots of a loop read is loaded for each of them.

    %k = tile.load %a[%n, 0]                  %k0 = tile.load %a[%n, 0]
    %s = tile.dot %q, %k.T, …                 %s = tile.dot %q, %k0.T, …
    %d = tile.dot %p, %k, …           ->      %k1 = tile.load %a[%n, 0]
                                              %d = tile.dot %p, %k1, …

A block that is loaded outside of the loop whose dots read it, and that something else reads, is
loaded again for the other:

    %q = tile.load %a[%m, 0]                  %q = tile.load %a[%m, 0]
    for …: tile.dot %q, …                     for …: tile.dot %q, …
    tile.mul %q, %q                   ->      %q1 = tile.load %a[%m, 0]
                                              tile.mul %q1, %q1

Warp roles release a stage of a ring in the iteration that loaded it, and dots of different operands
may run in different iterations. Where a plan has roles only so, or late dots only so, the program
is changed; elsewhere, and on targets without wgmma, it stays as it is.

A role that copies needs a block's place before the step overwrites what says where it is. So a
block that such a store stands before is loaded before the store:

    %r = tile.load %w[0]                      %r = tile.load %w[0]
    tile.store %w[0] …                        %k = tile.load %a[%r, 0]
    %k = tile.load %a[%r, 0]          ->      tile.store %w[0] …
    %s = tile.dot %q, %k, …                   %s = tile.dot %q, %k, …
"""

from __future__ import annotations

import itertools

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, Use
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.rewrite import before, defining_slice
from tkc.ir.values import ancestor, block_of, operations_in
from tkc.passes import PassContext
from tkc.passes.analysis.alias import apart, may_meet, unseen, writes
from tkc.passes.analysis.program_axes import sources
from tkc.passes.analysis.values import WRITES, computed_of
from tkc.passes.plan import kernel_of
from tkc.passes.planning.operands import leaves
from tkc.passes.trials import planned, put_in_place, with_roles


def run(module: ModuleOp, context: PassContext) -> None:
    """Loads blocks once for each dot that reads them, if that makes warp roles possible, or dots
    that run late. The plan of what it leaves is the context's `early_plan`.
    """
    if not context.target.wgmma:
        return
    for op in operations_in(module, tile.Load):
        _load_before_stores(op, context)
    if not _shared_loads(module):
        return
    context.early_plan, why = planned(module, context)
    as_it_is = with_roles(context.early_plan)
    if as_it_is is not None and as_it_is.rotate:
        return
    trial = module.clone()
    count = _separate(trial, context)
    made, why_not = planned(trial, context)
    separated = with_roles(made)
    if as_it_is is None and separated is None:
        context.decisions.append(
            f"separate-operands: not done, it would not give roles: {why_not or why}"
        )
    elif separated is not None and (as_it_is is None or separated.rotate):
        put_in_place(kernel_of(module), kernel_of(trial))
        context.early_plan = separated
        gain = "read a block of its own" if as_it_is is None else "run in an iteration of its own"
        context.decisions.append(
            f"separate-operands: {count} more loads, so that each dot can {gain}"
        )


def _load_before_stores(load: tile.Load, context: PassContext) -> None:
    """Moves the load of a dot's operand before the first store of its step that may overwrite what
    its place follows from, where it reads nothing that is written in between.
    """
    block = block_of(load)
    if not isinstance(load.parent_op(), scf.ForOp) or not _feeds_dot(load):
        return
    found = [op for op in sources(load.operands) if isinstance(op, tile.Load)]
    store = next(
        (
            op
            for op in itertools.takewhile(lambda op: op is not load, block.ops)
            if isinstance(op, WRITES) and any(may_meet(r, op, context.overlaps) for r in found)
        ),
        None,
    )
    if store is None:
        return
    moved = [*defining_slice(load.operands, block), load]
    moved = [op for op in moved if store.is_before_in_block(op)]
    if all(_may_come_before(op, store, load, context) for op in moved):
        for op in moved:
            op.detach()
            before(store, op)


def _feeds_dot(load: tile.Load) -> bool:
    """Whether a dot reads a block, or what is computed of it element by element."""
    uses = (use for v in computed_of(load.result) for use in v.uses)
    return any(isinstance(use.operation, tile.Dot) for use in uses)


def _may_come_before(op: Operation, store: Operation, end: Operation, context: PassContext) -> bool:
    """Whether an operation may stand before a store instead of at, or before, the end."""
    if not isinstance(op, tile.Load):
        return not op.regions and is_side_effect_free(op)
    between = [
        inner
        for other in block_of(op).ops
        if other is store or store.is_before_in_block(other) and other.is_before_in_block(end)
        for inner in other.walk()
    ]
    return not any(writes(inner) and not apart(op, inner, context.overlaps) for inner in between)


def _shared_loads(module: ModuleOp) -> list[tile.Load]:
    """The loads in loops that several dots read, or a dot and something else; and those outside
    that dots further inside read, and something else.
    """
    return [
        op
        for op in operations_in(module, tile.Load)
        if (
            isinstance(op.parent_op(), scf.ForOp)
            and _operand_uses(op)
            and len(list(leaves(op.result))) > 1
            or _uses_beside_inner_dots(op)
        )
    ]


def _uses_beside_inner_dots(
    load: tile.Load,
) -> list[tuple[Use, list[tile.Transpose | tile.Reshape]]]:
    """The uses of a block that are no operand of a dot, where dots in loops or branches behind the
    load read it.
    """
    uses = list(leaves(load.result))
    inner = [use for use, _ in uses if _is_operand(use) and use.operation.parent is not load.parent]
    return [(use, between) for use, between in uses if not _is_operand(use)] if inner else []


def _is_operand(use: Use) -> bool:
    """Whether a use is the left or the right operand of a dot."""
    return isinstance(use.operation, tile.Dot) and use.index < 2


def _operand_uses(load: tile.Load) -> list[tuple[Use, list[tile.Transpose | tile.Reshape]]]:
    """The uses of a block as an operand of a dot in the load's own loop."""
    return [
        (use, between)
        for use, between in leaves(load.result)
        if _is_operand(use) and use.operation.parent is load.parent
    ]


def _separate(module: ModuleOp, context: PassContext) -> int:
    """Gives each dot a load of its own, right before it; returns how many there are more."""
    count = 0
    for load in _shared_loads(module):
        uses = _operand_uses(load)
        keeps_one = len(uses) == len(list(leaves(load.result)))
        for use, between in uses[1:] if keeps_one else uses:
            if unseen(load, use.operation, context.overlaps):
                _load_again(load, use, between, use.operation)
                count += 1
        for use, between in _uses_beside_inner_dots(load):
            # not in a loop, which would load it in each iteration
            place = ancestor(use.operation, block_of(load))
            if place is not None and unseen(load, place, context.overlaps):
                _load_again(load, use, between, place)
                count += 1
    return count


def _load_again(
    load: tile.Load, use: Use, between: list[tile.Transpose | tile.Reshape], place: Operation
) -> None:
    """Loads a block once more, before an operation, for one use of it."""
    value = before(place, load.clone()).results[0]
    for view in between:
        value = before(place, view.clone({view.arg: value})).result
    use.operation.operands[use.index] = value
    for view in reversed(between):
        if view.result.first_use is None:
            view.detach()
            view.erase()
