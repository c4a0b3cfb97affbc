"""Plans for Hopper's engines: warp roles, tensor maps and wgmma, where a program's data flow lets them be used.

A producer warp copies, by tensor maps, what the dots read; warpgroups of consumers multiply straight from shared memory.
`roles(program, context, plan)` returns the plan, or says why this program does not take one:

  every dot     of element types that wgmma takes (factors.py), in a loop; m a multiple of 64 that the warpgroups share, n a multiple of 8 up to
                256, k of 32 bytes. The right factor is loaded in the dot's loop (transposed or not); the left one too, or before the
                loop, or it is computed: then it stays in registers
  every load    of a factor: a block of an array argument, or of a view that fixes some of its axes, whose rows (or columns) are dense and
                start at multiples of 16 bytes, no mask
  programs      none waits for another: they may run in any order

Loads of one dot in one loop fill a ring together; a factor loaded outside its loop has a ring of its own.
"""
from __future__ import annotations

from dataclasses import replace

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.plan import DotPlan, LoadPlan, Plan
from tkc.ir.types import TileType, bits, element_of, is_float
from tkc.passes import PassContext
from tkc.passes.factors import held, simple, source, unfit, zero
from tkc.passes.mapped import dense_of_block, unmapped
from tkc.passes.program_axes import program_axes
from tkc.passes.rotate_loops import late_dot

PRODUCER, CONSUMER = 40, 232                 # registers of a thread of each role, up to two warpgroups of consumers
ACCUMULATORS = 208                           # of those, at most for sums and left factors
SLAB = 64                                    # columns of a result that leave through shared memory at once
BARRIERS, STAGES = 1024, 8


def roles(program, context: PassContext, plan: Plan) -> tuple[Plan | None, str]:
    """The plan with roles made of an ordinary one, or None and the reason."""
    options, dots = context.options, program.dots
    if not context.target.wgmma: return None, f"{context.target.name} has no wgmma"
    if options.roles == "one": return None, "roles = 'one', as asked"
    if options.num_warps not in (None, 4, 8): return None, f"num_warps = {options.num_warps}: roles have 4 or 8 compute warps"
    if any(isinstance(op, (tile.Atomic, tile.AtomicBlock, scf.WhileOp)) or isinstance(op, tile.LoadPointers) and op.semantics is not None for op in program.kernel.walk()):
        return None, "programs may see each other's order"
    if any(reason := unfit(dot) for dot in dots): return None, reason
    heights = {dot.acc.type.extents[0] for dot in dots}
    if len(heights) > 1: return None, "dots of different heights"
    m = heights.pop()
    groups = 1 if m % 128 or options.num_warps == 4 else 2
    loops = list(dict.fromkeys(dot.parent_op() for dot in dots))
    if len(loops) > 1: return None, "dots in several loops"
    late = late_dot(loops[0])
    each = held(dots, late, groups)
    if each > ACCUMULATORS: return None, f"sums and left factors of {each} registers a thread do not fit {CONSUMER}"
    if len(dots) > 1 and late is None: return None, "several dots in a loop, none of which can run beside the next iteration's"
    rings = _rings(dots)
    cluster, cut = _cluster(program, dots, context)
    epilogue, slabs = _epilogue(program, m)
    room = context.target.shared_bytes - BARRIERS - slabs
    stages, reason = _stages(rings, room, options.num_stages)
    if not stages: return None, reason
    uneven = cluster == (1, 1) and any(program_axes([op.lb, op.ub, op.step]) for op in program.kernel.walk() if isinstance(op, scf.ForOp))
    which = {load: i for i, ring in enumerate(rings) for load in ring}
    loads = tuple(LoadPlan("tma", 16, cut.get(op, -1), which[op]) if op in which else load for op, load in zip(program.loads, plan.loads))
    said = [f"plan: roles: a producer of {PRODUCER} registers, {groups} warpgroups of consumers of {CONSUMER} ({each} of them sums and left factors)"]
    for i, dot in enumerate(dots):
        said.append(f"plan: dot {i} ({'x'.join(map(str, dot.acc.type.extents))}x{dot.a.type.extents[1]}): wgmma, left factor in {'shared memory' if source(dot.a) else 'registers'}"
                    + (", one iteration late, beside the next one's first dot" if dot is late else ""))
    said += [f"plan: ring {i}: {n} stages of {_bytes(ring)} bytes" for i, (n, ring) in enumerate(zip(stages, rings))]
    said += [f"plan: {slabs} bytes for the output" if slabs else "plan: results are stored from registers",
             "plan: persistent: blocks take programs in turn, so that copies run ahead across programs",
             *(["plan: programs differ in length: blocks claim them one by one"] if uneven else []),
             f"plan: cluster {cluster[0]} x {cluster[1]}" + (f": {len(cut)} of {len(which)} copies serve {cluster[0]} blocks" if cut else "")]
    planned = tuple(DotPlan("wgmma", (groups, 1), "shared" if source(dot.a) else "registers", "shared") for dot in dots)
    return replace(plan, warps=4 * groups, stages=max(stages), dots=planned, loads=loads, roles="cooperative", registers=(PRODUCER, CONSUMER), cluster=cluster, raster=plan.raster,
                   persistent=True, queue=uneven, epilogue=epilogue, rings=stages, rotate=late is not None, decisions=tuple(said)), ""


def _rings(dots) -> list[list[tile.Load]]:
    """Loads that fill a stage together."""
    rings: list[list[tile.Load]] = []
    for dot in dots:
        here = [load for load in map(source, (dot.a, dot.b)) if load is not None]
        rings += [[load] for load in here if load.parent_op() is not dot.parent_op()]
        rings.append([load for load in here if load.parent_op() is dot.parent_op()])
    return rings


def _bytes(ring: list[tile.Load]) -> int: return sum(load.result.type.size * bits(element_of(load.result.type)) // 8 for load in ring)


def _stages(rings: list[list[tile.Load]], room: int, asked: int | None) -> tuple[tuple[int, ...], str]:
    """Stages of each ring: as many as fit for those of a loop, alike; two for what is loaded once a program, one where that is too many."""
    inner = [isinstance(ring[0].parent_op(), scf.ForOp) for ring in rings]
    for count in range(min(STAGES, asked or STAGES), 1, -1):
        for outer in (2, 1):
            chosen = tuple(count if i else outer for i in inner)
            if sum(n * _bytes(ring) for n, ring in zip(chosen, rings)) <= room: return chosen, ""
    return (), f"two stages of {' and '.join(str(_bytes(r)) for r in rings)} bytes do not fit shared memory"


def _cluster(program, dots, context: PassContext) -> tuple[tuple[int, int], dict[Operation, int]]:
    """The cluster, and for each load that its blocks share, the buffer's axis along which they share the work."""
    asked = context.options.cluster
    size = 2 if asked is None else asked[0] if tuple(asked) in ((1, 1), (2, 1)) else 1
    if size == 1 or len(dots) > 1 or dots[0].acc.type.size < 128 * 128: return (1, 1), {}
    cut = {}
    for load in filter(None, map(source, (dots[0].a, dots[0].b))):
        around = load.parent_op()
        if 0 in program_axes([*load.operands, around.lb, around.ub, around.step]): continue
        extents = [n for n in load.extents.get_values() if n >= 0]
        if len(extents) != 2 or len(load.extents.get_values()) != 2: continue
        panel, dense = 128 // (bits(load.result.type.element) // 8), dense_of_block(load)
        if extents[dense] % (panel * size) == 0: cut[load] = dense
        elif extents[1 - dense] % (8 * size) == 0 and extents[dense] <= panel: cut[load] = 1 - dense
    return ((size, 1), cut) if cut else ((1, 1), {})


def _epilogue(program, m: int) -> tuple[str, int]:
    """How results leave, and the shared memory that takes: "tma" where every store of a large tile can be mapped."""
    stores = [op for op in program.kernel.walk() if isinstance(op, tile.Store) and isinstance(op.value.type, TileType) and op.value.type.rank == 2]
    if not stores or not all(slabbed(op, m) for op in stores): return "direct", 0
    return "tma", sum(slots(op.value.type.extents[1]) for op in stores) * m * SLAB * 2


def slots(n: int) -> int:
    """Slabs in turn for n columns: two where that closes within a program, else one (the wait for a slab counts back by slabs)."""
    return 2 if n // SLAB % 2 == 0 else 1


def slabbed(op: tile.Store, m: int) -> bool:
    """Whether a store of a result can leave in slabs of 64 columns."""
    t = op.value.type
    return t.rank == 2 and t.extents[0] == m and t.extents[1] % SLAB == 0 and is_float(t.element) and bits(t.element) == 16 and not unmapped(op) and dense_of_block(op) == 1 and len(op.extents.get_values()) == 2
