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
from tkc.ir.types import ArrayFacts, Fact, f8e5m2, f16, f32, f64
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument
from tkc.passes import merge_loads, raise_pointers, rotate_loops, select_layouts
from tkc.passes.analysis import folding, parts, polynomials
from tkc.passes.analysis.pointers import Forms
from tkc.passes.layouts import accumulator_stores
from tkc.passes.planning import operands
from tkc.passes.planning.roles import programs, results, sharing
from tkc.passes.planning.roles.memory import _Division
from tkc.passes.warpgroups import epilogue_stores, numbers_of_tiles
from tkc.sim.level0 import kernel_of

ODD = 1 + 2.0**-40  # no float32
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


def moved(x, o, numbers, HOW: tkc.constexpr):
    for i in tkc.range(0, 4):
        at = i * i * 64 if HOW == "squared" else i * 64
        if HOW == "and loaded":
            at += numbers[i]
        tkc.store(o, (at,), tkc.load(x, (0,), (64,)))


@pytest.mark.parametrize("how, apart", [("alone", 64), ("and loaded", 0), ("squared", 0)])
def test_how_far_iterations_are_apart_follows_from_the_counter_alone(how, apart):
    module = traced(moved, F1, F1, N1, HOW=how)
    (loop,), (store,) = operations_in(module, scf.ForOp), operations_in(module, tile.Store)
    assert polynomials.least_distance(store.offsets[0], store.offsets[0], loop) == apart


def stored_to_two(x, c, d):
    for i in tkc.range(0, 4):
        tkc.store(c, (0,), tkc.load(x, (i,), (64,)))
        tkc.store(d, (0,), tkc.load(x, (i + 4,), (64,)))


def test_copies_to_two_arrays_meet_in_no_iteration():
    module = traced(stored_to_two, F1, F1, F1)
    (loop,), (one, other) = operations_in(module, scf.ForOp), operations_in(module, tile.Store)
    assert epilogue_stores._meet_again(one, one, loop, ())
    assert not epilogue_stores._meet_again(one, other, loop, ())


@pytest.mark.parametrize("sliced", [False, True])
def test_views_that_slices_choose_are_no_indices(sliced):
    def viewed(x, o, SLICED: tkc.constexpr):
        for i in tkc.range(0, 4):
            view = o[i : i + 1] if SLICED else o[i]
            place = (0, 0) if SLICED else (0,)
            value = tkc.load(x, (0,), (64,))
            tkc.store(view, place, value[None, :] if SLICED else value)

    module = traced(viewed, F1, aligned(tkc.float32, 2), SLICED=sliced)
    (loop,), (store,) = operations_in(module, scf.ForOp), operations_in(module, tile.Store)
    assert (epilogue_stores._indices_inside(store.array, loop) is None) == sliced


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


@pytest.mark.parametrize("beside", [False, True])
def test_the_next_programs_first_dot_begins_with_its_operands_alone(beside, monkeypatch):
    module = traced(multiplied, H2, H2, H2, BESIDE=False)
    left, right = operations_in(module, tile.Load)
    monkeypatch.setattr(programs, "operand_loads", lambda dots, options: [left])
    request = SimpleNamespace(
        **dict(dots=(None,), options=None, has_third_role=False, copies_wait=False, overlaps=()),
        operand_loads=[left] if beside else [left, right],
    )
    execution = SimpleNamespace(late=(None,))
    assert programs._can_begin_next(request, execution, [[left], [right]]) != beside


# ---- parts, lines, numbers
@pytest.mark.parametrize(
    "how, equal", [("second half", True), ("middle", False), ("every second", False)]
)
def test_which_slices_are_equal_parts(how, equal):
    cut = {"second half": slice(2, 4), "middle": slice(1, 3), "every second": slice(0, 4, 2)}[how]

    def taken(x, o):
        tkc.store(o, (0, 0), tkc.load(x, (0, 0), (64, 4))[:, cut])

    (found,) = operations_in(traced(taken, H2, H2), tile.Slice)
    assert parts.is_one_of_equal_parts(found) == equal


def test_lanes_reduce_one_line_together():
    def reduced(x, o):
        lines = tkc.max(tkc.load(x, (0, 0), (8, 16)), axis=1)
        tkc.store(o, (0,), tkc.full((1,), tkc.max(lines), o.dtype))

    two, one = operations_in(traced(reduced, H2, F1), tile.Reduce)
    role = SimpleNamespace(single=None)
    assert not numbers_of_tiles._by_lanes(two, role)
    assert not numbers_of_tiles._by_lanes(one, SimpleNamespace(single=True))

    def line(x, o):
        tkc.store(o, (0,), tkc.full((1,), tkc.max(tkc.load(x, (0,), (16,))), o.dtype))

    (alone,) = operations_in(traced(line, F1, F1), tile.Reduce)
    assert numbers_of_tiles._by_lanes(alone, role)


@pytest.mark.parametrize("wrapped, gathered", [(((0, None),), ()), ((), ((0, None),))])
def test_rows_of_a_circle_or_of_numbers_stay_an_axis(wrapped, gathered, monkeypatch):
    def dropped(x, o):
        tkc.store(o, (0,), tkc.load(x, (0, 0), (1, 4)).reshape(4))

    module = traced(dropped, H2, F1)
    (op,) = operations_in(module, tile.Reshape)
    forms = Forms.of(kernel_of(module))
    form = SimpleNamespace(wrapped=wrapped, gathered=gathered)
    monkeypatch.setattr(Forms, "get", lambda self, value: form)
    assert forms._reshaped(op) is None


@pytest.mark.parametrize(
    "between, last, skipped", [(f16, f8e5m2, False), (f16, f16, True), (f32, f16, True)]
)
def test_a_cast_there_and_back_keeps_infinities(between, last, skipped):
    assert folding._is_skipped(f8e5m2, between, last) == skipped


@pytest.mark.parametrize(
    "number, element, found",
    [
        (1.5, f16, 1.5),
        (1 + 2.0**-40, f16, None),
        (1 + 2.0**-40, f64, 1 + 2.0**-40),
        (1, f8e5m2, None),
    ],
)
def test_numbers_that_are_rounded_once_are_folded(number, element, found):
    assert folding._cast_number(number, element) == found


def test_a_monomial_is_divided_by_what_is_in_it():
    assert polynomials._without((1, 2, 2), (2,)) == (1, 2)
    assert polynomials._without((1, 2), (2, 2)) is None


def test_one_element_is_no_block():
    asked = SimpleNamespace(form=SimpleNamespace(base=0), extents=(1, 1))
    with pytest.raises(raise_pointers.NotABlock, match="one element"):
        raise_pointers._Recognition.block(asked)


def test_what_is_rounded_before_a_loop_comes_before_nothing_in_it():
    def rounded_before(a, b, c):
        x, acc = tkc.load(a, (0, 0), (64, 64)).to(tkc.bfloat16), tkc.zeros((64, 64))
        for k in tkc.range(0, 4):
            acc = tkc.dot(x, tkc.load(b, (k, 0), (64, 64)).to(tkc.bfloat16), acc)
        tkc.store(c, (0, 0), acc.to(c.dtype))

    (dot,) = operations_in(traced(rounded_before, H2, H2, H2), tile.Dot)
    graph = SimpleNamespace(group_of={dot: 0}, edges=lambda: [])
    assert rotate_loops._before_rounded(graph, [dot]) == set()
