"""In what order blocks run programs, and what of the next program begins before this one's end."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf

from tkc.ir.values import parents
from tkc.passes.analysis.alias import unwritten
from tkc.passes.analysis.program_axes import from_memory, program_axes
from tkc.passes.planning.rings import operand_loads
from tkc.passes.planning.roles.dots import DotExecution
from tkc.passes.planning.roles.memory import BlockMemory, Rings
from tkc.passes.planning.roles.multicast import Multicast
from tkc.passes.planning.roles.registers import (
    LARGE_ACCUMULATOR_REGISTERS,
    MIN_LOOKAHEAD_REGISTERS,
)
from tkc.passes.planning.roles.request import RoleRequest
from tkc.passes.planning.roles.sharing import Sharing
from tkc.passes.programs.split_k import undivided


@dataclass(frozen=True)
class ProgramOrder:
    """In what order blocks run programs.

    dynamic: blocks claim programs one by one. uneven: programs differ in what they do.
    why_static: why they are never claimed. cross_tile_prologue: the next program's first dot is
    issued before this one's results are stored. serpentine: every second program walks backwards.
    """

    dynamic: bool
    uneven: bool
    why_static: str
    cross_tile_prologue: bool
    serpentine: bool

    @staticmethod
    def of(
        request: RoleRequest,
        sharing: Sharing,
        execution: DotExecution,
        multicast: Multicast,
        rings: Rings,
        memory: BlockMemory,
    ) -> ProgramOrder:
        uneven = _is_uneven(request)
        why_static = _why_static(request, sharing, multicast)
        dynamic = request.options.dynamic_schedule
        if dynamic is None:
            dynamic = sharing.members > 1 or uneven or bool(execution.late)
        dynamic = dynamic and not why_static
        serpentine = (
            bool(request.options.serpentine)
            and not dynamic
            and sharing.split_k == 1
            and not undivided(request.kernel, request.dots)
        )
        prologue = (
            dynamic
            and _prologue_pays(request, sharing, execution, memory)
            and _can_begin_next(request, execution, rings)
            and _has_room_for_next(request, sharing, execution, rings, memory)
        )
        return ProgramOrder(dynamic, uneven, why_static, prologue, serpentine)


def _is_uneven(request: RoleRequest) -> bool:
    """Whether programs differ in what they do: in the steps of a loop, or in whether they come to
    their dots at all.
    """
    around = {op for here in request.dots_by_block for op in parents(here[0])}
    for op in request.kernel.walk():
        match op:
            case scf.ForOp() if program_axes([op.lb, op.ub, op.step]):
                return True
            case scf.IfOp() if op in around and program_axes([op.cond]):
                return True
    return False


def _why_static(request: RoleRequest, sharing: Sharing, multicast: Multicast) -> str:
    """Why blocks cannot claim programs one by one; empty where they can."""
    if request.claims:
        return "programs take their work themselves"
    if request.waits:
        return "programs that wait run in launch order"
    if not sharing.together:
        return "warpgroups have programs of their own"
    if multicast.cluster != (1, 1) or sharing.split_k > 1 or sharing.stream_k:
        return "blocks share their programs' parts, or copies"
    return ""


def _prologue_pays(
    request: RoleRequest, sharing: Sharing, execution: DotExecution, memory: BlockMemory
) -> bool:
    """Whether the next program's first dot is issued early: as asked, or where it paid: two
    warpgroups that share a program, and three whose programs' loops begin at one place. The checks
    of TKC_DEBUG need the registers.
    """
    loop = request.lone_loop
    if loop is None or sharing.members > 1 and 0 in program_axes([loop.lb]):
        return False  # behind blocks of other programs, how many the next one's claim says
    if request.options.cross_tile_prologue is not None:
        return request.options.cross_tile_prologue
    if request.options.debug:
        return False
    if sharing.members == 1:
        return sharing.consumers == 2
    consumer = execution.role_registers(sharing, memory.blocks)[1]
    return consumer >= MIN_LOOKAHEAD_REGISTERS


def _can_begin_next(request: RoleRequest, execution: DotExecution, rings: Rings) -> bool:
    """Whether the next program's first dot can be issued with its operands alone, which nothing
    loaded says where to find, and which no program writes: behind the last one, its place is that
    of another program.
    """
    loads = {load for ring in rings for load in ring}
    first = set(operand_loads(request.dots[:1], request.options))
    if any(not first.isdisjoint(ring) and not first.issuperset(ring) for ring in rings):
        return False  # what else fills its stage is asked for behind it
    return (
        bool(execution.late)
        and not (request.has_third_role or request.copies_wait)
        and not from_memory([v for load in loads for v in load.operands])
        and loads <= set(request.operand_loads)
        and all(unwritten(load, request.overlaps) for load in loads)
    )


def _has_room_for_next(
    request: RoleRequest,
    sharing: Sharing,
    execution: DotExecution,
    rings: Rings,
    memory: BlockMemory,
) -> bool:
    """Whether what the next program's first dot reads has room beside this one's: in stages, and in
    registers where the left operand is kept there.
    """
    twice = sharing.members == 1 or all(
        n >= 2 * sharing.members
        for n, ring in zip(memory.stages, rings, strict=True)
        if ring[0].parent_op() is not request.lone_loop
    )
    held = execution.held
    return (
        twice
        and min(memory.stages, default=1) > 1
        and (not held or execution.registers + held <= LARGE_ACCUMULATOR_REGISTERS)
    )
