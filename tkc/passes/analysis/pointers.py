"""Tiles of pointers and of indices that are affine: what block of an array they address.

    base + offset + stride_0 * i_0 + stride_1 * i_1 + ...          `Affine`

i_a counts along axis a of the tile; base is an array argument (None of a tile of indices); offset
and strides are polynomials of scalars (polynomials.py). Along a *repeated* axis so many neighbours
are alike: i_a // 8 stands where i_a does (`Affine.repeated`). Along a *gathered* axis numbers that
nothing is known of, those of a tile of one axis, stand where i_a does (`Affine.gathered`). What a
loop carries and moves by the same amount in each iteration is its first value and that amount times
the iterations so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.host_values import argument_number
from tkc.ir.ranges import Overflow, repeated_scalar
from tkc.ir.rewrite import body_of, is_inside
from tkc.ir.types import PointerType, TileType, element_of
from tkc.ir.values import tile_type, yielded_by
from tkc.passes.analysis.polynomials import Polynomial, Scalars, TooLarge


@dataclass(frozen=True)
class Wrapped:
    """An axis along which indices are taken modulo something: `(start + i) % modulus`."""

    start: Polynomial
    modulus: Polynomial


@dataclass(frozen=True)
class Gathered:
    """An axis along which a tile of numbers says how many strides away each element is."""

    numbers: SSAValue
    stride: Polynomial


@dataclass(frozen=True)
class Affine:
    """A tile (or scalar) of pointers or indices. strides: of the axes along which it changes
    evenly; repeated: of those along which that is once in so many elements, how many.
    """

    offset: Polynomial = Polynomial()
    strides: tuple[tuple[int, Polynomial], ...] = ()
    base: SSAValue | None = None
    wrapped: tuple[tuple[int, Wrapped], ...] = ()
    repeated: tuple[tuple[int, int], ...] = ()
    gathered: tuple[tuple[int, Gathered], ...] = ()

    @property
    def is_even(self) -> bool:
        """Whether it changes as the numbers of its elements do, without remainders or quotients."""
        return not self.wrapped and not self.repeated and not self.gathered

    @property
    def varies(self) -> bool:
        """Whether its elements differ."""
        return bool(self.strides or self.gathered)

    @property
    def by_axis(self) -> dict[int, Polynomial]:
        """The strides, by axis."""
        return dict(self.strides)

    def renumbered(self, axes: dict[int, int]) -> Affine:
        """With its axes by other numbers; the others must not occur."""
        return Affine(
            self.offset,
            tuple(sorted((axes[a], stride) for a, stride in self.strides)),
            self.base,
            tuple(sorted(((axes[a], w) for a, w in self.wrapped), key=lambda pair: pair[0])),
            tuple(sorted((axes[a], count) for a, count in self.repeated)),
            tuple(sorted(((axes[a], g) for a, g in self.gathered), key=lambda pair: pair[0])),
        )

    def plus(self, other: Affine, sign: int = 1) -> Affine | None:
        """The sum or difference; None of two bases, and where both are wrapped along an axis,
        change along it at different elements, or one is gathered along it and the other changes.
        """
        if self._is_apart_from(other):
            return None
        one = Polynomial.number(sign)
        mine, its = self.by_axis, other.by_axis
        repeated = dict(self.repeated)
        if any(repeated.get(a, 1) != dict(other.repeated).get(a, 1) for a in {*mine} & {*its}):
            return None
        strides = {
            a: mine.get(a, Polynomial()) + one * its.get(a, Polynomial()) for a in {*mine, *its}
        }
        strides = {a: s for a, s in strides.items() if s.terms}
        repeated |= dict(other.repeated)
        return Affine(
            self.offset + one * other.offset,
            tuple(sorted(strides.items())),
            self.base if self.base is not None else other.base,
            (*self.wrapped, *other.wrapped),
            tuple(sorted((a, count) for a, count in repeated.items() if a in strides)),
            (*self.gathered, *other.times(one).gathered),
        )

    def _is_apart_from(self, other: Affine) -> bool:
        """Whether both have a base, or what each is along an axis has no sum."""
        return (
            (self.base is not None and other.base is not None)
            or self._is_gathered_where_changes(other)
            or other._is_gathered_where_changes(self)
            or not {a for a, _ in self.wrapped}.isdisjoint(a for a, _ in other.wrapped)
        )

    def _is_gathered_where_changes(self, other: Affine) -> bool:
        changing = {a for a, _ in (*other.strides, *other.gathered)}
        return any(a in changing for a, _ in self.gathered)

    def times(self, factor: Polynomial) -> Affine:
        """Each element times a scalar."""
        strides = tuple((a, s * factor) for a, s in self.strides)
        gathered = tuple((a, Gathered(g.numbers, g.stride * factor)) for a, g in self.gathered)
        offset = self.offset * factor
        return Affine(offset, strides, self.base, self.wrapped, self.repeated, gathered)


def is_index(value: SSAValue) -> bool:
    """Whether a value is an integer of 32 or 64 bits or a pointer, or a tile of them."""
    element = element_of(value.type)
    return element in (i32, i64) or isinstance(element, PointerType)


def _gathered(value: SSAValue) -> Affine | None:
    """Of integers along one axis of a tile: these numbers themselves."""
    t = value.type
    if not isinstance(t, TileType) or isinstance(t.element, PointerType):
        return None
    axes = [axis for axis, n in enumerate(t.extents) if n > 1]
    if len(axes) != 1:
        return None
    return Affine(gathered=((axes[0], Gathered(value, Polynomial.number(1))),))


def _sources(value: SSAValue) -> Sequence[SSAValue]:
    """What a value is computed of; of what a loop carries, what it begins with and yields."""
    if not isinstance(value, BlockArgument):
        return value.owner.operands if isinstance(value.owner, Operation) else ()
    loop = value.owner.parent_op()
    if not isinstance(loop, scf.ForOp) or value.index == 0:
        return ()
    return loop.iter_args[value.index - 1], yielded_by(value.owner)[value.index - 1]


def _is_scalar(value: SSAValue) -> bool:
    """Whether a value is an integer scalar, of which `Scalars` knows."""
    return not isinstance(value.type, (TileType, PointerType))


def _axes_kept(op: tile.Reshape) -> dict[int, int] | None:
    """The new number of each axis of several elements; None where a reshape changes these."""
    old, new = tile_type(op.arg).extents, tile_type(op.result).extents
    if [n for n in old if n > 1] != [n for n in new if n > 1]:
        return None
    return dict(
        zip(
            [a for a, n in enumerate(old) if n > 1],
            [a for a, n in enumerate(new) if n > 1],
            strict=True,
        )
    )


@dataclass
class Forms:
    """The affine forms of a kernel, in the order of its operations; what has none is left out.
    iterations: of loops, the number of the iteration, counted from 0.
    """

    scalars: Scalars = field(default_factory=Scalars)
    found: dict[SSAValue, Affine] = field(default_factory=dict)
    iterations: Mapping[scf.ForOp, SSAValue] = field(default_factory=dict)
    _parts: dict[tuple[SSAValue, ...], set[SSAValue]] = field(default_factory=dict)

    @staticmethod
    def of(kernel: tile.Kernel, iterations: Mapping[scf.ForOp, SSAValue] | None = None) -> Forms:
        """The forms of all index and pointer tiles of a kernel at level 0."""
        forms = Forms(iterations=iterations or {})
        forms._block(kernel.body.block)
        return forms

    def get(self, value: SSAValue) -> Affine | None:
        """The form of a tile or scalar; None where it is not affine."""
        if value in self.found:
            return self.found[value]
        if _is_scalar(value) and is_index(value):
            return Affine(self.scalars.of(value))
        return None

    def is_exact(self, value: SSAValue, address: tuple[SSAValue, ...]) -> bool:
        """Whether a number, or those of a tile, are what their form says: of the sums and products
        that the form takes apart, none wraps but what the offset of an address is made of, which
        level 0 refuses. One number, which bounds others, is a number of elements, unless it is
        hashed: level 0 refuses one that wraps, too.
        """
        bounds = repeated_scalar(value) is not None
        left, seen = [value], {value}
        while left:
            at = left.pop()
            op, form = at.owner, self.get(at)
            if form is None or self.scalars.is_atom(at, form.offset):
                continue
            if isinstance(op, ew.Elementwise) and op.fn.name in ("add", "sub", "mul", "neg"):
                overflow = self.scalars.ranges.overflow(op)
                if overflow is Overflow.WRAPS:
                    return False
                if overflow is Overflow.UNLESS_OFFSET and not (
                    bounds or self._is_what_is_left(op) or self._is_in(op, address)
                ):
                    return False
            sources = _sources(at)
            left += [v for v in sources if v not in seen]
            seen.update(sources)
        return True

    def _is_what_is_left(self, op: ew.Elementwise) -> bool:
        """Whether an index, never negative, is taken off an argument: a number of elements, which
        is not as far below 0 as numbers reach, whatever its sign.
        """
        if op.fn.name != "sub":
            return False
        number = op.args[0]
        while isinstance(moved := number.owner, (tile.Splat, tile.Multiple, ew.Cast)):
            number = moved.arg
        given = argument_number(number) is not None
        return given and self.scalars.ranges.known(op.args[1]).lo >= 0

    def _is_in(self, op: ew.Elementwise, address: tuple[SSAValue, ...]) -> bool:
        """Whether an address is made of a sum or product, or of what is next to it: of the operand
        beside a constant.
        """
        parts = self._made_of(address)
        beside = any(self.scalars.ranges.known(v).exact is not None for v in op.args)
        return op.result in parts or beside and any(v in parts for v in op.args)

    def _made_of(self, address: tuple[SSAValue, ...]) -> set[SSAValue]:
        """The numbers that an address is computed of."""
        if address not in self._parts:
            left, found = [*address], {*address}
            while left:
                sources = [v for v in _sources(left.pop()) if is_index(v)]
                left += [v for v in sources if v not in found]
                found.update(sources)
            self._parts[address] = found
        return self._parts[address]

    def is_narrow(self, polynomial: Polynomial) -> bool:
        """Whether 32 bits hold it: a number, or what the kernel computes in 32 bits, alone or as
        part of a sum whose other parts are never negative.
        """
        wanted = frozenset(term for term in polynomial.terms if term[0])
        return not wanted or any(
            wanted <= terms and self._is_no_less(terms - wanted) for terms in self._narrow
        )

    def _is_no_less(self, rest: frozenset[tuple[tuple[int, ...], int]]) -> bool:
        """Whether a sum with these terms too is no less than without, whatever divisors are."""
        assumed: set[SSAValue] = set()
        terms = Polynomial.of({m: c for m, c in rest if m})
        return self.scalars.is_never_negative(terms, assumed) and not assumed

    @cached_property
    def _narrow(self) -> set[frozenset[tuple[tuple[int, ...], int]]]:
        """The terms of what the kernel computes in 32 bits."""
        scalars = {p for v, p in self.scalars.known.items() if v.type == i32}
        tiles = {
            form.offset
            for value, form in self.found.items()
            if form.base is None and element_of(value.type) == i32
        }
        return {frozenset(p.terms) for p in scalars | tiles}

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self._loop(op)
            for region in op.regions:
                if not isinstance(op, scf.ForOp):
                    for inner in region.blocks:
                        self._block(inner)
            if len(op.results) == 1 and is_index(op.results[0]) and not _is_scalar(op.results[0]):
                self._note(op)

    def _note(self, op: Operation) -> None:
        form: Affine | None = None
        with suppress(TooLarge):
            form = self._form(op)
        if form is None:
            form = _gathered(op.results[0])
        if form is not None:
            self.found[op.results[0]] = form

    def _form(self, op: Operation) -> Affine | None:
        match op:
            case tile.Constant() if isinstance(op.number, int):
                return Affine(Polynomial.number(int(op.number)))
            case tile.Arange():
                start = Polynomial.number(op.start.value.data)
                several = tile_type(op.result).extents[0] > 1
                return Affine(start, ((0, Polynomial.number(1)),) if several else ())
            case tile.Pointer() if argument_number(op.arg) is not None:
                return Affine(base=op.arg)
            case tile.Splat() | tile.Multiple() | tile.Broadcast():
                return self.get(op.arg)
            case ew.Cast():
                return self._cast(op)
            case tile.Reshape():
                return self._reshaped(op)
            case tile.Transpose():
                form, permutation = self.get(op.arg), op.permutation.get_values()
                axes = {old: new for new, old in enumerate(permutation)}
                return None if form is None else form.renumbered(axes)
            case ew.PointerAdd():
                return self._sum(op.pointer, op.offset, 1)
            case tile.LoadPointers() | ew.Bitcast() if isinstance(op.results[0].type, PointerType):
                return Affine(base=op.results[0])  # loaded, or made of a number
            case ew.Select() if isinstance(op.result.type, TileType):
                return self._selected(op)
            case ew.Elementwise() if isinstance(op.result.type, TileType):
                return self._function(op)
        return None

    def _cast(self, op: ew.Cast) -> Affine | None:
        return self.get(op.arg) if self.scalars.keeps_number(op) else None

    def _sum(self, a: SSAValue, b: SSAValue, sign: int) -> Affine | None:
        left, right = self.get(a), self.get(b)
        return None if left is None or right is None else left.plus(right, sign)

    def _reshaped(self, op: tile.Reshape) -> Affine | None:
        """Extents of 1 that come or go."""
        form, axes = self.get(op.arg), _axes_kept(op)
        if form is None or axes is None:
            return None
        if any(a not in axes for a, _ in (*form.wrapped, *form.gathered)):
            return None  # one number, which no axis stands for any more
        return Affine(
            form.offset,
            tuple((a, s) for a, s in form.strides if a in axes),
            form.base,
            form.wrapped,
            tuple((a, count) for a, count in form.repeated if a in axes),
            form.gathered,
        ).renumbered(axes)

    def _function(self, op: ew.Elementwise) -> Affine | None:
        match op.fn.name:
            case "add":
                return self._sum(op.args[0], op.args[1], 1)
            case "sub":
                return self._sum(op.args[0], op.args[1], -1)
            case "mul":
                a, b = map(self.get, op.args)
                if a is None or b is None:
                    return None
                if b.varies:
                    a, b = b, a
                return None if b.varies else a.times(b.offset)
            case "mod" | "rem_trunc":
                return self._wrapped(*map(self.get, op.args))
            case "floordiv":
                return self._divided(tile_type(op.result), *map(self.get, op.args))
        return None

    def _divided(self, t: TileType, a: Affine | None, b: Affine | None) -> Affine | None:
        """`(count * start + i) // count` is start + i // count."""
        if a is None or b is None or b.varies or not a.is_even or len(a.strides) != 1:
            return None
        ((axis, stride),), count = a.strides, b.offset.exact
        if stride.exact != 1 or not count or count < 2 or t.extents[axis] % count:
            return None
        start, rest = a.offset.divided(b.offset)
        return None if rest.terms else Affine(start, a.strides, repeated=((axis, count),))

    def _wrapped(self, a: Affine | None, b: Affine | None) -> Affine | None:
        """`(start + i) % modulus` counts as start + i: where that is not the remainder, it is up to
        who asks.
        """
        if a is None or b is None or b.varies or not a.is_even or len(a.strides) != 1:
            return None
        ((axis, stride),) = a.strides
        if stride.exact != 1:
            return None
        return Affine(a.offset, a.strides, a.base, ((axis, Wrapped(a.offset, b.offset)),))

    def _selected(self, op: ew.Select) -> Affine | None:
        """`where(start + i < bound, start + i, 0)` counts as start + i too, and the bound as what
        it is modulo: below it both are the number itself, and what lies beyond must not matter.
        """
        test = op.condition.owner
        if not isinstance(test, ew.Elementwise) or test.fn.name != "lt":
            return None
        other = self.get(op.if_false)
        if test.args[0] is not op.if_true or other is None or other.varies or other.base:
            return None
        return self._wrapped(self.get(op.if_true), self.get(test.args[1]))

    # ---- loops
    def _loop(self, loop: scf.ForOp) -> None:
        """The body with an atom for each index that the loop carries, to see how it moves; then
        again with what it is.
        """
        body = body_of(loop)
        carried = [a for a in list(body.args)[1:] if is_index(a)]
        known = dict(self.found)
        for argument in (a for a in carried if not _is_scalar(a)):
            self.found[argument] = Affine(self.scalars.atom(argument))
        self._block(body)
        moved = {a: form for a in carried if (form := self._moved(a, loop)) is not None}
        if not carried:
            return
        self.found = known
        self.scalars.forget_inside(loop)
        for argument, form in moved.items():
            if _is_scalar(argument):
                self.scalars.define(argument, form.offset)
            else:
                self.found[argument] = form
        self._block(body)

    def _moved(self, argument: BlockArgument, loop: scf.ForOp) -> Affine | None:
        """What a carried value is in an iteration; None where it does not move evenly."""
        first = self.get(loop.iter_args[argument.index - 1])
        then = self.get(yielded_by(argument.owner)[argument.index - 1])
        if first is None or then is None or then.base is not None or then.varies or then.wrapped:
            return None
        try:
            by = then.offset - self.scalars.atom(argument)
            if any(is_inside(self.scalars.atoms[a], loop) for a in by.atoms):
                return None
            counter = self.scalars.of(body_of(loop).args[0]) - self.scalars.of(loop.lb)
            step = self.scalars.of(loop.step).exact
            if not step:
                return None
            each, rest = by.divided(Polynomial.number(step))
            if not rest.terms:
                return first.plus(Affine(each * counter))
            number = self.iterations.get(loop)
            return None if number is None else first.plus(Affine(by * self.scalars.of(number)))
        except TooLarge:
            return None
