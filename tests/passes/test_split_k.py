"""Split-K: programs share an output tile, each with a part of the loop. The blocks of a cluster
send one another shares of their sums; of other programs the last one adds the parts in order.
Right, free of races, the same bits whoever is last.
"""

import re

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, product, through
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    count,
    role,
    survivors,
    without_threads,
)
from tests.passes.test_epilogues import check as check_fused
from tests.passes.test_epilogues import compiled as compiled_fused
from tests.passes.test_roles import Form, array, check, compiled, integers, last
from tests.sim.test_validate import validated
from tkc.codegen.ptx.emit import emit
from tkc.ir import threads, tile
from tkc.ir.target import target
from tkc.ir.types import TileType
from tkc.passes.pipeline import PIPELINE
from tkc.passes.planning.roles.registers import parts_at_once
from tkc.runtime.launch import workspaces
from tkc.sim import level4

APART = ("cluster", (1, 1))
LAST_ADDS = [
    Form(block, options=(("split_k", parts), ("num_stages", 3), APART))
    for block, parts in (
        ((64, 64, 32), 2),
        ((64, 64, 32), 3),
        ((128, 64, 32), 4),
        ((64, 32, 64), 8),
    )
] + [
    Form((64, 64, 32), "tt", options=(("split_k", 2), APART)),
    Form((64, 64, 32), out=tkc.float32, options=(("split_k", 2), APART)),
    Form((64, 64, 32), epilogue="second bias relu", options=(("split_k", 3),)),
    *(
        Form(block, options=(("split_k", parts), ("num_stages", 3), ("roles", "pingpong")))
        for block, parts in (((64, 64, 32), 3), ((128, 32, 32), 2))
    ),
]
IN_CLUSTERS = [
    *(
        Form(block, options=(("split_k", parts), ("num_stages", 3)))
        for block, parts in (
            ((64, 64, 32), 2),
            ((128, 96, 32), 3),
            ((64, 64, 64), 8),
            ((48, 64, 32), 3),
        )
    ),
    Form((192, 64, 32), options=(("split_k", 4), ("num_warps", 12), ("num_stages", 2))),
    Form((64, 64, 32), "tt", options=(("split_k", 2), ("cluster", (2, 1)))),
    Form((64, 96, 32), out=tkc.float32, options=(("split_k", 4),)),
    Form((64, 64, 32), epilogue="bias relu", options=(("split_k", 4),)),
    Form((64, 80, 32), options=(("split_k", 5), ("epilogue", "direct"))),
]
FORMS = LAST_ADDS + IN_CLUSTERS
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
ONE, TURNS, MET = LAST_ADDS[1], LAST_ADDS[-2], IN_CLUSTERS[1]


def test_who_adds():
    """Parts are the blocks of a cluster where these can each finish a share, as many as a cluster
    has; unless it is asked for otherwise.
    """
    assert all(compiled(form)[1].plan.parts_in_cluster for form in IN_CLUSTERS)
    assert not any(compiled(form)[1].plan.parts_in_cluster for form in LAST_ADDS)
    for block, parts in ((64, 64, 32), 3), ((64, 128, 32), 9):
        plan = compiled(Form(block, options=(("split_k", parts),)))[1].plan
        assert plan.split_k == parts and not plan.parts_in_cluster


@EVERY
def test_every_level(form):
    BM, BN, BK = form.block
    for module in without_threads(compiled(form)[0]):
        check(module, form, BM + 5, BN - 7, 5 * BK - 7)
    for seed in range(4):
        check(last(form), form, BM + 5, BN + 9, 5 * BK - 7, seed=seed, resident=1 + 2 * seed)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 7, 12])
def test_trip_counts(steps):
    """Fewer steps than parts, and numbers that the parts do not divide: the last ones are short, or
    empty.
    """
    for seed in range(2):
        check(last(ONE), ONE, 130, 70, steps * 32, seed=seed, resident=1 + seed)
    for seed in range(2):
        check(last(TURNS), TURNS, 130, 70, steps * 32, seed=seed, resident=2 - seed)
    for seed in range(2):
        check(last(MET), MET, 130, 100, steps * 32, seed=seed, resident=1 + seed)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (7, 13, 31), (129, 65, 33), (193, 257, 40), (64, 8, 100)], ids=str
)
def test_ragged_shapes(shape):
    for seed in range(2):
        check(last(ONE), ONE, *shape, seed=seed, resident=3)
        check(last(MET), MET, *shape, seed=seed, resident=2)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    "epilogue", ["bias tanh", "residual", "columns", "scale bias residual second"]
)
def test_epilogues_follow_the_whole_sum(epilogue, parts):
    block = (64, 64, 32)
    modules, given = compiled_fused(block, epilogue, (("split_k", parts),))
    assert given.plan.split_k == parts
    for seed in range(2):
        check_fused(
            modules[LAST], block, epilogue, 2 * 64 - 5, 64 + 9, 5 * 32 - 7, seed=seed, resident=4
        )


@pytest.mark.parametrize("columns, cluster", [(64, (1, 1)), (96, (3, 1))], ids=str)
def test_the_same_bits_whoever_is_last(columns, cluster):
    """Sums that depend on their order: every schedule gives the same ones."""
    options = (("split_k", 3), ("num_stages", 2), ("cluster", cluster))
    results, generator = set(), np.random.default_rng(0)
    a, b = (integers(*shape, dtype=tkc.bfloat16, seed=0) for shape in ((64, 200), (200, columns)))
    for x in a, b:
        x[...] = generator.standard_normal(x.shape).astype(x.dtype)
    for seed in range(8):
        out, rest = (
            integers(64, columns, dtype=tkc.float32, seed=1),
            [
                integers(columns, dtype=tkc.bfloat16, seed=2),
                integers(64, columns, dtype=tkc.bfloat16, seed=3),
            ],
        )
        level4.run(
            last(Form((64, columns, 32), out=tkc.float32, options=options)),
            [a, b, rest[0], out, rest[1]],
            (1, 1, 1),
            seed=seed,
            resident=3,
        )
        results.add(out.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("parts, waits", [(8, 1), (20, 3)])
def test_parts_are_asked_for_at_once(parts, waits):
    """As many as registers hold, before the first of them is added: few parts without a loop."""
    form = Form((64, 32, 64), options=(("split_k", parts), ("num_stages", 3), APART))
    kernel = compiled(form)[0]["schedule-programs"].body.block.first_op
    final = next(op for op in kernel.walk() if isinstance(op, scf.IfOp) and count(op, tile.Load))
    at_once = int(parts_at_once(parts, 64 * 32 // 128))
    loops = [op for op in final.walk() if isinstance(op, scf.ForOp)]
    assert len(loops) == (parts - 1 > at_once) and -(-(parts - 1) // at_once) == waits
    ops = list((loops[0].body if loops else final.true_region).block.ops)
    kinds = [op.name for op in ops if op.results and isinstance(op.results[0].type, TileType)]
    loads = at_once if loops else parts
    assert kinds[: loads + at_once] == ["tile.load"] * loads + ["tile.add"] * at_once


@pytest.mark.parametrize("form", LAST_ADDS, ids=lambda f: f.name)
def test_the_workspace(form):
    """Parts and a counter for each block of the output; the last program resets the counter."""
    interface, kernel = emit(last(form), target("sm_90a")).interface, last(form).body.block.first_op
    parts, (BM, BN, _) = dict(form.options)["split_k"], form.block
    assert interface.split == parts and sorted(
        p.each for p in interface.parameters if p.kind == "workspace"
    ) == [4, 4 * BM * BN * parts]
    assert workspaces(interface, 10)[1] == 256 + 40 * BM * BN * parts
    assert [
        op.kind.data for op in role(kernel, "consumer").walk() if isinstance(op, tile.Atomic)
    ] == ["add", "exchange"] and not count(role(kernel, "producer"), (tile.Atomic, tile.Store))


@pytest.mark.parametrize("form", IN_CLUSTERS, ids=lambda f: f.name)
def test_a_cluster_needs_no_workspace(form):
    """Each block sends every other one a share, and tells all when it has read what it got."""
    interface, kernel = emit(last(form), target("sm_90a")).interface, last(form).body.block.first_op
    parts = dict(form.options)["split_k"]
    assert interface.split == parts and interface.cluster == (parts, 1)
    assert not interface.together and interface.blocks_with_work((3, 2, 1)) == 6 * parts
    assert not any(p.kind == "workspace" for p in interface.parameters)
    consumer = role(kernel, "consumer")
    sent = [int(op.to.owner.number) for op in consumer.walk() if isinstance(op, threads.Send)]
    assert sent == list(range(parts)) and not count(role(kernel, "producer"), threads.Send)
    total = form.block[0] * form.block[1] * 4
    (expected,) = (op for op in consumer.walk() if isinstance(op, threads.MbarrierExpect))
    assert expected.bytes.value.data == total - total // parts


@assembler
@pytest.mark.parametrize(
    "block, options",
    [
        *(((64, 64, 64), (("split_k", n),)) for n in (2, 8)),
        *((block, (("split_k", 4),)) for block in ((128, 256, 64), (96, 128, 64), (256, 128, 64))),
        ((192, 96, 64), (("split_k", 3), ("num_warps", 12))),
        *(((64, 64, 64), (("split_k", n), APART)) for n in (2, 8)),
        *(
            (block, (("split_k", 2), APART))
            for block in ((64, 128, 64), (128, 128, 64), (128, 192, 64))
        ),
        *(
            (block, (("split_k", 4), ("roles", "pingpong")))
            for block in ((64, 128, 64), (128, 64, 64))
        ),
    ],
    ids=str,
)
def test_it_assembles_clean(block, options):
    form = Form(block, options=options)
    assert compiled(form)[1].plan.roles == dict(options).get("roles", "cooperative")
    assembles_clean(last(form))


def test_every_pass_is_validated(tmp_path):
    v = validated(product(64, 64, 256, 64, 64, 32, split_k=3), "sm_90a", tmp_path)
    assert len(v.passes) == len(PIPELINE) + 1 and {"ieee", "ring"} <= set(v.arithmetics), str(v)


def test_loops_that_are_not_one_sum_are_refused():
    """With the reason among the decisions; the plan stands without parts."""

    def scaled(a, b, c):
        acc = tkc.zeros((64, 64), tkc.float32)
        scale = 1.0
        for k in tkc.range(0, a.shape[1], 32):
            acc = tkc.dot(tkc.load(a, (0, k), (64, 32)), tkc.load(b, (k, 0), (32, 64)), acc)
            scale = scale * 0.5
        tkc.store(c, (0, 0), (acc * scale).to(c.dtype))

    given = through(
        traced(scaled, *(array(tkc.bfloat16) for _ in "abc")), LAST, context("sm_90a", split_k=4)
    )
    assert given.plan.split_k == 1 and any(
        "split_k = 4 is not used: its loop carries more than an accumulator" in line
        for line in given.decisions
    )
    for cluster in APART, ("cluster", (2, 1)):
        large = compiled(Form((128, 256, 64), options=(("split_k", 2), cluster)))[1]
        assert large.plan.split_k == 1 and any(
            "split_k = 2 is not used: an accumulator of 128 registers" in line
            for line in large.decisions
        )


@pytest.mark.parametrize("form", [ONE, TURNS, MET], ids=["cooperative", "ping-pong", "cluster"])
def test_mutants_of_what_the_parts_wait_for_are_found(form):
    number, missed = survivors(
        last(form),
        *(
            lambda m, seed=seed: check(m, form, 130, 64, 7 * 32, seed=seed, resident=1 + seed)
            for seed in range(4)
        ),
        among=re.compile("barrier|atomic|store|send").search,
        # a warpgroup's dots are the work of all its warps, and the leader has waited for them;
        # bytes may be expected as soon as the ones before have come
        known={
            "leader alone: mbarrier_arrive empty in consumer",
            "leader alone: mbarrier_arrive empty in consumer, 2",
            "earlier: mbarrier_expect told in consumer",
        }.__contains__,
    )
    assert number >= 5 and not missed, missed


def test_programs_of_different_lengths_take_turns():
    """Each knows how many stages the other's program uses."""

    def triangle(a, b, bias, c, d):
        m, n = tkc.program_id(0) * 64, tkc.program_id(1) * 64
        acc = tkc.zeros((64, 64), tkc.float32)
        for k in tkc.range(0, tkc.minimum(m + 64, a.shape[1]), 32):
            acc = tkc.dot(tkc.load(a, (m, k), (64, 32)), tkc.load(b, (k, n), (32, 64)), acc)
        tkc.store(c, (m, n), acc.to(c.dtype))

    module = traced(
        triangle,
        *(array(tkc.bfloat16) for _ in "ab"),
        array(tkc.bfloat16, 1),
        array(tkc.float32),
        array(tkc.bfloat16),
    )
    given = through(module, PIPELINE[-1], context("sm_90a", roles="pingpong", num_stages=3))
    assert given.plan.roles == "pingpong"
    a, b = (
        integers(*shape, dtype=tkc.bfloat16, seed=i)
        for i, shape in enumerate(((320, 280), (280, 100)))
    )
    lower = np.float64(a) * (np.arange(280) < (np.arange(320) // 64 * 64 + 64)[:, None])
    for seed in range(4):
        out = integers(320, 100, dtype=tkc.float32, seed=3)
        out[...] = np.nan
        level4.run(
            module,
            [
                a,
                b,
                integers(100, dtype=tkc.bfloat16, seed=2),
                out,
                integers(320, 100, dtype=tkc.bfloat16, seed=3),
            ],
            (5, 2, 1),
            seed=seed,
            resident=1 + seed,
        )
        assert np.array_equal(out, lower @ np.float64(b))


def added_to(a, b, c, o):
    """a bᵀ is added to what c has."""
    m, n = tkc.program_id(0) * 64, tkc.program_id(1) * 64
    acc = tkc.load(c, (m, n), (64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(a, (m, k), (64, 64)), tkc.load(b, (n, k), (64, 64)).T, acc)
    tkc.store(o, (m, n), acc)


@pytest.mark.parametrize("operand, sum_", [("float16", "float32"), ("int8", "int32")])
@pytest.mark.parametrize(
    "options",
    [
        dict(split_k=2),
        dict(split_k=3),
        dict(split_k=2, cluster=(1, 1)),
        dict(stream_k=3),
        dict(stream_k=2, cluster=(2, 1)),
    ],
    ids=str,
)
def test_what_parts_add_up_to(options, operand, sum_):
    """What the sum begins with is in it once; whole numbers are added as such."""
    narrow, wide = (aligned(getattr(tkc, name), 2) for name in (operand, sum_))
    module = traced(added_to, narrow, narrow, wide, wide)
    through(module, LAST, given := context("sm_90a", num_stages=3, **options))
    assert given.plan.split_k > 1 or given.plan.stream_k
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.integers(-2, 3, shape).astype(t)
        for shape, t in (((192, 448), operand), ((128, 448), operand), ((192, 128), sum_))
    )
    for resident in (3, 4):
        o = np.zeros_like(c)
        level4.run(module, [a, b, c, o], (3, 2, 1), seed=resident, resident=resident)
        np.testing.assert_array_equal(o, c + a.astype(sum_) @ b.astype(sum_).T)


def added_in_place(a, b, o):
    """a bᵀ is added to what o has, by rows that a program has for itself."""
    m = tkc.program_id(0) * 64
    acc = tkc.load(o, (m, 0), (64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(a, (m, k), (64, 64)), tkc.load(b, (0, k), (64, 64)).T, acc)
    tkc.store(o, (m, 0), acc)


def added_to_rows(a, b, o):
    """What is added to a row is what its first column, and all of it, held before."""
    m, acc = tkc.program_id(0) * 64, tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(a, (m, k), (64, 64)), tkc.load(b, (0, k), (64, 64)).T, acc)
    twice = acc * 2
    of_row = tkc.load(o, (m, 0), (64, None)) + tkc.sum(tkc.load(o, (m, 0), (64, 64)), axis=1)
    tkc.store(o, (m, 0), twice + of_row[:, None])


@pytest.mark.parametrize(
    "fn, options",
    [
        # with blocks that have turns without a part
        (added_in_place, dict(stream_k=3)),
        (added_in_place, dict(stream_k=2, cluster=(2, 1))),
        # every block of a cluster reads what others store a share of
        (added_to_rows, dict(split_k=2)),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_what_is_read_before_others_store(fn, options):
    arrays = aligned(tkc.float16, 2), aligned(tkc.float16, 2), aligned(tkc.float32, 2)
    module = traced(fn, *arrays)
    through(module, LAST, given := context("sm_90a", num_stages=3, **options))
    assert given.plan.parts_in_cluster or given.plan.stream_k
    rng = np.random.default_rng(0)
    for programs in (3, 5):
        a, b, o = (
            rng.integers(-2, 3, shape).astype(t)
            for shape, t in (
                ((64 * programs, 448), np.float16),
                ((64, 448), np.float16),
                ((64 * programs, 64), np.float32),
            )
        )
        total = a.astype(np.float32) @ b.astype(np.float32).T
        want = o + total
        if fn is added_to_rows:
            want = 2 * total + (o[:, 0] + o.sum(1))[:, None]
        for resident in (1, 2, 5):
            got = o.copy()
            level4.run(module, [a, b, got], (programs, 1, 1), seed=resident, resident=resident)
            np.testing.assert_array_equal(got, want)
