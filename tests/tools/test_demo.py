"""The demo over a small example: right, wrong and broken ones."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tkc.passes.pipeline import PIPELINE
from tkc.tools.demo import TARGETS, Row, demo, play

EXAMPLE = """
import numpy as np
import tkc

@tkc.jit
def twice(x, out, BLOCK: tkc.constexpr):
    m = tkc.program_id(0) * BLOCK
    tkc.store(out, (m,), tkc.load(x, (m,), (BLOCK,)) * {factor})

def cases(device):
    x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    yield {{"name": "NAME", "shape": (100,), "dtype": "float32", "tolerance": 1e-6, "bytes": 800,
           "run": lambda: twice[2](x, out, {block}),
           "error": lambda: float(abs(out - 2 * x).max())}}

def kernels(): return [(twice, {{"x": "f32[128]", "out": "f32[128]", "BLOCK": 64}}, 2)]
"""


def played(tmp_path: Path, name: str, factor="2", block="64") -> tuple[int, str]:
    (tmp_path / f"{name}.py").write_text(
        EXAMPLE.format(factor=factor, block=block).replace("NAME", name)
    )
    console = Console(file=io.StringIO(), width=200)
    return demo("cpu", tmp_path, tmp_path / "out", console=console), console.file.getvalue()


def test_a_right_example(tmp_path):
    code, text = played(tmp_path, "right_example")
    assert code == 0 and "GB/s" in text and "wrong" not in text, text
    written = {p.name for p in (tmp_path / "out" / "right_example").iterdir()}
    assert written - {"twice.sm_90a.cubin"} == {f"{t}.ptx" for t in TARGETS} | {
        f"{i:02}-{s}.mlir" for i, s in enumerate(["trace", *PIPELINE])
    } | {"twice.h", "twice.c", "twice.json", "twice.sm_90a.ptx"}


def test_a_wrong_result_fails_the_demo(tmp_path):
    code, text = played(tmp_path, "wrong_example", factor="3")
    assert code == 1 and "wrong" in text


def test_a_kernel_that_does_not_run_fails_the_demo(tmp_path):
    code, text = played(tmp_path, "broken_example", block="None")
    assert code == 1 and "NoneType" in text and "GB/s" not in text


def test_no_examples(tmp_path):
    from tkc.errors import Error

    with pytest.raises(Error, match="no example"):
        demo("cpu", tmp_path, None)


def test_a_row_is_right_only_within_its_tolerance():
    assert (
        Row("a", (1,), "f", 1, 0.1, 0.1).right
        and not Row("a", (1,), "f", 1, 0.2, 0.1).right
        and not Row("a", (1,), "f", 1, float("nan"), 0.1).right
        and not Row("a", (1,), "f", problem="x").right
    )


def test_the_run_is_timed_after_the_check():
    order = []
    row = play(
        {
            "name": "a",
            "shape": (1,),
            "dtype": "f",
            "run": lambda: order.append("run"),
            "error": lambda: order.append("error") or 0.0,
            "tolerance": 0.0,
            "flops": 1e9,
        },
        "cpu",
    )
    assert order[:3] == ["run", "error", "run"] and row.right and "FLOP/s" in row.rate
