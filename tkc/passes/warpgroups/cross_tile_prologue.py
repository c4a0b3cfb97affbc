"""Cross-tile prologue: the programs of a block become one stream of copies and dots. The last step
of roles.py for plans with `cross_tile_prologue`, however its instances share programs.

    consumer, for each program:        S of the first program
      wait Q, K;  S = q·k[0]           for each program:
      softmax, loop, last dot            wait for S;  softmax, loop
      wait for it                  ->    last dot;  wait Q, K of the next program;  S = q·k[0]
      claim the next program             wait for the last dot alone
      epilogue                           claim;  epilogue while S is computed

The head of a program, its first dots with all they wait for, moves across the back edge of the loop
over programs. Both dots are issued in each path through the branch around the loop, so that the
second is in flight when the branch ends. Behind the branch the assembler would put the epilogue's
division between the instructions of that dot; and it forbids other writes to registers of
accumulators in flight, so what a branch without a loop yields is computed before.

Where a program passes blocks of others behind its own (co_resident.py), the next one's first block
comes behind those. Who waited for them with the stage of its last dot in hand might wait for ever:
so the dot ends first, and its stage is released.

    last dot;  wait for it;  release its stage
    pass the blocks behind its own;  wait Q, K of the next program;  S = q·k[0]

The dot is issued once more than there are programs. The producer loads the head of the next program
behind its claim, before it waits for the last stages of the one before, and a head for one program
more than there are: that one lies outside the arrays, so tensor maps fill it with zeros, and its
scores are not used. Where nothing bounds an array, the head of the program before is loaded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.rewrite import (
    Builder,
    after,
    before,
    clone_slice,
    defining_slice,
    erase,
    holding,
    rebuild_while,
    replace,
    with_results,
)
from tkc.ir.types import BarriersType, TileType
from tkc.ir.values import (
    block_of,
    is_side_effect_free,
    next_of,
    owner_of,
    terminator_of,
    type_of,
    yielded_by,
)
from tkc.passes.warpgroups.lookahead import freed
from tkc.passes.warpgroups.rings import is_for_room

HEAD = threads.MbarrierWait, threads.MbarrierExpect, threads.TmaLoad
FIRST = threads.MbarrierWait, threads.Fence, threads.DotAsync, threads.DotCommit
# of a loop that waits for blocks of other programs and releases them
PASSING = (
    scf.ForOp,
    scf.YieldOp,
    tile.Constant,
    threads.MbarrierWait,
    threads.MbarrierArrive,
    threads.RingNext,
)


@dataclass
class Stream:
    """What a program of a role begins with, and where the next program's goes: a place in each way
    through the branch around the program's loop. late: what stands behind the branch and is known
    or done before that.
    """

    loop: scf.WhileOp
    branch: scf.IfOp
    head: list[Operation]
    places: list[Operation]

    def __post_init__(self) -> None:
        read_by_head = {v for op in self.head for v in op.operands}
        carried = zip(self.body.args, yielded_by(self.body), strict=True)
        read = {following for v, following in carried if v in read_by_head}
        ops = defining_slice(read, self.body)
        self.late = [op for op in ops if self.branch.is_before_in_block(op)]
        self.needed = {v for op in self.late for inner in op.walk() for v in inner.operands} | read
        self.passes = [op for op in self.late if op.regions]

    @property
    def body(self) -> Block:
        return self.loop.after_region.block

    def first(self) -> dict[SSAValue, SSAValue]:
        return dict(zip(self.body.args, self.loop.arguments, strict=False))

    def next(self, place: Operation) -> dict[SSAValue, SSAValue]:
        """At a place, what the loop carries next, and what follows from its passes."""
        yields = zip(self.branch.results, yielded_by(block_of(place)), strict=True)
        known: dict[SSAValue, SSAValue] = dict(yields)
        clone_slice(self.late, known, place)
        carried = zip(self.body.args, yielded_by(self.body), strict=True)
        return known | {argument: known.get(v, v) for argument, v in carried}

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
        """Whether the head is straight code, and all it needs is known at each place, or behind the
        passes. What threads exchange through shared memory has writes, which nothing needs.
        """
        return (
            bool(self.head)
            and not any(op.regions for op in self.head)
            and not any(isinstance(op, shared.Alloc) for op in (*self.head, *self.late))
            and all(is_side_effect_free(op) or _passes(op) for op in self.late)
            and all(
                result not in self.needed or _is_before(value, place)
                for place in self.places
                for result, value in zip(
                    self.branch.results, yielded_by(block_of(place)), strict=True
                )
            )
        )


def _passes(op: Operation) -> bool:
    return isinstance(op, scf.ForOp) and all(isinstance(inner, PASSING) for inner in op.walk())


def _is_before(value: SSAValue, place: Operation) -> bool:
    """Whether a value is known at a place."""
    owner = value.owner
    return (
        isinstance(owner, Block)
        or owner.parent is not place.parent
        or owner.is_before_in_block(place)
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


def _around(body: Block, kind: type[Operation]) -> scf.IfOp | None:
    branches = [op for op in holding(body.ops, kind) if isinstance(op, scf.IfOp)]
    return branches[-1] if branches else None


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
    free = _free_at_first(stream)
    clone_slice([op for op in stream.head if op not in free], stream.first(), stream.loop)
    for place in stream.places:
        clone_slice(stream.head, _of_a_program(stream, place), place)
    for op in stream.head:
        if isinstance(op, HEAD):
            erase(op)


def _free_at_first(stream: Stream) -> set[Operation]:
    """Waits of the head that find a stage free in the first program: nobody has filled it yet."""
    ahead = [op for op in block_of(stream.loop).ops if op.is_before_in_block(stream.loop)]
    used = {v for op in ahead for inner in op.walk() for v in inner.operands}
    found, filled = set[Operation](), Counter[SSAValue]()
    for op in stream.head:
        if isinstance(op, threads.MbarrierWait) and is_for_room(op) and op.barriers not in used:
            filled[op.barriers] += 1
            if filled[op.barriers] <= type_of(op.barriers, BarriersType).stages:
                found.add(op)
    return found


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
    body = loop.after_region.block
    last = _around(body, threads.DotAsync)
    if last is None or not (head := _head_before(last)):
        return None
    ends = [_last_wait(region.block) for region in last.regions]
    if any(isinstance(end, threads.DotWait) and end.pending.value.data for end in ends):
        return None
    needed = set(defining_slice([v for op in head for v in op.operands], body))
    stream = Stream(loop, last, [op for op in body.ops if op in needed or op in head], ends)
    if stream.passes:
        # these wait for what may be loaded when the last dots' stages are free
        stream.places = [_behind(end) if isinstance(end, threads.DotWait) else end for end in ends]
    return stream


def _behind(end: threads.DotWait) -> Operation:
    """What follows a wait for dots and the arrivals that release what these have read."""
    return next_of([end, *freed(end)][-1])


def _head_before(branch: scf.IfOp) -> list[Operation]:
    """What a program does up to the commit of its first dots: waits, and the dots."""
    ops: list[Operation] = []
    for op in block_of(branch).ops:
        if isinstance(op, threads.DotWait) or op is branch:
            break
        if isinstance(op, FIRST) and not (isinstance(op, threads.Fence) and op.kind.data != "dot"):
            ops.append(op)
    while ops and not isinstance(ops[-1], threads.DotCommit):
        ops.pop()
    return ops


def _last_wait(block: Block) -> Operation:
    """The last wait for dots of a block; its end where there is none."""
    waits = [op for op in block.ops if isinstance(op, threads.DotWait)]
    return waits[-1] if waits else terminator_of(block)


def _ahead(stream: Stream) -> None:
    """The consumers."""
    loop, head = stream.loop, stream.head
    dots = [op.result for op in head if isinstance(op, threads.DotAsync)]
    passed = [r for op in stream.passes for r in op.results]
    first = dict(stream.first())
    clone_slice(head, first, loop)
    turns = any(isinstance(op, threads.Turn) for op in block_of(loop).ops)
    ways = [_head_at(place, stream, [*dots, *passed], len(dots), turns) for place in stream.places]
    given = with_results(stream.branch, ways)
    for old, new in zip(passed, given[len(dots) :], strict=True):
        old.replace_all_uses_with(new)
    loop = rebuild_while(loop, [first[dot] for dot in dots])
    body = loop.after_region.block
    terminator_of(body).operands = [*yielded_by(body), *given[: len(dots)]]
    for old, new in zip(dots, body.args[-len(dots) :], strict=True):
        old.replace_all_uses_with(new)
    for op in [*stream.passes, *(op for op in reversed(head) if isinstance(op, FIRST))]:
        erase(op)
    after(loop, threads.DotWait(0, loop.results[-len(dots) :]))


def _head_at(
    place: Operation, stream: Stream, asked: list[SSAValue], count: int, turns: bool
) -> list[SSAValue]:
    """The next program's head in a way through the branch; what stands there for some values, of
    which so many are the head's dots.
    """
    _keep_constants(place)
    known = stream.next(place)
    clone_slice(stream.head, known, place)
    found = [known[v] for v in asked]
    if not isinstance(place, threads.DotWait):
        return found
    if turns:
        _take_turn(place, count)
    n = len(place.args)
    ready = [True] * n + [False] * count
    both = before(place, threads.DotWait(count, [*place.args, *found[:count]], ready))
    replace(place, list(both.results[:n]))
    return [*both.results[n:], *found[count:]]


def _keep_constants(place: Operation) -> None:
    """Tiles of constants that a way yields are made before the dots in flight there."""
    end = terminator_of(block_of(place))
    for i, v in enumerate(end.operands):
        if isinstance(v.owner, tile.Constant) and isinstance(v.type, TileType):
            end.operands[i] = before(place, v.owner.clone()).results[0]


def _take_turn(place: threads.DotWait, ahead: int) -> None:
    """The last dots, and those ahead that stand behind them, are a turn of a warpgroup's."""
    ops = block_of(place).ops
    fences = [op for op in ops if isinstance(op, threads.Fence) and op.kind.data == "dot"]
    before(fences[-1 - ahead], threads.Turn("begin"))
    before(place, threads.Turn("end"))
