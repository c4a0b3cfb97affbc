"""Arrays that every rank has one of, as one argument of a kernel.

Where `tkc.peers([mine, yours], rank=0)` is passed as p, `p[r]` in the kernel is rank r's array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from tkc.errors import LaunchError
from tkc.runtime.arrays import ArrayInfo, describe, from_text

MAX_RANKS = 64


class Peers:
    """One array a rank, alike in element type, extents and strides, each at an address that this
    process and its device can use. As the annotation of a parameter: the kernel takes such a value.

    arrays: in the order of ranks (torch's symmetric memory, NumPy arrays over shared memory; texts
    such as "f32[1024]" where a kernel is only compiled). rank: whose launch this is. lost: gives a
    sentence that says which rank has died, or None; a launch on the CPU asks it while it waits, and
    ends with PeerError. Raises LaunchError.
    """

    is_peers = True  # what a jit function looks for in annotations
    __slots__ = ("arrays", "rank", "lost", "__weakref__")

    def __init__(
        self, arrays: Sequence[Any], rank: int, lost: Callable[[], str | None] | None = None
    ):
        self.arrays, self.rank, self.lost = tuple(arrays), rank, lost
        if not 1 <= len(self.arrays) <= MAX_RANKS:
            raise LaunchError(
                f"tkc.peers takes one array a rank, 1 to {MAX_RANKS} of them, got"
                f" {len(self.arrays)}"
            )
        if type(rank) is not int or not 0 <= rank < len(self.arrays):
            raise LaunchError(
                f"tkc.peers(arrays, rank): rank is 0 to {len(self.arrays) - 1} for"
                f" {len(self.arrays)} arrays, got {rank!r}"
            )

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.arrays)

    @property
    def own(self) -> Any:
        """This rank's array."""
        return self.arrays[self.rank]

    def __repr__(self) -> str:
        return f"<peers: rank {self.rank} of {self.world}>"


@dataclass(frozen=True)
class PeersInfo:
    """Peers as a launch sees them: the arrays, all on the device of the rank's own one."""

    arrays: tuple[ArrayInfo, ...]
    rank: int
    lost: Callable[[], str | None] | None = None

    @property
    def world(self) -> int:
        return len(self.arrays)

    @property
    def value(self) -> PeersInfo:
        """What a grid that is a function of the arguments sees."""
        return self

    @property
    def align(self) -> int:
        """Bytes that the address of each is a multiple of, at most 16."""
        return gcd(16, *(a.pointer for a in self.arrays))


def describe_peers(value: Peers, name: str) -> PeersInfo:
    """The arrays of peers. Raises LaunchError where they are not alike."""
    found = [
        from_text(a, name) if isinstance(a, str) else describe(a, f"{name}, rank {r}")
        for r, a in enumerate(value.arrays)
    ]
    own = found[value.rank]
    for r, other in enumerate(found):
        if (other.dtype, other.shape, other.strides) != (own.dtype, own.shape, own.strides):
            raise LaunchError(
                f"{name}: peers are alike, and rank {value.rank} has {_words(own)} where rank {r}"
                f" has {_words(other)}; allocate them with the same shape and dtype"
            )
    # an address that this device can use is on it, as far as a launch is concerned
    alike = tuple(replace(one, device=own.device) for one in found)
    return PeersInfo(alike, value.rank, value.lost)


def _words(info: ArrayInfo) -> str:
    return f"{info.dtype}{list(info.shape)} of strides {list(info.strides)}"
