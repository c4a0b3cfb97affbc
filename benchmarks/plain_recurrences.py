"""Recurrences as users write them, with no schedule in the program: linear attention with a decay
per head, and Mamba-2's scan (SSD), by chunks with a state that goes round the loop; beside a copy
of the bytes that each must read and write.

BENCH_ONLY=linear-attention in the environment picks a contest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import tkc
from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner, Wrong

CHUNK = 64  # steps
COLUMNS = 64  # of a program's values
MAX_ERROR = 1e-2  # beside float64, relative, of bfloat16 operands and results
CHECKED_STEPS = 512  # of the scan, whose reference goes step by step


@tkc.jit
def linear_attention(q, k, v, o, gamma, C: tkc.constexpr, D: tkc.constexpr, DV: tkc.constexpr):
    """Linear attention with a decay per head (retention), [heads, steps, channels]."""
    head, column = tkc.program_id(0), tkc.program_id(1) * DV
    log_decay = tkc.log2(gamma[head])
    i = tkc.arange(0, C)
    distance = (i[:, None] - i[None, :]).to(tkc.float32)
    mask = tkc.where(distance >= 0, tkc.exp2(distance * log_decay), 0.0)
    up = tkc.exp2((i + 1).to(tkc.float32) * log_decay)
    down = tkc.exp2((C - 1 - i).to(tkc.float32) * log_decay)
    whole = tkc.exp2(C * log_decay)
    state = tkc.zeros((D, DV))
    for t in range(0, q.shape[1], C):
        qt = tkc.load(q, (head, t, 0), (None, C, D))
        kt = tkc.load(k, (head, t, 0), (None, C, D))
        vt = tkc.load(v, (head, t, column), (None, C, DV))
        s = tkc.dot(qt, kt.T) * mask
        old = tkc.dot(qt, state.to(qt.dtype)) * up[:, None]
        out = tkc.dot(s.to(vt.dtype), vt) + old
        tkc.store(o[head], (t, column), out.to(o.dtype))
        scaled = (kt.to(tkc.float32) * down[:, None]).to(kt.dtype)
        state = tkc.dot(scaled.T, vt, state * whole)


@tkc.jit
def state_space(x, dt, a, b, c, y, L: tkc.constexpr, N: tkc.constexpr, P: tkc.constexpr):
    """Mamba-2's scan: a program a head walks over the chunks; [batch, steps, heads, channels]."""
    head, batch = tkc.program_id(0), tkc.program_id(1)
    rate = a[head]
    state = tkc.zeros((N, P))
    i = tkc.arange(0, L)
    for t in range(0, x.shape[1], L):
        steps = tkc.load(dt, (batch, t, head), (None, L, None))
        passed = tkc.cumsum(steps * rate, 0)
        last = tkc.sum(steps * rate)
        bt = tkc.load(b, (batch, t, 0), (None, L, N))
        ct = tkc.load(c, (batch, t, 0), (None, L, N))
        xt = tkc.load(x, (batch, t, head, 0), (None, L, None, P))
        xt = (xt.to(tkc.float32) * steps[:, None]).to(b.dtype)
        since = tkc.exp(passed[:, None] - passed[None, :])
        decay = tkc.where(i[:, None] >= i[None, :], since, 0.0)
        s = (tkc.dot(ct, bt.T) * decay).to(b.dtype)
        out = tkc.dot(s, xt) + tkc.dot(ct, state.to(b.dtype)) * tkc.exp(passed)[:, None]
        tkc.store(y, (batch, t, head, 0), out.to(y.dtype).reshape(1, L, 1, P))
        left = (bt.to(tkc.float32) * tkc.exp(last - passed)[:, None]).to(b.dtype)
        state = tkc.dot(left.T, xt, state * tkc.exp(last))


def contests(seed: int) -> Iterator[Contest]:
    """One for each form."""
    forms: tuple[tuple[str, str, Callable[[int], Case], float], ...] = (
        ("linear-attention", "64 heads x 4096 x 128, a decay per head", _linear, 2.0),
        ("ssd", "8 x 4096 x 32 heads x 64, N = 128", _state_space, 3.5),
    )
    only = os.environ.get("BENCH_ONLY")
    for name, shape, make, most in forms:
        if only is None or only in name:
            yield _contest(seed, name, shape, make, most)


class Case:
    """A launch, what it computed and what it should have, and the bytes that it must move."""

    def __init__(self, launch: Callable[[], Any], check: Callable[[], float], moved: int):
        self.launch, self.check, self.moved = launch, check, moved


def _linear(seed: int) -> Case:
    import torch

    heads, steps, d = 64, 4096, 128
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator)

    q, k, v = (random(heads, steps, d).mul(0.3).to(torch.bfloat16) for _ in range(3))
    gamma = 0.9 + 0.09 * random(heads).sigmoid()
    o = torch.empty_like(v)

    def launch() -> None:
        linear_attention[(heads, d // COLUMNS)](q, k, v, o, gamma, CHUNK, d, COLUMNS)

    def error() -> float:
        i = torch.arange(steps, device="cuda")
        distance = (i[:, None] - i[None, :]).double()
        powers = gamma[:2].double()[:, None, None] ** distance.clamp(min=0)
        scores = q[:2].double() @ k[:2].double().transpose(1, 2)
        wanted = (scores * torch.where(distance >= 0, powers, 0.0)) @ v[:2].double()
        return harness.relative_error(o[:2], wanted)

    return Case(launch, error, 4 * q.nbytes)


def _state_space(seed: int) -> Case:
    import torch

    batch, steps, heads, p, n = 8, 4096, 32, 64, 128
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator)

    x = random(batch, steps, heads, p).to(torch.bfloat16)
    b, c = (random(batch, steps, n).mul(0.3).to(torch.bfloat16) for _ in range(2))
    dt, a = random(batch, steps, heads).abs() * 0.1, -random(heads).abs()
    y = torch.empty_like(x)

    def launch() -> None:
        state_space[(heads, batch)](x, dt, a, b, c, y, CHUNK, n, p)

    def error() -> float:
        state = torch.zeros(heads, n, p, dtype=torch.float64, device="cuda")
        found = []
        for t in range(CHECKED_STEPS):
            step = dt[0, t].double()
            inputs = step[:, None] * x[0, t].double()
            decay = torch.exp(step * a.double())[:, None, None]
            state = state * decay + b[0, t].double()[None, :, None] * inputs[:, None, :]
            found.append(torch.einsum("n,hnp->hp", c[0, t].double(), state))
        return harness.relative_error(y[0, :CHECKED_STEPS], torch.stack(found))

    return Case(launch, error, 2 * x.nbytes + dt.nbytes + 2 * b.nbytes)


def _contest(seed: int, name: str, shape: str, make: Callable[[int], Case], most: float) -> Contest:
    import torch

    case = make(seed)
    source = torch.empty(case.moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def ours() -> Runner:
        case.launch()
        if (error := case.check()) > MAX_ERROR:
            raise Wrong(f"relative error {error:.3g}")
        return Runner(case.launch)

    return Contest(
        f"plain-{name}",
        f"A plain program: {name}, {shape}, bfloat16",
        (
            Contestant("tkc", ours, "ours", risky=True),
            Contestant("a copy of its bytes", lambda: Runner(lambda: target.copy_(source))),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=case.moved / 1e9,
        unit="GB/s",
        figures=(harness.speed_ratio("tkc", "a copy of its bytes", 1 / most),),
    )
