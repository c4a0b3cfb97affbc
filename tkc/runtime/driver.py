"""The CUDA driver through cuda-python, which is imported when a GPU is first used and not before.

Everything lives in the device's primary context, which torch, cupy and jax share. A failed call
raises DeviceError; after an error that kills the context (an illegal address, a trap) every later
call raises the same, for only a new process recovers.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from tkc.devices import Observed, nearest
from tkc.errors import DeviceError, Location, TrapError
from tkc.ir.interface import RECORD, Site
from tkc.ir.target import TARGETS

STICKY = {
    214,
    220,
    226,
    700,
    702,
    708,
    709,
    710,
    714,
    715,
    716,
    717,
    718,
    719,
    721,
}  # the context is of no use after these
LOG = 8192  # bytes of the driver's own messages
_api: Any = None  # cuda.bindings.driver, or what a test puts in its place
poison: str | None = None  # why the context is dead, once it is
generation = ctypes.c_uint64(
    0
    # changes whenever a launch that was remembered may no longer be made: a workspace was freed,
    # the
    # context died
)
_contexts: dict[int, Any] = {}  # device -> primary context
_records: list[
    tuple[int, str, tuple[Site, ...]]
] = []  # of kernels with checks: address, kernel, what each number of a site says
_lock = threading.Lock()


def api() -> Any:
    """The driver's bindings, initialised. Raises DeviceError saying what is missing."""
    global _api
    if _api is None:
        try:
            from cuda.bindings import driver
        except ImportError:
            raise DeviceError(
                "an array is on a GPU, and cuda-python is not installed; pip install cuda-bindings,"
                " or pass arrays in host memory"
            ) from None
        try:
            (error,) = driver.cuInit(0)
        except RuntimeError:
            raise DeviceError(
                "the CUDA driver could not be loaded; install NVIDIA's driver, or pass arrays in"
                " host memory"
            ) from None
        if int(error):
            raise DeviceError(
                f"the CUDA driver cannot be used: {_named(driver, error)}; see `tkc doctor`, or"
                " pass arrays in host memory"
            )
        _api = driver
    if poison:
        raise DeviceError(poison)
    return _api


def available() -> bool:
    """Whether there is a GPU that can be used. Never raises."""
    try:
        return count() > 0
    except DeviceError:
        return False


def check(result: tuple, what: str) -> Any:
    """The values of a driver call; raises DeviceError saying what was attempted."""
    error, *values = result
    if int(error):
        raise failure(int(error), what)
    return values[0] if len(values) == 1 else tuple(values) if values else None


def failure(code: int, what: str) -> DeviceError:
    """The exception of a failed call; a sticky one poisons the runtime, and says which check of
    TKC_DEBUG trapped, if one did.
    """
    global poison
    if code in STICKY:
        generation.value += 1
    message = f"{what} failed: {_named(_api, code)}"
    if code in STICKY and (trap := trapped()) is not None:
        poison = f"{str(trap).splitlines()[0]}; the GPU's context is dead until the process ends"
        return trap
    if code in STICKY:
        poison = (
            f"{message}; the GPU's context is dead until the process ends. Restart, and run the"
            " kernel with TKC_INTERPRET=1 on host arrays to find the cause"
        )
        return DeviceError(poison)
    return DeviceError(message)


def trapped() -> TrapError | None:
    """What a check found, from the records in host memory, which outlives the context."""
    for address, kernel, sites in _records:
        raw = ctypes.string_at(address, RECORD["bytes"])
        if not struct.unpack_from("<I", raw, RECORD["written"])[0]:
            continue
        site = sites[struct.unpack_from("<I", raw, RECORD["site"])[0]]
        x, y, z, thread = struct.unpack_from("<4I", raw, RECORD["thread"])
        place = Location(site.file, site.line, site.column) if site.file else None
        return TrapError(
            kernel,
            site.text.format(*struct.unpack_from("<2q", raw, RECORD["numbers"])),
            place,
            (x, y, z),
            thread,
        )
    return None


def _named(driver, error) -> str:
    try:
        error = driver.CUresult(int(error))
        name, text = (
            (driver.cuGetErrorName(error)[1] or b"").decode(),
            (driver.cuGetErrorString(error)[1] or b"").decode(),
        )
        return f"{name} ({int(error)}: {text})" if name else f"error {int(error)}"
    except Exception:
        return f"error {int(error)}"  # a driver too old for this error, or a test's stand-in


def count() -> int:
    return check(api().cuDeviceGetCount(), "counting GPUs")


def attribute(device: int, name: str) -> int:
    """A device attribute by the end of its name, e.g. "MULTIPROCESSOR_COUNT"."""
    return _attribute(id(api()), device, name)


@cache
def _attribute(_, device: int, name: str) -> int:
    d = api()
    return int(
        check(
            d.cuDeviceGetAttribute(
                getattr(d.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"),
                check(d.cuDeviceGet(device), f"finding cuda:{device}"),
            ),
            f"asking for {name}",
        )
    )


def capability(device: int) -> int:
    return 10 * attribute(device, "COMPUTE_CAPABILITY_MAJOR") + attribute(
        device, "COMPUTE_CAPABILITY_MINOR"
    )


def name(device: int) -> str:
    d = api()
    return (
        check(
            d.cuDeviceGetName(100, check(d.cuDeviceGet(device), f"finding cuda:{device}")),
            "asking for the device's name",
        )
        .split(b"\0")[0]
        .decode()
    )


def target_of(device: int) -> str:
    """The target to compile for: the exact architecture, else the newest older one whose PTX the
    driver can translate.
    """
    have = capability(device)
    fitting = [
        t
        for t in TARGETS.values()
        if t.capability == have or t.capability < have and not t.name.endswith("a")
    ]
    if not fitting:
        raise DeviceError(
            f"cuda:{device} is sm_{have}; tkc compiles for {', '.join(TARGETS)} and newer"
        )
    return max(fitting, key=lambda t: t.capability).name


def observed(device: int) -> Observed:
    """What the driver says of a device."""
    clock, width = (
        attribute(device, "MEMORY_CLOCK_RATE"),
        attribute(device, "GLOBAL_MEMORY_BUS_WIDTH"),
    )
    return Observed(
        name(device),
        target_of(device),
        attribute(device, "MULTIPROCESSOR_COUNT"),
        attribute(device, "CLOCK_RATE") / 1e6,
        2 * clock * width / 8e6,
        attribute(device, "L2_CACHE_SIZE"),
        attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


def planned_for(device: int) -> str:
    """The target to compile for with the device that code is planned for: "sm_90a", or where this
    is not the architecture's usual one, "sm_90a:h100_pcie".
    """
    at_hand = observed(device)
    architecture, found = at_hand.architecture, nearest(at_hand)
    return architecture if found == TARGETS[architecture].usual else f"{architecture}:{found}"


def memory(device: int) -> int:
    """Bytes of a device's memory."""
    d = api()
    handle = check(d.cuDeviceGet(device), f"finding cuda:{device}")
    return int(check(d.cuDeviceTotalMem(handle), "asking for the size of memory"))


def device_of(pointer: int) -> int:
    """The device that an address belongs to."""
    d = api()
    return int(
        check(
            d.cuPointerGetAttribute(
                d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer
            ),
            "asking whose an address is",
        )
    )


@contextmanager
def context(device: int) -> Iterator[None]:
    """Within it the device's primary context is current. A thread that had none keeps it; one that
    had another gets that back.
    """
    d = api()
    with _lock:
        if device not in _contexts:
            _contexts[device] = check(
                d.cuDevicePrimaryCtxRetain(check(d.cuDeviceGet(device), f"finding cuda:{device}")),
                f"using cuda:{device}",
            )
    ours, before = (
        _contexts[device],
        int(check(d.cuCtxGetCurrent(), "asking for the current context")),
    )
    if before in (0, int(ours)):
        if not before:
            check(d.cuCtxSetCurrent(ours), f"switching to cuda:{device}")
        yield ours
        return
    check(d.cuCtxPushCurrent(ours), f"switching to cuda:{device}")
    try:
        yield ours
    finally:
        d.cuCtxPopCurrent()


# --------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Function:
    """A loaded kernel. Its module stays loaded as long as the process: launches remember the
    handle.
    """

    handle: Any
    module: Any
    device: int
    entry: str
    registers: int = 0
    log: str = ""
    record: int = 0  # the address where a check leaves what it found, as the kernel sees it
    pid: int = field(default_factory=os.getpid)
    # (stream, bytes) -> zeroed workspace, the longest unused first
    scratch: dict[Any, int] = field(default_factory=dict)
    graphed: set = field(default_factory=set)  # workspaces that a captured graph holds
    epoch: int = 0  # how many times one was freed


def load(
    image: bytes, entry: str, device: int, shared_bytes: int = 0, cluster: int = 1
) -> Function:
    """Loads PTX text or a cubin and finds its entry; what the driver makes of text names source
    lines, as ptxas does. Raises DeviceError with the driver's own log.
    """
    d = api()
    with context(device):
        log, o = bytes(LOG), d.CUjit_option  # the driver writes into it
        keys, values = (
            [
                o.CU_JIT_ERROR_LOG_BUFFER,
                o.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                o.CU_JIT_GENERATE_LINE_INFO,
            ],
            [log, LOG, 1],
        )
        error, *module = d.cuModuleLoadDataEx(
            image if image.endswith(b"\0") or image[:4] == b"\x7fELF" else image + b"\0",
            len(keys),
            keys,
            values,
        )
        if int(error):
            said = log.split(b"\0")[0].decode(errors="replace").strip().splitlines()
            raise failure(
                int(error), f"loading {entry} on cuda:{device}{f' ({said[0]})' if said else ''}"
            )
        handle = check(
            d.cuModuleGetFunction(module[0], entry.encode()), f"finding {entry} in its module"
        )
        f = d.CUfunction_attribute
        if shared_bytes > 48 << 10:
            check(
                d.cuFuncSetAttribute(
                    handle, f.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes
                ),
                f"asking {shared_bytes} bytes of shared memory for {entry}",
            )
        if cluster > 8:
            check(
                d.cuFuncSetAttribute(
                    handle, f.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1
                ),
                f"asking a cluster of {cluster} for {entry}",
            )
        return Function(
            handle,
            module[0],
            device,
            entry,
            int(
                check(
                    d.cuFuncGetAttribute(f.CU_FUNC_ATTRIBUTE_NUM_REGS, handle),
                    f"asking the registers of {entry}",
                )
            ),
        )


def config_of(
    grid: Sequence[int],
    threads: int,
    shared_bytes: int,
    stream: int,
    cluster: tuple[int, int],
    dependent: bool = False,
) -> Any:
    """A CUlaunchConfig with the attributes of a cluster and of a dependent launch."""
    d = api()
    c = d.CUlaunchConfig()
    c.gridDimX, c.gridDimY, c.gridDimZ = grid
    c.blockDimX, c.blockDimY, c.blockDimZ = threads, 1, 1
    c.sharedMemBytes, c.hStream = shared_bytes, d.CUstream(stream)
    found = []
    if cluster != (1, 1):
        a = d.CUlaunchAttribute()
        a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z = *cluster, 1
        found.append(a)
    if dependent:
        a = d.CUlaunchAttribute()
        a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        a.value.programmaticStreamSerializationAllowed = 1
        found.append(a)
    if found:
        c.attrs, c.numAttrs = found, len(found)
    return c


def resident(function: Function, threads: int, shared_bytes: int, cluster: tuple[int, int]) -> int:
    """How many blocks are on the device at once (a whole number of clusters)."""
    d, size = api(), cluster[0] * cluster[1]
    with context(function.device):
        if size == 1:
            each = check(
                d.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    function.handle, threads, shared_bytes
                ),
                f"asking how many blocks of {function.entry} fit",
            )
            return int(each) * attribute(function.device, "MULTIPROCESSOR_COUNT")
        c = config_of((*cluster, 1), threads, shared_bytes, 0, cluster)
        return (
            int(
                check(
                    d.cuOccupancyMaxActiveClusters(function.handle, c),
                    f"asking how many clusters of {function.entry} fit",
                )
            )
            * size
        )


# numbers of CUlaunchAttributeID
COOPERATIVE, CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 4, 6


def prepared_call(
    function: Function,
    grid: Sequence[int],
    threads: int,
    shared_bytes: int,
    stream: int,
    cluster: tuple[int, int],
    parameters: int,
    together: bool = False,
    dependent: bool = False,
) -> Callable[[], int]:
    """A function of nothing that asks the driver for this launch and gives its error code (0:
    none). `parameters`: the address of the table of addresses. together: the blocks, of no cluster,
    begin when there is room for all. dependent: else they may begin before the launch before them
    in the stream has ended.

    With the real driver it is cuLaunchKernelEx itself through ctypes, four arguments that are
    converted once: Python's part of a launch is then that one call.
    """
    entry = launch_entry()
    if entry is not None:
        config = _Config(*grid, threads, 1, 1, shared_bytes, stream or None, None, 0)
        found = [_Attribute(COOPERATIVE, 0, 1)] if together else []
        if cluster != (1, 1) and not together:
            found.append(_Attribute(CLUSTER_DIMENSION, 0, *cluster, 1))
        if dependent and not together:
            found.append(_Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1))
        listed = (_Attribute * len(found))(*found)
        if found:
            config.attributes, config.count = ctypes.addressof(listed), len(found)
        call = partial(
            entry,
            ctypes.c_void_p(ctypes.addressof(config)),
            ctypes.c_void_p(int(function.handle)),
            ctypes.c_void_p(parameters),
            None,
        )
        attributes: Any = call
        attributes.kept = config, listed  # live as long as the call does
        # the same for machine code
        attributes.native = (
            ctypes.cast(entry, ctypes.c_void_p).value,
            ctypes.addressof(config),
            int(function.handle),
            parameters,
        )
        return call
    d = api()
    if together:
        return lambda: d.cuLaunchCooperativeKernel(
            function.handle, *grid, threads, 1, 1, shared_bytes, stream, parameters
        )[0]
    if cluster == (1, 1) and not dependent:
        launch, (x, y, z) = d.cuLaunchKernel, grid
        return lambda: launch(
            function.handle, x, y, z, threads, 1, 1, shared_bytes, stream, parameters, 0
        )[0]
    launch = d.cuLaunchKernelEx
    made = config_of(grid, threads, shared_bytes, stream, cluster, dependent)
    return lambda: launch(made, function.handle, parameters, 0)[0]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((n, ctypes.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute whose value is the cluster's extents, or one number."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("x", ctypes.c_uint),
        ("y", ctypes.c_uint),
        ("z", ctypes.c_uint),
        ("rest", ctypes.c_uint * 13),
    ]


def launch_entry() -> Any:
    """cuLaunchKernelEx of the loaded driver library, None where another driver stands in for it or
    it is older than the function.
    """
    return _entry() if getattr(api(), "__name__", "") == "cuda.bindings.driver" else None


@cache
def _entry():
    try:
        if sys.platform == "win32":
            entry = ctypes.WinDLL("nvcuda.dll").cuLaunchKernelEx
        else:
            entry = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    entry.restype = ctypes.c_int
    return entry


WORKSPACES = 16  # of one kernel: one for each stream and size, the longest unused freed first


def workspace(function: Function, stream: int, size: int) -> int:
    """The address of `size` zeroed bytes; a kernel leaves them zero, so launches in one stream
    share them.

    While the stream is captured into a graph the memory is allocated and cleared outside of the
    capture, and is never freed: the graph has its address.
    """
    key, held = (stream, size), function.scratch
    if key in held:
        held[key] = held.pop(key)  # the last used comes last
        return held[key]
    d = api()
    with context(function.device):
        captured = stream and int(
            check(d.cuStreamIsCapturing(stream), "asking whether a stream is captured")
        )
        free = [k for k in held if k not in function.graphed]
        if len(free) >= WORKSPACES and not captured:
            check(d.cuCtxSynchronize(), "waiting for a workspace to be unused")
            check(d.cuMemFree(held.pop(free[0])), "freeing a workspace")
            function.epoch += 1
            generation.value += 1
        with outside_of_captures():
            pointer = int(
                check(
                    d.cuMemAlloc(size),
                    f"allocating a workspace of {size} bytes for {function.entry}",
                )
            )
            side = check(
                d.cuStreamCreate(1), "making a stream"
            )  # 1: it does not wait for the default stream, which may be captured
            check(d.cuMemsetD8Async(pointer, 0, size, side), "clearing a workspace")
            check(
                d.cuStreamSynchronize(side), "clearing a workspace"
            )  # before a stream that does not wait for this one
            check(d.cuStreamDestroy(side), "giving back a stream")
    if captured:
        function.graphed.add(key)
    held[key] = pointer
    return pointer


def record(function: Function, sites: tuple[Site, ...]) -> None:
    """Room in host memory for what a check of this kernel finds."""
    d, size = api(), RECORD["bytes"]
    with context(function.device), outside_of_captures():
        address = int(
            check(
                d.cuMemHostAlloc(size, d.CU_MEMHOSTALLOC_DEVICEMAP | d.CU_MEMHOSTALLOC_PORTABLE),
                "allocating a record for checks",
            )
        )
        ctypes.memset(address, 0, size)
        function.record = int(
            check(d.cuMemHostGetDevicePointer(address, 0), "mapping a record for checks")
        )
    _records.append((address, function.entry, sites))


@contextmanager
def outside_of_captures() -> Iterator[None]:
    """Within it this thread may allocate while it captures a stream: what is allocated is no part
    of the graph.
    """
    d = api()
    before = check(
        d.cuThreadExchangeStreamCaptureMode(d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED),
        "leaving a capture",
    )
    try:
        yield
    finally:
        d.cuThreadExchangeStreamCaptureMode(before)


def finish(function: Function, stream: int, what: str) -> None:
    """Waits for a stream, unless a graph is being captured on it. Raises DeviceError, or TrapError
    where a check failed.
    """
    d = api()
    with context(function.device):
        capturing = check(d.cuStreamIsCapturing(stream), "asking whether a stream is captured")
        if not int(capturing):
            check(d.cuStreamSynchronize(stream), what)


def synchronize() -> None:
    """Waits for every device that a kernel was launched on. Raises DeviceError with what a kernel
    did wrong meanwhile.
    """
    d = api()
    for device in list(_contexts):
        with context(device):
            check(d.cuCtxSynchronize(), f"waiting for cuda:{device}")
