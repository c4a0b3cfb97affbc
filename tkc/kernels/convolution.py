"""Short causal convolution of each channel along the positions, forward, backward and one step.

    u_t = b + Σ_{w<W} x_{t-W+1+w} k_w,    y_t = u_t, or u_t / (1 + exp(-u_t)) (silu)

    du = dy · act'(u),   dx_t = Σ_w du_{t+W-1-w} k_w,   dk_w = Σ_t du_t x_{t-W+1+w},   db = Σ_t du_t

Before a sequence stands its state: the W - 1 inputs before it, or zeros. A program holds a strip of
channels and reads the rows of its positions one by one, so that each input is read once but for the
W - 1 rows before a program's first (the layer: Gu and Dao, "Mamba", 2023). Sums over positions are
partial sums of programs, added up in one order.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from tkc.kernels.chunks import LOG2E, sequence, sequences_of
from tkc.kernels.operator import operator

STRIP = 1024  # channels of a program
ROWS = 16  # positions of a program
BACKWARD_ROWS, STEPS = 8, 16  # of a step of the backward pass, and steps, as it has sums to write


def _row(x, state, t, channel, W, N):
    """The inputs at position t, which may stand in the state before the sequence."""
    row = tkc.load(x, (t, channel), (None, N)).to(tkc.float32)
    if state is None:
        return row
    return row + tkc.load(state, (t + W - 1, channel), (None, N)).to(tkc.float32)


def _taps(weight, bias, channel, W, N):
    """The weights of each tap, and the bias."""
    taps = [tkc.load(weight, (channel, w), (N, None)).to(tkc.float32) for w in range(W)]
    if bias is None:
        return taps, None
    return taps, tkc.load(bias, (channel,), (N,)).to(tkc.float32)


def _sum_of_taps(rows, taps, bias):
    total = rows[0] * taps[0]
    for row, tap in zip(rows[1:], taps[1:], strict=True):
        total = total + row * tap
    return total if bias is None else total + bias


def _sigmoid(u):
    return 1 / (1 + tkc.exp2(u * -LOG2E))


@tkc.jit
def _convolve(
    x,
    weight,
    bias,
    state,
    starts,
    out,
    final,
    SILU: tkc.constexpr,
    W: tkc.constexpr,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    channel, first, z = tkc.program_id(0) * N, tkc.program_id(1) * ROWS, tkc.program_id(2)
    x, out = sequence(x, starts, z), sequence(out, starts, z)
    before, length = None if state is None else state[z], x.shape[0]
    if first == 0:
        for w in tkc.static_range(W - 1):
            last = _row(x, before, length - W + 1 + w, channel, W, N)
            tkc.store(final[z], (w, channel), last.to(final.dtype)[None, :])
    if first < length:
        taps, offset = _taps(weight, bias, channel, W, N)
        rows = [_row(x, before, first - W + 1 + r, channel, W, N) for r in range(ROWS + W - 1)]
        for r in tkc.static_range(ROWS):
            u = _sum_of_taps(rows[r : r + W], taps, offset)
            y = u * _sigmoid(u) if SILU else u
            tkc.store(out, (first + r, channel), y.to(out.dtype)[None, :])


def _du(grad, x, before, t, channel, taps, offset, SILU, W, N, COUNT):
    """The gradients of u at COUNT positions from t, and the inputs from t - W + 1."""
    rows = [_row(x, before, t - W + 1 + r, channel, W, N) for r in range(COUNT + W - 1)]
    found = []
    for r in range(COUNT):
        g = tkc.load(grad, (t + r, channel), (None, N)).to(tkc.float32)
        if SILU:
            u = _sum_of_taps(rows[r : r + W], taps, offset)
            s = _sigmoid(u)
            g = g * (s * (1 + u * (1 - s)))
        found.append(g)
    return found, rows


@tkc.jit
def _convolve_backward(
    grad,
    grad_final,
    x,
    weight,
    bias,
    state,
    starts,
    out,
    sums,
    SILU: tkc.constexpr,
    W: tkc.constexpr,
    ROWS: tkc.constexpr,
    STEPS: tkc.constexpr,
    N: tkc.constexpr,
):
    channel, part, z = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    grad, x, out = (sequence(a, starts, z) for a in (grad, x, out))
    before, after = (None if a is None else a[z] for a in (state, grad_final))
    length = x.shape[0]
    taps, offset = _taps(weight, bias, channel, W, N)
    by_tap = [tkc.zeros((N,)) for _ in range(W)]
    by_bias = tkc.zeros((N,))
    for step in tkc.range(0, STEPS):
        t = (part * STEPS + step) * ROWS
        found, rows = _du(grad, x, before, t, channel, taps, offset, SILU, W, N, ROWS + W - 1)
        for r in range(ROWS):
            total = _sum_of_taps(found[r : r + W], taps[::-1], None)
            if after is not None:
                at = t + r - length + W - 1
                total = total + tkc.load(after, (at, channel), (None, N)).to(tkc.float32)
            tkc.store(out, (t + r, channel), total.to(out.dtype)[None, :])
            by_bias = by_bias + found[r]
            by_tap = [by_tap[w] + found[r] * rows[r + w] for w in range(W)]
    row = z * tkc.num_programs(1) + part
    for w in range(W):
        tkc.store(sums[row], (w, channel), by_tap[w][None, :])
    tkc.store(sums[row], (W, channel), by_bias[None, :])


@tkc.jit
def _state_gradient(
    grad,
    grad_final,
    x,
    weight,
    bias,
    state,
    starts,
    out,
    SILU: tkc.constexpr,
    W: tkc.constexpr,
    N: tkc.constexpr,
):
    """Of the inputs before the sequence."""
    channel, z = tkc.program_id(0) * N, tkc.program_id(1)
    grad, x = sequence(grad, starts, z), sequence(x, starts, z)
    taps, offset = _taps(weight, bias, channel, W, N)
    found, _ = _du(grad, x, state[z], 0, channel, taps, offset, SILU, W, N, W - 1)
    for r in tkc.static_range(W - 1):
        # position r - W + 1 reaches positions 0 … r, by its last taps
        total = tkc.zeros((N,))
        for s in tkc.static_range(r + 1):
            total = total + found[s] * taps[r - s]
        if grad_final is not None:
            at = r - x.shape[0]
            total = total + tkc.load(grad_final[z], (at, channel), (None, N)).to(tkc.float32)
        tkc.store(out[z], (r, channel), total.to(out.dtype)[None, :])


@tkc.jit
def _sum_parts(sums, weight, bias, W: tkc.constexpr, N: tkc.constexpr):
    channel = tkc.program_id(0) * N
    for w in tkc.static_range(W + 1):
        total = tkc.zeros((16, N))
        for part in tkc.range(0, sums.shape[0], 16):
            total = total + tkc.load(sums, (part, w, channel), (16, None, N))
        whole = tkc.sum(total, axis=0)
        if w < W:
            tkc.store(weight, (channel, w), whole.to(weight.dtype)[:, None])
        else:
            tkc.store(bias, (channel,), whole.to(bias.dtype))


@tkc.jit
def _convolve_step(
    x, weight, bias, state, out, SILU: tkc.constexpr, W: tkc.constexpr, N: tkc.constexpr
):
    channel, z = tkc.program_id(0) * N, tkc.program_id(1)
    taps, offset = _taps(weight, bias, channel, W, N)
    rows = [tkc.load(state[z], (w, channel), (None, N)) for w in range(W - 1)]
    rows = [*rows, tkc.load(x, (z, channel), (None, N)).to(state.dtype)]
    u = _sum_of_taps([row.to(tkc.float32) for row in rows], taps, offset)
    y = u * _sigmoid(u) if SILU else u
    tkc.store(out, (z, channel), y.to(out.dtype)[None, :])
    for w in tkc.static_range(W - 1):
        tkc.store(state[z], (w, channel), rows[w + 1][None, :])


def _width(x: Array, weight: Array, bias: Array | None, activation: str) -> int:
    """The number of taps. Raises LaunchError for what does not fit."""
    floats(x, weight, bias)
    channels = x.shape[-1]
    if len(weight.shape) != 2 or weight.shape[0] != channels or not 2 <= weight.shape[1] <= 4:
        raise tkc.LaunchError(
            f"causal_conv1d: weight is [{channels}, 2 to 4] for {channels} channels, got"
            f" {list(weight.shape)}"
        )
    expect(bias, (channels,), "bias")
    if activation not in ("", "silu"):
        raise tkc.LaunchError(f"causal_conv1d: activation is 'silu' or '', got {activation!r}")
    return weight.shape[1]


def _strip(channels: int) -> int:
    return max(1, min(STRIP, power(channels)))


def _count(x: Array, starts: Array | None) -> int:
    """How many sequences there are. Raises LaunchError where x does not fit."""
    if len(x.shape) != 3:
        raise tkc.LaunchError(
            f"causal_conv1d: x is [batch, positions, channels], got {list(x.shape)}"
        )
    return sequences_of(x, starts, "causal_conv1d")


@operator
def causal_conv1d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    state: Array | None = None,
    activation: str = "silu",
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
) -> Iterator[tuple[Array, Array]]:
    """act(bias + Σ_w x_{t-W+1+w} weight_w) of each channel, and the last W - 1 inputs, [sequences,
    W - 1, channels], which are the next call's state.

    x: [batch, positions, channels]; weight: [channels, W], W from 2 to 4; bias: [channels]; state:
    the inputs before, zeros by default; activation: "silu" or "". cu_seqlens: x is [1, positions,
    channels] of sequences that begin at these positions, int32 [sequences + 1]; max_seqlen: the
    longest length, where it is known. Computed in float32, of x's element type. Raises LaunchError
    where a shape does not fit.
    """
    width, sequences = _width(x, weight, bias, activation), _count(x, cu_seqlens)
    before = (sequences, width - 1, x.shape[2])
    expect(state, before, "state")
    out, final = empty(x), empty(x, before)
    yield out, final
    x, weight = contiguous(x), contiguous(weight)
    strip, longest = _strip(x.shape[2]), max_seqlen or x.shape[1]
    _convolve[tkc.cdiv(x.shape[2], strip), max(1, tkc.cdiv(longest, ROWS)), sequences](
        x,
        weight,
        *all_contiguous(bias, state),
        cu_seqlens,
        out,
        final,
        SILU=activation == "silu",
        W=width,
        ROWS=ROWS,
        N=strip,
    )


@operator
def causal_conv1d_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    state: Array | None = None,
    activation: str = "silu",
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    grad_final: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """The gradients of x, weight, bias and state (which has no elements without a state) from those
    of the result and of the last inputs.
    """
    width, sequences = _width(x, weight, bias, activation), _count(x, cu_seqlens)
    expect(grad, x.shape, "grad")
    before = (sequences, width - 1, x.shape[2])
    expect(state, before, "state")
    expect(grad_final, before, "grad_final")
    dx, dw = empty(x), empty(weight)
    db = empty(x, x.shape[2:], dtype_of(weight if bias is None else bias))
    ds = empty(x, (0,) if state is None else before)
    yield dx, dw, db, ds
    grad, grad_final, x, weight, bias, state = all_contiguous(
        grad, grad_final, x, weight, bias, state
    )
    # two tiles of rows are held: shorter strips
    strip, longest = min(256, _strip(x.shape[2])), max_seqlen or x.shape[1]
    strips, parts = tkc.cdiv(x.shape[2], strip), max(1, tkc.cdiv(longest, BACKWARD_ROWS * STEPS))
    sums = empty(x, (sequences * parts, width + 1, x.shape[2]), "float32")
    given = (grad, grad_final, x, weight, bias, state, cu_seqlens)
    options = {"SILU": activation == "silu", "W": width, "N": strip}
    _convolve_backward[strips, parts, sequences](
        *given, dx, sums, ROWS=BACKWARD_ROWS, STEPS=STEPS, **options
    )
    _sum_parts[tkc.cdiv(x.shape[2], 64)](sums, dw, db, W=width, N=64)
    if state is not None:
        _state_gradient[strips, sequences](*given, ds, **options)


causal_conv1d.gradient_by(
    causal_conv1d_backward, "x weight bias state", grads="grad grad_final", like="x"
)


@operator(mutates="state")
def causal_conv1d_step(
    x: Array, weight: Array, bias: Array | None, state: Array, activation: str = "silu"
) -> Iterator[Array]:
    """One position of each sequence: x and the result are [batch, channels], and the state, [batch,
    W - 1, channels], goes on by one position in place. The rest is as in causal_conv1d.
    """
    width = _width(x, weight, bias, activation)
    expect(state, (x.shape[0], width - 1, x.shape[1]), "state")
    out = empty(x)
    yield out
    strip = _strip(x.shape[1])
    _convolve_step[tkc.cdiv(x.shape[1], strip), x.shape[0]](
        contiguous(x),
        contiguous(weight),
        None if bias is None else contiguous(bias),
        state,
        out,
        SILU=activation == "silu",
        W=width,
        N=strip,
    )
