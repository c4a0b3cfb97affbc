"""`triton.compiler`: kernels compiled for types, without arrays, as Inductor does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tkc.errors import CompileError
from tkc.triton.backends import Compiler
from tkc.triton.language.types import str_to_ty
from tkc.triton.runtime.arguments import MockTensor
from tkc.triton.runtime.compiled import HINTS, CompiledKernel
from tkc.triton.runtime.driver import GPUTarget, active, properties

CompilationError = CompileError
DIVISOR = 16  # what Triton's attribute of an argument says


class ASTSource:
    """A kernel with the types of its arguments, its compile-time values, and attributes by the
    number of an argument: `{(0,): [["tt.divisibility", 16]]}`.
    """

    def __init__(self, fn: Any, signature: dict, constexprs: dict | None = None, attrs: Any = None):
        self.fn, self.signature = fn, signature
        self.constants, self.attrs = dict(constexprs or {}), attrs

    def is_divisible(self, number: int) -> bool:
        """Whether an argument is a multiple of 16."""
        found = self.attrs.get((number,), ()) if isinstance(self.attrs, Mapping) else ()
        return ["tt.divisibility", DIVISOR] in [list(a) for a in found]

    def given(self, device: int) -> dict[str, Any]:
        """Arguments of these types by name, on a device (-1: in host memory)."""
        names = self.fn.arg_names
        found = {
            names[key[0]] if isinstance(key, tuple) else key: value
            for key, value in self.constants.items()
        }
        for i, name in enumerate(names):
            word = self.signature.get(name, "constexpr")
            if name in found or word == "constexpr":
                continue
            element = str_to_ty(word)
            if element.is_ptr():
                found[name] = MockTensor(element.element_ty, device=device)
            else:
                found[name] = _number(element, self.is_divisible(i))
        return found


def compile(
    src: ASTSource, target: GPUTarget | None = None, options: dict[str, Any] | None = None
) -> CompiledKernel:
    """Compiles a kernel for types (`*fp32`, `i32`) and values, without arrays. Raises
    CompileError.
    """
    place = active.get_current_target() if target is None else target
    device = active.get_current_device() if place.backend == "cuda" and active.is_active() else -1
    given = options or {}
    kept = {n: given[n] for n in HINTS if given.get(n) is not None}
    compiled = src.fn.warmup(
        grid=(1,), **src.given(device), **kept, assertions=bool(given.get("debug"))
    )
    compiled.src, compiled.place = src, place.backend
    return compiled


def _number(element: Any, divisible: bool) -> Any:
    """A number that stands for any of its type."""
    if element.is_floating():
        return 3.0
    low = 3 if element.int_bitwidth <= 32 else (1 << 33) + 3
    return low * DIVISOR if divisible else low


def make_backend(target: GPUTarget) -> Compiler:
    """What compiles for a target. Raises CompileError where nothing does."""
    if not Compiler.supports_target(target):
        raise CompileError(f"tkc compiles for cuda and cpu, not for {target.backend}")
    return Compiler(target)


def max_shared_mem(device: int = 0) -> int:
    """Bytes of shared memory that a block may have."""
    return properties(device)["max_shared_mem"]


__all__ = [
    "ASTSource",
    "CompilationError",
    "CompiledKernel",
    "GPUTarget",
    "compile",
    "make_backend",
    "max_shared_mem",
]
