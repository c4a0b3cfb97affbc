"""raise-pointers: tiles of pointers that walk an array become blocks of it.

    %p = tile.pointer_add %base, (%m + i) * %stride + (%k + j)
    %c = (%m + i < %M) & (%k + j < %K)                       %a = tile.make_array %ptr [%M, %K] …
    %x = tile.load_pointers %p mask %c                ->     %x = tile.load %a [%m, %k]

for pointers that a loop moves by the same amount in each iteration as well. So programs that are
written with pointers get what blocks get: copies that run ahead, tensor maps, wgmma.

An access is raised in kernels with dots, transposed tiles, or loads in loops, where its address is
affine (analysis/pointers.py) and

  base      is an array argument, or any other pointer (one that the kernel loads, say). Of another
            pointer, and of an argument where the host cannot compute what is asked of it below, the
            array is made before the innermost loop round the access, and what is known there takes
            the place of what the host can compute. It begins where the block of the first iteration
            does, so that only what the loop adds must not be negative
  strides   of the tile's axes are single products that the host can compute
  numbers   of rows take 32 bits, and 64 of gathered ones where memory has room for more; how many
            elements lie before the array takes 64 where its base may be large (`is_large`)
  starts    are never negative, or the mask bounds them from below, or where they are it leaves out
            the whole block. Else the array begins before: by as many rows as the host can tell
            (of `min(%rows, %n)` %n), or along one axis by as many as 32 bits count. A divisor of
            `//` and `%` in them counts as positive (TKC_DEBUG checks that)
  mask      bounds axes by what the host can compute: these bounds are the array's extents. What
            else it says stays a mask of the block
  remainder %x - %x // %n * %n of scalars is %x % %n, a place along one axis
  modulo    of indices that are never negative is left out where what lies beyond is stored nowhere
            (`is_dead_beyond`): it reads as zeros then. So is `where(%m + i < %M, %m + i, 0)`
  indices   of rows that nothing is known of gather them, -1 where the mask leaves a row out. They
            may be negative: the array begins so many rows before that none is
  quotients `(%k + i) // 8` of a number %k that 8 divides read each row eight times: the block has
            the rows once, and what was loaded is repeated. A mask leaves out rows of which it
            leaves out the first element

An axis without a bound has an extent that no access reaches. What is left of the address becomes
outer axes of the array (batches, heads), or its offset in the argument where the host knows it. A
promise of the pointers (`tile.multiple`: that rows of neighbours begin at multiples of so many
bytes) is one of the array's strides, and of its address where the block begins at such multiples.
Arrays that the kernel makes at a place of its own (block pointers, descriptors) become parts of
others that the host knows (raised/arrays.py).
Sources: the semantics of masked pointer loads in Triton's language reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from math import lcm, prod
from typing import TypeGuard

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32, i64
from xdsl.ir import Block as BasicBlock
from xdsl.ir import BlockArgument, Operation, SSAValue, Use

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.host_values import argument_number
from tkc.ir.interface import UNBOUNDED
from tkc.ir.ranges import Overflow, Ranges
from tkc.ir.rewrite import Builder, is_inside, loop_of, replace
from tkc.ir.target import ROW_ALIGNMENT
from tkc.ir.types import (
    PointerType,
    TileType,
    bits,
    element_of,
    is_integer,
    pointee_of,
)
from tkc.ir.values import (
    ancestor,
    block_of,
    defining_op,
    first_of,
    operations_in,
    owner_op,
    tile_type,
)
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.mapped import MAX_MAP_RANK
from tkc.passes.analysis.pointers import Affine, Forms
from tkc.passes.analysis.polynomials import Polynomial, TooLarge
from tkc.passes.raised.arrays import made_at_places, parts
from tkc.passes.raised.blocks import (
    MEMORY_BYTES,
    MIN_MOVED_STRIDE,
    ROWS_BEFORE,
    Axis,
    Block,
    Condition,
    Covered,
    PointerBlock,
    is_large,
)
from tkc.passes.raised.outer import outer_axes
from tkc.passes.raised.writing import Writer
from tkc.passes.simplify import is_update
from tkc.passes.simplify import run as simplify

COMPARISONS = {"lt": 0, "le": 1, "gt": 0, "ge": 1}  # whether the bound itself is included
REMAINDERS = {"floordiv": "mod", "div_trunc": "rem_trunc"}


class NotABlock(Exception):
    """Why an access is not raised."""


def run(module: ModuleOp, context: PassContext) -> None:
    """Raises what can be raised in each kernel that gains by it, and says of the rest why not."""
    for kernel in module.body.block.ops:
        if isinstance(kernel, tile.Kernel) and _gains(kernel) and _raise(kernel, context):
            simplify(module, context)


def _gains(kernel: tile.Kernel) -> bool:
    """Whether a kernel has what blocks serve better: dots, tiles that are read along one axis and
    written along another, or loads of a loop, which may be made an iteration early.
    """
    return _is_mapped(kernel) or any(
        isinstance(op, tile.LoadPointers) and loop_of(op) is not None for op in kernel.walk()
    )


def _is_mapped(kernel: tile.Kernel) -> bool:
    """Whether a kernel has what tensor maps serve, which are of arrays that the host knows."""
    return any(isinstance(op, tile.Dot | tile.Transpose) for op in kernel.walk())


def _accesses(kernel: tile.Kernel) -> list[PointerBlock]:
    return [
        op
        for op in kernel.walk()
        if isinstance(op, PointerBlock)
        and isinstance(op.pointers.type, TileType)
        and _orders_nothing(op)
    ]


def _orders_nothing(op: PointerBlock) -> bool:
    """Whether an access may be one of a block: an update says that it orders nothing."""
    if isinstance(op, tile.Atomic):
        return is_update(op) and op.semantics is not None
    return op.semantics is None


def _raise(kernel: tile.Kernel, context: PassContext) -> bool:
    """Whether something has been raised."""
    accesses, mapped = _accesses(kernel), _is_mapped(kernel)
    arrays = made_at_places(kernel) if mapped else []
    if not accesses and not arrays:
        return False
    _divide_apart(kernel)
    _take_remainders(kernel)
    forms, blocks = Forms.of(kernel, _numbered(kernel)), []
    for op in accesses:
        try:
            blocks.append(_recognised(op, forms, mapped))
        except (NotABlock, TooLarge) as why:
            context.decisions.append(
                f"raise-pointers: an access of {'x'.join(map(str, tile_type(op.pointers).extents))}"
                f" stays by pointers: {why or 'its address has too many terms'}"
            )
    writer = Writer(kernel, forms.scalars, context.options.debug > 0)
    found = list(parts(arrays, forms))
    writer.begin_before([*(block.op for block in blocks), *(part.op for part in found)])
    for part in found:
        writer.write_part(part)
    for block in blocks:
        writer.write(block)
    for count, what in (
        (len(found), "arrays made by programs are parts of arrays that the host knows"),
        (len(blocks), "accesses by pointers are blocks of arrays"),
    ):
        if count:
            context.decisions.append(f"raise-pointers: {count} {what}")
    return bool(blocks or found)


def _divide_apart(kernel: tile.Kernel) -> None:
    """(%k + i) // 8 becomes %k // 8 + i // 8 where 8 divides the scalar %k, and the sum does not
    wrap, also in another shape than where the two are added.
    """
    ranges = Ranges()
    for op in list(kernel.walk()):
        if not isinstance(op, ew.Elementwise) or op.fn.name != "floordiv":
            continue
        (shown, divisors), count = op.args, constant(op.args[1])
        view = defining_op(shown, tile.Reshape)
        whole = shown.owner if view is None else view.arg.owner
        if not _is_sum(whole, ranges) or not count:
            continue
        for scalar, rest in (whole.args, tuple(reversed(whole.args))):
            number = scalar.owner.arg if isinstance(scalar.owner, tile.Splat) else None
            if number is None or isinstance(rest.owner, tile.Splat):
                continue
            if count > 1 and ranges.known(number).divisor % count == 0:
                build = Builder(op)
                if view is not None:
                    rest = build(tile.Reshape(rest, tile_type(shown)))
                first = build(tile.Splat(build.floordiv(number, int(count)), tile_type(op.result)))
                behind = build(ew.CLASSES["floordiv"](rest, divisors))
                replace(op, [build.add(first, behind)])
                break


def _is_sum(op: Operation | BasicBlock, ranges: Ranges) -> TypeGuard[ew.Elementwise]:
    """Whether an operation adds integers, and does not wrap."""
    return (
        isinstance(op, ew.Elementwise)
        and op.fn.name == "add"
        and is_integer(element_of(op.result.type))
        and ranges.overflow(op) is Overflow.NEVER
    )


def _take_remainders(kernel: tile.Kernel) -> None:
    """%x - %x // %n * %n of scalars becomes %x % %n: one place along one axis, not a place back
    along another.
    """
    for op in list(kernel.walk()):
        if not isinstance(op, ew.Elementwise) or op.fn.name != "sub" or not _is_index(op.result):
            continue
        whole, product = op.args
        multiple = product.owner
        if not isinstance(multiple, ew.Elementwise) or multiple.fn.name != "mul":
            continue
        for quotient, count in (multiple.args, tuple(reversed(multiple.args))):
            division = quotient.owner
            if not isinstance(division, ew.Elementwise) or division.fn.name not in REMAINDERS:
                continue
            if division.args[0] is whole and division.args[1] is count:
                rest = ew.CLASSES[REMAINDERS[division.fn.name]](whole, count)
                replace(op, [Builder(op)(rest)])
                break


def _numbered(kernel: tile.Kernel) -> dict[scf.ForOp, SSAValue]:
    """The number of the iteration in each loop that carries tiles of pointers and counts by more
    than one: they may move by less than its step counts, as words do that hold several elements.
    """
    found: dict[scf.ForOp, SSAValue] = {}
    for loop in operations_in(kernel, scf.ForOp):
        body, step = loop.body.block, constant(loop.step)
        carried = [a.type for a in body.args if isinstance(a.type, TileType)]
        moves = any(isinstance(t.element, PointerType) for t in carried)
        if moves and step not in (None, 0, 1):
            build = Builder(first_of(body))
            found[loop] = build.floordiv(build.sub(body.args[0], loop.lb), loop.step)
    return found


def _is_index(value: SSAValue) -> bool:
    return value.type in (i32, i64)


# ---- what an access addresses
@dataclass
class Bounds:
    """Of the numbers along an axis of a tile: the first ones that are inside, and the first ones
    behind that are not; with the conditions that say so.
    """

    low: list[tuple[Polynomial, Condition]] = field(default_factory=list)
    high: list[tuple[Polynomial, Condition]] = field(default_factory=list)


class Mask:
    """What a mask of an access says of each axis of its tile; `left`: the conditions that bound
    none. address: of the access; numbers that it is not made of may wrap, and then say nothing.
    """

    def __init__(self, mask: SSAValue | None, rank: int, forms: Forms, address: Sequence[SSAValue]):
        self.forms, self.address = forms, tuple(address)
        self.bounds: dict[int, Bounds] = {}
        self.left: list[Condition] = []
        for condition in [] if mask is None else conditions(mask, {a: a for a in range(rank)}):
            try:
                known = self._read(condition)
            except TooLarge:
                known = False
            if not known:
                self.left.append(condition)

    def _read(self, condition: Condition) -> bool:
        """Notes what a comparison says of one axis; False for other conditions."""
        op = condition.value.owner
        if not isinstance(op, ew.Elementwise) or op.fn.name not in COMPARISONS:
            return False
        difference = self._difference(op)
        if difference is None:
            return False
        ((own, stride),) = difference.strides
        if own not in condition.axes:  # of extent 1
            return False
        included = Polynomial.number(COMPARISONS[op.fn.name])
        each = Polynomial.number(dict(difference.repeated).get(own, 1))
        bounds = self.bounds.setdefault(condition.axes[own], Bounds())
        match stride.exact:  # stride * (i // each) + offset < 0, or <= 0 with the bound included
            case 1:
                bounds.high.append(((included - difference.offset) * each, condition))
            case -1:
                first = difference.offset + Polynomial.number(1) - included
                bounds.low.append((first * each, condition))
            case _:
                return False
        return True

    def _difference(self, op: ew.Elementwise) -> Affine | None:
        """What is less, less what is more, along one axis; None where a comparison says nothing of
        these numbers, or they may wrap.
        """
        less, more = map(self.forms.get, op.args)
        if op.fn.name in ("gt", "ge"):
            less, more = more, less
        found = None if less is None or more is None else less.plus(more, -1)
        if found is None or found.base is not None or found.wrapped or found.gathered:
            return None
        exact = all(self.forms.is_exact(side, self.address) for side in op.args)
        return found if exact and len(found.strides) == 1 else None

    def ends_at(self, axis: int, high: Polynomial) -> bool:
        """Whether nothing from this number on along an axis is inside."""
        return any(bound == high for bound, _ in self.bounds.get(axis, Bounds()).high)


def _recognised(op: PointerBlock, forms: Forms, mapped: bool) -> Block:
    """The block that an access addresses. mapped: tensor maps may copy it; else its array is made
    where most of its address is known, which then is not computed in each iteration. Raises
    NotABlock with the reason.
    """
    form = forms.get(op.pointers)
    if form is None or form.base is None:
        raise NotABlock("its address is not affine")
    loop = loop_of(op)
    anchors = [op] if loop is None else [loop, op]
    if argument_number(form.base) is None:
        return _first_block(op, form, forms, anchors)
    if not mapped and loop is not None:
        with suppress(NotABlock, TooLarge):
            return _Recognition(op, form, forms, loop).block()
    try:
        return _Recognition(op, form, forms, None).block()
    except NotABlock as why:
        with suppress(NotABlock, TooLarge):  # a bound that the kernel computes, say
            return _first_block(op, form, forms, anchors)
        raise why


def _first_block(
    op: PointerBlock, form: Affine, forms: Forms, anchors: Sequence[Operation]
) -> Block:
    """The block of an array that is made before the first of some operations before which it can
    be: where the access itself is, most is known. Raises NotABlock with the last reason.
    """
    for anchor in anchors[:-1]:
        with suppress(NotABlock, TooLarge):
            return _Recognition(op, form, forms, anchor).block()
    return _Recognition(op, form, forms, anchors[-1]).block()


class _Recognition:
    """Finds the block that one access addresses. anchor: before which its array is made, of what is
    known there; None: at the kernel's beginning, of what the host can compute.
    """

    def __init__(self, op: PointerBlock, form: Affine, forms: Forms, anchor: Operation | None):
        self.op, self.form, self.forms, self.scalars = op, form, forms, forms.scalars
        self.anchor = anchor
        self.extents = tile_type(op.pointers).extents
        mask = Mask(op.mask, len(self.extents), forms, [op.pointers])
        self.bounds, self.left = mask.bounds, mask.left
        self.ranges = Ranges()
        self.covered: list[Covered] = []
        self.assumed: set[SSAValue] = set()

    def _is_known(self, polynomial: Polynomial) -> bool:
        """Whether it can be computed where the array is made."""
        if self.anchor is None:
            return self.scalars.is_host(polynomial)
        return all(_is_visible(self.scalars.atoms[a], self.anchor) for a in polynomial.atoms)

    def _known_part(self, polynomial: Polynomial) -> Polynomial:
        """The terms that can be computed where the array is made."""
        known = [m for m, _ in polynomial.terms if self._is_known(Polynomial(((m, 1),)))]
        return polynomial.part(known)

    def block(self) -> Block:
        """Raises NotABlock with the reason."""
        form, base = self.form, self.form.base
        assert base is not None
        if prod(self.extents) == 1:
            raise NotABlock("it is one element")
        if self.anchor is not None and not _is_visible(base, self.anchor):
            raise NotABlock("its address is loaded in its loop")
        self._unwrap(form)
        self._repeat(form)
        gathered = self._gather(form)
        strides = self._strides(form)
        even = {a: stride for a, stride in strides.items() if a not in gathered}
        starts, bounds, rest = self._starts(form.offset, even)
        offset = self._known_part(rest)
        outer = outer_axes(rest - offset, MAX_MAP_RANK - len(strides), self._is_known)
        for a, rows in gathered.items():
            before = self._rows_before(rows, strides[a])
            starts[a] = Polynomial.number(before)
            bounds[a] = Polynomial.number(2 * before) if before > ROWS_BEFORE else None
            offset = offset - starts[a] * strides[a]
        inner = [
            Axis(strides[a], starts[a], bounds[a], self.extents[a], gathered.get(a))
            for a in sorted(strides)
        ]
        block = Block(
            self.op,
            base,
            self.anchor,
            _promised_rows(self.op.pointers),
            offset,
            [*outer, *inner],
            self.left,
            dict(form.repeated),
            self.covered,
            self.assumed,
        )
        if not all(map(self._counts_in_32_bits, block.axes)):
            raise NotABlock("where it begins may take more than 32 bits to count")
        numbers = [*[None] * len(outer), *sorted(strides)]
        block.axes = [
            self._from_the_first(axis, number, block)
            for number, axis in zip(numbers, block.axes, strict=True)
        ]
        if sum(axis.moved for axis in block.axes) > 1:
            raise NotABlock("it may begin before the array along several axes")
        block.axes = self._from_memory(block)
        return block

    def _from_memory(self, block: Block) -> list[Axis]:
        """The axes of an array that begins where memory does, where it can: what one axis counts
        before comes off another one of the same stride, which is never less, or where the host sees
        by how much. (The copy engine reads an array's first address for rows outside of it.)
        """
        axes = list(block.axes)
        for i, axis in enumerate(axes):
            if axis.before is None:
                continue
            for j, other in enumerate(axes):
                free = other.gathered is None and not other.counts_from_before
                if other.stride != axis.stride or other.bound is not None or not free:
                    continue
                limits = self.scalars.host_limits(axis.before - other.start, block.assumed)
                if limits:
                    never = self.scalars.is_never_negative
                    some = [limit for limit in limits if not never(-limit, block.assumed)]
                    axes[j] = replace_field(other, less=axis.before, limits=tuple(some))
                    axes[i] = replace_field(axis, elsewhere=True)
                    break
        return axes

    def _from_the_first(self, axis: Axis, number: int | None, block: Block) -> Axis:
        """An axis along which the block begins at an element that the array has, if it has any.
        number: of the tile's axis. Raises NotABlock where it may lie before.
        """
        bounded = number is not None and self.bounds.get(number, Bounds()).low
        if bounded or self.scalars.is_never_negative(axis.start, block.assumed):
            return axis
        if any(self._is_empty_before(axis, other, block.assumed) for other in block.axes):
            return axis
        if self._may_move(axis):
            before = self.scalars.host_limit(-axis.start, block.assumed)
            if before is not None:
                return replace_field(axis, before=before)
            if self.scalars.is_never_negative(axis.stride, set()):
                return replace_field(axis, moved=True)
        raise NotABlock("it may begin before the array")

    def _is_empty_before(self, axis: Axis, other: Axis, assumed: set[SSAValue]) -> bool:
        """Whether a block that begins before the first element along an axis begins behind another
        axis's bound: together both starts are never less than that bound.
        """
        if other is axis or other.bound is None or other.gathered is not None:
            return False
        together = axis.start + other.start - other.bound
        return self.scalars.is_never_negative(together, assumed)

    def _may_move(self, axis: Axis) -> bool:
        """Whether an array may begin before along an axis, and its numbers take 32 bits: where rows
        are not short, of an argument whose elements 32 bits count.
        """
        return (
            self.anchor is None
            and not is_large(self.form.base)
            and self.scalars.divisor(axis.stride) >= MIN_MOVED_STRIDE
        )

    def _counts_in_32_bits(self, axis: Axis) -> bool:
        """Whether the first of a block's elements along an axis has a number of 32 bits: those of
        a small array have, those that the kernel computes as such, and those of long rows, too many
        of which fit in no memory.
        """
        return (
            not is_large(self.form.base)
            or self._row_limit(axis.stride) <= ROWS_BEFORE
            or self.forms.is_narrow(axis.start)
        )

    def _row_limit(self, stride: Polynomial) -> int:
        """More rows so far apart than fit in the memory of any device."""
        return MEMORY_BYTES // max(1, self.scalars.divisor(stride) * self._size)

    def _unwrap(self, form: Affine) -> None:
        """Indices modulo something are those indices from 0 up to there; what lies beyond must not
        matter, and is not read.
        """
        for axis, wrapped in form.wrapped:
            if not self.scalars.is_never_negative(wrapped.start, self.assumed):
                raise NotABlock("its indices are taken modulo something, and may be negative")
            end = wrapped.modulus - wrapped.start
            loaded = self._loaded
            if loaded is None or not is_dead_beyond(loaded, axis, end, self.forms):
                raise NotABlock("its indices are taken modulo something")
            always = Condition(loaded, {})
            self.bounds.setdefault(axis, Bounds()).high.insert(0, (end, always))

    @property
    def _loaded(self) -> SSAValue | None:
        """What a load gives."""
        return self.op.result if isinstance(self.op, tile.LoadPointers) else None

    def _repeat(self, form: Affine) -> None:
        """Axes along which neighbours are one element: the block has it once."""
        repeated = dict(form.repeated)
        if not repeated:
            return
        if not isinstance(self.op, tile.LoadPointers) or self.op.other is not None:
            raise NotABlock("neighbours along an axis have one address")
        for axis in repeated.keys() & {
            *self.bounds,
            *(a for c in self.left for a in c.axes.values()),
        }:
            if not self._is_cut_off(axis):
                raise NotABlock("a mask bounds an axis along which neighbours have one address")
            for end, condition in self.bounds.pop(axis).high:
                dead = is_dead_beyond(self.op.result, axis, end, self.forms)
                self.covered.append(Covered(axis, end, None if dead else condition))
        self.extents = tuple(n // repeated.get(a, 1) for a, n in enumerate(self.extents))

    def _is_cut_off(self, axis: int) -> bool:
        """Whether all that a mask says of an axis is from which number on nothing is inside: then
        something is if the first number is.
        """
        bounds = self.bounds.get(axis, Bounds())
        about = [c for c in self.left if axis in c.axes.values()]
        wrapped = any(condition.value is self._loaded for _, condition in bounds.high)
        return not (bounds.low or about or wrapped)

    def _gather(self, form: Affine) -> dict[int, SSAValue]:
        """The numbers of rows that are gathered or scattered, along one axis beside a dense one.
        What a mask says of that axis it says of rows, not of their numbers.
        """
        found = {a: g.numbers for a, g in form.gathered}
        if not found:
            return found
        dense = any(stride.exact == 1 for stride in form.by_axis.values())
        if len(found) > 1 or not dense:
            raise NotABlock("its address is not affine")
        for a, g in form.gathered:
            if self.scalars.divisor(g.stride) * self._size % ROW_ALIGNMENT:
                raise NotABlock(
                    "its address is not affine, nor a multiple of 16 bytes for each row"
                )
            bounds = self.bounds.pop(a, Bounds())
            self.left += [condition for _, condition in (*bounds.low, *bounds.high)]
        return found

    @property
    def _size(self) -> int:
        """Bytes of an element."""
        return bits(pointee_of(tile_type(self.op.pointers).element)) // 8

    def _rows_before(self, numbers: SSAValue, stride: Polynomial) -> int:
        """By how much the numbers of rows are raised, so that none is negative: by nothing, or by
        as many as fit before one in the memory of a device.
        """
        known = self.ranges.of(numbers)
        if known is not None and known.lo >= 0 and known.hi < UNBOUNDED:
            return 0
        return max(ROWS_BEFORE, self._row_limit(stride))

    def _strides(self, form: Affine) -> dict[int, Polynomial]:
        found = form.by_axis | {a: g.stride for a, g in form.gathered}
        for axis, extent in enumerate(self.extents):
            if extent == 1:
                found.pop(axis, None)
            elif axis not in found:
                raise NotABlock("neighbours along an axis have one address")
            elif len(found[axis].terms) != 1 or not self._is_known(found[axis]):
                raise NotABlock("a stride is a sum, or computed in the kernel")
        return found

    # ---- where the block begins
    def _starts(
        self, offset: Polynomial, strides: dict[int, Polynomial]
    ) -> tuple[dict[int, Polynomial], dict[int, Polynomial | None], Polynomial]:
        """Start and bound of each axis, and what is left of the offset."""
        starts: dict[int, Polynomial] = {}
        bounds: dict[int, Polynomial | None] = dict.fromkeys(strides)
        for axis, stride in strides.items():
            if axis in self.bounds:
                self._by_mask(axis, starts, bounds)
            if axis in starts:
                offset = offset - starts[axis] * stride
        for axis in sorted(set(strides) - set(starts), key=lambda a: _coarseness(strides[a])):
            start, offset = self._divided(offset, strides[axis])
            host = self._known_part(start)  # the array itself can begin there
            if not self._fits_alone(start - host):
                host = Polynomial()
            starts[axis], offset = start - host, offset + host * strides[axis]
        return starts, bounds, offset

    def _fits_alone(self, start: Polynomial) -> bool:
        """Whether 32 bits hold a part of a number that they hold."""
        return self.forms.is_narrow(start) or all(
            self.scalars.fits(monomial, coefficient) for monomial, coefficient in start.terms
        )

    def _divided(self, offset: Polynomial, stride: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Start along an axis, and the rest of the offset. A stride that is a number divides all
        terms: those in which numbers of the kernel count strides of the host (`batch * %stride`)
        are outer axes, unless only all together are known to be a place along this one; no axes,
        where no map has them, if they are.
        """
        together, rest = offset.divided(stride)
        if stride.exact is None:
            return together, rest
        apart = Polynomial.of({m: c for m, c in offset.terms if self._counts_strides(m)})
        start, left = (offset - apart).divided(stride)
        never = self.scalars.is_never_negative
        each = self.anchor is None and never(start, set()) and never(apart, set())
        if never(together, set()) and not each:
            return together, rest
        return start, left + apart

    def _counts_strides(self, monomial: tuple[int, ...]) -> bool:
        known = {self._is_known(Polynomial((((a,), 1),))) for a in monomial}
        return known == {True, False}

    def _by_mask(
        self, axis: int, starts: dict[int, Polynomial], bounds: dict[int, Polynomial | None]
    ) -> None:
        """Start and bound of an axis, as the mask has them: the block begins where it does in the
        coordinates in which the bound is the host's.
        """
        found = self.bounds[axis]
        if found.low:
            starts[axis] = -found.low[0][0]
            self.left += [condition for _, condition in found.low[1:]]
        for high, condition in found.high:
            known = self._known_part(high)
            start = known - high
            if bounds[axis] is None and starts.setdefault(axis, start) == start:
                bounds[axis] = known
            elif bounds[axis] is None and self._is_known(starts[axis] + high):
                bounds[axis] = starts[axis] + high
            elif condition.value is self._loaded:
                raise NotABlock("its indices are taken modulo something")
            else:
                self.left.append(condition)
        if not found.low and bounds[axis] is None:
            starts.pop(axis, None)


def _is_visible(value: SSAValue, anchor: Operation) -> bool:
    """Whether a value is there before an operation."""
    block = value.owner if isinstance(value.owner, BasicBlock) else block_of(value.owner)
    here = ancestor(anchor, block)
    if here is None:
        return False
    return isinstance(value, BlockArgument) or owner_op(value).is_before_in_block(here)


def _promised_rows(pointers: SSAValue) -> int:
    """Bytes at whose multiples each row of neighbours begins, as a tile of pointers promises."""
    found = 1
    while (promise := defining_op(pointers, tile.Multiple)) is not None:
        found, pointers = lcm(found, promise.divisor.value.data), promise.arg
    return found


def _coarseness(stride: Polynomial) -> tuple[int, int]:
    """Orders strides, those of most factors first."""
    ((monomial, coefficient),) = stride.terms
    return -len(monomial), -abs(coefficient)


def conditions(mask: SSAValue, axes: dict[int, int]) -> Iterator[Condition]:
    """The parts of a mask that must all hold. axes: of the value's axes, those of the whole."""
    op = mask.owner
    match op:
        case ew.Elementwise() if op.fn.name == "and":
            for part in op.args:
                yield from conditions(part, axes)
        case tile.Broadcast():
            yield from conditions(op.arg, axes)
        case tile.Reshape() if (inner := _through_reshape(op, axes)) is not None:
            yield from conditions(op.arg, inner)
        case tile.Splat():
            yield Condition(op.arg, {})
        case tile.Constant() if op.number == 1:
            return
        case _:
            yield Condition(mask, axes)


def _through_reshape(op: tile.Reshape, axes: dict[int, int]) -> dict[int, int] | None:
    """What the axes of a reshape's operand are of the whole, where only extents of 1 come or go."""
    old, new = tile_type(op.arg).extents, tile_type(op.result).extents
    if [n for n in old if n > 1] != [n for n in new if n > 1]:
        return None
    before = [a for a, n in enumerate(old) if n > 1]
    behind = [b for b, n in enumerate(new) if n > 1]
    return {a: axes[b] for a, b in zip(before, behind, strict=True)}


# ---- elements that do not matter
def is_dead_beyond(value: SSAValue, axis: int, end: Polynomial, forms: Forms) -> bool:
    """Whether nothing depends on the elements of a tile from a number on along an axis: they end as
    elements of stores whose masks leave them out.
    """
    work, seen = [(value, axis)], set()
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current[0].uses:
            following = _carried_to(use, current[1], end, forms)
            if following is None:
                return False
            work += following
    return True


def _carried_to(
    use: Use, axis: int, end: Polynomial, forms: Forms
) -> list[tuple[SSAValue, int]] | None:
    """The tiles, and their axes, whose elements depend on those with the same number along an axis
    of an operand; None where others do too.
    """
    op = use.operation
    match op:
        case tile.StorePointers() | tile.Store() | tile.AtomicBlock() if op.value is use_value(use):
            address = op.offsets if hasattr(op, "offsets") else [op.pointers]
            mask = Mask(op.mask, tile_type(op.value).rank, forms, address)
            return [] if mask.ends_at(axis, end) else None
        case tile.Atomic() if op.value is use_value(use) and is_update(op):
            mask = Mask(op.mask, tile_type(op.value).rank, forms, [op.pointers])
            return [] if mask.ends_at(axis, end) else None
        case scf.YieldOp():
            return None if _changes_around(op, end, forms) else _yielded(op, use.index, axis)
        case scf.ForOp():
            number = use.index - 3  # behind its bounds and step
            return [(op.body.block.args[1 + number], axis), (op.results[number], axis)]
        case tile.Dot():
            kept = {0: 0, 1: 1, 2: axis}[use.index]  # rows of a, columns of b, both of the sum
            return [(op.result, axis)] if kept == axis else None
        case tile.Transpose():
            return [(op.result, list(op.permutation.get_values()).index(axis))]
        case tile.Reshape() | tile.Broadcast():
            return _shown(op, axis)
        case ew.Elementwise() | ew.Cast() | ew.Select() | ew.Bitcast() | tile.Multiple():
            return [(op.results[0], axis)]
    return None


def _shown(op: tile.Reshape | tile.Broadcast, axis: int) -> list[tuple[SSAValue, int]] | None:
    """A view of a tile, and where its axis is there; None where that is cut or repeated."""
    if isinstance(op, tile.Broadcast):
        return [(op.result, axis)] if tile_type(op.arg).extents[axis] > 1 else None
    places = _through_reshape(op, {a: a for a in range(tile_type(op.result).rank)})
    return None if places is None else [(op.result, places[axis])]


def use_value(use: Use) -> SSAValue:
    """The value of a use."""
    return use.operation.operands[use.index]


def _changes_around(op: scf.YieldOp, end: Polynomial, forms: Forms) -> bool:
    """Whether a number is another one in the iteration that what a loop yields goes to."""
    loop = op.parent_op()
    return isinstance(loop, scf.ForOp) and any(
        is_inside(forms.scalars.atoms[a], loop) for a in end.atoms
    )


def _yielded(op: scf.YieldOp, number: int, axis: int) -> list[tuple[SSAValue, int]] | None:
    """What a value becomes that a loop's body, or a branch, yields."""
    around = op.parent_op()
    if isinstance(around, scf.ForOp):
        return [(around.body.block.args[1 + number], axis), (around.results[number], axis)]
    return [(around.results[number], axis)] if isinstance(around, scf.IfOp) else None
