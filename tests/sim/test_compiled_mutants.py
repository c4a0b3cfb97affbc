"""The mutation score of what the compiler makes: every change of a pipelined kernel's synchronisation is found, except the equivalent ones, each with its reason."""
import numpy as np
import pytest

from tests.passes.kernels import attended, context, product
from tkc.passes import pipeline
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.inputs import clones
from tkc.sim.mutants import OPERATORS, mutants

RELEASED = {f"leader alone: mbarrier_arrive {n}" for n in (0, 1)}            # asynchronous dots are the work of the whole warpgroup, and the leader has waited for them
SWAPPED = {"stage: stage 2"}                                                 # each of two consumers has the other's slab
KERNELS = {
    "product": ("sm_80", product(48, 32, 240, 32, 16, 32), set()),
    "product, float16": ("sm_89", product(16, 32, 112, 16, 32, 16, np.float16), set()),
    "attention": ("sm_80", attended(144, 32, 32, 32, True), set()),
    "product by TMA": ("sm_90a", product(128, 64, 192, 64, 32, 64, num_stages=2), RELEASED | SWAPPED),
}


def compiled(case, machine):
    module, given = case.module(), context(machine, **case.options)
    pipeline.run(module, given.target, given.options)
    return module


@pytest.mark.parametrize("name", KERNELS)
def test_every_mutant_of_a_compiled_kernel_is_found(name):
    machine, case, equivalent = KERNELS[name]
    module, data = compiled(case, machine), case.data()
    want, missed, count = clones(data), set(), 0
    level4.run(module, want, case.grid, 0, 2)

    def found(mutant, seed) -> bool:
        got = clones(data)
        try: level4.run(mutant, got, case.grid, seed, 1 + seed % 2)
        except SimulationError: return True
        return any(g.tobytes() != w.tobytes() for g, w in zip(got, want) if isinstance(g, np.ndarray))

    for label, mutant in mutants(module):
        count += 1
        if not any(found(mutant, seed) for seed in range(3)): missed.add(label)
    assert count >= 30 and missed <= equivalent, missed - equivalent


def test_there_are_twenty_operators(): assert len(OPERATORS) >= 20
