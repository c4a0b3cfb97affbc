"""`python docs/generate.py`: renews the tables in docs/*.md from the code, so that they cannot
drift from it.

A table stands between two comments, `<!-- table: NAME -->` and `<!-- end -->`; TABLES says how each
is made. What a table says of an operation, a type, a field or a pass is the first paragraph of its
docstring, or the comment on its line or above it. tests/test_architecture.py fails where a table
is old; `--check` does the same.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tkc.ir import elementwise, plan, shared, threads, tile, types, verify  # noqa: E402
from tkc.language.signature import Options  # noqa: E402
from tkc.passes import pipeline  # noqa: E402


# --------------------------------------------------------------------------------------------------
def first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def meaning(cls: type) -> str:
    """Its own docstring's first paragraph: one inherited from a base says nothing of it."""
    return first_paragraph(cls.__dict__.get("__doc__"))


def levels(op: type) -> str:
    """Where an operation is permitted: "0–4", "3"."""
    found = [i for i, permitted in enumerate(verify.LEVELS) if op in permitted]
    return f"{found[0]}–{found[-1]}" if len(found) > 1 else str(found[0]) if found else "none"


def markdown(header: tuple[str, ...], rows) -> str:
    def line(cells):
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    return "\n".join([line(header), line(("---",) * len(header)), *map(line, rows)])


def code(text: str) -> str:
    return f"`{text}`"


# --------------------------------------------------------------------------------------------------
def operations(ops: tuple[type, ...]) -> str:
    """Name, text form, levels, meaning. In a form, `[x]` is any number of operands and `x?` an
    optional one, announced by its name.
    """

    def form(op):
        return code(op.__form__.replace("@", "")) if op.__form__ else ""

    return markdown(
        ("operation", "operands and bare properties", "levels", "meaning"),
        ((code(op.name), form(op), levels(op), meaning(op)) for op in ops),
    )


def functions() -> str:
    """The element-wise functions, one row for each arity and domain."""
    groups: dict[tuple, list[str]] = {}
    for f in elementwise.FUNCTIONS.values():
        groups.setdefault((f.arity, f.domain, f.truth), []).append(code(f"tile.{f.name}"))
    return markdown(
        ("operands", "of", "gives", "operations"),
        (
            (
                str(arity),
                domain,
                "a truth value" if truth else "the operands' type",
                " ".join(names),
            )
            for (arity, domain, truth), names in groups.items()
        ),
    )


def type_table() -> str:
    return markdown(
        ("type", "meaning"),
        (
            (
                code(
                    "!" * issubclass(t, types.TypeAttribute)
                    + "#" * (not issubclass(t, types.TypeAttribute))
                    + t.name
                ),
                meaning(t),
            )
            for t in types.TYPES
        ),
    )


def _comments(source: str) -> dict[str, str]:
    """What is said of each field of a class: the comment on its line, or the lines of comment
    directly above it.
    """
    found: dict[str, str] = {}
    above: list[str] = []
    for line in source.splitlines():
        if field := re.match(r"    (\w+): [^#]*(?:#\s*(.*))?$", line):
            found[field[1]] = field[2] or " ".join(above)
        comment = re.match(r"    #\s*(.*)$", line)
        above = [*above, comment[1]] if comment else []
    return found


def fields(cls: type, without: tuple[str, ...] = ()) -> str:
    """The fields of a dataclass, with the comments on their lines or `name: …` in its docstring."""
    comments = _comments(inspect.getsource(cls))
    names_of = "|".join(f.name for f in dataclasses.fields(cls))
    name = rf"(?:{names_of})"
    # text, names, text, names, text …
    told = re.split(rf"(?:^|\s)({name}(?:, {name})*): ", inspect.cleandoc(cls.__doc__ or ""))
    for names, text in zip(told[1::2], told[2::2], strict=True):
        comments |= {name: " ".join(text.split()) for name in names.split(", ")}

    def default(f):
        return (
            code(repr(f.default))
            if f.default is not dataclasses.MISSING
            else "`()`"
            if f.default_factory is not dataclasses.MISSING
            else ""
        )

    return markdown(
        ("field", "type", "default", "meaning"),
        (
            (code(f.name), code(f.type), default(f), comments.get(f.name, ""))
            for f in dataclasses.fields(cls)
            if f.name not in without
        ),
    )


def passes() -> str:
    """The pipeline in order. A pass that is named there and not yet written says so."""

    def contract(name):
        path = ROOT / "tkc" / "passes" / f"{name.replace('-', '_')}.py"
        return (
            first_paragraph(ast.get_docstring(ast.parse(path.read_text()))).removeprefix(
                f"{name}: "
            )
            if path.exists()
            else "not written yet"
        )

    return markdown(
        ("pass", "contract"), ((code(name), contract(name)) for name in pipeline.PIPELINE)
    )


def _call(function: Callable) -> str:
    """Its parameters with their defaults."""
    s = inspect.signature(function)
    return str(
        s.replace(
            parameters=[p.replace(annotation=p.empty) for p in s.parameters.values()],
            return_annotation=s.empty,
        )
    )


def language(*modules: str) -> Callable[[], str]:
    """The public names of modules: how each is called, and the first paragraph of its docstring."""

    def table() -> str:
        import tkc

        rows = []
        for name, (where, attribute) in tkc._NAMES.items():
            if where not in modules:
                continue
            value = getattr(import_module(where), attribute)
            try:
                call = _call(value) if not inspect.isclass(value) else ""
            except (TypeError, ValueError):
                call = ""
            rows.append((code(f"tkc.{name}{call}"), first_paragraph(value.__doc__)))
        return markdown(("name", "meaning"), rows)

    return table


TABLES: dict[str, Callable[[], str]] = {
    **{
        f"language-{name}": language(f"tkc.language.{name}")
        for name in ("memory", "control", "random", "inline", "arrays")
    },
    "language-peers": language("tkc.runtime.peers", "tkc.language.peers", "tkc.runtime.simulate"),
    "language-derivative": language("tkc.language.derivative", "tkc.runtime.lifting"),
    "language-operations": language("tkc.language.operations", "tkc.language.combining"),
    "language-special": language("tkc.language.special"),
    "language-launches": language(
        "tkc.runtime.jit",
        "tkc.runtime.handed",
        "tkc.runtime.launch_cache",
        "tkc.runtime.autotune",
        "tkc.runtime.export",
        "tkc.ir.target",
        "tkc.language.names",
        "tkc.language.values",
    ),
    "language-errors": language("tkc.errors", "tkc.runtime.tracebacks"),
    "functions": functions,
    "elementwise": lambda: operations(elementwise.OPERATIONS[len(elementwise.CLASSES) :]),
    "tile": lambda: operations(tile.OPERATIONS),
    "shared": lambda: operations(shared.OPERATIONS),
    "threads": lambda: operations(threads.OPERATIONS),
    "types": type_table,
    "plan": lambda: fields(plan.Plan),
    "dot-plan": lambda: fields(plan.DotPlan),
    "load-plan": lambda: fields(plan.LoadPlan),
    "passes": passes,
    "options": lambda: fields(Options, without=("extra",)),
}


def renewed(text: str) -> str:
    """The document with every table made anew. Raises KeyError at a table that nobody knows how to
    make.
    """
    return re.sub(
        r"<!-- table: (\S+) -->\n.*?<!-- end -->",
        lambda m: f"<!-- table: {m[1]} -->\n{TABLES[m[1]]()}\n<!-- end -->",
        text,
        flags=re.S,
    )


def main(check: bool) -> int:
    old = [
        path
        for path in sorted((ROOT / "docs").glob("*.md"))
        if renewed(path.read_text()) != path.read_text()
    ]
    for path in old:
        if check:
            print(f"{path.relative_to(ROOT)} is older than the code; run python docs/generate.py")
        else:
            path.write_text(renewed(path.read_text()))
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
