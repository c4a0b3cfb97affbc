"""Reading and writing global memory: load, store and atomics, on arrays with offsets or on
pointers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign
from typing import TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.types import like
from tkc.language.arrays import Array, as_tuple, integer
from tkc.language.dtypes import DType, bool_
from tkc.language.tracer import fail, tracer
from tkc.language.values import (
    Operand,
    Pointer,
    Tile,
    Value,
    check,
    describe,
    fit,
    is_tritons,
    lift,
    mask_of,
    number,
    static_shape,
    unpack,
    wrap,
)

Extents: TypeAlias = int | None | Sequence[int | None]
SEMANTICS, SCOPES = ("relaxed", "acquire", "release", "acq_rel"), ("block", "gpu", "system")


def _offsets(array: Array, offsets, extents: list[int]) -> list[SSAValue]:
    """Offsets into an array as SSA values; a rank-1 integer tile (a gather) must be as long as the
    extent on its axis.
    """
    result = []
    for axis, (o, n) in enumerate(zip(offsets, extents, strict=False)):
        o = unpack(o)
        if isinstance(o, Tile):
            if o.ndim != 1 or not o.dtype.is_int:
                fail(f"offset {axis} is an integer or a rank-1 integer tile, got {describe(o)}")
            if n != o.shape[0]:
                fail(
                    f"offset {axis} is a tile of {o.shape[0]} integers; the extent there must be"
                    f" {o.shape[0]}, got {'None' if n < 0 else n}"
                )
            result.append(array.place(o.use(), axis))
        else:
            result.append(array.place(integer(o, f"offset {axis}"), axis))
    return result


def converted(value: object, dtype: DType, what: str) -> Value:
    """A value as the element type of what it is stored to: of the same kind, or a number."""
    value = check(value, "value")
    if not isinstance(value, Value):
        return number(value, dtype, instead=f"{what} has this dtype; give it such a number")
    if isinstance(value, Value):
        if isinstance(value.dtype, Pointer):
            fail(f"cannot store a pointer to {dtype.name}; use .to(tkc.int64, bitcast=True)")
        if not is_tritons() and (
            value.dtype.is_float
            and not dtype.is_float
            or dtype is bool_
            and value.dtype is not bool_
        ):
            fail(
                f"cannot store {describe(value)} to {what} of {dtype.name}; convert with"
                f" .to(tkc.{dtype.name})"
            )
    return lift(value, dtype)


def _word(value: str | None, allowed: tuple[str, ...], what: str) -> StringAttr | None:
    if value is None:
        return None
    if value not in allowed:
        fail(f"{what} is one of {', '.join(map(repr, allowed))}, got {value!r}")
    return StringAttr(value)


def _order(op, sem: str | None, scope: str | None, allowed=SEMANTICS):
    if (s := _word(sem, allowed, "sem")) is not None:
        op.properties["semantics"] = s
    if (s := _word(scope, SCOPES, "scope")) is not None:
        op.properties["scope"] = s
    return op


def pointee(pointers: Value) -> DType:
    """What pointers point to. Raises TypeError for other values."""
    if not isinstance(pointers.dtype, Pointer):
        raise TypeError(f"expected pointers, got {pointers.dtype}")
    return pointers.dtype.element


def _pointers(x, what: str) -> Value:
    x = unpack(x)
    if not isinstance(x, Value) or not isinstance(x.dtype, Pointer):
        host = hasattr(x, "dtype") and not isinstance(x, Value)  # of NumPy, torch, …
        fail(
            f"{what} takes an array and offsets, or pointers (array.ptr + offsets), got"
            f" {describe(x)}{'; pass it as an argument of the kernel' if host else ''}"
        )
    return x


def load(
    source: Array | Value,
    offsets: Operand | Sequence[Operand] | None = None,
    shape: Extents | None = None,
    *,
    mask: Operand | None = None,
    other: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """A tile from memory.

    load(array, offsets, shape, mask=, other=0): the block that starts at these element offsets. One
    offset and one extent an axis; an extent of None drops the axis; an offset may be a rank-1
    integer tile (a gather). What lies outside the array, or is masked, reads as `other`.
    load(pointers, mask=, other=0): one element an address. sem="relaxed" reads what others write
    meanwhile, anew each time; sem="acquire" also orders later loads after it. Raises CompileError
    for a wrong number of offsets or extents, a mask that is not of bool, a shape not known.
    """
    t = tracer()
    if isinstance(source, Array):
        if offsets is None or shape is None:
            fail(
                "tkc.load(array, offsets, shape) needs offsets and a shape (None along each axis"
                " for one element); for pointers use array.ptr + offsets"
            )
        if sem is not None:
            fail("sem= is for loads from pointers; use tkc.load(array.ptr + offset, sem=...)")
        offsets, shape = as_tuple(offsets), as_tuple(shape)
        if len(offsets) != source.ndim or len(shape) != source.ndim:
            fail(
                f"an array of rank {source.ndim} takes {source.ndim} offsets and {source.ndim}"
                f" extents (None drops an axis), got {len(offsets)} and {len(shape)}"
            )
        extents = [-1 if n is None else static_shape((n,))[0] for n in shape]
        kept = tuple(n for n in extents if n >= 0)
        fill = _other(other, source.dtype, kept)
        return wrap(
            t.emit(
                tile.Load(
                    source.use(),
                    _offsets(source, offsets, extents),
                    extents,
                    mask_of(mask, kept),
                    fill,
                )
            ).result
        )
    pointers = _pointers(source, "tkc.load")
    if offsets is not None or shape is not None:
        fail("tkc.load(pointers) takes no offsets and no shape; add the offsets to the pointers")
    op = tile.LoadPointers(
        pointers.use(),
        mask_of(mask, pointers.shape),
        _other(other, pointee(pointers), pointers.shape),
    )
    return wrap(t.emit(_order(op, sem, scope, ("relaxed", "acquire"))).result)


def _is_positive_zero(number: bool | int | float, dtype: DType) -> bool:
    """Whether a number is what a load without `other` reads where it is masked."""
    return number == 0 and not (dtype.is_float and copysign(1.0, number) < 0)


def _other(other, dtype: DType, shape: tuple[int, ...]) -> SSAValue | None:
    """The fill value, of the block's shape (None: zero)."""
    if other is None or not isinstance(other, Value) and _is_positive_zero(other, dtype):
        return None
    if isinstance(other, Value):
        fill = converted(other, dtype, "the fill value of a load")
    else:
        wider = "float32" if isinstance(other, float) else "int32"
        fill = number(
            other,
            dtype,
            instead=f"other= has the array's dtype; to fill with it, load without other= and write"
            f" tkc.where(mask, tile.to(tkc.{wider}), {other!r})",
        )
    return fit(fill, shape, "other").use()


def _block(array: Array, offsets, value, what: str) -> tuple[list[SSAValue], Value, list[int]]:
    """Offsets, value and extents of a block written to an array: the value's axes are the array's
    last ones.
    """
    offsets = as_tuple(offsets)
    if len(offsets) != array.ndim:
        fail(
            f"{what} to an array of rank {array.ndim} takes {array.ndim} offsets, got"
            f" {len(offsets)}"
        )
    value = converted(value, array.dtype, "an array")
    if len(value.shape) > array.ndim:
        fail(f"{what} of {describe(value)} to an array of rank {array.ndim}; reshape the tile")
    if len(value.shape) == 1 and array.ndim > 1:
        fail(
            f"{what} of a rank-1 tile at {array.ndim} offsets does not say along which axis it"
            " lies; write tile[:, None] for a column or tile[None, :] for a row"
        )
    extents = [-1] * (array.ndim - len(value.shape)) + list(value.shape)
    return _offsets(array, offsets, extents), value, extents


def store(
    target: Array | Value,
    offsets: Operand | Sequence[Operand] | None = None,
    value: Operand | None = None,
    *args: object,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> None:
    """Writes a tile to memory.

    store(array, offsets, value, mask=): the block at these element offsets; a value of lower rank
    fills the last axes (a rank-1 tile says by tile[:, None] or tile[None, :] which one it is); what
    lies outside the array, or is masked, is not written. store(pointers, value, mask=): one element
    an address. A number or a value of the same kind is converted to the element type; float to
    integer needs .to().
    """
    t = tracer()
    if isinstance(target, Array):
        if value is None or args:
            fail("tkc.store(array, offsets, value, mask=...) takes an array, offsets and a value")
        if sem is not None:
            fail(
                "sem= is for stores to pointers; use tkc.store(array.ptr + offset, value, sem=...)"
            )
        places, value, extents = _block(target, offsets, value, "a store")
        t.emit(tile.Store(target.use(), places, value.use(), extents, mask_of(mask, value.shape)))
        return
    pointers = _pointers(target, "tkc.store")
    if value is not None or offsets is None:
        fail("tkc.store(pointers, value, mask=...) takes pointers and a value")
    value = fit(converted(offsets, pointee(pointers), "memory"), pointers.shape, "the value")
    t.emit(
        _order(
            tile.StorePointers(pointers.use(), value.use(), mask_of(mask, pointers.shape)),
            sem,
            scope,
            ("relaxed", "release"),
        )
    )


def _atomic(kind: str, name: str, target, args, mask, sem, scope):
    t = tracer()
    if isinstance(target, Array):
        if len(args) != 2 or kind in ("exchange", "compare"):
            fail(
                f"{name} on an array takes offsets and a value"
                if kind not in ("exchange", "compare")
                else f"{name} works on pointers: use array.ptr + offset"
            )
        if sem not in (None, "relaxed") or scope not in (None, "gpu"):
            fail(
                f"sem= and scope= are for {name} by pointers, which orders other accesses; use"
                f" {name}(array.ptr + offset, value, …)"
            )
        offsets, value, extents = _block(target, args[0], args[1], name)
        _atomic_type(kind, name, target.dtype)
        t.emit(
            tile.AtomicBlock(
                kind, target.use(), offsets, value.use(), extents, mask_of(mask, value.shape)
            )
        )
        return None
    pointers = _pointers(target, name)
    if len(args) != (2 if kind == "compare" else 1):
        fail(f"{name}(pointers, {'expected, ' if kind == 'compare' else ''}value)")
    dtype = pointee(pointers)
    _atomic_type(kind, name, dtype)
    values = [fit(converted(v, dtype, "memory"), pointers.shape, "the value").use() for v in args]
    m = mask_of(mask, pointers.shape)
    op = tile.Atomic.build(
        operands=[pointers.use(), values[-1], values[:-1], [m] if m is not None else []],
        properties={"kind": StringAttr(kind)},
        result_types=[[like(pointers.ssa.type, dtype.ir)]],
    )
    return wrap(t.emit(_order(op, sem, scope)).result)


def _atomic_type(kind: str, name: str, dtype: DType) -> None:
    if kind in ("and", "or", "xor") and not dtype.is_int:
        fail(f"{name} takes integers, got {dtype.name}")
    if dtype is bool_ or dtype.is_float and dtype.bits == 8:
        fail(f"{name} does not take {dtype.name}")


def _define(kind: str, name: str, what: str):
    def atomic(target, *args, mask=None, sem: str | None = None, scope: str | None = None):
        return _atomic(kind, name, target, args, mask, sem, scope)

    atomic.__name__ = atomic.__qualname__ = name
    atomic.__doc__ = (
        f"Atomic {what}: {name}(array, offsets, value, mask=) on a block, without a result;"
        f" {name}(pointers, value, mask=) gives the old values.\n\n    sem: relaxed, acquire,"
        " release, acq_rel (default); scope: block, gpu (default), system."
    )
    return atomic


atomic_add, atomic_max, atomic_min = (
    _define("add", "atomic_add", "addition"),
    _define("max", "atomic_max", "maximum"),
    _define("min", "atomic_min", "minimum"),
)
atomic_and, atomic_or, atomic_xor = (
    _define("and", "atomic_and", "bitwise and"),
    _define("or", "atomic_or", "bitwise or"),
    _define("xor", "atomic_xor", "bitwise xor"),
)
atomic_xchg = _define("exchange", "atomic_xchg", "exchange")


def atomic_cas(
    pointers: Value,
    expected: Operand,
    value: Operand,
    *,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Atomic compare and swap: where memory holds the bits of `expected`, `value` is written;
    gives the old values.
    """
    return _atomic("compare", "atomic_cas", pointers, (expected, value), mask, sem, scope)
