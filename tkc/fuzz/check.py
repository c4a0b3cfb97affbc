"""One kernel, run on every level and back end; level 0 says what is right. `check(kernel)` gives
what differs.
"""

from __future__ import annotations

import json
import platform
import random
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import Attribute

from tkc.codegen.ptx.emit import PtxProgram
from tkc.errors import CompileError, Error
from tkc.fuzz.grammar import Kernel
from tkc.fuzz.lost_operands import lost_operands
from tkc.fuzz.merged_reads import merged_reads
from tkc.ir.elementwise import InlinePtx
from tkc.ir.target import TARGETS
from tkc.ir.types import ArrayType, PointerType, is_float
from tkc.ir.verify import verify
from tkc.language.signature import Options
from tkc.passes import PassContext
from tkc.passes.pipeline import PIPELINE, module_of
from tkc.sim import dataflow, level0, level4

THREADED = "insert-synchronization"  # from this pass on level 4 runs
Arguments = dict[str, Any]
# pairs of numbers of array arguments that share memory
Overlaps = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Failure:
    """stage: what disagreed ("trace", "cpu", "sm_80: swizzle-shared", …); kind: "wrong", "refused",
    or the name of an error.
    """

    stage: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.kind}: {self.message}"

    def under(self, forced: tuple[tuple[str, Any], ...]) -> Failure:
        """The failure where these options are asked for: they may be refused for any reason."""
        if forced and self.kind == "refused for no reason":
            return replace(self, kind="refused")
        return self


def arguments(kernel: Kernel) -> Arguments:
    """The arguments as a launch hands them on: strides of axes of one element are those of a dense
    array.
    """
    from tkc.runtime.arrays import contiguous

    def dense(a: np.ndarray) -> np.ndarray:
        if not a.flags.c_contiguous:
            return a
        bits = a.view(f"u{a.itemsize}")
        return np.lib.stride_tricks.as_strided(
            bits, a.shape, [s * a.itemsize for s in contiguous(a.shape)]
        ).view(a.dtype)

    return {n: dense(v) if isinstance(v, np.ndarray) else v for n, v in kernel.arguments().items()}


def traced(kernel: Kernel, arguments: Arguments) -> ModuleOp:
    """The kernel at level 0, specialized for these arguments as a launch would; by some seeds as
    for arrays beyond 2 GiB, whose extents have 64 bits.
    """
    from tkc.language.trace import trace
    from tkc.runtime.specialize import (
        Constant,
        ScalarInfo,
        Specialization,
        argument,
        facts,
        signature,
    )

    names = kernel.names()
    infos = {
        n: argument(v, n, False) if isinstance(v, np.ndarray) else ScalarInfo(v, "int32")
        for n, v in arguments.items()
    } | {n: Constant(eval(text, names)) for n, text in kernel.constants.items()}

    def known(info: Any) -> tuple:
        found = facts(info)
        is_large = kernel.seed % LARGE_EVERY == LARGE_EVERY - 1 and found[0] == "array"
        return (*found[:5], True, *found[6:]) if is_large else found

    return trace(
        names["kernel"],
        signature(Specialization(tuple((n, known(i)) for n, i in infos.items()))),
    )


def example_arguments(module: ModuleOp, seed: int = 0) -> Arguments:
    """Arguments for a module whose own are not known: arrays of some 40 (as their facts want) along
    each axis, whole numbers in them; numbers of 3.
    """
    values, kernel = np.random.default_rng(seed), level0.kernel_of(module)
    names = argument_names(module) or [f"x{i}" for i in range(len(kernel.arguments))]
    return {n: _example(a.type, values) for n, a in zip(names, kernel.arguments, strict=True)}


def _example(t: Attribute, values: np.random.Generator) -> np.ndarray | float:
    if isinstance(t, PointerType):
        return values.integers(0, 4, 4096).astype(level0.dtype_of(t.element))
    if not isinstance(t, ArrayType):
        return 3.0 if is_float(t) else 3
    shape = [
        f.exact if f.exact is not None else -(-40 // f.divisor) * f.divisor for f in t.facts.shape
    ]
    order = sorted(range(t.rank), key=lambda a: (t.facts.strides[a].exact == 1, a))
    low = -4 if is_float(t.element) else 0
    of_pointers = isinstance(t.element, PointerType)
    dtype = np.dtype(np.int64) if of_pointers else level0.dtype_of(t.element)
    dense = values.integers(low, 5, [shape[a] for a in order]).astype(dtype)
    return dense.transpose([order.index(a) for a in range(t.rank)])


def argument_names(module: ModuleOp) -> list[str] | None:
    """What a kernel's arguments are called, None where the module does not say."""
    names = level0.kernel_of(module).attributes.get("argument_names")
    return [n.data for n in names] if isinstance(names, ArrayAttr) else None


def wrong(want: Arguments, got: Arguments, near: float = 0) -> str | None:
    """The first array that differs (by more than `near` of the largest), and where."""
    for name, w in want.items():
        if not isinstance(w, np.ndarray):
            continue
        g, w = _comparable(got[name]), _comparable(w)
        differs = (g != w) & ~((g != g) & (w != w))
        if near:
            differs &= ~(
                np.abs(np.subtract(g, w, dtype=np.float64))
                <= near * max(1, np.abs(np.nan_to_num(w.astype(np.float64))).max(initial=0))
            )
        if differs.any():
            at = tuple(int(i) for i in np.argwhere(differs)[0])
            return (
                f"{name}[{', '.join(map(str, at))}] is {g[at]}, not {w[at]} ({int(differs.sum())}"
                f" of {w.size} differ)"
            )
    return None


def _comparable(x: np.ndarray) -> np.ndarray:
    """Floats of any kind as float64; other elements as they are."""
    return np.asarray(x, np.float64) if x.dtype.kind in "fV" else x


def extents(grid: Sequence[int]) -> tuple[int, int, int]:
    """Programs along the three axes of a grid that may have fewer."""
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def overlaps_of(arguments: Arguments) -> Overlaps:
    """Which arguments share memory, as a launch's specialization says it."""
    from tkc.runtime.specialize import ScalarInfo, argument, overlaps

    infos = [
        argument(v, n, False) if isinstance(v, np.ndarray) else ScalarInfo(v, "int32")
        for n, v in arguments.items()
    ]
    return overlaps(infos)


@dataclass(frozen=True)
class Variant:
    """How a module is compiled: for which target, and which of the plan's choices are made for it.

    each: run after every pass, else at the end alone; seeds: of schedules of the threads; ptx:
    write the PTX, and run it where the simulator of PTX knows it; forced: options of a launch. With
    an odd number of stages dots are late with one role too.
    """

    target: str
    warps: int | None
    stages: int
    programs: int | None = None
    split: int | None = None
    each: bool = True
    seeds: Iterable[int] = (0,)
    ptx: bool = True
    forced: tuple[tuple[str, Any], ...] = ()

    def label(self, step: str) -> str:
        """The name of a stage, from which `reduced` reads the variant back."""
        programs = f" programs {self.programs}" if self.programs else ""
        split = f" split {self.split}" if self.split else ""
        said = json.dumps(dict(self.forced), separators=(",", ":"))
        forced = f" forced {said}" if self.forced else ""
        plan = f"warps {self.warps} stages {self.stages}{programs}{split}{forced}"
        return f"{self.target} {plan}: {step}"

    @staticmethod
    def of(stage: str) -> Variant | None:
        """The variant that such a name tells of."""
        found = re.match(
            r"(\w+) warps (\w+) stages (\d+)(?: programs (\d))?(?: split (\d))?"
            r"(?: forced ({\S*?}): )?",
            stage,
        )
        if found is None:
            return None
        target, warps, stages, programs, split, forced = found.groups()
        options = json.loads(forced or "{}").items()
        return Variant(
            target,
            None if warps == "None" else int(warps),
            int(stages),
            int(programs) if programs else None,
            int(split) if split else None,
            forced=tuple((n, tuple(v) if isinstance(v, list) else v) for n, v in options),
        )

    def context(self, overlaps: Overlaps) -> PassContext:
        """What the passes are given."""
        options = Options(
            num_warps=self.warps,
            num_stages=self.stages,
            rotate=self.stages % 2 > 0 or None,
            programs=self.programs,
            split_k=self.split,
            extra=(("overlaps", overlaps),) if overlaps else (),
        )
        return PassContext(TARGETS[self.target], replace(options, **dict(self.forced)))


class Comparison:
    """Runs one module on levels and back ends, and compares each with level 0.

    make: gives arguments by name; near: the difference that is allowed, as a share of the
    largest number. `want` is what level 0 makes of the arguments.
    """

    def __init__(
        self,
        module: ModuleOp,
        make: Callable[[], Arguments],
        grid: Sequence[int],
        near: float = 0,
    ) -> None:
        self.module, self.grid, self.near = module, extents(grid), near
        given, names = make(), argument_names(module)
        # Always the same arrays, since addresses of some may stand in others
        self._arguments = {n: given[n] for n in names} if names is not None else given
        self._initial = _copied(self._arguments)
        self.overlaps = overlaps_of(self._arguments)
        level0.run(self.module, list(self._arguments.values()), self.grid)
        self.want = _copied(self._arguments)

    @property
    def names(self) -> list[str]:
        """Of the arguments, in order."""
        return list(self._arguments)

    def run(self, stage: str, how: Callable[[list], object]) -> Failure | None:
        """What is wrong with a way to run the module, which changes arguments in place."""
        for name, a in self._arguments.items():
            if isinstance(a, np.ndarray) and a.flags.writeable:
                a[...] = self._initial[name]
        try:
            how(list(self._arguments.values()))
        except Exception as e:
            return _failure(stage, e)
        message = wrong(self.want, self._arguments, self.near)
        return Failure(stage, "wrong", message) if message else None

    def cpu(self, processor: str | None = None) -> Failure | None:
        """By the CPU back end, for arguments that overlap where these do, as a launch compiles; for
        this processor, or an older one of its kind by LLVM's name. What has PTX of the user's own
        is interpreted there, as level 0 is.
        """
        from tkc.codegen import cpu

        if any(isinstance(op, InlinePtx) for op in self.module.walk()):
            return None

        def run(given: list) -> None:
            folded = any(a == b for a, b in self.overlaps)
            program = cpu.compile(
                self.module.clone(), bool(self.overlaps), processor=processor, folded=folded
            )
            program.run(given, self.grid)

        return self.run(f"cpu {processor}" if processor else "cpu", run)

    def passes(self, variant: Variant) -> Iterator[Failure]:
        """Through the passes, up to the first failure; then the PTX. What a pass left as it was is
        not run again: it would do the same. What is forced may be refused for any reason.
        """
        for failure in self._passes(variant):
            yield failure.under(variant.forced)

    def _passes(self, variant: Variant) -> Iterator[Failure]:
        module, context = self.module.clone(), variant.context(self.overlaps)
        program: Program | None = None
        for name in PIPELINE:
            try:
                module_of(name).run(module, context)
                before, program = program, program_of(module)
                if (variant.each and program != before) or name == PIPELINE[-1]:
                    verify(module, f"after {name}")
            except Exception as e:
                yield _failure(variant.label(name), e)
                return
            if program == before and level0.kernel_of(module).level < 4:
                continue
            if failure := self._level(module, name, variant):
                yield failure
                return
        if variant.ptx and (failure := self._ptx(module, variant)):
            yield failure

    def _level(self, module: ModuleOp, name: str, variant: Variant) -> Failure | None:
        """The module as it is after a pass, where it is one after which it runs."""
        level = level0.kernel_of(module).level
        if level < 4:
            if not variant.each and level != 3:
                return None
            return self.run(variant.label(name), lambda a: dataflow.run(module, a, self.grid))
        if name != (THREADED if variant.each else PIPELINE[-1]):
            return None
        for seed in variant.seeds:
            stage = f"{variant.label(name)} seed {seed}"

            def threads(given: list, seed: int = seed) -> None:
                level4.run(module, given, self.grid, seed)

            if failure := self.run(stage, threads):
                return failure
        return None

    def _ptx(self, module: ModuleOp, variant: Variant) -> Failure | None:
        from tkc.codegen.ptx.emit import emit
        from tkc.codegen.ptx.sink import rematerialise, sink_to_uses

        try:
            program = emit(module, TARGETS[variant.target])
        except Exception as e:
            return _failure(variant.label("emit"), e)
        if pair := next(merged_reads(program.text), None):
            first, second = (program.text.splitlines()[line - 1].strip() for line in pair)
            message = f"ptxas would take `{second}` for `{first}`, which reads another wgmma"
            return Failure(variant.label("PTX"), "wrong", message)
        if lost := next(lost_operands(program.text), None):
            message = f"ptxas may overwrite {lost[1]}, a left operand that a loop reads again"
            return Failure(variant.label("PTX"), "wrong", message)
        # what is assembled where ptxas would spill
        leaner = replace(program, text=sink_to_uses(rematerialise(program.text)))
        texts = [program] if leaner.text == program.text else [program, leaner]
        runs = (self.run(variant.label("PTX"), partial(self._run_ptx, p)) for p in texts)
        return next(filter(None, runs), None)

    def _run_ptx(self, program: PtxProgram, arguments: list) -> None:
        """Runs a program on the arguments in place; what the simulator of PTX does not know leaves
        what level 0 says.
        """
        from tkc.sim.ptx import Unknown, run

        try:
            results = iter(run(program, arguments, self.grid))
        except Unknown:
            results = (w for w in self.want.values() if isinstance(w, np.ndarray))
        for a in arguments:
            if isinstance(a, np.ndarray):
                new = next(results)
                if a.flags.writeable and not self._is_table(a):
                    a[...] = new

    def _is_table(self, a: np.ndarray) -> bool:
        """Whether an array holds addresses of another one: the simulator of PTX has its own."""
        if a.dtype != np.int64 or not a.size:
            return False
        spans = [
            np.lib.array_utils.byte_bounds(other)
            for other in self._arguments.values()
            if isinstance(other, np.ndarray) and other.size
        ]
        return any(low <= int(a.flat[0]) < high for low, high in spans)


def _copied(arguments: Arguments) -> Arguments:
    return {n: np.array(v) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}


# --------------------------------------------------------------------------------------------------
LARGE_EVERY = 16  # kernels of which one is traced as for arrays beyond 2 GiB
# of a brief check: one does the CPU, one every pass, one both numbers of stages
BRIEF_TURNS = 3
FORCED_EVERY = 4  # turns of the CPU of which one also compiles with options that are drawn
# options of a launch, with what is asked of them: whether a plan takes them or refuses, it is right
FORCED: dict[str, tuple[Any, ...]] = {
    "num_warps": (1, 2, 4, 8, 12, 16),
    "num_stages": (1, 2, 3, 4, 5),
    "cluster": ((2, 1), (1, 2), (2, 2)),
    "num_ctas": (1, 2),
    "roles": ("one", "cooperative", "pingpong", "co_resident"),
    "programs": (1, 2, 3, 4),
    "raster": (1, 2, 4),
    "serpentine": (True, False),
    "retain": (True, False),
    "split_k": (2, 3, 4),
    "stream_k": (0, 2, 4),
    "sum_parts": (1,),
    "persistent": (True, False),
    "register_transpose": (True, False),
    "relax": (True, False),
    "cross_tile_prologue": (True, False),
    "rotate": (True, False),
    "left_operand": ("shared", "registers"),
    "swap_dots": (True, False),
    "epilogue": ("tma", "shared", "direct"),
    "store_columns": (8, 16, 32, 64),
    "subtiles": (0, 1, 2, 3),
    "split_warps": ((1, 4), (2, 2), (4, 1), (4, 2), (2, 4), (8, 1), (1, 8)),
    "dynamic_schedule": (True, False),
    "prefetch": (True, False),
    "row_parts": (1, 2, 4),
}


def drawn_options(seed: int) -> tuple[tuple[str, Any], ...]:
    """Options of a launch that a seed chooses, each with what is asked of it."""
    r = random.Random(seed)
    names = r.sample(sorted(FORCED), r.choice([1, 2, 2, 3, 3, 4]))
    return tuple((name, r.choice(FORCED[name])) for name in names)


def check(
    kernel: Kernel,
    targets: Sequence[str] | None = None,
    thorough: bool = False,
    brief: bool = False,
    chosen: Iterable[Variant] | None = None,
) -> list[Failure]:
    """Every disagreement. One target and number of stages, chosen by the seed, and stages 1 at the
    end alone; `thorough`: every number of stages, several schedules; `brief`: by turns the CPU,
    every pass, or both numbers of stages; `chosen`: these variants alone, not the CPU."""
    try:
        made = arguments(kernel)
        comparison = Comparison(traced(kernel, made), lambda: arguments(kernel), kernel.grid)
    except Exception as e:
        stage = "level 0" if isinstance(e, level0.SimulationError) else "trace"
        return [Failure(stage, type(e).__name__, f"{e} ({_where(e)})")]
    for spec in kernel.arrays:
        if spec.name[0] == "z" and comparison.want[spec.name].any():
            return [Failure("level 0", "wrong", f"{spec.name} is not what Python computes")]
    if chosen is not None:
        return [f for variant in chosen for f in comparison.passes(variant)]
    turn = kernel.seed % BRIEF_TURNS if brief else None
    found: list[Failure] = []
    if turn in (0, None) and (failure := comparison.cpu(_processor(kernel))):
        found.append(failure)
    for target in targets or [default_target(kernel)]:
        for variant in variants(kernel, target, thorough, turn):
            found += comparison.passes(variant)
    return found


def default_target(kernel: Kernel) -> str:
    """The target that a seed chooses."""
    if kernel.policy == "roles" or kernel.forced:
        return "sm_90a"
    return ("sm_80", "sm_89", "sm_90a")[kernel.seed // BRIEF_TURNS % 3]


def _processor(kernel: Kernel) -> str | None:
    """For every other seed a processor whose vectors are of 256 bits, as this one's may be longer:
    LLVM makes other code for it.
    """
    return "haswell" if kernel.seed % 2 and platform.machine() == "x86_64" else None


def variants(kernel: Kernel, target: str, thorough: bool, turn: int | None) -> Iterator[Variant]:
    """How a kernel is compiled for a target, at a turn of a brief check (None: of a whole one)."""
    if turn in (0, None) and kernel.seed // BRIEF_TURNS % FORCED_EVERY == 0:
        forced = drawn_options(kernel.seed)
        yield Variant(target, None, kernel.stages, each=False, forced=forced)
    if turn != 0:
        yield Variant(
            target,
            kernel.warps,
            kernel.stages,
            # programs that run beside each other, or that share a sum
            kernel.stages if kernel.policy == "roles" and kernel.stages in (3, 4) else None,
            2 + kernel.seed % 2 if kernel.policy == "roles" and kernel.stages == 5 else None,
            each=turn != 2,
            seeds=range(4) if thorough else (kernel.seed,),
            forced=kernel.forced,
        )
    others: set[int] = set()
    if thorough:
        others = {1, 2, 3, 5}
    elif turn in (2, None) and "range(" in kernel.source:
        others = {1}
    for stages in sorted(others - {kernel.stages}):
        schedules = range(2) if thorough else (0,)
        yield Variant(target, kernel.warps, stages, each=False, seeds=schedules, ptx=thorough)


# Of each operation in order: itself, where it is, and what it is made of
Program = list[tuple[Any, ...]]


def program_of(module: ModuleOp) -> Program:
    """What a module says, as objects that it holds: equal to that of an earlier time where no
    operation, operand, type or attribute changed since.
    """
    return [
        (
            op,
            op.parent,
            op._operands,
            tuple(r.type for r in op.results),
            tuple(op.properties.items()),
            tuple(op.attributes.items()),
            tuple(a.type for region in op.regions for block in region.blocks for a in block.args),
        )
        for op in module.walk()
    ]


# What a kernel may be refused for: the machine cannot do it.
RESOURCE_LIMITS = re.compile("registers|bytes of shared memory|threads")


def symptom(failure: Failure) -> str:
    """What two modules with one fault have in common: the stage, the kind, and where it was raised
    or the words of the message.
    """
    stage = re.sub(r".*: | seed \d+", "", failure.stage)
    place = re.search(r"\(([\w/]+\.py:\d+)\)$", failure.message)
    if failure.kind == "wrong":
        words = ""
    elif place:
        words = place[1]
    else:
        sentence = failure.message.splitlines()[0].rpartition(": ")[2]
        words = re.sub(r"[^A-Za-z ]+\S*", "", sentence)[:60]
    return f"{stage}: {failure.kind}: {words}"


def reduced(
    kernel: Kernel, failure: Failure, tell: Callable[[str], None] = lambda text: None
) -> ModuleOp:
    """The smallest module found that fails as the kernel does."""
    from tkc.fuzz.reducer import reduce

    want, variant = symptom(failure), Variant.of(failure.stage)
    place, _, processor = failure.stage.partition(" ")

    def interesting(module: ModuleOp) -> bool:
        try:
            runs = Comparison(module, lambda: arguments(kernel), kernel.grid, near=1e-2)
        except Exception:
            return False
        if place == "cpu":
            return (found := runs.cpu(processor or None)) is not None and symptom(found) == want
        if variant is None:
            return False
        return any(symptom(f) == want for f in runs.passes(variant))

    return reduce(traced(kernel, arguments(kernel)), interesting, tell)


def _failure(stage: str, e: Exception) -> Failure:
    if isinstance(e, CompileError):
        kind = "refused" if RESOURCE_LIMITS.search(e.message) else "refused for no reason"
        return Failure(stage, kind, str(e))
    place = "" if isinstance(e, Error) else f" ({_where(e)})"
    return Failure(stage, type(e).__name__, f"{e}{place}")


def _where(e: BaseException) -> str:
    frame = traceback.extract_tb(e.__traceback__)[-1]
    return f"{frame.filename.rpartition('tkc/')[2]}:{frame.lineno}"
