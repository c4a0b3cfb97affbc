"""The scan of HGRN, elementwise: a state of one number a channel.

    h_t = exp(g_t) h_{t-1} + x_t
    dx_t = dh_t + exp(g_{t+1}) dx_{t+1},    dg_t = dx_t exp(g_t) h_{t-1}

(Qin et al., "Hierarchically gated recurrent neural network", 2023.) A program holds a strip of
channels and reads the rows of its positions ahead of the chain of products.
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import Array, all_contiguous, contiguous, empty, expect, floats, power
from tkc.kernels.chunks import LOG2E, sequence, sequences_of
from tkc.kernels.operator import operator

STRIP = 128  # channels of a program: few, so that there are many programs
ROWS = 16  # positions of a step


def _row(x, t, channel, N):
    return tkc.load(x, (t, channel), (None, N)).to(tkc.float32)


@tkc.jit
def _scan(
    x,
    g,
    initial,
    starts,
    out,
    final,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    channel, z = tkc.program_id(0) * N, tkc.program_id(1)
    x, g, out = (sequence(a, starts, z) for a in (x, g, out))
    state = tkc.zeros((N,))
    if initial is not None:
        state = tkc.load(initial, (z, channel), (None, N)).to(tkc.float32)
    for t in tkc.range(0, x.shape[0], ROWS):
        rows = [(_row(x, t + r, channel, N), _row(g, t + r, channel, N)) for r in range(ROWS)]
        for r in range(ROWS):  # past the end x and g are 0: the state stays
            state = state * tkc.exp2(rows[r][1] * LOG2E) + rows[r][0]
            tkc.store(out, (t + r, channel), state.to(out.dtype)[None, :])
    tkc.store(final, (z, channel), state[None, :])


@tkc.jit
def _scan_backward(
    grad,
    g,
    h,
    initial,
    last,
    starts,
    dx,
    dg,
    first,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    channel, z = tkc.program_id(0) * N, tkc.program_id(1)
    grad, g, h, dx, dg = (sequence(a, starts, z) for a in (grad, g, h, dx, dg))
    slope, before = tkc.zeros((N,)), tkc.zeros((N,))
    if last is not None:
        slope = tkc.load(last, (z, channel), (None, N)).to(tkc.float32)
    if initial is not None:
        before = tkc.load(initial, (z, channel), (None, N)).to(tkc.float32)
    steps = tkc.cdiv(grad.shape[0], ROWS)
    for step in tkc.range(0, steps):
        t = (steps - 1 - step) * ROWS
        grads, gates = ([_row(a, t + r, channel, N) for r in range(ROWS)] for a in (grad, g))
        states = [_row(h, t + r - 1, channel, N) for r in range(ROWS)]
        for r in reversed(range(ROWS)):
            slope = slope + grads[r]
            tkc.store(dx, (t + r, channel), slope.to(dx.dtype)[None, :])
            state = states[r]
            if r == 0:
                state = tkc.where(t == 0, before, state)
            slope = slope * tkc.exp2(gates[r] * LOG2E)
            tkc.store(dg, (t + r, channel), (slope * state).to(dg.dtype)[None, :])
    if first is not None:
        tkc.store(first, (z, channel), slope[None, :])


@tkc.jit
def _scan_step(x, g, state, out, N: tkc.constexpr):
    channel, z = tkc.program_id(0) * N, tkc.program_id(1)
    here = _row(state, z, channel, N) * tkc.exp2(_row(g, z, channel, N) * LOG2E)
    here = here + _row(x, z, channel, N)
    tkc.store(state, (z, channel), here.to(state.dtype)[None, :])
    tkc.store(out, (z, channel), here.to(out.dtype)[None, :])


def _sequences(x: Array, g: Array, initial: Array | None, starts: Array | None) -> int:
    """How many there are. Raises LaunchError for what does not fit."""
    floats(x, g, initial)
    if len(x.shape) != 3:
        raise tkc.LaunchError(f"hgrn: x is [batch, positions, channels], got {list(x.shape)}")
    expect(g, x.shape, "g")
    sequences = sequences_of(x, starts, "hgrn")
    expect(initial, (sequences, x.shape[2]), "initial")
    return sequences


def _strip(channels: int) -> int:
    return max(1, min(STRIP, power(channels)))


@operator
def hgrn(
    x: Array, g: Array, initial: Array | None = None, cu_seqlens: Array | None = None
) -> Iterator[tuple[Array, Array]]:
    """h_t = exp(g_t) h_{t-1} + x_t of each channel: h of x's shape and element type, and the last
    state, float32 [sequences, channels].

    x, g: [batch, positions, channels]; g: natural logarithm of the decay, not above 0. initial: the
    state before. cu_seqlens: x is [1, positions, channels] of sequences that begin at these
    positions, int32 [sequences + 1]. The state is float32. Raises LaunchError where a shape or type
    does not fit.
    """
    sequences, channels = _sequences(x, g, initial, cu_seqlens), x.shape[2]
    out, final = empty(x), empty(x, (sequences, channels), "float32")
    yield out, final
    strip = _strip(channels)
    x, g, initial = all_contiguous(x, g, initial)
    _scan[tkc.cdiv(channels, strip), sequences](
        x, g, initial, cu_seqlens, out, final, ROWS=ROWS, N=strip
    )


@operator
def hgrn_backward(
    grad: Array,
    g: Array,
    h: Array,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    grad_final: Array | None = None,
) -> Iterator[tuple[Array, Array, Array]]:
    """The gradients of x, g and initial (float32; without elements where there is none) from those
    of the result h and of the last state.
    """
    sequences, channels = _sequences(grad, g, initial, cu_seqlens), grad.shape[2]
    expect(h, grad.shape, "h")
    expect(grad_final, (sequences, channels), "grad_final")
    dx, dg = empty(h), empty(g)
    ds = empty(h, (0,) if initial is None else initial.shape, "float32")
    yield dx, dg, ds
    strip = _strip(channels)
    given = all_contiguous(grad, g, h, initial, grad_final)
    _scan_backward[tkc.cdiv(channels, strip), sequences](
        *given, cu_seqlens, dx, dg, None if initial is None else ds, ROWS=ROWS, N=strip
    )


@hgrn.backward(saves="g initial cu_seqlens result", zeros=False)
def _(saved, grad, grad_final):
    h = saved.result[0]
    grad = h.new_zeros(h.shape) if grad is None else grad
    dx, dg, ds = hgrn_backward(grad, saved.g, h, saved.initial, saved.cu_seqlens, grad_final)
    return dx, dg, None if saved.initial is None else ds.to(saved.initial.dtype), None


@operator(mutates="state")
def hgrn_step(x: Array, g: Array, state: Array) -> Iterator[Array]:
    """One position of each sequence: x, g and the result are [batch, channels], and the state, of
    the same shape, becomes the next one in place.
    """
    floats(x, g, state)
    expect(g, x.shape, "g")
    expect(state, x.shape, "state")
    out = empty(x)
    yield out
    strip = _strip(x.shape[1])
    _scan_step[tkc.cdiv(x.shape[1], strip), x.shape[0]](
        contiguous(x), contiguous(g), state, out, N=strip
    )
