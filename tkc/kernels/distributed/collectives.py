"""Collectives: what every rank has, given to all, summed or exchanged. One kernel a call.

Each program pushes its blocks into the memory of others, signals, waits for theirs and finishes
from its own memory: one crossing of the link, no barrier, and sums in the order of ranks, so that
all ranks get the same bits, in every call. With two shots (all_reduce), each block has an owner
that sums it for all: 2 (W - 1) / W of the bytes cross the link instead of W - 1 times all.
"""

from __future__ import annotations

from typing import Any

import tkc
from tkc.kernels.arrays import dtype_of
from tkc.kernels.distributed.groups import Group
from tkc.kernels.distributed.staging import staging

BLOCK = 4096  # elements of a program
# of an all_reduce of more bytes, over more than two ranks: two shots send less
MAX_ONE_SHOT_BYTES = 256 << 10


@tkc.jit
def _exchange(
    x,
    y,
    data: tkc.peers,
    flags: tkc.peers,
    turns,
    ADD: tkc.constexpr,
    ALL: tkc.constexpr,
    N: tkc.constexpr,
):
    """x [W, n]: row r of it goes to rank r; ALL: x [1, n] goes to all. y gets what came, row by
    row; ADD: its sum.
    """
    me, W, i = tkc.rank(), tkc.world(), tkc.program_id(0)
    turn, at = turns[i] + 1, i * N
    for step in tkc.static_range(1, W):
        r = (me - step) % W
        given = tkc.load(x, (0 if ALL else r, at), (None, N))
        tkc.store(data[r][turn % 2, me], (at,), given)
        tkc.signal(flags[r], (me, i), turn)
    own = tkc.load(x, (0 if ALL else me, at), (None, N))
    total = tkc.zeros((N,), tkc.float64 if x.dtype == tkc.float64 else tkc.float32)
    for r in tkc.static_range(W):
        if r != me:
            tkc.wait(flags[me], (r, i), turn)
        part = own if r == me else tkc.load(data[me][turn % 2, r], (at,), (N,))
        if ADD:
            total = total + part
        else:
            tkc.store(y, (r, at), part[None, :])
    if ADD:
        tkc.store(y, (0, at), total.to(y.dtype)[None, :])
    tkc.store(turns, (i,), turn)


@tkc.jit
def _all_reduce_two_shots(
    x,
    y,
    data: tkc.peers,
    flags: tkc.peers,
    sums: tkc.peers,
    done: tkc.peers,
    turns,
    N: tkc.constexpr,
):
    """Program i is summed by rank i mod W, which gives the sum to all."""
    me, W, i = tkc.rank(), tkc.world(), tkc.program_id(0)
    turn, at, owner = turns[i] + 1, i * N, i % W
    own = tkc.load(x, (at,), (N,))
    if owner == me:
        total = tkc.zeros((N,), tkc.float64 if x.dtype == tkc.float64 else tkc.float32)
        for r in tkc.static_range(W):
            if r == me:
                total = total + own
            else:
                tkc.wait(flags[me], (r, i), turn)
                total = total + tkc.load(data[me][turn % 2, r], (at,), (N,))
        for step in tkc.static_range(1, W):
            r = (me - step) % W
            tkc.store(sums[r][turn % 2], (at,), total.to(y.dtype))
            tkc.signal(done[r], (0, i), turn)
        tkc.store(y, (at,), total.to(y.dtype))
    else:
        tkc.store(data[owner][turn % 2, me], (at,), own)
        tkc.signal(flags[owner], (me, i), turn)
        tkc.wait(done[me], (0, i), turn)
        tkc.store(y, (at,), tkc.load(sums[me][turn % 2], (at,), (N,)))
    tkc.store(turns, (i,), turn)


def _exchanged(group: Group, call: str, x: Any, y: Any, add: bool) -> Any:
    """Launches an exchange of the rows of x [W or 1, n] into y [W or 1, n]."""
    n = x.shape[1]
    if n == 0:
        return y
    programs = tkc.cdiv(n, BLOCK)
    memory = staging(group, call, (group.world, n), x.dtype, programs)
    group.begin()
    _exchange[programs](x, y, *memory, ADD=add, ALL=x.shape[0] == 1, N=block_of(n))
    group.end()
    return y


def block_of(n: int) -> int:
    """Elements of a program: as many as there are, where those are few."""
    return min(BLOCK, max(32, 1 << (n - 1).bit_length()))


def all_gather(x: Any, group: Group) -> Any:
    """[W, …]: what each rank has. x: [...], of any element type, alike on all ranks."""
    y = group.empty((group.world, *x.shape), x.dtype)
    _exchanged(group, "all_gather", _rows(x, 1), y.reshape(group.world, -1), False)
    return y


def all_to_all(x: Any, group: Group) -> Any:
    """[W, …]: of each rank the row that is for this one. x: [W, …], row r for rank r."""
    _check_rows(x, group, "all_to_all")
    y = group.empty(x.shape, x.dtype)
    _exchanged(group, "all_to_all", _rows(x, group.world), y.reshape(group.world, -1), False)
    return y


def reduce_scatter(x: Any, group: Group) -> Any:
    """The sum over ranks of their row for this rank. x: [W, …], floats; sums in float32 (of float64
    in float64), in the order of ranks.
    """
    _check_rows(x, group, "reduce_scatter")
    check_floats(x, "reduce_scatter")
    y = group.empty(x.shape[1:], x.dtype)
    _exchanged(group, "reduce_scatter", _rows(x, group.world), y.reshape(1, -1), True)
    return y


def all_reduce(x: Any, group: Group, shots: int | None = None) -> Any:
    """The sum over ranks, the same bits on each. x: floats; sums in float32 (of float64 in
    float64), in the order of ranks. shots: 1, every rank sums all; 2, every block is summed by one
    rank; None: by the number of bytes and ranks.
    """
    check_floats(x, "all_reduce")
    y = group.empty(x.shape, x.dtype)
    n = len(x.reshape(-1))
    if shots not in (None, 1, 2):
        raise tkc.LaunchError(f"all_reduce takes 1 shot, or 2, got {shots!r}")
    few = group.world <= 2 or n * x.dtype.itemsize <= MAX_ONE_SHOT_BYTES
    if shots == 1 or shots is None and few or n == 0:
        _exchanged(group, "all_reduce", _rows(x, 1), y.reshape(1, -1), True)
        return y
    programs = tkc.cdiv(n, BLOCK)
    memory = staging(group, "all_reduce", (group.world, n), x.dtype, programs, 2)
    sums = group.remembered(
        ("sums", n, str(x.dtype)),
        lambda: (
            group.peers((2, n), x.dtype),
            group.peers((1, programs), "int32"),
        ),
    )
    group.begin()
    _all_reduce_two_shots[programs](
        x.reshape(-1),
        y.reshape(-1),
        memory.data,
        memory.flags,
        *sums,
        memory.turns,
        N=block_of(n),
    )
    group.end()
    return y


def _rows(x: Any, rows: int) -> Any:
    """x as so many rows."""
    return x.reshape(rows, -1)


def _check_rows(x: Any, group: Group, what: str) -> None:
    """Raises LaunchError where x has not one row for each rank."""
    if x.ndim < 1 or x.shape[0] != group.world:
        raise tkc.LaunchError(
            f"{what}: x has one row a rank, {group.world} of them, got the shape {tuple(x.shape)}"
        )


def check_floats(x: Any, what: str) -> None:
    """Raises LaunchError where an array is not of floats: sums of others would be rounded."""
    if (name := dtype_of(x)).startswith(("int", "uint", "bool")):
        raise tkc.LaunchError(
            f"{what}: x is summed in float32, got {name}, which that would round; convert it to a"
            " float type, or sum what all_gather gives"
        )
