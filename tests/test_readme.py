"""The program in the README is run."""
import re
from pathlib import Path

import numpy as np

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    source = tmp_path / "readme.py"
    source.write_text("\n".join(blocks))                                        # a kernel needs its source in a file
    space = {"__name__": "readme"}
    exec(compile(source.read_text(), str(source), "exec"), space)
    assert np.allclose(space["out"], space["x"] + space["y"]) and ".entry" in space["c"].ptx
