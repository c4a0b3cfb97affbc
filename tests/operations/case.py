"""A row of the table operation × element type × shape: kernel, arguments, expected result.

The expectation of a row is written in float64 or exact integers by NumPy alone, never by tkc:
`Near(values, ulps)` for floats within so many units in the last place of the output's type, a plain
array where every bit is fixed. `run(case, how)` runs it at "level 0", on the "cpu", on the "gpu",
or its PTX for "sm_80", … on the machine of tkc.sim.ptx.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import ml_dtypes
import numpy as np

import tkc

BOOL, I8, I16, I32, I64, U8, U16, U32, U64 = (
    np.dtype(t)
    for t in (
        np.bool_,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint8,
        np.uint16,
        np.uint32,
        np.uint64,
    )
)
F16, F32, F64, BF16, E4M3, E5M2 = (
    np.dtype(t)
    for t in (
        np.float16,
        np.float32,
        np.float64,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
    )
)
INTEGERS, FLOATS, FLOAT8 = (
    (I8, I16, I32, I64, U8, U16, U32, U64),
    (F16, BF16, F32, F64, E4M3, E5M2),
    (E4M3, E5M2),
)
DTYPES = (BOOL, *INTEGERS, *FLOATS)
EXTENTS = (1, 7, 16, 96, 100, 1000)
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
NAMES = {
    BOOL: tkc.bool_,
    E4M3: tkc.float8_e4m3,
    E5M2: tkc.float8_e5m2,
    **{t: getattr(tkc, t.name) for t in (*INTEGERS, F16, BF16, F32, F64)},
}


def is_float(t: np.dtype) -> bool:
    return t in FLOATS


@dataclass
class Near:
    """Floats within `ulps` units in the last place of the output's type (infinite: anything), or
    `absolute`.
    """

    values: np.ndarray
    ulps: float | np.ndarray
    absolute: float | np.ndarray = 0.0


@dataclass(frozen=True, eq=False)
class Case:
    """arguments(rng) gives the arguments by name, outputs filled with rubbish; want(arguments) the
    expectations of the outputs, by name.
    """

    name: str
    kernel: Callable
    arguments: Callable[[np.random.Generator], dict]
    want: Callable[[dict], dict]
    grid: tuple[int, ...] = (1,)
    options: dict = field(default_factory=dict)

    def __repr__(self):
        return self.name


@cache
def jitted(fn: Callable):
    return tkc.jit(fn)


def run(case: Case, how: str) -> None:
    with np.errstate(all="ignore"):
        arguments = case.arguments(np.random.default_rng(sum(case.name.encode())))
        wanted = case.want(arguments)
    if how == "gpu":
        got = _on_gpu(case, arguments)
    elif how.startswith("sm_"):
        got = _in_ptx(case, arguments, how)
    else:
        os.environ["TKC_INTERPRET"] = "1" if how == "level 0" else "0"
        try:
            jitted(case.kernel)[case.grid](**arguments, **case.options)
        finally:
            del os.environ["TKC_INTERPRET"]
        got = arguments
    for name, want in wanted.items():
        with np.errstate(all="ignore"):
            compare(f"{case.name}, {how}: {name}", np.asarray(got[name]), want)


def _on_gpu(case: Case, arguments: dict) -> dict:
    import torch

    from tests.gpu.device import back, on_gpu

    device = {n: on_gpu(v) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
    jitted(case.kernel)[case.grid](**device, **case.options)
    torch.cuda.synchronize()
    return {n: back(device[n], v.dtype) for n, v in arguments.items() if isinstance(v, np.ndarray)}


def _in_ptx(case: Case, arguments: dict, target: str) -> dict:
    from types import SimpleNamespace

    from tkc.runtime.specialize import Constant, argument
    from tkc.sim.ptx import run

    kernel = jitted(case.kernel)
    compiled = kernel.compile(**arguments, **case.options, target=target)
    passed = {
        n: arguments[n]
        for n, constant in zip(kernel.names, kernel.constexpr, strict=False)
        if not constant and not isinstance(argument(arguments[n], n, False), Constant)
    }
    after = run(
        SimpleNamespace(text=compiled.ptx, interface=compiled.interface),
        list(passed.values()),
        case.grid,
    )
    return dict(
        zip([n for n, v in passed.items() if isinstance(v, np.ndarray)], after, strict=False)
    )


# --------------------------------------------------------------------------------------------------
def spacing(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance of neighbours in a type, at each value."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.floor(
        np.log2(
            np.maximum(
                np.abs(np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0)),
                float(info.smallest_normal),
            )
        )
    )
    return 2.0**exponent * float(info.eps)


def compare(what: str, got: np.ndarray, want) -> None:
    if not isinstance(want, Near):
        assert got.dtype == want.dtype and got.shape == want.shape, (
            f"{what}: {got.dtype}{got.shape} against {want.dtype}{want.shape}"
        )
        same = (
            got == want
            if not is_float(got.dtype)
            else (got.astype(F64) == want.astype(F64))
            | np.isnan(got.astype(F64)) & np.isnan(want.astype(F64))
        )
        error = None
    else:
        values, g = np.asarray(want.values, F64), got.astype(F64)
        assert g.shape == values.shape, f"{what}: {g.shape} against {values.shape}"
        if top := LARGEST.get(got.dtype):
            values = np.clip(values, -top, top)
        rounded = values.astype(got.dtype).astype(F64)
        error = np.abs(g - values) / spacing(values, got.dtype)
        same = (
            (error <= want.ulps)
            | (np.abs(g - values) <= want.absolute)
            | (g == rounded)
            | np.isnan(g) & np.isnan(values)
            | np.isinf(want.ulps)
        )
    if same.all():
        return
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    expected = want.values if isinstance(want, Near) else want
    raise AssertionError(
        f"{what}[{', '.join(map(str, at))}] is {got[at]}, not {expected[at]}"
        + (f" ({error[at]:.2f} ulp)" if error is not None else "")
        + f"; {int((~same).sum())} of {same.size} differ"
    )


# --------------------------------------------------------------------------------------------------
def values(
    r: np.random.Generator,
    dtype: np.dtype,
    shape,
    low: float | None = None,
    high: float | None = None,
) -> np.ndarray:
    """Random elements between low and high (a type's own bounds, or ±3 for floats)."""
    if dtype == BOOL:
        return r.integers(0, 2, shape).astype(BOOL)
    if is_float(dtype):
        return r.uniform(-3 if low is None else low, 3 if high is None else high, shape).astype(
            dtype
        )
    info = np.iinfo(dtype)
    return r.integers(
        info.min if low is None else max(int(low), info.min),
        (info.max if high is None else min(int(high), info.max)),
        shape,
        dtype,
        endpoint=True,
    )


def special(dtype: np.dtype) -> np.ndarray:
    """Zeros, infinities, NaN, the largest and the smallest."""
    info = ml_dtypes.finfo(dtype)
    found = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        float(info.max),
        -float(info.max),
        float(info.smallest_normal),
        float(info.smallest_subnormal),
        np.nan,
    ]
    return np.array(found + ([np.inf, -np.inf] if dtype != E4M3 else [])).astype(dtype)


def rubbish(shape, dtype: np.dtype) -> np.ndarray:
    return np.full(shape, 77 if dtype != BOOL else 1).astype(dtype)
