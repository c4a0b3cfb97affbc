"""The files that decide what an ordinary function of users gives."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tkc.runtime.fingerprint import Fingerprint, Unstable, is_ours_by_name
from tkc.runtime.toolchain import digest, is_installed


def sources(function: Callable[..., Any]) -> bytes | None:
    """What decides what an ordinary function gives: its file and all that it imports, but for tkc
    itself and libraries, with its defaults and what it encloses. None where that has no spelling.
    """
    try:
        found = Fingerprint().spell(
            [function.__defaults__, function.__kwdefaults__, _enclosed(function)]
        )
        files = _files(Path(inspect.getfile(function)), function.__module__)
    except (AttributeError, ImportError, OSError, TypeError, Unstable, ValueError):
        return None
    return found + digest(files).encode()


def _enclosed(function: Callable[..., Any]) -> list[object]:
    """What the cells of a closure hold, of those that were assigned."""
    cells = getattr(function, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells if cell != types.CellType()]


def _files(path: Path, module: str) -> list[tuple[str, bytes]]:
    """The files that a module's file reaches by its imports, by name, its own first."""
    texts, waiting = {module: path.read_bytes()}, [(module, path)]
    while waiting:
        name, path = waiting.pop()
        is_package = path.name == "__init__.py"
        package = name if is_package else name.rpartition(".")[0]
        for imported in _imported(texts[name], package):
            if imported not in texts and (found := _file_of_users(imported)):
                texts[imported] = found.read_bytes()
                waiting.append((imported, found))
    return sorted(texts.items())


# an import, whose names may stand on several lines; parsing a file would take longer than a choice
IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+)?import\b[ \t]*"
    rb"(\([^)]*\)|[^\n#]*(?<=\\)\n[^\n#]*|[^\n#]*)",
    re.MULTILINE,
)


@cache
def _imported(text: bytes, package: str) -> tuple[str, ...]:
    """Names that a file's imports may find modules under, wherever they stand in it."""
    names: list[str] = []
    for origin, listed in IMPORT.findall(text):
        words = [part.split()[:1] for part in re.sub(rb"[()\\]|#.*", b"", listed).split(b",")]
        found = [word.decode() for first in words for word in first]
        if origin:
            base = origin.decode()
            base = importlib.util.resolve_name(base, package) if base[0] == "." else base
            found = [base, *(f"{base}.{name}" for name in found)]
        names += found
    return tuple(dict.fromkeys(names))


@cache
def _file_of_users(module: str) -> Path | None:
    """The file of a module that is neither a library's nor of those that `toolchain` has."""
    if is_ours_by_name(module) or module.split(".")[0] in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return None if is_installed(spec.origin) else Path(spec.origin)
