"""Views of arrays of jax. jax has none: its reshape, transposes and slices are copies, and what a
kernel wrote to a copy of a result would be lost. So results, and what is passed from launch to
launch, are allocated by jax and seen through NumPy's rules for views, which compute addresses and
never look at what is there: of a GPU's memory, too.

    out = zeros(x, (4, 6))           out.whole: jax's array;  out.reshape(24), out.T, out[1:] are
                                     the same memory
    given(out.swapaxes(0, 1))        the array of jax with what is there now

Where jax has no types of 64 bits (jax_enable_x64 is off), its array has words of 32 bits, two an
element, and of a result's elements it is given the lower one.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from math import prod
from typing import Any

import numpy as np


class HostView(np.ndarray):
    """Memory of the host. whole: the array of jax that it belongs to."""

    whole: Any = None

    def __array_finalize__(self, other) -> None:
        self.whole = getattr(other, "whole", None)

    @property
    def sharding(self) -> Any:
        return self.whole.sharding


class DeviceView(HostView):
    """Memory of a GPU: extents and strides may be read, elements not."""

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.ctypes.data, False),
            "version": 3,
        }


def zeros(like: Any, shape: tuple[int, ...], kind: np.dtype) -> HostView:
    """A view of a new array of jax, on the device of an array of jax or of a view."""
    extents, held = shape, kind
    if kind.itemsize > of_jax(kind).itemsize:
        extents, held = (*shape, 2), np.dtype("uint32")
    whole = import_module("jax.numpy").zeros(extents, held, device=like.sharding)
    whole = whole.block_until_ready()
    cls = HostView if next(iter(whole.devices())).platform == "cpu" else DeviceView
    size = prod(shape) * kind.itemsize
    memory: Any = (
        (ctypes.c_char * size).from_address(whole.unsafe_buffer_pointer()) if size else None
    )
    view = np.ndarray.__new__(cls, shape, kind, memory)
    view.whole = whole
    return view


def of_jax(kind: np.dtype) -> np.dtype:
    """The type that jax has for one of NumPy's: one of 32 bits for one of 64, as it is set."""
    dtypes = getattr(sys.modules["jax"], "dtypes", None)
    return kind if dtypes is None else np.dtype(dtypes.canonicalize_dtype(kind))


def _whole(view: HostView) -> Any:
    """The array of jax that a view belongs to, of elements."""
    if view.whole.dtype == view.dtype:
        return view.whole
    return view.whole[..., 0].view(of_jax(view.dtype))


def given(view: Any) -> Any:
    """The array of jax that a view shows all of, in another order of axes if need be; anything else
    as it is.
    """
    if not isinstance(view, HostView):
        return view
    whole = _whole(view)
    if view.shape == whole.shape and view.flags.c_contiguous:
        return whole
    order = sorted(range(view.ndim), key=lambda i: -view.strides[i])
    transposed = view.transpose(order)
    if view.size != whole.size or not transposed.flags.c_contiguous:
        raise RuntimeError(
            f"a result of shape {view.shape} and strides {view.strides} is not all of an array of"
            f" {whole.shape}"
        )
    return whole.reshape(transposed.shape).transpose(np.argsort(order))
