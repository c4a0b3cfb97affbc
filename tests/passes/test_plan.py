"""plan and schedule-programs: what is chosen for what, limits that hold, a raster that visits every
program once.
"""

import itertools

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, matmul, traced
from tests.passes.kernels import CASES, aligned, attended, context, product, same, softmax, through
from tkc.codegen.ptx.emit import emit
from tkc.errors import CompileError
from tkc.ir import tile
from tkc.ir.plan import DotPlan, LoadPlan, Plan
from tkc.ir.target import TARGETS, target
from tkc.passes import plan as planning
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0


def planned(module, name="sm_80", **options) -> Plan:
    given = context(name, **options)
    through(module, "plan", given)
    assert list(given.plan.decisions) == [
        line for line in given.decisions if line.startswith("plan:")
    ]
    return given.plan


def product_plan(BM, BN, BK, dtype=tkc.bfloat16, name="sm_80", **options):
    kind = aligned(dtype, 2)
    return planned(traced(matmul, kind, kind, kind, BM=BM, BN=BN, BK=BK), name, **options)


def test_products_of_the_usual_sizes():
    small, middle, large = (
        product_plan(64, 64, 32),
        product_plan(128, 128, 32),
        product_plan(128, 256, 64),
    )
    assert (small.warps, middle.warps, large.warps) == (4, 4, 8)
    assert large.dots == (DotPlan("mma", (2, 4)),) and middle.dots == (DotPlan("mma", (2, 2)),)
    assert (
        middle.loads == (LoadPlan("async", 16), LoadPlan("async", 16))
        and middle.stages == 4
        and middle.raster == 8
    )
    assert all(
        any(word in line for line in middle.decisions)
        for word in ("warps", "mma.m16n8k16", "stages", "axis 0")
    )


def attention_plan(name: str, columns: int) -> Plan:
    return planned(attended(256, 128, 128, columns, False).module(), name)


def test_warps_with_rows_of_their_own_are_few_where_two_blocks_fit():
    """Half as many warps read right operands from shared memory half as often; but one block of
    four leaves a multiprocessor's schedulers one warp each.
    """
    few, many = attention_plan("sm_80", 48), attention_plan("sm_80", 64)
    assert (few.warps, few.stages) == (4, 2)
    assert many.warps == 8  # 192 registers of accumulators otherwise
    assert attention_plan("sm_86", 48).warps == 8  # shared memory holds one block
    assert any("two blocks fit a multiprocessor" in line for line in few.decisions)


@tkc.jit
def chunk(a, b, c, out):
    """A loop that copies run ahead of, and dots behind it, which overlap no copies."""
    acc = tkc.zeros((32, 128))
    for k in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(a, (0, k), (32, 64)), tkc.load(b, (k, 0), (64, 128)), acc)
    acc = tkc.dot(acc.to(c.dtype), tkc.load(c, (0, 0), (128, 128)))
    tkc.store(out, (0, 0), acc.to(out.dtype))


def test_a_second_block_works_while_one_has_dots_behind_its_loop():
    kinds = ("bf16[32, 4096]", "bf16[4096, 128]", "bf16[128, 128]", "bf16[32, 128]")
    found = chunk.compile(*kinds, target="sm_90a", num_warps=8)
    assert any("two blocks share a multiprocessor" in line for line in found.decisions)
    assert ".minnctapersm 2" in found.ptx
    assert 2 * (found.interface.shared_bytes + 1024) <= target("sm_90a").shared_bytes + 1024
    for asked in {"num_stages": 5}, {"maxnreg": 160}, {"num_warps": 4}:
        other = chunk.compile(*kinds, target="sm_90a", **{"num_warps": 8, **asked})
        assert not any("two blocks share" in line for line in other.decisions)


@pytest.mark.parametrize("name", TARGETS)
def test_rings_fit_every_target(name):
    plan = product_plan(128, 256, 64, name=name)
    assert plan.stages >= 2 and plan.stages * (128 * 64 + 64 * 256) * 2 <= target(name).shared_bytes


@pytest.mark.parametrize(
    "dtype, precision, name, want",
    [
        (tkc.bfloat16, "ieee", "sm_80", "mma"),
        (tkc.float16, "ieee", "sm_80", "mma"),
        (tkc.float32, "ieee", "sm_90a", "fma"),
        (tkc.float32, "tf32", "sm_80", "mma"),
        (tkc.float32, "tf32x3", "sm_80", "mma"),
        (tkc.float64, "ieee", "sm_90a", "fma"),
        (tkc.float8_e4m3, "ieee", "sm_89", "mma"),
        (tkc.float8_e4m3, "ieee", "sm_80", "mma"),
        (tkc.int8, "ieee", "sm_80", "mma"),
    ],
)
def test_the_instruction_follows_types_and_target(dtype, precision, name, want):
    def f(a, b, o):
        d = tkc.dot(
            tkc.load(a, (0, 0), (64, 64)), tkc.load(b, (0, 0), (64, 64)), precision=precision
        )
        tkc.store(o, (0, 0), d.to(o.dtype))

    plan = planned(traced(f, array(dtype, 2), array(dtype, 2), array(tkc.float32, 2)), name)
    assert plan.dots[0].instruction == want
    assert want == "mma" or any(
        "multiply-adds" in line and "no tensor-core instruction" in line for line in plan.decisions
    )


def test_odd_depths_are_multiplied_one_by_one():
    plan = planned(product(33, 20, 21, 16, 16, 7).module())
    assert plan.dots[0].instruction == "fma" and any(
        "k = 7 is not a multiple of 16" in line for line in plan.decisions
    )


def test_rows_of_attention_stay_in_one_warp():
    for d, warps in ((64, 8), (128, 8)):
        plan = planned(attended(256, d, 128, 128, True).module())
        assert (
            plan.warps == warps
            and [dot.warps for dot in plan.dots] == [(warps, 1)] * 2
            and plan.raster == 1
        )


@pytest.mark.parametrize("columns, warps", [(64, 1), (1024, 4), (4096, 4), (8192, 8), (32768, 32)])
def test_warps_without_dots(columns, warps):
    kind = aligned(tkc.float32, 2)
    assert planned(traced(softmax, kind, kind, ROWS=1, N=columns)).warps == warps


def test_the_users_options_are_taken():
    plan = product_plan(128, 128, 32, num_warps=8, num_stages=2)
    assert (plan.warps, plan.stages) == (8, 2)
    assert product_plan(128, 128, 32, num_stages=1).loads[0].path == "shared"
    assert any("num_ctas" in line for line in product_plan(64, 64, 32, num_ctas=2).decisions)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_stages": 40}, "at most 10 stages do"),
        ({"num_warps": 3}, "num_warps = 3"),
        ({"num_warps": 1}, "512 registers"),
        ({"maxnreg": 64}, "there are 64"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(options, words):
    """What fit-results would cut is refused where that does not run."""
    kind = aligned(tkc.bfloat16, 2)
    with pytest.raises(CompileError, match=words) as caught:
        planning.plan(traced(matmul, kind, kind, kind, BM=128, BN=128, BK=32), context(**options))
    assert caught.value.location is not None and caught.value.location.file.endswith("kernels.py")


def one_dot(a, b, o):
    tkc.store(o, (0, 0), tkc.dot(tkc.load(a, (0, 0), (64, 64)), tkc.load(b, (0, 0), (64, 64))))


def test_stages_of_a_program_without_a_loop():
    """Two stages were said to be the most that fit shared memory, and the program was refused."""
    kind = aligned(tkc.bfloat16, 2)
    plan = planned(traced(one_dot, kind, kind, aligned(tkc.float32, 2)), "sm_90a", num_stages=4)
    assert plan.roles != "one" and any("num_stages is not used" in d for d in plan.decisions)


def test_candidates_are_legal_and_different():
    kind = aligned(tkc.bfloat16, 2)
    module, given = traced(matmul, kind, kind, kind, BM=128, BN=128, BK=32), context()
    program = planning.Program.of(planning.kernel_of(module))
    found = list(planning.candidates(module, given))
    assert (
        len(found) > 4
        and len(set(found)) == len(found)
        and not any(planning.legal(p, program, given) for p in found)
    )
    assert found[0] == planning.plan(module, given)
    assert {p.warps for p in planning.candidates(module, context(num_warps=8))} == {8}


def test_loads_that_a_ring_cannot_take_go_through_registers():
    """Unaligned rows of 2 bytes; a load with other uses; a load with a fill."""
    kind, odd = aligned(tkc.bfloat16, 2), array(tkc.bfloat16, 2, strides=(None, 1))
    assert {x.path for x in planned(traced(matmul, odd, odd, odd, BM=64, BN=64, BK=32)).loads} == {
        "shared"
    }

    def used_twice(a, b, o):
        acc, total = tkc.zeros((64, 64)), tkc.zeros((64,))
        for k in tkc.range(0, a.shape[1], 32):
            x = tkc.load(a, (0, k), (64, 32))
            acc, total = (
                tkc.dot(x, tkc.load(b, (k, 0), (32, 64), other=1), acc),
                total + tkc.sum(x.to(tkc.float32), axis=1),
            )
        tkc.store(o, (0, 0), acc + total[:, None])

    assert [
        x.path for x in planned(traced(used_twice, kind, kind, array(tkc.float32, 2))).loads
    ] == ["registers", "shared"]


@pytest.mark.parametrize("name", CASES)
def test_plans_are_text_too(name):
    plan = planned(CASES[name].module())
    assert Plan.from_text(plan.to_text()) == plan
    with pytest.raises(ValueError):
        Plan.from_text(plan.to_text() + ")")


# ---- schedule-programs ---------------------------------------------------------------------------
@pytest.mark.parametrize("rows, columns", [(1, 1), (8, 3), (9, 5), (3, 7), (17, 2), (16, 1)])
def test_the_raster_visits_every_program_once(rows, columns):
    def who(o, n):
        x, y = tkc.program_id(0), tkc.program_id(1)
        tkc.atomic_add(o.ptr + x * n + y, 1)

    from tkc.passes import schedule_programs

    module, given = traced(who, array(tkc.int32, 2), i32()), context()
    given.plan = Plan(raster=8)
    schedule_programs.run(module, given)
    seen, order = np.zeros((rows, columns), np.int32), []
    for program in itertools.product(range(columns), range(rows)):
        before = seen.copy()
        level0.run(module, [seen, columns], (rows, columns), [program[::-1]])
        order.append(tuple(np.argwhere(seen != before)[0]))
    assert (seen == 1).all()
    first = order[: min(16, rows * columns)]  # what runs together shares rows and columns
    assert len({r for r, _ in first}) <= max(8, min(rows, 16 // min(columns, 2)))


def test_the_raster_changes_no_result():
    case = product(400, 96, 32, 32, 32, 32)
    module = case.module()
    want = case.run(module)
    assert through(module, "schedule-programs").plan.raster == 8
    assert sum(isinstance(op, tile.ProgramId) for op in module.walk()) == 2
    same(case.run(module), want, case.tolerance)


def experts_product(x, w, y, rows, expert, K, BM: tkc.constexpr):
    """Rows that a list names times a matrix that another list names, for each block of rows."""
    i, j = tkc.program_id(0), tkc.program_id(1)
    which = tkc.load(expert.ptr + i)
    at = tkc.load(rows, (i * BM,), (BM,))
    acc = tkc.zeros((BM, BM))
    for k in tkc.range(0, K, BM):
        acc = tkc.dot(
            tkc.load(x, (at, k), (BM, BM)), tkc.load(w[which], (k, j * BM), (BM, BM)), acc
        )
    tkc.store(y, (i * BM, j * BM), acc.to(y.dtype))


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_programs_whose_matrix_a_list_names_share_its_columns(name):
    half, indices = tkc.bfloat16, array(tkc.int32)
    arrays = aligned(half, 2), aligned(half, 3), aligned(half, 2), indices, indices

    module = traced(experts_product, *arrays, i32(64), BM=64)
    assert planned(module, name).raster == 8


def of_both_axes(x, w, y, K, BM: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    """A product whose rows, or columns, are others for each program."""
    i, j = tkc.program_id(0), tkc.program_id(1)
    row, column = i + j if ROWS else i, i + j if COLUMNS else j
    acc = tkc.zeros((BM, BM))
    for k in tkc.range(0, K, BM):
        left, right = tkc.load(x, (row * BM, k), (BM, BM)), tkc.load(w, (k, column * BM), (BM, BM))
        acc = tkc.dot(left, right, acc)
    tkc.store(y, (i * BM, j * BM), acc.to(y.dtype))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_programs_of_which_none_share_rows_and_columns_run_as_they_are(rows, columns):
    kind = aligned(tkc.bfloat16, 2)
    module = traced(of_both_axes, kind, kind, kind, i32(64), BM=64, ROWS=rows, COLUMNS=columns)
    assert (planned(module, "sm_80").raster == 8) == (not rows and not columns)


def held_beside(x, w, o, r, K, ALSO: tkc.constexpr):
    """A left operand that a loop does not change, and that is stored, too."""
    left = tkc.load(x, (0, 0), (128, 128))
    for k in tkc.range(0, K, 128):
        tkc.store(o, (0, k), tkc.dot(left, tkc.load(w, (0, k), (128, 128))).to(o.dtype))
    if ALSO:
        tkc.store(r, (0, 0), left + 1)


@pytest.mark.parametrize("also", [False, True])
def test_what_others_read_than_dots_lies_in_registers(also):
    kind = aligned(tkc.bfloat16, 2)
    module = traced(held_beside, kind, kind, kind, kind, i32(64), ALSO=also)
    assert planned(module, "sm_80").dots[0].a == ("registers" if also else "shared")


def chained(x, o, N: tkc.constexpr):
    s = tkc.load(x.ptr + tkc.program_id(0) * 1024 + tkc.arange(1024))
    for t in tkc.static_range(N):
        s = s * tkc.where(s > t, 1.0, -1.0)
    tkc.store(o.ptr + tkc.program_id(0) * 1024 + tkc.arange(1024), s)


def indexed(x, o, N: tkc.constexpr):
    s = tkc.arange(1024) + tkc.program_id(0)
    for t in tkc.static_range(N):
        s = tkc.where(s > t, s, s + 1)
    tkc.store(o.ptr + s, tkc.load(x.ptr + s))


def masked(x, o, N: tkc.constexpr):
    s = tkc.load(x, (tkc.program_id(0) * 64, 0), (64, 64))
    for t in tkc.static_range(N):
        s = s * tkc.where(s > t, 1.0, -1.0)
    tkc.store(o, (tkc.program_id(0) * 64, 0), s)


@pytest.mark.parametrize(
    "kernel, rank",
    [(chained, 1), (indexed, 1), (masked, 2)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_values_that_take_the_one_before_twice(kernel, rank):
    """Sixty of them, one behind the other: there are 2⁶⁰ ways from the first to the last."""
    module, given = traced(kernel, *(array(tkc.float32, rank),) * 2, N=60), context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert emit(module, given.target).text
