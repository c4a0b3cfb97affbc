"""Rows of Q and of K that a program of tkc.kernels.attention has, beside its default and cuDNN.

Two, three and four warpgroups; and cross-tile prologues (examples/attention.py as it is, beside
itself with `cross_tile_prologue=False`). bfloat16, B·S = 16384, heads·D = 2048.
BENCH_ONLY=causal,d64-full-1024 in the environment picks those whose name has such a part.
"""

from __future__ import annotations

import os

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

BLOCKS = {
    128: ((128, 128), (192, 64)),
    192: (),
    32: ((128, 128), (192, 112), (256, 64)),
    64: ((128, 128), (192, 96), (256, 64)),
    96: ((128, 128), (192, 64)),
}
CASES = (
    [(128, s, causal) for causal in (False, True) for s in (1024, 2048, 4096)]
    + [(d, 4096, causal) for d in (192, 32, 96) for causal in (False, True)]
    + [(64, s, causal) for causal in (False, True) for s in (1024, 4096, 16384)]
)
FUSED = 64, 128, 192


def contests(seed: int):
    only = tuple(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for case in CASES:
        if not only or any(part in name(*case) for part in only):
            yield contest(seed, *case)


def name(d: int, s: int, causal: bool) -> str:
    return f"d{d}-{'causal' if causal else 'full'}-{s}"


def contest(seed: int, d: int = 64, s: int = 4096, causal: bool = False) -> Contest:
    import torch

    import tkc
    from tkc import kernels
    from tkc.kernels.attention_blocks import block_of

    batch, heads = 16384 // s, 2048 // d
    generator = torch.Generator("cuda").manual_seed(seed)
    q, k, v = (
        torch.randn(batch, heads, s, d, device="cuda", dtype=torch.bfloat16, generator=generator)
        for _ in range(3)
    )

    def ours(**block):
        def make() -> Runner:
            return Runner(lambda: kernels.attention(q, k, v, causal=causal, **block), None)

        return make

    def plain(**options):
        def make() -> Runner:
            out = torch.empty_like(q)
            launch = harness.example("attention").attention.prepare(
                q,
                k,
                v,
                out,
                d**-0.5,
                CAUSAL=causal,
                D=d,
                BM=128,
                BN=128 if d <= 128 else 64,
                **options,
                grid=(tkc.cdiv(s, 128), heads, batch),
            )
            return Runner(lambda: (launch(), out)[1], out)

        return make

    def cudnn() -> Runner:
        return Runner(rivals_torch.attention("CUDNN", q, k, v, is_causal=causal), None)

    def reference():
        return rivals_torch.attention(
            "EFFICIENT", q.float(), k.float(), v.float(), is_causal=causal
        )()

    kind, (rows, columns, co_resident, _) = (
        "causal" if causal else "full",
        block_of(q, k, v, causal, None),
    )
    forced = tuple(
        Contestant(f"tkc {m} x {n}", ours(rows=m, columns=n), "ours") for m, n in BLOCKS[d]
    )
    if d in FUSED:
        forced += (
            Contestant("tkc plain", plain(), "ours"),
            Contestant("tkc plain, not fused", plain(cross_tile_prologue=False), "ours"),
        )
    return Contest(
        f"attention-blocks-{name(d, s, causal)}",
        f"Attention forward by blocks, D = {d}, {kind}, S = {s}, bfloat16, by default blocks of"
        f" {rows} x {columns}{f', {co_resident} co-resident' * (co_resident > 1)}",
        (Contestant("tkc", ours(), "ours"), *forced, Contestant("cuDNN", cudnn)),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=4 * batch * heads * s * s * d * (0.5 if causal else 1) / 1e12,
        unit="TFLOP/s",
    )
