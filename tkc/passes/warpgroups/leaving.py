"""Results leave: buffers that consumers have written go to global memory by tensor maps. A step of roles.py.

    tile.write %slab, %y;  tile.copy_out %c[%m, %n] %slab      bulk_wait read;  barrier;  tile.write %slab, %y
                                                      ->       fence async_shared;  barrier;  tma_store %map[%m, %n] %slab;  bulk_commit

Copies leave by one thread: a buffer is free when its copy before has been read (`bulk_wait`), and is sent after a fence of the asynchronous proxy and a barrier of those who wrote it.
"""
from __future__ import annotations

import numpy as np

from tkc.ir import shared, threads
from tkc.ir.layout import Layout
from tkc.ir.rewrite import before, erase
from tkc.passes.warpgroups.maps import Maps


def send(outs: list[shared.CopyOut], maps: Maps) -> None:
    """Buffers just written, to global memory; by each warpgroup its own rows, where it wrote those: then none waits for another. Buffers of their own leave
    together; those that results take in turn, one after the other."""
    alone = len({out.buffer for out in outs}) == len(outs) and len({out.parent for out in outs}) == 1
    for group in [outs] if alone else [[out] for out in outs]:
        writes = [_write_of(out) for out in group]
        shares = {_own_rows(write.value.type.register_layout) for write in writes}
        share = shares.pop() if len(shares) == 1 else 0
        each = "warpgroup" if share else None
        before(writes[0], threads.BulkWait(0 if alone else group[0].slots.value.data - 1, each=each), threads.BlockBarrier(each))
        end = group[-1]
        before(end, threads.Fence("async_shared"), threads.BlockBarrier(each))
        for out in group:
            box = [max(n, 1) for n in out.extents.get_values()]
            if share: box[next(a for a, n in enumerate(box) if n > 1)] = share
            map, place = maps.of(out.array, list(out.offsets), box, out.buffer.type.memory.swizzle)
            before(end, threads.TmaStore(map, place, out.buffer, each=each, axis=next(a for a, n in enumerate(map.type.extents) if n > 1) if share else None))
        before(end, threads.BulkCommit(each))
        for out in group: erase(out)


def _write_of(out: shared.CopyOut) -> shared.Write:
    write = out.prev_op
    while not (isinstance(write, shared.Write) and write.buffer is out.buffer): write = write.prev_op
    return write


def _own_rows(held: Layout) -> int:
    """The rows of a tile that each of several warpgroups holds, if they follow one another; else 0."""
    groups = held.num_warps // 4
    rows, rest = divmod(held.shape[0], max(groups, 1))
    if groups < 2 or rest or rows % 8: return 0
    holds = held.table()[..., 0].reshape(groups, -1) // rows
    return rows if (holds == np.arange(groups)[:, None]).all() else 0
