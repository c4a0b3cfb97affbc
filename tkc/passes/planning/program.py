"""What a plan depends on: a kernel at level 0, its dots and its loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.types import TileType
from tkc.passes.analysis.access import moved_value
from tkc.passes.analysis.parts import size_of_parts
from tkc.passes.analysis.stabilizers import is_running_maximum
from tkc.passes.analysis.values import LOADS, WRITES


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
        moved = [
            moved_value(op) if isinstance(op, (*LOADS, *WRITES)) else op.args[0]
            for op in self.kernel.walk()
            if isinstance(op, (*LOADS, *WRITES, tile.Reduce, tile.Scan))
        ]
        return max((size_of_parts(v) for v in moved if isinstance(v.type, TileType)), default=1)
