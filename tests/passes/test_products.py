"""Blocks of products: what the planner says of them without a trace is what a trace gives; bounds
leave nothing out; which blocks it finds.
"""

import random
from dataclasses import replace

import pytest

import tkc
from benchmarks.fit_costs import product_like
from tkc.kernels.matmul import _partial, _product
from tkc.language.trace import trace
from tkc.passes import PassContext
from tkc.passes.plan import kernel_of, plan
from tkc.passes.planning.cost import Work, cost
from tkc.passes.planning.numbers import Sizes
from tkc.passes.planning.products import (
    Block,
    Product,
    _bounds,
    _legal,
    plan_of,
    product_blocks,
    seconds,
)
from tkc.passes.planning.roles.registers import parts_at_once
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.specialize import Constant, signature

H200 = tkc.target("sm_90a")
SOME = [
    Product(1984, 984, 888, 1, False, (1776, 1776), result_pitch=1968),
    Product(1920, 744, 2864, 1, True, (5728, 1488), result_pitch=1488),
    Product(128, 512, 20480, 1, True, (40960, 1024)),
    Product(272, 728, 10208, 1, True, (20416, 1456), apart=True),
    Product(233, 22, 774, 1, True, (1548, 44), vectors=(2, 2, 2), result_pitch=44),
    Product(1208, 267, 24, 1, False, (48, 48), vectors=(8, 8, 1), result_pitch=534),
    Product(38, 90, 1795, 1, True, (3590, 180), vectors=(1, 2, 2), result_pitch=180),
    Product(38, 90, 1795, 1, True, (3590, 180), True, (1, 2, 2)),
    Product(768, 1024, 640, 1, True, (1536, 2048), dense_columns=True),
    Product(4096, 14336, 4096, 1, True, (8192, 28672)),
    Product(96, 5192, 24, 1, False, (48, 48), result_pitch=10384),
    Product(640, 640, 512, 6, True, (1024, 1280)),
]


def named(p):
    return f"{p.m}x{p.n}x{p.k}" + "".join(
        f" {name}" for name in ("apart", "dense_columns") if getattr(p, name)
    )


def every(product):
    """Each legal block in each cluster."""
    return [
        block._replace(cluster=cluster)
        for block in _legal(product, H200)
        for cluster in product.clusters(block)
    ]


def of_a_trace(product, block):
    """Seconds of the cost model for the kernel that a block makes, traced and planned."""
    m, n, k = product.m, product.n, product.k
    of_a, of_b = (pitch // 2 for pitch in product.pitches)
    batch = "" if product.batches == 1 else f"{product.batches}:"
    steps = [f"{batch}{m * k}, ", f"{batch}{k * n}, "] if batch else ["", ""]
    a = (
        f"bf16[{steps[0]}{m}:1, {k}:{of_a}]"
        if product.dense_columns
        else (f"bf16[{steps[0]}{m}:{of_a}, {k}:1]")
    )
    b = f"{k}:{of_b}, {n}:1" if product.dense_rows else f"{k}:1, {n}:{of_b}"
    b, parts = f"bf16[{steps[1]}{b}]", block.split_k
    options = block.options
    if product.apart:
        options = {name: value for name, value in options.items() if name != "split_k"}
        depth = tkc.cdiv(product.steps(block), parts) * block.depth
        kernel, c = _partial.kernel, f"f32[{parts}, {m}, {n}]"
        values, said = kernel.bound(a, b, c, DEPTH=depth, **options)
    else:
        kernel, c = _product.kernel, f"bf16[{f'{product.batches}, ' if batch else ''}{m}, {n}]"
        values, said = kernel.bound(a, b, None, c, ACTIVATION=None, **options)
    infos = kernel._describe(values)
    described = signature(kernel._specialize(infos, tuple(said.items())))
    module = trace(kernel.fn, described)
    made = plan(module, PassContext(H200, described.options))
    layers = parts if product.apart else product.batches
    sizes = Sizes(
        (*product.grid(block), layers),
        tuple(
            i.shape if isinstance(i, ArrayInfo) else i.value
            for i in infos
            if not isinstance(i, Constant)
        ),
    )
    adding = product.adding(parts, H200) if product.apart else 0.0
    return cost(Work.of(kernel_of(module), sizes), made, H200).seconds + adding


@pytest.mark.parametrize("product", SOME, ids=named)
def test_nothing_need_be_traced(product):
    """One estimate: of a block it says what it says of the kernel that is traced for it."""
    # of two parts the one in the middle, by which a trace goes, is the last, which may be shorter
    blocks = [b for b in every(product) if not product.apart or b.split_k > 2]
    best = [block for _, block in product_blocks(product, "sm_90a", 2)]
    some = random.Random(0).sample(blocks, 6)
    met = [block for block in blocks if block.together]
    some += random.Random(1).sample(met, min(4, len(met)))
    for block in (*(b for b in best if b in blocks), *some):
        assert seconds(product, block, H200) == pytest.approx(of_a_trace(product, block)), block


@pytest.mark.parametrize("product", SOME, ids=named)
def test_no_block_is_left_out_that_would_be_among_the_best(product):
    blocks = every(product)
    times = [seconds(product, block, H200) for block in blocks]
    bounds = _bounds(product, [(block, block.cluster) for block in blocks], H200)
    for block, least, time in zip(blocks, bounds, times, strict=True):
        assert least <= time * (1 + 1e-9), block
    assert [time for time, _ in product_blocks(product, "sm_90a", 5)] == sorted(times)[:5]


def test_blocks_of_a_product():
    """Legal ones, the estimate's best first."""

    def best(m, n, k, count):
        found = product_blocks(Product(m, n, k, 1, True, (2 * k, 2 * n)), "sm_90a", count)
        assert found == sorted(found, key=lambda pair: pair[0])
        return [block for _, block in found]

    found = best(1536, 1536, 1536, 12)
    assert len(set(found)) == 12
    for block in found:
        groups = 1 if block.in_turn else block.options.get("num_warps", 8) // 4
        rows = block.columns if block.transposed else block.rows
        assert block.rows * block.columns <= 208 * 128 * min(groups, rows // 64)
    # few programs with long loops are divided
    assert best(128, 512, 20480, 1)[0].split_k > 1
    # of few rows no more are computed than a warpgroup must
    assert all(block.rows <= 64 for block in best(16, 4096, 4096, 12))
    # rows that blocks of 64 would pad are divided evenly
    assert best(300, 4096, 4096, 1)[0].transposed
    assert any(tkc.cdiv(300, block.rows) * block.rows <= 304 for block in best(300, 4096, 4096, 50))
    # a last block of columns is one with those before it, where that is less than half of it
    assert any(block.columns == 96 for block in best(3504, 72, 608, 1000))


def test_there_are_none_without_wgmma():
    assert product_blocks(Product(512, 512, 512), "sm_80", 4) == []


@pytest.mark.parametrize("m, n, k, rows", [(2560, 2560, 2560, 200), (5824, 1088, 6080, 208)])
def test_blocks_may_have_any_number_of_rows(m, n, k, rows):
    """2560 x 2560 x 2560 in one wave: 13 rows of blocks of 200, the last one padded by 40. Measured
    on an H200, 2026-11-28: 47.1 us, with 216 rows in two waves 50.9.
    """
    best = product_blocks(Product(m, n, k, 1, True, (2 * k, 2 * n)), "sm_90a", 12)
    assert any(block.rows == rows for _, block in best)


def test_products_whose_operands_threads_copy_have_blocks_like_others():
    """Few blocks are divided along k, and few rows are no padding; no cluster shares what threads
    copy, and there is no third warpgroup of consumers beside theirs.
    """
    given = Product(233, 22, 774, 1, True, (1548, 44), vectors=(2, 2, 2))
    found = [block for _, block in product_blocks(given, "sm_90a", 40)]
    assert any(block.split_k > 1 for block in found) and any(block.rows < 64 for block in found)
    large = Product(4290, 1246, 1190, 1, True, (2380, 2492), vectors=(2, 2, 2))
    for _, block in product_blocks(large, "sm_90a", 40):
        assert block.cluster == (1, 1) and block.warpgroups < 3 and not block.in_turn
    aligned = replace(given, vectors=(8, 8, 8))
    [(_, one)] = product_blocks(aligned, "sm_90a", 1)
    assert seconds(given, one, H200) > seconds(aligned, one, H200)


@pytest.mark.parametrize("k", [175, 174, 172])
@pytest.mark.parametrize("m, n", [(1, 1), (19, 16), (16, 33), (40, 7)])
def test_small_products_have_blocks(m, n, k):
    """Rows that begin anywhere, and fewer results than threads would share: 19 x 16 x 175 had no
    block.
    """
    product = product_like((m, n, k), "nn")
    assert product_blocks(product, "sm_90a", 2)


def test_no_copy_brings_single_elements_to_wgmma():
    """Warps load what begins at any multiple of two bytes, and multiply it themselves."""
    given = Product(38, 90, 1795, 1, True, (3590, 180), vectors=(1, 2, 2))
    for _, block in product_blocks(given, "sm_90a", 40):
        assert block.options["roles"] == "one" and block.options["num_warps"] in (4, 8)


def test_rows_that_begin_anywhere_leave_in_wide_subtiles():
    """By threads, in the time of two programs that store one after the other: blocks of narrow
    subtiles, and those whose sums leave no registers for rows, are not taken. Of 12081 x 2671 x 24
    on an H200, 2026-11-28: 64 x 192 took 45 us, 256 x 80 124, 128 x 192 171.
    """
    given = Product(12081, 2671, 24, 1, False, (48, 48), vectors=(8, 8, 1))
    assert all(block.columns % 64 == 0 for _, block in product_blocks(given, "sm_90a", 6))

    def us(rows, columns, vector=1):
        other = replace(given, vectors=(8, 8, vector))
        return seconds(other, Block(rows, columns, True, 32), H200) * 1e6

    assert us(64, 192) * 1.5 < min(us(256, 80), us(128, 192))
    # twice as many neighbours at once
    assert us(64, 192, 8) < us(64, 192, 4) < us(64, 192, 2) < us(64, 192)


def test_dots_in_many_instructions_read_rows_again():
    """Three warpgroups have no registers for 224 columns of an instruction: of rows of 64 bytes it
    takes seven of 32. Measured on an H200, 2026-11-28: 2624 x 3136 x 14336 532 us, 176 x 192 299.
    """
    assert H200.dot_width(224, 32, 512) == 32 and H200.dot_width(224, 8, 512) == 112
    given = Product(2624, 3136, 14336, 1, True, (28672, 6272))
    turned = replace(given, dense_rows=False, pitches=(28672, 28672))
    wide = Block(192, 224)
    assert seconds(given, wide, H200) > 1.1 * seconds(turned, wide, H200)


def test_halves_of_swizzles_slow_narrow_instructions():
    """wgmma reads a right operand whose rows are 64 bytes more slowly: an instruction of 96 columns
    waits for it, one of 224 hardly. On H200s, 2026-11-28: 2048 x 11008 x 4096 in blocks of 256 x 96
    289 us with dense rows of B, 234 with dense columns; the same in 128 x 224.
    """
    given = Product(2048, 11008, 4096, 1, True, (8192, 22016), result_pitch=22016)
    turned = replace(given, dense_rows=False, pitches=(8192, 8192))

    def slower(block):
        return seconds(given, block, H200) / seconds(turned, block, H200)

    assert slower(Block(256, 96, True)) > 1.1 and slower(Block(128, 224)) < 1.05
    assert slower(Block(256, 128, cluster=(1, 1))) == 1
    [(_, best)] = product_blocks(given, "sm_90a", 1)
    assert best[:2] != (256, 96)


def test_blocks_at_the_ends_are_filled_up():
    """What lies beyond the last row or column tensor maps fill with zeros, more slowly than they
    copy; in one wave the slowest program counts. 1344 x 512 x 1600 on H200s, 2026-11-28: 8.2 us in
    126 blocks of 64 x 96, of which the last have 32 columns; 7.0 in 84 of 64 x 128.
    """
    block = Block(64, 96)

    def us(m, n):
        return seconds(Product(m, n, 1600, dense_rows=False), block, H200) * 1e6

    assert us(1344, 512) > us(1344, 576) * 1.02
    # of several waves each multiprocessor has few of them
    assert us(13440, 4736) < us(13440, 4800) * 1.01


def test_what_one_program_stores_slows_the_other():
    """Of two that take turns: results in many narrow subtiles show though the other multiplies.
    11136 x 448 x 1536 on H200s, 2026-11-28: 34.1 us by 200 x 64, whose transposes leave eight lines
    at a time, 31.2 by 120 x 128, 29.3 by 256 x 160.
    """
    given = Product(11136, 448, 1536, 1, True, (3072, 896), result_pitch=896)
    machine = replace(H200)
    costs = replace(H200.costs, storing_beside=0.0)
    machine.__dict__["device"] = replace(H200.device, costs=costs)

    def slower(block):
        return seconds(given, block, H200) / seconds(given, block, machine)

    assert slower(Block(200, 64, True)) > slower(Block(128, 64, True)) > 1
    assert slower(Block(256, 160)) == 1


def test_parts_that_are_added_at_once_cost_less():
    """As many as registers hold beside the sum."""
    assert [int(parts_at_once(8, n)) for n in (8, 16, 32, 64, 96)] == [7, 7, 3, 1, 1]
    results = 2048
    assert H200.costs.meeting(results, 8, 7) < H200.costs.meeting(results, 8, 1)


def test_parts_in_clusters():
    """A long k and few results: parts are blocks of a cluster, as many as the device runs at once,
    which send one another shares that divide evenly.
    """
    product = Product(448, 256, 14016)
    found = [block for _, block in product_blocks(product, "sm_90a", 2)]
    assert all(block.together and block.split_k > 1 for block in found)
    assert found[0].options["cluster"] == (found[0].split_k, 1)
    for block in (b for b in every(product) if b.together):
        columns = block.rows if block.transposed else block.columns
        assert columns % (8 * block.split_k) == 0 and block.split_k <= 8
        assert plan_of(product, block, H200).stages >= 3
    assert [H200.clustered(n) for n in range(1, 9)] == [132, 132, 117, 120, 110, 102, 105, 120]


def test_what_the_l2_cache_sends():
    """Programs that stand in one place ask for the same, but not all of them in time."""
    assert H200.sent(16, 16) == H200.sent(16, 40) == 1
    assert 1 / 16 < H200.sent(16, 1) < H200.sent(16, 2) < 1
