"""Which kernels spill: `python -m benchmarks.spills` assembles the kernels of the library, of the
examples and of the tests of the passes for every GPU, each with the blocks that the library chooses
for it, and lists those of which ptxas puts registers into local memory, with another number of
warps or stages that does not, where there is one.

    --only TEXT     kernels of the calls, examples and cases whose names contain it
    --seconds N     begin no kernel after so long
    --out FILE      the list as a table of Markdown (benchmarks/results/spills.md)
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


def kernels(target: str, only: str) -> Iterator[tuple[str, Assemble]]:
    """The kernels of a GPU by name, of what has a text in its name."""
    import numpy as np

    from benchmarks.harness import example
    from tests.gpu.sanitized import examples, library, numbers
    from tests.passes import kernels as pass_kernels

    np.random.seed(0)
    for name, call in library().items():
        if only in f"kernels.{name}":
            for i, assemble in _launched(lambda c=call: c(numbers), target):
                yield f"kernels.{name} {i}", assemble
    for name in examples("cpu"):
        if only in f"examples/{name}":
            for i, (kernel, arguments, _) in enumerate(example(name).kernels()):
                yield f"examples/{name} {i}", _compiling(kernel, (), arguments)
    for name, case in pass_kernels.CASES.items():
        if only in f"tests/passes {name}":
            yield f"tests/passes {name}", _of_passes(case)


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


def main() -> None:
    """Prints each kernel that spills, and how many there were."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spills", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ["TKC_CACHE_DIR"] = tempfile.mkdtemp()
    began, count, found = time.monotonic(), 0, list[Spill]()
    for target in TARGETS:
        for name, assemble in kernels(target, given.only):
            if time.monotonic() - began > given.seconds:
                break
            if (made := _tried(assemble, target, {})) is None:
                continue
            count += 1
            registers, stored = made
            if stored:
                spill = Spill(name, target, registers, stored, instead(assemble, target))
                found.append(spill)
                print(spill.row(), flush=True)
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
