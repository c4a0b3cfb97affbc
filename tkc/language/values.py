"""Traced values: tiles and scalars, their operators, broadcasting and promotion.

Broadcasting is NumPy's; promotion.py says in which dtype an operation is done.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from xdsl.ir import Attribute, SSAValue

from tkc.ir import elementwise, tile
from tkc.ir.types import PointerType, TileType, element_of, like
from tkc.language.dtypes import BY_IR, BY_NAME, DType, bool_, float32, int32
from tkc.language.names import suggestion
from tkc.language.promotion import RULES, Plain, of_number, of_number_in_triton
from tkc.language.tracer import fail, frames, is_rewritten, tracer

Number = (bool, int, float)
BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
# by the name of NumPy's function of an operator: our method where the traced value is on the right
REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}
Operand: TypeAlias = "Value | int | float"
Shape: TypeAlias = int | Sequence[int]


class Pointer(DType):
    """The dtype of a pointer: tkc.pointer(tkc.float32). As the annotation of a parameter: an array
    argument is its address in the kernel (`x: tkc.pointer`).
    """

    is_pointer = True  # what a jit function looks for in annotations
    element: DType

    def __init__(self, element: DType):
        object.__setattr__(self, "element", element)
        ir = PointerType(element.ir)
        super().__init__(f"pointer({element.name})", ir, np.dtype(np.uint64), "pointer")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pointer) and other.element == self.element

    def __hash__(self) -> int:
        return hash((Pointer, self.element))


@lru_cache(maxsize=64)
def dtype_of(element: Attribute) -> DType:
    return Pointer(BY_IR[element.element]) if isinstance(element, PointerType) else BY_IR[element]


def unpack(x: Any) -> Any:
    """A NumPy scalar as the Python number it is."""
    return x.item() if isinstance(x, np.generic) and isinstance(x.item(), Number) else x


def describe(x: object) -> str:
    """A value in the user's words: `float32[128, 64]`, `int32`, `3`."""
    if isinstance(x, Value):
        return x.dtype.name + (f"{list(x.shape)}" if x.shape else "")
    if hasattr(x, "_describe"):
        return x._describe()
    return repr(x) if isinstance(x, (*Number, str, type(None))) else type(x).__name__


# --------------------------------------------------------------------------------------------------
def common(*args: Operand, division: bool = False) -> DType:
    """The dtype in which an operation on these values and numbers is done, by the rules of the
    kernel (promotion.py). division: the operation is `/` or `%`.
    """
    for x in args:
        if isinstance(x, Value) and isinstance(x.dtype, Pointer):
            return x.dtype
    typed = [(x.dtype, bool(x.shape)) for x in args if isinstance(x, Value)]
    numbers = [x for x in args if not isinstance(x, Value)]
    if not typed:
        return max(map(of_number, numbers), key=lambda t: (t.is_float, t.is_int, t.bits))
    return RULES[tracer().semantics](typed, numbers, division)


def is_tritons() -> bool:
    """Whether operators mean what they mean in Triton's language."""
    return tracer().semantics == "triton"


def check(x: object, what: str = "operand") -> Operand:
    """A traced value or a Python number; anything else is an error naming what was expected."""
    x = unpack(x)
    if isinstance(x, (Value, *Number)):
        return x
    if hasattr(x, "_describe"):
        if hasattr(x, "number"):  # a captured array of rank 0
            return x.number()
        fail(
            f"an array cannot be an {what}; load a tile of it with tkc.load(array, offsets, shape)"
        )
    fail(f"expected a tile, a scalar or a number as {what}, got {type(x).__name__} {x!r:.60}")


# --------------------------------------------------------------------------------------------------
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            if n != 1 and result[i] not in (1, n):
                fail(
                    f"shapes {' and '.join(str(list(s)) for s in shapes if s)} do not broadcast:"
                    f" {result[i]} against {n}; use [:, None] or reshape to line the axes up"
                )
            if n != 1:
                result[i] = n
    return tuple(result)


def typed(shape: tuple[int, ...], element: Attribute) -> Attribute:
    return TileType(shape, element) if shape else element


def spread(x: Value, shape: tuple[int, ...]) -> Value:
    """The value broadcast to a shape."""
    if x.shape == tuple(shape):
        return x
    t, element = tracer(), element_of(x.ssa.type)
    if not x.shape:
        return wrap(t.emit(tile.Splat(x.use(), TileType(shape, element))).result)
    if len(x.shape) < len(shape):
        x = wrap(
            t.emit(
                tile.Reshape(
                    x.use(), TileType((1,) * (len(shape) - len(x.shape)) + x.shape, element)
                )
            ).result
        )
    return (
        x
        if x.shape == tuple(shape)
        else wrap(t.emit(tile.Broadcast(x.use(), TileType(shape, element))).result)
    )


def fit(x: Value, shape: tuple[int, ...], what: str) -> Value:
    """The value broadcast to exactly this shape."""
    padded = (1,) * (len(shape) - len(x.shape)) + x.shape
    if len(padded) != len(shape) or any(
        a not in (1, b) for a, b in zip(padded, shape, strict=False)
    ):
        fail(
            f"{what} has shape {list(x.shape)}, expected {list(shape)} or one that broadcasts to it"
        )
    return spread(x, shape)


def mask_of(mask: Operand | None, shape: tuple[int, ...]) -> SSAValue | None:
    """A mask broadcast to the shape of a block; None where everything is meant."""
    if mask is None or mask is True:
        return None
    mask = check(mask, "mask")
    if isinstance(mask, Value) and mask.dtype is not bool_:
        fail(f"a mask is made of truth values, got {describe(mask)}; compare, e.g. offsets < n")
    if isinstance(mask, Value) and len(mask.shape) > len(shape):
        fail(f"a mask of shape {list(mask.shape)} does not fit a block of {list(shape)}")
    return fit(lift(mask, bool_), shape, "the mask").use()


def known_dtype(dtype: Any) -> DType:
    """A dtype of tkc. Fails for another library's, naming ours."""
    if isinstance(dtype, DType):
        return dtype
    name = getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    name = {"bool": "bool_", "float8_e4m3fn": "float8_e4m3"}.get(name, name)
    hint = f"write tkc.{name}" if name in BY_NAME else f"there are {', '.join(BY_NAME)}"
    fail(f"expected a dtype of tkc, got {dtype!r}; {hint}")


def number(
    value: Plain, dtype: DType, shape: tuple[int, ...] = (), instead: str | None = None
) -> Value:
    """A Python number as a traced value of a dtype; one that does not fit is an error, which says
    what to write instead.
    """
    dtype = known_dtype(dtype)
    if isinstance(dtype, Pointer):
        fail(f"expected a pointer, got the number {value!r}")
    if dtype.is_int:
        if isinstance(value, float) and not value.is_integer():
            fail(
                f"{value!r} is not an integer;"
                f" {instead or 'cast the other operand to a floating type'}"
            )
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            fail(
                f"{value} does not fit {dtype.name} ({info.min} to {info.max});"
                f" {instead or 'cast the other operand to a wider type with .to()'}"
            )
    if dtype.kind == "bool":
        value = bool(value)
    return wrap(tracer().constant(value, typed(shape, dtype.ir)))


def lift(x: object, dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> Value:
    """A value or number as a traced value, cast to a dtype and broadcast to a shape where these are
    given.
    """
    x = check(x)
    if not isinstance(x, Value):
        return number(x, dtype or of_number(x), shape or ())
    if dtype is not None:
        x = cast(x, dtype)
    return x if shape is None else spread(x, shape)


def cast(x: Value, dtype: DType) -> Value:
    dtype = known_dtype(dtype)
    if x.dtype == dtype:
        return x
    if isinstance(x.dtype, Pointer) or isinstance(dtype, Pointer):
        fail(
            f"cannot cast {describe(x)} to {dtype.name} by value; use .to({dtype!r}, bitcast=True)"
        )
    return wrap(tracer().emit(elementwise.Cast(x.use(), like(x.ssa.type, dtype.ir))).result)


def _towards_zero(x: Value, dtype: DType, rounding: str) -> Value:
    """The nearest float, or the one before it where that is beyond the value."""
    if rounding != "rtz":
        fail(f'rounding is "rtne" (to nearest even) or "rtz" (towards zero), got {rounding!r}')
    if not (x.dtype.is_float and dtype.is_float):
        fail(f'rounding="rtz" is of floats, got {describe(x)} to {dtype.name}')
    near = cast(x, dtype)
    if dtype.bits > x.dtype.bits or dtype is x.dtype:
        return near
    word = near.to(BY_NAME[f"uint{dtype.bits}"], bitcast=True)
    wide = x.dtype if x.dtype.bits > dtype.bits else float32
    beyond = apply("abs", cast(near, wide)) > apply("abs", cast(x, wide))
    choice = elementwise.Select(beyond.use(), (word - 1).use(), word.use())
    return wrap(tracer().emit(choice).result).to(dtype, bitcast=True)


def as_tile(value: Value) -> Tile:
    """A value that is a tile. Raises TypeError for a scalar."""
    if not isinstance(value, Tile):
        raise TypeError(f"expected a tile, got {describe(value)}")
    return value


def wrap(ssa: SSAValue) -> Value:
    return (Tile if isinstance(ssa.type, TileType) else Scalar)(ssa)


# --------------------------------------------------------------------------------------------------
def apply(name: str, *args: Operand, dtype: DType | None = None) -> Value:
    """An element-wise operation on values and numbers: promoted, broadcast, emitted."""
    operands = [check(x) for x in args]
    dtype = dtype or common(*operands)
    if not elementwise.FUNCTIONS[name].accepts(dtype.ir):
        fail(f"{name} does not take {dtype.name} ({', '.join(map(describe, operands))})")
    shape = broadcast_shapes(*(x.shape for x in operands if isinstance(x, Value)), ())
    lifted = (lift(x, dtype, shape).use() for x in operands)
    return wrap(tracer().emit(elementwise.CLASSES[name](*lifted)).result)


ARITHMETIC = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}
COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
BITS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
_NEUTRAL = {("add", 0), ("sub", 0), ("mul", 1), ("floordiv", 1)}


def _foreign(x) -> bool:
    return not isinstance(unpack(x), (Value, *Number))


def _refuse_numpy(name: str, operands: Sequence) -> NoReturn:
    """Fails for a function of NumPy that was given a traced value."""
    if any(isinstance(x, np.ndarray) for x in operands):
        fail(
            "a NumPy array is no operand of a traced value; pass it as an argument and load from"
            " it, or take one number of it, as in float(x)"
        )
    import tkc

    instead = "; write the operator" if name in REFLECTED else suggestion(name, tkc.__all__)
    fail(f"numpy.{name} does not take traced values{instead}")


def _is_neutral(name: str, value: Operand, other: Operand, right: bool, dtype: DType) -> bool:
    """Whether an integer is what it was: x + 0, x * 1, 0 + x, 1 * x."""
    return (
        type(other) is int
        and isinstance(value, Value)
        and value.dtype is dtype
        and dtype.is_int
        and (name, other) in _NEUTRAL
        and (right or name in ("add", "mul"))
    )


def arithmetic(name: str, x: Operand, y: Operand) -> Operand:
    x, y = check(x), check(y)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return ARITHMETIC[name](x, y)
    pointers = [isinstance(v, Value) and isinstance(v.dtype, Pointer) for v in (x, y)]
    if any(pointers):
        return _pointer_arithmetic(name, x, y, pointers)
    if name in TRUNCATING and is_tritons():
        return truncating(TRUNCATING[name], x, y)
    dtype = common(x, y)
    if dtype.kind == "bool":
        if is_tritons():
            return apply("and" if name == "mul" else "xor", x, y, dtype=dtype)
        dtype = int32
    for value, other, right in ((x, y, True), (y, x, False)):
        if _is_neutral(name, value, other, right, dtype):
            return value
    return apply(name, x, y, dtype=dtype)


def _pointer_arithmetic(name: str, x, y, pointers):
    if pointers == [False, True]:
        x, y = y, x
    if name not in ("add", "sub") or all(pointers) or (name == "sub" and pointers[1]):
        fail("pointers take + and - of integers only (offsets count elements)")
    if isinstance(y, Value) and not y.dtype.is_int or isinstance(y, float):
        fail(f"a pointer moves by integers, got {describe(y)}")
    if isinstance(y, int) and y == 0:
        return x
    if name == "sub":
        y = -y
    y = lift(y)
    shape = broadcast_shapes(x.shape, y.shape)
    return wrap(
        tracer().emit(elementwise.PointerAdd(spread(x, shape).use(), spread(y, shape).use())).result
    )


def divide(x: Operand, y: Operand, name: str = "div") -> Operand:
    x, y = check(x), check(y)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return x / y
    dtype = common(x, y, division=True)
    return apply(name, x, y, dtype=dtype if dtype.is_float else float32)


def power(x: Operand, y: Operand) -> Operand:
    x, y = check(x), check(y)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return x**y
    if isinstance(y, int) and not isinstance(y, bool) and 1 <= y <= 4:
        if y == 1:
            return x
        square = x * x
        return square if y == 2 else square * x if y == 3 else square * square
    dtype = common(x, y)
    return apply("pow", x, y, dtype=dtype if dtype.is_float else float32)


FLOORS = {"div_trunc": "floordiv", "rem_trunc": "mod"}
TRUNCATING = {v: k for k, v in FLOORS.items()}


def truncating(name: str, x: Operand, y: Operand) -> Operand:
    """div_trunc or rem_trunc: of numbers that are known not to be negative their flooring twins,
    of which more is known.
    """
    x, y = check(x), check(y)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return _truncating_numbers(name, x, y)
    dtype = common(x, y, division=True)
    if isinstance(dtype, Pointer):
        fail("pointers take + and - of integers only (offsets count elements)")
    if dtype.is_float:
        if name == "rem_trunc":
            return apply(name, x, y, dtype=dtype)
        return apply("trunc", lift(divide(x, y)))
    dtype = int32 if dtype.kind == "bool" else dtype
    found = [lift(v, dtype) for v in (x, y)]
    if all(_never_negative(v) for v in found):
        return apply(FLOORS[name], *found, dtype=dtype)
    return apply(name, *found, dtype=dtype)


def _truncating_numbers(name: str, x: Plain, y: Plain) -> Plain:
    if isinstance(x, float) or isinstance(y, float):
        return math.fmod(x, y) if name == "rem_trunc" else float(math.trunc(x / y))
    return int(elementwise.of_integers(name, int(x), int(y)))


def _never_negative(x: Value) -> bool:
    return x.dtype.kind == "uint" or tracer().range_of(x.ssa).lo >= 0


def compare(name: str, x: Operand, y: Operand) -> Operand:
    x, y = check(x), check(y)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return COMPARE[name](x, y)
    if is_tritons():  # numbers have their own type here
        x, y = (v if isinstance(v, Value) else number(v, of_number_in_triton(v)) for v in (x, y))
    dtype = common(x, y)
    return apply(name, x, y, dtype=dtype)


def bitwise(name: str, x: Operand, y: Operand) -> Operand:
    x, y = check(x), check(y)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return BITS[name](x, y)
    return apply(name, x, y)


def shift(name: str, x: Operand, y: Operand) -> Value:
    x, y = check(x), check(y)
    dtype = common(x, y)
    if not isinstance(x, Value):  # the type of the places may be too short for what is shifted
        own = of_number(+x)  # of a truth value, as an integer
        dtype = max(own, dtype, key=lambda t: (t.is_float, t.bits, t is dtype))
    return apply(name, x, y, dtype=int32 if dtype.kind == "bool" else dtype)


def _binary(fn, name):
    def forward(self, other):
        return (
            NotImplemented
            if _foreign(other) and hasattr(type(other), "__array_priority__")
            else fn(name, self, other)
        )

    def backward(self, other):
        return fn(name, other, self)

    return forward, backward


class Value:
    """A value known when the kernel runs. Immutable; operators make new values."""

    __slots__ = ("ssa",)

    def __init__(self, ssa: SSAValue):
        self.ssa = ssa

    def use(self) -> SSAValue:
        return tracer().use(self.ssa)

    @property
    def dtype(self) -> DType:
        return dtype_of(element_of(self.ssa.type))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ssa.type.extents if isinstance(self.ssa.type, TileType) else ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __repr__(self):
        return f"<{describe(self)}>"

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Value:
        """Operators of a NumPy number and a traced value are ours, not NumPy's; its functions are
        refused.
        """
        ours = REFLECTED.get(ufunc.__name__)
        if ours and method == "__call__" and operands[1] is self and not options:
            left = operands[0]
            number = left[()] if isinstance(left, np.ndarray) and not left.ndim else left
            if not _foreign(number):
                return getattr(self, ours)(number)
        _refuse_numpy(ufunc.__name__, operands)

    def __array_function__(self, function: Any, types: Any, operands: Any, options: Any) -> Value:
        """Functions of NumPy are refused."""
        _refuse_numpy(function.__name__, operands)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        import tkc

        if name == "astype":
            raise AttributeError(f"{describe(self)} has no `.astype`; write .to(dtype)")
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        close = f"; use tkc.{name}(tile)" if name in tkc.__all__ else suggestion(name, known, "")
        raise AttributeError(
            f"{describe(self)} has no `.{name}`{close or '; it has .' + ', .'.join(known)}"
        )

    __add__, __radd__ = _binary(arithmetic, "add")
    __sub__, __rsub__ = _binary(arithmetic, "sub")
    __mul__, __rmul__ = _binary(arithmetic, "mul")
    __floordiv__, __rfloordiv__ = _binary(arithmetic, "floordiv")
    __mod__, __rmod__ = _binary(arithmetic, "mod")
    __and__, __rand__ = _binary(bitwise, "and")
    __or__, __ror__ = _binary(bitwise, "or")
    __xor__, __rxor__ = _binary(bitwise, "xor")
    __lshift__, __rlshift__ = _binary(shift, "shl")
    __rshift__, __rrshift__ = _binary(shift, "shr")

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __truediv__(self, other):
        return divide(self, other)

    def __rtruediv__(self, other):
        return divide(other, self)

    def __pow__(self, other):
        return power(self, other)

    def __rpow__(self, other):
        return power(other, self)

    def __eq__(self, other):
        return compare("eq", self, other)

    def __ne__(self, other):
        return compare("ne", self, other)

    def __lt__(self, other):
        return compare("lt", self, other)

    def __le__(self, other):
        return compare("le", self, other)

    def __gt__(self, other):
        return compare("gt", self, other)

    def __ge__(self, other):
        return compare("ge", self, other)

    def __neg__(self):
        return apply("neg", self, dtype=int32 if self.dtype.kind == "bool" else self.dtype)

    def __pos__(self):
        return self

    def __abs__(self):
        return self if self.dtype.kind in ("bool", "uint") else apply("abs", self)

    def __invert__(self):
        return apply("not", self)

    if TYPE_CHECKING:
        # tkc.language.operations sets it to dot

        def __matmul__(self, other: Value) -> Tile: ...

    def to(self, dtype: DType, bitcast: bool = False, rounding: str = "rtne") -> Value:
        """The value in another dtype (by value; by bits with `bitcast`, of the same width).
        rounding, of a float to a shorter one: "rtne", to nearest even, or "rtz", towards zero.
        """
        dtype = known_dtype(dtype)
        if rounding != "rtne":
            return _towards_zero(self, dtype, rounding)
        if not bitcast or dtype == self.dtype:
            return cast(self, dtype)

        def width(t):
            return 64 if isinstance(t, Pointer) else t.bits

        if width(self.dtype) != width(dtype):
            fail(
                f"cannot see {self.dtype.name} as {dtype.name}: {width(self.dtype)} bits against"
                f" {width(dtype)}"
            )
        return wrap(
            tracer().emit(elementwise.Bitcast(self.use(), like(self.ssa.type, dtype.ir))).result
        )

    def __bool__(self):
        if self.shape:
            fail(
                f"a tile ({describe(self)}) has no single truth value; combine with &, | and ~,"
                " choose with tkc.where, or reduce with tkc.any or tkc.all"
            )
        found = frames()
        if found and not is_rewritten(found[0].f_code):
            fail(
                f"`{found[0].f_code.co_name}` branches on a traced {self.dtype.name}, but its"
                " source cannot be read to trace both ways; define it in a file, or use tkc.where"
            )
        fail(
            f"the truth of a traced {self.dtype.name} is not known at compile time: comprehensions,"
            " assert and match need a Python value; use `if x == a or x == b`, tkc.where or"
            " tkc.device_assert"
        )

    def _concrete(self, what: str):
        fail(
            f"{what} needs a number known at compile time, got a traced {describe(self)}; make it a"
            " tkc.constexpr argument"
        )

    def __index__(self):
        self._concrete("this use")

    def __int__(self):
        fail("int() of a traced value; use .to(tkc.int32)")

    def __float__(self):
        fail(
            "a traced value is no Python number for float() or Python's math; write tkc.sqrt,"
            " tkc.exp, tkc.sin ... for math.sqrt, math.exp, math.sin ..., and .to(tkc.float32) for"
            " float()"
        )

    def __round__(self, digits=None):
        fail("round() of a traced value; use tkc.round(x), and .to(tkc.int32) for an integer")

    def __hash__(self):
        fail(
            "a traced value cannot be a key of a dict or an element of a set; compare it, as in"
            " `x in (a, b)`, or choose with tkc.where"
        )

    def __format__(self, spec: str):
        if spec:
            fail("a traced value has no text while it is traced; print it with tkc.print(x)")
        return repr(self)

    def __iter__(self):
        fail(f"{describe(self)} cannot be iterated or unpacked; index it with constants, e.g. t[0]")

    def __contains__(self, other):
        fail("`in` does not work on a traced value; use tkc.any(tile == value)")

    def __setitem__(self, index, value):
        fail("tiles are values and cannot be assigned to in part; use tkc.where(mask, new, old)")


class Scalar(Value):
    """A traced number."""

    __slots__ = ()

    def __getitem__(self, index):
        fail(
            f"a scalar ({self.dtype.name}) cannot be indexed; to read memory use tkc.load(pointer)"
        )


class Tile(Value):
    """A traced tile of rank 1 or more."""

    __slots__ = ()

    def __len__(self):
        return self.shape[0]

    @property
    def T(self) -> Tile:
        """The last two axes exchanged (rank 2 and more)."""
        n = self.ndim
        if n < 2:
            fail(f".T needs a rank of 2 or more, got {describe(self)}")
        return self.permute(*range(n - 2), n - 1, n - 2)

    def permute(self, *axes: int | Sequence[int]) -> Tile:
        """Axis i of the result is axis axes[i] of this tile."""
        given = one_by_one(axes)
        order = tuple(a + self.ndim if a < 0 else a for a in given)
        if sorted(order) != list(range(self.ndim)):
            fail(
                f"permute{given} of {describe(self)}: give each of the axes 0 to {self.ndim - 1}"
                " once"
            )
        if order == tuple(range(self.ndim)):
            return self
        return Tile(tracer().emit(tile.Transpose(self.use(), order)).result)

    def reshape(self, *shape: int | Sequence[int]) -> Tile:
        """The same elements in row-major order; one extent may be -1."""
        extents = list(static_shape(one_by_one(shape), allow=-1))
        if extents.count(-1) == 1:
            rest = -math.prod(extents)
            if rest and self.size % rest == 0:
                extents[extents.index(-1)] = self.size // rest
        if math.prod(extents) != self.size or -1 in extents:
            fail(
                f"cannot reshape {describe(self)} ({self.size} elements) to {extents}; give extents"
                f" whose product is {self.size}, or one of -1"
            )
        return (
            self
            if tuple(extents) == self.shape
            else Tile(
                tracer()
                .emit(tile.Reshape(self.use(), TileType(extents, element_of(self.ssa.type))))
                .result
            )
        )

    def __getitem__(self, index) -> Value:
        """[:, None] adds an axis; constant slices and constant indices select."""
        parts: list[tuple[int, int, int]] = []
        shape = []
        for i in map(unpack, every_axis(index, self.ndim, describe(self))):
            if i is None:
                shape.append(1)
                continue
            parts.append(_section(i, self.shape[len(parts)]))
            if isinstance(i, slice):
                shape.append(parts[-1][1])
        starts, extents, steps = zip(*parts, strict=True)
        t, element = tracer(), element_of(self.ssa.type)
        if not shape:
            return wrap(t.emit(tile.Extract(self.use(), starts)).result)
        x = self
        if extents != self.shape or any(s != 1 for s in steps):
            x = Tile(t.emit(tile.Slice(x.use(), starts, TileType(extents, element), steps)).result)
        return x.reshape(shape)


def _section(i: Any, n: int) -> tuple[int, int, int]:
    """Start, extent and step of what an index or slice selects of an extent of n."""
    match i:
        case Value():
            fail(
                "a tile is indexed by constants; for a traced index reduce with"
                " tkc.sum(tkc.where(tkc.arange(n) == i, tile, 0)), or load from memory"
            )
        case slice():
            return _sliced(i, n)
        case bool() | float() | str():
            fail(f"{i!r} is no index of a tile; use tkc.where for masks")
        case int() if -n <= i < n:
            return i % n, 1, 1
        case int():
            fail(f"index {i} is outside an extent of {n}")
    fail(f"{i!r:.60} is no index of a tile")


def _sliced(i: slice, n: int) -> tuple[int, int, int]:
    if any(isinstance(v, Value) for v in (i.start, i.stop, i.step)):
        fail("a tile is sliced by constants; slice the array before loading instead")
    start, stop, step = i.indices(n)
    if step < 0:
        fail("a tile is sliced forwards; use tkc.flip")
    extent = len(range(start, stop, step))
    if not extent:
        fail(
            f"the slice {i.start}:{i.stop} of an extent of {n} is empty; tiles have extents of 1"
            " and more"
        )
    return start, extent, step


def every_axis(index: Any, ndim: int, what: str) -> tuple:
    """An index with a slice for each axis that it leaves out; None, a new axis, counts as none."""
    index = index if isinstance(index, tuple) else (index,)
    given = sum(i is not None and i is not Ellipsis for i in index)
    if given > ndim:
        fail(f"{given} indices for {what}")
    at = next((k for k, i in enumerate(index) if i is Ellipsis), len(index))
    return index[:at] + (slice(None),) * (ndim - given) + index[at + 1 :]


def one_by_one(given: Sequence[Any]) -> tuple[int, ...]:
    """Extents or axes that are given one by one, or as one tuple or list."""
    return tuple(given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given)


def static_shape(shape: Shape, allow: int | None = None) -> tuple[int, ...]:
    """A shape of Python ints of 1 and more."""
    given = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    result = []
    for n in map(unpack, given):
        if isinstance(n, Value):
            fail(
                f"the shape of a tile must be known at compile time, got a traced {describe(n)};"
                " make it a tkc.constexpr argument"
            )
        if isinstance(n, bool) or not isinstance(n, int):
            fail(f"a shape is made of integers, got {n!r:.60}")
        if n < 1 and n != allow:
            fail(f"the extents of a tile are 1 and more, got {n} in {given}")
        result.append(n)
    return tuple(result)
