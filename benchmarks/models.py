"""Layers of models against torch, torch.compile and a copy of the bytes that have to move.

`contests` yields one race an operation and shape; BENCH_ONLY=experts,drawn-64x128256 in the
environment picks some. Rates are of the operations or bytes of the formula. What torch.compile can
put together is compiled for the sizes at hand alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import inf

from benchmarks import harness, rivals_torch
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
    operation = name.partition("-")[0]
    made = harness.recorded if operation in SHORT else Runner
    racers = [Contestant("tkc", lambda: made(lambda: first(ours())), "ours")]
    racers += [
        Contestant(rival, lambda run=run: made(lambda: first(run())))
        for rival, run in rivals.items()
    ]
    if operation in COMPILED:
        racers += rivals_torch.compiled(lambda: first(rivals["torch"]()))
    racers.append(Contestant("copy of as many bytes", lambda: Runner(copy(moved // 2)), "bound"))
    return Contest(
        name,
        name,
        tuple(racers),
        harness.gpu_timer,
        harness.GPU_TIMING + (", each run a CUDA graph" if operation in SHORT else ""),
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


def _layer(normal, images, channels, outputs, *extents):
    """x and w of a convolution, channels last, and as torch has them. extents: positions along
    each axis, and taps along each. cuDNN measures which of its kernels is the fastest.
    """
    import torch

    torch.backends.cudnn.benchmark = True
    count = len(extents) // 2
    size, taps = extents[:count], extents[count:]
    x, w = normal(images, *size, channels), normal(outputs, *taps, channels)
    last = torch.channels_last if count == 2 else torch.channels_last_3d
    theirs = x.movedim(-1, 1), w.movedim(-1, 1).contiguous(memory_format=last)
    return x, w, theirs, [n // 2 for n in taps]


def conv(normal, images, channels, outputs, size, taps, stride):
    import torch.nn.functional as F

    from tkc import kernels

    x, w, theirs, pad = _layer(normal, images, channels, outputs, size, size, taps, taps)

    def rival():
        return F.conv2d(*theirs, stride=stride, padding=pad).movedim(1, -1)

    moved = 2 * (x.numel() + w.numel() + images * (size // stride) ** 2 * outputs)
    return moved, lambda: kernels.conv(x, w, stride=stride, padding=pad[0]), {"cuDNN": rival}


def conv3d(normal, images, channels, outputs, *extents):
    import torch.nn.functional as F

    from tkc import kernels

    x, w, theirs, pad = _layer(normal, images, channels, outputs, *extents)

    def rival():
        return F.conv3d(*theirs, padding=pad).movedim(1, -1)

    moved = 2 * (x.numel() + w.numel() + x.numel() // channels * outputs)
    return moved, lambda: kernels.conv(x, w, padding=pad[0]), {"cuDNN": rival}


def _conv_backward(normal, images, channels, outputs, size, taps, stride, of):
    """The gradient of x (of: 0) or of the weights (1)."""
    import torch

    from tkc import kernels

    x, w, theirs, pad = _layer(normal, images, channels, outputs, size, size, taps, taps)
    grad = normal(images, size // stride, size // stride, outputs)
    wanted, on = [of == 0, of == 1, False], [stride] * 2

    def rival():
        given = grad.movedim(-1, 1), *theirs, None, on, pad, [1, 1], False, [0, 0], 1, wanted
        return torch.ops.aten.convolution_backward(*given)[of].movedim(1, -1)

    def ours():
        steps = {"s1": stride, "s2": stride, "p1": pad[0], "p2": pad[0]}
        return kernels.conv_backward(grad, x, w, **steps, of_x=of == 0, of_weight=of == 1)[of]

    moved = 2 * (x.numel() + w.numel() + grad.numel())
    return moved, ours, {"cuDNN": rival}


def conv_dx(normal, *extents):
    return _conv_backward(normal, *extents, 0)


def conv_dw(normal, *extents):
    return _conv_backward(normal, *extents, 1)


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


def _distilled(normal, rows, classes, kind, slope_of):
    """A divergence of rows and its gradient; slope_of(q, p): the gradient by torch."""
    import torch

    from tkc import kernels

    q, p = (normal(rows, classes).float().log_softmax(-1) for _ in range(2))
    ones = torch.ones(rows, device=q.device)

    def ours():
        kernels.divergence(q, p, kind)
        return kernels.divergence_backward(ones, q, p, kind)

    return 20 * rows * classes, ours, {"torch": lambda: slope_of(q, p)}


def distilled(normal, rows, classes):
    import torch

    def slope(q, p):
        return q.exp() * (q - torch.logaddexp(q, p) + 0.6931471805599453) / 2

    return _distilled(normal, rows, classes, "jsd", slope)


def divergence(normal, rows, classes):
    return _distilled(normal, rows, classes, "kl", lambda q, p: -p.exp())


def grpo(normal, rows, positions, classes):
    """The gradient of the logits from GRPO's loss of tokens that these drew."""
    import torch

    from tkc import kernels

    logits = normal(rows * positions, classes).requires_grad_()
    tokens = torch.randint(0, classes, (rows * positions,), device=logits.device)
    old, reference = (-12 + normal(rows * positions).float() / 10 for _ in range(2))
    worth = normal(rows, 1).float().expand(rows, positions).reshape(-1).contiguous()

    def ours():
        now = -kernels.cross_entropy(logits, tokens)[0]
        return torch.autograd.grad(kernels.grpo_loss(now, old, reference, worth).sum(), logits)[0]

    def theirs():
        picked = logits.gather(-1, tokens[:, None])[:, 0].float()
        now = picked - logits.float().logsumexp(-1)
        ratio, apart = (now - old).exp(), reference - now
        clipped = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
        loss = 0.04 * (apart.exp() - apart - 1) - clipped
        return torch.autograd.grad(loss.sum(), logits)[0]

    return 6 * logits.numel(), ours, {"torch": theirs}


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


def grouped_norm_backward(normal, images, channels, size):
    import torch
    import torch.nn.functional as F

    from tkc import kernels

    x, w, b = normal(images, channels, size, size), normal(channels), normal(channels)
    grad, leaves = normal(*x.shape), [t.detach().requires_grad_() for t in (x, w, b)]

    def theirs():
        out = F.silu(F.group_norm(leaves[0], 32, *leaves[1:]))
        return torch.autograd.grad(out, leaves, grad)[0]

    def ours():
        return kernels.group_norm_backward(grad, x, 32, w, b, silu=True)

    return 6 * x.numel(), ours, {"torch": theirs}


def low_rank(normal, m, k, n, rank):
    from tkc import kernels

    x, w, a, b = normal(m, k), normal(n, k), normal(rank, k), normal(n, rank)

    def theirs():
        return x @ w.T + (x @ a.T) @ b.T

    moved = 2 * (x.numel() + w.numel() + m * n)
    return moved, lambda: kernels.lora_linear(x, w, a, b), {"torch": theirs}


def gate_add(normal, m, n, k):
    """How a block of FLUX ends."""
    from tkc import kernels

    x, w, bias, gate, residual = normal(m, k), normal(n, k), normal(n), normal(n), normal(m, n)

    def theirs():
        return residual + gate * (x @ w.T + bias)

    moved = 2 * (x.numel() + w.numel() + 2 * m * n)
    ours = lambda: kernels.linear_gate_add(x, w, gate, residual, bias)  # noqa: E731
    return moved, ours, {"torch": theirs}


def gelu_linear(normal, m, n, k):
    """How the wide layer of a block of FLUX begins."""
    import torch.nn.functional as F

    from tkc import kernels

    x, w, bias = normal(m, k), normal(n, k), normal(n)

    def theirs():
        return F.gelu(F.linear(x, w, bias), approximate="tanh")

    moved = 2 * (x.numel() + w.numel() + m * n)
    return moved, lambda: kernels.matmul(x, w.T, bias, "gelu_tanh"), {"torch": theirs}


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
VOLUMES = ((1, 256, 256, 9, 128, 128, 3, 3, 3),)
NORMED = ((16, 320, 64), (4, 512, 128), (2, 256, 256))
# whose kernels take less than a call's host time
SHORT = ("conv", "conv_dx", "conv_dw", "conv3d")
COMPILED = (
    "distilled",
    "divergence",
    "fused_loss",
    "gate_add",
    "gelu_linear",
    "grouped_norm",
    "grouped_norm_backward",
    "grpo",
)
# two draws of other noise have nothing to compare
DRAWN = ("drawn",)
OPERATIONS: tuple = (
    ("experts", EXPERTS, experts),
    ("packed", PACKED, packed),
    ("conv", CONVOLUTIONS, conv),
    ("conv_dx", CONVOLUTIONS, conv_dx),
    ("conv_dw", CONVOLUTIONS, conv_dw),
    ("conv3d", VOLUMES, conv3d),
    ("distilled", ((4096, 128256),), distilled),
    ("divergence", ((4096, 128256),), divergence),
    ("grpo", ((8, 512, 128256),), grpo),
    ("fused_loss", ((8192, 4096, 128256),), fused_loss),
    ("grouped_norm", NORMED, grouped_norm),
    ("grouped_norm_backward", NORMED, grouped_norm_backward),
    ("low_rank", ((8192, 4096, 14336, 16), (8192, 4096, 14336, 64)), low_rank),
    ("gate_add", ((3072, 3072, 12288), (512, 3072, 12288), (256, 3072, 12288)), gate_add),
    ("gelu_linear", ((3072, 12288, 3072), (512, 12288, 3072), (256, 12288, 3072)), gelu_linear),
    ("long_convolution", ((16, 1024, 1024), (16, 1024, 4096), (8, 768, 16384)), long_convolution),
    ("drawn", ((1, 128256), (64, 128256), (256, 128256)), drawn),
)


def contests(seed: int) -> Iterator[Contest]:
    import torch

    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, shapes, build in OPERATIONS:
        for shape in shapes:
            full = f"{name}-{'x'.join(map(str, shape))}"
            if only and not only & {name, full}:
                continue
            torch.cuda.empty_cache()
            tolerance = inf if name in DRAWN else 2e-2
            yield race(full, *build(normal_of(seed), *shape), tolerance)
