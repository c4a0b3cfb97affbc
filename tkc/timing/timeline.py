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

Two things the assembler does are done here too: a product that is only added is a multiply-add, and
a wait for dots moves up over the straight-line arithmetic before it.

A loop of many iterations is run for a few: so many fewer that every ring ends in the stage and
parity in which it would have. `Timeline.periods` has the clocks of an iteration. Co-resident
programs have loops of different trip counts: all leave out as many iterations as the producer's
loop for the tile group.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count, pairwise
from math import ceil, lcm, prod
from statistics import median

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.errors import CompileError
from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import Cast, Elementwise, Select
from tkc.ir.target import Target
from tkc.ir.types import BarriersType, SharedType, TileType, bits
from tkc.ir.values import index_of, shared_type, tile_type, type_of, yielded_by
from tkc.passes.analysis.scalars import computed
from tkc.passes.planning.cost import Numbers, Sizes
from tkc.timing import demands

MIN_ITERATIONS_RUN = 10  # of a long loop
ASSUMED_TRIPS = 16  # of a loop whose trip count is not known
MAX_EVENTS = 400_000  # of a run
ASSUMED_EXTENT = 4096  # of an array, and programs along an axis, where there is no launch
Scalar = int | None  # None where it is not known
BarrierOp = (
    threads.MbarrierWait
    | threads.MbarrierArrive
    | threads.MbarrierExpect
    | threads.Send
    | threads.TmaLoad
)
SYNCHRONIZATION = (
    threads.MbarrierWait,
    threads.MbarrierArrive,
    threads.MbarrierExpect,
    threads.TmaLoad,
    threads.Barrier,
    threads.BarrierArrive,
    threads.RingNext,
    threads.NextProgram,
)


@dataclass(frozen=True)
class Segment:
    """What an agent did, in clocks from the block's start: `engine` is the busiest ("tensor",
    "fma", "alu", "mufu", "lsu", "shared", "copy"), or "wait"; `clocks` of each that it used.
    """

    agent: str
    engine: str
    what: str
    begin: float
    end: float
    clocks: tuple[tuple[str, float], ...] = ()


@dataclass
class Timeline:
    """What a multiprocessor did for the first programs of its blocks.

    starts: when each program began (of every instance of the consumers, sorted); trips: of each of
    these programs, iterations of each loop as run, and the real ones; periods: clocks of an
    iteration of each loop, as programs go on; steady: where an iteration of the loop that takes
    longest began and ended.
    """

    agents: list[str]
    segments: list[Segment] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    trips: list[dict[Operation, tuple[int, int]]] = field(default_factory=list)
    periods: dict[Operation, float] = field(default_factory=dict)
    steady: tuple[float, float] = (0.0, 0.0)
    end: float = 0.0

    def window(self, iterations: int = 1) -> list[Segment]:
        """The segments of so many iterations of the loop that takes longest, cut at their ends;
        clocks from the first one's start.
        """
        a, b = self.steady[0], self.steady[0] + iterations * (self.steady[1] - self.steady[0])
        return [
            Segment(
                s.agent,
                s.engine,
                s.what,
                max(s.begin, a) - a,
                min(s.end, b) - a,
                tuple(
                    (e, c * (min(s.end, b) - max(s.begin, a)) / (s.end - s.begin))
                    for e, c in s.clocks
                ),
            )
            for s in self.segments
            if s.end > a and s.begin < b and s.end > s.begin
        ]

    def shares(self) -> dict[str, float]:
        """The part of the steady iteration in which each engine is busy."""
        found: dict[str, float] = {}
        for s in self.window():
            for engine, clocks in s.clocks:
                found[engine] = found.get(engine, 0.0) + clocks / max(
                    1.0, self.steady[1] - self.steady[0]
                )
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))


@dataclass
class VectorWork:
    """Vector work under way: the part left, what it asks of the pipes, and when it began."""

    left: float
    demand: demands.Demand
    begin: float


class Agent:
    """A warpgroup of a role's instance, or the one thread of a producer."""

    def __init__(
        self,
        name: str,
        group: int,
        groups: int,
        warps: int,
        env: dict,
        state: Shared,
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
        self.flying: list[int] = []  # dots of the groups committed and of the one open
        self.bulk: list[float] = []  # when the groups of copies out have read their buffers
        self.sending = 0.0
        # (whether it is over, for what, dots that may be left, since when)
        self.waits: tuple | None = None
        self.work: VectorWork | None = None
        self.asks: Iterator | None = None
        self.marks: list[float] = []
        self.ran: list[dict] = []

    def queued(self) -> float:
        return sum(job[0] for job in self.queue)


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
        self.tick = count()
        self.programs = programs
        self.resident = resident
        self.later: list[tuple] = []
        self.agents: list[Agent] = []
        self.laps: dict[tuple[Operation, str], list[float]] = {}
        self.segments: list[Segment] = []
        self.numbers = Numbers(kernel, sizes)
        self.needed = _steering(kernel)
        self.plans: dict[tuple[Block, int], list] = {}
        self.cluster = cluster_size(kernel) if "spread" not in kernel.attributes else 1
        self.blocks = max(1, target.clustered(self.cluster) // self.cluster)
        stages = {op.stages.value.data for op in kernel.walk() if isinstance(op, threads.RingNext)}
        self.turnover = lcm(*(2 * s for s in stages)) if stages else 1
        self.persistent = "persistent" in kernel.attributes
        self.members = kernel.integer("members", 1)
        for block in range(resident):
            self._block(block)

    # ---- agents
    def _block(self, block: int) -> None:
        state = Shared()
        env: dict = {"block": block * self.blocks}
        body = self.kernel.body.block
        roles = next((op for op in body.ops if isinstance(op, threads.Roles)), None)
        for init in (op for op in body.ops if isinstance(op, threads.MbarrierInit)):
            state.barriers[init.barriers] = [
                Mbarrier(init.count.value.data)
                for _ in range(type_of(init.barriers, BarriersType).stages)
            ]
        if roles is None:
            warps = self.kernel.integer("warps", 4)
            for g in range(max(1, warps // 4)):
                self._agent(
                    f"block {block} warpgroup {g}" if self.resident > 1 else f"warpgroup {g}",
                    body,
                    g,
                    max(1, warps // 4),
                    warps,
                    dict(env),
                    state,
                )
            return
        for op in body.ops:
            if op is not roles:
                self._scalar(op, env)
        for role in roles.body.block.ops:
            name, warps, many = role.sym_name.data, role.warps.value.data, role.instances
            for who in range(many):
                groups = 1 if role.single else max(1, warps // 4)
                for g in range(groups):
                    inner = dict(env) | {role.instance: who}
                    self._agent(
                        name if role.single else f"{name} {who * groups + g}",
                        role.body.block,
                        g,
                        groups,
                        warps,
                        inner,
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
        state: Shared,
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

        def get(v: SSAValue) -> Scalar:
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

    def _value(self, agent: Agent, value: SSAValue) -> int | None:
        if value in agent.env:
            return agent.env[value]
        known = self.numbers.arguments.get(value)
        return known if isinstance(known, int) else None

    # ---- a block as steps: (kind, operation or demand)
    def _steps(self, block: Block, warps: int) -> list[tuple]:
        key = block, warps
        if key in self.plans:
            return self.plans[key]
        steps: list[tuple] = []
        run: list[Operation] = []
        straight: int | None = None  # where straight arithmetic began, if dots may be on their way

        def flush() -> None:
            if run:
                demand = demands.of(list(run), self.e, warps)
                if demand.issue:
                    steps.append(("work", demand))
                run.clear()

        for op in block.ops:
            if isinstance(op, threads.DotWait):
                flush()
                if straight is None:
                    steps.append(("op", op))
                    straight = len(steps)
                elif (
                    straight
                    and steps[straight - 1][0] == "op"
                    and isinstance(steps[straight - 1][1], threads.DotWait)
                ):
                    steps[straight - 1] = "op", op
                else:
                    steps.insert(straight, ("op", op))
                    straight += 1
            elif (
                op.regions
                and not isinstance(op, (tile.Reduce, tile.Scan))
                or isinstance(op, TIMED_OPERATIONS)
            ):
                flush()
                steps.append(("op", op))
                if isinstance(op, scf.IfOp):
                    straight = len(steps)
                elif not isinstance(op, threads.MbarrierArrive):
                    straight = None
            elif isinstance(op, scf.YieldOp):
                flush()
                steps.append(("op", op))
            elif any(r in self.needed for r in op.results):
                steps.append(("scalar", op))
            elif any(isinstance(v.type, TileType) for v in (*op.results, *op.operands)):
                run.append(op)
        flush()
        return self.plans.setdefault(key, steps)

    def _walk(
        self, block: Block, agent: Agent, deep: int = 0
    ) -> Generator[tuple, None, list[Scalar]]:
        """Yields what the agent requests; returns the values of the block's last operation."""
        for kind, what in self._steps(block, agent.warps):
            if kind == "scalar":
                self._scalar(what, agent.env)
            elif kind == "work":
                yield "work", what
            elif isinstance(what, scf.YieldOp):
                return [self._value(agent, v) for v in what.operands]
            elif isinstance(what, scf.IfOp):
                yield from self._branch(what, agent, deep)
            elif isinstance(what, scf.ForOp):
                yield from self._for(what, agent, deep)
            elif isinstance(what, scf.WhileOp):
                yield from self._while(what, agent, deep)
            else:
                yield from self._timed(what, agent)
        return []

    def _branch(self, op: scf.IfOp, agent: Agent, deep: int) -> Iterator:
        """A branch by known numbers; one by votes takes the side that is there for the usual case,
        the first.
        """
        known = self._value(agent, op.cond)
        if isinstance(op.cond.owner, threads.Vote):
            yield "delay", self.e.turn, "branch"
        region = op.true_region if known is None or known else op.false_region
        values: list[Scalar] = []
        if region.blocks:
            values = yield from self._walk(region.block, agent, deep + 1)
        agent.env.update(zip(op.results, values, strict=False))

    def _for(self, op: scf.ForOp, agent: Agent, deep: int) -> Iterator:
        low, high, step = (self._value(agent, v) for v in (op.lb, op.ub, op.step))
        trips = ASSUMED_TRIPS
        if low is not None and high is not None and step:
            trips = max(0, ceil((high - low) / step))
        outer = deep == 0 and self.persistent
        if not outer and self.members > 1 and not agent.single and trips > 2 + self.turnover:
            number = len(agent.ran)
            yield "until", (lambda: number in agent.state.left_out), "full"
        run = trips if outer else trips - self._left_out(trips, agent)
        if not outer and agent.ran:
            before = agent.ran[-1].get(op, (0, 0))
            agent.ran[-1][op] = before[0] + run, before[1] + trips
        values = [self._value(agent, v) for v in op.iter_args]
        laps = self.laps.setdefault((op, agent.name), [])
        args = op.body.block.args
        for i in [*range(run - 2), *range(trips - min(run, 2), trips)]:  # the first and the last
            agent.env[args[0]] = (low or 0) + i * (step or 1)
            agent.env.update(zip(args[1:], values, strict=False))
            if outer:
                if not agent.single and len(agent.marks) > self.programs:
                    break
                self._begin(agent)
            else:
                laps.append(self.now)
            values = yield from self._walk(op.body.block, agent, deep + 1)
        if not outer:
            laps.append(-1.0)
        agent.env.update(zip(op.results, values, strict=False))

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
        values = [self._value(agent, v) for v in op.arguments]
        outer = deep == 0 and self.persistent
        for _ in count() if outer else range(4):
            test = op.before_region.block
            agent.env.update(zip(test.args, values, strict=False))
            for inner in test.ops:
                if any(r in self.needed for r in inner.results):
                    self._scalar(inner, agent.env)
            condition, *passed = (self._value(agent, v) for v in yielded_by(test))
            values = passed
            if condition is not None and not condition:
                break
            if outer:
                if not agent.single and len(agent.marks) > self.programs:
                    break
                self._begin(agent)
            agent.env.update(zip(op.after_region.block.args, values, strict=False))
            values = yield from self._walk(op.after_region.block, agent, deep + 1)
        agent.env.update(zip(op.results, values, strict=False))

    def _begin(self, agent: Agent) -> None:
        agent.marks.append(self.now)
        agent.ran.append({})

    # ---- operations that take time or wait
    def _timed(self, op: Operation, a: Agent) -> Iterator:
        e, state = self.e, a.state
        match op:
            case threads.MbarrierWait():
                barrier, parity = (
                    state.barriers[op.barriers][self._index(op, a)],
                    self._value(a, op.parity),
                )
                yield "delay", e.wait / (4 if a.single else 1), "wait"
                yield (
                    "until",
                    (lambda: barrier.phase % 2 != parity),
                    "full" if not a.single else "empty",
                )
            case threads.MbarrierArrive():
                if op.when is not None and self._value(a, op.when) in (False, 0):
                    return
                barrier = state.barriers[op.barriers][self._index(op, a)]
                # those to whom this one arrives arrive here
                count = self._blocks_of(op.to, a)
                if op.each is not None:
                    count *= max(1, a.warps // a.groups)
                if op.of_copies:
                    self._at(max(self.now, a.sending), partial(barrier.arrive, 32 * count))
                else:
                    barrier.arrive(count)
            case threads.MbarrierExpect():
                if not a.group:
                    state.barriers[op.barriers][self._index(op, a)].expect(op.bytes.value.data)
            case threads.Send():
                # of all blocks, which do the same
                barrier, share = (
                    state.barriers[op.barriers][self._index(op, a)],
                    shared_type(op.buffer).size
                    * bits(shared_type(op.buffer).element)
                    // 8
                    // a.groups,
                )
                yield "delay", e.lsu, "send"
                if isinstance(op.value.owner, tile.Splat):
                    self._post(a, op.buffer, op.value.owner.arg)
                self._at(self.now + e.turn, lambda: barrier.land(share))
            case threads.TmaLoad():
                barrier, size = state.barriers[op.barriers][self._index(op, a)], demands.copied(op)
                total = size * self._blocks_of(op.to, a)
                begin = max(self.now, self.fabric)
                self.fabric = begin + size / self.e.fabric
                self._at(self.fabric + e.copy, lambda: barrier.land(total))
                self.segments.append(
                    Segment(
                        a.name,
                        "copy",
                        f"copy {size} bytes",
                        begin,
                        self.fabric + e.copy,
                        (("copy", size / self.e.fabric),),
                    )
                )
                yield "delay", e.lsu, "issue"
            case threads.DotAsync():
                clocks, reads = demands.tensor(op, self.target.tensor, a.groups)
                m, n = demands.result_extents(op)
                if (
                    n > 64
                    and n * bits(shared_type(op.b).element) % 1024
                    and shared_type(op.b).memory.fast == 1
                ):
                    clocks *= 1 + self.e.partial_swizzle / n**2
                yield from self._dot(
                    a,
                    clocks * self.e.slowed(reads / clocks),
                    f"dot {m}x{n}x{demands.depth_of(op)}",
                )
            case tile.Dot():
                m, n = tile_type(op.acc).extents[-2:]
                k = tile_type(op.a).extents[-1] * tile_type(op.acc).size // (m * n)
                what = f"dot {m}x{n}x{k}"
                if op.instruction is None or op.instruction.data.startswith("fma"):
                    demand = demands.Demand()
                    demand.add(
                        "fma",
                        m * n * k / (32 * a.warps),
                        m * n * k / (128 * max(1, a.groups)),
                        what,
                    )
                    yield "work", demand
                    return
                yield from self._dot(
                    a,
                    demands.synchronous(
                        m, n, k, bits(tile_type(op.a).element), self.target, a.groups
                    ),
                    what,
                )
                a.flying.append(1)
                yield "drain", 0.0, "dots"
            case threads.DotCommit():
                a.flying.append(0)
            case threads.DotWait():
                pending = op.pending.value.data
                late = sum(a.flying[-pending - 1 :]) if pending else 0
                left = (
                    sum(job[0] for job in a.queue[len(a.queue) - late :])
                    if late and late <= len(a.queue)
                    else 0.0
                    if not late
                    else a.queued()
                )
                yield "drain", left, "dots"
                yield "delay", e.result, "result"
            case threads.Turn():
                if op.what.data == "start":
                    state.turns.setdefault(a.who, 0)
                elif op.what.data == "begin":
                    yield "until", (lambda: state.turns.get(a.who, 0) == a.group), "turn"
                    yield "delay", e.turn, "turn"
                else:
                    state.turns[a.who] = (a.group + 1) % a.groups
            case threads.Barrier() | threads.BarrierArrive():
                barrier = state.named.setdefault(
                    self._value(a, op.id), Mbarrier(op.threads.value.data)
                )
                phase = barrier.phase
                barrier.arrive(32 * a.warps // a.groups)
                if isinstance(op, threads.Barrier):
                    yield "until", (lambda: barrier.phase != phase), "barrier"
                    yield "delay", e.turn, "barrier"
            case threads.BlockBarrier():
                if op.each is None and a.groups > 1:
                    barrier = state.named.setdefault(("all", a.who), Mbarrier(a.groups))
                    phase = barrier.phase
                    barrier.arrive(1)
                    yield "until", (lambda: barrier.phase != phase), "barrier"
                yield "delay", e.turn, "barrier"
            case threads.TmaStore():
                begin = max(self.now, self.fabric)
                clocks = demands.copied(op) / self.e.fabric
                self.fabric = begin + clocks
                a.sending = self.fabric + e.drain
                self.segments.append(
                    Segment(a.name, "copy", "store", begin, self.fabric, (("copy", clocks),))
                )
            case threads.BulkCommit():
                a.bulk.append(a.sending)
            case threads.BulkWait():
                pending = op.pending.value.data
                until = a.bulk[-1 - pending] if len(a.bulk) > pending else 0.0
                if until > self.now:
                    yield "delay", until - self.now, "copy out"
            case threads.CpAsync():
                size = shared_type(op.buffer).bytes // a.groups
                demand = demands.Demand()
                demand.add("lsu", size / (16 * 32 * 4), size / (16 * 32 * 4) * e.lsu, "cp.async")
                yield "work", demand
                self.fabric = max(self.now, self.fabric) + size / self.e.fabric
                a.sending = self.fabric + e.copy
            case threads.CpCommit():
                a.bulk.append(a.sending)
            case threads.CpWait():
                until = (
                    a.bulk[-1 - op.pending.value.data]
                    if len(a.bulk) > op.pending.value.data
                    else 0.0
                )
                if until > self.now:
                    yield "delay", until - self.now, "copy"
            case threads.NextProgram():
                a.env[op.result] = a.env.get(("claimed", a.name), a.env["block"]) + self.blocks
                a.env["claimed", a.name] = a.env[op.result]
            case threads.BroadcastStore():
                self._post(a, op.box, op.value)
            case threads.BroadcastLoad():
                slot = op.box.owner.ring if isinstance(op.box.owner, shared.Stage) else op.box
                read = a.env.get(("read", slot), 0)
                a.env["read", slot], a.env[op.result] = read + 1, state.boxes[slot][read]
            case threads.Fence():
                yield (
                    "delay",
                    {"async_shared": e.turn, "dot": e.fma_latency}.get(op.kind.data, e.turn),
                    "fence",
                )
            case tile.Load() | tile.LoadPointers() | tile.Atomic() | tile.AtomicBlock():
                yield "work", demands.of([op], e, a.warps)
                if op.results:
                    yield "delay", e.copy, "load"

    def _dot(self, a: Agent, clocks: float, what: str) -> Iterator:
        a.queue.append([clocks, what, None, next(self.tick)])
        if not a.flying:
            a.flying.append(0)
        a.flying[-1] += 1
        yield "drain", self.e.lead, "issue"

    def _post(self, a: Agent, box: SSAValue, value: SSAValue) -> None:
        """A scalar of one thread, for all agents that load it."""
        if not a.group:
            a.state.boxes.setdefault(
                box.owner.ring if isinstance(box.owner, shared.Stage) else box, []
            ).append(self._value(a, value))

    def _blocks_of(self, mask: SSAValue | None, a: Agent) -> int:
        """How many blocks of a cluster a mask names; 1 without one."""
        known = None if mask is None else self._value(a, mask)
        return 1 if known is None else known.bit_count()

    def _index(self, op: BarrierOp, a: Agent) -> int:
        index = self._value(a, op.index[0]) if op.index else 0
        if index is None:
            raise CompileError("the timeline of this program depends on what it computes")
        return index

    # ---- time
    def _at(self, when: float, what: Callable) -> None:
        heappush(self.later, (when, next(self.tick), what))

    def run(self) -> Timeline:
        for a in self.agents:
            self._go(a)
        working = [a for a in self.agents if not a.single]
        consumers = [
            a
            for a in working
            if any(isinstance(op, (threads.DotAsync, tile.Dot)) for op in a.who[0].walk())
        ] or working  # others make their operands
        for _ in range(MAX_EVENTS):
            while any(self._ready(a) for a in self.agents):
                for a in self.agents:
                    if self._ready(a):
                        a.waits = None
                        self._go(a)
            if all(
                a.asks is None or self.persistent and len(a.marks) > self.programs
                for a in consumers
            ):
                break
            if not self._advance():
                raise CompileError(
                    "the timeline of this program does not end: "
                    + ", ".join(
                        f"{a.name} waits for {a.waits[1] if a.waits else 'nothing'}"
                        for a in self.agents
                        if a.asks is not None
                    )
                )
        return self._timeline(consumers)

    def _ready(self, a: Agent) -> bool:
        return a.waits is not None and a.waits[0]()

    def _go(self, a: Agent) -> None:
        """Lets an agent run until it requests time."""
        while a.asks is not None:
            try:
                kind, what, *rest = next(a.asks)
            except StopIteration:
                a.asks = None
                return
            if kind == "work":
                a.work = VectorWork(1.0, what, self.now)
                return
            begin, label = self.now, rest[0]
            if kind == "delay":
                if what <= 0:
                    continue
                passed: list = []
                self._at(self.now + what, lambda passed=passed: passed.append(1))
                a.waits = (lambda passed=passed: bool(passed)), label
                if not a.single:
                    self.segments.append(Segment(a.name, "wait", label, begin, begin + what))
                return
            test = what if kind == "until" else (lambda left=what: a.queued() <= left + 1e-6)
            if test():
                continue
            a.waits = test, label, what if kind == "drain" else None, begin
            return

    def _advance(self) -> bool:
        """To the next event. False if there is none."""
        first = min((a for a in self.agents if a.queue), key=lambda a: a.queue[0][3], default=None)
        busy = [first] if first is not None else []
        if first is not None and first.queue[0][2] is None:
            first.queue[0][2] = self.now
        working = [(a, a.work) for a in self.agents if a.work]
        load: dict[str, float] = {}
        for _, work in working:
            for pipe, clocks in (*work.demand.pipes.items(), ("issue", work.demand.issue)):
                load[pipe] = load.get(pipe, 0.0) + clocks / work.demand.alone
        speed = (
            1 / max(1.0, *load.values()) / (self.e.crowding if busy else 1.0) if working else 1.0
        )
        steps = [work.left * work.demand.alone / speed for _, work in working] + [
            a.queue[0][0] for a in busy
        ]
        steps += [
            a.queued() - a.waits[2]
            for a in busy
            if a.waits and len(a.waits) > 2 and a.waits[2] is not None and a.queued() > a.waits[2]
        ]
        if self.later:
            steps.append(self.later[0][0] - self.now)
        if not steps:
            return False
        step = max(0.0, min(steps))
        self.now += step
        for _, work in working:
            work.left -= step * speed / work.demand.alone
        for a in busy:
            a.queue[0][0] -= step
        for a in busy:
            if a.queue[0][0] <= 1e-6:
                _, what, begin, _ = a.queue.pop(0)
                self.segments.append(
                    Segment(
                        a.name, "tensor", what, begin, self.now, (("tensor", self.now - begin),)
                    )
                )
        while self.later and self.later[0][0] <= self.now + 1e-6:
            heappop(self.later)[2]()
        for a, work in working:
            if work.left <= 1e-9:
                demand = work.demand
                self.segments.append(
                    Segment(
                        a.name,
                        demand.busiest,
                        demand.what,
                        work.begin,
                        self.now,
                        (*demand.pipes.items(), ("issue", demand.issue)),
                    )
                )
                a.work = None
                self._go(a)
        for a in self.agents:
            if (
                a.waits
                and len(a.waits) > 3
                and a.waits[0]()
                and not a.single
                and self.now > a.waits[3]
            ):
                self.segments.append(Segment(a.name, "wait", a.waits[1], a.waits[3], self.now))
        return True

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
        longest = 0.0
        for (loop, name), laps in self.laps.items():
            if not any(a.name == name for a in consumers):
                continue
            gaps: list[float] = []
            runs: list[list[float]] = []
            here: list[float] = []
            for t in laps:
                if t >= 0:
                    here.append(t)
                    continue
                runs.append(here)
                here = []
            for r in runs:
                gaps += [b - a for a, b in pairwise(r[2:] if len(r) > 4 else r)]
            if not gaps:
                continue
            found.periods.setdefault(loop, median(gaps))
            long = max(runs, key=len, default=[])
            if len(long) > 4 and median(gaps) * len(long) > longest:
                longest, middle = median(gaps) * len(long), len(long) // 2
                found.steady = long[middle], long[middle + 1]
        return found


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


class Shared:
    """What the agents of a block have in common."""

    def __init__(self) -> None:
        self.barriers: dict[SSAValue, list[Mbarrier]] = {}
        self.named: dict[object, Mbarrier] = {}
        self.turns: dict[tuple, int] = {}
        self.boxes: dict[SSAValue, list[Scalar]] = {}
        self.left_out: dict[int, int] = {}  # of each program's loops, by the producer: iterations


TIMED_OPERATIONS = (
    threads.MbarrierWait,
    threads.MbarrierArrive,
    threads.MbarrierExpect,
    threads.TmaLoad,
    threads.DotAsync,
    threads.DotCommit,
    tile.Dot,
    threads.Turn,
    threads.Barrier,
    threads.BarrierArrive,
    threads.BlockBarrier,
    threads.TmaStore,
    threads.BulkCommit,
    threads.BulkWait,
    threads.CpAsync,
    threads.CpCommit,
    threads.CpWait,
    threads.NextProgram,
    threads.BroadcastStore,
    threads.BroadcastLoad,
    threads.Send,
    threads.Fence,
    tile.Load,
    tile.LoadPointers,
    tile.Atomic,
    tile.AtomicBlock,
)


def _steering(kernel: tile.Kernel) -> set[SSAValue]:
    """The scalars that stages, parities, bounds, branches and programs follow from."""
    found: set[SSAValue] = set()
    work = [
        v
        for op in kernel.walk()
        if isinstance(op, SYNCHRONIZATION)
        for v in op.operands
        if not isinstance(v.type, (TileType, SharedType))
    ]
    for op in kernel.walk():
        if isinstance(op, scf.ForOp):
            work += [op.lb, op.ub, op.step]
        elif isinstance(op, scf.IfOp):
            work.append(op.cond)
        elif isinstance(op, scf.ConditionOp):
            work.append(op.condition)
        elif isinstance(op, threads.BroadcastStore):
            work.append(op.value)
        elif isinstance(op, threads.Send) and isinstance(op.value.owner, tile.Splat):
            work.append(op.value.owner.arg)
    while work:
        value = work.pop()
        if value in found or isinstance(value.type, (TileType, SharedType)):
            continue
        found.add(value)
        owner = value.owner
        if isinstance(owner, Block):
            parent, i = owner.parent_op(), index_of(value)
            match parent:
                case scf.ForOp() if i:
                    work += [parent.iter_args[i - 1], yielded_by(owner)[i - 1]]
                case scf.WhileOp():
                    work += [
                        parent.arguments[i],
                        yielded_by(parent.before_region.block)[1 + i],
                        yielded_by(parent.after_region.block)[i],
                    ]
        elif isinstance(owner, (scf.ForOp, scf.IfOp, scf.WhileOp)):
            i = index_of(value)
            for region in owner.regions:
                if region.blocks and isinstance(region.block.last_op, scf.YieldOp):
                    work.append(region.block.last_op.operands[i])
            if isinstance(owner, scf.ForOp):
                work.append(owner.iter_args[i])
        else:
            work += owner.operands
    return found
