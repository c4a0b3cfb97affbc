"""Rows sent to the ranks that have their experts, and what came of them sent back.

    dispatch    each row goes once to every rank that has one of its experts
    combine     what those ranks made of it comes back and is added up, in the order of ranks

Expert e of E is on rank e // (E / W). Between the two a rank multiplies each row that it got by its
weights for those of the row's experts that it has.
"""

from __future__ import annotations

from typing import Any

import tkc
from tkc.kernels.distributed.collectives import all_gather, check_floats
from tkc.kernels.distributed.groups import Group
from tkc.kernels.distributed.staging import staging

ROWS = 4  # of a program: few, so that some programs send while others receive
COLUMNS = 2048  # of a row that are moved at once


@tkc.jit
def _dispatch(
    x,
    experts,
    y,
    data: tkc.peers,
    flags: tkc.peers,
    turns,
    EACH: tkc.constexpr,
    K: tkc.constexpr,
    R: tkc.constexpr,
    C: tkc.constexpr,
):
    """x [T, D] to the ranks of its rows' experts [W, T, K]; y [W, T, D] what came, zeros where a
    row was not for this rank.
    """
    me, W, i, D = tkc.rank(), tkc.world(), tkc.program_id(0), x.shape[-1]
    first, turn = i * R, turns[i] + 1
    goes = [_goes(experts, me, first, r, EACH, K, R) for r in range(W)]
    for c in tkc.range(0, D, C):
        rows = tkc.load(x, (first, c), (R, C))
        for step in tkc.static_range(1, W):
            r = (me - step) % W
            tkc.store(data[r][turn % 2, me], (first, c), rows, mask=goes[r][:, None])
        own = tkc.where(goes[me][:, None], rows, 0)
        tkc.store(y, (me, first, c), own.to(y.dtype)[None, :, :])
    for step in tkc.static_range(1, W):
        tkc.signal(flags[(me - step) % W], (me, i), turn)
    for step in tkc.static_range(1, W):
        r = (me + step) % W
        came = _goes(experts, r, first, me, EACH, K, R)
        tkc.wait(flags[me], (r, i), turn)
        for c in tkc.range(0, D, C):
            rows = tkc.load(data[me][turn % 2, r], (first, c), (R, C), mask=came[:, None], other=0)
            tkc.store(y, (r, first, c), rows[None, :, :])
    tkc.store(turns, (i,), turn)


@tkc.jit
def _combine(
    x,
    experts,
    y,
    data: tkc.peers,
    flags: tkc.peers,
    turns,
    EACH: tkc.constexpr,
    K: tkc.constexpr,
    R: tkc.constexpr,
    C: tkc.constexpr,
):
    """x [W, T, D] to the ranks where its rows are from, of those that have an expert here; y [T, D]
    the sum of what came.
    """
    me, W, i, D = tkc.rank(), tkc.world(), tkc.program_id(0), x.shape[-1]
    first, turn = i * R, turns[i] + 1
    for step in tkc.static_range(1, W):
        r = (me - step) % W
        sent = _goes(experts, r, first, me, EACH, K, R)
        for c in tkc.range(0, D, C):
            rows = tkc.load(x, (r, first, c), (None, R, C))
            tkc.store(data[r][turn % 2, me], (first, c), rows, mask=sent[:, None])
        tkc.signal(flags[r], (me, i), turn)
    came = [_goes(experts, me, first, r, EACH, K, R) for r in range(W)]
    for r in tkc.static_range(W):
        if r != me:
            tkc.wait(flags[me], (r, i), turn)
    for c in tkc.range(0, D, C):
        total = tkc.zeros((R, C), tkc.float32)
        for r in tkc.static_range(W):
            source = x[r] if r == me else data[me][turn % 2, r]
            total = total + tkc.load(source, (first, c), (R, C), mask=came[r][:, None], other=0)
        tkc.store(y, (first, c), total.to(y.dtype))
    tkc.store(turns, (i,), turn)


def _goes(experts, source, first, to, EACH, K, R):
    """Which of R rows of a rank have an expert on another one."""
    found = tkc.zeros((R,), tkc.int32) != 0
    for k in tkc.static_range(K):
        expert = tkc.load(experts, (source, first, k), (None, R, None), other=-1)
        found = found | ((expert >= to * EACH) & (expert < (to + 1) * EACH))
    return found


def dispatch(x: Any, experts: Any, number: int, group: Group) -> tuple[Any, Any]:
    """(rows [W, T, D], experts [W, T, K]): of every rank the rows that have an expert of this one,
    zeros in place of the others, and the experts of all rows. x: [T, D], T alike on all ranks;
    experts: [T, K] int32, of 0 … number - 1, of which each rank has number / W.
    """
    world = group.world
    alike = len(x.shape) == len(experts.shape) == 2 and experts.shape[0] == x.shape[0]
    if number % world or not alike:
        raise tkc.LaunchError(
            f"dispatch: x is [T, D], experts [T, K], and the number of experts a multiple of"
            f" {world}; got {tuple(x.shape)}, {tuple(experts.shape)} and {number}"
        )
    every = all_gather(experts, group)
    y = group.empty((world, *x.shape), x.dtype)
    _sent(_dispatch, x, every, y, number // world, group)
    return y, every


def combine(rows: Any, experts: Any, number: int, group: Group) -> Any:
    """[T, D]: for each row of this rank the sum of what the ranks of its experts have made of it,
    in float32, in the order of ranks. rows: [W, T, D], what this rank has made of the rows that
    `dispatch` gave, floats; experts: [W, T, K], as given by it.
    """
    alike = len(rows.shape) == len(experts.shape) == 3 and rows.shape[:2] == experts.shape[:2]
    if number % group.world or not alike or rows.shape[0] != group.world:
        raise tkc.LaunchError(
            f"combine: rows are [W, T, D], experts [W, T, K], W is {group.world}, and the number of"
            f" experts a multiple of it; got {tuple(rows.shape)}, {tuple(experts.shape)} and"
            f" {number}"
        )
    check_floats(rows, "combine")
    y = group.empty(rows.shape[1:], rows.dtype)
    _sent(_combine, rows, experts, y, number // group.world, group)
    return y


def _sent(kernel: Any, x: Any, experts: Any, y: Any, each: int, group: Group) -> None:
    tokens, d = x.shape[-2:]
    if tokens * d == 0:
        return
    programs = tkc.cdiv(tokens, ROWS)
    memory = staging(group, kernel.__name__, (group.world, tokens, d), x.dtype, programs)
    group.begin()
    kernel[programs](
        x, experts, y, *memory, EACH=each, K=experts.shape[2], R=ROWS, C=min(COLUMNS, _power(d))
    )
    group.end()


def _power(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << (n - 1).bit_length()
