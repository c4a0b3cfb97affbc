"""A fourth set of kernels that were written in Triton's language for this race, those with dots
(triton_matrices), and how each is called. triton_written_fields has the others.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "matrices"


def _matrices() -> ModuleType:
    """The kernels, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_matrices")


def _grid(m: int, n: int) -> Any:
    """Of a product: a program for each tile of the configuration."""
    return lambda at: (-(-m // at["BM"]), -(-n // at["BN"]))


def _line(m: int, n: int) -> Any:
    """The same in one dimension."""
    return lambda at: (-(-m // at["BM"]) * -(-n // at["BN"]),)


@case(SUITE, "attention with dropout, 64 heads of 64, 2048")
def _(o: Operands) -> Run:
    h, n, d = o.of(64, 2), o.of(2048, 128), 64
    q, k, v, out = *(o.normal(h, n, d) for _ in range(3)), o.zeros(h, n, d)
    f = _matrices().dropped_attention

    def run() -> Any:
        f[(n // 128, h)](q, k, v, out, 7, 0.9, d**-0.5, n, BM=128, BN=64, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "attention with biases by distance, 96 heads of 64, 2048")
def _(o: Operands) -> Run:
    h, m, d = o.of(96, 2), o.of(2048, 128), 64
    q, k, v, out = *(o.normal(h, m, d) / 4 for _ in range(3)), o.zeros(h, m, d)
    table, f = o.normal(h, 128, dtype="float32"), _matrices().bucket_attention

    def run() -> Any:
        f[(m // 128, h)](q, k, v, table, out, m, BM=128, BN=64, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "weights of attention, 32 heads of 128, 4096")
def _(o: Operands) -> Run:
    h, n, d = o.of(32, 2), o.of(4096, 128), 128
    q, k, p = o.normal(h, n, d), o.normal(h, n, d), o.zeros(h, n, n)
    f = _matrices().attention_weights

    def run() -> Any:
        f[(n // 128, h)](q, k, p, d**-0.5, n, BM=128, BN=64, D=d, num_warps=8)
        return p

    return run


@case(SUITE, "attention to listed blocks, 32 heads of 128, 16384")
def _(o: Operands) -> Run:
    h, n, d = o.of(32, 2), o.of(16384, 1024), 128
    blocks = n // 64
    count = min(24, blocks)
    q, k, v, out = *(o.normal(h, n, d) for _ in range(3)), o.zeros(h, n, d)
    first = o.torch.arange(n // 128 + 1, device=o.device, dtype=o.torch.int32) * count
    column = o.torch.stack(
        [o.torch.randperm(blocks, device=o.device)[:count] for _ in range(n // 128)]
    ).to(o.torch.int32)
    f = _matrices().listed_blocks

    def run() -> Any:
        f[(n // 128, h)](q, k, v, first, column, out, d**-0.5, n, BM=128, BN=64, D=d, num_warps=8)
        return out

    return run


@case(SUITE, "64 products of 64 x 64 in a row, 32768 rows")
def _(o: Operands) -> Run:
    b, k, d = o.of(32768, 128), 64, 64
    x, w, y = o.normal(b, k, d), o.normal(k, d, d) / 8, o.zeros(b, k, d)
    f = _matrices().block_diagonal

    def run() -> Any:
        f[(-(-b // 128), k)](x, w, y, b, K=k, BM=128, D=d)
        return y

    return run


@case(SUITE, "interactions of 27 features of 128, 16384 samples")
def _(o: Operands) -> Run:
    b, count, d = o.of(16384, 64), 27, 128
    pairs = count * (count - 1) // 2
    x, y, f = o.normal(b, count, d), o.zeros(b, pairs), _matrices().interactions

    def run() -> Any:
        f[(b,)](x, y, F=count, PAIRS=pairs, BF=32, D=d, num_warps=1)
        return y

    return run


@case(SUITE, "products of 262144 matrices of 16 x 16")
def _(o: Operands) -> Run:
    count, n = o.of(262144, 64), 16
    a, b, c = (o.normal(count, n, n, dtype="float16") for _ in range(3))
    f = _matrices().small_products

    def run() -> Any:
        f[(-(-count // 8),)](a, b, c, count, BATCH=8, N=n)
        return c

    return run


@case(SUITE, "any sizes and strides, 4090 x 4090 x 4090, transposed")
def _(o: Operands) -> Run:
    m = o.of(4096, 128) - 6
    a, b, c = (o.normal(m, m, dtype="float16") for _ in range(3))
    a, f = a.T, _matrices().any_strides

    def run() -> Any:
        f[_line(m, m)](
            a, b, c, m, m, m, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
            c.stride(0), c.stride(1), 0.01, 0.5,
        )  # fmt: skip
        return c

    return run


@case(SUITE, "any sizes and strides, 4096 x 4096 x 4000")
def _(o: Operands) -> Run:
    m, n, k = o.of(4096, 128), o.of(4096, 128), o.of(4000, 72)
    a, b, c = o.normal(m, k), o.normal(k, n), o.normal(m, n)
    f = _matrices().any_strides

    def run() -> Any:
        f[_line(m, n)](
            a, b, c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
            c.stride(0), c.stride(1), 0.01, 0.5,
        )  # fmt: skip
        return c

    return run


@case(SUITE, "int8 weights, 2048 x 8192 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(2048, 128), o.of(8192, 128), o.of(4096, 128)
    x, y, s = o.normal(m, k), o.zeros(m, n), o.normal(n) / 64
    w, f = (o.index(255, k, n) - 127).to(o.torch.int8), _matrices().int8_by_bfloat16

    def run() -> Any:
        f[_grid(m, n)](x, w, s, y, m, n, k)
        return y

    return run


@case(SUITE, "queries, keys and values, turned, 8192 x 4096, heads of 128")
def _(o: Operands) -> Run:
    m, n, s, d = o.of(8192, 128), o.of(4096, 256), o.of(2048, 64), 128
    x, w, b = o.normal(m, n), o.normal(n, 3 * n) / 64, o.normal(3 * n)
    cos, sin = o.normal(s, d // 2, dtype="float32"), o.normal(s, d // 2, dtype="float32")
    q, k, v = (o.zeros(m, n) for _ in range(3))
    f = _matrices().projections

    def run() -> Any:
        f[(m // 128, 3 * n // d)](
            x, w, b, cos, sin, q, k, v, s, n, n, BM=128, D=d, BK=64, num_warps=8
        )
        return q, k, v

    return run


@case(SUITE, "product behind locks, 512 x 512 x 32768")
def _(o: Operands) -> Run:
    m, k, split = o.of(512, 128), o.of(32768, 512), 8
    a, b, c = o.normal(m, k), o.normal(k, m), o.zeros(m, m, dtype="float32")
    locks = o.zeros(2 * (m // 128) ** 2, dtype="int32")
    f = _matrices().locked_product

    def run() -> Any:
        f[((m // 128) ** 2, split)](
            a, b, c, locks, m, m, k, split, BM=128, BN=128, BK=64, num_warps=8
        )
        return c

    return run


@case(SUITE, "persistent product in halves, 8192 x 8192 x 1024")
def _(o: Operands) -> Run:
    m, k = o.of(8192, 256), o.of(1024, 128)
    a, b, c = o.normal(m, k), o.normal(m, k), o.zeros(m, m)
    f = _matrices().persistent_product

    def run() -> Any:
        f[(132,)](a, b, c, m, m, k, PROGRAMS=132, BM=128, BN=256, BK=64, num_warps=8, num_stages=3)
        return c

    return run


@case(SUITE, "best of 16384 by cosine, 16384 of 128")
def _(o: Operands) -> Run:
    n, d = o.of(16384, 256), 128
    x, z = o.normal(n, d), o.normal(n, d)
    best, which = o.zeros(n, dtype="float32"), o.zeros(n, dtype="int32")
    f = _matrices().best_match

    def run() -> Any:
        f[(n // 128,)](x, z, best, which, n, n, BM=128, BN=64, D=d, num_warps=8)
        return best

    return run
