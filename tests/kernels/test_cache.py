"""append_to_cache_ against float64: dense caches and pages, halves and pairs, columns that are not
turned, latents, float8; what no token goes to stays as it was.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, double, numbers
from tkc import kernels

POSITIONS = 48


def turned(x, cos, sin, interleaved, first):
    """x, [heads, D], with R columns from `first` on turned, in float64."""
    out, r = double(x).copy(), len(cos)
    pairs = (
        (slice(first, first + 2 * r, 2), slice(first + 1, first + 2 * r, 2))
        if interleaved
        else (slice(first, first + r), slice(first + r, first + 2 * r))
    )
    a, b = (double(x)[:, at] for at in pairs)
    out[:, pairs[0]], out[:, pairs[1]] = a * cos - b * sin, b * cos + a * sin
    return out


def angles(half, dtype="float32"):
    at = np.arange(POSITIONS)[:, None] * 0.3 ** np.arange(1, half + 1)
    return np.cos(at).astype(dtype), np.sin(at).astype(dtype)


def caches(page, batch, heads, widths, dtype):
    """(caches full of sevens, the table of pages, the function (cache, b, position) -> its row)."""
    kind = getattr(ml_dtypes, dtype, dtype)
    if not page:
        found = [np.full((batch, heads, POSITIONS, d), 7, kind) for d in widths]
        return found, None, lambda x, b, at: x[b, :, at]
    each = -(-POSITIONS // page)
    table = np.random.default_rng(page).permutation(batch * each + 2)[: batch * each]
    table = table.reshape(batch, each).astype(np.int32)
    found = [np.full((batch * each + 2, page, heads, d), 7, kind) for d in widths]
    return found, table, lambda x, b, at: x[table[b, at // page], at % page]


def near(got, want, dtype):
    tolerance = {"bfloat16": 2**-8, "float16": 2**-10, "float32": 2e-6, "float8_e4m3fn": 2**-4}
    want = want.astype(np.float64)
    assert (np.abs(double(got) - want) <= tolerance[dtype] * (np.abs(want) + 0.02)).all()


@pytest.mark.parametrize("page", [0, 16, 5])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "heads, d, dv, half, first", [(2, 32, 16, 16, 0), (3, 40, 24, 6, 0), (1, 20, 7, 4, 9)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_writes_where_tokens_belong(heads, d, dv, half, first, interleaved, page, dtype):
    lengths, tokens = np.array([3, 17, 1, 0, POSITIONS + 1], np.int32), 3
    k, v = numbers((5, tokens, heads, d), dtype), numbers((5, tokens, heads, dv), dtype, 1)
    (k_cache, v_cache), table, row = caches(page, 5, heads, (d, dv), dtype)
    want = [double(x) for x in (k_cache, v_cache)]
    cos, sin = angles(half)
    room = POSITIONS if not page else table.shape[1] * page
    cos, sin = (np.resize(x, (room, half)) for x in (cos, sin))
    kernels.append_to_cache_(k, v, k_cache, v_cache, lengths, cos, sin, table, interleaved, first)
    for b, t in np.ndindex(5, tokens):
        at = int(lengths[b]) - tokens + t
        if 0 <= at < room:
            row(want[0], b, at)[:] = turned(k[b, t], cos[at], sin[at], interleaved, first)
            row(want[1], b, at)[:] = double(v[b, t])
    near(k_cache, want[0], dtype)
    near(v_cache, want[1], dtype)


def test_without_angles_keys_stay_as_they_are():
    k = numbers((2, 1, 2, 24), "float16")
    (cache, other), table, row = caches(16, 2, 2, (24, 24), "float16")
    kernels.append_to_cache_(k, k, cache, other, np.array([5, 9], np.int32), pages=table)
    assert (row(cache, 0, 4) == k[0, 0]).all() and (row(other, 1, 8) == k[1, 0]).all()


@pytest.mark.parametrize("scale", [0.25, np.array([0.25, 0.5], np.float32)])
def test_float8(scale):
    k, v = numbers((1, 2, 2, 32), "bfloat16"), numbers((1, 2, 2, 32), "bfloat16", 1)
    (k_cache, v_cache), _, row = caches(0, 1, 2, (32, 32), "float8_e4m3fn")
    cos, sin = angles(16)
    lengths = np.array([8], np.int32)
    kernels.append_to_cache_(
        k, v, k_cache, v_cache, lengths, cos, sin, k_scale=scale, v_scale=scale
    )
    by = np.broadcast_to(scale, (2,))[:, None]
    for t in range(2):
        near(row(k_cache, 0, 6 + t), turned(k[0, t], cos[6 + t], sin[6 + t], False, 0) / by, KIND)
        near(row(v_cache, 0, 6 + t), double(v[0, t]) / by, KIND)


KIND = "float8_e4m3fn"


def test_a_step_of_decoding_by_latents():
    """What is appended is what attention_latent reads."""
    rank, d, lengths = 64, 80, np.array([7, 30], np.int32)
    cache = numbers((2, POSITIONS, d), "float16")
    new, q = numbers((2, 1, 1, d), "float16", 1), numbers((2, 1, 4, d), "float16", 2)
    cos, sin = angles(8)
    kernels.append_to_cache_(new, None, cache[:, None], None, lengths, cos, sin, first=rank)
    for b, n in enumerate(lengths):
        at = n - 1
        near(cache[b, at : at + 1], turned(new[b, 0], cos[at], sin[at], False, rank), "float16")
    assert np.isfinite(double(kernels.attention_latent(q, cache, lengths, rank))).all()


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    k, (cache, _), table = numbers((2, 1, 2, 32)), *caches(16, 2, 2, (32, 32), "float32")[:2]
    cos, sin = angles(16)
    k_cache, v_cache = torch.from_numpy(cache.copy()), torch.from_numpy(cache.copy())
    there = [torch.from_numpy(x) for x in (np.array([5, 9], np.int32), cos, sin, table)]
    kernels.append_to_cache_(*[torch.from_numpy(k)] * 2, k_cache, v_cache, *there)
    near(k_cache[table[1, 0], 8].numpy(), turned(k[1, 0], cos[8], sin[8], False, 0), "float32")


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_it_assembles(page, interleaved, dtype):
    kind = getattr(ml_dtypes, dtype)
    shape, pages = (64, 8, 8192, 128), None
    if page:
        shape, pages = (600, page, 8, 128), np.zeros((64, 8192 // page), np.int32)
    # each takes no memory, for nobody writes it
    cache, values = np.zeros(shape, kind), np.zeros(shape, kind)
    k = np.zeros((64, 1, 8, 128), ml_dtypes.bfloat16)
    cos, lengths = np.zeros((8192, 64), np.float32), np.zeros(64, np.int32)
    scale = 0.5 if "8" in dtype[5:] else None
    assembles(
        lambda: kernels.append_to_cache_(
            *(k, k, cache, values, lengths, cos, cos, pages, interleaved, 0, scale, scale)
        )
    )


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_threads(target, monkeypatch):
    """The compiled program by its threads, under the happens-before check."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    test_it_writes_where_tokens_belong(3, 40, 24, 6, 0, False, 16, "bfloat16")


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(v=None), "v and v_cache come together"),
        (dict(sin=None), "cos and sin come together"),
        (dict(first=33), "first is a column of k, from 0 to 32"),
        (dict(first=1), "R / 2 <= 15"),
        (dict(k_scale=2.0), "scales are for caches of float8_e4m3"),
        (dict(k=np.zeros((2, 1, 32), np.float32)), r"expected k of \[batch, tokens"),
        (dict(lengths=np.zeros(2, np.int64)), "lengths are int32"),
        (dict(v_cache=np.zeros((2, 2, 9, 32), np.float32)), "all but D must agree"),
    ],
)
def test_bad_arguments(change, words):
    def zeros(*shape):
        return np.zeros(shape, np.float32)

    given = dict(k=zeros(2, 1, 2, 32), v=zeros(2, 1, 2, 32))
    given |= dict(k_cache=zeros(2, 2, 8, 32), v_cache=zeros(2, 2, 8, 32))
    given |= dict(lengths=np.zeros(2, np.int32), cos=zeros(8, 16), sin=zeros(8, 16))
    with pytest.raises(tkc.LaunchError, match=words):
        kernels.append_to_cache_(**(given | change))


@pytest.mark.gpu
@pytest.mark.parametrize("page", [0, 16])
def test_on_a_gpu(page):
    torch = pytest.importorskip("torch")
    lengths, k = np.array([3, 17], np.int32), numbers((2, 3, 2, 32))
    (cache, other), table, row = caches(page, 2, 2, (32, 32), "float32")
    cos, sin = angles(16)
    there = [torch.from_numpy(x).cuda() for x in (k, k, cache, other, lengths, cos, sin)]
    kernels.append_to_cache_(*there, None if table is None else torch.from_numpy(table).cuda())
    got = [x.cpu().numpy() for x in there[2:4]]
    for b, t in np.ndindex(2, 3):
        at = int(lengths[b]) - 3 + t
        near(row(got[0], b, at), turned(k[b, t], cos[at], sin[at], False, 0), "float32")
        near(row(got[1], b, at), double(k[b, t]), "float32")
