"""A prediction as a picture, by matplotlib: two iterations of the busiest loop, a row for each
warpgroup's dots, vector work and waits, and for the copies.

`prediction` is tkc.timing.predict.Prediction, which stands in another room.
"""

from __future__ import annotations

from pathlib import Path

from tkc.errors import Error

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


def draw(prediction, title: str, path: str | Path) -> None:
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
        if any(s.agent == agent and _lane(s) == kind for s in segments)
    ]
    figure = Figure(figsize=(12, 1.6 + 0.5 * max(1, len(lanes))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, (agent, kind) in enumerate(lanes):
        here = [s for s in segments if s.agent == agent and _lane(s) == kind]
        axes.broken_barh(
            [(s.begin, s.end - s.begin) for s in here],
            (i - 0.4, 0.8),
            facecolors=[COLOURS[s.engine] for s in here],
            edgecolor="white",
            linewidth=0.5,
        )
        span = ITERATIONS * (line.steady[1] - line.steady[0])
        for s in here:
            if s.engine != "copy" and len(s.what) * span / 160 < s.end - s.begin:
                axes.text((s.begin + s.end) / 2, i, s.what, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(lanes)), [f"{agent}: {kind}" for agent, kind in lanes])
    axes.invert_yaxis()
    axes.set_xlabel("clocks")
    axes.axvline(line.steady[1] - line.steady[0], color="black", linewidth=0.6, linestyle=":")
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
    figure.suptitle(
        f"{title}: an iteration of {line.steady[1] - line.steady[0]:.0f} clocks"
        + (f", {prediction.seconds * 1e6:.0f} us in all" if prediction.seconds else ""),
        fontsize=10,
    )
    try:
        figure.savefig(path)
    except (ValueError, OSError) as e:
        raise Error(f"the picture {path} cannot be written: {str(e).splitlines()[0]}") from None


def _lane(segment) -> str:
    return {"tensor": "dots", "copy": "copies"}.get(segment.engine, "work")
