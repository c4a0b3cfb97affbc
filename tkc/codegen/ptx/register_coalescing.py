"""Register coalescing: which tiles share one tuple of registers, from a loop's entry through its
body to its exit.

wgmma writes its accumulator in place and forbids copies of it in flight; for other tiles a copy is
only slow.  So values that flow into each other share registers, as long as their live ranges do not
overlap and, where a wgmma writes one of them, no two of their readers are equal (equal_readers.py):

    carried value  <- what the loop yields, its result      branch result <- what each branch yields
    carried value  <- its initial value                     dot_wait: operand -> result
    dot, dot_async: accumulator -> result                   element-wise: operand whose live range
    accumulator: operand -> result                          ends there -> result
    a dot in flight that a `while` carries: all of these at once, or it is an error

An operation writes its result to its destination; `Emitter.set` moves what came elsewhere.  A value
is live from its definition to its last use, counting a use inside a loop, of a value from outside,
at the loop's end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.equal_readers import dot_of, read_alike
from tkc.codegen.ptx.values import registers_of
from tkc.ir import elementwise as ew
from tkc.ir import threads, tile
from tkc.ir.registers import ALIASES
from tkc.ir.types import PendingType, TileType
from tkc.ir.values import yielded_by

LOOPS = (scf.ForOp, scf.WhileOp)
MIN_NOTED_REGISTERS = 8  # of a carried tile whose copies are remarked on

Interval = tuple[int, int]  # from a point of time to another, which is not in it
Path = tuple[tuple[Operation, int], ...]  # the branches around an operation: (if, which region)


def tile_of(value: SSAValue) -> TileType | None:
    """The type of a tile in registers, pending or not; None of other values."""
    t = value.type.tile if isinstance(value.type, PendingType) else value.type
    return t if isinstance(t, TileType) and t.register_layout is not None else None


def in_flight(result: SSAValue) -> bool:
    """Whether a `while` carries a dot in flight, or a wait leaves one: it stays where it is, from
    before the loop to behind it.
    """
    return isinstance(result.type, PendingType)


@dataclass
class LiveRanges:
    """When each tile is live, in points of time: an operation reads at 2k and writes at 2k + 1."""

    start: dict[SSAValue, int] = field(default_factory=dict)
    end: dict[SSAValue, int] = field(default_factory=dict)
    loops: dict[SSAValue, tuple[Operation, ...]] = field(default_factory=dict)
    # values from outside that a loop reads
    held: dict[Operation, list[SSAValue]] = field(default_factory=lambda: defaultdict(list))
    # tiles whose registers an alias shows
    sources: dict[SSAValue, list[SSAValue]] = field(default_factory=dict)
    # the branches that a value is defined in
    paths: dict[SSAValue, Path] = field(default_factory=dict)
    # when a value is used in a branch that it is not defined in, and in which
    uses: dict[SSAValue, list[tuple[int, Path]]] = field(default_factory=lambda: defaultdict(list))
    clock: int = 0
    path: Path = ()

    def define(self, value: SSAValue, stack: tuple[Operation, ...]) -> None:
        """A value is written now, inside these loops."""
        if tile_of(value) is None:
            return
        self.start[value], self.end[value] = 2 * self.clock + 1, 2 * self.clock + 2
        self.loops[value], self.paths[value] = stack, self.path

    def use(self, value: SSAValue, stack: tuple[Operation, ...], late: bool = False) -> None:
        """A value is read now; late: until the operation that reads it is complete."""
        if value not in self.start:
            return
        own = self.loops[value]
        if len(stack) > len(own):
            self.held[stack[len(own)]].append(value)
        self._extend(value, 2 * self.clock + 2 * late)
        for source in self.sources.get(value, ()):
            self.use(source, stack, late)

    def _extend(self, value: SSAValue, end: int) -> None:
        if len(self.path) > len(self.paths[value]):
            self.uses[value].append((end, self.path))
        else:
            self.end[value] = max(self.end[value], end)

    def block(self, block: Block, stack: tuple[Operation, ...]) -> None:
        """All operations of a block, inside these loops."""
        for op in block.ops:
            self.clock += 1
            self._operation(op, stack)

    def _operation(self, op: Operation, stack: tuple[Operation, ...]) -> None:
        late = set(op._operands[:2]) if isinstance(op, (tile.Dot, threads.DotAsync)) else ()
        for v in op._operands:
            self.use(v, stack, v in late)
        # the results of a `while` take what passes the test in every round
        before = [r for r in op.results if isinstance(op, scf.WhileOp) and not in_flight(r)]
        for r in before:
            self.define(r, stack)
        if op.regions:
            self._regions(op, stack)
        for r in op.results:
            if r not in before:
                self.define(r, stack)
        if isinstance(op, ALIASES):
            self.sources[op.results[0]] = [v for v in op.operands if tile_of(v) is not None]

    def _regions(self, op: Operation, stack: tuple[Operation, ...]) -> None:
        inner = (*stack, op) if isinstance(op, LOOPS) else stack
        began, ended, path = self.clock, self.clock, self.path
        for i, region in enumerate(op.regions):
            if isinstance(op, scf.IfOp):  # one or the other: both begin at the same time
                self.clock, self.path = began, (*path, (op, i))
            for b in region.blocks:
                for a in b.args:
                    self.define(a, inner)
                self.block(b, inner)
            ended = max(ended, self.clock)
        self.clock, self.path = ended + 1, path
        for v in self.held[op]:
            self._extend(v, 2 * self.clock)

    def overlap(self, x: SSAValue, y: SSAValue) -> bool:
        """Whether two values are ever live at once."""
        if not _compatible(self.paths[x], self.paths[y]):
            return False
        return self.start[x] < self.until(y, self.paths[x]) and self.start[y] < self.until(
            x, self.paths[y]
        )

    def until(self, value: SSAValue, path: Path = ()) -> int:
        """When a value ends, as seen from those branches: what another branch does with it does not
        matter.
        """
        seen = [end for end, where in self.uses[value] if _compatible(where, path)]
        return max([self.end[value], *seen])


def _compatible(x: Path, y: Path) -> bool:
    """Whether two paths can be of one run."""
    for (a, i), (b, j) in zip(x, y, strict=False):
        if a is not b:
            break
        if i != j:
            return False
    return True


class Classes:
    """Union-find over tiles; two classes join if no live ranges overlap."""

    def __init__(self, ranges: LiveRanges):
        self.ranges = ranges
        self.parent: dict[SSAValue, SSAValue] = {}
        self.members: dict[SSAValue, list[SSAValue]] = {}
        # of each class, sorted; None where branches let two of its values be live at one time
        self.intervals: dict[SSAValue, list[Interval] | None] = {}
        self.by_dots: dict[SSAValue, list[SSAValue]] = {}  # of each class, what dots wrote

    def root(self, v: SSAValue) -> SSAValue:
        """The value that stands for a class."""
        while (p := self.parent.get(v, v)) is not v:
            v = p
        return v

    def of(self, v: SSAValue) -> list[SSAValue]:
        """All values of a class."""
        return self.members.get(self.root(v), [v])

    def join(self, a: SSAValue, b: SSAValue, by_force: bool = False) -> bool:
        """Joins two values, if they are tiles of one kind and never live at once."""
        ra, rb = self.root(a), self.root(b)
        ta, tb = tile_of(a), tile_of(b)
        if ra is rb:
            return True
        if ta is None or tb is None or ta.element != tb.element:
            return False
        if registers_of(ta) != registers_of(tb):
            return False
        left, right = self.of(ra), self.of(rb)
        united = _united(self._intervals(ra), self._intervals(rb))
        if not (by_force or united) and any(self.ranges.overlap(x, y) for x in left for y in right):
            return False
        dots = self._by_dots(ra), self._by_dots(rb)
        if not by_force and read_alike(*dots):
            return False
        self.by_dots[ra] = sum(dots, [])
        self.parent[rb] = ra
        left += right
        self.members[ra] = left
        self.members.pop(rb, None)
        self.intervals[ra] = united
        return True

    def _by_dots(self, root: SSAValue) -> list[SSAValue]:
        """The values of a class that dots wrote, which are few: a chain of steps is a class of all
        of them.
        """
        if root not in self.by_dots:
            self.by_dots[root] = [root] if dot_of(root) is not None else []
        return self.by_dots[root]

    def _intervals(self, root: SSAValue) -> list[Interval] | None:
        """When the values of a class are live, as seen from all branches."""
        if root not in self.intervals:
            ends = [end for end, _ in self.ranges.uses.get(root, ())]
            last = max([self.ranges.end[root], *ends])
            self.intervals[root] = [(self.ranges.start[root], last)]
        return self.intervals[root]


def _united(a: list[Interval] | None, b: list[Interval] | None) -> list[Interval] | None:
    """Two sorted lists of disjoint intervals as one; None where some of them meet."""
    if a is None or b is None:
        return None
    many, few = (a, b) if len(a) >= len(b) else (b, a)
    for begin, end in few:
        at = bisect_left(many, (end, 0))
        if at and many[at - 1][1] > begin:
            return None
    for interval in few:
        insort(many, interval)
    return many


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries: the loop's argument, its result, what it yields and begins with.
    test: of a `while`, the argument of the region that tests.
    """

    argument: SSAValue
    result: SSAValue
    yielded: SSAValue
    initial: SSAValue
    test: SSAValue | None = None


def _carried(loop: scf.ForOp) -> Iterator[Carried]:
    body = loop.body.block
    values = zip(body.args[1:], loop.results, yielded_by(body), loop.iter_args, strict=True)
    return (Carried(*each) for each in values if tile_of(each[0]) is not None)


def _carried_dots(loop: scf.WhileOp) -> Iterator[Carried]:
    """The dots in flight that a `while` carries."""
    before, after = loop.before_region.block, loop.after_region.block
    values = zip(
        after.args, loop.results, yielded_by(after), loop.arguments, before.args, strict=False
    )
    return (Carried(*each) for each in values if in_flight(each[1]))


def coalesce(e: Emitter, kernel: tile.Kernel) -> None:
    """Fills e.destinations with a register tuple for each class of tiles that a loop carries or a
    dot accumulates. Raises CompileError where a dot in flight would have to be copied.
    """
    ranges = LiveRanges()
    ranges.block(kernel.body.block, ())
    classes, ops = Classes(ranges), list(kernel.walk())
    carried = [c for op in ops if isinstance(op, scf.ForOp) for c in _carried(op)]
    dots = [c for op in ops if isinstance(op, scf.WhileOp) for c in _carried_dots(op)]
    needed = [*_join_loops(classes, carried, dots), *_join_accumulators(classes, ops)]
    for c in carried:
        classes.join(c.argument, c.yielded)
    for c in dots:
        test = c.test or c.argument
        if not classes.join(test, c.yielded) or not classes.join(test, c.initial):
            e.fail("a dot that a loop carries in flight would have to be copied")
    _join_branches(classes, ops)
    _join_elementwise(classes, ops)
    e.notes += _join_initial(classes, carried)
    # in order: the same program, the same text
    for root in dict.fromkeys(map(classes.root, needed)):
        t = tile_of(root)
        if t is not None:
            registers = e.w.many(*registers_of(t))
            e.coalesced.update(registers)
            e.destinations.update(dict.fromkeys(classes.of(root), registers))


def _join_loops(
    classes: Classes, carried: Sequence[Carried], dots: Sequence[Carried]
) -> Iterator[SSAValue]:
    """Joins what a loop carries with its result; yields the values that need a destination."""
    for c in carried:
        classes.join(c.argument, c.result, by_force=True)
        yield c.argument
    for c in dots:
        test = c.test or c.argument
        for v in (c.argument, c.result):
            classes.join(test, v, by_force=True)
        yield test


def _join_accumulators(classes: Classes, ops: Sequence[Operation]) -> Iterator[SSAValue]:
    """Joins accumulators with the results of dots; yields the values that need a destination."""
    for op in ops:
        match op:
            case tile.Dot() | threads.DotAsync() if op.acc is not None and (
                op.acc in classes.ranges.start
            ):
                yield op.result
                classes.join(op.acc, op.result)
            case threads.DotAsync():
                yield op.result
            case threads.Accumulator():
                classes.join(op.arg, op.result)
            case threads.DotWait():
                for a, r in zip(op.args, op.results, strict=True):
                    classes.join(a, r)
    _take_turns([op for op in ops if isinstance(op, threads.DotAsync) and op.acc is None], classes)


def _take_turns(dots: Sequence[threads.DotAsync], classes: Classes) -> None:
    """Dots of one block that start from nothing take turns in the same registers, where no two are
    live at once: left apart, the assembler begins the second before the first one's registers are
    read, and has room for both or spills.
    """
    for i, dot in enumerate(dots):
        for earlier in dots[:i]:
            if earlier.parent is dot.parent and classes.join(earlier.result, dot.result):
                break


def _join_initial(classes: Classes, carried: Sequence[Carried]) -> Iterator[str]:
    """Joins what loops carry with its initial values; yields remarks on copies that are left."""
    for c in carried:
        classes.join(c.argument, c.initial)
        t = tile_of(c.argument)
        copied = classes.root(c.argument) is not classes.root(c.yielded)
        if copied and t is not None and registers_of(t)[1] >= MIN_NOTED_REGISTERS:
            yield (
                f"a carried {c.argument.type} is copied at the end of each iteration: its old"
                " value is needed beside the new"
            )


def _join_branches(classes: Classes, ops: Sequence[Operation]) -> None:
    """Joins the results of branches with what each branch yields."""
    for op in ops:
        if isinstance(op, scf.IfOp) and op.results:
            for region in op.regions:
                for result, v in zip(op.results, yielded_by(region.block), strict=True):
                    classes.join(result, v)


def _join_elementwise(classes: Classes, ops: Sequence[Operation]) -> None:
    """Joins an element-wise result with the first operand whose live range ends there."""
    ranges = classes.ranges
    for op in ops:
        if not isinstance(op, (ew.Elementwise, ew.Select)):
            continue
        read_at = ranges.start.get(op.result, 0) - 1
        for v in op.operands:
            if v in ranges.start and ranges.until(v) == read_at and classes.join(v, op.result):
                break
