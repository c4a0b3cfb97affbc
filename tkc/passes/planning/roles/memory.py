"""How a block's shared memory is divided: the stages of rings, the buffers of results, what
warpgroups write for one another, and what is left to the L1 cache or to another block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.rewrite import loop_of
from tkc.ir.target import LINE, half_of
from tkc.ir.types import TileType, bits
from tkc.ir.values import ancestor, array_type, first_of, tile_type
from tkc.passes.layouts.epilogue_subtiles import StoredResult, subtile_bytes
from tkc.passes.planning.operands import live_registers
from tkc.passes.planning.pressure import reductions, scratch, together
from tkc.passes.planning.rings import (
    Ring,
    Stages,
    exchanged_bytes,
    fitted,
    least_stages,
    stage_bytes,
    stages_of,
)
from tkc.passes.planning.roles.dots import DotExecution
from tkc.passes.planning.roles.registers import (
    PAIRED_LIVE_REGISTERS,
    PAIRED_THIRD_LIVE_REGISTERS,
)
from tkc.passes.planning.roles.request import NoRoles, RoleRequest
from tkc.passes.planning.roles.results import (
    is_stored_by_map,
    is_stored_by_threads,
    reused_stages,
    subtile_stores,
    why_not_in_turn,
    widest_columns,
)
from tkc.passes.planning.roles.sharing import Sharing, make_operands

# of shared memory and the L1 cache together; of shared memory where the L1 cache needs more than
# all of it leaves
L1_AND_SHARED_BYTES, REDUCED_SHARED_BYTES = 1 << 18, 195 << 10
# for mbarriers and the scheduler's ring: of a loop with one dot, and with several
BARRIER_BYTES = 1024, 1280
SUBTILE_COLUMNS = 64, 32, 16, 8
PAIRED_ROLE_THREADS = 2 * 128  # of a role's warpgroup in each of two blocks

Rings = list[Ring]


@dataclass(frozen=True)
class BlockMemory:
    """How a block's shared memory is divided.

    blocks: that share a multiprocessor. cached: bytes of lines that the L1 cache keeps because the
    loop reads them again, 0 where it has room anyway. stages: of each ring. results: those that
    leave through shared memory. epilogue: as in a plan. columns: of a result that are stored at
    once, at most. subtiles: buffers in turn of each result, of result_bytes in all. reused: loads
    through whose stages results are stored instead. written_stages: of what warpgroups write for
    one another. spare: bytes that are left. The other fields say why not as asked.
    """

    blocks: int
    cached: int
    stages: tuple[int, ...]
    results: list[StoredResult]
    epilogue: str
    columns: int
    why_fewer_columns: str
    subtiles: int
    result_bytes: int
    why_other_subtiles: str
    reused: list[tile.Load]
    written_stages: int
    spare: int

    @staticmethod
    def of(
        request: RoleRequest, sharing: Sharing, execution: DotExecution, rings: Rings
    ) -> BlockMemory:
        """Raises NoRoles where shared memory has no room for the rings."""
        each = sum(tile_type(value).bytes for value in execution.written)
        try:
            return _Division(request, sharing, execution, rings, each).decided()
        except NoRoles:
            least = written_bytes(execution.written, request.kernel)
            if least == each or sharing.programs > 1:
                raise
        # operands that are never live together take turns, at a barrier each
        return _Division(request, sharing, execution, rings, least).decided()


class _Division:
    """The division of a block's shared memory while it is decided."""

    def __init__(
        self,
        request: RoleRequest,
        sharing: Sharing,
        execution: DotExecution,
        rings: Rings,
        written: int,
    ) -> None:
        """written: bytes of what threads write for dots."""
        self.request, self.sharing, self.execution = request, sharing, execution
        self.rings, self.options = rings, request.options
        self.results, self.stored_directly = self._results()
        # what each program of the block has beside rings and results
        self.taken = BARRIER_BYTES[len(request.dots) > 1] + sharing.programs * (
            _reduction_bytes(request, sharing.groups) + written
        )
        if sharing.in_cluster:  # what the other blocks of a cluster send
            whole = sum(tile_type(dot.acc).bytes for dot in request.dots)
            self.taken += whole - whole // sharing.split_k

    def decided(self) -> BlockMemory:
        """Raises NoRoles where shared memory has no room for the rings."""
        blocks, most_columns = self._blocks()
        cached = 0 if blocks == 2 else self._cached_bytes()
        available = self._available(blocks)
        largest = available - self.taken
        room = largest - (max(0, available - REDUCED_SHARED_BYTES) if cached else 0)
        split_k = self.sharing.split_k
        columns, why_fewer = widest_columns(
            [store.op for store in self.stored_directly or self.results],
            self.execution.registers * (1 if self.sharing.in_cluster else min(2, split_k)),
            self.sharing.consumers,
            self.options,
        )
        most_columns = min(most_columns, self._share() or most_columns)
        widths = [c for c in SUBTILE_COLUMNS if c <= min(columns, most_columns)]
        written_stages, exchanged = self._written_stages(widths, room)
        room, largest = room - exchanged, largest - exchanged
        columns, result_bytes, fitting = self._fitted(widths, room)
        reused, why_none_reused = reused_stages(
            self.results,
            self.rings,
            self.request.lone_loop,
            self.sharing.groups,
            columns,
            self._stages(room),
            self.sharing.members,
            by_threads=self._epilogue() == "shared",
        )
        if reused:
            result_bytes[0], fitting[0] = 0, self._stages(room)
        why_other = (
            why_none_reused
            if self.options.subtiles == 0
            else why_not_in_turn(
                self.results, self.sharing.groups, columns, fitting, self.options.subtiles
            )
        )
        subtiles = self._subtiles(fitting, bool(reused), why_other)
        stages, reason = fitting[subtiles]
        if reason:
            raise NoRoles(reason)
        filled = sum(n * stage_bytes(ring) for n, ring in zip(stages, self.rings, strict=True))
        return BlockMemory(
            blocks,
            cached,
            stages,
            self.results,
            self._epilogue(),
            columns,
            why_fewer,
            subtiles,
            result_bytes[subtiles],
            why_other,
            [] if subtiles else reused,
            written_stages,
            spare=largest - result_bytes[subtiles] - filled,
        )

    def _results(self) -> tuple[list[StoredResult], list[StoredResult]]:
        """The results that are stored in subtiles, and those that could be but are stored from
        registers, as asked.
        """
        request = self.request
        swapped = {request.sides(dot).swapped for dot in request.dots}
        found = subtile_stores(
            request.kernel,
            request.heights,
            self.sharing.groups,
            swapped == {True},
            request.short_dots,
        )
        if self.options.epilogue == "direct":
            return [], found
        if self.options.epilogue == "shared":
            found = [store for store in found if is_stored_by_threads(store)]
        each = self.execution.role_registers(self.sharing, 1)[1]
        left = each - self.execution.registers
        if left < request.context.target.assembler.stored_by_rows:
            found = [store for store in found if is_stored_by_map(store.op)]
        if self._share() % 16:  # no swizzle is so narrow
            found = [store for store in found if store.transposed]
        return (found if request.by_rows and len(swapped) == 1 else []), []

    def _share(self) -> int:
        """Columns of its sum that a block of a cluster stores; 0 of one that stores all."""
        if not self.sharing.in_cluster:
            return 0
        return self.request.sides(self.request.dots[0]).n // self.sharing.split_k

    def _epilogue(self) -> str:
        if not self.results:
            return "direct"
        mapped = any(is_stored_by_map(store.op) for store in self.results)
        return "tma" if mapped and self.options.epilogue != "shared" else "shared"

    def _available(self, blocks: int) -> int:
        """Bytes of shared memory of one of so many blocks; what an earlier plan had too little of,
        each of them needs.
        """
        context = self.request.context
        room, whole = context.room(self.sharing.kind), context.target.shared_bytes
        return half_of(whole) - (whole - room) if blocks == 2 else room

    def _blocks(self) -> tuple[int, int]:
        """How many blocks share a multiprocessor, and columns of a subtile at most. Dots that wait
        for vector work leave the tensor cores to another block, and so do dots in no loop or behind
        one: beside them a program loads, computes and stores.
        """
        request, execution, sharing = self.request, self.execution, self.sharing
        makes = make_operands(request)
        waits = execution.in_order or makes or not all(map(loop_of, request.dots))
        third = request.has_third_role
        live = PAIRED_THIRD_LIVE_REGISTERS if third else PAIRED_LIVE_REGISTERS
        pays = waits and execution.registers <= live and not request.converted
        pays = pays and sharing.consumers == 1 and self._is_paired()
        if pays and (execution.counts_live or makes or self._live_registers() <= live):
            room = self._available(2) - self.taken
            for columns in (64, 32):
                needed = subtile_bytes(self.results, sharing.groups, columns, 1)
                if stages_of(self.rings, room - needed, self.options.num_stages)[0]:
                    return 2, columns
        return 1, 64

    def _is_paired(self) -> bool:
        """Whether each dot has registers where two blocks share those of a multiprocessor: the
        assembler goes by what a launch gives to a thread, not by what its role takes later.
        """
        target = self.request.context.target
        roles = 2 + self.request.has_third_role
        each = target.at_entry(PAIRED_ROLE_THREADS * roles)
        sums = [
            tile_type(dot.acc).bytes // (512 * self.sharing.groups) for dot in self.request.dots
        ]
        return max(sums) + target.assembler.beside_dot <= each

    def _live_registers(self) -> int:
        """Of a consumer's thread, for all tiles that are live at once."""
        request = self.request
        return live_registers(request.kernel, request.dots, self.sharing.groups, request.options)

    def _cached_bytes(self) -> int:
        """Bytes of lines that a loop reads again, where all of shared memory would leave the L1
        cache too few for them; else 0.
        """
        request = self.request
        bytes_again = cache_line_bytes(
            [
                op
                for op in request.program.loads
                if op.parent_op() in request.loops and not any(op in ring for ring in self.rings)
            ]
        )
        left = L1_AND_SHARED_BYTES - request.context.target.shared_bytes - 1024
        return bytes_again if bytes_again > left else 0

    def _stages(self, room: int) -> Stages:
        """Of each ring, where nothing else is in so many bytes."""
        return stages_of(self.rings, room, self.options.num_stages, self.sharing.members)

    def _fitted(
        self, widths: Sequence[int], room: int
    ) -> tuple[int, dict[int, int], dict[int, Stages]]:
        """Columns of subtiles, and by buffers in turn their bytes and the stages beside them."""
        return fitted(
            self.results,
            self.rings,
            self.sharing.groups,
            widths,
            self.sharing.programs,
            room,
            self.sharing.members,
            self.options,
        )

    def _written_stages(self, widths: Sequence[int], room: int) -> tuple[int, int]:
        """Stages of what warpgroups write for one another, and bytes of the second: there is one
        where no loop's ring has fewer for it.
        """
        request = self.request
        sharing = self.sharing.groups if self.sharing.programs == 1 else 1
        more = exchanged_bytes(self.execution.written, request.loops, sharing)
        if not more:
            return 1, 0
        *_, alone = self._fitted(widths, room)
        *_, beside = self._fitted(widths, room - more)
        least = least_stages(self.rings, request.loops, alone)
        if least_stages(self.rings, request.loops, beside) >= max(1, least):
            return 2, more
        return 1, 0

    def _subtiles(self, fitting: dict[int, Stages], reuses: bool, why_other: str) -> int:
        """Buffers in turn of each result. Co-resident programs store through stages, so that each
        one's next ones have room; else there are two unless the second one costs a stage.
        """
        if self.options.subtiles is not None and not why_other:
            return self.options.subtiles
        if reuses and self.sharing.members > 1:
            return 0
        return max((1, 2), key=lambda n: (fitting[n][0], n))


def written_bytes(values: Sequence[SSAValue], kernel: tile.Kernel) -> int:
    """Of shared memory for operands that threads write, one by one: what is live together at the
    worst moment. One in a loop or a branch is live all through it.
    """
    lasting: dict[Operation, int] = {}
    passing: list[tuple[Operation, int]] = []
    for value in values:
        owner, size = value.owner, tile_type(value).bytes
        if isinstance(owner, Operation) and owner.parent is kernel.body.block:
            passing.append((owner, size))
            continue
        around = ancestor(
            owner if isinstance(owner, Operation) else first_of(owner), kernel.body.block
        )
        assert around is not None, "an operand is a value of the kernel"
        lasting[around] = lasting.get(around, 0) + size
    return together([*passing, *lasting.items()], kernel)


def cache_line_bytes(loads: list[Operation]) -> int:
    """Bytes of the cache's lines that a loop's small blocks, which go to registers, lie in: where
    rows are apart a whole line each, of which the next iterations read more.
    """
    total = 0
    for op in loads:
        if not isinstance(op, tile.Load) or not isinstance(op.result.type, TileType):
            continue
        size, facts = bits(op.result.type.element) // 8, array_type(op.array).facts.strides
        total += LINE * prod(
            -(-n * size // LINE) if s.exact == 1 else n
            for n, s in zip(op.extents.get_values(), facts, strict=False)
            if n > 0
        )
    return total


def _reduction_bytes(request: RoleRequest, groups: int) -> int:
    """Shared memory for a consumer's reductions along the rows of its sum, which lie in several
    warps, and for what the emitter puts there.
    """
    rows = tile_type(request.dots[0].acc).extents[0]
    total = scratch(request.kernel)
    for op in reductions(request.kernel):
        if _is_along_rows(op, rows):
            total += sum(4 * groups * tile_type(v).extents[1] * 8 for v in op.args)
    return total


def _is_along_rows(op: tile.Reduce, rows: int) -> bool:
    """Whether a reduction is along the rows of a matrix of so many."""
    t = tile_type(op.args[0])
    return t.rank == 2 and op.axis.value.data == 0 and t.extents[0] == rows
