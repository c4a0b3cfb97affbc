"""What a kernel can compute: programs, constants, mathematics, shapes, reductions, scans, dot."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, i32
from xdsl.ir import Block, BlockArgument, Region, SSAValue

from tkc.ir import elementwise, tile
from tkc.ir.messages import escaped
from tkc.ir.ranges import NONNEGATIVE, Range, bounds
from tkc.ir.types import TileType
from tkc.ir.values import defining_op
from tkc.language import values
from tkc.language.dtypes import (
    BY_NAME,
    DType,
    bool_,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from tkc.language.tracer import fail, tracer
from tkc.language.values import (
    Operand,
    Scalar,
    Shape,
    Tile,
    Value,
    apply,
    as_tile,
    broadcast_shapes,
    cast,
    check,
    common,
    describe,
    lift,
    mask_of,
    number,
    one_by_one,
    spread,
    static_shape,
    unpack,
    wrap,
)

inf, nan = math.inf, math.nan


def axis_of(given: int, x: Value, what: str) -> int:
    """An axis of a tile, counted from the first. Fails for what is none."""
    axis = unpack(given)
    if isinstance(axis, bool) or not isinstance(axis, int):
        two = {"tkc.max": "tkc.maximum", "tkc.min": "tkc.minimum"}.get(what)
        hint = f"; of two values element by element use {two}" if two else ""
        fail(f"{what}: an axis is a Python integer, got {describe(axis)}{hint}")
    if not isinstance(x, Tile) or not -x.ndim <= axis < x.ndim:
        fail(
            f"{what}: axis {axis} of {describe(x)}, whose axes are"
            f" {f'-{x.ndim} to {x.ndim - 1}' if x.ndim else 'none'}"
        )
    return axis % x.ndim


def tile_of(value: object, what: str) -> Tile:
    """An argument that is a tile. Fails for others."""
    x = check(value)
    if not isinstance(x, Tile):
        fail(f"{what} takes a tile, got {describe(x)}")
    return x


# --------------------------------------------------------------------------------------------------
def program_id(axis: int) -> Scalar:
    """The index of this program along axis 0, 1 or 2 of the grid (int32)."""
    return Scalar(tracer().emit(tile.ProgramId(_grid_axis(axis))).result)


def num_programs(axis: int) -> Scalar:
    """The extent of the grid along axis 0, 1 or 2 (int32)."""
    return Scalar(tracer().emit(tile.NumPrograms(_grid_axis(axis))).result)


def _grid_axis(axis) -> int:
    if unpack(axis) not in (0, 1, 2) or isinstance(axis, (bool, float)):
        fail(f"the axis of a grid is 0, 1 or 2, got {describe(axis)}")
    return int(axis)


# --------------------------------------------------------------------------------------------------
def arange(start: int, stop: int | None = None) -> Tile:
    """The integers start … stop - 1 (0 … start - 1 with one argument) as a rank-1 int32 tile."""
    start, stop = (0, start) if stop is None else (start, stop)
    start, stop = unpack(start), unpack(stop)
    if not builtins.all(isinstance(v, int) and not isinstance(v, bool) for v in (start, stop)):
        fail(
            "tkc.arange takes Python integers (make them tkc.constexpr); add a traced start to the"
            " result"
        )
    if stop <= start:
        fail(f"tkc.arange({start}, {stop}) is empty; tiles have extents of 1 and more")
    dtype = int32 if start >= -(2**31) and stop <= 2**31 else int64
    return Tile(tracer().emit(tile.Arange(start, TileType([stop - start], dtype.ir))).result)


def full(shape: Shape, value: Operand, dtype: DType | None = None) -> Tile:
    """A tile with one value everywhere; dtype is the value's (float32 or int32 for a number) unless
    given.
    """
    shape, value = static_shape(shape), check(value)
    if isinstance(value, Value) and value.shape:
        fail(f"tkc.full takes a scalar, got {describe(value)}; use tkc.broadcast_to")
    return as_tile(lift(value, dtype, shape))


def zeros(shape: Shape, dtype: DType = float32) -> Tile:
    """A tile of zeros."""
    return full(shape, 0, dtype)


# --------------------------------------------------------------------------------------------------
def _float_function(name: str, python=None):
    def function(x):
        x = check(x)
        if not isinstance(x, Value):
            try:
                return python(x)
            except (ValueError, OverflowError, ZeroDivisionError):
                x = number(float(x), float32)
        return apply(name, x, dtype=x.dtype if x.dtype.is_float else float32)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}, element by element; integers are taken as float32."
    return function


exp, exp2, expm1 = (
    _float_function("exp", math.exp),
    _float_function("exp2", lambda x: 2.0**x),
    _float_function("expm1", math.expm1),
)
log, log2, log1p = (
    _float_function("log", math.log),
    _float_function("log2", math.log2),
    _float_function("log1p", math.log1p),
)
sqrt, rsqrt = (
    _float_function("sqrt", math.sqrt),
    _float_function("rsqrt", lambda x: 1 / math.sqrt(x)),
)
sin, cos, tanh, erf = (
    _float_function("sin", math.sin),
    _float_function("cos", math.cos),
    _float_function("tanh", math.tanh),
    _float_function("erf", math.erf),
)


def _rounding(name: str, python):
    def function(x):
        x = check(x)
        if not isinstance(x, Value):
            return float(python(x)) if isinstance(x, float) else x
        return apply(name, x) if x.dtype.is_float else x

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}, element by element; the dtype stays."
    return function


floor, ceil, round_, trunc = (
    _rounding("floor", math.floor),
    _rounding("ceil", math.ceil),
    _rounding("round", builtins.round),
    _rounding("trunc", math.trunc),
)


def isnan(x: Operand) -> Value:
    """Whether each element is NaN."""
    return apply("isnan", x)


def isinf(x: Operand) -> Value:
    """Whether each element is an infinity."""
    return apply("isinf", x)


def abs_(x: Operand) -> Operand:
    """The absolute value."""
    return builtins.abs(check(x))


def sigmoid(x: Operand) -> Operand:
    """1 / (1 + exp(-x)), without overflow; of narrow floats in float32, rounded once."""
    return _in_float32(_floating(x), lambda v: divide(1.0, 1.0 + exp(-v)))


def _floating(x):
    x = check(x)
    return x if not isinstance(x, Value) or x.dtype.is_float else cast(x, float32)


divide = values.divide


def div_rn(x: Operand, y: Operand) -> Operand:
    """Division rounded to nearest even (IEEE); `/` on float32 is within 2 ulp."""
    return values.divide(x, y, "div_rn")


def div_trunc(x: Operand, y: Operand) -> Operand:
    """The quotient rounded towards zero, as C's `/` of integers (`//` rounds down); of integers 0
    where y is 0. Floats are divided and truncated.
    """
    return values.truncating("div_trunc", x, y)


def rem_trunc(x: Operand, y: Operand) -> Operand:
    """The remainder with the sign of x, as C's `%` of integers and `fmod` of floats, which is exact
    (`%` takes the sign of y); of integers 0 where y is 0.
    """
    return values.truncating("rem_trunc", x, y)


def pow_(x: Operand, y: Operand) -> Operand:
    """x to the power of y, also `x ** y`, in floats (integers are taken as float32); powers of 1 to
    4 are products.
    """
    return values.power(x, y)


def fma(a: Operand, b: Operand, c: Operand) -> Value:
    """a * b + c, rounded once."""
    args = [check(x) for x in (a, b, c)]
    dtype = common(*args)
    return apply("fma", *args, dtype=dtype if dtype.is_float else float32)


def _extreme(name: str, python):
    def function(x, y):
        x, y = check(x), check(y)
        if not isinstance(x, Value) and not isinstance(y, Value):
            return math.nan if x != x or y != y else python(x, y)
        dtype = common(x, y)
        return apply(name, x, y, dtype=int32 if dtype.kind == "bool" else dtype)

    function.__name__ = function.__qualname__ = f"{name}imum"
    function.__doc__ = f"The {name}imum of two, element by element; NaN if either is."
    return function


maximum, minimum = _extreme("max", builtins.max), _extreme("min", builtins.min)


def _number_extreme(name: str, other):
    def function(x, y):
        x, y = check(x), check(y)
        if not isinstance(x, Value) and not isinstance(y, Value):
            return y if x != x else x if y != y else other(x, y)
        dtype = common(x, y)
        return apply(name, x, y, dtype=dtype) if dtype.is_float else other(x, y)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The {name[1:]}imum of two, element by element; where one is NaN the other one."
    )
    return function


fmax, fmin = _number_extreme("fmax", maximum), _number_extreme("fmin", minimum)


def copysign_bits(magnitude: Operand, sign: Value) -> Value:
    """A float with the sign of another, which has its dtype and shape."""
    kind, top = BY_NAME[f"uint{sign.dtype.bits}"], 1 << sign.dtype.bits - 1
    word = lift(magnitude, sign.dtype).to(kind, bitcast=True) & top - 1
    return (word | (sign.to(kind, bitcast=True) & top)).to(sign.dtype, bitcast=True)


def where(condition: Operand, x: Operand, y: Operand) -> Operand:
    """x where the condition holds, else y; the three are broadcast, x and y promoted."""
    condition, x, y = check(condition, "condition"), check(x), check(y)
    traced = [v for v in (condition, x, y) if isinstance(v, Value)]
    if not traced:
        return x if condition else y
    if isinstance(condition, Value) and condition.dtype is not bool_:
        fail(
            f"the condition of where is made of truth values, got {describe(condition)}; compare"
            " it, e.g. c != 0"
        )
    dtype, shape = common(x, y), broadcast_shapes(*(v.shape for v in traced))
    if not isinstance(condition, Value):
        return lift(x if condition else y, dtype, shape)
    c = condition if not condition.shape else spread(condition, shape)
    return wrap(
        tracer()
        .emit(elementwise.Select(c.use(), lift(x, dtype, shape).use(), lift(y, dtype, shape).use()))
        .result
    )


def cdiv(a: Any, b: Any) -> Any:
    """The quotient of two integers, rounded up: (a + b - 1) // b, for b > 0 and sums that fit."""
    return (a + (b - 1)) // b


# --------------------------------------------------------------------------------------------------
def broadcast_to(x: Operand, *shape: int | Sequence[int]) -> Tile:
    """The value stretched to a shape by NumPy's rules."""
    extents, value = static_shape(one_by_one(shape)), lift(x)
    if broadcast_shapes(value.shape, extents) != extents:
        fail(f"{describe(value)} does not broadcast to {list(extents)}")
    return as_tile(spread(value, extents))


def reshape(x: Value, *shape: int | Sequence[int]) -> Tile:
    """The same elements in row-major order under another shape."""
    return tile_of(x, "tkc.reshape").reshape(*shape)


def permute(x: Value, *axes: int | Sequence[int]) -> Tile:
    """The axes in another order."""
    return tile_of(x, "tkc.permute").permute(*axes)


def cat(*tiles: Value | Sequence[Value], axis: int = 0) -> Tile:
    """Tiles of one rank one after the other along an axis."""
    several = len(tiles) == 1 and isinstance(tiles[0], (tuple, list))
    parts = [tile_of(t, "tkc.cat") for t in (tiles[0] if several else tiles)]
    if not parts:
        fail("tkc.cat needs a tile")
    axis, dtype = axis_of(axis, parts[0], "tkc.cat"), common(*parts)
    rest = [t.shape[:axis] + t.shape[axis + 1 :] for t in parts]
    if builtins.any(
        r != rest[0] or t.ndim != parts[0].ndim for r, t in zip(rest, parts, strict=False)
    ):
        fail(
            f"tkc.cat along axis {axis}: the other extents differ:"
            f" {', '.join(map(describe, parts))}"
        )
    shape = list(parts[0].shape)
    shape[axis] = builtins.sum(t.shape[axis] for t in parts)
    return Tile(
        tracer()
        .emit(tile.Concat([cast(t, dtype).use() for t in parts], axis, TileType(shape, dtype.ir)))
        .result
    )


def join(a: Operand, b: Operand) -> Tile:
    """Two tiles as the two elements of a new last axis."""
    a, b = lift(a), lift(b)
    shape = broadcast_shapes(a.shape, b.shape)
    return cat(
        *(as_tile(spread(x, shape))[..., None] if shape else full((1,), x) for x in (a, b)), axis=-1
    )


def split(x: Value) -> tuple[Value, Value]:
    """The inverse of join: the two halves of a last axis of 2."""
    x = tile_of(x, "tkc.split")
    if x.shape[-1] != 2:
        fail(f"tkc.split takes a tile whose last extent is 2, got {describe(x)}")
    return x[..., 0], x[..., 1]


def interleave(a: Operand, b: Operand) -> Tile:
    """The elements of a and b alternating along the last axis."""
    both = join(a, b)
    return both.reshape(both.shape[:-2] + (2 * both.shape[-2],)) if both.ndim > 1 else both


def gather(x: Value, index: Value, axis: int) -> Tile:
    """Elements of a tile by their places along an axis: index is a tile of integers of x's extents,
    except along the axis; gather(x, i, 0)[r, c] is x[i[r, c], c]. A place outside counts as the
    nearest inside.
    """
    x, index = tile_of(x, "tkc.gather"), tile_of(index, "tkc.gather")
    axis = axis_of(axis, x, "tkc.gather")
    if not index.dtype.is_int:
        fail(f"the places of tkc.gather are integers, got {describe(index)}")
    apart = [n for shape in (x.shape, index.shape) for a, n in enumerate(shape) if a != axis]
    if index.ndim != x.ndim or apart[: x.ndim - 1] != apart[x.ndim - 1 :]:
        fail(
            f"tkc.gather along axis {axis}: the places have the rank of the tile and its other"
            f" extents, got {describe(x)} and {describe(index)}"
        )
    inside = as_tile(lift(minimum(maximum(index, 0), _last_place(x, index, axis))))
    result = TileType(index.shape, x.dtype.ir)
    return Tile(tracer().emit(tile.Gather(x.use(), inside.use(), axis, result)).result)


def _last_place(x: Tile, index: Tile, axis: int) -> int:
    """The last along an axis, or the largest number of the places' dtype."""
    return builtins.min(
        x.shape[axis] - 1, 2 ** (index.dtype.bits - (index.dtype.kind == "int")) - 1
    )


def flip(x: Value, axis: int = -1) -> Tile:
    """The order of an axis reversed."""
    x = tile_of(x, "tkc.flip")
    return Tile(tracer().emit(tile.Flip(x.use(), axis_of(axis, x, "tkc.flip"))).result)


# --------------------------------------------------------------------------------------------------
def _accumulated(x: Tile) -> Tile:
    """Small integers and truth values are summed as 32 bits."""
    if x.dtype.is_float or x.dtype.is_int and x.dtype.bits >= 32:
        return x
    return as_tile(cast(x, uint32 if x.dtype.kind == "uint" else int32))


def _in_float32(x: Value, one) -> Value:
    """What takes several steps is computed in float32 of narrow floats, and rounded once."""
    return (
        cast(one(cast(x, float32)), x.dtype)
        if isinstance(x, Value) and x.dtype.is_float and x.dtype.bits < 32
        else one(x)
    )


def _reduce(kind: str, x: Tile, axis, keep_dims: bool) -> Value:
    axes = (
        tuple(range(x.ndim))
        if axis is None
        else tuple(
            sorted(
                {
                    axis_of(a, x, f"tkc.{REDUCTION_NAMES.get(kind, kind)}")
                    for a in (axis if isinstance(axis, (tuple, list)) else (axis,))
                }
            )
        )
    )
    shape = x.shape
    found: Value = x
    for a in reversed(axes):
        found = wrap(tracer().emit(tile.Reduce(kind, found.use(), a)).results[0])
    return restore_axes(found, shape, axes) if keep_dims else found


def restore_axes(x: Value, shape: tuple[int, ...], axes: Sequence[int]) -> Value:
    """A reduction of a tile of this shape, with extents of 1 along the axes that it dropped."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return spread(x, kept) if isinstance(x, Scalar) else x.reshape(kept)


REDUCTION_NAMES = {"xor": "xor_sum", "fmax": "nanmax", "fmin": "nanmin"}


def _reduction(kind: str, prepare, doc: str):
    def function(x, axis=None, keep_dims: bool = False):
        x = tile_of(x, f"tkc.{function.__name__}")
        return prepare(x, lambda t, kind=kind: _reduce(kind, t, axis, keep_dims))

    function.__name__ = function.__qualname__ = REDUCTION_NAMES.get(kind, kind)
    function.__doc__ = (
        f"{doc} along an axis, several axes (a tuple) or all (None); a tile of rank 1 gives a"
        " scalar. keep_dims keeps extents of 1."
    )
    return function


def _truths(x: Tile) -> Tile:
    return x if x.dtype is bool_ else x != 0


def _integers(x: Tile) -> Tile:
    """Truth values as int32, others as they are."""
    return as_tile(cast(x, int32)) if x.dtype is bool_ else x


sum_ = _reduction("sum", lambda x, one: _in_float32(_accumulated(x), one), "The sum")
prod = _reduction("prod", lambda x, one: _in_float32(_accumulated(x), one), "The product")
max_ = _reduction(
    "max",
    lambda x, one: one(_integers(x)),
    "The maximum (NaN if there is one)",
)
min_ = _reduction(
    "min",
    lambda x, one: one(_integers(x)),
    "The minimum (NaN if there is one)",
)
nanmax = _reduction(
    "fmax",
    lambda x, one: one(x) if x.dtype.is_float else one(_integers(x), "max"),
    "The maximum of what is not NaN (NaN where all is)",
)
nanmin = _reduction(
    "fmin",
    lambda x, one: one(x) if x.dtype.is_float else one(_integers(x), "min"),
    "The minimum of what is not NaN (NaN where all is)",
)
any_ = _reduction("any", lambda x, one: one(_truths(x)), "Whether any element is true")
all_ = _reduction("all", lambda x, one: one(_truths(x)), "Whether all elements are true")
xor_sum = _reduction(
    "xor",
    lambda x, one: (
        one(x) if not x.dtype.is_float else fail(f"tkc.xor_sum takes integers, got {describe(x)}")
    ),
    "The exclusive or",
)


def _arg(kind: str):
    def function(x, axis=None, keep_dims: bool = False):
        x = tile_of(x, f"tkc.{kind}")
        if x.dtype is bool_:
            x = cast(x, int32)
        shape = x.shape
        if axis is None:
            x, along, gone = x.reshape(x.size), 0, tuple(range(len(shape)))
        else:
            along = axis_of(axis, x, f"tkc.{kind}")
            gone = (along,)
        result = wrap(tracer().emit(tile.Reduce(kind, x.use(), along)).results[0])
        return restore_axes(result, shape, gone) if keep_dims else result

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = (
        f"The int32 index of the {kind[3:]}imum along an axis (of the flattened tile if None); the"
        " first of equals."
    )
    return function


argmax, argmin = _arg("argmax"), _arg("argmin")


def _cumulative(kind: str, what: str):
    def function(x, axis: int = 0, reverse: bool = False):
        x = _accumulated(tile_of(x, f"tkc.{function.__name__}"))
        return _in_float32(
            x,
            lambda t: wrap(
                tracer()
                .emit(
                    tile.Scan(kind, t.use(), axis_of(axis, t, f"tkc.{function.__name__}"), reverse)
                )
                .results[0]
            ),
        )

    function.__name__ = function.__qualname__ = "cum" + kind
    function.__doc__ = f"The running {what} along an axis (from its end with reverse)."
    return function


cumsum, cumprod = _cumulative("sum", "sum"), _cumulative("prod", "product")


def softmax(x: Value, axis: int = -1) -> Tile:
    """exp(x - max) / sum, along an axis; of narrow floats in float32, rounded once."""

    def one(v):
        e = exp(v - max_(v, axis, keep_dims=True))
        return e / sum_(e, axis, keep_dims=True)

    return as_tile(_in_float32(_floating(tile_of(x, "tkc.softmax")), one))


def sort(x: Value, axis: int = -1, descending: bool = False) -> Tile:
    """The elements of an axis in ascending order (descending); NaN last."""
    x = tile_of(x, "tkc.sort")
    axis, order = axis_of(axis, x, "tkc.sort"), list(range(x.ndim))
    order[axis], order[-1] = order[-1], order[axis]
    y = x.permute(order)
    return Tile(tracer().emit(tile.Sort(y.use(), descending)).result).permute(order)


def topk(x: Value, k: int, axis: int = -1, indices: bool = False) -> Value | tuple[Value, Value]:
    """The k largest elements of an axis, in descending order (NaN last); with `indices` also their
    int32 places, the first of equals first.

    Elements of up to 32 bits are sorted together with their places as one 64-bit key; longer ones
    are taken out one after another.
    """
    x = tile_of(x, "tkc.topk")
    axis, k = axis_of(axis, x, "tkc.topk"), unpack(k)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= x.shape[axis]:
        fail(f"tkc.topk of {describe(x)}: k is 1 to {x.shape[axis]}, got {describe(k)}")
    first = (slice(None),) * axis + (slice(0, k),)
    if not indices:
        return sort(x, axis, descending=True)[first]
    order = list(range(x.ndim))
    order[axis], order[-1] = order[-1], order[axis]
    found, places = (_topk_by_key if x.dtype.bits <= 32 else _topk_one_by_one)(x.permute(order), k)
    return found.permute(order), places.permute(order)


def _topk_by_key(x: Tile, k: int) -> tuple[Tile, Tile]:
    """The largest of (ordered bits of the element, places from the end)."""
    n, wide = (
        x.shape[-1],
        (float32 if x.dtype.is_float else uint32 if x.dtype.kind == "uint" else int32),
    )
    bits = cast(x, wide).to(uint32, bitcast=True) if wide is not uint32 else cast(x, uint32)
    top = 0x80000000
    if wide is float32:
        bits = lift(where(cast(x, float32) == 0, 0, bits))  # -0 is 0
        bits = lift(where(isnan(x), 0, where(bits >= top, ~bits, bits | top)))
    elif wide is int32:
        bits = bits ^ top
    places = spread(n - 1 - arange(n), x.shape).to(uint64)
    keys = sort((bits.to(uint64) << 32) | places, descending=True)[..., :k]
    at = n - 1 - (keys & 0xFFFFFFFF).to(int32)
    bits = (keys >> 32).to(uint32)
    if wide is float32:
        value = lift(where(bits >= top, bits ^ top, ~bits)).to(float32, bitcast=True)
        return as_tile(cast(lift(where(bits == 0, nan, value)), x.dtype)), at
    signed = (bits ^ top).to(int32, bitcast=True) if wide is int32 else bits
    return as_tile(cast(signed, x.dtype)), at


def _topk_one_by_one(x: Tile, k: int) -> tuple[Tile, Tile]:
    """k times the first of the largest that is left."""
    n, rest = x.shape[-1], x.shape[:-1]
    number = isnan(x) if x.dtype.is_float else full(x.shape, 0) != 0
    low = -inf if x.dtype.is_float else 0 if x.dtype.kind == "uint" else -(2**63)

    def one(j, left, found, places):
        top = max_(where(left & ~number, x, low), axis=-1, keep_dims=True)
        any_number = any_(left & ~number, axis=-1, keep_dims=True)
        at = argmax(
            cast(left & where(any_number, ~number & (x == top), number), int32),
            axis=-1,
            keep_dims=True,
        )
        here = spread(arange(n), x.shape) == at
        put = spread(arange(k), (*rest, k)) == j
        value = where(any_number, top, nan) if x.dtype.is_float else top
        return left & ~here, where(put, value, found), where(put, at, places)

    _, found, places = _repeat(
        k, one, (full(x.shape, 0) == 0, zeros((*rest, k), x.dtype), zeros((*rest, k), int32))
    )
    return as_tile(found), as_tile(places)


def _repeat(count: int, one, carried: tuple[Value, ...]) -> tuple[Value, ...]:
    """carried = one(i, *carried) for i of 0 … count - 1, as a loop of the program."""
    t, block = tracer(), Block(arg_types=[i32, *(v.ssa.type for v in carried)])
    low, high, step = (t.constant(n, i32) for n in (0, count, 1))
    with t.inside(block):
        t.emit(scf.YieldOp(*(v.use() for v in one(*map(wrap, block.args)))))
    loop = scf.ForOp(low, high, step, [v.use() for v in carried], Region(block))
    return tuple(map(wrap, t.emit(loop).results))


def histogram(x: Value, bins: int, mask: Operand | None = None) -> Tile:
    """How often (int32) each of 0 … bins - 1 occurs in a rank-1 integer tile; other values, and
    masked ones, are not counted.
    """
    x, bins = tile_of(x, "tkc.histogram"), static_shape(bins)[0]
    if x.ndim != 1 or not x.dtype.is_int:
        fail(f"tkc.histogram takes a rank-1 tile of integers, got {describe(x)}")
    return Tile(tracer().emit(tile.Histogram(x.use(), bins, mask_of(mask, x.shape))).result)


# --------------------------------------------------------------------------------------------------
PRECISIONS = ("ieee", "tf32", "tf32x3")


def dot(
    a: Value,
    b: Value,
    acc: Operand | None = None,
    precision: str = "ieee",
    out_dtype: DType | None = None,
) -> Tile:
    """acc + a·b for a of [.., M, K] and b of [.., K, N].

    Both operands of one dtype (the two float8 may mix). The result has acc's dtype, or out_dtype;
    by default float32 for floats, float64 for float64, int32 for integers. precision, for float32:
    "ieee" (exact products), "tf32", "tf32x3".
    """
    a, b = tile_of(a, "tkc.dot"), tile_of(b, "tkc.dot")
    _check_product(a, b, precision)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = as_tile(spread(a, batch + a.shape[-2:])), as_tile(spread(b, batch + b.shape[-2:]))
    shape = batch + (a.shape[-2], b.shape[-1])
    total = _accumulator(acc, a.dtype, shape, out_dtype)
    exact = precision if a.dtype is float32 else "ieee"
    return Tile(tracer().emit(tile.Dot(a.use(), b.use(), total.use(), exact)).result)


Value.__matmul__ = dot  # type: ignore[method-assign]  # values come before operations


def _check_product(a: Tile, b: Tile, precision: str) -> None:
    if a.ndim < 2 or b.ndim < 2:
        fail(
            f"tkc.dot takes tiles of rank 2 and more, got {describe(a)} and {describe(b)}; add an"
            " axis with [None, :] or [:, None]"
        )
    are_float8 = builtins.all(t.dtype.is_float and t.dtype.bits == 8 for t in (a, b))
    if a.dtype is not b.dtype and not are_float8:
        fail(
            f"tkc.dot takes operands of one dtype, got {a.dtype.name} and {b.dtype.name}; convert"
            " one with .to()"
        )
    if a.shape[-1] != b.shape[-2]:
        fail(
            f"tkc.dot: a has {a.shape[-1]} columns and b has {b.shape[-2]} rows ({describe(a)},"
            f" {describe(b)}); transpose one with .T?"
        )
    if precision not in PRECISIONS:
        fail(f"precision is one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")


def _accumulator(
    acc: Operand | None, dtype: DType, shape: tuple[int, ...], out_dtype: DType | None
) -> Value:
    """What a product of operands of this dtype is added to, of its shape."""
    default = (float64 if dtype is float64 else float32) if dtype.is_float else int32
    if acc is None:
        return zeros(shape, out_dtype or default)
    acc = check(acc, "accumulator")
    total = lift(acc, out_dtype or (None if isinstance(acc, Value) else default))
    if total.dtype.is_float != dtype.is_float:
        fail(
            f"tkc.dot of {dtype.name} accumulates in {default.name}, got an accumulator of"
            f" {describe(total)}"
        )
    if broadcast_shapes(total.shape, shape) != shape:
        fail(f"tkc.dot gives {list(shape)}, got an accumulator of {describe(total)}")
    return spread(total, shape)


# --------------------------------------------------------------------------------------------------
def assume(condition: Operand) -> None:
    """A promise that a scalar condition holds."""
    condition = check(condition, "condition")
    if not isinstance(condition, Value):
        if not condition:
            fail("tkc.assume of something false")
        return
    if condition.shape or condition.dtype is not bool_:
        fail(f"tkc.assume takes a scalar condition, got {describe(condition)}")
    tracer().emit(tile.Assume(operands=[condition.use()]))
    promise(condition.ssa)


def never_negative(number: Value) -> None:
    """An integer argument of the traced kernel is at least 0 in every launch of its code. Of a
    number that is part of the code there is nothing to say.
    """
    value = number.use()
    kernel = value.owner.parent_op() if isinstance(value, BlockArgument) else None
    whole = bounds(value.type)
    if isinstance(value, BlockArgument) and isinstance(kernel, tile.Kernel) and whole is not None:
        known = {*kernel.integers(NONNEGATIVE), value.index}
        kernel.attributes[NONNEGATIVE] = tile.ints(sorted(known))
        tracer().promise(value, Range(0, whole.hi))


def promise(condition: SSAValue) -> None:
    """The innermost open block knows what a comparison with a constant says of an integer."""
    op = condition.owner
    if not isinstance(op, elementwise.Elementwise) or op.fn.name not in ("lt", "le", "gt", "ge"):
        return
    x, limit = op.args
    whole, n = bounds(x.type), defining_op(limit, tile.Constant)
    if whole is None or n is None:
        return
    at = int(n.number)
    low, high = {
        "lt": (whole.lo, at - 1),
        "le": (whole.lo, at),
        "gt": (at + 1, whole.hi),
        "ge": (at, whole.hi),
    }[op.fn.name]
    tracer().promise(x, Range(low, high))


def multiple_of(x: Operand, divisor: int) -> Operand:
    """The integer x, promised to be a multiple of `divisor`."""
    x, divisor = check(x), unpack(divisor)
    if not isinstance(divisor, int) or divisor < 1:
        fail(f"tkc.multiple_of takes a positive Python integer as divisor, got {describe(divisor)}")
    if not isinstance(x, Value):
        if x % divisor:
            fail(f"{x} is not a multiple of {divisor}")
        return x
    if not x.dtype.is_int:
        fail(f"tkc.multiple_of takes integers, got {describe(x)}")
    return wrap(tracer().emit(tile.Multiple(x.use(), divisor)).result)


def wait_dependencies() -> None:
    """Waits until the launch before this one in its stream has ended, where `dependent` lets them
    overlap; the compiler puts the wait before the first access to memory.
    """
    tracer().emit(tile.Dependency("wait"))


def launch_dependents() -> None:
    """The next launch of the stream, if it is `dependent`, may begin as soon as all programs of
    this one run.
    """
    tracer().emit(tile.Dependency("launch"))


def print_(*args: object) -> None:
    """Prints scalars and tiles when the kernel runs; strings and known numbers become the text."""
    text, traced = [], []
    for x in map(unpack, args):
        if isinstance(x, Value):
            text.append("{}")
            traced.append(x.use())
        else:
            text.append(escaped(str(x)))
    tracer().emit(tile.Print(operands=[traced], properties={"text": StringAttr(" ".join(text))}))


def device_assert(condition: Operand, message: str = "") -> None:
    """Traps with a message where the condition (scalar or tile) is false when the kernel runs."""
    condition = check(condition, "condition")
    if isinstance(condition, Value) and condition.dtype is not bool_:
        condition = condition != 0
    tracer().emit(
        tile.Assert(
            operands=[lift(condition, bool_).use()], properties={"text": StringAttr(str(message))}
        )
    )


def static_assert(condition: object, message: str = "") -> None:
    """Fails the compilation unless a condition known now holds."""
    if isinstance(condition, Value):
        fail("tkc.static_assert takes a condition known at compile time; use tkc.device_assert")
    if not condition:
        fail(f"static_assert failed{': ' if message else ''}{message}")


def static_print(*args: object) -> None:
    """Prints while the kernel is traced."""
    print(*args)
