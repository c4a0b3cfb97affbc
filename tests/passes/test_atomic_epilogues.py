"""Results that are added to memory, by warp roles: each program's part of a product by the tensor
memory accelerator, where it has the sum, else from registers.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler, assembles_clean
from tkc.ir import threads
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

BM, BN, BK = 128, 64, 64
TYPES = {
    tkc.float32: np.float32,
    tkc.float16: np.float16,
    tkc.bfloat16: ml_dtypes.bfloat16,
    tkc.int32: np.int32,
}


def split_k(a, b, c, SPLIT: tkc.constexpr, KIND: tkc.constexpr):
    """Programs of one output tile each take some steps, and add what they have."""
    m, n, z = tkc.program_id(0) * BM, tkc.program_id(1) * BN, tkc.program_id(2)
    acc = tkc.zeros((BM, BN))
    for k in range(z * BK, a.shape[1], BK * SPLIT):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    update = {"add": tkc.atomic_add, "max": tkc.atomic_max, "min": tkc.atomic_min}[KIND]
    update(c, (m, n), acc.to(c.dtype))


def twice(a, b, c, SPLIT: tkc.constexpr, KIND: tkc.constexpr):
    """Two sums of one result, one of them masked: that one is added from registers."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.atomic_add(c, (m, n), acc.to(c.dtype))
    odd = (tkc.arange(BN) % 2 == 1)[None, :]
    tkc.atomic_add(c, (m, n), acc.to(c.dtype), mask=odd)


def aligned(dtype) -> ArrayArgument:
    return ArrayArgument(dtype, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), 16))


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    return (
        rng.integers(-1, 2, (m, k)).astype(np.float16),
        rng.integers(-1, 2, (k, n)).astype(np.float16),
    )


def compiled(fn, dtype, kind: str, split: int):
    module = traced(fn, *[aligned(tkc.float16)] * 2, aligned(dtype), SPLIT=split, KIND=kind)
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    return module, given


def reduces(module) -> int:
    return sum(isinstance(op, threads.TmaStore) and op.reduce is not None for op in module.walk())


def want_split(a, b, c, split: int, kind: str) -> np.ndarray:
    function = {"add": np.add, "max": np.maximum, "min": np.minimum}[kind]
    want = c.astype(np.float64)
    for z in range(split):
        steps = [k for k in range(a.shape[1]) if k // BK % split == z]
        part = a[:, steps].astype(np.float64) @ b[steps].astype(np.float64)
        want = function(want, part)
    return want


@pytest.mark.parametrize(
    "dtype, kind, by_map",
    [
        (tkc.float32, "add", True),
        (tkc.float16, "add", True),
        (tkc.bfloat16, "add", True),
        (tkc.float16, "max", True),
        (tkc.bfloat16, "min", True),
        (tkc.float32, "max", False),
    ],
)
@pytest.mark.parametrize(
    "shape", [(128, 64, 192), (136, 72, 200), (8, 8, 8), (256, 64, 512)], ids=str
)
def test_parts_of_a_product_are_combined(dtype, kind, by_map, shape):
    module, given = compiled(split_k, dtype, kind, 2)
    assert given.has_roles and bool(reduces(module)) == by_map
    a, b = operands(*shape)
    m, n, _ = shape
    for seed in range(2):
        c = np.random.default_rng(7).integers(-2, 3, (m, n)).astype(TYPES[dtype])
        want = want_split(a, b, c, 2, kind)
        grid = (-(-m // BM), -(-n // BN), 2)
        level4.run(module, [a, b, c], grid, seed, resident=1 + seed)
        np.testing.assert_array_equal(c.astype(np.float64), want)


@pytest.mark.parametrize("fn", (split_k, twice))
@assembler
def test_the_ptx_adds_the_same(fn):
    split = 2 if fn is split_k else 1
    module, _ = compiled(fn, tkc.float32, "add", split)
    assembles_clean(module)
    m, n, k = 136, 72, 200
    a, b = operands(m, n, k)
    c = np.ones((m, n), np.float32)
    want = want_split(a, b, c, split, "add")
    if fn is twice:
        want[:, 1::2] += want[:, 1::2] - 1
    machine.run(module, [a, b, c], (-(-m // BM), -(-n // BN), split))
    np.testing.assert_array_equal(c, want)


def stream_k(a, b, c, total, per):
    """A stretch of all steps of all output tiles each: whole tiles are stored, parts are added."""
    steps = tkc.cdiv(a.shape[1], BK)
    columns = tkc.cdiv(b.shape[1], BN)
    at = tkc.program_id(0) * per
    stop = tkc.minimum(at + per, total)
    while at < stop:
        tile, first = at // steps, at % steps
        last = tkc.minimum(steps, first + stop - at)
        m, n = tile // columns * BM, tile % columns * BN
        acc = tkc.zeros((BM, BN))
        for k in range(first, last):
            x, y = tkc.load(a, (m, k * BK), (BM, BK)), tkc.load(b, (k * BK, n), (BK, BN))
            acc = tkc.dot(x, y, acc)
        if first == 0 and last == steps:
            tkc.store(c, (m, n), acc)
        else:
            tkc.atomic_add(c, (m, n), acc)
        at = at + (last - first)


@pytest.mark.parametrize("shape", [(128, 64, 192), (264, 72, 200), (8, 8, 8)], ids=str)
@pytest.mark.parametrize("blocks", (1, 3, 5))
@assembler
def test_a_loop_without_a_count_has_roles(shape, blocks):
    module = traced(stream_k, *[aligned(tkc.float16)] * 2, aligned(tkc.float32), i32(), i32())
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles
    assembles_clean(module)
    m, n, k = shape
    a, b = operands(*shape)
    total = -(-m // BM) * -(-n // BN) * -(-k // BK)
    want = a.astype(np.float64) @ b.astype(np.float64)
    for run in (level4.run, machine.run):
        c = np.zeros((m, n), np.float32)
        run(module, [a, b, c, total, -(-total // blocks)], (blocks, 1, 1))
        np.testing.assert_array_equal(c, want)


def claimed(a, b, c, counter, tiles):
    """Programs take output tiles from a counter."""
    columns = tkc.cdiv(b.shape[1], BN)
    t = tkc.atomic_add(counter.ptr, 1)
    while t < tiles:
        m, n = t // columns * BM, t % columns * BN
        acc = tkc.zeros((BM, BN))
        for k in range(0, a.shape[1], BK):
            acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
        tkc.store(c, (m, n), acc.to(c.dtype))
        t = tkc.atomic_add(counter.ptr, 1)


def claimed_twice(a, b, c, counter, tiles):
    """Two numbers in an iteration: the second one is an offset of the result's columns."""
    t = tkc.atomic_add(counter.ptr, 1)
    while t < tiles:
        order = tkc.atomic_add(counter.ptr + 1, 1, sem="relaxed")
        acc = tkc.zeros((BM, BN))
        for k in range(0, a.shape[1], BK):
            x = tkc.load(a, (t * BM, k), (BM, BK))
            acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
        tkc.store(c, (t * BM, 0), acc.to(c.dtype) + order.to(c.dtype) * 0)
        t = tkc.atomic_add(counter.ptr, 1)


@pytest.mark.parametrize("dtype", (tkc.float32, tkc.float16), ids=str)
@pytest.mark.parametrize("shape", [(128, 64, 192), (264, 72, 200), (8, 8, 8)], ids=str)
@pytest.mark.parametrize("blocks", (1, 3, 20))
@assembler
def test_a_counter_gives_programs_their_work(dtype, shape, blocks):
    m, n, k = shape
    module = traced(claimed, *[aligned(tkc.float16)] * 2, aligned(dtype), array(tkc.int32), i32())
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles
    assembles_clean(module)
    a, b = operands(*shape)
    want = a.astype(np.float64) @ b.astype(np.float64)
    tiles = -(-m // BM) * -(-n // BN)
    for seed, run in ((0, level4.run), (1, level4.run), (0, machine.run)):
        c, counter = np.zeros((m, n), TYPES[dtype]), np.zeros(1, np.int32)
        run(module, [a, b, c, counter, tiles], (blocks, 1, 1), seed=seed)
        np.testing.assert_array_equal(c, want)
        assert counter[0] == tiles + blocks


def reading_back(a, b, c, counter, tiles):
    """As `claimed`, and each program adds to what another may have written."""
    t = tkc.atomic_add(counter.ptr, 1)
    while t < tiles:
        acc = tkc.load(c, (0, 0), (BM, BN)).to(tkc.float32)
        for k in range(0, a.shape[1], BK):
            acc = tkc.dot(tkc.load(a, (t, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
        tkc.store(c, (0, 0), acc.to(c.dtype))
        t = tkc.atomic_add(counter.ptr, 1)


def signalling(a, b, c, counter, tiles):
    """As `claimed`, and what is done is counted, for others to see when it is."""
    t = tkc.atomic_add(counter.ptr, 1)
    while t < tiles:
        acc = tkc.zeros((BM, BN))
        for k in range(0, a.shape[1], BK):
            x = tkc.load(a, (t * BM, k), (BM, BK))
            acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
        tkc.store(c, (t * BM, 0), acc.to(c.dtype))
        tkc.atomic_add(counter.ptr + 1, 1)
        t = tkc.atomic_add(counter.ptr, 1)


def released(a, b, c, done):
    """A program waits for its rows, and counts what it has stored as a release."""
    m, n = tkc.program_id(0), tkc.program_id(1) * BN
    while tkc.load(done.ptr + m, sem="acquire") == 0:
        pass
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        x = tkc.load(a, (m * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m * BM, n), acc.to(c.dtype))
    tkc.atomic_add(done.ptr + m, 1, sem="release")


@pytest.mark.parametrize("dtype", [tkc.float16, tkc.float32])
def test_a_counter_that_only_signals(dtype):
    """It is behind what it tells others of, also where tensor maps store that."""
    module = traced(released, *[aligned(tkc.float16)] * 2, aligned(dtype), array(tkc.int32))
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles
    a, b = operands(2 * BM, 2 * BN, 3 * BK)
    want = a.astype(np.float64) @ b.astype(np.float64)
    for seed, run in ((0, level4.run), (1, level4.run), (0, machine.run)):
        c, done = np.zeros(want.shape, TYPES[dtype]), np.ones(2, np.int32)
        run(module, [a, b, c, done], (2, 2, 1), seed=seed)
        np.testing.assert_array_equal(c, want)
        assert done.tolist() == [3, 3]


def test_two_counters():
    module = traced(
        claimed_twice, *[aligned(tkc.float16)] * 2, aligned(tkc.float32), array(tkc.int32), i32()
    )
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles
    a, b = operands(300, BN, 200)
    c, counter = np.zeros((300, BN), np.float32), np.zeros(2, np.int32)
    level4.run(module, [a, b, c, counter, 3], (2, 1, 1))
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))
    assert counter.tolist() == [5, 3]


@pytest.mark.parametrize(
    "fn, why", [(reading_back, "read what they write"), (signalling, "observe the order")]
)
def test_what_other_programs_wrote_is_not_read_early(fn, why):
    module = traced(fn, *[aligned(tkc.float16)] * 2, aligned(tkc.float32), array(tkc.int32), i32())
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert not given.has_roles and any(why in said for said in given.decisions)
