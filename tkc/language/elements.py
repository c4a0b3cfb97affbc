"""Memory that element-wise functions read by index: `a[i, j]` with tiles, scalars and numbers.

`Elements` stands in a function for an array that it captured (tkc/runtime/lifting.py). Its indices
are broadcast as operands are, a negative one counts from the end, and what lies outside the array
is not read: it is 0. With fewer indices than axes it is the rest of the array; of rank 0 it takes
part in arithmetic as the number that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tkc.language import memory
from tkc.language import operations as ops
from tkc.language.arrays import Array
from tkc.language.dtypes import DType, int32, int64
from tkc.language.tracer import fail, tracer
from tkc.language.values import (
    BINARY,
    COMPARISONS,
    Value,
    broadcast_shapes,
    describe,
    lift,
    spread,
    unpack,
)


@dataclass(frozen=True, eq=False)
class Read:
    """One read: the value, its indices (none of them negative), and where it was inside."""

    value: Value
    indices: tuple[Value, ...]
    inside: Value | None


@dataclass(frozen=True, eq=False)
class Elements:
    """An array as a function of indices. reads: what was read so far, in the order of the trace."""

    array: Array
    scalar: bool = False  # of rank 0: the array has one element
    first: tuple[Any, ...] = ()  # indices of the first axes
    reads: list[Read] = field(default_factory=list, repr=False)
    __hash__ = None  # type: ignore[assignment]  # == compares elements

    @property
    def ndim(self) -> int:
        return 0 if self.scalar else self.array.ndim - len(self.first)

    @property
    def shape(self) -> tuple[Any, ...]:
        return () if self.scalar else tuple(self.array.shape)[len(self.first) :]

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    def size(self, axis: int | None = None) -> Any:
        """The extents, or one of them, as torch spells it."""
        return self.shape if axis is None else self.shape[axis]

    def _describe(self) -> str:
        return f"captured array of {self.dtype.name}, rank {self.ndim}"

    def __repr__(self) -> str:
        return f"<{self._describe()}>"

    def __copy__(self) -> Elements:
        return self

    def __deepcopy__(self, memo: dict) -> Elements:
        return self

    def __len__(self) -> int:
        fail("len() of a captured array; use .shape[0]")

    def __iter__(self) -> Any:
        fail("a captured array cannot be iterated; index it")

    def __bool__(self) -> bool:
        fail("a captured array has no truth value; index it, and compare")

    def __getitem__(self, index: Any) -> Any:
        given = self.first + tuple(map(unpack, index if isinstance(index, tuple) else (index,)))
        if self.scalar or len(given) > self.array.ndim:
            fail(f"{len(given) - len(self.first)} indices for a {self._describe()}")
        for i in given:
            whole = isinstance(i, int) and not isinstance(i, bool)
            if not whole and not (isinstance(i, Value) and i.dtype.is_int):
                fail(f"a captured array is indexed by integers, one an axis, got {describe(i)}")
        if len(given) < self.array.ndim:
            return Elements(self.array, False, given, self.reads)
        return self._read(given)

    def number(self) -> Value:
        """What an array of rank 0 holds."""
        if self.ndim:
            fail(f"a {self._describe()} takes no part in arithmetic; index it")
        return self._read((0,) * self.array.ndim)

    def _read(self, indices: Sequence[Any]) -> Value:
        shape = broadcast_shapes(*(i.shape for i in indices if isinstance(i, Value)), ())
        places, inside = [], None
        for axis, i in enumerate(indices):
            place, holds = _place(i, self.array.shape[axis])
            places.append(place)
            if holds is not None:
                inside = holds if inside is None else inside & holds
        pointers = spread(_pointers(self.array, places), shape)
        value = memory.load(pointers, mask=inside)
        self.reads.append(Read(value, tuple(places), inside))
        return value


def _pointers(array: Array, places: Sequence[Value]) -> Value:
    found = array.ptr
    for axis, place in enumerate(places):
        found = found + place * array.strides[axis]
    return found


def _place(i: Any, extent: Any) -> tuple[Value, Any]:
    """An index from the start of its axis, and where it is inside (None: everywhere)."""
    if isinstance(i, int) and isinstance(extent, int):
        if not -extent <= i < extent:
            fail(f"index {i} is outside an extent of {extent}")
        return lift(i % extent, int32 if extent < 1 << 31 else int64), None
    i = lift(i)
    if i.dtype.bits < 32 or i.dtype.kind == "uint":
        i = i.to(int32 if i.dtype.bits < 32 else int64)
    known = tracer().range_of(i.ssa) if not i.shape else None
    if known is not None and known.lo >= 0:
        return i, i < extent
    place = lift(ops.where(i < 0, i + extent, i))
    return place, (place >= 0) & (place < extent)


@dataclass(frozen=True)
class Scatter:
    """The gradient of Elements: what is to be added where a function read."""

    parts: list[tuple[Read, Value]]

    def add_to(self, array: Array) -> None:
        """Adds it to an array atomically, at the indices of the reads. Indices that do not vary
        along an axis of the function cost one addition for all of it.
        """
        for read, gradient in self.parts:
            memory.atomic_add(
                spread(_pointers(array, read.indices), gradient.shape),
                gradient.to(array.dtype),
                mask=read.inside,
                sem="relaxed",
            )


def _arithmetic(name: str) -> Any:
    def forward(self: Elements, other: Any) -> Any:
        return getattr(self.number(), name)(other)

    return forward


for _name in BINARY:
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(Elements, _method, _arithmetic(_method))
for _name in ("neg", "abs", "invert"):
    setattr(
        Elements,
        f"__{_name}__",
        lambda self, name=f"__{_name}__": getattr(self.number(), name)(),
    )
for _name in COMPARISONS:
    setattr(Elements, f"__{_name}__", _arithmetic(f"__{_name}__"))
