"""Control flow of Triton's kernels while they are traced: what `tkc.language.rewrite` puts in place
of their statements. The constructs are those of tkc's own language; what differs stands here:

    range           is a loop, with compile-time bounds too
    and, or         are element-wise on blocks, and evaluate both sides
    if, while       take a block of one element; compile-time conditions run while tracing
    numbers         that are assigned or returned become tensors
"""

from __future__ import annotations

import builtins
import sys
import types as python
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from tkc.language import control, operations, values
from tkc.language.control import ForLoop, Range, WhileLoop, check_return, depth, result, unbound
from tkc.language.rewrite import rewritten
from tkc.language.slots import is_users, traced_function
from tkc.language.tracer import fail, is_own
from tkc.language.values import Scalar, Value
from tkc.triton.language.constants import constexpr, tuple_, unwrap, unwrap_all
from tkc.triton.language.context import settings
from tkc.triton.language.mathematics import maximum, minimum
from tkc.triton.language.statements import prepare
from tkc.triton.language.values import is_number, member, tensor, to_tensor, truth

__all__ = ["check_return", "depth", "prepare", "result", "unbound"]

_RUNTIME = sys.modules[__name__]
_kernels: weakref.WeakSet = weakref.WeakSet()  # the code of functions under triton.jit


def take_part(f: python.FunctionType) -> None:
    """A function is one of kernels, wherever it is defined."""
    _kernels.add(f.__code__)


def takes_part(f: python.FunctionType) -> bool:
    """Whether a function is traced as part of a kernel (libraries' are, under triton.jit)."""
    return f.__code__ in _kernels or is_users(f) and not is_own(f.__code__.co_filename)


def traced(f: python.FunctionType) -> python.FunctionType:
    """The function as it runs while it is traced."""
    return rewritten(f, _RUNTIME)


# ---- values that statements make
def _each(x: Any, change: Callable[[Any], Any]) -> Any:
    """Of tuples and lists each element."""
    if isinstance(x, (tuple, list)):
        made = [_each(unwrap(e), change) for e in x]
        if isinstance(x, list):
            return made
        return type(x)(*made) if hasattr(x, "_fields") else tuple_(made)
    return change(x)


def _sealed(x: Any) -> Any:
    return to_tensor(x) if is_number(x) else x


def assigned(x: Any) -> Any:
    """What a name holds: a number becomes a tensor."""
    return _each(unwrap(x), _sealed)


def constant(x: Any) -> Any:
    """What a name under tl.constexpr holds."""
    if isinstance(x, tensor):
        fail(f"expected a value known at compile time, got a tensor of {x}")
    return x if isinstance(x, (tuple, list)) or x is None else constexpr(x)


def returned(x: Any) -> Any:
    """What a function gives: numbers become tensors."""
    return _each(unwrap(x), _sealed)


def asserted(condition: Any, message: Any = "") -> None:
    """`assert condition, message`."""
    if not isinstance(condition, tensor):
        if not unwrap(condition):
            fail(f"assertion failed: {unwrap(message)}")
    elif settings().debug:
        operations.device_assert(truth(condition).value, str(unwrap(message)))


# ---- conditions
def condition_of(x: Any) -> Any:
    """A condition as tkc's control flow takes it: a Python value, or a traced truth value."""
    x = unwrap(x)
    if not isinstance(x, tensor):
        return x
    value = x.value
    if value.shape and value.size == 1:
        value = values.as_tile(value)[(0,) * value.ndim]
    if isinstance(value, Scalar):
        return truth(tensor(value)).value
    return value  # a block: refused, with words of its own


def _joined(name: str, x: tensor, thunk: Callable[[], Any]) -> Any:
    """`x and y`, or with `or`: both sides are evaluated."""
    y = unwrap(thunk())
    if not isinstance(y, tensor):
        decides = bool(y) is (name == "or")
        return to_tensor(bool(y)) if decides and not x.value.shape else _with_number(name, x, y)
    operator = truth(x).__and__ if name == "and" else truth(x).__or__
    return operator(truth(y))


def _with_number(name: str, x: tensor, y: Any) -> Any:
    side = to_tensor(bool(y))
    return truth(x) & side if name == "and" else truth(x) | side


def and_(first: Any, *thunks: Callable[[], Any]) -> Any:
    """`a and b and c`."""
    return _connected("and", first, thunks)


def or_(first: Any, *thunks: Callable[[], Any]) -> Any:
    """`a or b or c`."""
    return _connected("or", first, thunks)


def _connected(name: str, first: Any, thunks: tuple) -> Any:
    result = unwrap(first)
    for thunk in thunks:
        if isinstance(result, tensor):
            result = _joined(name, result, thunk)
        elif bool(result) is (name == "or"):
            return result
        else:
            result = unwrap(thunk())
    return result


def not_(x: Any) -> Any:
    """`not x`."""
    x = unwrap(x)
    return ~truth(x) if isinstance(x, tensor) else not x


def ifexp(condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
    """`a if condition else b`."""
    test = condition_of(condition)
    if not isinstance(test, Value):
        return then() if test else orelse()
    return control.ifexp(test, lambda: returned(then()), lambda: returned(orelse()))


def chain(first: Any, names: tuple[str, ...], *thunks: Callable[[], Any]) -> Any:
    """`a < b < c`."""
    left, result = first, None
    for name, thunk in zip(names, thunks, strict=True):
        right = thunk()
        one = _compared(name, left, right)
        result = one if result is None else and_(result, partial(unwrap, one))
        left = right
    return result


def _compared(name: str, left: Any, right: Any) -> Any:
    if name in ("is", "isnot"):
        return (used(left) is used(right)) == (name == "is")
    if name in ("in", "notin"):
        found = contains(left, right)
        return found if name == "in" else not_(found)
    return values.COMPARE[name](left, right)


def used(x: Any) -> Any:
    """An operand of `is`."""
    return control.used(unwrap(x))


def contains(item: Any, container: Any) -> Any:
    """`item in container`."""
    x, container = unwrap(item), unwrap(container)
    if isinstance(x, tensor):
        return or_(False, *(partial(values.COMPARE["eq"], x, e) for e in container))
    return x in (unwrap_all(container) if isinstance(container, (tuple, list)) else container)


def not_contains(item: Any, container: Any) -> Any:
    """`item not in container`."""
    return not_(contains(item, container))


# ---- loops and branches
def _bound(x: Any) -> Any:
    x = unwrap(x)
    if isinstance(x, tensor):
        if not x.dtype.is_int():
            fail(f"the bounds of a range are integers, got {x.dtype}")
        return condition_free(x)
    return x


def condition_free(x: tensor) -> Value:
    """A scalar of tkc; of a block of one element, that element."""
    if isinstance(x.value, Scalar):
        return x.value
    if x.value.size != 1:
        fail(f"expected a scalar, got a tensor of {x}")
    return values.as_tile(x.value)[(0,) * x.value.ndim]


def loop_range(arg1: Any, arg2: Any = None, step: Any = None, **hints: Any) -> Range:
    """tl.range, and `range` in a kernel. num_stages, flatten and the other hints are the planner's
    own choices in tkc, and named ones alone are taken.
    """
    unknown = hints.keys() - {
        "num_stages",
        "loop_unroll_factor",
        "disallow_acc_multi_buffer",
        "flatten",
        "warp_specialize",
        "disable_licm",
    }
    if unknown:
        fail(f"tl.range has no option {', '.join(sorted(unknown))}")
    given = [_bound(x) for x in (arg1, arg2, step) if x is not None]
    stages = unwrap(hints.get("num_stages"))
    return control.range_(*given, num_stages=stages if settings().strict and stages else None)


def static_range(arg1: Any, arg2: Any = None, step: Any = None) -> list[constexpr]:
    """A loop that is unrolled while tracing."""
    given = [unwrap(x) for x in (arg1, arg2, step) if x is not None]
    for x in given:
        if isinstance(x, tensor):
            fail("tl.static_range needs bounds known at compile time; use tl.range")
    return [constexpr(i) for i in builtins.range(*given)]


class _For(ForLoop):
    def _variable(self, counter: Any, place: Any) -> Any:
        return tensor(super()._variable(counter, place))


def for_loop(
    iterable: Any, names: dict[str, Any], targets: tuple[str, ...], assigned: tuple[str, ...]
) -> ForLoop:
    return _For(unwrap(iterable), names, targets, assigned)


class _While(WhileLoop):
    def test(self, condition: Any, names: dict[str, Any]) -> bool:
        return super().test(condition_of(condition), names)


def while_loop(assigned: tuple[str, ...]) -> WhileLoop:
    return _While(assigned)


def branch(test: Any, names: dict[str, Any]) -> control.Branch:
    return control.Branch(condition_of(test), names)


# ---- calls
def _extreme(name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        given = [unwrap(a) for a in args]
        if len(given) == 1 and isinstance(given[0], (tuple, list)):
            given = [unwrap(a) for a in given[0]]
        if not any(isinstance(a, tensor) for a in given):
            return constexpr(getattr(builtins, name)(given))
        result = given[0]
        for x in given[1:]:
            result = (minimum if name == "min" else maximum)(to_tensor(result), x)
        return result

    return function


def _print(*args: Any, **kwargs: Any) -> None:
    operations.print_(*(a.value if isinstance(a, tensor) else unwrap(a) for a in args))


def _on_plain(python_function: Callable) -> Callable:
    """A builtin of Python on the values of constexprs."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return python_function(*map(unwrap, args), **kwargs)

    return function


def _isinstance(x: Any, kinds: Any) -> bool:
    """A compile-time value is a constexpr, and of its value's type."""
    return isinstance(x, unwrap(kinds)) or isinstance(unwrap(x), unwrap(kinds))


_OURS: dict[int, Callable] = {
    id(builtins.isinstance): _isinstance,
    id(builtins.range): loop_range,
    id(builtins.min): _extreme("min"),
    id(builtins.max): _extreme("max"),
    id(builtins.print): _print,
    **{
        id(f): _on_plain(f)
        for f in (
            *(builtins.len, builtins.int, builtins.float, builtins.bool, builtins.str),
            *(builtins.getattr, builtins.hasattr, builtins.abs),
            *(builtins.round, builtins.sum, builtins.pow, builtins.divmod),
        )
    },
}


def call(f: Any) -> Any:
    """What a call in a kernel calls."""
    f = unwrap(f)
    if id(f) in _OURS:
        return _OURS[id(f)]
    if isinstance(f, python.FunctionType):
        return rewritten(f, _RUNTIME)
    if isinstance(f, python.MethodType) and isinstance(f.__func__, python.FunctionType):
        return python.MethodType(rewritten(f.__func__, _RUNTIME), f.__self__)
    if hasattr(type(f), "__triton_call__") or isinstance(f, type):
        return f
    inner = traced_function(f)
    return f if inner is None else rewritten(inner, _RUNTIME)


def combined(fn: Any, single: bool) -> Callable[..., Any]:
    """A user's combination of scalars, as tkc's reduce and scan call it."""

    def combine(*args: Value) -> Any:
        result = call(fn)(*map(tensor, args))
        many = result if isinstance(result, (tuple, list)) else (result,)
        found = tuple(to_tensor(r).value for r in many)
        return found[0] if single else found

    return combine


@member
def item(x: tensor) -> tensor:
    """The one element of a block."""
    return tensor(condition_free(x))
