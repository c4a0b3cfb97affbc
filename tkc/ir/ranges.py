"""Ranges: what values an integer can have, and what divides it. An analysis; it changes nothing.

    %p = tile.program_id 0        0 … 2³¹ − 2
    %m = tile.mul %p, 128         0 …          a multiple of 128
    %c = tile.lt %i, %n           0 … 1        (1 … 1 where it always holds)

A tile's range holds for each of its elements. `Ranges().of(value)` follows definitions backward
and stores what it found, so make a new one after changing the IR. `divisor(value)` is its short
form for the divisor of one value.

Overflow. Unsigned arithmetic wraps, and so does that of other than 32 bits: a result that does not
fit has no known range. Signed sums and products of indices (programs, extents, loop counters,
known constants up to 2¹⁶) are offsets, which are mathematical integers: level 0 refuses a program
in which they overflow. So a result beyond the type is cut off at the type's bounds instead of
forgotten, unless numbers known to be small (up to 2²⁴) have it, or no offset is computed of the
product that it is: those are hashed. What a kernel is given or loads is data, and may be any number
(within bounds, where the launch or the program gives some): an offset that it is part of does not
overflow (`Ranges.offset`), another sum may (`Ranges.overflow`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from math import gcd, inf, lcm
from typing import Any

from xdsl.dialects import scf
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, threads, tile
from tkc.ir.offset_uses import makes_offsets
from tkc.ir.types import TileType, bits, element_of, is_bool, is_float, is_integer, is_unsigned
from tkc.ir.values import (
    array_type,
    made_of,
    operands_first,
    owner_op,
    reached,
    tile_type,
    yielded_by,
)

_MAX_INDEX_STEP = 1 << 16  # what multiplies by more is a hash function
_MAX_SMALL_NUMBER = 1 << 24
_MAX_DEPTH = 4
NORMAL = 2.0**-126  # the least normal float32
NONNEGATIVE = "nonnegative"  # attribute of a kernel: which integer arguments are at least 0
# the elements of the result are elements of the operand
_MOVES = (
    tile.Splat,
    tile.Broadcast,
    tile.Reshape,
    tile.Transpose,
    tile.Slice,
    tile.Extract,
    tile.Flip,
    tile.Sort,
    tile.Gather,
    shared.SortFirst,
    shared.Convert,
)
_COMPARISONS = {
    "lt": lambda a, b: (a.hi < b.lo, a.lo >= b.hi),
    "le": lambda a, b: (a.hi <= b.lo, a.lo > b.hi),
    "gt": lambda a, b: (a.lo > b.hi, a.hi <= b.lo),
    "ge": lambda a, b: (a.lo >= b.hi, a.hi < b.lo),
    "eq": lambda a, b: (a.lo == a.hi == b.lo == b.hi, a.hi < b.lo or b.hi < a.lo),
    "ne": lambda a, b: (a.hi < b.lo or b.hi < a.lo, a.lo == a.hi == b.lo == b.hi),
}


def _unviewed(value: SSAValue) -> SSAValue:
    """The scalar or tile whose elements a value repeats."""
    while isinstance(value.owner, (tile.Splat, tile.Broadcast, tile.Reshape, tile.Multiple)):
        value = value.owner.arg
    return value


def _parts_of_offset(value: SSAValue) -> Sequence[SSAValue]:
    """The integers that an offset is computed of, exactly as it is itself."""
    op = value.owner
    if isinstance(op, ew.Elementwise) and op.fn.name in ("add", "sub", "mul", "neg", "min", "max"):
        return op.args
    return (op.operands[0],) if isinstance(op, (ew.Cast, tile.Multiple, *_MOVES)) else ()


def _parts_of_float(value: SSAValue) -> Sequence[SSAValue]:
    """What a number of float type is computed of."""
    op = value.owner
    if isinstance(op, (ew.Elementwise, ew.Cast, *_MOVES)) and is_float(element_of(value.type)):
        return op.operands
    return ()


def least(value: SSAValue, deep: int = _MAX_DEPTH) -> float:
    """What a number or element of float type is at least where it is not NaN; -inf where that is
    not known.
    """
    op = _unviewed(value).owner
    if isinstance(op, tile.Constant):
        return float(op.number)
    if not isinstance(op, ew.Elementwise) or not deep:
        return -inf

    def of(x):
        return least(x, deep - 1)

    match op.fn.name:
        case "exp" | "exp2" | "abs" | "sqrt":
            return 0.0
        case "add":
            return sum(map(of, op.args))
        case "max" | "fmax":
            return max(map(of, op.args))
        case "mul" if op.args[0] is op.args[1] or all(of(x) >= 0 for x in op.args):
            return 0.0
    return -inf


def inverse(op: ew.Elementwise) -> bool:
    """Whether a quotient of float32 or less is a constant of at most 1 over what is nowhere small:
    the reciprocal needs no scaling, for where it would be subnormal so is the quotient.
    """
    t = element_of(op.result.type)
    return (
        is_float(t)
        and bits(t) <= 32
        and isinstance(one := _unviewed(op.args[0]).owner, tile.Constant)
        and abs(float(one.number)) <= 1
        and least(op.args[1]) >= NORMAL
    )


@dataclass(frozen=True)
class Range:
    """lo <= value <= hi, and divisor divides it (0: the value is 0, which everything divides).
    is_data: it is computed of what the kernel is given or loads, and no index.
    """

    lo: int
    hi: int
    divisor: int = 1
    is_data: bool = False

    @property
    def exact(self) -> int | None:
        return self.lo if self.lo == self.hi else None

    @property
    def is_small(self) -> bool:
        return self.lo >= -_MAX_SMALL_NUMBER and self.hi <= _MAX_SMALL_NUMBER

    def holds(self, other: Range) -> bool:
        return self.lo <= other.lo and other.hi <= self.hi

    def meet(self, other: Range) -> Range:
        """What is known of a number of which both are known."""
        return Range(
            max(self.lo, other.lo),
            min(self.hi, other.hi),
            lcm(self.divisor, other.divisor),
            self.is_data or other.is_data,
        )

    def join(self, other: Range) -> Range:
        return Range(
            min(self.lo, other.lo),
            max(self.hi, other.hi),
            gcd(self.divisor, other.divisor),
            self.is_data or other.is_data,
        )


class Overflow(IntEnum):
    """Whether a result is what mathematics says: always, where it is (part of) an offset, or only
    modulo 2ᵇⁱᵗˢ.
    """

    NEVER, UNLESS_OFFSET, WRAPS = range(3)


def repeated_scalar(value: SSAValue) -> SSAValue | None:
    """The scalar that all elements of a tile are, or that a value is; None of other tiles."""
    while isinstance(op := value.owner, _REPEATS):
        value = op.arg
    return None if isinstance(value.type, TileType) else value


_REPEATS = (tile.Splat, tile.Broadcast, tile.Reshape, tile.Transpose, tile.Multiple)


def exactly(n: int) -> Range:
    return Range(n, n, abs(n))


def bounds(t: Attribute) -> Range | None:
    """Everything an integer or truth type can hold; None for other types."""
    return _bounds(element_of(t))


@lru_cache(maxsize=64)
def _bounds(t: Attribute) -> Range | None:
    if is_bool(t):
        return Range(0, 1)
    if not is_integer(t):
        return None
    n = bits(t)
    return Range(0, 2**n - 1) if is_unsigned(t) else Range(-(2 ** (n - 1)), 2 ** (n - 1) - 1)


def divisor(value: SSAValue) -> int:
    """The largest known divisor of an integer (0: it is zero)."""
    found = Ranges().of(value)
    return 1 if found is None else found.divisor


class Ranges:
    def __init__(self, assumed: dict[SSAValue, Range] | None = None):
        self._assumed = assumed or {}
        self._memo: dict[SSAValue, Range | None] = dict(self._assumed)
        self._offsets: dict[SSAValue, Range | None] = {}
        # what tkc.ir.axis_info found out by these ranges
        self.contiguity: dict[tuple[SSAValue, int], Any] = {}

    def of(self, value: SSAValue) -> Range | None:
        """The range of an integer or truth value, scalar or tile; None for anything else."""
        if (known := self._memo.get(value)) is not None:
            return known
        for at in operands_first(value, self._begin, self._memo):
            whole = self._memo[at]
            if whole is not None:
                self._memo[at] = self._compute(at, whole)
        return self._memo[value]

    def _begin(self, value: SSAValue) -> Sequence[SSAValue]:
        """Remembers what a cycle would find of a value; gives the values to be computed first."""
        whole = self._memo[value] = bounds(value.type)
        if whole is None:
            return ()
        if isinstance(value, BlockArgument):
            if isinstance(value.block.parent_op(), scf.WhileOp):
                self._memo[value] = replace(whole, is_data=True)
            return ()
        match owner_op(value):
            case ew.Select() as op:
                return op._operands[1:]
            case scf.IfOp() as op:
                i = op.results.index(value)
                return [yielded_by(region.block)[i] for region in op.regions]
            case scf.ForOp() as op:
                return (op.iter_args[op.results.index(value)],)
            case op if isinstance(
                op, (ew.Elementwise, ew.Cast, tile.Multiple, tile.Concat, *_MOVES)
            ):
                return op._operands
        return ()

    def known(self, value: SSAValue) -> Range:
        """The range of an integer or truth value. Raises TypeError for anything else."""
        found = self.of(value)
        if found is None:
            raise TypeError(f"{value.type} has no range")
        return found

    def offset(self, value: SSAValue) -> Range | None:
        """The range of an integer that is used as an offset, which is no sum or product that
        overflowed; None for anything else.
        """
        for at in operands_first(value, _parts_of_offset, self._offsets):
            self._offsets[at] = self._as_offset(at)
        return self._offsets[value]

    def _as_offset(self, value: SSAValue) -> Range | None:
        found, whole, parts = self.of(value), bounds(value.type), _parts_of_offset(value)
        if found is None or whole is None or not parts:
            return found
        args = [self._offsets[part] for part in parts]
        if isinstance(op := value.owner, ew.Elementwise) and self.overflow(op) < Overflow.WRAPS:
            exact = _mathematical(op.fn.name, [a for a in args if a is not None])
            return found if exact is None else _cut_off(exact, whole).meet(found)
        if isinstance(op, ew.Elementwise) or args[0] is None:
            return found
        if isinstance(op, ew.Cast) and not whole.holds(args[0]):
            return found  # a cast to fewer bits, or to another sign, is meant to wrap
        return args[0].meet(found)

    def always(self, condition: SSAValue) -> bool | None:
        """True or False if a truth value is that, everywhere; None if it is open."""
        found = self.of(condition)
        return None if found is None or found.exact is None else bool(found.exact)

    def overflow(self, op: ew.Elementwise) -> Overflow:
        """Of a sum, a difference, a product, …: of integers."""
        args, whole = [self.known(a) for a in op.args], bounds(op.result.type)
        found = _mathematical(op.fn.name, args)
        if found is None or whole is None:
            return Overflow.WRAPS
        return _overflow(found, args, op, whole)

    def may_wrap(self, loop: scf.ForOp, steps: int = 1) -> bool:
        """Whether a loop's counter may wrap past a bound that is data, which may be any number:
        what follows so many steps behind its last iteration is beyond the counter's type. Extents
        and numbers of programs are not that large.
        """
        begin, end, step = map(self.known, (loop.lb, loop.ub, loop.step))
        is_any = end.is_data or end.exact is not None
        last = _last_before(end, begin, step)
        return is_any and last + steps * step.hi > _whole(loop.lb).hi

    def may_bound(self, value: SSAValue) -> bool:
        """Whether a scalar may be a number of elements: none of the sums and products that it is
        made of wraps on purpose, as those of a hash do.
        """
        parts = (at for at in reached([value], made_of) if is_integer(element_of(at.type)))
        made = (at.owner for at in parts)
        sums = (op for op in made if isinstance(op, ew.Elementwise) and op.fn.name in SUMS)
        return all(self.overflow(op) is not Overflow.WRAPS for op in sums)

    def _compute(self, value: SSAValue, whole: Range) -> Range:
        if isinstance(value, BlockArgument):
            return self._argument(value, whole)
        match owner_op(value):
            case ew.Select() as op:
                return self._joined([op.if_true, op.if_false])
            case ew.Cast() as op:
                return self._cast(op, whole)
            case ew.Elementwise() as op:
                return self._function(op, whole)
            case tile.Reduce() | tile.Histogram() as op:
                return self._reduced(op, whole)
            case tile.Concat() as op:
                return self._joined(op.args)
            case scf.IfOp() as op:
                i = op.results.index(value)
                return self._joined([yielded_by(region.block)[i] for region in op.regions])
            case scf.ForOp() as op:
                i = op.results.index(value)
                return self._joined([op.iter_args[i], yielded_by(op.body.block)[i]])
            case tile.Multiple() as op:
                known, d = self.known(op.arg), op.divisor.value.data
                return replace(known, divisor=lcm(known.divisor, d))
            case op if isinstance(op, _MOVES):
                return self.known(op.operands[0])
            case op:
                return self._source(op, whole)

    def _source(self, op: Operation, whole: Range) -> Range:
        """Of what has no operand of numbers."""
        match op:
            case tile.Constant():
                return exactly(int(op.number))
            case tile.ProgramId():
                return Range(0, min(whole.hi, 2**31 - 2))
            case threads.Identity():
                least = int(op.what.data in ("blocks", "clusters"))
                return Range(least, min(whole.hi, 2**31 - 2))
            case threads.NextProgram():
                return Range(1, min(whole.hi, 2**31 - 2))
            case tile.NumPrograms():
                return Range(1, min(whole.hi, 2**31 - 1))
            case tile.Dim():
                shape = array_type(op.arg).facts.shape
                return self._fact(shape[op.axis.value.data], Range(0, whole.hi))
            case tile.Stride():
                return self._fact(array_type(op.arg).facts.strides[op.axis.value.data], whole)
            case tile.Arange():
                start, n = op.start.value.data, tile_type(op.result).extents[0]
                return Range(start, start + n - 1, abs(start) if n == 1 else 1)
        return replace(whole, is_data=True)

    def _reduced(self, op: tile.Reduce | tile.Histogram, whole: Range) -> Range:
        if isinstance(op, tile.Histogram):
            return Range(0, tile_type(op.arg).size)
        kind = op.kind.data
        if kind in ("max", "min", "any", "all"):
            return self.known(op.args[0])
        if kind in ("argmax", "argmin"):
            return Range(0, tile_type(op.args[0]).extents[op.axis.value.data] - 1)
        return replace(whole, is_data=True)

    def _cast(self, op: ew.Cast, whole: Range) -> Range:
        found = self.of(op.arg)
        if found is None:
            return replace(whole, is_data=not self._is_of_indices(op.arg))
        if is_bool(element_of(op.result.type)):
            return Range(int(found.lo > 0 or found.hi < 0), int(found != exactly(0)))
        if whole.holds(found):
            return found
        return replace(whole, divisor=_power(found.divisor), is_data=found.is_data)

    def _is_of_indices(self, value: SSAValue) -> bool:
        """Whether a number of float type is computed of indices and constants alone."""
        for at in operands_first(value, _parts_of_float):
            known = self.of(at)
            is_constant = isinstance(at.owner, tile.Constant)
            if known.is_data if known is not None else not (_parts_of_float(at) or is_constant):
                return False
        return True

    def _joined(self, values) -> Range:
        first, *rest = [self.known(v) for v in values]
        for found in rest:
            first = first.join(found)
        return first

    def _fact(self, fact, whole: Range) -> Range:
        return (
            exactly(fact.exact)
            if fact.exact is not None
            else Range(whole.lo, whole.hi, fact.divisor)
        )

    def _argument(self, value: BlockArgument, whole: Range) -> Range:
        loop = value.block.parent_op()
        if isinstance(loop, scf.WhileOp):
            if value.block is loop.before_region.block:
                return self._joined(
                    [
                        loop.arguments[value.index],
                        yielded_by(loop.after_region.block)[value.index],
                    ]
                )
            return self.known(yielded_by(loop.before_region.block)[1 + value.index])
        if not isinstance(loop, scf.ForOp):
            is_known = isinstance(loop, tile.Kernel) and value.index in loop.integers(NONNEGATIVE)
            return replace(whole, lo=0 if is_known else whole.lo, is_data=True)
        if value.index == 0:
            lb, ub, step = map(self.known, (loop.lb, loop.ub, loop.step))
            return Range(lb.lo, max(lb.lo, ub.hi - 1), gcd(lb.divisor, step.divisor))
        start, next_ = (
            loop.iter_args[value.index - 1],
            yielded_by(value.block)[value.index - 1],
        )
        if len(self._assumed) >= _MAX_DEPTH:
            return whole
        guess = self.known(start)
        for attempt in range(4):  # guess, see what one iteration makes of it, widen what moved
            after = guess.join(Ranges({**self._assumed, value: guess}).known(next_))
            if after == guess:
                return guess
            guess = Range(
                guess.lo if after.lo == guess.lo else whole.lo,
                guess.hi if after.hi == guess.hi else whole.hi,
                after.divisor if attempt < 2 else 1,
                after.is_data,
            )
        return replace(whole, is_data=guess.is_data)

    def _inside_loop(self, index: SSAValue, bound: SSAValue) -> bool:
        """Whether an index is a loop's counter plus less than a step, and the bound the loop's own,
        which the steps divide: as in a block of columns that ends where the array does."""
        index, bound = _unviewed(index), _unviewed(bound)
        if not isinstance(index.owner, ew.CLASSES["add"]):
            return False
        for counter, rest in (index.owner.args, index.owner.args[::-1]):
            counter = _unviewed(counter)
            loop = (
                counter.block.parent_op()
                if isinstance(counter, BlockArgument) and counter.index == 0
                else None
            )
            if not isinstance(loop, scf.ForOp):
                continue
            least = (
                loop.ub.owner.args if isinstance(loop.ub.owner, ew.CLASSES["min"]) else (loop.ub,)
            )
            if not any(v is bound for v in least):
                continue
            lb, step, end, added = map(self.known, (loop.lb, loop.step, bound, rest))
            if step.lo > 0 and added.hi < gcd(lb.divisor, step.divisor, end.divisor):
                return True
        return False

    def _function(self, op: ew.Elementwise, whole: Range) -> Range:
        if any(self.of(a) is None for a in op.args):
            return replace(whole, is_data=True)
        args = [self.known(a) for a in op.args]
        a, b = args[0], args[-1]
        name = op.fn.name
        if name in _COMPARISONS:
            true, false = _COMPARISONS[name](a, b)
            if name == "lt" and not true:
                true = self._inside_loop(*op.args)
            return exactly(1) if true else exactly(0) if false else whole
        if is_bool(element_of(op.result.type)):
            return self._logic(name, a, b, whole)
        if (found := _mathematical(name, args)) is None:
            # what divides both divides a remainder, whatever their signs
            divisor = gcd(a.divisor, b.divisor) if name == "mod" else 1
            return replace(whole, divisor=divisor, is_data=_of_data(args))
        match _overflow(found, args, op, whole):
            case Overflow.WRAPS:
                is_data = _is_hash(found, args, op, whole) or _of_data(args)
                return Range(whole.lo, whole.hi, _power(found.divisor), is_data)
            case Overflow.UNLESS_OFFSET:
                return Range(whole.lo, whole.hi, found.divisor, _of_data(args))
            case _:
                return replace(_cut_off(found, whole), is_data=_of_data(args))

    def _logic(self, name: str, a: Range, b: Range, whole: Range) -> Range:
        match name:
            case "and":
                return Range(a.lo & b.lo, a.hi & b.hi, 1)
            case "or":
                return Range(a.lo | b.lo, a.hi | b.hi, 1)
            case "not":
                return Range(1 - a.hi, 1 - a.lo, 1)
            case _:
                return whole


def _whole(value: SSAValue) -> Range:
    """All that an integer's type holds. Raises TypeError for other values."""
    found = bounds(value.type)
    if found is None:
        raise TypeError(f"{value.type} has no range")
    return found


def _last_before(end: Range, begin: Range, step: Range) -> int:
    """What a counter that steps from `begin` is at most before its end."""
    ends, stops = max(end.divisor, 1), max(gcd(begin.divisor, step.divisor), 1)
    return (end.hi // ends * ends - 1) // stops * stops


def _mathematical(name: str, args: list[Range]) -> Range | None:
    """The range of a function of integers without bounds; None where nothing is known."""
    if all(r.exact is not None for r in args) and name in SUMS:
        return exactly(ew.of_integers(name, *(r.lo for r in args)))
    function = _FUNCTIONS.get(name)
    return None if function is None else function(args[0], args[-1])


def _sum(a: Range, b: Range) -> Range:
    return Range(a.lo + b.lo, a.hi + b.hi, gcd(a.divisor, b.divisor))


def _negative(a: Range, _: Range | None = None) -> Range:
    return Range(-a.hi, -a.lo, a.divisor)


def _product(a: Range, b: Range) -> Range:
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Range(min(corners), max(corners), a.divisor * b.divisor)


def _absolute(a: Range, _: Range) -> Range:
    return Range(max(0, a.lo, -a.hi), max(abs(a.lo), abs(a.hi)), a.divisor)


def _maximum(a: Range, b: Range) -> Range:
    return Range(max(a.lo, b.lo), max(a.hi, b.hi), gcd(a.divisor, b.divisor))


def _minimum(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), min(a.hi, b.hi), gcd(a.divisor, b.divisor))


def _quotient(a: Range, b: Range) -> Range | None:
    """Of a quotient rounded down; by 0 it is 0."""
    if b.lo < 0 or b.hi == 0:
        return None
    if b.lo == 0:
        found = _quotient(a, replace(b, lo=1))
        return None if found is None else found.join(exactly(0))
    n = b.exact
    divisor = a.divisor // n if n and a.divisor % n == 0 else 1
    return Range(min(a.lo // b.lo, a.lo // b.hi), max(a.hi // b.lo, a.hi // b.hi), divisor)


def _remainder(a: Range, b: Range) -> Range | None:
    """Of a remainder with the sign of the divisor; by 0 it is 0."""
    if b.lo < 0 or b.hi == 0:
        return None
    if a.lo >= 0 and a.hi < b.lo:
        return a
    most = b.hi - 1 if a.lo < 0 else min(a.hi, b.hi - 1)
    return Range(0, most, gcd(a.divisor, b.divisor))


def _truncated(a: Range, b: Range) -> Range | None:
    """Of a quotient rounded towards zero."""
    if a.lo >= 0:
        return _quotient(a, b)
    if b.lo <= 0:
        return None
    corners = [-(-x // y) if x < 0 else x // y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Range(min(*corners, 0), max(*corners, 0), 1)


def _signed_remainder(a: Range, b: Range) -> Range | None:
    """Of a remainder with the sign of the dividend."""
    if a.lo >= 0:
        return _remainder(a, b)
    if b.lo <= 0:
        return None
    return Range(max(a.lo, 1 - b.hi), min(max(a.hi, 0), b.hi - 1), gcd(a.divisor, b.divisor))


def _shifted_left(a: Range, b: Range) -> Range | None:
    n = b.exact
    if n is None or not 0 <= n < 63:
        return None
    return Range(a.lo << n, a.hi << n, a.divisor << n)


def _shifted_right(a: Range, b: Range) -> Range | None:
    n = b.exact
    if n is None or not 0 <= n < 64:
        return None
    return Range(a.lo >> n, a.hi >> n, a.divisor >> n if a.divisor % (1 << n) == 0 else 1)


def _intersection(a: Range, b: Range) -> Range | None:
    highest = [r.hi for r in (a, b) if r.lo >= 0]
    return Range(0, min(highest), max(map(_power, (a.divisor, b.divisor)))) if highest else None


def _union(a: Range, b: Range) -> Range | None:
    if a.lo < 0 or b.lo < 0:
        return None
    width = max(a.hi.bit_length(), b.hi.bit_length())
    return Range(0, (1 << width) - 1, gcd(_power(a.divisor), _power(b.divisor)))


SUMS = ("add", "sub", "mul", "neg")
# of the first and the last operand
_FUNCTIONS: dict[str, Callable[[Range, Range], Range | None]] = {
    "add": _sum,
    "sub": lambda a, b: _sum(a, _negative(b)),
    "mul": _product,
    "neg": _negative,
    "abs": _absolute,
    "max": _maximum,
    "min": _minimum,
    "floordiv": _quotient,
    "mod": _remainder,
    "div_trunc": _truncated,
    "rem_trunc": _signed_remainder,
    "shl": _shifted_left,
    "shr": _shifted_right,
    "and": _intersection,
    "or": _union,
    "xor": _union,
}


def _overflow(found: Range, args: list[Range], op: ew.Elementwise, whole: Range) -> Overflow:
    """Of an operation whose result is mathematically `found`."""
    if whole.holds(found):
        return Overflow.NEVER
    if _is_hash(found, args, op, whole):
        return Overflow.WRAPS
    types = [bounds(v.type) for v in op.args]
    if any(_is_anything(r, known) for r, known in zip(args, types, strict=True)):
        return Overflow.UNLESS_OFFSET
    if op.fn.name == "mul" and not makes_offsets(op.result):
        return Overflow.WRAPS
    return Overflow.NEVER if bits(element_of(op.result.type)) == 32 else Overflow.WRAPS


def _is_hash(found: Range, args: list[Range], op: ew.Elementwise, whole: Range) -> bool:
    """Whether an operation whose result, mathematically `found`, does not fit makes no index."""
    t = element_of(op.result.type)
    # a result beyond the type of numbers this small is no range of an index that is too large
    are_small = all(r.is_small for r in args)
    always_outside = found.lo > whole.hi or found.hi < whole.lo
    short = is_unsigned(t) or bits(t) < 32
    return short or _hashes(op.fn.name, args) or are_small or always_outside


def _hashes(name: str, args: list[Range]) -> bool:
    """Whether an operation is one that hash functions are made of, and indices are not."""
    large = any(r.exact is not None and abs(r.exact) > _MAX_INDEX_STEP for r in args)
    return name == "shl" or name == "mul" and large


def _is_anything(known: Range, whole: Range | None) -> bool:
    """Whether a number has no range but its type's, or is data of no small one."""
    if known.is_data and not known.is_small:
        return True
    return whole is not None and (known.lo, known.hi) == (whole.lo, whole.hi)


def _of_data(args: Sequence[Range]) -> bool:
    """Whether a result is data, not an index: of large data, or of data and constants alone."""
    return any(r.is_data and not r.is_small for r in args) or (
        any(r.is_data for r in args) and all(r.is_data or r.exact is not None for r in args)
    )


def _cut_off(found: Range, whole: Range) -> Range:
    """A range at the bounds of a type."""
    return replace(found, lo=max(found.lo, whole.lo), hi=min(found.hi, whole.hi))


def _power(n: int) -> int:
    """The largest power of two in a divisor: what survives a wrap."""
    return n & -n
