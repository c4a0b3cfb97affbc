"""Small calls of the layers of models in tkc.kernels, for tests/gpu/sanitized.py."""

from __future__ import annotations

from collections.abc import Callable

Give = Callable[..., object]


def experts(give: Give):
    from tkc import kernels as t
    from tkc.kernels.experts import _layer

    weights, which = t.route(give((37, 5)), 2)
    x, gate_up, down = (
        give(s, "bfloat16", i) for i, s in enumerate(((37, 24), (5, 40, 24), (5, 24, 20)))
    )
    out, *kept = _layer(x, gate_up, down, weights, which)
    back = t.mixture_of_experts_backward(out, x, gate_up, down, weights, *kept)
    return weights, out, *back, t.route_backward(weights, give((37, 5)), which)


def sorted_pairs(give: Give):
    from tkc import kernels as t

    return t.sort_by_expert(give((700, 3), "int32", 1, low=0, high=9), 9)


def packed(give: Give):
    from tkc import kernels as t

    words, scales, zeros = t.quantize_packed(give((70, 100)), "int4", 32, True)
    x = give((33, 100), "bfloat16", 1)
    return (
        words,
        t.packed_matmul(x, words, scales, zeros, group=32),
        t.dequantize_packed(words, scales, zeros, 100, group=32),
    )


def repacked(give: Give):
    from tkc import kernels as t

    source = give((12, 72), "int32", 1, low=0, high=1 << 30)
    return t.pack_codes(source, "gptq"), t.unpack_zeros(source, "awq")


def convolution(give: Give, each: bool):
    from tkc import kernels as t

    shape, taps = ((2, 7, 6, 20), (20 if each else 12, 3, 3, 1 if each else 20))
    x, w = give(shape), give(taps, seed=1)
    y = t.conv(x, w, give(taps[:1], seed=2), 2, 1, activation="silu")
    return y, *t.conv_backward(y, x, w, 1, 2, 2, 0, 1, 1)


def boxed_convolution(give: Give):
    """Positions that are boxes, with a stride and without, of several images and one."""
    from tkc import kernels as t

    found: list = []
    for images, stride in ((4, 2), (16, 1), (1, 1)):
        x, w = give((images, 8, 12, 24), "bfloat16"), give((40, 3, 3, 24), "bfloat16", 1)
        y = t.conv(x, w, stride=stride, padding=1)
        found += y, *t.conv_backward(y, x, w, 1, stride, stride, 0, 1, 1)
    return tuple(found)


def tokens(give: Give):
    from tkc import kernels as t

    return t.sample(give((3, 500)), 7, 0.8, 20, 0.9), t.argmax(give((3, 500)))


def beams(give: Give):
    from tkc import kernels as t

    parents = give((2, 5), "int64", 1, low=0, high=4)
    return *t.sort(give((3, 1500))), t.beam_gather(give((2, 4, 33)), parents)


def losses(give: Give):
    from tkc import kernels as t

    x, y = t.log_softmax(give((3, 500))), t.log_softmax(give((3, 500), seed=1))
    a, b, c, d = (give((700,), seed=i) for i in range(4))
    return (
        t.divergence(x, y, "jsd"),
        t.divergence_backward(a[:3], x, y, "jsd"),
        t.preference_loss(a, b, c, d),
        t.kto_loss(a, b, c, d),
        t.grpo_loss(a, b, c, d),
    )


def rows(give: Give):
    from tkc import kernels as t

    x, g, w, a = give((7, 130)), give((7, 130), seed=1), give((130,), seed=2), give((1,), seed=3)
    y = t.sparsemax(x)
    return (
        t.dyt(x, a, w, w),
        *t.dyt_backward(g, x, a, w),
        y,
        t.sparsemax_backward(g, y),
        *t.dropout_add_layer_norm(x, g, w, w, 0.3, 42),
    )


def groups(give: Give):
    from tkc import kernels as t

    x, g, w = give((2, 12, 77)), give((2, 12, 77), seed=1), give((12,), seed=2)
    return (
        t.group_norm(x, 3, w, w, silu=True),
        *t.group_norm_backward(g, x, 3, w, w, silu=True),
    )


def linear_layers(give: Give):
    from tkc import kernels as t
    from tkc.kernels.mlp import _mlp

    x, up, down = give((21, 24)), give((40, 24), seed=1), give((18, 20), seed=2)
    y, kept, held = _mlp(x, up, down)
    low = t.lora_linear(x, up, give((8, 24), seed=3), give((40, 8), seed=4), 0.5)
    added = t.linear_gate_add(x[None], up, give((1, 40)), give((1, 21, 40)), give((40,)))
    return t.gated_mlp(x, up, down), y, *t.gated_mlp_backward(held, kept), *low, added


def steps(give: Give):
    from tkc import kernels as t

    p, g, m, v = (give((1000,), seed=i) for i in range(4))
    t.adam_variant_(p, g, m, v * v, 3, "radam")
    t.lion_(p, g, m)
    return p, m


def fourier(give: Give):
    from tkc import kernels as t

    found: list = []
    for length in (100, 512):  # a row that is no whole number of lines, and one that is
        u, k = give((3, 2, length)), give((2, length), seed=1)
        g = give((3, 2, length), seed=2)
        found += t.fft_conv(u, k), *t.fft_conv_backward(g, u, k)
    return *found, *t.fft(give((2, 256)))


def library() -> dict[str, Callable[[Give], object]]:
    """Function of tkc.kernels -> a call of it; `+` joins names that one call covers."""
    return {
        "route + route_backward + mixture_of_experts + mixture_of_experts_backward": experts,
        "sort_by_expert": sorted_pairs,
        "packed_matmul + quantize_packed + dequantize_packed": packed,
        "pack_codes + unpack_zeros": repacked,
        "conv + conv_backward": lambda give: (
            *convolution(give, False),
            *convolution(give, True),
            *boxed_convolution(give),
        ),
        "sample + argmax": tokens,
        "sort + beam_gather": beams,
        "divergence + divergence_backward + preference_loss + kto_loss + grpo_loss": losses,
        "dyt + dyt_backward + sparsemax + sparsemax_backward + dropout_add_layer_norm": rows,
        "group_norm + group_norm_backward": groups,
        "gated_mlp + gated_mlp_backward + lora_linear + linear_gate_add": linear_layers,
        "adam_variant_ + lion_": steps,
        "fft + fft_conv + fft_conv_backward": fourier,
    }
