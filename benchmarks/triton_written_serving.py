"""A third set of kernels that were written in Triton's language for this race (triton_serving,
triton_contractions, triton_steps), and how each is called.
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


def _steps() -> ModuleType:
    """Those without."""
    return importlib.import_module("benchmarks.triton_steps")


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


@case(SUITE, "smoothed loss and its gradient, 8192 x 50304")
def _(o: Operands) -> Run:
    m, n = o.of(8192), o.of(50304)
    x, dx = o.normal(m, n), o.zeros(m, n)
    target, loss = o.index(n, m), o.zeros(m, dtype="float32")
    f = _steps().smooth_loss

    def run() -> Any:
        f[(m,)](x, target, loss, dx, n, 0.1, BLOCK=4096, num_warps=8)
        return loss, dx

    return run


@case(SUITE, "sparse rows, 65536 of 32 elements, by 256")
def _(o: Operands) -> Run:
    m, d = o.of(65536), 256
    counts = o.index(64, m).to(o.torch.int32)
    start = o.torch.zeros(m + 1, device=o.device, dtype=o.torch.int32)
    start[1:] = counts.cumsum(0)
    column = o.index(m, int(start[-1])).to(o.torch.int32)
    value = o.normal(int(start[-1]), dtype="float32")
    x, y, f = o.normal(m, d), o.zeros(m, d), _steps().sparse_rows

    def run() -> Any:
        f[(m, 1)](start, column, value, x, y, d, BLOCK=256, num_warps=2)
        return y

    return run


@case(SUITE, "largest of 3 x 3, 32 x 112 x 112 x 64")
def _(o: Operands) -> Run:
    b, s, c = o.of(32, 1), 112, 64
    x, y, f = o.normal(b, s, s, c), o.zeros(b, s // 2, s // 2, c), _steps().pool

    def run() -> Any:
        f[(b * s // 2, -(-s // 2 // 16), 1)](x, y, s, s, c, BW=16, BC=64)
        return y

    return run


@case(SUITE, "cell of an LSTM, 16384 x 2048")
def _(o: Operands) -> Run:
    m, d = o.of(16384), o.of(2048)
    z, c = o.normal(m, 4 * d), o.normal(m, d, dtype="float32")
    h, new_c, f = o.zeros(m, d), o.zeros(m, d, dtype="float32"), _steps().memory_cell

    def run() -> Any:
        f[(-(-m * d // 1024),)](z, c, h, new_c, d, m * d, BLOCK=1024)
        return h, new_c

    return run


@case(SUITE, "states by an associative scan, 8 x 4096 x 2048")
def _(o: Operands) -> Run:
    b, t, c = o.of(8, 2), o.of(4096, 128), o.of(2048)
    a = o.torch.rand(b, t, c, device=o.device).to(o.torch.bfloat16)
    x, y, f = o.normal(b, t, c), o.zeros(b, t, c), _steps().associative_states

    def run() -> Any:
        f[(b, c // 32)](a, x, y, t, c, BT=64, BC=32)
        return y

    return run


@case(SUITE, "drawn tokens, 512 x 128256")
def _(o: Operands) -> Run:
    m, n = o.of(512, 8), o.of(128256)
    x, token, f = o.normal(m, n), o.zeros(m, dtype="int32"), _steps().drawn_token

    def run() -> Any:
        f[(m,)](x, token, 17, 0.7, n, BLOCK=2048, num_warps=8)
        return token

    return run


@case(SUITE, "float8 by blocks of rows, 16384 x 7168")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(7168, 128) // 128 * 128
    x = o.normal(m, n)
    y = o.torch.zeros(m, n, device=o.device, dtype=o.torch.float8_e4m3fn)
    scales, f = o.zeros(m, n // 128, dtype="float32"), _steps().float8_by_blocks

    def run() -> Any:
        f[(m // 16, n // 128)](x, y, scales, n, BLOCK=128, ROWS=16)
        return y, scales

    return run


@case(SUITE, "weights from 4 bits, 14336 x 4096")
def _(o: Operands) -> Run:
    m, n = o.of(14336), o.of(4096, 2048)
    packed, y = o.index(256, m, n // 2).to(o.torch.uint8), o.zeros(m, n)
    scales, zeros = o.normal(m, n // 128), o.index(16, m, n // 128).to(o.torch.uint8)
    f = _steps().weights_from_4_bits

    def run() -> Any:
        f[(m, n // 2048)](packed, scales, zeros, y, n, G=128, BLOCK=1024)
        return y

    return run


@case(SUITE, "Lion with rounding by chance, 67108864 parameters")
def _(o: Operands) -> Run:
    n = o.of(67108864, 4096)
    p, g, m = o.normal(n), o.normal(n), o.normal(n, dtype="float32")
    f = _steps().sign_step

    def run() -> Any:
        f[(-(-n // 1024),)](p, g, m, 11, 1e-4, 0.9, 0.99, 0.1, n, BLOCK=1024)
        return p, m

    return run


@case(SUITE, "dropout, residual and layer norm, 16384 x 4096")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(4096)
    x, residual, w, b = o.normal(m, n), o.normal(m, n), o.normal(n), o.normal(n)
    z, y, f = o.zeros(m, n), o.zeros(m, n), _steps().dropped_and_normed

    def run() -> Any:
        block = 1 << (n - 1).bit_length()
        f[(m,)](x, residual, w, b, 3, 0.1, z, y, n, 1e-5, BLOCK=block, num_warps=8)
        return z, y

    return run


@case(SUITE, "rotary of neighbours, 8 x 4096 x 32 x 128")
def _(o: Operands) -> Run:
    b, s, h, d = o.of(8, 2), o.of(4096), 32, 128
    x, y = o.normal(b, s, h, d), o.zeros(b, s, h, d)
    cos, sin = o.normal(s, d // 2, dtype="float32"), o.normal(s, d // 2, dtype="float32")
    f = _steps().turned_pairs

    def run() -> Any:
        f[(b * s,)](x, cos, sin, y, s, H=h, D=d)
        return y

    return run


@case(SUITE, "Hadamard of 256, 524288 rows")
def _(o: Operands) -> Run:
    m, n = o.of(524288), 256
    x, y, f = o.normal(m, n), o.zeros(m, n), _steps().hadamard

    def run() -> Any:
        f[(m // 8,)](x, y, 1 / 16, ROWS=8, N=n, LEVELS=8)
        return y

    return run


@case(SUITE, "moments of channels, 401408 x 256")
def _(o: Operands) -> Run:
    m, c = o.of(401408, 512), 256
    x = o.normal(m, c)
    total, squares = o.zeros(c, dtype="float32"), o.zeros(c, dtype="float32")
    f = _steps().channel_moments

    def run() -> Any:
        total.zero_(), squares.zero_()
        f[(-(-m // 512), 1)](x, total, squares, m, c, 512, BM=16, BC=256)
        return total, squares

    return run


@case(SUITE, "images to planes, 256 x 224 x 224")
def _(o: Operands) -> Run:
    b, p = o.of(256, 2), 224 * 224
    x, y = o.index(256, b, p, 3).to(o.torch.uint8), o.zeros(b, 3, p)
    mean, deviation = o.torch.rand(3, device=o.device), o.torch.rand(3, device=o.device) + 0.5
    f = _steps().image_to_planes

    def run() -> Any:
        f[(b, -(-p // 1024))](x, mean, deviation, y, p, BLOCK=1024)
        return y

    return run


@case(SUITE, "averages of 24 tensors by addresses")
def _(o: Operands) -> Run:
    sizes = [o.of(4096 * 4096 // (1 + i % 5), 1024) for i in range(24)]
    averages = [o.normal(n, dtype="float32") for n in sizes]
    values = [o.normal(n) for n in sizes]
    of = lambda xs: o.torch.tensor(xs, device=o.device, dtype=o.torch.int64)  # noqa: E731
    a, v = of([x.data_ptr() for x in averages]), of([x.data_ptr() for x in values])
    count, f = of(sizes), _steps().many_averages

    def run() -> Any:
        f[(len(sizes), 256)](a, v, count, 0.999, BLOCK=2048)
        return averages[3], averages[7]

    return run


@case(SUITE, "focal loss and its gradient, 33554432 elements")
def _(o: Operands) -> Run:
    n = o.of(33554432, 4096)
    x, target = o.normal(n), o.index(2, n).to(o.torch.bfloat16)
    loss, dx, f = o.zeros(n, dtype="float32"), o.zeros(n), _steps().focal_loss

    def run() -> Any:
        f[(-(-n // 1024),)](x, target, loss, dx, 0.25, n, BLOCK=1024)
        return loss, dx

    return run


@case(SUITE, "mean squares of rows and columns, 16384 x 8192")
def _(o: Operands) -> Run:
    m, n = o.of(16384, 256), o.of(8192, 256)
    g = o.normal(m, n)
    rows, columns = o.zeros(m, dtype="float32"), o.zeros(n, dtype="float32")
    f = _steps().factored_moments

    def run() -> Any:
        rows.zero_(), columns.zero_()
        f[(m // 256, n // 256)](g, rows, columns, m, n, 256, BM=16, BN=256)
        return rows, columns

    return run
