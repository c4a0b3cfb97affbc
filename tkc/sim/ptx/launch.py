"""A launch: a program, its arguments in memory, and the clusters of its grid, which take turns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np

from tkc.ir.interface import Interface, Parameter
from tkc.ir.truths import every
from tkc.sim.ptx import accesses, arithmetic, barriers, conversions, tensor, warps, wgmma
from tkc.sim.ptx.faults import Fault, Unknown
from tkc.sim.ptx.kinds import KIND_TYPES
from tkc.sim.ptx.machine import WARP, WARPGROUP, ClusterMachine, LaunchState, rule_of
from tkc.sim.ptx.memory import Memory
from tkc.sim.ptx.tensor_maps import tensor_map
from tkc.sim.ptx.text import Program, parse
from tkc.sim.ptx.widths import check_widths

# each registers the rules of its instructions when it is imported
FAMILIES = (accesses, arithmetic, barriers, conversions, tensor, warps, wgmma)
# the first words of instructions that a whole warp (of wgmma: warpgroup) must reach
WARP_WIDE = (
    "bar.",
    "shfl",
    "vote",
    "redux",
    "ldmatrix",
    "stmatrix",
    "mma",
    "wgmma",
    "elect",
    "setmaxnreg",
    "barrier.cluster",
)
MAX_CLUSTERS_AT_ONCE = 8  # with more, one runs after the other as far as it can


class EmittedProgram(Protocol):
    """PTX and how to launch it, as `tkc.codegen.ptx.emit` gives it."""

    @property
    def text(self) -> str: ...
    @property
    def interface(self) -> Interface: ...


@lru_cache(64)
def decoded(text: str) -> Program:
    """A text with a rule at each instruction. Raises Unknown where one has none, Fault where one
    takes a register of another width.
    """
    program = parse(text)
    check_widths(program)
    for i in program.code:
        i.rule = rule_of(i.name)
        if i.name.startswith(WARP_WIDE):
            i.together = WARPGROUP if i.name.startswith("wgmma") else WARP
    return program


def physical_grid(interface: Interface, grid: Sequence[int], resident: int) -> tuple[int, int, int]:
    """The blocks that are launched along each axis. resident: clusters of a persistent kernel that
    run at once.
    """
    x, y = interface.cluster
    if not interface.persistent:
        return grid[0] * x, grid[1] * y, grid[2]
    needed = interface.blocks_with_work(grid) // (x * y)
    return min(resident, needed) * x * y, 1, 1


class Launch:
    """A program with its arguments in memory. places: the address of each array among them."""

    def __init__(
        self,
        program: EmittedProgram,
        arguments: Sequence[Any],
        grid: Sequence[int],
        resident: int,
        seed: int | None,
    ):
        self.arguments, self.grid = arguments, (*grid, 1, 1)[:3]
        interface, memory = program.interface, Memory()
        arrays = iter(memory.put_all([a for a in arguments if isinstance(a, np.ndarray)]))
        self.places = [next(arrays) if isinstance(a, np.ndarray) else None for a in arguments]
        physical = physical_grid(interface, self.grid, resident)
        self.state = LaunchState(interface, decoded(program.text), memory, physical, seed)
        for name, (kind, numbers) in self.state.program.tables.items():
            table = np.array(numbers, np.uint64).astype(KIND_TYPES[kind])
            self.state.symbols[name] = memory.put(table)
        for p, name in zip(interface.parameters, self.state.program.parameters, strict=False):
            self.state.parameters.append(self._parameter(p, name))
        (x, y), (gx, gy, gz) = interface.cluster, physical
        self.clusters = [
            (cx, cy, cz) for cz in range(gz) for cy in range(gy // y) for cx in range(gx // x)
        ]

    def _parameter(self, p: Parameter, name: str) -> Any:
        """What the host passes for a parameter of the entry. Raises Unknown for a kind that there
        is not.
        """
        argument = self.arguments[p.argument] if p.argument >= 0 else None
        match p.kind, argument:
            case "pointer", np.ndarray():
                return self.places[p.argument]
            case "shape", np.ndarray():
                extent = argument.shape[p.axis]
                return min(extent, 2**31 - 1) if p.type == "s32" else extent
            case "stride", np.ndarray():
                return argument.strides[p.axis] // argument.itemsize
            case "scalar", _:
                return argument
            case "grid", _:
                return self.grid[p.axis]
            case "trap", _:
                return 0
            case "workspace", _:
                size = max(p.bytes + p.each * prod(self.grid), 16)
                return self.state.memory.put(np.zeros(size, np.uint8))
            case "map", np.ndarray():
                return self._tensor_map(p, name)
            case kind, _:
                raise Unknown(f"a parameter of kind {kind}")

    def _tensor_map(self, p: Parameter, name: str) -> int:
        """The address of a parameter that is a tensor map."""
        at = self.state.symbols[name] = self.state.memory.put(np.zeros(128, np.uint8))
        place = self.places[p.argument]
        assert place is not None, "a tensor map is of an array"
        self.state.maps[at] = tensor_map(p, self.arguments, place)
        return at

    def run(self) -> None:
        """Clusters take turns until all have ended. Raises Fault where nobody can go on."""
        with np.errstate(all="ignore"):
            alive = self._started()
            while alive:
                went = [m.turn() for m in alive]
                if not any(went):
                    raise Fault(f"everybody waits: {alive[0].stuck()}")
                alive = [m for m in alive if not every(m.done)]

    def _started(self) -> list[ClusterMachine]:
        """The clusters; of many those that wait for others, while the rest have run already."""
        if len(self.clusters) <= MAX_CLUSTERS_AT_ONCE:
            return [ClusterMachine(self.state, c) for c in self.clusters]
        alive = []
        for c in self.clusters:
            m = ClusterMachine(self.state, c)
            m.turn()
            if not every(m.done):
                alive.append(m)
        return alive


def run(
    program: EmittedProgram,
    arguments: Sequence[Any],
    grid: Sequence[int] = (1,),
    *,
    resident: int = 2,
    seed: int | None = None,
) -> list[np.ndarray]:
    """Runs a PtxProgram; arguments as the kernel's (arrays of any strides, numbers), which stay as
    they are. Gives the arrays afterwards.

    resident: clusters of a persistent kernel that are there at once. seed: a random order of warps
    and copies; None: the order that is fastest here. Raises Fault and Trapped, and Unknown where
    the program is beyond this simulator.
    """
    launch = Launch(program, arguments, grid, resident, seed)
    launch.run()
    return [
        np.array(launch.state.memory.get(at, a))
        for at, a in zip(launch.places, arguments, strict=True)
        if at is not None
    ]
