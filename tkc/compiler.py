"""The compiler, top to bottom: `compile` is its list of steps, `Compiled` what comes out.

    Python function --trace--> level 0 --tkc.passes.pipeline--> level 4 --emit--> PTX
                                      \\--tkc.codegen.cpu--> machine code of the host

The steps are imported inside `compile`: a Compiled that comes from the disk cache needs none of
them.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.errors import CompileError
from tkc.ir.interface import Interface
from tkc.progress import progress

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tkc.codegen.ptx.ptxas import Assembled
    from tkc.language.signature import Signature
    from tkc.passes import PassContext
    from tkc.timing.predict import Prediction

Observer = Callable[[str, "ModuleOp"], None]  # called with a step's name and the IR after it

_pauses = threading.Lock()
_compiling: list[bool] = []  # for each compilation in progress: whether it found the collector on


@contextmanager
def collector_paused() -> Iterator[None]:
    """Python looks for no garbage meanwhile: all of a module is in cycles and in use until its
    compilation ends, and each look walks whatever the program round it holds.
    """
    with _pauses:
        _compiling.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _pauses:
            # the first of those that run beside one another is popped by the last to end
            if _compiling.pop():
                gc.enable()


def compile(
    fn: Callable, signature: Signature, target: str, observe: Observer | None = None
) -> Compiled:
    """Compiles one specialization of a Python function for "cpu" or a GPU such as "sm_90a".

    Raises CompileError where the kernel is at fault, VerifyError where a pass of ours broke the IR.
    """
    with progress(f"compiling {fn.__name__} for {target}") as line, collector_paused():
        return _compiled(fn, signature, target, Steps(fn.__name__, observe, line))


def _compiled(fn: Callable, signature: Signature, target: str, steps: Steps) -> Compiled:
    from tkc.language.trace import trace

    module = trace(fn, signature)
    steps.done("trace", module)
    try:
        return (
            _to_cpu(fn, signature, module, steps)
            if target == "cpu"
            else _to_gpu(fn, signature, module, target, steps)
        )
    except CompileError:
        raise
    except Exception as e:  # a step of ours broke
        from tkc.ir.text import show
        from tkc.runtime.report import bug

        found = e if target == "cpu" else _first_fault(fn, signature, target, e)
        raise bug(found, show(trace(fn, signature)), target) from found


def _first_fault(fn: Callable, signature: Signature, target: str, found: Exception) -> Exception:
    """What goes wrong where every pass is verified: the fault of the pass that broke the program,
    not of one that met it later.
    """
    from tkc.ir.target import TARGETS
    from tkc.language.trace import trace
    from tkc.passes import pipeline

    def attempt(context: PassContext) -> None:
        module = trace(fn, signature)
        pipeline.run(module, TARGETS[target], signature.options, context=context)

    try:
        pipeline.with_room(attempt, TARGETS[target], signature.options)
    except CompileError:
        pass  # another plan, which had no room either
    except Exception as first:
        return first
    return found


def _to_cpu(fn: Callable, signature: Signature, module: ModuleOp, steps: Steps) -> Compiled:
    from tkc.codegen import cpu

    if inline := [op for op in module.walk() if op.name == "tile.inline_ptx"]:
        return Compiled(fn.__name__, "cpu", program=Interpreted(module, inline), times=steps.times)
    overlaps = dict(signature.options.extra).get("overlaps", ())
    program = cpu.compile(
        module,
        overlapping=any(a != b for a, b in overlaps),
        checks=signature.options.debug > 0,
        folded=any(a == b for a, b in overlaps),
    )
    steps.done("machine code")
    return Compiled(fn.__name__, "cpu", program=program, times=steps.times)


def _to_gpu(
    fn: Callable, signature: Signature, module: ModuleOp, target: str, steps: Steps
) -> Compiled:
    from tkc.codegen.ptx.emit import emit
    from tkc.ir.target import TARGETS
    from tkc.language.trace import trace
    from tkc.passes import pipeline

    if target not in TARGETS:
        raise CompileError(f"unknown target {target!r}; there are {', '.join(TARGETS)} and cpu")
    machine, options = TARGETS[target], signature.options

    def attempt(context: PassContext) -> Compiled:
        given = module
        if context.lack:  # the passes before changed it, for a plan that found no room
            steps.again()
            given = trace(fn, signature)
            steps.done("trace", given)
        pipeline.run(given, machine, options, steps.done, context=context, each=steps.shown)
        program = emit(given, machine, options.debug)
        steps.done("emit")
        return Compiled(
            fn.__name__,
            target,
            program.text,
            program.interface,
            decisions=(*context.decisions, *program.notes),
            times=steps.times + steps.vain,
        )

    return pipeline.with_room(attempt, machine, options)


class Interpreted:
    """A kernel with inline PTX on the CPU: level 0 in NumPy, the PTX by its meaning, or in the
    simulator of PTX. Raises CompileError where neither can run it.
    """

    def __init__(self, module: ModuleOp, inline: list):
        from tkc.ir.text import location_of
        from tkc.sim.ptx import Unknown, program_of

        self.module = module
        for op in inline:
            try:
                _ = op.function if op.meaning is not None else program_of(op)
            except Unknown as e:
                raise CompileError(
                    f"inline PTX on the CPU: {e} is not simulated; give tkc.inline_ptx a meaning=,"
                    " a NumPy function of its operands, to run it here",
                    location_of(op),
                ) from None
            except LookupError as e:
                raise CompileError(str(e), location_of(op)) from None

    def run(
        self,
        arguments: Sequence,
        grid: Sequence[int],
        lost: Callable[[], str | None] | None = None,
    ) -> None:
        """lost: not asked; a wait for another rank ends after a time."""
        from tkc.sim.level0 import run

        run(self.module, arguments, grid)


class Steps:
    """Times every step, shows its IR to an observer, and writes it to NN-<step>.mlir where TKC_DUMP
    asks for that. Where a plan found no room the steps begin again, and the last ones stand. line:
    on the terminal, of compilations that take long.
    """

    def __init__(self, name: str, observe: Observer | None, line: progress):
        self.line = line
        self.times: list[tuple[str, float]] = []
        self.vain: list[tuple[str, float]] = []  # seconds of what was refused
        self.observe, self.folder, self.began = observe, dump_folder(name), time.perf_counter()
        # whether somebody looks at the program after each step
        self.shown = bool(observe or self.folder)

    def again(self) -> None:
        """The steps begin anew."""
        now = time.perf_counter()
        self.vain = [
            (
                "plans without room",
                sum(seconds for _, seconds in self.times + self.vain) + now - self.began,
            )
        ]
        self.times.clear()
        self.began = now

    def done(self, step: str, module: ModuleOp | None = None) -> None:
        self.times.append((step, time.perf_counter() - self.began))
        self.line.say(f"{step} done")
        if module is not None and self.observe:
            self.observe(step, module)
        if module is not None and self.folder:
            from tkc.ir.text import show

            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / f"{len(self.times) - 1:02}-{step}.mlir").write_text(
                    show(module, locations=True)
                )
            except OSError as e:
                raise CompileError(
                    f"TKC_DUMP: cannot write to {self.folder}: {e.strerror}; name another"
                    " directory, or unset it"
                ) from None
        self.began = time.perf_counter()


def dump_folder(name: str) -> Path | None:
    """Where TKC_DUMP sends the IR of a kernel: 1 means ./tkc-dump/<kernel>, anything else is the
    directory.
    """
    asked = os.environ.get("TKC_DUMP", "0")
    return None if asked in ("", "0") else Path("tkc-dump" if asked == "1" else asked) / name


@dataclass(eq=False)
class Compiled:
    """One specialization, compiled. `ptx` and `interface` for a GPU, `program` for the CPU;
    `decisions`: what the compiler chose, a sentence each.
    """

    name: str
    target: str
    ptx: str | None = None
    interface: Interface | None = None
    program: Any = None
    decisions: tuple[str, ...] = ()
    times: list[tuple[str, float]] = field(default_factory=list)  # seconds of each step
    again: Callable[[Observer | None], Compiled] | None = (
        None  # compiles once more, under an observer
    )
    cached: bool = False  # read from the disk cache
    image: bytes | None = None  # the cubin, where it was assembled ahead of its launch

    @cached_property
    def stages(self) -> dict[str, str]:
        """The IR after every step: "trace", then each pass by name."""
        from tkc.ir.text import show

        if self.again is None:
            raise CompileError(
                f"{self.name} was loaded without its source, so its IR cannot be shown; compile it"
                " from the function"
            )
        found: dict[str, str] = {}
        self.again(lambda step, module: found.update({step: show(module)}))
        return found

    def ir(self, stage: str = "trace") -> str:
        """The IR after a stage ("trace", a pass's name, "final"). Raises CompileError naming the
        stages there are.
        """
        if stage == "final":
            return list(self.stages.values())[-1]
        if stage not in self.stages:
            raise CompileError(
                f"{self.name} has no stage {stage!r}; there are {', '.join(self.stages)} and final"
            )
        return self.stages[stage]

    @cached_property
    def resources(self) -> Assembled:
        """Registers, spills, shared memory and complaints of ptxas, with the cubin
        (tkc.codegen.ptx.ptxas.Assembled). Raises CompileError without ptxas. Where it spills, texts
        that let fewer blocks share a multiprocessor, and that keep less alive, are tried, and
        become `ptx` if they spill less.
        """
        from tkc.codegen.ptx.leanest import leanest

        if self.ptx is None or self.interface is None:
            raise CompileError(
                f"{self.name} was compiled for {self.target}; resources are those of a GPU target"
                " such as sm_90a"
            )
        self.ptx, found = leanest(self.ptx, self.interface, self.target)
        return found

    @cached_property
    def sass(self) -> str:
        """The machine code as nvdisasm shows it. Raises CompileError where nvdisasm or ptxas is
        missing.
        """
        from tkc.codegen.ptx.ptxas import disassemble

        return disassemble(self.resources.cubin)

    def report(self, prediction: Prediction | None = None) -> str:
        """A page for people: time of each step, decisions, resources; of a kernel with roles the
        timeline of one iteration, or with `prediction` (what `kernel.predict` gives) of a launch.
        """
        from tkc.runtime.report import page

        return page(self, prediction or self.prediction)

    @cached_property
    def prediction(self) -> Prediction | None:
        """Who uses which engine when, in an iteration of a kernel with roles (tkc.timing.predict),
        without the sizes of a launch; None of other kernels, and without the source.
        """
        if self.again is None or self.interface is None or not self.interface.persistent:
            return None
        from tkc.ir.target import TARGETS
        from tkc.passes.pipeline import BEFORE_PLAN
        from tkc.passes.plan import kernel_of
        from tkc.passes.planning.cost import Work
        from tkc.timing.predict import predict

        seen: dict[str, Any] = {}
        self.again(
            lambda step, module: seen.update(
                {"module": module}
                | ({"work": Work.of(kernel_of(module))} if step == BEFORE_PLAN else {})
            )
        )
        try:
            return predict(seen["module"], seen["work"], TARGETS[self.target])
        except CompileError:
            return None

    # ----------------------------------------------------------------------------------------------
    @property
    def lasting(self) -> bool:
        """Whether `pack` can hold it: not what runs by functions of this process."""
        return not isinstance(self.program, Interpreted)

    def pack(self) -> dict[str, bytes]:
        """As named bytes; `unpack` reads them."""
        meta = {
            "name": self.name,
            "target": self.target,
            "decisions": self.decisions,
            "times": self.times,
            "interface": self.interface.to_json() if self.interface else None,
        }
        parts = {"meta": json.dumps(meta).encode()}
        if self.ptx is not None:
            parts["ptx"] = self.ptx.encode()
        if self.program is not None:
            parts |= self.program.pack()
        return parts

    @staticmethod
    def unpack(parts: dict[str, bytes]) -> Compiled:
        """Raises ValueError, KeyError or CompileError where the parts are not those of a Compiled
        for this machine.
        """
        meta = json.loads(parts["meta"])
        interface, program = meta["interface"] and Interface.from_json(meta["interface"]), None
        if meta["target"] == "cpu":
            from tkc.codegen.cpu import unpack

            program = unpack(parts)
        return Compiled(
            meta["name"],
            meta["target"],
            parts["ptx"].decode() if "ptx" in parts else None,
            interface,
            program,
            tuple(meta["decisions"]),
            [tuple(t) for t in meta["times"]],
            cached=True,
        )
