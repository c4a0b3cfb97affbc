"""Attention forward at every row of RIVALS: D = 128, the plain program of examples/attention.py
with the block that the library has for the shapes, and D = 64, `tkc.kernels.attention`; beside
cuDNN, and so beside FlashAttention-3, whose ratio to cuDNN in RIVALS' side-by-side is what ours is
asked for; beside that itself where its package is installed. B·S = 16384 (of 768, 3072 and 12288 as
many whole sequences as fit), heads·D = 2048. BENCH_ONLY=d128-causal,d64 picks rows by how their
names begin.
"""

import os

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

# TFLOP/s of cuDNN and of FlashAttention-3 in one run on an H200 (../shared/RIVALS.md), by D, mask
# and S
MEASURED = {
    (128, False): {
        1024: (582, 621),
        2048: (612, 659),
        4096: (622, 697),
        8192: (624, 694),
        16384: (630, 690),
        768: (573, 541),
        3072: (646, 665),
        12288: (668, 717),
    },
    (128, True): {
        1024: (423, 488),
        2048: (482, 614),
        4096: (510, 639),
        8192: (525, 689),
        16384: (545, 698),
        768: (395, 417),
        3072: (551, 621),
        12288: (566, 694),
    },
    (64, False): {
        1024: (439, 384),
        2048: (444, 477),
        4096: (451, 496),
        8192: (455, 530),
        16384: (459, 540),
        768: (418, 447),
        3072: (461, 522),
        12288: (475, 569),
    },
    (64, True): {
        1024: (339, 302),
        2048: (389, 417),
        4096: (411, 483),
        8192: (429, 511),
        16384: (441, 526),
        768: (305, 309),
        3072: (405, 481),
        12288: (452, 538),
    },
}


def asked(d: int, causal: bool, s: int) -> float:
    """What ours must be beside cuDNN: as much as FlashAttention-3, and no less than cuDNN."""
    cudnn, flash = MEASURED[d, causal][s]
    return max(1.0, flash / cudnn)


def contests(seed: int):
    only = tuple(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for (d, causal), row in MEASURED.items():
        for s in row:
            if not only or f"d{d}-{'causal' if causal else 'full'}-{s}".startswith(only):
                yield contest(seed, s, causal, d)


def contest(seed: int, s: int = 8192, causal: bool = False, d: int = 128) -> Contest:
    import torch

    from tkc.kernels.attention_blocks import block_of

    generator = torch.Generator("cuda").manual_seed(seed)
    batch, heads = 16384 // s, 2048 // d
    q, k, v = (
        torch.randn(batch, heads, s, d, device="cuda", dtype=torch.bfloat16, generator=generator)
        for _ in range(3)
    )
    out = torch.empty_like(q)

    def ours() -> Runner:
        import tkc

        if d != 128:
            from tkc import kernels

            return Runner(lambda: kernels.attention(q, k, v, causal=causal), None)
        launch = harness.example("attention").attention.prepare(
            q,
            k,
            v,
            out,
            d**-0.5,
            CAUSAL=causal,
            D=d,
            BM=rows,
            BN=columns,
            grid=(tkc.cdiv(s, rows), heads, batch),
        )
        return Runner(lambda: (launch(), out)[1], out)

    def cudnn() -> Runner:
        return Runner(rivals_torch.attention("CUDNN", q, k, v, is_causal=causal), None)

    def reference():
        return rivals_torch.attention(
            "EFFICIENT", q.float(), k.float(), v.float(), is_causal=causal
        )()

    flops = 4 * batch * heads * s * s * d * (0.5 if causal else 1)
    kind, bound, (rows, columns, co_resident, _) = (
        "causal" if causal else "full",
        asked(d, causal, s),
        block_of(q, k, v, causal, None),
    )
    return Contest(
        f"attention-{'' if d == 128 else f'd{d}-'}{kind}-{s}",
        f"Attention forward, D = {d}, {kind}, S = {s}, bfloat16, by default blocks of {rows} x"
        f" {columns}{f', {co_resident} co-resident' * (co_resident > 1)}",
        (
            Contestant("tkc", ours, "ours"),
            Contestant("cuDNN", cudnn),
            Contestant(
                "FlashAttention-3", lambda: Runner(rivals_torch.flash3(q, k, v, causal), None)
            ),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=(harness.speed_ratio("tkc", "cuDNN", round(bound, 3)),),
        worst_error=1.1,
    )
