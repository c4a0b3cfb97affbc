"""Kernels that wait for other ranks between their dots: what the language can say, and the library
does in several launches.
"""

import tkc


@tkc.jit
def push(x, data: tkc.peers, flags: tkc.peers, turns, C: tkc.constexpr, N: tkc.constexpr):
    """Gives all ranks this one's x [n], in pieces of C elements, N at a time; a signal a piece."""
    me, W, i = tkc.rank(), tkc.world(), tkc.program_id(0)
    turn = turns[i] + 1
    for r in tkc.static_range(W):
        target = data[r][turn % 2, me]
        for at in tkc.range(i * C, tkc.minimum(i * C + C, x.shape[0]), N):
            tkc.store(target, (at,), tkc.load(x, (at,), (N,)))
        tkc.signal(flags[r], (me, i), turn)
    tkc.store(turns, (i,), turn)


@tkc.jit
def product_of_gathered(
    a,
    w,
    y,
    flags: tkc.peers,
    turns,
    C: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """y [W, m, N] = a [2, W, m, K] w [K, N], of the half of this turn; own rows first. The rows of
    a block lie in pieces of C elements, for whose signals it waits.
    """
    W, m, K = tkc.world(), a.shape[2], a.shape[3]
    blocks, turn, i = tkc.cdiv(m, BM), turns[0], tkc.program_id(0)
    shard, row, column = (i // blocks + tkc.rank()) % W, i % blocks * BM, tkc.program_id(1) * BN
    for piece in tkc.range(row * K // C, (tkc.minimum(row + BM, m) * K - 1) // C + 1):
        tkc.wait(flags[tkc.rank()], (shard, piece), turn)
    total = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, K, BK):
        left = tkc.load(a, (turn % 2, shard, row, k), (None, None, BM, BK))
        total = tkc.dot(left, tkc.load(w, (k, column), (BK, BN)), total)
    tkc.store(y, (shard, row, column), total.to(y.dtype)[None, :, :])


@tkc.jit
def attention_of_gathered(
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


@tkc.jit
def product_to_peer(
    a,
    w,
    y: tkc.peers,
    flags: tkc.peers,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """The next rank's y [m, N] = a [m, K] w [K, N], a signal a block of rows; N is a block."""
    to, i = (tkc.rank() + 1) % tkc.world(), tkc.program_id(0)
    total = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        left = tkc.load(a, (i * BM, k), (BM, BK))
        total = tkc.dot(left, tkc.load(w, (k, 0), (BK, BN)), total)
    tkc.store(y[to], (i * BM, 0), total.to(y[to].dtype))
    tkc.signal(flags[to], i)


@tkc.jit
def came(y, out, flags: tkc.peers, BM: tkc.constexpr, BN: tkc.constexpr):
    """out [m, N] = y [m, N], when each block of rows has come."""
    i = tkc.program_id(0)
    tkc.wait(flags[tkc.rank()], i)
    tkc.store(out, (i * BM, 0), tkc.load(y, (i * BM, 0), (BM, BN)))


@tkc.jit
def product_to_owners(
    a,
    w,
    data: tkc.peers,
    flags: tkc.peers,
    turns,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """a [W, m, K] w [K, N]: each block goes to the rank that has its rows; own rows last."""
    me, W, m, K = tkc.rank(), tkc.world(), a.shape[1], a.shape[2]
    blocks, i, j = tkc.cdiv(m, BM), tkc.program_id(0), tkc.program_id(1)
    owner, row, column = (i // blocks + me + 1) % W, i % blocks * BM, j * BN
    turn = turns[0] + 1
    total = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, K, BK):
        left = tkc.load(a, (owner, row, k), (None, BM, BK))
        total = tkc.dot(left, tkc.load(w, (k, column), (BK, BN)), total)
    target = data[owner]
    tkc.store(target, (turn % 2, me, row, column), total.to(target.dtype)[None, None, :, :])
    tkc.signal(flags[owner], (me, i % blocks * tkc.num_programs(1) + j), turn)
