"""What a simulation in time keeps of a block: its agents, barriers and what its threads share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tkc.timing import demands

Number = int | None  # None where it is not known
ROUNDING = 1e-6  # of clocks


@dataclass
class VectorWork:
    """Vector work under way: the part left, what it asks of the pipes, and when it began."""

    left: float
    demand: demands.Demand
    begin: float

    def __post_init__(self) -> None:
        self.alone = self.demand.alone  # clocks it takes where nothing else runs
        # of these, the part that each pipe is at work, and that instructions are issued
        given = *self.demand.pipes.items(), ("issue", self.demand.issue)
        self.loads = [(pipe, clocks / self.alone) for pipe, clocks in given]


@dataclass
class Wait:
    """is_over: whether what is waited for is there. left: clocks of the agent's own dots that may
    be left, where it waits for these. since: when it began, where its end is not known ahead.
    """

    is_over: Callable[[], bool]
    label: str
    left: float | None = None
    since: float | None = None


class Agent:
    """A warpgroup of a role's instance, or the one thread of a producer."""

    def __init__(
        self,
        name: str,
        group: int,
        groups: int,
        warps: int,
        env: dict,
        state: BlockState,
        who: tuple,
        single: bool = False,
    ):
        self.name = name
        self.group = group
        self.groups = groups
        self.warps = warps
        self.env = env
        self.state = state
        self.who = who
        self.single = single
        self.queue: list[list] = []  # dots: [clocks left, what, when it began, its place among all]
        self.in_flight: list[int] = []  # dots of the groups committed and of the one open
        self.bulk: list[float] = []  # when the groups of copies out have read their buffers
        self.sending = 0.0
        self.waits: Wait | None = None
        self.work: VectorWork | None = None
        self.asks: Iterator | None = None
        self.marks: list[float] = []
        self.ran: list[dict] = []

    def queued(self) -> float:
        """Clocks of the tensor cores for the dots that are issued."""
        return sum(job[0] for job in self.queue)

    def has_drained(self, left: float) -> bool:
        """Whether no more than so many clocks of its dots are left."""
        return self.queued() <= left + ROUNDING

    @property
    def is_ready(self) -> bool:
        """Whether what it waits for is there."""
        return self.waits is not None and self.waits.is_over()


class Mbarrier:
    """Arrivals and bytes of the current phase."""

    def __init__(self, count: int):
        self.count, self.left, self.bytes, self.phase = count, count, 0, 0

    def arrive(self, n: int) -> None:
        self.left -= n
        self._turn()

    def expect(self, size: int) -> None:
        self.bytes += size
        self.arrive(1)

    def land(self, size: int) -> None:
        self.bytes -= size
        self._turn()

    def _turn(self) -> None:
        if self.left <= 0 and self.bytes <= 0:
            self.left, self.phase = self.left + self.count, self.phase + 1


class BlockState:
    """What the agents of a block have in common."""

    def __init__(self) -> None:
        self.barriers: dict[SSAValue, list[Mbarrier]] = {}
        self.named: dict[object, Mbarrier] = {}
        self.turns: dict[tuple, int] = {}
        self.boxes: dict[SSAValue, list[Number]] = {}
        self.left_out: dict[int, int] = {}  # of each program's loops, by the producer: iterations
