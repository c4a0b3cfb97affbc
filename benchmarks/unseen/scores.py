"""Scores of all pairs, and what is made of each row of them. A part of the unseen kernels."""

from __future__ import annotations

from typing import Any

import tkc
from benchmarks.unseen.operands import Called, Operands, case, over


@tkc.jit
def nearest_centre(
    x, centres, norms, label, distance, D: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr
):
    """k-means: the number of each point's nearest centre, and how far it is."""
    m = tkc.program_id(0) * BM
    points = tkc.load(x, (m, 0), (BM, D))
    best, which = tkc.full((BM,), tkc.inf), tkc.zeros((BM,), tkc.int32)
    for n in range(0, centres.shape[0], BN):
        block = tkc.load(centres, (n, 0), (BN, D))
        d = tkc.load(norms, (n,), (BN,), other=tkc.inf)[None, :] - 2 * tkc.dot(points, block.T)
        near, at = tkc.min(d, 1), tkc.argmin(d, 1)
        which = tkc.where(near < best, n + at, which)
        best = tkc.minimum(best, near)
    squares = tkc.sum(points.to(tkc.float32) * points.to(tkc.float32), 1)
    tkc.store(label, (m,), which)
    tkc.store(distance, (m,), best + squares)


@tkc.jit
def nearest_eight(q, keys, score, place, D: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr):
    """The eight keys of the largest products with each query."""
    m = tkc.program_id(0) * BM
    rows = tkc.load(q, (m, 0), (BM, D))
    best, at = tkc.full((BM, 8), -tkc.inf), tkc.zeros((BM, 8), tkc.int32)
    for n in range(0, keys.shape[0], BN):
        s = tkc.dot(rows, tkc.load(keys, (n, 0), (BN, D)).T)
        top, where = tkc.topk(s, 8, indices=True)
        both, places = tkc.cat(best, top, axis=1), tkc.cat(at, where + n, axis=1)
        best, which = tkc.topk(both, 8, indices=True)
        at = tkc.gather(places, which, 1)
    tkc.store(score, (m, 0), best)
    tkc.store(place, (m, 0), at)


@tkc.jit
def gaussian_kernel(x, y, out, gamma, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """exp(-gamma |x_i - y_j|^2); the squares are summed in the same loop."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, xx, yy = tkc.zeros((BM, BN)), tkc.zeros((BM,)), tkc.zeros((BN,))
    for k in range(0, x.shape[1], BK):
        a, b = tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, k), (BN, BK))
        acc = tkc.dot(a, b.T, acc)
        xx += tkc.sum(a.to(tkc.float32) * a.to(tkc.float32), 1)
        yy += tkc.sum(b.to(tkc.float32) * b.to(tkc.float32), 1)
    d = tkc.maximum(xx[:, None] + yy[None, :] - 2 * acc, 0)
    tkc.store(out, (m, n), tkc.exp(-gamma * d).to(out.dtype))


@tkc.jit
def contrastive_loss(x, y, loss, scale, D: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr):
    """-log softmax of the scores x y^T / t at their diagonal."""
    m = tkc.program_id(0) * BM
    mine = m + tkc.arange(BM)
    rows = tkc.load(x, (m, 0), (BM, D))
    largest, total, own = tkc.full((BM,), -tkc.inf), tkc.zeros((BM,)), tkc.zeros((BM,))
    for n in range(0, y.shape[0], BN):
        s = tkc.dot(rows, tkc.load(y, (n, 0), (BN, D)).T) * scale
        here = n + tkc.arange(BN)
        own += tkc.sum(tkc.where(mine[:, None] == here[None, :], s, 0.0), 1)
        s = tkc.where((here < y.shape[0])[None, :], s, -tkc.inf)
        new = tkc.maximum(largest, tkc.max(s, 1))
        total = total * tkc.exp(largest - new) + tkc.sum(tkc.exp(s - new[:, None]), 1)
        largest = new
    tkc.store(loss, (m,), tkc.log(total) + largest - own)


@tkc.jit
def chosen_blocks(q, k, v, table, count, o, scale, D: tkc.constexpr, B: tkc.constexpr):
    """Attention in which a table says which blocks of keys each block of queries sees."""
    i, h = tkc.program_id(0), tkc.program_id(1)
    rows = tkc.load(q, (h, i * B, 0), (None, B, D))
    acc, total, largest = tkc.zeros((B, D)), tkc.zeros((B,)), tkc.full((B,), -tkc.inf)
    for j in range(count[i]):
        n = table[i, j] * B
        s = tkc.dot(rows, tkc.load(k, (h, n, 0), (None, B, D)).T) * scale
        new = tkc.maximum(largest, tkc.max(s, 1))
        p, shrink = tkc.exp(s - new[:, None]), tkc.exp(largest - new)
        total = total * shrink + tkc.sum(p, 1)
        acc = tkc.dot(p.to(v.dtype), tkc.load(v, (h, n, 0), (None, B, D)), acc * shrink[:, None])
        largest = new
    tkc.store(o[h], (i * B, 0), (acc / total[:, None]).to(o.dtype))


@tkc.jit
def gated_attention(
    q, k, v, bias, gate, o, scale, D: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr
):
    """Cross-attention with a bias of pairs and a gate, as structure models have it."""
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    rows = tkc.load(q, (b, h, m, 0), (None, None, BM, D))
    acc, total, largest = tkc.zeros((BM, D)), tkc.zeros((BM,)), tkc.full((BM,), -1e30)
    for n in range(0, k.shape[2], BN):
        s = tkc.dot(rows, tkc.load(k, (b, h, n, 0), (None, None, BN, D)).T) * scale
        s += tkc.load(bias, (h, m, n), (None, BM, BN)).to(tkc.float32)
        s = tkc.where((n + tkc.arange(BN) < k.shape[2])[None, :], s, -1e30)
        new = tkc.maximum(largest, tkc.max(s, 1))
        p, shrink = tkc.exp(s - new[:, None]), tkc.exp(largest - new)
        total = total * shrink + tkc.sum(p, 1)
        values = tkc.load(v, (b, h, n, 0), (None, None, BN, D))
        acc = tkc.dot(p.to(v.dtype), values, acc * shrink[:, None])
        largest = new
    opened = tkc.sigmoid(tkc.load(gate, (b, h, m, 0), (None, None, BM, D)).to(tkc.float32))
    tkc.store(o[b, h], (m, 0), (acc / total[:, None] * opened).to(o.dtype))


@tkc.jit
def responsibilities(x, centre, bias, out, BM: tkc.constexpr, K: tkc.constexpr, D: tkc.constexpr):
    """Of a mixture of Gaussians: log p(component | point), K components in a row."""
    m = tkc.program_id(0) * BM
    s = tkc.dot(tkc.load(x, (m, 0), (BM, D)), tkc.load(centre, (0, 0), (K, D)).T)
    s += tkc.load(bias, (0,), (K,))[None, :]
    top = tkc.max(s, 1, keep_dims=True)
    s -= top + tkc.log(tkc.sum(tkc.exp(s - top), 1, keep_dims=True))
    tkc.store(out, (m, 0), s.to(out.dtype))


@tkc.jit
def softmax_of_product(x, w, y, BM: tkc.constexpr, E: tkc.constexpr, BK: tkc.constexpr):
    """softmax(x w) over the E columns of w, which is a router's."""
    m = tkc.program_id(0) * BM
    acc = tkc.zeros((BM, E))
    for k in range(0, x.shape[1], BK):
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (k, 0), (BK, E)), acc)
    tkc.store(y, (m, 0), tkc.softmax(acc))


@case("nearest centre")
def _(o: Operands) -> Called:
    n, k, d = o.of(1 << 20, 200), o.of(1024, 136), 64
    x, c = o.normal(n, d), o.normal(k, d)
    norms = (c.float() ** 2).sum(1)
    label, distance = o.empty(n, dtype="int32"), o.empty(n, dtype="float32")

    def function(x: Any, c: Any) -> Any:
        d = (x * x).sum(1, keepdim=True) - 2 * (x @ c.T) + (c * c).sum(1)
        best = d.min(1)
        return best.indices, best.values

    return Called(
        lambda: nearest_centre[over(n, 128)](x, c, norms, label, distance, d, 128, 128),
        (label, distance),
        function,
        (x, c),
        2 * n * k * d,
    )


@case("nearest eight")
def _(o: Operands) -> Called:
    n, k, d = o.of(8192, 100), o.of(16384, 256), 64
    q, keys = o.normal(n, d), o.normal(k, d)
    score, place = o.empty(n, 8, dtype="float32"), o.empty(n, 8, dtype="int32")

    def function(q: Any, keys: Any) -> Any:
        found = (q @ keys.T).topk(8)
        return found.values, found.indices

    return Called(
        lambda: nearest_eight[over(n, 64)](q, keys, score, place, d, 64, 128),
        (score, place),
        function,
        (q, keys),
        2 * n * k * d,
    )


@case("Gaussian kernel matrix")
def _(o: Operands) -> Called:
    n, d = o.of(8192, 200), o.of(256, 72)
    x, y, out = o.normal(n, d, scale=0.1), o.normal(n, d, scale=0.1), o.empty(n, n)

    def function(x: Any, y: Any) -> Any:
        xx, yy = (x * x).sum(1), (y * y).sum(1)
        return o.torch.exp(-0.5 * (xx[:, None] + yy - 2 * (x @ y.T)).clamp(min=0))

    g = over(n, 128)
    return Called(
        lambda: gaussian_kernel[g, g](x, y, out, 0.5, 128, 128, 64),
        (out,),
        function,
        (x, y),
        2 * n * n * d,
    )


@case("contrastive loss")
def _(o: Operands) -> Called:
    n, d = o.of(16384, 200), 128
    x, y = o.normal(n, d, scale=0.3), o.normal(n, d, scale=0.3)
    loss = o.empty(n, dtype="float32")

    def function(x: Any, y: Any) -> Any:
        s = (x @ y.T) * 0.5
        return o.torch.logsumexp(s, 1) - s.diagonal()

    return Called(
        lambda: contrastive_loss[over(n, 128)](x, y, loss, 0.5, d, 128, 128),
        (loss,),
        function,
        (x, y),
        2 * n * n * d,
    )


@case("softmax of a product")
def _(o: Operands) -> Called:
    m, k, e = o.of(65536, 200), o.of(2048, 128), 64
    x, w, y = o.normal(m, k), o.normal(k, e, scale=0.05), o.empty(m, e, dtype="float32")
    return Called(
        lambda: softmax_of_product[over(m, 128)](x, w, y, 128, e, 64),
        (y,),
        lambda x, w: (x @ w).to(x.dtype if x.dtype.itemsize == 8 else y.dtype).softmax(1),
        (x, w),
        2 * m * k * e,
        tolerance=2e-2,
    )


@case("attention of chosen blocks")
def _(o: Operands) -> Called:
    h, s, d, B = o.of(16, 2), o.of(8192, 256), 128, 64
    q, k, v, out = (o.normal(h, s, d) for _ in range(4))
    blocks = s // B
    keep = o.torch.rand(blocks, blocks, device=o.device) < (0.2 if o.large else 0.5)
    keep = keep.tril() | o.torch.eye(blocks, dtype=o.torch.bool, device=o.device)
    count = keep.sum(1).to(o.torch.int32)
    table = keep.int().argsort(dim=1, descending=True, stable=True).to(o.torch.int32).contiguous()
    seen = int(count.sum())
    mask = keep.repeat_interleave(B, 0).repeat_interleave(B, 1)

    def function(q: Any, k: Any, v: Any) -> Any:
        f = o.torch.nn.functional
        return f.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.1)

    return Called(
        lambda: chosen_blocks[blocks, h](q, k, v, table, count, out, 0.1, d, B),
        (out,),
        function,
        (q, k, v),
        4 * h * seen * B * B * d,
        tolerance=2e-2,
    )


@case("gated attention with a bias")
def _(o: Operands) -> Called:
    b, h, m, n, d = o.of(16, 2), o.of(8, 2), o.of(2048, 150), o.of(2048, 200), 64
    q, k, v = o.normal(b, h, m, d), o.normal(b, h, n, d), o.normal(b, h, n, d)
    bias, gate, out = o.normal(h, m, n), o.normal(b, h, m, d), o.empty(b, h, m, d)

    def function(q: Any, k: Any, v: Any, bias: Any, gate: Any) -> Any:
        f = o.torch.nn.functional
        mixed = f.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], scale=0.125)
        return mixed * o.torch.sigmoid(gate)

    return Called(
        lambda: gated_attention[over(m, 128), h, b](q, k, v, bias, gate, out, 0.125, d, 128, 64),
        (out,),
        function,
        (q, k, v, bias, gate),
        4 * b * h * m * n * d,
        tolerance=2e-2,
    )


@case("responsibilities of a mixture")
def _(o: Operands) -> Called:
    m, k, d = o.of(1 << 18, 200), 128, 64
    x, c, bias = o.normal(m, d), o.normal(k, d), o.floats(k)
    out = o.empty(m, k)

    def function(x: Any, c: Any, bias: Any) -> Any:
        return (x @ c.T + bias).log_softmax(1)

    return Called(
        lambda: responsibilities[over(m, 128)](x, c, bias, out, 128, k, d),
        (out,),
        function,
        (x, c, bias),
        2 * m * k * d,
    )
