"""The dynamic tile scheduler: blocks claim their programs one by one from a counter. The part of
schedule-programs for plans with `dynamic_schedule`.

    scf.while (%t = tile.identity cluster) while %t < %programs {
      …
      yield tile.next_program %programs
    }

Where programs differ in length, a block that had a long one takes fewer. Where a loop's end is
loaded (a table of ragged groups), programs are claimed in the order of the raster.

So are programs without dots that stream through blocks. Their loop carries as many program numbers
as the ring has stages beside its own, so that the copies of the next ones can be issued; a block
begins with that many programs which it need not claim:

    scf.while (%t, %u = tile.identity cluster, %t + tile.identity clusters) while %t < %programs {
      %v = tile.next_program %programs                    issued at once, needed at the end
      …
      yield %u, %v + tile.identity clusters
    }

What a program loads by its ids alone (where its rows begin, its trip count) is carried with its
number: the warp that claims the program loads it, and the others do not wait for memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import Builder, before, clone_slice, defining_slice, replace, stamp
from tkc.ir.threads import NextProgram
from tkc.ir.types import TileType
from tkc.ir.values import is_side_effect_free, terminator_of
from tkc.passes.analysis.alias import unchanged
from tkc.passes.analysis.program_axes import program_axes


@dataclass(frozen=True)
class Lookup:
    """What a program looks up by its place alone: loads, and the operations that they need,
    themselves among them, beside the program's ids.
    """

    loads: list[tile.Load]
    needed: list[Operation]
    ids: list[tile.ProgramId]

    @staticmethod
    def of(
        kernel: tile.Kernel,
        inside: list[Operation],
        ids: list[tile.ProgramId],
        members: int,
        overlaps: tuple[tuple[int, ...], ...],
    ) -> Lookup:
        """The 32-bit numbers that a program loads from arrays which the kernel does not change."""
        by_place = _known_by_place(kernel, inside, overlaps)
        # each of a tile group's programs looks up its own
        loads = [
            op
            for op in inside
            if op in by_place
            and isinstance(op, tile.Load)
            and not (members > 1 and 0 in program_axes([op.result]))
        ]
        return Lookup(
            loads,
            [
                op
                for op in defining_slice([op.result for op in loads], kernel.body.block)
                if op in inside and not isinstance(op, tile.ProgramId)
            ],
            ids,
        )

    def at(
        self, build: Builder, place: list[SSAValue], number: SSAValue, total: SSAValue
    ) -> list[SSAValue]:
        """What is loaded for the program of that place and number; zeros where there is none."""
        if not self.loads:
            return []
        yes, no = Block([end := scf.YieldOp()]), Block()
        mapping: dict[SSAValue, SSAValue] = {
            op.result: place[op.axis.value.data] for op in self.ids
        }
        clone_slice(self.needed, mapping, end)
        end.operands = [mapping[op.result] for op in self.loads]
        zeros = [tile.Constant(0, i32) for _ in self.loads]
        no.add_ops([*zeros, scf.YieldOp(*zeros)])
        return list(
            build.do(
                scf.IfOp(build.lt(number, total), [i32] * len(self.loads), Region(yes), Region(no))
            ).results
        )


def _known_by_place(
    kernel: tile.Kernel, inside: list[Operation], overlaps: tuple[tuple[int, ...], ...]
) -> set[Operation]:
    """What follows from a program's ids, and from what stands before the programs, alone."""
    found: set[Operation] = set()
    for op in inside:
        known = all(v.owner in found or v.owner not in inside for v in op.operands)
        if known and (_is_scalar(op) or _looks_up(op, kernel, overlaps)):
            found.add(op)
    return found


def _is_scalar(op: Operation) -> bool:
    """Whether an operation only computes scalars."""
    return (
        not op.regions
        and is_side_effect_free(op)
        and not any(isinstance(r.type, TileType) for r in op.results)
    )


def _looks_up(op: Operation, kernel: tile.Kernel, overlaps: tuple[tuple[int, ...], ...]) -> bool:
    """Whether an operation loads a 32-bit number that the kernel does not change."""
    return (
        isinstance(op, tile.Load)
        and op.result.type == i32
        and op.mask is None
        and unchanged(op, kernel, overlaps)
    )


def claimed(
    first: SSAValue,
    total: SSAValue,
    place_of: Callable[[Builder, SSAValue], list[SSAValue]],
    lookup: Lookup,
    inside: list[Operation],
    end: Operation,
) -> tuple[Block, list[SSAValue]]:
    """The body of a loop that carries a program's ids beside its number, and what it looks up, so
    that a producer works it out for all; and the ids in it.
    """

    def known(build: Builder, number: SSAValue) -> list[SSAValue]:
        return [*(place := place_of(build, number)), *lookup.at(build, place, number, total)]

    body, following = _while(first, total, known(Builder(end), first), inside, end)
    stop = terminator_of(body)
    stop.operands = [following, *known(Builder(stop), following)]
    carried: list[SSAValue] = list(body.args[1:])
    found = [carried.pop() for _ in lookup.loads]
    for op, value in zip(lookup.loads, reversed(found), strict=True):
        replace(op, [value])
    return body, carried


def claimed_ahead(
    first: SSAValue,
    total: SSAValue,
    step: SSAValue,
    ahead: int,
    inside: list[Operation],
    end: Operation,
) -> Block:
    """The body of a loop that carries the numbers of the next programs too, so that their blocks
    can be asked for; a block starts with as many that it need not claim.
    """
    build, numbers = Builder(end), [first]
    for _ in range(ahead):
        numbers.append(build.add(numbers[-1], step))
    body, following = _while(first, total, numbers[1:], inside, end)
    stop, coming = terminator_of(body), body.args[1:]
    for _ in range(ahead):
        following = Builder(stop).add(following, step)
    stop.operands = [*coming, following]
    return body


def _while(
    first: SSAValue,
    total: SSAValue,
    beside: list[SSAValue],
    inside: list[Operation],
    end: Operation,
) -> tuple[Block, SSAValue]:
    """The body of a loop, before an end, while there are programs: it carries the program's number
    and what is known beside it, claims the next one, and is to yield that one's; and the claim.
    """
    test, body = (Block(arg_types=[i32] * (1 + len(beside))) for _ in range(2))
    more = CLASSES["lt"](test.args[0], total)
    test.add_ops([more, scf.ConditionOp(more.result, *test.args)])
    kinds = [v.type for v in test.args]
    loop = before(end, scf.WhileOp([first, *beside], kinds, Region(test), Region(body)))
    claim = stamp(NextProgram(total), loop)
    body.add_ops([claim, *inside, stamp(scf.YieldOp(), loop)])
    return body, claim.result
