"""The programs in the README are run, and what it shows of the compiler is what that prints."""

import re
from pathlib import Path

import numpy as np

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    source = tmp_path / "readme.py"
    source.write_text("\n".join(blocks))  # a kernel needs its source in a file
    space = {"__name__": "readme"}
    exec(compile(source.read_text(), str(source), "exec"), space)
    assert (
        np.allclose(space["c"], space["a"] @ space["b"], rtol=1e-4)
        and ".entry" in space["compiled"].ptx
    )
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.S)
    missing = set(shown.splitlines()) - set(space["compiled"].decisions)
    assert not missing, f"the README shows decisions that are no longer made: {missing}"


def test_its_figures_are_those_of_the_results():
    results = (
        Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "standing.md"
    ).read_text()
    rows = re.findall(
        r"^\| .* \| ([\d.]+) (?:TFLOP/s|GB/s) \| ([\d.]+) x \w",
        README.partition("## How fast")[2],
        re.M,
    )
    assert len(rows) >= 5
    for rate, ratio in rows:
        assert [
            line
            for line in results.splitlines()
            if re.search(rf"\b{rate}\b", line)
            and re.search(rf"(?<!\d){re.escape(ratio)}(?!\d)", line)
        ], f"standing.md does not have {rate} and {ratio} in one line"


def test_where_it_is_slower_is_that_of_the_results():
    """Each number with a point, as it stands there."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
    results = "\n".join(path.read_text() for path in folder.glob("*.md"))
    slower = README.partition("**Slower than the rivals**")[2].partition("\n## ")[0]
    numbers = re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", slower)
    assert len(numbers) >= 10
    missing = [n for n in numbers if not re.search(rf"(?<![\d.]){re.escape(n)}(?!\d)", results)]
    assert not missing, f"no file of {folder.name} has {missing}"
