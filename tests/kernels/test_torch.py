"""The library as custom ops of torch: schemas, fake functions, autograd and torch.compile. Skipped where torch is not installed."""
import pytest

torch = pytest.importorskip("torch")

from tkc import kernels  # noqa: E402
from tkc.kernels.operator import OPERATORS  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensors(*shapes, dtype=torch.float32, grad=True):
    made = [torch.randn(s, device=DEVICE, dtype=dtype, generator=torch.Generator(DEVICE).manual_seed(i)).requires_grad_(grad) for i, s in enumerate(shapes)]
    return made if len(made) > 1 else made[0]


def same_gradients(ours, theirs, *inputs, tolerance=2e-5):
    """Results and gradients of ours(*inputs) are those of theirs(*inputs)."""
    found = []
    for f in ours, theirs:
        leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        result = f(*leaves)
        result = result if isinstance(result, (tuple, list)) else (result,)
        sum((r.float() * torch.linspace(-1, 1, r.numel(), device=r.device).reshape(r.shape)).sum() for r in result).backward()
        found.append([*result, *(x.grad for x in leaves if x.requires_grad)])
    for a, b in zip(*found, strict=True): torch.testing.assert_close(a, b.to(a.dtype), rtol=tolerance, atol=tolerance)


def test_every_operator_is_registered():
    for name, op in OPERATORS.items():
        assert str(getattr(torch.ops.tkc, name).default._schema) == f"tkc::{op.schema}"


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name):
    x = tensors((3, 257))
    same_gradients(getattr(kernels, name), lambda t: getattr(torch, name)(t, -1), x)
    torch.library.opcheck(getattr(torch.ops.tkc, name), (x,))


def test_compiles():
    x = tensors((5, 65))
    def f(t): return kernels.softmax(t * 2).sum(0)
    same_gradients(torch.compile(f, fullgraph=True), f, x)
