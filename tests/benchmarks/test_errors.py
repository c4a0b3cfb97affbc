"""The table of errors has every kernel of the library."""

import numpy as np

from benchmarks import errors
from tkc import kernels


def test_every_kernel_has_a_case():
    missing = set(kernels.__all__) - {name.split(",")[0] for name in errors.CASES}
    assert missing == errors.EXACT | errors.WITHOUT_RIVAL


def test_a_kernel_s_error_is_that_of_its_results():
    """With NumPy in torch's place."""

    class Numbers(np.ndarray):
        def is_floating_point(self):
            return True

        def double(self):
            return self.astype(np.float64)

        def square(self):
            return self**2

        def sqrt(self):
            return np.sqrt(self)

    def normal(n):
        return np.random.default_rng(n).standard_normal(n).view(Numbers)

    def near(by):
        return lambda x: (x + by, 2 * x)

    found = errors.errors(
        errors.Case(near(0.5), near(0.25), lambda normal: (normal(8),), near(0)), normal
    )
    assert found == [(0.5, 0.25), (0.0, 0.0)]
