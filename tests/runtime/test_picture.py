"""The timeline as text and as a picture."""

import sys

import pytest

from tkc.errors import Error
from tkc.runtime.picture import draw
from tkc.runtime.report import timeline
from tkc.timing.predict import Prediction
from tkc.timing.timeline import Segment, Timeline

LINE = Timeline(
    ["producer", "consumer 0"],
    [
        Segment("consumer 0", "tensor", "dot 64x64x64", 0, 50, (("tensor", 50.0),)),
        Segment("consumer 0", "mufu", "exp2", 50, 100, (("mufu", 40.0),)),
        Segment("producer", "copy", "copy", 90, 110, (("copy", 20.0),)),
        Segment("consumer 0", "tensor", "dot 64x64x64", 100, 150, (("tensor", 50.0),)),
    ],
    steady=(0.0, 100.0),
)
FOUND = Prediction(2e-4, 1e5, 1.5, 100.0, 50.0, 264, 2.0, 1e-5, 0.5, LINE)


def test_text():
    text = timeline(FOUND, columns=20)
    assert (
        "consumer 0 dots   |TTTTTTTTTT          |" in text
        and "consumer 0 work   |          MMMMMMMMMM|" in text
        and "producer   copies |                  CC|" in text
    )
    assert "200.0 us" in text and "tensor 50%, mufu 40%, copy 10%" in text


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_picture(tmp_path, suffix):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    draw(FOUND, "little", tmp_path / f"a.{suffix}")
    assert (tmp_path / f"a.{suffix}").stat().st_size > 1000
    with pytest.raises(Error, match="cannot be written"):
        draw(FOUND, "little", tmp_path / "a.nothing")
    with pytest.raises(Error, match="cannot be written"):
        draw(FOUND, "little", tmp_path / "none" / "a.svg")


def test_without_matplotlib(monkeypatch, tmp_path):
    for name in ("matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Error, match="pip install matplotlib"):
        draw(FOUND, "little", tmp_path / "a.svg")
