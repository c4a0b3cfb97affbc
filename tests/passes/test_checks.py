"""What single checks of passes are for: each program is one that such a check refuses to change.

The names of the checks stand in docs/reliability.md, under the mutants of the compiler.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc

BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")


def whole(*shape, dtype=BF16, seed=0):
    """Small whole numbers, of which sums are exact."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32)


@tkc.jit
def read_between(a, b, c, d, N: tkc.constexpr):
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))
    stored = tkc.load(c, (0, 0), (N, N)).to(tkc.float32)
    tkc.store(d, (0, 0), (total + stored).to(d.dtype))


@pytest.mark.parametrize("n", [64, 128])
def test_parts_of_two_results_do_not_pass_a_load_between_them(n):
    a, b, c, d = whole(n, 128), whole(128, n, seed=1), whole(n, n, seed=2), whole(n, n)
    a[np.abs(a) > 1] = 0
    read_between[1](a, b, c, d, n)
    want = product(a, b).astype(BF16)
    assert (c == want).all()
    assert (d == (product(a, b) + want.astype(np.float32)).astype(BF16)).all()


@tkc.jit
def written_over(a, b, c, d, N: tkc.constexpr, FIRST: tkc.constexpr):
    """Pointers write to c between the stores of two results; before the store of c, or behind."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    diagonal = c.ptr + tkc.arange(N) * (N + 1)
    if FIRST:
        tkc.store(diagonal, tkc.full((N,), 77, c.dtype))
    tkc.store(c, (0, 0), total.to(c.dtype))
    if not FIRST:
        tkc.store(diagonal, tkc.full((N,), 77, c.dtype))
    tkc.store(d, (0, 0), (total * 2).to(d.dtype))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("n", [64, 128])
def test_results_do_not_pass_stores_by_pointers(n, first):
    a, b, c, d = whole(n, 128), whole(128, n, seed=1), whole(n, n, seed=2), whole(n, n)
    written_over[1](a, b, c, d, n, first)
    want = product(a, b).astype(BF16)
    if not first:
        want[range(n), range(n)] = 77
    assert (c == want).all()
    assert (d == (2 * product(a, b)).astype(BF16)).all()


@tkc.jit
def added_between(a, b, c, d, N: tkc.constexpr):
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))
    tkc.atomic_add(c, (0, 0), tkc.full((N, N), 1, c.dtype))
    tkc.store(d, (0, 0), (total * 2).to(d.dtype))


@pytest.mark.parametrize("n", [64, 128])
def test_results_do_not_pass_atomics(n):
    a, b, c, d = whole(n, 128), whole(128, n, seed=1), whole(n, n, seed=2), whole(n, n)
    a[np.abs(a) > 1] = 0
    added_between[1](a, b, c, d, n)
    want = product(a, b).astype(BF16)
    assert (c == (want.astype(np.float32) + 1).astype(BF16)).all()
    assert (d == (2 * product(a, b)).astype(BF16)).all()


@tkc.jit
def some_rows(a, b, c, N: tkc.constexpr, ROWS: tkc.constexpr):
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total[:ROWS].to(c.dtype))


@pytest.mark.parametrize(("n", "rows"), [(64, 32), (64, 16), (128, 64), (128, 32)])
def test_a_few_rows_of_an_accumulator_are_stored(n, rows):
    a, b, c = whole(n, 128), whole(128, n, seed=1), whole(rows, n)
    some_rows[1](a, b, c, n, rows)
    assert (c == product(a, b)[:rows].astype(BF16)).all()


@tkc.jit
def padded_with_ones(a, b, c, N: tkc.constexpr):
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        left = tkc.load(a, (0, k), (N, 64), other=1)
        total = tkc.dot(left, tkc.load(b, (0, k), (N, 64), other=1).T, total)
    tkc.store(c, (0, 0), total)


def test_what_is_read_outside_of_an_array_is_not_zero_where_it_is_said():
    n, k = 64, 104
    a, b, c = whole(n, k), whole(n, k, seed=1), np.zeros((n, n), np.float32)
    padded_with_ones[1](a, b, c, n)
    assert (c == product(a, b.T) + (128 - k)).all()


@tkc.jit
def claimed(counter, a, b, c, N: tkc.constexpr):
    row = tkc.atomic_add(counter.ptr, 1)
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        left = tkc.load(a, (row * N, k), (N, 64))
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (row * N, 0), total.to(c.dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_from_a_counter(dtype):
    n = 64
    a, b, c = whole(3 * n, 64), whole(64, n, seed=1), whole(3 * n, n)
    counter = np.zeros(1, dtype)
    claimed[3](counter, a, b, c, n)
    assert counter[0] == 3
    assert (c == product(a, b).astype(BF16)).all()


@tkc.jit
def claimed_and_held(counter, a, b, c, N: tkc.constexpr):
    """The rows are loaded once: their stage is always the same."""
    row, total = tkc.atomic_add(counter.ptr, 1), tkc.zeros((N, N))
    rows = tkc.load(a, (row * N, 0), (N, 64))
    for k in tkc.range(0, b.shape[0], 64):
        total = tkc.dot(rows, tkc.load(b, (k, 0), (64, N)), total)
    if row > 1:
        total = tkc.dot(rows, tkc.load(b, (0, 0), (64, N)), total)
    tkc.store(c, (row * N, 0), total)


@pytest.mark.parametrize("n", [64, 128])
def test_rows_from_a_counter_that_are_held(n):
    counter = np.zeros(1, np.int32)
    a, b, c = whole(3 * n, 64), whole(128, n, seed=1), np.zeros((3 * n, n), np.float32)
    claimed_and_held[3](counter, a, b, c, n)
    want = product(a, b[:64]) + product(a, b[64:])
    want[2 * n :] += product(a[2 * n :], b[:64])
    assert (c == want).all()


@tkc.jit
def claimed_of_several_lengths(counter, a, b, c, N: tkc.constexpr):
    """A program takes a number, and walks over as many steps as its own says."""
    p, total = tkc.program_id(0), tkc.zeros((N, N))
    row = p + tkc.minimum(tkc.atomic_add(counter.ptr, 1), 0)
    rows = tkc.load(a, (row * N, 0), (N, 64))
    for k in tkc.range(0, p * 64 + 64, 64):
        few = tkc.minimum(tkc.dot(rows, tkc.load(b, (k, 0), (64, N))), 4).to(a.dtype)
        total = tkc.dot(few, tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (row * N, 0), total)


@pytest.mark.parametrize("options", [{}, {"roles": "co_resident"}], ids=str)
def test_programs_that_take_work_run_beside_no_others(options):
    n, counter = 64, np.zeros(1, np.int32)
    a, b, c = whole(3 * n, 64), whole(192, n, seed=1), np.zeros((3 * n, n), np.float32)
    claimed_of_several_lengths[3](counter, a, b, c, n, **options)
    want = np.zeros_like(c)
    for p in range(3):
        for k in range(0, p * 64 + 64, 64):
            few = np.minimum(product(a[p * n :][:n], b[k : k + 64]), 4)
            want[p * n :][:n] += product(few, b[k : k + 64])
    assert (c == want).all()


@tkc.jit
def claimed_there(counter, a, b, c, SIZE: tkc.constexpr, N: tkc.constexpr):
    """Which counter it is, is computed of a tile."""
    row = tkc.atomic_add(counter.ptr + tkc.max(tkc.arange(SIZE) // SIZE, axis=0), 1)
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        left = tkc.load(a, (row * N, k), (N, 64))
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (row * N, 0), total.to(c.dtype))


@pytest.mark.parametrize("size", [8, 64])
def test_roles_take_no_number_from_a_counter_that_each_would_look_for(size):
    n, counter = 64, np.zeros(1, np.int32)
    a, b, c = whole(3 * n, 64), whole(64, n, seed=1), whole(3 * n, n)
    claimed_there[3](counter, a, b, c, size, n)
    assert counter[0] == 3
    assert (c == product(a, b).astype(BF16)).all()


@tkc.jit
def halved(a, b, c, N: tkc.constexpr):
    """What is summed is halved in every step."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total) / 2
    tkc.store(c, (0, 0), total)


@pytest.mark.parametrize("options", [{}, {"split_k": 2}, {"stream_k": 2}], ids=str)
def test_steps_that_do_more_than_add_are_not_shared(options):
    n, steps, want = 64, 4, 0
    a, b, c = whole(n, 64 * steps), whole(64 * steps, n, seed=1), np.zeros((n, n), np.float32)
    halved[1](a, b, c, n, **options)
    for k in range(0, 64 * steps, 64):
        want = (want + product(a[:, k : k + 64], b[k : k + 64])) / 2
    assert (c == want).all()


@tkc.jit
def claimed_in_turn(counter, a, b, c, tiles, N: tkc.constexpr, FIRST: tkc.constexpr):
    """Programs take blocks of rows from a counter until there are none."""
    row = (tkc.atomic_add(counter.ptr, 1) - FIRST).to(tkc.int32)
    while row < tiles:
        total = tkc.zeros((N, N))
        for k in tkc.range(0, a.shape[1], 64):
            left = tkc.load(a, (row * N, k), (N, 64))
            total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
        tkc.store(c, (row * N, 0), total.to(c.dtype))
        row = (tkc.atomic_add(counter.ptr, 1) - FIRST).to(tkc.int32)


@pytest.mark.parametrize("dtype, first", [(np.int32, 5), (np.int64, 5), (np.int64, 1 << 40)])
def test_rows_from_a_counter_until_there_are_none(dtype, first):
    """A producer hands on what it takes as 32 bits."""
    n, tiles = 64, 5
    a, b, c = whole(tiles * n, 64), whole(64, n, seed=1), whole(tiles * n, n)
    counter = np.full(1, first, dtype)
    claimed_in_turn[2](counter, a, b, c, tiles, n, first)
    assert counter[0] == first + tiles + 2
    assert (c == product(a, b).astype(BF16)).all()


@tkc.jit
def added_first(x, y, b, c, N: tkc.constexpr):
    """A program adds to what its loop reads."""
    tkc.atomic_add(x, (0, 0), tkc.load(y, (0, 0), (N, N)))
    total = tkc.zeros((N, N))
    for k in tkc.range(0, x.shape[1], 64):
        total = tkc.dot(tkc.load(x, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))


@pytest.mark.parametrize("n", [64, 128])
def test_copies_do_not_pass_what_a_program_adds(n):
    x, y, b, c = whole(n, 256), whole(n, n, seed=3), whole(256, n, seed=1), whole(n, n)
    want = x.copy()
    want[:, :n] += y
    added_first[1](x, y, b, c, n)
    assert (c == product(want, b).astype(BF16)).all()


@tkc.jit
def added_by_all(a, b, c, N: tkc.constexpr):
    """Every program of axis 0 adds its product to the same block."""
    m = tkc.program_id(0) * N
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (m, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.atomic_add(c, (0, 0), total + 1)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_a_padding_tile_adds_nothing(cluster):
    n, programs = 64, 3
    a, b = whole(programs * n, 64), whole(64, n, seed=1)
    c = np.zeros((n, n), np.float32)
    added_by_all[programs](a, b, c, n, cluster=cluster)
    assert (c == product(a, b).reshape(programs, n, n).sum(0) + programs).all()


@tkc.jit
def far_bound(x, o, n, BLOCK: tkc.constexpr):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    tkc.store(o.ptr + i, tkc.load(x.ptr + i, mask=i < n, other=7), mask=i < n)


@pytest.mark.parametrize("n", [(1 << 31) + 5, 1 << 40, (1 << 31) - 1, 70])
def test_a_bound_of_64_bits_is_compared_as_one_of_32_where_it_fits(n):
    """Indices end where 32 bits do: no number of 32 bits is beyond all of them."""
    x, o = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    far_bound[2](x, o, np.int64(n), BLOCK=64)
    assert (o == np.where(x < n, x, 0)).all()


@tkc.jit(pointers=True)
def looked_up(x, b, o, ROWS: tkc.constexpr, BACK: tkc.constexpr):
    """A product of rows at quotients: of a difference, or of a product."""
    number, i, j = tkc.program_id(0) + 1, tkc.arange(ROWS), tkc.arange(32)
    rows = (number * ROWS - i) // 8 if BACK else (number * 16 * i) // 16
    values = tkc.load(x + rows[:, None] * 32 + j[None, :])
    total = tkc.dot(values, tkc.load(b + j[:, None] * 32 + j[None, :]))
    places = (number - 1) * ROWS + i
    tkc.store(o + places[:, None] * 32 + j[None, :], total)


@pytest.mark.parametrize("back", [False, True])
def test_quotients_of_differences_and_products_are_not_split_as_those_of_sums(back):
    x, b, o = whole(64, 32), whole(32, 32, seed=1), np.zeros((64, 32), np.float32)
    looked_up[2](x, b, o, ROWS=32, BACK=back)
    number, i = np.arange(64) // 32 + 1, np.arange(64) % 32
    rows = (number * 32 - i) // 8 if back else number * i
    assert (o == product(x[rows], b)).all()


@tkc.jit
def chosen_rows(which, a, b, c, N: tkc.constexpr):
    """Products of the programs that a table names, of others nothing."""
    m = tkc.program_id(0)
    if tkc.load(which, (m,), (None,)) > 0:
        total = tkc.zeros((N, N))
        for k in tkc.range(0, a.shape[1], 64):
            left = tkc.load(a, (m * N, k), (N, 64))
            total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
        tkc.store(c, (m * N, 0), total.to(c.dtype))


@pytest.mark.parametrize("options", [{}, {"persistent": True}, {"num_warps": 4}], ids=str)
def test_programs_that_may_skip_their_loop(options):
    n, programs = 64, 5
    a, b, c = whole(programs * n, 128), whole(128, n, seed=1), np.zeros((programs * n, n), BF16)
    which = np.array([0, 1, 0, 0, 1], np.int32)
    chosen_rows[programs](which, a, b, c, n, **options)
    rows = np.repeat(which, n)[:, None]
    assert (c == (product(a, b) * rows).astype(BF16)).all()


def test_two_programs_in_turn_are_refused_where_one_may_skip_its_loop():
    arrays = "i32[5]", "bf16[320, 128]", "bf16[128, 64]", "bf16[320, 64]"
    for options in ({"roles": "pingpong"}, {"programs": 2}):
        compiled = chosen_rows.compile(*arrays, N=64, target="sm_90a", **options)
        why = "the number of steps differs between programs"
        assert any(why in decision for decision in compiled.decisions), compiled.decisions


@tkc.jit
def added_to_itself(x, y, c, N: tkc.constexpr):
    """A block is the sum that a dot adds to, and its left operand."""
    block = tkc.load(x, (0, 0), (N, N))
    c_block = tkc.dot(block, tkc.load(y, (0, 0), (N, N)).T, block, precision="tf32")
    tkc.store(c, (0, 0), c_block)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_block_is_an_operand_and_the_sum(target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    x, y = whole(64, 64, dtype=np.float32), whole(64, 64, dtype=np.float32, seed=1)
    c = np.zeros((64, 64), np.float32)
    added_to_itself[1](x, y, c, N=64)
    assert (c == x + x @ y.T).all()


@tkc.jit
def counted(a, b, c, d, N: tkc.constexpr):
    """Results of 16 bits, and sums of 32, that are whole numbers."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))
    tkc.atomic_add(d, (0, 0), total.to(d.dtype))


@pytest.mark.parametrize("n", [64, 128])
def test_results_that_are_whole_numbers(n):
    a, b = whole(n, 128), whole(128, n, seed=1)
    c, d = np.zeros((n, n), np.int16), np.full((n, n), 1000, np.int32)
    counted[1](a, b, c, d, n)
    assert (c == product(a, b)).all() and (d == 1000 + product(a, b)).all()


@tkc.jit
def handed_on(x, BLOCK: tkc.constexpr):
    """Every block is the one before it, plus 1: through memory."""
    for i in tkc.range(0, x.shape[0] - BLOCK, BLOCK):
        tkc.store(x, (i + BLOCK,), tkc.load(x, (i,), (BLOCK,)) + 1)


@pytest.mark.parametrize("prefetch", [None, True])
def test_a_block_is_not_fetched_ahead_of_the_store_that_makes_it(prefetch):
    block, blocks = 1024, 4
    x = np.zeros((blocks, block), np.float32)
    x[0] = np.arange(block)
    handed_on[1](x.reshape(-1), BLOCK=block, prefetch=prefetch)
    assert (x == np.arange(block) + np.arange(blocks)[:, None]).all()
