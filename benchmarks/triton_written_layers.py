"""A second set of kernels that were written in Triton's language for this race (triton_layers,
triton_arrays), and how each is called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "layers"


def _layers() -> ModuleType:
    """The kernels with dots, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_layers")


def _arrays() -> ModuleType:
    """Those without."""
    return importlib.import_module("benchmarks.triton_arrays")


def _grid(m: int, n: int) -> Any:
    """Of a product: a program for each tile of the configuration."""
    return lambda at: (-(-m // at["BM"]), -(-n // at["BN"]))


@case(SUITE, "float8 by blocks of 128, 4096 x 7168 x 2048")
def _(o: Operands) -> Run:
    m, n, k = o.of(4096, 128), o.of(7168, 128) // 128 * 128, o.of(2048, 256)
    a, b = (o.normal(rows, k, dtype="float32").to(o.torch.float8_e4m3fn) for rows in (m, n))
    sa = o.torch.rand(m, k // 128, device=o.device)
    sb = o.torch.rand(n // 128, k // 128, device=o.device)
    c, f = o.zeros(m, n), _layers().blockwise_float8

    def run() -> Any:
        f[_grid(m, n)](a, b, c, sa, sb, m, n, k)
        return c

    return run


@case(SUITE, "weights of 4 bits (GPTQ), 64 x 14336 x 4096")
def _(o: Operands) -> Run:
    m, n, k = 64, o.of(14336, 256), o.of(4096, 256)
    n = n // 128 * 128
    x, y = o.normal(m, k, dtype="float16"), o.zeros(m, n, dtype="float16")
    words = o.index(2**31 - 1, k // 8, n).to(o.torch.int32)
    zeros = o.index(2**31 - 1, k // 128, n // 8).to(o.torch.int32)
    scales = (o.normal(k // 128, n, dtype="float16") / 16).contiguous()
    f = _layers().gptq_product

    def run() -> Any:
        f[_grid(m, n)](x, words, zeros, scales, y, m, n, k, GROUP=128)
        return y

    return run


@case(SUITE, "convolution 3 x 3, 32 x 56 x 56 x 128 to 128")
def _(o: Operands) -> Run:
    b, s, c, f = o.of(32, 1), 56, 128, 128
    x, w, y = o.normal(b, s, s, c), o.normal(9, c, f), o.zeros(b, s, s, f)
    kernel = _layers().convolution

    def run() -> Any:
        kernel[_grid(b * s * s, f)](x, w, y, b, s, s, c, f)
        return y

    return run


@case(SUITE, "paged attention, 8 of 1024 queries on 8192 keys, 32 heads on 8")
def _(o: Operands) -> Run:
    b, s, h, group, d, page = o.of(8, 2), o.of(1024, 128), 32, 4, 128, 64
    length = o.of(8192, 256)
    pages = length // page
    table = o.torch.randperm(b * pages, device=o.device).to(o.torch.int32).view(b, pages)
    lengths = o.torch.full((b,), length, device=o.device, dtype=o.torch.int32)
    q, out = o.normal(b, s, h, d), o.zeros(b, s, h, d)
    k, v = (o.normal(b * pages, page, h // group, d) for _ in range(2))
    f = _layers().paged_attention

    def run() -> Any:
        grid = (-(-s // 128), h, b)
        f[grid](
            q, k, v, table, lengths, out, d**-0.5, s, pages, h, group,
            BM=128, D=d, PAGE=page, num_warps=8,
        )  # fmt: skip
        return out

    return run


@case(SUITE, "attention with biases, 128 heads of 64, 1024 x 2048")
def _(o: Operands) -> Run:
    h, m, n, d = o.of(128, 2), o.of(1024, 128), o.of(2048, 128), 64
    q, k, v = o.normal(h, m, d), o.normal(h, n, d), o.normal(h, n, d)
    bias, out, f = o.normal(h, m, n), o.zeros(h, m, d), _layers().bias_attention

    def run() -> Any:
        f[(m // 128, h)](q, k, v, bias, out, d**-0.5, m, n, BM=128, BN=64, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "recurrent cell of 128, 8192 sequences of 256")
def _(o: Operands) -> Run:
    b, t, d = o.of(8192, 128), o.of(256, 16), 128
    x, h0, y = o.normal(b, t, d), o.normal(b, d), o.zeros(b, t, d)
    w = (o.normal(d, d) / 16).contiguous()
    f = _layers().recurrent_cell

    def run() -> Any:
        f[(b // 64,)](x, w, h0, y, b, t, BM=64, D=d, num_warps=4)
        return y

    return run


@case(SUITE, "nearest of 1024 centres, 262144 points of 128")
def _(o: Operands) -> Run:
    n, k, d = o.of(262144, 512), o.of(1024, 128), 128
    x, c = o.normal(n, d), o.normal(k, d)
    norms = (c.float() ** 2).sum(1)
    best, which = o.zeros(n, dtype="float32"), o.zeros(n, dtype="int32")
    f = _layers().nearest_centre

    def run() -> Any:
        f[(-(-n // 128),)](x, c, norms, best, which, n, k, BM=128, BN=128, D=d, num_warps=8)
        return best

    return run


@case(SUITE, "norm and linear, 4096 x 4096 x 4096")
def _(o: Operands) -> Run:
    m = o.of(4096, 128)
    x, g, y, f = o.normal(m, m), o.normal(m), o.zeros(m, m), _layers().norm_linear
    w = (o.normal(m, m) / 64).contiguous()

    def run() -> Any:
        f[(m // 128, m // 128)](x, g, w, y, m, m, m, 1e-6, BM=128, BN=128, BK=64, num_warps=8)
        return y

    return run


@case(SUITE, "product and softmax of 256 classes, 65536 x 1024")
def _(o: Operands) -> Run:
    m, n, k = o.of(65536, 128), 256, o.of(1024, 128)
    x, w, y = o.normal(m, k), (o.normal(k, n) / 16).contiguous(), o.zeros(m, n)
    f = _layers().classify

    def run() -> Any:
        f[(m // 64,)](x, w, y, m, k, BM=64, N=n, BK=64, num_warps=8)
        return y

    return run


@case(SUITE, "symmetric product, 4096 x 4096")
def _(o: Operands) -> Run:
    m, k = o.of(4096, 256), o.of(4096)
    x, y, f = o.normal(m, k), o.zeros(m, m), _layers().symmetric_product

    def run() -> Any:
        f[_grid(m, m)](x, y, m, k)
        return y

    return run


@case(SUITE, "loss of a linear layer, 8192 x 32768 x 2048")
def _(o: Operands) -> Run:
    m, n, k = o.of(8192, 128), o.of(32768, 256), o.of(2048, 128)
    x, w = o.normal(m, k), (o.normal(n, k) / 32).contiguous()
    target, loss = o.index(n, m), o.zeros(m, dtype="float32")
    f = _layers().linear_loss

    def run() -> Any:
        f[(m // 64,)](x, w, target, loss, n, k, BM=64, BN=256, BK=64, num_warps=8, num_stages=3)
        return loss

    return run


@case(SUITE, "product of float32, 4096 cubed")
def _(o: Operands) -> Run:
    m = o.of(4096, 128)
    x, w = o.normal(m, m, dtype="float32"), o.normal(m, m, dtype="float32")
    y, f = o.zeros(m, m, dtype="float32"), _layers().float32_product

    def run() -> Any:
        f[_grid(m, m)](x, w, y, m, m, m)
        return y

    return run


@case(SUITE, "products of 32 experts, 8192 tokens to 2 each, 2048 x 4096")
def _(o: Operands) -> Run:
    tokens, top, experts, n, k = o.of(8192, 128), 2, o.of(32, 4), o.of(2048, 128), o.of(4096)
    places = tokens * top
    order = o.torch.randperm(places, device=o.device).to(o.torch.int32)
    expert = o.index(experts, places // 128).sort().values.to(o.torch.int32)
    x, w, y = o.normal(tokens, k), o.normal(experts, k, n), o.zeros(places, n)
    f = _layers().expert_product

    def run() -> Any:
        f[_grid(places, n)](x, w, y, order, expert, top, n, k)
        return y

    return run


@case(SUITE, "softmax backward, 16384 x 4096")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(4096)
    y, dy, dx = o.normal(m, n), o.normal(m, n), o.zeros(m, n)
    f = _arrays().softmax_backward

    def run() -> Any:
        f[(m,)](y, dy, dx, n, BLOCK=4096, num_warps=8)
        return dx

    return run


@case(SUITE, "swiglu backward, 8192 x 11008")
def _(o: Operands) -> Run:
    m, n = o.of(8192), o.of(11008)
    h, dy, dh, f = o.normal(m, 2 * n), o.normal(m, n), o.zeros(m, 2 * n), _arrays()

    def run() -> Any:
        f.swiglu_backward[(m, -(-n // 1024))](h, dy, dh, n, BLOCK=1024)
        return dh

    return run


@case(SUITE, "rotary in place, 8 x 4096 x 32 x 128")
def _(o: Operands) -> Run:
    b, s, h, d = o.of(8, 2), o.of(4096), 32, 128
    x, f = o.normal(b, s, h, d), _arrays().rotate
    at = o.torch.rand(s, d // 2, device=o.device)
    cos, sin = at.cos().contiguous(), at.sin().contiguous()

    def run() -> Any:
        f[(b * s,)](x, cos, sin, s, H=h, D=d)
        return x

    return run


@case(SUITE, "group norm and silu, 16 x 4096 x 512, groups of 16")
def _(o: Operands) -> Run:
    b, p, c, g = o.of(16, 2), o.of(4096), 512, 16
    x, w, bias, y = o.normal(b, p, c), o.normal(c), o.normal(c), o.zeros(b, p, c)
    f = _arrays().group_norm

    def run() -> Any:
        f[(b, c // g)](x, w, bias, y, p, c, 1e-5, G=g, BLOCK=256, num_warps=8)
        return y

    return run


@case(SUITE, "dropout, 67108864 elements")
def _(o: Operands) -> Run:
    n = o.of(67108864, 4096)
    x, y, f = o.normal(n), o.zeros(n), _arrays().dropout

    def run() -> Any:
        f[(-(-n // 2048),)](x, y, 7, 0.1, n, BLOCK=2048)
        return y

    return run


@case(SUITE, "sort of rows, 16384 x 1024 float32")
def _(o: Operands) -> Run:
    m, n = o.of(16384), 1024
    x, y, f = o.normal(m, n, dtype="float32"), o.zeros(m, n, dtype="float32"), _arrays()

    def run() -> Any:
        f.sort_rows[(m,)](x, y, N=n)
        return y

    return run


@case(SUITE, "counts of 256 values, 67108864 elements")
def _(o: Operands) -> Run:
    n = o.of(67108864, 8192)
    x, y = o.index(256, n).to(o.torch.int32), o.zeros(256, dtype="int32")
    f = _arrays().counts

    def run() -> Any:
        y.zero_()
        f[(-(-n // 16384),)](x, y, n, BINS=256, BLOCK=2048)
        return y

    return run


@case(SUITE, "best of rows, 4096 x 128256")
def _(o: Operands) -> Run:
    m, n = o.of(4096), o.of(128256)
    x, which = o.normal(m, n), o.zeros(m, dtype="int32")
    f = _arrays().best_of_rows

    def run() -> Any:
        f[(m,)](x, which, n, BLOCK=4096, num_warps=8)
        return which

    return run


@case(SUITE, "sums of columns, 32768 x 4096")
def _(o: Operands) -> Run:
    m, n = o.of(32768, 1024), o.of(4096)
    x, y, f = o.normal(m, n), o.zeros(n, dtype="float32"), _arrays().column_sums

    def run() -> Any:
        y.zero_()
        f[(-(-m // 512), -(-n // 256))](x, y, m, n, 512, BM=16, BN=256)
        return y

    return run


@case(SUITE, "image twice as large, 16 x 64 x 64 x 256")
def _(o: Operands) -> Run:
    b, s, c = o.of(16, 1), 64, 256
    x, y = o.normal(b, s, s, c), o.zeros(b, 2 * s, 2 * s, c)
    f = _arrays().twice_as_large

    def run() -> Any:
        f[(b * 2 * s, 2 * s // 16, c // 128)](x, y, s, s, c, BW=16, BC=128)
        return y

    return run


@case(SUITE, "gated scan, 8 x 4096 x 2048")
def _(o: Operands) -> Run:
    b, t, c = o.of(8, 2), o.of(4096, 128), o.of(2048)
    a = o.torch.rand(b, t, c, device=o.device).to(o.torch.bfloat16)
    x, y, f = o.normal(b, t, c), o.zeros(b, t, c), _arrays().gated_scan

    def run() -> Any:
        f[(b, c // 64)](a, x, y, t, c, BT=64, BC=64)
        return y

    return run


@case(SUITE, "rows to an int8 cache, 16384 tokens, 8 heads of 128")
def _(o: Operands) -> Run:
    tokens, h, d = o.of(16384), 8, 128
    k, cache = o.normal(tokens, h, d), o.zeros(2 * tokens, h, d, dtype="int8")
    slots = o.torch.randperm(2 * tokens, device=o.device)[:tokens].contiguous()
    slots[::7] = -1
    scales, f = o.zeros(2 * tokens, h, dtype="float32"), _arrays().cache_rows

    def run() -> Any:
        f[(tokens, h)](k, slots, cache, scales, h, D=d, num_warps=1)
        return cache, scales

    return run


@case(SUITE, "layer norm of short rows, 262144 x 256")
def _(o: Operands) -> Run:
    m, n = o.of(262144), 256
    x, w, b, y = o.normal(m, n), o.normal(n), o.normal(n), o.zeros(m, n)
    f = _arrays().norm_of_blocks

    def run() -> Any:
        f[(-(-m // 16),)](x, w, b, y, m, 1e-5, N=n, ROWS=16)
        return y

    return run


@case(SUITE, "divergence of rows, 4096 x 32000")
def _(o: Operands) -> Run:
    m, n = o.of(4096), o.of(32000)
    x, z, loss = o.normal(m, n), o.normal(m, n), o.zeros(m, dtype="float32")
    f = _arrays().divergence

    def run() -> Any:
        f[(m,)](x, z, loss, n, BLOCK=4096, num_warps=8)
        return loss

    return run


@case(SUITE, "step of heat, 8192 x 8192 float32")
def _(o: Operands) -> Run:
    m = o.of(8192)
    x, y, f = o.normal(m, m, dtype="float32"), o.zeros(m, m, dtype="float32"), _arrays().heat

    def run() -> Any:
        f[(-(-m // 16), -(-m // 128))](x, y, m, m, 0.1, BH=16, BW=128)
        return y

    return run


@case(SUITE, "heads first, 8 x 4096 x 32 x 128")
def _(o: Operands) -> Run:
    b, s, h, d = o.of(8, 2), o.of(4096), 32, 128
    x, y, f = o.normal(b, s, h, d), o.zeros(b, h, s, d), _arrays().heads_first

    def run() -> Any:
        f[(b, h, -(-s // 64))](x, y, s, h, D=d, BS=64)
        return y

    return run


@case(SUITE, "matrix by vector, 14336 x 4096")
def _(o: Operands) -> Run:
    m, n = o.of(14336), o.of(4096, 1024)
    w, x, y, f = o.normal(m, n), o.normal(n), o.zeros(m), _arrays().matrix_vector

    def run() -> Any:
        f[(m // 8,)](w, x, y, m, n, BM=8, BN=1024)
        return y

    return run


@case(SUITE, "positive elements, 33554432 float32")
def _(o: Operands) -> Run:
    n = o.of(33554432, 4096)
    x, y = o.normal(n, dtype="float32"), o.zeros(n, dtype="float32")
    count, f = o.zeros(1, dtype="int32"), _arrays().compacted

    def run() -> Any:
        count.zero_()
        f[(-(-n // 2048),)](x, y, count, n, BLOCK=2048)
        return count

    return run


@case(SUITE, "rows in 4 bits, 8192 x 8192")
def _(o: Operands) -> Run:
    m, n = o.of(8192), o.of(8192)
    x, y, scales = (
        o.normal(m, n),
        o.zeros(m, n // 2, dtype="uint8"),
        o.zeros(m, dtype="float32"),
    )
    f = _arrays().nibbles

    def run() -> Any:
        f[(m,)](x, y, scales, n, BLOCK=4096, num_warps=8)
        return y, scales

    return run
