"""A seventh set of kernels that were written in Triton's language for this race: those with dots
(triton_heads, triton_weights), and how each is called. triton_written_scenes has the others.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "seventh"


def _heads() -> ModuleType:
    """The kernels of attention, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_heads")


def _weights() -> ModuleType:
    """Those of products."""
    return importlib.import_module("benchmarks.triton_weights")


def _grid(m: int, n: int) -> Any:
    """Of a product: a program for each tile of the configuration."""
    return lambda at: (-(-m // at["BM"]), -(-n // at["BN"]))


def _firsts(o: Operands, lengths: Any) -> Any:
    """Where each of several runs begins in a row of them, and where the last one ends."""
    first = o.zeros(len(lengths) + 1, dtype="int32")
    first[1:] = lengths.cumsum(0)
    return first


def _float8(o: Operands, *shape: int) -> Any:
    return o.normal(*shape, dtype="float8_e4m3fn")


@case(SUITE, "attention of latents, 128 own and 64 shared, 16 heads, 8192")
def _(o: Operands) -> Run:
    s, h, d, r = o.of(8192, 200), o.of(16, 2), 128, 64
    q, k, v = o.normal(s, h, d + r), o.normal(s, h, d), o.normal(s, h, d)
    turned, out, f = o.normal(s, r), o.zeros(s, h, d), _heads().latent_prefill

    def run() -> Any:
        f[(-(-s // 128), h)](
            q, k, turned, v, out, (d + r) ** -0.5, s, h, BM=128, BN=64, D=d, R=r, num_warps=8
        )
        return out

    return run


@case(SUITE, "difference of two attentions, 32 heads of 64, 4096")
def _(o: Operands) -> Run:
    h, s, d = o.of(32, 2), o.of(4096, 128), 64
    q, k, v = o.normal(h, 2, s, d), o.normal(h, 2, s, d), o.normal(h, s, 2 * d)
    w, share = o.normal(2 * d, dtype="float32"), o.torch.rand(h, device=o.device)
    out, f = o.zeros(h, s, 2 * d), _heads().difference_attention

    def run() -> Any:
        f[(s // 128, h)](q, k, v, w, out, d**-0.5, share, s, 1e-5, BM=128, BN=64, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "attention in float8, 64 heads of 128, 4096")
def _(o: Operands) -> Run:
    h, n, d = o.of(64, 2), o.of(4096, 256), 128
    q, k, v, out = _float8(o, h, n, d), _float8(o, h, n, d), _float8(o, h, d, n), o.zeros(h, n, d)
    qs, ks, vs = (o.torch.rand(h, device=o.device) / 8 + 0.1 for _ in range(3))
    f = _heads().float8_attention

    def run() -> Any:
        f[(n // 128, h)](
            q, k, v, out, qs, ks, vs, n, BM=128, BN=128, D=d, num_warps=8, num_stages=3
        )
        return out

    return run


@case(SUITE, "attention in windows of 7 x 7, 64 images of 64, 12 heads of 32")
def _(o: Operands) -> Run:
    images, windows, h, n, d = o.of(64, 2), o.of(64, 4), o.of(12, 2), 49, 32
    qkv, bias = o.normal(images * windows, n, 3, h, d), o.normal(h, n, n)
    hidden = -100.0 * o.index(2, windows, n, n).to(o.torch.bfloat16)
    out, f = o.zeros(images * windows, n, h, d), _heads().window_attention

    def run() -> Any:
        f[(images * windows, h)](qkv, bias, hidden, out, d**-0.5, windows, h, n, BN=64, D=d)
        return out

    return run


@case(
    SUITE, "decoding from int8 pages, 64 sinks and 4096 last, 64 sequences, 8 heads for each of 8"
)
def _(o: Operands) -> Run:
    b, h, g, d, page, parts = o.of(64, 3), o.of(8, 2), 8, 128, 16, 8
    sinks, window, most = o.of(64, 5), o.of(4096, 100), o.of(16384, 300)
    pages = -(-most // page)
    length = (o.index(most - window // 2, b) + window // 2).to(o.torch.int32)
    place = o.torch.randperm(b * pages, device=o.device).to(o.torch.int32).view(b, pages)
    q, out = o.normal(b, h * g, d), o.zeros(b, h * g, d)
    k, v = ((o.index(255, b * pages, page, h, d) - 127).to(o.torch.int8) for _ in range(2))
    ks, vs = (
        (o.torch.rand(b * pages, page, h, device=o.device) / 32).to(o.torch.float16)
        for _ in range(2)
    )
    part = o.zeros(b * h * g, parts, d, dtype="float32")
    lse, f = o.zeros(b * h * g, parts, dtype="float32"), _heads()
    given = {"H": h, "G": g, "PAGE": page, "BN": 64, "D": d}

    def run() -> Any:
        f.decoded_parts[(b, h, parts)](
            q, k, v, ks, vs, place, length, part, lse, d**-0.5, pages, sinks, window, **given
        )
        f.decoded[(b * h * g,)](part, lse, out, PARTS=parts, D=d)
        return out

    return run


@case(SUITE, "scores of 64 heads that choose keys in float8, 2048 on 8192")
def _(o: Operands) -> Run:
    t, s, h, d = o.of(2048, 64), o.of(8192, 300), 64, 128
    q, k = _float8(o, t, h, d), _float8(o, s, d)
    scale, weight = o.torch.rand(s, device=o.device), o.normal(t, h, dtype="float32") / h
    begin = (o.torch.arange(t, device=o.device) // 32 * 8).to(o.torch.int32)
    end = (o.torch.arange(t, device=o.device) * (s - t) // t + t).to(o.torch.int32)
    y, f = o.zeros(t, s, dtype="float32"), _heads().index_scores

    def run() -> Any:
        f[(t // 2,)](q, k, scale, weight, begin, end, y, s, H=h, BQ=2, BN=128, D=d, num_warps=8)
        return y

    return run


@case(SUITE, "experts in float8 by blocks of 128, 4096 tokens to 8 of 64, 2048 x 2048")
def _(o: Operands) -> Run:
    t, n, k, experts, top, least = o.of(4096, 40), o.of(2048, 256), o.of(2048, 256), 64, 8, 128
    experts = o.of(experts, 4)
    x, w = _float8(o, t, k), _float8(o, experts, n, k)
    xs = o.torch.rand(t, k // 128, device=o.device) / 16
    ws = o.torch.rand(experts, n // 128, k // 128, device=o.device) / 16
    share, chosen = o.torch.rand(t * top, device=o.device), o.index(experts, t * top)
    many = chosen.bincount(minlength=experts)
    filled = -(-many // least) * least
    before = filled.cumsum(0) - filled - (many.cumsum(0) - many)
    order = chosen.argsort(stable=True)
    token = o.torch.full((int(filled.sum()),), t * top, device=o.device, dtype=o.torch.int32)
    token[o.torch.arange(t * top, device=o.device) + before[chosen[order]]] = order.int()
    expert = o.torch.arange(experts, device=o.device).repeat_interleave(filled // least).int()
    y, f = o.zeros(t * top, n), _weights().float8_experts

    def run() -> Any:
        f[lambda at: (len(token) // at["BM"] * (n // at["BN"]),)](
            x, xs, w, ws, share, token, expert, y, t, n, k, TOP=top, LIST=least
        )
        return y

    return run


@case(SUITE, "products at 4096 listed blocks of 64, 8192 x 8192 x 1024")
def _(o: Operands) -> Run:
    m, k, blocks = o.of(8192, 256), o.of(1024, 128), o.of(4096, 9)
    x, z, y = o.normal(m, k), o.normal(m, k), o.zeros(blocks, 64, 64)
    chosen = o.torch.randperm((m // 64) ** 2, device=o.device)[:blocks].sort().values
    row, column = (chosen // (m // 64)).int(), (chosen % (m // 64)).int()
    f = _weights().listed_products

    def run() -> Any:
        f[(blocks,)](x, z, row, column, y, k, BS=64, BK=64, num_warps=4, num_stages=4)
        return y

    return run


@case(SUITE, "gradients of 32 experts' weights, 32768 rows, 2048 x 1024")
def _(o: Operands) -> Run:
    t, m, n, experts = o.of(32768, 300), o.of(2048, 256), o.of(1024, 256), o.of(32, 3)
    first = _firsts(o, o.index(experts, t).bincount(minlength=experts))
    x, dy, dw = o.normal(t, m), o.normal(t, n), o.zeros(experts, m, n)
    f = _weights().gradients_of_experts

    def run() -> Any:
        f[lambda at: (m // at["BM"], n // at["BN"], experts)](x, dy, first, dw, m, n)
        return dw

    return run


@case(SUITE, "gates in turn with others, to float8 by 128, persistent, 4096 x 14336 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(4096, 200), o.of(14336, 512), o.of(4096, 128)
    x, w = o.normal(m, k), o.normal(n, k) / 32
    y, scale = o.zeros(m, n // 2, dtype="float8_e4m3fn"), o.zeros(m, n // 256, dtype="float32")
    f, programs = _weights().gated_to_float8, o.of(132, 3)

    def run() -> Any:
        f[(programs,)](x, w, y, scale, m, n, k, BM=128, BN=256, BK=64, num_warps=8, num_stages=3)
        return y, scale

    return run


@case(SUITE, "products of 65536 matrices of 32 x 40 and 40 x 48")
def _(o: Operands) -> Run:
    count, m, n, k = o.of(65536), 32, 48, 40
    x, z, y = o.normal(count, m, k), o.normal(count, k, n), o.zeros(count, m, n)
    f = _weights().products_of_odd_sizes

    def run() -> Any:
        f[(count,)](x, z, y, M=m, N=n, K=k, BM=32, BN=64, BK=64)
        return y

    return run


@case(SUITE, "gradients of rows by a linear layer's loss, 2048 x 16384 x 1024")
def _(o: Operands) -> Run:
    t, v, d = o.of(2048, 150), o.of(16384, 300), o.of(1024, 128)
    x, w = o.normal(t, d), o.normal(v, d) / 16
    lse = (x.float() @ w.float().mT).logsumexp(1)
    target, dx = o.index(v, t).to(o.torch.int32), o.zeros(t, d, dtype="float32")
    f = _weights().gradients_of_losses

    def run() -> Any:
        dx.zero_()
        f[(-(-t // 128), -(-v // 128))](
            x, w, lse, target, dx, t, v, d, BM=128, BN=128, BK=64, num_warps=8
        )
        return dx

    return run


@case(SUITE, "weights of 4 bits by a table (NF4), 128 x 8192 x 8192")
def _(o: Operands) -> Run:
    m, n, k = o.of(128, 50), o.of(8192, 128), o.of(8192, 512)
    x, packed, y = o.normal(m, k), o.index(256, n, k // 2).to(o.torch.uint8), o.zeros(m, n)
    most = o.index(256, n * k // 64).to(o.torch.uint8)
    most_scale = o.torch.rand(-(-n * k // 64 // 256), device=o.device) / 4096
    most_mean = o.torch.full((1,), 0.01, device=o.device)
    table = o.normal(16, dtype="float32").sort().values
    f = _weights().normal_float4

    def run() -> Any:
        f[_grid(m, n)](x, packed, most, most_scale, most_mean, table, y, m, n, k)
        return y

    return run


@case(SUITE, "triangles of pairs, 512 x 512 of 64 channels")
def _(o: Operands) -> Run:
    n, c = o.of(512, 64), o.of(64, 32)
    x, z, y, f = o.normal(n, n, c), o.normal(n, n, c), o.zeros(n, n, c), _weights()

    def run() -> Any:
        f.triangle_products[(n // 32, n // 32, c // 16)](
            x, z, y, n, c, BI=32, BK=32, BC=16, num_warps=8
        )
        return y

    return run


@case(SUITE, "mel spectra of 64 sounds of 30 s, frames of 512 by 160")
def _(o: Operands) -> Run:
    b, length, width, step, bins, mels = o.of(64, 2), o.of(480000, 10000), 512, 160, 256, 128
    t = length // step
    sound, y = o.normal(b, length, dtype="float32"), o.zeros(b, t, mels, dtype="float32")
    place = o.torch.arange(width, device=o.device).float()
    angle = 2 * o.torch.pi / width * place[:, None] * place[None, :bins]
    window = (0.5 - 0.5 * (2 * o.torch.pi / width * place).cos())[:, None]
    real, imaginary = (window * angle.cos(), -window * angle.sin())
    filters, f = o.torch.rand(bins, mels, device=o.device) / bins, _weights().spectra
    given = {"STEP": step, "WIDTH": width, "BINS": bins, "MELS": mels}

    def run() -> Any:
        f[(-(-t // 64), b)](
            sound, real, imaginary, filters, y, length, t, **given, BM=64, BN=64, BK=32
        )
        return y

    return run


@case(SUITE, "learned polynomials of degree 4, 8192 x 1024 x 1024")
def _(o: Operands) -> Run:
    m, n, k, degree = o.of(8192, 100), o.of(1024, 128), o.of(1024, 128), 4
    x, coefficient, y = o.normal(m, k), o.normal(degree + 1, k, n) / 32, o.zeros(m, n)
    f = _weights().polynomial_layer

    def run() -> Any:
        f[_grid(m, n)](x, coefficient, y, m, n, k, DEGREE=degree)
        return y

    return run


@case(SUITE, "convolution of 131072 listed voxels, 27 neighbours, 128 to 128")
def _(o: Operands) -> Run:
    n, c, taps = o.of(131072, 300), 128, 27
    x, y, w = o.normal(n, c), o.zeros(n, c), o.normal(taps, c, c) / 16
    shift = o.index(n, taps, 1)
    near = (o.torch.arange(n, device=o.device)[None, :] + shift) % n
    near = near.where(o.index(2, taps, n) == 1, -1).to(o.torch.int32)
    near[5] = -1
    f = _weights().sparse_convolution

    def run() -> Any:
        f[(-(-n // 128), c // 128)](
            x, near, w, y, n, c, c, TAPS=taps, BM=128, BN=128, BK=64, num_warps=8, num_stages=3
        )
        return y

    return run
