"""What depends on a running maximum, and how: the proof under relax-stabilizers.

A softmax subtracts a maximum from its scores so that no power overflows; its result does not depend
on which number was subtracted. Whether that is so for a loop of a kernel is a matter of data flow.
Let the maximum m be replaced by m + d, with another d for each of its elements (each row). Every
value then follows one law, its *form*:

    invariant       stays what it is                             scores, loads, counters; whatever no maximum reaches
    add {m: a}      v + a d                                      m itself; s − m (a = −1);  log2(total) (a = −1)
    mul {m: a}      v · 2^(a d)                                  exp2(s − m) (a = −1); its sums along a row; what a dot makes of them

and the forms of operands give the form of a result: sums want equal forms, products add degrees,
exp2 makes an add a mul, log2 a mul an add. A degree may hold scalars of the program (exp2((s − m) ·
c) has −c), and logarithms to another base have their factor. A maximum of m and something else is a
new m, with a d of its own; what a loop carries from m to the next one has the form in the new m
that it had in the old one:

    total' = total · exp2(m − m') + Σ exp2(s − m')               {m: −1} + {m: 1, m': −1} and {m': −1}: equal, and −1 again in m'

If everything that leaves the kernel is invariant (acc / total: −1 − (−1); m + log2(total): 1 − 1;
total > 0), the kernel computes the same with any finite m, whenever it changes. `prove(loop)` shows
that for the maxima that a loop carries, through whatever its results go to (other loops that go on
with them, branches), or raises Unproved with the reason.

Elements have their own d, so a degree also says along which axes d lies: a sum along such an axis
has no form, and what lies otherwise does not cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isinf, log

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.rewrite import is_inside
from tkc.ir.types import TileType, element_of, is_float
from tkc.passes.analysis.folding import constant

LOG2E = 1 / log(2)
ROUNDS = 8  # through a loop's body, until every carried value has a form

Symbol = SSAValue  # a maximum: what a loop carries, or the result of a `tile.max`
Axes = tuple[
    int | None, ...
]  # of a value's axes, along which of the maximum's the d runs; None: it is the same all along
Degree = dict[
    tuple[Symbol, Axes, tuple[SSAValue, ...]], float
]  # of each symbol, as its d lies in the value: a sum of numbers times products of scalars


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
        degree = {
            (s, axes, tuple(sorted((*names, *scalars), key=id))): x * factor
            for (s, axes, names), x in self.degree.items()
        }
        return Form(kind or self.kind, degree, self.pure if pure is None else pure)

    def along(self, view: Callable[[Axes], Sequence[int | None]]) -> Form:
        """With the axes of another value."""
        return Form(
            self.kind,
            total(
                {(s, tuple(view(axes)), names): x} for (s, axes, names), x in self.degree.items()
            ),
            self.pure,
        )

    def put(self, forms: dict[Symbol, Form]) -> Form:
        """With the forms that its maxima have themselves."""

        def parts():
            for (s, axes, names), x in self.degree.items():
                yield from (
                    [{(s, axes, names): x}]
                    if s not in forms
                    else [
                        forms[s]
                        .along(
                            lambda inner, axes=axes: [None if a is None else inner[a] for a in axes]
                        )
                        .times(x, names)
                        .degree
                    ]
                )

        return Form(self.kind, total(parts()), self.pure)

    def varies(self, axis: int) -> bool:
        return any(axes[axis] is not None for _, axes, _ in self.degree)

    def has(self, symbol: Symbol) -> bool:
        return any(s is symbol for s, *_ in self.degree)


ANY = Form("any")


def total(degrees) -> Degree:
    """A sum of degrees, without what cancels but for the rounding of constants."""
    found, size = {}, {}
    for degree in degrees:
        for key, x in degree.items():
            found[key], size[key] = found.get(key, 0.0) + x, max(size.get(key, 0.0), abs(x))
    return {key: x for key, x in found.items() if abs(x) > 1e-5 * size[key]}


def equal(a: Form, b: Form) -> bool:
    return a.kind == b.kind and not total((a.degree, {k: -x for k, x in b.degree.items()}))


def joined(kind: str, forms: list[Form], pure: bool) -> Form | None:
    """Degrees added; None where nothing is left."""
    degree = total(f.degree for f in forms)
    return Form(kind, degree, pure) if degree else None


def born(symbol: Symbol, axes: Iterable[bool]) -> Form:
    """A maximum itself, that differs along some of its axes."""
    return Form(
        "add",
        {(symbol, tuple(i if differs else None for i, differs in enumerate(axes)), ()): 1.0},
        True,
    )


def fails(what: str, op: Operation):
    raise Unproved(f"it reaches '{op.name}'{what}")


def is_running_maximum(loop: scf.ForOp, argument: BlockArgument) -> ew.Elementwise | None:
    """The `tile.max` of a carried value with something else that the loop carries on."""
    result = loop.body.block.last_op.operands[argument.index - 1]
    op = result.owner
    if (
        not isinstance(op, ew.CLASSES["max"])
        or op.parent is not loop.body.block
        or not is_float(element_of(result.type))
    ):
        return None
    return op if any(v is argument for v in op.operands) and op.lhs is not op.rhs else None


class Forms:
    """The forms of values, found operation by operation in program order."""

    def __init__(self):
        self.of: dict[SSAValue, Form] = {}

    # ---- loops and branches
    # ------------------------------------------------------------------------------------------
    def loop(self, loop: scf.ForOp) -> dict[SSAValue, SSAValue]:
        """Forms of what a loop carries, of its body and its results; for each running maximum among
        them the one it becomes.
        """
        body, given = loop.body.block, [self.of.get(v) for v in loop.iter_args]
        slots = {a: op.result for a in body.args[1:] if (op := is_running_maximum(loop, a))}
        back = {
            new: born(old, [n > 1 for n in getattr(old.type, "extents", ())])
            for old, new in slots.items()
        }
        touched = self._touched(body, slots)
        for argument in body.args[1:]:
            extents = argument.type.extents if isinstance(argument.type, TileType) else ()
            self._set(
                argument,
                (
                    born(argument, [n > 1 for n in extents])
                    if argument in slots
                    else ANY
                    if argument in touched
                    else None
                ),
            )
        for _ in range(ROUNDS):
            self.block(body)
            ends = [
                form if (form := self.of.get(v)) in (None, ANY) else form.put(back)
                for v in body.last_op.operands
            ]
            unknown = [
                (a, end)
                for a, end in zip(body.args[1:], ends, strict=False)
                if self.of.get(a) is ANY and end is not ANY
            ]
            if not unknown:
                break
            for argument, end in unknown:
                self._set(argument, end)
        if any(
            form.has(a)
            for v in body.last_op.operands
            if (form := self.of.get(v)) is not None
            for a in slots
        ):
            raise Unproved("the loop carries on what is relative to the maximum before")
        for argument, end in zip(body.args[1:], ends, strict=False):
            now = self.of.get(argument)
            if (
                now is ANY
                or (now is None) != (end is None)
                or now is not None
                and not equal(now, end)
            ):
                raise Unproved("what the loop carries does not keep its degree")
            for value in (
                v
                for s, _, names in (now.degree if now else ())
                for v in (s, *names)
                if v not in slots
            ):
                if is_inside(value, loop):
                    raise Unproved("what the loop carries depends on a number of each iteration")
        # what comes in already has a form where this loop goes on with another's results: the same
        # one, of the maximum that comes in
        origin = {
            a: self.of[v]
            for a, v in zip(body.args[1:], loop.iter_args, strict=False)
            if a in slots and v in self.of
        }
        for argument, value, had in zip(body.args[1:], loop.iter_args, given, strict=False):
            want = self.of.get(argument)
            if had is None and (want is None or not origin or constant(value) == 0):
                continue
            if had is None or want is None:
                raise Unproved("another loop goes on with part of it")
            if not equal(want.put(origin), had):
                raise Unproved("another loop goes on with it in another form")
        for argument, result in zip(body.args[1:], loop.results, strict=False):
            self._set(result, self.of.get(argument))
        return slots

    def _touched(self, body: Block, slots: dict) -> set[SSAValue]:
        """The carried values that a running maximum reaches, in however many iterations."""
        touched: set[SSAValue] = set(slots)
        while True:
            seen = set(touched)
            for op in body.ops:
                if any(v in seen for inner in op.walk() for v in inner.operands):
                    seen |= set(op.results)
            more = {
                a for a, v in zip(body.args[1:], body.last_op.operands, strict=False) if v in seen
            }
            if more <= touched:
                return touched
            touched |= more

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.visit(op)

    def after(self, op: Operation) -> None:
        """Everything that the results of a loop or branch can reach."""
        while (op_next := op.next_op) is not None:
            op = op_next
            self.visit(op)
        parent = op.parent_op()
        if not isinstance(op, scf.YieldOp):
            return
        if not isinstance(parent, scf.IfOp):
            if any(v in self.of for v in op.operands):
                raise Unproved("a loop round it carries it on")
            return
        self._branch(parent, inside=True)
        self.after(parent)

    def _branch(self, op: scf.IfOp, inside: bool = False) -> None:
        """inside: every maximum was born in the branch, so the results of its other side are those
        of a program without them.
        """
        if op.cond in self.of:
            fails(" as its condition", op)
        ends = [region.block.last_op.operands if region.blocks else () for region in op.regions]
        for i, result in enumerate(op.results):
            forms = [self.of.get(end[i]) for end in ends]
            found = next((f for f in forms if f is not None), None)
            for end, form in (
                zip(ends, forms, strict=False) if found not in (None, ANY) and not inside else ()
            ):
                if form is not ANY and not (
                    found.kind == "mul" and constant(end[i]) == 0
                    if form is None
                    else equal(form, found)
                ):
                    raise Unproved("a branch gives it in two forms")
            self._set(result, found)

    # ---- operations
    # ----------------------------------------------------------------------------------------------
    def _set(self, value: SSAValue, form: Form | None) -> None:
        if form is None:
            self.of.pop(value, None)
        else:
            self.of[value] = form

    def visit(self, op: Operation) -> None:
        forms = [self.of.get(v) for v in op.operands]
        match op:
            case scf.YieldOp() | tile.Yield() | tile.Return():
                return
            case scf.ForOp() if any(forms[:3]):
                fails(" as a bound", op)
            case scf.ForOp() if any(forms):
                self.loop(op)
                return
            case scf.ForOp() if any(v in self.of for inner in op.walk() for v in inner.operands):
                self.block(op.body.block)
                if any(v in self.of for v in op.body.block.last_op.operands):
                    raise Unproved("another loop carries what depends on it")
                return
            case scf.IfOp():
                for region in op.regions:
                    for block in region.blocks:
                        self.block(block)
                self._branch(op)
                return
            case _ if op.regions:
                if any(v in self.of for inner in op.walk() for v in inner.operands):
                    fails("", op)
                return
        if not any(forms):
            for r in op.results:
                self._set(r, None)
            return
        if len(op.results) != 1:
            fails("", op)
        self._set(op.results[0], self.result(op, forms))

    def result(self, op: Operation, forms: list[Form | None]) -> Form | None:
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
            case tile.Splat() if isinstance(op.result.type, TileType):
                return first.along(lambda _: [None] * op.result.type.rank)
            case tile.Broadcast():
                return first
            case tile.Transpose():
                return first.along(lambda axes: [axes[p] for p in op.permutation.get_values()])
            case tile.Reshape():
                return first.along(lambda axes: self._reshaped(op, axes))
            case tile.Slice() if all(
                n == m or not first.varies(i)
                for i, (n, m) in enumerate(
                    zip(op.arg.type.extents, op.result.type.extents, strict=False)
                )
            ):
                return first
            case tile.Reduce() if len(op.args) == 1:
                return self._reduce(op, first)
            case tile.Dot():
                return self._dot(op, forms)
        fails("", op)

    def _guess(self, op: Operation, forms: list[Form | None]) -> Form | None:
        """With an operand of a form not known yet: what does not depend on it."""
        known = [f for f in forms if f is not None and f is not ANY]
        match op:
            case ew.Elementwise() if op.fn.name in ("add", "sub") and known:
                return known[0]
            case ew.Elementwise() if op.fn.name == "fma" and forms[2] not in (None, ANY):
                return forms[2]
            case tile.Dot() if ANY not in forms[:2] and (forms[0] or forms[1]):
                return self._product(op, *forms[:2])
            case tile.Dot() if forms[2] not in (None, ANY):
                return forms[2]
            case ew.Elementwise() if op.fn.truth:
                return None
        return ANY

    def _elementwise(
        self, op: ew.Elementwise, forms: list[Form | None], known: list[Form]
    ) -> Form | None:
        name, kinds, first = op.fn.name, {f.kind for f in known}, known[0]
        pure = all(f is not None and f.pure for f in forms)
        if len(kinds) > 1:
            fails(" with a power of it", op)
        kind = kinds.pop()
        match name:
            case "add" | "sub" if kind == "add":
                return joined(
                    "add",
                    [
                        f if i == 0 or name == "add" else f.times(-1)
                        for i, f in enumerate(forms)
                        if f
                    ],
                    pure,
                )
            case "add" | "sub" | "max" | "min" if kind == "mul":
                return self._alike(op, forms)
            case "max" if kind == "add":
                return born(
                    op.result,
                    [
                        any(f.varies(i) for f in known)
                        for i in range(getattr(op.result.type, "rank", 0))
                    ],
                )
            case "neg":
                return first.times(-1) if kind == "add" else first
            case "mul" if kind == "mul":
                return joined("mul", known, pure)
            case "mul" if len(known) == 1:
                return first.times(
                    *self._factor(op.operands[1 - forms.index(first)]), pure=first.pure
                )
            case "fma" if kind == "mul" and forms[2] is not None:
                product = joined("mul", [f for f in forms[:2] if f], False)
                if product is None:
                    fails("", op)
                return self._alike(op, [product, forms[2]], (None, op.operands[2]))
            case "fma" if kind == "mul":
                return (
                    joined("mul", known, False)
                    if forms[2] or constant(op.operands[2]) == 0
                    else fails("", op)
                )
            case "fma" if not (forms[0] and forms[1]):
                parts = [
                    f.times(*self._factor(op.operands[1 - i])) for i, f in enumerate(forms[:2]) if f
                ] + [f for f in forms[2:] if f]
                return joined("add", parts, False)
            case "div" | "div_rn" if kind == "mul":
                return joined(
                    "mul", [f if i == 0 else f.times(-1) for i, f in enumerate(forms) if f], pure
                )
            case "div" | "div_rn" if forms[1] is None and constant(op.rhs):
                return first.times(1 / constant(op.rhs))
            case "reciprocal" if kind == "mul":
                return first.times(-1)
            case "sqrt" if kind == "mul":
                return first.times(0.5)
            case "rsqrt" if kind == "mul":
                return first.times(-0.5)
            case "abs" if kind == "mul":
                return first
            case "exp2" if kind == "add":
                return first.times(1, kind="mul")
            case "exp" if kind == "add":
                return first.times(LOG2E, kind="mul")
            case "log2" if kind == "mul":
                return first.times(1, kind="add", pure=False)
            case "log" if kind == "mul":
                return first.times(1 / LOG2E, kind="add", pure=False)
            case _ if op.fn.truth and len(known) == 1 and len(op.operands) == 2:
                other = constant(op.operands[1 - forms.index(first)])
                if other is not None and (other == 0 if kind == "mul" else isinf(other)):
                    return None
        fails("", op)

    def _alike(self, op: Operation, forms: list[Form | None], values=None) -> Form:
        """Powers of one degree, and zeros."""
        found = next(f for f in forms if f is not None)
        for value, form in zip(values or op.operands, forms, strict=False):
            if not (constant(value) == 0 if form is None else equal(form, found)):
                fails(" beside another power", op)
        return Form("mul", found.degree)

    def _factor(self, value: SSAValue) -> tuple[float, tuple[SSAValue, ...]]:
        """A factor that is invariant: a number, or a scalar by name."""
        root = value
        while isinstance(root.owner, (tile.Splat, tile.Broadcast, tile.Reshape)) and isinstance(
            root.type, TileType
        ):
            root = root.owner.operands[0]
        if (number := constant(root)) is not None:
            return float(number), ()
        return 1.0, (value if isinstance(root.type, TileType) else root,)

    def _select(self, op: ew.Select, forms: list[Form | None]) -> Form:
        if forms[0] is not None:
            fails(" as a condition", op)
        if (source := guarded(op)) is not None and source in self.of:
            return self.of[source]
        found = forms[1] or forms[2]
        for value, form in zip(op.operands[1:], forms[1:], strict=False):
            if not (
                equal(form, found)
                if form is not None
                else found.kind == "mul" and constant(value) == 0
            ):
                fails(" beside another value", op)
        return Form(found.kind, found.degree)

    def _reshaped(self, op: tile.Reshape, axes) -> list[int | None]:
        """Only extents of 1 may come and go where d differs."""
        old, new = op.arg.type.extents, op.result.type.extents
        if [n for n in old if n > 1] == [n for n in new if n > 1]:
            rest = iter([a for a, n in zip(axes, old, strict=False) if n > 1])
            return [next(rest) if n > 1 else None for n in new]
        if all(a is None for a in axes):
            return [None] * len(new)
        fails("", op)

    def _dot(self, op: tile.Dot, forms: list[Form | None]) -> Form:
        product = self._product(op, *forms[:2])
        if product is None:
            fails(" as a sum", op)
        return self._alike(op, [product, forms[2]], (None, op.acc))

    def _product(self, op: tile.Dot, a: Form | None, b: Form | None) -> Form | None:
        """Of one factor that has a form, with d the same all along the axis that is summed."""
        if a is None and b is None:
            return None
        rank = op.result.type.rank
        if (
            a is not None
            and b is not None
            or (a or b).kind != "mul"
            or (a or b).varies(rank - 1 if a else rank - 2)
        ):
            fails("", op)
        return Form(
            "mul",
            (
                a.along(lambda axes: (*axes[:-1], None))
                if a
                else b.along(lambda axes: (*axes[:-2], None, axes[-1]))
            ).degree,
        )

    def _reduce(self, op: tile.Reduce, form: Form) -> Form:
        """Where d is the same along the axis; or the maximum of maxima, which is another one."""
        axis, kind = op.axis.value.data, op.kind.data
        if kind == "max" and form.kind == "add" and form.varies(axis):
            return born(
                op.result, [form.varies(i) for i in range(op.args[0].type.rank) if i != axis]
            )
        if form.varies(axis) or kind not in ("max", "min") and (kind, form.kind) != ("sum", "mul"):
            fails("", op)
        return form.along(lambda axes: (*axes[:axis], *axes[axis + 1 :]))


def guarded(op: Operation) -> SSAValue | None:
    """`where(m == −inf, number, m)`: m, unless nothing has been seen yet. Gives m."""
    if not isinstance(op, ew.Select) or not isinstance(op.condition.owner, ew.Binary):
        return None
    test = op.condition.owner
    values = [v for v in (test.lhs, test.rhs) if constant(v) is None]
    if len(values) != 1 or constant(test.rhs if values[0] is test.lhs else test.lhs) != -inf:
        return None
    degenerate, regular = (
        (op.if_true, op.if_false) if test.fn.name == "eq" else (op.if_false, op.if_true)
    )
    if test.fn.name not in ("eq", "ne", "gt" if values[0] is test.lhs else "lt"):
        return None
    return regular if regular is values[0] and constant(degenerate) is not None else None


def prove(loop: scf.ForOp) -> Forms:
    """The forms of everything that the running maxima of a loop reach. Raises Unproved where
    something that they change leaves the kernel.
    """
    forms = Forms()
    forms.loop(loop)
    forms.after(loop)
    return forms
