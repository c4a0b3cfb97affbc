"""Loads of one element for several neighbours, as of a scale for a group: each is loaded once."""

import re

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import context, through
from tkc.codegen.ptx.emit import emit
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0, ptx

N = 1024


def groups(x, s, out, count, GROUP: tkc.constexpr, OTHER: tkc.constexpr, MASKED: tkc.constexpr):
    """out = x + s, with an element of s for each group of neighbours."""
    i = tkc.program_id(0) * 1024 + tkc.arange(1024)
    at = s.ptr + i // GROUP
    scale = tkc.load(at, mask=i < count, other=OTHER) if MASKED else tkc.load(at)
    tkc.store(out.ptr + i, tkc.load(x.ptr + i) + scale)


def wanted(x, s, count: int, group: int, other: int, masked: bool) -> np.ndarray:
    scale = np.repeat(s, group)[: x.size]
    if masked:
        scale = np.where(np.arange(x.size) < count, scale, other).astype(s.dtype)
    return x + scale


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4, 16, 128, 24])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_each_is_loaded_once(dtype, group, masked):
    kind = getattr(tkc, dtype)
    arrays = [array(kind, 1)] * 3
    made = traced(groups, *arrays, i32(16), GROUP=group, OTHER=3, MASKED=masked)
    rng = np.random.default_rng(group)
    x = rng.integers(0, 90, 2 * N).astype(dtype)
    s = rng.integers(0, 90, -(-2 * N // group)).astype(dtype)
    count = N + 144
    want = wanted(x, s, count, group, 3, masked)
    given = [x, s, np.zeros_like(x), count]
    level0.run(made, given, (2, 1, 1))
    np.testing.assert_array_equal(given[2], want)
    through(made, PIPELINE[-1], context("sm_90a"))
    program = emit(made, context("sm_90a").target)
    _, _, out = ptx.run(program, [x, s, np.zeros_like(x), count], (2, 1, 1))
    np.testing.assert_array_equal(out, want)
    loads = len(re.findall(r"ld\.global", program.text))
    threads = 32 * made.body.block.first_op.warps
    each = N // threads
    if group in (2, 4, 16, 128):
        vector = min(each, 16 // x.itemsize)
        assert loads == each // min(group, vector) + each // vector


def test_what_replaces_absent_ones_is_an_elements_own():
    """A tile of them is not alike."""

    def replaced(s, out, count):
        i = tkc.arange(256)
        tkc.store(out.ptr + i, tkc.load(s.ptr + i // 8, mask=i < count, other=i))

    made = traced(replaced, array(tkc.int32, 1), array(tkc.int32, 1), i32(8))
    through(made, PIPELINE[-1], context("sm_90a"))
    program = emit(made, context("sm_90a").target)
    s = np.arange(100, 132, dtype=np.int32)
    _, out = ptx.run(program, [s, np.zeros(256, np.int32), 88], (1, 1, 1))
    at = np.arange(256)
    np.testing.assert_array_equal(out, np.where(at < 88, s[at // 8], at))
