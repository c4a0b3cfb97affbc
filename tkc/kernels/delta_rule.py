"""The delta rule with a decay a head (gated delta rule), a channel (Kimi delta attention) or none,
in chunks, forward, backward and one step of decoding.

    R = Diag(exp g_t) S_{t-1},   S_t = R + β_t k_t (v_t - Rᵀ k_t)ᵀ,   o_t = scale · S_tᵀ q_t

recurrences.py says how it is computed. The inverse of a unit triangular matrix that it needs is by
forward substitution in float32 in blocks of 16 rows, and from blocks of s rows to those of 2 s by

    [[A, 0], [c, B]]^-1 = [[A^-1, 0], [-B^-1 c A^-1, B^-1]]

A sum of powers would not do: its terms grow where keys are alike, while the inverse does not.
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import Array, all_contiguous, dtype_of, empty, expect, floats, power
from tkc.kernels.chunks import WIDEST, decayed_step, is_shared, sequences_of
from tkc.kernels.operator import operator
from tkc.kernels.recurrences import Gradients, Recurrence, backward, forward


@tkc.jit
def _step(
    q,
    k,
    v,
    beta,
    g,
    state,
    out,
    scale,
    NORMALIZE: tkc.constexpr,
    GROUPS: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    column, head, z = tkc.program_id(0) * V, tkc.program_id(1), tkc.program_id(2)
    queries = tkc.load(q, (z, head // GROUPS[0], 0), (None, None, K)).to(tkc.float32)
    keys = tkc.load(k, (z, head // GROUPS[1], 0), (None, None, K)).to(tkc.float32)
    values = tkc.load(v, (z, head, column), (None, None, V)).to(tkc.float32)
    if NORMALIZE:
        queries = queries * tkc.rsqrt(tkc.sum(queries * queries) + 1e-6)
        keys = keys * tkc.rsqrt(tkc.sum(keys * keys) + 1e-6)
    here = tkc.load(state[z, head], (0, column), (K, V)).to(tkc.float32)
    here = decayed_step(here, g, z, head, K)
    known = tkc.sum(keys[:, None] * here, axis=0)
    here = here + keys[:, None] * ((values - known) * beta[z, head].to(tkc.float32))[None, :]
    tkc.store(state[z, head], (0, column), here.to(state.dtype))
    result = tkc.sum(queries[:, None] * here, axis=0) * scale
    tkc.store(out, (z, head, column), result.to(out.dtype)[None, None, :])


def _check(q: Array, k: Array, v: Array, beta: Array, g: Array | None, row: tuple) -> None:
    """Raises LaunchError for what does not fit; row: all axes of v but its last."""
    floats(q, k, v, beta, g)
    if len(v.shape) != len(row) + 1 or len(q.shape) != len(v.shape):
        raise tkc.LaunchError(
            f"delta rule: q, k and v are [batch, positions, heads, width], got {list(q.shape)} and"
            f" {list(v.shape)}"
        )
    expect(q, (*row[:-1], *q.shape[-2:]), "q")
    expect(k, (*row[:-1], k.shape[-2], q.shape[-1]), "k")
    expect(beta, row, "beta")
    if g is not None:
        expect(g, row if len(g.shape) == len(row) else (*row, q.shape[-1]), "g")
    if not is_shared(row[-1], q.shape[-2], k.shape[-2]):
        raise tkc.LaunchError(
            f"delta rule: v's {row[-1]} heads are not a multiple of q's {q.shape[-2]} and k's"
            f" {k.shape[-2]}"
        )
    if not 1 <= q.shape[-1] <= WIDEST:
        raise tkc.LaunchError(f"delta rule: K is 1 to {WIDEST}, got {q.shape[-1]}")
    if len({dtype_of(x) for x in (q, k, v)}) > 1:
        raise tkc.LaunchError("delta rule: q, k and v have one element type; convert them")


def _checked(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    g: Array | None,
    initial: Array | None,
    starts: Array | None,
    scale: float | None,
) -> float:
    """The scale. Raises LaunchError for what does not fit."""
    _check(q, k, v, beta, g, tuple(v.shape[:-1]))
    heads, columns = v.shape[2:]
    sequences = sequences_of(v, starts, "delta rule")
    expect(initial, (sequences, heads, q.shape[3], columns), "initial")
    return q.shape[3] ** -0.5 if scale is None else scale


@operator
def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    g: Array | None = None,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    scale: float | None = None,
    normalize: bool = False,
) -> Iterator[tuple[Array, Array]]:
    """R = Diag(exp g_t) S_{t-1}, S_t = R + β_t k_t (v_t - Rᵀ k_t)ᵀ, o_t = scale · S_tᵀ q_t: o of
    v's shape and element type, and the last state, float32 [sequences, heads, K, V].

    q, k: [batch, T, heads or a divisor of them, K], K up to 256; v: [batch, T, heads, V]; beta:
    [batch, T, heads]; g: natural logarithm of the decay, not above 0, [batch, T, heads] (gated
    delta rule) or [batch, T, heads, K] (Kimi delta attention); without it the plain delta rule.
    normalize: q and k are divided by their lengths; else k should have length 1 and beta be at most
    2. initial: the state before. cu_seqlens: the batch is one row of sequences that begin at these
    positions, int32 [sequences + 1]; max_seqlen: the longest, where it is known. scale: K^-½ by
    default. State and sums are float32; products have v's element type. Raises LaunchError where a
    shape or type does not fit.
    """
    factor = _checked(q, k, v, beta, g, initial, cu_seqlens, scale)
    sequences = sequences_of(v, cu_seqlens, "delta rule")
    out, final = empty(v), empty(v, (sequences, v.shape[2], q.shape[3], v.shape[3]), "float32")
    yield out, final
    q, k, v, beta, g, initial = all_contiguous(q, k, v, beta, g, initial)
    given = Recurrence(q, k, v, g, beta, cu_seqlens, max_seqlen, factor, normalize)
    forward(given, initial, out, final)


@operator
def delta_rule_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    g: Array | None = None,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    scale: float | None = None,
    normalize: bool = False,
    grad_final: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array, Array]]:
    """The gradients of q, k, v, beta, g and initial from those of the result and of the last state.
    Those of beta, g and initial are float32. Without g (initial) its gradient has no elements.
    """
    factor = _checked(q, k, v, beta, g, initial, cu_seqlens, scale)
    expect(grad, v.shape, "grad")
    dq, dk, dv = empty(q), empty(k), empty(v)
    dbeta, dg, ds = (
        empty(v, (0,) if x is None else x.shape, "float32") for x in (beta, g, initial)
    )
    yield dq, dk, dv, dbeta, dg, ds
    grad, q, k, v, beta, g, initial, last = all_contiguous(
        grad, q, k, v, beta, g, initial, grad_final
    )
    given = Recurrence(q, k, v, g, beta, cu_seqlens, max_seqlen, factor, normalize)
    to = Gradients(dq, dk, dv, None if g is None else dg, dbeta, None if initial is None else ds)
    backward(given, grad, initial, last, to)


delta_rule.gradient_by(
    delta_rule_backward, "q k v beta g initial", grads="grad grad_final", like="v"
)


@operator(mutates="state")
def delta_rule_step(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    state: Array,
    g: Array | None = None,
    scale: float | None = None,
    normalize: bool = False,
) -> Iterator[Array]:
    """One position of each sequence: the state, [batch, heads, K, V], becomes the next one in
    place, and o is [batch, heads, V]. q, k: [batch, heads or a divisor, K]; v: [batch, heads, V];
    beta: [batch, heads]; g: [batch, heads] or [batch, heads, K]. The rest is as in delta_rule.
    """
    row = tuple(v.shape[:-1])
    _check(q, k, v, beta, g, row)
    expect(state, (*row, q.shape[-1], v.shape[-1]), "state")
    batch, heads, columns = v.shape
    out = empty(v)
    yield out
    width = power(q.shape[-1])
    block = min(power(columns), max(1, 8192 // width))
    _step[tkc.cdiv(columns, block), heads, batch](
        *all_contiguous(q, k, v, beta, g),
        state,
        out,
        q.shape[-1] ** -0.5 if scale is None else scale,
        NORMALIZE=normalize,
        GROUPS=(heads // q.shape[1], heads // k.shape[1]),
        K=width,
        V=block,
        num_warps=4,
    )
