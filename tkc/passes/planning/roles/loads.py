"""How each load is made: by tensor maps or threads into a ring, by the producer, which broadcasts
it, or by the consumers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.plan import LoadPlan
from tkc.ir.rewrite import is_inside
from tkc.ir.target import LINE
from tkc.ir.types import bits
from tkc.ir.values import owner_op, tile_type
from tkc.passes.analysis.mapped import dense_of_block, narrowed_panel
from tkc.passes.analysis.program_axes import program_axes, sources, ways_to
from tkc.passes.analysis.values import (
    LEAVES,
    LOADS,
    MAX_HELD,
    POINTWISE,
    VIEWS,
    tiles_behind,
)
from tkc.passes.planning.converting import loads_behind
from tkc.passes.planning.gathers import copied_bytes, loaded_by_consumers
from tkc.passes.planning.operands import (
    ADDRESS_REGISTERS,
    partial,
    relaid_loads,
    summed,
    untransposed,
)
from tkc.passes.planning.rings import (
    MAX_RINGS,
    is_filled_by_threads,
    loads_beside,
    pointer_registers,
    rings_of,
    small_load_registers,
)
from tkc.passes.planning.roles.dots import DotExecution
from tkc.passes.planning.roles.memory import Rings
from tkc.passes.planning.roles.multicast import Multicast
from tkc.passes.planning.roles.registers import MAX_OPERAND_REGISTERS, score_registers
from tkc.passes.planning.roles.request import NoRoles, RoleRequest
from tkc.passes.planning.roles.sharing import Sharing


@dataclass(frozen=True)
class RingLoads:
    """The loads that fill each ring, and with which one the producer broadcasts a number."""

    rings: Rings
    broadcast: Mapping[tile.Load, int]

    @staticmethod
    def of(request: RoleRequest, sharing: Sharing, execution: DotExecution) -> RingLoads:
        """Raises NoRoles where there are too many rings."""
        rings = rings_of(
            request.dots, request.relaid, request.converted, execution.late, request.options
        )
        if len(rings) > MAX_RINGS:
            raise NoRoles(
                f"the operands of its dots take {len(rings)} rings, of which threads would carry"
                f" more than {MAX_RINGS} stages and parities (a loop by tkc.range has one)"
            )
        if relaid_both_ways(request):
            raise NoRoles("an operand is relaid as it is for one dot, as its transpose for another")
        broadcast: dict[tile.Load, int] = {}
        if not (request.relaid or request.converted):
            for loop in request.loops:
                broadcast |= loads_beside(
                    loop,
                    rings,
                    execution.late,
                    sharing.members > 1,
                    request.overlaps,
                    request.context.target.shared_bytes,
                )
        if take_several_warps([*_loads_of(rings), *broadcast]):
            raise NoRoles(
                "where an operand lies, or whether it is read, is computed of a tile through shared"
                f" memory (a reduction of at most {MAX_HELD} elements is not)"
            )
        return RingLoads(rings, broadcast)

    def with_rings(self, blocks: Sequence[tile.Load]) -> RingLoads:
        """With a ring more for each of some blocks."""
        more: Rings = [*self.rings, *(list[Operation]([op]) for op in blocks)]
        if not blocks or len(more) > MAX_RINGS or take_several_warps(blocks):
            return self
        return replace(self, rings=more)

    @property
    def ring_of(self) -> dict[Operation, int]:
        """The ring into which each load copies first."""
        numbered = reversed(list(enumerate(self.rings)))
        return {load: number for number, ring in numbered for load in ring}

    def converted_into(self, dot: tile.Dot, request: RoleRequest) -> tuple[int, int]:
        """Which ring the converter fills with a dot's left and right operand; -1: none."""
        last = {op: number for number, ring in enumerate(self.rings) for op in ring}
        both, found = request.sides(dot), [-1, -1]
        for load, is_right in relaid_loads(dot, request.options):
            found[is_right] = last[load]
        for i, operand in enumerate((both.left, both.right)):
            if both.converted[i]:
                found[i] = last[owner_op(untransposed(operand))]
        return found[0], found[1]

    def planned(self, request: RoleRequest, multicast: Multicast) -> tuple[LoadPlan, ...]:
        """Of each load of the program."""
        ring_of = self.ring_of
        converted = {load for made in request.converted for load in loads_behind(made.value)}

        def planned(op: Operation, alone: LoadPlan) -> LoadPlan:
            if isinstance(op, tile.Load) and op in ring_of:
                number = ring_of[op]
                by_threads = is_filled_by_threads(self.rings[number])
                return _copied(op, number, by_threads, request, multicast)
            if isinstance(op, tile.Load) and op in self.broadcast:
                return LoadPlan("broadcast", ring=self.broadcast[op])
            if isinstance(op, LOADS) and (loaded_by_consumers(op) or op in converted):
                return replace(alone, path="registers")
            return alone

        pairs = zip(request.program.loads, request.plan.loads, strict=False)
        return tuple(planned(op, alone) for op, alone in pairs)


def _loads_of(rings: Rings) -> list[tile.Load]:
    return [op for ring in rings for op in ring if isinstance(op, tile.Load)]


def relaid_both_ways(request: RoleRequest) -> bool:
    """Whether a load is relaid in two forms, of which its ring has one."""
    ways: dict[tile.Load, set[bool]] = defaultdict(set)
    for dot in request.dots:
        both = request.sides(dot)
        for load, is_right in relaid_loads(dot, request.options):
            operand = both.right if is_right else both.left
            ways[load].add((untransposed(operand) is operand) != both.swapped)
    return any(len(found) > 1 for found in ways.values())


def take_several_warps(loads: Sequence[tile.Load]) -> bool:
    """Whether the places of blocks, or the loops and branches round their loads, depend on a scalar
    that warps compute together: then no warp alone knows what to copy.
    """
    return any(map(_takes_several_warps, sources_of_places(loads)))


def sources_of_places(loads: Sequence[tile.Load]) -> set[Operation]:
    """On what the places of blocks depend, and the loops and branches round their loads."""
    return sources(v for load in loads for v in (*load.operands, *ways_to(load)))


def _takes_several_warps(op: Operation) -> bool:
    """Whether warps exchange elements for an operation. What a thread can hold, each has."""
    match op:
        case tile.Reduce():
            behind = tiles_behind(op) if tile_type(op.args[0]).rank == 1 else None
            return behind is None or not all(map(_is_held, behind))
        case tile.Extract():
            return tile_type(op.arg).size > 1
    return isinstance(op, (tile.Scan, tile.Sort, tile.Histogram, tile.Gather))


def _is_held(value: SSAValue) -> bool:
    """Whether threads make each element of a tile of what they hold of others at its place."""
    op, t = value.owner, tile_type(value)
    if isinstance(op, VIEWS):
        return max(t.extents) == t.size
    return isinstance(op, (*POINTWISE, *LEAVES, *LOADS))


def _copied(
    op: tile.Load, ring: int, by_threads: bool, request: RoleRequest, multicast: Multicast
) -> LoadPlan:
    """Of a load whose block is copied into a ring."""
    copy = multicast.copies.get(op)
    return LoadPlan(
        "cp_async" if by_threads else "tma",
        copied_bytes(op) if by_threads else 16,
        copy.axis if copy else -1,
        copy.among if copy else (0,),
        ring,
        _kept_in_cache(op, request),
        boxes=copy.boxes if copy else 1,
        fetch=0 if by_threads else _fetched_bytes(op),
        panel=narrowed_panel(op),
    )


def _kept_in_cache(load: Operation, request: RoleRequest) -> str:
    """What a raster reads again as it moves along axis 1 stays in the cache; what it reads but then
    goes first.
    """
    if not request.options.retain or request.plan.raster < 2:
        return ""
    axes = program_axes(load.operands)
    if (0 in axes) == (1 in axes):
        return ""
    return "evict_last" if 0 in axes else "evict_first"


def _fetched_bytes(load: tile.Load) -> int:
    """What lies beside a line of a narrow block is asked for by another program or copy at about
    the same time: read two lines at once, each would be read for both.
    """
    extents, dense = load.extents.get_values(), dense_of_block(load)
    axis = [a for a, n in enumerate(extents) if n >= 0][dense]
    is_narrow = extents[axis] * bits(tile_type(load.result).element) <= 2 * 8 * LINE
    loop = load.parent_op()
    # not what the next iteration loads
    beside = (
        loop is not None
        and not is_inside(load.offsets[axis], loop)
        and program_axes([load.offsets[axis]])
    )
    return LINE if is_narrow and beside else 0


@dataclass(frozen=True)
class SmallLoads:
    """Blocks beside the dots that consumers load. registers: of a thread, for them; busy: of a
    thread, for the rest; early: they are loaded one iteration ahead. pointers: registers of a
    thread for what is loaded by pointers; early_pointers: so is that.
    """

    registers: int
    busy: int
    early: bool
    pointers: int
    early_pointers: bool

    @staticmethod
    def of(
        request: RoleRequest, sharing: Sharing, execution: DotExecution, loads: RingLoads
    ) -> SmallLoads:
        copied = loads.ring_of.keys() | loads.broadcast.keys()
        registers = small_load_registers(request.loops, copied, sharing.groups)
        scored = [dot for dot in request.dots if not summed(dot) and not partial(dot)]
        scores = score_registers(scored, execution.late, sharing.groups)
        busy = execution.registers + scores + ADDRESS_REGISTERS
        most = MAX_OPERAND_REGISTERS[sharing.consumers]
        early = not registers or busy + registers <= most
        of_places = sources_of_places([op for op in copied if isinstance(op, tile.Load)])
        pointers = pointer_registers(request.loops, of_places, sharing.groups)
        together = busy + early * registers + pointers + ADDRESS_REGISTERS
        return SmallLoads(registers, busy, early, pointers, pointers > 0 and together <= most)
