"""What consumers load by pointers for a dot, or beside one, is loaded one iteration early."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import LAST, assembler, compiled, distinct, level
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.errors import VerifyError
from tkc.ir import tile
from tkc.ir.rewrite import loop_of
from tkc.ir.target import target
from tkc.ir.values import operations_in
from tkc.passes import fetch_ahead
from tkc.passes.schedule import expand
from tkc.passes.schedule.expand import End, LoopSchedule, broken_rules
from tkc.sim import dataflow, level0, level4
from tkc.sim.errors import OutOfBounds

BF16 = ml_dtypes.bfloat16
BM, BN, BK, RUN, APART = 64, 64, 64, 16, 48  # runs of elements, which begin so far apart
b1, b2 = array(tkc.bfloat16), aligned(tkc.bfloat16, 2)


# ---- kernels
def by_runs(x, w, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A product of runs of 16, as of the patches of images: no affine address."""
    m, acc = tkc.program_id(0) * BM + tkc.arange(BM), tkc.zeros((BM, BN))
    row = w.shape[0] // 16 * 48
    for start in tkc.range(0, w.shape[0], BK):
        k = start + tkc.arange(BK)
        inner = k // 16 * 48 + k % 16
        a = tkc.load(x.ptr + (m * row)[:, None] + inner[None, :])
        acc = tkc.dot(a, tkc.load(w, (start, 0), (BK, BN)), acc)
    tkc.store(y, (tkc.program_id(0) * BM, 0), acc.to(y.dtype))


def beside(x, w, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """What pointers address is added to each product, where it is not negative."""
    m, acc = tkc.program_id(0) * BM, tkc.zeros((BM, BN))
    i, j = tkc.arange(BM)[:, None], tkc.arange(BN)[None, :]
    for start in tkc.range(0, w.shape[0], BK):
        s = tkc.dot(tkc.load(w, (start, 0), (BK, BN)).T, tkc.load(w, (start, 0), (BK, BN)))
        bias = tkc.load(x.ptr + (start // BK * 7 + (i * 13 + j) % 31), mask=i >= j, other=0)
        acc = acc + tkc.maximum(s, 0) + bias
    tkc.store(y, (m, 0), acc.to(y.dtype))


def decayed(x, w, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A number that a pointer addresses scales what the iterations before have added up."""
    m, acc = tkc.program_id(0) * BM, tkc.zeros((BM, BN))
    for start in tkc.range(0, w.shape[0], BK):
        decay = tkc.load(x.ptr + start // BK * 7)
        block = tkc.load(w, (start, 0), (BK, BN))
        acc = tkc.dot(block.T, block, acc * decay)
    tkc.store(y, (m, 0), acc.to(y.dtype))


KERNELS = {"by_runs": by_runs, "beside": beside, "decayed": decayed}


def module_of(name: str):
    return traced(KERNELS[name], b1, b2, b2, BM=BM, BN=BN, BK=BK)


@cache
def made(name: str) -> tuple:
    return compiled(module_of(name))


def arrays(name: str, steps: int, programs: int) -> list:
    """Small integers; of what pointers address there is nothing more than the kernel loads."""
    rng, rows = np.random.default_rng(steps), BM * programs
    last = 7 * max(steps - 1, 0)
    counts = {"by_runs": rows * (steps * BK // RUN * APART), "beside": last + 31}
    count = counts.get(name, last + 1)
    x = rng.integers(-1, 2, max(count, 1)).astype(BF16)
    w = rng.integers(-1, 2, (steps * BK, BN)).astype(BF16)
    return [x, w, np.full((rows, BN), np.nan, BF16)]


def check(module, name: str, run, steps: int, programs: int = 2) -> None:
    level0.run(module_of(name), want := arrays(name, steps, programs), (programs,))
    run(module, got := arrays(name, steps, programs), (programs, 1, 1))
    np.testing.assert_array_equal(np.float32(got[2]), np.float32(want[2]))


# ---- what becomes of a loop
@pytest.mark.parametrize("name", KERNELS)
def test_the_next_iterations_elements_are_loaded(name):
    """Before the loop those of the first one, in it those of the next one, where there is one."""
    stages, given = made(name)
    assert given.plan.early_pointers and given.plan.roles != "one"
    before, after = (
        [loop_of(op) for op in operations_in(stages[at], tile.LoadPointers)]
        for at in ("stagger-programs", "fetch-ahead")
    )
    (around,) = {loop_of(loop) for loop in before}
    assert len(before) == 1 and len(after) == 2
    inner = [loop for loop in after if loop is not None and loop_of(loop) is not None]
    assert len(inner) == 1 and around is not None
    assert all(op.mask is not None for op in operations_in(inner[0], tile.LoadPointers))


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", KERNELS)
def test_each_level_computes_the_same(name, steps):
    stages, _ = made(name)
    for module in distinct(stages):
        run = {0: level0.run, 4: None}.get(level(module), dataflow.run)
        if run is not None:
            check(module, name, run, steps)
    check(stages[LAST], name, lambda m, data, grid: level4.run(m, data, grid, steps), steps)
    check(stages[LAST], name, machine.run, steps, 1)


@assembler
@pytest.mark.parametrize("name", KERNELS)
def test_it_assembles_clean(name):
    program = emit(made(name)[0][LAST], target("sm_90a"))
    assert ptxas.assemble(program.text, "sm_90a").clean


# ---- what stays where it is
def in_place(x, w, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """Each iteration writes what the next one loads."""
    m, acc = tkc.arange(BM), tkc.zeros((BM, BN))
    for start in tkc.range(0, w.shape[0], BK):
        at = x.ptr + (m * 64)[:, None] + (tkc.arange(BK) % 61)[None, :]
        acc = tkc.dot(tkc.load(at), tkc.load(w, (start, 0), (BK, BN)), acc)
        tkc.store(at, acc.to(x.dtype))
    tkc.store(y, (0, 0), acc.to(y.dtype))


def listed(x, w, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """What an iteration loads says where it loads."""
    m, acc, at = tkc.arange(BM), tkc.zeros((BM, BN)), tkc.zeros((BK,), tkc.int32)
    for start in tkc.range(0, w.shape[0], BK):
        a = tkc.load(x.ptr + (m * 64)[:, None] + at[None, :])
        at = (at + 5) % 61
        acc = tkc.dot(a, tkc.load(w, (start, 0), (BK, BN)), acc)
    tkc.store(y, (0, 0), acc.to(y.dtype))


@pytest.mark.parametrize("kernel", [in_place, listed])
def test_what_an_iteration_writes_or_carries_stays(kernel):
    module = traced(kernel, b1, b2, b2, BM=BM, BN=BN, BK=BK)
    through(module, "fetch-ahead", context("sm_90a"))
    assert len(operations_in(module, tile.LoadPointers)) == 1


def of_a_table(x, w, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A number says which rows are copied: the role that copies them reads it."""
    acc, table = tkc.zeros((BM, BN)), x.ptr.to(tkc.pointer(tkc.int32), bitcast=True)
    for start in tkc.range(0, w.shape[0], BK):
        block = tkc.load(w, (tkc.load(table + start // BK) * BK, 0), (BK, BN))
        acc = tkc.dot(block.T, block, acc)
    tkc.store(y, (0, 0), acc.to(y.dtype))


def test_a_number_that_says_what_is_copied_stays():
    module = traced(of_a_table, b1, b2, b2, BM=BM, BN=BN, BK=BK)
    through(module, "fetch-ahead", given := context("sm_90a"))
    assert given.plan.roles != "one" and not given.plan.early_pointers
    assert len(operations_in(module, tile.LoadPointers)) == 1


def test_registers_that_do_not_last_hold_none_early(monkeypatch):
    monkeypatch.setattr(
        "tkc.passes.planning.roles.loads.MAX_OPERAND_REGISTERS", dict.fromkeys(range(5), 40)
    )
    given = compiled(module_of("by_runs"))[1]
    assert not given.plan.early_pointers


# ---- mutants of what is checked
def test_nothing_is_loaded_for_an_iteration_that_does_not_exist(monkeypatch):
    """Without the guard a thread loads behind the array's end."""
    monkeypatch.setattr(expand, "_guarded", lambda op, there: op)
    module = compiled(module_of("by_runs"))[0][LAST]
    with pytest.raises(OutOfBounds):
        check(module, "by_runs", lambda m, data, grid: level4.run(m, data, grid, 0), 2, 1)


def test_an_early_load_by_pointers_has_a_guard():
    """Any other end is no legal schedule: what pointers address need not be there."""
    module = module_of("by_runs")
    through(module, "plan", context("sm_90a"))
    (load,) = operations_in(module, tile.LoadPointers)
    loop = loop_of(load)
    others = [op for op in list(loop.body.block.ops)[:-1] if op is not load]
    broken = {
        end: [*broken_rules(loop, LoopSchedule.of(loop, (([load], 1, end), (others, 0, end))))]
        for end in End
    }
    assert broken[End.GUARD] == [] and broken[End.ANY]


def test_a_load_is_not_moved_over_a_store_that_it_may_see(monkeypatch):
    monkeypatch.setattr(fetch_ahead, "_may_be_early", lambda *given: True)
    module = traced(in_place, b1, b2, b2, BM=BM, BN=BN, BK=BK)
    with pytest.raises(VerifyError, match="may meet"):
        through(module, "fetch-ahead", context("sm_90a"))
