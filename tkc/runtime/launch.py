"""From an Interface and arguments to a launch: checks that need no driver, the packed parameters,
the physical grid.

    launch(interface, function, arguments, grid, stream)      once, from arrays and numbers
    Launch(…)
            the same bound: calling it launches again
`arguments` are those the kernel takes at run time, in the order of its signature (compile-time
values left out); `Parameter.argument` numbers them so.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tkc.errors import DeviceError, LaunchError, MapError
from tkc.ir.interface import UNBOUNDED, Interface, Parameter
from tkc.ir.target import TARGETS, Target
from tkc.runtime import driver, tensor_maps
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.specialize import Constant, ScalarInfo, argument

if TYPE_CHECKING:
    from tkc.compiler import Compiled

FORMATS = {
    ("u", 8): "Q",
    ("s", 8): "q",
    ("b", 8): "Q",
    ("u", 4): "I",
    ("s", 4): "i",
    ("b", 4): "I",
    ("u", 2): "H",
    ("s", 2): "h",
    ("b", 2): "H",
    ("u", 1): "B",
    ("s", 1): "b",
    ("b", 1): "B",
}
FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
MAX_ENCODED = 1024  # tensor maps remembered
MAX_STREAMS = 64  # streams that one launch is bound to

_encoded: dict[tensor_maps.TensorMap, bytes] = {}


def launch(
    interface: Interface,
    function: driver.Function,
    arguments: Sequence,
    grid: Sequence[int],
    stream: int = 0,
) -> None:
    """Launches once. Raises LaunchError before the driver is called, DeviceError after."""
    infos = [
        argument(a, f"argument {i} of {interface.entry}", False) for i, a in enumerate(arguments)
    ]
    # 1 is an ordinary number here
    infos = [ScalarInfo(i.value, "int32") if isinstance(i, Constant) else i for i in infos]
    x, y, z = (*grid, 1, 1)[:3]
    Launch(
        interface,
        function,
        [str(i) for i in range(len(infos))],
        infos,
        (x, y, z),
        lambda: stream,
        interface.entry,
    )()


def load(compiled: Compiled, device: int) -> driver.Function:
    """Loads a compiled kernel: the cubin of ptxas where there is one (so that checks, timings and
    resources are of one code), else the PTX text.
    """
    from tkc.codegen.ptx.ptxas import find

    i = compiled.interface
    assert i is not None and compiled.ptx is not None  # a GPU's code has both
    images: list[bytes] = [compiled.ptx.encode()]
    if (compiled.image or find("ptxas")) and driver.capability(device) == TARGETS[
        compiled.target
    ].capability:
        images.insert(0, compiled.image or cubin(compiled))
    function = None
    for image in images[:-1]:
        try:
            function = driver.load(image, i.entry, device, i.shared_bytes, math.prod(i.cluster))
        except DeviceError:
            if driver.poison:
                raise  # a driver older than ptxas: it translates the text itself
    function = function or driver.load(
        images[-1], i.entry, device, i.shared_bytes, math.prod(i.cluster)
    )
    if i.sites:
        driver.record(function, i.sites)
    return function


def cubin(compiled: Compiled) -> bytes:
    """The machine code that ptxas makes of a compiled kernel, from the disk cache where it has been
    made before. Raises CompileError without ptxas.
    """
    from tkc.codegen.ptx.ptxas import require, version
    from tkc.runtime import cache
    from tkc.runtime.toolchain import digest

    assert compiled.ptx is not None
    disk = cache.disk()
    key = digest(
        [
            ("cubin", compiled.ptx.encode()),
            ("target", compiled.target.encode()),
            ("ptxas", version(require("ptxas")).encode()),
        ]
    )
    found = disk.get(key) if disk else None
    made = found["cubin"] if found else compiled.resources.cubin
    if disk and not found:
        disk.put(key, {"cubin": made})
    return made


class Launch:
    """A launch with its arguments packed. Everything that can be checked was; calling it calls
    the driver and nothing else.

    For each stream there is one prepared call of the driver (`calls`), its parameters and
    configuration beside it in memory (`kept`).
    """

    __slots__ = (
        "interface",
        "function",
        "name",
        "arguments",
        "stream",
        "grid",
        "calls",
        "kept",
        "varies",
        "epoch",
    )
    reusable = True

    def __init__(
        self,
        interface: Interface,
        function: driver.Function,
        names: Sequence[str],
        infos: Sequence,
        grid: tuple[int, int, int],
        stream: Callable[[], int],
        kernel: str,
    ):
        check_arguments(interface, names, infos, kernel)
        check_grid(interface, function, grid, kernel)
        self.interface, self.function, self.name, self.stream = interface, function, kernel, stream
        self.arguments = (
            tuple(names),
            [_without_owner(i) if isinstance(i, ArrayInfo) else i for i in infos],
            grid,
        )  # keeps no memory alive
        self.grid = physical_grid(interface, function, grid) if math.prod(grid) else (0, 0, 0)
        self.varies = any(p.kind == "workspace" for p in interface.parameters)  # with the stream
        self.calls: dict[int, Callable[[], int]] = {}
        self.epoch = function.epoch
        # by stream; None: for every stream
        self.kept: dict[int | None, Packed] = {}
        if self.grid[0] and self.varies:
            check_maps(interface, names, infos, kernel)
        elif self.grid[0]:
            self.kept[None] = self._pack(0)

    def __call__(self) -> None:
        if driver.poison is not None:
            raise DeviceError(driver.poison)
        stream = self.stream()
        if self.epoch != self.function.epoch:
            self._forget()
        call = self.calls.get(stream)
        if call is None:
            if not self.grid[0]:
                return  # an empty grid: nothing to do
            call = self._prepared(stream)
        error = call()
        if error:
            self._failed(error, call)

    def _prepared(self, stream: int) -> Callable[[], int]:
        """The driver's call on a stream, with everything bound."""
        if len(self.calls) >= MAX_STREAMS:
            self._forget()
        packed, i = self._pack(stream) if self.varies else self.kept[None], self.interface
        if self.epoch != self.function.epoch:
            self._forget()  # packing freed a workspace
        self.kept[stream] = packed
        call = self.calls[stream] = driver.prepared_call(
            self.function,
            self.grid,
            i.threads,
            i.shared_bytes,
            stream,
            i.cluster,
            packed.address,
            i.together,
            i.dependent,
        )
        return call

    def _forget(self) -> None:
        """Drops what is bound to streams: workspaces were freed, or there are too many."""
        self.calls = {}
        self.kept = {k: v for k, v in self.kept.items() if k is None}
        self.epoch = self.function.epoch

    def _pack(self, stream: int) -> Packed:
        return pack(self.interface, self.function, *self.arguments, self.name, stream)

    def _failed(self, error, call: Callable[[], int]) -> None:
        """A call from a thread on which another context, or none, is current is made again;
        anything else is raised.
        """
        if os.getpid() != self.function.pid:
            raise DeviceError(
                f"{self.name} was loaded before this process was forked; start workers with the"
                " 'spawn' method"
            )
        if int(error) in (201, 400, 709):
            with driver.context(self.function.device):
                error = call()
            if not error:
                return
        names, infos, grid = self.arguments
        shown = ", ".join(
            f"{n}={f'{i.dtype}{list(i.shape)}' if isinstance(i, ArrayInfo) else i.value}"
            for n, i in zip(names, infos, strict=False)
        )
        raise driver.failure(int(error), f"launching {self.name} on grid {grid} with {shown}")


class CheckedLaunch(Launch):
    """The launch of a kernel with the checks of TKC_DEBUG: it waits for the kernel to end, and
    raises TrapError where a check failed.
    """

    __slots__ = ()

    def __call__(self) -> None:
        super().__call__()
        if self.grid[0]:
            driver.finish(self.function, self.stream(), f"running {self.name}")


def _without_owner(i: ArrayInfo) -> ArrayInfo:
    return ArrayInfo(i.pointer, i.shape, i.strides, i.dtype, i.device, i.writeable)


# --------------------------------------------------------------------------------------------------
class Packed:
    """Parameter values in one buffer and the array of their addresses that the driver reads."""

    __slots__ = ("values", "addresses", "address", "base", "size", "places")

    def __init__(self, pieces: Sequence[bytes]):
        places, end = [], 0
        for piece in pieces:  # each at a multiple of its size; tensor maps at one of 64
            step = 64 if len(piece) == 128 else max(len(piece), 1)
            end = -(-end // step) * step
            places.append(end)
            end += len(piece)
        self.values = ctypes.create_string_buffer(end + 64)
        base = self.base = -(-ctypes.addressof(self.values) // 64) * 64
        self.size, self.places = end, places  # places: from the base
        for place, piece in zip(places, pieces, strict=False):
            ctypes.memmove(base + place, piece, len(piece))
        self.addresses = (ctypes.c_void_p * max(len(pieces), 1))(*(base + p for p in places))
        self.address = ctypes.addressof(self.addresses)


def pack(
    interface: Interface,
    function: driver.Function,
    names: Sequence[str],
    infos: Sequence,
    grid: Sequence[int],
    kernel: str,
    stream: int,
) -> Packed:
    places, total = workspaces(interface, math.prod(grid))
    scratch = driver.workspace(function, stream, total) if total else 0
    return Packed(
        [
            (
                number(p, scratch + places[i], kernel)
                if i in places
                else piece(p, function, names, infos, grid, kernel)
            )
            for i, p in enumerate(interface.parameters)
        ]
    )


def workspaces(interface: Interface, programs: int) -> tuple[dict[int, int], int]:
    """Where each workspace parameter, by number, lies in the one buffer they share, and the bytes
    of that buffer. (One of so many programs is another buffer than one of more: a counter is never
    where something else has been.)"""
    places, total = {}, 0
    for i, p in enumerate(interface.parameters):
        if p.kind == "workspace":
            places[i], total = total, total + -(-(p.bytes + p.each * programs) // 256) * 256
    return places, total


def piece(
    p: Parameter,
    function: driver.Function,
    names: Sequence[str],
    infos: Sequence,
    grid: Sequence[int],
    kernel: str,
) -> bytes:
    """The bytes of one physical parameter. Raises LaunchError for a number that does not fit."""
    what = f"argument {names[p.argument]} of {kernel}" if p.argument >= 0 else kernel
    match p.kind:
        case "map":
            return encoded(tensor_maps.describe(p, mapped_array(p, infos), what))
        case "pointer":
            return number(p, infos[p.argument].pointer, what)
        case "shape":
            extent = infos[p.argument].shape[p.axis]
            return number(
                p, min(extent, 2**31 - 1) if p.type == "s32" else extent, f"{what}: extent {p.axis}"
            )
        case "stride":
            return _stride(p, infos[p.argument].strides[p.axis], what)
        case "grid":
            return number(p, grid[p.axis], f"{what}: grid axis {p.axis}")
        case "scalar":
            return scalar(p, infos[p.argument], what)
        case "trap":
            return number(p, function.record, what)
    raise LaunchError(
        f"{kernel}: the interface has a parameter of unknown kind {p.kind!r}; it was made by"
        " another version of tkc"
    )


def _stride(p: Parameter, stride: int, what: str) -> bytes:
    """A stride; in an unsigned parameter a negative one is its two's complement."""
    return number(p, stride % (1 << 64) if p.type == "u64" else stride, f"{what}: stride {p.axis}")


def check_maps(interface: Interface, names: Sequence[str], infos: Sequence, kernel: str) -> None:
    """That there are tensor maps of the arguments. Raises MapError."""
    for p in interface.parameters:
        if p.kind == "map":
            what = f"argument {names[p.argument]} of {kernel}"
            tensor_maps.describe(p, mapped_array(p, infos), what)


def mapped_array(p: Parameter, infos: Sequence) -> ArrayInfo:
    """The array that a tensor map is of: an argument, or what the kernel makes of it."""
    given = infos[p.argument]
    if not p.shape:
        return given

    def leaf(kind: str, argument: int, axis: int) -> int:
        info = infos[argument]
        if kind == "scalar":
            return int(info.value)
        return info.shape[axis] if kind == "shape" else info.strides[axis]

    offset, shape, strides = p.array(given.shape, given.strides, leaf)
    if offset < 0 and min(shape) < UNBOUNDED:
        # of rows that lie outside of an array the copy engine reads its first address
        raise MapError(f"argument {p.argument}: an array that begins before its memory")
    pointer = given.pointer + offset * given.itemsize
    return ArrayInfo(pointer, shape, strides, given.dtype, given.device, given.writeable)


def number(p: Parameter, value: int, what: str) -> bytes:
    try:
        return struct.pack("<" + FORMATS[p.type[0], p.size], value)
    except struct.error:
        raise LaunchError(
            f"{what}: {value} does not fit the kernel's {p.type}; the kernel was compiled for"
            " smaller arguments: compile it for these"
        ) from None


def scalar(p: Parameter, info: ScalarInfo, what: str) -> bytes:
    """A number argument in the parameter's type; a bool in a byte or more."""
    value = info.value
    if p.type[0] == "f" or info.dtype in FLOATS and p.type[0] == "b":
        code = {2: "e", 4: "f", 8: "d"}[p.size]
        try:
            return struct.pack("<" + code, value)
        except OverflowError:
            return struct.pack("<" + code, math.copysign(math.inf, value))
    if info.dtype == "bfloat16" or info.dtype.startswith("float8"):
        import ml_dtypes
        import numpy as np

        return (
            np.asarray(
                value,
                getattr(ml_dtypes, {"float8_e4m3": "float8_e4m3fn"}.get(info.dtype, info.dtype)),
            )
            .tobytes()
            .ljust(p.size, b"\0")
        )
    return number(p, int(value), what)


def encoded(m: tensor_maps.TensorMap) -> bytes:
    """A tensor map's bytes; equal maps are made once."""
    found = _encoded.get(m)
    if found is None:
        if len(_encoded) >= MAX_ENCODED:
            _encoded.clear()
        found = _encoded[m] = tensor_maps.encode(m)
    return found


# --------------------------------------------------------------------------------------------------
def check_arguments(
    interface: Interface, names: Sequence[str], infos: Sequence, kernel: str
) -> None:
    """Every rule on arguments that the driver would break on or, worse, not notice. Raises
    LaunchError.
    """
    needed = max((p.argument for p in interface.parameters), default=-1) + 1
    if needed > len(infos):
        raise LaunchError(f"{kernel}: expected {needed} arguments at run time, got {len(infos)}")
    devices = {i.device for i in infos if isinstance(i, ArrayInfo)}
    if len(devices) > 1:
        raise LaunchError(
            f"{kernel}: expected every array on one device, got {sorted(devices)} (-1 is host"
            " memory); move them to one"
        )
    for i in interface.nonzero:
        if infos[i].value == 0:
            raise LaunchError(
                f"argument {names[i]} of {kernel} is the step of a range, which may not be 0; pass"
                " another number"
            )
    for p in interface.parameters:
        if p.argument < 0:
            continue
        what = f"argument {names[p.argument]} of {kernel}"
        if p.kind in ("pointer", "shape", "stride", "map"):
            _check_array(p, infos[p.argument], what)
        elif p.kind == "scalar":
            _check_number(infos[p.argument], what)


def _check_array(p: Parameter, info: ArrayInfo | ScalarInfo, what: str) -> None:
    if not isinstance(info, ArrayInfo):
        raise LaunchError(
            f"{what}: expected an array, got the number {info.value!r}; pass a tensor"
        )
    if info.device < 0:
        raise LaunchError(
            f"{what}: expected an array on a GPU, got one in host memory; move it with .cuda()"
        )
    if not info.pointer and info.span != (0, 0):
        raise LaunchError(f"{what}: its address is 0 although it has elements; was it freed?")
    if p.kind in ("shape", "stride") and not 0 <= p.axis < len(info.shape):
        raise LaunchError(
            f"{what}: expected rank of at least {p.axis + 1}, got {len(info.shape)}; reshape it"
        )
    if info.pointer % info.itemsize:
        raise LaunchError(
            f"{what}: its address {info.pointer:#x} is no multiple of its"
            f" {info.itemsize}-byte elements; pass a copy"
        )


def _check_number(info: ArrayInfo | ScalarInfo, what: str) -> None:
    if isinstance(info, ArrayInfo):
        raise LaunchError(
            f"{what}: expected a number, got an array of shape {info.shape}; pass x.item()"
        )
    if info.value is None:
        raise LaunchError(
            f"{what}: {info.dtype} stands for a number and can be compiled for, not launched; pass"
            " one"
        )


def check_grid(
    interface: Interface, function: driver.Function, grid: Sequence[int], kernel: str
) -> None:
    """The limits of grid, block, cluster and shared memory. Raises LaunchError."""
    if interface.threads > 1024:
        raise LaunchError(
            f"{kernel}: a block of {interface.threads} threads; at most 1024: use a smaller"
            " num_warps"
        )
    cluster = math.prod(interface.cluster)
    if cluster > 16:
        raise LaunchError(
            f"{kernel}: a cluster of {cluster} blocks; at most 8 are portable, 16 possible: use a"
            " smaller cluster"
        )
    if target := TARGETS.get(interface.target):
        _check_target(interface, function, target, kernel)
    if interface.persistent:
        if math.prod(grid) > MAX_GRID[0]:
            raise LaunchError(
                f"{kernel}: a grid of {tuple(grid)} has over {MAX_GRID[0]} programs; split the"
                " launch"
            )
        return
    for axis, (n, c, most) in enumerate(zip(grid, (*interface.cluster, 1), MAX_GRID, strict=False)):
        if n * c > most:
            raise LaunchError(
                f"{kernel}: grid axis {axis} is {n}{f' × cluster {c}' if c > 1 else ''}; at most"
                f" {most}: put the long axis first, or split the launch"
            )


def _check_target(
    interface: Interface, function: driver.Function, target: Target, kernel: str
) -> None:
    """Clusters, shared memory and registers of the target; that the device runs its code."""
    if math.prod(interface.cluster) > 1 and not target.clusters:
        raise LaunchError(
            f"{kernel}: {interface.target} has no clusters; compile with cluster=(1, 1)"
        )
    if interface.shared_bytes > target.shared_bytes:
        raise LaunchError(
            f"{kernel}: needs {interface.shared_bytes} bytes of shared memory,"
            f" {interface.target} has {target.shared_bytes}; use smaller tiles or num_stages"
        )
    have = driver.capability(function.device)
    if have != target.capability and (interface.target.endswith("a") or have < target.capability):
        raise LaunchError(
            f"{kernel}: was compiled for {interface.target} and cuda:{function.device} is"
            f" sm_{have}; compile it for that device"
        )
    if function.registers * interface.threads > target.registers:
        raise LaunchError(
            f"{kernel}: {function.registers} registers for each of {interface.threads} threads;"
            f" there are {target.registers}: use a smaller num_warps or maxnreg"
        )


def physical_grid(
    interface: Interface, function: driver.Function, grid: Sequence[int]
) -> tuple[int, int, int]:
    """Blocks to launch: every program its block (or cluster), or as many as are resident for a
    persistent kernel.
    """
    x, y = interface.cluster
    if not interface.persistent:
        return grid[0] * x, grid[1] * y, grid[2]
    size, wanted = x * y, interface.blocks_with_work(grid)
    return (
        max(
            size,
            min(
                wanted,
                driver.resident(
                    function, interface.threads, interface.shared_bytes, interface.cluster
                )
                // size
                * size,
            ),
        ),
        1,
        1,
    )


# --------------------------------------------------------------------------------------------------
def stream_source(values: Sequence, device: int) -> Callable[[], int]:
    """Gives the caller's current stream on a device: torch's where torch owns an array, cupy's
    where cupy does, else the default stream.
    """
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(v, torch.Tensor) for v in values):
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if raw is not None:
            return partial(raw, device)
        return lambda: torch.cuda.current_stream(device).cuda_stream
    cupy = sys.modules.get("cupy")
    if cupy is not None and any(isinstance(v, cupy.ndarray) for v in values):
        return lambda: cupy.cuda.get_current_stream().ptr
    return lambda: 0


class Waiting:
    """A launch on arrays of jax, which runs its own streams: it waits until they are computed, and
    for the kernel.
    """

    __slots__ = ("launch", "arrays")
    reusable = False  # the arrays it waits for are those of one call

    def __init__(self, launch: Callable[[], None], arrays: Sequence):
        self.launch, self.arrays = launch, arrays

    def __call__(self) -> None:
        for a in self.arrays:
            a.block_until_ready()
        self.launch()
        driver.synchronize()


def ordered(launch: Callable[[], None], values: Sequence) -> Callable[[], None]:
    """The launch itself, or Waiting where jax owns an array, or what a view shows a part of
    (`whole`).
    """
    if (jax := sys.modules.get("jax")) is None:
        return launch
    arrays = [owner for v in values if isinstance(owner := getattr(v, "whole", v), jax.Array)]
    return Waiting(launch, arrays) if arrays else launch
