"""The sums of a loop, one group of dots deep: a stage is released when the next group is under way.
A part of consuming.py.

    for … iter_args(%acc, …):                   for … iter_args(%sum, %before, …):
      mbarrier_wait %full[%s] %p                  mbarrier_wait %full[%s] %p
      %d = tile.dot %ring[%s], …, %acc    ->      %d = dot_async %ring[%s], …, %sum;  dot_commit
      yield %d, …                                 dot_wait 1;  mbarrier_arrive %empty[%before]
                                                  yield %d, %s, …
                                                dot_wait 0;  mbarrier_arrive %empty[%before]

A left operand in registers is computed when the dot before is over: it still reads its own, and
ptxas would give both the same registers. What it is computed from is read while that one runs; what
needs no computing is read when it is over.

A sum that starts from zero starts in undefined registers, which its first dot overwrites: to the
assembler they are in use from the role's beginning. Where the role has dots elsewhere too
(`among_others`), which need registers of their own, each loop's sums begin with their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.registers import ALIASES, sources
from tkc.ir.rewrite import after, before, defining_slice, erase, rebuild_for
from tkc.ir.types import PendingType, TileType
from tkc.ir.values import block_of, index_of, terminator_of, tile_type, yielded_by
from tkc.passes.planning.operands import zero as is_zero
from tkc.passes.warpgroups.in_flight import stage_number
from tkc.passes.warpgroups.rings import RingBarriers


class PipelinedSums:
    """One loop's sums. made: the dots that add to each, in their order; stages: what these dots
    read, each stage a ring and a number.
    """

    def __init__(
        self,
        loop: scf.ForOp,
        made: list[list[tile.Dot]],
        stages: list[tuple[RingBarriers, SSAValue]],
        among_others: bool,
    ):
        self.loop, self.made, self.stages = loop, made, stages
        self.body = loop.body.block
        self.dots = [op for op in self.body.ops if isinstance(op, tile.Dot)]
        self.carried = [first.acc for first, *_ in made]  # each sum as the loop carries it
        self.indices = [index_of(held) - 1 for held in self.carried]
        self.initial = [loop.iter_args[i] for i in self.indices]
        self.kinds = [PendingType(tile_type(held)) for held in self.carried]
        self.started = among_others or not all(map(is_zero, self.initial))
        self.computed = isinstance(self.dots[0].a.type, TileType)
        # where the first dot's operand is computed, if it is
        self.place = _computed(self.dots[0]) if self.computed else self.dots[0]

    def run(self) -> None:
        """Rewrites the loop in place."""
        pending = [self._start(v, t) for v, t in zip(self.initial, self.kinds, strict=True)]
        zero = before(self.loop, tile.Constant(0, i32)).result
        some = before(self.loop, CLASSES["lt"](self.loop.lb, self.loop.ub)).result
        # stand for the results until they exist
        holders = [after(self.loop, threads.Undefined(t)) for t in self.kinds]
        placeholder = after(holders[0], threads.DotWait(0, [holder.result for holder in holders]))
        for i, result in zip(self.indices, placeholder.results, strict=False):
            self.loop.results[i].replace_all_uses_with(result)
        late = self._reads_late()
        inside = [before(self.place, threads.Undefined(t)) for t in self.kinds]
        go = before(self.place, CLASSES["ne"](self.body.args[0], self.loop.lb)).result
        wait, ends = self._issue(inside, go)
        self._drop_dots()
        loop = self._carry(inside, [*pending, *[zero] * len(self.stages)])
        after(wait, *self._releases(self.body.args[-len(self.stages) :], go, fenced=True))
        stages = (stage for _, stage in self.stages)
        terminator_of(self.body).operands = [*yielded_by(self.body), *ends, *stages]
        for result, value in zip(placeholder.results, self._results(loop, some, late), strict=True):
            result.replace_all_uses_with(value)
        for op in (placeholder, *holders):
            erase(op)

    def _start(self, value: SSAValue, kind: PendingType) -> SSAValue:
        """What a sum begins with, as a dot under way."""
        start = threads.Accumulator(value) if self.started else threads.Undefined(kind)
        return before(self.loop, start).result

    def _reads_late(self) -> bool:
        """Whether threads read a stage behind this iteration's fence: the last one's needs another
        then.
        """
        early = [
            op
            for op in defining_slice([dot.a for dot in self.dots], self.body)
            if op.is_before_in_block(self.place)
        ]
        numbers = [stage for _, stage in self.stages]
        return isinstance(self.place, shared.Read) or any(
            isinstance(op, shared.Read) and stage_number(op.buffer) in numbers
            for top in self.body.ops
            if top not in early
            for op in top.walk()
        )

    def _issue(
        self, inside: list[threads.Undefined], go: SSAValue
    ) -> tuple[threads.DotWait, list[SSAValue]]:
        """Issues the dots; gives the wait for the group before and the sums at the body's end."""
        # a sum, and what it is on its way
        in_flight: dict[SSAValue, SSAValue] = dict(
            zip(self.carried, (held.result for held in inside), strict=False)
        )
        if self.computed:
            wait = before(self.place, threads.DotWait(0, list(in_flight.values())))
            in_flight = dict(zip(self.carried, wait.results, strict=False))
        before(self.dots[0], threads.Fence("dot"))
        for dot in self.dots:
            keep = go if dot.acc in self.carried and not self.started else None
            kind = PendingType(tile_type(dot.acc))
            issued = threads.DotAsync(dot.a, dot.b, in_flight[dot.acc], kind, keep=keep)
            in_flight[dot.result] = before(dot, issued).result
        ends = [in_flight[dots[-1].result] for dots in self.made]
        before(self.dots[-1], threads.DotCommit())
        if not self.computed:
            wait = before(self.dots[-1], threads.DotWait(1, ends, [False] * len(ends)))
            ends = list(wait.results)
        return wait, ends

    def _drop_dots(self) -> None:
        """The carried tiles go, and their dots with them."""
        for i, held in zip(self.indices, self.carried, strict=False):
            terminator_of(self.body).operands[i] = held
        for dot in reversed(self.dots):
            erase(dot)

    def _carry(self, inside: list[threads.Undefined], initial: list[SSAValue]) -> scf.ForOp:
        """The loop that carries, in place of the sums' tiles, dots under way and the stages that
        they read.
        """
        keep = [i for i in range(len(self.loop.iter_args)) if i not in self.indices]
        loop = rebuild_for(self.loop, keep, initial)
        count = len(self.stages)
        for stage in self.body.args[-count:]:
            stage.name_hint = "stage_before"
        sums = self.body.args[-len(self.made) - count : -count]
        for held, value in zip(inside, sums, strict=False):
            held.result.replace_all_uses_with(value)
            erase(held)
        return loop

    def _releases(
        self, numbers: Sequence[SSAValue], when: SSAValue, fenced: bool
    ) -> Iterator[Operation]:
        """Of stages with these numbers, of each ring one; fenced: for what threads read there."""
        for (ring, _), stage in zip(self.stages, numbers, strict=False):
            if fenced:
                yield from ring.fence()
            yield threads.MbarrierArrive(ring.empty, stage, ring.peers, each="warp", when=when)

    def _results(self, loop: scf.ForOp, some: SSAValue, late: bool) -> list[SSAValue]:
        """The sums behind the loop, whose last stages are released; some: whether it runs."""
        count = len(self.stages)
        done = after(loop, threads.DotWait(0, loop.results[-len(self.made) - count : -count]))
        last = after(done, *self._releases(loop.results[-count:], some, late))
        if self.started:
            return list(done.results)
        yes, no = Block([scf.YieldOp(*done.results)]), Block([scf.YieldOp(*self.initial)])
        types = [v.type for v in self.initial]
        return list(after(last, scf.IfOp(some, types, Region(yes), Region(no))).results)


def _computed(dot: tile.Dot) -> Operation:
    """The first operation that computes a dot's left operand of what was read in memory, or that
    writes registers in which the operand lies, also of nothing that was read: the dot before takes
    its own from the same registers.
    """
    block = block_of(dot)
    writers = {v.owner for v in sources(dot.a)}
    read: set[SSAValue] = set()
    for op in defining_slice([dot.a], block):
        if op in writers:
            return op
        loads = isinstance(op, (shared.Read, tile.Load, tile.LoadPointers))
        if loads and isinstance(op.results[0].type, TileType):
            read.update(op.results)
        elif any(v in read for v in op.operands):
            if not isinstance(op, ALIASES):
                return op
            read.update(op.results)
    return dot
