"""Mamba-1's selective scan: a state of N numbers a channel whose decay and input depend on the
position; forward, backward and one step of decoding.

    δ_t = softplus(dt_t + bias) or dt_t + bias,    S_t = exp(δ_t A) ∘ S_{t-1} + δ_t x_t B_tᵀ
    y_t = (S_t C_t + D x_t) · silu(z_t)

(Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.) A program
holds the states of a strip of channels, [channels, N], and has δ, the gate and the result of a few
positions as one tile, of which no number is in two threads. Where strips are few, sequences are cut
into segments: what each makes of nothing comes first, and exp(A Σ δ) composes these. For the
gradients the states before every KEPT_ROWS positions are kept, and those between computed again;
with G the gradient of the state, from the last position to the first,

    dr = dy · silu(z),   dz = dy · r · silu'(z) with r = S_t C_t + D x_t
    G += dr C_tᵀ,   dC_t = Σ dr S_t,   dB_t = Σ δ x G,   dx = δ G B_t + D dr
    dδ = x G B_t + Σ_n G A exp(δ A) S_{t-1},   dA += δ G exp(δ A) S_{t-1},   G = exp(δ A) G

where the sums of dB and dC over channels are partial sums of programs, added up in one order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tkc
from tkc.kernels.arrays import Array, all_contiguous, empty, expect, floats, power
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import LOG2E, extent, sequence, sequences_of
from tkc.kernels.operator import operator
from tkc.kernels.state_space import softplus_of, sum_of_parts

STATES = 512  # numbers of a program's states, [channels, N]: of one warp, 16 of a channel a thread
STEP_STATES = 1024  # of one step of decoding
ROWS = 4  # positions of a step
MAX_REGISTERS = 240  # of the gradients' threads: allowed 255, ptxas spills some of them
KEPT_ROWS = 4  # for the gradients, which hold the states of a step's positions at once
WARPS = 2  # of a program of the gradients: what one holds of these states spills
SEGMENT = 128  # positions of a segment, at least
FULL = 5 * PROGRAMS  # programs of one warp that fill a GPU
WIDEST_STATE = 64  # of N


def _row(x, t, at, N):
    return tkc.load(x, (t, at), (None, N)).to(tkc.float32)


def _channels(x, at, N):
    """Numbers of channels; None: 0."""
    return tkc.zeros((N,)) if x is None else tkc.load(x, (at,), (N,)).to(tkc.float32)


def _tile(x, t, at, ROWS, N):
    return tkc.load(x, (t, at), (ROWS, N)).to(tkc.float32)


def _steps(raw, t, length, SOFTPLUS, ROWS):
    """δ of dt + bias of ROWS positions. Past the end it is 0: the state stays."""
    return _inside(softplus_of(raw) if SOFTPLUS else raw, t, length, ROWS)


def _inside(tile, t, length, ROWS):
    """Of ROWS positions; 0 past the end."""
    return tkc.where((t + tkc.arange(ROWS) < length)[:, None], tile, 0.0)


def _state(x, channel, D, N):
    """A state, or its gradient; None: 0."""
    return tkc.zeros((D, N)) if x is None else tkc.load(x, (channel, 0), (D, N)).to(tkc.float32)


def _states(state, rate, step, growth, keys, ROWS):
    """Before each of ROWS positions and behind them."""
    states = [state]
    for r in range(ROWS):
        states.append(_moved(states[r], rate, step[r], growth[r], keys[r]))
    return states


def _moved(state, rate, step, growth, keys):
    """The next state; growth: δ x."""
    return state * tkc.exp2(step[:, None] * rate) + growth[:, None] * keys[None, :]


def _gated(result, gate):
    return result * gate * tkc.sigmoid(gate)


def _joined(rows):
    """Rows [1, n], whose number is a power of two, as one tile."""
    while len(rows) > 1:
        rows = [tkc.cat(*pair, axis=0) for pair in zip(rows[::2], rows[1::2], strict=True)]
    return rows[0]


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
    steps,
    kept,
    SOFTPLUS: tkc.constexpr,
    SEGMENTS: tkc.constexpr,
    ROWS: tkc.constexpr,
    D: tkc.constexpr,
    N: tkc.constexpr,
):
    """What is wanted of: out; final, the last state, or with steps each segment's, which begins
    with nothing, and the sum of its δ; kept, the states before every ROWS positions, [sequences,
    steps, channels, N]."""
    channel, segment, row = tkc.program_id(0) * D, tkc.program_id(1), tkc.program_id(2)
    x, dt, b, c, z, out = (sequence(v, starts, row) for v in (x, dt, b, c, z, out))
    rate = tkc.load(a, (channel, 0), (D, N)).to(tkc.float32) * LOG2E
    skipped, biased = _channels(skip, channel, D)[None, :], _channels(bias, channel, D)[None, :]
    if initial is not None:
        initial = initial[row] if len(initial.shape) == 3 else initial[row, segment]
    state, spent = _state(initial, channel, D, N), tkc.zeros((D,))
    first, count = extent(x.shape[0], segment, SEGMENTS, ROWS)
    for part in tkc.range(0, count):
        t = first + part * ROWS
        values, raw = (_tile(v, t, channel, ROWS, D) for v in (x, dt))
        step = _steps(raw + biased, t, x.shape[0], SOFTPLUS, ROWS)
        keys, growth, results = _tile(b, t, 0, ROWS, N), step * values, []
        if kept is not None:
            tkc.store(kept[row, t // ROWS], (channel, 0), state)
        if out is not None:
            queries = _tile(c, t, 0, ROWS, N)
        if steps is not None:
            spent = spent + tkc.sum(step, axis=0)
        for r in range(ROWS):
            state = _moved(state, rate, step[r], growth[r], keys[r])
            if out is not None:
                results.append(tkc.sum(state * queries[r][None, :], axis=1)[None, :])
        if out is not None:
            result = _joined(results) + skipped * values
            result = result if z is None else _gated(result, _tile(z, t, channel, ROWS, D))
            tkc.store(out, (t, channel), result.to(out.dtype))
    if steps is not None:
        tkc.store(steps[row], (segment, channel), spent[None, :])
        tkc.store(final[row, segment], (channel, 0), state)
    elif final is not None:
        tkc.store(final[row], (channel, 0), state)


@tkc.jit
def _compose(a, initial, steps, states, final, D: tkc.constexpr, N: tkc.constexpr):
    """Each segment's state becomes the one before it."""
    channel, row = tkc.program_id(0) * D, tkc.program_id(1)
    rate = tkc.load(a, (channel, 0), (D, N)).to(tkc.float32) * LOG2E
    state = _state(initial if initial is None else initial[row], channel, D, N)
    for segment in tkc.range(0, steps.shape[1]):
        spent = _row(steps[row], segment, channel, D)
        made = tkc.load(states[row, segment], (channel, 0), (D, N))
        tkc.store(states[row, segment], (channel, 0), state)
        state = state * tkc.exp2(spent[:, None] * rate) + made
    if final is not None:
        tkc.store(final[row], (channel, 0), state)


def _ungated(slopes, result, gate, dz, t, channel):
    """dr; stores dz."""
    s = tkc.sigmoid(gate)
    of_gate = slopes * result * (s * (1 + gate * (1 - s)))
    tkc.store(dz, (t, channel), of_gate.to(dz.dtype))
    return slopes * gate * s


def _put_sums(parts, t, slopes, state, slope, growth):
    """A strip's parts of dC and dB of a position."""
    for x, tile in zip(parts, (slopes[:, None] * state, slope * growth[:, None]), strict=True):
        tkc.store(x, (t, 0), tkc.sum(tile, axis=0)[None, :])


def _of_steps(change, raw, SOFTPLUS):
    """The gradients of dt from those of δ."""
    return change * tkc.sigmoid(raw) if SOFTPLUS else change


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
    skipped, biased = _channels(skip, channel, D)[None, :], _channels(bias, channel, D)[None, :]
    slope, of_rate = _state(last if last is None else last[row], channel, D, N), tkc.zeros((D, N))
    of_skip, of_bias = tkc.zeros((D,)), tkc.zeros((D,))
    steps = tkc.cdiv(x.shape[0], ROWS)
    for at in tkc.range(0, steps):
        t = (steps - 1 - at) * ROWS
        values, raw, slopes = (_tile(v, t, channel, ROWS, D) for v in (x, dt, grad))
        step = _steps(raw + biased, t, x.shape[0], SOFTPLUS, ROWS)
        keys, queries = (_tile(v, t, 0, ROWS, N) for v in (b, c))
        growth, before = step * values, _state(kept[row, t // ROWS], channel, D, N)
        states, along, changes = _states(before, rate, step, growth, keys, ROWS), [], []
        if z is not None:
            results = [tkc.sum(states[r + 1] * queries[r][None, :], axis=1) for r in range(ROWS)]
            result = _joined([each[None, :] for each in results]) + skipped * values
            slopes = _ungated(slopes, result, _tile(z, t, channel, ROWS, D), dz, t, channel)
        of_skip = of_skip + tkc.sum(slopes * values, axis=0)
        for r in reversed(range(ROWS)):
            slope = slope + slopes[r][:, None] * queries[r][None, :]
            _put_sums((of_c, of_b), t + r, slopes[r], states[r + 1], slope, growth[r])
            along.append(tkc.sum(slope * keys[r][None, :], axis=1)[None, :])
            slope = slope * tkc.exp2(step[r][:, None] * rate)
            decayed = slope * states[r]
            of_rate = of_rate + decayed * step[r][:, None]
            changes.append(tkc.sum(decayed * rate, axis=1)[None, :])
        along, changes = (_joined(rows[::-1]) for rows in (along, changes))
        tkc.store(dx, (t, channel), (along * step + slopes * skipped).to(dx.dtype))
        change = _of_steps(along * values + changes * (1 / LOG2E), raw + biased, SOFTPLUS)
        change = _inside(change, t, x.shape[0], ROWS)
        tkc.store(ddt, (t, channel), change.to(ddt.dtype))
        of_bias = of_bias + tkc.sum(change, axis=0)
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
    here = _moved(here, rate, step, step * values, _row(b, row, 0, N))
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


def _tiles(channels: int, width: int, states: int = STATES) -> dict:
    return {"D": min(states // max(16, power(width)), power(channels)), "N": power(width)}


def _segments(x: Array, programs: int, sequences: int) -> int:
    """Of a sequence. Decays are computed twice where there are several: that costs less than
    multiprocessors with few programs."""
    longest = x.shape[0] * x.shape[1] // max(sequences, 1)
    return max(1, min(FULL // max(programs, 1), longest // SEGMENT)) if 4 * programs <= FULL else 1


def _launch(
    operands: Sequence,
    initial: Array | None,
    starts: Array | None,
    out: Array | None,
    final: Array | None,
    kept: Array | None,
    rows: int,
    softplus: bool,
) -> None:
    """Writes the result, the last state and the states before every `rows` positions, if wanted."""
    x, a = operands[0], operands[2]
    channels, width = a.shape
    sequences = sequences_of(x, starts, "selective_scan")
    tiles = {**_tiles(channels, width), "num_warps": 1}
    strips = tkc.cdiv(channels, tiles["D"])
    count = _segments(x, strips * sequences, sequences)
    grid, common = (strips, count, sequences), {"SOFTPLUS": softplus, "SEGMENTS": count, **tiles}
    if count > 1:
        steps = empty(x, (sequences, count, channels), "float32")
        states = empty(x, (sequences, count, channels, width), "float32")
        made = (None, starts, None, states, steps, None)
        _scan[grid](*operands, *made, ROWS=ROWS, **common)
        _compose[strips, sequences](a, initial, steps, states, final, **tiles)
        initial, final = states, None
    _scan[grid](*operands, initial, starts, out, final, None, kept, ROWS=rows, **common)


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
    *given, initial = all_contiguous(*operands, initial)
    _launch(given, initial, cu_seqlens, out, final, None, ROWS, softplus)


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
    tiles = _tiles(channels, width)
    strips, count = tkc.cdiv(channels, tiles["D"]), b.shape[0] * b.shape[1] * width
    steps = max(1, tkc.cdiv(x.shape[1], KEPT_ROWS))
    kept = empty(x, (sequences, steps, channels, width), "float32")
    given = all_contiguous(*operands)
    grad, initial, last = all_contiguous(grad, initial, grad_final)
    _launch(given, initial, cu_seqlens, None, None, kept, KEPT_ROWS, softplus)
    parts = empty(x, (2, strips, *b.shape), "float32")
    rates = empty(x, (sequences, channels, width), "float32")
    skips, biases = (empty(x, (sequences, channels), "float32") for _ in range(2))
    _scan_backward[strips, sequences](
        grad,
        *given,
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
        SOFTPLUS=softplus,
        ROWS=KEPT_ROWS,
        num_warps=WARPS,
        maxnreg=MAX_REGISTERS,
        **tiles,
    )
    for i, out in enumerate((db, dc)):
        sum_of_parts(parts[i].reshape((strips, count)), out.reshape((count,)))
    sum_of_parts(rates.reshape((sequences, channels * width)), da.reshape((channels * width,)))
    for wanted, part, out in (skip, skips, dskip), (dt_bias, biases, dbias):
        if wanted is not None:
            sum_of_parts(part, out)


selective_scan.gradient_by(
    selective_scan_backward, "x dt a b c skip z dt_bias initial", grads="grad grad_final", like="x"
)


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
    tiles = {**_tiles(x.shape[-1], a.shape[1], STEP_STATES), "SOFTPLUS": softplus}
    x, dt, a, b, c, skip, z, dt_bias = all_contiguous(*operands)
    _step[tkc.cdiv(x.shape[1], tiles["D"]), x.shape[0]](
        x, dt, a, b, c, state, skip, z, dt_bias, out, **tiles
    )
