"""How consumers execute the dots: which run one iteration late, in how many parts each is added up,
and how many registers a thread needs for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.plan import DotPlan
from tkc.ir.values import holds, tile_type
from tkc.passes.analysis.values import WRITES
from tkc.passes.layouts.relayout import RELAYOUT_WARPS
from tkc.passes.planning.bodies import Found, WarpCosts, best_stages
from tkc.passes.planning.operands import (
    MAX_LIVE_REGISTERS,
    Sides,
    along_n,
    is_read_again,
    leaves,
    live_registers,
    operand_registers,
    paired,
    partial,
    parts_of,
    permuted,
    relaid_loads,
    source,
    summed,
    written_operands,
)
from tkc.passes.planning.roles.registers import (
    LARGE_ACCUMULATOR_REGISTERS,
    LARGE_ROLE_REGISTERS,
    MAX_CONVERTER_REGISTERS,
    MAX_OPERAND_REGISTERS,
    PAIRED_ROLE_REGISTERS,
    PAIRED_THIRD_ROLE_REGISTERS,
    RELAYOUT_REGISTERS,
    RELAYOUT_SMALL_REGISTERS,
    ROLE_REGISTERS,
    SCORE_REGISTER_SLACK,
    SETMAXNREG_STEP,
    THIRD_ROLE_ROOM,
    beside_third_role,
    score_registers,
)
from tkc.passes.planning.roles.request import NoRoles, RoleRequest
from tkc.passes.planning.roles.sharing import Sharing


@dataclass(frozen=True)
class DotExecution:
    """How consumers execute the dots.

    searched: what the search for late dots found, of each loop. late: the dots that run one
    iteration late. parts: of each dot, how many, and how many are in flight. registers: of a
    consumer's thread, for accumulators and left operands. held: of these for left operands that
    are loaded and kept. counts_live: `registers` counts all tiles that are live at once.
    written: operands that are computed and written to shared memory. in_order: some operands are
    written, or have several readers. third_role: registers of producer, consumer and the role
    beside them. relax: running maxima are updated where needed.
    """

    searched: tuple[Found, ...]
    late: tuple[tile.Dot, ...]
    parts: tuple[tuple[int, int], ...]
    registers: int
    held: int
    counts_live: bool
    written: tuple[SSAValue, ...]
    in_order: bool
    third_role: tuple[int, int, int] | None
    relax: bool

    @staticmethod
    def of(request: RoleRequest, sharing: Sharing) -> DotExecution:
        """Raises NoRoles where registers do not hold what dots add to and read."""
        third_role = _third_role(request, sharing.groups)
        room = MAX_OPERAND_REGISTERS[sharing.consumers]
        if third_role:
            room -= LARGE_ROLE_REGISTERS[1] - third_role[1]
        written = written_operands(request.dots, request.options)
        in_order = bool(written) or _is_any_read_again(request)
        searched = _searched(request, sharing, in_order)
        late = tuple(dot for found in searched for dot in found.late)
        parts = tuple(_parts(dot, request, sharing, bool(late), room) for dot in request.dots)
        registers = max(
            operand_registers(
                here,
                bool(late),
                [parts[request.dots.index(dot)] for dot in here],
                sharing.groups,
                request.options,
            )
            for here in request.dots_by_block
        )
        live = _live_instead(request, sharing, late, registers, room)
        if live is not None:
            late = late if request.lone_loop is None and live >= registers else ()
            registers = live
        counts_live = live is not None and live <= MAX_LIVE_REGISTERS[sharing.consumers]
        held = _held_registers(request, sharing.groups)
        made = DotExecution(
            searched,
            late,
            parts,
            registers,
            held,
            counts_live,
            tuple(written),
            in_order,
            third_role,
            relax=request.plan.relax,
        )
        made._check(request, sharing, room)
        if made._keeps_no_scores(request, sharing):
            return replace(made, relax=False)
        return made

    def role_registers(self, sharing: Sharing, blocks: int) -> tuple[int, ...]:
        """Of a thread of each role, where so many blocks share a multiprocessor."""
        if blocks == 2:
            return PAIRED_THIRD_ROLE_REGISTERS if self.third_role else PAIRED_ROLE_REGISTERS
        if self.third_role:
            return self.third_role
        if self.registers > LARGE_ACCUMULATOR_REGISTERS:
            return LARGE_ROLE_REGISTERS
        if self.counts_live and sharing.consumers < 3:
            return LARGE_ROLE_REGISTERS
        return ROLE_REGISTERS[sharing.consumers_of_block]

    def _check(self, request: RoleRequest, sharing: Sharing, room: int) -> None:
        """Raises NoRoles where registers do not hold what dots add to and read."""
        scores = score_registers(request.dots, self.late, sharing.groups)
        crowded = (
            self.registers > LARGE_ACCUMULATOR_REGISTERS
            or self.registers + scores > LARGE_ROLE_REGISTERS[1]
        )
        if self.late and self.held and crowded:
            raise NoRoles(
                f"accumulators and left operands of {self.registers} registers a thread leave none"
                " to compute a step in"
            )
        if self.registers > room and not self.counts_live:
            consumers = sharing.consumers
            limit = LARGE_ROLE_REGISTERS[1] if consumers < 3 else ROLE_REGISTERS[consumers][1]
            if self.third_role:
                limit = self.third_role[1]
            raise NoRoles(
                f"accumulators and left operands of {self.registers} registers a thread do not fit"
                f" {limit}"
            )
        several = len(request.dots) > 1 and not summed(request.dots[0])
        if several and not self.late and not self.counts_live:
            raise NoRoles(
                "several dots in a loop, which do not all accumulate, and of which none can run"
                " one iteration late"
            )

    def _keeps_no_scores(self, request: RoleRequest, sharing: Sharing) -> bool:
        """Whether registers do not keep scores until running maxima are known to fit."""
        consumers = sharing.consumers
        return (
            request.options.relax is None
            and request.plan.relax
            and consumers > 2
            and request.program.maxima
            and self.registers + score_registers(request.dots, self.late, sharing.groups)
            > ROLE_REGISTERS[consumers][1] + SCORE_REGISTER_SLACK
        )

    def planned(
        self, request: RoleRequest, sharing: Sharing, rings: Callable[[tile.Dot], tuple[int, int]]
    ) -> tuple[DotPlan, ...]:
        """Of each dot. rings: that the converter fills with its operands."""
        in_pairs = request.by_rows and paired(request.dots, request.options)
        return tuple(
            DotPlan(
                "wgmma",
                _split(dot, request, sharing.groups),
                *_sources(dot, request),
                swap=request.sides(dot).swapped,
                parts=parts,
                permuted=permuted(dot, request.options),
                paired=in_pairs,
                rings=rings(dot),
            )
            for dot, parts in zip(request.dots, self.parts, strict=True)
        )


def _split(dot: tile.Dot, request: RoleRequest, groups: int) -> tuple[int, int]:
    """Among how many warpgroups a dot's rows and columns are divided."""
    return (groups, 1) if along_n(dot, request.options) == 1 else (1, groups)


def _third_role(request: RoleRequest, groups: int) -> tuple[int, int, int] | None:
    """The registers of roles where there is one beside producer and consumers. Raises NoRoles where
    there are none for it.
    """
    if not request.has_third_role:
        return None
    if groups not in THIRD_ROLE_ROOM:
        raise NoRoles(
            f"beside {groups} warpgroups there are no registers for one that relays 8-bit"
            " operands, which wgmma reads K-major only, computes some, or copies what tensor maps"
            " do not"
        )
    if 4 * groups != RELAYOUT_WARPS and any(map(_is_read_by_others, request.relaid)):
        raise NoRoles(
            f"{4 * groups} warps would read an operand as the {RELAYOUT_WARPS} do that relay it"
        )
    holds_much = any(
        tile_type(load.result).size > 512 * RELAYOUT_SMALL_REGISTERS for load in request.relaid
    )
    third = RELAYOUT_REGISTERS[bool(request.copied_by_threads) or holds_much]
    computing = max((made.registers for made in request.converted), default=0)
    if computing > MAX_CONVERTER_REGISTERS:
        raise NoRoles(f"the role that computes an operand would hold {computing} registers of it")
    steps = -(-max(third, computing) // SETMAXNREG_STEP)
    return beside_third_role(groups, SETMAXNREG_STEP * steps)


def _is_read_by_others(load: tile.Load) -> bool:
    """Whether anything but dots reads a block."""
    return any(not isinstance(use.operation, tile.Dot) for use, _ in leaves(load.result))


def _is_any_read_again(request: RoleRequest) -> bool:
    """Whether a block that the dots' loops load has several readers."""
    inner = [load for load in request.operand_loads if load.parent_op() in request.loops]
    return any(map(is_read_again, inner))


def _searched(request: RoleRequest, sharing: Sharing, in_order: bool) -> tuple[Found, ...]:
    """What the search says of each loop in which dots may run late."""
    if request.options.rotate is False:
        return ()
    costs = WarpCosts(request.context.target, 4 * sharing.groups, True)
    found = []
    for here in request.dots_by_block:
        loop = here[0].parent_op()
        if not isinstance(loop, scf.ForOp) or not _may_run_late(here, request, in_order):
            continue
        if request.copies_wait and holds(loop, WRITES):
            continue  # what is stored is read by all dots of an iteration, or by none
        if searched := best_stages(loop, costs, request.context.overlaps):
            found.append(searched)
    return tuple(found)


def _may_run_late(here: list[tile.Dot], request: RoleRequest, in_order: bool) -> bool:
    """Whether some dots of a loop may run one iteration later than others."""
    if not summed(here[0]):
        return not in_order
    return len(here) == 1 or not any(_is_computed(request.sides(dot)) for dot in here)


def _is_computed(both: Sides) -> bool:
    """Whether an operand of a dot is computed, or held in registers."""
    return both.held or any(both.written)


def _parts(
    dot: tile.Dot, request: RoleRequest, sharing: Sharing, rotated: bool, room: int
) -> tuple[int, int]:
    """In how many parts a dot is added up, and how many are in flight at once."""
    whole = rotated or request.options.sum_parts == 1 or not request.by_rows
    by_role = relaid_loads(dot, request.options) or any(request.sides(dot).converted)
    if whole or not partial(dot) or by_role:
        return 1, 1
    return parts_of(dot, sharing.groups, room)


def _live_instead(
    request: RoleRequest,
    sharing: Sharing,
    late: tuple[tile.Dot, ...],
    registers: int,
    room: int,
) -> int | None:
    """Registers for all tiles that are live at once, where they decide; None where those of a
    loop's accumulators and operands do.
    """
    most = MAX_LIVE_REGISTERS[sharing.consumers]
    if request.lone_loop is None:
        live = live_registers(request.kernel, request.dots, sharing.groups, request.options)
        if not request.loops and live <= request.context.target.assembler.straight_live:
            return live
        return live if registers > room and live <= most else max(registers, live)
    if len(request.dots) == 1 or request.options.rotate is True:
        return None
    if (late and registers <= room) or summed(request.dots[0]):
        return None
    live = live_registers(request.kernel, request.dots, sharing.groups, request.options)
    return live if live <= most else None


def _held_registers(request: RoleRequest, groups: int) -> int:
    """Of a thread, for the largest left operand that is loaded and kept in registers."""
    return max(
        (
            tile_type(both.left).bytes // (512 * groups)
            for both in map(request.sides, request.dots)
            if both.held and source(both.left)
        ),
        default=0,
    )


def _sources(dot: tile.Dot, request: RoleRequest) -> tuple[str, str]:
    """Where the left and the right operand come from."""
    changed = [right for _, right in relaid_loads(dot, request.options)]
    both = request.sides(dot)
    left, right = (
        "written"
        if both.written[side]
        else "converted"
        if both.converted[side]
        else "relaid"
        if side in changed
        else "shared"
        for side in (False, True)
    )
    return "registers" if both.held else left, right
