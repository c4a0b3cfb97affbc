"""What computes: integers, floats, bits, predicates."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from tkc.sim.ptx.faults import Unknown
from tkc.sim.ptx.kinds import FLOATS, KIND_BYTES, KIND_TYPES, PAIRS
from tkc.sim.ptx.machine import ClusterMachine, rule
from tkc.sim.ptx.text import Instruction

Numbers = list[np.ndarray]  # the operands of an instruction
# computes a result of the operands, the opcode's words and the kind
Compute = Callable[[Numbers, list[str], str], Any]

COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "neu": np.not_equal,
    "gtu": lambda a, b: ~(a <= b),
    "ltu": lambda a, b: ~(a >= b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
LOGIC: dict[str, Callable[..., np.ndarray]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
}
u64 = np.uint64


def numbers(m: ClusterMachine, operand: str, i: Instruction) -> np.ndarray:
    """What an instruction reads: a number a thread, or two of each, the lower half first; without
    subnormal floats where it flushes them.
    """
    if i.kind in PAIRS:
        words = np.ascontiguousarray(m.read(operand, "b32"))
        return flushed(words.view(KIND_TYPES[PAIRS[i.kind]]), i)
    return flushed(m.read(operand, i.kind), i)


def flushed(x: np.ndarray, i: Instruction) -> np.ndarray:
    """Floats, subnormal ones as zeros of their sign under `.ftz`."""
    if "ftz" not in i.parts:
        return x
    small = np.abs(x) < ml_dtypes.finfo(x.dtype).smallest_normal
    return np.where(small, np.copysign(0, x), x).astype(x.dtype, copy=False)


def as_words(x: np.ndarray, i: Instruction) -> np.ndarray:
    """A result as the register takes it: pairs as words."""
    x = flushed(x, i)
    if i.kind not in PAIRS:
        return x
    return np.ascontiguousarray(x.astype(KIND_TYPES[PAIRS[i.kind]], copy=False)).view(np.uint32)


def clipped(x: np.ndarray, parts: list[str]) -> np.ndarray:
    """A float result under `.sat` (0 to 1, NaN as 0) and `.relu` (no less than 0)."""
    if "sat" in parts:
        return np.where(np.isnan(x), 0, np.clip(x, 0, 1))
    return np.maximum(x, 0) if "relu" in parts else x


def arithmetic(head: str) -> Callable[[Compute], Compute]:
    """Registers the rule that a function of operands makes; of predicates, the one of LOGIC."""

    def register(fn: Compute) -> Compute:
        def compute(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
            (into, *operands), kind = i.operands, i.kind
            if kind == "pred":
                return m.write(into, LOGIC[head](*map(m.predicate, operands)), mask)
            each = PAIRS.get(kind, kind)
            given = [numbers(m, o, i) for o in operands]
            result = np.asarray(fn(given, i.parts, each)).astype(KIND_TYPES[each], copy=False)
            m.write(into, as_words(result, i), mask)

        rule(head)(compute)
        return fn

    return register


ELEMENTWISE: dict[str, Callable[[Numbers], Any]] = {
    "and": lambda x: x[0] & x[1],
    "or": lambda x: x[0] | x[1],
    "xor": lambda x: x[0] ^ x[1],
    "not": lambda x: ~x[0],
    "neg": lambda x: -x[0],
    "abs": lambda x: np.abs(x[0]),
    "copysign": lambda x: np.copysign(x[1], x[0]),
    "rcp": lambda x: 1 / x[0],
    "sqrt": lambda x: np.sqrt(x[0]),
}
# functions of float32 that are computed in float64 and rounded once
TRANSCENDENTAL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}


def _elementwise(fn: Callable[[Numbers], Any]) -> Compute:
    return lambda x, parts, kind: fn(x)


def _transcendental(fn: Callable[[np.ndarray], np.ndarray]) -> Compute:
    return lambda x, parts, kind: fn(x[0].astype(np.float64) if kind == "f32" else x[0])


for name, elementwise in ELEMENTWISE.items():
    arithmetic(name)(_elementwise(elementwise))
for name, function in TRANSCENDENTAL.items():
    arithmetic(name)(_transcendental(function))


def extreme(dropping: Callable, keeping: Callable) -> Compute:
    """The smaller or larger of two; of NaN and a number the number, or NaN under `.NaN`."""

    def compute(x: Numbers, parts: list[str], kind: str) -> np.ndarray:
        if "xorsign" in parts:
            raise Unknown(".xorsign")
        drops = kind in FLOATS and "NaN" not in parts
        return clipped((dropping if drops else keeping)(*x), parts)

    return compute


arithmetic("min")(extreme(np.fmin, np.minimum))
arithmetic("max")(extreme(np.fmax, np.maximum))


def saturating(fn: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Compute:
    """A sum or difference, which `.sat` keeps within 32 bits, a float between 0 and 1."""

    def compute(x: Numbers, parts: list[str], kind: str) -> np.ndarray:
        if kind in FLOATS:
            return clipped(fn(*x), parts)
        if "sat" in parts:
            wide = fn(x[0].astype(np.int64), x[1].astype(np.int64))
            return np.clip(wide, -1 << 31, (1 << 31) - 1)
        return fn(*x)

    return compute


arithmetic("add")(saturating(np.add))
arithmetic("sub")(saturating(np.subtract))


def product_of_floats(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """mul of floats; mad of floats is fma by another name."""
    given = [numbers(m, o, i) for o in i.operands[1:]]
    each = PAIRS.get(i.kind, i.kind)
    found = fma(given, i.parts, each) if len(given) == 3 else clipped(given[0] * given[1], i.parts)
    m.write(i.operands[0], as_words(found.astype(KIND_TYPES[each]), i), mask)


@rule("mul", "mad")
def product(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """mul and mad: the low half of a product, its high half, or all of it in a type of twice the
    width.
    """
    kind, ops = i.kind, i.operands
    if kind in PAIRS or kind in FLOATS:
        return product_of_floats(m, i, mask)
    a, b, bits = m.read(ops[1], kind), m.read(ops[2], kind), 8 * KIND_BYTES[kind]
    double = f"{kind[0]}{2 * bits}"
    if "wide" in i.parts:
        found, kind = a.astype(KIND_TYPES[double]) * b.astype(KIND_TYPES[double]), double
    elif "hi" in i.parts:
        found = high_half(a, b, bits).astype(KIND_TYPES[kind])
    else:
        found = a * b
    m.write(ops[0], found + m.read(ops[3], kind) if i.parts[0] == "mad" else found, mask)


def high_half(a: np.ndarray, b: np.ndarray, bits: int) -> np.ndarray:
    """The upper bits of the product of integers of so many bits."""
    if bits == 32:
        # of unsigned numbers too: whoever takes 32 bits of it gets those of the product
        return a.astype(np.int64) * b.astype(np.int64) >> 32
    whole = [int(x) * int(y) >> bits & (1 << bits) - 1 for x, y in zip(a, b, strict=True)]
    return np.array(whole, u64)


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers, towards zero; by zero: 0."""
    if a.dtype.kind == "u":
        return np.where(b == 0, 0, a // np.where(b == 0, 1, b))
    found = np.abs(a.astype(np.longdouble)) // np.abs(np.where(b == 0, 1, b).astype(np.longdouble))
    return np.where(b == 0, 0, np.where((a < 0) == (b < 0), found, -found)).astype(a.dtype)


@arithmetic("div")
def div(x: Numbers, parts: list[str], kind: str) -> np.ndarray:
    return x[0] / x[1] if kind[0] == "f" else quotient(x[0], x[1])


@arithmetic("rem")
def rem(x: Numbers, parts: list[str], kind: str) -> np.ndarray:
    return x[0] - quotient(x[0], x[1]) * x[1]


def cancelled(a: float, b: float, c: float) -> float:
    """a * b + c, rounded once, where little of c is left: as fractions, none of which is rounded or
    overflows.
    """
    return float(Fraction(a) * Fraction(b) + Fraction(c))


@arithmetic("fma")
def fma(x: Numbers, parts: list[str], kind: str) -> np.ndarray:
    wider: type[Any] = np.float64 if kind == "f32" else np.longdouble
    a, b, c = (v.astype(wider) for v in x)
    found = a * b + c
    if kind == "f64":
        found = found.astype(np.float64)
        for i in np.flatnonzero(np.abs(found) < np.abs(x[2]) / 16):
            found[i] = cancelled(*(float(v[i]) for v in x))
    found = clipped(found, parts)
    if "rm" not in parts:
        return found
    rounded = found.astype(np.float32)
    return np.where(rounded > found, np.nextafter(rounded, np.float32(-np.inf)), rounded)


@rule("setp")
def setp(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    found = COMPARISONS[i.parts[1]](m.read(i.operands[1], i.kind), m.read(i.operands[2], i.kind))
    if "and" in i.parts:
        found = found & m.predicate(i.operands[3])
    m.write(i.operands[0], found, mask)


@rule("selp")
def selp(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    m.write(
        i.operands[0],
        np.where(
            m.predicate(i.operands[3]), m.read(i.operands[1], i.kind), m.read(i.operands[2], i.kind)
        ),
        mask,
    )


@rule("mov")
def mov(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    (into, source), width = i.operands, i.kind[1:]
    if i.kind == "pred":
        return m.write(into, m.predicate(source), mask)
    if isinstance(into, list):
        raw, bits = m.read(source, f"u{width}"), int(width) // len(into)
        for k, r in enumerate(into):
            m.write(r, raw >> raw.dtype.type(k * bits) & raw.dtype.type((1 << bits) - 1), mask)
    elif isinstance(source, list):
        bits, whole = int(width) // len(source), np.zeros(m.n, u64)
        for k, r in enumerate(source):
            whole |= m.read(r, f"u{bits}").astype(u64) << u64(k * bits)
        m.write(into, whole, mask)
    else:
        m.write(into, m.read(source, f"u{width}"), mask)


# ---- bits
# --------------------------------------------------------------------------------------------------
@rule("shl", "shr")
def shift(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """By more than the width: nothing is left, or the sign."""
    a, by, bits = (
        m.read(i.operands[1], i.kind),
        m.read(i.operands[2], "u32"),
        8 * KIND_BYTES[i.kind],
    )
    few = np.minimum(by, bits - 1).astype(a.dtype)
    if i.parts[0] == "shr" and a.dtype.kind == "i":
        return m.write(i.operands[0], a >> few, mask)
    m.write(
        i.operands[0],
        np.where(by < bits, a << few if i.parts[0] == "shl" else a >> few, a.dtype.type(0)),
        mask,
    )


@rule("shf")
def funnel(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    low, high, by = (m.read(o, "u32").astype(u64) for o in i.operands[1:])
    by, both = by & u64(31) if "wrap" in i.parts else np.minimum(by, u64(32)), high << u64(32) | low
    m.write(
        i.operands[0],
        (both << by >> u64(32) if i.parts[1] == "l" else both >> by).astype(np.uint32),
        mask,
    )


@rule("bfe")
def bfe(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    x, at, width = (m.read(o, "u32") for o in i.operands[1:])
    m.write(i.operands[0], x >> at & (np.uint32(1) << width) - np.uint32(1), mask)


@rule("bfi")
def bfi(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    x, into, at, width = (m.read(o, "u32") for o in i.operands[1:])
    hole = (np.uint32(1) << width) - np.uint32(1) << at
    m.write(i.operands[0], into & ~hole | x << at & hole, mask)


@rule("popc", "clz", "brev")
def count(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    a, bits = m.read(i.operands[1], i.kind), 8 * KIND_BYTES[i.kind]
    one = {
        "popc": lambda x: x.bit_count(),
        "clz": lambda x: bits - x.bit_length(),
        "brev": lambda x: int(f"{x:0{bits}b}"[::-1], 2),
    }[i.parts[0]]
    m.write(i.operands[0], np.array([one(int(x)) for x in a], u64), mask)


@rule("lop3")
def lop3(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """Any function of three bits, given as its table."""
    a, b, c = (m.read(o, "u32") for o in i.operands[1:4])
    table, found = int(i.operands[4], 0), np.zeros(m.n, np.uint32)
    for row in range(8):
        if table >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    m.write(i.operands[0], found, mask)


@rule("prmt")
def prmt(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    both = np.stack([m.read(o, "u32") for o in i.operands[1:3]], 1).view(np.uint8)
    selector = m.read(i.operands[3], "u32")
    nibbles = selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & np.uint32(15)
    found = np.take_along_axis(both, (nibbles & 7).astype(np.int64), 1)
    signs = np.where(found & 128, np.uint8(255), np.uint8(0))
    out = np.where(nibbles & 8, signs, found)
    m.write(i.operands[0], np.ascontiguousarray(out).view(np.uint32)[:, 0], mask)
