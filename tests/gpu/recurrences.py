"""Small calls of the recurrences and fused losses of tkc.kernels, for tests/gpu/sanitized.py."""

from __future__ import annotations

from collections.abc import Callable

Give = Callable[..., object]


def linear(give: Give):
    from tkc import kernels as t

    shape = (2, 70, 2, 32)
    q, k, v, grad = (give(shape, "bfloat16", seed) for seed in range(4))
    g, first = give(shape[:3], seed=4), give((2, 2, 32, 32), seed=5)
    g = -abs(g)
    out, last = t.linear_attention(q, k, v, g, None, None, first)
    return out, *t.linear_attention_backward(
        grad, q, k, v, g, None, None, first, None, None, last, first
    )


def linear_step(give: Give):
    from tkc import kernels as t

    q, k, v = (give((3, 2, 32), "bfloat16", seed) for seed in range(3))
    state = give((3, 2, 32, 32), seed=3)
    return t.linear_attention_step(q, k, v, state), state


def convolution(give: Give):
    from tkc import kernels as t

    x, weight, bias = give((2, 21, 70)), give((70, 4), seed=1), give((70,), seed=2)
    y, state = t.causal_conv1d(x, weight, bias)
    back = t.causal_conv1d_backward(give((2, 21, 70), seed=3), x, weight, bias, state)
    return y, *back


def convolution_step(give: Give):
    from tkc import kernels as t

    x, weight, bias = give((2, 70)), give((70, 4), seed=1), give((70,), seed=2)
    state = give((2, 3, 70), seed=3)
    return t.causal_conv1d_step(x, weight, bias, state), state


def delta(give: Give):
    from tkc import kernels as t

    q, k, v = (give((1, 70, 2, 32), "bfloat16", seed) for seed in range(3))
    beta, first = abs(give((1, 70, 2), seed=3)), give((1, 2, 32, 32), seed=4)
    return t.delta_rule(q, k, v, beta, -beta, first, normalize=True)


def delta_step(give: Give):
    from tkc import kernels as t

    q, k, v = (give((1, 2, 32), "bfloat16", seed) for seed in range(3))
    beta, state = abs(give((1, 2), seed=3)), give((1, 2, 32, 32), seed=4)
    return t.delta_rule_step(q, k, v, beta, state, normalize=True), state


def delta_channels(give: Give):
    """Kimi delta attention; GLA is less of the same kernels."""
    from tkc import kernels as t

    shape = (1, 70, 2, 32)
    q, k, v, grad = (give(shape, "bfloat16", seed) for seed in range(4))
    beta, g, last = abs(give(shape[:3], seed=4)), -abs(give(shape, seed=5)), give((1, 2, 32, 32))
    given = (q, k, v, beta, g, last, None, None, None, True)
    return *t.delta_rule(*given), *t.delta_rule_backward(grad, *given, last)


def delta_backward(give: Give):
    from tkc import kernels as t

    shape = (1, 70, 2, 32)
    q, k, v, grad = (give(shape, "bfloat16", seed) for seed in range(4))
    beta, last = abs(give(shape[:3], seed=4)), give((1, 2, 32, 32), seed=5)
    return t.delta_rule_backward(grad, q, k, v, beta, -beta, last, None, None, None, True, last)


def rwkv(give: Give):
    from tkc import kernels as t

    # each step adds of the state to itself: many more of them give what no number holds
    shape = (1, 35, 2, 32)
    q, k, v, a, b, grad = (give(shape, "bfloat16", seed) for seed in range(6))
    g, last = -abs(give(shape, seed=6)), give((1, 2, 32, 32), seed=7)
    given = (q, g, k, v, a, b, last)
    return *t.rwkv7(*given), *t.rwkv7_backward(grad, *given, grad_final=last)


def rwkv_step(give: Give):
    from tkc import kernels as t

    q, g, k, v, a, b = (give((1, 2, 32), "bfloat16", seed) for seed in range(6))
    state = give((1, 2, 32, 32), seed=6)
    return t.rwkv7_step(q, -abs(g), k, v, a, b, state), state


def based(give: Give):
    from tkc import kernels as t

    q, k, v, grad = (give((1, 70, 2, 5), "bfloat16", seed) for seed in range(4))
    return *t.based(q, k, v), *t.based_backward(grad, q, k, v)


def based_step(give: Give):
    from tkc import kernels as t

    q, k, v = (give((1, 2, 5), "bfloat16", seed) for seed in range(3))
    state = abs(give((1, 2, 32, 21), seed=3))
    return t.based_step(q, k, v, state), state


def hedgehog(give: Give):
    from tkc import kernels as t

    q, k, v, grad = (give((1, 200, 2, 32), "bfloat16", seed) for seed in range(4))
    maps = [give((2, 32, 16), "bfloat16", seed) for seed in (4, 5)]
    alpha, beta = (abs(give((2,), seed=seed)) for seed in (6, 7))
    given = (q, k, v, *maps, alpha, beta)
    kept = t.hedgehog(*given)
    slopes = t.hedgehog_features_backward(t.hedgehog_features(q, maps[0]), q, maps[0])
    return *kept, *t.hedgehog_backward(grad, *given, *kept), *slopes


def gated_scan(give: Give):
    from tkc import kernels as t

    shape = (2, 21, 70)
    x, grad, g = give(shape), give(shape, seed=1), -abs(give(shape, seed=2))
    first, last = give((2, 70), seed=3), give((2, 70), seed=4)
    h, final = t.hgrn(x, g, first)
    return h, final, *t.hgrn_backward(grad, g, h, first, None, last)


def gated_scan_step(give: Give):
    from tkc import kernels as t

    x, g, state = give((2, 70)), -abs(give((2, 70), seed=1)), give((2, 70), seed=2)
    return t.hgrn_step(x, g, state), state


def scan(give: Give):
    from tkc import kernels as t

    x, z, grad = (give((1, 70, 2, 32), "bfloat16", seed) for seed in range(3))
    b, c = (give((1, 70, 1, 32), "bfloat16", seed) for seed in (3, 4))
    dt, last = give((1, 70, 2), seed=5), give((1, 2, 32, 32), seed=6)
    rate, skip, bias = -abs(give((2,), seed=7)), give((2,), seed=8), give((2,), seed=9)
    given = (x, dt, rate, b, c, skip, z, bias, True, last)
    out, final = t.ssd(*given)
    return out, final, *t.ssd_backward(grad, *given, None, final, last)


def scan_step(give: Give):
    from tkc import kernels as t

    x, z = (give((3, 2, 32), "bfloat16", seed) for seed in range(2))
    b, c = (give((3, 1, 32), "bfloat16", seed) for seed in (2, 3))
    dt, state = give((3, 2), seed=4), give((3, 2, 32, 32), seed=5)
    rate, skip, bias = -abs(give((2,), seed=6)), give((2,), seed=7), give((2,), seed=8)
    return t.ssd_step(x, dt, rate, b, c, state, skip, z, bias, True), state


def _selective(give: Give, row: tuple) -> tuple:
    """Operands of the selective scan for rows of positions."""
    x, dt, z = (give((*row, 70), seed=seed) for seed in range(3))
    b, c = (give((*row, 16), seed=seed) for seed in (3, 4))
    return x, dt, -abs(give((70, 16), seed=5)), b, c, give((70,), seed=6), z, give((70,), seed=7)


def selective(give: Give):
    from tkc import kernels as t

    given, last = (*_selective(give, (2, 21)), True), give((2, 70, 16), seed=8)
    grad = give((2, 21, 70), seed=9)
    y = t.selective_scan(*given, last)
    return *y, *t.selective_scan_backward(grad, *given, last, None, last)


def selective_step(give: Give):
    from tkc import kernels as t

    x, dt, a, b, c, *others = _selective(give, (2,))
    state = give((2, 70, 16), seed=8)
    return t.selective_scan_step(x, dt, a, b, c, state, *others, True), state


def linear_loss(give: Give):
    from tkc import kernels as t

    target = give((33,), "int64", 2, low=0, high=70)
    return t.linear_cross_entropy(give((33, 24)), give((70, 24), seed=1), target, part=16)


def library() -> dict[str, Callable[[Give], object]]:
    """Function of tkc.kernels -> a call of it; `+` joins names that one call covers."""
    return {
        "based + based_backward + taylor_features + taylor_features_backward"
        " + normalized_linear_attention + normalized_linear_attention_backward": based,
        "based_step + normalized_linear_attention_step": based_step,
        "delta_rule": delta,
        "delta_rule_backward": delta_backward,
        "delta_rule + delta_rule_backward": delta_channels,
        "delta_rule_step": delta_step,
        "causal_conv1d + causal_conv1d_backward": convolution,
        "causal_conv1d_step": convolution_step,
        "linear_attention + linear_attention_backward": linear,
        "linear_attention_step": linear_step,
        "linear_cross_entropy": linear_loss,
        "hedgehog + hedgehog_backward + hedgehog_features + hedgehog_features_backward": hedgehog,
        "hgrn + hgrn_backward": gated_scan,
        "hgrn_step": gated_scan_step,
        "rwkv7 + rwkv7_backward": rwkv,
        "rwkv7_step": rwkv_step,
        "selective_scan + selective_scan_backward": selective,
        "selective_scan_step": selective_step,
        "ssd + ssd_backward": scan,
        "ssd_step": scan_step,
    }
