"""A product of the rows of all ranks that runs while they come: ranks give one another rows in
pieces of their columns, in the order in which the product reads them.

Where a product of all rows has no more blocks than the GPU has multiprocessors, a product of each
rank's rows after the other takes longer: its blocks are too few, or too small. So there is one,
whose blocks wait for the first piece of the rows, and for the others while they multiply. A few
multiprocessors, which the product leaves, give them; own rows are there before it begins.

Turn by turn rows lie in one half of the memory and then in the other (staging.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import tkc
from tkc.kernels.arrays import dtype_of, power
from tkc.kernels.copies import BYTES, strides_of
from tkc.kernels.distributed.groups import Group
from tkc.kernels.matmul import planned

GIVING = 0  # the queue of what gives, beside which the product runs
GIVERS = 8  # programs that give, to each of which a product leaves a multiprocessor
GIVER_WARPS = 16
GIVEN_ROWS = 16  # at once
KEPT = 4096  # elements of a program that copies own rows
PIECES = 8  # about so many
MIN_PIECE = 512  # columns


class _Memory(NamedTuple):
    """rows: [2, W, m, K] of each rank; came: [W, pieces] of each rank, how many parts of a piece
    have come; given, kept: turns of each program that gives, and of each that keeps own rows.
    """

    rows: tkc.peers
    came: tkc.peers
    given: Any
    kept: Any


@tkc.jit
def _keep(x, own, came: tkc.peers, turns, G: tkc.constexpr, N: tkc.constexpr):
    """Own rows x [m K] among those of all ranks, own [2, W, m K], as if G programs had given each
    piece.
    """
    me, i = tkc.rank(), tkc.program_id(0)
    turn = turns[i] + 1
    tkc.store(own[turn % 2, me], (i * N,), tkc.load(x, (i * N,), (N,)))
    if i == 0:
        for piece in tkc.range(0, came[me].shape[1]):
            tkc.store(came[me], (me, piece), turn * G)
    tkc.store(turns, (i,), turn)


@tkc.jit
def _give(
    x, rows: tkc.peers, came: tkc.peers, turns, C: tkc.constexpr, G: tkc.constexpr, R: tkc.constexpr
):
    """Gives the others this rank's x [m, K] in pieces of C columns: each of G programs some rows of
    all pieces, R at a time.
    """
    me, W, i = tkc.rank(), tkc.world(), tkc.program_id(0)
    m, turn = x.shape[0], turns[i] + 1
    each = tkc.cdiv(m, G * R) * R
    for piece in tkc.range(0, tkc.cdiv(x.shape[1], C)):
        for row in tkc.range(i * each, tkc.minimum(i * each + each, m), R):
            some = tkc.load(x, (row, piece * C), (R, C))
            for step in tkc.static_range(1, W):
                tkc.store(rows[(me - step) % W][turn % 2, me], (row, piece * C), some)
        for step in tkc.static_range(1, W):
            tkc.signal(came[(me - step) % W], (me, piece), how="add")
    tkc.store(turns, (i,), turn)


def _blocks_beside(args: dict, target: str) -> list[tkc.Config]:
    machine = tkc.target(target)
    (m, n), k = args["c"].shape, args["a"].shape[-1]
    of_b = strides_of(args["b"])
    product = tkc.Product(m, n, k, 1, of_b[1] == 1, (2 * k, 2 * max(of_b)))

    def allowed(block: Any) -> bool:
        return _leaves_room(product, block, machine) and args["C"] % block.depth == 0

    # blocks with roles have a multiprocessor to themselves
    found = planned(args, target, allowed)
    return [tkc.Config(**dict(config.items), roles="cooperative") for _, config in found]


def _leaves_room(product: tkc.Product, block: Any, machine: Any) -> bool:
    """Whether all blocks have a multiprocessor each, those that give have some, and no block shares
    with another, which might wait for other pieces.
    """
    alone = block.cluster == (1, 1) and block.split_k == 1
    alone = alone and not (block.in_turn or block.stream_k)
    return alone and product.programs(block) <= machine.multiprocessors - GIVERS


@tkc.autotune(_blocks_beside, measure=False)
@tkc.jit
def _product_of_pieces(
    a,
    b,
    c,
    came: tkc.peers,
    turns,
    C: tkc.constexpr,
    G: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """c [W m, n] = a [2, W m, K] b [K, n], of this turn's half of a. A block waits for each piece
    of the ranks whose rows it has, which G programs give.
    """
    me, i, j = tkc.rank(), tkc.program_id(0), tkc.program_id(1)
    rows, K, turn, row, column = a.shape[1], a.shape[2], turns[0], i * BM, j * BN
    m = rows // tkc.world()
    total = tkc.zeros((BM, BN), tkc.float32)
    for piece in tkc.range(0, tkc.cdiv(K, C)):
        for r in tkc.range(row // m, (tkc.minimum(row + BM, rows) - 1) // m + 1):
            tkc.wait(came[me], (r, piece), turn * G)
        for k in tkc.range(piece * C, tkc.minimum(piece * C + C, K), BK):
            left = tkc.load(a, (turn % 2, row, k), (None, BM, BK))
            total = tkc.dot(left, tkc.load(b, (k, column), (BK, BN)), total)
    tkc.store(c, (row, column), total.to(c.dtype))


def _grid(args: dict) -> tuple[int, int]:
    m, n = args["c"].shape
    return tkc.cdiv(m, args["BM"]), tkc.cdiv(n, args["BN"])


def pay(a: Any, w: Any, group: Group) -> bool:
    """Whether one product of all rows, which come meanwhile, takes less time than one of each
    rank's: by shapes and strides, which all ranks have alike.
    """
    (m, k), (outer, inner), target = a.shape, strides_of(w), tkc.target_of(a)
    pitch = max(outer, inner)
    fits = m * k > 0 and BYTES.get(dtype_of(a)) == 2 and dtype_of(a) == dtype_of(w)
    fits = fits and 1 in (outer, inner) and not any(x % 8 for x in (k, w.shape[1], pitch))
    return fits and _pay(group.world, m, w.shape[1], k, inner == 1, pitch, target)


@lru_cache(1024)
def _pay(world: int, m: int, n: int, k: int, dense: bool, pitch: int, target: str) -> bool:
    if target == "cpu" or not (machine := tkc.target(target)).wgmma:
        return False
    each, whole = (tkc.Product(x, n, k, 1, dense, (2 * k, 2 * pitch)) for x in (m, world * m))
    beside = tkc.product_blocks(whole, target, 1, lambda b: _leaves_room(whole, b, machine))
    turns = tkc.product_blocks(each, target, 1)
    return bool(beside and turns) and beside[0][0] < world * turns[0][0]


def product_of_pieces(a: Any, w: Any, y: Any, group: Group) -> None:
    """y [W m, N] = the rows of all ranks times w [K, N]. a: [m, K], this rank's rows; 16-bit
    floats. All ranks call it together.
    """
    (m, k), world = a.shape, group.world
    piece, keepers = max(MIN_PIECE, power(tkc.cdiv(k, PIECES))), tkc.cdiv(m * k, KEPT)

    def make() -> _Memory:
        return _Memory(
            group.peers((2, world, m, k), a.dtype),
            group.peers((world, tkc.cdiv(k, piece)), "int32"),
            group.zeros((GIVERS,), "int32"),
            group.zeros((keepers,), "int32"),
        )

    memory = group.remembered(("product_of_pieces", m, k, str(a.dtype), piece, GIVERS), make)
    own = memory.rows.own
    group.begin()
    with group.beside(GIVING):
        _give[GIVERS](
            a,
            memory.rows,
            memory.came,
            memory.given,
            C=piece,
            G=GIVERS,
            R=GIVEN_ROWS,
            num_warps=GIVER_WARPS,
        )
    _keep[keepers](
        a.reshape(-1),
        own.reshape(2, world, m * k),
        memory.came,
        memory.kept,
        G=GIVERS,
        N=KEPT,
    )
    rows = own.reshape(2, world * m, k)
    _product_of_pieces[_grid](rows, w, y, memory.came, memory.kept, C=piece, G=GIVERS)
    group.join()
    group.end()
