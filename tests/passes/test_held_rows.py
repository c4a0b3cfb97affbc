"""Rows of which several loops read the parts stay in shared memory, and loops read through rings
that threads fill for themselves: the same at level 0, with threads and as PTX.
"""

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.passes.kernels import context, through
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

N = 3072  # three parts of 1024
CRAMPED = dict(num_warps=1, maxnreg=64)


def normalized(x, r, o, s, N: tkc.constexpr):
    """Three loops read x, two read r, which is asked for before the first."""
    i = tkc.program_id(0)
    v = tkc.load(x, (i, 0), (1, N))
    d = v - tkc.max(v, axis=1)[:, None]
    g = tkc.load(r, (i, 0), (1, N))
    both = tkc.sum(d * g, axis=1)
    tkc.store(s, (i,), both)
    tkc.store(o, (i, 0), d * g + both[:, None])


def in_place(x, r, o, s, N: tkc.constexpr):
    """What the last loop writes it has read before."""
    i = tkc.program_id(0)
    v = tkc.load(x, (i, 0), (1, N))
    tkc.store(x, (i, 0), v - tkc.max(v, axis=1)[:, None])


def shifted(x, r, o, s, N: tkc.constexpr):
    """A part that is written is part of the next one that is read."""
    i = tkc.program_id(0)
    v = tkc.load(x, (i, 0), (1, N))
    tkc.store(x, (i, 1), v - tkc.max(v, axis=1)[:, None])


def ending_early(x, r, o, s, N: tkc.constexpr):
    """An array that ends inside the last part."""
    i = tkc.program_id(0)
    v = tkc.load(x, (i, 0), (1, N), other=-100)
    d = v - tkc.max(v, axis=1)[:, None]
    g = tkc.load(r, (i, 0), (1, N))
    tkc.store(o, (i, 0), d * g + tkc.sum(tkc.where(d > -50, d * g, 0), axis=1)[:, None])


def ending_in_zeros(x, r, o, s, N: tkc.constexpr):
    """What lies outside reads as -0.0, which is not what a copy fills with."""
    i = tkc.program_id(0)
    v = tkc.load(x, (i, 0), (1, N), other=-0.0)
    d = v - tkc.max(v, axis=1)[:, None]
    tkc.store(s, (i,), tkc.min(1 / v, axis=1))
    tkc.store(o, (i, 0), d)


def adding_rows(x, r, o, s, N: tkc.constexpr):
    """A loop over rows, with sums of columns."""
    total = tkc.zeros((N,))
    for i in tkc.range(tkc.program_id(0), x.shape[0], tkc.num_programs(0)):
        v, g = tkc.load(x, (i, 0), (1, N)), tkc.load(r, (i, 0), (1, N))
        tkc.store(o, (i, 0), v * tkc.sum(v * g, axis=1)[:, None])
        total = total + tkc.sum(g, axis=0)
    tkc.store(s, (tkc.program_id(0) * N,), total)


def otherwise_placed(x, r, o, s, N: tkc.constexpr, PART: tkc.constexpr = 1024):
    """One number makes two places: the third part's is 128 without a sign, and -128 with one."""
    i, total = tkc.program_id(0), tkc.zeros((1, PART))
    for k in tkc.range(0, N, PART):
        total += tkc.load(x, (i, (k // 16).to(tkc.uint8).to(tkc.int32) * 16), (1, PART))
    for k in tkc.range(0, N, PART):
        signed = (k // 16).to(tkc.int8).to(tkc.int32) * 16
        tkc.store(o, (i, k), tkc.load(x, (i, signed), (1, PART)) + total)


def arrays(n, rows):
    rng = np.random.default_rng(0)
    return [
        rng.integers(-2, 3, (rows, n)).astype(np.float32),
        rng.integers(-2, 3, (rows, n)).astype(np.float32),
        np.full((rows, n), np.nan, np.float32),
        np.full(max(rows, 2 * n), np.nan, np.float32),
    ]


def checked(fn, n, columns, rows, grid, name, **options):
    """The decisions, after the three simulations agree."""
    given = [array(tkc.float32, 2, shape=(rows, n), strides=(n, 1)) for _ in range(3)]
    module = traced(fn, *given, array(tkc.float32, 1), N=columns)
    level0.run(module, want := arrays(n, rows), grid)
    found = through(module, PIPELINE[-1], context(name, **options))
    for run in (
        (lambda data: level4.run(module, data, grid, 1)),
        (lambda data: machine.run(module, data, grid)),
    ):
        run(data := arrays(n, rows))
        for got, right in zip(data, want, strict=False):
            np.testing.assert_array_equal(got, right)
    if ptxas.find("ptxas"):
        assert ptxas.assemble(emit(module, target(name)).text, name).registers
    return found.decisions


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "fn, n, rows",
    [
        (normalized, N, 2),
        (in_place, N, 1),
        (shifted, N, 0),
        (ending_early, N - 64, 2),
        (ending_in_zeros, N - 64, 1),
        (otherwise_placed, N, 0),
    ],
)
def test_rows_stay_through_loops_over_their_parts(fn, n, rows, name):
    said = checked(fn, n, N, 3, (3, 1, 1), name, **CRAMPED)
    assert any(f"{rows} rows of" in line for line in said) == bool(rows), said


def probabilities(x, r, o, s, N: tkc.constexpr):
    """In place, beside a number that is looked up in the row before it is written."""
    i = tkc.program_id(0)
    v = tkc.load(x, (i, 0), (1, N), other=-100)
    there = x[i, 5]
    d = v - tkc.max(v, axis=1)[:, None]
    tkc.store(s, (i,), tkc.sum(tkc.where(d > -50, d, 0), axis=1) + there)
    tkc.store(x, (i, 0), d * 2)


@pytest.mark.parametrize("ctas", [1, 2, 4])
@pytest.mark.parametrize("n", [4096, 4032])
def test_rows_are_computed_in_parts_as_asked(ctas, n):
    asked = dict(num_warps=1, num_ctas=ctas, row_parts=2)
    said = checked(probabilities, n, 4096, 2, (2, 1, 1), "sm_90a", **asked)
    assert any(f"1 warps in each of {ctas} blocks hold rows" in line for line in said), said
    assert any("1 rows of 3 loops stay in shared memory, 2 parts" in line for line in said), said


def test_rows_that_fill_a_multiprocessor_stay_in_shared_memory():
    """Where registers hold a row in eight blocks alone, four or more of them share a
    multiprocessor otherwise; what all programs read keeps it from being so."""

    def row(x, r, o, s, N: tkc.constexpr):
        i = tkc.program_id(0)
        v = tkc.load(x, (i, 0), (1, N)).to(tkc.float32)
        tkc.store(o, (i, 0), (v - tkc.max(v, axis=1)[:, None]).to(o.dtype))

    def scaled(x, r, o, s, N: tkc.constexpr):
        i = tkc.program_id(0)
        v = tkc.load(x, (i, 0), (1, N)).to(tkc.float32)
        w = tkc.load(s, (0,), (N,))[None, :]
        tkc.store(o, (i, 0), ((v - tkc.max(v, axis=1)[:, None]) * w).to(o.dtype))

    def plan(fn, n):
        rows = [array(tkc.bfloat16, 2, shape=(64, n), strides=(n, 1)) for _ in range(3)]
        module = traced(fn, *rows, array(tkc.float32, 1, shape=(n,)), N=n)
        return through(module, "plan", context("sm_90a")).plan

    held = plan(row, 131072)
    assert (held.warps, held.cluster_split[0]) == (4, 8)
    assert {load.path for load in held.loads} == {"held"}
    assert plan(row, 8192).cluster_split[0] == 1
    assert not any(load.path == "held" for load in plan(scaled, 32768).loads)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_loops_read_through_rings(rows, stages):
    said = checked(
        adding_rows, 1024, 1024, rows, (2, 1, 1), "sm_90a", num_warps=2, num_stages=stages
    )
    assert any(f"ring of {stages} stages" in line for line in said), said
