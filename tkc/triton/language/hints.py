"""What a kernel promises or says: divisibility, assertions, prints."""

from __future__ import annotations

from typing import Any

from tkc.language import operations
from tkc.language.tracer import fail
from tkc.language.values import Scalar
from tkc.triton.language.constants import unwrap, unwrap_all
from tkc.triton.language.context import settings
from tkc.triton.language.values import tensor, to_tensor, truth


def _values(given: Any) -> tuple[int, ...]:
    found = unwrap_all(given)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def multiple_of(input: Any, values: Any) -> Any:
    """A promise that a tensor's first element is a multiple. Of an integer scalar it is used; tkc
    finds out itself what a block is made of.
    """
    x, (divisor, *_) = unwrap(input), _values(values)
    if not isinstance(x, tensor):
        return input
    if isinstance(x.value, Scalar) and x.dtype.is_int():
        return tensor(to_tensor(operations.multiple_of(x.value, divisor)).value)
    return x


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
