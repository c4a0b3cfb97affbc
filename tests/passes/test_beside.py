"""What is small and stands beside the dots of a loop: a block that a tensor map copies comes in
their ring, a number by the producer's post.

All values are small integers, so that sums are exact in float32 and every result has one right
value.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
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
)
from tests.passes.test_roles import RELEASED, array, integers
from tkc.ir import shared, threads, tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument


def scaled(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A scale for each row and step, and one for a whole block."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        scale = (
            tkc.load(rows, (m, k // BK), (BM, None)).to(tkc.float32)[:, None]
            * flags[n // BN, k // BK]
        )
        acc = acc + tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, k), (BN, BK)).T) * scale
    tkc.store(c, (m, n), acc.to(c.dtype))


def early(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A number is looked at before anything is waited for, in two ways; and one for each column
    comes with it.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, seen = tkc.zeros((BM, BN), tkc.float32), 0
    for k in tkc.range(0, x.shape[1], BK):
        flag = flags[n // BN, k // BK]
        twice, odd = flag * 2 + 1, flag % 2
        x_, y_ = tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, k), (BN, BK))
        more = tkc.load(rows, (n, k // BK), (BN, None)).to(tkc.float32)
        acc = acc + tkc.dot(x_, y_.T) * twice + more[None, :] * odd
        seen = seen + flag
    tkc.store(c, (m, n), (acc + seen).to(c.dtype))


def summed(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """The dot's sum goes round by itself; beside it others."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, beside, seen = tkc.zeros((BM, BN), tkc.float32), tkc.zeros((BM,), tkc.float32), 0
    for k in tkc.range(0, x.shape[1], BK):
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, k), (BN, BK)).T, acc)
        beside = beside + tkc.load(rows, (m, k // BK), (BM, None)).to(tkc.float32)
        seen = seen + flags[n // BN, k // BK]
    tkc.store(c, (m, n), (acc + beside[:, None] * seen).to(c.dtype))


def paged(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A number says where an operand lies, and what its dot is multiplied by."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        page = tkc.maximum(flags[n // BN, k // BK], 0)
        acc = (
            acc
            + tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, page * BK), (BN, BK)).T) * page
        )
    tkc.store(c, (m, n), acc.to(c.dtype))


def listed(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A number says where a factor lies, and which scales of the rows go with it."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        page = tkc.maximum(flags[n // BN, k // BK], 0)
        scale = tkc.load(rows, (m, page), (BM, None)).to(tkc.float32)[:, None]
        y_ = tkc.load(y, (n, page * BK), (BN, BK))
        acc = acc + tkc.dot(tkc.load(x, (m, k), (BM, BK)), y_.T) * scale
    tkc.store(c, (m, n), acc.to(c.dtype))


@dataclass(frozen=True)
class Form:
    kernel: Callable = scaled
    block: tuple[int, int, int] = (128, 64, 32)
    dense: int = 0  # the axis of the rows' scales that is dense in memory
    flag: object = tkc.float32
    options: tuple = (("num_stages", 3), ("cluster", (1, 1)))

    @property
    def name(self) -> str:
        return " ".join(
            [
                self.kernel.__name__,
                "x".join(map(str, self.block)),
                f"along {self.dense}",
                str(self.flag),
                *(f"{k} {v}" for k, v in self.options),
            ]
        )


IN_PARTS = (("num_stages", 3), ("num_warps", 4))
FORMS = [
    Form(),
    Form(dense=1),
    Form(flag=tkc.int32),
    Form(block=(128, 64, 32), options=IN_PARTS),
    Form(block=(128, 64, 32), dense=1, options=IN_PARTS),
    Form(block=(256, 128, 32), options=()),
    Form(early, flag=tkc.int32),
    Form(early, dense=1, flag=tkc.int32),
    Form(summed, flag=tkc.int32),
    Form(summed, (64, 64, 32), flag=tkc.int32, options=(("num_stages", 3), ("roles", "pingpong"))),
    Form(
        summed,
        (64, 64, 32),
        dense=1,
        flag=tkc.int32,
        options=(("num_stages", 3), ("roles", "pingpong")),
    ),
    Form(paged, flag=tkc.int32),
    Form(listed, flag=tkc.int32),
    *(
        Form(block=(128, 128, 32), options=(("num_stages", 3), ("cluster", pair)))
        for pair in ((2, 1), (1, 2), (2, 2))
    ),
    Form(early, flag=tkc.int32, options=(("num_stages", 3), ("dynamic_schedule", True))),
    Form(summed, flag=tkc.int32, options=(("num_stages", 3), ("serpentine", True))),
]
SMALL = {
    "rows": FORMS[0],
    "number": FORMS[1],
    "parts": FORMS[3],
    "early": FORMS[6],
    "summed": FORMS[8],
    "ping-pong": FORMS[9],
    "cluster": FORMS[12],
}
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
EACH = pytest.mark.parametrize("form", SMALL.values(), ids=SMALL.keys())


def along(dtype, dense: int) -> ArrayArgument:
    """A matrix whose columns are dense (0), and start at multiples of 16 bytes, or its rows, which
    start anywhere (1).
    """
    return ArrayArgument(
        dtype,
        ArrayFacts(
            (Fact(),) * 2, (Fact(exact=1), Fact(8)) if dense == 0 else (Fact(), Fact(exact=1)), 16
        ),
    )


@cache
def compiled(form: Form):
    BM, BN, BK = form.block
    return stages.compiled(
        traced(
            form.kernel,
            array(tkc.bfloat16),
            array(tkc.bfloat16),
            along(tkc.float32, form.dense),
            along(form.flag, 1),
            array(tkc.float32),
            BM=BM,
            BN=BN,
            BK=BK,
        ),
        **dict(form.options),
    )


def last(form: Form):
    return compiled(form)[0][LAST]


def check(module, form: Form, m: int, n: int, k: int, run=run, **how) -> None:
    BM, BN, BK = form.block
    tall, steps, wide = n if form.kernel is early else m, -(-k // BK), -(-n // BN)
    x, y = integers(m, k, dtype=tkc.bfloat16, seed=0), integers(n, k, dtype=tkc.bfloat16, seed=1)
    rows = (
        integers(steps, tall, dtype=tkc.float32, seed=2).T
        if form.dense == 0
        else integers(tall, steps, dtype=tkc.float32, seed=2)
    )
    flags, c = (
        integers(wide, steps, dtype=tkc.float32, seed=3).astype(
            np.int32 if form.flag is tkc.int32 else np.float32
        ),
        integers(m, n, dtype=tkc.float32, seed=4),
    )
    c[...] = np.nan
    run(module, [x, y, rows, flags, c], (-(-m // BM), -(-n // BN), 1), **how)
    want, each = np.zeros((m, n)), np.float64(flags).repeat(BN, axis=0)[:n]
    for step in range(steps):
        at = slice(step * BK, (step + 1) * BK)
        dot, flag = np.float64(x[:, at]) @ np.float64(y[:, at]).T, each[:, step]
        match form.kernel.__name__:
            case "scaled":
                want += dot * np.float64(rows[:, step])[:, None] * flag
            case "early":
                want += (
                    dot * (2 * flag + 1) + np.float64(rows[:, step]) * np.remainder(flag, 2) + flag
                )
            case "summed":
                want += dot
            case "paged":
                for j in range(wide):
                    page, here = max(int(flags[j, step]), 0), slice(j * BN, (j + 1) * BN)
                    other = np.zeros((y[here].shape[0], x[:, at].shape[1]))
                    found = np.float64(y[here, page * BK : page * BK + other.shape[1]])
                    other[:, : found.shape[1]] = found
                    want[:, here] += np.float64(x[:, at]) @ other.T * page
            case "listed":
                for j in range(wide):
                    page, here = max(int(flags[j, step]), 0), slice(j * BN, (j + 1) * BN)
                    if page < steps:
                        scale = np.float64(rows[:, page])[:, None]
                        found = np.float64(y[here, page * BK : (page + 1) * BK])
                        mine = np.float64(x[:, at])[:, : found.shape[1]]
                        want[:, here] += mine @ found[:, : mine.shape[1]].T * scale
    if form.kernel is summed:
        want += np.float64(rows).sum(1)[:, None] * each.sum(1)
    np.testing.assert_array_equal(c, want.astype(c.dtype))


@EVERY
def test_every_level(form):
    stages.at_every_level(compiled(form)[0], form, check)


@EACH
@STEPS
def test_trip_counts(form, steps):
    stages.in_steps(compiled(form), form, check, steps)


@EACH
@RAGGED
def test_ragged_shapes_and_odd_grids(form, shape):
    stages.ragged(last(form), form, check, shape)


@EACH
def test_what_the_text_computes(form):
    stages.in_text(last(form), form, check)


@assembler
@EVERY
def test_it_assembles_clean(form):
    assembles_clean(last(form))


@EVERY
def test_who_loads_what(form):
    """The consumers load what the producer cannot: rows that are not dense. What stands beside the
    operands comes in their ring, in as many parts as it is used in; a number that says where a
    operand lies both look up.
    """
    plan, kernel = compiled(form)[1].plan, last(form).body.block.first_op
    producer, consumer = role(kernel, "producer"), role(kernel, "consumer")
    posted, copied = (
        form.kernel not in (paged, listed),
        form.dense == 0 and form.kernel is not paged,
    )
    assert (
        len(plan.rings) == 1
        and Counter(load.path for load in plan.loads)
        == Counter(
            {
                "tma": 2 + copied,
                "broadcast": posted,
                "registers": len(plan.loads) - 2 - copied - posted,
            }
        )
        + Counter()
    )
    parts = (
        plan.dots[0].parts[0]
        if any("of its rows" in said for said in compiled(form)[1].decisions)
        else 1
    )
    assert (
        count(producer, threads.TmaLoad) == 2 + copied * parts
        and count(consumer, shared.Read) == copied * parts
    )
    numbers = [
        [
            op
            for op in r.walk()
            if isinstance(op, kind) and op.box.owner.ring.name_hint == "broadcast"
        ]
        for r, kind in ((producer, threads.BroadcastStore), (consumer, threads.BroadcastLoad))
    ]
    assert [len(found) for found in numbers] == [posted, posted]
    assert all(
        plan.load(op).path == "registers" for op in consumer.walk() if isinstance(op, tile.Load)
    ) and (not copied or not count(consumer, tile.Load))
    for module in distinct(compiled(form)[0]):
        parses_back(module)


# arrays of one type might overlap: what is loaded is so before anything is stored. These do not
OVERLAPPING = {f"drop: block_barrier in consumer{nth}" for nth in ("", ", 2")}
EQUIVALENT = {"rows": RELEASED, "number": RELEASED, "early": RELEASED} | dict.fromkeys(
    ("parts", "summed", "ping-pong"), RELEASED | OVERLAPPING
)


@pytest.mark.parametrize("name", EQUIVALENT)
def test_every_mutant_is_found(name):
    """One block takes two or three programs, so that subtiles and stages are used again; of two
    that have turns each. In all not a multiple of the stages, after which late arrivals are missed.
    """
    form = SMALL[name]
    BM, BN, BK = form.block
    most = 7 if "ping" in name else 3
    number, missed = survivors(
        last(form),
        *(
            lambda m, seed=seed, programs=programs, steps=steps: check(
                m, form, programs * BM, BN, steps * BK, seed=seed
            )
            for seed, (programs, steps) in enumerate(((most, 4), (most - 1, 5), (most, 7)))
        ),
        known=EQUIVALENT[name].__contains__,
    )
    assert number > 50 and not missed, missed


def known(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """Scales that do not change along k, in a sum of partial dots."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, scale = (
        tkc.zeros((BM, BN), tkc.float32),
        (tkc.load(rows, (m, 0), (BM, None)) * 2)[:, None] * flags[n // BN, 0],
    )
    for k in tkc.range(0, x.shape[1], BK):
        acc = acc + tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, k), (BN, BK)).T) * scale
    tkc.store(c, (m, n), acc.to(c.dtype))


@pytest.mark.parametrize("options", [IN_PARTS, (("num_stages", 3), ("num_warps", 8))], ids=str)
def test_what_is_known_before_the_loop_is_cut_before_it(options):
    """No part of it is moved between threads in the loop."""
    BM, BN, BK, m, n, k = 32 * dict(options)["num_warps"], 64, 32, 261, 70, 75
    modules, given = stages.compiled(
        traced(
            known,
            array(tkc.bfloat16),
            array(tkc.bfloat16),
            along(tkc.float32, 1),
            along(tkc.float32, 1),
            array(tkc.float32),
            BM=BM,
            BN=BN,
            BK=BK,
        ),
        **dict(options),
    )
    assert any("parts of its rows" in said for said in given.decisions)
    loop = next(
        op
        for op in role(modules[LAST], "consumer").walk()
        if isinstance(op, scf.ForOp)
        and any(isinstance(inner, threads.DotAsync) for inner in op.body.block.ops)
    )
    assert not count(loop, shared.Read, shared.Write, shared.Convert, threads.Barrier, tile.Load)
    x, y = integers(m, k, dtype=tkc.bfloat16, seed=0), integers(n, k, dtype=tkc.bfloat16, seed=1)
    rows, flags = (
        integers(m, 3, dtype=tkc.float32, seed=2),
        integers(2, 3, dtype=tkc.float32, seed=3),
    )
    want = (
        np.float64(x)
        @ np.float64(y).T
        * (2 * np.float64(rows[:, :1]))
        * np.float64(flags[:, 0]).repeat(BN)[:n]
    )
    for module in distinct(modules):
        c = integers(m, n, dtype=tkc.float32, seed=4)
        run(module, [x, y, rows, flags, c], (-(-m // BM), -(-n // BN), 1))
        np.testing.assert_array_equal(c, want.astype(c.dtype))


def whole_too(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A partial dot is scaled by parts of a vector, and the whole of it is added up."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, seen = tkc.zeros((BM, BN), tkc.float32), tkc.zeros((BM,), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        scale = tkc.load(rows, (m, k // BK), (BM, None))
        acc = (
            acc
            + tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, k), (BN, BK)).T)
            * scale[:, None]
        )
        seen = seen + scale
    tkc.store(c, (m, n), (acc + seen[:, None]).to(c.dtype))


@pytest.mark.parametrize("options", [IN_PARTS, (("num_stages", 3), ("cluster", (2, 1)))], ids=str)
def test_what_is_used_in_parts_and_whole(options):
    BM, BN, BK, m, n, k = 128 if options is IN_PARTS else 256, 128, 32, 261, 70, 75
    modules, given = stages.compiled(
        traced(
            whole_too,
            array(tkc.bfloat16),
            array(tkc.bfloat16),
            along(tkc.float32, 0),
            along(tkc.float32, 1),
            array(tkc.float32),
            BM=BM,
            BN=BN,
            BK=BK,
        ),
        **dict(options),
    )
    assert any("parts of its rows" in said for said in given.decisions)
    x, y = integers(m, k, dtype=tkc.bfloat16, seed=0), integers(n, k, dtype=tkc.bfloat16, seed=1)
    rows, want = integers(3, m, dtype=tkc.float32, seed=2).T, np.zeros((m, n))
    for step in range(3):
        want += (
            np.float64(x[:, step * BK :][:, :BK]) @ np.float64(y[:, step * BK :][:, :BK]).T + 1
        ) * np.float64(rows[:, step])[:, None]
    for module in distinct(modules):
        c = integers(m, n, dtype=tkc.float32, seed=4)
        run(module, [x, y, rows, np.zeros((1, 1), np.float32), c], (-(-m // BM), -(-n // BN), 1))
        np.testing.assert_array_equal(c, want.astype(c.dtype))


def side_by_side(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """Programs share what walks past them, and the numbers that go with it; not what is said of
    their own rows.
    """
    m = tkc.program_id(0) * BM
    left, acc = tkc.load(x, (m, 0), (BM, BK)), tkc.zeros((BM, BN), tkc.float32)
    for n in tkc.range(0, y.shape[0], BN):
        scale = (
            tkc.load(rows, (m, n // BN), (BM, None))[:, None]
            * flags[m // BM, n // BN]
            * flags[0, n // BN]
        )
        acc = acc + tkc.dot(left, tkc.load(y, (n, 0), (BN, BK)).T) * scale
    tkc.store(c, (m, 0), acc.to(c.dtype))


@pytest.mark.parametrize("options", [(("programs", 3),), (("roles", "co_resident"),)], ids=str)
def test_side_by_side_each_program_has_its_own(options):
    BM, BN, BK, m, steps = 64, 64, 32, 300, 3
    modules, given = stages.compiled(
        traced(
            side_by_side,
            array(tkc.bfloat16),
            array(tkc.bfloat16),
            along(tkc.float32, 0),
            along(tkc.float32, 1),
            array(tkc.float32),
            BM=BM,
            BN=BN,
            BK=BK,
        ),
        **dict(options),
    )
    assert given.plan.roles == "co_resident" and Counter(
        load.path for load in given.plan.loads
    ) == {
        "tma": 2,
        "registers": 2,
        "broadcast": 1,
    }
    x, y = (
        integers(m, BK, dtype=tkc.bfloat16, seed=0),
        integers(steps * BN, BK, dtype=tkc.bfloat16, seed=1),
    )
    rows, flags, want = (
        integers(steps, m, dtype=tkc.float32, seed=2).T,
        integers(5, steps, dtype=tkc.float32, seed=3),
        np.zeros((m, BN)),
    )
    for i in range(steps):
        want += (
            np.float64(x)
            @ np.float64(y[i * BN :][:BN]).T
            * np.float64(rows[:, i] * flags[:, i].repeat(BM)[:m] * flags[0, i])[:, None]
        )
    for seed in range(2):
        c = integers(m, BN, dtype=tkc.float32, seed=4)
        run(modules[LAST], [x, y, rows, flags, c], (5, 1, 1), seed=seed)
        np.testing.assert_array_equal(c, want.astype(c.dtype))


def columns(x, y, rows, flags, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A scale for each column."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        acc = (
            acc
            + tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (n, k), (BN, BK)).T)
            * tkc.load(rows, (n, k // BK), (BN, None)).to(tkc.float32)[None, :]
        )
    tkc.store(c, (m, n), acc.to(c.dtype))


@pytest.mark.parametrize(
    "BN, dtype",
    [(24, tkc.float32), (32, tkc.bfloat16), (160, tkc.bfloat16), (224, tkc.float32)],
    ids=str,
)
def test_a_stage_begins_where_a_map_may_write(BN, dtype):
    """Few bytes a stage, so that the next one begins at no multiple of 128; whole and in parts."""
    BM, BK, m, n, k = 64, 32, 70, 300, 40
    modules, given = stages.compiled(
        traced(
            columns,
            array(tkc.bfloat16),
            array(tkc.bfloat16),
            along(dtype, 0),
            along(tkc.float32, 1),
            array(tkc.float32),
            BM=BM,
            BN=BN,
            BK=BK,
        )
    )
    assert [load.path for load in given.plan.loads] == ["tma"] * 3
    x, y, rows = (
        integers(m, k, dtype=tkc.bfloat16, seed=0),
        integers(n, k, dtype=tkc.bfloat16, seed=1),
        integers(2, n, dtype=dtype, seed=2).T,
    )
    want = sum(
        np.float64(x[:, i * BK :][:, :BK])
        @ np.float64(y[:, i * BK :][:, :BK]).T
        * np.float64(rows[:, i])
        for i in range(2)
    )
    for run_, how in ((run, dict(seed=0)), (machine.run, dict(resident=1))):
        c = integers(m, n, dtype=tkc.float32, seed=4)
        run_(
            modules[LAST],
            [x, y, rows, np.zeros((1, 1), np.float32), c],
            (-(-m // BM), -(-n // BN), 1),
            **how,
        )
        np.testing.assert_array_equal(c, want.astype(c.dtype))


def computed(
    x,
    y,
    rows,
    flags,
    c,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    BLOCKS: tkc.constexpr,
):
    """A left operand made of two things that its stage brings: the second one is read when the dot
    before is over.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, y.shape[1], BK):
        scale = (
            tkc.load(rows, (m, k), (BM, BK))
            if BLOCKS
            else tkc.load(rows, (m, k // BK), (BM, None))[:, None]
        )
        acc = tkc.dot(
            tkc.load(x, (m, k), (BM, BK)).to(tkc.bfloat16) * scale.to(tkc.bfloat16),
            tkc.load(y, (n, k), (BN, BK)).T,
            acc,
        )
    tkc.store(c, (m, n), acc.to(c.dtype))


@pytest.mark.parametrize("blocks", [False, True])
def test_what_is_read_late_is_read_before_its_stage_is_given_back(blocks):
    BM, BN, BK, m, n, k = 128, 64, 64, 140, 64, 4 * 64
    bytes_ = ArrayArgument(tkc.int8, ArrayFacts((Fact(),) * 2, (Fact(16), Fact(exact=1)), 16))
    modules, given = stages.compiled(
        traced(
            computed,
            bytes_,
            array(tkc.bfloat16),
            bytes_ if blocks else along(tkc.float32, 0),
            along(tkc.float32, 1),
            array(tkc.float32),
            BM=BM,
            BN=BN,
            BK=BK,
            BLOCKS=blocks,
        ),
        num_stages=3,
    )
    assert [load.path for load in given.plan.loads] == ["tma"] * 3
    x, y = (
        integers(m, k, dtype=tkc.bfloat16, seed=0).astype(np.int8),
        integers(n, k, dtype=tkc.bfloat16, seed=1),
    )
    rows = (
        integers(m, k, dtype=tkc.bfloat16, seed=2).astype(np.int8)
        if blocks
        else integers(4, m, dtype=tkc.float32, seed=2).T
    )
    want = np.float64(x) * np.float64(rows if blocks else rows.repeat(BK, axis=1)) @ np.float64(y).T
    for seed in range(2):
        c = integers(m, n, dtype=tkc.float32, seed=4)
        run(
            modules[LAST],
            [x, y, rows, np.zeros((1, 1), np.float32), c],
            (2, 1, 1),
            seed=seed,
            resident=1,
        )
        np.testing.assert_array_equal(c, want.astype(c.dtype))


def written(
    x,
    y,
    rows,
    flags,
    c,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    WHAT: tkc.constexpr,
):
    """A program writes what its loop loads: scales or a number, before the loop or behind it, or a
    factor, before its loop or in it.
    """
    m, acc = tkc.program_id(0) * BM, tkc.zeros((BM, BN), tkc.float32)
    if WHAT == "factor":
        for k in tkc.range(0, x.shape[1], BK):
            tkc.store(x, (m, k), tkc.full((BM, BK), 2, x.dtype))
    if WHAT == "scales":
        for k in tkc.range(0, 3):
            tkc.store(rows, (m, k), tkc.full((BM, 1), 3, tkc.float32))
    if WHAT == "number":
        tkc.store(flags, (m // BM, 0), tkc.full((1, 4), 3, tkc.float32))
    for k in tkc.range(0, x.shape[1], BK):
        scale = tkc.load(rows, (m, k // BK), (BM, None))[:, None] * flags[m // BM, k // BK]
        acc = acc + tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (0, k), (BN, BK)).T) * scale
        if WHAT == "factor inside":
            tkc.store(x, (m, k + BK), tkc.full((BM, BK), 2, x.dtype))
    tkc.store(c, (m, 0), acc.to(c.dtype))
    if WHAT == "behind":
        tkc.store(rows, (m, 0), tkc.sum(acc, 1)[:, None])
        tkc.store(flags, (m // BM, 0), tkc.full((1, 4), 3, tkc.float32))


@pytest.mark.parametrize(
    "what, roles, paths",
    [
        ("nothing", "cooperative", "broadcast tma tma tma"),
        ("scales", "cooperative", "broadcast registers tma tma"),
        ("number", "cooperative", "registers tma tma tma"),
        ("behind", "cooperative", "registers registers tma tma"),
        ("factor", "cooperative", "broadcast tma tma tma"),
        ("factor inside", "cooperative", "broadcast tma tma tma"),
    ],
)
def test_what_a_program_has_written_it_loads_itself(what, roles, paths):
    """A producer is ahead of what its consumers store, unless it waits for it ("factor"): what is
    stored in a loop of its own a loop of dots may copy.
    """
    BM, BN, BK, m, k = 128, 64, 32, 256, 96
    modules, given = stages.compiled(
        traced(
            written,
            array(tkc.bfloat16),
            array(tkc.bfloat16),
            along(tkc.float32, 0),
            along(tkc.float32, 1),
            array(tkc.float32),
            BM=BM,
            BN=BN,
            BK=BK,
            WHAT=what,
        )
    )
    assert given.plan.roles == roles and (
        not paths or sorted(load.path for load in given.plan.loads) == paths.split()
    )
    results = []
    for module in (modules["simplify"], modules[LAST]):
        x, y, rows, flags, c = data = (
            integers(m, k, dtype=tkc.bfloat16, seed=0),
            integers(BN, k, dtype=tkc.bfloat16, seed=1),
            integers(3, m, dtype=tkc.float32, seed=2).T,
            integers(2, 3, dtype=tkc.float32, seed=3),
            integers(m, BN, dtype=tkc.float32, seed=4),
        )
        run(module, list(data), (2, 1, 1))
        results.append([a.astype(np.float64) for a in (x, rows, flags, c)])
    for before, after in zip(*results, strict=False):
        np.testing.assert_array_equal(before, after)


def looked_at(
    x,
    y,
    rows,
    flags,
    c,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    WHERE: tkc.constexpr,
):
    """What stands beside dots is looked at in branches alone: before the dot, between its operands,
    behind it beside its result; or where a branch says where a factor lies.
    """
    m, acc, seen = (
        tkc.program_id(0) * BM,
        tkc.zeros((BM, BN), tkc.float32),
        tkc.zeros((BM,), tkc.float32),
    )
    for k in tkc.range(0, x.shape[1], BK):
        flag, scale, place = flags[m // BM, k // BK], tkc.load(rows, (m, k // BK), (BM, None)), k
        if WHERE == "before" and flag > 0:
            seen = seen + scale * flag
        x_ = tkc.load(x, (m, k), (BM, BK))
        if WHERE == "between" and flag > 0:
            seen = seen + scale
        if WHERE == "place" and flag > 0:
            seen, place = seen + scale, k + BK
        dot = tkc.dot(x_, tkc.load(y, (0, place), (BN, BK)).T, acc if WHERE != "behind" else None)
        if WHERE != "behind":
            acc = dot
        elif flag > 0:
            acc = acc + dot * scale[:, None]
        else:
            acc = acc - dot
    tkc.store(c, (m, 0), (acc + seen[:, None]).to(c.dtype))


@pytest.mark.parametrize("where", ["before", "between", "behind", "place"])
@pytest.mark.parametrize("depth", [2, 3])
def test_what_a_branch_looks_at(where, depth):
    """A step is one stage, whatever stands between its copies, and is given back when it has been
    read.
    """
    BM, BN, BK, m, k = 128, 64, 32, 300, 7 * 32
    module = traced(
        looked_at,
        array(tkc.bfloat16),
        array(tkc.bfloat16),
        along(tkc.float32, 0),
        along(tkc.float32, 1),
        array(tkc.float32),
        BM=BM,
        BN=BN,
        BK=BK,
        WHERE=where,
    )
    modules, given = stages.compiled(module, num_stages=depth)
    loop = next(
        op
        for op in role(modules[LAST], "producer").walk()
        if isinstance(op, scf.ForOp)
        and any(isinstance(inner, threads.TmaLoad) for inner in op.body.block.ops)
    )
    assert sum(isinstance(op, threads.MbarrierExpect) for op in loop.body.block.ops) == 1 and sum(
        load.path == "broadcast" for load in given.plan.loads
    ) == (where != "place")
    x, y, rows, flags = (
        integers(m, k, dtype=tkc.bfloat16, seed=0),
        integers(BN, k, dtype=tkc.bfloat16, seed=1),
        integers(7, m, dtype=tkc.float32, seed=2).T,
        integers(3, 7, dtype=tkc.float32, seed=3),
    )
    want, each = np.zeros((m, BN)), np.float64(flags).repeat(BM, axis=0)[:m]
    other = np.concatenate([np.float64(y), np.zeros((BN, BK))], axis=1)
    for i in range(7):
        on, scale, at = each[:, i : i + 1] > 0, np.float64(rows[:, i : i + 1]), i * BK
        dots = [np.float64(x[:, at : at + BK]) @ other[:, at + j : at + j + BK].T for j in (0, BK)]
        match where:
            case "before":
                want += dots[0] + np.where(on, scale * each[:, i : i + 1], 0)
            case "between":
                want += dots[0] + np.where(on, scale, 0)
            case "place":
                want += np.where(on, dots[1] + scale, dots[0])
            case "behind":
                want += np.where(on, dots[0] * scale, -dots[0])
    for seed in range(2):
        c = integers(m, BN, dtype=tkc.float32, seed=4)
        run(modules[LAST], [x, y, rows, flags, c], (3, 1, 1), seed=seed, resident=1)
        np.testing.assert_array_equal(c, want.astype(c.dtype))


def in_place(x, y, c, BM: tkc.constexpr, BK: tkc.constexpr):
    """A program's left operand lies where its loop writes."""
    own = x[tkc.program_id(0)]
    left, acc = tkc.minimum(tkc.load(own, (0, 0), (BM, BK)), 2), tkc.zeros((BM, BM), tkc.float32)
    for k in tkc.range(tkc.program_id(0) % 3 * BK, y.shape[1], BK):
        part = tkc.dot(left, tkc.load(y, (0, k), (BK, BK))).to(tkc.bfloat16)
        acc = tkc.dot(part, tkc.load(y, (0, k), (BM, BK)).T, acc)
        tkc.store(own, (16, 0), tkc.load(y, (k, 0), (16, 16)))
    tkc.store(c[tkc.program_id(0)], (0, 0), acc.to(c.dtype))


@pytest.mark.parametrize("programs", [1, 2, 5])
def test_a_padding_tile_reads_nothing_that_a_program_writes(programs):
    """It has the first program's left operand, which that one may be writing."""
    BM, BK, steps = 64, 32, 3
    arrays = array(tkc.bfloat16, 3), array(tkc.bfloat16), array(tkc.float32, 3)
    modules, given = stages.compiled(
        traced(in_place, *arrays, BM=BM, BK=BK), programs=4, num_warps=4
    )
    assert given.plan.roles == "co_resident" and given.plan.loads[0].path == "shared"
    y = integers(BM, steps * BK, dtype=tkc.bfloat16, seed=1)
    right = np.float64(y)
    for module in distinct(modules):
        x = integers(programs * BM, BK, dtype=tkc.bfloat16, seed=0).reshape(programs, BM, BK)
        c, want = np.zeros((programs, BM, BM), np.float32), []
        for p in range(programs):
            parts = [right[:, k : k + BK] for k in range(p % 3 * BK, steps * BK, BK)]
            want.append(
                sum(
                    (np.minimum(np.float64(x[p]), 2) @ part[:BK]).astype(x.dtype).astype(np.float64)
                    @ part.T
                    for part in parts
                )
            )
        run(module, [x, y, c], (programs, 1, 1))
        np.testing.assert_array_equal(c, np.asarray(want, np.float32))
