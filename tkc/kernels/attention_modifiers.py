"""score_mod and mask_mod as one value of a kernel, and the arrays that they captured.

    mods = modifiers(score_mod, mask_mod)   mods.captured: the arrays; mods.name: what operators get
    named(mods.name)                        the compile-time value of a kernel, `lifted`:
    lifted.of(*lifted.elements(…))()        (score_mod, mask_mod) in the kernel

A torch operator takes numbers, texts and tensors. So a call hands a name on, under which the
functions are kept; equal functions have one name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import Array, full

# arrays that the functions of a call may capture, together
MAX_CAPTURED = 8
_by_name: dict[str, Any] = {}


def _pair(score_mod: Any, mask_mod: Any) -> tuple[Any, Any]:
    return score_mod, mask_mod


class Modifiers(NamedTuple):
    """The functions by name, and what they captured."""

    name: str
    captured: tuple[Array, ...]

    def slots(self) -> tuple[Array | None, ...]:
        """The captured arrays as so many arguments as kernels have for them."""
        return (*self.captured, *[None] * (MAX_CAPTURED - len(self.captured)))


def modifiers(score_mod: Callable | None, mask_mod: Callable | None) -> Modifiers:
    """Raises LaunchError where the functions captured too many arrays, or are none."""
    for name, f in dict(score_mod=score_mod, mask_mod=mask_mod).items():
        if f is not None and not callable(f):
            raise tkc.LaunchError(
                f"attention: {name} is a function of elements, got {type(f).__name__}"
            )
    lifted, captured = tkc.lambda_lift(partial(_pair, score_mod, mask_mod))
    if len(captured) > MAX_CAPTURED:
        raise tkc.LaunchError(
            f"attention: score_mod and mask_mod captured {len(captured)} arrays, at most"
            f" {MAX_CAPTURED} fit; put some of them into one array"
        )
    name = repr(lifted)
    _by_name[name] = lifted
    return Modifiers(name, captured)


def named(name: str) -> Any:
    """What `tkc.lambda_lift` made of the functions that have this name."""
    return _by_name[name]


def composed(ours: list[Callable], score_mod: Callable | None) -> Callable | None:
    """The score_mod that applies ours in turn, and then the caller's. What the latter captured
    comes first among what is captured.
    """
    if not ours:
        return score_mod
    return partial(_in_turn, score_mod, tuple(ours))


def _in_turn(last: Any, first: tuple, score: Any, *place: Any) -> Any:
    for f in first:
        score = f(score, *place)
    return score if last is None else last(score, *place)


def capped(softcap: float) -> Callable:
    """The score_mod cap · tanh(s / cap)."""
    return partial(_capped, softcap)


def _capped(cap: float, score: Any, *place: Any) -> Any:
    return cap * tkc.tanh(score * (1 / cap))


def with_bias(bias: Array) -> Callable:
    """The score_mod that adds an array of up to four axes (batch, heads, rows, columns), which are
    1 where it is the same for all.
    """
    alike = tuple(n == 1 for n in (*[1] * (4 - len(bias.shape)), *bias.shape))
    return partial(_biased, bias, len(bias.shape), alike)


def _biased(bias: Any, rank: int, alike: tuple, score: Any, *place: Any) -> Any:
    at = [0 if same else i for i, same in zip(place, alike, strict=True)]
    return score + bias[tuple(at[4 - rank :])]


def with_slopes(slopes: Array, shift: int | tuple[Array, Array]) -> Callable:
    """The score_mod of ALiBi: less slopes[h] times the distance of row and column; shift: the first
    row's place among the columns, or where each sequence's rows and columns begin, of which the
    last ones are at one place.
    """
    if isinstance(shift, tuple):
        return partial(_sloped_by_sequence, slopes, *shift)
    if not shift:
        return partial(_sloped, slopes, 0)
    return partial(_sloped, slopes, full(slopes, (), shift, "int32"))


def _sloped(slopes: Any, shift: Any, score: Any, b: Any, h: Any, row: Any, column: Any) -> Any:
    distance = row - column if isinstance(shift, int) else row + shift - column
    return score - slopes[h] * tkc.abs(distance).to(tkc.float32)


def _sloped_by_sequence(
    slopes: Any, starts: Any, starts_k: Any, score: Any, b: Any, h: Any, row: Any, column: Any
) -> Any:
    shift = (starts_k[b + 1] - starts_k[b]) - (starts[b + 1] - starts[b])
    return score - slopes[h] * tkc.abs(row + shift - column).to(tkc.float32)
