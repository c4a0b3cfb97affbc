"""Loops whose dots read one block several times, as the gradients of attention do: with warp roles,
and the same at every level and as PTX.
"""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import f32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler
from tkc.codegen.ptx.emit import emit
from tkc.compiler import Compiled
from tkc.ir import shared, tile
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.ir.values import shared_type
from tkc.language.signature import ArrayArgument
from tkc.passes.analysis.mapped import whole_of
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, level4

BM, BN = 64, 128


def keys_and_values(q, k, v, do, lse, delta, dk, dv, scale, D: tkc.constexpr):
    """Gradients of keys and values: the blocks of q and do are read by two dots each."""
    n, h = tkc.program_id(0) * BN, tkc.program_id(1)
    queries = q.shape[1]
    kt = tkc.load(k, (h, n, 0), (None, BN, D))
    vt = tkc.load(v, (h, n, 0), (None, BN, D))
    dkt, dvt = tkc.zeros((BN, D)), tkc.zeros((BN, D))
    columns = n + tkc.arange(BN)
    for m in range(n // BM * BM, queries, BM):
        qt = tkc.load(q, (h, m, 0), (None, BM, D))
        dot = tkc.load(do, (h, m, 0), (None, BM, D))
        rows = m + tkc.arange(BM)
        keep = (rows[None, :] >= columns[:, None]) & (rows < queries)[None, :]
        logits = tkc.dot(kt, qt.T) * scale
        p = tkc.where(keep, tkc.exp2(logits - tkc.load(lse, (h, m), (None, BM))[None, :]), 0.0)
        dvt = tkc.dot(p.to(do.dtype), dot, dvt)
        ds = p * (tkc.dot(vt, dot.T) - tkc.load(delta, (h, m), (None, BM))[None, :])
        dkt = tkc.dot(ds.to(q.dtype), qt, dkt)
    tkc.store(dk[h], (n, 0), dkt.to(dk.dtype))
    tkc.store(dv[h], (n, 0), dvt.to(dv.dtype))


def queries(q, k, v, do, lse, delta, dq, unused, scale, D: tkc.constexpr):
    """Gradients of queries: the blocks of k are read by two dots, in both majors."""
    m, h = tkc.program_id(0) * BN, tkc.program_id(1)
    qt = tkc.load(q, (h, m, 0), (None, BN, D))
    dot = tkc.load(do, (h, m, 0), (None, BN, D))
    log_sums, r = tkc.load(lse, (h, m), (None, BN)), tkc.load(delta, (h, m), (None, BN))
    acc = tkc.zeros((BN, D))
    rows = m + tkc.arange(BN)
    for n in range(0, tkc.minimum(m + BN, k.shape[1]), BM):
        kt = tkc.load(k, (h, n, 0), (None, BM, D))
        s = tkc.dot(qt, kt.T) * scale
        keep = rows[:, None] >= (n + tkc.arange(BM))[None, :]
        p = tkc.where(keep, tkc.exp2(s - log_sums[:, None]), 0.0)
        ds = p * (tkc.dot(dot, tkc.load(v, (h, n, 0), (None, BM, D)).T) - r[:, None])
        acc = tkc.dot(ds.to(k.dtype), kt, acc)
    tkc.store(dq[h], (m, 0), acc.to(dq.dtype))


def arguments(vector: int = 4, columns: int = 1) -> list:
    """vector: elements that divide the strides of small blocks, which maps copy where that is 4;
    columns: what divides the arrays' columns.
    """
    shape = Fact(), Fact(), Fact(columns)
    facts = ArrayFacts(shape, (Fact(8), Fact(8), Fact(exact=1)), 16)
    blocks = [ArrayArgument(tkc.float16, facts)] * 4
    rows = ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(vector), Fact(exact=1)), 16))
    return [*blocks, rows, rows, *[ArrayArgument(tkc.float16, facts)] * 2, f32()]


def data(s: int, d: int, heads: int = 2) -> list:
    rng = np.random.default_rng(s + d)
    q, k, v, do = ((rng.standard_normal((heads, s, d)) * 0.5).astype(np.float16) for _ in range(4))
    lse, delta = rng.standard_normal((2, heads, s)).astype(np.float32)
    outs = [np.zeros((heads, s, d), np.float16) for _ in range(2)]
    return [q, k, v, do, lse + 3, delta, *outs, 0.25]


def gradients(given: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(dq, dk, dv) as the kernels define them, without their roundings."""
    q, k, v, do, lse, delta = (x.astype(np.float64) for x in given[:6])
    s = q.shape[1]
    keep = np.arange(s)[:, None] >= np.arange(s)[None, :]
    p = np.where(keep, np.exp2(q @ k.transpose(0, 2, 1) * given[8] - lse[:, :, None]), 0)
    ds = p * (do @ v.transpose(0, 2, 1) - delta[:, :, None])
    return ds @ k, ds.transpose(0, 2, 1) @ q, p.transpose(0, 2, 1) @ do


def want(fn, given: list) -> list[np.ndarray]:
    dq, dk, dv = gradients(given)
    return [dq] if fn is queries else [dk, dv]


def check(fn, d: int, s: int, run) -> None:
    given = data(s, d)
    run(given, (-(-s // BN), 2, 1))
    for got, expected in zip(given[6:8], want(fn, given), strict=False):
        error = np.abs(got.astype(np.float64) - expected).max()
        assert error <= 4e-3 * np.abs(expected).max()


@pytest.mark.parametrize("fn", (queries, keys_and_values))
@pytest.mark.parametrize("d", (64, 128))
@pytest.mark.parametrize("vector", (1, 4))
@assembler
def test_gradients_of_attention_have_roles(fn, d, vector):
    module = traced(fn, *arguments(vector), D=d)
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles
    program = emit(module, target("sm_90a"))
    resources = Compiled("gradients", "sm_90a", program.text, program.interface).resources
    assert resources.spill_stores == 0
    assert not resources.notes
    for s in (BN, 200):
        for seed in range(2):
            check(fn, d, s, lambda x, grid, seed=seed: level4.run(module, x, grid, seed))
    check(fn, d, 136, lambda x, grid: machine.run(module, x, grid))


@pytest.mark.parametrize("fn", (queries, keys_and_values))
def test_before_and_behind_the_pass(fn):
    for last in ("simplify", "separate-operands"):
        module = traced(fn, *arguments(), D=64)
        through(module, last, context("sm_90a"))
        check(fn, 64, 200, lambda x, grid, module=module: level0.run(module, x, grid))


def loads(module) -> int:
    return sum(isinstance(op, tile.Load) for op in module.walk())


def test_without_wgmma_blocks_are_loaded_once():
    module = traced(keys_and_values, *arguments(), D=64)
    through(module, "simplify", context("sm_80"))
    before = loads(module)
    through(module, "separate-operands", context("sm_80"))
    assert loads(module) == before


@pytest.mark.parametrize("fn", (queries, keys_and_values))
def test_without_wgmma_blocks_are_copied_once(fn):
    """A block that two dots read, along its rows and along its columns, is in shared memory once;
    and the gradients are right at every level.
    """
    module = traced(fn, *arguments(columns=8), D=64)
    through(module, "swizzle-shared", given := context("sm_80"))
    assert not given.has_roles
    copies = [op for op in module.walk() if isinstance(op, shared.Copy)]
    copied = [whole_of(op.array) for op in copies if len(shared_type(op.buffer).extents) == 2]
    assert len(copied) == len(set(copied)) == 4
    module = traced(fn, *arguments(columns=8), D=64)
    through(module, PIPELINE[-1], context("sm_80"))
    check(fn, 64, 136, lambda x, grid: level4.run(module, x, grid, 0))
    check(fn, 64, 136, lambda x, grid: machine.run(module, x, grid))


def in_place(q, k, v, do, lse, delta, dk, dv, scale, D: tkc.constexpr):
    """What is loaded changes before the second dot would load it again."""
    h = tkc.program_id(1)
    acc = tkc.zeros((BM, D))
    for m in range(0, q.shape[1], BM):
        kt = tkc.load(k, (h, m, 0), (None, BM, D))
        s = tkc.dot(tkc.load(q, (h, m, 0), (None, BM, D)), kt.T)
        tkc.store(k[h], (m, 0), s.to(k.dtype)[:, :D] if D == BM else kt)
        acc = tkc.dot(s.to(k.dtype), kt, acc)
    tkc.store(dk[h], (0, 0), acc.to(dk.dtype))


def test_what_changes_in_between_is_loaded_once():
    module = traced(in_place, *arguments(), D=64)
    given = context("sm_90a")
    through(module, "simplify", given)
    before = loads(module)
    through(module, "separate-operands", given)
    assert loads(module) == before


# ---- operands that are loaded before the loop
def summed(x, w, o, N: tkc.constexpr):
    """A sum of products by one block."""
    n = tkc.program_id(0) * N
    right, acc = tkc.load(w, (0, n), (64, N)), tkc.zeros((BN, N))
    for m in range(0, x.shape[0], BN):
        acc = tkc.dot(tkc.load(x, (m, 0), (BN, 64)), right, acc)
    tkc.store(o, (0, n), acc.to(o.dtype))


def streamed(x, w, o, N: tkc.constexpr):
    """Rows by one block, which each iteration stores."""
    n = tkc.program_id(0) * N
    right = tkc.load(w, (0, n), (64, N))
    for m in range(0, x.shape[0], BN):
        y = tkc.dot(tkc.load(x, (m, 0), (BN, 64)), right)
        tkc.store(o, (m, n), tkc.maximum(y, 0.0).to(o.dtype))


@pytest.mark.parametrize("fn", (summed, streamed))
@pytest.mark.parametrize("rows", (BN, 300))
@assembler
def test_a_right_operand_that_is_loaded_before_the_loop(fn, rows):
    facts = ArrayFacts((Fact(),) * 2, (Fact(8), Fact(exact=1)), 16)
    module = traced(fn, *[ArrayArgument(tkc.float16, facts)] * 3, N=64)
    given = context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-1, 2, s).astype(np.float16) for s in ((rows, 64), (64, 128)))
    products = x.astype(np.float64) @ w.astype(np.float64)
    for run in (level4.run, machine.run):
        o = np.zeros((rows, 128), np.float16)
        run(module, [x, w, o], (2, 1, 1))
        if fn is summed:
            whole = np.zeros((-(-rows // BN) * BN, 128))
            whole[:rows] = products
            np.testing.assert_array_equal(o[:BN], whole.reshape(-1, BN, 128).sum(0))
        else:
            np.testing.assert_array_equal(o, np.maximum(products, 0))
