"""`triton.profiler.viewer`: it would read the records of a profiler that tkc does not have."""

from __future__ import annotations

from typing import Any

from tkc.triton.errors import Unsupported


def _refuse(name: str) -> None:
    raise Unsupported(
        f"triton.profiler.viewer.{name}: tkc records nothing for Triton's profiler; measure with"
        " triton.testing.do_bench, `tkc triton FILE.py` or NVIDIA's profilers"
    )


def parse(metrics: list[str], filename: str, *args: Any, **options: Any) -> Any:
    """Would read a record. Raises Unsupported."""
    _refuse("parse")


def print_tree(*args: Any, **options: Any) -> None:
    """Would print a record. Raises Unsupported."""
    _refuse("print_tree")
