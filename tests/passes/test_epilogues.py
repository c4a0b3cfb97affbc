"""What a kernel computes between its loop and its stores, on the way of Hopper's engines: right,
free of races, and without a register spilled.
"""

from dataclasses import replace
from functools import cache
from math import erf, pi, sqrt

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.stages import LAST, assembler, assembles_clean, count, role, run, without_threads
from tests.passes.test_roles import NUMPY, array, integers, result
from tkc.ir import shared, threads, tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.ir.values import layout_of
from tkc.language.signature import ArrayArgument


def fused(
    a,
    b,
    bias,
    scale,
    r,
    c,
    d,
    sums,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    EPILOGUE: tkc.constexpr,
):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    if "scale" in EPILOGUE:
        acc = acc * tkc.load(scale, (m,), (BM,))[:, None]
    if "bias" in EPILOGUE:
        acc = acc + tkc.load(bias, (n,), (BN,)).to(tkc.float32)[None, :]
    if "second" in EPILOGUE:
        tkc.store(d, (m, n), acc.to(d.dtype))
    if "tanh" in EPILOGUE:
        acc = 0.5 * acc * (1 + tkc.tanh(sqrt(2 / pi) * (acc + 0.044715 * acc * acc * acc)))
    if "erf" in EPILOGUE:
        acc = 0.5 * acc * (1 + tkc.erf(sqrt(0.5) * acc))
    if "silu" in EPILOGUE:
        acc = acc * tkc.sigmoid(acc)
    if "gate" in EPILOGUE:
        acc = acc * tkc.load(r, (m, n), (BM, BN)).to(tkc.float32)
    if "residual" in EPILOGUE:
        acc = acc + tkc.load(r, (m, n), (BM, BN)).to(tkc.float32)
    if "in place" in EPILOGUE:
        acc = acc + tkc.load(c, (m, n), (BM, BN)).to(tkc.float32)
    if "columns" in EPILOGUE:
        tkc.store(sums, (tkc.program_id(0), n), tkc.sum(acc, axis=0)[None, :])
    if "rows" in EPILOGUE:
        tkc.store(sums, (m, tkc.program_id(1)), tkc.sum(acc, axis=1)[:, None])
    tkc.store(c, (m, n), acc.to(c.dtype))


def expected(a, b, bias, scale, r, c, block, epilogue):
    """(c, d, sums) in float64."""
    acc, d = np.float64(a) @ np.float64(b), None
    if "scale" in epilogue:
        acc = acc * scale[:, None]
    if "bias" in epilogue:
        acc = acc + np.float64(bias)
    if "second" in epilogue:
        d = acc
    if "tanh" in epilogue:
        acc = 0.5 * acc * (1 + np.tanh(sqrt(2 / pi) * (acc + 0.044715 * acc**3)))
    if "erf" in epilogue:
        acc = 0.5 * acc * (1 + np.vectorize(erf)(sqrt(0.5) * acc))
    if "silu" in epilogue:
        acc = acc / (1 + np.exp(-acc))
    if "gate" in epilogue:
        acc = acc * np.float64(r)
    if "residual" in epilogue:
        acc = acc + np.float64(r)
    if "in place" in epilogue:
        acc = acc + np.float64(c)
    (BM, BN, _), (m, n) = block, acc.shape
    columns = (
        np.stack([acc[i : i + BM].sum(0) for i in range(0, m, BM)])
        if "columns" in epilogue
        else None
    )
    return (
        acc,
        d,
        (
            np.stack([acc[:, j : j + BN].sum(1) for j in range(0, n, BN)], 1)
            if "rows" in epilogue
            else columns
        ),
    )


EPILOGUES = (
    "bias",
    "residual",
    "in place",
    "bias tanh",
    "bias erf",
    "bias silu gate",
    "scale bias residual second",
    "columns",
    "rows",
    "columns residual",
)
PLANS = {
    "ping-pong": ((64, 64, 32), dict(cluster=(1, 1), programs=2)),
    "ping-pong in a cluster": ((128, 128, 32), {}),
    "cooperative": ((128, 64, 32), dict(roles="cooperative", cluster=(1, 1))),
    "transposed": ((48, 128, 32), dict(roles="cooperative", cluster=(1, 1))),
    "transposed in ping-pong": ((88, 64, 32), dict(cluster=(1, 1), programs=2)),
}
EVERY = pytest.mark.parametrize("epilogue", EPILOGUES)


@cache
def compiled(block, epilogue, options: tuple = (), known: bool = False):
    BM, BN, BK = block
    kinds = [
        *[(tkc.bfloat16, 2)] * 2,
        (tkc.bfloat16, 1),
        (tkc.float32, 1),
        *[(tkc.bfloat16, 2)] * 3,
        (tkc.float32, 2),
    ]
    arguments = [array(*kind) for kind in kinds]
    arguments[4:7] = [result(tkc.bfloat16)] * 3
    if known:
        arguments = [
            replace(one, facts=replace(one.facts, shape=(Fact(16),) * len(one.facts.shape)))
            for one in arguments
        ]
    return stages.compiled(
        traced(fused, *arguments, BM=BM, BN=BN, BK=BK, EPILOGUE=epilogue),
        **dict(options),
    )


def check(module, block, epilogue, m, n, k, run=run, **how) -> None:
    n = -(-n // 8) * 8  # rows of results end at multiples of 16 bytes
    a, b, r, c, d = (
        integers(*shape, dtype=tkc.bfloat16, seed=i)
        for i, shape in enumerate(((m, k), (k, n), (m, n), (m, n), (m, n)))
    )
    bias, scale = integers(n, dtype=tkc.bfloat16, seed=7), integers(m, dtype=tkc.float32, seed=8)
    if any(word in epilogue for word in ("tanh", "erf", "silu")):
        a[...] = (np.float32(a) / 8).astype(a.dtype)
    BM, BN, _ = block
    grid = -(-m // BM), -(-n // BN), 1
    sums = np.full(
        (
            (grid[0], -(-n // 8) * 8)
            if "columns" in epilogue
            else (-(-m // 8) * 8, -(-grid[1] // 8) * 8)
        ),
        np.nan,
        np.float32,
    )
    wanted = expected(a, b, bias, scale, r, c, block, epilogue)
    sums = sums[:, :n] if "columns" in epilogue else sums[:m, : grid[1]]
    if "in place" not in epilogue:
        c[...] = np.nan
    run(module, [a, b, bias, scale, r, c, d, sums], grid, **how)
    for got, want in zip((c, d, sums), wanted, strict=False):
        if want is not None:
            np.testing.assert_allclose(
                np.float64(got),
                want,
                rtol=2**-8 if got.dtype == NUMPY[tkc.bfloat16] else 1e-5,
                atol=1e-3 if got.dtype == NUMPY[tkc.bfloat16] else 1e-2,
            )


@pytest.mark.parametrize("plan", PLANS)
@EVERY
def test_every_level(epilogue, plan):
    block, options = PLANS[plan]
    modules, given = compiled(block, epilogue, tuple(options.items()))
    assert (
        given.plan.roles == "pingpong"
        if "ping" in plan and epilogue != "columns residual"
        else given.plan.roles in ("pingpong", "cooperative")
    )
    for module in without_threads(modules):
        check(module, block, epilogue, block[0] + 5, block[1] - 7, 2 * block[2] - 7)
    for seed in range(2):
        check(
            modules[LAST],
            block,
            epilogue,
            4 * block[0] - 5,
            block[1] + 9,
            3 * block[2] - 7,
            seed=seed,
        )


@pytest.mark.parametrize(
    "plan, epilogue",
    [
        ("ping-pong", "scale bias residual second"),
        ("ping-pong in a cluster", "bias tanh"),
        ("cooperative", "rows"),
        ("cooperative", "columns residual"),
    ],
)
def test_what_the_text_computes(plan, epilogue):
    block, options = PLANS[plan]
    check(
        compiled(block, epilogue, tuple(options.items()))[0][LAST],
        block,
        epilogue,
        block[0] + 5,
        block[1] + 9,
        3 * block[2] - 7,
        run=machine.run,
        resident=1,
    )


@pytest.mark.parametrize("plan", PLANS)
@EVERY
def test_results_and_loads_go_through_the_copy_engine_subtile_by_subtile(epilogue, plan):
    block, options = PLANS[plan]
    modules, given = compiled(block, epilogue, tuple(options.items()))
    consumer = role(modules[LAST], "consumer")
    assert count(consumer, threads.TmaStore) >= 1 + ("second" in epilogue) and not any(
        isinstance(op, tile.Store) and sum(n > 1 for n in op.value.type.extents) > 1
        for op in consumer.walk()
    )
    if "columns" in epilogue or "rows" in epilogue and "transposed" in plan:
        return  # a tile that is reduced along what subtiles divide is whole
    subtile = given.plan.columns
    assert all(
        max(op.result.type.extents) <= max(subtile, 64 * given.plan.warps // 4)
        for op in consumer.walk()
        if isinstance(op, (tile.Load, shared.Read)) and isinstance(op.result.type, tile.TileType)
    )


@assembler
@pytest.mark.parametrize("block", [(128, 192, 64), (128, 256, 64), (128, 128, 64)], ids=str)
@pytest.mark.parametrize(
    "epilogue",
    [
        "bias",
        "residual",
        "bias tanh",
        "bias erf",
        "bias silu gate",
        "scale bias residual second",
        "rows",
    ],
)
def test_no_register_is_spilled(epilogue, block):
    assembles_clean(compiled(block, epilogue, (), True)[0][LAST])


def shifted(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A product stored twice, the second time a column further."""
    m = tkc.program_id(0) * BM
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (m, 0), acc.to(c.dtype))
    tkc.store(c, (m, 1), (acc + 1).to(c.dtype))


def stored_product(fn, stride: Fact, align: int, **options):
    """A product whose results begin at multiples of so many bytes, in rows so far apart."""
    given = ArrayFacts((Fact(), Fact()), (Fact(8), Fact(exact=1)), 16)
    of_result = ArrayFacts((Fact(), Fact()), (stride, Fact(exact=1)), align)
    arrays = [ArrayArgument(tkc.bfloat16, facts) for facts in (given, given, of_result)]
    return stages.compiled(traced(fn, *arrays, BM=128, BN=64, BK=64), **options)


def one_result(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@pytest.mark.parametrize("roles", ["cooperative", "pingpong"])
@pytest.mark.parametrize(
    "stride, align, vector", [(Fact(), 2, 1), (Fact(2), 4, 2), (Fact(4), 16, 4), (Fact(8), 16, 8)]
)
def test_threads_store_rows_that_tensor_maps_do_not(stride, align, vector, roles):
    """As wide as alignment allows, neighbours by neighbouring lanes."""
    options = {"epilogue": "shared"} if vector == 8 else {}
    modules, context = stored_product(one_result, stride, align, roles=roles, **options)
    assert context.plan.epilogue == "shared"
    consumer = role(modules[LAST], "consumer")
    stores = [op for op in consumer.walk() if isinstance(op, tile.Store)]
    assert stores and not count(consumer, threads.TmaStore)
    for op in stores:
        layout = layout_of(op.value)
        lanes = layout.offsets("lanes")[:, 1]
        assert layout.vector(1) == vector and (np.diff(np.unique(lanes)) == vector).all()
    assembles_clean(modules[LAST])
    a, b = (integers(*s, dtype=tkc.bfloat16, seed=i) for i, s in enumerate([(140, 96), (96, 70)]))
    pitch = 73 if vector == 1 else 74 if vector == 2 else 76 if vector == 4 else 80
    for seed in range(2):
        c = np.full((140, pitch), np.nan, NUMPY[tkc.bfloat16])
        run(modules[LAST], [a, b, c[:, :70]], (2, 2, 1), seed=seed)
        want = (np.float32(a) @ np.float32(b)).astype(c.dtype)
        np.testing.assert_array_equal(np.float32(c[:, :70]), np.float32(want))
        assert np.isnan(np.float32(c[:, 70:])).all()


@pytest.mark.parametrize(
    "block, options",
    [
        ((16, 64), {"split_k": 2}),
        ((16, 64), {"split_k": 3, "swap_dots": True}),
        ((64, 32), {"split_k": 2}),
        ((128, 64), {"stream_k": 2}),
        ((24, 64), {}),
    ],
)
def test_parts_of_k_of_operands_that_threads_copy(block, options):
    """Rows of all three arrays begin at multiples of 4 bytes."""
    facts = ArrayFacts((Fact(), Fact()), (Fact(2), Fact(exact=1)), 4)
    arrays = [ArrayArgument(tkc.bfloat16, facts)] * 3
    bm, bn = block
    module = traced(one_result, *arrays, BM=bm, BN=bn, BK=64)
    modules, context = stages.compiled(module, programs=1, cluster=(1, 1), **options)
    assert context.plan.roles != "one"
    a, b = (integers(*s, dtype=tkc.bfloat16, seed=i) for i, s in enumerate([(37, 258), (258, 70)]))
    want = (np.float32(a) @ np.float32(b)).astype(a.dtype)
    for seed in range(2):
        c = np.full((37, 70), np.nan, NUMPY[tkc.bfloat16])
        run(modules[LAST], [a, b, c], (-(-37 // bm), -(-70 // bn), 1), seed=seed)
        np.testing.assert_array_equal(np.float32(c), np.float32(want))


def test_results_that_overlap_are_stored_in_order():
    """By lanes that differ, were they stored by rows: they stay in registers."""
    modules, _ = stored_product(shifted, Fact(), 2, roles="cooperative")
    a, b = (integers(*s, dtype=tkc.bfloat16, seed=i) for i, s in enumerate([(144, 64), (64, 64)]))
    sums = np.float32(a) @ np.float32(b)
    for seed in range(6):
        c = np.full((144, 65), np.nan, NUMPY[tkc.bfloat16])
        run(modules[LAST], [a, b, c], (2, 1, 1), seed=seed)
        np.testing.assert_array_equal(c[:, 1:], (sums + 1).astype(c.dtype))
        np.testing.assert_array_equal(c[:, 0], sums[:, 0].astype(c.dtype))


def cleared(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    tkc.store(c, (m, n), tkc.zeros((BM, BN), c.dtype))
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@pytest.mark.parametrize("k", [0, 96])
def test_an_array_that_is_stored_twice(k):
    """Another warpgroup's threads may have stored where one stores its rows, and where there is
    nothing to multiply no barrier orders them: results are stored from registers, in order.
    """
    given = ArrayFacts((Fact(), Fact()), (Fact(8), Fact(exact=1)), 16)
    modules, _ = stages.compiled(
        traced(cleared, *(ArrayArgument(tkc.bfloat16, given),) * 3, BM=128, BN=128, BK=64),
        roles="cooperative",
    )
    a, b = (
        integers(144, k, dtype=tkc.bfloat16, seed=0),
        integers(k, 128, dtype=tkc.bfloat16, seed=1),
    )
    for seed in range(12):
        c = np.full((144, 128), np.nan, NUMPY[tkc.bfloat16])
        run(modules[LAST], [a, b, c], (2, 1, 1), seed=seed, resident=1 + seed % 2)
        assert (np.float64(c) == np.float64((np.float32(a) @ np.float32(b)).astype(c.dtype))).all()


@cache
def sum_and_transpose(first: bool):
    def both(a, b, c, d):
        m, n = tkc.program_id(0) * 64, tkc.program_id(1) * 96
        acc = tkc.zeros((64, 96), tkc.float32)
        for k in tkc.range(0, a.shape[1], 32):
            acc = tkc.dot(tkc.load(a, (m, k), (64, 32)), tkc.load(b, (k, n), (32, 96)), acc)
        if first:
            tkc.store(d, (n, m), acc.T.to(d.dtype))
        tkc.store(c, (m, n), acc.to(c.dtype))
        if not first:
            tkc.store(d, (n, m), acc.T.to(d.dtype))

    return both


def check_sum_and_transpose(module, out, run=run) -> None:
    x, y = (
        integers(70, 64, dtype=tkc.bfloat16, seed=0),
        integers(64, 104, dtype=tkc.bfloat16, seed=1),
    )
    c, d = (np.full(shape, np.nan, NUMPY.get(out, np.float32)) for shape in ((72, 104), (104, 72)))
    run(module, [x, y, c[:70], d[:, :70]], (2, 2, 1))
    want = np.float64(x) @ np.float64(y)
    np.testing.assert_array_equal(c[:70], want.astype(c.dtype))
    np.testing.assert_array_equal(d[:, :70], want.T.astype(d.dtype))


def SUM_AND_TRANSPOSE(test):
    return pytest.mark.parametrize(
        "first", [True, False], ids=["transpose first", "transpose last"]
    )(pytest.mark.parametrize("out", [tkc.float32, tkc.bfloat16], ids=str)(test))


@SUM_AND_TRANSPOSE
def test_a_sum_and_its_transpose(first, out):
    """Both are stored part by part, in either order."""
    modules, given = stages.compiled(
        traced(sum_and_transpose(first), *(array(tkc.bfloat16),) * 2, *(array(out),) * 2)
    )
    assert given.plan.roles != "one"
    for module in [*without_threads(modules), modules[LAST]]:
        check_sum_and_transpose(module, out)


def stored_again(a, b, c, shift, APART: tkc.constexpr):
    """Two results for one array: at one place, where the later one counts, side by side, or nobody
    knows how far apart.
    """
    m, n = tkc.program_id(0) * 64, tkc.program_id(1) * 64
    acc = tkc.zeros((64, 64), tkc.float32)
    for k in tkc.range(0, a.shape[1], 32):
        acc = tkc.dot(tkc.load(a, (m, k), (64, 32)), tkc.load(b, (k, n), (32, 64)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))
    tkc.store(c, (m, n + (APART if APART < 128 else shift)), (acc * 2).to(c.dtype))


def check_stored_again(module, apart: int, shift: int = 0, run=run, **how) -> None:
    x, y = (
        integers(140, 64, dtype=tkc.bfloat16, seed=0),
        integers(64, 64, dtype=tkc.bfloat16, seed=1),
    )
    c = np.full((144, 192), np.nan, NUMPY[tkc.bfloat16])
    run(module, [x, y, c[:140], shift], (3, 1, 1), **how)
    want, at = np.float64(x) @ np.float64(y), apart if apart < 128 else shift
    if at >= 64:
        np.testing.assert_array_equal(c[:140, :64], want.astype(c.dtype))
    np.testing.assert_array_equal(c[:140, at : at + 64], (2 * want).astype(c.dtype))


@pytest.mark.parametrize(
    "options",
    [
        dict(num_warps=4, roles="cooperative"),
        dict(roles="pingpong"),
        dict(num_warps=4, roles="cooperative", subtiles=1, store_columns=16),
        dict(num_warps=4, roles="cooperative", subtiles=4, store_columns=16),
    ],
    ids=str,
)
@pytest.mark.parametrize("apart, waits", [(0, True), (32, True), (64, False), (128, True)])
def test_two_results_for_one_array(apart, waits, options):
    """What two copies write nothing orders but a wait for the first one's end."""
    module, given = stages.compiled(
        traced(stored_again, *(result(tkc.bfloat16),) * 3, i32(), APART=apart), **options
    )
    assert given.plan.roles == options["roles"] and given.plan.epilogue == "tma", given.decisions
    found = [
        op
        for op in role(module[LAST], "consumer").walk()
        if isinstance(op, threads.BulkWait) and not op.read
    ]
    assert bool(found) is waits
    for seed in range(3):
        check_stored_again(module[LAST], apart, 16, seed=seed)
