"""How long a launch will take: the timeline of a multiprocessor's first programs, extrapolated to
all programs of the grid.

    program      clocks = fixed clocks + the iterations of each of its loops, from the timeline
    block        takes programs in the plan's order: assigned statically, or claimed
    launch       the last block's end, and what stands before the first operation and after the last
    clock        what power allows: it falls as the tensor cores' share of the time grows
                 (Engines.heat)
    memory       bytes that the launch must move at the memory's rate (tkc/passes/planning/cost.py);
                 the shorter of the two overlaps the longer but for a part of it

The iterations of all programs are computed at once, from the bounds of the loops in level 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import threads, tile
from tkc.ir.plan import Plan, written_on
from tkc.ir.rewrite import loop_of
from tkc.ir.target import Target
from tkc.ir.values import holds, owner_op, parents, tile_type
from tkc.passes.analysis.scalars import computed
from tkc.passes.planning.bandwidth import time_of
from tkc.passes.planning.cost import Work, memory_of
from tkc.passes.planning.numbers import ASSUMED_TRIPS, Numbers, Sizes
from tkc.timing import demands
from tkc.timing.simulation import MultiprocessorSimulation
from tkc.timing.timeline import Timeline

PROGRAMS_PER_CONSUMER = 4  # run in the timeline
Scalars = int | float | np.ndarray | None


@dataclass(frozen=True)
class Prediction:
    """seconds of a launch, and of what they are made: clocks of the slowest multiprocessor at
    `clock` GHz, of them those that each of its programs costs besides its loops' iterations
    (`fixed`) and of an iteration of the busiest loop (`step`); programs, rounds of them, seconds of
    memory, the tensor cores' share of the time. None for `seconds` without a grid.
    """

    seconds: float | None
    clocks: float
    clock: float
    step: float
    fixed: float
    programs: int
    rounds: float
    memory: float
    tensor: float
    timeline: Timeline

    @property
    def limit(self) -> str:
        return (
            "memory"
            if self.seconds and self.memory > self.clocks / (self.clock * 1e9)
            else "multiprocessor"
        )


def predict(module: ModuleOp, work: Work, target: Target, sizes: Sizes | None = None) -> Prediction:
    """Of a level-4 module, and what its programs do at level 0. Raises CompileError where the
    timeline depends on what the program computes.
    """
    kernel = next(tile.kernels_of(module))
    plan = written_on(kernel) or Plan()
    persistent = "persistent" in kernel.attributes
    resident = max(1, plan.blocks) if persistent else occupancy(kernel, target)
    simulation = MultiprocessorSimulation(
        kernel, target, sizes, resident, PROGRAMS_PER_CONSUMER if persistent else 1
    )
    timeline = simulation.run()
    launch = Launch(kernel, sizes, simulation, bool(plan.stream_k))
    step = _step(timeline)
    trips = {op: launch.trips(op) for op in timeline.periods}
    if plan.stream_k:
        trips = _shared_trips(timeline, step, work, launch.programs)
    fixed = _fixed(timeline, persistent)
    each = np.full(launch.programs, fixed)
    for op, period in timeline.periods.items():
        each = each + period * trips[op]
    e = target.engines
    begin = (
        _filling(timeline, fixed) * persistent
        + e.kernel
        + (e.cluster if simulation.cluster > 1 else 0)
    )
    clocks = _of_busiest(each, simulation, plan, resident) + begin
    tensor = _tensor(kernel, target, trips, launch.programs) * launch.members
    share = min(1.0, float(tensor.sum()) / simulation.blocks / max(clocks, 1.0))
    clock = min(e.top, e.heat / (1 + e.work * share) ** (1 / 3)) if target.wgmma else target.clock
    memory = memory_of(work, plan, target)[0]
    running = clocks / (clock * 1e9)
    seconds = None
    if sizes is not None and work.moving is not None:
        # what limits such programs is not what the timeline of a few of them shows
        seconds = time_of(work.moving, sizes.grid, plan, target).seconds
    elif sizes is not None:
        seconds = max(running, memory) + e.overlap * min(running, memory) + e.begin
    return Prediction(
        seconds,
        clocks,
        clock,
        step,
        fixed,
        launch.programs * simulation.cluster * launch.members,
        launch.programs / (simulation.blocks * max(1, resident)),
        memory,
        share,
        timeline,
    )


def _step(timeline: Timeline) -> float:
    """Clocks of an iteration of the loop of dots that takes longest; of any loop without dots."""
    of_dots = [period for op, period in timeline.periods.items() if _has_dots(op)]
    return max(of_dots or timeline.periods.values(), default=0.0)


def _has_dots(loop: Operation) -> bool:
    return holds(loop, (threads.DotAsync, tile.Dot))


def _shared_trips(
    timeline: Timeline, step: float, work: Work, programs: int
) -> dict[Operation, np.ndarray]:
    """Iterations of each loop in each program, where blocks share the last programs' steps evenly:
    those of the loop of dots.
    """
    steps = max((part.trips for part in work.parts if part.dots), default=0.0)
    return {
        op: np.full(programs, steps if period == step and _has_asynchronous_dots(op) else 0.0)
        for op, period in timeline.periods.items()
    }


def _has_asynchronous_dots(loop: Operation) -> bool:
    return holds(loop, threads.DotAsync)


def _of_busiest(
    each: np.ndarray, simulation: MultiprocessorSimulation, plan: Plan, resident: int
) -> float:
    """Clocks of the multiprocessor that works longest. each: clocks of every program; resident:
    blocks of a multiprocessor.
    """
    if plan.stream_k:
        return float(each.sum()) / simulation.blocks
    if simulation.persistent:
        return _finish(each, simulation.blocks, plan.dynamic_schedule)
    waves = -(-len(each) // (simulation.blocks * resident))
    return waves * float(each.max(initial=0.0))


def _fixed(t: Timeline, persistent: bool) -> float:
    """Clocks of a program besides the iterations of its loops, from the programs that followed one
    another in the timeline.
    """

    def inside(ran: dict[Operation, tuple[int, int]]) -> float:
        return sum(n * t.periods.get(op, 0.0) for op, (n, _) in ran.items())

    if not persistent:  # blocks run side by side
        return max(0.0, t.end - max(map(inside, t.trips), default=0.0))
    if len(t.starts) < 3:
        return max(0.0, t.end - sum(inside(ran) for ran in t.trips))
    first, last = (1, len(t.starts) - 1) if len(t.starts) > 3 else (0, len(t.starts) - 1)
    return (t.starts[last] - t.starts[first] - sum(inside(ran) for ran in t.trips[first:last])) / (
        last - first
    )


def _filling(t: Timeline, fixed: float) -> float:
    """Clocks by which the first program takes longer than one that follows another."""
    return (
        t.starts[1] - fixed - sum(n * t.periods.get(op, 0.0) for op, (n, _) in t.trips[0].items())
        if len(t.starts) > 1
        else 0.0
    )


def _finish(each: np.ndarray, blocks: int, dynamic_schedule: bool) -> float:
    """When the last of so many blocks ends that take programs in order."""
    if not len(each):
        return 0.0
    if not dynamic_schedule:
        return float(max(each[b::blocks].sum() for b in range(min(blocks, len(each)))))
    free = [float(x) for x in each[:blocks]]
    heapify(free)
    for x in each[blocks:]:
        heapreplace(free, free[0] + float(x))
    return max(free)


def _tensor(
    kernel: tile.Kernel, target: Target, trips: dict[Operation, np.ndarray], programs: int
) -> np.ndarray:
    """Clocks of the tensor cores for each program."""
    total, persistent = np.zeros(programs), "persistent" in kernel.attributes
    for op in kernel.walk():
        if isinstance(op, threads.DotAsync):
            clocks = demands.tensor(op, target, 1)[0]
        elif (
            isinstance(op, tile.Dot)
            and op.instruction is not None
            and not op.instruction.data.startswith("fma")
        ):
            (m, n), k = tile_type(op.acc).extents[-2:], tile_type(op.a).extents[-1]
            clocks = 2 * m * n * k / target.tensor
        else:
            continue
        if persistent and loop_of(op) is None:
            continue  # once a block
        around = next((trips[loop] for loop in parents(op) if loop in trips), 1)
        total = total + clocks * around
    return total


def occupancy(kernel: tile.Kernel, target: Target) -> int:
    """Blocks of one role that a multiprocessor holds, by shared memory, registers and warps."""
    warps, held = kernel.warps, kernel.integer("registers", 32) + 24
    return max(
        1,
        min(
            target.shared_bytes // max(1, kernel.integer("shared_bytes") + 1024),
            target.registers // (32 * warps * max(32, held)),
            64 // max(1, warps),
            16,
        ),
    )


class Launch:
    """Scalars of all programs at once: arrays of a number for each program, in the order in which
    they run.
    """

    def __init__(
        self,
        kernel: tile.Kernel,
        sizes: Sizes | None,
        simulation: MultiprocessorSimulation,
        shared: bool = False,
    ):
        self.kernel, self.sizes, self.simulation = kernel, sizes, simulation
        self.numbers = Numbers(kernel, sizes)
        grid = sizes.grid if sizes else (64 * simulation.blocks, 1, 1)
        across, down = (written_on(kernel) or Plan()).cluster if simulation.persistent else (1, 1)
        self.members = kernel.integer("members", 1)
        self.programs = (
            -(-grid[0] // (across * self.members))
            * -(-grid[1] // down)
            * grid[2]
            * (1 if shared else kernel.integer("split", 1))
        )
        self.order = np.arange(self.programs)
        self.grid = grid
        self.found: dict[SSAValue, Scalars] = {}

    def trips(self, loop: Operation) -> np.ndarray:
        """Iterations of a loop in each program; ASSUMED_TRIPS where they are not known."""
        if not isinstance(loop, scf.ForOp):
            return np.full(self.programs, float(ASSUMED_TRIPS))
        low, high, step = map(self.of, (loop.lb, loop.ub, loop.step))
        if low is None or high is None or step is None:
            return np.full(self.programs, float(ASSUMED_TRIPS))
        count = np.maximum(0, -((low - high) // np.maximum(step, 1))) + np.zeros(self.programs, int)
        for outer in parents(loop):
            if isinstance(outer, scf.IfOp) and (known := self.of(outer.cond)) is not None:
                yes = any(op is loop for op in outer.true_region.walk())
                count = np.where(known if yes else np.logical_not(known), count, 0)
            elif isinstance(outer, scf.ForOp) and not self._outer(outer):
                count = count * self.trips(outer)
        return count.astype(float)

    def _outer(self, loop: Operation) -> bool:
        """Whether a loop is that over programs."""
        return self.simulation.persistent and not any(
            isinstance(op, (scf.ForOp, scf.WhileOp)) for op in parents(loop)
        )

    def of(self, value: SSAValue) -> Scalars:
        """A scalar of all programs: an array, one number, or None where it is not known."""
        if value not in self.found:
            self.found[value] = self._of(value)
        return self.found[value]

    def _of(self, value: SSAValue) -> Scalars:
        if isinstance(value, BlockArgument):
            known, loop = self.numbers.arguments.get(value), value.owner.parent_op()
            if isinstance(known, int):
                return known
            if isinstance(loop, scf.ForOp) and value.index == 0:
                return self.of(loop.lb)
            if isinstance(loop, scf.ForOp):
                return self.of(loop.iter_args[value.index - 1])
            return (
                self.of(loop.arguments[value.index])
                if isinstance(loop, scf.WhileOp)
                else self.members - 1
                if isinstance(loop, threads.Role)
                else None
            )
        match op := owner_op(value):
            case threads.Identity():
                identities: dict[str, Scalars] = {
                    "cluster": self.order,
                    "block": self.order * self.simulation.cluster,
                    "clusters": self.simulation.blocks,
                    "blocks": self.simulation.blocks * self.simulation.cluster,
                    "cluster_rank": 0,
                }
                return identities.get(op.what.data)
            case tile.ProgramId():
                if self.simulation.persistent:
                    return None
                x, y, _ = self.grid
                return (self.order % x, self.order // x % y, self.order // (x * y))[
                    op.axis.value.data
                ]
            case tile.NumPrograms():
                return self.grid[op.axis.value.data]
            case tile.Dim():
                return self.numbers.extent(op)
        return computed(op, self.of)
