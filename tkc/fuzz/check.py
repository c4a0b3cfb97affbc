"""One kernel, run in every way there is; level 0 says what is right. `check(kernel)` gives what
differs.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tkc.errors import CompileError, Error
from tkc.fuzz.grammar import Kernel
from tkc.ir.target import TARGETS
from tkc.ir.types import ArrayType, PointerType, is_float
from tkc.ir.verify import verify
from tkc.passes import Free, PassContext
from tkc.passes.pipeline import PIPELINE, module_of
from tkc.sim import dataflow, level0, level4

THREADED = "insert-synchronization"  # from this pass on level 4 runs


@dataclass(frozen=True)
class Failure:
    """stage: what disagreed ("trace", "cpu", "sm_80: swizzle-shared", …); kind: "wrong", "refused",
    or the name of an error.
    """

    stage: str
    kind: str
    message: str

    def __str__(self):
        return f"{self.stage}: {self.kind}: {self.message}"


def arguments(kernel: Kernel) -> dict:
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


def traced(kernel: Kernel, arguments: dict) -> ModuleOp:
    """The kernel at level 0, specialized for these arguments as a launch would."""
    from tkc.language.trace import trace
    from tkc.runtime.specialize import ScalarInfo, Specialization, argument, facts, signature

    infos = {
        n: argument(v, n, False) if isinstance(v, np.ndarray) else ScalarInfo(v, "int32")
        for n, v in arguments.items()
    }
    return trace(
        kernel.function(), signature(Specialization(tuple((n, facts(i)) for n, i in infos.items())))
    )


def invented(module: ModuleOp, seed: int = 0) -> dict:
    """Arguments for a module whose own are not known: arrays of some 40 (as their facts want) along
    each axis, whole numbers in them; numbers of 3.
    """
    values = np.random.default_rng(seed)
    out: dict[str, np.ndarray | float] = {}
    kernel = level0.kernel_of(module)
    names = kernel.attributes.get("argument_names")
    for i, argument in enumerate(kernel.arguments):
        name, t = names.data[i].data if names is not None else f"x{i}", argument.type
        if not isinstance(t, (ArrayType, PointerType)):
            out[name] = 3.0 if is_float(t) else 3
            continue
        if isinstance(t, PointerType):
            out[name] = values.integers(0, 4, 4096).astype(level0.dtype_of(t.element))
            continue
        shape = [
            f.exact if f.exact is not None else -(-40 // f.divisor) * f.divisor
            for f in t.facts.shape
        ]
        order = sorted(range(t.rank), key=lambda a: (t.facts.strides[a].exact == 1, a))
        dense = values.integers(
            -4 if is_float(t.element) else 0, 5, [shape[a] for a in order]
        ).astype(np.int64 if isinstance(t.element, PointerType) else level0.dtype_of(t.element))
        out[name] = dense.transpose([order.index(a) for a in range(t.rank)])
    return out


def wrong(want: dict, got: dict, near: float = 0) -> str | None:
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


def extents(grid) -> tuple[int, int, int]:
    return (*grid, 1, 1)[:3]


class Ways:
    """The ways to run one module. `make()` gives fresh arguments by name, `want` is what level 0
    makes of them.
    """

    def __init__(
        self, module: ModuleOp, make: Callable[[], dict], grid: Sequence[int], near: float = 0
    ):
        self.module, self.grid, self.near = module, extents(grid), near
        names = level0.kernel_of(module).attributes.get("argument_names")
        self.make = lambda: {
            n: given[n]
            for given in [make()]
            for n in ([a.data for a in names] if names is not None else given)
        }
        self.want = self.make()
        level0.run(self.module, list(self.want.values()), self.grid)

    def run(self, stage: str, how: Callable[[list], None]) -> Failure | None:
        given = self.make()
        try:
            how(list(given.values()))
        except Exception as e:
            return _broken(stage, e)
        message = wrong(self.want, given, self.near)
        return Failure(stage, "wrong", message) if message else None

    def cpu(self) -> Failure | None:
        from tkc.codegen import cpu

        return self.run("cpu", lambda a: cpu.compile(self.module.clone()).run(a, self.grid))

    def passes(
        self,
        target: str,
        warps: int | None,
        stages: int,
        each: bool = True,
        seeds=(0,),
        ptx: bool = True,
        programs: int | None = None,
    ) -> Iterator[Failure]:
        """Through the passes, run after each (or at the end alone), with an odd number of stages
        dots late with one role too; then the PTX is written, and run where the machine of
        tkc.sim.ptx knows it.
        """
        module, context = (
            self.module.clone(),
            PassContext(
                TARGETS[target],
                Free(
                    num_warps=warps,
                    num_stages=stages,
                    rotate=stages % 2 > 0 or None,
                    programs=programs,
                ),
            ),
        )

        def label(name):
            return (
                f"{target} warps {warps} stages"
                f" {stages}{f' programs {programs}' if programs else ''}: {name}"
            )

        for name in PIPELINE:
            try:
                module_of(name).run(module, context)
                if each or name == PIPELINE[-1]:
                    verify(module, f"after {name}")
            except Exception as e:
                yield _broken(label(name), e)
                return
            level = level0.kernel_of(module).level
            found: list[Failure | None] = []
            if level < 4 and (each or level == 3):
                found = [self.run(label(name), lambda a: dataflow.run(module, a, self.grid))]
            elif level == 4 and name == (THREADED if each else PIPELINE[-1]):
                found = [
                    self.run(
                        f"{label(name)} seed {s}",
                        lambda a, s=s: level4.run(module, a, self.grid, s),
                    )
                    for s in seeds
                ]
            if failure := next(filter(None, found), None):
                yield failure
                return
        if not ptx:
            return
        try:
            from tkc.codegen.ptx.emit import emit

            program = emit(module, TARGETS[target])
        except Exception as e:
            yield _broken(label("emit"), e)
            return
        if failure := self.run(label("PTX"), lambda a: self._ptx(program, a)):
            yield failure

    def _ptx(self, program, arguments: list) -> None:
        """Runs a program on the arguments in place; one beyond the machine leaves what level 0
        says.
        """
        from tkc.sim.ptx import Unknown, run

        try:
            results = iter(run(program, arguments, self.grid))
        except Unknown:
            results = (w for w in self.want.values() if isinstance(w, np.ndarray))
        for a in arguments:
            if isinstance(a, np.ndarray):
                new = next(results)
                if a.flags.writeable:
                    a[...] = new


def check(
    kernel: Kernel, targets=None, thorough: bool = False, brief: bool = False
) -> list[Failure]:
    """Every disagreement. One target and number of stages, chosen by the seed, and stages 1 at the
    end alone; `thorough`: every number of stages, several schedules; `brief`: by turns the CPU,
    every pass, or both numbers of stages."""
    try:
        ways = Ways(traced(kernel, arguments(kernel)), lambda: arguments(kernel), kernel.grid)
    except Exception as e:
        return [
            Failure(
                "trace" if not isinstance(e, level0.SimulationError) else "level 0",
                type(e).__name__,
                f"{e} ({_where(e)})",
            )
        ]
    turn = kernel.seed % 3 if brief else None
    found = [f for f in [ways.cpu()] if f] if turn in (0, None) else []
    for target in targets or (
        (
            "sm_90a"
            if kernel.policy == "roles"
            else ("sm_80", "sm_89", "sm_90a")[kernel.seed // 3 % 3]
        ),
    ):
        if turn != 0:
            found += ways.passes(
                target,
                kernel.warps,
                kernel.stages,
                turn != 2,
                range(4) if thorough else (kernel.seed,),
                programs=(
                    kernel.stages if kernel.policy == "roles" and kernel.stages in (3, 4) else None
                ),
            )  # side by side
        others = (
            {1, 2, 3, 5}
            if thorough
            else {1}
            if turn in (2, None) and "range(" in kernel.source
            else set()
        )
        for stages in others - {kernel.stages}:
            found += ways.passes(
                target, kernel.warps, stages, False, range(2) if thorough else (0,), thorough
            )
    return found


# What a kernel may be refused for: the machine cannot do it.
LIMITS = re.compile("registers|bytes of shared memory|threads")


def symptom(failure: Failure) -> str:
    """What two modules with one fault have in common: the stage, the kind, and where it was raised
    or the words of the message.
    """
    stage = re.sub(r".*: | seed \d+", "", failure.stage)
    place = re.search(r"\(([\w/]+\.py:\d+)\)$", failure.message)
    words = (
        ""
        if failure.kind == "wrong"
        else (
            place[1]
            if place
            else re.sub(r"[^A-Za-z ]+\S*", "", failure.message.splitlines()[0].rpartition(": ")[2])[
                :60
            ]
        )
    )
    return f"{stage}: {failure.kind}: {words}"


def reduced(kernel: Kernel, failure: Failure, tell=lambda text: None) -> ModuleOp:
    """The smallest module found that fails as the kernel does."""
    from tkc.fuzz.reducer import reduce

    want = symptom(failure)
    plan = re.match(r"(\w+) warps (\w+) stages (\d+)(?: programs (\d))?", failure.stage)
    target, warps, stages, programs = plan.groups() if plan else (None, "None", "1", None)

    def interesting(module: ModuleOp) -> bool:
        try:
            ways = Ways(module, lambda: arguments(kernel), kernel.grid, near=1e-2)
        except Exception:
            return False
        if failure.stage == "cpu":
            return (f := ways.cpu()) is not None and symptom(f) == want
        if target is None:
            return False
        return any(
            symptom(f) == want
            for f in ways.passes(
                target,
                None if warps == "None" else int(warps),
                int(stages),
                True,
                (kernel.seed,),
                programs=int(programs) if programs else None,
            )
        )

    return reduce(traced(kernel, arguments(kernel)), interesting, tell)


def _broken(stage: str, e: Exception) -> Failure:
    if isinstance(e, CompileError):
        return Failure(
            stage, "refused" if LIMITS.search(e.message) else "refused for no reason", str(e)
        )
    return Failure(
        stage, type(e).__name__, f"{e}" if isinstance(e, Error) else f"{e} ({_where(e)})"
    )


def _where(e: BaseException) -> str:
    frame = traceback.extract_tb(e.__traceback__)[-1]
    return f"{frame.filename.rpartition('tkc/')[2]}:{frame.lineno}"
