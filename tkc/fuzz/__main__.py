"""python -m tkc.fuzz --seeds A:B: random kernels; each failure is printed with its kernel."""
from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import click

from tkc.fuzz.check import check
from tkc.fuzz.grammar import POLICIES
from tkc.fuzz.productions import kernel


@click.command()
@click.option("--seeds", default="0:100", show_default=True, metavar="A:B", help="From A up to, not including, B; or one seed.")
@click.option("--policy", type=click.Choice(list(POLICIES)), help="Instead of the seed's own.")
@click.option("--steps", type=int, help="Statements of a kernel; the seed's own by default.")
@click.option("--target", "targets", multiple=True, help="sm_80, sm_89, sm_90a; by default one of them, chosen by the seed.")
@click.option("--thorough", is_flag=True, help="Every number of stages, several schedules.")
@click.option("--show", is_flag=True, help="Print the kernels and run nothing.")
@click.option("--refused", is_flag=True, help="Also show what was refused.")
@click.option("--keep", type=click.Path(path_type=Path), help="Write failing kernels and their IR here.")
@click.option("--reduce", "reducing", is_flag=True, help="Reduce what fails and print it (or write it with --keep).")
@click.option("--mutants", type=int, metavar="N", help="Instead of kernels: N broken texts of IR, from the first seed on.")
@click.option("--passes", is_flag=True, help="With --mutants: what verifies also goes through the passes.")
@click.option("--seconds", type=float, help="Stop after so long.")
def main(seeds, policy, steps, targets, thorough, show, refused, keep, reducing, mutants, passes, seconds) -> None:
    """Random kernels of the language, at every level, on the CPU and with other plans, against level 0."""
    first, _, last = seeds.partition(":")
    if mutants:
        from tkc.fuzz.mutation import run
        sys.exit(run(mutants, int(first), passes) > 0)
    began, kinds, ran = time.monotonic(), Counter(), 0
    for seed in range(int(first), int(last or int(first) + 1)):
        k = kernel(seed, policy, steps)
        if show: print(k.source); continue
        if seconds and time.monotonic() - began > seconds: break
        ran += 1
        for failure in check(k, targets or None, thorough):
            kinds[failure.kind] += 1
            if failure.kind == "refused" and not refused: continue
            print(f"seed {seed} ({k.policy}, grid {k.grid}): {failure}", flush=True)
            if keep: _keep(keep, k, failure)
            if reducing and failure.stage not in ("trace", "level 0"): _reduce(keep, k, failure)
    if show: return
    bad = sum(n for kind, n in kinds.items() if kind != "refused")
    print(f"{ran} kernels in {time.monotonic() - began:.0f} s: {bad} failures, {kinds['refused']} refused{', ' + repr(dict(kinds)) if bad else ''}")
    sys.exit(bad > 0)


def _reduce(folder: Path | None, k, failure) -> None:
    from tkc.fuzz.check import reduced
    from tkc.ir.text import show
    try: text = show(reduced(k, failure))
    except Exception as e: print(f"not reduced: {type(e).__name__}: {e}"); return
    if folder: (folder / f"{k.seed}.reduced.mlir").write_text(f"// {failure}".splitlines()[0] + f"\n// grid {k.grid}, {k.numbers}\n{text}")
    else: print(text, flush=True)


def _keep(folder: Path, k, failure) -> None:
    from tkc.fuzz.check import arguments, traced
    from tkc.ir.text import show
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{k.seed}.py").write_text(f"# {failure}\n# grid {k.grid}, warps {k.warps}, stages {k.stages}, {k.numbers}\n{k.source}")
    try: (folder / f"{k.seed}.mlir").write_text(show(traced(k, arguments(k))))
    except Exception: pass


if __name__ == "__main__": main()
