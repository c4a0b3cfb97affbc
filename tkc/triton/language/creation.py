"""Programs, constants and choices: what has no other tensor's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tkc.language import operations, values
from tkc.language.tracer import fail
from tkc.language.values import Tile
from tkc.triton.language import types
from tkc.triton.language.constants import tuple_, unwrap, unwrap_all
from tkc.triton.language.mathematics import minimum
from tkc.triton.language.types import dtype as Type
from tkc.triton.language.values import (
    Operand,
    cast,
    common_shape,
    is_number,
    known_type,
    member,
    promoted,
    scalar,
    tensor,
    to_tensor,
    truth,
)

TRITON_MAX_TENSOR_NUMEL = 1 << 20


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape of numbers known at compile time."""
    given = unwrap_all(shape)
    extents = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    for n in extents:
        if isinstance(n, tensor):
            fail(
                f"a shape is made of numbers known at compile time, got a tensor of {n}; make it a"
                " tl.constexpr"
            )
    return extents


def one_by_one(given: Sequence[Any]) -> tuple:
    """Extents or axes given one by one, or as one tuple or list."""
    first = unwrap(given[0]) if len(given) == 1 else None
    return tuple(first) if isinstance(first, (tuple, list)) else tuple(given)


def program_id(axis: int) -> tensor:
    """The index of this program along an axis of the grid."""
    return tensor(operations.program_id(unwrap(axis)))


def num_programs(axis: int) -> tensor:
    """The extent of the grid along an axis."""
    return tensor(operations.num_programs(unwrap(axis)))


def arange(start: int, end: int) -> tensor:
    """The integers from start to end - 1."""
    first, last = unwrap(start), unwrap(end)
    if not isinstance(first, int) or not isinstance(last, int):
        fail("the bounds of tl.arange must be tl.constexpr")
    if last <= first:
        fail(f"the end of tl.arange must be greater than its start, got {first} and {last}")
    if (last - first) & (last - first - 1):
        fail(f"the length of tl.arange must be a power of 2, got {last - first}")
    return tensor(operations.arange(first, last))


def full(shape: Any, value: Operand, dtype: Type) -> tensor:
    """A tensor with one value everywhere."""
    extents, into = shape_of(shape), known_type(dtype)
    x = scalar(value)
    if is_number(x):
        if into.is_int() and not into.is_bool():
            x = _wrapped(int(x), into)
        return tensor(values.number(x, into.core, extents))
    found = cast(tensor(x), into)
    return tensor(values.spread(found.value, extents))


def _wrapped(x: int, into: Type) -> int:
    """An integer as the bits of the type say."""
    bits = into.int_bitwidth
    x &= (1 << bits) - 1
    return x - (1 << bits) if into.is_int_signed() and x >> (bits - 1) else x


def zeros(shape: Any, dtype: Type) -> tensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype)


def zeros_like(input: tensor) -> tensor:
    """A tensor of zeros of another one's shape and type."""
    return zeros(input.shape, input.dtype)


def full_like(input: tensor, value: Operand) -> tensor:
    """A tensor of one value, of another one's shape and type."""
    return full(input.shape, value, input.dtype)


def where(condition: Operand, x: Operand, y: Operand) -> tensor:
    """x where the condition holds, else y."""
    chosen = to_tensor(truth(condition))
    left, right = unwrap(x), unwrap(y)
    pointers = [isinstance(v, tensor) and v.dtype.is_ptr() for v in (left, right)]
    if all(pointers):
        element = left.dtype
        left, right = cast(left, types.int64), cast(right, types.int64)
        return cast(where(chosen, left, right), element)
    a, b = promoted(left, right)
    shape = common_shape(chosen, a, b)
    condition_value = chosen.value
    if isinstance(condition_value, Tile):
        condition_value = values.spread(condition_value, shape)
    return tensor(
        values.lift(
            operations.where(
                condition_value, values.spread(a.value, shape), values.spread(b.value, shape)
            )
        )
    )


@member
def cdiv(x: Any, div: Any) -> Any:
    """The quotient, rounded up."""
    return (unwrap(x) + (unwrap(div) - 1)) // unwrap(div)


def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> tuple_:
    """Row-major indices of a matrix as those of column-major groups of size_g rows."""
    place, group = i * size_j + j, size_g * size_j
    first = (place // group) * size_g
    rows = minimum(to_tensor(size_i - first), size_g)
    place = place % group
    return tuple_((first + place % rows, place // rows))


def assume(cond: Any) -> None:
    """A promise that a condition holds."""
    c = unwrap(cond)
    if isinstance(c, tensor):
        operations.assume(values.lift(scalar(truth(c))))
    elif not c:
        fail("tl.assume of something false")


def static_assert(cond: Any, msg: str = "") -> None:
    """Fails the compilation unless the condition, known now, holds."""
    c = unwrap(cond)
    if isinstance(c, tensor):
        fail("tl.static_assert takes a condition known at compile time; use tl.device_assert")
    operations.static_assert(bool(c), str(unwrap(msg)))


def static_print(*args: Any, **options: Any) -> None:
    """Prints while the kernel is compiled."""
    print(*map(unwrap_all, args), **options)
