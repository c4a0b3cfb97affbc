"""Quantization to float8 (e4m3, e5m2) and int8, with one scale a tensor, one a row or one a block.

    scale = max |x| / most,   q = round(x / scale)              most: 448 for e4m3, 57344 for e5m2,
                              127 for int8
    dequantized = q scale

Where everything is 0 the scale is 1, so that nothing is divided by 0, and where the largest number
is below 2⁻¹⁰⁰ it counts as that, so that no quotient is infinite. Rounding is to the nearest,
ties to even; int8 is symmetric: -128 does not occur.
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    flat,
    floats,
    library,
    matrix,
    power,
    zeros,
)
from tkc.kernels.blocks import ELEMENTS, row_block, row_configs, rows_grid, strip
from tkc.kernels.operator import operator

ROWS_OF_X = rows_grid("x")
LARGEST_VALUES = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
LEAST = 2.0**-100
MAX_SCALED_BLOCK = (
    1 << 14
)  # elements of a block with a scale of its own: they stay in a program's registers


def _rounded(values, out):
    """values in out's element type; int8 rounds and saturates."""
    return (
        tkc.minimum(tkc.maximum(tkc.round(values), -127.0), 127.0)
        if out.dtype is tkc.int8
        else values
    ).to(out.dtype)


def _scaling(top, most):
    """The scale of numbers up to `top`, and what they are multiplied by."""
    some = tkc.maximum(top, LEAST)
    return tkc.where(top > 0, some * (1 / most), 1), tkc.where(top > 0, most / some, 1)


@tkc.autotune(row_configs("x"), measure=False)
@tkc.jit
def _quantize_rows(
    x, out, scales, MOST: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr
):
    row = tkc.program_id(0) * ROWS
    values = tkc.load(x, (row, 0), (ROWS, COLUMNS)).to(tkc.float32)
    top = tkc.max(tkc.abs(values), axis=1)
    scale, factor = _scaling(top, MOST)
    tkc.store(scales, (row,), scale)
    tkc.store(out, (row, 0), _rounded(values * factor[:, None], out))


@tkc.jit
def _quantize_blocks(
    x,
    out,
    scales,
    MOST: tkc.constexpr,
    WHOLE: tkc.constexpr,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
):
    """A scale for the whole of a program's block, or for each row of it."""
    i, j = tkc.program_id(0), tkc.program_id(1)
    values = tkc.load(x, (i * ROWS, j * COLUMNS), (ROWS, COLUMNS)).to(tkc.float32)
    top = tkc.max(tkc.abs(values), axis=1)[:, None]
    if WHOLE:
        top = tkc.max(top, axis=0)[None, :]
    scale, factor = _scaling(top, MOST)
    tkc.store(scales, (i if WHOLE else i * ROWS, j), scale)
    tkc.store(out, (i * ROWS, j * COLUMNS), _rounded(values * factor, out))


@tkc.jit
def _largest(x, out, N: tkc.constexpr):
    values = tkc.load(x, (tkc.program_id(0) * N,), (N,))
    # floats >= 0 are ordered as their bits are
    tkc.atomic_max(
        out.ptr, tkc.max(tkc.abs(values.to(tkc.float32))).to(tkc.int32, bitcast=True), sem="relaxed"
    )


@tkc.jit
def _quantize(x, top, out, scale, MOST: tkc.constexpr, N: tkc.constexpr):
    i = tkc.program_id(0) * N
    found, factor = _scaling(top[0].to(tkc.float32, bitcast=True), MOST)
    if tkc.program_id(0) == 0:
        tkc.store(scale, (0,), found)
    tkc.store(out, (i,), _rounded(tkc.load(x, (i,), (N,)).to(tkc.float32) * factor, out))


@tkc.jit
def _dequantize(q, scales, out, WHOLE: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    row, column = (
        (0, tkc.program_id(0) * COLUMNS)
        if WHOLE
        else (tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS)
    )
    factor = scales[0] if WHOLE else tkc.load(scales, (row,), (ROWS,))[:, None]
    tkc.store(
        out,
        (row, column),
        (tkc.load(q, (row, column), (ROWS, COLUMNS)).to(tkc.float32) * factor).to(out.dtype),
    )


def _most(dtype: str) -> float:
    if dtype not in LARGEST_VALUES:
        raise tkc.LaunchError(f"quantization is to {', '.join(LARGEST_VALUES)}, got {dtype!r}")
    return LARGEST_VALUES[dtype]


@operator
def quantize(x: Array, dtype: str = "float8_e4m3") -> Iterator[tuple[Array, Array]]:
    """x / scale as float8_e4m3, float8_e5m2 or int8, and the scale, float32 [1]. Raises LaunchError
    for another dtype.
    """
    most = _most(dtype)
    floats(x)
    out, scale, top = empty(x, dtype=dtype), empty(x, (1,), "float32"), zeros(x, (1,), "int32")
    yield out, scale
    values, target = flat(contiguous(x)), flat(out)
    n = values.shape[0]
    grid = tkc.cdiv(n, strip(n))
    _largest[grid](values, top, N=strip(n))
    _quantize[max(grid, 1)](values, top, target, scale, MOST=most, N=strip(n))


@operator
def quantize_rows(x: Array, dtype: str = "float8_e4m3") -> Iterator[tuple[Array, Array]]:
    """Each row of the last axis by its own scale: the numbers, and the scales, float32 of shape
    x.shape[:-1]. Raises LaunchError for another dtype.
    """
    most = _most(dtype)
    floats(x)
    out, scales = empty(x, dtype=dtype), empty(x, x.shape[:-1], "float32")
    yield out, scales
    values, target = matrix(contiguous(x)), matrix(out)
    _quantize_rows[ROWS_OF_X](values, target, flat(scales), MOST=most)


@operator
def quantize_blocks(
    x: Array, rows: int = 1, columns: int = 128, dtype: str = "float8_e4m3"
) -> Iterator[tuple[Array, Array]]:
    """Each block of rows x columns of a matrix [M, N] by its own scale: the numbers, and the
    scales, float32 of shape [ceil(M / rows), ceil(N / columns)]; powers of two, with at most 16384
    elements in a block. Scales of one row (rows=1) have dense columns, each from a multiple of 16
    bytes (as scaled_matmul and cuBLAS like them; jax, which has no strides, sees an array like
    others); those of several have dense rows. Raises LaunchError for another dtype, rank or block.
    """
    most = _most(dtype)
    floats(x)
    if len(x.shape) != 2:
        raise tkc.LaunchError(f"quantize_blocks takes a matrix, got {list(x.shape)}; reshape it")
    if any(n < 1 or n != power(n) for n in (rows, columns)) or rows * columns > MAX_SCALED_BLOCK:
        raise tkc.LaunchError(
            f"quantize_blocks: rows and columns are powers of two, {MAX_SCALED_BLOCK} elements at"
            f" most, got {rows} x {columns}; take 1 x 128 or 128 x 128"
        )
    (m, n), down, across = x.shape, tkc.cdiv(x.shape[0], rows), tkc.cdiv(x.shape[1], columns)
    out = empty(x, dtype=dtype)
    scales = (
        empty(x, (down, across), "float32")
        if rows > 1
        else empty(x, (across, m if library(x) == "jax" else tkc.cdiv(m, 4) * 4), "float32")[
            :, :m
        ].swapaxes(0, 1)
    )
    yield out, scales
    if 0 in (m, n):
        return
    height = rows if rows > 1 else max(1, min(power(m), ELEMENTS // columns))
    _quantize_blocks[tkc.cdiv(m, height), across](
        x, out, scales, MOST=most, WHOLE=rows > 1, ROWS=height, COLUMNS=columns
    )


@operator
def dequantize(q: Array, scales: Array, dtype: str = "bfloat16") -> Iterator[Array]:
    """q · scales in a float type: scales are [1], or one a row of the last axis. Raises LaunchError
    where their shape is neither.
    """
    if tuple(scales.shape) != (1,):
        expect(scales, q.shape[:-1], "scales")
    if dtype_of(scales) != "float32":
        raise tkc.LaunchError(f"dequantize: scales are float32, got {dtype_of(scales)}")
    out = empty(q, dtype=dtype)
    yield out
    whole = tuple(scales.shape) == (1,)
    source, target = (
        (matrix(contiguous(q)), matrix(out))
        if not whole
        else (flat(contiguous(q)).reshape((1, -1)), flat(out).reshape((1, -1)))
    )
    rows, block = row_block(source.shape[0], min(source.shape[1], 4096))
    across, down = tkc.cdiv(source.shape[1], block), tkc.cdiv(source.shape[0], rows)
    _dequantize[(across, down) if whole else (down, across)](
        source, flat(scales), target, WHOLE=whole, ROWS=rows, COLUMNS=block
    )
