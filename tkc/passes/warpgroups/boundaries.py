"""Fused boundaries: the first dot of a block's next program is issued before this one's results leave. The last step of roles.py for plans with `fuse`.

    consumer, for each program:                        S of the first program
      wait Q, K;  S = q·k[0]                           for each program:
      softmax, loop, last dot          ->                wait for S;  softmax, loop, last dot
      results leave                                      claim;  wait Q, K;  S = q·k[0]              runs while
      claim the next program                             results leave                              the results leave
                                                       wait for S

The dot is issued once more than there are programs, whoever is next. The producer therefore loads a head for one program more; it lies outside the arrays, so that tensor maps
fill it with zeros, and nobody looks at its scores.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Operation

from tkc.errors import VerifyError
from tkc.ir import threads
from tkc.ir.rewrite import after, before, defining_slice, erase, rebuild_while


def fuse(producer: threads.Role, consumer: threads.Role) -> None:
    _one_more(_programs(producer))
    _ahead(_programs(consumer))


def _programs(role: threads.Role) -> scf.WhileOp: return next(op for op in role.body.block.ops if isinstance(op, scf.WhileOp))


def _one_more(loop: scf.WhileOp) -> None:
    """The producer: what it loads for a program before any loop, once more after the last program."""
    body = loop.after_region.block
    ops = list(body.ops)
    end = max(i for i, op in enumerate(ops) if isinstance(op, threads.TmaLoad))
    mapping = dict(zip(body.args, loop.results))
    last: Operation = loop
    for op in ops[:end + 1]:
        if isinstance(op, threads.NextProgram): continue
        if op.regions: raise VerifyError("fused boundaries: a program begins with more than its first dot's copies")
        last = after(last, op.clone(mapping))


def _ahead(loop: scf.WhileOp) -> None:
    """The consumers."""
    body = loop.after_region.block
    dot = next(op for op in body.ops if isinstance(op, threads.DotAsync))
    fence, commit = dot.prev_op, dot.next_op
    ops = list(body.ops)
    waits = [op for op in ops[:ops.index(dot)] if isinstance(op, threads.MbarrierWait)]
    slice_ = set(defining_slice([v for op in (dot, *waits) for v in op.operands], body))
    head = [op for op in ops[:ops.index(commit) + 1] if op in slice_ or op in waits or op in (fence, dot, commit)]

    def copy(mapping: dict, anchor: Operation) -> threads.DotAsync:
        for op in head: before(anchor, op.clone(mapping))
        return mapping[dot.result].owner
    first = copy(dict(zip(body.args, loop.arguments)), loop)
    fetched = max(i for i, op in enumerate(ops) if isinstance(op, threads.Fetch))
    place = next(op for op in ops[fetched:] if isinstance(op, threads.MbarrierArrive)).next_op      # behind the last dots, where the next program's number and place are known
    ahead = copy(dict(zip(body.args, body.last_op.operands)), place)
    loop = rebuild_while(loop, [first.result])
    body = loop.after_region.block
    body.last_op.operands = [*body.last_op.operands, ahead.result]
    dot.result.replace_all_uses_with(body.args[-1])
    for op in (commit, dot, fence, *waits): erase(op)
    after(loop, threads.DotWait(0, [loop.results[-1]]))
