"""Contiguity of index and pointer tiles: how far neighbours differ by 1, and how far by nothing.

Along one axis:

    %i = tile.arange 0 : tile<1024xi32>        run 1024, same 1, divisor 0 (starts at 0)
    %b = tile.splat (%pid * 1024)              run 1, same 1024, divisor 1024
    %i + %b                                    run 1024, same 1, divisor 1024
    (%i + %b) < splat(%n)                      same 16 where n is a multiple of 16: a vector of 16
                                               is inside or outside as a whole

`run` and `same` are of aligned groups: coordinates [g·run, (g + 1)·run) hold v, v + 1, …, and the v
of each group is a multiple of `divisor` (0: of everything). Where numbers wrap, what is left of a
run are the powers of two it is aligned to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import gcd

from xdsl.dialects import scf
from xdsl.ir import Block as BasicBlock
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, tile
from tkc.ir.ranges import Overflow, Ranges, bounds
from tkc.ir.types import (
    PointerType,
    TileType,
    bits,
    element_of,
    is_integer,
    pointee_of,
)
from tkc.ir.values import array_type, operands_first, tile_type, yielded_by


@dataclass(frozen=True)
class Along:
    """Of one axis: lengths of runs and of constant stretches, and a divisor of the first element of
    each.
    """

    run: int = 1
    same: int = 1
    divisor: int = 1

    def at(self, run: int) -> int:
        """A divisor of the first elements of groups of `run`, a divisor of this run."""
        return gcd(self.divisor, run) if self.run > run else self.divisor

    def join(self, other: Along) -> Along:
        run = gcd(self.run, other.run)
        return Along(run, gcd(self.same, other.same), gcd(self.at(run), other.at(run)))


def contiguity(
    value: SSAValue,
    axis: int,
    ranges: Ranges,
    assumed: dict[SSAValue, Along] | None = None,
    seen: dict[tuple[SSAValue, int], Along] | None = None,
) -> Along:
    """What is known of a tile along an axis. (A scalar is the same everywhere.) Pointers count in
    elements. seen: what was found out so far, under the same assumptions; where there are none,
    `ranges` keeps it.
    """
    if not assumed:
        assumed, seen = {}, ranges.contiguity
    elif seen is None:
        seen = {}
    if value in assumed:
        return assumed[value]
    for at, a in operands_first((value, axis), _asked, seen):
        if at not in assumed:
            seen[at, a] = _along(at, a, ranges, assumed, seen)
    return seen[value, axis]


def all_differ(value: SSAValue) -> bool:
    """Whether the elements of a tile of numbers or pointers are known to differ from one another.
    (A scalar is one.)
    """
    t = value.type
    if not isinstance(t, TileType):
        return True
    along = [axis for axis, extent in enumerate(t.extents) if extent > 1]
    if len(along) > 1:
        return False
    ranges = Ranges()
    return all(contiguity(value, axis, ranges).run == t.extents[axis] for axis in along)


def _asked(at: tuple[SSAValue, int]) -> list[tuple[SSAValue, int]]:
    """What of a tile's operands is to be known first: without it a chain of operations would be a
    chain of calls."""
    value, axis = at
    match value.owner:
        case ew.Elementwise() | ew.Select() | ew.Cast() | ew.PointerAdd() | tile.Multiple():
            return [(v, axis) for v in value.owner.operands if isinstance(v.type, TileType)]
        case tile.Transpose():
            return [(value.owner.arg, value.owner.permutation.get_values()[axis])]
        case scf.ForOp():
            return [(value.owner.iter_args[value.owner.results.index(value)], axis)]
    return []


def _along(
    value: SSAValue,
    axis: int,
    ranges: Ranges,
    assumed: dict[SSAValue, Along],
    seen: dict[tuple[SSAValue, int], Along],
) -> Along:
    t = value.type
    if not isinstance(t, TileType):
        return Along(1, 1, _divisor_of_scalar(value, ranges))
    if isinstance(value, BlockArgument):
        return _carried(value, axis, ranges, assumed)
    extent = t.extents[axis]

    def of(v: SSAValue, a: int = axis) -> Along:
        return contiguity(v, a, ranges, assumed, seen)

    match value.owner:
        case tile.Constant() as op:
            return Along(1, extent, abs(int(op.number)) if isinstance(op.number, int) else 1)
        case tile.Arange() as op:
            return Along(extent, 1, abs(op.start.value.data))
        case tile.Multiple() as op:
            return _with_promise(op, of(op.arg), extent)
        case ew.Cast() as op:
            return _cast(op, of(op.arg), ranges)
        case ew.PointerAdd() as op:
            return _sum(of(op.pointer), of(op.offset))
        case ew.Select() as op:
            condition = op.condition
            where = of(condition).same if isinstance(condition.type, TileType) else extent
            found = of(op.if_true).join(of(op.if_false))
            return Along(run := gcd(found.run, where), gcd(found.same, where), found.at(run))
        case ew.Elementwise() as op:
            return _elementwise(op, [of(a) for a in op.args], extent, ranges)
        case scf.ForOp() as loop:
            return of(loop.body.block.args[1 + loop.results.index(value)])
        case Operation() as op:
            return _shape(op, axis, extent, of)
    return Along()


def _divisor_of_scalar(value: SSAValue, ranges: Ranges) -> int:
    """Of an address in elements, or of an integer."""
    if isinstance(value.type, PointerType):
        return _alignment(value, ranges)
    known = ranges.of(value)
    return 1 if known is None else known.divisor


def _shape(op: Operation, axis: int, extent: int, of: Callable[..., Along]) -> Along:
    """What an operation that moves elements shows along an axis of its result."""
    match op:
        case tile.Splat():
            return Along(1, extent, of(op.arg, 0).divisor)
        case tile.Broadcast():
            found = of(op.arg)
            repeated = tile_type(op.arg).extents[axis] == 1
            return Along(1, extent, found.divisor) if repeated else found
        case tile.Reshape():
            return _reshaped(op, axis, extent, of)
        case tile.Transpose():
            return of(op.arg, op.permutation.get_values()[axis])
        case tile.Slice() if op.steps[axis] == 1:
            return _moved(of(op.arg), op.offsets.get_values()[axis])
        case tile.Concat():
            parts, begin = [], 0
            for part in op.args:
                parts.append(_moved(of(part), begin))
                if axis == op.axis.value.data:
                    begin += tile_type(part).extents[axis]
            return reduce(Along.join, parts)
        case shared.Convert():
            return of(op.arg)
    return Along()


def _elementwise(op: ew.Elementwise, args: list[Along], extent: int, ranges: Ranges) -> Along:
    name, element = op.fn.name, element_of(op.result.type)
    if name in ("floordiv", "mod"):
        by = ranges.of(op.args[1])
        if by is None or by.lo < 0:
            name = ""  # by a negative number groups end where they began
    found = _function(name, args, extent)
    wraps = (
        name in ("add", "sub", "mul")
        and is_integer(element)
        and ranges.overflow(op) is Overflow.WRAPS
    )
    return _wrapped(found, bits(element)) if wraps else found


def _function(name: str, args: list[Along], extent: int) -> Along:
    a, b = args[0], args[-1]
    same = gcd(*(x.same for x in args))
    match name:
        case "add":
            return _sum(a, b)
        case "sub":
            return Along(run := gcd(a.run, b.same), same, gcd(a.at(run), b.at(1)))
        case "mul":
            return Along(1, same, a.at(1) * b.at(1))
        case "lt" | "ge":
            return Along(1, max(same, _step(a, b)), 1)
        case "gt" | "le":
            return Along(1, max(same, _step(b, a)), 1)
        case "floordiv" if b.same == extent and b.divisor:
            return Along(1, max(same, gcd(a.run, a.divisor, b.divisor)), 1)
        case "mod" if b.same == extent and b.divisor:
            return Along(run := gcd(a.run, a.divisor, b.divisor), same, gcd(a.at(run), b.divisor))
    return Along(1, same, gcd(*(x.at(1) for x in args)) if name in ("min", "max") else 1)


def _cast(op: ew.Cast, found: Along, ranges: Ranges) -> Along:
    source, wanted = element_of(op.arg.type), element_of(op.result.type)
    if not is_integer(source) or not is_integer(wanted):
        return Along(1, found.same)  # a float rounds
    whole = bounds(wanted)
    fits = whole is not None and whole.holds(ranges.known(op.arg))
    return found if fits else _wrapped(found, bits(wanted))


def _wrapped(found: Along, width: int) -> Along:
    """Of numbers modulo 2^width."""
    run = gcd(found.run, found.divisor, 1 << width)
    return Along(run, found.same, gcd(found.at(run), 1 << width))


def _sum(a: Along, b: Along) -> Along:
    run = max(gcd(a.run, b.same), gcd(b.run, a.same))
    return Along(run, gcd(a.same, b.same), gcd(a.at(run), b.at(run)))


def _moved(found: Along, by: int) -> Along:
    """Groups that begin, or end, at a multiple of `by`."""
    run = gcd(found.run, by)
    return Along(run, gcd(found.same, by), found.at(run))


def _step(a: Along, b: Along) -> int:
    """`a < b` with a running and b constant changes only at multiples of what divides both."""
    return gcd(a.run, b.same, a.divisor, b.divisor)


def _reshaped(op: tile.Reshape, axis: int, extent: int, of) -> Along:
    """Extents of 1 that come or go."""
    old, new = tile_type(op.arg).extents, tile_type(op.result).extents
    if [n for n in old if n > 1] != [n for n in new if n > 1]:
        return Along()
    if extent == 1:  # what divides every element does so along any axis
        return Along(1, 1, max((of(op.arg, a).at(1) for a in range(len(old))), default=1))
    return of(op.arg, [a for a, n in enumerate(old) if n > 1][sum(n > 1 for n in new[:axis])])


def _carried(
    value: BlockArgument, axis: int, ranges: Ranges, assumed: dict[SSAValue, Along]
) -> Along:
    loop = value.block.parent_op()
    if not isinstance(loop, scf.ForOp) or value.index == 0 or len(assumed) > 4:
        return Along()
    guess = contiguity(loop.iter_args[value.index - 1], axis, ranges, assumed)
    for _ in range(4):
        after = guess.join(
            contiguity(
                yielded_by(value.block)[value.index - 1],
                axis,
                ranges,
                {**assumed, value: guess},
            )
        )
        if after == guess:
            return guess
        guess = after
    return Along()


def _alignment(
    pointer: SSAValue, ranges: Ranges, assumed: dict[SSAValue, int] | None = None
) -> int:
    """A divisor, in elements, of an address. assumed: those of pointers that loops carry."""
    assumed = assumed or {}
    if pointer in assumed:
        return assumed[pointer]
    match pointer.owner:
        case tile.Pointer():
            size = bits(pointee_of(pointer.type)) // 8
            return array_type(pointer.owner.arg).facts.align // size or 1
        case ew.PointerAdd():
            return gcd(
                _alignment(pointer.owner.pointer, ranges, assumed),
                ranges.known(pointer.owner.offset).divisor,
            )
        case tile.Multiple():
            return _lcm(_alignment(pointer.owner.arg, ranges, assumed), _promised(pointer.owner))
        case scf.ForOp() as loop:
            carried = loop.body.block.args[1 + loop.results.index(pointer)]
            return _alignment(carried, ranges, assumed)
        case BasicBlock() as body if isinstance(body.parent_op(), scf.ForOp):
            return _alignment_in_loop(pointer, body, ranges, assumed)
    return 1


def _alignment_in_loop(
    pointer: SSAValue, body: BasicBlock, ranges: Ranges, assumed: dict[SSAValue, int]
) -> int:
    """Of a pointer that a loop carries: of where it begins, and of what moves it."""
    loop, number = body.parent_op(), body.args.index(pointer) - 1
    assert isinstance(loop, scf.ForOp)
    found = _alignment(loop.iter_args[number], ranges, assumed)
    while found > 1:
        moved = _alignment(yielded_by(body)[number], ranges, {**assumed, pointer: found})
        if gcd(found, moved) == found:
            break
        found = gcd(found, moved)
    return found


def _with_promise(op: tile.Multiple, found: Along, extent: int) -> Along:
    promised = _promised(op)
    if isinstance(element_of(op.arg.type), PointerType) and found.run < extent:
        promised = gcd(promised, found.run)  # it is of whole rows
    return Along(found.run, found.same, _lcm(found.divisor, promised))


def _promised(op: tile.Multiple) -> int:
    """What is promised, of pointers in elements."""
    divisor, element = op.divisor.value.data, element_of(op.arg.type)
    if isinstance(element, PointerType):
        return max(1, divisor * 8 // bits(pointee_of(element)))
    return divisor


def _lcm(a: int, b: int) -> int:
    return a * b // (gcd(a, b) or 1)
