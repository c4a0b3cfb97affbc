"""schedule-warpgroups: level 3 to level 4. Tokens, which are data flow, become what the hardware
counts.

With one role, all warps of the block do everything; a token is a commit group of cp.async, a wait
for tokens is a wait for all but the newest groups, and loops no longer carry tokens:

    %t = tile.copy_async %a[%m, %k] %s …              tile.cp_async %a[%m, %k] %s …
    %u = tile.join_tokens [%t, %v]              ->    tile.cp_commit
    %r = tile.wait_copies [%u] {pending = 1}          tile.cp_wait 1
    %x = tile.read %s after(%r)                       %x = tile.read %s

The blocks of a cluster exchange data by mbarriers (warpgroups/exchange.py). Other barriers of one
role are inserted by insert-synchronization. With a producer and consumers, warpgroups/roles.py
splits the program in roles and makes the rings' tokens mbarriers.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import before, erase, narrow_while, rebuild_for, replace
from tkc.ir.types import TokenType
from tkc.ir.values import operations_in, terminator_of
from tkc.passes import PassContext
from tkc.passes.order_launches import placed
from tkc.passes.warpgroups.exchange import exchange
from tkc.passes.warpgroups.roles import split


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        if context.plan is not None and context.plan.roles != "one":
            split(kernel, context.plan, context)
        else:
            exchange(kernel, context)
            _replace_tokens(kernel)
        placed(kernel)
        kernel.set_integer("level", 4)


def _replace_tokens(kernel: tile.Kernel) -> None:
    """Copies and waits as threads of one role have them: in groups, without tokens."""
    for op in list(kernel.walk()):
        match op:
            case shared.Read() if op.after:
                replace(op, _without_tokens(op))
            case shared.WaitCopies():
                before(op, threads.CpWait(op.pending.value.data))
                _drop(op)
            case shared.JoinTokens():
                before(op, threads.CpCommit())
                _drop(op)
            case shared.CopyAsync():
                _copy(op)
    for loop in operations_in(kernel, scf.ForOp):
        _forget_tokens(loop)
    for while_ in operations_in(kernel, scf.WhileOp):
        _pass_none(while_)
    for op in list(kernel.walk()):
        if isinstance(op, shared.NoToken):
            erase(op)


def _without_tokens(read: shared.Read) -> shared.Read:
    new = shared.Read(read.buffer, read.result.type)
    if read.conflicts is not None:
        new.properties["conflicts"] = read.conflicts
    return new


def _copy(op: shared.CopyAsync) -> None:
    """A copy whose token is not joined with others is a group of its own."""
    new = threads.CpAsync(
        op.array, op.offsets, op.buffer, op.extents.get_values(), op.mask, op.other
    )
    new.properties |= {k: op.properties[k] for k in ("vector", "threads") if k in op.properties}
    before(op, new)
    if not any(isinstance(use.operation, shared.JoinTokens) for use in op.token.uses):
        before(op, threads.CpCommit())
    _drop(op)


def _drop(op: Operation) -> None:
    """Erases an operation whose token only waits, yields and loops still name; they lose it as they
    are rewritten.
    """
    placeholder = before(op, shared.NoToken()).token
    for result in op.results:
        result.replace_all_uses_with(placeholder)
    erase(op)


def _pass_none(loop: scf.WhileOp) -> None:
    """Likewise of a while, whose test passes them on."""
    keep = [i for i, v in enumerate(loop.arguments) if not isinstance(v.type, TokenType)]
    if len(keep) == len(loop.arguments):
        return
    test, body = loop.before_region.block, loop.after_region.block
    for i in range(len(loop.arguments)):
        if i in keep:
            continue
        for value in (test.args[i], body.args[i], loop.results[i]):
            value.replace_all_uses_with(before(loop, shared.NoToken()).token)
        terminator_of(body).operands[i] = before(terminator_of(body), shared.NoToken()).token
    narrow_while(loop, keep)


def _forget_tokens(loop: scf.ForOp) -> None:
    keep = [i for i, v in enumerate(loop.iter_args) if not isinstance(v.type, TokenType)]
    if len(keep) == len(loop.iter_args):
        return
    terminator = terminator_of(loop.body.block)
    for i, _value in enumerate(loop.iter_args):
        if i in keep:
            continue
        argument = loop.body.block.args[1 + i]
        argument.replace_all_uses_with(before(loop, shared.NoToken()).token)
        loop.results[i].replace_all_uses_with(before(loop, shared.NoToken()).token)
        terminator.operands[i] = before(terminator, shared.NoToken()).token
    rebuild_for(loop, keep)
