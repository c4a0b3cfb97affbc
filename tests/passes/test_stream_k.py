"""Stream-K: the last wave's programs are shared by all blocks, in parts that whoever comes last
adds up in their order. Right, free of races, the same bits whoever is last.
"""

import re

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.passes.kernels import product
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
from tests.passes.test_roles import Form, check, compiled, integers, last
from tests.sim.test_validate import validated
from tkc.codegen.ptx.emit import emit
from tkc.ir import tile
from tkc.ir.target import target
from tkc.passes.pipeline import PIPELINE
from tkc.passes.programs.stream_k import MAX_BLOCKS
from tkc.runtime.launch import workspaces
from tkc.sim import level4

STAGES = ("num_stages", 3)
FORMS = [
    Form((64, 64, 32), options=(("stream_k", 4), STAGES)),
    Form((128, 64, 32), "tt", options=(("stream_k", 3), STAGES)),
    Form((256, 32, 32), options=(("stream_k", 2), STAGES)),
    Form(
        (64, 64, 32),
        epilogue="second bias relu",
        options=(("stream_k", 4), STAGES, ("roles", "pingpong")),
    ),
    Form((64, 64, 32), options=(("stream_k", 3), STAGES, ("serpentine", True), ("raster", 2))),
    *(
        Form((64, 64, 32), options=(("stream_k", 3), STAGES, ("cluster", shape), *more))
        for shape, more in (
            ((2, 1), ()),
            ((1, 2), (("serpentine", True), ("raster", 2))),
            ((2, 2), (("roles", "pingpong"),)),
        )
    ),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
ONE, TURNS, PAIRS, SQUARES = FORMS[0], FORMS[3], FORMS[5], FORMS[7]


@EVERY
def test_every_level(form):
    BM, BN, BK = form.block
    for module in without_threads(compiled(form)[0]):
        check(module, form, BM + 5, BN - 7, 5 * BK - 7)
    for seed, blocks in enumerate((3, 5)):
        check(last(form), form, 3 * BM + 5, BN + 9, 9 * BK - 7, seed=seed, resident=blocks)


@pytest.mark.parametrize(
    "form",
    [ONE, TURNS, PAIRS, SQUARES],
    ids=["cooperative", "ping-pong", "clusters", "ping-pong in clusters"],
)
@pytest.mark.parametrize("steps, blocks", [(0, 3), (1, 3), (3, 3), (4, 3), (7, 4), (13, 7)])
def test_steps_and_blocks(form, steps, blocks):
    """Fewer steps than parts, shares that are whole programs, shares that no program's steps
    divide; one program and many blocks.
    """
    check(last(form), form, 130, 70, steps * 32, seed=steps, resident=blocks)
    check(last(form), form, 64, 64, steps * 32, seed=steps, resident=blocks)


@pytest.mark.parametrize("form", [PAIRS, SQUARES], ids=["2 x 1", "2 x 2"])
@pytest.mark.parametrize("rows, columns, clusters", [(5, 1, 2), (3, 3, 3), (6, 3, 4), (4, 5, 5)])
def test_grids_that_end_inside_a_cluster(form, rows, columns, clusters):
    """A padding tile counts and stores its parts as its neighbours do, and stores nothing."""
    check(
        last(form), form, rows * 64 - 5, columns * 64 - 9, 9 * 32 - 7, seed=rows, resident=clusters
    )


def test_clusters_share_programs():
    """Two programs of a cluster come in parts where two clusters have them: with a whole sum, the
    results of random operands would be those of one cluster.
    """
    results, generator = {}, np.random.default_rng(0)
    a, b = (integers(*shape, dtype=tkc.bfloat16, seed=0) for shape in ((128, 600), (600, 64)))
    for x in a, b:
        x[...] = generator.standard_normal(x.shape).astype(x.dtype)
    for clusters in (1, 3):
        for seed in range(3):
            out, rest = (
                integers(128, 64, dtype=tkc.float32, seed=1),
                [
                    integers(64, dtype=tkc.bfloat16, seed=2),
                    integers(128, 64, dtype=tkc.bfloat16, seed=3),
                ],
            )
            level4.run(
                last(
                    Form(
                        (64, 64, 32),
                        out=tkc.float32,
                        options=(("stream_k", 4), ("num_stages", 2), ("cluster", (2, 1))),
                    )
                ),
                [a, b, rest[0], out, rest[1]],
                (2, 1, 1),
                seed=seed,
                resident=clusters,
            )
            results.setdefault(clusters, set()).add(out.tobytes())
            assert np.abs(out - np.float64(a) @ np.float64(b)).max() < 1e-3
    assert [len(found) for found in results.values()] == [1, 1] and results[1] != results[3]


@pytest.mark.parametrize("epilogue", ["scale bias residual second"])
def test_epilogues_follow_the_whole_sum(epilogue):
    stages, given = compiled_fused((64, 64, 32), epilogue, (("stream_k", 4),))
    assert given.plan.stream_k == 4
    for seed in range(2):
        check_fused(
            stages[LAST],
            (64, 64, 32),
            epilogue,
            2 * 64 - 5,
            64 + 9,
            9 * 32 - 7,
            seed=seed,
            resident=3,
        )


def test_the_same_bits_whoever_is_last():
    """Sums that depend on their order: every schedule gives the same ones, and more than one block
    makes them.
    """
    results, generator = set(), np.random.default_rng(0)
    a, b = (integers(*shape, dtype=tkc.bfloat16, seed=0) for shape in ((64, 600), (600, 64)))
    for x in a, b:
        x[...] = generator.standard_normal(x.shape).astype(x.dtype)
    for blocks, seeds in ((5, range(6)), (1, range(1))):
        for seed in seeds:
            out, rest = (
                integers(64, 64, dtype=tkc.float32, seed=1),
                [
                    integers(64, dtype=tkc.bfloat16, seed=2),
                    integers(64, 64, dtype=tkc.bfloat16, seed=3),
                ],
            )
            level4.run(
                last(
                    Form(
                        (64, 64, 32), out=tkc.float32, options=(("stream_k", 4), ("num_stages", 2))
                    )
                ),
                [a, b, rest[0], out, rest[1]],
                (1, 1, 1),
                seed=seed,
                resident=blocks,
            )
            results.add(out.tobytes())
        # one block has the whole program, and another order
        assert len(results) == 1 if blocks == 5 else 2


@pytest.mark.parametrize("form", [ONE, TURNS, PAIRS], ids=["cooperative", "ping-pong", "clusters"])
def test_what_the_text_computes(form):
    check(last(form), form, 133, 73, 9 * 32 - 7, run=machine.run, resident=2)


@EVERY
def test_the_workspace(form):
    """Two parts for each block that may take part, and a counter, whatever the grid."""
    interface, kernel, (BM, BN, _) = (
        emit(last(form), target("sm_90a")).interface,
        last(form).body.block.first_op,
        form.block,
    )
    assert interface.split == dict(form.options)["stream_k"] and sorted(
        (p.bytes, p.each) for p in interface.parameters if p.kind == "workspace"
    ) == [(4 * MAX_BLOCKS, 0), (8 * BM * BN * MAX_BLOCKS, 0)]
    assert workspaces(interface, 1000)[1] == 768 + 8 * BM * BN * MAX_BLOCKS
    assert [
        op.kind.data for op in role(kernel, "consumer").walk() if isinstance(op, tile.Atomic)
    ] == ["add", "exchange"] and not count(role(kernel, "producer"), (tile.Atomic, tile.Store))


@assembler
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize(
    "block, roles",
    [
        ((128, 256, 64), None),
        ((256, 128, 64), None),
        ((256, 192, 64), None),
        ((128, 128, 64), "pingpong"),
    ],
    ids=str,
)
def test_it_assembles_clean(block, roles, cluster):
    form = Form(
        block,
        options=(("stream_k", 4), ("cluster", cluster), *([("roles", roles)] if roles else [])),
    )
    assert (compiled(form)[1].plan.stream_k, compiled(form)[1].plan.cluster) == (4, cluster)
    assembles_clean(last(form))


def test_every_pass_is_validated(tmp_path):
    v = validated(product(64, 64, 256, 64, 64, 32, stream_k=3), "sm_90a", tmp_path)
    assert len(v.passes) == len(PIPELINE) + 1 and {"ieee", "ring"} <= set(v.arithmetics), str(v)


def test_what_cannot_be_shared_is_refused():
    """With the reason among the decisions; the plan stands with whole programs."""
    for options, words in (
        ((("stream_k", 1),), "a program has two parts or more"),
        ((("stream_k", 4), ("split_k", 2)), "programs have parts already"),
        ((("stream_k", 4), ("roles", "one")), "this plan's programs are whole"),
    ):
        given = compiled(Form((64, 64, 32), options=options))[1]
        assert given.plan.stream_k == 0 and any(
            f"stream_k = {options[0][1]} is not used: {words}" in line for line in given.decisions
        ), given.decisions
    large = compiled(Form((256, 208, 64), options=(("stream_k", 4),)))[1]
    assert large.plan.stream_k == 0 and any(
        "an accumulator of 208 registers a thread leaves no room for 8 of another" in line
        for line in large.decisions
    )


@pytest.mark.parametrize("form, blocks", [(TURNS, 2), (PAIRS, 3)], ids=["blocks", "clusters"])
def test_mutants_of_what_the_parts_wait_for_are_found(form, blocks):
    number, missed = survivors(
        last(form),
        *(
            lambda m, seed=seed: check(m, form, 386, 64, 9 * 32, seed=seed, resident=blocks)
            for seed in range(4)
        ),
        lambda m: check(m, form, 130, 64, 9 * 32, seed=1, resident=4),
        among=re.compile("block_barrier|atomic|store").search,
        # A part is put aside at a place of its own, not where the turn before has read one.
        known={"drop: block_barrier in consumer"}.__contains__,
    )
    assert number >= 6 and not missed, missed
