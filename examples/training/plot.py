"""Draws the loss curves that gpt.py wrote: python plot.py losses.json losses.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402


def draw(losses: dict[str, list[float]], path: str) -> None:
    """Above the losses, below how far each curve is from torch's."""
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), height_ratios=(2, 1))
    for (name, curve), line in zip(losses.items(), ("-", "--", ":"), strict=False):
        above.plot(curve, line, label=name)
        if name != "torch":
            apart = [abs(x - y) for x, y in zip(curve, losses["torch"], strict=True)]
            below.plot(apart, line, label=f"{name} beside torch")
    above.set_ylabel("loss")
    below.set(xlabel="step", ylabel="difference", yscale="log")
    for part in (above, below):
        part.legend()
    figure.savefig(path)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
