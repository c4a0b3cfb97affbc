"""What single predicates of passes and of the planner refuse, each asked directly: beside what they
take, the nearest thing that they must not.
"""

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import f32

import tkc
from tests.language.kernels import array, matmul, traced
from tests.language.kernels import i32 as number
from tests.passes.kernels import aligned, attended, context
from tests.sim.building import kernel, whole
from tkc.ir import elementwise as ew
from tkc.ir import shared, tile
from tkc.ir.fragments import wgmma_accumulator
from tkc.ir.layout import blocked
from tkc.ir.plan import Plan
from tkc.ir.rewrite import after
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType
from tkc.ir.values import layout_of, operations_in
from tkc.language.signature import ArrayArgument, Options
from tkc.passes import match_heights
from tkc.passes import plan as planning
from tkc.passes.analysis import stabilizers
from tkc.passes.fit_rows import _between
from tkc.passes.layouts import accumulator_stores, conversions
from tkc.passes.layouts.epilogue_subtiles import Parts, StoredResult, _fits
from tkc.passes.planning import hopper, operands
from tkc.passes.planning.bodies import LoopGraph, WarpCosts
from tkc.passes.planning.cost import Work
from tkc.passes.planning.numbers import Sizes
from tkc.passes.planning.program import Program

h2, b2, f2 = (aligned(t, 2) for t in (tkc.float16, tkc.bfloat16, tkc.float32))
HOPPER = target("sm_90a")


# ---- running maxima
M = tile.Constant(1.0, f32).result  # stands for a maximum


@pytest.mark.parametrize(
    "one, other, same",
    [
        (("mul", 1.0), ("mul", 1.0), True),
        (("mul", 1.0), ("mul", 2.0), False),
        (("mul", 1.0), ("add", 1.0), False),
    ],
)
def test_forms_are_equal_where_kind_and_degree_are(one, other, same):
    forms = [stabilizers.Form(kind, {(M, (), ()): x}) for kind, x in (one, other)]
    assert stabilizers.equal(*forms) == same


@pytest.mark.parametrize("number, guards", [(-np.inf, True), (5.0, False)])
def test_only_what_is_minus_infinity_has_seen_nothing(number, guards):
    """`where(m == number, 0, m)`: of any other number the selection changes the maximum."""

    def emit(x):
        (m,) = (whole(x, [4]),)
        t = m.type
        test = ew.CLASSES["eq"](m, tile.Constant(number, t).result).result
        ew.Select(test, tile.Constant(0.0, t).result, m)

    (select,) = operations_in(kernel([ArrayType(1, f32)], emit), ew.Select)
    assert (stabilizers.guarded(select) is not None) == guards


def running(x, o, N: tkc.constexpr):
    """The greatest element of each row; in two's complement where they are whole numbers."""
    top = tkc.load(x, (0, 0), (8, N))
    top = tkc.max(top, axis=1)
    for n in tkc.range(N, x.shape[1], N):
        top = tkc.maximum(top, tkc.max(tkc.load(x, (0, n), (8, N)), axis=1))
    tkc.store(o, (0,), top)


@pytest.mark.parametrize("dtype, found", [(tkc.float32, True), (tkc.int32, False)])
def test_a_running_maximum_is_a_float(dtype, found):
    module = traced(running, array(dtype, 2), array(dtype), N=16)
    (loop,) = operations_in(module, scf.ForOp)
    maximum = stabilizers.is_running_maximum(loop, loop.body.block.args[1])
    assert (maximum is not None) == found


# ---- what lies between two operations
def test_nothing_lies_between_an_operation_and_an_earlier_one():
    module = traced(matmul, b2, b2, b2, BM=64, BN=64, BK=32)
    first, *_, last = planning.kernel_of(module).body.block.ops
    assert _between(first, last) and not _between(last, first) and not _between(first, first)


# ---- blocks and layouts
def block(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, COLUMNS)))


def column(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0,), tkc.load(x, (0, 0), (ROWS, None)))


def scattered(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (tkc.arange(ROWS) * 2, 0), (ROWS, COLUMNS)))


@pytest.mark.parametrize("fn, moves", [(block, True), (scattered, False)])
def test_which_blocks_are_loaded_beside_stores(fn, moves):
    """One whose place is a number: a part of it is a block, too."""
    (load,) = operations_in(traced(fn, f2, f2, ROWS=64, COLUMNS=64), tile.Load)
    assert Parts([], ())._may_move(load) == moves


@pytest.mark.parametrize("columns, fits", [(64, True), (128, False)])
def test_a_stage_has_room_for_results_of_as_many_columns(columns, fits):
    (load,) = operations_in(traced(block, b2, b2, ROWS=64, COLUMNS=64), tile.Load)
    (store,) = operations_in(traced(block, b2, b2, ROWS=64, COLUMNS=columns), tile.Store)
    assert _fits(StoredResult(store, False), (64, 64), load) == fits


@pytest.mark.parametrize(
    "rows, columns, groups, found",
    [
        (64, 64, 1, True),
        (128, 64, 2, True),
        (32, 64, 1, False),  # the first rows of an accumulator
        (64, 64, 2, False),
        (64, 4, 1, False),  # its first columns
    ],
)
def test_the_layout_of_a_whole_accumulator(rows, columns, groups, found):
    """A part of one has a layout of the same digits, in which threads have elements outside it."""
    module = traced(block, f2, f2, ROWS=rows, COLUMNS=columns)
    (store,) = operations_in(module, tile.Store)
    layout = wgmma_accumulator(rows, columns, groups)
    t = TileType((rows, columns), f32, layout)
    store.operands[store.operands.index(store.value)] = after(
        store.value.owner, tile.Constant(0.0, t)
    ).result
    stores = accumulator_stores._Stores(
        planning.kernel_of(module), Plan(warps=4 * groups), context("sm_90a")
    )
    assert stores._is_accumulator(store, False) == found


def dense(strides) -> ArrayArgument:
    facts = ArrayFacts((Fact(16),) * len(strides), tuple(map(_fact, strides)), 16)
    return ArrayArgument(tkc.float32, facts)


def _fact(stride):
    return Fact(exact=1) if stride == 1 else Fact(16)


@pytest.mark.parametrize(
    "fn, strides, read, width",
    [
        (block, (16, 1), False, 16),
        (block, (16, 16), False, 0),  # elements apart
        (column, (16, 1), False, 0),  # rows apart
        (block, (1, 16), False, 0),  # threads read across the neighbours
        (block, (16, 1), True, 16),  # threads want it as it was loaded, too
    ],
)
def test_bytes_of_an_asynchronous_copy(fn, strides, read, width):
    """Along the last axis of its block, whose elements are neighbours in memory."""
    o = f2 if fn is block else array(tkc.float32)
    (load,) = operations_in(traced(fn, dense(strides), o, ROWS=64, COLUMNS=64), tile.Load)
    t = load.result.type
    load.result._type = t.with_layout(blocked(t.extents, 4, 4))
    wanted = after(load, shared.Convert(load.result, t.with_layout(blocked(t.extents, 1, 4))))
    if not read:
        load.result.replace_uses_with_if(wanted.result, lambda use: use.operation is not wanted)
    threads = layout_of(load.result)
    assert conversions._copy_width(load, threads, context("sm_90a")) == width


# ---- dots
def heights(a, b, o, TALL: tkc.constexpr, LOW: tkc.constexpr, K: tkc.constexpr):
    """Products of as many rows as the other has columns."""
    long, short = tkc.load(a, (0, 0), (TALL, K)), tkc.load(b, (0, 0), (LOW, K))
    tkc.store(o, (0, 0), tkc.dot(long, short.T))
    tkc.store(o, (0, 0), tkc.dot(short, long.T))


@pytest.mark.parametrize("tall, turned", [(128, 1), (192, 1), (96, 0), (320, 0)])
def test_rows_that_warpgroups_share_are_whole_parts(tall, turned):
    module = traced(heights, h2, h2, f2, TALL=tall, LOW=32, K=64)
    assert len(match_heights.chosen(operations_in(module, tile.Dot))) == turned


def added(x, y, o, N: tkc.constexpr):
    first = tkc.load(x, (0, 0), (N, N))
    tkc.store(o, (0, 0), tkc.dot(tkc.load(y, (0, 0), (N, N)), first, first))


def times(x, y, o, N: tkc.constexpr):
    first = tkc.load(x, (0, 0), (N, N))
    tkc.store(o, (0, 0), tkc.dot(tkc.load(y, (0, 0), (N, N)), first))


@pytest.mark.parametrize("fn, alone", [(times, True), (added, False)])
def test_what_a_dot_adds_to_is_no_operand(fn, alone):
    first = operations_in(traced(fn, f2, f2, f2, N=64), tile.Load)[0]
    assert planning._only_dots(first.result) == alone


def held(q, k, o, N: tkc.constexpr, BESIDE: tkc.constexpr, OTHER: tkc.constexpr):
    """A left operand that the loop does not change, and who else reads it."""
    left = tkc.load(q, (0, 0), (N, 64), other=OTHER)
    total = tkc.zeros((N, N))
    if BESIDE == "dot":
        tkc.store(o, (0, N), tkc.dot(left, tkc.load(k, (0, 64), (N, 64)).T))
    if BESIDE == "sum":
        total += tkc.sum(left, axis=1, keep_dims=True).to(tkc.float32)
    for n in tkc.range(0, k.shape[0], N):
        total = tkc.dot(left, tkc.load(k, (n, 0), (N, 64)).T, total)
    tkc.store(o, (0, 0), total)


@pytest.mark.parametrize(
    "beside, other, place",
    [
        ("", None, "shared"),
        ("dot", None, "shared"),
        ("sum", None, "registers"),
        ("", 1.0, "registers"),
    ],
)
def test_what_is_read_again_in_every_iteration(beside, other, place):
    """A block that dots alone read, and that is copied to shared memory."""
    module = traced(held, h2, h2, f2, N=64, BESIDE=beside, OTHER=other)
    *_, dot = operations_in(module, tile.Dot)
    assert planning._source(dot.a, dot, 4, 0, "shared") == place


# ---- the planner's numbers
def products(rows: int, columns: int, depth: int) -> Work:
    """So many programs of 128 x 128, of each so many steps of 64."""
    module = traced(matmul, b2, b2, b2, BM=128, BN=128, BK=64)
    m, n, k = 128 * rows, 128 * columns, 64 * depth
    shapes = (m, k), (k, n), (m, n)
    return Work.of(planning.kernel_of(module), Sizes((rows, columns, 1), shapes))


@pytest.mark.parametrize("rows, columns, some", [(4, 4, True), (10, 10, False), (11, 12, False)])
def test_parts_of_k_are_for_multiprocessors_without_work(rows, columns, some):
    """Two parts of each of a hundred programs are a wave and a half."""
    assert bool(planning._parts(products(rows, columns, 128), HOPPER)) == some


@pytest.mark.parametrize("rows, columns, some", [(4, 4, False), (12, 12, True), (11, 12, False)])
def test_a_wave_is_shared_behind_another(rows, columns, some):
    assert bool(planning._shares_of_a_wave(products(rows, columns, 128), HOPPER)) == some


def handed_over(x, flags, o, SEM: tkc.constexpr):
    """A program says that it is done, to whoever waits for it."""
    m, n = tkc.program_id(0), tkc.program_id(1)
    tkc.store(o, (m * 16, n * 16), tkc.load(x, (m * 16, n * 16), (16, 16)))
    tkc.store(flags.ptr + m, 1, sem=SEM)


@pytest.mark.parametrize("semantics, raster", [(None, 8), ("release", 1)])
def test_programs_that_others_wait_for_keep_their_order(semantics, raster):
    module = traced(handed_over, f2, array(tkc.int32), f2, SEM=semantics)
    found = planning._raster(
        Program.of(planning.kernel_of(module)), Options(raster=8), lambda said: None
    )
    assert found == raster


# ---- schedules of a loop's body
def read_and_written(x, w, o, s, steps, BACK: tkc.constexpr, AROUND: tkc.constexpr):
    for k in range(steps):
        block = tkc.load(x, (0, 0), (64, 64))
        right = tkc.load(w, (0, 0), (64, 64))
        if AROUND:
            tkc.store(s, (0,), k)
        y = tkc.dot(block, right).to(x.dtype)
        tkc.store(x if BACK else o, (0, 0), y)
        if AROUND:
            tkc.store(s, (1,), k)


def graph_of(**constants) -> LoopGraph:
    arrays = h2, h2, h2, array(tkc.int32)
    module = traced(read_and_written, *arrays, number(), **constants)
    return LoopGraph(*operations_in(module, scf.ForOp), ())


@pytest.mark.parametrize("back", [False, True])
def test_loads_of_what_a_loop_writes_keep_their_order(back):
    graph = graph_of(BACK=back, AROUND=False)
    first, second = operations_in(graph.loop, tile.Load)
    assert (first in graph.kept, second in graph.kept) == (back, False)


@pytest.mark.parametrize("around", [False, True])
def test_effects_that_no_order_of_groups_keeps(around):
    """Two that no dot has to do with are one group, and the store of a dot stands between them."""
    body = graph_of(BACK=False, AROUND=around).body(WarpCosts(HOPPER, 4, True))
    assert (body is None) == around


# ---- roles on Hopper
@pytest.mark.parametrize(
    "rows, options, alone",
    [
        (64, {}, True),
        (64, {"roles": "pingpong"}, False),
        (64, {"split_warps": (8, 1)}, False),
        (64, {"programs": 1}, False),
        (128, {}, False),
    ],
)
def test_dots_of_one_warpgroups_rows(rows, options, alone):
    module = attended(256, 64, rows, 64, False).module()
    program = Program.of(planning.kernel_of(module))
    assert hopper._is_for_one_warpgroup(program, Options(**options)) == alone


def single(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr, KIND: tkc.constexpr):
    """c = a b, of sums of one type."""
    total = tkc.zeros((BM, BN), KIND)
    for k in tkc.range(0, a.shape[1], BK):
        total = tkc.dot(tkc.load(a, (0, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), total)
    tkc.store(c, (0, 0), total)


def dot_of(fn, *arrays, **constants) -> tile.Dot:
    (dot,) = operations_in(traced(fn, *arrays, **constants), tile.Dot)
    return dot


def short_sums(a, b, c, PRECISION: tkc.constexpr):
    x = tkc.dot(tkc.load(a, (0, 0), (64, 64)), tkc.load(b, (0, 0), (64, 64)), precision=PRECISION)
    tkc.store(c, (0, 0), x)


@pytest.mark.parametrize("precision, found", [("tf32", True), ("tf32x3", False), ("ieee", False)])
def test_one_instruction_is_one_product_of_tf32(precision, found):
    dot = dot_of(short_sums, f2, f2, f2, PRECISION=precision)
    assert (operands.wgmma_of(dot) is not None) == found


@pytest.mark.parametrize("kind, found", [(tkc.float32, True), (tkc.float16, False)])
def test_sums_of_16_bits_are_not_planned(kind, found):
    c = aligned(kind, 2)
    dot = dot_of(single, h2, h2, c, BM=64, BN=64, BK=64, KIND=kind)
    assert (operands.wgmma_of(dot) is not None) == found


@pytest.mark.parametrize(
    "columns, why", [(128, ""), (192, ""), (64, ""), (48, "48 columns do not divide by 16 among")]
)
def test_columns_that_warpgroups_share(columns, why):
    """Columns that are dense in memory begin at panels, of 16 at least."""
    dot = dot_of(single, h2, h2, f2, BM=64, BN=columns, BK=64, KIND=tkc.float32)
    options = Options(roles="cooperative", split_warps=(4, 2))
    reason = operands._why_not_along_n(operands.Sides.of(dot, options), 2)
    assert (why in reason) if why else not reason


@pytest.mark.parametrize("aligned_rows, turned", [(True, True), (False, False)])
def test_blocks_that_no_map_loads_are_not_turned_by_registers(aligned_rows, turned):
    b = f2 if aligned_rows else array(tkc.float32, 2)
    dot = dot_of(single, f2, b, f2, BM=64, BN=64, BK=32, KIND=tkc.float32)
    assert operands._turned(dot.b, 0) == turned


def stored_on_the_way(a, b, c, KEPT: tkc.constexpr):
    total = tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        before = total
        total = tkc.dot(tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64)), total)
        if KEPT:
            tkc.store(c, (0, k), before)
    tkc.store(c, (0, 0), total)


@pytest.mark.parametrize("kept", [False, True])
def test_a_sum_just_goes_round_its_loop_where_nothing_reads_it(kept):
    assert operands.simple(dot_of(stored_on_the_way, h2, h2, f2, KEPT=kept)) == (not kept)


def of_a_result(q, k, v, o, TURNED: tkc.constexpr):
    """The scores of a product, in 8 bits, are an operand of another, on either side."""
    s = tkc.dot(tkc.load(q, (0, 0), (64, 64)), tkc.load(k, (0, 0), (64, 64)).T).to(v.dtype)
    block = tkc.load(v, (0, 0), (64, 64))
    tkc.store(o, (0, 0), tkc.dot(block, s) if TURNED else tkc.dot(s, block))


@pytest.mark.parametrize("swapped", [False, True])
def test_the_order_of_k_is_that_of_an_accumulator_as_it_lies(swapped):
    """What is computed of a swapped dot's right operand is the transpose of an accumulator."""
    e2 = aligned(tkc.float8_e4m3, 2)
    *_, dot = operations_in(traced(of_a_result, e2, e2, e2, f2, TURNED=swapped), tile.Dot)
    assert operands.permuted(dot, Options(swap_dots=swapped)) == (not swapped)


def turned_left(a, b, c):
    total = tkc.zeros((64, 64))
    for k in tkc.range(0, b.shape[0], 64):
        left = tkc.load(a, (k, 0), (64, 64)).T
        total = tkc.dot(left, tkc.load(b, (0, k), (64, 64)).T, total)
    tkc.store(c, (0, 0), total)


@pytest.mark.parametrize("place, relaid", [(None, True), ("registers", False)])
def test_an_operand_in_registers_is_not_relaid(place, relaid):
    e2 = aligned(tkc.float8_e4m3, 2)
    dot = dot_of(turned_left, e2, e2, f2)
    assert bool(operands.relaid_loads(dot, Options(left_operand=place))) == relaid


def two_of_one_block(a, b, c, o, COMPUTED: tkc.constexpr):
    """Two sums of a loop read one block."""
    one, two = tkc.zeros((64, 64)), tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        right = tkc.load(b, (k, 0), (64, 64))
        one = tkc.dot(tkc.load(a, (0, k), (64, 64)), right, one)
        left = tkc.load(c, (0, k), (64, 64))
        two = tkc.dot(tkc.maximum(left, 0) if COMPUTED else left, right, two)
    tkc.store(o, (0, 0), one + two)


@pytest.mark.parametrize("computed", [False, True])
def test_sums_of_one_block_may_stand_beside_computed_operands(computed):
    """tests/passes/test_several_readers.py runs such."""
    module = traced(two_of_one_block, h2, h2, h2, f2, COMPUTED=computed)
    assert not any(
        operands.why_not_wgmma(dot, Options()) for dot in operations_in(module, tile.Dot)
    )


def scaled(a, b, s, o, N: tkc.constexpr, TURNED: tkc.constexpr):
    """Columns of a partial dot are scaled before they are added."""
    acc = tkc.zeros((64, N))
    for k in tkc.range(0, a.shape[1], 64):
        block = tkc.load(b, (0, k), (N, 64)).T if TURNED else tkc.load(b, (k, 0), (64, N))
        part = tkc.dot(tkc.load(a, (0, k), (64, 64)), block).to(tkc.float32)
        acc = acc + part * tkc.load(s, (0,), (N,))[None, :]
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize(
    "dtype, columns, turned, registers, parts",
    [
        (tkc.float16, 256, False, 512, 2),
        (tkc.float16, 224, False, 512, 1),  # 112 columns begin within a panel of 64
        (tkc.float16, 224, True, 512, 2),  # or at any eight, where they are not dense
        (tkc.int8, 80, True, 70, 1),  # no instruction has 40 columns of whole numbers
        (tkc.int8, 96, True, 80, 2),
    ],
)
def test_parts_of_columns(dtype, columns, turned, registers, parts):
    kind = aligned(dtype, 2)
    module = traced(scaled, kind, kind, array(tkc.float32), f2, N=columns, TURNED=turned)
    (dot,) = operations_in(module, tile.Dot)
    assert operands.parts_of(dot, 1, registers)[0] == parts
