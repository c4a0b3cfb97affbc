"""Level 0 against NumPy written the long way round."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.builder import ImplicitBuilder
from xdsl.dialects import scf
from xdsl.dialects.builtin import bf16, f32, f64, i1, i8, i32, i64
from xdsl.ir import Block, Region

from tests.sim.building import evaluate, integer, kernel, put, whole
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, ArrayType, PointerType, TileType, f8e4m3, f8e5m2, ui8, ui32
from tkc.sim import level0
from tkc.sim.errors import (
    AssertionFailed,
    BadArgument,
    OffsetOverflow,
    OutOfBounds,
    SimulationError,
)

SHAPES = [(1,), (7,), (3, 5), (1, 1), (2, 3, 4)]
rng = np.random.default_rng(0)
C = ew.CLASSES


def same(a, b):
    return np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64))


# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e4m3fn]
)
@pytest.mark.parametrize(
    "name,scalar",
    [
        ("exp", math.exp),
        ("tanh", math.tanh),
        ("erf", math.erf),
        ("sqrt", lambda x: math.sqrt(x) if x >= 0 else math.nan),
        ("floor", math.floor),
        ("round", round),
        ("neg", lambda x: -x),
        ("log1p", math.log1p),
        ("reciprocal", lambda x: 1 / x),
    ],
)
def test_unary_floats_are_rounded_once(name, scalar, dtype):
    x, most = (
        rng.uniform(-0.9 if name == "log1p" else -3, 3, (5, 7)).astype(dtype),
        float(ml_dtypes.finfo(dtype).max),
    )
    x[0, 0] = 0.001953125  # whose reciprocal no float8_e4m3 holds: it stays at the largest
    want = np.clip([scalar(float(v)) for v in np.where(x == 0, 1, x).ravel()], -most, most).reshape(
        x.shape
    )
    got = evaluate(lambda v: C[name](v).result, np.where(x == 0, 1, x).astype(dtype))
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(
        np.float64(got),
        want,
        rtol=0.51 * eps if eps > 1e-7 else 1e-6 if eps > 1e-10 else 1e-14,
        atol=2e-3 if eps > 0.1 else 1e-7,
    )


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
        min_size=4,
        max_size=40,
    )
)
def test_integers_wrap_floor_and_shift(pairs):
    def wrap(n):
        return (n + 2**31) % 2**32 - 2**31

    def check(name, want, pairs):
        columns = [np.array(column, np.int32) for column in zip(*pairs, strict=False)]
        np.testing.assert_array_equal(
            evaluate(lambda *v: C[name](*v).result, *columns),
            [wrap(want(*pair)) for pair in pairs],
            name,
        )

    for name, want in {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "mulhi": lambda a, b: a * b >> 32,
        "max": max,
        "and": lambda a, b: a & b,
        "xor": lambda a, b: a ^ b,
    }.items():
        check(name, want, pairs)
    if divided := [(a, b) for a, b in pairs if b and (a, b) != (-(2**31), -1)]:
        check("floordiv", lambda a, b: a // b, divided)
        check("mod", lambda a, b: a % b, divided)
    shifted = [(a, b % 40) for a, b in pairs]
    check("shl", lambda a, s: a << s, shifted)
    check("shr", lambda a, s: a >> s, shifted)
    check("popcount", lambda a: bin(a % 2**32).count("1"), [(a,) for a, _ in pairs])
    check("clz", lambda a: 32 - (a % 2**32).bit_length(), [(a,) for a, _ in pairs])


def test_maximum_and_minimum_propagate_nan():
    x, y = np.float32([1, np.nan, 2, np.nan]), np.float32([2, 1, np.nan, np.nan])
    same(evaluate(lambda a, b: C["max"](a, b).result, x, y), [2, np.nan, np.nan, np.nan])
    same(evaluate(lambda a: tile.Reduce("min", a, 0).result, x), np.nan)


def test_fma_rounds_once():
    a, c = np.float32([1 + 2**-12]), np.float32([-1 - 2**-11])
    assert evaluate(lambda x, y: C["fma"](x, x, y).result, a, c)[0] == 2.0**-24


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_of_zeros_has_their_sign(dtype):
    a, b, c = (
        np.array(x, dtype) for x in ([-0.0, -0.0, 0.0, 2.0], [0.0] * 4, [-0.0, 0.0, -0.0, 0.0])
    )
    found = evaluate(lambda x, y, z: C["fma"](x, y, z).result, a, b, c)
    assert np.signbit(found).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    "source,target,x,want",
    [
        (
            f32,
            i32,
            [2.9, -2.9, 3e9, -3e9, np.nan, np.inf],
            [2, -2, 2**31 - 1, -(2**31), 0, 2**31 - 1],
        ),
        (f32, ui8, [-1, 255.9, 256], [0, 255, 255]),
        (f64, i64, [9.3e18, -9.3e18], [2**63 - 1, -(2**63)]),
        (f32, i1, [0, -0.0, 0.5, np.nan], [0, 0, 1, 1]),
        (i32, i8, [300, -129], [44, 127]),
        (f32, f8e4m3, [1e6, -1e6, 449, 0.0011], [448, -448, 448, 2**-9 * 1]),
        (f32, f8e5m2, [np.inf, 1e6], [57344, 57344]),
        (f32, bf16, [1 + 2**-8, 1 + 3 * 2**-8], [1, 1 + 2**-6]),
        (i1, f32, [0, 1], [0, 1]),
        (ui32, f32, [2**32 - 1], [2.0**32]),
    ],
)
def test_casts(source, target, x, want):
    given = np.array(x).astype(level0.dtype_of(source))
    got = evaluate(lambda v: ew.Cast(v, TileType([len(x)], target)).result, given)
    assert [float(v) for v in got] == [float(v) for v in want] and got.dtype == level0.dtype_of(
        target
    )


def test_bitcast_and_select():
    x = np.float32([1.0, -0.0])
    assert evaluate(lambda v: ew.Bitcast(v, TileType([2], i32)).result, x).tolist() == [
        0x3F800000,
        -(2**31),
    ]
    q, a, b = (
        np.array([True, False, True]),
        np.arange(3, dtype=np.int32),
        -np.arange(3, dtype=np.int32),
    )
    assert evaluate(lambda *v: ew.Select(*v).result, q, a, b).tolist() == [0, -1, 2]


# --------------------------------------------------------------------------------------------------
def test_shapes():
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)

    def t(*extents):
        return TileType(extents, i32)

    assert (
        evaluate(lambda v: tile.Transpose(v, (2, 0, 1)).result, x) == np.moveaxis(x, 2, 0)
    ).all()
    assert (evaluate(lambda v: tile.Reshape(v, t(6, 1, 4)).result, x) == x.reshape(6, 1, 4)).all()
    assert (
        evaluate(lambda v: tile.Slice(v, (0, 1, 0), t(2, 1, 2), (1, 1, 3)).result, x)
        == x[:, 1:2, ::3]
    ).all()
    assert evaluate(lambda v: tile.Extract(v, (1, 2, 3)).result, x) == 23
    assert (evaluate(lambda v: tile.Flip(v, 1).result, x) == x[:, ::-1]).all()
    assert (
        evaluate(lambda v, w: tile.Concat([v, w, v], 2, t(2, 3, 12)).result, x, x)
        == np.concatenate([x] * 3, 2)
    ).all()
    assert (
        evaluate(lambda v: tile.Broadcast(v, t(2, 5, 4)).result, x[:, :1])
        == np.repeat(x[:, :1], 5, 1)
    ).all()
    assert evaluate(lambda: tile.Arange(5, t(3)).result).tolist() == [5, 6, 7]


# --------------------------------------------------------------------------------------------------
def reduced(kind, x, axis):
    return evaluate(lambda v: tile.Reduce(kind, v, axis).result, x)


@pytest.mark.parametrize("shape", SHAPES)
def test_reductions_along_every_axis(shape):
    x = rng.integers(-9, 9, shape).astype(np.int32)
    for axis in range(len(shape)):
        for kind, want in {
            "sum": x.sum(axis),
            "prod": x.astype(np.int64).prod(axis).astype(np.int32),
            "max": x.max(axis),
            "argmin": x.argmin(axis),
            "xor": np.bitwise_xor.reduce(x, axis),
        }.items():
            assert np.array_equal(reduced(kind, x, axis), want), kind
        assert np.array_equal(reduced("any", x > 3, axis), (x > 3).any(axis))


def test_argmax_takes_the_first_and_sums_round_once():
    assert (
        evaluate(
            lambda v: tile.Reduce("argmax", v, 0).result, np.array([1, 3, 3, 2], ml_dtypes.bfloat16)
        )
        == 1
    )
    assert (
        evaluate(lambda v: tile.Reduce("sum", v, 0).result, np.full(4096, 1, ml_dtypes.bfloat16))
        == 4096
    )
    assert evaluate(
        lambda v: tile.Reduce("sum", v, 0).result, np.full(300, 100, np.int8)
    ) == np.int8(30000 % 256)


def combine(types, body):
    block = Block(arg_types=[*types, *types])
    with ImplicitBuilder(block):
        tile.Yield(*body(*block.args))
    return Region(block)


@pytest.mark.parametrize("reverse", [False, True])
def test_combine_of_two_tiles_is_a_linear_recurrence(reverse):
    a, b = rng.uniform(0.5, 1, (3, 9)), rng.uniform(-1, 1, (3, 9))

    def step(a0, b0, a1, b1):
        return (
            C["mul"](a0, a1).result,
            C["add"](C["mul"](b0, a1).result, b1).result,
        )

    got = evaluate(
        lambda p, q: tuple(
            tile.Scan("combine", [p, q], 1, reverse, combine([f64, f64], step)).results
        ),
        a,
        b,
    )[1]
    want, h = np.zeros_like(b), np.zeros(3)
    for i in reversed(range(9)) if reverse else range(9):
        want[:, i] = h = a[:, i] * h + b[:, i]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    last = evaluate(
        lambda p, q: tuple(
            tile.Reduce(
                "combine", [p, q], 1, [TileType([3], f64)] * 2, combine([f64, f64], step)
            ).results
        ),
        a,
        b,
    )[1]
    np.testing.assert_allclose(last, evaluate_last(a, b), rtol=1e-12)


def evaluate_last(a, b):
    h = np.zeros(3)
    for i in range(9):
        h = a[:, i] * h + b[:, i]
    return h


def test_a_combine_that_branches():
    def larger(x, y):
        yes, no = Block(), Block()
        with ImplicitBuilder(yes):
            scf.YieldOp(x)
        with ImplicitBuilder(no):
            scf.YieldOp(y)
        return scf.IfOp(C["gt"](x, y).result, [i32], Region(yes), Region(no)).results

    x = rng.integers(-99, 99, (4, 6)).astype(np.int32)
    assert (
        evaluate(
            lambda v: (
                tile.Reduce("combine", [v], 0, [TileType([6], i32)], combine([i32], larger)).result
            ),
            x,
        )
        == x.max(0)
    ).all()


@pytest.mark.parametrize(
    "kind,ufunc", [("sum", np.add), ("prod", np.multiply), ("max", np.maximum)]
)
def test_scans(kind, ufunc):
    x = rng.integers(-3, 4, (2, 11)).astype(np.float32)
    same(evaluate(lambda v: tile.Scan(kind, v, 1).result, x), ufunc.accumulate(x, 1))
    same(
        evaluate(lambda v: tile.Scan(kind, v, 1, True).result, x),
        ufunc.accumulate(x[:, ::-1], 1)[:, ::-1],
    )


def test_sort_puts_nan_last_and_histogram_counts():
    x = np.float32([[3, np.nan, -1, 2]])
    same(evaluate(lambda v: tile.Sort(v).result, x), [[-1, 2, 3, np.nan]])
    same(evaluate(lambda v: tile.Sort(v, True).result, x), [[3, 2, -1, np.nan]])
    h = np.int32([0, 4, 1, 1, -1, 5, 0])
    assert evaluate(lambda v: tile.Histogram(v, 5).result, h).tolist() == [2, 2, 0, 0, 1]
    assert evaluate(lambda v, q: tile.Histogram(v, 5, q).result, h, h != 1).tolist() == [
        2,
        0,
        0,
        0,
        1,
    ]


# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (16, 8, 17)])
@pytest.mark.parametrize(
    "dtype,acc",
    [
        (ml_dtypes.bfloat16, np.float32),
        (np.float16, np.float32),
        (ml_dtypes.float8_e4m3fn, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int8, np.int32),
        (np.uint8, np.int32),
        (np.float16, np.float16),
    ],
)
def test_dot(shape, dtype, acc):
    m, n, k = shape
    a, b, c = (
        rng.integers(0, 4, s).astype(t)
        for s, t in (((2, m, k), dtype), ((2, k, n), dtype), ((2, m, n), acc))
    )
    want = np.int64(c) + np.einsum("bmk,bkn->bmn", np.int64(a), np.int64(b))
    same(evaluate(lambda *v: tile.Dot(*v).result, a, b, c), want)


def test_precisions_of_float32():
    a, b, c = (
        np.float32(rng.normal(size=(8, 32))),
        np.float32(rng.normal(size=(32, 8))),
        np.zeros((8, 8), np.float32),
    )
    exact, scale = np.float64(a) @ np.float64(b), np.abs(np.float64(a)) @ np.abs(np.float64(b))

    def error(p):
        return (
            np.abs(evaluate(lambda *v: tile.Dot(*v, precision=p).result, a, b, c) - exact) / scale
        ).max()

    assert error("ieee") < 2**-24 and error("tf32x3") < 2**-21 and 2**-14 < error("tf32") < 2**-10


# --------------------------------------------------------------------------------------------------
def copying(shape, extents, offsets, out, other=None, rank=None):
    """A kernel that loads a block at constant offsets and stores it whole."""

    def body(source, target):
        value = tile.Load(
            source,
            [integer(o) if np.isscalar(o) else whole_constant(o) for o in offsets],
            extents,
            other=other and other(),
        ).result
        put(target, value)

    return kernel([ArrayType(len(shape), f32), ArrayType(len(out), f32)], body)


def whole_constant(values):
    parts = [tile.Splat(integer(int(v)), TileType([1], i32)).result for v in values]
    return tile.Concat(parts, 0, TileType([len(values)], i32)).result


@pytest.mark.parametrize(
    "extents,offsets,want",
    [
        ((4, 4), (5, -1), lambda x: np.pad(x, 4)[9:13, 3:7]),
        ((-1, 5), (2, 3), lambda x: np.pad(x, 5)[7, 8:13]),
        ((-1, -1), (6, 4), lambda x: x[6, 4]),
        ((-1, -1), (7, 0), lambda x: 0),
        ((3, 2), ([6, -1, 0], 4), lambda x: np.array([[x[6, 4], 0], [0, 0], [x[0, 4], 0]])),
        (
            (2, 3),
            (1, [4, 0, 9]),
            lambda x: np.array([[x[1, 4], x[1, 0], 0], [x[2, 4], x[2, 0], 0]]),
        ),
    ],
)
def test_loads_read_zero_outside(extents, offsets, want):
    x = np.float32(rng.normal(size=(7, 5)))
    kept = tuple(n for n in extents if n >= 0)
    for source in (
        x,
        np.asfortranarray(x),
        np.repeat(x, 2, 1)[:, ::2],
        x[::-1, ::-1].copy()[::-1, ::-1],
    ):
        out = np.full(kept, np.nan, np.float32)
        level0.run(copying((7, 5), extents, offsets, kept), [source, out], (1,))
        same(out, want(x))


def test_stores_leave_the_outside_alone_and_masks_count():
    def body(target, mask):
        value = tile.Constant(2.0, TileType([4, 4], f32)).result
        tile.Store(target, [integer(5), integer(-1)], value, (4, 4), mask=whole(mask, (4, 4)))

    out, mask = np.ones((7, 5), np.float32), np.ones((4, 4), bool)
    mask[0, 2] = False
    level0.run(kernel([ArrayType(2, f32), ArrayType(2, i1)], body), [out, mask], (1,))
    want = np.ones((7, 5))
    want[5:, :3] = 2
    want[5, 1] = 1
    same(out, want)


def test_other_fills_masked_and_outside():
    def body(source, target):
        value = tile.Load(
            source,
            [integer(3)],
            (4,),
            mask=whole_mask([1, 0, 1, 1]),
            other=tile.Constant(-5.0, f32).result,
        ).result
        put(target, value)

    out = np.zeros(4, np.float32)
    level0.run(
        kernel([ArrayType(1, f32), ArrayType(1, f32)], body),
        [np.arange(6, dtype=np.float32), out],
        (1,),
    )
    same(out, [3, -5, 5, -5])


def whole_mask(bits):
    return tile.Concat(
        [tile.Splat(tile.Constant(bool(b), i1).result, TileType([1], i1)).result for b in bits],
        0,
        TileType([len(bits)], i1),
    ).result


def test_views_clip_and_index():
    x, out = np.arange(60, dtype=np.float32).reshape(3, 4, 5), np.zeros((4, 4), np.float32)

    def body(source, target):
        part = tile.View(
            source,
            ["index", "slice", "all"],
            [integer(1), integer(1), integer(3)],
            ArrayType(2, f32),
        ).result
        put(target, tile.Load(part, [integer(0), integer(2)], (4, 4)).result)

    level0.run(kernel([ArrayType(3, f32), ArrayType(2, f32)], body), [x, out], (1,))
    want = np.zeros((4, 4))
    want[:2, :3] = x[1, 1:3, 2:]
    same(out, want)


def test_a_view_that_does_not_exist_may_be_made_but_not_touched():
    def body(source, target):
        row = tile.View(
            source,
            ["index", "all"],
            [
                integer(3),
            ],
            ArrayType(1, f32),
        ).result
        put(target, tile.Load(row, [integer(0)], (2,)).result)

    with pytest.raises(SimulationError, match="index 3 of an extent of 3"):
        level0.run(
            kernel([ArrayType(2, f32), ArrayType(1, f32)], body),
            [np.zeros((3, 2), np.float32), np.zeros(2, np.float32)],
            (1,),
        )


# --------------------------------------------------------------------------------------------------
def through_pointers(n, mask=False):
    def body(source, target, count):
        p = tile.Splat(tile.Pointer(source).result, TileType([n], PointerType(f32))).result
        i = tile.Arange(0, TileType([n], i32)).result
        q = C["lt"](i, tile.Splat(count, TileType([n], i32)).result).result if mask else None
        put(target, tile.LoadPointers(ew.PointerAdd(p, i).result, q).result)

    return kernel([ArrayType(1, f32), ArrayType(1, f32), i32], body)


def test_pointers_are_bounds_checked_where_not_masked():
    x, out = np.arange(5, dtype=np.float32), np.zeros(8, np.float32)
    level0.run(through_pointers(8, True), [x, out, 5], (1,))
    same(out, [0, 1, 2, 3, 4, 0, 0, 0])
    with pytest.raises(OutOfBounds, match="byte 20 of argument 0"):
        level0.run(through_pointers(8, True), [x, out, 6], (1,))


def test_arrays_from_a_table_of_addresses():
    parts = [np.float32(rng.normal(size=n)) for n in (3, 5)]
    table, lengths, out = (
        np.array([p.ctypes.data for p in parts]),
        np.int32([3, 5]),
        np.zeros((2, 4), np.float32),
    )

    def body(addresses, sizes, target):
        g = tile.ProgramId(0).result
        address = tile.Load(addresses, [g], (-1,)).result
        a = tile.MakeArray(
            ew.Bitcast(address, PointerType(f32)).result,
            [tile.Load(sizes, [g], (-1,)).result],
            [integer(1)],
            ArrayType(1, f32),
        ).result
        tile.Store(target, [g, integer(0)], tile.Load(a, [integer(1)], (4,)).result, (-1, 4))

    level0.run(
        kernel([ArrayType(1, i64), ArrayType(1, i32), ArrayType(2, f32)], body),
        [table, lengths, out],
        (2,),
        buffers=parts,
    )
    same(out, [[*parts[0][1:], 0, 0], parts[1][1:]])


def test_atomics_in_order_with_repeated_addresses():
    counts, old = np.zeros(3, np.int32), np.zeros(5, np.int32)

    def body(target, seen):
        p = ew.PointerAdd(
            tile.Splat(tile.Pointer(target).result, TileType([5], PointerType(i32))).result,
            whole_constant([2, 0, 2, 2, 1]),
        ).result
        op = tile.Atomic(
            operands=[p, tile.Constant(10, TileType([5], i32)).result, [], []],
            properties={"kind": tile.StringAttr("add")},
            result_types=[[TileType([5], i32)]],
        )
        put(seen, op.result)

    level0.run(kernel([ArrayType(1, i32), ArrayType(1, i32)], body), [counts, old], (1,))
    assert counts.tolist() == [10, 10, 30] and old.tolist() == [0, 0, 10, 20, 0]


def test_block_atomics_skip_the_outside():
    out = np.zeros((3, 3), np.float32)

    def body(target):
        tile.AtomicBlock(
            "add",
            target,
            [integer(2), integer(1)],
            tile.Constant(1.5, TileType([2, 2], f32)).result,
            (2, 2),
        )

    level0.run(kernel([ArrayType(2, f32)], body), [out], (3,))
    same(out, [[0, 0, 0], [0, 0, 0], [0, 4.5, 4.5]])


# --------------------------------------------------------------------------------------------------
def test_for_if_while():
    def body(target, n):
        def step(i, total, block):
            yes, no = Block(), Block()
            with ImplicitBuilder(yes):
                scf.YieldOp(C["add"](total, i).result)
            with ImplicitBuilder(no):
                scf.YieldOp(total)
            odd = C["eq"](C["mod"](i, integer(2)).result, integer(1)).result
            scf.YieldOp(scf.IfOp(odd, [i32], Region(yes), Region(no)).results[0])

        loop = Block(arg_types=[i32, i32])
        with ImplicitBuilder(loop):
            step(*loop.args, loop)
        odd = scf.ForOp(integer(0), n, integer(1), [integer(0)], loop).results[0]
        before, after = Block(arg_types=[i32]), Block(arg_types=[i32])
        with ImplicitBuilder(before):
            scf.ConditionOp(C["lt"](before.args[0], integer(1000)).result, before.args[0])
        with ImplicitBuilder(after):
            scf.YieldOp(C["mul"](after.args[0], integer(3)).result)
        put(
            target,
            scf.WhileOp(
                [C["add"](odd, integer(1)).result], [i32], Region(before), Region(after)
            ).results[0],
        )

    for n in (0, 1, 2, 7):
        out, want = np.zeros((), np.int32), sum(range(1, n, 2)) + 1
        while want < 1000:
            want *= 3
        level0.run(kernel([ArrayType(0, i32), i32], body), [out, n], (1,))
        assert out == want


def test_programs_run_in_order_or_as_asked():
    def body(target):
        where = C["add"](
            C["mul"](tile.ProgramId(1).result, tile.NumPrograms(0).result).result,
            tile.ProgramId(0).result,
        ).result
        tile.Store(
            target, [where], tile.Splat(tile.ProgramId(0).result, TileType([1], i32)).result, (1,)
        )

    out = np.full(6, -1, np.int32)
    level0.run(kernel([ArrayType(1, i32)], body), [out], (3, 2), programs=[(1, 1)])
    assert out.tolist() == [-1, -1, -1, -1, 1, -1]
    level0.run(kernel([ArrayType(1, i32)], body), [out], (3, 2))
    assert out.tolist() == [0, 1, 2, 0, 1, 2]


def test_an_offset_that_wraps_is_an_error_only_where_it_is_used():
    def body(source, target, big):
        i = C["add"](
            tile.Splat(C["mul"](big, integer(4)).result, TileType([2], i32)).result,
            whole_constant([0, 1]),
        ).result
        inside = C["lt"](
            tile.Arange(0, TileType([2], i32)).result, tile.Splat(big, TileType([2], i32)).result
        ).result
        put(target, tile.Load(source, [i], (2,), mask=inside).result)

    source, out = np.arange(4, dtype=np.float32), np.zeros(2, np.float32)
    module = kernel([ArrayType(1, f32), ArrayType(1, f32), i32], body)
    level0.run(module, [source, out, 0], (1,))
    same(out, [0, 0])
    level0.run(module, [source, out, -(2**31)], (1,))
    same(out, [0, 0])  # masked everywhere
    with pytest.raises(OffsetOverflow):
        level0.run(module, [source, out, 2**30], (1,))


def test_assertions_prints_and_bad_arguments():
    def body(n):
        tile.Print(operands=[[n]], properties={"text": tile.StringAttr("n is")})
        tile.Assert(
            operands=[C["gt"](n, integer(0)).result],
            properties={"text": tile.StringAttr("n must be positive")},
        )

    said = []
    level0.run(kernel([i32], body), [3], (1,), out=said.append)
    assert said == ["n is 3"]
    with pytest.raises(AssertionFailed, match="n must be positive"):
        level0.run(kernel([i32], body), [0], (1,), out=said.append)
    with pytest.raises(BadArgument, match="takes 1 arguments, got 2"):
        level0.run(kernel([i32], body), [0, 1], (1,))
    with pytest.raises(BadArgument, match="elements float64"):
        level0.run(through_pointers(2), [np.zeros(2), np.zeros(2, np.float32), 1], (1,))


def test_arrays_must_have_what_the_kernel_is_made_for():
    t = ArrayType(1, f32, ArrayFacts.parse("shape 4 strides =1 align 16", 1))

    def body(array):
        put(array, tile.Load(array, [integer(0)], (2,)).result)

    level0.run(kernel([t], body), [np.zeros(8, np.float32)], (1,))
    for bad in (
        np.zeros(6, np.float32),
        np.zeros(16, np.float32)[::2],
        np.zeros(9, np.float32)[1:],
    ):
        with pytest.raises(BadArgument, match="made for|no multiple"):
            level0.run(kernel([t], body), [bad], (1,))
