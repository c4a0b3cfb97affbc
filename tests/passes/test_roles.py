"""Products through Hopper's engines: what the passes make of them means the same at every level, is
free of races, and assembles.

All numbers are small integers, so that sums are exact in float32 and every result has one right
value.
"""

from dataclasses import dataclass, replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.kernels import context, through
from tests.passes.stages import (
    LAST,
    RAGGED,
    STEPS,
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
from tkc.ir import shared, threads, tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

NUMPY = {tkc.bfloat16: ml_dtypes.bfloat16, tkc.float16: np.float16, tkc.float32: np.float32}


def product(
    a,
    b,
    bias,
    c,
    d,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    MAJORS: tkc.constexpr,
    EPILOGUE: tkc.constexpr,
):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1 - "nt".index(MAJORS[0])], BK):
        x = tkc.load(a, (k, m), (BK, BM)).T if MAJORS[0] == "t" else tkc.load(a, (m, k), (BM, BK))
        y = tkc.load(b, (n, k), (BN, BK)).T if MAJORS[1] == "t" else tkc.load(b, (k, n), (BK, BN))
        acc = tkc.dot(x, y, acc)
    if "second" in EPILOGUE:
        tkc.store(d, (m, n), acc.to(d.dtype))
    if "bias" in EPILOGUE:
        acc = acc + tkc.load(bias, (n,), (BN,)).to(tkc.float32)[None, :]
    if "relu" in EPILOGUE:
        acc = tkc.maximum(acc, 0)
    tkc.store(c, (m, n), acc.to(c.dtype))


@dataclass(frozen=True)
class Form:
    """How a product is written, and what the compiler is told."""

    block: tuple[int, int, int] = (128, 128, 64)
    majors: str = "nn"
    dtype: object = tkc.bfloat16
    out: object = None
    epilogue: str = ""
    options: tuple = ()

    @property
    def name(self) -> str:
        return " ".join(
            [
                "x".join(map(str, self.block)),
                self.majors,
                str(self.dtype),
                *([f"to {self.out}"] if self.out else []),
                *self.epilogue.split(),
                *(f"{k} {v}" for k, v in self.options),
            ]
        )


ALONE = (("cluster", (1, 1)),)
TOGETHER = (("roles", "cooperative"),)
IN_TURN = (("roles", "pingpong"),)
BLOCKS = [(128, 256, 64), (128, 128, 64), (64, 128, 64), (256, 128, 64), (128, 192, 64)]
FORMS = (
    [Form(block) for block in BLOCKS]
    + [Form(block, options=ALONE) for block in BLOCKS]
    + [
        Form(majors="nt"),
        Form(majors="tn"),
        Form(majors="tt"),
        Form(majors="tt", dtype=tkc.float16, options=ALONE),
        Form((128, 256, 64), "nt"),
        Form((64, 128, 64), "tn"),
        Form(dtype=tkc.float16),
        Form(out=tkc.float32),
        Form(epilogue="bias relu"),
        Form(epilogue="second bias"),
        Form(epilogue="second", out=tkc.float32),
        Form((16, 128, 64)),
        Form((32, 64, 64), "nt", epilogue="bias relu"),
        Form((16, 64, 128), "tn", options=ALONE),
        Form((128, 64, 32)),
        Form((64, 64, 128), "nt"),
        Form((128, 128, 64), options=(("num_warps", 4),)),
        Form(options=(("num_stages", 2),)),
    ]
    + [Form(block, options=TOGETHER) for block in BLOCKS]
    + [
        Form(majors="tt", options=TOGETHER),
        Form(epilogue="second bias", options=TOGETHER),
        Form((64, 96, 64)),
        Form((128, 192, 64), epilogue="bias relu"),
        Form((128, 176, 64), epilogue="bias relu"),
        Form((64, 24, 64), "nt"),
        Form((152, 64, 64), "nt"),
        Form((48, 128, 64), epilogue="bias relu", options=TOGETHER),
        Form((112, 256, 64), options=TOGETHER),
        Form((80, 128, 32), "nt", epilogue="second bias"),
    ]
)
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)


def array(dtype, rank: int = 2) -> ArrayArgument:
    """Extents of any size; rows begin at multiples of 16 bytes."""
    return ArrayArgument(
        dtype, ArrayFacts((Fact(),) * rank, (Fact(8),) * (rank - 1) + (Fact(exact=1),), 16)
    )


def result(dtype) -> ArrayArgument:
    """Rows end at multiples of 16 bytes too: a store by a tensor map ends there."""
    given = array(dtype)
    return replace(given, facts=replace(given.facts, shape=(Fact(), Fact(8))))


@cache
def compiled(form: Form, whole: bool = True):
    """whole: rows of results end at multiples of 16 bytes."""
    (BM, BN, BK), out = form.block, form.out or form.dtype
    made = result if whole else array
    module = traced(
        product,
        *(array(form.dtype) for _ in "ab"),
        array(form.dtype, 1),
        made(out),
        made(form.dtype),
        BM=BM,
        BN=BN,
        BK=BK,
        MAJORS=form.majors,
        EPILOGUE=form.epilogue,
    )
    return stages.compiled(module, **dict(form.options))


def integers(*shape, dtype, seed) -> np.ndarray:
    """In rows of a multiple of 8 elements, of which only the front is shown: what lies beyond is
    NaN.
    """
    front = tuple(map(slice, shape))
    around = np.full(
        (*(max(n, 1) for n in shape[:-1]), -(-shape[-1] // 8) * 8 or 8), np.nan, NUMPY[dtype]
    )
    around[front] = np.random.default_rng(seed).integers(-3, 4, shape)
    return around[front]


def check(module, form: Form, m: int, n: int, k: int, run=run, whole: bool = True, **how) -> None:
    def turned(shape, major):
        return shape[::-1] if major == "t" else shape

    a, b = (
        integers(*turned(shape, major), dtype=form.dtype, seed=i)
        for i, (shape, major) in enumerate(zip(((m, k), (k, n)), form.majors, strict=False))
    )
    bias = integers(n, dtype=form.dtype, seed=2)
    # columns of results, of which the last ones are sums of nothing
    wide = -(-n // 8) * 8 if whole else n
    c, d = (integers(m, wide, dtype=t, seed=3) for t in (form.out or form.dtype, form.dtype))
    c[...] = d[...] = np.nan
    run(module, [a, b, bias, c, d], (-(-m // form.block[0]), -(-n // form.block[1]), 1), **how)
    sums = np.float64(a.T if form.majors[0] == "t" else a) @ np.float64(
        b.T if form.majors[1] == "t" else b
    )
    sums = np.pad(sums, ((0, 0), (0, wide - n)))
    if "second" in form.epilogue:
        np.testing.assert_array_equal(d, sums.astype(d.dtype))
    else:
        assert np.isnan(np.float32(d)).all()
    if "bias" in form.epilogue:
        sums = sums + np.pad(np.float64(bias), (0, wide - n))
    if "relu" in form.epilogue:
        sums = np.maximum(sums, 0)
    np.testing.assert_array_equal(c, sums.astype(c.dtype))


def last(form: Form):
    return compiled(form)[0][LAST]


# --------------------------------------------------------------------------------------------------
@assembler
@pytest.mark.parametrize(
    "form",
    [
        Form((64, 64, 32), "tt", options=(("num_stages", 3), ("serpentine", True))),
        Form((128, 128, 64), options=(("num_stages", 2), ("cluster", (2, 1)), *TOGETHER)),
        *(
            Form((64, 64, 32), options=((name, 2), ("roles", roles)))
            for name in ("split_k", "stream_k")
            for roles in ("cooperative", "pingpong")
        ),
    ],
    ids=lambda f: f.name,
)
def test_arrays_whose_offsets_need_64_bits(form):
    """More than 2³¹ elements: the copy engine's coordinates have 32 bits all the same."""
    BM, BN, BK = form.block
    given = [array(form.dtype, rank) for rank in (2, 2, 1)] + [result(form.dtype)] * 2
    wide = [replace(one, wide=True) for one in given]
    module = stages.compiled(
        traced(product, *wide, BM=BM, BN=BN, BK=BK, MAJORS=form.majors, EPILOGUE=""),
        **dict(form.options),
    )[0][LAST]
    assert any(
        str(op.operands[1].type) == "i64"
        for op in role(module.body.block.first_op, "producer").walk()
        if isinstance(op, threads.TmaLoad)
    )
    check(module, form, BM + 5, BN + 9, 3 * BK - 7, run=machine.run, resident=1)
    assembles_clean(module)


@EVERY
def test_every_level(form):
    stages.at_every_level(compiled(form)[0], form, check)


ONE = Form((64, 64, 32), options=(("num_stages", 3), *ALONE, *TOGETHER))
PAIR = Form((128, 128, 32), options=(("num_stages", 3), ("cluster", (2, 1)), *TOGETHER))
TURNS = Form((64, 64, 32), options=(("num_stages", 3), *ALONE))
TURNED_PAIR = Form((128, 128, 32), options=(("num_stages", 3), ("cluster", (2, 1))))
SMALL = {"alone": ONE, "cluster": PAIR, "ping-pong": TURNS, "ping-pong in a cluster": TURNED_PAIR}
EACH = pytest.mark.parametrize("form", SMALL.values(), ids=SMALL.keys())


@EACH
@STEPS
def test_trip_counts(form, steps):
    stages.in_steps(compiled(form), form, check, steps)


@EACH
@RAGGED
def test_ragged_shapes_and_odd_grids(form, shape):
    stages.ragged(last(form), form, check, shape)


@EACH
def test_results_whose_rows_end_anywhere(form):
    """They leave from registers: a store by a tensor map would write on to the next 16 bytes."""
    modules, _ = compiled(form, whole=False)
    consumer = role(modules[LAST], "consumer")
    assert not any(isinstance(op, threads.TmaStore) for op in consumer.walk())
    BM, BN, BK = form.block
    for module in without_threads(modules):
        check(module, form, BM + 5, BN - 7, 2 * BK - 7, whole=False)
    for seed, shape in enumerate(((BM + 5, BN + 9, 3 * BK - 7), (1, 1, 1), (7, 13, 31))):
        check(modules[LAST], form, *shape, whole=False, seed=seed)


SPELLED = [
    *SMALL.values(),
    Form((64, 64, 32), options=(("split_k", 3), ("num_stages", 2))),
    Form((128, 256, 64), "nt"),
    Form((128, 192, 64), epilogue="bias relu"),
    Form((16, 64, 128), "tn", options=ALONE),
    Form((128, 128, 64), "tt", tkc.float16, tkc.float32, options=TOGETHER),
    Form((64, 24, 64), "nt"),
]


@pytest.mark.parametrize("form", SPELLED, ids=lambda f: f.name)
def test_what_the_text_computes(form):
    stages.in_text(last(form), form, check)


def test_what_lies_beyond_an_extent_is_zero():
    """Extents of any number, rows that go on behind them with NaN."""
    for form in PAIR, TURNED_PAIR:
        for k in (1, 9, 33):
            check(last(form), form, 130, 70, k, seed=5)


# --------------------------------------------------------------------------------------------------
@EVERY
def test_the_roles(form):
    plan, kernel = compiled(form)[1].plan, last(form).body.block.first_op
    groups, shares = plan.warps // 4, any(load.multicast >= 0 for load in plan.loads)
    BM, BN, BK = form.block
    slower = any("sizes unknown: cooperative" in decision for decision in plan.decisions)
    fits = BM * BN // 128 <= 208
    alone = fits and dict(form.options).get("roles") is None and not slower
    assert (
        (plan.roles, plan.programs) == (("pingpong", 2) if alone else ("cooperative", 1))
        and plan.persistent
        and plan.stages >= 2
    )
    producer, consumer = role(kernel, "producer"), role(kernel, "consumer")
    assert (producer.warps.value.data, consumer.warps.value.data, consumer.instances) == (
        4,
        4 * groups,
        plan.programs,
    )
    # in ping-pong one's dots begin when the other's are issued
    assert count(consumer, threads.Barrier) == plan.programs - 1 and count(
        consumer, threads.BarrierArrive
    ) == 2 * (plan.programs - 1)
    # the producer copies and computes nothing, the consumers compute and copy nothing in
    assert count(producer, threads.TmaLoad) == 2 and not count(
        producer,
        (tile.Dot, threads.DotAsync, threads.TmaStore, shared.Read, shared.Write, threads.Fence),
    )
    assert count(consumer, threads.DotAsync) == 1 and not count(
        consumer,
        (
            tile.Dot,
            threads.TmaLoad,
            threads.CpAsync,
            threads.MbarrierExpect,
            tile.Load if "bias" not in form.epilogue else (),
        ),
    )
    assert not any(isinstance(v.type, tile.TileType) for op in producer.walk() for v in op.results)
    # one group of rings: full counts the announcement, empty a warp of every consumer that reads
    # the stage
    inits = [op for op in kernel.walk() if isinstance(op, threads.MbarrierInit)]
    assert [op.count.value.data for op in inits] == [1, plan.warps * (2 if shares else 1)] and {
        op.barriers.type.stages for op in inits
    } == {plan.stages}
    assert (
        count(producer, threads.MbarrierExpect) == 1
        and count(consumer, threads.MbarrierArrive) == 2
    )
    assert (
        next(
            op for op in producer.walk() if isinstance(op, threads.MbarrierExpect)
        ).bytes.value.data
        == (BM + BN) * BK * 2
    )
    assert {op.to is not None for op in producer.walk() if isinstance(op, threads.TmaLoad)} >= {
        shares
    } and shares == (plan.cluster == (2, 1))
    # the output: 16-bit tiles are stored by the copy engine, in subtiles of 64 rows a warpgroup and
    # as many columns as a swizzle is wide
    outs = (form.out is not tkc.float32) + ("second" in form.epilogue)
    # what is computed as its transpose leaves by as many lines, all columns of a warpgroup each
    turned = any(dot.swap for dot in plan.dots)
    along, across = (BM, BN) if turned else (BN, BM)
    widths = range(64, 0, -8) if turned else (64, 32, 16)
    width = next((w for w in widths if w <= plan.columns and along % w == 0), None)
    assert count(consumer, threads.TmaStore) == (
        outs * (across // (64 * groups)) * (along // width) if width else 0
    )
    assert plan.epilogue == ("tma" if outs and width else "direct")


@pytest.mark.parametrize(
    "form", [f for f in FORMS if f.epilogue or f.majors == "tt"], ids=lambda f: f.name
)
def test_every_text_parses_back(form):
    for module in distinct(compiled(form)[0]):
        parses_back(module)


@pytest.mark.parametrize("machine", ["sm_80", "sm_89"])
def test_machines_without_the_engines_have_one_role(machine):
    given = context(machine)
    through(
        traced(
            product,
            *(array(tkc.bfloat16) for _ in "ab"),
            array(tkc.bfloat16, 1),
            *(array(tkc.bfloat16) for _ in "cd"),
            BM=128,
            BN=128,
            BK=64,
            MAJORS="nn",
            EPILOGUE="",
        ),
        LAST,
        given,
    )
    assert given.plan.roles == "one" and not given.plan.persistent


@pytest.mark.parametrize("block, boxes", [((128, 192, 32), 3), ((128, 160, 32), 5)], ids=str)
def test_shares_in_several_boxes(block, boxes):
    """An operand whose rows are an odd number of swizzles is shared between blocks by its k, by
    keyword.
    """
    form = Form(block, options=(("cluster", (2, 1)), ("num_stages", 2)))
    plan, free = compiled(form)[1].plan, compiled(Form(block, options=IN_TURN))[1]
    assert plan.cluster == (2, 1) and [load.boxes for load in plan.loads][:2] == [1, boxes]
    assert free.plan.cluster == (1, 1) and any(
        f"would arrive in {boxes} boxes" in line for line in free.decisions
    )
    assert count(role(last(form), "producer"), threads.TmaLoad) == 1 + boxes
    for seed in range(2):
        check(
            last(form), form, 3 * 128 + 5, block[1] + 40, 5 * 32 - 7, seed=seed, resident=1 + seed
        )
    check(last(form), form, 3 * 128 + 5, block[1] + 40, 3 * 32 - 7, run=machine.run, resident=1)


# --------------------------------------------------------------------------------------------------
@assembler
@EVERY
def test_it_assembles_clean(form):
    assembles_clean(last(form))


# --------------------------------------------------------------------------------------------------
RELEASED = {
    f"leader alone: mbarrier_arrive empty in consumer{nth}"
    for nth in ("", ", 2")
    # the dots that read a stage are the work of the whole warpgroup, and the leader has waited for
    # them
}
# The producer of a cluster sees every stage come back before it ends. Consumers give stages back in
# order, so the last of these waits is enough.
DRAIN = {
    f"{change}: mbarrier_wait empty in producer, {n}"
    for change in ("drop", "first parity")
    for n in (2, 3)
} | {f"{change}: ring_next empty in producer, 2" for change in ("parity stays", "stages + 1")}
# each of two consumers has the other's subtile
SWAPPED = {f"stage: stage {subtile} in consumer" for subtile in ("ring", "unnamed", "unnamed 2")}
EQUIVALENT = {
    "alone": RELEASED,
    "cluster": RELEASED | DRAIN,
    "ping-pong": RELEASED | SWAPPED,
    "ping-pong in a cluster": RELEASED | DRAIN | SWAPPED,
}


@pytest.mark.parametrize(("name", "form"), SMALL.items(), ids=SMALL.keys())
def test_every_mutant_is_found(name, form):
    BM, BN, BK = form.block
    # three each, and one more
    programs = 7 * compiled(form)[1].plan.cluster[0] if "ping" in name else 3
    number, missed = survivors(
        last(form),
        *(
            lambda m, seed=seed, steps=steps: check(
                m, form, programs * BM, BN, steps * BK, seed=seed
            )
            for seed, steps in enumerate((4, 5, 7))
        ),
        known=EQUIVALENT[name].__contains__,
    )
    assert number > 50 and not missed, missed
