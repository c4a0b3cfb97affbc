"""The golden programs in the simulator: right values and nothing found, over schedules; and what a change of each does."""
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.mutants import mutants

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


def small(rng, *shape): return rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16)


def product_of(module, m, n, k, seed, resident, tile, transposed):
    """Runs c = a·b (b as it is or transposed); small integers, so that the sums are exact."""
    rng = np.random.default_rng(seed)
    a, b, c = small(rng, m, k), small(rng, k, n), np.full((m, n), np.nan, ml_dtypes.bfloat16)
    given = np.ascontiguousarray(b.T) if transposed else b
    level4.run(module, [a, given, c], (-(-m // tile[0]), -(-n // tile[1])), seed, resident)
    np.testing.assert_array_equal(np.float32(c), np.float32((np.float32(a) @ np.float32(b)).astype(ml_dtypes.bfloat16)))


@pytest.mark.parametrize("m,n,k,resident", [(256, 256, 64, 1), (128, 256, 320, 1), (300, 520, 136, 2), (640, 256, 72, 1), (8, 8, 8, 1)])
def test_cooperative_product(m, n, k, resident):
    for seed in range(3): product_of(golden("cooperative_product"), m, n, k, seed, resident, (128, 256), True)


@pytest.mark.parametrize("m,n,k,resident", [(128, 192, 64, 1), (256, 192, 328, 1), (300, 520, 136, 2), (640, 200, 72, 1), (8, 8, 8, 3)])
def test_pingpong_product(m, n, k, resident):
    for seed in range(3): product_of(golden("pingpong_product"), m, n, k, seed, resident, (128, 192), False)


def attention(module, batches, length, heads, seed, resident):
    rng, scale = np.random.default_rng(seed), 128**-0.5
    q, k, v = (rng.normal(size=(batches, length, heads, 128)).astype(ml_dtypes.bfloat16) for _ in range(3))
    o, lse = np.full_like(q, np.nan), np.full((batches, heads, length), np.nan, np.float32)
    level4.run(module, [q, k, v, o, lse, scale], (length // 128, heads, batches), seed, resident)
    q, k, v = (np.float64(x).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(lse, (scores.max(-1, keepdims=True) + np.log(total))[..., 0], rtol=1e-5, atol=1e-5)
    # probabilities and output are rounded to bfloat16: half an ulp of each, against the sum of |p v|
    bound = 2.0**-8 * (weights @ np.abs(v) / total + np.abs(weights @ v / total))
    assert (np.abs(np.float64(o).transpose(0, 2, 1, 3) - weights @ v / total) <= bound).all()


@pytest.mark.parametrize("batches,length,heads,resident", [(1, 128, 1, 1), (1, 384, 1, 1), (2, 128, 3, 2), (1, 256, 2, 4)])
def test_attention_forward(batches, length, heads, resident):
    for seed in range(3): attention(golden("attention_forward"), batches, length, heads, seed, resident)


MUTATED = {
    "attention_forward": lambda module, seed: attention(module, 1, *((512, 1), (256, 4), (256, 2), (128, 4))[seed], seed, 1),
    "cooperative_product": lambda module, seed: product_of(module, 256, 512, (264, 136, 72, 136)[seed], seed, 1, (128, 256), True),      # tiles begin at every stage
    "pingpong_product": lambda module, seed: product_of(module, 512, 192, (136, 328, 72, 328)[seed], seed, 1, (128, 192), False),
}
EQUIVALENT = {                                                    # of all mutants of the three
    ("pingpong_product", "drop: mbarrier_wait 1"),                                                       # the drain, which a block without a cluster does not need
    ("pingpong_product", "stage: stage 2"),                                                              # the consumers exchange their slabs
    ("attention_forward", "earlier: mbarrier_expect 2"),                                                 # the phase cannot end before its bytes, which come after the wait
    ("attention_forward", "stage: mbarrier_wait 5"),                                                     # the other stage is released later than the one waited for
    *(("attention_forward", f"{change}: mbarrier_arrive 9") for change in ("drop", "twice", "earlier", "stage")),      # the last release: nobody waits for it
    ("attention_forward", "first parity: mbarrier_wait 6"), ("attention_forward", "stages + 1: ring_next 5"),          # behind the last tile: nobody uses what comes of them
    ("attention_forward", "first parity: mbarrier_wait 9"),                                              # the second stage of a fresh ring: its parity is 0 as it is
    ("attention_forward", "parity stays: ring_next 6"), ("attention_forward", "stages + 1: ring_next 6"),
}


def found(run, mutant) -> bool:
    """Within four runs: parities that depend on who comes first are not wrong on every schedule."""
    for seed in range(4):
        try: run(mutant, seed)
        except (SimulationError, AssertionError): return True
    return False


@pytest.mark.parametrize("name", MUTATED)
def test_every_mutant_is_found(name):
    every = {"attention_forward": 7, "cooperative_product": 2, "pingpong_product": 2}[name]          # of 336, 123 and 150: what the time of a test allows
    sample = list(mutants(golden(name)))[::every]
    assert len(sample) > 40
    assert {(name, label) for label, mutant in sample if not found(MUTATED[name], mutant)} <= EQUIVALENT
