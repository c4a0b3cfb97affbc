"""Layers of models against torch and a copy of the bytes that have to move.

`contests` yields one race an operation and shape; BENCH_ONLY=experts in the environment picks
some. Rates are of the operations or bytes of the formula.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import inf

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner
from benchmarks.memory_bound import first, normal_of
from benchmarks.vector_add import copy

# tokens, width, hidden, experts, experts of a token: Qwen3-30B-A3B, Mixtral 8x7B, decoding
EXPERTS = (
    (8192, 2048, 768, 128, 8),
    (4096, 4096, 14336, 8, 2),
    (64, 2048, 768, 128, 8),
)
# rows, outputs, inputs
PACKED = tuple(
    (m, n, k)
    for n, k in ((28672, 4096), (4096, 14336), (8192, 8192))
    for m in (1, 16, 64, 256, 2048)
)


def race(
    name: str, moved: int, ours: Callable, rivals: dict[str, Callable], tolerance: float
) -> Contest:
    """ours and rivals: functions of nothing; moved: bytes that one run reads and writes."""
    racers = [Contestant("tkc", lambda: Runner(lambda: first(ours())), "ours")]
    racers += [
        Contestant(rival, lambda run=run: Runner(lambda: first(run())))
        for rival, run in rivals.items()
    ]
    racers.append(Contestant("copy of as many bytes", lambda: Runner(copy(moved // 2)), "bound"))
    return Contest(
        name,
        name,
        tuple(racers),
        harness.gpu_timer,
        harness.GPU_TIMING,
        None,
        tolerance,
        amount=moved / 1e9,
        unit="GB/s",
    )


def experts(normal, tokens, width, hidden, count, k):
    import torch
    import torch.nn.functional as F

    from tkc import kernels

    x, logits = normal(tokens, width), normal(tokens, count)
    gate_up, down = normal(count, 2 * hidden, width) / 50, normal(count, width, hidden) / 50

    def ours():
        weights, chosen = kernels.route(logits, k)
        return kernels.mixture_of_experts(x, gate_up, down, weights, chosen, with_grad=False)

    def theirs():
        weights, chosen = logits.float().softmax(-1).topk(k)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.reshape(-1).argsort(stable=True)
        ends = chosen.reshape(-1).bincount(minlength=count).cumsum(0).int()
        both = torch._grouped_mm(x[order // k], gate_up.transpose(1, 2), offs=ends)
        gate, up = both.chunk(2, -1)
        rows = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
        weighed = rows * weights.reshape(-1)[order, None].to(rows.dtype)
        return torch.zeros_like(x).index_add_(0, order // k, weighed)

    return 2 * (gate_up.numel() + down.numel() + 2 * x.numel()), ours, {"torch": theirs}


def packed(normal, m, n, k):
    import torch

    from tkc import kernels

    x, w = normal(m, k), normal(n, k)
    words, scales, _ = kernels.quantize_packed(w, "int4", 128, scale_dtype="bfloat16")
    exact = kernels.dequantize_packed(words, scales)
    moved = n * k // 2 + 2 * (scales.numel() + x.numel() + m * n)
    rivals = {"torch, bfloat16": lambda: torch.nn.functional.linear(x, exact)}
    return moved, lambda: kernels.packed_matmul(x, words, scales), rivals


def conv(normal, images, channels, outputs, size, taps, stride):
    import torch
    import torch.nn.functional as F

    from tkc import kernels

    x, w = normal(images, size, size, channels), normal(outputs, taps, taps, channels)
    last = torch.channels_last
    theirs = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2).contiguous(memory_format=last)
    pad = taps // 2

    def rival():
        return F.conv2d(*theirs, stride=stride, padding=pad).permute(0, 2, 3, 1)

    moved = 2 * (x.numel() + w.numel() + images * (size // stride) ** 2 * outputs)
    return moved, lambda: kernels.conv(x, w, stride=stride, padding=pad), {"cuDNN": rival}


def drawn(normal, rows, tokens):
    import torch

    from tkc import kernels

    logits, noise = normal(rows, tokens), normal(rows, tokens).float().exponential_()

    def theirs():
        values, order = (logits.float() / 0.7).sort(descending=True)
        values[:, 50:] = -torch.inf
        shares = values.softmax(-1)
        shares[shares.cumsum(-1) - shares > 0.9] = 0
        return order.gather(1, (shares / noise).argmax(1, keepdim=True))

    def ours():
        return kernels.sample(logits, 1, 0.7, 50, 0.9)

    return 2 * logits.numel(), ours, {"torch": theirs}


def distilled(normal, rows, classes):
    import torch

    from tkc import kernels

    q, p = (normal(rows, classes).float().log_softmax(-1) for _ in range(2))
    ones = torch.ones(rows, device="cuda")

    def theirs():
        m = torch.logaddexp(q, p) - 0.6931471805599453
        return q.exp() * (q - m) / 2

    def ours():
        kernels.divergence(q, p, "jsd")
        return kernels.divergence_backward(ones, q, p, "jsd")

    return 20 * rows * classes, ours, {"torch": theirs}


def fused_loss(normal, rows, width, classes):
    import torch
    import torch.nn.functional as F

    from tkc import kernels

    x, w = normal(rows, width), normal(classes, width) / 50
    target = torch.randint(0, classes, (rows,), device="cuda")
    leaves = [t.detach().requires_grad_() for t in (x, w)]

    def theirs():
        loss = F.cross_entropy(F.linear(*leaves), target)
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    moved = 4 * (x.numel() + w.numel())
    return moved, lambda: kernels.linear_cross_entropy(x, w, target), {"torch": theirs}


def grouped_norm(normal, images, channels, size):
    import torch.nn.functional as F

    from tkc import kernels

    x, w, b = normal(images, channels, size, size), normal(channels), normal(channels)

    def theirs():
        return F.silu(F.group_norm(x, 32, w, b))

    return 4 * x.numel(), lambda: kernels.group_norm(x, 32, w, b, silu=True), {"torch": theirs}


def low_rank(normal, m, k, n, rank):
    from tkc import kernels

    x, w, a, b = normal(m, k), normal(n, k), normal(rank, k), normal(n, rank)

    def theirs():
        return x @ w.T + (x @ a.T) @ b.T

    moved = 2 * (x.numel() + w.numel() + m * n)
    return moved, lambda: kernels.lora_linear(x, w, a, b), {"torch": theirs}


def long_convolution(normal, batch, channels, length):
    import torch

    from tkc import kernels

    u, k = normal(batch, channels, length), normal(channels, length) / length

    def theirs():
        n = 2 * length
        spectrum = torch.fft.rfft(u.float(), n) * torch.fft.rfft(k.float(), n)
        return torch.fft.irfft(spectrum, n)[..., :length].to(u.dtype)

    return 4 * u.numel(), lambda: kernels.fft_conv(u, k), {"torch.fft": theirs}


# images, channels, outputs, positions along an axis, taps along an axis, stride
CONVOLUTIONS = (
    (64, 64, 64, 56, 3, 1),
    (64, 128, 128, 28, 3, 1),
    (64, 256, 256, 14, 3, 1),
    (64, 512, 512, 7, 3, 1),
    (64, 256, 64, 56, 1, 1),
    (64, 1024, 2048, 14, 1, 2),
    (64, 128, 128, 56, 3, 2),
    (16, 320, 320, 64, 3, 1),
    (16, 1280, 1280, 16, 3, 1),
    (4, 512, 512, 128, 3, 1),
    (2, 256, 256, 256, 3, 1),
)
# two draws of other noise have nothing to compare
DRAWN = ("drawn",)
OPERATIONS: tuple = (
    ("experts", EXPERTS, experts),
    ("packed", PACKED, packed),
    ("conv", CONVOLUTIONS, conv),
    ("distilled", ((4096, 128256),), distilled),
    ("fused_loss", ((8192, 4096, 128256),), fused_loss),
    ("grouped_norm", ((16, 320, 64), (4, 512, 128), (2, 256, 256)), grouped_norm),
    ("low_rank", ((8192, 4096, 14336, 16), (8192, 4096, 14336, 64)), low_rank),
    ("long_convolution", ((16, 1024, 1024), (16, 1024, 4096), (8, 768, 16384)), long_convolution),
    ("drawn", ((1, 128256), (64, 128256), (256, 128256)), drawn),
)


def contests(seed: int) -> Iterator[Contest]:
    import torch

    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, shapes, build in OPERATIONS:
        if only and name not in only:
            continue
        for shape in shapes:
            torch.cuda.empty_cache()
            of = "x".join(map(str, shape))
            tolerance = inf if name in DRAWN else 2e-2
            yield race(f"{name}-{of}", *build(normal_of(seed), *shape), tolerance)
