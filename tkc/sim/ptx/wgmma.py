"""Asynchronous dots of a warpgroup, and the descriptors of their operands in shared memory.

    bits  0–13    address / 16
    bits 16–29    leading offset / 16
    bits 32–45    stride offset / 16
    bits 49–51    base offset
    bits 62–63    swizzle: 0 none, 1 128, 2 64, 3 32 bytes

Along K (32 bytes an instruction), rows in groups of eight:

    swizzled    group * stride + row * swizzle + byte
    without     group * stride + row * 16 + byte % 16 + (byte / 16) * leading

Across (16-bit elements), panels of a swizzle's width, K in eights:

    swizzled    panel * leading + (k / 8) * stride + (k % 8) * swizzle + byte
    without     the same with leading and stride exchanged

Then the address, not the offset, is swizzled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tkc.ir.fragments import wgmma_a, wgmma_accumulator
from tkc.sim.ptx.machine import GROUP, SIZE, TYPES, WARP, Machine, require, rule
from tkc.sim.ptx.memory import RANK
from tkc.sim.ptx.tensor import swizzled
from tkc.sim.ptx.text import Instruction, Unknown

CODES = {0: 0, 1: 128, 2: 64, 3: 32}


@dataclass
class Dots:
    """Of one warpgroup: what was issued since the last commit, the groups in flight, the step of
    its last fence.
    """

    open: list[tuple[Callable[[], None], frozenset[str]]] = field(default_factory=list)
    groups: list[list[tuple[Callable[[], None], frozenset[str]]]] = field(default_factory=list)
    fenced: int = -1


def warpgroups(m: Machine, mask: np.ndarray) -> list[tuple[Dots, slice]]:
    """Those that come: whole, or not at all."""
    here = mask.reshape(-1, GROUP)
    require(
        (here.all(1) == here.any(1)).all() and m.each % GROUP == 0,
        "a warpgroup does this together, four warps from a multiple of four on",
    )
    found = m.state.setdefault("dots", {})
    return [
        (found.setdefault(int(g), Dots()), slice(int(g) * GROUP, int(g) * GROUP + GROUP))
        for g in np.flatnonzero(here[:, 0])
    ]


@lru_cache(256)
def offsets(
    rows: int, size: int, swizzle: int, leading: int, stride: int, across: bool
) -> np.ndarray:
    """[rows, 32 bytes of K in elements]: bytes from an operand's first to each of its elements."""
    r, k = np.arange(rows)[:, None], np.arange(32 // size)[None, :]
    if not across:
        byte = k * size
        return r // 8 * stride + (
            r % 8 * swizzle + byte if swizzle else r % 8 * 16 + byte % 16 + byte // 16 * leading
        )
    panel = (swizzle or 16) // size
    between, eights = (leading, stride) if swizzle else (stride, leading)
    return r // panel * between + k // 8 * eights + k % 8 * (swizzle or 16) + r % panel * size


def operand(
    m: Machine, descriptor: int, rank: int, rows: int, kind: str, across: bool
) -> Callable[[], np.ndarray]:
    """[rows, k] of what a descriptor says, read when it is asked for."""
    size, start, leading, stride = (
        SIZE[kind],
        (descriptor & 0x3FFF) << 4,
        (descriptor >> 16 & 0x3FFF) << 4,
        (descriptor >> 32 & 0x3FFF) << 4,
    )
    require(
        not descriptor >> 46 & 0xFFFF and not descriptor >> 14 & 3 and not descriptor >> 30 & 3,
        "a descriptor with bits set that are none of its fields'",
    )
    require(not across or size == 2, f"an operand of {8 * size} bits is read along K only")
    width = CODES[descriptor >> 62]
    at = swizzled(start + offsets(rows, size, width, leading, stride, across), width)
    index = m.shared.index(at | rank << RANK, size, None)[..., None] + np.arange(size)
    return lambda: values(m.shared.bytes[index].view(TYPES[kind])[..., 0], kind)


def values(x: np.ndarray, kind: str) -> np.ndarray:
    """As tensor cores see them: of tf32 the upper 19 bits."""
    if kind == "tf32":
        x = (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return x.astype(np.int64 if kind in ("s8", "u8") else np.float64)


def uniform(m: Machine, text: str, kind: str, who: slice) -> int:
    """The value that all threads have."""
    found = m.read(text, kind)[who]
    require((found == found[0]).all(), f"{text} is not the same in all threads of a warpgroup")
    return int(found[0])


@lru_cache(64)
def table_of(layout) -> np.ndarray:
    return layout.table()


def held(m: Machine, registers: list[str], kind: str, layout, who: slice) -> np.ndarray:
    """The tile that a warpgroup holds."""
    words = np.stack([m.read(r, "u32")[who] for r in registers], 1)
    elements, table = words.view(TYPES[kind]).reshape(4, WARP, -1), table_of(layout)
    require(elements.shape[2] == table.shape[2], f"{len(registers)} registers, of {layout}")
    tile = np.zeros(layout.shape, elements.dtype)
    tile[table[..., 0], table[..., 1]] = elements
    return tile


@rule("wgmma.fence")
def fence(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    for dots, _ in warpgroups(m, mask):
        dots.fenced = m.steps


@rule("wgmma.mma_async")
def dot(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    shape, sums, ka, kb = i.parts[4:8] if i.parts[2:4] == ["sync", "aligned"] else i.parts[3:7]
    for dots, who in warpgroups(m, mask):
        issue(
            m,
            i,
            dots,
            who,
            int(shape[4:].partition("k")[0]),
            int(shape.partition("k")[2]),
            sums,
            ka,
            kb,
        )


def issue(
    m: Machine, i: Instruction, dots: Dots, who: slice, n: int, k: int, sums: str, ka: str, kb: str
) -> None:
    into, left, right, adds, *rest = i.operands
    require(k * SIZE[kb] == 32, f"an instruction's k of {k} elements of {kb}")
    wide, floats, ss = SIZE[kb] == 2, sums != "s32", not isinstance(left, list)
    signs, turns = (
        ([int(x) for x in rest[:2]], [int(x) for x in rest[2:]]) if floats else ([1, 1], [])
    )
    if signs != [1, 1]:
        raise Unknown(f"signs {signs} of operands")
    require(len(turns) == (1 + ss if wide else 0), f"{len(rest)} operands after the predicate")
    turned_a, turned_b = (turns[0] if wide and ss else 0), (turns[-1] if wide else 0)
    rank, layout = int(m.rank[who.start]), wgmma_accumulator(64, n)
    keeps = bool(m.predicate(adds)[who.start]) if adds.startswith("%") else adds == "1"
    require(
        not adds.startswith("%") or (m.predicate(adds)[who] == keeps).all(),
        f"{adds} is not the same in all threads of a warpgroup",
    )
    used = frozenset([*into, *(left if not ss else ())])
    flying = {r for group in [dots.open, *dots.groups] for _, names in group for r in names}
    for r in used - flying:
        require(
            r not in m.written or (m.written[r][who] <= dots.fenced).all(),
            f"{r} was written after the last wgmma.fence",
        )
    if ss:
        a = operand(m, uniform(m, left, "u64", who), rank, 64, ka, bool(turned_a))
    else:
        taken = values(held(m, left, ka, wgmma_a(64, k, bits=8 * SIZE[ka]), who), ka)

        def a() -> np.ndarray:
            return taken

    b = operand(m, uniform(m, right, "u64", who), rank, n, kb, bool(turned_b))

    def computes() -> None:
        old = held(m, into, sums, layout, who) if keeps else 0
        d, table = np.asarray(a() @ b().T + old).astype(TYPES[sums]), table_of(layout)
        words = np.ascontiguousarray(
            d[table[..., 0], table[..., 1]].reshape(GROUP, -1).view(np.uint32).T
        )
        for r, column in zip(into, words, strict=False):
            new = m.registers[r].copy() if r in m.registers else np.zeros(m.n, np.uint32)
            new[who] = column
            m.registers[r] = new

    dots.open.append((computes, used))
    fly(m, used, who)


def fly(m: Machine, registers: frozenset[str], who: slice) -> None:
    """These registers are a dot's until somebody waits for it."""
    flying = m.state.setdefault("flying", {})
    for r in registers:
        if r not in flying:
            flying[r] = np.zeros(m.n, bool)
        flying[r][who] = True


@rule("wgmma.commit_group")
def commit(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    for dots, _ in warpgroups(m, mask):
        dots.groups.append(dots.open)
        dots.open = []


@rule("wgmma.wait_group")
def wait(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """All but the last groups are done, in order."""
    for dots, _ in warpgroups(m, mask):
        while len(dots.groups) > int(i.operands[0]):
            for computes, _ in dots.groups.pop(0):
                computes()
    m.state["flying"] = {}
    for g, dots in m.state["dots"].items():
        for names in {names for group in [dots.open, *dots.groups] for _, names in group}:
            fly(m, names, slice(g * GROUP, g * GROUP + GROUP))
