"""Blocks that a dot reads and something else does: sums of their elements, other dots whose
operands are made of them, what a program does with them behind its loop; and operands that threads
write in turn. All of it with warp roles, at level 4 and as PTX.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tkc
from benchmarks.unseen import layers, products, scores
from tests.codegen.ptx import machine
from tkc.ir.plan import written_on
from tkc.ir.target import target
from tkc.runtime.simulate import level4_of
from tkc.sim import level4

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(5)


def normal(*shape: int, dtype: type = BF16, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(dtype)


def gradients() -> tuple:
    x, dy = normal(192, 128), normal(192, 128)
    out = np.zeros((128, 128), BF16), np.zeros(128, np.float32)
    x64, dy64 = x.astype(float), dy.astype(float)
    given = (x, dy, *out, 128, 128, 64)
    return layers.weight_and_bias_gradient, given, out, (x64.T @ dy64, dy64.sum(0)), (1, 1, 1)


def of_floats() -> tuple:
    a, b = normal(128, 96, dtype=np.float32), normal(96, 128, dtype=np.float32)
    c = np.zeros((128, 128), np.float32)
    given = (a, b, c, 128, 128, 32)
    return products.product_of_floats, given, (c,), (a.astype(float) @ b,), (1, 1, 1)


def in_time() -> tuple:
    x, u, y = normal(65, 2, 128), normal(4, 128, 128, scale=0.1), np.zeros((64, 2, 128), BF16)
    a, b, c, d = (v.astype(float) for v in (x[:-1, 0], x[:-1, 1], x[1:, 0], x[1:, 1]))
    w = u.astype(float)
    p, q, r, s = (a - c) @ w[0], (b + c) @ w[1], (c - b) @ w[2], (b - d) @ w[3]
    want = np.stack((p + q + r, q - r - s), 1)
    return layers.winograd, (x, u, y, 64, 128, 64), (y,), (want,), (1, 1, 1)


def centres() -> tuple:
    x, c = normal(128, 64), normal(256, 64)
    x64, c64 = x.astype(float), c.astype(float)
    norms = (c64**2).sum(1).astype(np.float32)
    out = np.zeros(128, np.int32), np.zeros(128, np.float32)
    d = (x64**2).sum(1)[:, None] + (c64**2).sum(1) - 2 * x64 @ c64.T
    given = (x, c, norms, *out, 64, 128, 128)
    return scores.nearest_centre, given, out, (d.argmin(1), d.min(1)), (1, 1, 1)


def iterations() -> tuple:
    g, y = normal(1, 128, 128), np.zeros((1, 128, 128), BF16)
    x = g[0].astype(float)
    x /= np.sqrt((x * x).sum())
    for _ in range(4):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    return layers.orthogonalized, (g, y, 4, 128), (y,), (x[None],), (1, 1, 1)


def biased() -> tuple:
    """More steps than stages, of which one block is added to the scores."""
    (m, n, d), f = (128, 768, 64), np.float64
    q, k, v = normal(1, 1, m, d), normal(1, 1, n, d), normal(1, 1, n, d)
    bias, gate, out = normal(1, m, n), normal(1, 1, m, d), np.zeros((1, 1, m, d), BF16)
    s = 0.125 * q[0, 0].astype(f) @ k[0, 0].astype(f).T + bias[0].astype(f)
    p = np.exp(s - s.max(1, keepdims=True))
    mixed = p @ v[0, 0].astype(f) / p.sum(1, keepdims=True)
    want = mixed / (1 + np.exp(-gate[0, 0].astype(f)))
    given = (q, k, v, bias, gate, out, 0.125, d, 128, 64)
    return scores.gated_attention, given, (out,), (want[None, None],), (1, 1, 1)


def recurrent() -> tuple:
    """Weights stay, and what a step adds comes through a ring of its own."""
    steps, b, d = 17, 64, 64
    x, u, h0 = normal(steps, 3, b, d), normal(3, d, d, scale=0.1), normal(b, d)
    y = np.zeros((steps, b, d), BF16)
    h, w, want = h0.astype(float), u.astype(float), np.zeros(y.shape)
    for t, (xr, xz, xn) in enumerate(x.astype(float)):
        r, z = (1 / (1 + np.exp(-(a + h @ w[i]))) for i, a in enumerate((xr, xz)))
        h = (1 - z) * np.tanh(xn + r * (h @ w[2])) + z * h
        want[t] = h
    return layers.gated_recurrence, (x, u, h0, y, 64, d), (y,), (want,), (1, 1, 1)


MAKERS = (gradients, of_floats, in_time, centres, iterations, biased, recurrent)
CASES = {make.__name__: make for make in MAKERS}


@pytest.mark.parametrize("case", CASES)
def test_several_readers(case):
    kernel, arguments, out, wanted, grid = CASES[case]()
    values, given = kernel.bound(*arguments)
    module = level4_of(kernel, kernel._describe(values), tuple(given.items()), target("sm_90a"))
    assert written_on(module.body.block.first_op).roles != "one"
    compiled = kernel.compile(*arguments, target="sm_90a")
    assert compiled.resources.spill_stores == 0
    assert not any("the consumers load" in d for d in compiled.decisions)
    arrays = [v for v in arguments if isinstance(v, np.ndarray | float)]
    for run in (
        lambda: level4.run(module, arrays, grid, 1),
        lambda: machine.run(module, arrays, grid),
    ):
        for array in out:
            array.fill(0)
        run()
        for got, want in zip(out, wanted, strict=True):
            error = np.abs(got.astype(float) - want).max() / np.abs(want).max()
            assert error < (0.05 if case == "iterations" else 0.015)


def test_who_sums_what_a_dot_reads_shares_a_program():
    """In turns nobody would multiply while one warpgroup adds up."""
    kernel, *_ = gradients()
    large = ["bf16[8192, 4096]"] * 2 + ["bf16[4096, 4096]", "f32[4096]"]
    said = kernel.compile(*large, 128, 128, 64, target="sm_90a").decisions
    assert any(d.startswith("plan: cooperative") for d in said)


def test_blocks_of_a_loop_without_operands_have_a_ring():
    kernel, arguments, *_ = recurrent()
    said = kernel.compile(*arguments, target="sm_90a").decisions
    assert any("of 3 loads beside the dots tensor maps copy 3" in d for d in said)


def test_written_operands_take_turns_where_memory_is_short():
    """Fifteen operands of 32 KiB, of which three are live at once."""
    _, arguments, *_ = iterations()
    compiled = layers.orthogonalized.compile(*arguments[:2], 5, 128, target="sm_90a")
    assert "wgmma.mma_async" in compiled.ptx and compiled.interface.shared_bytes <= 232448
    small = tkc.jit(layers.orthogonalized.fn).compile(
        "bf16[4, 64, 64]", "bf16[4, 64, 64]", 2, 64, target="sm_90a"
    )
    alone = next(d for d in small.decisions if d.startswith("allocate-shared"))
    assert len(set(alone.replace(",", "").split()[3:])) == 3  # each has a place of its own
