"""tkc in Triton's place: `import triton` of any package then gives tkc.triton."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tkc.errors import Error

OWN = "tkc.triton"
# submodules of triton -> those of tkc.triton that have their names
ELSEWHERE = {
    "language.core": "language",
    "language.standard": "language",
    "language.semantic": "language",
    "language.math": "language.mathematics",
    "language.extra.libdevice": "language.extra.libdevice",
    "language.extra.cuda.libdevice": "language.extra.libdevice",
    "language.extra.cuda.utils": "language.extra.cuda",
    "runtime.errors": "errors",
    "compiler.errors": "errors",
    "compiler.compiler": "compiler",
    "compiler.code_generator": "compiler",
    "backends.compiler": "compiler",
    "runtime._allocation": "runtime.allocation",
}


class NotInstalled(Error):
    """Triton itself was imported before."""


class _Loader(Loader):
    """Gives a module of tkc under Triton's name."""

    def __init__(self, name: str):
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it ran under its own name."""


class _Finder(MetaPathFinder):
    """Finds triton and its submodules in tkc."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "triton":
            return None
        name = own_name(fullname)
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is not None and not e.name.startswith(OWN):
                raise
            return None
        return ModuleSpec(fullname, _Loader(name), is_package=hasattr(found, "__path__"))


def own_name(fullname: str) -> str:
    """tkc's module for one of Triton's."""
    rest = fullname.partition(".")[2]
    rest = ELSEWHERE.get(rest, rest)
    return f"{OWN}.{rest}" if rest else OWN


_finder = _Finder()


def install() -> None:
    """From now on `import triton` gives tkc. Raises Error where Triton was imported before."""
    there = sys.modules.get("triton")
    if there is not None and there.__name__ != OWN:
        raise NotInstalled(
            "triton itself is imported already; call tkc.triton.install() before what imports it"
        )
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _compile_here()
    for name in ("", ".language", ".runtime", ".testing", ".compiler", ".tools"):
        sys.modules[f"triton{name}"] = importlib.import_module(f"{OWN}{name}")


def _compile_here() -> None:
    """Makes Inductor compile in this process: in workers of its own `triton` would be another."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if (settings := sys.modules.get("torch._inductor.config")) is not None:
        settings.compile_threads = 1  # type: ignore[attr-defined]  # it was read before


def uninstall() -> None:
    """`import triton` finds what it did before install."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in [n for n in sys.modules if n.partition(".")[0] == "triton"]:
        del sys.modules[name]
