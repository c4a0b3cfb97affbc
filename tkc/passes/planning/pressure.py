"""What a program without dots holds in registers, before anything has a layout: over all threads,
in words of 32 bits.

pressure      of all tiles that are live together, each whole from where it is made (but for what a
              loop reads that was made before it); the limits of plans are in these units
demand        of those that must wait for something: what one element-wise operation, reduction or
              store takes at once is computed as it is consumed. A plan in which demand fills the
              registers spills (`fits`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, OpResult, SSAValue

from tkc.ir import tile
from tkc.ir.rewrite import loops_of
from tkc.ir.scratch import scratch_of
from tkc.ir.types import ArrayType, PointerType, TileType, element_of, is_bool
from tkc.ir.values import (
    ancestor,
    holds,
    last_inside,
    operations_in,
    owner_op,
    tile_type,
    yielded_by,
)
from tkc.passes import PassContext
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import POINTWISE, VIEWS, Kinds, is_computed_by

MAX_REGISTERS_PER_THREAD = 255
TILE_REGISTER_SHARE = 3 / 4  # of a thread's registers; with more, ptxas spills
COLLECTIVES = tile.Reduce, tile.Scan, tile.Sort, tile.Gather
WORDS_OF_ARRAY = 3  # its address, and an extent or a stride
CARRIED_REGISTERS = 8  # of a loop's other loop-carried values


def carried_words(dots: Iterable[tile.Dot]) -> int:
    """32-bit words of the tiles that the loops round a dot carry, at most: accumulators, and sums
    beside them, which are there at every moment of it.
    """
    return max((sum(map(_carried, loops_of(dot))) for dot in dots), default=0)


def _carried(loop: Operation) -> int:
    values = loop.iter_args if isinstance(loop, scf.ForOp) else loop.operands
    return sum(-(-v.type.bytes // 4) for v in values if isinstance(v.type, TileType))


def held_by(words: int, warps: int) -> bool:
    """Whether the registers of so many warps hold so many words."""
    return words <= 32 * warps * MAX_REGISTERS_PER_THREAD


@remembered
def pressure(kernel: tile.Kernel) -> int:
    """32-bit registers that hold the tiles of a kernel at the worst moment, over all threads. What
    is made anew where it is wanted (indices, masks, views) takes none; a narrow float takes a whole
    register as soon as something is computed with it."""
    kinds = Kinds()
    return _peak(kernel.body.block, frozenset(), cache(lambda value: _words(value, kinds)), kinds)


@remembered
def demand(kernel: tile.Kernel, elsewhere: frozenset[SSAValue] = frozenset()) -> int:
    """What of it must be there at once, however the threads go through their elements. elsewhere:
    tiles that are not in registers.
    """
    kinds, meetings = Kinds(), Meetings(kernel)
    return _peak(
        kernel.body.block,
        frozenset(),
        cache(
            lambda value: (
                0 if value in elsewhere or _passing(value, meetings) else _words(value, kinds)
            )
        ),
        kinds,
        True,
    )


@remembered
def results_of_dots(kernel: tile.Kernel) -> int:
    """Bytes of the results of dots, and of what is computed of them element by element, that are
    live together at the worst moment."""
    made = made_of_dots(kernel)
    return _peak(
        kernel.body.block,
        frozenset(),
        lambda value: value.type.bytes if value in made and isinstance(value.type, TileType) else 0,
        Kinds(),
    )


def made_of_dots(kernel: tile.Kernel) -> set[SSAValue]:
    """The results of dots, and what is computed of them element by element, or carried by loops."""
    made: set[SSAValue] = set()
    before, every = -1, list(kernel.walk())
    while len(made) > before:  # once more for what a loop carries back
        before = len(made)
        for op in every:
            if type(op) is tile.Dot or (
                not made.isdisjoint(op.operands) and isinstance(op, POINTWISE)
            ):
                made.update(op.results)
            elif type(op) is scf.ForOp:
                body = op.body.block
                for together in zip(
                    op.iter_args, body.args[1:], yielded_by(body), op.results, strict=True
                ):
                    if not made.isdisjoint(together):
                        made.update(together[1:])
    return made


def most_scalars(dots: Iterable[tile.Dot]) -> int:
    """Words of a thread for what is no tile in the loop of dots that reads the most."""
    loops = {dot.parent_op() for dot in dots}
    return max((scalars(loop) for loop in loops if isinstance(loop, scf.ForOp)), default=0)


def scalars(loop: Operation) -> int:
    """Words of a thread for what a loop reads from before it that is no tile: addresses, extents,
    indices and conditions.
    """
    inside = {
        value
        for op in loop.walk()
        for block in (b for region in op.regions for b in region.blocks)
        for value in (*block.args, *(r for inner in block.ops for r in inner.results))
    }
    read = {operand for op in loop.walk() for operand in op.operands} - inside
    return sum(
        WORDS_OF_ARRAY if isinstance(value.type, ArrayType | PointerType) else 1
        for value in read
        if not isinstance(value.type, TileType) and not isinstance(value.owner, tile.Constant)
    )


def together(loads: Sequence[tuple[Operation, int]], kernel: tile.Kernel) -> int:
    """Of loads, each with the bytes that its result takes: what is live together at the worst
    moment, from the load to the last use, through element-wise operations and views.
    """
    position = _positions(kernel)
    changes: list[tuple[int, int]] = []
    for load, size in loads:
        changes += [(position[load], size), (_end_of_use(load, position) + 1, -size)]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


@remembered
def _positions(kernel: tile.Kernel) -> dict[Operation, int]:
    """Of each operation, how many come before it."""
    return {op: i for i, op in enumerate(kernel.walk())}


@remembered
def scratch(kernel: tile.Kernel) -> int:
    """scratch_of, remembered."""
    return scratch_of(kernel)


@remembered
def reductions(kernel: tile.Kernel) -> list[tile.Reduce]:
    """The reductions of a kernel."""
    return operations_in(kernel, tile.Reduce)


def _end_of_use(load: Operation, position: dict[Operation, int]) -> int:
    """Where in program order the last use of a load's result is; one inside a loop that the load is
    not in ends with the loop.
    """
    end, seen, left = position[load], set(load.results), list(load.results)
    while left:
        for use in left.pop().uses:
            around = ancestor(use.operation, load.parent) or use.operation
            end = max(end, position[last_inside(around)])
            if is_computed_by(use.operation.__class__):
                new = set(use.operation.results) - seen
                seen |= new
                left += new
    return end


def room(warps: int, looped: bool, context: PassContext) -> int:
    """Registers of a thread of so many warps that tiles may take."""
    return (
        int(
            TILE_REGISTER_SHARE
            * min(
                MAX_REGISTERS_PER_THREAD,
                context.target.registers // (32 * warps),
                context.options.maxnreg or MAX_REGISTERS_PER_THREAD,
            )
        )
        - CARRIED_REGISTERS * looped
    )


def fits(kernel: tile.Kernel, warps: int, blocks: int, context: PassContext) -> bool:
    """Whether so many threads, in each of so many blocks, hold what a kernel demands without a
    spill. Blocks whose size the user left free are of one that fills a multiprocessor: where it has
    room for 1536 threads, one of 1024 leaves a third of them idle.
    """
    if context.options.num_warps is None and context.target.threads % (32 * warps):
        return False
    return -(-demand(kernel) // (32 * warps * blocks)) <= room(
        warps, holds(kernel, scf.ForOp), context
    )


def _words(value: SSAValue, kinds: Kinds) -> int:
    t = value.type
    return (
        -(-t.bytes // 4)
        if isinstance(t, TileType) and not is_bool(element_of(t)) and kinds.data(value)
        else 0
    )


class Meetings:
    """How many operations for which threads meet stand before each operation of a block."""

    def __init__(self, kernel: tile.Kernel):
        self._before: dict[Operation, int] = {}
        for block in (b for op in kernel.walk() for region in op.regions for b in region.blocks):
            met = 0
            for op in block.ops:
                self._before[op] = met
                met += self._is_one(op)

    @staticmethod
    def _is_one(op: Operation) -> bool:
        return bool(op.regions) or isinstance(op, COLLECTIVES)

    def between(self, op: Operation, later: Operation) -> bool:
        """Whether there is one behind an operation and before a later one of its block."""
        return self._before[later] > self._before[op] + self._is_one(op)


def _passing(value: SSAValue, meetings: Meetings) -> bool:
    """Whether a value goes straight into the one operation that uses it, once or several times,
    with nothing between for which threads meet.
    """
    if not isinstance(value, OpResult):
        return False
    op, user = value.op, _single_user(value)
    while isinstance(user, VIEWS):
        user = _single_user(user.result)
    if (
        user is None
        or user.parent is not op.parent
        or not isinstance(user, (*POINTWISE, tile.Reduce, tile.Store, tile.StorePointers))
    ):
        return False
    return not meetings.between(op, user)


def _single_user(value: SSAValue) -> Operation | None:
    """The operation that has all uses of a value, if one has."""
    users = {use.operation for use in value.uses}
    return users.pop() if len(users) == 1 else None


def _roots(value: SSAValue, kinds: Kinds) -> Iterable[SSAValue]:
    """The data that a value, perhaps a view, is read from."""
    while isinstance(value.type, TileType) and kinds.view(value):
        value = owner_op(value).operands[0]
    return (value,)


def _of_scanned(op: Operation) -> bool:
    """Whether a reduction is one of the totals of a scan before it."""
    if not isinstance(op, tile.Reduce):
        return False
    scans = [
        use.operation
        for use in op.args[0].uses
        if isinstance(use.operation, tile.Scan) and use.operation.parent is op.parent
    ]
    return any(
        scan.kind == op.kind and scan.axis == op.axis and scan.is_before_in_block(op)
        for scan in scans
    )


def _peak(
    block: Block,
    live: frozenset[SSAValue],
    size: Callable[[SSAValue], int],
    kinds: Kinds,
    through: bool = False,
) -> int:
    """The most that is live at once in a block beside what lives through it. through: what a loop
    is the last to read is live in all of it.
    """
    ending = _endings(block, live, kinds)
    read = set().union(*ending.values())
    now = set(live) | {a for a in block.args if size(a)}
    peak = held = sum(map(size, now))
    for op in block.ops:
        dying = ending[op] & now
        if op.regions and isinstance(op, (scf.ForOp, scf.WhileOp, scf.IfOp)):
            inner = _live_inside(op, now, dying, through)
            for b in (b for region in op.regions for b in region.blocks):
                peak = max(peak, _peak(b, inner, size, kinds, through))
        now -= dying
        held -= sum(map(size, dying))
        made = {r for r in op.results if r in read and size(r)}
        now |= made
        held += sum(map(size, made))
        beside = _combined_words(op, now) if any(map(size, made)) else 0
        peak = max(peak, held + beside)
    return peak


def _combined_words(op: Operation, now: set[SSAValue]) -> int:
    """What a scan by a function of the user reads, beside its results and what lives on: whatever
    it is made of, it is there as long as elements are combined.
    """
    if not isinstance(op, tile.Scan) or op.kind.data != "combine":
        return 0
    read = (tile_type(arg) for arg in op.args if arg not in now)
    return sum(-(-t.bytes // 4) for t in read)


def _endings(
    block: Block, live: frozenset[SSAValue], kinds: Kinds
) -> defaultdict[Operation, set[SSAValue]]:
    """The values that each operation of a block is the last to read, but for those that live
    through the block.
    """
    last = {
        root: op
        for op in block.ops
        for inner in op.walk()
        # the users of a view read what it is a view of; a total of a scan reads no tile
        if not isinstance(inner, VIEWS) and not _of_scanned(inner)
        for operand in inner._operands
        for root in _roots(operand, kinds)
    }
    ending: defaultdict[Operation, set[SSAValue]] = defaultdict(set)
    for value, op in last.items():
        if value not in live:
            ending[op].add(value)
    return ending


def _live_inside(
    op: Operation, now: set[SSAValue], dying: set[SSAValue], through: bool
) -> frozenset[SSAValue]:
    """What lives through a loop or a branch. now: what is live before it; dying: of this, what it
    is the last to read; through: as of `_peak`.
    """
    if not isinstance(op, scf.ForOp):
        return frozenset(now)
    return frozenset(now - (dying & set(op.operands) if through else dying))
