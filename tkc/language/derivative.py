"""Reverse-mode derivatives of what a kernel computes element by element.

`vjp(function, *primals)` traces the function and gives its value with a function `pull`, which
takes the gradient of that value to the gradients of the primals. What `pull` emits are ordinary
operations of the kernel, one rule of RULES an operation: of a broadcast the gradient is a sum over
the axes that it stretched, of a choice (tkc.where) each side has the gradient where it was chosen,
of comparisons, integers and roundings there is none. A primal may be `Elements`: memory that the
function reads at indices of its own; its gradient is a `Scatter`, which adds up in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import elementwise, tile
from tkc.ir.types import element_of, is_float
from tkc.language import operations as ops
from tkc.language.control import callable_in_kernel
from tkc.language.elements import Elements, Read, Scatter
from tkc.language.tracer import fail
from tkc.language.values import Value, as_tile, cast, check, describe, lift, spread, wrap

Gradient: TypeAlias = "Value | Scatter"
# of an operand: from the gradient of the result, the result and the operands
Rule: TypeAlias = Callable[..., Any]


def _half_where(x: Value, y: Value, g: Value, holds: Callable[[Any, Any], Any]) -> Any:
    """Of a maximum or minimum: all where x was taken, half where both are equal."""
    return ops.where(holds(x, y), g, ops.where(x == y, g * 0.5, 0.0))


def _sign(g: Any, x: Any) -> Any:
    return ops.where(x > 0, g, ops.where(x < 0, -g, 0.0))


RULES: dict[str, tuple[Rule, ...]] = {
    "neg": (lambda g, r, x: -g,),
    "abs": (lambda g, r, x: _sign(g, x),),
    "exp": (lambda g, r, x: g * r,),
    "exp2": (lambda g, r, x: g * r * math.log(2),),
    "expm1": (lambda g, r, x: g * (r + 1),),
    "log": (lambda g, r, x: g / x,),
    "log2": (lambda g, r, x: g / (x * math.log(2)),),
    "log1p": (lambda g, r, x: g / (x + 1),),
    "sqrt": (lambda g, r, x: g * 0.5 / r,),
    "rsqrt": (lambda g, r, x: g * -0.5 * r * r * r,),
    "sin": (lambda g, r, x: g * ops.cos(x),),
    "cos": (lambda g, r, x: -g * ops.sin(x),),
    "tanh": (lambda g, r, x: g * (1 - r * r),),
    "erf": (lambda g, r, x: g * (2 / math.sqrt(math.pi)) * ops.exp(-x * x),),
    "reciprocal": (lambda g, r, x: -g * r * r,),
    "add": (lambda g, r, x, y: g, lambda g, r, x, y: g),
    "sub": (lambda g, r, x, y: g, lambda g, r, x, y: -g),
    "mul": (lambda g, r, x, y: g * y, lambda g, r, x, y: g * x),
    "div": (lambda g, r, x, y: g / y, lambda g, r, x, y: -g * r / y),
    "div_rn": (lambda g, r, x, y: g / y, lambda g, r, x, y: -g * r / y),
    "max": (
        lambda g, r, x, y: _half_where(x, y, g, lambda a, b: a > b),
        lambda g, r, x, y: _half_where(y, x, g, lambda a, b: a > b),
    ),
    "min": (
        lambda g, r, x, y: _half_where(x, y, g, lambda a, b: a < b),
        lambda g, r, x, y: _half_where(y, x, g, lambda a, b: a < b),
    ),
    "fmax": (
        lambda g, r, x, y: ops.where(ops.isnan(y), g, _half_where(x, y, g, lambda a, b: a > b)),
        lambda g, r, x, y: ops.where(ops.isnan(x), g, _half_where(y, x, g, lambda a, b: a > b)),
    ),
    "fmin": (
        lambda g, r, x, y: ops.where(ops.isnan(y), g, _half_where(x, y, g, lambda a, b: a < b)),
        lambda g, r, x, y: ops.where(ops.isnan(x), g, _half_where(y, x, g, lambda a, b: a < b)),
    ),
    "rem_trunc": (lambda g, r, x, y: g, lambda g, r, x, y: -g * ops.trunc(x / y)),
    "pow": (
        lambda g, r, x, y: g * ops.where(y == 0, 0.0, y * ops.pow_(x, y - 1)),
        lambda g, r, x, y: g * ops.where(x > 0, r * ops.log(ops.where(x > 0, x, 1.0)), 0.0),
    ),
    "atan2": (
        lambda g, r, y, x: g * x / (x * x + y * y),
        lambda g, r, y, x: -g * y / (x * x + y * y),
    ),
    "mod": (lambda g, r, x, y: g, lambda g, r, x, y: -g * ops.floor(x / y)),
    "fma": (
        lambda g, r, a, b, c: g * b,
        lambda g, r, a, b, c: g * a,
        lambda g, r, a, b, c: g,
    ),
}
# their steps have no slope, wherever there is one
CONSTANT = ("floor", "ceil", "round", "trunc", "floordiv")


def _sum_of(g: Value, axes: tuple[int, ...]) -> Value:
    return ops.sum_(g, axes, keep_dims=True) if axes else g


def _of_splat(op: tile.Splat, g: Value) -> list[Value]:
    return [ops.sum_(g)]


def _of_broadcast(op: tile.Broadcast, g: Value) -> list[Value]:
    shape = wrap(op.arg).shape
    pairs = zip(shape, g.shape, strict=True)
    return [_sum_of(g, tuple(i for i, (old, new) in enumerate(pairs) if old != new))]


def _of_reshape(op: tile.Reshape, g: Value) -> list[Value]:
    return [as_tile(g).reshape(*wrap(op.arg).shape)]


def _of_transpose(op: tile.Transpose, g: Value) -> list[Value]:
    order = [int(n) for n in op.permutation.get_values()]
    return [as_tile(g).permute(*(order.index(i) for i in range(len(order))))]


def _of_cast(op: elementwise.Cast, g: Value) -> list[Value]:
    return [cast(g, wrap(op.arg).dtype)]


def _of_select(op: elementwise.Select, g: Value) -> list[Any]:
    c = wrap(op.condition)
    return [None, ops.where(c, g, 0.0), ops.where(c, 0.0, g)]


def _of_sum(op: tile.Reduce, g: Value) -> list[Value]:
    x = wrap(op.operands[0])
    return [spread(ops.restore_axes(g, x.shape, (int(op.axis.value.data),)), x.shape)]


SHAPES: dict[type, Callable[..., list]] = {
    tile.Splat: _of_splat,
    tile.Broadcast: _of_broadcast,
    tile.Reshape: _of_reshape,
    tile.Transpose: _of_transpose,
    elementwise.Cast: _of_cast,
    elementwise.Select: _of_select,
}


def _gradients_of(op: Operation, g: Value) -> list[Any]:
    """Of an operation's operands, from that of its result; None where there is none."""
    if type(op) in SHAPES:
        return SHAPES[type(op)](op, g)
    if isinstance(op, elementwise.Elementwise):
        name = op.fn.name
        if name in CONSTANT:
            return [None] * len(op.operands)
        if name in RULES:
            values = [wrap(v) for v in op.operands]
            return [rule(g, wrap(op.results[0]), *values) for rule in RULES[name]]
    if isinstance(op, tile.Reduce) and op.kind.data == "sum":
        return _of_sum(op, g)
    fail(
        f"`{op.name.removeprefix('tile.')}` has no derivative in tkc.vjp; write the function with"
        " element-wise operations and tkc.where"
    )


def _is_float(v: SSAValue) -> bool:
    return is_float(element_of(v.type))


def _read_by(op: Operation) -> Iterator[SSAValue]:
    """What an operation reads, those inside its regions too."""
    for inner in op.walk():
        yield from inner.operands


def _between(result: SSAValue, sources: set[SSAValue]) -> tuple[list[Operation], set[SSAValue]]:
    """The operations by which a result depends on sources, in the order that computes them, and
    the values that do.
    """
    active, seen, order = set(sources), set(sources), []
    stack: list[tuple[SSAValue, bool]] = [(result, False)]
    while stack:
        v, complete = stack.pop()
        if not complete and v in seen:
            continue
        seen.add(v)
        op = v.owner
        if isinstance(op, Block) or not _is_float(v):
            continue
        if not complete:
            stack += [(v, True), *((o, False) for o in _read_by(op))]
        elif any(o in active for o in _read_by(op)):
            active.add(v)
            order.append(op)
    return order, active


def _number(x: Any, like: Value) -> Value:
    """A gradient as a value of the type of what it is the gradient of."""
    return spread(cast(lift(x, like.dtype), like.dtype), like.shape)


def _pulled(result: Value, g: Value, sources: Iterable[SSAValue]) -> dict[SSAValue, Value]:
    """The gradient of each source, of a result with gradient g; sources that it does not depend on
    have none.
    """
    order, active = _between(result.ssa, set(sources))
    found: dict[SSAValue, Value] = {result.ssa: g}
    for op in reversed(order):
        for operand, part in zip(op.operands, _gradients_of(op, found[op.results[0]]), strict=True):
            if part is None or operand not in active:
                continue
            part = _number(part, wrap(operand))
            found[operand] = found[operand] + part if operand in found else part
    return found


def vjp(
    function: Callable[..., Any], *primals: Value | Elements
) -> tuple[Value, Callable[..., tuple[Gradient, ...]]]:
    """(function(*primals), pull): pull(gradient of the value) gives the gradient of each primal.

    function: of floating tiles or scalars, made of element-wise operations, tkc.where, sums and
    changes of shape; it may read memory. A primal that is `Elements` (`tkc.lambda_lift`) has a
    gradient with a method `add_to(array, mask=None)`, which adds it to an array atomically, where
    the function read. Raises CompileError for an operation without a derivative.
    """
    _check_primals(primals)
    before = [len(p.reads) if isinstance(p, Elements) else 0 for p in primals]
    result = callable_in_kernel(function)(*primals)
    if not isinstance(check(result), Value) or not result.dtype.is_float:
        fail(f"tkc.vjp takes a function with a floating value, it gives {describe(result)}")
    # of each primal: itself, or what the function read of it
    made = [
        p.reads[n:] if isinstance(p, Elements) else p for p, n in zip(primals, before, strict=True)
    ]

    def pull(gradient: Any = 1.0) -> tuple[Gradient, ...]:
        sources = [r.value.ssa for m in made if isinstance(m, list) for r in m]
        sources += [m.ssa for m in made if isinstance(m, Value)]
        found = _pulled(result, _number(gradient, result), sources)
        return tuple(_gradient_of(m, found) for m in made)

    return result, pull


def _check_primals(primals: Sequence[Any]) -> None:
    for p in primals:
        if not isinstance(p, Elements) and not (isinstance(p, Value) and p.dtype.is_float):
            fail(f"tkc.vjp takes floating tiles and scalars as primals, got {describe(p)}")
    values = [id(p.ssa) for p in primals if isinstance(p, Value)]
    if len(set(values)) < len(values):
        fail("tkc.vjp: two primals are one value; give it once")


def _gradient_of(made: Value | list[Read], found: dict[SSAValue, Value]) -> Gradient:
    if isinstance(made, list):
        return Scatter([(r, found[r.value.ssa]) for r in made if r.value.ssa in found])
    return found[made.ssa] if made.ssa in found else _number(0.0, made)
