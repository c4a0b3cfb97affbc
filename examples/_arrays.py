"""What the examples share: random arrays on either device, outputs that show what was not written,
and errors against float64.
"""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np

# that NumPy has from ml_dtypes, and torch under the same names
SHORT = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
)


def on_device(array: np.ndarray, device: str):
    """The array itself on the CPU; a torch tensor with the same values (or else a cupy array) on a
    GPU.
    """
    if device == "cpu":
        return array
    try:
        import torch
    except ImportError:
        import cupy

        return cupy.asarray(array)
    if array.dtype.name in SHORT:
        return (
            torch.from_numpy(array.view(f"i{array.itemsize}"))
            .cuda()
            .view(getattr(torch, array.dtype.name))
        )
    return torch.from_numpy(array).cuda()


def on_host(array) -> np.ndarray:
    """Back to NumPy; a tensor of short floats becomes float32, which holds the same values."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "get"):
        return array.get()
    return (
        (array.float() if str(array.dtype).removeprefix("torch.") in SHORT else array).cpu().numpy()
    )


def normal(shape, dtype: str, seed: int = 0) -> np.ndarray:
    """Normally distributed numbers, in host memory."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(numpy_type(dtype))


def blank(shape, dtype: str, device: str):
    """An output full of NaN: an element that nobody writes stays one."""
    return on_device(np.full(shape, np.nan, numpy_type(dtype)), device)


def numpy_type(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def largest_error(out, reference: np.ndarray) -> float:
    """max |out - reference| / max |reference|; infinite if `out` has a NaN."""
    difference = np.abs(on_host(out).astype(np.float64) - reference).max(initial=0)
    return (
        float(difference / (np.abs(reference).max(initial=0) or 1))
        if np.isfinite(difference)
        else float("inf")
    )


def main(cases) -> None:
    """`python examples/<name>.py`: run the cases where this machine can, one line each."""
    from tkc.runtime import driver

    device, wait = ("cuda", driver.synchronize) if driver.available() else ("cpu", lambda: None)
    for case in cases(device):
        case["run"]()  # compiles
        wait()
        start = time.perf_counter()
        case["run"]()
        wait()
        ms, error, shape = (
            1e3 * (time.perf_counter() - start),
            case["error"](),
            " x ".join(map(str, case["shape"])),
        )
        print(
            f"{case['name']:16} {shape:>20} {case['dtype']:9} {device}  {ms:8.3f} ms  error"
            f" {error:.1e} {'ok' if error <= case['tolerance'] else 'WRONG'}"
        )
