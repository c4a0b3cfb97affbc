"""tkc.integrations.flex_attention beside torch's own: masks, captured tensors, gradients. Skipped
where torch is not installed.
"""

import pytest

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.nn.attention.flex_attention")

import tkc  # noqa: E402
from tkc.integrations.flex_attention import flex_attention  # noqa: E402

LENGTH = 130
DOCUMENTS = (torch.arange(LENGTH) // 40).to(torch.int32)


def causal(b, h, i, j):
    return i >= j


def document(b, h, i, j):
    return DOCUMENTS[i] == DOCUMENTS[j]


def tensors(heads=4, shared=2):
    torch.manual_seed(0)
    return [torch.randn(2, h, LENGTH, 32) for h in (heads, shared, shared)]


MASKS = {
    "causal": causal,
    "document": document,
    "both": theirs.and_masks(causal, document),
    "either": theirs.or_masks(causal, document),
    "all": theirs.noop_mask,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_torch(name):
    q, k, v = tensors()
    extents = None, None, LENGTH, LENGTH
    mask = theirs.create_block_mask(MASKS[name], *extents, device="cpu", BLOCK_SIZE=64)
    keep = torch.nn.attention.flex_attention.create_mask(MASKS[name], 1, 1, *extents[2:], "cpu")
    k2, v2 = (x.repeat_interleave(2, 1) for x in (k, v))
    want = torch.nn.functional.scaled_dot_product_attention(q, k2, v2, keep)
    got = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_gradients_of_captured_tensors():
    q, k, v = (x.requires_grad_() for x in tensors(2, 2))
    slopes, one = torch.rand(2, requires_grad=True), torch.tensor(0.5, requires_grad=True)

    def ours(s, b, h, i, j):
        return torch.where(i >= j, torch.tanh(s * one) - slopes[h] * (i - j), -float("inf"))

    def plain():
        i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
        s = torch.tanh(q @ k.mT * 32**-0.5 * one) - slopes[:, None, None] * (i - j)
        s = torch.where(i >= j, s, -float("inf"))
        return s.softmax(-1) @ v, s.logsumexp(-1)

    def aux():
        out, found = flex_attention(q, k, v, ours, return_aux=theirs.AuxRequest(lse=True))
        return out, found.lse

    results = []
    for call in (aux, plain):
        out, lse = call()
        (out * torch.linspace(-1, 1, 32)).sum().add(lse.sin().sum()).backward()
        results.append([out, lse, *(x.grad for x in (q, k, v, slopes, one))])
        for x in (q, k, v, slopes, one):
            x.grad = None
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_heads_are_shared_where_that_is_said():
    with pytest.raises(tkc.LaunchError, match="enable_gqa=True"):
        flex_attention(*tensors())


def test_maxima_are_refused():
    q, k, v = tensors(2, 2)
    with pytest.raises(tkc.LaunchError, match="maxima of scores"):
        flex_attention(q, k, v, return_aux=theirs.AuxRequest(max_scores=True))
