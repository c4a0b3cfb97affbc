"""Rings and their mbarriers: which stage an operation fills, reads or releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.plan import ring_filled
from tkc.ir.rewrite import Builder, before, erase
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import SharedType, bits
from tkc.ir.values import (
    defining_op,
    is_side_effect_free,
    operations_in,
    owner_of,
    reached,
    shared_type,
)


@dataclass(frozen=True)
class RingBarriers:
    """The mbarriers of the rings that are filled together."""

    full: SSAValue
    empty: SSAValue
    stages: int
    read: bool  # by threads, not by dots alone
    multiplied: bool  # by dots, straight from the stage
    by_threads: bool  # that copy by cp.async
    # blocks of a cluster that write to its stages; None: this one alone
    peers: SSAValue | None = None
    # each program's own has no stage beside it for the next one's: it is released as soon as can
    # be
    single: bool = False

    def fence(self) -> list[Operation]:
        """Between what threads have read in a stage and what a tensor map's copy will write there;
        what threads copy is written as it was read.
        """
        return [threads.Fence("async_shared")] if self.read and not self.by_threads else []


def slots(anchor: Operation, stages: int, name: str) -> SSAValue:
    """A ring with room for a number in each stage, which one role writes and others read."""
    ring = before(
        anchor, shared.Alloc(SharedType(stages, (1,), i32, SharedLayout((1,), 32)))
    ).result
    ring.name_hint = name
    return ring


def group_of(wait: shared.WaitCopies) -> list[shared.CopyAsync]:
    """The copies a wait waits for."""
    joined = defining_op(wait.tokens[0], shared.JoinTokens)
    tokens = wait.tokens if joined is None else joined.tokens
    return [owner_of(token, shared.CopyAsync) for token in tokens]


def bytes_of(copies: Sequence[shared.CopyAsync]) -> int:
    """What copies bring to a stage."""
    types = [shared_type(copy.buffer) for copy in copies]
    return sum(t.size * bits(t.element) // 8 for t in types)


def stage_of(buffer: SSAValue) -> shared.Stage:
    """The operation that shows a stage of a ring as a buffer."""
    return owner_of(buffer, shared.Stage)


def ring_of(op: shared.CopyAsync | shared.Write | shared.Read) -> SSAValue:
    return stage_of(op.buffer).ring


def shared_along(copy: shared.CopyAsync) -> tuple[int, ...]:
    """The axes of the cluster along which a copy is shared."""
    return tuple(copy.among.get_values()) if copy.among is not None else (0,)


def is_by_threads(copy: shared.CopyAsync) -> bool:
    """Whether a role of threads fills a ring's stage, not tensor maps."""
    return copy.engine is not None and copy.engine.data == "cp_async"


def relayouts(op: Operation) -> TypeGuard[shared.Write]:
    """Whether an operation fills a stage of a ring from registers."""
    return isinstance(op, shared.Write) and ring_filled(op) is not None


def origins(write: shared.Write) -> list[shared.Read]:
    """What an operand that the converter writes was read from."""

    def behind(value: SSAValue) -> list[SSAValue]:
        owner = value.owner
        if isinstance(owner, (Block, shared.Read)) or owner.parent is not write.parent:
            return []
        return list(owner.operands)

    owners = dict.fromkeys(value.owner for value in reached([write.value], behind))
    return [op for op in owners if isinstance(op, shared.Read)]


def rings_converted(
    writes: Iterable[shared.Write], rings: Mapping[SSAValue, RingBarriers]
) -> dict[SSAValue, RingBarriers]:
    """Of some rings those from which the converter makes what it writes, and those that are filled
    together with them.
    """
    read = {rings[ring_of(op)] for write in writes for op in origins(write)}
    return {ring: barriers for ring, barriers in rings.items() if barriers in read}


def is_read_beside(ring: SSAValue, block: Block) -> bool:
    """Whether what a block takes from a ring goes anywhere but to where it is relaid."""
    work = [op.result for op in block.walk() if isinstance(op, shared.Stage) and op.ring is ring]
    seen: set[Operation] = set()
    while work:
        for use in work.pop().uses:
            op = use.operation
            if relayouts(op) or isinstance(op, shared.CopyAsync) or op in seen:
                continue
            seen.add(op)
            is_value = isinstance(op, shared.Read) or is_side_effect_free(op)
            if op.regions or not is_value or isinstance(op, (tile.Dot, scf.YieldOp)):
                return True
            work += op.results
    return False


def barriers_of(
    anchor: Operation,
    copies: Sequence[shared.CopyAsync | shared.Write],
    filled: int,
    freed: int,
    single: bool = False,
    peers: SSAValue | None = None,
) -> RingBarriers:
    """Of all that fills a ring. filled, freed: the arrivals after which a stage is full, and
    free. peers: the blocks that have to know that it is.
    """
    stages = shared_type(ring_of(copies[0])).stages
    full, empty = (before(anchor, threads.Barriers(stages)).result for _ in range(2))
    full.name_hint, empty.name_hint = "full", "empty"
    before(anchor, threads.MbarrierInit(full, filled), threads.MbarrierInit(empty, freed))
    return RingBarriers(
        full,
        empty,
        stages,
        any(isinstance(use.operation, shared.Read) for c in copies for use in c.buffer.uses),
        any(is_multiplied(c.buffer) for c in copies),
        isinstance(copies[0], shared.CopyAsync) and is_by_threads(copies[0]),
        peers,
        single,
    )


def is_multiplied(buffer: SSAValue) -> bool:
    """Whether a dot reads a buffer, or a view of it."""
    return any(
        isinstance(use.operation, tile.Dot)
        or isinstance(use.operation, shared.VIEWS)
        and any(map(is_multiplied, use.operation.results))
        for use in buffer.uses
    )


def state_of(copy: shared.CopyAsync | shared.Write) -> tuple[SSAValue, SSAValue]:
    """Stage and parity of the ring that a copy or a write fills."""
    step = step_of(copy)
    return step.stage, step.parity


def step_of(copy: shared.CopyAsync | shared.Write) -> threads.RingNext:
    """The step to the stage behind the one that a copy or a write fills."""
    return next(
        use.operation
        for use in stage_of(copy.buffer).index[0].uses
        if isinstance(use.operation, threads.RingNext) and use.index == 0
    )


def await_free(
    anchor: Operation, empty: SSAValue, stage: SSAValue, parity: SSAValue
) -> threads.MbarrierWait:
    """Before the anchor, who fills a stage waits until it is free."""
    build = Builder(anchor)
    return build.do(threads.MbarrierWait(empty, stage, build.xor(parity, 1)))


def is_for_room(wait: threads.MbarrierWait) -> bool:
    """Whether who fills a stage waits until it is free."""
    return isinstance(wait.parity.owner, CLASSES["xor"])


def arrived(block: Block, rings: dict[SSAValue, RingBarriers]) -> None:
    """Waits for what was copied into these rings; the copies go, they are the producer's."""
    for wait in operations_in(block, shared.WaitCopies):
        copies = group_of(wait)
        if ring := rings.get(ring_of(copies[0])):
            before(wait, threads.MbarrierWait(ring.full, *state_of(copies[0])))
            if ring.by_threads and ring.multiplied:  # what threads write dots read another way
                before(wait, threads.Fence("async_shared"))
        joined = wait.tokens[0].owner
        erase(wait)
        if isinstance(joined, shared.JoinTokens):
            erase(joined)
        for copy in copies:
            erase(copy)
