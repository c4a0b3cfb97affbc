"""Products whose operand is gathered, or whose result is summed, over ranks, block by block beside
the exchange.

    all_gather_matmul       y = [a of rank 0; a of rank 1; …] w      columns of w a rank
    matmul_reduce_scatter   y = rows of this rank of Σ a w           k is dealt out over ranks
    matmul_all_reduce       y = Σ a w

Programs that need another rank's rows wait for them, own rows first; of those whose results others
sum, own rows are last. Results of ranks are added in the order of ranks: the same bits in every
call.
"""

from __future__ import annotations

from typing import Any

import tkc
from tkc.kernels.distributed.collectives import all_gather, all_gathered
from tkc.kernels.distributed.groups import Group
from tkc.kernels.distributed.staging import staging

BM, BN, BK = 128, 128, 64  # of a program


@tkc.jit
def _product_of_gathered(
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
def _product_to_owners(
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


@tkc.jit
def _sum_of_results(
    y, data: tkc.peers, flags: tkc.peers, turns, BM: tkc.constexpr, BN: tkc.constexpr
):
    """y [m, N]: the sum of what all ranks gave this one, block by block, in the order of ranks."""
    me, W = tkc.rank(), tkc.world()
    i, j = tkc.program_id(0), tkc.program_id(1)
    number, row, column = i * tkc.num_programs(1) + j, i * BM, j * BN
    turn = turns[number] + 1
    total = tkc.zeros((BM, BN), tkc.float32)
    for r in tkc.static_range(W):
        tkc.wait(flags[me], (r, number), turn)
        total = total + tkc.load(data[me], (turn % 2, r, row, column), (None, None, BM, BN))
    tkc.store(y, (row, column), total.to(y.dtype))
    tkc.store(turns, (number,), turn)


def all_gather_matmul(a: Any, w: Any, group: Group) -> Any:
    """[W m, N]: the rows of all ranks times this rank's columns. a: [m, K], this rank's rows; w:
    [K, N]; 16-bit floats or float32, sums in float32.
    """
    (m, k), n = a.shape, w.shape[1]
    _check_product(a, w, "all_gather_matmul")
    y = group.empty((group.world, m, n), a.dtype)
    if m * n == 0:
        return y.reshape(group.world * m, n)
    memory, piece = all_gathered(a, group, "all_gather_matmul")
    gathered = memory.data.own.reshape(2, group.world, m, k)
    _product_of_gathered[group.world * tkc.cdiv(m, BM), tkc.cdiv(n, BN)](
        gathered, w, y, memory.flags, memory.turns, C=piece, BM=BM, BN=BN, BK=BK
    )
    return y.reshape(group.world * m, n)


def matmul_reduce_scatter(a: Any, w: Any, group: Group) -> Any:
    """[M / W, N]: this rank's rows of the sum over ranks of a w. a: [M, k], w: [k, N]: this rank's
    part of K; 16-bit floats or float32. Parts are rounded to a's dtype and summed in float32.
    """
    (rows, k), n, world = a.shape, w.shape[1], group.world
    _check_product(a, w, "matmul_reduce_scatter")
    if rows % world:
        raise tkc.LaunchError(
            f"matmul_reduce_scatter deals {rows} rows out over {world} ranks; pad them to a"
            f" multiple of {world}"
        )
    m = rows // world
    y = group.empty((m, n), a.dtype)
    if m * n == 0:
        return y
    grid = tkc.cdiv(m, BM), tkc.cdiv(n, BN)
    memory = staging(group, "matmul_reduce_scatter", (world, m, n), a.dtype, grid[0] * grid[1], k)
    group.begin()
    _product_to_owners[world * grid[0], grid[1]](
        a.reshape(world, m, k), w, *memory, BM=BM, BN=BN, BK=BK
    )
    _sum_of_results[grid](y, *memory, BM=BM, BN=BN)
    return y


def matmul_all_reduce(a: Any, w: Any, group: Group) -> Any:
    """[M, N]: the sum over ranks of a w, the same bits on each; arguments as of
    matmul_reduce_scatter.
    """
    part = matmul_reduce_scatter(a, w, group)
    return all_gather(part, group).reshape(a.shape[0], w.shape[1])


def _check_product(a: Any, w: Any, what: str) -> None:
    if len(a.shape) != 2 or len(w.shape) != 2 or a.shape[1] != w.shape[0]:
        raise tkc.LaunchError(
            f"{what}: a is [M, K] and w [K, N], got {tuple(a.shape)} and {tuple(w.shape)}"
        )
