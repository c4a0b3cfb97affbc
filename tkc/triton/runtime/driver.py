"""`triton.runtime.driver`: what packages ask of the device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tkc.errors import DeviceError
from tkc.ir.target import target
from tkc.runtime import driver as tkc_driver

FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class GPUTarget:
    """A kind of device: "cuda" and the compute capability, as 90; or "cpu"."""

    backend: str
    arch: int | str
    warp_size: int


def is_on_gpu(value: Any) -> bool:
    """Whether an argument of a launch is an array on a GPU."""
    device = getattr(getattr(value, "base", value), "device", None)
    return getattr(device, "type", None) == "cuda" or hasattr(value, "__cuda_array_interface__")


def framework() -> Any:
    """torch, where it is installed. (It is not imported by name: tkc does without.)"""
    return sys.modules.get("torch") or import_module("torch")


class _Utils:
    """The numbers of a device."""

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        return properties(device)


def properties(device: int = 0) -> dict[str, int]:
    """Of a GPU that is there, else of an H100."""
    t = target(tkc_driver.planned_for(device) if tkc_driver.available() else "sm_90a")
    chip = t.device.chip
    return {
        "multiprocessor_count": t.multiprocessors,
        "max_shared_mem": t.shared_bytes,
        "max_num_regs": t.registers,
        "warpSize": 32,
        "sm_clock_rate": int(chip.clock * 1e6),  # kHz
        # of a bus of 8 bits that moves two words a clock
        "mem_clock_rate": int(chip.bandwidth * 1e6 / 2),
        "mem_bus_width": 8,
    }


class Driver:
    """The active driver: tkc's own. on_host: it was asked to be the CPU's; launches still run
    where their arrays are.
    """

    utils = _Utils()
    on_host = False

    @staticmethod
    def is_active() -> bool:
        """Whether there is a device of this kind."""
        return tkc_driver.available()

    def get_current_device(self) -> int:
        torch = framework()
        return torch.cuda.current_device() if torch.cuda.is_available() else 0

    def get_current_stream(self, device: int | None = None) -> int:
        torch = framework()
        return torch.cuda.current_stream(device).cuda_stream if torch.cuda.is_available() else 0

    def get_current_target(self) -> GPUTarget:
        if tkc_driver.available() and not self.on_host:
            return GPUTarget("cuda", tkc_driver.capability(self.get_current_device()), 32)
        return GPUTarget("cpu", 0, 0)

    def get_active_torch_device(self) -> Any:
        torch = framework()
        if torch.cuda.is_available() and not self.on_host:
            return torch.device("cuda", self.get_current_device())
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        torch = framework()
        return torch.cuda if torch.cuda.is_available() and not self.on_host else torch.cpu

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        arch = int(self.get_current_target().arch)  # of no GPU: (0, 0)
        return arch // 10, arch % 10

    def set_current_device(self, device: int) -> None:
        framework().cuda.set_device(device)

    def get_benchmarker(self) -> Callable:
        return import_module("tkc.triton.testing").do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """Bytes whose writing replaces what the L2 cache holds."""
        torch = framework()
        return torch.empty(FLUSH_BYTES, dtype=torch.int8, device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


class OfGPU(Driver):
    """Made active: the driver names the GPU again."""


class OfHost(Driver):
    """Made active: the driver names the CPU, as that of Triton's CPU back end does."""

    on_host = True

    @staticmethod
    def is_active() -> bool:
        return True


active = Driver()


def set_active(other: Any) -> None:
    """Takes one of tkc's drivers: of the CPU, or of the GPU. Raises DeviceError for others, and
    where no GPU is there.
    """
    if not isinstance(other, Driver):
        raise DeviceError("tkc launches through its own driver; no other one can be made active")
    if not other.is_active():
        raise DeviceError("no GPU is there to make active; the driver stays the CPU's")
    active.on_host = other.on_host


def set_active_to_cpu() -> None:
    """The driver names the CPU from now on."""
    set_active(OfHost())


def set_active_to_gpu() -> None:
    """The driver names the GPU again, where there is one. Raises DeviceError where not."""
    set_active(OfGPU())


def reset_active() -> None:
    """The driver names what is there again."""
    active.on_host = False


# Of Triton an object in the module of its name; importing that module, under whichever name, must
# not hide it.
driver: Any = sys.modules[__name__]
