"""Buffers that each thread fills and reads for itself: no thread reads another's bytes, so that no
barrier is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, threads
from tkc.ir.layout import Layout


def own_layout(alloc: shared.Alloc) -> Layout | None:
    """The one layout in which a buffer, or a ring, is filled by cp.async and read; None where there
    is another use, or an element that several threads hold, of which one copies.
    """
    layouts = {_layout(op) for op in users(alloc.result)}
    layout = layouts.pop() if len(layouts) == 1 else None
    return layout if layout is not None and private(layout) else None


def private(layout: Layout) -> bool:
    """Whether each element is one thread's alone."""
    return layout.lane_replication == layout.warp_replication == layout.block_replication == 1


def users(buffer: SSAValue) -> Iterator[Operation]:
    """What touches a buffer, or a stage of a ring."""
    for use in buffer.uses:
        if isinstance(use.operation, shared.Stage):
            yield from users(use.operation.result)
        else:
            yield use.operation


def _layout(op: Operation) -> Layout | None:
    match op:
        case shared.Copy() | shared.CopyAsync() | threads.CpAsync():
            return op.threads.data if op.threads is not None else None
        case shared.Read():
            return op.result.type.register_layout
    return None
