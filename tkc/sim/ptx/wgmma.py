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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tkc.ir.fragments import wgmma_a, wgmma_accumulator
from tkc.ir.layout import Layout
from tkc.ir.truths import every
from tkc.sim.ptx.faults import Unknown, require
from tkc.sim.ptx.kinds import KIND_BYTES, KIND_TYPES, TF32_MASK
from tkc.sim.ptx.machine import WARP, WARPGROUP, ClusterMachine, rule
from tkc.sim.ptx.memory import RANK_SHIFT
from tkc.sim.ptx.tensor_maps import swizzled
from tkc.sim.ptx.text import Instruction

SWIZZLE_OF_CODE = {0: 0, 1: 128, 2: 64, 3: 32}  # bytes, by the bits 62-63 of a descriptor
DOT_ROWS, DOT_K_BYTES = 64, 32  # of an instruction


@dataclass(frozen=True)
class IssuedDot:
    """A dot in flight. computes: reads its operands and writes its accumulator; registers: those
    that it fills or reads.
    """

    computes: Callable[[], None]
    registers: frozenset[str]


@dataclass
class WarpgroupDots:
    """Of one warpgroup: what was issued since the last commit, the groups in flight, the step of
    its last fence.
    """

    open: list[IssuedDot] = field(default_factory=list)
    groups: list[list[IssuedDot]] = field(default_factory=list)
    fenced: int = -1

    @property
    def registers(self) -> set[str]:
        """Those of dots in flight."""
        return {r for group in (self.open, *self.groups) for dot in group for r in dot.registers}


class Dots:
    """The asynchronous dots of a cluster, by warpgroup."""

    def __init__(self, m: ClusterMachine):
        self.of: dict[int, WarpgroupDots] = {}


def threads_of(warpgroup: int) -> slice:
    """The threads of a warpgroup."""
    return slice(warpgroup * WARPGROUP, warpgroup * WARPGROUP + WARPGROUP)


def warpgroups(m: ClusterMachine, mask: np.ndarray) -> list[tuple[WarpgroupDots, slice]]:
    """Those in the mask, which must be whole, and their threads."""
    here = mask.reshape(-1, WARPGROUP)
    require(
        every(here.all(1) == here.any(1)) and m.each % WARPGROUP == 0,
        "a warpgroup does this together, four warps from a multiple of four on",
    )
    dots = m.state_of(Dots).of
    return [
        (dots.setdefault(g, WarpgroupDots()), threads_of(g))
        for g in np.flatnonzero(here[:, 0]).tolist()
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
    m: ClusterMachine, descriptor: int, rank: int, rows: int, kind: str, across: bool
) -> Callable[[], np.ndarray]:
    """[rows, k] of what a descriptor says, read when it is asked for."""
    size = KIND_BYTES[kind]
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    require(
        not descriptor >> 46 & 0xFFFF and not descriptor >> 14 & 3 and not descriptor >> 30 & 3,
        "a descriptor with bits set that are none of its fields'",
    )
    require(not across or size == 2, f"an operand of {8 * size} bits is read along K only")
    width = SWIZZLE_OF_CODE[descriptor >> 62]
    at = swizzled(start + offsets(rows, size, width, leading, stride, across), width)
    index = m.shared.index(at | rank << RANK_SHIFT, size, None)[..., None] + np.arange(size)
    return lambda: values(m.shared.bytes[index].view(KIND_TYPES[kind])[..., 0], kind)


def values(x: np.ndarray, kind: str) -> np.ndarray:
    """As tensor cores see them: of tf32 the upper 19 bits."""
    if kind == "tf32":
        x = (np.ascontiguousarray(x).view(np.uint32) & TF32_MASK).view(np.float32)
    return x.astype(np.int64 if kind in ("s8", "u8") else np.float64)


def uniform(m: ClusterMachine, text: str, kind: str, who: slice) -> int:
    """The value that all threads have."""
    found = m.read(text, kind)[who]
    require(every(found == found[0]), f"{text} is not the same in all threads of a warpgroup")
    return int(found[0])


@lru_cache(64)
def table_of(layout: Layout) -> np.ndarray:
    return layout.table()


def held(
    m: ClusterMachine, registers: list[str], kind: str, layout: Layout, who: slice
) -> np.ndarray:
    """The tile that a warpgroup holds."""
    words = np.stack([m.read(r, "u32")[who] for r in registers], 1)
    elements, table = words.view(KIND_TYPES[kind]).reshape(4, WARP, -1), table_of(layout)
    require(elements.shape[2] == table.shape[2], f"{len(registers)} registers, of {layout}")
    tile = np.zeros(layout.shape, elements.dtype)
    tile[table[..., 0], table[..., 1]] = elements
    return tile


@rule("wgmma.fence")
def fence(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    for dots, _ in warpgroups(m, mask):
        dots.fenced = m.steps


@dataclass(frozen=True)
class Form:
    """A form of the instruction: columns and k of its shape, and the kinds of the accumulator and
    of both operands.
    """

    n: int
    k: int
    sums: str
    a: str
    b: str

    @staticmethod
    def of(i: Instruction) -> Form:
        """The form that an opcode names. Raises Fault where no k fills an instruction."""
        shape, sums, a, b = i.parts[4:8] if i.parts[2:4] == ["sync", "aligned"] else i.parts[3:7]
        n, _, k = shape[shape.index("n") + 1 :].partition("k")
        require(int(k) * KIND_BYTES[b] == DOT_K_BYTES, f"an instruction's k of {k} elements of {b}")
        return Form(int(n), int(k), sums, a, b)


def transposed_operands(form: Form, rest: list[str], a_in_shared: bool) -> tuple[bool, bool]:
    """Which of both operands are read across K. rest: the operands behind the predicate: signs of
    floating-point operands, then for 16-bit ones which of those in shared memory are transposed.
    """
    numbers = [int(x) for x in rest]
    signs, across = (numbers[:2], numbers[2:]) if form.sums != "s32" else ([1, 1], [])
    if signs != [1, 1]:
        raise Unknown(f"signs {signs} of operands")
    wide = KIND_BYTES[form.b] == 2
    require(
        len(across) == (1 + a_in_shared if wide else 0),
        f"{len(rest)} operands after the predicate",
    )
    if not wide:
        return False, False
    return a_in_shared and across[0] != 0, across[-1] != 0


def keeps_accumulator(m: ClusterMachine, adds: str, who: slice) -> bool:
    """Whether a dot adds to what its registers hold. adds: a predicate or a number."""
    if not adds.startswith("%"):
        return adds == "1"
    said = m.predicate(adds)[who]
    require(every(said == said[0]), f"{adds} is not the same in all threads of a warpgroup")
    return bool(said[0])


@rule("wgmma.mma_async")
def dot(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    form = Form.of(i)
    for dots, who in warpgroups(m, mask):
        issue(m, i, form, dots, who)


def issue(m: ClusterMachine, i: Instruction, form: Form, dots: WarpgroupDots, who: slice) -> None:
    """A warpgroup issues a dot; it is computed when somebody waits for it."""
    into, left, right, adds, *rest = i.operands
    a_in_shared = not isinstance(left, list)
    across_a, across_b = transposed_operands(form, rest, a_in_shared)
    keeps = keeps_accumulator(m, adds, who)
    used = frozenset(into if a_in_shared else [*into, *left])
    check_fenced(m, dots, used - dots.registers, who)
    rank = int(m.rank[who.start])
    if a_in_shared:
        a = operand(m, uniform(m, left, "u64", who), rank, DOT_ROWS, form.a, across_a)
    else:
        fragment = wgmma_a(DOT_ROWS, form.k, bits=8 * KIND_BYTES[form.a])
        taken = values(held(m, left, form.a, fragment, who), form.a)

        def a() -> np.ndarray:
            return taken

    b = operand(m, uniform(m, right, "u64", who), rank, form.n, form.b, across_b)

    def computes() -> None:
        layout = wgmma_accumulator(DOT_ROWS, form.n)
        old = held(m, into, form.sums, layout, who) if keeps else 0
        fill(m, into, np.asarray(a() @ b().T + old).astype(KIND_TYPES[form.sums]), layout, who)

    dots.open.append(IssuedDot(computes, used))
    mark_in_flight(m, used, who)


def check_fenced(
    m: ClusterMachine, dots: WarpgroupDots, registers: frozenset[str], who: slice
) -> None:
    """Raises Fault where a register was written since the last fence."""
    for r in registers:
        require(
            r not in m.written or every(m.written[r][who] <= dots.fenced),
            f"{r} was written after the last wgmma.fence",
        )


def fill(
    m: ClusterMachine, registers: list[str], result: np.ndarray, layout: Layout, who: slice
) -> None:
    """Puts a result into the registers of an accumulator."""
    table = table_of(layout)
    columns = result[table[..., 0], table[..., 1]].reshape(WARPGROUP, -1).view(np.uint32).T
    for r, column in zip(registers, np.ascontiguousarray(columns), strict=False):
        new = m.registers[r].copy() if r in m.registers else np.zeros(m.n, np.uint32)
        new[who] = column
        m.registers[r] = new


def mark_in_flight(m: ClusterMachine, registers: Iterable[str], who: slice) -> None:
    """These registers are a dot's until somebody waits for it."""
    for r in registers:
        if r not in m.in_flight:
            m.in_flight[r] = np.zeros(m.n, bool)
        m.in_flight[r][who] = True


@rule("wgmma.commit_group")
def commit(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    for dots, _ in warpgroups(m, mask):
        dots.groups.append(dots.open)
        dots.open = []


@rule("wgmma.wait_group")
def wait(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """All but the last groups are done, in order."""
    for dots, _ in warpgroups(m, mask):
        while len(dots.groups) > int(i.operands[0]):
            for issued in dots.groups.pop(0):
                issued.computes()
    m.in_flight = {}
    for warpgroup, dots in m.state_of(Dots).of.items():
        mark_in_flight(m, dots.registers, threads_of(warpgroup))
