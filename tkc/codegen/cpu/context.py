"""The words, i64 each, that a launch and its generated code share.

    counter        the next program that no thread has taken
    total, grain   how many programs there are, and how many a thread takes at once
    error          0; else the number of the assertion that failed first, plus 1, or STOPPED
    where          the number of the program of that assertion
    attention      not 0 where a thread must look at `error` or for signals, see signals.py
    print          the host's callback for prints
    release, take, check_signals    functions of the Python interpreter, see signals.py
    give_way       the system's function by which a thread lets others run

A thread's own words lie in front of its workspace, at negative offsets in bytes (HEADER_BYTES).
"""

from __future__ import annotations

import ctypes

WORDS = (
    "counter",
    "total",
    "grain",
    "error",
    "where",
    "attention",
    "print",
    "release",
    "take",
    "check_signals",
    "give_way",
)
Context = ctypes.c_int64 * len(WORDS)
COUNTER, TOTAL, GRAIN, ERROR, WHERE, ATTENTION, PRINT, *_ = range(len(WORDS))
STOPPED = -1  # of `error`: the host ends the launch

HEADER_BYTES = 64  # in front of a workspace: as much as keeps it aligned
THREAD_STATE = -64  # the interpreter's state of this thread while compiled code runs
HANDLES_SIGNALS = -56  # not 0 in the main thread, the only one in which Python handles signals
