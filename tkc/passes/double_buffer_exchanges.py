"""double-buffer-exchanges: what threads exchange in each iteration of a loop goes through two
buffers in turn, so that they meet once an iteration.

    for … {                                    %b = tile.alloc : shared<2, …>
      %b = tile.alloc : shared<1, …>           for … iter_args(%s = 0) {
      write %b, %x                               %now = tile.stage %b[%s]
      %y = read %b                        ->     write %now, %x
    }                                            %y = read %now
                                                 yield tile.ring_next %s {stages = 2}
                                               }

Between a write and the reads of what others wrote threads meet. With one buffer they meet once
more, before the next iteration writes what others may not have read yet. Who writes to the other
buffer has met, since it was read, all who read it.

Only loops whose exchanges are one round, all written before one is read: with two rounds the
threads meet for the one between the reads and the writes of the other.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import Builder, before, loop_of, rebuild_for
from tkc.ir.types import SharedType
from tkc.ir.values import enclosing, operations_in, shared_type, terminator_of
from tkc.passes import PassContext
from tkc.passes.allocate_shared import MAX_UNSHARED_BYTES

ACCESSES = (shared.Read, shared.Write)
# what threads meet for anyway, or copy ahead
OTHERS = (
    *(threads.CpAsync, threads.CpWait, threads.BlockBarrier, threads.MbarrierWait),
    *(threads.BroadcastLoad, threads.BroadcastStore, threads.DotAsync),
)


def run(module: ModuleOp, context: PassContext) -> None:
    """Gives each loop with one round of exchanges two buffers for each of them."""
    for kernel in tile.kernels_of(module):
        for loop in operations_in(kernel, scf.ForOp):
            role = enclosing(loop, threads.Role)
            warps = kernel.warps if role is None else role.warps.value.data
            buffers = _exchanges(loop)
            if buffers and warps > 1 and loop_of(loop) is None:
                _double_buffer(loop, buffers)
                context.decisions.append(
                    f"double-buffer-exchanges: {len(buffers)} of a loop, by two buffers in turn"
                )


def _exchanges(loop: scf.ForOp) -> list[shared.Alloc]:
    """The buffers of a loop's only round of exchanges; none where there is another round, or the
    threads meet for something else.
    """
    body = loop.body.block
    if any(isinstance(op, OTHERS) for op in body.walk()):
        return []
    buffers = [op for op in body.ops if isinstance(op, shared.Alloc)]
    users = {use.operation for buffer in buffers for use in buffer.result.uses}
    accesses = [op for op in body.ops if isinstance(op, ACCESSES)]
    if users != set(accesses) or len(accesses) < len(operations_in(body, ACCESSES)):
        return []
    is_read = [isinstance(op, shared.Read) for op in accesses]
    return buffers if is_read == sorted(is_read) and all(map(_is_small, buffers)) else []


def _is_small(buffer: shared.Alloc) -> bool:
    """Whether a buffer is of one block's threads, and two of it share bytes with no other."""
    t, users = shared_type(buffer.result), [use.operation for use in buffer.result.uses]
    is_far = any(isinstance(op, shared.Write) and op.everywhere is not None for op in users)
    return t.stages == 1 and 2 * t.bytes <= MAX_UNSHARED_BYTES and not is_far


def _double_buffer(loop: scf.ForOp, buffers: list[shared.Alloc]) -> None:
    zero = Builder(loop).number(0)
    loop = rebuild_for(loop, range(len(loop.iter_args)), [zero])
    body = loop.body.block
    stage = body.args[-1]
    stage.name_hint = "stage"
    for buffer in buffers:
        t = shared_type(buffer.result)
        ring = before(loop, shared.Alloc(SharedType(2, t.shape, t.element, t.layout)))
        now = before(buffer, shared.Stage(ring.result, stage))
        buffer.result.replace_all_uses_with(now.result)
        buffer.detach()
        buffer.erase()
    end: Operation = terminator_of(body)
    following = before(end, threads.RingNext(stage, zero, 2))
    end.operands = [*end.operands, following.next_stage]
