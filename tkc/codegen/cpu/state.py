"""What the parts of the lowering share: the function being written, what is computed so far,
and the workspace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.emit import Function, Module
from tkc.codegen.cpu.values import Buffer, Env
from tkc.ir import tile
from tkc.ir.types import TileType, is_unsigned
from tkc.ir.values import tile_type

ALIGN = 64  # bytes, of buffers in the workspace


@dataclass(frozen=True)
class Blocking:
    """What the target has: lanes of one vector of 4-byte elements, rows of a dot's result in
    registers at once, and whether it masks accesses to elements of one and two bytes.
    """

    lanes: int
    rows: int
    masks_short: bool

    def width(self, t: str) -> int:
        """Lanes of one vector of a type."""
        return self.lanes // 2 if t in ("double", "i64") else self.lanes


AVX512, AVX2 = Blocking(16, 8, True), Blocking(8, 6, False)


class State:
    """One kernel being written. `module` holds its text, `workspace` the bytes a thread needs,
    `messages` what prints and asserts say.
    """

    def __init__(self, kernel: tile.Kernel, blocking: Blocking, overlapping: bool, folded: bool):
        self.kernel, self.blocking = kernel, blocking
        self.overlapping = overlapping  # arguments may overlap
        self.folded = folded  # elements of one argument may be one in memory
        self.waits = tile.waits_for_programs(kernel)
        self.module, self.env = Module(blocking.masks_short), Env()
        self.workspace = 0
        self.messages: list[dict[str, Any]] = []
        self.free: list[tuple[int, int]] = []  # offset and size in bytes, by offset
        self.done: set[Operation] = set()  # operations already written
        self.soon: dict[SSAValue, None] = {}  # tiles that the nest being written also stores
        self.block: Block = kernel.body.block
        # of the block being written
        self.lazy_loads: list[Operation] = []
        self.buffers: dict[SSAValue, Buffer] = {}  # what liveness may release
        ids = [("i32", f"{letter}{axis}") for letter in "pn" for axis in range(3)]
        self.f: Function = self.module.function(
            "program",
            "void",
            [("ptr noalias", "args"), ("ptr noalias", "workspace"), ("ptr", "context"), *ids],
        )
        self.entry = self.f.section()

    def body(self, block: Block) -> None:
        """The operations of a block up to its terminator."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        """The offset of unused bytes of the workspace."""
        nbytes = _aligned(nbytes)
        for i, (offset, size) in enumerate(self.free):
            if size >= nbytes:
                self.free[i : i + 1] = [(offset + nbytes, size - nbytes)] if size > nbytes else []
                return offset
        offset, self.workspace = self.workspace, self.workspace + nbytes
        return offset

    def release(self, offset: int, nbytes: int) -> None:
        """The inverse of `allocate`; neighbours in the free list join."""
        spans = sorted([*self.free, (offset, _aligned(nbytes))])
        self.free = []
        for at, size in spans:
            if self.free and sum(self.free[-1]) == at:
                self.free[-1] = (self.free[-1][0], self.free[-1][1] + size)
            else:
                self.free.append((at, size))

    def scratch(self, nbytes: int) -> tuple[str, int]:
        """A name for unused bytes of the workspace, and their offset for `release`."""
        offset = self.allocate(nbytes)
        with self.f.at(self.entry):
            return self.f.gep("%workspace", str(offset), 1), offset

    def buffer(self, t: TileType) -> Buffer:
        """A new buffer for a tile."""
        nbytes = max(1, t.size * numbers.size(t.element)) + ALIGN  # wide chunks read past the end
        pointer, offset = self.scratch(nbytes)
        return Buffer(pointer, t.extents, t.element, offset, nbytes)

    def buffer_for(self, v: SSAValue) -> Buffer:
        """A new buffer for a value, which is a tile."""
        return self.buffer(tile_type(v))

    def own(self, v: SSAValue, b: Buffer) -> None:
        """v now lies in b."""
        self.env[v] = b
        self.buffers[v] = b

    def own_all(self, tiles: dict[SSAValue, Buffer]) -> None:
        """Each tile now lies in its buffer."""
        for v, b in tiles.items():
            self.own(v, b)

    # ----------------------------------------------------------------------------------------------
    def alias(self, b: Buffer) -> SSAValue:
        """A value of no operation that stands for what b holds."""
        stand_in = Block(arg_types=[TileType(b.shape, b.element)]).args[0]
        self.env[stand_in] = b
        return stand_in

    def wide(self, v: SSAValue) -> str:
        """A scalar integer as i64."""
        x, t = self.env.register(v), numbers.held(v.type)
        if t == "i64" or not x.startswith("%"):
            return x
        return self.f.emit(f"{'zext' if is_unsigned(v.type) else 'sext'} {t} {x} to i64")


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
