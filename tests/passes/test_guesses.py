"""relax-stabilizers, rows that have seen nothing: which kernels leave no guess at their maximum,
for each of which one was wrong, and that all mean the same.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import inf
from tests.passes.kernels import context, through
from tests.passes.test_relax_stabilizers import Case, close, f1, f2, guesses, levels
from tkc.passes.pipeline import PIPELINE

W, ROWS, BN = 24, 8, 8


def scores(x, y, m, n, some: tkc.constexpr = False):
    """Scores of two kinds for a block, and what each row sees of them."""
    rows, cols = m + tkc.arange(ROWS), n + tkc.arange(BN)
    keep = (rows[:, None] >= cols[None, :]) & (rows[:, None] - cols[None, :] < W)
    return (
        tkc.load(x, (m, n), (ROWS, BN)),
        tkc.load(y, (m, n), (ROWS, BN)),
        keep & (rows[:, None] % 3 > 0) if some else keep,
    )


def met(x, y, m, n, top):
    """A block's scores as rows see them, their maximum so far, and what powers are taken relative
    to.
    """
    u, _, keep = scores(x, y, m, n)
    v = tkc.where(keep, u, -inf)
    new = tkc.maximum(top, tkc.max(v, axis=1))
    return v, new, tkc.where(new == -inf, 0, new)


def step(x, y, m, n, total, top):
    """An ordinary iteration: the sum and the maximum with a block more."""
    v, new, base = met(x, y, m, n, top)
    return total * tkc.exp2(top - base) + tkc.sum(tkc.exp2(v - base[:, None]), axis=1), new


def weigh(x, y, m, n, total, acc, top, late, none):
    """An iteration that weighs other scores by powers. late: the mask is laid on powers, too, not
    on the scores they are made of; none: what powers are taken relative to where there is no
    maximum.
    """
    u, w, keep = scores(x, y, m, n, True)
    v = tkc.where(keep, u, -inf)
    new = tkc.maximum(top, tkc.max(v, axis=1))
    base = tkc.where(new == -inf, none, new)
    p, f = (
        (tkc.where(keep, tkc.exp2(u - base[:, None]), 0) if late else tkc.exp2(v - base[:, None])),
        tkc.exp2(top - base),
    )
    return total * f + tkc.sum(p, axis=1), acc * f + tkc.sum(p * w, axis=1), new


def begin(m):
    return tkc.maximum(m - W + 1, 0) // BN * BN


def seen(x, y, o, m, total, top):
    """Ordinary iterations over what a window's rows see, and what they leave."""
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        total, top = step(x, y, m, n, total, top)
    tkc.store(o, (m,), top + tkc.log2(total))


# --------------------------------------------------------------------------------------------------
def multiplied_first(x, y, o):
    """The old maximum is multiplied before the new one is taken from it."""
    m = tkc.program_id(0) * ROWS
    top, total = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        v, new, base = met(x, y, m, n, top)
        total, top = (
            total * tkc.exp2(top * 2.0 - base * 2.0)
            + tkc.sum(tkc.exp2(v * 2.0 - (base * 2.0)[:, None]), axis=1),
            new,
        )
    tkc.store(o, (m,), top * 2.0 + tkc.log2(total))


def with_an_axis_more(x, y, o):
    """Maxima meet as columns."""
    m = tkc.program_id(0) * ROWS
    top, total = tkc.full((ROWS,), -inf), tkc.zeros((ROWS, 1))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        v, new, base = met(x, y, m, n, top)
        base = base[:, None]
        total, top = (
            total * tkc.exp2(top[:, None] - base) + tkc.sum(tkc.exp2(v - base), axis=1)[:, None],
            new,
        )
    tkc.store(o, (m,), top + tkc.log2(tkc.sum(total, axis=1)))


def guarded_by_the_old(x, y, o):
    """The old maximum says which rows had seen nothing; their factor is set to 0."""
    m = tkc.program_id(0) * ROWS
    top, total = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        v, new, base = met(x, y, m, n, top)
        total, top = (
            total * tkc.where(top == -inf, 0, tkc.exp2(top - new))
            + tkc.sum(tkc.exp2(v - base[:, None]), axis=1),
            new,
        )
    tkc.store(o, (m,), top + tkc.log2(total))


def masked_powers(x, y, o):
    """The mask is laid on powers, and on the scores for their maximum alone: powers before the mask
    say nothing of what is seen.
    """
    m = tkc.program_id(0) * ROWS
    top, total, acc = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,)), tkc.zeros((ROWS,))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        total, acc, top = weigh(x, y, m, n, total, acc, top, True, 0)
    tkc.store(o, (m,), tkc.where(top == -inf, 0, acc / total))


def other_powers(x, y, o):
    """The maximum covers one of two kinds of scores: where it is none, the other's powers are
    dropped.
    """
    m = tkc.program_id(0) * ROWS
    top, total = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        u, w, keep = scores(x, y, m, n)
        v = tkc.where(keep, u, -inf)
        new = tkc.maximum(top, tkc.max(v, axis=1))
        base = tkc.where(new == -inf, 0, new)
        total, top = (
            total * tkc.exp2(top - base)
            + tkc.sum(tkc.exp2(v - base[:, None]), axis=1)
            + tkc.sum(tkc.exp2(w - base[:, None]), axis=1),
            new,
        )
    tkc.store(o, (m,), top + tkc.log2(total))


def what_a_loop_left(x, y, o):
    """A loop that some programs do not enter leaves a sum that belongs to no maximum."""
    m = tkc.program_id(0) * ROWS
    top, total = tkc.full((ROWS,), -inf), tkc.full((ROWS,), 3.0)
    for start, stop in ((0, m // 48 * 8), (begin(m), tkc.minimum(x.shape[1], m + ROWS))):
        for n in tkc.range(start, stop, BN):
            total, top = step(x, y, m, n, total, top)
    tkc.store(o, (m,), top + tkc.log2(total))


def what_goes_with_a_maximum(x, y, o):
    """A sum that is chosen by the maximum it comes with, and is not 0 where that is none."""
    m = tkc.program_id(0) * ROWS
    top = tkc.load(y[0], (m,), (ROWS,))
    top = tkc.where(top > 0, top, -inf)
    total = tkc.where(top > -inf, 1.0, 2.0)
    seen(x, y, o, m, total, top)


# --------------------------------------------------------------------------------------------------
def with_a_sink(x, y, o):
    """A score before all others, of some rows; what is relative to it is 1 of those and 0 of
    others.
    """
    m = tkc.program_id(0) * ROWS
    top = tkc.load(y[0], (m,), (ROWS,))
    top = tkc.where(top > 0, top, -inf)
    total = tkc.exp2(top - tkc.where(top == -inf, 0, top))
    seen(x, y, o, m, total, top)


def two_powers(x, y, o):
    """One maximum of two kinds of scores, a sum of each."""
    m = tkc.program_id(0) * ROWS
    top, one, other = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,)), tkc.zeros((ROWS,))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        u, w, keep = scores(x, y, m, n)
        v, w = tkc.where(keep, u, -inf), tkc.where(keep, w, -inf)
        new = tkc.maximum(top, tkc.maximum(tkc.max(v, axis=1), tkc.max(w, axis=1)))
        base = tkc.where(new == -inf, 0, new)
        f = tkc.exp2(top - base)
        one, other, top = (
            one * f + tkc.sum(tkc.exp2(v - base[:, None]), axis=1),
            other * f + tkc.sum(tkc.exp2(w - base[:, None]), axis=1),
            new,
        )
    tkc.store(o, (m,), one / (one + other))


def two_maxima(x, y, o):
    m = tkc.program_id(0) * ROWS
    top, high, one, other = (
        tkc.full((ROWS,), -inf),
        tkc.full((ROWS,), -inf),
        tkc.zeros((ROWS,)),
        tkc.zeros((ROWS,)),
    )
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        u, w, keep = scores(x, y, m, n)
        v, w = tkc.where(keep, u, -inf), tkc.where(keep, w, -inf)
        new, higher = tkc.maximum(top, tkc.max(v, axis=1)), tkc.maximum(high, tkc.max(w, axis=1))
        base, bound = tkc.where(new == -inf, 0, new), tkc.where(higher == -inf, 0, higher)
        one, other = (
            one * tkc.exp2(top - base) + tkc.sum(tkc.exp2(v - base[:, None]), axis=1),
            other * tkc.exp2(high - bound) + tkc.sum(tkc.exp2(w - bound[:, None]), axis=1),
        )
        top, high = new, higher
    tkc.store(o, (m,), (top + tkc.log2(one)) + (high + tkc.log2(other)))


def unguarded(x, y, o):
    """Where a row sees nothing of its first block, all is NaN."""
    m = tkc.program_id(0) * ROWS
    top, total = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        v, new, _ = met(x, y, m, n, top)
        total, top = total * tkc.exp2(top - new) + tkc.sum(tkc.exp2(v - new[:, None]), axis=1), new
    tkc.store(o, (m,), top + tkc.log2(total))


def rows_that_see_nothing(x, y, o):
    """Every third; and another number than 0 in the guard."""
    m = tkc.program_id(0) * ROWS
    top, total, acc = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,)), tkc.zeros((ROWS,))
    for n in tkc.range(begin(m), tkc.minimum(x.shape[1], m + ROWS), BN):
        total, acc, top = weigh(x, y, m, n, total, acc, top, False, 7.0)
    tkc.store(o, (m,), tkc.where(top == -inf, 0, acc / total))


GUESSED = {
    multiplied_first: 0,
    with_an_axis_more: 0,
    guarded_by_the_old: 0,
    masked_powers: 0,
    other_powers: 0,
    what_a_loop_left: 0,
    what_goes_with_a_maximum: 0,
    with_a_sink: 1,
    two_powers: 2,
    two_maxima: 2,
    unguarded: 1,
    rows_that_see_nothing: 1,
}
ROTATED = [False, True]


def relaxed(case: Case, rotate: bool, last: str = "relax-stabilizers"):
    module, given = case.module(), context("sm_90a", rotate=rotate)
    through(module, last, given)
    return module, [text for text in given.decisions if "only keeps powers small" in text]


@pytest.mark.parametrize("rotate", ROTATED)
@pytest.mark.parametrize("fn", GUESSED, ids=lambda fn: fn.__name__)
def test_which_maxima_are_guessed_at_and_that_kernels_mean_the_same(fn, rotate):
    case = Case(
        fn,
        (f2, f2, f1),
        lambda rng: [levels(rng, 96), levels(rng, 96), np.zeros(96, np.float32)],
        (12,),
        (2,),
    )
    module, said = relaxed(case, rotate)
    assert said and len(guesses(module)) == GUESSED[fn]
    ordinary = np.random.default_rng(1).standard_normal((2, 96, 96)).astype(np.float32)
    for data in (
        ordinary,
        ordinary - 1000,
        ordinary - 300 * (np.arange(96) % 24 > 12),
        *(
            np.stack([levels(np.random.default_rng(seed), 96) for seed in (s, s + 9)])
            for s in range(2)
        ),
    ):
        data = [*data.astype(np.float32), np.zeros(96, np.float32)]
        with np.errstate(all="ignore"):
            close(case.run(module, data), case.run(case.module(), data), fn.__name__)


@pytest.mark.parametrize(
    "fn", [two_powers, two_maxima, rows_that_see_nothing], ids=lambda fn: fn.__name__
)
def test_with_threads(fn):
    case = Case(
        fn,
        (f2, f2, f1),
        lambda rng: [levels(rng, 96), levels(rng, 96), np.zeros(96, np.float32)],
        (12,),
        (2,),
    )
    module, _ = relaxed(case, True, PIPELINE[-1])
    data = case.data(np.random.default_rng(2))
    with np.errstate(all="ignore"):
        close(case.run(module, data), case.run(case.module(), data), fn.__name__)
