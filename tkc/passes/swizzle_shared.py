"""swizzle-shared: level 1 to level 2. Data that must cross threads goes through shared memory, in
the swizzle its users allow.

Three things cross threads. A load that is only wanted in another layout becomes a copy and a read:

    %x = tile.load %a[%m, %k] {extents = array<i64: 128, 64>}
         : (…) -> !tile.tile<128x64xbf16, "blocked …">
    %y = tile.convert %x : (…) -> !tile.tile<128x64xbf16, "mma a …">
  becomes
    %b = tile.alloc : !tile.shared<1, 128x64xbf16, "128x64xb16 swizzle 128">
    tile.copy %a[%m, %k] %b {extents = …, vector = 16}
    %y = tile.read %b : (…) -> !tile.tile<128x64xbf16, "mma a …">

Any other conversion between warps becomes a write and a read; a reshape between extents that do not
nest a write, a view of the dense buffer under the other extents (tile.shared_reshape), and a read.
A reduction whose axis runs over warps becomes

    %p = tile.reduce_partial sum %x {axis = 1}     one element for each warp along the axis
    tile.write %b, %p
    %q = tile.read %b                              the axis now in the registers of every thread
    %r = tile.reduce sum[%q] {axis = 1}

Reductions that do not need one another's results share a barrier: what of the second one's does not
follow from the first one's result is done before that is read.

A scan whose axis runs over warps is that of each warp's run, with what the runs before come to in
front, which goes the same way:

    %p, %t = tile.scan_total sum[%x] {axis = 1}    of each warp's run alone, and what it comes to
    tile.write %b, %t
    %q = tile.read %b                              the axis now in the registers of every thread
    %r = tile.scan_carry sum[%p, %q] {axis = 1}

By a function of the user's there are several tiles, and as many totals. A reduction of what is
scanned, after the scan, is one of those totals.

The number of a program that one thread claims (tile.next_program) goes the same way in kernels
without roles: written after the last other write, read where it is used.

Of the layouts a buffer may have, the one with the fewest bank conflicts over all its accesses is
taken; the degree of each access is recorded on it (`conflicts`, 1 is none). Buffers are plain (one
stage) and every copy is complete when it returns.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import Digit, copies
from tkc.ir.fragments import matrix_access
from tkc.ir.layout import Layout, movement
from tkc.ir.plan import LoadPlan, Plan, number_of, place_of
from tkc.ir.rewrite import after, before, counted_slice, erase, replace
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.threads import LEAST_COPIED_BYTES, BroadcastLoad, BroadcastStore, NextProgram, Vote
from tkc.ir.types import SharedType, TileType, bits
from tkc.ir.values import block_of, extents_of, layout_of, shared_type, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.alias import unchanged
from tkc.passes.analysis.mapped import dense_of_block, of_block
from tkc.passes.analysis.own import private
from tkc.passes.layouts import conversions, reductions
from tkc.passes.layouts.accumulator_stores import store_in_parts
from tkc.passes.layouts.buffers import allocated, read, recorded, view, written
from tkc.passes.layouts.movers import is_free


def run(module: ModuleOp, context: PassContext) -> None:
    """Level 1 to level 2, in place."""
    for kernel in tile.kernels_of(module):
        _copy_operands(kernel, context)
        if context.plan is not None and context.has_roles:
            store_in_parts(kernel, context.plan, context)
        for op in list(kernel.walk()):
            if isinstance(op, Vote):
                reductions.settle_vote(op, context)
        reductions.merge(kernel)
        reductions.meet_once(kernel, context)
        for op in list(kernel.walk()):
            _cross_threads(op, context)
        reductions.share_barriers(kernel)
        for op in list(kernel.walk()):
            if isinstance(op, NextProgram) and context.plan is not None and not context.has_roles:
                _claim(op, context.plan)
        for op in list(kernel.walk()):
            if isinstance(op, tile.Load) and op.result.first_use is None:
                erase(op)
        kernel.set_integer("level", 2)


def _copy_operands(kernel: tile.Kernel, context: PassContext) -> None:
    """What the plan wants in shared memory."""
    for op in list(kernel.walk()):
        if isinstance(op, tile.Load) and isinstance(op.result.type, TileType):
            _copy_load(op, op.result.type, context)
        elif isinstance(op, tile.Load):
            _note_fetch(op, context)
        elif isinstance(op, shared.Convert) and tile_type(op.result).shared_layout is not None:
            _relaid(op, context)


def _copy_load(op: tile.Load, t: TileType, context: PassContext) -> None:
    if t.shared_layout is not None:
        _view(op.result, _copied(op, t.shared_layout, context))
        erase(op)
        return
    match _planned(op, context).path:
        case "tma" | "cp_async":
            _staged(op, context)
        case "own" | "held":
            _own(op, context)
        case "async":
            conversions.copy_ahead(op, _planned(op, context).vector, context)
        case _:
            _note_fetch(op, context)


def _note_fetch(op: tile.Load, context: PassContext) -> None:
    if fetch := _planned(op, context).fetch:
        op.properties["fetch"] = IntegerAttr(fetch, i64)


def _cross_threads(op: Operation, context: PassContext) -> None:
    """One operation that may need what other threads have."""
    match op:
        case shared.Convert():
            conversions.convert(op, context)
        case tile.Reshape() if tile_type(op.arg).register_layout is not None and not is_free(op):
            conversions.reshape(op, context)
        case tile.Reduce() if op.parent is not None:
            reductions.reduce(op, context)
        case tile.Scan():
            reductions.scan(op, context)
        case tile.Extract():
            _extract(op, context)


# ---- loads
def _staged(op: tile.Load, context: PassContext) -> None:
    """A block that a dot's operand is computed from: a copy by a tensor map, read in the layouts
    that are wanted, or in its own where matrices can be read in that alone and threads keep what
    they have. What several want of one layout in one place is read once.
    """
    t = tile_type(op.result)
    buffer = _copied(op, of_block(op), context)
    memory, layout = shared_type(buffer).memory, layout_of(op.result)

    def is_matrix(layout: Layout) -> bool:
        return matrix_access(layout, memory, bits(t.element)) is not None

    def is_kept(user: shared.Convert) -> bool:
        wanted = tile_type(user.result).register_layout
        if wanted is None:  # it is written to shared memory in another order
            return True
        in_registers = movement(layout, wanted) == "registers"
        return in_registers and is_matrix(layout) and not is_matrix(wanted)

    made: dict[tuple[Block | None, TileType], SSAValue] = {}

    def held(wanted: TileType, user: Operation) -> SSAValue:
        place = user.parent, wanted
        if place not in made:
            made[place] = read(buffer, wanted, user, context)
        return made[place]

    for user in _in_order(op.result):
        if isinstance(user, shared.Convert) and not is_kept(user):
            replace(user, [held(tile_type(user.result), user)])
        else:
            value = held(t, user)
            user.operands = [value if x is op.result else x for x in user.operands]
    erase(op)


def _in_order(value: SSAValue) -> list[Operation]:
    """What uses a value, in each block from first to last."""
    users = list(dict.fromkeys(use.operation for use in value.uses))
    blocks = dict.fromkeys(user.parent for user in users)
    return [op for block in blocks if block is not None for op in block.ops if op in users]


def _own(op: tile.Load, context: PassContext) -> None:
    """A block of the programs that a block takes in turn, or one that all of them share: a copy
    that each thread makes for itself, in a buffer as dense as its layout (of a block of a cluster
    its part); what is shared is read again where a program uses it.
    """
    t, layout = tile_type(op.result), layout_of(op.result)
    spread = layout.blocks_along(t.rank - 1)
    if not _is_fixed(op, context) or not private(layout) or layout.num_blocks != spread:
        return
    together = layout.vector(dense_of_block(op)) * bits(t.element) // 8
    vector = min(_planned(op, context).vector, together)
    if vector < LEAST_COPIED_BYTES:  # the layout that was chosen is another than the plan's
        return
    buffer = allocated(t, SharedLayout(t.extents, bits(t.element), spread=spread), op)
    buffer.name_hint = op.result.name_hint
    copy = shared.Copy(
        op.array,
        op.offsets,
        buffer,
        op.extents.get_values(),
        op.mask,
        op.other,
        vector=vector,
        threads=layout,
    )
    copy.attributes |= {k: v for k, v in op.attributes.items() if k == "number"}
    before(op, copy)
    users: dict[Block, list[Operation]] = {}
    for use in op.result.uses:
        users.setdefault(block_of(use.operation), []).append(use.operation)
    for block, inside in users.items():
        first = next(inner for inner in block.ops if inner in inside)
        value = read(buffer, t, op if block is op.parent else first, context)
        for user in inside:
            user.operands = [value if v is op.result else v for v in user.operands]
    erase(op)


def _is_fixed(op: tile.Load, context: PassContext) -> bool:
    """Whether a load in a loop gives the same in another iteration than its own: where it is held,
    no matter what the loop writes, for it is copied before.
    """
    loop = op.parent_op()
    if not isinstance(loop, (scf.ForOp, scf.WhileOp)):
        return True
    addresses = [v for v in op.operands if v is not op.array]
    early = _planned(op, context).path == "held" or unchanged(op, loop, context.overlaps)
    return early and counted_slice(addresses, loop) is not None


def _relaid(op: shared.Convert, context: PassContext) -> None:
    """A tile in registers that is wanted in shared memory: written there, views of the buffer for
    views of the tile.
    """
    t = tile_type(op.result)
    assert t.shared_layout is not None
    buffer = allocated(t, t.shared_layout, op)
    buffer.name_hint = op.result.name_hint
    write = recorded(shared.Write(buffer, op.arg), layout_of(op.arg), context)
    write.attributes |= op.attributes
    before(op, write)
    _view(op.result, buffer)
    erase(op)


def _copied(op: tile.Load, memory: SharedLayout, context: PassContext) -> SSAValue:
    """The buffer that another role fills with a block: one for all loads of one number that stand
    in a row, which select-layouts made of one.
    """
    planned = _planned(op, context)
    if (twin := _copied_already(op, memory)) is not None:
        return twin
    buffer = allocated(tile_type(op.result), memory, op)
    buffer.name_hint = op.result.name_hint
    copy = shared.Copy(op.array, op.offsets, buffer, op.extents.get_values(), op.mask)
    copy.properties["engine"] = StringAttr(planned.path)
    copy.attributes |= {
        name: op.attributes[name] for name in ("number", "part") if name in op.attributes
    }
    if _reads_tf32(op.result):
        copy.properties["tf32"] = UnitAttr()
    if planned.eviction:
        copy.properties["hint"] = StringAttr(planned.eviction)
    if planned.fetch:
        copy.properties["fetch"] = IntegerAttr(planned.fetch, i64)
    if planned.multicast >= 0:
        copy.properties["cut"] = IntegerAttr(planned.multicast, i64)
    if planned.multicast >= 0 and planned.among != (0,):
        copy.properties["among"] = tile.ints(planned.among)
    before(op, copy)
    return buffer


def _copied_already(op: tile.Load, memory: SharedLayout) -> SSAValue | None:
    """The buffer into which the same block was copied for another load of its number."""
    if number_of(op) is None:
        return None
    for other in block_of(op).ops:
        if (
            isinstance(other, shared.Copy)
            and other.engine is not None
            and place_of(other) == place_of(op)
            and [other.array, *other.offsets, other.mask] == [op.array, *op.offsets, op.mask]
            and shared_type(other.buffer).memory == memory
        ):
            return other.buffer
    return None


def _reads_tf32(value: SSAValue) -> bool:
    """Whether a dot that reads a block in shared memory takes its float32 for tf32."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, (tile.Transpose, tile.Reshape, tile.Slice)) and _reads_tf32(op.result):
            return True
        if isinstance(op, tile.Dot) and op.precision.data == "tf32":
            return True
    return False


def _planned(op: tile.Load, context: PassContext) -> LoadPlan:
    return context.plan.load(op) if context.plan is not None else LoadPlan()


def _view(value: SSAValue, buffer: SSAValue) -> None:
    """Every use of a tile in shared memory becomes one of the buffer."""
    part: SSAValue
    for use in list(value.uses):
        op = use.operation
        match op:
            case tile.Transpose():
                permutation = op.permutation.get_values()
                part = before(op, shared.SharedTranspose(buffer, permutation)).result
            case tile.Reshape():
                part = before(op, shared.SharedReshape(buffer, extents_of(op.result))).result
            case tile.Slice():
                part = view(buffer, op.offsets.get_values(), extents_of(op.result), op)
            case _:
                op.operands[use.index] = buffer
                continue
        _view(op.result, part)
        erase(op)


# ---- one element, one number
def _extract(op: tile.Extract, context: PassContext) -> None:
    """One element for every thread: already there, or through shared memory."""
    t, layout = tile_type(op.arg), layout_of(op.arg)
    if all(d.axis < 0 for d in (*layout.lanes, *layout.warps)):
        return
    buffer = allocated(t, SharedLayout(t.extents, bits(t.element)), op)
    written(buffer, op.arg, op, context)
    one = (1,) * t.rank
    element = view(buffer, op.index.get_values(), one, op)
    everywhere = Layout(one, (), (copies(32),), (copies(layout.num_warps),))
    value = before(op, shared.Read(element, TileType(one, t.element, everywhere))).result
    replace(op, tile.Extract(value, (0,) * t.rank))


def _claim(op: NextProgram, plan: Plan) -> None:
    """One thread claims a program, of a cluster that shares programs one of the first block; all
    read it in shared memory. It is written as late as another write, and read where it is used: the
    barrier between them is there anyway, and the counter has answered.
    """
    blocks, users = plan.cluster_split[0], [use.operation for use in op.result.uses]
    block = block_of(op)
    wanted = next(inner for inner in block.ops if inner in users)
    last_write = _last_write(op, wanted)
    anchor = last_write if last_write is not None else wanted.prev_op
    assert anchor is not None
    memory = SharedType(1, (blocks,), i32, SharedLayout((blocks,), 32))
    buffer = before(op, shared.Alloc(memory)).result
    buffer.name_hint = "claimed"
    if blocks == 1:
        after(anchor, BroadcastStore(buffer, op.result))
    else:
        layout = Layout((blocks,), (), (copies(32),), (copies(plan.warps),), (Digit(blocks, 0, 1),))
        number = tile.Splat(op.result, TileType((blocks,), i32, layout))
        write = shared.Write(buffer, number.result, everywhere=True, lone=True)
        after(anchor, number)
        after(number, write)
    value = before(wanted, BroadcastLoad(buffer)).result
    for user in users:
        user.operands = [value if v is op.result else v for v in user.operands]


def _last_write(op: Operation, until: Operation) -> Operation | None:
    """The last write to shared memory between two operations of a block."""
    between = until.prev_op
    while between is not None and between is not op:
        if isinstance(between, shared.Write):
            return between
        between = between.prev_op
    return None
