"""Global memory: blocks of arrays, tiles of pointers, scalars."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from xdsl.ir import SSAValue

from tkc.codegen.ptx.access import (
    WIDEST,
    Group,
    both,
    load_element,
    load_tile,
    store_element,
    store_tile,
)
from tkc.codegen.ptx.barriers import meet
from tkc.codegen.ptx.blocks import Block, fast_axis, mask_of, vector_of_mask
from tkc.codegen.ptx.coordinates import inside, is_first_copy, number, thread_offset
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.reduce import shuffle
from tkc.codegen.ptx.traps import guarded
from tkc.codegen.ptx.values import Tile, compute_class, registers_of
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
    first, seen = is_first_copy(e, layout), {}
    offsets = [tuple(at) for at in layout.offsets("registers").tolist()]
    for r, at in enumerate(offsets):
        seen.setdefault(at, r)
    return lambda r: first if seen[offsets[r]] == r else False


def one_thread(e: Emitter) -> Operand:
    """Whether this is the instance's first thread."""
    return (
        True
        if e.instance.single
        else e.w.hoist(
            ("first thread", e.instance), lambda: e.w.op("setp.eq.s32", "pred", e.thread(), 0)
        )
    )


def broadcast(e: Emitter, x: Operand, kind: str, giver: Operand | None = None) -> str:
    """A scalar of one thread (the instance's first), given to all of it through shared memory."""
    if e.instance.single:
        return e.w.register(x, kind)
    w = e.w
    start = w.hoist(
        "slots", lambda: e.scratch(8 * 32), root=True
    )  # 8 bytes for each warp that may be an instance's first
    base = (
        e.shared_base()
        if e.instance.first == 0
        else w.hoist(("slot", e.instance), lambda: displaced_slot(e))
    )
    place = f"[{base}+{start}]"
    held = w.op("selp.b32", "b32", 1, 0, x) if kind == "pred" else w.register(x, kind)
    width = "b64" if kind == "b64" else "b32"
    meet(e)
    with w.predicated(giver or one_thread(e)):
        w.emit(f"st.shared.{width} {place}, {held}")
    meet(e)
    found = w.new(width)
    w.emit(f"ld.shared.{width} {found}, {place}")
    return w.op("setp.ne.b32", "pred", found, 0) if kind == "pred" else found


def shared_out(e: Emitter, t: TileType, once, old: list[Operand]) -> Tile:
    """What the first of the threads that hold an element found in memory, for all that hold copies:
    through shared memory, if there are any.
    """
    layout, size = t.register_layout, max(bits(t.element) // 8, 1)
    if is_first_copy(e, layout) is True and layout.register_replication == 1:
        return e.build(t, old)
    steps = {a: size * prod(layout.padded_shape[a + 1 :]) for a in range(layout.rank)}
    own, slot = e.own_scratch(size * prod(layout.padded_shape))
    base = e.w.op("add.s32", "b32", own, thread_offset(e, layout, steps))

    def place(r):
        return slot + sum(number(layout, r, a) * step for a, step in steps.items())

    meet(e)
    for r in range(layout.num_registers):
        store_element(e, Group(base, place(r), once(r)), t.element, old[r], "shared")
    meet(e)
    return load_tile(e, t, 1, lambda r: Group(base, place(r)), None, "shared")


def displaced_slot(e: Emitter) -> str:
    return e.w.op("mad.lo.s32", "b32", e.w.register(e.instance.first), 8, e.shared_base())


def one_from(e: Emitter, value: Tile, index: tuple[int, ...]) -> Operand:
    """One element of a tile, for every thread of the instance."""
    owners = value.layout.owners(index)
    register, lane, warp, _ = owners[0]
    x, kind, w = e.element(value, register), compute_class(value.element), e.w
    lanes, warps = {l for _, l, _, _ in owners}, {v for _, _, v, _ in owners}
    if not isinstance(x, str):
        return x
    if len(lanes) < 32:
        x = shuffle(e, x, lane, kind, "idx")
    if len(warps) == value.layout.num_warps:
        return x
    here = w.op("setp.eq.s32", "pred", e.thread(), 32 * warp)
    return broadcast(e, x, kind, here)


def remark(e: Emitter, op, layout: Layout, v: int, size: int) -> int:
    """v; noted where facts, not the layout, keep an access narrow."""
    axis = fast_axis(layout)
    most = layout.vector(axis, WIDEST // size) if axis is not None else 1
    place = location_of(op)
    if v < most:
        e.notes.append(
            f"{f'{place}: ' if place else ''}'{op.name}' moves {v * size} bytes at once, not"
            f" {most * size}: alignment, strides, bounds or mask are not known to be multiples of"
            " that"
        )
    return v


def size_of(element) -> int:
    return max(bits(element) // 8, 1)


def in_two(
    e: Emitter, whole: str, inside: Callable[[], object], at_the_end: Callable[[], object]
) -> None:
    """Emits `inside` for blocks that lie in the array, `at_the_end` for the one at a ragged end."""
    w, ragged, end = e.w, e.w.label("ragged"), e.w.label("end")
    w.raw(f"\t@!{whole} bra{e.uniform} {ragged};")
    with w.scope():
        inside()
    w.raw(f"\tbra{e.uniform} {end};")
    w.place(ragged)
    with w.scope():
        at_the_end()
    w.place(end)


# ---- blocks
# --------------------------------------------------------------------------------------------------
@emitter(tile.Load)
def load(e: Emitter, op: tile.Load) -> None:
    t = op.result.type
    if not isinstance(t, TileType):
        group = guarded(
            e, lambda r: Block(e, op, None).group(0, op.mask), size_of(t), "reads", op.array
        )(0)
        return e.set(op.result, load_element(e, group, t, otherwise(e, op.other)(0), "global"))
    block, space = (
        Block(e, op, t.register_layout),
        ("global" if op.fetch is None else f"global.L2::{op.fetch.value.data}B"),
    )
    v, wide = block.vector(mask=op.mask), 0 if is_bool(t.element) else block.ragged(op.mask)
    remark(e, op, block.layout, max(v, wide), block.array.itemsize)
    if wide and isinstance(whole := block.reaches(), str):
        kind, count = registers_of(t)
        into = e.free_home(op.result, *op.operands) or e.w.many(kind, count)
        inner, ragged = block.unbounded(fast_axis(block.layout)), Block(e, op, t.register_layout)

        def delivered(v: int, group: Callable[[int], Group]) -> None:
            """Elements behind a tile's end too, which are constants: both ways lead to the same
            registers.
            """
            found = load_tile(e, t, v, group, otherwise(e, op.other), space, into=into)
            for register, value in zip(into, found.registers, strict=False):
                if value != register:
                    e.w.move(register, value)

        in_two(e, whole, lambda: delivered(wide, inner.group), lambda: delivered(v, ragged.group))
        return e.set(op.result, Tile.of(t, into))
    group = guarded(
        e, lambda r: block.group(r, op.mask), v * block.array.itemsize, "reads", op.array
    )
    e.set(
        op.result,
        load_tile(
            e, t, v, group, otherwise(e, op.other), space, into=e.free_home(op.result, *op.operands)
        ),
    )


@emitter(tile.Store)
def store(e: Emitter, op: tile.Store) -> None:
    t = op.value.type
    if not isinstance(t, TileType):
        return store_element(
            e,
            guarded(
                e,
                lambda r: Block(e, op, None).group(0, op.mask, one_thread(e)),
                size_of(t),
                "writes",
                op.array,
            )(0),
            t,
            e.operand(op.value),
            "global",
        )
    block, once = Block(e, op, t.register_layout), stores_once(e, t.register_layout)
    v, wide = block.vector(mask=op.mask), 0 if is_bool(t.element) else block.ragged(op.mask)
    remark(e, op, block.layout, max(v, wide), block.array.itemsize)
    if wide and isinstance(whole := block.reaches(), str):
        inner, ragged, value = (
            block.unbounded(fast_axis(block.layout)),
            Block(e, op, t.register_layout),
            e.tile(op.value),
        )
        return in_two(
            e,
            whole,
            lambda: store_tile(e, value, wide, lambda r: inner.group(r, None, once(r)), "global"),
            lambda: store_tile(e, value, v, lambda r: ragged.group(r, None, once(r)), "global"),
        )
    store_tile(
        e,
        e.tile(op.value),
        v,
        guarded(
            e,
            lambda r: block.group(r, op.mask, once(r)),
            v * block.array.itemsize,
            "writes",
            op.array,
        ),
        "global",
    )


# ---- pointers
# --------------------------------------------------------------------------------------------------
def pointer_vector(e: Emitter, pointers: SSAValue, mask: SSAValue | None, size: int) -> int:
    """Elements that one access may move: neighbours in registers whose addresses are neighbours,
    aligned, and masked together.
    """
    layout = pointers.type.register_layout
    axis = fast_axis(layout)
    if axis is None:
        return 1
    along, v = contiguity(pointers, axis, e.ranges), layout.vector(axis, WIDEST // size)
    while v > 1 and (along.run % v or along.at(v) % v):
        v //= 2
    return vector_of_mask(e, mask, axis, v)


def pointer_group(
    e: Emitter,
    pointers: SSAValue,
    mask: SSAValue | None,
    extra: Callable[[int], Operand] = lambda r: True,
) -> Callable[[int], Group]:
    found, layout = e.tile(pointers), pointers.type.register_layout

    def group(r: int) -> Group:
        held = both(e, both(e, inside(e, layout, r), mask_of(e, mask, r)), extra(r))
        return (
            Group("", 0, False)
            if held is False
            else Group(e.w.register(found.registers[r], "b64"), 0, held)
        )

    return group


def ordering(op: tile.LoadPointers | tile.StorePointers) -> str:
    """What an access says that other programs look at too: nothing, or its semantics and scope."""
    return (
        "" if op.semantics is None else f".{op.semantics.data}.{SCOPES[op.scope and op.scope.data]}"
    )


@emitter(tile.LoadPointers)
def load_pointers(e: Emitter, op: tile.LoadPointers) -> None:
    t, atomic = op.result.type, op.semantics is not None
    how = ordering(op)
    if not isinstance(t, TileType):
        held = both(e, mask_of(e, op.mask, 0), one_thread(e) if atomic else True)
        at = guarded(
            e, lambda r: Group(e.register(op.pointers), 0, held), size_of(t), "reads", op.pointers
        )(0)
        found = load_element(e, at, t, otherwise(e, op.other)(0), "global", how)
        return e.set(op.result, broadcast(e, found, compute_class(t)) if atomic else found)
    if atomic:  # others write meanwhile: copies must hold what one thread saw
        once, seen = (
            stores_once(e, t.register_layout),
            pointer_group(e, op.pointers, op.mask, stores_once(e, t.register_layout)),
        )
        found = load_tile(
            e,
            t,
            1,
            guarded(e, seen, size_of(t.element), "reads", op.pointers),
            otherwise(e, op.other),
            "global",
            how,
        )
        return e.set(
            op.result,
            shared_out(
                e, t, once, [e.element(found, r) for r in range(t.register_layout.num_registers)]
            ),
        )
    v = remark(
        e,
        op,
        t.register_layout,
        pointer_vector(e, op.pointers, op.mask, bits(t.element) // 8),
        bits(t.element) // 8,
    )
    group = guarded(
        e, pointer_group(e, op.pointers, op.mask), v * size_of(t.element), "reads", op.pointers
    )
    e.set(
        op.result,
        load_tile(
            e,
            t,
            v,
            group,
            otherwise(e, op.other),
            "global",
            into=e.free_home(op.result, *op.operands),
        ),
    )


@emitter(tile.StorePointers)
def store_pointers(e: Emitter, op: tile.StorePointers) -> None:
    t, how = op.value.type, ordering(op)
    if op.semantics is not None and op.semantics.data == "release":
        meet(e)  # what the others wrote comes first
    if not isinstance(t, TileType):
        at = guarded(
            e,
            lambda r: Group(
                e.register(op.pointers), 0, both(e, mask_of(e, op.mask, 0), one_thread(e))
            ),
            size_of(t),
            "writes",
            op.pointers,
        )(0)
        return store_element(e, at, t, e.operand(op.value), "global", how)
    v = (
        1
        if how
        else remark(
            e,
            op,
            t.register_layout,
            pointer_vector(e, op.pointers, op.mask, bits(t.element) // 8),
            bits(t.element) // 8,
        )
    )
    group = guarded(
        e,
        pointer_group(e, op.pointers, op.mask, stores_once(e, t.register_layout)),
        v * size_of(t.element),
        "writes",
        op.pointers,
    )
    store_tile(e, e.tile(op.value), v, group, "global", how)
