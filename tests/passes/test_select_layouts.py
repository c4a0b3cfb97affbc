"""select-layouts: demands kept, values kept, conversions counted, text that reads back."""

import dataclasses
from math import prod

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, i32, traced
from tests.passes.demands import check
from tests.passes.kernels import (
    CASES,
    Case,
    aligned,
    attended,
    blank,
    context,
    f1,
    f2,
    normal,
    product,
    same,
    through,
)
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import elementwise as ew
from tkc.ir import shared, tile
from tkc.ir.layout import movement
from tkc.ir.rewrite import loops_of
from tkc.ir.target import target
from tkc.ir.text import parse, show
from tkc.ir.values import layout_of, operations_in, tile_type
from tkc.ir.verify import verify
from tkc.passes.pipeline import PIPELINE
from tkc.passes.plan import kernel_of
from tkc.passes.select_layouts import load_for_threads
from tkc.sim import dataflow, level4

LAST = "select-layouts"


def selected(case: Case, target="sm_80", **options):
    module, given = case.module(), context(target, **options)
    through(module, LAST, given)
    return module, next(iter(module.body.block.ops)), given


def converts(kernel):
    return [op for op in kernel.walk() if isinstance(op, shared.Convert)]


def scopes(kernel):
    return [
        movement(op.arg.type.register_layout, op.result.type.register_layout)
        for op in converts(kernel)
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_operation_gets_what_it_demands_and_nothing_changes(name):
    case = CASES[name]
    want = case.run(case.module())
    module, kernel, _ = selected(case)
    check(kernel)
    assert show(parse(show(module))) == show(module)
    same(case.run(module), want, case.tolerance)


@pytest.mark.parametrize("warps", [1, 2, 8, 16])
@pytest.mark.parametrize(
    "name",
    [
        "add, odd",
        "softmax of 7",
        "layer norm backward",
        "product, float16",
        "product, float32",
        "attention, causal",
        "attention, float32",
        "shapes",
        "mamba2",
        "conditional",
    ],
)
def test_any_number_of_warps(name, warps):
    case = CASES[name]
    module, kernel, _ = selected(case, num_warps=warps)
    assert kernel.warps == warps
    check(kernel)
    same(case.run(module), case.run(case.module()), case.tolerance)


def test_no_conversion_without_need():
    for name in (
        "add",
        "add, odd",
        "softmax",
        "softmax of 7",
        "one row",
        "layer norm backward",
        "pointers",
        "gather",
        "conditional",
    ):
        assert not converts(selected(CASES[name])[1]), name


def weighted_rows(x, y, out, N: tkc.constexpr):
    """Rows of y, by pointers that a loop moves, times those of x."""
    k, rows = tkc.arange(N), tkc.load(x, (0, 0), (16, N))
    py = y.ptr + k
    for j in range(0, y.shape[0]):
        row = tkc.load(py).to(tkc.float32)
        tkc.store(out, (j, 0), tkc.sum(rows * row[None, :], axis=1)[None, :])
        py += y.strides[0]


@pytest.mark.parametrize("warps", [1, 4, 8])
def test_rows_by_moving_pointers_are_loaded_where_they_are_wanted(warps):
    module = traced(
        weighted_rows, array(tkc.float32, 2), array(tkc.bfloat16, 2), array(tkc.float32, 2), N=128
    )
    through(module, LAST, context("sm_90a", num_warps=warps))
    assert not converts(kernel_of(module))


def test_a_product_converts_its_operands_and_nothing_else():
    _, kernel, given = selected(product(256, 256, 128, 128, 128, 32))
    assert [type(op.arg.owner) for op in converts(kernel)] == [tile.Load, tile.Load]
    assert all("between warps" in line for line in given.decisions if "converted" in line)
    dot = next(op for op in kernel.walk() if isinstance(op, tile.Dot))
    assert (
        dot.instruction.data == "mma"
        and given.plan.loads[0].path == "async"
        and given.plan.loads[0].vector == 16
    )


def column_sums(a, b, out):
    c = tkc.dot(tkc.load(a, (0, 0), (128, 64)), tkc.load(b, (0, 0), (64, 128)))
    tkc.store(out, (0,), tkc.sum(tkc.maximum(c, 0.0), axis=0) * 2)


def test_what_warps_leave_together_is_read_where_it_is_stored():
    """Warps meet in shared memory: each thread then reads the columns that it stores, not all of
    those that it had sums of; and lanes exchange half of what they have, then a quarter.
    """
    f16 = array(tkc.float16, 2)
    module = traced(column_sums, f16, f16, array(tkc.float32, 1))
    through(module, PIPELINE[-1], context("sm_80", num_warps=4))
    text = emit(module, target("sm_80")).text
    assert text.count("shfl.sync.bfly") == 8 + 4 + 2
    (stored,) = operations_in(module, tile.Store)
    assert layout_of(stored.value).num_registers == 1
    given = [np.ones((128, 64), np.float16), np.ones((64, 128), np.float16)]
    out = np.zeros(128, np.float32)
    machine.run(module, [*given, out], (1, 1, 1))
    np.testing.assert_array_equal(out, 2 * 128 * 64)


def test_attention_keeps_its_rows_where_they_are():
    """Only the loads of q, k and v are converted: statistics, their broadcasts and the second
    product's left operand stay in place.
    """
    for causal in (False, True):
        _, kernel, given = selected(attended(256, 64, 128, 64, causal))
        assert len(converts(kernel)) == 3 and all(
            isinstance(op.arg.owner, tile.Load) for op in converts(kernel)
        )
        assert {d.warps[1] for d in given.plan.dots} == {1}


def test_a_transposed_operand_is_converted_before_it_is_transposed():
    _, kernel, _ = selected(attended(256, 64, 128, 64, False))
    transpose = next(op for op in kernel.walk() if isinstance(op, tile.Transpose))
    assert isinstance(transpose.arg.owner, shared.Convert) and isinstance(
        transpose.arg.owner.arg.owner, tile.Load
    )


def turned_product(a, b, out, LEFT: tkc.constexpr, RIGHT: tkc.constexpr):
    x, y = tkc.load(a, (0, 0), (64, 64)), tkc.load(b, (0, 0), (64, 64))
    tkc.store(out, (0, 0), tkc.dot(x.T if LEFT else x, y.T if RIGHT else y))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_operands_of_multiply_adds_are_read_as_they_are_used(left, right):
    """Turned ones were read whole: 512 registers a thread, most of which spilled."""
    module = traced(turned_product, *[array(tkc.float32, 2)] * 3, LEFT=left, RIGHT=right)
    given = context("sm_80")
    through(module, PIPELINE[-1], given)
    *_, last = (op for op in module.walk() if isinstance(op, tile.Dot))
    reads = [op for op in last.parent.ops if isinstance(op, shared.Read)]
    sizes = {tile_type(op.result).size for op in reads if op.is_before_in_block(last)}
    assert sizes == {64 * given.plan.dots[0].chunk}


def test_a_scaled_operand_is_computed_in_its_fragment():
    """int8 weights cross threads as bytes; the cast and the scaling happen where the tensor core
    wants the result.
    """
    _, kernel, _ = selected(CASES["dequantized"])
    assert sorted(str(op.arg.type.element) for op in converts(kernel)) == ["bf16", "i8"]


def test_conversions_of_what_a_loop_does_not_change_come_before_it():
    _, kernel, _ = selected(attended(256, 64, 64, 64, False))
    q = next(op for op in converts(kernel) if op.parent is kernel.body.block)
    assert isinstance(q.arg.owner, tile.Load)


def test_an_operand_too_big_to_hold_is_read_in_every_iteration():
    case = attended(160, 128, 128, 128, False)
    module, kernel, given = selected(case)
    inside = [op for op in converts(kernel) if op.parent is not kernel.body.block]
    assert (
        given.plan.dots[0].a == "shared"
        and len(inside) == 3
        and any("read again" in line for line in given.decisions)
    )
    check(kernel)
    same(case.run(module), case.run(case.module()), case.tolerance)


def test_vectors_are_as_wide_as_the_facts_allow():
    def copy(x, o, N: tkc.constexpr):
        tkc.store(o, (0, 0), tkc.load(x, (0, 0), (8, N)) * 2)

    for kind, want in (
        (aligned(tkc.bfloat16, 2), 8),
        (aligned(tkc.float32, 2), 4),
        (array(tkc.float32, 2, strides=(None, 1)), 1),
        (array(tkc.float32, 2, strides=(2, 1), shape=(8, 2)), 2),
    ):
        module = traced(copy, kind, kind, N=512)
        through(module, LAST)
        load = next(op for op in module.walk() if isinstance(op, tile.Load))
        assert load.result.type.register_layout.vector(1) == want, kind


def test_a_matrix_that_is_column_major_is_read_along_its_columns():
    def copy(x, o):
        tkc.store(o, (0, 0), tkc.load(x, (0, 0), (64, 64)))

    module = traced(
        copy, array(tkc.float32, 2, strides=(1, None)), array(tkc.float32, 2, strides=(1, None))
    )
    through(module, LAST)
    layout = next(
        op for op in module.walk() if isinstance(op, tile.Load)
    ).result.type.register_layout
    assert layout.lanes[0].axis == 0


@pytest.mark.parametrize("register_transpose, where", [(False, "warps"), (None, "registers")])
def test_transposing_converts_once(register_transpose, where):
    def transpose(x, o):
        tkc.store(o, (0, 0), tkc.load(x, (0, 0), (64, 64)).T)

    case = Case(
        transpose, (aligned(tkc.float32, 2),) * 2, {}, lambda: [normal(64, 64), blank(64, 64)], (1,)
    )
    module, kernel, _ = selected(case, register_transpose=register_transpose)
    assert scopes(kernel) == [where]
    same(case.run(module), case.run(case.module()), 0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 96), (3, 1000), (17, 33)])
def test_odd_shapes(shape):
    def f(x, o, R: tkc.constexpr, C: tkc.constexpr):
        v = tkc.load(x, (0, 0), (R, C))
        total, top = tkc.sum(v, axis=0), tkc.max(v, axis=1)
        tkc.store(o, (0, 0), (v - total[None, :]) * top[:, None] + tkc.cumsum(v, axis=1))

    case = Case(
        f,
        (f2, f2),
        dict(R=shape[0], C=shape[1]),
        lambda: [normal(*shape), blank(*shape)],
        (1,),
        1e-6,
    )
    module, kernel, _ = selected(case)
    check(kernel)
    same(case.run(module), case.run(case.module()), case.tolerance)


@pytest.mark.parametrize(
    "before, after",
    [
        ((6, 4), (24,)),
        ((8, 32), (4, 64)),
        ((2, 3, 5), (30,)),
        ((7, 5), (5, 7)),
        ((64, 64), (16, 256)),
    ],
)
def test_reshapes_of_computed_tiles(before, after):
    def f(x, o, A: tkc.constexpr, B: tkc.constexpr):
        v = tkc.load(x, (0,) * len(A), A)
        r = (v + tkc.max(v, axis=0)).reshape(B)
        tkc.store(o, (0,) * len(B), r * 2)

    case = Case(
        f,
        (array(tkc.float32, len(before)), array(tkc.float32, len(after))),
        dict(A=before, B=after),
        lambda: [normal(*before), blank(*after)],
        (1,),
    )
    module, kernel, _ = selected(case)
    check(kernel)
    same(case.run(module), case.run(case.module()), 0)


def test_batched_dots():
    def f(a, b, o):
        tkc.store(
            o,
            (0, 0, 0),
            tkc.dot(tkc.load(a, (0, 0, 0), (3, 32, 16)), tkc.load(b, (0, 0, 0), (3, 16, 24))),
        )

    for kind, dtype in ((tkc.bfloat16, "bfloat16"), (tkc.float32, "float32")):
        import ml_dtypes

        t = np.dtype(getattr(ml_dtypes, dtype, dtype))
        case = Case(
            f,
            (array(kind, 3), array(kind, 3), array(tkc.float32, 3)),
            {},
            lambda t=t: [normal(3, 32, 16, dtype=t), normal(3, 16, 24, dtype=t), blank(3, 32, 24)],
            (1,),
            1e-6,
        )
        module, kernel, _ = selected(case)
        check(kernel)
        same(case.run(module), case.run(case.module()), case.tolerance)


def test_sorting_and_histograms():
    def f(x, o, h):
        v = tkc.sort(tkc.load(x, (0, 0), (6, 100)))
        tkc.store(o, (0, 0), v)
        tkc.store(
            h,
            (0,),
            tkc.histogram((tkc.load(x, (0, 0), (1, 100)).reshape(100) * 3 + 5).to(tkc.int32), 10),
        )

    case = Case(
        f,
        (f2, f2, array(tkc.int32)),
        {},
        lambda: [normal(6, 100), blank(6, 100), np.zeros(10, np.int32)],
        (1,),
        0,
        (1, 2),
    )
    module, kernel, _ = selected(case)
    check(kernel)
    same(case.run(module), case.run(case.module()), 0)


@pytest.mark.parametrize("n", [1, 7, 64, 1000, 101])
def test_flips_of_any_length(n):
    def f(x, o, N: tkc.constexpr):
        tkc.store(o, (0, 0), tkc.flip(tkc.load(x, (0, 0), (3, N)), axis=1))

    case = Case(f, (f2, f2), dict(N=n), lambda: [normal(3, n), blank(3, n)], (1,))
    module, kernel, _ = selected(case)
    check(kernel)
    assert (
        max(
            (
                v.type.register_layout.num_registers
                for op in kernel.walk()
                if isinstance(op, tile.Flip)
                for v in op.results
            ),
            default=0,
        )
        <= 128
    )
    same(case.run(module), case.run(case.module()), 0)


def test_three_products_of_tf32_are_nearly_one_of_float32():
    def f(a, b, o, P: tkc.constexpr):
        tkc.store(
            o,
            (0, 0),
            tkc.dot(tkc.load(a, (0, 0), (32, 32)), tkc.load(b, (0, 0), (32, 32)), precision=P),
        )

    errors = {}
    for precision in "ieee", "tf32", "tf32x3":
        case = Case(
            f,
            (f2, f2, f2),
            dict(P=precision),
            lambda: [normal(32, 32), normal(32, 32, seed=1), blank(32, 32)],
            (1,),
        )
        module, kernel, _ = selected(case)
        check(kernel)
        a, b, _ = case.data()
        errors[precision] = np.abs(case.run(module)[0] - a.astype(float) @ b).max()
    assert errors["ieee"] < 1e-5 and 1e-5 < errors["tf32"] < 1e-2 and errors["tf32x3"] < 2e-5


def test_what_is_cut_to_tf32_is_not_rounded_to_it():
    """Of three products, what two of the operands leave is: the others have no other bits."""

    @tkc.jit
    def f(a, b, o):
        x, y = (tkc.load(v, (0, 0), (32, 32)) for v in (a, b))
        tkc.store(o, (0, 0), tkc.dot(x, y, precision="tf32x3"))

    ptx = f.compile(*["f32[32, 32]"] * 3, target="sm_80", num_warps=1).ptx
    assert ptx.count("cvt.rna.tf32") == ptx.count("sub.f32") == 2 * 32


def test_resuming_from_text_reads_the_plan():
    case = product(256, 256, 128, 128, 128, 32)
    module, given = case.module(), context()
    through(module, "schedule-programs", given)
    again = parse(show(module))
    from tkc.passes.pipeline import module_of

    module_of(LAST).run(module, given)
    resumed = context()
    module_of(LAST).run(again, resumed)
    verify(again)
    assert show(again) == show(module) and resumed.plan == given.plan


def test_each_conversion_names_the_line_of_the_kernel():
    _, _, given = selected(CASES["product"])
    assert all("kernels.py:" in line for line in given.decisions if "converted" in line)


@tkc.jit
def _sums_in_a_loop(x, rates, out, D: tkc.constexpr, N: tkc.constexpr):
    rate, state = tkc.load(rates, (0, 0), (D, N)), tkc.zeros((D, N))
    for t in tkc.range(0, x.shape[0]):
        state = state * rate + tkc.load(x, (t, 0), (None, D))[:, None]
        tkc.store(out, (t, 0), tkc.sum(state, axis=1)[None, :])


@pytest.mark.parametrize("warps, lanes", [(1, False), (2, True)])
def test_what_a_loop_sums_is_in_one_thread(warps, lanes):
    """Where there is a row for each thread: the rows are then the threads' own, too."""
    shapes = "f32[100, 32]", "f32[32, 16]", "f32[100, 32]"
    ptx = _sums_in_a_loop.compile(*shapes, D=32, N=16, num_warps=warps, target="sm_90a").ptx
    assert ("shfl" in ptx) == lanes


@tkc.jit
def _solved(lower, out, N: tkc.constexpr):
    """(I + lower)^-1 by rows; what is summed meets no load or store but the last."""
    i, j = tkc.arange(N)[:, None], tkc.arange(N)[None, :]
    inverse = tkc.where(i == j, tkc.full((N, N), 1.0), 0.0)
    for row in tkc.static_range(1, N):
        factors = tkc.load(lower, (row, 0), (None, N))
        known = tkc.sum(factors[:, None] * inverse, axis=0)
        inverse = tkc.where(i == row, tkc.where(j == row, 1.0, -known[None, :]), inverse)
    total = tkc.dot(inverse, inverse, precision="tf32x3")
    tkc.store(out, (0, 0), total)


def test_what_is_summed_and_never_stored_is_in_one_thread():
    made = traced(_solved.fn, *[array(tkc.float32, 2)] * 2, N=32, num_warps=1)
    through(made, "select-layouts", context("sm_90a", num_warps=1))
    for op in operations_in(made, tile.Reduce):
        layout = layout_of(op.args[0])
        assert not layout.butterfly(op.axis.value.data) and layout.warps_along(0) == 1


def balanced(x, out, rounds, T: tkc.constexpr, N: tkc.constexpr):
    """Rows and columns of small matrices are divided by their sums in turn; what is loaded is
    reduced once.
    """
    a = tkc.load(x, (0, 0, 0), (T, N, N))
    a = a / tkc.max(tkc.max(a, axis=2), axis=1)[:, None, None]
    for _ in tkc.range(0, rounds):
        a = a / tkc.sum(a, axis=2)[:, :, None]
        a = a / tkc.sum(a, axis=1)[:, None, :]
    tkc.store(out, (0, 0, 0), a)


@pytest.mark.parametrize("count, lanes", [(128, 1), (32, 4), (8, 0)])
def test_all_axes_that_a_loop_sums_are_in_one_thread(count, lanes):
    """Loads and stores that happen once are not asked, where vectors stay; nothing moves. Where
    there are too few matrices, lanes share them, and the loads decide.
    """
    f3 = array(tkc.float32, 3, shape=(None, 4, 4), strides=(16, 4, 1), align=16)
    signature = f3, f3, i32()
    module, given = traced(balanced, *signature, T=count, N=4), context("sm_90a", num_warps=4)
    through(module, LAST, given)
    sums = [op for op in operations_in(module, tile.Reduce) if loops_of(op)]
    steps = [len(layout_of(op.args[0]).butterfly(op.axis.value.data)) for op in sums]
    if lanes:
        (load,) = operations_in(module, tile.Load)
        assert 2 ** sum(steps) == lanes and layout_of(load.result).vector(2, 4) == 4
        assert not list(operations_in(module, shared.Convert))
    else:
        assert len(steps) == 2 and sum(steps) > 2
    x, out = np.abs(normal(count, 4, 4)) + 0.1, blank(count, 4, 4)
    want = x / x.max(axis=(1, 2), keepdims=True)
    for _ in range(3):
        want = want / want.sum(axis=2, keepdims=True)
        want = want / want.sum(axis=1, keepdims=True)
    through(module, PIPELINE[-1], given)
    level4.run(module, [x, out, 3], (1, 1, 1))
    same([out], [want], 1e-6)


def nearest(x, z, out, M: tkc.constexpr, STEP: tkc.constexpr):
    """The least distance of each of 32 points in a plane from STEP others in each iteration."""
    least = tkc.full((32,), 1e9)
    for m in tkc.range(0, M, STEP):
        apart = tkc.zeros((32, STEP))
        for axis in tkc.static_range(2):
            near = tkc.load(x, (axis, 0), (None, 32))[:, None]
            apart += tkc.abs(near - tkc.load(z, (axis, m), (None, STEP))[None, :])
        least = tkc.minimum(least, tkc.min(apart, axis=1))
    tkc.store(out, 0, least)


def likeliest(x, z, out, M: tkc.constexpr, STEP: tkc.constexpr):
    """What is best to have come from, of states that each iteration scores (Viterbi)."""
    change, score = tkc.load(x, (0, 0), (STEP, STEP)), tkc.zeros((STEP,))
    for _ in tkc.range(0, M, STEP):
        score = tkc.min(change + score[None, :], axis=1)
    tkc.store(out, 0, score)


@pytest.mark.parametrize("kernel, step, lanes", [(nearest, 32, 4), (nearest, 128, 32)])
def test_what_a_loop_reduces_is_in_few_lanes_where_a_thread_loads_few(kernel, step, lanes):
    """Of lines that are loaded in each iteration a thread has the elements of its columns."""
    check_lanes(kernel, (2, 32), (2, 256), step, lanes)


def test_states_that_no_iteration_loads_are_reduced_in_few_lanes():
    check_lanes(likeliest, (64, 64), (1, 1), 64, 2)


def check_lanes(kernel, first, second, step, lanes):
    """The lanes that a kernel's reduction has along its axis; and its results, of threads and of
    tiles.
    """
    module, given = traced(kernel, f2, f2, f1, M=256, STEP=step), context(num_warps=4)
    whole = module.clone()
    through(module, LAST, given)
    (reduced,) = operations_in(module, tile.Reduce)
    assert 2 ** len(layout_of(reduced.args[0]).butterfly(1)) == lanes
    through(module, PIPELINE[-1], given)
    outputs = []
    for run, made in ((dataflow.run, whole), (level4.run, module)):
        outputs.append(blank(64))
        run(made, [normal(*first), normal(*second, seed=1), outputs[-1]], (1, 1, 1))
    same(outputs[:1], outputs[1:], 1e-6)


def channels_first(x, out, C: tkc.constexpr, N: tkc.constexpr):
    """Each position less the mean of its channels, which lie apart in memory."""
    v = tkc.load(x, (0, 0), (C, N)).to(tkc.float32)
    tkc.store(out, (0, 0), (v - tkc.sum(v, axis=0)[None, :] / C).to(out.dtype))


@pytest.mark.parametrize(
    "columns, lanes, warps", [(64, 2, 4), (128, 2, 8), (256, 4, 8), (32, 2, 2), (16, 1, 2)]
)
def test_lanes_read_whole_sectors_of_a_narrow_axis(columns, lanes, warps):
    """What warps that keep off the reduced axis leave to lanes of the other: 32 bytes, but of 4096
    bytes, which the cache holds.
    """
    halves = array(tkc.float16, 2, shape=(None, columns), strides=(columns, 1), align=16)
    module = traced(channels_first, halves, halves, C=128, N=columns)
    given = context("sm_90a", num_warps=8)
    through(module, LAST, given)
    (load,) = operations_in(module, tile.Load)
    layout = layout_of(load.result)
    assert layout.vector(1, 8) == 8
    assert prod(d.extent for d in layout.digits(1, ["lanes"])) == lanes
    assert layout.warps_along(1) == warps
    x, out = normal(128, columns).astype(np.float16), blank(128, columns, dtype=np.float16)
    through(module, PIPELINE[-1], given)
    level4.run(module, [x, out], (1, 1, 1))
    same([out], [(x - x.astype(np.float32).mean(0)).astype(np.float16)], 2e-3)


def turned(x, turns, out, R: tkc.constexpr, N: tkc.constexpr):
    """Complex numbers of rows, times one of each column: pairs of a small load."""
    re, im = (tkc.load(x, (axis, 0, 0), (None, R, N)) for axis in (0, 1))
    cos, sin = tkc.split(tkc.load(turns, (0,), (2 * N,)).reshape(N, 2))
    tkc.store(out, (0, 0, 0), re * cos - im * sin)
    tkc.store(out, (1, 0, 0), re * sin + im * cos)


@pytest.mark.parametrize("rows, columns", [(16, 128), (16, 32), (1, 512)])
def test_parts_of_a_small_load_are_loaded_where_they_are_wanted(rows, columns):
    planes = array(tkc.float32, 3)
    module = traced(turned, planes, f1, planes, R=rows, N=columns)
    given = context("sm_90a", num_warps=4)
    through(module, LAST, given)
    assert not operations_in(module, shared.Convert)
    x, turns, out = normal(2, rows, columns), normal(2 * columns, seed=1), blank(2, rows, columns)
    through(module, PIPELINE[-1], given)
    level4.run(module, [x, turns, out], (1, 1, 1))
    want = (x[0] + 1j * x[1]) * (turns[0::2] + 1j * turns[1::2])
    same([out], [np.stack([want.real, want.imag])], 1e-6)


# ---- blocks that dots read in shared memory, and threads in registers ----------------------------
def kept_and_stored(x, y, c, d, N: tkc.constexpr):
    """A block is the left operand in every step, and threads change it."""
    rows, total = tkc.load(x, (0, 0), (N, N)), tkc.zeros((N, N))
    tkc.store(d, (0, 0), tkc.maximum(rows, 0))
    for k in tkc.range(0, y.shape[0], N):
        total = tkc.dot(rows, tkc.load(y, (k, 0), (N, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))


def left_and_right(x, y, c, d, N: tkc.constexpr):
    """A block is the left operand of one dot, and the right one of another."""
    one = two = tkc.zeros((N, N))
    for k in tkc.range(0, x.shape[1], N):
        rows = tkc.load(x, (0, k), (N, N))
        one = tkc.dot(rows, tkc.load(y, (k, 0), (N, N)), one)
        two = tkc.dot(tkc.load(y, (0, k), (N, N)), rows, two)
    tkc.store(c, (0, 0), one.to(c.dtype))
    tkc.store(d, (0, 0), two.to(d.dtype))


@pytest.mark.parametrize(
    "kernel, instruction, left, more",
    [
        (kept_and_stored, "mma", "shared", 0),
        (kept_and_stored, "wgmma", "shared", 0),  # separate-operands has done so
        (left_and_right, "wgmma", "registers", 1),
        (left_and_right, "wgmma", "shared", 0),
    ],
)
def test_a_block_is_loaded_again_for_threads_where_wgmma_reads_it(kernel, instruction, left, more):
    """What mma reads in shared memory threads read there too."""
    module, given = traced(kernel, *(aligned(tkc.bfloat16, 2),) * 4, N=64), context("sm_90a")
    through(module, "plan", given)
    loads = sum(isinstance(op, tile.Load) for op in module.walk())
    first, *others = given.plan.dots
    first = dataclasses.replace(first, instruction=instruction, a=left, b="shared")
    given.plan = dataclasses.replace(given.plan, dots=(first, *others))
    load_for_threads(kernel_of(module), given.plan)
    assert sum(isinstance(op, tile.Load) for op in module.walk()) == loads + more


def turned_rows(x, y, w, p, q, N: tkc.constexpr, NARROW: tkc.constexpr):
    """Rows of many and of few heads by one row of weights."""
    row = tkc.load(w, (tkc.program_id(0), 0), (None, N))[None, :]
    tkc.store(p, (0, 0), (tkc.load(x, (0, 0), (32, N)) * row).to(p.dtype))
    tkc.store(q, (0, 0), (tkc.load(y, (0, 0), (NARROW, N)) * row).to(q.dtype))


def test_a_row_that_all_warps_have_is_loaded_again_where_others_of_their_lanes_want_it():
    """Nothing then goes through shared memory, and no warp waits."""
    wide, row = aligned(tkc.bfloat16, 2), aligned(tkc.float32, 2)
    module, given = (
        traced(turned_rows, wide, wide, row, wide, wide, N=64, NARROW=8),
        context("sm_90a", num_warps=4),
    )
    through(module, "swizzle-shared", given)
    assert sum(isinstance(op, tile.Load) for op in module.walk()) == 4
    assert not any(isinstance(op, shared.Write | shared.Convert) for op in module.walk())


def turned_signals(x, y, w, p, q, N: tkc.constexpr, SEM: tkc.constexpr):
    """The same of a row that other programs may write meanwhile."""
    row = tkc.load(w.ptr + tkc.arange(N), sem=SEM)[None, :]
    tkc.store(p, (0, 0), (tkc.load(x, (0, 0), (32, N)) * row).to(p.dtype))
    tkc.store(q, (0, 0), (tkc.load(y, (0, 0), (8, N)) * row).to(q.dtype))


@pytest.mark.parametrize("semantics, loads", [(None, 2), ("relaxed", 1), ("acquire", 1)])
def test_what_others_write_meanwhile_is_loaded_once(semantics, loads):
    """All lanes compute with the same numbers then."""
    wide, row = aligned(tkc.bfloat16, 2), array(tkc.float32, 1, align=16)
    module, given = (
        traced(turned_signals, wide, wide, row, wide, wide, N=64, SEM=semantics),
        context("sm_90a", num_warps=4),
    )
    through(module, LAST, given)
    assert len(operations_in(module, tile.LoadPointers)) == loads
    assert len(converts(kernel_of(module))) == 2 - loads


def scaled_sums(a, b, s, o, N: tkc.constexpr):
    """Factors that are computed of 8 bits; what they come to is scaled before it is added."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], N):
        x, y = tkc.load(a, (0, k), (N, N)), tkc.load(b, (k, 0), (N, N))
        part = tkc.dot(x.to(tkc.float16), y.to(tkc.float16))
        total = total + part * tkc.load(s, (k // N,), (None,))
    tkc.store(o, (0, 0), total)


@pytest.mark.parametrize("n, steps", [(128, 2), (64, 1)])
def test_operands_of_all_k_that_fill_registers_are_computed_in_steps(n, steps):
    """128 x 128 of 8 warps: 128 registers of sums, and 192 of operands."""
    arrays = (array(tkc.int8, 2), array(tkc.int8, 2), array(tkc.float32), array(tkc.float32, 2))
    module, given = traced(scaled_sums, *arrays, N=n), context("sm_80")
    through(module, LAST, given)
    assert sum(isinstance(op, tile.Dot) for op in module.walk()) == steps
    through(module, PIPELINE[-1], given)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.int8) for shape in ((n, 2 * n), (2 * n, n)))
    scales, o = np.array([1, 0.5], np.float32), np.zeros((n, n), np.float32)
    level4.run(module, [a, b, scales, o], (1, 1, 1))
    parts = (a[:, k : k + n].astype(np.float64) @ b[k : k + n] for k in (0, n))
    np.testing.assert_array_equal(o, sum(p * f for p, f in zip(parts, scales, strict=True)))
    if ptxas.find("ptxas"):
        text = ptxas.unlimited(emit(module, target("sm_80")).text)  # as the compiler tries first
        assert not ptxas.assemble(text, "sm_80").spill_stores


def test_operands_that_lie_in_memory_as_they_are_take_no_steps():
    """The same product of blocks that are read as they are used."""
    arrays = (
        array(tkc.float16, 2),
        array(tkc.float16, 2),
        array(tkc.float32),
        array(tkc.float32, 2),
    )
    module = traced(scaled_sums, *arrays, N=128)
    through(module, LAST, context("sm_80"))
    assert sum(isinstance(op, tile.Dot) for op in module.walk()) == 1


def joined_columns(x, o, i):
    column = tkc.load(x, (0, i + tkc.arange(1)), (5, 1))
    tkc.store(o, (0, 0), tkc.cat([column, column + 1], axis=1))


@pytest.mark.parametrize("target_name", ["sm_80", "sm_90a"])
def test_one_column_is_gathered_as_half_of_two(target_name):
    """Its axis is padded to the two columns, that of its offsets too."""
    x, o = np.arange(30, dtype=np.int32).reshape(5, 6), np.zeros((5, 2), np.int32)
    module = traced(joined_columns, array(tkc.int32, 2), array(tkc.int32, 2), i32())
    through(module, PIPELINE[-1], context(target_name))
    level4.run(module, [x, o, 2], (1, 1, 1))
    assert (o == x[:, 2:3] + [0, 1]).all()


def decayed(q, g, k, h, out, B: tkc.constexpr, BK: tkc.constexpr):
    """A product of rows and columns that are weighted by how far their logarithms are from those of
    a row, which both read.
    """
    total = tkc.zeros((B, B), tkc.float32)
    for s in tkc.range(0, 128, BK):
        first = tkc.load(g, (0, s), (1, BK)).reshape(BK)
        a = tkc.load(q, (0, s), (B, BK)) * tkc.exp2(tkc.load(g, (0, s), (B, BK)) - first[None, :])
        b = tkc.load(k, (s, 0), (BK, B)) * tkc.exp2(first[:, None] - tkc.load(h, (s, 0), (BK, B)))
        total = tkc.dot(a, b, total, precision="tf32")
    tkc.store(out, (0, 0), total)


def decayed_product(last, **options):
    rows, columns = aligned(tkc.float32, 2), array(tkc.float32, 2, strides=(1, 128))
    module = traced(decayed, rows, rows, columns, columns, rows, B=16, BK=32)
    given = through(module, last, context("sm_90a", **options))
    return kernel_of(module), given


@pytest.mark.parametrize("warps", [1, 2, 4])
def test_what_two_operands_read_leaves_each_its_own_layout(warps):
    """A row that is broadcast into both operands has no say in how threads share their blocks."""
    kernel, _ = decayed_product(LAST, num_warps=warps)
    powers = [op.result for op in kernel.walk() if isinstance(op, ew.Elementwise) and _is_exp(op)]
    assert len(powers) == 2
    for value in powers:
        layout = layout_of(value)
        assert layout.num_registers * 32 * warps <= max(tile_type(value).size, 8 * 32 * warps)


def _is_exp(op):
    return op.fn.name == "exp2"
