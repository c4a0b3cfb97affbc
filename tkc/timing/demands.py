"""What dots and copies of level 4 ask of the engines (vector work: planning/demands.py)."""

from __future__ import annotations

from math import prod

from tkc.ir import threads
from tkc.ir.target import LEFT_BYTES, RIGHT_BYTES, SWIZZLE_BITS, Target
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


def tensor(op: threads.DotAsync, target: Target, groups: int) -> tuple[float, float]:
    """Clocks of a warpgroup's share of an asynchronous dot, and bytes that it reads in shared
    memory.
    """
    (m, n), k, right = result_extents(op), depth_of(op), shared_type(op.b)
    width = bits(right.element)
    rows = -(-m // (64 * groups)) * 64
    instructions = rows / 64 * k * width / 256
    left = LEFT_BYTES * isinstance(op.a.type, SharedType) * instructions
    reads = RIGHT_BYTES * n * instructions
    clocks = 2 * rows * n * k / (target.tensor * 16 / max(width, 8))
    if n * width % SWIZZLE_BITS and right.memory.fast == 1:
        clocks = max(clocks, target.engines.reading(left, reads))
    return clocks, left + reads


def synchronous(m: int, n: int, k: int, width: int, target: Target, groups: int) -> float:
    """Clocks of a warpgroup's share of a dot by mma.sync."""
    rate = target.tensor * 16 / max(width, 8) * (target.costs.mma_sync if target.wgmma else 1)
    return 2 * -(-m // 16) * 16 * -(-n // 8) * 8 * k / rate / groups


def copied(op: threads.TmaLoad | threads.TmaStore) -> int:
    """Bytes of a box."""
    box = type_of(op.map, MapType)
    return prod(box.extents) * bits(box.element) // 8
