"""Serpentine: every second program of a block walks k backwards, every second raster its columns;
and what the L2 cache is told of copies. Right, free of races, in any mix with clusters and
ping-pong.
"""

import pytest

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import context, product, through
from tests.passes.stages import LAST, assembler, assembles_clean, role, without_threads
from tests.passes.test_roles import Form, array, check, compiled, integers, last
from tests.sim.test_validate import validated
from tkc.codegen.ptx.emit import emit
from tkc.codegen.ptx.tma import POLICIES
from tkc.ir import threads
from tkc.ir.target import target
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

BOTH = ("serpentine", True), ("retain", True)
FORMS = [
    Form((64, 64, 32), options=(*BOTH, ("raster", 2))),
    Form(
        (64, 64, 32),
        "tt",
        options=(*BOTH, ("raster", 2), ("num_stages", 3), ("roles", "cooperative")),
    ),
    Form((128, 128, 64), options=(*BOTH, ("raster", 2), ("cluster", (2, 1)))),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)


@EVERY
def test_every_level(form):
    BM, BN, BK = form.block
    given = compiled(form)[1]
    assert given.plan.serpentine and [x.eviction for x in given.plan.loads] == [
        "evict_last",
        "evict_first",
    ]
    for module in without_threads(compiled(form)[0]):
        check(module, form, 3 * BM + 5, 2 * BN - 7, 3 * BK - 7)
    for seed in range(2):
        check(last(form), form, 3 * BM + 5, 2 * BN + 9, 3 * BK - 7, seed=seed, resident=1 + seed)


@pytest.mark.parametrize("programs", [(3, 5), (2, 1), (5, 2), (4, 4), (1, 3)], ids=str)
def test_every_program_runs_once(programs):
    m, n = (64 * p - 3 for p in programs)
    check(last(FORMS[0]), FORMS[0], m, n, 40, seed=0, resident=2)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 7])
def test_trip_counts(steps):
    for form in FORMS[:2]:
        check(last(form), form, 260, 70, steps * 32, seed=steps, resident=2)


def test_sums_of_every_second_program_begin_at_their_end():
    """1, and numbers of which a step's are too few to change it, but all together are enough: the
    sum stays 1 where it begins with 1.
    """
    form, k = Form((64, 64, 32), out=tkc.float32, options=(("serpentine", True),)), 128
    a, b = (integers(*shape, dtype=tkc.bfloat16, seed=0) for shape in ((256, k), (k, 64)))
    a[...], b[...] = 2.0**-30, 1
    a[:, 0] = 1
    out, rest = (
        integers(256, 64, dtype=tkc.float32, seed=1),
        [
            integers(64, dtype=tkc.bfloat16, seed=2),
            integers(256, 64, dtype=tkc.bfloat16, seed=3),
        ],
    )
    level4.run(last(form), [a, b, rest[0], out, rest[1]], (4, 1, 1), seed=0, resident=1)
    assert [float(out[64 * i, 0]) for i in range(4)] == [1, 1 + 2.0**-23] * 2


@assembler
@EVERY
def test_it_assembles_clean(form):
    assembles_clean(last(form))


def test_the_cache_is_told():
    """Rows, which the raster reads again, stay; columns go first. Without a raster no hint."""
    text = emit(last(FORMS[0]), target("sm_90a")).text
    assert text.count(".L2::cache_hint") == 2 and all(
        str(policy) in text for policy in POLICIES.values()
    )
    hints = [
        op.hint.data
        for op in role(last(FORMS[0]).body.block.first_op, "producer").walk()
        if isinstance(op, threads.TmaLoad)
    ]
    assert hints == ["evict_last", "evict_first"]
    plain = compiled(Form((64, 64, 32), options=(("retain", True), ("raster", 1))))[1]
    assert any("retain = True is not used" in line for line in plain.decisions)


def test_every_pass_is_validated(tmp_path):
    v = validated(product(192, 64, 256, 64, 64, 32, serpentine=True), "sm_90a", tmp_path)
    assert len(v.passes) == len(PIPELINE) + 1 and {"ieee", "ring"} <= set(v.arithmetics), str(v)


def test_loops_that_are_not_one_sum_are_walked_forward():
    def scaled(a, b, c):
        acc, scale = tkc.zeros((64, 64), tkc.float32), 1.0
        for k in tkc.range(0, a.shape[1], 32):
            acc = tkc.dot(
                tkc.load(a, (tkc.program_id(0) * 64, k), (64, 32)),
                tkc.load(b, (k, 0), (32, 64)),
                acc,
            )
            scale = scale * 0.5
        tkc.store(c, (tkc.program_id(0) * 64, 0), (acc * scale).to(c.dtype))

    given = through(
        traced(scaled, *(array(tkc.bfloat16) for _ in "abc")),
        LAST,
        context("sm_90a", serpentine=True),
    )
    assert not given.plan.serpentine and any(
        "serpentine = True is not used" in line for line in given.decisions
    )
