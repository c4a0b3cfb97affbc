"""Every operation × element type × shape at level 0 and on the CPU, against NumPy.
tests/gpu/test_operations.py runs the same table, and more of it, on a GPU.
"""

import pytest

from tests.operations.case import DTYPES, EXTENTS, FLOATS, INTEGERS, run
from tests.operations.memory import SHAPES, STRIDES
from tests.operations.products import KINDS
from tests.operations.table import CASES, MORE


@pytest.mark.parametrize("how", ["level 0", "cpu"])
@pytest.mark.parametrize("case", CASES + MORE[::12], ids=repr)
def test_operation(case, how):
    run(case, how)


def test_the_table_is_the_product():
    """Every element type meets every operation that takes it, at every extent, with every kind of
    strides; both extents of matrices, all three of products.
    """
    names = {c.name for c in CASES + MORE}
    assert len(names) == len(CASES + MORE)
    numbers = (*INTEGERS, *FLOATS)
    for n in EXTENTS:
        wanted = (
            {
                f"{what} of {t} {n}"
                for t in DTYPES
                for what in ("functions", "casts", "masks", "constants")
            }
            | {f"sorting {t} {n}" for t in numbers}
            | {f"softmax of {t} {n}" for t in FLOATS}
        )
        assert not wanted - names, sorted(wanted - names)
    assert (
        not {
            f"copies of {t} {strides.__name__} {m}x{n}"
            for t in DTYPES
            for strides in STRIDES
            for m, n in SHAPES
        }
        - names
    )
    for family, types, parts in (
        ("turns", DTYPES, 2),
        ("cuts", DTYPES, 2),
        ("picks", DTYPES, 2),
        ("reductions", DTYPES, 2),
        ("scans", numbers, 2),
        ("gathers", DTYPES, 2),
        ("product", KINDS, 3),
    ):
        for t in types:
            of = f"{family} of {t} "
            shapes = [
                tuple(map(int, name.split()[3].split("x")))
                for name in names
                if name.startswith(of)
                and (family != "product" or name.endswith("ieee") and " and " not in name)
            ]
            for axis in range(parts):
                assert set(EXTENTS) - ({1000} if family == "gathers" else set()) <= {
                    s[axis] for s in shapes
                }, (family, t, axis, sorted({s[axis] for s in shapes}))
