"""Inverses of unit triangular matrices, of all chunks of sequences at once.

Substitution in float32 inverts blocks on the diagonal, and dots join them two by two:

    [[A, 0], [c, B]]^-1 = [[A^-1, 0], [-B^-1 c A^-1, B^-1]]

A sum of powers would not do: it does not converge in float32 where rows are alike.
"""

from __future__ import annotations

import tkc
from tkc.kernels.arrays import Array, power
from tkc.kernels.chunks import sequence

BASE = 16  # rows that substitution inverts


def _below(lower, t, head, n, BASE):
    """Of the n blocks [BASE, BASE] on a chunk's diagonal each row but the first, [n, columns]."""
    first, rows = tkc.arange(n)[:, None] * BASE, []
    for row in range(1, BASE):
        columns = first + tkc.arange(max(4, power(row)))[None, :]
        rows.append(_at(lower, t + first + row, head, columns))
    return rows


def _substituted(below, n, BASE):
    """(I + lower)^-1 of n blocks [BASE, BASE] of which these are the rows: row by row, from what is
    known of the rows above. Rows are unrolled, so that columns, which do not depend on each other,
    stay in registers of a thread each."""
    i, j = tkc.arange(BASE)[None, :, None], tkc.arange(BASE)[None, None, :]
    inverse = tkc.where(i == j, tkc.full((n, BASE, BASE), 1.0), 0.0)
    for row, factors in enumerate(below, 1):
        known = tkc.sum(factors[:, :, None] * inverse[:, : factors.shape[1]], axis=1)
        inverse = tkc.where(i == row, tkc.where(j == row, 1.0, -known[:, None, :]), inverse)
    return inverse


def _at(lower, rows, head, columns):
    """Elements of a head's rows, 0 behind the last one."""
    at = lower.ptr + rows * lower.strides[0] + head * lower.strides[1] + columns
    return tkc.load(at, mask=rows < lower.shape[0], other=0.0)


def _apart(lower, t, head, n, s):
    """[n, s, s]: what, of each 2 s rows of a chunk, the second half has in the first one's
    columns."""
    first = tkc.arange(n)[:, None, None] * (2 * s)
    rows = t + first + tkc.arange(s)[None, :, None] + s
    return _at(lower, rows, head, first + tkc.arange(s)[None, None, :])


def _joined(apart, inverse):
    """Of inverses [2 n, s, s] of blocks on the diagonal, and what stands apart from it: A^-1, B^-1
    and what stands below A^-1."""
    n, s, _ = apart.shape
    halves = inverse.reshape(n, 2, s, s)
    first, second = halves[:, 0], halves[:, 1]
    between = tkc.dot(apart, first, precision="tf32x3")
    return first, second, -tkc.dot(second, between, precision="tf32x3")


@tkc.jit
def _invert(lower, starts, inverses, C: tkc.constexpr, BASE: tkc.constexpr):
    """inverses: (I + lower)^-1 of each chunk, in float32.

    Apart from what makes `lower`: steps of a few numbers that wait for each other need few
    registers and many programs at once, dots of wide tiles need many and a few.
    """
    head, t, z = tkc.program_id(0), tkc.program_id(1) * C, tkc.program_id(2)
    lower, inverses = sequence(lower, starts, z), sequence(inverses, starts, z)
    if t < lower.shape[0]:
        # asked for before anything is computed
        below = _below(lower, t, head, C // BASE, BASE)
        sizes = [BASE << n for n in range((C // BASE).bit_length() - 1)]
        apart = [_apart(lower, t, head, C // (2 * s), s) for s in sizes]
        inverse = _substituted(below, C // BASE, BASE)
        for tile in apart[:-1]:
            first, second, corner = _joined(tile, inverse)
            upper = tkc.cat(first, tkc.zeros(first.shape), axis=2)
            inverse = tkc.cat(upper, tkc.cat(corner, second, axis=2), axis=1)
        # quarters are stored as they are: together they would go through shared memory
        for i, j, tile in _quarters(apart[-1], inverse) if apart else [(0, 0, inverse)]:
            tile = tile.reshape(*tile.shape[1:]).to(inverses.dtype)
            tkc.store(inverses, (t + i, head, j), tile[:, None, :])


def _quarters(apart, inverse):
    """(row, column, tile [1, s, s]) of the inverse of all, from those of its two blocks."""
    first, second, corner = _joined(apart, inverse)
    s = apart.shape[1]
    return (0, 0, first), (0, s, tkc.zeros(first.shape)), (s, 0, corner), (s, s, second)


def inverted(
    lower: Array, inverses: Array, starts: Array | None, grid: tuple[int, int, int]
) -> None:
    """inverses [batch, T, heads, C]: (I + lower)^-1 of each chunk, lower being float32 and 0 on and
    above the diagonals. starts: as in chunks.sequence; grid: heads, chunks, sequences."""
    chunk = lower.shape[3]
    _invert[grid](lower, starts, inverses, C=chunk, BASE=BASE, num_warps=max(1, chunk // 32))
