"""What the analyses of numbers and addresses refuse, each asked directly, beside the nearest thing
that they take.
"""

import math
from types import SimpleNamespace

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import i1, i32

import tkc
from tests.language.kernels import array, traced
from tests.language.kernels import i32 as number
from tests.passes.kernels import context
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import before
from tkc.ir.types import ArrayFacts, Fact, bf16, element_of, f16, f32
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument, ScalarArgument
from tkc.passes import raise_pointers, simplify, split_masked_loops, unroll_loops
from tkc.passes.analysis import folding
from tkc.passes.analysis.pointers import Affine, Forms, Wrapped
from tkc.passes.analysis.polynomials import Polynomial, Scalars
from tkc.passes.plan import kernel_of
from tkc.passes.planning.numbers import Numbers
from tkc.passes.raised import arrays, writing
from tkc.passes.raised.blocks import Axis

f1, n1, f2 = array(tkc.float32), array(tkc.int32), array(tkc.float32, 2)
ONE = Polynomial.number(1)
EVEN = Affine(strides=((0, ONE),))


def named(module, name: str) -> list:
    return [op for op in operations_in(module, ew.Elementwise) if op.fn.name == name]


# ---- folding
def compared(x, o, n, LIMIT: tkc.constexpr):
    places = LIMIT(tkc.load(x, (0,), (64,))).to(tkc.int64)
    tkc.store(o, (0,), places < n)


@pytest.mark.parametrize(
    "limit, narrows",
    [
        (lambda x: tkc.maximum(tkc.minimum(x, 100), -100), True),
        (lambda x: tkc.minimum(x, 100), False),
        (lambda x: tkc.maximum(x, -100), False),
    ],
)
def test_a_comparison_is_of_32_bits_where_there_is_a_number_outside(limit, narrows):
    module = traced(compared, n1, array(tkc.bool_), ScalarArgument(tkc.int64), LIMIT=limit)
    (less,) = named(module, "lt")
    assert (folding._narrower(less, Ranges()) is not None) == narrows


def halved(x, y, o, KIND: tkc.constexpr, GIVEN: tkc.constexpr):
    a = tkc.load(x, (0,), (64,)).to(tkc.float32)
    b = GIVEN(tkc.load(y, (0,), (64,))).to(tkc.float32)
    tkc.store(o, (0,), KIND(a, b).to(x.dtype))


def same(x):
    return x


@pytest.mark.parametrize(
    "dtype, other, kind, given, element",
    [
        (tkc.bfloat16, tkc.bfloat16, lambda a, b: a + b, same, bf16),
        (tkc.bfloat16, tkc.bfloat16, lambda a, b: a * b, same, f32),  # may be below float32
        (tkc.bfloat16, tkc.int8, lambda a, b: a * b, same, bf16),
        (tkc.float16, tkc.int8, lambda a, b: a * b, same, f16),
        (tkc.float16, tkc.int16, lambda a, b: a * b, lambda x: tkc.minimum(x, 100), f32),
        (tkc.float16, tkc.int16, lambda a, b: a * b, lambda x: tkc.maximum(x, 0), f32),
    ],
)
def test_which_sums_and_products_are_of_16_bits(dtype, other, kind, given, element):
    module = traced(halved, array(dtype), array(other), array(dtype), KIND=kind, GIVEN=given)
    simplify.run(module, context("sm_90a"))
    made = [op for op in operations_in(module, ew.Elementwise) if op.fn.name in ("add", "mul")]
    assert {element_of(op.result.type) for op in made} == {element}


@pytest.mark.parametrize(
    "n, element, made",
    [
        (math.nan, f16, None),
        (math.nan, f32, None),
        (math.nan, i1, None),
        (math.nan, i32, None),
        (2**24, bf16, 2.0**24),
        (2**24 + 1, bf16, None),  # rounded twice
        (2**24 + 1, f32, 2.0**24),
        (2**60 + 2**36 + 1, f32, None),  # by way of a float64
        (math.inf, i32, None),
    ],
)
def test_which_numbers_are_cast_while_compiling(n, element, made):
    assert folding._cast_number(n, element) == made


def filled(x, o, OTHER: tkc.constexpr):
    places = tkc.arange(64)
    tkc.store(o, (0,), tkc.load(x.ptr + places, mask=places < 3, other=tkc.full((64,), OTHER)))


@pytest.mark.parametrize("other, fills", [(0.0, True), (-0.0, False), (1.0, False)])
def test_minus_zero_is_not_what_a_load_fills_with(other, fills):
    (load,) = operations_in(traced(filled, f1, f1, OTHER=other), tile.LoadPointers)
    assert folding._is_filled_with_zeros(load) == fills


@pytest.mark.parametrize(
    "kind, update", [(tkc.atomic_add, True), (tkc.atomic_max, True), (tkc.atomic_xchg, False)]
)
def test_which_kinds_of_atomics_update(kind, update):
    def updated(x):
        kind(x.ptr + tkc.arange(32), tkc.full((32,), 1, x.dtype), sem="relaxed")

    (atomic,) = operations_in(traced(updated, f1), tile.Atomic)
    assert simplify.is_update(atomic) == update


def combined(x, y, o, ROWS: tkc.constexpr):
    a, b = (tkc.load(v, (0, 0), (ROWS, 64)) for v in (x, y))
    (c, d) = tkc.reduce((a, b), 0, lambda p, q, r, s: (p + r, q * s))
    tkc.store(o, (0,), c + d)


def test_what_combines_several_tiles_is_no_element_of_one():
    module = traced(combined, f2, f2, f1, ROWS=1)
    (reduce,) = operations_in(module, tile.Reduce)
    assert folding._reduce(reduce) is None


# ---- loops
def turned(o, FIRST: tkc.constexpr, END: tkc.constexpr, STEP: tkc.constexpr):
    for i in tkc.range(FIRST, END, STEP):
        tkc.store(o, (i,), tkc.zeros((4,), tkc.int32))


@pytest.mark.parametrize("step, count", [(1, 8), (3, 3), (-1, None)])
def test_how_many_iterations_a_loop_has(step, count):
    (loop,) = operations_in(traced(turned, n1, FIRST=0, END=8, STEP=1), scf.ForOp)
    loop.operands[2] = before(loop, tile.Constant(step, i32)).result
    assert unroll_loops.iterations(loop) == count


# ---- masks
def both(x, o, n, OF: tkc.constexpr):
    i = tkc.arange(64)
    tkc.store(o, (0,), tkc.load(x, (0,), (64,), mask=OF(i < n, i < 8)))


@pytest.mark.parametrize(
    "of, known",
    [
        (lambda a, b: a & b, True),
        (lambda a, b: ~a, True),
        (lambda a, b: a ^ b, False),
        (lambda a, b: ~(a ^ b), False),
    ],
)
def test_which_masks_hold_everywhere_where_a_number_says_so(of, known):
    (load,) = operations_in(traced(both, f1, f1, number(), OF=of), tile.Load)
    assert (split_masked_loops.Question(load).all(load.mask) is not None) == known


# ---- extents
def extents(x, o, n, OF: tkc.constexpr):
    tkc.store(o, (0,), tkc.full((4,), OF(x, n).shape[0], tkc.int32))


@pytest.mark.parametrize(
    "of, extent",
    [(lambda x, n: x, 100), (lambda x, n: x[n], 64), (lambda x, n: x[2:n], None)],
)
def test_extents_of_parts_are_not_those_of_their_arrays(of, extent):
    module = traced(extents, f2, n1, number(), OF=of)
    kernel, dim = kernel_of(module), operations_in(module, tile.Dim)[-1]
    given = SimpleNamespace(arguments={kernel.body.block.args[0]: (100, 64)})
    dim = (
        before(dim, tile.Dim(operations_in(module, tile.View)[-1].result, 0))
        if extent is None
        else dim
    )
    assert Numbers.extent(given, dim) == extent


# ---- limits that the host knows
def limited(o, n, m, OF: tkc.constexpr):
    tkc.store(o, (OF(tkc.program_id(0), n, m, o.shape[0]),), tkc.zeros((4,), tkc.int32))


def limits_of(of) -> tuple[list, list]:
    """What a place never exceeds, and the numbers n and m."""
    module = traced(limited, n1, number(), number(), OF=of)
    (store,) = operations_in(module, tile.Store)
    scalars = Scalars()
    n, m = map(scalars.of, kernel_of(module).body.block.args[1:3])
    return scalars.host_limits(scalars.of(store.offsets[0]), set()), [n, m]


def test_what_a_number_of_the_host_never_exceeds():
    least, of = tkc.minimum, limits_of
    found, (n, m) = of(lambda p, n, m, k: n - least(p, m))
    assert found == [n, n - m]  # the largest of both
    found, (n, m) = of(lambda p, n, m, k: n - tkc.maximum(p, 3))
    assert found == [n]  # not of each
    found, (n, m) = of(lambda p, n, m, k: n - least(n, m))
    assert len(found) == 1  # which the host computes
    found, (n, m) = of(lambda p, n, m, k: least(p, n))
    assert found == [n]
    assert of(lambda p, n, m, k: tkc.maximum(p, n))[0] == []
    assert len(of(lambda p, n, m, k: least(p, n) * k)[0]) == 1
    assert of(lambda p, n, m, k: least(p, n) * m)[0] == []  # which may be negative


@pytest.mark.parametrize("deep, known", [(7, True), (9, False)])
def test_numbers_are_looked_into_eight_deep(deep, known):
    def nested(p, n, m, k):
        for _ in range(deep):
            p = (p * 2 - p) // 3
        return p

    module = traced(limited, n1, number(), number(), OF=nested)
    (store,) = operations_in(module, tile.Store)
    scalars = Scalars()
    assert scalars.is_never_negative(scalars.of(store.offsets[0]), set()) == known


@pytest.mark.parametrize(
    "coefficient, held",
    [(2_000_000, True), (3_000_000, False), (-2_000_000, True), (-3_000_000, False)],
)
def test_which_terms_32_bits_hold(coefficient, held):
    """Of a remainder of 1000, whose sign is n's where n is not 0 or more."""
    module = traced(numbered, n1, number(), FUNCTION=lambda i, n: i + tkc.maximum(n, 0) % 1000)
    (rest,) = named(module, "mod")
    scalars = Scalars()
    assert scalars.fits((scalars.number_of(rest.result),), coefficient) == held


# ---- affine tiles
WRAPPED = Affine(strides=((0, ONE),), wrapped=((0, Wrapped(Polynomial(), ONE)),))


def test_what_is_wrapped_twice_along_an_axis_is_no_form():
    other = WRAPPED.renumbered({0: 1})
    assert WRAPPED.plus(WRAPPED) is None and WRAPPED.plus(other) is not None


def repeated(count: int) -> Affine:
    return Affine(strides=((0, ONE),), repeated=((0, count),))


@pytest.mark.parametrize("count, known", [(4, True), (2, False), (1, False)])
def test_what_changes_at_different_elements_is_no_form(count, known):
    other = EVEN if count == 1 else repeated(count)
    assert (repeated(4).plus(other) is not None) == known


def is_counted(form: Affine | None) -> bool:
    """Whether numbers are known as they count, and not as numbers that are gathered."""
    return form is not None and not form.gathered


def numbered(o, n, FUNCTION: tkc.constexpr):
    tkc.store(o, (0,), FUNCTION(tkc.arange(64), n))


@pytest.mark.parametrize(
    "function, kind, known",
    [
        (lambda i, n: i // 4, "floordiv", True),
        (lambda i, n: i // (i + 4), "floordiv", False),
        (lambda i, n: i // -4, "floordiv", False),
        (lambda i, n: i // 3, "floordiv", False),  # the last of a block is a part
        (lambda i, n: i % n // 4, "floordiv", False),
        (lambda i, n: i % n, "mod", True),
        (lambda i, n: i % (i + n), "mod", False),
    ],
)
def test_which_quotients_and_remainders_are_forms(function, kind, known):
    module = traced(numbered, n1, number(), FUNCTION=function)
    (op,) = named(module, kind)
    assert is_counted(Forms.of(kernel_of(module), {}).get(op.result)) == known


def hashed(o, FUNCTION: tkc.constexpr):
    p = tkc.program_id(0)
    h = (((p * 31 + 7) * 31 + 5) * 31 * 31 + 3) * 31 * 31
    tkc.store(o, (0,), tkc.arange(64) < FUNCTION(h))


@pytest.mark.parametrize(
    "function, exact",
    [
        (lambda h: h + 1, False),
        (lambda h: h % 64, True),  # a number of its own, whatever it is made of
        (lambda h: h % 64 + h, False),
    ],
)
def test_which_bounds_are_what_their_form_says(function, exact):
    """Hashes wrap."""
    module = traced(hashed, array(tkc.bool_), FUNCTION=function)
    (less,) = named(module, "lt")
    assert Forms.of(kernel_of(module), {}).is_exact(less.args[1], ()) == exact


@pytest.mark.parametrize(
    "function, known",
    [
        (lambda i, n: tkc.where(i < n, i, 0), True),
        (lambda i, n: tkc.where(i < n, i, i * 2), False),
    ],
)
def test_which_choices_are_numbers_below_a_bound(function, known):
    module = traced(numbered, n1, number(), FUNCTION=function)
    (op,) = operations_in(module, ew.Select)
    assert is_counted(Forms.of(kernel_of(module), {}).get(op.result)) == known


def chosen_addresses(x, y, o):
    at = x.ptr + tkc.arange(64)
    tkc.store(o, (0,), tkc.load(tkc.where(at < y.ptr, at, x.ptr)))


def test_addresses_below_a_bound_are_no_form():
    module = traced(chosen_addresses, f1, f1, f1)
    (op,) = operations_in(module, ew.Select)
    assert not is_counted(Forms.of(kernel_of(module), {}).get(op.result))


@pytest.mark.parametrize("shape, known", [((1, 64), True), ((8, 8), False)])
def test_numbers_whose_axis_is_taken_apart_are_no_form(shape, known):
    def reshaped(o):
        tkc.store(o, (0, 0), tkc.arange(64).reshape(*shape))

    module = traced(reshaped, array(tkc.int32, 2))
    (op,) = operations_in(module, tile.Reshape)
    assert is_counted(Forms.of(kernel_of(module), {}).get(op.result)) == known


def moved(o, n, STEP: tkc.constexpr):
    places = tkc.arange(64)
    for _ in tkc.range(4):
        tkc.store(o.ptr + places, places)
        places = places + STEP(tkc.arange(64), n)


@pytest.mark.parametrize(
    "step, known",
    [(lambda i, n: 8, True), (lambda i, n: i, False), (lambda i, n: i % n - i, False)],
)
def test_which_places_move_evenly(step, known):
    module = traced(moved, n1, number(), STEP=step)
    (loop,) = operations_in(module, scf.ForOp)
    forms = Forms.of(kernel_of(module), {})
    assert (forms.get(loop.body.block.args[1]) is not None) == known


# ---- blocks of addresses
@pytest.mark.parametrize(
    "function, taken",
    [
        (lambda p, n: p - p // n * n, True),
        (lambda p, n: p - (p // n + n), False),
        (lambda p, n: p - p % n * n, False),
    ],
)
def test_which_differences_are_remainders(function, taken):
    def place(o, n):
        tkc.store(o, (function(tkc.program_id(0), n),), tkc.zeros((4,), tkc.int32))

    module = traced(place, n1, number())
    before = len(named(module, "mod"))
    raise_pointers._take_remainders(kernel_of(module))
    assert len(named(module, "mod")) == before + taken


def masked(x, o, n, MASK: tkc.constexpr):
    places = tkc.arange(64)
    tkc.store(o, (0,), tkc.load(x.ptr + places, mask=MASK(places, n)))


@pytest.mark.parametrize("mask, left", [(lambda i, n: i < n, 0), (lambda i, n: i != n, 1)])
def test_which_masks_bound_an_axis(mask, left):
    module = traced(masked, f1, f1, number(), MASK=mask)
    (load,) = operations_in(module, tile.LoadPointers)
    forms = Forms.of(kernel_of(module), {})
    assert len(raise_pointers.Mask(load.mask, 1, forms, load.operands).left) == left


def listed(x, o, n):
    inside = tkc.arange(8)[:, None] * 8 + tkc.arange(8)[None, :] < n
    places = tkc.arange(64)
    tkc.store(o, (0,), tkc.load(x.ptr + places, mask=inside.reshape(64)))


def test_a_mask_whose_axes_are_taken_as_one_bounds_none():
    module = traced(listed, f1, f1, number())
    reshape = next(
        op for op in operations_in(module, tile.Reshape) if op.result.type.extents == (64,)
    )
    assert raise_pointers._through_reshape(reshape, {0: 0}) is None


@pytest.mark.parametrize(
    "stride, extent, dense, rows",
    [(1, 4, True, False), (1, 1, False, False), (8, 4, False, True), (8, 1, False, False)],
)
def test_which_axes_have_neighbours_and_rows(stride, extent, dense, rows):
    axis = SimpleNamespace(stride=Polynomial.number(stride), extent=extent)
    assert writing._is_dense(axis) == dense
    assert writing._is_of_rows(axis) == rows


def why_not_raised(kernel, *given, **constants) -> str:
    """What the pass says of accesses of a kernel that stay by pointers."""
    at = context("sm_90a")
    raise_pointers._raise(kernel_of(traced(kernel, *given, **constants)), at)
    return "; ".join(at.decisions)


def rows_of_programs(x, o):
    places = tkc.arange(8)[:, None] * (tkc.program_id(0) + 1) + tkc.arange(8)[None, :]
    tkc.store(o, (0, 0), tkc.load(x.ptr + places))


def test_a_stride_that_a_kernel_computes_is_of_no_array():
    why = why_not_raised(rows_of_programs, f1, array(tkc.float32, 2))
    assert "a stride is a sum, or computed in the kernel" in why


def rows_apart(x, o, n, OF: tkc.constexpr):
    places = tkc.arange(8)[:, None] * OF(tkc.program_id(0), n) + tkc.arange(8)[None, :]
    tkc.store(o, (0, 0), tkc.load(x.ptr + places))


@pytest.mark.parametrize("of, host", [(lambda p, n: n, True), (lambda p, n: p, False)])
def test_an_array_is_made_where_its_stride_is_known(of, host):
    module = traced(rows_apart, f1, array(tkc.float32, 2), number(), OF=of)
    (load,) = operations_in(module, tile.LoadPointers)
    forms = Forms.of(kernel_of(module), {})
    block = raise_pointers._recognised(load, forms, True)
    assert block.anchor is (None if host else load)


def two_starts(x, places, o, BOTH: tkc.constexpr):
    a, b = places[0], places[1] if BOTH else 0
    i, j, k = tkc.arange(8)[:, None, None], tkc.arange(8)[None, :, None], tkc.arange(8)
    p = x.ptr + (a + i) * x.strides[0] + (b + j) * x.strides[1] + k[None, None, :]
    tkc.store(o, (0, 0, 0), tkc.load(p))


@pytest.mark.parametrize("both", [False, True])
def test_an_array_begins_before_along_one_axis(both):
    x = ArrayArgument(
        tkc.float32,
        ArrayFacts((Fact(),) * 3, (Fact(exact=4096), Fact(exact=64), Fact(exact=1)), 16),
    )
    module = traced(two_starts, x, n1, array(tkc.float32, 3), BOTH=both)
    (load,) = operations_in(module, tile.LoadPointers)
    forms = Forms.of(kernel_of(module), {})
    found = raise_pointers._Recognition(load, forms.get(load.pointers), forms, None)
    if not both:
        assert [axis.moved for axis in found.block().axes] == [True, False, False]
        return
    with pytest.raises(raise_pointers.NotABlock, match="before the array along several axes"):
        found.block()


@pytest.mark.parametrize("stride", [8, 1])
def test_what_lies_before_along_an_axis_comes_off_one_of_the_same_stride(stride):
    first = Axis(Polynomial.number(8), Polynomial(), None, 4, before=ONE)
    second = Axis(Polynomial.number(stride), Polynomial(), None, 4)
    here = raise_pointers._Recognition.__new__(raise_pointers._Recognition)
    here.scalars = SimpleNamespace(
        host_limits=lambda number, assumed: [ONE],
        is_never_negative=lambda number, assumed: False,
    )
    found = here._from_memory(SimpleNamespace(axes=[first, second], assumed=set()))
    assert [axis.elsewhere for axis in found] == [stride == 8, False]
    assert [axis.less for axis in found] == [None, ONE if stride == 8 else None]


def in_tables(addresses, o, n, INSIDE: tkc.constexpr):
    first = addresses[0].to(tkc.pointer(tkc.float32), bitcast=True)
    for i in tkc.range(n):
        x = addresses[i].to(tkc.pointer(tkc.float32), bitcast=True) if INSIDE else first
        tkc.store(o, (i, 0), tkc.load(x + tkc.arange(64) + i)[None, :])


@pytest.mark.parametrize("inside", [False, True])
def test_an_array_is_made_behind_where_its_address_is_loaded(inside):
    module = traced(in_tables, array(tkc.uint64), f2, number(), INSIDE=inside)
    load, (loop,) = operations_in(module, tile.LoadPointers)[-1], operations_in(module, scf.ForOp)
    forms = Forms.of(kernel_of(module), {})
    assert raise_pointers._recognised(load, forms, False).anchor is (load if inside else loop)


def one_for_all(x, o, n, MASK: tkc.constexpr):
    first = tkc.program_id(0) * 64
    i = tkc.arange(64)
    rows = tkc.arange(8)[:, None] * 64
    inside = MASK(i, n)[None, :]
    values = tkc.load(x.ptr + rows + ((first + i) // 64)[None, :], mask=inside)
    tkc.store(o, (0, 0), tkc.where(inside, values, 0))


@pytest.mark.parametrize(
    "mask, raised", [(lambda i, n: i < n, True), (lambda i, n: i >= n, False)], ids=["to", "from"]
)
def test_neighbours_of_one_address_are_cut_off_behind_a_number(mask, raised):
    why = why_not_raised(one_for_all, f1, array(tkc.float32, 2), number(), MASK=mask)
    assert ("a mask bounds an axis along which neighbours have one address" in why) != raised


# ---- what is raised
@pytest.mark.parametrize("pointers", [False, True])
def test_a_kernel_without_pointers_keeps_its_remainders(pointers):
    def kernel(x, o, n):
        p = tkc.program_id(0)
        place = p - p // n * n
        v = tkc.load(x.ptr + place + tkc.arange(64)) if pointers else tkc.load(x, (place,), (64,))
        tkc.store(o, (place,), v)

    module = traced(kernel, f1, f1, number())
    raise_pointers._raise(kernel_of(module), context("sm_90a"))
    assert bool(named(module, "mod")) == pointers


@pytest.mark.parametrize(
    "strides, extents, store, covered, by_columns",
    [
        ((1, 64), (16, 16), True, [], True),
        ((64, 1), (16, 16), True, [], False),
        ((64, 64), (16, 16), True, [], False),
        ((1, 1), (16, 16), True, [], False),
        ((1, 64), (16, 1), True, [], False),
        ((1, 64), (16, 16), True, [None], False),
        ((1, 64), (16, 16), False, [], False),
    ],
)
def test_which_stores_are_of_columns(strides, extents, store, covered, by_columns):
    def kernel(x, o):
        places = tkc.arange(16)
        tkc.store(o.ptr + places, tkc.load(x.ptr + places))

    module = traced(kernel, f1, f1)
    (op,) = operations_in(module, tile.StorePointers if store else tile.LoadPointers)
    axes = [
        Axis(Polynomial.number(stride), Polynomial(), None, extent)
        for stride, extent in zip(strides, extents, strict=True)
    ]
    given = SimpleNamespace(op=op, axes=axes, covered=covered)
    assert writing._is_by_columns(given) == by_columns


# ---- arrays that programs make
def at_a_place(x, o, n, PLACE: tkc.constexpr, COLUMNS: tkc.constexpr):
    first = x.ptr + PLACE(tkc.program_id(0), n)
    made = tkc.array(first, tkc.float32, (64, COLUMNS))
    tkc.store(o, (0, 0), tkc.load(made, (0, 0), (64, 64)))


@pytest.mark.parametrize(
    "place, columns, align, wide, is_part",
    [
        (lambda p, n: p * 4096, 64, 16, False, True),
        (lambda p, n: p * 4096 - 4096, 64, 16, False, True),
        (lambda p, n: p * -4096, 64, 16, False, False),
        (lambda p, n: p * p * 16, 64, 16, False, True),
        (lambda p, n: p.to(tkc.int64) * p * 16, 64, 16, True, False),
        (lambda p, n: p * 4098, 64, 16, False, False),
        (lambda p, n: p * 4096, 63, 16, False, False),
        (lambda p, n: p * 4096, 64, 8, False, False),
    ],
)
def test_arrays_at_places_of_programs_are_parts_of_an_argument(
    place, columns, align, wide, is_part
):
    x = array(tkc.float32, 1, wide, align=align)
    module = traced(at_a_place, x, f2, number(), PLACE=place, COLUMNS=columns)
    (made,) = operations_in(module, tile.MakeArray)
    forms = Forms.of(kernel_of(module), {})
    assert (arrays._part(made, forms) is not None) == is_part
