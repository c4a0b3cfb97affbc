"""The plan of the house: who may import whom, how long a file may be, and that no driver is imported below the runtime."""
import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "tkc"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = {"tools": 5, "kernels": 5, "runtime": 4, "compiler": 3, "language": 2, "passes": 2, "codegen": 2, "sim": 2, "ir": 1, "errors": 0}


@cache
def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it, type checking excepted."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import): found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level: found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "tkc" and len(parts) > 1 else None


def wrong(path: Path):
    """The imports of a file that the plan forbids."""
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if own == "__init__": return
    for module in imported(path):
        other = room(module)
        upward = other in FLOORS and FLOORS[other] > FLOORS[own]
        device = FLOORS[own] < FLOORS["runtime"] and module.split(".")[0] in ("cuda", "torch", "cupy")
        if upward or device or own == "ir" and other not in (None, "ir", "errors"): yield f"{path.relative_to(PACKAGE)} imports {module}"


def test_imports_run_downward(): assert not [w for p in FILES for w in wrong(p)]


def test_no_file_is_too_long(): assert not [f"{p}: {n} lines" for p in FILES if (n := len(p.read_text().splitlines())) > 600]


def test_only_the_driver_imports_cuda():
    assert [str(p.relative_to(PACKAGE)) for p in FILES if any(m.split(".")[0] == "cuda" for m in imported(p))] == ["runtime/driver.py"]
    assert not [p for p in FILES if {"torch", "cupy", "jax"} & {m.split(".")[0] for m in imported(p)}]


def test_click_is_imported_by_the_command_line_alone():
    assert [str(p.relative_to(PACKAGE)) for p in FILES if "click" in imported(p)] == ["tools/cli.py"]
