"""Rows that no registers hold, read in parts: the same at level 0, with threads and as PTX; what is
read again, what is written last, and what is left as it is.
"""

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.passes.kernels import context, through
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import tile
from tkc.ir.target import target
from tkc.language.signature import Options
from tkc.passes import PassContext
from tkc.passes.pipeline import PIPELINE
from tkc.passes.plan import kernel_of
from tkc.passes.planning.pressure import demand
from tkc.sim import level0, level4

N = 2500  # two parts of 1024, and 452
CRAMPED = dict(num_warps=1, maxnreg=64)  # 48 registers of tiles for 79 elements of each thread


def centred(x, r, w, o, s, N: tkc.constexpr):
    """Two reductions that wait for one another, an array that ends inside the block."""
    v = tkc.load(x, (tkc.program_id(0), 0), (1, N), other=-100).to(tkc.float32)
    d = v - tkc.max(v, axis=1)[:, None]
    tkc.store(
        o,
        (tkc.program_id(0), 0),
        (d * tkc.sum(tkc.where(d > -50, d, 0), axis=1)[:, None]).to(o.dtype),
    )


def residual(x, r, w, o, s, N: tkc.constexpr):
    """In place: what is stored first is what everything else is made of. Weights of all rows, a
    whole number and a truth value of each.
    """
    i = tkc.program_id(0)
    total = tkc.load(x, (i, 0), (1, N)).to(tkc.float32) + tkc.load(r, (i, 0), (1, N))
    tkc.store(r, (i, 0), total)
    odd = tkc.xor_sum(total.to(tkc.int32), axis=1) + tkc.any(total > 3, axis=1).to(tkc.int32)
    tkc.store(o, (i, 0), total * tkc.load(w, (0,), (N,))[None, :] + odd.to(tkc.float32)[:, None])


def columns(x, r, w, o, s, N: tkc.constexpr):
    """Rows along the other axis of a tile, two at once; a mask, and places."""
    i = tkc.arange(N)
    v = tkc.load(x, (0, 0), (2, N), mask=(i % 7 < 6)[None, :]).T
    tkc.store(o, (1, 0), (v * tkc.min(v, axis=0)[None, :] + i[:, None].to(tkc.float32)).T)


def rows_in_turn(x, r, w, o, s, N: tkc.constexpr):
    """A loop over rows: what it does not change is read in it; sums that need not wait for one
    another share a loop, and what one row gives is stored between them.
    """
    scale = tkc.load(w, (0,), (N,)).to(tkc.float32)[None, :]
    for i in tkc.range(tkc.program_id(0), x.shape[0], tkc.num_programs(0)):
        v, g = tkc.load(x, (i, 0), (1, N)).to(tkc.float32), tkc.load(r, (i, 0), (1, N)) * scale
        first = tkc.sum(v, axis=1)
        tkc.store(s, (i,), first)
        second = tkc.sum(g, axis=1)
        tkc.store(o, (i, 0), v * first[:, None] + g * (second + tkc.sum(v * g, axis=1))[:, None])


KERNELS = {centred: 3, residual: 2, columns: 2, rows_in_turn: 2}  # and how often a row is read


def arrays(dtype=np.float32, n=N - 100):
    rng = np.random.default_rng(0)
    return [
        rng.integers(-2, 3, (3, n)).astype(dtype),
        rng.integers(-2, 3, (3, n)).astype(np.float32),
        rng.integers(-2, 3, N + 3).astype(np.float32),
        np.full((3, n), np.nan, np.float32),
        np.full(3, np.nan, np.float32),
    ]


def module_of(fn):
    return traced(
        fn,
        array(tkc.float32, 2),
        array(tkc.float32, 2),
        array(tkc.float32, 1),
        array(tkc.float32, 2),
        array(tkc.float32, 1),
        N=N,
    )


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("fn", KERNELS, ids=lambda f: f.__name__)
def test_rows(fn, name):
    """Small integers, whose sums are exact."""
    module, grid = module_of(fn), (1 if fn is columns else 2 if fn is rows_in_turn else 3, 1, 1)
    level0.run(module, want := arrays(), grid)
    found = through(module, PIPELINE[-1], context(name, **CRAMPED))
    assert any(
        line.startswith("fit-rows:") and line.endswith(f", {KERNELS[fn]} times")
        for line in found.decisions
    ), found.decisions
    for run in (
        (lambda data: level4.run(module, data, grid, 1)),
        (lambda data: machine.run(module, data, grid)),
    ):
        run(data := arrays())
        for got, right in zip(data, want, strict=False):
            np.testing.assert_array_equal(got, right)
    if ptxas.find("ptxas"):
        assert ptxas.assemble(emit(module, target(name)).text, name).clean


def stored_too(x, r, w, o, s, N: tkc.constexpr):
    v = tkc.load(w, (0,), (N,))
    tkc.store(r[2], (0,), v)
    for i in tkc.range(0, 2):
        tkc.store(
            o,
            (i, 0),
            (row := tkc.load(x, (i, 0), (1, N)) * v[None, :]) * tkc.sum(row, axis=1)[:, None],
        )


def read_back(x, r, w, o, s, N: tkc.constexpr):
    """A sum of what has just been stored, beside the sum of what that was made of."""
    total = tkc.sum(tkc.load(x, (0, 0), (1, N)), axis=1)
    tkc.store(o, (0, 0), tkc.load(x, (1, 0), (1, N)) * 2)
    again = tkc.sum(tkc.load(o, (0, 0), (1, N)), axis=1)
    tkc.store(s, (0,), total + again)


def read_between(x, r, w, o, s, N: tkc.constexpr):
    """One element is read back before another row is stored."""
    v = tkc.load(x, (0, 0), (1, N))
    tkc.store(o, (0, 0), v * 2)
    tkc.store(s, (0,), tkc.load(o.ptr + tkc.program_id(0) + 7))
    tkc.store(r, (0, 0), v * tkc.sum(v, axis=1)[:, None])


def overwritten_in_turn(x, r, w, o, s, N: tkc.constexpr):
    """What is loaded once stays what it was, whatever an iteration stores there."""
    v = tkc.load(x, (0, 0), (1, N))
    for _ in tkc.range(0, r.shape[0]):
        tkc.store(x, (0, 0), v + tkc.sum(v, axis=1)[:, None])


def overwritten_again(x, r, w, o, s, N: tkc.constexpr):
    """The same of rows that are not reduced, in a `while`."""
    v, i = tkc.load(x, (0, 0), (1, N)), 0
    while i < r.shape[0]:
        tkc.store(x, (0, 0), v * 2 + i)
        i = i + 1


@pytest.mark.parametrize(
    "fn", (stored_too, read_back, read_between, overwritten_in_turn, overwritten_again)
)
def test_what_is_read_before_and_behind_stores(fn):
    module = module_of(fn)
    level0.run(module, want := arrays(), (1, 1, 1))
    through(module, "fit-rows", context("sm_80", **CRAMPED))
    level0.run(module, data := arrays(), (1, 1, 1))
    for got, right in zip(data, want, strict=False):
        np.testing.assert_array_equal(got, right)


def scanned(x, r, w, o, s, N: tkc.constexpr):
    tkc.store(
        o,
        (0, 0),
        tkc.cumsum(v := tkc.load(x, (0, 0), (1, N)), axis=1) + tkc.sum(v, axis=1)[:, None],
    )


def shifted(x, r, w, o, s, N: tkc.constexpr):
    tkc.store(x, (0, 1), (v := tkc.load(x, (0, 0), (1, N))) + tkc.sum(v, axis=1)[:, None])


def seen(x, r, w, o, s, N: tkc.constexpr):
    v = tkc.load(x, (0, 0), (1, N))
    tkc.store(o, (0, 0), v + tkc.sum(v, axis=1)[:, None])
    tkc.store(s, (0,), tkc.load(o[0], (7,), (1,)))
    tkc.store(r, (0, 0), v * tkc.max(v, axis=1)[:, None])


@pytest.mark.parametrize(
    "fn, overlaps", [(scanned, ()), (shifted, ()), (centred, ((0, 3),)), (seen, ())]
)
def test_what_is_left_whole(fn, overlaps):
    """Who looks along the row; who writes where a later part would read; two arrays that may be
    one; who reads what would be written later.
    """
    module = module_of(fn)
    through(
        module,
        "fit-rows",
        PassContext(
            target("sm_80"), Options(**CRAMPED, extra=(("overlaps", overlaps),) if overlaps else ())
        ),
    )
    assert not any(
        isinstance(op, tile.Load) and 1024 in op.result.type.extents
        for op in module.walk()
        if isinstance(op, tile.Load) and hasattr(op.result.type, "extents")
    )


def squares(x, o, COUNT: tkc.constexpr, N: tkc.constexpr):
    """What one operation reads twice stands between three rows that a loop reads, and one that it
    carries.
    """
    rows = [tkc.load(x, (i, 0), (None, N)) for i in range(3)]
    far = tkc.full((N,), 1e10)
    for i in tkc.range(COUNT):
        apart = tkc.zeros((N,))
        for axis in tkc.static_range(3):
            step = rows[axis] - x[axis, i]
            apart += step * step
        far = tkc.minimum(far, apart)
    tkc.store(o, (0,), far)


def test_what_one_operation_reads_twice_is_never_there_as_a_whole():
    """Four rows of 16 elements a thread, and no fifth: nothing is cut."""
    signature = array(tkc.float32, 2), array(tkc.float32)
    module = traced(squares, *signature, COUNT=4, N=8192)
    given = context("sm_90a", num_warps=16)
    through(module, "fit-rows", given)
    assert not any("fit-rows" in line for line in given.decisions)
    assert -(-demand(kernel_of(module)) // 512) == 64
