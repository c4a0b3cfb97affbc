"""unroll-loops: short loops that read where what they have read says are written out.

    for %t = 0 to 16 step 1 iter_args(%s = %z) {       %i0 = tile.load_pointers %index
      %i = tile.load_pointers %index + %t              %x0 = tile.load_pointers %table + %i0 * %n
      %x = tile.load_pointers %table + %i * %n    ->   %s0 = tile.add %z, %x0
      %s1 = tile.add %s, %x                            %i1 = tile.load_pointers %index + 1
      yield %s1                                        %x1 = tile.load_pointers %table + %i1 * %n
    }                                                  …

An iteration of such a loop waits for memory twice, and no load of the next one can be made earlier
by fetch-ahead, since its address is loaded. Written out, the loads of all iterations are on their
way at once: the assembler orders loads before what waits for them, but not across iterations.

Where their number is not known, or large, four iterations are written out in a loop of a fourth as
many, and those that are left over follow in a loop of their own:

    for %t = 0 to %n step 1 {…}    ->    %m = %n // 4 * 4
                                         for %t = 0 to %m step 4 {…; …; …; …}
                                         for %t = %m to %n step 1 {…}

Only loops without dots, without other loops, branches or effects in them, and whose blocks
registers hold all at once.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.rewrite import Builder, before, clone_slice, defining_slice, replace, stamp
from tkc.ir.types import TileType
from tkc.ir.values import operations_in, terminator_of, yielded_by
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.values import LOADS

MAX_ITERATIONS = 16  # of a loop that is written out whole
ITERATIONS_AT_ONCE = 4  # of others
MAX_LOADED_BYTES = 1 << 15  # of all iterations: 64 registers of each of 128 threads


def run(module: ModuleOp, context: PassContext) -> None:
    """Writes out the loops of every kernel that gain by it."""
    for kernel in module.body.block.ops:
        loops = [loop for loop in operations_in(kernel, scf.ForOp) if _gains(loop)]
        for loop in loops:
            count, loaded = iterations(loop), _loaded_bytes(loop)
            if count is not None and count <= MAX_ITERATIONS and count * loaded <= MAX_LOADED_BYTES:
                write_out(loop, count)
                said = f"{count} iterations are written out"
            elif _step(loop) > 0 and ITERATIONS_AT_ONCE * loaded <= MAX_LOADED_BYTES:
                _write_groups(loop)
                said = f"{ITERATIONS_AT_ONCE} iterations at once are written out"
            else:
                continue
            context.decisions.append(f"unroll-loops: {said}, whose addresses are loaded")


def _step(loop: scf.ForOp) -> int:
    """The step of a loop; 0 where it is not known."""
    return int(constant(loop.step) or 0)


def iterations(loop: scf.ForOp) -> int | None:
    """How many iterations a loop has; None where that is not known."""
    first, end, step = constant(loop.lb), constant(loop.ub), _step(loop)
    if first is None or end is None or step <= 0:
        return None
    return len(range(int(first), int(end), step))


def _gains(loop: scf.ForOp) -> bool:
    """Whether a loop does nothing but compute and load, and tiles are loaded from addresses that
    are loaded in the same iteration.
    """
    ops = list(loop.body.block.ops)[:-1]
    if any(op.regions or not _only_reads(op) or isinstance(op, tile.Dot) for op in ops):
        return False
    return any(
        isinstance(op, LOADS)
        and isinstance(op.results[0].type, TileType)
        and any(isinstance(source, LOADS) for source in defining_slice(_place(op), loop.body.block))
        for op in ops
    )


def _only_reads(op: Operation) -> bool:
    """Whether an operation computes, or reads what nobody writes meanwhile."""
    return is_side_effect_free(op) or isinstance(op, LOADS) and not tile.watches(op)


def _place(load: Operation) -> list[SSAValue]:
    """What says where a load reads."""
    if isinstance(load, tile.LoadPointers):
        return [load.pointers]
    assert isinstance(load, tile.Load)
    return [load.array, *load.offsets]


def _loaded_bytes(loop: scf.ForOp) -> int:
    """Bytes of the tiles that an iteration loads."""
    types = [op.results[0].type for op in loop.body.block.ops if isinstance(op, LOADS)]
    return sum(t.bytes for t in types if isinstance(t, TileType))


def write_out(loop: scf.ForOp, count: int) -> None:
    """The iterations one behind the other, in the loop's place."""
    replace(loop, _written(loop, loop.lb, list(loop.iter_args), count, loop))


def _written(
    loop: scf.ForOp, number: SSAValue, carried: list[SSAValue], count: int, anchor: Operation
) -> list[SSAValue]:
    """Writes so many iterations before an operation, from one of a number and carried values on.
    What the last one carries on.
    """
    body = loop.body.block
    ops = [op for op in body.ops if op is not terminator_of(body)]
    for i in range(count):
        if i:
            number = Builder(anchor).add(number, loop.step)
        mapping: dict[SSAValue, SSAValue] = dict(zip(body.args, [number, *carried], strict=True))
        clone_slice(ops, mapping, anchor)
        carried = [mapping.get(v, v) for v in yielded_by(body)]
    return carried


def _write_groups(loop: scf.ForOp) -> None:
    """Puts a loop of whole groups of iterations before a loop, which begins behind them."""
    build, step = Builder(loop), ITERATIONS_AT_ONCE * _step(loop)
    # a loop may end so far before it begins that the type does not hold the distance
    distance = build.sub(build.max(loop.ub, loop.lb), loop.lb)
    groups = build.floordiv(distance, step)
    middle = build.add(loop.lb, build.mul(build.max(groups, 0), step))
    types = [loop.lb.type, *(v.type for v in loop.iter_args)]
    block = Block(arg_types=types)
    for new, old in zip(block.args, loop.body.block.args, strict=True):
        new.name_hint = old.name_hint
    end = stamp(scf.YieldOp(), loop)
    block.add_op(end)
    end.operands = _written(loop, block.args[0], list(block.args[1:]), ITERATIONS_AT_ONCE, end)
    grouped = scf.ForOp(
        loop.lb, middle, build.of(step, loop.lb.type), loop.iter_args, Region(block)
    )
    before(loop, grouped)
    loop.operands = [middle, *loop.operands[1:3], *grouped.results]
