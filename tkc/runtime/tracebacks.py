"""Tracebacks without the frames of tkc itself: the user's call, then the user's kernel.

`raise` alone, in an `except`, adds no frame to a traceback: where a function of tkc that users call
catches an error, takes the frames of tkc out of it and raises it again, none of them is left.
TKC_TRACEBACK=1 keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import TypeVar, cast

from tkc.errors import Error, VerifyError

F = TypeVar("F", bound=Callable)


def hide_own_frames(error: BaseException) -> None:
    """Takes tkc's frames out of the tracebacks of an error and of what caused it, for functions
    that users call and that raise it again. A VerifyError, which is a fault of tkc, keeps them.
    """
    if isinstance(error, VerifyError) or os.environ.get("TKC_TRACEBACK", "0") not in ("", "0"):
        return
    current: BaseException | None = error
    while current is not None:
        current.__traceback__ = _users_part(current.__traceback__)
        following = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or following


def _users_part(traceback: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    found = None
    for entry in reversed(entries):
        frame = entry.tb_frame
        if _is_shown(frame):
            found = TracebackType(found, frame, entry.tb_lasti, entry.tb_lineno)
    return found


def _is_shown(frame: FrameType) -> bool:
    """Whether a frame is the user's, or of a kernel of the library."""
    from tkc.language.tracer import is_rewritten, is_users_frame

    module = frame.f_globals.get("__name__")
    if module is None:  # code that tkc wrote for a kind of calls
        return False
    if module.startswith("tkc.kernels") and not is_rewritten(frame.f_code):
        return False  # it checks arguments, allocates or launches
    return is_users_frame(frame)


def hides_own_frames(function: F) -> F:
    """A function that users call, whose errors show their frames alone."""

    @wraps(function)
    def hiding(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Error as error:
            hide_own_frames(error)
            raise

    return cast(F, hiding)
