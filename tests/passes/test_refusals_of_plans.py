"""What predicates of planning, layouts and roles refuse, each asked directly, beside the nearest
thing that they take.
"""

from types import SimpleNamespace

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, i32, i64

import tkc
from tests.language.kernels import i32 as number
from tests.language.kernels import traced
from tests.passes.arrays import f1, f2, h2, n1
from tests.passes.kernels import aligned, context
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, Fact, TileType, f32, ui8, ui32
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument
from tkc.passes import (
    match_heights,
    raise_pointers,
    separate_operands,
    shorten_exponentials,
    split_masked_loops,
    split_sums,
    unroll_loops,
)
from tkc.passes.analysis import polynomials
from tkc.passes.layouts import epilogue_subtiles, reductions, relayout
from tkc.passes.layouts.epilogue_subtiles import StoredResult
from tkc.passes.planning import streaming
from tkc.passes.planning.roles import results
from tkc.passes.warpgroups import consuming, in_flight


def constant(n, *extents: int, element=f32):
    return tile.Constant(n, TileType(extents, element)).result


# ---- numbers
@pytest.mark.parametrize(
    "source, wanted, widens",
    [(i32, i64, True), (f32, i64, False), (ui8, i32, False), (i64, i32, False), (i32, ui32, False)],
)
def test_which_casts_keep_signed_numbers(source, wanted, widens):
    assert split_masked_loops._is_widening(source, wanted) == widens


@pytest.mark.parametrize("t, whole", [(i32, True), (i64, True), (f32, False)])
def test_which_quotients_are_of_integers(t, whole):
    four = tile.Constant(4, i32).result
    of = SimpleNamespace(type=t)
    op = SimpleNamespace(fn=SimpleNamespace(name="floordiv"), result=of, args=[of, four])
    assert polynomials._whole_divisor(op) == (4 if whole else 0)
    assert polynomials._is_of_two(SimpleNamespace(args=[four, four], result=of)) == whole


# ---- dots
@pytest.mark.parametrize(
    "n, rows, free", [(0, 64, True), (1, 64, False), (0, match_heights.COLUMNS // 2, False)]
)
def test_which_dots_begin_from_zero(n, rows, free):
    dot = SimpleNamespace(acc=constant(n, rows, 64))
    assert match_heights._is_free(dot) == free
    assert in_flight.starts_anew(dot) == (n == 0)


def product(a, b, o):
    tkc.store(o, (0, 0), tkc.dot(tkc.load(a, (0, 0), (64, 32)), tkc.load(b, (0, 0), (32, 64))))


@pytest.mark.parametrize("instruction", ["wgmma", "mma"])
def test_which_dots_are_asynchronous(instruction):
    (dot,) = operations_in(traced(product, h2, h2, f2), tile.Dot)
    dot.instruction = StringAttr(instruction)
    assert consuming._is_wgmma(dot) == (instruction == "wgmma")


def test_what_a_dot_adds_to_is_no_operand():
    (dot,) = operations_in(traced(product, h2, h2, f2), tile.Dot)
    uses = [next(iter(v.uses)) for v in (dot.a, dot.b, dot.acc)]
    assert [separate_operands._is_operand(use) for use in uses] == [True, True, False]


@pytest.mark.parametrize(
    "extents, k, dense, fits",
    [
        ((64, 64), 1, 0, True),
        ((64, 48), 1, 0, False),
        ((24, 64), 1, 0, False),
        ((16, 64), 1, 0, True),
        ((16, 32), 1, 0, False),
        ((64, 64), 1, 1, True),
        ((60, 64), 1, 1, False),
    ],
)
def test_which_operands_the_threads_of_a_role_share(extents, k, dense, fits):
    assert relayout.fits(extents, k, dense) == fits


# ---- loops
def counted(o, n, step):
    total = tkc.zeros((64,))
    for i in tkc.range(0, 8, step):
        total = total + i
    tkc.store(o, (n,), total)


def test_a_loop_whose_step_nobody_knows_has_no_number_of_iterations():
    (loop,) = operations_in(traced(counted, f1, number(), number()), scf.ForOp)
    assert unroll_loops.iterations(loop) is None
    index, total = loop.body.block.args
    assert shorten_exponentials._carried(index) == []
    assert shorten_exponentials._carried(total) == [
        loop.iter_args[0],
        loop.body.block.last_op.operands[0],
    ]


def test_which_operation_comes_first():
    loads = operations_in(traced(product, h2, h2, f2), tile.Load)
    assert reductions._is_before(*loads) and not reductions._is_before(*reversed(loads))


# ---- sums in parts
def read(x, rows, o, LISTED: tkc.constexpr):
    at = tkc.load(rows, (0,), (64,)) if LISTED else 0
    tkc.store(o, (0, 0), tkc.load(x, (at, 0), (64, 1024)))


@pytest.mark.parametrize("listed", [False, True])
def test_rows_that_are_listed_are_not_cut(listed):
    module = traced(read, f2, n1, f2, LISTED=listed)
    load = next(op for op in operations_in(module, tile.Load) if len(op.offsets) == 2)
    assert split_sums._is_plain(load) != listed
    assert streaming._divides(load, 1024) != listed


# ---- rows
def taken_as_one(x, o):
    tkc.store(o, (0,), tkc.load(x, (0, 0), (4, 1024)).reshape(4096))
    tkc.store(o, (0,), tkc.load(x, (0, 0), (4, 1024)).reshape(1, 4, 1024)[0, 0, 0])


def test_which_reshapes_and_stores_are_of_parts_of_rows():
    module = traced(taken_as_one, f2, f1)
    one, other = operations_in(module, tile.Reshape)[:2]
    assert not streaming._divides(one, 1024) and streaming._divides(other, 1024)
    whole, scalar = operations_in(module, tile.Store)
    assert not streaming._divides(scalar, 1024)


# ---- results
def stored(x, o):
    tkc.store(o, (0, 0, 0), tkc.load(x, (0, 0, 0), (4, 64, 16)))


def test_a_tensor_map_stores_matrices():
    t = ArrayFacts((Fact(),) * 3, (Fact(8), Fact(exact=1), Fact(8)), 16)
    turned = ArrayArgument(tkc.float16, t)
    (store,) = operations_in(traced(stored, turned, turned), tile.Store)
    assert not results.is_stored_by_map(store)
    (store,) = operations_in(traced(product, h2, h2, f2), tile.Store)
    assert results.is_stored_by_map(store)


def copied(x, o):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (64, 64)))


@pytest.mark.parametrize(
    "out, transposed, rows, fits",
    [
        (tkc.float16, False, 64, True),
        (tkc.float16, True, 64, False),
        (tkc.float16, False, 32, False),
        (tkc.bfloat16, False, 64, False),
    ],
)
def test_which_blocks_lie_as_parts_of_a_result_do(out, transposed, rows, fits):
    module = traced(copied, h2, aligned(out, 2))
    (load,), (store,) = operations_in(module, tile.Load), operations_in(module, tile.Store)
    given = StoredResult(store, transposed), (rows, 64), load
    assert epilogue_subtiles._fits(*given) == fits


def turned_block(x, o):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (64, 64)))


def test_a_block_that_is_dense_along_its_rows_does_not():
    facts = ArrayFacts((Fact(),) * 2, (Fact(exact=1), Fact(8)), 16)
    module = traced(turned_block, ArrayArgument(tkc.float16, facts), h2)
    (load,), (store,) = operations_in(module, tile.Load), operations_in(module, tile.Store)
    assert not epilogue_subtiles._fits(StoredResult(store, False), (64, 64), load)


def in_and_behind(x, o, n, BEHIND: tkc.constexpr):
    y = tkc.load(x, (0, 0), (64, 64))
    for i in tkc.range(n):
        tkc.store(o, (i, 0), y)
    if BEHIND:
        tkc.store(o, (0, 64), y)


@pytest.mark.parametrize("behind", [False, True])
def test_a_block_that_is_used_in_a_loop_alone(behind):
    module = traced(in_and_behind, h2, h2, number(), BEHIND=behind)
    (load,), (loop,) = operations_in(module, tile.Load), operations_in(module, scf.ForOp)
    assert epilogue_subtiles._is_used_within(load.result, loop) != behind


# ---- what may stand before a store
def around(x, y, o):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (64, 64)))
    after = tkc.load(y, (0, 0), (64, 64))
    own = tkc.load(o, (0, 0), (64, 64))
    tkc.atomic_add(o, (64, 0), after)
    tkc.store(o, (128, 0), after + own)


def test_what_may_come_before_a_store():
    module, at = traced(around, f2, f2, f2), context("sm_90a")
    _, after, own = operations_in(module, tile.Load)
    store, end = operations_in(module, tile.Store)
    (added,) = (op for op in module.walk() if op.name == "tile.add")
    (atomic,) = operations_in(module, tile.AtomicBlock)

    def may(op) -> bool:
        return separate_operands._may_come_before(op, store, end, at)

    assert may(after) and may(added) and not may(own) and not may(atomic)


# ---- blocks of addresses
@pytest.mark.parametrize(
    "kind, semantics, orders_nothing",
    [
        (tkc.atomic_add, "relaxed", True),
        (tkc.atomic_xchg, "relaxed", False),
        (tkc.atomic_add, "release", False),
    ],
)
def test_which_atomics_may_be_of_blocks(kind, semantics, orders_nothing):
    def updated(x):
        kind(x.ptr + tkc.arange(32), tkc.full((32,), 1, x.dtype), sem=semantics)

    (atomic,) = operations_in(traced(updated, f1), tile.Atomic)
    assert raise_pointers._orders_nothing(atomic) == orders_nothing
