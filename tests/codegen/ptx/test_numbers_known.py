"""Instructions that what is known of operands spares: both halves of a product by one, logarithms
of normal numbers without what subnormal ones, zeros and negative ones take.
"""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.operations import lift
from tkc.language.random import apply
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE

ROW = ArrayFacts((Fact(),), (Fact(exact=1),), 16)
N = 256


def made_of(kernel, *args, **named):
    made = traced(kernel, *args, **named)
    through(made, PIPELINE[-1], context("sm_90a", num_warps=1))
    return made, emit(made, target("sm_90a")).text


def both_halves(x, out, n, ROUNDS: tkc.constexpr):
    """Numbers whose products' halves are mixed, in a loop whose registers are written in place."""
    i = tkc.arange(0, N)
    a, b = tkc.load(x.ptr + i), tkc.load(x.ptr + N + i)
    for _ in tkc.range(ROUNDS if ROUNDS else n):
        high, low = apply("mulhi", a, b), a * b
        a, b = high ^ b, low ^ apply("mulhi", lift(3_528_531_795, a.dtype), high)
    tkc.store(out.ptr + i, a)
    tkc.store(out.ptr + N + i, b)


def halves(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = a.astype(np.int64) * b if a.dtype == np.int32 else a.astype(np.uint64) * b
    return (wide >> 32).astype(a.dtype), (wide & 0xFFFFFFFF).astype(np.uint32).view(a.dtype)


@pytest.mark.parametrize("rounds", (0, 1, 3))
def test_both_halves_of_a_product_are_one_instruction(rounds):
    given = ArrayArgument(tkc.uint32, ROW)
    made, text = made_of(both_halves, given, given, i32(), ROUNDS=rounds)
    if rounds == 1:
        assert text.count("mul.wide.u32") == text.count("mul.hi.u32") == N // 32
        assert "mul.lo" not in text
    x = np.random.default_rng(rounds).integers(0, 1 << 32, 2 * N, np.uint64).astype(np.uint32)
    out = np.zeros_like(x)
    machine.run(made, [x, out, 5], (1, 1, 1))
    a, b = x[:N], x[N:]
    for _ in range(rounds or 5):
        high, low = halves(a, b)
        a, b = high ^ b, low ^ halves(np.full_like(a, 3_528_531_795), high)[0]
    np.testing.assert_array_equal(out, np.concatenate([a, b]))


def logarithms(x, out, LEAST: tkc.constexpr):
    i = tkc.arange(0, 32)
    v = tkc.load(x.ptr + i)
    if LEAST is not None:
        v = tkc.maximum(v, LEAST) if LEAST > 0 else tkc.abs(v)
    tkc.store(out.ptr + i, tkc.log(v))
    tkc.store(out.ptr + 32 + i, tkc.log2(v))


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1e-39,
    -1e-39,
    1.1754944e-38,
]
SPECIAL += [-1.1754944e-38, 3.4028235e38, -3.4028235e38, 2 / 3, 4 / 3, 0.999, 1.001, 1e-7, 9.9e-8]


@pytest.mark.parametrize(
    "least, is_normal", [(None, False), (1e-7, True), (1e-40, False), (0, False)]
)
def test_logarithms_of_special_numbers(least, is_normal):
    given = ArrayArgument(tkc.float32, ROW)
    made, text = made_of(logarithms, given, given, LEAST=least)
    assert ("lg2.approx.ftz" not in text) == is_normal
    x = np.array([*SPECIAL, *np.random.default_rng(0).normal(0, 9, 11)], np.float32)
    out = np.zeros(64, np.float32)
    machine.run(made, [x, out], (1, 1, 1))
    v = x.astype(np.float64)
    if least is not None:
        v = np.maximum(v, np.float64(np.float32(least))) if least else np.abs(v)
    with np.errstate(all="ignore"):
        want = np.concatenate([np.log(v), np.log2(v)])
    np.testing.assert_allclose(out, want, rtol=4e-7, atol=1e-7)
