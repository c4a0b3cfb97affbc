"""`with tkc.handed(to): …`: launches that another function makes, and what launch caches must
watch for that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tkc.runtime.kernel import Kernel, Watch

# by thread: the functions that its launches are handed to, the innermost last
takers: dict[int, list[Callable]] = {}
# by thread: the targets that its launches count as being for, the innermost last
_targets: dict[int, list[str]] = {}
_lock = threading.Lock()
_handing: bool | None = None  # True where there is one
_tables = 0  # how often tables of choices became others


def _forked() -> None:
    """In a child: another thread of the parent may have held the lock, or was handed launches."""
    global _lock, _handing
    _lock = threading.Lock()
    for thread in takers.keys() - {get_ident()}:
        del takers[thread]
    _handing = True if takers else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class handed:
    """`with tkc.handed(to): …`: within it, launches of this thread are handed to `to(kernel, grid,
    args, kwargs)`, which makes them (kernel[grid](*args, **kwargs)) or does not.

    Within another such block, what `to` launches is handed on to that one's. target: what arrays in
    host memory count as being for, so that what depends on the GPU is chosen as there.
    """

    def __init__(self, to: Callable[[Kernel, Any, tuple, dict], None], target: str | None = None):
        self.to, self.target = to, target

    def __enter__(self) -> None:
        _push(self.to)
        if self.target is not None:
            _targets.setdefault(get_ident(), []).append(self.target)

    def __exit__(self, *exception: object) -> None:
        _pop()
        if self.target is not None:
            mine = _targets[get_ident()]
            mine.pop()
            if not mine:
                del _targets[get_ident()]


def assumed_target() -> str:
    """What arrays in host memory are compiled for: "cpu", unless a `handed` block says another."""
    mine = _targets.get(get_ident())
    return mine[-1] if mine else "cpu"


def handing() -> bool:
    """Whether launches of this thread are handed to a function."""
    return get_ident() in takers


def hand(kernel: Kernel, grid: Any, /, *args: Any, **kwargs: Any) -> None:
    """Hands a launch to the innermost function; what that launches goes to the one around it."""
    to = _pop()
    try:
        to(kernel, grid, args, kwargs)
    finally:
        _push(to)


def watch_handing() -> Watch:
    """No thread is handed launches."""
    return globals(), "_handing", None


def watch_tables() -> Watch:
    """Tables of choices are what they are now."""
    return globals(), "_tables", _tables


def tables_changed() -> None:
    """Called where tables of choices become others."""
    global _tables
    with _lock:
        _tables += 1


def _push(to: Callable) -> None:
    global _handing
    with _lock:
        takers.setdefault(get_ident(), []).append(to)
        _handing = True


def _pop() -> Callable:
    global _handing
    with _lock:
        mine = takers[thread := get_ident()]
        to = mine.pop()
        if not mine:
            del takers[thread]
        if not takers:
            _handing = None
    return to
