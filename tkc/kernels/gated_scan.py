"""The scan of HGRN, elementwise: a state of one number a channel.

    h_t = exp(g_t) h_{t-1} + x_t
    dx_t = dh_t + exp(g_{t+1}) dx_{t+1},    dg_t = dx_t exp(g_t) h_{t-1}

(Qin et al., "Hierarchically gated recurrent neural network", 2023.) A program holds a strip of
channels and reads the rows of its positions ahead of the chain of products. Where that gives too
few programs, sequences are cut into segments: what each makes of nothing comes first, and the
composition of these in order gives the state before each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tkc
from tkc.kernels.arrays import Array, all_contiguous, contiguous, empty, expect, floats, power
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.chunks import LOG2E, extent, sequence, sequences_of
from tkc.kernels.operator import operator

STRIP = 128  # channels of a program: few, so that there are many programs
ROWS = 16  # positions of a step
SEGMENT = 128  # positions of a segment, at least


def _row(x, t, channel, N):
    return tkc.load(x, (t, channel), (None, N)).to(tkc.float32)


@tkc.jit
def _segments(
    x,
    g,
    starts,
    states,
    decays,
    REVERSE: tkc.constexpr,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    """What each segment makes of nothing, and the base-2 logarithm of its decay."""
    channel, segment, z = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    x, g = (sequence(a, starts, z) for a in (x, g))
    first, steps = extent(x.shape[0], segment, states.shape[1], ROWS)
    state, total = tkc.zeros((N,)), tkc.zeros((N,))
    for step in tkc.range(0, steps):
        t = first + (steps - 1 - step if REVERSE else step) * ROWS
        rows, gates = ([_row(a, t + r, channel, N) for r in range(ROWS)] for a in (x, g))
        for r in reversed(range(ROWS)) if REVERSE else range(ROWS):
            decay, gate = tkc.exp2(gates[r] * LOG2E), gates[r] * LOG2E
            state = (state + rows[r]) * decay if REVERSE else state * decay + rows[r]
            total = total + gate
    tkc.store(states[z], (segment, channel), state[None, :])
    tkc.store(decays[z], (segment, channel), total[None, :])


@tkc.jit
def _compose(states, decays, initial, final, REVERSE: tkc.constexpr, N: tkc.constexpr):
    """Each segment's state becomes the one before it."""
    channel, z, state = tkc.program_id(0) * N, tkc.program_id(1), tkc.zeros((N,))
    if initial is not None:
        state = _row(initial, z, channel, N)
    for i in tkc.range(0, states.shape[1]):
        segment = states.shape[1] - 1 - i if REVERSE else i
        local, decay = (_row(a[z], segment, channel, N) for a in (states, decays))
        tkc.store(states[z], (segment, channel), state[None, :])
        state = state * tkc.exp2(decay) + local
    if final is not None:
        tkc.store(final, (z, channel), state[None, :])


def _before(states, z, segment, channel, N):
    """The state [sequences, (segments,) channels] that a program begins with; None: zeros."""
    if states is None:
        return tkc.zeros((N,))
    return _row(states if len(states.shape) == 2 else states[z], segment, channel, N)


@tkc.jit
def _scan(
    x,
    g,
    initial,
    starts,
    out,
    final,
    SEGMENTS: tkc.constexpr,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    channel, segment, z = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    x, g, out = (sequence(a, starts, z) for a in (x, g, out))
    state = _before(initial, z, z if SEGMENTS == 1 else segment, channel, N)
    first, steps = extent(x.shape[0], segment, SEGMENTS, ROWS)
    for step in tkc.range(0, steps):
        t = first + step * ROWS
        rows = [(_row(x, t + r, channel, N), _row(g, t + r, channel, N)) for r in range(ROWS)]
        for r in range(ROWS):  # past the end x and g are 0: the state stays
            state = state * tkc.exp2(rows[r][1] * LOG2E) + rows[r][0]
            tkc.store(out, (t + r, channel), state.to(out.dtype)[None, :])
    if final is not None:
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
    slopes,
    SEGMENTS: tkc.constexpr,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    channel, segment, z = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    grad, g, h, dx, dg = (sequence(a, starts, z) for a in (grad, g, h, dx, dg))
    slope = _before(last, z, z if SEGMENTS == 1 else segment, channel, N)
    before = _before(initial, z, z, channel, N)
    first, steps = extent(grad.shape[0], segment, SEGMENTS, ROWS)
    for step in tkc.range(0, steps):
        t = first + (steps - 1 - step) * ROWS
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
    if slopes is not None:
        tkc.store(slopes, (z, channel), slope[None, :])


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


class _Call(NamedTuple):
    """How a call is cut: channels of a strip, and segments of a sequence."""

    strip: int
    segments: int
    grid: tuple[int, int, int]

    @property
    def sizes(self) -> dict[str, int]:
        return {"ROWS": ROWS, "N": self.strip}


def _call(x: Array, sequences: int) -> _Call:
    strip, (batch, length, channels) = _strip(x.shape[2]), x.shape
    programs = max(1, tkc.cdiv(channels, strip) * sequences)
    longest = batch * length // max(sequences, 1)
    # what is read twice costs less than half of a GPU that has no program
    segments = 1
    if 4 * programs <= PROGRAMS:
        segments = max(1, min(PROGRAMS * 4 // programs, longest // SEGMENT))
    return _Call(strip, segments, (tkc.cdiv(channels, strip), segments, sequences))


def _begun(
    call: _Call,
    x: Array,
    g: Array,
    starts: Array | None,
    initial: Array | None,
    final: Array | None,
    reverse: bool,
) -> tuple[Array | None, Array | None]:
    """The states that programs begin with, and where they store the last one."""
    if call.segments == 1:
        return initial, final
    strips, segments, sequences = call.grid
    states, decays = (empty(x, (sequences, segments, x.shape[2]), "float32") for _ in range(2))
    _segments[call.grid](x, g, starts, states, decays, REVERSE=reverse, **call.sizes)
    _compose[strips, sequences](states, decays, initial, final, REVERSE=reverse, N=call.strip)
    return states, None


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
    x, g, initial = all_contiguous(x, g, initial)
    call = _call(x, sequences)
    initial, last = _begun(call, x, g, cu_seqlens, initial, final, False)
    _scan[call.grid](x, g, initial, cu_seqlens, out, last, SEGMENTS=call.segments, **call.sizes)


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
    grad, g, h, initial, after = all_contiguous(grad, g, h, initial, grad_final)
    call, slopes = _call(grad, sequences), None if initial is None else ds
    after, slopes = _begun(call, grad, g, cu_seqlens, after, slopes, True)
    given = grad, g, h, initial, after, cu_seqlens, dx, dg, slopes
    _scan_backward[call.grid](*given, SEGMENTS=call.segments, **call.sizes)


hgrn.gradient_by(hgrn_backward, "x g initial", grads="grad grad_final", results="h final", like="h")


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
