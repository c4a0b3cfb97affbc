"""Reductions, scans and votes over several warps, or blocks of a cluster.

Each warp reduces what it has; the partial results go through shared memory, and every thread
reduces those that it needs. Reductions that do not need one another's results share a barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as altered

from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import Digit, LayoutError, copies, total
from tkc.ir.elementwise import CLASSES, Cast, Elementwise, Select
from tkc.ir.layout import WARP, Layout
from tkc.ir.reductions import FUNCTION, IDEMPOTENT, reduces_at_once
from tkc.ir.rewrite import Builder, before, defining_slice, erase, erase_dead, replace
from tkc.ir.threads import Vote
from tkc.ir.types import TileType, bits, element_of, f32, is_bool, is_float
from tkc.ir.values import ancestor, defining_op, layout_of, operations_in, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.access import in_runs
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.values import LEAVES, POINTWISE, VIEWS
from tkc.passes.layouts.buffers import check_room, through_shared
from tkc.passes.layouts.conversions import convert, is_in_registers
from tkc.passes.layouts.movers import is_free

EXTREMES = ("max", "min", "fmax", "fmin")
# What each thread computes of its own registers alone.
THREAD_OPERATIONS = (*POINTWISE, *VIEWS, *LEAVES, tile.Slice, scf.IfOp, scf.YieldOp)
MAX_PARTIALS_PER_THREAD = 16
MAX_PARTIALS_BESIDE_LANES = 8  # where one instruction reduces what lanes have


# ---- votes
def settle_vote(op: Vote, context: PassContext) -> None:
    """By each warp alone, where nothing in the branches on it leaves a warp; else by all of the
    block; by all of a role it is a reduction.
    """
    alone = all(
        _is_within_warp(inner)
        for use in op.result.uses
        for region in use.operation.regions
        for inner in region.walk()
    )
    if alone or not context.has_roles:
        op.properties["scope"] = StringAttr("warp" if alone else "block")
        return
    t = tile_type(op.arg)
    line = _in_shape(op.arg, [t.size], op)  # along one axis, so that warps meet once
    replace(op, tile.Reduce("all", line, 0, [t.element]))


def _is_within_warp(op: Operation) -> bool:
    match op:
        case tile.Reduce() | tile.Scan():
            return layout_of(op.args[0]).warps_along(op.axis.value.data) == 1
        case tile.Reshape():
            return is_free(op)
        case shared.Convert():
            return is_in_registers(op)
    return isinstance(op, THREAD_OPERATIONS)


def _vote(op: tile.Reduce) -> None:
    """Whether all, or any, of a block's truth values hold: a vote at a barrier, or an earlier one
    of the same values.
    """
    build, negated, values = Builder(op), op.kind.data == "any", op.args[0]
    if negated:
        values = build(CLASSES["not"](values))
    vote = _earlier_vote(values, op)
    if vote is None:
        vote = build.do(Vote(values))
        vote.properties["scope"] = StringAttr("block")
    replace(op, [build(CLASSES["not"](vote.result)) if negated else vote.result])


def _earlier_vote(values: SSAValue, op: Operation) -> Vote | None:
    """A vote of the whole block on some values, before an operation."""
    for use in values.uses:
        vote = use.operation
        if isinstance(vote, Vote) and _is_before(vote, op) and vote.scope == StringAttr("block"):
            return vote
    return None


def _is_before(first: Operation, op: Operation) -> bool:
    """Whether an operation comes before another, or before what that is in."""
    at = ancestor(op, first.parent)
    return at is not None and first.is_before_in_block(at)


def _in_shape(value: SSAValue, shape: Sequence[int], op: Operation) -> SSAValue:
    """A tile under other extents, each element where it is. Raises LayoutError where its layout has
    no such form."""
    layout = layout_of(value).reshape(shape)
    t = TileType(layout.shape, tile_type(value).element, layout)
    return before(op, tile.Reshape(value, t)).result


# ---- reductions
def merge(kernel: tile.Kernel) -> None:
    """Makes reductions of reductions along neighbouring axes one along both: lanes and warps then
    meet once, for one number, where they met for each row.
    """
    for op in operations_in(kernel, tile.Reduce):
        _merge(op)


def _merge(op: tile.Reduce) -> None:
    inner, kind, outer = op.args[0].owner, op.kind.data, op.axis.value.data
    if not isinstance(inner, tile.Reduce) or kind not in FUNCTION or inner.kind.data != kind:
        return
    value, axis = inner.args[0], inner.axis.value.data
    outer += outer >= axis
    if not inner.results[0].has_one_use() or abs(outer - axis) != 1:
        return
    first, shape = min(outer, axis), layout_of(value).shape
    both = (*shape[:first], shape[first] * shape[first + 1], *shape[first + 2 :])
    try:
        line = _in_shape(value, both, op)
    except LayoutError:
        return
    replace(op, tile.Reduce(kind, line, first, [op.results[0].type]))
    erase(inner)


def reduce(op: tile.Reduce, context: PassContext) -> None:
    """A reduction along an axis that several warps, or blocks, share."""
    axis, kind, layout = op.axis.value.data, op.kind.data, layout_of(op.args[0])
    far = layout.blocks_along(axis) > 1
    if layout.warps_along(axis) * layout.blocks_along(axis) == 1:
        return
    if kind in ("argmax", "argmin"):
        return _gather_axis(op, context)
    if op.combine is not None and not _has_runs(layout, axis):
        return _reduce_elsewhere(op, in_runs(layout, axis, False), context)
    is_scalar = not isinstance(op.results[0].type, TileType)
    if kind in ("any", "all") and is_scalar and not far and not context.has_roles:
        return _vote(op)
    _reduce_parts(op, far, context)


def _reduce_parts(op: tile.Reduce, far: bool, context: PassContext) -> None:
    """Each warp reduces its own part, and each thread the parts that it needs. far: blocks of a
    cluster have parts.
    """
    axis, kind, wanted = op.axis.value.data, op.kind.data, _wanted_elsewhere(op)
    element = tile_type(op.args[0]).element
    partial = _partial(op, far)
    own = layout_of(op.args[0]).per_warp(axis)
    own = altered(own, shape=tile_type(partial.results[0]).extents)
    parts: list[SSAValue] = list(partial.results)
    # to other blocks words are sent (st.async), and each narrow number is one
    is_widened = far and bits(element) < 32 and not is_bool(element)
    if is_widened:
        parts = [_cast(part, f32 if is_float(element) else i32, op) for part in parts]
    read = _axis_of_parts(own, axis, kind, element)
    if wanted is not None:
        read = _with_axis(layout_of(wanted), axis, own)
    gathered = through_shared(parts, read, op, context, far)
    if is_widened:
        gathered = [_cast(part, element, op) for part in gathered]
    results = [r.type for r in op.results]
    if wanted is not None:
        results = [wanted.type]
        for user in [use.operation for use in op.results[0].uses]:
            replace(user, [op.results[0]])
    replace(op, tile.Reduce(kind, gathered, axis, results, _combine(op)))


# ---- where an extreme is
@dataclass(frozen=True)
class _Where:
    """A reduction of what is chosen where a line is equal to its extreme: of `where(x == m, a, b)`,
    where m is the extreme of x, and b a number.
    """

    extreme: tile.Reduce
    chosen: Select
    other: int | float
    op: tile.Reduce

    @staticmethod
    def of(op: tile.Reduce) -> _Where | None:
        """By an operation; None of others, of more lines than one, and within one warp."""
        chosen = defining_op(op.args[0], Select)
        if chosen is None or op.kind.data not in IDEMPOTENT:
            return None
        other = constant(chosen.if_false)
        equal = defining_op(chosen.condition, Elementwise)
        if other is None or equal is None or equal.fn.name != "eq":
            return None
        for x, number in (equal.args, equal.args[::-1]):
            splat = defining_op(number, tile.Splat)
            extreme = defining_op(splat.arg if splat is not None else None, tile.Reduce)
            if extreme is not None and extreme.kind.data in EXTREMES and extreme.args[0] is x:
                layout = layout_of(x)
                alone = layout.num_warps > 1 == layout.num_blocks and extreme.parent is op.parent
                return _Where(extreme, chosen, other, op) if alone else None
        return None


def meet_once(kernel: tile.Kernel, context: PassContext) -> None:
    """Where an extreme is among what several warps have, they meet once: each finds its own extreme
    and where that is, and of those places counts what has the extreme of all.

        %m = tile.reduce max[%x]                    %m = tile.reduce_partial max[%x]
        %e = tile.eq %x, splat %m                   %s = tile.spread_partial %m
        %i = tile.select %e, %places, %n            %e = tile.eq %x, %s
        %p = tile.reduce min[%i]                ->  %i = tile.select %e, %places, %n
                                                    %q = tile.reduce_partial min[%i]
                                                    write, read %m, %q
                                                    %f = tile.eq %m, splat of tile.reduce max[%m]
                                                    %p = tile.reduce min[tile.select %f, %q, %n]
    """
    several = [found for op in operations_in(kernel, tile.Reduce) if (found := _Where.of(op))]
    for found in several:
        _meet_once(found, context)
    if several:
        erase_dead(kernel.body.block)


def _meet_once(found: _Where, context: PassContext) -> None:
    extreme, op, x = found.extreme, found.op, found.extreme.args[0]
    kind, t = extreme.kind.data, tile_type(x)
    own = _partial(extreme, False)
    here = layout_of(own.results[0])
    read = _axis_of_parts(here, 0, kind, t.element)
    (parts,) = through_shared([own.results[0]], read, extreme, context)
    replace(extreme, whole := tile.Reduce(kind, parts, 0, [t.element]))
    build = Builder(op)
    spread = build(shared.SpreadPartial(own.results[0], 0, t))
    chosen = build.select(build.eq(x, spread), found.chosen.if_true, found.chosen.if_false)
    kind, element = op.kind.data, tile_type(chosen).element
    line = TileType(here.shape, element, here)
    place = build(shared.ReducePartial(kind, [chosen], 0, [line], None))
    (places,) = through_shared([place], read, op, context)
    all_ = build(tile.Splat(whole.results[0], tile_type(parts)))
    none = build.number(found.other, tile_type(places))
    chosen = build.select(build.eq(parts, all_), places, none)
    replace(op, tile.Reduce(kind, chosen, 0, [element]))


def _partial(op: tile.Reduce, far: bool) -> shared.ReducePartial:
    """What each warp's part comes to. Lanes that have no copies of it exchange half of what they
    have, not all of it, and write less; not of what other blocks get, or of truth values.
    """
    axis, layout = op.axis.value.data, layout_of(op.args[0])
    held = layout.per_warp(axis)
    if op.combine is not None:
        held = _without_padding(held, layout, axis)
    elif not far and not is_bool(tile_type(op.args[0]).element):
        held = layout.per_lane(axis)
    types = [TileType(held.shape, tile_type(a).element, held) for a in op.args]
    return before(op, shared.ReducePartial(op.kind.data, op.args, axis, types, _combine(op)))


def _wanted_elsewhere(op: tile.Reduce) -> SSAValue | None:
    """The result of a reduction in the other layout in which alone it is wanted: threads read what
    they need in shared memory, and it need not move again.
    """
    result, users = op.results[0], [use.operation for use in op.results[0].uses]
    wanted = [user.result for user in users if isinstance(user, shared.Convert)]
    if len(op.results) > 1 or len(wanted) < len(users) or len({v.type for v in wanted}) != 1:
        return None
    if tile_type(wanted[0]).register_layout is None:
        return None
    is_shared = max(layout_of(v).num_blocks for v in (wanted[0], result)) > 1
    return None if is_shared else wanted[0]


def _with_axis(layout: Layout, axis: int, of: Layout) -> Layout:
    """A layout with one more axis, in each thread's registers, as another one has it."""

    def moved(digits: Iterable[Digit]) -> tuple[Digit, ...]:
        return tuple(altered(d, axis=d.axis + 1) if d.axis >= axis else d for d in digits)

    registers = (Digit(of.shape[axis], axis, 1), *moved(layout.registers))
    return Layout(of.shape, registers, moved(layout.lanes), moved(layout.warps))


def _without_padding(per_warp: Layout, layout: Layout, axis: int) -> Layout:
    """Of what each warp's run of an axis comes to, those of runs that hold more than padding."""
    runs = -(-layout.shape[axis] * per_warp.shape[axis] // layout.padded_shape[axis])
    shape = (*per_warp.shape[:axis], runs, *per_warp.shape[axis + 1 :])
    return altered(per_warp, shape=shape)


def _reduce_elsewhere(op: tile.Reduce, layout: Layout, context: PassContext) -> None:
    """In another layout, and back."""
    axis, there = op.axis.value.data, _moved(op, layout, context)
    types = [
        r.type.with_layout(layout.drop(axis)) if isinstance(r.type, TileType) else r.type
        for r in op.results
    ]
    moved = before(op, tile.Reduce(op.kind.data, there, axis, types, _combine(op)))
    _put_back(op, there, moved, context)
    reduce(moved, context)


def _cast(value: SSAValue, element: Attribute, at: Operation) -> SSAValue:
    return before(at, Cast(value, tile_type(value).with_element(element))).result


def share_barriers(kernel: tile.Kernel) -> None:
    """Puts the writes of neighbouring reductions together, before the first one's result is read:
    one barrier then serves both.
    """
    for block in dict.fromkeys(op.parent for op in kernel.walk() if _is_partial_write(op)):
        if block is not None:
            _share_barriers_of(block)


def _is_partial_write(op: Operation) -> bool:
    """Whether what warps hold of a reduction is written here, for all to read. (Not truth values of
    a cluster, which its barriers order: two such exchanges in a loop need no barrier more than
    one.)
    """
    return (
        isinstance(op, shared.Write)
        and isinstance(op.value.owner, shared.ReducePartial)
        and not (op.everywhere and is_bool(element_of(op.value.type)))
    )


def _share_barriers_of(block: Block) -> None:
    first_read: Operation | None = None
    for op in [op for op in block.ops if isinstance(op, shared.Write) and _is_partial_write(op)]:
        readers = (use.operation for use in op.buffer.uses)
        read = next(reader for reader in readers if isinstance(reader, shared.Read))
        if first_read is None or not _moved_before(op, block, first_read):
            first_read = read


def _moved_before(op: shared.Write, block: Block, read: Operation) -> bool:
    """Moves a write, and what it needs, before a read, if none of that needs what is read."""
    needed = [
        inner for inner in defining_slice(op.operands, block) if not inner.is_before_in_block(read)
    ]
    kinds = (shared.Alloc, shared.ReducePartial, shared.SpreadPartial, *POINTWISE, *VIEWS, *LEAVES)
    if not all(isinstance(inner, kinds) for inner in needed):
        return False
    for inner in (*needed, op):
        inner.detach()
    block.insert_ops_before([*needed, op], read)
    return True


def _copied(digits: Iterable[Digit], axis: int) -> tuple[Digit, ...]:
    """Digits of which those along an axis count copies."""
    return tuple(copies(d.extent) if d.axis == axis else d for d in digits)


def _axis_of_parts(
    layout: Layout, axis: int, kind: str = "", element: Attribute | None = None
) -> Layout:
    """The same tile with that axis in each thread's registers, the rest where it was; a long one
    over the lanes, if these hold only copies.
    """
    count, lanes = layout.shape[axis], layout.lanes
    warps, blocks = _copied(layout.warps, axis), _copied(layout.blocks, axis)
    if all(d.axis < 0 for d in lanes):
        at_once = element is not None and kind in IDEMPOTENT and reduces_at_once(kind, element)
        if count > MAX_PARTIALS_PER_THREAD and count % WARP == 0:
            lanes = (Digit(WARP, axis, count // WARP),)
        elif at_once and MAX_PARTIALS_BESIDE_LANES < count < WARP and WARP % count == 0:
            lanes = (Digit(count, axis, 1), copies(WARP // count))
    held = total(d for d in lanes if d.axis == axis)
    registers = (Digit(count // held, axis, 1), *layout.registers)
    return Layout(layout.shape, registers, lanes, warps, blocks)


# ---- all of an axis in each warp
def _gather_axis(op: tile.Reduce, context: PassContext) -> None:
    """For what cannot be done warp by warp: each warp of the axis gets all of it."""
    axis = op.axis.value.data
    for i, arg in enumerate(op.args):
        check_room(tile_type(arg), op, context)
        wanted = tile_type(arg).with_layout(_gathered(layout_of(arg), axis))
        conversion = before(op, shared.Convert(arg, wanted))
        op.operands[i] = conversion.result
        convert(conversion, context)


def _gathered(layout: Layout, axis: int) -> Layout:
    """The axis of a layout moved from warps into registers (above its other digits), replicated
    over those warps.
    """

    def along(digits: Iterable[Digit]) -> list[Digit]:
        return sorted((d for d in digits if d.axis == axis), key=lambda d: d.stride)

    moved, step = {}, 1
    for digit in (*along((*layout.registers, *layout.lanes)), *along(layout.warps)):
        moved[digit] = Digit(digit.extent, axis, step)
        step *= digit.extent

    def renumbered(digits: Iterable[Digit]) -> tuple[Digit, ...]:
        return tuple(moved.get(d, d) for d in digits)

    return Layout(
        layout.shape,
        renumbered(layout.registers) + renumbered(along(layout.warps)),
        renumbered(layout.lanes),
        _copied(layout.warps, axis),
    )


# ---- scans
def scan(op: tile.Scan, context: PassContext) -> None:
    """Over warps: each scans its run, then puts in front what the runs before it come to. Where the
    runs are in pieces, the tile is moved first.
    """
    args, axis, kind = list(op.args), op.axis.value.data, op.kind.data
    layout = layout_of(args[0])
    if layout.warps_along(axis) == 1:
        return
    if not _has_runs(layout, axis):
        return _scan_elsewhere(op, in_runs(layout, axis, False), context)

    own = layout.per_warp(axis)  # a run's number is its warp's
    types, back = [a.type for a in args], op.reverse is not None
    per_run = [TileType(own.shape, tile_type(a).element, own) for a in args]
    both = [*types, *per_run]
    scanned = before(op, shared.ScanTotal(kind, args, axis, both, back, _combine(op)))
    totals = through_shared(scanned.totals, _axis_of_parts(own, axis), op, context)
    _reuse_total(op, totals[0])
    values = [*scanned.prefixes, *totals]
    replace(op, shared.ScanCarry(kind, values, axis, types, back, _combine(op)))


def _has_runs(layout: Layout, axis: int) -> bool:
    """Whether each warp's part of an axis is in one piece."""
    run = layout.padded_shape[axis] // layout.warps_along(axis)
    return all(d.stride % run == 0 for d in layout.digits(axis, ["warps"]))


def _scan_elsewhere(op: tile.Scan, layout: Layout, context: PassContext) -> None:
    """In another layout, and back."""
    there, back = _moved(op, layout, context), op.reverse is not None
    moved = before(op, tile.Scan(op.kind.data, there, op.axis.value.data, back, _combine(op)))
    _put_back(op, there, moved, context)
    scan(moved, context)


def _moved(op: tile.AlongAxis, layout: Layout, context: PassContext) -> list[SSAValue]:
    """The tiles of an operation in another layout."""
    check_room(tile_type(op.args[0]), op, context)
    return [_converted(a, tile_type(a).with_layout(layout), op) for a in op.args]


def _put_back(
    op: tile.AlongAxis, there: Sequence[SSAValue], moved: tile.AlongAxis, context: PassContext
) -> None:
    """What an operation in another layout gives, in place of this one's results."""
    both = zip(moved.results, op.results, strict=True)
    here = [_converted(new, old.type, op) for new, old in both]
    replace(op, here)
    for value in (*there, *here):
        if (conversion := defining_op(value, shared.Convert)) is not None:
            convert(conversion, context)


def _converted(value: SSAValue, t: Attribute, at: Operation) -> SSAValue:
    return value if value.type == t else before(at, shared.Convert(value, t)).result


def _combine(op: tile.AlongAxis) -> Region | None:
    return op.combine.clone() if op.combine is not None else None


def _reuse_total(scan: tile.Scan, total: SSAValue) -> None:
    """A reduction of what is scanned, along the same axis and after the scan, is one of the totals
    of its runs.
    """
    later: list[tile.Reduce] = []
    op = scan.next_op
    while op is not None and scan.combine is None:
        is_same = isinstance(op, tile.Reduce) and (op.kind, op.axis) == (scan.kind, scan.axis)
        if isinstance(op, tile.Reduce) and is_same and list(op.args) == list(scan.args):
            later.append(op)
        op = op.next_op
    for reduction in later:
        result = reduction.results[0].type
        replace(reduction, tile.Reduce(scan.kind.data, total, scan.axis.value.data, [result]))
