"""attention_decode with several queries of a sequence, windows, soft caps and sinks, against
float64; compiled for GPUs.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import double, launches, numbers
from tests.kernels.test_attention import near, paged, zeros
from tests.kernels.test_attention_backward import everything
from tkc import kernels
from tkc.codegen.ptx.ptxas import find

LENGTHS = (7, 900, 513, 0)
SINKS = np.linspace(-1, 3, 8, dtype=np.float32)
CASES = {
    "one, window": (1, dict(window=100)),
    "one, soft cap and sinks": (1, dict(softcap=2.0, sinks=SINKS)),
    "five": (5, {}),
    "five, sinks": (5, dict(sinks=SINKS)),
    "seventy, window, soft cap": (70, dict(window=100, softcap=2.0)),
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
