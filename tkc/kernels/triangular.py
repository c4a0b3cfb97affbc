"""Inverses of unit triangular matrices, of all chunks of sequences at once.

Substitution in float32 inverts blocks on the diagonal, and dots join them two by two:

    [[A, 0], [c, B]]^-1 = [[A^-1, 0], [-B^-1 c A^-1, B^-1]]

A sum of powers would not do: it does not converge in float32 where rows are alike.
"""

from __future__ import annotations

import tkc
from tkc.kernels.arrays import Array
from tkc.kernels.chunks import sequence

BASE = 16  # rows that substitution inverts


def _substituted(lower, BASE):
    """(I + lower)^-1 of tiles [n, BASE, BASE] that are 0 on and above their diagonals.

    In one tile: before a step, columns before `row` are of the inverse, the others of `lower`.
    """
    i, j = tkc.arange(BASE)[None, :, None], tkc.arange(BASE)[None, None, :]
    for row in tkc.range(0, BASE - 1):
        factors = tkc.sum(tkc.where(j == row, lower, 0.0), axis=2)[:, :, None]
        solved = tkc.sum(tkc.where(i == row, lower, 0.0), axis=1)[:, None, :]
        lower = tkc.where(j == row, -factors, lower - factors * solved)
    return tkc.where(i == j, 1.0, lower)


def _blocks(lower, t, head, n, s, apart):
    """[n, s, s]: the diagonal blocks of s rows of a chunk, or, where they are `apart` from the
    diagonal, of each 2 s rows what the second half has in the first one's columns."""
    first = tkc.arange(n)[:, None, None] * (2 * s if apart else s)
    row = t + first + tkc.arange(s)[None, :, None] + (s if apart else 0)
    column = first + tkc.arange(s)[None, None, :]
    at = lower.ptr + row * lower.strides[0] + head * lower.strides[1] + column
    return tkc.load(at, mask=row < lower.shape[0], other=0.0)


def _joined(lower, inverse, t, head, n, s):
    """Of inverses [2 n, s, s] of blocks on the diagonal: A^-1, B^-1 and what stands below A^-1."""
    halves = inverse.reshape(n, 2, s, s)
    first, second = halves[:, 0], halves[:, 1]
    between = tkc.dot(_blocks(lower, t, head, n, s, True), first, precision="tf32x3")
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
        n, s = C // BASE, BASE
        inverse = _substituted(_blocks(lower, t, head, n, s, False), s)
        while n > 2:
            n = n // 2
            first, second, corner = _joined(lower, inverse, t, head, n, s)
            upper = tkc.cat(first, tkc.zeros((n, s, s)), axis=2)
            inverse = tkc.cat(upper, tkc.cat(corner, second, axis=2), axis=1)
            s = 2 * s
        # quarters are stored as they are: together they would go through shared memory
        quarters = _quarters(lower, inverse, t, head, s) if n == 2 else [(0, 0, inverse)]
        for i, j, tile in quarters:
            tile = tile.reshape(*tile.shape[1:]).to(inverses.dtype)
            tkc.store(inverses, (t + i, head, j), tile[:, None, :])


def _quarters(lower, inverse, t, head, s):
    """(row, column, tile [1, s, s]) of the inverse of all, from those of its two blocks."""
    first, second, corner = _joined(lower, inverse, t, head, 1, s)
    return (0, 0, first), (0, s, tkc.zeros((1, s, s))), (s, 0, corner), (s, s, second)


def inverted(
    lower: Array, inverses: Array, starts: Array | None, grid: tuple[int, int, int]
) -> None:
    """inverses [batch, T, heads, C]: (I + lower)^-1 of each chunk, lower being float32 and 0 on and
    above the diagonals. starts: as in chunks.sequence; grid: heads, chunks, sequences."""
    _invert[grid](lower, starts, inverses, C=lower.shape[3], BASE=BASE)
