"""The fifth set's kernels without dots (triton_signals), and how each is called. See
triton_written_models.
"""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "signals"


def _signals() -> ModuleType:
    """The kernels, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_signals")


def _tokens() -> ModuleType:
    """Those of tokens."""
    return importlib.import_module("benchmarks.triton_tokens")


@case(SUITE, "rotary by frame, line and column, 4 x 8 x 32 x 32 x 32 x 128")
def _(o: Operands) -> Run:
    b, t, h, w, heads, d = o.of(4, 1), 8, o.of(32, 4), o.of(32, 4), 32, 128
    tokens = b * t * h * w
    x, y = o.normal(tokens, heads, d), o.zeros(tokens, heads, d)
    cos, sin = o.normal(64, d // 2, dtype="float32"), o.normal(64, d // 2, dtype="float32")
    f = _signals().turned_by_axes

    def run() -> Any:
        f[(tokens,)](x, cos, sin, y, t, h, w, HEADS=heads, D=d)
        return y

    return run


@case(SUITE, "advantages of 65536 episodes of 512")
def _(o: Operands) -> Run:
    n, t = o.of(65536, 70), 512
    reward, value = o.normal(n, t, dtype="float32"), o.normal(n, t + 1, dtype="float32")
    done = (o.torch.rand(n, t, device=o.device) < 0.01).to(o.torch.uint8)
    out = [o.zeros(n, t, dtype="float32") for _ in range(2)]
    f = _signals().advantages

    def run() -> Any:
        f[(-(-n // 4),)](reward, value, done, *out, 0.99, 0.95, T=t, ROWS=4, N=n)
        return out

    return run


@case(SUITE, "equalized tones, 64 x 1080 x 1920")
def _(o: Operands) -> Run:
    b, p = o.of(64, 2), o.of(1080 * 1920, 10000)
    x = (o.torch.randn(b, p, device=o.device) * 30 + 100).clamp(0, 255).to(o.torch.uint8)
    y, counts, f = o.torch.zeros_like(x), o.zeros(b, 256, dtype="int32"), _signals()

    def run() -> Any:
        counts.zero_()
        f.tones[(b, 32)](x, counts, p, BLOCK=4096, num_warps=8)
        f.equalized[(b, -(-p // 4096))](x, counts, y, p, BLOCK=4096, num_warps=8)
        return y

    return run


@case(SUITE, "pixels between pixels, 16 x 64 x 64 x 192 at 128 x 128")
def _(o: Operands) -> Run:
    b, h, w, c, oh = o.of(16, 2), 64, 64, 192, o.of(128, 20)
    x, grid = o.normal(b, h, w, c), o.torch.rand(b, oh * oh, 2, device=o.device) * 2.2 - 1.1
    y, f = o.zeros(b, oh * oh, c), _signals().sampled

    def run() -> Any:
        f[(-(-oh * oh // 16), b)](x, grid, y, h, w, oh, oh, c, BP=16, BC=256)
        return y

    return run


@case(SUITE, "overlaps of 16384 boxes")
def _(o: Operands) -> Run:
    n = o.of(16384, 100)
    corner, size = (o.torch.rand(n, 2, device=o.device) for _ in range(2))
    box = o.torch.cat([corner, corner + size / 4], 1).contiguous()
    words = -(-n // 32)
    y, f = o.zeros(n, words, dtype="int32"), _signals().overlaps

    def run() -> Any:
        f[(-(-n // 128), words)](box, y, n, words, 0.3, ROWS=128)
        return y

    return run


@case(SUITE, "200 largest of rows kept, 16384 x 5000")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(5000, 500)
    x, y, f = o.normal(m, n), o.zeros(m, n), _signals().largest_kept

    def run() -> Any:
        f[(m,)](x, y, 200, n, BLOCK=1 << (n - 1).bit_length(), num_warps=8)
        return y

    return run


@case(SUITE, "compensated sums, 4096 x 32768 float32")
def _(o: Operands) -> Run:
    m, n = o.of(4096), o.of(32768, 3000)
    x, y = o.normal(m, n, dtype="float32"), o.zeros(m, dtype="float32")
    f = _signals().compensated

    def run() -> Any:
        f[(m,)](x, y, n, BLOCK=1024)
        return y

    return run


@case(SUITE, "Fourier transforms of 256, 131072 in float32")
def _(o: Operands) -> Run:
    m, n = o.of(131072), 256
    levels = n.bit_length() - 1
    x, y = o.normal(m, n, 2, dtype="float32"), o.zeros(m, n, 2, dtype="float32")
    half = o.torch.arange(n // 2, device=o.device)
    angles = [-2 * math.pi / n * (half >> level << level) for level in range(levels)]
    angle = o.torch.stack(angles).double()
    turn = o.torch.stack([angle.cos(), angle.sin()], 2).float().contiguous()
    f = _signals().butterflies

    def run() -> Any:
        f[(m // 4,)](x, turn, y, ROWS=4, N=n, LEVELS=levels)
        return y

    return run


@case(SUITE, "warped distances of 8192 pairs of 256")
def _(o: Operands) -> Run:
    b, n = o.of(8192), 256
    x, z = o.normal(b, n, dtype="float32"), o.normal(b, n, dtype="float32")
    y, f = o.zeros(b, dtype="float32"), _signals().warped_distance

    def run() -> Any:
        f[(b,)](x, z, y, n, N=n, num_warps=1)
        return y

    return run


@case(SUITE, "experts' rows gathered, 16384 tokens of 8, 4096")
def _(o: Operands) -> Run:
    t, top, n = o.of(16384), 8, o.of(4096)
    x, y = o.normal(t * top, n), o.zeros(t, n)
    place = o.torch.randperm(t * top, device=o.device).view(t, top).to(o.torch.int32)
    place[::5, 3] = -1
    weight, f = o.torch.rand(t, top, device=o.device), _tokens().gathered_experts

    def run() -> Any:
        f[(t, -(-n // 1024))](x, place, weight, y, n, TOP=top, BLOCK=1024)
        return y

    return run


@case(SUITE, "float8 with exponents of 32, 16384 x 7168")
def _(o: Operands) -> Run:
    m, n = o.of(16384), o.of(7168, 512) // 512 * 512
    x, y = o.normal(m, n), o.zeros(m, n).to(o.torch.float8_e4m3fn)
    exponents, f = o.zeros(m, n // 32, dtype="uint8"), _tokens().microscaled

    def run() -> Any:
        f[(m // 4, n // 512)](x, y, exponents, n, ROWS=4, BLOCK=512)
        return y.view(o.torch.uint8), exponents

    return run


@case(SUITE, "pooled planes of 7 x 7, 1024 x 2048")
def _(o: Operands) -> Run:
    r, p = o.of(1024, 2) * 2048 // (16 if o.scale > 1 else 1), 49
    x, mean, most, f = o.normal(r, p), o.zeros(r), o.zeros(r), _signals().pooled_planes

    def run() -> Any:
        f[(-(-r // 32),)](x, mean, most, r, P=p, ROWS=32, BLOCK=64)
        return mean, most

    return run


@case(SUITE, "policy loss and entropy, 8192 x 151936")
def _(o: Operands) -> Run:
    m, n = o.of(8192), o.of(151936, 3000)
    x, token = o.normal(m, n), o.index(n, m)
    old, base, advantage = (o.normal(m, dtype="float32") for _ in range(3))
    old, base = old - 12.0, base - 12.0
    loss, entropy = o.zeros(m, dtype="float32"), o.zeros(m, dtype="float32")
    f = _tokens().policy_loss

    def run() -> Any:
        numbers = 0.2, 0.28, 0.04
        f[(m,)](x, token, old, base, advantage, loss, entropy, n, *numbers, BLOCK=4096, num_warps=8)
        return loss, entropy

    return run


@case(SUITE, "routing in groups, 8 of 256 experts, 65536 tokens")
def _(o: Operands) -> Run:
    m, n, top = o.of(65536), 256, 8
    x, bias = o.normal(m, n, dtype="float32"), o.normal(n, dtype="float32") / 8
    weights, experts = o.zeros(m, top, dtype="float32"), o.zeros(m, top, dtype="int32")
    f = _tokens().routed_in_groups

    def run() -> Any:
        forms = dict(N=n, GROUPS=8, KEPT=4, TOP=top, ROWS=4, num_warps=4)
        f[(m // 4,)](x, bias, weights, experts, 2.5, **forms)
        return weights, experts

    return run


@case(SUITE, "samples with noise, 64 of 4 x 512 x 512")
def _(o: Operands) -> Run:
    b, p = o.of(64, 2), o.of(4 * 512 * 512, 3000)
    x, y, noise = o.normal(b, p), o.zeros(b, p), o.zeros(b, p)
    level, step = o.torch.rand(1000, device=o.device), o.index(1000, b)
    f = _signals().noised

    def run() -> Any:
        f[(-(-p // 1024), b)](x, level, step, y, noise, 17, p, BLOCK=1024)
        return y, noise

    return run


@case(SUITE, "medians of bytes, 64 x 1080 x 1920")
def _(o: Operands) -> Run:
    b, h, w = o.of(64, 2), o.of(1080, 50), o.of(1920, 100)
    x = o.index(256, b, h, w).to(o.torch.uint8)
    y, f = o.torch.zeros_like(x), _signals().median

    def run() -> Any:
        f[(-(-h // 8), -(-w // 128), b)](x, y, h, w, BH=8, BW=128)
        return y

    return run


@case(SUITE, "confusions of 19 classes, 16777216 pixels")
def _(o: Operands) -> Run:
    n, classes = o.of(16777216, 5000), 19
    said, true = o.index(classes, n).to(o.torch.uint8), o.index(classes + 1, n).to(o.torch.int32)
    counts, f = o.zeros(classes, classes, dtype="int32"), _signals().confusions

    def run() -> Any:
        counts.zero_()
        f[(1056,)](said, true, counts, n, classes, classes, BLOCK=1024)
        return counts

    return run


@case(SUITE, "Adagrad by rows, 65536 of 1048576, 256 wide")
def _(o: Operands) -> Run:
    r, m, n = o.of(1048576, 1000), o.of(65536), 256
    table, g = o.normal(r, n, dtype="float32"), o.normal(m, n)
    state = o.torch.rand(r, device=o.device)
    index, f = o.torch.randperm(r, device=o.device)[:m].contiguous(), _tokens().rows_adagrad

    def run() -> Any:
        f[(m,)](index, g, table, state, 0.01, 1e-8, n, BLOCK=256)
        return table[index], state

    return run


@case(SUITE, "sequences of any lengths padded, 256 of 1024, 512 wide")
def _(o: Operands) -> Run:
    b, s, n = o.of(256, 3), o.of(1024, 50), o.of(512, 100)
    lengths = o.index(s, b)
    first = o.zeros(b + 1, dtype="int64")
    first[1:] = lengths.cumsum(0)
    x, y = o.normal(int(first[-1]), n), o.zeros(b, s, n)
    f = _tokens().padded

    def run() -> Any:
        f[(b, -(-s // 16), -(-n // 512))](x, first, y, s, n, -1.0, BS=16, BLOCK=512)
        return y

    return run
