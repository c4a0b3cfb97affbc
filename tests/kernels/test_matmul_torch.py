"""tkc.kernels.matmul with torch: gradients of every form, torch.compile, opcheck, every memory
order. Skipped where torch is not installed.
"""

import itertools

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.test_torch import DEVICE, pytestmark, same_gradients, tensors  # noqa: E402, F401
from tkc import kernels  # noqa: E402

FUNCTIONS = {
    None: lambda z: z,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_gradients_of_epilogues(activation):
    x, w, bias = tensors((33, 20), (20, 17), (17,))
    same_gradients(
        lambda a, b, c: kernels.matmul(a, b, c, activation),
        lambda a, b, c: FUNCTIONS[activation](a @ b + c),
        x,
        w,
        bias,
        tolerance=2e-4,
    )


@pytest.mark.parametrize(
    "a, b",
    [
        ((5,), (5,)),
        ((7,), (7, 9)),
        ((9, 7), (7,)),
        ((3, 33, 20), (20, 9)),
        ((3, 33, 20), (3, 20, 9)),
        ((2, 1, 5, 8), (3, 8, 4)),
        ((4, 20), (2, 20, 6)),
    ],
)
def test_gradients_of_shapes(a, b):
    same_gradients(kernels.matmul, torch.matmul, *tensors(a, b), tolerance=2e-4)


def test_every_memory_order():
    x, w = tensors((96, 64), (64, 80), grad=False)
    x, w = x.bfloat16(), w.bfloat16()
    want = x.double() @ w.double()
    for a, b in itertools.product((x, x.t().contiguous().t()), (w, w.t().contiguous().t())):
        torch.testing.assert_close(kernels.matmul(a, b).double(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 4096, 512),
        (512, 1, 4096),
        (257, 1023, 511),
        (1023, 1025, 1001),
        (64, 64, 5000),
        (256, 256, 20000),
        (16, 512, 512),
        (31, 640, 1000),
        (1, 1, 100000),
        (777, 1024, 999),
    ],
)
def test_odd_shapes(shape):
    m, n, k = shape
    x, w = tensors((m, k), (k, n), grad=False)
    x, w = x.bfloat16(), w.bfloat16()
    for a, b in (
        (x, w),
        (x.t().contiguous().t(), w.t().contiguous().t()),
        (torch.zeros(m, k + 1, device=DEVICE).bfloat16()[:, :-1].copy_(x), w),
    ):
        want = a.double() @ b.double()
        assert (kernels.matmul(a, b).double() - want).norm() <= 4e-3 * want.norm()


def test_compiles_and_passes_opcheck():
    x, w, bias = tensors((33, 20), (20, 17), (17,))
    same_gradients(
        torch.compile(lambda a, b, c: kernels.matmul(a * 2, b, c, "silu").sum(0), fullgraph=True),
        lambda a, b, c: torch.nn.functional.silu(a * 2 @ b + c).sum(0),
        x,
        w,
        bias,
        tolerance=2e-4,
    )
    torch.library.opcheck(torch.ops.tkc.matmul, (x, w, bias, "relu"))
    out = torch.empty(33, 17, device=DEVICE)
    assert kernels.matmul(x.detach(), w.detach(), out=out) is out
    torch.testing.assert_close(out, x.detach() @ w.detach(), rtol=1e-4, atol=1e-4)
