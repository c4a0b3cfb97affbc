"""What autograd may ask of any operator of the library, asked of each that has a gradient: inputs
and gradients in every memory order, gradients of some inputs or some results alone, twice by one
graph, with checkpoints, compiled, and of gradients. Derivatives are compared with differences, so
that none is only as right as another formula. Skipped where torch is not installed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

import tkc  # noqa: E402
from tkc import kernels as K  # noqa: E402
from tkc.kernels import torch_ops  # noqa: E402
from tkc.kernels.operator import OPERATORS  # noqa: E402

torch_ops.register_all()  # whoever imported tkc.kernels before torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# so that `pytest -m gpu` runs them where there is one
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


def random(*shape, seed=0, scale=1.0):
    made = torch.Generator().manual_seed(seed + 7 * sum(shape))
    return (torch.randn(shape, generator=made) * scale).to(DEVICE)


def decay(x):
    """Logarithms of decays: below 0, without a kink."""
    return -torch.nn.functional.softplus(x)


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def integers(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


@dataclass(frozen=True)
class Call:
    """A function of tensors, and theirs."""

    function: Callable
    inputs: tuple


def call(function, *inputs):
    return Call(function, tuple(x if hasattr(x, "shape") else random(*x) for x in inputs))


def second(*shape, **how):
    """Other numbers than those of the first array of this shape."""
    return random(*shape, seed=1, **how)


ANGLES = torch.linspace(0, 3, 56, device=DEVICE).reshape(7, 8)
TURN = ANGLES.cos(), ANGLES.sin()
TARGET = integers(3, -100, 0, 64, 7, dtype=torch.int64)
STARTS = integers(0, 7, 19)
EXPERTS = integers([0, 2], [1, 0], [2, 1], [0, 1], [2, 0])
WORDS, SCALES, _ = K.quantize_packed(random(24, 64), group=32)
OTHER = random(5, 33, seed=3).log_softmax(-1)
OF_TOKENS = [random(5, 7, seed=seed, scale=0.1) for seed in (2, 3, 4)]
OF_ANSWERS = [random(5, seed=seed) for seed in (2, 3)]
ROWS, GATES = (2, 9, 21), (2, 19, 2)  # of positions; positions and heads
QUERIES, VALUES = (2, 19, 2, 16), (2, 19, 2, 8)
# queries, keys, values, two gates, and a first state
GATED = QUERIES, second(*QUERIES), VALUES, GATES, second(*GATES), (2, 2, 16, 8)

# by operator, and a variant of it
CALLS = {
    "add_layer_norm": call(K.add_layer_norm, (5, 65), second(5, 65), (65,), second(65)),
    "add_rms_norm": call(K.add_rms_norm, (5, 65), second(5, 65), (65,)),
    "attention": call(
        lambda q, k, v, sinks: K.attention(q, k, v, causal=True, with_lse=True, sinks=sinks),
        (2, 4, 33, 16),
        (2, 2, 33, 16),
        (2, 2, 33, 24),
        (4,),
    ),
    "attention_ragged": call(
        lambda q, k, v: K.attention(q, k, v, causal=True, cu_seqlens=STARTS, max_seqlen=12),
        (19, 4, 16),
        (19, 2, 16),
        second(19, 2, 16),
    ),
    "attention_modified, bias": call(
        lambda q, k, v, bias: K.attention(q, k, v, bias=bias),
        (2, 4, 9, 16),
        (2, 4, 17, 16),
        second(2, 4, 17, 16),
        (4, 9, 17),
    ),
    "attention_modified, dropout": call(
        lambda q, k, v: K.attention(q, k, v, dropout=0.25, seed=3),
        (2, 4, 9, 16),
        (2, 4, 17, 16),
        second(2, 4, 17, 16),
    ),
    "causal_conv1d": call(K.causal_conv1d, ROWS, (21, 4), (21,), (2, 3, 21)),
    "conv": call(
        lambda x, w, bias: K.conv(x, w, bias, 2, 1, activation="silu"),
        (2, 7, 9, 8),
        (12, 3, 3, 8),
        (12,),
    ),
    "conv, each channel": call(
        lambda x, w, bias: K.conv(x, w, bias, 1, 1), (2, 7, 9, 8), (8, 3, 3, 1), (8,)
    ),
    "cross_entropy": call(lambda x: K.cross_entropy(x, TARGET), (5, 65)),
    "cumsum": call(K.cumsum, (3, 31)),
    "cumsum, reversed": call(lambda x: K.cumsum(x, 0, True), (3, 31)),
    "delta_rule": call(
        lambda q, k, v, beta, g, first: K.delta_rule(
            q, unit(k), v, beta.sigmoid(), decay(g), first
        ),
        *GATED,
    ),
    "delta_rule, channels": call(
        lambda q, k, v, beta, g: K.delta_rule(q, k, v, beta.sigmoid(), decay(g), normalize=True),
        QUERIES,
        second(*QUERIES),
        VALUES,
        GATES,
        random(*QUERIES, seed=2),
    ),
    "divergence": call(lambda x: K.divergence(x.log_softmax(-1), OTHER), (5, 33)),
    "divergence, jsd": call(lambda x: K.divergence(x.log_softmax(-1), OTHER, "jsd", 0.3), (5, 33)),
    "dropout": call(lambda x: K.dropout(x, 0.3, 5), (3, 31)),
    "dropout_add_layer_norm": call(
        lambda x, residual, w, bias: K.dropout_add_layer_norm(x, residual, w, bias, 0.3, 5),
        (5, 64),
        second(5, 64),
        (64,),
        second(64),
    ),
    "dyt": call(K.dyt, (3, 5, 33), (1,), (33,), second(33)),
    "embedding": call(lambda table: K.embedding(table, integers([1, 3], [0, 2], [3, 1])), (4, 33)),
    "fft_conv": call(K.fft_conv, (2, 3, 50), (3, 50)),
    "fft_conv, round": call(lambda u, k: K.fft_conv(u, k, False), (2, 3, 256), (3, 100)),
    "gated_mlp": call(
        K.gated_mlp, (3, 5, 24), random(64, 24, scale=0.3), random(24, 32, scale=0.3)
    ),
    "gated_rms_norm": call(K.gated_rms_norm, (5, 65), second(5, 65), (65,)),
    "gated_rms_norm, the gate first": call(
        lambda x, gate, w: K.gated_rms_norm(x, gate, w, gate_first=True),
        (5, 65),
        second(5, 65),
        (65,),
    ),
    "geglu": call(K.geglu, (3, 31), second(3, 31)),
    "geglu, tanh": call(lambda x, gate: K.geglu(x, gate, "tanh"), (3, 31), second(3, 31)),
    "gelu": call(K.gelu, (3, 31)),
    "group_norm": call(
        lambda x, w, bias: K.group_norm(x, 4, w, bias, silu=True), (2, 8, 5, 7), (8,), second(8)
    ),
    "group_norm, channels last": call(
        lambda x, w, bias: K.group_norm(x, 4, w, bias, channels_last=True),
        (2, 5, 7, 8),
        (8,),
        second(8),
    ),
    "grouped_matmul": call(
        lambda a, b: K.grouped_matmul(a, b, integers(3, 3, 11)), (13, 24), (3, 24, 20)
    ),
    "hedgehog": call(
        lambda *x: K.hedgehog(*x[:5], x[5].exp(), x[6].exp())[0],
        (1, 70, 2, 16),
        second(1, 70, 2, 16),
        (1, 70, 2, 8),
        random(2, 16, 16, scale=0.3),
        second(2, 16, 16, scale=0.3),
        (2,),
        second(2),
    ),
    "hedgehog_features": call(K.hedgehog_features, (1, 9, 2, 16), random(2, 16, 12, scale=0.3)),
    "hgrn": call(lambda x, g, first: K.hgrn(x, decay(g), first), ROWS, second(*ROWS), (2, 21)),
    "layer_norm": call(K.layer_norm, (5, 65), (65,), second(65)),
    "layer_norm, wide": call(K.layer_norm, (3, 9000), (9000,), second(9000)),
    "linear_attention": call(
        lambda q, k, v, g, w, first: K.linear_attention(q, k, v, decay(g), None, w, first),
        *GATED,
    ),
    "linear_attention, channels": call(
        lambda q, k, v, g: K.linear_attention(q, k, v, decay(g)),
        QUERIES,
        second(*QUERIES),
        VALUES,
        random(*QUERIES, seed=2),
    ),
    "linear_attention, ragged": call(
        lambda q, k, v: K.linear_attention(q, k, v, cu_seqlens=STARTS),
        (1, 19, 2, 16),
        second(1, 19, 2, 16),
        (1, 19, 2, 8),
    ),
    "beside_ones + divided_by_sum": call(
        lambda q, k, v, g: K.normalized_linear_attention(q.exp(), k.exp(), v, decay(g)),
        QUERIES,
        second(*QUERIES),
        VALUES,
        GATES,
    ),
    "taylor_features": call(K.taylor_features, (3, 4, 5)),
    "taylor_features, based": call(K.based, (2, 19, 2, 5), second(2, 19, 2, 5), VALUES),
    "linear_cross_entropy": call(
        lambda x, w: K.linear_cross_entropy(
            x, w, TARGET, part=2, label_smoothing=0.1, z_loss=0.01, softcap=5.0
        )[0],
        (5, 24),
        (65, 24),
    ),
    "linear_gate_add": call(K.linear_gate_add, (3, 5, 24), (20, 24), (3, 20), (3, 5, 20), (20,)),
    "linear_gate_add, one gate": call(
        K.linear_gate_add, (3, 5, 24), (20, 24), second(20), (3, 5, 20), (20,)
    ),
    "log_softmax": call(K.log_softmax, (3, 257)),
    "log_softmax, first axis": call(lambda x: K.log_softmax(x, 0), (3, 57)),
    "lora_linear": call(
        lambda x, w, a, b, bias: K.lora_linear(x, w, a, b, 2.0, bias)[0],
        (3, 5, 24),
        (20, 24),
        (4, 24),
        (20, 4),
        (20,),
    ),
    "matmul": call(K.matmul, (2, 5, 24), (24, 20)),
    "matmul, gelu": call(
        lambda a, b, bias: K.matmul(a, b, bias, "gelu"), (2, 5, 24), (2, 24, 20), (20,)
    ),
    "matmul, of a vector": call(K.matmul, (24,), (24, 20)),
    "matmul, broadcast": call(
        lambda a, b, bias: K.matmul(a, b, bias, "tanh"), (3, 1, 5, 24), (2, 24, 20), (20,)
    ),
    "mixture_of_experts": call(
        lambda x, gate_up, down, w: K.mixture_of_experts(x, gate_up, down, w, EXPERTS),
        (5, 24),
        (3, 32, 24),
        (3, 24, 16),
        (5, 2),
    ),
    "packed_matmul": call(
        lambda x, bias: K.packed_matmul(x, WORDS, SCALES, bias=bias, group=32), (3, 5, 64), (24,)
    ),
    "preference_losses, dpo": call(
        lambda a, b: K.preference_loss(a, b, *OF_ANSWERS), (5,), second(5)
    ),
    "preference_losses, orpo": call(
        lambda a, b: K.preference_loss(decay(a), decay(b), kind="orpo"), (5,), second(5)
    ),
    "rms_norm": call(K.rms_norm, (5, 65), (65,)),
    "rotary": call(lambda x: K.rotary(x, *TURN), (2, 5, 3, 16)),
    "rotary, interleaved": call(lambda x: K.rotary(x, *TURN, True), (2, 5, 3, 20)),
    "route": call(lambda x: K.route(x, 3)[0], (7, 9)),
    "route, sigmoid": call(lambda x: K.route(x, 3, "sigmoid", False, 2.5)[0], (7, 9)),
    "rwkv7": call(
        lambda q, g, k, v, a, b, first: K.rwkv7(q, decay(g), k, v, a, b, first),
        (1, 11, 2, 16),
        second(1, 11, 2, 16),
        random(1, 11, 2, 16, seed=2, scale=0.2),
        (1, 11, 2, 8),
        random(1, 11, 2, 16, seed=3, scale=0.2),
        random(1, 11, 2, 16, seed=4, scale=0.2),
        (1, 2, 16, 8),
    ),
    "selective_scan": call(
        lambda x, dt, a, *others: K.selective_scan(x, dt, decay(a), *others, softplus=True),
        ROWS,
        second(*ROWS),
        (21, 8),
        (2, 9, 8),
        second(2, 9, 8),
        (21,),
        random(*ROWS, seed=2),
        second(21),
    ),
    "ssd": call(
        lambda x, dt, a, *others: K.ssd(x, dt, decay(a), *others, softplus=True),
        VALUES,
        GATES,
        (2,),
        (2, 19, 1, 16),
        second(2, 19, 1, 16),
        second(2),
        second(*VALUES),
        random(2, seed=2),
    ),
    "silu": call(K.silu, (3, 31)),
    "softmax": call(K.softmax, (3, 257)),
    "softmax, an axis within": call(lambda x: K.softmax(x, 1), (3, 7, 5)),
    "sort": call(lambda x: K.sort(x)[0], (3, 31)),
    "sparsemax": call(K.sparsemax, (3, 31)),
    "sum": call(K.sum, (3, 31)),
    "swiglu": call(K.swiglu, (3, 31), second(3, 31)),
    "token_losses, grpo": call(lambda x: K.grpo_loss(x, *OF_TOKENS), random(5, 7, scale=0.1)),
    "token_losses, kto": call(
        lambda x: K.kto_loss(x, OF_ANSWERS[0], OF_ANSWERS[1].sign(), OF_ANSWERS[1]), (5,)
    ),
    "topk": call(lambda x: K.topk(x, 5)[0], second(3, 31)),
    "transpose": call(K.transpose, (2, 65, 31)),
}


def test_every_gradient_is_here():
    names = {part for name in CALLS for part in name.split(", ")[0].split(" + ")}
    assert names == {op.name for op in OPERATORS.values() if op.gradient}


# ---- what the tests ask --------------------------------------------------------------------------
def differentiable(results):
    results = results if isinstance(results, (tuple, list)) else (results,)
    return [r for r in results if r.is_floating_point() and r.requires_grad]


def leaves(inputs):
    return [x.detach().clone().requires_grad_() for x in inputs]


def weights(results):
    """A gradient of each result."""
    return [random(*r.shape, seed=100 + i) for i, r in enumerate(results)]


def gradients(function, inputs):
    results = differentiable(function(*inputs))
    return [r.detach() for r in results], torch.autograd.grad(results, inputs, weights(results))


def same(found, wanted, tolerance=2e-5):
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        size = 1 + float(b.abs().max()) if b.numel() else 1
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * size)


def every_second(x):
    """The array as every second element of a row, beside numbers that must not be read."""
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan)
    wide[..., 1::2] = x
    return wide[..., 1::2]


def axes_reversed(x):
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def moved(x):
    """From an address that is no multiple of 16 on."""
    flat = x.new_full((x.numel() + 3,), torch.nan)
    flat[3:] = x.flatten()
    return flat[3:].view(x.shape)


ORDERS = every_second, axes_reversed, moved
each = pytest.mark.parametrize("name", CALLS)


@each
def test_inputs_and_gradients_in_any_memory_order(name):
    call = CALLS[name]
    results, wanted = gradients(call.function, leaves(call.inputs))
    for order in ORDERS:
        inputs = [order(x).requires_grad_() for x in call.inputs]
        found = differentiable(call.function(*inputs))
        given = [order(w) for w in weights(found)] if found[0].dim() else weights(found)
        same(found, results)
        same(torch.autograd.grad(found, inputs, given), wanted)


def poisoned(new_empty):
    """Memory that nobody wrote is NaN, or a number that no test expects."""

    def made(*args, **kwargs):
        x = new_empty(*args, **kwargs)
        return x.fill_(torch.nan if x.is_floating_point() else 99)

    return made


@each
def test_extents_of_nothing(name, monkeypatch):
    """Each extent as 0: what is computed is a number, or the call is refused."""
    call = CALLS[name]
    new_empty = poisoned(torch.Tensor.new_empty)
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    for extent in sorted({n for x in call.inputs for n in x.shape}):
        shapes = [[0 if n == extent else n for n in x.shape] for x in call.inputs]
        inputs = leaves([random(*shape, seed=i) for i, shape in enumerate(shapes)])
        try:
            found = differentiable(call.function(*inputs))
            found += torch.autograd.grad(found, inputs, [torch.ones_like(r) for r in found])
        except tkc.Error:
            continue
        assert not any(x.isnan().any() for x in found), (extent, shapes)


@each
def test_a_gradient_with_strides_of_nothing(name):
    call = CALLS[name]
    inputs = leaves(call.inputs)
    results = differentiable(call.function(*inputs))
    found, wanted = (
        torch.autograd.grad(results, inputs, given, retain_graph=True)
        for given in (
            [r.new_ones(()).expand(r.shape) for r in results],
            [torch.ones_like(r) for r in results],
        )
    )
    same(found, wanted)


@each
def test_each_input_alone(name):
    call = CALLS[name]
    inputs = leaves(call.inputs)
    results = differentiable(call.function(*inputs))
    for i, x in enumerate(inputs):
        alone = [y.detach().requires_grad_(j == i) for j, y in enumerate(inputs)]
        found = call.function(*alone)
        found = found if isinstance(found, (tuple, list)) else (found,)
        depends = [r.requires_grad for r in found if r.is_floating_point()][: len(results)]
        pairs = [(r, w) for r, w, d in zip(found, weights(results), depends, strict=False) if d]
        kept = [r for r, d in zip(results, depends, strict=True) if d]
        some = [w for _, w in pairs]
        got = torch.autograd.grad([r for r, _ in pairs], alone[i], some)
        same(got, torch.autograd.grad(kept, x, some, retain_graph=True))


@each
def test_each_result_alone(name):
    call = CALLS[name]
    inputs = leaves(call.inputs)
    results = differentiable(call.function(*inputs))
    given = weights(results)
    wanted = torch.autograd.grad(results, inputs, given, retain_graph=True)
    found = [torch.zeros_like(x) for x in inputs]
    for result, weight in zip(results, given, strict=True):
        parts = torch.autograd.grad(result, inputs, weight, retain_graph=True, allow_unused=True)
        found = [t if p is None else t + p for t, p in zip(found, parts, strict=True)]
    same(found, wanted, 1e-4)


def test_results_that_gradients_need_have_none_of_their_own():
    """An error, where the loss depends on them, and not 0."""
    inputs = leaves(CALLS["hedgehog"].inputs)
    _, *kept = K.hedgehog(*inputs[:5], inputs[5].exp(), inputs[6].exp())
    layer, experts = (leaves(CALLS[n].inputs) for n in ("gated_mlp", "mixture_of_experts"))
    kept += torch.ops.tkc.gated_mlp(*layer, True)[1:]
    kept.append(torch.ops.tkc.mixture_of_experts(*experts, EXPERTS)[-1])
    for result in kept:
        with pytest.raises(tkc.LaunchError, match="no gradient of its gradients"):
            torch.autograd.grad(result.sum(), [*inputs, *layer, *experts], allow_unused=True)


@each
def test_derivatives_are_those_of_differences(name):
    call = CALLS[name]
    _, found = gradients(call.function, leaves(call.inputs))

    def value(place, step):
        moved = [x + step if i == place else x for i, x in enumerate(call.inputs)]
        results = differentiable(call.function(*leaves(moved)))
        pairs = zip(results, weights(results), strict=True)
        return sum(float((r.detach().double() * w.double()).sum()) for r, w in pairs)

    for i, (x, gradient) in enumerate(zip(call.inputs, found, strict=True)):
        way = random(*x.shape, seed=7 + i)
        slopes = [
            (value(i, size * way) - value(i, -size * way)) / (2 * size) for size in (1e-3, 2e-3)
        ]
        wanted = float((gradient * way).sum())
        error = min(abs(slope - wanted) for slope in slopes)
        room = 0.01 * (float(gradient.norm() * way.norm()) + abs(wanted)) + 1e-2
        assert error <= room, f"input {i}: {wanted}, by differences {slopes}"


@each
def test_with_checkpoints_and_twice_by_one_graph(name):
    from torch.utils.checkpoint import checkpoint

    call = CALLS[name]
    results, wanted = gradients(call.function, leaves(call.inputs))
    inputs = leaves(call.inputs)
    found = differentiable(checkpoint(call.function, *inputs, use_reentrant=False))
    same(found, results)
    same(torch.autograd.grad(found, inputs, weights(found)), wanted)
    found = differentiable(call.function(*inputs))
    for _ in range(2):
        same(torch.autograd.grad(found, inputs, weights(found), retain_graph=True), wanted)


@each
@pytest.mark.filterwarnings("ignore:.*no fixed order")
def test_memory_that_is_not_set_is_not_read(name):
    call = CALLS[name]
    results, wanted = gradients(call.function, leaves(call.inputs))
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
        found = gradients(call.function, leaves(call.inputs))
    finally:
        torch.use_deterministic_algorithms(False)
    same(found[0], results)
    same(found[1], wanted)


def test_where_bits_may_differ_torch_is_obeyed():
    """An error, or a warning where torch is to warn only."""
    call = CALLS["attention_modified, bias"]
    try:
        torch.use_deterministic_algorithms(True)
        with pytest.raises(tkc.LaunchError, match="no fixed order"):
            gradients(call.function, leaves(call.inputs))
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="no fixed order"):
            gradients(call.function, leaves(call.inputs))
    finally:
        torch.use_deterministic_algorithms(False)


@each
def test_a_second_derivative_is_right_or_refused(name):
    """Refused where a gradient has none of its own, and never silently 0."""
    call = CALLS[name]
    inputs, ways = leaves(call.inputs), [second(*x.shape) for x in call.inputs]
    given = weights(differentiable(call.function(*inputs)))

    def slope(inputs, **how):
        """Of the results, weighted, along the ways."""
        results = differentiable(call.function(*inputs))
        found = torch.autograd.grad(results, inputs, given, **how)
        return sum((g.double() * w.double()).sum() for g, w in zip(found, ways, strict=True))

    try:
        first = slope(inputs, create_graph=True)
        if first.requires_grad:
            found = torch.autograd.grad(first, inputs, allow_unused=True)
        else:
            found = [None] * len(inputs)
    except tkc.LaunchError as error:
        assert "gradient" in str(error)
        return
    pairs = [(g, w) for g, w in zip(found, ways, strict=True) if g is not None]
    wanted = sum(float((g * w).sum()) for g, w in pairs)
    size = 1e-3
    ahead, behind = (
        float(slope(leaves([x + s * w for x, w in zip(call.inputs, ways, strict=True)])))
        for s in (size, -size)
    )
    curve = (ahead - behind) / (2 * size)
    assert abs(curve - wanted) <= 0.02 * (1 + abs(curve) + abs(wanted))


@each
def test_compiled(name):
    call = CALLS[name]
    results, wanted = gradients(call.function, leaves(call.inputs))
    torch._dynamo.reset()
    # functions of elements are taken apart in Python, which breaks a graph
    whole = "modified" not in name
    function = torch.compile(call.function, backend="aot_eager", fullgraph=whole)
    found = gradients(function, leaves(call.inputs))
    same(found[0], results)
    same(found[1], wanted)
