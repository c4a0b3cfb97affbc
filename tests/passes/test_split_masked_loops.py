"""split-masked-loops: values stay, bit for bit; a mask whose ends are known is computed only where
it cuts; any other stays as it was.
"""

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, i32, inf, traced
from tests.passes.kernels import CASES, aligned, blank, context, normal, through
from tests.passes.stages import count
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.text import parse, show
from tkc.ir.verify import verify
from tkc.passes import split_masked_loops
from tkc.sim import dataflow, level0

f2, u32, u64 = array(tkc.float32, 2), tkc.uint32, tkc.uint64


def masked(
    x,
    o,
    window,
    MASK: tkc.constexpr,
    N: tkc.constexpr,
    BM: tkc.constexpr = 64,
    BN: tkc.constexpr = 128,
):
    """A sum over the blocks of a row of what a mask leaves; elements outside it count as 1000, so
    that every mask shows.
    """
    m = tkc.program_id(0) * BM
    rows, total = m + tkc.arange(BM), tkc.zeros((BM,))
    for n in tkc.range(0, N, BN):
        s, cols = tkc.load(x, (m, n), (BM, BN)), n + tkc.arange(BN)
        total = total + tkc.sum(
            tkc.where(MASK(rows[:, None], cols[None, :], window, x), s, 1000.0), axis=1
        )
    tkc.store(o, (m, 0), total[:, None])


KNOWN = {
    "causal": lambda r, c, w, x: r >= c,
    "behind": lambda r, c, w, x: c < r,
    "window": lambda r, c, w, x: (c <= r) & (r - c < w),
    "window of 100": lambda r, c, w, x: (c <= r) & (c > r - 100),
    "prefix": lambda r, c, w, x: (c < 150) | (c <= r),
    "not behind": lambda r, c, w, x: ~(c < r),
    "off the diagonal": lambda r, c, w, x: r != c,
    "inside": lambda r, c, w, x: c < x.shape[1],
    "negated": lambda r, c, w, x: -r <= -c,
    "bounded": lambda r, c, w, x: tkc.minimum(r, 70) >= tkc.maximum(c, 3) - 200,
    "either side unknown": lambda r, c, w, x: (r >= c) | (c % 7 == 3),
}
UNKNOWN = {
    "every seventh": lambda r, c, w, x: c % 7 == 3,
    "and every seventh": lambda r, c, w, x: (c % 7 == 3) & (r >= c),
    "of data": lambda r, c, w, x: x[0, 0] + r.to(tkc.float32) >= c.to(tkc.float32),
    "of unsigned": lambda r, c, w, x: r.to(u32) - 5 >= c.to(u32),
    "of what may wrap": lambda r, c, w, x: r + w >= c,
    "of a product that may": lambda r, c, w, x: 2 * r + 5 >= c - 3,
    "of what may be negative": lambda r, c, w, x: (r - 100).to(u64) >= c.to(u64),
}


def module_of(mask, n: int):
    return traced(masked, f2, f2, i32(), MASK=mask, N=n)


def results(module, run, rows: int, n: int, window: int) -> np.ndarray:
    data = [normal(rows, n), blank(rows, 1), window]
    run(module, data, (-(-rows // 64),))
    return data[1]


@pytest.mark.parametrize(
    "rows, n, window", [(1, 1, 1), (130, 384, 90), (200, 300, 300), (64, 128, 0), (300, 129, -5)]
)
@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_values_stay(name, rows, n, window):
    module = module_of((KNOWN | UNKNOWN)[name], n)
    want = results(module, level0.run, rows, n, window)
    through(module, "split-masked-loops", context(num_warps=4))
    assert show(parse(show(module))) == show(module)
    np.testing.assert_array_equal(results(module, level0.run, rows, n, window), want)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_mask_is_branched_round(name):
    module = module_of(KNOWN[name], 300)
    given = through(module, "split-masked-loops", context(num_warps=4))
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert count(loop, scf.IfOp) == 1 and not any(
        isinstance(op, ew.Select) for op in loop.body.block.ops
    )
    branch = next(op for op in loop.walk() if isinstance(op, scf.IfOp))
    assert (
        count(branch.true_region.block.parent_op().true_region, scf.YieldOp) == 1
        and len(list(branch.true_region.block.ops)) == 1
    ), "the full block does no work"
    assert any("computed only where it is not full" in d for d in given.decisions)


@pytest.mark.parametrize("name", UNKNOWN)
def test_any_other_mask_stays(name):
    module = module_of(UNKNOWN[name], 300)
    given = through(module, "split-masked-loops", context(num_warps=4))
    assert not count(module, scf.IfOp) and any(
        "its ends are not known" in d for d in given.decisions
    )


def test_what_only_the_mask_needs_moves_with_it_and_what_no_loop_changes_comes_before_it():
    module = module_of(KNOWN["window"], 300)
    through(module, "split-masked-loops", context(num_warps=4))
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    inside = [
        op
        for op in loop.body.block.ops
        if isinstance(op, ew.Elementwise) and op.result.type != ew.i1
    ]
    assert not any(getattr(op.result.type, "rank", 0) == 2 and op.fn.truth for op in inside)
    # two of the mask, two of its ends
    assert count(loop, ew.CLASSES["ge"], ew.CLASSES["le"], ew.CLASSES["lt"]) >= 4


@pytest.mark.parametrize("name", ["causal", "window"])
def test_rows_that_only_the_mask_needs_are_made_in_its_branch(name):
    """Registers do not hold them through a loop of one role."""
    module = module_of(KNOWN[name], 300)
    given = through(module, "split-masked-loops", context(num_warps=4))
    assert not given.has_roles
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    before = list(loop.parent.ops)[: list(loop.parent.ops).index(loop)]
    assert not any(isinstance(op, tile.Arange) for op in before)
    assert sum(isinstance(op, tile.Arange) for op in loop.walk()) == 2


def test_small_tiles_are_not_worth_a_branch():
    module = traced(masked, f2, f2, i32(), MASK=KNOWN["causal"], N=300, BM=8, BN=16)
    through(module, "split-masked-loops", context(num_warps=4))
    assert not count(module, scf.IfOp)


def test_infinities_and_nan_pass_as_they_did():
    module = module_of(KNOWN["causal"], 256)
    x = np.full((128, 256), np.nan, np.float32)
    x[:, :64] = inf
    want, got = blank(128, 1), blank(128, 1)
    level0.run(module, [x, want, 0], (2,))
    through(module, "split-masked-loops", context(num_warps=4))
    level0.run(module, [x, got, 0], (2,))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", CASES)
def test_nothing_changes_in_other_kernels(name):
    case = CASES[name]
    module = case.module()
    given = through(module, "plan", context("sm_80", **case.options))
    want = case.run(module)
    split_masked_loops.run(module, given)
    verify(module)
    for got, expected in zip(case.run(module), want, strict=False):
        np.testing.assert_array_equal(got, expected)


def test_later_levels_agree():
    module = module_of(KNOWN["window of 100"], 300)
    want = results(module, level0.run, 130, 300, 0)
    through(module, "pipeline-async-copies", context(num_warps=4))
    np.testing.assert_allclose(results(module, dataflow.run, 130, 300, 0), want, rtol=1e-5)


def weighted(q, k, v, o, BESIDE: tkc.constexpr):
    """A masked product, and another one that is made of it, or stands beside it."""
    m = tkc.program_id(0) * 128
    rows, acc = m + tkc.arange(128), tkc.zeros((128, 64))
    left = tkc.load(q, (m, 0), (128, 64))
    for n in tkc.range(0, k.shape[0], 64):
        right = tkc.load(k, (n, 0), (64, 64))
        s = tkc.where(rows[:, None] >= (n + tkc.arange(64))[None, :], tkc.dot(left, right.T), 0.0)
        if BESIDE:
            acc = acc + s * tkc.dot(left, tkc.load(v, (n, 0), (64, 64)).T)
        else:
            acc = tkc.dot(s.to(q.dtype), tkc.load(v, (n, 0), (64, 64)), acc)
    tkc.store(o, (m, 0), acc)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_branch_parts_no_dots_of_one_role(beside, target):
    """Warps that issue dots and vector work in one order run one dot under the other's mask."""
    halves = [aligned(tkc.bfloat16, 2)] * 3
    module = traced(weighted, *halves, aligned(tkc.float32, 2), BESIDE=beside)
    given = through(module, "split-masked-loops", context(target, num_warps=4))
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert count(loop, scf.IfOp) == (0 if beside and not given.has_roles else 1)
    assert given.has_roles == (target == "sm_90a")
