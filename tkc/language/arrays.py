"""Arrays in global memory as a kernel sees them: shape, strides, dtype, pointer, views."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Bitcast, Elementwise, PointerAdd, Select
from tkc.ir.ranges import Ranges, divisor
from tkc.ir.types import (
    MOST_DIVISOR,
    ArrayFacts,
    ArrayType,
    Fact,
    element_of,
    is_integer,
)
from tkc.ir.values import array_type, operands_first, tile_type
from tkc.language import operations
from tkc.language.dtypes import BY_IR, DType, int64, uint64
from tkc.language.names import suggestion
from tkc.language.tracer import fail, integer_type, tracer
from tkc.language.values import (
    BINARY,
    COMPARISONS,
    Pointer,
    Scalar,
    Tile,
    Value,
    cast,
    describe,
    every_axis,
    spread,
    unpack,
    wrap,
)

Extent: TypeAlias = int | Value
_SUMS = "add", "sub", "mul"
OF_ARRAYS = "shape", "strides", "dtype", "ndim", "ptr"


@dataclass(frozen=True, eq=False)
class Extents(Sequence):
    """Extents or strides: Python ints where known, else read from the array when used."""

    array: Array
    facts: tuple[Fact, ...]
    op: type

    def __len__(self):
        return len(self.facts)

    def __repr__(self):
        return (
            "(" + ", ".join(str(f.exact) if f.exact is not None else "?" for f in self.facts) + ")"
        )

    def __getitem__(self, axis):
        if isinstance(axis, slice):
            return tuple(self)[axis]
        axis = unpack(axis)
        if not isinstance(axis, int):
            fail(f"an axis is a Python integer, got {describe(axis)}")
        if not -len(self) <= axis < len(self):
            raise IndexError(f"axis {axis} of an array of rank {len(self)}")
        return self.array._known(self.facts[axis], self.op, axis % len(self))


@dataclass(frozen=True)
class _Cut:
    """What a view is along one axis of its array: tile.View's kind and offsets, a divisor of where
    it begins (in elements), and what is known of its extent (None: the axis is dropped).
    """

    kind: str
    offsets: list[SSAValue]
    divisor: int
    extent: Fact | None


@dataclass(frozen=True, eq=False)
class Array:
    """An array: `.shape` and `.strides` (Python ints where the specialization knows them),
    `.dtype`, `.ptr`.

    `a[b, h]` fixes leading axes and gives a view; `a[start:stop]` bounds one; an index on every
    axis loads a scalar.
    """

    ssa: SSAValue
    wide: bool = False  # extents and offsets need 64 bits
    _cache: dict = field(default_factory=dict, repr=False)
    __hash__ = None  # type: ignore[assignment]  # == compares elements

    def use(self) -> SSAValue:
        return tracer().use(self.ssa)

    @property
    def facts(self) -> ArrayFacts:
        return array_type(self.ssa).facts

    @property
    def dtype(self) -> DType:
        return BY_IR[array_type(self.ssa).element]

    @property
    def ndim(self) -> int:
        return array_type(self.ssa).rank

    @property
    def shape(self) -> Extents:
        return Extents(self, self.facts.shape, tile.Dim)

    @property
    def strides(self) -> Extents:
        return Extents(self, self.facts.strides, tile.Stride)

    @property
    def ptr(self) -> Value:
        return self._get("ptr", lambda: tile.Pointer(self.use()))

    @property
    def T(self) -> NoReturn:
        fail("an array has no .T; load a tile and transpose it: tkc.load(array, offsets, shape).T")

    def _known(self, fact: Fact, op, axis: int):
        if fact.exact is not None:
            return fact.exact
        return self._get((op, axis), lambda: op(self.use(), axis, i64 if self.wide else i32))

    def parts(self, facts: ArrayFacts, wide: bool) -> list[SSAValue]:
        """The address, and what some facts leave open of extents and strides, in 32 or 64 bits."""
        width = i64 if wide else i32
        found = [self.ptr.use()]
        for asked, own, op in (
            (facts.shape, self.facts.shape, tile.Dim),
            (facts.strides, self.facts.strides, tile.Stride),
        ):
            for axis, fact in enumerate(asked):
                if fact.exact is not None:
                    continue
                if (exact := own[axis].exact) is not None:
                    found.append(tracer().constant(exact, width))
                else:
                    found.append(tracer().emit(op(self.use(), axis, width)).results[0])
        return found

    @staticmethod
    def of_parts(t: ArrayType, wide: bool, parts: Iterator[SSAValue]) -> Array:
        """An array of this type from the next parts."""
        pointer, width = next(parts), i64 if wide else i32
        sizes, steps = (
            [next(parts) if f.exact is None else tracer().constant(f.exact, width) for f in facts]
            for facts in (t.facts.shape, t.facts.strides)
        )
        return Array(tracer().emit(tile.MakeArray(pointer, sizes, steps, t)).result, wide)

    def _get(self, key, make) -> Value:
        """A property of the array, computed once where the earlier one is still visible."""
        t, found = tracer(), self._cache.get(key)
        if found is not None and any(found.ssa.owner.parent is b for b in t.blocks):
            return found
        self._cache[key] = wrap(t.emit(make()).results[0])
        return self._cache[key]

    def _describe(self) -> str:
        return f"array of {self.dtype.name}, rank {self.ndim}"

    def __repr__(self):
        return f"<{self._describe()}>"

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __len__(self):
        fail("len() of an array; use .shape[0]")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        hint = suggestion(name, OF_ARRAYS, "")
        raise AttributeError(
            f"an {self._describe()} has no `.{name}`"
            f"{hint or '; load a tile of it: tkc.load(array, offsets, shape)'}"
        )

    def __iter__(self):
        fail("an array cannot be iterated; index it")

    def __bool__(self):
        fail("an array has no truth value; compare its .shape, or pass None as a constexpr")

    def __setitem__(self, index, value):
        fail("assign to memory with tkc.store(array, offsets, value)")

    def __getitem__(self, index: Any) -> Value | Array:
        indices = tuple(map(unpack, every_axis(index, self.ndim, f"an {self._describe()}")))
        if any(isinstance(i, slice) for i in indices):
            return self._view(indices)
        offsets = [self._place(i, axis) for axis, i in enumerate(indices)]
        return wrap(tracer().emit(tile.Load(self.use(), offsets, [-1] * self.ndim)).result)

    def place(self, offset: SSAValue, axis: int) -> SSAValue:
        """An offset along an axis, in as many bits as it needs: an axis of several is shorter."""
        others = (fact for i, fact in enumerate(self.facts.shape) if i != axis)
        is_row = self.wide and all(fact.exact == 1 for fact in others)
        return in_64_bits(offset) if is_row else offset

    def _place(self, i: Any, axis: int, is_bound: bool = False) -> SSAValue:
        """Where an index along an axis lies; a negative one counts from the end. A bound of a slice
        is at least 0.
        """
        if isinstance(i, Tile):
            fail(
                "an array is indexed by scalars; to gather, give the integer tile as an offset:"
                " tkc.load(array, (tile, …), shape)"
            )
        place = self.place(integer(i, "an index"), axis)
        known = tracer().range_of(place)
        if known.lo >= 0:
            return place
        from_end = self.shape[axis] + i
        if is_bound:
            from_end = operations.maximum(from_end, 0)
        if known.hi >= 0:
            from_end = operations.where(i < 0, from_end, i)
        return integer(from_end, "an index")

    def _cut(self, i: Any, axis: int) -> _Cut:
        """What a view by this index or slice is along an axis."""
        if not isinstance(i, slice):
            place = self._place(i, axis)
            return _Cut("index", [place], divisor(place), None)
        if i.step not in (None, 1):
            fail("an array is sliced by steps of 1")
        start, stop, extent = unpack(i.start), unpack(i.stop), self.facts.shape[axis]
        start = 0 if start is None else start
        if stop is None and isinstance(start, int) and start == 0:
            return _Cut("all", [], 0, extent)
        first = self._place(start, axis, is_bound=True)
        last = self._place(self.shape[axis] if stop is None else stop, axis, is_bound=True)
        begin, end = Ranges().known(first), Ranges().known(last)
        if extent.exact is None or begin.exact is None or end.exact is None:
            whole = extent.divisor if extent.exact is None else extent.exact
            fact = Fact(math.gcd(begin.divisor, end.divisor, whole) or 1)
        else:
            fact = Fact(exact=max(0, min(extent.exact, end.exact) - begin.exact))
        return _Cut("slice", [first, last], begin.divisor, fact)

    def _view(self, index: tuple) -> Array:
        cuts = [self._cut(i, axis) for axis, i in enumerate(index)]
        if all(c.kind == "all" for c in cuts):
            return self
        facts, strides = self.facts, []
        align = facts.align
        for cut, stride in zip(cuts, facts.strides, strict=True):
            step = stride.divisor if stride.exact is None else stride.exact
            align = math.gcd(align, cut.divisor * step * self.dtype.bits // 8)
            if cut.extent is not None:
                strides.append(stride)
        shape = tuple(c.extent for c in cuts if c.extent is not None)
        known = ArrayFacts(shape, tuple(strides), max(align, 1))
        result = ArrayType(len(shape), array_type(self.ssa).element, known)
        offsets = [o for c in cuts for o in c.offsets]
        view = tile.View(self.use(), [c.kind for c in cuts], offsets, result)
        return Array(tracer().emit(view).result, self.wide)


def _load_first(self, *_):
    fail(
        f"an {self._describe()} is in memory and takes no part in arithmetic; load a tile of it:"
        " tkc.load(array, offsets, shape)"
    )


for _name in BINARY:
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(Array, _method, _load_first)
for _name in ("neg", "abs", "invert", *COMPARISONS):
    setattr(Array, f"__{_name}__", _load_first)


def integer(x: object, what: str) -> SSAValue:
    """A scalar integer (Python or traced) as an SSA value of i32 or i64."""
    x = unpack(x)
    if isinstance(x, bool) or not isinstance(x, (int, Value)):
        fail(f"{what} is an integer, got {describe(x)}")
    if isinstance(x, int):
        return tracer().constant(x, integer_type(x))
    if not isinstance(x, Scalar) or not x.dtype.is_int:
        fail(f"{what} is an integer scalar, got {describe(x)}")
    if x.dtype.ir in (i32, i64):
        return x.use()
    return x.to(int64 if x.dtype.bits >= 32 else BY_IR[i32]).use()


def in_64_bits(place: SSAValue) -> SSAValue:
    """An offset whose sums and products are 64 bits wide: a program's number times a block is more
    than 32 bits hold behind the first 2³¹ elements of a row.
    """
    found: dict[SSAValue, SSAValue] = {}
    for at in operands_first(place, _terms, found):
        terms = [found[term] for term in _terms(at)]
        if not terms:
            found[at] = cast(wrap(at), int64).use()
        elif isinstance(at.owner, Elementwise):
            found[at] = tracer().emit(type(at.owner)(*terms)).result
        else:
            found[at] = spread(wrap(terms[0]), tile_type(at).extents).use()
    return found[place]


def _terms(place: SSAValue) -> Sequence[SSAValue]:
    """What a sum, a product or a tile of it in 32 bits is made of."""
    if element_of(place.type) == i32:
        match place.owner:
            case tile.Splat() as op:
                return op.operands
            case Elementwise() as op if op.fn.name in _SUMS:
                return op.operands
    return ()


def as_tuple(x: Any) -> tuple:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _contiguous(extents: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """The strides of a contiguous array, the last axis innermost."""
    strides: list[Extent] = [1]
    for n in reversed(extents[1:]):
        strides.insert(0, strides[0] * n)
    return tuple(strides)


MOST_BYTES = 16  # of an alignment


def _alignment(pointer: SSAValue, size: int) -> int:
    """Bytes that an address of elements of this size is known to be a multiple of."""
    op = pointer.owner
    if isinstance(op, tile.Pointer):
        return array_type(op.operands[0]).facts.align
    if isinstance(op, Select):
        return math.gcd(*(_alignment(v, size) for v in op.operands[1:]))
    if isinstance(op, PointerAdd):
        moved = math.gcd(size * divisor(op.operands[1]), MOST_BYTES)
        return math.gcd(_alignment(op.operands[0], size), moved)
    if isinstance(op, tile.Multiple):
        return max(_alignment(op.arg, size), math.gcd(op.divisor.value.data, MOST_BYTES))
    if isinstance(op, Bitcast) and is_integer(op.arg.type):  # an address, perhaps with a promise
        return max(size, math.gcd(divisor(op.arg), MOST_BYTES))
    return size


def array(
    pointer: Value,
    dtype: DType,
    shape: Extent | Sequence[Extent],
    strides: Extent | Sequence[Extent] | None = None,
) -> Array:
    """An array made in the kernel from an address (a pointer, or an integer scalar of 64 bits),
    extents and strides in elements.

    Without strides the array is contiguous, the last axis innermost.
    """
    pointer = unpack(pointer)
    if not isinstance(pointer, Scalar):
        fail(f"tkc.array takes a scalar address, got {describe(pointer)}")
    if not isinstance(dtype, DType):
        fail(
            "tkc.array(pointer, dtype, shape, strides): dtype is a dtype such as tkc.float32, got"
            f" {dtype!r:.60}"
        )
    extents = tuple(map(unpack, as_tuple(shape)))
    steps = _contiguous(extents) if strides is None else tuple(map(unpack, as_tuple(strides)))
    if len(extents) != len(steps):
        fail(f"tkc.array: {len(extents)} extents and {len(steps)} strides")
    if not isinstance(pointer.dtype, Pointer):
        if pointer.dtype not in (int64, uint64):
            fail(f"an address has 64 bits (int64 or uint64), got {pointer.dtype.name}")
        pointer = pointer.to(Pointer(dtype), bitcast=True)
    elif pointer.dtype.element is not dtype:
        pointer = pointer.to(int64, bitcast=True).to(Pointer(dtype), bitcast=True)

    def fact(n: Extent) -> Fact:
        return (
            Fact(exact=n)
            if isinstance(n, int)
            else Fact(divisor=math.gcd(divisor(n.ssa), MOST_DIVISOR))
        )

    align = _alignment(pointer.ssa, dtype.bits // 8)
    facts = ArrayFacts(tuple(map(fact, extents)), tuple(map(fact, steps)), align)
    sizes = [integer(n, "an extent") for n in extents]
    spans = [integer(n, "a stride") for n in steps]
    made = tile.MakeArray(pointer.use(), sizes, spans, ArrayType(len(sizes), dtype.ir, facts))
    wide = any(v.type == i64 for v in (*sizes, *spans))
    return Array(tracer().emit(made).result, wide)
