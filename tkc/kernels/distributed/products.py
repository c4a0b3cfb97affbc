"""Products whose operand is gathered, or whose result is summed, over ranks, beside the exchange.

    all_gather_matmul       y = [a of rank 0; a of rank 1; …] w      columns of w a rank
    matmul_reduce_scatter   y = rows of this rank of Σ a w           k is dealt out over ranks
    matmul_all_reduce       y = Σ a w

Own rows are multiplied while those of others arrive; of those whose results others sum, own rows
are last. Each rank's rows are one product, as `kernels.matmul` plans it. Of gathered rows one is
behind the other: one whose rows come in the midst of another's blocks would take multiprocessors
out of step. Those that are summed are beside one another, where the last blocks of one leave
multiprocessors free. Results of ranks are added in the order of ranks: the same bits in every call.
"""

from __future__ import annotations

from typing import Any

import tkc
from tkc.kernels.distributed import exchange, pieces
from tkc.kernels.distributed.collectives import all_gather
from tkc.kernels.distributed.groups import Group
from tkc.kernels.matmul import matmul

SUMMED = 4096  # elements of a program that sums parts


@tkc.jit
def _sum_of_parts(y, own, given, ME: tkc.constexpr, W: tkc.constexpr, N: tkc.constexpr):
    """y [n]: the sum of this rank's own part [n] and those of the others, rows of given [W, n], in
    the order of ranks.
    """
    at = tkc.program_id(0) * N
    total = tkc.zeros((N,), tkc.float64 if y.dtype == tkc.float64 else tkc.float32)
    for r in tkc.static_range(W):
        total = total + tkc.load(own if r == ME else given[r], (at,), (N,))
    tkc.store(y, (at,), total.to(y.dtype))


def all_gather_matmul(a: Any, w: Any, group: Group) -> Any:
    """[W m, N]: the rows of all ranks times this rank's columns. a: [m, K], this rank's rows; w:
    [K, N]; floats, products as of kernels.matmul.
    """
    (m, k), n, me = a.shape, w.shape[1], group.rank
    _check_product(a, w, "all_gather_matmul")
    if pieces.pay(a, w, group):
        y = group.empty((group.world * m, n), a.dtype)
        pieces.product_of_pieces(a, w, y, group)
        return y
    y = group.empty((group.world, m, n), a.dtype)
    if m * k:
        memory = exchange.begun(group, "all_gather_matmul", m * k, a.dtype)
        for _, to, _ in exchange.others(group):
            exchange.give((a,), to, memory, group)
    matmul(a, w, out=y[me])
    for _, _, source in exchange.others(group):
        rows = exchange.receive(source, memory, group).reshape(m, k) if m * k else a
        matmul(rows, w, out=y[source])
    group.join()
    group.end()
    return y.reshape(group.world * m, n)


def matmul_reduce_scatter(a: Any, w: Any, group: Group) -> Any:
    """[M / W, N]: this rank's rows of the sum over ranks of a w. a: [M, k], w: [k, N]: this rank's
    part of K; floats. Parts are rounded to a's dtype and summed in float32 (of
    float64 in float64).
    """
    (rows, k), n, world, me = a.shape, w.shape[1], group.world, group.rank
    _check_product(a, w, "matmul_reduce_scatter")
    if rows % world:
        raise tkc.LaunchError(
            f"matmul_reduce_scatter deals {rows} rows out over {world} ranks; pad them to a"
            f" multiple of {world}"
        )
    m = rows // world
    y, left = group.empty((m, n), a.dtype), a.reshape(world, m, k)
    if m * n == 0:
        return y
    parts = group.empty((group.world, m, n), a.dtype)
    memory = exchange.begun(group, "matmul_reduce_scatter", m * n, a.dtype)
    for step, to, _ in exchange.others(group):
        with group.beside(exchange.queue(step)):
            matmul(left[to], w, out=parts[to])
            exchange.give((parts[to],), to, memory, group)
    with group.beside(exchange.queue(group.world)):
        matmul(left[me], w, out=parts[me])
    group.join()
    for _, _, source in exchange.others(group):
        exchange.receive(source, memory, group)
    own, given = parts[me].reshape(-1), memory.data.own
    _sum_of_parts[tkc.cdiv(m * n, SUMMED)](
        y.reshape(-1), own, given, ME=me, W=group.world, N=SUMMED
    )
    group.end()
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
