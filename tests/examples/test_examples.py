"""Every example at sizes that fit nothing: 1, primes, one past a block. On the CPU, and as the
level-0 program in NumPy.
"""

import re

import numpy as np
import pytest

from benchmarks.harness import example

NAMES = (
    "vector_add",
    "dropout",
    "histogram",
    "cumulative_sum",
    "softmax",
    "matmul",
    "layer_norm",
    "attention",
    "float8_matmul",
    "float8_attention",
    "quantized_linear",
    "gated_mlp",
    "matmul_steps",
    "attention_steps",
)
SIZES = {
    "vector_add": [{"n": n} for n in (1, 7, 1024, 1025, 2500)],
    "dropout": [{"n": n} for n in (1, 7, 4097)],
    "histogram": [{"n": n} for n in (1, 4097, 9000)],
    "cumulative_sum": [{"n": n, "block": 128, "group": 4} for n in (1, 127, 1300)],
    "softmax": [
        {"rows": r, "columns": c} for r, c in ((1, 1), (3, 7), (5, 100), (2, 1024), (1, 1031))
    ],
    "matmul": [{"size": n} for n in (1, 64, 129, 211)],
    "matmul_steps": [{"size": n} for n in (1, 64, 150)],
    "attention_steps": [
        {"heads": h, "sequence": s, "d": d} for h, s, d in ((1, 1, 16), (2, 129, 32), (1, 150, 64))
    ],
    "float8_matmul": [{"size": n} for n in (1, 64, 129, 150)],
    "float8_attention": [
        {"batch": b, "heads": h, "sequence": s, "d": d}
        for b, h, s, d in ((1, 1, 1, 32), (1, 2, 150, 64))
    ],
    "quantized_linear": [{"size": n} for n in (1, 64, 129, 150)],
    "gated_mlp": [
        {"rows": m, "columns": n, "k": k} for m, n, k in ((1, 1, 1), (129, 7, 64), (31, 150, 129))
    ],
    "layer_norm": [{"rows": r, "columns": c} for r, c in ((1, 1), (3, 7), (5, 100), (2, 1031))],
    "attention": [
        {"batch": b, "heads": h, "sequence": s, "d": d}
        for b, h, s, d in ((1, 1, 1, 16), (2, 1, 129, 32), (1, 2, 150, 64))
    ],
}
ALL = [
    pytest.param(name, size, id=f"{name}-{'-'.join(map(str, size.values()))}")
    for name in NAMES
    for size in SIZES[name]
]


@pytest.fixture(params=["numpy", "cpu"])
def engine(request, monkeypatch, tmp_path):
    """What runs the kernels: the level-0 program in NumPy, or machine code; with a disk cache of
    its own.
    """
    monkeypatch.setenv("TKC_INTERPRET", str(int(request.param == "numpy")))
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path))
    for name in NAMES:
        for kernel, _, _ in example(name).kernels():
            kernel.forget_launches()  # launches remembered from the other engine
    return request.param


@pytest.mark.parametrize("name, size", ALL)
def test_every_case_meets_its_tolerance(engine, name, size):
    for case in example(name).cases("cpu", **size):
        case["run"]()
        error = case["error"]()
        assert error <= case["tolerance"], f"{case['name']} {case['dtype']}: error {error:.2e}"


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_was_measured(name):
    """Where, when, on which commit, beside what, with the unit."""
    text = example(name).__doc__
    assert (
        "H200" in text
        and "ommit" in text
        and re.search(r"\d us|TFLOP/s|GB/s", text)
        and re.search(r"torch|cuBLAS|cuDNN|a copy", text)
    )


@pytest.mark.parametrize("name", ("softmax", "layer_norm"))
def test_several_rows_a_program_and_more_columns_than_there_are(engine, name):
    module, x = example(name), np.random.default_rng(0).standard_normal((7, 93), np.float32)
    out = np.full_like(x, np.nan)
    if name == "softmax":
        module.softmax[module.grid](x, out, COLUMNS=128, ROWS=4)
    else:
        w, b = x[0].copy(), x[1].copy()
        module.layer_norm[module.grid](x, w, b, out, 1e-5, COLUMNS=128, ROWS=4)
    want = module.reference(x) if name == "softmax" else module.reference(x, w, b, 1e-5)
    assert np.abs(out - want).max() < 1e-5 * np.abs(want).max()


def test_matmul_of_views_with_strides_and_without_relu(engine):
    module, rng = example("matmul"), np.random.default_rng(1)
    a, b = (
        rng.standard_normal((70, 2 * 33), np.float32)[:, ::2],
        rng.standard_normal((45, 33), np.float32).T,
    )
    c = np.full((70, 90), np.nan, np.float32)
    module.matmul[module.grid](a, b, c[:, ::2], RELU=False, BM=32, BN=32, BK=16)
    want = a.astype(np.float64) @ b
    assert np.abs(c[:, ::2] - want).max() < 1e-5 * np.abs(want).max() and np.isnan(c[:, 1::2]).all()


@pytest.mark.parametrize("queries, keys", [(5, 70), (70, 5), (64, 64)])
def test_causal_attention_with_other_numbers_of_keys(engine, queries, keys):
    """More keys: the queries are the last rows. Fewer: the first queries see nothing and give
    zeros.
    """
    module, rng = example("attention"), np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 2, n, 32), np.float32) for n in (queries, keys, keys))
    o = np.full_like(q, np.nan)
    module.attention[module.grid](q, k, v, o, 0.2, CAUSAL=True, D=32, BM=32, BN=32)
    want = module.reference(q, k, v, 0.2, True)
    assert np.abs(o - want).max() < 1e-5
    if queries > keys:
        assert (o[:, :, : queries - keys] == 0).all()


def test_softmax_of_large_and_infinite_values(engine):
    module = example("softmax")
    x = np.array(
        [[1e4, 1e4 - 1, -1e4, -np.inf], [-80, -81, -82, -83], [3e38, 3e38, -3e38, 0]], np.float32
    )
    out = np.full_like(x, np.nan)
    module.softmax[module.grid](x, out, COLUMNS=4)
    assert np.abs(out - module.reference(x)).max() < 1e-6


def test_layer_norm_of_a_row_far_from_zero(engine):
    """mean(x²) − mean(x)² would have no digit left here."""
    module, rng = example("layer_norm"), np.random.default_rng(3)
    x = (rng.standard_normal((2, 256)) + 5000).astype(np.float32)
    one, zero, out = np.ones(256, np.float32), np.zeros(256, np.float32), np.full_like(x, np.nan)
    module.layer_norm[module.grid](x, one, zero, out, 0.0, COLUMNS=256)
    assert np.abs(out - module.reference(x, one, zero, 0.0)).max() < 2e-3


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_demo_writes_out_assembles_without_a_spill(name, target):
    for kernel, arguments, _grid in example(name).kernels():
        assert set(arguments) == set(kernel.names)
        compiled = kernel.compile(**arguments, target=target)
        assert f".target {target}" in compiled.ptx and ".entry" in compiled.ptx
        assert compiled.resources.clean, compiled.resources.log


@pytest.mark.gpu
@pytest.mark.parametrize("name, size", ALL)
def test_every_case_meets_its_tolerance_on_a_gpu(name, size):
    for case in example(name).cases("cuda", **size):
        case["run"]()
        error = case["error"]()
        assert error <= case["tolerance"], f"{case['name']} {case['dtype']}: error {error:.2e}"
