"""`triton.compiler`: names that packages import; compilation goes through kernels."""

from __future__ import annotations

from typing import Any, NoReturn

from tkc.errors import CompileError
from tkc.triton.language.types import str_to_ty
from tkc.triton.runtime.arguments import MockTensor
from tkc.triton.runtime.compiled import CompiledKernel
from tkc.triton.runtime.driver import GPUTarget, properties

CompilationError = CompileError


class ASTSource:
    """A kernel with the types of its arguments and its compile-time values."""

    def __init__(self, fn: Any, signature: dict, constexprs: dict | None = None, attrs: Any = None):
        self.fn, self.signature = fn, signature
        self.constants, self.attrs = dict(constexprs or {}), attrs


def compile(src: ASTSource, target: Any = None, options: dict | None = None) -> CompiledKernel:
    """Compiles a kernel for types (`*fp32`, `i32`) and values, without arrays."""
    names = src.fn.arg_names
    given: dict[str, Any] = {}
    for key, value in src.constants.items():
        given[names[key[0]] if isinstance(key, tuple) else key] = value
    for name, word in src.signature.items():
        if name in given or word == "constexpr":
            continue
        element = str_to_ty(word)
        given[name] = MockTensor(element.element_ty) if element.is_ptr() else _number(element)
    return src.fn.warmup(grid=(1,), **given)


def _number(element: Any) -> Any:
    """A number that stands for any of its type."""
    return 3.0 if element.is_floating() else 3 if element.int_bitwidth <= 32 else (1 << 33) + 3


def make_backend(target: Any) -> NoReturn:
    """Refused: tkc compiles by passes of its own."""
    raise CompileError("triton.compiler.make_backend: tkc has no backends of Triton's kind")


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
