"""Several sums in one loop through Hopper's engines: dots that share a factor, add to one sum one
after the other, or read one block both ways round.

All numbers are small integers, so that sums are exact in float32 and every result has one right
value.
"""

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
from tests.passes.kernels import BF16, context, through
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
from tkc.sim import level4


def gated(x, g, u, c, d, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """An operand for two dots."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    one = two = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        rows = tkc.load(x, (m, k), (BM, BK))
        one = tkc.dot(rows, tkc.load(g, (k, n), (BK, BN)), one)
        two = tkc.dot(rows, tkc.load(u, (k, n), (BK, BN)), two)
    tkc.store(c, (m, n), tkc.maximum(one, two).to(c.dtype))
    tkc.store(d, (m, n), (one - two).to(d.dtype))


def complex_product(x, y, z, c, d, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """x·z + y·z' and x·z' for z = [z, z'] of two blocks: the first sum is of two dots, one after
    the other.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    one = two = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        a, b = tkc.load(x, (m, k), (BM, BK)), tkc.load(y, (m, k), (BM, BK))
        right, turned = tkc.load(z[0], (k, n), (BK, BN)), tkc.load(z[1], (k, n), (BK, BN))
        one = tkc.dot(b, turned, tkc.dot(a, right, one))
        two = tkc.dot(a, turned, two)
    tkc.store(c, (m, n), one.to(c.dtype))
    tkc.store(d, (m, n), two.to(d.dtype))


def moments(x, y, c, d, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """xᵀx and xᵀy: one block is both operands of a dot, K-major in neither."""
    one = two = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[0], BK):
        rows, other = tkc.load(x, (k, 0), (BK, BM)), tkc.load(y, (k, 0), (BK, BN))
        one = tkc.dot(rows.T, rows, one)
        two = tkc.dot(rows.T, other, two)
    tkc.store(c, (0, 0), one.to(c.dtype))
    tkc.store(d, (0, 0), two.to(d.dtype))


@dataclass(frozen=True)
class Form:
    kernel: Callable
    block: tuple[int, int, int] = (128, 64, 32)
    options: tuple = (("num_stages", 3), ("cluster", (1, 1)))

    @property
    def name(self) -> str:
        return " ".join(
            [
                self.kernel.__name__,
                "x".join(map(str, self.block)),
                *(f"{k} {v}" for k, v in self.options),
            ]
        )


FORMS = [
    Form(gated),
    Form(complex_product),
    Form(moments, (64, 64, 32)),
    Form(gated, (128, 128, 64), ()),
    Form(gated, (192, 64, 64), ()),
    Form(gated, (256, 64, 64), (("num_warps", 16),)),
    Form(gated, (16, 64, 64), ()),
    Form(complex_product, (128, 64, 64), ()),
    Form(moments, (128, 128, 64), ()),
    Form(gated, (128, 128, 32), (("num_stages", 3),)),
]
SMALL = {"gated": FORMS[0], "complex": FORMS[1], "moments": FORMS[2], "cluster": FORMS[-1]}
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
EACH = pytest.mark.parametrize("form", SMALL.values(), ids=SMALL.keys())


@cache
def compiled(form: Form):
    (BM, BN, BK), ranks = (
        form.block,
        {gated: (2, 2, 2, 2, 2), complex_product: (2, 2, 3, 2, 2), moments: (2, 2, 2, 2)}[
            form.kernel
        ],
    )
    return stages.compiled(
        traced(form.kernel, *(array(tkc.bfloat16, rank) for rank in ranks), BM=BM, BN=BN, BK=BK),
        **dict(form.options),
    )


def last(form: Form):
    return compiled(form)[0][LAST]


def check(module, form: Form, m: int, n: int, k: int, run=run, **how) -> None:
    if form.kernel is moments:
        m, n = form.block[:2]
    shapes = {
        gated: ((m, k), (k, n), (k, n)),
        complex_product: ((m, k), (m, k), (2, k, n)),
        moments: ((k, m), (k, n)),
    }[form.kernel]
    given = [integers(*shape, dtype=tkc.bfloat16, seed=i) for i, shape in enumerate(shapes)]
    c, d = (integers(m, n, dtype=tkc.bfloat16, seed=3) for _ in "cd")
    c[...] = d[...] = np.nan
    run(module, [*given, c, d], (-(-m // form.block[0]), -(-n // form.block[1]), 1), **how)
    x, y, *z = map(np.float64, given)
    if form.kernel is gated:
        one, two = x @ y, x @ z[0]
        one, two = np.maximum(one, two), one - two
    elif form.kernel is moments:
        one, two = x.T @ x, x.T @ y
    else:
        one, two = x @ z[0][0] + y @ z[0][1], x @ z[0][1]
    np.testing.assert_array_equal(c, one.astype(c.dtype))
    np.testing.assert_array_equal(d, two.astype(d.dtype))


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


@pytest.mark.parametrize("form", [*SMALL.values(), FORMS[6]], ids=lambda f: f.name)
def test_what_the_text_computes(form):
    stages.in_text(last(form), form, check)


def sums_of(role: threads.Role) -> list[scf.ForOp]:
    """The loops of a role that have dots, but for the one over its programs."""
    return [
        op
        for op in role.walk()
        if isinstance(op, scf.ForOp)
        and any(isinstance(o, threads.DotAsync) for o in op.body.block.ops)
    ]


@EVERY
def test_one_ring_and_one_group_of_dots(form):
    """All operands of a step come in one stage, a shared one once; all dots of a step are one
    group, one deep.
    """
    plan, kernel = compiled(form)[1].plan, last(form).body.block.first_op
    dots, loads = {gated: (2, 3), complex_product: (3, 4), moments: (2, 2)}[form.kernel]
    producer, consumer = role(kernel, "producer"), role(kernel, "consumer")
    assert (
        plan.roles == "cooperative"
        and len(plan.rings) == 1
        and {load.ring for load in plan.loads} == {0}
        and len(plan.loads) == loads
    )
    assert (
        count(producer, threads.MbarrierExpect) == 1
        and count(producer, threads.TmaLoad) == loads
        and not count(consumer, (tile.Dot, tile.Load, threads.TmaLoad))
        # results are read before they are stored, behind the loop
        and not any(count(loop, shared.Read) for loop in sums_of(consumer))
    )
    assert count(consumer, threads.DotAsync) == dots and count(consumer, threads.DotCommit) == 1
    assert [op.pending.value.data for op in consumer.walk() if isinstance(op, threads.DotWait)] == [
        1,
        0,
    ] and count(consumer, threads.MbarrierArrive) == 2
    for module in distinct(compiled(form)[0]):
        parses_back(module)


def looked_at(x, y, z, c, d, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """One of the sums is looked at in the loop."""
    one = two = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        rows = tkc.load(x, (0, k), (BM, BK))
        one = tkc.dot(rows, tkc.load(y, (k, 0), (BK, BN)), one)
        two = tkc.dot(rows, tkc.load(z, (k, 0), (BK, BN)), tkc.maximum(two, one))
    tkc.store(c, (0, 0), one.to(c.dtype))
    tkc.store(d, (0, 0), two.to(d.dtype))


def test_sums_that_are_looked_at_in_the_loop_share_their_rows():
    """Their dots do not add up round the loop alone, and read one stage all the same."""
    given = context("sm_90a")
    kinds = [array(tkc.bfloat16) for _ in range(5)]
    module = traced(looked_at, *kinds, BM=128, BN=64, BK=32)
    through(module, LAST, given)
    assert given.has_roles
    assert not any("separate-operands" in line for line in given.decisions)
    rng = np.random.default_rng(0)
    x, y, z = (rng.integers(-1, 2, s).astype(BF16) for s in ((128, 96), (96, 64), (96, 64)))
    one = two = np.zeros((128, 64))
    for k in range(0, 96, 32):
        rows = x[:, k : k + 32].astype(np.float64)
        one = one + rows @ y[k : k + 32].astype(np.float64)
        two = np.maximum(two, one) + rows @ z[k : k + 32].astype(np.float64)
    for simulate in (level4.run, machine.run):
        c, d = (np.zeros((128, 64), BF16) for _ in "cd")
        simulate(module, [x, y, z, c, d], (1, 1, 1))
        np.testing.assert_array_equal(c.astype(np.float64), one)
        np.testing.assert_array_equal(d.astype(np.float64), two)


@assembler
@EVERY
def test_it_assembles_clean(form):
    assembles_clean(last(form))


@pytest.mark.parametrize("name", ["gated", "complex"])
def test_every_mutant_is_found(name):
    """One block takes three programs, so that subtiles and stages are used again."""
    form = SMALL[name]
    BM, BN, BK = form.block
    number, missed = survivors(
        last(form),
        *(
            lambda m, seed=seed, steps=steps: check(m, form, 3 * BM, BN, steps * BK, seed=seed)
            for seed, steps in enumerate((4, 5, 7))
        ),
        known=RELEASED.__contains__,
    )
    assert number > 40 and not missed, missed
