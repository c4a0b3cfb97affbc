"""Operands that tensor maps do not copy: gathers by index arithmetic, masks, rows that do not start
at multiples of 16 bytes. A role of threads copies them; the same at every level and as PTX.

All numbers are small integers, so that sums are exact and every result has one right value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    compiled,
    count,
    exchanges_within_warps,
    parses_back,
    role,
    survivors,
    without_threads,
)
from tkc.ir import threads, tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

BM, BN, BK = 64, 64, 32


def convolution(x, w, y, H, W, TAPS: tkc.constexpr):
    """By rows of images, with a border of zeros: x [images * H * W, C], w [TAPS * TAPS * C, N]."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    at = m + tkc.arange(BM)
    image, p, q = at // (H * W), at // W % H, at % W
    channels = x.shape[1]
    acc = tkc.zeros((BM, BN))
    for k in range(0, TAPS * TAPS * channels, BK):
        tap, c = k // channels, k % channels
        h, v = p + tap // TAPS - TAPS // 2, q + tap % TAPS - TAPS // 2
        row = tkc.where((h >= 0) & (h < H) & (v >= 0) & (v < W), (image * H + h) * W + v, -1)
        block = tkc.load(x, (row, c), (BM, BK))
        acc = tkc.dot(block, tkc.load(w, (k, n), (BK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def masked(a, b, y, rows):
    """A mask that is no extent, of one operand; the rows of the other are reversed."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    inside = (m + tkc.arange(BM) < rows)[:, None]
    last = b.shape[0] - 1
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        x = tkc.load(a, (m, k), (BM, BK), mask=inside)
        acc = tkc.dot(x, tkc.load(b, (last - k - tkc.arange(BK), n), (BK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def listed(a, which, weights, y):
    """Rows that a list in memory names, twice as often as they are, and a mask from another one."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    rows = tkc.load(which, (m,), (BM,), other=-1)
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        x = tkc.load(a, (tkc.where(rows >= 0, rows // 2, -1), k), (BM, BK))
        w = tkc.load(weights, (tkc.load(which, (k,), (BK,)) // 4, n), (BK, BN))
        acc = tkc.dot(x, w, acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def narrow(a, b, y):
    """Rows that start at multiples of 8 bytes, or of 4."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def before(a, b, y):
    """One operand, gathered before the loop; the results of the loop are added up."""
    m = tkc.program_id(0) * BM
    rows = (m + tkc.arange(BM)) // 2
    block = tkc.load(a, (rows, 0), (BM, BK))
    acc = tkc.zeros((BM, BN))
    for n in range(0, b.shape[1], BN):
        s = tkc.dot(block, tkc.load(b, (0, n), (BK, BN)))
        acc = acc + tkc.maximum(s, 0)
    tkc.store(y, (m, 0), acc.to(y.dtype))


def chained(w, y, steps):
    """Each step reads, in other rows, what its program stored in the step before."""
    rows = (tkc.arange(BM) + 1) % BM
    for t in range(steps):
        acc = tkc.zeros((BM, BN))
        for k in range(0, w.shape[0], BK):
            x = tkc.load(y, (t * BM + rows, k % BN), (BM, BK))
            acc = tkc.dot(x, tkc.load(w, (k, 0), (BK, BN)), acc)
        tkc.store(y, (t * BM + BM, 0), tkc.minimum(tkc.maximum(acc, -2), 2).to(y.dtype))


def dequantized(a, b, y):
    """An operand that is computed from a gathered block."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        rows = (k + tkc.arange(BK)) // 2
        shift = ((k + tkc.arange(BK)) % 2 * 4).to(tkc.int32)[:, None]
        w = (tkc.load(b, (rows, n), (BK, BN)).to(tkc.int32) >> shift) & 15
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), (w - 8).to(a.dtype), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


def scaled(a, b, by_map, by_threads, y, columns, BY_THREADS: tkc.constexpr):
    """Rows beside the dot that tensor maps copy and do not, the latter by a mask of its columns.
    BY_THREADS: those of the right operand are reversed.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    rows, last = (m + tkc.arange(BM)) // 2, b.shape[0] - 1
    inside = n + tkc.arange(BN) < columns
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        scale = tkc.load(by_map, (k // BK, n), (None, BN))
        more = tkc.load(by_threads, (k // BK, n), (None, BN), mask=inside)
        place = last - k - tkc.arange(BK) if BY_THREADS else k
        x, w = tkc.load(a, (rows, k), (BM, BK)), tkc.load(b, (place, n), (BK, BN))
        acc = acc + tkc.dot(x, w) * scale[None, :] + more[None, :]
    tkc.store(y, (m, n), acc.to(y.dtype))


def numbered(a, b, flags, y):
    """A number beside a dot whose operands both are gathered: no tensor map fills a ring."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    rows, last = (m + tkc.arange(BM)) // 2, b.shape[0] - 1
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        x = tkc.load(a, (rows, k), (BM, BK))
        w = tkc.load(b, (last - k - tkc.arange(BK), n), (BK, BN))
        acc = acc + tkc.dot(x, w) * flags[k // BK]
    tkc.store(y, (m, n), acc.to(y.dtype))


@dataclass(frozen=True)
class Case:
    """A kernel, what is known of its arrays, and data for a size: arguments (the result the last
    array), the grid, and what is expected.
    """

    kernel: Callable
    arguments: tuple
    data: Callable[[int, int, int], tuple[list, tuple[int, ...], np.ndarray]]
    constants: tuple = ()
    text: str = ""


def known(dtype=tkc.float16, rank: int = 2, align: int = 16, divisor: int = 8) -> ArrayArgument:
    rows = tuple(Fact(divisor) for _ in range(rank - 1))
    shape = (*(Fact() for _ in range(rank - 1)), Fact(divisor))
    return ArrayArgument(dtype, ArrayFacts(shape, (*rows, Fact(exact=1)), align))


def integers() -> ArrayArgument:
    return ArrayArgument(tkc.int32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float16)


def grid_of(y: np.ndarray) -> tuple[int, ...]:
    return (-(-y.shape[0] // BM), -(-y.shape[1] // BN), 1)


def of_convolution(m: int, n: int, k: int):
    height, width, channels, taps = max(m // 9, 1), 9, -(-k // 96) * BK, 3
    x, w = numbers(0, 2 * height * width, channels), numbers(1, taps * taps * channels, n)
    y = np.full((x.shape[0], n), 9, np.float16)
    image = np.pad(x.reshape(2, height, width, channels), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros(y.shape)
    for tap in range(taps * taps):
        i, j = divmod(tap, taps)
        part = image[:, i : i + height, j : j + width].reshape(-1, channels)
        expected += part.astype(np.float64) @ w[tap * channels : (tap + 1) * channels]
    return [x, w, y, height, width], grid_of(y), expected


def of_mask(m: int, n: int, k: int):
    a, b, y = numbers(0, m, k), numbers(1, k, n), np.full((m, n), 9, np.float16)
    rows = m - m // 3
    expected = np.where(np.arange(m)[:, None] < rows, a.astype(np.float64) @ b[::-1], 0)
    return [a, b, y, rows], grid_of(y), expected


def of_list(m: int, n: int, k: int):
    a, b, y = numbers(0, m, k), numbers(1, 8, n), np.full((m, n), 9, np.float16)
    rng = np.random.default_rng(3)
    which = rng.integers(0, 32, max(m, k)).astype(np.int32)
    rows = (
        a[np.minimum(which[:m] // 2, m)] if m > 16 else np.pad(a, ((0, 16), (0, 0)))[which[:m] // 2]
    )
    return [a, which, b, y], grid_of(y), rows.astype(np.float64) @ b[which[:k] // 4]


def of_ends(m: int, n: int, k: int):
    (a, which, b, y), grid, expected = of_list(m, n + 3, k + 3)
    a, b, y = (np.pad(x, ((0, 0), (0, -x.shape[1] % 8)))[:, : x.shape[1]] for x in (a, b, y))
    return [a, which, b, y], grid, expected


def of_chain(m: int, n: int, k: int):
    """Of m = 0 the loop over k has no step."""
    w, steps = numbers(1, 3 * BN if m else 0, BN), k // BK
    y = np.full(((steps + 1) * BM, BN), 9, np.float16)
    y[:BM] = numbers(0, BM, BN)
    expected = y.astype(np.float64)
    for t in range(steps):
        before = np.roll(expected[t * BM : (t + 1) * BM], -1, 0)
        product = np.tile(before, 3)[:, : len(w)] @ w
        expected[(t + 1) * BM : (t + 2) * BM] = np.clip(product, -2, 2)
    return [w, y, steps], (1, 1, 1), expected


def of_narrow(m: int, n: int, k: int):
    a, b, y = numbers(0, m, k + 4), numbers(1, k + 4, n + 2), np.full((m, n + 2), 9, np.float16)
    return [a, b, y], grid_of(y), a.astype(np.float64) @ b


def of_before(m: int, n: int, k: int):
    a, b, y = numbers(0, -(-m // 2), BK), numbers(1, BK, n), np.full((m, BN), 9, np.float16)
    s = np.maximum(np.repeat(a, 2, 0)[:m].astype(np.float64) @ b, 0)
    padded = np.pad(s, ((0, 0), (0, -n % BN)))
    return [a, b, y], grid_of(y), padded.reshape(m, -1, BN).sum(1)


def of_nibbles(m: int, n: int, k: int):
    k = -(-k // BK) * BK
    q = np.random.default_rng(2).integers(0, 16, (k, n))
    a, b = numbers(0, m, k), (q[0::2] | q[1::2] << 4).astype(np.uint8)
    y = np.full((m, n), 9, np.float16)
    return [a, b, y], grid_of(y), a.astype(np.float64) @ (q - 8)


def of_scaled(m: int, n: int, k: int, by_threads: bool = False):
    a, b, y = numbers(0, -(-m // 2), k), numbers(1, k, n), np.full((m, n), 9, np.float16)
    steps, columns = -(-k // BK), n - n // 3
    scale, more = numbers(2, steps, n), numbers(3, steps, n)
    each, expected = np.repeat(a, 2, 0)[:m].astype(np.float64), np.zeros((m, n))
    for step in range(steps):
        here = slice(step * BK, step * BK + BK)
        product = each[:, here] @ (b[::-1] if by_threads else b)[here]
        expected += product * scale[step] + np.where(np.arange(n) < columns, more[step], 0)
    return [a, b, scale, more, y, columns], grid_of(y), expected


def of_numbers(m: int, n: int, k: int):
    a, b, y = numbers(0, -(-m // 2), k), numbers(1, k, n), np.full((m, n), 9, np.float16)
    flags = np.arange(-(-k // BK)).astype(np.int32) % 3 - 1
    each = np.repeat(a, 2, 0)[:m].astype(np.float64) * np.repeat(flags, BK)[:k]
    return [a, b, flags, y], grid_of(y), each @ b[::-1]


def of_scaled_by_threads(m: int, n: int, k: int):
    return of_scaled(m, n, k, by_threads=True)


HALVES = known()
# a, b, two rows beside their dot, the result, columns
BESIDE = (HALVES, HALVES, HALVES, known(divisor=4, align=8), HALVES, i32())
# whose rows begin at multiples of 16 bytes, and end anywhere
ROWS = ArrayArgument(tkc.float16, ArrayFacts((Fact(), Fact()), (Fact(8), Fact(exact=1)), align=16))
CASES = {
    "convolution": Case(convolution, (HALVES, HALVES, HALVES, i32(), i32()), of_convolution, (3,)),
    "masked": Case(masked, (HALVES, HALVES, HALVES, i32()), of_mask),
    "rows of 8 bytes": Case(
        narrow, (known(divisor=4, align=8), known(divisor=2, align=4), known(divisor=2)), of_narrow
    ),
    "listed": Case(listed, (HALVES, integers(), HALVES, HALVES), of_list),
    "ends anywhere": Case(listed, (ROWS, integers(), ROWS, ROWS), of_ends),
    "chained": Case(chained, (HALVES, HALVES, i32()), of_chain),
    "before": Case(before, (HALVES, HALVES, HALVES), of_before),
    "beside": Case(scaled, BESIDE, of_scaled, (False,)),
    "beside threads": Case(scaled, BESIDE, of_scaled_by_threads, (True,)),
    "numbered": Case(numbered, (HALVES, HALVES, integers(), HALVES), of_numbers),
    "dequantized": Case(dequantized, (HALVES, known(tkc.uint8, divisor=16), HALVES), of_nibbles),
}
NAMES = pytest.mark.parametrize("name", CASES)


@cache
def lowered(name: str, **options):
    case = CASES[name]
    return compiled(traced(case.kernel, *case.arguments, *case.constants), **options)


def check(module, name: str, m: int, n: int, k: int, run=stages.run, **how) -> None:
    data, grid, expected = CASES[name].data(m, n, k)
    run(module, data, grid, **how)
    result = next(x for x in reversed(data) if isinstance(x, np.ndarray))
    np.testing.assert_array_equal(result, expected.astype(np.float16))


@NAMES
def test_roles(name):
    modules, given = lowered(name)
    assert given.has_roles
    assert count(role(modules[LAST], "copier"), threads.CpAsync) > 0
    assert count(role(modules[LAST], "consumer"), threads.DotAsync) > 0
    assert any("because tensor maps do not" in line for line in given.decisions)
    parses_back(modules[LAST])


@pytest.mark.parametrize(
    "name, maps, by_threads", [("beside", 1, 1), ("beside threads", 0, 2), ("listed", 0, 0)]
)
def test_what_stands_beside_dots(name, maps, by_threads):
    """Each row comes through the ring of those who can copy it."""
    modules, given = lowered(name)
    said = [line for line in given.decisions if "beside the dots" in line]
    copied = count(role(modules[LAST], "copier"), threads.CpAsync)
    assert copied == by_threads + (1 if maps else 2)
    assert bool(said) == bool(maps + by_threads)
    assert all(f"tensor maps copy {maps}, threads {by_threads}, " in line for line in said)
    assert count(role(modules[LAST], "consumer"), tile.Load) == 0


@NAMES
def test_every_level(name):
    modules, _ = lowered(name)
    for module in without_threads(modules):
        check(module, name, BM + 5, BN + 16, 3 * BK)


@NAMES
@pytest.mark.parametrize("shape", [(9, 16, 8), (BM, BN, BK), (BM + 5, BN + 16, 136)], ids=str)
def test_threads(name, shape):
    modules, _ = lowered(name)
    for resident in (1, 2):
        check(modules[LAST], name, *shape, seed=resident, resident=resident)


@NAMES
@pytest.mark.parametrize("k", [8, 3 * BK, 8 * BK, 9 * BK])
def test_stages(name, k):
    """Fewer steps than stages, as many and more; one block has all programs."""
    modules, _ = lowered(name, num_stages=4)
    for seed in range(2):
        check(modules[LAST], name, 3 * BM, BN, k, seed=seed, resident=1)


@pytest.mark.parametrize("name", ["convolution", "masked", "listed"])
@pytest.mark.parametrize("steps, blocks", [(1, 3), (4, 3), (13, 7)])
def test_shared_steps(name, steps, blocks):
    """Blocks share the last programs' steps; one block, which has them whole."""
    modules, given = lowered(name, stream_k=4, num_stages=4)
    assert given.plan.stream_k == 4
    for resident in (1, blocks):
        check(modules[LAST], name, 3 * BM + 5, BN + 16, steps * BK, seed=steps, resident=resident)


@NAMES
def test_text(name):
    modules, _ = lowered(name)
    for k in (3 * BK, 8):
        check(modules[LAST], name, BM + 5, BN + 16, k, run=machine.run, resident=1)


@NAMES
@assembler
def test_assembles(name):
    modules, _ = lowered(name)
    assembles_clean(modules[LAST])


def test_each_warp_stores_what_it_computed():
    modules, _ = lowered("chained", num_stages=4)
    assert exchanges_within_warps(modules[LAST])


# The dots that read a stage are the work of the whole warpgroup: the leader has waited for them.
# What copies behind a store waits for it, and so for the dot before it: behind the loop the stage
# of the copier may be released sooner. The first barrier orders lanes of one warp.
EQUIVALENT = {
    "chained": {
        "earlier: mbarrier_arrive empty in consumer, 2",
        "drop: block_barrier in consumer",
    }
}


@pytest.mark.parametrize(
    ("name", "columns"), [("convolution", BN), ("before", 3 * BN), ("chained", BN)]
)
def test_mutants(name, columns):
    modules, _ = lowered(name, num_stages=4)
    # in loops without a step nothing but the order of stores keeps roles together
    chains = [
        lambda module, seed=seed: check(module, name, 0, columns, 6 * BK, seed=seed)
        for seed in range(4 * (name == "chained"))
    ]
    every, missed = survivors(
        modules[LAST],
        *(
            lambda module, seed=seed, k=k: check(module, name, 4 * BM, columns, k * BK, seed=seed)
            for seed, k in enumerate((1, 5, 7))
        ),
        *chains,
        known=lambda label: (
            "leader alone: mbarrier_arrive empty" in label or label in EQUIVALENT.get(name, ())
        ),
    )
    assert every > 40
    assert not missed


def test_beside_dots_in_turn():
    """A gather beside dots that need one another's results: its role has registers of its own."""

    @tkc.jit
    def state_of_rows(a, b, y):
        rows = tkc.arange(64) // 2
        state = tkc.zeros((64, 64))
        for k in range(0, b.shape[0], 64):
            s = tkc.dot(tkc.load(a, (rows, k), (64, 64)), tkc.load(b, (k, 0), (64, 64)))
            state = state + tkc.dot(s.to(tkc.float16), state.to(tkc.float16))
        tkc.store(y, (0, 0), state)

    compiled = state_of_rows.compile("f16[64, 256]", "f16[256, 64]", "f32[64, 64]", target="sm_90a")
    assert any("copies a block of 64x64" in line for line in compiled.decisions)
    assert not compiled.resources.spill_stores


def read_again(a, b, y, z, rows):
    there = (tkc.arange(64) < rows)[:, None]
    left = tkc.load(a, (0, 0), (64, 32), mask=there)
    acc = tkc.dot(left, tkc.load(b, (0, 0), (32, 64)), tkc.zeros((64, 64)))
    tkc.store(y, (0, 0), acc.to(y.dtype))
    tkc.store(z, (0, 0), left, mask=left >= 1)


@pytest.mark.parametrize("rows", (0, 47, 64))
def test_a_masked_block_that_threads_read_too_is_copied_once(rows, monkeypatch):
    """A random kernel hung on an H200: copies for all readers took more stages than there are."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(rows)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 32), (32, 64)))
    y, z = np.zeros((64, 64), np.float16), np.full((64, 32), 7, np.float16)
    tkc.jit(read_again)[1](a, b, y, z, rows)
    left = np.where(np.arange(64)[:, None] < rows, a, 0)
    np.testing.assert_array_equal(y, left.astype(np.float64) @ b.astype(np.float64))
    np.testing.assert_array_equal(z, np.where(left >= 1, left, 7))
