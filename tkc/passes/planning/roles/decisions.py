"""What a plan with roles says of itself: a sentence for each choice, with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.values import tile_type
from tkc.passes.analysis.mapped import unmapped
from tkc.passes.planning.bodies import shape
from tkc.passes.planning.gathers import loaded_by_consumers, why_by_consumers
from tkc.passes.planning.operands import (
    LAID_BY_CONSUMERS,
    made_from,
    permuted,
    relaid_loads,
)
from tkc.passes.planning.order import acquiring_loops, observing_operations
from tkc.passes.planning.rings import is_filled_by_threads, run_ahead, stage_bytes
from tkc.passes.planning.roles.dots import DotExecution
from tkc.passes.planning.roles.loads import RingLoads, SmallLoads
from tkc.passes.planning.roles.memory import REDUCED_SHARED_BYTES, BlockMemory
from tkc.passes.planning.roles.multicast import Multicast
from tkc.passes.planning.roles.programs import ProgramOrder
from tkc.passes.planning.roles.request import RoleRequest
from tkc.passes.planning.roles.sharing import Sharing


@dataclass(frozen=True)
class Decided:
    """All choices of a plan with roles, and what they were made from."""

    request: RoleRequest
    sharing: Sharing
    execution: DotExecution
    loads: RingLoads
    small_loads: SmallLoads
    multicast: Multicast
    memory: BlockMemory
    order: ProgramOrder

    @property
    def registers(self) -> tuple[int, ...]:
        """Of a thread of each role."""
        return self.execution.role_registers(self.sharing, self.memory.blocks)


def decisions(made: Decided) -> tuple[str, ...]:
    """The sentences, each with the name of the pass before it."""
    said = (
        _of_roles(made),
        _of_dots(made),
        _of_loads(made),
        _of_order_in_a_program(made),
        _of_room(made),
        _of_small_loads(made),
        _of_memory(made),
        _of_programs(made),
        _of_parts(made),
        _of_what_is_not_used(made),
        _of_cluster(made),
    )
    return tuple(f"plan: {sentence}" for sentences in said for sentence in sentences)


def _of_roles(made: Decided) -> Iterator[str]:
    registers, sharing = made.registers, made.sharing
    yield (
        f"roles: a producer of {registers[0]} registers, {sharing.consumers_of_block}"
        f" warpgroups of consumers of {registers[1]} ({made.execution.registers} of them"
        " accumulators and left operands)"
    )
    if sharing.members > 1:
        yield (
            f"co_resident: {sharing.members} co-resident programs, a warpgroup each, share loads"
            " that do not depend on axis 0"
        )
    elif sharing.together:
        yield f"cooperative: a block's consumers share a program: {sharing.together}"
    else:
        yield (
            "ping-pong: each of a block's two warpgroups has every second program; one is in its"
            " epilogue during the other's dots"
        )


def _of_dots(made: Decided) -> Iterator[str]:
    yield from (f"stages: {searched.said()}" for searched in made.execution.searched)
    for i, dot in enumerate(made.request.dots):
        both = made.request.sides(dot)
        late = ", one iteration late, beside the next one's first dot"
        yield (
            f"dot {i} ({shape(dot)}): wgmma{', as its transpose' * both.swapped}, left operand in"
            f" {'registers' if both.held else 'shared memory'}"
            f"{late * (dot in made.execution.late)}"
        )
        relaid = [right for _, right in relaid_loads(dot, made.request.options)]
        if relaid:
            yield _of_relaid(i, dot, relaid, made)
        if computed := [right for right in (False, True) if both.converted[right]]:
            which = _which(computed)
            yield f"dot {i}: {which} computed by a warpgroup of {made.registers[2]} registers"


def _of_relaid(i: int, dot: tile.Dot, sides: list[bool], made: Decided) -> str:
    """sides: of each operand that is relaid, whether it is the right one."""
    counted = ", and K is counted in the order of the left operand's registers"
    return (
        f"dot {i}: {_which(sides)} relaid by a warpgroup"
        f" of {made.registers[2]} registers: wgmma reads 8 bits K-major only"
        f"{counted * permuted(dot, made.request.options)}"
    )


def _which(sides: list[bool]) -> str:
    """The operands on some sides, and a verb."""
    which = " and the ".join("right" if right else "left" for right in sides)
    return f"the {which} operand{'s are' if len(sides) == 2 else ' is'}"


def _extents(load: Operation) -> str:
    return "x".join(map(str, tile_type(load.results[0]).extents))


def _of_loads(made: Decided) -> Iterator[str]:
    request = made.request
    for load in request.copied_by_threads:
        yield (
            f"a warpgroup of {made.registers[2]} registers copies a block of {_extents(load)},"
            f" because tensor maps do not: {unmapped(load)}"
        )
    read = dict.fromkeys(load for dot in request.dots for load in made_from(dot, request.options))
    for block in filter(loaded_by_consumers, read):
        yield f"the consumers load a block of {_extents(block)}: {why_by_consumers(block)}"
    for block in read:
        if LAID_BY_CONSUMERS in block.attributes:
            yield (
                f"the consumers lay a block of {_extents(block)} out for its dot, which is one of"
                " several that accumulate in a loop"
            )


def _of_order_in_a_program(made: Decided) -> Iterator[str]:
    if made.request.copies_wait:
        yield (
            "copies wait for what programs store, which they may read afterwards: tensor maps store"
            " no results"
        )
    if made.order.cross_tile_prologue:
        yield "the next program's first dot is issued before this one's results are stored"


def _of_room(made: Decided) -> Iterator[str]:
    memory, request = made.memory, made.request
    if memory.blocks > 1:
        yield (
            f"{memory.blocks} blocks share a multiprocessor: one has its vector work during the"
            " other's dots"
        )
    if memory.written_stages > 1:
        yield (
            f"{memory.written_stages} stages of what warpgroups write for one another: each waits"
            " for the others' parts where it needs them, not where it has written its own"
        )
    if made.execution.relax != request.plan.relax:
        yield (
            f"running maxima stay exact: {made.sharing.consumers} warpgroups have no registers to"
            " keep scores until they are known to fit"
        )
    if memory.cached:
        yield (
            f"{memory.cached} bytes of lines that the loop reads again stay in the L1 cache, which"
            f" {REDUCED_SHARED_BYTES} bytes of shared memory leave it"
        )


def _of_small_loads(made: Decided) -> Iterator[str]:
    rings = made.loads.ring_of
    beside = [rings[op] for op in rings.keys() - made.request.operand_loads]
    by_threads = sum(is_filled_by_threads(made.loads.rings[ring]) for ring in beside)
    broadcast = len(made.loads.broadcast)
    if broadcast or beside:
        yield (
            f"of {len(beside) + broadcast} loads beside the dots tensor maps copy"
            f" {len(beside) - by_threads}, {f'threads {by_threads}, ' * bool(by_threads)}and the"
            f" producer broadcasts {broadcast}"
        )
    if made.small_loads.early_pointers:
        yield (
            "what consumers load by pointers is loaded one iteration early, into"
            f" {made.small_loads.pointers} registers a thread"
        )
    if not made.small_loads.early:
        yield (
            f"small blocks are loaded where they are used: beside {made.small_loads.busy} registers"
            f" a thread there are none for {made.small_loads.registers} more an iteration early"
        )


def _of_memory(made: Decided) -> Iterator[str]:
    memory = made.memory
    for i, (n, ring) in enumerate(zip(memory.stages, made.loads.rings, strict=True)):
        yield f"ring {i}: {n} stages of {stage_bytes(ring)} bytes"
    if made.request.options.num_stages and not any(run_ahead(made.loads.rings)):
        yield "num_stages is not used: no loop has a load that can run ahead"
    if memory.reused:
        which = " and ".join(f"ring {made.loads.ring_of[load]}" for load in memory.reused)
        yield f"results are stored through the stages of {which}"
    elif memory.results:
        yield (
            f"{memory.result_bytes} bytes for the output, which"
            f" {'threads store by rows,' if memory.epilogue == 'shared' else 'is stored'}"
            f" {memory.columns} columns at a time"
        )
    else:
        yield "results are stored from registers"


def _of_programs(made: Decided) -> Iterator[str]:
    if made.request.claims:
        yield "a program takes its work from counters: its producer does, ahead of its consumers"
    else:
        yield "persistent: blocks take programs in turn, so that copies run ahead across programs"
    if acquiring_loops(made.request.kernel):
        yield "producer and consumers wait for other programs, each for itself"
    if observing_operations(made.request.kernel):
        yield "the consumers alone run what observes other programs: locks, who came last"


def _of_parts(made: Decided) -> Iterator[str]:
    sharing, options = made.sharing, made.request.options
    if sharing.split_k > 1:
        where = ", the blocks of a cluster" if sharing.in_cluster else ""
        yield f"k in {sharing.split_k} parts{where}, as asked"
    if sharing.why_no_split_k:
        yield f"split_k = {options.split_k} is not used: {sharing.why_no_split_k}"
    if sharing.stream_k:
        yield f"the last wave's programs in at most {sharing.stream_k} parts of k each, as asked"
    if sharing.why_no_stream_k:
        yield f"stream_k = {options.stream_k} is not used: {sharing.why_no_stream_k}"
    if made.order.dynamic:
        why = "their steps are long"
        if options.dynamic_schedule:
            why = "as asked"
        elif made.order.uneven:
            why = "they differ in length"
        yield f"blocks claim programs one by one: {why}"


def _of_what_is_not_used(made: Decided) -> Iterator[str]:
    memory, sharing, options = made.memory, made.sharing, made.request.options
    unused = {
        "store_columns": memory.why_fewer_columns,
        "subtiles": memory.why_other_subtiles,
        "dynamic_schedule": made.order.why_static if options.dynamic_schedule else "",
    }
    if options.programs not in (None, sharing.members):
        unused["programs"] = sharing.why_no_members
    if options.roles not in (None, "co_resident" if sharing.members > 1 else None):
        unused["roles"] = sharing.why_no_members
    for name, why in unused.items():
        if why:
            yield f"{name} = {getattr(options, name)!r} is not used: {why}"


def _of_cluster(made: Decided) -> Iterator[str]:
    multicast = made.multicast
    x, y = multicast.cluster
    said = f"cluster {x} x {y}"
    if multicast.copies:
        sizes = {
            prod(multicast.cluster[axis] for axis in copy.among)
            for copy in multicast.copies.values()
        }
        blocks = " and ".join(map(str, sorted(sizes)))
        said += (
            f": {len(multicast.copies)} of {len(made.loads.ring_of)} copies serve {blocks} blocks"
        )
    elif multicast.why_not:
        said += f": {multicast.why_not}"
    yield said
