"""Results of a program: which of them leave through shared memory, by tensor maps or by threads, in
subtiles of how many columns, and through which buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.types import TileType, bits, element_of, is_float
from tkc.ir.values import array_type, tile_type
from tkc.passes import LaunchOptions
from tkc.passes.analysis.mapped import dense_of_block, unmapped
from tkc.passes.analysis.values import POINTWISE
from tkc.passes.layouts.epilogue_subtiles import (
    EPILOGUE_REGISTERS_PER_THREAD,
    ResultStore,
    StoredResult,
    reusable_loads,
    subtile,
    subtile_buffers,
    widest_subtile,
)
from tkc.passes.planning.operands import ADDRESS_REGISTERS
from tkc.passes.planning.rings import Stages
from tkc.passes.planning.roles.registers import LARGE_ROLE_REGISTERS, ROLE_REGISTERS


def subtile_stores(
    kernel: tile.Kernel,
    heights: Set[int],
    groups: int,
    swapped: bool = False,
    by_columns: Set[tile.Dot] = frozenset(),
) -> list[StoredResult]:
    """The stores of results that are stored in subtiles. heights: rows of the dots' results, as
    warpgroups hold them; swapped: the dots will be computed as their transposes; by_columns: dots
    whose columns warpgroups share.
    """
    stores = [
        StoredResult.of(op, swapped, _dot_behind(op.value) in by_columns)
        for op in kernel.walk()
        if isinstance(op, ResultStore) and isinstance(op.value.type, TileType)
    ]
    return [
        store
        for store in stores
        if subtile(store, groups, 64)
        and (store.by_columns or tile_type(store.op.value).extents[store.transposed] in heights)
        and (is_stored_by_map(store.op) or is_stored_by_threads(store))
    ]


def _dot_behind(value: SSAValue) -> tile.Dot | None:
    """The dot of whose result a tile is computed, element by element, or its transpose is."""
    while isinstance(op := value.owner, (*POINTWISE, tile.Transpose)):
        tiles = [v for v in op.operands if isinstance(v.type, TileType)]
        if not tiles:
            return None
        value = tiles[0]
    return op if isinstance(op, tile.Dot) else None


def is_stored_by_map(op: ResultStore) -> bool:
    """Whether tensor maps can store parts of a matrix, or add them to it."""
    if isinstance(op, tile.AtomicBlock) and not _is_reduced_by_map(op):
        return False
    return not unmapped(op) and dense_of_block(op) == 1 and tile_type(op.value).rank == 2


def is_stored_by_threads(store: StoredResult) -> bool:
    """Whether threads can store parts of a matrix by rows, which they have exchanged through shared
    memory: of an accumulator a thread has two elements of a row, too few for a store of its own.
    """
    op = store.op
    if store.transposed or store.by_columns:
        return False
    if not isinstance(op, tile.Store) or op.mask is not None:
        return False
    kept = [axis for axis, n in enumerate(op.extents.get_values()) if n >= 0]
    if len(kept) != 2 or isinstance(op.offsets[kept[1]].type, TileType):
        return False
    return array_type(op.array).facts.strides[kept[1]].exact == 1


def _is_reduced_by_map(op: tile.AtomicBlock) -> bool:
    """Whether the tensor memory accelerator can update memory so: sums of 16- and 32-bit floats,
    and extrema of 16-bit floats.
    """
    element = element_of(op.value.type)
    if not is_float(element):
        return False
    return op.kind.data in {16: ("add", "min", "max"), 32: ("add",)}.get(bits(element), ())


def widest_columns(
    stores: list[ResultStore], sums: int, consumers: int, options: LaunchOptions
) -> tuple[int, str]:
    """How many columns of a result are stored at once, at most, and why not as asked. Where stores
    that could be stored in subtiles are not, a thread has addresses beside them.
    """
    direct = options.epilogue == "direct"
    room = EPILOGUE_REGISTERS_PER_THREAD
    if consumers > 2:
        room -= LARGE_ROLE_REGISTERS[1] - ROLE_REGISTERS[consumers][1]
    most = widest_subtile(stores, sums + direct * ADDRESS_REGISTERS, room)
    asked = options.store_columns or 0
    if stores and not direct and asked == 8:
        return most, "a subtile is 16 columns wide or more"
    if asked > most:
        return most, f"beside an accumulator of {sums} registers a thread there is room for {most}"
    return asked or most, ""


def reused_stages(
    results: list[StoredResult],
    rings: Sequence[Sequence[Operation]],
    loop: Operation | None,
    groups: int,
    columns: int,
    stages: Stages,
    members: int,
    by_threads: bool,
) -> tuple[list[tile.Load], str]:
    """The loads through whose stages results can be stored, one a store; and why none can. A stage
    is released once the next program has begun, so each program needs two. stages: of each ring
    where results have no buffers, and why there are none.
    """
    if not results:
        return [], "results are stored from registers"
    if by_threads or not all(is_stored_by_map(store.op) for store in results):
        return [], "threads store results through buffers of their own"
    if groups > 1:
        return [], "each warpgroup of a program stores its rows when it has them"
    if loop is None:
        return [], "dots are in several loops, or in none"
    found = reusable_loads(results, _loaded_alone(rings, loop), loop, groups, columns)
    if not found:
        return [], "no load's buffer has room for them when they are stored"
    counts, reason = stages
    if not counts:
        return [], reason
    if any(n < 2 * members for n, ring in zip(counts, rings, strict=True) if ring[0] in found):
        return [], "the next program's have no stage beside them"
    return found, ""


def _loaded_alone(rings: Sequence[Sequence[Operation]], loop: Operation) -> list[tile.Load]:
    """The loads outside of a loop that have a ring each."""
    outside = [ring[0] for ring in rings if len(ring) == 1 and ring[0].parent_op() is not loop]
    return [op for op in outside if isinstance(op, tile.Load)]


def why_not_in_turn(
    results: list[StoredResult],
    groups: int,
    columns: int,
    fitting: Mapping[int, Stages],
    asked: int | None,
) -> str:
    """Why a result is not stored through as many buffers in turn as asked; empty where it is."""
    if not asked:
        return ""
    if not results:
        return "results are stored from registers"
    counts, reason = fitting[asked]
    if not counts:
        return f"beside them {reason}"
    if any(subtile_buffers(store, groups, columns, asked) != asked for store in results):
        return "a result's parts are no multiple of so many"
    return ""
