"""Who computes a program: one warpgroup, several that divide its rows or columns, or several parts
of its K; and how many programs a block runs, in turn (ping-pong) or side by side (co-resident).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.ranges import divisor
from tkc.ir.rewrite import loops_of
from tkc.ir.types import TileType
from tkc.ir.values import tile_type
from tkc.passes import LaunchOptions
from tkc.passes.analysis.alias import is_number_of_all
from tkc.passes.analysis.program_axes import from_memory, program_axes, sources
from tkc.passes.analysis.values import LOADS
from tkc.passes.layouts.epilogue_subtiles import epilogue_registers
from tkc.passes.planning.operands import (
    all_along_n,
    is_read_again,
    made_from,
    operand_registers,
    simple,
    source,
    written_operands,
)
from tkc.passes.planning.order import reads_first_of_written
from tkc.passes.planning.pressure import carried_words, held_by
from tkc.passes.planning.roles.loops import differs_in_steps, is_conditional
from tkc.passes.planning.roles.registers import (
    MAX_OPERAND_REGISTERS,
    ROLE_REGISTERS,
    most_members,
    parts_fit,
    score_registers,
)
from tkc.passes.planning.roles.request import NoRoles, RoleRequest
from tkc.passes.planning.roles.results import subtile_stores
from tkc.passes.programs.clusters import MAX_PORTABLE_CLUSTER
from tkc.passes.programs.split_k import undivided, why_not_shared
from tkc.passes.programs.stream_k import piece_of

TOGETHER_IN_ORDER = "programs wait for others"


@dataclass(frozen=True)
class Sharing:
    """Who computes a program.

    split_k: parts of its K; in_cluster: whether these are the blocks of a cluster; stream_k: parts
    of the programs of the last wave, 0 for none. members: co-resident
    programs of a block, 1 for none. together: why the consumers of a block share a program, empty
    in ping-pong. groups: warpgroups of a program. The other fields say why not as asked.
    """

    split_k: int
    in_cluster: bool
    why_no_split_k: str
    stream_k: int
    why_no_stream_k: str
    members: int
    why_no_members: str
    together: str
    groups: int

    @staticmethod
    def of(request: RoleRequest) -> Sharing:
        """Raises NoRoles where rows do not divide among as many warpgroups as asked."""
        in_cluster = _parts_may_meet(request)
        split_k, why_no_split_k = _split_k(request, in_cluster)
        in_cluster = in_cluster and split_k > 1
        stream_k, why_no_stream_k = _stream_k(request, split_k)
        single = request.single or (
            "copies wait for what they store" if request.copies_wait else ""
        )
        if single or request.waits:
            members, why_no_members = 1, single or TOGETHER_IN_ORDER
        else:
            members, why_no_members = _co_resident(request, split_k > 1 or stream_k > 0)
        together = (
            "co-resident"
            if members > 1
            else single or why_together(request, split_k > 1 or stream_k > 0)
        )
        groups = 1
        if together and members == 1:
            groups = warpgroups(request)
        if not groups:
            raise NoRoles(
                f"num_warps = {request.options.num_warps}: {request.rows} rows do not divide among"
                f" {(request.options.num_warps or 0) // 4} warpgroups of 64"
            )
        return Sharing(
            split_k,
            in_cluster,
            why_no_split_k,
            stream_k,
            why_no_stream_k,
            members,
            why_no_members,
            together,
            groups,
        )

    @property
    def consumers(self) -> int:
        """Warpgroups among which a block's registers are divided, but for ping-pong's second."""
        return self.members if self.members > 1 else self.groups

    @property
    def consumers_of_block(self) -> int:
        """All consumer warpgroups of a block."""
        return self.consumers if self.together else 2

    @property
    def programs(self) -> int:
        """Of a block at once, each with its own part of shared memory."""
        if self.members > 1:
            return self.members
        return 1 if self.together else 2

    @property
    def kind(self) -> str:
        """The name in a plan."""
        if self.members > 1:
            return "co_resident"
        return "cooperative" if self.together else "pingpong"


def warpgroups(request: RoleRequest) -> int:
    """How many warpgroups share a program's rows, 64 or more each: two where the rows divide so,
    three of 192 where several dots or a large accumulator are too much for one, four of 256 where
    they make left operands, as far as registers hold them; 0 where they do not divide as asked.
    """
    rows, options = request.rows, request.options
    asked = (options.num_warps or 0) // 4
    if (columns := all_along_n(options)) > 1:
        return columns if asked in (0, columns) else 0
    if asked > 2:
        return asked if rows % (64 * asked) == 0 else 0
    if not asked and (several := _of_many_rows(request)):
        return several
    return 1 if rows % 128 or asked == 1 else 2


def _of_many_rows(request: RoleRequest) -> int:
    """More than two warpgroups for rows that divide so, where that pays; else 0."""
    if request.rows == 192:
        return 3 if len(request.dots) > 1 or not _hold_operands(request, 1) else 0
    several = make_operands(request) and not request.has_third_role
    four = request.rows % 256 == 0 and several and _hold_operands(request, 4)
    return 4 if four else 0


def _hold_operands(request: RoleRequest, groups: int) -> bool:
    """Whether the registers of so many warpgroups hold a program's accumulators and operands, and
    what its loops carry.
    """
    dots, options = request.dots, request.options
    each = operand_registers(dots, False, [(1, 1)] * len(dots), groups, options)
    if each > MAX_OPERAND_REGISTERS[groups]:
        return False
    return held_by(carried_words(dots), 4 * groups)


def make_operands(request: RoleRequest) -> bool:
    """Whether warpgroups make the left operands of all dots: one stands still between what it makes
    and its dot, and others fill the time.
    """
    made = (made_from(dot, request.options) and request.sides(dot).held for dot in request.dots)
    return all(made)


# ---- parts of K


def _groups_of_parts(request: RoleRequest) -> int:
    """Warpgroups of a program of which others compute a part."""
    if request.options.roles == "pingpong":
        return 1
    return max(1, warpgroups(request))


def _parts_may_meet(request: RoleRequest) -> bool:
    """Whether the parts of K may be the blocks of a cluster: as many as form one, unless it is
    asked for otherwise, where each can finish a share of the results by itself.
    """
    options, parts = request.options, request.options.split_k or 1
    is_asked = options.cluster in (None, (parts, 1))
    if not is_asked or options.roles == "pingpong" or not 1 < parts <= MAX_PORTABLE_CLUSTER:
        return False
    if undivided(request.kernel, request.dots) or not request.by_rows:
        return False
    dot = request.dots[0]
    turned = request.sides(dot).swapped
    return why_not_shared(request.loops[0], parts, 0 if turned else 1, request.overlaps) == ""


def _split_k(request: RoleRequest, in_cluster: bool) -> tuple[int, str]:
    """Into how many parts k is divided, and why not as asked."""
    asked, dots = request.options.split_k or 1, request.dots
    if asked == 1:
        return 1, ""
    if request.waits:
        return 1, TOGETHER_IN_ORDER
    if reason := undivided(request.kernel, dots):
        return 1, reason
    loop = request.loops[0]
    if program_axes([loop.lb, loop.ub]):
        return 1, "the number of steps differs between programs"
    each = tile_type(dots[0].acc).size // (128 * _groups_of_parts(request))
    groups = _groups_of_parts(request)
    if not parts_fit(each, asked, in_cluster, groups, request.context.target):
        return 1, (
            f"an accumulator of {each} registers a thread leaves no room for a part of another"
        )
    return asked, ""


def _stream_k(request: RoleRequest, split_k: int) -> tuple[int, str]:
    """In how many parts of K a program of the last wave is divided, and why not as asked."""
    asked = request.options.stream_k or 0
    if asked < 2:
        return 0, "a program has two parts or more" if asked else ""
    if split_k > 1:
        return 0, "programs have parts already: split_k"
    if request.relaid or request.converted:
        return 0, "a role of its own relays an operand, or computes it"
    if reason := undivided(request.kernel, request.dots):
        return 0, reason
    loop = request.loops[0]
    if program_axes(bounds := [loop.lb, loop.ub, loop.step]) or from_memory(bounds):
        return 0, "the number of steps differs between programs"
    groups, t = _groups_of_parts(request), tile_type(request.dots[0].acc)
    each = t.size // (128 * groups)
    rows, columns = piece_of(t.extents[0], t.extents[1], groups)
    piece = rows * columns // (128 * groups)
    if each + piece > MAX_OPERAND_REGISTERS[1]:
        return 0, (
            f"an accumulator of {each} registers a thread leaves no room for {piece} of another"
        )
    if request.waits:
        return 0, TOGETHER_IN_ORDER
    return asked, ""


# ---- programs in turn


def why_together(request: RoleRequest, in_parts: bool) -> str:
    """Why the consumers of a block share a program; empty where each of two warpgroups can have a
    program of its own, in turns. in_parts: programs share an output tile.
    """
    if request.claims:
        return "programs take their work themselves"
    if request.waits:
        return TOGETHER_IN_ORDER
    if reason := (
        _together_as_asked(request)
        or _together_by_dots(request)
        or _together_by_steps(request)
        or together_by_registers(request)
    ):
        return reason
    if in_parts and request.options.roles != "pingpong":
        return "programs share an output tile"
    if request.has_third_role:
        return "an operand is relaid, computed apart, or copied by threads"
    return ""


def _together_as_asked(request: RoleRequest) -> str:
    """The options for which consumers share a program."""
    options = request.options
    if not request.by_rows:
        return "they share the columns of each dot"
    if options.roles == "cooperative" or options.programs == 1:
        return "as asked"
    if options.num_warps in (8, 12, 16):
        return f"{options.num_warps} compute warps, as asked"
    if options.dynamic_schedule and options.roles != "pingpong" and options.programs != 2:
        return "programs are claimed one by one, as asked"
    return ""


def _together_by_dots(request: RoleRequest) -> str:
    """What of a program's dots keeps a warpgroup from having programs of its own: only the sum and
    the stages of a ring may be another's.
    """
    dots = request.dots
    if len(dots) > 1 or not simple(dots[0]):
        return "its loop does more than accumulate one dot"
    both, loop = request.sides(dots[0]), dots[0].parent_op()
    if any(both.written):
        return "an operand is computed"
    if both.held:
        if source(both.left) is None:
            return "an operand is computed"
        return "an operand is read into registers"
    shown = list(filter(None, map(source, (dots[0].a, dots[0].b))))
    if any(load.parent_op() is not loop for load in shown):
        return "an operand is loaded before the loop"
    if any(map(is_read_again, shown)):
        return "its threads compute something of an operand, under dots of the other's"
    return ""


def _together_by_steps(request: RoleRequest) -> str:
    """Why a warpgroup could not know which stages are the other's: programs that take turns have
    the same number of steps.
    """
    loop = request.loops[0]
    bounds = [loop.lb, loop.ub, loop.step]
    alike = request.options.roles == "pingpong" or _takes_steps_in_turn(loop)
    if is_conditional(loop) or program_axes(bounds) and (not alike or from_memory(bounds)):
        return "the number of steps differs between programs"
    if any(_is_read_in_each(op, request) for op in sources(bounds)):
        return "the number of steps is read from memory in each program"
    if differs_in_steps(bounds, loops_of(loop)):
        return "the number of steps differs between iterations of a loop round it"
    return ""


def _is_read_in_each(op: Operation, request: RoleRequest) -> bool:
    """Whether every program loads something itself."""
    return isinstance(op, LOADS) and not is_number_of_all(op, request.overlaps)


def together_by_registers(request: RoleRequest) -> str:
    """Why the registers of a warpgroup do not hold the sum of a program's one dot, and what its
    epilogue needs.
    """
    dot, loop = request.dots[0], request.loops[0]
    each = operand_registers([dot], False, [(1, 1)], 1, request.options)
    if each > MAX_OPERAND_REGISTERS[1]:
        return f"an accumulator of {each} registers a thread does not fit one warpgroup"
    found = subtile_stores(request.kernel, {tile_type(dot.acc).extents[0]}, 1)
    whole = {
        v
        for op in request.kernel.walk()
        if isinstance(op, tile.Reduce) and op.parent_op() is not loop
        for v in op.args
    } - {*loop.results}
    stores = [store.op for store in found]
    if epilogue_registers(stores, each * (1 + bool(whole))) > ROLE_REGISTERS[1][1]:
        return (
            f"an accumulator of {each} registers a thread and its epilogue do not fit one warpgroup"
        )
    return ""


def _takes_steps_in_turn(loop: scf.ForOp) -> bool:
    """Whether programs take every so many-th step of one loop each: they begin at different steps,
    and their numbers of steps differ by one at most.
    """
    step = divisor(loop.step) if isinstance(loop.step.owner, tile.Constant) else 0
    each = divisor(loop.lb)
    return not program_axes([loop.ub, loop.step]) and 0 < each < step and step % each == 0


# ---- programs side by side


def _co_resident(request: RoleRequest, in_parts: bool) -> tuple[int, str]:
    """How many co-resident programs a block runs, 1 for none; and why not as asked. As many as
    registers hold, where a loop of several dots walks over more or less with the program: each then
    walks over its own.
    """
    options = request.options
    if request.lone_loop is None:
        if options.roles == "cooperative":
            return 1, ""
        return 1, "dots are in several loops, or in none"
    asked = options.programs
    forced = options.roles == "co_resident" or options.roles is None and (asked or 0) > 2
    if not forced and not _may_be_co_resident(request):
        return 1, ""
    if reason := (
        _apart_by_loop(request, request.lone_loop)
        or _apart_by_operands(request, in_parts)
        or _apart_as_asked(options)
        or _apart_by_steps(request, request.lone_loop)
    ):
        return 1, reason
    return _members_that_fit(request)


def _may_be_co_resident(request: RoleRequest) -> bool:
    """Whether co-resident programs are worth a try where nothing is asked for."""
    options, loop = request.options, request.lone_loop
    return (
        loop is not None
        and options.roles is None
        and options.programs is None
        and len(request.dots) > 1
        and options.num_warps is None
        and options.dynamic_schedule is not False
        and 0 in program_axes([loop.lb, loop.ub])
    )


def _apart_by_loop(request: RoleRequest, loop: scf.ForOp) -> str:
    """What of the loop round the dots keeps a program from running beside others."""
    if request.claims:
        return "programs take their work themselves"
    if request.options.programs == 1:
        return "one program is co-resident with no other"
    if not isinstance(loop.parent_op(), tile.Kernel):
        return "its loop is in another, or in a condition"
    if any(is_unbounded(load.array) for load in request.operand_loads):
        return "an operand is read by addresses that nothing bounds"
    if reads_first_of_written(request.operand_loads, (0,), request.overlaps):
        return "operands lie in an array of which every program writes a part"
    return ""


def _apart_by_operands(request: RoleRequest, in_parts: bool) -> str:
    """What of its operands keeps a program from running beside others."""
    if request.rows != 64:
        return f"{request.rows} rows are not one warpgroup's"
    if in_parts:
        return "programs share an output tile"
    if request.has_third_role:
        return "an operand is relaid, computed apart, or copied by threads"
    if written_operands(request.dots, request.options):
        return "an operand is computed that dots read in shared memory"
    inner = [load for load in request.operand_loads if load.parent_op() is request.lone_loop]
    if any(is_read_again(load) for load in inner):
        return "an operand has several readers"
    return ""


def _apart_as_asked(options: LaunchOptions) -> str:
    """The options with which no program runs beside others."""
    if options.num_warps not in (None, 4):
        return f"{options.num_warps} compute warps, as asked"
    if options.dynamic_schedule is False:
        return "programs are assigned statically, as asked, and co-resident ones are claimed"
    return ""


def _apart_by_steps(request: RoleRequest, loop: scf.ForOp) -> str:
    """Why programs could not share the copies of a loop: they must read the same, at steps that
    begin whole steps apart.
    """
    loads = [load for load in request.operand_loads if load.parent_op() is loop]
    read = [loop.step, *(v for load in loads for v in load.operands)]
    if 0 in program_axes(read, given=[loop.body.block.args[0]]):
        return "what a loop loads depends on axis 0"
    behind = sources([loop.lb, loop.ub, loop.step])
    if any(isinstance(op, LOADS) and 0 in program_axes(op.operands) for op in behind):
        return "a loop's bounds are loaded from a place that depends on axis 0"
    if any(_is_of_a_tile(op) and 0 in program_axes(op.operands) for op in behind):
        return "a loop's bounds are computed of a tile, whose elements threads exchange"
    step = loop.step.owner
    whole = isinstance(step, tile.Constant) and divisor(loop.lb) % step.number == 0
    if 0 in program_axes([loop.lb]) and not whole:
        return "loops do not begin whole steps apart"
    return ""


def _is_of_a_tile(op: Operation) -> bool:
    """Whether an operation makes a number of a tile's elements."""
    made = [isinstance(v.type, TileType) for v in op.results]
    return not any(made) and any(isinstance(v.type, TileType) for v in op.operands)


def _members_that_fit(request: RoleRequest) -> tuple[int, str]:
    """As many co-resident programs as registers hold, and why not as many as asked."""
    dots, options, asked = request.dots, request.options, request.options.programs
    each = operand_registers(dots, len(dots) > 1, [(1, 1)] * len(dots), 1, options)
    computed = [dot for dot in dots if source(request.sides(dot).left) is None]
    scores = score_registers(dots, computed, 1)
    most = most_members(each, scores, asked)
    held_by = min(asked or 2, max(ROLE_REGISTERS))
    if most == (asked or most) > 1:
        return most, ""
    if (asked or 0) > held_by:
        return most, f"a block has no registers for {asked} warpgroups"
    return most, (
        f"accumulators and left operands of {each} registers a thread do not fit"
        f" {ROLE_REGISTERS[held_by][1]}"
    )
