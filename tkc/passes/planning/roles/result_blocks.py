"""Blocks that are read beside results: what a product is added to, or multiplied by, element by
element. Where tensor maps can copy them they come through rings of their own, a program or two
ahead, instead of by loads of the threads that store the results, which would wait for them:

    for k:  acc += x[m, k] · w[k, n]          ring 0: 4 stages of x and w
    y[m, n] = acc + r[m, n]                   ring 1: 2 stages of r

r may be y: each program reads and then writes its own part, so that no other's store comes between.
What its own program may have written before is marked (`order.keep_in_order`): it stays where it
is, or its copies wait.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from tkc.ir import tile
from tkc.ir.registers import WARPGROUP_REGISTER
from tkc.ir.rewrite import following
from tkc.ir.types import TileType
from tkc.ir.values import (
    ancestor,
    block_of,
    made_of,
    operations_in,
    parents,
    reached,
    tile_type,
    tiles,
)
from tkc.passes.planning.gathers import loaded_by_consumers, unmapped
from tkc.passes.planning.rings import MIN_STAGES_BESIDE
from tkc.passes.planning.roles.dots import DotExecution
from tkc.passes.planning.roles.memory import SUBTILE_COLUMNS, BlockMemory
from tkc.passes.planning.roles.request import RoleRequest
from tkc.passes.planning.roles.sharing import Sharing

MIN_BLOCK_BYTES = 8192  # smaller ones wait in registers
EPILOGUE_REGISTERS = 48  # of a thread, beside accumulators and blocks
# of a thread, for what is computed of a part for one result and is there until the next one's
RESULT_REGISTERS = 32


def result_blocks(
    request: RoleRequest, sharing: Sharing, execution: DotExecution, taken: Collection[Operation]
) -> list[tile.Load]:
    """Those of a program that a role can copy ahead, all or none: threads that load one of them
    wait for it anyway. taken: the loads that have a ring already.
    """
    if request.waits or request.has_third_role or _in_parts(sharing):
        return []
    groups, found = sharing.groups, list[tile.Load]()
    stores = [op for op in operations_in(request.kernel, tile.Store) if tiles([op.value])]
    room = execution.role_registers(sharing, 1)[1] - EPILOGUE_REGISTERS - execution.registers
    room -= RESULT_REGISTERS * max(0, len(stores) - 1)
    for load in request.program.loads:
        if not isinstance(load, tile.Load) or load in taken or not _is_copied(load, request):
            continue
        each = _held_bytes(load) // (WARPGROUP_REGISTER * groups)
        found.append(load)
        room -= each
    return found if room >= 0 else []


def _held_bytes(load: tile.Load) -> int:
    """Bytes of a block that registers hold at once: of as many columns as are stored together; all
    of what dots add to.
    """
    t = tile_type(load.result)
    if any(isinstance(op, tile.Dot) for op in following(load, block_of(load).ops)):
        return t.bytes
    return t.bytes * min(SUBTILE_COLUMNS[0], t.extents[-1]) // t.extents[-1]


def _in_parts(sharing: Sharing) -> bool:
    """Whether a program's results are not one block's alone."""
    return sharing.members > 1 or sharing.split_k > 1 or sharing.stream_k > 0


def _is_copied(load: tile.Load, request: RoleRequest) -> bool:
    """Whether tensor maps can copy a block which is read behind all loops with dots, and of which
    no dot's operand is computed; dots in no loop may add to it.
    """
    if not _is_block(load) or block_of(load) not in _places(request):
        return False
    around = (ancestor(dot, block_of(load)) for dot in request.dots)
    loops = [at for at in around if isinstance(at, (scf.ForOp, scf.WhileOp))]
    operands = (v for dot in request.dots for v in (dot.a, dot.b))
    return all(at.is_before_in_block(load) for at in loops) and not any(
        v is load.result for v in reached(operands, made_of)
    )


def _is_block(load: tile.Load) -> bool:
    """Whether a load reads a block that a tensor map can copy, and that is worth a ring."""
    t = load.result.type
    if not isinstance(t, TileType) or t.bytes < MIN_BLOCK_BYTES or t.rank < 2:
        return False
    return load.mask is None and not loaded_by_consumers(load) and not unmapped(load)


def _places(request: RoleRequest) -> set[Block]:
    """The blocks of operations in which results are computed: those around loops with dots, and
    around dots in no loop.
    """
    found = set[Block]()
    for dot in request.dots:
        inside = [] if dot.parent_op() in request.loops else [dot]
        around = takewhile(lambda at: at is not request.kernel, parents(dot))
        found.update(block_of(at) for at in (*inside, *around))
    return found


def has_room(
    memory: BlockMemory, without: BlockMemory, sharing: Sharing, blocks: Sequence[tile.Load]
) -> bool:
    """Whether shared memory with a ring for each of some blocks, the last ones, holds a stage of
    each for every program of a block, stages enough of the others, or as many as without, and all
    that it held. Where two programs took turns with one stage, neither could tell from the parity
    whether it is filled for it, or was for the program before.
    """
    others, beside = memory.stages[: -len(blocks)], memory.stages[-len(blocks) :]
    least = [min(MIN_STAGES_BESIDE, n) for n in without.stages]
    enough = all(n >= m for n, m in zip(others, least, strict=True))
    same = (memory.blocks, len(memory.results)) == (without.blocks, len(without.results))
    return enough and same and min(beside) >= sharing.programs
