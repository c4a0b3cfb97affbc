"""Arrays of torch, cupy, jax and NumPy by one set of names: what the functions of this library
allocate and reshape.

Nothing is imported that the caller has not imported: an array's own library makes its outputs, on
its own device. Element types have tkc's names ("bfloat16", "float8_e4m3").
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from math import prod
from typing import Any

import tkc

MAX_WORK = 100_000  # of NumPy's search for an element that two arrays share
Array = Any  # a tensor or array of torch, cupy, jax or NumPy

THEIRS = {
    "float8_e4m3": "float8_e4m3fn",
    "bool_": "bool",
}  # other libraries' names of our element types
OURS = {theirs: ours for ours, theirs in THEIRS.items()}


_libraries: dict[type, str] = {}  # of types seen before
# of element types, by the arrays' type: torch.compile reads those of tensors, and takes no table
# that holds another library's
_names: dict[type, dict[Any, str]] = {}


def library(x: Array) -> str:
    """ "torch", "cupy", "jax" or "numpy", an array's library. Raises LaunchError for others."""
    return _libraries.get(type(x)) or _libraries.setdefault(type(x), _library(x))


def _library(x: Array) -> str:
    name = type(x).__module__.partition(".")[0]
    name = {"jaxlib": "jax", "cupy_backends": "cupy", "tkc": "jax"}.get(
        name, name
    )  # ours: views of jax's
    if name in ("cupy", "jax", "numpy") and hasattr(x, "dtype"):
        return name
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    raise tkc.LaunchError(f"expected an array of torch, cupy, jax or NumPy, got {type(x).__name__}")


def is_traced(x: Any) -> bool:
    """Whether jax traces a value: it differentiates, compiles or maps what is computed of it."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, getattr(getattr(jax, "core", None), "Tracer", ()))


def dtype_of(x: Array) -> str:
    """tkc's name of the element type."""
    names = _names.setdefault(type(x), {})
    if (name := names.get(x.dtype)) is None:
        text = str(x.dtype).removeprefix("torch.")
        name = names[x.dtype] = OURS.get(text, text)
    return name


def _dtype(name: str, lib: str):
    theirs = THEIRS.get(name, name)
    if lib == "torch":
        return getattr(sys.modules["torch"], theirs)
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, theirs, theirs))


def _there(like: Array, lib: str) -> AbstractContextManager:
    """cupy allocates on the current device: the array's."""
    return like.device if lib == "cupy" else nullcontext()


def empty(like: Array, shape: Sequence[int] | None = None, dtype: str | None = None) -> Array:
    """An array whose elements are not set, of the library and on the device of `like`, contiguous;
    its shape and element type by default.
    """
    lib = library(like)
    shape, kind = (
        tuple(like.shape if shape is None else shape),
        (like.dtype if dtype is None else _dtype(dtype, lib)),
    )
    if lib == "torch":
        return like.new_empty(shape, dtype=kind)
    if lib == "jax":
        return import_module("tkc.kernels.views").zeros(like, shape, kind)
    with _there(like, lib):
        return import_module(lib).empty(shape, kind)


def zeros(like: Array, shape: Sequence[int] | None = None, dtype: str | None = None) -> Array:
    """The same, filled with zeros."""
    lib = library(like)
    shape, kind = (
        tuple(like.shape if shape is None else shape),
        (like.dtype if dtype is None else _dtype(dtype, lib)),
    )
    if lib == "torch":
        return like.new_zeros(shape, dtype=kind)
    if lib == "jax":
        return import_module("tkc.kernels.views").zeros(like, shape, kind)
    with _there(like, lib):
        return import_module(lib).zeros(shape, kind)


def full(like: Array, shape: Sequence[int], value: float, dtype: str) -> Array:
    """One number everywhere, likewise."""
    lib = library(like)
    if lib == "torch":
        return like.new_full(shape, value, dtype=_dtype(dtype, lib))
    if lib == "jax":
        return import_module("jax.numpy").full(
            shape, value, _dtype(dtype, lib), device=like.sharding
        )
    with _there(like, lib):
        return import_module(lib).full(shape, value, _dtype(dtype, lib))


def matrix(x: Array, columns: int | None = None) -> Array:
    """The array as rows of its last axis (or of `columns` elements); a view where its strides allow
    one.
    """
    columns = (x.shape[-1] if len(x.shape) else 1) if columns is None else columns
    rows = (
        prod(x.shape[:-1])
        if columns == (x.shape[-1] if len(x.shape) else 1)
        else prod(x.shape) // max(columns, 1)
    )
    return x if tuple(x.shape) == (rows, columns) else x.reshape((rows, columns))


def flat(x: Array) -> Array:
    """The array as one row; a view of a contiguous array."""
    return x if len(x.shape) == 1 else x.reshape((prod(x.shape),))


def written_out(x: Array) -> Array:
    """A tensor of torch, copied where its elements repeat (the gradient of a sum is one number with
    strides of 0): no tensor map and no wide load reads those.
    """
    return x.contiguous() if 0 in x.stride() else x


def contiguous(x: Array) -> Array:
    """The array itself if its elements lie one after the other, else a copy."""
    lib = library(x)
    if lib == "torch":
        return x.contiguous()
    return (
        x if lib == "jax" or x.flags.c_contiguous else x.copy(order="C")
    )  # of jax every array is, and views are of results


def all_contiguous(*arrays: Array | None) -> list:
    """`contiguous` of each that is given."""
    return [None if x is None else contiguous(x) for x in arrays]


def axes_in_memory(x: Array) -> tuple[int, ...]:
    """The axes in the order of memory: the one whose elements are farthest apart first."""
    strides = x.stride() if library(x) == "torch" else getattr(x, "strides", (0,) * len(x.shape))
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def permuted(x: Array, axes: tuple[int, ...]) -> Array:
    """A view with the axes in another order; the array itself where they have that order."""
    if axes == tuple(range(len(axes))):
        return x
    return x.permute(axes) if library(x) == "torch" else x.transpose(axes)


def last(x: Array, axis: int) -> Array:
    """The array with `axis` swapped to the end. Raises LaunchError where there is no such axis."""
    at, end = place_of(x, axis), len(x.shape) - 1
    return x if at == end else x.swapaxes(at, end)


def at_the_end(x: Array, axis: int) -> Array:
    """The array with `axis` behind the others, which keep their order. Raises LaunchError where
    there is no such axis.
    """
    at = place_of(x, axis)
    return permuted(x, (*(a for a in range(len(x.shape)) if a != at), at))


def place_of(x: Array, axis: int) -> int:
    """An axis, counted from the first. Raises LaunchError where there is no such axis."""
    library(x)
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise tkc.LaunchError(
            f"axis {axis} of an array of rank {rank}; it is {-rank} to {rank - 1}"
            if rank
            else "expected an array of rank 1 or more, got a scalar"
        )
    return axis % rank


def same_shape(**arrays: Array) -> None:
    """Raises LaunchError unless all arrays (None left out) have one shape."""
    given = [(name, tuple(x.shape)) for name, x in arrays.items() if x is not None]
    if any(shape != given[0][1] for _, shape in given):
        raise tkc.LaunchError(
            "expected one shape, got " + " and ".join(f"{n} of {list(s)}" for n, s in given)
        )


def floats(*arrays: Array | None) -> None:
    """Raises LaunchError where something (None left out) is no array, or one without float
    elements.
    """
    for x in arrays:
        if x is not None and library(x) and "float" not in (kind := dtype_of(x)):
            raise tkc.LaunchError(
                f"expected elements of a float type, got {kind}; convert the array"
            )


def expect(x: Array, shape: Sequence[int], name: str) -> None:
    """Raises LaunchError unless an array (or None) has this shape."""
    if x is not None and tuple(x.shape) != tuple(shape):
        raise tkc.LaunchError(f"{name}: expected the shape {list(shape)}, got {list(x.shape)}")


def _bytes(x: Array) -> Any:
    """The bytes of an array as NumPy's of the same extents and strides, never looked at: they may
    be a GPU's.
    """
    import numpy as np

    if isinstance(x, np.ndarray):
        return x
    if library(x) == "torch":
        size, start, strides = x.element_size(), x.data_ptr(), tuple(x.stride())
    else:
        size, start, strides = (
            x.dtype.itemsize,
            x.data.ptr,
            tuple(s // x.itemsize for s in x.strides),
        )
    reach = [(n - 1) * s * size for n, s in zip(x.shape, strides, strict=True)]
    before, behind = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + size
    memory: Any = (ctypes.c_char * (behind - before)).from_address(start + before)
    steps = tuple(s * size for s in strides)
    return np.ndarray(tuple(x.shape), f"V{size}", memory, -before, steps)


def _is_of_jax(x: Array) -> bool:
    """Whether jax alone knows where an array lies."""
    return library(x) == "jax" and not hasattr(x, "ctypes")


def share_memory(x: Array, y: Array) -> bool:
    """Whether an element of one array and an element of another share memory."""
    if 0 in x.shape or 0 in y.shape or _is_of_jax(x) or _is_of_jax(y):
        return False
    import numpy as np

    try:
        find: Any = np.shares_memory  # its annotations know max_work of two values alone
        return find(_bytes(x), _bytes(y), max_work=MAX_WORK)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(x: Array) -> bool:
    """Whether elements of an array may share memory: an axis does not step over all that those with
    shorter steps reach.
    """
    strides, reach = x.stride() if library(x) == "torch" else x.strides, 0
    for stride, n in sorted((abs(s), n) for s, n in zip(strides, x.shape, strict=True)):
        if n > 1 and stride <= reach:
            return 0 not in x.shape
        reach += (n - 1) * stride
    return False


def power(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << max(n - 1, 0).bit_length()
