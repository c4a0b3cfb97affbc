"""`attention` and `attention_backward`: which kernels serve a call.

    attention.py             masks by bounds, ragged batches, float8, decoding
    attention_backward.py    the gradients of these
    attention_mods.py        score_mod, mask_mod, block masks, bias, dropout, and their gradients

Where a call has one of the last, soft caps and slopes become score_mods too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tkc
from tkc.kernels import attention_backward as backward
from tkc.kernels import attention_mods as mods
from tkc.kernels.arrays import Array, dtype_of
from tkc.kernels.attention import dense, ragged
from tkc.kernels.attention_blocks import FLOAT8
from tkc.kernels.attention_checks import (
    check_heads,
    check_together,
    masks_of,
    numbers_of,
    wants_gradient,
)
from tkc.kernels.attention_modifiers import (
    Modifiers,
    capped,
    composed,
    modifiers,
    with_bias,
    with_slopes,
)
from tkc.kernels.block_mask import blocks_of

# arguments of ragged batches
SEQUENCES = "cu_seqlens", "max_seqlen", "cu_seqlens_k", "max_seqlen_k"


class _Modified(NamedTuple):
    """What a call by modifiers hands on: the functions with what they captured, and the other
    arguments of `attention_mods.modified` by name.
    """

    mods: Modifiers
    arguments: dict[str, Any]
    bias: Array | None  # as it is captured


def _sides(causal: bool, window: Any) -> tuple[bool, int | None, tuple | None]:
    """(causal, window, None) for kernels without modifiers, or (False, None, (window, ahead)) for
    two sides: what a row sees ends `ahead` columns behind its own (None: nowhere), and begins
    `window` columns before that end, or before the row (None: nowhere). Raises LaunchError where a
    window of two sides is none.
    """
    if window is None or isinstance(window, int):
        return causal, window, None
    if len(window) != 2 or any(n is not None and n < 0 for n in window):
        raise tkc.LaunchError(
            "attention: window is a number of keys, or how many are seen on the left and on the"
            f" right (None: all), got {window}"
        )
    left, right = window[0], 0 if causal else window[1]
    if right == 0:
        return True, None if left is None else left + 1, None
    return False, None, (None if left is None else left + (right or 0) + 1, right)


def _modified(
    q: Array,
    k: Array,
    masks: tuple[bool, float | None, int | None, float],
    of_heads: tuple[Array | None, Array | None],
    functions: tuple[Callable | None, Callable | None, Any, Array | None],
    dropped: tuple[float, int],
    sides: tuple | None,
    heads_first: bool,
    sequences: tuple[Array | None, int | None, Array | None, int | None],
    deterministic: bool,
) -> _Modified | None:
    """The call by modifiers; None where it has none. masks: causal, scale, window, softcap;
    of_heads: sinks and slopes; functions: score_mod, mask_mod, block_mask and bias; dropped:
    dropout and seed; sides: of `_sides`; sequences: cu_seqlens, max_seqlen and those of keys.
    Raises LaunchError where options do not go together.
    """
    (score_mod, mask_mod, block_mask, bias), (dropout, seed) = functions, dropped
    if not dropout and sides is None and all(x is None for x in functions):
        return None
    _check_modified(q, sequences[0], dropout)
    extents = _extents(q, k, heads_first, sequences)
    (causal, scale, window, softcap), (sinks, slopes) = masks, of_heads
    numbers = masks_of(causal, window, softcap, scale, q.shape[-1])
    if bias is not None:
        _check_bias(bias, extents)
        bias = bias if len(bias.shape) else bias.reshape((1,))
    if sides is None:
        sides = window, 0 if causal else None
    ours = _our_score_mods(numbers, slopes, bias, extents, sequences)
    mask_mod, block, lists = blocks_of(mask_mod, block_mask, extents)
    found = modifiers(composed(ours, score_mod), mask_mod)
    arguments = dict(
        mods=found.name,
        scale=numbers["scale"],
        rows=block[0],
        columns=block[1],
        window=sides[0],
        ahead=sides[1],
        dropout=float(dropout),
        seed=seed,
        heads_first=heads_first,
        sinks=sinks,
        deterministic=deterministic,
        unordered=_unordered(found.captured, score_mod, bias, extents),
        **dict(zip(SEQUENCES, sequences, strict=True)),
        **lists,
        **{f"x{i}": x for i, x in enumerate(found.captured)},
    )
    return _Modified(found, arguments, bias)


def _extents(
    q: Array,
    k: Array,
    heads_first: bool,
    sequences: tuple[Array | None, int | None, Array | None, int | None],
) -> tuple[int, int, int, int]:
    """How many batches (or sequences), heads, queries and keys (of the longest) there are."""
    starts, queries, _, keys = sequences
    if starts is not None and queries is not None:
        return starts.shape[0] - 1, q.shape[1], queries, queries if keys is None else keys
    rows, heads = (2, 1) if heads_first else (1, 2)
    return q.shape[0], q.shape[heads], q.shape[rows], k.shape[rows]


def _unordered(
    captured: tuple[Array, ...],
    score_mod: Callable | None,
    bias: Array | None,
    extents: tuple[int, int, int, int],
) -> int:
    """The bits of captured arrays to whose gradients' elements more than one score may add: all but
    a bias that has an element for each score, which score_mod does not read besides.
    """
    own = () if score_mod is None else tkc.lambda_lift(score_mod)[1]
    alone = bias is not None and tuple(bias.shape) == extents and all(x is not bias for x in own)
    return sum(1 << i for i, x in enumerate(captured) if not (alone and x is bias))


def _our_score_mods(
    masks: dict[str, Any],
    slopes: Array | None,
    bias: Array | None,
    extents: tuple[int, int, int, int],
    sequences: tuple[Array | None, int | None, Array | None, int | None],
) -> list[Callable]:
    """Soft cap, slopes and bias, in the order in which scores get them."""
    (_, heads, queries, keys), (starts, _, starts_k, _) = extents, sequences
    check_heads(heads, alibi_slopes=slopes)
    found: list[Callable] = [capped(masks["cap"])] if masks["CAP"] else []
    if slopes is not None:
        apart = starts_k is not None
        found += [with_slopes(slopes, (starts, starts_k) if apart else keys - queries)]
    return found + ([] if bias is None else [with_bias(bias)])


def _check_modified(q: Array, cu_seqlens: Array | None, dropout: float) -> None:
    if dtype_of(q) == FLOAT8:
        raise tkc.LaunchError(
            f"attention: score_mod, mask_mod, block_mask, bias and dropout are not for {FLOAT8};"
            " convert q, k and v to bfloat16"
        )
    if cu_seqlens is None and len(q.shape) != 4:
        raise tkc.LaunchError(
            f"attention: expected q of [batch, heads, queries, D], got {list(q.shape)}"
        )
    if not 0 <= dropout < 1:
        raise tkc.LaunchError(f"attention: dropout is a probability below 1, got {dropout}")


def _check_bias(bias: Array, extents: tuple[int, ...]) -> None:
    rank = len(bias.shape)
    if rank > 4 or any(
        n not in (1, m) for n, m in zip(bias.shape, extents[4 - rank :], strict=True)
    ):
        raise tkc.LaunchError(
            f"attention: bias broadcasts to {list(extents)} (batch, heads, queries, keys), got"
            f" {list(bias.shape)}"
        )


def attention(
    q: Array,
    k: Array,
    v: Array,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float = 0.0,
    heads_first: bool = True,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    with_lse: bool = False,
    rows: int | None = None,
    columns: int | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_k: int | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    score_mod: Callable | None = None,
    mask_mod: Callable | None = None,
    block_mask: Any = None,
    bias: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    deterministic: bool = False,
) -> Array | tuple[Array, Array]:
    """softmax(q kᵀ · scale + mask) v, computed in float32, of q's element type (bfloat16, float16
    or float32); of float8_e4m3 bfloat16.

    q: [batch, heads, queries, D]; k: [batch, shared heads, keys, D]; v: [batch, shared heads, keys,
    DV], with heads a multiple of the shared heads (grouped queries); with heads_first=False [batch,
    queries, heads, D] and so on. Any strides. scale: D^−½ by default. causal: the queries are the
    last of the keys' positions, and see what is not after them; window: only the last so many; or
    a pair, how many keys are seen on the left and on the right of a position (None: all).
    softcap: scores s become softcap · tanh(s / softcap). cu_seqlens, max_seqlen: ragged batches,
    arrays of [tokens, heads, D], where the sequences begin (int32, their number + 1) and the length
    of the longest; cu_seqlens_k, max_seqlen_k: likewise of keys and values, where they differ from
    the queries'. sinks: a logit of each head, float32 of [heads], that takes part in a row's sum
    and log-sum-exp and has no value. alibi_slopes: float32 of [heads]; scores less the slope times
    the distance of row and column. with_lse: also the log-sum-exp of each row, float32 of [batch,
    heads, queries] ([heads, tokens]). rows, columns: of Q and of K in a program's block, which the
    shapes choose otherwise (not for ragged batches): on Hopper 192 or 256 rows are three or four
    warpgroups that take turns at the tensor cores. q_scale, k_scale, v_scale: what float8 q, k and
    v are to be multiplied by, a number or float32 of [heads] (k, v: [shared heads]), or (not in
    ragged batches) of [batch, heads, blocks], one for each block of 64, 128, 256 … rows; the
    probabilities are rounded to float8, sums are float32. A row that sees nothing gives zeros, and
    −inf.

    score_mod(score, b, h, q_idx, kv_idx) gives the score that takes the place of one that is scaled
    (and capped); mask_mod(b, h, q_idx, kv_idx) whether a row sees a column, beside the masks above.
    Both are functions of elements, of which tiles are traced: operators, functions of tkc or of
    torch, arrays that they captured, read by index. block_mask: of `create_block_mask` or torch,
    made of mask_mod, which it brings along: blocks that nobody sees are left out. bias: broadcasts
    to [batch, heads, queries, keys], and is added to scores. dropout: how likely a probability is
    to become 0; the others are divided by 1 − dropout; the same seed drops the same ones. None of
    these is for float8. In ragged batches b is a sequence's number, rows and columns count from its
    beginning, and bias and block_mask are of the longest.

    Differentiable in torch and jax with respect to q, k, v, sinks, bias and what score_mod
    captured, through both results (`attention_backward`, whose `deterministic` may be given here;
    not for float8). Raises LaunchError where shapes, types or options do not fit. Algorithms: Dao
    et al., "FlashAttention" (2022); Dong et al., "Flex Attention" (2024).
    """
    try:
        check_together(cu_seqlens, max_seqlen, cu_seqlens_k, max_seqlen_k)
        if cu_seqlens is not None and (rows or columns):
            raise tkc.LaunchError(
                "attention: rows and columns are not for ragged batches; leave them out"
            )
        causal, window, sides = _sides(causal, window)
        masks, of_heads = (causal, scale, window, softcap), (sinks, alibi_slopes)
        functions, dropped = (score_mod, mask_mod, block_mask, bias), (dropout, seed)
        sequences = cu_seqlens, max_seqlen, cu_seqlens_k, max_seqlen_k
        how = sides, heads_first or cu_seqlens is not None, sequences, deterministic
        call = _modified(q, k, masks, of_heads, functions, dropped, *how)
        if call is not None:
            sums = with_lse or wants_gradient(q, k, v, sinks, *call.mods.captured)
            out = mods.modified(q, k, v, sums=sums, **call.arguments)
            return out if with_lse else out[0]
        scale, scales = numbers_of(
            (q, k, v),
            scale,
            dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale),
            v.shape[-2 if cu_seqlens is not None or not heads_first else -3],
        )
        masks, sums = (causal, scale, window, softcap), with_lse or wants_gradient(q, k, v, sinks)
        if cu_seqlens is None:
            out = dense(
                q, k, v, *masks, heads_first, rows, columns, *scales, sums, *of_heads, deterministic
            )
        else:
            lengths = cu_seqlens_k, max_seqlen_k
            given = q, k, v, cu_seqlens, max_seqlen
            out = ragged(*given, *masks, *scales, sums, *lengths, *of_heads, deterministic)
        return out if with_lse else out[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise


def attention_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    lse_grad: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float = 0.0,
    heads_first: bool = True,
    cu_seqlens: Array | None = None,
    max_seqlen: int | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_k: int | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    score_mod: Callable | None = None,
    mask_mod: Callable | None = None,
    block_mask: Any = None,
    bias: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    deterministic: bool = False,
) -> tuple[Any, ...]:
    """The gradients of q, k and v, of their element type, and (where they are given) of sinks and
    bias, for `out, lse = attention(q, k, v, …, with_lse=True)`; where score_mod is given also a
    tuple of the gradients of the floating arrays that it captured, in the order in which
    `tkc.lambda_lift` finds them. The gradients of bias and of captured arrays are float32.

    grad: of out, of its shape and element type; lse_grad: of lse, float32, None where nothing
    depends on lse. The other arguments are those of `attention`. What is summed is summed in
    float32. deterministic: in one order, so that the same arguments give the same bits; else, of
    bfloat16 and float16 with D of 64 or 128 on Hopper, dQ is added up in memory in any order, which
    is faster (torch.use_deterministic_algorithms counts as asking, too). The gradients of captured
    arrays, and of a bias that broadcasts, are added up in no fixed order: these deterministic
    refuses. dK and dV of a shared head are sums over its heads of Q. Besides the
    results the call allocates two float32 for each row of Q, and D more where dQ is added up.
    Raises LaunchError where shapes, types or options do not fit. Algorithm: Dao et al.,
    "FlashAttention" (2022); in one order, the scores are computed twice instead.
    """
    try:
        check_together(cu_seqlens, max_seqlen, cu_seqlens_k, max_seqlen_k)
        causal, window, sides = _sides(causal, window)
        deterministic = backward.wants_equal_bits(q, deterministic)
        masks, of_heads = (causal, scale, window, softcap), (sinks, alibi_slopes)
        functions, dropped = (score_mod, mask_mod, block_mask, bias), (dropout, seed)
        sequences = cu_seqlens, max_seqlen, cu_seqlens_k, max_seqlen_k
        how = sides, heads_first or cu_seqlens is not None, sequences, deterministic
        call = _modified(q, k, masks, of_heads, functions, dropped, *how)
        given = grad, q, k, v, out, lse
        if call is not None:
            return _gradients(given, lse_grad, call, score_mod)
        if cu_seqlens is None:
            found = backward.of_dense(
                *given, lse_grad, *masks, heads_first, *of_heads, deterministic
            )
        else:
            lengths = cu_seqlens_k, max_seqlen_k
            found = backward.of_ragged(
                *given, cu_seqlens, max_seqlen, lse_grad, *masks, *lengths, *of_heads, deterministic
            )
        return found if sinks is not None else found[:3]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise


def _gradients(
    given: tuple[Array, ...],
    lse_grad: Array | None,
    call: _Modified,
    score_mod: Callable | None,
) -> tuple[Any, ...]:
    """attention_backward's result of a call by modifiers."""
    captured, sinks = call.mods.captured, call.arguments["sinks"]
    own = () if score_mod is None else tkc.lambda_lift(score_mod)[1]
    floats = [i for i, x in enumerate(own) if "float" in dtype_of(x)]
    of_bias = [i for i, x in enumerate(captured) if x is call.bias][:1]
    wanted = sum(1 << i for i in {*floats, *of_bias})
    found = mods.modified_backward(*given, lse_grad, wanted=wanted, **call.arguments)
    results = (*found[:3], *([] if sinks is None else [found[3]]))
    results += tuple(found[4 + i] for i in of_bias)
    return results if score_mod is None else (*results, tuple(found[4 + i] for i in floats))
