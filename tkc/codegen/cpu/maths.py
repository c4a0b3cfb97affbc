"""Arithmetic on vectors as method calls: `m.mul(a, 2.0)` writes one instruction.

Operands are names, or Python's numbers for constants of all lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tkc.codegen.cpu.emit import Function, constant, suffix, vec, zero
from tkc.codegen.polynomials import Value


class Lanes:
    """`w` lanes of type `t`, and their truth values, i1."""

    compare: str  # the opcode of comparisons

    def __init__(self, f: Function, w: int, t: str):
        self.f, self.w, self.t = f, w, t
        self.type, self.truth = vec(t, w), vec("i1", w)

    def k(self, x: Value) -> str:
        """An operand's text."""
        return x if isinstance(x, str) else constant(self.t, x, self.w)

    def test(self, relation: str, a: Value, b: Value) -> str:
        return self.f.emit(f"{self.compare} {relation} {self.type} {self.k(a)}, {self.k(b)}")

    def pick(self, condition: str, a: Value, b: Value) -> str:
        """a where the condition holds, else b."""
        return self.f.select(condition, self.type, self.k(a), self.k(b), self.w)

    def op(self, opcode: str, a: Value, b: Value) -> str:
        return self.f.op(opcode, self.type, self.k(a), self.k(b))

    def both(self, a: str, b: str) -> str:
        return self.f.op("and", self.truth, a, b)

    def either(self, a: str, b: str) -> str:
        return self.f.op("or", self.truth, a, b)

    def differ(self, a: str, b: str) -> str:
        return self.f.op("xor", self.truth, a, b)


class Integers(Lanes):
    """Integers of `bits` bits and `w` lanes, and the floats that have the same bits."""

    compare = "icmp"

    def __init__(self, f: Function, w: int, bits: int = 32):
        super().__init__(f, w, f"i{bits}")
        self.bits = bits

    def bits_of(self, x: str, t: str = "float") -> str:
        """A float's bits."""
        return self.f.cast("bitcast", t, x, self.t, self.w)

    def float_of(self, n: str, t: str = "float") -> str:
        """The float that has these bits."""
        return self.f.cast("bitcast", self.t, n, t, self.w)


class Floats(Lanes):
    """Floats of type `t` and `w` lanes."""

    compare = "fcmp"

    def __init__(self, f: Function, w: int, t: str = "float"):
        super().__init__(f, w, t)

    def zero(self) -> str:
        return zero(self.t, self.w)

    def add(self, a: Value, b: Value) -> str:
        return self.op("fadd", a, b)

    def sub(self, a: Value, b: Value) -> str:
        return self.op("fsub", a, b)

    def mul(self, a: Value, b: Value) -> str:
        return self.op("fmul", a, b)

    def div(self, a: Value, b: Value) -> str:
        return self.op("fdiv", a, b)

    def neg(self, a: Value) -> str:
        return self.f.emit(f"fneg {self.type} {self.k(a)}")

    def fma(self, a: Value, b: Value, c: Value) -> str:
        return self.call("fma", a, b, c)

    def call(self, name: str, *args: Value) -> str:
        """LLVM's function of that name."""
        operands = ((self.type, self.k(a)) for a in args)
        return self.f.call(f"llvm.{name}.{suffix(self.t, self.w)}", self.type, *operands)

    def is_nan(self, a: str) -> str:
        return self.test("uno", a, a)

    def polynomial(self, coefficients: Sequence[float], x: Value) -> str:
        """Horner's rule, lowest coefficient first."""
        out = self.k(coefficients[-1])
        for c in coefficients[-2::-1]:
            out = self.fma(out, x, c)
        return out

    def clamp(self, x: str, low: float, high: float) -> str:
        """NaN gives `low`."""
        x = self.pick(self.test("ogt", x, low), x, low)
        return self.pick(self.test("olt", x, high), x, high)

    def scale(self, x: str, n: str) -> str:
        """x·2ⁿ with one rounding, −280 < n < 260: two factors, each a power of two."""
        i = Integers(self.f, self.w)
        half = i.op("ashr", n, 1)

        def power(e: str) -> str:
            return i.float_of(i.op("shl", i.op("add", e, 127), 23))

        return self.mul(self.mul(x, power(half)), power(i.op("sub", n, half)))
