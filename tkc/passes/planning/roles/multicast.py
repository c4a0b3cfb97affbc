"""Which copies of operands the blocks of a cluster share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.types import bits
from tkc.ir.values import tile_type
from tkc.passes.analysis.alias import Overlaps, unwritten
from tkc.passes.analysis.mapped import dense_of_block, of_block
from tkc.passes.analysis.program_axes import program_axes, sources, ways_to
from tkc.passes.planning.operands import summed
from tkc.passes.planning.order import reads_first_of_written
from tkc.passes.planning.rings import Ring
from tkc.passes.planning.roles.request import RoleRequest
from tkc.passes.planning.roles.sharing import Sharing
from tkc.passes.programs.clusters import MAX_PORTABLE_CLUSTER


@dataclass(frozen=True)
class SharedCopy:
    """A copy that blocks of a cluster share: the buffer's axis along which they divide it, the
    boxes in which a share arrives, and the cluster's axes along which those blocks are.
    """

    axis: int
    boxes: int
    among: tuple[int, ...]


@dataclass(frozen=True)
class Multicast:
    """Blocks along the cluster's two axes, the copies that they share, and why one that they could
    share they do not.
    """

    cluster: tuple[int, int] = (1, 1)
    copies: Mapping[tile.Load, SharedCopy] = field(default_factory=dict)
    why_not: str = ""

    @staticmethod
    def of(request: RoleRequest, sharing: Sharing, rings: Sequence[Ring]) -> Multicast:
        asked = request.options.cluster
        shape = (2, 1) if asked is None else asked
        sizes = prod(shape) in range(2, MAX_PORTABLE_CLUSTER + 1)
        if not (sizes and _run_together(request, sharing) and _may_share(request)):
            return Multicast()
        along = [axis for axis, n in enumerate(shape) if n > 1]
        copied = [op for ring in rings for op in ring if isinstance(op, tile.Load)]
        if reads_first_of_written(copied, along, request.overlaps):
            why_not = "operands lie in an array of which every program writes a part"
            return Multicast(why_not=why_not)
        return _useful(request, rings, shape)


def _useful(request: RoleRequest, rings: Sequence[Ring], shape: tuple[int, int]) -> Multicast:
    """The copies that the blocks of a cluster share, those of the loop, with blocks only along axes
    of such copies.
    """
    is_asked = request.options.cluster is not None
    ring_of = _rings_in(request.main_loop, request.operand_loads, rings)
    found = {
        load: _shared_copy(load, ring, shape, is_asked, request.overlaps)
        for load, ring in ring_of.items()
    }
    copies = {load: copy for load, (copy, _) in found.items() if copy is not None}
    reasons = [why for _, why in found.values() if why]
    shared = {axis for copy in copies.values() for axis in copy.among}
    x, y = (n if axis in shared else 1 for axis, n in enumerate(shape))
    return Multicast((x, y), copies, reasons[-1] if reasons else "")


def _rings_in(
    loop: scf.ForOp | None, loads: Iterable[tile.Load], rings: Sequence[Ring]
) -> dict[tile.Load, Ring]:
    """The ring into which each load of a loop copies first."""
    ring_of = {load: ring for ring in reversed(rings) for load in ring}
    return {op: ring_of[op] for op in loads if op.parent_op() is loop and op in ring_of}


def _run_together(request: RoleRequest, sharing: Sharing) -> bool:
    """Whether neighbouring blocks know beforehand which programs they run, at the same time, and
    copy nothing that another program's wait is for.
    """
    options = request.options
    claimed = request.claims or sharing.members > 1
    if options.cluster is None:
        claimed = claimed or bool(options.dynamic_schedule) or sharing.stream_k > 0
    ordered = request.waits or request.copies_wait
    return not (claimed or ordered or sharing.split_k > 1 or request.has_third_role)


def _may_share(request: RoleRequest) -> bool:
    """Whether the blocks of a cluster can run the dots' loop step by step together, and it pays."""
    loop = request.main_loop
    dots = [dot for dot in request.dots if dot.parent_op() is loop]
    return (
        loop is not None
        and (len(dots) == 1 or summed(dots[0]))
        and (request.options.cluster is not None or not has_small_accumulators(dots))
        and not any(is_unbounded(load.array) for load in request.operand_loads)
    )


def _is_unread(op: Operation, overlaps: Overlaps) -> bool:
    """Whether a padding tile leaves out what an operation finds (programs/tile_groups.py), so that
    the other blocks of its cluster go by another number.
    """
    if isinstance(op, tile.LoadPointers):
        return True
    if isinstance(op, tile.Load):
        return is_unbounded(op.array) or not unwritten(op, overlaps)
    return isinstance(op, (scf.WhileOp, tile.Atomic))


def _shared_copy(
    load: tile.Load, ring: Ring, shape: tuple[int, int], is_asked: bool, overlaps: Overlaps
) -> tuple[SharedCopy | None, str]:
    """How blocks of a cluster share the copy of an operand; None where they do not, and why, if
    they could. All that fills its ring they must do equally often, whether they share it or not:
    the stage that is filled next is the same in each.
    """
    read = list(chain(load.operands, *map(ways_to, ring)))
    if any(_is_unread(op, overlaps) for op in sources(read)):
        return None, (
            "where an operand lies, or how often it is read, is found in memory by addresses, in a"
            " loop without a count or by an atomic, which a tile beyond the grid's end leaves out"
        )
    differs = program_axes(read)
    among = tuple(axis for axis, n in enumerate(shape) if n > 1 and axis not in differs)
    if not among or len(load.extents.get_values()) != 2 or min(load.extents.get_values()) < 0:
        return None, ""
    return _divided(load, shape, among, is_asked)


def _divided(
    load: tile.Load, shape: tuple[int, int], among: tuple[int, ...], is_asked: bool
) -> tuple[SharedCopy | None, str]:
    """How blocks of a cluster divide a block of two axes; None where they cannot, and why."""
    extents = load.extents.get_values()
    size = prod(shape[axis] for axis in among)
    panel = of_block(load).swizzle * 8 // bits(tile_type(load.result).element)
    dense = dense_of_block(load)
    boxes = extents[dense] // panel
    if boxes % size == 0:
        return SharedCopy(dense, 1, among), ""
    if extents[1 - dense] % (8 * size):
        return None, f"{extents[1 - dense]} rows of an operand do not divide in eights"
    if boxes == 1 or is_asked:
        return SharedCopy(1 - dense, boxes, among), ""
    return None, (
        f"a block's share of an operand {extents[dense]} wide would arrive in {boxes} boxes:"
        " by cluster = (2, 1) alone"
    )


def has_small_accumulators(dots: Sequence[tile.Dot]) -> bool:
    """Whether a program's sums are so small that its blocks share copies only as asked."""
    return (
        sum(tile_type(dot.acc).size for dot in dots if not isinstance(dot.acc.owner, tile.Dot))
        < 128 * 128
    )
