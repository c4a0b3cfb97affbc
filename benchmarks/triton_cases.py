"""Kernels of other projects, unmodified, as `triton_kernels` races them: how each is called.

Nothing of those projects is here: a case loads a file of a checkout, or imports a package of one,
and calls its public functions on random operands. A case is made in a process where the name
`triton` means Triton, and in one where it means tkc.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

Run = Callable[[], Any]  # one call of the kernels; gives a tensor, or several

# How suites are found in a folder of checkouts: what is put on Python's path, by suite
PATHS = {
    "tutorials": "triton/python/tutorials",
    "liger": "liger/src",
    "fla": "fla",
    "mamba": "mamba",
    "flash-attn": "flash",
    "sglang": "sglang",
}
# Packages whose own `__init__` wants extensions that are compiled, or imports models for half a
# minute: only the folder is taken
BARE = {"mamba": ("mamba_ssm",), "flash-attn": ("flash_attn",), "fla": ("fla", "fla.ops")}
# Packages that most cases of a suite import
PACKAGES = {
    "liger": ("liger_kernel.transformers.functional",),
    "fla": ("fla.ops", "fla.modules"),
}


@dataclass(frozen=True)
class Case:
    suite: str
    name: str
    make: Callable[[Operands], Run]

    @property
    def title(self) -> str:
        return f"{self.suite} {self.name}"


CASES: list[Case] = []


def case(suite: str, name: str) -> Callable[[Callable], Callable]:
    def add(make: Callable[[Operands], Run]) -> Callable:
        CASES.append(Case(suite, name, make))
        return make

    return add


class Operands:
    """Random tensors, the same for everyone. root: the folder of checkouts. scale: extents given to
    `of` are divided by it, for a trial on a small machine.
    """

    def __init__(self, root: Path, device: str = "cuda", scale: int = 1):
        import torch

        self.root, self.device, self.scale, self.torch = root, device, scale, torch
        torch.manual_seed(0)

    def of(self, extent: int, least: int = 64) -> int:
        return max(extent // self.scale, least)

    def normal(self, *shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
        x = self.torch.randn(*shape, device=self.device).to(getattr(self.torch, dtype))
        return x.requires_grad_(grad)

    def zeros(self, *shape: int, dtype: str = "bfloat16") -> Any:
        return self.torch.zeros(*shape, device=self.device, dtype=getattr(self.torch, dtype))

    def index(self, limit: int, *shape: int) -> Any:
        return self.torch.randint(0, limit, shape, device=self.device)

    def tutorial(self, name: str) -> ModuleType:
        """A script of the tutorials without what it runs: up to its last definition and the names
        given right after it, and no statement that is only called."""
        path = self.root / PATHS["tutorials"] / name
        tree = ast.parse(path.read_text(), str(path))
        end = max(i for i, s in enumerate(tree.body) if _is_definition(s)) + 1
        while end < len(tree.body) and _is_name(tree.body[end]):
            end += 1
        module = sys.modules[path.stem] = ModuleType(path.stem)
        module.__file__ = str(path)
        for statement in tree.body[:end]:
            if isinstance(statement, (ast.Expr, ast.Assert)) or _reports(statement):
                continue
            code = compile(ast.Module([statement], []), str(path), "exec")
            try:
                exec(code, module.__dict__)
            except (ImportError, AttributeError) as e:  # of what is plotted, or of other GPUs
                print(f"{name}: line {statement.lineno} left out: {e}", file=sys.stderr)
        return module

    def package(self, name: str, suite: str) -> ModuleType:
        """A module of a package of a checkout; of BARE without what the package itself imports."""
        folder = str(self.root / PATHS[suite])
        if folder not in sys.path:
            sys.path.insert(0, folder)
        for bare in BARE.get(suite, ()):
            if bare not in sys.modules:
                made = sys.modules[bare] = ModuleType(bare)
                made.__path__ = [str(Path(folder, *bare.split(".")))]
                made.__version__ = "0"  # type: ignore[attr-defined]  # what modules in it ask for
        return importlib.import_module(name)

    def kernels(self, file: str, suite: str) -> ModuleType:
        """The kernels of a file of a checkout, without what else it defines and imports."""
        path = self.root / PATHS[suite] / file
        tree = ast.parse(path.read_text(), str(path))
        kept = [s for s in tree.body if _imports_triton(s) or _is_kernel(s)]
        module = sys.modules[path.stem] = ModuleType(path.stem)
        module.__file__ = str(path)
        exec(compile(ast.Module(kept, []), str(path), "exec"), module.__dict__)
        return module


def _imports_triton(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import) and all(
        alias.name in ("triton", "triton.language") for alias in statement.names
    )


def _is_kernel(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and any(
        ast.unparse(d) == "triton.jit" for d in statement.decorator_list
    )


def _is_definition(statement: ast.stmt) -> bool:
    named = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
    return named and not _reports(statement)


def _is_name(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and not isinstance(statement.value, ast.Call)


def _reports(statement: ast.stmt) -> bool:
    """Whether it measures, or tests."""
    if not isinstance(statement, ast.FunctionDef):
        return False
    words = [ast.unparse(d) for d in statement.decorator_list]
    return any("perf_report" in w or "pytest" in w for w in words)


def backward(o: Operands, function: Callable[[], Any], *leaves: Any) -> Run:
    """The gradients of what a function gives (the first of several results)."""
    out = function()
    out = out[0] if isinstance(out, tuple) else out
    grad = o.torch.randn(out.shape, device=out.device).to(out.dtype)
    return lambda: o.torch.autograd.grad(out, leaves, grad, retain_graph=True)


# ---- Triton's tutorials
@case("tutorials", "01 vector add, 2^26")
def _(o: Operands) -> Run:
    f = o.tutorial("01-vector-add.py")
    x, y = (o.normal(o.of(1 << 26), dtype="float32") for _ in range(2))
    return lambda: f.add(x, y)


@case("tutorials", "02 softmax, 8192 x 4096")
def _(o: Operands) -> Run:
    f = o.tutorial("02-fused-softmax.py")
    x = o.normal(o.of(8192), o.of(4096), dtype="float32")
    return lambda: f.softmax(x)


@case("tutorials", "03 product, 4096^3")
def _(o: Operands) -> Run:
    f, n = o.tutorial("03-matrix-multiplication.py"), o.of(4096)
    a, b = (o.normal(n, n, dtype="float16") for _ in range(2))
    return lambda: f.matmul(a, b)


@case("tutorials", "04 dropout, 2^26")
def _(o: Operands) -> Run:
    f, x = o.tutorial("04-low-memory-dropout.py"), o.normal(o.of(1 << 26), dtype="float32")
    return lambda: f.seeded_dropout(x, p=0.5, seed=123)


def _layer_norm(o: Operands) -> tuple[Run, tuple]:
    f = o.tutorial("05-layer-norm.py")
    rows, columns = o.of(4096), o.of(8192)
    leaves = tuple(o.normal(*s, dtype="float16", grad=True) for s in ((rows, columns), (columns,)))
    x, w, b = (*leaves, o.normal(columns, dtype="float16", grad=True))
    return lambda: f.LayerNorm.apply(x, (columns,), w, b, 1e-5), (x, w, b)


@case("tutorials", "05 layer norm, 4096 x 8192")
def _(o: Operands) -> Run:
    return _layer_norm(o)[0]


@case("tutorials", "05 layer norm, backward")
def _(o: Operands) -> Run:
    run, leaves = _layer_norm(o)
    return backward(o, run, *leaves)


def _attention(o: Operands, causal: bool, width: int) -> tuple[Run, tuple]:
    f, n = o.tutorial("06-fused-attention.py"), o.of(4096, 128)
    q, k, v = (o.normal(4, o.of(32, 2), n, width, dtype="float16", grad=True) / 2 for _ in range(3))
    return lambda: f.attention(q, k, v, causal, width**-0.5, False), (q, k, v)


@case("tutorials", "06 attention, 64 wide, causal")
def _(o: Operands) -> Run:
    return _attention(o, True, 64)[0]


@case("tutorials", "06 attention, 128 wide")
def _(o: Operands) -> Run:
    return _attention(o, False, 128)[0]


@case("tutorials", "06 attention, 64 wide, causal, backward")
def _(o: Operands) -> Run:
    run, leaves = _attention(o, True, 64)
    return backward(o, run, *leaves)


def _allocate(size: int, alignment: int, stream: int | None) -> Any:
    """Memory for descriptors that a kernel makes."""
    import torch

    return torch.empty(size, device="cuda", dtype=torch.int8)


def _grouped(o: Operands, descriptors: bool) -> Run:
    """The kernel alone: the tutorial's own function copies addresses to the GPU at every call."""
    f, torch = o.tutorial("08-grouped-gemm.py"), o.torch
    sides = [o.of(n, 128) for n in (2048, 1024, 512, 256)]
    a, b, c = ([o.normal(n, n, dtype="float16") for n in sides] for _ in range(3))
    pointers = [torch.tensor([x.data_ptr() for x in g], device=o.device) for g in (a, b, c)]
    numbers = [
        torch.tensor([n for n in sides for _ in range(3)], dtype=torch.int32, device=o.device)
        for _ in range(2)
    ]
    given = (*pointers, *numbers, len(sides))

    def run() -> list[Any]:
        assert a and b  # kept: the kernel has only their addresses
        if descriptors:
            f.triton.set_allocator(_allocate)
            f.triton_tma_perf_fn(*given, dtype=torch.float16)
        else:
            f.triton_perf_fn(*given)
        return c

    return run


@case("tutorials", "08 grouped product")
def _(o: Operands) -> Run:
    return _grouped(o, False)


@case("tutorials", "08 grouped product, descriptors")
def _(o: Operands) -> Run:
    return _grouped(o, True)


def _persistent(o: Operands, name: str, transposed: bool, *args: Any) -> Run:
    f, n = o.tutorial("09-persistent-matmul.py"), o.of(4096, 256)
    a, b = (o.normal(n, n, dtype="float16") for _ in range(2))
    if not transposed:
        b = b.T
    return lambda: getattr(f, name)(a, b, *args)


@case("tutorials", "09 product")
def _(o: Operands) -> Run:
    return _persistent(o, "matmul", False)


@case("tutorials", "09 persistent product")
def _(o: Operands) -> Run:
    return _persistent(o, "matmul_persistent", False)


@case("tutorials", "09 product, descriptors")
def _(o: Operands) -> Run:
    return _persistent(o, "matmul_tma", True, False)


@case("tutorials", "09 persistent product, descriptors")
def _(o: Operands) -> Run:
    return _persistent(o, "matmul_tma_persistent", True, False)
