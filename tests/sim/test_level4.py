"""The engine on small programs: right values and no alarm on clean ones, an alarm on every mutant, under many schedules."""
import ml_dtypes
import numpy as np
import pytest

from tests.sim.programs import product, ring
from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.report import Violation

SEEDS = range(12)


def run_product(text, steps=5, tiles=1, seed=0):
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (64 * tiles, 64 * steps)).astype(ml_dtypes.bfloat16), rng.integers(-3, 4, (64 * steps, 32)).astype(ml_dtypes.bfloat16)
    c = np.zeros((64 * tiles, 32), ml_dtypes.bfloat16)
    module = parse(text)
    verify(module)
    level4.run(module, [a, b, c, steps], (1,), seed)
    np.testing.assert_array_equal(np.float32(c), np.float32((np.float32(a) @ np.float32(b)).astype(ml_dtypes.bfloat16)))


def run_ring(text, steps=5, seed=0):
    x, o = np.random.default_rng(2).integers(-9, 9, (32, 32 * steps)).astype(np.float32), np.zeros((32, 32), np.float32)
    module = parse(text)
    verify(module)
    level4.run(module, [x, o, steps], (1,), seed)
    np.testing.assert_array_equal(o, x.reshape(32, steps, 32).sum(1))


@pytest.mark.parametrize("stages,steps,tiles", [(1, 3, 1), (2, 1, 1), (2, 5, 1), (3, 4, 2), (4, 2, 3)])
def test_the_product_is_clean(stages, steps, tiles):
    for seed in SEEDS: run_product(product(stages, tiles), steps, tiles, seed)


@pytest.mark.parametrize("stages,steps", [(2, 1), (2, 4), (3, 0), (3, 1), (3, 2), (3, 5)])
def test_the_ring_is_clean(stages, steps):
    for seed in SEEDS: run_ring(ring(stages), steps, seed)
