"""Programs whose loop slides along with them, all of one length but the first ones: these come
last, or some of them first. A product with a band matrix, of which each row of programs reads the
part round the diagonal.
"""

from functools import cache

import numpy as np
import pytest

import tkc
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.kernels import BF16
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    distinct,
    level,
    parses_back,
    run,
    without_threads,
)
from tests.passes.test_dynamic_tile_scheduler import triangular
from tkc.ir import threads, tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.sim import dataflow, level0

BLOCK = 64, 64, 32
ARRAY = ArrayArgument(tkc.bfloat16, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), 16))


def banded(a, b, c, width, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """c = a b, where a[i, j] is 0 but for i - width < j <= i."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(
        tkc.maximum(m - width + 1, 0) // BK * BK, tkc.minimum(a.shape[1], m + BM), BK
    ):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@cache
def compiled(kernel=banded, **options):
    return stages.compiled(
        traced(
            kernel, ARRAY, ARRAY, ARRAY, i32(), **dict(zip(("BM", "BN", "BK"), BLOCK, strict=False))
        ),
        cluster=(1, 1),
        **options,
    )


def grid(m: int, n: int) -> tuple[int, int, int]:
    return -(-m // BLOCK[0]), -(-n // BLOCK[1]), 1


def check(module, m: int, n: int, width: int, run=run, **how) -> None:
    rng = np.random.default_rng(m + n)
    a, b = (
        (np.tril(rng.integers(-3, 4, (m, m))) * np.tri(m, m, width - 1).T).astype(BF16),
        rng.integers(-3, 4, (m, n)).astype(BF16),
    )
    c = np.full((m, n), np.nan, BF16)
    run(module, [a, b, c, width], grid(m, n), **how)
    np.testing.assert_array_equal(
        c.astype(np.float32),
        (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16).astype(np.float32),
    )


SHAPES = (8, 8, 3), (64, 64, 1), (72, 200, 64), (264, 136, 100), (328, 64, 130), (328, 72, 1000)


@pytest.mark.parametrize("m, n, width", SHAPES)
def test_every_level(m, n, width):
    modules, given = compiled()
    assert given.plan.dynamic_schedule and any("come last" in line for line in given.decisions)
    for module in distinct(modules):
        parses_back(module)
    for module in without_threads(modules):
        check(module, m, n, width, level0.run if level(module) == 0 else run)
    for seed, resident in enumerate((1, 2, 3)):
        check(modules[LAST], m, n, width, seed=seed, resident=resident)


@pytest.fixture
def ran(monkeypatch) -> list[tuple[int, int]]:
    """The programs in the order in which one block, that has no others beside it, stores what they
    computed.
    """
    found, store = [], dataflow.RULES[tile.Store]
    monkeypatch.setitem(
        dataflow.RULES,
        tile.Store,
        lambda machine, op, *values: (
            found.append(tuple(int(machine[v]) // BLOCK[i] for i, v in enumerate(op.offsets))),
            store(machine, op, *values),
        )[1],
    )
    return found


@pytest.fixture
def small(monkeypatch) -> None:
    """A cache that holds the arrays of no two columns."""
    monkeypatch.setattr("tkc.passes.programs.order.SECTION_DIVISOR", 1 << 40)
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@pytest.fixture
def wave(monkeypatch):
    """Sets how many blocks there are beside the one that runs, itself among them."""
    before = dataflow.RULES[threads.Identity]

    def blocks(count: int) -> None:
        monkeypatch.setitem(
            dataflow.RULES,
            threads.Identity,
            lambda machine, op, *values: (
                np.int32(count) if op.what.data == "clusters" else before(machine, op, *values)
            ),
        )

    return blocks


@pytest.mark.parametrize(
    "width, blocks, first, last",
    [
        (192, 1, (), (2, 1, 0)),
        (192, 2, (), (2, 1, 0)),
        (192, 3, (2,), (1, 0)),
        (192, 100, (2,), (1, 0)),
        (250, 100, (3, 1), (2, 0)),
        (250, 5, (3,), (2, 1, 0)),
        (128, 100, (), (1, 0)),
        (64, 3, (), (0,)),
        (1, 9, (), ()),
    ],
)
def test_every_second_short_one_comes_first_where_blocks_can_begin_with_them(
    width, blocks, first, last, wave, ran
):
    """Of three columns each, as many as there are blocks for, where there are more than two; the
    others come last, the longest of them first.
    """
    wave(blocks)
    check(compiled()[0]["schedule-programs"], 64 * 9, 64 * 3, width)
    short = len(first) + len(last)
    assert ran == [(m, n) for m in first for n in range(3)] + [
        (m, n) for n in range(3) for m in reversed(range(short, 9))
    ] + [(m, n) for m in last for n in range(3)]


def test_none_come_first_where_most_are_short(wave, ran):
    """These are programs that grow: the longest first."""
    wave(100)
    check(compiled()[0]["schedule-programs"], 64 * 7, 64 * 3, 10_000)
    assert ran == [(6, n) for n in range(3)] + [
        (m, n) for m in reversed(range(6)) for n in range(3)
    ]


@pytest.mark.parametrize(
    "rows, columns, width, short",
    [
        (9, 3, 100, 2),
        (9, 3, 64, 1),
        (9, 3, 65, 1),
        (9, 2, 66, 2),
        (5, 4, 1, 0),
        (7, 3, 10_000, 6),
        (1, 3, 64, 0),
        (2, 2, 64, 1),
        (6, 3, 257, 4),
    ],
)
def test_the_short_ones_come_last(rows, columns, width, short, ran):
    """Whole ones column by column, as their neighbours read much of what they do; then the rest,
    the longest first, side by side.
    """
    check(compiled()[0]["schedule-programs"], 64 * rows, 64 * columns, width)

    def length(m):
        return (m + 1) * 64 - max(64 * m - width + 1, 0) // 32 * 32

    assert sum(length(m) < length(rows - 1) for m in range(rows)) <= short
    assert ran == [(m, n) for n in range(columns) for m in reversed(range(short, rows))] + [
        (m, n) for m in reversed(range(short)) for n in range(columns)
    ]


def test_short_ones_of_many_neighbours_run_in_sections(small, ran):
    """All rows but one are short, and the arrays of one column fill the room there is: column by
    column.
    """
    check(compiled()[0]["schedule-programs"], 64 * 4, 64 * 3, 10_000)
    assert ran == [(3, n) for n in range(3)] + [(m, n) for n in range(3) for m in (2, 1, 0)]


@pytest.mark.parametrize("rows, columns", [(10, 3), (5, 2), (2, 4), (1, 3), (11, 1)])
def test_growing_programs_run_in_sections_and_the_shortest_of_all_last(rows, columns, small, ran):
    """Rows that end at the diagonal, each column a section; a fifth of the rows, all columns side
    by side, where what they read fits as well.
    """
    modules, _ = stages.compiled(
        traced(
            triangular, ARRAY, ARRAY, ARRAY, **dict(zip(("BM", "BN", "BK"), BLOCK, strict=False))
        ),
        cluster=(1, 1),
    )
    size, few = 64 * rows, -(-rows // 5)
    run(
        modules["schedule-programs"],
        [
            np.zeros((size, size), BF16),
            np.zeros((size, 64 * columns), BF16),
            np.zeros((size, 64 * columns), BF16),
        ],
        (rows, columns, 1),
    )
    assert ran == [(m, n) for n in range(columns) for m in reversed(range(few, rows))] + [
        (m, n) for n in range(columns) for m in reversed(range(few))
    ]


def test_growing_programs_side_by_side(ran):
    modules, _ = stages.compiled(
        traced(
            triangular, ARRAY, ARRAY, ARRAY, **dict(zip(("BM", "BN", "BK"), BLOCK, strict=False))
        ),
        cluster=(1, 1),
    )
    run(
        modules["schedule-programs"],
        [np.zeros((384, 384), BF16), np.zeros((384, 192), BF16), np.zeros((384, 192), BF16)],
        (6, 3, 1),
    )
    assert ran == [(m, n) for m in reversed(range(6)) for n in range(3)]


@pytest.mark.parametrize("section, few", [(4, 1), (11, 0)])
def test_larger_sections(section, few, ran, monkeypatch):
    """An eighth of the rows comes last; what is short is read with the rest of its section, where
    that has enough of it.
    """
    columns = 2 * section

    class Fits:
        def __rfloordiv__(self, cache):
            return section * 2 * (320 * 320 + 320 * 64 * columns)

    monkeypatch.setattr("tkc.passes.programs.order.SECTION_DIVISOR", Fits())
    modules, _ = stages.compiled(
        traced(
            triangular, ARRAY, ARRAY, ARRAY, **dict(zip(("BM", "BN", "BK"), BLOCK, strict=False))
        ),
        cluster=(1, 1),
    )
    run(
        modules["schedule-programs"],
        [
            np.zeros((320, 320), BF16),
            np.zeros((320, 64 * columns), BF16),
            np.zeros((320, 64 * columns), BF16),
        ],
        (5, columns, 1),
    )
    assert ran == [
        (m, n)
        for first in (0, section)
        for m in reversed(range(few, 5))
        for n in range(first, first + section)
    ] + [(m, n) for m in reversed(range(few)) for n in range(columns)]


def test_a_place_inside_another_loop_is_left_alone():
    """Where a loop begins by the counter of one round it, no program's length follows from its
    place.
    """

    def nested(a, b, c, width, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
        m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
        acc = tkc.zeros((BM, BN))
        for first in tkc.range(0, width, 64):
            for k in tkc.range(m + first, m + first + 64, BK):
                acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
        tkc.store(c, (m, n), acc.to(c.dtype))

    _, given = compiled(nested)
    assert not any("come last" in line for line in given.decisions)


@assembler
def test_it_assembles_clean():
    assembles_clean(compiled()[0][LAST])


def upper_triangular(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """The other half of a square: rows begin at the diagonal, the loop counts its steps."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for i in tkc.range(tkc.cdiv(a.shape[1] - m // BK * BK, BK)):
        k = m // BK * BK + i * BK
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc)


@pytest.mark.parametrize("rows, columns", [(10, 3), (2, 4), (1, 3)])
def test_falling_programs_run_from_the_first_on(rows, columns, small, ran):
    constants = dict(zip(("BM", "BN", "BK"), BLOCK, strict=False))
    traced_kernel = traced(upper_triangular, ARRAY, ARRAY, ARRAY, **constants)
    modules, _ = stages.compiled(traced_kernel, cluster=(1, 1))
    size, few = 64 * rows, -(-rows // 5)
    arrays = [np.zeros((size, n), BF16) for n in (size, 64 * columns, 64 * columns)]
    run(modules["schedule-programs"], arrays, (rows, columns, 1))
    assert ran == [(m, n) for n in range(columns) for m in range(rows - few)] + [
        (m, n) for n in range(columns) for m in range(rows - few, rows)
    ]
