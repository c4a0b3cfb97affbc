"""Plans for Hopper's engines: warp roles, tensor maps and wgmma, where a program's data flow
permits.

A producer warp copies, by tensor maps, what the dots read; consumer warpgroups multiply straight
from shared memory. `roles(program, context, plan)` returns the plan, or says why there is none:

  every dot     has element types that wgmma takes (operands.py). Where all are in one loop, its
                accumulator is loop-carried, as are those of the other dots, or there are several
                dots of which some may run one iteration late (stages.py), or whose tiles fit the
                registers together. Where dots are in several loops, in loops in loops, behind a
                loop or in none, all tiles that are live at once fit the registers. M is a multiple
                of 64 that one to four warpgroups share, N a multiple of 8 up to 256, K 32 bytes.
                Operands are loaded beside the dot or in a loop round it (transposed or not); the
                left one may be computed and stay in registers
  every load    of an operand is a block of an array that the host knows (an argument, or made of
                arguments alone), or of a view that fixes some of its axes, without a mask, whose
                rows (or columns) are dense and begin at multiples of 16 bytes; or threads can copy
                it (gathers.py)
  programs      may run in any order: they may take their work from counters (`why_not_claimed`) and
                add to memory what they have. Or they wait for signals, each role for itself, and
                run in launch order

8-bit operands that wgmma cannot read as they lie are relaid by a role of its own
(layouts/relayout.py), with a ring for what is copied and one for what the role writes. Loads of one
dot in one loop fill a ring together, as do those of all dots that add to one accumulator; an
operand loaded outside its loop has a ring of its own. Small tiles beside such dots, like the scales
of rows, come with them where a map can copy them; scalars are loaded by the producer and broadcast
(warpgroups/broadcasts.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import combinations
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.host_values import is_unbounded
from tkc.ir.plan import DotPlan, LoadPlan, Plan
from tkc.ir.ranges import divisor
from tkc.ir.rewrite import is_inside, loops_of
from tkc.ir.shared import scratch
from tkc.ir.target import LINE, half_of
from tkc.ir.types import TileType, bits, element_of, is_float
from tkc.ir.values import array_type, defining_op, parent_of, tile_type
from tkc.passes import LaunchOptions, PassContext
from tkc.passes.analysis.alias import (
    Overlaps,
    unwritten,
)
from tkc.passes.analysis.mapped import dense_of_block, of_block, unmapped
from tkc.passes.analysis.program_axes import from_memory, program_axes, sources
from tkc.passes.analysis.values import LOADS
from tkc.passes.layouts.epilogue_subtiles import (
    EPILOGUE_REGISTERS_PER_THREAD,
    ResultStore,
    StoredResult,
    epilogue_registers,
    reusable_loads,
    subtile,
    subtile_buffers,
    subtile_bytes,
    widest_subtile,
)
from tkc.passes.planning.bodies import WarpCosts, best_stages, shape
from tkc.passes.planning.gathers import (
    BY_CONSUMERS,
    copied_by_threads,
    copied_bytes,
    loaded_by_consumers,
    why_by_consumers,
)
from tkc.passes.planning.operands import (
    ADDRESS_REGISTERS,
    MAX_LIVE_REGISTERS,
    Sides,
    along_n,
    by_block,
    is_read_again,
    live_registers,
    made_from,
    operand_registers,
    partial,
    parts_of,
    permuted,
    relaid_loads,
    simple,
    source,
    summed,
    why_not_wgmma,
    written_operands,
)
from tkc.passes.planning.order import acquiring_loops, keep_in_order, why_not_claimed, work_claims
from tkc.passes.planning.rings import (
    MAX_RINGS,
    exchanged_bytes,
    fitted,
    least_stages,
    loads_beside,
    operand_loads,
    rings_of,
    small_load_registers,
    stage_bytes,
    stages_of,
)
from tkc.passes.programs.split_k import undivided
from tkc.passes.programs.stream_k import piece_of

if TYPE_CHECKING:
    from tkc.passes.plan import Program

# of a thread of the producer and of a consumer, by consumer warpgroups
ROLE_REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160), 4: (24, 112)}
# of a consumer's thread: with fewer there are none for what is computed ahead, and ptxas spills
MIN_LOOKAHEAD_REGISTERS = 160
# accumulators of more registers a thread take the second, of producer and consumer
LARGE_ACCUMULATOR_REGISTERS, LARGE_ROLE_REGISTERS = 176, (24, 240)
# where two blocks of one consumer warpgroup share a multiprocessor; and of a consumer's thread, for
# all tiles that are live at once
PAIRED_ROLE_REGISTERS, PAIRED_LIVE_REGISTERS = (24, 232), 216
# by which scores, accumulators and left operands may exceed a consumer's registers: they are not
# all live at once
SCORE_REGISTER_SLACK = 12
# of a consumer's thread, for accumulators and left operands
MAX_OPERAND_REGISTERS = {1: 208, 2: 208, 3: 128, 4: 80}
# of producer, consumer and relayout role, by consumer warpgroups; the second where a thread of the
# relayout role holds more than RELAYOUT_SMALL_REGISTERS of an operand
RELAYOUT_ROLE_REGISTERS = {
    1: ((24, 240, 72), (24, 240, 88)),
    2: ((24, 208, 72), (24, 200, 88)),
}
RELAYOUT_SMALL_REGISTERS = 32
# of shared memory and the L1 cache together; of shared memory where the L1 cache needs more than
# all of it leaves
L1_AND_SHARED_BYTES, REDUCED_SHARED_BYTES = 1 << 18, 195 << 10
MAX_PORTABLE_CLUSTER = 8  # blocks; every device with clusters has room for it
# for mbarriers and the scheduler's ring: of a loop with one dot, and with several
BARRIER_BYTES = 1024, 1280


def roles(program: Program, context: PassContext, plan: Plan) -> tuple[Plan | None, str]:
    """The plan with roles made of an ordinary one, or None and the reason. What is asked of
    operands that no such plan can do is left out, and said.
    """
    several = (
        context.options.programs
        if (context.options.programs or 0) > 2 or context.options.roles == "co_resident"
        else None
    )
    asked = [
        (name, value)
        for name, value in (
            ("left_operand", "registers"),
            ("swap_dots", True),
            ("programs", several),
            ("roles", "co_resident"),
        )
        if value is not None and getattr(context.options, name) == value
    ]
    made, why = _roles(program, context, plan)
    if made is None and _is_for_one_warpgroup(program, context.options):
        shared = replace(context.options, roles="cooperative", split_warps=(4, 2))
        made, _ = _roles(program, replace(context, options=shared), plan)
    if (
        made is None
        and context.lack
        and context.options.roles is None
        and context.options.programs is None
    ):
        made, _ = _roles(
            program, context, plan, "shared memory has no room for what two programs need"
        )
    for left_out in (
        some for count in range(1, len(asked) + 1) for some in combinations(asked, count)
    ):
        if made is not None:
            break
        unset: dict[str, Any] = {name: None for name, _ in left_out}
        narrowed = replace(context.options, **unset)
        made, _ = _roles(program, replace(context, options=narrowed), plan)
        if made is not None:
            made = replace(
                made,
                decisions=(
                    *made.decisions,
                    *(f"plan: {name} = {value!r} is not used: {why}" for name, value in left_out),
                ),
            )
    return made, why


def _is_for_one_warpgroup(program: Program, options: LaunchOptions) -> bool:
    """Whether dots have rows for one warpgroup alone, so that two could but share their columns."""
    free = options.roles is None and options.split_warps is None and options.programs is None
    heights = {Sides.of(dot, options).m for dot in program.dots}
    return free and options.num_warps in (None, 8) and len(program.dots) > 1 and heights == {64}


def _roles(
    program: Program, context: PassContext, plan: Plan, single: str = ""
) -> tuple[Plan | None, str]:
    """`roles`, as asked. single: why a block has one program at a time, where that is known."""
    options, dots, overlaps = context.options, program.dots, context.overlaps
    if not context.target.wgmma:
        return None, f"{context.target.name} has no wgmma"
    ordered = keep_in_order(program.kernel, program.loads, options, overlaps)
    if ordered:  # a store by a tensor map would have to be over before its threads say so
        options = replace(options, epilogue="direct")
    if options.roles == "one":
        return None, "roles = 'one', as asked"
    if options.num_warps not in (None, 4, 8, 12, 16):
        return None, f"num_warps = {options.num_warps}: roles have 4, 8, 12 or 16 compute warps"
    if options.split_warps and options.roles is None:
        return None, f"split_warps = {options.split_warps}: one role, unless roles are asked for"
    if unclaimed := why_not_claimed(program.kernel, context.overlaps):
        return None, unclaimed
    claims, waiting = work_claims(program.kernel), acquiring_loops(program.kernel)
    if reasons := [reason for dot in dots if (reason := why_not_wgmma(dot, options))]:
        return None, reasons[0]
    heights = {Sides.of(dot, options).m for dot in dots}
    m = gcd(*heights)
    together = by_block(dots)
    loops = [op for here in together if isinstance(op := here[0].parent_op(), scf.ForOp)]
    # the one loop that has all dots
    lone = loops[0] if loops and len(together) == 1 else None
    by_rows = along_n(options) == 1  # warpgroups share the rows of dots, or their columns
    parts_of_k, whole = _split(program, dots, m, options, waiting)
    relaid = {load: right for dot in dots for load, right in relaid_loads(dot, options)}
    by_threads = [load for load in operand_loads(dots, options) if copied_by_threads(load)]
    if relaid and by_threads:  # a block has one role more, not two
        return _without_role(by_threads, program, context, plan, single)
    third = bool(relaid or by_threads)  # role, beside producer and consumers
    streamed, undealt = _streamed(program, dots, m, parts_of_k, bool(relaid), options)
    if streamed and waiting:
        streamed, undealt = 0, "programs wait for others"
    single = single or ("copies wait for what they store" if ordered else "")
    members, apart = (
        (1, single or "programs wait for others")
        if single or waiting
        else _co_resident(program, dots, m, parts_of_k, streamed, third, context)
    )
    alone = (
        "co-resident"
        if members > 1
        else single
        or ("programs take their work themselves" if claims else "")
        or ("programs wait for others" if waiting else "")
        or _together(program, dots, options)
        or (
            "programs share an output tile"
            if (parts_of_k > 1 or streamed) and options.roles != "pingpong"
            else "an operand is relaid, or copied by threads"
            if third
            else ""
        )
    )
    groups = 1 if not alone or members > 1 else _warpgroups(m, dots, options)
    # warpgroups of consumers, among which a block's registers are divided
    in_all = members if members > 1 else groups
    if not groups:
        return (
            None,
            (
                f"num_warps = {options.num_warps}: {m} rows do not divide among"
                f" {(options.num_warps or 0) // 4} warpgroups of 64"
            ),
        )
    if before_loops := [load for load in relaid if load.parent_op() not in loops]:
        # it would be relaid in every iteration
        return _without_role(before_loops, program, context, plan, single)
    if third and groups not in RELAYOUT_ROLE_REGISTERS:
        return (
            None,
            (
                f"beside {groups} warpgroups there are no registers for one that relays 8-bit"
                " operands, which wgmma reads K-major only, or copies what tensor maps do not"
            ),
        )
    in_memory = written_operands(dots, options)
    in_order = bool(in_memory) or any(
        is_read_again(load) for load in operand_loads(dots, options) if load.parent_op() in loops
    )
    found = [
        searched
        for here in together
        if options.rotate is not False
        and isinstance(loop := here[0].parent_op(), scf.ForOp)
        and (not in_order or summed(here[0]))
        and not (len(here) > 1 and summed(here[0]) and _is_any_computed(here, options))
        and (searched := best_stages(loop, WarpCosts(context.target, 4 * groups, True), overlaps))
    ]
    late = tuple(dot for searched in found for dot in searched.late)
    aside = (
        RELAYOUT_ROLE_REGISTERS[groups][
            bool(by_threads)
            or any(tile_type(load.result).size > 512 * RELAYOUT_SMALL_REGISTERS for load in relaid)
        ]
        if third
        else None
    )
    most = MAX_OPERAND_REGISTERS[in_all] - (LARGE_ROLE_REGISTERS[1] - aside[1] if aside else 0)
    parts = [
        (
            parts_of(d, groups, most)
            if partial(d)
            and not late
            and not relaid_loads(d, options)
            and options.sum_parts != 1
            and by_rows
            else (1, 1)
        )
        for d in dots
    ]
    each = max(
        operand_registers(here, bool(late), [parts[dots.index(d)] for d in here], groups, options)
        for here in together
    )
    in_turn_only = False
    if lone is None:
        each = max(each, live_registers(program.kernel, dots, groups, options))
        in_turn_only = each <= MAX_LIVE_REGISTERS[in_all]
    elif len(dots) > 1 and (each > most or not late) and options.rotate is not True:
        live = live_registers(program.kernel, dots, groups, options)
        if not summed(dots[0]) and live <= MAX_LIVE_REGISTERS[in_all]:
            late, each, in_turn_only = (), live, True
    kept = max(
        (
            tile_type(both.left).bytes // (512 * groups)
            for both in (Sides.of(dot, options) for dot in dots)
            if both.held and source(both.left)
        ),
        default=0,
    )
    if (
        late
        and kept
        and (
            each > LARGE_ACCUMULATOR_REGISTERS
            or each + _scores(dots, late, groups) > LARGE_ROLE_REGISTERS[1]
        )
    ):
        return (
            None,
            f"accumulators and left operands of {each} registers a thread leave none to compute a"
            " step in",
        )
    if each > most and not in_turn_only:
        largest = LARGE_ROLE_REGISTERS[1] if in_all < 3 else ROLE_REGISTERS[in_all][1]
        limit = aside[1] if aside else largest
        return (
            None,
            (f"accumulators and left operands of {each} registers a thread do not fit {limit}"),
        )
    if len(dots) > 1 and not late and not summed(dots[0]) and not in_turn_only:
        return (
            None,
            (
                "several dots in a loop, which do not all accumulate, and of which none can run"
                " one iteration late"
            ),
        )
    relax = plan.relax
    if (
        options.relax is None
        and relax
        and in_all > 2
        and program.maxima
        and each + _scores(dots, late, groups) > ROLE_REGISTERS[in_all][1] + SCORE_REGISTER_SLACK
    ):
        relax = False
    rings = rings_of(dots, relaid, late, options)
    by_consumers = _loaded_by_consumers(dots, options)
    if len(rings) > MAX_RINGS:
        return None, (
            f"the operands of its dots take {len(rings)} rings, of which threads would carry more"
            f" than {MAX_RINGS} stages and parities (a loop by tkc.range has one)"
        )
    posted = (
        {
            load: ring
            for loop in loops
            for load, ring in loads_beside(loop, rings, late, members > 1, overlaps).items()
        }
        if not third
        else {}
    )
    # blocks of a cluster take their programs together
    claimed = members > 1 or options.dynamic_schedule and options.cluster is None
    cluster, cut, uncut = (
        _cluster(dots, context)
        if parts_of_k == 1
        and not (streamed and options.cluster is None)
        and not third
        and not claimed
        and not claims  # neighbours claim what nobody knows beforehand
        # a neighbour copies what this program reads before this program's wait is over
        and not (waiting or ordered)
        else ((1, 1), {}, "")
    )
    registers: tuple[int, ...] = aside or (
        LARGE_ROLE_REGISTERS
        if each > LARGE_ACCUMULATOR_REGISTERS or in_turn_only and in_all < 3
        else ROLE_REGISTERS[in_all if alone else 2]
    )
    copies = members if members > 1 else 1 if alone else 2  # of what a program has in shared memory
    swapped = {Sides.of(dot, options).swapped for dot in dots}
    results = subtile_stores(program.kernel, heights, groups, swapped == {True})
    direct = options.epilogue == "direct"
    leaving = results if not direct and by_rows and len(swapped) == 1 else []
    again = cache_line_bytes(
        [
            op
            for op in program.loads
            if op.parent_op() in loops and not any(op in ring for ring in rings)
        ]
    )
    kind = "co_resident" if members > 1 else "cooperative" if alone else "pingpong"
    narrowed = again > L1_AND_SHARED_BYTES - context.target.shared_bytes - 1024
    taken = (
        BARRIER_BYTES[len(dots) > 1]
        + copies * reduction_bytes(program, dots, groups)
        + copies * sum(tile_type(value).bytes for value in in_memory)
    )
    # dots that wait for vector work leave the tensor cores to another block
    blocks, widest = 1, 64
    pays = in_turn_only and in_order and not third
    if pays and in_all == 1 and each <= PAIRED_LIVE_REGISTERS:
        beside = half_of(context.room(kind)) - taken
        for most_columns in (64, 32):
            needed = subtile_bytes(leaving, groups, most_columns, 1)
            if blocks == 1 and stages_of(rings, beside - needed, options.num_stages)[0]:
                blocks, widest = 2, most_columns
    if blocks == 2:
        registers = PAIRED_ROLE_REGISTERS
    available = half_of(context.room(kind)) if blocks == 2 else context.room(kind)
    narrowed = narrowed and blocks == 1
    largest = available - taken
    room = largest - max(0, available - REDUCED_SHARED_BYTES) * narrowed
    columns, narrower = _columns(
        [store.op for store in (results if direct else leaving)],
        each * min(2, parts_of_k),
        in_all,
        options,
    )
    widths = [c for c in (64, 32, 16, 8) if c <= min(columns, widest)]
    columns, subtiles, fitting = fitted(
        leaving, rings, groups, widths, copies, room, members, options
    )
    # a second stage of what warpgroups write for one another, where no loop's ring has fewer for it
    written_stages = 1
    sharing = groups if copies == 1 else 1
    if more := exchanged_bytes(in_memory, loops, sharing, context.target, overlaps):
        both = fitted(leaving, rings, groups, widths, 1, room - more, 1, options)
        if least_stages(rings, loops, both[2]) >= max(1, least_stages(rings, loops, fitting)):
            written_stages, room, largest = 2, room - more, largest - more
            columns, subtiles, fitting = both
    through, occupied = _through(leaving, rings, lone, groups, columns, room, members, options)
    if through:
        subtiles[0], fitting[0] = 0, stages_of(rings, room, options.num_stages, members)
    otherwise = (
        occupied if options.subtiles == 0 else _unturned(leaving, groups, columns, fitting, options)
    )
    # co-resident: through stages, so that each program's next ones have room; else two subtiles in
    # turn unless the second one costs a stage
    in_turn = (
        options.subtiles
        if options.subtiles is not None and not otherwise
        else 0
        if through and members > 1
        else max((1, 2), key=lambda n: (fitting[n][0], n))
    )
    if in_turn:
        through = []
    stages, reason = fitting[in_turn]
    if reason:
        return None, reason
    uneven = any(
        program_axes([op.lb, op.ub, op.step])
        for op in program.kernel.walk()
        if isinstance(op, scf.ForOp)
    )
    unshared = (
        "programs take their work themselves"
        if claims
        else "programs that wait run in launch order"
        if waiting
        else ""
        if alone and cluster == (1, 1) and parts_of_k == 1 and not streamed
        else (
            "warpgroups have programs of their own"
            if not alone
            else "blocks share their programs' parts, or copies"
        )
    )
    queue = not unshared and (
        members > 1 or uneven or bool(late)
        if options.dynamic_schedule is None
        else options.dynamic_schedule
    )
    # a program's Q must find room beside the one before's, also in registers; measured where two
    # warpgroups share a program, and where three have programs whose loops begin at one place:
    # there it pays; the checks of TKC_DEBUG need the registers
    twice = members == 1 or all(
        n >= 2 * members
        for n, ring in zip(stages, rings, strict=False)
        if ring[0].parent_op() is not lone
    )
    pays = lone is not None and (
        in_all == 2
        if members == 1
        else registers[1] >= MIN_LOOKAHEAD_REGISTERS and 0 not in program_axes([lone.lb])
    )
    fuse = (
        lone is not None
        and (
            pays and not options.debug
            if options.cross_tile_prologue is None
            else options.cross_tile_prologue
        )
        and twice
        and bool(late)
        and queue
        and not (third or ordered)
        and (not kept or each + kept <= LARGE_ACCUMULATOR_REGISTERS)
        and not from_memory([v for ring in rings for load in ring for v in load.operands])
        and min(stages, default=1) > 1
        # the next program's first dot is issued with its operands alone
        and {load for ring in rings for load in ring} <= set(operand_loads(dots, options))
    )
    serpentine = (
        bool(options.serpentine)
        and not queue
        and parts_of_k == 1
        and not undivided(program.kernel, dots)
    )
    broadcast: dict[Operation, int] = {op: ring for op, ring in posted.items()}
    shares: dict[Operation, tuple[int, int, tuple[int, ...]]] = {
        op: share for op, share in cut.items()
    }
    which: dict[Operation, int] = {
        load: i for i, ring in reversed(list(enumerate(rings))) for load in ring
    }
    second: dict[Operation, int] = {
        load: i for i, ring in enumerate(rings) for load in ring if load in relaid
    }
    loads = tuple(
        (
            LoadPlan(
                "cp_async" if op in by_threads else "tma",
                copied_bytes(op) if op in by_threads else 16,
                (share := shares.get(op, (-1, 1, (0,))))[0],
                share[2],
                which[op],
                second.get(op, -1),
                _kept(op, plan, options),
                boxes=share[1],
                fetch=0 if op in by_threads else _fetched(op),
            )
            if isinstance(op, tile.Load) and op in which
            else LoadPlan("broadcast", ring=broadcast[op])
            if op in broadcast
            else replace(load, path="registers")
            if isinstance(op, LOADS) and loaded_by_consumers(op)
            else load
        )
        for op, load in zip(program.loads, plan.loads, strict=False)
    )
    small = small_load_registers(loops, which.keys() | broadcast.keys(), groups)
    scores = _scores([dot for dot in dots if not summed(dot) and not partial(dot)], late, groups)
    busy = each + scores + ADDRESS_REGISTERS
    early = not small or busy + small <= MAX_OPERAND_REGISTERS[in_all]
    shared_by = sorted({prod(cluster[axis] for axis in axes) for *_, axes in cut.values()})
    why_claimed = "their steps are long"
    if options.dynamic_schedule:
        why_claimed = "as asked"
    elif uneven:
        why_claimed = "they differ in length"
    said = [
        (
            f"plan: roles: a producer of {registers[0]} registers, {in_all if alone else 2}"
            f" warpgroups of consumers of {registers[1]} ({each} of them accumulators and left"
            " operands)"
        ),
        (
            f"plan: co_resident: {members} co-resident programs, a warpgroup each, share loads"
            " that do not depend on axis 0"
            if members > 1
            else (
                f"plan: cooperative: a block's consumers share a program: {alone}"
                if alone
                else (
                    "plan: ping-pong: each of a block's two warpgroups has every second program;"
                    " one is in its epilogue during the other's dots"
                )
            )
        ),
    ]
    said += [f"plan: stages: {searched.said()}" for searched in found]
    for i, dot in enumerate(dots):
        said.append(
            f"plan: dot {i} ({shape(dot)}):"
            f" wgmma{', as its transpose' * Sides.of(dot, options).swapped}, left operand in"
            f" {'registers' if Sides.of(dot, options).held else 'shared memory'}"
            + (", one iteration late, beside the next one's first dot" if dot in late else "")
        )
        if changed := ["left" if not right else "right" for _, right in relaid_loads(dot, options)]:
            said.append(
                f"plan: dot {i}: the {' and the '.join(changed)}"
                f" operand{'s are' if len(changed) == 2 else ' is'} relaid by a warpgroup of"
                f" {registers[2]} registers: wgmma reads 8 bits K-major only"
                + (
                    ", and K is counted in the order of the left operand's registers"
                    if permuted(dot, options)
                    else ""
                )
            )
    said += [
        f"plan: a warpgroup of {registers[2]} registers copies a block of"
        f" {'x'.join(map(str, tile_type(load.result).extents))}, because tensor maps do not:"
        f" {unmapped(load)}"
        for load in by_threads
    ]
    said += [f"plan: the consumers load {which_and_why}" for which_and_why in by_consumers]
    if ordered:
        said.append(
            "plan: copies wait for what programs store, which they may read afterwards: results are"
            " stored from registers"
        )
    if fuse:
        said.append(
            "plan: the next program's first dot is issued before this one's results are stored"
        )
    if blocks > 1:
        said.append(
            f"plan: {blocks} blocks share a multiprocessor: one has its vector work during the"
            " other's dots"
        )
    if written_stages > 1:
        said.append(
            f"plan: {written_stages} stages of what warpgroups write for one another: each waits"
            " for the others' parts where it needs them, not where it has written its own"
        )
    if relax != plan.relax:
        said.append(
            f"plan: running maxima stay exact: {in_all} warpgroups have no registers to keep scores"
            " until they are known to fit"
        )
    if narrowed:
        said.append(
            f"plan: {again} bytes of lines that the loop reads again stay in the L1 cache, which"
            f" {REDUCED_SHARED_BYTES} bytes of shared memory leave it"
        )
    copied = len(which) - len(operand_loads(dots, options))
    if posted or copied:
        said.append(
            f"plan: of {copied + len(posted)} small loads beside the dots tensor maps copy"
            f" {copied}, and the producer broadcasts {len(posted)}"
        )
    if not early:
        said.append(
            f"plan: small blocks are loaded where they are used: beside {busy} registers a thread"
            f" there are none for {small} more an iteration early"
        )
    said += [
        f"plan: ring {i}: {n} stages of {stage_bytes(ring)} bytes"
        for i, (n, ring) in enumerate(zip(stages, rings, strict=False))
    ]
    said += [
        (
            "plan: results are stored through the stages of"
            f" {' and '.join(f'ring {which[load]}' for load in through)}"
            if through
            else (
                f"plan: {subtiles[in_turn]} bytes for the output, which is stored {columns}"
                " columns at a time"
                if leaving
                else "plan: results are stored from registers"
            )
        ),
        "plan: a program takes its work from counters: its producer does, ahead of its consumers"
        if claims
        else "plan: persistent: blocks take programs in turn, so that copies run ahead across"
        " programs",
        *(
            ["plan: producer and consumers wait for other programs, each for itself"]
            if waiting
            else []
        ),
        *([f"plan: k in {parts_of_k} parts, as asked"] if parts_of_k > 1 else []),
        *([f"plan: split_k = {options.split_k} is not used: {whole}"] if whole else []),
        *(
            [f"plan: the last wave's programs in at most {streamed} parts of k each, as asked"]
            if streamed
            else []
        ),
        *([f"plan: stream_k = {options.stream_k} is not used: {undealt}"] if undealt else []),
        *([f"plan: blocks claim programs one by one: {why_claimed}"] if queue else []),
        *(
            f"plan: {name} = {getattr(options, name)!r} is not used: {why}"
            for name, why in (
                ("store_columns", narrower),
                ("subtiles", otherwise),
                ("dynamic_schedule", unshared if options.dynamic_schedule else ""),
                *(
                    (name, apart)
                    for name, got in (
                        ("programs", members),
                        ("roles", "co_resident" if members > 1 else None),
                    )
                    if getattr(options, name) not in (None, got)
                ),
            )
            if why
        ),
        f"plan: cluster {cluster[0]} x {cluster[1]}"
        + (
            f": {len(cut)} of {len(which)} copies serve {' and '.join(map(str, shared_by))} blocks"
            if cut
            else f": {uncut}"
            if uncut
            else ""
        ),
    ]
    planned = tuple(
        DotPlan(
            "wgmma",
            (groups, 1) if by_rows else (1, groups),
            *_sources(dot, options),
            swap=Sides.of(dot, options).swapped,
            parts=p,
            permuted=permuted(dot, options),
        )
        for dot, p in zip(dots, parts, strict=False)
    )
    return (
        replace(
            plan,
            warps=4 * groups,
            stages=max(stages, default=options.num_stages or 1),
            dots=planned,
            loads=loads,
            early_small_loads=early,
            roles=kind,
            programs=copies,
            registers=registers,
            cluster=cluster,
            raster=plan.raster,
            serpentine=serpentine,
            persistent=not claims,
            blocks=blocks if blocks > 1 else 0,
            split_k=parts_of_k,
            stream_k=streamed,
            dynamic_schedule=queue,
            epilogue="tma" if leaving else "direct",
            columns=columns,
            subtiles=in_turn,
            reuse_operand_stages=tuple(program.loads.index(load) for load in through),
            rings=stages,
            written_stages=written_stages,
            rotate=tuple(i for i, dot in enumerate(dots) if dot in late),
            copies_wait=ordered,
            cross_tile_prologue=fuse,
            relax=relax,
            decisions=tuple(said),
            spare=largest
            - subtiles[in_turn]
            - sum(n * stage_bytes(ring) for n, ring in zip(stages, rings, strict=False)),
        ),
        "",
    )


def _takes_steps_in_turn(loop: scf.ForOp) -> bool:
    """Whether programs take every so many-th step of one loop each: they begin at different steps,
    and their numbers of steps differ by one at most.
    """
    step = divisor(loop.step) if isinstance(loop.step.owner, tile.Constant) else 0
    each = divisor(loop.lb)
    return not program_axes([loop.ub, loop.step]) and 0 < each < step and step % each == 0


def is_conditional(loop: scf.ForOp) -> bool:
    """Whether programs may make a loop's iterations a different number of times, or not at all:
    it is in a loop without a count, in a branch, or in a loop whose bounds differ.
    """
    around = loop.parent_op()
    while around is not None and not isinstance(around, tile.Kernel):
        if not isinstance(around, scf.ForOp):
            return True
        bounds = [around.lb, around.ub, around.step]
        if program_axes(bounds) or from_memory(bounds):
            return True
        around = around.parent_op()
    return False


def _warpgroups(m: int, dots: Sequence[tile.Dot], options: LaunchOptions) -> int:
    """How many warpgroups share a program's rows, 64 or more each: two where the rows divide so,
    three of 192 where several dots or a large accumulator are too much for one; 0 where they do not
    divide as asked.
    """
    asked = (options.num_warps or 0) // 4
    if (columns := along_n(options)) > 1:
        return columns if asked in (0, columns) else 0
    if asked > 2:
        return asked if m % (64 * asked) == 0 else 0
    alone = operand_registers(dots, False, [(1, 1)] * len(dots), 1, options)
    if m == 192 and not asked and (len(dots) > 1 or alone > MAX_OPERAND_REGISTERS[1]):
        return 3
    return 1 if m % 128 or asked == 1 else 2


def _co_resident(
    program, dots, m: int, parts: int, streamed: int, relaid: bool, context: PassContext
) -> tuple[int, str]:
    """How many co-resident programs a block runs, 1 for none; and why not as asked. As many as
    registers hold, where a loop of several dots walks over more or less with the program: each then
    walks over its own."""
    options, loop = context.options, dots[0].parent_op()
    if len(by_block(dots)) > 1 or not isinstance(loop, scf.ForOp):
        return 1, "dots are in several loops, or in none"
    asked = options.programs
    forced = options.roles == "co_resident" or options.roles is None and (asked or 0) > 2
    if not forced and (
        options.roles is not None
        or asked is not None
        or len(dots) == 1
        or options.num_warps is not None
        or options.dynamic_schedule is False
        or 0 not in program_axes([loop.lb, loop.ub])
    ):
        return 1, ""
    if asked == 1:
        return 1, "one program is co-resident with no other"
    if is_conditional(loop):
        return 1, "its loop is in another, or in a condition"
    if any(is_unbounded(load.array) for load in operand_loads(dots, options)):
        return 1, "an operand is read by addresses that nothing bounds"
    if _reads_the_first_of_written(operand_loads(dots, options), (0,), context.overlaps):
        return 1, "operands lie in an array of which every program writes a part"
    if m != 64:
        return 1, f"{m} rows are not one warpgroup's"
    if parts > 1 or streamed:
        return 1, "programs share an output tile"
    if relaid:
        return 1, "an operand is relaid, or copied by threads"
    if written_operands(dots, options):
        return 1, "an operand is computed that dots read in shared memory"
    if any(
        is_read_again(load) for load in operand_loads(dots, options) if load.parent_op() is loop
    ):
        return 1, "an operand has several readers"
    if options.num_warps not in (None, 4):
        return 1, f"{options.num_warps} compute warps, as asked"
    if options.dynamic_schedule is False:
        return 1, "programs are assigned statically, as asked, and co-resident ones are claimed"
    loads = [load for load in operand_loads(dots, options) if load.parent_op() is loop]
    if 0 in program_axes(
        [loop.step, *(v for load in loads for v in load.operands)], given=[loop.body.block.args[0]]
    ):
        return 1, "what a loop loads depends on axis 0"
    if any(
        isinstance(op, LOADS) and 0 in program_axes(op.operands)
        for op in sources([loop.lb, loop.ub, loop.step])
    ):
        return 1, "a loop's bounds are loaded from a place that depends on axis 0"
    if 0 in program_axes([loop.lb]) and not (
        isinstance(loop.step.owner, tile.Constant)
        and divisor(loop.lb) % loop.step.owner.number == 0
    ):
        return 1, "loops do not begin whole steps apart"
    each = operand_registers(dots, len(dots) > 1, [(1, 1)] * len(dots), 1, options)
    scores = _scores(
        dots,
        [
            d
            for d in dots
            if Sides.of(d, options).held and source(Sides.of(d, options).left) is None
        ],
        1,
    )
    most = max(
        (
            n
            for n in ROLE_REGISTERS
            if 1 < n <= (asked or n)
            and each <= MAX_OPERAND_REGISTERS[n]
            and each + scores <= ROLE_REGISTERS[n][1] + SCORE_REGISTER_SLACK
        ),
        default=1,
    )
    held_by = min(asked or 2, max(ROLE_REGISTERS))
    return most, (
        ""
        if most == (asked or most) > 1
        else (
            f"a block has no registers for {asked} warpgroups"
            if (asked or 0) > held_by
            else (
                f"accumulators and left operands of {each} registers a thread do not fit"
                f" {ROLE_REGISTERS[held_by][1]}"
            )
        )
    )


def _scores(dots, late, groups: int) -> int:
    """Registers of a thread for what the late dot's operand is computed from."""
    return max(
        (
            d.acc.type.size * bits(d.acc.type.element) // (32 * 128 * groups)
            for d in dots
            if d not in late
        ),
        default=0,
    )


def _is_any_computed(dots: Sequence[tile.Dot], options: LaunchOptions) -> bool:
    """Whether an operand of some dots is computed, or held in registers."""
    return any(both.held or any(both.written) for both in (Sides.of(d, options) for d in dots))


def _loaded_by_consumers(dots: Sequence[tile.Dot], options: LaunchOptions) -> list[str]:
    """What the consumers load of the operands, and why."""
    return [
        f"a block of {'x'.join(map(str, tile_type(load.result).extents))}: {why_by_consumers(load)}"
        for load in dict.fromkeys(load for dot in dots for load in made_from(dot, options))
        if loaded_by_consumers(load)
    ]


def _without_role(
    loads: Iterable[tile.Load], program: Program, context: PassContext, plan: Plan, single: str
) -> tuple[Plan | None, str]:
    """The plan in which consumers load some blocks themselves."""
    for load in loads:
        load.attributes[BY_CONSUMERS] = UnitAttr()
    return _roles(program, context, plan, single)


def _split(program, dots, m: int, options, waiting) -> tuple[int, str]:
    """Into how many parts k is divided, and why not as asked."""
    asked = options.split_k or 1
    if asked == 1:
        return 1, ""
    if waiting:
        return 1, "programs wait for others"
    each = dots[0].acc.type.size // (
        128 if options.roles == "pingpong" else 128 * max(1, _warpgroups(m, dots, options))
    )
    reason = undivided(program.kernel, dots)
    if not reason and program_axes([dots[0].parent_op().lb, dots[0].parent_op().ub]):
        reason = "the number of steps differs between programs"
    if not reason and 2 * each > MAX_OPERAND_REGISTERS[1]:
        reason = f"an accumulator of {each} registers a thread leaves no room for a part of another"
    return (1, reason) if reason else (asked, "")


def _streamed(program, dots, m: int, parts: int, relaid: bool, options) -> tuple[int, str]:
    """In how many parts of K a program of the last wave is divided, and why not as asked."""
    asked = options.stream_k or 0
    if asked < 2:
        return 0, "a program has two parts or more" if asked else ""
    loop, groups, t = (
        dots[0].parent_op(),
        1 if options.roles == "pingpong" else max(1, _warpgroups(m, dots, options)),
        dots[0].acc.type,
    )
    each, piece = (
        t.size // (128 * groups),
        prod(piece_of(t.extents[0], t.extents[1], groups)) // (128 * groups),
    )
    reason = (
        "programs have parts already: split_k"
        if parts > 1
        else "an operand is relaid"
        if relaid
        else undivided(program.kernel, dots)
    )
    if not reason and (
        program_axes(bounds := [loop.lb, loop.ub, loop.step]) or from_memory(bounds)
    ):
        reason = "the number of steps differs between programs"
    if not reason and each + piece > MAX_OPERAND_REGISTERS[1]:
        reason = (
            f"an accumulator of {each} registers a thread leaves no room for {piece} of another"
        )
    return (0, reason) if reason else (asked, "")


def _together(program, dots, options) -> str:
    """Why the consumers of a block share a program; empty where each of two warpgroups can have a
    program of its own, in turns. It can if its registers hold the sum and every program has the
    same number of steps, so that it knows which stages are the other's.
    """
    if along_n(options) > 1:
        return "they share the columns of each dot"
    if options.roles == "cooperative" or options.programs == 1:
        return "as asked"
    if options.num_warps in (8, 12, 16):
        return f"{options.num_warps} compute warps, as asked"
    if options.dynamic_schedule and options.roles != "pingpong" and options.programs != 2:
        return "programs are claimed one by one, as asked"
    if len(dots) > 1 or not simple(dots[0]):
        return "its loop does more than accumulate one dot"
    loop, each = dots[0].parent_op(), operand_registers(dots, False, [(1, 1)], 1, options)
    if any(Sides.of(dots[0], options).written):
        return "an operand is computed"
    if Sides.of(dots[0], options).held:
        return (
            "an operand is computed"
            if source(Sides.of(dots[0], options).left) is None
            else "an operand is read into registers"
        )
    shown = filter(None, map(source, (dots[0].a, dots[0].b)))
    if any(load.parent_op() is not loop for load in shown):
        return "an operand is loaded before the loop"
    if each > MAX_OPERAND_REGISTERS[1]:
        return f"an accumulator of {each} registers a thread does not fit one warpgroup"
    bounds = [loop.lb, loop.ub, loop.step]
    alike = options.roles == "pingpong" or _takes_steps_in_turn(loop)
    if is_conditional(loop) or program_axes(bounds) and (not alike or from_memory(bounds)):
        return "the number of steps differs between programs"
    if _counts_with(bounds, loops_of(loop)):
        return "the number of steps differs between iterations of a loop round it"
    found = subtile_stores(program.kernel, {dots[0].acc.type.extents[0]}, 1)
    stores = [store.op for store in found]
    whole = {
        v
        for op in program.kernel.walk()
        if isinstance(op, tile.Reduce) and op.parent_op() is not loop
        for v in op.args
    } - {*loop.results}
    if epilogue_registers(stores, each * (1 + bool(whole))) > ROLE_REGISTERS[1][1]:
        return (
            f"an accumulator of {each} registers a thread and its epilogue do not fit one warpgroup"
        )
    return ""


def _counts_with(bounds: Sequence[SSAValue], loops: Sequence[Operation]) -> bool:
    """Whether bounds are computed from the counter of one of these loops, or what it carries."""
    seen: set[SSAValue] = set()
    left = list(bounds)
    while left:
        v = left.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v.owner, Operation):
            left += [x for inner in v.owner.walk() for x in inner.operands]
        elif v.owner.parent_op() in loops:
            return True
    return False


def _columns(
    stores: list[ResultStore],
    sums: int,
    warpgroups: int,
    options: LaunchOptions,
) -> tuple[int, str]:
    """How many columns of a result are stored at once, at most, and why not as asked. Where stores
    that could be stored in subtiles are not, a thread has addresses beside them.
    """
    direct = options.epilogue == "direct"
    room = (
        EPILOGUE_REGISTERS_PER_THREAD
        if warpgroups < 3
        else ROLE_REGISTERS[warpgroups][1]
        - (LARGE_ROLE_REGISTERS[1] - EPILOGUE_REGISTERS_PER_THREAD)
    )
    most = widest_subtile(stores, sums + direct * ADDRESS_REGISTERS, room)
    asked = options.store_columns or 0
    if stores and not direct and asked == 8:
        return most, "a subtile is 16 columns wide or more"
    return (
        (most, f"beside an accumulator of {sums} registers a thread there is room for {most}")
        if asked > most
        else (asked or most, "")
    )


def _through(
    leaving: list[StoredResult],
    rings,
    loop: Operation | None,
    groups: int,
    columns: int,
    room: int,
    members: int,
    options: LaunchOptions,
) -> tuple[list[tile.Load], str]:
    """The loads through whose stages results can be stored, one a store; and why none can. A stage
    is released once the next program has begun, so each program needs two.
    """
    if not leaving:
        return [], "results are stored from registers"
    if groups > 1:
        return [], "each warpgroup of a program stores its rows when it has them"
    if loop is None:
        return [], "dots are in several loops, or in none"
    alone = [ring[0] for ring in rings if len(ring) == 1 and ring[0].parent_op() is not loop]
    found = reusable_loads(leaving, alone, loop, groups, columns)
    if not found:
        return [], "no load's buffer has room for them when they are stored"
    stages, reason = stages_of(rings, room, options.num_stages, members)
    if not stages:
        return [], reason
    return (
        (found, "")
        if all(n >= 2 * members for n, ring in zip(stages, rings, strict=False) if ring[0] in found)
        else ([], "the next program's have no stage beside them")
    )


def _unturned(
    leaving: list[StoredResult], groups: int, columns: int, fitting: dict, options: LaunchOptions
) -> str:
    """Why a result is not stored through as many buffers in turn as asked; empty where it is."""
    if not options.subtiles:
        return ""
    if not leaving:
        return "results are stored from registers"
    if not fitting[options.subtiles][0]:
        return f"beside them {fitting[options.subtiles][1]}"
    return (
        ""
        if all(
            subtile_buffers(store, groups, columns, options.subtiles) == options.subtiles
            for store in leaving
        )
        else "a result's parts are no multiple of so many"
    )


def _sources(dot, options: LaunchOptions) -> tuple[str, str]:
    """Where the left and the right operand come from."""
    changed = [right for _, right in relaid_loads(dot, options)]
    both = Sides.of(dot, options)
    left, right = (
        "written" if is_written else "relaid" if side in changed else "shared"
        for side, is_written in zip((False, True), both.written, strict=True)
    )
    return "registers" if both.held else left, right


def cache_line_bytes(loads: list[Operation]) -> int:
    """Bytes of the cache's lines that a loop's small blocks, which go to registers, lie in: where
    rows are apart a whole line each, of which the next iterations read more.
    """
    total = 0
    for op in loads:
        if not isinstance(op, tile.Load) or not isinstance(op.result.type, TileType):
            continue
        size, facts = bits(op.result.type.element) // 8, array_type(op.array).facts.strides
        total += LINE * prod(
            -(-n * size // LINE) if s.exact == 1 else n
            for n, s in zip(op.extents.get_values(), facts, strict=False)
            if n > 0
        )
    return total


def _kept(load: Operation, plan: Plan, options) -> str:
    """What a raster reads again as it moves along axis 1 stays in the cache; what it reads but then
    goes first.
    """
    if not options.retain or plan.raster < 2:
        return ""
    axes = program_axes(load.operands)
    return (
        "evict_last"
        if 0 in axes and 1 not in axes
        else "evict_first"
        if 1 in axes and 0 not in axes
        else ""
    )


def _fetched(load: tile.Load) -> int:
    """What lies beside a line of a narrow block is asked for by another program or copy at about
    the same time: read two lines at once, each would be read for both.
    """
    extents, dense = load.extents.get_values(), dense_of_block(load)
    axis = [a for a, n in enumerate(extents) if n >= 0][dense]
    loop = load.parent_op()
    # not what the next iteration loads
    beside = (
        loop is not None
        and not is_inside(load.offsets[axis], loop)
        and program_axes([load.offsets[axis]])
    )
    return (
        LINE
        if extents[axis] * bits(tile_type(load.result).element) <= 2 * 8 * LINE and beside
        else 0
    )


def _cluster(
    dots, context: PassContext
) -> tuple[tuple[int, int], dict[tile.Load, tuple[int, int, tuple[int, ...]]], str]:
    """The cluster; for each load that its blocks share, the buffer's axis along which they share
    the work, the boxes in which a share arrives, and the cluster's axes along which those are that
    share it; why one that could be shared is not."""
    asked = context.options.cluster
    shape = (2, 1) if asked is None else asked if prod(asked) <= MAX_PORTABLE_CLUSTER else (1, 1)
    if (
        shape == (1, 1)
        or len(by_block(dots)) > 1
        or not isinstance(dots[0].parent_op(), scf.ForOp)
        or len(dots) > 1
        and not summed(dots[0])
        or asked is None
        and has_small_accumulators(dots)
        or is_conditional(parent_of(dots[0], scf.ForOp))
        or any(is_unbounded(load.array) for load in operand_loads(dots, context.options))
    ):
        return (1, 1), {}, ""
    cut: dict[tile.Load, tuple[int, int, tuple[int, ...]]] = {}
    uncut, loads = "", operand_loads(dots, context.options)
    along = [axis for axis, n in enumerate(shape) if n > 1]
    if _reads_the_first_of_written(loads, along, context.overlaps):
        return (1, 1), {}, "operands lie in an array of which every program writes a part"
    if any(load.parent_op() is not dots[0].parent_op() for load in loads):
        return (1, 1), {}, ""  # blocks share the stages of one ring
    for load in loads:
        around = parent_of(load, scf.ForOp)
        differs = program_axes([*load.operands, around.lb, around.ub, around.step])
        among = tuple(axis for axis, n in enumerate(shape) if n > 1 and axis not in differs)
        extents, size = (
            [n for n in load.extents.get_values() if n >= 0],
            prod(shape[axis] for axis in among),
        )
        if not among or len(extents) != 2 or len(load.extents.get_values()) != 2:
            continue
        panel, dense = (
            of_block(load).swizzle * 8 // bits(tile_type(load.result).element),
            dense_of_block(load),
        )
        boxes = extents[dense] // panel
        if boxes % size == 0:
            cut[load] = dense, 1, among
        elif extents[1 - dense] % (8 * size):
            uncut = f"{extents[1 - dense]} rows of an operand do not divide in eights"
        elif boxes == 1 or asked is not None:
            cut[load] = 1 - dense, boxes, among
        else:
            uncut = (
                f"a block's share of an operand {extents[dense]} wide would arrive in {boxes}"
                " boxes:"
                " by cluster = (2, 1) alone"
            )
    shared = {axis for *_, among in cut.values() for axis in among}
    useful = (shape[0] if 0 in shared else 1, shape[1] if 1 in shared else 1)
    return useful, cut, uncut


def _reads_the_first_of_written(
    loads: Sequence[tile.Load], along: Collection[int], overlaps: Overlaps
) -> bool:
    """Whether a padding tile of tile groups along some axes would copy operands that another
    program writes: of arrays that program ids index, it has the first (programs/tile_groups.py).
    """
    return any(
        not unwritten(load, overlaps) and not program_axes(_indices(load.array)).isdisjoint(along)
        for load in loads
    )


def _indices(array: SSAValue) -> Iterator[SSAValue]:
    """What the views of an array are indexed by."""
    while (view := defining_op(array, tile.View)) is not None:
        yield from view.offsets
        array = view.array


def has_small_accumulators(dots: Sequence[tile.Dot]) -> bool:
    """Whether a program's sums are so small that its blocks share copies only as asked."""
    return (
        sum(tile_type(dot.acc).size for dot in dots if not isinstance(dot.acc.owner, tile.Dot))
        < 128 * 128
    )


def subtile_stores(
    kernel: tile.Kernel, heights: Set[int], groups: int, swapped: bool = False
) -> list[StoredResult]:
    """The stores of results that are stored in subtiles. heights: rows of the dots' results, as
    warpgroups hold them; swapped: the dots will be computed as their transposes.
    """
    stores = [
        StoredResult.of(op, swapped)
        for op in kernel.walk()
        if isinstance(op, ResultStore) and isinstance(op.value.type, TileType)
    ]
    return [
        store
        for store in stores
        if subtile(store, groups, 64)
        and tile_type(store.op.value).extents[store.transposed] in heights
        and is_stored_by_map(store.op)
    ]


def reduction_bytes(program: Program, dots: Sequence[tile.Dot], groups: int) -> int:
    """Shared memory for a consumer's reductions along the rows of its sum, which lie in several
    warps, and for what the emitter puts there.
    """

    def wide(op):
        return (
            op.args[0].type.rank == 2
            and op.axis.value.data == 0
            and op.args[0].type.extents[0] == tile_type(dots[0].acc).extents[0]
        )

    return sum(
        scratch(op)
        + sum(
            4 * groups * tile_type(v).extents[1] * 8
            for v in (op.args if isinstance(op, tile.Reduce) and wide(op) else ())
        )
        for op in program.kernel.walk()
    )


def is_stored_by_map(op: ResultStore) -> bool:
    """Whether tensor maps can store parts of a matrix, or add them to it."""
    if isinstance(op, tile.AtomicBlock) and not _is_reduced_by_map(op):
        return False
    return not unmapped(op) and dense_of_block(op) == 1 and tile_type(op.value).rank == 2


def _is_reduced_by_map(op: tile.AtomicBlock) -> bool:
    """Whether the tensor memory accelerator can update memory so: sums of 16- and 32-bit floats,
    and extrema of 16-bit floats.
    """
    element = element_of(op.value.type)
    if not is_float(element):
        return False
    return op.kind.data in {16: ("add", "min", "max"), 32: ("add",)}.get(bits(element), ())
