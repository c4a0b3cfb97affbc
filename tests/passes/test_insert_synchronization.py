"""Where insert-synchronization puts a barrier, and where none is needed: in small kernels without
roles, whose stores and updates of global memory nothing else orders, and between a write and a read
of shared memory, with what other passes put there.

No schedule of the simulator shows that a barrier between two updates is missing: it makes all
elements of an update at once. So the barriers are counted.
"""

import ast
from pathlib import Path

import numpy as np
import pytest

import tkc
from tests.passes.kernels import context
from tkc.ir.layout import blocked
from tkc.ir.text import parse
from tkc.ir.threads import BlockBarrier
from tkc.passes import insert_synchronization

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
def added_in_place(x, rows, PLACES: tkc.constexpr):
    """Each thread stores where it loaded; other threads may have loaded there as well."""
    a = tkc.array(x.ptr, x.dtype, (N, N), (0, 1)) if PLACES == "folded" else x
    at = {"looked up": tkc.load(rows, (0,), (N,)), "in a row": tkc.arange(N) + rows[0]}
    first = at.get(PLACES, 0)
    tkc.store(a, (first, 0), tkc.load(a, (first, 0), (N, N)) + 1)


@TARGETS
@pytest.mark.parametrize(
    "places, needed", [("one block", 0), ("in a row", 0), ("looked up", 1), ("folded", 1)]
)
def test_elements_that_are_one_in_memory_are_several_threads(places, needed, target):
    given = np.zeros((N, N), np.float32), np.zeros(N, np.int32)
    assert barriers(added_in_place, *given, places, target=target) == needed


@TARGETS
def test_an_argument_s_elements_may_be_one_in_memory(target):
    row = np.lib.stride_tricks.as_strided(np.zeros(N, np.float32), (N, N), (0, 4))
    assert barriers(added_in_place, row, np.zeros(N, np.int32), "one block", target=target) == 1


@tkc.jit
def to_another_side(x):
    """Of a cube: the sides meet in an edge, whose elements other threads load than store."""
    v = tkc.load(x, (0, 0, 0), (N, N, None))
    tkc.store(x, (0, 0, 0), v + 1)


@TARGETS
def test_blocks_along_other_axes_are_other_elements(target):
    x = np.zeros((N, N, 2 * N), np.float32)[:, :, ::2]  # no axis is dense: one layout for both
    assert barriers(to_another_side, x, target=target) == 1


@tkc.jit
def in_a_loop(x, out, STEP: tkc.constexpr):
    """Two blocks in each iteration."""
    for i in range(0, out.shape[0], STEP):
        tkc.store(out, (i, 0), tkc.load(x, (0, i), (N, N)))
        tkc.store(out, (i + N, 0), tkc.load(x, (N, i), (N, N)))


@tkc.jit
def moved_on(out, BY: tkc.constexpr):
    """Columns are handed on, in place, to those of the iteration before, or after."""
    for i in range(0, out.shape[1], N):
        tkc.store(out, (0, i + BY), tkc.load(out, (0, i), (N, N)))


@TARGETS
@pytest.mark.parametrize("step, needed", [(N, 1), (2 * N - 1, 1), (2 * N, 0), (3 * N, 0)])
def test_iterations_are_ordered_where_their_blocks_meet(step, needed, target):
    given = np.zeros((4 * N, 4 * N), np.float32), np.zeros((4 * N, 4 * N), np.float32)
    assert barriers(in_a_loop, *given, step, target=target) == needed


@TARGETS
@pytest.mark.parametrize("by", [N, -N, N // 2, -4 * N])
def test_what_an_iteration_before_has_is_ordered(by, target):
    """One of those before, however long ago."""
    assert barriers(moved_on, np.zeros((N, 16 * N), np.float32), by, target=target)


@tkc.jit
def chosen_columns(columns, out):
    """Which columns an iteration reads, and writes beside them, is looked up."""
    for i in range(0, out.shape[0], N):
        at = tkc.load(columns, (i,), (None,))
        tkc.store(out, (i, at + N), tkc.load(out, (0, at), (N, N)))


@TARGETS
def test_columns_that_each_iteration_chooses_may_be_those_of_one_before(target):
    """In one iteration those read and those written are apart."""
    given = np.zeros(4 * N, np.int32), np.zeros((4 * N, 4 * N), np.float32)
    assert barriers(chosen_columns, *given, target=target) == 1


@tkc.jit
def moving_pointers(x, y, out, SWAPPED: tkc.constexpr, IN_PLACE: tkc.constexpr):
    """Rows that a loop's pointers walk, added to those of a matrix."""
    k, rows = tkc.arange(N), tkc.load(x, (0, 0), (N, N))
    px, py = x.ptr + k, y.ptr + k
    for j in range(0, out.shape[0]):
        row = tkc.load(px) + tkc.load(py)
        into = x if IN_PLACE else out
        tkc.store(into.ptr + j * N + k, tkc.sum(rows * row[None, :], axis=1))
        if SWAPPED:
            px, py = py + N, px + N
        else:
            px, py = px + N, py + N


@TARGETS
@pytest.mark.parametrize(
    "swapped, in_place, needed", [(False, False, 1), (False, True, 2), (True, False, 2)]
)
def test_pointers_that_a_loop_moves_stay_in_their_array(swapped, in_place, needed, target):
    """One barrier orders the stores of iterations; where pointers change places, it is not known
    which array is read.
    """
    given = [np.zeros((N, N), np.float32) for _ in range(3)]
    found = barriers(moving_pointers, *given, swapped, in_place, target=target, num_warps=4)
    assert found == needed


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
    """Its code begins with one, so that what other threads stored before it may be read; that of an
    acquire ends with one, so that they may read what its thread has seen.
    """
    given = np.zeros(1024, np.float32), np.zeros(1024, np.float32), np.zeros(1, np.int32)
    compiled = published.compile(*given, how, target=target)
    assert compiled.ir("final").count("tile.block_barrier") == (how == "relaxed")
    assert compiled.ptx.count("bar.sync") == (2 if how == "update" else 1)


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


@tkc.jit
def by_pointers(x, out, WIDTH: tkc.constexpr):
    at = x.ptr + tkc.arange(WIDTH)
    tkc.store(at, tkc.load(out, (0,), (WIDTH,)))
    tkc.store(out, (0,), tkc.load(at))


@tkc.jit
def by_blocks(x, out, WIDTH: tkc.constexpr):
    tkc.store(x, (0,), tkc.load(out, (0,), (WIDTH,)) + 1)
    tkc.store(out, (0,), tkc.load(x, (0,), (WIDTH,)))


@TARGETS
@pytest.mark.parametrize("kernel", [by_pointers, by_blocks], ids=lambda k: k.__name__)
@pytest.mark.parametrize("width, needed", [(1024, 0), (32, 1)])
def test_elements_that_several_threads_hold(kernel, width, needed, target):
    """One of them stores, all load: of four warps, one of which would do for the few."""
    given = np.zeros(width, np.float32), np.zeros(width, np.float32)
    assert barriers(kernel, *given, width, target=target, num_warps=4) == needed


@tkc.jit
def on_by_pointers(x, y, z, WIDTH: tkc.constexpr):
    at = x.ptr + tkc.arange(WIDTH)
    tkc.store(at, tkc.load(y, (0,), (WIDTH,)))
    tkc.store(z, (0,), tkc.load(at))


@TARGETS
@pytest.mark.parametrize("width, needed", [(1024, 0), (32, 1)])
def test_what_one_of_several_threads_has_stored_all_of_them_load(width, needed, target):
    """Nothing else asks for a barrier there."""
    given = [np.zeros(width, np.float32) for _ in range(3)]
    assert barriers(on_by_pointers, *given, width, target=target, num_warps=4) == needed


S = '!tile.shared<1, 32x64xf32, "32x64xb32">'
T = f'!tile.tile<32x64xf32, "{blocked((32, 64), vector=4, warps=8)}">'
OTHER = f'!tile.tile<32x64xf32, "{blocked((32, 64), vector=4, warps=8, order=(0, 1))}">'
BETWEEN = f"""tile.kernel @between(%x: !tile.array<?x?xf32>, %n: i32) \
    {{level = 3 : i64, warps = 8 : i64}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %yes = tile.constant 1 : i1
  %s = tile.alloc : {S}
  %m = tile.mbarriers : !tile.barriers<2>
  tile.mbarrier_init %m {{count = 8 : i64}} : (!tile.barriers<2>)
  tile.fence mbarrier_init
  tile.block_barrier
  %v = tile.constant 1.0 : {T}
  WRITE
  BETWEEN
  %w = tile.read %s : ({S}) -> {OTHER}
  tile.store %x[%zero, %zero] %w {{extents = array<i64: 32, 64>}} \
    : (!tile.array<?x?xf32>, i32, i32, {OTHER})
  tile.return
}}"""
WRITE = f"tile.write %s, %v : ({S}, {T})"
ARRIVE = 'tile.mbarrier_arrive %m[%zero] {each = "warp"} : (!tile.barriers<2>, i32)'
SOME_ARRIVE = (
    'tile.mbarrier_arrive %m[%zero] when %yes {each = "warp"} : (!tile.barriers<2>, i32, i1)'
)
WAIT = "tile.mbarrier_wait %m[%zero] %zero : (!tile.barriers<2>, i32, i32)"


def in_loop(text: str) -> str:
    return f"scf.for %i = %zero to %n step %one : i32 {{\n {text}\n scf.yield\n }}"


@pytest.mark.parametrize(
    "between, needed",
    [
        ("", 1),
        ("tile.block_barrier", 0),
        ('tile.block_barrier {each = "warpgroup"}', 1),
        (f"{ARRIVE}\n{WAIT}", 0),
        (ARRIVE, 1),
        (f"{WAIT}\n{ARRIVE}", 1),
        # one warp may arrive for another one
        (f"{ARRIVE}\n{ARRIVE}\n{WAIT}", 1),
        (f"{in_loop(ARRIVE)}\n{WAIT}", 1),
        (f"{ARRIVE}\n{in_loop(WAIT)}", 1),
        (f"{ARRIVE}\n{WAIT}".replace("%m[%zero]", "%m[%one]", 1), 1),
        (f"{ARRIVE}\n{WAIT}".replace(' {each = "warp"}', ""), 1),
        (f"{ARRIVE}\n{WAIT}".replace('"warp"', '"copies"'), 1),
        (f"{SOME_ARRIVE}\n{WAIT}", 1),
        # who else completes a phase has not written
        (
            f"tile.mbarrier_expect %m[%zero] {{bytes = 64 : i64}} : (!tile.barriers<2>, i32)\n"
            f"{ARRIVE}\n{WAIT}",
            1,
        ),
    ],
)
def test_between_a_write_and_a_read(between, needed):
    """What all warps have met at orders them, and nothing less."""
    there = between.count("block_barrier") + 1
    assert barriers_of(BETWEEN.replace("BETWEEN", between)) == there + needed


def barriers_of(text):
    module = parse(text.replace("WRITE", WRITE))
    insert_synchronization.run(module, context("sm_90a"))
    return sum(isinstance(op, BlockBarrier) for op in module.walk())


def test_a_phase_is_not_over_where_each_warp_arrives_in_many_rounds():
    """A warp may have arrived as often as all are expected to, before another one has written."""
    rounds = in_loop(f"{WRITE}\n{ARRIVE}")
    text = BETWEEN.replace("WRITE", "").replace("BETWEEN", f"{rounds}\n{WAIT}")
    # one after the initialization, one between two rounds, which write to the same bytes
    assert barriers_of(text) == 3


def test_every_operation_with_a_case_is_in_the_list():
    """What is passed over has no case: neither accesses nor orders."""
    source = ast.parse(Path(insert_synchronization.__file__).read_text())
    named = {
        ast.unparse(pattern.cls)
        for function in ast.walk(source)
        if isinstance(function, ast.FunctionDef)
        if function.name in ("_after", "_synchronized", "_accesses")
        for pattern in ast.walk(function)
        if isinstance(pattern, ast.MatchClass)
    }
    cases = {eval(name, vars(insert_synchronization)) for name in named}
    assert len(cases) > 15
    assert cases == insert_synchronization.LOOKED_AT
