"""The library with arrays of cupy. There is none without a GPU: a stand-in has its rules, in host
memory. Views are views, sorting is always stable and takes no word for it, what is allocated is on
the current device.
"""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tests.gpu.sanitized import flat, library, numbers
from tests.kernels.checks import close, double

DEVICES = [0]  # the current one last


class Device:
    def __init__(self, number: int):
        self.id = number

    def __enter__(self):
        DEVICES.append(self.id)

    def __exit__(self, *exception):
        DEVICES.pop()


class Array(np.ndarray):
    __module__ = "cupy"
    number = 0

    def __array_finalize__(self, other):
        self.number = getattr(other, "number", 0)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def device(self):
        return Device(self.number)

    def argsort(self, axis=-1):
        return np.asarray(self).argsort(axis, kind="stable").view(Array)


def made(array: np.ndarray) -> Array:
    array = array.view(Array)
    array.number = DEVICES[-1]
    return array


@pytest.fixture
def cupy(monkeypatch):
    module = ModuleType("cupy")
    module.ndarray, module.broadcast_to = (
        Array,
        lambda x, shape: np.broadcast_to(x, shape, subok=True),
    )
    for name, make in (("empty", np.empty), ("zeros", np.zeros), ("full", np.full)):
        setattr(module, name, lambda *args, make=make: made(make(*args)))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.mark.parametrize("name", library())
def test_the_library(name, cupy):
    """Of arrays of device 1, while 0 is the current one."""

    def give(*args, **kwargs):
        with Device(1):
            return made(numbers(*args, **kwargs))

    for got, right in zip(flat(library()[name](give)), flat(library()[name](numbers)), strict=True):
        assert (
            type(got) is Array
            and got.number == 1
            and got.shape == right.shape
            and got.dtype == right.dtype
        )
        close(
            np.asarray(got),
            double(right),
            "bfloat16" if right.dtype.itemsize == 2 else "float32",
            ulps=16,
        )
