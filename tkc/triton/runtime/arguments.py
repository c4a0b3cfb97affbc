"""What stands for an array at a launch: one whose elements are taken as another type, and none."""

from __future__ import annotations

import math
from typing import Any

from tkc.runtime.arrays import ArrayInfo, contiguous
from tkc.triton.language.constants import unwrap
from tkc.triton.language.types import dtype, of_library
from tkc.triton.runtime.forms import Wrapped


class TensorWrapper(Wrapped):
    """An array whose elements are taken as another type of the same width."""

    def __init__(self, base: Any, dtype: dtype):
        self.base, self.dtype, self.device, self.shape = base, dtype, base.device, base.shape
        self.data = base.data

    @property
    def is_cuda(self) -> bool:
        """Whether it is in a GPU's memory."""
        return self.base.is_cuda

    def data_ptr(self) -> int:
        return self.base.data_ptr()

    def stride(self, *args: int) -> Any:
        return self.base.stride(*args)

    def element_size(self) -> int:
        return self.base.element_size()

    def numel(self) -> int:
        return self.base.numel()

    def cpu(self) -> TensorWrapper:
        return TensorWrapper(self.base.cpu(), self.dtype)

    def to(self, device: Any) -> TensorWrapper:
        return TensorWrapper(self.base.to(device), self.dtype)

    def copy_(self, other: TensorWrapper) -> None:
        self.base.copy_(other.base)

    def clone(self) -> TensorWrapper:
        return TensorWrapper(self.base.clone(), self.dtype)

    def new_empty(self, sizes: Any) -> TensorWrapper:
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)

    def __str__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """An array whose elements are taken as another type of the same width."""
    inner = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    into = of_library(unwrap(dtype))
    if into is None or not hasattr(inner, "data_ptr"):
        raise TypeError(f"cannot reinterpret a {type(tensor).__name__} as {dtype}")
    return inner if of_library(inner.dtype) == into else TensorWrapper(inner, into)


class MockTensor:
    """An element type in place of an array, for `warmup`. device: -1 stands for host memory."""

    def __init__(self, dtype: Any, shape: Any = (1 << 20,), device: int = -1):
        self.dtype, self.shape, self.device = dtype, tuple(shape), device

    @staticmethod
    def wrap_dtype(arg: Any) -> Any:
        return MockTensor(arg) if of_library(arg) is not None else arg

    def stride(self) -> tuple[int, ...]:
        return contiguous(self.shape)

    @staticmethod
    def data_ptr() -> int:
        return 0

    def described(self) -> ArrayInfo:
        """An array that is only compiled for."""
        element = of_library(self.dtype)
        if element is None:
            raise TypeError(f"expected an element type, got {self.dtype!r}")
        return ArrayInfo(0, (math.prod(self.shape),), (1,), element.core.name, self.device)
