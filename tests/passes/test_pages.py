"""Loads whose place is loaded too: pages by tensor maps, copies that run ahead of them, and what
must not run ahead.
"""

from functools import cache
from math import inf

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import f32, traced
from tests.passes.kernels import context, through
from tkc.ir import threads, tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.sim import dataflow, level4

PAGE, D, BF16 = 64, 32, ml_dtypes.bfloat16


def whole_pages(q, k, v, o, table, lengths, scale, CARRIED: tkc.constexpr, BM: tkc.constexpr):
    """Attention of the keys in whole pages. CARRIED: the page's number is asked for by the
    iteration before, in the kernel's own words.
    """
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    qi, q, k, v, o = tkc.load(q[b, h], (m, 0), (BM, D)), q[b, h], k[:, :, h], v[:, :, h], o[b, h]
    top, total, acc, page = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, D)), table[b, 0]
    for i in tkc.range(lengths[b]):
        if not CARRIED:
            page = table[b, i]
        s = tkc.dot(qi, tkc.load(k[page], (0, 0), (PAGE, D)).T) * scale
        new = tkc.maximum(top, tkc.max(s, axis=1))
        p, shrink = tkc.exp2(s - new[:, None]), tkc.exp2(top - new)
        total, top = total * shrink + tkc.sum(p, axis=1), new
        acc = tkc.dot(p.to(v.dtype), tkc.load(v[page], (0, 0), (PAGE, D)), acc * shrink[:, None])
        if CARRIED:
            page = table[b, i + 1]
    tkc.store(o, (m, 0), tkc.where(total[:, None] > 0, acc / total[:, None], 0).to(o.dtype))


def array(dtype, rank: int) -> ArrayArgument:
    wide = dtype is not tkc.int32
    return ArrayArgument(
        dtype,
        ArrayFacts(
            (Fact(),) * (rank - 1) + (Fact(16 if wide else 1),),
            (Fact(8 if wide else 1),) * (rank - 1) + (Fact(exact=1),),
            16 if wide else 4,
        ),
    )


@cache
def compiled(carried: bool, rows: int, target: str = "sm_90a"):
    stages, half = {}, array(tkc.bfloat16, 4)
    module = traced(
        whole_pages,
        half,
        half,
        half,
        half,
        array(tkc.int32, 2),
        array(tkc.int32, 1),
        f32(),
        CARRIED=carried,
        BM=rows,
    )
    given = through(
        module,
        PIPELINE[-1],
        context(target),
        lambda name, module: stages.setdefault(name, module.clone()),
    )
    return stages, given


def check(module, rows: int, run=None, **how) -> None:
    rng, counts = np.random.default_rng(0), np.array([3, 0, 1], np.int32)
    table = rng.permutation(12).reshape(3, 4).astype(np.int32)
    q, k, v = (
        rng.standard_normal(s).astype(BF16)
        for s in ((3, 2, rows + 5, D), (12, PAGE, 2, D), (12, PAGE, 2, D))
    )
    o = np.full(q.shape, np.nan, BF16)
    run = run or (dataflow.run if module.body.block.first_op.level < 4 else level4.run)
    run(module, [q, k, v, o, table, counts, D**-0.5], (2, 2, 3), **how)
    for b, n in enumerate(counts):
        keys, values = (
            np.float64(x[table[b, :n]]).transpose(2, 0, 1, 3).reshape(2, -1, D) for x in (k, v)
        )
        s = np.float64(q[b]) @ keys.swapaxes(1, 2) * D**-0.5
        p = np.exp2(s - s.max(-1, keepdims=True, initial=-1e30))
        want = p @ values / p.sum(-1, keepdims=True) if n else np.zeros(q[b].shape)
        assert np.abs(np.float64(o[b]) - want).max() < 0.03


@pytest.mark.parametrize("carried", [False, True])
def test_pages_by_tensor_maps(carried):
    """The producer asks for a page's number where it copies the page; a number that the loop itself
    carries keeps its dot from running late.
    """
    stages, given = compiled(carried, 64)
    kernel = stages[PIPELINE[-1]].body.block.first_op
    assert given.plan.roles == "cooperative" and given.plan.rotate != carried, given.decisions
    if not carried:
        producer = next(
            op
            for op in kernel.walk()
            if isinstance(op, threads.Role) and op.sym_name.data == "producer"
        )
        assert sum(isinstance(op, tile.Load) for op in producer.walk()) >= 2 and any(
            isinstance(op, threads.TmaLoad) for op in producer.walk()
        )
    for name in ("simplify", "rotate-loops", "pipeline-async-copies", PIPELINE[-1]):
        check(stages[name], 64)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_pages_by_threads(target):
    """Addresses are loaded one iteration before the copies are issued: nothing of the iteration's
    own copies waits for a load.
    """
    stages, given = compiled(False, 16, target)
    assert any(
        "2 copies of a loop 4 stages deep, 1 load of their addresses one further" in line
        for line in given.decisions
    ), given.decisions
    loop = next(
        op
        for op in stages[PIPELINE[-1]].walk()
        if any(isinstance(inner, threads.CpAsync) for inner in getattr(op, "body", op).walk())
        and op.name == "scf.for"
    )
    ops = list(loop.body.block.ops)
    loads = [
        op
        for op in ops
        if isinstance(op, tile.Load) and not isinstance(op.result.type, tile.TileType)
    ]
    assert (
        len(loads) == 1
        and loads[0].result in loop.body.block.last_op.operands
        and ops.index(loads[0])
        > max(i for i, op in enumerate(ops) if isinstance(op, threads.CpAsync))
    )
    for seed in range(2):
        check(stages[PIPELINE[-1]], 16, seed=seed)
    check(stages[PIPELINE[-1]], 16, machine.run)


def counted(x, w, o, table, BM: tkc.constexpr):
    """A loop that changes the table it reads."""
    acc = tkc.zeros((BM, D))
    for i in tkc.range(x.shape[0]):
        page = table[i]
        tkc.store(table, (i + 1,), (page + 1) % x.shape[0])
        acc = tkc.dot(tkc.load(x[page], (0, 0), (BM, D)), tkc.load(w, (0, 0), (D, D)), acc)
    tkc.store(o, (0, 0), acc)


def test_a_table_that_the_loop_changes():
    """Copies by what the table says wait for what the loop stores there."""
    stages, half = {}, array(tkc.bfloat16, 3)
    module = traced(
        counted, half, array(tkc.bfloat16, 2), array(tkc.float32, 2), array(tkc.int32, 1), BM=64
    )
    given = through(
        module,
        PIPELINE[-1],
        context("sm_90a"),
        lambda name, module: stages.setdefault(name, module.clone()),
    )
    rng = np.random.default_rng(0)
    x, w, o, table = (
        rng.integers(-2, 3, (4, 64, D)).astype(BF16),
        rng.integers(-2, 3, (D, D)).astype(BF16),
        np.zeros((64, D), np.float32),
        np.array([2, 0, 0, 0, 0], np.int32),
    )
    level4.run(stages[PIPELINE[-1]], [x, w, o, table], (1, 1, 1))
    assert given.plan.roles == "cooperative", given.decisions
    assert [load.path for load in given.plan.loads].count("tma") == 2 and given.plan.copies_wait
    assert (
        not any("one further" in line for line in given.decisions)
        and (table == [2, 3, 0, 1, 2]).all()
        and (o == np.float64(x).sum(0) @ np.float64(w)).all()
    )
