"""Mamba-2's scan (SSD) whole: softplus of the steps, the recurrence, the skip and the gate;
forward, backward and one step of decoding.

    δ_t = softplus(dt_t + bias) or dt_t + bias,      S_t = exp(δ_t A) S_{t-1} + δ_t B_t x_tᵀ
    y_t = (S_tᵀ C_t + D x_t) · silu(z_t)

The recurrence is linear attention with q = C, k = B, v = x, g = δ A and weights δ (Dao and Gu,
"Transformers are SSMs", 2024): linear_attention.py. What is around it, and its gradients, are row
kernels here, whose sums over positions are partial sums of programs, added up in one order:

    dr = dy · silu(z),   dz = dy · r · silu'(z) with r = S_tᵀ C_t + D x_t,   dD = Σ dr · x
    ddt = (dw + dg A) · sigmoid(dt + bias),   dA = Σ dg δ,   dbias = Σ ddt
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tkc
from tkc.kernels.arrays import (
    Array,
    all_contiguous,
    contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    power,
)
from tkc.kernels.chunks import LOG2E, WIDEST, is_shared
from tkc.kernels.linear_attention import linear_attention, linear_attention_backward
from tkc.kernels.operator import operator

ROWS = 64  # positions of a program that sums over them


def softplus_of(x: Any) -> Any:
    """log(1 + exp x), without overflow."""
    return tkc.maximum(x, 0.0) + tkc.log1p(tkc.exp2(-tkc.abs(x) * LOG2E))


def _steps(dt, bias, row, head, SOFTPLUS, R, H):
    """(dt + bias, δ) of rows and heads, in float32."""
    x = tkc.load(dt, (row, head), (R, H)).to(tkc.float32)
    if bias is not None:
        x = x + tkc.load(bias, (head,), (H,)).to(tkc.float32)[None, :]
    return x, softplus_of(x) if SOFTPLUS else x


@tkc.jit
def _spread(
    dt,
    bias,
    a,
    g,
    weight,
    SOFTPLUS: tkc.constexpr,
    R: tkc.constexpr,
    H: tkc.constexpr,
):
    """δ A and δ."""
    row, head = tkc.program_id(0) * R, tkc.program_id(1) * H
    _, step = _steps(dt, bias, row, head, SOFTPLUS, R, H)
    rate = tkc.load(a, (head,), (H,)).to(tkc.float32)
    tkc.store(g, (row, head), step * rate[None, :])
    tkc.store(weight, (row, head), step)


@tkc.jit
def _finish(y, x, skip, z, out, R: tkc.constexpr, P: tkc.constexpr):
    row, head = tkc.program_id(0) * R, tkc.program_id(1)
    result = tkc.load(y, (row, head, 0), (R, None, P)).to(tkc.float32)
    if skip is not None:
        values = tkc.load(x, (row, head, 0), (R, None, P)).to(tkc.float32)
        result = result + values * skip[head].to(tkc.float32)
    if z is not None:
        gate = tkc.load(z, (row, head, 0), (R, None, P)).to(tkc.float32)
        result = result * gate * tkc.sigmoid(gate)
    tkc.store(out, (row, head, 0), result.to(out.dtype)[:, None, :])


@tkc.jit
def _finish_backward(grad, y, x, skip, z, dr, dz, sums, R: tkc.constexpr, P: tkc.constexpr):
    """dr, dz, and of each program the sum of dr · x."""
    row, head = tkc.program_id(0) * R, tkc.program_id(1)
    slope = tkc.load(grad, (row, head, 0), (R, None, P)).to(tkc.float32)
    values = tkc.load(x, (row, head, 0), (R, None, P)).to(tkc.float32)
    if z is not None:
        result = tkc.load(y, (row, head, 0), (R, None, P)).to(tkc.float32)
        if skip is not None:
            result = result + values * skip[head].to(tkc.float32)
        gate = tkc.load(z, (row, head, 0), (R, None, P)).to(tkc.float32)
        s = tkc.sigmoid(gate)
        of_gate = slope * result * (s * (1 + gate * (1 - s)))
        tkc.store(dz, (row, head, 0), of_gate.to(dz.dtype)[:, None, :])
        slope = slope * gate * s
        tkc.store(dr, (row, head, 0), slope.to(dr.dtype)[:, None, :])
    if skip is not None:
        tkc.store(sums[tkc.program_id(0)], (head,), tkc.sum(slope * values) + tkc.zeros((1,)))


@tkc.jit
def _steps_backward(
    dt,
    bias,
    a,
    dg,
    dw,
    ddt,
    sums,
    SOFTPLUS: tkc.constexpr,
    R: tkc.constexpr,
    H: tkc.constexpr,
):
    """ddt, and of each program the sums of dg δ and of ddt."""
    row, head = tkc.program_id(0) * R, tkc.program_id(1) * H
    x, step = _steps(dt, bias, row, head, SOFTPLUS, R, H)
    of_g = tkc.load(dg, (row, head), (R, H))
    rate = tkc.load(a, (head,), (H,)).to(tkc.float32)
    slope = tkc.load(dw, (row, head), (R, H)) + of_g * rate[None, :]
    if SOFTPLUS:
        slope = slope * tkc.sigmoid(x)
    tkc.store(ddt, (row, head), slope.to(ddt.dtype))
    # past the last position δ is softplus(bias), but dg and dw are 0
    tkc.store(sums[0, tkc.program_id(0)], (head,), tkc.sum(of_g * step, axis=0))
    tkc.store(sums[1, tkc.program_id(0)], (head,), tkc.sum(slope, axis=0))


@tkc.jit
def _add_parts(parts, out, N: tkc.constexpr):
    at, total = tkc.program_id(0) * N, tkc.zeros((16, N))
    for part in tkc.range(0, parts.shape[0], 16):
        total = total + tkc.load(parts, (part, at), (16, N))
    tkc.store(out, (at,), tkc.sum(total, axis=0))


@tkc.jit
def _add_skip(dx, dr, skip, R: tkc.constexpr, P: tkc.constexpr):
    """dx + D · dr, in place."""
    row, head = tkc.program_id(0) * R, tkc.program_id(1)
    slope = tkc.load(dr, (row, head, 0), (R, None, P)).to(tkc.float32)
    total = tkc.load(dx, (row, head, 0), (R, None, P)).to(tkc.float32)
    total = total + slope * skip[head].to(tkc.float32)
    tkc.store(dx, (row, head, 0), total.to(dx.dtype)[:, None, :])


@tkc.jit
def _step(
    x,
    dt,
    a,
    b,
    c,
    state,
    skip,
    z,
    bias,
    out,
    SOFTPLUS: tkc.constexpr,
    GROUP: tkc.constexpr,
    N: tkc.constexpr,
    P: tkc.constexpr,
):
    column, head, row = tkc.program_id(0) * P, tkc.program_id(1), tkc.program_id(2)
    step = dt[row, head].to(tkc.float32)
    if bias is not None:
        step = step + bias[head].to(tkc.float32)
    if SOFTPLUS:
        step = softplus_of(step)
    keys = tkc.load(b, (row, head // GROUP, 0), (None, None, N)).to(tkc.float32)
    queries = tkc.load(c, (row, head // GROUP, 0), (None, None, N)).to(tkc.float32)
    values = tkc.load(x, (row, head, column), (None, None, P)).to(tkc.float32)
    here = tkc.load(state[row, head], (0, column), (N, P)).to(tkc.float32)
    here = here * tkc.exp2(step * a[head].to(tkc.float32) * LOG2E)
    here = here + keys[:, None] * (values * step)[None, :]
    tkc.store(state[row, head], (0, column), here.to(state.dtype))
    result = tkc.sum(queries[:, None] * here, axis=0)
    if skip is not None:
        result = result + values * skip[head].to(tkc.float32)
    if z is not None:
        gate = tkc.load(z, (row, head, column), (None, None, P)).to(tkc.float32)
        result = result * gate * tkc.sigmoid(gate)
    tkc.store(out, (row, head, column), result.to(out.dtype)[None, None, :])


def _check(
    x: Array, dt: Array, a: Array, b: Array, c: Array, skip: Array, z: Array, bias: Array
) -> None:
    """Raises LaunchError for what does not fit; the recurrence looks at b and c itself."""
    floats(x, dt, a, b, c, skip, z, bias)
    row = tuple(x.shape[:-1])
    if len(x.shape) < 3 or not 1 <= x.shape[-1] <= WIDEST:
        raise tkc.LaunchError(
            f"ssd: x is [batch, positions, heads, 1 to {WIDEST}], got {list(x.shape)}"
        )
    expect(dt, row, "dt")
    for name, array in ("a", a), ("skip", skip), ("dt_bias", bias):
        expect(array, row[-1:], name)
    expect(z, x.shape, "z")
    if len({dtype_of(array) for array in (x, b, c)}) > 1:
        raise tkc.LaunchError("ssd: x, b and c have one element type; convert them")


def _rows(x: Array | None) -> Array | None:
    """Of all positions, [rows, heads, …]."""
    return None if x is None else contiguous(x).reshape((x.shape[0] * x.shape[1], *x.shape[2:]))


def _per_position(dt: Array) -> tuple[tuple[int, int], dict]:
    """The grid and the block of kernels over numbers of positions and heads."""
    rows, heads = dt.shape[0] * dt.shape[1], dt.shape[2]
    block = min(power(heads), 64)
    return (tkc.cdiv(rows, ROWS), tkc.cdiv(heads, block)), {"R": ROWS, "H": block}


def _per_channel(x: Array) -> tuple[tuple[int, int], dict]:
    """The grid and the block of kernels over channels of positions and heads."""
    rows = x.shape[0] * x.shape[1]
    return (tkc.cdiv(rows, ROWS), x.shape[2]), {"R": ROWS, "P": power(x.shape[3])}


def _spread_steps(
    dt: Array, a: Array, bias: Array | None, softplus: bool, g: Array, weight: Array
) -> None:
    grid, block = _per_position(dt)
    arrays = (_rows(dt), bias, a, _rows(g), _rows(weight))
    _spread[grid](*arrays, SOFTPLUS=softplus, **block)


def sum_of_parts(parts: Array, out: Array) -> None:
    """out [n]: the sums of parts [rows, n] over their rows, in one order."""
    _add_parts[tkc.cdiv(out.shape[0], 64)](parts, out, N=64)


@operator
def ssd(
    x: Array,
    dt: Array,
    a: Array,
    b: Array,
    c: Array,
    skip: Array | None = None,
    z: Array | None = None,
    dt_bias: Array | None = None,
    softplus: bool = False,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
) -> Iterator[tuple[Array, Array]]:
    """Mamba-2's scan, S_t = exp(δ_t A) S_{t-1} + δ_t B_t x_tᵀ, y_t = (S_tᵀ C_t + D x_t) · silu(z_t)
    with δ = dt + dt_bias, or its softplus: y of x's shape and element type, and the last state,
    float32 [sequences, heads, N, P] (mamba_ssm's, with its last axes swapped).

    x, z: [batch, T, heads, P]; dt: [batch, T, heads]; a (A, below 0), skip (D), dt_bias: [heads];
    b, c: [batch, T, groups, N], of x's element type; groups divides heads; N and P up to 256.
    initial: the state before. cu_seqlens: the batch is one row of sequences that begin at these
    positions, int32 [sequences + 1]. State and sums are float32. Raises LaunchError where a shape
    or type does not fit.
    """
    _check(x, dt, a, b, c, skip, z, dt_bias)
    g, weight = empty(dt, dtype="float32"), empty(dt, dtype="float32")
    given = (c, b, x, g, None, weight, initial, cu_seqlens, 1.0)
    recurrence = linear_attention.fn(*given)
    y, final = next(recurrence)
    out = y if skip is None and z is None else empty(x)
    yield out, final
    a, skip, dt_bias = all_contiguous(a, skip, dt_bias)
    _spread_steps(dt, a, dt_bias, softplus, g, weight)
    _finish_launches(recurrence)
    if out is not y:
        grid, block = _per_channel(x)
        _finish[grid](_rows(y), _rows(x), skip, _rows(z), _rows(out), **block)


def _finish_launches(steps: Iterator) -> None:
    """What a generator of an operator launches behind its results."""
    for _ in steps:
        raise RuntimeError("an operator yields once")


@operator
def ssd_backward(
    grad: Array,
    x: Array,
    dt: Array,
    a: Array,
    b: Array,
    c: Array,
    skip: Array | None = None,
    z: Array | None = None,
    dt_bias: Array | None = None,
    softplus: bool = False,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    grad_final: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array, Array, Array, Array, Array]]:
    """The gradients of x, dt, a, b, c, skip, z, dt_bias and initial from those of the result and
    of the last state. Those of a, skip, dt_bias and initial are float32; what is not given has a
    gradient without elements.
    """
    _check(x, dt, a, b, c, skip, z, dt_bias)
    expect(grad, x.shape, "grad")
    g, weight = empty(dt, dtype="float32"), empty(dt, dtype="float32")
    dr = grad if z is None else empty(x)
    given = (c, b, x, g, None, weight, initial, cu_seqlens, 1.0)
    recurrence = linear_attention_backward.fn(dr, *given, grad_final)
    dc, db, dx, dg, dw, ds = next(recurrence)
    ddt, of_heads = empty(dt), (x.shape[2],)
    da, dbias = empty(x, of_heads, "float32"), empty(x, of_heads, "float32")
    dskip = empty(x, (0,) if skip is None else of_heads, "float32")
    dz = empty(x, (0,) if z is None else x.shape)
    yield dx, ddt, da, db, dc, dskip, dz, dbias, ds
    a, skip, dt_bias = all_contiguous(a, skip, dt_bias)
    _spread_steps(dt, a, dt_bias, softplus, g, weight)
    grid, block = _per_channel(x)
    sums = empty(x, (grid[0], *of_heads), "float32")
    if skip is not None or z is not None:
        y = None
        if z is not None:  # the result before its gate
            forward = linear_attention.fn(*given)
            y, _ = next(forward)
            _finish_launches(forward)
        slopes = (None, None) if z is None else (_rows(dr), _rows(dz))
        arrays = (_rows(grad), _rows(y), _rows(x), skip, _rows(z), *slopes)
        _finish_backward[grid](*arrays, None if skip is None else sums, **block)
    _finish_launches(recurrence)
    if skip is not None:
        sum_of_parts(sums, dskip)
        _add_skip[grid](_rows(dx), _rows(dr), skip, **block)
    grid, block = _per_position(dt)
    parts = empty(x, (2, grid[0], *of_heads), "float32")
    arrays = (_rows(dt), dt_bias, a, _rows(dg), _rows(dw), _rows(ddt), parts)
    _steps_backward[grid](*arrays, SOFTPLUS=softplus, **block)
    for part, out in zip((0, 1), (da, dbias), strict=True):
        sum_of_parts(parts[part], out)


ssd.gradient_by(
    ssd_backward, "x dt a b c skip z dt_bias initial", grads="grad grad_final", like="x"
)


@operator(mutates="state")
def ssd_step(
    x: Array,
    dt: Array,
    a: Array,
    b: Array,
    c: Array,
    state: Array,
    skip: Array | None = None,
    z: Array | None = None,
    dt_bias: Array | None = None,
    softplus: bool = False,
) -> Iterator[Array]:
    """One position of each sequence: the state, [batch, heads, N, P], becomes the next one in
    place, and y is [batch, heads, P]. x, z: [batch, heads, P]; dt: [batch, heads]; b, c: [batch,
    groups, N]. The rest is as in ssd.
    """
    _check(x, dt, a, b, c, skip, z, dt_bias)
    batch, heads, columns = x.shape
    width = b.shape[-1]
    expect(b, (batch, b.shape[1], width), "b")
    expect(c, b.shape, "c")
    expect(state, (batch, heads, width, columns), "state")
    if not is_shared(heads, b.shape[1]):
        raise tkc.LaunchError(f"ssd_step: b's {b.shape[1]} groups do not divide x's {heads} heads")
    out = empty(x)
    yield out
    block = min(power(columns), max(1, 8192 // power(width)))
    x, dt, a, b, c, skip, z, dt_bias = all_contiguous(x, dt, a, b, c, skip, z, dt_bias)
    _step[tkc.cdiv(columns, block), heads, batch](
        x,
        dt,
        a,
        b,
        c,
        state,
        skip,
        z,
        dt_bias,
        out,
        SOFTPLUS=softplus,
        GROUP=heads // b.shape[1],
        N=power(width),
        P=block,
        num_warps=2,  # many blocks, each of which waits for its own part of the states
    )
