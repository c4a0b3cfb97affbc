"""Which results, operands and loads the planner and later passes refuse to treat in the quicker
way: each question by itself, on small programs.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument
from tkc.passes import merge_loads, select_layouts
from tkc.passes.analysis.pointers import Forms
from tkc.passes.layouts import accumulator_stores
from tkc.passes.planning import operands
from tkc.passes.planning.roles import results, sharing
from tkc.passes.planning.roles.memory import _Division
from tkc.passes.warpgroups import epilogue_stores
from tkc.sim.level0 import kernel_of

H2, F1, N1 = aligned(tkc.float16, 2), array(tkc.float32, 1), array(tkc.int32, 1)


# ---- results
def stored_three_times(x, c, d):
    t = tkc.load(x, (0,), (64,))
    tkc.store(c, (0,), t)
    tkc.store(d, (0,), t)
    if tkc.program_id(0) > 0:
        tkc.store(c, (64,), t)
    else:
        tkc.store(c, (64,), t + 1)


def test_which_stores_no_other_one_of_a_program_may_meet():
    first, other, one, instead = operations_in(traced(stored_three_times, F1, F1, F1), tile.Store)
    stores = SimpleNamespace(context=SimpleNamespace(overlaps=()))
    alone = accumulator_stores._Stores._is_alone
    assert alone(stores, other, [first, one, instead])
    assert alone(stores, one, [other, instead])
    assert not alone(stores, first, [one])
    assert not alone(stores, one, [first])


@pytest.mark.parametrize("dense", [0, 1])
def test_tensor_maps_store_rows(dense):
    strides = (Fact(8), Fact(exact=1)) if dense else (Fact(exact=1), Fact(8))
    matrix = ArrayArgument(tkc.float16, ArrayFacts((Fact(8), Fact(8)), strides, 16))

    def stored(x, c):
        tkc.store(c, (0, 0), tkc.load(x, (0, 0), (64, 64)))

    (store,) = operations_in(traced(stored, H2, matrix), tile.Store)
    assert results.is_stored_by_map(store) == bool(dense)


def test_sums_of_copies_that_add_alike_come_to_the_same():
    one, other = SimpleNamespace(reduce="add"), SimpleNamespace(reduce="add")
    assert not epilogue_stores._may_overwrite(one, other, [one, other], ())


def moved(x, o, numbers, TOO: tkc.constexpr):
    for i in tkc.range(0, 4):
        at = i * 64
        if TOO:
            at += numbers[i]
        tkc.store(o, (at,), tkc.load(x, (0,), (64,)))


@pytest.mark.parametrize("too, apart", [(False, 64), (True, 0)])
def test_how_far_iterations_are_apart_follows_from_the_counter_alone(too, apart):
    module = traced(moved, F1, F1, N1, TOO=too)
    (loop,), (store,) = operations_in(module, scf.ForOp), operations_in(module, tile.Store)
    assert epilogue_stores._least_distance(store.offsets[0], store.offsets[0], loop) == apart


@pytest.mark.parametrize("members", [1, 2])
def test_co_resident_programs_store_through_stages(members):
    memory = SimpleNamespace(
        options=SimpleNamespace(subtiles=None), sharing=SimpleNamespace(members=members)
    )
    assert _Division._subtiles(memory, {1: (4,), 2: (4,)}, True, "") == (2 if members == 1 else 0)


# ---- operands
def multiplied(a, b, c, BESIDE: tkc.constexpr):
    acc, total = tkc.zeros((64, 64)), tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        x = tkc.load(a, (0, k), (64, 64))
        acc = tkc.dot(x * (x + 1), tkc.load(b, (k, 0), (64, 64)), acc)
        total += x if BESIDE else 0
    tkc.store(c, (0, 0), (acc + total).to(c.dtype))


@pytest.mark.parametrize("beside", [False, True])
def test_a_block_of_which_one_operand_is_made_is_read_once(beside):
    load = operations_in(traced(multiplied, H2, H2, H2, BESIDE=beside), tile.Load)[0]
    assert operands.is_read_again(load) == beside


def test_warpgroups_have_no_programs_of_their_own_where_a_loop_does_more():
    def read_in_the_loop(a, b, c):
        acc, total = tkc.zeros((64, 64)), tkc.zeros((64, 64))
        for k in tkc.range(0, a.shape[1], 64):
            total += acc
            acc = tkc.dot(tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64)), acc)
        tkc.store(c, (0, 0), total.to(c.dtype))

    (dot,) = operations_in(traced(read_in_the_loop, H2, H2, H2), tile.Dot)
    request = SimpleNamespace(dots=(dot,))
    assert "more than accumulate" in sharing._together_by_dots(request)


@pytest.mark.parametrize("instruction", ["mma", "wgmma"])
def test_which_dots_read_a_block_in_memory(instruction):
    (dot,) = operations_in(traced(multiplied, H2, H2, H2, BESIDE=False), tile.Dot)
    chosen = SimpleNamespace(instruction=instruction, a="registers", b="shared")
    plan = SimpleNamespace(dot=lambda op: chosen)
    use = SimpleNamespace(operation=dot, index=1)
    assert select_layouts._is_read_in_memory(use, plan) == (instruction == "wgmma")


# ---- loads
def test_elements_apart_have_no_neighbours():
    def loaded(x, o):
        tkc.store(o, (0,), tkc.sum(tkc.load(x, (0, 0), (64, 8)), axis=1))

    apart = ArrayArgument(tkc.float32, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(8)), 16))
    module = traced(loaded, apart, F1)
    (load,) = operations_in(module, tile.Load)
    assert merge_loads._block(load, Forms.of(kernel_of(module))) is None
