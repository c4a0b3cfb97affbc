"""Mamba-1's selective scan: a state of N numbers a channel whose decay and input depend on the
position; forward, backward and one step of decoding.

    δ_t = softplus(dt_t + bias) or dt_t + bias,    S_t = exp(δ_t A) ∘ S_{t-1} + δ_t x_t B_tᵀ
    y_t = (S_t C_t + D x_t) · silu(z_t)

(Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.) A program
holds the states of a strip of channels, [channels, N], and reads the rows of its positions ahead of
the chain of products. For the gradients the states before every KEPT_ROWS positions are kept, and
those between computed again; with G the gradient of the state, from the last position to the first,

    dr = dy · silu(z),   dz = dy · r · silu'(z) with r = S_t C_t + D x_t
    G += dr C_tᵀ,   dC_t = Σ dr S_t,   dB_t = Σ δ x G,   dx = δ G B_t + D dr
    dδ = x G B_t + Σ_n G A exp(δ A) S_{t-1},   dA += δ G exp(δ A) S_{t-1},   G = exp(δ A) G

where the sums of dB and dC over channels are partial sums of programs, added up in one order.
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import Array, all_contiguous, empty, expect, floats, power
from tkc.kernels.chunks import LOG2E, sequence, sequences_of
from tkc.kernels.operator import operator
from tkc.kernels.state_space import softplus_of, sum_of_parts

STATES = 1024  # numbers of a program's states, [channels, N]
ROWS = 16  # positions of a step
# for the gradients, which hold the states of a step's positions at once
KEPT_STATES, KEPT_ROWS = 512, 8
WIDEST_STATE = 64  # of N


def _row(x, t, at, N):
    return tkc.load(x, (t, at), (None, N)).to(tkc.float32)


def _channels(x, at, N):
    """Numbers of channels; None: 0."""
    return tkc.zeros((N,)) if x is None else tkc.load(x, (at,), (N,)).to(tkc.float32)


def _steps(x, dt, bias, t, length, channel, SOFTPLUS, ROWS, D):
    """[(x, dt + bias, δ)] of ROWS positions. Past the end δ is 0: the state stays."""
    rows = []
    for r in range(ROWS):
        raw = _row(dt, t + r, channel, D) + bias
        step = softplus_of(raw) if SOFTPLUS else raw
        rows.append((_row(x, t + r, channel, D), raw, tkc.where(t + r < length, step, 0.0)))
    return rows


def _moved(state, rate, step, values, keys):
    """The next state."""
    return state * tkc.exp2(step[:, None] * rate) + (step * values)[:, None] * keys[None, :]


def _gated(result, gate):
    return result * gate * tkc.sigmoid(gate)


@tkc.jit
def _scan(
    x,
    dt,
    a,
    b,
    c,
    skip,
    z,
    bias,
    initial,
    starts,
    out,
    final,
    kept,
    SOFTPLUS: tkc.constexpr,
    ROWS: tkc.constexpr,
    D: tkc.constexpr,
    N: tkc.constexpr,
):
    """kept: the states before every ROWS positions, [sequences, steps, channels, N], if wanted."""
    channel, row = tkc.program_id(0) * D, tkc.program_id(1)
    x, dt, b, c, z, out = (sequence(v, starts, row) for v in (x, dt, b, c, z, out))
    rate = tkc.load(a, (channel, 0), (D, N)).to(tkc.float32) * LOG2E
    skipped, biased = _channels(skip, channel, D), _channels(bias, channel, D)
    state = tkc.zeros((D, N))
    if initial is not None:
        state = tkc.load(initial[row], (channel, 0), (D, N)).to(tkc.float32)
    for t in tkc.range(0, x.shape[0], ROWS):
        rows = _steps(x, dt, biased, t, x.shape[0], channel, SOFTPLUS, ROWS, D)
        keys = [_row(b, t + r, 0, N) for r in range(ROWS)]
        queries = [_row(c, t + r, 0, N) for r in range(ROWS)]
        if kept is not None:
            tkc.store(kept[row, t // ROWS], (channel, 0), state)
        for r in range(ROWS):
            values, _, step = rows[r]
            state = _moved(state, rate, step, values, keys[r])
            if out is not None:
                result = tkc.sum(state * queries[r][None, :], axis=1) + skipped * values
                result = result if z is None else _gated(result, _row(z, t + r, channel, D))
                tkc.store(out, (t + r, channel), result.to(out.dtype)[None, :])
    if final is not None:
        tkc.store(final[row], (channel, 0), state)


def _ungated(slopes, result, z, dz, t, channel, D):
    """dr; stores dz."""
    if z is None:
        return slopes
    gate = _row(z, t, channel, D)
    s = tkc.sigmoid(gate)
    of_gate = slopes * result * (s * (1 + gate * (1 - s)))
    tkc.store(dz, (t, channel), of_gate.to(dz.dtype)[None, :])
    return slopes * gate * s


def _of_step(change, raw, SOFTPLUS):
    """The gradient of dt from that of δ."""
    return change * tkc.sigmoid(raw) if SOFTPLUS else change


def _put_sum(x, t, tile):
    tkc.store(x, (t, 0), tkc.sum(tile, axis=0)[None, :])


@tkc.jit
def _scan_backward(
    grad,
    x,
    dt,
    a,
    b,
    c,
    skip,
    z,
    bias,
    kept,
    last,
    starts,
    dx,
    ddt,
    dz,
    first,
    da,
    dskip,
    dbias,
    parts,
    SOFTPLUS: tkc.constexpr,
    ROWS: tkc.constexpr,
    D: tkc.constexpr,
    N: tkc.constexpr,
):
    """da, dskip, dbias: of each sequence; parts: dB and dC of each strip."""
    channel, row = tkc.program_id(0) * D, tkc.program_id(1)
    grad, x, dt, b, c, z, dx, ddt, dz = (
        sequence(v, starts, row) for v in (grad, x, dt, b, c, z, dx, ddt, dz)
    )
    of_b, of_c = (sequence(parts[i, tkc.program_id(0)], starts, row) for i in (0, 1))
    rate = tkc.load(a, (channel, 0), (D, N)).to(tkc.float32) * LOG2E
    skipped, biased = _channels(skip, channel, D), _channels(bias, channel, D)
    slope, of_rate = tkc.zeros((D, N)), tkc.zeros((D, N))
    of_skip, of_bias = tkc.zeros((D,)), tkc.zeros((D,))
    if last is not None:
        slope = tkc.load(last[row], (channel, 0), (D, N)).to(tkc.float32)
    steps = tkc.cdiv(x.shape[0], ROWS)
    for at in tkc.range(0, steps):
        t = (steps - 1 - at) * ROWS
        rows = _steps(x, dt, biased, t, x.shape[0], channel, SOFTPLUS, ROWS, D)
        keys = [_row(b, t + r, 0, N) for r in range(ROWS)]
        states = [tkc.load(kept[row, t // ROWS], (channel, 0), (D, N))]
        for r in range(ROWS):
            states.append(_moved(states[r], rate, rows[r][2], rows[r][0], keys[r]))
        for r in reversed(range(ROWS)):
            values, raw, step = rows[r]
            queries, slopes = _row(c, t + r, 0, N), _row(grad, t + r, channel, D)
            result = tkc.sum(states[r + 1] * queries[None, :], axis=1) + skipped * values
            slopes = _ungated(slopes, result, z, dz, t + r, channel, D)
            of_skip = of_skip + slopes * values
            slope = slope + slopes[:, None] * queries[None, :]
            _put_sum(of_c, t + r, slopes[:, None] * states[r + 1])
            _put_sum(of_b, t + r, slope * (step * values)[:, None])
            along = tkc.sum(slope * keys[r][None, :], axis=1)
            tkc.store(dx, (t + r, channel), (along * step + slopes * skipped).to(dx.dtype)[None, :])
            slope = slope * tkc.exp2(step[:, None] * rate)
            decayed = slope * states[r]
            of_rate = of_rate + decayed * step[:, None]
            change = along * values + tkc.sum(decayed * rate, axis=1) * (1 / LOG2E)
            change = tkc.where(t + r < x.shape[0], _of_step(change, raw, SOFTPLUS), 0.0)
            tkc.store(ddt, (t + r, channel), change.to(ddt.dtype)[None, :])
            of_bias = of_bias + change
    if first is not None:
        tkc.store(first[row], (channel, 0), slope)
    tkc.store(da[row], (channel, 0), of_rate)
    tkc.store(dskip[row], (channel,), of_skip)
    tkc.store(dbias[row], (channel,), of_bias)


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
    D: tkc.constexpr,
    N: tkc.constexpr,
):
    channel, row = tkc.program_id(0) * D, tkc.program_id(1)
    rate = tkc.load(a, (channel, 0), (D, N)).to(tkc.float32) * LOG2E
    values, step = _row(x, row, channel, D), _row(dt, row, channel, D)
    step = step + _channels(bias, channel, D)
    if SOFTPLUS:
        step = softplus_of(step)
    here = tkc.load(state[row], (channel, 0), (D, N)).to(tkc.float32)
    here = _moved(here, rate, step, values, _row(b, row, 0, N))
    tkc.store(state[row], (channel, 0), here.to(state.dtype))
    result = tkc.sum(here * _row(c, row, 0, N)[None, :], axis=1)
    result = result + _channels(skip, channel, D) * values
    result = result if z is None else _gated(result, _row(z, row, channel, D))
    tkc.store(out, (row, channel), result.to(out.dtype)[None, :])


def _check(operands: tuple, row: tuple) -> None:
    """Raises LaunchError for what does not fit; row: all axes of x but its channels."""
    x, dt, a, b, c, skip, z, bias = operands
    floats(x, dt, a, b, c, skip, z, bias)
    if len(x.shape) != len(row) + 1 or len(a.shape) != 2 or not 1 <= a.shape[1] <= WIDEST_STATE:
        raise tkc.LaunchError(
            "selective_scan: x is [batch, positions, channels] (a step has no positions) and a is"
            f" [channels, 1 to {WIDEST_STATE}]; got {list(x.shape)} and {list(a.shape)}"
        )
    channels = x.shape[-1]
    expect(dt, x.shape, "dt")
    expect(a, (channels, a.shape[1]), "a")
    for name, array in ("b", b), ("c", c):
        expect(array, (*row, a.shape[1]), name)
    for name, array in ("skip", skip), ("dt_bias", bias):
        expect(array, (channels,), name)
    expect(z, x.shape, "z")


def _sequences(operands: tuple, initial: Array | None, starts: Array | None) -> int:
    """How many there are. Raises LaunchError for what does not fit."""
    x, a = operands[0], operands[2]
    _check(operands, tuple(x.shape[:2]))
    floats(initial)
    sequences = sequences_of(x, starts, "selective_scan")
    expect(initial, (sequences, *a.shape), "initial")
    return sequences


def _tiles(channels: int, width: int, softplus: bool, states: int = STATES) -> dict:
    strip = min(states // max(16, power(width)), power(channels))
    return {"SOFTPLUS": softplus, "D": strip, "N": power(width)}


@operator
def selective_scan(
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
    """Mamba-1's scan, S_t = exp(δ_t A) ∘ S_{t-1} + δ_t x_t B_tᵀ, y_t = (S_t C_t + D x_t) ·
    silu(z_t) with δ = dt + dt_bias, or its softplus: y of x's shape and element type, and the last
    state, float32 [sequences, channels, N].

    x, dt, z: [batch, T, channels] (mamba_ssm's with its last axes swapped); a (A, below 0):
    [channels, N], N up to 64; b, c: [batch, T, N]; skip (D), dt_bias: [channels]. initial: the
    state before. cu_seqlens: the batch is one row of sequences that begin at these positions, int32
    [sequences + 1]. State and sums are float32. Raises LaunchError where a shape or type does not
    fit.
    """
    operands = (x, dt, a, b, c, skip, z, dt_bias)
    sequences = _sequences(operands, initial, cu_seqlens)
    out, final = empty(x), empty(x, (sequences, *a.shape), "float32")
    yield out, final
    tiles = _tiles(x.shape[-1], a.shape[1], softplus)
    _scan[tkc.cdiv(x.shape[2], tiles["D"]), sequences](
        *all_contiguous(*operands, initial), cu_seqlens, out, final, None, ROWS=ROWS, **tiles
    )


@operator
def selective_scan_backward(
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
    """The gradients of x, dt, a, b, c, skip, z, dt_bias and initial from those of the result and of
    the last state. Those of a, b, c, skip, dt_bias and initial are float32; what is not given has a
    gradient without elements.
    """
    operands = (x, dt, a, b, c, skip, z, dt_bias)
    sequences = _sequences(operands, initial, cu_seqlens)
    expect(grad, x.shape, "grad")
    dx, ddt, dz = empty(x), empty(dt), empty(x, (0,) if z is None else x.shape)
    da, db, dc = (empty(x, v.shape, "float32") for v in (a, b, c))
    dskip, dbias, ds = (
        empty(x, (0,) if v is None else v.shape, "float32") for v in (skip, dt_bias, initial)
    )
    yield dx, ddt, da, db, dc, dskip, dz, dbias, ds
    channels, width = a.shape
    tiles = _tiles(channels, width, softplus, KEPT_STATES)
    strips, count = tkc.cdiv(channels, tiles["D"]), b.shape[0] * b.shape[1] * width
    steps = max(1, tkc.cdiv(x.shape[1], KEPT_ROWS))
    kept = empty(x, (sequences, steps, channels, width), "float32")
    operands = tuple(all_contiguous(*operands))
    grad, initial, last = all_contiguous(grad, initial, grad_final)
    _scan[strips, sequences](
        *operands, initial, cu_seqlens, None, None, kept, ROWS=KEPT_ROWS, **tiles
    )
    parts = empty(x, (2, strips, *b.shape), "float32")
    rates = empty(x, (sequences, channels, width), "float32")
    skips, biases = (empty(x, (sequences, channels), "float32") for _ in range(2))
    _scan_backward[strips, sequences](
        grad,
        *operands,
        kept,
        last,
        cu_seqlens,
        dx,
        ddt,
        None if z is None else dz,
        None if initial is None else ds,
        rates,
        skips,
        biases,
        parts,
        ROWS=KEPT_ROWS,
        num_warps=8,
        **tiles,
    )
    for i, out in enumerate((db, dc)):
        sum_of_parts(parts[i].reshape((strips, count)), out.reshape((count,)))
    sum_of_parts(rates.reshape((sequences, channels * width)), da.reshape((channels * width,)))
    for given, part, out in (skip, skips, dskip), (dt_bias, biases, dbias):
        if given is not None:
            sum_of_parts(part, out)


@selective_scan.backward(saves="x dt a b c skip z dt_bias softplus initial cu_seqlens", zeros=False)
def _(saved, grad, grad_final):
    if grad is None:
        grad = saved.x.new_zeros(saved.x.shape)
    first = (saved.x, saved.dt, saved.a, saved.b, saved.c, saved.skip, saved.z, saved.dt_bias)
    others = (saved.softplus, saved.initial, saved.cu_seqlens, grad_final)
    results = selective_scan_backward(grad, *first, *others)
    given = (*first, saved.initial)
    slopes = [None if x is None else d.to(x.dtype) for x, d in zip(given, results, strict=True)]
    return *slopes[:8], None, slopes[8], None


@operator(mutates="state")
def selective_scan_step(
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
    """One position of each sequence: the state, [batch, channels, N], becomes the next one in
    place, and y is [batch, channels]. x, dt, z: [batch, channels]; b, c: [batch, N]. The rest is as
    in selective_scan.
    """
    operands = (x, dt, a, b, c, skip, z, dt_bias)
    _check(operands, tuple(x.shape[:1]))
    floats(state)
    expect(state, (x.shape[0], *a.shape), "state")
    out = empty(x)
    yield out
    tiles = _tiles(x.shape[-1], a.shape[1], softplus)
    x, dt, a, b, c, skip, z, dt_bias = all_contiguous(*operands)
    _step[tkc.cdiv(x.shape[1], tiles["D"]), x.shape[0]](
        x, dt, a, b, c, state, skip, z, dt_bias, out, **tiles
    )
