"""Global memory: blocks of arrays, tiles of pointers, scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.ir import Attribute, Operation, SSAValue

from tkc.codegen.ptx.access import (
    ABSENT,
    MAX_ACCESS_BYTES,
    Group,
    both,
    load_element,
    load_tile,
    store_element,
    store_tile,
)
from tkc.codegen.ptx.barriers import meet
from tkc.codegen.ptx.blocks import Block, alike_along, fast_axis, mask_of
from tkc.codegen.ptx.coordinates import inside, is_first_copy, number, thread_offset
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.reduce import shuffle
from tkc.codegen.ptx.traps import guarded
from tkc.codegen.ptx.values import Tile, compute_class, layout_of, registers_of
from tkc.codegen.ptx.writer import Operand
from tkc.ir import tile
from tkc.ir.axis_info import contiguity
from tkc.ir.layout import Layout
from tkc.ir.text import location_of
from tkc.ir.types import TileType, bits, is_bool

SCOPES = {"block": "cta", "gpu": "gpu", "system": "sys", None: "gpu"}


def otherwise(e: Emitter, other: SSAValue | None) -> Callable[[int], Operand]:
    """What element i reads as where it does not exist."""
    if other is None:
        return lambda i: 0
    if isinstance(other.type, TileType):
        return lambda i: e.element(e.tile(other), i)
    return lambda i: e.operand(other)


def stores_once(e: Emitter, layout: Layout) -> Callable[[int], Operand]:
    """Whether this thread is the one that stores a register's element, of those that hold it."""
    first, seen = is_first_copy(e, layout), dict[tuple[int, ...], int]()
    offsets = [tuple(at) for at in layout.offsets("registers").tolist()]
    for r, at in enumerate(offsets):
        seen.setdefault(at, r)
    return lambda r: first if seen[offsets[r]] == r else False


def one_thread(e: Emitter) -> Operand:
    """Whether this is the instance's first thread."""
    if e.instance.single:
        return True
    return e.w.hoist(
        ("first thread", e.instance), lambda: e.w.op("setp.eq.s32", "pred", e.thread(), 0)
    )


def broadcast(e: Emitter, x: Operand, kind: str, source: Operand | None = None) -> str:
    """A scalar of one thread (by default the instance's first) in all threads of the instance,
    through shared memory.
    """
    w = e.w
    if e.instance.single:
        return w.register(x, kind)
    # 8 bytes for each warp that may be an instance's first
    start = w.hoist("slots", lambda: e.scratch(8 * 32), root=True)
    if e.instance.first == 0:
        base = e.shared_base()
    else:
        base = w.hoist(("slot", e.instance), lambda: _slot(e))
    place = f"[{base}+{start}]"
    held = w.op("selp.b32", "b32", 1, 0, x) if kind == "pred" else w.register(x, kind)
    width = "b64" if kind == "b64" else "b32"
    meet(e)
    with w.predicated(source or one_thread(e)):
        w.emit(f"st.shared.{width} {place}, {held}")
    meet(e)
    found = w.new(width)
    w.emit(f"ld.shared.{width} {found}, {place}")
    return w.op("setp.ne.b32", "pred", found, 0) if kind == "pred" else found


def _slot(e: Emitter) -> str:
    return e.w.op("mad.lo.s32", "b32", e.w.register(e.instance.first), 8, e.shared_base())


def broadcast_tile(
    e: Emitter, t: TileType, once: Callable[[int], Operand], found: Sequence[Operand]
) -> Tile:
    """What the first of the threads that hold an element found in memory, for all that hold copies:
    through shared memory, if there are any.
    """
    layout, size = layout_of(t), size_of(t.element)
    if is_first_copy(e, layout) is True and layout.register_replication == 1:
        return e.build(t, found, exact=True)
    steps = {a: size * prod(layout.padded_shape[a + 1 :]) for a in range(layout.rank)}
    own, slot = e.own_scratch(size * prod(layout.padded_shape))
    base = e.w.op("add.s32", "b32", own, thread_offset(e, layout, steps))

    def place(r: int) -> int:
        return slot + sum(number(layout, r, a) * step for a, step in steps.items())

    meet(e)
    for r in range(layout.num_registers):
        store_element(e, Group(base, place(r), once(r)), t.element, found[r], "shared")
    meet(e)
    return load_tile(e, t, 1, lambda r: Group(base, place(r)), None, "shared")


def one_from(e: Emitter, value: Tile, index: tuple[int, ...]) -> Operand:
    """One element of a tile, for every thread of the instance."""
    owners = value.layout.owners(index)
    register, lane, warp, _ = owners[0]
    x, kind = e.element(value, register), compute_class(value.element)
    if not isinstance(x, str):
        return x
    if len({lane for _, lane, _, _ in owners}) < 32:
        x = shuffle(e, x, lane, kind, "idx")
    if len({w for _, _, w, _ in owners}) == value.layout.num_warps:
        return x
    return broadcast(e, x, kind, e.w.op("setp.eq.s32", "pred", e.thread(), 32 * warp))


def remark(e: Emitter, op: Operation, layout: Layout, v: int, size: int) -> int:
    """v; a note where facts, not the layout, keep an access narrow."""
    axis = fast_axis(layout)
    most = layout.vector(axis, MAX_ACCESS_BYTES // size) if axis is not None else 1
    place = location_of(op)
    if v < most:
        e.notes.append(
            f"{f'{place}: ' if place else ''}'{op.name}' moves {v * size} bytes at once, not"
            f" {most * size}: alignment, strides, bounds or mask are not known to be multiples of"
            " that"
        )
    return v


def size_of(element: Attribute) -> int:
    """Bytes of an element in memory."""
    return max(bits(element) // 8, 1)


def in_two(
    e: Emitter, whole: str, inside: Callable[[], object], at_the_end: Callable[[], object]
) -> None:
    """Emits `inside` for blocks that lie in the array, `at_the_end` for the one at a ragged end."""
    w, ragged, end = e.w, e.w.label("ragged"), e.w.label("end")
    w.branch(ragged, whole, negate=True, uniform=e.uniform)
    with w.scope():
        inside()
    w.branch(end, uniform=e.uniform)
    w.place(ragged)
    with w.scope():
        at_the_end()
    w.place(end)


# ---- blocks
def scalar_group(
    e: Emitter, op: tile.Load | tile.Store | tile.AtomicBlock, t: Attribute, verb: str
) -> Group:
    """The place of a scalar of an array; only one thread writes it."""

    def group(r: int) -> Group:
        block = Block(e, op, None)
        return block.group(0, op.mask, True if verb == "reads" else one_thread(e))

    return guarded(e, group, size_of(t), verb, op.array)(0)


def widths(e: Emitter, op: tile.Load | tile.Store, block: Block, t: TileType) -> tuple[int, int]:
    """Elements that one access may move: anywhere, and where the block lies inside the array (0:
    no more).
    """
    v, wide = block.vector(mask=op.mask), 0 if is_bool(t.element) else block.ragged(op.mask)
    remark(e, op, block.layout, max(v, wide), block.array.itemsize)
    return v, wide


@emitter(tile.Load)
def load(e: Emitter, op: tile.Load) -> None:
    """A block of an array, or a scalar of it, in registers."""
    t, absent = op.result.type, otherwise(e, op.other)
    if not isinstance(t, TileType):
        group = scalar_group(e, op, t, "reads")
        return e.set(op.result, load_element(e, group, t, absent(0), "global"))
    block = Block(e, op, layout_of(t))
    space = "global" if op.fetch is None else f"global.L2::{op.fetch.value.data}B"
    v, wide = widths(e, op, block, t)
    if wide and isinstance(whole := block.reaches(), str):
        into = e.free_destination(op.result, *op.operands) or e.w.many(*registers_of(t))
        inner, ragged = block.unbounded(), Block(e, op, layout_of(t))

        def delivered(v: int, group: Callable[[int], Group]) -> None:
            """Elements behind a tile's end too, which are constants: both branches lead to the same
            registers.
            """
            found = load_tile(e, t, v, group, absent, space, into=into)
            for register, value in zip(into, found.registers, strict=True):
                e.w.move(register, value)

        in_two(e, whole, lambda: delivered(wide, inner.group), lambda: delivered(v, ragged.group))
        return e.set(op.result, Tile.of(t, into))
    places = guarded(
        e, lambda r: block.group(r, op.mask), v * block.array.itemsize, "reads", op.array
    )
    free = e.free_destination(op.result, *op.operands)
    e.set(op.result, load_tile(e, t, v, places, absent, space, into=free))


@emitter(tile.Store)
def store(e: Emitter, op: tile.Store) -> None:
    """A tile to a block of an array, or a scalar."""
    t = op.value.type
    if not isinstance(t, TileType):
        group = scalar_group(e, op, t, "writes")
        return store_element(e, group, t, e.operand(op.value), "global")
    layout, value = layout_of(t), e.tile(op.value)
    block, once = Block(e, op, layout), stores_once(e, layout)
    v, wide = widths(e, op, block, t)

    def stored(v: int, block: Block) -> None:
        store_tile(e, value, v, lambda r: block.group(r, None, once(r)), "global")

    if wide and isinstance(whole := block.reaches(), str):
        inner, ragged = block.unbounded(), Block(e, op, layout)
        return in_two(e, whole, lambda: stored(wide, inner), lambda: stored(v, ragged))
    places = guarded(
        e, lambda r: block.group(r, op.mask, once(r)), v * block.array.itemsize, "writes", op.array
    )
    store_tile(e, value, v, places, "global")


# ---- pointers
def pointer_vector(
    e: Emitter,
    op: tile.LoadPointers | tile.StorePointers | tile.Atomic,
    layout: Layout,
    size: int,
) -> int:
    """Elements that one access may move: neighbours in registers whose addresses are neighbours,
    aligned, and masked together.
    """
    axis, v = fast_axis(layout), 1
    if axis is not None:
        along = contiguity(op.pointers, axis, e.ranges)
        v = layout.vector(axis, MAX_ACCESS_BYTES // size)
        while v > 1 and (along.run % v or along.at(v) % v):
            v //= 2
        v = alike_along(e, op.mask, axis, v)
    return remark(e, op, layout, v, size)


def pointer_group(
    e: Emitter,
    pointers: SSAValue,
    mask: SSAValue | None,
    extra: Callable[[int], Operand] = lambda r: True,
) -> Callable[[int], Group]:
    """The places that a tile of pointers names, where the mask and `extra` hold."""
    found = e.tile(pointers)

    def group(r: int) -> Group:
        held = both(e, both(e, inside(e, found.layout, r), mask_of(e, mask, r)), extra(r))
        return ABSENT if held is False else Group(e.w.register(found.registers[r], "b64"), 0, held)

    return group


def scalar_pointer_group(
    e: Emitter,
    op: tile.LoadPointers | tile.StorePointers | tile.Atomic,
    size: int,
    verb: str,
    held: Operand | None = None,
) -> Group:
    """The place that a scalar pointer names. held: whether it is there, by default where the mask
    holds, in one thread.
    """

    def group(r: int) -> Group:
        address = e.register(op.pointers)
        if held is not None:
            return Group(address, 0, held)
        return Group(address, 0, both(e, mask_of(e, op.mask, 0), one_thread(e)))

    return guarded(e, group, size, verb, op.pointers)(0)


def ordering(op: tile.LoadPointers | tile.StorePointers) -> str:
    """What an access says that other programs observe: nothing, or its semantics and scope."""
    if op.semantics is None:
        return ""
    return f".{op.semantics.data}.{SCOPES[op.scope.data if op.scope else None]}"


@emitter(tile.LoadPointers)
def load_pointers(e: Emitter, op: tile.LoadPointers) -> None:
    """The elements that pointers name."""
    t, atomic, how = op.result.type, op.semantics is not None, ordering(op)
    absent = otherwise(e, op.other)
    if not isinstance(t, TileType):
        held = both(e, mask_of(e, op.mask, 0), one_thread(e) if atomic else True)
        at = scalar_pointer_group(e, op, size_of(t), "reads", held)
        element = load_element(e, at, t, absent(0), "global", how)
        return e.set(op.result, broadcast(e, element, compute_class(t)) if atomic else element)
    layout, size = layout_of(t), size_of(t.element)
    if atomic:  # others write meanwhile: copies must hold what one thread saw
        once = stores_once(e, layout)
        places = guarded(
            e, pointer_group(e, op.pointers, op.mask, once), size, "reads", op.pointers
        )
        found = load_tile(e, t, 1, places, absent, "global", how)
        return e.set(op.result, broadcast_tile(e, t, once, e.elements(found)))
    alike = _alike(e, op, layout)
    v = 1 if alike > 1 else pointer_vector(e, op, layout, bits(t.element) // 8)
    places = guarded(e, pointer_group(e, op.pointers, op.mask), v * size, "reads", op.pointers)
    into = e.free_destination(op.result, *op.operands)
    if alike > 1:
        elements: list[Operand] = []
        for first in range(0, layout.num_registers, alike):
            x = load_element(e, places(first), t.element, absent(first), "global")
            elements += [x] * alike
        return e.set(op.result, e.build(t, elements, into, exact=True))
    e.set(op.result, load_tile(e, t, v, places, absent, "global", into=into))


def _alike(e: Emitter, op: tile.LoadPointers, layout: Layout) -> int:
    """How many registers in a row load the same element, and hold or leave it together."""
    axis = fast_axis(layout)
    if axis is None:
        return 1
    count = layout.vector(axis, layout.num_registers)
    for value in (op.pointers, op.mask, op.other):
        count = alike_along(e, value, axis, count)
    return count


@emitter(tile.StorePointers)
def store_pointers(e: Emitter, op: tile.StorePointers) -> None:
    """Elements to where pointers name."""
    t, how = op.value.type, ordering(op)
    if op.semantics is not None and op.semantics.data == "release":
        meet(e)  # what the others wrote comes first
    if not isinstance(t, TileType):
        at = scalar_pointer_group(e, op, size_of(t), "writes")
        return store_element(e, at, t, e.operand(op.value), "global", how)
    layout = layout_of(t)
    v = 1 if how else pointer_vector(e, op, layout, bits(t.element) // 8)
    group = pointer_group(e, op.pointers, op.mask, stores_once(e, layout))
    places = guarded(e, group, v * size_of(t.element), "writes", op.pointers)
    store_tile(e, e.tile(op.value), v, places, "global", how)
