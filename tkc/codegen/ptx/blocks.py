"""Blocks of arrays: where each element of a tile is in global memory, whether it exists, how many
one access may move.

    address(register) = [pointer + thread part]  + offsets * strides  +  constants of the register * strides
                         hoisted to the prologue   once a block          an immediate where the stride is known

An element exists if it lies inside the array along every axis, holds a mask, and is no padding.  Along an axis where offset and
extent are multiples of the block's extent, one test of the offset covers the block; where a loop
over the extent steps through it, none is needed.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block as BasicBlock
from xdsl.ir import SSAValue

from tkc.codegen.ptx.access import WIDEST, Group, both
from tkc.codegen.ptx.coordinates import inside, thread_offset
from tkc.codegen.ptx.emit import Emitter
from tkc.codegen.ptx.scalars import add, displaced, wide
from tkc.codegen.ptx.values import Array
from tkc.codegen.ptx.writer import Operand
from tkc.ir import tile
from tkc.ir.axis_info import contiguity
from tkc.ir.digits import copies
from tkc.ir.layout import WARP, Layout, register_map
from tkc.ir.types import TileType

FAR = 1 << 23  # an immediate of a machine instruction has 24 bits


def scalar_layout(e: Emitter) -> Layout:
    return Layout((), (), (copies(WARP),), (copies(e.instance.warps),))


def fast_axis(layout: Layout) -> int | None:
    """The axis along which consecutive registers run."""
    return (
        layout.registers[0].axis
        if layout.registers and layout.registers[0].stride == 1 and layout.registers[0].axis >= 0
        else None
    )


def vector_of_mask(e: Emitter, mask: SSAValue | None, axis: int, most: int) -> int:
    """Elements that a mask takes or leaves together along an axis."""
    if mask is None or not isinstance(mask.type, TileType):
        return most
    same = contiguity(mask, axis, e.ranges).same
    while most > 1 and same % most:
        most //= 2
    return most


def mask_of(e: Emitter, mask: SSAValue | None, register: int) -> Operand:
    if mask is None:
        return True
    return e.element(e.tile(mask), register) if isinstance(mask.type, TileType) else e.operand(mask)


def meeting(src: Layout, dst: Layout, axis: int) -> tuple[int, ...] | None:
    """For each register of `dst` the register of the rank-1 `src` that holds the same coordinate
    along `axis`.
    """
    for a in range(dst.rank):
        if a != axis:
            src = src.expand(a)
    return register_map(src, dst)


class Block:
    """The elements of an operation with `array`, `offsets`, `extents` and perhaps `mask`, dealt out
    by a layout.
    """

    def __init__(self, e: Emitter, op, layout: Layout | None):
        self.e, self.op, self.layout = e, op, layout or scalar_layout(e)
        self.array: Array = e.value(op.array)
        self.extents = tuple(op.extents.get_values())
        self.axes = [
            a for a, n in enumerate(self.extents) if n >= 0
        ]  # array axis of each tile axis
        self.constants = self.layout.offsets("registers")
        self.sources: dict[
            int, tuple[int, ...]
        ] = {}  # gathered axis -> register of its offsets for each of ours
        for axis, v in enumerate(op.offsets):
            if not isinstance(v.type, TileType):
                continue
            found = meeting(v.type.register_layout, self.layout, self.axes.index(axis))
            if found is None:
                e.fail(
                    f"the indices of axis {axis} lie in other threads than the elements they"
                    " choose: convert them to the layout of that axis"
                )
            self.sources[axis] = found
        self._pointers: dict[tuple, str] = {}
        self._tests: dict[tuple, Operand] = {}
        self._proven = {axis: self._always_inside(axis) for axis in range(len(self.extents))}
        if e.debug:
            self._doubt()

    def unbounded(self, axis: int) -> Block:
        """The same block where it is known to lie inside the array along an axis of the tile."""
        other = Block(self.e, self.op, self.layout)
        other._proven[self.axes[axis]] = True
        return other

    # ---- vectors
    # ----------------------------------------------------------------------------------------------
    def vector(self, most: int = WIDEST, mask: SSAValue | None = None) -> int:
        """Elements that one access may move."""
        e, a, size = self.e, self.array, self.array.itemsize
        axis = fast_axis(self.layout)
        if axis is None:
            return 1
        fast = self.axes[axis]
        if fast in self.sources or a.facts.strides[fast].exact != 1:
            return 1
        v = self.layout.vector(axis, most // size)

        def aligned(n):
            return a.facts.align % (n * size) == 0 and all(
                self._multiple(i, n) for i in range(len(self.extents)) if i != fast
            )

        def whole(n):
            return self._divisor(fast, n) and (
                self._proven[fast] or a.facts.shape[fast].divisible(n)
            )

        while v > 1 and not (aligned(v) and whole(v)):
            v //= 2
        return vector_of_mask(e, mask, axis, v)

    def ragged(self, mask: SSAValue | None = None) -> int:
        """Elements that one access may move where the whole block lies inside the array along its
        fastest axis: more than `vector` where the array's extent is no multiple of them; else 0."""
        e, a, axis = self.e, self.array, fast_axis(self.layout)
        if axis is None or mask is not None or e.debug or self.axes[axis] in self.sources:
            return 0
        fast, v = self.axes[axis], self.vector()
        found = e.ranges.of(self.op.offsets[fast])
        if a.facts.strides[fast].exact != 1 or self._proven[fast] or found is None or found.lo < 0:
            return 0
        n = self.layout.vector(axis, WIDEST // a.itemsize)
        while n > v and not (
            self._divisor(fast, n)
            and a.facts.align % (n * a.itemsize) == 0
            and all(self._multiple(i, n) for i in range(len(self.extents)) if i != fast)
        ):
            n //= 2
        return n if n > v and n * a.itemsize >= 4 else 0

    def reaches(self) -> Operand:
        """Whether the whole block ends inside the array along the fastest axis: the same for all
        threads.
        """
        axis = self.axes[fast_axis(self.layout)]
        offset, extent, n, w = (
            self.e.operand(self.op.offsets[axis]),
            self.array.extent(axis),
            self.extents[axis],
            self.e.w,
        )
        if not isinstance(offset, str) and not isinstance(extent, str):
            return offset + n <= extent
        if not self._narrow(offset):
            return w.op("setp.le.s64", "pred", add(self.e, offset, n, "s64"), wide(self.e, extent))
        return w.op("setp.ge.s32", "pred", w.op("sub.s32", "b32", w.register(extent), offset), n)

    def _divisor(self, axis: int, n: int) -> bool:
        """Whether the offset along an axis is a multiple of n."""
        found = self.e.ranges.of(self.op.offsets[axis])
        return found is not None and found.divisor % n == 0

    def _multiple(self, axis: int, n: int) -> bool:
        """Whether moving along an axis moves by multiples of n elements."""
        if self.array.facts.strides[axis].divisible(n):
            return True
        return self.extents[axis] in (-1, 1) and axis not in self.sources and self._divisor(axis, n)

    # ---- bounds
    # ----------------------------------------------------------------------------------------------
    def _always_inside(self, axis: int) -> bool:
        """Whether the block lies inside the array along an axis, whatever happens."""
        v, n, fact = self.op.offsets[axis], max(self.extents[axis], 1), self.array.facts.shape[axis]
        found = self.e.ranges.of(v)
        if found is None or found.lo < 0:
            return False
        reach = found.hi + (0 if axis in self.sources else n - 1)
        if fact.exact is not None and reach < fact.exact:
            return True
        if axis in self.sources or not (fact.divisible(n) and found.divisor % n == 0):
            return False
        return self._counts_through(v, axis)

    def _doubt(self) -> None:
        """What promises let go unchecked is checked after all."""
        from tkc.codegen.ptx.traps import inside

        for axis, v in enumerate(self.op.offsets):
            if self._proven[axis] and axis not in self.sources:
                inside(
                    self.e,
                    self.e.operand(v),
                    self.array.extent(axis),
                    max(self.extents[axis], 1),
                    axis,
                )

    def _counts_through(self, v: SSAValue, axis: int) -> bool:
        """Whether v is the counter of a loop up to the extent of this axis of this array (or to
        less).
        """
        loop = v.owner.parent_op() if isinstance(v.owner, BasicBlock) else None
        if not isinstance(loop, scf.ForOp) or v.index:
            return False
        bound, fact = loop.ub.owner, self.array.facts.shape[axis]
        if (
            isinstance(bound, tile.Dim)
            and bound.arg is self.op.array
            and bound.axis.value.data == axis
        ):
            return True
        limit = self.e.ranges.of(loop.ub)
        return fact.exact is not None and limit is not None and limit.hi <= fact.exact

    def _test(self, axis: int, constant: int) -> Operand:
        """Whether coordinate `thread + constant` of an axis is inside the array."""
        e, w, v, n = self.e, self.e.w, self.op.offsets[axis], max(self.extents[axis], 1)
        extent, fact = self.array.extent(axis), self.array.facts.shape[axis]
        found, offset = e.ranges.of(v), e.operand(v)
        if fact.divisible(n) and found is not None and found.divisor % n == 0:
            return self._once((axis,), lambda: self._below(offset, axis))
        here = self._once(
            (axis, "u"),
            lambda: add(
                e,
                offset if self._narrow(offset) else offset,
                self._thread(axis, offset),
                "s32" if self._narrow(offset) else "s64",
            ),
        )
        if self._narrow(here) and found is not None and found.lo >= 0:
            room = self._once(
                (axis, "room"),
                lambda: (
                    extent - here
                    if not isinstance(here, str) and not isinstance(extent, str)
                    else w.op("sub.s32", "b32", extent, here)
                ),
            )
            return self._once(
                (axis, constant),
                lambda: (
                    w.op("setp.gt.s32", "pred", room, constant)
                    if isinstance(room, str)
                    else room > constant
                ),
            )
        return self._once(
            (axis, constant),
            lambda: self._below(
                add(e, here, constant, "s32" if self._narrow(here) else "s64"), axis
            ),
        )

    def _narrow(self, x: Operand) -> bool:
        return not isinstance(x, str) or x.startswith("%r")

    def _thread(self, axis: int, like: Operand) -> Operand:
        if self.extents[axis] < 0:
            return 0
        at = thread_offset(self.e, self.layout, {self.axes.index(axis): 1})
        return at if self._narrow(like) else wide(self.e, at)

    def _below(self, x: Operand, axis: int) -> Operand:
        """0 <= x < the axis's extent, as unsigned numbers."""
        if not self._narrow(x):
            return self.e.w.op(
                "setp.lt.u64",
                "pred",
                x,
                (
                    self.array.long(axis)
                    if self.array.long
                    else wide(self.e, self.array.extent(axis), unsigned=True)
                ),
            )
        extent = self.array.extent(axis)
        if not isinstance(x, str) and not isinstance(extent, str):
            return 0 <= x < extent
        if not isinstance(x, str):
            return self.e.w.op("setp.gt.s32", "pred", extent, x) if x >= 0 else False
        return self.e.w.op("setp.lt.u32", "pred", x, extent)

    def _once(self, key: tuple, make) -> Operand:
        if key not in self._tests:
            self._tests[key] = make()
        return self._tests[key]

    def _index(self, axis: int, register: int) -> Operand:
        return self.e.element(self.e.tile(self.op.offsets[axis]), self.sources[axis][register])

    def held(self, register: int) -> Operand:
        """Whether the element of a register exists (mask not counted)."""
        keys = []
        for axis in range(len(self.extents)):
            if self._proven[axis]:
                continue
            constant = (
                int(self.constants[register, self.axes.index(axis)])
                if self.extents[axis] >= 0
                else 0
            )
            keys.append((axis, self.sources[axis][register] if axis in self.sources else constant))

        def make() -> Operand:
            answer: Operand = True
            for axis, constant in keys:
                test = (
                    self._once(
                        (axis, "index", constant),
                        lambda: self._below(self._index(axis, register), axis),
                    )
                    if axis in self.sources
                    else self._test(axis, constant)
                )
                answer = both(self.e, answer, test)
            return answer

        return both(self.e, self._once(("all", *keys), make), inside(self.e, self.layout, register))

    # ---- addresses
    # ----------------------------------------------------------------------------------------------
    def start(self) -> str:
        """The address of this thread's first register."""
        e, a, size = self.e, self.array, self.array.itemsize

        def thread_part() -> Operand:
            at = a.pointer()
            for t, axis in enumerate(self.axes):
                if axis not in self.sources:
                    at = displaced(
                        e, at, thread_offset(e, self.layout, {t: 1}), a.stride(axis), size, a.near
                    )
            return at

        key = (
            "thread part",
            self.op.array,
            e.instance,
            self.layout.lanes,
            self.layout.warps,
            self.layout.blocks,
            tuple(self.axes),
            tuple(self.sources),
        )
        at = e.w.hoist(key, thread_part) if a.argument >= 0 else e.w.memo(key, thread_part)
        for axis, v in enumerate(self.op.offsets):
            if axis not in self.sources:
                at = displaced(e, at, e.operand(v), a.stride(axis), size, a.near)
        return e.w.register(at, "b64")

    def address(self, register: int) -> tuple[str, int]:
        """(register, immediate) of an element."""
        e, a, size = self.e, self.array, self.array.itemsize
        immediate, runtime = 0, []
        for t, axis in enumerate(self.axes):
            c = int(self.constants[register, t])
            if axis in self.sources:
                runtime.append((axis, self.sources[axis][register]))
            elif a.facts.strides[axis].exact is not None:
                immediate += c * a.facts.strides[axis].exact * size
            elif c:
                runtime.append((axis, c))
        far = immediate // FAR * FAR if not -FAR <= immediate < FAR else 0
        key = tuple(runtime), far
        if key not in self._pointers:
            at = self._pointers.get(((), 0)) or self._pointers.setdefault(((), 0), self.start())
            for axis, c in runtime:
                at = displaced(
                    e,
                    at,
                    self._index(axis, register) if axis in self.sources else c,
                    a.stride(axis),
                    size,
                    a.near,
                )
            self._pointers[key] = add(e, at, far, "s64")
        return self._pointers[key], immediate - far

    def group(self, register: int, mask: SSAValue | None = None, extra: Operand = True) -> Group:
        held = both(
            self.e, both(self.e, self.held(register), mask_of(self.e, mask, register)), extra
        )
        return Group("", 0, False) if held is False else Group(*self.address(register), held)
