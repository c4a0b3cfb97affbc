"""A fifth set of kernels that were written in Triton's language for this race, those with dots
(triton_models), and how each is called. triton_written_signals has the others.
"""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "models"


def _models() -> ModuleType:
    """The kernels, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_models")


def _scores() -> ModuleType:
    """Those of attention."""
    return importlib.import_module("benchmarks.triton_scores")


def _line(m: int, n: int) -> Any:
    """The grid of a product: a program for each tile of the configuration."""
    return lambda at: (-(-m // at["BM"]) * -(-n // at["BN"]),)


def _with_memory(o: Operands, f: ModuleType) -> ModuleType:
    """Kernels, with memory for descriptors that they make."""
    f.triton.set_allocator(
        lambda size, alignment, stream: o.torch.empty(size, device=o.device, dtype=o.torch.int8)
    )
    return f


@case(SUITE, "gradients of swiglu by a product, 8192 x 11008 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(8192), o.of(11008), o.of(4096)
    dy, w = o.normal(m, k), o.normal(n, k)
    gate, up, dgate, dup = o.normal(m, n), o.normal(m, n), o.zeros(m, n), o.zeros(m, n)
    f = _models().swiglu_gradient

    def run() -> Any:
        f[_line(m, n)](dy, w, gate, up, dgate, dup, m, n, k)
        return dgate, dup

    return run


def _sinks(o: Operands, window: int) -> Run:
    b, h, g, s, d = 2, 64, 8, o.of(8192, 192), 64
    if o.scale > 1:
        h = 8
    q, k, v = o.normal(b, h, s, d), o.normal(b, h // g, s, d), o.normal(b, h // g, s, d)
    sinks, out, f = o.normal(h), o.zeros(b, h, s, d), _scores().sink_attention

    def run() -> Any:
        grid = (-(-s // 128), h, b)
        forms = dict(H=h, G=g, WINDOW=window, BM=128, BN=64, D=d, num_warps=8)
        f[grid](q, k, v, sinks, out, d**-0.5, s, **forms)
        return out

    return run


@case(SUITE, "attention with sinks, 2 x 64 heads of 64 on 8, 8192")
def _(o: Operands) -> Run:
    return _sinks(o, 0)


@case(SUITE, "attention with sinks, a window of 128 of 8192")
def _(o: Operands) -> Run:
    return _sinks(o, 128)


@case(SUITE, "attention capped by tanh, descriptors, 64 heads of 128, 4096")
def _(o: Operands) -> Run:
    h, s, d = o.of(64, 2), o.of(4096, 128), 128
    q, k, v, out = *(o.normal(h, s, d) for _ in range(3)), o.zeros(h, s, d)
    f = _with_memory(o, _scores()).capped_attention

    def run() -> Any:
        forms = dict(BM=128, BN=64, D=d, num_warps=8, num_stages=3)
        f[(s // 128, h)](q, k, v, out, d**-0.5, 50.0, h * s, s, **forms)
        return out

    return run


@case(SUITE, "decoding of latents, 64 x 4096 tokens, 128 heads")
def _(o: Operands) -> Run:
    b, s, h, parts = o.of(64, 2), o.of(4096, 256), 128, 4
    q, cache = o.normal(b, h, 576), o.normal(b, s, 576)
    lengths = (o.index(s // 2, b) + s // 2 + 1).to(o.torch.int32)
    part, lse = o.zeros(b, h, parts, 512, dtype="float32"), o.zeros(b, h, parts, dtype="float32")
    out, f = o.zeros(b, h, 512), _scores()

    def run() -> Any:
        forms = dict(H=h, BH=64, BN=32, DV=512, DR=64, num_warps=8, num_stages=2)
        grid = (b, h // 64, parts)
        f.latent_decoding[grid](q, cache, part, lse, lengths, 576**-0.5, s, parts, **forms)
        f.latent_sum[(b * h,)](part, lse, out, lengths, PARTS=parts, BN=32, H=h, DV=512)
        return out

    return run


@case(SUITE, "decoding from float8 pages, 128 x 8192 keys, 5 heads for each of 8")
def _(o: Operands) -> Run:
    b, s, kv, g, d, page = o.of(128, 2), o.of(8192, 256), 8, 5, 128, 16
    pages = s // page
    caches = [o.normal(b * pages * page, kv, d).to(o.torch.float8_e4m3fn) for _ in range(2)]
    table = o.torch.randperm(b * pages, device=o.device).to(o.torch.int32).view(b, pages)
    lengths = (s - o.index(64, b)).to(o.torch.int32)
    slopes = o.torch.exp2(-8 * o.torch.arange(1, kv * g + 1, device=o.device) / (kv * g))
    q, out, f = o.normal(b, kv * g, d), o.zeros(b, kv * g, d), _scores().paged_decoding

    def run() -> Any:
        forms = dict(KV=kv, G=g, PAGE=page, BG=16, BN=64, D=d, num_warps=4, num_stages=3)
        scales = d**-0.5, 0.5, 0.25
        f[(b, kv)](q, *caches, table, lengths, slopes, out, *scales, pages, s // 2, **forms)
        return out

    return run


@case(SUITE, "drafted tokens in a tree, 64 of 4096, 16 x 32 heads of 128")
def _(o: Operands) -> Run:
    b, h, s, d, t = o.of(16, 2), o.of(32, 2), o.of(4096, 128), 128, 64
    q, k, v = o.normal(b, h, t, d), o.normal(b, h, s + t, d), o.normal(b, h, s + t, d)
    mask = (o.torch.rand(b, t, t, device=o.device) < 0.3).to(o.torch.int8)
    mask |= o.torch.eye(t, device=o.device).to(o.torch.int8)
    out, f = o.zeros(b, h, t, d), _scores().tree_attention

    def run() -> Any:
        forms = dict(BT=t, BN=64, D=d, num_warps=4, num_stages=3)
        f[(b, h)](q, k, v, mask, out, d**-0.5, s, h, **forms)
        return out

    return run


@case(SUITE, "product with an adapter of 16, 8192 x 4096 x 4096")
def _(o: Operands) -> Run:
    m, n, k, r = o.of(8192), o.of(4096, 256), o.of(4096, 256), 16
    x, w, a, b = o.normal(m, k), o.normal(k, n), o.normal(k, r), o.normal(r, n)
    y, f = o.zeros(m, n), _models().adapted_product

    def run() -> Any:
        f[_line(m, n)](x, w, a, b, y, 2.0, m, n, k, R=r)
        return y

    return run


@case(SUITE, "Fourier transforms of 4096, 16384 in float16")
def _(o: Operands) -> Run:
    m, n = o.of(16384, 4), 64
    xr, xi = o.normal(m, n * n, dtype="float16"), o.normal(m, n * n, dtype="float16")
    at = o.torch.arange(n, device=o.device, dtype=o.torch.float64)
    product = at[:, None] * at[None, :]
    f, t = -2 * math.pi / n * product, -2 * math.pi / n**2 * product
    fr, fi = (f.cos() / n**0.5).half(), (f.sin() / n**0.5).half()
    tr, ti = t.cos().float(), t.sin().float()
    yr, yi, kernel = (
        o.zeros(m, n * n, dtype="float16"),
        o.zeros(m, n * n, dtype="float16"),
        _models().spectrum,
    )

    def run() -> Any:
        kernel[(m,)](xr, xi, fr, fi, tr, ti, yr, yi, N=n, num_warps=4)
        return yr, yi

    return run


@case(SUITE, "experts' products added to tokens, 8192 to 4 of 32, 4096 x 2048")
def _(o: Operands) -> Run:
    t, top, experts, n, k, bm = o.of(8192), 4, 32, o.of(2048, 128), o.of(4096, 128), 128
    pairs = t * top
    x, w = o.normal(pairs, k), o.normal(experts, n, k)
    share = o.torch.rand(pairs, device=o.device)
    chosen = o.torch.rand(t, experts, device=o.device).argsort(1)[:, :top].reshape(-1)
    order = chosen.argsort(stable=True)
    many = o.torch.bincount(chosen, minlength=experts)
    blocks = (many + bm - 1) // bm
    token = o.torch.full((pairs // bm + experts, bm), pairs, device=o.device)
    expert = o.torch.full((pairs // bm + experts,), -1, device=o.device)
    line, begin = 0, 0
    for e, (count, used) in enumerate(zip(many.tolist(), blocks.tolist(), strict=True)):
        expert[line : line + used] = e
        token.view(-1)[line * bm : line * bm + count] = order[begin : begin + count]
        line, begin = line + used, begin + count
    token, expert = token.to(o.torch.int32), expert.to(o.torch.int32)
    y, f = o.zeros(t, n, dtype="float32"), _models().expert_sums

    def run() -> Any:
        y.zero_()
        forms = dict(TOP=top, BM=bm, BN=128, BK=64, num_warps=8, num_stages=3)
        f[(len(expert), n // 128)](x, w, token, expert, share, y, n, k, pairs, **forms)
        return y

    return run


@case(SUITE, "weights of 4 bits (AWQ), 16 x 12288 x 4096")
def _(o: Operands) -> Run:
    m, n, k, g, split = 16, o.of(12288, 128), o.of(4096, 256), 128, 8
    x = o.normal(m, k, dtype="float16")
    words = lambda *shape: (o.index(1 << 32, *shape) - (1 << 31)).to(o.torch.int32)  # noqa: E731
    packed, zeros = words(k, n // 8), words(k // g, n // 8)
    scales, y = o.normal(k // g, n, dtype="float16") / 8, o.zeros(m, n, dtype="float32")
    f = _models().awq_product

    def run() -> Any:
        y.zero_()
        forms = dict(G=g, SPLIT=split, BM=16, BN=64, BK=64, num_warps=4, num_stages=3)
        f[(n // 64, split)](x, packed, scales, zeros, y, m, n, k, **forms)
        return y

    return run


@case(SUITE, "patches of 16 x 16, 256 images of 3 x 224 x 224 to 768")
def _(o: Operands) -> Run:
    b, c, side, p, n = o.of(256, 2), 3, 224, 16, 768
    x, w, bias = o.normal(b, c, side, side), o.normal(n, c * p * p), o.normal(n)
    patches = (side // p) ** 2
    places, y, f = o.normal(patches, n), o.zeros(b * patches, n), _models().patch_embedding

    def run() -> Any:
        forms = dict(H=side, W=side, C=c, P=p, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
        f[(-(-b * patches // 128), n // 128)](x, w, bias, places, y, b * patches, n, **forms)
        return y

    return run


@case(SUITE, "gated cells of 64, 8448 sequences of 256")
def _(o: Operands) -> Run:
    b, t, d = o.of(8448), o.of(256, 8), 64
    z, u = o.normal(t, b, 3 * d), o.normal(3, d, d) / 8
    h, y, f = o.normal(b, d), o.zeros(t, b, d), _models().gated_cells

    def run() -> Any:
        f[(b // 64,)](z, u, h, y, b, t, BM=64, D=d, num_warps=4)
        return y

    return run


@case(SUITE, "gradient of contrasts, 16384 pairs of 256")
def _(o: Operands) -> Run:
    n, d = o.of(16384, 128), 256
    x, z = (o.torch.nn.functional.normalize(o.normal(n, d), dim=1) for _ in range(2))
    s = [(x[i : i + 2048].float() @ z.float().T * 20.0) for i in range(0, n, 2048)]
    rows = o.torch.cat([a.logsumexp(1) for a in s])
    columns = o.torch.stack([a.logsumexp(0) for a in s]).logsumexp(0)
    del s
    dx, f = o.zeros(n, d), _models().contrastive_gradient

    def run() -> Any:
        forms = dict(BM=128, BN=64, D=d, num_warps=8, num_stages=2)
        f[(-(-n // 128),)](x, z, rows, columns, dx, 20.0, n, **forms)
        return dx

    return run


@case(SUITE, "persistent product of float8 by descriptors, 8192 x 8192 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(8192, 256), o.of(8192, 256), o.of(4096, 256)
    x, w = (o.normal(r, k).to(o.torch.float8_e4m3fn) for r in (m, n))
    sx, sw = o.torch.rand(m, device=o.device), o.torch.rand(n, device=o.device)
    y, f = o.zeros(m, n), _with_memory(o, _models()).float8_persistent

    def run() -> Any:
        forms = dict(BM=128, BN=256, BK=128, num_warps=8, num_stages=3)
        f[(min(132, m // 128 * (n // 256)),)](x, w, sx, sw, y, m, n, k, **forms)
        return y

    return run


@case(SUITE, "exponentials of 65536 matrices of 32 x 32")
def _(o: Operands) -> Run:
    m, n = o.of(65536, 4), 32
    a, y = o.normal(m, n, n, dtype="float32") / n, o.zeros(m, n, n, dtype="float32")
    f = _models().exponentials

    def run() -> Any:
        f[(m,)](a, y, TERMS=6, SQUARES=3, N=n, num_warps=1)
        return y

    return run


@case(SUITE, "accurate product of float32, 2000 x 3000 x 1001")
def _(o: Operands) -> Run:
    m, n, k = o.of(2000, 70), o.of(3000, 75), o.of(1001, 101)
    x, w = o.normal(m, k, dtype="float32"), o.normal(k, n, dtype="float32")
    y, f = o.zeros(m, n, dtype="float32"), _models().accurate_product

    def run() -> Any:
        grid = (-(-n // 64), -(-m // 64))
        f[grid](x, w, y, m, n, k, x.stride(0), w.stride(0), BM=64, BN=64, BK=32, num_warps=4)
        return y

    return run


@case(SUITE, "weights of 4 bits with exponents, 512 x 8192 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(512), o.of(8192, 128), o.of(4096, 256)
    x, y = o.normal(m, k), o.zeros(m, n)
    w = o.index(256, n, k // 2).to(o.torch.uint8)
    scales = (o.index(8, n, k // 32) + 123).to(o.torch.uint8)
    f = _models().microscaled_product

    def run() -> Any:
        forms = dict(BM=128, BN=128, BK=128, num_warps=8, num_stages=2)
        f[(-(-m // 128), n // 128)](x, w, scales, y, m, n, k, **forms)
        return y

    return run
