"""Programs that were compiled: linked into this process, launched on a pool of threads.

A `CpuProgram` is object files and a JSON description; `from_objects` makes it again in a
millisecond, so a cache keeps both. What runs one imports neither xDSL nor the compiler.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from tkc.codegen.cpu import context as words
from tkc.codegen.cpu.arguments import words_of
from tkc.codegen.cpu.host import host, link
from tkc.codegen.cpu.signals import PERIOD_S, empty_context, handles_signals, stop, ticker
from tkc.errors import CompileError, LaunchError, Location, PeerError, TrapError

if TYPE_CHECKING:
    from llvmlite.binding import ResourceTracker

OBJECT = "object"  # what names of object files in a cache begin with
MAX_PROGRAMS = (1 << 31) - 1
WORKSPACE_ALIGN = 64  # bytes
PRINT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
# Called with Python's lock, which the code releases and takes back itself: an exception of a
# signal's handler that ended it is raised from the call.
ENTRY = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 4)

_CONTEXT = empty_context()


def unpack(parts: dict[str, bytes]) -> CpuProgram:
    """The inverse of `CpuProgram.pack`. Raises KeyError or ValueError where the parts are not a
    program, CompileError for another processor's.
    """
    objects = tuple(parts[name] for name in sorted(parts) if name.startswith(OBJECT))
    return CpuProgram.from_objects(objects, parts["program"].decode())


class CpuProgram:
    """A compiled kernel.

    objects   the object files; with `metadata` (JSON data) all that `from_objects` needs
    llvm      the LLVM IR, as written by us (empty after from_objects)
    """

    def __init__(self, objects: Sequence[bytes], metadata: dict[str, Any], llvm: str = ""):
        self.objects, self.metadata, self.llvm = objects, metadata, llvm
        self._linked: tuple[ResourceTracker, Callable[[int, int, int, int], None]] | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_objects(cls, objects: Sequence[bytes], metadata: dict[str, Any] | str) -> CpuProgram:
        """A program from a cache. Raises CompileError where it was made for another processor."""
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        if metadata["processor"] != host()[2]:
            raise CompileError(
                "the cached objects are for another processor; compile the kernel again"
            )
        return cls(objects, metadata)

    def pack(self) -> dict[str, bytes]:
        """As named bytes for a disk cache; `unpack` reads them."""
        objects = {f"{OBJECT}{i:03}": each for i, each in enumerate(self.objects)}
        return objects | {"program": json.dumps(self.metadata).encode()}

    @property
    def _entry(self) -> Callable[[int, int, int, int], None]:
        # linked once, whichever thread is the first: of two libraries one would be unmapped under
        # the thread that runs it
        with self._lock:
            if self._linked is None:
                library = link(self.objects, ["run"])
                self._linked = library, ENTRY(library["run"])
            return self._linked[1]

    # ----------------------------------------------------------------------------------------------
    def run(
        self,
        arguments: Sequence[object],
        grid: Sequence[int] | int,
        threads: int | None = None,
        out: Callable[[str], object] = print,
        lost: Callable[[], str | None] | None = None,
    ) -> None:
        """Run every program of `grid` (up to three axes), axis 0 fastest, on `threads` threads
        (default: all processors); writes arrays in place. `out` gets what the kernel prints. `lost`
        is asked meanwhile whether another rank has died, and gives a sentence where one has.

        Raises LaunchError for arguments that do not fit, TrapError where an assert of the kernel
        fails, PeerError where a rank has died. In the main thread an exception of a signal's
        handler ends the programs and is raised, KeyboardInterrupt above all: how much they had
        written then is not known.
        """
        extents = _extents(grid)
        bound = self._bind(arguments)
        total = math.prod(extents)
        if total == 0:
            return
        if total > MAX_PROGRAMS:
            raise LaunchError(f"a grid of {total} programs; at most {MAX_PROGRAMS} run")
        if not self.metadata["overlapping"] and self._overlap(arguments):
            raise LaunchError(
                f"arguments of @{self.metadata['name']} share memory that it writes, and it was"
                " compiled for arguments that do not; compile it with overlapping=True"
            )
        launch = _Launch(self, arguments, bound, extents, min(threads or _processors(), total), out)
        launch.lost = lost
        launch.run()

    def _bind(self, arguments: Sequence[object]) -> ctypes.Array[ctypes.c_uint64]:
        """The words the kernel reads. Raises LaunchError for arguments that do not fit."""
        wanted = self.metadata["arguments"]
        if len(arguments) != len(wanted):
            raise LaunchError(
                f"@{self.metadata['name']} takes {len(wanted)} arguments, got {len(arguments)}"
            )
        bound = words_of(wanted, arguments)
        for i in self.metadata["written"]:
            array = arguments[i]
            if isinstance(array, np.ndarray) and not array.flags.writeable:
                raise LaunchError(
                    f"argument {wanted[i]['name'] or i} is read-only but the kernel writes it"
                )
        return bound

    def _overlap(self, arguments: Sequence[object]) -> bool:
        """Whether an array that is written shares memory with another argument."""
        spans = {
            i: np.lib.array_utils.byte_bounds(a)
            for i, a in enumerate(arguments)
            if isinstance(a, np.ndarray) and a.size
        }
        return any(
            j != i and spans[i][0] < high and low < spans[i][1]
            for i in self.metadata["written"]
            if i in spans
            for j, (low, high) in spans.items()
        )


def _extents(grid: Sequence[int] | int) -> tuple[int, ...]:
    extents = tuple(int(n) for n in ((grid,) if isinstance(grid, int) else grid))
    if not 1 <= len(extents) <= 3 or any(n < 0 for n in extents):
        raise LaunchError(f"a grid has one to three extents of at least 0, got {extents}")
    return extents


# --------------------------------------------------------------------------------------------------
class _Launch:
    """One launch: what its threads share, alive until the last of them has returned."""

    def __init__(
        self,
        program: CpuProgram,
        arguments: Sequence[object],
        bound: ctypes.Array[ctypes.c_uint64],
        grid: tuple[int, ...],
        threads: int,
        out: Callable[[str], object],
    ):
        total = math.prod(grid)
        self.program, self.metadata, self.grid = program, program.metadata, grid
        self.threads, self.out = threads, out
        self.failures: list[BaseException] = []  # exceptions of `out`, PeerError
        self.lost: Callable[[], str | None] | None = None
        self.context = context = words.Context.from_buffer_copy(_CONTEXT)
        context[words.TOTAL] = total
        context[words.GRAIN] = 1 if self.metadata["waits"] else max(1, total // (8 * threads))
        extents = (ctypes.c_int32 * 3)(*(*grid, 1, 1)[:3])
        # the arguments are kept with their addresses: a thread may return after the caller
        self.alive: list[object] = [bound, extents, arguments]
        if self.metadata["messages"]:
            callback = PRINT_CALLBACK(self._print)
            self.alive.append(callback)
            context[words.PRINT] = ctypes.cast(callback, ctypes.c_void_p).value or 0
        self.pointers = tuple(ctypes.addressof(x) for x in (bound, extents, context))

    def run(self) -> None:
        """All programs, on this thread and others of the pool."""
        interruptible = handles_signals()
        others: list[Future[None]] = []
        try:
            if interruptible:
                ticker.begin(self.context)
            if self.lost is not None:
                watch.begin(self)
            for _ in range(self.threads - 1):
                others.append(_pool(self.threads - 1).submit(self._work))
            self._work()
            for other in others:
                # one that has not begun stands behind programs of another launch, which may wait
                # for what comes after this one
                if not other.cancel():
                    other.result()
        except BaseException:
            stop(self.context)
            wait(others)
            raise
        finally:
            if interruptible:
                ticker.end(self.context)
            if self.lost is not None:
                watch.end(self)
        if self.failures:
            raise self.failures[0]
        if self.context[words.ERROR]:
            self._fail()

    def look(self) -> None:
        """Ends the launch where another rank has died."""
        assert self.lost is not None
        if (found := self.lost()) is not None:
            self.failures.append(PeerError(f"{self.metadata['name']}: {found}"))
            stop(self.context)

    def _work(self) -> None:
        """Programs on this thread until none is left."""
        entry = self.program._entry
        # taken out while it is used: a print, or a signal's handler, may launch another kernel
        workspace = _local.__dict__.pop("workspace", None)
        if workspace is None or workspace.nbytes < self.metadata["workspace"]:
            workspace = _Workspace(self.metadata["workspace"])
        try:
            entry(self.pointers[0], self.pointers[1], workspace.pointer, self.pointers[2])
        finally:
            _local.workspace = workspace

    def _fail(self) -> None:
        """Raises TrapError for an assertion that did not hold in a program."""
        message = self.metadata["messages"][self.context[words.ERROR] - 1]
        number = int(self.context[words.WHERE])
        x, y, _ = (*self.grid, 1, 1)[:3]
        raise TrapError(
            self.metadata["name"],
            message["text"],
            Location(*message["place"]) if message["place"] else None,
            (number % x, number // x % y, number // x // y),
            None,
        )

    def _print(self, number: int, table: int) -> None:
        """Called by generated code; an exception ends the launch, which raises it."""
        try:
            self.out(_message(self.metadata["messages"][number], table))
        except BaseException as e:
            self.failures.append(e)
            stop(self.context)


def _message(message: dict[str, Any], table: int) -> str:
    """The text of a print whose values lie where a table of addresses says."""
    from tkc.ir.dtypes import BY_IR

    names = {str(d.ir): d for d in BY_IR.values()}
    addresses = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    text, *literals = message["text"]
    for i, (literal, (element, shape, is_tile)) in enumerate(
        zip(literals, message["types"], strict=True)
    ):
        dtype = names[element].numpy if element in names else np.dtype(np.int64)
        data = ctypes.string_at(addresses[i] or 0, math.prod(shape) * dtype.itemsize)
        value = np.frombuffer(data, dtype).reshape(shape)
        text += f"{value if is_tile else value[0]}{literal}"
    return text


# --------------------------------------------------------------------------------------------------
class _Watch:
    """Asks for launches of several ranks whether one has died."""

    def __init__(self) -> None:
        self._running: list[_Launch] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def begin(self, launch: _Launch) -> None:
        self._running.append(launch)
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="tkc-ranks", daemon=True)
            self._thread.start()

    def end(self, launch: _Launch) -> None:
        self._running = [one for one in self._running if one is not launch]

    def _look(self) -> None:
        while True:
            self._wake.wait()
            time.sleep(PERIOD_S)
            if not self._running:
                self._wake.clear()
                if self._running:  # one began meanwhile, and may have set what was cleared
                    self._wake.set()
            for launch in self._running[:]:
                if not launch.failures:
                    launch.look()


watch = _Watch()


# --------------------------------------------------------------------------------------------------
class _Workspace:
    """Memory of one thread's programs: `nbytes` from `pointer` on, and a header in front."""

    def __init__(self, nbytes: int):
        self.nbytes = nbytes + 4096
        self._memory = np.zeros(words.HEADER_BYTES + self.nbytes + WORKSPACE_ALIGN, np.uint8)
        start = -(-self._memory.ctypes.data // WORKSPACE_ALIGN) * WORKSPACE_ALIGN
        self.pointer = start + words.HEADER_BYTES
        flag = ctypes.c_int64.from_address(self.pointer + words.HANDLES_SIGNALS)
        flag.value = handles_signals()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_local = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(n: int) -> ThreadPoolExecutor:
    if n not in _pools:
        _pools[n] = ThreadPoolExecutor(n, "tkc")
    return _pools[n]


def _forget_threads() -> None:
    """In a child process, which has only the thread that forked."""
    _pools.clear()
    watch.__init__()  # type: ignore[misc]
    _local.__dict__.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
