"""The same elements under other shapes and orders."""

from __future__ import annotations

from typing import Any

from tkc.language import operations, values
from tkc.language.tracer import fail
from tkc.language.values import Tile
from tkc.triton.language.constants import tuple_, unwrap, unwrap_all
from tkc.triton.language.creation import one_by_one, shape_of
from tkc.triton.language.values import (
    Operand,
    common_shape,
    member,
    promoted,
    scalar,
    tensor,
    to_tensor,
)


def block(x: Any, what: str) -> Tile:
    """The block of a tensor that is one."""
    t = to_tensor(x)
    if not isinstance(t.value, Tile):
        fail(f"tl.{what} takes a block, got a scalar of {t.dtype}")
    return t.value


def axis_in(axis: Any, rank: int, what: str) -> int:
    """An axis, counted from the first."""
    found = unwrap(axis)
    if not isinstance(found, int) or not -rank <= found < rank:
        fail(f"tl.{what}: the axis is one of {-rank} to {rank - 1}, got {found!r}")
    return found % rank


@member
def reshape(input: tensor, *shape: Any, can_reorder: bool = False) -> tensor:
    """The same elements, in row-major order, under another shape."""
    extents, x = shape_of(one_by_one(shape)), to_tensor(input)
    if not extents:
        return tensor(values.lift(scalar(x)))
    if not isinstance(x.value, Tile):
        return tensor(values.spread(x.value, extents))
    return tensor(x.value.reshape(extents))


@member
def view(input: tensor, *shape: Any) -> tensor:
    """As reshape."""
    return reshape(input, *shape)


@member
def ravel(x: tensor, can_reorder: bool = False) -> tensor:
    """All elements along one axis."""
    return reshape(x, x.numel)


@member
def permute(input: tensor, *dims: Any) -> tensor:
    """The axes in another order."""
    order = unwrap_all(one_by_one(dims))
    return tensor(block(input, "permute").permute(*order))


@member
def trans(input: tensor, *dims: Any) -> tensor:
    """The axes in another order; of a matrix without one, exchanged."""
    order = unwrap_all(one_by_one(dims)) if dims else ()
    x = block(input, "trans")
    if not order:
        if x.ndim < 2:
            fail(f"tl.trans takes 2 axes and more, got {input}")
        order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return tensor(x.permute(*order))


@member
def expand_dims(input: Operand, axis: Any) -> tensor:
    """New axes of extent 1 at these places of the result."""
    x, places = to_tensor(input), unwrap_all(axis)
    given = list(places) if isinstance(places, (tuple, list)) else [places]
    rank = len(x.value.shape) + len(given)
    shape = list(x.value.shape)
    for place in sorted(axis_in(a, rank, "expand_dims") for a in given):
        shape.insert(place, 1)
    return reshape(x, shape)


@member
def squeeze(x: tensor, dim: Any) -> tensor:
    """Without an axis of extent 1."""
    shape = list(x.value.shape)
    place = axis_in(dim, len(shape), "squeeze")
    if shape.pop(place) != 1:
        fail(f"tl.squeeze: axis {place} of {x} is longer than 1")
    return reshape(x, shape)


@member
def unsqueeze(x: tensor, dim: Any) -> tensor:
    """With an axis of extent 1 more."""
    return expand_dims(x, dim)


@member
def broadcast_to(input: Operand, *shape: Any) -> tensor:
    """Stretched to a shape."""
    extents = shape_of(one_by_one(shape))
    x = to_tensor(input)
    if x.value.shape and len(x.value.shape) != len(extents):
        fail(f"cannot broadcast {x} to {list(extents)}: the ranks differ")
    if values.broadcast_shapes(x.value.shape, extents) != extents:
        fail(f"cannot broadcast {x} to {list(extents)}")
    return tensor(values.spread(x.value, extents))


def broadcast(input: Operand, other: Operand) -> tuple_:
    """Both stretched to their common shape."""
    a, b = to_tensor(input), to_tensor(other)
    shape = common_shape(a, b)
    return tuple_(tensor(values.spread(x.value, shape)) for x in (a, b))


def cat(input: tensor, other: tensor, can_reorder: bool = False, dim: Any = 0) -> tensor:
    """One behind the other along an axis."""
    x, y = block(input, "cat"), block(other, "cat")
    if x.dtype is not y.dtype:
        fail(f"tl.cat takes blocks of one type, got {input.dtype} and {other.dtype}")
    return tensor(operations.cat(x, y, axis=axis_in(dim, x.ndim, "cat")))


def join(a: Operand, b: Operand) -> tensor:
    """Two tensors as the two elements of a new last axis."""
    x, y = to_tensor(a), to_tensor(b)
    if x.dtype != y.dtype:
        x, y = promoted(x, y)
    return tensor(operations.join(x.value, y.value))


@member
def split(a: tensor) -> tuple_:
    """The two halves of a last axis of 2."""
    return tuple_(map(tensor, operations.split(block(a, "split"))))


def interleave(a: Operand, b: Operand) -> tensor:
    """The elements of both in turn along the last axis."""
    both = join(a, b)
    shape = both.value.shape
    return both if len(shape) == 1 else reshape(both, (*shape[:-2], 2 * shape[-2]))


@member
def flip(x: tensor, dim: Any = None) -> tensor:
    """The order of an axis (the last) reversed."""
    value = block(x, "flip")
    place = -1 if unwrap(dim) is None else unwrap(dim)
    return tensor(operations.flip(value, axis_in(place, value.ndim, "flip")))


@member
def gather(src: tensor, index: tensor, axis: Any) -> tensor:
    """src at the places that index gives along an axis."""
    x, at = block(src, "gather"), block(index, "gather")
    along = axis_in(axis, x.ndim, "gather")
    if at.ndim != x.ndim or not at.dtype.is_int:
        fail(f"tl.gather takes an index of integers of rank {x.ndim}, got {index}")
    return tensor(operations.gather(x, at, along))
