"""`triton.backends`: tkc on GPUs and in host memory, as packages (Inductor) ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from tkc.runtime.toolchain import package_hash
from tkc.triton.runtime.driver import Driver, GPUTarget, OfGPU, OfHost

FLOAT8 = ("fp8e4nv", "fp8e5")


class Compiler:
    """What packages ask of the compiler of a target; it compiles through `triton.compile`."""

    binary_ext = "cubin"

    def __init__(self, target: GPUTarget):
        self.target = target

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend in ("cuda", "cpu")

    def hash(self) -> str:
        """What code depends on besides its source."""
        return sha256(f"{package_hash()} {self.target}".encode()).hexdigest()

    def parse_options(self, given: dict[str, Any]) -> SimpleNamespace:
        """Options of a compilation with their defaults."""
        own = {
            "num_warps": 4,
            "num_stages": 3,
            "num_ctas": 1,
            "maxnreg": None,
            "debug": False,
            "extern_libs": (),
            "supported_fp8_dtypes": FLOAT8,
            "default_dot_input_precision": "tf32",
            "arch": self.target.arch,
        }
        return SimpleNamespace(**own | given)


@dataclass(frozen=True)
class Backend:
    """A kind of device: what compiles for it, and its driver."""

    compiler: type[Compiler]
    driver: type[Driver]


backends: dict[str, Backend] = {
    "nvidia": Backend(Compiler, OfGPU),
    "cpu": Backend(Compiler, OfHost),
}
