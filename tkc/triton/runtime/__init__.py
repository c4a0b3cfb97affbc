"""`triton.runtime`: kernels, tuning, the driver."""

from __future__ import annotations

from tkc.triton.errors import OutOfResources
from tkc.triton.runtime.arguments import MockTensor, TensorWrapper, reinterpret
from tkc.triton.runtime.autotuner import Autotuner, Config, Heuristics, autotune, heuristics
from tkc.triton.runtime.driver import driver
from tkc.triton.runtime.jit import JITFunction, KernelInterface

__all__ = [
    "Autotuner",
    "Config",
    "Heuristics",
    "JITFunction",
    "KernelInterface",
    "MockTensor",
    "OutOfResources",
    "TensorWrapper",
    "autotune",
    "driver",
    "heuristics",
    "reinterpret",
]
