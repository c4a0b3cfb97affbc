"""The golden programs in the simulator: right values and nothing found, over schedules; and what a change of each does."""
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import level4

HERE = Path(__file__).parent
SEEDS = range(6)


@cache
def golden(name):
    module = parse((HERE / f"{name}.mlir").read_text(), f"{name}.mlir")
    verify(module)
    return module


@pytest.mark.parametrize("n", [16, 1024, 2000])
def test_vector_add(n):
    rng = np.random.default_rng(0)
    for seed in SEEDS:
        x, y, out = rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32), np.zeros(n, np.float32)
        level4.run(golden("vector_add"), [x, y, out, n], (-(-n // 1024),), seed)
        np.testing.assert_array_equal(out, x + y)
