"""Gradients of attention on a GPU: against float64 by torch's autograd, no further off than cuDNN's
or FlashAttention's where they have the form; the same bits under load; in CUDA graphs.
"""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from tkc import kernels  # noqa: E402

pytestmark = pytest.mark.gpu


def arrays(heads, shared, queries, keys, d, dv, dtype=torch.bfloat16):
    """(q, k, v, gradient of the result)."""
    generator = torch.Generator("cuda").manual_seed(queries + d)

    def made(h, n, columns):
        return torch.randn((2, h, n, columns), device="cuda", dtype=dtype, generator=generator)

    q, k, v = made(heads, queries, d), made(shared, keys, d), made(shared, keys, dv)
    return *(x.requires_grad_() for x in (q, k, v)), made(heads, queries, dv)


def reference(q, k, v, grad, causal=False, window=None, softcap=0.0, sinks=None, alibi_slopes=None):
    """Gradients in float64."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    group, (queries, keys) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    q, k, v = leaves[0], *(x.repeat_interleave(group, 1) for x in leaves[1:])
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = softcap * torch.tanh(s / softcap) if softcap else s
    distance = torch.arange(queries, device="cuda")[:, None] + keys - queries
    distance = distance - torch.arange(keys, device="cuda")
    if alibi_slopes is not None:
        s = s - alibi_slopes.double()[:, None, None] * distance.abs()
    keep = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    keep = keep & (distance < window) if window is not None else keep
    s = s.masked_fill(~keep, -1e300)
    if sinks is not None:
        extra = sinks.detach().double()[:, None, None].expand(*s.shape[:-1], 1)
        s = torch.cat([s, extra], -1)
    p = torch.softmax(s, -1)[..., :keys] * keep
    return torch.autograd.grad(p @ v, leaves, grad.double())


def errors(found, want):
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, want, strict=True)]


SIZES = [
    (4, 4, 512, 512, 64, 64),
    (4, 2, 500, 777, 128, 128),
    (4, 4, 777, 500, 96, 96),
    (2, 2, 300, 300, 192, 128),
    (2, 1, 257, 257, 256, 256),
]
VARIANTS = {
    "full": {},
    "causal": dict(causal=True),
    "window": dict(causal=True, window=100),
    "soft cap": dict(causal=True, softcap=20.0),
    "sinks and slopes": dict(
        causal=True,
        sinks=torch.tensor([1.0, -2.0, 0.5, 4.0]),
        alibi_slopes=torch.tensor([0.5, 0.1, 0.0, 1.0]),
    ),
}


def on_gpu(options: dict, heads: int) -> dict:
    return {
        name: x[:heads].cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_gradients(size, name, dtype):
    q, k, v, grad = arrays(*size, dtype)
    options = on_gpu(VARIANTS[name], size[0])
    out = kernels.attention(q, k, v, **options)
    found = torch.autograd.grad(out, (q, k, v), grad)
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}[dtype]
    assert max(errors(found, reference(q, k, v, grad, **options))) <= tolerance


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_as_exact_as_cudnn(d, causal):
    q, k, v, grad = arrays(4, 4, 512, 512, d, d)
    want = reference(q, k, v, grad, causal=causal)
    ours = torch.autograd.grad(kernels.attention(q, k, v, causal=causal), (q, k, v), grad)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        theirs = torch.autograd.grad(out, (q, k, v), grad)
    for mine, other in zip(errors(ours, want), errors(theirs, want), strict=True):
        assert mine <= 1.1 * other


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("of_all", [False, True], ids=["this call", "all of torch"])
def test_the_same_bits_beside_other_work(d, of_all, request):
    q, k, v, grad = arrays(8, 2, 1000, 1000, d, d)
    if of_all:
        torch.use_deterministic_algorithms(True)
        request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    out = kernels.attention(q, k, v, causal=True, deterministic=not of_all)
    side = torch.cuda.Stream()
    with torch.profiler.profile() as profile:
        torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    assert "_queries" in {event.key for event in profile.key_averages()}
    load = torch.randn(4096, 4096, device="cuda")
    first = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    for i in range(100):
        with torch.cuda.stream(side):
            load[: 256 * (1 + i % 16)] @ load
        again = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_two_streams_and_a_graph():
    q, k, v, grad = arrays(4, 4, 512, 512, 64, 64)
    out, lse = (x.detach() for x in kernels.attention(q, k, v, causal=True, with_lse=True))
    given = [x.detach() for x in (grad, q, k, v, out, lse)]

    def call():
        return kernels.attention_backward(*given, causal=True)

    want = call()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(call())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = call()
    graph.replay()
    torch.cuda.synchronize()
    for one in (*found, recorded):
        assert all(torch.equal(a, b) for a, b in zip(one, want, strict=True))
