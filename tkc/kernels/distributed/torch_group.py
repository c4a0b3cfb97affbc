"""Ranks as torch.distributed has them: GPUs over symmetric memory, processes of a host over gloo.

Not yet run on GPUs: it is written after torch 2.11's documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import tkc
from tkc.kernels.distributed.groups import MAX_SECONDS, Group, Processes


def group_of(group: Any = None, seconds: float = MAX_SECONDS) -> Group:
    """The group of a torch.distributed process group (the default one if None): with NCCL of GPUs,
    with gloo of processes of one host, over shared memory. All ranks call it together.
    """
    group = group or dist.group.WORLD
    if dist.get_backend(group) == "nccl":
        return Devices(group, seconds)
    name = [f"tkc-{id(group):x}-{torch.randint(1 << 62, ()).item():x}"]
    dist.broadcast_object_list(name, src=dist.get_global_rank(group, 0), group=group)
    return Processes(name[0], dist.get_rank(group), dist.get_world_size(group), seconds)


class Devices(Group):
    """A rank that is a GPU: torch allocates memory that all GPUs of the group can use. Results are
    torch's tensors.
    """

    def __init__(self, group: Any, seconds: float = MAX_SECONDS):
        super().__init__(dist.get_rank(group), dist.get_world_size(group), seconds)
        self._group = group
        self._device = torch.device("cuda", torch.cuda.current_device())

    def allocate(self, shape: Sequence[int], dtype: Any) -> list[Any]:
        kind = _dtype(dtype)
        own = symmetric.empty(tuple(shape), dtype=kind, device=self._device).zero_()
        handle = symmetric.rendezvous(own, self._group)
        handle.barrier()  # all are zero before the first one is written
        return [
            own if r == self.rank else handle.get_buffer(r, tuple(shape), kind)
            for r in range(self.world)
        ]

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.zeros(tuple(shape), dtype=_dtype(dtype), device=self._device)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.empty(tuple(shape), dtype=_dtype(dtype), device=self._device)

    def died(self) -> str | None:
        return None  # a launch on a GPU does not ask: TKC_DEBUG bounds its waits


def _dtype(dtype: Any) -> Any:
    """torch's dtype, of its own or of a name."""
    if isinstance(dtype, torch.dtype):
        return dtype
    name = str(dtype)
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise tkc.LaunchError(f"{name} is no element type of torch")
    return found
