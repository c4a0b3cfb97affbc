"""Ranks as torch.distributed has them: GPUs over symmetric memory, processes of a host over gloo.

What is pushed to another GPU is copied by the copy engines: the number behind it becomes seen when
the data are, since a stream's copies follow one another.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import tkc
from tkc.kernels.distributed.groups import MAX_SECONDS, Alive, Group, Processes
from tkc.kernels.distributed.watch import Watch


def group_of(group: Any = None, seconds: float = MAX_SECONDS) -> Group:
    """The group of a torch.distributed process group (the default one if None): with NCCL of GPUs,
    with gloo of processes of one host, over shared memory. All ranks call it together.
    """
    group = group or dist.group.WORLD
    if dist.get_backend(group) == "nccl":
        return Devices(group, seconds)
    return Processes(_name(group), dist.get_rank(group), dist.get_world_size(group), seconds)


def _name(group: Any) -> str:
    """One that the processes of this group have, and no others."""
    name = [f"tkc-{uuid.uuid4().hex}"]
    dist.broadcast_object_list(name, src=dist.get_global_rank(group, 0), group=group)
    return name[0]


class Devices(Group):
    """A rank that is a GPU: torch allocates memory that all GPUs of the group can use. Results are
    torch's tensors. Where another rank dies and launches that wait for it do not end, this
    process does, with a sentence that says so (watch.py). Of those that a graph has it is not known
    when they run: there the device has to become idle.
    """

    def __init__(self, group: Any, seconds: float = MAX_SECONDS):
        super().__init__(dist.get_rank(group), dist.get_world_size(group), seconds)
        self._group = group
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._forked: dict[int, torch.cuda.Stream] = {}
        self._alive = Alive(_name(group), self.rank, self.world)
        self._ended: Any = None  # an event behind the last launches in which ranks wait
        self._recorded = False  # whether a graph has such launches
        self._idle: threading.Thread | None = None  # which waits for the device
        self._watch = Watch(self.died, self._is_idle)

    def allocate(self, shape: Sequence[int], dtype: Any) -> list[Any]:
        kind = _dtype(dtype)
        if self.world == 1:
            return [self.zeros(shape, kind)]
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

    @contextlib.contextmanager
    def beside(self, queue: int) -> Iterator[None]:
        if queue not in self._streams:
            self._streams[queue] = torch.cuda.Stream(self._device)
        stream = self._streams[queue]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        self._forked[queue] = stream
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        current = torch.cuda.current_stream(self._device)
        for stream in self._forked.values():
            current.wait_stream(stream)
        self._forked.clear()

    def push(self, x: Any, to: Any) -> None:
        to[: len(x)].copy_(x)

    def tell(self, number: Any, flag: Any) -> None:
        flag.copy_(number)

    def end(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            self._recorded = True
        else:
            self._ended = self._ended or torch.cuda.Event()
            self._ended.record()

    def _is_idle(self) -> bool:
        ended = self._ended is None or self._ended.query()
        return ended and (not self._recorded or self._device_is_idle())

    def _device_is_idle(self) -> bool:
        """Whether the device has done what it had to do when this was first asked."""
        if self._idle is None:
            self._idle = threading.Thread(
                target=torch.cuda.synchronize, args=(self._device,), name="tkc idle", daemon=True
            )
            self._idle.start()
        if self._idle.is_alive():
            return False
        self._idle = None
        return True

    def died(self) -> str | None:
        return self._alive.died()

    def close(self) -> None:
        self._watch.stop()
        self._alive.close()
        super().close()


def _dtype(dtype: Any) -> Any:
    """torch's dtype, of its own or of a name."""
    if isinstance(dtype, torch.dtype):
        return dtype
    name = str(dtype)
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise tkc.LaunchError(f"{name} is no element type of torch")
    return found
