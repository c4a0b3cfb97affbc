"""Which kernels spill: `python -m benchmarks.spills` assembles the kernels of the library, of the
examples and of the tests of the passes for every GPU, each with the blocks that the library chooses
for it, and lists those of which ptxas puts registers into local memory, with another number of
warps or stages that does not, where there is one.

    --only TEXT     kernels of the calls, examples and cases whose names contain it
    --jobs N        processes beside each other
    --out FILE      the list as a table of Markdown (benchmarks/results/spills.md)
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tkc.errors import Error

TARGETS = ("sm_80", "sm_89", "sm_90a")
WARPS = (2, 4, 8, 16)
STAGES = (1, 2, 3)

# what ptxas says of a kernel that is compiled for a target with these options
Assemble = Callable[[str, dict[str, int]], tuple[int, int]]


@dataclass(frozen=True)
class Spill:
    """A kernel that spills: bytes that are stored, of how many registers; instead: the options with
    which it does not, empty where none were found.
    """

    name: str
    target: str
    registers: int
    stored: int
    instead: str

    def row(self) -> str:
        """As a row of a table."""
        instead = self.instead or "none"
        return f"| {self.name} | {self.target} | {self.registers} | {self.stored} | {instead} |"


def _launched(call: Callable[[], object], target: str) -> Iterator[tuple[str, Assemble]]:
    """The kernels that a function launches on a GPU, of whichever arguments."""
    from tests.kernels.checks import launches

    with launches(target) as found:
        call()
    for i, (kernel, args, kwargs) in enumerate(found):
        yield str(i), _compiling(kernel, args, kwargs)


def _compiling(kernel, args: tuple, kwargs: dict) -> Assemble:  # noqa: ANN001
    def assemble(target: str, options: dict[str, int]) -> tuple[int, int]:
        resources = kernel.compile(*args, target=target, **kwargs | options).resources
        return resources.registers, resources.spill_stores

    return assemble


def _of_passes(case) -> Assemble:  # noqa: ANN001
    from tests.passes.kernels import context, through
    from tkc.codegen.ptx.emit import emit
    from tkc.codegen.ptx.ptxas import assemble as ptxas
    from tkc.ir.target import target as target_named
    from tkc.passes.pipeline import PIPELINE

    def assemble(target: str, options: dict[str, int]) -> tuple[int, int]:
        module = case.module()
        through(module, PIPELINE[-1], context(target, **case.options | options))
        resources = ptxas(emit(module, target_named(target)).text, target)
        return resources.registers, resources.spill_stores

    return assemble


def names(only: str) -> list[str]:
    """Of the calls, the examples and the cases of the passes: those that have a text in theirs."""
    from tests.gpu.sanitized import examples, library
    from tests.passes.kernels import CASES

    every = [f"kernels.{name}" for name in library()]
    every += [f"examples/{name}" for name in examples("cpu")]
    every += [f"tests/passes {name}" for name in CASES]
    return [name for name in every if only in name]


def kernels(name: str, target: str) -> Iterator[tuple[str, Assemble]]:
    """The kernels of a GPU, by name, of a call, an example or a case."""
    import numpy as np

    from benchmarks.harness import example
    from tests.gpu.sanitized import library, numbers
    from tests.passes.kernels import CASES

    np.random.seed(0)
    if call := library().get(name.removeprefix("kernels.")):
        for i, assemble in _launched(lambda: call(numbers), target):
            yield f"{name} {i}", assemble
    elif name.startswith("examples/"):
        for i, (kernel, args, _) in enumerate(example(name.removeprefix("examples/")).kernels()):
            yield f"{name} {i}", _compiling(kernel, (), args)
    else:
        yield name, _of_passes(CASES[name.removeprefix("tests/passes ")])


def _tried(assemble: Assemble, target: str, options: dict[str, int]) -> tuple[int, int] | None:
    """None where a kernel is refused."""
    try:
        return assemble(target, options)
    except Error:
        return None


def instead(assemble: Assemble, target: str) -> str:
    """Options with which a kernel does not spill; empty where there are none."""
    choices = [{"num_warps": w} for w in WARPS] + [{"num_stages": s} for s in STAGES]
    choices += [{"num_warps": w, "num_stages": 1} for w in WARPS]
    for options in choices:
        if (found := _tried(assemble, target, options)) is not None and not found[1]:
            return ", ".join(f"{name} = {n}" for name, n in options.items())
    return ""


def spills(name: str, target: str) -> tuple[int, list[Spill]]:
    """How many kernels of a call, an example or a case a GPU has, and which of them spill."""
    os.environ["TKC_CACHE_DIR"] = tempfile.mkdtemp()
    count, found = 0, list[Spill]()
    for kernel, assemble in kernels(name, target):
        if (made := _tried(assemble, target, {})) is None:
            continue
        count += 1
        registers, stored = made
        if stored:
            found.append(Spill(kernel, target, registers, stored, instead(assemble, target)))
    return count, found


def main() -> None:
    """Prints each kernel that spills, and how many there were."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spills", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    count, found = 0, list[Spill]()
    every = [*product(TARGETS, names(given.only))]
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(spills, name, target) for target, name in every]
        for future in as_completed(waiting):
            kernels_of_it, spilling = future.result()
            count += kernels_of_it
            found += spilling
            for spill in spilling:
                print(spill.row(), flush=True)
    found.sort(key=lambda spill: (TARGETS.index(spill.target), spill.name))
    print(f"{count} kernels assembled, {len(found)} spill")
    if given.out:
        given.out.write_text(
            "# Kernels that spill\n\n"
            f"{count} kernels of the library, the examples and the tests of the passes for"
            f" {', '.join(TARGETS)}; {len(found)} spill (`python -m benchmarks.spills`).\n\n"
            "| kernel | target | registers | bytes stored | without a spill |\n"
            "| --- | --- | --- | --- | --- |\n" + "".join(f"{s.row()}\n" for s in found)
        )


if __name__ == "__main__":
    main()
