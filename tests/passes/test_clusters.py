"""Clusters of blocks that share what they copy, along one axis of the programs or both: what their
programs mean at every level, and that they are free of races.

All numbers are small integers, so that sums are exact in float32 and every result has one right
value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import tkc
from benchmarks.plain_layers import low_rank
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.kernels import context
from tests.passes.stages import (
    LAST,
    STEPS,
    assembler,
    assembles_clean,
    at_every_level,
    count,
    distinct,
    parses_back,
    role,
    run,
    survivors,
)
from tests.passes.test_roles import array, integers, result
from tests.passes.test_roles_sums import gated
from tkc.ir import threads, tile
from tkc.ir.target import TARGETS
from tkc.passes import plan as planning
from tkc.passes.plan import kernel_of
from tkc.passes.planning.cost import Work
from tkc.passes.planning.numbers import Sizes
from tkc.sim import level0
from tkc.timing.predict import predict


def plain(a, b, _, c, __, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def projected(a, b, w, c, _, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """The difference of a product and of that with a matrix which all programs read whole: every
    block of a cluster shares it.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    one = two = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        rows = tkc.load(a, (m, k), (BM, BK))
        one = tkc.dot(rows, tkc.load(b, (k, n), (BK, BN)), one)
        two = tkc.dot(rows, tkc.load(w, (k, 0), (BK, BN)), two)
    tkc.store(c, (m, n), (one - two).to(c.dtype))


def triangular(a, b, _, c, __, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """As many steps as the rows' number says: blocks of other rows, whose loops are longer, share
    nothing with these.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, tkc.minimum(a.shape[1], m + BM), BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def followed(a, b, w, c, _, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A dot behind the loop: its operands are each block's own, in a ring of their own."""
    m, n, half = tkc.program_id(0) * BM, tkc.program_id(1) * BN, BK // 2
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    acc = tkc.dot(tkc.load(a, (m, 0), (BM, half)), tkc.load(w, (0, 0), (half, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def followed_alike(a, b, w, c, _, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """The same, with operands that take one more stage of the loop's ring."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    acc = tkc.dot(tkc.load(a, (m, 0), (BM, BK)), tkc.load(w, (0, 0), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@dataclass(frozen=True)
class Form:
    kernel: Callable
    cluster: tuple[int, int]
    block: tuple[int, int, int] = (64, 64, 32)
    roles: str = "cooperative"
    stages: int = 3

    @property
    def name(self) -> str:
        return " ".join(
            [
                self.kernel.__name__,
                "x".join(map(str, self.cluster)),
                "x".join(map(str, self.block)),
                self.roles,
                str(self.stages),
            ]
        )


SHAPES = (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4)
FORMS = [
    *(Form(plain, shape) for shape in SHAPES),
    *(Form(plain, shape, roles="pingpong") for shape in SHAPES[1:5]),
    Form(plain, (8, 1), (64, 64, 64)),
    Form(plain, (3, 2), (192, 96, 48)),
    Form(plain, (2, 2), (128, 256, 64), stages=4),
    Form(plain, (2, 2), (256, 192, 64), stages=2),
    Form(gated, (2, 2)),
    Form(gated, (1, 2), (128, 64, 32)),
    Form(projected, (2, 2)),
    Form(projected, (1, 4)),
    Form(triangular, (2, 2)),
    Form(triangular, (1, 2)),
    Form(followed, (2, 2)),
    Form(followed_alike, (2, 2)),
    Form(followed_alike, (2, 1), (128, 64, 32)),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
SMALL = {
    form.name: form
    for form in (
        Form(plain, (2, 2)),
        Form(plain, (1, 2)),
        Form(plain, (2, 2), roles="pingpong"),
        Form(gated, (2, 2)),
        Form(projected, (2, 2)),
        Form(triangular, (2, 2)),
        Form(followed, (2, 1)),
        Form(followed_alike, (1, 2)),
    )
}
EACH = pytest.mark.parametrize("form", SMALL.values(), ids=SMALL.keys())


@cache
def compiled(form: Form):
    BM, BN, BK = form.block
    return stages.compiled(
        traced(
            form.kernel,
            *(make(tkc.bfloat16) for make in (*[array] * 3, *[result] * 2)),
            BM=BM,
            BN=BN,
            BK=BK,
        ),
        cluster=form.cluster,
        roles=form.roles,
        num_stages=form.stages,
    )


def last(form: Form):
    return compiled(form)[0][LAST]


def check(module, form: Form, m: int, n: int, k: int, run=run, **how) -> None:
    BM, BN, BK = form.block
    a, b, w = (
        integers(*shape, dtype=tkc.bfloat16, seed=i)
        for i, shape in enumerate(((m, k), (k, n), (k, n if form.kernel is gated else BN)))
    )
    wide = -(-n // 8) * 8  # columns of results, of which the last ones have no columns of b
    c, d = (integers(m, wide, dtype=tkc.bfloat16, seed=3) for _ in "cd")
    c[...] = d[...] = np.nan
    run(module, [a, b, w, c, d], (-(-m // BM), -(-n // BN), 1), **how)
    x, y, z = map(np.float64, (a, b, w))
    y = np.pad(y, ((0, 0), (0, wide - n)))
    if form.kernel is gated:
        z = np.pad(z, ((0, 0), (0, wide - n)))
        one, two = np.maximum(x @ y, x @ z), x @ y - x @ z
    else:
        one, two = x @ y, None
    if form.kernel is projected:
        one = one - np.tile(x @ z, (1, -(-wide // BN)))[:, :wide]
    if form.kernel in (followed, followed_alike):
        rows = BK // 2 if form.kernel is followed else BK
        more = x[:, :rows] @ z[: min(k, rows)]
        one = one + np.tile(more, (1, -(-wide // BN)))[:, :wide]
    if form.kernel is triangular:
        one = np.concatenate(
            [
                x[i : i + BM, : -(-(i + BM) // BK) * BK] @ y[: -(-(i + BM) // BK) * BK]
                for i in range(0, m, BM)
            ]
        )
    np.testing.assert_array_equal(c, one.astype(c.dtype))
    if two is not None:
        np.testing.assert_array_equal(d, two.astype(d.dtype))


# --------------------------------------------------------------------------------------------------
@EVERY
def test_every_level(form):
    at_every_level(compiled(form)[0], form, check)


@EACH
@STEPS
def test_trip_counts(form, steps):
    BM, BN, BK = form.block
    assert compiled(form)[1].plan.stages == 3
    for seed, (rows, columns) in enumerate(((3, 1), (1, 3), (3, 3))):
        check(last(form), form, rows * BM, columns * BN, steps * BK, seed=seed)


@EVERY
@pytest.mark.parametrize("resident", [1, 2])
def test_grids_that_end_inside_a_cluster(form, resident):
    """Blocks beyond the grid's end on either axis load, multiply, give stages back, and store
    nothing.
    """
    BM, BN, BK = form.block
    for seed, (m, n, k) in enumerate(
        ((1, 1, 1), (BM + 1, 2 * BN + 1, BK + 7), (3 * BM - 5, BN - 3, 3 * BK - 9))
    ):
        check(last(form), form, m, n, k, seed=seed, resident=resident)


@pytest.mark.parametrize(
    "form",
    [*SMALL.values(), Form(plain, (4, 2)), Form(plain, (3, 2), (192, 96, 48))],
    ids=lambda f: f.name,
)
def test_what_the_text_computes(form):
    BM, BN, BK = form.block
    for seed, k in ((None, 3 * BK - 7), (1, BK)):
        check(last(form), form, BM + 5, 2 * BN + 9, k, run=machine.run, seed=seed, resident=1)


def test_addresses_of_programs_beyond_the_grid():
    """They lead outside of the arrays, and nothing is loaded from them."""

    def scaled(a, b, s, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
        m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
        factor, first = tkc.load(s.ptr + m + tkc.arange(BM)), tkc.load(s.ptr + m)
        acc = tkc.zeros((BM, BN), tkc.float32)
        for k in tkc.range(0, a.shape[1], BK):
            acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
        tkc.store(c, (m, n), acc * factor[:, None] + first)

    modules, given = stages.compiled(
        traced(
            scaled,
            *(array(tkc.bfloat16) for _ in "ab"),
            array(tkc.float32, 1),
            array(tkc.float32),
            BM=64,
            BN=64,
            BK=32,
        ),
        cluster=(2, 1),
        roles="cooperative",
    )
    assert given.plan.cluster == (2, 1)
    a, b, s, c = (
        integers(192, 64, dtype=tkc.bfloat16, seed=0),
        integers(64, 64, dtype=tkc.bfloat16, seed=1),
        np.float32(np.arange(192) % 7),
        np.full((192, 64), np.nan, np.float32),
    )
    for module in distinct(modules):
        run(module, [a, b, s, c], (3, 1, 1))
    np.testing.assert_array_equal(
        c, np.float64(a) @ np.float64(b) * s[:, None] + s[::64].repeat(64)[:, None]
    )


# --------------------------------------------------------------------------------------------------
@EVERY
def test_who_shares_what(form):
    plan, kernel, (across, down) = (
        compiled(form)[1].plan,
        last(form).body.block.first_op,
        form.cluster,
    )
    along = {
        plain: [(1,), (0,)],
        gated: [(1,), (0,), (0,)],
        projected: [(1,), (0,), (0, 1)],
        triangular: [(1,), ()],
        followed: [(1,), (0,), (), ()],
        followed_alike: [(1,), (0,), (), ()],
    }[form.kernel]
    along = [tuple(axis for axis in axes if form.cluster[axis] > 1) for axes in along]
    assert [load.among if load.multicast >= 0 else () for load in plan.loads] == along
    assert plan.cluster == ((1, down) if form.kernel is triangular else form.cluster)
    sharers = (
        across * down
        if (0, 1) in along
        else 1 + (across - 1) * ((0,) in along) + (down - 1) * ((1,) in along)
    )
    # a stage is free when the consumers of all who get a part of it have said so
    own = [1, plan.warps] if form.kernel is followed else []
    assert [
        op.count.value.data for op in kernel.walk() if isinstance(op, threads.MbarrierInit)
    ] == [1, plan.warps * sharers, *own]
    assert {
        op.to is not None for op in kernel.walk() if isinstance(op, threads.MbarrierArrive)
    } == {True, not own}
    # the launch is flat
    assert [a.value.data for a in kernel.attributes["cluster"].data] == [
        plan.cluster[0] * plan.cluster[1],
        1,
    ]
    loads = [
        op.to is not None
        for op in role(kernel, "producer").walk()
        if isinstance(op, threads.TmaLoad)
    ]
    assert all(loads) == all(along) and count(role(kernel, "consumer"), tile.Load) == 0


@EVERY
def test_the_text_parses_back(form):
    for module in distinct(compiled(form)[0]):
        parses_back(module)


@assembler
@EVERY
def test_it_assembles_clean(form):
    assembles_clean(last(form))


def test_a_cluster_shrinks_to_the_axes_along_which_something_is_shared():
    """What nobody shares is said, and so is a cluster that not every device has room for."""
    form = Form(triangular, (2, 2))
    assert any("cluster = (2, 2) is not used" in line for line in compiled(form)[1].decisions)
    wide = planning.plan(
        traced(plain, *(array(tkc.bfloat16) for _ in range(5)), BM=128, BN=128, BK=64),
        context("sm_90a", cluster=(4, 4)),
    )
    assert wide.cluster == (1, 1) and any(
        "cluster = (4, 4) is not used" in line for line in wide.decisions
    )


def test_what_a_loop_shares_where_a_dot_follows_it():
    """Pairs of blocks share both right operands of the loop, which has four stages: the last dot's
    factor has one, while the next program's loop runs there is time for it.
    """
    shapes = (8192, 4096), (4096, 14336), (4096, 16), (16, 14336), (8192, 14336)
    arrays = (f"bf16[{m}, {n}]" for m, n in shapes)
    said = low_rank.compile(*arrays, 16, 256, target="sm_90a").decisions
    assert "plan: cluster 2 x 1: 2 of 4 copies serve 2 blocks" in said
    assert "plan: ring 0: 4 stages of 51200 bytes" in said
    assert "plan: ring 1: 1 stages of 8192 bytes" in said


def test_small_blocks_share_copies_as_asked_alone():
    free = planning.plan(
        traced(plain, *(array(tkc.bfloat16) for _ in range(5)), BM=64, BN=64, BK=64),
        context("sm_90a"),
    )
    assert free.cluster == (1, 1) and compiled(Form(plain, (2, 1)))[1].plan.cluster == (2, 1)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)], ids=str)
def test_the_time_of_a_launch(shape):
    """Copies that more blocks share are fewer; programs of padding tiles, and multiprocessors that
    clusters leave idle, are counted.
    """
    form = Form(plain, shape, (128, 256, 64), stages=4)
    sizes = Sizes(
        (23, 19, 1), ((2944, 4096), (4096, 4864), (4096, 256), (2944, 4864), (2944, 4864))
    )
    found = predict(
        last(form), Work.of(kernel_of(compiled(form)[0]["plan"]), sizes), TARGETS["sm_90a"], sizes
    )
    assert found.programs == -(-23 // shape[0]) * shape[0] * -(-19 // shape[1]) * shape[1]
    assert (
        0.8
        < found.seconds
        / predict(
            last(Form(plain, (2, 1), (128, 256, 64), stages=4)),
            Work.of(kernel_of(compiled(form)[0]["plan"]), sizes),
            TARGETS["sm_90a"],
            sizes,
        ).seconds
        < 1.25
    )


def test_multiprocessors_of_clusters():
    """Blocks of a cluster are neighbours: what a group of multiprocessors leaves over is idle."""
    assert [TARGETS["sm_90a"].clustered(n) for n in (1, 2)] == [132, 132] and TARGETS[
        "sm_90a"
    ].clustered(4) == TARGETS["sm_90a"].clustered(8) == 120  # as an H200's driver says
    other = TARGETS["sm_89"]
    assert [other.clustered(n) for n in (1, 2)] == [128, 128]
    whole = [sum(n // size * size for n in other.device.multiprocessors_of_gpcs) for size in (3, 8)]
    assert other.clustered(3) <= whole[0] == 126 and other.clustered(8) <= whole[1] == 88


# --------------------------------------------------------------------------------------------------
RELEASED = {
    f"leader alone: mbarrier_arrive {ring} in consumer{nth}"
    for ring in ("empty", "empty 2")
    for nth in ("", ", 2", ", 3")
    # the dots that read a stage are the work of the whole warpgroup, and the leader has waited for
    # them
}


# The producer sees every stage come back before it ends. Consumers give stages back in order, so
# the last of these waits is enough.
def drain(fills: int) -> set[str]:
    """The changes of these waits; fills: places where the producer fills a stage."""
    return {
        f"{change}: mbarrier_wait empty in producer, {fills + n}"
        for change in ("drop", "first parity")
        for n in (1, 2)
    } | {
        f"{change}: ring_next empty in producer, {fills + 1}"
        for change in ("parity stays", "stages + 1")
    }


# each of two consumers has the other's subtile
SWAPPED = {f"stage: stage {subtile} in consumer" for subtile in ("ring", "unnamed", "unnamed 2")}


# where the loop is longer than its ring, that ring's waits hold the other one's producer, too; a
# stage more a program, and stages are where they are in the others
STEPS_OF_MUTANTS = {followed: (1, 2, 4, 5), followed_alike: (3, 4, 6, 7)}


@pytest.mark.parametrize(
    "form", [f for f in SMALL.values() if f.kernel is not gated], ids=lambda f: f.name
)
def test_every_mutant_is_found(form):
    # three each in ping-pong, and one more; enough to write to a subtile that has left
    (BM, BN, BK), programs = (
        form.block,
        7 * form.cluster[0],
    )
    known = RELEASED | drain(2 if form.kernel is followed_alike else 1)
    known |= SWAPPED if form.roles == "pingpong" else set()
    number, missed = survivors(
        last(form),
        *(
            lambda m, seed=seed, steps=steps: check(
                m, form, programs * BM, 2 * BN, steps * BK, seed=seed
            )
            for seed, steps in enumerate(STEPS_OF_MUTANTS.get(form.kernel, (4, 5, 7, 8)))
        ),
        known=known.__contains__,
    )
    assert number > 50 and not missed, missed


def test_places_of_64_bits_in_a_cluster():
    """Of an array beyond 2 GiB: blocks share copies along k, where loops count in 64 bits."""
    a, b, c = "bf16[1048576, 2048]", "bf16[2048, 1024]", "bf16[1048576, 1024]"
    how = {"BM": 16, "BN": 64, "BK": 128, "cluster": (2, 2), "programs": 1, "target": "sm_90a"}
    compiled = tkc.jit(plain).compile(a, b, None, c, None, **how)
    assert "plan: cluster 2 x 2: 2 of 2 copies serve 2 blocks" in compiled.decisions


# --------------------------------------------------------------------------------------------------
# Loops of an operand's ring that are as long as a program's number says. The last argument is a
# table of counts, of which each program reads its own.
def first_then_while(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m = tkc.program_id(0) * BM
    count = counts[tkc.program_id(0)]
    rows = tkc.load(a, (m, 0), (BM, BK))
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, 2 * BK, BK):
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
    k = 0
    while k < count * BK:
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
        k = k + BK
    tkc.store(c, (m, 0), acc)


def first_then_for(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m = tkc.program_id(0) * BM
    rows = tkc.load(a, (m, 0), (BM, BK))
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, 2 * BK, BK):
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
    for k in tkc.range(0, counts[tkc.program_id(0)] * BK, BK):
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (m, 0), acc)


def round_the_loop(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m = tkc.program_id(0) * BM
    acc = tkc.zeros((BM, BN), tkc.float32)
    for _ in tkc.range(counts[tkc.program_id(0)]):
        for k in tkc.range(0, 2 * BK, BK):
            acc = tkc.dot(tkc.load(a, (m, 0), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (m, 0), acc)


def in_a_branch(a, b, counts, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m = tkc.program_id(0) * BM
    rows = tkc.load(a, (m, 0), (BM, BK))
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, 2 * BK, BK):
        acc = tkc.dot(rows, tkc.load(b, (k, 0), (BK, BN)), acc)
    if counts[tkc.program_id(0)] > 1:
        acc = tkc.dot(rows, tkc.load(b, (0, 0), (BK, BN)), acc)
    tkc.store(c, (m, 0), acc)


UNEVEN = first_then_while, first_then_for, round_the_loop, in_a_branch


@pytest.mark.parametrize("kernel", UNEVEN, ids=lambda k: k.__name__)
@pytest.mark.parametrize("cluster", [None, (2, 1), (4, 1)], ids=str)
def test_rings_that_blocks_fill_unequally_often(kernel, cluster):
    """Blocks share no copy into a ring that another loop or branch fills more often in one of them:
    the stages that come next would differ.
    """
    BM, BN, BK = 128, 64, 64
    arguments = array(tkc.bfloat16), array(tkc.bfloat16), array(tkc.int32, 1), result(tkc.float32)
    module = traced(kernel, *arguments, BM=BM, BN=BN, BK=BK)
    modules, given = stages.compiled(module.clone(), cluster=cluster, roles="cooperative")
    assert given.plan.roles == "cooperative"
    counts = np.int32([3, 0, 1, 2, 5])
    a = integers(len(counts) * BM, BK, dtype=tkc.bfloat16, seed=0)
    b = integers(2 * BK, BN, dtype=tkc.bfloat16, seed=1)
    want, got = (np.full((len(a), BN), np.nan, np.float32) for _ in range(2))
    level0.run(module, [a, b, counts, want], (len(counts), 1, 1))
    for resident in (1, 2, 4):
        run(modules[LAST], [a, b, counts, got], (len(counts), 1, 1), seed=0, resident=resident)
        np.testing.assert_array_equal(got, want)
