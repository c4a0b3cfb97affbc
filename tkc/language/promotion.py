"""In which dtype an operation on values of several dtypes is done, as a kernel's option `semantics`
says.

"torch", the default, is PyTorch's, with weak Python numbers:

    a Python bool, int or float     the dtype of the other operand; float32 of a float and integers
    bool with bool in arithmetic    int32
    two integers                    the wider; of mixed signs the next wider signed
    integer with floating           the floating
    two floating                    the wider; float32 of two of one width; a tile's beside a scalar

One deviation, on purpose: an integer scalar does not take a narrower tile's dtype (offsets are
mathematical integers).

"triton" is that of Triton's language: scalars count as tiles do, and

    a Python number                 the dtype of the other operand unless that is of a lower kind
                                    (bool, integer, floating), and but in comparisons; then as
                                    int32, int64, float32, …
    two integers                    C's: the wider, of one width the unsigned one
    floating with anything else     float64 before float32 before float16; bfloat16 of two of it,
                                    else float32; float16 of two kinds of float8
    / and % of floats of 16 bits    float32
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tkc.language import dtypes
from tkc.language.dtypes import (
    DType,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from tkc.language.tracer import fail

Plain: TypeAlias = int | float
BOOL, INTEGRAL, FLOATING = range(3)


def of_number(number: Plain) -> DType:
    """The dtype of a Python number on its own."""
    if isinstance(number, bool):
        return bool_
    if isinstance(number, int):
        return int32 if -(2**31) <= number < 2**31 else int64
    return float32


# ---- PyTorch's
def promote(a: DType, b: DType, a_tile: bool = True, b_tile: bool = True) -> DType:
    """The dtype of an operation on two typed values (of two truth values, bool)."""
    if a is b:
        return a
    if "bool" in (a.kind, b.kind):
        return b if a.kind == "bool" else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        if a_tile != b_tile:
            return a if a_tile else b
        return float32 if a.bits == b.bits else _wider(a, b)
    return _wider(a, b) if a.kind == b.kind else _of_mixed_signs(a, b)


def _wider(a: DType, b: DType) -> DType:
    return a if a.bits > b.bits else b


def _of_mixed_signs(a: DType, b: DType) -> DType:
    """The narrowest signed dtype that holds a signed and an unsigned one."""
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned.bits == 64:
        fail("int64 and uint64 have no common integer type; cast one of them with .to()")
    return dtypes.BY_NAME[f"int{unsigned.bits * 2}"]


def _weak(number: Plain, other: DType) -> DType:
    """The dtype that a Python number takes beside a value."""
    if isinstance(number, bool):
        return other
    if isinstance(number, int):
        return int32 if other.kind == "bool" else other
    return other if other.is_float else float32


def _torch(typed: Sequence[tuple[DType, bool]], numbers: Sequence[Plain], division: bool) -> DType:
    result, is_tile = typed[0]
    for dtype, tile in typed[1:]:
        result, is_tile = promote(result, dtype, is_tile, tile), is_tile or tile
    for x in numbers:
        result = _weak(x, result)
    return result


# ---- Triton's
def _kind(dtype: DType) -> int:
    return FLOATING if dtype.is_float else BOOL if dtype.kind == "bool" else INTEGRAL


def of_number_in_triton(number: Plain) -> DType:
    """Beside a value of a lower kind, and in comparisons."""
    if isinstance(number, int) and not isinstance(number, bool):
        fitting = ((int32, -(2**31), 2**31), (uint32, 0, 2**32), (int64, -(2**63), 2**63))
        return next((t for t, low, high in fitting if low <= number < high), uint64)
    if isinstance(number, float) and abs(number) > 3.4028235677973366e38 and abs(number) < 1e400:
        return float64
    return of_number(number)


def _of_floats(a: DType, b: DType, division: bool) -> DType:
    """Of two dtypes of which one is floating at least."""
    for t in (float64, float32):
        if t in (a, b):
            return t
    if float16 in (a, b):
        return float32 if division else float16
    if a is b:
        return float32 if division and a.bits == 16 else a
    if dtypes.bfloat16 in (a, b):
        return float32
    if a.is_float and b.is_float:
        return float16  # the two float8
    fail(
        f"{a.name} and {b.name} have no common type in Triton's promotion; cast one of them with"
        " .to()"
    )


def _of_integers(a: DType, b: DType, division: bool) -> DType:
    """C's usual conversions; truth values are integers of one bit."""
    ranks = [1 if t.kind == "bool" else t.bits for t in (a, b)]
    if ranks[0] != ranks[1]:
        if division and "bool" not in (a.kind, b.kind) and a.kind != b.kind:
            _fail_signs(a, b)
        return a if ranks[0] > ranks[1] else b
    if division and a.kind != b.kind:
        _fail_signs(a, b)
    return b if a.kind == "int" else a


def _fail_signs(a: DType, b: DType) -> None:
    fail(
        f"Cannot use `/`, `//` or `%` with {a.name} and {b.name} because they have different"
        " signedness; cast one of them with .to()"
    )


def _pair(a: DType, b: DType, division: bool) -> DType:
    if a.is_float or b.is_float:
        return _of_floats(a, b, division)
    return _of_integers(a, b, division)


def _triton(typed: Sequence[tuple[DType, bool]], numbers: Sequence[Plain], division: bool) -> DType:
    result = typed[0][0]
    for dtype, _ in typed[1:]:
        result = _pair(result, dtype, division)
    for x in numbers:
        own = of_number_in_triton(x)
        if _kind(own) > _kind(result):
            result = _pair(result, own, division) if result.kind != "bool" else own
        elif division and result.is_float and result.bits == 16:
            result = float32
    return result


RULES: dict[str, Callable[[Sequence[tuple[DType, bool]], Sequence[Plain], bool], DType]] = {
    "torch": _torch,
    "triton": _triton,
}
"""The dtype in which an operation is done, by the name of the semantics: of the dtypes of values,
each with whether it is a tile (one at least), of Python numbers, and whether it divides.
"""
