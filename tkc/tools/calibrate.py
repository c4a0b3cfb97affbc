"""`tkc calibrate`: a file of tkc/devices for the GPU at hand, from the driver and from what can be
measured in less than a minute.

    clock     that it keeps up while large products run, by nvidia-smi
    memory    bytes a second of a read of memory that no cache holds
    l2        bytes a clock that all multiprocessors together read from the L2 cache

Everything else is from the driver, or from the nearest device that has a file, and says so.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

from tkc.devices import Chip, Device, Observed, Rates, nearest, resolved, written
from tkc.errors import DeviceError
from tkc.kernels.reads import multiply, read
from tkc.runtime import driver, timing

LONG_READ = 1 << 31  # bytes
CACHED_READ = 8 << 20  # that the L2 cache of every device holds
TIMES = 256  # that the cache is read
ELEMENTS = 8192  # of a program
SIDE = 4096  # of the products under which the clock is read
BLOCK = 128, 128, 64  # rows, columns and k that any tensor cores multiply at once
PRODUCTS = 1000  # between two looks at the clock
SECONDS = 3.0  # of products, and of each other measurement
FROM_DRIVER = ("multiprocessors", "clock", "bandwidth", "l2", "memory", "shared")
MEASURED = ("clock", "memory", "l2")


class _Memory:
    """An array of a GPU's memory, for launches."""

    def __init__(self, shape: tuple[int, ...], kind: str, address: int):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": kind,
            "data": (address, False),
            "version": 3,
        }


@contextmanager
def allocated(device: int, shape: tuple[int, ...], kind: str = "<f4") -> Iterator[_Memory]:
    """An array of zeros of so many elements."""
    size = int(kind[-1])
    for n in shape:
        size *= n
    d = driver.api()
    with driver.context(device):
        address = int(driver.check(d.cuMemAlloc(size), f"allocating {size} bytes to read"))
        driver.check(d.cuMemsetD8(address, 0, size), "clearing memory to read")
    try:
        yield _Memory(shape, kind, address)
    finally:
        with driver.context(device):
            driver.check(d.cuMemFree(address), "freeing what was read")


@dataclass(frozen=True)
class Measurements:
    """GHz under load, GB/s of memory, bytes a second of the L2 cache, W; None: not measured."""

    clock: float | None
    memory: float | None
    l2: float | None
    power: float | None


def measured(device: int, say: Callable[[str], None]) -> Measurements:
    """Of a GPU."""
    say("reading memory")
    memory = _bytes_a_second(device, LONG_READ, 1)
    say("reading the L2 cache")
    l2 = _bytes_a_second(device, CACHED_READ, TIMES)
    say("reading the clock under load")
    clock, power = _under_load(device)
    return Measurements(clock, memory and memory / 1e9, l2, power)


def _bytes_a_second(device: int, size: int, times: int) -> float | None:
    """Of a read of so many bytes, each so many times."""
    count = size // (4 * ELEMENTS)
    with allocated(device, (count * ELEMENTS,)) as x, allocated(device, (count,)) as out:
        launch = read.prepare(x, out, COUNT=count, TIMES=times, N=ELEMENTS, grid=(count,))
        seconds = timing.measure([launch], device, SECONDS)[0]
    return size * times / seconds if seconds else None


def _under_load(device: int) -> tuple[float | None, float | None]:
    """GHz while products run, and the limit of power; None without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None, None
    shape = (SIDE, SIDE)
    clocks, power = [], None
    with (
        allocated(device, shape, "<f2") as a,
        allocated(device, shape, "<f2") as b,
        allocated(device, shape, "<f2") as c,
    ):
        launch = products(a, b, c, SIDE)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for _ in range(PRODUCTS):
                launch()
            found = _nvidia_smi(device, "clocks.sm", "power.limit")
            with driver.context(device):
                driver.check(driver.api().cuCtxSynchronize(), "waiting for products")
            if found is not None:
                clocks.append(found[0] / 1e3)
                power = found[1]
    return (sorted(clocks)[len(clocks) // 2] if clocks else None), power


def products(a: Any, b: Any, c: Any, side: int) -> Callable[[], None]:
    """A launch of c = a b, of square matrices of 16-bit elements."""
    blocks = -(-side // BLOCK[0]), -(-side // BLOCK[1])
    return multiply.prepare(a, b, c, BM=BLOCK[0], BN=BLOCK[1], BK=BLOCK[2], grid=blocks)


def _nvidia_smi(device: int, *fields: str) -> list[float] | None:
    """Numbers that nvidia-smi knows of a GPU; None where it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, f"--id={device}"], capture_output=True, text=True, timeout=10, check=True
        )
        return [float(x) for x in done.stdout.split(",")]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


# ---- the file
# --------------------------------------------------------------------------------------------------
def described(gpu: Observed, memory: int, found: Measurements, day: str) -> tuple[str, str]:
    """(name, text) of the file for a GPU. memory: bytes; day: on which it was measured."""
    near = resolved(nearest(gpu))
    chip = _chip(gpu, memory, found.power, near.chip)
    rates = _rates(found, chip, near)
    sources = {
        "driver": f"the CUDA driver's device attributes, {day}",
        "nvidia-smi": f"nvidia-smi, {day}",
        "measured": f"tkc calibrate, {day}",
        "nearest": f"as of {near.title}",
    }
    source_of = {f"chip.{f.name}": "nearest" for f in fields(Chip)}
    source_of |= {f"rates.{f.name}": "nearest" for f in fields(Rates)}
    source_of |= {f"chip.{name}": "driver" for name in FROM_DRIVER}
    source_of |= {
        f"rates.{name}": "measured" for name in MEASURED if getattr(found, name) is not None
    }
    if found.power:
        source_of["chip.power"] = "nvidia-smi"
    name = "".join(c if c.isalnum() else "_" for c in gpu.name.lower()).strip("_")
    device = Device(
        name,
        gpu.name,
        (gpu.name,),
        gpu.architecture,
        chip,
        rates,
        near.engines,
        near.costs,
        near.assembler,
        near.attention,
        near.moving,
    )
    return name, written(device, sources, source_of, near.name)


def _chip(gpu: Observed, memory: int, power: float | None, base: Chip) -> Chip:
    """What the driver says, and the rest as of another chip."""
    return replace(
        base,
        multiprocessors=gpu.multiprocessors,
        gpcs=base.gpcs if sum(base.gpcs) == gpu.multiprocessors else (),
        clock=gpu.clock or base.clock,
        bandwidth=gpu.bandwidth or base.bandwidth,
        l2=gpu.l2 or base.l2,
        memory=memory,
        shared=gpu.shared,
        power=power or base.power,
    )


def _rates(found: Measurements, chip: Chip, near: Device) -> Rates:
    """What was measured, and the rest as of another device, in proportion."""
    clock = found.clock or near.rates.clock
    return replace(
        near.rates,
        clock=clock,
        memory=min(found.memory or near.rates.memory, chip.bandwidth),
        l2=found.l2 / (clock * 1e9) if found.l2 else near.rates.l2,
        cache=int(near.rates.cache * chip.l2 / near.chip.l2),
    )


def calibrate(device: int, folder: Path, say: Callable[[str], None]) -> Path:
    """Writes the file of a GPU into a folder. Raises DeviceError where there is no GPU, or no room
    for the file.
    """
    if device >= driver.count():
        raise DeviceError(f"there is no cuda:{device}; tkc doctor says what is missing")
    gpu, memory = driver.observed(device), driver.memory(device)
    name, text = described(gpu, memory, measured(device, say), f"{date.today()}")
    path = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as e:
        raise DeviceError(
            f"cannot write {path}: {e.strerror}; name another folder with --output"
        ) from None
    return path
