"""Instruction fragments as data: what tensor-core instructions read from which register.

Each is an instance of `Layout`. With g = lane / 4 and q = lane % 4 every fragment of NVIDIA's
manuals has the same shape, eight rows of four lanes:

    accumulator (16 x 8)          A (16 x 16, 16 bits)            B (16 x 8, 16 bits)
    row g or g + 8,               row g or g + 8,                 k  2q, 2q + 1 or 2q + 8, 2q + 9,
    column 2q, 2q + 1             k  2q, 2q + 1 or 8 further      column g

In digits a lane is (q, g); what a lane holds next to each other is as many elements as fill a
32-bit register; then come the rows + 8, then the second half of k:

    accumulator    2:1@1 2:8@0         | 4:2@1 8:1@0
    A, 8 bits      4:1@1 2:8@0 2:16@1  | 4:4@1 8:1@0
    A, 16 bits     2:1@1 2:8@0 2:8@1   | 4:2@1 8:1@0
    A, 32 bits     2:8@0 2:4@1         | 4:1@1 8:1@0
    B, 16 bits     2:1@0 2:8@0         | 4:2@0 8:1@1     (A transposed, without the second eight
                                                         rows)

A wgmma accumulator of 64 x n is four warps of this under each other, so its rows are
16 w + g + 8 i; A from registers likewise. One register of a `Layout` is one element: `pack`
consecutive ones share a 32-bit register.

**Order.** Whole tiles repeat the instruction's fragment. Registers count, fastest first: inside one
instruction; the instructions along k (of A) or n (of B and the accumulator); the instructions along
m (A, accumulator) or k (B). So the operands of instruction (m, n, k) are consecutive registers,
starting at a multiple of their number (K, N: how many instructions):

    A[(m * K + k) * a :][:a]       B[(k * N + n) * b :][:b]       C[(m * N + n) * c :][:c]

ldmatrix fills four registers: an A of one instruction, or the B of two that are issued one after
the other, since k is outermost. Along k, half of what it fills would wait for the next k.

An accumulator cast to 16 bits *is* the A operand of the next product, register for register
(attention's P):

>>> from tkc.ir.layout import movement
>>> movement(wgmma_accumulator(64, 128), wgmma_a(64, 128))
'none'
>>> movement(mma_accumulator(64, 32, 4, 1), mma_a(64, 32, 4, 1))
'none'

**Warps.** A tile of more than one warp (mma) or warpgroup (wgmma) is dealt out in turn: warp
w_m + warps_m * w_n has the rows 16 (w_m + i warps_m) and the columns 8 (w_n + j warps_n), so slices
of m, n and k are choices of registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from tkc.ir.digits import Digit, LayoutError, copies, parse_shape
from tkc.ir.layout import WARP, Layout, blocked, rows
from tkc.ir.shared_layout import CHUNK, SharedLayout, conflicts

# ---- fragments of whole tiles: a layout has tables of its own, so that each is made once


@lru_cache(maxsize=1 << 10)
def mma_accumulator(m: int, n: int, warps_m: int = 1, warps_n: int = 1) -> Layout:
    """C and D of mma.m16n8kX."""
    return Layout(
        (m, n),
        (Digit(2, 1, 1), Digit(2, 0, 8), _repeat(1, n, 8 * warps_n), _repeat(0, m, 16 * warps_m)),
        (Digit(4, 1, 2), Digit(8, 0, 1)),
        (Digit(warps_m, 0, 16), Digit(warps_n, 1, 8)),
    )


@lru_cache(maxsize=1 << 10)
def mma_a(m: int, k: int, warps_m: int = 1, warps_n: int = 1, bits: int = 16) -> Layout:
    """A of mma.m16n8k16 (16 bits), k32 (8 bits) or k8 (tf32); the warps along n hold copies."""
    p = pack(bits)
    return Layout(
        (m, k),
        (
            Digit(p, 1, 1),
            Digit(2, 0, 8),
            Digit(2, 1, 4 * p),
            _repeat(1, k, 8 * p),
            _repeat(0, m, 16 * warps_m),
        ),
        (Digit(4, 1, p), Digit(8, 0, 1)),
        (Digit(warps_m, 0, 16), copies(warps_n)),
    )


@lru_cache(maxsize=1 << 10)
def mma_b(k: int, n: int, warps_m: int = 1, warps_n: int = 1, bits: int = 16) -> Layout:
    """B of mma.m16n8k16 (16 bits), k32 (8 bits) or k8 (tf32); the warps along m hold copies."""
    p = pack(bits)
    return Layout(
        (k, n),
        (Digit(p, 0, 1), Digit(2, 0, 4 * p), _repeat(1, n, 8 * warps_n), _repeat(0, k, 8 * p)),
        (Digit(4, 0, p), Digit(8, 1, 1)),
        (copies(warps_m), Digit(warps_n, 1, 8)),
    )


@lru_cache(maxsize=1 << 10)
def wgmma_accumulator(m: int, n: int, groups: int = 1, along_n: int = 1) -> Layout:
    """D of wgmma.m64nN: warpgroup i of `groups` has rows 64 i, and every 64 * groups further; of
    `along_n` each has so many columns next to one another.
    """
    each = n // along_n
    return Layout(
        (m, n),
        (Digit(2, 1, 1), Digit(2, 0, 8), _repeat(1, each, 8), _repeat(0, m, 64 * groups)),
        (Digit(4, 1, 2), Digit(8, 0, 1)),
        (Digit(4 * groups, 0, 16), Digit(along_n, 1, each)),
    )


def wgmma_accumulators(m: int, n: int, groups: int = 1, along_n: int = 1) -> tuple[Layout, Layout]:
    """The layouts in which a dot by wgmma delivers its result: with rows in the order of the
    instruction, and in pairs.
    """
    layout = wgmma_accumulator(m, n, groups, along_n)
    return layout, paired(layout)


def wgmma_a(m: int, k: int, groups: int = 1, bits: int = 16) -> Layout:
    """A of wgmma in registers: k16 (16 bits), k32 (8 bits), k8 (tf32)."""
    return mma_a(m, k, 4 * groups, bits=bits)


@lru_cache(maxsize=1 << 10)
def wgmma_a_permuted(m: int, k: int, groups: int = 1) -> Layout:
    """8-bit A whose K is counted in the order of `permuted_k`: a choice of an accumulator's
    registers, no shuffle.

    A lane of an accumulator has columns 2q, 2q + 1 of every eight, but 8-bit A takes four
    neighbours. A sum does not depend on the order of its terms, so slot 4q + e of 16 takes column
    2q + e % 2 + 8 (e / 2); B's rows must follow.
    """
    return Layout(
        (m, k),
        (
            Digit(2, 1, 1),
            Digit(2, 1, 8),
            Digit(2, 0, 8),
            _repeat(1, k, 16),
            _repeat(0, m, 64 * groups),
        ),
        (Digit(4, 1, 2), Digit(8, 0, 1)),
        (Digit(4 * groups, 0, 16),),
    )


@lru_cache(maxsize=1 << 10)
def paired(layout: Layout) -> Layout:
    """The fragment of an accumulator or a left operand with its rows in another order: a lane has
    rows 2g and 2g + 1 of 16 where it had g and g + 8. What is computed of row-wise neighbours then
    finds two of them in one thread; the instruction is the same, for it does not ask which rows it
    has, as long as both fragments agree.
    """
    near = {(2, 8): 1, (8, 1): 2}

    def moved(d: Digit) -> Digit:
        return Digit(d.extent, 0, near.get((d.extent, d.stride), d.stride)) if d.axis == 0 else d

    registers = (*map(moved, layout.registers[:3]), *layout.registers[3:])
    return replace(layout, registers=registers, lanes=tuple(map(moved, layout.lanes)))


def permuted_k(k: int) -> tuple[int, ...]:
    """The column in each K slot of `wgmma_a_permuted`."""
    return tuple(s - s % 16 + 2 * (s % 16 // 4) + s % 2 + 8 * (s % 4 // 2) for s in range(k))


def pack(bits: int) -> int:
    """Elements in a 32-bit register of a fragment."""
    if bits not in (8, 16, 32):
        raise LayoutError(f"tensor-core fragments hold elements of 8, 16 or 32 bits, not {bits}")
    return 32 // bits


def _repeat(axis: int, extent: int, stride: int) -> Digit:
    """As often as it takes to cover the axis (the last time perhaps in part: padding)."""
    return Digit(-(-extent // stride), axis, stride)


def _of_warps(build: Callable[..., Layout]) -> Callable[..., Layout]:
    """`build` for text: "mma 64x64 warps 2x2"."""

    def named(
        shape: tuple[int, ...], warps: int | tuple[int, int] = (1, 1), **options: int
    ) -> Layout:
        return build(*shape, *((warps, 1) if isinstance(warps, int) else warps), **options)

    return named


NAMED: dict[str, Callable[..., Layout]] = {
    "blocked": blocked,
    "rows": rows,
    "mma": _of_warps(mma_accumulator),
    "mma_a": _of_warps(mma_a),
    "mma_b": _of_warps(mma_b),
    "wgmma": lambda shape, groups=1: wgmma_accumulator(shape[0], shape[1], groups),
    "wgmma_a": lambda shape, groups=1, bits=16: wgmma_a(shape[0], shape[1], groups, bits),
    "wgmma_a_permuted": lambda shape, groups=1: wgmma_a_permuted(shape[0], shape[1], groups),
}


def parse_layout(text: str) -> Layout:
    """A layout from its text, or from a name with a shape and options: "wgmma 64x256",
    "blocked 32x128 vector 8 warps 4". Raises LayoutError.
    """
    if ": " in text:
        return Layout.parse(text)
    name, *words = text.split() or [""]
    if name not in NAMED or len(words) % 2 == 0:
        raise LayoutError(
            f"cannot read the layout {text!r}: expected 'shape: registers | lanes | warps' "
            f"or one of {', '.join(NAMED)} with a shape and options"
        )
    options = {
        key: int(value) if value.isdigit() else parse_shape(value)
        for key, value in zip(words[1::2], words[2::2], strict=True)
    }
    try:
        return NAMED[name](parse_shape(words[0]), **options)
    except TypeError as error:
        raise LayoutError(f"cannot read the layout {text!r}: {error}") from None


# ---- the instructions


def _bits(element: str) -> int:
    return {"f16": 16, "bf16": 16, "tf32": 32}.get(element, 8)


@dataclass(frozen=True)
class Mma:
    """A family of tensor-core instructions m x n x k: D = A B + C."""

    name: str  # of the PTX instruction
    m: int
    n: tuple[int, ...]  # the widths that exist
    k: int
    a: tuple[str, ...]  # element types of A ...
    b: tuple[str, ...]  # ... and of B
    accumulators: tuple[str, ...]  # element types of C and D
    target: int  # first sm_ that has it; 90 for wgmma means sm_90a
    mixed: bool = False  # A and B may differ in type
    majors: tuple[str, ...] = ("k",)  # of operands in shared memory (mma reads registers)

    def __post_init__(self) -> None:
        bits = {_bits(t) for t in (*self.a, *self.b)}
        if len(bits) != 1 or self.k * bits.copy().pop() != 256:
            raise LayoutError(f"{self.name} with k {self.k} must read 256 bits of each row")

    @property
    def bits(self) -> int:
        """Width of an operand's element in its fragment (tf32 takes 32)."""
        return _bits(self.a[0])

    def takes(self, a: str, b: str, accumulator: str) -> bool:
        return (
            a in self.a
            and b in self.b
            and (a == b or self.mixed)
            and accumulator in self.accumulators
        )


_WGMMA_N = tuple(range(8, 257, 8))
_WGMMA_N_S8 = tuple(n for n in _WGMMA_N if n <= 32 or n % 16 == 0)
_FP8, _INT8, _BOTH = ("f8E4M3FN", "f8E5M2"), ("i8", "ui8"), ("k", "mn")  # as types print

MMA_INSTRUCTIONS: tuple[Mma, ...] = (
    Mma("mma.m16n8k16", 16, (8,), 16, ("f16",), ("f16",), ("f32", "f16"), 80),
    Mma("mma.m16n8k16", 16, (8,), 16, ("bf16",), ("bf16",), ("f32",), 80),
    Mma("mma.m16n8k8", 16, (8,), 8, ("tf32",), ("tf32",), ("f32",), 80),
    Mma("mma.m16n8k32", 16, (8,), 32, _INT8, _INT8, ("i32",), 80, mixed=True),
    Mma("mma.m16n8k32", 16, (8,), 32, _FP8, _FP8, ("f32",), 89, mixed=True),
    Mma("wgmma.m64k16", 64, _WGMMA_N, 16, ("f16",), ("f16",), ("f32", "f16"), 90, majors=_BOTH),
    Mma("wgmma.m64k16", 64, _WGMMA_N, 16, ("bf16",), ("bf16",), ("f32",), 90, majors=_BOTH),
    Mma("wgmma.m64k8", 64, _WGMMA_N, 8, ("tf32",), ("tf32",), ("f32",), 90),
    Mma("wgmma.m64k32", 64, _WGMMA_N, 32, _FP8, _FP8, ("f32", "f16"), 90, mixed=True),
    Mma("wgmma.m64k32", 64, _WGMMA_N_S8, 32, _INT8, _INT8, ("i32",), 90, mixed=True),
)


def instructions_for(a: str, b: str, accumulator: str, target: int) -> tuple[Mma, ...]:
    """The instructions of `target` (sm_90a: 90) for these element types; wgmma, which needs exactly
    sm_90a, first.
    """
    fit = [i for i in MMA_INSTRUCTIONS if i.takes(a, b, accumulator)]
    return tuple(
        i
        for i in reversed(fit)
        if (i.target == target if i.name.startswith("wgmma") else i.target <= target)
    )


# ---- ldmatrix and stmatrix


@dataclass(frozen=True)
class MatrixPlan:
    """How ldmatrix or stmatrix moves a tile between registers and shared memory.

    The instructions move matrices of eight rows of 16 bytes. Instruction i moves `words[i]`, each a
    32-bit register of packed elements (register numbers, low half first); lane l gives the address
    of the chunk whose first element is at `layout.coords(*first[i][l], warp)`, that is
    `rows[warp, i, l]`.

    Stores may *exchange*: in the upper 16 lanes instruction i moves the words of instruction
    `exchanged[i]`, and the other way round. Where the eight rows of each are every second row,
    which share banks, those of the two halves then are not all even or all odd.
    """

    layout: Layout
    shared: SharedLayout
    count: int  # .x1, .x2 or .x4
    trans: bool
    words: tuple[tuple[tuple[int, ...], ...], ...]  # [instruction][count] -> registers
    first: tuple[tuple[tuple[int, int], ...], ...]  # [instruction][lane] -> (register, lane)
    exchanged: tuple[int, ...] = ()  # [instruction] -> its partner; empty: no exchange

    @cached_property
    def rows(self) -> np.ndarray:
        """[blocks * warps, instructions, lanes, rank]: the coordinates of each lane's chunk."""
        first = np.array(self.first)
        return self.layout.table()[:, first[..., 1], first[..., 0]]

    def addresses(self) -> np.ndarray:
        """[blocks * warps, instructions, lanes]: byte offsets of the chunks in shared memory."""
        return self.shared.offsets(self.rows)

    @property
    def conflicts(self) -> int:
        """The worst bank conflict of any matrix; 1 is none."""
        return conflicts(self.addresses()[..., : 8 * self.count], CHUNK)


@lru_cache(1 << 12)
def matrix_access(
    layout: Layout, shared: SharedLayout, bits: int, store: bool = False
) -> MatrixPlan | None:
    """How ldmatrix (or stmatrix) moves the whole tile, or None if these instructions do not fit the
    two layouts.

    Lane (q, g) gets word q of row g. Plain: a word's elements and q run along shared memory's
    fastest axis, and the eight g may be any rows. Transposed (16 bits): g runs along the fastest
    axis, and the word's two elements and q may be any rows. So either the lower or the upper lanes
    must fill one chunk; that is the whole condition. Elements of 8 bits are transposed in pairs:
    two neighbours along the fastest axis are one of the 16 bits.
    """
    if not _may_be_matrices(layout, shared, bits):
        return None
    if (plain := _run_along_chunks(layout, shared, bits)) is None:
        return None
    p, pair = pack(bits), 16 // bits if bits < 32 else 0
    words = [tuple(range(w, w + p)) for w in range(0, layout.num_registers, p)]
    count = next(c for c in (4, 2, 1) if len(words) % c == 0)
    groups = tuple(tuple(words[i : i + count]) for i in range(0, len(words), count))

    def first_of(group: tuple[tuple[int, ...], ...], lane: int) -> tuple[int, int]:
        """(register, lane) of the first element of the chunk whose address a lane gives."""
        word = group[lane // 8 % count]
        return (word[0], lane % 8 * 4) if plain else (word[lane % 2 * pair], lane % 8 // 2)

    first = tuple(tuple(first_of(group, lane) for lane in range(WARP)) for group in groups)
    plan = MatrixPlan(layout, shared, count, not plain, groups, first)
    return _without_conflicts(plan) if store and bits == 8 and plain else plan


def _run_along_chunks(layout: Layout, shared: SharedLayout, bits: int) -> bool | None:
    """Whether the lower lanes of a tile fill one chunk (True) or the upper ones (False: it is
    transposed); None where neither does.
    """
    p, registers, lanes = pack(bits), layout.offsets("registers"), layout.offsets("lanes")
    step = np.zeros(layout.rank, int)
    step[shared.fast] = 1
    low, high = np.arange(4)[:, None] * step, np.arange(8)[:, None] * step
    words_run = (registers.reshape(-1, p, layout.rank) == registers[::p, None] + low[:p]).all()
    if (lanes[:4] == low * p).all() and words_run:
        return True
    pair = 16 // bits if bits < 32 else 0  # elements that are transposed as one
    paired = pair == 1 or pair == 2 and (registers[1::2] - registers[::2] == step).all()
    return False if paired and (lanes[::4] == high * pair).all() else None


def _may_be_matrices(layout: Layout, shared: SharedLayout, bits: int) -> bool:
    """Whether a tile is made of whole words and of chunks, and lies in the shared layout."""
    chunked = shared.swizzle or all(shared.strides[a] % CHUNK == 0 for a in shared.order[1:])
    return bool(
        bits in (8, 16, 32)
        and bits == shared.bits
        and chunked
        and layout.rank == len(shared.shape)
        and layout.num_registers % pack(bits) == 0
        and all(box <= n for box, n in zip(layout.padded_shape, shared.shape, strict=True))
    )


def _without_conflicts(plan: MatrixPlan) -> MatrixPlan:
    """Two neighbouring rows' words exchanged between the halves of the warp, where that takes a
    two-way conflict away. Rows are along any other axis than the fast one.
    """
    if plan.conflicts != 2:
        return plan
    for slow in range(plan.layout.rank):
        if slow == plan.shared.fast or not (partner := _neighbours(plan, slow)):
            continue
        first = tuple(
            tuple(plan.first[j if lane % 8 >= 4 else i][lane] for lane in range(WARP))
            for i, j in enumerate(partner)
        )
        other = replace(plan, first=first, exchanged=partner)
        if other.conflicts == 1:
            return other
    return plan


def _neighbours(plan: MatrixPlan, axis: int) -> tuple[int, ...]:
    """Of each instruction the one that moves the other rows of its pairs along an axis; empty where
    one has none.
    """
    registers = plan.layout.offsets("registers")
    at = [registers[[word[0] for word in words]] for words in plan.words]
    step = np.eye(plan.layout.rank, dtype=int)[axis]
    partner = {
        i: j
        for i, a in enumerate(at)
        for j, b in enumerate(at)
        if (abs(b - a) == step).all() and a[0, axis] // 2 == b[0, axis] // 2
    }
    return tuple(partner[i] for i in range(len(at))) if len(partner) == len(at) else ()
