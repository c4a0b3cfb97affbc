"""The table of operations as PTX, on the machine of tkc.sim.ptx: one row in eight here, for the
targets in turn.

    python -m tests.operations.test_in_ptx [MORE]    all 1,800 rows, five minutes (with MORE those
                                                     that only a GPU runs otherwise)
"""

import sys
import time

import pytest

from tests.operations.case import run
from tests.operations.table import CASES, MORE

TARGETS = ("sm_80", "sm_89", "sm_90a")
ROWS = [(case, TARGETS[i % 3]) for i, case in enumerate(CASES)]


@pytest.mark.parametrize(
    "case, target",
    [(case, target) for case, target in ROWS[::8] if "1000" not in case.name.split()[-2]],
    ids=lambda x: repr(x) if hasattr(x, "kernel") else x,
)
def test_operation(case, target):
    run(case, target)


if __name__ == "__main__":
    began, rows, wrong = (
        time.monotonic(),
        ROWS + [(case, TARGETS[i % 3]) for i, case in enumerate(MORE)] * ("MORE" in sys.argv),
        0,
    )
    for case, target in rows:
        try:
            run(case, target)
        except Exception as e:
            wrong += 1
            print(f"{case.name}, {target}: {type(e).__name__}: {e}", flush=True)
    print(f"{len(rows)} rows, {wrong} wrong, {time.monotonic() - began:.0f} s")
    sys.exit(wrong > 0)
