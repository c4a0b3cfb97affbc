"""Straight-line tails: where a branch runs under dots, the rest of the iteration, from the last
dots before it on, is cloned into both sides. The last step of roles.py.

    dots of s                              dots of s
    dots of o                              … = scf.if %full {
    dot_wait 1                               dots of o;  dot_wait 1;  p = exp2(%s …);  dot_wait 0
    %t = scf.if %full { yield %s }           …;  yield p, …
         else { masked s }           ->    } else {
    p = exp2(%t …);  dot_wait 0;  …          dots of o;  dot_wait 1;  %t = masked s;  p = exp2(%t …)
    yield p, …                               dot_wait 0;  …;  yield p, …
                                           }
                                           yield …

The assembler moves a wait for dots up within its block of straight-line code, as far as the
arithmetic around it lets it. In one block with the dots, a part of the exponentials runs before the
wait, under the dots; behind a branch all of them wait. Cloning only the wait before, or only the
rest behind the branch, does not help: the assembler counts from the dots. The other side is seldom
taken.

Not where dots run on into the next iteration: the registers that they read would be those of both
ways, where these join.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import threads
from tkc.ir.rewrite import before, clone_slice, defining_slice, erase, stamp
from tkc.ir.types import PendingType, TileType
from tkc.ir.values import block_of, is_side_effect_free, operations_in, terminator_of


def straighten(role: threads.Role) -> None:
    for loop in operations_in(role, scf.ForOp):
        if (found := _under_dots(loop)) is not None:
            _write_twice(*found)


def _under_dots(loop: scf.ForOp) -> tuple[threads.Fence, scf.IfOp] | None:
    """A branch that leaves a tile as it is or computes another, while dots of the iteration are
    still under way, and where those begin. What it asks is known by then: it does not follow from
    these dots, or from what warps hand one another behind them.
    """
    begun, in_flight = None, False
    if any(isinstance(v.type, PendingType) for v in loop.iter_args):
        return None
    for op in loop.body.block.ops:
        match op:
            case threads.Fence() if op.kind.data == "dot":
                begun = op
            case threads.DotWait():
                in_flight = op.pending.value.data > 0
            case scf.IfOp() if (
                begun is not None
                and in_flight
                and len(op.results) == 1
                and isinstance(op.results[0].type, TileType)
                and any(len(region.block.ops) == 1 for region in op.regions)
            ):
                return (begun, op) if _is_known(op.cond, begun) else None
    return None


def _is_known(condition: SSAValue, begun: Operation) -> bool:
    """Whether what a condition follows from behind an operation may stay where it is, while what
    else stands there comes later.
    """
    needed = defining_slice([condition], block_of(begun))
    return all(is_side_effect_free(op) for op in needed if begun.is_before_in_block(op))


def _write_twice(begun: threads.Fence, branch: scf.IfOp) -> None:
    block, end = block_of(branch), terminator_of(block_of(branch))
    ops = list(block.ops)
    first, middle = ops.index(begun), ops.index(branch)
    head, rest = ops[first:middle], ops[middle + 1 : -1]
    # what the branch requests is known before it
    early = {op for op in defining_slice([branch.cond], block)} & set(head)
    head = [op for op in head if op not in early]
    inside = {r for op in (*head, branch, *rest) for r in op.results}
    yielded = [i for i, v in enumerate(end.operands) if v in inside]
    regions = []
    for region in branch.regions:
        own = Block()
        mapping: dict[SSAValue, SSAValue] = {}
        last = terminator_of(region.block)
        own.add_op(anchor := stamp(scf.YieldOp(), branch))
        clone_slice(head, mapping, anchor)
        clone_slice([op for op in region.block.ops if op is not last], mapping, anchor)
        mapping[branch.results[0]] = mapping.get(last.operands[0], last.operands[0])
        clone_slice(rest, mapping, anchor)
        anchor.operands = [mapping.get(end.operands[i], end.operands[i]) for i in yielded]
        regions.append(Region(own))
    chosen = before(
        branch,
        scf.IfOp(branch.cond, [end.operands[i].type for i in yielded], regions[0], regions[1]),
    )
    for i, result in zip(yielded, chosen.results, strict=False):
        result.name_hint = end.operands[i].name_hint
        end.operands[i] = result
    for op in (*head, branch, *rest)[::-1]:
        erase(op)
