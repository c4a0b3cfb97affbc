"""Groups of ranks: who they are, memory that all of them have, and who has died.

    threads(world, run)             ranks as threads of this process, over NumPy arrays
    Processes(name, rank, world)    ranks as processes of one host, over shared memory
    torch_group.Devices(group)      ranks as torch.distributed has them, over symmetric memory

What a function of several ranks needs is in `Group`; the three differ in `allocate` and `lost`.
All ranks make the same calls in the same order.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import shared_memory
from typing import Any

import numpy as np

import tkc

MAX_SECONDS = 600.0  # that a launch waits for another rank that has not died
PUSHED = 4096  # elements that `_push` copies at once


@tkc.jit
def _push(x, to, N: tkc.constexpr):
    """x [n] to `to` [n or more], N elements at a time."""
    n = x.shape[0]
    for at in tkc.range(0, n, N):
        tkc.store(to, (at,), tkc.load(x, (at,), (N,)), mask=at + tkc.arange(N) < n)


@tkc.jit
def _tell(number, flag):
    """Signals the flag [1] with number [1]."""
    tkc.signal(flag, 0, number[0])


class Group:
    """One rank's place among others. rank, world: which, of how many; seconds: that a launch waits
    for a rank that has not come.
    """

    def __init__(self, rank: int, world: int, seconds: float = MAX_SECONDS):
        if not 0 <= rank < world:
            raise tkc.LaunchError(f"rank {rank} is none of {world}")
        self.rank, self.world, self.seconds = rank, world, seconds
        self._since = time.monotonic()
        self._memory: dict[Any, Any] = {}

    def allocate(self, shape: Sequence[int], dtype: Any) -> list[Any]:
        """Arrays of zeros, one a rank, in the order of ranks. All ranks call it together."""
        raise NotImplementedError

    def died(self) -> str | None:
        """A sentence about a rank that has died, where one has."""
        raise NotImplementedError

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        """An array of zeros of this rank alone."""
        return np.zeros(tuple(shape), dtype)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """An array of this rank alone, for a result."""
        return np.empty(tuple(shape), dtype)

    def peers(self, shape: Sequence[int], dtype: Any) -> tkc.peers:
        """Zeros that every rank has, as an argument of a kernel. All ranks call it together."""
        return tkc.peers(self.allocate(shape, dtype), self.rank, self.lost)

    def remembered(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gave when this call was first made; `key` says which call it is. Memory of a
        call is used by the next one like it, so calls of one key stay in one order.
        """
        if key not in self._memory:
            self._memory[key] = make()
        return self._memory[key]

    def beside(self, queue: int) -> contextlib.AbstractContextManager[None]:
        """Within it, launches run beside those behind it, if the ranks are GPUs: in a queue of this
        number, behind what is in it, and behind what was launched before. `join` ends that.
        """
        return contextlib.nullcontext()

    def join(self) -> None:
        """What is launched from here on runs behind all that was launched beside."""

    def push(self, x: Any, to: Any) -> None:
        """Copies x [n] to another rank's memory of n elements or more."""
        _push[1](x, to, N=PUSHED)

    def tell(self, number: Any, flag: Any) -> None:
        """Copies a number [1] to another rank's flag [1] behind what was pushed before: a rank that
        sees it finds that.
        """
        _tell[1](number, flag)

    def begin(self) -> None:
        """Called before launches in which ranks wait: the time that they have begins."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Called behind launches in which ranks wait."""

    def lost(self) -> str | None:
        """What a launch that waits asks: who has died, or has not come in time."""
        if (found := self.died()) is not None:
            return found
        if time.monotonic() - self._since > self.seconds:
            return (
                f"rank {self.rank} has waited {self.seconds:g} s for the others, which live; do all"
                " ranks make the same calls?"
            )
        return None

    def close(self) -> None:
        """Gives back what the group holds; of no use after that."""
        self._memory.clear()


class _Shared:
    """What the threads of a group share."""

    def __init__(self, world: int):
        self.world, self.lock = world, threading.Lock()
        self.allocated: list[tuple[tuple, list[np.ndarray]]] = []
        self.errors: dict[int, BaseException] = {}


class Threads(Group):
    """A rank that is a thread of this process."""

    def __init__(self, rank: int, shared: _Shared, seconds: float = MAX_SECONDS):
        super().__init__(rank, shared.world, seconds)
        self._shared, self._calls = shared, 0

    def allocate(self, shape: Sequence[int], dtype: Any) -> list[Any]:
        asked, number = (tuple(shape), np.dtype(dtype)), self._calls
        self._calls += 1
        with self._shared.lock:
            if number == len(self._shared.allocated):
                made = [np.zeros(*asked) for _ in range(self.world)]
                self._shared.allocated.append((asked, made))
            found, arrays = self._shared.allocated[number]
        if found != asked:
            raise tkc.PeerError(
                f"rank {self.rank} allocates {asked} where another rank has allocated {found}; all"
                " ranks make the same calls in one order"
            )
        return arrays

    def died(self) -> str | None:
        return next((f"rank {r} has died: {e}" for r, e in self._shared.errors.items()), None)


def of_one_process(world: int, seconds: float = MAX_SECONDS) -> list[Group]:
    """The ranks of one process, for whatever runs them: threads, or tkc.simulate_ranks."""
    shared = _Shared(world)
    return [Threads(r, shared, seconds) for r in range(world)]


def threads(world: int, run: Callable[[Group], Any], seconds: float = MAX_SECONDS) -> list[Any]:
    """run(group) for each rank, on a thread each; gives what they return. Raises what the first
    rank raised that failed; the others end with PeerError where they wait for it.
    """
    shared, results = _Shared(world), [None] * world

    def rank(r: int) -> None:
        try:
            results[r] = run(Threads(r, shared, seconds))
        except BaseException as e:
            with shared.lock:
                shared.errors.setdefault(r, e)

    started = [threading.Thread(target=rank, args=(r,), name=f"rank {r}") for r in range(world)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    for error in shared.errors.values():
        raise error
    return results


# --------------------------------------------------------------------------------------------------
POLL_S = 0.002
STATES = "not yet here", "here", "gone"


class Alive:
    """Which processes of a host are still there: each holds a lock on a file of its own as long as
    it lives, however it ends. name: one that these processes alone have.
    """

    def __init__(self, name: str, rank: int, world: int):
        self._name, self._rank, self._world = name, rank, world
        self._lock = open(self._path(rank), "w")  # noqa: SIM115 - held as long as this lives
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def _path(self, rank: int) -> str:
        return os.path.join(tempfile.gettempdir(), f"{self._name}.rank{rank}")

    def died(self) -> str | None:
        """A sentence about another process that is gone, where one is."""
        for r in range(self._world):
            if r != self._rank and self._state(r) == "gone":
                return f"rank {r} has died, or left before the others"
        return None

    def _state(self, rank: int) -> str:
        try:
            with open(self._path(rank)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return STATES[2] if file.read() else STATES[0]
        except FileNotFoundError:
            return STATES[0]
        except BlockingIOError:
            return STATES[1]

    def close(self) -> None:
        """Lets go; the last one removes the files."""
        self._lock.close()
        if all(self._state(r) != "here" for r in range(self._world)):
            for r in range(self._world):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(r))


class Processes(Group):
    """A rank that is a process of this host; ranks find one another by a name that is theirs alone.
    Raises PeerError where a rank does not come within `seconds`.
    """

    def __init__(self, name: str, rank: int, world: int, seconds: float = MAX_SECONDS):
        super().__init__(rank, world, seconds)
        self.name, self._calls = name, 0
        self._segments: list[shared_memory.SharedMemory] = []
        self._alive = Alive(name, rank, world)
        atexit.register(self.close)  # else its segments outlive a process that does not close it

    def allocate(self, shape: Sequence[int], dtype: Any) -> list[Any]:
        number, kind = self._calls, np.dtype(dtype)
        self._calls += 1
        size = max(int(np.prod(tuple(shape))) * kind.itemsize, 1)
        own = shared_memory.SharedMemory(self._segment(number, self.rank), create=True, size=size)
        self._segments.append(own)
        self.begin()
        found = [
            own if r == self.rank else self._open(self._segment(number, r), size)
            for r in range(self.world)
        ]
        self._segments += [one for one in found if one is not own]
        return [np.ndarray(tuple(shape), kind, one.buf) for one in found]

    def _segment(self, number: int, rank: int) -> str:
        return f"{self.name}.{number}.{rank}"

    def _open(self, name: str, size: int) -> shared_memory.SharedMemory:
        """Another rank's memory, when it is there. Memory of a new segment is zero."""
        while True:
            try:
                found = _attached(name)
            except (FileNotFoundError, ValueError):  # not there yet, or still without a size
                found = None
            if found is not None and found.size >= size:
                return found
            if (why := self.lost()) is not None:
                raise tkc.PeerError(why)
            time.sleep(POLL_S)

    def died(self) -> str | None:
        return self._alive.died()

    def close(self) -> None:
        super().close()
        atexit.unregister(self.close)
        for segment in self._segments:
            _forget(segment, segment.name.split(".")[-1] == str(self.rank))
        self._segments.clear()
        self._alive.close()


def _attached(name: str) -> shared_memory.SharedMemory:
    """A segment that another process has made, and gives back."""
    from multiprocessing import resource_tracker

    found = shared_memory.SharedMemory(name)
    # Python's tracker would remove it when this process ends, under the one that made it
    resource_tracker.unregister(f"/{name}", "shared_memory")
    return found


def _forget(segment: shared_memory.SharedMemory, own: bool) -> None:
    """Gives a segment back. Arrays over it may live on: then its memory stays until they end."""
    with contextlib.suppress(BufferError):
        segment.close()
    if own:
        segment.unlink()
