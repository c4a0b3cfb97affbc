"""What dots and copies of level 4 ask of the engines (vector work: planning/demands.py)."""

from __future__ import annotations

from math import prod

from tkc.ir import threads
from tkc.ir.target import Target
from tkc.ir.types import MapType, SharedType, TileType, bits
from tkc.ir.values import pending_type, shared_type, tile_type, type_of
from tkc.passes.planning.demands import Demand as Demand
from tkc.passes.planning.demands import of as of


def result_extents(op: threads.DotAsync) -> tuple[int, int]:
    """Rows and columns of an asynchronous dot's result."""
    t = pending_type(op.result).tile
    if not isinstance(t, TileType):
        raise TypeError(f"expected a tile, got {t}")
    m, n = t.extents
    return m, n


def depth_of(op: threads.DotAsync) -> int:
    """K of an asynchronous dot, whose left operand is a tile or a shared buffer."""
    return (op.a.type if isinstance(op.a.type, SharedType) else tile_type(op.a)).extents[1]


def tensor(op: threads.DotAsync, operations: float, groups: int) -> tuple[float, float]:
    """Clocks of a warpgroup's share of an asynchronous dot, on tensor cores of so many 16-bit
    operations a clock, and bytes that it reads in shared memory.
    """
    (m, n), k = result_extents(op), depth_of(op)
    width = bits(shared_type(op.b).element)
    rows = -(-m // (64 * groups)) * 64
    reads = (
        rows / 64 * k * width / 256 * ((2048 if isinstance(op.a.type, SharedType) else 0) + 32 * n)
    )
    return 2 * rows * n * k / (operations * 16 / max(width, 8)), reads


def synchronous(m: int, n: int, k: int, width: int, target: Target, groups: int) -> float:
    """Clocks of a warpgroup's share of a dot by mma.sync."""
    rate = target.tensor * 16 / max(width, 8) * (target.costs.mma_sync if target.wgmma else 1)
    return 2 * -(-m // 16) * 16 * -(-n // 8) * 8 * k / rate / groups


def copied(op: threads.TmaLoad | threads.TmaStore) -> int:
    """Bytes of a box."""
    box = type_of(op.map, MapType)
    return prod(box.extents) * bits(box.element) // 8
