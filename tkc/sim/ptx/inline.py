"""The user's PTX inside a kernel, run for every element of NumPy arrays: each element is a thread
of its own, its operands in registers as `tkc.codegen.ptx.inline` puts them there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tkc.ir.elementwise import InlinePtx, packed_registers
from tkc.ir.interface import Interface
from tkc.ir.types import bits, element_of, is_bool
from tkc.sim.ptx.faults import Fault
from tkc.sim.ptx.kinds import BITS_OF_BYTES
from tkc.sim.ptx.launch import decoded
from tkc.sim.ptx.machine import WARP, ClusterMachine, LaunchState
from tkc.sim.ptx.memory import Memory
from tkc.sim.ptx.text import Program

MIN_REGISTER_BITS = 16  # bits of the registers that hold short elements one by one


def _registers(op: InlinePtx) -> list[list[tuple[str, str]]]:
    """Of each result, then of each operand: the names of its registers and their kinds."""
    found: list[list[tuple[str, str]]] = []
    count = 0
    for value in (*op.results, *op.args):
        t = element_of(value.type)
        width = 1 if is_bool(t) else bits(t)
        shared = op.packed > 1 and 1 < width < 32
        kind = "pred" if width == 1 else f"b{32 if shared else max(width, MIN_REGISTER_BITS)}"
        names = [(f"%tkc_{count + k}", kind) for k in range(packed_registers(t, op.packed))]
        count += len(names)
        found.append(names)
    return found


@lru_cache(256)
def _program(text: str, registers: tuple[tuple[str, str], ...]) -> Program:
    names = [name for name, _ in registers]
    body = re.sub(r"\$(\$|\d+)", lambda m: "$" if m[1] == "$" else names[int(m[1])], text).strip()
    declared = "".join(f".reg .{kind} {name};\n" for name, kind in registers)
    end = "" if not body or body.endswith((";", "}")) else ";"
    return decoded(f".entry inline()\n{{\n{declared}{body}{end}\nret;\n}}")


def program_of(op: InlinePtx) -> Program:
    """Its text as a program. Raises Unknown where it is beyond this simulator."""
    return _program(op.text.data, tuple(r for each in _registers(op) for r in each))


def _words(x: np.ndarray) -> np.ndarray:
    """Elements as unsigned integers of their width; truth values as they are."""
    return x if x.dtype == np.bool_ else x.view(BITS_OF_BYTES[x.dtype.itemsize])


def _given(x: np.ndarray, registers: int) -> list[np.ndarray]:
    """[threads, elements at once] -> the contents of the operand's registers."""
    words, pack = _words(x), x.shape[1]
    if registers == pack:
        return list(words.T)
    each, width = -(-pack // registers), 8 * x.dtype.itemsize
    held = np.zeros((registers, len(x)), np.uint32)
    for k in range(pack):
        held[k // each] |= words[:, k].astype(np.uint32) << np.uint32(width * (k % each))
    return list(held)


def _taken(held: Sequence[np.ndarray], dtype: np.dtype, pack: int) -> np.ndarray:
    """The contents of a result's registers -> [threads, elements at once]."""
    if dtype == np.bool_:
        return np.stack(held, 1)
    word = BITS_OF_BYTES[dtype.itemsize]
    if len(held) == pack:
        return np.stack([h.astype(word) for h in held], 1).view(dtype)
    each, width = -(-pack // len(held)), 8 * dtype.itemsize
    parts = [
        (held[k // each].astype(np.uint64) >> np.uint64(width * (k % each))).astype(word)
        for k in range(pack)
    ]
    return np.stack(parts, 1).view(dtype)


def _rows(x: np.ndarray, size: int, pack: int) -> np.ndarray:
    """All elements in threads of `pack`, the last one again up to whole warps."""
    flat = np.broadcast_to(x, (size,) if x.size == 1 else x.shape).ravel()
    threads = -(-size // pack)
    whole = -(-threads // WARP) * WARP * pack
    return np.pad(flat, (0, whole - size), mode="edge").reshape(-1, pack)


def evaluate(
    op: InlinePtx, arrays: Sequence[np.ndarray], shape: tuple[int, ...], dtypes: Sequence[np.dtype]
) -> tuple[np.ndarray, ...]:
    """Results of the shape and these types. Raises Fault and Unknown."""
    registers, pack = _registers(op), op.packed
    size = int(np.prod(shape))
    results, operands = registers[: len(op.results)], registers[len(op.results) :]
    rows = [_rows(np.asarray(x), size, pack) for x in arrays]
    threads = len(_rows(np.zeros(1, np.int8), size, pack))
    state = LaunchState(
        Interface("inline", "", threads), program_of(op), Memory(), (1, 1, 1), seed=None
    )
    machine = ClusterMachine(state, (0, 0, 0))
    for names, x in zip(operands, rows, strict=True):
        for (name, _), held in zip(names, _given(x, len(names)), strict=True):
            machine.registers[name] = held.astype(state.program.holds[name])
    with np.errstate(all="ignore"):
        while not machine.done.all():
            if not machine.turn():
                raise Fault(f"everybody waits: {machine.stuck()}")
    found = []
    for names, dtype in zip(results, dtypes, strict=True):
        empty = {name: np.zeros(threads, state.program.holds[name]) for name, _ in names}
        contents = [machine.registers.get(name, empty[name]) for name, _ in names]
        taken = _taken(contents, np.dtype(dtype), pack)
        found.append(np.ascontiguousarray(taken).ravel()[:size].reshape(shape))
    return tuple(found)
