"""Writes blocks of arrays in place of accesses by pointers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import gcd, lcm

from xdsl.dialects.builtin import UnitAttr, i1, i32, i64
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.host_values import BEGINS_BEFORE, host_value
from tkc.ir.interface import UNBOUNDED
from tkc.ir.rewrite import Builder, erase, replace
from tkc.ir.target import ROW_ALIGNMENT
from tkc.ir.types import (
    MOST_DIVISOR,
    ArrayFacts,
    ArrayType,
    Fact,
    TileType,
    bits,
    pointee_of,
)
from tkc.ir.values import ancestor, array_type, holds, owner_op, tile_type
from tkc.passes.analysis.polynomials import Polynomial, Scalars
from tkc.passes.raised.arrays import Part
from tkc.passes.raised.blocks import (
    MIN_MOVED_STRIDE,
    REACHED_ELEMENTS,
    ROWS_BEFORE,
    Axis,
    Block,
    Condition,
    Covered,
    is_large,
)


@dataclass(frozen=True)
class MadeArray:
    """An array that the kernel makes; of each axis that has been moved how many rows come before
    the argument's first.
    """

    array: SSAValue
    before: list[SSAValue | None]


class Writer:
    """Writes blocks for accesses by pointers; equal arrays are made once, before the first."""

    def __init__(self, kernel: tile.Kernel, scalars: Scalars, checks: bool):
        self.kernel, self.scalars, self.checks = kernel, scalars, checks
        self.has_dots = holds(kernel, tile.Dot)
        self.arrays: dict[tuple, MadeArray] = {}
        self.wholes: dict[tuple, SSAValue] = {}
        self.entry: Operation | None = None  # before it arrays are made
        self.placed: dict[SSAValue, SSAValue] = {}
        self.loaded: dict[SSAValue, SSAValue] = {}  # what has been written, by what it replaces

    def begin_before(self, written: Sequence[Operation]) -> None:
        """Arrays are made before the first of the operations that are replaced."""
        top = self.kernel.body.block
        around = {ancestor(op, top) for op in written}
        self.entry = next((op for op in top.ops if op in around), None)

    def write_part(self, part: Part) -> None:
        """Replaces an array by a view of the one that it is a part of."""
        op, build = part.op, Builder(part.op)
        self._check(part.assumed, build)
        starts = [self._sum(axis.start, build, False) for axis in part.axes]
        starts = [s if s.type == i32 else build(ew.Cast(s, i32)) for s in starts]
        kinds = ["index"] * len(starts) + ["all"] * len(op.shape)
        whole = self._whole(part)
        if op is self.entry:  # which goes
            self.entry = op.next_op
        replace(op, [build(tile.View(whole, kinds, starts, array_type(op.result)))])

    def _whole(self, part: Part) -> SSAValue:
        """The array that another is a part of."""
        op, given = part.op, (*part.op.shape, *part.op.strides)
        outer = tuple(axis.stride for axis in part.axes)
        key = part.base, part.offset, outer, tuple(map(host_value, given))
        if key not in self.wholes:
            assert self.entry is not None
            build = Builder(self.entry)
            pointer = build(tile.Pointer(part.base))
            if part.offset.terms:
                offset = self._sum(part.offset, build, True, is_large(part.base))
                pointer = build(ew.PointerAdd(pointer, offset))
            rank = len(part.axes)
            shape = [build.number(UNBOUNDED)] * rank + [self._at_entry(v) for v in op.shape]
            strides = [self._sum(axis.stride, build, True) for axis in part.axes]
            strides += [self._at_entry(v) for v in op.strides]
            own = array_type(op.result)
            size = bits(own.element) // 8
            facts = ArrayFacts(
                (*[Fact(exact=UNBOUNDED)] * rank, *own.facts.shape),
                (*(_fact(self.scalars, axis.stride) for axis in part.axes), *own.facts.strides),
                gcd(
                    array_type(part.base).facts.align,
                    size * self.scalars.divisor(part.offset),
                ),
            )
            t = ArrayType(len(shape), own.element, facts)
            self.wholes[key] = build(tile.MakeArray(pointer, shape, strides, t))
        return self.wholes[key]

    def write(self, block: Block) -> None:
        """Replaces the access."""
        op, build = block.op, Builder(block.op)
        self._check(block.assumed, build)
        turned = self.has_dots and _is_by_columns(block)
        conditions = self._mask(block, _kept(block), build) if turned else None
        if turned:  # a matrix is stored by rows, which its transpose has
            at = [i for i, axis in enumerate(block.axes) if axis.extent >= 0]
            block.axes[at[0]], block.axes[at[1]] = block.axes[at[1]], block.axes[at[0]]
        made = self._array(block)
        offsets = self._offsets(block, made.before, build)
        mask = conditions if turned else self._mask(block, _kept(block), build)
        if op is self.entry:  # which goes
            self.entry = op.next_op
        if isinstance(op, tile.LoadPointers):
            self._load(block, op, made.array, offsets, mask, build)
            return
        self._store(block, op, made.array, offsets, mask, turned, build)

    def _offsets(
        self, block: Block, before: Sequence[SSAValue | None], build: Builder
    ) -> list[SSAValue]:
        """Where a block begins along each axis, counted from what is before the array's places."""
        rows = self._take_rows(block, build)
        starts = [
            self._sum(axis.start, build, False) if row is None else row
            for axis, row in zip(block.axes, rows, strict=True)
        ]
        return [
            start if less is None else _counted_from(less, start, build)
            for start, less in zip(starts, before, strict=True)
        ]

    def _load(
        self,
        block: Block,
        op: tile.LoadPointers,
        array: SSAValue,
        offsets: Sequence[SSAValue],
        mask: SSAValue | None,
        build: Builder,
    ) -> None:
        extents, kept = [axis.extent for axis in block.axes], _kept(block)
        other = None if op.other is None else _reshaped(op.other, kept, build)
        loaded = build(tile.Load(array, offsets, extents, mask, other))
        whole = list(tile_type(op.result).extents)
        once = [n // block.repeated.get(a, 1) for a, n in enumerate(whole)]
        if not kept:
            loaded = build(tile.Splat(loaded, TileType(once, loaded.type)))
        whole_tile = _repeated(_reshaped(loaded, once, build), block.repeated, build)
        whole_tile = self._cut_off(block, whole_tile, build)
        self.loaded[op.result] = whole_tile
        replace(op, [whole_tile])

    def _store(
        self,
        block: Block,
        op: tile.StorePointers | tile.Atomic,
        array: SSAValue,
        offsets: Sequence[SSAValue],
        mask: SSAValue | None,
        turned: bool,
        build: Builder,
    ) -> None:
        """turned: the block is the transpose of what is stored."""
        extents, kept = [axis.extent for axis in block.axes], _kept(block)
        if turned:
            value = _turned(_reshaped(op.value, kept[::-1], build), build)
            mask = None if mask is None else _turned(mask, build)
        else:
            value = _reshaped(op.value, kept, build)
        if isinstance(op, tile.Atomic):
            build.do(tile.AtomicBlock(op.kind.data, array, offsets, value, extents, mask))
        else:
            build.do(tile.Store(array, offsets, value, extents, mask))
        erase(op)

    def _take_rows(self, block: Block, build: Builder) -> list[SSAValue | None]:
        """Of each axis the numbers of rows that are gathered along it: -1, which reads as zeros, in
        place of those that the mask leaves out. These conditions go.
        """
        found: list[SSAValue | None] = []
        kept = [axis for axis in block.axes if axis.extent >= 0]
        numbered = [a for a, n in enumerate(_extents_once(block)) if n > 1]
        for axis in block.axes:
            numbers = axis.gathered
            if numbers is None:
                found.append(None)
                continue
            at = numbered[kept.index(axis)]
            numbers = _reshaped(self.loaded.get(numbers, numbers), [axis.extent], build)
            if before := axis.start.exact:
                if before > ROWS_BEFORE:
                    numbers = build(ew.Cast(numbers, TileType([axis.extent], i64)))
                numbers = build.add(numbers, before)
            own = [c for c in block.conditions if _is_about(c, at)]
            block.conditions = [c for c in block.conditions if c not in own]
            found.append(self._where(own, numbers, build) if own else numbers)
        return found

    def _where(
        self, conditions: Sequence[Condition], numbers: SSAValue, build: Builder
    ) -> SSAValue:
        """Numbers of rows where all of these conditions hold, -1 elsewhere."""
        extents = list(tile_type(numbers).extents)
        values = (self.loaded.get(c.value, c.value) for c in conditions)
        here = reduce(build.and_, (_reshaped(value, extents, build) for value in values))
        return build(ew.Select(here, numbers, build(tile.Constant(-1, numbers.type))))

    def _cut_off(self, block: Block, loaded: SSAValue, build: Builder) -> SSAValue:
        """A loaded tile with zeros where conditions of `covered` do not hold."""
        whole = list(tile_type(loaded).extents)
        for covered in block.covered:
            if covered.condition is None:
                continue
            zeros = build(tile.Constant(0, loaded.type))
            inside = self._condition(covered.condition, whole, build)
            loaded = build(ew.Select(inside, loaded, zeros))
        return loaded

    def _check(self, assumed: set[SSAValue], build: Builder) -> None:
        """Promises that divisors are positive, for the checks of TKC_DEBUG."""
        for divisor in assumed if self.checks else ():
            build.do(tile.Assume(operands=[build.gt(divisor, 0)]))

    def _mask(self, block: Block, extents: list[int], build: Builder) -> SSAValue | None:
        """What is left of the mask, for a block of these extents."""
        whole = _extents_once(block)  # no condition is about an axis that is repeated
        mask: SSAValue | None = None
        for condition in block.conditions:
            value = self._condition(condition, whole, build)
            mask = value if mask is None else build.and_(mask, value)
        if mask is not None:
            mask = _reshaped(mask, extents, build)
        for covered in block.covered:
            some = self._some(covered, block, whole, extents, build)
            mask = some if mask is None else build.and_(mask, some)
        return mask

    def _some(
        self, covered: Covered, block: Block, whole: list[int], extents: list[int], build: Builder
    ) -> SSAValue:
        """Where a mask leaves in the first of the elements that are one of the block."""
        end, count = self._sum(covered.end, build, False), whole[covered.axis]
        if count == 1:
            some = build.gt(end, 0)
            return build(tile.Splat(some, TileType(extents, i1))) if extents else some
        numbers = build(tile.Arange(0, TileType([count], i32)))
        numbers = build.mul(numbers, block.repeated[covered.axis])
        if end.type != i32:
            numbers = build(ew.Cast(numbers, TileType([count], end.type)))
        some = build.lt(numbers, build(tile.Splat(end, tile_type(numbers))))
        condition = Condition(some, {0: covered.axis})
        return _reshaped(self._condition(condition, whole, build), extents, build)

    def _condition(self, condition: Condition, whole: list[int], build: Builder) -> SSAValue:
        """A condition as a mask of a tile of these extents."""
        value = self.loaded.get(condition.value, condition.value)
        if not isinstance(value.type, TileType):
            return build(tile.Splat(value, TileType(whole, i1)))
        own = value.type.extents
        shape = [1] * len(whole)
        for a, b in condition.axes.items():
            shape[b] = own[a]
        value = _reshaped(value, shape, build)
        if shape != whole:
            value = build(tile.Broadcast(value, TileType(whole, i1)))
        return value

    def _array(self, block: Block) -> MadeArray:
        """The array that a block is of."""
        if block.anchor is not None:
            build, base = Builder(block.anchor), block.base
            pointer = build(tile.Pointer(base)) if isinstance(base.type, ArrayType) else base
            return self._made(block, pointer, build, False)
        axes = tuple((a.stride, a.bound, a.before, a.moved, a.less, a.limits) for a in block.axes)
        key = block.base, block.offset, axes, self._facts(block)
        if key not in self.arrays:
            assert self.entry is not None
            build = Builder(self.entry)
            self.arrays[key] = self._made(block, build(tile.Pointer(block.base)), build, True)
        return self.arrays[key]

    def _made(self, block: Block, pointer: SSAValue, build: Builder, at_entry: bool) -> MadeArray:
        """An array that begins behind a pointer."""
        if block.offset.terms:
            offset = self._sum(block.offset, build, at_entry, is_large(block.base))
            pointer = build(ew.PointerAdd(pointer, offset))
        bounds = _bounds(block)
        extents = [self._sum(bound, build, at_entry) for bound in bounds]
        strides = [self._sum(axis.stride, build, at_entry) for axis in block.axes]
        before: list[SSAValue | None] = []
        for axis, stride in zip(block.axes, strides, strict=True):
            more, rows = self._rows_before(axis, stride, build, at_entry)
            before.append(more)
            if rows is not None:
                pointer = _moved_back(pointer, rows, stride, build)
        extents = [
            self._extent(axis, extent, more, build)
            for axis, extent, more in zip(block.axes, extents, before, strict=True)
        ]
        element = pointee_of(pointer.type)
        t = ArrayType(len(block.axes), element, self._facts(block))
        made = build.do(tile.MakeArray(pointer, extents, strides, t))
        if any(axis.begins_before for axis in block.axes):
            made.attributes[BEGINS_BEFORE] = UnitAttr()
        return MadeArray(made.result, before)

    def _extent(
        self, axis: Axis, bound: SSAValue, more: SSAValue | None, build: Builder
    ) -> SSAValue:
        """How many elements an array has along an axis: none where all lie behind the bound, which
        then is negative. more: by how much more the axis counts them.
        """
        if axis.bound is None:
            return bound
        extent = bound if more is None else build.add(bound, more)
        counted = axis.bound + (axis.before or Polynomial()) - (axis.less or Polynomial())
        assumed: set[SSAValue] = set()
        if self.scalars.is_never_negative(counted, assumed) and not assumed:
            return extent
        return build.max(extent, 0)

    def _rows_before(
        self, axis: Axis, stride: SSAValue, build: Builder, at_entry: bool
    ) -> tuple[SSAValue | None, SSAValue | None]:
        """By how much more an axis counts its elements, and by how many the array begins before."""
        if axis.less is not None:
            rows = build.number(0)
            for limit in axis.limits:
                rows = build.max(rows, self._sum(limit, build, at_entry))
            more = build.sub(rows, self._sum(axis.less, build, at_entry))
            return more, rows if axis.limits else None
        if not axis.counts_from_before:
            return None, None
        if axis.before is None:
            rows = _reached_rows(stride, build)
        else:
            rows = self._sum(axis.before, build, at_entry)
        return rows, None if axis.elsewhere else rows

    def _facts(self, block: Block) -> ArrayFacts:
        """What is known of the array that a block is of, by what its pointers promise too."""
        scalars, base = self.scalars, block.base
        bounds = [
            Fact() if axis.moved and axis.bound is not None else _fact(scalars, bound)
            for axis, bound in zip(block.axes, _bounds(block, behind=True), strict=True)
        ]
        strides = [axis.stride for axis in block.axes]
        pointers = tile_type(block.op.pointers)
        size = bits(pointee_of(pointers.element)) // 8
        known = array_type(base).facts.align if isinstance(base.type, ArrayType) else size
        moved = [size * scalars.divisor(a.stride) for a in block.axes if a.counts_from_before]
        align = gcd(known, size * scalars.divisor(block.offset), *moved)
        steps = tuple(_fact(scalars, stride) for stride in strides)
        rows = block.rows // size
        if rows > 1 and not block.repeated and any(map(_is_dense, block.axes)):
            steps = tuple(map(partial(_promised_step, rows), steps, block.axes))
            if all(
                _is_of_rows(axis) or scalars.divisor(axis.start * axis.stride) % rows == 0
                for axis in block.axes
            ):
                align = max(align, gcd(block.rows, ROW_ALIGNMENT))
        return ArrayFacts(tuple(bounds), steps, align)

    def _sum(
        self, polynomial: Polynomial, build: Builder, at_entry: bool, wide: bool = False
    ) -> SSAValue:
        """Operations that compute a polynomial, of 64 bits where that is asked for or an atom or a
        number has them, else of 32: by 64, where 32 hold it but not each part.
        """
        wide |= any(self.scalars.atoms[a].type == i64 for a in polynomial.atoms)
        wide |= any(abs(coefficient) >= ROWS_BEFORE for _, coefficient in polynomial.terms)
        if wide or not self._has_large_parts(polynomial):
            return self._sum_of(polynomial, build, at_entry, i64 if wide else i32)
        return build(ew.Cast(self._sum_of(polynomial, build, at_entry, i64), i32))

    def _has_large_parts(self, polynomial: Polynomial) -> bool:
        """Whether a product of a sum may wrap alone: one that the kernel does not compute."""
        products = [(m, c) for m, c in polynomial.terms if m and abs(c) > 1]
        if len(polynomial.terms) < 2 or not products:
            return False
        computed = {p.terms for v, p in self.scalars.known.items() if v.type == i32}
        return any(
            (product,) not in computed and not self.scalars.fits(*product) for product in products
        )

    def _sum_of(
        self, polynomial: Polynomial, build: Builder, at_entry: bool, t: Attribute
    ) -> SSAValue:
        """Operations of a type that compute a polynomial."""
        total: SSAValue | None = None
        for monomial, coefficient in polynomial.terms:
            term: SSAValue | None = None
            for atom in monomial:
                value = self.scalars.atoms[atom]
                value = self._at_entry(value) if at_entry else self._promised(value, build.anchor)
                if value.type != t:
                    value = build(ew.Cast(value, t))
                term = value if term is None else build.mul(term, value)
            if term is None:
                term = build.number(coefficient, t)
            elif coefficient != 1:
                term = build.mul(term, coefficient)
            total = term if total is None else build.add(total, term)
        return build.number(0, t) if total is None else total

    def _promised(self, value: SSAValue, anchor: Operation) -> SSAValue:
        """An atom, with the promise of its divisor where that has been made before the anchor."""
        promised = self.scalars.promised(value)
        top = self.kernel.body.block
        if promised is value or owner_op(promised).parent is not top:
            return value
        here = ancestor(anchor, top)
        assert here is not None
        return promised if owner_op(promised).is_before_in_block(here) else value

    def _at_entry(self, value: SSAValue) -> SSAValue:
        """A value that the host can compute, where arrays are made."""
        assert self.entry is not None
        value = self._promised(value, self.entry)
        if isinstance(value, BlockArgument):
            return value
        if value not in self.placed:
            op = owner_op(value)
            if op.parent is self.entry.parent and op.is_before_in_block(self.entry):
                self.placed[value] = value
            else:
                operands = {v: self._at_entry(v) for v in op.operands}
                self.placed[value] = Builder(self.entry)(op.clone(operands))
        return self.placed[value]


def _kept(block: Block) -> list[int]:
    """The extents of the block along the axes that it has."""
    return [axis.extent for axis in block.axes if axis.extent >= 0]


def _extents_once(block: Block) -> list[int]:
    """The extents of the tile of pointers, with what is repeated once."""
    extents = tile_type(block.op.pointers).extents
    return [n // block.repeated.get(a, 1) for a, n in enumerate(extents)]


def _is_by_columns(block: Block) -> bool:
    """Whether an access stores a matrix whose columns are dense in memory."""
    kept = [axis for axis in block.axes if axis.extent >= 0]
    if not isinstance(block.op, tile.StorePointers) or len(kept) != 2 or block.covered:
        return False
    if any(axis.gathered is not None or axis.extent == 1 for axis in kept):
        return False
    return _is_dense(kept[0]) and not _is_dense(kept[1])


def _turned(matrix: SSAValue, build: Builder) -> SSAValue:
    return build(tile.Transpose(matrix, (1, 0)))


def _bounds(block: Block, behind: bool = False) -> list[Polynomial]:
    """The extents of the array that a block is of, before it is moved; behind: where it begins so
    many elements before, with them.
    """
    return [
        Polynomial.number(UNBOUNDED)
        if axis.bound is None
        else axis.bound + (axis.before or Polynomial())
        if behind
        else axis.bound
        for axis in block.axes
    ]


def _reached_rows(stride: SSAValue, build: Builder) -> SSAValue:
    """How many rows before a pointer offsets of 32 bits reach."""
    reached = build.number(REACHED_ELEMENTS, stride.type)
    rows = build.add(build.floordiv(reached, build.max(stride, MIN_MOVED_STRIDE)), 1)
    return rows if rows.type == i32 else build(ew.Cast(rows, i32))


def _moved_back(pointer: SSAValue, rows: SSAValue, stride: SSAValue, build: Builder) -> SSAValue:
    """The pointer to the first of so many rows before."""
    wide = [v if v.type == i64 else build(ew.Cast(v, i64)) for v in (rows, stride)]
    return build(ew.PointerAdd(pointer, build.sub(0, build.mul(*wide))))


def _counted_from(before: SSAValue, offset: SSAValue, build: Builder) -> SSAValue:
    """An offset from so many rows before: 32 bits hold it, whatever it has been computed in."""
    if offset.type == i32:
        return build.add(offset, before)
    return build(ew.Cast(build.add(offset, build(ew.Cast(before, i64))), i32))


def _is_about(condition: Condition, axis: int) -> bool:
    """Whether a condition is about nothing but the elements along an axis."""
    t = condition.value.type
    if not isinstance(t, TileType):
        return False
    return [condition.axes[a] for a, n in enumerate(t.extents) if n > 1] == [axis]


def _reshaped(value: SSAValue, extents: list[int], build: Builder) -> SSAValue:
    t = tile_type(value)
    if list(t.extents) == extents:
        return value
    return build(tile.Reshape(value, TileType(extents, t.element)))


def _repeated(value: SSAValue, repeated: dict[int, int], build: Builder) -> SSAValue:
    """A tile with each of its elements along some axes so many times, one behind the other."""
    for axis, count in repeated.items():
        t = tile_type(value)
        before, n, behind = t.extents[:axis], t.extents[axis], t.extents[axis + 1 :]
        apart = _reshaped(value, [*before, n, 1, *behind], build)
        several = build(tile.Broadcast(apart, TileType([*before, n, count, *behind], t.element)))
        value = _reshaped(several, [*before, n * count, *behind], build)
    return value


def _is_dense(axis: Axis) -> bool:
    """Whether an axis has rows of neighbours."""
    return axis.stride.exact == 1 and axis.extent > 1


def _is_of_rows(axis: Axis) -> bool:
    """Whether the block has several rows along an axis."""
    return axis.extent > 1 and not _is_dense(axis)


def _promised_step(rows: int, known: Fact, axis: Axis) -> Fact:
    """What is known of a stride where rows of a block begin at multiples of so many elements."""
    if known.exact is not None or not _is_of_rows(axis):
        return known
    return Fact(gcd(lcm(known.divisor, rows), MOST_DIVISOR), None, known.negative)


def _fact(scalars: Scalars, polynomial: Polynomial) -> Fact:
    """What is known of an extent or stride."""
    exact = polynomial.exact
    return Fact(scalars.divisor(polynomial) or 1) if exact is None else Fact(exact=exact)
