"""attention_decode with several queries of a sequence, windows, soft caps and sinks, against
float64; compiled for GPUs.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, double, launches, numbers
from tests.kernels.test_attention import near, paged, zeros
from tests.kernels.test_attention_backward import everything
from tkc import kernels
from tkc.codegen.ptx.ptxas import find

LENGTHS = (7, 900, 513, 0)
SINKS = np.linspace(-1, 3, 8, dtype=np.float32)
CAPPED = dict(softcap=2.0)
CASES = {
    "one, window": (1, dict(window=100)),
    "one, soft cap and sinks": (1, dict(softcap=2.0, sinks=SINKS)),
    "five": (5, {}),
    "five, sinks": (5, dict(sinks=SINKS)),
    "seventy, window, soft cap": (70, dict(window=100, softcap=2.0)),
    "a hundred and thirty, sinks": (130, dict(sinks=SINKS)),
    "none": (0, {}),
}


def check(q, k, v, lengths, got, **options):
    for i, n in enumerate(lengths):
        one = q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]
        want, _ = everything(*one, np.zeros(got[0][i : i + 1].shape), 0, causal=True, **options)
        near([x[i : i + 1] for x in got], want, str(q.dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("name", CASES)
def test_several_queries(name, page, dtype):
    queries, options = CASES[name]
    k, v, *pools, table, lengths = paged(page or 64, dtype, LENGTHS)
    q = numbers((4, 8, queries, 64), dtype)
    if not page:
        table, pools = None, [x.copy() for x in (k, v)]
        for i, n in enumerate(lengths):
            for pool in pools:
                pool[i, :, n:] = np.nan  # room that was not written yet
    got = kernels.attention_decode(q, *pools, lengths, with_lse=True, pages=table, **options)
    check(q, k, v, lengths, got, **options)


def test_many_queries_are_blocks_of_one_head():
    """As of attention without a cache: results of one launch, none to be added up."""
    k, v, *pools, table, lengths = paged(64, "float32", LENGTHS)
    with launches() as found:
        kernels.attention_decode(numbers((4, 8, 64, 64)), *pools, lengths, pages=table)
    assert [kernel.__name__ for kernel, *_ in found] == ["_attention"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("page", [0, 16, 64])
def test_many_queries_in_threads(page, target, monkeypatch):
    """The compiled programs by their threads, under the happens-before check."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    ends = 130, 7, 70, 0
    k, v, *pools, table, lengths = paged(page or 64, "bfloat16", ends)
    q = numbers((4, 8, 70, 64), "bfloat16")
    if not page:
        table, pools = None, [x.copy() for x in (k, v)]
        for i, n in enumerate(lengths):
            for pool in pools:
                pool[i, :, n:] = np.nan
    got = kernels.attention_decode(q, *pools, lengths, with_lse=True, pages=table)
    check(q, k, v, lengths, got)


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("d", [64, 96, 128, 256])
@pytest.mark.parametrize("page", [0, 16, 64, 128])
def test_many_queries_assemble(page, d, target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    lengths, pages = np.zeros(4, np.int32), None
    pools = [zeros(4, 8, 8192, d)] * 2
    if page:
        pages = np.zeros((4, 8192 // page), np.int32)
        pools = [zeros(600, page, 8, d)] * 2
    with launches() as found:
        kernels.attention_decode(zeros(4, 32, 2048, d), *pools, lengths, pages=pages)
    ((kernel, args, kwargs),) = found
    compiled = kernel.compile(*args, target=target, **kwargs)
    assert compiled.resources.clean, compiled.resources.log
    if target == "sm_90a" and page != 16:  # as where keys are dense: masks where they cut, roles
        said = " ".join(compiled.decisions)
        assert "computed only where it is not full" in said and "plan: roles" in said
        assert ("co_resident" in said) == (d <= 128)


def test_several_queries_of_float8():
    k, v, *pools, table, lengths = paged(64, "float8_e4m3fn", LENGTHS)
    q = numbers((4, 8, 5, 64), "float8_e4m3fn")
    qs = np.linspace(0.5, 2, 8, dtype=np.float32)
    got = kernels.attention_decode(
        q, *pools, lengths, with_lse=True, pages=table, q_scale=qs, window=300
    )
    wide = (double(q) * qs[:, None, None]).astype(np.float32)
    for i, n in enumerate(lengths):
        one = wide[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]
        none = np.zeros(got[0][i : i + 1].shape)
        want, _ = everything(*one, none, 0, causal=True, window=300)
        near([x[i : i + 1] for x in got], want, "bfloat16")


def test_a_single_query_with_a_window_is_decoded():
    q, k = numbers((1, 2, 1, 32)), numbers((1, 1, 700, 32), seed=1)
    with launches() as found:
        kernels.attention(q, k, k, causal=True, window=64, sinks=SINKS[:2])
    assert [kernel.__name__ for kernel, *_ in found] == ["_decode", "_combine"]


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("page", [0, 16, 64])
def test_it_assembles(page, target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    lengths, pages = np.zeros(4, np.int32), None
    pools = [zeros(4, 8, 8192, 128)] * 2
    if page:
        pages = np.zeros((4, 8192 // page), np.int32)
        pools = [zeros(600, page, 8, 128)] * 2
    options = dict(window=1000, softcap=20.0, sinks=np.zeros(32, np.float32))
    with launches() as found:
        kernels.attention_decode(zeros(4, 32, 16, 128), *pools, lengths, pages=pages, **options)
    for kernel, args, kwargs in found:
        compiled = kernel.compile(*args, target=target, **kwargs)
        assert compiled.resources.clean, compiled.resources.log


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name):
    torch = pytest.importorskip("torch")
    queries, options = CASES[name]
    k, v, *pools, table, lengths = paged(64, "float32", LENGTHS)
    q = numbers((4, 8, queries, 64))
    there = [torch.from_numpy(x).cuda() for x in (q, *pools, lengths, table)]
    given = {
        n: torch.from_numpy(x).cuda() if isinstance(x, np.ndarray) else x
        for n, x in options.items()
    }
    got = kernels.attention_decode(*there[:4], with_lse=True, pages=there[4], **given)
    check(q, k, v, lengths, [x.cpu().numpy() for x in got], **options)


def shared_prefix(length, page, dtype, shared=2, d=64):
    """(keys and values of a prefix, [shared, length, D], and lengths, tables and pools that hold it
    before each sequence's own).
    """
    keys, values = (numbers((shared, length, d), dtype, seed) for seed in (5, 6))
    if not page:
        return keys, values, None
    count = -(-length // page)
    pools = [np.full((count, page, shared, d), np.nan, x.dtype) for x in (keys, values)]
    for pool, x in zip(pools, (keys, values), strict=True):
        for i in range(count):
            rows = min(page, length - i * page)
            pool[i, :rows] = x[:, i * page : i * page + rows].swapaxes(0, 1)
    return keys, values, pools


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("queries, options", [(1, {}), (5, dict(sinks=SINKS)), (1, CAPPED)])
@pytest.mark.parametrize("length", [1, 700])
def test_a_prefix_that_sequences_share(length, queries, options, page, dtype):
    k, v, *pools, table, lengths = paged(page or 64, dtype, LENGTHS)
    keys, values, prefix = shared_prefix(length, page, dtype)
    q = numbers((4, 8, queries, 64), dtype)
    if page:
        first = len(pools[0])
        pools = [np.concatenate([a, b]) for a, b in zip(pools, prefix, strict=True)]
        pages = np.arange(first, len(pools[0]), dtype=np.int32)
        before = dict(prefix_pages=pages, prefix_length=np.array([length], np.int32))
    else:
        table, pools, before = None, [k, v], dict(prefix_k=keys, prefix_v=values)
    got = kernels.attention_decode(
        q, *pools, lengths, with_lse=True, pages=table, **before, **options
    )
    whole = [
        np.concatenate([np.broadcast_to(a, (4, *a.shape)), b], 2)
        for a, b in ((keys, k), (values, v))
    ]
    for i, n in enumerate(lengths):
        if n < queries:  # a query that is before its sequence sees all of the prefix: below
            continue
        one = q[i : i + 1], *(x[i : i + 1, :, : length + n] for x in whole)
        want, _ = everything(*one, np.zeros(q[i : i + 1].shape), 0, causal=True, **options)
        near([x[i : i + 1] for x in got], want, dtype)


def test_a_query_without_keys_of_its_own_sees_the_prefix():
    keys, values, _ = shared_prefix(100, 0, "float32")
    q, none = numbers((3, 8, 1, 64)), np.zeros((3, 2, 8, 64), np.float32)
    got = kernels.attention_decode(
        q, none, none, np.zeros(3, np.int32), with_lse=True, prefix_k=keys, prefix_v=values
    )
    whole = [np.broadcast_to(x, (3, *x.shape)) for x in (keys, values)]
    want, _ = everything(q, *whole, np.zeros(q.shape), 0)
    near(got, want, "float32")


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(prefix_k=np.zeros((2, 5, 16), np.float32)), "a prefix is prefix_k and prefix_v, or"),
        (dict(prefix_pages=np.zeros(3, np.int32)), "a prefix is prefix_k and prefix_v, or"),
        (
            dict(prefix_pages=np.zeros(3, np.int32), prefix_length=np.zeros(1, np.int32)),
            "which come with pages",
        ),
        (dict.fromkeys(("prefix_k", "prefix_v"), np.zeros((3, 5, 16), np.float32)), "2 shared"),
        (
            dict.fromkeys(("prefix_k", "prefix_v"), np.zeros((2, 5, 16), np.float32))
            | dict(window=3),
            "there is no window",
        ),
    ],
)
def test_prefixes_that_do_not_fit(change, words):
    q, k = np.zeros((1, 4, 1, 16), np.float32), np.zeros((1, 2, 9, 16), np.float32)
    with pytest.raises(tkc.LaunchError, match=words):
        kernels.attention_decode(q, k, k, np.zeros(1, np.int32), **change)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_prefix_in_threads(target, monkeypatch):
    """The compiled programs by their threads, under the happens-before check."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    q, k = numbers((3, 4, 1, 32), "bfloat16"), numbers((3, 2, 70, 32), "bfloat16", 1)
    keys, values, _ = shared_prefix(90, 0, "bfloat16", d=32)
    lengths = np.array([70, 1, 30], np.int32)
    got = kernels.attention_decode(q, k, k, lengths, with_lse=True, prefix_k=keys, prefix_v=values)
    for i, n in enumerate(lengths):
        whole = [np.concatenate([x, k[i, :, :n]], 1)[None] for x in (keys, values)]
        want, _ = everything(q[i : i + 1], *whole, np.zeros((1, 4, 1, 32)), 0)
        near([x[i : i + 1] for x in got], want, "bfloat16")


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("page", [0, 16, 64])
def test_a_prefix_assembles(page, target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target)
    pages, before = None, dict.fromkeys(("prefix_k", "prefix_v"), zeros(8, 4096, 128))
    pools = [zeros(64, 8, 1024, 128)] * 2
    if page:
        pages, pools = np.zeros((64, 1024 // page), np.int32), [zeros(600, page, 8, 128)] * 2
        before = dict(
            prefix_pages=np.zeros(4096 // page, np.int32), prefix_length=np.zeros(1, np.int32)
        )
    q, lengths = zeros(64, 32, 1, 128), np.zeros(64, np.int32)
    assembles(lambda: kernels.attention_decode(q, *pools, lengths, pages=pages, **before), [target])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_prefix_on_a_gpu(dtype):
    torch = pytest.importorskip("torch")
    q, k = numbers((3, 8, 1, 64), dtype), numbers((3, 2, 300, 64), dtype, 1)
    keys, values, _ = shared_prefix(700, 0, dtype)
    lengths = np.array([300, 1, 30], np.int32)
    kind = getattr(torch, dtype)
    there = [torch.from_numpy(double(x)).cuda().to(kind) for x in (q, k, k, keys, values)]
    got = kernels.attention_decode(
        *there[:3],
        torch.from_numpy(lengths).cuda(),
        with_lse=True,
        prefix_k=there[3],
        prefix_v=there[4],
    )
    got = [x.double().cpu().numpy() for x in got]
    for i, n in enumerate(lengths):
        whole = [np.concatenate([x, k[i, :, :n]], 1)[None] for x in (keys, values)]
        want, _ = everything(q[i : i + 1], *whole, np.zeros((1, 8, 1, 64)), 0)
        near([x[i : i + 1] for x in got], want, dtype)
