"""The library as custom ops of torch: schemas, fake functions, autograd and torch.compile. Skipped
where torch is not installed.
"""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import tkc  # noqa: E402
from tkc import kernels  # noqa: E402
from tkc.kernels import torch_ops  # noqa: E402
from tkc.kernels.operator import OPERATORS  # noqa: E402

torch_ops.register_all()  # whoever imported tkc.kernels before torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# so that `pytest -m gpu` runs them where there is one
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


def tensors(*shapes, dtype=torch.float32, grad=True):
    made = [
        torch.randn(
            s, device=DEVICE, dtype=dtype, generator=torch.Generator(DEVICE).manual_seed(i)
        ).requires_grad_(grad)
        for i, s in enumerate(shapes)
    ]
    return made if len(made) > 1 else made[0]


def same_gradients(ours, theirs, *inputs, tolerance=2e-5):
    """Results and gradients of ours(*inputs) are those of theirs(*inputs)."""
    found = []
    for f in ours, theirs:
        leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        result = f(*leaves)
        result = result if isinstance(result, (tuple, list)) else (result,)
        sum(
            (r.float() * torch.linspace(-1, 1, r.numel(), device=r.device).reshape(r.shape)).sum()
            for r in result
        ).backward()
        found.append([*result, *(x.grad for x in leaves if x.requires_grad)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=tolerance, atol=tolerance)


def test_every_operator_is_registered():
    for name, _op in OPERATORS.items():
        assert str(getattr(torch.ops.tkc, name).default._schema).startswith(f"tkc::{name}(")


ANGLES = torch.linspace(0, 3, 7 * 8, device=DEVICE).reshape(7, 8)
TARGET = torch.tensor([3, -100, 0, 64], device=DEVICE)


def turned(x):
    a, b = x.chunk(2, -1)
    c, s = ANGLES.cos()[:5, None], ANGLES.sin()[:5, None]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def weighted(q, k, v):
    s = torch.einsum("bthf,bshf->bhts", q, k) * q.shape[-1] ** -0.5
    weights = (1 + s + s * s / 2).tril()
    return torch.einsum("bhts,bshv->bthv", weights / weights.sum(-1, keepdim=True), v)


CASES = {
    "softmax": (kernels.softmax, lambda x: F.softmax(x, -1), (3, 257)),
    "log_softmax": (kernels.log_softmax, lambda x: F.log_softmax(x, -1), (3, 257)),
    "layer_norm": (
        kernels.layer_norm,
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        (5, 65),
        (65,),
        (65,),
    ),
    "rms_norm": (
        kernels.rms_norm,
        lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
        (5, 65),
        (65,),
    ),
    "add_rms_norm": (
        kernels.add_rms_norm,
        lambda x, r, w: (F.rms_norm(x + r, x.shape[-1:], w, 1e-6), x + r),
        (5, 65),
        (5, 65),
        (65,),
    ),
    "gated_rms_norm": (
        kernels.gated_rms_norm,
        lambda x, z, w: F.rms_norm(x, x.shape[-1:], w, 1e-6) * F.silu(z),
        (5, 65),
        (5, 65),
        (65,),
    ),
    "gated_rms_norm, the gate first": (
        lambda x, z, w: kernels.gated_rms_norm(x, z, w, gate_first=True),
        lambda x, z, w: F.rms_norm(x * F.silu(z), x.shape[-1:], w, 1e-6),
        (5, 65),
        (5, 65),
        (65,),
    ),
    "add_layer_norm": (
        kernels.add_layer_norm,
        lambda x, r, w, b: (F.layer_norm(x + r, x.shape[-1:], w, b), x + r),
        (5, 65),
        (5, 65),
        (65,),
        (65,),
    ),
    "gelu": (kernels.gelu, F.gelu, (3, 31)),
    "gelu_tanh": (
        lambda x: kernels.gelu(x, "tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        (3, 31),
    ),
    "silu": (kernels.silu, F.silu, (3, 31)),
    "swiglu": (kernels.swiglu, lambda x, g: F.silu(x) * g, (3, 31), (3, 31)),
    "geglu": (kernels.geglu, lambda x, g: F.gelu(x) * g, (3, 31), (3, 31)),
    "rotary": (lambda x: kernels.rotary(x, ANGLES.cos(), ANGLES.sin()), turned, (2, 5, 3, 16)),
    "cross_entropy": (
        lambda x: kernels.cross_entropy(x, TARGET)[0],
        lambda x: F.cross_entropy(x, TARGET, reduction="none"),
        (4, 65),
    ),
    "cumsum": (kernels.cumsum, lambda x: x.cumsum(-1), (3, 31)),
    "cumsum_long": (kernels.cumsum, lambda x: x.cumsum(-1), (2, 20_011)),
    "sum": (kernels.sum, torch.sum, (3, 31)),
    "topk": (lambda x: kernels.topk(x, 5)[0], lambda x: x.topk(5)[0], (3, 31)),
    "attention": (
        lambda q, k, v: kernels.attention(q, k, v, causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        (2, 4, 33, 16),
        (2, 2, 33, 16),
        (2, 2, 33, 24),
    ),
    "based": (lambda q, k, v: kernels.based(q, k, v)[0], weighted, *[(2, 9, 2, 8)] * 3),
    "transpose": (kernels.transpose, lambda x: x.mT.contiguous(), (2, 65, 31)),
    "embedding": (
        lambda t: kernels.embedding(t, TARGET.clamp(0)),
        lambda t: F.embedding(TARGET.clamp(0), t),
        (70, 33),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name):
    ours, theirs, *shapes = CASES[name]
    inputs = tensors(*shapes) if len(shapes) > 1 else [tensors(*shapes)]
    same_gradients(ours, theirs, *inputs, tolerance=2e-3 if "long" in name else 5e-5)


@pytest.mark.parametrize(
    "name", ["softmax", "layer_norm", "rms_norm", "swiglu", "cumsum", "transpose"]
)
def test_the_registration_is_sound(name):
    _, _, *shapes = CASES[name]
    inputs = tensors(*shapes) if len(shapes) > 1 else [tensors(*shapes)]
    torch.library.opcheck(
        getattr(torch.ops.tkc, name),
        tuple(inputs),
        test_utils=(
            "test_schema",
            "test_faketensor",
            "test_autograd_registration",
            "test_aot_dispatch_dynamic",
        ),
    )


def test_compiles():
    x, w = tensors((5, 65), (65,))

    def f(t, v):
        return kernels.softmax(kernels.rms_norm(t * 2, v)).sum(0) + kernels.swiglu(t, t).mean()

    same_gradients(torch.compile(f, fullgraph=True), f, x, w)


def test_in_place():
    x = tensors((4, 65), grad=False)
    want = x.clone().requires_grad_()
    loss = F.cross_entropy(want, TARGET, reduction="none")
    loss.sum().backward()
    torch.testing.assert_close(kernels.cross_entropy_(x, TARGET), loss.detach())
    torch.testing.assert_close(x, want.grad)
    p, g = tensors((33,), (33,), grad=False)
    q, m, v = p.clone().requires_grad_(), torch.zeros_like(p), torch.zeros_like(p)
    q.grad = g.clone()
    torch.optim.AdamW([q], lr=1e-2, weight_decay=0.1).step()
    kernels.adam_(p, g, m, v, 1, 1e-2, weight_decay=0.1)
    torch.testing.assert_close(p, q.detach())


def test_dropout_backward_has_the_mask_of_forward():
    x = tensors((1000,))
    y = kernels.dropout(x, 0.5, 3)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y != 0, 2.0, 0.0))


def test_reduced_types():
    x = tensors((64, 1000), dtype=torch.bfloat16, grad=False)
    torch.testing.assert_close(kernels.softmax(x), F.softmax(x.float(), -1).bfloat16())
    q, scale = kernels.quantize(x)
    assert q.dtype is torch.float8_e4m3fn
    torch.testing.assert_close(
        q.float(), (x.float() / scale).to(torch.float8_e4m3fn).float(), rtol=0.13, atol=0.01
    )


def test_plain_calls_go_past_the_dispatcher(monkeypatch):
    """And no others: whoever wants gradients, compiles, traces, transforms, fakes or watches sees
    torch.ops.tkc.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    op, went = kernels.softmax, []
    x = tensors((3, 65), grad=False)
    want = op(x)
    monkeypatch.setattr(
        op,
        "torch",
        lambda *args, **kwargs: went.append(args) or torch.ops.tkc.softmax(*args, **kwargs),
    )

    def past(f):
        return (went.clear(), f(), not went)[2]

    assert torch.equal(op(x), want) and past(lambda: op(x)) and past(lambda: op(x=x, axis=1))
    with torch.inference_mode():
        assert past(lambda: op(x)) and past(lambda: op(torch.zeros_like(x)))
    wanted = x.clone().requires_grad_()
    assert not past(lambda: op(wanted)) and op(wanted).requires_grad
    with torch.no_grad():
        assert past(lambda: op(wanted)) and past(lambda: op(torch.nn.Parameter(x)))

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Other(torch.Tensor):
        pass

    with Watching():
        assert not past(lambda: op(x))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert not past(lambda: op(x))
    with FakeTensorMode() as mode:
        assert not past(lambda: op(mode.from_tensor(x)))
    assert not past(lambda: op(x.as_subclass(Other))) or torch.equal(op(x.as_subclass(Other)), want)
    negated = torch._neg_view(x)
    assert (
        negated.is_neg() and not past(lambda: op(negated)) and torch.allclose(op(negated), op(-x))
    )
    seen = []
    try:
        torch.func.vmap(lambda row: seen.append(past(lambda: op(row))) or row)(x)
    except RuntimeError:
        seen.append(False)  # no rule for batches: the dispatcher says so
    assert not any(seen)


def test_tensors_without_elements_beside_others_are_an_error():
    x, w = tensors((5, 64), grad=False), torch.empty(64, device="meta")
    for function in kernels.rms_norm, torch.ops.tkc.rms_norm:
        with pytest.raises(tkc.LaunchError, match="rms_norm: weight on the device meta"):
            function(x, w, 1e-6)
        assert function(x.to("meta"), w, 1e-6).is_meta


def test_whole_numbers_are_taken_for_floats():
    x = tensors((4, 64), grad=False)
    torch.testing.assert_close(kernels.dropout(x, 0, 7), x)
    q = tensors((1, 1, 16, 16), grad=False)
    torch.testing.assert_close(
        kernels.attention(q, q, q, scale=1), kernels.attention(q, q, q, scale=1.0)
    )


@pytest.mark.parametrize("past", [True, False])
def test_autograd_knows_what_is_changed_in_place(past):
    """A graph that kept an array refuses to go back once a kernel wrote there, whether the call
    went through the dispatcher or past it.
    """
    x, y = tensors((8, 8), (8, 8), grad=False)
    out, w = torch.zeros(8, 8, device=DEVICE), tensors((8, 8))
    loss, before = (w * out).sum(), out._version
    if past:
        kernels.matmul(x, y, out=out)
    else:
        torch.ops.tkc.matmul_(out, x, y)
    assert out._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        kernels.matmul(x, y, out=torch.empty(8, 8, device=DEVICE))


def quantized(x):
    with torch.no_grad():
        return kernels.quantize_rows(x)


WITHOUT_GRADIENT = {
    "attention_backward": lambda x: kernels.attention_backward(
        *[x.view(1, 1, 64, 64)] * 5, torch.zeros((1, 1, 64), device=DEVICE)
    ),
    "quantize": lambda x: kernels.quantize(x),
    "quantize_blocks": lambda x: kernels.quantize_blocks(x, 1, 64),
    "histogram": lambda x: kernels.histogram(x, 8),
    "softmax_backward": lambda x: kernels.softmax_backward(x, x),
    "matmul_": lambda x: kernels.matmul(x, x, out=torch.empty_like(x)),
    "cross_entropy_": lambda x: kernels.cross_entropy_(
        x, torch.zeros(64, dtype=torch.int64, device=DEVICE)
    ),
    "adam_": lambda x: kernels.adam_(x, *[torch.zeros(64, 64, device=DEVICE) for _ in range(3)], 1),
    "dequantize": lambda x: kernels.dequantize(quantized(x)[0], x[:, 0]),
    "rotary": lambda x: kernels.rotary(x.detach()[None, None], x[:, :32], x[:, :32]),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_where_there_is_no_gradient_an_error_says_so(name):
    """At the call, through the dispatcher, within others; and nothing has been changed by then."""
    call, x = WITHOUT_GRADIENT[name], tensors((64, 64), dtype=torch.float32)
    plain = x.detach().to(DEVICE)
    before = plain.clone()
    for _ in range(3):  # a call that is recorded, too
        with pytest.raises(tkc.LaunchError, match=rf"{name}.*no gradient.*detach"):
            call(x)
        assert torch.equal(x, before)
        with torch.no_grad():
            call(x.detach().clone().requires_grad_())
        call(plain.clone())


def test_the_error_names_what_has_gradients():
    with pytest.raises(tkc.LaunchError, match="x requires one.*cross_entropy, .*softmax"):
        torch.ops.tkc.quantize(tensors((4, 64)))
    table = tensors((64, 64))
    with pytest.raises(tkc.LaunchError, match="rotary has no gradient for sin"):
        kernels.rotary(table[None, None], table[:, :32].detach(), table[:, :32])


def test_a_gradient_of_a_gradient_that_has_none_is_an_error():
    x = tensors((4, 65))
    (grad,) = torch.autograd.grad(kernels.softmax(x).square().sum(), x)
    assert grad is not None
    with pytest.raises(tkc.LaunchError, match="softmax_backward has no gradient"):
        torch.autograd.grad(kernels.softmax(x).square().sum(), x, create_graph=True)


@pytest.mark.parametrize("times", range(3))
def test_a_derivative_that_is_carried_forward_is_an_error(times):
    """torch's dispatcher would drop it. (The third call of a kind is one that was recorded.)"""
    x = torch.randn(4, 8)
    for _ in range(times):
        kernels.softmax(x)
    for function in kernels.softmax, kernels.argmax:
        with pytest.raises(tkc.LaunchError, match="carried forward"):
            torch.func.jvp(function, (x,), (x,))
        with (
            torch.autograd.forward_ad.dual_level(),
            pytest.raises(tkc.LaunchError, match="carried forward"),
        ):
            function(torch.autograd.forward_ad.make_dual(x, x))
        named = getattr(torch.ops.tkc, function.name)
        for how in torch.enable_grad, torch.no_grad:
            with how(), pytest.raises(tkc.LaunchError, match="carried forward"):
                torch.func.jvp(named, (x,), (x,))
            with (
                how(),
                torch.autograd.forward_ad.dual_level(),
                pytest.raises(tkc.LaunchError, match="carried forward"),
            ):
                named(torch.autograd.forward_ad.make_dual(x.clone().requires_grad_(), x))
    product, slope = torch.func.jvp(lambda a: kernels.softmax(x) * a, (x,), (x,))
    assert torch.equal(product, slope) and product.any()


def test_transforms_of_functions():
    x = torch.randn(4, 8, requires_grad=True)
    assert torch.allclose(torch.func.vmap(kernels.softmax)(x), x.softmax(-1))
    for transform in torch.func.grad, torch.func.jacrev, torch.func.hessian:
        with pytest.raises(tkc.LaunchError, match="torch.func"):
            transform(lambda a: kernels.softmax(a).sum())(x.detach())


def test_the_gradient_of_a_log_sum_exp():
    def ours(x):
        loss, lse = kernels.cross_entropy(x, TARGET)
        return loss.sum() + 0.1 * lse.square().sum()

    def theirs(x):
        loss = F.cross_entropy(x, TARGET, reduction="none")
        return loss.sum() + 0.1 * torch.logsumexp(x, 1).square().sum()

    same_gradients(ours, theirs, tensors((4, 65)))
    same_gradients(
        lambda x: kernels.cross_entropy(x, TARGET)[1].sum(),
        lambda x: torch.logsumexp(x, 1).sum(),
        tensors((4, 65)),
    )
