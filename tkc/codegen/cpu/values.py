"""What a value of the program is while its code is written: a register, a buffer, an array;
and what one chunk of a tile is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from xdsl.ir import Attribute, SSAValue

from tkc.ir.ranges import Overflow


@dataclass(frozen=True)
class Index:
    """Position along one axis: base + step·lane (step 0: the same for all lanes); base is known
    from loop `depth` on.
    """

    base: str
    step: int = 0
    depth: int = 0


ZERO = Index("0")


@dataclass(frozen=True)
class Chunk:
    """A held value of all lanes of a chunk: one scalar (uniform), base + step·lane (affine), or a
    vector.
    """

    base: str
    step: int = 0
    depth: int = 0
    vector: bool = False
    # whether some lane of base + step·lane may be another number in the chunk's type
    overflow: Overflow = Overflow.NEVER

    @property
    def uniform(self) -> bool:
        return not self.vector and not self.step

    @property
    def affine(self) -> bool:
        return not self.vector


@dataclass(eq=False)
class Buffer:
    """A tile in the program's workspace, row-major and dense; `pointer` is a name that every block
    may use.
    """

    pointer: str
    shape: tuple[int, ...]
    element: Attribute
    offset: int
    bytes: int
    fixed: bool = False  # liveness does not release it: a loop carries it


@dataclass(frozen=True)
class ArrayValue:
    """A tile.array: names of its pointer, extents and strides (i64), and the strides known when
    compiling.
    """

    pointer: str
    extents: tuple[str, ...]
    strides: tuple[str, ...]


V = TypeVar("V", str, Buffer, ArrayValue)
Value = str | Buffer | ArrayValue


class Env(dict[SSAValue, Value]):
    """What has been computed: names of registers, tiles in buffers, arrays."""

    def register(self, v: SSAValue) -> str:
        """The name of a scalar's register. Raises TypeError for other values."""
        return self._of(v, str)

    def buffer(self, v: SSAValue) -> Buffer:
        """The buffer of a tile. Raises TypeError for other values."""
        return self._of(v, Buffer)

    def array(self, v: SSAValue) -> ArrayValue:
        """The registers of an array. Raises TypeError for other values."""
        return self._of(v, ArrayValue)

    def _of(self, v: SSAValue, kind: type[V]) -> V:
        found = self[v]
        if not isinstance(found, kind):
            raise TypeError(f"expected a {kind.__name__} for {v}, found {found}")
        return found


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, n = [], 1
    for extent in reversed(shape):
        strides.append(n)
        n *= extent
    return tuple(reversed(strides))


def vector_axis(shape: Sequence[int]) -> int | None:
    """The last axis longer than 1."""
    return next((a for a in reversed(range(len(shape))) if shape[a] > 1), None)
