"""simplify: structure before and after, values kept, folding against the specification."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import scf
from xdsl.dialects.builtin import bf16, f16, f32, f64, i1, i8, i32, i64

import tkc
from tests.language.kernels import array, traced
from tests.language.kernels import i32 as i32_argument
from tests.passes.kernels import CASES, Case, blank, context, f1, f2, normal, same
from tests.passes.stages import count
from tests.sim.building import kernel, put
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.text import parse, show
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType, ui8, ui32
from tkc.ir.verify import verify
from tkc.passes import simplify
from tkc.sim import level0

C = ew.CLASSES


def simplified(module):
    simplify.run(module, context())
    verify(module)
    assert show(parse(show(module))) == show(module)
    return module


def body(fn, *signature, **constants):
    return simplified(traced(fn, *signature, **constants))


@pytest.mark.parametrize("name", CASES)
def test_nothing_changes_but_the_text(name):
    case = CASES[name]
    module = case.module()
    want = case.run(module)
    same(case.run(simplified(module)), want, 1e-6)
    text = show(module)
    assert show(simplified(module)) == text, "a second run finds nothing left to do"


def test_a_loop_that_cannot_run_is_gone():
    """Its end is nowhere behind its beginning, whatever the program's place; one that may run
    stays.
    """

    def kernel(x, o, n):
        m, total = tkc.program_id(0) * 64, tkc.zeros((16, 16))
        for i in tkc.range(0, tkc.minimum(x.shape[0], m + n), 16):
            total = total + tkc.load(x, (i, 0), (16, 16))
        tkc.store(o, (0, 0), total)

    for rows, loops in ((0, 0), (64, 1)):
        module = body(kernel, array(tkc.float32, 2, shape=(rows, 16)), f2, i32_argument())
        assert count(module, scf.ForOp) == loops and count(module, tile.Load) == loops


# ---- folding -------------------------------------------------------------------------------------
NUMBERS = {
    i8: np.int8,
    i32: np.int32,
    i64: np.int64,
    ui8: np.uint8,
    ui32: np.uint32,
    f16: np.float16,
    bf16: ml_dtypes.bfloat16,
    f32: np.float32,
    f64: np.float64,
}


def computed(build, result):
    """A scalar that `build` makes, as level 0 computes it before and after simplify; and whether
    anything but a constant is left.
    """
    element = result

    def emit(out):
        put(out, build())

    outputs = []
    for change in False, True:
        module = kernel([ArrayType(0, element)], emit)
        if change:
            simplified(module)
        out = np.zeros((), level0.dtype_of(element))
        level0.run(module, [out], (1,))
        outputs.append(out)
    return outputs, count(module, *ew.OPERATIONS)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_constants_fold_to_what_level_0_computes(data):
    t = data.draw(st.sampled_from(list(NUMBERS)))
    name = data.draw(
        st.sampled_from(
            [
                n
                for n, f in ew.FUNCTIONS.items()
                if f.accepts(t)
                and n not in ("floordiv", "mod")
                or f.domain == "number"
                and t in (i8, i32)
            ]
        )
    )
    fn = ew.FUNCTIONS[name]
    if np.dtype(NUMBERS[t]).kind in "iu":
        value = st.integers(int(np.iinfo(NUMBERS[t]).min), int(np.iinfo(NUMBERS[t]).max))
    else:
        value = st.sampled_from(
            [
                0.0,
                -0.0,
                1.0,
                -1.5,
                0.1,
                1e4,
                3e38 if t in (f32, f64) else 1e3,
                float("inf"),
                float("nan"),
            ]
        )
    numbers = data.draw(st.lists(value, min_size=fn.arity, max_size=fn.arity))
    (before, after), _ = computed(
        lambda: C[name](
            *(
                tile.Constant(
                    NUMBERS[t](n).item() if t is not bf16 else float(NUMBERS[t](n)), t
                ).result
                for n in numbers
            )
        ).results[0],
        i1 if fn.truth else t,
    )
    np.testing.assert_array_equal(
        np.asarray(before, np.float64),
        np.asarray(after, np.float64),
        err_msg=f"{name} of {numbers} as {t}",
    )
    assert np.signbit(np.float64(before)) == np.signbit(np.float64(after)) or np.isnan(
        np.float64(before)
    )


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_casts_fold_to_what_level_0_computes(data):
    chain = data.draw(st.lists(st.sampled_from(list(NUMBERS)), min_size=2, max_size=4))
    start = (
        data.draw(st.sampled_from([0, 1, 3, -1, 100, 255, 65537, 2**31 - 1, 0.1, -2.5, 1e10]))
        if chain[0] in (f32, f64, i64)
        else data.draw(st.integers(0, 100))
    )
    first = NUMBERS[chain[0]](start)

    def build(value):
        for t in chain[1:]:
            value = ew.Cast(value, t).result
        return value

    (before, after), left = computed(
        lambda: build(
            tile.Constant(
                (
                    float(first)
                    if np.dtype(type(first)).kind == "f" or chain[0] is bf16
                    else int(first)
                ),
                chain[0],
            ).result
        ),
        chain[-1],
    )
    np.testing.assert_array_equal(
        np.asarray(before, np.float64),
        np.asarray(after, np.float64),
        err_msg=f"{first} through {chain}",
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(list(NUMBERS)), min_size=2, max_size=4),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=5, max_size=5),
)
def test_chains_of_casts_fold_to_what_level_0_computes(chain, numbers):
    """Of a tile: a float that becomes an integer saturates, an integer wraps."""
    with np.errstate(all="ignore"):
        x = np.array(numbers, np.int32).astype(NUMBERS[chain[0]])

    def emit(a, o):
        v = tile.Load(a, [tile.Constant(0, i32).result], [5]).result
        for t in chain[1:]:
            v = ew.Cast(v, TileType([5], t)).result
        put(o, v)

    outputs = []
    for change in False, True:
        module = kernel([ArrayType(1, chain[0]), ArrayType(1, chain[-1])], emit)
        if change:
            simplified(module)
        out = np.zeros(5, NUMBERS[chain[-1]])
        level0.run(module, [x, out], (1,))
        outputs.append(np.asarray(out, np.float64))
    np.testing.assert_array_equal(*outputs, err_msg=f"{x} through {chain}")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["add", "sub", "mul", "max", "min", "and", "or", "xor", "floordiv", "mod", "eq", "lt", "ge"]
    ),
    st.sampled_from([0, 1, -1, 2, 7]),
    st.booleans(),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=5, max_size=5),
)
def test_identities_hold_for_any_operand(name, n, left, data):
    x = np.array(data, np.int32)
    if name in ("floordiv", "mod") and left:
        left = False

    def emit(a, o):
        v = tile.Load(a, [tile.Constant(0, i32).result], [5]).result
        c = tile.Constant(n, v.type).result
        put(
            o,
            (
                C[name](C[name](*((c, v) if left else (v, c))).results[0], c).results[0]
                if not ew.FUNCTIONS[name].truth
                else C[name](*((c, v) if left else (v, c))).results[0]
            ),
        )

    outputs = []
    for change in False, True:
        module = kernel(
            [ArrayType(1, i32), ArrayType(1, i1 if ew.FUNCTIONS[name].truth else i32)], emit
        )
        if change:
            simplified(module)
        out = np.zeros(5, np.bool_ if ew.FUNCTIONS[name].truth else np.int32)
        level0.run(module, [x, out], (1,))
        outputs.append(out)
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "floordiv", "mod", "max", "and", "xor", "shl", "shr"]
)
def test_two_constants_are_one_where_the_function_is_associative(name):
    """(x - 2) - 3 is no x - (2 - 3)."""
    x = np.array([-(2**31), -9, 5, 1000, 2**31 - 1], np.int32)

    def emit(a, o):
        v = tile.Load(a, [tile.Constant(0, i32).result], [5]).result
        for n in 2, 3:
            v = C[name](v, tile.Constant(n, v.type).result).results[0]
        put(o, v)

    outputs = []
    for change in False, True:
        module = kernel([ArrayType(1, i32), ArrayType(1, i32)], emit)
        if change:
            simplified(module)
        out = np.zeros(5, np.int32)
        level0.run(module, [x, out], (1,))
        outputs.append(out)
    np.testing.assert_array_equal(*outputs)


BITS = st.sampled_from(["xor", "or", "and", "shl", "shr", "mul", "add"])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([ui32, i32]),
    st.lists(st.tuples(BITS, st.integers(0, 9), st.integers(0, 31)), min_size=2, max_size=12),
    st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=5),
)
def test_bits_stay_what_they_were(element, steps, numbers):
    """Of values that are computed of one another, and of constants."""
    dtype = np.uint32 if element == ui32 else np.int32
    x = np.array(numbers, np.uint32).view(dtype)

    def emit(a, o):
        made = [tile.Load(a, [tile.Constant(0, i32).result], [5]).result]
        for name, other, n in steps:
            by_number = name in ("shl", "shr") or other > len(made)
            y = tile.Constant(n, made[0].type).result if by_number else made[-other]
            made.append(C[name](made[-1], y).results[0])
        put(o, made[-1])

    outputs = []
    for change in False, True:
        module = kernel([ArrayType(1, element), ArrayType(1, element)], emit)
        if change:
            simplified(module)
        out = np.zeros(5, dtype)
        level0.run(module, [x, out], (1,))
        outputs.append(out)
    np.testing.assert_array_equal(*outputs)


def test_what_is_mixed_twice_is_not_mixed():
    """x ^ x >> 16, done twice, is x: the second shift drops what the first one mixed in."""

    def emit(a, o):
        v = tile.Load(a, [tile.Constant(0, i32).result], [5]).result
        for by in 16, 16, 13:
            n = tile.Constant(by, v.type).result
            v = C["xor"](v, C["shr"](v, n).results[0]).results[0]
        put(o, v)

    module = kernel([ArrayType(1, ui32), ArrayType(1, ui32)], emit)
    simplified(module)
    shifts = [op for op in module.walk() if isinstance(op, C["shr"])]
    assert [op.args[1].owner.number for op in shifts] == [13]


def test_x_plus_zero_stays_for_floats_and_minus_zero_goes():
    def f(x, o, Z: tkc.constexpr):
        tkc.store(o, (0,), tkc.load(x, (0,), (8,)) + Z)

    assert (
        count(body(f, f1, f1, Z=0.0), C["add"]) == 1
        and count(body(f, f1, f1, Z=-0.0), C["add"]) == 0
    )


# ---- structure -----------------------------------------------------------------------------------
def test_a_sum_with_a_product_becomes_the_products_accumulator():
    def f(a, b, o):
        acc = tkc.zeros((16, 16))
        for k in tkc.range(0, a.shape[1], 16):
            acc = acc + tkc.dot(tkc.load(a, (0, k), (16, 16)), tkc.load(b, (k, 0), (16, 16)))
        tkc.store(o, (0, 0), acc)

    module = body(f, array(tkc.float16, 2), array(tkc.float16, 2), f2)
    dot = next(op for op in module.walk() if isinstance(op, tile.Dot))
    assert count(module, C["add"]) == 0 and dot.acc is dot.parent.args[1]
    assert (
        count(body(f, array(tkc.float8_e4m3, 2), array(tkc.float8_e4m3, 2), f2), C["add"]) == 1
    ), "float8 sums are shorter inside the tensor core"


def test_a_product_that_is_used_again_is_not_computed_twice():
    def f(x, o, p):
        a = tkc.load(x, (0, 0), (16, 16))
        product = tkc.dot(a, a)
        tkc.store(o, (0, 0), product + tkc.load(o, (0, 0), (16, 16)))
        tkc.store(p, (0, 0), product)

    assert count(body(f, array(tkc.float16, 2), f2, f2), tile.Dot) == 1


def test_equal_operations_are_one_and_loads_stay_apart():
    def f(x, o):
        i = tkc.program_id(0) * 8
        a, b = tkc.load(x, (i,), (8,)), tkc.load(x, (tkc.program_id(0) * 8,), (8,))
        tkc.store(o, (i,), (a * 2 + 1) + (a * 2 + 1) + b)

    module = body(f, f1, f1)
    assert (count(module, tile.ProgramId), count(module, C["mul"]), count(module, tile.Load)) == (
        1,
        2,
        2,
    )


def test_what_a_loop_does_not_change_leaves_it_unless_it_fills_registers():
    def f(x, o, n):
        total = tkc.zeros((64, 64))
        for i in tkc.range(0, n):
            rows, cols = tkc.arange(64), tkc.arange(64)
            total = total + tkc.where(
                rows[:, None] * n >= cols[None, :], tkc.load(x, (i, 0), (64, 64)), 0
            )
        tkc.store(o, (0, 0), total)

    module = body(f, f2, f2, i32_argument())
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert {op.name for op in loop.body.block.ops} >= {"tile.ge", "tile.load"} and not any(
        isinstance(op, (tile.Arange, C["mul"])) for op in loop.body.block.ops
    )


def test_carried_values_that_nobody_needs_are_dropped():
    def f(x, o, n):
        a, b, c, d = tkc.load(x, (0,), (8,)), 1, 2, 3
        for _i in tkc.range(0, n):
            a, b, d = a + c, b + d, b  # b and d need each other alone; c never changes
        tkc.store(o, (0,), a)

    module = body(f, f1, f1, i32_argument())
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert len(loop.results) == 1


@pytest.mark.parametrize("n", [0, 1, 3, 7])
def test_what_moves_as_a_loop_counts_is_its_number(n):
    """As persistent kernels carry the number of a tile once more, for their epilogues."""

    def f(x, o, n):
        pid = tkc.program_id(0)
        other, third = pid - 2, pid * 2
        for i in tkc.range(pid, n, 2):
            other, third = other + 2, third + 3
            tkc.store(o, (i,), tkc.load(x, (other,), (1,)) + third)

    case = Case(f, (f1, f1, i32_argument()), {}, lambda: [normal(8), blank(8), n], (2,))
    module = case.module()
    want = case.run(module)
    loop = next(op for op in simplified(module).walk() if isinstance(op, scf.ForOp))
    assert len(loop.iter_args) == 1  # third moves otherwise
    same(case.run(module), want, 0)


def test_what_a_loop_counts_stays_where_its_start_is_another():
    def f(o, n, first):
        other = first
        for i in tkc.range(0, n):
            tkc.store(o, (i,), other.to(tkc.float32))
            other = other + 1

    module = body(f, f1, i32_argument(), i32_argument())
    assert len(next(op for op in module.walk() if isinstance(op, scf.ForOp)).iter_args) == 1


@pytest.mark.parametrize("n", [0, 1, 3, 7])
def test_a_number_that_is_used_before_it_moves_is_the_loops(n):
    def f(x, o, n):
        other = tkc.program_id(0) + 1
        for i in tkc.range(tkc.program_id(0), n, 2):
            tkc.store(o, (i,), tkc.load(x, (other,), (1,)))
            other = other + 2

    case = Case(f, (f1, f1, i32_argument()), {}, lambda: [normal(8), blank(8), n], (2,))
    module = case.module()
    want = case.run(module)
    loop = next(op for op in simplified(module).walk() if isinstance(op, scf.ForOp))
    assert not loop.iter_args
    same(case.run(module), want, 0)


def test_a_number_of_64_bits_is_not_that_of_a_loop_of_32():
    def f(o, n):
        wide = (tkc.program_id(0) * 0).to(tkc.int64)
        for i in tkc.range(0, n):
            tkc.store(o, (i,), wide)
            wide = wide + 1

    o = np.full(4, -1)
    level0.run(body(f, array(tkc.int64, 1), i32_argument()), [o, 4], (1,))
    assert o.tolist() == [0, 1, 2, 3]


def test_what_every_iteration_sets_to_its_start_is_that():
    def f(x, o, n):
        other, same = n * 3, n * 3
        for i in tkc.range(0, n):
            tkc.store(o, (i,), tkc.load(x, (other,), (1,)))
            other = same

    module = body(f, f1, f1, i32_argument())
    assert not next(op for op in module.walk() if isinstance(op, scf.ForOp)).iter_args


@pytest.mark.parametrize("trips", [0, 1, 2])
def test_loops_of_known_length(trips):
    def f(x, o, N: tkc.constexpr):
        a = tkc.load(x, (0,), (8,))
        for i in tkc.range(0, N):
            a = a * 2 + i
        tkc.store(o, (0,), a)

    case = Case(f, (f1, f1), dict(N=trips), lambda: [normal(8), blank(8)], (1,))
    module = case.module()
    want = case.run(module)
    assert count(simplified(module), scf.ForOp) == (trips == 2)
    same(case.run(module), want, 0)


def test_known_extents_are_constants_and_masks_that_hold_disappear():
    def f(x, o):
        i = tkc.arange(16)
        keep = (i < x.shape[0]) & (i >= 0)
        tkc.store(o, (0,), tkc.where(keep, tkc.load(x, (0,), (16,)), 0))

    from tkc.language.signature import ArrayArgument

    kind = ArrayArgument(tkc.float32, ArrayFacts((Fact(exact=16),), (Fact(exact=1),), 16))
    module = body(f, kind, kind)
    assert count(module, tile.Dim, ew.Select, *ew.CLASSES.values()) == 0


@pytest.mark.parametrize("other", [None, 7.0])
def test_a_block_of_an_array_without_elements_is_not_loaded(other):
    def f(x, o):
        tkc.store(o, (0,), tkc.load(x, (0, 0), (16, None), other=other))

    from tkc.language.signature import ArrayArgument

    facts = ArrayFacts((Fact(exact=0), Fact()), (Fact(), Fact(exact=1)), 16)
    kept = ArrayFacts((Fact(),), (Fact(exact=1),), 16)
    module = body(f, ArrayArgument(tkc.float32, facts), ArrayArgument(tkc.float32, kept))
    assert count(module, tile.Load) == 0
    out = np.full(16, 1, np.float32)
    level0.run(module, [np.zeros((0, 4), np.float32), out], (1, 1, 1))
    np.testing.assert_array_equal(out, np.full(16, other or 0, np.float32))


def test_a_mask_of_columns_is_computed_once_a_column():
    def f(x, o, n):
        cols = tkc.arange(64)[None, :]
        v = tkc.load(x, (0, 0), (32, 64))
        tkc.store(o, (0, 0), tkc.where((cols < n) & (cols >= 3), v, 0))

    module = body(f, f2, f2, i32_argument())
    small = [
        op.results[0].type.size
        for op in module.walk()
        if isinstance(op, (C["lt"], C["ge"], C["and"]))
    ]
    assert small and max(small) == 64


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_indices_are_compared_in_32_bits_with_a_number_of_64(name):
    import operator

    def f(classes, o):
        wanted = tkc.load(classes, (0,), (8,))
        tkc.store(
            o,
            (0, 0),
            getattr(operator, name)(tkc.arange(64)[None, :], wanted[:, None]).to(tkc.int32),
        )
        tkc.store(
            o,
            (8, 0),
            getattr(operator, name)(wanted[:, None], tkc.arange(64)[None, :]).to(tkc.int32),
        )

    module = body(f, array(tkc.int64), array(tkc.int32, 2))
    assert {
        op.args[0].type.element
        for op in module.walk()
        if isinstance(op, C[name] if name in ("eq", "ne") else (C["lt"], C["le"], C["gt"], C["ge"]))
    } == {i32}
    wanted, out = np.array([0, 63, 64, -1, 5, -100, 2**40, -(2**63)]), np.zeros((16, 64), np.int32)
    level0.run(module, [wanted, out], (1,))
    np.testing.assert_array_equal(
        out[:8], getattr(operator, name)(np.arange(64)[None, :], wanted[:, None])
    )
    np.testing.assert_array_equal(
        out[8:], getattr(operator, name)(wanted[:, None], np.arange(64)[None, :])
    )


def test_branches_known_at_compile_time_are_gone():
    def f(x, o):
        if x.shape[0] >= 0:
            tkc.store(o, (0,), tkc.load(x, (0,), (8,)))
        else:
            tkc.store(o, (0,), tkc.zeros((8,)))

    assert count(body(f, f1, f1), scf.IfOp) == 0


def test_effects_and_acquires_stay():
    def f(x, o, flag):
        tkc.load(flag.ptr, sem="acquire")
        tkc.atomic_add(o, (0,), tkc.load(x, (0,), (8,)))
        tkc.load(x, (0,), (8,))

    module = body(f, f1, f1, array(tkc.int32))
    assert (
        count(module, tile.LoadPointers) == 1
        and count(module, tile.Load) == 1
        and count(module, tile.AtomicBlock, tile.Atomic) == 1
    )


def test_locations_survive():
    case = CASES["attention"]
    module = simplified(case.module())
    from tkc.ir.text import is_unknown

    lost = [
        op.name for op in next(iter(module.body.block.ops)).body.walk() if is_unknown(op.location)
    ]
    assert not lost, lost


def test_what_holds_of_numbers_alone_stays_where_nan_and_inf_may_be():
    """x - x of floats, comparisons of x with itself, and of constants that are NaN."""

    def kernel_(x, o):
        v, nan = tkc.load(x, (0,), (4,)), tkc.full((4,), float("nan"), tkc.float32)
        for i, r in enumerate(
            (
                v - v,
                v == v,
                v <= v,
                v != v,
                tkc.maximum(nan, 1.0),
                tkc.minimum(nan, nan),
                nan != nan,
            )
        ):
            tkc.store(o[i], (0,), r.to(tkc.float32))

    module = traced(kernel_, array(tkc.float32, 1), array(tkc.float32, 2))
    x = np.array([np.nan, np.inf, -0.0, 1], np.float32)
    want, got = np.zeros((7, 4), np.float32), np.zeros((7, 4), np.float32)
    level0.run(module, [x, want], (1, 1, 1))
    level0.run(simplified(module), [x, got], (1, 1, 1))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [tkc.int8, tkc.int16, tkc.uint32, tkc.int32])
def test_indices_of_other_types_beside_a_number_of_64_bits(dtype):
    def kernel_(o, n):
        i = tkc.arange(16).to(dtype)
        wide = i.to(tkc.int64) < n.to(tkc.int64) * 3
        narrow = i.to(tkc.int32) < n * 3
        tkc.store(o[0], (0,), wide.to(tkc.int32))
        tkc.store(o[1], (0,), narrow.to(tkc.int32))

    module = simplified(traced(kernel_, array(tkc.int32, 2), i32_argument()))
    got = np.zeros((2, 16), np.int32)
    level0.run(module, [got, 3], (1, 1, 1))
    np.testing.assert_array_equal(got, [np.arange(16) < 9] * 2)


def test_a_product_that_is_used_twice_is_computed_once():
    def kernel_(x, o):
        v = tkc.load(x, (0, 0), (16, 16))
        d = tkc.dot(v, v)
        tkc.store(o[0], (0, 0), d + v)
        tkc.store(o[1], (0, 0), d)

    module = simplified(traced(kernel_, array(tkc.float32, 2), array(tkc.float32, 3)))
    assert count(module, tile.Dot) == 1


def test_what_reads_or_changes_memory_stays_in_its_loop():
    """Its operands do not change, but what it gives does."""

    def kernel_(x, o, n):
        for _ in tkc.range(0, n):
            v = tkc.load(x, (0,), (4,))
            tkc.store(x, (0,), v * 2)
            before = tkc.atomic_add(o.ptr, 3)
            tkc.store(o[1:], (0,), tkc.full((1,), 1, tkc.int32) * before)

    module = traced(kernel_, array(tkc.float32, 1), array(tkc.int32, 1), i32_argument())
    x, o = np.ones(4, np.float32), np.zeros(2, np.int32)
    level0.run(simplified(module), [x, o, 3], (1, 1, 1))
    assert (x == 8).all() and list(o) == [9, 6]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_block_whose_unit_axis_is_dropped_keeps_what_lies_outside(axis):
    """`other` loses the axis too."""
    block = (1, 16, 8) if axis == 0 else (16, 1, 8)

    def kernel_(x, o):
        v = tkc.load(x, (3, 0, 2), block, other=-2.0)
        tkc.store(o, (0, 0), tkc.min(v, axis=axis))

    module = traced(kernel_, array(tkc.float32, 3), array(tkc.float32, 2))
    x = np.random.default_rng(0).standard_normal((10, 12, 7)).astype(np.float32)
    want, got = np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
    level0.run(module, [x, want], (1,))
    module = simplified(module)
    level0.run(module, [x, got], (1,))
    np.testing.assert_array_equal(got, want)
    assert -2.0 in want
    loads = [op for op in module.walk() if isinstance(op, tile.Load)]
    assert list(loads[0].result.type.extents) == [16, 8]


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_an_infinity_of_e5m2_is_rounded_over_one_element_too(kind, monkeypatch):
    """As over several: what they give is the largest number."""

    @tkc.jit
    def reduce(x, out, N: tkc.constexpr):
        tkc.store(out, 0, getattr(tkc, kind)(tkc.load(x, (0, 0), (4, N)), 1))

    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    for variables in ({}, {"TKC_INTERPRET": "1"}, {"TKC_SIM": "1"}):
        for name in ("TKC_INTERPRET", "TKC_SIM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for n in (1, 2):
            x, out = (np.full(s, np.inf, ml_dtypes.float8_e5m2) for s in ((4, n), 4))
            reduce[1](x, out, n)
            assert (out.astype(np.float32) == 57344).all(), (variables, n)
