"""Gradients with torch at sizes that only a GPU computes in time; tests/kernels/test_torch.py has
those of every function.
"""

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.test_grouped import test_gradients  # noqa: E402, F401
from tkc import kernels  # noqa: E402


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)])
@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("ends", [[300, 300, 301, 990, 1000], [0, 64, 192, 192, 640], [1000] * 5])
def test_gradients_of_grouped_products(ends, expanded, dtype, tolerance):
    """Groups that are empty, that end inside a block and at one; matrices in both memory orders; a
    gradient of the sum, whose strides are 0.
    """
    made = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.randn(s, device="cuda", generator=made).to(dtype).requires_grad_()
        for s in ((1000, 256), (5, 384, 256))
    )
    last = torch.tensor(ends, device="cuda", dtype=torch.int32)
    c = kernels.grouped_matmul(a, b.transpose(1, 2), last)
    grad = (
        torch.ones((), device="cuda", dtype=dtype).expand(c.shape)
        if expanded
        else torch.randn(c.shape, device="cuda", generator=made).to(dtype)
    )
    da, db = torch.autograd.grad(c, (a, b), grad)
    wide, matrices = (x.detach().double().requires_grad_() for x in (a, b))
    want = torch.cat(
        [
            *(
                wide[start:end] @ matrices[g].T
                for g, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
            ),
            torch.zeros(1000 - ends[-1], 384, device="cuda", dtype=torch.double),
        ]
    )
    for got, right in zip(
        (c, da, db),
        (want, *torch.autograd.grad(want, (wide, matrices), grad.double())),
        strict=False,
    ):
        assert (
            got.dtype is dtype
            and got.shape == right.shape
            and float((got.double() - right).norm()) <= tolerance * float(right.norm())
        )
