"""Attention backward in other forms: widths that cuDNN or FlashAttention-2 may refuse, eight heads
on one, a window and sequences of different lengths beside the even case, sums in one order beside
any. A whole call of autograd each, bfloat16. BENCH_ONLY=width-96,window picks rows by how their
names begin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import harness, rivals_torch
from benchmarks.attention_backward import differentiated, near, normal
from benchmarks.attention_variants import work_ratio
from benchmarks.harness import Contest, Contestant, Runner

WIDTHS = (96, 96), (192, 192), (256, 256), (192, 128)  # of keys and of values


def contests(seed: int) -> Iterator[Contest]:
    only = tuple(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    named = {
        f"width-{d}{f'-{dv}' * (dv != d)}-{'causal' if causal else 'full'}": partial(
            width, d=d, dv=dv, causal=causal
        )
        for d, dv in WIDTHS
        for causal in (False, True)
    }
    for name, make in (named | FORMS).items():
        if not only or name.startswith(only):
            yield make(seed)


def width(seed: int, d: int, dv: int, causal: bool, s: int = 4096) -> Contest:
    """Beside cuDNN and FlashAttention-2, of which either may refuse."""
    from tkc import kernels

    batch, heads = 16384 // s, 2048 // d
    head = batch, heads, s
    q, k, v, grad = normal(seed, (*head, d), (*head, d), (*head, dv), (*head, dv))

    def torchs(backend: str) -> Runner:
        run = rivals_torch.attention(backend, q, k, v, is_causal=causal)
        return differentiated(run, (q, k, v), grad)

    def ours() -> Runner:
        run = differentiated(lambda: kernels.attention(q, k, v, causal=causal), (q, k, v), grad)
        return near(run, torchs("EFFICIENT"))

    kind, both = "causal" if causal else "full", f"{d}" if d == dv else f"{d}-{dv}"
    # Q Kᵀ, dS K, dSᵀ Q of d columns; dO Vᵀ and Pᵀ dO of dv
    flops = batch * heads * s * s * (6 * d + 4 * dv) * (0.5 if causal else 1)
    return Contest(
        f"attention_backward-width-{both}-{kind}-{s}",
        f"Attention backward, D = {d}, Dv = {dv}, {kind}, S = {s}, bfloat16",
        (
            Contestant("tkc", ours, "ours"),
            Contestant("cuDNN", lambda: torchs("CUDNN")),
            Contestant("FlashAttention-2", lambda: torchs("FLASH")),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=(
            harness.speed_ratio("tkc", "cuDNN", 1.3),
            harness.speed_ratio("tkc", "FlashAttention-2", 1.3),
        ),
    )


def grouped(seed: int, s: int = 8192, heads: int = 16, shared: int = 2, d: int = 128) -> Contest:
    """Eight heads of queries on each of keys."""
    from tkc import kernels

    batch = 16384 // s
    q, k, v, grad = normal(seed, *((batch, h, s, d) for h in (heads, shared, shared, heads)))

    def cudnn() -> Runner:
        run = rivals_torch.attention("CUDNN", q, k, v, is_causal=True, enable_gqa=True)
        return differentiated(run, (q, k, v), grad)

    def ours() -> Runner:
        run = differentiated(lambda: kernels.attention(q, k, v, causal=True), (q, k, v), grad)
        return near(run, cudnn())

    return Contest(
        f"attention_backward-grouped-{heads}-{shared}-{s}",
        f"Attention backward, {heads} heads on {shared}, D = {d}, causal, S = {s}, bfloat16",
        (Contestant("tkc", ours, "ours"), Contestant("cuDNN", cudnn)),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=5 * batch * heads * s * s * d / 1e12,
        unit="TFLOP/s",
        figures=(harness.speed_ratio("tkc", "cuDNN", 1.15),),
    )


def window(seed: int, s: int = 16384, behind: int = 1024, d: int = 128) -> Contest:
    """Work a second beside the causal case's; work: pairs that are seen."""
    from tkc import kernels

    q, k, v, grad = normal(seed, *((1, 16, s, d),) * 4)

    def made(**options: Any) -> Runner:
        return differentiated(
            lambda: kernels.attention(q, k, v, causal=True, **options), (q, k, v), grad
        )

    pairs, even = s * behind - behind * (behind - 1) / 2, s * (s + 1) / 2
    return Contest(
        f"attention_backward-window-{behind}-{s}",
        f"Attention backward, a window of {behind}, D = {d}, S = {s}, bfloat16",
        (
            Contestant("tkc", lambda: made(window=behind), "ours"),
            Contestant("tkc, even", made, "bound"),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=10 * 16 * pairs * d / 1e12,
        unit="TFLOP/s",
        figures=(work_ratio("tkc", "tkc, even", pairs / even, 0.75),),
    )


def ragged(seed: int, count: int = 64, heads: int = 16, d: int = 128) -> Contest:
    """Sequences of 128 … 8192 rows beside as many rows in sequences of 4096."""
    import numpy as np
    import torch

    from tkc import kernels

    lengths = np.random.default_rng(0).integers(128, 8193, count)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    at, longest, tokens = torch.tensor(starts, device="cuda"), int(lengths.max()), int(starts[-1])
    q, k, v, grad = normal(seed, *((tokens, heads, d),) * 4)
    batch = tokens // 4096

    def ours() -> Runner:
        return differentiated(
            lambda: kernels.attention(q, k, v, causal=True, cu_seqlens=at, max_seqlen=longest),
            (q, k, v),
            grad,
        )

    def even() -> Runner:
        a, b, c, g = normal(seed, *((batch, heads, 4096, d),) * 4)
        return differentiated(lambda: kernels.attention(a, b, c, causal=True), (a, b, c), g)

    pairs, even_pairs = float((lengths.astype(np.float64) ** 2).sum() / 2), batch * 4096**2 / 2
    return Contest(
        "attention_backward-ragged",
        f"Attention backward, {count} causal sequences of 128 to 8192 tokens, D = {d}, bfloat16",
        (Contestant("tkc", ours, "ours"), Contestant("tkc, all of 4096", even, "bound")),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=10 * heads * d * pairs / 1e12,
        unit="TFLOP/s",
        figures=(work_ratio("tkc", "tkc, all of 4096", pairs / even_pairs, 0.80),),
    )


def deterministic(seed: int, s: int = 8192, d: int = 128) -> Contest:
    """Sums in one order beside sums in any; extra memory of each, by what torch allocated."""
    import torch

    from tkc import kernels

    batch, heads = 16384 // s, 2048 // d
    q, k, v, grad = normal(seed, *((batch, heads, s, d),) * 4)
    most = 4 * batch * heads * s * d + 8 * batch * heads * s

    def made(ordered: bool) -> Runner:
        found = differentiated(
            lambda: kernels.attention(q, k, v, causal=True, deterministic=ordered), (q, k, v), grad
        )
        found.run()  # what is kept between calls
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        got = found.run()
        extra = torch.cuda.max_memory_allocated() - before
        extra -= sum(x.numel() * x.element_size() for x in got)
        if extra > most:
            raise harness.Wrong(f"{extra} bytes beside the results, {most} at most")
        return found

    return Contest(
        f"attention_backward-deterministic-d{d}-causal-{s}",
        f"Attention backward with sums in one order, D = {d}, causal, S = {s}, bfloat16; at most"
        f" {most} bytes beside the results",
        (
            Contestant("tkc", lambda: made(True), "ours"),
            Contestant("tkc, any order", lambda: made(False), "bound"),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=5 * batch * heads * s * s * d / 1e12,
        unit="TFLOP/s",
        figures=(harness.speed_ratio("tkc", "tkc, any order", 0.74),),
    )


FORMS = {
    "grouped": grouped,
    "window": window,
    "ragged": ragged,
    "deterministic": deterministic,
}
