"""A block's place in a cluster, whose blocks have neighbouring programs along the first two axes
and share copies.

    cluster 2 x 2      axis 0: 0  1
    axis 1: 0                  0  1
            1                  2  3

Block 1 shares with block 0 what does not depend on axis 0, and with block 3 what does not depend on
axis 1: its consumers release a stage to blocks 0, 1 and 3, which write there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from xdsl.ir import SSAValue

from tkc.ir.rewrite import Builder
from tkc.ir.threads import Identity

MAX_PORTABLE_CLUSTER = 8  # blocks; every device with clusters has room for it


def place_in(build: Builder, shape: tuple[int, int]) -> tuple[SSAValue, SSAValue]:
    """A block's rank along the axes of its cluster; along one of extent 1 it means nothing."""
    rank = build(Identity("cluster_rank"))
    return (
        (rank, rank) if 1 in shape else (build.mod(rank, shape[0]), build.floordiv(rank, shape[0]))
    )


class Multicast:
    """The blocks that share copies with this one. along: for each copy that is shared, the axes of
    the cluster along which it is.
    """

    def __init__(self, build: Builder, shape: tuple[int, int], along: Sequence[tuple[int, ...]]):
        self.shape, self.place, self.along = shape, place_in(build, shape), set(along)
        self.masks = {axes: self._mask(build, axes) for axes in sorted(self.along)}
        # of all blocks that write to this block's stages
        self.mask = reduce(build.or_, self.masks.values()) if along else None

    @property
    def size(self) -> int:
        """How many blocks write to this one's stages, itself among them."""
        return (
            prod(self.shape)
            if (0, 1) in self.along
            else 1 + sum(n - 1 for axis, n in enumerate(self.shape) if (axis,) in self.along)
        )

    def parts(self, axes: tuple[int, ...]) -> int:
        return prod(self.shape[axis] for axis in axes)

    def part(self, build: Builder, axes: tuple[int, ...]) -> SSAValue:
        """Which part of a copy that is shared along these axes is this block's."""
        return (
            self.place[axes[0]]
            if len(axes) == 1
            else build.add(build.mul(self.place[1], self.shape[0]), self.place[0])
        )

    def _mask(self, build: Builder, axes: tuple[int, ...]) -> SSAValue:
        """Of the blocks in line with this one: one of a few numbers, which analyses can follow."""
        across, down = self.shape
        if self.parts(axes) == across * down:
            return build.number((1 << across * down) - 1)
        where, masks = (
            (self.place[1], [(1 << across) - 1 << across * i for i in range(down)])
            if axes == (0,)
            else (
                self.place[0],
                [sum(1 << i + across * j for j in range(down)) for i in range(across)],
            )
        )
        found = build.number(masks[0])
        for i, mask in enumerate(masks[1:], 1):
            found = build.select(build.eq(where, i), mask, found)
        return found
