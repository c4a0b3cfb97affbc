"""Where insert-synchronization puts a barrier, and where none is needed: in small kernels without
roles, whose stores and updates of global memory nothing else orders.

No schedule of the simulator shows that a barrier between two updates is missing: it makes all
elements of an update at once. So the barriers are counted.
"""

import numpy as np
import pytest

import tkc

N = 64
TARGETS = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])


def barriers(kernel, *arguments, target, **how):
    compiled = kernel.compile(*arguments, target=target, **how)
    return compiled.ir("final").count("tile.block_barrier")


@tkc.jit
def two_blocks(x, out, at, FIRST: tkc.constexpr, SECOND: tkc.constexpr):
    v = tkc.load(x, (0, 0), (N, N))
    tkc.store(out, (at + FIRST[0], FIRST[1]), v)
    tkc.store(out, (at + SECOND[0], SECOND[1]), v + 1)


@TARGETS
@pytest.mark.parametrize(
    "first, second, needed",
    [
        ((0, 0), (N, 0), False),
        ((N, 0), (0, 0), False),
        ((0, 8), (0, N + 8), False),
        ((0, 0), (N - 1, N - 1), True),
        ((0, 0), (0, 0), False),  # each thread overwrites its own elements
        ((N + 1, 0), (2, 0), True),
        ((N + 1, 0), (1, 0), False),
    ],
    ids=str,
)
def test_blocks_of_other_elements_need_no_barrier(first, second, needed, target):
    x, out = np.zeros((N, N), np.float32), np.zeros((4 * N, 4 * N), np.float32)
    assert barriers(two_blocks, x, out, 3, first, second, target=target) == needed


@tkc.jit
def narrow_offsets(x, places, out):
    at = tkc.load(places.ptr)
    v = tkc.load(x, (0,), (N,))
    tkc.store(out, (at,), v)
    tkc.store(out, (at + 64,), v)


@TARGETS
@pytest.mark.parametrize("dtype, needed", [(np.int32, False), (np.int8, True)])
def test_offsets_of_few_bits_wrap(dtype, needed, target):
    given = np.zeros(N, np.float32), np.zeros(1, dtype), np.zeros(4 * N, np.float32)
    assert barriers(narrow_offsets, *given, target=target) == needed


@tkc.jit
def gathered(x, rows, out):
    at = tkc.load(rows, (0,), (N,))
    v = tkc.load(x, (0, 0), (N, N))
    tkc.store(out, (at, 0), v)
    tkc.store(out, (at + N, 0), v)


@TARGETS
def test_rows_looked_up_may_be_anywhere(target):
    given = np.zeros((N, N), np.float32), np.zeros(N, np.int32), np.zeros((4 * N, N), np.float32)
    assert barriers(gathered, *given, target=target) == 1


@tkc.jit
def in_a_loop(x, out, STEP: tkc.constexpr):
    """Of iterations no place is known."""
    for i in range(0, out.shape[0], STEP):
        tkc.store(out, (i, 0), tkc.load(x, (0, i), (N, N)))
        tkc.store(out, (i + N, 0), tkc.load(x, (N, i), (N, N)))


@TARGETS
def test_iterations_are_ordered(target):
    given = np.zeros((4 * N, 4 * N), np.float32), np.zeros((4 * N, 4 * N), np.float32)
    assert barriers(in_a_loop, *given, 2 * N, target=target) == 1


@tkc.jit
def published(x, out, flag, HOW: tkc.constexpr):
    """One thread says of all that they have stored."""
    tkc.store(out, (0,), tkc.load(x, (0,), (1024,)))
    if HOW == "update":
        tkc.atomic_add(flag.ptr, 1)
    if HOW == "relaxed":
        tkc.atomic_add(flag.ptr, 1, sem="relaxed")
    if HOW == "store":
        tkc.store(flag.ptr, 1, sem="release")
    back = tkc.load(out, (tkc.arange(1024) ^ 512,), (1024,))
    tkc.store(x, (0,), back)


@TARGETS
@pytest.mark.parametrize("how", ["update", "relaxed", "store"])
def test_a_release_is_a_barrier(how, target):
    """Its code begins with one, so that what other threads stored before it may be read."""
    given = np.zeros(1024, np.float32), np.zeros(1024, np.float32), np.zeros(1, np.int32)
    compiled = published.compile(*given, how, target=target)
    assert compiled.ir("final").count("tile.block_barrier") == (how == "relaxed")
    assert compiled.ptx.count("bar.sync") == 1


@tkc.jit
def twice(x, places, out, FIRST: tkc.constexpr, SECOND: tkc.constexpr, OLD: tkc.constexpr):
    """Two relaxed updates of places that several threads may share, the second of some only."""
    updates = {"add": tkc.atomic_add, "max": tkc.atomic_max, "exchange": tkc.atomic_xchg}
    i = tkc.arange(1024)
    at = x.ptr + tkc.load(places, (0,), (1024,))
    updates[FIRST](at, i, sem="relaxed")
    old = updates[SECOND](at, i + 1, sem="relaxed", mask=i < 512)
    if OLD:
        tkc.store(out, (0,), old)


@TARGETS
@pytest.mark.parametrize(
    "first, second, old, needed",
    [
        ("add", "add", False, False),
        ("max", "max", False, False),
        ("add", "max", False, True),
        ("exchange", "exchange", False, True),
        ("add", "add", True, True),
    ],
)
def test_updates_that_commute_need_no_barrier(first, second, old, needed, target):
    given = np.zeros(9, np.int32), np.zeros(1024, np.int32), np.zeros(1024, np.int32)
    assert barriers(twice, *given, first, second, old, target=target) == needed


@tkc.jit
def counted(x, out):
    """One thread updates and stores every scalar."""
    tkc.atomic_add(out.ptr, 1, sem="relaxed")
    tkc.atomic_max(out.ptr, 5, sem="relaxed")
    tkc.store(out.ptr, 7)
    tkc.store(out, (0,), 8)
    tkc.store(x, (0,), tkc.full((1024,), tkc.load(out.ptr), tkc.int32))


@TARGETS
def test_scalars_are_one_thread_s(target):
    """All threads read what it has stored: a barrier before that."""
    given = np.zeros(1024, np.int32), np.zeros(1, np.int32)
    assert barriers(counted, *given, target=target) == 1


@tkc.jit
def histogram(x, out):
    for i in range(0, x.shape[0], N):
        tkc.atomic_add(out, (0, 0), tkc.load(x, (i, 0), (N, N)))


@TARGETS
def test_a_sum_of_updates_needs_no_barriers(target):
    given = np.zeros((4 * N, N), np.float32), np.zeros((N, N), np.float32)
    assert barriers(histogram, *given, target=target) == 0
