"""Attention of float8 and decoding of pages on a GPU, against float64 and against the scheme's own
rounding.
"""

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.test_attention import paged  # noqa: E402
from tkc import kernels  # noqa: E402

pytestmark = pytest.mark.gpu
E4, BF16 = getattr(torch, "float8_e4m3fn", None), torch.bfloat16


def attended(q, k, v, causal: bool, lift: float | None = None):
    """softmax(q kᵀ D^-½) v in float64; lift: the probabilities, times that, rounded to float8."""
    q, k, v = (
        q.double(),
        *(x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)),
    )
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(
            torch.ones_like(s, dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2]), -torch.inf
        )
    p = (s - s.amax(-1, keepdim=True)).exp()
    kept = p if lift is None else (p * lift).float().to(E4).double() / lift
    return kept @ v / p.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 4, 4, 512, 512, 128),
        (2, 4, 2, 1000, 1000, 128),
        (1, 2, 2, 300, 777, 64),
        (1, 2, 1, 130, 130, 256),
        (1, 2, 2, 1, 900, 96),
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True])
def test_float8(shape, causal):
    """At most twice as far from float64 as that scheme in float64, and the same bits again."""
    batch, heads, shared, queries, keys, d = shape
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(s, device="cuda", generator=generator).to(E4)
        for s in ((batch, heads, queries, d), (batch, shared, keys, d), (batch, shared, keys, d))
    )
    qs, ks, vs = (
        torch.full((heads,), 0.5, device="cuda"),
        torch.full((shared,), 2.0, device="cuda"),
        torch.rand(shared, device="cuda") + 0.5,
    )
    out = kernels.attention(q, k, v, causal=causal, q_scale=qs, k_scale=ks, v_scale=vs)
    spread = vs.double().repeat_interleave(heads // shared)[:, None, None]
    want, scheme = (attended(q, k, v, causal, lift) * spread for lift in (None, 2.0))

    def error(x):
        return float((x.double() - want).norm() / want.norm())

    assert out.dtype == BF16 and error(out) <= 2 * max(error(scheme.to(BF16)), 4e-3), (
        error(out),
        error(scheme),
    )
    assert torch.equal(
        out, kernels.attention(q, k, v, causal=causal, q_scale=qs, k_scale=ks, v_scale=vs)
    )


@pytest.mark.parametrize("page", [16, 64, 128, 40])
@pytest.mark.parametrize("lengths", [(1, 900, 513, 0), (8192, 5000, 4097)], ids=str)
def test_pages(page, lengths):
    """Pools full of NaN wherever nothing belongs to a sequence, and page numbers of nonsense behind
    its end.
    """
    k, v, pk, pv, table, n = (
        torch.from_numpy(x).cuda() for x in paged(page, "float32", lengths, d=128)
    )
    q = torch.randn(len(lengths), 8, 1, 128, device="cuda", dtype=BF16)
    out, sums = kernels.attention_decode(q, pk.to(BF16), pv.to(BF16), n, with_lse=True, pages=table)
    for b, length in enumerate(lengths):
        if not length:
            assert not out[b].any() and (sums[b] == -torch.inf).all()
            continue
        want = attended(
            q[b : b + 1],
            k[b : b + 1, :, :length].to(BF16),
            v[b : b + 1, :, :length].to(BF16),
            False,
        )
        assert float((out[b : b + 1].double() - want).norm() / want.norm()) <= 6e-3
