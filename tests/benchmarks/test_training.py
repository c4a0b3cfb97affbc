"""The model that benchmarks/training.py races, with this library's parts and with torch's own."""

import pytest

from benchmarks import training
from tests.kernels.checks import torch_with_ops


def test_parts_agree():
    torch = torch_with_ops()
    model, generator = training.Model(2, 64, 4, 2, 96, 101), torch.Generator().manual_seed(0)
    weights = training.weights(model, lambda *shape: torch.randn(*shape, generator=generator))
    tokens = torch.randint(0, model.classes, (2, 24), generator=generator)
    given = weights, tokens, *training.angles(model, 24, weights[0])
    plain, ours = (
        training.stepped(model, parts(), False, *given)()
        for parts in (training.plain, training.ours)
    )
    assert float((ours - plain).norm()) == pytest.approx(0, abs=1e-5 * float(plain.norm()))
