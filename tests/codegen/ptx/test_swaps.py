"""Loops of compare-and-swap, which lanes leave one by one, and gathers of what is known."""

import re

import numpy as np
import pytest

import tkc
from tests.operations.case import run
from tests.operations.memory import BF16, F16, swaps
from tkc.fuzz import device
from tkc.fuzz.productions import kernel


@tkc.jit
def least_then_sums(x, least, sums, N: tkc.constexpr):
    v = tkc.load(x, (0,), (N,))
    tkc.atomic_min(least, (0,), v)
    tkc.store(sums[tkc.program_id(0)], (0,), tkc.cumsum(v, axis=0, reverse=True))


@tkc.jit
def known_at(places, y, N: tkc.constexpr):
    known = tkc.full((16, N), 3, tkc.float16)
    tkc.store(y, (0, 0), tkc.gather(known, tkc.load(places, (0, 0), (16, N)), axis=0))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_lanes_meet_behind_a_loop_of_swaps(target):
    text = least_then_sums.compile("f32[64]", "f32[64]", "f32[2, 64]", N=64, target=target).ptx
    assert text.count("cas.b32") == len(re.findall(r"\$swapped_\d+:\s+bar\.warp\.sync -1;", text))
    assert "cas.b32" in text and "shfl" in text


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_a_gather_of_a_constant_is_emitted(target, dtype):
    text = known_at.compile("i32[16, 32]", f"{dtype}[16, 32]", N=32, num_warps=1, target=target).ptx
    assert "shfl" in text or "st.global" in text


def test_a_gather_of_a_constant_gives_it():
    y = np.zeros((16, 32), np.float16)
    known_at[1](np.full((16, 32), 15, np.int32), y, N=32)
    assert (y == 3).all()


@pytest.mark.gpu
def test_a_random_kernel_whose_lanes_swapped_apart():
    assert not device.check(kernel(82000164))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_a_nan_of_16_bits_is_found_again(dtype, target):
    """Rounding from float32 gives every NaN other bits than NumPy's has."""
    run(swaps(dtype), target)
