"""assign-registers: what each thread holds at once, tile by tile; a report.

    // kernel attribute after:  registers = 187 : i64        at most so many 32-bit registers of tiles live at once

A value lives from its definition to its last use; a loop keeps alive what is defined outside and
used inside, and a carried value shares the registers of its initial value, block argument and
result (the emitter ties them to one tuple). Every tile is counted as whole before the next one
begins; ptxas computes element-wise chains register by register and gets by with fewer (attention
with D = 128: 298 counted, 168 taken, none spilled), so that what spills is known from
`Compiled.resources` alone.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.layout import movement
from tkc.ir.text import location_of
from tkc.ir.types import PendingType, TileType, bits, is_bool
from tkc.passes import PassContext

LIMIT = 255  # 32-bit registers a thread can have


SELECTIONS = (
    tile.Constant,
    tile.Splat,
    tile.Broadcast,
    tile.Reshape,
    tile.Transpose,
    tile.Slice,
    tile.Arange,
)  # registers of their operand, or none


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        peak, where = pressure(kernel.body.block)
        kernel.set_integer("registers", peak)
        place = location_of(where) if where is not None else None
        context.decisions.append(
            f"assign-registers: tiles take at most {peak} registers a thread"
            + (f", at {place}" if place else "")
        )
        if peak > LIMIT:
            context.decisions.append(
                f"assign-registers: that is more than {LIMIT}: it fits if ptxas takes tiles in"
                " parts (report() says whether it spills); if not, use smaller tiles or more warps"
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
    """What a value is but a choice of the registers of."""
    while (
        isinstance(op := value.owner, shared.Convert)
        and bits(op.arg.type.element) >= 32
        and movement(op.arg.type.register_layout, op.result.type.register_layout) == "registers"
    ):
        value = op.arg
    return value


def pressure(block: Block, live: frozenset[SSAValue] = frozenset()) -> tuple[int, Operation | None]:
    """The most registers live at once in a block, given what lives through it, and at which
    operation.
    """
    last: dict[SSAValue, Operation] = {}
    for op in block.ops:
        for inner in op.walk():
            for operand in inner.operands:
                last[_source(operand)] = op
    now = set(live) | {a for a in block.args if size(a)}
    peak, where = sum(map(size, now)), None
    for op in block.ops:
        dying = {v for v in now if last.get(v) is op and v not in live}
        if op.regions:
            # become the carried values inside
            tied = set(op.operands) & dying if isinstance(op, (scf.ForOp, scf.WhileOp)) else set()
            for region in op.regions:
                spared = (
                    dying - {v for inner in region.walk() for v in inner.operands}
                    if isinstance(op, scf.IfOp)
                    else set()
                )  # only the other side needs them
                for inner in region.blocks:
                    found, at = pressure(inner, frozenset(now - tied - spared))
                    if found > peak:
                        peak, where = found, at or op
        now -= dying
        now |= {r for r in op.results if size(r) and r in last}
        total = sum(map(size, now)) + sum(size(r) for r in op.results if r not in now)
        if total > peak:
            peak, where = total, op
    return peak, where
