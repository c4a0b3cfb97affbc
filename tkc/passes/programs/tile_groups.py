"""Tile groups: the blocks of a cluster take neighbours along axis 0, or along both axes, and a
block with co-resident programs (co_resident.py) takes neighbours along axis 0. A tile group has one
place in the order of programs (order.py), from which each of its programs derives its own:

    cluster 2 x 1, place 3, 5         %m = 3·2 + cluster_rank         %n = 5
    cluster 2 x 2, place 3, 5         %m = 3·2 + cluster_rank mod 2   %n = 5·2 + cluster_rank / 2
    three co-resident, place 3, 5,    %m = 3·3 - 1                    %n = 5
    a padding tile before the first   where the group begins; its members: co_resident.py

The launch is one-dimensional, and so are its clusters: one of 2 x 2 has four blocks in a row
(clusters.py). A cluster that splits each program (`cluster_split`) counts as one block. Where the
grid ends inside a group, a padding tile computes and stores nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects import scf
from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder, before, only_if, replace
from tkc.ir.types import TileType, like
from tkc.ir.values import operations_in, reached, terminator_of
from tkc.passes import PassContext
from tkc.passes.analysis.alias import unwritten
from tkc.passes.analysis.program_axes import made_through_loops
from tkc.passes.analysis.values import in_workspace
from tkc.passes.programs.clusters import place_in

# atomic operations by pointers have one role, which has no padding tiles
EFFECTS = (
    tile.Store,
    tile.AtomicBlock,
    tile.StorePointers,
    tile.Print,
    tile.Assert,
)
BY_A_PRODUCER = ("tma", "cp_async", "broadcast")  # paths of loads that other threads make


@dataclass(frozen=True)
class Grid:
    """The kernel's grid, its programs counted in tile_groups: rows along axis 0, columns along axis
    1, and the neighbours that a row has on all other axes. deep: there is an axis 2 (of layers),
    along which no tile group extends.
    """

    rows: SSAValue
    columns: SSAValue
    others: SSAValue
    deep: bool

    @staticmethod
    def of(
        build: Builder, ends: tuple[SSAValue, SSAValue], group: tuple[int, int], deep: bool
    ) -> Grid:
        """ends: of the grid, in programs, along the axes along which a tile group has so many."""
        rows, columns = (
            end if size == 1 else build.up(end, size) for end, size in zip(ends, group, strict=True)
        )
        return Grid(
            rows, columns, build.mul(columns, build(tile.NumPrograms(2))) if deep else columns, deep
        )

    def layer(self, build: Builder, neighbour: SSAValue) -> list[SSAValue]:
        """Which layer a neighbour is in; of a grid without any none."""
        return [build.floordiv(neighbour, self.columns)] if self.deep else []

    def column(self, build: Builder, neighbour: SSAValue, layer: list[SSAValue]) -> SSAValue:
        return build.sub(neighbour, build.mul(layer[0], self.columns)) if layer else neighbour


@dataclass(frozen=True)
class TileGroups:
    """A cluster's shape and this block's ranks along its axes; how many members a block has
    co_resident, and how many padding tiles are ahead of the first program: beside the shortest
    ones, where programs differ in length.
    """

    cluster: tuple[int, int]
    ranks: tuple[SSAValue, ...]
    members: int
    ahead: SSAValue | None

    @staticmethod
    def of(build: Builder, plan: Plan, grid: Grid, rows: SSAValue, uneven: bool) -> TileGroups:
        """rows: programs along axis 0. uneven: they differ in length."""
        ranks = place_in(build, plan.cluster) if plan.cluster != (1, 1) else ()
        return TileGroups(
            plan.cluster,
            ranks,
            plan.members,
            (
                build.sub(build.mul(grid.rows, plan.members), rows)
                if plan.members > 1 and uneven
                else None
            ),
        )

    def own(self, build: Builder, place: Sequence[SSAValue]) -> list[SSAValue]:
        """A program's ids, from its tile group's: of members the first one's."""
        place = list(place)
        for axis, (size, rank) in enumerate(zip(self.cluster, self.ranks, strict=False)):
            if size > 1:
                place[axis] = build.add(build.mul(place[axis], size), rank)
        if self.members > 1:
            place[0] = build.mul(place[0], self.members)
        if self.ahead is not None:
            place[0] = build.sub(place[0], self.ahead)
        return place

    def real(
        self, build: Builder, place: Sequence[SSAValue], ends: tuple[SSAValue, SSAValue]
    ) -> SSAValue | None:
        """Whether a block's program is in the grid, which ends there, and not a padding tile; None
        where it is for certain.
        """
        inside = [
            build.lt(at, end)
            for size, at, end in zip(self.cluster, place, ends, strict=False)
            if size > 1
        ]
        return reduce(build.and_, inside) if inside else None


def guard_effects(
    body: Block, real: SSAValue, padded: Collection[SSAValue], context: PassContext
) -> None:
    """What a program does has no effect where it is a padding tile, and reads nothing by address:
    that may lie outside of everything. padded: program ids that may be outside the grid; of arrays
    that they index, a padding tile has the first. Of that, and of blocks that every program reads,
    its own threads read nothing where a program of the grid writes it meanwhile.
    """
    reads = [*_loads_of_the_first(body, real, padded), *_loads_by_all(body, padded)]
    read_only_if(real, dict.fromkeys(reads), context)
    for op in [
        op
        for op in body.walk()
        if isinstance(op, EFFECTS) and not (isinstance(op, tile.Store) and in_workspace(op))
    ]:
        only_if(real, op)  # a padding tile's part in the workspace is read by itself alone
    for load in _unbounded_loads(body):
        _masked(load, real)
    for assume in operations_in(body, tile.Assume):
        true = before(assume, tile.Constant(1, i1)).result
        # nothing was promised of a padding tile
        assume.operands[0] = Builder(assume).select(real, assume.condition, true)
    for loop in operations_in(body, scf.WhileOp):
        if not any(_by_a_producer(load, context) for load in operations_in(loop, tile.Load)):
            # it may wait for a number that a padding tile does not read
            end = terminator_of(loop.before_region.block)
            end.operands[0] = Builder(end).and_(end.operands[0], real)


def read_only_if(
    condition: SSAValue, loads: Iterable[tile.LoadPointers | tile.Load], context: PassContext
) -> None:
    """Where a condition does not hold, threads that compute read nothing that some program may
    write: that program may be under way.
    """
    for load in loads:
        if not _by_a_producer(load, context) and not unwritten(load, context.overlaps):
            _masked(load, condition)


def _by_a_producer(load: tile.LoadPointers | tile.Load, context: PassContext) -> bool:
    return context.plan is not None and context.plan.load(load).path in BY_A_PRODUCER


def _loads_of_the_first(
    body: Block, real: SSAValue, padded: Collection[SSAValue]
) -> list[tile.Load]:
    """Gives padding tiles the first of what programs index by their ids; the loads of that."""
    found: list[tile.Load] = []
    for view in operations_in(body, tile.View):
        for i, index in enumerate(view.offsets):
            if _depends_on(index, padded):
                build = Builder(view)
                zero = build(tile.Constant(0, index.type))
                view.operands[1 + i] = build.select(real, index, zero)
                found += _loads_of(view)
    return found


def _loads_by_all(body: Block, padded: Collection[SSAValue]) -> list[tile.Load]:
    """The loads of blocks that stand at one place for all programs of these ids."""
    loads = operations_in(body, tile.Load)
    return [op for op in loads if not any(_depends_on(v, padded) for v in op.offsets)]


def _loads_of(array: tile.View) -> Iterator[tile.Load]:
    """The loads of blocks of a view, and of views of it."""
    for use in array.result.uses:
        if isinstance(use.operation, tile.Load):
            yield use.operation
        elif isinstance(use.operation, tile.View):
            yield from _loads_of(use.operation)


def _depends_on(value: SSAValue, values: Collection[SSAValue]) -> bool:
    """Whether a scalar is computed from some values, in loops too."""
    return any(v in values for v in reached([value], made_through_loops))


def _unbounded_loads(body: Block) -> list[tile.LoadPointers | tile.Load]:
    """What reads by address, or from an array that is not known to end."""
    return [
        op
        for op in body.walk()
        if isinstance(op, tile.LoadPointers) or isinstance(op, tile.Load) and is_unbounded(op.array)
    ]


def _masked(load: tile.LoadPointers | tile.Load, real: SSAValue) -> None:
    """A load that reads nothing where a program lies outside the grid: its addresses may be outside
    everything.
    """
    build, kind = Builder(load), like(load.result.type, i1)
    mask = build(tile.Splat(real, kind)) if isinstance(kind, TileType) else real
    mask = build.and_(load.mask, mask) if load.mask else mask
    if isinstance(load, tile.LoadPointers):
        new: Operation = tile.LoadPointers(load.pointers, mask, load.other)
    else:
        extents = load.extents.get_values()
        new = tile.Load(load.array, load.offsets, extents, mask, load.other, load.result.type)
    new.attributes |= load.attributes
    replace(load, [build(new)])
