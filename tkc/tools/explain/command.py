"""`tkc explain`: from the words of the command line to the file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tkc.errors import Error
from tkc.progress import progress
from tkc.runtime.jit import Launchable
from tkc.tools.explain.explanation import gather
from tkc.tools.explain.page import rendered
from tkc.tools.explain.subject import subject
from tkc.tools.named import launchable
from tkc.tools.words import pairs


@dataclass(frozen=True)
class Made:
    """The file that was written; error: why the kernel does not compile, "" where it does."""

    path: Path
    error: str


def explain(
    spec: str,
    arguments: Sequence[str],
    options: Sequence[str],
    grid: tuple[int, ...] | None,
    target: str,
    launch: int,
    measure: bool,
    output: str | None,
) -> Made:
    """Writes the page about a kernel. Raises tkc.Error for words that name no launch of one."""
    from tkc.ir.target import TARGETS

    if target != "cpu" and target not in TARGETS:
        raise Error(f"unknown target {target!r}; there are {', '.join(TARGETS)} and cpu")
    found = launchable(spec)
    given = pairs(arguments, options, _named(found))
    about = subject(found, given, grid or _grid_beside(found), target, launch)
    path = Path(output or f"{about.kernel.__name__}.{target.replace(':', '-')}.html")
    if not path.parent.is_dir():
        raise Error(f"{path.parent} is no directory; name another file with -o")
    with progress(f"explaining {about.kernel.__name__} for {target}") as line:
        data = gather(about, measure, line.say)
    write(path, data)
    return Made(path, data["error"]["message"] if data["error"] else "")


def write(path: Path, data: dict[str, Any]) -> None:
    """Writes the page of what `gather` gives. Raises tkc.Error where the file cannot be written."""
    try:
        path.write_text(rendered(data))
    except OSError as e:
        raise Error(f"{path} cannot be written: {e.strerror}; name another with -o") from None


def _named(found: Launchable | Callable) -> SimpleNamespace:
    """What the words of the command line need of a kernel or function: its name, and those of its
    parameters.
    """
    if isinstance(found, Launchable):
        return SimpleNamespace(__name__=found.__name__, names=found.kernel.names)
    names = tuple(inspect.signature(found).parameters)
    return SimpleNamespace(__name__=getattr(found, "__name__", str(found)), names=names)


def _grid_beside(found: Launchable | Callable) -> Any:
    """The function `grid` of the kernel's file (`_grid` in the library's); None without one."""
    space = found.fn.__globals__ if isinstance(found, Launchable) else {}
    beside = space.get("grid", space.get("_grid"))
    return beside if callable(beside) or isinstance(beside, tuple) else None
