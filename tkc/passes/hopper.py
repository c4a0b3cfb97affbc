"""Plans for Hopper's engines: warp roles, tensor maps and wgmma, where a program's data flow lets them be used.

A producer warp copies, by tensor maps, what the dots of a loop read; two warpgroups of consumers multiply straight from shared
memory. `roles(program, context)` returns the plan, or says why this program does not take one:

  every dot     16-bit factors, both loaded in the dot's own loop (transposed or not), accumulated in float32; m a multiple of 64 that the
                warpgroups share, n a multiple of 8 up to 256, k of 16
  every load    of a factor: a block of an array argument whose rows are dense and start at multiples of 16 bytes, no mask
  programs      none waits for another, and what they store is not read by others: they may run in any order
"""
from __future__ import annotations

from dataclasses import replace

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.plan import DotPlan, LoadPlan, Plan
from tkc.ir.types import TileType, bits, element_of, is_float
from tkc.passes import PassContext

PRODUCER, CONSUMER = 40, 232                 # registers of a thread of each role, two warpgroups of consumers
SLAB = 64                                    # columns of the accumulator that leave through shared memory at once
BARRIERS, STAGES = 1024, 8


def roles(program, context: PassContext, plan: Plan) -> tuple[Plan | None, str]:
    """The plan with roles made of an ordinary one, or None and the reason."""
    if not context.target.wgmma: return None, f"{context.target.name} has no wgmma"
    if not program.dots: return None, "no dots"
    if context.options.num_warps not in (None, 4, 8): return None, f"num_warps = {context.options.num_warps}: roles have 4 or 8 compute warps"
    ops = list(program.kernel.walk())
    if any(isinstance(op, (tile.Atomic, tile.AtomicBlock, scf.WhileOp)) or isinstance(op, tile.LoadPointers) and op.semantics is not None for op in ops):
        return None, "programs may see each other's order"
    if len(program.dots) != 1: return None, "several dots: their order within a step is not scheduled yet"
    dot = program.dots[0]
    if reason := _unfit(dot): return None, reason
    groups = 1 if dot.acc.type.extents[0] % 128 or context.options.num_warps == 4 else 2
    m, n = dot.acc.type.extents
    each = m * n // (128 * groups)
    if each > 208: return None, f"an accumulator of {each} registers a thread does not fit {CONSUMER}"
    factors = [source(v) for v in (dot.a, dot.b)]
    if any(load.array.owner is None or not _argument(load.array) for load in factors): return None, "a factor comes from an array made in the kernel"
    cluster, cut = _cluster(program, dot, factors, context)
    step = sum(v.type.size * bits(element_of(v.type)) // 8 for v in (dot.a, dot.b))
    epilogue, slabs = _epilogue(program, dot)
    room = context.target.shared_bytes - BARRIERS - slabs
    stages = min(STAGES, context.options.num_stages or STAGES, room // step)
    if stages < 2: return None, f"{stages} stages of {step} bytes fit shared memory"
    loads = tuple(LoadPlan("tma", 16, multicast=cut.get(op, -1)) if op in factors else load for op, load in zip(program.loads, plan.loads))
    said = [f"plan: roles: a producer of {PRODUCER} registers, {groups} warpgroups of consumers of {CONSUMER} ({each} of them accumulators)",
            f"plan: dot 0 ({m}x{n}x{dot.a.type.extents[1]}): wgmma from shared memory, {groups} warpgroup{'s' * (groups > 1)} along m",
            f"plan: {stages} stages of {step} bytes, {slabs} bytes for the output", "plan: persistent: blocks take programs in turn, so that copies run ahead across programs",
            f"plan: cluster {cluster[0]} x {cluster[1]}" + (": " + ", ".join(f"{op.result.name_hint or 'a factor'} is copied once for {cluster[0]} blocks" for op in cut) if cut else "")]
    return replace(plan, warps=4 * groups, stages=stages, dots=(DotPlan("wgmma", (groups, 1), "shared", "shared"),), loads=loads, roles="cooperative",
                   registers=(PRODUCER, CONSUMER), cluster=cluster, raster=8, persistent=True, epilogue=epilogue, decisions=tuple(said)), ""


def source(value: SSAValue) -> tile.Load | None:
    """The load that a factor shows, transposed or not."""
    while isinstance(value.owner, tile.Transpose): value = value.owner.arg
    return value.owner if isinstance(value.owner, tile.Load) else None


def _unfit(dot: tile.Dot) -> str:
    a, b, acc = (v.type for v in (dot.a, dot.b, dot.acc))
    if acc.rank != 2 or str(acc.element) != "f32" or str(a.element) not in ("bf16", "f16") or a.element != b.element: return f"wgmma of {a.element} into {acc.element} is not planned"
    (m, n), k = acc.extents, a.extents[1]
    if m % 64 or n % 8 or n > 256 or k % 16 or m > 256: return f"{m}x{n}x{k} is not made of wgmma's 64 x 8..256 x 16"
    loop = dot.parent_op()
    if not isinstance(loop, scf.ForOp): return "the dot is not in a loop"
    carried = dot.acc
    if not isinstance(carried, BlockArgument) or carried.block is not loop.body.block or loop.body.block.last_op.operands[carried.index - 1] is not dot.result or not carried.has_one_use():
        return "the dot's sum is not just carried by its loop"
    initial = loop.iter_args[carried.index - 1]
    if not isinstance(initial.owner, tile.Constant) or initial.owner.number != 0: return "the dot's sum does not start from zero"
    for factor in (dot.a, dot.b):
        load = source(factor)
        if load is None or load.parent_op() is not loop: return "a factor is not loaded in the dot's loop"
        if (reason := unmapped(load)): return reason
        value = load.result
        while value is not factor:
            if not value.has_one_use(): return "a factor is used elsewhere too"
            value = value.first_use.operation.results[0]
        if not value.has_one_use(): return "a factor is used elsewhere too"
    return ""


def unmapped(op: tile.Load | tile.Store) -> str:
    """Why a tensor map cannot move a block; empty if it can."""
    facts, extents, element = op.array.type.facts, op.extents.get_values(), bits(op.array.type.element) // 8
    if op.mask is not None or getattr(op, "other", None) is not None: return "a mask"
    if any(isinstance(o.type, TileType) for o in op.offsets): return "a gather"
    if extents[-1] < 0 or facts.strides[-1].exact != 1: return "rows that are not dense"
    if len(extents) > 5 or any(n > 256 for n in extents[:-1]): return "a block too large for a tensor map"
    if facts.align % 16 or any((s.exact if s.exact is not None else s.divisor) * element % 16 for s in facts.strides[:-1]): return "rows that do not start at multiples of 16 bytes"
    if extents[-1] * element % 32: return "rows of a block narrower than a swizzle"
    return ""


def _argument(array: SSAValue) -> bool: return isinstance(array, BlockArgument) and isinstance(array.block.parent_op(), tile.Kernel)


def _cluster(program, dot: tile.Dot, factors: list[tile.Load], context: PassContext) -> tuple[tuple[int, int], dict[Operation, int]]:
    """The cluster, and for each load that its blocks share, the buffer's axis along which they share the work."""
    from tkc.passes.plan import program_axes
    asked = context.options.cluster
    if asked is not None and tuple(asked) not in ((1, 1), (2, 1)): asked = (1, 1)
    size = 2 if asked is None else asked[0]
    if size == 1 or dot.acc.type.size < 128 * 128: return (1, 1), {}
    cut = {}
    for load in factors:
        around = load.parent_op()
        if 0 in program_axes([*load.operands, around.lb, around.ub, around.step]): continue
        extents = [n for n in load.extents.get_values() if n >= 0]
        panel = 128 // (bits(load.result.type.element) // 8)
        axis = 1 if extents[1] % (panel * size) == 0 else 0 if extents[0] % (8 * size) == 0 and extents[1] <= panel else None
        if axis is not None and len(extents) == len(load.extents.get_values()) == 2: cut[load] = axis
    return ((size, 1), cut) if cut else ((1, 1), {})


def _epilogue(program, dot: tile.Dot) -> tuple[str, int]:
    """How accumulators leave, and the shared memory that takes: "tma" where every store of the program's large tiles can be mapped."""
    stores = [op for op in program.kernel.walk() if isinstance(op, tile.Store) and isinstance(op.value.type, TileType)]
    m, n = dot.acc.type.extents
    if stores and all(slabbed(op, m, n) for op in stores): return "tma", len(stores) * slots(n) * m * SLAB * 2
    return "direct", 0


def slots(n: int) -> int:
    """Slabs in turn for n columns: two where that closes within a program, else one (the wait for a slab counts back by slabs)."""
    return 2 if n // SLAB % 2 == 0 else 1


def slabbed(op: tile.Store, m: int, n: int) -> bool:
    """Whether a store of the accumulator's shape can leave in slabs of 64 columns."""
    t = op.value.type
    return t.extents == (m, n) and n % SLAB == 0 and is_float(t.element) and bits(t.element) == 16 and not unmapped(op) and _argument(op.array) and len(op.extents.get_values()) == 2
