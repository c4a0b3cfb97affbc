"""Every operation × element type × shape at level 0 and on the CPU, against NumPy. tests/gpu/test_operations.py runs the same table on a GPU."""
import pytest

from tests.operations.case import run
from tests.operations.table import CASES


@pytest.mark.parametrize("how", ["level 0", "cpu"])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_operation(case, how): run(case, how)
