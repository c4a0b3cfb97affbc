"""Hedgehog (Zhang et al., "The hedgehog and the porcupine", 2024): softmax in a window, linear
attention of learned features before it, both divided by one sum.

    φ(x) = (softmax(x W), softmax(−x W))
    w_ts = β exp(scale (q_t·k_s) − m_t)    of the block of 64 positions that t is in, and the one
                                           before, m_t being the largest scale (q_t·k_s) there
           α φ(q_t)·φ(k_s)                 of all before these
    o_t  = Σ_{s<=t} w_ts v_s / (Σ_{s<=t} w_ts + ε)

With N and Z the sums of the linear part, `_lagged` gives N and Z, and `_window` the rest, for all
blocks at once. Backward, with δ_t = do_t·o_t, z_t the sum of weights, and only the largest key of a
row being what m depends on,

    dN_t = α do_t / z_t,    dZ_t = −α δ_t / z_t
    ds_ts = w_ts (do_t·v_s − δ_t) / z_t,  less their sum over s where s is that key

`_window_queries` gives these, dq and what α and β ask; `_window_keys` gives dk and dv; and
dφ(q)_t = Σ_s (dN_t·v_s + dZ_t) φ(k)_s, dφ(k)_s = Σ_t (dN_t·v_s + dZ_t) φ(q)_t and
dv_s = Σ_t (φ(q)_t·φ(k)_s) dN_t are lagged sums again.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod
from typing import Any

import tkc
from tkc.kernels.arrays import Array, all_contiguous, dtype_of, empty, expect, floats, power
from tkc.kernels.chunks import LOG2E, WIDEST
from tkc.kernels.norms import sum_rows
from tkc.kernels.operator import operator

BLOCK = 64  # positions
EPSILON = 1e-6
PARTS = 8  # of a sequence whose gradients of W are summed apart
ONE, LEFT, RIGHT = 0, 1, 2  # what else a weight has: nothing, a number of t or of s


# ---- features ------------------------------------------------------------------------------------
def _logits(x, w, t, head, C, D, F):
    """Base-2 logits, and the tiles they are of."""
    rows, matrix = tkc.load(x, (t, head, 0), (C, None, D)), tkc.load(w[head], (0, 0), (D, F))
    return tkc.dot(rows, matrix) * LOG2E, rows, matrix


def _softmax(logits, sign, count, F):
    """Of sign · logits, the first `count` of a row."""
    logits = tkc.where(tkc.arange(F)[None, :] < count, logits * sign, -inf)
    powers = tkc.exp2(logits - tkc.max(logits, axis=1)[:, None])
    return powers / tkc.sum(powers, axis=1)[:, None]


@tkc.jit
def _features(x, w, out, C: tkc.constexpr, D: tkc.constexpr, F: tkc.constexpr):
    t, head, z, width = tkc.program_id(0) * C, tkc.program_id(1), tkc.program_id(2), w.shape[2]
    logits, _, _ = _logits(x[z], w, t, head, C, D, F)
    for i in (0, 1):
        found = _softmax(logits, 1.0 - 2.0 * i, width, F)
        part = out[z, :, :, i * width : (i + 1) * width]
        tkc.store(part, (t, head, 0), found.to(out.dtype)[:, None, :])


@tkc.jit
def _features_backward(
    grad, x, w, more, dx, dw, C: tkc.constexpr, D: tkc.constexpr, F: tkc.constexpr
):
    """dx, with more where it is given; dw: of this part of a sequence."""
    part, head, z, width = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2), w.shape[2]
    total = tkc.zeros((F, D))
    for t in tkc.range(part * C, x.shape[1], tkc.num_programs(0) * C):
        logits, rows, matrix = _logits(x[z], w, t, head, C, D, F)
        slope = tkc.zeros((C, F))
        for i in (0, 1):
            found = _softmax(logits, 1.0 - 2.0 * i, width, F)
            given = grad[z, :, :, i * width : (i + 1) * width]
            asked = tkc.load(given, (t, head, 0), (C, None, F)).to(tkc.float32)
            mean = tkc.sum(asked * found, axis=1)[:, None]
            slope = slope + found * (asked - mean) * (1.0 - 2.0 * i)
        slope = slope.to(rows.dtype)
        total = tkc.dot(slope.T, rows, total)
        result = tkc.dot(slope, matrix.T)
        if more is not None:
            result = result + tkc.load(more[z], (t, head, 0), (C, None, D)).to(tkc.float32)
        tkc.store(dx[z], (t, head, 0), result.to(dx.dtype)[:, None, :])
    tkc.store(dw[z, part, head], (0, 0), total.T)


def _check_features(x: Array, w: Array) -> None:
    floats(x, w)
    if len(x.shape) != 4 or len(w.shape) != 3:
        raise tkc.LaunchError(
            "hedgehog: x is [batch, positions, heads, width] and its map [heads, width, features],"
            f" got {list(x.shape)} and {list(w.shape)}"
        )
    expect(w, (*x.shape[2:], w.shape[2]), "the map")
    if dtype_of(w) != dtype_of(x) or not 1 <= w.shape[2] <= WIDEST // 2 or x.shape[3] > WIDEST:
        raise tkc.LaunchError(
            f"hedgehog: maps have x's element type and 1 to {WIDEST // 2} features, of up to"
            f" {WIDEST} channels; got {dtype_of(w)} {list(w.shape)} for {dtype_of(x)}"
        )


def _tiles(x: Array, w: Array) -> dict[str, int]:
    return {"C": BLOCK, "D": max(16, power(x.shape[3])), "F": max(16, power(w.shape[2]))}


@operator
def hedgehog_features(x: Array, w: Array) -> Iterator[Array]:
    """(softmax(x W), softmax(−x W)), [batch, T, heads, 2 F] of x's element type; x: [batch, T,
    heads, D], w: [heads, D, F], F up to 128. Differentiable with torch. Raises LaunchError where a
    shape or type does not fit.
    """
    _check_features(x, w)
    out = empty(x, (*x.shape[:3], 2 * w.shape[2]))
    yield out
    if 0 in out.shape:
        return
    grid = tkc.cdiv(x.shape[1], BLOCK), x.shape[2], x.shape[0]
    _features[grid](*all_contiguous(x, w), out, **_tiles(x, w))


@operator
def hedgehog_features_backward(grad: Array, x: Array, w: Array) -> Iterator[tuple[Array, Array]]:
    """The gradients of x and w."""
    _check_features(x, w)
    expect(grad, (*x.shape[:3], 2 * w.shape[2]), "grad")
    dx, dw = empty(x), empty(w)
    yield dx, dw
    _of_features(grad, x, w, None, dx, dw)


def _of_features(grad: Array, x: Array, w: Array, more: Array | None, dx: Array, dw: Array) -> None:
    """Launches the gradients of x, to which more is added, and of w."""
    batch, length, heads, _ = x.shape
    parts = 0 if 0 in grad.shape else min(PARTS, tkc.cdiv(length, BLOCK))
    sums = empty(x, (batch * parts, prod(w.shape)), "float32")
    if parts:
        _features_backward[parts, heads, batch](
            *all_contiguous(grad, x, w, more),
            dx,
            sums.reshape((batch, parts, *w.shape)),
            **_tiles(x, w),
        )
    sum_rows(sums, dw.reshape((sums.shape[1],)))


hedgehog_features.gradient_by(hedgehog_features_backward, "x w")


# ---- sums over what lies two blocks away ---------------------------------------------------------
@tkc.jit
def _lagged(
    q,
    k,
    v,
    number,
    out,
    sums,
    REVERSE: tkc.constexpr,
    EXTRA: tkc.constexpr,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    """out_t = Σ_s (q_t·k_s + n) v_s over the blocks before the one before t's, or REVERSE behind
    the one behind it; n: number_t (EXTRA LEFT), number_s (RIGHT), or 0. sums: q_t · Σ_s k_s."""
    head, column = tkc.program_id(0) // BLOCKS, tkc.program_id(0) % BLOCKS * V
    z = tkc.program_id(1)
    q, k, v, out = (x[z] for x in (q, k, v, out))
    state, mass, total = tkc.zeros((K, V)), tkc.zeros((V,)), tkc.zeros((K,))
    blocks = tkc.cdiv(q.shape[0], C)
    for block in tkc.range(0, blocks):
        t = (blocks - 1 - block if REVERSE else block) * C
        s = t + C if REVERSE else t - C  # what the next block's rows see besides
        keys = tkc.load(k, (s, head, 0), (C, None, K))
        values = tkc.load(v, (s, head, column), (C, None, V))
        queries = tkc.load(q, (t, head, 0), (C, None, K))
        result = tkc.dot(queries, state.to(queries.dtype))
        if EXTRA == LEFT:
            each = tkc.load(number[z], (t, head), (C, None))
            result = result + mass[None, :] * each[:, None]
        elif EXTRA == RIGHT:
            result = result + mass[None, :]
        tkc.store(out, (t, head, column), result.to(out.dtype)[:, None, :])
        if sums is not None:
            along = tkc.sum(queries.to(tkc.float32) * total[None, :], axis=1)
            tkc.store(sums[z], (t, head), along[:, None])
            total = total + tkc.sum(keys.to(tkc.float32), axis=0)
        if EXTRA:
            wide = values.to(tkc.float32)
            if EXTRA == RIGHT:
                wide = wide * tkc.load(number[z], (s, head), (C, None))[:, None]
            mass = mass + tkc.sum(wide, axis=0)
        state = tkc.dot(keys.T, values, state)


def _sum_lagged(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    number: Array | None = None,
    extra: int = ONE,
    sums: Array | None = None,
    reverse: bool = False,
) -> None:
    batch, _, heads, columns = v.shape
    block = max(16, min(64, power(columns)))
    blocks = tkc.cdiv(columns, block)
    _lagged[heads * blocks, batch](
        q,
        k,
        v,
        number,
        out,
        sums,
        REVERSE=reverse,
        EXTRA=extra,
        C=BLOCK,
        K=max(16, power(q.shape[3])),
        V=block,
        BLOCKS=blocks,
        num_warps=8,
    )


# ---- the window ----------------------------------------------------------------------------------
def _scores(queries, keys, scale, seen):
    """Base-2 exponents."""
    return tkc.where(seen, tkc.dot(queries, keys.T) * (scale * LOG2E), -inf)


def _tile(x, t, head, C, N):
    return tkc.load(x, (t, head, 0), (C, None, N))


def _row(x, z, t, head, C, other=0.0):
    """A number of each position of a block."""
    return tkc.load(x[z], (t, head), (C, None), other=other)


def _exponents(queries, keys, earlier, t, scale, C):
    """Of the weights of a block's own keys (earlier 0), or of those of the block before (1)."""
    i = tkc.arange(C)
    seen = (i[:, None] >= i[None, :] - C * earlier) & (t - C * earlier + i[None, :] >= 0)
    return _scores(queries, keys, scale, seen)


@tkc.jit
def _window(
    q,
    k,
    v,
    linear,
    sums,
    alpha,
    beta,
    out,
    tops,
    masses,
    scale,
    epsilon,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """out, the base-2 exponent of each row's largest key, and the sum of its weights."""
    t, head, z = tkc.program_id(0) * C, tkc.program_id(1), tkc.program_id(2)
    queries = _tile(q[z], t, head, C, K)
    found = [
        _exponents(queries, _tile(k[z], t - i * C, head, C, K), i, t, scale, C) for i in (0, 1)
    ]
    top = tkc.maximum(tkc.max(found[0], axis=1), tkc.max(found[1], axis=1))
    b, a = beta[head].to(tkc.float32), alpha[head].to(tkc.float32)
    own, before = (tkc.exp2(x - top[:, None]) * b for x in found)
    total = tkc.sum(own, axis=1) + tkc.sum(before, axis=1) + a * _row(sums, z, t, head, C) + epsilon
    result = _tile(linear[z], t, head, C, V).to(tkc.float32) * a
    result = tkc.dot(own.to(v.dtype), _tile(v[z], t, head, C, V), result)
    result = tkc.dot(before.to(v.dtype), _tile(v[z], t - C, head, C, V), result)
    result = result / total[:, None]
    tkc.store(out[z], (t, head, 0), result.to(out.dtype)[:, None, :])
    tkc.store(tops[z], (t, head), top[:, None])
    tkc.store(masses[z], (t, head), total[:, None])


@tkc.jit
def _window_queries(
    grad,
    q,
    k,
    v,
    linear,
    sums,
    alpha,
    beta,
    out,
    tops,
    masses,
    dq,
    of_linear,
    of_sums,
    deltas,
    largest,
    less,
    of_alpha,
    of_beta,
    scale,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dq, dN, dZ, δ; largest: which of 2 C keys, from the block before on, a row's largest is;
    less: what its ds has less; of_alpha, of_beta: what a row says of α and β."""
    t, head, z = tkc.program_id(0) * C, tkc.program_id(1), tkc.program_id(2)
    top, mass = _row(tops, z, t, head, C), _row(masses, z, t, head, C, 1.0)
    b, a, j = beta[head].to(tkc.float32), alpha[head].to(tkc.float32), tkc.arange(C)[None, :]
    queries, grads = _tile(q[z], t, head, C, K), _tile(grad[z], t, head, C, V)
    wide = grads.to(tkc.float32)
    delta = tkc.sum(wide * _tile(out[z], t, head, C, V).to(tkc.float32), axis=1)
    along = tkc.sum(wide * _tile(linear[z], t, head, C, V).to(tkc.float32), axis=1)
    of_n = (wide * (a / mass)[:, None]).to(of_linear.dtype)
    tkc.store(of_linear[z], (t, head, 0), of_n[:, None, :])
    whole, place = tkc.zeros((C,)), tkc.full((C,), 2 * C, tkc.int32)
    # twice: what the second time lacks is known after the first
    for i in (0, 1):
        found = _exponents(queries, _tile(k[z], t - i * C, head, C, K), i, t, scale, C)
        values = _tile(v[z], t - i * C, head, C, V)
        slope = tkc.exp2(found - top[:, None]) * (tkc.dot(grads, values.T) - delta[:, None])
        whole = whole + tkc.sum(slope, axis=1)
        here = tkc.where(found == top[:, None], j + (1 - i) * C, 2 * C)
        place = tkc.minimum(place, tkc.min(here, axis=1))
    whole, result = whole * (b / mass), tkc.zeros((C, K))
    for i in (0, 1):
        keys, values = (_tile(x[z], t - i * C, head, C, n) for x, n in ((k, K), (v, V)))
        found = _exponents(queries, keys, i, t, scale, C) - top[:, None]
        slope = tkc.exp2(found) * (tkc.dot(grads, values.T) - delta[:, None])
        slope = slope * (b / mass)[:, None]
        slope = slope - tkc.where(place[:, None] == j + (1 - i) * C, whole[:, None], 0.0)
        result = tkc.dot(slope.to(q.dtype), keys, result)
    tkc.store(dq[z], (t, head, 0), (result * scale).to(dq.dtype)[:, None, :])
    about = (along - delta * _row(sums, z, t, head, C)) / mass
    for x, row in (
        (of_sums, delta * (-a / mass)),
        (deltas, delta),
        (largest, place),
        (less, whole),
        (of_alpha, about),
        (of_beta, whole / b),
    ):
        tkc.store(x[z], (t, head), row[:, None])


@tkc.jit
def _window_keys(
    grad,
    q,
    k,
    v,
    beta,
    tops,
    masses,
    deltas,
    largest,
    less,
    of_values,
    dk,
    dv,
    scale,
    C: tkc.constexpr,
    K: tkc.constexpr,
    V: tkc.constexpr,
):
    """dk and dv, of what rows of a block of keys and of the next one say; of_values: dv's linear
    part."""
    t, head, z = tkc.program_id(0) * C, tkc.program_id(1), tkc.program_id(2)
    keys, values = _tile(k[z], t, head, C, K), _tile(v[z], t, head, C, V)
    b, j, i = beta[head].to(tkc.float32), tkc.arange(C)[None, :], tkc.arange(C)[:, None]
    of_keys = tkc.zeros((C, K))
    result = _tile(of_values[z], t, head, C, V).to(tkc.float32)
    for later in (0, 1):
        at = t + later * C
        queries, grads = _tile(q[z], at, head, C, K), _tile(grad[z], at, head, C, V)
        seen = (at + i < q.shape[1]) & (i + later * C >= j)
        exponents = _scores(queries, keys, scale, seen) - _row(tops, z, at, head, C)[:, None]
        weight = tkc.exp2(exponents) * (b / _row(masses, z, at, head, C, 1.0))[:, None]
        result = tkc.dot(weight.to(v.dtype).T, grads, result)
        slope = tkc.dot(grads, values.T) - _row(deltas, z, at, head, C)[:, None]
        place = _row(largest, z, at, head, C, 0)[:, None] == j + (1 - later) * C
        less_here = tkc.where(place & seen, _row(less, z, at, head, C)[:, None], 0.0)
        slope = (weight * slope - less_here).to(q.dtype)
        of_keys = tkc.dot(slope.T, queries, of_keys)
    tkc.store(dk[z], (t, head, 0), (of_keys * scale).to(dk.dtype)[:, None, :])
    tkc.store(dv[z], (t, head, 0), result.to(dv.dtype)[:, None, :])


def _check(q: Array, k: Array, v: Array, maps: tuple, numbers: tuple) -> None:
    floats(q, k, v, *numbers)
    if len(q.shape) != 4 or len(v.shape) != 4:
        raise tkc.LaunchError(
            "hedgehog: q, k and v are [batch, positions, heads, width], got"
            f" {list(q.shape)} and {list(v.shape)}"
        )
    expect(k, q.shape, "k")
    expect(v, (*q.shape[:3], v.shape[3]), "v")
    for name, w in zip(("q's map", "k's map"), maps, strict=True):
        expect(w, (*q.shape[2:], maps[0].shape[-1]), name)
    for name, x in zip(("alpha", "beta"), numbers, strict=True):
        expect(x, q.shape[2:3], name)
    fits = 1 <= q.shape[3] <= 128 and v.shape[3] <= 128
    if len({dtype_of(x) for x in (q, k, v, *maps)}) > 1 or not fits:
        raise tkc.LaunchError(
            "hedgehog: q, k, v and the maps have one element type, and widths up to 128; got"
            f" {dtype_of(q)} {list(q.shape)} and {dtype_of(v)} {list(v.shape)}"
        )


def _sizes(q: Array, v: Array) -> tuple[tuple[int, int, int], dict[str, int]]:
    grid = tkc.cdiv(q.shape[1], BLOCK), q.shape[2], q.shape[0]
    widths = {"K": max(16, power(q.shape[3])), "V": max(16, power(v.shape[3]))}
    return grid, {"C": BLOCK, **widths, "num_warps": 8}  # of mma.sync four do not hold the tiles


def _scale_of(q: Array, scale: float | None) -> float:
    return q.shape[3] ** -0.5 if scale is None else scale


@operator
def hedgehog(
    q: Array,
    k: Array,
    v: Array,
    q_map: Array,
    k_map: Array,
    alpha: Array,
    beta: Array,
    scale: float | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
    """o [batch, T, heads, V], then what its gradient needs: the linear part and its sums, and of
    each row the largest exponent of the window and the sum of weights.

    q, k: [batch, T, heads, D]; v: [batch, T, heads, V]; D and V up to 128. q_map, k_map: W of the
    features of q and k, [heads, D, F], F up to 128. alpha, beta: floats [heads], above 0. scale:
    D^-½ by default. Differentiable with torch. Raises LaunchError where a shape or type does not
    fit.
    """
    _check(q, k, v, (q_map, k_map), (alpha, beta))
    row = q.shape[:3]
    out, linear = empty(v), empty(v)
    sums, tops, masses = (empty(v, row, "float32") for _ in range(3))
    yield out, linear, sums, tops, masses
    if 0 in q.shape or 0 in v.shape:
        return
    q, k, v = all_contiguous(q, k, v)
    mapped = hedgehog_features(q, q_map), hedgehog_features(k, k_map)
    _sum_lagged(*mapped, v, linear, sums=sums)
    grid, tiles = _sizes(q, v)
    given = q, k, v, linear, sums, alpha, beta, out, tops, masses
    _window[grid](*given, _scale_of(q, scale), EPSILON, **tiles)


@operator
def hedgehog_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    q_map: Array,
    k_map: Array,
    alpha: Array,
    beta: Array,
    out: Array,
    linear: Array,
    sums: Array,
    tops: Array,
    masses: Array,
    scale: float | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array, Array, Array]]:
    """The gradients of q, k, v, the maps, alpha and beta from that of o; what `hedgehog` gave."""
    _check(q, k, v, (q_map, k_map), (alpha, beta))
    expect(grad, v.shape, "grad")
    dq, dk, dv, dmq, dmk = (empty(x) for x in (q, k, v, q_map, k_map))
    da, db = (empty(v, x.shape, "float32") for x in (alpha, beta))
    yield dq, dk, dv, dmq, dmk, da, db
    if 0 in q.shape or 0 in v.shape:
        return
    grad, q, k, v = all_contiguous(grad, q, k, v)
    row, factor = q.shape[:3], _scale_of(q, scale)
    mapped = hedgehog_features(q, q_map), hedgehog_features(k, k_map)
    of_linear, of_values, of_maps = empty(v), empty(v), [empty(x) for x in mapped]
    of_window = [empty(x) for x in (q, k)]
    of_sums, deltas, less, of_alpha, of_beta = (empty(v, row, "float32") for _ in range(5))
    largest = empty(v, row, "int32")
    grid, tiles = _sizes(q, v)
    kept: tuple[Any, ...] = linear, sums, alpha, beta, out, tops, masses
    found = of_window[0], of_linear, of_sums, deltas, largest, less, of_alpha, of_beta
    _window_queries[grid](grad, q, k, v, *kept, *found, factor, **tiles)
    _sum_lagged(mapped[1], mapped[0], of_linear, of_values, reverse=True)
    about = tops, masses, deltas, largest, less, of_values
    _window_keys[grid](grad, q, k, v, beta, *about, of_window[1], dv, factor, **tiles)
    _sum_lagged(of_linear, v, mapped[1], of_maps[0], of_sums, LEFT)
    _sum_lagged(v, of_linear, mapped[0], of_maps[1], of_sums, RIGHT, reverse=True)
    _of_features(of_maps[0], q, q_map, of_window[0], dq, dmq)
    _of_features(of_maps[1], k, k_map, of_window[1], dk, dmk)
    alphas, betas = (x.reshape((row[0] * row[1], row[2])) for x in (of_alpha, of_beta))
    sum_rows(alphas, da.reshape((row[2],)), betas, db.reshape((row[2],)))


hedgehog.gradient_by(
    hedgehog_backward,
    "q k v q_map k_map alpha beta",
    results="out linear sums tops masses",
    like="v",
)
