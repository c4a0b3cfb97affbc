"""Dots whose results no registers hold: parts of rows, of columns, of both, with all that is made
of them; the same at level 0, with threads and as PTX.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.passes.kernels import attended, context, through
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.errors import CompileError
from tkc.ir import tile
from tkc.ir.target import target
from tkc.passes.fit_results import part_extents
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

NUMPY = {
    tkc.float32: np.float32,
    tkc.bfloat16: ml_dtypes.bfloat16,
    tkc.int8: np.int8,
    tkc.float64: np.float64,
}


def product(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """A sum that begins with what is loaded."""
    tkc.store(
        o,
        (1, 2),
        tkc.dot(
            tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)), tkc.load(c, (0, 0), (M, N))
        ),
    )


def epilogue(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Biases of rows and columns, positions, a mask, a transposed result, and pointers."""
    x = (
        tkc.dot(tkc.load(b, (0, 0), (K, N)).T, tkc.load(a, (0, 0), (M, K)).T).T
        + tkc.load(c, (0, 0), (None, N))[None, :]
    )
    i, j = tkc.arange(M), tkc.arange(3, N + 3)
    x = (
        tkc.where((i[:, None] + j[None, :]) % 3 != 0, x * 2, i[:, None].to(x.dtype))
        + tkc.load(c, (0, 1), (M, None))[:, None]
    )
    tkc.store(
        o.ptr + (i[:, None] + 1) * o.strides[0] + (j[None, :] - 1) * o.strides[1],
        x,
        mask=(j < N + 2)[None, :],
    )


def looped(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """A loop along k, rows scaled by their own sums; a part overwrites only what it has loaded."""
    acc, largest = tkc.zeros((M, N), c.dtype), tkc.full((M,), -100, c.dtype)
    for k in tkc.range(0, K, 16):
        x = tkc.load(a, (0, k), (M, 16))
        largest = tkc.maximum(largest, tkc.max(x, axis=1).to(c.dtype))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (16, N)), acc)
    old = tkc.load(o, (1, 2), (M, N))
    tkc.store(o, (1, 2), acc + old * largest[:, None])


def summed(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Rows are reduced: columns are not cut. Two results, one of which a branch stores."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    tkc.store(o[:, 0], (1,), tkc.sum(x, axis=1).to(o.dtype))
    if o.shape[0] > 3:
        tkc.store(o, (1, 2), x.to(o.dtype))


def both_ways(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Sums along rows, along columns, and of all; products of short floats, whose sums are not
    rounded in between.
    """
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    tkc.store(o[:, 0], (0,), tkc.sum(x, axis=1).to(o.dtype) - 2)
    total, most, odd = (
        tkc.sum(tkc.sum(x, axis=0), axis=0),
        tkc.max(x, axis=0),
        tkc.any(tkc.any(x == 3, axis=1), axis=0),
    )
    tkc.store(o[:, 1], (0,), tkc.min(x, axis=1).to(o.dtype))
    tkc.store(o[0], (2,), most.to(o.dtype) + total.to(o.dtype) + tkc.where(odd, 1, 0).to(o.dtype))


def averaged(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """The sum's own sum divides it later, what a loop added up included."""
    acc = tkc.zeros((M, N), c.dtype)
    for k in tkc.range(0, K, 16):
        acc = tkc.dot(tkc.load(a, (0, k), (M, 16)), tkc.load(b, (k, 0), (16, N)), acc)
    whole = tkc.sum(tkc.sum(acc, axis=1), axis=0)
    tkc.store(o[0], (0,), tkc.sum(acc, axis=0).to(o.dtype) * 2 + tkc.maximum(whole, 0).to(o.dtype))


def everything(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """One number of all, in parts of both axes; a store between it and the dot."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    tkc.store(o.ptr, tkc.sum(tkc.sum(x * x, axis=1), axis=0).to(o.dtype))
    tkc.store(o.ptr + 1, tkc.min(tkc.min(x, axis=0), axis=0).to(o.dtype))


def counted(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """A loop that stores the result, and carries what it loads whole; a branch has results too."""
    x, total, last = (
        tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N))),
        tkc.zeros((16,), c.dtype),
        tkc.zeros((16,), c.dtype),
    )
    for i in tkc.range(0, 2):
        tkc.store(o, (1, 3), x * i)
        total += tkc.load(c, (i, 0), (None, 16))
        if i > 0:
            tkc.store(o, (1, 3), x + i)
            last = total * 2
    tkc.store(o, (M + 2, 3), (total + last)[None, :])


def overwritten(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Blocks that a loop moves over one another by a column: only rows are cut, so that no part
    overwrites what one before has stored later. A view's rows are its array's.
    """
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    for i in tkc.range(0, 3):
        tkc.store(o, (1, i), x * i)
    tkc.store(o[:, 3], (1,), tkc.max(x, axis=1).to(o.dtype))


def stepped(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Blocks side by side: parts of one are in none of the others."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    for i in tkc.range(0, 2):
        tkc.store(o, (i * M, 1), x + i)


def begun(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """A branch without a dot gives what the sum begins with."""
    x = tkc.zeros((M, N), c.dtype)
    if o.shape[0] > 3:
        x += tkc.load(c, (1, 0), (None, N))[None, :]
    tkc.store(o, (1, 2), tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)), x))


def begun_outside(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """A branch gives what the sums of a loop begin with, which the loop does not carry."""
    x = tkc.zeros((M, N), c.dtype)
    if o.shape[0] > 3:
        x += tkc.load(c, (1, 0), (None, N))[None, :]
    for k in tkc.range(0, K, 16):
        y = tkc.dot(tkc.load(a, (0, k), (M, 16)), tkc.load(b, (k, 0), (16, N)), x)
        tkc.store(o, (1, 2), y * k)


CASES = [
    (begun, 128, 64, 32, tkc.bfloat16, "sm_90a"),
    (begun, 50, 48, 16, tkc.float32, "sm_80"),
    (begun_outside, 128, 64, 32, tkc.bfloat16, "sm_89"),
    (everything, 128, 160, 16, tkc.float32, "sm_80"),
    (both_ways, 100, 30, 16, tkc.float32, "sm_80"),
    (both_ways, 128, 64, 32, tkc.bfloat16, "sm_90a"),
    (both_ways, 96, 64, 32, tkc.int8, "sm_89"),
    (averaged, 50, 96, 32, tkc.float32, "sm_89"),
    (averaged, 128, 64, 48, tkc.bfloat16, "sm_90a"),
    (product, 50, 48, 16, tkc.float32, "sm_90a"),
    (product, 7, 300, 7, tkc.float32, "sm_80"),
    (product, 300, 5, 16, tkc.float64, "sm_89"),
    (product, 128, 64, 32, tkc.bfloat16, "sm_80"),
    (product, 96, 64, 32, tkc.int8, "sm_89"),
    (epilogue, 50, 48, 16, tkc.float32, "sm_80"),
    (epilogue, 64, 96, 16, tkc.bfloat16, "sm_89"),
    (looped, 50, 48, 40, tkc.float32, "sm_89"),
    (looped, 128, 64, 48, tkc.bfloat16, "sm_90a"),
    (summed, 100, 30, 16, tkc.float32, "sm_80"),
    (summed, 128, 64, 32, tkc.bfloat16, "sm_89"),
    (counted, 50, 48, 16, tkc.float32, "sm_90a"),
    (overwritten, 300, 10, 16, tkc.float32, "sm_80"),
    (stepped, 300, 10, 16, tkc.float32, "sm_89"),
]


@pytest.mark.parametrize(
    "fn, m, n, k, dtype, name", CASES, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_products(fn, m, n, k, dtype, name):
    """Small integers, whose sums are exact."""
    rng, t = np.random.default_rng(0), NUMPY[dtype]
    sums = {tkc.float64: tkc.float64, tkc.int8: tkc.int32}.get(dtype, tkc.float32)
    a, b = (rng.integers(-2, 3, shape).astype(t) for shape in ((m, k), (k, n)))
    c, o = (rng.integers(-2, 3, (m + 3, n + 5)).astype(NUMPY.get(sums, np.int32)) for _ in range(2))
    module = traced(fn, *(array(dtype, 2),) * 2, *(array(sums, 2),) * 2, M=m, N=n, K=k)

    def given():
        return [a, b, c, o.copy()]

    level0.run(module, want := given(), (1,))
    found = through(module, PIPELINE[-1], context(name, num_warps=1))
    assert any(line.startswith("fit-results: a dot's") for line in found.decisions), found.decisions
    level4.run(module, data := given(), (1, 1, 1), 1)
    np.testing.assert_array_equal(data[3], want[3])
    machine.run(module, data := given(), (1, 1, 1))
    np.testing.assert_array_equal(data[3], want[3])
    if ptxas.find("ptxas") is None:
        return
    program = emit(module, target(name))
    assert any(ptxas.assemble(text, name).clean for text in (program.text, program.roomy)), (
        ptxas.assemble(program.text, name).log
    )


def moved(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Blocks over one another by a row and a column."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    for i in tkc.range(0, 3):
        tkc.store(o, (i, i), x * i)


def in_place(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    tkc.store(a, (1, 0), tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(a, (0, 0), (K, N))))


def spread(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    tkc.store(o, (0, 0), x - tkc.max(tkc.max(x, axis=1), axis=0))


def placed(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Where the result is stored follows from all of it."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    row = tkc.any(tkc.any(x > 3, axis=1), axis=0).to(tkc.int32)
    tkc.store(o, (row, 0), x)


@pytest.mark.parametrize("fn", [in_place, moved, spread, placed])
def test_what_cannot_be_cut_is_refused(fn):
    """A part would read what an earlier one has written, or write what it has written later; every
    part waits for what all come to.
    """
    module = traced(fn, *(array(tkc.float32, 2),) * 4, M=1024, N=64, K=64)
    through(module, "fit-results", context("sm_80", num_warps=4))
    assert sum(isinstance(op, tile.Dot) for op in module.walk()) == 1
    with pytest.raises(CompileError, match="accumulators take 512 registers of each thread"):
        through(module, "plan", context("sm_80", num_warps=4))


def gradients(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Three results live at once; rows of all are summed in other dots, columns are not."""
    acc, left, right = tkc.zeros((N, K)), tkc.load(b, (0, 0), (N, K)), tkc.load(c, (0, 0), (N, K))
    for i in tkc.range(0, a.shape[0], M):
        x = tkc.load(a, (i, 0), (M, K))
        p, q, r = tkc.dot(x, left.T), tkc.dot(x, right.T), tkc.dot(x + x, left.T)
        made = tkc.minimum(p * q, 3) - tkc.maximum(r, p)
        acc = tkc.dot(made.to(a.dtype).T, x, acc)
    tkc.store(o, (0, 0), acc)


def test_results_that_do_not_fit_together_are_cut_where_they_can_be():
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, (n, 16)).astype(np.float16) for n in (256, 128, 128))
    module = traced(
        gradients, *(array(tkc.float16, 2),) * 3, array(tkc.float32, 2), M=128, N=128, K=16
    )
    level0.run(module, [a, b, c, want := np.zeros((128, 16), np.float32)], (1,))
    found = through(module, PIPELINE[-1], context("sm_90a", num_warps=4, roles="one"))
    assert any("axis 1 in parts of 32" in line for line in found.decisions)
    level4.run(module, [a, b, c, o := np.zeros((128, 16), np.float32)], (1, 1, 1), 1)
    np.testing.assert_array_equal(o, want)


def centred(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Every row waits for the greatest of its column, of which a part has but its own."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    tkc.store(o, (0, 0), x - tkc.max(x, axis=0)[None, :])


def repeated(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """A loop stores what all rows come to, each time times another number."""
    x = tkc.dot(tkc.load(a, (0, 0), (M, K)), tkc.load(b, (0, 0), (K, N)))
    for i in tkc.range(1, 4):
        tkc.store(o, (i, 0), tkc.max(x * i, axis=0)[None, :])


@pytest.mark.parametrize("fn", [centred, repeated])
def test_columns_of_which_all_rows_are_wanted_are_cut_alone(fn):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((128, 16), (16, 128)))
    module = traced(fn, *(array(tkc.float32, 2),) * 4, M=128, N=128, K=16)

    def given():
        return [a, b, np.zeros((1, 1), np.float32), np.zeros((128, 128), np.float32)]

    level0.run(module, want := given(), (1,))
    found = context("sm_80", num_warps=1)
    through(module, "fit-results", found)
    said = [line for line in found.decisions if line.startswith("fit-results: a dot's")]
    assert len(said) == 1 and "axis 1 in parts" in said[0]
    level0.run(module, got := given(), (1,))
    np.testing.assert_array_equal(got[3], want[3])


def test_an_axis_that_fits_is_not_cut():
    module = traced(product, *(array(tkc.float32, 2),) * 4, M=16, N=512, K=16)
    given = context("sm_80", num_warps=1)
    through(module, "fit-results", given)
    assert [line for line in given.decisions if "axis 1 in parts of 128" in line]
    assert not [line for line in given.decisions if "axis 0" in line]


@pytest.mark.parametrize("causal", [False, True])
def test_what_a_loop_carries_and_follows_from_itself(causal):
    """Attention in blocks of 128 x 128 for 4 warps: what its loop carries is computed of what it
    carries.
    """
    case, modules = attended(144, 128, 128, 128, causal), {}
    found = through(
        case.module(),
        PIPELINE[-1],
        context("sm_90a", num_warps=4, roles="one"),
        lambda name, module: modules.setdefault(name, module.clone()),
    )
    assert any(line.startswith("fit-results: a dot's") for line in found.decisions)
    for x, y in zip(case.run(modules["fit-results"]), case.run(modules["simplify"]), strict=False):
        np.testing.assert_array_equal(x, y)


def accumulated(a, b, c, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Two sums through two loops; once one of them is cut, its dots are left without a use."""
    first, second = tkc.full((M, N), 1.0), tkc.full((M, N), 2.0)
    for _ in tkc.range(2):
        for k in tkc.range(0, a.shape[1], K):
            x, y = tkc.load(a, (0, k), (M, K)), tkc.load(b, (k, 0), (K, N))
            first = first + tkc.dot(x.T, y, tkc.dot(x, y))
            second = tkc.dot(x, y, second)
    tkc.store(o, (0, 0), first)
    tkc.store(c.ptr + tkc.arange(M)[:, None] * c.strides[0] + tkc.arange(N)[None, :], second)


def test_what_nested_loops_carry_and_nothing_uses_any_more():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 128), (128, 96)))
    arrays = (*(array(tkc.float16, 2),) * 2, *(array(tkc.float32, 2),) * 2)
    module = traced(accumulated, *arrays, M=64, N=96, K=64)

    def given():
        return [a, b, *(np.zeros((64, 96), np.float32) for _ in range(2))]

    level0.run(module, want := given(), (1,))
    found = context("sm_90a", num_warps=2)
    through(module, "fit-results", found)
    assert any(line.startswith("fit-results: a dot's") for line in found.decisions)
    level0.run(module, got := given(), (1,))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


def test_parts():
    assert (
        part_extents((1024, 4096), 16384) == (128, 128)
        and part_extents((96, 1000), 4096) == (48, 40)
        and part_extents((96, 999), 16384) == (96, 128)
        and part_extents((16, 1000), 16384) == (16, 1000)
        and part_extents((7, 512, 512), 16384) == (1, 128, 128)
    )


@tkc.jit
def large_accumulator(a, b, c, M: tkc.constexpr, N: tkc.constexpr):
    acc = tkc.zeros((M, N))
    for k in range(0, a.shape[1], 32):
        acc = tkc.dot(tkc.load(a, (0, k), (M, 32)), tkc.load(b, (k, 0), (32, N)), acc)
    tkc.store(c, (0, 0), acc)


@pytest.mark.parametrize("name", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("m, n", [(128, 512), (512, 256), (256, 512), (512, 512)])
def test_large_accumulators(m, n, name):
    """In parts of rows and of columns: the loops of both are round the sum's."""
    shapes = "f16[512, 512]", "f16[512, 512]", "f32[512, 512]"
    assert large_accumulator.compile(*shapes, m, n, target=name).ptx
