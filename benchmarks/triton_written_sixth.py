"""A sixth set of kernels that were written in Triton's language for this race: those with matrices
(triton_products, triton_solvers), and how each is called. triton_written_grids has the others.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "sixth"


def _products() -> ModuleType:
    """The kernels with dots, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_products")


def _solvers() -> ModuleType:
    """Those of small matrices."""
    return importlib.import_module("benchmarks.triton_solvers")


def _grid(m: int, n: int) -> Any:
    """Of a product: a program for each tile of the configuration."""
    return lambda at: (-(-m // at["BM"]), -(-n // at["BN"]))


@case(SUITE, "int8 product with zero points, 4096 x 4096 x 4096")
def _(o: Operands) -> Run:
    m = o.of(4096, 128)
    x, w = ((o.index(255, m, m) - 127).to(o.torch.int8) for _ in range(2))
    sx, sw = (o.torch.rand(m, device=o.device) / 64 for _ in range(2))
    zx, y = (o.index(64, m) - 32).to(o.torch.int32), o.zeros(m, m)
    f = _products().zero_point_product

    def run() -> Any:
        f[lambda at: (-(-m // at["BM"]) * -(-m // at["BN"]),)](x, w, sx, zx, sw, y, m, m, m)
        return y

    return run


@case(SUITE, "weights of which half is kept (2:4), 1024 x 8192 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(1024, 128), o.of(8192, 128), o.of(4096, 128)
    x, kept, y = o.normal(m, k), o.normal(n, k // 2), o.zeros(m, n)
    pairs = o.torch.tensor([1 * 4, 2 * 4, 3 * 4, 1 + 2 * 4, 1 + 3 * 4, 2 + 3 * 4], device=o.device)
    place = pairs[o.index(6, n, k // 4)].to(o.torch.uint8)
    f = _products().pruned_product

    def run() -> Any:
        f[_grid(m, n)](x, kept, place, y, m, n, k)
        return y

    return run


@case(SUITE, "Kronecker product of 64 x 64 twice, 65536 rows")
def _(o: Operands) -> Run:
    m, p = o.of(65536), 64
    x, y = o.normal(m, p, p), o.zeros(m, p, p)
    a, b, f = o.normal(p, p) / 8, o.normal(p, p) / 8, _products().kronecker_applied

    def run() -> Any:
        f[(m,)](x, a, b, y, P=p, Q=p)
        return y

    return run


@case(SUITE, "deformable convolution 3 x 3, 16 x 56 x 56 x 128 to 128")
def _(o: Operands) -> Run:
    b, s, c = o.of(16, 2), o.of(56, 14), 128
    x, y, w = o.normal(b, s, s, c), o.zeros(b, s, s, c), o.normal(9, c, c) / 32
    shift, f = o.normal(b, s, s, 9, 2, dtype="float32"), _products().deformable

    def run() -> Any:
        f[(-(-s * s // 64), c // 128, b)](
            x, shift, w, y, s, s, c, c, BP=64, BF=128, BC=32, num_warps=4
        )
        return y

    return run


@case(SUITE, "grouped convolution of time, 7 wide, 32 x 1024 x 4096, groups of 32")
def _(o: Operands) -> Run:
    b, c, t, g, width = o.of(32, 2), o.of(1024, 64), o.of(4096, 200), 32, 7
    x, y, w, bias = o.normal(b, c, t), o.zeros(b, c, t), o.normal(width, c, g), o.normal(c)
    f = _products().grouped_convolution

    def run() -> Any:
        f[(-(-t // 128), c // g, b)](x, w, bias, y, c, t, G=g, WIDTH=width, BT=128, num_warps=4)
        return y

    return run


@case(SUITE, "attention of packed sequences with slopes, 24576 tokens, 32 heads of 128")
def _(o: Operands) -> Run:
    h, d = o.of(32, 2), 128
    lengths = [n // o.scale + 1 for n in (4096, 1000, 8000, 257, 3333, 4096, 1794, 2000)]
    first = o.zeros(len(lengths) + 1, dtype="int32")
    first[1:] = o.torch.tensor(lengths).cumsum(0)
    t, most = sum(lengths), max(lengths)
    q, k, v, out = *(o.normal(t, h, d) for _ in range(3)), o.zeros(t, h, d)
    slope = 2.0 ** -o.torch.linspace(1, 8, h, device=o.device)
    f = _products().packed_attention

    def run() -> Any:
        f[(-(-most // 128), h, len(lengths))](
            q, k, v, first, slope, out, d**-0.5, h, BM=128, BN=64, D=d, num_warps=8
        )
        return out

    return run


@case(SUITE, "attention by cosines, 64 heads of 64, 4096")
def _(o: Operands) -> Run:
    h, n, d = o.of(64, 2), o.of(4096, 128), 64
    q, k, v, out = *(o.normal(h, n, d) for _ in range(3)), o.zeros(h, n, d)
    heat = o.torch.rand(h, device=o.device) * 20 + 2
    f = _products().cosine_attention

    def run() -> Any:
        f[(n // 128, h)](q, k, v, heat, out, n, BM=128, BN=64, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "sums of 262144 points of 128 by 512 centres")
def _(o: Operands) -> Run:
    n, k, d, parts = o.of(262144, 1000), 512, 128, o.of(33, 3)
    x, nearest = o.normal(n, d), o.index(k, n).to(o.torch.int32)
    sums, count = o.zeros(k, d, dtype="float32"), o.zeros(k, dtype="int32")
    f = _products().sums_by_centre

    def run() -> Any:
        sums.zero_()
        count.zero_()
        f[(k // 128, d // 128, parts)](
            x, nearest, sums, count, n, k, d, BK=128, BN=64, BD=128, num_warps=8
        )
        return sums, count

    return run


@case(SUITE, "quadratic forms of 256, 262144 rows")
def _(o: Operands) -> Run:
    n, d = o.of(262144, 300), 256
    x, a = o.normal(n, d), o.normal(d, d) / 16
    mean, y = o.normal(d, dtype="float32"), o.zeros(n, dtype="float32")
    f = _products().quadratic_forms

    def run() -> Any:
        f[(-(-n // 128),)](x, mean, a, y, n, D=d, BM=128, BK=64, num_warps=8)
        return y

    return run


@case(SUITE, "residual with layer scale and dropped samples, descriptors, 16384 x 4096 x 1024")
def _(o: Operands) -> Run:
    m, n, k, s = o.of(16384, 512), o.of(4096, 256), o.of(1024, 128), o.of(1024, 128)
    x, w, r, y = o.normal(m, k), o.normal(k, n), o.normal(m, n), o.zeros(m, n)
    scale, f = o.normal(n) / 32, _products().scaled_residual_product
    keep = (o.torch.rand(m // s, device=o.device) < 0.8).float() / 0.8

    def run() -> Any:
        f[_grid(m, n)](x, w, r, scale, keep, y, m, n, k, s)
        return y

    return run


@case(SUITE, "Cholesky factors of 65536 matrices of 32 x 32")
def _(o: Operands) -> Run:
    m, n = o.of(65536), 32
    x = o.normal(m, n, n, dtype="float32") / 8
    a, y = x @ x.mT + o.torch.eye(n, device=o.device), o.torch.zeros_like(x)
    f = _solvers().cholesky

    def run() -> Any:
        f[(m,)](a, y, N=n, num_warps=1)
        return y

    return run


@case(SUITE, "triangles of 64 solved, 64 right sides, 16384")
def _(o: Operands) -> Run:
    m, n, r = o.of(16384), 64, 64
    a = (o.normal(m, n, n, dtype="float32") / 16).tril(-1) + 2 * o.torch.eye(n, device=o.device)
    b, y = o.normal(m, n, r, dtype="float32"), o.zeros(m, n, r, dtype="float32")
    f = _solvers().solved_forward

    def run() -> Any:
        f[(m,)](a, b, y, N=n, R=r)
        return y

    return run


@case(SUITE, "inverses of 262144 matrices of 16 x 16")
def _(o: Operands) -> Run:
    m, n = o.of(262144, 66), 16
    a = o.normal(m, n, n, dtype="float32") / 8 + 2 * o.torch.eye(n, device=o.device)
    y, f = o.torch.zeros_like(a), _solvers().inverses

    def run() -> Any:
        f[(-(-m // 4),)](a, y, m, N=n, BB=4)
        return y

    return run


@case(SUITE, "products of 1048576 matrices of 8 x 8")
def _(o: Operands) -> Run:
    m, n = o.of(1048576) // 8 * 8, 8
    x, z, y = o.normal(m, n, n), o.normal(m, n, n), o.zeros(m, n, n)
    f = _solvers().tiny_products

    def run() -> Any:
        f[(m // 8,)](x, z, y, N=n, BB=8)
        return y

    return run
