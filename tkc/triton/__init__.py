"""Triton's kernels, unmodified, on tkc.

    import tkc.triton as triton
    import tkc.triton.language as tl

or, before other packages import `triton`,

    import tkc.triton
    tkc.triton.install()
"""

from __future__ import annotations

from typing import Any

from tkc.triton import backends, compiler, knobs, language, runtime, testing, tools
from tkc.triton.compiler import compile
from tkc.triton.errors import CompilationError, OutOfResources, TritonError
from tkc.triton.installation import install, uninstall
from tkc.triton.runtime.allocation import set_allocator
from tkc.triton.runtime.arguments import MockTensor, TensorWrapper, reinterpret
from tkc.triton.runtime.autotuner import Autotuner, Config, Heuristics, autotune, heuristics
from tkc.triton.runtime.jit import JITFunction, KernelInterface, constexpr_function, jit

__version__ = "3.7.1"

__all__ = [
    "Autotuner",
    "CompilationError",
    "Config",
    "Heuristics",
    "JITFunction",
    "KernelInterface",
    "MockTensor",
    "OutOfResources",
    "TensorWrapper",
    "TritonError",
    "autotune",
    "backends",
    "cdiv",
    "compile",
    "compiler",
    "constexpr_function",
    "heuristics",
    "install",
    "jit",
    "knobs",
    "language",
    "next_power_of_2",
    "reinterpret",
    "runtime",
    "set_allocator",
    "testing",
    "tools",
    "uninstall",
]


@constexpr_function
def cdiv(x: Any, y: Any) -> Any:
    """The quotient of two numbers, rounded up."""
    return (x + y - 1) // y


@constexpr_function
def next_power_of_2(n: int) -> int:
    """The smallest power of 2 that is n or more."""
    return 1 << (n - 1).bit_length() if n > 0 else 0
