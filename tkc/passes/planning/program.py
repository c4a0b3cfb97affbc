"""What a plan depends on: a kernel at level 0, its dots and its loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.types import TileType
from tkc.ir.values import tile_type
from tkc.passes.analysis.access import tile_of
from tkc.passes.analysis.stabilizers import is_running_maximum
from tkc.passes.analysis.values import LOADS


@dataclass(frozen=True)
class Program:
    """What a plan depends on."""

    kernel: tile.Kernel
    dots: tuple[tile.Dot, ...]
    loads: tuple[Operation, ...]

    @staticmethod
    def of(kernel: tile.Kernel) -> Program:
        ops = list(kernel.walk())
        return Program(
            kernel,
            tuple(op for op in ops if isinstance(op, tile.Dot)),
            tuple(op for op in ops if isinstance(op, LOADS)),
        )

    @property
    def maxima(self) -> bool:
        """Whether a loop carries a running maximum."""
        return any(True for _ in self._maxima())

    @property
    def has_one_row(self) -> bool:
        """Whether a loop carries the running maximum of the one row that a program has."""
        return any(not isinstance(a.type, TileType) for a in self._maxima())

    def _maxima(self) -> Iterator[SSAValue]:
        """What loops carry that is a running maximum."""
        for loop in self.kernel.walk():
            if isinstance(loop, scf.ForOp):
                yield from (a for a in loop.body.block.args[1:] if is_running_maximum(loop, a))

    @property
    def largest(self) -> int:
        """Elements of the largest tile that is loaded, stored or reduced."""
        accesses = (*LOADS, tile.Store, tile.StorePointers, tile.Atomic, tile.AtomicBlock)
        moved = [tile_of(op) for op in self.kernel.walk() if isinstance(op, accesses)]
        moved += [
            tile_type(op.args[0])
            for op in self.kernel.walk()
            if isinstance(op, (tile.Reduce, tile.Scan))
        ]
        return max((t.size for t in moved if t is not None), default=1)
