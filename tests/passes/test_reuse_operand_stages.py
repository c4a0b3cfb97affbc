"""Results that leave through the stages of what a program has read for the last time: right at
every level, free of races, and refused where somebody still reads there, or nothing fits.
"""

import re
from functools import cache

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    count,
    distinct,
    parses_back,
    role,
    run,
    survivors,
    without_threads,
)
from tests.passes.test_co_resident import co_resident
from tests.passes.test_forced import is_forced, is_refused
from tests.passes.test_roles import array, integers, result
from tests.passes.test_roles_attention import Form, check, compiled, last
from tkc.ir import shared, threads
from tkc.sim.mutants import places

THROUGH = ("subtiles", 0)
ALONE = ("roles", "cooperative"), ("num_warps", 4)
FORMS = [
    Form(causal=True, block=(64, 64), options=co_resident(3, THROUGH)),
    Form(128, True, (64, 64), options=co_resident(3)),
    Form(causal=True, block=(64, 64), options=(*ALONE, THROUGH)),
    Form(128, block=(64, 64), options=(*ALONE, THROUGH, ("dynamic_schedule", False))),
    Form(32, True, (64, 32), options=co_resident(4, THROUGH)),
    Form(causal=True, block=(64, 64), dtype=tkc.float16, options=co_resident(2, THROUGH)),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)


@EVERY
def test_every_level(form):
    made = compiled(form)[1]
    assert (
        is_forced(form.options, made)
        and made.plan.subtiles == 0
        and made.plan.reuse_operand_stages == (0,)
    ), made.decisions
    assert (
        len(
            {
                op.result.type.stages
                for op in last(form).walk()
                if isinstance(op, shared.Alloc) and op.result.type.rank == 2
            }
            - set(made.plan.rings)
        )
        == 0
    ), "no buffer of its own"
    for module in without_threads(compiled(form)[0]):
        check(module, form, 131, 2 * form.block[1] + 5)
    for seed in range(3):
        check(last(form), form, 131, 2 * form.block[1] + 5, 2, seed=seed, resident=1 + seed)


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda f: f.name)
@pytest.mark.parametrize(
    "queries, keys", [(64, 0), (1, 1), (130, 64), (450, 65), (64, 400), (640, 130)]
)
def test_ragged_shapes_and_trip_counts(form, queries, keys):
    """From no program of its own behind it to ten; the rows of the first may see nothing."""
    for resident in (1, 2):
        check(last(form), form, queries, keys, 2, seed=queries, resident=resident)


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda f: f.name)
def test_what_the_text_computes(form):
    check(last(form), form, 200, 2 * form.block[1] + 5, run=machine.run, seed=1)


@assembler
@EVERY
def test_assembles_clean(form):
    assembles_clean(last(form))


@EVERY
def test_a_stage_is_given_back_when_it_has_been_read(form):
    """By every warp, the one that sent it behind a wait; no warp waits for a subtile before it
    writes one.
    """
    consumer = role(last(form), "consumer")
    waits = [op for op in consumer.walk() if isinstance(op, threads.BulkWait)]
    assert (
        [op.pending.value.data for op in waits] == [0, 0]
        and waits[0].read
        and isinstance(waits[0].next_op, threads.MbarrierArrive)
        and waits[0].next_op.when is not None
        and waits[0].next_op.each.data == "warp"
    )
    assert count(consumer, threads.TmaStore) == form.d * 2 // min(128, form.d * 2)


# --------------------------------------------------------------------------------------------------
def both(q, r, k, v, w, u, o, p, high, BN: tkc.constexpr):
    """Two results, through the stages of two loads."""
    i = tkc.program_id(0)
    x, y, one, two = (
        tkc.load(q, (i * 64, 0), (64, 64)),
        tkc.load(r, (i * 64, 0), (64, 64)),
        tkc.zeros((64, 64)),
        tkc.zeros((64, 64)),
    )
    for n in tkc.range(0, tkc.minimum(k.shape[0], high * i), BN):
        s, t = (
            tkc.dot(x, tkc.load(k, (n, 0), (BN, 64)).T),
            tkc.dot(y, tkc.load(v, (n, 0), (BN, 64)).T),
        )
        one = tkc.dot(
            tkc.where(s > t, 1.0, -1.0).to(tkc.bfloat16), tkc.load(w, (n, 0), (BN, 64)), one
        )
        two = tkc.dot(
            tkc.where(s > t, 2.0, 0.0).to(tkc.bfloat16), tkc.load(u, (n, 0), (BN, 64)), two
        )
    tkc.store(o, (i * 64, 0), one.to(o.dtype))
    tkc.store(p, (i * 64, 0), two.to(p.dtype))


def narrower(q, r, k, v, w, u, o, p, high, BN: tkc.constexpr):
    """The result is wider than what was loaded."""
    i = tkc.program_id(0)
    x, acc = tkc.load(q, (i * 64, 0), (64, 32)), tkc.zeros((64, 64))
    for n in tkc.range(0, tkc.minimum(k.shape[0], high * i), BN):
        acc = tkc.dot(
            tkc.where(tkc.dot(x, tkc.load(k, (n, 0), (BN, 32)).T) > 0, 1.0, -1.0).to(tkc.bfloat16),
            tkc.load(w, (n, 0), (BN, 64)),
            acc,
        )
    tkc.store(o, (i * 64, 0), acc.to(o.dtype))


def another(q, r, k, v, w, u, o, p, high, BN: tkc.constexpr):
    """The result's elements are no 16-bit floats."""
    i = tkc.program_id(0)
    x, acc = tkc.load(q, (i * 64, 0), (64, 64)), tkc.zeros((64, 64))
    for n in tkc.range(0, tkc.minimum(k.shape[0], high * i), BN):
        acc = tkc.dot(
            tkc.where(tkc.dot(x, tkc.load(k, (n, 0), (BN, 64)).T) > 0, 1.0, -1.0).to(tkc.bfloat16),
            tkc.load(w, (n, 0), (BN, 64)),
            acc,
        )
    tkc.store(o, (i * 64, 0), acc.to(tkc.float16).to(tkc.float32))


def also_turned(q, r, k, v, w, u, o, p, high, BN: tkc.constexpr):
    """The first of two results is stored as its transpose, too, in the same array, with a mask:
    that leaves from registers, and both results through the stages of what they were planned for.
    """
    i = tkc.program_id(0)
    x, y, one, two = (
        tkc.load(q, (i * 64, 0), (64, 32)),
        tkc.load(r, (i * 64, 0), (64, 64)),
        tkc.zeros((64, 32)),
        tkc.zeros((64, 64)),
    )
    for n in tkc.range(0, tkc.minimum(k.shape[0], high * i), BN):
        one = tkc.dot(
            tkc.where(tkc.dot(x, tkc.load(k, (n, 0), (BN, 32)).T) > 0, 1.0, -1.0).to(tkc.bfloat16),
            tkc.load(w, (n, 0), (BN, 32)),
            one,
        )
        two = tkc.dot(
            tkc.where(tkc.dot(y, tkc.load(v, (n, 0), (BN, 64)).T) > 0, 2.0, 0.0).to(tkc.bfloat16),
            tkc.load(u, (n, 0), (BN, 64)),
            two,
        )
    tkc.store(o, (0, 64 + i * 64), one.T.to(o.dtype), mask=one.T == one.T)
    tkc.store(o, (i * 64, 0), one.to(o.dtype))
    tkc.store(p, (i * 64, 0), two.to(p.dtype))


@cache
def other(kernel, *options):
    return stages.compiled(
        traced(
            kernel,
            *(array(tkc.bfloat16),) * 6,
            *(result(tkc.float32 if kernel is another else tkc.bfloat16),) * 2,
            i32(),
            BN=32,
        ),
        **dict(options),
    )


def check_other(module, kernel, places: int, rows: int, high: int, run=run, **how) -> None:
    q, r, *given = (
        integers(n, 64, dtype=tkc.bfloat16, seed=i)
        for i, n in enumerate((64 * places, 64 * places, rows, rows, rows, rows))
    )
    o, p = (
        np.full((64 * places, 64), np.nan, np.float32 if kernel is another else q.dtype)
        for _ in "op"
    )
    run(module, [q, r, *given, o, p, high], (places, 1, 1), **how)
    x, y, k, v, w, u = map(np.float64, (q, r, *given))
    for i in range(places):
        own, end, d = (
            slice(64 * i, 64 * i + 64),
            min(rows, -(-min(rows, high * i) // 32) * 32),
            32 if kernel is narrower else 64,
        )
        more = x[own, :d] @ k[:end, :d].T > (y[own] @ v[:end].T if kernel is both else 0)
        np.testing.assert_array_equal(o[own], (np.where(more, 1.0, -1.0) @ w[:end]).astype(o.dtype))
        if kernel is both:
            np.testing.assert_array_equal(
                p[own], (np.where(more, 2.0, 0.0) @ u[:end]).astype(p.dtype)
            )


@pytest.mark.parametrize(
    "options", [co_resident(3), co_resident(2, THROUGH), (*ALONE, THROUGH)], ids=str
)
def test_two_results(options):
    modules, given = other(both, *options)
    assert is_forced(options, given) and given.plan.reuse_operand_stages == (0, 1), given.decisions
    for module in distinct(modules):
        parses_back(module)
    for module in without_threads(modules):
        check_other(module, both, 5, 130, 40)
    for seed, shape in enumerate(((7, 200, 33), (4, 40, 64), (1, 64, 64))):
        check_other(modules[LAST], both, *shape, seed=seed, resident=1 + seed)


@pytest.mark.parametrize(
    "options", [co_resident(3), co_resident(2, THROUGH), (*ALONE, THROUGH)], ids=str
)
def test_results_beside_a_store_from_registers(options):
    modules, given = other(also_turned, *options)
    stores = count(role(modules[LAST], "consumer"), threads.TmaStore)
    assert given.plan.reuse_operand_stages == (0, 1) and stores == 2, given.decisions
    for seed, module in enumerate([*without_threads(modules), *[modules[LAST]] * 3]):
        q, r, *given = (
            integers(n, 64, dtype=tkc.bfloat16, seed=i)
            for i, n in enumerate((320, 320, *(130,) * 4))
        )
        o, p = np.full((320, 384), np.nan, q.dtype), np.full((320, 64), np.nan, q.dtype)
        run(
            module,
            [q, r, *given, o, p, 40],
            (5, 1, 1),
            **(dict(seed=seed, resident=1 + seed % 2) if module is modules[LAST] else {}),
        )
        x, y, k, v, w, u = map(np.float64, (q, r, *given))
        for i in range(5):
            own, end = slice(64 * i, 64 * i + 64), min(130, -(-40 * i // 32) * 32)
            first = (np.where(x[own, :32] @ k[:end, :32].T > 0, 1.0, -1.0) @ w[:end, :32]).astype(
                o.dtype
            )
            np.testing.assert_array_equal(o[own, :32], first)
            np.testing.assert_array_equal(o[:32, 64 + 64 * i : 128 + 64 * i], first.T)
            np.testing.assert_array_equal(
                p[own], (np.where(y[own] @ v[:end].T > 0, 2.0, 0.0) @ u[:end]).astype(p.dtype)
            )


@pytest.mark.parametrize(
    "kernel, reason",
    [(narrower, "no load's buffer has room"), (another, "stored from registers")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_where_no_stage_is_free(kernel, reason):
    modules, given = other(kernel, *co_resident(2, THROUGH))
    assert (
        given.plan.reuse_operand_stages == ()
        and given.plan.subtiles
        and is_refused(*THROUGH, given)
        and any(reason in line for line in given.decisions)
    ), given.decisions
    check_other(modules[LAST], kernel, 5, 130, 40, seed=1)


@pytest.mark.parametrize(
    "form, reason",
    [
        (
            Form(block=(128, 64), options=(("roles", "cooperative"), THROUGH)),
            "each warpgroup of a program",
        ),
        (
            Form(block=(64, 64), options=co_resident(3, THROUGH, ("epilogue", "direct"))),
            "stored from registers",
        ),
        (Form(256, True, (64, 64), options=co_resident(2, THROUGH)), "no stage beside them"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_what_cannot_be_had_is_said(form, reason):
    made = compiled(form)[1]
    assert is_refused(*THROUGH, made) and any(reason in line for line in made.decisions), (
        made.decisions
    )


# --------------------------------------------------------------------------------------------------
# A warp writes the rows of a result whose operand's rows it alone has read: nobody need have come
# when it begins to write, and behind the barrier before it sends them its leader may give back the
# stage for all. The wait for Q protects dots; between them stages are given back. Of the first
# program all stages are full in the first phase.
KNOWN = {
    "cooperative": {
        "drop: block_barrier in consumer",
        "later: mbarrier_wait full in consumer",
        "leader alone: mbarrier_arrive empty in consumer",
    },
    "co_resident": {
        "drop: block_barrier in consumer",
        "drop: block_barrier in consumer, 3",
        "later: mbarrier_wait full in consumer",
        "leader alone: mbarrier_arrive empty in consumer",
        "first parity: mbarrier_wait full in consumer",
    },
}
SHAPES = (
    (128, 300, 2),
    (192, 128, 2),
    (320, 192, 1),
    (64, 0, 3),
    (64, 64, 4),
    (500, 100, 3),
    *[(128, 0, 12)] * 4,
)
# Who fills a stage too early is found where the copy before is the last of eight to land: of every
# so many seeds one has copies that land as late as they can (tkc.sim.engine).
EMPTY, LATE = (128, 0, 3), 4
RESULTS = re.compile(r"bulk_|tma_store|fence|block_barrier|tile.write|mbarrier_\w+ (empty|full) in")


@pytest.mark.parametrize(
    "form",
    [
        Form(causal=True, block=(64, 64), options=(*ALONE, THROUGH, ("num_stages", 2))),
        Form(causal=True, block=(64, 64), options=co_resident(2, THROUGH, ("num_stages", 4))),
    ],
    ids=lambda f: f.name,
)
def test_every_mutant_of_the_results_is_found(form):
    """What is written, sent and given back, and the ring through which it leaves; where programs
    see nothing, few steps, or lie outside of the grid.
    """
    plan = compiled(form)[1].plan
    assert plan.subtiles == 0
    number, missed = survivors(
        last(form),
        *(
            lambda m, shape=shape, seed=seed: check(m, form, *shape, seed=seed)
            for seed, shape in (*enumerate(SHAPES), *((LATE * i + 1, EMPTY) for i in range(60)))
        ),
        among=RESULTS.search,
        known=KNOWN[plan.roles].__contains__,
    )
    labels = {place.label for place in places(last(form))}
    assert {
        "drop: bulk_wait in consumer",
        "deeper: bulk_wait in consumer",
        "drop: mbarrier_arrive empty in consumer",
        "drop: block_barrier in consumer, 2",
        "drop: fence async_shared in consumer",
    } <= labels, sorted(labels)
    assert number > 30 and not missed, sorted(missed)
