"""When each warpgroup of a compiled program uses which engine: level 4 executed in time, not in
values.

    warpgroup 0    |turn|dots ========|wait|exp2 sum ----------|vote|turn|dots …
    warpgroup 1    exp2 sum -----|vote|    |turn|dots =========|wait|exp2 …

Each warpgroup of a role is an agent that walks the role's operations in order; the producer's
thread is one too. Scalars that steer (stages, parities, bounds, trip counts) are computed; tiles
are not. What takes time:

  vector work   operations on tiles between two synchronizations, as demands.py counts them. Agents
                share every pipe of the multiprocessor: each proceeds at the rate at which no pipe
                has more to do than there is time; `crowding` times slower while tensor cores run
  dots          the tensor cores execute them in the order of issue, over all agents. A warpgroup
                issues on until `lead` clocks of its own are left
  copies        one after the other at the rate of the L2 cache; they arrive `copy` clocks later:
                mbarriers count bytes and arrivals as the hardware does
  waits         full and empty stages, turns, barriers, epilogue stores

A loop of many iterations is run for a few: so many fewer that every ring ends in the stage and
parity in which it would have. `Timeline.periods` has the clocks of an iteration. Co-resident
programs have loops of different trip counts: all leave out as many iterations as the producer's
loop for the tile group.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from heapq import heappop, heappush
from itertools import count, pairwise
from math import ceil, lcm, prod
from statistics import median

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.errors import CompileError
from tkc.ir import threads, tile
from tkc.ir.elementwise import Cast, Elementwise, Select
from tkc.ir.target import Target
from tkc.ir.types import BarriersType
from tkc.ir.values import holds, operations_in, type_of, yielded_by
from tkc.passes.analysis.scalars import computed
from tkc.passes.planning.numbers import Numbers, Sizes
from tkc.timing import demands
from tkc.timing.agents import ROUNDING, Agent, BlockState, Mbarrier, Number, VectorWork, Wait
from tkc.timing.operations import timed
from tkc.timing.steps import Scalar, Step, steering, steps_of
from tkc.timing.timeline import Segment, Timeline

MIN_ITERATIONS_RUN = 10  # of a long loop
ASSUMED_TRIPS = 16  # of a loop whose trip count is not known
MAX_EVENTS = 400_000  # of a run
MIN_WORK = 1e-9  # a part of vector work that is left by rounding
ASSUMED_EXTENT = 4096  # of an array, and programs along an axis, where there is no launch


def cluster_size(kernel: tile.Kernel) -> int:
    """Blocks of a kernel's cluster, whatever its shape is in programs; 1 without one."""
    return prod(kernel.cluster)


class MultiprocessorSimulation:
    """One multiprocessor. `run` stops when every consumer has done its first programs."""

    def __init__(
        self,
        kernel: tile.Kernel,
        target: Target,
        sizes: Sizes | None,
        resident: int = 1,
        programs: int = 4,
    ):
        self.kernel, self.target, self.e, self.sizes = kernel, target, target.engines, sizes
        self.now = 0.0
        self.fabric = 0.0  # when the copies issued so far have left the L2 cache
        self.tick: Iterator[int] = count()
        self.programs = programs
        self.resident = resident
        self.later: list[tuple] = []
        self.agents: list[Agent] = []
        self.laps: dict[tuple[Operation, str], list[float]] = {}
        self.segments: list[Segment] = []
        self.numbers = Numbers(kernel, sizes)
        self.needed = steering(kernel)
        self.plans: dict[tuple[Block, int], list[Step]] = {}
        self.cluster = cluster_size(kernel) if "spread" not in kernel.attributes else 1
        self.blocks = max(1, target.clustered(self.cluster) // self.cluster)
        stages = {op.stages.value.data for op in operations_in(kernel, threads.RingNext)}
        self.turnover = lcm(*(2 * s for s in stages)) if stages else 1
        self.persistent = "persistent" in kernel.attributes
        self.members = kernel.integer("members", 1)
        for block in range(resident):
            self._block(block)

    # ---- agents
    def _block(self, block: int) -> None:
        """The agents of a block."""
        state = BlockState()
        env: dict = {"block": block * self.blocks}
        body = self.kernel.body.block
        for init in (op for op in body.ops if isinstance(op, threads.MbarrierInit)):
            state.barriers[init.barriers] = [
                Mbarrier(init.count.value.data)
                for _ in range(type_of(init.barriers, BarriersType).stages)
            ]
        roles = next((op for op in body.ops if isinstance(op, threads.Roles)), None)
        if roles is None:
            self._agents_of_one_role(block, body, env, state)
            return
        for op in body.ops:
            if op is not roles:
                self._scalar(op, env)
        for role in roles.body.block.ops:
            self._agents_of_role(role, env, state)

    def _agents_of_one_role(self, block: int, body: Block, env: dict, state: BlockState) -> None:
        warps = self.kernel.integer("warps", 4)
        groups = max(1, warps // 4)
        for g in range(groups):
            name = f"block {block} warpgroup {g}" if self.resident > 1 else f"warpgroup {g}"
            self._agent(name, body, g, groups, warps, dict(env), state)

    def _agents_of_role(self, role: threads.Role, env: dict, state: BlockState) -> None:
        name, warps = role.sym_name.data, role.warps.value.data
        groups = 1 if role.single else max(1, warps // 4)
        for who in range(role.instances):
            for g in range(groups):
                self._agent(
                    name if role.single else f"{name} {who * groups + g}",
                    role.body.block,
                    g,
                    groups,
                    warps,
                    dict(env) | {role.instance: who},
                    state,
                    role.single is not None,
                    who,
                )

    def _agent(
        self,
        name: str,
        block: Block,
        group: int,
        groups: int,
        warps: int,
        env: dict,
        state: BlockState,
        single: bool = False,
        who: int = 0,
    ) -> None:
        agent = Agent(name, group, groups, warps, env, state, (block, who), single)
        agent.asks = self._walk(block, agent)
        self.agents.append(agent)
        if not self.persistent:
            self._begin(agent)  # its only program

    # ---- scalars
    def _scalar(self, op: Operation, env: dict) -> None:
        """Computes a scalar operation's results, None where they are not known."""

        def get(v: SSAValue) -> Number:
            if v in env:
                return env[v]
            known = self.numbers.arguments.get(v)
            return known if isinstance(known, int) else None

        match op:
            case threads.Identity():
                found = [
                    {
                        "cluster": env["block"],
                        "block": env["block"] * self.cluster,
                        "clusters": self.blocks,
                        "blocks": self.blocks * self.cluster,
                        "cluster_rank": 0,
                    }.get(op.what.data)
                ]
            case tile.ProgramId():
                found = [env["block"] if op.axis.value.data == 0 else 0]
            case tile.NumPrograms():
                found = [self.sizes.grid[op.axis.value.data] if self.sizes else ASSUMED_EXTENT]
            case tile.Dim():
                found = [self.numbers.extent(op) if self.sizes else ASSUMED_EXTENT]
            case threads.RingNext():
                stage, parity, n, steps = (
                    get(op.stage),
                    get(op.parity),
                    op.stages.value.data,
                    1 if op.steps is None else get(op.steps),
                )
                if stage is None or parity is None or steps is None:
                    raise CompileError("the timeline of this program depends on what it computes")
                found = [(stage + steps) % n, parity ^ (((stage + steps) // n) & 1)]
            case tile.Constant() | Cast() | tile.Multiple() | Select() | Elementwise():
                found = [computed(op, get)]
            case _:
                known = self.numbers.arguments
                found = [known.get(r) for r in op.results]
        env.update(zip(op.results, found, strict=False))

    def value(self, agent: Agent, value: SSAValue) -> int | None:
        if value in agent.env:
            return agent.env[value]
        known = self.numbers.arguments.get(value)
        return known if isinstance(known, int) else None

    # ---- what agents do
    def _steps(self, block: Block, warps: int) -> list[Step]:
        key = block, warps
        if key not in self.plans:
            self.plans[key] = steps_of(block, self.needed, self.e, warps)
        return self.plans[key]

    def _walk(
        self, block: Block, agent: Agent, deep: int = 0
    ) -> Generator[tuple, None, list[Number]]:
        """Yields what the agent requests; returns the values of the block's last operation."""
        for what in self._steps(block, agent.warps):
            if isinstance(what, demands.Demand):
                yield "work", what
            elif isinstance(what, Scalar):
                self._scalar(what.op, agent.env)
            elif isinstance(what, scf.YieldOp):
                return [self.value(agent, v) for v in what.operands]
            elif isinstance(what, scf.IfOp):
                yield from self._branch(what, agent, deep)
            elif isinstance(what, scf.ForOp):
                yield from self._for(what, agent, deep)
            elif isinstance(what, scf.WhileOp):
                yield from self._while(what, agent, deep)
            else:
                yield from timed(what, self, agent)
        return []

    def _branch(self, op: scf.IfOp, agent: Agent, deep: int) -> Iterator:
        """A branch by known numbers; one by votes takes the side that is there for the usual case,
        the first.
        """
        known = self.value(agent, op.cond)
        if isinstance(op.cond.owner, threads.Vote):
            yield "delay", self.e.turn, "branch"
        region = op.true_region if known is None or known else op.false_region
        values: list[Number] = []
        if region.blocks:
            values = yield from self._walk(region.block, agent, deep + 1)
        agent.env.update(zip(op.results, values, strict=False))

    def _for(self, op: scf.ForOp, agent: Agent, deep: int) -> Iterator:
        low, high, step = (self.value(agent, v) for v in (op.lb, op.ub, op.step))
        trips = ASSUMED_TRIPS
        if low is not None and high is not None and step:
            trips = max(0, ceil((high - low) / step))
        is_outer = deep == 0 and self.persistent
        run = trips
        if not is_outer:
            run = yield from self._trips_run(op, trips, agent)
        values = [self.value(agent, v) for v in op.iter_args]
        laps = self.laps.setdefault((op, agent.name), [])
        args = op.body.block.args
        for i in [*range(run - 2), *range(trips - min(run, 2), trips)]:  # the first and the last
            agent.env[args[0]] = (low or 0) + i * (step or 1)
            agent.env.update(zip(args[1:], values, strict=False))
            if not is_outer:
                laps.append(self.now)
            elif not self._begins_another(agent):
                break
            values = yield from self._walk(op.body.block, agent, deep + 1)
        if not is_outer:
            laps.append(-1.0)
        agent.env.update(zip(op.results, values, strict=False))

    def _trips_run(self, op: scf.ForOp, trips: int, agent: Agent) -> Generator[tuple, None, int]:
        """Iterations of a loop of a program that are run; counts them, and the real ones."""
        if self.members > 1 and not agent.single and trips > 2 + self.turnover:
            number = len(agent.ran)
            yield "until", (lambda: number in agent.state.left_out), "full"
        run = trips - self._left_out(trips, agent)
        if agent.ran:
            before = agent.ran[-1].get(op, (0, 0))
            agent.ran[-1][op] = before[0] + run, before[1] + trips
        return run

    def _begins_another(self, agent: Agent) -> bool:
        """Begins an agent's next program; whether it takes one more."""
        if not agent.single and len(agent.marks) > self.programs:
            return False
        self._begin(agent)
        return True

    def _left_out(self, trips: int, agent: Agent) -> int:
        """Iterations of a loop that are not run."""

        def many(least: int) -> int:
            return max(0, (trips - least) // self.turnover * self.turnover)

        if self.members == 1:
            return many(MIN_ITERATIONS_RUN)
        of_tile_group, number = agent.state.left_out, len(agent.ran)
        if agent.single:
            of_tile_group[number] = of_tile_group.get(number, 0) + (
                some := many(MIN_ITERATIONS_RUN)
            )
        else:
            some = min(
                many(2), of_tile_group.get(number, 0) - agent.env.get(("left out", number), 0)
            )
            agent.env["left out", number] = agent.env.get(("left out", number), 0) + some
        return some

    def _while(self, op: scf.WhileOp, agent: Agent, deep: int) -> Iterator:
        values = [self.value(agent, v) for v in op.arguments]
        outer = deep == 0 and self.persistent
        for _ in count() if outer else range(4):
            test = op.before_region.block
            agent.env.update(zip(test.args, values, strict=False))
            for inner in test.ops:
                if any(r in self.needed for r in inner.results):
                    self._scalar(inner, agent.env)
            condition, *passed = (self.value(agent, v) for v in yielded_by(test))
            values = passed
            if condition is not None and not condition:
                break
            if outer and not self._begins_another(agent):
                break
            agent.env.update(zip(op.after_region.block.args, values, strict=False))
            values = yield from self._walk(op.after_region.block, agent, deep + 1)
        agent.env.update(zip(op.results, values, strict=False))

    def _begin(self, agent: Agent) -> None:
        agent.marks.append(self.now)
        agent.ran.append({})

    # ---- time
    def at(self, when: float, what: Callable) -> None:
        """Calls `what` at a time, in clocks from the block's start."""
        heappush(self.later, (when, next(self.tick), what))

    def copy(self, size: int) -> float:
        """A copy of so many bytes behind those issued so far; when it begins."""
        begin = max(self.now, self.fabric)
        self.fabric = begin + size / self.e.fabric
        return begin

    def run(self) -> Timeline:
        """Runs until every consumer has done its first programs. Raises CompileError where time
        depends on what the program computes, or the program does not end.
        """
        for a in self.agents:
            self._go(a)
        consumers = self._consumers()
        for _ in range(MAX_EVENTS):
            self._wake()
            if all(self._is_done(a) for a in consumers):
                break
            if not self._advance():
                waiting = ", ".join(
                    f"{a.name} waits for {a.waits.label if a.waits else 'nothing'}"
                    for a in self.agents
                    if a.asks is not None
                )
                raise CompileError(f"the timeline of this program does not end: {waiting}")
        return self._timeline(consumers)

    def _consumers(self) -> list[Agent]:
        """The agents with dots, if there are any: others make their operands."""
        working = [a for a in self.agents if not a.single]
        with_dots = [a for a in working if holds(a.who[0], (threads.DotAsync, tile.Dot))]
        return with_dots or working

    def _is_done(self, a: Agent) -> bool:
        return a.asks is None or self.persistent and len(a.marks) > self.programs

    def _wake(self) -> None:
        """Lets agents run whose waits are over, until there are none."""
        while any(a.is_ready for a in self.agents):
            for a in self.agents:
                if a.is_ready:
                    a.waits = None
                    self._go(a)

    def _go(self, a: Agent) -> None:
        """Lets an agent run until it requests time."""
        while a.asks is not None and a.waits is None and a.work is None:
            try:
                request = next(a.asks)
            except StopIteration:
                a.asks = None
                return
            self._take(a, *request)

    def _take(self, a: Agent, kind: str, what, label: str = "") -> None:
        """What an agent requests (operations.py)."""
        if kind == "work":
            a.work = VectorWork(1.0, what, self.now)
        elif kind == "delay":
            if what > 0:
                self._delay(a, what, label)
        elif kind == "until":
            if not what():
                a.waits = Wait(what, label, since=self.now)
        elif not a.has_drained(what):
            a.waits = Wait(lambda: a.has_drained(what), label, left=what, since=self.now)

    def _delay(self, a: Agent, clocks: float, label: str) -> None:
        passed: list[bool] = []
        self.at(self.now + clocks, lambda: passed.append(True))
        a.waits = Wait(lambda: bool(passed), label)
        if not a.single:
            self.segments.append(Segment(a.name, "wait", label, self.now, self.now + clocks))

    def _advance(self) -> bool:
        """To the next event. False if there is none."""
        dots = min((a for a in self.agents if a.queue), key=lambda a: a.queue[0][3], default=None)
        if dots is not None and dots.queue[0][2] is None:
            dots.queue[0][2] = self.now
        working = [(a, a.work) for a in self.agents if a.work]
        speed = self._speed([work for _, work in working], dots is not None)
        steps = [work.left * work.alone / speed for _, work in working]
        if dots is not None:
            steps += _steps_of_dots(dots)
        if self.later:
            steps.append(self.later[0][0] - self.now)
        if not steps:
            return False
        step = max(0.0, min(steps))
        self.now += step
        if dots is not None:
            self._pass_dots(dots, step)
        while self.later and self.later[0][0] <= self.now + ROUNDING:
            heappop(self.later)[2]()
        self._pass_work(working, step * speed)
        self._note_waits()
        return True

    def _speed(self, working: list[VectorWork], with_dots: bool) -> float:
        """Of vector work, relative to that of one agent alone: no pipe has more to do than there
        is time.
        """
        if not working:
            return 1.0
        load: dict[str, float] = {}
        for work in working:
            for pipe, part in work.loads:
                load[pipe] = load.get(pipe, 0.0) + part
        return 1 / max(1.0, *load.values()) / (self.e.crowding if with_dots else 1.0)

    def _pass_dots(self, a: Agent, step: float) -> None:
        """Clocks of the tensor cores for an agent's first dot, which may end it."""
        a.queue[0][0] -= step
        if a.queue[0][0] <= ROUNDING:
            _, what, begin, _ = a.queue.pop(0)
            clocks = (("tensor", self.now - begin),)
            self.segments.append(Segment(a.name, "tensor", what, begin, self.now, clocks))

    def _pass_work(self, working: list[tuple[Agent, VectorWork]], clocks: float) -> None:
        """So many clocks of each agent's vector work, as it takes alone, of which some may end."""
        for a, work in working:
            demand = work.demand
            work.left -= clocks / work.alone
            if work.left <= MIN_WORK:
                parts = (*demand.pipes.items(), ("issue", demand.issue))
                self.segments.append(
                    Segment(a.name, demand.busiest, demand.what, work.begin, self.now, parts)
                )
                a.work = None
                self._go(a)

    def _note_waits(self) -> None:
        """The segments of waits that are over."""
        for a in self.agents:
            wait = a.waits
            if wait is None or wait.since is None or a.single or self.now <= wait.since:
                continue
            if wait.is_over():
                self.segments.append(Segment(a.name, "wait", wait.label, wait.since, self.now))

    # ---- what is found
    def _timeline(self, consumers: list[Agent]) -> Timeline:
        found = Timeline([a.name for a in self.agents], self.segments, end=self.now)
        # of co-resident programs the last one, whose loop ends last
        first = [
            a
            for a in consumers
            if a.group == 0 and (self.members == 1 or a.who[1] == self.members - 1)
        ]
        pairs = sorted(
            ((t, ran) for a in first for t, ran in zip(a.marks, a.ran, strict=False)),
            key=lambda p: p[0],
        )
        found.starts, found.trips = [t for t, _ in pairs], [ran for _, ran in pairs]
        self._find_periods(found, {a.name for a in consumers})
        return found

    def _find_periods(self, found: Timeline, consumers: set[str]) -> None:
        """Clocks of an iteration of each loop, and one of the loop that takes longest."""
        longest = 0.0
        for (loop, name), laps in self.laps.items():
            runs = _runs(laps)
            gaps = [b - a for run in runs for a, b in pairwise(run[2:] if len(run) > 4 else run)]
            if name not in consumers or not gaps:
                continue
            period = median(gaps)
            found.periods.setdefault(loop, period)
            long = max(runs, key=len, default=[])
            if len(long) > 4 and period * len(long) > longest:
                longest, middle = period * len(long), len(long) // 2
                found.steady = long[middle], long[middle + 1]


def _steps_of_dots(a: Agent) -> list[float]:
    """Clocks until an agent's first dot ends, and until so many are left as it waits for."""
    steps = [a.queue[0][0]]
    if a.waits and a.waits.left is not None and a.queued() > a.waits.left:
        steps.append(a.queued() - a.waits.left)
    return steps


def _runs(laps: list[float]) -> list[list[float]]:
    """When the iterations of each run of a loop began; -1 ends a run."""
    runs: list[list[float]] = [[]]
    for t in laps:
        if t >= 0:
            runs[-1].append(t)
        else:
            runs.append([])
    return runs[:-1]
