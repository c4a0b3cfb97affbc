"""Folding: what one operation becomes when its operands are known, or when it undoes another. Used
by simplify.

`fold(op, ranges)` returns the values that replace the operation's results, or None. New operations
it puts before the old one. Nothing here changes a result by a bit: floats fold only where the
rounding is the machine's, x + 0.0 stays (−0.0 + 0.0 is 0.0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import bf16, f16, f32, f64, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import Builder, before
from tkc.ir.types import TileType, bits, element_of, is_bool, is_float, is_integer, is_unsigned

FLOATS = {f16: np.float16, bf16: ml_dtypes.bfloat16, f32: np.float32, f64: np.float64}
COMMUTATIVE = {"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne", "mulhi"}
_MIRROR = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_FLOAT = {
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
    def new(made):
        return [before(op, made).results[0]]

    match op:
        case ew.Elementwise():
            return _elementwise(op, ranges)
        case ew.Select():
            return _select(op)
        case ew.Cast():
            return _cast(op)
        case ew.Bitcast():
            if op.arg.type == op.result.type:
                return [op.arg]
            if isinstance(op.arg.owner, ew.Bitcast):
                return new(ew.Bitcast(op.arg.owner.arg, op.result.type))
            return _pointwise(op)
        case ew.PointerAdd():
            return [op.pointer] if constant(op.offset) == 0 else _pointwise(op)
        case tile.Multiple():
            if constant(op.arg) is not None or op.divisor.value.data == 1:
                return [op.arg]
        case tile.Splat():
            if (n := constant(op.arg)) is not None:
                return new(tile.Constant(n, op.result.type))
        case tile.Broadcast() | tile.Reshape() | tile.Transpose() | tile.Slice() | tile.Flip():
            return _shape(op)
        case tile.Extract():
            match uniform(op.arg):
                case SSAValue() as scalar:
                    return [scalar]
                case int() | float() as n:
                    return new(tile.Constant(n, op.result.type))
        case tile.Reduce():
            return _reduce(op)
        case tile.Dim() | tile.Stride():
            return _extent(op)
        case scf.IfOp():
            return _if(op)
        case scf.ForOp():
            return _for(op, ranges)
    return None


# ---- numbers
def wrapped(n: int, t: Attribute) -> int:
    """An integer as its type holds it."""
    if is_bool(t):
        return n & 1
    width = t.width.data
    n &= (1 << width) - 1
    return n if is_unsigned(t) or n < 1 << width - 1 else n - (1 << width)


def _number(name: str, args: list[int | float], t: Attribute) -> int | float | None:
    """The value of a function of constants of element type t (a truth value where it compares);
    None: not folded.
    """
    if not is_float(t):
        if name in ("shl", "shr") and 0 <= args[1] < bits(t):
            return wrapped(args[0] << args[1] if name == "shl" else args[0] >> args[1], t)
        found = ew.of_integers(name, *args)
        return None if found is None else wrapped(found, t)
    if t not in FLOATS or any(math.isnan(a) for a in args):
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
    name, args, t = op.fn.name, list(op.args), element_of(op.args[0].type)
    known = [constant(a) for a in args]

    def new(made):
        return [before(op, made).results[0]]

    def number(n):
        return new(tile.Constant(n, op.result.type))

    if (
        None not in known
        and (is_float(t) or is_integer(t) or is_bool(t))
        and (n := _number(name, known, t)) is not None
    ):
        return number(n)
    if (
        len(args) == 2
        and known[0] is not None
        and known[1] is None
        and (name in COMMUTATIVE or name in _MIRROR)
    ):
        return new(ew.CLASSES[_MIRROR.get(name, name)](args[1], args[0]))
    if name == "add" and (made := _into_dot(op)) is not None:
        return made
    if len(args) == 2 and (found := _identity(name, args, known[1], t, number)) is not None:
        return found
    if name == "not" and isinstance(args[0].owner, ew.CLASSES["not"]):
        return [args[0].owner.args[0]]
    if name == "neg" and isinstance(args[0].owner, ew.CLASSES["neg"]):
        return [args[0].owner.args[0]]
    if len(args) == 2 and is_integer(t):
        if (found := _associated(op, name, args, known[1], t)) is not None:
            return found
        if (found := _by_range(op, name, args, ranges, number)) is not None:
            return found
        if name in ew.COMPARISONS and (found := _narrower(op, args, ranges)) is not None:
            return found
    return _pointwise(op)


def _identity(
    name: str, args: list[SSAValue], right, t: Attribute, number
) -> Sequence[SSAValue] | None:
    """x op constant, x op x."""
    x = args[0]
    if is_float(t):
        if (
            name in ("mul", "div", "div_rn")
            and right == 1
            or name == "sub"
            and right == 0
            and math.copysign(1, right) > 0
        ):
            return [x]
        return [x] if name == "add" and right == 0 and math.copysign(1, right) < 0 else None
    if not (is_integer(t) or is_bool(t)):
        return None
    ones = 1 if is_bool(t) else wrapped(-1, t)
    if (
        right == 0
        and name in ("add", "sub", "or", "xor", "shl", "shr")
        or right == 1
        and name in ("mul", "floordiv")
        and not is_bool(t)
    ):
        return [x]
    if right == 0 and name in ("mul", "and") or right == 1 and name == "mod":
        return number(0)
    if right == ones and name in ("and", "or"):
        return [x] if name == "and" else number(ones)
    if is_bool(t) and (name, right) in (("eq", 1), ("ne", 0)):
        return [x]
    if x is args[1]:
        if name in ("and", "or", "max", "min"):
            return [x]
        if name in ("sub", "xor"):
            return number(0)
        if name in ew.COMPARISONS:
            return number(int(name in ("eq", "le", "ge")))
    return None


def _associated(op, name: str, args, right, t) -> Sequence[SSAValue] | None:
    """(x + 2) + 3 and (x · 2) · 3, where nothing wraps in between that did not before: both are
    sums modulo 2ⁿ.
    """
    inner = args[0].owner
    if (
        right is None
        or name not in ("add", "mul")
        or not isinstance(inner, ew.CLASSES[name])
        or (c := constant(inner.args[1])) is None
    ):
        return None
    combined = before(
        op, tile.Constant(wrapped(ew.of_integers(name, c, right), t), op.result.type)
    ).result
    return [before(op, ew.CLASSES[name](inner.args[0], combined)).results[0]]


def _by_range(op, name: str, args, ranges: Ranges, number) -> Sequence[SSAValue] | None:
    if name in ew.COMPARISONS:
        known = ranges.always(op.result)
        return None if known is None else number(int(known))
    if name in ("max", "min", "mod"):
        a, b = map(ranges.of, args)
        if name == "mod":
            return [args[0]] if a.lo >= 0 and a.hi < b.lo else None
        if a.lo >= b.hi:
            return [args[0] if name == "max" else args[1]]
        if b.lo >= a.hi:
            return [args[1] if name == "max" else args[0]]
    return None


def _narrower(
    op: ew.Elementwise, args: list[SSAValue], ranges: Ranges
) -> Sequence[SSAValue] | None:
    """Indices of 32 bits beside a number of 64 that is the same for many: the number is brought as
    near to their range as what is beyond it, once, and 32 bits are compared.
    """
    for x, y in (args, args[::-1]):
        wide = x.owner.arg if isinstance(x.owner, tile.Broadcast) else x
        if (
            not isinstance(wide.owner, ew.Cast)
            or element_of(wide.owner.arg.type) != i32
            or element_of(y.type) != i64
            or not isinstance(y.owner, (tile.Splat, tile.Broadcast))
        ):
            continue
        held, number = ranges.of(indices := wide.owner.arg), y.owner.arg
        if held is None or held.lo <= -1 << 31 or held.hi >= (1 << 31) - 1:
            continue
        build, kind = Builder(op), x.type.with_element(i32)
        near = build.min(
            build.max(number, build.number(held.lo - 1, number.type)),
            build.number(held.hi + 1, number.type),
        )
        near = build(
            ew.Cast(
                near, number.type.with_element(i32) if isinstance(number.type, TileType) else i32
            )
        )
        narrow = {
            x: indices if wide is x else build(tile.Broadcast(indices, kind)),
            y: build(
                (tile.Splat if isinstance(y.owner, tile.Splat) else tile.Broadcast)(near, kind)
            ),
        }
        return [build(ew.CLASSES[op.fn.name](*(narrow[v] for v in args)))]
    return None


def _into_dot(op: ew.Elementwise) -> Sequence[SSAValue] | None:
    """c + a·b as one dot; not for float8, where the tensor core's sum is shorter than float32's."""
    for dot, other in (op.args, op.args[::-1]):
        d = dot.owner
        if (
            isinstance(d, tile.Dot)
            and dot.has_one_use()
            and constant(d.acc) == 0
            and d.parent is op.parent
            and bits(element_of(d.a.type)) > 8
        ) and (not is_float(element_of(d.acc.type)) or element_of(d.acc.type) in (f32, f64)):
            return [before(op, tile.Dot(d.a, d.b, other, d.precision.data)).result]
    return None


def _select(op: ew.Select) -> Sequence[SSAValue] | None:
    condition, yes, no = op.operands
    if (known := constant(condition)) is not None:
        return [yes if known else no]
    if yes is no:
        return [yes]
    if isinstance(condition.owner, ew.CLASSES["not"]):
        return [before(op, ew.Select(condition.owner.args[0], no, yes)).result]
    if (
        is_bool(element_of(op.result.type))
        and condition.type == op.result.type
        and (constant(yes), constant(no)) == (1, 0)
    ):
        return [condition]
    if isinstance(condition.owner, tile.Splat):
        return [before(op, ew.Select(condition.owner.arg, yes, no)).result]
    return (
        _pointwise(op)
        if condition.type != op.condition.type
        or isinstance(condition.type, TileType)
        or not isinstance(op.result.type, TileType)
        else None
    )


def _exact(a: Attribute, b: Attribute) -> bool:
    """Whether every value of element type a is one of b."""
    if is_bool(a):
        return True
    if is_integer(a) and is_integer(b):
        return a.width.data < b.width.data and (is_unsigned(a) or not is_unsigned(b)) or a == b
    if is_integer(a) and is_float(b):
        return (
            a.width.data <= {16: 8, 32: 24, 64: 53}.get(bits(b), 0)
            and b != bf16
            and (b != f16 or a.width.data <= 11)
        )
    if is_float(a) and is_float(b):
        return bits(a) < bits(b) and not (bits(a) == 8 and bits(b) == 8) or a == b
    return False


def _cast(op: ew.Cast) -> Sequence[SSAValue] | None:
    source, wanted = element_of(op.arg.type), element_of(op.result.type)
    if source == wanted:
        return [op.arg]
    inner = op.arg.owner
    if (
        isinstance(inner, ew.Cast)
        and _exact(first := element_of(inner.arg.type), source)
        and not (
            is_integer(first)
            and is_float(source)
            and is_integer(wanted)
            and not _exact(first, wanted)
        )
    ):
        # (an integer by way of a float saturates, without it wraps)
        return (
            [inner.arg]
            if inner.arg.type == op.result.type
            else [before(op, ew.Cast(inner.arg, op.result.type)).result]
        )
    if (n := constant(op.arg)) is not None and (made := _cast_number(n, wanted)) is not None:
        return [before(op, tile.Constant(made, op.result.type)).result]
    return _pointwise(op)


def _cast_number(n: int | float, t: Attribute) -> int | float | None:
    if is_bool(t):
        return None if isinstance(n, float) and math.isnan(n) else int(n != 0)
    if is_float(t):
        if (
            t not in FLOATS
            or isinstance(n, float)
            and math.isnan(n)
            or isinstance(n, int)
            and abs(n) > 2**53
        ):
            return None
        if t in (f16, bf16) and isinstance(n, int) and abs(n) > 2**24:
            return None  # would round twice
        with np.errstate(all="ignore"):
            return float(np.float32(n).astype(FLOATS[t])) if t != f64 else float(n)
    if isinstance(n, int):
        return wrapped(n, t)
    if math.isfinite(n) and wrapped(int(n), t) == int(n):
        return int(n)
    return None


def _pointwise(op: Operation) -> Sequence[SSAValue] | None:
    """On splats alone, one scalar operation; on broadcasts of one shape (and splats), the small
    tile's operation: less to compute.
    """
    t = op.results[0].type
    if not isinstance(t, TileType):
        return None
    same = [uniform(v) if isinstance(v.type, TileType) else v for v in op.operands]
    wide = [v for v, s in zip(op.operands, same, strict=False) if s is None]
    if not wide:
        if not any(isinstance(s, SSAValue) for s in same):
            return None
        scalars = [
            (
                s
                if isinstance(s, SSAValue)
                else before(op, tile.Constant(s, element_of(v.type))).result
            )
            for v, s in zip(op.operands, same, strict=False)
        ]
        return [
            before(
                op, tile.Splat(before(op, _clone(op, scalars, element_of(t))).results[0], t)
            ).result
        ]
    if (
        not all(isinstance(v.owner, tile.Broadcast) for v in wide)
        or len({v.owner.arg.type.extents for v in wide}) > 1
    ):
        return None
    extents = wide[0].owner.arg.type.extents

    def small(v: SSAValue, s) -> SSAValue:
        if not isinstance(v.type, TileType):
            return v
        if s is None:
            return v.owner.arg
        narrow = TileType(extents, v.type.element)
        return before(
            op, tile.Splat(s, narrow) if isinstance(s, SSAValue) else tile.Constant(s, narrow)
        ).result

    inner = before(
        op,
        _clone(
            op,
            [small(v, s) for v, s in zip(op.operands, same, strict=False)],
            TileType(extents, t.element),
        ),
    ).results[0]
    return [before(op, tile.Broadcast(inner, t)).result]


def _clone(op: Operation, operands: list[SSAValue], result: Attribute) -> Operation:
    return type(op).create(
        operands=operands,
        result_types=[result],
        properties=dict(op.properties),
        attributes=dict(op.attributes),
    )


# ---- shapes
def _shape(op: Operation) -> Sequence[SSAValue] | None:
    t, arg = op.result.type, op.arg

    def new(made):
        return [before(op, made).results[0]]

    match uniform(arg):
        case SSAValue() as scalar:
            return new(tile.Splat(scalar, t))
        case int() | float() as n:
            return new(tile.Constant(n, t))
    inner = arg.owner
    match op:
        case tile.Broadcast() | tile.Reshape() if arg.type == t:
            return [arg]
        case tile.Broadcast() if isinstance(inner, tile.Broadcast):
            return new(tile.Broadcast(inner.arg, t))
        case tile.Reshape() if isinstance(inner, tile.Reshape):
            return new(tile.Reshape(inner.arg, t))
        case tile.Slice() if arg.type == t:
            return [arg]
        case tile.Flip() if isinstance(inner, tile.Flip) and inner.axis == op.axis:
            return [inner.arg]
        case tile.Flip() if t.extents[op.axis.value.data] == 1:
            return [arg]
        case tile.Transpose():
            permutation = op.permutation.get_values()
            if list(permutation) == sorted(permutation):
                return [arg]
            if isinstance(inner, tile.Transpose):
                first = inner.permutation.get_values()
                return new(tile.Transpose(inner.arg, [first[p] for p in permutation]))
    return None


def _reduce(op: tile.Reduce) -> Sequence[SSAValue] | None:
    """Over an axis of extent 1: the element itself."""
    t, axis = op.args[0].type, op.axis.value.data
    if t.extents[axis] != 1 or op.kind.data == "combine":
        return None
    result = op.results[0].type
    if op.kind.data.startswith("arg"):
        return [before(op, tile.Constant(0, result)).result]
    if not isinstance(result, TileType):
        return [before(op, tile.Extract(op.args[0], (0,) * t.rank)).result]
    return [before(op, tile.Reshape(op.args[0], result)).result]


def _extent(op: tile.Dim | tile.Stride) -> Sequence[SSAValue] | None:
    """Extents and strides that the specialization knows, and those of a view's array."""
    axis, facts = op.axis.value.data, op.arg.type.facts
    known = (facts.shape if isinstance(op, tile.Dim) else facts.strides)[axis].exact
    if known is not None:
        return [before(op, tile.Constant(known, op.result.type)).result]
    view = op.arg.owner
    if isinstance(view, tile.View):
        kept = [(i, k.data) for i, k in enumerate(view.kinds) if k.data != "index"]
        source, kind = kept[axis]
        if isinstance(op, tile.Stride) or kind == "all":
            return [before(op, type(op)(view.array, source, op.result.type)).result]
    if isinstance(view, tile.MakeArray):
        given = view.shape if isinstance(op, tile.Dim) else view.strides
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
    begin, end = map(ranges.of, (op.lb, op.ub))
    if begin is not None and end is not None and end.hi <= begin.lo:
        return list(op.iter_args)
    lb, ub, step = map(constant, (op.lb, op.ub, op.step))
    if None in (lb, ub):
        return None
    if lb >= ub:
        return list(op.iter_args)
    if step is None or step <= 0 or lb + step < ub:
        return None
    body = op.body.block
    for argument, value in zip(body.args, [op.lb, *op.iter_args], strict=False):
        argument.replace_all_uses_with(value)
    return _inline(op, body)


def _inline(op: Operation, block) -> list[SSAValue]:
    """Moves a block's operations before `op`; returns what its terminator yields."""
    end = block.last_op
    values = list(end.operands)
    end.detach()
    end.erase()
    for inner in list(block.ops):
        inner.detach()
        op.parent.insert_op_before(inner, op)
    return values
