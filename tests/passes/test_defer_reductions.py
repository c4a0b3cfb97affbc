"""defer-reductions: which carried sums stay in parts, and that the finished sum is the sum."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tkc.ir import shared, tile
from tkc.ir.types import TileType
from tkc.ir.values import without_recursion
from tkc.passes.defer_reductions import Parts
from tkc.passes.pipeline import PIPELINE
from tkc.sim import dataflow, level4

f1, f2 = array(tkc.float32), array(tkc.float32, 2)


def squares(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    m = tkc.program_id(0) * ROWS
    total = tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        v = tkc.load(x, (m, n), (ROWS, BN))
        total = total + tkc.sum(v * v, axis=1)
    tkc.store(o, (m,), total)


def scalar(x, o, BN: tkc.constexpr):
    """Sums that are scalars, one of them from 3, one taken away."""
    r = tkc.program_id(0)
    total, less = 3.0, 0.0
    for n in tkc.range(0, x.shape[1], BN):
        v = tkc.load(x[r], (n,), (BN,))
        total = total + tkc.sum(v)
        less = less - tkc.sum(abs(v))
    tkc.store(o, (r,), total * less)


def decaying(x, f, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    """Factors of a row, from either side; a start that is loaded; along the first axis."""
    total = tkc.load(f, (0,), (BN,))
    for m in tkc.range(0, x.shape[0], ROWS):
        v, scale = tkc.load(x, (m, 0), (ROWS, BN)), tkc.load(f, (m // ROWS,), (BN,))
        total = scale * total * 0.5 + tkc.sum(v, axis=0)
    tkc.store(o, (0,), total)


def now_and_then(x, o, n, ROWS: tkc.constexpr, BN: tkc.constexpr):
    """A branch, and rows that take nothing."""
    total, some = tkc.zeros((ROWS,)), tkc.arange(ROWS) % 3 > 0
    for k in tkc.range(0, x.shape[1], BN):
        v = tkc.load(x, (0, k), (ROWS, BN))
        total = total + tkc.sum(v, axis=1) if k % n == 0 else total * 2
        total = tkc.where(some, total + tkc.sum(v, axis=1), total)
    tkc.store(o, (0,), total)


def two_axes(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    """Sums of sums: the inner one belongs to the outer one's term."""
    total = tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        total = (
            total
            + tkc.sum(
                tkc.load(x, (0, n), (ROWS, BN)).reshape(ROWS, 4, BN // 4).permute(0, 2, 1), axis=1
            )[:, 1]
        )
    tkc.store(o, (0,), total)


def read_on_the_way(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    total = tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        total = total + tkc.sum(tkc.load(x, (0, n), (ROWS, BN)), axis=1)
        tkc.store(o, (0,), total)


def squared(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    total = tkc.zeros((ROWS,)) + 0.5
    for n in tkc.range(0, x.shape[1], BN):
        total = total * total + tkc.sum(tkc.load(x, (0, n), (ROWS, BN)), axis=1)
    tkc.store(o, (0,), total)


def plus_one(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    total = tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        total = total + tkc.sum(tkc.load(x, (0, n), (ROWS, BN)), axis=1) + 1
    tkc.store(o, (0,), total)


def with_another(x, f, o, BN: tkc.constexpr):
    """What is added in each iteration is not made of sums alone."""
    total, other = tkc.zeros((8,)), tkc.load(f, (0,), (8,))
    for n in tkc.range(0, x.shape[1], BN):
        total = total + (other + tkc.sum(tkc.load(x, (0, n), (8, BN)), axis=1))
    tkc.store(o, (0,), total)


def of_maxima(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    total = tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        total = total + tkc.max(tkc.load(x, (0, n), (ROWS, BN)), axis=1)
    tkc.store(o, (0,), total)


def one_before(x, f, o, BN: tkc.constexpr):
    """An iteration that stands before its loop, with a factor for each row, and rows that take
    nothing of it.
    """
    total = tkc.where(
        tkc.arange(8) % 3 > 0,
        tkc.sum(tkc.load(x, (0, 0), (8, BN)), axis=1) * tkc.load(f, (0,), (8,))
        - tkc.sum(tkc.load(x, (0, BN), (8, BN)), axis=1),
        0,
    )
    for n in tkc.range(2 * BN, x.shape[1], BN):
        total = total + tkc.sum(tkc.load(x, (0, n), (8, BN)), axis=1)
    tkc.store(o, (0,), total)


def wanted_twice(x, f, o, BN: tkc.constexpr):
    """What the sum was before is stored as well."""
    total = tkc.sum(tkc.load(x, (0, 0), (8, BN)), axis=1)
    tkc.store(f, (0,), total)
    for n in tkc.range(BN, x.shape[1], BN):
        total = total + tkc.sum(tkc.load(x, (0, n), (8, BN)), axis=1)
    tkc.store(o, (0,), total)


def read_beside(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    """What is read on the way is made of the sum."""
    total = tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        total = total + tkc.sum(tkc.load(x, (0, n), (ROWS, BN)), axis=1)
        tkc.store(o, (0,), total + 1)
    tkc.store(o, (0,), total)


def a_factor(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    """The sum of a block is multiplied by what the sum was."""
    total = tkc.zeros((ROWS,)) + 0.5
    for n in tkc.range(0, x.shape[1], BN):
        part = tkc.sum(tkc.load(x, (0, n), (ROWS, BN)), axis=1)
        total = part * total + part
    tkc.store(o, (0,), total)


def added_again(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    """Every iteration adds the sum of the first block, too."""
    first = tkc.sum(tkc.load(x, (0, 0), (ROWS, BN)), axis=1) * 2
    total = tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        total = total + (first + tkc.sum(tkc.load(x, (0, n), (ROWS, BN)), axis=1))
    tkc.store(o, (0,), total)


@dataclass
class Case:
    fn: Callable
    signature: tuple
    constants: dict
    data: Callable[[np.random.Generator], list]
    want: Callable
    grid: tuple = (1,)
    deferred: int = 1


def wide(rows, columns):
    return lambda rng: [
        rng.standard_normal((rows, columns)).astype(np.float32),
        np.zeros(rows, np.float32),
    ]


def decayed(x, f, o):
    total = f[:24]
    for k in range(-(-len(x) // 16)):
        total = f[k : k + 24] * total * 0.5 + x[16 * k : 16 * k + 16].sum(0)
    return total


def branched(x, o, n):
    total, some = np.zeros(len(o)), np.arange(len(o)) % 3 > 0
    for k in range(0, x.shape[1], 64):
        part = x[:, k : k + 64].sum(1)
        total = total + part if k % n == 0 else total * 2
        total = np.where(some, total + part, total)
    return total


def iterated(step, start=0.0):
    def want(x, o):
        total = np.full(len(o), start)
        for k in range(0, x.shape[1], 64):
            total = step(total, x[:, k : k + 64].sum(1))
        return total

    return want


CASES = {
    "rows": Case(
        squares, (f2, f1), dict(ROWS=8, BN=128), wide(13, 500), lambda x, o: (x**2).sum(1), (2,)
    ),
    "a long row": Case(
        squares, (f2, f1), dict(ROWS=1, BN=2048), wide(2, 7000), lambda x, o: (x**2).sum(1), (2,)
    ),
    "scalars": Case(
        scalar,
        (f2, f1),
        dict(BN=1024),
        wide(3, 3000),
        lambda x, o: -(3 + x.sum(1)) * abs(x).sum(1),
        (3,),
        2,
    ),
    "columns": Case(
        decaying,
        (f2, f1, f1),
        dict(ROWS=16, BN=24),
        lambda rng: [
            rng.standard_normal((64, 24)).astype(np.float32),
            rng.standard_normal(40).astype(np.float32),
            np.zeros(24, np.float32),
        ],
        decayed,
    ),
    "a branch": Case(
        now_and_then,
        (f2, f1, i32()),
        dict(ROWS=8, BN=64),
        lambda rng: [*wide(8, 300)(rng), 128],
        branched,
    ),
    "one before": Case(
        one_before,
        (f2, f1, f1),
        dict(BN=64),
        lambda rng: [
            *wide(8, 300)(rng)[:1],
            rng.standard_normal(8).astype(np.float32),
            np.zeros(8, np.float32),
        ],
        lambda x, f, o: (
            np.where(np.arange(8) % 3 > 0, x[:, :64].sum(1) * f - x[:, 64:128].sum(1), 0)
            + x[:, 128:].sum(1)
        ),
    ),
    "with another": Case(
        with_another,
        (f2, f1, f1),
        dict(BN=64),
        lambda rng: [
            *wide(8, 320)(rng)[:1],
            rng.standard_normal(8).astype(np.float32),
            np.zeros(8, np.float32),
        ],
        lambda x, f, o: 5 * f + x.sum(1),
        deferred=0,
    ),
    "of maxima": Case(
        of_maxima,
        (f2, f1),
        dict(ROWS=8, BN=64),
        wide(8, 320),
        lambda x, o: x.reshape(8, 5, 64).max(2).sum(1),
        deferred=0,
    ),
    "wanted twice": Case(
        wanted_twice,
        (f2, f1, f1),
        dict(BN=64),
        lambda rng: [*wide(8, 300)(rng)[:1], *np.zeros((2, 8), np.float32)],
        lambda x, f, o: x.sum(1),
    ),
    "read on the way": Case(
        read_on_the_way,
        (f2, f1),
        dict(ROWS=8, BN=64),
        wide(8, 200),
        lambda x, o: x.sum(1),
        deferred=0,
    ),
    "squared": Case(
        squared,
        (f2, f1),
        dict(ROWS=8, BN=64),
        lambda rng: [0.1 * a for a in wide(8, 200)(rng)],
        iterated(lambda t, s: t * t + s, 0.5),
        deferred=0,
    ),
    "read beside": Case(
        read_beside, (f2, f1), dict(ROWS=8, BN=64), wide(8, 200), lambda x, o: x.sum(1), deferred=0
    ),
    "a factor": Case(
        a_factor,
        (f2, f1),
        dict(ROWS=8, BN=64),
        lambda rng: [0.1 * a for a in wide(8, 200)(rng)],
        iterated(lambda t, s: s * t + s, 0.5),
        deferred=0,
    ),
    "added again": Case(
        added_again,
        (f2, f1),
        dict(ROWS=8, BN=64),
        wide(8, 320),
        lambda x, o: x.sum(1) + 10 * x[:, :64].sum(1),
        deferred=0,
    ),
    "plus one": Case(
        plus_one,
        (f2, f1),
        dict(ROWS=8, BN=64),
        wide(8, 200),
        iterated(lambda t, s: t + s + 1),
        deferred=0,
    ),
}
EVERY = pytest.mark.parametrize("name", CASES)
TARGETS = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])


def compiled(name, last, target):
    case, given = CASES[name], context(target)
    module = traced(case.fn, *case.signature, **case.constants)
    through(module, last, given)
    return module, [text for text in given.decisions if text.startswith("defer-reductions")]


def check(name, module) -> None:
    case = CASES[name]
    data = case.data(np.random.default_rng(3))
    want = case.want(*(x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in data))
    (level4 if module.body.block.first_op.level == 4 else dataflow).run(module, data, case.grid)
    got = data[len(data) - 1 - (name == "a branch")]
    assert np.abs(got - want).max() <= 1e-5 * (np.abs(want).max() + 10)


@EVERY
@TARGETS
def test_what_is_deferred(name, target):
    module, said = compiled(name, "defer-reductions", target)
    assert len(said) == CASES[name].deferred
    if CASES[name].deferred:
        assert not crossing(module)
    check(name, module)


@TARGETS
@pytest.mark.parametrize("name, meetings", [("one before", 1), ("wanted twice", 2), ("rows", 1)])
def test_what_the_sum_was_before_is_parts_too(name, meetings, target):
    """Threads meet once, behind the loop; once more where another use needs what it was before."""
    module, _ = compiled(name, "defer-reductions", target)
    meet = [
        op
        for op in module.walk()
        if isinstance(op, tile.Reduce)
        and op.results[0].first_use
        and op.args[0].type.register_layout.digits(op.axis.value.data, ("lanes", "warps"))
    ]
    assert len(meet) == meetings


def crossing(module) -> list:
    """Reductions in loops for which threads meet."""
    found = []
    for loop in [op for op in module.walk() if isinstance(op, scf.ForOp)]:
        for op in loop.walk():
            if isinstance(op, tile.Reduce):
                layout, axis = op.args[0].type.register_layout, op.axis.value.data
                if layout.digits(axis, ("lanes", "warps")):
                    found.append(op)
    return found


@EVERY
@TARGETS
def test_with_threads(name, target):
    check(name, compiled(name, PIPELINE[-1], target)[0])


def test_no_barrier_in_the_loop_of_a_long_row():
    """Its warps meet once, after the loop."""
    module, _ = compiled("a long row", PIPELINE[-1], "sm_90a")
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert not any(
        isinstance(op, (shared.Write, shared.Read)) or op.name == "tile.block_barrier"
        for op in loop.walk()
    )
    assert any(isinstance(v.type, TileType) and v.type.extents[-1] == 128 for v in loop.results)


def test_sums_of_two_axes_are_told_apart():
    given, module = context("sm_80"), traced(two_axes, f2, f1, ROWS=8, BN=64)
    through(module, PIPELINE[-1], given)
    x, o = (
        np.random.default_rng(1).standard_normal((8, 200)).astype(np.float32),
        np.zeros(8, np.float32),
    )
    level4.run(module, [x, o], (1,))
    padded = np.pad(x, ((0, 0), (0, 56))).reshape(8, 4, 4, 16)
    assert np.abs(o - padded[:, :, 1].sum((1, 2))).max() < 1e-4


def summed(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr, AXIS: tkc.constexpr):
    total = tkc.zeros((BN if AXIS == 0 else ROWS,))
    for n in tkc.range(0, x.shape[1 - AXIS], ROWS if AXIS == 0 else BN):
        at = (n, 0) if AXIS == 0 else (0, n)
        total = total + tkc.sum(tkc.load(x, at, (ROWS, BN)), axis=AXIS)
    tkc.store(o, (0,), total)


@pytest.mark.parametrize(
    "rows, columns, axis, deferred", [(8, 64, 1, 1), (8, 37, 1, 0), (8, 512, 0, 0)]
)
def test_only_whole_rows_of_several_threads_have_parts(rows, columns, axis, deferred):
    """Not those of which threads have places that no element has, nor those of one thread each."""
    given = context("sm_80")
    module = traced(summed, f2, f1, ROWS=rows, BN=columns, AXIS=axis)
    through(module, "defer-reductions", given)
    said = [text for text in given.decisions if text.startswith("defer-reductions")]
    assert len(said) == deferred, said


# ---- what has no parts, beside the nearest thing that has
BEFORE = PIPELINE[PIPELINE.index("defer-reductions") - 1]


def deferred(kernel, *given, **constants) -> int:
    """How many sums of a kernel stay in parts, where two warps run it."""
    at = context("sm_80", num_warps=2)
    through(traced(kernel, *given, **constants), "defer-reductions", at)
    return sum(text.startswith("defer-reductions") for text in at.decisions)


def of_a_square(x, o, OTHER: tkc.constexpr):
    """Each thread has one element, part of a row's sum and of a column's."""
    total = tkc.zeros((8,))
    for n in tkc.range(0, x.shape[1], 8):
        v = tkc.load(x, (0, n), (8, 8))
        total = total + tkc.sum(v, axis=1) + tkc.sum(v * 2, axis=OTHER)
    tkc.store(o, (0,), total)


@pytest.mark.parametrize("axis, parts", [(1, 1), (0, 0)])
def test_sums_of_rows_and_of_columns_have_no_parts_in_common(axis, parts):
    assert deferred(of_a_square, f2, f1, OTHER=axis) == parts


def of_two_widths(x, o, OTHER: tkc.constexpr):
    total = tkc.zeros((8,))
    for n in tkc.range(0, x.shape[1], 64):
        v, w = tkc.load(x, (0, n), (8, 64)), tkc.load(x, (8, n), (8, OTHER))
        total = total + tkc.sum(v, axis=1) + tkc.sum(w, axis=1)
    tkc.store(o, (0,), total)


@pytest.mark.parametrize("other, parts", [(64, 1), (8, 0)])
def test_sums_of_other_threads_have_no_parts_in_common(other, parts):
    assert deferred(of_two_widths, f2, f1, OTHER=other) == parts


def of_two_lengths(x, o, OTHER: tkc.constexpr, BEGIN: tkc.constexpr):
    """Single numbers, which have no layout."""
    total = tkc.sum(tkc.load(x, (0,), (BEGIN,)))
    for n in tkc.range(0, x.shape[0], 1024):
        v, w = tkc.load(x, (n,), (1024,)), tkc.load(x, (n + 1,), (OTHER,))
        total = total + (tkc.sum(v) + tkc.sum(w))
    tkc.store(o, (0,), tkc.full((1,), total, tkc.float32))


@pytest.mark.parametrize("other, parts", [(1024, 1), (32, 0)])
def test_numbers_of_other_threads_have_no_parts_in_common(other, parts):
    assert deferred(of_two_lengths, f1, f1, OTHER=other, BEGIN=1024) == parts


@pytest.mark.parametrize("begin", [1024, 32])
def test_a_number_begins_as_parts_of_the_same_threads(begin):
    module = traced(of_two_lengths, f1, f1, OTHER=1024, BEGIN=begin)
    through(module, BEFORE, context("sm_80", num_warps=2))
    (loop,) = (op for op in module.walk() if isinstance(op, scf.ForOp))
    begins = without_recursion(Parts(loop, 0)._begins(loop.iter_args[0]))
    assert begins == (begin == 1024)


def of_some_rows(x, o, REST: tkc.constexpr):
    total = tkc.zeros((8,))
    for n in tkc.range(0, x.shape[1], 64):
        part = tkc.sum(tkc.load(x, (0, n), (8, 64)), axis=1)
        total = total + tkc.where(tkc.arange(8) % 3 > 0, part, REST)
    tkc.store(o, (0,), total)


@pytest.mark.parametrize("rest, parts", [(0, 1), (1, 0)])
def test_nothing_is_a_sum_too(rest, parts):
    assert deferred(of_some_rows, f2, f1, REST=rest) == parts


@pytest.mark.parametrize("in_place", [False, True])
def test_a_factor_is_in_the_threads_that_have_the_parts(monkeypatch, in_place):
    monkeypatch.setattr(Parts, "_is_in_place", lambda self, value: in_place)
    assert deferred(decaying, f2, f1, f1, ROWS=16, BN=24) == in_place


def begun(x, f, o, BEGIN: tkc.constexpr):
    v = tkc.load(x, (0, 0), (8, 64))
    total = BEGIN(v, tkc.load(x, (8, 0), (8, 8)), tkc.load(f, (0,), (8,)))
    for n in tkc.range(64, x.shape[1], 64):
        total = total + tkc.sum(tkc.load(x, (0, n), (8, 64)), axis=1)
    tkc.store(o, (0,), total)


def chosen(of):
    return lambda v, w, f: tkc.where(tkc.arange(8) > 3, tkc.sum(v, axis=1), of(v, w, f))


@pytest.mark.parametrize(
    "begin, begins",
    [
        (lambda v, w, f: tkc.sum(v, axis=1), True),
        (lambda v, w, f: tkc.max(v, axis=1), False),
        (lambda v, w, f: tkc.sum(w, axis=0), False),
        (lambda v, w, f: tkc.sum(w, axis=1), False),
        (chosen(lambda v, w, f: 0), True),
        (chosen(lambda v, w, f: f), False),
    ],
)
def test_which_sums_a_loop_goes_on_with_in_parts(begin, begins):
    at, module = context("sm_80", num_warps=2), traced(begun, f2, f1, f1, BEGIN=begin)
    through(module, BEFORE, at)
    (loop,) = (op for op in module.walk() if isinstance(op, scf.ForOp))
    parts = Parts(loop, 0)
    assert without_recursion(parts._begins(loop.iter_args[0])) == begins


def test_rows_are_chosen_by_the_threads_that_have_the_parts(monkeypatch):
    at = context("sm_80", num_warps=2)
    module = traced(begun, f2, f1, f1, BEGIN=chosen(lambda v, w, f: 0))
    through(module, BEFORE, at)
    (loop,) = (op for op in module.walk() if isinstance(op, scf.ForOp))
    parts = Parts(loop, 0)
    monkeypatch.setattr(Parts, "_is_in_place", lambda self, value: False)
    assert not without_recursion(parts._begins(loop.iter_args[0]))
