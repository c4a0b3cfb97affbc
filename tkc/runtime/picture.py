"""A prediction as a picture, by matplotlib: two iterations of the busiest loop, a row for each
warpgroup's dots, vector work and waits, and for the copies.

The imports of matplotlib are inside `draw`, as it need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tkc.errors import Error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tkc.timing.predict import Prediction
    from tkc.timing.timeline import Segment

COLOURS = {
    "tensor": "#4878d0",
    "mufu": "#d65f5f",
    "fma": "#ee854a",
    "alu": "#d5bb67",
    "lsu": "#8c613c",
    "shared": "#797979",
    "copy": "#6acc64",
    "wait": "#e8e8e8",
}
ITERATIONS = 2


def draw(prediction: Prediction, title: str, path: str | Path) -> None:
    """Writes the picture to a file; its suffix says how (svg, png, pdf). Raises tkc.Error where
    matplotlib is missing, the suffix is none of its own, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Error(
            "a picture needs matplotlib, which is not installed; pip install matplotlib, or leave"
            " the picture out"
        ) from None
    line = prediction.timeline
    segments = line.window(ITERATIONS)
    lanes = [
        (agent, kind)
        for agent in line.agents
        for kind in ("dots", "work", "copies")
        if _segments(segments, agent, kind)
    ]
    figure = Figure(figsize=(12, 1.6 + 0.5 * max(1, len(lanes))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    period = line.steady[1] - line.steady[0]
    for row, (agent, kind) in enumerate(lanes):
        _draw_lane(axes, row, _segments(segments, agent, kind), ITERATIONS * period)
    axes.set_yticks(range(len(lanes)), [f"{agent}: {kind}" for agent, kind in lanes])
    axes.invert_yaxis()
    axes.set_xlabel("clocks")
    axes.axvline(period, color="black", linewidth=0.6, linestyle=":")
    used = [e for e in COLOURS if any(s.engine == e for s in segments)]
    axes.legend(
        [axes.barh([0], [0], color=COLOURS[e]) for e in used],
        used,
        ncols=len(used),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        frameon=False,
        fontsize=8,
    )
    launch = f", {prediction.seconds * 1e6:.0f} us in all" if prediction.seconds else ""
    figure.suptitle(f"{title}: an iteration of {period:.0f} clocks{launch}", fontsize=10)
    try:
        figure.savefig(path)
    except (ValueError, OSError) as e:
        raise Error(f"the picture {path} cannot be written: {str(e).splitlines()[0]}") from None


def _segments(segments: Iterable[Segment], agent: str, kind: str) -> list[Segment]:
    """Those of one agent that are dots, work or copies."""
    return [s for s in segments if s.agent == agent and _lane(s) == kind]


def _lane(segment: Segment) -> str:
    return {"tensor": "dots", "copy": "copies"}.get(segment.engine, "work")


def _draw_lane(axes: Axes, row: int, segments: Sequence[Segment], span: float) -> None:
    """One row of bars, with the names of those that are long enough."""
    axes.broken_barh(
        [(s.begin, s.end - s.begin) for s in segments],
        (row - 0.4, 0.8),
        facecolors=[COLOURS[s.engine] for s in segments],
        edgecolor="white",
        linewidth=0.5,
    )
    for s in segments:
        if s.engine != "copy" and len(s.what) * span / 160 < s.end - s.begin:
            axes.text((s.begin + s.end) / 2, row, s.what, ha="center", va="center", fontsize=7)
