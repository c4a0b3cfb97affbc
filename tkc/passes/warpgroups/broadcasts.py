"""Shared-memory broadcast of numbers beside dots (a scale of a whole block): the producer loads
them and leaves each beside the stage that its iteration's copies fill. A step of roles.py, for
loads whose planned path is "broadcast".

    for %k …:                               for %k …:
      %s = tile.load %scales[…, %k]           %s = tile.load %scales[…, %k]
      copies → %ring[%stage]                  copies → %ring[%stage]
      wait                              ->    broadcast_store %slots[%stage], %s     the producer's
      %d = dot …;  … %d · %s                  wait
                                              %t = broadcast_load %slots[%stage]     the consumers'
                                              %d = dot …;  … %d · %t

Otherwise the address of a number and its load, a chain of dependent instructions, would stand
between the dots of every consumer.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import Bitcast
from tkc.ir.plan import Plan
from tkc.ir.rewrite import after, before, clone_slice, defining_slice, erase, following, replace
from tkc.ir.values import block_of, first_of, is_side_effect_free, next_of, shared_type
from tkc.passes.warpgroups.rings import group_of, slots, stage_of


def insert_broadcasts(kernel: tile.Kernel, plan: Plan) -> set[SSAValue]:
    """Inserts, before the program is split, a store and a load for each such number; returns the
    rings of their slots.
    """
    found = set[SSAValue]()
    for load in _planned(kernel, plan):
        wait = next(op for op in block_of(load).ops if isinstance(op, shared.WaitCopies))
        number = _carried(load) or load.result
        of_it = following(number, block_of(wait).ops)
        early = [op for op in block_of(wait).ops if op in of_it and op.is_before_in_block(wait)]
        late = [
            op for op in defining_slice([number], block_of(wait)) if wait.is_before_in_block(op)
        ]
        if not all(
            (op is load or is_side_effect_free(op)) and not op.regions for op in (*late, *early)
        ):
            continue
        for op in late:
            op.detach()
            before(wait, op)
        found.add(_posted(number, early, wait, kernel.body.block))
    return found


def _planned(kernel: tile.Kernel, plan: Plan) -> list[tile.Load]:
    """The loads of numbers that are broadcast, but for those that fetch-ahead requests before a
    loop.
    """
    return [
        op
        for op in kernel.walk()
        if isinstance(op, tile.Load)
        and plan.load(op).path == "broadcast"
        and any(isinstance(beside, tile.Dot) for beside in block_of(op).ops)
    ]


def _carried(load: tile.Load) -> SSAValue | None:
    """What a loop knows from the iteration before, where a load is for the next one alone."""
    uses = list(load.result.uses)
    return (
        block_of(load).args[1 + uses[0].index]
        if len(uses) == 1 and isinstance(uses[0].operation, scf.YieldOp)
        else None
    )


def _posted(
    number: SSAValue, early: list[Operation], wait: shared.WaitCopies, outside: Block
) -> SSAValue:
    """early: what is computed of the number before the wait, and is computed again behind it."""
    filled = stage_of(group_of(wait)[0].buffer)
    t, anchor = number.type, next_of(wait)
    ring = slots(first_of(outside), shared_type(filled.ring).stages, "broadcast")
    place = before(wait, shared.Stage(ring, filled.index[0])).result
    got = before(anchor, threads.BroadcastLoad(place)).result
    known: dict[SSAValue, SSAValue] = {
        number: got if t == i32 else before(anchor, Bitcast(got, t)).result
    }
    clone_slice(early, known, anchor)
    for old, new in known.items():
        old.replace_all_uses_with(new)
    for op in reversed(early):
        erase(op)
    before(
        wait,
        threads.BroadcastStore(
            place, number if t == i32 else before(wait, Bitcast(number, i32)).result
        ),
    )
    return ring


def keep_own_half(role: threads.Role, posted: set[SSAValue], producing: bool) -> None:
    """Leaves a role its half: the producer has what it loaded."""
    for op in [
        op
        for op in role.walk()
        if isinstance(op, (threads.BroadcastStore, threads.BroadcastLoad))
        and isinstance(op.box.owner, shared.Stage)
        and op.box.owner.ring in posted
    ]:
        if isinstance(op, threads.BroadcastStore) and not producing:
            erase(op)
        elif isinstance(op, threads.BroadcastLoad) and producing:
            replace(
                op,
                [
                    next(
                        use.operation
                        for use in op.box.uses
                        if isinstance(use.operation, threads.BroadcastStore)
                    ).value
                ],
            )


def move_behind(anchor: Operation, stage: SSAValue) -> None:
    """Moves what a producer broadcasts beside a stage behind the operation from which on the stage
    is its own.
    """
    places = [use.operation for use in stage.uses if isinstance(use.operation, shared.Stage)]
    for op in [
        op
        for op in block_of(anchor).ops
        if isinstance(op, threads.BroadcastStore) and op.box.owner in places
    ]:
        known = [
            v for v in defining_slice(op.operands, block_of(op)) if anchor.is_before_in_block(v)
        ]
        for x in (*known, op):
            x.detach()
            anchor = after(anchor, x)
