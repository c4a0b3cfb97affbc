"""docs/extending.md is followed to the letter in a copy of the sources: a new function, a new pass
and a new target work everywhere at once.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tkc.codegen.ptx import ptxas
from tkc.passes.pipeline import PIPELINE

ROOT = Path(__file__).resolve().parents[1]

# file -> (what stands there, what is put in its place): the steps of "An element-wise function"
FUNCTION = {
    "tkc/ir/elementwise.py": ('" reciprocal"', '" reciprocal square"'),
    "tkc/sim/level0.py": ('"sqrt": np.sqrt,', '"sqrt": np.sqrt, "square": np.square,'),
    "tkc/codegen/ptx/mathematics.py": (
        '"sqrt": _simple("sqrt.rn.f32", "sqrt.rn.f64"),',
        (
            '"sqrt": _simple("sqrt.rn.f32", "sqrt.rn.f64"), "square": lambda e, t, x:'
            ' e.w.op("mul.rn.f64" if bits(t) == 64 else "mul.rn.f32", "b64" if bits(t) == 64 else'
            ' "b32", x, x),'
        ),
    ),
    "tkc/codegen/cpu/functions.py": (
        '    "neg": Floats.neg,\n',
        '    "neg": Floats.neg,\n    "square": lambda m, a: m.mul(a, a),\n',
    ),
    "tkc/language/operations.py": (
        "def isnan(",
        (
            'def square(x: Operand) -> Value:\n    """x * x, rounded once."""\n'
            '    return apply("square", x)\n\n\ndef isnan('
        ),
    ),
    "tkc/__init__.py": (" isnan", " square isnan"),
    "tests/operations/elementwise.py": (
        '"neg": (1, np.negative, 0, 0),',
        '"neg": (1, np.negative, 0, 0), "square": (1, np.square, 0, 0),',
    ),
}
PASS = '''"""twice-negated: -(-x) is x.

    %a = tile.neg %x ; %b = tile.neg %a        becomes        %x
"""
from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tkc.ir.elementwise import CLASSES
from tkc.passes import PassContext


def run(module: ModuleOp, context: PassContext) -> None:
    for op in module.walk():
        if isinstance(op, CLASSES["neg"]) and isinstance(op.arg.owner, CLASSES["neg"]):
            op.result.replace_all_uses_with(op.arg.owner.arg)
            context.decisions.append("twice-negated: a value is what it was")
'''
STEPS = {
    "tkc/passes/pipeline.py": (
        '    "simplify",',
        '    "twice-negated", "simplify",',
    ),
    "tkc/ir/target.py": (
        '    Target(\n        "sm_89",',
        (
            '    Target("sm_87", 87, "7.4", 166912, "a10", threads=1536),\n'
            '    Target(\n        "sm_89",'
        ),
    ),
}
USER = """
import numpy as np, tkc, os
@tkc.jit
def k(x, o, N: tkc.constexpr): tkc.store(o, (0,), -(-tkc.square(tkc.load(x, (0,), (N,)))))

x = np.arange(7, dtype=np.float32)
for how in ("", "TKC_INTERPRET", "TKC_SIM", "TKC_VALIDATE"):
    o = np.zeros(7, np.float32)
    if how: os.environ[how] = "1"
    k[1](x, o, 7)
    if how: del os.environ[how]
    assert (o == x * x).all(), how
for target in ("sm_80", "sm_87", "sm_90a"):
    c = k.compile("f32[7]", "f32[7]", 7, target=target)
    assert f".target {target}" in c.ptx, c.ptx
    assert "mul.rn.f32" in c.ptx and "neg.f32" not in c.ptx, c.ptx
    assert "twice-negated: a value is what it was" in c.decisions
    if ASSEMBLER: assert c.resources.clean
"""

# rows of the table in which the new function stands alone: test_operations.py runs the other ones
ROWS = """
import numpy as np
from tests.operations import elementwise
from tests.operations.case import FLOATS, run
from tests.operations.table import CASES, MORE

every = {case.name: case for case in CASES + MORE}
row, random = elementwise.FLOAT["square"], np.random.default_rng(0)
for dtype in FLOATS:
    for extent in (16, 100):
        assert "square" in every[f"functions of {dtype} {extent}"].arguments(random)["FUNCTIONS"]
elementwise.FLOAT = {"square": row}
for dtype in FLOATS:
    for extent in (16, 100):
        for how in ("level 0", "cpu"):
            run(elementwise.float_case(dtype, extent), how)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extended")
    for name in ("tkc", "docs", "tests"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=shutil.ignore_patterns("__pycache__", "tables", "kept"),
        )
    for path, (old, new) in (FUNCTION | STEPS).items():
        text = (folder / path).read_text()
        assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
        (folder / path).write_text(text.replace(old, new))
    (folder / "tkc/passes/twice_negated.py").write_text(PASS)
    return folder


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("TKC_")}
        | {"PYTHONPATH": str(folder), "TKC_CACHE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_a_function_a_pass_and_a_target(copy):
    (copy / "user.py").write_text(USER.replace("ASSEMBLER", str(ptxas.find("ptxas") is not None)))
    said = run(copy, "user.py")
    assert f"{len(PIPELINE) + 1} passes change nothing in ieee and ring arithmetic" in said


def test_the_table_of_operations_has_it_for_every_type(copy):
    (copy / "rows.py").write_text(ROWS)
    run(copy, "rows.py")


def test_the_documents_follow(copy):
    run(copy, "docs/generate.py")
    for page, words in (
        ("ir.md", "`tile.square`"),
        ("language.md", "`tkc.square(x)` | x * x, rounded once."),
        ("architecture.md", "| `twice-negated` | -(-x) is x. |"),
    ):
        assert words in (copy / "docs" / page).read_text(), page


def test_the_guide_names_every_file_that_was_changed():
    text = (ROOT / "docs" / "extending.md").read_text()
    assert not [
        path
        for path in (*FUNCTION, *STEPS)
        if path not in text
        and path != "tkc/codegen/cpu/functions.py"
        or path.rpartition("/")[2] not in text
    ]
