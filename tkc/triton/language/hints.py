"""What a kernel promises or says: divisibility, assertions, prints."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import Block

from tkc.ir import tile
from tkc.language import operations
from tkc.language.tracer import fail, tracer
from tkc.language.values import Scalar, wrap
from tkc.triton.language.constants import unwrap, unwrap_all
from tkc.triton.language.context import settings
from tkc.triton.language.values import tensor, to_tensor, truth


def _values(given: Any) -> tuple[int, ...]:
    found = unwrap_all(given)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def multiple_of(input: Any, values: Any) -> Any:
    """A promise that an integer is a multiple, or that rows of a tensor of pointers begin at
    multiples of so many bytes: of `input` from here on in its loop or branch, and of the result. Of
    a block of integers tkc finds out itself what it is made of.
    """
    x, divisors = unwrap(input), _values(values)
    if not isinstance(x, tensor):
        return input
    divisor = math.gcd(*divisors)
    if isinstance(x.value, Scalar) and x.dtype.is_int():
        promised = tensor(to_tensor(operations.multiple_of(x.value, divisor)).value)
    elif x.dtype.is_ptr() and divisor > 1:
        made = tracer().emit(tile.Multiple(x.value.use(), divisor))
        promised = tensor(wrap(made.result))
    else:
        return x
    owner = x.value.ssa.owner
    if tracer().blocks[-1] is (owner if isinstance(owner, Block) else owner.parent):
        object.__setattr__(x, "value", promised.value)  # as Triton marks the operand itself
    return promised


def max_contiguous(input: Any, values: Any) -> Any:
    """A promise that elements are neighbours, which tkc finds out itself."""
    return input


def max_constancy(input: Any, values: Any) -> Any:
    """A promise that elements are equal, which tkc finds out itself."""
    return input


def device_print(prefix: str, *args: Any, hex: Any = False) -> None:
    """Prints tensors when the kernel runs."""
    shown = [a.value if isinstance(a, tensor) else unwrap(a) for a in args]
    operations.print_(str(unwrap(prefix)), *shown)


def device_assert(cond: Any, msg: Any = "", mask: Any = None) -> None:
    """Traps where the condition is false when the kernel runs, in a launch under debug=True or
    TRITON_DEBUG=1.
    """
    if not settings().debug:
        return
    holds = to_tensor(truth(cond))
    if unwrap(mask) is not None:
        holds = holds | ~to_tensor(truth(mask))
    operations.device_assert(holds.value, str(unwrap(msg)))


class condition:
    """The head of a while loop with an option, which is the compiler's own choice here."""

    def __new__(cls, arg1: Any, disable_licm: Any = False) -> Any:
        return arg1


class async_task:
    """Refused: tkc assigns warps to roles itself."""

    def __init__(self, *args: Any, **kwargs: Any):
        fail("tl.async_task is not supported: tkc assigns warps to roles itself; leave it out")


class async_tasks(async_task):
    """Refused, as async_task."""
