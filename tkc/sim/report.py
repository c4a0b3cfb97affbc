"""What the happens-before check found."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation

from tkc.errors import Location
from tkc.ir.text import location_of
from tkc.sim.errors import AssertionFailed, OffsetOverflow, OutOfBounds, SimulationError

KINDS = {
    "race": "two accesses, one a write, with nothing between them that orders them",
    "missing proxy fence": "as a race, but a fence.proxy.async would order them",
    "uninitialized": "shared memory is read that nobody wrote",
    "deadlock": "nobody can go on",
    "lapped": "a phase of an mbarrier can end before somebody saw the end of the one before",
    "ambiguous": "a wait that an earlier phase of the same parity could let pass",
    "arrivals": "more arrivals than a barrier takes, or a different number of threads",
    "bytes": "the byte count of an mbarrier leaves its range",
    "barrier": (
        "an mbarrier is used before its initialisation is visible, twice initialised, or"
        " overwritten"
    ),
    "not waited": "an accumulator or a group is used before the wait that delivers it",
    "missing dot fence": "registers of an asynchronous dot without a fence before it",
    "pending at exit": "a block ends with copies or dots in flight",
    "bounds": "memory, a stage or a block of the cluster that does not exist",
    "order": "a program whose result depends on which block runs first",
    "in flight": "registers that an asynchronous dot is still adding to are used",
    "conflicts": "bank conflicts other than the compiler claims",
    "wrap": "an offset that its integer type cannot hold",
    "assertion": "an assertion or a promise that does not hold",
    "not begun": "shared memory of a block is written that may not have begun",
    "counter at exit": (
        "programs are claimed that are not there, so that the next launch would begin with"
        " another one"
    ),
    "meaning": "an operation that has no meaning here",
    "alignment": "an address, or a place in an array, that the hardware refuses",
}


@dataclass(frozen=True)
class Report:
    """One finding: its kind (a key of KINDS), a sentence, the agents in question and the user's
    source line.
    """

    kind: str
    message: str
    agents: tuple[str, ...] = ()
    location: Location | None = None

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}{self.kind}: {self.message}"


class Violation(SimulationError):
    """The program broke a rule of threads; `report` says which."""

    def __init__(
        self,
        kind: str,
        message: str,
        operation: Operation | None = None,
        agents: tuple[str, ...] = (),
    ):
        super().__init__(f"{kind}: {message}", operation)
        self.kind, self.agents = kind, agents

    @property
    def report(self) -> Report:
        return Report(
            self.kind,
            _with_agent(self.message.removeprefix(f"{self.kind}: "), self.agents),
            self.agents,
            self.location,
        )


def _with_agent(message: str, agents: tuple[str, ...]) -> str:
    """The sentence, with the first agent before it where it names none."""
    named = not agents or any(a.partition(" (")[0] in message for a in agents)
    return message if named else f"{agents[0]}: {message}"


def name_of(op: Operation | None) -> str:
    """An operation for a sentence: its name and line."""
    if op is None:
        return "an earlier operation"
    place = location_of(op)
    return f"'{op.name}'" + (f" at {place}" if place else "")


def report_of(error: SimulationError) -> Report:
    """Whatever ended a run, as a finding."""
    if isinstance(error, Violation):
        return error.report
    kinds = {OutOfBounds: "bounds", OffsetOverflow: "wrap", AssertionFailed: "assertion"}
    return Report(
        kinds.get(type(error), "meaning"),
        _with_agent(error.message, error.agents),
        error.agents,
        error.location,
    )
