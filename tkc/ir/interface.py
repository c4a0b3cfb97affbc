"""What a compiled kernel needs from its host: physical parameters, threads, shared memory, cluster.
Plain data, JSON both ways.

The emitter fills it in; the launcher, the exported C code and the simulator read it. The user's
arguments are numbered as in the kernel's block arguments (constants are none); `Parameter` says how
to compute each physical parameter from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

# The extent of an axis that nothing bounds: more than an offset of 32 bits reaches, and a multiple
# of any box.
UNBOUNDED = (1 << 31) - (1 << 16)
# An integer that the host computes of the arguments of a launch:
#   n                          a number
#   ("scalar", argument)       an integer argument, by its number among the kernel's
#   ("shape", argument, axis)  an extent of an array argument
#   ("stride", argument, axis) a stride of one, in elements
#   (function, a, b)           one of HOST_FUNCTIONS of two of these
HostValue = int | tuple
HOST_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}


def evaluate(value: HostValue, leaf: Callable[[str, int, int], int]) -> int:
    """The number that an expression is. leaf(kind, argument, axis) reads an argument; the axis of a
    scalar is 0.
    """
    if isinstance(value, int):
        return value
    kind, *rest = value
    if kind in HOST_FUNCTIONS:
        return HOST_FUNCTIONS[kind](*(evaluate(part, leaf) for part in rest))
    return leaf(kind, rest[0], rest[1] if len(rest) > 1 else 0)


def _tuples(value: Any) -> Any:
    """What JSON gives back, with tuples for its lists."""
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Parameter:
    """One parameter of the PTX entry.

    kind: "pointer", "shape", "stride" (of array argument `argument`, along `axis`), "scalar"
    (argument itself), "grid" (extent of the user's grid along `axis`), "map" (a 128-byte tensor map
    of array `argument`), "workspace" (a buffer of `bytes` and `each` more for every program of the
    grid, zeroed before the first launch; what counts on that is zero again when the kernel ends),
    "trap" (where a check of TKC_DEBUG leaves its record, or 0).
    """

    kind: str
    type: str  # PTX type: "u64", "u32", "f32", "b8[128]" …
    argument: int = -1
    axis: int = -1
    element: str = ""  # map: element type of the IR, e.g. "bf16"
    box: tuple[int, ...] = ()  # map: extents in the map's axes, slowest first
    order: tuple[int, ...] = ()  # map: the array's axes in the map's order; empty: as they are
    swizzle: int = 0  # map: bytes
    panelled: bool = False  # map: the last axis split in panels of `swizzle` bytes
    # map: bytes at most that the L2 cache reads from memory at once; 0: as many as it can
    fetch: int = 0
    bytes: int = 0  # workspace
    each: int = 0  # workspace
    # map of an array that the kernel makes of the argument: elements that it begins behind it, its
    # extents, its strides in elements; without: of the argument itself
    offset: HostValue = 0
    shape: tuple[HostValue, ...] = ()
    strides: tuple[HostValue, ...] = ()

    def array(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        leaf: Callable[[str, int, int], int],
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Of a map: where its array begins, in elements behind its argument, its extents, and its
        strides in elements. shape, strides: the argument's.
        """
        if not self.shape:
            return 0, tuple(shape), tuple(strides)
        return (
            evaluate(self.offset, leaf),
            tuple(evaluate(n, leaf) for n in self.shape),
            tuple(evaluate(n, leaf) for n in self.strides),
        )

    @property
    def axes(self) -> tuple[int, ...]:
        """Of a map: the array's axes, slowest first."""
        return self.order or tuple(range(len(self.box)))

    @property
    def size(self) -> int:
        """Bytes in the parameter buffer."""
        return 128 if self.kind == "map" else int(self.type[1:]) // 8


# where what is in the record of a trap; thread: block x, y, z and the thread in it; two numbers
RECORD = {
    "written": 0,
    "site": 4,
    "thread": 8,
    "numbers": 24,
    "bytes": 64,
}


@dataclass(frozen=True)
class Site:
    """A check of TKC_DEBUG=1: what is wrong where it traps, with `{0}` and `{1}` for two numbers,
    and where in the user's source.
    """

    text: str
    file: str = ""
    line: int = 0
    column: int = 0


def blocks_with_work(
    grid: Sequence[int], size: int, cluster_programs: tuple[int, int], split: int
) -> int:
    """Blocks of a persistent launch that have work, whole clusters of `size`. split: blocks that
    can work on one program.
    """
    padded = [
        -(-n // together) * together
        for n, together in zip(grid, (*cluster_programs, 1), strict=False)
    ]
    return -(-prod(padded) * split // size) * size


@dataclass(frozen=True)
class Interface:
    """How to launch one compiled kernel. debug: seconds that a wait may take in a kernel with the
    checks of TKC_DEBUG, else 0.
    """

    entry: str
    target: str
    threads: int
    shared_bytes: int = 0
    cluster: tuple[int, int] = (1, 1)
    # the physical grid is one-dimensional: min(blocks_with_work(grid), resident blocks)
    persistent: bool = False
    parameters: tuple[Parameter, ...] = field(default=())
    debug: int = 0
    sites: tuple[Site, ...] = ()
    split: int = 1  # persistent: blocks that can work on one program of the grid
    # persistent: blocks wait for one another, so that none may begin before all can
    together: bool = False
    nonzero: tuple[int, ...] = ()  # arguments that may not be 0: steps of ranges
    # persistent: programs that a cluster takes at once, along the first two axes of the grid
    cluster_programs: tuple[int, int] = (1, 1)
    # the kernel itself waits for the launch before it, which need not have ended when it begins
    dependent: bool = False
    tile_registers: int = 0  # of a thread, at most, that tiles take at once (assign-registers)

    def blocks_with_work(self, grid: Sequence[int]) -> int:
        """Blocks of a persistent launch that have a program or a part of one, whole clusters: where
        the grid ends inside a cluster, blocks have padding tiles.
        """
        size = self.cluster[0] * self.cluster[1]
        return blocks_with_work(grid, size, self.cluster_programs, self.split)

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(data: dict) -> Interface:
        parameters = tuple(
            Parameter(**{name: _tuples(value) for name, value in p.items()})
            for p in data["parameters"]
        )
        return Interface(
            **{
                **data,
                "cluster": tuple(data["cluster"]),
                "parameters": parameters,
                "sites": tuple(Site(**s) for s in data.get("sites", ())),
                "nonzero": tuple(data.get("nonzero", ())),
                "cluster_programs": tuple(data.get("cluster_programs", (1, 1))),
            }
        )


def map_dimensions(
    box: tuple[int, ...], bits: int, swizzle: int, panelled: bool
) -> list[tuple[int, str]]:
    """Dimensions of a tensor map, innermost first, as (axis of the box, part): part "all" for a
    plain axis, "within" and "panel" for the two halves of a last axis split in panels.

    Order: inside the panel, then the axes whose box is wider than 1 from the last to the first,
    then the panels, then the axes with a box of 1: so that the box arrives in shared memory as
    SharedLayout stores it (panel by panel).
    """
    last = len(box) - 1
    wide = [(a, "all") for a in reversed(range(last)) if box[a] > 1]
    single = [(a, "all") for a in reversed(range(last)) if box[a] == 1]
    if panelled and swizzle and box[last] * bits // 8 > swizzle:
        return [(last, "within"), *wide, (last, "panel"), *single]
    return [(last, "all"), *wide, *single]


def map_fields(
    p: Parameter, shape: Sequence[int], strides: Sequence[int], size: int
) -> list[tuple[int, int, int]]:
    """(extent, stride in bytes, box) of each dimension of a tensor map, innermost first, of an
    array with these extents, and strides in bytes, of elements of `size` bytes.
    """
    last, found = len(p.box) - 1, []
    # elements of the last axis that one row of a panel holds
    panel = p.swizzle // size or p.box[last]
    for axis, part in map_dimensions(p.box, 8 * size, p.swizzle, p.panelled):
        n, step, width = shape[p.axes[axis]], strides[p.axes[axis]], p.box[axis]
        match part:
            case "within":
                n, width = min(n, panel), panel
            case "panel":
                n, step, width = -(-n // panel), panel * size, -(-width // panel)
            case _ if axis == last:
                width = min(width, panel)  # a wider box takes one copy a panel
        found.append((n, step, width))
    return found
