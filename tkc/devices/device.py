"""What is known of a device. Every field is a number of its file, in the unit that its comment
names; clocks are a multiprocessor's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONGEST_ROW = 64  # 16-bit elements of a row that a tensor map moves: the widest swizzle


@dataclass(frozen=True)
class Chip:
    """What the device is made of."""

    multiprocessors: int
    # multiprocessors of each cluster of processors (GPC), whose blocks may form clusters; empty:
    # not known
    gpcs: tuple[int, ...]
    clock: float  # GHz that it may reach
    l2: int  # bytes of the L2 cache
    l2_partitions: int
    memory: int  # bytes
    bandwidth: float  # GB/s between memory and chip
    shared: int  # bytes of shared memory that one block may have
    power: float  # W that it may draw
    tensor: int  # dense 16-bit tensor-core operations a clock and multiprocessor (a product is two)


@dataclass(frozen=True)
class Rates:
    """What the device reaches."""

    clock: float  # GHz that it keeps up under load
    fabric: float  # bytes a clock from the L2 cache to each multiprocessor
    l2: float  # … to all multiprocessors together; a GPC's that ask for the same count once
    memory: float  # GB/s of a long read
    cache: int  # bytes of L2 that one kernel may count on


@dataclass(frozen=True)
class Engines:
    """What a multiprocessor's engines do. A *quarter* of a multiprocessor has one warp of each
    warpgroup.
    """

    # clocks of a quarter for a warp's float32 add, multiply or multiply-add
    fma: float
    # … integer, logic, comparison, selection, minimum, conversion to 16 bits of a pair
    alu: float
    # … exp2, log2, reciprocal, square root, tanh, sine
    mufu: float
    lsu: float  # … shuffle, or an instruction to shared or global memory
    shared: float  # bytes a clock that shared memory moves
    # vector work takes so much longer while the tensor cores run: they share the ports of the
    # registers
    crowding: float
    # clocks of dots that may wait for the tensor core when issuing the next one must wait too
    lead: float
    result: float  # clocks from a dot's end on the tensor core to its registers
    turn: float  # … from one side of a barrier, full or empty, to the other
    wait: float  # … of setting up a wait for a copy
    copy: float  # … from asking for a copy to having it, out of the L2 cache
    atomic: float  # … of claiming a program
    drain: float  # … until a copy out has read its source
    kernel: float  # … before a block's first operation and after its last
    begin: float  # seconds round a kernel
    fabric: float  # bytes a clock from the L2 cache to each multiprocessor, all of them busy
    # bytes a clock into and out of shared memory: beyond the first wgmma slows by so much with each
    # byte, beyond the second with the square
    free_shared: float
    max_shared: float
    shared_slowing: float
    # bytes in whose time wgmma reads one of its right operand where rows of this are halves of
    # swizzles or less
    partial_swizzle: float
    cluster: float  # clocks until the blocks of a cluster know each other
    overlap: float  # part of the shorter of memory's time and the multiprocessors' that shows
    top: float  # GHz of a cool multiprocessor
    # under power's limit GHz are this / cube root of (1 + `work` · the tensor cores' share of the
    # time): power grows with the cube of the clock, as the voltage goes with it
    heat: float
    work: float
    # clocks until another instruction can use a result of fma, alu, mufu, lsu, shared memory
    fma_latency: float
    alu_latency: float
    mufu_latency: float
    lsu_latency: float
    shared_latency: float

    def reading(self, left: float, right: float) -> float:
        """Clocks in which wgmma reads so many bytes of its operands, where rows of the right one
        are parts of swizzles.
        """
        return (left + self.partial_swizzle * right) / self.shared

    def slowed(self, each: float) -> float:
        """How much longer wgmma takes where so many bytes a clock go into and out of shared
        memory.
        """
        over = 1 + self.shared_slowing * max(0, each - self.free_shared)
        far_over = max(1, each / self.max_shared) ** 2
        return min(over * far_over, max(1, each / self.free_shared))


@dataclass(frozen=True)
class Costs:
    """Of the closed-form model."""

    copy_latency: float  # clocks from issuing a copy by a tensor map to its arrival
    # … how much longer where blocks of a cluster share copies: each waits for the others' halves,
    # and until all of them have read a stage
    shared_copy_latency: float
    load_latency: float  # … a load or a copy by threads
    launch_clocks: float  # … before the first step and after the last store
    block_clocks: float  # … for each block that begins
    launch_seconds: float  # around the kernel
    later_launch_seconds: float  # of a launch that follows another
    restart_clocks: float  # of a program, which nothing overlaps
    # clocks of an element of a program's results, by how they are stored: by tensor maps in several
    # subtiles or in one, through shared memory by threads, from registers
    store_tma: float
    store_subtile: float
    # … of each row, of at most 64 elements, that leaves by a tensor map: the wider the fewer
    store_row: float
    store_part: float  # clocks of a subtile, before the next of a warpgroup
    store_turned: float  # … of a program whose results are the transposes of what dots give
    # … of an element that leaves through shared memory by threads, and of each store of a lane, of
    # one element or of as many neighbours as alignment allows
    store_shared: float
    store_lane: float
    store_narrow: float  # … of each row of a subtile: the wider the fewer
    store_direct: float
    storing_beside: float  # part of a program's storing that shows though another one multiplies
    odd_rows: float  # how much longer stores from registers take of rows that start at odd elements
    columns: float  # and of dense columns
    # storing parts of k, and learning which program is the last: clocks, and clocks an element
    split_k: float
    split_k_element: float
    # likewise, of each part that the last program adds up
    part: float
    part_element: float
    # parts of k that are blocks of a cluster send each other shares of them: clocks, and clocks of
    # each element that one sends
    share: float
    share_element: float
    # part of the multiprocessors that clusters of 1, 2, 3, … blocks use at once, one each
    clustered: tuple[float, ...]
    cluster: float  # clocks until the blocks of a cluster know each other
    shared: float  # bytes a clock that go into and out of shared memory for wgmma, at most
    copied_line: float  # clocks in which a tensor map copies of one line of 128 bytes, all or less
    # bytes of sectors a clock that the L2 cache gives to all multiprocessors of operands whose rows
    # begin amid sectors: what several ask for at once is hardly ever answered once then
    cut_l2: float
    # part of what several programs of a GPC ask for at about the same time that the L2 cache sends
    # once: the others come too late
    together: float
    # bytes that memory moves for each of a sector that results have in part: it is read, or written
    # twice
    partial: float
    cut_line: float  # clocks between its answers to those that ask for one line of such an operand
    mma_sync: float  # rate of mma.sync over wgmma's, where there is wgmma
    fma: float  # operations a clock and multiprocessor of multiply-adds that stand for a dot
    one_role: float  # how much longer a plan of one role takes than the model says, likewise
    dirty: float  # bytes of earlier kernels, which are written back as others come in
    # under power's limit GHz are this / cube root of (1 + d · `traffic` · the share of the clocks
    # in which 64 bytes come from the L2 cache); d goes from 0 to 1 as launches are longer than
    # `warming`, in seconds
    heat: float
    traffic: float
    warming: float
    step: float  # clocks of a step that neither the tensor cores nor copies overlap
    overlap: float
    # of engines that are busy at once: the time is the root of the sum of their times' powers
    crowd: float
    staged_load: float  # clocks of a warp's instruction that loads what goes to shared memory
    async_load: float  # clocks of a warp's instruction that copies to shared memory
    # clocks of a warp's instruction that loads a part of a dot's operand straight into its layout
    # in registers: eight rows, a line of the cache each
    fragment_load: float
    # clocks in which a role relays 8-bit operands: of a step, and of each byte
    relayout: float
    relayout_byte: float
    # cost of a byte that a tensor map fills with zero, in copied bytes: of a block that is outside
    # of its array, and of one that is in part
    filled: float
    partly_filled: float
    memory_latency: float  # ns of a load from memory under load
    copied: float  # part of the memory's rate that a copy of a matrix reaches
    added: float  # part of it that adding up parts of k reaches
    gathered_rows: int  # rows of a product from which it pays to copy them in order first

    def leaving(self, results: int, rows: int, columns: int, whole: bool = False) -> float:
        """Clocks in which a program's results leave by tensor maps, in subtiles of so many rows and
        columns; whole: all at once.
        """
        each = self.store_subtile if whole else self.store_tma
        each += self.store_row / min(columns, LONGEST_ROW)
        return each * results + self.store_part * results / max(1, rows * columns)

    def leaving_by_threads(self, results: int, columns: int, vector: int) -> float:
        """Clocks in which threads store a program's results by rows, in subtiles of so many
        columns, so many neighbours of a row at once.
        """
        each = self.store_shared + self.store_lane / vector + self.store_narrow / columns
        return each * results

    def meeting(self, results: Any, parts: Any, at_once: Any) -> Any:
        """Clocks in which a program's parts of k are stored and the last one adds them up, so many
        at once. Of one program a number, of arrays of programs an array.
        """
        once = self.split_k + self.split_k_element * results
        return once + parts * (self.part / at_once + self.part_element * results)

    def meeting_in_cluster(self, results: Any, parts: Any) -> Any:
        """Clocks in which the blocks of a cluster, that have as many parts of k, send and add up
        shares of them. Of one program a number, of arrays of programs an array.
        """
        return self.share + self.share_element * results * (1 - 1 / parts)


@dataclass(frozen=True)
class Assembler:
    """Registers of a thread that the assembler makes do with: where code has more of its values
    live, it spills, or leaves the order that code has.
    """

    # accumulators of a warp that has rows of its own of every dot: nothing passes between warps
    row_accumulators: int
    # … all its tiles that are live at once, and what is no tile in a loop of dots
    row_live: int
    straight_live: int  # tiles of dots outside of loops that are live at once
    beside_scores: int  # accumulators beside which relaxed maxima have room for scores
    # at least, beside accumulators, for rows of results on their way out of shared memory
    stored_by_rows: int
    paired_order: int  # tiles that are live in a new order of dots, where two blocks are resident
    # what an asynchronous dot takes beside its accumulators, of what the launch gives a thread
    beside_dot: int


@dataclass(frozen=True)
class Attention:
    """Of programs of attention (tkc/passes/planning/attention.py), in clocks where nothing else is
    said.
    """

    launch: float  # seconds around the kernel
    later_launch: float  # … where another one ran right before
    begin: float  # before the first step of a launch, and after its last
    program: float  # of each program, besides its steps
    result: float  # … of each element of its result
    mask: float  # … of each score that a mask cuts
    step: float  # of each step, beside its dots and vector work
    score: float  # of each score's vector work
    # part of the shorter one of a step's dots and vector work that shows, by the warpgroups of a
    # tile, and by the tiles side by side
    shown: tuple[float, ...]
    shown_apart: tuple[float, ...]
    line: float  # of each line of 128 bytes, or less, that a tensor map asks for
    # part of the lines that a program waits for before its first step, which nothing overlaps
    first: float
    # how much longer a step takes for each register that a thread lacks
    lacking: float
    # of an average program's time, in which the last ones leave multiprocessors idle where programs
    # differ in length
    ending: float
    beside_memory: float  # part of the shorter of memory's time and the programs' that shows
    # rows that a column is seen by at most, from which on gradients of D = 64 have scores that are
    # computed once, in blocks of 128 rows and columns that masks cut
    shared_scores: int


@dataclass(frozen=True)
class Moving:
    """Of programs without dots (tkc/passes/planning/bandwidth.py), in clocks where nothing else is
    said.
    """

    launch: float  # seconds around the kernel
    later_launch: float  # … where another one ran right before
    begin: float  # of a block, before its first operation
    clustered: float  # … more of a block of a cluster
    latency: float  # of a load from memory
    turn: float  # of a persistent block, from one program to the next
    # of memory's time, where programs are dealt out before: the slowest multiprocessor's beside all
    uneven: float
    access: float  # of issue, for an instruction to memory, over that of another
    chain: float  # from one instruction of a warp to its next, on average
    meeting: float  # of a collective, for each doubling of its warps
    cluster: float  # … more, among the blocks of a cluster
    written: float  # time of the memory for a byte that is written, over that of one that is read
    fabric: float  # bytes a clock that one multiprocessor moves, at most
    # exponent of the norm of what one program takes alone and what all of a multiprocessor move and
    # issue: the larger, the better they fill one another's waiting
    overlap: float
    # registers of a thread: for addresses, and for each word that must be there at once
    registers: float
    held: float
    roomy: float  # beyond as many the assembler finds no room, whatever a thread may have
    # by which part plans of steps that wait for one another differ at most that may be alike
    # (tkc/passes/planning/meetings.py): the model's largest error
    error: float


@dataclass(frozen=True)
class Device:
    """A device. name: of its file; title: the vendor's; drivers: names under which drivers know it;
    architecture: the target that is compiled for it; sources: where each number is from, by
    "section.field".
    """

    name: str
    title: str
    drivers: tuple[str, ...]
    architecture: str
    chip: Chip
    rates: Rates
    engines: Engines
    costs: Costs
    assembler: Assembler
    attention: Attention
    moving: Moving
    sources: tuple[tuple[str, str], ...] = ()

    def clock(self, clocks: Any, copied: Any) -> Any:
        """GHz of a launch of so many clocks, where a multiprocessor copies so many bytes a clock,
        on average. Of one launch a float, of arrays of launches an array.
        """
        costs = self.costs
        seconds = clocks / (self.rates.clock * 1e9)
        load = costs.traffic * copied / 64
        warm = seconds / (seconds + costs.warming)
        hot = costs.heat / (1 + warm * load) ** (1 / 3)
        # min of an array is no array
        return hot - (hot > self.engines.top) * (hot - self.engines.top)

    @property
    def multiprocessors_of_gpcs(self) -> tuple[int, ...]:
        """Multiprocessors that stand together."""
        return self.chip.gpcs or (self.chip.multiprocessors,)
