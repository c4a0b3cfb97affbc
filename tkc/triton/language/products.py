"""dot and dot_scaled."""

from __future__ import annotations

from typing import Any

from tkc.language import operations, values
from tkc.language.tracer import fail
from tkc.language.values import Tile
from tkc.triton.language import types
from tkc.triton.language.constants import unwrap
from tkc.triton.language.context import settings
from tkc.triton.language.shapes import block
from tkc.triton.language.types import dtype
from tkc.triton.language.values import cast, known_type, tensor

# Triton's precisions of float32; three products of bfloat16 are done as three of tf32
PRECISIONS = {"ieee": "ieee", "tf32": "tf32", "tf32x3": "tf32x3"} | {
    "bf16x3": "tf32x3",
    "bf16x6": "tf32x3",
}
OPERANDS = ("int8", "uint8", "fp16", "bf16", "fp32", "fp64")


def dot(
    input: tensor,
    other: tensor,
    acc: Any = None,
    input_precision: Any = None,
    allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None,
    out_dtype: Any = types.float32,
) -> tensor:
    """acc + input · other, of matrices or batches of them."""
    a, b = block(input, "dot"), block(other, "dot")
    _check(input, other)
    total = unwrap(acc)
    wanted = _result(input.dtype, known_type(out_dtype))
    precision = _precision(input_precision, allow_tf32)
    core_acc = None if total is None else _accumulator(total)
    found = tensor(operations.dot(a, b, core_acc, precision=precision))
    return cast(found, total.dtype if total is not None else wanted)


def _accumulator(acc: tensor) -> Tile:
    """Sums of short floats are kept in float32."""
    short = acc.dtype.is_floating() and acc.dtype.primitive_bitwidth < 32
    return values.as_tile((cast(acc, types.float32) if short else acc).value)


def _check(a: tensor, b: tensor) -> None:
    if a.dtype.is_fp8() and b.dtype.is_fp8():
        return
    if a.dtype.name not in OPERANDS or a.dtype != b.dtype:
        fail(f"tl.dot takes two blocks of one type, got {a.dtype} and {b.dtype}; cast one")


def _result(element: dtype, wanted: dtype) -> dtype:
    if element.is_int():
        return types.int32
    if wanted.name == "bf16":
        fail("out_dtype=tl.bfloat16 of tl.dot; use tl.float32 and cast the result")
    if element.name == "fp64":
        return types.float64
    return types.float32 if element.name in ("fp32", "bf16") else wanted


def _precision(precision: Any, allow_tf32: Any) -> str:
    """Of dots of float32: tf32 unless said otherwise."""
    word = unwrap(precision)
    if word is None:
        allowed = unwrap(allow_tf32)
        word = settings().precision if allowed is None else "tf32" if allowed else "ieee"
    if str(word).lower() not in PRECISIONS:
        fail(f"input_precision is one of {', '.join(map(repr, PRECISIONS))}, got {word!r}")
    return PRECISIONS[str(word).lower()]


# ---- products of numbers with a scale for each 32 (or 16) along k
FORMATS = {"e5m2": types.float8e5, "e4m3": types.float8e4nv} | {
    "bf16": types.bfloat16,
    "fp16": types.float16,
    "e2m1": None,
}


def dot_scaled(
    lhs: tensor,
    lhs_scale: Any,
    lhs_format: Any,
    rhs: tensor,
    rhs_scale: Any,
    rhs_format: Any,
    acc: Any = None,
    fast_math: Any = False,
    lhs_k_pack: Any = True,
    rhs_k_pack: Any = True,
    out_dtype: Any = types.float32,
) -> tensor:
    """acc + (lhs × its scales) · (rhs × its scales). Scales are powers of two (e8m0, as uint8) for
    32 numbers each, or float8e4nv for 16; the product is computed in bfloat16 (in float16 where
    an operand is).
    """
    a = _numbers(lhs, unwrap(lhs_format), -1 if unwrap(lhs_k_pack) else -2)
    b = _numbers(rhs, unwrap(rhs_format), -2 if unwrap(rhs_k_pack) else -1)
    exact = "fp16" if "fp16" in (unwrap(lhs_format), unwrap(rhs_format)) else "bf16"
    element = dtype(exact)
    left = _scaled(cast(tensor(a), element), unwrap(lhs_scale))
    right = _scaled(cast(tensor(b.T), element), unwrap(rhs_scale))
    product = dot(left, right.T, unwrap(acc))
    return cast(product, product.dtype if unwrap(acc) is not None else known_type(out_dtype))


def _numbers(x: tensor, form: Any, packed: int) -> Tile:
    """Operands as numbers: 4-bit ones are unpacked, the lower half of a byte first."""
    if form not in FORMATS:
        fail(f"the format of tl.dot_scaled is one of {', '.join(FORMATS)}, got {form!r}")
    value, into = block(x, "dot_scaled"), FORMATS[form]
    if into is not None:
        same = x.dtype == into
        return value if same else values.as_tile(value.to(into.core, bitcast=True))
    both = [_e2m1(value & 15), _e2m1(value >> 4)]
    if packed == -1:
        return operations.interleave(*both)
    turned = [values.as_tile(h).T for h in both]
    return operations.interleave(*turned).T


def _e2m1(bits: Any) -> Tile:
    """Four bits (sign, two of exponent, one of mantissa) as bfloat16: their place in one is that of
    a number 2^126 times smaller.
    """
    word = bits.to(types.uint16.core)
    small = (((word & 8) << 12) | ((word & 7) << 6)).to(types.bfloat16.core, bitcast=True)
    return values.as_tile(small * values.number(2.0**126, types.bfloat16.core))


def _scaled(x: tensor, scale: Any) -> tensor:
    """Each group along the last axis times its scale."""
    if scale is None:
        return x
    value, factors = block(x, "dot_scaled"), block(scale, "dot_scaled")
    groups, element = factors.shape[-1], value.dtype
    if scale.dtype.is_fp8():
        factor = values.cast(factors, element)
    else:
        exponent = factors.to(types.uint16.core)
        bits = (exponent << 7).to(types.bfloat16.core, bitcast=True)  # 2 ** (scale - 127)
        tiny, nan = (values.number(n, types.bfloat16.core) for n in (2.0**-127, float("nan")))
        power = operations.where(exponent == 0, tiny, bits)
        factor = values.cast(values.lift(operations.where(exponent == 0xFF, nan, power)), element)
    k = value.shape[-1]
    grouped = value.reshape(*value.shape[:-1], groups, k // groups)
    product = grouped * values.as_tile(factor)[..., None]
    return tensor(values.as_tile(product).reshape(value.shape))
