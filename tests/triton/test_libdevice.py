"""libdevice against NumPy in float64."""

import math

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl
from tkc.errors import CompileError
from tkc.triton.language.extra import libdevice

N = 64


@triton.jit
def unary(x, out, F: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, F(tl.load(x + at)))


@triton.jit
def binary(x, y, out, F: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, F(tl.load(x + at), tl.load(y + at)))


def away(x):
    return np.trunc(x + np.copysign(0.5, x))


WIDE, UNIT, POSITIVE = (-20.0, 20.0), (-1.0, 1.0), (0.01, 50.0)
UNARY = {
    **{
        n: (getattr(np, n), WIDE)
        for n in ["sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc"]
    },
    **{n: (getattr(np, n), UNIT) for n in ["exp", "exp2", "expm1"]},
    **{n: (getattr(np, n), POSITIVE) for n in ["log", "log2", "log1p", "log10", "sqrt", "cbrt"]},
    "asin": (np.arcsin, UNIT),
    "acos": (np.arccos, UNIT),
    "atan": (np.arctan, WIDE),
    "asinh": (np.arcsinh, WIDE),
    "acosh": (np.arccosh, (1.0, 30.0)),
    "atanh": (np.arctanh, (-0.99, 0.99)),
    "rint": (np.rint, WIDE),
    "round": (away, WIDE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "erf": (np.vectorize(math.erf), WIDE),
    "exp10": (lambda x: 10.0**x, UNIT),
    "signbit": (np.signbit, WIDE),
    "isnan": (np.isnan, WIDE),
    "llround": (away, WIDE),
    "float2int_rn": (np.rint, WIDE),
    "float2int_rd": (np.floor, WIDE),
    "ilogb": (lambda x: np.floor(np.log2(np.abs(x))), POSITIVE),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name):
    exact, (low, high) = UNARY[name]
    x = np.linspace(low, high, N).astype(np.float32)
    x[:4] = [v for v in (0.5, 0.25, 1.0, 0.75) if low <= v <= high] + [high] * (
        4 - sum(low <= v <= high for v in (0.5, 0.25, 1.0, 0.75))
    )
    out = np.zeros(N, np.float32)
    unary[(1,)](x, out, F=getattr(libdevice, name), N=N)
    np.testing.assert_allclose(out, exact(x.astype(np.float64)), rtol=2e-6, atol=5e-6)


BINARY = {
    "pow": (np.power, POSITIVE, (-2.0, 2.0)),
    "atan2": (np.arctan2, WIDE, WIDE),
    "fmod": (np.fmod, WIDE, (0.5, 3.0)),
    "hypot": (np.hypot, WIDE, WIDE),
    "copysign": (np.copysign, WIDE, UNIT),
    "fdim": (lambda x, y: np.maximum(x - y, 0), WIDE, WIDE),
    "div_rn": (np.divide, WIDE, POSITIVE),
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(name):
    exact, a, b = BINARY[name]
    x, y = np.linspace(*a, N).astype(np.float32), np.linspace(*b, N).astype(np.float32)[::-1].copy()
    out = np.zeros(N, np.float32)
    binary[(1,)](x, y, out, F=getattr(libdevice, name), N=N)
    expected = exact(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(out, expected, rtol=3e-6, atol=1e-5)


def test_quotients_towards_zero():
    x = np.random.default_rng(0).normal(size=N).astype(np.float32)
    y = np.random.default_rng(1).normal(size=N).astype(np.float32)
    out = np.zeros(N, np.float32)
    binary[(1,)](x, y, out, F=libdevice.div_rz, N=N)
    exact = x.astype(np.float64) / y
    assert (np.abs(out) <= np.abs(exact)).all()
    assert (np.abs(np.nextafter(out, np.float32(np.inf) * np.sign(out))) > np.abs(exact)).all()


def test_bits():
    x = np.random.default_rng(0).integers(-(2**31), 2**31, N).astype(np.int32)
    x[:2] = [1, -8]
    for function, exact in (
        (libdevice.popc, lambda v: bin(v).count("1")),
        (libdevice.clz, lambda v: 32 - v.bit_length()),
        (libdevice.ffs, lambda v: (v & -v).bit_length()),
        (libdevice.brev, lambda v: int(f"{v:032b}"[::-1], 2)),
    ):
        out = np.zeros(N, np.int32)
        unary[(1,)](x, out, F=function, N=N)
        assert out.view(np.uint32).tolist() == [exact(int(v)) for v in x.view(np.uint32)]


def test_what_is_not_there_is_refused_by_name():
    with pytest.raises(AttributeError, match="libdevice.j0"):
        libdevice.j0  # noqa: B018
    with pytest.raises(CompileError, match="libdevice.sin takes fp32 or fp64, got fp16"):
        unary[(1,)](np.zeros(N, np.float16), np.zeros(N, np.float16), F=libdevice.sin, N=N)


# by name: arguments at the ends of what a function takes, and what it gives of them
EXTREMES = {
    "acosh": {-1e10: math.nan, -3.4e38: math.nan, 0.5: math.nan, 3e38: math.acosh(3e38)},
    "atanh": {-0.9999999: math.atanh(np.float32(-0.9999999)), -0.0: -0.0, 1.0: math.inf},
    "sinpi": {100.0: 0.0, -100.5: -1.0, 1e10: 0.0, 3.4e38: 0.0, -0.0: -0.0, 0.25: 0.5**0.5},
    "cospi": {0.5: 0.0, 101.0: -1.0, 2.5: 0.0, 3.4e38: 1.0, -0.75: -(0.5**0.5)},
    "normcdf": {x: math.erfc(-x / math.sqrt(2)) / 2 for x in (-13.0, -7.25, -1.0, 0.0, 3.0)},
    "logb": {0.0: -math.inf, -math.inf: math.inf, math.nan: math.nan, 1e-45: -149.0, -8.5: 3.0},
    "ilogb": {0.0: -(2.0**31), math.inf: 2.0**31, 1e-45: -149.0, 1e-38: -127.0, 6.0: 2.0},
    "lgamma": {-1e-30: 69.0775528, 1e-30: 69.0775528, -0.5: math.lgamma(-0.5)},
}


@pytest.mark.parametrize("name", EXTREMES)
def test_functions_at_their_ends(name):
    x, exact = (np.array([*y], np.float32) for y in (EXTREMES[name], EXTREMES[name].values()))
    x, exact = np.resize(x, 8), np.resize(exact, 8)
    out = np.zeros(8, np.float32)
    unary[(1,)](x, out, F=getattr(libdevice, name), N=8)
    np.testing.assert_allclose(out, exact, rtol=2e-6, atol=0)
    zeros = exact == 0
    if name not in ("sinpi", "cospi"):
        assert (np.signbit(out) == np.signbit(exact))[zeros].all()


def remainder(x, y):
    try:
        return math.remainder(x, y)
    except ValueError:
        return math.nan


EXTREMES_OF_TWO = {
    "remainder": np.vectorize(remainder, otypes=[float]),
    "fdim": lambda x, y: np.where(x <= y, 0.0, x - y),
    "hypot": np.hypot,
}


@pytest.mark.parametrize("name", EXTREMES_OF_TWO)
def test_functions_of_two_at_their_ends(name):
    ends = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1, -1, 2, 3, -3, 0.5, 5e9, 3e38, 7, 9]
    x, y = (v.ravel().astype(np.float32) for v in np.meshgrid(ends, ends))
    out = np.zeros(256, np.float32)
    binary[(1,)](x, y, out, F=getattr(libdevice, name), N=256)
    with np.errstate(all="ignore"):
        exact = EXTREMES_OF_TWO[name](x.astype(np.float64), y.astype(np.float64))
        exact = exact.astype(np.float32)
    np.testing.assert_allclose(out, exact, rtol=2e-6, atol=0)
