"""What relax-stabilizers does not take for relative to a maximum, or for a power, each asked
directly, beside the nearest thing that it takes.
"""

import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, inf, traced
from tests.language.kernels import i32 as number
from tests.passes.kernels import context, through
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.values import operations_in
from tkc.passes.analysis.stabilizers import Unproved, is_running_maximum, prove
from tkc.passes.relax_stabilizers import Relaxation, _is_power_or_zero, _is_zero

h2, f1, f2 = array(tkc.float16, 2), array(tkc.float32), array(tkc.float32, 2)


# ---- what is 0 where a maximum is none
def relative(x, y, o, n, OF: tkc.constexpr):
    v = tkc.load(x, (0, 0), (64, 64))
    top = tkc.max(v, axis=1)
    tkc.store(o, (0, 0), OF(v, tkc.exp2(v - top[:, None]), tkc.load(y, (0, 0), (64, 64))))


@pytest.mark.parametrize(
    "of, zero",
    [
        (lambda v, p, y: p * v, True),
        (lambda v, p, y: tkc.exp2(v), False),
        (lambda v, p, y: p + p, True),
        (lambda v, p, y: p + v, False),
        (lambda v, p, y: tkc.where(v > 0, p, 0), True),
        (lambda v, p, y: tkc.where(v > 0, p, v), False),
        (lambda v, p, y: tkc.dot(p.to(tkc.float16), y), True),
        (lambda v, p, y: tkc.dot(v.to(tkc.float16), y), False),
        (lambda v, p, y: tkc.dot(p.to(tkc.float16), y, v), False),
        (lambda v, p, y: tkc.sum(p, axis=1)[:, None], True),
        (lambda v, p, y: tkc.sum(v, axis=1)[:, None], False),
    ],
)
def test_what_is_zero_where_a_maximum_is_none(of, zero):
    module = traced(relative, f2, h2, f2, number(), OF=of)
    (maximum,) = (op for op in operations_in(module, tile.Reduce) if op.kind.data == "max")
    (store,) = operations_in(module, tile.Store)
    assert _is_zero(store.value, maximum.results[0]) == zero


def in_a_branch(x, o, n, OF: tkc.constexpr):
    top, total = tkc.full((64,), -inf), tkc.zeros((64,))
    if n > 0:
        v = tkc.load(x, (0, 0), (64, 64))
        top = tkc.max(v, axis=1)
        total = OF(v, top)
    tkc.store(o, (0,), top + total)


@pytest.mark.parametrize(
    "of, zero",
    [
        (lambda v, top: tkc.sum(tkc.exp2(v - top[:, None]), axis=1), True),
        (lambda v, top: tkc.sum(v, axis=1), False),
    ],
)
def test_both_ends_of_a_branch_are_zero_together(of, zero):
    module = traced(in_a_branch, f2, f1, number(), OF=of)
    (branch,) = operations_in(module, scf.IfOp)
    (added,) = (op for op in operations_in(module, ew.Elementwise) if op.fn.name == "add")
    top, total = added.args
    assert {top.owner, total.owner} == {branch} and _is_zero(total, top) == zero


# ---- powers
def powers(x, o, n, OF: tkc.constexpr):
    v = tkc.load(x, (0, 0), (64, 64))
    tkc.store(o, (0, 0), OF(v, tkc.exp2(v), n))


def either(v, p, n, other):
    if n > 0:
        other = p
    return other


@pytest.mark.parametrize(
    "of, is_power",
    [
        (lambda v, p, n: p, True),
        (lambda v, p, n: v, False),
        (lambda v, p, n: tkc.where(v > 0, p, 0), True),
        (lambda v, p, n: tkc.where(v > 0, p, 1), False),
        (lambda v, p, n: either(v, p, n, tkc.exp2(v + 1)), True),
        (lambda v, p, n: either(v, p, n, v), False),
    ],
)
def test_what_is_a_power(of, is_power):
    (store,) = operations_in(traced(powers, f2, f2, number(), OF=of), tile.Store)
    assert _is_power_or_zero(store.value) == is_power


# ---- loops
def why_exact(kernel, *given, **constants) -> str:
    at = context()
    through(traced(kernel, *given, **constants), "relax-stabilizers", at)
    return "; ".join(text for text in at.decisions if text.startswith("relax-stabilizers"))


def of_halves(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    top, total = tkc.full((ROWS,), -inf, x.dtype), tkc.zeros((ROWS,), x.dtype)
    for n in tkc.range(0, x.shape[1], BN):
        v = tkc.load(x, (0, n), (ROWS, BN), other=-inf)
        new = tkc.maximum(top, tkc.max(v, axis=1))
        total, top = total * tkc.exp(top - new) + tkc.sum(tkc.exp(v - new[:, None]), axis=1), new
    tkc.store(o, (0,), top + tkc.log(total))


def test_a_maximum_of_halves_stays_exact():
    given = array(tkc.float16, 2), array(tkc.float16)
    assert "it is a f16" in why_exact(of_halves, *given, ROWS=8, BN=32)
    assert "stays exact" not in why_exact(of_halves, f2, f1, ROWS=8, BN=32)


def in_some_iterations(x, o, ROWS: tkc.constexpr, BN: tkc.constexpr):
    top, total = tkc.full((ROWS,), -inf), tkc.zeros((ROWS,))
    for n in tkc.range(0, x.shape[1], BN):
        v = tkc.load(x, (0, n), (ROWS, BN), other=-inf)
        new = tkc.maximum(top, tkc.max(v, axis=1))
        more = tkc.zeros((ROWS,))
        if n >= BN:
            more = tkc.sum(tkc.exp(v - new[:, None]), axis=1)
        total, top = total * tkc.exp(top - new) + more, new
    tkc.store(o, (0,), top + tkc.log(total))


def test_powers_of_a_branch_stay_exact():
    assert "stays exact" in why_exact(in_some_iterations, f2, f1, ROWS=8, BN=32)


def weighted(q, v, o, BN: tkc.constexpr, WEIGHT: tkc.constexpr):
    top, acc, total = tkc.full((64,), -inf), tkc.zeros((64, 32)), tkc.zeros((64,))
    for n in tkc.range(0, v.shape[0], BN):
        s = tkc.load(q, (0, n), (64, BN)).to(tkc.float32)
        new = tkc.maximum(top, tkc.max(s, axis=1))
        p, f = tkc.exp2(s - new[:, None]), tkc.exp2(top - new)
        acc = tkc.dot(WEIGHT(p).to(tkc.float16), tkc.load(v, (n, 0), (BN, 32)), acc * f[:, None])
        total, top = total * f + tkc.sum(p, axis=1), new
    tkc.store(o, (0, 0), (acc / total[:, None]).to(tkc.float16))


def test_a_narrow_type_holds_powers_alone():
    """Their sum says how large each is, but not how large a multiple of one is."""
    said = why_exact(weighted, h2, h2, h2, BN=32, WEIGHT=lambda p: p * 3)
    assert "sums of its powers are held as f16" in said
    assert "stays exact" not in why_exact(weighted, h2, h2, h2, BN=32, WEIGHT=lambda p: p)


# ---- forms
def online(x, o, n, MORE: tkc.constexpr, BEHIND: tkc.constexpr):
    """A softmax's sum, what else its loop carries, and what is made of them."""
    top, total, more = tkc.full((8,), -inf), tkc.zeros((8,)), tkc.zeros((8,))
    for k in tkc.range(0, x.shape[1], 32):
        v = tkc.load(x, (0, k), (8, 32), other=-inf)
        new = tkc.maximum(top, tkc.max(v, axis=1))
        s = tkc.sum(tkc.exp2(v - new[:, None]), axis=1)
        total, more = total * tkc.exp2(top - new) + s, MORE(more, total, top, new, s, v)
        top = new
    tkc.store(o, (0,), BEHIND(x, n, top, total, more))


def plain(more, total, top, new, s, v):
    return more


def logarithm(x, n, top, total, more):
    return top + tkc.log2(total)


def squared_where(x, n, top, total, more):
    if n > 0:
        total = total * total
    return logarithm(x, n, top, total, more)


def halved_where(x, n, top, total, more):
    if n > 0:
        total = total * 0.5
    return logarithm(x, n, top, total, more)


def doubled_again(x, n, top, total, more):
    for _ in tkc.range(n):
        more = total * 2
    return more / total


def gone_on(of):
    def behind(x, n, top, total, more):
        total = of(total)
        for k in tkc.range(0, x.shape[1], 32):
            v = tkc.load(x, (0, k), (8, 32), other=-inf)
            new = tkc.maximum(top, tkc.max(v, axis=1))
            s = tkc.sum(tkc.exp2(v - new[:, None]), axis=1)
            total, top = total * tkc.exp2(top - new) + s, new
        return logarithm(x, n, top, total, more)

    return behind


@pytest.mark.parametrize(
    "more, behind, why",
    [
        (plain, logarithm, ""),
        (lambda b, t, top, new, s, v: b + 2 * new - top, lambda x, n, top, t, b: b - top, "degree"),
        (plain, gone_on(lambda t: t * 2), ""),
        (plain, gone_on(lambda t: t * t), "another loop goes on with it in another form"),
        (plain, halved_where, ""),
        (plain, squared_where, "a branch gives it in two forms"),
        (plain, doubled_again, "another loop carries what depends on it"),
        (
            lambda b, t, top, new, s, v: tkc.where(b > 0, s, s * 2),
            lambda x, n, top, t, b: b / t,
            "",
        ),
    ],
)
def test_what_a_sum_relative_to_a_maximum_is(more, behind, why):
    (loop, *_) = operations_in(
        traced(online, f2, f1, number(), MORE=more, BEHIND=behind), scf.ForOp
    )
    if not why:
        prove(loop)
        return
    with pytest.raises(Unproved, match=why):
        prove(loop)


def based(x, o, BASE: tkc.constexpr):
    top, total = tkc.full((8,), -inf), tkc.zeros((8,))
    for k in tkc.range(0, x.shape[1], 32):
        v = tkc.load(x, (0, k), (8, 32), other=-inf)
        new = tkc.maximum(top, tkc.max(v, axis=1))
        base = BASE(new)
        total = total * tkc.exp2(top - base) + tkc.sum(tkc.exp2(v - base[:, None]), axis=1)
        top = new
    tkc.store(o, (0,), top + tkc.log2(total))


@pytest.mark.parametrize(
    "base, guarded",
    [
        (lambda m: tkc.where(m > -inf, m, 0.0), True),
        (lambda m: tkc.where(m == -inf, 0.0, m), True),
        (lambda m: tkc.where(m <= -inf, m, 0.0), False),
        (lambda m: tkc.where(m < -inf, m, 0.0), False),
    ],
)
def test_a_maximum_is_guarded_where_it_is_none(base, guarded):
    (loop,) = operations_in(traced(based, f2, f1, BASE=base), scf.ForOp)
    if guarded:
        prove(loop)
        return
    with pytest.raises(Unproved):
        prove(loop)


def relaxed(more, behind=logarithm) -> Relaxation:
    module = traced(online, f2, f1, number(), MORE=more, BEHIND=behind)
    loop = operations_in(module, scf.ForOp)[0]
    argument, maximum = next(
        (a, found) for a in loop.body.block.args[1:] if (found := is_running_maximum(loop, a))
    )
    return Relaxation(loop, argument, maximum)


def relative_to_all(more, total, top, new, s, v):
    """Powers relative to the largest of all rows, which is another maximum."""
    most = tkc.max(new, axis=0)
    p = tkc.exp2(v - most) * tkc.exp2(most - new)[:, None]
    return more * tkc.exp2(top - new) + tkc.sum(p, axis=1)


@pytest.mark.parametrize("more", [plain, relative_to_all])
def test_powers_relative_to_another_maximum_are_none_of_this_one(more):
    """exp2(v - new) alone."""
    found = relaxed(more, lambda x, n, top, total, more: top + tkc.log2(total + more))
    assert len(found.powers) == 1


def beyond(more, total, top, new, s, v):
    return new + 1


@pytest.mark.parametrize(
    "more, behind, zeros",
    [(plain, logarithm, True), (beyond, lambda x, n, top, t, b: tkc.log2(t) + b, False)],
)
def test_what_is_added_to_a_maximum_does_not_begin_as_zero(more, behind, zeros):
    assert relaxed(more, behind)._begins_with_zeros() == zeros
