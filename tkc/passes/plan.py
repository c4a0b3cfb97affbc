"""plan: chooses everything the compiler chooses about a kernel, as one frozen `Plan`. No other pass
chooses, and this one leaves the program as it is: it only writes the plan and numbers on it.

    tile.kernel @product {…}              tile.kernel @product {warps = 4, plan = "{'stages': 4}"}
      %a = tile.load …              ->      %a = tile.load … {number = 0}
      %d = tile.dot %a, %b, %acc            %d = tile.dot %a, %b, %acc {number = 0}

`legal` says what a plan breaks (registers, shared memory), `candidates` yields alternatives for
tuning to measure; the user's options narrow both. `Plan.decisions` says why each choice was made
and what was rejected.

Rules for plans of one role (mma.sync; planning/hopper.py has those for wgmma):

  instruction   of the tensor cores where one takes the element types and divides K; otherwise
                multiply-adds
  warps         the fewest of 4, 8, 16 that keep a thread's accumulators within
                MAX_ACCUMULATOR_REGISTERS (with loads that pass through registers:
                MAX_STAGED_REGISTERS), or more (`assembler.row_accumulators`) where warps have
                rows of their own, two blocks share a multiprocessor, and what lives at once is
                within `assembler.row_live`: each warp reads all of the right operands, so that
                half as many read half as much shared memory; one or two, where dots multiply
                what dots have made and fewer take less (planning/meetings.py); programs without
                dots: planning/streaming.py
  split         the warps' shares of M and N that read least shared memory; all along M where rows
                are reduced or feed another dot, so that a row stays in one warp
  loads         what only feeds dots goes through shared memory, in a loop ahead of its use if at
                least 4 bytes move at a time
  stages        as many as half of the shared memory holds (all of it for large stages), 4 at most;
                of 4 warps, which leave a multiprocessor's schedulers one each, 2 in half of it
                before 4 in all
  raster        8 neighbours along axis 0 before axis 1 moves on, so that blocks in flight share
                rows and columns in the L2 cache
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.ir import Operation, SSAValue

from tkc.errors import CompileError, VerifyError
from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.plan import DotPlan, LoadPlan, Plan
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import loop_of
from tkc.ir.target import Target, half_of
from tkc.ir.text import location_of
from tkc.ir.types import TileType, bits, element_of, f8e4m3, f8e5m2
from tkc.ir.values import holds, operations_in, tile_type
from tkc.passes import LaunchOptions, PassContext
from tkc.passes.analysis.access import Access, bytes_of, tile_of
from tkc.passes.analysis.mapped import (
    BEFORE_OR_INSIDE,
    BEGINS_INSIDE,
    begins_inside,
    dense_axis,
    is_before_or_inside,
    narrow_panel,
)
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.remembered import remembered, unchanged
from tkc.passes.analysis.values import LOADS, POINTWISE, VIEWS, dots_fed, feeding_dots
from tkc.passes.planning import streaming
from tkc.passes.planning.bodies import WarpCosts, best_stages
from tkc.passes.planning.converting import STAYS, convert_operand, loads_behind
from tkc.passes.planning.cost import Cost, Work, cost, is_cut
from tkc.passes.planning.hopper import roles
from tkc.passes.planning.meetings import fewest_that_multiply
from tkc.passes.planning.numbers import Sizes
from tkc.passes.planning.operands import blocks_behind, partial, untransposed
from tkc.passes.planning.pressure import (
    carried_words,
    demand,
    fits,
    held_by,
    most_scalars,
    results_of_dots,
    room,
)
from tkc.passes.planning.program import Program
from tkc.passes.planning.reading import Threads, ahead
from tkc.passes.planning.residency import runs_few_iterations, shared_bytes, stages_of_few
from tkc.passes.planning.rings import run_ahead
from tkc.passes.planning.roles.loads import sources_of_places
from tkc.passes.planning.roles.multicast import has_small_accumulators
from tkc.passes.planning.splits import (
    bound_to_rows,
    evenly,
    instruction_of,
    split_as_asked,
    split_of,
)

Say = Callable[[str], None]

# registers of a thread
MAX_REGISTERS_PER_THREAD = 255
MAX_ACCUMULATOR_REGISTERS = 128
# accumulators and left operands that a loop does not change, or that it carries when rotated
MAX_OPERAND_AND_ACCUMULATOR_REGISTERS = 144
# likewise with all operands, where some are computed
MAX_COMPUTED_REGISTERS = 256
# accumulators, and loads on their way to shared memory
MAX_STAGED_REGISTERS = 160
MIN_REGISTERS_BESIDE_ACCUMULATORS = 32
COUNTED = {2: "two", 4: "four", 8: "eight"}
MIN_WARPS = 4  # of a program with dots: one for each scheduler of a multiprocessor
# Elements of a tile for each of which a thread has instructions of its own: of many more the
# assembler begins all loads before it computes, spills, and takes long.
MAX_ELEMENTS_IN_LINE = 256
# shared memory that passes behind the plan may need
RESERVED_SHARED_BYTES = 2048


def run(module: ModuleOp, context: PassContext) -> None:
    context.plan = context.early_plan or plan(module, context)
    kernel = kernel_of(module)
    kernel.set_integer("warps", context.plan.warps)
    if context.plan.blocks > 1:
        kernel.set_integer("blocks", context.plan.blocks)
    if context.options.maxnreg:
        kernel.set_integer("maxnreg", context.options.maxnreg)
    kernel.attributes["target"] = StringAttr(context.target.name)
    kernel.attributes["plan"] = StringAttr(context.plan.to_text())
    context.decisions += context.plan.decisions
    context.decisions += [
        f"plan: {roles}: {lack} bytes of shared memory less for stages: later passes need them"
        for roles, lack in context.lack.items()
    ]
    number(kernel)
    mark_converted(kernel, context.plan)
    mark_places(kernel, context.plan)
    mark_stores(kernel)
    for op in operations_in(kernel, tile.Load):
        narrow_panel(op, context.plan.load(op).panel)


def mark_converted(kernel: tile.Kernel, plan: Plan) -> None:
    """Says of every operand that the converter computes that it does, and of what it is loaded from
    that it stays where it is.
    """
    for dot in operations_in(kernel, tile.Dot):
        chosen = plan.dot(dot)
        for operand, path in ((dot.a, chosen.a), (dot.b, chosen.b)) if chosen else ():
            if path == "converted":
                convert_operand(value := untransposed(operand))
                for load in loads_behind(value):
                    load.attributes[STAYS] = UnitAttr()


def mark_places(kernel: tile.Kernel, plan: Plan) -> None:
    """Says of every tile of which a role computes where its copies lie, and of every number that it
    reads by a pointer for that, that it stays where it is: each thread of that role holds it, and
    no loop carries it.
    """
    loads = operations_in(kernel, tile.Load)
    copied = [op for op in loads if plan.load(op).path in ("tma", "cp_async", "broadcast")]
    for op in sources_of_places(copied) if plan.roles != "one" else ():
        by_pointers = isinstance(op, tile.LoadPointers)
        if isinstance(op, LOADS) and (by_pointers or isinstance(op.results[0].type, TileType)):
            op.attributes[STAYS] = UnitAttr()


def mark_stores(kernel: tile.Kernel) -> None:
    """Writes on every store of a block what is known of its beginning."""
    for op in kernel.walk():
        if not isinstance(op, (tile.Store, tile.AtomicBlock)):
            continue
        if begins_inside(op):
            op.attributes[BEGINS_INSIDE] = UnitAttr()
        elif is_before_or_inside(op):
            op.attributes[BEFORE_OR_INSIDE] = UnitAttr()


def number(kernel: tile.Kernel) -> None:
    """Writes on every dot and load its number in the plan."""
    for kinds in (tile.Dot,), LOADS:
        for i, op in enumerate(operations_in(kernel, kinds)):
            op.attributes["number"] = IntegerAttr(i, i64)


def kernel_of(module: ModuleOp) -> tile.Kernel:
    kernels = list(tile.kernels_of(module))
    if len(kernels) != 1:
        raise VerifyError(f"a compilation takes one kernel, this module has {len(kernels)}")
    return kernels[0]


def plan(module: ModuleOp, context: PassContext) -> Plan:
    """The plan of a kernel at level 0. Raises CompileError where the user's options leave none that
    is legal.
    """
    with unchanged(module, context.memory):
        return _best(Program.of(kernel_of(module)), context)


def _best(program: Program, context: PassContext) -> Plan:
    """What the rules choose, or of plans with roles what the cost model does."""
    made = _legally(program, context)
    if made.roles in ("one", "co_resident") or not (
        others := _narrowed(made, context.options, ROLE_CHOICES)
    ):
        return made
    ranked = _ranked(
        [made, *_realised(made, program, context, others)], Work.of(program.kernel), context.target
    )
    least, chosen = ranked[0]
    said = (
        f"plan: cost model, sizes unknown: {keyword_text(chosen)}, {least.limit} limits a step"
        + "".join(
            f"; rejected: {keyword_text(other)}, {100 * (found.seconds / least.seconds - 1):.1f} %"
            " slower"
            for found, other in ranked[1:]
        )
    )
    return replace(chosen, decisions=(*chosen.decisions, said))


@unchanged()
def candidates(module: ModuleOp, context: PassContext, sizes: Sizes | None = None) -> list[Plan]:
    """Legal plans worth measuring, each made by narrowing the options: the one that `plan` would
    take first, or with sizes the cheapest first. Raises CompileError like `plan`.
    """
    found, work = _candidates(module, context, sizes)
    return found if sizes is None else [p for _, p in _ranked(found, work, context.target)]


@unchanged()
def ranked(module: ModuleOp, context: PassContext, sizes: Sizes) -> list[tuple[Cost, Plan]]:
    """`candidates` with what each would cost."""
    found, work = _candidates(module, context, sizes)
    return _ranked(found, work, context.target)


def _candidates(
    module: ModuleOp, context: PassContext, sizes: Sizes | None
) -> tuple[list[Plan], Work]:
    program = Program.of(kernel_of(module))
    first, work = _legally(program, context), Work.of(program.kernel, sizes)
    if first.roles == "one":
        return _of_one_role(first, program, context), work
    return _with_roles(first, program, context, work, sizes is not None), work


def _of_one_role(first: Plan, program: Program, context: PassContext) -> list[Plan]:
    """Candidates where the rules choose one role."""
    others = _narrowed(first, context.options, _ordinary(program))
    late = (
        [names | {"rotate": True} for names in ({}, *others)]
        if context.options.rotate is None and _several(program)
        else []
    )
    return [first, *_realised(first, program, context, [*others, *late])]


def _with_roles(
    first: Plan, program: Program, context: PassContext, work: Work, sized: bool
) -> list[Plan]:
    """Candidates where the rules choose roles, the cheapest first, and one role last. The cheapest
    is also tried with programs of its last wave shared.
    """
    options, choices = context.options, dict[str, tuple](ROLE_CHOICES)
    if sized:
        choices["split_k"] = (1, *_parts(work, context.target))
        if any(map(is_cut, program.loads)):
            choices["cluster"] = CUT_SECTOR_CLUSTERS
    if _several(program):
        choices["programs"] = CO_RESIDENT_PROGRAMS
    every = _narrowed(first, options, choices)
    made = [first, *_realised(first, program, context, every, sized)]
    found = [p for _, p in _ranked(made, work, context.target)]
    if sized and options.stream_k is None:
        names = {name: keywords(found[0])[name] for name in choices}
        shared = [names | {"stream_k": n} for n in _shares_of_a_wave(work, context.target)]
        found += _realised(first, program, context, shared, sized)
    if options.roles is None:
        found += _realised(first, program, context, [{"roles": "one"}])
    return found


def _legally(program: Program, context: PassContext) -> Plan:
    """What the rules choose. Raises CompileError where that is not legal."""
    made = _plan(program, context)
    if reasons := legal(made, program, context):
        raise CompileError(
            f"kernel {program.kernel.sym_name.data} does not fit {context.target.name}:"
            f" {'; '.join(reasons)}",
            location_of(program.kernel),
        )
    return made


# What a plan with roles, or of one role, may be narrowed to. The first of each is what the rules
# choose where they are free.
ROLE_CHOICES = {"programs": (1, 2), "cluster": ((1, 1), (2, 1))}
# where rows are known to cut sectors: the L2 cache serves such copies slowly, shared ones once
CUT_SECTOR_CLUSTERS = (*ROLE_CHOICES["cluster"], (2, 2), (4, 1), (4, 2))
# where loops have several dots
CO_RESIDENT_PROGRAMS = (*ROLE_CHOICES["programs"], 3, 4)
ONE_ROLE_CHOICES = {"num_warps": (2, 4, 8, 16), "num_stages": (2, 3, 4, 5), "raster": (1, 8)}
STEPS_OF_A_PART = 8  # of k, at least
# of programs without dots, where it makes a difference
NO_DOT_CHOICES = {
    "num_warps": (2, 4, 8, 16),
    "persistent": (False, True),
    "register_transpose": (False, True),
}


def _ordinary(program: Program) -> dict[str, tuple]:
    """What a plan of one role may be narrowed to: of programs without dots, those that wait for
    something may read ahead of it, and those that turn a tile may turn it elsewhere.
    """
    if program.dots:
        return ONE_ROLE_CHOICES
    differ = {
        "num_warps": True,
        "persistent": streaming.has_collectives(program.kernel),
        "register_transpose": streaming.has_transposed_store(program.kernel),
    }
    return {name: values for name, values in NO_DOT_CHOICES.items() if differ[name]}


def _several(program: Program) -> bool:
    """Whether a loop has several dots, of which some may be better late."""
    return any(
        a.parent_op() is b.parent_op() and isinstance(a.parent_op(), scf.ForOp)
        for a, b in pairwise(program.dots)
    )


def _parts(work: Work, target: Target) -> list[int]:
    """Numbers of parts of k worth a try: where programs leave multiprocessors idle, enough to give
    all of them work.
    """
    programs = prod(work.grid or (0,))
    steps = max((p.trips for p in work.parts if p.dots), default=0)
    if not 0 < programs <= target.multiprocessors // 2:
        return []
    return [
        n
        for n in (2, 3, 4, 6, 8, 12, 16, 32, 64)
        if programs * n <= 2 * target.multiprocessors and steps >= STEPS_OF_A_PART * n
    ]


def _shares_of_a_wave(work: Work, target: Target) -> list[int]:
    """Numbers of parts of k worth a try of programs of the last wave, where it leaves
    multiprocessors idle.
    """
    programs, places = prod(work.grid or (0,)), target.multiprocessors
    steps = max((p.trips for p in work.parts if p.dots), default=0)
    if programs <= places or programs % places == 0:
        return []
    return [n for n in (2, 4) if steps >= STEPS_OF_A_PART * n]


def _narrowed(first: Plan, options, choices: dict[str, tuple]) -> list[dict]:
    """Every combination of choices that the user left free, less the one already made."""
    free = {name: values for name, values in choices.items() if getattr(options, name) is None}
    every = [dict(zip(free, values, strict=False)) for values in product(*free.values())]
    return [names for names in every if not names.items() <= keywords(first).items()]


def _realised(
    first: Plan, program: Program, context: PassContext, narrowed: list[dict], sized: bool = False
) -> list[Plan]:
    """The legal plans of narrower options; one that the rules turn into another, or that does less
    of what was asked than the first, is left out.
    """
    found: list[Plan] = []

    def done(made):
        return {
            name
            for name, value in keywords(made).items()
            if getattr(context.options, name) == value
        }

    for names in narrowed:
        made = _plan(program, replace(context, options=replace(context.options, **names)))
        if context.options.cluster is None and (
            any(load.boxes > 1 for load in made.loads)
            and not (sized and any(map(is_cut, program.loads)))
            or made.cluster != (1, 1)
            and has_small_accumulators(program.dots)
        ):
            continue  # boxes pay where rows are known to cut sectors, which sharing halves
        if (
            not legal(made, program, context)
            and names.items() <= keywords(made).items()
            and done(first) <= done(made)
            and made not in found
        ):
            found.append(made)
    return found


def _ranked(plans: list[Plan], work: Work, target: Target) -> list[tuple[Cost, Plan]]:
    return sorted(((cost(work, p, target), p) for p in plans), key=lambda pair: pair[0].seconds)


def _shares(dot: DotPlan) -> tuple[int, int]:
    """The option that has warps share a dot so."""
    is_by_columns = dot.instruction == "wgmma" and dot.warps[1] > 1
    return (4 * dot.warps[0], dot.warps[1]) if is_by_columns else dot.warps


def keywords(plan: Plan) -> dict:
    """The options of a launch that force a plan's choices."""
    return {
        "num_warps": plan.warps,
        "num_stages": plan.stages,
        "raster": plan.raster,
        "serpentine": plan.serpentine,
        "retain": any(load.eviction for load in plan.loads),
        "cluster": plan.cluster,
        "programs": plan.programs,
        "split_k": plan.split_k,
        "stream_k": plan.stream_k,
        "sum_parts": max((dot.parts[0] for dot in plan.dots), default=1),
        "persistent": plan.persistent,
        "register_transpose": plan.register_transpose,
        "roles": plan.roles,
        "cross_tile_prologue": plan.cross_tile_prologue,
        "rotate": bool(plan.rotate),
        "left_operand": next(
            (
                source
                for source in ("shared", "relaid")
                if any(dot.a == source for dot in plan.dots)
            ),
            "registers",
        ),
        "swap_dots": any(dot.swap for dot in plan.dots),
        "split_warps": (
            next(iter(shares)) if len(shares := {_shares(dot) for dot in plan.dots}) == 1 else None
        ),
        "epilogue": plan.epilogue,
        "store_columns": plan.columns if plan.roles != "one" else None,
        "subtiles": plan.subtiles if plan.epilogue != "direct" else None,
        "dynamic_schedule": plan.dynamic_schedule,
        "prefetch": plan.prefetch,
        "row_parts": plan.row_parts,
        "num_ctas": plan.cluster_split[0] if plan.row_parts > 1 else 1,
    }


def forcing(plan: Plan) -> dict:
    """The fewest options that tell a plan from the other candidates."""
    said = keywords(plan)
    names = (
        (
            *ROLE_CHOICES,
            *(["roles"] if plan.roles == "co_resident" else []),
            *(["split_k"] if plan.split_k > 1 else []),
            *(["stream_k"] if plan.stream_k else []),
        )
        if plan.roles != "one"
        else (
            (*ONE_ROLE_CHOICES, *(["rotate"] if plan.rotate else []), "roles")
            if plan.dots
            else (
                *NO_DOT_CHOICES,
                "roles",
                *("row_parts", "num_ctas") * (plan.row_parts > 1),
            )
        )
    )
    return {name: said[name] for name in names if name != "num_stages" or plan.stages > 1}


def keyword_text(plan: Plan) -> str:
    return (
        f"{plan.roles}, cluster {'x'.join(map(str, plan.cluster))}, {plan.programs}"
        f" program{'s'[: plan.programs > 1]} at once, {plan.stages} stages"
    )


# ---- what the program is
# -------------------------------------------------------------------------------------------------
# ---- choices
# --------------------------------------------------------------------------------------------------
def _plan(program: Program, context: PassContext) -> Plan:
    """What the rules make of a program and the user's options."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(f"plan: {text}")

    if program.dots:
        made = _with_dots(program, context, say)
    else:
        made, reasons = _without_dots(
            program, context.target, context.options, tuple(context.lack.items())
        )
        for reason in reasons:
            say(reason)
    if made.roles == "one":
        made = replace(made, decisions=tuple(said))
    return replace(made, decisions=(*made.decisions, *_unused(made, context.options)))


@remembered
def _loads(program: Program) -> tuple[LoadPlan, ...]:
    """How one role gets each block."""
    feeding, ranges = feeding_dots(program.kernel), Ranges()
    return tuple(_load(op, ranges, op.results[0] in feeding) for op in program.loads)


def _relaxed(options: LaunchOptions) -> bool:
    """Whether running maxima are updated where needed, if nothing speaks against it."""
    return os.environ.get("TKC_RELAX") != "0" if options.relax is None else options.relax


def _shared_or_in_ring(loads: Sequence[LoadPlan], stages: int) -> tuple[LoadPlan, ...]:
    """A ring of one stage is none."""
    if stages > 1:
        return tuple(loads)
    return tuple(replace(x, path="shared") if x.path == "async" else x for x in loads)


@remembered
def _without_dots(
    program: Program, target: Target, options: LaunchOptions, lack: tuple[tuple[str, int], ...]
) -> tuple[Plan, list[str]]:
    """The plan of a program whose time is that of moving bytes, and what is said of it."""
    said: list[str] = []
    context = PassContext(target, options, lack=dict(lack))
    return _streaming_plan(program, context, said.append), said


def _streaming_plan(program: Program, context: PassContext, say: Say) -> Plan:
    kernel, ranges = program.kernel, Ranges()
    given = list(zip(program.loads, _loads(program), strict=True))
    chosen = streaming.choose(kernel, given, program.largest, context, say)
    warps, spread = chosen.warps, chosen.spread
    persistent = streaming.persistent(kernel, chosen.streams, context, say)
    threads = Threads(warps, spread[0])
    reading = ahead(kernel, given, threads, persistent, chosen.streams, context, say)
    loads = reading.loads
    turned = context.options.register_transpose is not False and streaming.has_transposed_store(
        kernel
    )
    in_rows = False
    if turned and context.target.clusters:  # PTX of older targets has no word for the hint
        in_rows = spread[0] == 1 and streaming.stores_whole_rows(
            kernel, loads, warps, ranges, context, say
        )
        loads = streaming.with_l2_fetch(program.loads, loads, say)
    asked = context.options.num_stages
    stages = reading.stages or _stages(program, loads, warps, asked, context, say)
    loads = _shared_or_in_ring(loads, stages)
    stage, others = shared_bytes(program, loads)
    _say_one_block(spread, context, say)
    taken = reading.taken + in_rows * streaming.transposed_bytes(kernel)
    relaxed = _relaxed(context.options)
    if relaxed and context.options.relax is None and program.has_one_row:
        relaxed = False
        say(
            "running maxima stay exact: a block's threads would meet to vote as they do for the"
            " maximum, and compute the powers of a row's first part twice"
        )
    return Plan(
        warps,
        stages,
        (),
        loads,
        cluster_split=spread,
        prefetch=reading.prefetch,
        row_parts=chosen.parts,
        persistent=persistent,
        blocks=reading.blocks,
        resident_operands=reading.keep,
        dynamic_schedule=reading.dynamic_schedule,
        register_transpose=turned,
        rows=in_rows,
        relax=relaxed,
        spare=context.room() - taken - stages * stage - others,
    )


def _with_dots(program: Program, context: PassContext, say: Say) -> Plan:
    """The plan of a program with dots: with roles where it can be, else of one role."""
    options = context.options
    loads = _loads(program)
    warps = options.num_warps or _split_among(options) or _warps(program, loads, context, say)
    if options.num_warps:
        say(f"{warps} warps, as asked")
    rows = any(bound_to_rows(d) for d in program.dots)
    each = _accumulators(program, warps)
    dots = tuple(_dot(i, d, warps, rows, each, context, say) for i, d in enumerate(program.dots))
    stages = _stages(program, loads, warps, options.num_stages, context, say)
    loads = _shared_or_in_ring(loads, stages)
    stage, others = shared_bytes(program, loads)
    raster = _raster(program, options, say)
    _say_one_block((1, 0), context, say)
    taken = stages * stage + others
    made = Plan(
        warps,
        stages,
        dots,
        loads,
        raster=raster,
        relax=_relaxed(options),
        spare=context.room() - taken,
    )
    if options.num_ctas == 1:
        special, reason = roles(program, context, made)
        if special:
            return special
        say(f"one role with mma.sync: {reason}")
    if taken <= half_of(context.room()) and _two_hold(program, loads, warps, context):
        made = replace(made, blocks=2, spare=half_of(context.room()) - taken)
        most = _of_two(warps, context.target)
        say(f"two blocks share a multiprocessor: {most} registers a thread")
    crowded = options.relax is None and made.relax and each > context.target.assembler.beside_scores
    if crowded and program.maxima:
        say(
            f"running maxima stay exact: beside {each} registers of accumulators there is no room"
            " to keep scores until they are known to fit"
        )
        made = replace(made, relax=False)
    return replace(made, rotate=_late(program, made, each, context, say))


def _raster(program: Program, options: LaunchOptions, say: Say) -> int:
    """Programs of axis 0 that run together before axis 1 moves on."""
    if not _unordered(program):
        return 1
    raster = options.raster or (8 if _swept(program) else 1)
    if raster > 1:
        say(
            f"programs run in columns of {raster} along axis 0: blocks in flight share rows and"
            " columns in the L2 cache"
        )
    return raster


def _say_one_block(spread: tuple[int, int], context: PassContext, say: Say) -> None:
    """Says that a cluster is not used which was asked for."""
    if context.options.num_ctas > 1 and spread[0] == 1:
        say(
            f"num_ctas = {context.options.num_ctas} is not used: one role computes the whole tile"
            " in one block"
        )


def _late(program: Program, plan: Plan, each: int, context: PassContext, say) -> tuple[int, ...]:
    """The dots that one role takes one iteration late, as asked, or as tuning tries: the threads of
    a warp issue everything in order, and whether the assembler puts vector work between mma.sync is
    up to it, so this pays for some kernels only.
    """
    found: list[int] = []
    if not context.options.rotate:
        return ()
    for loop in dict.fromkeys(filter(None, map(loop_of, program.dots))):
        numbers = [i for i, dot in enumerate(program.dots) if dot.parent_op() is loop]
        if not isinstance(loop, scf.ForOp) or any(
            plan.dots[i].instruction == "fma" for i in numbers
        ):
            continue
        stages = best_stages(loop, WarpCosts(context.target, plan.warps, False), context.overlaps)
        if stages is None:
            continue
        say(f"stages: {stages.said()}")
        if each + stages.schedules[0].carried <= MAX_OPERAND_AND_ACCUMULATOR_REGISTERS:
            found += [i for i in numbers if program.dots[i] in stages.late]
    return tuple(found)


def _unused(plan: Plan, options) -> list[str]:
    """What was asked for and cannot be had: a kernel with options for one machine still runs on
    another.
    """
    why = {
        "cluster": "no copy of this plan is shared between so many blocks",
        "programs": (
            "blocks of one role take one program"
            if plan.roles == "one"
            else (
                "the plan says why its warpgroups share a program"
                if plan.programs == 1
                else "it was not possible"
            )
        ),
        "roles": f"the plan is {plan.roles}",
        "serpentine": "programs are claimed, or their loop does more than accumulate one dot",
        "retain": "no raster reads again what a tensor map copies",
        "split_k": "this plan takes k in one part",
        "stream_k": "this plan's programs are whole",
        "sum_parts": "a partial sum is whole or in as many parts as the plan finds room for",
        "cross_tile_prologue": (
            "the plan has no first dot that could precede the epilogue of the program before"
        ),
        "rotate": "no dot of a loop gains by running one iteration late, or has the registers to",
        "persistent": (
            "the plan says how programs are run" if plan.dots else "programs are run one a block"
        ),
        "register_transpose": (
            "there are dots"
            if plan.dots
            else "no tile is stored along another axis than it is read"
        ),
    } | _of_dots(plan)
    said = [
        f"plan: {name} = {asked!r} is not used: {reason}"
        for name, reason in why.items()
        if (asked := getattr(options, name)) is not None
        and asked != keywords(plan)[name]
        and not any(
            line.startswith(f"plan: {name} = {asked!r} is not used") for line in plan.decisions
        )
    ]
    return (
        said
        if options.maxnreg is None or plan.roles == "one"
        else [
            *said,
            f"plan: maxnreg = {options.maxnreg} is not used: roles divide the registers of a block",
        ]
    )


def _of_dots(plan: Plan) -> dict[str, str]:
    """Why dots are not computed, nor their results stored, as asked."""
    if not plan.dots:
        none = dict.fromkeys(
            ("left_operand", "swap_dots", "split_warps", "epilogue", "store_columns", "subtiles"),
            "there are no dots",
        )
        return none | {
            "dynamic_schedule": "no ring runs ahead of programs that blocks could claim",
            "prefetch": "no loop reads what its registers hold beside the rest",
        }
    loaded = any(dot.a != "registers" for dot in plan.dots)
    prefetch = {"prefetch": "copies of loops with dots run ahead by num_stages"}
    if plan.roles == "one":
        return prefetch | {
            "left_operand": (
                "accumulators need them"
                if loaded
                else "no loop reads an operand again that it does not change"
            ),
            "swap_dots": "mma.sync takes either operand as it is",
            "split_warps": "not every warp of a dot has 16 rows and 8 columns, or there are others",
            "epilogue": "one role stores its results from registers",
            "store_columns": "one role stores whole tiles",
            "subtiles": "results are stored from registers",
            "dynamic_schedule": "blocks of one role take one program",
        }
    return prefetch | {
        "left_operand": "it is relaid" if loaded else "it is computed",
        "swap_dots": "wgmma has no other form of this dot",
        "split_warps": "warpgroups share a dot's rows, or as (4, 2) its columns",
        "epilogue": "no result is a matrix of 16-bit floats that is stored so",
        "store_columns": "results are stored whole",
        "subtiles": "results are stored from registers",
        "dynamic_schedule": "programs are assigned statically",
    }


def _warps(program: Program, loads: tuple[LoadPlan, ...], context: PassContext, say) -> int:
    usual = _usual_warps(program, loads, context, say)
    if _added(program, context).dots:
        return usual
    fewer = [
        w
        for w in streaming.FEW_WARPS
        if fits(program.kernel, w, 1, context)
        and _accumulators(program, w) <= MAX_ACCUMULATOR_REGISTERS
    ]
    return fewest_that_multiply(program, fewer, usual, context, say)


def _usual_warps(program: Program, loads: tuple[LoadPlan, ...], context: PassContext, say) -> int:
    narrow = (
        dict.fromkeys((4, 8), 3 * MAX_ACCUMULATOR_REGISTERS // 8)
        if _ragged(program, context)
        else {4: MAX_ACCUMULATOR_REGISTERS // 2}
        if _widened(program, context)
        else {}
    )
    most = {warps: _most_accumulators(program, loads, warps, context) for warps in (4, 8, 16)}
    most |= narrow
    least = next((w for w in (4, 8) if held_by(carried_words(program.dots), w)), 16)
    for warps in (w for w in (4, 8, 16) if w >= least):
        each = _accumulators(program, warps)
        staged = _staged_words(program, loads) // (32 * warps)
        if each <= most[warps] and (
            not staged or each + staged <= MAX_STAGED_REGISTERS or warps == 8
        ):
            break  # 16 warps have 128 registers a thread
    say(
        f"{warps} warps: {each} registers of accumulators a thread"
        + (f", {staged} of loads that pass through registers" if staged else "")
        + (f" ({_accumulators(program, warps // 2)} with {warps // 2})" if warps > 4 else "")
    )
    return warps


def _staged_words(program: Program, loads: tuple[LoadPlan, ...]) -> int:
    """Words of the operands of loops that pass through registers on their way to shared memory."""
    pairs = zip(program.loads, loads, strict=False)
    passing = (
        op
        for op, load in pairs
        if load.path == "shared" and not _copied(op, load) and loop_of(op) is not None
    )
    return sum(map(bytes_of, passing)) // 4


def _of_two(warps: int, target: Target) -> int:
    """Registers of a thread where two blocks of so many warps share a multiprocessor."""
    return target.at_entry(2 * 32 * warps)


def _two_hold(
    program: Program, loads: tuple[LoadPlan, ...], warps: int, context: PassContext
) -> bool:
    """Whether the registers of two blocks of so many warps, which need not be told of what they
    have anyway, hold what a program computes with."""
    if _of_two(warps, context.target) >= MAX_REGISTERS_PER_THREAD or context.options.maxnreg:
        return False
    live = -(-_live_in_loops(program, loads) // (32 * warps))
    return live <= room(2 * warps, any(map(loop_of, program.dots)), context)


def _most_accumulators(
    program: Program, loads: tuple[LoadPlan, ...], warps: int, context: PassContext
) -> int:
    """Of a thread, at most: more where warps have rows of their own in every dot. Twice as many
    would have half of the rows, and read right operands from shared memory twice as often; or share
    rows, which left operands and maxima then cross. Two blocks of so few warps must fit a
    multiprocessor, since one would leave its schedulers idle.
    """
    if not any(map(bound_to_rows, program.dots)):
        return MAX_ACCUMULATOR_REGISTERS
    for dot in program.dots:
        instruction = instruction_of(dot, context.target.capability)[0]
        rows = tile_type(dot.acc).extents[-2]
        if instruction is None or rows < instruction.m * warps:
            return MAX_ACCUMULATOR_REGISTERS
    stage, others = shared_bytes(program, loads)
    if 2 * stage > _beside_another(others, context):
        return MAX_ACCUMULATOR_REGISTERS
    assembler = context.target.assembler
    if (
        _live_in_loops(program, loads) // (32 * warps) + most_scalars(program.dots)
        > assembler.row_live
    ):
        return MAX_ACCUMULATOR_REGISTERS
    return assembler.row_accumulators


def _live_in_loops(program: Program, loads: tuple[LoadPlan, ...]) -> int:
    """Words of all threads for the tiles that are live at once, but for those in shared memory."""
    shared = [
        op.results[0]
        for op, load in zip(program.loads, loads, strict=True)
        if load.path == "shared"
    ]
    return demand(program.kernel, frozenset(shared))


def _beside_another(others: int, context: PassContext) -> int:
    """Bytes of shared memory for stages where two blocks share a multiprocessor. others: bytes of a
    block's other buffers.
    """
    return half_of(context.room()) - others


def _split_among(options) -> int:
    """How many warps are asked to split dots, where a program can have so many."""
    return count if (count := prod(options.split_warps or (0,))) in (1, 2, 4, 8, 16, 32) else 0


def _added(program: Program, context: PassContext) -> Program:
    """Of its dots, those that multiply-adds compute."""
    return replace(
        program,
        dots=tuple(
            d for d in program.dots if instruction_of(d, context.target.capability)[0] is None
        ),
    )


def _ragged(program: Program, context: PassContext) -> bool:
    """Whether multiply-adds compute a dot of extents that are no powers of two: its layout has more
    elements than the tile.
    """
    return any(
        n & (n - 1)
        for dot in _added(program, context).dots
        for n in tile_type(dot.acc).extents[-2:]
    )


def crowded(module: ModuleOp, context: PassContext) -> list[tuple[tile.Dot, float]]:
    """Dots of one role whose results are stored no registers to compute with, the largest first;
    with each the share of the results of its loop for which there are.
    """
    with unchanged(module, context.memory):
        return _crowded(Program.of(kernel_of(module)), context)


def _crowded(program: Program, context: PassContext) -> list[tuple[tile.Dot, float]]:
    warps = context.options.num_warps or 16
    most = min(
        MAX_REGISTERS_PER_THREAD,
        context.target.registers // (32 * warps),
        context.options.maxnreg or MAX_REGISTERS_PER_THREAD,
    )
    ragged = _ragged(program, context) or any(
        n % 16 for d in program.dots for n in tile_type(d.acc).extents[-2:]
    )
    limit = min(
        _most_accumulators(program, _loads(program), warps, context),
        most // 2 if _added(program, context).dots else most - MIN_REGISTERS_BESIDE_ACCUMULATORS,
    ) // (2 if ragged else 1)

    by_loop: dict[Operation | None, list[tile.Dot]] = defaultdict(list)
    for d in program.dots:
        by_loop[loop_of(d)].append(d)
    taken = {
        loop: _accumulators(replace(program, dots=tuple(dots)), warps)
        for loop, dots in by_loop.items()
    }
    shares = [(d, limit / max(1, taken[loop_of(d)])) for d in program.dots]
    full = [(d, share) for d, share in shares if share < 1]
    if not full or _plan(program, context).roles != "one":
        return []
    return sorted(full, key=lambda found: -tile_type(found[0].result).bytes)


def overfull(module: ModuleOp, context: PassContext) -> str:
    """What threads of a program without dots would have to hold, where registers do not; else
    nothing. Programs that stream through shared memory are exempt.
    """
    with unchanged(module, context.memory):
        return _overfull(Program.of(kernel_of(module)), context)


def _overfull(program: Program, context: PassContext) -> str:
    if program.dots:
        return ""
    made = _plan(program, context)
    threads = 32 * made.warps * made.cluster_split[0]
    if any(
        load.path == "own" and op.parent_op() is program.kernel
        for op, load in zip(program.loads, made.loads, strict=True)
    ):
        return ""
    if fits(program.kernel, made.warps, made.cluster_split[0], context):
        each = program.largest // threads
        reduces = holds(program.kernel, tile.Reduce)
        if reduces or each <= MAX_ELEMENTS_IN_LINE:
            return ""
        return f"{each} elements a thread, all in line"
    return (
        f"{made.warps} warps,"
        f" {-(-demand(program.kernel) // threads)}"
        f" registers of tiles a thread, do not fit {context.target.name}"
    )


def _widened(program: Program, context: PassContext) -> bool:
    """Whether float8 operands are widened by arithmetic, which takes registers (widen-float8)."""
    return not context.target.fp8 and any(
        isinstance(v.owner, Cast) and element_of(v.owner.arg.type) in (f8e4m3, f8e5m2)
        for dot in program.dots
        for v in (dot.a, dot.b)
    )


def _accumulators(program: Program, warps: int) -> int:
    """Registers of a thread that hold the results of the dots that are alive together (of those of
    one loop), and what a loop adds partial ones to.
    """
    by_loop: dict[Operation | None, int] = {}
    largest = 0
    for d in program.dots:
        each = -(-tile_type(d.acc).bytes // (4 * 32 * warps))
        loop = loop_of(d)
        carried = [v.type for v in loop.iter_args] if isinstance(loop, scf.ForOp) else []
        added_to = partial(d) and d.acc.type in carried
        largest = max(largest, each * (1 + added_to))
        by_loop[loop] = by_loop.get(loop, 0) + each * (1 + added_to)
    apart = max(by_loop.values(), default=0)
    if apart == largest:
        return apart
    return min(apart, max(largest, -(-results_of_dots(program.kernel) // (4 * 32 * warps))))


def _dot(
    number: int, dot: tile.Dot, warps: int, rows: bool, accumulators: int, context: PassContext, say
) -> DotPlan:
    *_, m, n = tile_type(dot.acc).extents
    k = tile_type(dot.a).extents[-1]
    instruction, reason = instruction_of(dot, context.target.capability)
    what = f"dot {number} ({m}x{n}x{k})"
    least = (4, 8) if instruction is None else (instruction.m, 8)
    forced = split_as_asked(m, n, least, warps, context.options.split_warps or (0, 0))
    if instruction is None:
        split = forced or ((warps, 1) if rows and m >= 4 * warps else evenly(warps, m, n, 1, 1))
        chunk = _chunk(dot, warps)
        say(f"{what}: multiply-adds, {chunk} k at a time, warps {split[0]} x {split[1]}: {reason}")
        return DotPlan("fma", split, chunk=chunk)
    split = forced or split_of(dot, instruction, warps, rows)
    why = "least shared memory read"
    if forced:
        why = "as asked"
    elif rows and split[1] == 1:
        why = "a row stays in one warp"
    left = _source(dot.a, dot, split[0], accumulators, context.options.left_operand)
    right = _source(dot.b, dot, split[1], accumulators, None)
    chunk = _computed_at_once(dot, split, accumulators)
    when = _when_in_registers(left, right, chunk)
    say(f"{what}: {instruction.name}, warps {split[0]} x {split[1]}: {why}{when}")
    return DotPlan("mma", split, left, right, chunk=chunk)


def _when_in_registers(left: str, right: str, chunk: int) -> str:
    """What a plan says of operands that registers do not hold whole, or not all the time."""
    again = "".join(
        f"; {operand} is read again in every iteration, its registers are needed"
        for operand, source in (("a", left), ("b", right))
        if source == "shared"
    )
    return again + (f"; operands are computed for {chunk} k at a time" if chunk else "")


def _computed_at_once(dot: tile.Dot, split: tuple[int, int], accumulators: int) -> int:
    """Of how many k operands are computed at once, where those of all k do not fit the registers
    beside what dots add to; 0 where they do, and where neither is computed of a block in memory, of
    which parts can be read later.
    """
    if not any(isinstance(v.owner, POINTWISE) and blocks_behind(v) for v in (dot.a, dot.b)):
        return 0
    k = tile_type(dot.a).extents[-1]
    held = sum(
        tile_type(v).bytes // (4 * 32 * parts)
        for v, parts in zip((dot.a, dot.b), split, strict=True)
    )
    chunk = k
    while accumulators + held * chunk // k > MAX_COMPUTED_REGISTERS and chunk % 64 == 0:
        chunk //= 2
    return chunk if chunk < k else 0


def _chunk(dot: tile.Dot, warps: int) -> int:
    """How many k multiply-adds take at a time: as many as registers hold of both operands."""
    *_, m, n = tile_type(dot.acc).extents
    width = bits(element_of(dot.acc.type))
    held = -(-m * n // (32 * warps))
    side = max(1, int(held**0.5))
    fitting = max(1, 64 * 32 // width // (side + max(1, held // side)))
    power = 1 << (fitting.bit_length() - 1)
    chunk = max(1, min(8, power, tile_type(dot.a).extents[-1]))
    if (m & (m - 1) or n & (n - 1)) and held >= 16:
        chunk = max(1, chunk // 2)  # layouts of ragged extents have more elements than the tile
    return chunk


def _source(
    operand: SSAValue, dot: tile.Dot, parts: int, accumulators: int, asked: str | None
) -> str:
    """Whether an operand that a loop does not change is held in registers, or read from shared
    memory in every iteration.
    """
    loop, value = loop_of(dot), operand
    while isinstance(value.owner, VIEWS):
        value = value.owner.arg
    if loop is None or not isinstance(value.owner, tile.Load) or loop_of(value.owner) is loop:
        return "registers"
    if not _copied_for_dots(value.owner):
        return "registers"
    if asked is not None:
        return asked
    held = tile_type(value).bytes // (4 * 32 * parts)
    fits = accumulators + held <= MAX_OPERAND_AND_ACCUMULATOR_REGISTERS
    return "registers" if fits else "shared"


def _load(op: Operation, ranges: Ranges, feeds_dots: bool) -> LoadPlan:
    if tile_of(op) is None:
        return LoadPlan()
    access = Access.of(op, ranges)
    vector = access.vector * access.bits // 8
    if not feeds_dots or not _only_dots(op.results[0]):
        return LoadPlan("registers", vector)
    plan = LoadPlan("shared", vector)
    return (
        replace(plan, path="async")
        if _copied(op, plan) and isinstance(loop_of(op), scf.ForOp)
        else plan
    )


def _copied(op: Operation, load: LoadPlan) -> bool:
    """Whether a load for shared memory need not pass through registers: cp.async copies 4, 8 or 16
    bytes, or zeros.
    """
    if load.path == "registers" or load.vector < 4 or not isinstance(op, tile.Load):
        return False
    if op.other is not None or not op.offsets:
        return op.other is None
    return not isinstance(op.offsets[dense_axis(op.array)].type, TileType)


@remembered
def _copied_for_dots(load: tile.Load) -> bool:
    """Whether a load's block gets into shared memory without passing through registers."""
    return _copied(load, _load(load, Ranges(), bool(dots_fed(load))))


@remembered
def _only_dots(value: SSAValue) -> bool:
    """Whether everything a value is used for ends as an operand of a dot."""
    left = [value]
    while left:
        value = left.pop()
        for use in value.uses:
            op = use.operation
            if isinstance(op, VIEWS) or isinstance(op, POINTWISE) and value.has_one_use():
                left.append(op.results[0])
            elif not isinstance(op, tile.Dot) or use.index >= 2:
                return False
    return True


def _stages(
    program: Program,
    loads: tuple[LoadPlan, ...],
    warps: int,
    asked: int | None,
    context: PassContext,
    say: Say,
) -> int:
    stage, others = shared_bytes(program, loads)
    if not stage:
        if asked and asked > 1:
            say("num_stages is not used: no loop has a load that can run ahead")
        return 1
    if asked:
        return asked
    loops = _loops_of_rings(program, loads)
    if warps < MIN_WARPS and runs_few_iterations(program.kernel, loops):
        return stages_of_few(program.kernel, warps, stage, others, context.target, say)
    chosen, why = _stages_of_blocks(program, loads, warps, context)
    say(f"{chosen} stages of {stage} bytes{why}")
    return chosen


def _stages_of_blocks(
    program: Program, loads: tuple[LoadPlan, ...], warps: int, context: PassContext
) -> tuple[int, str]:
    """How many stages rings have, with room for further blocks of a multiprocessor where that pays;
    and what is said of those blocks.
    """
    stage, others = shared_bytes(program, loads)
    room = context.room() - others - RESERVED_SHARED_BYTES
    # as many blocks as have the warps of two of MIN_WARPS
    blocks = 2 * max(1, MIN_WARPS // warps)
    half = min(room, 2 * (_beside_another(others, context) + others) // blocks - others)
    few = _stages_of_two(program, loads, warps, context)
    most = (4, 3, 2) if warps >= MIN_WARPS else (2,)
    chosen = next((s for s in few if s * stage <= half), None) or next(
        (s for s in most if s * stage <= room), 1
    )
    if _widened(program, context):
        chosen = min(chosen, 2)
    beside = chosen * stage <= half and "one" not in context.lack
    return chosen, f", so that {COUNTED[blocks]} blocks fit a multiprocessor" if beside else ""


def _loops_of_rings(program: Program, loads: tuple[LoadPlan, ...]) -> set[Operation | None]:
    """The loops that read through rings."""
    pairs = zip(program.loads, loads, strict=False)
    return {loop_of(op) for op, load in pairs if load.path == "async"}


def _stages_of_two(
    program: Program, loads: tuple[LoadPlan, ...], warps: int, context: PassContext
) -> tuple[int, ...]:
    """How many are worth a second block, the better number first. No copies overlap the dots behind
    a loop, but another block does.
    """
    behind = not all(map(loop_of, program.dots))
    if warps <= MIN_WARPS or behind and _two_hold(program, loads, warps, context):
        return 4, 3, 2
    return 4, 3


def _unordered(program: Program) -> bool:
    """Whether programs cannot observe the order in which they run."""
    return _have_no_order(program.kernel)


@remembered
def _have_no_order(kernel: tile.Kernel) -> bool:
    return not any(
        tile.watches(op) or isinstance(op, tile.StorePointers) and op.semantics is not None
        for op in kernel.walk()
    )


def _swept(program: Program) -> bool:
    """Whether, in a loop, one operand of the dots is the same for all programs of axis 0 and
    another for all of axis 1, or for those of axis 1 for which a number is loaded that is alike
    (whose expert's weights they multiply, say).
    """
    feeding = feeding_dots(program.kernel)
    loaded = [r for op in program.loads for r in op.results]
    swept = [op for op in program.loads if loop_of(op) is not None and op.results[0] in feeding]
    return any(program_axes(op.operands) == {0} for op in swept) and any(
        program_axes(op.operands, given=loaded) == {1} for op in swept
    )


def _rings(plan: Plan, program: Program) -> list[list[Operation]]:
    """The loads of each ring that a producer fills."""
    rings: dict[int, list[Operation]] = defaultdict(list)
    for op, load in zip(program.loads, plan.loads, strict=False):
        if load.ring >= 0:
            rings[load.ring].append(op)
    return list(rings.values())


# ---- limits
# --------------------------------------------------------------------------------------------------
def legal(plan: Plan, program: Program, context: PassContext) -> list[str]:
    """What a plan breaks, as sentences with a way out; nothing if it is legal."""
    found = []
    if plan.warps < 1 or plan.warps > 32 or plan.warps & (plan.warps - 1) and plan.roles == "one":
        found.append(f"num_warps = {plan.warps} is not 1, 2, 4, 8, 16 or 32")
    if plan.stages < 1:
        found.append(f"num_stages = {plan.stages} is not a positive number")
    if plan.roles != "one":  # planning/hopper.py checks its own
        asked = context.options.num_stages
        if asked and plan.stages < asked and any(run_ahead(_rings(plan, program))):
            found.append(
                f"num_stages = {asked} does not fit {context.target.shared_bytes} bytes of shared"
                f" memory; at most {plan.stages} stages do"
            )
        return found
    stage, others = shared_bytes(program, plan.loads)
    if others > context.target.shared_bytes:
        found.append(
            f"{others} bytes for loads, histograms and results of atomics do not fit"
            f" {context.target.shared_bytes} bytes of shared memory; use smaller tiles or fewer"
            " bins"
        )
    elif plan.stages * stage + others > context.target.shared_bytes:
        found.append(
            f"{plan.stages} stages of {stage} bytes and {others} more do not fit"
            f" {context.target.shared_bytes} bytes of shared memory; at most"
            f" {max(0, (context.target.shared_bytes - others) // max(stage, 1))} stages do"
        )
    most = min(
        MAX_REGISTERS_PER_THREAD,
        context.target.registers // (32 * max(plan.warps, 1)),
        context.options.maxnreg or MAX_REGISTERS_PER_THREAD,
    )
    if not found and (each := _accumulators(program, plan.warps)) > most:
        found.append(
            f"its accumulators take {each} registers of each thread, and there are {most}; use"
            " smaller tiles or more warps"
        )
    return found
