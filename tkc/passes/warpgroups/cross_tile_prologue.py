"""Cross-tile prologue: the programs of a block become one stream of copies and dots. The last step
of roles.py for plans with `cross_tile_prologue`.

    consumer, for each program:        S of the first program
      wait Q, K;  S = q·k[0]           for each program:
      softmax, loop, last dot            wait for S;  softmax, loop
      wait for it                  ->    last dot;  wait Q, K of the next program;  S = q·k[0]
      claim the next program             wait for the last dot alone
      epilogue                           claim;  epilogue while S is computed

Both dots are issued in each path through the branch around the loop, so that the second is in
flight when the branch ends. Behind the branch the assembler would put the epilogue's division
between the instructions of that dot; and it forbids other writes to registers of accumulators in
flight, so what a branch without a loop yields is computed before.

The dot is issued once more than there are programs. The producer loads the head of the next program
behind its claim, before it waits for the last stages of the one before, and a head for one program
more than there are: that one lies outside the arrays, so tensor maps fill it with zeros, and its
scores are not used. Where nothing bounds an array, the head of the program before is loaded again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import threads, tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.rewrite import (
    Builder,
    after,
    before,
    clone_slice,
    defining_slice,
    erase,
    rebuild_while,
    replace,
    with_results,
)
from tkc.ir.types import TileType
from tkc.ir.values import block_of, index_of, next_of, owner_of, terminator_of, yielded_by

HEAD = threads.MbarrierWait, threads.MbarrierExpect, threads.TmaLoad


@dataclass
class Stream:
    """What a program of a role begins with, and where the next program's goes: a place in each way
    through the branch around the program's loop, where the values that the loop over programs
    carries next are known."""

    loop: scf.WhileOp
    branch: scf.IfOp
    head: list[Operation]
    places: list[Operation]

    @property
    def body(self) -> Block:
        return self.loop.after_region.block

    def first(self) -> dict[SSAValue, SSAValue]:
        return dict(zip(self.body.args, self.loop.arguments, strict=False))

    def next(self, place: Operation) -> dict[SSAValue, SSAValue]:
        end = terminator_of(block_of(place))
        return {
            argument: end.operands[index_of(v)] if v.owner is self.branch else v
            for argument, v in zip(self.body.args, yielded_by(self.body), strict=False)
        }

    def exists(self, values: dict[SSAValue, SSAValue], anchor: Operation) -> SSAValue:
        """Whether there is a program with these values of what the loop carries."""
        before = self.loop.before_region.block
        carried: list[SSAValue] = list(self.body.args)
        mapping: dict[SSAValue, SSAValue] = {
            a: values[v] for a, v in zip(before.args, carried, strict=False)
        }
        end = terminator_of(before)
        clone_slice([op for op in before.ops if op is not end], mapping, anchor)
        return mapping.get(end.operands[0], end.operands[0])

    def read_for(self, values: Iterable[SSAValue]) -> set[SSAValue]:
        """What of the loop's carried values some values are computed from."""
        found = set(values)
        for op in defining_slice(found, self.body):
            found.update(v for inner in op.walk() for v in inner.operands)
        return found.intersection(self.body.args)

    def possible(self) -> bool:
        """Whether the head is straight code, and all it needs is known at each place."""
        read = {v for op in self.head for v in op.operands if v in self.body.args}

        def known(v, place):
            return isinstance(v.owner, Block) or not any(
                v.owner.parent is at.parent and not v.owner.is_before_in_block(at)
                for at in (place, self.branch)
            )

        return (
            bool(self.head)
            and not any(op.regions for op in self.head)
            and all(known(self.next(place)[v], place) for place in self.places for v in read)
        )


def overlap_epilogue(producer: threads.Role, consumer: threads.Role) -> bool:
    """False where programs begin or end with something else."""
    loads, dots = _producers(_programs(producer)), _consumers(_programs(consumer))
    if loads is None or dots is None or not loads.possible() or not dots.possible():
        return False
    if not _is_apart(loads):
        return False
    _stream(loads)
    _ahead(dots)
    return True


def _programs(role: threads.Role) -> scf.WhileOp:
    return next(op for op in role.body.block.ops if isinstance(op, scf.WhileOp))


def _around(body: Block, kind: type) -> scf.IfOp | None:
    return next(
        (
            op
            for op in reversed(list(body.ops))
            if isinstance(op, scf.IfOp) and any(isinstance(inner, kind) for inner in op.walk())
        ),
        None,
    )


def _producers(loop: scf.WhileOp) -> Stream | None:
    body, around = loop.after_region.block, _around(loop.after_region.block, threads.NextProgram)
    if around is None:
        return None
    ops = list(body.ops)
    ops = ops[
        : max((i for i, op in enumerate(ops) if isinstance(op, threads.TmaLoad)), default=-1) + 1
    ]
    effects = [op for op in ops if isinstance(op, HEAD) or op.regions]
    needed = set(defining_slice([v for op in effects for v in op.operands], body))
    places = [_behind_claim(region.block) for region in around.regions]
    return Stream(loop, around, [op for op in ops if op in effects or op in needed], places)


def _behind_claim(block: Block) -> Operation:
    """What follows the announcement of a claimed program."""
    claimed = next(op for op in block.ops if isinstance(op, threads.NextProgram))
    arrival = next(
        op
        for op in block.ops
        if isinstance(op, threads.MbarrierArrive) and claimed.is_before_in_block(op)
    )
    return next_of(arrival)


def _stream(stream: Stream) -> None:
    """The producer: what it loads for a program before any loop is loaded behind the claim, before
    the last stages of the program before, as if all were one program.
    """
    clone_slice(stream.head, stream.first(), stream.loop)
    for place in stream.places:
        clone_slice(stream.head, _of_a_program(stream, place), place)
    for op in stream.head:
        if isinstance(op, HEAD):
            erase(op)


def _of_a_program(stream: Stream, place: Operation) -> dict[SSAValue, SSAValue]:
    """What the loop carries next; what says where blocks of unbounded arrays lie is this program's
    where there is no next one.
    """
    following = stream.next(place)
    where = _places_of_unbounded(stream)
    if not where:
        return following
    build = Builder(place)
    exists = stream.exists(following, place)
    return following | {v: build.select(exists, following[v], v) for v in where}


def _places_of_unbounded(stream: Stream) -> list[SSAValue]:
    """What the loop carries that says where the head's blocks lie, if an array has no bound."""
    loads = [op for op in stream.head if isinstance(op, threads.TmaLoad)]
    if not any(is_unbounded(owner_of(op.map, threads.TensorMap).arg) for op in loads):
        return []
    where = stream.read_for(v for op in loads for v in op.offsets)
    return [a for a in stream.body.args if a in where]


def _is_apart(stream: Stream) -> bool:
    """Whether nothing says both where a block lies and to which stage it is copied."""
    waits = [op for op in stream.head if isinstance(op, threads.MbarrierWait)]
    stages = stream.read_for(v for op in waits for v in op.operands)
    return stages.isdisjoint(_places_of_unbounded(stream))


def _consumers(loop: scf.WhileOp) -> Stream | None:
    body, last = loop.after_region.block, _around(loop.after_region.block, threads.DotAsync)
    dot = next((op for op in body.ops if isinstance(op, threads.DotAsync)), None)
    if dot is None or last is None or not dot.is_before_in_block(last):
        return None
    ends = [_last_wait(region.block) for region in last.regions]
    if not all(end.pending.value.data == 0 for end in ends if isinstance(end, threads.DotWait)):
        return None
    return Stream(loop, last, _head_of(dot), ends)


def _head_of(dot: threads.DotAsync) -> list[Operation]:
    """What a program does up to its first dot's commit: waits, the dot, and what these need."""
    body = block_of(dot)
    ops = list(body.ops)
    ops = ops[: ops.index(dot) + 2]  # and its commit
    waits = [op for op in ops if isinstance(op, threads.MbarrierWait)]
    needed = set(defining_slice([v for op in (dot, *waits) for v in op.operands], body))
    kept = {*needed, *waits, dot.prev_op, dot, dot.next_op}
    return [op for op in ops if op in kept]


def _last_wait(block: Block) -> Operation:
    """The last wait for dots of a block; its end where there is none."""
    waits = [op for op in block.ops if isinstance(op, threads.DotWait)]
    return waits[-1] if waits else terminator_of(block)


def _ahead(stream: Stream) -> None:
    """The consumers."""
    loop, head = stream.loop, stream.head
    fence, dot, commit = head[-3:]

    def copy(mapping: dict[SSAValue, SSAValue], anchor: Operation) -> SSAValue:
        clone_slice(head, mapping, anchor)
        return mapping[dot.results[0]]

    first, ways = copy(stream.first(), loop), []
    turns = any(isinstance(op, threads.Turn) for op in block_of(loop).ops)
    for place in stream.places:
        block, end = block_of(place), terminator_of(block_of(place))
        following = stream.next(place)
        end.operands = [
            (
                before(place, v.owner.clone()).results[0]
                if isinstance(v.owner, tile.Constant) and isinstance(v.type, TileType)
                else v
            )
            for v in end.operands
        ]
        ahead = copy(following, place)
        if isinstance(place, threads.DotWait):
            if turns:
                before(
                    [
                        op
                        for op in block.ops
                        if isinstance(op, threads.Fence) and op.kind.data == "dot"
                    ][-2],
                    threads.Turn("begin"),
                )
                before(place, threads.Turn("end"))
            both = before(
                place, threads.DotWait(1, [*place.args, ahead], [True] * len(place.args) + [False])
            )
            replace(place, list(both.results[:-1]))
            ahead = both.results[-1]
        ways.append([ahead])
    (ahead,) = with_results(stream.branch, ways)
    loop = rebuild_while(loop, [first])
    body = loop.after_region.block
    terminator_of(body).operands = [*yielded_by(body), ahead]
    dot.results[0].replace_all_uses_with(body.args[-1])
    for op in (commit, dot, fence, *(op for op in head if isinstance(op, threads.MbarrierWait))):
        erase(op)
    after(loop, threads.DotWait(0, [loop.results[-1]]))
