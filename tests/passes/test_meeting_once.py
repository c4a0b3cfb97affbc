"""Where an extreme is among what several warps have, and exchanges of loops: warps meet once."""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.stages import LAST, compiled, count, distinct, level, run
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared, threads, tile
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

ROW = ArrayFacts((Fact(),), (Fact(exact=1),), 16)
FLOATS, INTEGERS = ArrayArgument(tkc.float32, ROW), ArrayArgument(tkc.int32, ROW)


def place(x, out, N: tkc.constexpr, KIND: tkc.constexpr):
    """Where the first of the largest (smallest) elements is; N where none is equal to it."""
    i = tkc.arange(0, N)
    v = tkc.load(x.ptr + i)
    if KIND == "fmax":
        most = tkc.nanmax(v, axis=0)
    elif KIND == "max":
        most = tkc.max(v, axis=0)
    else:
        most = tkc.min(v, axis=0)
    tkc.store(out.ptr, tkc.min(tkc.where(v == most, i, N), axis=0))


def last_place(x, out, N: tkc.constexpr, KIND: tkc.constexpr):
    """Where the last of the largest is, and the largest itself, times 1000."""
    i = tkc.arange(0, N)
    v = tkc.load(x.ptr + i)
    most = tkc.max(v, axis=0)
    at = tkc.max(tkc.where(most == v, i, -1), axis=0)
    tkc.store(out.ptr, at + most.to(tkc.int32) * 1000)


def first_equal(x: np.ndarray, most: float) -> int:
    found = np.flatnonzero(x == most)
    return int(found[0]) if len(found) else len(x)


def rows(n: int):
    """Lines with several of the largest, NaN, nothing but NaN, infinities and both zeros."""
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 9, n).astype(np.float32)
    yield x
    with_nan = x.copy()
    with_nan[rng.integers(0, n, 5)] = np.nan
    yield with_nan
    yield np.full(n, np.nan, np.float32)
    yield np.where(np.arange(n) % 3 == 2, np.float32(-0.0), np.float32(0.0))
    yield np.where(np.arange(n) == n - 1, np.float32(np.inf), -np.inf).astype(np.float32)
    yield np.where(np.arange(n) < n // 2, np.nan, x).astype(np.float32)


@pytest.mark.parametrize("kind", ("max", "fmax", "min"))
@pytest.mark.parametrize("n, warps", [(64, 2), (1024, 4), (1024, 16), (256, 8), (2048, 32)])
def test_places_of_extremes_are_right(kind, n, warps):
    modules, _ = compiled(traced(place, FLOATS, INTEGERS, N=n, KIND=kind), num_warps=warps)
    spread = [m for m in distinct(modules) if count(m, shared.SpreadPartial)]
    assert spread and count(modules[LAST], shared.Read) == 2
    extreme = {"max": np.max, "fmax": np.fmax.reduce, "min": np.min}[kind]
    for x in rows(n):
        want = first_equal(x, extreme(x))
        for module in (*spread[:1], modules[LAST]):
            out = np.zeros(1, np.int32)
            run(module, [x, out], (1, 1, 1))
            assert out == want
        out = np.zeros(1, np.int32)
        machine.run(modules[LAST], [x, out], (1, 1, 1))
        assert out == want


@pytest.mark.parametrize("n, warps", [(96, 2), (1000, 4), (1024, 16)])
@pytest.mark.parametrize("dtype", (np.float32, np.int32))
def test_the_extreme_and_its_last_place_are_right(n, warps, dtype):
    """Of numbers of elements that warps do not share evenly, too."""
    given = FLOATS if dtype == np.float32 else INTEGERS
    modules, _ = compiled(traced(last_place, given, INTEGERS, N=n, KIND=""), num_warps=warps)
    x, out = np.random.default_rng(n).integers(0, 9, n).astype(dtype), np.zeros(1, np.int32)
    machine.run(modules[LAST], [x, out], (1, 1, 1))
    assert out == 8000 + np.flatnonzero(x == 8)[-1]
    assert count(modules[LAST], threads.BlockBarrier) == 1


def place_below(x, out, N: tkc.constexpr):
    """Where the first element is that is less than the largest."""
    v = tkc.load(x.ptr + tkc.arange(0, N))
    below = tkc.where(v < tkc.max(v, axis=0), tkc.arange(0, N), N)
    tkc.store(out.ptr, tkc.min(below, axis=0))


def test_what_is_less_than_an_extreme_may_be_in_another_warp():
    """The largest of a warp is less than that of all."""
    modules, _ = compiled(traced(place_below, FLOATS, INTEGERS, N=1024), num_warps=4)
    assert not any(count(m, shared.SpreadPartial) for m in modules.values())
    x, out = np.full(1024, 3, np.float32), np.zeros(1, np.int32)
    x[1000] = 4
    machine.run(modules[LAST], [x, out], (1, 1, 1))
    assert out == 0


def counted(x, out, N: tkc.constexpr):
    """How many are the largest, and twice how many are not."""
    v = tkc.load(x.ptr + tkc.arange(0, N))
    tkc.store(out.ptr, tkc.sum(tkc.where(v == tkc.max(v, axis=0), 1, 2), axis=0))


def test_a_sum_counts_in_every_warp():
    """What is not the largest of all counts, too."""
    modules, _ = compiled(traced(counted, FLOATS, INTEGERS, N=1024), num_warps=4)
    assert not any(count(m, shared.SpreadPartial) for m in modules.values())
    x, out = np.arange(1024, dtype=np.float32), np.zeros(1, np.int32)
    machine.run(modules[LAST], [x, out], (1, 1, 1))
    assert out == 1 + 2 * 1023


def farthest(x, out, n, N: tkc.constexpr):
    """Places, each the farthest from all before it."""
    i = tkc.arange(0, N)
    v, far, last = tkc.load(x.ptr + i), tkc.full((N,), 1e10, tkc.float32), 0
    for j in tkc.range(n):
        tkc.store(out.ptr + j, last)
        far = tkc.minimum(far, tkc.abs(v - tkc.load(x.ptr + last)))
        last = tkc.min(tkc.where(far == tkc.max(far, axis=0), i, N), axis=0)


@pytest.mark.parametrize("n, warps", [(128, 4), (1024, 16), (1000, 8)])
def test_warps_meet_once_an_iteration(n, warps):
    modules, _ = compiled(traced(farthest, FLOATS, INTEGERS, i32(), N=n), num_warps=warps)
    made = modules[LAST]
    assert count(made, threads.BlockBarrier) == 1
    x, out = np.random.default_rng(n).normal(0, 1, n).astype(np.float32), np.zeros(9, np.int32)
    run(made, [x, out, 9], (1, 1, 1))
    far, last, want = np.full(n, 1e10, np.float32), 0, []
    for _ in range(9):
        want.append(last)
        far = np.minimum(far, np.abs(x - x[last]))
        last = int(far.argmax())
    np.testing.assert_array_equal(out, want)
    out[:] = 0
    machine.run(made, [x, out, 9], (1, 1, 1))
    np.testing.assert_array_equal(out, want)


def sums_of_rows(x, out, n, N: tkc.constexpr, ROUNDS: tkc.constexpr):
    """A sum of each row by all warps, and of the row less its mean, if there are two rounds."""
    i = tkc.arange(0, N)
    for j in tkc.range(n):
        v = tkc.load(x.ptr + j * N + i)
        total = tkc.sum(v, axis=0)
        if ROUNDS == 2:
            total = tkc.sum(tkc.abs(v - total * (1.0 / N)), axis=0)
        tkc.store(out.ptr + j, total)


@pytest.mark.parametrize("rounds", (1, 2))
@pytest.mark.parametrize("warps", (1, 4))
def test_one_round_of_a_loop_takes_two_buffers(rounds, warps):
    """Two rounds order each other; one warp meets nobody."""
    made = traced(sums_of_rows, FLOATS, FLOATS, i32(), N=256, ROUNDS=rounds)
    modules, given = compiled(made, num_warps=warps)
    alternates = any("by two buffers in turn" in line for line in given.decisions)
    assert alternates == (warps > 1 and rounds == 1)
    assert count(modules[LAST], threads.BlockBarrier) == (rounds if warps > 1 else 0)
    x, out = np.random.default_rng(0).integers(-9, 9, (5, 256)).astype(np.float32), np.zeros(5)
    out = out.astype(np.float32)
    want = x.sum(1) if rounds == 1 else np.abs(x - x.mean(1, keepdims=True)).sum(1)
    for module in distinct(modules):
        if level(module) < 4 or module is modules[LAST]:
            out[:] = 0
            run(module, [x.ravel(), out, 5], (1, 1, 1))
            np.testing.assert_allclose(out, want, rtol=1e-5)
    out[:] = 0
    machine.run(modules[LAST], [x.ravel(), out, 5], (1, 1, 1))
    np.testing.assert_allclose(out, want, rtol=1e-5)


def test_a_buffer_alone_is_not_enough():
    """The check of the simulator finds what one barrier and one buffer leave unordered."""
    modules, _ = compiled(traced(sums_of_rows, FLOATS, FLOATS, i32(), N=256, ROUNDS=1), num_warps=4)
    made = modules[LAST]
    for op in list(made.walk()):
        if isinstance(op, threads.RingNext):
            op.next_stage.replace_all_uses_with(op.stage)
    x, out = np.zeros(5 * 256, np.float32), np.zeros(5, np.float32)
    with pytest.raises(Exception, match="order|barrier|race|wrote|read"):
        run(made, [x, out, 5], (1, 1, 1))


def test_an_extreme_of_each_row_stays_as_it_is():
    """Only of one line: of several, each warp would need each line's extreme."""

    def places(x, out):
        i = tkc.arange(0, 256)
        v = tkc.load(x, (0, 0), (4, 256))
        most = tkc.max(v, axis=1)
        found = tkc.min(tkc.where(v == most[:, None], i[None, :], 256), axis=1)
        tkc.store(out, (0,), found)

    matrix = ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16))
    modules, _ = compiled(traced(places, matrix, INTEGERS), num_warps=8)
    x = np.random.default_rng(0).integers(-99, 99, (4, 256)).astype(np.float32)
    out = np.zeros(4, np.int32)
    machine.run(modules[LAST], [x, out], (1, 1, 1))
    np.testing.assert_array_equal(out, x.argmax(1))
    assert not count(modules[LAST], shared.SpreadPartial) and count(modules[LAST], tile.Reduce)


@pytest.mark.parametrize("dtype, lanes, at_once", [
    (tkc.int32, 4, True), (tkc.int32, 2, False), (tkc.float32, 16, True), (tkc.float32, 4, False)
])  # fmt: skip
def test_lanes_with_copies_count_where_an_element_may_count_twice(dtype, lanes, at_once):
    """By one instruction of the warp, where it is worth some shuffles."""

    def extreme(x, out, LANES: tkc.constexpr):
        v = tkc.load(x.ptr + tkc.arange(0, LANES))
        tkc.store(out.ptr, tkc.max(v, axis=0))
        tkc.store(out.ptr + 1, tkc.sum(v, axis=0))

    given = ArrayArgument(dtype, ROW)
    modules, _ = compiled(traced(extreme, given, given, LANES=lanes), num_warps=1)
    text = emit(modules[LAST], target("sm_90a")).text
    assert ("redux.sync.max" in text) == at_once and "redux.sync.add" not in text
    for sign in (1, -1):
        x = (sign * np.arange(3, 3 + lanes)).astype(dtype.name)
        out = np.zeros(2, x.dtype)
        machine.run(modules[LAST], [x, out], (1, 1, 1))
        np.testing.assert_array_equal(out, [x.max(), x.sum()])
