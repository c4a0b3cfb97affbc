"""Signals while compiled code runs, so that Ctrl-C ends a kernel.

Python runs a signal's handler in the main thread, between two of its own instructions; compiled
code has none. So ten times a second a thread sets `attention` in the launches of the main thread.
Every loop of a program reads that word, and so does each thread in front of a program. Where it is
set, the main thread takes Python's lock, lets Python handle its signals (PyErr_CheckSignals), and
ends the launch where a handler has raised an exception, which the caller then gets.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

from tkc.codegen.cpu.context import ATTENTION, ERROR, STOPPED, WORDS, Context

PERIOD_S = 0.1  # between two looks for signals


def empty_context() -> ctypes.Array[ctypes.c_int64]:
    """The words of a launch, with the addresses of what generated code calls of Python."""
    context = Context()
    for word, function in (
        ("release", ctypes.pythonapi.PyEval_SaveThread),
        ("take", ctypes.pythonapi.PyEval_RestoreThread),
        ("check_signals", ctypes.pythonapi.PyErr_CheckSignals),
    ):
        context[WORDS.index(word)] = ctypes.cast(function, ctypes.c_void_p).value or 0
    context[WORDS.index("give_way")] = ctypes.cast(_give_way(), ctypes.c_void_p).value or 0
    return context


def _give_way() -> Any:
    """What a thread that waits calls: it takes no argument, and gives a number."""
    library = ctypes.CDLL(None) if os.name == "posix" else ctypes.windll.kernel32  # type: ignore[attr-defined]
    return library.sched_yield if os.name == "posix" else library.SwitchToThread


def stop(context: ctypes.Array[ctypes.c_int64]) -> None:
    """End a launch: each of its threads returns from the program that it runs."""
    context[ERROR] = context[ERROR] or STOPPED
    context[ATTENTION] = 1


def handles_signals() -> bool:
    """Whether this is the thread in which Python runs the handlers of signals."""
    return threading.current_thread() is threading.main_thread()


class Ticker:
    """Has the launches of the main thread look for signals; its own thread sleeps while there are
    none.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """No launch and no thread, as in a child process: it has only the thread that forked."""
        # contexts of what runs now: several where a signal's handler or a print launches another
        self._running: list[ctypes.Array[ctypes.c_int64]] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._used = self._asleep = False

    def begin(self, context: ctypes.Array[ctypes.c_int64]) -> None:
        """A launch of the main thread starts."""
        self._running.append(context)
        self._used = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._tick, name="tkc-signals", daemon=True)
            self._thread.start()
        elif self._asleep:
            self._wake.set()

    def end(self, context: ctypes.Array[ctypes.c_int64]) -> None:
        """A launch of the main thread has ended."""
        self._running = [c for c in self._running if c is not context]

    def _tick(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            for context in self._running[:]:
                context[ATTENTION] = 1
            if not self._used and not self._running:
                self._asleep = True
                # a launch either sees that this thread sleeps, or is seen here
                if not self._used and not self._running:
                    self._wake.wait()
                self._wake.clear()
                self._asleep = False
            self._used = False


ticker = Ticker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ticker.reset)
