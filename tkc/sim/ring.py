"""Exact arithmetic for validation: a float of w bits is an integer modulo 2ʷ, so that sums and
products are the same in every order, and two programs agree to the last bit or are different.

`retyped` turns a module of any level into one over integers of the same widths: the simulator's own
rules then add, multiply, reduce, compare and multiply matrices modulo 2ʷ, and casts extend or cut
bits, which respects sums and products. What integers have no rule for is here:

    exp2            powers of 5, so that exp2(x + y) = exp2(x)·exp2(y);   exp(x) = exp2(x · log2 e)
    x / y           x times a bijection of y
    sin, sqrt, …    a bijection of the bits each, which no other function shares
    constants       whole numbers are themselves; others by a hash of their first bits, the same in
                    every type

Facts of real numbers do not hold (0.5 + 0.5 is not 1): a pass that uses them says `REAL = True` and
is validated in IEEE arithmetic alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Attribute, Operation, ParametrizedAttribute

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import ArrayType, PointerType, bits, element_of, is_float
from tkc.sim import dataflow, level0

WORD_MASK = (1 << 64) - 1  # of 64 bits


def mixed(n: int) -> int:
    """64 bits that depend on all of n's."""
    for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
        n = (n ^ n >> 31) * factor & WORD_MASK
    return n ^ n >> 29


def embed(value: float, width: int) -> int:
    """A float's integer of `width` bits. −inf is the least one, inf the greatest."""
    if math.isinf(value):
        return (1 << width - 1) - 1 if value > 0 else -1 << width - 1
    if math.isnan(value):
        n = mixed(0)
    elif value == int(value) and abs(value) < 1 << 31:
        n = int(value)
    else:
        mantissa, exponent = math.frexp(abs(value))
        n = mixed(round(mantissa * 4) + exponent * 1000 & WORD_MASK) * (1 if value > 0 else -1)
    n &= (1 << width) - 1
    return n - (n >> width - 1 << width)


# --------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def retype(t: Attribute) -> Attribute:
    """A type with integers for floats."""
    if is_float(t):
        return IntegerType(bits(t))
    return (
        type(t).new([retype(p) for p in t.parameters])
        if isinstance(t, ParametrizedAttribute) and t.parameters
        else t
    )


def retyped(module: ModuleOp) -> ModuleOp:
    """A copy over integers. It need not verify; it runs."""
    module = module.clone()
    for op in module.walk():
        if isinstance(op, tile.Constant) and isinstance(op.value, FloatAttr):
            width = bits(op.value.type)
            op.properties["value"] = IntegerAttr(
                embed(op.value.value.data, width), IntegerType(width)
            )
        for value in (
            *op.results,
            *(a for region in op.regions for b in region.blocks for a in b.args),
        ):
            value._type = retype(value.type)
    return module


def arguments(kernel: tile.Kernel, given: Sequence[Any], seed: int) -> list[Any]:
    """Arguments of the kernel as its retyped form takes them: floats in arrays (written in place)
    become random bits.
    """
    rng, out = np.random.default_rng(seed), []
    for argument, value in zip(kernel.arguments, given, strict=False):
        t = argument.type
        if isinstance(t, (ArrayType, PointerType)):
            if is_float(t.element):
                value = value.view(f"i{value.itemsize}")
                value[...] = rng.integers(0, 256, (*value.shape, value.itemsize), np.uint8).view(
                    value.dtype
                )[..., 0]
        elif is_float(t):
            value = embed(float(value), bits(t))
        out.append(value)
    return out


# --------------------------------------------------------------------------------------------------
@cache
def _powers(itemsize: int) -> list[np.ndarray]:
    """5 to each value of each byte of a number, the lowest byte first."""
    of_bytes, base, kind = [], 5, np.dtype(f"u{itemsize}")
    for _ in range(itemsize):
        row = [pow(base, n, 1 << 8 * itemsize) for n in range(256)]
        of_bytes.append(np.array(row, kind))
        base = pow(base, 256, 1 << 8 * itemsize)
    return of_bytes


def power(x: np.ndarray) -> np.ndarray:
    """5ˣ."""
    x = level0.unsigned(x)
    kind = x.dtype.type
    result = np.ones_like(x)
    for k, powers in enumerate(_powers(x.dtype.itemsize)):
        result = result * powers[x >> kind(8 * k) & kind(255)]
    return result


def bijection(tag: str) -> Callable[..., np.ndarray]:
    """A function of bits, another one for each tag; of two arguments, a bijection of each where the
    other is constant.
    """
    seed = mixed(int.from_bytes(tag.encode(), "little") & WORD_MASK)

    def f(*arguments: np.ndarray) -> np.ndarray:
        x = [level0.unsigned(v) for v in arguments]
        half, t = x[0].dtype.type(4 * x[0].dtype.itemsize), x[0].dtype.type
        out = np.full_like(x[0], seed & (1 << 8 * x[0].dtype.itemsize) - 1)
        for v in x:
            out = (out ^ v) * t((seed >> 7 | 1) & (1 << 8 * v.dtype.itemsize) - 1)
            out = out ^ out >> half
        return out

    return f


def signed(f: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The same function, with results of its first argument's type."""
    return lambda *x: np.asarray(f(*x)).view(np.asarray(x[0]).dtype)


def _exp(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    return power(x * x.dtype.type(embed(math.log2(math.e), 8 * x.dtype.itemsize)))


reciprocal = signed(bijection("reciprocal"))
FUNCTIONS: dict[str, level0.Function] = (
    level0.FUNCTIONS
    | {
        name: signed(bijection(name))
        for name in (
            "log",
            "log2",
            "log1p",
            "sqrt",
            "rsqrt",
            "sin",
            "cos",
            "tanh",
            "erf",
            "floor",
            "ceil",
            "round",
            "trunc",
            "pow",
            "atan2",
        )
    }
    | {
        "exp2": signed(power),
        "exp": signed(_exp),
        "expm1": lambda x: signed(_exp)(x) - np.asarray(x).dtype.type(1),
        "reciprocal": reciprocal,
        "isnan": lambda x: np.zeros(np.shape(x), bool),
        "isinf": lambda x: np.zeros(np.shape(x), bool),
    }
)
FUNCTIONS |= dict.fromkeys(("div", "div_rn"), lambda x, y: x * reciprocal(y))


def elementwise(op: ew.Elementwise) -> level0.Rule:
    function, to_type = FUNCTIONS[op.fn.name], level0.rounding_to(element_of(op.result.type))
    return lambda m, op, *x: to_type(function(*x))


def inline(
    m: level0.ProgramInterpreter, op: ew.InlinePtx, *x: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Inline PTX: some function of its operands, another for each result."""
    given = x or (np.zeros((), np.int32),)
    first = np.asarray(given[0]).dtype
    operands = [np.asarray(v).astype(first) for v in given]
    return tuple(
        level0.rounded(signed(bijection(f"{op.text.data} {k}"))(*operands), r.type)
        for k, r in enumerate(op.results)
    )


RULES: level0.Rules = {
    **dict.fromkeys(ew.CLASSES.values(), level0.Prepared(elementwise)),
    ew.InlinePtx: inline,
}


class RingInterpreter(dataflow.DataflowInterpreter):
    """One program of level 0 to 3. Numbers wrap on purpose: nothing is followed beyond its type."""

    rules = dataflow.RULES | RULES

    def _track(self, op: Operation, code: level0.Decoded) -> None:
        return None
