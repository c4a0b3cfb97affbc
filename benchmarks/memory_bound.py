"""Kernels that move bytes, against torch, torch.compile and a copy: GB/s counting each byte read
once and written once.

The bound is the fastest copy of an array of the same bytes in the same round. A kernel is to reach
1.1 x the best of torch, eager or by torch.compile (as it is, and with max-autotune, both for the
sizes at hand alone), or a share of the copy, whichever is less. `contests` yields one race an
operation and shape; BENCH_ONLY=softmax,rms_norm in the environment picks some.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Figure, Runner
from benchmarks.vector_add import copy

NORMS = ((32768, 1024), (32768, 4096), (8192, 8192), (4096, 32768), (2048, 131072))
THREE = ((32768, 4096), (8192, 8192), (8191, 4099))


def least(share: float) -> Figure:
    """The time of tkc is at most that of the best of torch / 1.1, or of the copy / share."""
    rivals = "torch", *rivals_torch.MODES

    def measure(t: dict[str, float]) -> float:
        best = min(t[name] for name in rivals)
        return max(best / 1.1, t["copy of as many bytes"] / share) / t["tkc"]

    return Figure(
        f"tkc at min(1.1 x the best of torch, {share:g} x copy) or more",
        ("tkc", *rivals, "copy of as many bytes"),
        measure,
        1.0,
    )


def contest(
    name: str,
    shape: tuple[int, ...],
    moved: int,
    share: float,
    ours,
    theirs,
    reference,
    tolerance: float = 1e-2,
) -> Contest:
    """ours and theirs: functions of nothing that give one tensor (of several results the first);
    moved: bytes of one run.
    """
    return Contest(
        f"{name}-{'x'.join(map(str, shape))}",
        f"{name.replace('_', ' ')}, {' x '.join(map(str, shape))} bfloat16",
        (
            Contestant("tkc", lambda: Runner(lambda: first(ours())), "ours"),
            Contestant("torch", lambda: Runner(lambda: first(theirs()))),
            *rivals_torch.compiled(lambda: first(theirs())),
            Contestant("copy of as many bytes", lambda: Runner(copy(moved // 2)), "bound"),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        tolerance,
        amount=moved / 1e9,
        unit="GB/s",
        figures=(least(share),),
    )


def normal_of(seed: int) -> Callable[..., Any]:
    """`normal(*shape, dtype=bfloat16)`: normal numbers on the GPU, the same ones for a seed."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype, generator=generator)

    return normal


def contests(seed: int) -> Iterator[Contest]:
    import torch

    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, shapes, build in OPERATIONS:
        if only and name not in only:
            continue
        for shape in shapes:
            torch.cuda.empty_cache()
            yield contest(name, shape, *build(normal_of(seed), *shape))


def first(x):
    return x[0] if isinstance(x, (tuple, list)) else x


def softmax(normal, r, c):
    import torch

    from tkc import kernels

    x = normal(r, c)
    return (
        4 * r * c,
        0.95,
        lambda: kernels.softmax(x),
        lambda: torch.softmax(x, -1),
        lambda: torch.softmax(x.double(), -1),
    )


def layer_norm(normal, r, c):
    import torch.nn.functional as F

    from tkc import kernels

    x, w, b = normal(r, c), normal(c), normal(c)
    return (
        4 * r * c,
        0.95,
        lambda: kernels.layer_norm(x, w, b),
        lambda: F.layer_norm(x, (c,), w, b),
        lambda: F.layer_norm(x.double(), (c,), w.double(), b.double()),
    )


def rms_norm(normal, r, c):
    import torch.nn.functional as F

    from tkc import kernels

    x, w = normal(r, c), normal(c)
    return (
        4 * r * c,
        0.95,
        lambda: kernels.rms_norm(x, w),
        lambda: F.rms_norm(x, (c,), w, 1e-6),
        lambda: F.rms_norm(x.double(), (c,), w.double(), 1e-6),
    )


def norm_backward(centre: bool):
    def build(normal, r, c):
        import torch
        import torch.nn.functional as F

        from tkc import kernels

        x, w, b, g = normal(r, c), normal(c), normal(c), normal(r, c)

        def norm(x, w, b):
            return F.layer_norm(x, (c,), w, b) if centre else F.rms_norm(x, (c,), w, 1e-6)

        def gradients(x, w, b, g):
            if centre:
                return torch.func.vjp(norm, x, w, b)[1](g)
            y, h = x.float(), g.float()  # by hand: torch.compile takes no vjp of F.rms_norm
            s, d = torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6), h * w.float()
            n = y * s
            return (s * (d - n * (d * n).mean(-1, keepdim=True))).to(x.dtype), (h * n).sum(0).to(
                w.dtype
            )

        def ours():
            return (kernels.layer_norm_backward if centre else kernels.rms_norm_backward)(g, x, w)[
                0
            ]

        def reference():
            a, v, u = (t.double().requires_grad_() for t in (x, w, b))
            return torch.autograd.grad(norm(a, v, u), a, g.double())[0]

        return 6 * r * c, 0.93, ours, lambda: gradients(x, w, b, g), reference

    return build


def cross_entropy(normal, r, c):
    import torch

    from tkc import kernels

    x, t = normal(r, c), torch.randint(0, c, (r,), device="cuda")
    logits = x.clone()

    # what is there are gradients after the first run: the same work whatever the numbers
    def ours():
        kernels.cross_entropy_(logits, t)
        return logits

    def theirs():
        y, here = x.float(), torch.arange(c, device="cuda") == t[:, None]
        shifted = y - y.amax(-1, keepdim=True)
        lse = shifted.exp().sum(-1, keepdim=True).log()
        return ((shifted - lse).exp() - here.float()).to(x.dtype), lse - torch.where(
            here, shifted, 0.0
        ).sum(-1, keepdim=True)

    return 4 * r * c, 0.93, ours, theirs, None


def rotary(normal, *shape):
    import torch

    from tkc import kernels

    x, angles = normal(*shape), torch.rand(shape[1], shape[3] // 2, device="cuda") * 6
    cos, sin = angles.cos(), angles.sin()

    def theirs(y=x):
        a, b = y.float().chunk(2, -1)
        c, s = cos[:, None].to(a.dtype), sin[:, None].to(a.dtype)
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(y.dtype)

    return (
        4 * x.numel(),
        0.93,
        lambda: kernels.rotary(x, cos, sin),
        theirs,
        lambda: theirs(x.double()),
    )


def swiglu(normal, r, c):
    import torch.nn.functional as F

    from tkc import kernels

    x, g = normal(r, c), normal(r, c)
    return (
        6 * r * c,
        0.93,
        lambda: kernels.swiglu(x, g),
        lambda: F.silu(x) * g,
        lambda: F.silu(x.double()) * g.double(),
    )


def adam(normal, r, c):
    import torch

    from tkc import kernels

    p, g = normal(r, c), normal(r, c)
    m, v = (torch.zeros(r, c, device="cuda") for _ in range(2))
    q, m2, v2 = p.clone(), m.clone(), v.clone()

    def theirs():
        h = g.float()
        m2.lerp_(h, 0.1)
        v2.mul_(0.999).addcmul_(h, h, value=0.001)
        q.copy_(q.float() - 1e-3 * (m2 / 0.1) / ((v2 / 0.001).sqrt() + 1e-8))
        return q

    return (3 * 2 + 16) * r * c, 0.93, lambda: kernels.adam_(p, g, m, v, 1), theirs, None


def quantize(normal, r, c):
    import torch

    from tkc import kernels

    x = normal(r, c)

    def theirs():
        scale = x.float().abs().amax(-1, keepdim=True) / 448
        return (x.float() / scale).to(torch.float8_e4m3fn).view(torch.int8), scale

    return 3 * r * c, 0.93, lambda: kernels.quantize_rows(x)[0].view(torch.int8), theirs, None


def total(normal, n):
    from tkc import kernels

    x = normal(n)
    return 2 * n, 0.97, lambda: kernels.sum(x).reshape(1), lambda: x.sum().reshape(1), None


def cumsum(normal, n):
    from tkc import kernels

    x = normal(n)
    return 4 * n, 0.85, lambda: kernels.cumsum(x), lambda: x.cumsum(0), None


def topk(k: int):
    """The row is read once; what is written is little."""

    def build(normal, r, c):
        import torch

        from tkc import kernels

        x = normal(r, c)
        return 2 * r * c, 0.5, lambda: kernels.topk(x, k), lambda: torch.topk(x, k), None

    return build


def transpose(normal, r, c):
    from tkc import kernels

    x = normal(r, c)
    return (
        4 * r * c,
        0.93,
        lambda: kernels.transpose(x),
        lambda: x.t().contiguous(),
        lambda: x.double().t(),
    )


OPERATIONS = (
    ("softmax", NORMS, softmax),
    ("layer_norm", NORMS, layer_norm),
    ("rms_norm", NORMS, rms_norm),
    ("layer_norm_backward", THREE, norm_backward(True)),
    ("rms_norm_backward", THREE, norm_backward(False)),
    ("cross_entropy", ((4096, 32768), (2048, 131072), (2039, 50257)), cross_entropy),
    ("rotary", ((4, 4096, 32, 128), (8, 2048, 16, 64), (3, 4093, 13, 128)), rotary),
    ("swiglu", ((16384, 8192), (8192, 14336), (8191, 4099)), swiglu),
    ("adam", ((16384, 8192), (8192, 8192), (8191, 4099)), adam),
    ("quantize", THREE, quantize),
    ("sum", ((1 << 30,),), total),
    ("cumsum", ((1 << 30,),), cumsum),
    ("topk", ((2048, 131072), (2039, 50257)), topk(50)),
    ("topk_of_experts", ((65536, 256),), topk(8)),
    ("transpose", ((16384, 8192), (8192, 8192), (8191, 4099)), transpose),
)
