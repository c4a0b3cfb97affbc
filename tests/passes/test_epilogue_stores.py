"""epilogue_stores: what of a result each warpgroup stores itself, which accesses are of another way
through a branch, how long a buffer is in use, and what copies wait for that write to one place.
"""

import re

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import Block, Region

import tkc
from tkc.ir import tile
from tkc.ir.layout import blocked
from tkc.passes.analysis.alias import is_alternative
from tkc.passes.warpgroups.epilogue_stores import Part, own_part


@pytest.mark.parametrize(
    "shape, warps, part",
    [
        ((128, 64), 8, Part(0, 64)),
        ((32, 64), 8, Part(0, 16)),
        ((16, 64), 8, Part(0, 8)),
        ((8, 64), 8, None),  # four rows each: a swizzle has eight
        ((128, 64), 4, None),  # one warpgroup has it all
        ((128, 64), 2, None),
    ],
)
def test_a_part_is_whole_swizzles_of_several_warpgroups(shape, warps, part):
    layout = blocked(shape, 64 * shape[0] // (32 * warps), warps, (1, 0))
    assert own_part(layout) == part


def test_a_way_through_a_branch_is_no_alternative_to_itself():
    one, two, other, end = (tile.Constant(n, i32) for n in range(4))
    loop = scf.ForOp(one, two, one, [], Region(Block([end, scf.YieldOp()], arg_types=[i32])))
    yes, no = Block([one, two, loop, scf.YieldOp()]), Block([other, scf.YieldOp()])
    scf.IfOp(tile.Constant(1, i1), [], Region(yes), Region(no))
    assert is_alternative(one, other) and is_alternative(end, other) and is_alternative(other, end)
    assert not is_alternative(one, two) and not is_alternative(one, end)


@tkc.jit
def two_results(a, b, c, odd, N: tkc.constexpr):
    """One leaves by copies, the other by threads: its rows are no multiples of 16 bytes."""
    m, total = tkc.program_id(0) * 64, tkc.zeros((64, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (m, k), (64, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (m, 0), total.to(c.dtype))
    tkc.store(odd, (m, 0), total.to(c.dtype))


@pytest.mark.parametrize("n", [64, 96, 128])
def test_a_buffer_is_in_use_until_its_own_copy_has_read_it(n, monkeypatch):
    """Whatever leaves by threads between two of its copies is none."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((192, 128), (128, n)))
    c, odd = np.zeros((192, n), a.dtype), np.zeros((192, n + 1), a.dtype)[:, :n]
    two_results[3](a, b, c, odd, n)
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
    assert (c == want).all() and (odd == want).all()


@tkc.jit
def narrowed(a, b, c, M: tkc.constexpr, N: tkc.constexpr):
    """A product's results in 8 bits."""
    m, total = tkc.program_id(0) * M, tkc.zeros((M, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (m, k), (M, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (m, 0), total.to(c.dtype))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize("wider", [0, 16, 3])
@pytest.mark.parametrize("m, n", [(64, 32), (64, 128), (128, 64), (128, 96)])
def test_results_of_8_bits_are_stored_in_subtiles(m, n, wider, dtype, monkeypatch):
    """By tensor maps, or by threads where rows begin anywhere: a thread has two neighbours of an
    accumulator's row, too few for a store of its own.
    """
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    random = np.random.default_rng(n)
    low = 0 if dtype == "uint8" else -1
    a, b = (random.integers(low, 2, s).astype(np.float16) for s in ((m + 8, 64), (64, n)))
    if np.dtype(dtype).kind not in "iu":
        b = b * random.uniform(0.1, 2, n).astype(np.float16)
    whole = np.zeros((m + 8, n + wider), dtype)
    narrowed[2](a, b, whole[:, :n], m, n)
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(whole[:, :n].view(np.uint8), want.view(np.uint8))
    assert not whole[:, n:].view(np.uint8).any()
    decisions = narrowed.compile(a, b, whole[:, :n], m, n, target="sm_90a").decisions
    assert any("bytes for the output" in d for d in decisions), decisions


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_subtiles_of_8_bits_have_a_whole_swizzle(dtype):
    """However few columns there is room for."""
    a, b, c = np.zeros((128, 64), np.float16), np.zeros((64, 64), np.float16), np.zeros((128, 64))
    made = narrowed.compile(a, b, c.astype(dtype), 64, 64, target="sm_90a", store_columns=16)
    assert any("16 columns at a time" in d or "32 columns" in d for d in made.decisions)


def product_of(a, b, m, N):
    """Rows of a product from m on."""
    total = tkc.zeros((128, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (m, k), (128, 64)), tkc.load(b, (k, 0), (64, N)), total)
    return total


@tkc.jit
def again(a, b, c, steps, N: tkc.constexpr):
    """A loop stores one result after the other to one place."""
    m = tkc.program_id(0) * 128
    total = product_of(a, b, m, N)
    for i in tkc.range(0, steps):
        tkc.store(c, (m, 0), (total + i).to(c.dtype))


@tkc.jit
def over_one_another(a, b, c, steps, N: tkc.constexpr):
    """Each step stores over a part of what the one before has stored; branches, too."""
    m = tkc.program_id(0) * 128
    total = product_of(a, b, m, N)
    for i in tkc.range(0, steps):
        if i % 3 != 1:
            tkc.store(c, (m, 8 * i), (total + i).to(c.dtype))
        else:
            tkc.store(c, (m, 8), (total - i).to(c.dtype))


@tkc.jit
def read_in_a_branch(a, b, c, steps, N: tkc.constexpr):
    """What a step stores in a branch, a later one reads there."""
    m = tkc.program_id(0) * 128
    total = product_of(a, b, m, N)
    for i in tkc.range(0, steps):
        if i % 3 != 1:
            old = tkc.load(c, (m, 0), (128, N)).to(tkc.float32)
            tkc.store(c, (m, 0), tkc.minimum(total + old + i, 7).to(c.dtype))


@tkc.jit
def behind_threads(a, b, c, steps, N: tkc.constexpr):
    """Threads store where copies write then: no tensor map begins at column 1."""
    m = tkc.program_id(0) * 128
    total = product_of(a, b, m, N)
    tkc.store(c, (m, 0), (total * 2).to(c.dtype))
    tkc.store(c, (m, 1), (total * 0 + steps).to(c.dtype))
    tkc.store(c, (m, 0), total.to(c.dtype))


@tkc.jit
def of_two_arrays(a, b, c, steps, N: tkc.constexpr):
    """Of two results one is stored where its program has read at another place, so that warpgroups
    wait for one another, and the other one is not.
    """
    m = tkc.program_id(0) * 128
    some = tkc.load(c, (m + 16, 0), (16, 16)).to(tkc.float32)
    total = product_of(a, b, m, N) + tkc.sum(tkc.sum(some, axis=1), axis=0)
    tkc.store(c, (m, 0), total.to(c.dtype))
    tkc.store(a, (m, 0), (total * 2).to(a.dtype))


RESULTS = [
    (again, {}),
    (over_one_another, {}),
    (read_in_a_branch, dict(split_k=2)),
    (behind_threads, {}),
    *((of_two_arrays, dict(subtiles=n, store_columns=16)) for n in (1, 2)),
]


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("kernel, options", RESULTS, ids=lambda x: getattr(x, "__name__", None))
def test_copies_of_results_that_meet_are_in_order(kernel, options, warps, monkeypatch):
    random = np.random.default_rng(0)
    a, b = (random.integers(-1, 2, s).astype(ml_dtypes.bfloat16) for s in ((256, 128), (128, 64)))
    c = random.integers(-1, 2, (256, 256)).astype(a.dtype)
    want, got = ([x.copy() for x in (a, b, c)] for _ in range(2))
    kernel[2](*want, 4, 64)
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    kernel[2](*got, 4, 64, num_warps=warps, roles="cooperative", num_stages=2, **options)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


@tkc.jit
def of_windows(a, b, windows, out, WHAT: tkc.constexpr):
    """Columns behind those of a row are the next row's."""
    total = product_of(a, b, 0, 64)
    if WHAT == "read":
        old = tkc.load(windows, (0, 64), (128, 64))
        tkc.store(windows, (0, 0), (total + old.to(tkc.float32)).to(out.dtype))
        tkc.store(out, (0, 0), old)
    elif WHAT == "loop":
        for i in tkc.range(0, 3):
            tkc.store(windows, (0, 64 * i), (total + i).to(out.dtype))
    else:
        tkc.store(windows, (0, 0), total.to(out.dtype))
        tkc.store(windows, (0, 64), (total + 1).to(out.dtype))


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("what", ["stored", "read", "loop"])
def test_copies_to_windows_that_slide_are_in_order(what, warps, monkeypatch):
    random = np.random.default_rng(0)
    a, b = (random.integers(-1, 2, s).astype(ml_dtypes.bfloat16) for s in ((128, 128), (128, 64)))
    memory = random.integers(-1, 2, 127 * 64 + 192).astype(a.dtype)
    results = []
    for simulated in (False, True):
        if simulated:
            monkeypatch.setenv("TKC_SIM", "1")
            monkeypatch.setenv("TKC_TARGET", "sm_90a")
        mine, out = memory.copy(), np.zeros((128, 64), a.dtype)
        windows = np.lib.stride_tricks.as_strided(mine, (128, 192), (128, 2))
        of_windows[1](a, b, windows, out, what, num_warps=warps, roles="cooperative")
        results.append((mine, out))
    for want, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)


@tkc.jit
def side_by_side(a, b, c, steps, N: tkc.constexpr):
    m = tkc.program_id(0) * 128
    total = product_of(a, b, m, N)
    for i in tkc.range(0, steps):
        tkc.store(c, (m, i * N), (total + i).to(c.dtype))


@tkc.jit
def by_numbers(a, b, c, steps, N: tkc.constexpr):
    m = tkc.program_id(0) * 128
    total = product_of(a, b, m, N)
    for i in tkc.range(0, steps):
        tkc.store(c[i], (m, 0), (total + i).to(c.dtype))


@pytest.mark.parametrize(
    "kernel, c, waits",
    [
        (side_by_side, "bf16[256, 1024]", False),
        (by_numbers, "bf16[8, 256, 64]", False),
        (again, "bf16[256, 1024]", True),
    ],
    ids=lambda x: getattr(getattr(x, "fn", None), "__name__", None),
)
def test_steps_that_store_elsewhere_do_not_wait(kernel, c, waits):
    made = kernel.compile("bf16[256, 128]", "bf16[128, 64]", c, "i32", 64, target="sm_90a")
    text = made.ir("insert-synchronization")
    assert "tile.tma_store" in text
    assert bool(re.search(r"tile.bulk_wait 0( \{each|\n)", text)) == waits


@tkc.jit
def read_in_its_loop(a, b, c, steps, N: tkc.constexpr):
    """Of weights that are computed, which would rather be the left operand; each step stores what
    the sum has come to.
    """
    m, total = tkc.program_id(0) * 128, tkc.zeros((128, N))
    for k in tkc.range(0, steps * 64, 64):
        weights = tkc.load(b, (k, 0), (64, N)) * 2
        total = tkc.dot(tkc.load(a, (m, k), (128, 64)), weights, total)
        tkc.store(c, (m, k), total.to(c.dtype))


@pytest.mark.parametrize("swap", [None, True])
def test_a_dot_whose_sum_its_loop_reads_is_not_swapped(swap, monkeypatch):
    random = np.random.default_rng(0)
    a, b = (random.integers(-1, 2, s).astype(ml_dtypes.bfloat16) for s in ((256, 128), (128, 64)))
    want, got = (np.zeros((256, 128), a.dtype) for _ in range(2))
    read_in_its_loop[2](a, b, want, 2, 64)
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    read_in_its_loop[2](a, b, got, 2, 64, swap_dots=swap)
    np.testing.assert_array_equal(got, want)


@tkc.jit
def of_taken_rows(a, b, c, number, steps, N: tkc.constexpr, READS: tkc.constexpr):
    """Blocks take one program each: a counter says which rows. A loop stores to one place, or reads
    there what the step before has stored.
    """
    m = tkc.atomic_add(number.ptr, 1) * 128
    total = product_of(a, b, m, N)
    for i in tkc.range(0, steps):
        if READS:
            total = tkc.minimum(total + tkc.load(c, (m, 0), (128, N)).to(tkc.float32), 7)
        tkc.store(c, (m, 0), (total + i).to(c.dtype))


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("reads", [False, True])
def test_a_block_that_takes_one_program_stores_in_order(reads, warps, monkeypatch):
    random = np.random.default_rng(0)
    a, b = (random.integers(-1, 2, s).astype(ml_dtypes.bfloat16) for s in ((256, 128), (128, 64)))
    c, number = random.integers(-1, 2, (256, 64)).astype(a.dtype), np.zeros(1, np.int32)
    want, got = ([x.copy() for x in (a, b, c, number)] for _ in range(2))
    of_taken_rows[2](*want, 4, 64, reads)
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    of_taken_rows[2](*got, 4, 64, reads, num_warps=warps, roles="cooperative", num_stages=2)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)
