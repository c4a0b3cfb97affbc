"""What the compiler chose, and what it could have chosen: the plan, how each dot and load is done,
and every legal plan with its cost by the model.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tkc.errors import Error
from tkc.ir.plan import DotPlan, LoadPlan
from tkc.tools.explain.listing import Place

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Operation, SSAValue

    from tkc.ir.plan import Plan
    from tkc.ir.target import Target
    from tkc.passes import LaunchOptions
    from tkc.passes.planning.cost import Cost
    from tkc.passes.planning.numbers import Sizes

MAX_COMPILED = 6  # plans that are compiled for their timeline and their spills
MAX_SECONDS = 20.0  # that this may take
_PLACE = re.compile(r"(?:, at|,? at| \() ?(/[^:()]+):(\d+):\d+\)?")


@dataclass(frozen=True)
class Decision:
    """A sentence of a pass about what it chose, and the line it speaks of, if it names one."""

    step: str
    text: str
    place: Place | None


@dataclass(frozen=True)
class Part:
    """How one dot or load is done. what: of its kind, with its number; fields: (name, value)."""

    what: str
    operation: str
    place: Place | None
    fields: tuple[tuple[str, str], ...]


@dataclass
class Candidate:
    """A legal plan. cost: the model's; predicted: seconds by the timeline, None where it was not
    asked or `refused` says why it has none; spills: bytes that ptxas spills, None where it was not
    asked.
    """

    plan: Plan
    keywords: dict[str, Any]
    forcing: dict[str, Any]
    cost: Cost
    chosen: bool
    predicted: float | None = None
    spills: int | None = None
    refused: str = ""


def decisions(sentences: Sequence[str]) -> list[Decision]:
    """The sentences of `Compiled.decisions`, apart by pass."""
    found = []
    for sentence in sentences:
        step, colon, text = sentence.partition(": ")
        if not colon or " " in step:
            step, text = "", sentence
        place = _PLACE.search(text)
        bare = _PLACE.sub("", text, count=1)
        found.append(Decision(step, bare, (place[1], int(place[2])) if place else None))
    return found


def parts(before_plan: ModuleOp, plan: Plan) -> list[Part]:
    """How each dot and load of the program that was planned is done."""
    from tkc.passes.plan import Program, kernel_of

    program = Program.of(kernel_of(before_plan))
    kinds: tuple[tuple[str, Sequence[Operation], Sequence[DotPlan | LoadPlan]], ...] = (
        ("dot", program.dots, plan.dots),
        ("load", program.loads, plan.loads),
    )
    return [
        Part(f"{kind} {i}", _text_of(op), _place_of(op), _fields_of(choice))
        for kind, operations, chosen in kinds
        for i, (op, choice) in enumerate(zip(operations, chosen, strict=False))
    ]


def _fields_of(choice: DotPlan | LoadPlan) -> tuple[tuple[str, str], ...]:
    """How it is done, and what else is not as usual."""
    first = "path" if isinstance(choice, LoadPlan) else "instruction"
    return tuple(
        (f.name, _spelled(value))
        for f in fields(choice)
        if (value := getattr(choice, f.name)) != f.default or f.name == first
    )


def _spelled(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _text_of(op: Operation) -> str:
    """The types of what a load gives, or of a dot's operands and result."""
    from tkc.ir.tile import Dot
    from tkc.ir.types import TileType

    def shapes(values: Sequence[SSAValue]) -> str:
        types = [v.type for v in values if isinstance(v.type, TileType)]
        return " · ".join(f"{'x'.join(map(str, t.extents))}x{t.element}" for t in types)

    taken = op.operands[:2] if isinstance(op, Dot) else ()
    arrow = " → " if taken else ""
    return f"{shapes(taken)}{arrow}{shapes(op.results)}"


def _place_of(op: Operation) -> Place | None:
    from tkc.ir.text import location_of

    location = location_of(op)
    return (location.file, location.line) if location else None


def changed_fields(plan: Plan) -> list[tuple[str, str, bool]]:
    """The fields of a plan, but for its parts: name, value, and whether it is not the default."""
    standard = type(plan)()
    left_out = ("dots", "loads", "decisions", "spare")
    return [
        (name, _spelled(value), value != getattr(standard, name))
        for name, value in vars(plan).items()
        if name not in left_out
    ]


# --------------------------------------------------------------------------------------------------
def candidates(
    before_plan: ModuleOp,
    plan: Plan,
    target: Target,
    options: LaunchOptions,
    sizes: Sizes | None,
) -> list[Candidate]:
    """The plans that the compiler weighs for these options, and the one it took, the cheapest
    first. Raises tkc.Error where there are none.
    """
    from tkc.passes import PassContext
    from tkc.passes.plan import candidates as planned
    from tkc.passes.plan import forcing, kernel_of, keywords
    from tkc.passes.planning.cost import Work, cost

    found = planned(before_plan.clone(), PassContext(target, options), sizes)
    if plan not in found:
        found.append(plan)
    work = Work.of(kernel_of(before_plan), sizes)
    made = [Candidate(p, keywords(p), forcing(p), cost(work, p, target), p == plan) for p in found]
    return sorted(made, key=lambda candidate: candidate.cost.seconds)


def differing(found: Sequence[Candidate]) -> list[str]:
    """The options of a launch that force one of these plans or another."""
    forced = dict.fromkeys(name for candidate in found for name in candidate.forcing)
    return [
        name
        for name in dict.fromkeys(("roles", *forced))
        if len({_spelled(candidate.keywords[name]) for candidate in found}) > 1
    ]


def compile_some(
    found: Sequence[Candidate], compiled: Callable[[dict[str, Any]], tuple[float, int | None]]
) -> None:
    """Asks for the time by the timeline, and the spills, of the chosen plan and the cheapest
    others, those of different warps and roles first. compiled: of the options that force a plan;
    what it raises is written down.
    """
    began = time.perf_counter()
    for candidate in _worth_compiling(found)[:MAX_COMPILED]:
        if time.perf_counter() - began > MAX_SECONDS:
            candidate.refused = "not asked: there was no time left"
            continue
        try:
            candidate.predicted, candidate.spills = compiled(
                {} if candidate.chosen else candidate.forcing
            )
        except Error as error:
            candidate.refused = str(error).splitlines()[0]


def _worth_compiling(found: Sequence[Candidate]) -> list[Candidate]:
    """The chosen one; then of each number of warps and kind of roles the cheapest, by cost; then
    the rest.
    """
    seen: set[tuple] = set()

    def rank(candidate: Candidate) -> int:
        kind = candidate.plan.warps, candidate.plan.roles, candidate.plan.programs
        is_first = kind not in seen
        seen.add(kind)
        return 1 - is_first

    chosen = [candidate for candidate in found if candidate.chosen]
    seen.update((c.plan.warps, c.plan.roles, c.plan.programs) for c in chosen)
    others = [candidate for candidate in found if not candidate.chosen]
    return [*chosen, *sorted(others, key=rank)]
