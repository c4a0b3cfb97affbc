"""The golden programs are well formed, and their text says all there is to say: printed and read
again they are the same.
"""

from pathlib import Path

import pytest

from tkc.ir.text import parse, show
from tkc.ir.verify import verify

PROGRAMS = sorted(Path(__file__).parent.glob("*.mlir"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_round_trip(path):
    module = parse(path.read_text(), path.name)
    verify(module, path.stem)
    text = show(module)
    again = parse(text, path.name)
    verify(again, path.stem)
    assert show(again) == text
