"""Floating-point functions as PTX: what the hardware has, and short formulas for what it has not.

f16, bf16 and f8 are computed in float32 and rounded by the caller; for them the hardware's approximations are exact enough.
Errors in ulp of float32: div, exp2, log2 2; exp 2; sqrt, rsqrt 2; reciprocal 1.
"""
from __future__ import annotations

from xdsl.ir import Attribute

from tkc.codegen.ptx.values import compute_class, compute_type
from tkc.codegen.ptx.writer import Operand
from tkc.ir.types import bits

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LN2_HI, LN2_LO = 0.693145751953125, 1.428606765330187e-06


def _simple(f32: str, f64: str | None = None):
    """One instruction; of float64 another, or none."""
    def apply(e, t: Attribute, *args: Operand) -> Operand:
        if bits(t) < 64: return e.w.op(f32, "b32", *args, type="f32")
        if f64 is None: e.fail(f"'{f32.partition('.')[0]}' of float64 has no GPU form yet: cast to float32")
        return e.w.op(f64, "b64", *args, type="f64")
    return apply


def _extremum(name: str):
    """NaN wins."""
    def apply(e, t: Attribute, a: Operand, b: Operand) -> Operand:
        if not isinstance(a, str): a, b = b, a
        if bits(t) < 64: return e.w.op(f"{name}.NaN.f32", "b32", a, b, type="f32")
        odd = e.w.op("setp.nan.f64", "pred", a, b)
        return e.w.op("selp.f64", "b64", e.w.op("add.f64", "b64", a, b), e.w.op(f"{name}.f64", "b64", a, b), odd)
    return apply


def exp(e, t: Attribute, x: Operand) -> Operand:
    """2**n 2**f with n = floor(x log2 e): both factors are exact enough, and -inf, inf and NaN come out right."""
    w = e.w
    if bits(t) == 64: e.fail("'exp' of float64 has no GPU form yet: cast to float32")
    if bits(t) < 32: return w.op("ex2.approx.ftz.f32", "b32", w.op("mul.f32", "b32", x, LOG2E))
    x = w.op("min.NaN.f32", "b32", w.op("max.NaN.f32", "b32", x, -104.0), 89.0)
    n = w.op("sub.rn.f32", "b32", w.op("fma.rm.f32", "b32", x, LOG2E, 12582912.0), 12582912.0)
    rest = w.op("fma.rn.f32", "b32", n, -LN2_LO, w.op("fma.rn.f32", "b32", n, -LN2_HI, x))
    return w.op("mul.f32", "b32", w.op("ex2.approx.f32", "b32", w.op("mul.f32", "b32", rest, LOG2E)), w.op("ex2.approx.f32", "b32", n))


FUNCTIONS = {
    "add": _simple("add.f32", "add.f64"), "sub": _simple("sub.f32", "sub.f64"), "mul": _simple("mul.f32", "mul.f64"),
    "fma": _simple("fma.rn.f32", "fma.rn.f64"), "neg": _simple("neg.f32", "neg.f64"), "abs": _simple("abs.f32", "abs.f64"),
    "max": _extremum("max"), "min": _extremum("min"),
    "div": _simple("div.full.f32", "div.rn.f64"), "div_rn": _simple("div.rn.f32", "div.rn.f64"), "reciprocal": _simple("rcp.rn.f32", "rcp.rn.f64"),
    "sqrt": _simple("sqrt.rn.f32", "sqrt.rn.f64"), "rsqrt": _simple("rsqrt.approx.f32", "rsqrt.approx.f64"),
    "exp2": _simple("ex2.approx.ftz.f32"), "log2": _simple("lg2.approx.ftz.f32"), "exp": exp,
    "floor": _simple("cvt.rmi.f32.f32", "cvt.rmi.f64.f64"), "ceil": _simple("cvt.rpi.f32.f32", "cvt.rpi.f64.f64"),
    "round": _simple("cvt.rni.f32.f32", "cvt.rni.f64.f64"), "trunc": _simple("cvt.rzi.f32.f32", "cvt.rzi.f64.f64"),
}
