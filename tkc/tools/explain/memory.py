"""Where buffers lie in shared memory and from when to when they are in use, and how registers and
shared memory hold tiles: layouts, and the banks that accesses meet in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import IntegerAttr

from tkc.ir import shared, threads, tile
from tkc.ir.fragments import matrix_access
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import BANKS, CHUNK, WORD, SharedLayout, conflicts, conflicts_of
from tkc.ir.text import location_of
from tkc.ir.types import SharedType, TileType, bits
from tkc.ir.values import shared_type
from tkc.passes.allocate_shared import lifetimes
from tkc.tools.explain.listing import Place

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Operation, SSAValue

MAX_SHOWN_ROWS, MAX_SHOWN_BYTES = 64, 256  # of a picture of banks
VIEWS = (shared.Stage, *shared.VIEWS)


@dataclass(frozen=True)
class Use:
    """An operation on a buffer."""

    operation: str
    place: Place | None


@dataclass(frozen=True)
class Buffer:
    """A buffer: its place, and the operations (in program order) between which it is in use."""

    name: str
    what: str
    offset: int
    bytes: int
    stages: int
    begin: int
    end: int
    uses: tuple[Use, ...]
    place: Place | None


@dataclass(frozen=True)
class Access:
    """A kind of access between registers and shared memory: `degree` passes at worst; lanes: of the
    phase that takes most, of each bank the lanes that want a word of their own there.
    """

    operation: str
    tile: str
    registers: str
    memory: str
    degree: int
    instruction: str
    lanes: tuple[tuple[tuple[int, ...], ...], ...]
    places: tuple[Place | None, ...]


def buffers(module: ModuleOp, total: int = 0) -> list[Buffer]:
    """Of the kernel after allocate-shared, by their place; nothing before it. total: bytes of the
    launch, which have room for what the PTX alone needs (histograms, results of atomics).
    """
    found: list[Buffer] = []
    for kernel in tile.kernels_of(module):
        for b in lifetimes(kernel):
            offset = b.op.properties.get("offset")
            if not isinstance(offset, IntegerAttr):
                continue
            value = b.op.results[0]
            stages = 1
            if isinstance(value.type, SharedType):
                stages = value.type.stages
            found.append(
                Buffer(
                    value.name_hint or ("barriers" if _is_barriers(b.op) else "buffer"),
                    _described(value),
                    offset.value.data,
                    b.bytes,
                    stages,
                    b.start,
                    b.end,
                    tuple(_uses(value)),
                    _place(b.op),
                )
            )
    used = max((b.offset + b.bytes for b in found), default=0)
    if total > used:
        what = "histograms and results of atomics"
        found.append(Buffer("PTX", what, used, total - used, 1, 0, length(module), (), None))
    return sorted(found, key=lambda buffer: (buffer.offset, buffer.begin))


def length(module: ModuleOp) -> int:
    """Operations of the kernels, in which `begin` and `end` are counted."""
    return sum(sum(1 for _ in kernel.walk()) for kernel in tile.kernels_of(module))


def _is_barriers(op: Operation) -> bool:
    return isinstance(op, threads.Barriers)


def _described(value: SSAValue) -> str:
    if not isinstance(value.type, SharedType):
        return "mbarriers"
    t = value.type
    return f"{'x'.join(map(str, t.extents))}x{t.element}, {t.memory}"


def _place(op: Operation) -> Place | None:
    location = location_of(op)
    return (location.file, location.line) if location else None


def _uses(value: SSAValue) -> Iterator[Use]:
    """Of a buffer, through its views; each operation at each place once."""
    seen: dict[Use, None] = {}

    def walk(v: SSAValue) -> None:
        for use in v.uses:
            if isinstance(use.operation, VIEWS):
                walk(use.operation.results[0])
            else:
                name = use.operation.name.removeprefix("tile.")
                seen[Use(name, _place(use.operation))] = None

    walk(value)
    return iter(seen)


# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TileLayout:
    """A layout of tiles in registers: of how many values, at which lines, and which operations make
    them.
    """

    tile: str
    layout: Layout
    values: int
    operations: tuple[str, ...]
    places: tuple[Place, ...]


def register_layouts(module: ModuleOp) -> list[TileLayout]:
    """Every layout of the module's tiles, the most used first."""
    found: dict[tuple[str, Layout], list[Operation]] = defaultdict(list)
    for op in module.walk():
        for result in op.results:
            t = result.type
            if isinstance(t, TileType) and t.register_layout is not None:
                found[_shape(t), t.register_layout].append(op)
    made = [
        TileLayout(
            shape,
            layout,
            len(operations),
            tuple(dict.fromkeys(op.name.removeprefix("tile.") for op in operations)),
            tuple(dict.fromkeys(p for op in operations if (p := _place(op)) is not None)),
        )
        for (shape, layout), operations in found.items()
    ]
    return sorted(made, key=lambda one: (-one.layout.num_registers, -one.values))


def shared_layouts(module: ModuleOp) -> list[tuple[str, SharedLayout]]:
    """Every layout of the module's buffers."""
    found: dict[tuple[str, SharedLayout], None] = {}
    for op in module.walk():
        if isinstance(op, shared.Alloc):
            t = shared_type(op.result)
            found[f"{'x'.join(map(str, t.extents))}x{t.element}", t.memory] = None
    return list(found)


def banks(memory: SharedLayout) -> np.ndarray:
    """The bank of each word of a buffer's first rows: [rows, words]. Rows are those of the fastest
    axis, over all others.
    """
    table = np.moveaxis(memory.table(), memory.fast, -1)
    rows = table.reshape(-1, table.shape[-1])[:MAX_SHOWN_ROWS]
    step = max(1, WORD * 8 // memory.bits)
    return rows[:, : MAX_SHOWN_BYTES * 8 // memory.bits : step] // WORD % BANKS


def _shape(t: TileType) -> str:
    return f"{'x'.join(map(str, t.extents))}x{t.element}"


# --------------------------------------------------------------------------------------------------
def accesses(module: ModuleOp) -> list[Access]:
    """Reads and writes between registers and buffers, each kind once, the worst first."""
    found: dict[tuple, list[Operation]] = defaultdict(list)
    for op in module.walk():
        if not isinstance(op, (shared.Read, shared.Write)):
            continue
        value = op.result if isinstance(op, shared.Read) else op.value
        if isinstance(value.type, TileType) and value.type.register_layout is not None:
            found[op.name, value.type, shared_type(op.buffer).memory].append(op)
    made = [_access(name, t, memory, operations) for (name, t, memory), operations in found.items()]
    return sorted(made, key=lambda access: -access.degree)


def _access(name: str, t: TileType, memory: SharedLayout, operations: list[Operation]) -> Access:
    layout, width = t.register_layout, bits(t.element)
    assert layout is not None
    addresses, each, said = _addresses(layout, memory, width, name == "tile.write")
    claimed = operations[0].properties.get("conflicts")
    degree, lanes = _worst(addresses, each)
    return Access(
        name.removeprefix("tile."),
        _shape(t),
        str(layout),
        str(memory),
        claimed.value.data if isinstance(claimed, IntegerAttr) else degree,
        said,
        lanes,
        tuple(dict.fromkeys(_place(op) for op in operations)),
    )


def _addresses(
    layout: Layout, memory: SharedLayout, width: int, store: bool
) -> tuple[np.ndarray, int, str]:
    """Byte offsets [instructions, lanes] of an access, the bytes of each lane, and with which
    instruction: as matrices where the layouts allow, else in the widest vectors that they do.
    """
    plan = matrix_access(layout, memory, width, store) if layout.shape == memory.shape else None
    if plan is not None:
        name = f"{'stmatrix' if store else 'ldmatrix'} .x{plan.count}"
        rows = plan.addresses()[..., : 8 * plan.count]
        return rows.reshape(-1, rows.shape[-1]), CHUNK, name + " .trans" * plan.trans
    vector = _vector(layout, memory, width)
    starts = layout.table()[:, :, ::vector].swapaxes(1, 2)
    inside = (starts < np.array(memory.shape)).all(-1)
    offsets = np.where(inside, memory.offsets(starts), -1)
    each = max(1, vector * width // 8)
    return offsets.reshape(-1, offsets.shape[-1]), each, f"{'st' if store else 'ld'}, {each} bytes"


def _vector(layout: Layout, memory: SharedLayout, width: int) -> int:
    """Neighbours in consecutive registers that one instruction moves."""
    vector = layout.vector(memory.fast, max(1, 128 // width))
    while vector > 1:
        try:
            conflicts_of(layout, memory, vector)
        except ValueError:
            vector //= 2
            continue
        return vector if layout.num_registers % vector == 0 else 1
    return 1


def _worst(addresses: np.ndarray, each: int) -> tuple[int, tuple[tuple[tuple[int, ...], ...], ...]]:
    """The degree of the worst phase, and of each bank the words wanted there, each by its lanes."""
    at_once = min(128 // max(each, WORD), addresses.shape[-1])
    phases = addresses.reshape(-1, at_once)
    degrees = [conflicts(phase, min(each, CHUNK)) for phase in phases[:256]]
    worst = int(np.argmax(degrees))
    wanted: list[dict[int, list[int]]] = [{} for _ in range(BANKS)]
    first = worst * at_once % addresses.shape[-1]
    for lane, address in enumerate(phases[worst]):
        if address < 0:
            continue
        for word in range(int(address) // WORD, int(address) // WORD + max(1, each // WORD)):
            wanted[word % BANKS].setdefault(word, []).append(first + lane)
    return degrees[worst], tuple(
        tuple(tuple(lanes) for _, lanes in sorted(words.items())) for words in wanted
    )
