"""A third set of kernels that were written in Triton's language for this race, those with dots
(triton_serving, triton_contractions), and how each is called. triton_written_steps has the others.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "serving"


def _products() -> ModuleType:
    """Attention, adapters and perceptrons, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_serving")


def _contractions() -> ModuleType:
    """The other kernels with dots."""
    return importlib.import_module("benchmarks.triton_contractions")


def _grid(m: int, n: int) -> Any:
    """Of a product: a program for each tile of the configuration."""
    return lambda at: (-(-m // at["BM"]), -(-n // at["BN"]))


def _line(m: int, n: int) -> Any:
    """The same in one dimension."""
    return lambda at: (-(-m // at["BM"]) * -(-n // at["BN"]),)


@case(SUITE, "adapters of rank 16, 4096 tokens of 64 adapters, down from 4096")
def _(o: Operands) -> Run:
    t, k, r = o.of(4096, 128), o.of(4096, 256), 16
    x, a, y = o.normal(t, k), o.normal(64, r, k), o.zeros(t, r, dtype="float32")
    which = (o.index(65, t // 64) - 1).to(o.torch.int32)
    f = _products().adapters_down

    def run() -> Any:
        y.zero_()
        f[(t // 64, 4)](x, a, which, y, k, 4, BM=64, R=r, BK=64)
        return y

    return run


@case(SUITE, "adapters of rank 16, 4096 tokens of 64 adapters, up to 4096")
def _(o: Operands) -> Run:
    t, n, r = o.of(4096, 128), o.of(4096, 256), 16
    h, b, y = o.normal(t, r, dtype="float32"), o.normal(64, n, r) / 1024, o.normal(t, n)
    which = (o.index(65, t // 64) - 1).to(o.torch.int32)
    f = _products().adapters_up

    def run() -> Any:
        f[(t // 64, n // 128)](h, b, which, y, n, BM=64, R=r, BN=128)
        return y

    return run


@case(SUITE, "decoding by tokens of a cache, 64 x 8192 keys, 8 heads for each of 8")
def _(o: Operands) -> Run:
    b, length, h, g, d, parts = o.of(64, 4), o.of(8192, 128), 8, 16, 128, 4
    q = o.normal(b, h, g, d)
    k, v = o.normal(b * length, h, d), o.normal(b * length, h, d)
    table = o.torch.randperm(b * length, device=o.device).to(o.torch.int32)
    starts = o.torch.arange(b + 1, device=o.device, dtype=o.torch.int32) * length
    part = o.zeros(b, h, g, parts, d + 1, dtype="float32")
    f = _products().decode_by_token

    def run() -> Any:
        f[(b, h, parts)](
            q, k, v, table, starts, part, d**-0.5, h, PARTS=parts, G=g, BN=64, D=d, DV=d
        )
        return part

    return run


@case(SUITE, "new tokens on a prefix, 8 of 1024 on 4096, 32 heads on 8")
def _(o: Operands) -> Run:
    b, s, h, group, d = o.of(8, 2), o.of(1024, 128), 32, 4, 128
    length = o.of(4096, 128)
    q, k, v = (o.normal(b, s, heads, d) for heads in (h, h // group, h // group))
    ck, cv = (o.normal(b * length, h // group, d) for _ in range(2))
    table = o.torch.randperm(b * length, device=o.device).to(o.torch.int32).view(b, length)
    prefix = o.torch.full((b,), length - 17, device=o.device, dtype=o.torch.int32)
    out, f = o.zeros(b, s, h, d), _products().extend_attention

    def run() -> Any:
        f[(-(-s // 128), h, b)](
            q, k, v, ck, cv, table, prefix, out, d**-0.5, s, length, h, group,
            BM=128, BN=64, D=d, num_warps=8,
        )  # fmt: skip
        return out

    return run


@case(SUITE, "attention to 16 selected blocks of 64, 8192 tokens, 64 heads on 4")
def _(o: Operands) -> Run:
    s, h, g, d, count = o.of(8192, 1024), 4, 16, 128, 16
    q, k, v = o.normal(s, h, g, d), o.normal(s, h, d), o.normal(s, h, d)
    last = (o.torch.arange(s, device=o.device) // 64).view(s, 1, 1)
    blocks = (o.index(1 << 30, s, h, count) % (last + 1)).to(o.torch.int32)
    blocks[:, :, 0] = last[:, :, 0]
    out, f = o.zeros(s, h, g, d), _products().selected_attention

    def run() -> Any:
        f[(s, h, 1)](q, k, v, blocks, out, d**-0.5, s, h, count, G=g, BN=64, D=d, num_warps=2)
        return out

    return run


@case(SUITE, "attention with int8 scores, 64 heads of 128, 4096 on 4096")
def _(o: Operands) -> Run:
    h, m, n, d = o.of(64, 2), o.of(4096, 128), o.of(4096, 128), 128
    q, k = ((o.index(255, h, rows, d) - 127).to(o.torch.int8) for rows in (m, n))
    v, out = o.normal(h, n, d, dtype="float16"), o.zeros(h, m, d, dtype="float16")
    qs = o.torch.rand(h, m // 128, device=o.device) / 256
    ks = o.torch.rand(h, n // 64, device=o.device) / 256
    f = _products().int8_attention

    def run() -> Any:
        f[(m // 128, h)](q, k, v, qs, ks, out, m, n, BM=128, BN=64, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "perceptron of 128, 512 inside, 262144 rows")
def _(o: Operands) -> Run:
    m, d, inside = o.of(262144, 256), 128, 512
    x, y = o.normal(m, d), o.zeros(m, d)
    w1, w2 = o.normal(d, inside) / 8, o.normal(inside, d) / 32
    f = _products().small_perceptron

    def run() -> Any:
        f[(-(-m // 128),)](x, w1, w2, y, m, inside, BM=128, BF=64, D=d, num_warps=8)
        return y

    return run


@case(SUITE, "product to float8 with the largest, 4096 x 14336 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(4096, 128), o.of(14336, 256), o.of(4096, 128)
    n = n // 256 * 256
    x, w = o.normal(m, k), o.normal(k, n)
    y = o.torch.zeros(m, n, device=o.device, dtype=o.torch.float8_e4m3fn)
    scale, largest = o.torch.full((1,), 0.75, device=o.device), o.zeros(1, dtype="float32")
    f = _contractions().product_to_float8

    def run() -> Any:
        f[_line(m, n)](x, w, y, scale, largest, m, n, k)
        return y, largest

    return run


@case(SUITE, "complex product, 2048 cubed")
def _(o: Operands) -> Run:
    m = o.of(2048, 128)
    ar, ai, br, bi = (o.normal(m, m, dtype="float16") / 8 for _ in range(4))
    yr, yi = o.zeros(m, m, dtype="float16"), o.zeros(m, m, dtype="float16")
    f = _contractions().complex_product

    def run() -> Any:
        f[_grid(m, m)](ar, ai, br, bi, yr, yi, m, m, m)
        return yr, yi

    return run


@case(SUITE, "ternary weights, 512 x 8192 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(512, 128), o.of(8192, 128), o.of(4096, 512)
    x = (o.index(255, m, k) - 127).to(o.torch.int8)
    packed = sum((o.index(3, n, k // 4) << (2 * i)) for i in range(4)).to(o.torch.uint8)
    xs, ws = o.torch.rand(m, device=o.device) / 64, o.torch.rand(1, device=o.device)
    y, f = o.zeros(m, n), _contractions().ternary_product

    def run() -> Any:
        f[_grid(m, n)](x, packed, y, xs, ws, m, n, k)
        return y

    return run


@case(SUITE, "covariance of 2048 variables, 32768 observations")
def _(o: Operands) -> Run:
    t, m = o.of(32768, 256), o.of(2048, 128)
    x, y, f = o.normal(t, m), o.zeros(m, m, dtype="float32"), _contractions().centred_products
    mean = x.float().mean(0)

    def run() -> Any:
        f[_grid(m, m)](x, mean, y, t, m)
        return y

    return run


@case(SUITE, "convolution of time, 5 wide, 16 x 3000 x 512 to 512")
def _(o: Operands) -> Run:
    b, t, c, width = o.of(16, 2), o.of(3000, 100), o.of(512, 128), 5
    x, y, bias = o.normal(b, t, c), o.zeros(b, t, c), o.normal(c)
    w, f = o.normal(width, c, c) / 32, _contractions().convolution_of_time

    def run() -> Any:
        f[(-(-t // 128), c // 128, b)](
            x, w, bias, y, t, c, c, WIDTH=width, BM=128, BN=128, BK=64, num_warps=8
        )
        return y

    return run


@case(SUITE, "linear attention with elu, 256 heads of 64, 4096 tokens")
def _(o: Operands) -> Run:
    h, s, d = o.of(256, 4), o.of(4096, 128), 64
    q, k, v, out = *(o.normal(h, s, d) for _ in range(3)), o.zeros(h, s, d)
    f = _contractions().linear_attention

    def run() -> Any:
        f[(h,)](q, k, v, out, s, BT=64, D=d)
        return out

    return run


@case(SUITE, "sums of Gaussians, 32768 of 32768 points of 64")
def _(o: Operands) -> Run:
    n, k, d = o.of(32768, 256), o.of(32768, 256), 64
    x, z = o.normal(n, d, dtype="float16") / 4, o.normal(k, d, dtype="float16") / 4
    v, y = o.normal(k, dtype="float32"), o.zeros(n, dtype="float32")
    f = _contractions().gaussian_sums

    def run() -> Any:
        f[(n // 128,)](x, z, v, y, 0.25, n, k, BM=128, BN=128, D=d, num_warps=8)
        return y

    return run


@case(SUITE, "half a Sinkhorn step, 16384 of 16384 points of 128")
def _(o: Operands) -> Run:
    n, d = o.of(16384, 256), 128
    x, z = o.normal(n, d) / 8, o.normal(n, d) / 8
    g, out = o.normal(n, dtype="float32"), o.zeros(n, dtype="float32")
    f = _contractions().transport_step

    def run() -> Any:
        f[(n // 128,)](x, z, g, out, 0.5, n, n, BM=128, BN=128, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "polynomial of products (Newton and Schulz), 4096 squared")
def _(o: Operands) -> Run:
    m = o.of(4096, 256)
    x = o.normal(m, m)
    a, y = (x + x.T).contiguous() / 64, o.zeros(m, m)
    f = _contractions().polynomial_of_products

    def run() -> Any:
        f[_line(m, m)](a, y, -4.775, 2.0315, m)
        return y

    return run
