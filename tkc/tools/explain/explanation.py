"""Everything that a page about a kernel shows, as one dictionary of plain data (`gather`). A part
that this kernel, target or machine does not have is a sentence that says so under "missing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tkc.compiler import Compiled
from tkc.errors import CompileError, Error
from tkc.tools.explain import choices, measured, memory, performance, registers
from tkc.tools.explain.changes import changes, counts
from tkc.tools.explain.compilation import Compilation, compilation
from tkc.tools.explain.listing import (
    Listing,
    Place,
    Sources,
    of_plain,
    of_ptx,
    of_sass,
    place_of,
)
from tkc.tools.explain.subject import Subject

if TYPE_CHECKING:
    from tkc.ir.plan import Plan
    from tkc.ir.target import Target
    from tkc.passes.planning.numbers import Sizes
    from tkc.timing.predict import Prediction

FORMAT = 1
MAX_SEGMENTS = 60_000  # of a timeline
ENGINES = ("tensor", "mufu", "fma", "alu", "lsu", "shared", "copy", "issue", "wait")


def gather(
    subject: Subject, measure: bool = True, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Compiles, predicts and measures. say: gets a word about each part before it is made. Of a
    kernel that fails to compile there are the steps it reached, and `error`.
    """
    return _Gathering(subject, measure, say).all()


class _Gathering:
    """One page in the making. `missing`: by part, why it is not there."""

    def __init__(self, subject: Subject, measure: bool, say: Callable[[str], None]):
        self.subject, self.measure, self.say = subject, measure, say
        self.missing: dict[str, str] = {}
        self.sources = Sources(place_of(subject.kernel.fn))
        self.texts: dict[str, int] = {}
        say("compiling")
        self.made: Compilation = compilation(
            subject.kernel, subject.infos, subject.options, subject.target
        )

    def all(self) -> dict[str, Any]:
        subject, made = self.subject, self.made
        stages = self._stages()
        for *_, listing in stages:
            self.sources.add(listing)
        if isinstance(made.error, CompileError) and made.error.location is not None:
            self.sources.named.add((made.error.location.file, made.error.location.line))
        compiled, prediction = made.compiled, self._part("timeline", self._prediction)
        return {
            "format": FORMAT,
            "version": _version(),
            "kernel": subject.kernel.__name__,
            "target": subject.target,
            "arguments": subject.arguments,
            "options": [[name, repr(value)] for name, value in subject.options.items()],
            "grid": subject.extents,
            "notes": [*subject.notes],
            "others": [*subject.others],
            "error": self._error(),
            "sources": [
                {"file": part.file, "first": part.first, "lines": part.lines}
                for part in self.sources.parts
            ],
            "stages": self._listings(stages),
            "times": [[step, seconds] for step, seconds in compiled.times] if compiled else [],
            "decisions": [
                {"step": d.step, "text": d.text, "source": self.sources.number(d.place)}
                for d in choices.decisions(compiled.decisions if compiled else ())
            ],
            "plan": self._part("plan", self._plan),
            "candidates": self._part("candidates", self._candidates),
            "launch": self._launch(),
            "timeline": _timeline(prediction) if prediction else None,
            "prediction": _predicted(prediction) if prediction else None,
            "roofline": self._part("roofline", self._roofline),
            "measured": self._part("measured", self._measured),
            "memory": self._part("memory", self._memory),
            "layouts": self._part("layouts", self._layouts),
            "registers": self._part("registers", self._registers),
            "texts": list(self.texts),
            "missing": self.missing,
        }

    def _part(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives; None, with the reason under `missing`, where it raises tkc.Error."""
        self.say(name)
        try:
            return make()
        except Error as error:
            self.missing[name] = str(error).splitlines()[0]
            return None

    # ---- listings
    def _stages(self) -> list[tuple[str, str, Listing]]:
        """(name, kind, listing) of every stage that was reached."""
        found = [(step, "ir", listing) for step, listing in self.made.steps.items()]
        compiled = self.made.compiled
        if compiled is None:
            return found
        if compiled.target == "cpu":
            llvm = getattr(compiled.program, "llvm", "")
            return [*found, ("LLVM IR", "llvm", of_plain(llvm))] if llvm else found
        sass = self._part("sass", lambda: _machine_code(compiled))
        found.append(("PTX", "ptx", of_ptx(compiled.ptx or "")))
        if sass is not None:
            found.append(("SASS", "sass", sass))
        return found

    def _listings(self, stages: Sequence[tuple[str, str, Listing]]) -> list[dict[str, Any]]:
        """As data: lines by their number among all texts, and of each IR what a step changed."""
        made: list[dict[str, Any]] = []
        before: Listing | None = None
        for name, kind, listing in stages:
            stage: dict[str, Any] = {"name": name, "kind": kind}
            if kind == "ir":
                found = changes(before, listing) if before is not None else []
                same = before is not None and not found
                before = listing if not same else before
                stage |= {"same": same, "changes": found}
                stage["added"], stage["removed"] = counts(found)
                if same:
                    made.append(stage)
                    continue
            stage["lines"] = [
                self.texts.setdefault(line, len(self.texts)) for line in listing.lines
            ]
            stage["source"] = [self.sources.number(place) for place in listing.places]
            made.append(stage)
        return made

    def _error(self) -> dict[str, Any] | None:
        error = self.made.error
        if error is None:
            return None
        place: Place | None = None
        message = str(error).splitlines()[0]
        if isinstance(error, CompileError):
            message = error.message
            if error.location is not None:
                place = (error.location.file, error.location.line)
        return {
            "kind": type(error).__name__,
            "message": message,
            "text": str(error),
            "reached": self.made.reached,
            "source": self.sources.number(place),
        }

    # ---- what only compilations for a GPU have
    @property
    def _target(self) -> Target:
        from tkc.ir.target import TARGETS

        if self.subject.target not in TARGETS:
            raise CompileError(
                "kernels for the CPU have no plan, layouts or model of time: their code is made of"
                " level 0"
            )
        return TARGETS[self.subject.target]

    @property
    def _sizes(self) -> Sizes | None:
        from tkc.passes.planning.numbers import Sizes
        from tkc.runtime.arrays import ArrayInfo
        from tkc.runtime.specialize import given

        if self.subject.extents is None:
            return None
        return Sizes(
            self.subject.extents,
            tuple(
                i.shape if isinstance(i, ArrayInfo) else i.value for i in given(self.subject.infos)
            ),
        )

    @property
    def _planned(self) -> Plan:
        from tkc.ir.plan import written_on
        from tkc.ir.tile import kernels_of

        _ = self._target
        final = self.made.final
        found = next((written_on(k) for k in kernels_of(final)), None) if final else None
        if found is None:
            raise CompileError("the compilation did not get as far as the plan")
        return found

    def _plan(self) -> dict[str, Any]:
        plan, before = self._planned, self.made.before_plan
        assert before is not None  # a plan was made of it
        return {
            "fields": choices.changed_fields(plan),
            "parts": [
                {
                    "what": part.what,
                    "operation": part.operation,
                    "source": self.sources.number(part.place),
                    "fields": part.fields,
                }
                for part in choices.parts(before, plan)
            ],
        }

    def _candidates(self) -> dict[str, Any]:
        plan, before = self._planned, self.made.before_plan
        assert before is not None
        found = choices.candidates(before, plan, self._target, self._options, self._sizes)
        if self._sizes is not None and self.made.compiled is not None:
            choices.compile_some(found, self._compiled_with)
        names = choices.differing(found)
        return {
            "names": names,
            "sized": self._sizes is not None,
            "rows": [
                {
                    "values": [str(candidate.keywords[name]) for name in names],
                    "forcing": [[k, repr(v)] for k, v in candidate.forcing.items()],
                    "chosen": candidate.chosen,
                    "predicted": candidate.predicted,
                    "spills": candidate.spills,
                    "refused": candidate.refused,
                    "spare": candidate.plan.spare,
                    **{
                        name: getattr(candidate.cost, name)
                        for name in ("seconds", "waves", "steps", "exposed", "memory", "limit")
                    },
                }
                for candidate in found
            ],
        }

    @property
    def _options(self) -> Any:
        from tkc.runtime.specialize import signature

        kernel, subject = self.subject.kernel, self.subject
        return signature(kernel._specialize(subject.infos, tuple(subject.options.items()))).options

    def _predict(self, options: dict[str, Any]) -> Prediction:
        from tkc.runtime.prediction import predicted

        extents = self.subject.extents
        if extents is None:
            raise CompileError("the grid is not known; give --grid")
        given = tuple((self.subject.options | options).items())
        return predicted(
            self.subject.kernel, self.subject.infos, given, extents, self.subject.target
        )

    def _compiled_with(self, options: dict[str, Any]) -> tuple[float, int | None]:
        """Seconds by the timeline, and bytes that are spilled, None without ptxas."""
        from tkc.codegen.ptx.ptxas import find

        seconds, subject = self._predict(options).seconds or 0.0, self.subject
        if find("ptxas") is None:
            return seconds, None
        given = tuple((subject.options | options).items())
        special = subject.kernel._specialize(subject.infos, given)
        return seconds, subject.kernel._get(special, subject.target).resources.spill_stores

    def _prediction(self) -> Prediction:
        _ = self._target
        if self.made.compiled is None:
            raise CompileError("the kernel does not compile")
        if self.subject.extents is not None:
            return self._predict({})
        found = self.made.compiled.prediction
        if found is None:
            raise CompileError("the grid is not known; give --grid")
        return found

    def _roofline(self) -> dict[str, Any]:
        from tkc.passes.plan import kernel_of
        from tkc.passes.planning.cost import Work

        target, plan, sizes = self._target, self._planned, self._sizes
        if sizes is None:
            raise CompileError("the grid is not known; give --grid")
        assert self.made.before_plan is not None  # there is a plan
        kernel = kernel_of(self.made.before_plan)  # which numbers its loads and dots
        found = performance.roofline(kernel, Work.of(kernel, sizes), plan, target, sizes)
        return {
            "operations": found.operations,
            "tensor": found.on_tensor_cores,
            "bytes": found.bytes,
            "bound": found.bound,
            "roofs": [[roof.name, roof.rate, roof.is_memory] for roof in found.roofs],
        }

    def _measured(self) -> float | None:
        if not self.measure:
            raise Error("not asked for")
        if self.made.compiled is None:
            raise Error("the kernel does not compile")
        return measured.seconds(self.subject)

    def _launch(self) -> dict[str, Any] | None:
        compiled = self.made.compiled
        interface = compiled.interface if compiled else None
        if compiled is None or interface is None:
            return None
        found: dict[str, Any] = {
            "threads": interface.threads,
            "shared": interface.shared_bytes,
            "most": self._target.shared_bytes,
            "cluster": interface.cluster,
            "persistent": interface.persistent,
            "parameters": [f"{p.kind} {p.type}".strip() for p in interface.parameters],
        }
        assembled = self._part("resources", lambda: compiled.resources)
        if assembled is not None:
            found |= {
                "registers": assembled.registers,
                "granted": max(assembled.registers, *(self._planned.registers or (0,))),
                "spills": [assembled.spill_stores, assembled.spill_loads],
                "stack": assembled.stack,
                "barriers": assembled.barriers,
                "remarks": list(assembled.notes),
            }
        return found

    # ---- what memory and registers hold
    def _memory(self) -> dict[str, Any]:
        target, final = self._target, self.made.final
        interface = self.made.compiled.interface if self.made.compiled else None
        total = interface.shared_bytes if interface else 0
        found = memory.buffers(final, total) if final is not None else []
        if final is None or not found:
            raise CompileError("the kernel has no buffers in shared memory")
        number = self.sources.number
        return {
            "most": target.shared_bytes,
            "length": memory.length(final),
            "buffers": [
                {
                    **{
                        name: getattr(b, name)
                        for name in ("name", "what", "offset", "bytes", "stages", "begin", "end")
                    },
                    "uses": [[use.operation, number(use.place)] for use in b.uses],
                    "source": number(b.place),
                }
                for b in found
            ],
        }

    def _layouts(self) -> dict[str, Any]:
        _, final, number = self._target, self.made.final, self.sources.number
        if final is None:
            raise CompileError("the kernel does not compile")
        return {
            "registers": [
                {
                    "tile": one.tile,
                    "text": str(one.layout),
                    "shape": one.layout.shape,
                    **{
                        section: [
                            [d.extent, d.axis, d.stride] for d in getattr(one.layout, section)
                        ]
                        for section in ("registers", "lanes", "warps", "blocks")
                    },
                    "values": one.values,
                    "operations": one.operations,
                    "sources": [number(place) for place in one.places],
                }
                for one in memory.register_layouts(final)
            ],
            "shared": [
                {
                    "tile": tile,
                    "text": str(layout),
                    "bits": layout.bits,
                    "fast": layout.fast,
                    "banks": memory.banks(layout).tolist(),
                }
                for tile, layout in memory.shared_layouts(final)
            ],
            "accesses": [
                {
                    **{
                        name: getattr(access, name)
                        for name in (
                            "operation",
                            "tile",
                            "registers",
                            "memory",
                            "degree",
                            "instruction",
                            "lanes",
                        )
                    },
                    "sources": [number(place) for place in access.places],
                }
                for access in memory.accesses(final)
            ],
        }

    def _registers(self) -> dict[str, Any]:
        _, final, compiled = self._target, self.made.final, self.made.compiled
        if final is None:
            raise CompileError("the kernel does not compile")
        found: dict[str, Any] = {
            "tiles": [
                [t.name, t.registers, t.begin, t.end, t.maker, t.last_user]
                + [self.sources.number(t.place)]
                for t in registers.tiles(final)
            ],
            "length": memory.length(final),
            "machine": None,
        }
        if compiled is not None:
            lives = self._part("lives", partial(_lives, compiled))
            if lives is not None:
                found["machine"] = {"live": lives.live, "stretches": lives.stretches}
        return found


# --------------------------------------------------------------------------------------------------
def _version() -> str:
    try:
        return version("tkc")
    except PackageNotFoundError:
        return ""


def _machine_code(compiled: Compiled) -> Listing:
    """Assembled once more with line information, which changes no instruction."""
    from tkc.codegen.ptx.ptxas import assemble, disassemble

    _ = compiled.resources  # whose text may spill less
    cubin = assemble(compiled.ptx or "", compiled.target, "-lineinfo").cubin
    return of_sass(disassemble(cubin, "-g"))


def _lives(compiled: Compiled) -> registers.Lives:
    return registers.lives(compiled.resources.cubin)


def _timeline(prediction: Prediction) -> dict[str, Any]:
    line = prediction.timeline
    names: dict[str, int] = {}
    segments = [s for s in line.segments if s.end > s.begin][:MAX_SEGMENTS]
    agents = {name: i for i, name in enumerate(line.agents)}
    return {
        "agents": line.agents,
        "engines": ENGINES,
        "segments": [
            [
                agents[s.agent],
                ENGINES.index(s.engine),
                names.setdefault(s.what, len(names)),
                round(s.begin, 1),
                round(s.end, 1),
                [[ENGINES.index(e), round(c, 1)] for e, c in s.clocks if c > 0],
            ]
            for s in segments
        ],
        "names": list(names),
        "steady": line.steady,
        "starts": line.starts,
        "end": line.end,
        "shares": list(line.shares().items()),
        "cut": len(segments) < sum(s.end > s.begin for s in line.segments),
    }


def _predicted(prediction: Prediction) -> dict[str, Any]:
    names = ("seconds", "clocks", "clock", "step", "fixed", "programs", "rounds", "memory")
    return {
        **{name: getattr(prediction, name) for name in (*names, "tensor")},
        "limit": prediction.limit,
    }
