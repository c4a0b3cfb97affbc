"""What LLVM's code generator must not do in a process of the user's."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

import tkc
from tkc.fuzz.check import Comparison, arguments, traced
from tkc.fuzz.productions import kernel

SCRIPT = """
import numpy as np
import tkc

@tkc.jit
def kernel(x, y, z):
    some = tkc.load(x, (-2,), (17,), mask=tkc.arange(17) < 3)
    kept = tkc.where(some >= some, some, some)
    small = tkc.sort(some.to(tkc.float8_e4m3), axis=0)
    sums = tkc.cumsum(kept, axis=0)
    for i in tkc.static_range(3):
        for j in tkc.range(-2, -1, 1):
            block = tkc.load(y, (j + 1, 0), (8, 16))
            at = tkc.arange(16)[:, None] + tkc.arange(16)[None, :]
            tkc.load(y.ptr + at, mask=at < y.shape[0], other=-1)
    tkc.store(z, (0,), kept != kept)

x, y, z = np.ones(16, np.int32), np.ones((8, 16), np.float16), np.ones(17, bool)
kernel[(1,)](x, y, z)
print("right" if not z.any() else "wrong")
"""


def test_half_of_a_masked_load_ends_no_process(tmp_path):
    """LLVM 22 aborts over a load that it halved: it does not know of how many bytes a half is."""
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TKC_CACHE": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (run.returncode, run.stdout.strip()) == (0, "right"), run.stderr[-2000:]


@tkc.jit
def _loads_twice(x, sums, signs):
    few = tkc.load(x, (0,), (16,), mask=tkc.arange(16) < 5)
    tkc.store(sums, (0,), few)
    tkc.store(signs, (16 * (x.shape[0] // 40),), few > 3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_equal_loads_whose_second_half_is_masked_off(dtype):
    """LLVM 22 makes plain loads of the second half where it writes masked loads without AVX-512."""
    x, sums, signs = np.arange(4, 44).astype(dtype), np.ones(16, dtype), np.ones(48, bool)
    _loads_twice[(1,)](x, sums, signs)
    few = np.where(np.arange(16) < 5, x[:16], 0)
    np.testing.assert_array_equal(sums, few)
    np.testing.assert_array_equal(signs[16:32], few > 3)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86 processor")
@pytest.mark.parametrize("seed", [20000046, 21007467, 21011223])
def test_lanes_that_are_masked_off_without_avx512(seed):
    """Random kernels that had what memory holds in such lanes."""
    k = kernel(seed)
    comparison = Comparison(traced(k, arguments(k)), lambda: arguments(k), k.grid)
    assert comparison.cpu("haswell") is None
