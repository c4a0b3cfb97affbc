"""Every variant of attention as the compiler makes it for Hopper, run with threads under the
happens-before check (TKC_SIM=1): loops of no, one and two steps, ragged ends, rows with nothing to
see.
"""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import double, launches, numbers
from tests.kernels.test_attention import attention, near, operands
from tkc import kernels

# queries and keys; blocks have 64 to 256 rows and 64 to 128 columns
LENGTHS = (
    (130, 0),
    (5, 1),
    (70, 140),
    (257, 300),
)
OPTIONS = {
    "full": {},
    "causal": dict(causal=True),
    "window": dict(causal=True, window=50),
    "soft cap": dict(softcap=3.0),
}
# D, V's
HEADS = [
    (32, 32),
    (64, 64),
    (96, 96),
    (128, 128),
    (192, 128),
    (256, 256),
    (64, 32),
    (80, 48),
]
BLOCKS = [
    (64, dict(rows=192)),
    (96, dict(rows=192)),
    (64, dict(rows=256)),
    (64, dict(rows=256, causal=True)),
    (32, dict(rows=256, window=90, causal=True)),
    (128, dict(rows=192, causal=True)),
    (112, dict(rows=192)),
    (128, dict(columns=112)),
    (128, dict(columns=80)),
]
EIGHT = "float8_e4m3fn"


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a", raising=False)


def with_roles(call) -> None:
    """What it launches has a producer and wgmma."""
    with launches() as found:
        call()
    for kernel, args, options in found:
        assert "wgmma" in kernel.compile(*args, target="sm_90a", **options).ptx


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("d, dv", HEADS, ids=str)
def test_head_dimensions(d, dv, options):
    """Two heads that share one of K and V; with log-sum-exp."""
    for queries, keys in LENGTHS:
        arrays = operands(1, 2, 1, queries, keys, d, dv, "bfloat16")
        near(
            kernels.attention(*arrays, with_lse=True, **options),
            attention(*arrays, **options),
            "bfloat16",
        )
    with_roles(lambda: kernels.attention(*arrays, **options))


@pytest.mark.parametrize("d, options", BLOCKS, ids=str)
def test_three_and_four_warpgroups(d, options):
    for queries, keys in (*LENGTHS, (257, 1)):
        arrays = operands(1, 1, 1, queries, keys, d, d, "float16")
        near(
            kernels.attention(*arrays, with_lse=True, **options),
            attention(
                *arrays, **{k: v for k, v in options.items() if k not in ("rows", "columns")}
            ),
            "float16",
        )


@pytest.mark.parametrize("options", [OPTIONS["full"], OPTIONS["window"]], ids=["full", "window"])
def test_ragged_batches(options):
    lengths = 70, 0, 1, 200
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    q, k, v = (
        numbers((271, 2, 64), "bfloat16"),
        numbers((271, 1, 64), "bfloat16", 1),
        numbers((271, 1, 32), "bfloat16", 2),
    )
    out, sums = kernels.attention(
        q, k, v, cu_seqlens=cu_seqlens, max_seqlen=200, with_lse=True, **options
    )
    for start, end in pairwise(cu_seqlens):
        if start == end:
            continue
        alone = [np.ascontiguousarray(x[start:end].swapaxes(0, 1)[None]) for x in (q, k, v)]
        near(
            (out[start:end].swapaxes(0, 1)[None], sums[None, :, start:end]),
            attention(*alone, **options),
            "bfloat16",
        )


def test_heads_second():
    q, k, v = operands(2, 2, 1, 70, 140, 64, 64, "bfloat16")
    out, sums = kernels.attention(
        *(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)),
        causal=True,
        heads_first=False,
        with_lse=True,
    )
    near((out.swapaxes(1, 2), sums), attention(q, k, v, causal=True), "bfloat16")


@pytest.mark.parametrize("d, options", [(64, {}), (128, dict(causal=True)), (256, {})], ids=str)
def test_float8(d, options):
    """A role of its own changes the layout of V. As far from float64 as float8
    probabilities are, at most twice.
    """
    for queries, keys in LENGTHS:
        q, k, v = operands(1, 2, 1, queries, keys, d, d, EIGHT)
        want, sums = attention(*map(double, (q, k, v)), **options)
        out, lse = kernels.attention(q, k, v, with_lse=True, **options)
        seen = np.isfinite(sums)
        assert (
            np.linalg.norm(double(out) - want) <= 2 * 0.027 * np.linalg.norm(want)
            and np.abs(lse[seen] - sums[seen]).max(initial=0) <= 2e-3
            and (np.isinf(lse) == ~seen).all()
        )


@pytest.mark.parametrize("kept", ["bfloat16", EIGHT])
def test_decoding(kept):
    """Rows behind the length are NaN."""
    lengths = np.array([1, 300, 129, 0], np.int32)
    q, k, v = (
        numbers((4, 4, 1, 64), "bfloat16"),
        numbers((4, 2, 300, 64), kept, 1),
        numbers((4, 2, 300, 64), kept, 2),
    )
    for i, n in enumerate(lengths):
        k[i, :, n:] = v[i, :, n:] = np.nan
    out, sums = kernels.attention_decode(q, k, v, lengths, with_lse=True)
    for i, n in enumerate(lengths):
        near(
            (out[i : i + 1], sums[i : i + 1]),
            attention(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]),
            "bfloat16",
        )


@pytest.mark.parametrize("relax", [True, False])
@pytest.mark.parametrize("d, rows", [(128, None), (64, 256)], ids=str)
def test_hard_rows(d, rows, relax, monkeypatch):
    """Rows whose maxima grow in every block, far apart, with infinities among the scores, and NaN:
    as without relaxed maxima.
    """
    if not relax:
        monkeypatch.setenv("TKC_RELAX", "0")
    q, k, v = operands(1, 1, 1, 130, 520, d, d, "bfloat16")
    k = (double(k) * np.linspace(0, 20, 520)[:, None]).astype(ml_dtypes.bfloat16)
    q[:, :, 3] = 0  # all scores are equal
    q[:, :, 5] *= 40
    with np.errstate(over="ignore"):
        near(
            kernels.attention(q, k, v, with_lse=True, rows=rows),
            attention(q, k, v),
            "bfloat16",
            slack=4,
        )
    q[:, :, 7, 0], k[:, :, 200, 0] = (
        np.nan,
        -np.inf,
        # of the scores of key 200 those of rows that begin with a number < 0 are inf, the others
        # -inf
    )
    lost = ~(double(q[..., 0]) > 0)
    with np.errstate(invalid="ignore"):
        want = attention(q, k, v)[0]
    out = double(kernels.attention(q, k, v, rows=rows))
    assert (
        np.isnan(out[lost]).all()
        and lost[0, 0, [3, 7]].all()
        and np.abs(out - want)[~lost].max() <= 0.08 * np.abs(want[~lost]).max()
    )
