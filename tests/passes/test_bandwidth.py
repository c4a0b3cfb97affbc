"""The time of programs without dots in closed form: what it must follow from, and what is chosen by
it for rows of any length.
"""

from dataclasses import replace

import pytest

import tkc
from tkc.ir.plan import LoadPlan, Plan
from tkc.ir.target import TARGETS
from tkc.kernels.norms import _norm
from tkc.kernels.softmax import FORWARD, _softmax
from tkc.passes.planning.bandwidth import Moving, Read, occupancy, registers, time_of

H200 = TARGETS["sm_90a"]
ROW = Moving(
    words=8192,
    instructions=2000.0,
    reads=(Read(0, 16384, 16384, 1.0, True),),
    stored=16384.0,
    vector=16,
    meetings=2.0,
    rows=1,
    gathers=0,
)
FOUR = Plan(warps=4, loads=(LoadPlan("registers", 16),))


def seconds(moving: Moving = ROW, plan: Plan = FOUR, programs: int = 10_000) -> float:
    return time_of(moving, (programs, 1, 1), plan, H200).seconds


def test_many_programs_take_the_time_of_their_bytes():
    at_least = 100_000 * 32768 / (H200.device.chip.bandwidth * 1e9)
    assert at_least < seconds(programs=100_000) < 2.5 * at_least
    assert seconds(programs=100_000) > 9 * seconds(programs=10_000)


def test_few_programs_wait_for_one_another_alone():
    """As many as there are multiprocessors take as long as one, or nearly."""
    assert seconds(programs=100) < 1.2 * seconds(programs=1)


def test_registers_limit_how_many_programs_are_there_at_once():
    assert registers(ROW, FOUR, H200) > registers(replace(ROW, words=1024), FOUR, H200)
    assert occupancy(ROW, FOUR, H200) < occupancy(replace(ROW, words=1024), FOUR, H200)
    assert occupancy(ROW, replace(FOUR, blocks=2), H200) == 2


def test_what_is_read_early_hides_the_wait_of_a_lone_block():
    """Where a multiprocessor has one block, which computes while its next row is on its way."""
    large = replace(ROW, words=32768, reads=(Read(0, 65536, 65536, 1.0, True),))
    lone = replace(FOUR, warps=16)
    early = replace(lone, persistent=True, prefetch=True, blocks=1)
    assert seconds(large, early) < seconds(large, lone)


def test_threads_that_hold_too_much_are_slow():
    """Cross-entropy of 208 rows of 97792 on an H200, 2026-11-28, eight blocks a row: 60.3 us by two
    warps each, whose threads would hold some 250 registers, 21.7 by four.
    """
    long = replace(ROW, words=98_307, reads=(Read(0, 195_584, 195_584, 1.0, True),), stored=4.0)
    two, four = (Plan(warps=n, loads=FOUR.loads, cluster_split=(8, 98_304)) for n in (2, 4))
    assert registers(long, two, H200) > 200 > registers(long, four, H200)
    assert seconds(long, two, 208) > seconds(long, four, 208)


def test_what_all_programs_read_comes_again_unless_it_stays_near():
    """The weight and the bias of a norm, from the L2 cache, but for few bytes and where a block
    keeps them. Layer norm of 32768 x 4096 by two warps (H200, 0b1f2f70): 151 us, 148 said.
    """
    few, many = (
        replace(ROW, reads=(*ROW.reads, Read(1, n, n, 1.0, False))) for n in (1 << 14, 1 << 18)
    )
    keeps = replace(FOUR, persistent=True, resident_operands=True, blocks=4)
    anew = replace(keeps, resident_operands=False)
    assert seconds(many, anew) > 1.2 * seconds(few, anew)
    assert seconds(few, anew) == pytest.approx(seconds(few, keeps), rel=0.1)


def test_long_rows_of_layer_norm_stream_through_blocks_that_keep_the_weight():
    """H200: 265.5 us so (c1d6303), 421.1 where four warps read it for each row (2026-11-28). What
    is weighed is what is compiled.
    """
    row, weight = "bf16[2048, 131072]", "bf16[131072]"
    given = (row, None, weight, weight, row, None, 1e-5)
    choice = _norm.choose(*given, CENTRE=True, grid=2048, target="sm_90a")
    compiled = _norm.kernel.compile(
        *given, target="sm_90a", **dict(choice.config.items), CENTRE=True
    )
    assert any("stream" in line for line in compiled.decisions), compiled.decisions


def test_narrow_accesses_take_longer():
    assert seconds(plan=replace(FOUR, loads=(LoadPlan("registers", 2),))) > seconds()


def test_rows_of_their_own_need_no_barrier():
    """Collectives of as many rows as there are warps stay in a warp."""
    assert seconds(replace(ROW, rows=4), programs=1) < seconds(programs=1)


def chosen(rows: int, columns: int) -> dict:
    array = f"bf16[{rows}, {columns}]"
    choice = _softmax.choose(array, array, LOG=False, grid=FORWARD, target="sm_90a")
    assert choice.source == "model" and choice.others
    return dict(choice.config.items)


def test_short_rows_share_a_program_and_long_ones_have_one_alone():
    assert chosen(50_000, 128)["ROWS"] >= 8
    assert chosen(64, 6144)["ROWS"] == 1


@pytest.mark.parametrize("rows, columns", [(15_040, 17_728), (4096, 32_768), (300, 120_000)])
def test_long_rows_are_planned_for_the_launch(rows, columns):
    """What is chosen can be compiled as it is, and is said with what it was compared with."""
    found = chosen(rows, columns)
    array = f"bf16[{rows}, {columns}]"
    compiled = _softmax.kernel.compile(array, array, LOG=False, target="sm_90a", **found)
    assert compiled.ptx


def test_a_user_s_options_narrow_the_choice():
    array = "bf16[4096, 4096]"
    choice = _softmax.choose(array, array, LOG=False, num_warps=16, grid=FORWARD, target="sm_90a")
    assert dict(choice.config.items)["num_warps"] == 16


def test_the_cpu_has_one_configuration():
    array, vector = "f32[64, 1000]", "f32[1000]"
    choice = _norm.choose(
        *(array, None, vector, None, array, None, 1e-5),
        CENTRE=True,
        grid=lambda args: tkc.cdiv(64, args["ROWS"]),
        target="cpu",
    )
    assert not choice.others


@pytest.mark.parametrize("columns, warps, blocks", [(12288, 8, 2), (18432, 2, 4), (20480, 8, 2)])
def test_bytes_of_a_mask_are_dealt_like_the_rest(columns, warps, blocks):
    """The mask of a mean has an element a byte, of which 16 make a vector: more than there are for
    each thread of such a block.
    """
    row, vector = f"bf16[64, {columns}]", f"bf16[{columns}]"
    compiled = _norm.kernel.compile(
        *(row, None, vector, vector, row, None, 1e-5),
        CENTRE=True,
        ROWS=1,
        COLUMNS=columns,
        num_warps=warps,
        num_ctas=blocks,
        target="sm_90a",
    )
    assert compiled.interface.cluster == (blocks, 1)
