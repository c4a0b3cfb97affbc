"""The cross-tile prologue of co-resident programs: the next one's first dot is under way when
results leave. (Of programs one by one tests/passes/test_roles_attention.py has the tests.)
"""

import re

import pytest
from xdsl.dialects import scf

from tests.passes.stages import count, role, survivors
from tests.passes.test_co_resident import (
    CLAIMS,
    PASSED,
    RELEASED,
    SIDE_BY_SIDE,
    co_resident,
    windowed,
)
from tests.passes.test_roles_attention import Form, check, compiled, last
from tkc.ir import threads
from tkc.ir.types import PendingType


def test_the_first_dot_of_the_next_program_is_under_way_when_results_leave():
    """Issued before the first program, and in each way through a program; results leave behind."""
    form, apart = (
        Form(causal=True, block=(64, 64), options=co_resident(3, *others))
        for others in ((), (("cross_tile_prologue", False),))
    )
    assert (
        compiled(form)[1].plan.cross_tile_prologue
        and not compiled(apart)[1].plan.cross_tile_prologue
        and not any("no cross-tile prologue" in line for line in compiled(form)[1].decisions)
    )
    dots, stores = (
        [count(role(last(f), "consumer"), kind) for f in (form, apart)]
        for kind in (threads.DotAsync, threads.TmaStore)
    )
    assert dots[0] == dots[1] + 2 and stores[0] == stores[1]
    programs = next(
        op for op in role(last(form), "consumer").body.block.ops if isinstance(op, scf.WhileOp)
    )
    assert any(isinstance(v.type, PendingType) for v in programs.arguments)


def test_programs_whose_loops_begin_behind_blocks_of_others_begin_with_them():
    """How many those are only the next program's claim says."""
    _, early = windowed(co_resident(3, ("cross_tile_prologue", True)), False)
    assert not early.plan.cross_tile_prologue
    assert any("cross_tile_prologue = True is not used" in line for line in early.decisions)


@pytest.mark.parametrize("stages", [4, 6])
def test_a_ring_too_short_for_what_is_passed_over(stages):
    """Programs of 64 rows and 16 columns: others' blocks behind its own are up to eight, and who
    waited for those with the last stage in hand would wait for ever; also where a whole group sees
    no block, and its first one is loaded all the same.
    """
    form = Form(
        64,
        True,
        (64, 16),
        options=co_resident(3, ("cross_tile_prologue", True), ("num_stages", stages)),
    )
    assert (
        compiled(form)[1].plan.cross_tile_prologue and min(compiled(form)[1].plan.rings) == stages
    )
    for seed, (queries, keys, heads) in enumerate(
        ((300, 300, 2), (500, 130, 1), (130, 500, 2), (64, 64, 3), (700, 40, 1), (260, 0, 2))
    ):
        check(last(form), form, queries, keys, heads, seed=seed, resident=1 + seed % 2)


def test_a_group_has_a_block_at_least_and_the_first_finds_all_stages_free():
    """So the producer takes one way alone, and waits for no stage before its first programs."""
    form = Form(causal=True, block=(64, 64), options=co_resident(3))
    producer = role(last(form), "producer")
    assert compiled(form)[1].plan.cross_tile_prologue and count(producer, scf.IfOp) == 0
    ops = list(producer.body.block.ops)
    first = ops[: next(i for i, op in enumerate(ops) if isinstance(op, scf.WhileOp))]
    assert sum(isinstance(op, threads.TmaLoad) for op in first) == 4
    assert not any(isinstance(op, threads.MbarrierWait) for op in first)


def test_a_first_dot_is_issued_early_where_its_blocks_have_stages_of_their_own():
    """Twice as many as programs, of the blocks that each program loads once."""
    for deep, early in (2, False), (4, True):
        options = co_resident(3, ("num_stages", deep), ("cross_tile_prologue", True))
        form = Form(causal=True, block=(64, 64), options=options)
        assert compiled(form)[1].plan.cross_tile_prologue == early


# What a barrier expects is said when its last phase is long over. A program without blocks waits
# for both K and V of what it passes, of which one does; and that it knows the next claim follows
# from that one's Q, for which it has waited.
BEGUN = {
    "first parity: mbarrier_wait full in consumer",
    "earlier: mbarrier_expect full in producer, 4",
    *(
        f"{change}: mbarrier_wait full {ring} in consumer, 5"
        for ring in (2, 3)
        for change in ("drop", "later", "stage")
    ),
    *(f"{change}: mbarrier_wait full 4 in consumer" for change in ("drop", "later")),
    "leader alone: mbarrier_arrive empty 3 in consumer, 5",
    "earlier: mbarrier_arrive empty 2 in consumer, 3",
    "earlier: mbarrier_arrive empty 3 in consumer, 2",
    *(
        f"{change}: ring_next {which}"
        for change in ("parity stays", "stages + 1")
        for which in (
            "full in consumer",
            "full in producer",
            *(f"in consumer, {n}" for n in (3, 4, 5, 6)),
        )
    ),
}


def test_every_mutant_of_the_prologue_is_found():
    """Where programs pass others' blocks behind their own, and some have none of their own."""
    form = Form(
        causal=True,
        block=(64, 32),
        options=co_resident(2, ("num_stages", 4), ("cross_tile_prologue", True)),
    )
    assert compiled(form)[1].plan.cross_tile_prologue
    shapes = (128, 300, 2), (192, 128, 2), (320, 192, 1), (64, 0, 3), (64, 64, 4), (128, 300, 1)
    runs = [
        *(
            lambda m, shape=shape, seed=seed: check(m, form, *shape, seed=seed)
            for seed, shape in enumerate(shapes)
        ),
        *(
            lambda m, shape=shape: check(m, form, *shape, seed=shape[1], resident=1)
            for shape in ((320, 192, 5), (320, 64, 4))
        ),
    ]
    listed = RELEASED | CLAIMS | SIDE_BY_SIDE | PASSED | BEGUN
    number, missed = survivors(
        last(form),
        *runs,
        among=re.compile("mbarrier|ring_next|dot_wait|fence").search,
        known=listed.__contains__,
    )
    assert number > 300 and not missed, missed
