"""stream-operands: dots whose operands shared memory does not hold twice walk along k together, a
part of k at a time, so that copies run ahead of them.

    %a = tile.load %x[%m, 0] : tile<64x128xbf16>
    %b = tile.load %y[0, %n] : tile<128x128xf32>
    %c = tile.load %z[%n, 0] : tile<64x128xbf16>
    %d = tile.dot %a, cast %b, %zero
    %e = tile.dot %a, transpose %c, %nothing

After:

    for %k = 0 to 128 step 32, %sum = %zero, %other = %nothing:
      %p = tile.load %x[%m, %k] : tile<64x32xbf16>
      %q = tile.load %y[%k, %n] : tile<32x128xf32>
      %r = tile.load %z[%n, %k] : tile<64x32xbf16>
      yield tile.dot %p, cast %q, %sum; tile.dot %p, transpose %r, %other

A program that loads once what it multiplies needs all of it in shared memory, and what the next
program multiplies beside it, if copies are to run while it computes; so does an iteration of a
loop. Of parts a ring has several stages in the same room. What is loaded for these dots is loaded
beside them, and read by nothing else, and all of them have the same k.

Done where there are warp roles only so. (Where there are some as it is, with one stage of each
block, a loop of parts gains nothing.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.layout import WARP
from tkc.ir.plan import Plan
from tkc.ir.rewrite import (
    Builder,
    before,
    clone_slice,
    defining_slice,
    erase,
    erase_dead,
    following,
    replace,
    stamp,
)
from tkc.ir.scratch import scratch_of
from tkc.ir.values import (
    ancestor,
    block_of,
    index_of,
    is_side_effect_free,
    operations_in,
    owner_op,
    reached,
    tile_type,
    tiles,
)
from tkc.passes import PassContext
from tkc.passes.analysis.alias import Overlaps, apart, unseen, writes
from tkc.passes.analysis.trips import trips
from tkc.passes.analysis.values import VIEWS, is_computed_by
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut, operands_along_k
from tkc.passes.cuts.parts import Part, loop_over_parts
from tkc.passes.plan import kernel_of
from tkc.passes.planning.operands import simple
from tkc.passes.trials import planned, put_in_place

PARTS = 64, 32  # of k: rows of so many elements are what swizzles and instructions are made for
WORD = 4  # bytes of a register
STAGES = 4  # of parts that shared memory has room for: a ring runs ahead
# of shared memory, what is loaded leaves less than as much again for results, and for operands that
# threads write there: only a plan tells whether two stages fit
SHARE = 3


@dataclass(frozen=True)
class Stream:
    """Dots of one block that walk along k together. at: the operation before which they do; moved:
    what they take, and is computed behind it; late: those dots that begin with zeros, and whose
    accumulator is added where they stood, as it is not there before.
    """

    dots: tuple[tile.Dot, ...]
    cut: Cut
    at: Operation
    moved: tuple[Operation, ...]
    late: tuple[tile.Dot, ...]

    @property
    def k(self) -> int:
        return tile_type(self.dots[0].a).extents[-1]

    @property
    def bytes_loaded(self) -> int:
        """Of all of k."""
        return _bytes(self.cut.loads)

    @property
    def bytes_summed(self) -> int:
        """Of the accumulators."""
        return sum(tile_type(dot.acc).bytes for dot in self.dots)

    @property
    def loop(self) -> scf.ForOp | None:
        """That which does all of these dots in each of its iterations."""
        around = self.dots[0].parent_op()
        return around if isinstance(around, scf.ForOp) else None

    @property
    def is_alone(self) -> bool:
        """Whether the kernel does these dots, or a loop that adds up each of them, and no more."""
        loop = self.loop
        if loop is None:
            return isinstance(self.dots[0].parent_op(), tile.Kernel)
        mine = {*self.dots, *self.cut.loads, loop.body.block.last_op}
        others = [op for op in loop.body.block.ops if op not in mine]
        adds_up = len(loop.results) == len(self.dots) and all(simple(dot) for dot in self.dots)
        return adds_up and loop.lb.type == i32 and all(map(_is_pure, others))


def run(module: ModuleOp, context: PassContext) -> None:
    """Cuts what a plan with roles then copies ahead, where there is none with roles as it is."""
    options = context.options
    if not context.target.wgmma or options.roles == "one" or options.num_stages == 1:
        return
    if not _streams(module, context):
        return
    as_it_is, _ = planned(module, context)
    if as_it_is is not None and as_it_is.roles != "one":
        return
    trial = module.clone()
    streams = _streams(trial, context)
    sums = max(stream.bytes_summed for stream, _ in streams)
    said = [_walk(stream, size) for stream, size in streams]
    made, why_not = planned(trial, context)
    if why_not := _why_not(made, sums, context) or why_not:
        context.decisions.append(f"stream-operands: not done: {why_not}")
        return
    put_in_place(kernel_of(module), kernel_of(trial))
    context.decisions += said


def _why_not(plan: Plan | None, sums: int, context: PassContext) -> str:
    """Why dots with so many bytes of accumulators should not walk together by a plan; empty if they
    should, or if it has no roles.
    """
    if plan is None or plan.roles == "one":
        return ""
    if plan.stages < 2:
        return "copies would not run ahead"
    each, most = sums // (WARP * WORD * plan.warps), context.target.assembler.straight_live
    return "" if each <= most else f"registers hold {most} of their accumulators' {each}"


# ---- what is walked
def _streams(module: ModuleOp, context: PassContext) -> list[tuple[Stream, int]]:
    """The dots that could walk along k together, and how much of it a part has."""
    kernel = kernel_of(module)
    room = context.target.shared_bytes - max(context.lack.values(), default=0) - scratch_of(kernel)
    every = _bytes(_loads_of(operations_in(kernel, tile.Dot)))
    found = list[tuple[Stream, int]]()
    for block in dict.fromkeys(block_of(dot) for dot in operations_in(kernel, tile.Dot)):
        dots = [op for op in block.ops if isinstance(op, tile.Dot)]
        whole = _bytes(load for load in _loads_of(dots) if load.parent is block)
        stages = SHARE if block is kernel.body.block else 2
        if stages * whole + every - whole > room:
            found += _streams_of(dots, block, room - every, context)
    return found


def _streams_of(
    dots: Sequence[tile.Dot], block: Block, room: int, context: PassContext
) -> Iterator[tuple[Stream, int]]:
    """Those of the dots of a block, beside so many bytes and what they have loaded as it is."""
    for k in dict.fromkeys(tile_type(dot.a).extents[-1] for dot in dots):
        alike = [dot for dot in dots if tile_type(dot.a).extents[-1] == k]
        stream = _stream(alike, block, context)
        if stream is None or not stream.is_alone:
            continue
        if size := _part(stream, room + stream.bytes_loaded):
            yield stream, size


def _part(stream: Stream, room: int) -> int:
    """How much of k a part has, of which so many bytes hold STAGES; 0 where none is."""
    fitting = (
        size
        for size in PARTS
        if size < stream.k
        and stream.k % size == 0
        and STAGES * size * stream.bytes_loaded <= room * stream.k
    )
    return next(fitting, 0)


def _stream(dots: Sequence[tile.Dot], block: Block, context: PassContext) -> Stream | None:
    """Those of some dots with the same k that can walk along it together; None where none can."""
    chosen = [dot for dot in dots if tile_type(dot.acc).rank == 2 and _cut([dot]) is not None]
    while chosen:
        kept = _independent(chosen, block)
        if kept == chosen:
            if (found := _placed(chosen, block, context)) is not None:
                return found
            kept = chosen[:-1]
        chosen = kept
    return None


def _independent(dots: Sequence[tile.Dot], block: Block) -> list[tile.Dot]:
    """Those of some dots that multiply no other one's result, and load for nothing else."""
    behind = {op for dot in dots for op in (dot, *following(dot, block.ops))}
    return [
        dot
        for dot in dots
        if behind.isdisjoint((dot.a.owner, dot.b.owner))
        and all(_is_read_by(load, dots) for load in _loads_of([dot]))
    ]


def _cut(dots: Sequence[tile.Dot]) -> Cut | None:
    """What has to be cut so that dots walk along k; None where that is no blocks of memory, as they
    are or element by element.
    """
    try:
        cut = Cut.of_needs(pair for dot in dots for pair in operands_along_k(dot))
    except NotCut:
        return None
    made = [owner_op(value) for value, _ in cut.needs]
    if any(isinstance(op, tile.Dot | tile.Reduce | tile.LoadPointers) for op in made):
        return None
    blocks = all(
        isinstance(op, tile.Load) and op.mask is None and op.parent is dot.parent
        for op in cut.loads
        for dot in dots
    )
    return cut if blocks and cut.loads else None


def _loads_of(dots: Iterable[tile.Dot]) -> set[Operation]:
    """The blocks that operands of dots are computed of, element by element."""

    def behind(value: SSAValue) -> Sequence[SSAValue]:
        op = value.owner
        if isinstance(op, Block | tile.Load | tile.Dot) or op.regions:
            return ()
        return tiles(op.operands)

    made = reached((v for dot in dots for v in (dot.a, dot.b)), behind)
    return {v.owner for v in made if isinstance(v.owner, tile.Load)}


def _bytes(loads: Iterable[Operation]) -> int:
    return sum(tile_type(load.results[0]).bytes for load in loads)


def _is_read_by(load: Operation, dots: Sequence[tile.Dot]) -> bool:
    """Whether these dots alone read a block, or what is computed of it element by element."""
    work, seen = [load.results[0]], set[SSAValue]()
    while work:
        value = work.pop()
        for use in value.uses:
            op = use.operation
            if isinstance(op, tile.Dot):
                if op not in dots or use.index > 1:
                    return False
            elif not isinstance(op, VIEWS) and not is_computed_by(op.__class__):
                return False
            elif op.results[0] not in seen:
                seen.add(op.results[0])
                work.append(op.results[0])
    return True


def _placed(dots: Sequence[tile.Dot], block: Block, context: PassContext) -> Stream | None:
    """Dots of a block, walking together where the last of them stands if their results are used
    behind it, or else where the first one does, if what they multiply can be there; None where
    neither is.
    """
    if (cut := _cut(dots)) is None:
        return None
    first, last = dots[0], dots[-1]
    users = [ancestor(use.operation, block) for dot in dots for use in dot.result.uses]
    is_behind = all(user is not None and last.is_before_in_block(user) for user in users)
    at = last if is_behind else first

    def moved_for(values: Iterable[SSAValue]) -> list[Operation]:
        found = defining_slice(values, block)
        return [op for op in found if op is at or at.is_before_in_block(op)]

    late = tuple(dot for dot in dots if not all(map(_is_pure, moved_for([dot.acc]))))
    taken = [*cut.wholes, *(dot.acc for dot in dots if dot not in late)]
    moved = tuple(moved_for(taken))
    can = all(map(_is_pure, moved))
    can = can and all(_may_stand(load, at, context.overlaps) for load in cut.loads)
    return Stream(tuple(dots), cut, at, moved, late) if can else None


def _is_pure(op: Operation) -> bool:
    """Whether an operation that a dot takes may stand before other dots: it is none itself."""
    return is_side_effect_free(op) and not op.regions and not isinstance(op, tile.Dot)


def _may_stand(load: Operation, at: Operation, overlaps: Overlaps) -> bool:
    """Whether a load of a block gives the same before another operation of it, which stands behind
    it or before it.
    """
    if load.is_before_in_block(at):
        return unseen(load, at, overlaps)
    between = (
        inner
        for op in block_of(load).ops
        if (op is at or at.is_before_in_block(op)) and op.is_before_in_block(load)
        for inner in op.walk()
    )
    return not any(writes(op) and not apart(load, op, overlaps) for op in between)


# ---- walking
def _walk(stream: Stream, size: int) -> str:
    """Puts a loop over parts of k in place of dots, and says so."""
    said = (
        f"stream-operands: {stream.bytes_loaded} bytes for {len(stream.dots)} dots have no second"
        f" stage: k = {stream.k} in parts of {size}, for which copies run ahead"
    )
    if stream.loop is None:
        _walk_once(stream, size)
    else:
        _walk_in_turn(stream, size, stream.loop)
    return said


def _dots_of(stream: Stream, part: Part, totals: Sequence[SSAValue], at: Operation) -> list:
    """The sums with a part of k, from those before."""
    found = list[SSAValue]()
    for dot, total in zip(stream.dots, totals, strict=True):
        a, b = (part.of(operand, axis, at) for operand, axis in operands_along_k(dot))
        found.append(before(at, tile.Dot(a, b, total, dot.precision.data)).result)
    return found


def _walk_once(stream: Stream, size: int) -> None:
    """Of dots of no loop."""
    dots, block = stream.dots, block_of(stream.at)
    for op in stream.moved:
        op.detach()
        before(stream.at, op)

    def write(
        start: SSAValue, n: int, totals: Sequence[SSAValue], anchor: Operation
    ) -> list[SSAValue]:
        return _dots_of(stream, Part(stream.cut, start, n), totals, anchor)

    begin = [
        before(stream.at, tile.Constant(0, dot.acc.type)).result if dot in stream.late else dot.acc
        for dot in dots
    ]
    sums = loop_over_parts(stream.at, stream.k, size, begin, write)
    for dot, total in zip(dots, sums, strict=True):
        whole = before(dot, CLASSES["add"](dot.acc, total)).result if dot in stream.late else total
        replace(dot, [whole])
    erase_dead(block)
    for load in stream.cut.loads:
        erase(load)


def _walk_in_turn(stream: Stream, size: int, loop: scf.ForOp) -> None:
    """Of dots of a loop: it takes the parts of one iteration after those of the other."""
    build, parts = Builder(loop), stream.k // size
    end = build.mul(trips(build, loop.lb, loop.ub, loop.step), parts)
    body = Block(arg_types=[i32, *(v.type for v in loop.iter_args)])
    new = scf.ForOp(build.number(0), end, build.number(1), loop.iter_args, Region(body))
    new = stamp(before(loop, new), loop)
    body.add_op(last := stamp(scf.YieldOp(), loop))
    within = Builder(last)
    turn = within.floordiv(body.args[0], parts)
    counter = within.add(loop.lb, within.mul(turn, loop.step))
    start = within.mul(within.sub(body.args[0], within.mul(turn, parts)), size)
    part = Part(stream.cut, start, size)
    part.copies = dict(zip(loop.body.block.args, (counter, *body.args[1:]), strict=True))
    mine = {*stream.dots, *stream.cut.loads, loop.body.block.last_op}
    whole = [op for op in loop.body.block.ops if op not in mine and not _takes_any(op, stream)]
    clone_slice(whole, part.copies, last)
    places = [index_of(dot.acc) - 1 for dot in stream.dots]
    sums = _dots_of(stream, part, [body.args[1 + i] for i in places], last)
    last.operands = [
        total for _, total in sorted(zip(places, sums, strict=True), key=lambda x: x[0])
    ]
    replace(loop, new.results)
    erase_dead(body)


def _takes_any(op: Operation, stream: Stream) -> bool:
    """Whether an operation of a loop is made of what is loaded in parts."""
    return any(op in following(load, block_of(load).ops) for load in stream.cut.loads)
