"""Dots: odd shapes, types, layouts of the operands, batches, precisions, and accumulators that
loops carry.
"""

import ml_dtypes
import numpy as np
import pytest
from xdsl.builder import ImplicitBuilder
from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Block

from tests.sim import building
from tests.sim.building import integer, kernel
from tkc.codegen.cpu import compile
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType

SIZES = (1, 2, 7, 8, 9, 16, 17, 31, 33, 48)
random = np.random.default_rng(0)


def evaluate(monkeypatch, function, *inputs):
    monkeypatch.setattr(
        building, "run", lambda module, arguments, grid: compile(module).run(arguments, grid)
    )
    return building.evaluate(function, *inputs)


@pytest.mark.parametrize("m", SIZES)
def test_shapes_and_transposed_operands(m, monkeypatch):
    n, k = (int(random.choice(SIZES)) for _ in range(2))
    a, b, c = (random.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n), (m, n)))

    def turned(v):
        return tile.Transpose(v, (1, 0)).result

    def every(p, pt, q, qt, acc):
        return tuple(tile.Dot(x, y, acc).result for x in (p, turned(pt)) for y in (q, turned(qt)))

    for got in evaluate(monkeypatch, every, a, a.T.copy(), b, b.T.copy(), c):
        np.testing.assert_array_equal(got, a @ b + c)


@pytest.mark.parametrize("n", [16, 40, 72])
def test_the_left_operand_is_the_accumulator_too(n, monkeypatch):
    """Also where the sums are what it is computed from: products of later columns read it yet."""
    x, b = (random.integers(-4, 5, (n, n)).astype(np.float32) for _ in range(2))

    def same(x, b):
        return tile.Dot(x, b, x).result

    def computed(x, b):
        return tile.Dot(x, b, ew.CLASSES["neg"](x).result).result

    def held(function):
        """Of a tile that a loop leaves in memory."""

        def of_held(x, b):
            body = Block(arg_types=[i32, x.type])
            with ImplicitBuilder(body):
                scf.YieldOp(ew.CLASSES["neg"](body.args[1]).result)
            bounds = integer(0), integer(2), integer(1)
            return function(scf.ForOp(*bounds, [x], body).results[0], b)

        return of_held

    for function, sign in ((same, 1), (computed, -1)):
        got = evaluate(monkeypatch, held(function), x, b)
        np.testing.assert_array_equal(got, x @ b + sign * x)


@pytest.mark.parametrize(
    "dtype,acc",
    [
        (ml_dtypes.bfloat16, np.float32),
        (np.float16, np.float32),
        (np.float16, np.float16),
        (ml_dtypes.float8_e4m3fn, np.float32),
        (ml_dtypes.float8_e5m2, np.float32),
        (np.float64, np.float64),
        (np.int8, np.int32),
        (np.uint8, np.int32),
        (np.int32, np.int32),
        (np.int64, np.int64),
    ],
)
def test_types_and_batches(dtype, acc, monkeypatch):
    for m, n, k in ((1, 1, 1), (9, 33, 17), (16, 5, 40)):
        a, b, c = (
            random.integers(0, 4, s).astype(t)
            for s, t in (((3, m, k), dtype), ((3, k, n), dtype), ((3, m, n), acc))
        )
        want = (np.float64(a) @ np.float64(b) + np.float64(c)).astype(acc)
        np.testing.assert_array_equal(
            evaluate(monkeypatch, lambda *v: tile.Dot(*v).result, a, b, c), want
        )
        bt = np.ascontiguousarray(np.swapaxes(b, 1, 2))
        np.testing.assert_array_equal(
            evaluate(
                monkeypatch,
                lambda p, q, r: tile.Dot(p, tile.Transpose(q, (0, 2, 1)).result, r).result,
                a,
                bt,
                c,
            ),
            want,
        )


def test_precisions(monkeypatch):
    a, b, c = (
        np.float32(random.normal(size=(8, 64))),
        np.float32(random.normal(size=(64, 24))),
        np.zeros((8, 24), np.float32),
    )
    exact, scale = np.float64(a) @ np.float64(b), np.abs(np.float64(a)) @ np.abs(np.float64(b))

    def error(p):
        return (
            np.abs(
                evaluate(monkeypatch, lambda *v: tile.Dot(*v, precision=p).result, a, b, c) - exact
            )
            / scale
        ).max()

    assert error("ieee") < 2**-21 and error("tf32x3") < 2**-21 and 2**-14 < error("tf32") < 2**-10


def product(bm, bn, bk, scaled):
    """C = A·B block by block; `scaled`: the accumulator is halved before every step (as attention
    does).
    """
    dense = ArrayFacts((Fact(),) * 2, (Fact(), Fact(1, 1)))

    def body(a, b, c):
        m, n = (
            ew.CLASSES["mul"](tile.ProgramId(axis).result, integer(size)).result
            for axis, size in ((0, bm), (1, bn))
        )
        loop = Block(arg_types=[i32, TileType((bm, bn), f32)])
        with ImplicitBuilder(loop):
            k, acc = loop.args
            if scaled:
                acc = ew.CLASSES["mul"](acc, tile.Constant(0.5, acc.type).result).result
            scf.YieldOp(
                tile.Dot(
                    tile.Load(a, [m, k], (bm, bk)).result,
                    tile.Load(b, [k, n], (bk, bn)).result,
                    acc,
                ).result
            )
        total = scf.ForOp(
            integer(0),
            tile.Dim(a, 1).result,
            integer(bk),
            [tile.Constant(0.0, TileType((bm, bn), f32)).result],
            loop,
        ).results[0]
        tile.Store(c, [m, n], total, (bm, bn))

    return kernel([ArrayType(2, f32, dense)] * 3, body)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (64, 48, 32), (65, 47, 33), (3, 100, 0), (0, 5, 7)])
def test_a_product_by_blocks(m, n, k, scaled):
    a, b, c = (
        random.integers(-2, 3, (m, k)).astype(np.float32),
        random.integers(-2, 3, (k, n)).astype(np.float32),
        np.full((m, n), 7, np.float32),
    )
    program = compile(product(32, 24, 16, scaled))
    program.run([a, b, c], (-(-m // 32), -(-n // 24)), threads=2)
    steps = [a[:, i : i + 16] @ b[i : i + 16] for i in range(0, k, 16)]
    want = np.zeros((m, n), np.float32)
    for step in steps:
        want = (want * 0.5 if scaled else want) + step
    np.testing.assert_array_equal(c, want)


def test_an_accumulator_never_moves():
    """The loop's buffer is filled once, then only the dot's kernel touches it: nothing stores a
    tile of C besides.
    """
    program = compile(product(32, 32, 16, False))
    inside = program.llvm.split('define void @"program"')[1].split("\n}")[0]
    one_tile, packed = 32 * 32 * 4 + 64, (32 * 16 + 16 * 32) * 4 + 2 * 64
    assert (
        inside.count('call void @"dot.') == 1
        and program.metadata["workspace"] <= one_tile + packed + 3 * 64
    )
