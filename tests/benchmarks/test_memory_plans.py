"""Plans that are raced against the one that is chosen."""

import numpy as np
import pytest

from benchmarks import memory_bound, memory_plans
from tests.kernels.checks import numbers
from tkc import kernels
from tkc.runtime.specialize import OPTIONS


def test_plans_are_of_operations_and_options_that_exist():
    assert set(memory_plans.PLANS) <= {name for name, _, _ in memory_bound.OPERATIONS}
    assert all(
        set(options) <= set(OPTIONS)
        for plans in (*memory_plans.PLANS.values(), memory_plans.CLUSTERS)
        for options in plans
    )


@pytest.mark.parametrize("options", [*memory_plans.ROWS[:2], *memory_plans.CLUSTERS[:1]])
def test_what_a_call_launches_takes_them(options):
    x = np.empty((64, 131072 if "num_ctas" in options else 1024), numbers((), "bfloat16").dtype)
    with memory_plans.launches() as found:
        kernels.softmax(x)
    ((kernel, _, arguments, keywords),) = found
    compiled = kernel.compile(*arguments, target="sm_90a", **keywords, **options)
    assert (
        compiled.resources.clean
        and compiled.interface.persistent
        and compiled.interface.cluster == (options.get("num_ctas", 1), 1)
    )


def test_a_prepared_call_gives_its_result():
    x = numbers((5, 300))
    np.testing.assert_array_equal(
        memory_plans.planned(lambda: kernels.softmax(x), {}).run(), kernels.softmax(x)
    )
    y = numbers((50_000,))
    np.testing.assert_allclose(
        memory_plans.scanned(lambda: kernels.cumsum(y), 4096, 4).run(),
        kernels.cumsum(y),
        rtol=1e-4,
        atol=1e-3,
    )
