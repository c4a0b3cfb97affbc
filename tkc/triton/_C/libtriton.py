"""`triton._C.libtriton`: the vendors' products that Triton's tutorials compare with. Of Triton's
own compiler there is nothing: a name that is asked for is refused.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tkc.triton.errors import Unsupported
from tkc.triton.runtime.driver import framework


class CublasLt:
    """Products by cuBLAS, which torch calls. workspace: bytes on the GPU; torch has its own."""

    def __init__(self, workspace: Any = None):
        self.workspace = workspace

    def matmul(self, a: Any, b: Any, c: Any) -> None:
        """c = a bᵀ, of a (M, K), b (N, K) and c (M, N) of one type of 16 or 8 bits."""
        self._product(a, b, c)

    def gemm(self, a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float) -> None:
        """d = alpha a bᵀ + beta c, of a (M, K), b (N, K), c and d (M, N)."""
        framework().addmm(c, a, b.T, beta=beta, alpha=alpha, out=d)

    def _product(self, a: Any, b: Any, c: Any) -> None:
        torch = framework()
        if a.element_size() > 1:
            torch.matmul(a, b.T, out=c)
            return
        one = torch.ones((), device=a.device)
        c.copy_(torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.float16))


nvidia = SimpleNamespace(cublas=SimpleNamespace(CublasLt=CublasLt))


class _Absent:
    """A part of Triton's library that tkc has nothing for."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(
            f"triton._C.libtriton.{self._name}.{name} is of Triton's own compiler; tkc has its IR,"
            " passes and code under tkc"
        )


amd, ir, passes, llvm, interpreter, getenv = map(
    _Absent, ("amd", "ir", "passes", "llvm", "interpreter", "getenv")
)
