"""pipeline-async-copies: level 2 to level 3. Copies run ahead of their use through rings of buffers.

In a loop, a copy whose addresses do not depend on what the loop computes gets a ring of `stages` buffers; the copies of the first
stages − 1 iterations are issued before the loop, and each iteration issues those of the iteration stages − 1 further on:

    scf.for %k = … {                                  %ring = tile.alloc : !tile.shared<3, …>
      %b = tile.alloc : !tile.shared<1, …>            %t0 = tile.copy_async %a[%m, %k0] %ring[0] mask %k0<ub
      tile.copy %a[%m, %k] %b                         %t1 = tile.copy_async %a[%m, %k1] %ring[1] mask %k1<ub
      %x = tile.read %b                       ->      scf.for %k = … iter_args(%s, %p0, %p1 = 0, %t0, %t1) {
      …                                                 %ready = tile.wait_copies [%p0] {pending = 1}
    }                                                   %p2 = tile.copy_async %a[%m, %k + 2 step] %ring[%s + 2 mod 3] mask …
                                                        %x = tile.read %ring[%s] after(%ready)
                                                        …
                                                        scf.yield %s + 1 mod 3, %p1, %p2
                                                      }
                                                      tile.wait_copies [all] {pending = 0}

All copies of one iteration are one group (one token). Past the end of the loop the mask is false: nothing is read, zeros are
written, the group count stays what the waits expect; so trip counts 0, 1 and stages ± 1 need no case of their own.
Copies by tensor maps, which a producer warp will make, stay in their iteration: the ring's stage and parity are carried through all the loops
round it, so that the producer may be any number of stages ahead, in the next program too. Any other copy is issued where it stands
and waited for at once.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import after, before, clone_slice, defining_slice, erase, rebuild_for, replace
from tkc.ir.types import SharedType, TileType
from tkc.passes import PassContext

Add, Mul, Lt, And = (CLASSES[n] for n in ("add", "mul", "lt", "and"))


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp)]:
            body = loop.body.block
            mapped = [op for op in body.ops if isinstance(op, shared.Copy) and op.engine is not None]
            if mapped:
                _fill(loop, mapped, context.plan.stages)
                loop = body.parent_op()
            copies = [op for op in loop.body.block.ops if isinstance(op, shared.Copy) and op.engine is None and _runs_ahead(op, loop.body.block)]
            stages = _stages(copies, kernel, context)
            if stages > 1: _pipeline(loop, copies, stages, context)
        for op in [op for op in kernel.walk() if isinstance(op, shared.Copy)]: _at_once(op)
        kernel.set_integer("level", 3)


def _runs_ahead(copy: shared.Copy, body: Block) -> bool:
    """Whether the copy's operands of a later iteration can be computed now: from the induction variable and what is outside,
    by operations without effect; and whether its buffer is the loop's own."""
    if not isinstance(copy.buffer.owner, shared.Alloc) or copy.buffer.owner.parent is not body: return False
    needed = [v for v in copy.operands if v is not copy.buffer]
    ops = defining_slice(needed, body)
    inside = {v for op in ops for v in op.operands} | set(needed)
    carried = any(isinstance(v, BlockArgument) and v.block is body and v.index > 0 for v in inside)
    return not carried and all(is_side_effect_free(op) and not op.regions for op in ops)


def _stages(copies: list[shared.Copy], kernel: tile.Kernel, context: PassContext) -> int:
    """The planned stages, fewer where shared memory does not hold them."""
    if not copies: return 1
    wanted = context.plan.stages if context.plan else 3
    bytes_ = sum(copy.buffer.type.bytes for copy in copies)
    others = sum(op.result.type.bytes for op in kernel.walk() if isinstance(op, shared.Alloc)) - bytes_
    fit = max(1, (context.target.shared_bytes - others - 1024) // bytes_)
    if fit < wanted: context.decisions.append(f"pipeline-async-copies: {fit} stages instead of {wanted}, {bytes_} bytes each fill shared memory")
    return min(wanted, fit)


def _number(anchor: Operation, value: int, like: SSAValue) -> SSAValue:
    return before(anchor, tile.Constant(value, like.type)).result


def _pipeline(loop: scf.ForOp, copies: list[shared.Copy], stages: int, context: PassContext) -> None:
    body, iv, ahead = loop.body.block, loop.body.block.args[0], stages - 1
    sources = [v for copy in copies for v in copy.operands if v is not copy.buffer]
    needed = defining_slice(sources, body)
    rings = {}
    for copy in copies:
        t: SharedType = copy.buffer.type
        rings[copy] = before(loop, shared.Alloc(SharedType(stages, t.shape, t.element, t.layout))).result
        rings[copy].name_hint = copy.buffer.name_hint or "ring"

    def issue(anchor: Operation, at: SSAValue, stage: SSAValue) -> SSAValue:
        """The copies of the iteration whose induction variable is `at`, as one token."""
        valid = before(anchor, Lt(at, loop.ub)).result
        mapping: dict[SSAValue, SSAValue] = {iv: at}
        clone_slice(needed, mapping, anchor)
        tokens = []
        for copy in copies:
            mask = valid if copy.mask is None else _both(anchor, mapping.get(copy.mask, copy.mask), valid)
            view = before(anchor, shared.Stage(rings[copy], stage)).result
            get = lambda v: None if v is None else mapping.get(v, v)
            new = shared.CopyAsync(get(copy.array), [get(o) for o in copy.offsets], view, copy.extents.get_values(), mask, get(copy.other))
            new.properties |= {k: copy.properties[k] for k in ("vector", "threads") if k in copy.properties}
            tokens.append(before(anchor, new).token)
        return tokens[0] if len(tokens) == 1 else before(anchor, shared.JoinTokens(tokens)).token

    zero = before(loop, tile.Constant(0, i32)).result
    at, tokens = loop.lb, []
    for j in range(ahead):
        if j: at = before(loop, Add(at, loop.step)).result
        tokens.append(issue(loop, at, _number(loop, j, zero)))
    zero.name_hint = "stage"
    old = len(loop.iter_args)
    loop = rebuild_for(loop, range(old), [zero, *tokens])
    body = loop.body.block
    stage, *carried = body.args[1 + old:]
    first, terminator = body.first_op, body.last_op

    ready = before(first, shared.WaitCopies([carried[0]], ahead - 1)).ready
    distance = before(first, Mul(loop.step, _number(first, ahead, loop.step))).result
    steps = before(first, tile.Constant(ahead, i32)).result
    target = before(first, threads.RingNext(stage, zero, stages, steps)).next_stage
    token = issue(first, before(first, Add(iv, distance)).result, target)
    for copy in copies:
        alloc = copy.buffer.owner
        view = before(copy, shared.Stage(rings[copy], stage)).result
        for use in list(alloc.result.uses):
            user = use.operation
            if user is copy: continue
            user.operands[use.index] = view
        _after(view, ready)
        erase(copy); erase(alloc)
    step = before(terminator, threads.RingNext(stage, zero, stages))
    terminator.operands = [*terminator.operands, step.next_stage, *carried[1:], token]
    after(loop, shared.WaitCopies(list(loop.results[old + 1:]), 0))
    context.decisions.append(f"pipeline-async-copies: {len(copies)} copies of a loop {stages} stages deep")


def _fill(loop: scf.ForOp, copies: list[shared.Copy], stages: int) -> None:
    """Rings for the copies of a producer; stage and parity count on through the loop and those round it."""
    loops = [loop]
    while isinstance(around := loops[0].parent_op(), scf.ForOp): loops.insert(0, around)
    top = loops[0]
    zero = before(top, tile.Constant(0, i32)).result
    state = [zero, zero]
    for i, each in enumerate(loops):
        count = len(each.iter_args)
        each = loops[i] = rebuild_for(each, range(count), state)
        state = list(each.body.block.args[1 + count:])
        state[0].name_hint, state[1].name_hint = "stage", "parity"
    body = loops[-1].body.block
    stage, parity = state
    tokens = []
    for copy in copies:
        t: SharedType = copy.buffer.type
        alloc = copy.buffer.owner
        ring = before(loops[0], shared.Alloc(SharedType(stages, t.shape, t.element, t.layout))).result
        ring.name_hint = copy.buffer.name_hint or "ring"
        view = before(alloc, shared.Stage(ring, stage)).result
        alloc.result.replace_all_uses_with(view)
        new = shared.CopyAsync(copy.array, copy.offsets, view, copy.extents.get_values(), copy.mask, copy.other)
        new.properties |= {k: copy.properties[k] for k in ("engine", "cut") if k in copy.properties}
        tokens.append(before(copy, new).token)
        last = new
        erase(copy); erase(alloc)
    joined = tokens[0] if len(tokens) == 1 else after(last, shared.JoinTokens(tokens)).token
    after(joined.owner, shared.WaitCopies([joined], 0))
    step = before(body.last_op, threads.RingNext(stage, parity, stages))
    ends = [step.next_stage, step.next_parity]
    for each in reversed(loops):
        terminator = each.body.block.last_op
        terminator.operands = [*terminator.operands, *ends]
        ends = list(each.results[-2:])


def _both(anchor: Operation, mask: SSAValue, valid: SSAValue) -> SSAValue:
    if isinstance(mask.type, TileType): valid = before(anchor, tile.Splat(valid, mask.type)).result
    return before(anchor, And(mask, valid)).result


def _after(view: SSAValue, ready: SSAValue) -> None:
    """Every read of the buffer (through whatever views) waits for the token."""
    for use in list(view.uses):
        match use.operation:
            case shared.Read() as read:
                replace(read, _read_after(read, ready))
            case shared.SharedSlice() | shared.SharedTranspose() | shared.Stage() as inner: _after(inner.result, ready)


def _read_after(read: shared.Read, ready: SSAValue) -> shared.Read:
    new = shared.Read(read.buffer, read.result.type, [*read.after, ready])
    if read.conflicts is not None: new.properties["conflicts"] = read.conflicts
    return new


def _at_once(copy: shared.Copy) -> None:
    """A copy that nothing overlaps with: issued and waited for here."""
    new = shared.CopyAsync(copy.array, copy.offsets, copy.buffer, copy.extents.get_values(), copy.mask, copy.other)
    new.properties |= {k: copy.properties[k] for k in ("vector", "threads") if k in copy.properties}
    buffer = copy.buffer
    before(copy, new)
    ready = before(copy, shared.WaitCopies([new.token], 0)).ready
    erase(copy)
    for use in list(buffer.uses):
        if isinstance(use.operation, shared.Read): replace(use.operation, _read_after(use.operation, ready))
