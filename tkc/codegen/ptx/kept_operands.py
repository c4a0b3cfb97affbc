"""Left operands of wgmma in registers that were there before a loop, which reads them in every
iteration.

ptxas before 13.1 takes such registers for free after the last wgmma of an iteration, if nothing but
wgmma reads them: what the iteration computes then may overwrite what the next one multiplies, and
the program is wrong without a word. (Seen in the machine code of 12.0 to 13.0, and on an H200.) A
read by another instruction behind the loop keeps them: here a store that never happens. What a loop
carries, and so writes, it keeps itself.

    $loop:
        wgmma.mma_async… {%r35, …}, {%r249, %r250, %r255, %r256}, …
        …
        @%p1 bra $loop
        setp.eq.u32 %p2, %nctaid.x, 0;            // a grid has blocks, which ptxas does not know
        @%p2 st.shared.v4.b32 [%r69], {%r249, %r250, %r255, %r256};

`tkc.fuzz.lost_operands` finds a loop without.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, SSAValue

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.values import Tile
from tkc.codegen.ptx.writer import braced
from tkc.ir.rewrite import is_inside, loop_of
from tkc.ir.threads import DotAsync
from tkc.ir.types import f32
from tkc.ir.values import operations_in, owner_op

Loop = scf.ForOp | scf.WhileOp

VECTOR = 4  # registers of one store


def keep(e: Emitter, loop: Loop) -> None:
    """Behind a loop, reads the left operands that it found in registers; those that the loop around
    it found are read behind that one.
    """
    held = dict.fromkeys(r for tile in _living_through(e, loop) for r in tile.registers)
    registers = [r for r in held if isinstance(r, str)]
    if not registers:
        return
    w, base = e.w, e.shared_base()
    never = w.op("setp.eq.u32", "pred", w.op("mov.u32", "b32", "%nctaid.x"), 0)
    for first in range(0, len(registers), VECTOR):
        stored = registers[first : first + VECTOR]
        if len(stored) == VECTOR:
            w.emit(f"@{never} st.shared.v{VECTOR}.b32 [{base}], {braced(stored)}")
        else:
            for register in stored:
                w.emit(f"@{never} st.shared.b32 [{base}], {register}")


def _living_through(e: Emitter, loop: Loop) -> Iterator[Tile]:
    """The left operands in registers of dots in a loop that were there before it, unless they were
    so before the loop around it too.
    """
    around = loop_of(loop)
    for dot in operations_in(loop, DotAsync):
        held = e.values.get(dot.a)
        if not isinstance(held, Tile) or held.element == f32:  # tf32: converted where it is read
            continue
        source = _source(e, dot.a, held, loop)
        if not is_inside(source, loop) and (around is None or is_inside(source, around)):
            yield held


def _source(e: Emitter, value: SSAValue, held: Tile, loop: Loop) -> SSAValue:
    """The value that has had a tile's registers longest, as far as the loop's body tells."""
    registers = set(held.registers)
    while is_inside(value, loop):
        made_of = _initial(value) if isinstance(value, BlockArgument) else owner_op(value).operands
        before = [v for v in made_of if _holds(e, v, registers)]
        if not before or isinstance(value, BlockArgument) and value.block.parent_op() is loop:
            break
        value = before[0]
    return value


def _initial(argument: BlockArgument) -> list[SSAValue]:
    """What an argument of a loop is at first."""
    loop = argument.block.parent_op()
    if not isinstance(loop, scf.ForOp) or not argument.index:
        return []
    return [loop.iter_args[argument.index - 1]]


def _holds(e: Emitter, value: SSAValue, registers: set) -> bool:
    found = e.values.get(value)
    return isinstance(found, Tile) and registers <= set(found.registers)
