"""Running a kernel twice from the same NumPy inputs: by the specification in NumPy, and on the GPU;
outputs are compared.
"""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np

import tkc
from tkc.language.signature import ConstantArgument, Options, ScalarArgument, Signature

BITS = {
    ml_dtypes.bfloat16: np.int16,
    ml_dtypes.float8_e4m3fn: np.uint8,
    ml_dtypes.float8_e5m2: np.uint8,
}


def on_gpu(array: np.ndarray):
    """A torch tensor with the same bits, strides and element type."""
    import torch

    kind = array.dtype.type
    if kind in BITS:
        name = {
            "bfloat16": "bfloat16",
            "float8_e4m3fn": "float8_e4m3fn",
            "float8_e5m2": "float8_e5m2",
        }[np.dtype(kind).name]
        return torch.from_numpy(array.view(BITS[kind])).cuda().view(getattr(torch, name))
    return torch.from_numpy(array).cuda()


def back(tensor, dtype: np.dtype) -> np.ndarray:
    import torch

    if dtype.type in BITS:
        return (
            tensor.view(torch.int16 if dtype.itemsize == 2 else torch.uint8)
            .cpu()
            .numpy()
            .view(dtype)
        )
    return tensor.cpu().numpy()


def specified(fn, arguments: dict, grid: tuple[int, ...]) -> None:
    """Runs level 0 in NumPy, arrays changed in place."""
    from tests.language.kernels import array as described
    from tkc.language.dtypes import BY_NUMPY
    from tkc.language.trace import trace
    from tkc.sim.level0 import run

    signature, values = [], []
    constants = {
        n
        for n, p in inspect.signature(fn).parameters.items()
        if p.annotation is tkc.constexpr or "constexpr" in str(p.annotation)
    }
    for name, value in arguments.items():
        if name in constants:
            signature.append((name, ConstantArgument(value)))
        elif isinstance(value, np.ndarray):
            signature.append(
                (name, described(BY_NUMPY[value.dtype], value.ndim, strides=(None,) * value.ndim))
            )
            values.append(value)
        else:
            signature.append(
                (name, ScalarArgument(tkc.float32 if isinstance(value, float) else tkc.int32))
            )
            values.append(value)
    run(trace(fn, Signature(tuple(signature), Options())), values, (*grid, 1, 1)[:3])


def both(fn, grid, *args, rtol: float = 0, atol: float = 0, **options) -> None:
    """`fn` is a plain kernel function; named options that are its parameters are arguments, the
    rest launch options.
    """
    import torch

    parameters = inspect.signature(fn).parameters
    bound = inspect.signature(fn).bind(
        *args, **{k: v for k, v in options.items() if k in parameters}
    )
    bound.apply_defaults()
    launch = {k: v for k, v in options.items() if k not in parameters}
    want = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in bound.arguments.items()}
    specified(fn, want, grid)
    tensors = {n: on_gpu(v) if isinstance(v, np.ndarray) else v for n, v in bound.arguments.items()}
    tkc.jit(fn)[grid](**tensors, **launch)
    torch.cuda.synchronize()
    for name, value in bound.arguments.items():
        if not isinstance(value, np.ndarray):
            continue
        got, expected = back(tensors[name], value.dtype), want[name]
        if value.dtype.kind in "fV" and (rtol or atol):
            np.testing.assert_allclose(
                got.astype(np.float64),
                expected.astype(np.float64),
                rtol=rtol,
                atol=atol,
                err_msg=name,
            )
        else:
            np.testing.assert_array_equal(got, expected, err_msg=name)
