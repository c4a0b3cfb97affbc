"""raise-pointers: what is affine becomes blocks, computes the same everywhere, and what only looks
alike stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler, assembles_clean
from tkc.codegen.ptx.emit import emit
from tkc.ir import tile
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact, TileType
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4
from tkc.sim.errors import AssertionFailed

BM, BN, BK = 64, 64, 32


def store_block(c, acc, rm, rn, M, N):
    """Results to their places in c, as far as it goes."""
    cp = c.ptr + rm[:, None] * c.strides[0] + rn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(rm[:, None] < M) & (rn[None, :] < N))


def grouped(a, b, c, M, N, K, GROUP: tkc.constexpr):
    """Pointers that the loop moves, programs in groups: the form of Triton's tutorial."""
    pid = tkc.program_id(0)
    num_m, num_n = tkc.cdiv(M, BM), tkc.cdiv(N, BN)
    first = pid // (GROUP * num_n) * GROUP
    size = tkc.minimum(num_m - first, GROUP)
    pid_m, pid_n = first + pid % (GROUP * num_n) % size, pid % (GROUP * num_n) // size
    rm, rn, rk = pid_m * BM + tkc.arange(BM), pid_n * BN + tkc.arange(BN), tkc.arange(BK)
    ap = a.ptr + rm[:, None] * a.strides[0] + rk[None, :] * a.strides[1]
    bp = b.ptr + rk[:, None] * b.strides[0] + rn[None, :] * b.strides[1]
    acc = tkc.zeros((BM, BN))
    for k in range(0, tkc.cdiv(K, BK)):
        left = K - k * BK
        av = tkc.load(ap, mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)
        bv = tkc.load(bp, mask=(rk[:, None] < left) & (rn[None, :] < N))
        acc = tkc.dot(av, bv, acc)
        ap += BK * a.strides[1]
        bp += BK * b.strides[0]
    cp = c.ptr + rm[:, None] * c.strides[0] + rn[None, :] * c.strides[1]
    tkc.store(cp, acc.to(c.dtype), mask=(rm[:, None] < M) & (rn[None, :] < N))


def indexed(a, b, c, M, N, K):
    """Addresses computed anew in each iteration, masks by `<=` and `>`, of 64 bits."""
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    rn = tkc.program_id(1) * BN + tkc.arange(BN)
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        rk = (k + tkc.arange(BK)).to(tkc.int64)
        av = tkc.load(
            a.ptr + (rm[:, None] * a.strides[0] + rk[None, :]),
            mask=(rm <= M - 1)[:, None] & (0 < K - rk)[None, :],  # noqa: SIM300 (forms of a bound)
        )
        bv = tkc.load(
            b.ptr + (rk[:, None] * b.strides[0] + rn[None, :]),
            mask=(rk < K)[:, None] & (N - rn > 0)[None, :],
        )
        acc = tkc.dot(av, bv, acc)
    inside = (rm < M)[:, None] & (rn < N)[None, :]
    tkc.store(c.ptr + rm[:, None] * c.strides[0] + rn[None, :], acc.to(c.dtype), mask=inside)


def split(a, b, c, M, N, K, SPLIT: tkc.constexpr):
    """Each program takes some of the steps, from a first one that it computes."""
    z = tkc.program_id(2)
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    rn = tkc.program_id(1) * BN + tkc.arange(BN)
    rk = tkc.arange(BK)
    ap = a.ptr + rm[:, None] * a.strides[0] + (z * BK + rk)[None, :]
    bp = b.ptr + (z * BK + rk)[:, None] * b.strides[0] + rn[None, :]
    acc = tkc.zeros((BM, BN))
    for k in range(z * BK, K, BK * SPLIT):
        acc = tkc.dot(
            tkc.load(ap, mask=(rm[:, None] < M) & (k + rk[None, :] < K)),
            tkc.load(bp, mask=(k + rk[:, None] < K) & (rn[None, :] < N)),
            acc,
        )
        ap += BK * SPLIT
        bp += BK * SPLIT * b.strides[0]
    cp = c.ptr + z * c.strides[0] + rm[:, None] * c.strides[1] + rn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(rm[:, None] < M) & (rn[None, :] < N))


def wrapped(a, b, c, M, N, K):
    """Rows and columns modulo the extents, masks along K alone: Triton's tutorial word by word."""
    pid_m, pid_n = tkc.program_id(0), tkc.program_id(1)
    rm = (pid_m * BM + tkc.arange(BM)) % M
    rn = (pid_n * BN + tkc.arange(BN)) % N
    rk = tkc.arange(BK)
    ap = a.ptr + (rm[:, None] * a.strides[0] + rk[None, :])
    bp = b.ptr + (rk[:, None] * b.strides[0] + rn[None, :])
    acc = tkc.zeros((BM, BN))
    for k in range(0, tkc.cdiv(K, BK)):
        av = tkc.load(ap, mask=rk[None, :] < K - k * BK, other=0.0)
        bv = tkc.load(bp, mask=rk[:, None] < K - k * BK, other=0.0)
        acc = tkc.dot(av, bv, acc)
        ap += BK
        bp += BK * b.strides[0]
    cm, cn = pid_m * BM + tkc.arange(BM), pid_n * BN + tkc.arange(BN)
    cp = c.ptr + c.strides[0] * cm[:, None] + cn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(cm[:, None] < M) & (cn[None, :] < N))


def first_row_beyond(a, b, c, M, N, K):
    """Rows and columns behind the last are the first: another form of Triton's tutorials."""
    rm, rn = (tkc.program_id(i) * n + tkc.arange(n) for i, n in enumerate((BM, BN)))
    wm, wn, rk = tkc.where(rm < M, rm, 0), tkc.where(rn < N, rn, 0), tkc.arange(BK)
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        ap = a.ptr + (wm[:, None] * a.strides[0] + (k + rk)[None, :])
        bp = b.ptr + ((k + rk)[:, None] * b.strides[0] + wn[None, :])
        av = tkc.load(ap, mask=(k + rk < K)[None, :])
        acc = tkc.dot(av, tkc.load(bp, mask=(k + rk < K)[:, None]), acc)
    store_block(c, acc, rm, rn, M, N)


def twice_counted(a, b, c, M, N, K, PROGRAMS: tkc.constexpr):
    """A program takes tiles in turn, and counts them once more for its epilogue, by another
    division: as Triton's persistent product.
    """
    columns = tkc.cdiv(N, BN)
    other = tkc.program_id(0) - PROGRAMS
    for tile_id in tkc.range(tkc.program_id(0), tkc.cdiv(M, BM) * columns, PROGRAMS):
        rm = tile_id // columns * BM + tkc.arange(BM)
        rn = tile_id % columns * BN + tkc.arange(BN)
        wm, wn, rk = tkc.where(rm < M, rm, 0), tkc.where(rn < N, rn, 0), tkc.arange(BK)
        acc = tkc.zeros((BM, BN))
        for k in range(0, K, BK):
            ap = a.ptr + (wm[:, None] * a.strides[0] + (k + rk)[None, :])
            bp = b.ptr + ((k + rk)[:, None] * b.strides[0] + wn[None, :])
            av = tkc.load(ap, mask=(k + rk < K)[None, :])
            acc = tkc.dot(av, tkc.load(bp, mask=(k + rk < K)[:, None]), acc)
        other += PROGRAMS
        cm = tkc.div_trunc(other, columns) * BM + tkc.arange(BM)
        cn = tkc.rem_trunc(other, columns) * BN + tkc.arange(BN)
        cp = c.ptr + (cm[:, None] * c.strides[0] + cn[None, :])
        tkc.store(cp, acc.to(c.dtype), mask=(cm[:, None] < M) & (cn[None, :] < N))


def batched(a, b, c, heads, M, N, K):
    """A batch and a head in one program id: two outer axes, one of them a quotient."""
    rm, rn = tkc.arange(BM), tkc.arange(BN)
    pid = tkc.program_id(0)
    batch, head = pid // heads, pid % heads
    ap = a.ptr + batch * a.strides[0] + head * a.strides[1]
    bp = b.ptr + batch * b.strides[0] + head * b.strides[1]
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        rk = k + tkc.arange(BK)
        av = tkc.load(
            ap + rm[:, None] * a.strides[2] + rk[None, :],
            mask=(rm[:, None] < M) & (rk[None, :] < K),
        )
        bv = tkc.load(
            bp + rk[:, None] * b.strides[2] + rn[None, :],
            mask=(rk[:, None] < K) & (rn[None, :] < N),
        )
        acc = tkc.dot(av, bv, acc)
    cp = c.ptr + batch * c.strides[0] + head * c.strides[1]
    tkc.store(
        cp + rm[:, None] * c.strides[2] + rn[None, :],
        acc.to(c.dtype),
        mask=(rm[:, None] < M) & (rn[None, :] < N),
    )


def shifted(a, b, c, M, N, K, TAPS: tkc.constexpr):
    """A convolution along the rows: rows before the first one and behind the last are zeros."""
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    rn = tkc.program_id(1) * BN + tkc.arange(BN)
    acc = tkc.zeros((BM, BN))
    for tap in range(TAPS):
        rows = rm + tap - TAPS // 2
        for k in range(0, K, BK):
            rk = k + tkc.arange(BK)
            av = tkc.load(
                a.ptr + rows[:, None] * a.strides[0] + rk[None, :],
                mask=((rows >= 0) & (rows < M))[:, None] & (rk < K)[None, :],
            )
            bv = tkc.load(
                b.ptr + (tap * K + rk)[:, None] * b.strides[0] + rn[None, :],
                mask=(rk < K)[:, None] & (rn < N)[None, :],
            )
            acc = tkc.dot(av, bv, acc)
    cp = c.ptr + rm[:, None] * c.strides[0] + rn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(rm < M)[:, None] & (rn < N)[None, :])


def triangle(a, b, c, M, N, K):
    """A mask that only says in part where the array ends, and one that is a number."""
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    rn = tkc.program_id(1) * BN + tkc.arange(BN)
    acc = tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        rk = k + tkc.arange(BK)
        lower = rk[None, :] <= rm[:, None]
        av = tkc.load(
            a.ptr + rm[:, None] * a.strides[0] + rk[None, :],
            mask=lower & (rm[:, None] < M) & (rk[None, :] < K),
            other=0.5,
        )
        bv = tkc.load(
            b.ptr + rk[:, None] * b.strides[0] + rn[None, :],
            mask=(rk < K)[:, None] & (rn < N)[None, :] & (k < M),
        )
        acc = tkc.dot(av, bv, acc)
    cp = c.ptr + rm[:, None] * c.strides[0] + rn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(rm < M)[:, None] & (rn < N)[None, :])


def in_words(a, b, c, M, N, K, BY_PLACE: tkc.constexpr):
    """A row of b serves eight steps of k: its pointers move by an eighth of the step. BY_PLACE:
    what is divided is the number of each element, added up before it has two axes.
    """
    rm, rn = (tkc.program_id(i) * n + tkc.arange(n) for i, n in enumerate((BM, BN)))
    acc, row = tkc.zeros((BM, BN)), b.strides[0]
    bp = b.ptr + (tkc.arange(BK) // 8)[:, None] * row + rn[None, :]
    for k in range(0, K, BK):
        rk = k + tkc.arange(BK)
        ap = a.ptr + rm[:, None] * a.strides[0] + rk[None, :]
        av = tkc.load(ap, mask=(rm[:, None] < M) & (rk[None, :] < K))
        at = b.ptr + rk[:, None] // 8 * row + rn[None, :] if BY_PLACE else bp
        acc = tkc.dot(av, tkc.load(at, mask=(rn < N)[None, :]), acc)
        bp += BK // 8 * row
    store_block(c, acc, rm, rn, M, N)


def scaled(a, b, c, M, N, K, BELOW: tkc.constexpr):
    """A scale for each block of columns lies behind the rows of b: all threads ask for one number,
    where their columns are inside. BELOW: whether what lies outside is used.
    """
    rm, rn = (tkc.program_id(i) * n + tkc.arange(n) for i, n in enumerate((BM, BN)))
    rk, acc = tkc.arange(BK), tkc.zeros((BM, BN))
    for k in range(0, K, BK):
        ap = a.ptr + rm[:, None] * a.strides[0] + (k + rk)[None, :]
        bp = b.ptr + (k + rk)[:, None] * b.strides[0] + rn[None, :]
        av = tkc.load(ap, mask=(rm[:, None] < M) & (k + rk[None, :] < K))
        bv = tkc.load(bp, mask=(k + rk[:, None] < K) & (rn[None, :] < N))
        scale = tkc.load(b.ptr + K * b.strides[0] + rn // BN, mask=rn < N)
        more = tkc.max(scale, 0) - scale if BELOW else 0.0
        acc += tkc.dot(av, bv) * (scale + more)[None, :].to(tkc.float32)
    store_block(c, acc, rm, rn, M, N)


def of_words(given: list) -> np.ndarray:
    return wide(given[0]) @ np.repeat(wide(given[1]), 8, axis=0)[: given[0].shape[1]]


def of_scales(given: list) -> np.ndarray:
    (n, k), b = given[4:6], wide(given[1])
    return wide(given[0]) @ b[:k] * b[k, np.arange(n) // BN]


def numbers(*shape: int, seed: int = 0, pad: int = 0) -> np.ndarray:
    """Small whole numbers, whose sums are exact; rows `pad` elements apart."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(-2, 3, (*shape[:-1], shape[-1] + pad)).astype(np.float16)
    return whole[..., : shape[-1]]


def product_data(m: int, n: int, k: int) -> list:
    return [
        numbers(m, k, pad=8),
        numbers(k, n, seed=1, pad=8),
        np.zeros((m, n), np.float16),
        m,
        n,
        k,
    ]


@dataclass
class Form:
    fn: Callable
    data: Callable[[int, int, int], list]
    grid: Callable[[int, int, int], tuple]
    want: Callable[[list], np.ndarray]
    constants: dict = field(default_factory=dict)
    left: int = 0  # accesses that stay by pointers
    maps: int = 2  # tensor maps, where rows are aligned
    nonnegative: bool = False  # whether sizes are known to be
    mapped: tuple[int, int, int] = (72, 136, 96)  # a shape that tensor maps serve

    def module(self, divisor: int = 1):
        """Traced for extents and strides that are multiples of `divisor`."""
        example = self.data(8, 8, 8)
        facts = [
            ArrayFacts((Fact(),) * x.ndim, (Fact(divisor),) * (x.ndim - 1) + (Fact(exact=1),), 16)
            for x in example[:3]
        ]
        arrays = [ArrayArgument(tkc.float16, fact) for fact in facts]
        others, sizes = [i32()] * (len(example) - 6), [i32(), i32(divisor), i32(divisor)]
        sizes = [replace(size, nonnegative=self.nonnegative) for size in sizes]
        return traced(self.fn, *arrays, *others, *sizes, **self.constants)


def heads(a, b, c, H, M, N, K):
    """No masks; the first element of a batch and head is added to a row of stride 1; a block whose
    first row is what is left of a whole number of steps.
    """
    z = tkc.program_id(2)
    ap, bp, cp = (x.ptr + ((z // H) * x.strides[0] + z % H * x.strides[1]) for x in (a, b, c))
    end = tkc.program_id(1) * BN
    rm, rk = tkc.program_id(0) * BM + tkc.arange(BM), tkc.arange(BK)
    rn = end + (end - end // 16 * 16) + tkc.arange(BN)
    av = tkc.load(ap + (rm[:, None] * a.strides[2] + rk[None, :]))
    bv = tkc.load(bp + (rn[None, :] * b.strides[2] + rk[:, None]))
    tkc.store(cp + (rm[:, None] * c.strides[2] + rn[None, :]), tkc.dot(av, bv).to(c.dtype))


ROWS = 80  # of a chunk: no whole number of blocks


def in_chunks(a, b, c, H, M, N, K):
    """Heads and chunks of rows along one axis of the grid; the last chunk is a part of one, which
    only the program knows; sums that grow along another.
    """
    z = tkc.program_id(2)
    chunk = z // H
    head = z - chunk * H
    rows = tkc.minimum(ROWS, M - chunk * ROWS)
    end = tkc.minimum((tkc.program_id(0) + 1) * BM, K)
    rm, rk = tkc.program_id(0) * BM + tkc.arange(BM), tkc.arange(BK)
    rn = tkc.program_id(1) * BN + tkc.arange(BN)
    first = chunk * ROWS
    ap = a.ptr + head * a.strides[0] + first * a.strides[1]
    cp = c.ptr + head * c.strides[0] + first * c.strides[1]
    bp = b.ptr + head * b.strides[0]
    acc = tkc.zeros((BM, BN))
    for k in range(0, end, BK):
        steps = k + rk
        av = tkc.load(
            ap + rm[:, None] * a.strides[1] + steps[None, :],
            mask=(rm[:, None] < rows) & (steps[None, :] < K),
        )
        bv = tkc.load(
            bp + steps[:, None] * b.strides[1] + rn[None, :],
            mask=(steps[:, None] < end) & (rn[None, :] < N),
        )
        acc = tkc.dot(av, bv, acc)
    inside = (rm[:, None] < rows) & (rn[None, :] < N)
    tkc.store(cp + rm[:, None] * c.strides[1] + rn[None, :], acc.to(c.dtype), mask=inside)


def blocks(m: int, n: int) -> tuple[int, int]:
    return -(-m // BM), -(-n // BN)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def of_parts(given: list) -> np.ndarray:
    a, b, c = given[0], given[1], given[2]
    parts = []
    for z in range(c.shape[0]):
        steps = [k for k in range(a.shape[1]) if k // BK % c.shape[0] == z]
        parts.append(wide(a[:, steps]) @ wide(b[steps]))
    return np.stack(parts)


def of_taps(given: list) -> np.ndarray:
    a, b = given[:2]
    taps, k = b.shape[0] // a.shape[1], a.shape[1]
    padded = np.pad(wide(a), ((taps // 2, taps // 2), (0, 0)))
    return sum(padded[t : t + a.shape[0]] @ wide(b[t * k : (t + 1) * k]) for t in range(taps))


def of_triangle(given: list) -> np.ndarray:
    a, b = wide(given[0]), wide(given[1])
    m, k = a.shape
    rounded = -(-k // BK) * BK  # the steps go on to there, where the right operand is zero
    left = np.full((m, rounded), 0.5)
    left[:, :k] = np.where(np.arange(k) <= np.arange(m)[:, None], a, 0.5)
    right = np.zeros((rounded, b.shape[1]))
    right[:k] = b
    for start in range(0, rounded, BK):
        if start >= m:
            right[start : start + BK] = 0
    return left @ right


def of_chunks(given: list) -> np.ndarray:
    a, b = wide(given[0]), wide(given[1])
    rows, steps = np.arange(a.shape[1]) % ROWS, np.arange(a.shape[2])
    return np.where(steps < (rows // BM + 1)[:, None] * BM, a, 0) @ b


def matrices(given: list) -> np.ndarray:
    return wide(given[0]) @ wide(given[1])


FORMS = {
    "grouped": Form(
        grouped,
        product_data,
        lambda m, n, k: (blocks(m, n)[0] * blocks(m, n)[1],),
        matrices,
        constants={"GROUP": 2},
    ),
    "wrapped": Form(wrapped, product_data, lambda m, n, k: blocks(m, n), matrices),
    "first_row_beyond": Form(
        first_row_beyond, product_data, lambda m, n, k: blocks(m, n), matrices
    ),
    "twice_counted": Form(
        twice_counted,
        product_data,
        lambda m, n, k: (2,),
        matrices,
        constants={"PROGRAMS": 2},
        nonnegative=True,
    ),
    "indexed": Form(indexed, product_data, lambda m, n, k: blocks(m, n), matrices),
    "split": Form(
        split,
        lambda m, n, k: [*product_data(m, n, k)[:2], np.zeros((3, m, n), np.float16), m, n, k],
        lambda m, n, k: (*blocks(m, n), 3),
        of_parts,
        constants={"SPLIT": 3},
    ),
    "batched": Form(
        batched,
        lambda m, n, k: [
            numbers(2, 3, min(m, BM), k, pad=8),
            numbers(2, 3, k, min(n, BN), seed=1, pad=8),
            np.zeros((2, 3, min(m, BM), min(n, BN)), np.float16),
            3,
            min(m, BM),
            min(n, BN),
            k,
        ],
        lambda m, n, k: (6,),
        matrices,
    ),
    "shifted": Form(
        shifted,
        lambda m, n, k: [
            numbers(m, k, pad=8),
            numbers(3 * k, n, seed=1, pad=8),
            *product_data(m, n, k)[2:],
        ],
        lambda m, n, k: blocks(m, n),
        of_taps,
        constants={"TAPS": 3},
    ),
    "heads": Form(
        heads,
        lambda m, n, k: [
            numbers(2, 3, blocks(m, n)[0] * BM, BK),
            numbers(2, 3, blocks(m, n)[1] * BN, BK, seed=1),
            np.zeros((2, 3, blocks(m, n)[0] * BM, blocks(m, n)[1] * BN), np.float16),
            3,
            m,
            n,
            k,
        ],
        lambda m, n, k: (*blocks(m, n), 6),
        lambda given: wide(given[0]) @ wide(given[1]).swapaxes(-1, -2),
    ),
    "in_chunks": Form(
        in_chunks,
        lambda m, n, k: [
            numbers(2, m, k, pad=8),
            numbers(2, k, n, seed=1, pad=8),
            np.zeros((2, m, n), np.float16),
            2,
            m,
            n,
            k,
        ],
        lambda m, n, k: (*blocks(ROWS, n), 2 * -(-m // ROWS)),
        of_chunks,
        maps=2,
        nonnegative=True,
        mapped=(ROWS + 8, 136, BM),
    ),
    **{
        name: Form(
            in_words,
            lambda m, n, k: [
                numbers(m, k, pad=8),
                numbers(-(-k // BK) * BK // 8, n, seed=1, pad=8),
                *product_data(m, n, k)[2:],
            ],
            lambda m, n, k: blocks(m, n),
            of_words,
            constants={"BY_PLACE": by_place},
        )
        for name, by_place in (("in_words", False), ("in_words, by place", True))
    },
    **{
        name: Form(
            scaled,
            lambda m, n, k: [
                numbers(m, k, pad=8),
                abs(numbers(k + 1, n, seed=1, pad=8)),
                *product_data(m, n, k)[2:],
            ],
            lambda m, n, k: blocks(m, n),
            of_scales,
            constants={"BELOW": below},
        )
        for name, below in (("scaled", False), ("scaled, all used", True))
    },
    "triangle": Form(triangle, product_data, lambda m, n, k: blocks(m, n), of_triangle, maps=0),
}
SHAPES = [(BM, BN, BK), (100, 72, 96), (63, 130, 45), (1, 8, 1), (129, 64, 200)]


def remaining(module) -> int:
    """Tiles of pointers that are still loaded from or stored to."""
    accesses = (tile.LoadPointers, tile.StorePointers)
    return sum(
        isinstance(op, accesses) and isinstance(op.pointers.type, TileType) for op in module.walk()
    )


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_programs_compute_the_same(name, shape):
    """Before the pass, behind it, and with threads on two targets."""
    form = FORMS[name]

    def check(run: Callable) -> None:
        given = form.data(*shape)
        run(given, (*form.grid(*shape), 1, 1)[:3])
        np.testing.assert_array_equal(given[2], form.want(given).astype(np.float16))

    check(lambda given, grid: level0.run(form.module(), given, grid))
    raised = form.module()
    through(raised, "raise-pointers", context("sm_90a"))
    assert remaining(raised) == form.left
    check(lambda given, grid: level0.run(raised, given, grid))
    for name in ("sm_80", "sm_90a"):
        module = form.module(8 if shape[1] % 8 == shape[2] % 8 == 0 else 1)
        through(module, PIPELINE[-1], context(name))
        check(lambda given, grid, module=module: level4.run(module, given, grid, 1))


@pytest.mark.parametrize("name", FORMS)
@assembler
def test_the_ptx_computes_the_same(name):
    """With tensor maps of arrays that the kernel makes, where rows are known to be aligned."""
    form = FORMS[name]
    shape = form.mapped
    module = form.module(8)
    through(module, PIPELINE[-1], context("sm_90a"))
    assembles_clean(module)
    maps = [p for p in emit(module, target("sm_90a")).interface.parameters if p.kind == "map"]
    assert form.maps <= len(maps) and all(p.shape for p in maps)
    given = form.data(*shape)
    machine.run(module, given, (*form.grid(*shape), 1, 1)[:3])
    np.testing.assert_array_equal(given[2], form.want(given).astype(np.float16))


# ---- what only looks alike
def copied(a, b, c, M, N, K, pointers: tkc.constexpr, mask: tkc.constexpr = None):
    """A dot of what some pointers give, stored to c."""
    rm, rk = tkc.arange(BM), tkc.arange(BK)
    here = None if mask is None else mask(rm, rk, M)
    x = tkc.load(pointers(a, rm, rk, M, K), mask=here)
    y = tkc.load(b, (0, 0), (BK, BN))
    tkc.store(c, (0, 0), tkc.dot(x, y).to(c.dtype))


def modulo(a, rm, rk, M, K):
    return a.ptr + ((rm + K) % M)[:, None] * a.strides[0] + rk[None, :]


def before_the_first(a, rm, rk, M, K):
    return a.ptr + 2 * a.strides[0] + (rm - 2)[:, None] * a.strides[0] + rk[None, :]


def by_a_loaded_number(a, rm, rk, M, K):
    first = tkc.load(a.ptr + K).to(tkc.int32)
    return a.ptr + (first + rm)[:, None] * a.strides[0] + rk[None, :]


def diagonal(a, rm, rk, M, K):
    return a.ptr + rm[:, None] * (a.strides[0] + 1) + rk[None, :]


def squares(a, rm, rk, M, K):
    return a.ptr + (rm * rm)[:, None] + rk[None, :]


def broadcast(a, rm, rk, M, K):
    return a.ptr + (rm * 0)[:, None] + rk[None, :]


def every_second_modulo(a, rm, rk, M, K):
    return a.ptr + (2 * rm % M)[:, None] * a.strides[0] + rk[None, :]


def from_a_row_on(a, rm, rk, M, K):
    """The first rows are the first one, not the last."""
    return a.ptr + tkc.where(rm >= M, rm, 0)[:, None] * a.strides[0] + rk[None, :]


def quotients_of_every_second(a, rm, rk, M, K):
    return a.ptr + rm[:, None] * a.strides[0] + (2 * rk // 4)[None, :]


@pytest.mark.parametrize(
    "pointers, why",
    [
        (modulo, "modulo"),
        (diagonal, "a sum"),
        (squares, "not affine"),
        (broadcast, "one address"),
        (every_second_modulo, "not affine"),
        (from_a_row_on, "not affine"),
        (quotients_of_every_second, "not affine"),
    ],
)
def test_it_says_why_an_access_stays_by_pointers(pointers, why):
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    module = traced(copied, *args, i32(), i32(), i32(), pointers=pointers)
    given = context("sm_90a")
    through(module, "raise-pointers", given)
    assert remaining(module) == 1
    assert any(d.startswith("raise-pointers") and why in d for d in given.decisions)


def moved_by_the_counter(a, b, c, M, N, K):
    """Columns 0, 0, 1, 3: no iteration moves them as far as the one before."""
    rm, columns = tkc.arange(BM), tkc.arange(BK)
    total = tkc.zeros((BM, BN))
    for k in tkc.range(0, N):
        x = tkc.load(a.ptr + rm[:, None] * a.strides[0] + columns[None, :])
        total = tkc.dot(x, tkc.load(b, (0, 0), (BK, BN)), total)
        columns = columns + k
    tkc.store(c, (0, 0), total.to(c.dtype))


def test_pointers_that_move_unevenly_stay():
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    module = traced(moved_by_the_counter, *args, i32(), i32(), i32())
    through(module, "raise-pointers", context("sm_90a"))
    x, y = numbers(BM, BK + 3), numbers(BK, BN, seed=1)
    level0.run(module, [x, y, c := np.zeros((BM, BN), np.float16), BM, 4, BK], (1, 1, 1))
    parts = (wide(x[:, at : at + BK]) for at in (0, 0, 1, 3))
    np.testing.assert_array_equal(c, sum(part @ wide(y) for part in parts))


def one_by_one(a, b, c, M, N, K):
    """Pointers outside any loop, to several arrays, and to one element."""
    rm, rk, rn = tkc.arange(BM), tkc.arange(BK), tkc.arange(BN)
    x = tkc.load(a.ptr + rm[:, None] * a.strides[0] + rk[None, :] * a.strides[1])
    y = tkc.load(b.ptr + rk[:, None] * b.strides[0] + rn[None, :] * b.strides[1])
    first = tkc.load(b.ptr + tkc.arange(1)[:, None] * b.strides[0] + tkc.arange(1)[None, :])
    z = (tkc.dot(x, y) + first).to(c.dtype)
    tkc.store(c.ptr + rm[:, None] * c.strides[0] + rn[None, :] * c.strides[1], z)
    tkc.store(c.ptr + (tkc.arange(1)[:, None] + 1) * c.strides[0] + tkc.arange(1)[None, :], first)


def test_accesses_outside_loops_and_of_one_element():
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    module = traced(one_by_one, *args, i32(), i32(), i32())
    given = product_data(BM, BN, BK)
    want = [np.copy(g) if isinstance(g, np.ndarray) else g for g in given]
    level0.run(module, want, (1,))
    through(module, "raise-pointers", context("sm_90a"))
    assert remaining(module) == 2
    level0.run(module, given, (1,))
    np.testing.assert_array_equal(given[2], want[2])


def test_a_place_that_is_loaded_is_where_an_array_begins_that_the_kernel_makes():
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    module = traced(copied, *args, i32(), i32(), i32(), pointers=by_a_loaded_number)
    through(module, "raise-pointers", context("sm_90a"))
    assert remaining(module) == 0
    rows = numbers(BM + 3, BK)
    rows[0, 5] = 3
    given = [rows, numbers(BK, BN, seed=1), np.zeros((BM, BN), np.float16), BM, BN, 5]
    level0.run(module, given, (1, 1, 1))
    np.testing.assert_array_equal(given[2], wide(rows[3:]) @ wide(given[1]))


def test_a_block_that_begins_before_its_first_row_keeps_its_offset():
    """Rows -2 ... of an array that begins two rows on: the array that is made begins where the
    addresses do.
    """
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    module = traced(copied, *args, i32(), i32(), i32(), pointers=before_the_first)
    through(module, "raise-pointers", context("sm_90a"))
    assert remaining(module) == 0
    given = [numbers(BM, BK), numbers(BK, BN, seed=1), np.zeros((BM, BN), np.float16), BM, BN, BK]
    level0.run(module, given, (1, 1, 1))
    np.testing.assert_array_equal(given[2], wide(given[0]) @ wide(given[1]))


def wrapped_rows_matter(a, b, c, M, N, K, ROW_MASK: tkc.constexpr, WHERE: tkc.constexpr):
    """As `wrapped`, but what lies beyond is stored, or added up."""
    rm = tkc.program_id(0) * BM + tkc.arange(BM)
    rm = tkc.where(rm < M, rm, 0) if WHERE else rm % M
    rk, rn = tkc.arange(BK), tkc.arange(BN)
    x = tkc.load(a.ptr + rm[:, None] * a.strides[0] + rk[None, :])
    y = tkc.load(b, (0, 0), (BK, BN))
    made = tkc.dot(x, y).to(c.dtype)
    cp = c.ptr + (tkc.program_id(0) * BM + tkc.arange(BM))[:, None] * c.strides[0] + rn[None, :]
    if ROW_MASK:
        inside = (tkc.program_id(0) * BM + tkc.arange(BM) < M)[:, None]
        tkc.store(cp, made + tkc.sum(made, axis=0)[None, :], mask=inside & (rn < N)[None, :])
    else:
        tkc.store(cp, made, mask=(rn < N)[None, :])


@pytest.mark.parametrize("where", (True, False))
@pytest.mark.parametrize("row_mask", (True, False))
def test_wrapped_rows_that_matter_stay(row_mask, where):
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))] * 3
    constants = {"ROW_MASK": row_mask, "WHERE": where}
    module = traced(wrapped_rows_matter, *args, i32(), i32(), i32(), **constants)
    given = context("sm_90a")
    through(module, "raise-pointers", given)
    assert any("modulo" in d for d in given.decisions)


# ---- stores
def in_place(a, b, c, M, N, K):
    """Every iteration reads what the one before stored, through other pointers to the array."""
    rm, rk = tkc.arange(BM), tkc.arange(BK)
    y = tkc.load(b, (0, 0), (BK, BK))
    inside = (rm < M)[:, None] & (rk < BK)[None, :]
    for _ in range(N):
        x = tkc.load(a.ptr + rm[:, None] * a.strides[0] + rk[None, :], mask=inside)
        new = tkc.dot(x, y).to(a.dtype)
        tkc.store(a.ptr + rm[:, None] * a.strides[0] + rk[None, :], new, mask=inside)


@pytest.mark.parametrize("name", ("sm_80", "sm_90a"))
def test_no_copy_runs_ahead_of_a_store_to_the_same_argument(name):
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))] * 3
    module = traced(in_place, *args, i32(), i32(), i32())
    through(module, PIPELINE[-1], context(name))
    assert remaining(module) == 0
    turn = np.eye(BK, dtype=np.float16)[::-1].copy()
    given = [numbers(BM, BK), turn, np.zeros((BM, BN), np.float16), BM, 3, BK]
    want = wide(given[0])[:, ::-1]
    level4.run(module, given, (1, 1, 1), 1)
    np.testing.assert_array_equal(given[0], want)


def test_the_checks_of_debug_hold_divisors_to_be_positive():
    module = FORMS["grouped"].module()
    through(module, "raise-pointers", context("sm_90a", debug=1))
    assumed = [op for op in module.walk() if isinstance(op, tile.Assume)]
    assert assumed
    given = FORMS["grouped"].data(64, 64, 32)
    with pytest.raises(AssertionFailed):
        level0.run(module, given, (3, 1, 1))  # programs beyond the last tile: no rows are left


def of_one_element(c, n):
    """A mask of one element, of which nothing bounds an axis."""
    inside = (tkc.arange(1) < 1)[:, None] & (tkc.arange(1) < n)[None, :]
    value = tkc.dot(tkc.full((1, 16), 1, tkc.float16), tkc.full((16, 1), 2, tkc.float16))
    tkc.store(c.ptr + tkc.arange(1)[:, None] + tkc.arange(1)[None, :], value, mask=inside)


@pytest.mark.parametrize("n", [0, 1])
def test_a_mask_of_one_element(n):
    args = [ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))]
    module = traced(of_one_element, *args, i32())
    through(module, "raise-pointers", context("sm_90a"))
    given = np.zeros((1, 1), np.float32)
    level0.run(module, [given, n], (1, 1, 1))
    assert given[0, 0] == 32 * n


def wrapped_bound(rm, rk, M):
    return (((rm + 3) % M) < 5)[:, None] & (rk < BK)[None, :]


def test_a_mask_of_indices_that_wrap_is_no_extent():
    """Rows beyond the wrap are inside again."""
    args = [ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 16))] * 3
    pointers = one_row_after_another
    module = traced(copied, *args, i32(), i32(), i32(), pointers=pointers, mask=wrapped_bound)
    through(module, "raise-pointers", context("sm_90a"))
    given = [numbers(BM, BK), numbers(BK, BN, seed=1), np.zeros((BM, BN), np.float16), 16, BN, BK]
    level0.run(module, given, (1, 1, 1))
    inside = ((np.arange(BM) + 3) % 16 < 5)[:, None]
    np.testing.assert_array_equal(given[2], (wide(given[0]) * inside) @ wide(given[1]))


def one_row_after_another(a, rm, rk, M, K):
    return a.ptr + rm[:, None] * a.strides[0] + rk[None, :]


def sums_of_heads(x, o, H, S0, S1, S2, n):
    """Rows of a batch and head, added up: no tensor map copies them."""
    z, c = tkc.program_id(0), tkc.arange(BN)
    first = x.ptr + z // H * S0 + z % H * S1
    total = tkc.zeros((BN,))
    for j in range(0, n):
        total = total + tkc.load(first + j * S2 + c).to(tkc.float32)
    tkc.store(o.ptr + z * BN + c, total)


def test_without_tensor_maps_an_array_begins_where_its_loop_reads():
    """Batch and head are no axes, whose part of the address each iteration would compute."""
    sizes = [replace(i32(), nonnegative=True)] * 5
    x = ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 4, (*[Fact()] * 3, Fact(exact=1)), 16))
    o = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    module = traced(sums_of_heads, x, o, *sizes)
    through(module, "raise-pointers", context("sm_90a"))
    (loop,) = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    (load,) = [op for op in loop.walk() if isinstance(op, tile.Load)]
    assert len(load.offsets) == 1 and load.array.owner.parent is loop.parent
    given = numbers(2, 3, 5, BN), np.zeros(6 * BN, np.float32)
    strides = [step // given[0].itemsize for step in given[0].strides[:2]]
    level0.run(module, [*given, 3, *strides, BN, 5], (6,))
    want = given[0].astype(np.float32).sum(2).reshape(-1)
    np.testing.assert_array_equal(given[1], want)
