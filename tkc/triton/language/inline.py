"""PTX in a kernel, as `tl.inline_asm_elementwise` runs it: on `pack` elements at a time, short ones
packed into 32-bit registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tkc.language import values
from tkc.language.inline import inline_ptx
from tkc.language.tracer import fail
from tkc.language.values import Value
from tkc.triton.language import types
from tkc.triton.language.constants import tuple_, unwrap, unwrap_all
from tkc.triton.language.types import dtype as Type
from tkc.triton.language.values import broadcast, common_shape, known_type, tensor, to_tensor

# a constraint's register: its bits
REGISTERS = {"r": 32, "f": 32, "h": 16, "l": 64, "d": 64}


def inline_asm_elementwise(
    asm: str, constraints: str, args: Sequence, dtype: Any, is_pure: Any, pack: Any
) -> Any:
    """PTX for `pack` elements of each argument at a time. constraints: `=r` of each result
    register, then `r` of each operand register; r, f of 32 bits, h of 16, l and d of 64.
    """
    given = unwrap_all(dtype)
    many = isinstance(given, (tuple, list))
    results = [known_type(t) for t in (given if many else (given,))]
    outputs, inputs = _registers(str(unwrap(constraints)))
    operands = [to_tensor(a) for a in unwrap(args)]
    shape = common_shape(*operands)
    spread = [broadcast(x, shape).value for x in operands]
    text, count = str(unwrap(asm)), unwrap(pack)
    if count == 1:
        found = _one_by_one(text, spread, results, outputs, inputs)
    else:
        found = inline_ptx(text, *spread, result=tuple(t.core for t in results), pack=count)
    made = tuple_(map(tensor, found))
    return made if many else made[0]


def _registers(constraints: str) -> tuple[list[str], list[str]]:
    """The letters of results and of operands."""
    words = [w.strip() for w in constraints.split(",") if w.strip()]
    outputs = [w.lstrip("=&") for w in words if w.startswith("=")]
    inputs = [w for w in words if not w.startswith(("=", "~"))]
    for letter in (*outputs, *inputs):
        if letter not in REGISTERS:
            fail(f"constraints are made of {', '.join(REGISTERS)}, got {letter!r}")
    return outputs, inputs


def _one_by_one(
    text: str,
    operands: list[Value],
    results: list[Type],
    outputs: list[str],
    inputs: list[str],
) -> Any:
    """Each element in registers of its own, a short one in the lower bits of its register."""
    if len(outputs) != len(results) or len(inputs) != len(operands):
        fail(
            f"the constraints have {len(outputs)} results and {len(inputs)} operands, and there are"
            f" {len(results)} and {len(operands)}"
        )
    widened = [
        _in_register(x, REGISTERS[letter]) for x, letter in zip(operands, inputs, strict=True)
    ]
    held = [_held(t, REGISTERS[letter]) for t, letter in zip(results, outputs, strict=True)]
    found = inline_ptx(text, *widened, result=tuple(t.core for t in held))
    return [_narrowed(x, t) for x, t in zip(found, results, strict=True)]


def _held(t: Type, register: int) -> Type:
    """The type of the register that a result comes in."""
    return t if t.primitive_bitwidth >= register else types.get_int_dtype(register, False)


def _in_register(x: Value, register: int) -> Value:
    """An element as the bits of its register."""
    bits = 1 if x.dtype.kind == "bool" else x.dtype.bits
    if bits >= register:
        return x
    word = types.get_int_dtype(register, False).core
    if bits == 1:
        return x.to(word)
    return x.to(types.get_int_dtype(bits, False).core, bitcast=True).to(word)


def _narrowed(x: Value, t: Type) -> Value:
    """The element in the lower bits of a register."""
    if x.dtype is t.core:
        return x
    if t.is_bool():
        return values.lift(x != 0)
    return x.to(types.get_int_dtype(t.primitive_bitwidth, False).core).to(t.core, bitcast=True)
