"""`tkc demo`: runs the examples, checks them against float64, prints a table, and writes what the
compiler made of them.

What an example is.  Every examples/*.py (names starting with _ excepted) is a module with

    cases(device)   device "cuda" or "cpu".  Yields one dict a row of the table:
                        name        "softmax"
                        shape       (4096, 4096)
                        dtype       "float32"
                        run         a function of nothing that launches the kernel once (the demo
                                    times it and waits for the device)
                        error       a function of nothing, called after `run`: the largest error
                                    relative to float64, a float
                        tolerance   what `error()` may be at most
                        bytes, flops    optional: what one run moves or computes; the table then
                                        shows GB/s or TFLOP/s
    kernels()       Gives a list of (kernel, arguments, grid) to write out: `kernel` a @tkc.jit
                    function, `arguments` a dict by parameter name whose arrays are texts
                    ("f32[4096, 4096]"), numbers are texts ("i32", "f32") or values, constexprs are
                    values; `grid` an int, a tuple or a function of the arguments, as in
                    kernel[grid].

The demo imports the examples from a directory, so they may import one another by name. For each
kernel, out/<example>/ holds NN-<pass>.mlir (IR after every pass for sm_90a), <target>.ptx for each
of TARGETS, and the exported <kernel>.h and <kernel>.c.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tkc.errors import Error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TARGETS = ("sm_80", "sm_89", "sm_90a")
SHOWN = "sm_90a"  # the target whose IR is written out
TIMING_SECONDS = 0.3  # of a case
BATCH_SECONDS = 0.005  # of a batch on a GPU, at least


@dataclass(frozen=True)
class Row:
    """A line of the table. seconds: the median of a run; problem: why there is no result."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    seconds: float = 0.0
    error: float = 0.0
    tolerance: float = 0.0
    rate: str = ""
    problem: str = ""

    @property
    def right(self) -> bool:
        return not self.problem and self.error <= self.tolerance


def folder_of_examples() -> Path:
    """examples/ here, or beside the package. Raises tkc.Error."""
    for root in (Path.cwd(), Path(__file__).resolve().parent.parent.parent):
        if (root / "examples").is_dir():
            return root / "examples"
    raise Error(
        "there is no directory examples here; run tkc demo in a checkout of tkc, or pass --examples"
    )


def load(folder: Path) -> dict[str, ModuleType]:
    """The examples by name."""
    sys.path.insert(0, str(folder))
    return {
        p.stem: importlib.import_module(p.stem)
        for p in sorted(folder.glob("*.py"))
        if not p.stem.startswith("_")
    }


def measure(run: Callable[[], Any], device: str) -> float:
    """Seconds of one run: the median of a few batches. On a GPU a batch is long enough that waiting
    for it costs nothing.
    """
    from tkc.runtime import driver

    wait = driver.synchronize if device == "cuda" else lambda: None

    def batch(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            run()
        wait()
        return (time.perf_counter() - start) / n

    n = 1 if device == "cpu" else max(1, round(BATCH_SECONDS / batch(3)))
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or len(times) < 20 and time.perf_counter() - began < TIMING_SECONDS:
        times.append(batch(n))
    return statistics.median(times)


def rate_of(case: dict, seconds: float) -> str:
    """TFLOP/s, GFLOP/s or GB/s, whichever the case counts."""
    if "bytes" in case:
        return f"{case['bytes'] / seconds / 1e9:.1f} GB/s"
    if "flops" not in case:
        return ""
    rate = case["flops"] / seconds
    return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"


def play(case: dict, device: str) -> Row:
    """Runs one case, checks it, times it."""
    head = case["name"], tuple(case["shape"]), case["dtype"]
    try:
        case["run"]()
        error = case["error"]()
        seconds = measure(case["run"], device)
    except Error as e:
        return Row(*head, problem=str(e).splitlines()[0])
    return Row(*head, seconds, error, case["tolerance"], rate_of(case, seconds))


def write_out(name: str, example: ModuleType, out: Path) -> list[str]:
    """IR after every pass, PTX for each target, C. Gives what went wrong, a line each."""
    from tkc.ir.text import show
    from tkc.runtime.export import export

    problems, folder = [], out / name
    folder.mkdir(parents=True, exist_ok=True)
    kernels = example.kernels()
    for kernel, arguments, _ in kernels:
        place = folder if len(kernels) == 1 else folder / kernel.__name__
        place.mkdir(exist_ok=True)
        for target in TARGETS:
            try:
                compiled = kernel.compile(**arguments, target=target)
                (place / f"{target}.ptx").write_text(compiled.ptx)
                if target != SHOWN:
                    continue
                for old in place.glob("[0-9][0-9]-*.mlir"):
                    old.unlink()
                steps: list[str] = []

                def keep(step, module, place=place, steps=steps):
                    if step == "trace":
                        steps.clear()  # a plan that found no room is made again
                    (place / f"{len(steps):02}-{step}.mlir").write_text(
                        show(module, locations=True)
                    )
                    steps.append(step)

                compiled.again(keep)
                export(kernel, **arguments, target=target, path=place, overwrite=True)
            except Error as e:
                problems.append(f"{kernel.__name__} for {target}: {str(e).splitlines()[0]}")
    return problems


def _rows(name: str, example: ModuleType, device: str) -> list[Row]:
    """The results of an example's cases, up to an error in listing them."""
    rows: list[Row] = []
    try:
        for case in example.cases(device):
            rows.append(play(case, device))
    except Error as e:
        rows.append(Row(name, (), "", problem=str(e).splitlines()[0]))
    return rows


def _table(rows: Sequence[Row], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title)
    for heading in ("kernel", "shape", "type", "ms", "rate", "error to float64", ""):
        numeric = heading in ("shape", "ms", "rate", "error to float64")
        table.add_column(heading, justify="right" if numeric else "left")
    for r in rows:
        head = r.name, " x ".join(map(str, r.shape)), r.dtype
        if r.problem:
            table.add_row(*head, "", "", "", f"[red]{r.problem}[/]")
            continue
        verdict = "[green]right[/]" if r.right else f"[red]wrong: at most {r.tolerance:.1e}[/]"
        table.add_row(*head, f"{r.seconds * 1e3:.3f}", r.rate, f"{r.error:.1e}", verdict)
    return table


def _chosen(folder: Path, only: Sequence[str]) -> dict[str, ModuleType]:
    """The examples of a folder: those of these names, else all. Raises tkc.Error where there is
    none.
    """
    modules = {n: m for n, m in load(folder).items() if not only or n in only}
    if not modules:
        raise Error(f"there is no example {' or '.join(only) or 'at all'}")
    return modules


def demo(
    device: str | None = None,
    examples: Path | None = None,
    out: Path | None = Path("out"),
    only: tuple[str, ...] = (),
    console: Console | None = None,
) -> int:
    """Runs everything and prints the table; 0 if every row is right and everything was written,
    else 1.
    """
    from rich.console import Console

    from tkc.runtime import driver

    console = console or Console(width=None if sys.stdout.isatty() else 120)
    device = device or ("cuda" if driver.available() else "cpu")
    modules = _chosen(examples or folder_of_examples(), only)
    title = f"tkc on {driver.name(0) if device == 'cuda' else 'the CPU'}"
    rows: list[Row] = []
    problems: list[str] = []
    with console.status("") as status:
        for name, module in modules.items():
            status.update(f"running {name}")
            rows += _rows(name, module, device)
            if out is not None:
                status.update(f"writing {name}")
                problems += write_out(name, module, Path(out))
    console.print(_table(rows, title))
    for p in problems:
        console.print(f"not written: {p}", style="red", markup=False)
    if out is not None:
        console.print(f"IR, PTX and C of every kernel are in {out}/", markup=False)
    return 0 if rows and all(r.right for r in rows) and not problems else 1


if __name__ == "__main__":
    try:
        sys.exit(demo(only=tuple(sys.argv[1:])))
    except Error as e:
        sys.exit(f"error: {e}")
