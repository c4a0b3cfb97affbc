"""What the compiler says of its own work: a page about a compiled kernel, and a reproducer where it
failed by its own fault.

`Compiled` here is tkc.compiler.Compiled.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tkc.errors import CompileError, Error

if TYPE_CHECKING:
    from tkc.compiler import Compiled
    from tkc.ir.interface import Interface
    from tkc.timing.predict import Prediction
    from tkc.timing.timeline import Segment


def bug(error: Exception, level_0: str, target: str) -> Error:
    """The exception to raise where a step of ours failed: one sentence, and a file that shows the
    failure again.
    """
    what = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    if not isinstance(error, Error):
        what = f"{type(error).__name__}: {what}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="tkc-bug-", suffix=".mlir", delete=False) as f:
            f.write(level_0)
    except OSError:
        return CompileError(f"the compiler failed, which is a bug of tkc: {what}")
    again = (
        f"tkc opt {Path(f.name)} --target {target}"
        if target != "cpu"
        else f"its level-0 IR is in {f.name}"
    )
    return (type(error) if isinstance(error, Error) else CompileError)(
        f"the compiler failed, which is a bug of tkc: {what}; please report it with the output of:"
        f" {again}"
    )


def page(c: Compiled, prediction: Prediction | None = None, width: int = 120) -> str:
    """As text; with the timeline of a tkc.timing.predict.Prediction where there is one."""
    from rich.console import Console
    from rich.table import Table

    text = io.StringIO()
    out = Console(file=text, width=width)
    out.print(
        f"[bold]{c.name}[/] for {c.target}"
        + (" (from the disk cache; times are of its compilation)" if c.cached else "")
    )
    times = Table("step", "ms", box=None, padding=(0, 2))
    for step, seconds in c.times:
        times.add_row(step, f"{seconds * 1e3:.1f}")
    times.add_row("together", f"{sum(s for _, s in c.times) * 1e3:.1f}")
    for column in times.columns[1:]:
        column.justify = "right"
    out.print(times)
    for decision in c.decisions:
        out.print(f"  {decision}", markup=False, highlight=False)
    if c.interface:
        out.print(_launch(c.interface))
    if c.ptx is not None:
        try:
            out.print(_resources(c))
        except CompileError as e:
            out.print(f"resources: {e}", markup=False)
    if prediction is not None:
        out.print(timeline(prediction), markup=False, highlight=False)
    return text.getvalue()


def _launch(i: Interface) -> str:
    cluster = "" if i.cluster == (1, 1) else f", clusters of {i.cluster[0]} x {i.cluster[1]}"
    return (
        f"a block has {i.threads} threads and {i.shared_bytes} bytes of shared"
        f" memory{cluster}{', persistent' if i.persistent else ''}; {len(i.parameters)} parameters"
    )


def _resources(c: Compiled) -> str:
    r = c.resources
    return "\n".join(
        [
            (
                f"{r.registers} registers a thread, spills {r.spill_stores} bytes out and"
                f" {r.spill_loads} in, stack {r.stack}, {r.barriers} named barriers"
            ),
            *r.notes,
        ]
    )


LETTERS = {
    "tensor": "T",
    "mufu": "M",
    "fma": "F",
    "alu": "A",
    "lsu": "L",
    "shared": "S",
    "copy": "C",
    "wait": ".",
}


def timeline(p: Prediction, columns: int = 84) -> str:
    """A prediction: the launch in a sentence, and one steady iteration with a line for each
    warpgroup's dots, work and copies.
    """
    line, said = p.timeline, []
    if p.seconds is not None:
        said.append(
            f"predicted: {p.seconds * 1e6:.1f} us for {p.programs} programs, {p.rounds:.1f} for"
            f" each place; {p.clocks:.0f} clocks of the busiest multiprocessor at {p.clock:.2f} GHz"
            f" (tensor cores {p.tensor:.0%} of the time), memory {p.memory * 1e6:.1f} us"
        )
    said.append(
        f"predicted: {p.fixed:.0f} clocks of a program and {p.step:.0f} of each iteration of its"
        " dots"
    )
    period = line.steady[1] - line.steady[0]
    if period <= 0:
        return "\n".join(said)
    shares = (f"{name} {share:.0%}" for name, share in line.shares().items() if share >= 0.01)
    said.append("busy in an iteration: " + ", ".join(shares))
    segments, widest = line.window(), max(map(len, line.agents))
    for agent in line.agents:
        for kind, engines in ENGINES.items():
            here = [s for s in segments if s.agent == agent and s.engine in engines]
            if here:
                cells = _cells(here, period, columns)
                said.append(f"  {agent:{widest}} {kind:6} |{cells}|")
    used = {s.engine for s in segments}
    letters = (f"{letter} {engine}" for engine, letter in LETTERS.items() if engine in used)
    said.append(f"  one iteration, {period:.0f} clocks; " + ", ".join(letters))
    return "\n".join(said)


ENGINES = {
    "dots": ("tensor",),
    "work": ("mufu", "fma", "alu", "lsu", "shared", "wait"),
    "copies": ("copy",),
}


def _cells(segments: Sequence[Segment], period: float, columns: int) -> str:
    """One line of the timeline: a letter for each engine, waits under the others."""
    cells = [" "] * columns
    for s in sorted(segments, key=lambda s: s.engine != "wait"):
        first = int(s.begin / period * columns)
        last = min(max(first + 1, round(s.end / period * columns)), columns)
        cells[first:last] = LETTERS[s.engine] * (last - first)
    return "".join(cells)
