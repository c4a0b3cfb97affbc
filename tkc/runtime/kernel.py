"""What the other files of the runtime need of a kernel (`jit.JitFunction`) and of its launchers, as
types, so that they need not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tkc.runtime.fingerprint import Parts
from tkc.runtime.specialize import Specialization

if TYPE_CHECKING:
    from tkc.compiler import Compiled

Namespace = dict | Parts
# (namespace, name, value): what must stay so for a launch cache to be used
Watch = tuple[Namespace, Any, Any]
Extents = tuple[int, int, int]


class Remembered(Protocol):
    """A kernel, as launch caches see it. careful: what it reads may change without a name being
    rebound; epoch: another object whenever caches must look at something else.
    """

    __name__: str
    names: tuple[str, ...]
    constexpr: tuple[bool, ...]

    @property
    def careful(self) -> bool: ...
    @property
    def epoch(self) -> object: ...
    def forget_caches(self) -> None: ...
    def forget_if_rebound(self) -> None: ...


class Kernel(Remembered, Protocol):
    """A kernel, as what simulates, predicts, tunes or remembers its launches sees it."""

    __module__: str
    __qualname__: str
    fn: Callable

    def __getitem__(self, grid: Any) -> Callable[..., None]: ...
    def bound(self, *args: Any, **kwargs: Any) -> tuple[tuple, dict]: ...
    def extents(self, grid: Any, values: Sequence) -> Extents: ...
    def watching(self) -> tuple[Watch, ...]: ...
    def made(self, args: Sequence, kwargs: dict[str, Any], grid: Any) -> Callable[[], None]: ...
    def _describe(self, values: Sequence) -> list: ...
    def _specialize(self, infos: Sequence, options: tuple) -> Specialization: ...
    def _get(self, s: Specialization, target: str) -> Compiled: ...
    def _key(self, s: Specialization, target: str) -> str | None: ...
    def meaning(self, s: Specialization) -> list[tuple[str, bytes]] | None: ...


class Owner(Protocol):
    """A kernel, or a tuned one."""

    chooses: bool

    @property
    def kernel(self) -> Remembered: ...
    def watching(self) -> tuple[Watch, ...] | None: ...


class CallLauncher(Protocol):
    """`kernel[grid]`, as its launch caches see it."""

    @property
    def owner(self) -> Owner: ...
    @property
    def caches(self) -> dict: ...
    def watching(self) -> tuple[Watch, ...] | None: ...
    def miss(self, args: Sequence, kwargs: dict[str, Any]) -> Any: ...
