"""What loops read ahead of what nothing bounds: memory that is there, and no other."""

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl


@triton.jit
def passed_on(x, o, n, steps, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at, total = x + i, tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(steps):
        total = 0.5 * total + tl.load(at, mask=i < n, other=0.0)
        at += stride
    tl.store(o + i, total, mask=i < n)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_no_loop_reads_a_row_behind_its_last(monkeypatch, steps):
    """The simulator knows where the memory of each argument ends."""
    x = np.random.default_rng(0).normal(size=(max(steps, 1), 96)).astype(np.float32)[:steps]
    x = np.ascontiguousarray(x) if steps else np.zeros(1, np.float32)
    o, want = np.zeros(96, np.float32), np.zeros(96, np.float32)
    for row in x if steps else ():
        want = 0.5 * want + row
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    passed_on[(2,)](x, o, 96, steps, 96, BLOCK=64)
    np.testing.assert_allclose(o, want, rtol=1e-6)
