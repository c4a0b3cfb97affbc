"""assign-registers: what each thread holds at once, tile by tile; a report.

    tile.kernel @matmul(…) {…, registers = 187 : i64}

That many 32-bit registers of tiles are live at once, at most. A value is live from its definition
to its last use; a loop keeps alive what is defined outside and used inside, and a carried value
shares the registers of its initial value, block argument and result (the emitter ties them to one
tuple). Every tile is counted as whole before the next one begins; ptxas computes element-wise
chains register by register and needs fewer, so that what spills is known from `Compiled.resources`
alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import shared, tile
from tkc.ir.layout import movement
from tkc.ir.text import location_of
from tkc.ir.types import PendingType, TileType, bits, element_of, is_bool
from tkc.ir.values import defining_op, layout_of
from tkc.passes import PassContext
from tkc.passes.analysis.values import LEAVES, VIEWS

MAX_REGISTERS_PER_THREAD = 255  # of 32 bits

# Their results are registers of their operand, or none.
SELECTIONS = (*LEAVES, *VIEWS, tile.Slice)


def run(module: ModuleOp, context: PassContext) -> None:
    """Records each kernel's register pressure."""
    for kernel in tile.kernels_of(module):
        peak, where = pressure(kernel.body.block)
        kernel.set_integer("registers", peak)
        place = location_of(where) if where is not None else None
        context.decisions.append(
            f"assign-registers: tiles take at most {peak} registers a thread"
            + (f", at {place}" if place else "")
        )
        if peak > MAX_REGISTERS_PER_THREAD:
            context.decisions.append(
                f"assign-registers: that is more than {MAX_REGISTERS_PER_THREAD}: it fits if ptxas"
                " takes tiles in parts (report() says whether it spills); if not, use smaller"
                " tiles or more warps"
            )


def size(value: SSAValue) -> int:
    """32-bit registers that a value takes in each thread (truth values are predicates: not
    counted).
    """
    if isinstance(value.owner, SELECTIONS) or _source(value) is not value:
        return 0
    t = value.type.tile if isinstance(value.type, PendingType) else value.type
    if not isinstance(t, TileType) or is_bool(t.element):
        return 0
    layout = t.register_layout
    return -(-layout.num_registers * bits(t.element) // 32) if layout is not None else 0


def _source(value: SSAValue) -> SSAValue:
    """The value of whose registers a value is only a choice."""
    while (op := defining_op(value, shared.Convert)) is not None:
        if bits(element_of(op.arg.type)) < 32:
            break
        if movement(layout_of(op.arg), layout_of(op.result)) != "registers":
            break
        value = op.arg
    return value


def pressure(block: Block, live: frozenset[SSAValue] = frozenset()) -> tuple[int, Operation | None]:
    """The most registers live at once in a block, given what is live all through it, and at which
    operation.
    """
    last = _last_uses(block)
    last_of: dict[Operation, set[SSAValue]] = defaultdict(set)
    for value, op in last.items():
        if value not in live:
            last_of[op].add(value)
    now = set(live) | {a for a in block.args if size(a)}
    held = sum(map(size, now))
    peak, where = held, None
    for op in block.ops:
        ending = last_of[op] & now
        for found, at in _pressures_inside(op, now, ending):
            if found > peak:
                peak, where = found, at or op
        now -= ending
        sizes = {r: size(r) for r in op.results}
        held += sum(sizes.values()) - sum(map(size, ending))
        if held > peak:
            peak, where = held, op
        for r, registers in sizes.items():
            if registers and r in last:
                now.add(r)
            else:
                held -= registers
    return peak, where


def _last_uses(block: Block) -> dict[SSAValue, Operation]:
    """The last operation of a block that reads a value, or inside which one does."""
    return {_source(operand): op for op in block.ops for operand in _operands_inside(op)}


def _pressures_inside(
    op: Operation, now: set[SSAValue], ending: set[SSAValue]
) -> Iterator[tuple[int, Operation | None]]:
    for region in op.regions:
        through = frozenset(now - _freed_inside(op, region, ending))
        for block in region.blocks:
            yield pressure(block, through)


def _operands_inside(op: Operation | Region) -> Iterator[SSAValue]:
    """What an operation, or a region, and all inside read."""
    return (v for inner in op.walk() for v in inner._operands)


def _freed_inside(op: Operation, region: Region, ending: set[SSAValue]) -> set[SSAValue]:
    """Which values, whose last use is an operation with regions, are not live all through one of
    them: what a loop carries becomes its block arguments, and of a branch only the other side needs
    what this one does not read.
    """
    if isinstance(op, (scf.ForOp, scf.WhileOp)):
        return set(op.operands) & ending
    return ending.difference(_operands_inside(region)) if isinstance(op, scf.IfOp) else set()
