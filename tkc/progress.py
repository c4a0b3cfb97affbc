"""A line on the terminal about what takes long."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import threading
import time
from contextlib import suppress

DELAY_SECONDS = 2.0  # of work before anything is shown
PERIOD_SECONDS = 0.5  # from one line to the next
ERASE = "\r\x1b[2K"


class progress:
    """`with progress("compiling matmul") as line: …`. Where it takes longer than two seconds and
    standard error is a terminal, a line there says what is being done, what `line.say` said last,
    and for how long; it is erased when done. Within another one it continues that one's line.
    """

    _open: list[progress] = []  # the outermost first
    _lock = threading.Lock()

    def __init__(self, what: str):
        self.what, self.detail = what, ""
        self.began = time.perf_counter()
        self._done = threading.Event()
        self._writer: threading.Thread | None = None

    def say(self, detail: str) -> None:
        """What is being done of it now."""
        self.detail = detail

    def __enter__(self) -> progress:
        with self._lock:
            outermost = not self._open
            self._open.append(self)
        if outermost and _on_a_terminal():
            self._writer = threading.Thread(target=self._write, daemon=True)
            self._writer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        with self._lock:
            self._open.remove(self)
        if self._writer is not None:
            self._writer.join()

    def _write(self) -> None:
        shown, wait = False, DELAY_SECONDS
        with suppress(OSError, ValueError):  # standard error was closed
            while not self._done.wait(wait):
                columns = shutil.get_terminal_size().columns - 1
                line = self._line()
                if self._done.is_set():
                    break  # what is done has no line
                sys.stderr.write(ERASE + line[:columns])
                sys.stderr.flush()
                shown, wait = True, PERIOD_SECONDS
            if shown:
                sys.stderr.write(ERASE)
                sys.stderr.flush()

    def _line(self) -> str:
        with self._lock:
            parts = [p.what + (f": {p.detail}" if p.detail else "") for p in self._open]
        return f"tkc: {', '.join(parts)} ({time.perf_counter() - self.began:.0f} s)"


def _on_a_terminal() -> bool:
    """Whether standard error is a terminal, and this process the one that was started there."""
    stream = sys.stderr
    return bool(stream and stream.isatty()) and multiprocessing.parent_process() is None
