"""Blocks of arrays: whatever is known of an array and its offsets, the right elements move, in the
widest accesses that are safe.
"""

from dataclasses import replace
from math import gcd

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tkc
from tests.language.kernels import array, traced
from tkc.codegen.ptx.emit import emit
from tkc.fuzz.check import Comparison, Variant
from tkc.ir.dtypes import BY_NUMPY
from tkc.ir.layout import blocked
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.language.signature import ScalarArgument
from tkc.language.trace import trace
from tkc.runtime.specialize import Specialization, argument, facts, signature
from tkc.sim.ptx import run


def program(
    dtype, facts: str, tile, layout, integer="i32", divisors=(1, 1), copy=False, masked=False
):
    """out[tile] = the block of %a at run-time offsets, by registers or through shared memory."""
    t, n = BY_NUMPY[np.dtype(dtype)].ir, tile
    a, o = (
        f'!tile.array<?x?x{t}, "{facts}">',
        f'!tile.array<?x?x{t}, "shape ={n[0]} ={n[1]} strides ={n[1]} =1 align 16">',
    )
    held, truth = (
        f'!tile.tile<{n[0]}x{n[1]}x{t}, "{layout}">',
        f'!tile.tile<{n[0]}x{n[1]}xi1, "{layout}">',
    )
    buffer = (
        f'!tile.shared<1, {n[0]}x{n[1]}x{t}, "{n[0]}x{n[1]}xb{BY_NUMPY[np.dtype(dtype)].bits} pad'
        ' 16">'
    )
    mask = (
        f"%t = tile.constant 3 : i32 %l = tile.lt %i, %t : i32 %m = tile.splat %l : (i1) -> {truth}"
        if masked
        else ""
    )
    extents = f"{{extents = array<i64: {n[0]}, {n[1]}>}}"
    if copy:
        body = f"""%s = tile.alloc 0 : {buffer}
      tile.cp_async %a[%p, %q] %s {extents} : ({a}, {integer}, {integer}, {buffer})
      tile.cp_commit  tile.cp_wait 0  tile.block_barrier
      %x = tile.read %s : ({buffer}) -> {held}"""
    else:
        body = (
            f"%x = tile.load %a[%p, %q] {'mask %m' if masked else ''} {extents} : ({a}, {integer},"
            f" {integer}{', ' + truth if masked else ''}) -> {held}"
        )
    parameters = f"%a: {a}, %o: {o}, %i: {integer}, %j: {integer}"
    warps = f"warps = {layout.num_warps} : i64"
    return f"""builtin.module {{
    tile.kernel @block({parameters}) {{{warps}, level = 4 : i64, shared_bytes = 16384 : i64}} {{
      %z = tile.constant 0 : i32
      %p = tile.multiple %i, {divisors[0]} : ({integer}) -> {integer}
      %q = tile.multiple %j, {divisors[1]} : ({integer}) -> {integer}
      {mask}
      {body}
      tile.store %o[%z, %z] %x {extents} : ({o}, i32, i32, {held})
      tile.return }} }}"""


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_block(data):
    draw = data.draw
    dtype = draw(st.sampled_from([np.float32, ml_dtypes.bfloat16, np.int8, np.float64]))
    shape = draw(st.sampled_from([1, 5, 16, 30])), draw(st.sampled_from([1, 7, 16, 24, 64]))
    tile = draw(st.sampled_from([1, 3, 8, 16])), draw(st.sampled_from([1, 5, 8, 32, 40]))

    def fact(n):
        return draw(st.sampled_from([f"={n}", str(gcd(n, 16)), "1"]))

    size = np.dtype(dtype).itemsize
    offsets = [draw(st.integers(-4, 40)), draw(st.integers(-20, 70))]
    divisors = [draw(st.sampled_from([1, 2, 8, 16])) for _ in range(2)]
    offsets = [o // d * d for o, d in zip(offsets, divisors, strict=False)]
    facts = (
        f"shape {fact(shape[0])} {fact(shape[1])} strides {fact(shape[1])} =1 align"
        f" {draw(st.sampled_from([size, 16]))}"
    )
    layout = blocked(
        tile,
        draw(st.sampled_from([1, 2, 4, 8, 16])),
        draw(st.sampled_from([1, 2])),
        draw(st.sampled_from([(1, 0), (0, 1)])),
    )
    copy = draw(st.booleans())
    text = program(
        dtype,
        facts,
        tile,
        layout,
        draw(st.sampled_from(["i32", "i64"])),
        divisors,
        copy,
        not copy and draw(st.booleans()) and "i64" not in facts,
    )
    if "mask %m" in text and "%i: i64" in text:
        text = text.replace(
            "%t = tile.constant 3 : i32 %l = tile.lt %i, %t : i32",
            "%t = tile.constant 3 : i64 %l = tile.lt %i, %t : i64",
        )
    x = np.arange(shape[0] * shape[1]).reshape(shape).astype(dtype)
    want = np.zeros(tile, dtype)
    for r in range(tile[0]):
        for c in range(tile[1]):
            i, j = offsets[0] + r, offsets[1] + c
            if (
                0 <= i < shape[0]
                and 0 <= j < shape[1]
                and not ("mask %m" in text and offsets[0] >= 3)
            ):
                want[r, c] = x[i, j]
    got = run(emit(parse(text), target("sm_80")), [x, np.ones(tile, dtype), *offsets])[1]
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "facts, divisors, access",
    [
        ("shape 16 16 strides 16 =1 align 16", (1, 8), ".v4.b32"),  # 8 bfloat16 at once
        ("shape 16 16 strides 16 =1 align 8", (1, 8), ".v2.b32"),  # as aligned as the array is
        ("shape 1 16 strides 4 =1 align 16", (1, 8), ".v2.b32"),  # as the rows are
        ("shape 1 2 strides 16 =1 align 16", (1, 8), ".b32"),  # as the last column allows
        ("shape 1 =64 strides =64 =1 align 16", (1, 8), ".v4.b32"),
        ("shape 1 16 strides 16 =1 align 16", (1, 1), ".b16"),  # as the offset is
        ("shape 1 16 strides 16 1 align 16", (1, 8), ".b16"),  # the columns may not be neighbours
    ],
)
def test_width_of_accesses(facts, divisors, access):
    found = emit(
        parse(
            program(ml_dtypes.bfloat16, facts, (16, 64), blocked((16, 64), 8, 4), divisors=divisors)
        ),
        target("sm_80"),
    )
    text = found.text
    assert any("'tile.load' moves" in note for note in found.notes) == (access != ".v4.b32")
    loads = {
        line.split("ld.global")[1].split()[0] for line in text.splitlines() if "ld.global" in line
    }
    assert loads == {access}


def test_a_loop_through_an_extent_asks_no_questions():
    """k counts to the extent in steps of the block, and the extent is a multiple of it: always
    inside.
    """
    a = '!tile.array<?x?xf32, "shape =16 32 strides 32 =1 align 16">'
    t = '!tile.tile<16x32xf32, "blocked 16x32 vector 4 warps 1">'
    o = a.replace(" 32 ", " =32 ", 1)
    text = f"""builtin.module {{
    tile.kernel @k(%a: {a}, %o: {o}) {{warps = 1 : i64, level = 4 : i64}} {{
      %z = tile.constant 0 : i32
      %b = tile.constant 32 : i32
      %n = tile.dim %a, 1 : ({a}) -> i32
      %s = tile.constant 0.0 : {t}
      %r = scf.for %k = %z to %n step %b iter_args(%c = %s) -> ({t}) : i32 {{
        %x = tile.load %a[%z, %k] {{extents = array<i64: 16, 32>}} : ({a}, i32, i32) -> {t}
        %d = tile.add %c, %x : {t}
        scf.yield %d : {t} }}
      tile.store %o[%z, %z] %r {{extents = array<i64: 16, 32>}} : ({o}, i32, i32, {t})
      tile.return }} }}"""
    program = emit(parse(text), target("sm_80"))
    body = program.text.split("$for_1:")[1].split("bra")[0]
    assert body.count("ld.global.v4.b32") == 4 and "@%p" not in body.rsplit("\t@", 1)[0]
    x = np.arange(16 * 96, dtype=np.float32).reshape(16, 96)
    assert np.array_equal(
        run(program, [x, np.zeros((16, 32), np.float32)])[1], x.reshape(16, 3, 32).sum(1)
    )


def loaded(x, o, n):
    tkc.store(o, (0,), tkc.load(x, (n,), (128,)))


def loaded_in_steps(x, o, n):
    tkc.store(o, (0,), tkc.load(x, (n * (1 << 16),), (128,)))


def stored(x, o, n):
    tkc.store(o, (n,), tkc.load(x, (0,), (128,)) + 1)


@pytest.mark.parametrize(
    "kernel, n",
    [
        *((loaded, n) for n in (2, (1 << 31) - 100, (1 << 31) - 1)),
        *((loaded_in_steps, n) for n in (0, 1 << 15, (1 << 15) + 1)),
        *((stored, n) for n in (2, (1 << 31) - 100, (1 << 31) - 1)),
    ],
)
@pytest.mark.parametrize("extent", [5, 8])
def test_a_block_that_reaches_beyond_32_bits_is_outside(kernel, n, extent):
    """Places behind 2^31 are negative numbers of 32 bits, which lie before the end of any array."""
    number = ScalarArgument(tkc.int32, 1, nonnegative=True)
    module = traced(kernel, array(tkc.float32), array(tkc.float32), number)
    given = {"x": np.arange(1, extent + 1, dtype=np.float32), "o": np.zeros(128, np.float32)}
    if kernel is stored:
        given["o"] = np.zeros(extent, np.float32)

    def make() -> dict:
        return {name: a.copy() for name, a in given.items()} | {"n": n}

    comparison = Comparison(module, make, (1,))
    found = [comparison.cpu(), *comparison.passes(Variant("sm_80", 1, 1))]
    assert not [failure for failure in found if failure is not None]


def made(x, o, s, n, m):
    y = tkc.array(x.ptr, tkc.float32, (n,))
    tkc.store(o, (0,), tkc.load(y, (m,), (16,)))
    tkc.store(s, (0,), tkc.full((1,), 1, tkc.int64) * y.shape[0])


def made_to_write(x, o, s, n, m):
    y = tkc.array(o.ptr, tkc.float32, (n,))
    tkc.store(y, (m,), tkc.load(x, (0,), (16,)))


def chosen(x, o, s, n, m):
    y = tkc.array(x.ptr, tkc.float32, (n,))
    if m >= 0:
        y = tkc.array(x.ptr + 1, tkc.float32, (n - 1,))
    tkc.store(o, (0,), tkc.load(y, (0,), (16,)))
    tkc.store(s, (0,), tkc.full((1,), 1, tkc.int64) * y.shape[0])


def rows_of(x, o, s, n, m):
    y = tkc.array(x.ptr, tkc.float32, (n, 8), (8, 1))
    tkc.store(o, (0,), tkc.load(y, (m, 0), (2, 8)).reshape(16))


@pytest.mark.parametrize("kernel", [made, made_to_write, chosen, rows_of])
@pytest.mark.parametrize("dtype", [tkc.int32, tkc.int64], ids=str)
@pytest.mark.parametrize("n", [-(1 << 32) + 9, -1, 3, (1 << 31) + 5, (1 << 32) + 5])
def test_an_array_has_the_extents_it_is_made_with(kernel, dtype, n):
    """Extents beyond 32 bits keep all of them; with fewer elements than none there are none."""
    if dtype is tkc.int32 and abs(n) >> 31 or kernel is made_to_write and n > 16:
        return
    arrays = array(tkc.float32), array(tkc.float32), array(tkc.int64)
    module = traced(kernel, *arrays, ScalarArgument(dtype), ScalarArgument(tkc.int32))

    def make() -> dict:
        x, o = np.arange(1, 33, dtype=np.float32), np.zeros(16, np.float32)
        return {"x": x, "o": o, "s": np.zeros(1, np.int64), "n": n, "m": 0}

    comparison = Comparison(module, make, (1,))
    found = [comparison.cpu(), *comparison.passes(Variant("sm_80", 1, 1))]
    assert not [failure for failure in found if failure is not None]


def rows_from(x, o, m):
    tkc.store(o, (0, 0), tkc.load(x, (m, 0), (8, 64)))


def rows_to(x, o, m):
    tkc.store(x, (m, 0), tkc.load(o, (0, 0), (8, 64)))


@pytest.mark.parametrize("kernel", [rows_from, rows_to])
@pytest.mark.parametrize("stride", [64, (1 << 29) - 1, (1 << 29) + 5, (1 << 31) + 5])
@pytest.mark.parametrize("m", [0, -3])
def test_the_only_row_of_a_large_array(kernel, stride, m):
    """A block that begins before it comes to it by as many strides back as forth."""

    def make() -> dict:
        row = np.arange(1, 65, dtype=np.float32)
        x = np.lib.stride_tricks.as_strided(row, (1, 64), (4 * stride, 4))
        return {"x": x, "o": np.full((8, 64), 7, np.float32), "m": m}

    infos = {name: argument(value, name, False) for name, value in make().items()}
    # NumPy does not tell this stride, torch does
    infos["x"] = replace(infos["x"], strides=(stride, 1))
    known = tuple((name, facts(info)) for name, info in infos.items())
    comparison = Comparison(trace(kernel, signature(Specialization(known))), make, (1,))
    found = [comparison.cpu(), *comparison.passes(Variant("sm_80", 1, 1))]
    assert not [failure for failure in found if failure is not None]


def multiplied(x, o, s):
    at = s[0].to(tkc.int32) * s[1].to(tkc.int32)
    tkc.store(o, (0,), tkc.load(x, (at,), (16,)))


def raised(x, o, s):
    at = (s[0].to(tkc.int32) & (1 << 30) - 1) * 4 + 5
    tkc.store(o, (0,), tkc.load(x, (at,), (16,)))


@pytest.mark.parametrize("kernel", [multiplied, raised])
@pytest.mark.parametrize("number", [1, 65535, (1 << 30) - 9])
def test_a_product_of_loaded_numbers_that_wraps_is_before_the_array(kernel, number):
    """Factors that are not negative have a negative product of 32 bits, which has no element."""
    dtype = tkc.uint16 if kernel is multiplied else tkc.int32
    module = traced(kernel, array(tkc.float32), array(tkc.float32), array(dtype))

    def make() -> dict:
        x, o = np.arange(1, 33, dtype=np.float32), np.full(16, 7, np.float32)
        return {"x": x, "o": o, "s": np.array([number] * 2).astype(dtype.name)}

    comparison = Comparison(module, make, (1,))
    found = [comparison.cpu(), *comparison.passes(Variant("sm_80", 1, 1))]
    assert not [failure for failure in found if failure is not None]


def from_there(x, o, s):
    tkc.store(o, (0, 0), tkc.load(x[s[0] :], (0, 0), (8, 64)))


def up_to_there(x, o, s):
    tkc.store(o, (0, 0), tkc.load(x[: s[0]], (0, 0), (8, 64)))


def dots_from_there(x, o, s):
    total, start = tkc.zeros((64, 64)), s[0]
    for k in range(4):
        left = tkc.load(x, (start + k * 64, 0), (64, 64))
        total = tkc.dot(left, tkc.load(x, (k * 64, 0), (64, 64)), total)
    tkc.store(o, (0, 0), total.to(o.dtype))


def dots_to_there(x, o, s):
    tile = tkc.load(x, (0, 0), (64, 64))
    tkc.store(o, (s[0], 0), tkc.dot(tile, tile).to(o.dtype))


@pytest.mark.parametrize("kernel", [from_there, up_to_there, dots_from_there, dots_to_there])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("start", [0, 5, 1 << 31, (1 << 32) + 5, -(1 << 32) + 5, 1 << 33])
def test_64_bits_of_a_place_count(kernel, target, start):
    """Also where an instruction takes 32: what lies beyond these lies outside of the array."""
    if kernel is from_there and start < 0:
        return  # a view that does not exist
    rows = array(tkc.float16, 2, shape=(None, 64), strides=(64, 1))
    module = traced(kernel, rows, rows, array(tkc.int64))

    def make() -> dict:
        x = np.random.default_rng(0).integers(-3, 4, (256, 64)).astype(np.float16)
        return {"x": x, "o": np.full((64, 64), 7, np.float16), "s": np.array([start])}

    comparison = Comparison(module, make, (1,))
    variants = [Variant(target, 4, stages, each=False) for stages in (1, 3)]
    found = [comparison.cpu(), *(f for v in variants for f in comparison.passes(v))]
    assert not [failure for failure in found if failure is not None]
