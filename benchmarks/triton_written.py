"""Kernels that were written in Triton's language for this race (triton_programs, triton_rows), and
how each is called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "written"


def _programs() -> ModuleType:
    """The kernels with dots, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_programs")


def _rows() -> ModuleType:
    """Those without."""
    return importlib.import_module("benchmarks.triton_rows")


def _tiles(m: int, n: int) -> Any:
    """The grid of a product: a program for each tile of the configuration."""
    return lambda at: (-(-m // at["BM"]) * -(-n // at["BN"]),)


@case(SUITE, "product, bias, gelu 4096 x 11008 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(4096), o.of(11008), o.of(4096)
    x, w, bias, y = o.normal(m, k), o.normal(k, n), o.normal(n), o.zeros(m, n)
    f = _programs().product_bias_gelu

    def run() -> Any:
        f[_tiles(m, n)](x, w, bias, y, m, n, k, k, n, n)
        return y

    return run


@case(SUITE, "batched product, 64 of 1024 x 1024 x 128")
def _(o: Operands) -> Run:
    b, m, k = o.of(64, 2), o.of(1024, 128), 128
    x, y, z = o.normal(b, m, k), o.normal(b, m, k), o.zeros(b, m, m)
    f = _programs().batched_product

    def run() -> Any:
        grid = lambda at: (*_tiles(m, m)(at), b)  # noqa: E731
        f[grid](x, y, z, m, m, k, m * k, k, m * k, k, m * m, m)
        return z

    return run


@case(SUITE, "int8 product, scales by rows, 4096 cubed")
def _(o: Operands) -> Run:
    m = o.of(4096, 128)
    x, w = (o.index(255, m, m).sub(127).to(o.torch.int8) for _ in range(2))
    sx, sw = (o.normal(m, dtype="float32") for _ in range(2))
    y, f = o.zeros(m, m), _programs().quantized_product

    def run() -> Any:
        f[_tiles(m, m)](x, w, sx, sw, y, m, m, m)
        return y

    return run


@case(SUITE, "gated product 4096 x 11008 x 4096")
def _(o: Operands) -> Run:
    m, n, k = o.of(4096, 128), o.of(11008, 128), o.of(4096)
    n = n // 128 * 128
    x, w, v, y = o.normal(m, k), o.normal(k, n), o.normal(k, n), o.zeros(m, n)
    f = _programs().gated_product

    def run() -> Any:
        f[_tiles(m, n)](x, w, v, y, m, n, k)
        return y

    return run


@case(SUITE, "weight gradient, split, 2048 x 2048 of 16384 rows")
def _(o: Operands) -> Run:
    m, n, k = o.of(16384, 512), o.of(2048, 128), o.of(2048, 128)
    x, dy, dw = o.normal(m, k), o.normal(m, n), o.zeros(k, n, dtype="float32")
    f = _programs().weight_gradient

    def run() -> Any:
        dw.zero_()
        f[lambda at: (k // at["BM"], n // at["BN"], at["SPLIT"])](x, dy, dw, m, n, k)
        return dw

    return run


@case(SUITE, "block-sparse product, 64 x 64 blocks, a fifth of 8192 x 8192, by 2048")
def _(o: Operands) -> Run:
    rows, n = o.of(8192, 512) // 64, o.of(2048, 128)
    here = o.torch.rand(rows, rows, device=o.device) < 0.2
    columns = here.nonzero()[:, 1].to(o.torch.int32).contiguous()
    starts = o.zeros(rows + 1, dtype="int32")
    starts[1:] = here.sum(1).cumsum(0)
    x, w = o.normal(len(columns), 64, 64), o.normal(rows * 64, n)
    y, f = o.zeros(rows * 64, n), _programs().block_sparse_product

    def run() -> Any:
        f[(rows, n // 128)](x, w, columns, starts, y, rows, n, BLOCK=64, BN=128)
        return y

    return run


@case(SUITE, "decoding, 32 heads on 8, 16 x 8192 keys")
def _(o: Operands) -> Run:
    b, s, heads, group, d, parts = 16, o.of(8192, 256), 8, 4, 128, 8
    q, k, v = o.normal(b, heads * group, d), o.normal(b, s, heads, d), o.normal(b, s, heads, d)
    part = o.zeros(b * heads * group, parts, d, dtype="float32")
    largest, total = (o.zeros(b * heads * group, parts, dtype="float32") for _ in range(2))
    out, p = o.zeros(b, heads * group, d), _programs()

    def run() -> Any:
        p.decode_parts[(b, heads, parts)](
            q, k, v, part, largest, total, d**-0.5, s, heads, GROUP=group, ROWS=16, D=d, PARTS=parts
        )
        p.decode_sum[(b * heads * group,)](part, largest, total, out, D=d, PARTS=parts)
        return out

    return run


@case(SUITE, "window attention, 1024 of 8192 keys, 32 heads of 128")
def _(o: Operands) -> Run:
    h, s, d = o.of(32, 2), o.of(8192, 256), 128
    q, k, v, out = o.normal(h, s, d), o.normal(h, s, d), o.normal(h, s, d), o.zeros(h, s, d)
    f = _programs().window_attention

    def run() -> Any:
        f[lambda at: (-(-s // at["BM"]), h)](q, k, v, out, d**-0.5, s, o.of(1024), D=d)
        return out

    return run


@case(SUITE, "retention, 128 heads of 64, 4096 tokens")
def _(o: Operands) -> Run:
    h, s, d = o.of(128, 2), o.of(4096, 256), 64
    q, k, v, out = o.normal(h, s, d), o.normal(h, s, d), o.normal(h, s, d), o.zeros(h, s, d)
    f = _programs().retention

    def run() -> Any:
        f[(h,)](q, k, v, out, s, D=d, BLOCK=64)
        return out

    return run


@case(SUITE, "residual and norm, 16384 x 4096")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(4096)
    x, r, w, y, total = (
        o.normal(m, n),
        o.normal(m, n),
        o.normal(n),
        o.zeros(m, n),
        o.zeros(m, n),
    )
    f = _rows().residual_norm

    def run() -> Any:
        f[(m,)](x, r, w, y, total, n, 1e-6, BLOCK=4096, num_warps=8)
        return y, total

    return run


@case(SUITE, "rows to float8, 16384 x 5120")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(5120)
    x, y = o.normal(m, n), o.torch.empty(m, n, device=o.device, dtype=o.torch.float8_e4m3fn)
    scales, f = o.zeros(m, dtype="float32"), _rows().quantize_rows

    def run() -> Any:
        f[(m,)](x, y, scales, n, BLOCK=8192, num_warps=8)
        return y, scales

    return run


@case(SUITE, "loss of rows, 4096 x 128256")
def _(o: Operands) -> Run:
    m, n = o.of(4096), o.of(128256)
    x, target, loss = o.normal(m, n), o.index(n, m), o.zeros(m, dtype="float32")
    f = _rows().loss_of_rows

    def run() -> Any:
        f[(m,)](x, target, loss, n, BLOCK=4096, num_warps=8)
        return loss

    return run


@case(SUITE, "routing, 8 of 128 experts, 65536 tokens")
def _(o: Operands) -> Run:
    m = o.of(65536)
    x, weights = o.normal(m, 128), o.zeros(m, 8, dtype="float32")
    experts, f = o.zeros(m, 8, dtype="int32"), _rows().route

    def run() -> Any:
        f[(m // 16,)](x, weights, experts, N=128, TOP=8, ROWS=16)
        return weights, experts

    return run


@case(SUITE, "mean of 16 rows of a table, 16384 x 1024")
def _(o: Operands) -> Run:
    m, n, words = o.of(16384), o.of(1024), o.of(100000)
    table, index, y = o.normal(words, n), o.index(words, m, 16), o.zeros(m, n)
    f = _rows().bag

    def run() -> Any:
        f[(m, -(-n // 512))](table, index, y, n, LENGTH=16, BLOCK=512)
        return y

    return run


@case(SUITE, "rows added to rows, 65536 x 1024 to 8192")
def _(o: Operands) -> Run:
    m, n, words = o.of(65536), o.of(1024), o.of(8192)
    x, index, y = o.normal(m, n), o.index(words, m), o.zeros(words, n, dtype="float32")
    f = _rows().scatter_rows

    def run() -> Any:
        y.zero_()
        f[(m,)](x, index, y, n, BLOCK=1024)
        return y

    return run


@case(SUITE, "depthwise 3 x 3, 32 x 56 x 56 x 384")
def _(o: Operands) -> Run:
    n, s, c = o.of(32, 2), 56, 384
    x, w, y = o.normal(n, s, s, c), o.normal(9, c), o.zeros(n, s, s, c)
    f = _rows().depthwise

    def run() -> Any:
        f[(n * s, -(-s // 16), -(-c // 128))](x, w, y, s, s, c, BW=16, BC=128)
        return y

    return run


@case(SUITE, "running sums, 8192 x 16384 float32")
def _(o: Operands) -> Run:
    m, n = o.of(8192), o.of(16384)
    x, y = o.normal(m, n, dtype="float32"), o.zeros(m, n, dtype="float32")
    f = _rows().running_sum

    def run() -> Any:
        f[(m,)](x, y, n, BLOCK=2048)
        return y

    return run


@case(SUITE, "transpose 8192 x 8192")
def _(o: Operands) -> Run:
    m = o.of(8192)
    x, y, f = o.normal(m, m), o.zeros(m, m), _rows().transposed

    def run() -> Any:
        f[(-(-m // 64), -(-m // 64))](x, y, m, m, BM=64, BN=64)
        return y

    return run


@case(SUITE, "AdamW, 67108864 parameters")
def _(o: Operands) -> Run:
    n = o.of(67108864, 4096)
    p, g = o.normal(n), o.normal(n)
    m, v = o.zeros(n, dtype="float32"), o.zeros(n, dtype="float32")
    f = _rows().adam_step

    def run() -> Any:
        f[(-(-n // 4096),)](p, g, m, v, 0.0, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, n, BLOCK=4096)
        return m, v

    return run
