"""Registers of the width that an instruction names: what ptxas refuses otherwise."""

from __future__ import annotations

import numpy as np

from tkc.sim.ptx.faults import Fault
from tkc.sim.ptx.kinds import KIND_BYTES
from tkc.sim.ptx.text import Instruction, Program

# The first words of instructions all operands of which are of their type, but for predicates
ALIKE = {"abs", "add", "and", "copysign", "cos", "div", "ex2", "fma", "lg2", "lop3", "mad", "max"}
ALIKE |= {"min", "mov", "mul", "neg", "not", "or", "prmt", "rcp", "rem", "rsqrt", "selp", "setp"}
ALIKE |= {"sin", "sqrt", "sub", "tanh", "xor"}
# Two numbers in a word
WORDS = frozenset(("f16x2", "bf16x2", "u16x2", "s16x2"))


def check_widths(program: Program) -> None:
    """Raises Fault at a register that is wider or narrower than what its instruction takes."""
    for i in program.code:
        size = 4 if i.kind in WORDS else KIND_BYTES.get(i.kind)
        if size is None or i.parts[0] not in ALIKE or "wide" in i.parts:
            continue
        for name in filter(program.holds.__contains__, _taken(i)):
            held = np.dtype(program.holds[name]).itemsize
            if held != size:
                message = f"{name} holds {8 * held} bits, where .{i.kind} has {8 * size}"
                raise Fault(f"{message}: {i.line}")


def _taken(i: Instruction) -> list[str]:
    """The operands of an instruction that are of its type, but for lists."""
    operands = i.operands
    if i.parts[0] == "setp":
        operands = operands[1:3]
    elif i.parts[0] == "selp":
        operands = operands[:3]
    return [o for o in operands if isinstance(o, str)]
