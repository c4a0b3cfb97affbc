"""What a producer claims for all roles: numbers that it writes into a ring of two, which the other
roles read.

    producer:  mbarrier_wait %empty[%s] %p ^ 1;  broadcast_store …;  mbarrier_arrive %full[%s]
    others:    mbarrier_wait %full[%s] %p;  broadcast_load …;  mbarrier_arrive %empty[%s]

Stage and parity go round the loop that takes work, in every role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import before, rebuild_while
from tkc.ir.values import terminator_of
from tkc.passes.warpgroups.rings import await_free, slots

STAGES = 2  # the next program's numbers are there while this one's are read


@dataclass(frozen=True)
class Turn:
    """The body of a role's loop that takes work, and the stage and parity that it carries."""

    body: Block
    stage: SSAValue
    parity: SSAValue


class ClaimRing:
    """A ring of some numbers from one role to others; anchor: before it the ring is made."""

    def __init__(self, anchor: Operation, numbers: int, readers: Sequence[threads.Role]):
        self.rings = [slots(anchor, STAGES, "claimed") for _ in range(numbers)]
        self.full, self.empty = (before(anchor, threads.Barriers(STAGES)).result for _ in range(2))
        self.full.name_hint, self.empty.name_hint = "full", "empty"
        arrivals = sum(role.warps.value.data * role.instances for role in readers)
        before(
            anchor,
            threads.MbarrierInit(self.full, 1),
            threads.MbarrierInit(self.empty, arrivals),
        )
        self.zero = before(anchor, tile.Constant(0, i32)).result

    def carried_by(self, loop: scf.WhileOp) -> Turn:
        """A loop that carries the ring's stage and parity as well; `advance` ends its turns."""
        body = rebuild_while(loop, [self.zero, self.zero]).after_region.block
        return Turn(body, *body.args[-2:])

    def post(self, turn: Turn, anchor: Operation, values: Sequence[SSAValue]) -> None:
        """The producer's half: waits for a free stage, writes the values, arrives."""
        places = self._places(turn, anchor)
        await_free(anchor, self.empty, turn.stage, turn.parity)
        for place, value in zip(places, values, strict=True):
            before(anchor, threads.BroadcastStore(place, value))
        before(anchor, threads.MbarrierArrive(self.full, turn.stage))

    def take(self, turn: Turn, anchor: Operation) -> list[SSAValue]:
        """The readers' half: waits for the numbers, reads them, gives the stage back."""
        places = self._places(turn, anchor)
        before(anchor, threads.MbarrierWait(self.full, turn.stage, turn.parity))
        numbers: list[SSAValue] = [
            before(anchor, threads.BroadcastLoad(place)).result for place in places
        ]
        before(anchor, threads.MbarrierArrive(self.empty, turn.stage, each="warp"))
        return numbers

    def advance(self, turn: Turn, carried: Sequence[SSAValue]) -> None:
        """What else the loop carries, with the next stage and parity."""
        end = terminator_of(turn.body)
        step = before(end, threads.RingNext(turn.stage, turn.parity, STAGES))
        end.operands = [*carried, *step.results]

    def _places(self, turn: Turn, anchor: Operation) -> list[SSAValue]:
        return [before(anchor, shared.Stage(ring, turn.stage)).result for ring in self.rings]
