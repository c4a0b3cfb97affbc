"""Attention backward: the whole autograd call with all its kernels, beside torch's with cuDNN and
with FlashAttention-2, and so beside FlashAttention-3, whose ratio to cuDNN in RIVALS' side-by-side
is what ours is asked for; beside that itself where its package is installed. B·S = 16384, heads·D =
2048; counted as 10·B·H·S²·D, halved for causal, whatever is executed. BENCH_ONLY=d128-causal,d64
picks rows by how their names begin.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
# TFLOP/s of cuDNN and of FlashAttention-3 in one run on an H200 (../shared/RIVALS.md), by D, mask
# and S; a length that was not measured takes the ratio of the next one
MEASURED = {
    (128, False): {1024: (446, 492), 4096: (527, 585), 16384: (559, 613)},
    (128, True): {1024: (320, 362), 4096: (466, 548), 16384: (541, 604)},
    (64, False): {1024: (364, 429), 4096: (444, 516), 16384: (455, 534)},
    (64, True): {1024: (251, 302), 4096: (386, 488), 16384: (443, 542)},
}


def asked(d: int, causal: bool, s: int) -> float:
    """What ours must be beside cuDNN: as much as FlashAttention-3, and no less than cuDNN."""
    row = MEASURED[d, causal]
    cudnn, flash = row[next(n for n in row if s <= n)]
    return max(1.0, flash / cudnn)


def contests(seed: int):
    only = tuple(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for d, causal in MEASURED:
        for s in LENGTHS:
            if not only or f"d{d}-{'causal' if causal else 'full'}-{s}".startswith(only):
                yield contest(seed, s, causal, d)


def differentiated(call: Callable, inputs: Sequence[Any], grad: Any) -> Runner:
    """The gradients of one call; what is not freed is used again."""
    import torch

    out = call()
    return Runner(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True), None)


def near(runner: Runner, other: Runner) -> Runner:
    """The runner, whose gradients were compared once with another's: rivals' own runs differ in
    their last bits, which no race allows.
    """
    for one, two in zip(runner.run(), other.run(), strict=True):
        if not (error := harness.relative_error(one, two)) <= 1e-2:
            raise harness.Wrong(f"relative error {error:.3g} to a rival's gradients")
    return runner


def normal(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    """Tensors of bfloat16, of which gradients are taken, but the last."""
    import torch

    made = torch.Generator("cuda").manual_seed(seed)
    found = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=made) for shape in shapes
    ]
    return [*(x.requires_grad_() for x in found[:-1]), found[-1]]


def contest(seed: int, s: int = 4096, causal: bool = True, d: int = 128) -> Contest:
    from tkc import kernels

    batch, heads = 16384 // s, 2048 // d
    q, k, v, grad = normal(seed, *((batch, heads, s, d),) * 4)

    def of(call: Callable) -> Runner:
        return differentiated(call, (q, k, v), grad)

    def torchs(backend: str) -> Runner:
        return of(rivals_torch.attention(backend, q, k, v, is_causal=causal))

    def ours() -> Runner:
        return near(of(lambda: kernels.attention(q, k, v, causal=causal)), torchs("CUDNN"))

    kind, bound = "causal" if causal else "full", asked(d, causal, s)
    flops = 10 * batch * heads * s * s * d * (0.5 if causal else 1)
    return Contest(
        f"attention_backward-d{d}-{kind}-{s}",
        f"Attention backward, D = {d}, {kind}, S = {s}, bfloat16, a whole call of autograd",
        (
            Contestant("tkc", ours, "ours"),
            Contestant("cuDNN", lambda: torchs("CUDNN")),
            Contestant("FlashAttention-2", lambda: torchs("FLASH")),
            Contestant(
                "FlashAttention-3",
                lambda: of(rivals_torch.flash3(q, k, v, causal)),
            ),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=(harness.speed_ratio("tkc", "cuDNN", round(bound, 3)),),
    )
