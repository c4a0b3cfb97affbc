"""Gradients of recurrences over thousands of positions, in 16 bits, against float64: what rounding
leaves of a position must not add up.
"""

import numpy as np
import pytest

from tests.kernels import test_delta_rule as delta_rule
from tests.kernels import test_gated_scan as gated_scan
from tests.kernels import test_linear_attention as linear_attention
from tests.kernels import test_rwkv as rwkv
from tests.kernels import test_selective_scan as selective_scan
from tests.kernels import test_state_space as state_space
from tests.kernels.checks import double, numbers
from tkc import kernels

DTYPE, WIDTH = "bfloat16", 64
BOUND = 0.02  # of the norm: some 5 units of 2^-8, at any length


def of_linear_attention(length, kind, weighted=False):
    shape = (1, length, 1, WIDTH, WIDTH)
    case = linear_attention.Case(shape, kind, DTYPE, weighted=weighted)
    got = kernels.linear_attention_backward(case.grad, *case.given, None, case.grad_final)
    return zip(("q", "k", "v", "g", "weight", "initial"), got, case.gradients(), strict=True)


def of_ssd(length):
    case = state_space.Case((1, length, 1, WIDTH, WIDTH))
    for name in ("x", "b", "c", "z", "grad"):
        setattr(case, name, getattr(case, name).astype(numbers((), DTYPE).dtype))
    got = kernels.ssd_backward(case.grad, *case.given, case.grad_final)
    _, _, want = case.wanted()
    return zip(want, got, want.values(), strict=True)


def of_delta_rule(length, gated):
    given = delta_rule.arguments((1, length, 1, WIDTH, WIDTH), gated, dtype=DTYPE)
    grad, last = numbers(given[2].shape, DTYPE, 7), numbers(given[5].shape, seed=8)
    got = kernels.delta_rule_backward(grad, *given, grad_final=last)
    want = delta_rule.wanted_gradients(grad, last, given)
    return zip(("q", "k", "v", "beta", "g", "initial"), got, want, strict=True)


def of_rwkv(length):
    given = rwkv.arguments((1, length, 1, WIDTH, WIDTH), DTYPE)
    grad, last = numbers(given[3].shape, DTYPE, 7), numbers(given[6].shape, seed=8)
    got = kernels.rwkv7_backward(grad, *given, least=rwkv.LEAST_DECAY, grad_final=last)
    want = rwkv.wanted_gradients(grad, last, given)
    return zip(("q", "g", "k", "v", "a", "b", "initial"), got, want, strict=True)


def of_hgrn(length):
    shape = (1, length, 5)
    x, grad = numbers(shape, DTYPE), numbers(shape, DTYPE, 1)
    g = -np.abs(numbers(shape, seed=2)).astype(x.dtype)
    initial, last = (numbers((1, 5), seed=i) for i in (3, 4))
    h, _ = kernels.hgrn(x, g, initial)
    got = kernels.hgrn_backward(grad, g, h, initial, None, last)
    _, _, *want = gated_scan.wanted(grad, last, x, g, initial, None)
    return zip(("x", "g", "initial"), got, want, strict=True)


def of_selective_scan(length):
    given = selective_scan.arguments((1, length, 6), 16, DTYPE)
    grad, last = numbers(given[0].shape, DTYPE, 9), numbers(given[8].shape, seed=10)
    got = kernels.selective_scan_backward(grad, *given[:8], True, given[8], None, last)
    _, _, want = selective_scan.wanted(given, grad, last, None, True)
    return zip(selective_scan.NAMES, got, want, strict=True)


RECURRENCES = {
    "simple GLA": lambda length: of_linear_attention(length, "g"),
    "simple GLA, weighted": lambda length: of_linear_attention(length, "g", True),
    "retention": lambda length: of_linear_attention(length, "rate"),
    "linear attention": lambda length: of_linear_attention(length, "none"),
    "GLA": lambda length: of_linear_attention(length, "channels"),
    "SSD": of_ssd,
    "delta rule": lambda length: of_delta_rule(length, ""),
    "gated delta rule": lambda length: of_delta_rule(length, "head"),
    "Kimi delta attention": lambda length: of_delta_rule(length, "channel"),
    "RWKV-7": of_rwkv,
    "HGRN": of_hgrn,
    "selective scan": of_selective_scan,
}


@pytest.mark.parametrize("length", [2048, 8192])
@pytest.mark.parametrize("name", RECURRENCES)
def test_rounding_does_not_add_up(name, length):
    for of, got, want in RECURRENCES[name](length):
        if got.size:
            error = np.linalg.norm(double(got) - want) / np.linalg.norm(want)
            assert error <= BOUND, f"the gradient of {of} is wrong by {error:.4f} of its norm"
