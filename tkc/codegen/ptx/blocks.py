"""Blocks of arrays: where each element of a tile is in global memory, whether it exists, how many
one access may move.

    address(register) = pointer + thread part                   hoisted to the prologue
                        + offsets * strides                     once a block
                        + constants of the register * strides   an immediate where they are known

An element exists if it lies inside the array along every axis, its mask holds, and it is no
padding.
Along an axis where offset and extent are multiples of the block's extent, one test of the offset
covers the block; where a loop over the extent steps through it, none is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from xdsl.dialects import scf
from xdsl.ir import Block as BasicBlock
from xdsl.ir import SSAValue

from tkc.codegen.ptx import traps
from tkc.codegen.ptx.access import ABSENT, MAX_ACCESS_BYTES, Group, both
from tkc.codegen.ptx.coordinates import inside, thread_offset
from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.integers import add, displaced, is_narrow, wide
from tkc.codegen.ptx.values import layout_of
from tkc.codegen.ptx.writer import Integer, Operand, T, as_integer
from tkc.ir import threads, tile
from tkc.ir.axis_info import contiguity
from tkc.ir.digits import copies
from tkc.ir.interface import UNBOUNDED
from tkc.ir.layout import WARP, Layout, register_map
from tkc.ir.types import TileType
from tkc.ir.values import defining_op, index_of

MAX_IMMEDIATE_BYTES = 1 << 23  # an immediate of a machine instruction has 24 bits

BlockOperation = tile.Load | tile.Store | tile.AtomicBlock | threads.CpAsync


def scalar_layout(e: Emitter) -> Layout:
    """The layout of an access of one element by all threads."""
    return Layout((), (), (copies(WARP),), (copies(e.instance.warps),))


def fast_axis(layout: Layout) -> int | None:
    """The axis along which consecutive registers run."""
    first = layout.registers[0] if layout.registers else None
    if first is None or first.stride != 1 or first.axis < 0:
        return None
    return first.axis


def alike_along(e: Emitter, value: SSAValue | None, axis: int, most: int) -> int:
    """Elements, at most so many, for which a mask, or what else a tile says, is the same."""
    if value is None or not isinstance(value.type, TileType):
        return most
    same = contiguity(value, axis, e.ranges).same
    while most > 1 and same % most:
        most //= 2
    return most


def mask_of(e: Emitter, mask: SSAValue | None, register: int) -> Operand:
    """Whether the mask of an access holds for a register."""
    if mask is None:
        return True
    return e.element(e.tile(mask), register) if isinstance(mask.type, TileType) else e.operand(mask)


def matching_registers(src: Layout, dst: Layout, axis: int) -> tuple[int, ...] | None:
    """For each register of `dst` the register of the rank-1 `src` that holds the same coordinate
    along `axis`; None where another thread holds it.
    """
    for a in range(dst.rank):
        if a != axis:
            src = src.expand(a)
    return register_map(src, dst)


class Block:
    """The elements of an operation with `array`, `offsets`, `extents` and perhaps `mask`,
    distributed by a layout.
    """

    def __init__(self, e: Emitter, op: BlockOperation, layout: Layout | None):
        self.e, self.op, self.layout = e, op, layout or scalar_layout(e)
        self.array = e.array(op.array)
        self.extents = tuple(int(n) for n in op.extents.get_values())
        # array axis of each tile axis
        self.axes = [a for a, n in enumerate(self.extents) if n >= 0]
        self.constants = self.layout.offsets("registers")
        # gathered axis -> register of its offsets for each register of the block
        self.sources: dict[int, tuple[int, ...]] = {}
        for axis, v in enumerate(op.offsets):
            if isinstance(v.type, TileType):
                self.sources[axis] = self._gathered(v.type, axis)
        self._pointers: dict[tuple[tuple[tuple[int, int], ...], int], Integer] = {}
        self._tests: dict[Hashable, Any] = {}
        self._proven = {axis: self._always_inside(axis) for axis in range(len(self.extents))}
        if e.debug:
            self._check_promises()

    def _gathered(self, t: TileType, axis: int) -> tuple[int, ...]:
        found = matching_registers(layout_of(t), self.layout, self.axes.index(axis))
        if found is None:
            self.e.fail(
                f"the indices of axis {axis} lie in other threads than the elements they"
                " choose: convert them to the layout of that axis"
            )
        return found

    def unbounded(self) -> Block:
        """The same block where it is known to lie inside the array along its fastest axis."""
        other = Block(self.e, self.op, self.layout)
        other._proven[self.fast] = True
        return other

    # ---- vectors
    @property
    def fast(self) -> int:
        """The array axis along which consecutive registers run; -1 where there is none."""
        axis = fast_axis(self.layout)
        return -1 if axis is None else self.axes[axis]

    def vector(
        self, most: int = MAX_ACCESS_BYTES, mask: SSAValue | None = None, cut: bool = False
    ) -> int:
        """Elements that one access of at most `most` bytes may move. cut: of which it can leave out
        those behind the array's end (`left`).
        """
        array, axis, fast = self.array, fast_axis(self.layout), self.fast
        if axis is None or fast in self.sources or array.facts.strides[fast].exact != 1:
            return 1
        v = self.layout.vector(axis, most // array.itemsize)
        while v > 1 and not (self._aligned(v) and self._whole(v, cut)):
            v //= 2
        return alike_along(self.e, mask, axis, v)

    def _aligned(self, n: int) -> bool:
        """Whether addresses of groups of n elements along the fastest axis are multiples of their
        bytes, if the first one's is.
        """
        others = (i for i in range(len(self.extents)) if i != self.fast)
        aligned = self.array.facts.align % (n * self.array.itemsize) == 0
        return aligned and all(self._multiple(i, n) for i in others)

    def _whole(self, n: int, cut: bool) -> bool:
        """Whether groups of n elements along the fastest axis lie inside the array or outside, or
        begin inside or lie outside.
        """
        fast = self.fast
        if not self._divisor(fast, n):
            return False
        return cut or self._proven[fast] or self.array.facts.shape[fast].divisible(n)

    def left(self, register: int) -> Integer:
        """Elements from a register's to the array's end along the fastest axis, where it lies
        inside.
        """
        e, axis, position = self.e, self.fast, self._position(self.fast, register)
        offset, extent = e.integer(self.op.offsets[axis]), self.array.extent(axis)
        type = "s32" if is_narrow(offset) else "s64"
        here = self._once((axis, "u"), lambda: add(e, offset, self._thread(axis, offset), type))
        if is_narrow(here):
            return add(e, self._narrow_left(axis, here, extent), -position)
        whole = wide(e, extent) if self.array.long is None else self.array.long(axis)
        far = self._once((axis, "far"), lambda: e.w.op("sub.s64", "b64", whole, here))
        return add(e, far, -position, "s64")

    def ragged(self, mask: SSAValue | None = None) -> int:
        """Elements that one access may move where the whole block lies inside the array along its
        fastest axis: more than `vector` where the array's extent is no multiple of them; else 0.
        """
        array, axis, fast = self.array, fast_axis(self.layout), self.fast
        if axis is None or mask is not None or self.e.debug or fast in self.sources:
            return 0
        v, found = self.vector(), self.e.ranges.offset(self.op.offsets[fast])
        if self._proven[fast] or found is None:
            return 0
        if found.lo < 0 and not isinstance(self.op, tile.Store):  # which has its registers anyway
            return 0
        if array.facts.strides[fast].exact != 1:
            return 0
        n = self.layout.vector(axis, MAX_ACCESS_BYTES // array.itemsize)
        while n > v and not (self._divisor(fast, n) and self._aligned(n)):
            n //= 2
        return n if n > v and n * array.itemsize >= 4 else 0

    def reaches(self) -> Operand:
        """Whether the whole block lies inside the array along the fastest axis: the same for all
        threads.
        """
        e, found = self.e, self.e.ranges.of(self.op.offsets[self.fast])
        if found is not None and found.lo >= 0:
            return self._ends_inside()
        offset = e.integer(self.op.offsets[self.fast])
        if not isinstance(offset, str):
            return offset >= 0 and self._ends_inside()
        begins = f"setp.ge.{'s32' if is_narrow(offset) else 's64'}"
        return both(e, e.w.op(begins, "pred", offset, 0), self._ends_inside())

    def _ends_inside(self) -> Operand:
        """Whether the whole block ends inside the array along the fastest axis."""
        e, axis = self.e, self.fast
        offset, extent, n = (
            e.integer(self.op.offsets[axis]),
            self.array.extent(axis),
            self.extents[axis],
        )
        if not isinstance(offset, str) and not isinstance(extent, str):
            return offset + n <= extent
        if not is_narrow(offset):
            return e.w.op("setp.le.s64", "pred", add(e, offset, n, "s64"), wide(e, extent))
        left = e.w.op("sub.s32", "b32", e.w.register(extent), offset)
        return e.w.op("setp.ge.s32", "pred", left, n)

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
    def _is_unbounded(self, axis: int) -> bool:
        """Whether an axis has no end: of a pointer that was raised, and is not tested."""
        return self.array.facts.shape[axis].exact == UNBOUNDED

    def _always_inside(self, axis: int) -> bool:
        """Whether the block lies inside the array along an axis, whatever happens."""
        v, n, fact = self.op.offsets[axis], max(self.extents[axis], 1), self.array.facts.shape[axis]
        found = self.e.ranges.offset(v)
        if found is None or found.lo < 0:
            return False
        if self._is_unbounded(axis):
            return True
        reach = found.hi + (0 if axis in self.sources else n - 1)
        if fact.exact is not None and reach < fact.exact:
            return True
        if axis in self.sources or not (fact.divisible(n) and found.divisor % n == 0):
            return False
        return self._counts_through(v, axis)

    def _check_promises(self) -> None:
        """What promises let go unchecked is checked after all."""
        for axis, v in enumerate(self.op.offsets):
            promised = self._proven[axis] and not self._is_unbounded(axis)
            if promised and axis not in self.sources:
                n = max(self.extents[axis], 1)
                traps.inside(self.e, self.e.integer(v), self.array.extent(axis), n, axis)

    def _counts_through(self, v: SSAValue, axis: int) -> bool:
        """Whether v is the induction variable of a loop up to the extent of this axis of this array
        (or to less).
        """
        loop = v.owner.parent_op() if isinstance(v.owner, BasicBlock) else None
        if not isinstance(loop, scf.ForOp) or index_of(v):
            return False
        bound, fact = defining_op(loop.ub, tile.Dim), self.array.facts.shape[axis]
        if bound is not None and bound.arg is self.op.array and bound.axis.value.data == axis:
            return True
        limit = self.e.ranges.of(loop.ub)
        return fact.exact is not None and limit is not None and limit.hi <= fact.exact

    def _test(self, axis: int, constant: int) -> Operand:
        """Whether coordinate `thread + constant` of an axis is inside the array."""
        e, v, n = self.e, self.op.offsets[axis], max(self.extents[axis], 1)
        extent, fact = self.array.extent(axis), self.array.facts.shape[axis]
        found, offset = e.ranges.offset(v), e.integer(v)
        if found is not None and fact.divisible(n) and found.divisor % n == 0:
            return self._once((axis,), lambda: self._below(offset, axis))
        type = "s32" if is_narrow(offset) else "s64"
        here = self._once((axis, "u"), lambda: add(e, offset, self._thread(axis, offset), type))
        if not is_narrow(here) or found is None or found.lo < 0:
            type = "s32" if is_narrow(here) else "s64"
            return self._once(
                (axis, constant), lambda: self._below(add(e, here, constant, type), axis)
            )
        left = self._narrow_left(axis, here, extent)
        return self._once((axis, constant), lambda: self._exceeds(left, constant))

    def _narrow_left(self, axis: int, here: Integer, extent: Integer) -> Integer:
        """Elements from this thread's first one to the array's end, where it is not before the
        array; none, or fewer, where it is behind the end. here: its 32-bit coordinate.
        """
        e = self.e

        def make() -> Integer:
            if not isinstance(extent, str) and not isinstance(here, str):
                return extent - here
            if self._stays_narrow(axis):
                return e.w.op("sub.s32", "b32", extent, here)
            # a coordinate behind 2^31 is a negative one, and the difference would wrap
            near = e.w.op("min.u32", "b32", here, extent)
            return e.w.op("sub.s32", "b32", extent, near)

        return self._once((axis, "left"), make)

    def _stays_narrow(self, axis: int) -> bool:
        """Whether 32 bits with a sign hold every coordinate of the block, inside the array or
        not: extents and numbers of programs are not that large, data may be any number.
        """
        found = self.e.ranges.of(self.op.offsets[axis])
        if found is None or found.lo < 0:
            return False
        last = found.hi + max(self.extents[axis], 1) - 1
        return last < 1 << 31 or not found.is_data and found.exact is None

    def _exceeds(self, x: Integer, constant: int) -> Operand:
        if not isinstance(x, str):
            return x > constant
        return self.e.w.op("setp.gt.s32", "pred", x, constant)

    def _thread(self, axis: int, like: Integer) -> Integer:
        """The thread's part of the coordinate, as wide as an operand."""
        if self.extents[axis] < 0:
            return 0
        at = thread_offset(self.e, self.layout, {self.axes.index(axis): 1})
        return at if is_narrow(like) else wide(self.e, at)

    def _below(self, x: Integer, axis: int) -> Operand:
        """0 <= x < the axis's extent, as unsigned numbers."""
        w, array = self.e.w, self.array
        if not is_narrow(x):
            extent = (
                array.long(axis) if array.long else wide(self.e, array.extent(axis), unsigned=True)
            )
            return w.op("setp.lt.u64", "pred", x, extent)
        extent = array.extent(axis)
        if isinstance(x, str):
            return w.op("setp.lt.u32", "pred", x, extent)
        if not isinstance(extent, str):
            return 0 <= x < extent
        return w.op("setp.gt.s32", "pred", extent, x) if x >= 0 else False

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._tests:
            self._tests[key] = make()
        return self._tests[key]

    def _index(self, axis: int, register: int) -> Integer:
        """The offset of a gathered element."""
        indices = self.e.tile(self.op.offsets[axis])
        return as_integer(self.e.element(indices, self.sources[axis][register]))

    def held(self, register: int) -> Operand:
        """Whether the element of a register exists (mask not counted)."""
        unproven = [axis for axis in range(len(self.extents)) if not self._proven[axis]]
        keys = [(axis, self._position(axis, register)) for axis in unproven]

        def test(axis: int, position: int) -> Operand:
            if axis not in self.sources:
                return self._test(axis, position)
            key = axis, "index", position
            return self._once(key, lambda: self._below(self._index(axis, register), axis))

        def make() -> Operand:
            answer: Operand = True
            for axis, position in keys:
                answer = both(self.e, answer, test(axis, position))
            return answer

        return both(self.e, self._once(("all", *keys), make), inside(self.e, self.layout, register))

    def _position(self, axis: int, register: int) -> int:
        """Of a gathered axis the register of its offset, of others the register's constant."""
        if axis in self.sources:
            return self.sources[axis][register]
        if self.extents[axis] < 0:
            return 0
        return int(self.constants[register, self.axes.index(axis)])

    # ---- addresses
    def start(self) -> str:
        """The address of this thread's first register."""
        e, a, size = self.e, self.array, self.array.itemsize

        def thread_part() -> Integer:
            at = a.pointer()
            for t, axis in enumerate(self.axes):
                if axis not in self.sources:
                    own = thread_offset(e, self.layout, {t: 1})
                    at = displaced(e, at, own, a.stride(axis), size, a.near)
            return at

        layout = self.layout
        key = (
            "thread part",
            self.op.array,
            e.instance,
            layout.lanes,
            layout.warps,
            layout.blocks,
            tuple(self.axes),
            tuple(self.sources),
        )
        at = e.w.hoist(key, thread_part) if a.argument >= 0 else e.w.memo(key, thread_part)
        for axis, v in enumerate(self.op.offsets):
            if axis not in self.sources:
                at = displaced(e, at, e.integer(v), a.stride(axis), size, a.near)
        return e.w.register(at, "b64")

    def address(self, register: int) -> tuple[Integer, int]:
        """(register, immediate) of an element."""
        e, a, size = self.e, self.array, self.array.itemsize
        immediate, runtime = 0, []
        for axis in self.axes:
            position, stride = self._position(axis, register), a.facts.strides[axis].exact
            if axis not in self.sources and stride is not None:
                immediate += position * stride * size
            elif axis in self.sources or position:
                runtime.append((axis, position))
        far = 0
        if not -MAX_IMMEDIATE_BYTES <= immediate < MAX_IMMEDIATE_BYTES:
            far = immediate // MAX_IMMEDIATE_BYTES * MAX_IMMEDIATE_BYTES
        key = tuple(runtime), far
        if key not in self._pointers:
            at = self._pointers.get(((), 0)) or self._pointers.setdefault(((), 0), self.start())
            for axis, position in runtime:
                index = self._index(axis, register) if axis in self.sources else position
                at = displaced(e, at, index, a.stride(axis), size, a.near)
            self._pointers[key] = add(e, at, far, "s64")
        return self._pointers[key], immediate - far

    def group(self, register: int, mask: SSAValue | None = None, extra: Operand = True) -> Group:
        """The place of the group that starts with a register, where its mask and `extra` hold."""
        masked = both(self.e, self.held(register), mask_of(self.e, mask, register))
        held = both(self.e, masked, extra)
        return ABSENT if held is False else Group(*self.address(register), held)
