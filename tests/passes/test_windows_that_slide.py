"""Arrays of which several elements are one in memory: a step reads what the step before wrote at
another place of the array. Threads meet between the two.
"""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tkc.errors import CompileError
from tkc.runtime.specialize import argument, overlaps


@pytest.fixture(autouse=True)
def in_simulator(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")


@tkc.jit
def of_an_array(windows, STEPS: tkc.constexpr):
    for i in tkc.range(0, STEPS, 1):
        x = tkc.load(windows, (i, 0), (1, 64))
        tkc.store(windows, (i + 1, 0), x * 2)


@tkc.jit
def of_a_pointer(memory: tkc.pointer, STEPS: tkc.constexpr):
    windows = tkc.array(memory, tkc.float32, (STEPS + 1, 64), (1, 1))
    for i in tkc.range(0, STEPS, 1):
        x = tkc.load(windows, (i, 0), (1, 64))
        tkc.store(windows, (i + 1, 0), x * 2)


@tkc.jit
def of_one_row(memory: tkc.pointer, STEPS: tkc.constexpr):
    rows = tkc.array(memory, tkc.float32, (STEPS, 64), (0, 1))
    for i in tkc.range(0, STEPS, 1):
        x = tkc.load(rows, (i, 0), (1, 64))
        tkc.store(rows, (i, 0), x + tkc.max(x, axis=1)[:, None])


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("warps", [2, 4])
@pytest.mark.parametrize(
    "kernel", [of_an_array, of_a_pointer, of_one_row], ids=lambda k: k.fn.__name__
)
def test_steps_see_what_steps_before_wrote(kernel, warps, target, monkeypatch):
    monkeypatch.setenv("TKC_TARGET", target)
    steps = 6
    memory = np.random.default_rng(0).integers(-2, 3, steps + 64).astype(np.float32)
    want = memory.copy()
    for i in range(steps):
        if kernel is of_one_row:
            want[:64] += want[:64].max()
        else:
            want[i + 1 : i + 65] = want[i : i + 64] * 2
    windows = np.lib.stride_tricks.as_strided(memory, (steps + 1, 64), (4, 4))
    kernel[1](windows if kernel is of_an_array else memory, STEPS=steps, num_warps=warps)
    np.testing.assert_array_equal(memory, want)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("step", [4, 64])
def test_launches_tell_of_steps_that_are_shorter_than_rows(step, target, monkeypatch):
    """Of windows whose strides the compiler does not know."""
    monkeypatch.setenv("TKC_TARGET", target)
    memory = np.random.default_rng(0).integers(-2, 3, 6 * step + 64).astype(np.float32)
    want = memory.copy()
    for i in range(0, 6 * step, step):
        want[i + step : i + step + 64] = want[i : i + 64] * 2
    windows = np.lib.stride_tricks.as_strided(memory, (7, 64), (4 * step, 4))
    of_an_array[1](windows, STEPS=6, num_warps=2)
    np.testing.assert_array_equal(memory, want)


@pytest.mark.parametrize(
    "shape, strides, folded",
    [
        ((4, 8), (8, 1), False),
        ((4, 8), (7, 1), True),
        ((8, 4), (1, 8), False),
        ((4, 1), (0, 0), True),
        ((1, 8), (0, 1), False),
        ((2, 3, 4), (4, 8, 1), False),
        ((3, 3, 4), (4, 8, 1), True),
        ((4, 8), (-8, 1), False),
    ],
)
def test_which_arrays_share_memory_with_themselves(shape, strides, folded):
    memory = np.zeros(256, np.float32)[64:]
    array = np.lib.stride_tricks.as_strided(memory, shape, [4 * s for s in strides])
    assert overlaps([argument(array, "x", False)]) == (((0, 0),) if folded else ())


@tkc.jit
def of_parts(a, b, windows, steps):
    d = tkc.dot(tkc.load(a, (0, 0), (128, 64)), tkc.load(b, (0, 0), (64, 512)))
    for i in tkc.range(0, steps):
        tkc.store(windows, (0, i * 512), d + i)


@pytest.mark.parametrize("step", [512, 1536])
def test_no_part_of_a_result_overwrites_what_a_later_step_stored(step, monkeypatch):
    """A result that registers do not hold is stored by parts of its rows, each in all steps: not
    where the rows of one part are the memory of another's.
    """
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((128, 64), (64, 512)))
    memory = np.zeros(127 * step + 1536, np.float32)
    windows = np.lib.stride_tricks.as_strided(memory, (128, 1536), (4 * step, 4))
    if step < 1536:
        with pytest.raises(CompileError, match="registers"):
            of_parts[1](a, b, windows, 3, num_warps=4)
        return
    of_parts[1](a, b, windows, 3, num_warps=4)
    d = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(windows, np.concatenate([d, d + 1, d + 2], axis=1))
