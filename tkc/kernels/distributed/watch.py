"""What ends a process whose GPU waits for a rank that does not come any more.

A kernel that waits cannot be stopped from outside, nor a thread that waits for the kernel: like
NCCL's watchdog, this one ends the process, with a sentence that says why.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

LOOK_S = 1.0  # between two looks
PATIENCE_S = 5.0  # that work of a rank that has died has, to be seen


def end(why: str) -> None:
    """Ends the process, whatever its threads wait for."""
    sys.stderr.write(f"tkc.PeerError: {why}\n")
    sys.stderr.flush()
    os._exit(1)


class Watch:
    """Looks once a second, on a thread of its own, whether `lost()` gives a sentence; where it does
    and `idle()` is not true within some seconds, calls `end` with the sentence.

    lost: which rank has died; idle: whether what was launched that waits for others has ended.
    """

    def __init__(
        self,
        lost: Callable[[], str | None],
        idle: Callable[[], bool],
        end: Callable[[str], None] = end,
        look: float = LOOK_S,
        patience: float = PATIENCE_S,
    ):
        self._lost, self._idle, self._end = lost, idle, end
        self._look, self._patience = look, patience
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tkc watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._look):
            why = self._lost()
            if why is not None and not self._becomes_idle():
                self._end(why)
                return

    def _becomes_idle(self) -> bool:
        until = time.monotonic() + self._patience
        while not self._idle():
            if time.monotonic() > until or self._stopped.is_set():
                return self._stopped.is_set()
            time.sleep(self._look / 10)
        return True

    def stop(self) -> None:
        """Looks no more."""
        self._stopped.set()
        self._thread.join()
