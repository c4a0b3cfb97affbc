"""The third set of kernels that were written in Triton's language for this race, those without dots
(triton_steps), and how each is called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case
from benchmarks.triton_written_serving import SUITE


def _steps() -> ModuleType:
    """The kernels, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_steps")


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
