"""attention_latent against float64: one query and several, few heads and many, dense caches and
pages, float8; with the threads of GPUs simulated, and compiled for them.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, double, numbers
from tests.kernels.test_attention import near
from tkc import kernels

LENGTHS = (7, 900, 513, 0)
RANK, D = 64, 80


def attend(q, cache, lengths, rank, scale=None):
    """(softmax(q cacheᵀ · scale) values, log-sum-exp) in float64, of whole sequences."""
    (batch, queries, heads, d), out = q.shape, []
    out, sums = np.zeros((batch, queries, heads, rank)), np.full((batch, queries, heads), -np.inf)
    for b, t in np.ndindex(batch, queries):
        seen = int(lengths[b]) - queries + t + 1
        if seen <= 0:
            continue
        keys = double(cache[b, :seen])
        s = double(q[b, t]) @ keys.T * (d**-0.5 if scale is None else scale)
        top = s.max(1, keepdims=True)
        p = np.exp(s - top)
        out[b, t] = p @ keys[:, :rank] / p.sum(1, keepdims=True)
        sums[b, t] = top[:, 0] + np.log(p.sum(1))
    return out, sums


def filled(lengths, dtype="bfloat16", d=D, capacity=0):
    """A dense cache with NaN behind each sequence's end."""
    cache = numbers((len(lengths), capacity or max(lengths), d), dtype, 1)
    for b, n in enumerate(lengths):
        cache[b, n:] = np.nan
    return cache


def in_pages(cache, lengths, page):
    """The same in a pool with its pages shuffled, NaN wherever nothing belongs to a sequence, and
    the table, with nonsense behind its end.
    """
    each = -(-max(lengths) // page)
    table = np.random.default_rng(page).permutation(len(lengths) * each + 3)
    table = table[: len(lengths) * each].reshape(len(lengths), each).astype(np.int32)
    pool = np.full((len(lengths) * each + 3, page, cache.shape[-1]), np.nan, cache.dtype)
    for b, n in enumerate(lengths):
        for i in range(-(-n // page)):
            rows = min(page, n - i * page)
            pool[table[b, i], :rows] = cache[b, i * page : i * page + rows]
        table[b, -(-n // page) :] = -12345
    return pool, table


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("page", [0, 16, 40, 64])
@pytest.mark.parametrize(
    "queries, heads", [(1, 5), (1, 16), (1, 40), (1, 128), (3, 16), (37, 2), (0, 4)]
)
def test_decoding_and_prefill(queries, heads, page, dtype):
    lengths = np.array(LENGTHS, np.int32)
    q, cache = numbers((4, queries, heads, D), dtype), filled(LENGTHS, dtype)
    store, table = in_pages(cache, LENGTHS, page) if page else (cache, None)
    got = kernels.attention_latent(q, store, lengths, RANK, with_lse=True, pages=table)
    near(got, attend(q, cache, lengths, RANK), dtype)


@pytest.mark.parametrize("rank, d", [(512, 576), (512, 512), (32, 39), (288, 300)])
def test_ranks(rank, d):
    lengths = np.array((33, 300), np.int32)
    q, cache = numbers((2, 1, 20, d), "bfloat16"), filled((33, 300), d=d)
    got = kernels.attention_latent(q, cache, lengths, rank, scale=192**-0.5, with_lse=True)
    near(got, attend(q, cache, lengths, rank, 192**-0.5), "bfloat16")


@pytest.mark.parametrize("page", [0, 64])
@pytest.mark.parametrize("latent_scale", [0.5, np.array([0.5], np.float32), None])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_float8_cache(page, latent_scale, dtype):
    lengths = np.array(LENGTHS, np.int32)
    q, cache = numbers((4, 1, 20, D), dtype), filled(LENGTHS, "float8_e4m3fn")
    store, table = in_pages(cache, LENGTHS, page) if page else (cache, None)
    got = kernels.attention_latent(
        q, store, lengths, RANK, with_lse=True, pages=table, latent_scale=latent_scale
    )
    wide = double(cache) * (1 if latent_scale is None else 0.5)
    near(got, attend(q, wide, lengths, RANK), dtype)


@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("queries, heads", [(1, 5), (1, 40), (3, 16), (0, 4)])
def test_float8_queries(queries, heads, page):
    """Probabilities are rounded to float8, not the log-sum-exp."""
    lengths = np.array(LENGTHS, np.int32)
    q = numbers((4, queries, heads, D), "float8_e4m3fn")
    cache = filled(LENGTHS, "float8_e4m3fn")
    scales = numbers((4, queries, heads), "float32", 5) ** 2 + 0.5
    store, table = in_pages(cache, LENGTHS, page) if page else (cache, None)
    for given in (0.75, scales):
        got = kernels.attention_latent(
            *(q, store, lengths, RANK),
            with_lse=True,
            pages=table,
            latent_scale=0.5,
            q_scale=given,
        )
        assert got[0].dtype == ml_dtypes.bfloat16
        wide = double(q) * (given if isinstance(given, float) else given[..., None])
        near_float8(got, attend(wide, double(cache) * 0.5, lengths, RANK))


def near_float8(got, want):
    """Elements within a step of float8 of the largest, the root of their mean square within half of
    one of float8's relative steps of theirs; log-sum-exps as of other types.
    """
    difference, seen = double(got[0]) - want[0], ~np.isinf(want[1])
    assert np.abs(difference).max(initial=0) <= 2**-4 * np.abs(want[0]).max(initial=1)
    assert np.square(difference).sum() <= 2**-8 * np.square(want[0]).sum()
    assert (np.isinf(got[1]) == ~seen).all()
    np.testing.assert_allclose(got[1][seen], want[1][seen], rtol=2e-3, atol=2e-3)


def test_the_same_bits_twice():
    q, cache = numbers((1, 1, 40, D), "bfloat16"), filled((900,))
    lengths = np.array([900], np.int32)
    one, two = (kernels.attention_latent(q, cache, lengths, RANK) for _ in range(2))
    assert (one.view(np.int16) == two.view(np.int16)).all()


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    q, cache = numbers((2, 3, 4, D)), numbers((2, 50, D), seed=1)
    lengths = np.array([50, 17], np.int32)
    given = [torch.from_numpy(x).bfloat16() for x in (q, cache)]
    out, sums = kernels.attention_latent(*given, torch.from_numpy(lengths), RANK, with_lse=True)
    want = attend(*(x.double().numpy() for x in given), lengths, RANK)
    near((out.float().numpy(), sums.numpy()), want, "bfloat16")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("heads, queries, page", [(16, 1, 0), (40, 1, 64), (24, 3, 16)])
def test_threads(heads, queries, page, target, monkeypatch):
    """The compiled program by its threads, under the happens-before check."""
    lengths = np.array((70, 3), np.int32)
    q, cache = numbers((2, queries, heads, D), "bfloat16"), filled((70, 3))
    store, table = in_pages(cache, (70, 3), page) if page else (cache, None)
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    monkeypatch.setattr(tkc, "target_of", lambda x: target)
    got = kernels.attention_latent(q, store, lengths, RANK, with_lse=True, pages=table)
    near(got, attend(q, cache, lengths, RANK), "bfloat16")


@pytest.mark.parametrize("cached, page", [("bfloat16", 0), ("float8_e4m3fn", 64)])
def test_threads_that_share_columns(cached, page, monkeypatch):
    """Sums of 512 columns are two warpgroups', which both need all probabilities."""
    lengths = np.array((140, 3), np.int32)
    q, cache = numbers((2, 1, 70, 576), "bfloat16"), filled((140, 3), cached, 576)
    q[:, :, 1], q[:, :, 2] = 0, q[:, :, 2] * 2.0**20  # more than float16 holds
    store, table = in_pages(cache, (140, 3), page) if page else (cache, None)
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a")
    got = kernels.attention_latent(q, store, lengths, 512, with_lse=True, pages=table)
    near(got, attend(q, cache, lengths, 512), "bfloat16")


@pytest.mark.parametrize("page", [0, 64])
def test_threads_that_relay_latents(page, monkeypatch):
    """Of float8 both ways: one copy of the latents is read as keys, and relaid as values."""
    lengths = np.array((140, 3), np.int32)
    q, cache = numbers((2, 1, 70, 576), "float8_e4m3fn"), filled((140, 3), "float8_e4m3fn", 576)
    store, table = in_pages(cache, (140, 3), page) if page else (cache, None)
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a")
    scales = numbers((2, 1, 70), "float32", 5) ** 2 + 0.5
    got = kernels.attention_latent(
        q, store, lengths, 512, with_lse=True, pages=table, q_scale=scales
    )
    near_float8(got, attend(double(q) * scales[..., None], cache, lengths, 512))


def test_threads_without_8_bits(monkeypatch):
    """Queries become float16 once, where tensor cores do not take float8."""
    lengths = np.array((70, 3), np.int32)
    q, cache = numbers((2, 1, 16, D), "float8_e4m3fn"), filled((70, 3), "float8_e4m3fn")
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_80")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_80")
    scales = numbers((2, 1, 16), "float32", 5) ** 2 + 0.5
    got = kernels.attention_latent(q, cache, lengths, RANK, with_lse=True, q_scale=scales)
    assert got[0].dtype == ml_dtypes.bfloat16
    near(got, attend(double(q) * scales[..., None], cache, lengths, RANK), "bfloat16")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("queries, heads", [(1, 16), (1, 64), (1, 128), (4, 128)])
@pytest.mark.parametrize(
    "of_query, cached",
    [
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float8_e4m3fn"),
        ("float8_e4m3fn", "float8_e4m3fn"),
    ],
)
def test_it_assembles(queries, heads, page, of_query, cached, target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target)
    kind = getattr(ml_dtypes, cached)
    cache, pages = np.zeros((64, 8192, 576), kind), None
    if page:
        cache, pages = np.zeros((64, page, 576), kind), np.zeros((64, 8192 // page), np.int32)
    lengths = np.zeros(64, np.int32)
    q = np.zeros((64, queries, heads, 576), getattr(ml_dtypes, of_query))
    assembles(
        lambda: kernels.attention_latent(q, cache, lengths, 512, pages=pages, with_lse=True),
        [target],
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(rank=40), "rank is a multiple of 32 up to 80"),
        (dict(rank=96), "rank is a multiple of 32 up to 80"),
        (dict(scale=-1.0), "scale is positive"),
        (dict(latent_scale=2.0), "latent_scale is for a cache of float8_e4m3"),
        (dict(q_scale=2.0), "q_scale is for q of float8_e4m3"),
        (dict(lengths=np.zeros(2, np.int64)), "lengths are int32"),
        (dict(cache=np.zeros((3, 8, D), np.float16)), "they must be as many, or pass pages"),
        (
            dict(cache=np.zeros((2, 8, D), np.float32)),
            "expected q of bfloat16, float16 or float8_e4m3",
        ),
        (dict(cache=np.zeros((2, 8, 81), np.float16)), "they must have as many"),
        (dict(cache=np.zeros((2, 1, 8, D), np.float16)), "expected q of [batch, queries, heads"),
        (dict(pages=np.zeros((2, 2), np.int64)), "pages is int32"),
    ],
)
def test_bad_arguments(change, words):
    given = dict(
        q=np.zeros((2, 1, 4, D), np.float16),
        cache=np.zeros((2, 8, D), np.float16),
        lengths=np.zeros(2, np.int32),
        rank=RANK,
    )
    with pytest.raises(tkc.LaunchError, match=words.replace("[", r"\[")):
        kernels.attention_latent(**(given | change))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "of_query, cached",
    [
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float8_e4m3fn"),
        ("float8_e4m3fn", "float8_e4m3fn"),
    ],
)
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("queries, heads", [(1, 16), (1, 64), (1, 128), (3, 128)])
def test_on_a_gpu(queries, heads, page, of_query, cached):
    torch = pytest.importorskip("torch")

    def there(x):
        whole = torch.from_numpy(x.view(np.uint8 if x.itemsize == 1 else np.int16)).cuda()
        return whole.view(torch.float8_e4m3fn if x.itemsize == 1 else torch.bfloat16)

    lengths = np.array(LENGTHS, np.int32)
    q, cache = numbers((4, queries, heads, 576), of_query), filled(LENGTHS, cached, 576)
    store, table = in_pages(cache, LENGTHS, page) if page else (cache, None)
    got = kernels.attention_latent(
        there(q),
        there(store),
        torch.from_numpy(lengths).cuda(),
        512,
        with_lse=True,
        pages=None if table is None else torch.from_numpy(table).cuda(),
    )
    out = [x.double().cpu().numpy() for x in got]
    want = attend(q, cache, lengths, 512)
    near_float8(out, want) if q.itemsize == 1 else near(out, want, "bfloat16")
