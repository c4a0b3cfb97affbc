"""Which accesses and signals keep an order, which loads programs share, and what operands are:
single predicates, each asked directly, beside the nearest thing that they take.
"""

from types import SimpleNamespace

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import i32

import tkc
from tests.language.kernels import traced
from tests.passes.arrays import f1, f2, f3, h2, h3, n1
from tests.passes.kernels import aligned, context
from tests.passes.test_alias import plain
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before
from tkc.ir.threads import Identity
from tkc.ir.types import TileType, f32
from tkc.ir.values import operations_in
from tkc.passes import schedule_programs
from tkc.passes.analysis import alias, unit_axes
from tkc.passes.plan import kernel_of
from tkc.passes.planning import operands, order


# ---- signals
def told(flags, x, SEM: tkc.constexpr):
    tkc.atomic_add(flags.ptr, 1, sem=SEM)
    tkc.store(x, (0,), tkc.load(x, (0,), (4,)) + 1)


@pytest.mark.parametrize("semantics", ["relaxed", "release", "acquire", "acq_rel"])
def test_which_atomics_only_tell_and_which_keep_an_order(semantics):
    module = traced(told, n1, f1, SEM=semantics)
    (atomic,), (load,) = operations_in(module, tile.Atomic), operations_in(module, tile.Load)
    assert order.is_signal(atomic) == (semantics in ("relaxed", "release"))
    assert alias.apart(atomic, load, ()) == alias.apart(load, atomic, ())
    assert alias.apart(atomic, load, ()) == (semantics == "relaxed")


def heard(flags, x, SEM: tkc.constexpr):
    tkc.store(x, (0,), tkc.full((1,), tkc.load(flags.ptr, sem=SEM), tkc.int32).to(x.dtype))


@pytest.mark.parametrize("semantics", ["relaxed", "acquire"])
def test_which_loads_wait_for_a_signal_and_release_nothing(semantics):
    (load,) = operations_in(traced(heard, n1, f1, SEM=semantics), tile.LoadPointers)
    assert order._acquires(load) == (semantics == "acquire")
    assert not alias.releases(load)


def claimed(flags, count, o, WAITS: tkc.constexpr, CLAIMS: tkc.constexpr, SEM: tkc.constexpr):
    at = tkc.program_id(0)
    if CLAIMS == "behind a store":
        tkc.store(o, (0,), tkc.zeros((4,)))
    if CLAIMS:
        at = tkc.atomic_add(count.ptr, 1, sem=SEM)
    if WAITS:
        while tkc.load(flags.ptr, sem="acquire") == 0:
            pass
    tkc.store(o, (at * 4,), tkc.zeros((4,)))
    if CLAIMS == "and locks":
        tkc.store(o, (0,), tkc.full((1,), tkc.atomic_cas(flags.ptr, 0, 1), tkc.float32))


@pytest.mark.parametrize(
    "waits, claims, semantics, observes, seen",
    [
        (False, True, "relaxed", False, 0),
        (True, False, "relaxed", False, 0),
        (True, True, "relaxed", True, 0),
        (False, True, "acquire", False, 1),
        (False, "behind a store", "relaxed", False, 1),
        (False, "and locks", "relaxed", True, 1),
    ],
)
def test_which_programs_may_observe_their_order(waits, claims, semantics, observes, seen):
    module = traced(claimed, n1, n1, f1, WAITS=waits, CLAIMS=claims, SEM=semantics)
    assert len(order.observing_operations(kernel_of(module))) == seen
    why = order.why_not_claimed(kernel_of(module), ())
    assert bool(why) == observes
    assert ("they wait" in why) == (waits and bool(claims))


def through_memory(h, w, flags, WAITS: tkc.constexpr):
    if WAITS:
        while tkc.load(flags.ptr, sem="acquire") == 0:
            pass
    for i in tkc.range(4):
        x = tkc.dot(tkc.load(h, (i * 64, 0), (64, 16)), tkc.load(w, (0, 0), (16, 64)))
        tkc.store(h, (i * 64 + 64, 0), x.to(h.dtype))


@pytest.mark.parametrize("waits", [False, True])
def test_copies_wait_for_stores_where_programs_wait_for_no_one(waits):
    module, given = traced(through_memory, h2, h2, n1, WAITS=waits), context("sm_90a")
    may = order._stores_can_be_awaited(kernel_of(module), set(), given.options)
    assert may != waits


def filled(x, o, n: tkc.constexpr):
    for i in tkc.range(4):
        if n:
            tkc.store(o, (i,), tkc.zeros((1,)))


@pytest.mark.parametrize("stores", [False, True])
def test_what_lies_nobody_knows_where_is_read_early_where_nothing_is_written(stores):
    (loop,) = operations_in(traced(filled, f1, f1, n=stores), scf.ForOp)
    copy = SimpleNamespace(parent_op=lambda: loop)
    assert alias.source_unchanged(copy, loop, ()) != stores


# ---- programs that a block takes in turn
def clusters(loop, what: str = "clusters"):
    return before(loop, Identity(what)).result


def test_a_number_of_clusters_is_no_cluster():
    loop = plain()
    add = CLASSES["add"]
    assert alias._is_cluster_number(before(loop, add(loop.lb, clusters(loop))).result)
    assert not alias._is_cluster_number(before(loop, add(clusters(loop), clusters(loop))).result)
    assert not alias._is_cluster_number(clusters(loop))


# ---- blocks without axes of one element
def columns(x, rows, o, LISTED: tkc.constexpr):
    at = tkc.load(rows, (0,), (64,)) if LISTED else 0
    column = tkc.load(x, (at, 0), (64, 1)).reshape(64)
    tkc.store(o, (at, 0), (column + 1).reshape(64, 1))


@pytest.mark.parametrize("listed", [False, True])
def test_rows_that_are_listed_keep_their_axis_of_one(listed):
    module = traced(columns, f2, n1, f2, LISTED=listed)
    load = next(op for op in operations_in(module, tile.Load) if len(op.offsets) == 2)
    (store,) = operations_in(module, tile.Store)
    assert unit_axes._of_load(load) != listed
    assert unit_axes._of_store(store) != listed


# ---- what programs of a block share
def shared(x, y, o):
    tkc.store(o, (tkc.program_id(0) * 64, 0), tkc.load(x, (0, 0), (64, 64)))


@pytest.mark.parametrize("overlaps, kept", [((), True), (((0, 2),), False)], ids=str)
def test_a_block_is_kept_for_the_next_program_where_none_writes_it(overlaps, kept):
    module = traced(shared, f2, n1, f2)
    (load,) = operations_in(module, tile.Load)
    moved = schedule_programs._each_program(load.parent, True, overlaps)
    assert (load not in moved) == kept


# ---- operands
@pytest.mark.parametrize("n, zero", [(0, True), (1, False)])
def test_only_zero_is_zero(n, zero):
    assert operands.zero(tile.Constant(n, TileType((8,), f32)).result) == zero
    assert not operands.zero(tile.Arange(0, TileType((8,), i32)).result)


def multiplied(a, b, o, K: tkc.constexpr, BATCH: tkc.constexpr):
    zeros, one = ((0, 0, 0), (2,)) if BATCH else ((0, 0), ())
    x = tkc.load(a, zeros, (*one, 64, K))
    tkc.store(o, zeros, tkc.dot(x, tkc.load(b, zeros, (*one, K, 64))))


def test_wgmma_has_no_batches_and_whole_steps_of_k():
    options = context("sm_90a").options

    def why(array, out, K, BATCH):
        (dot,) = operations_in(traced(multiplied, array, array, out, K=K, BATCH=BATCH), tile.Dot)
        return operands.why_not_wgmma(dot, options)

    assert why(h2, f2, 32, False) == ""
    assert why(h3, f3, 32, True) == "a dot has batch axes"
    assert "64x64x8 is not made of wgmma's" in why(h2, f2, 8, False)


def turned(a, b, o, BATCH: tkc.constexpr):
    zeros, one = ((0, 0, 0), (2,)) if BATCH else ((0, 0), ())
    tkc.store(o, zeros, tkc.load(a, zeros, (*one, 64, 32)))


@pytest.mark.parametrize("batch", [False, True])
def test_blocks_of_a_batch_are_not_turned_in_registers(batch):
    given = aligned(tkc.float32, 2 + batch)
    (load,) = operations_in(traced(turned, given, given, given, BATCH=batch), tile.Load)
    assert operands._turned(load.result, 0) != batch


def computed(a, b, o, HALVED: tkc.constexpr):
    x = tkc.load(a, (0, 0), (64, 32))
    x = (x + x) if HALVED else x
    tkc.store(o, (0, 0), tkc.dot(x, tkc.load(b, (0, 0), (32, 128))))


@pytest.mark.parametrize("doubled", [False, True])
def test_what_is_no_operand_itself_makes_one(doubled):
    module = traced(computed, h2, h2, f2, HALVED=doubled)
    load = operations_in(module, tile.Load)[0]
    assert operands._makes_one_operand(list(load.result.uses)) == doubled


def test_warpgroups_share_columns_where_the_left_operand_lies_in_shared_memory():
    options = {"roles": "cooperative", "split_warps": (4, 2)}
    (dot,) = operations_in(traced(computed, h2, h2, f2, HALVED=False), tile.Dot)
    assert operands.why_not_wgmma(dot, context("sm_90a", **options).options) == ""
    held = context("sm_90a", **options, left_operand="registers").options
    assert "warpgroups share columns" in operands.why_not_wgmma(dot, held)
