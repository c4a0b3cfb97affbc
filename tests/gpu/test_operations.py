"""Every operation × element type × shape on a GPU, against NumPy."""

import pytest

from tests.operations.case import run
from tests.operations.table import CASES, MORE


@pytest.mark.parametrize("case", CASES + MORE, ids=repr)
def test_operation(case):
    run(case, "gpu")
