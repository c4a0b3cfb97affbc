"""Split-K: programs share an output tile, each with a part of the loop; the last one adds
the parts in order. Right, free of races, the same bits whoever is last.
"""

import re

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import context, product, through
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
from tkc.ir import tile
from tkc.ir.target import target
from tkc.ir.types import TileType
from tkc.passes.pipeline import PIPELINE
from tkc.passes.planning.roles.registers import parts_at_once
from tkc.runtime.launch import workspaces
from tkc.sim import level4

FORMS = [
    Form(block, options=(("split_k", parts), ("num_stages", 3)))
    for block, parts in (
        ((64, 64, 32), 2),
        ((64, 64, 32), 3),
        ((128, 64, 32), 4),
        ((64, 32, 64), 8),
    )
] + [
    Form((64, 64, 32), "tt", options=(("split_k", 2),)),
    Form((64, 64, 32), out=tkc.float32, options=(("split_k", 2),)),
    Form((64, 64, 32), epilogue="second bias relu", options=(("split_k", 3),)),
    *(
        Form(block, options=(("split_k", parts), ("num_stages", 3), ("roles", "pingpong")))
        for block, parts in (((64, 64, 32), 3), ((128, 32, 32), 2))
    ),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
ONE, TURNS = FORMS[1], FORMS[-2]


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


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (7, 13, 31), (129, 65, 33), (193, 257, 40), (64, 8, 100)], ids=str
)
def test_ragged_shapes(shape):
    for seed in range(2):
        check(last(ONE), ONE, *shape, seed=seed, resident=3)


@pytest.mark.parametrize(
    "epilogue", ["bias tanh", "residual", "columns", "scale bias residual second"]
)
def test_epilogues_follow_the_whole_sum(epilogue):
    block = (64, 64, 32)
    modules, given = compiled_fused(block, epilogue, (("split_k", 3),))
    assert given.plan.split_k == 3
    for seed in range(2):
        check_fused(
            modules[LAST], block, epilogue, 2 * 64 - 5, 64 + 9, 5 * 32 - 7, seed=seed, resident=4
        )


def test_the_same_bits_whoever_is_last():
    """Sums that depend on their order: every schedule gives the same ones."""
    results, generator = set(), np.random.default_rng(0)
    a, b = (integers(*shape, dtype=tkc.bfloat16, seed=0) for shape in ((64, 200), (200, 64)))
    for x in a, b:
        x[...] = generator.standard_normal(x.shape).astype(x.dtype)
    for seed in range(8):
        out, rest = (
            integers(64, 64, dtype=tkc.float32, seed=1),
            [
                integers(64, dtype=tkc.bfloat16, seed=2),
                integers(64, 64, dtype=tkc.bfloat16, seed=3),
            ],
        )
        level4.run(
            last(Form((64, 64, 32), out=tkc.float32, options=(("split_k", 3), ("num_stages", 2)))),
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
    form = Form((64, 32, 64), options=(("split_k", parts), ("num_stages", 3)))
    kernel = compiled(form)[0]["schedule-programs"].body.block.first_op
    final = next(op for op in kernel.walk() if isinstance(op, scf.IfOp) and count(op, tile.Load))
    at_once = int(parts_at_once(parts, 64 * 32 // 128))
    loops = [op for op in final.walk() if isinstance(op, scf.ForOp)]
    assert len(loops) == (parts - 1 > at_once) and -(-(parts - 1) // at_once) == waits
    ops = list((loops[0].body if loops else final.true_region).block.ops)
    kinds = [op.name for op in ops if op.results and isinstance(op.results[0].type, TileType)]
    loads = at_once if loops else parts
    assert kinds[: loads + at_once] == ["tile.load"] * loads + ["tile.add"] * at_once


@EVERY
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


@assembler
@pytest.mark.parametrize(
    "block, options",
    [
        *(((64, 64, 64), (("split_k", n),)) for n in (2, 8)),
        *((block, (("split_k", 2),)) for block in ((64, 128, 64), (128, 128, 64), (128, 192, 64))),
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
    large = compiled(Form((128, 256, 64), options=(("split_k", 2),)))[1]
    assert large.plan.split_k == 1 and any(
        "split_k = 2 is not used: an accumulator of 128 registers" in line
        for line in large.decisions
    )


@pytest.mark.parametrize("form", [ONE, TURNS], ids=["cooperative", "ping-pong"])
def test_mutants_of_what_the_parts_wait_for_are_found(form):
    number, missed = survivors(
        last(form),
        *(
            lambda m, seed=seed: check(m, form, 130, 64, 7 * 32, seed=seed, resident=1 + seed)
            for seed in range(4)
        ),
        among=re.compile("barrier|atomic|store").search,
        # a warpgroup's dots are the work of all its warps, and the leader has waited for them
        known={
            "leader alone: mbarrier_arrive empty in consumer",
            "leader alone: mbarrier_arrive empty in consumer, 2",
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
