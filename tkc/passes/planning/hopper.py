"""Plans for Hopper's engines: warp roles, tensor maps and wgmma, where a program's data flow
permits.

A producer warp copies, by tensor maps, what the dots read; consumer warpgroups multiply straight
from shared memory. `roles(program, context, plan)` returns the plan, or says why there is none:

  every dot     has element types that wgmma takes (operands.py). Where all are in one loop, its
                accumulator is loop-carried, as are those of the other dots, or there are several
                dots of which some may run one iteration late (stages.py), or whose tiles fit the
                registers together. Where dots are in several loops, in loops in loops, behind a
                loop or in none, all tiles that are live at once fit the registers. M is a multiple
                of 64 that one to four warpgroups share, N a multiple of 8 up to 256, K 32 bytes.
                Operands are loaded beside the dot or in a loop round it (transposed or not); the
                left one may be computed and stay in registers
  every load    of an operand is a block of an array that the host knows (an argument, or made of
                arguments alone), or of a view that fixes some of its axes, without a mask, whose
                rows (or columns) are dense and begin at multiples of 16 bytes; or threads can copy
                it (gathers.py)
  programs      may run in any order: they may take their work from counters (`why_not_claimed`) and
                add to memory what they have. Or they wait for signals, each role for itself, and
                run in launch order; so do programs that see one another by other means (locks, who
                came last), which the consumers do alone, where operands do not depend on it

8-bit operands that wgmma cannot read as they lie are relaid by a role of its own
(layouts/relayout.py), with a ring for what is copied and one for what the role writes; so are
operands that are computed, where that pays (converting.py). Loads of one
dot in one loop fill a ring together, as do those of all dots that add to one accumulator; an
operand loaded outside its loop has a ring of its own. Small tiles beside such dots, like the scales
of rows, come with them where a map can copy them; scalars are loaded by the producer and broadcast
(warpgroups/broadcasts.py).

Each decision is a file of planning/roles/, and each takes those before it:

  request       what is asked for, and what no plan with roles can do
  sharing       which warpgroups compute a program, and how many programs a block has
  dots          which dots run late, in how many parts, with how many registers
  loads         which loads fill which ring
  memory        stages of rings and buffers of results in shared memory
  result_blocks which blocks that are read beside results have rings
  multicast     which copies the blocks of a cluster share
  programs      in what order blocks run programs
  decisions     what is said of all that
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

from xdsl.dialects import scf
from xdsl.ir import Operation

from tkc.ir.plan import Plan
from tkc.ir.registers import WARPGROUP_REGISTER
from tkc.ir.target import Target
from tkc.ir.values import tile_type
from tkc.passes import LaunchOptions, PassContext
from tkc.passes.planning.bodies import IterationClocks
from tkc.passes.planning.converting import (
    Conversion,
    conversions,
    convert_operand,
    converter_clocks,
    keep_operand,
)
from tkc.passes.planning.cost import Work, step_clocks
from tkc.passes.planning.gathers import Why, load_by_consumers
from tkc.passes.planning.operands import Sides
from tkc.passes.planning.order import acquiring_loops
from tkc.passes.planning.pressure import results_of_dots
from tkc.passes.planning.program import Program
from tkc.passes.planning.roles.decisions import Decided, decisions
from tkc.passes.planning.roles.dots import DotExecution
from tkc.passes.planning.roles.loads import RingLoads, SmallLoads
from tkc.passes.planning.roles.memory import BlockMemory
from tkc.passes.planning.roles.multicast import Multicast
from tkc.passes.planning.roles.programs import ProgramOrder
from tkc.passes.planning.roles.request import NoRoles, RoleRequest
from tkc.passes.planning.roles.result_blocks import has_room, result_blocks
from tkc.passes.planning.roles.sharing import Sharing, together_by_registers

# of a hundred of the clocks of an iteration, that a converter saves: it takes registers and rings
LEAST_CONVERTER_GAIN = 10.0


def roles(program: Program, context: PassContext, plan: Plan) -> tuple[Plan | None, str]:
    """The plan with roles made of an ordinary one, or None and the reason. What is asked of
    operands that no such plan can do is left out, and said. The converter computes operands where
    an iteration then takes less.
    """
    made, why = _roles(program, context, plan)
    could = _could_convert(program, context)
    if not could:
        return made, why
    before = None if made is None else _by_consumers(program, made, context)
    for each in could:
        convert_operand(each.value)
    try:
        other, why_not = _roles(program, context, plan)
        left = None if other is None else IterationClocks.of(program, other, context)
    finally:
        for each in could:
            keep_operand(each.value)
    if other is None or left is None:
        return _with(made, f"consumers compute operands: {why_not}"), why
    work = Work.of(program.kernel)
    after = max(
        _beside_converter(program, other, left, could, context.target),
        step_clocks(work, other, context.target),
    )
    if made is None or before is None:
        return _with(other, f"the converter computes operands: {after:.0f} clocks an iteration"), ""
    before = max(before, step_clocks(work, made, context.target))
    if asked := _lost(made, other, context.options):
        return _with(made, f"consumers compute operands: {asked} is asked for"), why
    if 100 * after > before * (100 - LEAST_CONVERTER_GAIN):
        said = f"consumers compute operands: {before:.0f} clocks an iteration"
        return _with(made, f"{said}, {after:.0f} by a converter"), why
    said = f"the converter computes operands: {after:.0f} clocks an iteration"
    return _with(other, f"{said}, {before:.0f} by consumers"), ""


def _by_consumers(program: Program, plan: Plan, context: PassContext) -> float:
    """Clocks of an iteration in which consumers compute all operands. Where blocks share a
    multiprocessor, each has its vector work while another's dots run.
    """
    clocks = IterationClocks.of(program, plan, context)
    return max(clocks.together / max(1, plan.blocks), clocks.vector, clocks.tensor)


def _beside_converter(
    program: Program,
    plan: Plan,
    left: IterationClocks,
    made: list[Conversion],
    target: Target,
) -> float:
    """Clocks of an iteration in which the converter computes some operands. left: for consumers,
    who do not meet, so that one warpgroup computes under another's dots.
    """
    late = [dot for i, dot in enumerate(program.dots) if i in plan.rotate]
    computing, whole = converter_clocks(made, late, target)
    return max(left.alone, left.vector + computing, left.tensor, whole)


def _lost(made: Plan, other: Plan, options: LaunchOptions) -> str:
    """What is asked for that a plan does and the other one does not, by name; empty where there is
    no such thing.
    """
    names = {field.name for field in fields(Plan)} & {field.name for field in fields(LaunchOptions)}
    asked = {name: getattr(options, name, None) for name in sorted(names)}
    return next(
        (
            name
            for name, value in asked.items()
            if value is not None and getattr(made, name) == value != getattr(other, name)
        ),
        "",
    )


def _with(plan: Plan | None, said: str) -> Plan | None:
    """A plan, where there is one, with one more decision."""
    return plan and replace(plan, decisions=(*plan.decisions, f"plan: {said}"))


def _could_convert(program: Program, context: PassContext) -> list[Conversion]:
    """The operands that the converter could compute."""
    options = context.options
    matrices = all(tile_type(dot.acc).rank == 2 for dot in program.dots)
    if not context.target.wgmma or options.roles == "one" or not matrices:
        return []
    if acquiring_loops(program.kernel):
        return []  # such programs begin early, and carry what they have loaded
    return conversions(program.dots, options, context.overlaps)


def _roles(program: Program, context: PassContext, plan: Plan) -> tuple[Plan | None, str]:
    """`roles`, by which consumers or a converter compute operands, as is marked."""
    try:
        made = _decided(program, context, plan)
    except NoRoles as e:
        why = str(e)
    else:
        return _by_columns(program, context, plan, made) or made, ""
    for narrowed, single in _without_two_programs(program, context):
        try:
            return _decided(program, narrowed, plan, single), why
        except NoRoles:
            pass
    for left_out in _left_out(context.options):
        unset: dict[str, Any] = dict.fromkeys(left_out)
        narrowed = replace(context, options=replace(context.options, **unset))
        try:
            made = _decided(program, narrowed, plan)
        except NoRoles:
            continue
        said = [f"plan: {name} = {value!r} is not used: {why}" for name, value in left_out.items()]
        return replace(made, decisions=(*made.decisions, *said)), why
    return _without_buffers(program, context, plan, why), why


def _without_buffers(program: Program, context: PassContext, plan: Plan, why: str) -> Plan | None:
    """The plan whose results leave from registers, so that all shared memory is for operands; None
    where it has no room for these either. why: there is no other plan.
    """
    if context.options.epilogue is not None:
        return None
    direct = replace(context, options=replace(context.options, epilogue="direct"))
    try:
        made = _decided(program, direct, plan)
    except NoRoles:
        return None
    said = f"plan: results have no buffers in shared memory: {why}"
    return replace(made, decisions=(*made.decisions, said))


def _by_columns(program: Program, context: PassContext, plan: Plan, made: Plan) -> Plan | None:
    """The plan by which two warpgroups share the columns of dots, where one alone was to compute
    what its registers do not hold: each then has half of every tile. None where the first stands.
    """
    if made.roles != "cooperative" or not _is_for_one_warpgroup(program, context.options):
        return None
    why = _too_much_for_one(program, context, plan, made)
    if not why:
        return None
    try:
        shared = _decided(program, _of_shared_columns(context), plan)
    except NoRoles:
        return None
    said = f"plan: two warpgroups share columns: {why}"
    return replace(shared, decisions=(*shared.decisions, said))


def _too_much_for_one(program: Program, context: PassContext, plan: Plan, made: Plan) -> str:
    """Why the registers of one warpgroup do not hold what a program computes; empty if they do."""
    tiles, room = (
        results_of_dots(program.kernel) // WARPGROUP_REGISTER,
        (made.registers or (0,))[-1],
    )
    if tiles > room:
        return f"{tiles} registers a thread of one do not fit {room}"
    most = context.target.assembler.straight_live
    if (sums := _carried_sums(program) // WARPGROUP_REGISTER) > most:
        return (
            f"accumulators of {sums} registers a thread of one, which holds {most} beside the rest"
        )
    request = RoleRequest.of(program, context, plan, "")
    if len(request.dots) > 1 or not request.loops:
        return ""
    return together_by_registers(request)


def _carried_sums(program: Program) -> int:
    """Bytes of the accumulators of dots of a loop, of the one that has most."""
    loops = Counter[Operation]()
    for dot in program.dots:
        if isinstance(loop := dot.parent_op(), scf.ForOp):
            loops[loop] += tile_type(dot.acc).bytes
    return max(loops.values(), default=0)


def _of_shared_columns(context: PassContext) -> PassContext:
    """The context in which two warpgroups are asked to share the columns of dots."""
    options = replace(context.options, roles="cooperative", split_warps=(4, 2))
    return replace(context, options=options)


def _without_two_programs(
    program: Program, context: PassContext
) -> Iterator[tuple[PassContext, str]]:
    """What to try where a block cannot have two programs, or one warpgroup hold one: the context,
    and why a block has one program.
    """
    options = context.options
    if len(program.dots) > 1 and _is_for_one_warpgroup(program, options):
        yield _of_shared_columns(context), ""
    if context.lack and options.roles is None and options.programs is None:
        yield context, "shared memory has no room for what two programs need"


def _is_for_one_warpgroup(program: Program, options: LaunchOptions) -> bool:
    """Whether dots have rows for one warpgroup alone, so that two could but share their columns."""
    free = options.roles is None and options.split_warps is None and options.programs is None
    heights = {Sides.of(dot, options).m for dot in program.dots}
    return free and options.num_warps in (None, 8) and heights == {64}


def _left_out(options: LaunchOptions) -> Iterator[dict[str, Any]]:
    """Options that a plan with roles may leave out, by name: each, then several."""
    co_resident = options.roles == "co_resident"
    asked = {
        "left_operand": options.left_operand if options.left_operand == "registers" else None,
        "swap_dots": options.swap_dots or None,
        "programs": options.programs if (options.programs or 0) > 2 or co_resident else None,
        "roles": options.roles if co_resident else None,
    }
    items = [(name, value) for name, value in asked.items() if value is not None]
    for count in range(1, len(items) + 1):
        yield from map(dict, combinations(items, count))


def _decided(program: Program, context: PassContext, plan: Plan, single: str = "") -> Plan:
    """`roles`, as asked. single: why a block has one program at a time, where that is known. Raises
    NoRoles.
    """
    request = RoleRequest.of(program, context, plan, single)
    if request.relaid and request.copied_by_threads:
        for load in request.copied_by_threads:
            load_by_consumers(load, Why.NO_ROLE)
        return _decided(program, context, plan, single)
    if request.converted and request.copied_by_threads:
        raise NoRoles("the role that would copy a block computes an operand")
    sharing = Sharing.of(request)
    execution = DotExecution.of(request, sharing)
    loads = RingLoads.of(request, sharing, execution)
    memory = BlockMemory.of(request, sharing, execution, loads.rings)
    loads, memory = _with_result_blocks(request, sharing, execution, loads, memory)
    multicast = Multicast.of(request, sharing, loads.rings)
    order = ProgramOrder.of(request, sharing, execution, multicast, loads.rings, memory)
    small_loads = SmallLoads.of(request, sharing, execution, loads)
    return _plan(Decided(request, sharing, execution, loads, small_loads, multicast, memory, order))


def _with_result_blocks(
    request: RoleRequest,
    sharing: Sharing,
    execution: DotExecution,
    loads: RingLoads,
    memory: BlockMemory,
) -> tuple[RingLoads, BlockMemory]:
    """With rings of blocks that are read beside results, where there is room for them."""
    blocks = result_blocks(request, sharing, execution, loads.ring_of.keys())
    more = loads.with_rings(blocks)
    if more is loads:
        return loads, memory
    try:
        divided = BlockMemory.of(request, sharing, execution, more.rings)
    except NoRoles:
        return loads, memory
    return (more, divided) if has_room(divided, memory, sharing, blocks) else (loads, memory)


def _plan(made: Decided) -> Plan:
    """All choices as a plan."""
    request, sharing, memory = made.request, made.sharing, made.memory
    return replace(
        request.plan,
        warps=4 * sharing.groups,
        stages=max(memory.stages, default=request.options.num_stages or 1),
        dots=made.execution.planned(
            request, sharing, lambda dot: made.loads.converted_into(dot, request)
        ),
        loads=made.loads.planned(request, made.multicast),
        early_small_loads=made.small_loads.early,
        early_pointers=made.small_loads.early_pointers,
        roles=sharing.kind,
        programs=sharing.programs,
        registers=made.registers,
        cluster=made.multicast.cluster,
        serpentine=made.order.serpentine,
        persistent=not request.claims,
        blocks=memory.blocks if memory.blocks > 1 else 0,
        split_k=sharing.split_k,
        parts_in_cluster=sharing.in_cluster,
        stream_k=sharing.stream_k,
        dynamic_schedule=made.order.dynamic,
        epilogue=memory.epilogue,
        columns=memory.columns,
        subtiles=memory.subtiles,
        reuse_operand_stages=tuple(request.program.loads.index(load) for load in memory.reused),
        rings=memory.stages,
        written_stages=memory.written_stages,
        rotate=tuple(i for i, dot in enumerate(request.dots) if dot in made.execution.late),
        copies_wait=request.copies_wait,
        cross_tile_prologue=made.order.cross_tile_prologue,
        relax=made.execution.relax,
        decisions=decisions(made),
        spare=memory.spare,
    )
