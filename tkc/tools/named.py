"""Kernels by name: FILE.py:NAME, or package.module:NAME of what is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tkc.errors import Error
from tkc.runtime.jit import JitFunction, Launchable


def kernel(spec: str) -> JitFunction:
    """The kernel NAME of FILE.py. Raises tkc.Error."""
    path, _, name = spec.rpartition(":")
    if not path:
        raise Error(f"{spec!r} names no kernel; write file.py:name")
    module = _file(path)
    found = getattr(module, name, None)
    if not isinstance(found, JitFunction):
        raise Error(f"{path} has no kernel {name!r}; it has {_names(module, JitFunction)}")
    return found


def launchable(spec: str) -> Launchable | Callable:
    """A kernel, a tuned kernel or a function that launches some, of a file or a module. Raises
    tkc.Error.
    """
    path, _, name = spec.rpartition(":")
    if not path:
        raise Error(f"{spec!r} names no kernel; write file.py:name, or tkc.kernels:softmax")
    module = _file(path) if path.endswith(".py") or "/" in path else _module(path)
    found = getattr(module, name, None)
    if not callable(found) or isinstance(found, type):
        raise Error(f"{path} has no kernel {name!r}; it has {_names(module, Launchable)}")
    return found


def _names(module: ModuleType, kind: type) -> str:
    """What a module offers of a kind; where it has none, its public functions."""
    names = [n for n, value in vars(module).items() if isinstance(value, kind)]
    offered = names or list(getattr(module, "__all__", ()))
    return ", ".join(offered) or "none"


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise Error(f"{name}: {e}; a file is named with its .py") from None


def _file(path: str) -> ModuleType:
    """The module of a source file, run; its folder is where it imports from."""
    source = Path(path)
    if not source.is_file():
        raise Error(f"{path}: no such file")
    sys.path.insert(0, str(source.resolve().parent))
    spec = importlib.util.spec_from_file_location(source.stem, source)
    if spec is None or spec.loader is None:
        raise Error(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.stem] = module
    try:
        spec.loader.exec_module(module)
    except Error:
        raise
    except Exception as e:
        raise Error(f"{path}: {type(e).__name__}: {e}") from None
    return module
