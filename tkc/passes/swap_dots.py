"""swap-dots: a dot as its own transpose, where the plan says so: (bᵀ aᵀ)ᵀ.

wgmma's left operand may be in registers, its right one not; so a right operand that is computed
(weights of 8 bits, made bfloat16) has to become the left one. The transposes move to where they
cost nothing: through element-wise operations down to the loads, whose blocks are in shared memory
as they are, and up to the uses of the accumulator, where they choose registers:

    for k, acc:                                            for k, accᵀ:
      w = cast(load b)                                       wᵀ = cast((load b)ᵀ)
      acc = dot(load a, w, acc)                     ->       accᵀ = dot(wᵀ, (load a)ᵀ, accᵀ)
    store acc                                              store (accᵀ)ᵀ
"""

from __future__ import annotations

import itertools

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, SSAValue

from tkc.ir import tile
from tkc.ir.plan import number_of
from tkc.ir.rewrite import after, before, erase, rebuild_for
from tkc.ir.values import block_of, index_of, operations_in, parent_of, terminator_of
from tkc.passes import PassContext
from tkc.passes.match_heights import Transposes


def run(module: ModuleOp, context: PassContext) -> None:
    """Swaps the dots that the plan says."""
    if context.plan is None:
        return
    for dot in operations_in(module, tile.Dot):
        chosen = context.plan.dot(dot)
        if chosen is not None and chosen.swap:
            number = number_of(dot)
            _swap(dot)
            context.decisions.append(f"swap-dots: dot {number} is computed as its transpose")


def _swap(dot: tile.Dot) -> None:
    """A dot whose accumulator only goes round its loop, and may go round those about it."""
    index = index_of(dot.acc) - 1
    carriers = _carriers(parent_of(dot, scf.ForOp), index)
    outermost, at = carriers[-1]
    tiles = Transposes()
    start = tiles.of(outermost.iter_args[at])
    for i, (loop, at) in reversed([*enumerate(carriers)]):
        carriers[i] = rebuild_for(loop, range(len(loop.iter_args)), [start]), at
        around = carriers[i][0].body.block
        start = around.args[-1]
        start.name_hint = around.args[1 + at].name_hint
    new = tile.Dot(tiles.of(dot.b), tiles.of(dot.a), start, dot.precision.data)
    new.attributes |= dot.attributes
    before(dot, new)
    _yield_also(block_of(new), index, new.result)
    erase(dot)
    for (inner, _), (outer, at) in itertools.pairwise(carriers):
        _yield_also(outer.body.block, at, inner.results[-1])
    outermost, index = carriers[-1]
    whole = after(outermost, tile.Transpose(outermost.results[-1], (1, 0))).result
    outermost.results[index].replace_all_uses_with(whole)
    for inner, at in carriers:  # nothing uses what each carried before, or what it gave
        rebuild_for(inner, [i for i in range(len(inner.results)) if i != at])


def _carriers(loop: scf.ForOp, index: int) -> list[tuple[scf.ForOp, int]]:
    """The loops that carry a sum, each with its number among those carried, from the inside."""
    carriers = [(loop, index)]
    while isinstance(outer := loop.parent_op(), scf.ForOp):
        start, body = loop.iter_args[index], outer.body.block
        if not isinstance(start, BlockArgument) or start.block is not body or start.index == 0:
            break
        given = loop.results[index]
        if not (start.has_one_use() and given.has_one_use()):
            break
        if terminator_of(body).operands[start.index - 1] is not given:
            break
        loop, index = outer, start.index - 1
        carriers.append((loop, index))
    return carriers


def _yield_also(body: Block, index: int, value: SSAValue) -> None:
    """Also yields `value`, and what is carried at `index` as it came."""
    end = terminator_of(body)
    yielded = list(end.operands)
    yielded[index] = body.args[1 + index]
    end.operands = [*yielded, value]
