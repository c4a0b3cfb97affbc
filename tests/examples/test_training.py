"""The training example: attention by tkc trains as torch's does. Skipped without torch."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def example(name):
    path = ROOT / "examples" / "training" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"training_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses_are_those_of_torch():
    pytest.importorskip("torch")
    gpt = example("gpt")
    want, *found = (gpt.train(name, 3, "cpu") for name in gpt.ATTENTIONS)
    *_, last = gpt.train("torch", 30, "cpu")
    assert last < want[0]  # each step has another batch: the first three may differ more
    for losses in found:
        assert losses == pytest.approx(want, abs=1e-5)


def test_the_plot(tmp_path):
    pytest.importorskip("matplotlib")
    losses = json.loads('{"torch": [4.0, 3.5], "tkc": [4.0, 3.51]}')
    example("plot").draw(losses, str(tmp_path / "losses.svg"))
    assert (tmp_path / "losses.svg").stat().st_size > 1000
