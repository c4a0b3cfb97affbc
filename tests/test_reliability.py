"""docs/reliability.md: its commands run, and what it says of the code is so."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tkc.sim.mutants import OPERATORS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "reliability.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_commands(number, tmp_path):
    """As they stand, line after line, in a folder of their own beside the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names = {"python": sys.executable, "tkc": f"{sys.executable} -m tkc.tools.cli"}
    said = ""
    for line in BLOCKS[number].strip().splitlines():
        command = re.sub(r"^((?:\w+=\S+ )*)(python|tkc)\b", lambda m: m[1] + names[m[2]], line)
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        said += done.stdout + done.stderr
    expected = (
        ("passes change nothing",),
        ("sm_80: nothing found", "sm_89: nothing found", "sm_90a: nothing found"),
        ("passes change nothing in ieee and ring arithmetic", "tkc fuzz"),
    )[number]
    assert all(e in said for e in expected), said


def test_what_it_says_of_operators():
    assert int(re.search(r"\| (\d+) operators; ", TEXT)[1]) == len(OPERATORS)


def test_it_is_linked():
    for path in ("README.md", "docs/architecture.md"):
        assert "reliability.md" in (ROOT / path).read_text()
