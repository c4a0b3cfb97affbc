"""When a block's warpgroups use which engine, how long the launch takes by that, and what the
device could do at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tkc.ir.plan import Plan
    from tkc.ir.target import Target
    from tkc.ir.tile import Kernel
    from tkc.passes.planning.cost import Work
    from tkc.passes.planning.numbers import Sizes

WARP, QUARTERS = 32, 4  # of a multiprocessor, each with units of its own
# operations that move elements or name them, and compute none
_IDLE = ("constant", "splat", "broadcast", "reshape", "transpose", "arange", "cast", "bitcast")


@dataclass(frozen=True)
class Roof:
    """A limit of the device: operations a second of an engine, or bytes a second of a memory."""

    name: str
    rate: float
    is_memory: bool


@dataclass(frozen=True)
class Roofline:
    """operations of the whole launch, those of them on the tensor cores, and bytes that it moves
    between the device's memory and its L2 cache.
    """

    operations: float
    on_tensor_cores: float
    bytes: float
    roofs: tuple[Roof, ...]

    @property
    def bound(self) -> float:
        """Seconds that no launch of these operations and bytes can be under, by the roofs."""
        computing = [roof.rate for roof in self.roofs if not roof.is_memory]
        moving = [roof.rate for roof in self.roofs if roof.is_memory]
        tensor, vector = max(computing), min(computing)
        rest = self.operations - self.on_tensor_cores
        return max(self.on_tensor_cores / tensor, rest / vector, self.bytes / min(moving))


def roofline(kernel: Kernel, work: Work, plan: Plan, target: Target, sizes: Sizes) -> Roofline:
    """Of the program at level 0 that was planned."""
    from tkc.passes.planning.cost import memory_of

    seconds, *_ = memory_of(work, plan, target)
    programs = prod(sizes.grid)
    dots = sum(2 * prod(dot.shape) * part.trips for part in work.parts for dot in part.dots)
    on_tensor_cores = sum(
        2 * prod(dot.shape) * part.trips
        for part in work.parts
        for dot in part.dots
        if dot.number < len(plan.dots) and plan.dots[dot.number].instruction != "fma"
    )
    widths = {dot.bits for part in work.parts for dot in part.dots} or {16}
    return Roofline(
        (dots + elementwise_operations(kernel, sizes)) * programs,
        on_tensor_cores * programs,
        seconds * target.memory * 1e9,
        roofs(target, min(widths)),
    )


def roofs(target: Target, width: int) -> tuple[Roof, ...]:
    """The limits of a target for dots of elements of so many bits."""
    clocks = target.clock * 1e9 * target.multiprocessors
    lanes = WARP * QUARTERS / target.engines.fma
    return (
        Roof(f"tensor cores, {width} bits", target.tensor * 16 / max(width, 8) * clocks, False),
        Roof("multiply-adds, float32", 2 * lanes * clocks, False),
        Roof("memory", target.memory * 1e9, True),
        Roof("L2 cache", target.fabric * clocks, True),
    )


def elementwise_operations(kernel: Kernel, sizes: Sizes) -> float:
    """Operations on elements, dots left out, that a program of the middle of the grid does."""
    from tkc.ir import tile
    from tkc.ir.elementwise import Elementwise
    from tkc.ir.rewrite import loops_of
    from tkc.ir.types import TileType
    from tkc.passes.planning.numbers import Numbers

    numbers, total = Numbers(kernel, sizes), 0.0
    for op in kernel.walk():
        computes = isinstance(op, (Elementwise, tile.Reduce, tile.Scan))
        if not computes or op.name.removeprefix("tile.") in _IDLE:
            continue
        elements = [v.type.size for v in op.operands if isinstance(v.type, TileType)]
        total += max(elements, default=0) * prod(numbers.trips(loop) for loop in loops_of(op))
    return total
