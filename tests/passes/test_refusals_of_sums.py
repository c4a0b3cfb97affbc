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
from tkc.passes.relax_stabilizers import _is_power_or_zero, _is_zero

h2, f1, f2 = array(tkc.float16, 2), array(tkc.float32), array(tkc.float32, 2)


def ops(module, kind) -> list:
    return [op for op in module.walk() if isinstance(op, kind)]


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
    (maximum,) = (op for op in ops(module, tile.Reduce) if op.kind.data == "max")
    (store,) = ops(module, tile.Store)
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
    (branch,) = ops(module, scf.IfOp)
    (added,) = (op for op in ops(module, ew.Elementwise) if op.fn.name == "add")
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
    (store,) = ops(traced(powers, f2, f2, number(), OF=of), tile.Store)
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
