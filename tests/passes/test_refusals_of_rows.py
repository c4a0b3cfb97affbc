"""What the passes of rows refuse: which loops over parts may stand where, and which loads move into
one. Each is asked directly, beside the nearest thing that it takes.
"""

import pytest

import tkc
from tests.language.kernels import array, traced
from tests.language.kernels import i32 as number
from tests.passes.kernels import aligned, context, through
from tkc.ir import tile
from tkc.ir.plan import LoadPlan
from tkc.ir.ranges import Ranges
from tkc.ir.values import operations_in
from tkc.passes import fit_rows, simplify
from tkc.passes.cuts.axes import NotCut
from tkc.passes.plan import kernel_of
from tkc.passes.planning import streaming
from tkc.passes.planning.streaming import Shares

f1, f2, n1 = array(tkc.float32), aligned(tkc.float32, 2), array(tkc.int32)


# ---- loops over parts of rows
def two_sums(x, y, o, flags, BETWEEN: tkc.constexpr):
    """The second sum is of what stands between it and the first."""
    one = tkc.sum(tkc.load(x, (0, 0), (1, 4096)), axis=1)
    scale = BETWEEN(y, o, flags)
    tkc.store(o, (0,), one + tkc.sum(tkc.load(y, (0, 0), (1, 4096)) * scale, axis=1))


def counted(y, o, flags):
    return tkc.atomic_add(flags.ptr, 1, sem="relaxed").to(tkc.float32)


def filled(array):
    tkc.store(array, (0, 0), tkc.zeros((1, 4096)))
    return 2


@pytest.mark.parametrize(
    "between, may",
    [
        (lambda y, o, flags: tkc.program_id(0).to(tkc.float32), True),
        (counted, False),  # an effect
        (lambda y, o, flags: tkc.max(tkc.load(y, (1, 0), (1, 64)), axis=1)[:, None], False),
        (lambda y, o, flags: filled(y), False),  # which the second sum must see
    ],
)
def test_sums_share_a_loop_where_what_they_need_may_come_before_both(between, may):
    module = traced(two_sums, f2, f2, f1, n1, BETWEEN=between)
    one, *_, two = (op for op in operations_in(module, tile.Reduce))
    assert fit_rows.Phase({one: 1, two: 1}, one).may_stand((), []) == may


def of_sums(x, y, o, OF: tkc.constexpr):
    one = tkc.sum(tkc.load(x, (0, 0), (64, 64)), axis=1)
    two = tkc.sum(OF(one, tkc.load(y, (0,), (64,))), axis=0)
    tkc.store(o, (0,), one + two)


@pytest.mark.parametrize("of, may", [(lambda a, b: b, True), (lambda a, b: a + b, False)])
def test_sums_in_a_loop_are_no_parts_of_a_later_one(of, may):
    one, two = operations_in(traced(of_sums, f2, f1, f1, OF=of), tile.Reduce)
    if may:
        assert fit_rows._phases({one: 1, two: 0}, 64, ())
        return
    with pytest.raises(NotCut):
        fit_rows._phases({one: 1, two: 0}, 64, ())


CRAMPED = dict(num_warps=1, maxnreg=64)


def written_between(x, o, ADDED: tkc.constexpr):
    v = tkc.load(x, (0, 0), (512, 64))
    if ADDED:
        tkc.atomic_add(x.ptr + tkc.arange(4), tkc.full((4,), 1.0), sem="relaxed")
    tkc.store(o, (0, 0), v * 2)


@pytest.mark.parametrize("added", [False, True])
def test_rows_are_read_in_parts_where_nothing_is_added_to_them_meanwhile(added):
    module = traced(written_between, f2, f2, ADDED=added)
    assert fit_rows._cut_across(kernel_of(module), "", context(**CRAMPED)) != added


# ---- what a loop does not change
def kept(x, o, flags, n, KEPT: tkc.constexpr):
    v = KEPT(tkc.load(x, (0,), (4096,)), flags)
    for i in tkc.range(n):
        tkc.store(o, (i, 0), v[None, :])


def claimed(v, flags):
    return tkc.atomic_add(flags.ptr + tkc.arange(4096), v, sem="relaxed")


@pytest.mark.parametrize("made, moves", [(lambda v, flags: v * 2, True), (claimed, False)])
def test_what_has_effects_is_not_done_in_each_iteration(made, moves):
    module = traced(kept, f1, f2, f1, 4, KEPT=made)
    assert fit_rows._load_in_loops(kernel_of(module), ()) == moves


def read_in_turn(x, w, o, n, N: tkc.constexpr):
    """Registers hold one row beside weights alone, or what is read in parts."""
    scale = tkc.load(w, (0,), (N,))[None, :]
    for i in tkc.range(n):
        tkc.store(o, (i, 0), tkc.load(x, (i, 0), (1, N)) * scale)


def test_a_row_that_is_read_in_its_loop_leaves_room():
    at = context(**CRAMPED)
    through(traced(read_in_turn, f2, f1, f2, 4, N=1536), "fit-rows", at)
    said = [line for line in at.decisions if line.startswith("fit-rows")]
    assert len(said) == 1 and "read in it, not held" in said[0]


# ---- blocks of rows
def sizes(words: int = 1 << 14, moved: int = 1 << 14, looped: bool = False) -> streaming._Sizes:
    return streaming._Sizes(words, 1 << 14, moved, 3, looped, 72, 32)


@pytest.mark.parametrize("moved, few", [(1 << 9, (1, 2)), (1 << 10, (2,)), (1 << 11, ())])
def test_few_warps_where_more_would_move_less_than_a_vector(moved, few):
    assert sizes(64, moved).warp_counts == (*few, *streaming.WARP_COUNTS)


@pytest.mark.parametrize(
    "target, looped, fit, options, may",
    [
        ("sm_90a", False, None, {}, True),
        ("sm_90a", False, 32, {}, True),
        ("sm_90a", False, 16, {}, False),
        ("sm_90a", True, None, {}, False),
        ("sm_80", False, None, {}, False),
        ("sm_90a", False, None, {"num_warps": 8}, False),
        ("sm_90a", False, None, {"num_ctas": 2}, False),
        ("sm_90a", False, None, {"persistent": True}, False),
        ("sm_90a", False, 16, {"row_parts": 2}, True),
        ("sm_90a", False, 16, {"row_parts": 1}, False),
        ("sm_90a", True, 16, {"row_parts": 2}, False),
        ("sm_80", False, 16, {"row_parts": 2}, False),
    ],
)
def test_which_rows_may_stay_in_shared_memory(target, looped, fit, options, may):
    assert bool(streaming._may_hold(sizes(looped=looped), fit, context(target, **options))) == may


def softmax(x, o, N: tkc.constexpr):
    i = tkc.program_id(0)
    v = tkc.load(x, (i, 0), (1, N))
    e = tkc.exp(v - tkc.max(v, axis=1)[:, None])
    tkc.store(o, (i, 0), e / tkc.sum(e, axis=1)[:, None])


@pytest.mark.parametrize("fit, stay", [(32, True), (16, False)])
def test_rows_stay_where_registers_hold_them_in_blocks_that_fill_a_multiprocessor(fit, stay):
    module, at = traced(softmax, f2, f2, N=16384), context("sm_90a")
    loads = [(op, LoadPlan(vector=16)) for op in operations_in(module, tile.Load)]
    held = streaming._holding(kernel_of(module), loads, sizes(), fit, at)
    assert (held is not None) == stay


@pytest.mark.parametrize("columns, streams", [(1 << 14, True), (9 << 10, False)])
def test_programs_stream_where_all_threads_have_as_many_vectors(columns, streams):
    module = traced(softmax, f2, f2, N=columns)
    loads = [(op, LoadPlan(vector=16)) for op in operations_in(module, tile.Load)]
    given = kernel_of(module), loads, sizes(), columns, 1
    assert bool(streaming._streamed_bytes(*given)) == streams


def read(x, rows, o, ROWS: tkc.constexpr, OTHER: tkc.constexpr, LISTED: tkc.constexpr):
    at = tkc.load(rows, (0,), (ROWS,)) if LISTED else 0
    other = OTHER if OTHER is not None else tkc.load(rows, (0,), (1,)).to(tkc.float32)[:, None]
    tkc.store(o, (0, 0), tkc.load(x, (at, 0), (ROWS, 64), other=other))


@pytest.mark.parametrize(
    "rows, other, listed, copied",
    [(8, 0, False, True), (4, 0, False, False), (8, None, False, False), (8, 0, True, False)],
)
def test_which_tiles_threads_copy(rows, other, listed, copied):
    module = traced(read, f2, n1, f2, ROWS=rows, OTHER=other, LISTED=listed)
    load = next(op for op in operations_in(module, tile.Load) if len(op.offsets) == 2)
    assert streaming.copied_by_threads(load, LoadPlan(vector=16), 128) == copied


def test_nothing_is_no_program_s_own():
    assert not Shares((), (), frozenset(), 1).are_own


def in_turn(x, y, o, words, WHERE: tkc.constexpr, FROM: tkc.constexpr):
    i = tkc.program_id(0)
    while tkc.load(words.ptr + i, sem="relaxed") == 0:
        pass
    tkc.store(o, (i, 0), tkc.load(FROM(x, o), (WHERE(i), 0), (1, 64)))


@pytest.mark.parametrize(
    "where, array_of, ahead",
    [
        (lambda i: i, lambda x, o: x, True),
        (lambda i: 0, lambda x, o: x, False),  # which all programs read
        (lambda i: i, lambda x, o: o, False),
    ],
)
def test_programs_that_wait_and_read_ahead_follow_each_other(where, array_of, ahead):
    module = traced(in_turn, f2, f2, f2, n1, WHERE=where, FROM=array_of)
    at = context("sm_90a")
    assert streaming.persistent(kernel_of(module), False, at, [].append) == ahead


def turned(x, o, SHAPE: tkc.constexpr):
    zeros = (0,) * len(SHAPE)
    tkc.store(o, zeros, tkc.load(x, zeros, SHAPE).permute(*range(len(SHAPE) - 2), -1, -2))


@pytest.mark.parametrize(
    "shape, whole", [((64, 256), True), ((1, 64, 256), False), ((256, 256), False)]
)
def test_which_turned_tiles_are_written_in_whole_rows(shape, whole):
    """Matrices, of which shared memory holds two blocks' tiles."""
    given = aligned(tkc.float32, len(shape))
    module, at = traced(turned, given, given, SHAPE=shape), context("sm_90a")
    loads = [LoadPlan(vector=16)]
    kernel = kernel_of(module)
    assert streaming.stores_whole_rows(kernel, loads, 4, Ranges(), at, [].append) == whole


def reshaped(x, o, OLD: tkc.constexpr, NEW: tkc.constexpr):
    zeros = (0,) * len(OLD)
    tkc.store(o, zeros, tkc.load(x, zeros, OLD).reshape(*NEW).reshape(*OLD))


@pytest.mark.parametrize(
    "old, new, divides",
    [
        ((4, 1024), (1, 4, 1024), True),
        ((4, 1024), (4096,), False),
        ((3, 1024, 5), (5, 1024, 3), False),  # every thread would hold everything
    ],
)
def test_which_reshapes_are_of_parts_of_rows(old, new, divides):
    given = aligned(tkc.float32, len(old))
    op = operations_in(traced(reshaped, given, given, OLD=old, NEW=new), tile.Reshape)[0]
    assert streaming._divides(op, 1024) == divides


# ---- what orders the blocks of a cluster
def stored_behind(x, o, n, FIRST: tkc.constexpr, TRIPS: tkc.constexpr, SUM: tkc.constexpr):
    """A sum in a loop, behind or before a load."""
    total = tkc.zeros((1,))
    v = tkc.load(x, (0, 0), (1, 4096)) if FIRST else 0
    for i in tkc.range(0, n if TRIPS is None else TRIPS):
        w = tkc.load(o, (i, 0), (1, 4096))
        total = total + (tkc.sum(w, axis=1) if SUM else tkc.sum(w[:, :512], axis=1))
    v = v if FIRST else tkc.load(x, (0, 0), (1, 4096))
    tkc.store(x, (0, 0), v * total[:, None])


@pytest.mark.parametrize(
    "first, trips, summed, meets",
    [
        (True, 4, True, True),
        (False, 4, True, False),
        (True, 0, True, False),
        (True, None, True, False),
        (True, 4, False, False),
    ],
)
def test_blocks_meet_in_a_loop_that_runs_behind_a_load(first, trips, summed, meets):
    module = traced(stored_behind, f2, f2, number(), FIRST=first, TRIPS=trips, SUM=summed)
    (store,) = operations_in(module, tile.Store)
    load = next(op for op in operations_in(module, tile.Load) if op.parent is store.parent)
    assert streaming._meets_between(load, store) == meets


def summed_first(x, o, FIRST: tkc.constexpr):
    total = tkc.sum(tkc.load(o, (0, 0), (1, 4096)), axis=1) if FIRST else 0
    v = tkc.load(x, (0, 0), (1, 4096))
    total = total if FIRST else tkc.sum(tkc.load(o, (0, 0), (1, 4096)), axis=1)
    tkc.store(x, (0, 0), v * total[:, None])


@pytest.mark.parametrize("first", [False, True])
def test_blocks_meet_in_a_sum_behind_a_load(first):
    module = traced(summed_first, f2, f2, FIRST=first)
    (store,) = operations_in(module, tile.Store)
    load = next(op for op in operations_in(module, tile.Load) if op.array is store.array)
    assert streaming._meets_between(load, store) != first


def rows_in_turn(x, o, few, n, TURN: tkc.constexpr, TRIPS: tkc.constexpr):
    """Rows in a loop, and what it reads and writes of their array."""
    row = tkc.program_id(0)
    for i in tkc.range(0, TRIPS):
        v = TURN(x, o, few, row, i, n)
        tkc.store(o, (row, n), v * tkc.sum(v, axis=1)[:, None])


def long_rows(x, place):
    return tkc.load(x, place, (1, 4096))


def read_at(place):
    return lambda x, o, few, row, i, n: long_rows(o, place(row, i, n))


def written_at(place):
    def turn(x, o, few, row, i, n):
        tkc.store(o, place(row, i, n), v := long_rows(x, (row, 0)))
        return v

    return turn


def read_where_all_is_written(step):
    """Of columns that move with the loop."""

    def turn(x, o, few, row, i, n):
        v = long_rows(x, (row, i * step))
        tkc.store(x, (row, i * step), v + 1)
        return v

    return turn


def read_where_it_is_written(x, o, few, row, i, n):
    tkc.store(o, (row, n), v := long_rows(x, (row, 0)))
    return v + tkc.load(o, (row, n), (1, 16))[:, :1]


def counted_in_memory(of_rows):
    def turn(x, o, few, row, i, n):
        v, count = long_rows(x, (row, 0)), tkc.load(few, (row,), (1,))
        tkc.store(few, (row,), count + (tkc.sum(v, axis=1) if of_rows else 1))
        return v * count[:, None]

    return turn


def written_twice(x, o, few, row, i, n):
    tkc.store(few, (row,), tkc.zeros((1,)))
    tkc.store(few, (row,), tkc.sum(v := long_rows(x, (row, 0)), axis=1))
    return v


@pytest.mark.parametrize(
    "turn, trips, split",
    [
        (read_at(lambda row, i, n: (row, n)), 3, True),
        (read_at(lambda row, i, n: (row + i, n)), 3, True),  # other rows of the same columns
        (read_at(lambda row, i, n: (row, n + 16)), 1, True),  # all have read before any writes
        (read_at(lambda row, i, n: (row, n + 16)), 3, False),
        (read_at(lambda row, i, n: (row, n + i)), 3, False),
        (written_at(lambda row, i, n: (row, n)), 3, True),
        (written_at(lambda row, i, n: (row, n + i)), 3, False),
        (read_where_all_is_written(4096), 3, True),
        (read_where_all_is_written(16), 3, False),
        (read_where_it_is_written, 1, False),  # by all blocks, of what one writes
        (counted_in_memory(True), 1, True),
        (counted_in_memory(True), 3, False),
        (counted_in_memory(False), 1, False),
        (written_twice, 3, True),
    ],
)
def test_blocks_share_rows_whose_columns_are_their_own(turn, trips, split):
    module = traced(rows_in_turn, f2, f2, f1, number(), TURN=turn, TRIPS=trips)
    simplify.run(module, context("sm_90a"))
    assert (streaming.row_of(kernel_of(module), ()) == 4096) == split


def test_blocks_do_not_share_rows_of_which_elements_are_one():
    turn = read_at(lambda row, i, n: (row, n))
    module = traced(rows_in_turn, f2, f2, f1, number(), TURN=turn, TRIPS=1)
    simplify.run(module, context("sm_90a"))
    assert not streaming.row_of(kernel_of(module), ((1, 1),))
