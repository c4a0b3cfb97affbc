"""Blocks that a role of threads copies to shared memory by cp.async, because tensor maps cannot:
gathers by index arithmetic, masked blocks, blocks of arrays that the host does not know, rows that
do not start at multiples of 16 bytes.

    row = where(inside, (image * H + y) * W + x, -1)
    a = load x[row, c]                                    filled with zeros where the row is -1

The role (warpgroups/producing.py) computes indices and masks itself, from constants, aranges,
scalars and what it loads: a list of rows is read by each thread for the rows that it copies. A
thread moves at least 4 bytes at a time.

What no role can copy ahead (tiles of pointers, rows that start at odd bytes, a block that its own
program may have written in the same loop) the consumers load themselves, in the order of the
program: to the dot it is an operand that is computed.
"""

from __future__ import annotations

from enum import StrEnum

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.layout import Layout, blocked
from tkc.ir.ranges import divisor
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import TileType, bits
from tkc.ir.values import array_type, defining_op, operands_first, owner_op, tile_type, tiles
from tkc.passes.analysis.mapped import MIN_SWIZZLE_BYTES, dense_axis, unmapped
from tkc.passes.analysis.remembered import mark, remembered
from tkc.passes.analysis.values import POINTWISE, Kinds

COPIER_WARPS = 4  # of the role that copies by cp.async
# of a load that the consumers make, although one of the roles that copy could: why
BY_CONSUMERS = "by_consumers"
# what threads compute again
RECOMPUTED = (*POINTWISE, tile.Load, tile.Broadcast, tile.Transpose)
VECTOR_BYTES = 16, 8, 4  # of one thread's copy by cp.async


def uncopied(load: tile.Load) -> str:
    """Why neither tensor maps nor threads copy an operand's block; empty if one of them can."""
    mapped = unmapped(load)
    if not mapped or not (reason := unreachable(load)):
        return ""
    return f"{mapped}, and {reason}"


def copied_by_threads(load: tile.Load) -> bool:
    """Whether threads copy a block, because no tensor map can."""
    return bool(unmapped(load)) and not unreachable(load)


def loaded_by_consumers(load: tile.Load | tile.LoadPointers) -> bool:
    """Whether no role can copy a block for those who multiply, so that they load it themselves."""
    return isinstance(load.result.type, TileType) and bool(why_by_consumers(load))


def why_by_consumers(load: tile.Load | tile.LoadPointers) -> str:
    """Why no role can copy a block; empty if one can."""
    if not isinstance(load, tile.Load):
        return "pointers say where it is"
    if isinstance(why := load.attributes.get(BY_CONSUMERS), StringAttr):
        return why.data
    return uncopied(load)


class Why(StrEnum):
    """Why the consumers load what a role could copy."""

    WRITTEN = "its program may write what it reads"
    MOVED = "its program may write what says where it lies"
    NO_ROLE = "the role that would copy it relays an operand"


def load_by_consumers(load: tile.Load, why: Why) -> None:
    """Has the consumers load a block, each where its program says."""
    mark(load, BY_CONSUMERS, StringAttr(why))


def copier_layout(memory: SharedLayout) -> Layout:
    """Which thread of the role copies what of a block: 16 bytes each, coalesced."""
    elements = max(VECTOR_BYTES[0] * 8 // memory.bits, 1)
    return blocked(memory.shape, elements, COPIER_WARPS, memory.order)


@remembered
def unreachable(load: tile.Load) -> str:
    """Why threads of another role cannot copy a block; empty if they can."""
    if not isinstance(t := load.result.type, TileType):
        return "it is a number"
    kinds = Kinds()
    indices = [v for v in (*load.offsets, load.mask) if v is not None]
    if load.other is not None:
        return "what it is filled with is not zero"
    if not all(is_recomputed(v, kinds) for v in indices):
        return "its indices or its mask depend on tiles that other threads have parts of"
    dense, extents = dense_axis(load.array), load.extents.get_values()
    stride = array_type(load.array).facts.strides[dense].exact
    if extents[dense] < 0 or stride != 1 or isinstance(load.offsets[dense].type, TileType):
        return "neither rows nor columns are dense"
    if t.rank > 2:
        return "it has more axes than two"
    if extents[dense] * bits(t.element) // 8 % MIN_SWIZZLE_BYTES:
        return "its rows are narrower than a swizzle"
    if not copied_bytes(load):
        return "its rows do not start and end at multiples of 4 bytes"
    return ""


def is_recomputed(value: SSAValue, kinds: Kinds) -> bool:
    """Whether threads of another role can have a value in any layout without asking others: a
    scalar, a tile of constants and aranges, or one that is computed of these element by element, or
    loaded by them as indices.
    """

    def sources(at: SSAValue) -> list[SSAValue]:
        known = kinds.cheap(at) or not (isinstance(at.owner, RECOMPUTED) or _is_rank_change(at))
        return [] if known else tiles(owner_op(at).operands)

    memo: dict[SSAValue, bool] = {}
    if not isinstance(value.type, TileType):
        return True
    for at in operands_first(value, sources, memo):
        found = sources(at)
        loaded = isinstance(at.owner, tile.Load)
        memo[at] = kinds.cheap(at) or (loaded or bool(found)) and all(memo[v] for v in found)
    return memo[value]


def _is_rank_change(value: SSAValue) -> bool:
    """Whether a tile is another with axes of extent 1 more or fewer: each thread has the elements
    that it needs. Other reshapes may need what others have.
    """
    op = defining_op(value, tile.Reshape)
    if op is None:
        return False
    before, behind = ([n for n in tile_type(v).extents if n > 1] for v in (op.arg, op.result))
    return before == behind


@remembered
def copied_bytes(load: tile.Load) -> int:
    """Bytes of a row that a thread may copy at once, wherever in the block: 16, 8, 4, or 0 where
    that is less.
    """
    facts, dense = array_type(load.array).facts, dense_axis(load.array)
    steps = [s for axis, s in enumerate(facts.strides) if axis != dense]
    for size in VECTOR_BYTES:
        count = max(size * 8 // bits(tile_type(load.result).element), 1)
        if (
            facts.align % size == 0
            and divisor(load.offsets[dense]) % count == 0
            and all(step.divisible(count) for step in steps)
        ):
            return size
    return 0
