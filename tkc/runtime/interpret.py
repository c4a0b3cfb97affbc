"""TKC_INTERPRET=1: launches run the level-0 program in NumPy, one program after another, with
ordinary Python errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tkc.errors import LaunchError
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.specialize import given, signature

if TYPE_CHECKING:
    from tkc.runtime.kernel import Kernel


def interpreted(
    kernel: Kernel, infos: Sequence, options: tuple, extents: tuple[int, int, int]
) -> Callable[[], None]:
    """The launch as a function of nothing. Arrays must be in host memory."""
    from tkc.language.trace import trace
    from tkc.sim.global_memory import GlobalMemory
    from tkc.sim.level0 import run

    if any(isinstance(i, ArrayInfo) and i.device >= 0 for i in given(infos)):
        raise LaunchError(
            f"{kernel.__name__}: TKC_INTERPRET=1 runs on host memory, and an array is on a GPU;"
            " pass .cpu() copies, or unset TKC_INTERPRET"
        )
    module = trace(kernel.fn, signature(kernel._specialize(infos, options)))
    passed = [i.numpy() if isinstance(i, ArrayInfo) else i.value for i in given(infos)]
    return lambda: run(module, passed, extents, memory=GlobalMemory(in_place=True))
