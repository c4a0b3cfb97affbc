"""What the tests of tkc.kernels share: odd shapes, errors against float64, and the launches of a
call, to be compiled for GPUs.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest

import tkc

# empty, prime, one past a block
ROWS = (
    (0, 5),
    (3, 0),
    (1, 1),
    (3, 31),
    (7, 257),
    (2, 3, 1025),
    (5, 4099),
)
FLAT = ((0,), (1,), (127,), (4097,), (3, 5, 7))
EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-52}
# TEST_TARGETS=sm_86,sm_89 pytest tests/kernels -k on_gpus: the others
TARGETS = tuple(os.environ.get("TEST_TARGETS", "sm_80,sm_90a").split(","))


def numbers(shape, dtype: str = "float32", seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.asarray(scale * np.random.default_rng(seed).standard_normal(shape)).astype(
        getattr(ml_dtypes, dtype, dtype)
    )


def double(x) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def close(got, want, dtype: str | None = None, ulps: float = 4) -> None:
    """Within some units in the last place of the largest element. A result of another shape is
    wrong.
    """
    assert tuple(got.shape) == tuple(want.shape), f"{got.shape} is not {want.shape}"
    error = np.abs(double(got) - want).max(initial=0)
    assert error <= ulps * EPS[dtype or str(got.dtype)] * max(np.abs(want).max(initial=0), 1e-6), (
        f"error {error}"
    )


@contextmanager
def launches(target: str | None = None):
    """Collects the (kernel, arguments, options) that are launched, and launches nothing. target:
    what blocks are chosen for, the CPU if None.
    """
    found = []
    with tkc.handed(
        lambda kernel, grid, args, kwargs: found.append((kernel, args, kwargs)), target
    ):
        yield found


def torch_with_ops():
    """torch, with the ops of tkc.kernels: it may be imported later than these. Skips where there is
    none.
    """
    torch = pytest.importorskip("torch")
    from tkc.kernels import torch_ops

    torch_ops.register_all()
    return torch


def assembles(call, targets=TARGETS) -> None:
    """Every kernel that a call launches compiles for GPUs, without spills and without complaints of
    ptxas.
    """
    from tkc.codegen.ptx.ptxas import find

    with launches() as found:
        call()
    assert found
    for kernel, args, kwargs in found:
        for target in targets:
            compiled = kernel.compile(*args, target=target, **kwargs)
            if not find("ptxas"):
                pytest.skip("ptxas is not installed")
            assert compiled.resources.clean, (
                f"{kernel.__name__} for {target}: {compiled.resources.log}"
            )
