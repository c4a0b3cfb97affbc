"""A sample of the recorded kernels compiles to the recorded PTX; `make ptx-record` has them all."""

import subprocess
import sys
from pathlib import Path

from tests.ptx_record.normal import digest, normalized
from tests.sampling import seed

PARTS = 21  # of the record: one a day


def test_names_are_left_out():
    one = '.file 1 "a.py"\n.visible .entry add(\n$for_1:\n\t.loc 1 2 3\n\tbra $for_1; // back\n'
    other = ".visible .entry plus(\n$loop_7:\n\tbra $loop_7;\n"
    assert normalized(one) == normalized(other)
    assert digest(one) != digest(other.replace("bra", "bra.uni"))


def test_the_ptx_is_the_recorded_one():
    """In a process of its own: what the library launches depends on the calls before."""
    day = seed()
    part = ["--every", str(PARTS), "--first", str(day % PARTS)] if day is not None else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.ptx_record", "--jobs", "1", *part],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 differ, 0 are missing" in done.stdout
