"""What the lanes of a warp do together: they exchange words, vote, move matrices, multiply on
tensor cores.
"""

from __future__ import annotations

import numpy as np

from tkc.ir.fragments import mma_a, mma_accumulator, mma_b
from tkc.ir.layout import Layout
from tkc.sim.ptx.accesses import place
from tkc.sim.ptx.kinds import KIND_TYPES
from tkc.sim.ptx.machine import WARP, ClusterMachine, rule
from tkc.sim.ptx.text import Instruction


@rule("shfl.sync")
def shuffle(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    value, which = m.read(i.operands[1], "u32"), m.read(i.operands[2], "u32").astype(np.int64)
    m.write(
        i.operands[0],
        value[m.threads - m.lane + (m.lane ^ which if i.parts[2] == "bfly" else which & 31)],
        mask,
    )


@rule("vote.sync")
def vote(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    together = {"all": np.all, "any": np.any}[i.parts[2]](
        m.predicate(i.operands[1]).reshape(-1, WARP), axis=1
    )
    m.write(i.operands[0], np.repeat(together, WARP), mask)


@rule("redux.sync")
def reduction(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """Of integers of 32 bits, all lanes' together."""
    kind = i.parts[3] if i.parts[3] != "b32" else "u32"
    function = {"add": np.add, "xor": np.bitwise_xor, "max": np.maximum, "min": np.minimum}
    values = m.read(i.operands[1], kind).reshape(-1, WARP)
    together = function[i.parts[2]].reduce(values, axis=1, dtype=values.dtype)
    m.write(i.operands[0], np.repeat(together, WARP), mask)


@rule("elect.sync")
def elect(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """One lane of each warp: with a seed any, because the hardware does not say which."""
    chosen = (
        m.rng.integers(WARP, size=m.n // WARP)
        if m.launch.seed is not None
        else np.zeros(m.n // WARP, int)
    )
    m.write(i.operands[0].partition("|")[2], m.lane == np.repeat(chosen, WARP), mask)


@rule("ldmatrix", "stmatrix")
def matrix(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """Matrix k of a warp: row r at the address of lane 8 k + r; lane l has word l % 4 of row l / 4
    (transposed: of column l / 4).
    """
    loads, trans = i.parts[0] == "ldmatrix", "trans" in i.parts
    registers, where = i.operands if loads else i.operands[::-1]
    used = mask & (m.lane < 8 * len(registers))
    _, at = place(m, ".shared", m.address(where), 16, used)
    warps = mask.reshape(-1, WARP)[:, 0]
    for k, r in enumerate(registers):
        # [warps, rows, bytes]
        index = at.reshape(-1, WARP)[warps, 8 * k : 8 * k + 8, None] + np.arange(16)

        def turn(block: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(block.swapaxes(1, 2) if trans else block)

        if loads:
            words = np.zeros((m.n // WARP, WARP), np.uint32)
            words[warps] = (
                turn(m.shared.bytes[index].view(np.uint16)).view(np.uint32).reshape(-1, WARP)
            )
            m.write(r, words.reshape(-1), mask)
        else:
            words = np.ascontiguousarray(m.read(r, "u32").reshape(-1, WARP)[warps])
            m.shared.bytes[index] = turn(words.view(np.uint16).reshape(-1, 8, 8)).view(np.uint8)


@rule("mma.sync")
def mma(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    out, ta, tb, tc = i.parts[-4:]
    k = int(i.parts[3].partition("k")[2])
    a, b, c = (
        fragment(m, o, t, layout)
        for o, t, layout in zip(
            i.operands[1:],
            (ta, tb, tc),
            (mma_a(16, k, bits=256 // k), mma_b(k, 8, bits=256 // k), mma_accumulator(16, 8)),
            strict=False,
        )
    )
    wide = np.int64 if out == "s32" else np.float64
    d = (np.einsum("wmk,wkn->wmn", a.astype(wide), b.astype(wide)) + c.astype(wide)).astype(
        KIND_TYPES[out]
    )
    table = mma_accumulator(16, 8).table()[0]
    words = d[:, table[..., 0], table[..., 1]].reshape(m.n, -1).copy().view(np.uint32)
    for n, r in enumerate(i.operands[0]):
        m.write(r, words[:, n], mask)


def fragment(m: ClusterMachine, registers: list[str], kind: str, layout: Layout) -> np.ndarray:
    """[warps, …]: the matrix that each warp holds."""
    words = np.stack([m.read(r, "u32") for r in registers], 1)
    elements, table = words.view(KIND_TYPES[kind]).reshape(m.n // WARP, WARP, -1), layout.table()[0]
    held = np.zeros((m.n // WARP, *layout.shape), elements.dtype)
    held[:, table[..., 0], table[..., 1]] = elements
    return held
