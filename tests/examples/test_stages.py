"""The examples after every pass: the text reads back, and what it says still computes the same, on
odd sizes, without a GPU.

Level 4 runs with threads under the happens-before check, from the pass on that makes its barriers.
"""

import numpy as np
import pytest

from benchmarks.harness import example
from tkc.ir.target import target
from tkc.ir.text import parse, show
from tkc.ir.verify import verify
from tkc.language.trace import trace
from tkc.passes import pipeline
from tkc.runtime.specialize import Constant, signature
from tkc.sim import dataflow, level4
from tkc.sim.level0 import kernel_of

SYNCHRONIZED = pipeline.PIPELINE[pipeline.PIPELINE.index("insert-synchronization") :]


def after_every_pass(machine, check, kernel, grid, *args, **kwargs):
    """Runs the kernel's IR after every pass on fresh copies of its arrays; check(stage, copies)."""
    values, options = kernel._bind(*args, **kwargs)
    infos = kernel._describe(values)
    s = signature(kernel._specialize(infos, tuple(options.items())))
    extents = (
        *(
            g
            if isinstance(g := grid(dict(zip(kernel.names, values, strict=False))), tuple)
            else (g,)
        ),
        1,
        1,
    )[:3]

    def observe(stage, module):
        text = show(module)
        again = parse(text, stage)
        verify(again, stage)
        assert show(again) == text
        level = kernel_of(again).level
        if level == 4 and stage not in SYNCHRONIZED:
            return
        copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
        passed = [
            c for c, info in zip(copies, infos, strict=False) if not isinstance(info, Constant)
        ]
        if level == 4:
            level4.run(again, passed, extents, seed=1)
        else:
            dataflow.run(again, passed, extents)
        check(stage, dict(zip(kernel.names, copies, strict=False)))

    module = trace(kernel.fn, s)
    observe("trace", module)
    pipeline.run(module, target(machine), s.options, observe)


def close(got, want, tolerance, stage):
    error = np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()
    assert error <= tolerance, f"after {stage}: error {error:.2e}"


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


TARGETS = pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])


@TARGETS
@pytest.mark.parametrize("n", [1, 1500])
def test_vector_add(machine, n):
    m, x, y = example("vector_add"), normal(n), normal(n, seed=1)
    after_every_pass(
        machine,
        lambda stage, a: close(a["out"], m.reference(x, y), 1e-7, stage),
        m.add,
        m.grid,
        x,
        y,
        np.full_like(x, np.nan),
        n,
    )


@TARGETS
@pytest.mark.parametrize(
    "rows, columns, options",
    [(3, 100, {}), (5, 257, {"ROWS": 2, "num_warps": 2}), (2, 1024, {"num_warps": 4})],
)
def test_softmax(machine, rows, columns, options):
    m, x = example("softmax"), normal(rows, columns)
    after_every_pass(
        machine,
        lambda stage, a: close(a["out"], m.reference(x), 1e-5, stage),
        m.softmax,
        m.grid,
        x,
        np.full_like(x, np.nan),
        COLUMNS=columns,
        **options,
    )


@TARGETS
def test_layer_norm(machine):
    m, (x, w, b) = example("layer_norm"), (normal(3, 200), normal(200, seed=1), normal(200, seed=2))
    after_every_pass(
        machine,
        lambda stage, a: close(a["out"], m.reference(x, w, b, 1e-5), 1e-5, stage),
        m.layer_norm,
        m.grid,
        x,
        w,
        b,
        np.full_like(x, np.nan),
        1e-5,
        COLUMNS=200,
    )


@TARGETS
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows, columns, k", [(65, 33, 8), (64, 64, 128), (40, 72, 200)])
def test_matmul(machine, dtype, rows, columns, k):
    """k of fewer steps than there are stages, of a whole number of steps, and of one and a piece
    more.
    """
    m, a, b = (
        example("matmul"),
        normal(rows, k, dtype=dtype),
        normal(k, columns, dtype=dtype, seed=1),
    )
    c = np.full((rows, columns), np.nan, dtype)
    after_every_pass(
        machine,
        lambda stage, arrays: close(
            arrays["c"], m.reference(a, b), 2e-3 if dtype == "float16" else 1e-5, stage
        ),
        m.matmul,
        m.grid,
        a,
        b,
        c,
        BM=64,
        BN=32,
        BK=32,
    )


@TARGETS
@pytest.mark.parametrize(
    "dtype, causal, queries, keys",
    [("float16", False, 70, 150), ("float16", True, 64, 64), ("float32", True, 33, 20)],
)
def test_attention(machine, dtype, causal, queries, keys):
    m = example("attention")
    q, k, v = (
        normal(1, 2, n, 32, dtype=dtype, seed=i) for i, n in enumerate((queries, keys, keys))
    )
    after_every_pass(
        machine,
        lambda stage, a: close(
            a["o"], m.reference(q, k, v, 0.2, causal), 4e-3 if dtype == "float16" else 1e-5, stage
        ),
        m.attention,
        m.grid,
        q,
        k,
        v,
        np.full_like(q, np.nan),
        0.2,
        CAUSAL=causal,
        D=32,
        BM=64,
        BN=32,
    )
