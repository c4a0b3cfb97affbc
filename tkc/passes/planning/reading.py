"""How programs without dots get their blocks: loops read ahead, programs that a block takes in turn
have a ring, and what all programs share is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.layout import WARP
from tkc.ir.plan import LoadPlan
from tkc.ir.rewrite import counted_slice
from tkc.ir.target import Target
from tkc.ir.types import TileType
from tkc.ir.values import holds, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.access import may_run_ahead
from tkc.passes.cuts.held import held_rows
from tkc.passes.planning.pressure import (
    MAX_REGISTERS_PER_THREAD,
    TILE_REGISTER_SHARE,
    demand,
    pressure,
)
from tkc.passes.planning.streaming import (
    RESERVED_SHARED_BYTES,
    Shares,
    copied_by_threads,
    has_narrow_loads,
    through_rings,
)

MAX_READ_AHEAD_REGISTERS = 144  # with what is read ahead
SCALAR_REGISTERS = 8  # of addresses, masks, counters
ADDRESS_REGISTERS = 2
RING_STAGES = 2  # of a ring through which a loop reads, at least
STAGES_OF_A_WARP = 3, 4  # … of one warp beside others of its multiprocessor, and at most
MIN_REGISTERS = 64  # of a thread, as blocks share a multiprocessor's


@dataclass(frozen=True)
class Threads:
    """Of a program: so many warps in each of so many blocks."""

    warps: int
    blocks: int

    @property
    def count(self) -> int:
        return 32 * self.warps * self.blocks

    def share(self, words: int) -> int:
        """Of so many words, those of one thread."""
        return -(-words // self.count)


@dataclass(frozen=True)
class Reading:
    """How programs get their blocks. loads: of each where it goes; stages of a ring, 0 without one;
    prefetch, keep, blocks, queue: as in a Plan; taken: bytes of shared memory.
    """

    loads: tuple[LoadPlan, ...]
    stages: int = 0
    prefetch: bool = False
    keep: bool = False
    blocks: int = 0
    dynamic_schedule: bool = False
    taken: int = 0


def ahead(
    kernel: tile.Kernel,
    loads: Sequence[tuple[Operation, LoadPlan]],
    threads: Threads,
    persistent: bool,
    streams: bool,
    context: PassContext,
    say: Callable[[str], None],
) -> Reading:
    """Whether loops read one iteration ahead: where what they read, as narrow as it is in memory,
    still fits the registers. Programs that a block takes in turn are a loop too. Theirs may come
    through a ring in shared memory instead, which each thread fills for itself, 16 bytes at a time:
    it requests its next bytes as soon as it has these in registers, and nothing but its own wait
    orders them. What all programs share is read once, where registers or shared memory have room.
    """
    shares = Shares.of(kernel, loads if persistent else (), threads.warps, threads.blocks)
    return _ReadAhead(kernel, loads, threads, persistent, shares, streams, context, say).reading()


class _ReadAhead:
    """What `ahead` decides, from the shared memory of a ring to the registers of a thread."""

    def __init__(
        self,
        kernel: tile.Kernel,
        loads: Sequence[tuple[Operation, LoadPlan]],
        threads: Threads,
        persistent: bool,
        shares: Shares,
        streams: bool,
        context: PassContext,
        say: Callable[[str], None],
    ) -> None:
        self.kernel, self.loads, self.threads = kernel, loads, threads
        self.persistent, self.shares, self.context = persistent, shares, context
        self.options, self.say = context.options, say
        self.waits = tile.waits_for_programs(kernel)
        self.shared = max(0, context.room() - RESERVED_SHARED_BYTES)
        self.words = pressure(kernel)
        self.stages = self._stages(streams)
        in_ring: set[Operation] = set()
        if self.stages:
            in_ring.update(op for op in shares.own if op in shares.copied)
        self.streams = bool(in_ring)
        self.held = self._hold()
        in_ring |= self._in_loops()
        self.early = [
            op
            for op, _ in loads
            if isinstance(op, tile.Load)
            and isinstance(op.result.type, TileType)
            and op not in in_ring
            and op not in self.held
            and (op in shares.own or isinstance(op.parent_op(), scf.ForOp) and may_run_ahead(op))
        ]
        self.in_ring = in_ring
        # registers of a thread
        self.more = self._bytes_each(self.early)
        self.arriving = threads.share(sum(map(self._words_apart, self.early)))
        self.kept = self._bytes_each(shares.alike)

    def reading(self) -> Reading:
        prefetch, keep = self._fitting()
        dynamic = self.streams and not self.waits and self.options.dynamic_schedule is not False
        # loops whose blocks share a multiprocessor by what a thread of them has
        looped = self.options.maxnreg is None and holds(self.kernel, scf.ForOp)
        if prefetch and looped and self.options.prefetch is None and self._leaves_one_block():
            prefetch = False
            self.say(
                f"loops read nothing ahead: with {self.arriving} registers a thread more, a"
                " multiprocessor would have one block, which would idle while it waits"
            )
        self._say_what_is_early(prefetch, dynamic)
        keep = self._keep(keep)
        together = self._blocks(prefetch, keep, looped)
        if together > 1:
            self.say(f"{together} blocks a multiprocessor")
        taken = (
            sum(
                tile_type(op.results[0]).bytes
                // self.threads.blocks
                * (self.stages if op in self.shares.own else 1)
                for op in self.in_ring
                if op.parent_op() is self.kernel
            )
            + self.stages * self.looped
            + self.held_bytes
        )
        return Reading(
            tuple(replace(plan, path=self._path(op, plan)) for op, plan in self.loads),
            self.stages,
            prefetch,
            keep,
            together if together > 1 else 0,
            dynamic,
            taken,
        )

    def _path(self, op: Operation, plan: LoadPlan) -> str:
        return "own" if op in self.in_ring else "held" if op in self.held else plan.path

    def _stages(self, streams: bool) -> int:
        """Of the ring, 0 without one."""
        stage = self.shares.stage
        if not stage:
            return 0
        return min(self.options.num_stages or int(streams), self.shared // stage)

    def _hold(self) -> set[Operation]:
        """Loads of several loops over the parts of rows, which stay in shared memory from the first
        to the last of these: what is read most often, and what else leaves room for another block.
        """
        self.held_bytes = 0
        if self.options.num_stages == 1 or self.stages:
            return set()
        found: set[Operation] = set()
        every = held_rows(self.kernel, self._is_copied, self.context.overlaps)
        for rows in sorted(every, key=lambda rows: -len(rows.members)):
            load = rows.members[0]
            size = rows.parts * tile_type(load.results[0]).bytes // self.threads.blocks
            if self.held_bytes + size <= (self.shared // 2 if found else self.shared):
                self.held_bytes += size
                found.update(rows.members)
        if found:
            self.say(
                f"{self.held_bytes} bytes of rows stay in shared memory through the loops over"
                " their parts"
            )
        return found

    def _is_copied(self, op: Operation) -> bool:
        """Whether threads can copy what a loop loads, each what it reads itself, early."""
        loop = op.parent_op()
        plan = next((plan for load, plan in self.loads if load is op), None)
        return (
            plan is not None
            and isinstance(op, tile.Load)
            and isinstance(loop, scf.ForOp)
            and isinstance(op.result.type, TileType)
            and copied_by_threads(op, plan, self.threads.count)
            and counted_slice(op.operands, loop) is not None
        )

    def _in_loops(self) -> set[Operation]:
        """Loads of loops that come through rings, which each thread fills for itself: where a block
        fills a multiprocessor, which would wait for memory; where a block is one warp, all of which
        waits, and its ring has more iterations on their way than registers would, beside those of
        as many blocks; or as asked. Sets how many stages these have.
        """
        self.looped = 0  # bytes of a stage
        asked, resident = self.options.num_stages, self._resident(0)
        beside = resident if asked is None else 1
        if self.stages or asked == 1 or beside > 1 and self.threads.count > WARP:
            return set()
        every = through_rings(self.loads, self.threads.count, self.context.overlaps)
        loops = [here for ops in every.values() if (here := set(ops) - self.held)]
        if not loops:
            return set()
        self.looped = max(
            sum(tile_type(op.result).bytes for op in here) // self.threads.blocks for here in loops
        )
        least, most = STAGES_OF_A_WARP if beside > 1 else (RING_STAGES, asked or RING_STAGES)
        stages = min(most, (self.shared - self.held_bytes) // max(1, beside) // self.looped)
        if stages < least:
            self.looped = 0
            return set()
        self.stages = stages
        self.say(
            f"loops read through a ring of {self.stages} stages of {self.looped} bytes, which each"
            " thread fills for itself"
        )
        return set().union(*loops)

    def _bytes_each(self, ops: Sequence[tile.Load]) -> int:
        """Registers of a thread for tiles as narrow as they are in memory."""
        return self.threads.share(sum(tile_type(op.result).bytes // 4 for op in ops))

    def _words_apart(self, op: tile.Load) -> int:
        """Registers for a tile as it arrives: elements that are loaded one by one have one each."""
        vector = next(plan.vector for load, plan in self.loads if load is op)
        t = tile_type(op.result)
        return t.bytes // 4 if vector >= 4 else t.size

    def _fitting(self) -> tuple[bool, bool]:
        """Whether registers have room for what is read ahead, and for what all programs share."""
        # 16 warps have 128 registers a thread, 32 have 64
        warps, count = self.threads.warps, self.threads.count
        most = min(
            MAX_READ_AHEAD_REGISTERS,
            1600 // warps if warps < 32 else 48,
            int(TILE_REGISTER_SHARE * (self.options.maxnreg or MAX_REGISTERS_PER_THREAD)),
        )
        left = most - self.threads.share(self.words)
        early = sum(map(self._words_apart, self.early))
        peak = (demand(self.kernel) + early) // count + ADDRESS_REGISTERS * len(self.early)
        prefetch = (
            bool(self.early)
            and self.more <= left
            and peak <= most
            and self.options.prefetch is not False
        )
        # kept as what is computed with
        computed = self.threads.share(sum(tile_type(op.result).size for op in self.shares.alike))
        keep = bool(self.kept) and self.more + self.kept <= left and peak + computed <= most
        return prefetch, keep

    def _resident(self, more: int) -> int:
        """Blocks of a multiprocessor, where a thread has so many registers more."""
        registers = self.threads.share(self.words) + more + SCALAR_REGISTERS
        each = max(MIN_REGISTERS, -(-registers // 8) * 8)
        return self.context.target.registers // (32 * self.threads.warps * each)

    def _leaves_one_block(self) -> bool:
        """Whether what arrives takes the registers of a multiprocessor's second block."""
        return self._resident(self.arriving) < 2 <= self._resident(0)

    def _say_what_is_early(self, prefetch: bool, dynamic: bool) -> None:
        if self.streams:
            claimed = "; programs are claimed one by one"
            self.say(
                f"the blocks of the next {self.stages} programs come through a ring of"
                f" {self.stages} stages of {self.shares.stage} bytes, which each thread fills for"
                f" itself{claimed * dynamic}"
            )
        if prefetch:
            self.say(f"loops read one iteration ahead, into {self.more} registers a thread")
        if prefetch and self.persistent and not self.streams:
            early = sum(tile_type(op.result).bytes for op in self.early) // self.threads.blocks
            self.say(_in_flight(early, self.context.target))

    def _keep(self, in_registers: bool) -> bool:
        """Whether what all programs read is read once: in registers, or else in shared memory
        beside the ring.
        """
        shares = self.shares
        if in_registers:
            self.say(f"what all programs read stays in {self.kept} registers a thread")
            return True
        if (
            self.stages
            and self.kept
            and shares.copied.issuperset(shares.alike)
            and self.stages * shares.stage + shares.kept <= self.shared
        ):
            self.in_ring.update(shares.alike)
            self.say(f"what all programs read stays in {shares.kept} bytes of shared memory")
            return True
        return False

    def _blocks(self, prefetch: bool, keep: bool, looped: bool) -> int:
        """Blocks of a multiprocessor, which then limit registers; 0 where nothing depends on it."""
        # what stagger-programs has of the next program
        begun = self.more if self.waits else 0
        beside = begun + (keep and not self.stages) * self.kept  # as long as it is read ahead of
        split = self.threads.blocks > 1
        if looped or split and not self.stages and has_narrow_loads(self.loads):
            by_registers = self._resident(prefetch * self.arriving + beside)
            taken = self.stages * self.looped + self.held_bytes
            return min(by_registers, self.shared // taken) if taken else by_registers
        if prefetch and self.persistent and not split:
            return self._resident(self.more + beside)
        return 0


def _in_flight(each: int, target: Target) -> str:
    """By Little's law: the bytes that a multiprocessor must have asked for at any time are latency
    x bandwidth / multiprocessors.
    """
    needed = target.costs.memory_latency * target.memory / 2 / target.multiprocessors
    return (
        f"{each} bytes of the next program are in flight while one computes:"
        f" {-(-needed // each):.0f} blocks a multiprocessor have {needed:.0f} bytes on their way,"
        f" half of the memory's rate for {target.costs.memory_latency:.0f} ns"
    )
