"""Loads whose parts epilogue subtiles make where they are stored: what a program stores where it
has read, it stores behind all that was read.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.test_epilogue_stores import product_of
from tests.passes.test_roles import array


@tkc.jit
def transposed(a, b, c, d, n, N: tkc.constexpr):
    """Each part of the result needs another part of what was there."""
    m = tkc.program_id(0) * 128
    old = tkc.load(c, (m, 0), (128, 128))
    total = product_of(a, b, m, N)
    tkc.store(c, (m, 0), (total + old.T.to(tkc.float32)).to(c.dtype))


@tkc.jit
def behind(a, b, c, d, n, N: tkc.constexpr):
    """What was there is needed behind a store there, too."""
    m = tkc.program_id(0) * 128
    total, old = product_of(a, b, m, N), tkc.load(c, (m, 0), (128, N)).to(tkc.float32)
    tkc.store(c, (m, 0), total.to(c.dtype))
    tkc.store(d, (m, 0), (total + old).to(d.dtype))


@tkc.jit
def alone(a, b, c, d, n, N: tkc.constexpr):
    """The transpose of what was there lies as the result does, to which it is added."""
    m = tkc.program_id(0) * 128
    total, old = product_of(a, b, m, N), tkc.load(c, (m, 0), (128, 128)).to(tkc.float32).T
    tkc.atomic_add(d, (m, 0), old.to(d.dtype))
    tkc.store(c, (m, 0), (total + old).to(c.dtype))


@tkc.jit
def both_ways(a, b, c, d, n, N: tkc.constexpr):
    """By parts of rows and by parts of columns."""
    m = tkc.program_id(0) * 128
    total = product_of(a, b, m, N) + tkc.load(c, (m, 0), (128, N)).to(tkc.float32)
    tkc.store(c, (m, 0), total.to(c.dtype))
    tkc.store(d, (0, m), total.T.to(d.dtype))


@tkc.jit
def in_a_loop(a, b, c, d, n, N: tkc.constexpr):
    """A later step stores what an earlier one has."""
    m = tkc.program_id(0) * 128
    total, old = product_of(a, b, m, N), tkc.load(c, (m, 0), (128, N)).to(tkc.float32)
    for _ in tkc.range(0, n):
        tkc.store(c, (m, 0), (total + old).to(c.dtype))


@tkc.jit
def in_a_branch(a, b, c, d, n, N: tkc.constexpr):
    """A store in a branch, and one behind it."""
    m = tkc.program_id(0) * 128
    total, old = product_of(a, b, m, N), tkc.load(c, (m, 0), (128, N)).to(tkc.float32)
    if n > 0:
        tkc.store(c, (m, 0), (total + old).to(c.dtype))
    tkc.store(c, (m, 0), (total * 2 + old).to(c.dtype))


@tkc.jit
def once(a, b, c, d, n, N: tkc.constexpr):
    """A result and what it is without what was there, in either order."""
    m = tkc.program_id(0) * 128
    total, old = product_of(a, b, m, N), tkc.load(c, (m, 0), (128, N)).to(tkc.float32)
    tkc.store(d, (m, 0), (total * 2 - old).to(d.dtype))
    tkc.store(c, (m, 0), (total + old).to(c.dtype))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32], ids=lambda t: t.__name__)
@pytest.mark.parametrize("warps", [None, 8])
@pytest.mark.parametrize(
    "kernel, n",
    [
        (transposed, 128),
        (alone, 128),
        *((kernel, n) for kernel in (behind, both_ways, once) for n in (96, 128)),
        (in_a_loop, 128),
        (in_a_branch, 128),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_what_was_there_is_read_before_it_is_stored_over(kernel, n, warps, dtype, monkeypatch):
    random = np.random.default_rng(0)
    a, b = (random.integers(-1, 2, s).astype(ml_dtypes.bfloat16) for s in ((256, 128), (128, n)))
    c = random.integers(-1, 2, (256, n)).astype(dtype)
    d = np.zeros((n, 256) if kernel is both_ways else (256, n), a.dtype)
    if kernel is alone:  # which tensor maps add, as they do no transposes of 32 bits
        d = d.astype(np.float32)
    want, got = ([x.copy() for x in (a, b, c, d)] for _ in range(2))
    kernel[2](*want, 2, n)
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    kernel[2](*got, 2, n, num_warps=warps)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_part_that_many_others_are_made_of_is_looked_at_once():
    """Of each of sixty steps the one before is read twice: 2⁶⁰ ways lead to the dot."""

    def halved(a, b, c):
        m = tkc.program_id(0) * 128
        total = product_of(a, b, m, 128)
        for _ in range(60):
            total = total + tkc.minimum(total, 1.0) * 0.5
        tkc.store(c, (m, 0), total.to(c.dtype))

    _, given = stages.compiled(traced(halved, *(array(tkc.bfloat16),) * 3))
    assert given.plan.roles != "one"
