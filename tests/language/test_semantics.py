"""`semantics="triton"`: operators mean what they mean in Triton's language."""

import numpy as np
import pytest

import tkc
from tkc.language.dtypes import BY_NAME
from tkc.language.signature import Options, Signature
from tkc.language.trace import trace
from tkc.language.tracer import tracer

TABLE = """
int8 int16 int16 | int8 uint8 uint8 | uint8 int32 int32 | int32 uint32 uint32 | uint32 int64 int64
int64 float16 float16 | int32 bfloat16 float32 | int32 float32 float32 | bool_ float16 float16
float16 bfloat16 float16 | float16 float32 float32 | bfloat16 float32 float32
bfloat16 bfloat16 bfloat16 | float32 float64 float64 | float8_e4m3 float8_e5m2 float16
float8_e4m3 bfloat16 float32 | float8_e4m3 float16 float16 | bool_ int8 int8
"""
NUMBERS = """
int8 1 int8 | int8 1.0 float32 | bool_ 2 int32 | bool_ 0.5 float32 | float16 2 float16
bfloat16 0.5 bfloat16 | float64 1.5 float64 | uint8 True uint8 | int64 1.5 float32
"""
QUOTIENTS = """
float16 float16 float32 | bfloat16 bfloat16 float32 | int64 int32 float32 | float32 int32 float32
float64 float16 float64 | bfloat16 int32 float32
"""


def rows(table):
    return [r.split() for line in table.strip().splitlines() for r in line.split("|")]


def result_type(f) -> str:
    found = []

    def kernel():
        found.append(f().dtype.name)

    trace(kernel, Signature((), Options(semantics="triton")))
    return found[0]


def tile(name):
    return tkc.zeros((4,), BY_NAME[name])


def scalar(name):
    return tkc.program_id(0).to(BY_NAME[name])


@pytest.mark.parametrize("a, b, want", rows(TABLE), ids=" ".join)
def test_scalars_count_as_tiles_do(a, b, want):
    for x, y in ((tile, tile), (tile, scalar), (scalar, tile)):
        assert result_type(lambda x=x, y=y: x(a) + y(b)) == want
        assert result_type(lambda x=x, y=y: y(b) - x(a)) == want


@pytest.mark.parametrize("a, number, want", rows(NUMBERS), ids=" ".join)
def test_numbers_are_weak(a, number, want):
    n = eval(number)
    assert result_type(lambda: tile(a) + n) == want == result_type(lambda: n + tile(a))


def test_numbers_keep_their_own_type_in_comparisons():
    """A tenth as float16 is below a tenth, and 300 is no int8."""

    @tkc.jit(semantics="triton")
    def below(x, y, out):
        is_below = tkc.load(x, (0,), (4,)) < 0.1
        tkc.store(out, (0,), is_below & (tkc.load(y, (0,), (4,)) < 300))

    x, y, out = np.full(4, 0.1, np.float16), np.arange(4, dtype=np.int8), np.zeros(4, bool)
    below[1](x, y, out)
    assert out.all()


@pytest.mark.parametrize("a, b, want", rows(QUOTIENTS), ids=" ".join)
def test_quotients(a, b, want):
    assert result_type(lambda: tile(a) / tile(b)) == want
    assert result_type(lambda: tile("float16") / 2) == "float32"
    assert result_type(lambda: tile("float16") % 2.0) == "float32"


def test_what_triton_refuses():
    for f, words in (
        (lambda: tile("int32") // tile("uint32"), "one has a sign"),
        (lambda: tile("float8_e4m3") + tile("int32"), "no common type"),
    ):
        with pytest.raises(tkc.CompileError, match=words):
            result_type(f)


@tkc.jit(semantics="triton")
def operators(x, y, o, h, n):
    i, j = tkc.load(x, (0,), (8,)), tkc.load(y, (0,), (8,))
    tkc.store(o, (0, 0), (i // j)[None, :])
    tkc.store(o, (1, 0), (i % j)[None, :])
    tkc.store(o, (2, 0), (i % 4)[None, :])
    tkc.store(o, (3, 0), tkc.where(i > 0, i / 2, 0.75)[None, :])  # a float to integers
    half = tkc.load(h, (0,), (8,))
    tkc.store(h, (0,), half % 2.5 + n)  # float32 to float16
    assert tracer().semantics == "triton"


def test_operators():
    x = np.array([-9, -8, -1, 0, 1, 8, 9, 100], np.int32)
    y = np.array([2, -3, 5, 0, 3, 3, -2, 7], np.int32)
    h = np.array([-3.0, 7.25, 2.5, 0.1, -0.1, 5, 6, 1e4], np.float16)
    o, want = np.zeros((4, 8), np.int32), np.fmod(h.astype(np.float32), np.float32(2.5)) + 0.5
    operators[1](x, y, o, h, 0.5)
    with np.errstate(all="ignore"):
        q = np.where(y == 0, 0, np.trunc(x / y)).astype(np.int32)
    assert (o[0] == q).all() and (o[1] == np.where(y == 0, 0, x - q * y)).all()
    assert (o[2] == np.fmod(x, 4)).all() and (o[3] == np.where(x > 0, x // 2, 0)).all()
    assert (h == want.astype(np.float16)).all()


def test_a_kernel_is_compiled_for_its_semantics():
    """The same function, with both."""

    def kernel(o, n):
        tkc.store(o, (0,), n // 2)

    o = np.zeros(1, np.int32)
    tkc.jit(kernel)[1](o, -3)
    assert o[0] == -2
    tkc.jit(kernel, semantics="triton")[1](o, -3)
    assert o[0] == -1
    with pytest.raises(tkc.LaunchError, match="semantics is expected to be torch or triton"):
        tkc.jit(kernel)[1](o, 1, semantics="c")
