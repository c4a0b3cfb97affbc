"""Attention whose keys and values are dealt out over ranks: each rank has some rows of the queries
and the same rows of keys and values.

Every rank gives all others its keys and values, head by head, and begins with its own. One kernel
goes over all that arrives with one running softmax, waiting where another rank's rows begin: no
partial results, nothing to merge. With `causal`, rows of later ranks are left out.
"""

from __future__ import annotations

import math
from typing import Any

import tkc
from tkc.kernels.distributed.collectives import all_gathered
from tkc.kernels.distributed.groups import Group

BQ, BK = 128, 64  # rows of queries of a program, of keys of a step


@tkc.jit
def _attention(
    q,
    k,
    v,
    y,
    k_flags: tkc.peers,
    v_flags: tkc.peers,
    turns,
    scale,
    CAUSAL: tkc.constexpr,
    D: tkc.constexpr,
    BQ: tkc.constexpr,
    BK: tkc.constexpr,
):
    """q, y [H, n, D]; k, v [2 W H, n, D]. Powers of two; scale has log2(e) in it."""
    me, W, H, n = tkc.rank(), tkc.world(), q.shape[0], q.shape[1]
    h, first = tkc.program_id(1), tkc.program_id(0) * BQ
    rows, turn = first + tkc.arange(BQ), turns[h]
    queries = tkc.load(q, (h, first, 0), (None, BQ, D))
    high = tkc.full((BQ,), -tkc.inf, tkc.float32)
    weight, total = tkc.zeros((BQ,), tkc.float32), tkc.zeros((BQ, D), tkc.float32)
    for step in tkc.static_range(W):
        shard = (me - step) % W
        # also for what is not read: who sends it has then read what this rank sent a turn before
        tkc.wait(k_flags[me], (shard, h), turn)
        tkc.wait(v_flags[me], (shard, h), turn)
        if CAUSAL and shard > me:
            continue
        for at in tkc.range(0, tkc.minimum(first + BQ, n) if CAUSAL and step == 0 else n, BK):
            head = (turn % 2 * W + shard) * H + h
            keys = tkc.load(k, (head, at, 0), (None, BK, D))
            scores = tkc.dot(queries, keys.T) * scale
            columns = at + tkc.arange(BK)
            seen = (columns < n)[None, :]
            if CAUSAL and step == 0:
                seen = seen & (columns[None, :] <= rows[:, None])
            scores = tkc.where(seen, scores, -tkc.inf)
            before, high = high, tkc.maximum(high, tkc.max(scores, 1))
            powers = tkc.exp2(scores - high[:, None])
            shrink = tkc.exp2(before - high)
            weight = weight * shrink + tkc.sum(powers, 1)
            values = tkc.load(v, (head, at, 0), (None, BK, D))
            total = tkc.dot(powers.to(v.dtype), values, total * shrink[:, None])
    tkc.store(y, (h, first, 0), (total / weight[:, None]).to(y.dtype)[None, :, :])


def ring_attention(q: Any, k: Any, v: Any, group: Group, causal: bool = False) -> Any:
    """softmax(q kᵀ / √D) v over the keys of all ranks. q, k, v: [H, n, D], this rank's rows of W n;
    16-bit floats or float32. causal: a row sees the rows before it and itself, in the order of
    ranks.
    """
    heads, n, d = q.shape
    if tuple(k.shape) != tuple(q.shape) or tuple(v.shape) != tuple(q.shape):
        raise tkc.LaunchError(
            f"ring_attention: q, k and v are [H, n, D] alike, got {tuple(q.shape)},"
            f" {tuple(k.shape)} and {tuple(v.shape)}"
        )
    y = group.empty(q.shape, q.dtype)
    if n * heads == 0:
        return y
    keys, _ = all_gathered(k, group, "ring_attention k", n * d, exact=True)
    values, _ = all_gathered(v, group, "ring_attention v", n * d, exact=True)
    shape = 2 * group.world * heads, n, d
    _attention[tkc.cdiv(n, BQ), heads](
        q,
        keys.data.own.reshape(shape),
        values.data.own.reshape(shape),
        y,
        keys.flags,
        values.flags,
        keys.turns,
        math.log2(math.e) / math.sqrt(d),
        CAUSAL=causal,
        D=d,
        BQ=BQ,
        BK=BK,
    )
    return y
