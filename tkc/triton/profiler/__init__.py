"""`triton.profiler`: what programs say to Triton's profiler, so that they run as they are.

Names of scopes and sessions are taken, and nothing is recorded: `tkc.triton.testing.do_bench`,
`tkc triton FILE.py` and NVIDIA's own profilers measure what tkc launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from typing import Any

__all__ = [
    "activate",
    "cpu_timed_scope",
    "deactivate",
    "enter_scope",
    "exit_scope",
    "finalize",
    "profile",
    "scope",
    "start",
    "state",
]


class scope(ContextDecorator):
    """A named part of a program, as `with` or as a decorator. metrics: numbers of it, by name."""

    def __init__(self, name: str, metrics: Mapping[str, Any] | None = None):
        self.name, self.metrics = name, dict(metrics or {})

    def __enter__(self) -> scope:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing: nothing was begun."""


class cpu_timed_scope(scope):
    """A scope whose time on the host would be measured."""


class state(scope):
    """A named state of the program."""


def enter_scope(
    name: str, triton_op: bool = False, metrics: Mapping[str, Any] | None = None
) -> int:
    """Begins a scope; gives its number, which is that of no record."""
    return 0


def exit_scope(name: str = "", triton_op: bool = False) -> int:
    """Ends a scope."""
    return 0


def start(name: str | None = None, **options: Any) -> int:
    """Begins a session that records nothing; gives its number."""
    return 0


def activate(session: int | None = None) -> None:
    """Goes on with a session."""


def deactivate(session: int | None = None, flushing: bool = False) -> None:
    """Interrupts a session."""


def finalize(session: int | None = None, output_format: str = "hatchet") -> None:
    """Ends a session. No file is written."""


def profile(fn: Callable | None = None, **options: Any) -> Callable:
    """A decorator: the function as it is."""
    return fn if fn is not None else lambda f: f
