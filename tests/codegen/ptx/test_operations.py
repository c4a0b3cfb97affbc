"""Operations on tiles, each in a small kernel: from Python to PTX, on the little machine against
level 0.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32
from tests.operations.case import DTYPES
from tests.passes.kernels import PIPELINE, Case, context, same, through
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.errors import CompileError
from tkc.ir.dtypes import BY_NUMPY
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.sim import dataflow, level0
from tkc.sim.ptx import run


def emitted(module, machine="sm_80"):
    through(module, PIPELINE[-1], context(machine))
    return emit(module, target(machine))


def check(fn, data, tolerance=0.0, grid=(1,), machine="sm_80", **constants):
    """A function of arrays and numbers; every array is compared afterwards."""
    kinds = [array(BY_NUMPY[x.dtype], x.ndim) if isinstance(x, np.ndarray) else i32() for x in data]
    case = Case(
        fn,
        kinds,
        constants,
        lambda: [x.copy() if isinstance(x, np.ndarray) else x for x in data],
        grid,
    )
    program, want = emitted(case.module(), machine), case.data()
    got = run(program, case.data(), grid)
    level0.run(case.module(), want, grid)
    for g, w in zip(got, [x for x in want if isinstance(x, np.ndarray)], strict=False):
        if tolerance:
            same([g], [w], tolerance)
        else:
            assert np.array_equal(g, w, equal_nan=g.dtype.kind not in "iub"), (g, w)
    if ptxas.find("ptxas"):
        found = ptxas.assemble(program.text, machine)
        if not found.clean:
            found = ptxas.assemble(program.roomy, machine)
        assert found.clean, found.log


def numbers(shape, dtype, seed=0):
    r, d = np.random.default_rng(seed), np.dtype(dtype)
    if d.kind == "b":
        return r.integers(0, 2, shape).astype(bool)
    return (
        r.integers(-50 if d.kind == "i" else 0, 60, shape).astype(d)
        if d.kind in "iu"
        else r.standard_normal(shape).astype(d)
    )


KINDS = {
    "sum": tkc.sum,
    "max": tkc.max,
    "min": tkc.min,
    "prod": tkc.prod,
    "argmax": tkc.argmax,
    "argmin": tkc.argmin,
    "xor": tkc.xor_sum,
}


@pytest.mark.parametrize(
    "shape, axis",
    [
        ((8, 64), 1),
        ((8, 64), 0),
        ((7, 100), 1),
        ((33, 5), 0),
        ((1, 1), 1),
        ((3, 1000), 1),
        ((4, 6, 10), 1),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_reduction(kind, shape, axis):
    dtype = np.int32 if kind in ("xor", "prod", "sum") else np.float32
    out = tuple(n for a, n in enumerate(shape) if a != axis)
    result = np.zeros(out, np.int32 if kind.startswith("arg") else dtype)

    def reduction(x, o, SHAPE: tkc.constexpr, OUT: tkc.constexpr, AXIS: tkc.constexpr):
        tkc.store(o, (0,) * len(OUT), KINDS[kind](tkc.load(x, (0,) * len(SHAPE), SHAPE), axis=AXIS))

    x = numbers(shape, dtype)
    if dtype == np.float32:
        x = np.round(x * 2) / 2  # equal elements, for argmax
    check(reduction, [x, result], SHAPE=shape, OUT=out, AXIS=axis)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "xor"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(256, 8), (128, 32), (64, 24), (96, 2), (40, 5), (2, 64, 16)])
def test_lanes_that_share_a_reduction_deal_its_results_out(kind, dtype, shape):
    """Lanes and warps lie along the axis: lanes halve what they have before warps meet."""
    axis = len(shape) - 2

    def columns(x, o, SHAPE: tkc.constexpr, AXIS: tkc.constexpr):
        found = KINDS[kind](tkc.load(x, (0,) * len(SHAPE), SHAPE), axis=AXIS)
        tkc.store(o, (0,) * (len(SHAPE) - 1), found.to(o.dtype))

    result = np.zeros((*shape[:axis], shape[-1]), dtype)
    check(columns, [numbers(shape, dtype), result], SHAPE=shape, AXIS=axis)


ODD_FLOATS = [-np.inf, np.inf, -0.0, 0.0, 2.0**-14, -(2.0**-14), 1.5, -1.5]


@pytest.mark.parametrize("kind", ["max", "min", "nanmax", "nanmin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", [32, 100, 2048])
def test_a_warp_orders_floats_by_one_instruction(kind, dtype, columns):
    """NaN of either sign wins or is passed over; of zeros the sign counts."""
    random, function = np.random.default_rng(columns), getattr(tkc, kind)
    x = random.choice(ODD_FLOATS, (8, columns)).astype(dtype)
    x[0] = np.nan
    x[1], x[1, 7] = -np.inf, -np.nan
    x[2, 5], x[2, 30] = np.nan, -np.nan
    x[3] = random.choice([-0.0, 0.0], columns)
    x[4], x[4, 31] = np.nan, -2.0
    x[5] = np.abs(x[5])
    x[6] = -np.abs(x[6])

    def rows(x, o, N: tkc.constexpr):
        i = tkc.program_id(0)
        tkc.store(o, (i,), function(tkc.load(x, (i, 0), (1, N)), axis=1))

    check(rows, [x, np.zeros(8, dtype)], grid=(8,), N=columns)
    case = Case(
        rows, [array(BY_NUMPY[np.dtype(dtype)], n) for n in (2, 1)], {"N": columns}, list, (8,)
    )
    assert emitted(case.module()).text.count("redux.sync") == 1


@pytest.mark.parametrize("kind", ["sum", "max", "min", "xor"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_a_warp_reduces_integers_by_one_instruction(kind, dtype):
    random, limits = np.random.default_rng(0), np.iinfo(dtype)
    x = random.integers(limits.min, limits.max, (4, 256), dtype, endpoint=True)
    x[1], x[2] = limits.min, limits.max

    def rows(x, o):
        i = tkc.program_id(0)
        tkc.store(o, (i,), KINDS[kind](tkc.load(x, (i, 0), (1, 256)), axis=1))

    check(rows, [x, np.zeros(4, dtype)], grid=(4,))
    case = Case(rows, [array(BY_NUMPY[np.dtype(dtype)], n) for n in (2, 1)], {}, list, (4,))
    assert emitted(case.module()).text.count("redux.sync") == 1


@pytest.mark.parametrize("m, n", [(64, 8), (128, 64), (256, 16)])
def test_sums_of_a_products_columns(m, n):
    def sums(a, b, o, M: tkc.constexpr, N: tkc.constexpr):
        c = tkc.dot(tkc.load(a, (0, 0), (M, 16)), tkc.load(b, (0, 0), (16, N)))
        tkc.store(o, (0,), tkc.sum(tkc.maximum(c, 0), axis=0))

    a, b = (np.round(numbers(shape, np.float16) * 4) for shape in ((m, 16), (16, n)))
    check(sums, [a, b, np.zeros(n, np.float32)], M=m, N=n)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint16, np.int64, np.float16, ml_dtypes.bfloat16, np.float64]
)
def test_maximum_of_every_type(dtype):
    def rows(x, o):
        tkc.store(o, (0,), tkc.max(tkc.load(x, (0, 0), (6, 40)), axis=1))

    check(rows, [numbers((6, 40), dtype), np.zeros(6, dtype)])


def test_any_and_all():
    def rows(x, o, p):
        v = tkc.load(x, (0, 0), (6, 40))
        tkc.store(o, (0,), tkc.any(v, axis=1))
        tkc.store(p, (0,), tkc.all(v, axis=1))

    x = numbers((6, 40), bool)
    x[1], x[2] = True, False
    check(rows, [x, np.zeros(6, bool), np.zeros(6, bool)])


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("source", DTYPES, ids=lambda d: np.dtype(d).name)
def test_casts_to_every_type(source, machine):
    def cast_to_all(x, *outs):
        values = tkc.load(x, (0,), (128,))
        for out in outs:
            tkc.store(out, (0,), values.to(out.dtype))

    names = ", ".join(f"out{i}" for i in range(len(DTYPES)))
    scope = {"cast_to_all": cast_to_all}
    exec(f"def casts(x, {names}):\n    cast_to_all(x, {names})", scope)  # arguments have names
    outs = [np.zeros(128, dtype) for dtype in DTYPES]
    check(scope["casts"], [numbers(128, source), *outs], machine=machine)


def test_nan_wins():
    def rows(x, o, p):
        v = tkc.load(x, (0, 0), (4, 64))
        tkc.store(o, (0,), tkc.max(v, axis=1))
        tkc.store(p, (0,), tkc.argmax(v, axis=1))

    x = numbers((4, 64), np.float32)
    x[1, 33] = x[1, 40] = x[2, 0] = np.nan
    check(rows, [x, np.zeros(4, np.float32), np.zeros(4, np.int32)])


def test_rows_divided_by_a_number_each():
    """One reciprocal a row: within 2 ulp from the smallest divisors to the largest, and infinities,
    zeros and NaN as a division has them.
    """

    def divided(x, d, o, ROWS: tkc.constexpr, N: tkc.constexpr):
        rows = tkc.load(d, (0,), (ROWS,))
        tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, N)) / rows[:, None])

    rng = np.random.default_rng(0)
    ends = np.array(
        [
            0,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            1e-45,
            -3e-39,
            2.0**-126,
            2.0**-125,
            2.0**-124,
            2.0**125,
            2.0**126,
            -(2.0**127),
            3.4e38,
            1,
            -3,
        ],
        np.float32,
    )
    x, d = (
        rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
        for n in ((64, 128), 64)
    )
    x[:, :16], d[:16] = ends, ends
    case = Case(
        divided,
        (array(tkc.float32, 2), array(tkc.float32), array(tkc.float32, 2)),
        dict(ROWS=64, N=128),
        lambda: [x, d, np.zeros_like(x)],
        (1,),
    )
    program = emitted(case.module())
    *_, o = run(program, case.data(), (1,))
    assert "div.full" not in program.text
    with np.errstate(all="ignore"):
        want = x.astype(np.float64) / d[:, None].astype(np.float64)
        near = want.astype(np.float32)
        same = ~np.isfinite(near) | ~np.isfinite(x) | ~np.isfinite(d)[:, None]
        np.testing.assert_array_equal(o[same], near[same])
        assert (
            np.abs(o.astype(np.float64) - want)[~same]
            <= 2 * np.spacing(np.abs(near[~same])).astype(np.float64)
        ).all()


def test_reduction_in_the_order_of_the_axis():
    """x -> a x + b: composing these does not commute."""

    def compose(a, b, o, N: tkc.constexpr):
        s, t = tkc.reduce(
            (tkc.load(a, (0, 0), (4, N)), tkc.load(b, (0, 0), (4, N))),
            1,
            lambda s, t, u, v: (u * s, u * t + v),
        )
        tkc.store(o, (0, 0), s[None, :])
        tkc.store(o, (1, 0), t[None, :])

    for n in (1, 16, 64, 256, 1500, 4097):  # of the longest, warps hold nothing but padding
        check(
            compose,
            [numbers((4, n), np.int32) % 3, numbers((4, n), np.int32), np.zeros((2, 4), np.int32)],
            N=n,
        )


def test_tiles_of_several_types_are_reduced_over_warps_together():
    def last_true(x, a, b, o, p, q, N: tkc.constexpr):
        def later(t, v, w, after, y, z):
            return t | after, tkc.where(after, y, v), tkc.where(after, z, w)

        found = tkc.load(x, (0, 0), (2, N)) > 55
        v, w = tkc.load(a, (0, 0), (2, N)), tkc.load(b, (0, 0), (2, N))
        found, v, w = tkc.reduce((found, v, w), 1, later)
        tkc.store(o, (0, 0), found.to(tkc.int32)[None, :])
        tkc.store(p, (0, 0), v[None, :])
        tkc.store(q, (0, 0), w[None, :])

    for n in (512, 1500, 4097):
        kinds = np.int32, np.int8, np.float16
        given = [numbers((2, n), kind, seed) for seed, kind in enumerate(kinds)]
        check(last_true, [*given, *(np.zeros((1, 2), kind) for kind in kinds)], N=n)


@pytest.mark.parametrize(
    "shape, axis", [((4, 64), 1), ((64, 3), 0), ((5, 37), 1), ((1, 512), 1), ((16, 1), 1)]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(shape, axis, reverse):
    def scan(x, o, SHAPE: tkc.constexpr, AXIS: tkc.constexpr, REVERSE: tkc.constexpr):
        tkc.store(o, (0, 0), tkc.cumsum(tkc.load(x, (0, 0), SHAPE), axis=AXIS, reverse=REVERSE))

    check(
        scan,
        [numbers(shape, np.int32), np.zeros(shape, np.int32)],
        SHAPE=shape,
        AXIS=axis,
        REVERSE=reverse,
    )


@pytest.mark.parametrize(
    "dtype", [np.float32, np.int8, np.uint32, np.float16, np.int64, ml_dtypes.bfloat16]
)
@pytest.mark.parametrize(
    "n, descending", [(64, False), (64, True), (7, False), (1, False), (100, True)]
)
def test_sort(dtype, n, descending):
    def order(x, o, N: tkc.constexpr, DOWN: tkc.constexpr):
        tkc.store(o, (0, 0), tkc.sort(tkc.load(x, (0, 0), (3, N)), descending=DOWN))

    x = numbers((3, n), dtype)
    if x.dtype == np.float32 and n > 4:
        x[0, 3], x[1, 1], x[2, 2] = np.nan, -np.inf, np.inf
    check(order, [x, np.zeros((3, n), dtype)], N=n, DOWN=descending)


def test_histogram():
    def count(x, o, N: tkc.constexpr):
        tkc.store(o, (0,), tkc.histogram(tkc.load(x, (0,), (N,)), 40))

    for n in (1, 100, 1000):
        check(count, [numbers(n, np.int32), np.zeros(40, np.int32)], N=n)


def test_a_histogram_that_no_multiprocessor_holds():
    @tkc.jit
    def count(x, o):
        tkc.store(o, (0,), tkc.histogram(tkc.load(x, (0,), (128,)), 65536))

    with pytest.raises(
        CompileError,
        match=(
            "262144 bytes for loads, histograms and results of atomics do not fit 232448 bytes of"
            " shared memory; use smaller tiles or fewer bins"
        ),
    ):
        count.compile("i32[1000]", "i32[65536]", target="sm_90a")


@pytest.mark.parametrize(
    "dtype, kind",
    [
        (np.float32, "add"),
        (np.int32, "add"),
        (np.int32, "max"),
        (np.uint32, "min"),
        (np.int64, "add"),
        (np.int32, "xor"),
        (np.float32, "max"),
        (np.float16, "add"),
        (ml_dtypes.bfloat16, "add"),
        (np.float64, "add"),
    ],
)
def test_atomic_update(dtype, kind):
    update = {
        "add": tkc.atomic_add,
        "max": tkc.atomic_max,
        "min": tkc.atomic_min,
        "xor": tkc.atomic_xor,
    }[kind]

    def scatter(x, index, o, N: tkc.constexpr):
        i = tkc.arange(N)
        update(o.ptr + tkc.load(index.ptr + i), tkc.load(x.ptr + i), mask=i < N - 3)

    x = (
        numbers(100, dtype).astype(np.float32).round().astype(dtype)
        if np.dtype(dtype).kind not in "iu"
        else numbers(100, dtype)
    )
    check(scatter, [x, numbers(100, np.int32, 1) % 7, np.ones(7, dtype)], N=100)


@pytest.mark.parametrize("machine, pairs", [("sm_80", 1), ("sm_90a", 4)])
@pytest.mark.parametrize("n", [1024, 1000])
def test_neighbours_of_16_bits_are_added_to_at_once(machine, pairs, n):
    def gather(x, o, N: tkc.constexpr):
        tkc.atomic_add(o, (0,), tkc.load(x, (0,), (N,)))

    kinds = [replace(array(tkc.float16, 1), facts=ArrayFacts((Fact(8),), (Fact(exact=1),), 16))] * 2
    data = [numbers(n, np.float32).round().astype(np.float16), np.ones(n, np.float16)]
    case = Case(gather, kinds, {"N": 1024}, lambda: [x.copy() for x in data], (1,))
    program = emitted(case.module(), machine)
    wide = f".v{pairs}" if pairs > 1 else ""
    assert f"red.relaxed.gpu.global.add.noftz{wide}.f16x2" in program.text
    assert "noftz.f16 " not in program.text
    assert np.array_equal(run(program, case.data(), (1,))[1], data[0] + data[1])


@pytest.mark.parametrize("by_pointers", [False, True])
@pytest.mark.parametrize("n", [1024, 1000])
def test_neighbours_of_32_bits_are_added_to_at_once(by_pointers, n):
    def gather(x, o, M, N: tkc.constexpr):
        i = tkc.arange(N)
        value = tkc.load(x, (0,), (N,))
        if by_pointers:
            tkc.atomic_add(o.ptr + i, value, mask=i < M)
        else:
            tkc.atomic_add(o, (0,), value)

    facts = ArrayFacts((Fact(8),), (Fact(exact=1),), 16)
    kinds = [*[replace(array(tkc.float32, 1), facts=facts)] * 2, i32(8)]
    data = [numbers(n, np.float32), np.ones(n, np.float32), n]
    case = Case(gather, kinds, {"N": 1024}, lambda: [np.copy(x) for x in data[:2]] + [n], (1,))
    program = emitted(case.module(), "sm_90a")
    assert "red.relaxed.gpu.global.add.v4.f32" in program.text
    assert np.array_equal(run(program, case.data(), (1,))[1], data[0] + data[1])
    assert ".v4.f32" not in emitted(case.module(), "sm_80").text


def test_atomic_results():
    """Tickets: every element of distinct addresses gets its old value; a scalar's goes to all
    threads.
    """

    def tickets(x, count, o, N: tkc.constexpr):
        i = tkc.arange(N)
        old = tkc.atomic_add(x.ptr + i, i)
        mine = tkc.atomic_add(count.ptr, 5)
        tkc.store(o.ptr + i, old + mine)
        tkc.atomic_cas(x.ptr + i, tkc.full((N,), 7, tkc.int32), i * 100)

    check(tickets, [numbers(50, np.int32), np.array([3], np.int32), np.zeros(50, np.int32)], N=50)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_scalar_is_exchanged_for_what_was_read(dtype):
    """A NaN, too, and not a zero of the other sign."""

    def exchanges(x, o, N: tkc.constexpr):
        for i in range(N):
            tkc.store(o, (i,), tkc.atomic_cas(x.ptr + i, x[i], x[N]))
            tkc.store(o, (N + i,), tkc.atomic_cas(x.ptr + i, -x[i], x[0]))

    x = np.array([1, np.nan, -0.0, 0.0, np.inf, -np.nan, 5], np.float32).astype(dtype)
    check(exchanges, [x, np.zeros(12, dtype)], N=6)


def test_acquire_and_release():
    """One thread asks, all hear the answer; what the block wrote comes before the release."""

    def relay(flag, x, o, N: tkc.constexpr):
        while tkc.load(flag.ptr, sem="acquire") == 0:
            pass
        tkc.store(o, (0,), tkc.load(x, (0,), (N,)) + tkc.atomic_add(flag.ptr, 3, sem="acq_rel"))
        tkc.store(flag.ptr + 1, 9, sem="release")

    check(relay, [np.array([1, 0], np.int32), numbers(64, np.int32), np.zeros(64, np.int32)], N=64)


def test_the_thread_that_updates_fences_for_all():
    """They met it before its release, and meet it behind its acquire: with a result or without."""

    def handed(flag, x, o, N: tkc.constexpr):
        tkc.store(o, (0,), tkc.load(x, (0,), (N,)))
        tkc.atomic_add(flag.ptr, 1, sem="acq_rel")
        tkc.store(o, (0,), tkc.load(o, (0,), (N,)) + tkc.atomic_add(flag.ptr, 1, sem="acquire"))

    given = [np.zeros(1, np.int32), numbers(1024, np.int32), np.zeros(1024, np.int32)]
    check(handed, given, N=1024)
    case = Case(
        handed, [array(BY_NUMPY[x.dtype], 1) for x in given], {"N": 1024}, lambda: given, (1,)
    )
    lines = [line.strip() for line in emitted(case.module()).text.splitlines()]
    words = ("bar.sync", "fence.acq_rel", "atom.", "red.")
    order = [next(w for w in words if w in line) for line in lines if any(w in line for w in words)]
    update = order.index("fence.acq_rel")
    assert order[update - 1 : update + 4] in (
        ["bar.sync", "fence.acq_rel", word, "fence.acq_rel", "bar.sync"] for word in words[2:]
    )
    assert all(line.startswith("@") for line in lines if "fence.acq_rel" in line)


def test_relaxed_accesses_are_made_each_time():
    """A word that others write is asked for again in each turn of a loop, by one thread for all
    that hold it, and nothing is ordered round it.
    """

    def relay(word, o, N: tkc.constexpr):
        at = word.ptr + tkc.arange(N) // 4
        found = tkc.load(at, sem="relaxed")
        while not tkc.all(found >= 5):
            found = tkc.load(at, mask=found < 5, other=found, sem="relaxed")
        tkc.store(
            o.ptr + tkc.arange(N), found + tkc.load(word.ptr + 3, sem="relaxed"), sem="relaxed"
        )
        tkc.store(word.ptr, 1, sem="relaxed")

    given = [np.array([7, 5, 9, 6], np.int32), np.zeros(16, np.int32)]
    check(relay, given, N=16)
    case = Case(relay, [array(BY_NUMPY[x.dtype], 1) for x in given], {"N": 16}, lambda: given, (1,))
    text = emitted(case.module(), "sm_80").text
    assert (
        text.count("ld.relaxed.gpu.global.b32") == 3
        and text.count("st.relaxed.gpu.global.b32") == 2
        and "fence" not in text
        and "ld.global" not in text
    )


@pytest.mark.parametrize(
    "shape, count, dtype",
    [
        ((32, 256), 8, np.int32),
        ((5, 100), 3, np.float32),
        ((1, 1000), 50, np.uint32),
        ((3, 700), 20, np.int64),
        ((40, 16), 8, np.uint8),
        ((2, 64), 1, np.float16),
        ((2, 130), 7, bool),
    ],
)
@pytest.mark.parametrize("down", [True, False])
def test_the_first_of_a_sort(shape, count, dtype, down):
    """Only those are sorted, by each thread and then among lanes; NaN is last both ways."""

    def first(x, o, SHAPE: tkc.constexpr, COUNT: tkc.constexpr, DOWN: tkc.constexpr):
        tkc.store(o, (0, 0), tkc.sort(tkc.load(x, (0, 0), SHAPE), 1, descending=DOWN)[:, :COUNT])

    x = numbers(shape, dtype)
    if x.dtype.kind == "f":
        x[:, 5], x[:, 9] = np.nan, -np.inf
    given, constants = (
        [x, np.zeros((shape[0], count), dtype)],
        dict(SHAPE=shape, COUNT=count, DOWN=down),
    )
    check(first, given, **constants)
    module = Case(
        first, [array(BY_NUMPY[v.dtype], 2) for v in given], constants, lambda: given, (1,)
    ).module()
    through(module, "select-layouts", context("sm_80"))
    assert [op.name for op in module.walk() if op.name.startswith("tile.sort")] == [
        "tile.sort_first"
    ]
    want, got = (
        np.sort(-x.astype(np.float64) if down else x.astype(np.float64), 1)[:, :count]
        * (-1 if down else 1),
        [x, np.zeros((shape[0], count), dtype)],
    )
    dataflow.run(module, got, (1,))
    np.testing.assert_array_equal(got[1].astype(np.float64), want)


def test_truth_of_many_warps():
    """Of a whole block by one vote at a barrier, of rows by votes of warps."""

    def truths(x, rows, o, M: tkc.constexpr, N: tkc.constexpr):
        v = tkc.load(x, (0, 0), (M, N))
        tkc.store(rows, (0, 0), tkc.any(v > 50, axis=1)[None, :])
        tkc.store(rows, (1, 0), tkc.all(v > 50, axis=1)[None, :])
        flat = v.reshape(M * N)
        tkc.store(o, (0,), tkc.any(flat > 50).to(tkc.int32))
        tkc.store(o, (1,), tkc.all(flat > 50).to(tkc.int32))

    for fill, place in (0, None), (0, 77), (60, None), (60, 77), (60, 4099):
        x = np.full((5, 1024), fill, np.int32)
        if place is not None:
            x.flat[place] = 60 - fill
        check(truths, [x, np.zeros((2, 5), bool), np.zeros(2, np.int32)], M=5, N=1024)


def test_scan_with_a_combine():
    """Prefixes of compositions, which do not commute; back to front the later one is met first."""

    def combined(a, b, o, p, N: tkc.constexpr, BACK: tkc.constexpr):
        s, t = tkc.scan(
            (tkc.load(a, (0, 0), (3, N)), tkc.load(b, (0, 0), (3, N))),
            1,
            lambda s, t, u, v: (u * s, u * t + v),
            reverse=BACK,
        )
        tkc.store(o, (0, 0), s)
        tkc.store(p, (0, 0), t)

    for n in (1, 8, 64, 300):
        for back in (False, True):
            check(
                combined,
                [
                    numbers((3, n), np.int32) % 3,
                    numbers((3, n), np.int32),
                    *(np.zeros((3, n), np.int32) for _ in range(2)),
                ],
                N=n,
                BACK=back,
            )


def test_views_masks_and_gathers():
    def views(x, index, o, n, N: tkc.constexpr):
        part = x[2:n]
        v = tkc.load(part, (1, 3), (8, N), other=9)
        w = tkc.load(x[5], (3,), (N,), mask=tkc.arange(N) % 3 != 0, other=-1)
        g = tkc.load(x, (tkc.load(index, (0,), (8,)), 1), (8, N))
        tkc.store(o[1:], (0, 0), v + w[None, :] + g + x[n - 1, 2])

    for n, _width in ((16, 13), (32, 40), (5, 6)):
        check(
            views,
            [
                numbers((11, 29), np.int32),
                np.array([0, 3, -1, 10, 11, 5, 5, 2], np.int32),
                np.zeros((9, n + 1), np.int32),
                7,
            ],
            N=n,
        )


@pytest.mark.skipif(
    ptxas.find("ptxas") is None, reason="ptxas is not installed (pip install nvidia-cuda-nvcc)"
)
def test_print_and_assert_assemble():
    def talk(x, n, N: tkc.constexpr):
        v = tkc.load(x, (0,), (N,))
        tkc.device_assert(n > 0, "n is positive")
        tkc.device_assert(v == v, "no NaN")
        tkc.print("total", tkc.sum(v), n)
        tkc.print("v", v)

    case = Case(talk, [array(tkc.bfloat16), i32()], dict(N=20), list, (1,))
    program = emitted(case.module())
    assert ptxas.assemble(program.text, "sm_80").registers
    assert "vprintf" in program.text
