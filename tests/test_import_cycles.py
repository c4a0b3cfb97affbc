"""Files of tkc/ import one another in one direction, but for the cycles that are named here.

Imports inside functions and under TYPE_CHECKING count: a reader follows them too.
"""

import ast
from functools import cache
from pathlib import Path

from tests.sources import nodes

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tkc").rglob("*.py"))
}
# Each with the reason why it is meant, or "to be resolved".
MEANT = {
    frozenset(
        {
            "tkc.compiler",
            "tkc.runtime.report",
        }
    ): "Compiled.report asks the runtime for its page, inside a function",
}


def _imported(path: Path) -> set[str]:
    """The files that a file imports."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= within & FILES.keys() or {node.module}
            if within - FILES.keys():
                found.add(node.module)
    return found & FILES.keys()


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    """What a file imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@cache
def _cycles() -> set[frozenset[str]]:
    """The largest sets of files each of which reaches each other one."""
    imports = {name: _imported(path) for name, path in FILES.items()}
    reached = {name: _reached(name, imports) for name in FILES}
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in FILES
        if name in reached[name]
    }


def test_files_import_in_one_direction():
    new = [sorted(cycle) for cycle in _cycles() - MEANT.keys()]
    assert not new, f"files that import one another: {new}"


def test_the_named_cycles_are_still_there():
    gone = [sorted(cycle) for cycle in MEANT.keys() - _cycles()]
    assert not gone, f"no cycles any more: remove from MEANT: {gone}"
