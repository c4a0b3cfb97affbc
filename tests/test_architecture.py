"""The rules of docs/architecture.md that a machine can check: who imports whom, how long a file is,
whether the documents are true.
"""

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import tkc
from tests.sources import nodes, tree
from tests.tokens import at_most, count
from tkc.ir import elementwise, shared, threads, tile
from tkc.ir.text import parse, show
from tkc.ir.verify import verify

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "tkc").rglob("*.py"))
WRITTEN = sorted(
    p
    for folder in ("tkc", "examples", "benchmarks", "docs", "tests")
    for p in (ROOT / folder).rglob("*.py")
)

# A room may import itself and the rooms listed with it. `public` is tkc/__init__.py, `errors`
# tkc/errors.py, which everybody may.
BELOW = {
    "errors": set(),
    "progress": set(),
    "objects": set(),
    "devices": {"errors"},
    "ir": {"devices", "errors"},
    "language": {"objects", "ir", "errors"},
    "passes": {"ir", "devices", "errors"},
    "codegen": {"ir", "errors"},
    "sim": {"ir", "errors"},
    "timing": {"passes", "ir", "errors"},
    "compiler": {"progress", "language", "passes", "timing", "codegen", "sim", "ir", "errors"},
    "runtime": {
        "compiler",
        "objects",
        "devices",
        "progress",
        "language",
        "passes",
        "timing",
        "codegen",
        "sim",
        "ir",
        "errors",
    },
    "fuzz": {
        "public",
        "runtime",
        "compiler",
        "language",
        "passes",
        "codegen",
        "sim",
        "ir",
        "errors",
    },
    # the language of other people's kernels, above ours
    "triton": {"runtime", "compiler", "language", "codegen", "ir", "errors"},
    "integrations": {"public", "kernels"},
    "tools": {
        "devices",
        "kernels",
        "triton",
        "fuzz",
        "runtime",
        "compiler",
        "language",
        "passes",
        "timing",
        "codegen",
        "sim",
        "ir",
        "errors",
        "progress",
        "public",
    },
    "kernels": {"public"},
    "public": {"runtime", "language", "errors"},
}
# Imports inside a function that run only when it is called, and go upward on purpose: (file, room).
UPWARD = {
    ("tkc/compiler.py", "runtime"): "Compiled.report is laid out by the runtime",
    (
        "tkc/language/values.py",
        "public",
    ): "the error of an unknown attribute names the public function of that name",
}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT / "tkc").parts
    return "public" if parts == ("__init__.py",) else parts[0].removesuffix(".py")


@cache
def modules(path: Path) -> set[str]:
    """Every module a file imports, in functions and under TYPE_CHECKING too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide the room; write tkc.…"
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module == "tkc"
                else {node.module}
            )
    return found


def room_of_module(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "tkc":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in BELOW else "public"


def test_imports_run_downward():
    wrong = []
    for path in SOURCES:
        own, name = room(path), str(path.relative_to(ROOT))
        assert own in BELOW, f"{own} is no room; docs/architecture.md and BELOW say which there are"
        reached = {room_of_module(m) for m in modules(path)} - {None, own}
        wrong += [
            f"{name} imports {r}; {own} may import {', '.join(sorted(BELOW[own])) or 'nothing'}"
            for r in reached - BELOW[own]
            if (name, r) not in UPWARD
        ]
    assert not wrong, "\n".join(wrong)


def imported_files() -> dict[str, set[str]]:
    """Of every file the files it imports, in functions too, but for what only the type checker
    imports.
    """
    paths = {str(p.relative_to(ROOT).with_suffix("")).replace("/", "."): p for p in SOURCES}
    paths = {name.removesuffix(".__init__"): p for name, p in paths.items()}

    def is_for_the_checker(node: ast.AST) -> bool:
        return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"

    def imports(path: Path) -> set[str]:
        found, types = set(), [node for node in nodes(path) if is_for_the_checker(node)]
        left_out = {inner for node in types for inner in ast.walk(node)}
        for node in nodes(path):
            if isinstance(node, ast.Import) and node not in left_out:
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node not in left_out:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in paths else node.module for name in names}
        return found

    return {name: imports(path) & set(paths) - {name} for name, path in paths.items()}


def test_no_files_import_one_another():
    try:
        graphlib.TopologicalSorter(imported_files()).prepare()
    except graphlib.CycleError as e:
        pytest.fail(" is imported by ".join(e.args[1]))


def private(path: Path) -> list[str]:
    """Names with an underscore that a file takes from another module of ours: `from tkc.x import
    _y`, `x._y` of a module x.
    """
    ours, found = set(), []
    for node in nodes(path):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tkc"):
            continue
        found += [
            f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")
        ]
        ours |= {
            alias.asname or alias.name
            for alias in node.names
            if (ROOT / f"{node.module}.{alias.name}".replace(".", "/")).with_suffix(".py").exists()
        }

    def named(node):
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ours
        )

    return found + [
        f"{node.value.id}.{node.attr}"
        for node in nodes(path)
        if named(node) and node.attr.startswith("_") and not node.attr.startswith("__")
    ]


def test_what_is_private_to_a_file_stays_there():
    wrong = [f"{path.relative_to(ROOT)} takes {name}" for path in SOURCES for name in private(path)]
    assert not wrong, "\n".join(wrong)


def importers(*packages: str) -> list[str]:
    return [
        str(p.relative_to(ROOT / "tkc"))
        for p in SOURCES
        if set(packages) & {m.split(".")[0] for m in modules(p)}
    ]


def test_one_file_knows_the_driver():
    assert importers("cuda") == ["runtime/driver.py"]


def test_three_files_know_torch_and_none_another_framework():
    of_ranks = [f"kernels/distributed/torch_{name}.py" for name in ("group", "ops")]
    assert importers("torch") == [*of_ranks, "kernels/torch_ops.py"]
    assert not importers("cupy", "jax")


def test_only_commands_parse_command_lines():
    assert importers("click", "argparse") == ["fuzz/__main__.py", "tools/cli.py"]


def test_examples_speak_the_public_language():
    for path in (ROOT / "examples").glob("[!_]*.py"):
        assert not [m for m in modules(path) if m.startswith("tkc.") and m != "tkc.kernels"], (
            f"{path.name} reaches behind `import tkc`"
        )


def kernels_of(path: Path) -> dict[str, int]:
    """Statements of each kernel of a file, its `def` included: a call that the formatter breaks
    into several lines is one, and so is an `if` of one statement.
    """

    def is_one(node: ast.AST) -> bool:
        return isinstance(node, ast.If) and len(node.body) == 1 and not node.orelse

    def statements(kernel: ast.FunctionDef) -> int:
        inside = list(ast.walk(kernel))
        return sum(isinstance(n, ast.stmt) for n in inside) - sum(map(is_one, inside))

    kernels = [
        n
        for n in nodes(path)
        if isinstance(n, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in n.decorator_list)
    ]
    return {n.name: statements(n) for n in kernels}


def test_kernels_are_short():
    """The library's have at most 40 statements, the product of the examples 10 and attention 25."""
    long = {
        f"{p.name}: {name}": n
        for p in (ROOT / "tkc" / "kernels").rglob("*.py")
        for name, n in kernels_of(p).items()
        if n > 40
    }
    assert not long
    assert kernels_of(ROOT / "examples" / "matmul.py")["matmul"] <= 10
    assert kernels_of(ROOT / "examples" / "attention.py")["attention"] <= 25


def test_compiling_loads_no_driver():
    """Also not by a detour: tracing and every pass, in a process of its own."""
    program = (
        "import tkc, sys, tkc.compiler, tkc.passes.pipeline as p\n"
        "for name in p.PIPELINE: p.module_of(name)\n"
        "print([m for m in ('cuda', 'torch', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("folder, limit", [("tkc", 8200), ("tests", 10500), ("benchmarks", 5000)])
def test_a_file_is_one_idea(folder, limit):
    """Counted in tokens, so that nothing is gained by packing. The limits are those of the largest
    files that are one idea today.
    """
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in (ROOT / folder).rglob("*.py")}
    sizes = {name: count(text) for name, text in texts.items() if at_most(text) > limit}
    assert not {name: size for name, size in sizes.items() if size > limit}


def test_every_module_says_what_it_is():
    mute = [
        p
        for p in WRITTEN
        if "tests" not in p.relative_to(ROOT).parts
        and p.read_text()
        and not ast.get_docstring(tree(p))
    ]
    assert not mute, f"no docstring: {', '.join(map(str, mute))}"


# --------------------------------------------------------------------------------------------------
def generator():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["ir.md", "architecture.md", "language.md"])
def test_the_tables_are_those_of_the_code(name):
    text = (ROOT / "docs" / name).read_text()
    assert generator().renewed(text) == text, (
        f"docs/{name} is older than the code; run python docs/generate.py"
    )


def test_every_operation_is_documented():
    text, generate = (ROOT / "docs" / "ir.md").read_text(), generator()
    for op in (*elementwise.OPERATIONS, *tile.OPERATIONS, *shared.OPERATIONS, *threads.OPERATIONS):
        assert f"`{op.name}`" in text
        assert generate.meaning(op), f"{op.__name__} has no docstring that says what it does"


def test_every_public_name_and_every_option_is_documented():
    """In the tables of the language, each with what it means."""
    from tkc.runtime.specialize import OPTIONS

    text = (ROOT / "docs" / "language.md").read_text()
    rows = [
        line.strip("| ").split(" | ")
        for table in re.findall(
            r"<!-- table: (?:language-\w+|options) -->\n.*?<!-- end -->", text, re.S
        )
        for line in table.splitlines()[3:-1]
    ]
    assert len(rows) > 90 and not [row for row in rows if len(row) < 2 or not row[-1].strip("` ")]
    named = {re.match(r"`(?:tkc\.)?(\w+)", row[0])[1] for row in rows}
    assert set(OPTIONS) <= named
    elsewhere = {name for name in tkc.__all__ if name not in named}
    assert not [
        name
        for name in elsewhere
        if not re.search(
            rf"\b{name}\b",
            "".join(p.read_text() for p in (ROOT / "docs").glob("*.md"))
            + (ROOT / "README.md").read_text(),
        )
    ]


def test_every_attribute_of_a_compiled_kernel_is_documented():
    from benchmarks.harness import example

    text, (kernel, arguments, _) = (
        (ROOT / "docs" / "ir.md").read_text(),
        example("matmul").kernels()[0],
    )
    (compiled,) = parse(kernel.compile(**arguments, target="sm_90a").ir("final")).body.block.ops
    assert not [a for a in compiled.attributes if f"`{a}`" not in text]


def test_every_environment_variable_is_documented():
    read = {
        v for p in SOURCES for v in re.findall(r'environ\b[^\n]*?"(TKC_[A-Z_]+)"', p.read_text())
    }
    assert read and not [
        v for v in read if f"| `{v}` |" not in (ROOT / "docs" / "architecture.md").read_text()
    ]


def test_every_package_is_described():
    """Those of tkc/triton have the names of Triton's."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {file.parent for file in (ROOT / "tkc").rglob("*.py") if file.name != "__init__.py"}
    names = {folder.relative_to(ROOT).as_posix() for folder in folders} - {"tkc"}
    own = [name for name in names if not name.startswith("tkc/triton/")]
    assert not [name for name in own if f"`{name}/`" not in text and f"`{name}`" not in text]


def test_every_pass_is_written_and_says_what_it_does():
    for name in generator().pipeline.PIPELINE:
        path = ROOT / "tkc" / "passes" / f"{name.replace('-', '_')}.py"
        assert ast.get_docstring(tree(path)).startswith(f"{name}: ")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_ir_in_the_documents_parses_verifies_and_prints_back(path):
    for text in re.findall(r"```mlir\n(.*?)```", path.read_text(), re.S):
        module = parse(text, path.name)
        verify(module, path.name)
        assert show(parse(show(module))) == show(module)


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_files_that_the_documents_name_exist(path):
    text = path.read_text()
    named = set(re.findall(r"`((?:tkc|examples|benchmarks|docs|tests)/[\w/.]+)`", text)) | {
        f"docs/{m}" for m in re.findall(r"\]\((\w+\.md)\)", text)
    }
    assert not [name for name in named if not (ROOT / name).exists()]
    for module in set(re.findall(r"`(tkc(?:\.[a-z]\w*)+)`", text)):
        file = ROOT / module.replace(".", "/")
        assert (
            file.is_dir()
            or file.with_suffix(".py").exists()
            or module.removeprefix("tkc.") in tkc.__all__
        ), f"{path.name} names {module}"
