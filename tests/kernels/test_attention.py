"""Attention against float64: masks, windows, soft caps, grouped queries, both orders of axes,
ragged batches, decoding; compiled for GPUs; the same on one.
"""

import sys
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import double, launches, numbers
from tkc import kernels
from tkc.codegen.ptx.ptxas import find


def attention(q, k, v, causal=False, scale=None, window=None, softcap=0.0):
    """(softmax(q kᵀ) v, log-sum-exp) in float64."""
    q, k, v = map(double, (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    rows, columns = (
        np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2],
        np.arange(k.shape[2])[None],
    )
    keep = np.ones(np.broadcast_shapes(rows.shape, columns.shape), bool)
    if causal:
        keep &= rows >= columns
    if window is not None:
        keep &= rows - columns < window
    s = np.where(keep, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.where(keep, np.exp(s - np.where(np.isinf(top), 0, top)), 0)
    total = p.sum(-1, keepdims=True)
    with np.errstate(all="ignore"):
        return (
            np.where(total > 0, p @ v / total, 0),
            np.where(total > 0, top + np.log(total), -np.inf)[..., 0],
        )


def near(got, want, dtype: str, slack: float = 1) -> None:
    out, sums = (double(x) for x in got)
    tolerance = {"float32": 2e-6, "bfloat16": 0.02, "float16": 0.003}[dtype]
    assert out.shape == want[0].shape and np.abs(out - want[0]).max(
        initial=0
    ) <= slack * tolerance * max(1, np.abs(want[0]).max(initial=0))
    seen = ~np.isinf(want[1])
    assert (np.isinf(sums) == ~seen).all() and np.abs(sums[seen] - want[1][seen]).max(
        initial=0
    ) <= (1e-5 if dtype == "float32" else 2e-3) * max(1, np.abs(want[1][seen]).max(initial=0))


def operands(batch, heads, shared, queries, keys, d, dv, dtype="float32"):
    return (
        numbers((batch, heads, queries, d), dtype),
        numbers((batch, shared, keys, d), dtype, 1),
        numbers((batch, shared, keys, dv), dtype, 2),
    )


SHAPES = [
    (1, 2, 2, 70, 70, 64, 64),
    (2, 4, 2, 33, 50, 32, 32),
    (1, 3, 1, 129, 5, 16, 16),
    (1, 1, 1, 1, 1, 7, 9),
    (2, 4, 4, 1, 600, 64, 32),
    (1, 4, 1, 1, 1031, 80, 48),
    (1, 2, 1, 5, 3, 16, 40),
    (1, 1, 1, 3, 0, 16, 16),
    (0, 2, 2, 4, 4, 8, 8),
]
VARIANTS = [
    {},
    dict(causal=True),
    dict(causal=True, window=17),
    dict(causal=True, window=1),
    dict(softcap=2.0),
    dict(scale=0.3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda o: " ".join(f"{k} {v}" for k, v in o.items()) or "full"
)
def test_variants(shape, options):
    arrays = operands(*shape)
    near(
        kernels.attention(*arrays, with_lse=True, **options),
        attention(*arrays, **options),
        "float32",
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, True])
def test_short_floats(dtype, causal):
    arrays = operands(1, 4, 2, 150, 170, 64, 64, dtype)
    near(
        kernels.attention(*arrays, causal=causal, with_lse=True),
        attention(*arrays, causal=causal),
        dtype,
    )


def test_heads_second():
    q, k, v = operands(2, 4, 2, 40, 60, 32, 32)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    out, sums = kernels.attention(*turned, causal=True, heads_first=False, with_lse=True)
    near((out.swapaxes(1, 2), sums), attention(q, k, v, causal=True), "float32")


@pytest.mark.parametrize(
    "options",
    [{}, dict(causal=True), dict(causal=True, window=20)],
    ids=["full", "causal", "window"],
)
@pytest.mark.parametrize("lengths", [(70,), (5, 0, 130, 64, 1), (0, 0)])
def test_ragged(lengths, options):
    cu_seqlens, tokens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), sum(lengths)
    q, k, v = (
        numbers((tokens, 4, 32)),
        numbers((tokens, 2, 32), seed=1),
        numbers((tokens, 2, 16), seed=2),
    )
    out, sums = kernels.attention(
        q, k, v, cu_seqlens=cu_seqlens, max_seqlen=max(lengths), with_lse=True, **options
    )
    for start, end in pairwise(cu_seqlens):
        if start == end:
            continue
        alone = [np.ascontiguousarray(x[start:end].swapaxes(0, 1)[None]) for x in (q, k, v)]
        near(
            (out[start:end].swapaxes(0, 1)[None], sums[None, :, start:end]),
            attention(*alone, **options),
            "float32",
        )


E4 = ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize(
    "options",
    [{}, dict(causal=True), dict(causal=True, window=40), dict(softcap=3.0)],
    ids=lambda o: " ".join(f"{k} {v}" for k, v in o.items()) or "full",
)
def test_float8(options):
    """A number or a scale a head; at most twice as far from float64 as float8 probabilities are."""
    q, k, v = operands(2, 4, 2, 70, 150, 64, 32, "float8_e4m3fn")
    qs, ks, vs = (
        np.array([0.5, 1, 2, 0.25], np.float32),
        np.array([2, 0.5], np.float32),
        np.array([1, 3], np.float32),
    )
    want, sums = attention(
        double(q) * qs[:, None, None],
        double(k) * ks[:, None, None],
        double(v) * vs[:, None, None],
        **options,
    )
    out, lse = kernels.attention(
        q, k, v, q_scale=qs, k_scale=ks, v_scale=vs, with_lse=True, **options
    )
    assert (
        out.dtype == ml_dtypes.bfloat16
        and np.linalg.norm(double(out) - want) <= 2 * 0.027 * np.linalg.norm(want)
        and np.abs(lse - sums).max() <= 2e-3
    )
    even = kernels.attention(q, k, v, q_scale=2.0, k_scale=0.5, v_scale=3, **options)
    again = kernels.attention(
        q,
        k,
        v,
        q_scale=np.full(4, 2, np.float32),
        k_scale=np.full(2, 0.5, np.float32),
        v_scale=np.full(2, 3, np.float32),
        **options,
    )
    assert np.abs(double(even) - double(again)).max() <= 0.02 * np.abs(double(even)).max()
    cu_seqlens, alone = (
        np.array([0, 70], np.int32),
        [np.ascontiguousarray(x[0, :, :70].swapaxes(0, 1)) for x in (q, k, v)],
    )
    want, _ = attention(*(double(x[:1, :, :70]) for x in (q, k, v)), **options)
    out = kernels.attention(*alone, cu_seqlens=cu_seqlens, max_seqlen=70, **options)
    assert np.linalg.norm(double(out).swapaxes(0, 1)[None] - want) <= 2 * 0.027 * np.linalg.norm(
        want
    )


def test_decoding():
    lengths = np.array([1, 900, 513, 0], np.int32)
    q, k, v = operands(4, 8, 2, 1, 900, 64, 64)
    for i, n in enumerate(lengths):
        k[i, :, n:] = v[i, :, n:] = np.nan  # room that was not written yet
    out, sums = kernels.attention_decode(q, k, v, lengths, with_lse=True)
    for i, n in enumerate(lengths):
        near(
            (out[i : i + 1], sums[i : i + 1]),
            attention(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]),
            "float32",
        )


@pytest.mark.parametrize("keys", [3, 150])
def test_weights_of_float8_add_up_to_one(keys):
    """As they are multiplied, that is rounded to three bits: the mean of equal values is exact."""
    q, k = (numbers((1, 2, n, 64), "float8_e4m3fn", i) for i, n in enumerate((40, keys)))
    out = kernels.attention(q, k, np.ones_like(k))
    assert (double(out) == 1).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("page", [0, 16, 64])
def test_decoding_of_float8(dtype, page):
    """Keys and values of 8 bits beside queries of 16 or 8, scaled by heads; as exact as the 16 bits
    that they are multiplied in.
    """
    lengths, (k, v), table = (
        np.array([1, 900, 513, 0], np.int32),
        (numbers((4, 2, 900, 64), "float8_e4m3fn", i) for i in (1, 2)),
        None,
    )
    pools = k, v
    if page:
        k, v, *pools, table, lengths = paged(page, "float8_e4m3fn")
    else:
        for i, n in enumerate(lengths):
            k[i, :, n:] = v[i, :, n:] = np.nan
    q, (qs, ks, vs) = (
        numbers((4, 8, 1, 64), dtype),
        (np.linspace(0.5, 2, n, dtype=np.float32) for n in (8, 2, 2)),
    )
    scales = dict(q_scale=qs) if dtype == "float8_e4m3fn" else {}
    out, sums = kernels.attention_decode(
        q, *pools, lengths, with_lse=True, pages=table, k_scale=ks, v_scale=vs, **scales
    )
    assert str(out.dtype) == ("bfloat16" if scales else dtype)
    wide = (
        double(q) * (qs[:, None, None] if scales else 1),
        double(k) * ks[:, None, None],
        double(v) * vs[:, None, None],
    )
    for i, n in enumerate(lengths):
        near(
            (out[i : i + 1], sums[i : i + 1]),
            attention(wide[0][i : i + 1], *(x[i : i + 1, :, :n] for x in wide[1:])),
            str(out.dtype),
        )
    for one, other in zip(
        kernels.attention_decode(q, *pools, lengths, pages=table, k_scale=2.0, v_scale=0.5),
        kernels.attention_decode(
            q, *pools, lengths, pages=table, k_scale=ks * 0 + 2, v_scale=vs * 0 + 0.5
        ),
        strict=False,
    ):
        assert np.abs(double(one) - double(other)).max() <= 0.01 * max(
            1, np.abs(double(other)).max()
        )


def test_a_single_query_of_float8_is_decoded():
    q, k, v = (
        numbers(shape, "float8_e4m3fn", i)
        for i, shape in enumerate([(2, 4, 1, 64), (2, 2, 700, 64), (2, 2, 700, 64)])
    )
    with launches() as found:
        kernels.attention(q, k, v)
    assert [kernel.__name__ for kernel, *_ in found] == ["_decode", "_combine"]
    near(
        kernels.attention(q, k, v, with_lse=True, q_scale=2.0, v_scale=3.0),
        attention(2 * double(q), k, 3 * double(v)),
        "bfloat16",
    )


def paged(
    page: int, dtype: str = "float32", lengths=(1, 900, 513, 0), shared: int = 2, d: int = 64
):
    """(k and v of whole sequences, pools with NaN wherever nothing belongs to a sequence, the table
    with nonsense behind its end, lengths).
    """
    rng, lengths = np.random.default_rng(page), np.array(lengths, np.int32)
    each = -(-int(lengths.max()) // page)
    k, v = (numbers((len(lengths), shared, each * page, d), dtype, seed) for seed in (1, 2))
    table = (
        rng.permutation(len(lengths) * each + 3)[: len(lengths) * each]
        .reshape(len(lengths), each)
        .astype(np.int32)
    )
    pools = [np.full((len(lengths) * each + 3, page, shared, d), np.nan, x.dtype) for x in (k, v)]
    for b, n in enumerate(lengths):
        for i in range(-(-n // page)):
            rows = min(page, n - i * page)
            for pool, x in zip(pools, (k, v), strict=False):
                pool[table[b, i], :rows] = x[b, :, i * page : i * page + rows].swapaxes(0, 1)
        table[b, -(-n // page) :] = -12345
    return k, v, *pools, table, lengths


@pytest.mark.parametrize("page", [16, 64, 128, 40])
def test_decoding_of_pages(page):
    k, v, *pools, table, lengths = paged(page)
    q = numbers((4, 8, 1, 64))
    out, sums = kernels.attention_decode(q, *pools, lengths, with_lse=True, pages=table)
    for i, n in enumerate(lengths):
        near(
            (out[i : i + 1], sums[i : i + 1]),
            attention(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]),
            "float32",
        )


def test_pages_that_do_not_follow_each_other():
    """Pages of 64 rows may lie anywhere; smaller ones are read as rows of one array."""
    _, _, k, v, table, lengths = paged(64)
    spaced = [np.repeat(x, 2, 0)[::2] for x in (k, v)]
    q = numbers((4, 8, 1, 64))
    assert (
        kernels.attention_decode(q, *spaced, lengths, pages=table)
        == kernels.attention_decode(q, k, v, lengths, pages=table)
    ).all()
    _, _, k, v, table, lengths = paged(16)
    with pytest.raises(tkc.LaunchError, match="must lie one after the other"):
        kernels.attention_decode(
            q, *(np.repeat(x, 2, 0)[::2] for x in (k, v)), lengths, pages=table
        )


@pytest.mark.parametrize("page", [16, 64, 128])
def test_decoding_of_pages_in_threads(page, monkeypatch):
    """The program for Hopper under the happens-before check."""
    k, v, *pools, table, lengths = paged(page, "bfloat16", (1, 130, 0), shared=1, d=32)
    monkeypatch.setenv("TKC_SIM", "1")
    q = numbers((3, 2, 1, 32), "bfloat16")
    out, sums = kernels.attention_decode(q, *pools, lengths, with_lse=True, pages=table)
    for i, n in enumerate(lengths):
        near(
            (out[i : i + 1], sums[i : i + 1]),
            attention(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]),
            "bfloat16",
        )


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("page", [16, 64])
def test_copies_of_pages_run_ahead(page):
    """Pages' numbers are loaded before the copies that need them, which are asynchronous, several
    blocks ahead.
    """
    _, _, *pools, table, lengths = paged(page, "bfloat16", d=128)
    with launches() as found:
        kernels.attention_decode(numbers((4, 8, 1, 128), "bfloat16"), *pools, lengths, pages=table)
    (kernel, args, options), _ = found
    compiled = kernel.compile(*args, target="sm_90a", **options)
    assert compiled.resources.clean and "cp.async.cg" in compiled.ptx, compiled.resources.log
    assert any(
        "stages deep" in line and "addresses one further" in line for line in compiled.decisions
    ), compiled.decisions


def test_rows_whose_maxima_keep_moving():
    q, k, v = operands(1, 2, 2, 64, 200, 32, 32)
    k = k * np.linspace(0, 60, 200, dtype=np.float32)[:, None]
    # scores of some hundreds: their own rounding
    near(kernels.attention(q, k, v, with_lse=True), attention(q, k, v), "float32", slack=32)


BAD = [
    (
        lambda q, k, v: kernels.attention(q, k[..., :4], v),
        "rows of q have 16 elements, those of k 4",
    ),
    (lambda q, k, v: kernels.attention(q, k, v[:, :, :3]), "the same keys and heads"),
    (lambda q, k, v: kernels.attention(q[:, :3], k, v), "3 heads of q cannot share 2"),
    (lambda q, k, v: kernels.attention(q.astype(np.float64), k, v), "one element type"),
    (
        lambda q, k, v: kernels.attention(q, k, v, window=3),
        "window is a number of keys from 1 on, with causal=True",
    ),
    (lambda q, k, v: kernels.attention(q, k, v, softcap=-1.0), "soft cap is positive"),
    (
        lambda q, k, v: kernels.attention(q, k, v, q_scale=2.0),
        "q_scale is for arrays of float8_e4m3",
    ),
    (
        lambda q, k, v: kernels.attention(q, k, v, v_scale=np.ones(2, np.float32)),
        "v_scale is for arrays of float8_e4m3",
    ),
    (
        lambda q, k, v: kernels.attention(
            *(x.astype(E4) for x in (q, k, v)), k_scale=np.ones(4, np.float32)
        ),
        "k_scale: expected the shape",
    ),
    (
        lambda q, k, v: kernels.attention(*(x.astype(E4) for x in (q, k, v)), q_scale=np.ones(4)),
        "q_scale is float32",
    ),
    (
        lambda q, k, v: kernels.attention(
            *(x.astype(E4) for x in (q, k, v)), k_scale=np.ones((2, 2, 7), np.float32)
        ),
        "k_scale has 7 scales for",
    ),
    (lambda q, k, v: kernels.attention(q, k, v, scale=0.0), "scale is positive"),
    (
        lambda q, k, v: kernels.attention(q, k, v, rows=96),
        "rows is one of 64 .*, 256 .*got 96 with D = 16",
    ),
    (
        lambda q, k, v: kernels.attention(*(x.repeat(12, 3) for x in (q, k, v)), rows=192),
        "192 .D up to 128.*got 192 with D = 192",
    ),
    (lambda q, k, v: kernels.attention(q, k, v, columns=40), "columns is a multiple of 16"),
    (
        lambda q, k, v: kernels.attention(
            q[0], q[0], q[0], cu_seqlens=np.zeros(2, np.int32), max_seqlen=4, rows=128
        ),
        "not for ragged batches",
    ),
    (lambda q, k, v: kernels.attention(q[0], k[0], v[0]), r"\[batch, heads, queries, D\]"),
    (lambda q, k, v: kernels.attention(q, k[:1].repeat(3, 0), v[:1].repeat(3, 0)), "as many"),
    (
        lambda q, k, v: kernels.attention(q, k, v, cu_seqlens=np.zeros(2, np.int32)),
        "cu_seqlens and max_seqlen come together",
    ),
    (
        lambda q, k, v: kernels.attention(q[0], q[0], q[0], cu_seqlens=np.zeros(2), max_seqlen=4),
        "int32",
    ),
    (
        lambda q, k, v: kernels.attention_decode(q[0], k, v, np.zeros(2, np.int32)),
        "expected arrays of one rank",
    ),
    (lambda q, k, v: kernels.attention_decode(q[:, :, :1], k, v, np.zeros(3, np.int32)), "lengths"),
    (
        lambda q, k, v: kernels.attention_decode(
            q[:, :, :1], k, v, np.zeros(2, np.int32), pages=np.zeros((3, 1), np.int32)
        ),
        r"\[batch, pages of a sequence\]",
    ),
    (
        lambda q, k, v: kernels.attention_decode(
            q[:, :, :1], k.astype(E4), v.astype(E4), np.zeros(2, np.int32)
        ),
        "k and v of float8_e4m3 beside a q of 16 bits., got float32",
    ),
    (
        lambda q, k, v: kernels.attention_decode(
            q[:, :, :1].astype(np.float16),
            k.astype(E4),
            v.astype(E4),
            np.zeros(2, np.int32),
            q_scale=2.0,
        ),
        "q_scale is for arrays of float8_e4m3, and q is float16",
    ),
    (
        lambda q, k, v: kernels.attention_decode(
            q[:, :, :1].astype(np.float16),
            k.astype(E4),
            v.astype(E4),
            np.zeros(2, np.int32),
            k_scale=np.ones(4, np.float32),
        ),
        "k_scale: expected the shape",
    ),
]


@pytest.mark.parametrize("call, says", BAD, ids=[says for _, says in BAD])
def test_errors(call, says):
    with pytest.raises(tkc.LaunchError, match=says):
        call(*operands(2, 4, 2, 5, 6, 16, 16))


def zeros(*shape):
    return np.zeros(shape, ml_dtypes.bfloat16)


FORMS = {
    "full": lambda: kernels.attention(*[zeros(2, 8, 512, 128)] * 3),
    "causal, grouped": lambda: kernels.attention(
        zeros(2, 8, 512, 128), *[zeros(2, 2, 512, 128)] * 2, causal=True
    ),
    "heads second": lambda: kernels.attention(
        *[zeros(2, 512, 8, 128)] * 3, causal=True, heads_first=False
    ),
    "window": lambda: kernels.attention(*[zeros(1, 8, 2048, 128)] * 3, causal=True, window=1024),
    "soft cap": lambda: kernels.attention(*[zeros(1, 8, 2048, 64)] * 3, causal=True, softcap=30.0),
    "256": lambda: kernels.attention(*[zeros(1, 8, 2048, 256)] * 3, causal=True),
    "192 and 128": lambda: kernels.attention(
        *[zeros(1, 8, 2048, 192)] * 2, zeros(1, 8, 2048, 128), causal=True
    ),
    "96": lambda: kernels.attention(*[zeros(1, 8, 2048, 96)] * 3),
    "64, soft cap, a full device": lambda: kernels.attention(
        *[zeros(4, 32, 1024, 64)] * 3, softcap=30.0
    ),
    "32, ragged, a full device": lambda: kernels.attention(
        *[zeros(16384, 32, 32)] * 3,
        causal=True,
        window=100,
        cu_seqlens=np.zeros(9, np.int32),
        max_seqlen=4096,
    ),
    "three warpgroups": lambda: kernels.attention(*[zeros(1, 8, 1024, 64)] * 3, rows=192),
    "three warpgroups, 96": lambda: kernels.attention(
        *[zeros(1, 8, 1024, 96)] * 3, causal=True, rows=192
    ),
    "four warpgroups, full": lambda: kernels.attention(*[zeros(1, 8, 1024, 64)] * 3, rows=256),
    "four warpgroups, grouped, V narrower": lambda: kernels.attention(
        zeros(1, 8, 1024, 32), zeros(1, 2, 1024, 32), zeros(1, 2, 1024, 64), rows=256
    ),
    "four warpgroups": lambda: kernels.attention(
        *[zeros(1, 8, 1024, 64)] * 3, causal=True, rows=256
    ),
    "three warpgroups, 128": lambda: kernels.attention(
        *[zeros(1, 8, 8192, 128)] * 3, causal=True, rows=192
    ),
    "three warpgroups, V wider": lambda: kernels.attention(
        *[zeros(1, 8, 1024, 72)] * 2, zeros(1, 8, 1024, 96), rows=192
    ),
    "four warpgroups, V narrower": lambda: kernels.attention(
        *[zeros(1, 8, 1024, 64)] * 2, zeros(1, 8, 1024, 48), causal=True, rows=256
    ),
    "odd lengths": lambda: kernels.attention(
        zeros(1, 8, 1001, 128), *[zeros(1, 8, 777, 128)] * 2, causal=True
    ),
    "float8": lambda: kernels.attention(
        *[zeros(2, 8, 512, 128).astype(E4)] * 3,
        causal=True,
        q_scale=np.ones(8, np.float32),
        k_scale=2.0,
        v_scale=np.ones(8, np.float32),
    ),
    "float8, 256": lambda: kernels.attention(*[zeros(1, 8, 2048, 256).astype(E4)] * 3),
    "ragged": lambda: kernels.attention(
        *[zeros(3000, 8, 128)] * 3, causal=True, cu_seqlens=np.zeros(4, np.int32), max_seqlen=1500
    ),
}


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    "name, target",
    [
        (name, target)
        for name in FORMS
        for target in ("sm_90a", "sm_80")
        if target == "sm_90a" or "warpgroups" not in name
    ],
)
def test_it_assembles(name, target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    with launches() as found:
        FORMS[name]()
    for kernel, args, kwargs in found:
        compiled = kernel.compile(*args, target=target, **kwargs)
        assert compiled.resources.clean, compiled.resources.log
        assert target != "sm_90a" or "wgmma" in compiled.ptx and "setmaxnreg" in compiled.ptx, [
            d for d in compiled.decisions if "one role" in d
        ]


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("sums", [False, True], ids=["", "sums"])
@pytest.mark.parametrize("keys", [4096, 1000])
@pytest.mark.parametrize(
    "options",
    [{}, dict(causal=True), dict(causal=True, window=1024)],
    ids=["full", "causal", "window"],
)
@pytest.mark.parametrize("d", [32, 64, 96, 128])
def test_what_the_library_chooses_assembles(d, options, keys, sums, monkeypatch):
    """Large launches, with three and four warpgroups: their threads have the fewest registers."""
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a", raising=False)
    q, k = (np.broadcast_to(zeros(1, 1, 1, d), (1, 16, n, d)) for n in (4096, keys))
    monkeypatch.setattr(sys.modules["tkc.kernels.attention_blocks"], "_mapped", lambda x: True)
    with launches() as found:
        kernels.attention(q, k, k, with_lse=sums, **options)
    ((kernel, args, kwargs),) = found
    args = [
        f"bf16[{', '.join(map(str, x.shape))}]" if getattr(x, "ndim", 0) == 4 else x for x in args
    ]
    assert (compiled := kernel.compile(*args, target="sm_90a", **kwargs)).resources.clean, (
        compiled.resources.log
    )
    assert "setmaxnreg" in compiled.ptx


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    "d, dtype, target",
    [
        (192, "bfloat16", "sm_80"),
        (192, "bfloat16", "sm_89"),
        (192, "float32", "sm_80"),
        (256, "float32", "sm_89"),
    ],
)
def test_blocks_of_wide_heads_leave_registers_and_shared_memory(d, dtype, target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    with launches() as found:
        kernels.attention(*[numbers((1, 4, 512, d), dtype)] * 3, causal=True)
    assert found
    for kernel, args, kwargs in found:
        compiled = kernel.compile(*args, target=target, **kwargs)
        assert compiled.resources.clean, compiled.resources.log


@pytest.mark.parametrize(
    "batch, heads, queries, keys, d, options, block",
    [
        (16, 32, 1024, 1024, 64, {}, (256, 64)),
        (16, 32, 1024, 1024, 64, dict(causal=True), (64, 64, 4)),
        (4, 64, 4096, 4096, 32, {}, (192, 112)),
        (4, 21, 4096, 4096, 96, {}, (192, 80)),
        (4, 16, 4096, 4096, 128, {}, (192, 64)),
        (1, 8, 1024, 1024, 64, {}, (64, 128)),
        (1, 16, 2048, 2048, 64, {}, (256, 64)),
        (1, 16, 2048, 2048, 64, dict(causal=True), (128, 160)),
        (1, 32, 2048, 2048, 64, dict(causal=True), (64, 96, 3)),
        (1, 32, 2048, 2048, 96, dict(causal=True), (64, 80, 3)),
        (16, 16, 300, 300, 64, {}, (192, 80)),
        (1, 64, 200, 4096, 64, {}, (128, 160)),
        (2, 16, 8192, 8192, 128, dict(causal=True), (192, 64)),
        (1, 16, 12288, 12288, 128, dict(causal=True), (192, 64)),
        (16, 16, 1024, 1024, 128, dict(causal=True), (64, 64, 3)),
        (25, 16, 640, 640, 128, dict(causal=True), (64, 64, 3)),
        (14, 32, 1152, 1152, 64, dict(causal=True), (64, 64, 4)),
        (2, 16, 8192, 8192, 128, {}, (192, 64)),
        (1, 16, 1280, 1280, 128, {}, (192, 64)),
        (5, 16, 3072, 3072, 128, {}, (192, 64)),
        (3, 16, 5120, 1024, 128, {}, (192, 64)),
        (1, 16, 12288, 12288, 128, {}, (192, 64)),
        (3, 16, 5003, 1000, 128, {}, (192, 64)),
        (3, 16, 5003, 400, 128, {}, (192, 80)),
        (3, 16, 5003, 200, 128, {}, (192, 80)),
        (4, 16, 4096, 77, 128, {}, (192, 80)),
        (1, 8, 1000, 1000, 128, {}, (64, 112)),
        (1, 9, 1000, 1000, 128, {}, (128, 112)),
        (3, 16, 1000, 5003, 128, dict(causal=True), (128, 128)),
        (2, 16, 8192, 8192, 128, dict(causal=True, window=1024), (64, 64, 3)),
        (1, 32, 16384, 16384, 64, dict(causal=True, window=1024), (64, 96, 3)),
        (1, 8, 1024, 1024, 128, dict(causal=True), (64, 128)),
        (16, 32, 1024, 1024, 64, dict(columns=96), (192, 96)),
        (16, 32, 1024, 1024, 64, dict(rows=192), (192, 96)),
    ],
)
def test_default_blocks(batch, heads, queries, keys, d, options, block, monkeypatch):
    """Three and four warpgroups where a row is finished sooner so, and the grid still fills the
    device; with programs of their own where masks cut what rows see.
    """
    for target, rows in (("sm_90a", block), ("sm_80", None)):
        if target == "sm_80" and options.get("rows"):
            continue
        monkeypatch.setattr(tkc, "target_of", lambda x, target=target: target, raising=False)
        with launches() as found:
            kernels.attention(
                zeros(batch, heads, queries, d), *[zeros(batch, heads, keys, d)] * 2, **options
            )
        ((_, _, chosen),) = found
        if rows:
            assert (
                chosen["BM"],
                chosen["BN"],
                *([n] if (n := chosen.get("programs", 1)) > 1 else []),
            ) == rows and chosen.get("num_warps") == (rows[0] // 16 if rows[0] > 128 else None)
        else:
            assert chosen["BM"] <= 128 and "num_warps" not in chosen


@pytest.mark.parametrize(
    "target, heads, rows",
    [("sm_80", 6, 64), ("sm_80", 8, 128), ("sm_89", 8, 64), ("sm_89", 9, 128)],
)
def test_default_blocks_ask_the_target_how_many_multiprocessors_it_has(
    target, heads, rows, monkeypatch
):
    """16 programs of 64 rows a head: smaller blocks as long as each has a multiprocessor, 108 of an
    sm_80 and 128 of an sm_89.
    """
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    with launches() as found:
        kernels.attention(*[zeros(1, heads, 1024, 64)] * 3)
    assert found[0][2]["BM"] == rows


def test_default_blocks_of_rows_that_no_tensor_map_copies(monkeypatch):
    """Warpgroups share a program only where tensor maps feed them: rows of 66 elements do not begin
    at multiples of 16 bytes, every second element is not dense.
    """
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a", raising=False)
    odd, wide = zeros(16, 32, 1024, 66), zeros(16, 32, 1024, 128)
    for q, k, v in (
        (odd,) * 3,
        (wide[..., ::2],) * 3,
        (wide[..., :64], wide[..., :64], odd[..., :64]),
    ):
        with launches() as found:
            kernels.attention(q, k, v)
        assert found[0][2]["BM"] == 128 and "num_warps" not in found[0][2]
    with launches() as found:
        kernels.attention(*[wide[..., 64:]] * 3)
    assert found[0][2]["BM"] == 256


@pytest.mark.parametrize("lengths, rows", [((4096,) * 8, 256), ((64,) * 512, 128)])
def test_default_blocks_of_ragged_batches(lengths, rows, monkeypatch):
    """Short sequences would leave most rows of a large block empty."""
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a", raising=False)
    with launches() as found:
        kernels.attention(
            *[zeros(sum(lengths), 32, 64)] * 3,
            cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            max_seqlen=4096,
        )
    assert found[0][2]["BM"] == rows and found[0][2].get("num_warps") == (
        16 if rows == 256 else None
    )


def test_many_warpgroups_are_refused_where_there_are_none(monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_80", raising=False)
    with pytest.raises(tkc.LaunchError, match="rows = 192 of bfloat16 is not for sm_80"):
        FORMS["three warpgroups"]()


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_decoding_assembles(target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    with launches() as found:
        kernels.attention_decode(
            zeros(4, 32, 1, 128), *[zeros(4, 8, 8192, 128)] * 2, np.zeros(4, np.int32)
        )
    for kernel, args, kwargs in found:
        assert kernel.compile(*args, target=target, **kwargs).resources.clean


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda o: " ".join(f"{k} {v}" for k, v in o.items()) or "full"
)
@pytest.mark.parametrize(
    "shape",
    [
        (2, 4, 4, 512, 512, 128, 128),
        (1, 8, 2, 300, 1003, 64, 64),
        (1, 4, 2, 257, 257, 256, 256),
        (2, 4, 1, 190, 190, 192, 128),
        (3, 8, 2, 1, 2000, 128, 128),
    ],
    ids=lambda s: "x".join(map(str, s)),
)
def test_on_a_gpu(shape, options):
    torch = pytest.importorskip("torch")
    arrays = operands(*shape, "bfloat16")
    moved = [torch.tensor(x.astype(np.float32)).to("cuda", torch.bfloat16) for x in arrays]
    out, sums = kernels.attention(*moved, with_lse=True, **options)
    near((out.float().cpu().numpy(), sums.cpu().numpy()), attention(*arrays, **options), "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "d, rows, columns",
    [
        (64, 192, 96),
        (64, 192, 128),
        (64, 256, 64),
        (96, 192, 64),
        (128, 192, 64),
        (128, 128, 112),
        (128, 128, 80),
        (32, 192, 112),
        (32, 256, 64),
    ],
)
def test_three_and_four_warpgroups_on_a_gpu(d, rows, columns, causal):
    torch = pytest.importorskip("torch")
    for queries, keys in (512, 512), (1000, 777), (64, 3000):
        arrays = operands(2, 4, 2, queries, keys, d, d, "bfloat16")
        moved = [torch.tensor(x.astype(np.float32)).to("cuda", torch.bfloat16) for x in arrays]
        out, sums = kernels.attention(
            *moved, causal=causal, with_lse=True, rows=rows, columns=columns
        )
        near(
            (out.float().cpu().numpy(), sums.cpu().numpy()),
            attention(*arrays, causal=causal),
            "bfloat16",
        )


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
def test_fused_boundaries_on_a_gpu(d, causal):
    """Programs of one step and of many, more and fewer than blocks; rows and keys that end inside a
    block.
    """
    torch = pytest.importorskip("torch")
    from benchmarks.harness import example

    kernel = example("attention").attention
    for batch, queries, keys in (
        (1, 128, 128),
        (2, 130, 1),
        (4, 1000, 777),
        (40, 512, 512),
        (1, 64, 300),
    ):
        q, k, v = arrays = operands(batch, 4, 4, queries, keys, d, d, "bfloat16")
        moved = [torch.tensor(x.astype(np.float32)).to("cuda", torch.bfloat16) for x in arrays]
        out = torch.full_like(moved[0], float("nan"))
        for _ in range(3):
            kernel[tkc.cdiv(queries, 128), 4, batch](
                *moved, out, d**-0.5, CAUSAL=causal, D=d, BM=128, BN=128, cross_tile_prologue=True
            )
        want = attention(q, k, v, causal=causal)[0]
        assert np.abs(out.float().cpu().numpy() - want).max() <= 0.02 * max(1, np.abs(want).max())


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "d, columns, count",
    [(32, 64, 4), (64, 64, 4), (64, 128, 2), (96, 64, 3), (128, 64, 3), (128, 64, 2), (256, 64, 2)],
)
def test_co_resident_programs_on_a_gpu(d, columns, count, causal):
    """Whole tile groups and groups with padding tiles, fewer than blocks and more; programs whose
    columns are all masked.
    """
    torch = pytest.importorskip("torch")
    from benchmarks.harness import example

    kernel = example("attention").attention
    for batch, queries, keys in (
        (1, 64, 64),
        (2, 130, 1),
        (4, 1000, 777),
        (40, 512, 512),
        (1, 64, 300),
        (2, 700, 2000),
    ):
        q, k, v = arrays = operands(batch, 4, 4, queries, keys, d, d, "bfloat16")
        moved = [torch.tensor(x.astype(np.float32)).to("cuda", torch.bfloat16) for x in arrays]
        out = torch.full_like(moved[0], float("nan"))
        for _ in range(3):
            kernel[tkc.cdiv(queries, 64), 4, batch](
                *moved,
                out,
                d**-0.5,
                CAUSAL=causal,
                D=d,
                BM=64,
                BN=columns,
                roles="co_resident",
                programs=count,
            )
        want = attention(q, k, v, causal=causal)[0]
        assert np.abs(out.float().cpu().numpy() - want).max() <= 0.02 * max(1, np.abs(want).max())


@pytest.mark.gpu
@pytest.mark.parametrize("d", [64, 96, 128])
@pytest.mark.parametrize("window", [1, 100, 1024])
def test_a_window_of_co_resident_programs_on_a_gpu(d, window):
    """As the library chooses where a launch fills the device, also of ragged batches, with and
    without log-sum-exp.
    """
    torch = pytest.importorskip("torch")
    arrays = operands(1, 12, 4, 4100, 4100, d, d, "bfloat16")
    moved = [torch.tensor(x.astype(np.float32)).to("cuda", torch.bfloat16) for x in arrays]
    want, sums = attention(*arrays, causal=True, window=window)
    out, lse = kernels.attention(*moved, causal=True, window=window, with_lse=True)
    near((out.float().cpu().numpy(), lse.cpu().numpy()), (want, sums), "bfloat16")
    assert (kernels.attention(*moved, causal=True, window=window) - out).abs().max() <= 0.02 * max(
        1, float(out.abs().max())
    )
    flat = [x[0].swapaxes(0, 1).contiguous() for x in moved]
    cu_seqlens = torch.tensor([0, 1500, 1500, 4100], dtype=torch.int32, device="cuda")
    ragged = kernels.attention(
        *flat, causal=True, window=window, cu_seqlens=cu_seqlens, max_seqlen=2600
    )
    for start, end in (0, 1500), (1500, 4100):
        part = attention(*(x[:, :, start:end] for x in arrays), causal=True, window=window)[0][0]
        assert np.abs(
            ragged[start:end].float().cpu().numpy().swapaxes(0, 1) - part
        ).max() <= 0.02 * max(1, np.abs(part).max())


@pytest.mark.gpu
def test_ragged_and_decoding_on_a_gpu():
    torch = pytest.importorskip("torch")
    lengths = (300, 5, 0, 1000, 128)
    cu_seqlens, tokens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), sum(lengths)
    q, k, v = (numbers((tokens, h, 128), "bfloat16", i) for i, h in enumerate((4, 2, 2)))

    def here(x):
        return torch.tensor(np.asarray(x, np.float32)).to("cuda", torch.bfloat16)

    out, sums = kernels.attention(
        here(q),
        here(k),
        here(v),
        causal=True,
        cu_seqlens=torch.tensor(cu_seqlens).cuda(),
        max_seqlen=1000,
        with_lse=True,
    )
    for start, end in pairwise(cu_seqlens):
        if start == end:
            continue
        alone = [np.ascontiguousarray(x[start:end].swapaxes(0, 1)[None]) for x in (q, k, v)]
        near(
            (
                out[start:end].float().cpu().numpy().swapaxes(0, 1)[None],
                sums[None, :, start:end].cpu().numpy(),
            ),
            attention(*alone, causal=True),
            "bfloat16",
        )
    q, k, v = operands(4, 32, 8, 1, 3000, 128, 128, "bfloat16")
    many = np.array([3000, 1, 1777, 64], np.int32)
    out, sums = kernels.attention_decode(
        here(q), here(k), here(v), torch.tensor(many).cuda(), with_lse=True
    )
    for i, n in enumerate(many):
        near(
            (out[i : i + 1].float().cpu().numpy(), sums[i : i + 1].cpu().numpy()),
            attention(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]),
            "bfloat16",
        )
