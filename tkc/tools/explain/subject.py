"""What is explained: a kernel with the arguments of one launch.

FILE.py:NAME, or package.module:NAME, of
    a kernel                    as it is
    a tuned kernel              with the configuration that its tables or the model choose
    a function of the library   one of the launches that a call of it makes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tkc.errors import Error, LaunchError
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.autotune import Autotuned
from tkc.runtime.handed import handed
from tkc.runtime.jit import JitFunction
from tkc.runtime.specialize import Constant, ScalarInfo, argument


@dataclass(frozen=True)
class Subject:
    """infos: of each parameter what a launch sees of it; extents: the grid, None where none is
    known; notes: how the launch was come by, a sentence each; others: configurations that were not
    chosen.
    """

    kernel: JitFunction
    infos: tuple[Any, ...]
    options: dict[str, Any]
    extents: tuple[int, int, int] | None
    target: str
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = field(default=())

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """Each parameter with what it is, for people."""
        return [
            (name, described(info))
            for name, info in zip(self.kernel.names, self.infos, strict=True)
        ]


def described(info: Any) -> str:
    """An argument as `tkc compile` takes it, or nearly so."""
    match info:
        case ArrayInfo():
            return f"{info.dtype}[{', '.join(map(str, info.shape))}]"
        case ScalarInfo():
            return info.dtype if info.value is None else repr(info.value)
        case Constant():
            return repr(info.value)
    return str(info)


def subject(found: Any, given: dict[str, Any], grid: Any, target: str, launch: int = 1) -> Subject:
    """Of a kernel, a tuned kernel or a function of the library. given: arguments and options by
    name; grid: extents, a function of the arguments, or None; launch: which one of a function's.
    Raises tkc.Error.
    """
    if isinstance(found, Autotuned):
        return _tuned(found, given, grid, target)
    if isinstance(found, JitFunction):
        values, options = found.bound(**given)
        return _launch(found, values, options, grid, target)
    return _called(found, given, target, launch)


def _launch(
    kernel: JitFunction,
    values: Sequence[Any],
    options: dict[str, Any],
    grid: Any,
    target: str,
    notes: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> Subject:
    infos = kernel._describe(values)
    extents = None
    if grid is not None:
        known = [i if isinstance(i, ArrayInfo) else i.value for i in infos]
        extents = kernel.extents(grid, known)
    return Subject(kernel, tuple(infos), options, extents, target, notes, others)


def _tuned(tuned: Autotuned, given: dict[str, Any], grid: Any, target: str) -> Subject:
    if grid is None:
        raise Error(f"{tuned.__name__} is tuned for each launch; write its grid, as --grid 32,16")
    choice = tuned.choose(**given, grid=grid, target=target, measure=False)
    values, options = tuned.kernel.bound(**{**dict(choice.config.items), **given})
    note = f"the configuration {choice.config} is from the {choice.source}"
    return _launch(tuned.kernel, values, options, grid, target, (note,), choice.others)


def _called(function: Callable, given: dict[str, Any], target: str, launch: int) -> Subject:
    """One of the launches that a call of a function makes with arrays of these extents. They are
    in host memory, and count as the target's.
    """
    values = {
        name: _array(argument(value, name, False)) if _is_array_text(value) else value
        for name, value in given.items()
    }
    launches: list[tuple[JitFunction, Any, tuple, dict, tuple[str, ...]]] = []

    def take(kernel: Any, grid: Any, args: tuple, kwargs: dict) -> None:
        launches.append((kernel, grid, args, kwargs, _others(kernel)))

    name = getattr(function, "__name__", str(function))
    with _unmeasured(), handed(take, target):
        try:
            function(**values)
        except TypeError as error:
            raise LaunchError(f"{name}: {error}") from None
    if not launches:
        raise Error(f"{name} launches nothing for these arguments")
    if not 1 <= launch <= len(launches):
        raise Error(f"{name} makes {len(launches)} launches; --launch is 1 to {len(launches)}")
    kernel, grid, args, kwargs, others = launches[launch - 1]
    each = ", ".join(f"{i}: {k.__name__}" for i, (k, *_) in enumerate(launches, 1))
    note = f"launch {launch} of {len(launches)} that {name} makes ({each})"
    bound, options = kernel.bound(*args, **kwargs)
    return _launch(kernel, bound, options, grid, target, (note,), others)


def _others(kernel: JitFunction) -> tuple[str, ...]:
    """The configurations that were not chosen for the launch that a tuned kernel now makes."""
    beside = kernel.fn.__globals__.values()
    tuned = (v for v in beside if isinstance(v, Autotuned) and v.kernel is kernel)
    chosen = next((v.latest for v in tuned if v.latest is not None), None)
    return () if chosen is None else chosen.others


def _is_array_text(value: Any) -> bool:
    return isinstance(value, str) and value.endswith("]") and "[" in value


def _array(info: ArrayInfo) -> np.ndarray:
    """An array of such a description whose elements nobody looks at."""
    from tkc.sim.inputs import blank

    dtype = ArrayInfo(0, (0,), (1,), info.dtype).numpy().dtype
    return blank(info.shape, info.strides, dtype, info.pointer)


@contextmanager
def _unmeasured() -> Iterator[None]:
    """Tuned kernels take the model's choice meanwhile."""
    before = os.environ.get("TKC_AUTOTUNE")
    os.environ["TKC_AUTOTUNE"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TKC_AUTOTUNE"]
        else:
            os.environ["TKC_AUTOTUNE"] = before
