"""Kernels that nobody had in mind, as somebody writes them who knows the language and nothing of
the compiler: no schedule in the program. `python -m benchmarks.unseen` checks, compiles and races
them (`__main__.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.unseen.operands import CASES, Called, Operands

FILES = ("products", "scores", "layers", "images", "sequences", "numbers")


def cases(only: str = "") -> dict[str, Callable[[Operands], Called]]:
    """All cases by name, or those whose name contains one of the words between commas."""
    for file in FILES:
        importlib.import_module(f"benchmarks.unseen.{file}")
    words = only.split(",")
    return {name: make for name, make in CASES.items() if any(word in name for word in words)}
