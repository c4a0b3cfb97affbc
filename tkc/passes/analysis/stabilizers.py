"""What depends on a running maximum, and how: the proof under relax-stabilizers.

A softmax subtracts a maximum from its scores so that no power overflows; its result does not depend
on which number was subtracted. Whether that is so for a loop of a kernel is a matter of data flow.
Let the maximum m be replaced by m + d, with another d for each of its elements (each row). Every
value then follows one law, its *form*:

    invariant     stays what it is      scores, loads, counters; whatever no maximum reaches
    add {m: a}    v + a d               m itself; s − m (a = −1); log2(total) (a = −1)
    mul {m: a}    v · 2^(a d)           exp2(s − m) (a = −1); its sums along a row; its dots

and the forms of operands give the form of a result: sums want equal forms, products add degrees,
exp2 makes an add a mul, log2 a mul an add. A degree may hold scalars of the program (exp2((s − m) ·
c) has −c), and logarithms to another base have their factor. A maximum of m and something else is a
new m, with a d of its own; what a loop carries from m to the next one has the form in the new m
that it had in the old one:

    total' = total · exp2(m − m') + Σ exp2(s − m')
             {m: −1} + {m: 1, m': −1}, and {m': −1}: equal, and −1 again in m'

If everything that leaves the kernel is invariant (acc / total: −1 − (−1); m + log2(total): 1 − 1;
total > 0), the kernel computes the same with any finite m, whenever it changes. `prove(loop)` shows
that for the maxima that a loop carries, through whatever its results reach (other loops that
continue with them, branches), or raises Unproved with the reason.

Elements have their own d, so a degree also says along which axes d varies: a sum along such an axis
has no form, and what varies along another axis does not cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf, log
from typing import NoReturn

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.rewrite import is_inside
from tkc.ir.types import TileType, element_of, is_float
from tkc.ir.values import defining_op, extents_of, tile_type, yielded_by
from tkc.passes.analysis.folding import constant

LOG2E = 1 / log(2)
# Passes over a loop's body, at most, until every carried value has a form.
MAX_FIXPOINT_ITERATIONS = 8
# A degree that is smaller than this share of its terms is their rounding.
ROUNDING = 1e-5

# A maximum: what a loop carries, or the result of a `tile.max`.
Symbol = SSAValue
# For each axis of a value the axis of the maximum along which d varies; None: d is constant there.
Axes = tuple[int | None, ...]
# For each symbol, as its d lies in the value: a sum of numbers times products of scalars.
Degree = dict[tuple[Symbol, Axes, tuple[SSAValue, ...]], float]


class Unproved(Exception):
    """Why a value cannot be shown to be invariant."""


@dataclass(frozen=True)
class Form:
    """The law that a value follows. pure: made of maxima alone. kind "any": not known yet (while a
    loop's forms are looked for).
    """

    kind: str
    degree: Degree = field(default_factory=dict)
    pure: bool = False

    def times(
        self,
        factor: float,
        scalars: tuple[SSAValue, ...] = (),
        kind: str | None = None,
        pure: bool | None = None,
    ) -> Form:
        """Its degree multiplied by a number and by scalars."""
        degree = {
            (s, axes, tuple(sorted((*names, *scalars), key=id))): x * factor
            for (s, axes, names), x in self.degree.items()
        }
        return Form(kind or self.kind, degree, self.pure if pure is None else pure)

    def along(self, view: Callable[[Axes], Sequence[int | None]]) -> Form:
        """With the axes of another value."""
        degrees = (
            {(s, tuple(view(axes)), names): x} for (s, axes, names), x in self.degree.items()
        )
        return Form(self.kind, total(degrees), self.pure)

    def put(self, forms: Mapping[Symbol, Form]) -> Form:
        """With the forms that its maxima have themselves."""

        def substituted(
            symbol: Symbol, axes: Axes, names: tuple[SSAValue, ...], x: float
        ) -> Degree:
            if symbol not in forms:
                return {(symbol, axes, names): x}
            seen = forms[symbol].along(
                lambda inner: [None if a is None else inner[a] for a in axes]
            )
            return seen.times(x, names).degree

        return Form(
            self.kind, total(substituted(*key, x) for key, x in self.degree.items()), self.pure
        )

    def values(self) -> set[SSAValue]:
        """The maxima and the scalars of the degree."""
        return {v for symbol, _, names in self.degree for v in (symbol, *names)}

    def varies(self, axis: int) -> bool:
        """Whether d differs along an axis of the value."""
        return any(axes[axis] is not None for _, axes, _ in self.degree)

    def has(self, symbol: Symbol) -> bool:
        """Whether the degree contains that maximum."""
        return any(s is symbol for s, *_ in self.degree)


ANY = Form("any")


def total(degrees: Iterable[Degree]) -> Degree:
    """A sum of degrees, without what cancels but for the rounding of constants."""
    found: Degree = {}
    size: Degree = {}
    for degree in degrees:
        for key, x in degree.items():
            found[key] = found.get(key, 0.0) + x
            size[key] = max(size.get(key, 0.0), abs(x))
    return {key: x for key, x in found.items() if abs(x) > ROUNDING * size[key]}


def equal(a: Form, b: Form) -> bool:
    """Whether two forms are the same law."""
    return a.kind == b.kind and not total((a.degree, {k: -x for k, x in b.degree.items()}))


def joined(kind: str, forms: Iterable[Form], pure: bool) -> Form | None:
    """Degrees added; None where nothing is left."""
    degree = total(f.degree for f in forms)
    return Form(kind, degree, pure) if degree else None


def new_maximum(symbol: Symbol, varying: Iterable[bool]) -> Form:
    """The form of a maximum itself, whose d varies along some of its axes."""
    axes = tuple(i if varies else None for i, varies in enumerate(varying))
    return Form("add", {(symbol, axes, ()): 1.0}, True)


def _carried_maximum(argument: SSAValue) -> Form:
    """The form of a maximum that a loop carries: another d for each element."""
    extents = argument.type.extents if isinstance(argument.type, TileType) else ()
    return new_maximum(argument, [n > 1 for n in extents])


def fails(what: str, op: Operation) -> NoReturn:
    """Raises Unproved: the maximum reaches an operation in a role that no rule covers."""
    raise Unproved(f"it reaches '{op.name}'{what}")


EXTREMA = ("max", "min", "fmax", "fmin")
# what keeps a maximum: whether NaN propagates, sums of powers around it have it all the same
MAXIMA = ("tile.max", "tile.fmax")


def is_running_maximum(loop: scf.ForOp, argument: BlockArgument) -> ew.Binary | None:
    """The `tile.max` of a carried value with something else that the loop carries on."""
    body = loop.body.block
    result = yielded_by(body)[argument.index - 1]
    op = defining_op(result, ew.Binary)
    if op is None or op.name not in MAXIMA or op.parent is not body:
        return None
    if not is_float(element_of(result.type)):
        return None
    return op if argument in op.operands and op.lhs is not op.rhs else None


def depends(op: Operation, values: Container[SSAValue]) -> bool:
    """Whether an operation, or one inside it, reads any of some values."""
    return any(v in values for inner in op.walk() for v in inner.operands)


# The factor of the degree and the kind of the result, of functions of one operand.
UNARY: dict[tuple[str, str], tuple[float, str]] = {
    ("neg", "add"): (-1, "add"),
    ("neg", "mul"): (1, "mul"),
    ("abs", "mul"): (1, "mul"),
    ("reciprocal", "mul"): (-1, "mul"),
    ("sqrt", "mul"): (0.5, "mul"),
    ("rsqrt", "mul"): (-0.5, "mul"),
    ("exp2", "add"): (1, "mul"),
    ("exp", "add"): (LOG2E, "mul"),
    ("log2", "mul"): (1, "add"),
    ("log", "mul"): (1 / LOG2E, "add"),
}
# Functions whose operands' degrees are added, or the second's subtracted.
SUMS = {
    ("add", "add"): 1,
    ("sub", "add"): -1,
    ("mul", "mul"): 1,
    ("div", "mul"): -1,
    ("div_rn", "mul"): -1,
}


class Forms:
    """The forms of values, found operation by operation in program order."""

    def __init__(self) -> None:
        self.of: dict[SSAValue, Form] = {}

    # ---- loops and branches
    def loop(self, loop: scf.ForOp) -> dict[SSAValue, SSAValue]:
        """Forms of what a loop carries, of its body and its results; for each running maximum among
        them the one it becomes.
        """
        body = loop.body.block
        carried = body.args[1:]
        given = [self.of.get(v) for v in loop.iter_args]
        maxima: dict[SSAValue, SSAValue] = {
            a: op.result for a in carried if (op := is_running_maximum(loop, a))
        }
        ends = self._fixpoint(body, maxima)
        self._check_carried(loop, ends, maxima)
        self._check_given(loop, given, maxima)
        for argument, result in zip(carried, loop.results, strict=True):
            self._set(result, self.of.get(argument))
        return maxima

    def _fixpoint(self, body: Block, maxima: Mapping[SSAValue, SSAValue]) -> list[Form | None]:
        """Finds the forms of a loop's body; returns those of what it yields, relative to the maxima
        of the next iteration.
        """
        carried = body.args[1:]
        touched = self._touched(body, maxima)
        for argument in carried:
            unknown_yet = ANY if argument in touched else None
            self._set(argument, _carried_maximum(argument) if argument in maxima else unknown_yet)
        next_maxima = {new: _carried_maximum(old) for old, new in maxima.items()}
        ends: list[Form | None] = []
        for _ in range(MAX_FIXPOINT_ITERATIONS):
            self.block(body)
            found = [self.of.get(v) for v in yielded_by(body)]
            ends = [f if f is None or f is ANY else f.put(next_maxima) for f in found]
            learned = [
                (a, end)
                for a, end in zip(carried, ends, strict=True)
                if self.of.get(a) is ANY and end is not ANY
            ]
            if not learned:
                break
            for argument, end in learned:
                self._set(argument, end)
        return ends

    def _check_carried(
        self, loop: scf.ForOp, ends: list[Form | None], maxima: Mapping[SSAValue, SSAValue]
    ) -> None:
        """Raises Unproved unless each carried value has the same form in every iteration."""
        forms = [self.of.get(v) for v in yielded_by(loop.body.block)]
        if any(form is not None and form.has(a) for form in forms for a in maxima):
            raise Unproved("the loop carries on what is relative to the maximum before")
        for argument, end in zip(loop.body.block.args[1:], ends, strict=True):
            now = self.of.get(argument)
            if now is end is None:
                continue
            if now is ANY or now is None or end is None or not equal(now, end):
                raise Unproved("what the loop carries does not keep its degree")
            if any(is_inside(v, loop) for v in now.values().difference(maxima)):
                raise Unproved("what the loop carries depends on a number of each iteration")

    def _check_given(
        self, loop: scf.ForOp, given: list[Form | None], maxima: Mapping[SSAValue, SSAValue]
    ) -> None:
        """What comes in already has a form where this loop continues another loop's results. Raises
        Unproved unless it is the same one, of the maximum that comes in.
        """
        carried = list(zip(loop.body.block.args[1:], loop.iter_args, given, strict=True))
        origin: dict[SSAValue, Form] = {
            a: self.of[v] for a, v, _ in carried if a in maxima and v in self.of
        }
        for argument, value, had in carried:
            want = self.of.get(argument)
            if had is None and (want is None or not origin or constant(value) == 0):
                continue
            if had is None or want is None:
                raise Unproved("another loop goes on with part of it")
            if not equal(want.put(origin), had):
                raise Unproved("another loop goes on with it in another form")

    def _touched(self, body: Block, maxima: Iterable[SSAValue]) -> set[SSAValue]:
        """The carried values that a running maximum reaches, in however many iterations."""
        touched: set[SSAValue] = set(maxima)
        while True:
            reached = set(touched)
            for op in body.ops:
                if depends(op, reached):
                    reached |= set(op.results)
            more = {a for a, v in zip(body.args[1:], yielded_by(body), strict=True) if v in reached}
            if more <= touched:
                return touched
            touched |= more

    def block(self, block: Block) -> None:
        """Forms of what a block's operations compute."""
        for op in block.ops:
            self.visit(op)

    def after(self, op: Operation) -> None:
        """Everything that the results of a loop or branch can reach."""
        while (op_next := op.next_op) is not None:
            op = op_next
            self.visit(op)
        if not isinstance(op, scf.YieldOp):
            return
        parent = op.parent_op()
        if not isinstance(parent, scf.IfOp):
            if any(v in self.of for v in op.operands):
                raise Unproved("a loop round it carries it on")
            return
        self._branch(parent, inside=True)
        self.after(parent)

    def _branch(self, op: scf.IfOp, inside: bool = False) -> None:
        """inside: every maximum is computed in the branch, so the results of its other side are
        those of a program without them.
        """
        if op.cond in self.of:
            fails(" as its condition", op)
        ends = [yielded_by(region.block) for region in op.regions if region.blocks]
        for i, result in enumerate(op.results):
            values = [end[i] for end in ends]
            found = next((f for v in values if (f := self.of.get(v)) is not None), None)
            if found is not None and found is not ANY and not inside:
                for value in values:
                    if self.of.get(value) is not ANY and not self._follows(value, found):
                        raise Unproved("a branch gives it in two forms")
            self._set(result, found)

    def _follows(self, value: SSAValue, form: Form) -> bool:
        """Whether a value has a form; where that is a power, 0 has it too."""
        own = self.of.get(value)
        return equal(own, form) if own is not None else form.kind == "mul" and constant(value) == 0

    # ---- operations
    def _set(self, value: SSAValue, form: Form | None) -> None:
        if form is None:
            self.of.pop(value, None)
        else:
            self.of[value] = form

    def visit(self, op: Operation) -> None:
        """Forms of an operation's results, and of what is inside it."""
        forms = [self.of.get(v) for v in op.operands]
        if isinstance(op, (scf.YieldOp, tile.Yield, tile.Return)):
            return
        if isinstance(op, scf.ForOp):
            self._visit_loop(op, forms)
        elif isinstance(op, scf.IfOp):
            for region in op.regions:
                for block in region.blocks:
                    self.block(block)
            self._branch(op)
        elif op.regions:
            if depends(op, self.of):
                fails("", op)
        elif not any(forms):
            for r in op.results:
                self._set(r, None)
        elif len(op.results) != 1:
            fails("", op)
        else:
            self._set(op.results[0], self.result(op, forms))

    def _visit_loop(self, op: scf.ForOp, forms: list[Form | None]) -> None:
        if any(forms[:3]):
            fails(" as a bound", op)
        if any(forms):
            self.loop(op)
        elif depends(op, self.of):
            self.block(op.body.block)
            if any(v in self.of for v in yielded_by(op.body.block)):
                raise Unproved("another loop carries what depends on it")

    def result(self, op: Operation, forms: list[Form | None]) -> Form | None:
        """The form of an operation's result, of which an operand at least has one; None where it is
        invariant. Raises Unproved where no rule covers the operation.
        """
        known = [f for f in forms if f is not None]
        if any(f is ANY for f in known):
            return self._guess(op, forms)
        first = known[0]
        match op:
            case ew.Elementwise():
                return self._elementwise(op, forms, known)
            case ew.Select():
                return self._select(op, forms)
            case ew.Cast() if is_float(element_of(op.result.type)):
                return first
            case tile.Broadcast():
                return first
            case tile.Splat() | tile.Transpose() | tile.Reshape() | tile.Slice():
                return self._view(op, first)
            case tile.Reduce() if len(op.args) == 1:
                return self._reduce(op, first)
            case tile.Dot():
                return self._dot(op, forms)
        fails("", op)

    def _view(
        self, op: tile.Splat | tile.Transpose | tile.Reshape | tile.Slice, form: Form
    ) -> Form:
        t = tile_type(op.result)
        match op:
            case tile.Splat():
                return form.along(lambda _: [None] * t.rank)
            case tile.Transpose():
                permutation = op.permutation.get_values()
                return form.along(lambda axes: [axes[p] for p in permutation])
            case tile.Reshape():
                return form.along(lambda axes: self._reshaped(op, axes))
        whole = extents_of(op.arg)
        cut = [i for i, (n, m) in enumerate(zip(whole, t.extents, strict=True)) if n != m]
        if any(form.varies(i) for i in cut):
            fails("", op)
        return form

    def _guess(self, op: Operation, forms: list[Form | None]) -> Form | None:
        """With an operand of a form not known yet: what does not depend on it."""
        known = [f for f in forms if f is not None and f is not ANY]
        if isinstance(op, ew.Elementwise):
            if op.fn.name in ("add", "sub") and known:
                return known[0]
            if op.fn.truth:
                return None
        if isinstance(op, tile.Dot) and ANY not in forms[:2] and (forms[0] or forms[1]):
            return self._product(op, forms[0], forms[1])
        if isinstance(op, (tile.Dot, ew.CLASSES["fma"])) and forms[2] not in (None, ANY):
            return forms[2]
        return ANY

    def _elementwise(
        self, op: ew.Elementwise, forms: list[Form | None], known: list[Form]
    ) -> Form | None:
        name, first = op.fn.name, known[0]
        kind = first.kind
        if any(f.kind != kind for f in known):
            fails(" with a power of it", op)
        if (name, kind) in UNARY:
            factor, becomes = UNARY[name, kind]
            return first.times(
                factor, kind=becomes, pure=first.pure and name not in ("log2", "log")
            )
        if (name, kind) in SUMS:
            sign = SUMS[name, kind]
            signed = [f if i == 0 or sign > 0 else f.times(-1) for i, f in enumerate(forms) if f]
            return joined(kind, signed, self._are_pure(forms))
        if name == "fma":
            return self._fma(op, forms)
        if kind == "mul" and name in ("add", "sub", *EXTREMA):
            return self._alike(op, zip(op.operands, forms, strict=True))
        if op.fn.truth:
            self._check_truth(op, forms, known)
            return None
        return self._of_sums(op, forms, known)

    @staticmethod
    def _are_pure(forms: list[Form | None]) -> bool:
        return all(form is not None and form.pure for form in forms)

    def _of_sums(self, op: ew.Elementwise, forms: list[Form | None], known: list[Form]) -> Form:
        """A maximum of what has the form "add", or its product with an invariant operand."""
        name, first = op.fn.name, known[0]
        if name in ("max", "fmax"):
            rank = op.result.type.rank if isinstance(op.result.type, TileType) else 0
            return new_maximum(op.result, [any(f.varies(i) for f in known) for i in range(rank)])
        if name == "mul" and len(known) == 1:
            return first.times(*self._scale(op.operands[1 - forms.index(first)]))
        if name in ("div", "div_rn") and forms[1] is None and (n := constant(op.operands[1])):
            return first.times(1 / n)
        fails("", op)

    def _check_truth(self, op: ew.Elementwise, forms: list[Form | None], known: list[Form]) -> None:
        """Raises Unproved unless it compares a power with 0, or a sum with an infinity."""
        if len(known) == 1 and len(op.operands) == 2:
            other = constant(op.operands[1 - forms.index(known[0])])
            if other is not None and (other == 0 if known[0].kind == "mul" else isinf(other)):
                return
        fails("", op)

    def _fma(self, op: ew.Elementwise, forms: list[Form | None]) -> Form | None:
        a, b, addend = forms
        operands = [f for f in (a, b) if f is not None]
        if any(f is not None and f.kind == "mul" for f in forms):
            product = joined("mul", operands, False)
            if addend is None:
                if constant(op.operands[2]) != 0:
                    fails("", op)
                return product
            if product is None:
                fails("", op)
            return self._alike(op, [(None, product), (op.operands[2], addend)])
        if a is not None and b is not None:
            fails("", op)
        scaled = [f.times(*self._scale(op.operands[1 - i])) for i, f in enumerate((a, b)) if f]
        return joined("add", [*scaled, *([addend] if addend else [])], False)

    def _alike(self, op: Operation, terms: Iterable[tuple[SSAValue | None, Form | None]]) -> Form:
        """The form of a sum of terms: powers of one degree, and zeros."""
        terms = list(terms)
        found = next(form for _, form in terms if form is not None)
        for value, form in terms:
            zero = form is None and value is not None and constant(value) == 0
            if not zero and (form is None or not equal(form, found)):
                fails(" beside another power", op)
        return Form("mul", found.degree)

    def _scale(self, value: SSAValue) -> tuple[float, tuple[SSAValue, ...]]:
        """An invariant operand of a product: a number, or a scalar by name."""
        root = value
        while isinstance(root.type, TileType) and isinstance(
            op := root.owner, (tile.Splat, tile.Broadcast, tile.Reshape)
        ):
            root = op.operands[0]
        if (number := constant(root)) is not None:
            return float(number), ()
        return 1.0, (value if isinstance(root.type, TileType) else root,)

    def _select(self, op: ew.Select, forms: list[Form | None]) -> Form:
        if forms[0] is not None:
            fails(" as a condition", op)
        if (source := guarded(op)) is not None and source in self.of:
            return self.of[source]
        found = next(f for f in forms[1:] if f is not None)
        if not all(self._follows(value, found) for value in op.operands[1:]):
            fails(" beside another value", op)
        return Form(found.kind, found.degree)

    def _reshaped(self, op: tile.Reshape, axes: Axes) -> list[int | None]:
        """Only extents of 1 may be inserted and dropped where d varies."""
        old, new = extents_of(op.arg), extents_of(op.result)
        if [n for n in old if n > 1] == [n for n in new if n > 1]:
            rest = iter([a for a, n in zip(axes, old, strict=True) if n > 1])
            return [next(rest) if n > 1 else None for n in new]
        if any(a is not None for a in axes):
            fails("", op)
        return [None] * len(new)

    def _dot(self, op: tile.Dot, forms: list[Form | None]) -> Form:
        product = self._product(op, forms[0], forms[1])
        if product is None:
            fails(" as a sum", op)
        return self._alike(op, [(None, product), (op.acc, forms[2])])

    def _product(self, op: tile.Dot, a: Form | None, b: Form | None) -> Form | None:
        """Of one operand that has a form, with d constant along the axis that is summed."""
        rank = tile_type(op.result).rank
        if a is not None and b is None and a.kind == "mul" and not a.varies(rank - 1):
            return Form("mul", a.along(lambda axes: (*axes[:-1], None)).degree)
        if b is not None and a is None and b.kind == "mul" and not b.varies(rank - 2):
            return Form("mul", b.along(lambda axes: (*axes[:-2], None, axes[-1])).degree)
        if a is not None or b is not None:
            fails("", op)
        return None

    def _reduce(self, op: tile.Reduce, form: Form) -> Form:
        """Where d is constant along the axis; or the maximum of maxima, which is another one."""
        axis, kind = op.axis.value.data, op.kind.data
        if kind in ("max", "fmax") and form.kind == "add" and form.varies(axis):
            rank = tile_type(op.args[0]).rank
            return new_maximum(op.results[0], [form.varies(i) for i in range(rank) if i != axis])
        if form.varies(axis) or kind not in EXTREMA and (kind, form.kind) != ("sum", "mul"):
            fails("", op)
        return form.along(lambda axes: (*axes[:axis], *axes[axis + 1 :]))


def guarded(op: Operation) -> SSAValue | None:
    """`where(m == −inf, number, m)`: m, unless nothing has been seen yet. Returns m."""
    test = defining_op(op.condition, ew.Binary) if isinstance(op, ew.Select) else None
    if test is None or not isinstance(op, ew.Select):
        return None
    left, right = constant(test.lhs), constant(test.rhs)
    if (left is None) == (right is None) or -inf not in (left, right):
        return None
    maximum = test.lhs if left is None else test.rhs
    if test.fn.name not in ("eq", "ne", "gt" if maximum is test.lhs else "lt"):
        return None
    degenerate, regular = op.if_true, op.if_false
    if test.fn.name != "eq":
        degenerate, regular = regular, degenerate
    return regular if regular is maximum and constant(degenerate) is not None else None


def prove(loop: scf.ForOp) -> Forms:
    """The forms of everything that the running maxima of a loop reach. Raises Unproved where
    something that they change leaves the kernel.
    """
    forms = Forms()
    forms.loop(loop)
    forms.after(loop)
    return forms
