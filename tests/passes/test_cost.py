"""The cost model: what it reads off a kernel, what it holds better than what, and that it ranks
measured plans as they were measured.
"""

import pytest

import tkc
from benchmarks.fit_costs import product_like
from tests.language.kernels import array, matmul, traced
from tests.passes.kernels import aligned, attended, context
from tkc.ir.target import target
from tkc.passes import plan as planning
from tkc.passes.analysis.values import LOADS
from tkc.passes.plan import candidates, kernel_of, keywords
from tkc.passes.planning import products
from tkc.passes.planning.cost import Work, cost
from tkc.passes.planning.numbers import Numbers, Sizes
from tkc.passes.planning.products import Block

BFLOAT16 = aligned(tkc.bfloat16, 2)


def product(BM, BN, BK=64, kind=BFLOAT16):
    return traced(matmul, kind, kind, kind, BM=BM, BN=BN, BK=BK)


def sizes(m, n, k, BM, BN):
    return Sizes((-(-m // BM), -(-n // BN), 1), ((m, k), (k, n), (m, n)))


def estimate(shape, block, name="sm_90a", kind=BFLOAT16, **options) -> float:
    module, (m, n, k) = product(*block, kind=kind), shape
    given = context(name, **options)
    return cost(
        Work.of(kernel_of(module), sizes(m, n, k, *block[:2])),
        planning.plan(module, given),
        given.target,
    ).seconds


def test_what_a_product_does():
    kernel = kernel_of(product(128, 256))
    work = Work.of(kernel, sizes(1000, 2000, 4000, 128, 256))
    loop, rest = sorted(work.parts, key=lambda p: -p.trips)
    assert (
        loop.trips == 63
        and loop.dots[0].shape == (128, 256, 64)
        and [m.bytes for m in loop.moved] == [128 * 64 * 2, 64 * 256 * 2]
        and all(m.fed for m in loop.moved)
    )
    assert (
        [m.axes for m in loop.moved] == [frozenset({0}), frozenset({1})]
        and rest.trips == 1
        and work.stored == 128 * 256 * 2
    )
    assert (
        work.footprint == 2 * (1000 * 4000 + 4000 * 2000) and Work.of(kernel).parts[0].trips == 64
    )


def test_blocks_larger_than_their_array():
    work = Work.of(kernel_of(product(128, 256)), sizes(16, 2048, 4096, 128, 256))
    assert [m.inside for m in work.parts[0].moved] == [16 * 64 * 2, 64 * 256 * 2]


def test_trips_of_a_causal_loop_are_those_of_the_middle():
    module = attended(1024, 64, 128, 128, True).module()
    shape = (1, 2, 1024, 64)
    known = Numbers(kernel_of(module), Sizes((8, 2, 1), (shape,) * 4 + (0.25,)))
    assert {
        known.trips(op.parent_op())
        for op in kernel_of(module).walk()
        if isinstance(op, LOADS) and op.parent_op() is not kernel_of(module)
    } == {5}


@pytest.mark.parametrize(
    "shape, better, worse",
    [  # each pair measured on an H200, 2026-11-21
        ((4096, 4096, 4096), (128, 256, 64), (128, 192, 64)),  # 189 us and 204: waves
        ((4096, 4096, 4096), (128, 256, 64), (128, 64, 64)),  # shared memory
        ((1024, 1024, 1024), (64, 128, 64), (128, 256, 64)),  # multiprocessors with nothing to do
        ((64, 8192, 8192), (64, 64, 64), (128, 64, 64)),  # 44 us and 62: rows outside the array
        # 42 us and 135: results stored from registers
        (
            (8192, 8192, 64),
            (128, 256, 64),
            (128, 224, 64),
        ),
        ((16, 14336, 4096), (64, 128, 64), (64, 64, 64)),  # 42 us and 55
    ],
)
def test_measured_pairs(shape, better, worse):
    assert estimate(shape, better) < estimate(shape, worse)


@pytest.mark.parametrize(
    "shape, block, better, worse",
    [  # each pair measured on an H200, 2026-11-28, with b dense along k
        ((640, 1856, 9152), (64, 144, 64), (1, 1), (2, 1)),  # 37.0 us and 42.0: neighbours' copies
        ((768, 1280, 11072), (64, 128, 64), (1, 1), (1, 2)),  # 38.0 and 50.7: likewise
        ((640, 1856, 9152), (128, 96, 64), (1, 1), (2, 1)),  # 41.1 and 64.4: beyond the grid
        ((640, 1856, 9152), (96, 128, 64), (1, 1), (2, 1)),  # 40.8 and 58.0: likewise
        ((1552, 344, 7736), (64, 96, 64), (2, 4), (1, 1)),  # 30.1 and 44.5: rows cut sectors
        ((1552, 344, 7736), (64, 96, 64), (2, 4), (2, 1)),  # 30.1 and 36.8: likewise
    ],
)
def test_measured_clusters(shape, block, better, worse):
    assert clustered(shape, block, better) < clustered(shape, block, worse)


def clustered(shape, block, cluster):
    """Seconds of a product whose b is dense along k."""
    rows, columns, depth = block
    made = Block(rows, columns, depth=depth, cluster=cluster)
    return products.seconds(product_like(shape, "nt"), made, target("sm_90a"))


def test_what_stands_together_in_a_gpc():
    """Of blocks alone sixteen in a row; clusters go to the eight GPCs in turn, of a column of eight
    each to the same row, and to seven once the smallest GPC is full, each to another row.
    """
    machine = target("sm_90a")
    count, down, across = machine.neighbours((32, 16), (1, 1), 8, 1)
    assert (count, down) == (16.5, 8) and 2 <= across < 3
    count, down, across = machine.neighbours((32, 16), (2, 1), 8, 1)
    assert (count, down, across) == (16.5, 2 * (1 + 8) / 2, 8.25)
    count, down, across = machine.neighbours((6, 16), (2, 1), 8, 1)
    assert (count, down) == (16.5, 6) and across == 8.25


def test_unaligned_rows_cost_more():
    odd = array(tkc.bfloat16, 2, strides=(None, 1))
    assert estimate((4096, 4096, 4097), (128, 128, 64), kind=odd) > 2 * estimate(
        (4096, 4096, 4096), (128, 128, 64)
    )


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_candidates_with_sizes_are_the_cheapest_first(name):
    module, given = product(128, 128), context(name)
    work, asked = (
        Work.of(kernel_of(module), sizes(4096, 4096, 4096, 128, 128)),
        sizes(4096, 4096, 4096, 128, 128),
    )
    found = list(candidates(module, given, asked))
    assert set(found) == set(candidates(module, given)) and len(found) > 1
    assert [cost(work, p, given.target).seconds for p in found] == sorted(
        cost(work, p, given.target).seconds for p in found
    )
    for p in found[:3]:
        forced = planning.plan(product(128, 128), context(name, **keywords(p)))
        assert keywords(forced) == keywords(p)  # each choice can be forced by keyword


def test_decisions_say_what_was_rejected_and_why():
    module, given = product(128, 256), context("sm_90a")
    chosen = planning.plan(module, given)
    said = next(line for line in chosen.decisions if "cost model" in line)
    assert "rejected" in said and "% slower" in said
    assert planning.plan(product(128, 256), context("sm_90a", cluster=(1, 1))).cluster == (1, 1)
    assert planning.plan(product(128, 256), context("sm_90a", roles="one")).roles == "one"


def test_what_is_asked_for_in_vain_is_said_or_refused():
    from tkc.errors import CompileError

    said = planning.plan(product(128, 256), context("sm_90a", programs=2)).decisions
    assert any("programs = 2 is not used" in line for line in said)
    assert any(
        "cluster = (2, 1) is not used" in line
        for line in planning.plan(product(128, 128), context("sm_80", cluster=(2, 1))).decisions
    )
    with pytest.raises(CompileError, match="num_stages = 9 does not fit .* at most 4 stages do"):
        planning.plan(product(128, 256), context("sm_90a", num_stages=9))


def test_no_raster_shares_more_where_one_axis_has_all_programs():
    for shape in ((65536, 128, 4096), (128 * 640, 96, 4096)):
        one, eight = (estimate(shape, (64, 128), roles="one", raster=raster) for raster in (1, 8))
        assert eight == one


@pytest.mark.parametrize(
    "shape, shared",
    [((2048, 2304, 8192), True), ((2048, 2304, 256), False), ((1408, 3072, 8192), False)],
    ids=["a rest of a wave", "too short to share", "a whole wave"],
)
def test_programs_of_an_unfinished_wave_are_tried_in_parts(shape, shared):
    """128 x 256: of 144 programs twelve are left for a second wave; of 132 none."""
    block, (m, n, k) = (128, 256), shape
    module = product(*block)
    found = planning.candidates(module, context("sm_90a"), sizes(m, n, k, *block))
    assert any(p.stream_k for p in found) == shared
    if shared:
        assert found[0].stream_k, "twelve programs cost as much as a whole wave"
    asked = planning.candidates(module, context("sm_90a", stream_k=0), sizes(m, n, k, *block))
    assert not any(p.stream_k for p in asked)
