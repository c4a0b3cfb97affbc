"""Recurrences against flash-linear-attention or mamba and a copy of the bytes that have to move.

Shapes are those that the other library's own tables have. `contests` yields one race an operation
and shape; BENCH_ONLY=conv1d,kda-1x8192x96 in the environment picks some. Without that library the
race is against the copy alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import exp
from typing import Any

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner
from benchmarks.memory_bound import first, normal_of
from benchmarks.vector_add import copy

LEAST_DECAY = -exp(-0.5)  # of RWKV-7's logarithms of decays
SHAPES = ((4, 2048, 16), (2, 16384, 16), (1, 8192, 96))
# and heads of q and k, as Qwen 3.5 has them, also on one of eight GPUs
RULED = (*SHAPES, (1, 8192, 64, 16), (4, 8192, 64, 16), (1, 32768, 8, 2))
FEATURED = ((16, 4096, 16), (16, 1024, 16))
STRIPS = ((8, 2048, 2048), (1, 32768, 4096))
CONVOLVED = ((8, 2048, 5376), (1, 32768, 4096), (1, 65536, 1024))
RIVALS = {"ssd": "mamba", "ssd_backward": "mamba"}  # where it is another library than fla


def _rival(path: str) -> Any:
    """A function of flash-linear-attention; None where the library is not there."""
    from importlib import import_module

    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ImportError:
        return None


def _race(name: str, moved: int, ours: Callable, theirs: Callable | None) -> Contest:
    """ours and theirs: functions of nothing; moved: bytes that one run reads and writes."""
    racers = [Contestant("tkc", lambda: Runner(lambda: first(ours())), "ours")]
    if theirs is not None:
        rival = RIVALS.get(name.partition("-")[0], "fla")
        racers.append(Contestant(rival, lambda: Runner(lambda: first(theirs()))))
    racers.append(Contestant("copy of as many bytes", lambda: Runner(copy(moved // 2)), "bound"))
    return Contest(
        name,
        f"{name}, bfloat16",
        tuple(racers),
        harness.gpu_timer,
        harness.GPU_TIMING,
        None,
        1e-2,
        amount=moved / 1e9,
        unit="GB/s",
    )


def _operands(normal: Callable, batch: int, length: int, heads: int, keys: int = 0) -> tuple:
    """q, k, v and a logarithm of decays; keys: heads of q and k, where they are fewer."""
    q, k, v = (normal(batch, length, n or heads, 128) for n in (keys, keys, 0))
    return q, k, v, -normal(batch, length, heads).float().abs() / 10


def simple_gla(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, g = _operands(normal, batch, length, heads)
    rival = _rival("fla.ops.simple_gla.chunk_simple_gla")
    return (
        8 * q.numel(),
        lambda: kernels.linear_attention(q, k, v, g),
        rival and (lambda: rival(q, k, v, g)),
    )


def simple_gla_backward(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, g = _operands(normal, batch, length, heads)
    grad = normal(*v.shape)
    return (
        14 * q.numel(),
        lambda: kernels.linear_attention_backward(grad, q, k, v, g),
        _backward(_rival("fla.ops.simple_gla.chunk_simple_gla"), (q, k, v, g), grad),
    )


def retention(normal, batch, length, heads):
    """Each head decays by a constant of its own."""
    import torch

    from tkc import kernels

    q, k, v, _ = _operands(normal, batch, length, heads)
    rates = torch.log(1 - 2.0 ** (-5 - torch.arange(heads, device=q.device)))
    rival = _rival("fla.ops.retention.chunk_retention")
    return (
        8 * q.numel(),
        lambda: kernels.linear_attention(q, k, v, None, rates),
        rival and (lambda: rival(q, k, v)),
    )


def linear_attention(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, _ = _operands(normal, batch, length, heads)
    rival = _rival("fla.ops.linear_attn.chunk_linear_attn")
    return (
        8 * q.numel(),
        lambda: kernels.linear_attention(q, k, v),
        rival and (lambda: rival(q, k, v, normalize=False)),
    )


def linear_attention_backward(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, _ = _operands(normal, batch, length, heads)
    grad = normal(*v.shape)
    rival = _rival("fla.ops.linear_attn.chunk_linear_attn")
    return (
        14 * q.numel(),
        lambda: kernels.linear_attention_backward(grad, q, k, v),
        _backward(rival, (q, k, v), grad, normalize=False),
    )


def _featured(normal, batch, length, heads):
    """q, k and v as ThunderKittens ships Based: 16 channels, 64 columns."""
    return [normal(batch, length, heads, width) for width in (16, 16, 64)]


def based(normal, batch, length, heads):
    from tkc import kernels

    q, k, v = _featured(normal, batch, length, heads)
    rival = _rival("fla.ops.based.fused_chunk_based")
    return (
        4 * (q.numel() + v.numel()),
        lambda: kernels.based(q, k, v),
        rival and (lambda: rival(q, k, v)),
    )


def based_backward(normal, batch, length, heads):
    from tkc import kernels

    q, k, v = _featured(normal, batch, length, heads)
    grad, rival = normal(*v.shape), _rival("fla.ops.based.fused_chunk_based")
    whole = rival and (lambda *inputs: (rival(*inputs),))
    return (
        6 * q.numel() + 6 * v.numel(),
        lambda: kernels.based_backward(grad, q, k, v),
        _backward(whole, (q, k, v), grad),
    )


def _hedged(normal, batch, length, heads):
    """q, k, v, both maps, alpha and beta as ThunderKittens ships Hedgehog."""
    q, k, v = (normal(batch, length, heads, 128) for _ in range(3))
    maps = [normal(heads, 128, 64) / 8 for _ in range(2)]
    return (q, k, v, *maps, *(normal(heads).float().abs() for _ in range(2)))


def hedgehog(normal, batch, length, heads):
    from tkc import kernels

    given = _hedged(normal, batch, length, heads)
    return 8 * given[0].numel(), lambda: kernels.hedgehog(*given), None


def hedgehog_backward(normal, batch, length, heads):
    from tkc import kernels

    given = _hedged(normal, batch, length, heads)
    grad, kept = normal(*given[2].shape), kernels.hedgehog(*given)
    moved = 14 * given[0].numel()
    return moved, lambda: kernels.hedgehog_backward(grad, *given, *kept), None


def _ruled(normal, batch, length, heads):
    """q, k of length 1, v and beta."""
    q, k, v, _ = _operands(normal, batch, length, heads)
    q, k = (x / x.float().norm(dim=-1, keepdim=True).to(x.dtype) for x in (q, k))
    return q, k, v, normal(batch, length, heads).float().sigmoid()


def delta_rule(normal, batch, length, heads):
    from tkc import kernels

    given = _ruled(normal, batch, length, heads)
    rival = _rival("fla.ops.delta_rule.chunk_delta_rule")
    return (
        8 * given[0].numel(),
        lambda: kernels.delta_rule(*given),
        rival and (lambda: rival(*given)),
    )


def delta_rule_backward(normal, batch, length, heads):
    from tkc import kernels

    given, grad = _ruled(normal, batch, length, heads), normal(batch, length, heads, 128)
    return (
        14 * grad.numel(),
        lambda: kernels.delta_rule_backward(grad, *given),
        _backward(_rival("fla.ops.delta_rule.chunk_delta_rule"), given, grad),
    )


def gated_delta_rule(normal, *shape):
    from tkc import kernels

    q, k, v, g = _operands(normal, *shape)
    beta = normal(*g.shape).float().sigmoid()
    rival = _rival("fla.ops.gated_delta_rule.chunk_gated_delta_rule")
    return (
        4 * (q.numel() + v.numel()),
        lambda: kernels.delta_rule(q, k, v, beta, g, normalize=True),
        rival and (lambda: rival(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)),
    )


def _backward(rival, operands, grad, **options):
    """A function that runs the other library's backward pass; None without that library."""
    if rival is None:
        return None
    inputs = [x.detach().requires_grad_() for x in operands]
    out = rival(*inputs, **options)[0]

    def run():
        for x in inputs:
            x.grad = None
        out.backward(grad, retain_graph=True)
        return inputs[0].grad

    return run


def gated_delta_rule_backward(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, g = _operands(normal, batch, length, heads)
    beta, grad = normal(batch, length, heads).float().sigmoid(), normal(*v.shape)
    rival = _rival("fla.ops.gated_delta_rule.chunk_gated_delta_rule")
    return (
        14 * q.numel(),
        lambda: kernels.delta_rule_backward(grad, q, k, v, beta, g, normalize=True),
        _backward(rival, (q, k, v, g, beta), grad, use_qk_l2norm_in_kernel=True),
    )


def gla(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, _ = _operands(normal, batch, length, heads)
    g = -normal(*q.shape).float().abs() / 10
    rival = _rival("fla.ops.gla.chunk_gla")
    return (
        12 * q.numel(),
        lambda: kernels.linear_attention(q, k, v, g),
        rival and (lambda: rival(q, k, v, g)),
    )


def gla_backward(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, _ = _operands(normal, batch, length, heads)
    g, grad = -normal(*q.shape).float().abs() / 10, normal(*v.shape)
    return (
        22 * q.numel(),
        lambda: kernels.linear_attention_backward(grad, q, k, v, g),
        _backward(_rival("fla.ops.gla.chunk_gla"), (q, k, v, g), grad),
    )


def kda(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, _ = _operands(normal, batch, length, heads)
    g, beta = -normal(*q.shape).float().abs() / 10, normal(*q.shape[:3]).float().sigmoid()
    rival = _rival("fla.ops.kda.chunk_kda")
    return (
        12 * q.numel(),
        lambda: kernels.delta_rule(q, k, v, beta, g, normalize=True),
        rival and (lambda: rival(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)),
    )


def kda_backward(normal, batch, length, heads):
    from tkc import kernels

    q, k, v, _ = _operands(normal, batch, length, heads)
    g, beta = -normal(*q.shape).float().abs() / 10, normal(*q.shape[:3]).float().sigmoid()
    grad, rival = normal(*v.shape), _rival("fla.ops.kda.chunk_kda")
    return (
        22 * q.numel(),
        lambda: kernels.delta_rule_backward(grad, q, k, v, beta, g, normalize=True),
        _backward(rival, (q, k, v, g, beta), grad, use_qk_l2norm_in_kernel=True),
    )


def _of_rwkv(normal, batch, length, heads, width):
    """r, w, k, v, a and b as RWKV-7 makes them: w from -exp(-½) to 0, a of length 1."""
    r, k, v, a = (normal(batch, length, heads, width) for _ in range(4))
    w, rate = (normal(*r.shape).float().sigmoid() for _ in range(2))
    toward = a.float() / a.float().norm(dim=-1, keepdim=True)
    a, b = -toward.to(r.dtype), (toward * rate).to(r.dtype)
    return r, (w * LEAST_DECAY).to(r.dtype), k * width**-0.5, v, a, b


def rwkv7(normal, batch, length, heads, width):
    from tkc import kernels

    given = _of_rwkv(normal, batch, length, heads, width)
    rival = _rival("fla.ops.rwkv7.chunk_rwkv7")
    return (
        14 * given[0].numel(),
        lambda: kernels.rwkv7(*given, least=LEAST_DECAY),
        rival and (lambda: rival(*given, lower_bound=LEAST_DECAY)),
    )


def rwkv7_backward(normal, batch, length, heads, width):
    from tkc import kernels

    given = _of_rwkv(normal, batch, length, heads, width)
    grad = normal(*given[3].shape)
    rival = _rival("fla.ops.rwkv7.chunk_rwkv7")
    return (
        26 * given[0].numel(),
        lambda: kernels.rwkv7_backward(grad, *given, least=LEAST_DECAY),
        _backward(rival, given, grad, lower_bound=LEAST_DECAY),
    )


def _scanned(normal, batch, length, heads):
    """x, dt, A, B, C of Mamba-2 2.7B's widths, and what moves forward."""
    x, dt = normal(batch, length, heads, 64), normal(batch, length, heads).float()
    b, c = (normal(batch, length, 1, 128) for _ in range(2))
    return (x, dt, -normal(heads).float().abs(), b, c), 4 * x.numel() + 4 * b.numel()


def ssd(normal, batch, length, heads):
    from tkc import kernels

    given, moved = _scanned(normal, batch, length, heads)
    rival = _rival("mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan_combined")
    return (
        moved,
        lambda: kernels.ssd(*given, softplus=True),
        rival and (lambda: rival(*given, chunk_size=256, dt_softplus=True)),
    )


def ssd_backward(normal, batch, length, heads):
    from tkc import kernels

    given, moved = _scanned(normal, batch, length, heads)
    grad = normal(*given[0].shape)
    rival = _rival("mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan_combined")
    whole = rival and (lambda *inputs, **options: (rival(*inputs, **options),))
    return (
        2 * moved,
        lambda: kernels.ssd_backward(grad, *given, softplus=True),
        _backward(whole, given, grad, chunk_size=256, dt_softplus=True),
    )


def _selected(normal, batch, length, channels):
    """x, dt, A, B, C, D, z and the bias of dt of Mamba-1, with 16 numbers a channel."""
    x, dt, z = (normal(batch, length, channels) for _ in range(3))
    b, c = (normal(batch, length, 16) for _ in range(2))
    rate = -normal(channels, 16).float().abs()
    skip, bias = (normal(channels).float() for _ in range(2))
    return x, dt - 2, rate, b, c, skip, z, bias


def selective_scan(normal, batch, length, channels):
    from tkc import kernels

    given = _selected(normal, batch, length, channels)
    return 8 * given[0].numel(), lambda: kernels.selective_scan(*given, softplus=True), None


def selective_scan_backward(normal, batch, length, channels):
    from tkc import kernels

    given = _selected(normal, batch, length, channels)
    grad = normal(*given[0].shape)
    return (
        14 * grad.numel(),
        lambda: kernels.selective_scan_backward(grad, *given, softplus=True),
        None,  # mamba's is CUDA, which has to be built
    )


def hgrn(normal, batch, length, channels):
    from tkc import kernels

    x, g = normal(batch, length, channels), -normal(batch, length, channels).abs()
    rival = _rival("fla.ops.hgrn.chunk_hgrn")
    return 6 * x.numel(), lambda: kernels.hgrn(x, g), rival and (lambda: rival(x, g))


def hgrn_backward(normal, batch, length, channels):
    from tkc import kernels

    x, g = normal(batch, length, channels), -normal(batch, length, channels).abs()
    h, grad = kernels.hgrn(x, g)[0], normal(*x.shape)
    return (
        10 * x.numel(),
        lambda: kernels.hgrn_backward(grad, g, h),
        _backward(_rival("fla.ops.hgrn.chunk_hgrn"), (x, g), grad),
    )


def conv1d_backward(normal, batch, length, channels):
    from tkc import kernels

    x, weight, bias = normal(batch, length, channels), normal(channels, 4), normal(channels)
    grad = normal(*x.shape)
    return (
        6 * x.numel(),
        lambda: kernels.causal_conv1d_backward(grad, x, weight, bias),
        _backward(
            _rival("fla.modules.convolution.causal_conv1d"),
            (x, weight, bias),
            grad,
            activation="silu",
        ),
    )


def _stepped(normal, batch, heads, width):
    """q, k, v of one position, a number a channel of decays, and the state."""
    q, k, v = (normal(batch, heads, width) for _ in range(3))
    g, state = -normal(*q.shape).float().abs() / 10, normal(*q.shape, width).float()
    return q, k, v, g, state


def gated_delta_rule_step(normal, batch, heads, width):
    rival = _rival("fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule")
    return _delta_rule_step(normal, batch, heads, width, rival, by_channels=False)


def kda_step(normal, batch, heads, width):
    rival = _rival("fla.ops.kda.fused_recurrent_kda")
    return _delta_rule_step(normal, batch, heads, width, rival, by_channels=True)


def _delta_rule_step(normal, batch, heads, width, rival, by_channels):
    """by_channels: each has a decay of its own, not each head."""
    from tkc import kernels

    q, k, v, g, state = _stepped(normal, batch, heads, width)
    if not by_channels:
        g = g[..., 0].contiguous()
    beta = normal(batch, heads).float().sigmoid()
    row = [x[:, None] for x in (q, k, v, g, beta)]
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return (
        8 * state.numel(),
        lambda: kernels.delta_rule_step(q, k, v, beta, state, g, normalize=True),
        rival and (lambda: rival(*row, initial_state=state, **options)),
    )


def simple_gla_step(normal, batch, heads, width):
    from tkc import kernels

    q, k, v, g, state = _stepped(normal, batch, heads, width)
    g, rival = g[..., 0].contiguous(), _rival("fla.ops.simple_gla.fused_recurrent_simple_gla")
    row = [x[:, None] for x in (q, k, v, g)]
    return (
        8 * state.numel(),
        lambda: kernels.linear_attention_step(q, k, v, state, g),
        rival and (lambda: rival(*row, initial_state=state, output_final_state=True)),
    )


def rwkv7_step(normal, batch, heads, width):
    from tkc import kernels

    given = [x[:, 0] for x in _of_rwkv(normal, batch, 1, heads, width)]
    state = normal(batch, heads, width, width).float()
    return 8 * state.numel(), lambda: kernels.rwkv7_step(*given, state), None


def ssd_step(normal, batch, heads, columns, width):
    from tkc import kernels

    x, dt = normal(batch, heads, columns), normal(batch, heads).float()
    rates, (b, c) = -normal(heads).float().abs(), (normal(batch, 1, width) for _ in range(2))
    state = normal(batch, heads, width, columns).float()
    ours = lambda: kernels.ssd_step(x, dt, rates, b, c, state, softplus=True)  # noqa: E731
    return 8 * state.numel(), ours, None


def selective_scan_step(normal, batch, channels):
    from tkc import kernels

    x, dt, rate, b, c, skip, z, bias = _selected(normal, batch, 1, channels)
    x, dt, b, c, z = (v[:, 0] for v in (x, dt, b, c, z))
    state = normal(batch, channels, 16).float()
    return (
        8 * state.numel(),
        lambda: kernels.selective_scan_step(x, dt, rate, b, c, state, skip, z, bias, softplus=True),
        None,
    )


def conv1d(normal, batch, length, channels):
    from tkc import kernels

    x, weight, bias = normal(batch, length, channels), normal(channels, 4), normal(channels)
    rival = _rival("fla.modules.convolution.causal_conv1d")
    return (
        4 * x.numel(),
        lambda: kernels.causal_conv1d(x, weight, bias),
        rival and (lambda: rival(x, weight, bias, activation="silu")),
    )


OPERATIONS = (
    ("simple_gla", SHAPES, simple_gla),
    ("simple_gla_backward", SHAPES, simple_gla_backward),
    ("retention", SHAPES, retention),
    ("linear_attention", SHAPES, linear_attention),
    ("linear_attention_backward", SHAPES, linear_attention_backward),
    ("based", FEATURED, based),
    ("based_backward", FEATURED, based_backward),
    ("hedgehog", FEATURED[:1], hedgehog),
    ("hedgehog_backward", FEATURED[:1], hedgehog_backward),
    ("delta_rule", SHAPES, delta_rule),
    ("delta_rule_backward", SHAPES, delta_rule_backward),
    ("gated_delta_rule", RULED, gated_delta_rule),
    ("gated_delta_rule_backward", SHAPES, gated_delta_rule_backward),
    ("gla", SHAPES, gla),
    ("gla_backward", SHAPES, gla_backward),
    ("kda", SHAPES, kda),
    ("kda_backward", SHAPES, kda_backward),
    ("rwkv7", ((4, 2048, 32, 64), (4, 2048, 16, 128)), rwkv7),
    ("rwkv7_backward", ((4, 2048, 32, 64), (4, 2048, 16, 128)), rwkv7_backward),
    ("ssd", ((8, 2048, 80), (2, 8192, 80)), ssd),
    ("ssd_backward", ((8, 2048, 80), (2, 8192, 80)), ssd_backward),
    ("selective_scan", ((8, 2048, 5120), (1, 16384, 4096)), selective_scan),
    ("selective_scan_backward", ((8, 2048, 5120), (1, 16384, 4096)), selective_scan_backward),
    ("hgrn", STRIPS, hgrn),
    ("hgrn_backward", STRIPS, hgrn_backward),
    ("conv1d", CONVOLVED, conv1d),
    ("conv1d_backward", CONVOLVED, conv1d_backward),
    ("simple_gla_step", ((64, 32, 128),), simple_gla_step),
    ("gated_delta_rule_step", ((64, 32, 128),), gated_delta_rule_step),
    ("kda_step", ((64, 32, 128),), kda_step),
    ("rwkv7_step", ((64, 32, 64), (64, 32, 128)), rwkv7_step),
    ("ssd_step", ((64, 80, 64, 128),), ssd_step),
    ("selective_scan_step", ((64, 5120),), selective_scan_step),
)


def contests(seed: int) -> Iterator[Contest]:
    import torch

    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, shapes, build in OPERATIONS:
        for shape in shapes:
            full = f"{name}-{'x'.join(map(str, shape))}"
            if not only or only & {name, full}:
                torch.cuda.empty_cache()
                yield _race(full, *build(normal_of(seed), *shape))
