"""Calls of the recurrences and fused losses of tkc.kernels: small ones for tests/gpu/sanitized.py,
those of models for tests/gpu/test_model_widths.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Give = Callable[..., object]
UNIT = 16  # features, and the columns of sums beside values, come in whole units (feature_maps.py)
# RWKV-7 takes no more than -exp(-1/2) of a state in a step
LEAST_DECAY = -0.6065306597126334


@dataclass(frozen=True)
class Sizes:
    """width: channels of a head; narrow, values: of the keys that features are made of, and of the
    values beside them; channels: of a row without heads; length: positions; few: positions of what
    goes row by row; steps: of what adds of its state to itself.
    """

    width: int = 32
    narrow: int = 5
    values: int = 5
    channels: int = 70
    length: int = 70
    few: int = 21
    steps: int = 35


SMALL = Sizes()
# 130 positions: two blocks of 64 and a rest. Based has 16 channels of keys.
MODELS = [
    Sizes(width, 16, width, channels=1000, length=130, few=130, steps=130) for width in (64, 128)
]


def linear(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    shape = (2, of.length, 2, of.width)
    q, k, v, grad = (give(shape, "bfloat16", seed) for seed in range(4))
    g, first = give(shape[:3], seed=4), give((2, 2, of.width, of.width), seed=5)
    g = -abs(g)
    out, _ = t.linear_attention(q, k, v, g, None, None, first)
    return out, *t.linear_attention_backward(grad, q, k, v, g, None, None, first, None, None, first)


def linear_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    q, k, v = (give((3, 2, of.width), "bfloat16", seed) for seed in range(3))
    state = give((3, 2, of.width, of.width), seed=3)
    return t.linear_attention_step(q, k, v, state), state


def convolution(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    x, weight, bias = (
        give((2, of.few, of.channels)),
        give((of.channels, 4), seed=1),
        give((of.channels,), seed=2),
    )
    y, state = t.causal_conv1d(x, weight, bias)
    back = t.causal_conv1d_backward(give((2, of.few, of.channels), seed=3), x, weight, bias, state)
    return y, *back


def convolution_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    x, weight, bias = (
        give((2, of.channels)),
        give((of.channels, 4), seed=1),
        give((of.channels,), seed=2),
    )
    state = give((2, 3, of.channels), seed=3)
    return t.causal_conv1d_step(x, weight, bias, state), state


def delta(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    q, k, v = (give((1, of.length, 2, of.width), "bfloat16", seed) for seed in range(3))
    beta, first = abs(give((1, of.length, 2), seed=3)), give((1, 2, of.width, of.width), seed=4)
    return t.delta_rule(q, k, v, beta, -beta, first, normalize=True)


def delta_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    q, k, v = (give((1, 2, of.width), "bfloat16", seed) for seed in range(3))
    beta, state = abs(give((1, 2), seed=3)), give((1, 2, of.width, of.width), seed=4)
    return t.delta_rule_step(q, k, v, beta, state, normalize=True), state


def delta_channels(give: Give, of: Sizes = SMALL):
    """Kimi delta attention; GLA is less of the same kernels."""
    from tkc import kernels as t

    shape = (1, of.length, 2, of.width)
    q, k, v, grad = (give(shape, "bfloat16", seed) for seed in range(4))
    beta, g, last = (
        abs(give(shape[:3], seed=4)),
        -abs(give(shape, seed=5)),
        give((1, 2, of.width, of.width)),
    )
    given = (q, k, v, beta, g, last, None, None, None, True)
    return *t.delta_rule(*given), *t.delta_rule_backward(grad, *given, last)


def delta_backward(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    shape = (1, of.length, 2, of.width)
    q, k, v, grad = (give(shape, "bfloat16", seed) for seed in range(4))
    beta, last = abs(give(shape[:3], seed=4)), give((1, 2, of.width, of.width), seed=5)
    return t.delta_rule_backward(grad, q, k, v, beta, -beta, last, None, None, None, True, last)


def rwkv(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    # each step adds of the state to itself: many more of them give what no number holds
    shape = (1, of.steps, 2, of.width)
    q, v, grad = (give(shape, "bfloat16", seed) for seed in (0, 2, 5))
    scale = 1.0 if of is SMALL else of.width**-0.5  # of rows of length 1: no state grows
    k, a, b = (give(shape, "bfloat16", seed, scale=scale) for seed in (1, 3, 4))
    g, last = -abs(give(shape, seed=6)), give((1, 2, of.width, of.width), seed=7)
    given = (q, g, k, v, a, b, last)
    return *t.rwkv7(*given), *t.rwkv7_backward(grad, *given, grad_final=last)


def rwkv_bounded(give: Give, of: Sizes = SMALL):
    """As a model of RWKV-7 has it: b takes away what was stored under -a, decays have a bound."""
    from tkc import kernels as t

    shape = (1, of.length, 2, of.width)
    q, v, grad = (give(shape, "bfloat16", seed) for seed in range(3))
    scales = (3, 1.0), (4, -1.0), (4, 0.5)
    k, a, b = (give(shape, "bfloat16", seed, scale=n * of.width**-0.5) for seed, n in scales)
    # no normal number of these is beyond five deviations
    g = -abs(give(shape, seed=5, scale=0.19 * LEAST_DECAY))
    given, last = (q, g, k, v, a, b), give((1, 2, of.width, of.width), seed=6)
    return *t.rwkv7(*given, last, least=LEAST_DECAY), *t.rwkv7_backward(
        grad, *given, last, grad_final=last, least=LEAST_DECAY
    )


def rwkv_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    q, g, k, v, a, b = (give((1, 2, of.width), "bfloat16", seed) for seed in range(6))
    state = give((1, 2, of.width, of.width), seed=6)
    return t.rwkv7_step(q, -abs(g), k, v, a, b, state), state


def based(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    q, k = (give((1, of.length, 2, of.narrow), "bfloat16", seed) for seed in range(2))
    v, grad = (give((1, of.length, 2, of.values), "bfloat16", seed) for seed in (2, 3))
    return *t.based(q, k, v), *t.based_backward(grad, q, k, v)


def based_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    q, k = (give((1, 2, of.narrow), "bfloat16", seed) for seed in range(2))
    v = give((1, 2, of.values), "bfloat16", 2)
    features = of.narrow * (of.narrow + 1) // 2 + of.narrow + 1
    state = abs(give((1, 2, -(-features // UNIT) * UNIT, of.values + UNIT), seed=3))
    return t.based_step(q, k, v, state), state


def hedgehog(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    q, k, v, grad = (give((1, 200, 2, of.width), "bfloat16", seed) for seed in range(4))
    maps = [give((2, of.width, 16), "bfloat16", seed) for seed in (4, 5)]
    alpha, beta = (abs(give((2,), seed=seed)) for seed in (6, 7))
    given = (q, k, v, *maps, alpha, beta)
    kept = t.hedgehog(*given)
    slopes = t.hedgehog_features_backward(t.hedgehog_features(q, maps[0]), q, maps[0])
    return *kept, *t.hedgehog_backward(grad, *given, *kept), *slopes


def gated_scan(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    shape = (2, of.few, of.channels)
    x, grad, g = give(shape), give(shape, seed=1), -abs(give(shape, seed=2))
    first, last = give((2, of.channels), seed=3), give((2, of.channels), seed=4)
    h, final = t.hgrn(x, g, first)
    return h, final, *t.hgrn_backward(grad, g, h, first, None, last)


def gated_scan_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    x, g, state = (
        give((2, of.channels)),
        -abs(give((2, of.channels), seed=1)),
        give((2, of.channels), seed=2),
    )
    return t.hgrn_step(x, g, state), state


def scan(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    x, z, grad = (give((1, of.length, 2, of.width), "bfloat16", seed) for seed in range(3))
    b, c = (give((1, of.length, 1, of.width), "bfloat16", seed) for seed in (3, 4))
    dt, last = give((1, of.length, 2), seed=5), give((1, 2, of.width, of.width), seed=6)
    rate, skip, bias = -abs(give((2,), seed=7)), give((2,), seed=8), give((2,), seed=9)
    given = (x, dt, rate, b, c, skip, z, bias, True, last)
    out, final = t.ssd(*given)
    return out, final, *t.ssd_backward(grad, *given, None, last)


def scan_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    x, z = (give((3, 2, of.width), "bfloat16", seed) for seed in range(2))
    b, c = (give((3, 1, of.width), "bfloat16", seed) for seed in (2, 3))
    dt, state = give((3, 2), seed=4), give((3, 2, of.width, of.width), seed=5)
    rate, skip, bias = -abs(give((2,), seed=6)), give((2,), seed=7), give((2,), seed=8)
    return t.ssd_step(x, dt, rate, b, c, state, skip, z, bias, True), state


def _selective(give: Give, row: tuple, of: Sizes) -> tuple:
    """Operands of the selective scan for rows of positions."""
    x, dt, z = (give((*row, of.channels), seed=seed) for seed in range(3))
    b, c = (give((*row, 16), seed=seed) for seed in (3, 4))
    return (
        x,
        dt,
        -abs(give((of.channels, 16), seed=5)),
        b,
        c,
        give((of.channels,), seed=6),
        z,
        give((of.channels,), seed=7),
    )


def selective(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    given, last = (*_selective(give, (2, of.few), of), True), give((2, of.channels, 16), seed=8)
    grad = give((2, of.few, of.channels), seed=9)
    y = t.selective_scan(*given, last)
    return *y, *t.selective_scan_backward(grad, *given, last, None, last)


def selective_step(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    x, dt, a, b, c, *others = _selective(give, (2,), of)
    state = give((2, of.channels, 16), seed=8)
    return t.selective_scan_step(x, dt, a, b, c, state, *others, True), state


def linear_loss(give: Give, of: Sizes = SMALL):
    from tkc import kernels as t

    tokens, hidden = of.steps - 2, of.width - 8
    target = give((tokens,), "int64", 2, low=0, high=of.channels)
    x, weight = give((tokens, hidden)), give((of.channels, hidden), seed=1)
    return t.linear_cross_entropy(x, weight, target, part=16)


def library() -> dict[str, Callable[..., object]]:
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
        "rwkv7 + rwkv7_backward, least": rwkv_bounded,
        "rwkv7_step": rwkv_step,
        "selective_scan + selective_scan_backward": selective,
        "selective_scan_step": selective_step,
        "ssd + ssd_backward": scan,
        "ssd_step": scan_step,
    }
