"""The fourth set of kernels that were written in Triton's language for this race, those without
dots (triton_fields), and how each is called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case
from benchmarks.triton_written_matrices import SUITE


def _fields() -> ModuleType:
    """The kernels, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_fields")


@case(SUITE, "pixel shuffle, 16 x 128 x 128 x 64 by 2")
def _(o: Operands) -> Run:
    b, s, c = o.of(16, 1), 128, 64
    x, y, f = o.normal(b, s, s, c * 4), o.zeros(b, 2 * s, 2 * s, c), _fields().pixel_shuffle

    def run() -> Any:
        f[(b * s, s // 32)](x, y, s, s, C=c, R=2, BW=32)
        return y

    return run


@case(SUITE, "signs in bits, 67108864 float16")
def _(o: Operands) -> Run:
    n = o.of(67108864, 8192)
    x, y, f = o.normal(n, dtype="float16"), o.zeros(n // 32, dtype="int32"), _fields().packed_signs

    def run() -> Any:
        f[(-(-n // 4096),)](x, y, n, WORDS=128)
        return y

    return run


@case(SUITE, "hashes, 67108864 numbers, 8 rounds")
def _(o: Operands) -> Run:
    n = o.of(67108864, 4096)
    x, y = o.index(1 << 30, n).to(o.torch.int32), o.zeros(n, dtype="int32")
    f = _fields().hashes

    def run() -> Any:
        f[(-(-n // 1024),)](x, y, n, ROUNDS=8, BLOCK=1024)
        return y

    return run


@case(SUITE, "forces of 16384 bodies")
def _(o: Operands) -> Run:
    n = o.of(16384, 256)
    position, mass = o.normal(3, n, dtype="float32"), o.torch.rand(n, device=o.device)
    force, f = o.zeros(3, n, dtype="float32"), _fields().forces

    def run() -> Any:
        f[(n // 64,)](position, mass, force, n, 1e-3, BM=64, BN=64)
        return force

    return run


@case(SUITE, "prices of 16777216 options")
def _(o: Operands) -> Run:
    n = o.of(16777216, 4096)
    spot, strike, time = (o.torch.rand(n, device=o.device) + 0.5 for _ in range(3))
    call, put, f = o.zeros(n, dtype="float32"), o.zeros(n, dtype="float32"), _fields().options

    def run() -> Any:
        f[(-(-n // 1024),)](spot, strike, time, call, put, 0.02, 0.3, n, BLOCK=1024)
        return call, put

    return run


@case(SUITE, "step of a wave, 512 cubed float32")
def _(o: Operands) -> Run:
    m = o.of(512, 32)
    u, before, after = (o.normal(m, m, m, dtype="float32") for _ in range(3))
    f = _fields().wave

    def run() -> Any:
        f[(m, -(-m // 8), -(-m // 128))](u, before, after, 0.1, m, m, m, BH=8, BW=128)
        return after

    return run


@case(SUITE, "bytes by a table, 268435456")
def _(o: Operands) -> Run:
    n = o.of(268435456, 8192)
    x, table = o.index(256, n).to(o.torch.uint8), o.normal(256)
    y, f = o.zeros(n), _fields().looked_up

    def run() -> Any:
        f[(-(-n // 4096),)](x, table, y, n, BLOCK=4096, num_warps=8)
        return y

    return run


@case(SUITE, "running sums down, 8192 x 16384 float32")
def _(o: Operands) -> Run:
    m, n = o.of(8192, 128), o.of(16384, 128)
    x, y, f = o.normal(m, n, dtype="float32"), o.zeros(m, n, dtype="float32"), _fields().sums_down

    def run() -> Any:
        f[(n // 64,)](x, y, m, n, BM=64, BN=64)
        return y

    return run


@case(SUITE, "softmax of edges, 262144 nodes, 16 edges, 8 heads")
def _(o: Operands) -> Run:
    nodes, heads = o.of(262144), 8
    counts = 1 + o.index(31, nodes)
    first = o.torch.zeros(nodes + 1, device=o.device, dtype=o.torch.int32)
    first[1:] = counts.cumsum(0)
    x = o.normal(int(first[-1]), heads)
    y, f = o.torch.zeros_like(x), _fields().softmax_of_edges

    def run() -> Any:
        f[(nodes,)](first, x, y, BLOCK=32, WIDE=heads, num_warps=1)
        return y

    return run


@case(SUITE, "systems of three diagonals, 65536 of 256")
def _(o: Operands) -> Run:
    m, n = o.of(65536, 256), o.of(256, 16)
    a, c = o.torch.rand(n, m, device=o.device), o.torch.rand(n, m, device=o.device)
    b, d = o.torch.rand(n, m, device=o.device) + 3, o.normal(n, m, dtype="float32")
    x, scratch = o.zeros(n, m, dtype="float32"), o.zeros(n, m, dtype="float32")
    f = _fields().tridiagonal

    def run() -> Any:
        f[(-(-m // 128),)](a, b, c, d, x, scratch, m, n, BLOCK=128)
        return x

    return run


@case(SUITE, "float8 both ways, 8192 x 8192")
def _(o: Operands) -> Run:
    m = o.of(8192, 128)
    x, scale = o.normal(m, m), o.torch.ones(1, device=o.device)
    y, z = (o.torch.zeros(m, m, device=o.device, dtype=o.torch.float8_e4m3fn) for _ in range(2))
    f = _fields().cast_both_ways

    def run() -> Any:
        f[(m // 64, m // 64)](x, y, z, scale, m, m, BM=64, BN=64)
        return y, z

    return run


@case(SUITE, "embedding and norm, 65536 x 1024")
def _(o: Operands) -> Run:
    m, n = o.of(65536), o.of(1024)
    table, places, w, b = o.normal(30522, n), o.normal(512, n), o.normal(n), o.normal(n)
    token, place = o.index(30522, m).to(o.torch.int32), o.index(512, m).to(o.torch.int32)
    y, f = o.zeros(m, n), _fields().embedded

    def run() -> Any:
        block = 1 << (n - 1).bit_length()
        f[(m,)](token, place, table, places, w, b, y, n, 1e-5, BLOCK=block)
        return y

    return run


@case(SUITE, "rows of beams, 64 x 4096 x 1024")
def _(o: Operands) -> Run:
    beams, s, row = o.of(64, 4), o.of(4096, 64), o.of(1024)
    parent = o.index(beams, beams).to(o.torch.int32)
    x, y, f = o.normal(beams, s, row), o.zeros(beams, s, row), _fields().moved_rows

    def run() -> Any:
        f[(beams, s)](parent, x, y, s, row, BLOCK=1024)
        return y

    return run


@case(SUITE, "sort with places, 16384 x 512")
def _(o: Operands) -> Run:
    m, n = o.of(16384), 512
    x = o.normal(m, n, dtype="float32")
    values, places = o.zeros(m, n, dtype="float32"), o.zeros(m, n, dtype="int32")
    f = _fields().sorted_with_places

    def run() -> Any:
        f[(m,)](x, values, places, N=n)
        return values, places

    return run


@case(SUITE, "blurred bytes, 64 x 1080 x 1920")
def _(o: Operands) -> Run:
    b, h, w = o.of(64, 1), o.of(1080, 64), o.of(1920, 64)
    x = o.index(256, b, h, w).to(o.torch.uint8)
    y, f = o.torch.zeros_like(x), _fields().blurred

    def run() -> Any:
        f[(-(-h // 8), -(-w // 128), b)](x, y, h, w, BH=8, BW=128)
        return y

    return run
