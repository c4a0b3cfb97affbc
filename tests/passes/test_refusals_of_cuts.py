"""What cannot be cut along an axis of a dot's result: each kernel beside the nearest one that can
be. `Cut` is asked directly; what the passes make of its answers, their own tests show.
"""

import pytest

import tkc
from tests.language.kernels import array, traced
from tests.passes.arrays import f1, f2, h2
from tests.passes.kernels import through
from tkc.ir import tile
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut
from tkc.passes.cuts.sorts import cut_sort


def product(a, b):
    """64x64 of 64x32 and 32x64."""
    return tkc.dot(tkc.load(a, (0, 0), (64, 32)), tkc.load(b, (0, 0), (32, 64)))


def stored(a, b, c, d, o):
    tkc.store(c, (0, 0), product(a, b))


def turned_too(a, b, c, d, o):
    x = product(a, b)
    tkc.store(c, (0, 0), x + x.T)


def accumulated_turned(a, b, c, d, o):
    x = tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 32):
        x = tkc.dot(tkc.load(a, (0, k), (64, 32)), tkc.load(b, (k, 0), (32, 64)), x.T)
    tkc.store(c, (0, 0), x)


def carried_turned(a, b, c, d, o):
    x = product(a, b)
    for _ in tkc.range(a.shape[1]):
        x = x.T
    tkc.store(c, (0, 0), x)


def carried(a, b, c, d, o):
    x = product(a, b)
    for _ in tkc.range(a.shape[1]):
        x = x + 1
    tkc.store(c, (0, 0), x)


def column_sums(a, b, c, d, o):
    x = product(a, b)
    tkc.store(c, (0, 0), x)
    tkc.store(o, (0,), tkc.sum(x, axis=0))


def column_maxima_at(a, b, c, d, o):
    x = product(a, b)
    tkc.store(c, (0, 0), x)
    tkc.store(o, (0,), tkc.argmax(x, axis=0).to(tkc.float32))


def watched_by_results(a, b, c, d, o):
    x = product(a, b)
    places = tkc.arange(64)[:, None] * 64 + tkc.arange(64)[None, :]
    tkc.store(c, (0, 0), tkc.load(d.ptr + places, mask=x > 0, other=0, sem="relaxed"))


def read_by_results(a, b, c, d, o):
    x = product(a, b)
    places = tkc.arange(64)[:, None] * 64 + tkc.arange(64)[None, :]
    tkc.store(c, (0, 0), tkc.load(d.ptr + places, mask=x > 0, other=0))


def watched_beside(a, b, c, d, o):
    places = tkc.arange(64)[:, None] * 64 + tkc.arange(64)[None, :]
    tkc.store(c, (0, 0), product(a, b) + tkc.load(d.ptr + places, sem="relaxed"))


def read_beside(a, b, c, d, o):
    places = tkc.arange(64)[:, None] * 64 + tkc.arange(64)[None, :]
    tkc.store(c, (0, 0), product(a, b) + tkc.load(d.ptr + places))


def shown(a, b, c, d, o):
    places = tkc.arange(64)[:, None] * 64 + tkc.arange(64)[None, :]
    tkc.store(c.ptr + places, product(a, b), sem="relaxed")


def scattered(a, b, c, d, o):
    places = tkc.arange(64)[:, None] * 64 + tkc.arange(64)[None, :]
    tkc.store(c.ptr + places, product(a, b))


def sums_added_between(a, b, c, d, o):
    x = product(a, b)
    tkc.atomic_add(o.ptr + tkc.arange(64), tkc.sum(x, axis=0))
    tkc.store(o, (64,), tkc.max(x, axis=0))


def sums_stored_between(a, b, c, d, o):
    x = product(a, b)
    tkc.store(o, (0,), tkc.sum(x, axis=0))
    tkc.store(o, (64,), tkc.max(x, axis=0))


def sums_stored_before(a, b, c, d, o):
    x = product(a, b)
    tkc.store(o, (0,), tkc.sum(x, axis=0))
    tkc.store(c, (0, 0), x)


def others_stored_between(a, b, c, d, o):
    x = product(a, b)
    tkc.store(o, (0,), tkc.zeros((64,)))
    tkc.store(c, (0, 0), x)


def others_stored_behind(a, b, c, d, o):
    tkc.store(c, (0, 0), product(a, b))
    tkc.store(o, (0,), tkc.zeros((64,)))


def others_stored_in_the_loop(a, b, c, d, o):
    x = tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 32):
        x = tkc.dot(tkc.load(a, (0, k), (64, 32)), tkc.load(b, (k, 0), (32, 64)), x)
        tkc.store(o, (k,), tkc.zeros((32,)))
    tkc.store(c, (0, 0), x)


def summed(a, b, c, d, o):
    x = tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 32):
        x = tkc.dot(tkc.load(a, (0, k), (64, 32)), tkc.load(b, (k, 0), (32, 64)), x)
    tkc.store(c, (0, 0), x)


def overwritten_before(a, b, c, d, o):
    y = tkc.load(d, (0, 0), (64, 64))
    tkc.store(d, (0, 0), tkc.zeros((64, 64)))
    tkc.store(c, (0, 0), product(a, b) + y)


def added(a, b, c, d, o):
    y = tkc.load(d, (0, 0), (64, 64))
    tkc.store(c, (0, 0), product(a, b) + y)


def stored_both_ways(a, b, c, d, o):
    x = product(a, b)
    tkc.store(c, (0, 0), x)
    tkc.store(c, (0, 0), x.T)


def stored_twice(a, b, c, d, o):
    x = product(a, b)
    tkc.store(c, (0, 0), x)
    tkc.store(c, (0, 0), x + 1)


def rows_stored_twice(a, b, c, d, o):
    rows, x = tkc.load(o, (0,), (64,)).to(tkc.int32), product(a, b)
    tkc.store(c, (rows, 0), x)
    tkc.store(c, (rows, 0), x + 1)


def updated_where_positive(a, b, c, d, o):
    y = tkc.load(c, (0, 0), (64, 64), mask=product(a, b) > 0)
    tkc.store(c, (0, 0), y + 1)


def updated(a, b, c, d, o):
    y = tkc.load(c, (0, 0), (64, 64))
    tkc.store(c, (0, 0), product(a, b) + y)


def updated_turned(a, b, c, d, o):
    y = tkc.load(c, (0, 0), (64, 64))
    tkc.store(c, (0, 0), product(a, b) + y.T)


def updated_by_sums(a, b, c, d, o):
    y = tkc.load(c, (0, 0), (64, 32))
    tkc.store(c, (0, 0), product(a, b) + tkc.sum(y, axis=1)[:, None])


def rows_updated(a, b, c, d, o):
    rows = tkc.load(o, (0,), (64,)).to(tkc.int32)
    y = tkc.load(c, (rows, 0), (64, 64))
    tkc.store(c, (rows, 0), product(a, b) + y)


def multiplied_again(a, b, c, d, o):
    x = product(a, b).to(tkc.float16)
    tkc.store(c, (0, 0), tkc.dot(x, tkc.load(d, (0, 0), (64, 64))))


def multiplied_by_itself(a, b, c, d, o):
    x = product(a, b).to(tkc.float16)
    tkc.store(c, (0, 0), tkc.dot(x, x.T))


@pytest.mark.parametrize(
    "kernel, axis, is_cut",
    [
        (stored, 0, True),
        (turned_too, 0, False),
        (accumulated_turned, 0, False),
        (carried_turned, 0, False),
        (carried, 0, True),
        (column_sums, 0, True),
        (column_maxima_at, 0, False),
        (watched_by_results, 0, False),
        (read_by_results, 0, True),
        (watched_beside, 0, False),
        (read_beside, 0, True),
        (shown, 0, False),
        (scattered, 0, True),
        (sums_added_between, 0, False),
        (sums_stored_between, 0, True),
        (sums_stored_before, 0, False),
        (others_stored_between, 0, False),
        (others_stored_behind, 0, True),
        (others_stored_in_the_loop, 0, False),
        (summed, 0, True),
        (overwritten_before, 0, False),
        (added, 0, True),
        (stored_both_ways, 0, False),
        (stored_twice, 0, True),
        (rows_stored_twice, 0, False),
        (updated_where_positive, 0, False),
        (updated, 0, True),
        (updated_turned, 0, False),
        (updated_by_sums, 0, False),
        (rows_updated, 0, False),
        (multiplied_again, 0, True),
        (multiplied_again, 1, False),
        (multiplied_by_itself, 0, False),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_what_is_cut_along_an_axis_of_a_dot(kernel, axis, is_cut):
    d = h2 if kernel is multiplied_again else f2
    module = traced(kernel, h2, h2, f2, d, f1)
    through(module, "simplify")
    dot = next(op for op in module.walk() if isinstance(op, tile.Dot))
    if is_cut:
        assert dot in Cut.of_result(dot, axis, ()).frames
    else:
        with pytest.raises(NotCut):
            Cut.of_result(dot, axis, ())


def test_a_cut_back_goes_through_no_loop():
    module = traced(carried, h2, h2, f2, f2, f1)
    store = next(op for op in module.walk() if isinstance(op, tile.Store))
    with pytest.raises(NotCut):
        Cut.of_needs([(store.value, 0)])


def sorted_(x, o, N: tkc.constexpr):
    tkc.store(o, (0,), tkc.sort(tkc.load(x, (0,), (N,)), axis=0))


@pytest.mark.parametrize(
    "dtype, n, is_cut",
    [(tkc.float32, 8192, True), (tkc.float32, 512, False), (tkc.bool_, 8192, False)],
    ids=str,
)
def test_which_long_sorts_are_merged(dtype, n, is_cut):
    """Places of a bool are counted, however many there are; a warp sorts short rows."""
    module = traced(sorted_, array(dtype), array(dtype), N=n)
    (sort,) = (op for op in module.walk() if isinstance(op, tile.Sort))
    assert cut_sort(sort, 1 << 17) == is_cut
