"""Folding: what one operation becomes when its operands are known, or when it undoes another. Used
by simplify.

`fold(op, ranges)` returns the values that replace the operation's results, or None. New operations
it puts before the old one. Nothing here changes a result by a bit: floats fold only where the
rounding is the machine's, x + 0.0 stays (−0.0 + 0.0 is 0.0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import bf16, f16, f32, f64, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import Builder, before, erase
from tkc.ir.types import (
    TileType,
    bits,
    element_of,
    f8e5m2,
    is_bool,
    is_float,
    is_integer,
    is_unsigned,
    like,
)
from tkc.ir.values import (
    array_type,
    block_of,
    defining_op,
    extents_of,
    owner_op,
    terminator_of,
    tile_type,
)
from tkc.passes.analysis.counted_bits import counted

FLOATS = {f16: np.float16, bf16: ml_dtypes.bfloat16, f32: np.float32, f64: np.float64}
COMMUTATIVE = {"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne", "mulhi"} | {
    "fmax",
    "fmin",
}
_MIRROR = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_FLOAT: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": abs,
    "max": lambda a, b: np.maximum(a, b),
    "min": lambda a, b: np.minimum(a, b),
}


def constant(value: SSAValue) -> int | float | None:
    """The number a scalar, or every element of a tile, is known to be."""
    return value.owner.number if isinstance(value.owner, tile.Constant) else None


def uniform(value: SSAValue) -> SSAValue | int | float | None:
    """The scalar that every element of a tile is: a value or a number; None if they may differ."""
    if isinstance(value.owner, tile.Splat):
        return value.owner.arg
    return constant(value) if isinstance(value.type, TileType) else None


def fold(op: Operation, ranges: Ranges) -> Sequence[SSAValue] | None:
    """The values that replace an operation's results; None where it stays. Operations that compute
    them are put before it.
    """
    if isinstance(op, ew.Elementwise):
        return _elementwise(op, ranges)
    if isinstance(op, scf.ForOp):
        return _for(op, ranges)
    if isinstance(op, ew.Cast):
        return _cast(op) or _in_sixteen_bits(op, ranges)
    rule = _RULES.get(type(op))
    return None if rule is None else rule(op)


def _number_before(op: Operation, n: int | float) -> list[SSAValue]:
    """A constant in place of an operation's result."""
    return _new_before(op, tile.Constant(n, op.results[0].type))


def _new_before(op: Operation, new: Operation) -> list[SSAValue]:
    """The result of a new operation, put before another."""
    return [before(op, new).results[0]]


def _bitcast(op: ew.Bitcast) -> Sequence[SSAValue] | None:
    if op.arg.type == op.result.type:
        return [op.arg]
    if (inner := defining_op(op.arg, ew.Bitcast)) is not None:
        return _new_before(op, ew.Bitcast(inner.arg, op.result.type))
    return _pointwise(op)


def _pointer_add(op: ew.PointerAdd) -> Sequence[SSAValue] | None:
    return [op.pointer] if constant(op.offset) == 0 else _pointwise(op)


def _multiple(op: tile.Multiple) -> Sequence[SSAValue] | None:
    known = constant(op.arg) is not None or op.divisor.value.data == 1
    return [op.arg] if known else None


def _splat(op: tile.Splat) -> Sequence[SSAValue] | None:
    n = constant(op.arg)
    return None if n is None else _number_before(op, n)


def _extract(op: tile.Extract) -> Sequence[SSAValue] | None:
    found = uniform(op.arg)
    if found is None or isinstance(found, SSAValue):
        return None if found is None else [found]
    return _number_before(op, found)


# ---- numbers
def wrapped(n: int, t: Attribute) -> int:
    """An integer as its type holds it."""
    if is_bool(t):
        return n & 1
    width = bits(t)
    n &= (1 << width) - 1
    return n if is_unsigned(t) or n < 1 << width - 1 else n - (1 << width)


def _number(name: str, args: Sequence[int | float], t: Attribute) -> int | float | None:
    """The value of a function of constants of element type t (a truth value where it compares);
    None: not folded.
    """
    if is_float(t):
        return _float_number(name, args, t)
    if name in ("shl", "shr") and 0 <= args[1] < bits(t):
        n, by = map(int, args)
        return wrapped(n << by if name == "shl" else n >> by, t)
    found = ew.of_integers(name, *args)
    return None if found is None else wrapped(found, t)


def _float_number(name: str, args: Sequence[int | float], t: Attribute) -> int | float | None:
    if t not in FLOATS:
        return None
    if name in ew.COMPARISONS:
        return int(ew.COMPARISONS[name](*args))
    if name not in _FLOAT:
        return None
    wide = np.float64 if t == f64 else np.float32
    with np.errstate(all="ignore"):
        found = float(FLOATS[t](_FLOAT[name](*map(wide, args))))
    return None if math.isnan(found) else found


# ---- element-wise
def _elementwise(op: ew.Elementwise, ranges: Ranges) -> Sequence[SSAValue] | None:
    name, args, t = op.fn.name, op.args, element_of(op.args[0].type)
    known = [constant(a) for a in args]
    if (n := _number_of_knowns(name, known, t)) is not None:
        return _number_before(op, n)
    if name in ("not", "neg") and t != f8e5m2:
        inner = defining_op(args[0], ew.CLASSES[name])
        return _pointwise(op) if inner is None else [inner.args[0]]
    if len(args) == 2:
        if known[0] is not None and known[1] is None and (name in COMMUTATIVE or name in _MIRROR):
            return _new_before(op, ew.CLASSES[_MIRROR.get(name, name)](args[1], args[0]))
        if (found := _binary(op, ranges)) is not None:
            return found
    return _pointwise(op)


def _number_of_knowns(
    name: str, known: Sequence[int | float | None], t: Attribute
) -> int | float | None:
    numbers = [n for n in known if n is not None]
    if len(numbers) < len(known):
        return None
    return _number(name, numbers, t)


def _binary(op: ew.Elementwise, ranges: Ranges) -> Sequence[SSAValue] | None:
    """A function of two values of which at most the second is known."""
    name, (x, y), t = op.fn.name, op.args, element_of(op.args[0].type)
    if name == "add" and (made := _into_dot(op)) is not None:
        return made
    right = constant(y)
    found = _identity(name, x, right, t)
    if found is None and x is y:
        found = _of_equals(name, x, t)
    if found is not None:
        return [found] if isinstance(found, SSAValue) else _number_before(op, found)
    if not is_integer(t):
        return None
    if (values := _associated(op, right, t)) is not None:
        return values
    if (values := _by_bits(op, right, ranges)) is not None:
        return values
    if (values := _by_range(op, ranges)) is not None:
        return values
    if name in ("add", "and", "shr") and (whole := counted(op.result)) is not None:
        return _new_before(op, ew.CLASSES["popcount"](whole))
    return _narrower(op, ranges) if name in ew.COMPARISONS else None


# Functions of x and a number that are x, and that are 0; of integers and truth values.
_IDENTITIES = {*((name, 0) for name in ("add", "sub", "or", "xor", "shl", "shr"))} | {
    ("mul", 1),
    ("floordiv", 1),
    ("div_trunc", 1),
}
_ZEROS = {("mul", 0), ("and", 0), ("mod", 1), ("rem_trunc", 1)}
# what truncating division is of numbers that are not negative
FLOORS = {"div_trunc": "floordiv", "rem_trunc": "mod"}


def _identity(
    name: str, x: SSAValue, right: int | float | None, t: Attribute
) -> SSAValue | int | None:
    """x op constant: x, or a number; None where it is neither."""
    if right is None:
        return None
    if is_float(t):
        return x if _is_float_identity(name, right) and t != f8e5m2 else None
    if (name, right) in _IDENTITIES:
        return x
    if (name, right) in _ZEROS:
        return 0
    ones = 1 if is_bool(t) else wrapped(-1, t)
    if right == ones and name in ("and", "or"):
        return x if name == "and" else ones
    return x if is_bool(t) and (name, right) in (("eq", 1), ("ne", 0)) else None


def _is_float_identity(name: str, right: int | float) -> bool:
    """Whether x op constant is x to the last bit, also where x is −0.0."""
    if right == 0:
        return name == ("sub" if math.copysign(1, right) > 0 else "add")
    return right == 1 and name in ("mul", "div", "div_rn")


def _of_equals(name: str, x: SSAValue, t: Attribute) -> SSAValue | int | None:
    """x op x: x, or a number; None where it is neither. Integers and truth values."""
    if not (is_integer(t) or is_bool(t)):
        return None
    if name in ("and", "or", "max", "min"):
        return x
    if name in ("sub", "xor"):
        return 0
    return int(name in ("eq", "le", "ge")) if name in ew.COMPARISONS else None


def _associated(
    op: ew.Elementwise, right: int | float | None, t: Attribute
) -> Sequence[SSAValue] | None:
    """(x + 2) + 3 and (x · 2) · 3, where the constants combine without wrapping. Of a wrapped
    constant Ranges would believe that its sum with an index does not overflow; that unsigned and
    short integers wrap it knows.
    """
    name = op.fn.name
    if right is None or name not in ("add", "mul"):
        return None
    inner = defining_op(op.args[0], ew.CLASSES[name])
    if inner is None or (c := constant(inner.args[1])) is None:
        return None
    exact = ew.of_integers(name, c, right)
    combined = wrapped(exact, t)
    if combined != exact and not is_unsigned(t) and bits(t) >= 32:
        return None
    (number,) = _number_before(op, combined)
    return _new_before(op, ew.CLASSES[name](inner.args[0], number))


def _by_bits(
    op: ew.Elementwise, right: int | float | None, ranges: Ranges
) -> Sequence[SSAValue] | None:
    """What follows of bits: those that an operation before has set already, has changed once
    before, or that a shift drops.

        (x ^ y) ^ y = x      (x | y) | y = x | y      (x & y) & y = x & y
        (x ^ y) >> n = x >> n,  (x | y) >> n = x >> n   where 0 <= y < 2^n
    """
    name = op.fn.name
    if name in ("xor", "or", "and"):
        return _again(op, op.args) or _again(op, op.args[::-1])
    if name != "shr" or right is None or not 0 <= right < bits(element_of(op.result.type)):
        return None
    inner = defining_op(op.args[0], ew.CLASSES["xor"]) or defining_op(op.args[0], ew.CLASSES["or"])
    for kept, low in () if inner is None else (inner.args, inner.args[::-1]):
        if (held := ranges.of(low)) is not None and held.lo >= 0 and held.hi < 1 << int(right):
            return _new_before(op, ew.CLASSES["shr"](kept, op.args[1]))
    return None


def _again(op: ew.Elementwise, args: Sequence[SSAValue]) -> Sequence[SSAValue] | None:
    """What combining bits once more with the same ones gives. args: what was combined, and those
    bits.
    """
    outer, other = args
    inner = defining_op(outer, ew.CLASSES[op.fn.name])
    if inner is None or other not in inner.args:
        return None
    a, b = inner.args
    return [outer] if op.fn.name != "xor" else [b if other is a else a]


def _by_range(op: ew.Elementwise, ranges: Ranges) -> Sequence[SSAValue] | None:
    """What follows from the ranges of two integers."""
    name, (x, y) = op.fn.name, op.args
    if name in ew.COMPARISONS:
        known = ranges.always(op.result)
        return None if known is None else _number_before(op, int(known))
    if name not in ("max", "min", "mod", *FLOORS):
        return None
    a, b = ranges.of(x), ranges.of(y)
    assert a is not None and b is not None
    if name in FLOORS:
        both = a.lo >= 0 and b.lo >= 0
        return _new_before(op, ew.CLASSES[FLOORS[name]](x, y)) if both else None
    if name == "mod":
        return [x] if a.lo >= 0 and a.hi < b.lo else None
    if a.lo >= b.hi:
        return [x if name == "max" else y]
    if b.lo >= a.hi:
        return [y if name == "max" else x]
    return None


def _narrower(op: ew.Elementwise, ranges: Ranges) -> Sequence[SSAValue] | None:
    """Indices of 32 bits beside a number of 64 that is the same for many: the number is clamped to
    just outside their range, once, and 32 bits are compared.
    """
    for x, y in (op.args, op.args[::-1]):
        broadcast = defining_op(x, tile.Broadcast)
        cast = defining_op(x if broadcast is None else broadcast.arg, ew.Cast)
        if cast is None or element_of(cast.arg.type) != i32 or element_of(y.type) != i64:
            continue
        same = y.owner
        if not isinstance(same, (tile.Splat, tile.Broadcast)):
            continue
        indices, number = cast.arg, same.arg
        held = ranges.of(indices)
        if held is None or held.lo <= -1 << 31 or held.hi >= (1 << 31) - 1:
            continue
        build, kind = Builder(op), tile_type(x).with_element(i32)
        low = build.number(int(held.lo) - 1, number.type)
        clamped = build.max(number, low)
        clamped = build.min(clamped, build.number(int(held.hi) + 1, number.type))
        clamped = build(ew.Cast(clamped, like(number.type, i32)))
        narrow = {
            x: indices if broadcast is None else build(tile.Broadcast(indices, kind)),
            y: build(type(same)(clamped, kind)),
        }
        return [build(ew.CLASSES[op.fn.name](*(narrow[v] for v in op.args)))]
    return None


def _into_dot(op: ew.Elementwise) -> Sequence[SSAValue] | None:
    """c + a·b as one dot; not for float8, whose sums on tensor cores have fewer bits."""
    for product, other in (op.args, op.args[::-1]):
        dot = defining_op(product, tile.Dot)
        if dot is None or dot.parent is not op.parent or not product.has_one_use():
            continue
        element = element_of(dot.acc.type)
        exact = bits(element_of(dot.a.type)) > 8 and (
            not is_float(element) or element in (f32, f64)
        )
        if exact and constant(dot.acc) == 0:
            return _new_before(op, tile.Dot(dot.a, dot.b, other, dot.precision.data))
    return None


def _select(op: ew.Select) -> Sequence[SSAValue] | None:
    condition, yes, no = op.operands
    if (known := constant(condition)) is not None:
        return [yes if known else no]
    if yes is no:
        return [yes]
    if (inverted := defining_op(condition, ew.CLASSES["not"])) is not None:
        return _new_before(op, ew.Select(inverted.args[0], no, yes))
    t = op.result.type
    is_condition = is_bool(element_of(t)) and condition.type == t
    if is_condition and (constant(yes), constant(no)) == (1, 0):
        return [condition]
    if (splat := defining_op(condition, tile.Splat)) is not None:
        return _new_before(op, ew.Select(splat.arg, yes, no))
    if isinstance(condition.type, TileType) or not isinstance(t, TileType):
        return _pointwise(op)
    return None


# Bits of the integers that a float type holds exactly, by its storage width.
_EXACT_INTEGER_BITS = {16: 8, 32: 24, 64: 53}


def _exact(a: Attribute, b: Attribute) -> bool:
    """Whether every value of element type a is one of b."""
    if is_bool(a) or a == b:
        return True
    if is_integer(a) and is_integer(b):
        return bits(a) < bits(b) and (is_unsigned(a) or not is_unsigned(b))
    if is_integer(a) and is_float(b):
        return bits(a) <= _EXACT_INTEGER_BITS.get(bits(b), 0)
    return is_float(b) and bits(a) < bits(b)


def _cast(op: ew.Cast) -> Sequence[SSAValue] | None:
    source, wanted = element_of(op.arg.type), element_of(op.result.type)
    if source == wanted:
        return [op.arg]
    inner = defining_op(op.arg, ew.Cast)
    if inner is not None and _is_skipped(element_of(inner.arg.type), source, wanted):
        if inner.arg.type == op.result.type:
            return [inner.arg]
        return _new_before(op, ew.Cast(inner.arg, op.result.type))
    if (n := constant(op.arg)) is not None and (made := _cast_number(n, wanted)) is not None:
        return _number_before(op, made)
    return _pointwise(op)


# The largest integers below which a float type of 16 bits holds all.
_EXACT_INTEGERS: dict[Attribute, int] = {f16: 1 << 11, bf16: 1 << 8}


def _in_sixteen_bits(op: ew.Cast, ranges: Ranges) -> Sequence[SSAValue] | None:
    """A float32 sum or product of numbers that a type of 16 bits holds, cast to that type: one of
    that type. float32 has more than twice its digits and two more, so that it is rounded alike;
    products of two bfloat16 may be below what float32 holds, those of one and an integer are not.
    """
    wanted, sum_or_product = element_of(op.result.type), op.arg.owner
    if wanted not in _EXACT_INTEGERS or not isinstance(sum_or_product, ew.Elementwise):
        return None
    name = sum_or_product.fn.name
    if element_of(op.arg.type) != f32 or name not in ("add", "sub", "mul"):
        return None
    if not isinstance(op.arg.type, TileType) or not op.arg.has_one_use():
        return None
    sources = [_cast_of(v) for v in sum_or_product.args]
    if not all(_is_held(v, wanted, ranges) for v in sources):
        return None
    if (
        name == "mul"
        and wanted == bf16
        and not any(is_integer(element_of(v.type)) for v in sources)
    ):
        return None
    x, y = (_recast(op, v, wanted) for v in sum_or_product.args)
    return _new_before(op, ew.CLASSES[name](x, y))


def _cast_of(value: SSAValue) -> SSAValue:
    """What a view of a cast is a cast of; the value itself where it is none."""
    at = value
    while isinstance(at.owner, View):
        at = at.owner.arg
    return at.owner.arg if isinstance(at.owner, ew.Cast) else value


def _is_held(value: SSAValue, wanted: Attribute, ranges: Ranges) -> bool:
    """Whether a 16-bit type of floats holds the elements of a value."""
    known, largest = ranges.of(value), _EXACT_INTEGERS[wanted]
    if element_of(value.type) == wanted:
        return True
    return known is not None and -largest <= known.lo and known.hi <= largest


def _recast(op: Operation, value: SSAValue, element: Attribute) -> SSAValue:
    """A view of a cast as one of a cast to another element type, before an operation."""
    owner = value.owner
    t = tile_type(value).with_element(element)
    if isinstance(owner, View):
        return before(op, _clone(owner, [_recast(op, owner.arg, element)], t)).results[0]
    assert isinstance(owner, ew.Cast)
    return owner.arg if owner.arg.type == t else before(op, ew.Cast(owner.arg, t)).result


def _is_skipped(first: Attribute, between: Attribute, last: Attribute) -> bool:
    """Whether a cast of a cast is one from the first type to the last. (An integer by way of a
    float saturates, without it wraps.)
    """
    if not _exact(first, between) or first == last == f8e5m2:
        return False
    saturates = is_integer(first) and is_float(between) and is_integer(last)
    return not saturates or _exact(first, last)


def _cast_number(n: int | float, t: Attribute) -> int | float | None:
    """A number as another type holds it; None where that is not the machine's to the last bit."""
    if isinstance(n, float) and math.isnan(n):
        return None
    if is_bool(t):
        return int(n != 0)
    if is_float(t):
        # an integer of more bits would be rounded twice
        largest = 2**24 if t in (f16, bf16) else 2**53
        if t not in FLOATS or isinstance(n, int) and abs(n) > largest:
            return None
        with np.errstate(all="ignore"):
            if t in (f16, bf16) and float(np.float32(n)) != n:
                return None  # so would a float64
            return float(np.float32(n).astype(FLOATS[t])) if t != f64 else float(n)
    if isinstance(n, int):
        return wrapped(n, t)
    return int(n) if math.isfinite(n) and wrapped(int(n), t) == int(n) else None


def _pointwise(op: Operation) -> Sequence[SSAValue] | None:
    """On splats alone, one scalar operation; on broadcasts of one shape (and splats), the small
    tile's operation: less to compute.
    """
    t = op.results[0].type
    if not isinstance(t, TileType):
        return None
    same = [uniform(v) if isinstance(v.type, TileType) else v for v in op.operands]
    if None not in same:
        scalars = [
            s if isinstance(s, SSAValue) else _constant_before(op, s, element_of(v.type))
            for v, s in zip(op.operands, same, strict=True)
        ]
        (scalar,) = _new_before(op, _clone(op, scalars, element_of(t)))
        return _new_before(op, tile.Splat(scalar, t))
    return _narrow_pointwise(op, t, same)


def _narrow_pointwise(
    op: Operation, t: TileType, same: list[SSAValue | int | float | None]
) -> Sequence[SSAValue] | None:
    """Element by element of broadcasts of one shape, and of the scalars `same`: a broadcast."""
    wide = [
        defining_op(v, tile.Broadcast) for v, s in zip(op.operands, same, strict=True) if s is None
    ]
    shapes = {None if b is None else extents_of(b.arg) for b in wide}
    extents = shapes.pop()
    if shapes or extents is None:
        return None

    def small(value: SSAValue, scalar: SSAValue | int | float | None) -> SSAValue:
        if not isinstance(value.type, TileType):
            return value
        if scalar is None:
            return owner_op(value).operands[0]
        narrow = TileType(extents, value.type.element)
        if isinstance(scalar, SSAValue):
            return before(op, tile.Splat(scalar, narrow)).result
        return _constant_before(op, scalar, narrow)

    operands = [small(v, s) for v, s in zip(op.operands, same, strict=True)]
    (inner,) = _new_before(op, _clone(op, operands, TileType(extents, t.element)))
    return _new_before(op, tile.Broadcast(inner, t))


def _constant_before(op: Operation, n: int | float | None, t: Attribute) -> SSAValue:
    assert n is not None
    return before(op, tile.Constant(n, t)).result


def _clone(op: Operation, operands: list[SSAValue], result: Attribute) -> Operation:
    return type(op).create(
        operands=operands,
        result_types=[result],
        properties=dict(op.properties),
        attributes=dict(op.attributes),
    )


# ---- shapes
View = tile.Broadcast | tile.Reshape | tile.Transpose | tile.Slice | tile.Flip


def _shape(op: View) -> Sequence[SSAValue] | None:
    """A view of one number, a view that changes nothing, a view of a view."""
    t, arg = tile_type(op.result), op.arg
    match uniform(arg):
        case SSAValue() as scalar:
            return _new_before(op, tile.Splat(scalar, t))
        case int() | float() as n:
            return _number_before(op, n)
    if arg.type == t and not isinstance(op, (tile.Flip, tile.Transpose)):
        return [arg]
    match op, arg.owner:
        case tile.Broadcast(), tile.Broadcast() as inner:
            return _new_before(op, tile.Broadcast(inner.arg, t))
        case tile.Reshape(), tile.Reshape() as inner:
            return _new_before(op, tile.Reshape(inner.arg, t))
        case tile.Flip(), tile.Flip() as inner if inner.axis == op.axis:
            return [inner.arg]
        case tile.Flip(), _ if t.extents[op.axis.value.data] == 1:
            return [arg]
        case tile.Transpose(), inner:
            permutation = op.permutation.get_values()
            if list(permutation) == sorted(permutation):
                return [arg]
            if isinstance(inner, tile.Transpose):
                first = inner.permutation.get_values()
                return _new_before(op, tile.Transpose(inner.arg, [first[p] for p in permutation]))
    return None


def _concat(op: tile.Concat) -> Sequence[SSAValue] | None:
    """One tile joined to itself along a new axis: its elements are repeated."""
    once = tile_type(op.args[0]).extents[op.axis.value.data] == 1
    if once and len(set(op.args)) == 1:
        return _new_before(op, tile.Broadcast(op.args[0], tile_type(op.result)))
    return None


def _reduce(op: tile.Reduce) -> Sequence[SSAValue] | None:
    """Over an axis of extent 1: the element itself, but for infinities of e5m2, which a reduction
    rounds to the largest number.
    """
    t, axis = tile_type(op.args[0]), op.axis.value.data
    if t.extents[axis] != 1 or op.kind.data == "combine":
        return None
    result = op.results[0].type
    if op.kind.data.startswith("arg"):
        return _number_before(op, 0)
    if t.element == f8e5m2:
        return None
    if not isinstance(result, TileType):
        return _new_before(op, tile.Extract(op.args[0], (0,) * t.rank))
    return _new_before(op, tile.Reshape(op.args[0], result))


def _load(op: tile.Load) -> Sequence[SSAValue] | None:
    """A block of an array without elements is what it is filled with. What is outside reads as zero
    without a word.
    """
    t = op.result.type
    if _is_filled_with_zeros(op):
        new = tile.Load(op.array, op.offsets, op.extents.get_values(), op.mask, None, t)
        new.fetch = op.fetch
        return _new_before(op, new)
    if not isinstance(t, TileType) or all(n.exact != 0 for n in array_type(op.array).facts.shape):
        return None
    if op.other is None:
        return _number_before(op, 0)
    return [op.other] if op.other.type == t else _new_before(op, tile.Splat(op.other, t))


def _load_pointers(op: tile.LoadPointers) -> Sequence[SSAValue] | None:
    """What is masked reads as zero without a word."""
    if not _is_filled_with_zeros(op):
        return None
    new = tile.LoadPointers(op.pointers, op.mask)
    new.semantics, new.scope = op.semantics, op.scope
    return _new_before(op, new)


def _is_filled_with_zeros(op: tile.Load | tile.LoadPointers) -> bool:
    """Whether a load says that what it does not read is zero. Of floats, -0.0 is another number."""
    number = None if op.other is None else uniform(op.other)
    if not isinstance(number, int | float):
        return False
    return number == 0 and math.copysign(1.0, number) > 0


def _address(op: tile.Pointer) -> Sequence[SSAValue] | None:
    """The address that an array was made of: a loop that carries it carries nothing new then."""
    made = op.arg.owner
    if isinstance(made, tile.MakeArray) and made.pointer.type == op.result.type:
        return [made.pointer]
    return None


def _extent(op: tile.Dim | tile.Stride) -> Sequence[SSAValue] | None:
    """Extents and strides that the specialization knows, and those of a view's array."""
    axis, facts = op.axis.value.data, array_type(op.arg).facts
    known = (facts.shape if isinstance(op, tile.Dim) else facts.strides)[axis].exact
    if known is not None:
        return _number_before(op, known)
    match op.arg.owner:
        case tile.View() as view:
            kept = [(i, k.data) for i, k in enumerate(view.kinds) if k.data != "index"]
            source, kind = kept[axis]
            if isinstance(op, tile.Stride) or kind == "all":
                return _new_before(op, type(op)(view.array, source, op.result.type))
        case tile.MakeArray() as made:
            given = made.shape if isinstance(op, tile.Dim) else made.strides
            if len(given) > axis and given[axis].type == op.result.type:
                return [given[axis]]
    return None


# ---- control
def _if(op: scf.IfOp) -> Sequence[SSAValue] | None:
    if (known := constant(op.cond)) is None:
        return None
    region = op.regions[0 if known else 1]
    return _inline(op, region.block) if region.blocks else []


def _for(op: scf.ForOp, ranges: Ranges) -> Sequence[SSAValue] | None:
    """Loops that run never, or once."""
    begin, end = ranges.of(op.lb), ranges.of(op.ub)
    if begin is not None and end is not None and end.hi <= begin.lo:
        return list(op.iter_args)
    lb, ub, step = map(constant, (op.lb, op.ub, op.step))
    if lb is None or ub is None:
        return None
    if lb >= ub:
        return list(op.iter_args)
    if step is None or lb + step < ub:
        return None
    body = op.body.block
    for argument, value in zip(body.args, [op.lb, *op.iter_args], strict=True):
        argument.replace_all_uses_with(value)
    return _inline(op, body)


def _inline(op: Operation, block: Block) -> list[SSAValue]:
    """Moves a block's operations before `op`; returns what its terminator yields."""
    end = terminator_of(block)
    values = list(end.operands)
    erase(end)
    for inner in list(block.ops):
        inner.detach()
        block_of(op).insert_op_before(inner, op)
    return values


_RULES: dict[type[Operation], Callable[[Any], Sequence[SSAValue] | None]] = {
    ew.Select: _select,
    ew.Bitcast: _bitcast,
    ew.PointerAdd: _pointer_add,
    tile.Multiple: _multiple,
    tile.Splat: _splat,
    tile.Broadcast: _shape,
    tile.Reshape: _shape,
    tile.Transpose: _shape,
    tile.Slice: _shape,
    tile.Flip: _shape,
    tile.Extract: _extract,
    tile.Concat: _concat,
    tile.Reduce: _reduce,
    tile.Load: _load,
    tile.LoadPointers: _load_pointers,
    tile.Pointer: _address,
    tile.Dim: _extent,
    tile.Stride: _extent,
    scf.IfOp: _if,
}
