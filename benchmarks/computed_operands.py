"""Kernels of which a role of its own computes operands, and the same with consumers that do: what
decides whether the converter pays (tkc/passes/planning/converting.py).

    python -m benchmarks.computed_operands

    normed    attention by cosines: keys are normed
    scaled    keys and values of 8 bits, with scales of their rows
    turned    keys by rotary embedding, as their halves
    gated     values are a product of two blocks, of which one goes through SiLU

Each plan has a process and a cache of its own. A line has the least of several medians.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import tkc
from tkc.passes.planning import hopper

HEADS, ROWS, D = 64, 4096, 64
PLANS = "converter", "consumers"
REPEATS, ROUNDS = 20, 5


@tkc.jit
def normed(q, k, v, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    m, h = tkc.program_id(0) * BM, tkc.program_id(1)
    x, total, acc = tkc.load(q[h], (m, 0), (BM, D)), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[1], BN):
        y = tkc.load(k[h], (n, 0), (BN, D)).to(tkc.float32)
        y = y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None]
        e = tkc.exp(tkc.dot(x, y.to(q.dtype).T))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(v.dtype), tkc.load(v[h], (n, 0), (BN, D)), acc)
    tkc.store(o[h], (m, 0), (acc / total[:, None]).to(o.dtype))


@tkc.jit
def scaled(q, k, v, ks, vs, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    m, h = tkc.program_id(0) * BM, tkc.program_id(1)
    x, total, acc = tkc.load(q[h], (m, 0), (BM, D)), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[1], BN):
        y = tkc.load(k[h], (n, 0), (BN, D)).to(tkc.float32)
        y = y * tkc.load(ks[h], (n,), (BN,))[:, None]
        e = tkc.exp(tkc.dot(x, y.to(q.dtype).T))
        total = total + tkc.sum(e, axis=1)
        z = tkc.load(v[h], (n, 0), (BN, D)).to(tkc.float32)
        z = z * tkc.load(vs[h], (n,), (BN,))[:, None]
        acc = tkc.dot(e.to(q.dtype), z.to(q.dtype), acc)
    tkc.store(o[h], (m, 0), (acc / total[:, None]).to(o.dtype))


@tkc.jit
def turned(q, k, v, cos, sin, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    m, h, half = tkc.program_id(0) * BM, tkc.program_id(1), D // 2
    x, y = tkc.load(q[h], (m, 0), (BM, half)), tkc.load(q[h], (m, half), (BM, half))
    total, acc = tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[1], BN):
        c, s = tkc.load(cos, (n, 0), (BN, half)), tkc.load(sin, (n, 0), (BN, half))
        a = tkc.load(k[h], (n, 0), (BN, half)).to(tkc.float32)
        b = tkc.load(k[h], (n, half), (BN, half)).to(tkc.float32)
        z = tkc.dot(x, (a * c - b * s).to(q.dtype).T)
        e = tkc.exp(tkc.dot(y, (a * s + b * c).to(q.dtype).T, z))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(q.dtype), tkc.load(v[h], (n, 0), (BN, D)), acc)
    tkc.store(o[h], (m, 0), (acc / total[:, None]).to(o.dtype))


@tkc.jit
def gated(q, k, a, b, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    m, h = tkc.program_id(0) * BM, tkc.program_id(1)
    x, total, acc = tkc.load(q[h], (m, 0), (BM, D)), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[1], BN):
        e = tkc.exp(tkc.dot(x, tkc.load(k[h], (n, 0), (BN, D)).T))
        total = total + tkc.sum(e, axis=1)
        g = tkc.load(b[h], (n, 0), (BN, D)).to(tkc.float32)
        g = tkc.load(a[h], (n, 0), (BN, D)).to(tkc.float32) * g / (1 + tkc.exp(-g))
        acc = tkc.dot(e.to(q.dtype), g.to(q.dtype), acc)
    tkc.store(o[h], (m, 0), (acc / total[:, None]).to(o.dtype))


# ---- what they compute
def _attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """In parts of heads, so that scores fit."""
    return torch.cat(
        [
            torch.softmax(x.float() @ y.float().transpose(1, 2), -1) @ z.float()
            for x, y, z in zip(q.split(4), k.split(4), v.split(4), strict=True)
        ]
    )


def cases(torch: Any) -> dict[str, tuple[Any, list[Any], Callable[[], Any]]]:
    """Of each kernel its arrays, and what it should compute."""

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    q, k, v, w = (normal(HEADS, ROWS, D) / 4 for _ in range(4))
    k8, v8 = (
        torch.randint(-127, 128, (HEADS, ROWS, D), device="cuda", dtype=torch.int8)
        for _ in range(2)
    )
    ks, vs = (torch.rand(HEADS, ROWS, device="cuda") / 256 for _ in range(2))
    angle = torch.rand(ROWS, D // 2, device="cuda") * 6
    cos, sin = torch.cos(angle), torch.sin(angle)

    def of_turned() -> Any:
        a, b = k.float().chunk(2, -1)
        return _attention(torch, q, torch.cat((a * cos - b * sin, a * sin + b * cos), -1), v)

    return {
        "normed": (
            normed,
            [q, k, v],
            lambda: _attention(torch, q, torch.nn.functional.normalize(k.float(), dim=-1), v),
        ),
        "scaled": (
            scaled,
            [q, k8, v8, ks, vs],
            lambda: _attention(torch, q, k8 * ks[..., None], v8 * vs[..., None]),
        ),
        "turned": (turned, [q, k, v, cos, sin], of_turned),
        "gated": (
            gated,
            [q, k, v, w],
            lambda: _attention(torch, q, k, v.float() * torch.nn.functional.silu(w.float())),
        ),
    }


def _microseconds(torch: Any, run: Callable[[], Any]) -> float:
    """The least of several medians."""
    medians = []
    for _ in range(ROUNDS):
        times = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
        medians.append(sorted(times)[len(times) // 2])
    return min(medians)


def race(plan: str) -> None:
    """One plan of every kernel."""
    import torch

    if plan == "consumers":
        hopper.LEAST_CONVERTER_GAIN = 100.0
    for name, (kernel, given, want) in cases(torch).items():
        o = torch.empty(HEADS, ROWS, D, device="cuda", dtype=torch.bfloat16)

        def run(kernel: Any = kernel, given: list[Any] = given, o: Any = o) -> None:
            kernel[ROWS // 128, HEADS](*given, o, BM=128, BN=64, D=D)

        run()
        wanted = want()
        error = ((o.float() - wanted).norm() / wanted.norm()).item()
        print(f"{name:8} {plan:10} {_microseconds(torch, run):9.1f} us   error {error:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--plan", choices=PLANS)
    plan = parser.parse_args().plan
    if plan:
        race(plan)
        return
    for each in PLANS:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "benchmarks.computed_operands", "--plan", each]
            subprocess.run(command, env=os.environ | {"TKC_CACHE_DIR": cache}, check=True)


if __name__ == "__main__":
    main()
