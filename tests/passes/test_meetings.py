"""Programs whose steps wait for one another: which these are, of which lines warps can have some
each, and how many warps they have.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, traced
from tests.language.kernels import i32 as number
from tests.passes.kernels import context
from tests.passes.test_streaming import plan_of, stages_of
from tkc.ir import tile
from tkc.ir.target import target
from tkc.ir.values import operations_in
from tkc.passes.pipeline import PIPELINE
from tkc.passes.plan import kernel_of
from tkc.passes.planning import meetings
from tkc.sim import level4

f2, f3 = array(tkc.float32, 2), array(tkc.float32, 3)


# ---- which programs
def scanned(x, o, n):
    v = tkc.load(x, (0, 0), (2, 64))
    for _ in tkc.range(n):
        v = v + tkc.cumsum(v, axis=1) * 0.5
    tkc.store(o, (0, 0), v)


def scanned_beside_loads(x, o, n):
    v = tkc.load(x, (0, 0), (2, 64))
    for i in tkc.range(n):
        v = tkc.cumsum(v, axis=1) * 0.5 + tkc.load(x, (i, 0), (2, 64))
    tkc.store(o, (0, 0), v)


def in_turn(x, o, n):
    """What one value's sum makes of the other is summed an iteration later."""
    v, w = (tkc.load(x, (i, 0), (2, 64)) for i in range(2))
    for _ in tkc.range(n):
        v, w = w * 0.5, w + tkc.sum(v, axis=1)[:, None]
    tkc.store(o, (0, 0), w)


def added_up(x, o, n):
    """A sum that nothing of the next iteration waits for."""
    v = tkc.zeros((2, 64))
    for i in tkc.range(n):
        row = tkc.load(x, (i, 0), (2, 64))
        v = v + row / tkc.sum(row, axis=1)[:, None]
    tkc.store(o, (0, 0), v)


def behind_a_maximum(x, o, n):
    """What is summed waits for the maximum so far, but no maximum for a sum."""
    most, total = tkc.full((2,), -1e30), tkc.zeros((2,))
    for i in tkc.range(n):
        row = tkc.load(x, (i, 0), (2, 64))
        higher = tkc.maximum(most, tkc.max(row, axis=1))
        total = total * tkc.exp(most - higher) + tkc.sum(tkc.exp(row - higher[:, None]), axis=1)
        most = higher
    tkc.store(o, (0, 0), (total + most)[:, None] + tkc.zeros((2, 64)))


def once(x, o, n):
    v = tkc.load(x, (0, 0), (2, 64))
    tkc.store(o, (0, 0), v + tkc.cumsum(v, axis=1))


@pytest.mark.parametrize(
    "fn, meets",
    [
        (scanned, True),
        (scanned_beside_loads, True),
        (in_turn, True),
        (added_up, False),
        (behind_a_maximum, False),
        (once, False),
    ],
)
def test_which_programs_meet_for_what_they_need_to_meet_again(fn, meets):
    assert meetings.meets_in_turn(kernel_of(traced(fn, f2, f2, number()))) == meets


# ---- which lines are apart
def of_matrices(x, o, n, SYMMETRIC: tkc.constexpr):
    """Rows of four matrices less what their sums say; SYMMETRIC: of rows and columns."""
    v = tkc.load(x, (0, 0, 0), (4, 16, 16))
    for _ in tkc.range(n):
        rows = tkc.sum(v, axis=2)
        v = v - rows[:, :, None]
        if SYMMETRIC:
            v = v - rows[:, None, :]
    tkc.store(o, (0, 0, 0), v)


@pytest.mark.parametrize("symmetric, apart", [(False, 4 * 16), (True, 4)])
def test_lines_are_apart_that_nothing_takes_together(symmetric, apart):
    kernel = kernel_of(traced(of_matrices, f3, f3, number(), SYMMETRIC=symmetric))
    (total,) = operations_in(kernel, tile.Reduce)
    assert meetings.Lines(kernel).apart(total.args[0]) == apart


def multiplied(x, o, n, FROM: tkc.constexpr):
    a = tkc.load(x, (0, 0), (32, 32))
    total = a
    for _ in tkc.range(n):
        total = tkc.dot(a, total) if FROM == "left" else tkc.dot(total, a)
    tkc.store(o, (0, 0), total)


@pytest.mark.parametrize("side", ["left", "right"])
def test_columns_or_rows_of_a_chain_of_dots_are_apart(side):
    """Those of what is multiplied from the left, or right."""
    kernel = kernel_of(traced(multiplied, f2, f2, number(), FROM=side))
    (dot,) = operations_in(kernel, tile.Dot)
    lines = meetings.Lines(kernel)
    assert lines.apart(dot.b if side == "left" else dot.a) == 32
    assert lines.apart(dot.a if side == "left" else dot.b) == 1


# ---- how many warps
H200 = target("sm_90a")


@pytest.mark.parametrize(
    "prices, usual, suggested, chosen",
    [
        ({1: 100, 2: 150, 4: 200}, 4, None, 1),
        ({1: 100, 2: 150, 4: 110}, 4, None, 4),  # alike: as usual
        ({1: 100, 2: 150, 4: 110}, 4, 1, 1),  # or as suggested
        ({1: 100, 2: 150, 4: 110}, 4, 2, 4),
        ({1: 100, 2: 110, 4: 200}, 4, 2, 2),
        ({1: 100, 2: 150, 4: 90}, 4, 8, 4),
    ],
)
def test_warps_that_cost_alike_are_as_the_user_suggests(prices, usual, suggested, chosen):
    given, said = context("sm_90a", suggested_warps=suggested), []
    found = meetings.cheapest(prices, prices.__getitem__, usual, given, said.append)
    assert found == chosen
    assert bool(said) == (chosen != usual)
    assert all(("as suggested" in text) == (prices[usual] <= 123) for text in said)


def test_more_warps_cost_meetings_and_what_they_repeat():
    """Of a state that all warps share; of lines apart there is nothing to meet for."""
    kernels = [
        kernel_of(traced(of_matrices, f3, f3, number(), SYMMETRIC=symmetric))
        for symmetric in (False, True)
    ]
    apart, shared = (
        [meetings.clocks(kernel, warps, {}, H200) for warps in (4, 16)] for kernel in kernels
    )
    assert shared[1] / shared[0] > 1.2 * apart[1] / apart[0] > 1.2


@tkc.jit
def factors(x, o, N: tkc.constexpr):
    """Cholesky's factor of each of many matrices, a column at a time."""
    i = tkc.program_id(0)
    left, out = tkc.load(x[i], (0, 0), (N, N)), tkc.zeros((N, N))
    n = tkc.arange(N)
    for j in tkc.range(N):
        column = tkc.sum(tkc.where(n[None, :] == j, left, 0.0), axis=1)
        pivot = tkc.sum(tkc.where(n == j, column, 0.0), axis=0)
        column = tkc.where(n >= j, column / tkc.sqrt(pivot), 0.0)
        out = tkc.where(n[None, :] == j, column[:, None], out)
        left = left - column[:, None] * column[None, :]
    tkc.store(o[i], (0, 0), out)


@pytest.mark.parametrize("n, warps", [(32, 1), (64, 4)])
def test_one_warp_factors_a_matrix_that_it_holds(n, warps):
    r = np.random.default_rng(0)
    a = r.normal(size=(2, n, n))
    x = (a @ a.transpose(0, 2, 1) / n + np.eye(n)).astype(np.float32)
    plan, compiled = plan_of(factors, x, np.zeros_like(x), N=n)
    assert plan.warps == warps
    assert ("bar.sync" in compiled.ptx) == (warps > 1)
    last = stages_of(factors, x, np.zeros_like(x), N=n)[PIPELINE[-1]]
    out = np.zeros_like(x)
    level4.run(last, [x, out], (2, 1, 1), 2)
    np.testing.assert_allclose(out, np.linalg.cholesky(x), rtol=1e-4, atol=1e-4)


def test_no_suggestion_takes_registers_that_there_are_not():
    x = np.zeros((2, 64, 64), np.float32)
    assert plan_of(factors, x, x, N=64, suggested_warps=1)[0].warps == 4


def test_who_asks_triton_for_few_warps_suggests_them():
    import tkc.triton as triton
    import tkc.triton.language as tl

    def add(x, n):
        tl.store(x, tl.load(x) + n)

    function = triton.jit(add)
    x = np.zeros(16, np.float32)
    for warps, suggested in ((1, 1), (2, 2), (4, None), (8, None)):
        _, flat = function.prepared(*function.given((x, 3), {"num_warps": warps}))
        assert flat.get("suggested_warps") == suggested
        assert "num_warps" not in flat
    _, flat = function.prepared(*function.given((x, 3), {"num_warps": 1, "strict": True}))
    assert flat.get("suggested_warps") is None and flat["num_warps"] == 1
