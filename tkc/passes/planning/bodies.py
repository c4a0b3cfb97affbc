"""A loop's body as a graph of dots and the vector work between them, with clocks: the input of the
search for stages (stages.py), and what rotate-loops clones.

Vector work is grouped by the dots that it depends on (of its iteration, or of the one before by a
loop-carried value) and those that depend on it. What follows from the induction variable alone
(addresses, indices, loads of what the loop does not change, views of these) belongs to no group: it
is rematerialised for each use. Operations with effects, and loads of what the loop changes, stay
where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.plan import Plan
from tkc.ir.target import Target
from tkc.ir.types import TileType, bits
from tkc.ir.values import (
    ancestor,
    defining_op,
    index_of,
    is_side_effect_free,
    owner_op,
    tile_type,
    yielded_by,
)
from tkc.passes import PassContext
from tkc.passes.analysis.alias import unchanged
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import LEAVES, LOADS, VIEWS, is_computed_by
from tkc.passes.planning import demands
from tkc.passes.planning.operands import made_by_converter
from tkc.passes.planning.program import Program
from tkc.passes.planning.stages import (
    MAX_SEARCH_STEPS,
    Body,
    Crossing,
    Group,
    Schedule,
    ordered,
    search,
)


@dataclass(frozen=True)
class WarpCosts:
    """What a loop costs the warps of a program, whose dots are wgmma's or mma.sync's."""

    target: Target
    warps: int
    wgmma: bool

    def clocks(self, dot: tile.Dot) -> float:
        """Of a warpgroup's share of a dot, on the tensor cores."""
        *_, m, n = tile_type(dot.acc).extents
        rate = (
            self.target.tensor
            * 16
            / max(8, bits(tile_type(dot.a).element))
            * (1 if self.wgmma or not self.target.wgmma else self.target.costs.mma_sync)
        )
        return (
            2
            * tile_type(dot.acc).size
            // (m * n)
            * -(-m // 16)
            * 16
            * -(-n // 8)
            * 8
            * tile_type(dot.a).extents[-1]
            / rate
            / max(1, self.warps / 4)
        )

    def registers(self, value: SSAValue) -> int:
        return -(-value.type.bytes // (128 * self.warps)) if isinstance(value.type, TileType) else 1


class LoopGraph:
    """What a loop's body consists of. `groups`: the operations of each group, in program order;
    `anew`: what is rematerialised for each use.
    """

    def __init__(self, loop: scf.ForOp, overlaps: tuple[tuple[int, ...], ...]):
        self.loop, self.block = loop, loop.body.block
        self.ops = [op for op in self.block.ops if op is not self.block.last_op]
        self.place = {op: i for i, op in enumerate(self.ops)}
        self.yielded = list(yielded_by(self.block))
        self.anew = self._anew(overlaps)
        self.kept = {
            op
            for op in self.ops
            if not is_side_effect_free(op)
            and not (isinstance(op, LOADS) and _readable(op, loop, overlaps))
        }
        signatures: dict[object, list[Operation]] = {}
        for op, signature in self._signatures().items():
            signatures.setdefault(signature, []).append(op)
        self.groups = sorted(signatures.values(), key=lambda ops: self.place[ops[0]])
        self.group_of = {op: i for i, ops in enumerate(self.groups) for op in ops}

    def reads(self, op: Operation) -> list[SSAValue]:
        """What an operation uses, what those inside it use of outside included."""
        return [
            v
            for inner in op.walk()
            for v in inner.operands
            if v.owner is self.block
            or isinstance(v.owner, Operation)
            and v.owner.parent is self.block
        ]

    def _anew(self, overlaps) -> set[Operation]:
        """What each group computes for itself: cheap tiles, views, scalars, and unchanged loads, of
        nothing else that the iteration computes; and what it finds computed by the converter.
        """
        anew, cheap = set[Operation](), set[Operation]()
        converted = made_by_converter(self.loop)
        for op in self.ops:
            reads = self.reads(op)
            if op.regions or not all(self._is_given(v, anew) for v in reads):
                continue
            if _is_cheap(op, {v.owner for v in reads if isinstance(v.type, TileType)}, cheap):
                cheap.add(op)
            if op in converted or self._is_anew(op, op in cheap, overlaps):
                anew.add(op)
        return anew

    def _is_anew(self, op: Operation, is_cheap: bool, overlaps) -> bool:
        """Of an operation of which all that it reads is given."""
        if isinstance(op, LOADS):
            return isinstance(op, tile.Load) and unchanged(op, self.loop, overlaps)
        if not is_side_effect_free(op) or isinstance(op, tile.Dot):
            return False
        makes_tile = any(isinstance(r.type, TileType) for r in op.results)
        return is_cheap or isinstance(op, VIEWS) or not makes_tile

    def _is_given(self, value: SSAValue, anew: set[Operation]) -> bool:
        """Whether a value of the body is its loop's variable, or made anew."""
        if isinstance(value.owner, Block):
            return index_of(value) == 0
        return value.owner in anew

    def _signatures(self) -> dict[Operation, object]:
        """Of each operation, the dots above and below it: those alike are one group."""
        above, below = self._dots_above(), self._dots_below()
        return {
            op: op if isinstance(op, tile.Dot) else (above[op], below[op])
            for op in self.ops
            if op not in self.anew
        }

    def _dots_above(self) -> dict[Operation, frozenset]:
        """The dots that each operation follows from, of its iteration (0) and the last one (1)."""
        above: dict[Operation, frozenset] = {}
        carried: dict[SSAValue, frozenset] = {}

        def of(value: SSAValue) -> frozenset:
            if isinstance(value, BlockArgument):
                return carried.get(value, frozenset())
            own = {(value.owner, 0)} if isinstance(value.owner, tile.Dot) else frozenset()
            return above.get(owner_op(value), frozenset()) | own

        for _ in range(2):  # the second time with what the iteration before hands on
            for op in self.ops:
                above[op] = frozenset().union(*map(of, self.reads(op)))
            ends = [of(v) if v.owner in self.place else frozenset() for v in self.yielded]
            carried = {
                a: frozenset((dot, 1) for dot, d in found if d == 0)
                for a, found in zip(self.block.args[1:], ends, strict=False)
            }
        return above

    def _dots_below(self) -> dict[Operation, frozenset]:
        """The dots of its iteration that follow from each operation."""
        below: dict[Operation, frozenset] = {}
        for op in reversed(self.ops):
            users = {self._here(use.operation) for r in op.results for use in r.uses}
            below[op] = frozenset().union(
                *(
                    below[u] | ({u} if isinstance(u, tile.Dot) else frozenset())
                    for u in users
                    if u is not None and u in self.place
                )
            )
        return below

    def _here(self, op: Operation) -> Operation | None:
        """The operation of the body around another."""
        return ancestor(op, self.block)

    def edges(self) -> set[tuple[int, int, int]]:
        found = set()
        for op, i in self.group_of.items():
            for v in self.reads(op):
                source, distance = (
                    (self.yielded[v.index - 1].owner, 1)
                    if isinstance(v, BlockArgument) and v.index
                    else (v.owner, 0)
                )
                if isinstance(source, Block):
                    continue
                if (j := self.group_of.get(source)) is not None and (j, distance) != (i, 0):
                    found.add((j, i, distance))
        order = [self.group_of[op] for op in self.ops if op in self.kept]
        return found | {(a, b, 0) for a, b in zip(order, order[1:], strict=False) if a != b}

    def _made_by(self, value: SSAValue) -> int:
        """The group that makes a value; -1 where none does: what a loop hands on may be another
        value that it carries.
        """
        made = defining_op(value, Operation)
        return -1 if made is None else self.group_of.get(made, -1)

    def body(self, costs: WarpCosts) -> Body | None:
        """The graph; None where effects, which keep their order, would go round in circles."""
        edges = self.edges()
        if is_circular(edges, len(self.groups)):
            return None
        users: dict[SSAValue, set[int]] = {}
        for op, i in self.group_of.items():
            for v in self.reads(op):
                users.setdefault(v, set()).add(i)
        crossings = [
            Crossing(
                costs.registers(v),
                -1 if isinstance(v, BlockArgument) else self.group_of[owner_op(v)],
                frozenset(found),
                (self._made_by(self.yielded[v.index - 1]) if isinstance(v, BlockArgument) else -1),
            )
            for v, found in users.items()
            if v is not self.block.args[0] and v.owner not in self.anew
        ]
        loads = []
        for op in self.ops:
            if isinstance(op, LOADS) and isinstance(op.results[0].type, TileType):
                loads.append(
                    (
                        op.results[0].type.bytes / costs.target.engines.fabric,
                        frozenset(self._readers(op)),
                    )
                )
        return Body(
            tuple(self._group(ops, costs) for ops in self.groups),
            frozenset(edges),
            tuple(crossings),
            tuple(loads),
            costs.target.engines.result,
            chained=self._chained() if costs.wgmma else frozenset(),
        )

    def _chained(self) -> frozenset[tuple[int, int]]:
        """Dots, and those that alone read their result, as the sum that they add to."""
        return frozenset(
            (self.group_of[before], self.group_of[dot])
            for dot in self.group_of
            if isinstance(dot, tile.Dot)
            and isinstance(before := dot.acc.owner, tile.Dot)
            and before in self.group_of
            and len(list(before.result.uses)) == 1
        )

    def _readers(self, op: Operation) -> set[int]:
        if op in self.group_of:
            return {self.group_of[op]}
        return {
            i
            for r in op.results
            for use in r.uses
            if (u := self._here(use.operation)) is not None and u is not self.block.last_op
            for i in self._readers(u)
        }

    def _group(self, ops: list[Operation], costs: WarpCosts) -> Group:
        kept = any(
            op in self.kept or isinstance(inner, tile.Dot) and inner is not op
            for op in ops
            for inner in op.walk()
        )
        if isinstance(dot := ops[0], tile.Dot):
            return Group(
                shape(dot),
                tensor=costs.clocks(dot),
                fixed=kept or any(self._bound(v) for v in (dot.a, dot.b)),
            )
        demand = demands.of(
            [inner for op in ops for inner in op.walk()], costs.target.engines, costs.warps
        )
        return Group(demand.what or "vector work", vector=demand.alone, fixed=kept)

    def _bound(self, operand: SSAValue) -> bool:
        """Whether an operand shows a block that only its own iteration can load: there is no
        carrying it to the next, in registers.
        """
        while isinstance(operand.owner, VIEWS):
            operand = operand.owner.arg
        return (
            isinstance(operand.owner, LOADS)
            and operand.owner.parent is self.block
            and operand.owner not in self.anew
        )

    def late(self, dots: list[tile.Dot]) -> frozenset[int]:
        """The groups that run late where these dots do: what needs them in their iteration too."""
        edges, late = self.edges(), {self.group_of[dot] for dot in dots}
        while more := {b for a, b, d in edges if d == 0 and a in late} - late:
            late |= more
        return frozenset(late)


def _readable(op: Operation, loop: scf.ForOp, overlaps) -> bool:
    return isinstance(op, tile.Load) and unchanged(op, loop, overlaps)


def is_circular(edges: set[tuple[int, int, int]], count: int) -> bool:
    """Whether groups of one iteration need one another."""
    left = set(range(count))
    while free := {
        i for i in left if not any(b == i and d == 0 and a in left for a, b, d in edges)
    }:
        left -= free
    return bool(left)


def shape(dot: tile.Dot) -> str:
    return "x".join(map(str, (*tile_type(dot.acc).extents, tile_type(dot.a).extents[-1])))


@dataclass(frozen=True)
class Found:
    """What the search says of a loop: the dots that run late, and all schedules, the best first."""

    late: tuple[tile.Dot, ...]
    schedules: tuple[Schedule, ...]
    graph: LoopGraph

    def name(self, schedule: Schedule) -> str:
        dots = [
            shape(ops[0])
            for i, ops in enumerate(self.graph.groups)
            if i in schedule.late and isinstance(ops[0], tile.Dot)
        ]
        return f"{' and '.join(dots)} one iteration late" if dots else "nothing late"

    def said(self) -> str:
        """The best, the loop as it is, and the runner-up."""
        best = self.schedules[0]
        asis = next(s for s in self.schedules if not s.late)
        others = [s for s in self.schedules[1:] if s.late]
        return (
            f"{self.name(best)}: {best.clocks:.0f} clocks an iteration of a warpgroup alone,"
            f" {best.carried} registers more carried; {asis.clocks:.0f} as it is"
            + "".join(
                f"; runner-up {self.name(s)}: {s.clocks:.0f}, {s.carried} registers"
                for s in others[:1]
            )
        )


@remembered
def best_stages(
    loop: scf.ForOp, costs: WarpCosts, overlaps: tuple[tuple[int, ...], ...]
) -> Found | None:
    """The schedule of a loop of several dots; None where there is no choice."""
    if sum(isinstance(op, tile.Dot) for op in loop.body.block.ops) < 2:
        return None
    graph = LoopGraph(loop, overlaps)
    if (body := graph.body(costs)) is None:
        return None
    schedules = search(body)
    late = tuple(
        ops[0]
        for i, ops in enumerate(graph.groups)
        if i in schedules[0].late and isinstance(ops[0], tile.Dot)
    )
    return Found(late, tuple(schedules), graph)


def _is_cheap(op: Operation, tiles: set, cheap: set[Operation]) -> bool:
    """Whether a tile is computed of no data. tiles: where those that it reads are computed."""
    return isinstance(op, LEAVES) or is_computed_by(op.__class__) and tiles <= cheap


@dataclass(frozen=True)
class IterationClocks:
    """Of an iteration of a program's loops with dots: of a warpgroup alone, and of all warpgroups
    the vector work and the dots. together: where warpgroups meet in it, so that they do the one and
    the other at once, and none under another's dots.
    """

    alone: float
    vector: float
    tensor: float
    together: float

    @staticmethod
    def of(program: Program, plan: Plan, context: PassContext) -> IterationClocks:
        """By a plan with roles."""
        late = [dot for i, dot in enumerate(program.dots) if i in plan.rotate]
        alone = vector = tensor = together = 0.0
        for loop in dict.fromkeys(dot.parent_op() for dot in program.dots):
            if not isinstance(loop, scf.ForOp):
                continue
            graph = LoopGraph(loop, context.overlaps)
            mine = graph.late([dot for dot in late if dot.parent_op() is loop])
            # what one warpgroup would do that had all of the work
            whole = graph.body(WarpCosts(context.target, 4, True))
            part = graph.body(WarpCosts(context.target, plan.warps, True))
            if whole is None or part is None:
                continue
            alone += _in_order(part, mine)
            together += _in_order(whole, mine)
            vector += sum(group.vector for group in whole.groups)
            tensor += sum(group.tensor for group in whole.groups)
        return IterationClocks(alone, vector, tensor, together)


def _in_order(body: Body, late: frozenset[int]) -> float:
    """Clocks of a loop's body where these groups are late."""
    return ordered(replace(body, free=not late), late, [MAX_SEARCH_STEPS])[1]
