"""Layers of experts: which experts a token goes to, tokens sorted by expert, and the experts' gated
layers as two products of groups of rows.

    s = softmax(x) or sigmoid(x) of the router's logits;  e_1 … e_k: the k largest of s + bias
    w_j = scale s_{e_j}, or scale s_{e_j} / Σ_i s_{e_i}                     (renormalized)
    h = silu(x G_eᵀ) ∘ (x U_eᵀ),   out = Σ_j w_j h_j D_{e_j}ᵀ               of e = e_j

With groups of experts only those of the best groups are chosen from; a group is as good as the sum
of its best one or two (DeepSeek-AI, 2024). Tokens are never copied: the first product reads the
rows of x through the order by expert, the second weighs its rows, and a last launch adds up a
token's k rows, always in the same order. The backward pass, with r the pairs of tokens and experts:

    dh_r = dout_t D_e,  dw_r = ⟨dh_r, h_r⟩,  (dg, du)_r = w_r dh_r ∘ the gate's derivatives
    dD_e = Σ_r dout_tᵀ (w_r h_r),  d(G, U)_e = Σ_r (dg, du)_rᵀ x_t,  dx_t = Σ_r (dg, du)_r (G, U)_e
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import tkc
from tkc.kernels.activations import FUNCTIONS
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    flat,
    floats,
    power,
    zeros,
)
from tkc.kernels.blocks import row_block
from tkc.kernels.grouped import SCALED, multiply, multiply_gated, outer
from tkc.kernels.operator import first_order_only, operator
from tkc.kernels.packed import check_kind, dequantize_packed, words_of
from tkc.kernels.quantize import quantize_blocks

PAIRS = 1024  # of a program that sorts
COUNTS = 8192  # of blocks and experts that are held at once
SMALL = 1e-20  # added to a sum of scores, which sigmoids may leave at 0
MAX_EXPERTS = 1024
ROWS_DECODED = 32  # of an expert, from which on weights of 4 bits are written out first
BEST_OF_GROUP = (1, 2)


# ---- routing -------------------------------------------------------------------------------------
def _scores(logits, row, ROWS, GROUPS, SIZE, SIGMOID):
    """Scores of whole rows, [rows, groups, experts of a group]; 0 where there is no expert."""
    x = tkc.load(logits, (row, 0, 0), (ROWS, GROUPS, SIZE), other=-inf).to(tkc.float32)
    if SIGMOID:
        return tkc.sigmoid(x)
    powers = tkc.exp(x - tkc.max(x, axis=(1, 2), keep_dims=True))
    return powers / tkc.sum(powers, axis=(1, 2), keep_dims=True)


def _of_best_groups(scores, BEST, COUNT):
    """The scores of the COUNT best groups, as good as their BEST best ones; -inf elsewhere."""
    rows, groups, _ = scores.shape
    top = tkc.max(scores, axis=2)
    if BEST == 2:
        place = tkc.argmax(scores, axis=2)
        others = tkc.arange(scores.shape[2])[None, None, :] != place[:, :, None]
        top = top + tkc.max(tkc.where(others, scores, -inf), axis=2)
    g, mine, its = tkc.arange(groups), top[:, :, None], top[:, None, :]
    before = (its > mine) | (its == mine) & (g[None, :] < g[:, None])[None, :, :]
    rank = tkc.sum(before.to(tkc.int32), axis=2)
    return tkc.where((rank < COUNT)[:, :, None], scores, -inf)


@tkc.jit
def _route(
    logits,
    bias,
    weights,
    experts,
    scale,
    SIGMOID: tkc.constexpr,
    SUM: tkc.constexpr,
    BEST: tkc.constexpr,
    COUNT: tkc.constexpr,
    K: tkc.constexpr,
    ROWS: tkc.constexpr,
    GROUPS: tkc.constexpr,
    SIZE: tkc.constexpr,
):
    row, (_, groups, size) = tkc.program_id(0) * ROWS, logits.shape
    scores = _scores(logits, row, ROWS, GROUPS, SIZE, SIGMOID)
    g, i = tkc.arange(GROUPS)[None, :, None], tkc.arange(SIZE)[None, None, :]
    wanted = scores
    if bias is not None:
        wanted = wanted + tkc.load(bias, (0, 0), (GROUPS, SIZE)).to(tkc.float32)[None, :, :]
    wanted = tkc.where((g < groups) & (i < size), wanted, -inf)
    if COUNT:
        wanted = _of_best_groups(wanted, BEST, COUNT)
    held = power(K)
    found, places = tkc.topk(wanted.reshape(ROWS, GROUPS * SIZE), held, axis=1, indices=True)
    if bias is not None:
        found = tkc.gather(scores.reshape(ROWS, GROUPS * SIZE), places, 1)
    found = tkc.where((tkc.arange(held) < K)[None, :], found, 0.0)
    if SUM:
        found = found / (tkc.sum(found, axis=1) + SMALL)[:, None]
    tkc.store(weights, (row, 0), found * scale)
    tkc.store(experts, (row, 0), places // SIZE * size + places % SIZE)


@tkc.jit
def _route_backward(
    grad,
    logits,
    experts,
    out,
    scale,
    SIGMOID: tkc.constexpr,
    SUM: tkc.constexpr,
    ROWS: tkc.constexpr,
    N: tkc.constexpr,
):
    row = tkc.program_id(0) * ROWS
    scores = _scores(logits, row, ROWS, 1, N, SIGMOID).reshape(ROWS, N)
    of_score, chosen = tkc.zeros((ROWS, N)), tkc.zeros((ROWS, N))
    for j in tkc.range(0, experts.shape[1]):
        here = tkc.arange(N)[None, :] == tkc.load(experts, (row, j), (ROWS, None))[:, None]
        g = tkc.load(grad, (row, j), (ROWS, None)).to(tkc.float32) * scale
        of_score = of_score + tkc.where(here, g[:, None], 0.0)
        chosen = chosen + tkc.where(here, 1.0, 0.0)
    if SUM:
        total = tkc.sum(chosen * scores, axis=1)[:, None] + SMALL
        mean = tkc.sum(of_score * scores, axis=1)[:, None] / total
        of_score = chosen * (of_score - mean) / total
    if SIGMOID:
        result = of_score * scores * (1 - scores)
    else:
        result = scores * (of_score - tkc.sum(of_score * scores, axis=1)[:, None])
    tkc.store(out, (row, 0, 0), result[:, None, :].to(out.dtype))


def _check_routing(logits: Array, k: int, bias: Array | None, groups: int, best: int) -> None:
    floats(logits, bias)
    if len(logits.shape) != 2 or not 1 <= logits.shape[1] <= MAX_EXPERTS:
        raise tkc.LaunchError(
            f"route: logits are [tokens, experts] of at most {MAX_EXPERTS} experts, got"
            f" {list(logits.shape)}"
        )
    count = logits.shape[1]
    expect(bias, (count,), "bias")
    if groups < 1 or count % groups:
        raise tkc.LaunchError(f"route: {count} experts do not make {groups} groups of one size")
    if best not in BEST_OF_GROUP:
        raise tkc.LaunchError(f"route: a group's score is that of its best 1 or 2, got {best}")
    if not 1 <= k <= count:
        raise tkc.LaunchError(f"route: k is 1 to {count}, got {k}")


@operator
def route(
    logits: Array,
    k: int,
    scoring: str = "softmax",
    renormalize: bool = True,
    scale: float = 1.0,
    bias: Array | None = None,
    groups: int = 1,
    top_groups: int = 0,
    best_of_group: int = 2,
) -> Iterator[tuple[Array, Array]]:
    """The weights, float32 [tokens, k], and the experts, int32 [tokens, k], of the k experts with
    the largest scores, in descending order; of equals the first.

    logits: [tokens, experts]. scoring: "softmax" or "sigmoid". renormalize: weights add up to
    scale. bias: [experts], added to the scores for the choice alone. top_groups: of so many of the
    `groups` groups of neighbouring experts (0: of all), those with the largest sums of their
    best_of_group (1 or 2) scores. Computed in float32. Differentiable with torch for logits. Raises
    LaunchError where shapes or numbers do not fit.
    """
    _check_routing(logits, k, bias, groups, best_of_group)
    if scoring not in ("softmax", "sigmoid"):
        raise tkc.LaunchError(f"route: scoring is 'softmax' or 'sigmoid', got {scoring!r}")
    tokens, count = logits.shape
    size = count // groups
    if top_groups and top_groups * size < k:
        raise tkc.LaunchError(
            f"route: {top_groups} groups of {size} experts do not have k = {k}; take more groups"
        )
    weights, experts = empty(logits, (tokens, k), "float32"), empty(logits, (tokens, k), "int32")
    yield weights, experts
    held, each = power(groups), power(max(size, -(-power(k) // power(groups))))
    rows = max(1, 512 // (held * each))
    _route[tkc.cdiv(tokens, rows)](
        contiguous(logits).reshape((tokens, groups, size)),
        None if bias is None else contiguous(bias).reshape((groups, size)),
        weights,
        experts,
        float(scale),
        SIGMOID=scoring == "sigmoid",
        SUM=renormalize,
        BEST=best_of_group if size > 1 else 1,
        COUNT=top_groups if 0 < top_groups < groups else 0,
        K=k,
        ROWS=rows,
        GROUPS=held,
        SIZE=each,
    )


@operator
def route_backward(
    grad: Array,
    logits: Array,
    experts: Array,
    scoring: str = "softmax",
    renormalize: bool = True,
    scale: float = 1.0,
) -> Iterator[Array]:
    """The gradient of the logits from that of the weights; experts: as route gave them."""
    floats(grad, logits)
    expect(grad, experts.shape, "grad")
    out = empty(logits)
    yield out
    tokens, count = logits.shape
    n = power(count)
    rows = max(1, 1024 // n)
    _route_backward[tkc.cdiv(tokens, rows)](
        contiguous(grad),
        contiguous(logits).reshape((tokens, 1, count)),
        experts,
        out.reshape((tokens, 1, count)),
        float(scale),
        SIGMOID=scoring == "sigmoid",
        SUM=renormalize,
        ROWS=rows,
        N=n,
    )


route.gradient_by(route_backward, "logits", results="weights experts", without="bias")


# ---- sorting -------------------------------------------------------------------------------------
@tkc.jit
def _counts(experts, counts, E: tkc.constexpr, N: tkc.constexpr):
    i = tkc.program_id(0)
    which = tkc.load(experts, (i * N,), (N,), other=-1)
    tkc.store(counts, (i, 0), tkc.histogram(which, E)[None, :])


@tkc.jit
def _offsets(counts, offsets, ends, E: tkc.constexpr, B: tkc.constexpr):
    """offsets[i, e]: where block i's pairs of expert e go, less those of the block before them."""
    total = tkc.zeros((E,), tkc.int32)
    for i in tkc.range(0, counts.shape[0], B):
        total = total + tkc.sum(tkc.load(counts, (i, 0), (B, E)), axis=0)
    until = tkc.cumsum(total)
    tkc.store(ends, (0,), until)
    first = until - total
    for i in tkc.range(0, counts.shape[0], B):
        block = tkc.load(counts, (i, 0), (B, E))
        above = tkc.cumsum(block, axis=0) - block
        before = tkc.cumsum(block, axis=1) - block
        tkc.store(offsets, (i, 0), first[None, :] + above - before)
        first = first + tkc.sum(block, axis=0)


@tkc.jit
def _order(experts, offsets, order, places, E: tkc.constexpr, N: tkc.constexpr):
    i, at, count = tkc.program_id(0), tkc.arange(N), offsets.shape[1]
    which = tkc.load(experts, (i * N,), (N,), other=-1)
    known = (which >= 0) & (which < count)
    words = tkc.sort(tkc.where(known, which, E) * N + at)
    expert, pair = words // N, i * N + words % N
    there = expert < count
    to = tkc.load(offsets.ptr + i * count + expert, mask=there) + at
    tkc.store(order.ptr + to, pair, mask=there)
    tkc.store(places.ptr + pair, tkc.where(there, to, -1), mask=pair < experts.shape[0])


def _sort(experts: Array, order: Array, places: Array, ends: Array) -> None:
    """Launches what sort_by_expert says."""
    pairs, count = flat(contiguous(experts)), ends.shape[0]
    blocks, held = tkc.cdiv(pairs.shape[0], PAIRS), power(count)
    counts, offsets = (empty(ends, (blocks, count), "int32") for _ in range(2))
    _counts[blocks](pairs, counts, E=held, N=PAIRS)
    several = min(power(max(blocks, 1)), max(1, COUNTS // held))
    _offsets[1](counts, offsets, ends, E=held, B=several)
    _order[blocks](pairs, offsets, order, places, E=held, N=PAIRS)


@operator
def sort_by_expert(experts: Array, count: int) -> Iterator[tuple[Array, Array, Array]]:
    """Pairs of tokens and experts sorted by expert, those of one in the order of tokens.

    experts: int32 [tokens, k], numbers 0 … count - 1; others are left out. Gives int32 arrays
    order [tokens · k] (the pair token · k + j that a sorted row is of), places [tokens · k] (the
    sorted row of a pair, -1 where it is left out) and ends [count] (the row behind each expert's
    last). Raises LaunchError where types or numbers do not fit.
    """
    if dtype_of(experts) not in ("int32", "int64"):
        raise tkc.LaunchError(
            f"sort_by_expert: experts are int32 or int64, got {dtype_of(experts)}; convert them"
        )
    if not 1 <= count <= MAX_EXPERTS:
        raise tkc.LaunchError(f"sort_by_expert: count is 1 to {MAX_EXPERTS}, got {count}")
    n = flat(experts).shape[0]
    order, places = empty(experts, (n,), "int32"), empty(experts, (n,), "int32")
    ends = empty(experts, (count,), "int32")
    yield order, places, ends
    _sort(experts, order, places, ends)


# ---- the layer -----------------------------------------------------------------------------------
@tkc.jit
def _gather(x, order, out, EACH: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    """Row r of out: x's row order[r] // EACH."""
    row, column = tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS
    tokens = tkc.load(order, (row,), (ROWS,)) // EACH
    tkc.store(out, (row, column), tkc.load(x, (tokens, column), (ROWS, COLUMNS)))


@tkc.jit
def _combine(rows, places, out, EACH: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    """out[t] = the sum of the rows of its EACH pairs."""
    token, column = tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS
    total = tkc.zeros((ROWS, COLUMNS))
    for j in tkc.static_range(EACH):
        at = tkc.load(places, (token, j), (ROWS, None), other=-1)
        total = total + tkc.load(rows, (at, column), (ROWS, COLUMNS)).to(tkc.float32)
    tkc.store(out, (token, column), total.to(out.dtype))


@tkc.jit
def gate_backward(
    grad: Any,
    kept: Any,
    weights: Any,
    order: Any,
    ends: Any,
    out: Any,
    weighted: Any,
    of_weights: Any,
    N: tkc.constexpr,
) -> None:
    """A sorted row's gradients of gate and up, its weighted result, and that of its weight."""
    row, half = tkc.program_id(0), grad.shape[1]
    if ends is None or row < ends[ends.shape[0] - 1]:
        pair = row if order is None else order[row]
        weight, total = 1.0 if weights is None else weights[pair], tkc.zeros((N,))
        for at in tkc.range(0, half, N):
            g = tkc.load(grad[row], (at,), (N,)).to(tkc.float32)
            gate = tkc.load(kept[row, :half], (at,), (N,)).to(tkc.float32)
            up = tkc.load(kept[row, half:], (at,), (N,)).to(tkc.float32)
            silu, slope = FUNCTIONS["silu"](gate, False), FUNCTIONS["silu"](gate, True)
            total = total + g * silu * up
            tkc.store(weighted[row], (at,), (silu * up * weight).to(weighted.dtype))
            tkc.store(out[row, :half], (at,), (g * weight * up * slope).to(out.dtype))
            tkc.store(out[row, half:], (at,), (g * weight * silu).to(out.dtype))
        if of_weights is not None:
            tkc.store(of_weights.ptr + pair, tkc.sum(total))


def _is_packed(gate_up: Array) -> bool:
    """Whether weights have 4 bits."""
    return dtype_of(gate_up) == "int16"


def _check_layer(x: Array, gate_up: Array, down: Array, weights: Array, experts: Array) -> None:
    floats(x, weights, *(() if _is_packed(gate_up) else (gate_up, down)))
    if len(x.shape) != 2 or len(gate_up.shape) != 3 or len(down.shape) != 3:
        raise tkc.LaunchError(
            "mixture_of_experts: x is [tokens, width], gate_up [experts, 2 hidden, width] and down"
            f" [experts, width, hidden], got {list(x.shape)}, {list(gate_up.shape)} and"
            f" {list(down.shape)}"
        )
    count, width, hidden = gate_up.shape[0], x.shape[1], _hidden(gate_up, down)
    of_row = words_of if _is_packed(gate_up) else lambda n: n
    expect(gate_up, (count, 2 * hidden, of_row(width)), "gate_up")
    expect(down, (count, width, of_row(hidden)), "down")
    expect(experts, (x.shape[0], experts.shape[-1]), "experts")
    expect(weights, experts.shape, "weights")
    if dtype_of(gate_up) != dtype_of(down):
        raise tkc.LaunchError(
            f"mixture_of_experts: gate_up and down have one element type, got {dtype_of(gate_up)}"
            f" and {dtype_of(down)}; convert one"
        )


def _dense(words: Array, scales: Array, width: int, kind: str, group: int, like: Array) -> Array:
    """Matrices [count, rows, width] of weights of 4 bits, of an array's element type."""
    count, rows, _ = words.shape
    w = dequantize_packed(
        words.reshape((count * rows, words.shape[2])),
        scales.reshape((count * rows, scales.shape[2])),
        None,
        width,
        kind,
        group,
        dtype_of(like),
    )
    return w.reshape((count, rows, width))


def _hidden(gate_up: Array, down: Array) -> int:
    """Columns of the hidden rows."""
    return gate_up.shape[1] // 2 if _is_packed(gate_up) else down.shape[2]


def _check_groups(x: Array, gate_up: Array, scales: tuple, kind: str, group: int) -> None:
    """Raises LaunchError where scales do not fit weights of 4 bits."""
    check_kind(kind, group)
    floats(*scales)
    (count, both, _), width = gate_up.shape, x.shape[1]
    rows = (both, width, "gate_up_scale"), (width, both // 2, "down_scale")
    for scale, (n, k, name) in zip(scales, rows, strict=True):
        if scale is None:
            raise tkc.LaunchError(
                f"mixture_of_experts: weights of 4 bits have scales, floats"
                f" {[count, n, tkc.cdiv(k, group)]}; give {name}"
            )
        expect(scale, (count, n, tkc.cdiv(k, group)), name)


def _check_scales(
    x: Array, gate_up: Array, down: Array, scales: tuple, kind: str, group: int
) -> None:
    """Raises LaunchError where scales do not fit weights."""
    if _is_packed(gate_up):
        _check_groups(x, gate_up, scales, kind, group)
        return
    if not dtype_of(gate_up).startswith("float8"):
        if scales != (None, None) or dtype_of(gate_up) != dtype_of(x):
            raise tkc.LaunchError(
                "mixture_of_experts: weights are of x's element type, or of float8 with scales,"
                f" got {dtype_of(gate_up)} for x of {dtype_of(x)}"
            )
        return
    if down.shape[2] % SCALED:
        raise tkc.LaunchError(
            f"mixture_of_experts: with float8 weights hidden is a multiple of {SCALED}, got"
            f" {down.shape[2]}; pad the weights"
        )
    for name, w, scale in zip(("gate_up", "down"), (gate_up, down), scales, strict=True):
        blocks = (w.shape[0], tkc.cdiv(w.shape[1], SCALED), tkc.cdiv(w.shape[2], SCALED))
        if scale is None or dtype_of(scale) != "float32":
            raise tkc.LaunchError(
                f"mixture_of_experts: float8 weights have scales, float32 {list(blocks)}; give"
                f" {name}_scale"
            )
        expect(scale, blocks, f"{name}_scale")


def _turned(x: Any) -> Array:
    """Matrices transposed."""
    return x.swapaxes(1, 2)


def _factors(x: Array, w: Array, scale: Array | None, form: tuple[str, int]) -> tuple:
    """What a product of groups multiplies, and its arguments that say how: rows of float8 with
    scales beside such matrices, and matrices transposed, or their words as they are."""
    if _is_packed(w):
        return x, w, {"b_scale": scale, "PACKED": form}
    if scale is None:
        return x, _turned(w), {}
    rows, scales = quantize_blocks(x, 1, SCALED, dtype_of(w))
    return rows, _turned(w), {"a_scale": scales, "b_scale": _turned(scale)}


@operator(name="mixture_of_experts")
def _layer(
    x: Array,
    gate_up: Array,
    down: Array,
    weights: Array,
    experts: Array,
    gate_up_scale: Array | None = None,
    down_scale: Array | None = None,
    with_grad: bool = True,
    kind: str = "int4",
    group: int = 128,
) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
    """The layer's result, then what its gradient needs: order, places, ends, gates before."""
    _check_layer(x, gate_up, down, weights, experts)
    _check_scales(x, gate_up, down, (gate_up_scale, down_scale), kind, group)
    (tokens, width), count, each = x.shape, down.shape[0], experts.shape[1]
    hidden = _hidden(gate_up, down)
    n, empty_layer = tokens * each, 0 in (tokens, width, count, hidden, each)
    out = (zeros if empty_layer else empty)(x)
    order, places, ends = (empty(experts, (m,), "int32") for m in (n, n, count))
    kept = empty(x, (n if with_grad else 0, 2 * hidden))
    yield out, order, places, ends, kept
    if empty_layer:
        return
    x = contiguous(x)
    if _is_packed(gate_up) and n >= ROWS_DECODED * count:
        # each block of rows would decode them anew
        gate_up = _dense(gate_up, gate_up_scale, width, kind, group, x)
        down = _dense(down, down_scale, hidden, kind, group, x)
        gate_up_scale = down_scale = None
    _sort(experts, order, places, ends)
    hidden_rows, rows = empty(x, (n, hidden)), empty(x, (n, width))
    kept_rows, gathered = kept if with_grad else None, {"order": order, "EACH": each}
    x, w, scaled = _factors(x, gate_up, gate_up_scale, (kind, group))
    if "a_scale" not in scaled and _copies_in_order(n, tkc.target_of(x)):
        x, gathered = _sorted(x, order, each), {"order": None, "EACH": 0}
    multiply_gated(x, w, hidden_rows, ends, kept=kept_rows, **gathered, **scaled)
    hidden_rows, w, scaled = _factors(hidden_rows, down, down_scale, (kind, group))
    of_pairs = flat(contiguous(weights))
    multiply(hidden_rows, w, rows, ends, order=order, factors=of_pairs, **scaled)
    _add_up(rows, places, out, each)


def _copies_in_order(rows: int, target: str) -> bool:
    """Whether so many rows are copied first: a product whose rows lie one after the other reads
    them by tensor maps, and one that gathers them waits for each of its blocks.
    """
    return target != "cpu" and rows >= tkc.target(target).costs.gathered_rows


def _sorted(x: Array, order: Array, each: int) -> Array:
    """A row of x for each pair of token and expert."""
    rows = empty(x, (order.shape[0], x.shape[1]))
    height, width = row_block(rows.shape[0], min(rows.shape[1], 1024))
    _gather[tkc.cdiv(rows.shape[0], height), tkc.cdiv(rows.shape[1], width)](
        x, order, rows, EACH=each, ROWS=height, COLUMNS=width
    )
    return rows


def _add_up(rows: Array, places: Array, out: Array, each: int) -> None:
    """Launches the sum of each token's rows."""
    height, width = row_block(out.shape[0], min(out.shape[1], 1024))
    _combine[tkc.cdiv(out.shape[0], height), tkc.cdiv(out.shape[1], width)](
        rows, places.reshape((out.shape[0], each)), out, EACH=each, ROWS=height, COLUMNS=width
    )


@operator
def mixture_of_experts_backward(
    grad: Array,
    x: Array,
    gate_up: Array,
    down: Array,
    weights: Array,
    order: Array,
    places: Array,
    ends: Array,
    kept: Array,
    with_weights: bool = True,
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """The gradients of x, gate_up, down and the weights of tokens, from that of the layer's result
    and what the layer gave beside it. with_weights: False leaves those of gate_up and down without
    elements.
    """
    floats(grad, x, gate_up, down, weights, kept)
    expect(grad, x.shape, "grad")
    expect(kept, (order.shape[0], gate_up.shape[1]), "kept")
    tokens, each, hidden = x.shape[0], weights.shape[1], down.shape[2]
    nothing = 0 in (*x.shape, *down.shape, each)
    make = zeros if nothing else empty
    dx, of_weights = make(x), zeros(weights, weights.shape, "float32")
    of_up, of_down = (make(w, w.shape if with_weights else (0,)) for w in (gate_up, down))
    yield dx, of_up, of_down, of_weights
    if nothing:
        return
    grad, x, n = contiguous(grad), contiguous(x), tokens * each
    of_hidden, weighted = empty(x, (n, hidden)), empty(x, (n, hidden))
    of_kept, rows = empty(x, (n, 2 * hidden)), empty(x, (n, x.shape[1]))
    multiply(grad, down, of_hidden, ends, order=order, EACH=each)
    gate_backward[n](
        of_hidden,
        kept,
        flat(contiguous(weights)),
        order,
        ends,
        of_kept,
        weighted,
        flat(of_weights),
        N=min(power(hidden), 2048),
    )
    multiply(of_kept, gate_up, rows, ends)
    _add_up(rows, places, dx, each)
    if with_weights:
        outer(grad, weighted, of_down, ends, order, left=each)
        outer(of_kept, x, of_up, ends, order, right=each)


@_layer.backward(
    saves="x gate_up down weights gate_up_scale down_scale kind group result",
    without="gate_up_scale down_scale",
    zeros=False,
)
def _(saved, grad, *of_kept):
    first_order_only("mixture_of_experts", *of_kept)
    x, up, down = saved.x, saved.gate_up, saved.down
    if _is_packed(up):
        form = saved.kind, saved.group, x
        up, hidden = _dense(up, saved.gate_up_scale, x.shape[1], *form), up.shape[1] // 2
        down = _dense(down, saved.down_scale, hidden, *form)
    if not saved.result[-1].shape[0] and x.shape[0]:
        raise tkc.LaunchError("mixture_of_experts: pass with_grad=True where a gradient is wanted")
    if up.dtype != x.dtype:
        raise tkc.LaunchError(
            "mixture_of_experts has no gradient with float8 weights; call it within torch.no_grad()"
        )
    wanted = bool(saved.needs["gate_up"] or saved.needs["down"])
    dx, of_up, of_down, of_weights = mixture_of_experts_backward(
        grad.to(x.dtype), x, up, down, saved.weights, *saved.result[1:], wanted
    )
    return dx, of_up, of_down, of_weights


def mixture_of_experts(
    x: Array,
    gate_up: Array,
    down: Array,
    weights: Array,
    experts: Array,
    gate_up_scale: Array | None = None,
    down_scale: Array | None = None,
    with_grad: bool = True,
    kind: str = "int4",
    group: int = 128,
) -> Array:
    """The sum of what its experts make of each token, weighted: [tokens, width], of x's type.

    x: [tokens, width]; gate_up: [count, 2 hidden, width], rows of the gate above those of up;
    down: [count, width, hidden]; weights: [tokens, k] and experts: int32 [tokens, k], as `route`
    gives them (an expert that is not 0 … count - 1 adds nothing). Weights of x's element type, or
    float8_e4m3 with scales of blocks of 128 x 128, float32 [count, ⌈rows / 128⌉, ⌈columns / 128⌉]:
    x and what the first product gives are then quantized in blocks of 1 x 128. Or of 4 bits, int16
    words of their rows as pack_codes and quantize_packed make them, [count, 2 hidden, …] and
    [count, width, …], with scales of each row's groups of columns; kind and group: as in
    packed_matmul. with_grad: keeps the gates for the gradient. Differentiable with torch for x and
    weights where the matrices have 4 bits, for all but scales where they are not float8 either.
    Raises LaunchError where shapes or types do not fit.
    """
    scales = gate_up_scale, down_scale
    try:
        return _layer(x, gate_up, down, weights, experts, *scales, with_grad, kind, group)[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
