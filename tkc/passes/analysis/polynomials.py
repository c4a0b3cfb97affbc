"""Integer scalars as polynomials, for comparing and taking apart the arithmetic of indices.

    %r = %g * 8 + %w      8 g + w         the atoms are what no rule takes apart: arguments, program
    %o = %r * %stride     8 g s + w s     ids, quotients, loaded numbers

Indices are mathematical integers (ir/ranges.py), so that sums and products of 32 and 64 bits are
taken apart alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import gcd

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, BlockArgument, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast, Elementwise
from tkc.ir.host_values import host_value
from tkc.ir.ranges import SUMS, Overflow, Ranges, bounds
from tkc.ir.rewrite import body_of, is_inside
from tkc.ir.types import bits, element_of
from tkc.ir.values import ancestor, block_of, owner_op
from tkc.passes.analysis.folding import FLOORS, constant

Monomial = tuple[int, ...]  # numbers of atoms, ascending; a square has one twice
MAX_TERMS = 16
MAX_NESTED_LOOPS = 8
ONE: Monomial = ()


class Agreement(IntEnum):
    """How far an integer is what its polynomial says, where sums and products may wrap: perhaps
    not at all, modulo two to the power of its bits, or exactly.
    """

    NONE, MODULO, EXACT = range(3)


class TooLarge(Exception):
    """A polynomial with more than MAX_TERMS terms."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of atoms with whole coefficients, none of them 0."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    def of(terms: dict[Monomial, int]) -> Polynomial:
        """Raises TooLarge for too many terms."""
        kept = tuple(sorted((m, c) for m, c in terms.items() if c))
        if len(kept) > MAX_TERMS:
            raise TooLarge
        return Polynomial(kept)

    @staticmethod
    def number(n: int) -> Polynomial:
        return Polynomial(((ONE, n),) if n else ())

    @property
    def exact(self) -> int | None:
        """The number that it is, whatever the atoms are."""
        if not self.terms:
            return 0
        monomial, coefficient = self.terms[0]
        return coefficient if len(self.terms) == 1 and monomial == ONE else None

    @property
    def atoms(self) -> set[int]:
        """The atoms that it depends on."""
        return {atom for monomial, _ in self.terms for atom in monomial}

    def __add__(self, other: Polynomial) -> Polynomial:
        total = dict(self.terms)
        for monomial, coefficient in other.terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return Polynomial.of(total)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        total: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in other.terms:
                monomial = tuple(sorted(m + n))
                total[monomial] = total.get(monomial, 0) + c * d
        return Polynomial.of(total)

    def part(self, monomials: Iterable[Monomial]) -> Polynomial:
        """The terms of some monomials."""
        wanted = set(monomials)
        return Polynomial(tuple((m, c) for m, c in self.terms if m in wanted))

    def divided(self, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """The terms that a divisor of one term divides, divided by it, and the others."""
        ((monomial, coefficient),) = divisor.terms
        quotient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for term, factor in self.terms:
            left = _without(term, monomial)
            if left is None or factor % coefficient:
                rest[term] = factor
            else:
                quotient[left] = factor // coefficient
        return Polynomial.of(quotient), Polynomial.of(rest)

    def replaced(self, atom: int, value: Polynomial) -> Polynomial:
        """With a polynomial for an atom."""
        total = Polynomial()
        for monomial, coefficient in self.terms:
            others = tuple(a for a in monomial if a != atom)
            term = Polynomial(((others, coefficient),))
            for _ in range(len(monomial) - len(others)):
                term = term * value
            total = total + term
        return total


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """A monomial divided by another; None where that does not divide it."""
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


class Scalars:
    """The integer scalars of a kernel as polynomials. Atoms are numbered as they are met."""

    def __init__(self) -> None:
        self.atoms: list[SSAValue] = []
        self._numbers: dict[SSAValue, int] = {}
        self._known: dict[SSAValue, Polynomial] = {}
        self._promised: dict[SSAValue, SSAValue] = {}  # an atom with the promise of its divisor
        # of what is not an atom: how far it is what its polynomial says
        self._agreements: dict[SSAValue, Agreement] = {}
        # by function, operands and, where these may wrap, type: the first value that was met of it
        self._functions: dict[tuple[str, Polynomial, Polynomial, Attribute | None], SSAValue] = {}
        self.ranges = Ranges()

    def atom(self, value: SSAValue) -> Polynomial:
        """A value as an atom."""
        if value not in self._numbers:
            self._numbers[value] = len(self.atoms)
            self.atoms.append(value)
        return Polynomial((((self._numbers[value],), 1),))

    def is_atom(self, value: SSAValue, polynomial: Polynomial) -> bool:
        """Whether a polynomial is that of a value as an atom."""
        return polynomial == self.atom(value)

    @property
    def known(self) -> Mapping[SSAValue, Polynomial]:
        """What has been asked about so far."""
        return self._known

    def number_of(self, value: SSAValue) -> int:
        """The number of a value as an atom."""
        self.atom(value)
        return self._numbers[value]

    def define(self, value: SSAValue, polynomial: Polynomial) -> None:
        """What a value is found to be: of a loop-carried one, from its steps."""
        self._known[value] = polynomial

    def forget_inside(self, loop: scf.ForOp) -> None:
        """Drops what is known of values in a loop: what it carries has been taken for atoms."""
        for value in [v for v in self._known if is_inside(v, loop)]:
            del self._known[value]
            self._agreements.pop(value, None)

    def of(self, value: SSAValue) -> Polynomial:
        """The polynomial of an integer scalar."""
        pending = [value]
        while pending:  # chains of thousands of sums: no recursion
            current = pending[-1]
            missing = [v for v in self._parts(current) if v not in self._known]
            if current in self._known or not missing:
                pending.pop()
                if current not in self._known:
                    found = self._taken_apart(current)
                    if found is None:
                        found = self.atom(self._first_like(current))
                    else:
                        self._agreements[current] = self._agreement(current)
                    self._known[current] = found
            else:
                pending += missing
        return self._known[value]

    def agreement(self, value: SSAValue) -> Agreement:
        """How far an integer scalar is what its polynomial says. What a loop carries is it exactly,
        as indices are.
        """
        self.of(value)
        return self._agreed(value)

    def _agreed(self, value: SSAValue) -> Agreement:
        return self._agreements.get(value, Agreement.EXACT)

    def _agreement(self, value: SSAValue) -> Agreement:
        """Of what is taken apart, from that of its parts."""
        op, parts = value.owner, self._parts(value)
        least = min((self._agreed(part) for part in parts), default=Agreement.EXACT)
        match op:
            case Elementwise() if op.fn.name not in SUMS:  # a quotient
                return least if least is Agreement.EXACT else Agreement.NONE
            case Elementwise() if self.ranges.overflow(op) is not Overflow.NEVER:
                return min(least, Agreement.MODULO)
            case Cast() if bits(value.type) > bits(op.arg.type):
                return least if least is Agreement.EXACT else Agreement.NONE
        return least

    def _taken_apart(self, value: SSAValue) -> Polynomial | None:
        """The polynomial of an integer from those of its parts; None of an atom."""
        op = value.owner
        try:
            match op:
                case tile.Constant() if isinstance(op.number, int):
                    return Polynomial.number(int(op.number))
                case tile.Multiple() | Cast() if self._parts(value):
                    found = self._known[op.arg]
                    if isinstance(op, tile.Multiple) and _holds_everywhere(op):
                        self._promised.setdefault(op.arg, value)
                    return found
                case Elementwise() if count := _whole_divisor(op):
                    quotient, rest = self._known[op.args[0]].divided(Polynomial.number(count))
                    if not rest.terms:
                        return quotient
                case Elementwise() if self._parts(value):
                    a, b = (self._known[x] for x in (op.args[0], op.args[-1]))
                    match op.fn.name:
                        case "add":
                            return a + b
                        case "sub":
                            return a - b
                        case "mul":
                            return a * b
                        case "neg":
                            return -a
        except TooLarge:
            pass
        return None

    def _first_like(self, value: SSAValue) -> SSAValue:
        """The first value met that is the same function of the same numbers, where it is to be had
        at this one. Truncating division is flooring division of what is never negative.
        """
        op = value.owner
        if not isinstance(op, Elementwise) or not _is_of_two(op):
            return value
        a, b = (self._known[x] for x in op.args)
        agreement, name, needed = min(map(self._agreed, op.args)), op.fn.name, set[SSAValue]()
        if agreement is Agreement.NONE:
            return value
        exact = agreement is Agreement.EXACT and name != "shl"  # which may wrap, too
        if exact and name in FLOORS and all(self.is_never_negative(x, needed) for x in (a, b)):
            name = name if needed else FLOORS[name]
        first = self._functions.setdefault((name, a, b, None if exact else value.type), value)
        earlier = owner_op(first)
        here = ancestor(op, block_of(earlier))
        return first if here is not None and earlier.is_before_in_block(here) else value

    def _parts(self, value: SSAValue) -> list[SSAValue]:
        """The scalars that a rule takes a value apart into."""
        op = value.owner
        match op:
            case tile.Multiple():
                return [op.arg]
            case Cast() if self.keeps_number(op):
                return [op.arg]
            case Elementwise() if op.fn.name in SUMS:
                return list(op.args) if value.type in (i32, i64) else []
            case Elementwise() if _is_of_two(op):
                return list(op.args)
        return []

    def keeps_number(self, op: Cast) -> bool:
        """Whether a conversion of an index, or of a tile of them, gives the same numbers."""
        source, t = element_of(op.arg.type), element_of(op.result.type)
        if source not in (i32, i64) or t not in (i32, i64):
            return False
        if t == i64 or source == i32:
            return True
        known, most = self.ranges.known(op.arg), bounds(i32)
        return most is not None and most.lo <= known.lo and known.hi <= most.hi

    def is_host(self, polynomial: Polynomial) -> bool:
        """Whether the host can compute it."""
        return all(host_value(self.atoms[a]) is not None for a in polynomial.atoms)

    def fits(self, monomial: Monomial, coefficient: int) -> bool:
        """Whether 32 bits hold a term, whatever its numbers are."""
        least = most = coefficient
        for atom in monomial:
            known = self.ranges.known(self.atoms[atom])
            corners = [x * y for x in (least, most) for y in (known.lo, known.hi)]
            least, most = min(corners), max(corners)
        whole = bounds(i32)
        return whole is not None and whole.lo <= least and most <= whole.hi

    def divisor(self, polynomial: Polynomial) -> int:
        """The largest known divisor; 0 of 0."""
        found = 0
        for monomial, coefficient in polynomial.terms:
            product = coefficient
            for atom in monomial:
                product *= self.ranges.known(self.promised(self.atoms[atom])).divisor
            found = gcd(found, product)
        return found

    def promised(self, value: SSAValue) -> SSAValue:
        """An atom, with the promise of its divisor where there is one."""
        return self._promised.get(value, value)

    # ---- signs
    def is_never_negative(self, polynomial: Polynomial, assumed: set[SSAValue]) -> bool:
        """Whether a polynomial of indices is at least 0.

        Loop counters count as their first value plus something that is not negative. A divisor of
        unknown sign in `//` or `%` is taken to be positive and added to `assumed`: whoever uses
        the answer must promise that (`tile.assume`).
        """
        try:
            started = self._from_starts(polynomial)
        except TooLarge:
            return False
        needed: set[SSAValue] = set()
        if all(c > 0 for _, c in started.terms) and all(
            a < 0 or self._atom_is_never_negative(self.atoms[a], needed) for a in started.atoms
        ):
            assumed |= needed
            return True
        return self._least(polynomial) >= 0

    def host_limit(self, polynomial: Polynomial, assumed: set[SSAValue]) -> Polynomial | None:
        """What the host can compute and a polynomial of indices never exceeds; None where nothing
        is known. assumed: as of is_never_negative.
        """
        total = Polynomial()
        for monomial, coefficient in polynomial.terms:
            term = Polynomial(((monomial, coefficient),))
            if self.is_host(term):
                total = total + term
            elif coefficient > 0:
                limit = self._host_limit_of(monomial, assumed)
                if limit is None:
                    return None
                total = total + limit * Polynomial.number(coefficient)
            elif not self.is_never_negative(-term, assumed):
                return None
        return total

    def host_limits(self, polynomial: Polynomial, assumed: set[SSAValue]) -> list[Polynomial]:
        """What the host can compute, of which a polynomial of indices never exceeds the largest:
        the least of two numbers, where it is taken off, is one of them. Empty where nothing is
        known. assumed: as of is_never_negative.
        """
        for monomial, coefficient in polynomial.terms if len(polynomial.terms) > 1 else ():
            atom = next((a for a in monomial if coefficient < 0 and self._is_own_least(a)), None)
            if atom is not None:
                numbers = map(self.of, owner_op(self.atoms[atom]).operands)
                each = [self.host_limits(polynomial.replaced(atom, n), assumed) for n in numbers]
                return [limit for limits in each for limit in limits] if all(each) else []
        limit = self.host_limit(polynomial, assumed)
        return [] if limit is None else [limit]

    def _is_own_least(self, atom: int) -> bool:
        """Whether a number of the kernel is the least of two."""
        op = self.atoms[atom].owner
        least = isinstance(op, Elementwise) and op.fn.name == "min"
        return least and not self.is_host(Polynomial((((atom,), 1),)))

    def _host_limit_of(self, monomial: Monomial, assumed: set[SSAValue]) -> Polynomial | None:
        """Of a product of one number of the kernel and others of the host: the former is the least
        of several, one of which has such a limit.
        """
        own = [a for a in monomial if not self.is_host(Polynomial((((a,), 1),)))]
        others = Polynomial(((tuple(a for a in monomial if a not in own), 1),))
        op = self.atoms[own[0]].owner
        if len(own) > 1 or not isinstance(op, Elementwise) or op.fn.name != "min":
            return None
        if not self.is_never_negative(others, assumed):
            return None
        for least in sorted(map(self.of, op.args), key=lambda p: not self.is_host(p)):
            limit = self.host_limit(least, assumed)
            if limit is not None:
                return limit * others
        return None

    def _from_starts(self, polynomial: Polynomial) -> Polynomial:
        """With each loop counter replaced by its first value and what it is beyond that, an atom
        with a negative number, which is never negative.
        """
        for _ in range(MAX_NESTED_LOOPS):  # a first value may be of outer counters
            counters = [a for a in polynomial.atoms if a >= 0 and self._ascending(self.atoms[a])]
            if not counters:
                break
            for a in counters:
                loop = self._ascending(self.atoms[a])
                assert loop is not None
                beyond = Polynomial((((-1 - a,), 1),))
                polynomial = polynomial.replaced(a, self.of(loop.lb) + beyond)
        return polynomial

    def _ascending(self, value: SSAValue) -> scf.ForOp | None:
        """The loop whose counter a value is, if its step is positive."""
        loop = counted_loop(value)
        return loop if loop is not None and self.ranges.known(loop.step).lo > 0 else None

    def _atom_is_never_negative(
        self, value: SSAValue, assumed: set[SSAValue], deep: int = 8
    ) -> bool:
        known = self.ranges.of(value)
        if known is not None and known.lo >= 0:
            return True
        op = value.owner
        if known is None or deep == 0:
            return False

        def of(x: SSAValue) -> bool:
            return all(
                c > 0
                and all(self._atom_is_never_negative(self.atoms[a], assumed, deep - 1) for a in m)
                for m, c in self.of(x).terms
            )

        if isinstance(op, (Cast, tile.Multiple)):
            return of(op.arg)
        if not isinstance(op, Elementwise):
            return False
        match op.fn.name:
            case "floordiv" | "mod" | "div_trunc" | "rem_trunc":
                if not of(op.args[0]):
                    return False
                if self.ranges.known(op.args[1]).lo < 1:
                    assumed.add(op.args[1])
                return True
            case "min":
                return all(map(of, op.args))
            case "max":
                return any(map(of, op.args))
        return False

    def _least(self, polynomial: Polynomial) -> float:
        """A lower bound, from the ranges of the atoms."""
        total = 0
        for monomial, coefficient in polynomial.terms:
            low = high = coefficient
            for atom in monomial:
                known = self.ranges.known(self.atoms[atom])
                corners = [x * y for x in (low, high) for y in (known.lo, known.hi)]
                low, high = min(corners), max(corners)
            total += low
        return total


def _is_of_two(op: Elementwise) -> bool:
    """Whether it is a function of two integers that gives one."""
    return len(op.args) == 2 and all(x.type in (i32, i64) for x in (*op.args, op.result))


def _holds_everywhere(promise: tile.Multiple) -> bool:
    """Whether a promise is of an argument of its own block: whatever uses the argument runs in a
    block that makes the promise, while one of a branch or a loop may never be made.
    """
    return isinstance(promise.arg, BlockArgument) and promise.arg.owner is promise.parent


def _whole_divisor(op: Elementwise) -> int:
    """The number that integers are divided by, if it is positive; else 0."""
    if op.fn.name not in ("floordiv", "div_trunc") or op.result.type not in (i32, i64):
        return 0
    count = constant(op.args[1])
    return int(count) if isinstance(count, int) and count > 0 else 0


def counted_loop(value: SSAValue) -> scf.ForOp | None:
    """The loop whose counter a value is."""
    if isinstance(value, BlockArgument) and value.index == 0:
        loop = value.owner.parent_op()
        return loop if isinstance(loop, scf.ForOp) else None
    return None


def least_distance(x: SSAValue, y: SSAValue, loop: scf.ForOp | scf.WhileOp) -> int:
    """How far apart an offset of an iteration of a loop and another one of another iteration are,
    at least; 0 where that is not known.
    """
    step = constant(loop.step) if isinstance(loop, scf.ForOp) else None
    if not isinstance(step, int):
        return 0
    scalars = Scalars()
    try:
        first, apart = scalars.of(x), (scalars.of(x) - scalars.of(y)).exact
    except TooLarge:
        return 0
    counter = scalars.number_of(body_of(loop).args[0])
    changing = {n for n in first.atoms if is_inside(scalars.atoms[n], loop)}
    moving = [(m, c) for m, c in first.terms if counter in m]
    if apart is None or changing != {counter} or [m for m, _ in moving] != [(counter,)]:
        return 0
    return max(0, abs(moving[0][1] * step) - abs(apart))
