"""Programs that differ in length are claimed one by one: a product with a lower triangular matrix,
whose rows end at the diagonal.
"""

from functools import cache

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.kernels import BF16
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    count,
    distinct,
    level,
    parses_back,
    role,
    run,
    survivors,
    without_threads,
)
from tkc.ir import threads
from tkc.ir.text import show
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.sim import level0, level4
from tkc.sim.mutants import mutants


def triangular(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(0, tkc.minimum(a.shape[1], m + BM), BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@cache
def compiled(block=(64, 64, 32), **options):
    array = ArrayArgument(tkc.bfloat16, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), 16))
    module = traced(
        triangular, array, array, array, **dict(zip(("BM", "BN", "BK"), block, strict=False))
    )
    return stages.compiled(module, cluster=(1, 1), **options)


def check(module, m: int, n: int, run=run, block=(64, 64, 32), **how) -> None:
    rng = np.random.default_rng(m + n)
    a, b = (
        np.tril(rng.integers(-3, 4, (m, m))).astype(BF16),
        rng.integers(-3, 4, (m, n)).astype(BF16),
    )
    c = np.full((m, n), np.nan, BF16)
    run(module, [a, b, c], (-(-m // block[0]), -(-n // block[1]), 1), **how)
    np.testing.assert_array_equal(
        c.astype(np.float32),
        (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16).astype(np.float32),
    )


SHAPES = (8, 8), (64, 64), (72, 200), (264, 136), (328, 64)


def test_it_is_planned():
    modules, given = compiled()
    assert (
        given.plan.dynamic_schedule
        and given.plan.roles == "cooperative"
        and any("claim" in d for d in given.decisions)
    )
    producer, consumer = (role(modules[LAST], name) for name in ("producer", "consumer"))
    assert count(producer, threads.NextProgram) == 1 and not count(consumer, threads.NextProgram)
    assert count(producer, threads.BroadcastStore) == count(consumer, threads.BroadcastLoad) >= 3, (
        "the number and the two ids"
    )


@pytest.mark.parametrize("m, n", SHAPES)
def test_every_level(m, n):
    modules, _ = compiled()
    for module in distinct(modules):
        parses_back(module)
    for module in without_threads(modules):
        check(module, m, n, level0.run if level(module) == 0 else run)
    for seed, resident in enumerate((1, 2, 3)):
        check(modules[LAST], m, n, seed=seed, resident=resident)


@pytest.mark.parametrize("deep", [2, 3, 5])
def test_stages(deep):
    for seed in range(3):
        check(compiled(num_stages=deep)[0][LAST], 264, 136, seed=seed, resident=2)


def test_two_warpgroups():
    check(compiled((128, 64, 32))[0][LAST], 264, 72, block=(128, 64, 32), resident=2)


def looking(
    a, b, c, s, w, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr, N: tkc.constexpr
):
    """What a program needs in its loop, and behind it, takes many operations of its place."""
    i, j = tkc.program_id(0), tkc.program_id(1)
    m, n, acc = i * BM, j * BN, tkc.zeros((BM, BN))
    for k in tkc.range(
        ((i + w) // 3 * 7 + (j * 5 + w) % 3 + (i * j + w) % 5) % 2 * BK,
        tkc.minimum(a.shape[1], m + BM),
        BK,
    ):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
        for t in tkc.static_range(N):
            acc = (
                acc + s[((i * (t + 3) + j * w) % 7 + (i + w + t) // 3 * (t + 1)) % 5 + (j + t) % 3]
            )
    for t in tkc.static_range(N):
        acc = acc + s[((i * (t + 4) + j * w) % 7 + (i + w + t) // 3 * (t + 1)) % 5 + (j + t) % 3]
    tkc.store(c, (m, n), acc)


@pytest.mark.parametrize("number, posted", [(0, 3 + 1), (2, 3 + 1 + 2 + 2), (30, 3 + 8)])
def test_what_is_precomputed(number, posted):
    """With the number and the two ids what the loop waits for and takes many operations, as many as
    a producer has registers and the plan has left room for: the ring fills shared memory. Not what
    is computed behind it. With each step go the numbers that the loop looks up, up to eight, which
    have their room first.
    """
    arrays = [
        ArrayArgument(dtype, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), 16))
        for dtype in (tkc.bfloat16, tkc.bfloat16, tkc.float32)
    ]
    table = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    modules, given = stages.compiled(
        traced(looking, *arrays, table, i32(), BM=64, BN=64, BK=64, N=number), cluster=(1, 1)
    )
    assert given.plan.dynamic_schedule and given.plan.roles == "cooperative"
    assert count(role(modules[LAST], "producer"), threads.BroadcastStore) == posted
    rng = np.random.default_rng(number)
    a, b, s, c = (
        rng.integers(-3, 4, (200, 200)).astype(BF16),
        rng.integers(-3, 4, (200, 72)).astype(BF16),
        rng.integers(-9, 9, 8).astype(np.float32),
        np.full((200, 72), np.nan, np.float32),
    )
    run(modules[LAST], [a, b, c, s, 4], (4, 2, 1), seed=1, resident=2)

    def look(i, j, by):
        places = (
            ((i * (t + by) + j * 4) % 7 + (i + 4 + t) // 3 * (t + 1)) % 5 + (j + t) % 3
            for t in range(number)
        )
        return sum(float(s[place]) for place in places)

    for i, j in np.ndindex(4, 2):
        first = ((i + 4) // 3 * 7 + (j * 5 + 4) % 3 + (i * j + 4) % 5) % 2 * 64
        end = min(200, 64 * i + 64)
        rows, columns = slice(64 * i, 64 * i + 64), slice(64 * j, 64 * j + 64)
        want = (
            np.float64(a[rows, first:end]) @ np.float64(b[first:end, columns])
            + len(range(first, end, 64)) * look(i, j, 3)
            + look(i, j, 4)
        )
        np.testing.assert_array_equal(c[rows, columns], want)


@assembler
def test_it_assembles_clean():
    program = assembles_clean(compiled()[0][LAST])
    assert any(p.kind == "workspace" and p.bytes == 4 for p in program.interface.parameters)


def test_the_counter_is_zero_again(monkeypatch):
    """Blocks claim each program once, whatever the order: as often as there are programs, and then
    the counter starts over.
    """
    kernel, launches, start = compiled()[0][LAST], [], level4.Launch.fill
    monkeypatch.setattr(level4.Launch, "fill", lambda self: (launches.append(self), start(self))[1])
    for m, n, resident in ((264, 136, 2), (64, 64, 3), (200, 200, 7)):
        launches.clear()
        check(kernel, m, n, resident=resident)
        assert launches[0].counter == 0


def test_every_mutant_of_the_claims_is_found():
    """With programs of one step and more stages than programs in flight nothing but the ring of the
    claims holds the producer back.
    """
    module, block = compiled((64, 64, 64), num_stages=5)[0][LAST], (64, 64, 64)
    number, missed = survivors(
        module,
        *(lambda m, seed=seed: check(m, 64, 392, block=block, seed=seed) for seed in range(16)),
        among=claims_of(module).__contains__,
    )
    assert number >= 8 and not missed, missed


def claims_of(module) -> set[str]:
    """The labels of the mutants that touch the ring of the claims: of its barriers, its stages, and
    of what waits for them.
    """
    original = show(module)
    lines, barriers = original.splitlines(), _barriers_of_claims(module)
    labels = set()
    for label, mutant in mutants(module):
        changed = set(lines) ^ set(show(mutant).splitlines())
        if changed and any(
            f"{name}[" in line or f"{name} " in line for line in changed for name in barriers
        ):
            labels.add(label)
    return labels


def _barriers_of_claims(module) -> set[str]:
    """How the text names the two barriers of the claims: the wait before the broadcasts, the
    arrival after them.
    """
    broadcasts = [op for op in module.walk() if isinstance(op, threads.BroadcastStore)]
    before, after = broadcasts[0].prev_op, broadcasts[-1].next_op
    while not isinstance(before, threads.MbarrierWait):
        before = before.prev_op
    while not isinstance(after, threads.MbarrierArrive):
        after = after.next_op
    text, names = show(module), set()
    for op in (before, after):
        number = sum(
            isinstance(o, type(op)) for o in list(module.walk())[: list(module.walk()).index(op)]
        )
        line = [line for line in text.splitlines() if op.name + " " in line][number]
        names.add(line.split(op.name + " ")[1].split("[")[0])
    return names


# ---- what a producer works out for the next program, and what it does not ------------------------
def scrambled(x, m):
    """A number of many steps, from 0 to 3."""
    for i in range(8):
        x = (x * (i + 3) + m) // 2 % 11
    return x % 4


def of_a_tile(table, m, size):
    """Warps exchange elements, if there are many."""
    return scrambled(tkc.max(tkc.arange(size) // size + m, axis=0), m)


def written_before(table, m, size):
    """The program itself has stored it."""
    return scrambled(tkc.load(table, (m,), (None,)), m)


def looked_up_there(table, m, size):
    """Where it lies is computed of a tile."""
    place = tkc.max(tkc.arange(size) // size + m, axis=0)
    return scrambled(tkc.load(table, (place,), (None,)) - table.shape[0], m)


@tkc.jit
def steps_behind(table, a, b, c, NUMBER: tkc.constexpr, SIZE: tkc.constexpr, N: tkc.constexpr):
    """A second loop has as many steps as a number says."""
    m, total = tkc.program_id(0), tkc.zeros((N, N))
    if NUMBER is written_before:
        tkc.store(table, (m,), m)
    for k in tkc.range(0, a.shape[1], 64):
        left = tkc.load(a, (m * N, k), (N, 64))
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
    for _ in tkc.range(0, NUMBER(table, m, SIZE)):
        total = total + 1
    tkc.store(c, (m * N, 0), total.to(c.dtype))


@pytest.mark.parametrize("number", [of_a_tile, written_before, looked_up_there])
@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("options", [{}, {"roles": "cooperative"}], ids=str)
def test_numbers_of_tiles_and_of_memory_are_worked_out_where_they_are_used(
    number, size, options, monkeypatch
):
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    n, each, r = 64, np.arange(7, dtype=np.int32), np.random.default_rng(0)
    a, b = (r.integers(-2, 3, s).astype(BF16) for s in ((7 * n, 128), (128, n)))
    c, table = np.zeros((7 * n, n), BF16), each + 7
    steps_behind[7](table, a, b, c, number, size, n, dynamic_schedule=True, **options)
    more = np.repeat(scrambled(each, each), n)[:, None]
    want = a.astype(np.float32) @ b.astype(np.float32) + more
    assert (c == want.astype(c.dtype)).all()


def of_the_place(table, m, size):
    """It follows from the program's number by whole numbers alone."""
    return scrambled(m, m)


@pytest.mark.parametrize("number, handed_on", [(of_a_tile, 0), (of_the_place, 1)])
def test_whole_numbers_that_follow_from_the_place_are_handed_on(number, handed_on):
    """Of a tile each role would have to make its own."""
    arrays = "i32[7]", "bf16[448, 128]", "bf16[128, 64]", "bf16[448, 64]"

    def stores(number) -> int:
        options = {"target": "sm_90a", "dynamic_schedule": True, "roles": "cooperative"}
        compiled = steps_behind.compile(*arrays, NUMBER=number, SIZE=32, N=64, **options)
        return compiled.ir("assign-registers").count("tile.broadcast_store")

    assert stores(number) == stores(lambda table, m, size: 3) + handed_on


def test_no_branch_round_what_programs_look_up_where_they_look_up_nothing():
    module = compiled()[0]["schedule-programs"]
    assert count(module, scf.WhileOp) == 1 and not count(module, scf.IfOp)
