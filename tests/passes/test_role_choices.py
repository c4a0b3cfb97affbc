"""What keeps a plan of roles from a choice: each program here lacks one thing alone, and says so.

The programs that have it are tested elsewhere: for what they compute, and that a keyword is heeded.
"""

import pytest

import tkc
from tests.language.kernels import array, attention, f32, matmul, traced
from tests.passes.kernels import aligned, context, through
from tests.passes.test_checks import chosen_rows, claimed
from tests.passes.test_plan import planned
from tests.passes.test_roles_sums import gated
from tkc.passes.plan import plan

B2, B4, F2, S8 = (
    aligned(dtype, rank)
    for dtype, rank in ((tkc.bfloat16, 2), (tkc.bfloat16, 4), (tkc.float32, 2), (tkc.int8, 2))
)
I1 = array(tkc.int32, 1)


def plan_of(kernel, *arguments, options=None, **constants):
    fn = getattr(kernel, "fn", kernel)
    return planned(traced(fn, *arguments, **constants), "sm_90a", **options or {})


def product(**options):
    return plan_of(matmul, B2, B2, B2, BM=128, BN=128, BK=64, options=options)


def attended(d=64, block=(128, 128), causal=False, **options):
    sizes = dict(CAUSAL=causal, D=d, BM=block[0], BN=block[1])
    return plan_of(attention, *(B4,) * 4, f32(), **sizes, options=options)


def says(made, sentence: str) -> bool:
    return any(sentence in line for line in made.decisions)


# ---- claimed one by one --------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{"cluster": (2, 1)}, {"split_k": 2}, {"stream_k": 2}], ids=str)
def test_programs_whose_blocks_share_something_are_not_claimed(options):
    made = product(dynamic_schedule=True, roles="cooperative", **options)
    assert not made.dynamic_schedule
    assert says(made, "dynamic_schedule = True is not used: blocks share")
    assert product(dynamic_schedule=True).dynamic_schedule


def test_programs_that_claim_their_work_are_not_claimed():
    made = plan_of(claimed, I1, B2, B2, B2, N=64, options={"dynamic_schedule": True})
    assert says(made, "dynamic_schedule = True is not used: programs take their work themselves")


# ---- copies for several blocks -------------------------------------------------------------------
def chained(a, b, c, o, N: tkc.constexpr):
    """Two dots a step, of which one adds up."""
    m, total = tkc.program_id(0) * N, tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        scores = tkc.dot(tkc.load(a, (m, k), (N, 64)), tkc.load(b, (k, 0), (64, 64)))
        total = tkc.dot(tkc.maximum(scores, 0).to(a.dtype), tkc.load(c, (k, 0), (64, N)), total)
    tkc.store(o, (m, 0), total.to(o.dtype))


def test_dots_that_do_not_all_add_up_share_no_copies():
    made = plan_of(chained, *(B2,) * 4, N=128, options={"cluster": (2, 1)})
    assert made.roles == "cooperative" and made.cluster == (1, 1)


def test_programs_that_may_skip_their_loop_share_no_copies():
    which = array(tkc.int32, 1)
    made = plan_of(chosen_rows, which, B2, B2, B2, N=128, options={"cluster": (2, 1)})
    assert made.cluster == (1, 1)


def by_pointers(a, b, c, N: tkc.constexpr):
    """Nothing says how many rows b has."""
    m, inner, columns = tkc.program_id(0) * N, tkc.arange(64), tkc.arange(N)
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        places = b.ptr + (k + inner)[:, None] * b.strides[0] + columns[None, :]
        total = tkc.dot(tkc.load(a, (m, k), (N, 64)), tkc.load(places), total)
    tkc.store(c, (m, 0), total.to(c.dtype))


def test_operands_by_addresses_that_nothing_bounds_are_not_shared():
    """A padding tile of a cluster would read beyond them."""
    made = plan_of(by_pointers, B2, B2, B2, N=128, options={"cluster": (2, 1)})
    assert made.cluster == (1, 1)


# ---- the next program's first dot ----------------------------------------------------------------
def test_a_dot_is_issued_early_where_dots_run_late_alone():
    made = product(dynamic_schedule=True, cross_tile_prologue=True)
    assert made.dynamic_schedule and not made.cross_tile_prologue


# ---- registers -----------------------------------------------------------------------------------
def unweighted(q, k, v, o, M: tkc.constexpr, N: tkc.constexpr):
    """Attention without a maximum."""
    m, total = tkc.program_id(0) * M, tkc.zeros((M, 64))
    rows = tkc.load(q, (m, 0), (M, 64))
    for n in tkc.range(0, k.shape[0], N):
        scores = tkc.dot(rows, tkc.load(k, (n, 0), (N, 64)).T)
        total = tkc.dot(tkc.maximum(scores, 0).to(q.dtype), tkc.load(v, (n, 0), (N, 64)), total)
    tkc.store(o, (m, 0), total.to(o.dtype))


def test_no_running_maxima_are_said_to_stay_exact_where_there_are_none():
    made = plan_of(unweighted, *(B2,) * 4, M=256, N=128, options={"num_warps": 16})
    assert made.roles == "cooperative" and not says(made, "running maxima")


def test_running_maxima_of_two_warpgroups_are_relaxed_beside_many_scores():
    """Where three and more keep them exact, for they have fewer registers."""
    made = attended(64, (128, 256))
    assert made.roles == "cooperative" and made.warps == 8 and made.relax


def test_sums_round_a_loop_are_all_that_lives_as_long():
    """No other tile of the loop asks the producer for registers."""
    one = plan_of(matmul, B2, B2, B2, BM=64, BN=128, BK=32)
    two = plan_of(gated, *(B2,) * 5, BM=64, BN=64, BK=32)
    assert one.registers == two.registers


# ---- shared memory -------------------------------------------------------------------------------
def reduced(a, b, c, d, AXIS: tkc.constexpr, N: tkc.constexpr):
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))
    tkc.store(d, (0,), tkc.max(total, axis=AXIS))


def test_reductions_along_the_rows_of_a_sum_take_shared_memory_alone():
    options = {"roles": "cooperative", "cluster": (1, 1), "num_stages": 2, "subtiles": 1}
    arguments = B2, B2, F2, array(tkc.float32, 1)
    along, across = (
        plan_of(reduced, *arguments, AXIS=axis, N=128, options=options) for axis in (0, 1)
    )
    assert across.spare > along.spare


def one_after_the_other(a, b, c, d, x, y, N: tkc.constexpr):
    """A block of the second loop is loaded between the loops."""
    one = two = tkc.zeros((N, 64))
    for k in tkc.range(0, a.shape[1], 64):
        one = tkc.dot(tkc.load(a, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, 64)), one)
    right = tkc.load(d, (0, 0), (64, 64))
    for m in tkc.range(0, c.shape[0], N):
        two = tkc.dot(tkc.load(c, (m, 0), (N, 64)), right, two)
    tkc.store(x, (0, 0), one.to(x.dtype))
    tkc.store(y, (0, 0), two.to(y.dtype))


def test_what_is_loaded_round_a_loop_leaves_the_stages_to_the_loops():
    made = plan_of(one_after_the_other, *(B2,) * 6, N=64)
    assert made.rings[0] > made.rings[1] == 2


def stored_first(x, y, b, c, N: tkc.constexpr):
    """A program stores what its loop reads."""
    tkc.store(x, (0, 0), tkc.load(y, (0, 0), (N, N)))
    total = tkc.zeros((N, N))
    for k in tkc.range(0, x.shape[1], 64):
        total = tkc.dot(tkc.load(x, (0, k), (N, 64)), tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))


def test_copies_alone_wait_for_what_is_stored():
    """What the consumers load they load in order; results need not leave registers for it."""
    waits = "copies wait for what programs store"
    assert says(plan_of(stored_first, *(B2,) * 4, N=128), waits)
    odd = array(tkc.bfloat16, 2)  # rows begin anywhere
    assert not says(plan_of(stored_first, odd, *(B2,) * 3, N=128), waits)


# ---- programs in turn, and side by side ----------------------------------------------------------
def from_before(x, w, o, N: tkc.constexpr):
    """Sums of products by one block, which is loaded once."""
    n, total = tkc.program_id(0) * N, tkc.zeros((64, N))
    right = tkc.load(w, (0, n), (64, N))
    for m in tkc.range(0, x.shape[0], 64):
        total = tkc.dot(tkc.load(x, (m, 0), (64, 64)), right, total)
    tkc.store(o, (0, n), total.to(o.dtype))


def scaled(a, b, c, N: tkc.constexpr):
    """The right operand is computed."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        right = tkc.load(b, (k, 0), (64, N)) * 2
        total = tkc.dot(tkc.load(a, (0, k), (N, 64)), right, total)
    tkc.store(c, (0, 0), total.to(c.dtype))


def as_far_as_said(a, b, c, ends, N: tkc.constexpr):
    """A number in memory says how many steps all programs have."""
    m, n, total = tkc.program_id(0) * N, tkc.program_id(1) * N, tkc.zeros((N, N))
    for k in tkc.range(0, ends[0] * 64, 64):
        total = tkc.dot(tkc.load(a, (m, k), (N, 64)), tkc.load(b, (k, n), (64, N)), total)
    tkc.store(c, (m, n), total.to(c.dtype))


def as_far_as_asked(a, b, c, ends, N: tkc.constexpr):
    """The same, where the number is read if another says so."""
    m, n, total = tkc.program_id(0) * N, tkc.program_id(1) * N, tkc.zeros((N, N))
    last = a.shape[1]
    if b.shape[0] < last:
        last = ends[0] * 64
    for k in tkc.range(0, last, 64):
        total = tkc.dot(tkc.load(a, (m, k), (N, 64)), tkc.load(b, (k, n), (64, N)), total)
    tkc.store(c, (m, n), total.to(c.dtype))


def test_warpgroups_share_programs_whose_steps_are_read_in_each_program():
    alone = {"roles": "pingpong"}
    made = plan_of(as_far_as_asked, B2, B2, B2, I1, N=128, options=alone)
    why = "the number of steps is read from memory in each program"
    assert says(made, f"cooperative: a block's consumers share a program: {why}")
    assert plan_of(as_far_as_said, B2, B2, B2, I1, N=128, options=alone).roles == "pingpong"


@pytest.mark.parametrize(
    "kernel, why",
    [
        (from_before, "an operand is loaded before the loop"),
        (scaled, "an operand is computed"),
    ],
)
def test_warpgroups_share_programs_that_need_more_than_a_sum_and_a_ring(kernel, why):
    options = {"roles": "pingpong", "swap_dots": False}
    made = plan_of(kernel, B2, B2, B2, N=128, options=options)
    assert says(made, f"cooperative: a block's consumers share a program: {why}")


def values_are_keys(q, k, o, N: tkc.constexpr):
    """Both dots read one block."""
    m, total = tkc.program_id(0) * N, tkc.zeros((N, N))
    rows = tkc.load(q, (m, 0), (N, N))
    for n in tkc.range(0, m + N, N):
        block = tkc.load(k, (n, 0), (N, N))
        total = tkc.dot(tkc.exp2(tkc.dot(rows, block.T)).to(q.dtype), block, total)
    tkc.store(o, (m, 0), total.to(o.dtype))


def test_programs_whose_dots_share_a_block_run_alone():
    options = {"roles": "co_resident", "rotate": False}  # each dot has a block of its own otherwise
    made = plan_of(values_are_keys, B2, B2, B2, N=64, options=options)
    assert made.members == 1 and says(made, "an operand has several readers")


def test_programs_of_one_length_run_side_by_side_as_asked_alone():
    assert attended(block=(64, 64)).members == 1
    assert attended(block=(64, 64), causal=True).members > 1


# ---- instructions --------------------------------------------------------------------------------
def one_for_two(a, b, c, x, y, N: tkc.constexpr):
    """A block is read by two sums, of which one has a left operand that is computed."""
    one = two = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        right = tkc.load(b, (k, 0), (64, N))
        one = tkc.dot(tkc.load(a, (0, k), (N, 64)) * 2, right, one)
        two = tkc.dot(tkc.load(c, (0, k), (N, 64)), right, two)
    tkc.store(x, (0, 0), one.to(x.dtype))
    tkc.store(y, (0, 0), two.to(y.dtype))


def test_wgmma_of_several_sums_that_share_a_block_may_read_a_computed_operand():
    """As the program stands before each dot is given a block of its own."""
    module, given = traced(one_for_two, *(B2,) * 5, N=128), context("sm_90a")
    through(module, "simplify", given)
    dots = plan(module, given).dots
    assert [dot.instruction for dot in dots] == ["wgmma"] * 2
    assert sorted(dot.a for dot in dots) == ["registers", "shared"]
