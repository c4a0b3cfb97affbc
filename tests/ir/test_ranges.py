"""Ranges and contiguity claim nothing that a run contradicts: random integer programs, claims
against values.
"""

from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.builder import ImplicitBuilder
from xdsl.dialects import scf
from xdsl.dialects.builtin import bf16, f16, f32, i1, i8, i16, i32, i64
from xdsl.ir import Block, Region

import tkc
from tests.sim.building import integer, kernel
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.axis_info import contiguity
from tkc.ir.ranges import NONNEGATIVE, Range, Ranges, divisor, exactly
from tkc.ir.types import (
    ArrayFacts,
    ArrayType,
    Fact,
    PointerType,
    TileType,
    element_of,
    is_unsigned,
    ui8,
    ui16,
    ui32,
)
from tkc.sim import level0

C = ew.CLASSES
SHAPE = (4, 32)
INTEGER = ["add", "sub", "mul", "max", "min", "floordiv", "mod", "and", "or"]
TRUTH = ["lt", "le", "gt", "ge", "eq", "ne"]


def leaf(draw, n):
    """A small integer tile of SHAPE: a constant, a scalar that is a multiple of something, an
    arange along an axis.
    """
    t = TileType(SHAPE, i32)
    match draw(st.sampled_from(["constant", "scalar", "rows", "columns", "columns"])):
        case "constant":
            return tile.Constant(draw(st.sampled_from([0, 1, 2, 3, 4, 8, 16, 24, -8])), t).result
        case "scalar":
            return tile.Splat(tile.Multiple(n, draw(st.sampled_from([1, 2, 8]))).result, t).result
        case "rows":
            return tile.Broadcast(
                tile.Reshape(
                    tile.Arange(draw(st.sampled_from([0, 4, 5])), TileType([4], i32)).result,
                    TileType([4, 1], i32),
                ).result,
                t,
            ).result
        case _:
            return tile.Broadcast(
                tile.Reshape(
                    tile.Arange(draw(st.sampled_from([0, 8, 3])), TileType([32], i32)).result,
                    TileType([1, 32], i32),
                ).result,
                t,
            ).result


def expression(draw, n, depth):
    if depth == 0:
        return leaf(draw, n)
    a, b = expression(draw, n, depth - 1), expression(draw, n, draw(st.integers(0, depth - 1)))
    if draw(st.integers(0, 5)) == 0:
        return cut(draw, a, b)
    if draw(st.integers(0, 9)) == 0:
        return ew.Select(C[draw(st.sampled_from(TRUTH))](a, b).results[0], a, b).result
    return C[draw(st.sampled_from(INTEGER))](a, b).results[0]


def cut(draw, a, b):
    """The end of one tile and the beginning of another side by side, along an axis."""
    axis = draw(st.sampled_from([0, 1, 1]))
    at = draw(st.integers(1, 3)) if axis == 0 else draw(st.sampled_from([1, 4, 8, 16, 24, 27]))

    def part(x, begin, n):
        return tile.Slice(
            x,
            [begin if i == axis else 0 for i in range(2)],
            TileType([n if i == axis else e for i, e in enumerate(SHAPE)], i32),
        ).result

    return tile.Concat(
        [part(a, at, SHAPE[axis] - at), part(b, 0, at)], axis, TileType(SHAPE, i32)
    ).result


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_claims_hold(data):
    watched = []

    def body(n, *outputs):
        for truth, out in enumerate(outputs):
            value = expression(data.draw, n, 3)
            if truth:
                value = C[data.draw(st.sampled_from(TRUTH))](
                    value, expression(data.draw, n, 1)
                ).results[0]
            watched.append(value)
            tile.Store(out, [integer(0), integer(0)], value, SHAPE)

    module = kernel([i32, ArrayType(2, i32), ArrayType(2, i1)], body)
    values = [np.zeros(SHAPE, np.int32), np.zeros(SHAPE, np.bool_)]
    level0.run(module, [data.draw(st.sampled_from([0, 8, 16, -24, 40])), *values], (1,))
    for value, got in zip(watched, values, strict=False):
        check_range(Ranges().of(value), got.astype(np.int64))
        for axis in 0, 1:
            check_contiguity(contiguity(value, axis, Ranges()), got.astype(np.int64), axis)


@pytest.mark.parametrize("name", ["floordiv", "mod"])
@pytest.mark.parametrize("by", [8, -8, 1, -1, 3, -16])
def test_claims_hold_of_divisions_by_negative_numbers(name, by):
    watched = []

    def body(out):
        columns = tile.Broadcast(
            tile.Reshape(
                tile.Arange(0, TileType([SHAPE[1]], i32)).result, TileType([1, SHAPE[1]], i32)
            ).result,
            TileType(SHAPE, i32),
        ).result
        watched.append(C[name](columns, tile.Constant(by, TileType(SHAPE, i32)).result).results[0])
        tile.Store(out, [integer(0), integer(0)], watched[0], SHAPE)

    module, out = kernel([ArrayType(2, i32)], body), np.zeros(SHAPE, np.int32)
    level0.run(module, [out], (1,))
    for axis in 0, 1:
        check_contiguity(contiguity(watched[0], axis, Ranges()), out.astype(np.int64), axis)
    if name == "floordiv" and by == 8:
        assert contiguity(watched[0], 1, Ranges()).same == 8


@pytest.mark.parametrize("name", ["floordiv", "mod", "div_trunc", "rem_trunc"])
def test_claims_of_divisions_by_what_may_be_zero(name):
    """By 0 a quotient and a remainder are 0, whatever is divided."""
    found = []

    def body(n, m, out):
        made = C[name](n, m).results[0]
        found.append(Ranges().of(made))
        tile.Store(out, [integer(0)], made, (-1,))

    module = kernel([i32, i32, ArrayType(1, i32)], body)
    module.body.block.first_op.attributes[NONNEGATIVE] = tile.ints([0, 1])
    assert (found[0].lo, found[0].hi) != (0, 2**31 - 1)  # of numbers of any sign
    made = next(op for op in module.walk() if isinstance(op, C[name]))
    assert Ranges().of(made.results[0]).lo == 0
    for n, m in [(7, 0), (7, 3), (0, 0), (3, 7)]:
        level0.run(module, [n, m, out := np.full(1, -1, np.int32)], (1,))
        assert out[0] == (0 if m == 0 else n // m if "div" in name else n % m)


def test_data_within_bounds_may_overflow():
    """max(x, 0) + 1000 of a loaded x was believed to be no less than 1000, so that a comparison
    with 5 was folded, on every GPU: what data adds up to wraps, but where it is an offset.
    """
    op = tile.Kernel("k", [i32, i32], {NONNEGATIVE: tile.ints([0])})
    given, other = op.arguments
    with ImplicitBuilder(op.body.block):
        bounded = C["max"](other, integer(0)).results[0]
        sums = [C["add"](x, integer(1000)).results[0] for x in (given, bounded)]
        products = [C["mul"](x, integer(64)).results[0] for x in (given, bounded)]
        less = C["add"](C["sub"](given, integer(1)).results[0], integer(2)).results[0]
        folded = C["lt"](sums[1], integer(5)).results[0]
        small = C["add"](C["min"](bounded, integer(100)).results[0], integer(1000)).results[0]
    r, most = Ranges(), 2**31 - 1
    assert (r.of(given).lo, r.of(other).lo) == (0, -(2**31))
    assert r.always(folded) is None
    for value in (*sums, *products, less):
        assert (r.of(value).lo, r.of(value).hi) == (-(2**31), most), value
    assert (r.of(small).lo, r.of(small).hi) == (1000, 1100)
    assert [r.offset(v).lo for v in sums + products] == [1000, 1000, 0, 0]
    assert r.offset(less).lo == 1 and r.offset(products[0]).divisor == 64
    assert r.offset(other).lo == -(2**31)


WRAPPING = (i8, ui8, ui32, i16, ui16)


def wrapping(draw, depth):
    """A tile of SHAPE whose numbers wrap: arithmetic of unsigned and of short types, casts between
    them, by way of floats too.
    """
    if depth == 0:
        start = draw(st.sampled_from([0, -2, -3, 120, 250, 2040, 32760, 65530]))
        return tile.Broadcast(
            tile.Reshape(
                tile.Arange(start, TileType([SHAPE[1]], i32)).result, TileType([1, SHAPE[1]], i32)
            ).result,
            TileType(SHAPE, i32),
        ).result
    a = wrapping(draw, depth - 1)
    way = draw(st.sampled_from(["cast", "cast", "float", "number", "tile"]))
    if way == "float":
        a = ew.Cast(a, TileType(SHAPE, draw(st.sampled_from([f16, bf16, f32])))).result
    if way in ("cast", "float") or element_of(a.type) == i32:
        return ew.Cast(a, TileType(SHAPE, draw(st.sampled_from((*WRAPPING, i32))))).result
    name = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "min"]))
    least = 0 if is_unsigned(element_of(a.type)) else -128
    b = tile.Constant(
        draw(st.sampled_from([n for n in (1, 2, 3, 5, 100, 127, -1, -3) if n >= least])), a.type
    ).result
    if way == "tile" and name in ("add", "sub", "mul", "min"):
        b = ew.Cast(wrapping(draw, depth - 1), a.type).result
    return C[name](a, b).results[0]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_claims_hold_where_numbers_wrap(data):
    watched = []

    def body(out, truth):
        value = wrapping(data.draw, data.draw(st.integers(1, 4)))
        watched.extend(
            [
                value,
                C[data.draw(st.sampled_from(TRUTH))](
                    value,
                    tile.Constant(data.draw(st.sampled_from([0, 1, 3, 64])), value.type).result,
                ).results[0],
            ]
        )
        tile.Store(
            out, [integer(0), integer(0)], ew.Cast(value, TileType(SHAPE, i64)).result, SHAPE
        )
        tile.Store(truth, [integer(0), integer(0)], watched[1], SHAPE)

    module = kernel([ArrayType(2, i64), ArrayType(2, i1)], body)
    values = [np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.bool_)]
    level0.run(module, values, (1,))
    for value, got in zip(watched, values, strict=False):
        check_range(Ranges().of(value), got.astype(np.int64))
        for axis in 0, 1:
            check_contiguity(contiguity(value, axis, Ranges()), got.astype(np.int64), axis)


def check_range(claim: Range, got: np.ndarray) -> None:
    assert claim.lo <= got.min() and got.max() <= claim.hi, (claim, got)
    assert not (got % claim.divisor).any() if claim.divisor else not got.any(), (claim, got)


def check_contiguity(claim, got: np.ndarray, axis: int) -> None:
    lines = np.moveaxis(got, axis, -1).reshape(-1, got.shape[axis])
    runs, same = (lines.reshape(-1, n) for n in (claim.run, claim.same))
    assert (runs == runs[:, :1] + np.arange(claim.run)).all() or claim.run == 1, claim
    assert (same == same[:, :1]).all(), claim
    first = runs[:, 0]
    assert not (first % claim.divisor).any() if claim.divisor else not first.any(), (claim, first)


def loop(body, *inits, trips=5, step=8):
    block = Block(arg_types=[i32, *(v.type for v in inits)])
    with ImplicitBuilder(block):
        scf.YieldOp(*body(*block.args))
    return scf.ForOp(integer(0), integer(trips * step), integer(step), list(inits), Region(block))


def test_loops():
    """A counter, a value that grows by 16, one that is multiplied and bounds a loop, one that two
    others feed.
    """
    with ImplicitBuilder(Block()):
        op = loop(
            lambda k, a, b, c: (
                C["add"](a, integer(16)).results[0],
                C["mul"](b, integer(3)).results[0],
                C["add"](C["add"](a, c).results[0], k).results[0],
            ),
            integer(32),
            integer(6),
            integer(0),
        )
        with ImplicitBuilder(end := Block(arg_types=[i32])):
            scf.YieldOp()
        scf.ForOp(integer(0), op.results[1], integer(1), [], Region(end))
    r = Ranges()
    k, a, b, c = op.body.block.args
    assert (r.of(k).lo, r.of(k).hi, r.of(k).divisor) == (0, 39, 8)
    assert r.of(a).lo == 32 and r.of(a).divisor == 16 and r.of(op.results[0]).divisor == 16
    assert r.of(b).divisor % 6 == 0 and r.of(c).divisor == 8
    assert divisor(c) == 8


def test_facts_of_arrays():
    t = ArrayType(
        2, i32, ArrayFacts((Fact(16), Fact(exact=100)), (Fact(exact=100), Fact(exact=1)), 16)
    )
    block = Block(arg_types=[t])
    with ImplicitBuilder(block):
        rows, columns, stride = (
            tile.Dim(block.args[0], 0).result,
            tile.Dim(block.args[0], 1).result,
            tile.Stride(block.args[0], 0).result,
        )
        inside = C["lt"](columns, integer(101)).results[0]
        pointer = tile.Pointer(block.args[0]).result
        pointers = ew.PointerAdd(
            tile.Splat(pointer, TileType([64], PointerType(i32))).result,
            tile.Arange(0, TileType([64], i32)).result,
        ).result
    r = Ranges()
    assert (
        r.of(rows) == Range(0, 2**31 - 1, 16)
        and r.of(columns) == exactly(100)
        and r.of(stride) == exactly(100)
        and r.always(inside) is True
    )
    along = contiguity(pointers, 0, r)
    assert along.run == 64 and gcd(along.divisor, 4) == 4, "16 bytes of 4-byte elements are four"


@pytest.mark.parametrize("n, want", [(16, 16), (8, 8), (1, 1)])
def test_a_mask_is_the_same_over_what_divides_its_bound(n, want):
    block = Block(arg_types=[i32, i32])
    with ImplicitBuilder(block):
        t = TileType([1024], i32)
        bound = tile.Splat(tile.Multiple(block.args[0], n).result, t).result
        index = C["add"](
            tile.Splat(C["mul"](block.args[1], integer(1024)).results[0], t).result,
            tile.Arange(0, t).result,
        ).results[0]
        mask = C["lt"](index, bound).results[0]
    assert contiguity(mask, 0, Ranges()).same == want


def test_pointers_that_a_loop_moves_stay_aligned():
    t = TileType([64], PointerType(i32))
    block = Block(arg_types=[ArrayType(1, i32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))])
    with ImplicitBuilder(block):
        start = ew.PointerAdd(
            tile.Splat(tile.Pointer(block.args[0]).result, t).result,
            tile.Arange(0, TileType([64], i32)).result,
        ).result
        op = loop(
            lambda k, p: (ew.PointerAdd(p, tile.Constant(64, TileType([64], i32)).result).result,),
            start,
        )
    along = contiguity(op.body.block.args[1], 0, Ranges())
    assert along.run == 64 and along.divisor % 4 == 0


@pytest.mark.parametrize("step, want", [(64, 4), (6, 2), (1, 1)])
def test_an_address_that_a_loop_moves_stays_aligned_to_what_divides_its_step(step, want):
    block = Block(arg_types=[ArrayType(1, i32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))])
    with ImplicitBuilder(block):
        op = loop(
            lambda k, p: (ew.PointerAdd(p, tile.Constant(step, i32).result).result,),
            tile.Pointer(block.args[0]).result,
        )
        inside = tile.Splat(op.body.block.args[1], TileType([64], PointerType(i32))).result
        behind = tile.Splat(op.results[0], TileType([64], PointerType(i32))).result
    for pointers in inside, behind:
        assert contiguity(pointers, 0, Ranges()).divisor == want


@tkc.jit
def rows_by_pointers(x, rows, y, N: tkc.constexpr, C: tkc.constexpr):
    at = tkc.load(rows, (0,), (N,)) * C
    tkc.store(y, (0, 0), tkc.load(x.ptr + at[:, None] + tkc.arange(C)[None, :]))


def test_what_divides_numbers_divides_them_along_a_new_axis():
    """Rows whose places are multiples of 16 bytes are read by as many at once."""
    compiled = rows_by_pointers.compile(
        "bf16[4096, 32]", "i32[256]", "bf16[256, 32]", 256, 32, target="sm_80"
    )
    assert "ld.global.v4.b32" in compiled.ptx and "ld.global.b16" not in compiled.ptx
