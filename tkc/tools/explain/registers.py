"""What threads hold and for how long: tiles by the IR, registers of 32 bits by the machine code.

nvdisasm marks, behind each instruction, every register that is live there: `^` written, `v` read,
`x` both, `:` kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import Block

from tkc.codegen.ptx.ptxas import disassemble
from tkc.errors import CompileError
from tkc.ir import tile
from tkc.ir.text import location_of
from tkc.ir.values import ancestor
from tkc.passes.assign_registers import size
from tkc.tools.explain.listing import Place, is_instruction

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Operation, SSAValue


@dataclass(frozen=True)
class TileLife:
    """A tile in registers: 32-bit registers of a thread, the operations (in program order) that
    make it and that read it last, and which they are.
    """

    name: str
    registers: int
    begin: int
    end: int
    maker: str
    last_user: str
    place: Place | None


@dataclass(frozen=True)
class Lives:
    """Of machine code: of each instruction how many registers are live, and of each register the
    stretches [first, last] of instructions in which it is.
    """

    live: tuple[int, ...]
    stretches: tuple[tuple[tuple[int, int], ...], ...]


def tiles(module: ModuleOp) -> list[TileLife]:
    """Of the module's kernels: tiles that take registers. One that a loop uses and that is made
    before it lives to the loop's end.
    """
    found = []
    for kernel in tile.kernels_of(module):
        order = list(kernel.walk())
        position = {op: i for i, op in enumerate(order)}
        ends = {op: max(position[o] for o in op.walk()) for op in order if op.regions}
        for op in order:
            values = [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]
            for value in values:
                if registers := size(value):
                    found.append(_life(value, registers, op, position, ends))
    return found


def _life(
    value: SSAValue,
    registers: int,
    op: Operation,
    position: dict[Operation, int],
    ends: dict[Operation, int],
) -> TileLife:
    begin = position[op] if value.owner is not op else ends.get(op, position[op])
    end, last = begin, op
    for use in value.uses:
        at = _end_of(use.operation, value, position, ends)
        if at > end:
            end, last = at, use.operation
    location = location_of(op)
    return TileLife(
        value.name_hint or "",
        registers,
        begin,
        end,
        op.name.removeprefix("tile."),
        last.name.removeprefix("tile."),
        (location.file, location.line) if location else None,
    )


def _end_of(
    user: Operation, value: SSAValue, position: dict[Operation, int], ends: dict[Operation, int]
) -> int:
    """Until where a use keeps a value: the user, or the end of the outermost operation round it
    that the value is not made in.
    """
    home = value.owner if isinstance(value.owner, Block) else value.owner.parent
    around = ancestor(user, home) if home is not None else None
    return position[user] if around is user or around is None else ends[around]


# --------------------------------------------------------------------------------------------------
def lives(cubin: bytes) -> Lives:
    """Of a cubin's registers. Raises CompileError where nvdisasm is missing or says nothing."""
    found = parsed(disassemble(cubin, "-plr", "-lrm", "narrow"))
    if found is None:
        raise CompileError("this nvdisasm shows no lives of registers; install a newer one")
    return found


def parsed(text: str) -> Lives | None:
    """What nvdisasm -plr -lrm narrow says."""
    live: list[int] = []
    open_at: dict[int, int] = {}
    stretches: dict[int, list[tuple[int, int]]] = {}
    first = None
    for line in text.splitlines():
        _, slashes, table = line.partition("// |")
        if not slashes:
            continue
        cell = table.split("|")[0]
        if first is None:
            header = re.match(r"\s*# (0123\d*)", cell)
            first = header.start(1) if header else None
            continue
        if not is_instruction(line):
            continue
        now, marks = len(live), cell[first:]
        held = {register for register, mark in enumerate(marks) if mark not in " "}
        live.append(int(cell[:first].strip() or 0))
        for register in held - open_at.keys():
            open_at[register] = now
        for register in open_at.keys() - held:
            stretches.setdefault(register, []).append((open_at.pop(register), now - 1))
    for register, begin in open_at.items():
        stretches.setdefault(register, []).append((begin, len(live) - 1))
    if not live:
        return None
    return Lives(
        tuple(live),
        tuple(tuple(stretches.get(r, ())) for r in range(max(stretches, default=-1) + 1)),
    )
