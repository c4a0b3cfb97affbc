"""An eighth set of kernels that were written in Triton's language for this race, of kinds that the
sets before have not (triton_mixers, triton_taps, triton_streams), and how each is called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "eighth"


def _mixers() -> ModuleType:
    """The kernels of attention, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_mixers")


def _taps() -> ModuleType:
    """Those of products and convolutions."""
    return importlib.import_module("benchmarks.triton_taps")


def _streams() -> ModuleType:
    """Those without dots."""
    return importlib.import_module("benchmarks.triton_streams")


def _words_of_4_bits(o: Operands, *shape: int) -> Any:
    """Eight numbers of 4 bits in a word."""
    return (o.index(1 << 32, *shape) - (1 << 31)).to(o.torch.int32)


@case(SUITE, "attention by silu of 64 users' events, 0 to 2047, with biases by time, 4 heads of 64")
def _(o: Operands) -> Run:
    b, h, d, most, buckets = o.of(64, 3), o.of(4, 2), 64, o.of(2048, 150), 128
    first = o.zeros(b + 1, dtype="int32")
    first[1:] = o.index(most, b).cumsum(0)
    t = int(first[-1])
    q, k, v, out = o.normal(t, h, d), o.normal(t, h, d), o.normal(t, h, d), o.zeros(t, h, d)
    times = o.index(100000, t).cumsum(0)
    by_place, by_time = o.normal(most, dtype="float32"), o.normal(buckets + 1, dtype="float32")
    f = _mixers().hstu_attention

    def run() -> Any:
        f[(-(-most // 64), b * h)](
            *(q, k, v, times, first, by_place, by_time, out, d**-0.5, most),
            H=h,
            BUCKETS=buckets,
            BM=64,
            BN=64,
            D=d,
        )
        return out

    return run


@case(SUITE, "decoding from 4 bits, keys by channels, values by tokens, 32 x 8192, 4 heads for 8")
def _(o: Operands) -> Run:
    b, h, g, d, s, group, parts = o.of(32, 3), o.of(8, 2), 4, 128, o.of(8192, 192), 32, 8
    length = (o.index(s // 2, b) + s // 2).to(o.torch.int32)
    q, out = o.normal(b, h * g, d, dtype="float16"), o.zeros(b, h * g, d, dtype="float16")
    keys, values = _words_of_4_bits(o, b, h, d, s // 8), _words_of_4_bits(o, b, h, s, d // 8)
    shapes = (b, h, d, s // group), (b, h, s, d // group)
    ks, vs = (o.torch.rand(*n, device=o.device).to(o.torch.float16) / 4 for n in shapes)
    kz, vz = -8 * ks, -7 * vs
    part = o.zeros(b * h * g, parts, d, dtype="float32")
    lse, f = o.zeros(b * h * g, parts, dtype="float32"), _mixers()

    def run() -> Any:
        f.parts_of_4_bits[(b, h, parts)](
            *(q, keys, ks, kz, values, vs, vz, length, part, lse, d**-0.5, s),
            G=g,
            GROUP=group,
            BN=64,
            D=d,
        )
        f.parts_together[(b * h * g,)](part, lse, out, parts, D=d, num_warps=2)
        return out

    return run


@case(SUITE, "gradients of attention in one kernel, 32 heads of 64 on 8, 4096")
def _(o: Operands) -> Run:
    h, g, s, d = o.of(8, 2), 4, o.of(4096, 200), 64
    q, out, do = (o.normal(h * g, s, d) for _ in range(3))
    k, v = o.normal(h, s, d), o.normal(h, s, d)
    # as if of random rows, whose scores are normal
    lse = ((o.torch.arange(s, device=o.device) + 1.0).log() + 0.5).repeat(h * g, 1)
    delta, dq = o.zeros(h * g, s, dtype="float32"), o.zeros(h * g, s, d, dtype="float32")
    dk, dv, f = o.zeros(h, s, d), o.zeros(h, s, d), _mixers()

    def run() -> Any:
        dq.zero_()
        f.products_with_gradients[(-(-h * g * s // 64),)](out, do, delta, h * g * s, BM=64, D=d)
        f.gradients_of_attention[(-(-s // 128), h)](
            q, k, v, do, lse, delta, dq, dk, dv, d**-0.5, s, G=g, BM=64, BN=128, D=d, num_warps=8
        )
        return dq, dk, dv

    return run


@case(SUITE, "attention to 77 words, 32 images of 64 x 64, 8 heads of 40")
def _(o: Operands) -> Run:
    b, h, s, words, d = o.of(32, 2), o.of(8, 3), o.of(4096, 200), 77, 40
    q, k, v = (o.normal(b, n, h, d, dtype="float16") for n in (s, words, words))
    out, f = o.zeros(b, s, h, d, dtype="float16"), _mixers().attention_to_words

    def run() -> Any:
        f[(-(-s // 128), b * h)](
            q, k, v, out, d**-0.5, s, words, h, D=d, BM=128, BN=128, BD=64, num_warps=8
        )
        return out

    return run


@case(SUITE, "attention to 7 x 7 around, 64 images of 56 x 56, 4 heads of 32")
def _(o: Operands) -> Run:
    b, h, d, window = o.of(64, 2), o.of(4, 2), 32, 7
    tall, wide = (56, 56) if o.scale == 1 else (20, 17)
    q, k, v = (o.normal(b, tall, wide, h, d) for _ in range(3))
    bias = o.normal(h, 2 * window - 1, 2 * window - 1, dtype="float32")
    out, f = o.zeros(b, tall, wide, h, d), _mixers().neighbourhood_attention
    given = {"WINDOW": window, "SIDE": 8, "WIDE": 16, "TALL": 4, "D": d}

    def run() -> Any:
        f[(-(-tall // 8), -(-wide // 8), b * h)](
            q, k, v, bias, out, d**-0.5, tall, wide, h, **given
        )
        return out

    return run


@case(SUITE, "weights of 4 bits that groups make int8 (W4A8), 256 x 14336 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(256, 50), o.of(14336, 256), o.of(4096, 384)
    x = (o.index(255, m, k) - 127).to(o.torch.int8)
    packed = o.index(256, n, k // 2).to(o.torch.uint8)
    scale = (o.index(8, n, k // 128) + 1).to(o.torch.int8)
    zero = scale * (o.index(8, n, k // 128) + 4).to(o.torch.int8)
    xs, ws = o.torch.rand(m, device=o.device) / 128, o.torch.rand(n, device=o.device) / 128
    y, f = o.zeros(m, n, dtype="float16"), _taps().int8_by_4_bits

    def run() -> Any:
        f[lambda at: (-(-m // at["BM"]), n // at["BN"])](x, packed, scale, zero, xs, ws, y, m, n, k)
        return y

    return run


@case(SUITE, "gradients of weights of a convolution 3 x 3, 32 x 56 x 56 x 128 to 128")
def _(o: Operands) -> Run:
    b, tall, wide, c, f, parts = o.of(32, 2), o.of(56, 9), o.of(56, 11), 128, 128, o.of(32, 3)
    x, dy = o.normal(b, tall, wide, c), o.normal(b, tall, wide, f)
    dw, kernel = o.zeros(9, c, f, dtype="float32"), _taps().gradients_of_taps

    def run() -> Any:
        dw.zero_()
        kernel[lambda at: (9 * parts, -(-c // at["BM"]), -(-f // at["BN"]))](
            x, dy, dw, b * tall * wide, tall, wide, c, f, SPLIT=parts
        )
        return dw

    return run


@case(SUITE, "transposed convolution 4 x 4 in steps of 2, 16 x 64 x 64 x 256 to 128")
def _(o: Operands) -> Run:
    b, tall, wide, c, f = o.of(16, 2), o.of(64, 9), o.of(64, 11), o.of(256, 128), 128
    x, w, bias = o.normal(b, tall, wide, c), o.normal(4, 4, c, f) / 32, o.normal(f)
    y, kernel = o.zeros(b, 2 * tall, 2 * wide, f), _taps().transposed_convolution

    def run() -> Any:
        kernel[lambda at: (-(-b * tall * wide // at["BM"]), -(-f // at["BN"]), 4)](
            x, w, bias, y, b, tall, wide, c, f
        )
        return y

    return run


@case(SUITE, "gated filters of 128 taps as Toeplitz matrices, 2 x 8192 x 4096, groups of 64")
def _(o: Operands) -> Run:
    b, t, groups, length, width = 2, o.of(8192, 300), o.of(64, 3), 128, 64
    q, k, v = (o.normal(b, t, groups, width) for _ in range(3))
    fade = (o.torch.arange(length, device=o.device) / -32).exp().to(o.torch.bfloat16)
    filters, skip = o.normal(groups, length) * fade / 4, o.normal(groups * width)
    y, f = o.zeros(b, t, groups, width), _taps().toeplitz_convolution

    def run() -> Any:
        f[(-(-t // length), groups, b)](
            q, k, v, filters, skip, y, t, groups, LENGTH=length, BC=width, num_warps=8
        )
        return y

    return run


@case(SUITE, "residual codes of 8 books of 1024 vectors of 128, 65536 rows")
def _(o: Operands) -> Run:
    n, count, size, d = o.of(65536, 200), o.of(8, 3), o.of(1024, 256), 128
    x, books = o.normal(n, d), o.normal(count, size, d)
    books /= (o.torch.arange(count, device=o.device) + 1)[:, None, None].to(o.torch.bfloat16)
    norms = books.float().square().sum(2)
    codes, rest = o.zeros(n, count, dtype="int32"), o.zeros(n, d, dtype="float32")
    f = _taps().residual_codes

    def run() -> Any:
        f[(-(-n // 128),)](
            x, books, norms, codes, rest, n, BOOKS=count, CODES=size, BM=128, BN=128, D=d,
            num_warps=8,
        )  # fmt: skip
        return codes, rest

    return run


@case(SUITE, "filters of second order that change every 64 samples, 2048 sounds of 16384")
def _(o: Operands) -> Run:
    b, t, frame, torch = o.of(2048, 5), o.of(16384, 2624), 64, o.torch
    x, y = o.normal(b, t, dtype="float32"), o.zeros(b, t, dtype="float32")
    radius, angle = (torch.rand(b, t // frame, device=o.device) for _ in range(2))
    radius = 0.5 + radius * 0.45
    ahead = o.normal(b, t // frame, 3, dtype="float32")
    back = torch.stack([-2 * radius * (angle * torch.pi).cos(), radius * radius], 2)
    coefficient, f = torch.cat([ahead, back], 2), _streams().filtered_sounds

    def run() -> Any:
        f[(b,)](x, coefficient, y, t, FRAME=frame, BT=1024)
        return y

    return run


@case(SUITE, "likeliest tokens by halving a threshold 16 times, 256 x 128256")
def _(o: Operands) -> Run:
    m, n = o.of(256, 5), o.of(128256, 5000)
    x, y = 2 * o.normal(m, n), o.zeros(m, n, dtype="float32")
    part = 0.7 + 0.25 * o.torch.rand(m, device=o.device)
    temperature, f = 0.5 + o.torch.rand(m, device=o.device), _streams().likely_enough

    def run() -> Any:
        f[(m,)](x, y, part, temperature, n, STEPS=16, BLOCK=4096, num_warps=8)
        return y

    return run


@case(SUITE, "layer norm of channels that come first, 256 x 96 x 56 x 56")
def _(o: Operands) -> Run:
    b, c, p = o.of(256, 3), 96, o.of(3136, 100)
    x, w, bias, y = o.normal(b, c, p), o.normal(c), o.normal(c), o.zeros(b, c, p)
    f = _streams().norm_of_channels

    def run() -> Any:
        f[(-(-p // 64), b)](x, w, bias, y, c, p, 1e-6, BC=128, BP=64)
        return y

    return run


@case(SUITE, "farthest 512 of 8192 points, 256 clouds")
def _(o: Operands) -> Run:
    b, n, count = o.of(256, 3), o.of(8192, 1000), o.of(512, 50)
    # whole numbers, whose distances are exact, so that there is one answer
    points = o.index(2048, b, 3, n).to(o.torch.float32)
    chosen, f = o.zeros(b, count, dtype="int32"), _streams().farthest_points
    block = 1 << (n - 1).bit_length()

    def run() -> Any:
        f[(b,)](points, chosen, n, count, BLOCK=block, num_warps=16)
        return chosen

    return run
