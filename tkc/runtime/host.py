"""Launches on the CPU: the arguments as NumPy arrays over the caller's memory, the program run to
its end on a pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tkc.compiler import Compiled
from tkc.errors import LaunchError
from tkc.runtime.arrays import ArrayInfo


class HostLaunch:
    """A launch with its arguments bound; calling it returns when the last program has ended. It
    keeps no memory alive: the caller's arguments do. lost: says who has died of those that it may
    wait for.
    """

    __slots__ = ("run", "arguments", "grid", "lost")
    reusable = True

    def __init__(
        self,
        compiled: Compiled,
        names: Sequence[str],
        infos: Sequence,
        grid: tuple[int, int, int],
        lost: Callable[[], str | None] | None = None,
    ):
        for name, info in zip(names, infos, strict=False):
            what = f"argument {name} of {compiled.name}"
            if isinstance(info, ArrayInfo):
                if not info.pointer and info.span != (0, 0):
                    raise LaunchError(
                        f"{what}: it stands for an array and can be compiled for, not launched;"
                        " pass an array"
                    )
                if info.pointer % info.itemsize:
                    raise LaunchError(
                        f"{what}: its address {info.pointer:#x} is no multiple of its"
                        f" {info.itemsize}-byte elements; pass a copy"
                    )
            elif info.value is None:
                raise LaunchError(
                    f"{what}: {info.dtype} stands for a number and can be compiled for, not"
                    " launched; pass one"
                )
        self.run, self.grid, self.lost = compiled.program.run, grid, lost
        self.arguments = [i.numpy() if isinstance(i, ArrayInfo) else i.value for i in infos]

    def __call__(self) -> None:
        self.run(self.arguments, self.grid, lost=self.lost)
