"""Layers of experts against float64: routing with groups and biases, the order by expert, the layer
and its gradients, float8 weights, what it becomes on GPUs.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers, torch_with_ops
from tkc import kernels
from tkc.kernels.experts import _layer

BF16 = ml_dtypes.bfloat16


def scores_of(logits, scoring):
    x = double(logits)
    if scoring == "sigmoid":
        return 1 / (1 + np.exp(-x))
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def chosen(logits, k, scoring, bias=None, groups=1, top_groups=0, best=2):
    """The experts of each token, by sorting."""
    wanted = scores_of(logits, scoring) + (0 if bias is None else double(bias))
    if top_groups:
        parts = wanted.reshape(len(wanted), groups, -1)
        of_group = np.sort(parts, 2)[:, :, -best:].sum(2)
        order = np.argsort(-of_group, 1, kind="stable")[:, :top_groups]
        kept = (np.arange(groups)[None, :, None] == order[:, None, :]).any(2)
        wanted = np.where(np.repeat(kept, parts.shape[2], 1), wanted, -np.inf)
    return np.argsort(-wanted, 1, kind="stable")[:, :k]


ROUTES = [
    (37, 6, 3, {}),
    (5, 128, 8, {"renormalize": False}),
    (9, 8, 2, {"scoring": "sigmoid", "scale": 2.5}),
    (17, 24, 5, {"scoring": "sigmoid", "groups": 4, "top_groups": 2, "bias": True}),
    (3, 20, 6, {"groups": 5, "top_groups": 3, "best_of_group": 1}),
    (1, 1, 1, {}),
    (33, 7, 7, {"groups": 7, "top_groups": 7}),
]


@pytest.mark.parametrize("tokens, count, k, options", ROUTES)
def test_routing(tokens, count, k, options):
    logits, given = numbers((tokens, count), scale=2), dict(options)
    if given.get("bias"):
        given["bias"] = numbers((count,), seed=1)
    scoring, scale = given.get("scoring", "softmax"), given.get("scale", 1.0)
    weights, experts = kernels.route(logits, k, **given)
    groups = {"groups": given.get("groups", 1), "top_groups": given.get("top_groups", 0)}
    best = given.get("best_of_group", 2)
    want = chosen(logits, k, scoring, given.get("bias"), **groups, best=best)
    assert np.array_equal(experts, want)
    score, renormalize = scores_of(logits, scoring), given.get("renormalize", True)

    def weigh(score):
        found = np.take_along_axis(score, want, 1)
        return scale * (found / found.sum(1, keepdims=True) if renormalize else found)

    close(weights, weigh(score), ulps=16)
    # the gradient, by differences of the formula in float64
    grad, step = numbers((tokens, k), seed=2), 1e-6
    slopes = np.zeros(logits.shape)
    for e in range(count):
        moved = double(logits)
        moved[:, e] += step
        up = weigh(scores_of(moved, scoring))
        moved[:, e] -= 2 * step
        down = weigh(scores_of(moved, scoring))
        slopes[:, e] = ((up - down) * double(grad)).sum(1) / (2 * step)
    found = kernels.route_backward(grad, logits, experts, scoring, renormalize, scale)
    assert np.abs(found - slopes).max() <= 1e-5 * max(1, np.abs(slopes).max())


def test_equal_scores_go_to_the_first():
    _, experts = kernels.route(np.zeros((2, 9), np.float32), 4)
    assert experts.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("tokens, k, count", [(37, 3, 6), (700, 8, 200), (1, 1, 1), (1100, 2, 5)])
def test_the_order_by_expert(tokens, k, count):
    experts = np.random.default_rng(0).integers(-1, count, (tokens, k)).astype(np.int32)
    order, places, ends = kernels.sort_by_expert(experts, count)
    pairs = experts.reshape(-1)
    want = np.argsort(np.where(pairs < 0, count, pairs), kind="stable")
    n = (pairs >= 0).sum()
    assert np.array_equal(order[:n], want[:n])
    assert np.array_equal(ends, np.cumsum(np.bincount(pairs[pairs >= 0], minlength=count)))
    assert (places[pairs < 0] == -1).all()
    assert np.array_equal(places[order[:n]], np.arange(n))


def layer(x, gate_up, down, weights, experts):
    """The result, and per pair the gates, in float64."""
    out, half = np.zeros(x.shape), down.shape[2]
    for t, j in np.ndindex(*experts.shape):
        if (e := experts[t, j]) >= 0:
            both = double(gate_up[e]) @ double(x[t])
            gate, up = both[:half], both[half:]
            hidden = gate / (1 + np.exp(-gate)) * up
            out[t] += double(weights[t, j]) * (double(down[e]) @ hidden)
    return out


def arguments(tokens, width, hidden, count, k, dtype="float32"):
    x, gate_up = numbers((tokens, width), dtype), numbers((count, 2 * hidden, width), dtype, 1)
    down, logits = numbers((count, width, hidden), dtype, 2), numbers((tokens, count), seed=3)
    weights, experts = kernels.route(logits, k)
    return x, gate_up, down, weights, experts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(37, 24, 20, 6, 3), (130, 40, 33, 3, 2), (1, 8, 8, 4, 4)])
def test_the_layer(shape, dtype):
    given = arguments(*shape, dtype)
    given[4].flat[0] = -1
    close(kernels.mixture_of_experts(*given), layer(*given), dtype, ulps=16)


@pytest.mark.parametrize("shape", [(37, 24, 20, 6, 3), (130, 40, 33, 3, 2)])
def test_rows_that_are_copied_in_order_first(shape, monkeypatch):
    given = arguments(*shape)
    given[4].flat[::5] = -1
    monkeypatch.setattr("tkc.kernels.experts._copies_in_order", lambda rows, target: True)
    close(kernels.mixture_of_experts(*given), layer(*given), ulps=16)


def gradients(x, gate_up, down, weights, experts, grad):
    dx, du, dd = np.zeros(x.shape), np.zeros(gate_up.shape), np.zeros(down.shape)
    dw, half = np.zeros(weights.shape), down.shape[2]
    for t, j in np.ndindex(*experts.shape):
        if (e := experts[t, j]) < 0:
            continue
        both = double(gate_up[e]) @ double(x[t])
        gate, up, w = both[:half], both[half:], double(weights[t, j])
        s = 1 / (1 + np.exp(-gate))
        dh = double(down[e]).T @ double(grad[t])
        dw[t, j] = dh @ (gate * s * up)
        dd[e] += w * np.outer(double(grad[t]), gate * s * up)
        slope = s * (1 + gate * (1 - s))
        of_both = w * np.concatenate([dh * up * slope, dh * gate * s])
        du[e] += np.outer(of_both, double(x[t]))
        dx[t] += double(gate_up[e]).T @ of_both
    return dx, du, dd, dw


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_the_layer(dtype):
    given, grad = arguments(37, 24, 20, 5, 3, dtype), numbers((37, 24), dtype, 5)
    given[4][3, 1] = -1
    _, *kept = _layer(*given)
    found = kernels.mixture_of_experts_backward(grad, *given[:4], *kept)
    for got, want in zip(found, gradients(*given, grad), strict=True):
        close(got, want, dtype, ulps=32)
    less = kernels.mixture_of_experts_backward(grad, *given[:4], *kept, False)
    assert less[1].size == less[2].size == 0 and np.array_equal(less[0], found[0])


def test_float8_weights():
    """Against the layer of what was quantized, in float64; x and the gated rows are quantized."""
    x, gate_up, down, weights, experts = arguments(50, 200, 128, 3, 2, "bfloat16")

    def short(w):
        parts = [kernels.quantize_blocks(m, 128, 128) for m in w]
        return (np.stack([p[i] for p in parts]) for i in range(2))

    (u, u_scale), (d, d_scale) = short(gate_up), short(down)

    def exact(q, scale):
        wide = np.repeat(np.repeat(double(scale), 128, 1), 128, 2)
        return double(q) * wide[:, : q.shape[1], : q.shape[2]]

    got = kernels.mixture_of_experts(x, u, d, weights, experts, u_scale, d_scale)
    want = layer(x, exact(u, u_scale), exact(d, d_scale), weights, experts)
    assert np.abs(double(got) - want).max() <= 0.06 * np.abs(want).max()


@pytest.mark.parametrize(
    "kind, group, rows", [("int4", 32, 7), ("nf4", 64, 20), ("fp4", 128, 9), ("int4", 128, 50)]
)
def test_weights_of_4_bits(kind, group, rows):
    """Against the layer of what was quantized, in float64."""
    x, gate_up, down, weights, experts = arguments(rows, 96, 80, 3, 2, "bfloat16")

    def packed(w):
        found = [kernels.quantize_packed(m, kind, group, scale_dtype="bfloat16") for m in w]
        words, scales, _ = (np.stack(parts) for parts in zip(*found, strict=True))
        wide = [
            kernels.dequantize_packed(m, s, None, w.shape[2], kind, group)
            for m, s in zip(words, scales, strict=True)
        ]
        return words, scales, np.stack(wide)

    (u, u_scale, wide_u), (d, d_scale, wide_d) = packed(gate_up), packed(down)
    given = x, u, d, weights, experts, u_scale, d_scale
    got = kernels.mixture_of_experts(*given, kind=kind, group=group)
    close(got, layer(x, wide_u, wide_d, weights, experts), "bfloat16", ulps=16)
    for change, said in (
        ({"down_scale": None}, r"give down_scale"),
        ({"gate_up_scale": u_scale[:, :5]}, r"gate_up_scale: expected the shape \[3, 160"),
        ({"kind": "int3"}, "kind is one of"),
        ({"down": d[..., :8]}, "down: expected the shape"),
    ):
        names = ["x", "gate_up", "down", "weights", "experts", "gate_up_scale", "down_scale"]
        form = {"kind": kind, "group": group, **dict(zip(names, given, strict=True))}
        with pytest.raises(tkc.LaunchError, match=said):
            kernels.mixture_of_experts(**form | change)


def test_weights_of_4_bits_on_gpus():
    """Decoded on the way to wgmma: of many rows, and of few."""
    count, width, hidden, k = 128, 2048, 768, 8
    words = [
        np.empty(s, np.int16) for s in ((count, 1536, width // 4), (count, width, hidden // 4))
    ]
    scales = [np.empty((*w.shape[:2], w.shape[2] // 32), BF16) for w in words]
    for tokens in (8192, 64):
        x, weights = np.empty((tokens, width), BF16), np.empty((tokens, k), np.float32)
        given = x, *words, weights, np.empty((tokens, k), np.int32), *scales
        assembles(lambda given=given: kernels.mixture_of_experts(*given))


def test_no_tokens_and_bad_arguments():
    x, gate_up, down, weights, experts = arguments(5, 8, 6, 4, 2)
    empty = kernels.mixture_of_experts(x[:0], gate_up, down, weights[:0], experts[:0])
    assert empty.shape == (0, 8)
    with pytest.raises(tkc.LaunchError, match=r"gate_up: expected the shape \[4, 12, 8\]"):
        kernels.mixture_of_experts(x, gate_up[:, 1:], down, weights, experts)
    with pytest.raises(tkc.LaunchError, match="one element type"):
        kernels.mixture_of_experts(x, gate_up, down.astype(BF16), weights, experts)
    f8 = ml_dtypes.float8_e4m3fn
    with pytest.raises(tkc.LaunchError, match="hidden is a multiple of 128"):
        kernels.mixture_of_experts(x, gate_up.astype(f8), down.astype(f8), weights, experts)
    with pytest.raises(tkc.LaunchError, match="do not make 3 groups"):
        kernels.route(numbers((2, 8)), 2, groups=3)
    with pytest.raises(tkc.LaunchError, match="take more groups"):
        kernels.route(numbers((2, 8)), 5, groups=4, top_groups=2)
    with pytest.raises(tkc.LaunchError, match="'softmax' or 'sigmoid'"):
        kernels.route(numbers((2, 8)), 2, "tanh")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_in_threads(target, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    given = arguments(70, 64, 64, 3, 2, "bfloat16")
    close(kernels.mixture_of_experts(*given), layer(*given), "bfloat16", ulps=16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_on_gpus(dtype):
    """Without spills; on Hopper every product on wgmma, gathered rows copied by a role."""
    tokens, width, hidden, count, k = 8192, 2048, 768, 128, 8
    short = dtype != "bfloat16"
    kind = np.dtype(getattr(ml_dtypes, dtype))
    x, logits = np.empty((tokens, width), BF16), np.empty((tokens, count), BF16)
    gate_up, down = (np.empty(s, kind) for s in ((count, 1536, width), (count, width, hidden)))
    weights, experts = np.empty((tokens, k), np.float32), np.empty((tokens, k), np.int32)
    scales = [np.empty((count, 12, 16), np.float32), np.empty((count, 16, 6), np.float32)]
    rows = [np.empty(tokens * k, np.int32)] * 2
    kept = np.empty((tokens * k, 1536), BF16)

    def layer():
        kernels.mixture_of_experts(x, gate_up, down, weights, experts, *(scales if short else ()))

    def whole():
        kernels.route(logits, k)
        kernels.route_backward(weights, logits, experts)
        layer()
        kernels.mixture_of_experts_backward(
            x, x, gate_up, down, weights, *rows, np.empty(count, np.int32), kept
        )

    assembles(layer if short else whole)


def test_gradients_of_torch():
    torch = torch_with_ops()
    from tests.kernels.test_torch import DEVICE, same_gradients, tensors

    x, gate_up, down, logits = tensors((9, 8), (4, 12, 8), (4, 8, 6), (9, 4))

    def ours(x, gate_up, down, logits):
        weights, experts = kernels.route(logits, 2)
        return kernels.mixture_of_experts(x, gate_up, down, weights, experts)

    def plain(x, gate_up, down, logits):
        weights, experts = logits.softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for j in range(2):
            both = torch.einsum("th,tfh->tf", x, gate_up[experts[:, j]])
            gate, up = both.chunk(2, -1)
            hidden = torch.nn.functional.silu(gate) * up
            out = out + weights[:, j, None] * torch.einsum(
                "tf,thf->th", hidden, down[experts[:, j]]
            )
        return out

    same_gradients(ours, plain, x, gate_up, down, logits, tolerance=2e-4)

    def packed(w):
        parts = [kernels.quantize_packed(m.detach(), "nf4", 32) for m in w]
        wide = [
            kernels.dequantize_packed(p[0], p[1], None, w.shape[2], "nf4", 32, "float32")
            for p in parts
        ]
        return *(torch.stack([p[i] for p in parts]) for i in range(2)), torch.stack(wide)

    (u, u_scale, wide_u), (d, d_scale, wide_d) = packed(gate_up), packed(down)

    def of_four_bits(x, logits):
        weights, experts = kernels.route(logits, 2)
        given = x, u, d, weights, experts, u_scale, d_scale
        return kernels.mixture_of_experts(*given, kind="nf4", group=32)

    of_dense = lambda x, logits: plain(x, wide_u, wide_d, logits)  # noqa: E731
    same_gradients(of_four_bits, of_dense, x, logits, tolerance=2e-4)
    weights, experts = kernels.route(logits.detach(), 2)
    given = x, gate_up, down, weights.to(DEVICE), experts
    forwards = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(torch.ops.tkc.mixture_of_experts, given, test_utils=forwards)
    # the other utility takes gradients of every result, those kept for gradients included
    detached = [array.detach() for array in given]
    torch.library.opcheck(torch.ops.tkc.mixture_of_experts, detached)
