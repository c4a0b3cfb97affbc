"""`python -m benchmarks.unseen check` runs kernels that nobody had in mind on small operands and
compares them with torch in float64, on the CPU (TKC_SIM=1 TKC_TARGET=sm_90a: in the simulator);
`compile` says what the compiler makes of them for sm_90a on large operands; `race` times them on a
GPU beside torch. All of it needs torch.

    --only TEXT,TEXT   cases whose name contains one of these
    --compiled         race torch.compile too
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import click

import tkc
from benchmarks import unseen
from benchmarks.unseen.operands import Called, Operands, error

FLUSHED = 256 << 20  # bytes that are written before each run, more than caches hold


@click.command(help=__doc__)
@click.argument("what", type=click.Choice(["check", "compile", "race"]))
@click.option("--only", default="", help="cases whose name contains one of these, between commas")
@click.option("--compiled", is_flag=True, help="race torch.compile too")
def main(what: str, only: str, compiled: bool) -> None:
    for name, make in unseen.cases(only).items():
        if what == "check":
            made = make(Operands())
            found = error(made)
            said = "right" if found <= made.tolerance else "WRONG"
            print(f"{name:42s} {said} {found:.2g}", flush=True)
        elif what == "compile":
            for line in chosen(make(Operands(large=True, real=False))):
                print(f"{name:42s} {line}", flush=True)
        else:
            print(f"{name:42s} {raced(make(Operands('cuda', large=True)), compiled)}", flush=True)


def chosen(made: Called) -> list[str]:
    """What the compiler makes of each launch for sm_90a: engines, registers, bytes spilled, widths
    of accesses to global memory, and why no dot is on wgmma.
    """
    launches: list[tuple[Any, ...]] = []
    with tkc.handed(lambda *launch: launches.append(launch)):
        made.launch()
    lines = []
    for kernel, _, args, options in launches:
        compiled = kernel.compile(*args, target="sm_90a", **options)
        ptx, resources = compiled.ptx or "", compiled.resources
        engines = [word for word in ("wgmma", "mma.sync", "cp.async.bulk.tensor") if word in ptx]
        wide = sorted(set(re.findall(r"(?:ld|st)\.global\S*(?= )", ptx)))
        why = [d for d in compiled.decisions if "one role with" in d or "consumers load" in d]
        lines.append(
            f"{kernel.__name__}: {resources.registers} registers, {resources.spill_stores} bytes"
            f" spilled; {' '.join([*engines, *wide])} {'; '.join(why)}"
        )
    return lines


def raced(made: Called, compiled: bool) -> str:
    """Microseconds of ours, of the bound and of torch."""
    import torch

    rival = made.rival or made.function
    rivals = {"eager": rival}
    if compiled:
        rivals["compiled"] = torch.compile(rival, dynamic=False)
    ours = timed(made.launch, made.reset)
    found = f"{ours:9.1f} us, {made.bound * 1e6 / ours:.2f} of the bound"
    for name, run in rivals.items():
        with torch.no_grad():
            took = timed(lambda run=run: run(*made.inputs), None)
        found += f", {name} {took:.1f} us ({took / ours:.2f})"
    return found


def timed(run: Callable[[], Any], reset: Callable[[], Any] | None, times: int = 15) -> float:
    """The median of some runs in microseconds, each behind a reset and a flush of the cache."""
    import torch

    filler = torch.empty(FLUSHED // 4, dtype=torch.int32, device="cuda")
    run()
    found: Sequence[float] = [_once(run, reset, filler) for _ in range(times)]
    return statistics.median(found)


def _once(run: Callable[[], Any], reset: Callable[[], Any] | None, filler: Any) -> float:
    import torch

    if reset:
        reset()
    filler.zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


if __name__ == "__main__":
    main()
