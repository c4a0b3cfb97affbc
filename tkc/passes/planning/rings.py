"""The rings of a loop's operands: which loads fill a stage together, what comes beside them, what
the converter fills, and how many stages each ring has.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from functools import lru_cache

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.registers import WARPGROUP_REGISTER
from tkc.ir.rewrite import counted_slice, following, loops_of
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import SharedType, TileType, bits
from tkc.ir.values import ancestor, block_of, first_of, holds, owner_op, tile_type
from tkc.passes import LaunchOptions
from tkc.passes.analysis.alias import Overlaps, kernel_around, unchanged
from tkc.passes.analysis.mapped import of_block, unmapped
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import is_computed_by
from tkc.passes.layouts.epilogue_subtiles import StoredResult, subtile_bytes
from tkc.passes.planning.converting import Conversion
from tkc.passes.planning.gathers import BY_CONSUMERS, copied_by_threads, unreachable
from tkc.passes.planning.operands import (
    MAX_BESIDE_BYTES,
    by_block,
    computed_from,
    leaves,
    source,
    summed,
)

THREADS_OF_A_ROW = 4  # that share a row of an accumulator
MAX_BROADCASTS = 8  # numbers that are broadcast with them
MIN_CO_RESIDENT_STAGES = 4  # of the rings that co-resident programs share
MAX_STAGES = 16
AMPLE_STAGES = 4  # of a loop's ring: more gain little
MIN_STAGES_BESIDE = 3  # of a loop's rings that hold blocks beside those of dots
MAX_RINGS = 12  # each takes registers for its stage, its parity and its addresses

# what fills a ring: loads, or the operation that makes what the converter writes
Ring = list[Operation]
# of each ring; none, and why
Stages = tuple[tuple[int, ...], str]


def rings_of(
    dots: Sequence[tile.Dot],
    relaid: Collection[tile.Load],
    converted: Collection[Conversion],
    late: Collection[tile.Dot],
    options: LaunchOptions,
) -> list[Ring]:
    """Loads that fill a stage together, those of one dot or of all that add up in a loop; behind
    them the rings of what the converter writes, each of one load that it relays, or of what it
    computes. A block that several dots read is in the ring of the first; what an operand is
    converted from has a ring of its own. What a late dot's left operand is computed from is read an
    iteration before its right one is, and comes in registers. Loads that are made one after the
    other, in loops and behind them, share a ring where their blocks are alike (`_joined`)."""
    rings = [list(loads) for loads in _converted_together(converted)]
    for group in _issued_together(dots):
        taken = {load for dot in group if dot in late for load in computed_from(dot, options)}
        taken.update(load for ring in rings for load in ring)
        loads = [load for load in operand_loads(group, options) if load not in taken]
        rings += _rings_of_group(loads, group[0].parent_op(), relaid)
    if not late:
        rings = _joined(
            rings, {block_of(dot) for dot in dots}, _read_by_converter(relaid, converted)
        )
    by_converter = [*relaid, *(owner_op(made.value) for made in converted)]
    return [*(list[Operation](ring) for ring in rings), *([op] for op in by_converter)]


def _read_by_converter(
    relaid: Collection[tile.Load], converted: Collection[Conversion]
) -> set[tile.Load]:
    """The loads whose blocks the converter reads."""
    return {*relaid, *(load for made in converted for load in made.loads)}


def _converted_together(converted: Collection[Conversion]) -> list[list[tile.Load]]:
    """The loads of which operands are computed by the converter, those together of which it
    computes one, or several that have a load in common.
    """
    found: list[list[tile.Load]] = []
    for made in converted:
        same = [loads for loads in found if not set(loads).isdisjoint(made.loads)]
        whole = dict.fromkeys(load for loads in (*same, made.loads) for load in loads)
        found = [*(loads for loads in found if loads not in same), list(whole)]
    return found


def _issued_together(dots: Sequence[tile.Dot]) -> list[list[tile.Dot]]:
    """The dots of a block that all add up in its loop, or each of them."""
    return [
        group
        for here in by_block(dots)
        for group in ([here] if summed(here[0]) else [[dot] for dot in here])
    ]


def _joined(
    rings: list[list[tile.Load]], places: Set[Block], by_converter: Collection[Operation]
) -> list[list[tile.Load]]:
    """With one ring for several whose stages hold blocks of the same kinds, or fewer of them, and
    of which each is read before the next is filled. places: the blocks of operations that dots
    are in; what is loaded round a dot's loop keeps a ring of its own. by_converter: the loads whose
    blocks the converter reads: it releases every stage of a ring of its own, and none of others.

        for k:  x[m, k], w[k, n]      6 stages of x and w        for k:  x[m, k], w[k, n]
        b[0, n]                       2 stages of b          ->  b[0, n] in the place of w
    """
    found: list[list[tile.Load]] = []
    for ring in rings:
        read = any(load in by_converter for load in ring)
        alike = [o for o in found if any(load in by_converter for load in o) == read]
        other = next((o for o in alike if _may_join(o, ring, places)), None)
        if other is None:
            found.append(list(ring))
        else:
            other += ring
    return found


def _may_join(ring: list[tile.Load], other: list[tile.Load], places: Set[Block]) -> bool:
    """Whether two rings may be one: of tensor maps or of threads, alike, and apart in time."""
    blocks, others = ({block_of(load) for load in loads} for loads in (ring, other))
    if not blocks | others <= places or len({copied_by_threads(op) for op in (*ring, *other)}) > 1:
        return False
    if not all(_are_apart(ring, a, other, b) for a in blocks for b in others):
        return False
    most = max(stage_bytes(ring), stage_bytes(other))
    return stage_bytes([*ring, *other]) == most


def _are_apart(ring: list[tile.Load], a: Block, other: list[tile.Load], b: Block) -> bool:
    """Whether the loads of one ring in a block of operations, and all that reads them there, come
    before, or behind, those of another ring in another block. Dots of a loop may still read their
    stage when its next iteration begins: what is loaded in loops in it has another ring.
    """
    if a is b:
        return False
    for loads, outer, inner in ((ring, a, b), (other, b, a)):
        around = ancestor(first_of(inner), outer)
        if around is None:
            continue
        if isinstance(outer.parent_op(), (scf.ForOp, scf.WhileOp)):
            return False
        mine = [load for load in loads if load.parent is outer]
        behind = all(around.is_before_in_block(load) for load in mine)
        if not (behind or all(_is_over_before(load, around) for load in mine)):
            return False
    return True


def _is_over_before(load: tile.Load, later: Operation) -> bool:
    """Whether a stage is free again before a later operation of its block: dots beside the load
    read it, and nothing else does, which would keep it until the block ends.
    """
    block = block_of(load)
    ends = _readers(load, block)
    by_dots = all(
        isinstance(use.operation, tile.Dot) and use.operation.parent is block
        for use, _ in leaves(load.result)
    )
    return by_dots and all(op.is_before_in_block(later) for op in ends)


def _readers(load: tile.Load, block: Block) -> Iterator[Operation]:
    """The operations of a block that read what is loaded in it, or hold such."""
    for use, _ in leaves(load.result):
        if (op := ancestor(use.operation, block)) is not None:
            yield op
            if is_computed_by(op.__class__):
                yield from (
                    found
                    for later in following(op, block.ops)
                    if (found := ancestor(later, block)) is not None
                )


def shared_places(items: Sequence[tuple[Set[Block], Hashable]]) -> list[int]:
    """For each load of a ring the number of its buffer in a stage: loads that stand in different
    blocks of operations and have the same kind of buffer may have the same. items: the blocks and
    the kind.
    """
    places: list[tuple[Hashable, set[Block]]] = []
    found = []
    for blocks, kind in items:
        at = next(
            (i for i, (k, taken) in enumerate(places) if k == kind and taken.isdisjoint(blocks)),
            None,
        )
        if at is None:
            at = len(places)
            places.append((kind, set()))
        places[at][1].update(blocks)
        found.append(at)
    return found


def _rings_of_group(
    loads: list[tile.Load], loop: Operation | None, relaid: Collection[tile.Load]
) -> list[list[tile.Load]]:
    """Those of dots that are issued together: one for all loads of their loop that tensor maps
    copy, and one for those that threads copy.
    """
    apart = [load for load in loads if load.parent_op() is not loop or load in relaid]
    left = [load for load in loads if load not in apart]
    threads = [load for load in left if copied_by_threads(load)]
    maps = [load for load in left if load not in threads]
    return [*([load] for load in apart), *(ring for ring in (threads, maps) if ring)]


def loads_beside(
    loop: scf.ForOp,
    rings: list[Ring],
    late: Sequence[tile.Dot],
    co_resident: bool,
    overlaps: Overlaps,
    room: int,
) -> dict[tile.Load, int]:
    """Adds to the rings of a loop's operands what stands beside their dots, where those who fill
    one, tensor maps or threads, can copy it: to the ring of the last dot that is issued before the
    block is needed. What is not small, the biases of scores for one, only where `room` bytes of
    shared memory still hold MIN_STAGES_BESIDE stages. The numbers that the producer can broadcast
    there, and which ring it is: those that say where an operand lies it needs itself, an iteration
    earlier. What co-resident programs share is what does not depend on axis 0. Where no operand is
    loaded in the loop, its blocks have a ring of their own.

    Otherwise registers would wait for memory, and the computation of an address would stand between
    the dots.
    """
    inner = [i for i, ring in enumerate(rings) if any(load.parent_op() is loop for load in ring)]
    operands = [load for i in inner for load in rings[i]]
    loads = _copied_ahead(loop, operands, co_resident, overlaps)
    if not inner:
        own = _own_ring(loads, rings, room)
        rings += [list[Operation](own)] if own else []
        return {}
    places = _rings_by_kind(rings, inner, loop, late)
    for op in loads:
        number = _ring_beside(op, places)
        if number is not None and _has_room_beside(op, rings, inner, room):
            rings[number].append(op)
    if len(inner) != 1 or is_filled_by_threads(rings[inner[0]]):
        return {}
    numbers = [op for op in loads if _is_number(op)]
    return dict.fromkeys(numbers[:MAX_BROADCASTS], inner[0])


def _rings_by_kind(
    rings: Sequence[Ring], inner: Sequence[int], loop: scf.ForOp, late: Sequence[tile.Dot]
) -> list[_RingOfDots]:
    """The rings of a loop that tensor maps fill, and those that threads do, where there are any."""
    threads = [i for i in inner if is_filled_by_threads(rings[i])]
    maps = [i for i in inner if i not in threads]
    alike = [{i: list(rings[i]) for i in found} for found in (maps, threads) if found]
    return [_RingOfDots(loop, found, late) for found in alike]


def _ring_beside(op: tile.Load, places: Sequence[_RingOfDots]) -> int | None:
    """The ring into which those who fill it can copy what stands beside dots, in time."""
    return next((at.before_use(op) for at in places if not at.why_not_copied(op)), None)


def is_filled_by_threads(ring: Sequence[Operation]) -> bool:
    """Whether a role of threads fills a ring, not tensor maps."""
    return isinstance(ring[0], tile.Load) and copied_by_threads(ring[0])


def small_load_registers(
    loops: Sequence[scf.ForOp], copied: Set[Operation], warpgroups: int
) -> int:
    """Registers that a consumer's thread holds of the small tiles that loops load beside their dots
    and no role copies.
    """
    return sum(
        _spread_registers(op.result, warpgroups)
        for loop in loops
        for op in loop.body.block.ops
        if isinstance(op, tile.Load)
        and op not in copied
        and isinstance(op.result.type, TileType)
        and op.result.type.bytes <= MAX_BESIDE_BYTES
    )


def pointer_registers(
    loops: Sequence[scf.ForOp], of_places: Set[Operation], warpgroups: int
) -> int:
    """Registers that a consumer's thread holds of the tiles and numbers that loops with dots load
    by pointers, but for those that say where blocks are copied from.
    """

    def held(t: Attribute) -> int:
        if isinstance(t, TileType):
            return -(-t.bytes // (WARPGROUP_REGISTER * warpgroups))
        return -(-bits(t) // 32)

    return sum(
        held(op.result.type)
        for loop in loops
        for op in loop.body.block.ops
        if isinstance(op, tile.LoadPointers) and op not in of_places
    )


def _spread_registers(value: SSAValue, warpgroups: int) -> int:
    """Registers of a thread for a small tile in the layout of an accumulator, in which a thread has
    two rows of 64, and a quarter of each: as many as the first use takes that says along which axis
    the tile is spread.
    """
    left = [value]
    while left:
        found = left.pop(0)
        t = tile_type(found)
        if t.rank >= 2:
            rows, columns = t.extents[-2:]
            mine = columns // THREADS_OF_A_ROW if columns > 1 else 1
            return max(1, 2 * rows // (64 * warpgroups)) * mine * bits(t.element) // 32
        left += [
            use.operation.results[0]
            for use in found.uses
            if is_computed_by(use.operation.__class__)
        ]
    return 0


def _own_ring(loads: Sequence[tile.Load], rings: Sequence[Ring], room: int) -> list[tile.Load]:
    """Of what a loop loads beside dots whose operands stay: the blocks that tensor maps copy, as
    far as stages have room for them; none where all are small, which registers hold early.
    """
    own: list[tile.Load] = []
    for op in loads:
        t = op.result.type
        if not isinstance(t, TileType) or unmapped(op):
            continue
        if _has_room(rings, (), stage_bytes([*own, op]), room):
            own.append(op)
    return own if any(tile_type(op.result).bytes > MAX_BESIDE_BYTES for op in own) else []


def _has_room_beside(
    op: tile.Load, rings: Sequence[Ring], inner: Collection[int], room: int
) -> bool:
    """Whether stages have room for what is loaded beside dots."""
    more = tile_type(op.result).bytes
    return more <= MAX_BESIDE_BYTES or _has_room(rings, inner, more, room)


def _has_room(rings: Sequence[Ring], inner: Collection[int], more: int, room: int) -> bool:
    """Whether so many bytes of shared memory hold enough stages of a loop's rings with so many
    bytes more a stage. inner: the rings of the loop; others have two stages.
    """
    of_loop = sum(stage_bytes(rings[i]) for i in inner) + more
    others = sum(stage_bytes(ring) for i, ring in enumerate(rings) if i not in inner)
    return MIN_STAGES_BESIDE * of_loop + 2 * others <= room


def _is_number(op: tile.Load) -> bool:
    return not isinstance(op.result.type, TileType) and bits(op.result.type) == 32


def _copied_ahead(
    loop: scf.ForOp, operands: Sequence[Operation], co_resident: bool, overlaps: Overlaps
) -> list[tile.Load]:
    """The loads of a loop, other than its operands, that a producer may copy iterations ahead."""
    body, kernel = loop.body.block, kernel_around(loop)

    def is_number_there(op: Operation) -> bool:
        """Whether the producer, too, can read a number that says where blocks are."""
        return isinstance(op, tile.Load) and _is_number(op) and unchanged(op, kernel, overlaps)

    def is_apart(op: tile.Load) -> bool:
        return co_resident and (
            is_unbounded(op.array)  # programs of a tile group may be padding
            or 0 in program_axes(op.operands, given=[body.args[0]])
        )

    return [
        op
        for op in body.ops
        if isinstance(op, tile.Load)
        and op not in operands
        and BY_CONSUMERS not in op.attributes
        and (op.mask is None or _is_number(op) or copied_by_threads(op))
        and unchanged(op, kernel, overlaps)
        and counted_slice(op.operands, loop, is_number_there) is not None
        and not is_apart(op)
        and following(op, body.ops).isdisjoint(operands)
    ]


class _RingOfDots:
    """Which ring of a loop arrives last before something in the loop is needed."""

    def __init__(self, loop: scf.ForOp, rings: dict[int, Ring], late: Sequence[tile.Dot]):
        self.body, self.rings = loop.body.block, rings
        self.behind_late = {op for dot in late for op in following(dot, self.body.ops)}
        # what a late dot reads is of another iteration
        self.dots = [
            (op, number)
            for op in self.body.ops
            if isinstance(op, tile.Dot) and op not in late
            for number, ring in rings.items()
            if any(source(operand) in ring for operand in (op.a, op.b))
        ]

    def why_not_copied(self, load: tile.Load) -> str:
        """Why those who fill these rings cannot copy what a load reads; empty if they can."""
        if is_filled_by_threads(next(iter(self.rings.values()))):
            return unreachable(load)
        return unmapped(load) if isinstance(load.result.type, TileType) else "it is a number"

    def before_use(self, load: tile.Load) -> int | None:
        """The ring of the last dot before the first use of what a load of the loop reads; None
        where it is used in another iteration.
        """
        if len(self.rings) == 1:
            return next(iter(self.rings))
        users = [ancestor(use.operation, self.body) for use in load.result.uses]
        if not users or not self.behind_late.isdisjoint(users):
            return None
        first = next(op for op in self.body.ops if op in users)
        earlier = [number for dot, number in self.dots if dot.is_before_in_block(first)]
        if earlier:
            return earlier[-1]
        return self.dots[0][1] if self.dots else None


def operand_loads(dots: Sequence[tile.Dot], options: LaunchOptions) -> list[tile.Load]:
    """The loads that the operands of some dots show, or consumers compute them from, each once."""
    return list(
        dict.fromkeys(
            load
            for dot in dots
            for load in [source(dot.a), source(dot.b), *computed_from(dot, options)]
            if isinstance(load, tile.Load)
        )
    )


@lru_cache(maxsize=1 << 8)
def _stage_of(t: TileType, layout: SharedLayout) -> SharedType:
    return SharedType(1, t.extents, t.element, layout)


def stage_bytes(ring: Sequence[Operation]) -> int:
    """Of a stage."""
    loads = [op for op in ring if isinstance(op, tile.Load)]
    written = sum(tile_type(op.results[0]).bytes for op in ring if op not in loads)
    types = [_stage_of(tile_type(load.result), of_block(load)) for load in loads]
    numbers = shared_places([({block_of(op)}, t) for op, t in zip(loads, types, strict=True)])
    first = {number: t for number, t in reversed([*zip(numbers, types, strict=True)])}
    return written + sum(t.bytes for t in first.values())


def run_ahead(rings: Sequence[Sequence[Operation]]) -> list[bool]:
    """Of each ring of loads, whether it has as many stages as one likes: it is of a loop that no
    other ring is inside of.
    """
    outer = {loop for ring in rings for loop in loops_of(ring[0])[1:]}
    return [
        isinstance(loop := ring[0].parent_op(), scf.ForOp) and loop not in outer for ring in rings
    ]


def stages_of(rings: Sequence[Ring], room: int, asked: int | None, members: int = 1) -> Stages:
    """Stages of each ring: two for what is loaded once a program, so that the next program's is
    there when it begins, one where that is too many, or where a loop that has few gets more by it
    and its program needs it behind that loop; as many as then fit for those of a loop, alike. Each
    of the co-resident programs has the former of its own: in a stage that was another's before,
    phases could not be told apart. They are not at the same step, and a loop's rings need stages
    for that.
    """
    if asked == 1:
        return (), "num_stages = 1: a ring has two stages or more"
    inner = run_ahead(rings)
    stages = [stage_bytes(ring) for ring in rings]
    most = min(MAX_STAGES, asked or MAX_STAGES)

    of_loops = sum(stage for i, stage in zip(inner, stages, strict=True) if i)

    def fit(outer: Sequence[int], least: int) -> tuple[int, ...] | None:
        once = [0 if i else n * members for i, n in zip(inner, outer, strict=True)]
        left = room - sum(n * stage for n, stage in zip(once, stages, strict=True))
        count = min(most, left // of_loops) if of_loops else most
        if left < 0 or count < least:
            return None
        return tuple(count if i else n for i, n in zip(inner, once, strict=True))

    def steps_ahead(chosen: tuple[int, ...] | None) -> int:
        """Stages of the loops' rings; 0 where nothing fits."""
        if chosen is None:
            return 0
        return min((n for n, i in zip(chosen, inner, strict=True) if i), default=most)

    chosen = fit([2] * len(rings), 2 if members == 1 else MIN_CO_RESIDENT_STAGES)
    late = [1 if members == 1 and _is_behind_loops(ring) else 2 for ring in rings]
    if 0 < steps_ahead(chosen) < AMPLE_STAGES and 1 in late:
        once = fit(late, 2)
        chosen = once if steps_ahead(once) > steps_ahead(chosen) else chosen
    if chosen is None:
        chosen = fit([1] * len(rings), 2)
    if chosen is not None:
        return chosen, ""
    return (
        (),
        (f"two stages of {' and '.join(map(str, stages))} bytes do not fit shared memory"),
    )


def _is_behind_loops(ring: Ring) -> bool:
    """Whether a ring is filled behind a loop with dots: while the next program's runs there is time
    for its copy.
    """
    at: Operation | None = ring[0]
    while at is not None:
        if isinstance(at, scf.ForOp) and _has_dots(at):
            return True
        at = at.prev_op
    return False


@remembered
def _has_dots(loop: scf.ForOp) -> bool:
    return holds(loop, tile.Dot)


def fitted(
    leaving: list[StoredResult],
    rings: Sequence[Ring],
    groups: int,
    widths: Sequence[int],
    copies: int,
    room: int,
    members: int,
    options: LaunchOptions,
) -> tuple[int, dict[int, int], dict[int, Stages]]:
    """Columns of the subtiles of results, narrower ones where wider ones leave no room for the
    rings; and, by how many buffers each result has in turn, their bytes, and the stages of rings
    beside them with why there are none.
    """
    for columns in widths:
        subtiles = {
            in_turn: copies * subtile_bytes(leaving, groups, columns, in_turn)
            for in_turn in {1, 2, options.subtiles or 1}
        }
        fitting = {
            in_turn: stages_of(rings, room - taken, options.num_stages, members)
            for in_turn, taken in subtiles.items()
        }
        if options.store_columns or columns <= 16 or not all(why for _, why in fitting.values()):
            break
    return columns, subtiles, fitting


def least_stages(
    rings: Sequence[Ring],
    loops: Collection[Operation],
    fitting: dict[int, Stages],
) -> int:
    """The fewest stages of a loop's ring, where results have the number of buffers that leaves
    most of them; 0 where none fit.
    """
    of_loops = [i for i, ring in enumerate(rings) if ring[0].parent_op() in loops]
    found = [stages for stages, why in fitting.values() if not why]
    return max((min((s[i] for i in of_loops), default=1) for s in found), default=0)


def exchanged_bytes(
    in_memory: Sequence[SSAValue], loops: Collection[scf.ForOp], groups: int
) -> int:
    """Of the operands that so many warpgroups write in loops, a stage each; 0 where one does."""
    if groups < 2:
        return 0
    return sum(
        tile_type(value).bytes
        for value in in_memory
        if isinstance(value.owner, Operation) and value.owner.parent_op() in loops
    )
