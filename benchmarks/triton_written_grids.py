"""The sixth set's kernels without dots (triton_grids, triton_paths), and how each is called. See
triton_written_sixth.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case
from benchmarks.triton_written_sixth import SUITE


def _grids() -> ModuleType:
    """The kernels, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_grids")


def _paths() -> ModuleType:
    """Those that carry a state."""
    return importlib.import_module("benchmarks.triton_paths")


@case(SUITE, "step of a lattice Boltzmann method, 4096 x 4096")
def _(o: Operands) -> Run:
    h = o.of(4096, 50)
    f, g = o.torch.rand(9, h, h, device=o.device) + 0.5, o.zeros(9, h, h, dtype="float32")
    step = _grids().lattice_step

    def run() -> Any:
        step[(-(-h // 4), -(-h // 128))](f, g, h, h, 0.8, BH=4, BW=128)
        return g

    return run


@case(SUITE, "hash grid of 16 levels, 1048576 points")
def _(o: Operands) -> Run:
    n, levels, size = o.of(1048576, 1000), 16, 1 << 19 if o.scale == 1 else 1 << 12
    p, table = o.torch.rand(n, 3, device=o.device), o.normal(levels, size, 2, dtype="float16")
    sides = o.torch.floor(16 * 1.4 ** o.torch.arange(levels, device=o.device))
    y, f = o.zeros(n, levels, 2, dtype="float16"), _grids().hash_encoded

    def run() -> Any:
        f[(-(-n // 256), levels)](p, table, sides, y, n, levels, SIZE=size, BLOCK=256)
        return y

    return run


@case(SUITE, "first of 4096 triangles, 65536 rays")
def _(o: Operands) -> Run:
    r, t = o.of(65536, 100), o.of(4096, 100)
    start, along = o.normal(r, 3, dtype="float32"), o.normal(r, 3, dtype="float32")
    corners = o.normal(9, t, dtype="float32")
    corners[3:] /= 4
    depth, which = o.zeros(r, dtype="float32"), o.zeros(r, dtype="int32")
    f = _grids().first_triangles

    def run() -> Any:
        f[(-(-r // 64),)](start, along, corners, depth, which, r, t, BR=64, BT=32)
        return depth, which

    return run


@case(SUITE, "residual, norm and int8, 16384 x 5120")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(5120)
    x, r, w, total = o.normal(m, n), o.normal(m, n), o.normal(n), o.zeros(m, n)
    y, scale = o.zeros(m, n, dtype="int8"), o.zeros(m, dtype="float32")
    f, block = _grids().norm_to_int8, 1 << (n - 1).bit_length()

    def run() -> Any:
        f[(m,)](x, r, w, total, y, scale, n, 1e-6, BLOCK=block, num_warps=8)
        return total, y, scale

    return run


@case(SUITE, "places in 64 experts, 32768 tokens of 2")
def _(o: Operands) -> Run:
    t, experts, top = o.of(32768, 500), 64, 2
    expert, capacity = o.index(experts, t * top).to(o.torch.int32), t * top // experts
    place, count = o.zeros(t * top, dtype="int32"), o.zeros(experts, dtype="int32")
    f = _grids().places_in_experts

    def run() -> Any:
        f[(experts,)](expert, place, count, t, capacity, TOP=top, BLOCK=1024)
        return place, count

    return run


@case(SUITE, "running maxima and their places, 16384 x 4096")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(4096, 500)
    x, y = o.normal(m, n, dtype="float32"), o.zeros(m, n, dtype="float32")
    place, f = o.zeros(m, n, dtype="int32"), _grids().running_maxima
    block = 1 << (n - 1).bit_length()

    def run() -> Any:
        f[(m,)](x, y, place, n, BLOCK=block, num_warps=8)
        return y, place

    return run


@case(SUITE, "bilateral filter of 5 x 5, 16 x 1080 x 1920")
def _(o: Operands) -> Run:
    b, h, w = o.of(16, 2), o.of(1080, 30), o.of(1920, 100)
    x = o.torch.rand(b, h, w, device=o.device)
    y, f = o.torch.zeros_like(x), _grids().bilateral

    def run() -> Any:
        f[(-(-h // 8), -(-w // 128), b)](x, y, h, w, 0.1, 20.0, R=2, BH=8, BW=128)
        return y

    return run


@case(SUITE, "Bloom filter of 2^25 bits, 4194304 keys kept and asked")
def _(o: Operands) -> Run:
    n, size = o.of(4194304, 1000), 1 << 25 if o.scale == 1 else 1 << 13
    kept, asked = (o.index(1 << 31, n).to(o.torch.int32) for _ in range(2))
    bits, y, f = o.zeros(size // 32, dtype="int32"), o.zeros(n, dtype="int8"), _grids()

    def run() -> Any:
        bits.zero_()
        grid = (-(-n // 1024),)
        f.bloom_filled[grid](kept, bits, n, size - 1, HASHES=4, BLOCK=1024)
        f.bloom_asked[grid](asked, bits, y, n, size - 1, HASHES=4, BLOCK=1024)
        return bits, y

    return run


@case(SUITE, "sums of runs of sorted keys, 33554432")
def _(o: Operands) -> Run:
    n, runs = o.of(33554432, 5000), o.of(1048576, 100)
    key = o.index(runs, n).sort().values.to(o.torch.int32)
    x, y = o.normal(n, dtype="float32"), o.zeros(runs, dtype="float32")
    f = _grids().sums_of_runs

    def run() -> Any:
        y.zero_()
        f[(-(-n // 1024),)](key, x, y, n, BLOCK=1024)
        return y

    return run


@case(SUITE, "softmax with masks in bits, 32768 x 2048")
def _(o: Operands) -> Run:
    m, n = o.of(32768), o.of(2048, 500)
    words = -(-n // 32)
    x, y = o.normal(m, n), o.zeros(m, n)
    bits = (o.index(1 << 32, m, words) - (1 << 31)).to(o.torch.int32)
    bits[3] = 0
    f, block = _grids().masked_softmax, 1 << (n - 1).bit_length()

    def run() -> Any:
        f[(m,)](x, bits, y, n, words, BLOCK=block)
        return y

    return run


@case(SUITE, "Adafactor's step, 8192 x 8192")
def _(o: Operands) -> Run:
    m, n = o.of(8192, 100), o.of(8192, 200)
    p, g, out = o.normal(m, n), o.normal(m, n), o.zeros(m, n)
    rows, columns = o.torch.rand(m, device=o.device), o.torch.rand(n, device=o.device)
    mean, f = rows.mean().reshape(1), _grids().factored_step

    def run() -> Any:
        f[(-(-m // 16), -(-n // 256))](p, g, rows, columns, mean, out, 0.01, m, n, BM=16, BN=256)
        return out

    return run


@case(SUITE, "weighted bags of 0 to 63 rows, 16384 of 512")
def _(o: Operands) -> Run:
    m, n, words = o.of(16384), o.of(512, 100), o.of(500000)
    first = o.zeros(m + 1, dtype="int32")
    first[1:] = o.index(64, m).cumsum(0)
    many = int(first[-1])
    table, y = o.normal(words, n), o.zeros(m, n)
    index, weight = o.index(words, many).to(o.torch.int32), o.normal(many, dtype="float32")
    f = _grids().weighted_bags

    def run() -> Any:
        f[(m, -(-n // 512))](table, index, weight, first, y, n, BLOCK=512)
        return y

    return run


@case(SUITE, "escape times, 2048 x 2048, 500 steps")
def _(o: Operands) -> Run:
    h, most = o.of(2048, 50), o.of(500, 50)
    y, f = o.zeros(h, h, dtype="int32"), _grids().escape_times

    def run() -> Any:
        f[(-(-h * h // 256),)](y, h, h, -2.0, -1.5, 3.0 / h, most, BLOCK=256)
        return y

    return run


@case(SUITE, "best paths of 64 states, 4096 series of 512")
def _(o: Operands) -> Run:
    b, t, n = o.of(4096), o.of(512, 50), 64
    score, move = o.normal(b, t, n, dtype="float32"), o.normal(n, n, dtype="float32")
    y, back = o.zeros(b, n, dtype="float32"), o.zeros(b, t, n, dtype="uint8")
    f = _paths().best_paths

    def run() -> Any:
        f[(b,)](score, move, y, back, t, N=n)
        return y, back

    return run


@case(SUITE, "CTC loss, 2048 of 1000 steps, 100 labels of 64")
def _(o: Operands) -> Run:
    b, t, v, n = o.of(2048), o.of(1000, 60), 64, o.of(100, 20)
    logp = o.normal(b, t, v, dtype="float32").log_softmax(2)
    label = (o.index(v - 1, b, n) + 1).to(o.torch.int32)
    length = (t - o.index(t // 4, b)).to(o.torch.int32)
    loss, f = o.zeros(b, dtype="float32"), _paths().ctc_forward
    states = 1 << (2 * n).bit_length()

    def run() -> Any:
        f[(b,)](logp, label, length, loss, t, v, n, S=states)
        return loss

    return run


@case(SUITE, "local alignments of 8192 pairs, 256 by 512")
def _(o: Operands) -> Run:
    b, n, m = o.of(8192), 256 if o.scale == 1 else 64, o.of(512, 70)
    x, z = o.index(4, b, n).to(o.torch.uint8), o.index(4, b, m).to(o.torch.uint8)
    y, f = o.zeros(b, dtype="int32"), _paths().local_alignments

    def run() -> Any:
        f[(b,)](x, z, y, m, n, 3, -2, -4, num_warps=1)
        return y

    return run
