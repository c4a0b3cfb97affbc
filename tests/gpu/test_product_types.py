"""Products of every element type and major on a GPU: small integers, exactly; and how far sums of 8
bits are from float64.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.gpu.device import back, on_gpu
from tests.passes.test_product_types import (
    CASES,
    COMPUTED,
    WEIGHTS,
    Case,
    compare,
    compare_factor,
    computed,
    counted_columns,
    product,
)
from tests.passes.test_relayout import MAJORS

SHAPES = [(129, 65, 133), (384, 512, 2048)]
EXACT, FACTOR = tkc.jit(product), tkc.jit(computed)


def as_tensor(array: np.ndarray):
    """The array with the memory round it: rows stay where they are."""
    base = array.base if array.base is not None else array
    while base.base is not None:
        base = base.base
    whole = on_gpu(base)
    if array is base:
        return whole
    turned = array.strides[0] < array.strides[1]
    rows, columns = array.shape[::-1] if turned else array.shape
    return whole[:rows, :columns].T if turned else whole[:rows, :columns]


def launched(kernel, grid, arrays, **options) -> None:
    """Runs a kernel on the GPU; its last array is the output."""
    import torch

    tensors = [as_tensor(x) for x in arrays]
    kernel[grid](*tensors, **options)
    torch.cuda.synchronize()
    arrays[-1][...] = back(tensors[-1].contiguous(), arrays[-1].dtype)


@pytest.mark.parametrize(
    "case",
    CASES
    + MAJORS
    + [
        Case(tkc.float8_e4m3, tkc.float8_e4m3, (256, 128, 128), "fast"),
        Case(tkc.float8_e4m3, tkc.float8_e4m3, (256, 128, 128), "blocks b.T"),
    ],
    ids=lambda c: c.name,
)
def test_products_of_integers_are_exact(case):
    BM, BN, BK = case.block
    for shape in SHAPES:
        compare(
            case,
            *shape,
            lambda arrays, grid: launched(
                EXACT,
                grid,
                arrays,
                BM=BM,
                BN=BN,
                BK=BK,
                FORM=case.form,
                PRECISION=case.precision,
                **dict(case.options),
            ),
        )


@pytest.mark.parametrize("case", COMPUTED + WEIGHTS, ids=lambda c: c.name)
def test_products_of_computed_factors_are_exact(case):
    BM, BN, BK = case.block
    for shape in SHAPES:
        compare_factor(
            case,
            *shape,
            lambda arrays, grid: launched(
                FACTOR, grid, arrays, BM=BM, BN=BN, BK=BK, FORM=case.form, **dict(case.options)
            ),
        )


@pytest.mark.parametrize(
    ("dtype", "form", "most"),
    [
        ("float8_e4m3fn", "fast b.T", 3e-2),
        ("float8_e4m3fn", "exact b.T", 1e-3),
        ("float8_e5m2", "exact b.T", 1e-3),
        ("float32", "fast b.T", 6e-4),
    ],
)
def test_sums_against_float64(dtype, form, most):
    """Relative to the root mean square of the results, K = 8192; partial sums of 128 are nearly as
    good as float32, fast ones are not.
    """
    r = np.random.default_rng(0)
    numpy = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a, b = (r.standard_normal((256, 8192), np.float32).astype(numpy) for _ in range(2))
    one, c = np.ones((256, 64), np.float32), np.empty((256, 256), np.float32)
    launched(
        EXACT,
        (2, 2),
        [a, b, one, one, c],
        BM=128,
        BN=128,
        BK=128 if numpy.itemsize == 1 else 32,
        FORM=form,
        PRECISION="tf32" if dtype == "float32" else "ieee",
    )
    want = a.astype(np.float64) @ b.astype(np.float64).T
    error = float(np.sqrt(np.mean((c - want) ** 2) / np.mean(want**2)))
    print(f"{dtype} {form}: error {error:.2e}")
    assert error <= most


def test_maps_with_panels_of_16_bytes():
    """The driver knows no such swizzle: nothing is XORed."""
    b = np.random.default_rng(0).integers(-2, 3, (130, 96)).astype(np.int8)
    whole = np.broadcast_to(b.sum(0, dtype=np.int32), (64, 96))
    c = np.full((64, 96), -99, np.int32)
    options = dict(N=96, swap_dots=False, epilogue="tma")
    launched(tkc.jit(counted_columns), 1, [b, c], **options)
    np.testing.assert_array_equal(c, np.where(2 * whole < 9, whole, -99))
