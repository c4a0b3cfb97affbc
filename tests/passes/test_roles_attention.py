"""Attention through Hopper's engines: two dots a step, the second one step late; right at every
level, free of races, and clean in the assembler.
"""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import attention, f32, traced
from tests.passes import stages
from tests.passes.kernels import context
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
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import threads, tile
from tkc.ir.types import ArrayFacts, Fact, PendingType
from tkc.language.signature import ArrayArgument
from tkc.passes import plan as planning
from tkc.passes.warpgroups.roles import MIN_LOOKAHEAD_REGISTERS

NUMPY, HALF_ULP = (
    {tkc.bfloat16: ml_dtypes.bfloat16, tkc.float16: np.float16},
    {
        tkc.bfloat16: 2.0**-8,
        tkc.float16: 2.0**-11,
    },
)


@dataclass(frozen=True)
class Form:
    """A specialization of attention."""

    d: int = 64
    causal: bool = False
    block: tuple[int, int] = (128, 128)
    dtype: object = tkc.bfloat16
    options: tuple = ()

    @property
    def name(self) -> str:
        return " ".join(
            [
                f"d {self.d}",
                "x".join(map(str, self.block)),
                str(self.dtype),
                *["causal"] * self.causal,
                *(f"{k} {v}" for k, v in self.options),
            ]
        )


FORMS = [Form(d, causal) for d in (64, 128) for causal in (False, True)] + [
    Form(dtype=tkc.float16, causal=True),
    Form(block=(64, 64)),
    Form(block=(128, 64), causal=True),
    Form(128, block=(64, 128)),
    Form(options=(("num_stages", 3),)),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)


@cache
def compiled(form: Form):
    array = ArrayArgument(
        form.dtype, ArrayFacts((Fact(),) * 3 + (Fact(16),), (Fact(8),) * 3 + (Fact(exact=1),), 16)
    )
    module = traced(
        attention,
        *(array,) * 4,
        f32(),
        CAUSAL=form.causal,
        D=form.d,
        BM=form.block[0],
        BN=form.block[1],
    )
    return stages.compiled(module, **dict(form.options))


def last(form: Form):
    return compiled(form)[0][LAST]


def check(module, form: Form, queries: int, keys: int, heads: int = 1, run=run, **how) -> None:
    rng, dtype = np.random.default_rng(queries + keys), NUMPY[form.dtype]
    q, k, v = (
        rng.standard_normal((1, heads, max(n, 1), form.d)).astype(dtype)[:, :, :n]
        for n in (queries, keys, keys)
    )
    o, scale = np.full_like(q, np.nan), form.d**-0.5
    run(module, [q, k, v, o, scale], (-(-queries // form.block[0]), heads, 1), **how)
    q, k, v = (np.float64(x) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * scale
    if form.causal:
        scores = np.where(
            np.arange(queries)[:, None] + keys - queries >= np.arange(keys), scores, -np.inf
        )
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    # probabilities and output are rounded: half an ulp of each, against the sum of |p v|
    assert (
        np.abs(np.float64(o) - weights @ v)
        <= HALF_ULP[form.dtype] * (weights @ np.abs(v) + np.abs(weights @ v)) + 1e-7
    ).all()


# --------------------------------------------------------------------------------------------------
@EVERY
def test_every_level(form):
    for module in without_threads(compiled(form)[0]):
        check(module, form, form.block[0] + 3, 2 * form.block[1] + 5)
    check(last(form), form, form.block[0] + 3, 2 * form.block[1] + 5, seed=1)


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda f: f.name)
def test_what_the_text_computes(form):
    check(last(form), form, 131, 261, run=machine.run)


SMALL = [Form(block=(64, 64)), Form(block=(64, 64), causal=True)]
BOTH = pytest.mark.parametrize("form", SMALL, ids=["full", "causal"])


@BOTH
def test_what_the_text_computes_in_another_order(form):
    check(last(form), form, 70, 133, run=machine.run, seed=1)


@BOTH
@pytest.mark.parametrize("keys", [1, 64, 65, 128, 192, 320])
def test_trip_counts(form, keys):
    for seed in range(2):
        check(last(form), form, 64, keys, 2, seed=seed)


@BOTH
@pytest.mark.parametrize("queries,keys", [(1, 1), (7, 200), (130, 130), (65, 33), (200, 70)])
@pytest.mark.parametrize("resident", [1, 3])
def test_ragged_shapes(form, queries, keys, resident):
    """Also rows that see no key at all (causal, more queries than keys)."""
    check(last(form), form, queries, keys, 3, seed=queries, resident=resident)


def test_no_keys_at_all():
    check(last(SMALL[0]), SMALL[0], 5, 0, 2)


# --------------------------------------------------------------------------------------------------
@EVERY
def test_the_roles(form):
    plan = compiled(form)[1].plan
    assert plan.roles == "cooperative" and plan.persistent
    producer, consumer = (role(last(form), name) for name in ("producer", "consumer"))
    assert not count(producer, (tile.Dot, threads.DotAsync, threads.TmaStore)) and not any(
        isinstance(v.type, tile.TileType) for op in producer.walk() for v in op.results
    )
    assert not count(consumer, (tile.Dot, tile.Load, threads.TmaLoad, threads.MbarrierExpect))
    assert count(producer, threads.TmaLoad) == count(producer, threads.MbarrierExpect) >= 3


@pytest.mark.parametrize("form", SMALL + FORMS[3:4], ids=lambda f: f.name)
def test_every_text_parses_back(form):
    for module in distinct(compiled(form)[0]):
        parses_back(module)


@assembler
@EVERY
def test_it_assembles_clean(form):
    assembles_clean(last(form))


# --------------------------------------------------------------------------------------------------
SHAPES = (
    (64, 64, 4),
    (192, 128, 2),
    (64, 192, 3),
    (192, 100, 3),
    (64, 170, 4),
    (64, 0, 3),
    # queries, keys, heads: programs of no, one, two and three steps; every ring comes round; ragged
    # ends too
)
RELEASED = {
    f"leader alone: mbarrier_arrive {ring} in consumer{nth}"
    for ring in ("empty", "empty 2", "empty 3")
    for nth in ("", ", 2", ", 3")
    # the dots that read a stage are the work of the whole warpgroup, and the leader has waited for
    # them
}
# A slot of the claims is read before the stage of Q of the same program is given back, and Q has as
# many stages: once the Q after next may be loaded, the slot may be written, too.
# (tests/passes/test_dynamic_tile_scheduler.py has a kernel without such a ring.) What is broadcast,
# is so before the copy of the program's last V is issued, for which the consumers wait before they
# read the slot.
IMPLIED = {
    *(
        f"{change}: mbarrier_wait empty 4 in producer{nth}"
        for change in ("drop", "later")
        for nth in ("", ", 2")
    ),
    "earlier: mbarrier_arrive empty 4 in consumer",
    "leader alone: mbarrier_arrive empty 4 in consumer",
    "earlier: mbarrier_arrive full 4 in producer",
}
# Fused, the next program's Q is asked for behind what is posted, and waited for before it is read;
# also where a program sees nothing. Its K comes then into the stage of a program's K that was given
# back before the stage of Q was, for which the producer has waited. The last V's stage is filled
# again behind one of K that the next program's first dot reads, which ends behind the last dot.
STREAM = {
    "drop: mbarrier_wait full 4 in consumer",
    "later: mbarrier_wait full 4 in consumer",
    "earlier: mbarrier_arrive full 4 in producer, 2",
    "drop: mbarrier_wait empty 2 in producer, 3",
    "earlier: mbarrier_arrive empty 3 in consumer, 3",
}


@pytest.mark.parametrize(
    "options, known",
    [
        ((), RELEASED | IMPLIED),
        ((("cross_tile_prologue", True),), RELEASED | IMPLIED | STREAM),
    ],
    ids=["", "fused"],
)
def test_every_mutant_is_found(options, known):
    form = Form(block=(64, 64), options=(("num_stages", 2), *options))
    number, missed = survivors(
        last(form),
        *(
            lambda m, shape=shape, seed=seed: check(m, form, *shape, seed=seed)
            for seed in range(4)
            for shape in SHAPES
        ),
        known=known.__contains__,
    )
    assert number > 100 and not missed, missed


# --------------------------------------------------------------------------------------------------
MANY = [
    Form(block=(192, 64)),
    Form(32, True, (192, 64)),
    Form(32, block=(256, 32), options=(("num_warps", 16),)),
]


@pytest.mark.parametrize("form", MANY, ids=lambda f: f.name)
def test_three_and_four_warpgroups(form):
    """Rows shared out among them, turns from one to the next, all registers that the block begins
    with but fewer than each could have more; right, and free of races.
    """
    groups = form.block[0] // 64
    module, given = last(form), compiled(form)[1]
    producer, consumer = (role(module, name) for name in ("producer", "consumer"))
    # start, begin, and the end of each way
    assert given.plan.warps == consumer.warps.value.data == 4 * groups and count(
        consumer, threads.Turn
    ) == (4 if given.plan.registers[1] >= MIN_LOOKAHEAD_REGISTERS else 3)
    left = (
        (groups + 1) * given.target.at_entry(128 * (groups + 1))
        - groups * consumer.registers.value.data
        - producer.registers.value.data
    )
    assert 0 <= left < 8 * groups
    check(module, form, form.block[0] + 67, 3 * form.block[1] + 5, seed=1)
    check(module, form, 1, 1, seed=2)
    # with the hardware barriers of the turns
    check(module, form, form.block[0] + 5, 3 * form.block[1] + 1, run=machine.run)
    text = emit(module, given.target).text
    assert "bar.arrive 1, 256" in text and f".reqntid {128 * (groups + 1)}" in text
    if ptxas.find("ptxas"):
        assembles_clean(module)


# --------------------------------------------------------------------------------------------------
FUSED = [
    Form(
        causal=c, block=(64, 64), options=(("roles", "cooperative"), ("cross_tile_prologue", True))
    )
    for c in (False, True)
] + [
    Form(128, True, options=(("cross_tile_prologue", True),)),
    Form(32, block=(192, 64), options=(("cross_tile_prologue", True),)),
]


@pytest.mark.parametrize("form", FUSED, ids=lambda f: f.name)
def test_fused_boundaries(form):
    """The first dot of the next program is on its way while results leave; of the last one, that of
    a program outside the arrays. Also where there is nothing to see, or one step alone.
    """
    module, given = last(form), compiled(form)[1]
    producer, consumer = (role(module, name) for name in ("producer", "consumer"))
    (loop,) = (op for op in consumer.body.block.ops if isinstance(op, scf.WhileOp))
    body = list(loop.after_region.block.ops)
    branch = next(op for op in body if isinstance(op, scf.IfOp) and count(op, threads.DotAsync))
    waited, sent = (
        next(i for i, op in enumerate(body) if isinstance(op, kind))
        for kind in (threads.DotWait, threads.TmaStore)
    )
    assert (
        given.plan.cross_tile_prologue
        and waited < body.index(branch) < sent
        and isinstance(loop.prev_op, threads.DotCommit)
        and isinstance(branch.results[-1].type, PendingType)
        and not any(isinstance(op, threads.DotAsync) for op in body)
    )
    last_dots = [
        [op for op in region.block.ops if isinstance(op, (threads.DotAsync, threads.DotWait))]
        for region in branch.regions
    ]
    assert (
        [type(op) for op in last_dots[0][-3:]]
        == [threads.DotAsync, threads.DotAsync, threads.DotWait]
        and last_dots[0][-1].pending.value.data == 1
        and [type(op) for op in last_dots[1]] == [threads.DotAsync]
    )
    (stream,) = (op for op in producer.body.block.ops if isinstance(op, scf.WhileOp))
    before_loop, at_top = (
        [isinstance(op, threads.TmaLoad) for op in ops].count(True)
        for ops in (producer.body.block.ops, stream.after_region.block.ops)
    )
    assert before_loop == 2 and not at_top
    for region in next(
        op for op in stream.after_region.block.ops if isinstance(op, scf.IfOp)
    ).regions:
        kinds = [
            type(op)
            for op in region.block.ops
            if isinstance(op, (threads.NextProgram, threads.BroadcastStore, threads.TmaLoad))
        ]
        assert kinds[0] is threads.NextProgram and kinds[
            -3 if region.block.parent_op().true_region is region else -2 :
        ] == [threads.TmaLoad] * (3 if region.block.parent_op().true_region is region else 2)
    bm, bn = form.block
    for seed, (queries, keys) in enumerate(
        [(2 * bm + 3, 3 * bn + 5), (1, 1), (bm, bn), (3 * bm, bn + 1), (5, 0), (4 * bm, 2 * bn)]
    ):
        if bm * form.d <= 64 * 64 or seed < 2:
            check(module, form, queries, keys, 2, seed=seed, resident=1 + seed % 2)
    check(module, form, bm + 3, bn + 5, run=machine.run)
    assembled = (
        ptxas.assemble(emit(module, given.target).text, "sm_90a") if ptxas.find("ptxas") else None
    )
    assert assembled is None or assembled.clean, assembled.log


def test_boundaries_that_cannot_be_fused():
    """One stage of Q holds no second program's: it would be waited for by those who must give it
    back.
    """
    array = ArrayArgument(
        tkc.bfloat16, ArrayFacts((Fact(),) * 3 + (Fact(16),), (Fact(8),) * 3 + (Fact(exact=1),), 16)
    )
    plan = planning.plan(
        traced(attention, *(array,) * 4, f32(), CAUSAL=False, D=256, BM=128, BN=64),
        context("sm_90a", cross_tile_prologue=True),
    )
    assert (
        plan.rings[0] == 1
        and not plan.cross_tile_prologue
        and any("cross_tile_prologue = True is not used" in line for line in plan.decisions)
    )


def test_rows_that_do_not_divide_take_one_role():
    given = compiled(Form(block=(128, 64), options=(("num_warps", 16), ("num_stages", 2))))[1]
    assert given.plan.roles == "one" and any(
        "128 rows do not divide among 4 warpgroups" in line for line in given.decisions
    )


# --------------------------------------------------------------------------------------------------
def weights(q, k, o, scale, D: tkc.constexpr):
    m = tkc.program_id(0) * 128
    rows, total = tkc.load(q, (m, 0), (128, D)), tkc.zeros((128,))
    for n in tkc.range(0, k.shape[0], 128):
        total = total + tkc.sum(
            tkc.exp2(tkc.dot(rows, tkc.load(k, (n, 0), (128, D)).T) * scale), axis=1
        )
    tkc.store(o, (m,), total)


def test_one_dot_whose_left_operand_is_loaded_before_the_loop():
    """The blocks of a cluster share the copies of the loop, not those before it."""

    def array(dtype, rank):
        return ArrayArgument(
            dtype,
            ArrayFacts(
                (Fact(),) * (rank - 1) + (Fact(16),), (Fact(8),) * (rank - 1) + (Fact(exact=1),), 16
            ),
        )

    module = traced(
        weights, array(tkc.bfloat16, 2), array(tkc.bfloat16, 2), array(tkc.float32, 1), f32(), D=64
    )
    modules, given = stages.compiled(module)
    assert given.plan.roles == "cooperative" and given.plan.cluster == (2, 1)
    rng = np.random.default_rng(0)
    q, k, o = (
        rng.standard_normal((160, 64)).astype(ml_dtypes.bfloat16),
        rng.standard_normal((256, 64)).astype(ml_dtypes.bfloat16),
        np.full(160, np.nan, np.float32),
    )
    for seed in range(2):
        run(modules[LAST], [q, k, o, 0.1], (2, 1, 1), seed=seed)
        assert np.allclose(o, np.exp2(np.float64(q) @ np.float64(k).T * 0.1).sum(1), rtol=1e-4)
