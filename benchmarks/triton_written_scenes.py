"""How the kernels of the seventh set without dots are called (triton_scenes, triton_updates)."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, case

SUITE = "seventh"


def _scenes() -> ModuleType:
    """The kernels that gather and compare, in a process where `triton` is who is raced."""
    return importlib.import_module("benchmarks.triton_scenes")


def _updates() -> ModuleType:
    """Those of training and serving."""
    return importlib.import_module("benchmarks.triton_updates")


def _firsts(o: Operands, lengths: Any) -> Any:
    """Where each of several runs begins in a row of them, and where the last one ends."""
    first = o.zeros(len(lengths) + 1, dtype="int32")
    first[1:] = lengths.cumsum(0)
    return first


@case(SUITE, "messages of 524288 edges to 65536 nodes of 128")
def _(o: Operands) -> Run:
    n, e, d = o.of(65536), o.of(524288, 1000), o.of(128, 100)
    x, edge, y = o.normal(n, d), o.normal(e, d), o.zeros(n, d, dtype="float32")
    source, to = (o.index(n, e).to(o.torch.int32) for _ in range(2))
    f = _scenes().messages

    def run() -> Any:
        y.zero_()
        f[(-(-e // 32), -(-d // 128))](x, edge, source, to, y, e, d, BE=32, BD=128)
        return y

    return run


@case(SUITE, "attention to 4 places of 4 levels, 4 x 13294 queries, 8 heads of 32")
def _(o: Operands) -> Run:
    b, h, d, levels, points = o.of(4, 2), o.of(8, 2), 32, 4, 4
    side = [100, 50, 25, 13] if o.scale == 1 else [10, 5, 3, 2]
    sides = o.torch.tensor([[n, n] for n in side], device=o.device).int()
    first = _firsts(o, sides[:, 0] * sides[:, 1])
    s = q = sum(n * n for n in side)
    value, y = o.normal(b, s, h, d), o.zeros(b, q, h, d)
    place = o.torch.rand(b, q, h, levels, points, 2, device=o.device) * 1.1 - 0.05
    weight = o.normal(b, q, h, levels, points, dtype="float32").flatten(3).softmax(3)
    f = _scenes().sampled_levels
    given = {"LEVELS": levels, "POINTS": points, "BQ": 32, "D": d}

    def run() -> Any:
        f[(-(-q // 32), h, b)](value, sides, first, place, weight, y, q, s, h, **given)
        return y

    return run


@case(SUITE, "colours along 131072 rays of 192 samples")
def _(o: Operands) -> Run:
    r, s = o.of(131072, 101), 192
    density, step = (o.torch.rand(r, s, device=o.device) / 8 for _ in range(2))
    colour, weight = o.torch.rand(r, s, 3, device=o.device), o.zeros(r, s, dtype="float32")
    y, depth = o.zeros(r, 3, dtype="float32"), o.zeros(r, dtype="float32")
    f = _scenes().colours_of_rays

    def run() -> Any:
        f[(-(-r // 4),)](density, step, colour, weight, y, depth, r, s, BR=4, BS=256)
        return y, depth, weight

    return run


@case(SUITE, "image of 1024 x 1024 of Gaussians, 0 to 511 a tile")
def _(o: Operands) -> Run:
    side = 1024 if o.scale == 1 else 48
    first = _firsts(o, o.index(512, (side // 16) ** 2))
    tile = o.torch.arange(len(first) - 1, device=o.device).repeat_interleave(first.diff())
    corner = o.torch.stack([tile % (side // 16), tile // (side // 16)], 1) * 16
    mean = corner + 8 + 12 * o.normal(len(tile), 2, dtype="float32")
    listed = o.torch.randperm(len(tile), device=o.device).int()
    mean[listed.long()] = mean.clone()  # a list names what lies in its tile
    shape = o.torch.rand(len(listed), 3, device=o.device) / 40 + 0.01
    shape[:, 1] = (shape[:, 0] * shape[:, 2]).sqrt() * 0.5
    colour, opaque = (o.torch.rand(*n, device=o.device) for n in ((len(listed), 3), (len(listed),)))
    y, f = o.zeros(side, side, 4, dtype="float32"), _scenes().blended_splats

    def run() -> Any:
        f[(side // 16, side // 16)](
            mean, shape, colour, opaque, listed, first, y, side, SIDE=16, BATCH=32
        )
        return y

    return run


@case(SUITE, "loss of mixtures of 32 Gaussians of 8, 131072 rows")
def _(o: Operands) -> Run:
    m, k, d = o.of(131072, 101), 32, 8
    y, logit = o.normal(m, d), o.normal(m, k)
    mean, spread = o.normal(m, k, d), o.normal(m, k, d) / 4
    loss, f = o.zeros(m, dtype="float32"), _scenes().mixture_losses

    def run() -> Any:
        f[(-(-m // 8),)](y, logit, mean, spread, loss, m, BM=8, K=k, D=d)
        return loss

    return run


@case(SUITE, "nearest of 16384 codes of 256 bits, 8192")
def _(o: Operands) -> Run:
    n, m, words = o.of(8192, 100), o.of(16384, 300), 8
    x, z = ((o.index(1 << 32, *s) - (1 << 31)).int() for s in ((n, words), (words, m)))
    place, far = o.zeros(n, dtype="int32"), o.zeros(n, dtype="int32")
    f = _scenes().nearest_by_bits

    def run() -> Any:
        f[(-(-n // 32),)](x, z, place, far, n, m, WORDS=words, BN=32, BM=128)
        return place, far

    return run


@case(SUITE, "1048576 matrices of 4 x 4 balanced in 20 rounds")
def _(o: Operands) -> Run:
    t, n = o.of(1048576, 1001), 4
    x, y = o.normal(t, n, n, dtype="float32"), o.zeros(t, n, n, dtype="float32")
    f = _scenes().balanced

    def run() -> Any:
        f[(-(-t // 128),)](x, y, t, 20, N=n, BT=128)
        return y

    return run


@case(SUITE, "AdamW with moments in bytes by blocks of 256, 33554432 parameters")
def _(o: Operands) -> Run:
    size = 256
    blocks = o.of(33554432, 10240) // size // 4 * 4
    n, torch = blocks * size, o.torch
    p, g, new_p = o.normal(n), o.normal(n) / 64, o.zeros(n)
    m, v = (o.index(256, n).to(torch.uint8) for _ in range(2))
    most_m, most_v = (torch.rand(blocks, device=o.device) / 64 for _ in range(2))
    positive = torch.linspace(0, 1, 256, device=o.device) ** 3
    signed = torch.linspace(-1, 1, 256, device=o.device) ** 3
    new_m, new_v = torch.zeros_like(m), torch.zeros_like(v)
    tops = torch.zeros_like(most_m), torch.zeros_like(most_v)
    f, given = _updates().step_of_bytes, (1e-3, 0.1, 1.1, 1.01)

    def run() -> Any:
        f[(blocks // 4,)](
            *(p, g, m, v, most_m, most_v, signed, positive),
            *(new_p, new_m, new_v, *tops, *given),
            BLOCKS=4,
            SIZE=size,
        )
        return new_p, new_m, new_v, *tops

    return run


@case(SUITE, "layer norm by moments of lanes, 8192 x 20480")
def _(o: Operands) -> Run:
    m, n = o.of(8192), o.of(20480, 5000)
    x, w, b, y = o.normal(m, n), o.normal(n), o.normal(n), o.zeros(m, n)
    mean, spread = o.zeros(m, dtype="float32"), o.zeros(m, dtype="float32")
    f = _updates().norm_by_moments

    def run() -> Any:
        f[(m,)](x, w, b, y, mean, spread, n, 1e-5, BLOCK=2048, num_warps=8)
        return y, mean, spread

    return run


@case(SUITE, "short convolution of 32 sequences and their states, 32768 tokens of 4096")
def _(o: Operands) -> Run:
    b, c, slots = o.of(32, 3), o.of(4096, 300), o.of(64, 5)
    first = _firsts(o, o.index(o.of(2048, 60), b) + 2)
    t, most = int(first[-1]), int(first.diff().max())
    x, y, w, bias = o.normal(t, c), o.zeros(t, c), o.normal(c, 4), o.normal(c)
    state = o.normal(slots, c, 3)
    slot = o.torch.randperm(slots, device=o.device)[:b].to(o.torch.int32)
    after, f = o.torch.zeros_like(state), _updates().short_convolution

    def run() -> Any:
        f[(-(-most // 32), -(-c // 256), b)](
            x, w, bias, state, slot, first, y, after, c, BT=32, BC=256
        )
        return y, after

    return run


@case(SUITE, "drafted tokens accepted and recovered, 128 of 4 x 128256")
def _(o: Operands) -> Run:
    b, most, v = o.of(128, 5), 4, o.of(128256, 5000)
    first = _firsts(o, o.index(most + 1, b))
    n = int(first[-1])
    owner = o.torch.arange(b, device=o.device).repeat_interleave(first.diff()).int()
    draft, target = (o.normal(n, v, dtype="float32").softmax(1) for _ in range(2))
    noise = o.torch.empty(b, v, device=o.device).exponential_()
    token, bonus = o.index(v, n).int(), o.index(v, b).int()
    chance, recovered = o.torch.rand(n, device=o.device), o.zeros(n, dtype="int32")
    y, f = o.zeros(b, most + 1, dtype="int32"), _updates()

    def run() -> Any:
        y.fill_(-1)
        f.recovered_tokens[(n,)](draft, target, noise, owner, recovered, v, BLOCK=4096)
        f.accepted_tokens[(b,)](
            *(draft, target, token, recovered, bonus, chance, first, y, v, most + 1), num_warps=1
        )
        return y, recovered

    return run


@case(SUITE, "heads normed, turned and cached in float8, 16384 tokens, 32 on 8 of 128")
def _(o: Operands) -> Run:
    t, h, hk, d, places = o.of(16384, 70), 32, 8, 128, o.of(32768, 100)
    qkv, table = o.normal(t, (h + 2 * hk) * d), o.normal(places, d, dtype="float32")
    wq, wk, q = o.normal(d), o.normal(d), o.zeros(t, h, d)
    position = o.index(places, t).int()
    slot = o.torch.randperm(2 * t, device=o.device)[:t].int()
    slot[::7] = -1
    k, v = (o.zeros(2 * t, hk, d, dtype="float8_e4m3fn") for _ in range(2))
    ks, vs = (o.torch.full((1,), s, device=o.device) for s in (0.5, 0.25))
    f = _updates().heads_to_cache

    def run() -> Any:
        f[(t,)](qkv, wq, wk, table, position, slot, q, k, v, ks, vs, 1e-6, H=h, HK=hk, D=d)
        return q, k, v

    return run


@case(SUITE, "gates of 32 experts' rows to float8, 0 to 4095 of 2048")
def _(o: Operands) -> Run:
    experts, t, n, block = o.of(32, 3), o.of(4096, 40), o.of(2048, 256), 128
    count = o.index(t, experts).int()
    x, y = o.normal(experts, t, 2 * n), o.zeros(experts, t, n, dtype="float8_e4m3fn")
    scale, f = o.zeros(experts, n // block, t, dtype="float32"), _updates().gates_of_experts

    def run() -> Any:
        f[(n // block, o.of(64, 8), experts)](
            x, count, y, scale, t, n, BLOCK=block, STAGES=4, num_warps=1
        )
        return y, scale

    return run


@case(SUITE, "gradients of a gated scan, backwards, 8 x 4096 x 2048")
def _(o: Operands) -> Run:
    b, t, c = o.of(8, 2), o.of(4096, 150), o.of(2048, 64)
    a, h, dh = o.normal(b, t, c).sigmoid(), o.normal(b, t, c), o.normal(b, t, c)
    dx, da, f = o.zeros(b, t, c), o.zeros(b, t, c), _updates().gradients_of_scan

    def run() -> Any:
        f[(c // 64, b)](a, h, dh, dx, da, t, c, BT=64, BC=64)
        return dx, da

    return run
