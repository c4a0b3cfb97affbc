"""What computes: integers, floats, bits, predicates, conversions."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from tkc.sim.ptx.machine import SIZE, TYPES, Machine, rule
from tkc.sim.ptx.text import Instruction, Unknown

COMPARE = {
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
WHOLE = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
u64 = np.uint64


def arithmetic(head: str) -> Callable:
    """A rule from a function of (operands, opcode's words, kind); on predicates where the kind says
    so.
    """

    def register(fn: Callable) -> Callable:
        def compute(m: Machine, i: Instruction, mask: np.ndarray) -> None:
            kind = i.kind
            if kind == "pred":
                return m.write(i.operands[0], LOGIC[head](*map(m.predicate, i.operands[1:])), mask)
            m.write(
                i.operands[0],
                np.asarray(fn([m.read(o, kind) for o in i.operands[1:]], i.parts, kind)).astype(
                    TYPES[kind], copy=False
                ),
                mask,
            )

        rule(head)(compute)
        return fn

    return register


LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}


def wide(v, kind):
    return v.astype(np.float64) if kind == "f32" else v


for name, fn in {
    "and": lambda x: x[0] & x[1],
    "or": lambda x: x[0] | x[1],
    "xor": lambda x: x[0] ^ x[1],
    "not": lambda x: ~x[0],
    "neg": lambda x: -x[0],
    "abs": lambda x: np.abs(x[0]),
    "copysign": lambda x: np.copysign(x[1], x[0]),
    "min": lambda x: np.minimum(*x),
    "max": lambda x: np.maximum(*x),
    "add": lambda x: x[0] + x[1],
    "rcp": lambda x: 1 / x[0],
    "sqrt": lambda x: np.sqrt(x[0]),
}.items():
    arithmetic(name)(lambda x, parts, kind, fn=fn: fn(x))
for name, fn in {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}.items():
    arithmetic(name)(lambda x, parts, kind, fn=fn: fn(wide(x[0], kind)))


@arithmetic("sub")
def difference(x: list[np.ndarray], parts: tuple[str, ...], kind: str) -> np.ndarray:
    return (
        np.clip(x[0].astype(np.int64) - x[1].astype(np.int64), -1 << 31, (1 << 31) - 1)
        if "sat" in parts and kind == "s32"
        else x[0] - x[1]
    )


def product(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """mul and mad: the low half of a product, its high half, or all of it in a type of twice the
    width.
    """
    kind, ops = i.kind, i.operands
    a, b, bits = m.read(ops[1], kind), m.read(ops[2], kind), 8 * SIZE[kind]
    double = f"{kind[0]}{2 * bits}"
    if "wide" in i.parts:
        found, kind = a.astype(TYPES[double]) * b.astype(TYPES[double]), double
    elif "hi" in i.parts and bits == 32:
        found = (a.astype(TYPES[double]) * b.astype(TYPES[double]) >> TYPES[double](32)).astype(
            TYPES[kind]
        )
    elif "hi" in i.parts:
        found = np.array(
            [(int(x) * int(y) >> bits) & (1 << bits) - 1 for x, y in zip(a, b, strict=False)], u64
        )
    else:
        found = a * b
    m.write(ops[0], found + m.read(ops[3], kind) if i.parts[0] == "mad" else found, mask)


rule("mul", "mad")(product)


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers, towards zero; by zero: 0."""
    if a.dtype.kind == "u":
        return np.where(b == 0, 0, a // np.where(b == 0, 1, b))
    found = np.abs(a.astype(np.longdouble)) // np.abs(np.where(b == 0, 1, b).astype(np.longdouble))
    return np.where(b == 0, 0, np.where((a < 0) == (b < 0), found, -found)).astype(a.dtype)


@arithmetic("div")
def div(x, parts, kind):
    return x[0] / x[1] if kind[0] == "f" else quotient(*x)


@arithmetic("rem")
def rem(x, parts, kind):
    return x[0] - quotient(*x) * x[1]


@arithmetic("fma")
def fma(x, parts, kind):
    # of float64 as near to one rounding as NumPy has it
    wider = (lambda v: v.astype(np.float64)) if kind == "f32" else lambda v: v.astype(np.longdouble)
    found = wider(x[0]) * wider(x[1]) + wider(x[2])
    if "rm" not in parts:
        return found
    rounded = found.astype(np.float32)
    return np.where(rounded > found, np.nextafter(rounded, np.float32(-np.inf)), rounded)


@rule("setp")
def setp(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    found = COMPARE[i.parts[1]](m.read(i.operands[1], i.kind), m.read(i.operands[2], i.kind))
    if "and" in i.parts:
        found = found & m.predicate(i.operands[3])
    m.write(i.operands[0], found, mask)


@rule("selp")
def selp(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    m.write(
        i.operands[0],
        np.where(
            m.predicate(i.operands[3]), m.read(i.operands[1], i.kind), m.read(i.operands[2], i.kind)
        ),
        mask,
    )


@rule("mov")
def mov(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    (into, source), width = i.operands, i.kind[1:]
    if i.kind == "pred":
        return m.write(into, m.predicate(source), mask)
    if isinstance(into, list):
        raw, bits = m.read(source, f"u{width}"), int(width) // len(into)
        for k, r in enumerate(into):
            m.write(r, raw >> raw.dtype.type(k * bits) & raw.dtype.type((1 << bits) - 1), mask)
    elif isinstance(source, list):
        bits = int(width) // len(source)
        m.write(
            into,
            sum(m.read(r, f"u{bits}").astype(u64) << u64(k * bits) for k, r in enumerate(source)),
            mask,
        )
    else:
        m.write(into, m.read(source, f"u{width}"), mask)


# ---- bits
# --------------------------------------------------------------------------------------------------
@rule("shl", "shr")
def shift(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """By more than the width: nothing is left, or the sign."""
    a, by, bits = m.read(i.operands[1], i.kind), m.read(i.operands[2], "u32"), 8 * SIZE[i.kind]
    few = np.minimum(by, bits - 1).astype(a.dtype)
    if i.parts[0] == "shr" and a.dtype.kind == "i":
        return m.write(i.operands[0], a >> few, mask)
    m.write(
        i.operands[0],
        np.where(by < bits, a << few if i.parts[0] == "shl" else a >> few, a.dtype.type(0)),
        mask,
    )


@rule("shf")
def funnel(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    low, high, by = (m.read(o, "u32").astype(u64) for o in i.operands[1:])
    by, both = by & u64(31) if "wrap" in i.parts else np.minimum(by, u64(32)), high << u64(32) | low
    m.write(
        i.operands[0],
        (both << by >> u64(32) if i.parts[1] == "l" else both >> by).astype(np.uint32),
        mask,
    )


@rule("bfe")
def bfe(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    x, at, width = (m.read(o, "u32") for o in i.operands[1:])
    m.write(i.operands[0], x >> at & (np.uint32(1) << width) - np.uint32(1), mask)


@rule("bfi")
def bfi(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    x, into, at, width = (m.read(o, "u32") for o in i.operands[1:])
    hole = (np.uint32(1) << width) - np.uint32(1) << at
    m.write(i.operands[0], into & ~hole | x << at & hole, mask)


@rule("popc", "clz", "brev")
def count(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    a, bits = m.read(i.operands[1], i.kind), 8 * SIZE[i.kind]
    one = {
        "popc": lambda x: x.bit_count(),
        "clz": lambda x: bits - x.bit_length(),
        "brev": lambda x: int(f"{x:0{bits}b}"[::-1], 2),
    }[i.parts[0]]
    m.write(i.operands[0], np.array([one(int(x)) for x in a], u64), mask)


@rule("prmt")
def prmt(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    both = m.read(i.operands[1], "u32").astype(u64) | m.read(i.operands[2], "u32").astype(
        u64
    ) << u64(32)
    selector, out = m.read(i.operands[3], "u32").astype(u64), np.zeros(m.n, u64)
    for k in range(4):
        nibble = selector >> u64(4 * k) & u64(15)
        byte = both >> (nibble & u64(7)) * u64(8) & u64(255)
        byte = np.where(nibble & u64(8), np.where(byte & u64(128), u64(255), u64(0)), byte)
        out |= byte << u64(8 * k)
    m.write(i.operands[0], out.astype(np.uint32), mask)


# ---- conversions
# --------------------------------------------------------------------------------------------------
@rule("cvt")
def cvt(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    (into, *ops), parts = i.operands, i.parts
    target, source = parts[-2:]
    if target in ("bf16x2", "f16x2", "e4m3x2", "e5m2x2") and source == "f32":
        t = TYPES[target[:-2]]
        halves = [m.read(o, "f32") for o in ops]
        if target[0] == "e":
            halves = [
                np.clip(h, -float(ml_dtypes.finfo(t).max), float(ml_dtypes.finfo(t).max))
                for h in halves
            ]
        width = np.dtype(t).itemsize * 8
        high, low = (h.astype(t).view(f"u{width // 8}").astype(np.uint32) for h in halves)
        return m.write(into, high << np.uint32(width) | low, mask)
    if target == "f16x2":
        raw = m.read(ops[0], "u16")
        low, high = (
            (raw >> s & 255)
            .astype(np.uint8)
            .view(TYPES[source[:-2]])
            .astype(np.float16)
            .view(np.uint16)
            .astype(np.uint32)
            for s in (0, 8)
        )
        return m.write(into, high << np.uint32(16) | low, mask)
    if target not in TYPES or source not in TYPES:
        raise Unknown(f"a conversion from {source} to {target}")
    x, t = m.read(ops[0], source), TYPES[target]
    if target == "tf32":
        return m.write(into, x.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000), mask)
    if source[0] in "fb" and target[0] in "us":
        whole = np.nan_to_num(
            WHOLE[parts[1]](x.astype(np.float64)), nan=0.0, posinf=1e30, neginf=-1e30
        )
        info = np.iinfo(t)
        return m.write(
            into,
            np.array([max(info.min, min(info.max, int(v))) for v in whole], object).astype(t),
            mask,
        )
    if source == target and source[0] == "f":
        return m.write(into, WHOLE[parts[1]](x), mask)
    m.write(into, x.astype(t), mask)
