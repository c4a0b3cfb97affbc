"""swizzle-shared: level 1 to level 2. Data that must cross threads goes through shared memory, in
the swizzle its users allow.

Three things cross threads. A load that is only wanted in another layout becomes a copy and a read:

    %x = tile.load %a[%m, %k] {extents = array<i64: 128, 64>} : (…) -> !tile.tile<128x64xbf16,
    "blocked …"> %y = tile.convert %x : (…) -> !tile.tile<128x64xbf16, "mma a …">
  becomes
    %b = tile.alloc : !tile.shared<1, 128x64xbf16, "128x64xb16 swizzle 128">
    tile.copy %a[%m, %k] %b {extents = …, vector = 16}
    %y = tile.read %b : (…) -> !tile.tile<128x64xbf16, "mma a …">

Any other conversion between warps becomes a write and a read; a reshape between extents that do not
nest a write, a view of the dense buffer under the other extents (tile.shared_reshape), and a read.
A reduction whose axis runs over warps becomes

    %p = tile.reduce_partial sum %x {axis = 1}         one element for each warp along the axis
    tile.write %b, %p
    %q = tile.read %b                                   the axis now in the registers of every thread
    %r = tile.reduce sum[%q] {axis = 1}

Reductions that do not wait for one another's results meet together: what of the second one's does
not follow from the first one's result is done before that is read, so that one barrier serves both.

A scan whose axis runs over warps is that of each warp's run, plus what the runs before come to:
their totals (`tile.scan_total`) go the same way. A reduction of what is scanned, asked for after
the scan, is one of those totals.

A program's number, which one thread claims (tile.next_program), goes the same way outside of roles:
written behind the last thing that is, read where it is wanted.

Of the layouts a buffer may have, the one with the fewest bank conflicts over all its accesses is
taken; the degree of each
access is recorded on it (`conflicts`, 1 is none).  Buffers are plain (one stage) and every copy is complete when it returns.
"""

from __future__ import annotations

from math import gcd

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import Digit, copies
from tkc.ir.elementwise import CLASSES, Cast, Select
from tkc.ir.fragments import matrix_access, wgmma_accumulator
from tkc.ir.layout import Layout, movement
from tkc.ir.plan import LoadPlan, Plan, number_of
from tkc.ir.ranges import divisor
from tkc.ir.reductions import FUNCTION, neutral
from tkc.ir.rewrite import after, before, counted_slice, defining_slice, erase, replace
from tkc.ir.shared_layout import SharedLayout, conflicts_of
from tkc.ir.threads import BroadcastLoad, BroadcastStore, NextProgram, Vote
from tkc.ir.types import SharedType, TileType, bits, f32, is_bool, is_float
from tkc.passes import PassContext
from tkc.passes.analysis.access import argument_of, unchanged
from tkc.passes.analysis.mapped import of_block
from tkc.passes.analysis.own import private
from tkc.passes.analysis.values import LEAVES, POINTWISE, VIEWS
from tkc.passes.layouts.epilogue_subtiles import (
    EPILOGUE_REGISTERS_PER_THREAD,
    LONG_EPILOGUE_REGISTERS,
    Parts,
    advanced,
    load_registers,
    neighbours,
    subtile,
    subtile_buffers,
)
from tkc.passes.layouts.movers import is_free
from tkc.passes.planning.hopper import leaves, results


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        for op in list(kernel.walk()):
            match op:
                case tile.Load() if (
                    isinstance(op.result.type, TileType)
                    and op.result.type.shared_layout is not None
                ):
                    _mapped(op, context)
                case tile.Load() if (
                    isinstance(op.result.type, TileType) and _planned(op, context).path == "tma"
                ):
                    _staged(op, context)
                case tile.Load() if (
                    isinstance(op.result.type, TileType) and _planned(op, context).path == "own"
                ):
                    _own(op, context)
                case tile.Load() if fetch := _planned(op, context).fetch:
                    op.properties["fetch"] = IntegerAttr(fetch, i64)
                case shared.Convert() if op.result.type.shared_layout is not None:
                    _relaid(op, context)
        if context.plan is not None and context.plan.roles != "one":
            _results(kernel, context)
        for op in list(kernel.walk()):
            if isinstance(op, Vote):
                _vote(op, context)
        for op in list(kernel.walk()):
            match op:
                case shared.Convert():
                    _convert(op, context)
                case tile.Reshape() if op.arg.type.register_layout is not None and not is_free(op):
                    _reshape(op, context)
                case tile.Reduce() if op.parent is not None:
                    _reduce(op, context)
                case tile.Scan():
                    _scan(op, context)
                case tile.Extract():
                    _extract(op, context)
        for block in {op.parent for op in kernel.walk() if _gathers(op)}:
            _meet(block)
        for op in list(kernel.walk()):
            if isinstance(op, NextProgram) and context.plan.roles == "one":
                _claim(op, context.plan)
        for op in list(kernel.walk()):
            if isinstance(op, tile.Load) and not any(True for _ in op.result.uses):
                erase(op)
        kernel.set_integer("level", 2)


def _mapped(op: tile.Load, context: PassContext) -> None:
    """A block that is wanted in shared memory: a copy by a tensor map, views of the buffer for
    views of the tile.
    """
    _view(op.result, _copied(op, op.result.type.layout.data, context))
    erase(op)


def _staged(op: tile.Load, context: PassContext) -> None:
    """A block that a factor is computed from: a copy by a tensor map, read in the layouts that are
    asked for, or in its own where matrices can be read in that alone and threads keep what they
    have.
    """
    t = op.result.type
    buffer = _copied(op, of_block(op), context)

    def matrices(layout):
        return matrix_access(layout, buffer.type.memory, bits(t.element)) is not None

    for use in list(op.result.uses):
        user = use.operation
        kept = (
            isinstance(user, shared.Convert)
            and movement(t.register_layout, user.result.type.register_layout) == "registers"
            and matrices(t.register_layout)
            and not matrices(user.result.type.register_layout)
        )
        if isinstance(user, shared.Convert) and not kept:
            replace(
                user,
                _recorded(
                    shared.Read(buffer, user.result.type), user.result.type.register_layout, context
                ),
            )
        else:
            user.operands[use.index] = before(
                user, _recorded(shared.Read(buffer, t), t.register_layout, context)
            ).result
    erase(op)


def _own(op: tile.Load, context: PassContext) -> None:
    """A block of the programs that a block takes in turn, or one that all of them share: a copy
    that each thread makes for itself, in a buffer as dense as its layout (of a block of a cluster
    its part); what is shared is read again where a program wants it."""
    loop, t = op.parent_op(), op.result.type
    layout = t.register_layout
    if isinstance(loop, (scf.ForOp, scf.WhileOp)) and (
        not unchanged(op, loop, context.overlaps)
        or counted_slice([v for v in op.operands if v is not op.array], loop) is None
    ):
        return
    spread = layout.blocks_along(t.rank - 1)
    if not private(layout) or layout.num_blocks != spread:
        return
    buffer = before(
        op,
        shared.Alloc(
            SharedType(
                1, t.shape, t.element, SharedLayout(t.extents, bits(t.element), spread=spread)
            )
        ),
    ).result
    buffer.name_hint = op.result.name_hint
    before(
        op,
        shared.Copy(
            op.array,
            op.offsets,
            buffer,
            op.extents.get_values(),
            op.mask,
            op.other,
            vector=_planned(op, context).vector,
            threads=layout,
        ),
    )
    users: dict[Block, list[Operation]] = {}
    for use in op.result.uses:
        users.setdefault(use.operation.parent, []).append(use.operation)
    for block, inside in users.items():
        first = next(inner for inner in block.ops if inner in inside)
        read = before(
            op if block is op.parent else first, _recorded(shared.Read(buffer, t), layout, context)
        ).result
        for user in inside:
            user.operands = [read if v is op.result else v for v in user.operands]
    erase(op)


def _relaid(op: shared.Convert, context: PassContext) -> None:
    """A tile in registers that is wanted in shared memory: written there, views of the buffer for
    views of the tile.
    """
    t = op.result.type
    buffer = before(op, shared.Alloc(SharedType(1, t.shape, t.element, t.layout))).result
    buffer.name_hint = op.result.name_hint
    write = _recorded(shared.Write(buffer, op.arg), op.arg.type.register_layout, context)
    write.attributes |= op.attributes
    before(op, write)
    _view(op.result, buffer)
    erase(op)


def _copied(op: tile.Load, memory: SharedLayout, context: PassContext) -> SSAValue:
    """The buffer that a tensor map fills with a block."""
    t, planned = op.result.type, _planned(op, context)
    buffer = before(op, shared.Alloc(SharedType(1, t.shape, t.element, memory))).result
    buffer.name_hint = op.result.name_hint
    copy = shared.Copy(op.array, op.offsets, buffer, op.extents.get_values())
    copy.properties["engine"] = StringAttr("tma")
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


def _reads_tf32(value: SSAValue) -> bool:
    """Whether a dot that reads a block in shared memory takes its float32 for tf32."""
    return any(
        (
            _reads_tf32(use.operation.results[0])
            if isinstance(use.operation, (tile.Transpose, tile.Slice))
            else isinstance(use.operation, tile.Dot) and use.operation.precision.data == "tf32"
        )
        for use in value.uses
    )


def _planned(op: tile.Load, context: PassContext) -> LoadPlan:
    return context.plan.load(op) if context.plan is not None else LoadPlan()


def _view(value: SSAValue, buffer: SSAValue) -> None:
    """Every use of a tile in shared memory becomes one of the buffer."""
    for use in list(value.uses):
        op = use.operation
        match op:
            case tile.Transpose():
                view = before(
                    op, shared.SharedTranspose(buffer, op.permutation.get_values())
                ).result
            case tile.Slice():
                offsets = [
                    before(op, tile.Constant(i, i32)).result for i in op.offsets.get_values()
                ]
                view = before(
                    op,
                    shared.SharedSlice(
                        buffer,
                        offsets,
                        SharedType(
                            1, op.result.type.shape, op.result.type.element, op.result.type.layout
                        ),
                    ),
                ).result
            case _:
                op.operands[use.index] = buffer
                continue
        _view(op.result, view)
        erase(op)


def _results(kernel: tile.Kernel, context: PassContext) -> None:
    """Stores of what warpgroups hold as a dot's sum: part by part."""
    groups = context.plan.warps // 4
    large = [
        op
        for op in kernel.walk()
        if isinstance(op, tile.Store) and isinstance(op.value.type, TileType)
    ]
    stores, turned = (
        [op for op in large if _is_sum(op.value.type, groups, turned)] for turned in (False, True)
    )
    parts = Parts(large)
    others = {
        argument_of(op.array)
        for op in large
        if op not in stores
        # a warpgroup sends its rows when it has written them: not where another one's threads may
        # have
        # stored before
    }

    def geometry(op):
        return (
            subtile(op, groups, context.plan.columns)
            if context.plan.epilogue == "tma" and leaves(op) and argument_of(op.array) not in others
            else None
        )

    most = context.plan.columns if context.plan.epilogue == "direct" else 64
    copied = [
        copy.buffer
        for number in context.plan.reuse_operand_stages
        for copy in kernel.walk()
        if isinstance(copy, shared.Copy) and number_of(copy) == number
    ]
    free = dict(
        zip(results(kernel, 64 * groups, groups), copied, strict=False)
    )  # each its own, also where one planned before it leaves from registers
    for together in neighbours(stores, lambda op: (geometry(op), op.value.type.extents)):
        if geometry(together[0]):
            _subtiles(together, parts, groups, free, context)
        else:
            _pieces(together, parts, groups, False, most)
    for together in neighbours(turned, lambda op: op.value.type.extents):
        _pieces(together, parts, groups, True, most)


def _is_sum(t: TileType, groups: int, turned: bool) -> bool:
    """Whether a tile lies as the sum of a dot does, or as that of a swapped dot."""
    if t.rank != 2:
        return False
    m, n = reversed(t.extents) if turned else t.extents
    if m % (64 * groups) or n % 8:
        return False
    layout = wgmma_accumulator(m, n, groups)
    return t.register_layout == (layout.transpose((1, 0)) if turned else layout)


def _subtiles(
    stores: list[tile.Store],
    parts: Parts,
    groups: int,
    free: dict[tile.Store, SSAValue],
    context: PassContext,
) -> None:
    """Through one or two buffers a store, in turn, or through what copies have left free; a part's
    loads are made before the part before it is stored, where registers allow.
    """
    plan, anchor, t = context.plan, stores[-1], stores[0].value.type
    rows, columns = subtile(stores[0], groups, plan.columns)
    in_turn = (
        subtile_buffers(stores[0], groups, plan.columns, plan.subtiles)
        if plan.subtiles
        else t.extents[1] // columns
    )
    buffers = [
        (
            _panels(free[op], (rows, columns), op)
            if plan.reuse_operand_stages
            else _alternate((rows, columns), in_turn, op)
        )
        for op in stores
    ]
    layout, _ = t.register_layout.slice((0, 0), (rows, columns))
    places = [
        (row, column)
        for column in range(0, t.extents[1], columns)
        for row in range(0, t.extents[0], rows)
    ]
    ahead = (
        plan.split_k == 1
        and t.size // (128 * groups) + 2 * load_registers(list(parts.loads), columns) + columns // 4
        <= EPILOGUE_REGISTERS_PER_THREAD - LONG_EPILOGUE_REGISTERS
    )
    for i, at in enumerate(places):
        for place in places[i : i + 1 + ahead]:
            for op in stores:
                parts.fetch(op.value, (place, (rows, columns)), anchor)
        for op, turn in zip(stores, buffers, strict=False):
            buffer, part = turn[i % in_turn], parts.of(op.value, (at, (rows, columns)), anchor)
            before(anchor, _recorded(shared.Write(buffer, part), layout, context))
            before(
                anchor,
                shared.CopyOut(
                    op.array,
                    [advanced(o, n, anchor) for o, n in zip(op.offsets, at, strict=False)],
                    buffer,
                    (rows, columns),
                    in_turn * len(stores),
                ),
            )
    for op in stores:
        erase(op)


def _alternate(shape: tuple[int, int], count: int, store: tile.Store) -> list[SSAValue]:
    """Buffers for parts of a store's tile."""
    element = store.value.type.element
    t = SharedType(
        1, shape, element, SharedLayout(shape, bits(element), shape[1] * bits(element) // 8)
    )
    return [before(store, shared.Alloc(t)).result for _ in range(count)]


def _panels(buffer: SSAValue, shape: tuple[int, int], store: tile.Store) -> list[SSAValue]:
    """The panels of a buffer, one for each part of a store's tile."""
    found, zero = [], before(store, tile.Constant(0, i32)).result
    for at in range(0, store.value.type.extents[1], shape[1]):
        memory, _ = buffer.type.memory.slice((0, at), shape)
        found.append(
            before(
                store,
                shared.SharedSlice(
                    buffer,
                    [zero, before(store, tile.Constant(at, i32)).result],
                    SharedType(1, shape, store.value.type.element, memory),
                ),
            ).result
        )
    return found


def _pieces(stores: list[tile.Store], parts: Parts, groups: int, turned: bool, most: int) -> None:
    """From registers, as many columns at once as a subtile has: what is computed for one piece is gone
    before the next.
    """
    anchor, (m, n) = stores[-1], stores[0].value.type.extents
    rows, columns = (
        64 * groups,
        next(c for c in (64, 32, 16, 8) if c <= most and (m if turned else n) % c == 0),
    )
    if turned:
        rows, columns = columns, rows
    if (m, n) == (rows, columns):
        return
    for at in [(row, column) for column in range(0, n, columns) for row in range(0, m, rows)]:
        for op in stores:
            kept, offsets, extents = (
                iter(zip(at, (rows, columns), strict=False)),
                list(op.offsets),
                list(op.extents.get_values()),
            )
            for axis, count in enumerate(extents):
                if count >= 0:
                    start, extents[axis] = next(kept)
                    offsets[axis] = advanced(offsets[axis], start, anchor)
            value, mask = (
                None if v is None else parts.of(v, (at, (rows, columns)), anchor)
                for v in (op.value, op.mask)
            )
            before(anchor, tile.Store(op.array, offsets, value, extents, mask))
    for op in stores:
        erase(op)


def _convert(op: shared.Convert, context: PassContext) -> None:
    """Through shared memory, where a thread's own registers do not do."""
    src, dst = op.arg.type.register_layout, op.result.type.register_layout
    if movement(src, dst) in ("none", "registers"):
        return
    owner, parts = op.arg.owner, _parts(op)
    # a role's threads copy nothing: copies are its producer's
    alike = context.plan is None or context.plan.roles == "one"
    if alike and isinstance(owner, tile.Load) and (width := _copy_width(owner)):
        buffer = before(
            owner, shared.Alloc(_buffer(op.result.type, [dst], copied=src, sliced=bool(parts)))
        ).result
        array, offsets, mask, other = owner.array, owner.offsets, owner.mask, owner.other
        before(
            owner,
            shared.Copy(
                array,
                offsets,
                buffer,
                owner.extents.get_values(),
                mask,
                other,
                vector=width,
                threads=src,
            ),
        )
    else:
        buffer = before(
            op, shared.Alloc(_buffer(op.result.type, [src, dst], sliced=bool(parts)))
        ).result
        before(op, _recorded(shared.Write(buffer, op.arg), src, context))
    for part in parts:
        replace(part, _read_part(part, buffer, context))
    if parts:
        erase(op)
    else:
        replace(op, _recorded(shared.Read(buffer, op.result.type), dst, context))


def _reshape(op: tile.Reshape, context: PassContext) -> None:
    """Row-major into shared memory, and read under the other extents."""
    old, new = op.arg.type, op.result.type
    buffer = before(
        op,
        shared.Alloc(
            SharedType(1, old.shape, old.element, SharedLayout(old.extents, bits(old.element)))
        ),
    ).result
    before(op, _recorded(shared.Write(buffer, op.arg), old.register_layout, context))
    view = before(op, shared.SharedReshape(buffer, new.extents)).result
    replace(op, _recorded(shared.Read(view, new), new.register_layout, context))


def _parts(op: shared.Convert) -> list[tile.Slice]:
    """The slices of a converted tile, where nothing else uses it: each is then read when it is
    wanted, not the tile at once.
    """
    users = [use.operation for use in op.result.uses]
    return (
        users
        if all(isinstance(user, tile.Slice) and user.strides is None for user in users)
        else []
    )


def _read_part(part: tile.Slice, buffer: SSAValue, context: PassContext) -> shared.Read:
    at, t = part.offsets.get_values(), part.result.type
    offsets = [before(part, tile.Constant(i, i32)).result for i in at]
    memory, _ = buffer.type.memory.slice(at, t.extents)
    view = before(
        part, shared.SharedSlice(buffer, offsets, SharedType(1, t.shape, t.element, memory))
    ).result
    return _recorded(shared.Read(view, t), t.register_layout, context)


def _copy_width(load: tile.Load) -> int:
    """Bytes of each thread's asynchronous copies of a load; 0 where it must pass through registers:
    it has other uses, fills with something else than zero, gathers along its rows, drops an axis
    that is not leading, or moves less than 4 bytes at a time.
    """
    if load.other is not None or not all(
        isinstance(use.operation, shared.Convert) for use in load.result.uses
    ):
        return 0
    element, facts, extents = (
        bits(load.result.type.element),
        load.array.type.facts,
        load.extents.get_values(),
    )
    axis = len(extents) - 1
    if (
        extents[axis] < 0
        or facts.strides[axis].exact != 1
        or isinstance(load.offsets[axis].type, TileType)
    ):
        return 0
    threads = load.result.type.register_layout
    run = threads.vector(threads.rank - 1)
    aligned = gcd(
        facts.align,
        16,
        *(
            s.divisor * element // 8 if s.exact is None else s.exact * element // 8 or 16
            for s in facts.strides[:-1]
        ),
    )
    offset = divisor(load.offsets[axis]) * element // 8  # 0 where the offset is zero
    ragged = (facts.shape[axis].exact or facts.shape[axis].divisor) * element // 8
    width = gcd(run * element // 8, aligned, offset or 16, ragged or 16, 16)
    return width if width >= 4 else 0


def _buffer(
    t: TileType, accesses: list[Layout], copied: Layout | None = None, sliced: bool = False
) -> SharedType:
    """The buffer for a tile: of every order and swizzle that fits, the one whose worst access
    conflicts least; ties go to the widest swizzle with the last axis fastest (what tensor maps and
    wgmma read). `sliced`: parts start anywhere, so no swizzle.
    """
    element = bits(t.element)
    orders = [tuple(reversed(range(t.rank)))]
    if copied is None and t.rank == 2:
        orders.append((0, 1))
    choices = []
    for order in orders:
        row = t.extents[order[0]] * element // 8
        for width in (128, 64, 32):
            if row % width == 0 and not sliced:
                choices.append(SharedLayout(t.extents, element, width, order))
        choices.append(SharedLayout(t.extents, element, 0, order))
        if row % 16 == 0 and t.rank > 1:
            choices.append(SharedLayout(t.extents, element, 0, order, pad=16))
        elif t.rank > 1 and copied is None:
            choices.append(SharedLayout(t.extents, element, 0, order, pad=max(4, element // 8)))
    layouts = accesses + ([copied] if copied else [])
    dense = min(c.bytes for c in choices)
    choices = [c for c in choices if c.bytes <= 2 * dense]  # of a few rows a swizzle makes eight
    best = min(
        choices,
        key=lambda c: (sum(_cost(layout, c, element) for layout in layouts), choices.index(c)),
    )
    return SharedType(1, t.shape, t.element, best)


def _cost(layout: Layout, memory: SharedLayout, element: int) -> float:
    """Passes of the banks one warp needs to move its registers, for comparing layouts."""
    degree, width = _degree(layout, memory, element)
    return degree * layout.num_registers * element / 8 / width


def _degree(
    layout: Layout, memory: SharedLayout, element: int, store: bool = False
) -> tuple[int, int]:
    """Worst bank conflict of an access, and the bytes each lane moves in one instruction."""
    plan = matrix_access(layout, memory, element, store)
    if plan is not None:
        return plan.conflicts, 16
    vector = layout.vector(memory.fast, max(1, 128 // element))
    while vector > 1 and (
        layout.num_registers % vector
        or memory.pad % (vector * element // 8)
        or _row_bytes(memory) % (vector * element // 8)
    ):
        vector //= 2
    try:
        return conflicts_of(layout, memory, vector), min(16, vector * element // 8)
    except ValueError:
        return conflicts_of(layout, memory, 1), element // 8


def _row_bytes(memory: SharedLayout) -> int:
    return memory.swizzle or memory.shape[memory.fast] * memory.bits // 8 + memory.pad


def _recorded(op: shared.Read | shared.Write, layout: Layout, context: PassContext):
    """The access with its bank conflicts noted; more than none is reported."""
    memory, element = op.buffer.type.memory, bits(op.buffer.type.element)
    degree, _ = _degree(layout, memory, element, isinstance(op, shared.Write))
    op.properties["conflicts"] = IntegerAttr(degree, i64)
    if degree > 1:
        context.decisions.append(
            f"swizzle-shared: {op.name} of {memory} has {degree}-way bank conflicts"
        )
    return op


# ------------------------------------------------------------------------------------------------ a
def _vote(op: Vote, context: PassContext) -> None:
    """By each warp alone, where nothing in the branches that ask leaves a warp; else by all of the
    block; by all of a role it is a reduction.
    """
    alone = all(
        _in_warp(inner)
        for use in op.result.uses
        for region in use.operation.regions
        for inner in region.walk()
    )
    if alone or context.plan is None or context.plan.roles == "one":
        op.properties["scope"] = StringAttr("warp" if alone else "block")
        return
    value = op.arg
    while isinstance(value.type, TileType):
        t, axis = value.type, value.type.rank - 1
        value = before(
            op,
            tile.Reduce(
                "all",
                value,
                axis,
                [
                    t.element
                    if t.rank == 1
                    else TileType(t.extents[:-1], t.element, t.register_layout.drop(axis))
                ],
            ),
        ).result
    replace(op, [value])


def _in_warp(op: Operation) -> bool:
    match op:
        case tile.Reduce() | tile.Scan():
            return op.args[0].type.register_layout.warps_along(op.axis.value.data) == 1
        case tile.Reshape():
            return is_free(op)
        case shared.Convert():
            return movement(op.arg.type.register_layout, op.result.type.register_layout) in (
                "none",
                "registers",
            )
    return isinstance(
        op,
        (
            *POINTWISE,
            *VIEWS,
            tile.Constant,
            tile.Splat,
            tile.Arange,
            tile.Slice,
            scf.IfOp,
            scf.YieldOp,
        ),
    )


def _reduce(op: tile.Reduce, context: PassContext) -> None:
    layout, axis = op.args[0].type.register_layout, op.axis.value.data
    far = layout.blocks_along(axis) > 1
    count = layout.warps_along(axis) * layout.blocks_along(axis)
    if count == 1:
        return
    if op.kind.data in ("argmax", "argmin", "combine"):
        return _whole_axis(op, context)
    t = op.args[0].type
    if (
        op.kind.data in ("any", "all")
        and not isinstance(op.result.type, TileType)
        and not far
        and (context.plan is None or context.plan.roles == "one")
    ):
        return _ask(op)
    partial = TileType(
        [count if a == axis else n for a, n in enumerate(t.extents)],
        t.element,
        _one_per_warp(layout, axis),
    )
    part = before(op, shared.ReducePartial(op.kind.data, op.args[0], axis, partial)).result
    gathered = _axis_in_registers(partial.register_layout, axis)
    # to other blocks words are sent (st.async), and each narrow number is one
    wide = far and bits(t.element) < 32 and not is_bool(t.element)
    if wide:
        part = before(
            op, Cast(part, partial.with_element(f32 if is_float(t.element) else i32))
        ).result
    read = _through_shared(part, gathered, op, context, far)
    if wide:
        read = before(op, Cast(read, read.type.with_element(t.element))).result
    replace(op, tile.Reduce(op.kind.data, read, axis, [op.result.type]))


def _gathers(op: Operation) -> bool:
    """Whether what warps hold of a reduction is written here, for all to read. (Not truth values of
    a cluster, which its barriers order: two such trips in a loop need no barrier more than one.)
    """
    return (
        isinstance(op, shared.Write)
        and isinstance(op.value.owner, shared.ReducePartial)
        and not (op.everywhere and is_bool(op.value.type.element))
    )


def _meet(block: Block) -> None:
    """Puts the writes of neighbouring reductions together, before the first one's result is read."""
    written = None
    for op in [op for op in block.ops if _gathers(op)]:
        read = next(
            use.operation for use in op.buffer.uses if isinstance(use.operation, shared.Read)
        )
        if written is not None:
            needed = [
                inner
                for inner in defining_slice(op.operands, block)
                if not inner.is_before_in_block(written)
            ]
            if all(
                isinstance(inner, (shared.Alloc, shared.ReducePartial, *POINTWISE, *VIEWS, *LEAVES))
                for inner in needed
            ):
                for inner in (*needed, op):
                    inner.detach()
                block.insert_ops_before([*needed, op], written)
                continue
        written = read


def _ask(op: tile.Reduce) -> None:
    """Whether all, or any, of a block's truth values hold: a vote at a barrier, or one that was."""
    negated, values = op.kind.data == "any", op.args[0]
    if negated:
        values = before(op, CLASSES["not"](values)).result
    votes = (
        use.operation
        for use in values.uses
        if isinstance(use.operation, Vote) and use.operation.scope.data == "block"
    )
    if (found := next((vote for vote in votes if _stands_before(vote, op)), None)) is None:
        found = before(op, Vote(values))
        found.properties["scope"] = StringAttr("block")
    replace(op, [before(op, CLASSES["not"](found.result)).result if negated else found.result])


def _stands_before(first: Operation, op: Operation) -> bool:
    """Whether an operation stands in front of another, or of what that is in."""
    while op is not None and op.parent is not first.parent:
        op = op.parent_op()
    return op is not None and first.is_before_in_block(op)


def _one_per_warp(layout: Layout, axis: int) -> Layout:
    """The layout of a partial reduction: registers and lanes lose the axis, the warps along it
    count its elements.
    """
    units, step = [], 1
    for digit in (*layout.warps, *layout.blocks):
        if digit.axis == axis:
            units.append(Digit(digit.extent, axis, step))
            step *= digit.extent
        else:
            units.append(digit)
    shape, split = (
        tuple(step if a == axis else n for a, n in enumerate(layout.shape)),
        len(layout.warps),
    )
    return Layout(
        shape,
        tuple(d for d in layout.registers if d.axis != axis),
        tuple(copies(d.extent) if d.axis == axis else d for d in layout.lanes),
        tuple(units[:split]),
        tuple(units[split:]),
    )


def _axis_in_registers(layout: Layout, axis: int) -> Layout:
    """The same tile with that axis in each thread's registers, the rest where it was; a long one
    over the lanes, if these hold but copies.
    """
    count, lanes = layout.shape[axis], layout.lanes
    free = tuple(
        tuple(copies(d.extent) if d.axis == axis else d for d in digits)
        for digits in (layout.warps, layout.blocks)
    )
    if count > 16 and count % 32 == 0 and all(d.axis < 0 for d in lanes):
        return Layout(
            layout.shape,
            (Digit(count // 32, axis, 1), *layout.registers),
            (Digit(32, axis, count // 32),),
            *free,
        )
    return Layout(layout.shape, (Digit(count, axis, 1), *layout.registers), lanes, *free)


def _whole_axis(op: Operation, context: PassContext) -> None:
    """For what cannot be done warp by warp: each warp of the axis gets all of it."""
    axis = op.axis.value.data
    for i, arg in enumerate(op.args):
        layout = arg.type.register_layout
        convert = before(op, shared.Convert(arg, arg.type.with_layout(_gathered(layout, axis))))
        op.operands[i] = convert.result
        _convert(convert, context)
    if isinstance(op, tile.Reduce):
        return
    new = before(
        op,
        type(op).build(
            operands=[list(op.args)],
            properties=dict(op.properties),
            result_types=[[a.type for a in op.args]],
            regions=[[r.clone() for r in op.regions]],
        ),
    )
    back = [
        before(op, shared.Convert(result, old.type))
        for old, result in zip(op.results, new.results, strict=False)
    ]
    replace(op, [c.result for c in back])
    for convert in back:
        _convert(convert, context)


def _gathered(layout: Layout, axis: int) -> Layout:
    """The axis of a layout moved from warps into registers (above its other digits), replicated
    over those warps.
    """

    def mine(digits):
        return sorted((d for d in digits if d.axis == axis), key=lambda d: d.stride)

    moved, step = {}, 1
    for digit in (*mine((*layout.registers, *layout.lanes)), *mine(layout.warps)):
        moved[digit] = Digit(digit.extent, axis, step)
        step *= digit.extent

    def here(digits):
        return tuple(moved.get(d, d) for d in digits)

    return Layout(
        layout.shape,
        here(layout.registers) + here(mine(layout.warps)),
        here(layout.lanes),
        tuple(copies(d.extent) if d.axis == axis else d for d in layout.warps),
    )


def _scan(op: tile.Scan, context: PassContext) -> None:
    """Over warps: each scans its run and adds what the runs before it come to; where that cannot
    be, each gets the whole axis.
    """
    layout, axis, kind = op.args[0].type.register_layout, op.axis.value.data, op.kind.data
    count, n = layout.warps_along(axis), layout.shape[axis]
    if count == 1:
        return
    run, element = n // count, op.args[0].type.element
    if (
        kind not in FUNCTION
        or bits(element) < 16
        or layout.padded_shape[axis] != n
        or any(d.axis == axis and d.stride % run for d in layout.warps)
    ):
        return _whole_axis(op, context)

    def make(new):
        return before(op, new).results[0]

    def typed(layout):
        return TileType(layout.shape, element, layout)

    x, back, extents = op.args[0], op.reverse is not None, op.args[0].type.extents
    runs = make(
        tile.Reshape(x, typed(layout.reshape((*extents[:axis], count, run, *extents[axis + 1 :]))))
    )
    own = runs.type.register_layout.drop(axis + 1)  # a run's number is its warp's
    scan = before(op, shared.ScanTotal(kind, runs, axis + 1, typed(own), back))
    total = _through_shared(scan.total, _axis_in_registers(own, axis), op, context)
    _sums_of_runs(op, total)
    pairs = _beside(
        own, total.type.register_layout, axis
    )  # of each run: all of them, where a thread has read them
    others = make(
        tile.Broadcast(
            make(tile.Reshape(total, typed(total.type.register_layout.expand(axis)))), typed(pairs)
        )
    )
    nothing = make(tile.Constant(neutral(kind, element), typed(pairs)))
    earlier = make(
        CLASSES["gt" if back else "lt"](
            _numbers(pairs, axis + 1, make), _numbers(pairs, axis, make)
        )
    )
    carried = make(
        tile.Reduce(kind, make(Select(earlier, others, nothing)), axis + 1, [typed(own)])
    )
    carried = make(
        tile.Broadcast(make(tile.Reshape(carried, typed(own.expand(axis + 1)))), runs.type)
    )
    replace(op, [make(tile.Reshape(make(CLASSES[FUNCTION[kind]](carried, scan.result)), x.type))])


def _beside(own: Layout, all_runs: Layout, axis: int) -> Layout:
    """Of every run of an axis, where it is in `own`: all of them, in the registers or lanes where
    `all_runs` has them, along the axis behind it.
    """
    mine, others = own.expand(axis + 1), all_runs.expand(axis)
    here = tuple(d for d in others.registers if d.axis == axis + 1)
    lanes = others.lanes if any(d.axis == axis + 1 for d in others.lanes) else mine.lanes
    return Layout(
        (*own.shape[: axis + 1], own.shape[axis], *own.shape[axis + 1 :]),
        (*mine.registers, *here),
        lanes,
        mine.warps,
        mine.blocks,
    )


def _sums_of_runs(scan: tile.Scan, total: SSAValue) -> None:
    """What the same tile comes to along the same axis, where that is asked for after the scan, is
    what its runs come to.
    """
    later, op = [], scan
    while (op := op.next_op) is not None:
        if (
            isinstance(op, tile.Reduce)
            and (op.kind, op.axis) == (scan.kind, scan.axis)
            and list(op.args) == list(scan.args)
        ):
            later.append(op)
    for reduce in later:
        replace(
            reduce,
            [
                before(
                    reduce,
                    tile.Reduce(scan.kind.data, total, scan.axis.value.data, [reduce.result.type]),
                ).result
            ],
        )


def _through_shared(
    value: SSAValue, layout: Layout, at: Operation, context: PassContext, everywhere: bool = False
) -> SSAValue:
    """A small tile in another layout; everywhere: what each block of the cluster holds of it, in
    all of them.
    """
    t = value.type
    buffer = before(at, shared.Alloc(_buffer(t, [t.register_layout, layout]))).result
    before(at, _recorded(shared.Write(buffer, value, everywhere), t.register_layout, context))
    return before(at, _recorded(shared.Read(buffer, t.with_layout(layout)), layout, context)).result


def _claim(op: NextProgram, plan: Plan) -> None:
    """One thread claims a program, of a cluster that shares programs one of the first block; all
    learn of it through shared memory. It is written as late as something else is, and read where it
    is wanted: the barrier between them is there anyway, and the counter has answered."""
    blocks, users = plan.cluster_split[0], [use.operation for use in op.result.uses]
    wanted = next(inner for inner in op.parent.ops if inner in users)
    told = next(
        (
            inner
            for inner in reversed(op.parent.ops)
            if isinstance(inner, shared.Write)
            and op.is_before_in_block(inner)
            and inner.is_before_in_block(wanted)
        ),
        wanted.prev_op,
    )
    buffer = before(
        op, shared.Alloc(SharedType(1, (blocks,), i32, SharedLayout((blocks,), 32)))
    ).result
    buffer.name_hint = "claimed"
    if blocks == 1:
        after(told, BroadcastStore(buffer, op.result))
    else:
        layout = Layout((blocks,), (), (copies(32),), (copies(plan.warps),), (Digit(blocks, 0, 1),))
        after(
            told,
            number := tile.Splat(op.result, TileType((blocks,), i32, layout)),
            shared.Write(buffer, number.result, everywhere=True, lone=True),
        )
    value = before(wanted, BroadcastLoad(buffer)).result
    for user in users:
        user.operands = [value if v is op.result else v for v in user.operands]


def _numbers(layout: Layout, axis: int, make) -> SSAValue:
    """The coordinate along an axis of every element, i32."""
    line = layout
    for other in reversed(range(layout.rank)):
        if other != axis:
            line = line.drop(other)
    flat = make(tile.Arange(0, TileType(line.shape, i32, line)))
    one = layout.operand_of_broadcast(
        tuple(n if a == axis else 1 for a, n in enumerate(layout.shape))
    )
    return make(
        tile.Broadcast(
            make(tile.Reshape(flat, TileType(one.shape, i32, one))),
            TileType(layout.shape, i32, layout),
        )
    )


def _extract(op: tile.Extract, context: PassContext) -> None:
    """One element for every thread: already there, or through shared memory."""
    t, layout = op.arg.type, op.arg.type.register_layout
    if all(d.axis < 0 for d in (*layout.lanes, *layout.warps)):
        return
    memory = SharedLayout(t.extents, bits(t.element))
    buffer = before(op, shared.Alloc(SharedType(1, t.shape, t.element, memory))).result
    before(op, _recorded(shared.Write(buffer, op.arg), layout, context))
    one, index = (1,) * t.rank, op.index.get_values()
    offsets = [before(op, tile.Constant(i, i32)).result for i in index]
    view = before(
        op,
        shared.SharedSlice(
            buffer, offsets, SharedType(1, one, t.element, memory.slice(index, one)[0])
        ),
    ).result
    everywhere = Layout(one, (), (copies(32),), (copies(layout.num_warps),))
    replace(
        op,
        tile.Extract(
            before(op, shared.Read(view, TileType(one, t.element, everywhere))).result,
            (0,) * t.rank,
        ),
    )
