"""Homes: which tiles share one tuple of registers, from a loop's entry through its body to its
exit.

wgmma writes its accumulator in place and forbids copies of it in flight; for other tiles a copy is only slow.  So values that
flow into each other are tied, as long as no two of them are alive at once:

    carried value  <- what the loop yields, its result      dot, dot_async: accumulator -> result      dot_wait: operand -> result
    branch result  <- what each branch yields               element-wise: operand that ends there -> result
    carried value  <- its initial value                     a dot on its way that a `while` carries: all of these at once, or it is an error

An operation writes its result to its home; `Emitter.set` moves what came elsewhere.  A value lives from its definition to its
last use, counting a use inside a loop, of what comes from outside, at the loop's end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.values import registers_of
from tkc.ir import elementwise as ew
from tkc.ir import shared, threads, tile
from tkc.ir.types import PendingType, TileType

ALIASES = (
    tile.Reshape,
    tile.Transpose,
    tile.Slice,
    tile.Concat,
    tile.Broadcast,
    tile.Flip,
    tile.Multiple,
    shared.Convert,
    ew.Bitcast,
)
LOOPS = (scf.ForOp, scf.WhileOp)


def tile_of(value: SSAValue) -> TileType | None:
    t = value.type.tile if isinstance(value.type, PendingType) else value.type
    return t if isinstance(t, TileType) and t.register_layout is not None else None


def in_flight(result: SSAValue) -> bool:
    """Whether a `while` carries a dot that is on its way: it stays where it is, from before the
    loop to behind it.
    """
    return isinstance(result.type, PendingType)


@dataclass
class Lives:
    """When each tile is alive, in points of time: an operation reads at 2k and writes at 2k + 1."""

    start: dict[SSAValue, int] = field(default_factory=dict)
    end: dict[SSAValue, int] = field(default_factory=dict)
    loops: dict[SSAValue, tuple[Operation, ...]] = field(default_factory=dict)
    ends: dict[Operation, int] = field(default_factory=dict)
    held: dict[Operation, list[SSAValue]] = field(default_factory=lambda: defaultdict(list))
    # tiles whose registers an alias shows
    sources: dict[SSAValue, list[SSAValue]] = field(default_factory=dict)
    # the branches that a value is defined in
    paths: dict[SSAValue, tuple[tuple[Operation, int], ...]] = field(default_factory=dict)
    # when a value is used in a branch that it is not defined in, and in which
    uses: dict[SSAValue, list[tuple[int, tuple]]] = field(default_factory=lambda: defaultdict(list))
    clock: int = 0
    path: tuple[tuple[Operation, int], ...] = ()

    def define(self, value: SSAValue, stack: tuple[Operation, ...]) -> None:
        if tile_of(value) is None:
            return
        self.start[value], self.end[value], self.loops[value], self.paths[value] = (
            2 * self.clock + 1,
            2 * self.clock + 2,
            stack,
            self.path,
        )

    def use(self, value: SSAValue, stack: tuple[Operation, ...], late: bool = False) -> None:
        if value not in self.start:
            return
        own = self.loops[value]
        if len(stack) > len(own):
            self.held[stack[len(own)]].append(value)
        end = 2 * self.clock + 2 * late
        if len(self.path) > len(self.paths[value]):
            self.uses[value].append((end, self.path))
        else:
            self.end[value] = max(self.end[value], end)
        for source in self.sources.get(value, ()):
            self.use(source, stack, late)

    def block(self, block: Block, stack: tuple[Operation, ...]) -> None:
        for op in block.ops:
            self.clock += 1
            late = (
                {v for v in op.operands[:2]} if isinstance(op, (tile.Dot, threads.DotAsync)) else ()
            )
            for v in op.operands:
                self.use(v, stack, v in late)
            if isinstance(op, scf.WhileOp):  # its results take what passes the test in every round
                for r in op.results:
                    if not in_flight(r):
                        self.define(r, stack)
            if op.regions:
                inner = (*stack, op) if isinstance(op, LOOPS) else stack
                began, ended, path = self.clock, self.clock, self.path
                for i, region in enumerate(op.regions):
                    if isinstance(op, scf.IfOp):
                        self.clock, self.path = (
                            began,
                            (
                                *path,
                                (op, i),
                            ),
                        )  # one or the other: both begin at the same time
                    for b in region.blocks:
                        for a in b.args:
                            self.define(a, inner)
                        self.block(b, inner)
                    ended = max(ended, self.clock)
                self.clock, self.path = ended + 1, path
                for v in self.held[op]:
                    if len(path) > len(self.paths[v]):
                        self.uses[v].append((2 * self.clock, path))
                    else:
                        self.end[v] = max(self.end[v], 2 * self.clock)
            for r in op.results:
                if not isinstance(op, scf.WhileOp) or in_flight(r):
                    self.define(r, stack)
            if isinstance(op, ALIASES):
                self.sources[op.results[0]] = [v for v in op.operands if tile_of(v) is not None]

    def together(self, x: SSAValue, y: SSAValue) -> bool:
        """Whether two values are ever alive at once."""
        if not _both(self.paths[x], self.paths[y]):
            return False
        return self.start[x] < self.until(y, self.paths[x]) and self.start[y] < self.until(
            x, self.paths[y]
        )

    def until(self, value: SSAValue, path: tuple[tuple[Operation, int], ...] = ()) -> int:
        """When a value ends, for someone in those branches: what another way does with it does not
        matter.
        """
        return max(
            [self.end[value], *(end for end, where in self.uses[value] if _both(where, path))]
        )


def _both(x: tuple[tuple[Operation, int], ...], y: tuple[tuple[Operation, int], ...]) -> bool:
    """Whether two paths can be of one run."""
    for (a, i), (b, j) in zip(x, y, strict=False):
        if a is not b:
            break
        if i != j:
            return False
    return True


class Ties:
    """Union-find over tiles; two classes join if no lives overlap."""

    def __init__(self, lives: Lives):
        self.lives, self.parent, self.members = lives, {}, {}

    def root(self, v: SSAValue) -> SSAValue:
        while (p := self.parent.get(v, v)) is not v:
            v = p
        return v

    def of(self, v: SSAValue) -> list[SSAValue]:
        return self.members.get(self.root(v), [v])

    def tie(self, a: SSAValue, b: SSAValue, by_force: bool = False) -> bool:
        """Ties two values, if they are tiles alike and never alive at once."""
        ra, rb, lives = self.root(a), self.root(b), self.lives
        ta, tb = tile_of(a), tile_of(b)
        if ra is rb:
            return True
        if (
            ta is None
            or tb is None
            or ta.element != tb.element
            or registers_of(ta) != registers_of(tb)
        ):
            return False
        left, right = self.of(ra), self.of(rb)
        if not by_force and any(lives.together(x, y) for x in left for y in right):
            return False
        self.parent[rb] = ra
        self.members[ra] = left + right
        self.members.pop(rb, None)
        return True


def coalesce(e: Emitter, kernel: tile.Kernel) -> None:
    """Fills e.destinations with a register tuple for each class of tied tiles that a loop carries or a dot
    accumulates.
    """
    lives = Lives()
    lives.block(kernel.body.block, ())
    ties, strong = Ties(lives), []
    ops = list(kernel.walk())
    loops = [op for op in ops if isinstance(op, scf.ForOp)]

    def carried(loop):
        return zip(
            loop.body.block.args[1:],
            loop.results,
            loop.body.block.last_op.operands,
            loop.iter_args,
            strict=False,
        )

    for loop in loops:
        for argument, result, _, _ in carried(loop):
            if tile_of(argument) is not None:
                ties.tie(argument, result, by_force=True)
                strong.append(argument)
    flying = [
        values
        for op in ops
        if isinstance(op, scf.WhileOp)
        for values in zip(
            op.before_region.block.args,
            op.after_region.block.args,
            op.results,
            op.after_region.block.last_op.operands,
            op.arguments,
            strict=False,
        )
        if in_flight(values[2])
    ]
    for tested, argument, result, *_ in flying:
        for v in (argument, result):
            ties.tie(tested, v, by_force=True)
        strong.append(tested)
    for op in ops:
        match op:
            case tile.Dot() | threads.DotAsync() if op.acc is not None and op.acc in lives.start:
                strong.append(op.result)
                ties.tie(op.acc, op.result)
            case threads.DotAsync():
                strong.append(op.result)
            case threads.DotWait():
                for a, r in zip(op.args, op.results, strict=False):
                    ties.tie(a, r)
    _in_turn([op for op in ops if isinstance(op, threads.DotAsync) and op.acc is None], ties)
    for loop in loops:
        for argument, _, yielded, _ in carried(loop):
            ties.tie(argument, yielded)
    for tested, _, _, yielded, initial in flying:
        if not ties.tie(tested, yielded) or not ties.tie(tested, initial):
            e.fail("a dot that a loop carries on its way would have to be copied")
    for op in ops:
        if isinstance(op, scf.IfOp) and op.results:
            for region in op.regions:
                for result, v in zip(op.results, region.block.last_op.operands, strict=False):
                    ties.tie(result, v)
    for op in ops:
        if isinstance(op, (ew.Elementwise, ew.Select)):
            for v in op.operands:
                if (
                    v in lives.start
                    and lives.until(v) == lives.start.get(op.result, 0) - 1
                    and ties.tie(v, op.result)
                ):
                    break
    for loop in loops:
        for argument, result, yielded, initial in carried(loop):
            if tile_of(argument) is None:
                continue
            ties.tie(argument, initial)
            if (
                ties.root(argument) is not ties.root(yielded)
                and registers_of(tile_of(argument))[1] >= 8
            ):
                e.notes.append(
                    f"a carried {argument.type} is copied at the end of each iteration: its old"
                    " value is needed beside the new"
                )
    for root in dict.fromkeys(
        ties.root(v) for v in strong
    ):  # in order: the same program, the same text
        members = ties.of(root)
        kind, count = registers_of(tile_of(root))
        home = e.w.many(kind, count)
        e.coalesced.update(home)
        for v in members:
            e.destinations[v] = home


def _in_turn(dots: list[threads.DotAsync], ties: Ties) -> None:
    """Dots of one block that start from nothing take turns in the same registers, where no two are
    alive at once: left apart, the assembler begins the second before the first one's registers are
    read, and has room for both or spills."""
    for i, dot in enumerate(dots):
        for earlier in dots[:i]:
            if earlier.parent is dot.parent and ties.tie(earlier.result, dot.result):
                break
