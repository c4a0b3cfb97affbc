"""Programs that were compiled: their objects linked by ORC, argument packing, the pool of threads.

A `CpuProgram` is an object file and a JSON description; `from_object` makes it again in a
millisecond, so a cache keeps both. What runs one imports neither xDSL nor the compiler.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property

import ml_dtypes
import numpy as np

from tkc.errors import CompileError, LaunchError, Location, TrapError

CONTEXT = (
    "counter",
    "total",
    "grain",
    "error",
    "print",
    "state",
    "where",
)  # words of the context, i64 each
PRINT = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
_names = itertools.count()


@cache
def numpy_type(name: str) -> np.dtype:
    """The NumPy type of an element type by tkc's name."""
    name = {"bool_": "bool", "float8_e4m3": "float8_e4m3fn"}.get(name, name)
    return np.dtype(getattr(ml_dtypes, name, None) or name)


# --------------------------------------------------------------------------------------------------
@cache
def host(cpu: str | None = None) -> tuple:
    """llvmlite, a target machine for this processor (or a named one), the processor's name with its
    features, and whether it has AVX-512.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = "" if cpu else llvm.get_host_cpu_features()
    wide = not cpu and bool(features.get("avx512f"))
    if wide:
        features["prefer-256-bit"] = False
    cpu, features = cpu or llvm.get_host_cpu_name(), features and features.flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=2, jit=True, reloc="pic", codemodel="default"
    )
    return llvm, machine, f"{cpu} {features}", wide


@cache
def engine():
    llvm, *_ = host()
    return llvm.create_lljit_compiler()


def unpack(parts: dict[str, bytes]) -> CpuProgram:
    """The inverse of `CpuProgram.pack`. Raises KeyError or ValueError where the parts are not a
    program, CompileError for another processor's.
    """
    return CpuProgram.from_object(parts["object"], parts["program"].decode())


# --------------------------------------------------------------------------------------------------
class CpuProgram:
    """A compiled kernel.

    object    the object file; with `metadata` (JSON data) all that `from_object` needs
    llvm      the LLVM IR as written by us, before LLVM's passes (empty after from_object)
    """

    def __init__(self, object: bytes, metadata: dict, llvm: str = ""):
        self.object, self.metadata, self.llvm = object, metadata, llvm
        self._careful, self._lock = None, threading.Lock()

    @classmethod
    def from_object(cls, object: bytes, metadata: dict | str) -> CpuProgram:
        """A program from a cache. Raises CompileError where it was made for another processor."""
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        if metadata["processor"] != host()[2]:
            raise CompileError(
                "the cached object is for another processor; compile the kernel again"
            )
        return cls(object, metadata)

    def pack(self) -> dict[str, bytes]:
        """As named bytes for a disk cache; `unpack` reads them."""
        return {"object": self.object, "program": json.dumps(self.metadata).encode()}

    @cached_property
    def _entry(self):
        llvm, *_ = host()
        library = (
            llvm.JITLibraryBuilder()
            .add_object_img(self.object)
            .add_current_process()
            .export_symbol("run")
            .link(engine(), f"tkc{next(_names)}")
        )
        self._library = library
        return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(library["run"])

    # ----------------------------------------------------------------------------------------------
    def bind(self, arguments: Sequence) -> tuple[np.ndarray, list]:
        """The words the kernel reads, and what must stay alive meanwhile. Raises LaunchError for
        arguments that do not fit.
        """
        wanted, words, alive = self.metadata["arguments"], [], []
        if len(arguments) != len(wanted):
            raise LaunchError(
                f"@{self.metadata['name']} takes {len(wanted)} arguments, got {len(arguments)}"
            )
        for i, (want, given) in enumerate(zip(wanted, arguments, strict=False)):
            dtype = numpy_type(want["dtype"])
            if want["kind"] == "scalar":
                try:
                    with np.errstate(over="ignore", invalid="ignore"):
                        value = np.asarray(given)
                        value = (
                            np.asarray(int(value) & (1 << 64) - 1, np.uint64).astype(dtype)
                            if dtype.kind in "iu"
                            else value.astype(dtype)
                        )
                    words.append(int.from_bytes(value.tobytes().ljust(8, b"\0"), "little"))
                except (TypeError, ValueError):
                    raise LaunchError(
                        f"argument {self._name(i)} is to be a number of {want['dtype']}, got"
                        f" {type(given).__name__}"
                    ) from None
                continue
            if want["kind"] == "pointer" and isinstance(given, (int, np.integer)):
                words.append(int(given))
                continue
            if not isinstance(given, np.ndarray):
                raise LaunchError(
                    f"argument {self._name(i)} is to be a NumPy array, got {type(given).__name__}"
                )
            if given.dtype != dtype and not (dtype == np.int64 and given.dtype == np.uint64):
                raise LaunchError(
                    f"argument {self._name(i)} has elements {given.dtype}; the kernel takes"
                    f" {want['dtype']}"
                )
            alive.append(given)
            words.append(given.ctypes.data)
            if want["kind"] == "pointer":
                continue
            if given.ndim != want["rank"]:
                raise LaunchError(
                    f"argument {self._name(i)} has rank {given.ndim}; the kernel takes rank"
                    f" {want['rank']}"
                )
            if any(s % given.itemsize for s in given.strides):
                raise LaunchError(
                    f"argument {self._name(i)} has strides that are no multiple of its element;"
                    " pass a copy"
                )
            strides = [s // given.itemsize for s in given.strides]
            for what, have, fixed in (
                ("shape", given.shape, want["shape"]),
                ("strides", strides, want["strides"]),
            ):
                for axis, (x, y) in enumerate(zip(have, fixed, strict=False)):
                    if (
                        y is not None
                        and x != y
                        and not (what == "strides" and (given.shape[axis] <= 1 or not given.size))
                    ):
                        raise LaunchError(
                            f"argument {self._name(i)} has {what} {tuple(have)}; the kernel was"
                            f" compiled for {y} along axis {axis}"
                        )
            words += [*given.shape, *strides]
        return np.array([w & (1 << 64) - 1 for w in words] or [0], np.uint64), alive

    def _name(self, i: int) -> str:
        return self.metadata["arguments"][i]["name"] or str(i)

    def _overlap(self, arguments: Sequence) -> bool:
        """Does an array that is written share memory with another argument?"""
        if self.metadata["careful"]:
            return False
        spans = {
            i: np.lib.array_utils.byte_bounds(a)
            for i, a in enumerate(arguments)
            if isinstance(a, np.ndarray) and a.size
        }
        return any(
            i in spans
            and any(
                j != i and spans[i][0] < high and low < spans[i][1]
                for j, (low, high) in spans.items()
            )
            for i in self.metadata["written"]
        )

    # ----------------------------------------------------------------------------------------------
    def run(
        self, arguments: Sequence, grid: Sequence[int], threads: int | None = None, out=print
    ) -> None:
        """Run every program of `grid` (up to three axes), axis 0 fastest, on `threads` threads
        (default: all processors); writes arrays in place.

        Raises LaunchError for arguments that do not fit, TrapError where an assert of the kernel
        fails.
        """
        grid = tuple(int(n) for n in ((grid,) if isinstance(grid, int) else grid))
        if not 1 <= len(grid) <= 3 or any(n < 0 for n in grid):
            raise LaunchError(f"a grid has one to three extents of at least 0, got {grid}")
        words, alive = self.bind(arguments)
        for i in self.metadata["written"]:
            if isinstance(arguments[i], np.ndarray) and not arguments[i].flags.writeable:
                raise LaunchError(f"argument {self._name(i)} is read-only but the kernel writes it")
        total = 1
        for n in grid:
            total *= n
        if total == 0:
            return
        if total >= 1 << 31:
            raise LaunchError(f"a grid of {total} programs; at most {(1 << 31) - 1} run")
        if self._overlap(arguments):
            return self.careful.run(arguments, grid, threads, out)
        count = min(threads or _processors(), total)
        context = np.zeros(len(CONTEXT), np.int64)
        context[1] = total
        context[2] = 1 if self.metadata["waits"] else max(1, total // (8 * count))
        callback = (
            PRINT(lambda number, table: self._print(number, table, out))
            if self.metadata["messages"]
            else None
        )
        if callback:
            context[4] = ctypes.cast(callback, ctypes.c_void_p).value
        extents = np.array([*grid, 1, 1][:3], np.int32)
        entry, pointers = self._entry, (words.ctypes.data, extents.ctypes.data, context.ctypes.data)

        def work():
            entry(pointers[0], pointers[1], _workspace(self.metadata["workspace"]), pointers[2])

        if count == 1:
            work()
        else:
            others = [_pool(count - 1).submit(work) for _ in range(count - 1)]
            work()
            for other in others:
                other.result()
        if context[3]:
            self._fail(self.metadata["messages"][context[3] - 1], int(context[6]), grid)
        del alive

    @property
    def careful(self) -> CpuProgram:
        """The same kernel compiled for arguments that overlap."""
        with self._lock:
            if self._careful is None:
                from tkc.codegen.cpu.program import compile
                from tkc.ir.text import parse

                self._careful = compile(parse(self.metadata["kernel"]), careful=True)
            return self._careful

    def _fail(self, message: dict, number: int, grid: Sequence[int]) -> None:
        """Raises TrapError for an assertion that did not hold in a program."""
        x, y, _ = (*grid, 1, 1)[:3]
        raise TrapError(
            self.metadata["name"],
            message["text"],
            Location(*message["place"]) if message["place"] else None,
            (number % x, number // x % y, number // x // y),
            None,
        )

    def _print(self, number: int, table: int, out) -> None:
        from tkc.ir.dtypes import BY_IR

        message = self.metadata["messages"][number]
        first, *literals = message["text"]
        names = {str(d.ir): d for d in BY_IR.values()}
        addresses, values = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p)), []
        for i, (element, shape, is_tile) in enumerate(message["types"]):
            dtype = names[element].numpy if element in names else np.dtype(np.int64)
            count = int(np.prod(shape))
            x = np.frombuffer(
                ctypes.string_at(addresses[i], count * dtype.itemsize), dtype
            ).reshape(shape)
            values.append(x if is_tile else x[0])
        out(
            first
            + "".join(f"{value}{literal}" for value, literal in zip(values, literals, strict=False))
        )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_local = threading.local()


def _workspace(nbytes: int) -> int:
    """This thread's workspace: 64-byte aligned, grown on demand."""
    if getattr(_local, "bytes", 0) < nbytes + 64 or not hasattr(_local, "buffer"):
        _local.buffer, _local.bytes = np.zeros(nbytes + 4096, np.uint8), nbytes + 4096
    return -(-_local.buffer.ctypes.data // 64) * 64


_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(n: int) -> ThreadPoolExecutor:
    if n not in _pools:
        _pools[n] = ThreadPoolExecutor(n, "tkc")
    return _pools[n]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # a child has none of its parent's threads
