"""Reductions, scans and orders along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tkc.language import combining, operations, values
from tkc.language.tracer import fail
from tkc.language.values import Tile, Value
from tkc.triton.language import types
from tkc.triton.language.constants import tuple_, unwrap
from tkc.triton.language.control import combined
from tkc.triton.language.mathematics import exp, fdiv
from tkc.triton.language.shapes import axis_in, block
from tkc.triton.language.types import dtype
from tkc.triton.language.values import (
    Operand,
    arithmetic,
    broadcast,
    cast,
    known_type,
    member,
    tensor,
    to_tensor,
)


def _along(x: Tile, axis: Any, what: str) -> tuple[Tile, int]:
    """A block and the axis of it that is reduced: all elements where none is named."""
    if unwrap(axis) is None:
        return x.reshape(x.size), 0
    return x, axis_in(axis, x.ndim, what)


def _kept(found: Value, shape: tuple[int, ...], axis: Any, keep_dims: Any) -> tensor:
    """The result, with extents of 1 where it was reduced."""
    if not unwrap(keep_dims):
        return tensor(found)
    gone = range(len(shape)) if unwrap(axis) is None else (unwrap(axis) % len(shape),)
    return tensor(operations.restore_axes(found, shape, gone))


def _reduction(fn: Callable, prepare: Callable[[tensor], tensor], what: str) -> Callable:
    def function(input: tensor, axis: Any = None, keep_dims: Any = False) -> tensor:
        x = block(prepare(input), what)
        along, at = _along(x, axis, what)
        found = values.lift(fn(along, at))
        if found.dtype is not x.dtype:
            found = values.cast(found, x.dtype)
        return _kept(found, x.shape, axis, keep_dims)

    return function


def _integers_only(what: str) -> Callable[[tensor], tensor]:
    def prepare(x: tensor) -> tensor:
        if not x.dtype.is_int():
            fail(f"tl.{what} takes integers, got {x.dtype}")
        return x

    return prepare


def _widened(x: tensor) -> tensor:
    """Short floats as float32, short integers as int32."""
    if x.dtype.primitive_bitwidth >= 32:
        return x
    return cast(x, types.float32 if x.dtype.is_floating() else types.int32)


def _float32_of_bfloat16(x: tensor) -> tensor:
    return cast(x, types.float32) if x.dtype.name == "bf16" else x


def _sum_type(given: dtype, wanted: Any) -> dtype:
    """Short integers are summed in 32 bits of the same sign."""
    if unwrap(wanted) is not None:
        return known_type(wanted)
    if given.is_int() and given.int_bitwidth < 32:
        return types.int32 if given.is_int_signed() else types.uint32
    return given


@member
def sum_(input: tensor, axis: Any = None, keep_dims: Any = False, dtype: Any = None) -> tensor:
    """The sum along an axis, or of all elements."""
    into = _sum_type(input.dtype, dtype)
    if into.is_bool():
        return xor_sum(cast(input, into), axis, keep_dims)
    return _reduction(operations.sum_, lambda x: cast(x, into), "sum")(input, axis, keep_dims)


def _xor(x: Tile, axis: int) -> Value:
    if x.dtype.kind == "bool":
        return values.lift(operations.sum_(x, axis) % 2 != 0)
    return operations.xor_sum(x, axis)


xor_sum = _reduction(_xor, _integers_only("xor_sum"), "xor_sum")
reduce_or = _reduction(
    lambda x, axis: (
        operations.any_(x, axis)
        if x.dtype.kind == "bool"
        else combining.reduce(x, axis, lambda a, b: a | b)
    ),
    _integers_only("reduce_or"),
    "reduce_or",
)
for _name, _fn in (("xor_sum", xor_sum), ("reduce_or", reduce_or)):
    _fn.__name__ = _name
    member(_fn)


def _extreme(name: str) -> Callable:
    largest = getattr(operations, f"nan{name}")
    first = getattr(operations, f"arg{name}")

    def function(
        input: tensor,
        axis: Any = None,
        return_indices: Any = False,
        return_indices_tie_break_left: Any = True,
        keep_dims: Any = False,
    ) -> Any:
        if not unwrap(return_indices):
            return _reduction(largest, _widened, name)(input, axis, keep_dims)
        value = _reduction(largest, _float32_of_bfloat16, name)(input, axis, keep_dims)
        return tuple_((value, _place(first, input, axis, keep_dims, name)))

    function.__name__ = function.__qualname__ = f"{name}_"
    function.__doc__ = (
        f"The {name}imum of what is not NaN, along an axis or of all elements; with"
        " return_indices also where it is."
    )
    return member(function)


def _place(fn: Callable, input: tensor, axis: Any, keep_dims: Any, what: str) -> tensor:
    """Where the first of the largest (smallest) is; NaN is chosen last. fn: of integers."""
    x = block(_widened(to_tensor(input)), what)
    along, at = _along(x, axis, what)
    if x.dtype.is_float:
        extreme = operations.nanmin if what.endswith("min") else operations.nanmax
        found = _first_equal(along, at, extreme(along, at, keep_dims=True))
    else:
        found = values.lift(fn(along, at))
    return _kept(found, x.shape, axis, keep_dims)


def _first_equal(x: Tile, axis: int, number: Value) -> Value:
    """The place along an axis of the first element that equals a number; 0 where none does, for all
    are NaN.
    """
    n = x.shape[axis]
    numbers = operations.arange(n).reshape(*(n if a == axis else 1 for a in range(x.ndim)))
    first = operations.min_(operations.where(x == number, numbers, n), axis)
    return values.lift(operations.where(first == n, 0, first))


max_, min_ = _extreme("max"), _extreme("min")


def _arg(name: str) -> Callable:
    fn = getattr(operations, name)

    def function(
        input: tensor, axis: Any, tie_break_left: Any = True, keep_dims: Any = False
    ) -> tensor:
        return _place(fn, input, axis, keep_dims, name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Where the {name[3:]}imum is; the first of equals."
    return member(function)


argmax, argmin = _arg("argmax"), _arg("argmin")


@member
def reduce(input: Any, axis: Any, combine_fn: Callable, keep_dims: Any = False) -> Any:
    """A reduction by a function of scalars; of a tuple of tensors by one of twice as many."""
    many = isinstance(unwrap(input), (tuple, list))
    tiles = [block(x, "reduce") for x in (unwrap(input) if many else (input,))]
    flat = [_along(x, axis, "reduce") for x in tiles]
    found = combining.reduce(
        tuple(x for x, _ in flat), flat[0][1], combined(combine_fn, len(tiles) == 1)
    )
    results = tuple_(_kept(r, tiles[0].shape, axis, keep_dims) for r in found)
    return results if many else results[0]


@member
def associative_scan(input: Any, axis: Any, combine_fn: Callable, reverse: Any = False) -> Any:
    """An inclusive prefix scan by a function of scalars."""
    many = isinstance(unwrap(input), (tuple, list))
    tiles = tuple(block(x, "associative_scan") for x in (unwrap(input) if many else (input,)))
    at = axis_in(axis, tiles[0].ndim, "associative_scan")
    combine = combined(combine_fn, len(tiles) == 1)
    found = combining.scan(tiles, at, combine, bool(unwrap(reverse)))
    results = tuple_(map(tensor, found))
    return results if many else results[0]


def _running(fn: Callable, input: tensor, axis: Any, reverse: Any) -> tensor:
    x = block(input, fn.__name__)
    found = fn(x, axis_in(axis, x.ndim, fn.__name__), bool(unwrap(reverse)))
    return tensor(values.cast(found, x.dtype))


@member
def cumsum(input: tensor, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> tensor:
    """The running sum along an axis."""
    x = _float32_of_bfloat16(input)
    return _running(operations.cumsum, cast(x, _sum_type(x.dtype, dtype)), axis, reverse)


@member
def cumprod(input: tensor, axis: Any = 0, reverse: Any = False) -> tensor:
    """The running product along an axis."""
    return _running(operations.cumprod, _float32_of_bfloat16(input), axis, reverse)


def _last(x: Tile, dim: Any, what: str) -> int:
    """The axis that is sorted: the last one."""
    at = x.ndim - 1 if unwrap(dim) is None else axis_in(dim, x.ndim, what)
    if at != x.ndim - 1:
        fail(f"tl.{what} sorts the last axis only; transpose the block before")
    return at


@member
def sort(x: tensor, dim: Any = None, descending: Any = False) -> tensor:
    """The elements of the last axis in order."""
    value = block(x, "sort")
    return tensor(operations.sort(value, _last(value, dim, "sort"), bool(unwrap(descending))))


bitonic_merge = sort  # a merge of two sorted halves is a sort of them


@member
def topk(x: tensor, k: Any, dim: Any = None, descending: Any = True) -> tensor:
    """The k largest elements of the last axis, in descending order; or the smallest, ascending.
    Where there are more, they have the type of an extreme.
    """
    up, some = not unwrap(descending), x.value.shape[-1:] != (unwrap(k),)
    x = _widened(x) if some else x
    value = block(_reversed(x) if up else x, "topk")
    found = tensor(operations.topk(value, unwrap(k), _last(value, dim, "topk")))  # type: ignore[arg-type]
    return _reversed(found) if up else found


def _reversed(x: tensor) -> tensor:
    """Other elements in the opposite order; twice, the same ones again."""
    return ~x if x.dtype.is_int() else -x


@member
def histogram(input: tensor, num_bins: Any, mask: Any = None) -> tensor:
    """How often each of 0 to num_bins - 1 occurs."""
    chosen = unwrap(mask)
    value = block(input, "histogram")
    at = None if chosen is None else broadcast(to_tensor(chosen), value.shape).value
    return tensor(operations.histogram(value, unwrap(num_bins), at))


@member
def softmax(
    x: tensor, dim: Any = None, keep_dims: Any = False, ieee_rounding: Any = False
) -> tensor:
    """exp(x - max) / sum along an axis (the first)."""
    axis = 0 if unwrap(dim) is None else unwrap(dim)
    powers = exp(arithmetic("sub", x, max_(x, axis, keep_dims=True)))
    return fdiv(powers, sum_(powers, axis, keep_dims=True), ieee_rounding)


def map_elementwise(scalar_fn: Callable, *args: Operand, pack: Any = 1) -> Any:
    """A function of scalars on each element. Refused: tkc has no branches for single elements."""
    fail(
        "tl.map_elementwise: tkc has no branches of single elements; write tl.where, which computes"
        " both sides"
    )
