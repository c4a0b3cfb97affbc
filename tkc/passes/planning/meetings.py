"""How many warps a program has whose steps wait for one another: loops in which threads meet for
what they need when they meet again, and chains of small dots, each of which multiplies what the one
before has made. Loads cannot run ahead of such steps, so that a program takes the longer of

    issuing       all its instructions: more warps repeat what each computes of short tiles, and
                  read again operands that others read, too
    waiting       what its steps wait for one another, its warps at barriers among it, divided by
                  the programs that are there beside it: as many as registers allow

and of moving what it reads and writes, all of which overlap as far as those of rows do
(`Moving.overlap` of the device). Warps that have lines of their own do not meet, where nothing
takes elements of several lines together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2, prod

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.fragments import Mma
from tkc.ir.rewrite import loop_of, loops_of
from tkc.ir.target import Target
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import made_of, reached, tile_type, tiles, yielded_by
from tkc.passes import PassContext
from tkc.passes.analysis.access import bytes_of, tile_of
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import LOADS, WRITES, Kinds
from tkc.passes.planning import demands
from tkc.passes.planning.bandwidth import held_at_once, norm
from tkc.passes.planning.numbers import Numbers
from tkc.passes.planning.pressure import COLLECTIVES, demand, made_of_dots
from tkc.passes.planning.program import Program
from tkc.passes.planning.splits import bound_to_rows, instruction_of, split_of

COLUMNS = 8  # of a result that an instruction of the tensor cores gives
BARRIERS_OF_A_DOT = 2  # before an operand is written to shared memory, and after
WORDS_AT_ONCE = 4  # of an operand that a thread gets out of shared memory


# ---- which programs
@remembered
def meets_in_turn(kernel: tile.Kernel) -> bool:
    """Whether threads meet in a loop for what they need when they meet there again."""
    return any(_needs_itself(op) for op in kernel.walk() if isinstance(op, COLLECTIVES))


def _needs_itself(op: Operation) -> bool:
    """Whether an operation reads what it has made in an earlier iteration of its loop."""
    loop = loop_of(op)
    if loop is None:
        return False
    before = dict(_carried(loop))

    def behind(value: SSAValue) -> Iterable[SSAValue]:
        if value in before:
            return (before[value],)
        return made_of(value) if loop.is_ancestor(value.owner) else ()

    return any(value.owner is op for value in reached(op.operands, behind))


def _carried(loop: scf.ForOp | scf.WhileOp) -> Iterator[tuple[SSAValue, SSAValue]]:
    """What a loop carries: arguments of its blocks, each with what that was before."""
    if isinstance(loop, scf.ForOp):
        yield from zip(loop.body.block.args[1:], yielded_by(loop.body.block), strict=True)
        return
    first, second = loop.before_region.block, loop.after_region.block
    yield from zip(first.args, yielded_by(second), strict=True)
    yield from zip(second.args, yielded_by(first)[1:], strict=True)


@remembered
def multiplies_in_turn(kernel: tile.Kernel) -> bool:
    """Whether dots multiply what dots have made, and no loop has loads to hide."""
    made, ops = made_of_dots(kernel), list(kernel.walk())
    if any(isinstance(op, (tile.Load, tile.LoadPointers)) and loop_of(op) for op in ops):
        return False
    return any(isinstance(op, tile.Dot) and {op.a, op.b} & made for op in ops)


# ---- which lines are apart
class Lines:
    """The axes of a kernel's tiles, of which some are one: element i along each belongs together.
    Lines along others are apart where no operation takes elements along the axis together.
    """

    def __init__(self, kernel: tile.Kernel):
        self._parent: dict[tuple[SSAValue, int], tuple[SSAValue, int]] = {}
        self._met: list[tuple[SSAValue, int]] = []
        self._kinds = Kinds()
        for op in kernel.walk():
            self._enter(op)
        self._roots = {self._find(axis) for axis in self._met}

    def apart(self, value: SSAValue) -> int:
        """Lines of a tile that are apart from one another."""
        t = tile_type(value)
        axes = [self._find((value, axis)) for axis in range(t.rank)]
        return prod(
            n
            for axis, n in zip(axes, t.extents, strict=True)
            if axis not in self._roots and axes.count(axis) == 1
        )

    def _find(self, axis: tuple[SSAValue, int]) -> tuple[SSAValue, int]:
        root = axis
        while (up := self._parent.get(root, root)) != root:
            root = up
        if root != axis:
            self._parent[axis] = root
        return root

    def _tie(self, one: SSAValue, other: SSAValue, axes: Iterable[tuple[int, int]]) -> None:
        """Makes axes of two tiles of data one, where they are as long."""
        if not all(isinstance(v.type, TileType) and not self._kinds.cheap(v) for v in (one, other)):
            return
        for a, b in axes:
            if tile_type(one).extents[a] == tile_type(other).extents[b]:
                self._parent[self._find((one, a))] = self._find((other, b))

    def _meet(self, value: SSAValue, axes: Iterable[int]) -> None:
        self._met += [(value, axis) for axis in axes]

    def _enter(self, op: Operation) -> None:
        match op:
            case scf.ForOp() | scf.WhileOp():  # what it begins with moves once
                after = (
                    op.body.block.args[1:]
                    if isinstance(op, scf.ForOp)
                    else op.after_region.block.args
                )
                for pair in (*_carried(op), *zip(op.results, after, strict=True)):
                    self._tie_all(pair)
            case scf.IfOp():
                for region in op.regions:
                    for block in region.blocks:
                        for pair in zip(yielded_by(block), op.results, strict=True):
                            self._tie_all(pair)
            case tile.Dot():
                self._enter_dot(op)
            case tile.Transpose():
                turned = enumerate(op.permutation.get_values())
                self._tie(op.arg, op.result, ((before, at) for at, before in turned))
            case tile.Reshape():
                self._enter_reshape(op)
            case tile.Reduce():
                self._enter_reduction(op)
            case _:
                self._enter_other(op)

    def _tie_all(self, values: Sequence[SSAValue]) -> None:
        for one, other in pairwise(tiles(values)):
            rank = tile_type(one).rank
            if rank == tile_type(other).rank:
                self._tie(one, other, ((axis, axis) for axis in range(rank)))

    def _enter_other(self, op: Operation) -> None:
        """Element by element, or along an axis."""
        values = [*tiles(op.operands), *tiles(op.results)]
        self._tie_all(values)
        if isinstance(op, COLLECTIVES):
            last = tile_type(values[0]).rank - 1
            at = last if isinstance(op, tile.Sort) else op.axis.value.data
            for value in values:
                self._meet(value, (at,))

    def _enter_reduction(self, op: tile.Reduce) -> None:
        at = op.axis.value.data
        self._tie_all(op.args)
        for arg in op.args:
            self._meet(arg, (at,))
            for result in tiles(op.results):
                kept = [axis for axis in range(tile_type(arg).rank) if axis != at]
                self._tie(arg, result, zip(kept, range(len(kept)), strict=True))

    def _enter_dot(self, op: tile.Dot) -> None:
        self._tie_all((op.acc, op.result))
        last = tile_type(op.acc).rank - 1
        batch = [(axis, axis) for axis in range(last - 1)]
        self._tie(op.a, op.result, [*batch, (last - 1, last - 1)])
        self._tie(op.b, op.result, [*batch, (last, last)])
        self._meet(op.a, (last,))
        self._meet(op.b, (last - 1,))

    def _enter_reshape(self, op: tile.Reshape) -> None:
        """Axes stay that others of one element stand between; else lines lie across others."""
        long = [
            [axis for axis, n in enumerate(tile_type(v).extents) if n > 1]
            for v in (op.arg, op.result)
        ]
        extents = [
            [tile_type(v).extents[axis] for axis in axes]
            for v, axes in zip((op.arg, op.result), long, strict=True)
        ]
        if extents[0] == extents[1]:
            self._tie(op.arg, op.result, zip(*long, strict=True))
        else:
            self._meet(op.arg, long[0])
            self._meet(op.result, long[1])


@remembered
def _lines_of(kernel: tile.Kernel) -> Lines:
    return Lines(kernel)


# ---- what steps cost
@dataclass(frozen=True)
class Product:
    """A dot of the tensor cores: its instruction, and the warps that share its rows and columns."""

    instruction: Mma
    split: tuple[int, int]


@dataclass
class _Work:
    """What one warp does of a run of operations, and how long it waits for others meanwhile."""

    demand: demands.Demand
    meeting: float = 0.0

    @property
    def busy(self) -> float:
        """Clocks of the quarter that the warp runs in."""
        return max([self.demand.issue, *self.demand.pipes.values()])

    @property
    def alone(self) -> float:
        return self.busy + self.demand.chain + self.meeting


def clocks(
    kernel: tile.Kernel, warps: int, products: Mapping[tile.Dot, Product], target: Target
) -> float:
    """Of a multiprocessor, for a program of so many warps among many. products: its dots."""
    runs: dict[Operation | None, list[Operation]] = {}
    for op in kernel.walk():
        runs.setdefault(loop_of(op), []).append(op)
    known, lines, made = Numbers(kernel, None), _lines_of(kernel), made_of_dots(kernel)
    times, waiting, issuing = target.device.moving, 0.0, 0.0
    for loop, ops in runs.items():
        trips = prod(known.trips(x) for x in ([*loops_of(loop), loop] if loop else []))
        work = _Work(demands.of(ops, target.engines, warps))
        for op in ops:
            if isinstance(op, COLLECTIVES):
                sharing = warps / lines.apart(tiles(op.operands)[0])
                work.meeting += _meeting(sharing, target)
            elif isinstance(op, tile.Dot) and op in products:
                _multiply(op, products[op], warps, made, work, target)
        issuing += trips * work.busy * warps / 4
        waiting += trips * work.alone
    waiting += times.begin + times.latency
    beside = held_at_once(demand(kernel) / (32 * warps), warps, target)
    return norm(times.overlap, issuing, waiting / beside, _copying(kernel, known, target))


def _copying(kernel: tile.Kernel, known: Numbers, target: Target) -> float:
    """Clocks of a multiprocessor in which what a program reads and writes is moved."""
    times, rate = target.device.moving, target.memory / target.clock / target.multiprocessors
    clocks = 0.0
    for op in kernel.walk():
        if not isinstance(op, (*LOADS, *WRITES)) or tile_of(op) is None:
            continue
        size = bytes_of(op) * prod(map(known.trips, loops_of(op)))
        if isinstance(op, WRITES):
            clocks += times.written * size / rate
        else:
            clocks += size / (rate if program_axes(op.operands) else times.fabric)
    return clocks


def _meeting(sharing: float, target: Target) -> float:
    """Clocks in which so many warps meet."""
    return target.device.moving.meeting * log2(2 * sharing) if sharing > 1 else 0.0


def _multiply(
    op: tile.Dot,
    product: Product,
    warps: int,
    made: set[SSAValue],
    work: _Work,
    target: Target,
) -> None:
    """Adds what one warp does for a dot: its instructions, and how it gets its operands. What dots
    have made is rounded, and passes through shared memory; all warps meet for what those beside it
    have made of its rows, or those below it of its columns.
    """
    e, mma, (down, across) = target.engines, product.instruction, product.split
    *batch, m, n = tile_type(op.acc).extents
    k = tile_type(op.a).extents[-1] * prod(batch)
    rows, columns = ceil(m / (mma.m * down)) * mma.m, ceil(n / (COLUMNS * across)) * COLUMNS
    times = 3 if op.precision.data == "tf32x3" else 1
    number = times * rows // mma.m * columns // COLUMNS * ceil(k / mma.k)
    rate = target.tensor * 16 / mma.bits / 4 * (target.costs.mma_sync if target.wgmma else 1)
    work.demand.add("tensor", number, number * 2 * mma.m * COLUMNS * mma.k / rate)
    for value, held, others in ((op.a, rows, across), (op.b, columns, down)):
        words = held * k * bits(element_of(value.type)) / 32 / 32
        read = words / WORDS_AT_ONCE
        if value in made:
            written = tile_type(value).size / (32 * warps)
            work.demand.add("alu", times * words, times * words * e.alu, "round")
            read += written / WORDS_AT_ONCE
            work.meeting += BARRIERS_OF_A_DOT * _meeting(warps, target) * (others > 1)
        work.demand.add("lsu", read, read * e.lsu)
    work.demand.chain += e.shared_latency + e.result


def fewest_that_multiply(
    program: Program,
    fewer: Sequence[int],
    usual: int,
    context: PassContext,
    say: Callable[[str], None],
) -> int:
    """Warps of a program whose dots tensor cores compute: fewer than usual, where dots multiply
    what dots have made and those take less.
    """
    if not multiplies_in_turn(program.kernel):
        return usual
    rows = any(map(bound_to_rows, program.dots))

    def price(warps: int) -> float:
        products = {}
        for dot in program.dots:
            instruction = instruction_of(dot, context.target.capability)[0]
            assert instruction is not None
            products[dot] = Product(instruction, split_of(dot, instruction, warps, rows))
        return clocks(program.kernel, warps, products, context.target)

    return cheapest(fewer, price, usual, context, say)


def fewest_that_meet(
    kernel: tile.Kernel,
    fewer: Sequence[int],
    usual: int,
    context: PassContext,
    say: Callable[[str], None],
) -> int:
    """Warps of a program without dots: fewer than usual, where threads meet in a loop for what they
    need when they meet there again and those take less.
    """
    if not meets_in_turn(kernel):
        return usual
    return cheapest(fewer, lambda w: clocks(kernel, w, {}, context.target), usual, context, say)


def cheapest(
    counts: Iterable[int],
    price: Callable[[int], float],
    usual: int,
    context: PassContext,
    say: Callable[[str], None],
) -> int:
    """Of numbers of warps, and the usual one, that which costs least. Of those that the model
    cannot tell from it, the number that the user suggests, or the usual one.
    """
    prices = {n: price(n) for n in {*counts, usual}}
    least = min(prices, key=lambda n: prices[n])
    most = prices[least] * (1 + context.target.device.moving.error)
    alike = [n for n, each in prices.items() if each <= most]
    suggested = context.options.suggested_warps
    chosen = next((n for n in (suggested, usual) if n in alike), least)
    if chosen != usual:
        say(
            f"{chosen} warps instead of {usual}{', as suggested' * (usual in alike)}: steps wait"
            f" for one another, and take {prices[chosen]:.0f} clocks of a multiprocessor instead"
            f" of {prices[usual]:.0f}"
        )
    return chosen
