"""What random kernels found: reduced modules, run in every way. The first line of each says what
was wrong, and with how many warps or stages where that matters.
"""

import re
from pathlib import Path

import pytest

from tkc.fuzz.check import Comparison, Variant, example_arguments
from tkc.ir.text import parse

KEPT = sorted((Path(__file__).parent / "kept").glob("*.mlir"))


@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_kept(path):
    module = parse(text := path.read_text())
    said = dict(re.findall(r"^// .*\b(warps|stages) (\d+)", text, re.M))
    runs = Comparison(module, lambda: example_arguments(module), (2, 1, 1))
    found = [f for f in [runs.cpu()] if f]
    for target in ("sm_80", "sm_90a"):
        for stages in {1, 3, int(said.get("stages", 3))}:
            found += runs.passes(
                Variant(target, int(said.get("warps", 4)), stages, each=stages == 3)
            )
    assert not [f for f in found if f.kind != "refused"]
