"""A page about a compiled kernel: what the compiler decided, how long each step took, what ptxas says."""
from __future__ import annotations

import io

from tkc.compiler import Compiled
from tkc.errors import CompileError


def page(c: Compiled, width: int = 120) -> str:
    """As text."""
    from rich.console import Console
    from rich.table import Table
    out = Console(file=io.StringIO(), width=width)
    out.print(f"[bold]{c.name}[/] for {c.target}" + (" (from the disk cache; times are of its compilation)" if c.cached else ""))
    times = Table("step", "ms", box=None, padding=(0, 2))
    for step, seconds in c.times: times.add_row(step, f"{seconds * 1e3:.1f}")
    times.add_row("together", f"{sum(s for _, s in c.times) * 1e3:.1f}")
    for column in times.columns[1:]: column.justify = "right"
    out.print(times)
    for decision in c.decisions: out.print(f"  {decision}", markup=False, highlight=False)
    if c.interface: out.print(_launch(c))
    if c.ptx is not None:
        try: out.print(_resources(c))
        except CompileError as e: out.print(f"resources: {e}", markup=False)
    return out.file.getvalue()


def _launch(c: Compiled) -> str:
    i = c.interface
    cluster = "" if i.cluster == (1, 1) else f", clusters of {i.cluster[0]} x {i.cluster[1]}"
    return f"a block has {i.threads} threads and {i.shared_bytes} bytes of shared memory{cluster}{', persistent' if i.persistent else ''}; {len(i.parameters)} parameters"


def _resources(c: Compiled) -> str:
    r = c.resources
    return "\n".join([f"{r.registers} registers a thread, spills {r.spill_stores} bytes out and {r.spill_loads} in, stack {r.stack}, {r.barriers} named barriers", *r.notes])
