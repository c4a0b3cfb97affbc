"""Translation validation: a module before and after a pass, on the same inputs, in two arithmetics.

    ring    floats as integers modulo 2ʷ (ring.py): equal to the last bit, in whatever order a pass
            sums
    ieee    floats as they are: equal within twice the rounding error that bounds.py derives at
            level 0; later than that, where no sum is taken apart any more, equal. Of arguments
            that are accessed by pointers, and so have no extents, no byte is read or written that
            was not before

A `Validator` is called with every pass's name and module, as an observer of the pipeline. Which
programs run: corners of the grid and some at random (the first few where programs wait for one
another); all programs of a small grid where the pass changes which block is which program (a
raster, clusters, a persistent loop). The first pass that changes what an array holds is named, with
a directory that reproduces it: before.mlir, after.mlir, inputs.npz and README.txt, which has the
command. Where the time is over, passes are compared together with the next ones, up to the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, StringAttr

from tkc.errors import Error
from tkc.ir import tile
from tkc.ir.plan import Plan
from tkc.ir.text import show
from tkc.ir.types import ArrayType, PointerType
from tkc.ir.values import holds
from tkc.sim import bounds, dataflow, level0, level4, ring
from tkc.sim.check import sample
from tkc.sim.errors import SimulationError
from tkc.sim.global_memory import GlobalMemory, Touched
from tkc.sim.inputs import clones, packed
from tkc.sim.report import report_of

# the grids where all programs run: the first for which there is time, else the last
SMALL_GRIDS = ((3, 2, 1), (2, 2, 1), (2, 1, 1), (1, 1, 1))
# the part of the time after which passes are compared together: the last one costs the most
SEPARATE_PART = 0.7
# of a program, in all: passes that change something, two arithmetics, level 4 thrice as slow
RUNS_OF_A_PROGRAM = 40
# as much, of programs that run before and after each pass
RUNS_OF_A_SAMPLE = 60
MAX_SAMPLE = 5  # programs


class ValidationError(Error):
    """A pass changed what a kernel computes; `folder` reproduces it."""

    def __init__(self, message: str, name: str, arithmetic: str, folder: Path | None):
        super().__init__(message)
        self.name, self.arithmetic, self.folder = name, arithmetic, folder


@dataclass(frozen=True)
class Run:
    """What a run is of: which programs of which grid (None: all), in which arithmetic."""

    grid: tuple[int, ...]
    programs: tuple[tuple[int, ...], ...] | None
    arithmetic: str

    @property
    def numbers(self) -> list[int] | None:
        """The programs by their numbers in the grid, axis 0 fastest."""
        if self.programs is None:
            return None
        x, y, _ = (*self.grid, 1, 1)[:3]
        found = []
        for program in self.programs:
            px, py, pz = (*program, 0, 0)[:3]
            found.append(px + x * (py + y * pz))
        return found

    def __str__(self) -> str:
        which = (
            "all programs"
            if self.programs is None
            else "programs " + " ".join("(" + ", ".join(map(str, p)) + ")" for p in self.programs)
        )
        return f"{which} of grid {' x '.join(map(str, self.grid))}"


@dataclass(frozen=True)
class Outcome:
    """The arguments after a run, and which of their bytes it touched."""

    arguments: list[Any]
    touched: Touched


def _moved(kernel: tile.Kernel) -> bool:
    """Whether it is not, or will not be, block n that runs program n."""
    text = kernel.attributes.get("plan")
    plan = Plan.from_text(text.data) if isinstance(text, StringAttr) else Plan()
    return (
        plan.raster > 1
        or plan.persistent
        or plan.cluster != (1, 1)
        or plan.split_k > 1
        or plan.stream_k > 0
        or "persistent" in kernel.attributes
        or "cluster" in kernel.attributes
    )


@dataclass
class Validator:
    """Compares each module that it is called with to the one before. real, unordered: passes that
    use facts of real numbers; that leave level 4 without its barriers. last: the pass that is
    looked at even when more than `seconds` are over (empty: each). together: passes that are
    compared with the next one that is not among them."""

    arguments: Sequence[Any]
    grid: tuple[int, ...]
    real: Callable[[str, ModuleOp], bool] = lambda name, before: False
    unordered: Callable[[str], bool] = lambda name: False
    last: str = ""
    together: frozenset[str] = frozenset()
    seconds: float = 10.0
    seed: int = 0
    folder: Path | None = Path("tkc-validate")  # None: no reproducer
    command: str = (
        "tkc opt {folder}/before.mlir --pass {name} --validate --inputs {folder}/inputs.npz"
    )
    passes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    spent: float = 0.0
    skipped: list[str] = field(default_factory=list)
    before: ModuleOp | None = None
    before_unordered: bool = False

    def __call__(self, name: str, module: ModuleOp) -> None:
        """Raises ValidationError; SimulationError where the first module itself does what has no
        meaning.
        """
        began = time.perf_counter()
        self.passes.append(name)
        if self.before is None:
            self._first(name, module)
        elif name != self.last and (name in self.together or self._is_late()):
            self.skipped.append(name)
            return
        changed = self.before is None or not module.is_structurally_equivalent(self.before)
        if changed and self.before is not None:
            self._compare(name, self.before, module)
        if changed:
            self.before = module.clone()
        self.before_unordered = self.unordered(name)
        if self.skipped:
            why = "" if self.together.issuperset(self.skipped) else ", for want of time"
            self.notes.append(f"{', '.join(self.skipped)} and {name} were compared together{why}")
            self.skipped = []
        self.spent += time.perf_counter() - began

    def _is_late(self) -> bool:
        """Whether passes before the last one are compared together from here on."""
        return bool(self.last) and self.spent > self.seconds * SEPARATE_PART

    # ---- what runs
    def _first(self, name: str, module: ModuleOp) -> None:
        """Chooses programs: as many as the time allows for each pass and arithmetic."""
        unordered = self.unordered(name)
        self.pointed = _pointed(level0.kernel_of(module))
        self.outputs: dict[Run, Outcome] = {}
        total, kernel = prod(self.grid), level0.kernel_of(module)
        began = time.perf_counter()
        if total:
            self.run(
                module,
                Run(self.grid, tuple(self._numbered(sample(kernel, total, self.seed, 1))), "ieee"),
                unordered,
            )
        each = max(1e-4, time.perf_counter() - began)
        most = max(1, min(MAX_SAMPLE, int(self.seconds / each / RUNS_OF_A_SAMPLE)))
        self.programs = tuple(self._numbered(sample(kernel, total, self.seed, most)))
        small = next(
            (g for g in SMALL_GRIDS if prod(g) * each * RUNS_OF_A_PROGRAM <= self.seconds),
            SMALL_GRIDS[-1],
        )
        self.small = tuple(min(a, b) for a, b in zip(self.grid, small, strict=False))
        self.arithmetics = ["ieee", "ring"]
        self.bounded = kernel.level == 0
        if holds(module, scf.WhileOp):
            self._without_ring("a while loop may not end there")
        else:
            try:
                self.run(module, Run(self.grid, self.programs, "ring"), unordered)
            except SimulationError as e:
                self._without_ring(str(e))
        self.level0 = module.clone()
        self.errors: dict[Run, list[np.ndarray | None]] = {}

    def _without_ring(self, why: str) -> None:
        self.arithmetics = ["ieee"]
        self.notes.append(f"not run in ring arithmetic: {why}")

    def _numbered(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        x, y, _ = (*self.grid, 1, 1)[:3]
        return [(n % x, n // x % y, n // x // y)[: max(1, len(self.grid))] for n in sorted(numbers)]

    def _runs(self, before: ModuleOp, module: ModuleOp, name: str) -> list[Run]:
        """Of a module after a pass, and behind those that were skipped."""
        kernel = level0.kernel_of(module)
        grid, programs = (self.small, None) if _moved(kernel) else (self.grid, self.programs)
        return [
            Run(grid, programs, a)
            for a in self.arithmetics
            if a == "ieee" or not any(self.real(n, before) for n in (*self.skipped, name))
        ]

    def inputs(self, kernel: tile.Kernel, arithmetic: str) -> list[Any]:
        """Copies of the arguments, for a run in an arithmetic."""
        given = clones(self.arguments)
        return ring.arguments(kernel, given, self.seed) if arithmetic == "ring" else given

    def run(self, module: ModuleOp, what: Run, unordered: bool) -> Outcome:
        """Raises SimulationError."""
        kernel, exact = level0.kernel_of(module), what.arithmetic == "ring"
        touched = Touched()
        given = self.inputs(kernel, what.arithmetic)

        def quiet(text: str) -> None:
            """Nothing is printed."""

        if exact:
            module = ring.retyped(module)
        if kernel.level < 4:
            level0.run(
                module,
                given,
                what.grid,
                what.programs,
                interpreter=ring.RingInterpreter if exact else dataflow.DataflowInterpreter,
                out=quiet,
                memory=GlobalMemory(touched=touched),
            )
        else:
            if not prod(what.grid):
                return Outcome(given, touched)
            # ring: after ieee, in the same order
            level4.run(
                module,
                given,
                what.grid,
                self.seed,
                2,
                only=what.numbers,
                hazards=not (unordered or exact),
                ring=exact,
                out=quiet,
                touched=touched,
            )
        return Outcome(given, touched)

    # ---- comparing
    def _compare(self, name: str, before: ModuleOp, module: ModuleOp) -> None:
        for what in self._runs(before, module, name):
            if what not in self.outputs:
                self.outputs[what] = self.run(before, what, self.before_unordered)
            try:
                after = self.run(module, what, self.unordered(name))
            except SimulationError as e:
                self._fail(name, before, module, what, f"after it: {report_of(e)}")
            how = self._difference(what, level0.kernel_of(module), after)
            if how is not None:
                self._fail(name, before, module, what, how)
            self.outputs[what] = after
            if str(what) not in self.ran:
                self.ran.append(str(what))
        done = {what.arithmetic for what in self._runs(before, module, name)}
        for stale in [w for w in self.outputs if w.arithmetic not in done]:
            del self.outputs[stale]  # a pass that ring arithmetic skips: begin anew behind it

    def _difference(self, what: Run, kernel: tile.Kernel, after: Outcome) -> str | None:
        """A sentence about the first argument that is not what it was before, or of which something
        is read or written that was not.
        """
        before = self.outputs[what]
        for number, (x, y) in enumerate(zip(before.arguments, after.arguments, strict=True)):
            at = self._differs(what, number, x, y) if isinstance(x, np.ndarray) else None
            if at is not None:
                place = f"{_name(kernel, number)}[{', '.join(map(str, at))}]"
                return f"{place} is {x[at]} before and {y[at]} after"
        if what.arithmetic != "ieee" or what.grid != self.grid:
            return None  # of a part of the grid blocks may be programs that the grid has not
        more = after.touched.beyond(before.touched, self.pointed)
        if more is None:
            return None
        buffer, at_byte, written = more
        how = "written" if written else "read"
        return f"byte {at_byte} of {self.pointed[buffer]} is {how}, and was not before"

    def _differs(
        self, what: Run, number: int, x: np.ndarray, y: np.ndarray
    ) -> tuple[int, ...] | None:
        """The first place where two results differ by more than they may."""
        if x.tobytes() == y.tobytes():
            return None
        a, b = bounds.wide(x), bounds.wide(y)
        with np.errstate(all="ignore"):
            wrong = x != y if x.dtype.kind in "iub" else ~((a == b) | np.isnan(a) & np.isnan(b))
        if wrong.any() and self.bounded and what.arithmetic == "ieee":
            bound = self._allowed(what)[number]
            assert bound is not None, "an array has a bound"
            allowed = 2 * bound
            with np.errstate(all="ignore"):
                wrong &= ~((np.abs(a - b) <= allowed) | ~np.isfinite(allowed))
        return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None

    def _allowed(self, what: Run) -> list[np.ndarray | None]:
        """The rounding errors of a run, by argument."""
        if what not in self.errors:
            given = self.inputs(level0.kernel_of(self.level0), "ieee")
            programs = level0.programs_of(what.grid) if what.programs is None else what.programs
            self.errors[what] = bounds.run(self.level0, given, what.grid, programs)
        return self.errors[what]

    def _fail(self, name: str, before: ModuleOp, module: ModuleOp, what: Run, how: str) -> NoReturn:
        kernel = level0.kernel_of(module).sym_name.data
        which = (
            f"pass {name}"
            if not self.skipped
            else f"one of the passes {', '.join(self.skipped)} and {name}"
        )
        fault = (
            f"{which} changes what {kernel} computes"
            if self.folder
            else f"the two programs of {kernel} differ"
        )
        message = f"{fault}, in {what.arithmetic} arithmetic: {how} ({what})"
        if self.folder is None:
            raise ValidationError(message, name, what.arithmetic, None)
        folder = self.folder / f"{kernel}-{name}"
        try:
            reproduce(folder, self, name, (before, module), what, message)
        except OSError as e:
            raise ValidationError(
                f"{message}; the reproducer could not be written: {e.strerror}",
                name,
                what.arithmetic,
                None,
            ) from None
        raise ValidationError(f"{message}; reproducer in {folder}", name, what.arithmetic, folder)

    def __str__(self) -> str:
        which = "; ".join(self.ran) or str(Run(self.grid, self.programs, "ieee"))
        return "; ".join(
            [
                (
                    f"{max(0, len(self.passes) - 1)} passes change nothing in"
                    f" {' and '.join(self.arithmetics)} arithmetic ({which}; {self.spent:.1f} s)"
                ),
                *self.notes,
            ]
        )


def _name(kernel: tile.Kernel, number: int) -> str:
    """An argument's name."""
    return kernel.arguments[number].name_hint or f"argument {number}"


def _pointed(kernel: tile.Kernel) -> dict[int, str]:
    """The names of arguments that are accessed by pointers, by the numbers of their buffers."""
    arrays = [a for a in kernel.arguments if isinstance(a.type, ArrayType | PointerType)]
    return {
        buffer: _name(kernel, argument.index)
        for buffer, argument in enumerate(arrays, 1)
        if isinstance(argument.type, PointerType)
        or any(isinstance(use.operation, tile.Pointer) for use in argument.uses)
    }


def difference(before: ModuleOp, after: ModuleOp, validator: Validator) -> str:
    """Compares two modules on a validator's inputs; gives its report. Raises ValidationError."""
    validator.folder = None
    validator("before", before)
    validator("after", after)
    return f"the same {str(validator).partition(' passes change nothing ')[2]}"


def reproduce(
    folder: Path,
    v: Validator,
    name: str,
    modules: tuple[ModuleOp, ModuleOp],
    what: Run,
    message: str,
) -> None:
    """Writes the directory that shows a difference of two modules again."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, module in zip(("before.mlir", "after.mlir"), modules, strict=True):
        (folder / file).write_text(show(module, locations=True))
    entries: dict[str, Any] = {
        **packed(v.arguments),
        "grid": np.array(what.grid, np.int64),
        "seed": np.int64(v.seed),
    }
    np.savez(folder / "inputs.npz", **entries)
    command = v.command.format(folder=folder, name=" --pass ".join([*v.skipped, name]))
    (folder / "README.txt").write_text(
        f"{message}\n\n    {command}\n\nThe same of the two files, whatever the pass does now:\n\n "
        f"   tkc opt {folder}/before.mlir --against {folder}/after.mlir --inputs"
        f" {folder}/inputs.npz\n"
    )
