"""Tensors of a Triton kernel: traced values with Triton's operators, promotion and casts.

A tensor holds one value of tkc's language. What differs is decided here:

    numbers         a Python number or a constexpr is weak, but in comparisons; what was assigned to
                    a name is not
    two integers    C's rules: int32 with uint32 is uint32
    float16         with bfloat16 is float16; `/` and `%` of 16-bit floats are done in float32
    `//` and `%`    of integers as in C: towards zero, with the dividend's sign
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tkc.language import operations, values
from tkc.language.promotion import RULES
from tkc.language.tracer import fail
from tkc.language.values import Scalar, Tile, Value
from tkc.triton.language import types
from tkc.triton.language.constants import constexpr, tuple_, unwrap, unwrap_all
from tkc.triton.language.types import block_type, dtype, of_core

Number: TypeAlias = "bool | int | float"
Operand: TypeAlias = "tensor | Number | constexpr"


@dataclass(frozen=True, eq=False)
class tensor:
    """A traced scalar or block."""

    value: Value

    __triton_value__ = True
    __array_ufunc__ = None

    @property
    def handle(self) -> Any:
        return self.value.ssa

    @property
    def dtype(self) -> Any:
        """The type of an element: of triton.language.types."""
        return of_core(self.value.dtype)

    @property
    def type(self) -> Any:
        return block_type(self.dtype, self.value.shape) if self.value.shape else self.dtype

    @property
    def shape(self) -> tuple_:
        return tuple_(map(constexpr, self.value.shape))

    @property
    def numel(self) -> constexpr:
        return constexpr(math.prod(self.value.shape))

    @property
    def T(self) -> tensor:
        """The transpose of a matrix."""
        return self.trans()

    def __repr__(self) -> str:
        return f"<{self.type}>"

    def __str__(self) -> str:
        shape = "x".join(str(n) for n in self.value.shape)
        return f"{self.dtype}[{shape}]" if shape else str(self.dtype)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        fail(
            f"a number known at compile time is needed here, got a tensor of {self.dtype}; make it"
            " a tl.constexpr argument, or write `name: tl.constexpr = …` where it is assigned"
        )

    def __iter__(self) -> Any:
        fail(f"a tensor ({self}) cannot be iterated or unpacked")

    def __getitem__(self, index: Any) -> tensor:
        """`x[:, None]` adds axes."""
        given = unwrap_all(index)
        parts = given if isinstance(given, tuple) else (given,)
        for part in parts:
            if part is not None and part is not Ellipsis and part != slice(None):
                fail(f"unsupported tensor index {part!r}; a tensor is indexed by `:` and None")
        if isinstance(self.value, Tile):
            return tensor(self.value[parts])
        return tensor(values.spread(self.value, (1,) * len(parts)))

    def __add__(self, other: Any) -> Any:
        return arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return divide(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return quotient(other, self)

    def __mod__(self, other: Any) -> Any:
        return remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return remainder(other, self)

    def __and__(self, other: Any) -> Any:
        return bitwise("and", self, other)

    def __rand__(self, other: Any) -> Any:
        return bitwise("and", other, self)

    def __or__(self, other: Any) -> Any:
        return bitwise("or", self, other)

    def __ror__(self, other: Any) -> Any:
        return bitwise("or", other, self)

    def __xor__(self, other: Any) -> Any:
        return bitwise("xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return bitwise("xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return shift("shl", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return shift("shl", other, self)

    def __rshift__(self, other: Any) -> Any:
        return shift("shr", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return shift("shr", other, self)

    def __eq__(self, other: Any) -> Any:
        return compare("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return compare("ne", self, other)

    def __lt__(self, other: Any) -> Any:
        return compare("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return compare("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return compare("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return compare("ge", self, other)

    def __neg__(self) -> Any:
        return negated(self)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return inverted(self)

    def __abs__(self) -> Any:
        return absolute(self)

    def to(
        self, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False
    ) -> tensor:
        """The tensor in another type, by value or (bitcast) by bits."""
        return cast(self, dtype, fp_downcast_rounding, bitcast)

    def logical_and(self, other: Operand) -> tensor:
        return truth(self) & truth(other)

    def logical_or(self, other: Operand) -> tensor:
        return truth(self) | truth(other)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"a tensor ({self}) has no `.{name}` in tkc.triton")


def member(fn: Callable) -> Callable:
    """A function of the language that is a method of tensors, too."""
    setattr(tensor, fn.__name__.rstrip("_"), fn)
    return fn


def is_number(x: Any) -> builtins.bool:
    return isinstance(x, (bool, int, float))


def to_tensor(x: Any) -> tensor:
    """A number as the tensor that Triton makes of it: int32, uint32, int64 or uint64, the first
    that holds it; float32, or float64 outside its normal range.
    """
    x = unwrap(x)
    if isinstance(x, tensor):
        return x
    if isinstance(x, Value):
        return tensor(x)
    if is_number(x):
        return tensor(values.number(x, type_of_number(x).core))
    fail(f"expected a tensor or a number, got {type(x).__name__} {x!r:.60}")


def type_of_number(x: Number) -> dtype:
    if isinstance(x, bool):
        return types.int1
    if isinstance(x, int):
        for name, low, high in (
            ("int32", -(2**31), 2**31),
            ("uint32", 0, 2**32),
            ("int64", -(2**63), 2**63),
            ("uint64", 0, 2**64),
        ):
            if low <= x < high:
                return dtype(name)
        fail(f"{x} does not fit in 64 bits")
    size = abs(x)
    normal = 2.0**-126 <= size <= (2 - 2**-23) * 2.0**127
    return types.float32 if normal or size in (0.0, math.inf) or x != x else types.float64


# --------------------------------------------------------------------------------------------------
def computation_type(a: Any, b: Any, division: bool, weak: bool = True) -> dtype:
    """The type in which an operation is done: of tensors, and numbers, which may be weak."""
    typed = [(x.value.dtype, bool(x.value.shape)) for x in (a, b) if isinstance(x, tensor)]
    numbers = [x for x in (a, b) if not isinstance(x, tensor)]
    if not typed:
        wide = [type_of_number(x) for x in numbers]
        return max(wide, key=lambda t: (t.kind().value, t.primitive_bitwidth))
    if not weak:
        typed, numbers = typed + [(type_of_number(x).core, False) for x in numbers], []
    return of_core(RULES["triton"](typed, numbers, division))


def _fits(x: Number, into: dtype) -> None:
    if not into.is_int() or into.is_bool():
        return
    if x < 0 and into.is_int_unsigned():
        fail(
            "an operation between an unsigned tensor and a negative number; cast one of them"
            " explicitly"
        )
    if not into.get_int_min_value() <= x <= into.get_int_max_value():
        fail(f"the number {x} is out of range for {into}")


def promoted(
    x: Operand, y: Operand, division: bool = False, weak: bool = True
) -> tuple[tensor, tensor]:
    """Both as tensors of the type of their operation (not broadcast). weak: whether numbers take
    the type of the other operand.
    """
    x, y = unwrap(x), unwrap(y)
    for v in (x, y):
        if not is_number(v) and not isinstance(v, tensor):
            fail(f"expected a tensor or a number, got {type(v).__name__} {v!r:.60}")
    if _is_pointer(x) or _is_pointer(y):
        fail(
            f"{x!r}, {y!r}: of pointers there are only `pointer + integer` and `pointer - integer`"
        )
    found = computation_type(x, y, division, weak)
    for v in (x, y):
        if isinstance(v, (bool, int, float)):
            _fits(v, found)
    return _as(x, found), _as(y, found)


def _as(x: Any, into: dtype) -> tensor:
    if isinstance(x, tensor):
        return cast(x, into)
    if into.is_int() and not into.is_bool():
        x = int(x)
    return tensor(values.number(x, into.core))


# --------------------------------------------------------------------------------------------------
_BOOLEAN = {"add": "xor", "sub": "xor", "mul": "and"}  # of single bits, which wrap around


def arithmetic(name: str, x: Any, y: Any) -> Any:
    """add, sub, mul."""
    x, y = unwrap(x), unwrap(y)
    if is_number(x) and is_number(y):
        return values.ARITHMETIC[name](x, y)
    if _is_pointer(x) or _is_pointer(y):
        return _moved(name, x, y)
    if _is_neutral(name, x, y):
        return x
    a, b = promoted(x, y)
    if a.dtype.is_bool():
        return tensor(values.apply(_BOOLEAN[name], a.value, b.value))
    return tensor(values.apply(name, a.value, b.value, dtype=a.value.dtype))


def _is_neutral(name: str, x: Any, y: Any) -> bool:
    """Whether x is what it was: x + 0, x - 0, x * 1 of an integer, whose type the number keeps."""
    is_integer = isinstance(x, tensor) and x.dtype.is_int() and not x.dtype.is_bool()
    return is_integer and type(y) is int and y == (name == "mul")


def _is_pointer(x: Any) -> bool:
    return isinstance(x, tensor) and x.dtype.is_ptr()


def _moved(name: str, x: Any, y: Any) -> tensor:
    """A pointer moved by elements."""
    if not _is_pointer(x):
        x, y = y, x
        if name == "sub":
            fail("an integer minus a pointer; only `pointer - integer` is there")
    if name == "mul" or _is_pointer(y):
        fail("pointers take + and - of integers only")
    if not is_number(y):
        if not y.dtype.is_int():
            fail(f"a pointer moves by integers, got {y.dtype}")
        if y.dtype.is_int_unsigned() and y.dtype.int_bitwidth < 64:
            y = cast(y, types.int64)  # addresses take signed offsets
    by = y if is_number(y) else y.value
    return tensor(values.arithmetic(name, x.value, by))  # type: ignore[arg-type]


def divide(x: Any, y: Any) -> Any:
    """`/`: in floats, of two integers in float32."""
    x, y = unwrap(x), unwrap(y)
    if is_number(x) and is_number(y):
        return x / y
    a, b = promoted(x, y, division=True)
    if a.dtype.is_int():
        a, b = cast(a, types.float32), cast(b, types.float32)
    return tensor(values.apply("div", a.value, b.value))


def quotient(x: Any, y: Any) -> Any:
    """`//` of integers, towards zero."""
    x, y = unwrap(x), unwrap(y)
    if is_number(x) and is_number(y):
        return x // y
    a, b = promoted(x, y, division=True)
    if not a.dtype.is_int():
        fail(f"`//` takes integers, got {a.dtype}; write tl.floor(x / y)")
    if is_number(y) and y == 1:
        return a
    return tensor(values.lift(values.truncating("div_trunc", a.value, b.value)))


def remainder(x: Any, y: Any) -> Any:
    """`%`: of the dividend's sign, of floats as C's fmod."""
    x, y = unwrap(x), unwrap(y)
    if is_number(x) and is_number(y):
        return x % y
    a, b = promoted(x, y, division=True)
    return tensor(values.lift(values.truncating("rem_trunc", a.value, b.value)))


def _fail_bits(x: Any, y: Any) -> None:
    given = " and ".join(str(v.dtype if isinstance(v, tensor) else v) for v in (x, y))
    fail(f"invalid operands of type {given}: &, |, ^ and shifts take integers; cast them")


def bitwise(name: str, x: Any, y: Any) -> Any:
    x, y = unwrap(x), unwrap(y)
    if is_number(x) and is_number(y):
        return values.BITS[name](x, y)
    a, b = promoted(x, y)
    if not a.dtype.is_int():
        _fail_bits(x, y)
    return tensor(values.apply(name, a.value, b.value))


def shift(name: str, x: Any, y: Any) -> Any:
    """`<<`, `>>` in the common type; to the right with the sign of the left operand's own type."""
    x, y = unwrap(x), unwrap(y)
    if is_number(x) and is_number(y):
        return x << y if name == "shl" else x >> y
    a, b = promoted(x, y)
    if not a.dtype.is_int():
        _fail_bits(x, y)
    own = x.dtype if isinstance(x, tensor) else y.dtype
    if name == "shr" and own.is_int_signed() and a.dtype.is_int_unsigned():
        signed = types.get_int_dtype(a.dtype.int_bitwidth, True)
        found = values.apply(name, cast(a, signed).value, cast(b, signed).value)
        return cast(tensor(found), a.dtype)
    return tensor(values.apply(name, a.value, b.value))


def compare(name: str, x: Any, y: Any) -> Any:
    x, y = unwrap(x), unwrap(y)
    if x is None or y is None:
        return name == "ne"
    if is_number(x) and is_number(y):
        return values.COMPARE[name](x, y)
    if _is_pointer(x) and _is_pointer(y):
        x, y = cast(x, types.int64), cast(y, types.int64)
    a, b = promoted(x, y, weak=False)
    return tensor(values.apply(name, a.value, b.value))


def negated(x: tensor) -> tensor:
    """-x; of a truth value, whose arithmetic wraps around, itself."""
    if x.dtype.is_ptr():
        fail("a pointer has no negative")
    return x if x.dtype.is_bool() else tensor(values.apply("neg", x.value))


def inverted(x: tensor) -> tensor:
    if not x.dtype.is_int():
        fail(f"invalid operand of type {x.dtype}: ~ takes integers; cast it")
    return tensor(values.apply("not", x.value))


def absolute(x: tensor) -> tensor:
    return tensor(values.lift(operations.abs_(x.value)))


# --------------------------------------------------------------------------------------------------
def known_type(given: Any) -> dtype:
    """A type of the language. Fails for what is none."""
    found = types.of_library(unwrap(given))
    if found is None:
        fail(f"expected a type such as tl.float32, got {given!r:.60}")
    return found


def truth(x: Operand) -> Any:
    """A number or tensor as truth values: what is not 0."""
    x = unwrap(x)
    if not isinstance(x, tensor):
        return bool(x)
    return x if x.dtype.is_bool() else cast(x, types.int1)


@member
def cast(
    input: Operand,
    dtype: Any,
    fp_downcast_rounding: str | None = None,
    bitcast: bool = False,
) -> tensor:
    """A tensor in another type, by value or (bitcast) by bits."""
    x, into, rounding = to_tensor(input), known_type(dtype).scalar, unwrap(fp_downcast_rounding)
    if x.dtype == into:
        return x
    if rounding is not None:
        _check_rounding(x.dtype, into, rounding)
    if x.dtype.is_ptr() or into.is_ptr():
        return _cast_pointer(x, into)
    if unwrap(bitcast) and not _same_truths(x.dtype, into):
        return tensor(x.value.to(into.core, bitcast=True))
    if into.is_bool():
        return tensor(values.lift(x.value != 0))
    return tensor(x.value.to(into.core, rounding=rounding or "rtne"))


def _same_truths(a: dtype, b: dtype) -> bool:
    """A truth value is a byte in memory: by bits and by value are one there."""
    return {a.primitive_bitwidth, b.primitive_bitwidth} == {1, 8}


def _check_rounding(source: dtype, into: dtype, rounding: str) -> None:
    if rounding not in ("rtne", "rtz"):
        fail(f"fp_downcast_rounding is 'rtne' or 'rtz', got {rounding!r}")
    both = source.is_floating() and into.is_floating()
    if not both or into.primitive_bitwidth >= source.primitive_bitwidth:
        fail(
            f"fp_downcast_rounding is for casts to a narrower floating type, got {source} to {into}"
        )


def _cast_pointer(x: tensor, into: dtype) -> tensor:
    word = types.int64.core
    if x.dtype.is_ptr() and into.is_ptr():
        return tensor(x.value.to(word, bitcast=True).to(into.core, bitcast=True))
    if into.is_ptr():
        return tensor(cast(x, types.int64).value.to(into.core, bitcast=True))
    number = x.value.to(word, bitcast=True)
    if into.is_bool():
        return tensor(values.lift(number != 0))
    if into.is_int() and into.int_bitwidth == 64:
        return tensor(values.cast(number, into.core))
    fail(f"a pointer is cast to int64 or to another pointer, not to {into}")


def scalar(x: Operand) -> Any:
    """A number, or tkc's scalar of a tensor of one element."""
    x = unwrap(x)
    if not isinstance(x, tensor):
        return x
    if isinstance(x.value, Scalar):
        return x.value
    if x.value.size != 1:
        fail(f"expected a scalar, got a tensor of {x}")
    return values.as_tile(x.value)[(0,) * x.value.ndim]


def broadcast(x: tensor, shape: tuple[int, ...]) -> tensor:
    return tensor(values.spread(x.value, shape))


def common_shape(*given: tensor) -> tuple[int, ...]:
    return values.broadcast_shapes(*(x.value.shape for x in given), ())
