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

Only loops without dots, of few iterations whose number is known, without other loops, branches or
effects in them, and whose blocks registers hold all at once.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.rewrite import Builder, clone_slice, defining_slice, replace
from tkc.ir.types import TileType
from tkc.ir.values import operations_in, terminator_of, yielded_by
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.values import LOADS

MAX_ITERATIONS = 16
MAX_LOADED_BYTES = 1 << 15  # of all iterations: 64 registers of each of 128 threads


def run(module: ModuleOp, context: PassContext) -> None:
    """Writes out the loops of every kernel that gain by it."""
    for kernel in module.body.block.ops:
        loops = operations_in(kernel, scf.ForOp)
        counts = [(loop, _iterations(loop)) for loop in loops if _gains(loop)]
        for loop, count in counts:
            if count <= MAX_ITERATIONS and count * _loaded_bytes(loop) <= MAX_LOADED_BYTES:
                _write_out(loop, count)
                context.decisions.append(
                    f"unroll-loops: {count} iterations are written out, whose addresses are loaded"
                )


def _iterations(loop: scf.ForOp) -> int:
    """How many iterations a loop has; too many where that is not known."""
    first, end, step = (constant(v) for v in (loop.lb, loop.ub, loop.step))
    if first is None or end is None or not step or step < 0:
        return MAX_ITERATIONS + 1
    return len(range(int(first), int(end), int(step)))


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


def _write_out(loop: scf.ForOp, count: int) -> None:
    """The iterations one behind the other, in the loop's place."""
    body, carried = loop.body.block, list(loop.iter_args)
    ops = [op for op in body.ops if op is not terminator_of(body)]
    number: SSAValue = loop.lb
    for i in range(count):
        if i:
            number = Builder(loop).add(number, loop.step)
        mapping: dict[SSAValue, SSAValue] = dict(zip(body.args, [number, *carried], strict=True))
        clone_slice(ops, mapping, loop)
        carried = [mapping.get(v, v) for v in yielded_by(body)]
    replace(loop, carried)
