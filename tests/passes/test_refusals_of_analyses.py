"""What single predicates of the analyses refuse, each asked directly: beside what they take, the
nearest thing that they must not.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import i8, i32, i64

import tkc
from tests.language.kernels import array, traced
from tests.language.kernels import i32 as number
from tests.passes.kernels import aligned, context
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, Fact, TileType, element_of, f16, f32, ui8, ui32
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument
from tkc.passes import raise_pointers, simplify, split_masked_loops
from tkc.passes.analysis import alias, folding, mapped
from tkc.passes.analysis.pointers import Affine, Forms, Gathered, Wrapped
from tkc.passes.analysis.polynomials import Polynomial, Scalars
from tkc.passes.cuts.cut import is_block_of
from tkc.passes.layouts.epilogue_subtiles import StoredResult, reusable_loads
from tkc.passes.plan import kernel_of
from tkc.passes.planning import operands, rings
from tkc.passes.planning.gathers import BY_CONSUMERS, Why, load_by_consumers
from tkc.passes.planning.order import keep_in_order
from tkc.passes.planning.roles import programs, results, sharing
from tkc.passes.programs import dynamic_tile_scheduler
from tkc.passes.raised.blocks import Axis
from tkc.passes.warpgroups import cross_tile_prologue

h1, h2, f2 = array(tkc.float16), aligned(tkc.float16, 2), aligned(tkc.float32, 2)


# ---- memory
def told(x, flags, SEM: tkc.constexpr):
    tkc.store(flags.ptr, tkc.load(x, (0,), (1,))[0], sem=SEM)


@pytest.mark.parametrize("semantics, says", [(None, False), ("relaxed", False), ("release", True)])
def test_a_store_tells_others_where_it_releases(semantics, says):
    module = traced(told, array(tkc.int32), array(tkc.int32), SEM=semantics)
    (store,) = operations_in(module, tile.StorePointers)
    assert alias.releases(store) == says


def known_of(flags, x, SEM: tkc.constexpr):
    tkc.store(x, (0,), tkc.load(flags.ptr, sem=SEM) + tkc.arange(1))


@pytest.mark.parametrize("semantics, plain", [(None, True), ("acquire", False), ("relaxed", False)])
def test_a_load_that_watches_others_is_no_plain_one(semantics, plain):
    module = traced(known_of, array(tkc.int32), array(tkc.int32), SEM=semantics)
    (load,) = operations_in(module, tile.LoadPointers)
    assert alias.reads(load) == plain


def updated(x, SEM: tkc.constexpr, KIND: tkc.constexpr, USED: tkc.constexpr):
    old = KIND(x.ptr + tkc.arange(32), tkc.full((32,), 1, x.dtype), sem=SEM)
    if USED:
        tkc.store(x, (32,), old)


@pytest.mark.parametrize(
    "dtype, semantics, kind, used, update",
    [
        (tkc.float32, "relaxed", tkc.atomic_add, False, True),
        (tkc.float32, "relaxed", tkc.atomic_max, False, True),
        (tkc.float32, "release", tkc.atomic_add, False, False),
        (tkc.int32, "relaxed", tkc.atomic_add, False, False),
        (tkc.float32, "relaxed", tkc.atomic_add, True, False),
    ],
)
def test_which_atomics_are_updates(dtype, semantics, kind, used, update):
    module = traced(updated, array(dtype), SEM=semantics, KIND=kind, USED=used)
    (atomic,) = operations_in(module, tile.Atomic)
    assert simplify.is_update(atomic) == update


# ---- rows of several axes
def listed_rows(x, o, SHAPE: tkc.constexpr, ROWS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0, 0), SHAPE).reshape(ROWS))


@pytest.mark.parametrize(
    "dense, rows, lists", [(2, (64, 32), True), (2, (32, 64), False), (1, (64, 32), False)]
)
def test_rows_that_lie_one_after_the_other_in_a_block(dense, rows, lists):
    strides = [Fact(exact=1) if axis == dense else Fact(8) for axis in range(3)]
    x = ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * 3, tuple(strides), 16))
    module = traced(listed_rows, x, h2, SHAPE=(4, 16, 32), ROWS=rows)
    (reshape,) = operations_in(module, tile.Reshape)
    assert mapped.lists_rows(reshape) == lists


def of_columns(a, b, c, TURNED: tkc.constexpr):
    """A left operand that is computed of blocks, with rows or with columns as they lie."""
    acc = tkc.zeros((64, 64))
    for k in tkc.range(0, b.shape[0], 32):
        x = tkc.load(a, (k, 0), (32, 64)).T if TURNED else tkc.load(a, (0, k), (64, 32))
        acc = tkc.dot((x + x).to(b.dtype), tkc.load(b, (k, 0), (32, 64)), acc)
    tkc.store(c, (0, 0), acc)


@pytest.mark.parametrize(
    "dtype, turned, options, pairs",
    [
        (tkc.int8, True, {}, True),
        (tkc.int8, False, {}, False),
        (tkc.float16, True, {}, False),
        (tkc.int8, True, {"split_warps": (4, 2), "roles": "cooperative"}, False),
    ],
)
def test_threads_have_pairs_of_rows_that_lie_beside_each_other(dtype, turned, options, pairs):
    module = traced(of_columns, aligned(dtype, 2), h2, f2, TURNED=turned)
    given = context("sm_90a", **options).options
    assert operands.paired(operations_in(module, tile.Dot), given) == pairs


def of_few_rows(a, s, b, c, FEW: tkc.constexpr):
    """A left operand that is computed of a block, and of one that has a row for all of it."""
    acc = tkc.zeros((64, 64))
    for k in tkc.range(0, b.shape[0], 64):
        x = tkc.load(a, (k, 0), (64, 64)).T
        y = tkc.load(s, (0, k), (1, 64)) if FEW else tkc.load(s, (k, 0), (64, 64)).T
        acc = tkc.dot((x + y).to(b.dtype), tkc.load(b, (k, 0), (64, 64)), acc)
    tkc.store(c, (0, 0), acc)


@pytest.mark.parametrize("few", [False, True])
def test_a_block_of_one_row_for_all_has_no_pairs_of_rows(few, monkeypatch):
    monkeypatch.setattr(operands, "MAX_BESIDE_BYTES", 16)
    module = traced(of_few_rows, aligned(tkc.int8, 2), aligned(tkc.int8, 2), h2, f2, FEW=few)
    assert operands.paired(operations_in(module, tile.Dot), context("sm_90a").options) != few


@pytest.mark.parametrize("third", [False, True])
def test_a_third_role_leaves_no_registers_for_four_warpgroups_that_make_operands(
    third, monkeypatch
):
    monkeypatch.setattr(sharing, "_hold_operands", lambda request, groups: True)
    request = SimpleNamespace(has_third_role=third, dots=[], rows=256)
    assert sharing._of_many_rows(request) == (0 if third else 4)


def beside_another(x, o, K, ADDED: tkc.constexpr):
    """What a loop counts is in 32 bits beside what is never negative, or what is taken from it."""
    for i in tkc.range(K, K + 4):
        beside = i + tkc.program_id(0) if ADDED else i - tkc.program_id(0)
        tkc.store(o.ptr + beside * 1024, x[0])


@pytest.mark.parametrize("added", [False, True])
def test_a_part_of_a_sum_is_narrow_beside_what_is_never_negative(added):
    module = traced(beside_another, array(tkc.int32), array(tkc.int32), number(), ADDED=added)
    forms, (loop,) = Forms.of(kernel_of(module)), operations_in(module, scf.ForOp)
    counted = forms.scalars.of(loop.body.block.args[0]) * Polynomial.number(1024)
    assert forms.is_narrow(counted) == added


# ---- programs
def through_memory(h, w):
    """Each iteration reads what the one before stored."""
    for i in tkc.range(4):
        acc = tkc.zeros((64, 64))
        for k in tkc.range(0, 64, 16):
            acc = tkc.dot(tkc.load(h, (i * 64, k), (64, 16)), tkc.load(w, (k, 0), (16, 64)), acc)
        tkc.store(h, (i * 64 + 64, 0), acc.to(h.dtype))


@pytest.mark.parametrize("marked", [False, True])
def test_no_copy_waits_for_a_store_before_a_block_that_consumers_load(marked):
    module, given = traced(through_memory, h2, h2), context("sm_90a")
    loads = operations_in(module, tile.Load)
    if marked:
        load_by_consumers(loads[0], Why.NO_ROLE)
    kernel = kernel_of(module)
    assert keep_in_order(kernel, loads, given.options, given.overlaps) != marked
    if marked:
        assert loads[0].attributes[BY_CONSUMERS].data == Why.NO_ROLE


@pytest.mark.parametrize("waits", [False, True])
def test_programs_that_wait_are_not_claimed_one_by_one(waits):
    request = SimpleNamespace(claims=False, waits=waits)
    sharing = SimpleNamespace(together=True, split_k=1, stream_k=False)
    why = programs._why_static(request, sharing, SimpleNamespace(cluster=(1, 1)))
    assert bool(why) == waits


# ---- numbers
@pytest.mark.parametrize(
    "one, other, exact",
    [
        (ui8, i32, True),
        (i8, i32, True),
        (i8, ui32, False),
        (i64, i32, False),
        (ui8, ui32, True),
        (f16, f32, True),
        (f32, f16, False),
        (f16, i32, False),
        (i8, f16, True),
        (i32, f32, False),
    ],
)
def test_which_numbers_are_among_others(one, other, exact):
    """A negative one is no unsigned one, a half no integer."""
    assert folding._exact(one, other) == exact


def narrowed(x, y, o, KIND: tkc.constexpr, TWICE: tkc.constexpr):
    a, b = (tkc.load(v, (0,), (64,)).to(tkc.float32) for v in (x, y))
    c = KIND(a, b)
    tkc.store(o, (0,), c.to(tkc.float16))
    if TWICE:
        tkc.store(o, (64,), (c * 3.1).to(tkc.float16))


@pytest.mark.parametrize(
    "kind, twice, element",
    [
        (lambda a, b: a * b, False, f16),
        (lambda a, b: a % b, False, f32),  # its quotient is not rounded alike
        (lambda a, b: a * b, True, f32),  # it is there in any case
    ],
)
def test_a_sum_or_product_that_nothing_else_needs_is_one_of_16_bits(kind, twice, element):
    module = traced(narrowed, h1, h1, h1, KIND=kind, TWICE=twice)
    simplify.run(module, context("sm_90a"))
    named = [op for op in operations_in(module, ew.Elementwise) if op.fn.name in ("mul", "mod")]
    assert {element_of(op.result.type) for op in named} == {element}
    assert len(named) == 1 + twice


# ---- affine tiles
ONE = Polynomial.number(1)
EVEN = Affine(strides=((0, ONE),))


def gathered(axis: int) -> Affine:
    numbers = tile.Arange(TileType((8,), i32), 0).result
    return Affine(gathered=((axis, Gathered(numbers, ONE)),))


def test_what_is_gathered_is_not_even():
    assert EVEN.is_even and not gathered(0).is_even


@pytest.mark.parametrize("axis, known", [(0, False), (1, True)])
def test_what_is_gathered_and_moves_along_one_axis_is_no_form(axis, known):
    assert (gathered(axis).plus(EVEN) is not None) == known
    assert (EVEN.plus(gathered(axis)) is not None) == known
    assert (gathered(axis).plus(gathered(0)) is not None) == known


def never_negative(x, n, FUNCTION: tkc.constexpr):
    m = tkc.program_id(0)
    tkc.store(x, (FUNCTION(m, n),), tkc.zeros((4,)))


@pytest.mark.parametrize(
    "function, known",
    [
        (lambda m, n: tkc.minimum(m, m + 3), True),
        (lambda m, n: tkc.minimum(m, n), False),
        (lambda m, n: tkc.minimum(m, m - 3), False),
        (lambda m, n: tkc.minimum(m, m + n), False),
        (lambda m, n: tkc.maximum(m, n), True),
        (lambda m, n: (m * 2 + 1) // 3, True),
        (lambda m, n: (m * 2 - 1) // 3, False),
    ],
)
def test_which_numbers_are_never_negative(function, known):
    """The least of several is where all are, a sum where all its terms are."""
    module = traced(never_negative, array(tkc.float32), number(), FUNCTION=function)
    (store,) = operations_in(module, tile.Store)
    scalars = Scalars()
    assert scalars.is_never_negative(scalars.of(store.offsets[0]), set()) == known


# ---- loops
def counted(o, n, KIND: tkc.constexpr):
    place = n
    for k in tkc.range(0, n, 4):
        tkc.store(o, (place,), tkc.full((4,), k, tkc.int32))
        place = KIND(place)


@pytest.mark.parametrize(
    "kind, moves",
    [
        (lambda p: p + 4, True),
        (lambda p: p - 4, False),
        (lambda p: p + 3, False),
        (lambda p: tkc.program_id(0) + 4, False),
    ],
)
def test_a_counter_moves_by_the_step(kind, moves):
    (loop,) = operations_in(traced(counted, array(tkc.int32), number(), KIND=kind), scf.ForOp)
    argument, end = loop.body.block.args[1], loop.body.block.last_op.operands[0]
    assert simplify._moves_by(end, argument, loop.step) == moves
    end.owner.operands = [*reversed(end.owner.operands)]
    assert simplify._moves_by(end, argument, loop.step) == moves


@pytest.mark.parametrize("element, is_index", [(i32, True), (f32, False)])
def test_tiles_of_whole_numbers_are_indices(element, is_index):
    tile_of = tile.Constant(0 if element == i32 else 0.0, TileType((8,), element)).result
    assert split_masked_loops._is_index(tile_of) == is_index
    assert not split_masked_loops._is_index(tile.Constant(0, i32).result)


def in_turn(a, b, o, BOTH: tkc.constexpr):
    m, total = tkc.program_id(0), tkc.zeros((64, 64))
    for k in tkc.range(m * 64, a.shape[1] + m if BOTH else a.shape[1], 256):
        total = tkc.dot(tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64)), total)
    tkc.atomic_add(o, (0, 0), total)


@pytest.mark.parametrize("both, takes", [(False, True), (True, False)])
def test_programs_that_take_steps_in_turn_end_alike(both, takes):
    (loop,) = operations_in(traced(in_turn, h2, h2, f2, BOTH=both), scf.ForOp)
    assert sharing._takes_steps_in_turn(loop) == takes


# ---- results and operands
def added(x, o):
    tkc.atomic_add(o, (0, 0), tkc.load(x, (0, 0), (64, 64)))


@pytest.mark.parametrize(
    "dtype, by_map", [(tkc.float32, True), (tkc.float16, True), (tkc.int32, False)]
)
def test_which_sums_a_map_adds(dtype, by_map):
    kind = aligned(dtype, 2)
    (update,) = operations_in(traced(added, kind, kind), tile.AtomicBlock)
    assert results._is_reduced_by_map(update) == by_map


def two_sides(a, b, c, N: tkc.constexpr):
    """A sum whose right operand alone is computed."""
    total = tkc.zeros((64, N))
    for k in tkc.range(0, a.shape[1], 64):
        right = tkc.load(b, (k, 0), (64, N)) * 2
        total = tkc.dot(tkc.load(a, (0, k), (64, 64)), right, total)
    tkc.store(c, (0, 0), total)


@pytest.mark.parametrize("columns, swapped", [(64, True), (32, False)])
def test_dots_whose_right_operand_is_computed_are_turned_by_64_columns(columns, swapped):
    computed = traced(two_sides, h2, h2, f2, N=columns)
    (dot,) = operations_in(computed, tile.Dot)
    plain = operands.source(dot.a) is not None and operands.source(dot.b) is None
    assert plain and operands._is_swapped(dot) == swapped


def turned_sides(a, b, c, LEFT: tkc.constexpr):
    total = tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[0], 32):
        left = tkc.load(a, (k, 0), (32, 64)).T if LEFT else tkc.load(a, (0, k), (64, 32))
        total = tkc.dot(left, tkc.load(b, (k, 0), (32, 64)), total)
    tkc.store(c, (0, 0), total)


@pytest.mark.parametrize("left, swapped", [(False, True), (True, False)])
def test_dots_of_float32_are_turned_where_the_right_operand_alone_is(left, swapped):
    (dot,) = operations_in(traced(turned_sides, f2, f2, f2, LEFT=left), tile.Dot)
    assert operands._is_swapped(dot) == swapped


def one_side(a, b, c, FIRST: tkc.constexpr):
    """The left operand is loaded once; its result is stored before the loop, or behind it."""
    left, total = tkc.load(a, (0, 0), (64, 64)), tkc.zeros((64, 64))
    if FIRST:
        tkc.store(c, (0, 0), total.to(c.dtype))
    for k in tkc.range(0, b.shape[0], 64):
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, 64)), total)
    if not FIRST:
        tkc.store(c, (0, 0), total.to(c.dtype))


@pytest.mark.parametrize("first, fits", [(False, 1), (True, 0)])
def test_a_stage_is_free_behind_its_loop_alone(first, fits):
    module = traced(one_side, h2, h2, h2, FIRST=first)
    (store,), loads = operations_in(module, tile.Store), operations_in(module, tile.Load)
    (loop,) = operations_in(module, scf.ForOp)
    assert kernel_of(module).body.block is loop.parent
    assert len(reusable_loads([StoredResult(store, False)], loads, loop, 1, 64)) == fits


@pytest.mark.parametrize("groups, bytes_", [(1, 0), (2, 64 * 64 * 2)])
def test_one_warpgroup_exchanges_nothing(groups, bytes_):
    module = traced(two_sides, h2, h2, f2, N=64)
    (dot,), (loop,) = operations_in(module, tile.Dot), operations_in(module, scf.ForOp)
    assert rings.exchanged_bytes([dot.b], [loop], groups) == bytes_


def test_forms_of_wrapped_axes_are_not_even():
    assert not Affine(wrapped=((0, Wrapped(ONE, ONE)),)).is_even


# ---- what follows from a program's place
def placed(x, o):
    tkc.store(o, (0,), tkc.arange(32) + tkc.program_id(0))


def test_a_tile_is_no_number_of_a_programs_place():
    module = traced(placed, array(tkc.int32), array(tkc.int32))
    assert not any(map(dynamic_tile_scheduler._is_scalar, operations_in(module, tile.Arange)))
    assert all(map(dynamic_tile_scheduler._is_scalar, operations_in(module, tile.ProgramId)))


def converted(x, o, FROM: tkc.constexpr, TO: tkc.constexpr):
    tkc.store(o, (0,), (tkc.arange(32).to(FROM) + 1).to(TO).to(tkc.float32))


@pytest.mark.parametrize(
    "given, wanted, small",
    [
        (tkc.int32, tkc.float32, True),
        (tkc.int64, tkc.float32, False),
        (tkc.int32, tkc.float16, False),
    ],
)
def test_which_conversions_of_indices_are_marked(given, wanted, small):
    module = traced(converted, f2, array(tkc.float32), FROM=given, TO=wanted)
    simplify._mark_small(kernel_of(module))
    assert any("small" in op.attributes for op in operations_in(module, ew.Cast)) == small


# ---- what the next program begins with
@dataclass(frozen=True)
class _Named:
    """A load that reads where nothing loaded says."""

    name: str
    operands = ()


@pytest.mark.parametrize("ring", [["first"], ["first", "beside"], ["beside"]])
def test_a_first_dot_needs_all_that_fills_its_stage(ring, monkeypatch):
    monkeypatch.setattr(programs, "unwritten", lambda load, overlaps: True)
    loads = ["first", "beside"]
    request = SimpleNamespace(
        dots=[], options=None, has_third_role=False, copies_wait=False, overlaps=()
    )
    rings = [{_Named(name) for name in ring}, {_Named(name) for name in loads if name not in ring}]
    request.operand_loads = {load for some in rings for load in some}
    monkeypatch.setattr(programs, "operand_loads", lambda dots, options: [_Named("first")])
    can = programs._can_begin_next(request, SimpleNamespace(late=["dot"]), rings)
    assert can == (ring != ["first", "beside"])


def test_places_of_arrays_with_bounds_are_as_they_are():
    stream = SimpleNamespace(head=[], body=SimpleNamespace(args=["place"]))
    stream.read_for = lambda values: {"place"}
    assert cross_tile_prologue._places_of_unbounded(stream) == []


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("moves", [False, True])
def test_a_block_begins_before_its_array_where_that_may_begin_there(moves, known, monkeypatch):
    one, row = Polynomial.number(1), Polynomial.number(8)
    axis = Axis(row, -one, None, 4)
    block = SimpleNamespace(axes=[axis], assumed=set())
    here = raise_pointers._Recognition.__new__(raise_pointers._Recognition)
    here.bounds = {}
    here.scalars = SimpleNamespace(
        is_never_negative=lambda number, assumed: number == row,
        host_limit=lambda number, assumed: one if known else None,
    )
    monkeypatch.setattr(raise_pointers._Recognition, "_may_move", lambda self, axis: moves)
    if moves:
        found = here._from_the_first(axis, None, block)
        assert (found.before, found.moved) == ((one, False) if known else (None, True))
        return
    with pytest.raises(raise_pointers.NotABlock):
        here._from_the_first(axis, None, block)


# ---- addresses
def of_one(x, o):
    tkc.store(o, (0, 0), tkc.load(x.ptr + (tkc.arange(32761, 32762) % 9)[:, None]))


def test_an_axis_of_one_element_that_goes_is_no_wrapped_one():
    module = traced(of_one, array(tkc.float32), f2)
    forms = Forms.of(kernel_of(module), {})
    assert [forms.get(op.result) for op in operations_in(module, tile.Reshape)] == [None]


def narrowed_numbers(o, SOURCE: tkc.constexpr, TARGET: tkc.constexpr, FIRST: tkc.constexpr):
    v = tkc.arange(4).to(SOURCE) + FIRST
    tkc.store(o, (0,), v.to(TARGET).to(o.dtype))


@pytest.mark.parametrize(
    "source, target, first, kept",
    [
        ("int64", "int32", 0, True),
        ("int64", "int32", (1 << 31) - 4, True),
        ("int64", "int32", (1 << 31) - 3, False),
        ("int64", "int32", -(1 << 31) - 1, False),
        ("int32", "int64", 0, True),
        ("float32", "int32", 0, False),
        ("int32", "float32", 0, False),
    ],
)
def test_which_conversions_give_the_same_numbers(source, target, first, kept):
    o = array(tkc.float64, 1)
    kinds = (getattr(tkc, name) for name in (source, target))
    module = traced(narrowed_numbers, o, *kinds, first)
    wanted = {i32: "int32", i64: "int64", f32: "float32"}
    casts = [
        op
        for op in operations_in(module, ew.Cast)
        if (wanted.get(element_of(op.arg.type)), wanted.get(element_of(op.result.type)))
        == (source, target)
    ]
    assert [Scalars().keeps_number(op) for op in casts[-1:]] == [kept]


def added_in_place(x):
    i = tkc.program_id(0)
    tkc.store(x, (i, i), tkc.load(x, (i, i), (4, 16)) + 1)


def test_a_block_of_an_array_that_is_folded_is_no_block_of_its_own():
    module = traced(added_in_place, array(tkc.float32, 2))
    (load,), (store,) = (operations_in(module, kind) for kind in (tile.Load, tile.Store))
    assert is_block_of(load, store, ())
    assert not is_block_of(load, store, ((0, 0),))
