"""Element-wise operations: one function computes a scalar of widened operands; tiles apply it
element by element.

Runs of consecutive element-wise operations on tiles of one thread-to-register shape go group by
group through the whole run, so that intermediate values live for a few instructions only, and
results may overwrite operands whose live range ends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from xdsl.ir import Attribute, Operation, SSAValue

from tkc.codegen.ptx import halves, mathematics, small_integers
from tkc.codegen.ptx.access import either
from tkc.codegen.ptx.blocks import alike_along, fast_axis
from tkc.codegen.ptx.conversions import cast, normal
from tkc.codegen.ptx.coordinates import base, beyond, number
from tkc.codegen.ptx.elements import widen_pair
from tkc.codegen.ptx.emitter import RUNS, Emitter, emitter
from tkc.codegen.ptx.integers import (
    add,
    bitwise,
    displaced,
    is_narrow,
    is_power_of_two,
    narrowed,
    quotient_by_constant,
)
from tkc.codegen.ptx.values import (
    Tile,
    compute_class,
    compute_type,
    element_count,
    layout_of,
    packing,
    wrapped,
)
from tkc.codegen.ptx.writer import Integer, Operand, as_integer, braced
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.known_elements import known_elements, known_in_registers
from tkc.ir.ranges import NORMAL, Overflow, bounds, inverse, least
from tkc.ir.types import (
    PointerType,
    TileType,
    bits,
    element_of,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    i32,
    is_bool,
    is_float,
)
from tkc.ir.values import defining_op, owner_op, tile_type

Fusable = ew.Elementwise | ew.Select | ew.Cast | ew.PointerAdd
MAX_GROUP_ELEMENTS = 4  # the most that share a register


# ---- one element
def compute(e: Emitter, op: Fusable, args: Sequence[Operand]) -> Operand:
    """One element of an operation's result, widened, not yet rounded to a narrow type."""
    match op:
        case ew.Cast():
            source, target = element_of(op.arg.type), element_of(op.result.type)
            return cast(e, args[0], source, target, e.ranges.of(op.arg))
        case ew.Select():
            return select(e, element_of(op.result.type), *args)
        case ew.PointerAdd():
            t = element_of(op.pointer.type)
            assert isinstance(t, PointerType)
            size = bits(t.element) // 8
            return displaced(e, as_integer(args[0]), as_integer(args[1]), 1, size)
    if op.fn.name == "div" and (quotient := _special_quotient(e, op, *args)) is not None:
        return quotient
    return function(e, op.fn.name, element_of(op.args[0].type), args, value=op.args)


def _special_quotient(e: Emitter, op: ew.Elementwise, a: Operand, b: Operand) -> str | None:
    """A quotient by way of a reciprocal: a divisor that many elements share, or a constant."""
    if not isinstance(b, str):
        return None
    if isinstance(a, str):
        if not _repeats(op.args[1]) or bits(element_of(op.result.type)) >= 64:
            return None
        # several operations may divide by it, those of an epilogue in subtiles, say
        key = "divisor", owner_op(op.args[1]).operands[0], b
        return mathematics.quotient(e, a, *e.w.memo(key, lambda: mathematics.divisor(e, b)))
    return mathematics.inverse(e, a, b) if inverse(op) else None


def _repeats(value: SSAValue) -> bool:
    """Whether a tile holds each of its elements many times: a statistic of rows, say."""
    is_repeated = isinstance(value.owner, (tile.Broadcast, tile.Splat))
    return is_repeated and isinstance(value.type, TileType)


def select(e: Emitter, t: Attribute, condition: Operand, yes: Operand, no: Operand) -> Operand:
    """One of two elements of type `t`."""
    if not isinstance(condition, str):
        return yes if condition else no
    if yes == no and type(yes) is type(no):
        return yes
    if is_bool(t):
        return _select_truth(e, condition, yes, no)
    kind = compute_type(t)
    name = f"selp.{kind if kind[0] == 'f' else 'b' + kind[1:]}"
    return e.w.op(name, compute_class(t), yes, no, condition)


def _select_truth(e: Emitter, condition: str, yes: Operand, no: Operand) -> Operand:
    """condition and yes, or not condition and no."""
    if yes is True and no is False:
        return condition

    def conjunction(a: str, b: Operand) -> Operand:
        if isinstance(b, str):
            return e.w.op("and.pred", "pred", a, b)
        return a if b else False

    chosen = conjunction(condition, yes)
    if no is False:
        return chosen
    return either(e, chosen, conjunction(e.w.op("not.pred", "pred", condition), no))


_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def function(
    e: Emitter, name: str, t: Attribute, args: Sequence[Operand], value: Sequence[SSAValue] = ()
) -> Operand:
    """A function of FUNCTIONS on one element of type `t`; `value`: the SSA operands, where their
    ranges may help. Raises CompileError where it has no PTX form.
    """
    if not any(isinstance(a, str) for a in args):
        numbers = [a for a in args if not isinstance(a, str)]
        if (folded := _folded(name, t, numbers)) is not None:
            return folded
        args = [e.w.register(args[0], compute_class(t)), *args[1:]]
    kind, w = compute_type(t), e.w
    if kind == "pred":
        return _boolean(e, name, args)
    if kind[0] == "f" and name in mathematics.FUNCTIONS:
        return _function_of_floats(name, kind, value)(e, t, *args)
    if name in ew.COMPARISONS:
        relation = "neu" if name == "ne" and kind[0] == "f" else name
        if not isinstance(args[0], str):
            args, relation = args[::-1], _SWAPPED.get(relation, relation)
        return w.op(f"setp.{relation}.{kind}", "pred", *args)
    if kind[0] == "f":
        e.fail(f"'{name}' of {t} has no PTX form yet")
    return integer(e, name, t, [as_integer(a) for a in args], value)


def _function_of_floats(name: str, kind: str, value: Sequence[SSAValue]) -> mathematics.Function:
    """By name; where the operand is known to be a normal number, infinity or NaN, one for those."""
    if kind == "f32" and name in mathematics.OF_NORMALS and value and least(value[0]) >= NORMAL:
        return mathematics.OF_NORMALS[name]
    return mathematics.FUNCTIONS[name]


def _folded(name: str, t: Attribute, args: Sequence[float]) -> Operand | None:
    """A function of constants; None where it is left to the hardware."""
    if is_float(t):
        return None
    found = ew.of_integers(name, *args)
    if found is None:
        return None
    if name == "not" and is_bool(t):
        return not args[0]
    return bool(found) if name in ew.COMPARISONS or is_bool(t) else wrapped(found, t)


def _boolean(e: Emitter, name: str, args: Sequence[Operand]) -> Operand:
    """A function of truth values, one of which at least is in a predicate."""
    w = e.w

    def negated(x: Operand) -> str:
        return w.op("not.pred", "pred", x)

    if name == "not":
        return negated(args[0])
    if name in ("lt", "gt", "le", "ge"):  # False < True
        x, y = (w.register(a, "pred") for a in (args if name in ("lt", "le") else args[::-1]))
        return w.op("and.pred" if name in ("lt", "gt") else "or.pred", "pred", negated(x), y)
    a, b = args if isinstance(args[0], str) else args[::-1]
    if not isinstance(b, str):
        if name == "and":
            return a if b else False
        if name == "or":
            return True if b else a
        return a if bool(b) == (name == "eq") else negated(a)
    if name == "eq":
        return negated(w.op("xor.pred", "pred", a, b))
    return w.op(f"{'xor' if name == 'ne' else name}.pred", "pred", a, b)


# ---- integers
def integer(
    e: Emitter, name: str, t: Attribute, args: Sequence[Integer], value: Sequence[SSAValue] = ()
) -> Operand:
    """A function of integers, one of which at least is in a register."""
    w, kind, cls = e.w, compute_type(t), compute_class(t)
    n = kind[1:]
    a, b = (*args, 0)[:2]
    match name:
        case "mul" | "mulhi" if _are_both_halves_asked(e, name, t, args, value):
            return _wide_product(e, kind, a, b)[name == "mulhi"]
        case "mulhi":
            return _high_product(e, t, a, b)
        case "add" | "sub" | "mul":
            return _sum_or_product(e, name, t, a, b)
        case "max" | "min":
            return w.op(f"{name}.{kind}", cls, a, b)
        case "neg":
            return w.op(f"neg.s{n}", cls, a)
        case "abs":
            return w.op(f"abs.s{n}", cls, a) if kind[0] == "s" else a
        case "not":
            return w.op(f"not.b{n}", cls, a)
        case "and" | "or" | "xor":
            return bitwise(e, name, a, b, int(n))
        case "popcount" | "clz":
            return _bit_count(e, name, t, a)
        case "shl" | "shr":
            b = _amount(e, b, value)
            return w.op(f"shl.b{n}" if name == "shl" else f"shr.{kind}", cls, a, b, type="u32")
        case "floordiv" | "mod":
            return _floor_division(e, name, t, a, b, value)
        case "div_trunc" | "rem_trunc":
            return _truncating_division(e, name, t, a, b, value)
        case _:
            e.fail(f"'{name}' of {t} has no PTX form")


def _amount(e: Emitter, b: Integer, value: Sequence[SSAValue]) -> Integer:
    """How far an integer is shifted: 32 bits, which PTX clamps to the width; of 64 bits without a
    sign, as many as count.
    """
    if not isinstance(b, str):
        return min(b, 64) if b >= 0 else 64
    if is_narrow(b):
        return b
    known = e.ranges.of(value[1]) if len(value) > 1 else None
    fits = known is not None and known.lo >= 0 and known.hi < 1 << 32
    return narrowed(e, b if fits else e.w.op("min.u64", "b64", b, 64))


def _sum_or_product(e: Emitter, name: str, t: Attribute, a: Integer, b: Integer) -> Integer:
    kind, cls = compute_type(t), compute_class(t)
    if not isinstance(a, str) and name != "sub":
        a, b = b, a
    if name != "mul":
        return a if b == 0 else e.w.op(f"{name}.{kind}", cls, a, b)
    if not isinstance(b, str):
        if b in (0, 1):
            return a if b else 0
        if b > 0 and is_power_of_two(b):
            return e.w.op(f"shl.b{kind[1:]}", cls, a, b.bit_length() - 1, type="u32")
    return e.w.op(f"mul.lo.{kind}", cls, a, b)


def _high_product(e: Emitter, t: Attribute, a: Integer, b: Integer) -> str:
    kind, cls = compute_type(t), compute_class(t)
    if bits(t) >= 32:
        return e.w.op(f"mul.hi.{kind}", cls, a, b)
    product = e.w.op(f"mul.lo.{kind}", cls, a, b)
    return e.w.op(f"shr.{kind}", cls, product, bits(t), type="u32")


def _are_both_halves_asked(
    e: Emitter, name: str, t: Attribute, args: Sequence[Integer], value: Sequence[SSAValue]
) -> bool:
    """Whether of a product of 32 bits the other half is asked for, too."""
    if bits(t) != 32 or len(value) != 2 or not e.coalesced.isdisjoint(args):
        return False
    other = "mul" if name == "mulhi" else "mulhi"
    return any(
        isinstance(op := use.operation, ew.Elementwise)
        and op.fn.name == other
        and set(op.args) == set(value)
        for use in value[0].uses
    )


def _wide_product(e: Emitter, kind: str, a: Integer, b: Integer) -> list[str]:
    """Both halves of a product, by one instruction."""

    def make() -> list[str]:
        halves, whole = e.w.many("b32", 2), e.w.op(f"mul.wide.{kind}", "b64", a, b)
        e.w.emit(f"mov.b64 {braced(halves)}, {whole}")
        return halves

    return e.w.memo(("product", kind, *sorted((a, b), key=str)), make)


def _bit_count(e: Emitter, name: str, t: Attribute, a: Integer) -> str:
    """Ones, or leading zeros, of an integer, as one of its own type."""
    w, kind = e.w, compute_type(t)
    is_narrow = bits(t) < 32
    if is_narrow and kind[0] == "s":
        a = w.op("and.b32", "b32", a, (1 << bits(t)) - 1)
    found = w.op(f"{'popc' if name == 'popcount' else 'clz'}.b{kind[1:]}", "b32", a)
    if name == "clz" and is_narrow:
        found = w.op("sub.s32", "b32", found, 32 - bits(t))
    return w.op("cvt.u64.u32", "b64", found) if kind[1:] == "64" else found


def _floor_division(
    e: Emitter, name: str, t: Attribute, a: Integer, b: Integer, value: Sequence[SSAValue]
) -> Operand:
    """Quotients round down, remainders take the sign of the divisor."""
    w, kind, cls = e.w, compute_type(t), compute_class(t)
    n = kind[1:]
    if not isinstance(b, str) and b > 0 and is_power_of_two(b):
        if name == "mod":
            return w.op(f"and.b{n}", cls, a, b - 1)
        return w.op(f"shr.{kind}", cls, a, b.bit_length() - 1, type="u32")

    def positive(i: int, x: Integer) -> bool:
        return x > 0 if not isinstance(x, str) else i < len(value) and e.nonnegative(value[i])

    if kind == "s32" and not isinstance(b, str) and b > 0 and positive(0, a):
        found = quotient_by_constant(e, a, b)
        return (
            found
            if name == "floordiv"
            else w.op("sub.s32", cls, a, w.op("mul.lo.s32", cls, found, b))
        )
    if kind[0] == "u" or positive(0, a) and positive(1, b):
        found = _quotient(e, "div" if name == "floordiv" else "rem", f"u{n}", a, b, value)
        return _unless_zero(e, t, b, found, value)
    quotient = _quotient(e, "div", kind, a, b, value)
    rest = w.op(f"sub.{kind}", cls, a, w.op(f"mul.lo.{kind}", cls, quotient, b))
    other = w.op(f"setp.lt.{kind}", "pred", w.op(f"xor.b{n}", cls, rest, b), 0)
    off = w.op("and.pred", "pred", w.op(f"setp.ne.{kind}", "pred", rest, 0), other)
    found, correction = (quotient, -1) if name == "floordiv" else (rest, b)
    found = w.op(f"add.{kind}", cls, found, w.op(f"selp.b{n}", cls, correction, 0, off))
    return _unless_zero(e, t, b, found, value)


def _truncating_division(
    e: Emitter, name: str, t: Attribute, a: Integer, b: Integer, value: Sequence[SSAValue]
) -> Operand:
    """Quotients round towards zero, remainders take the sign of the dividend."""
    kind = compute_type(t)
    if kind[0] == "u":
        return _floor_division(e, {"div_trunc": "floordiv"}.get(name, "mod"), t, a, b, value)
    if not isinstance(b, str) and b > 0 and is_power_of_two(b):
        return _by_power_of_two(e, name, kind, a, b)
    found = _quotient(e, "div" if name == "div_trunc" else "rem", kind, a, b, value)
    return _unless_zero(e, t, b, found, value)


def _by_power_of_two(e: Emitter, name: str, kind: str, a: Integer, b: int) -> Operand:
    """A truncating division, of which the assembler calls a function where it is of 64 bits: what
    is negative is b - 1 more before it is shifted.
    """
    w, n, cls, by = e.w, int(kind[1:]), f"b{kind[1:]}", b.bit_length() - 1
    if by == 0:
        return a if name == "div_trunc" else 0
    sign = w.op(f"shr.{kind}", cls, a, n - 1, type="u32")
    raised = w.op(f"add.{kind}", cls, a, w.op(f"shr.u{n}", cls, sign, n - by, type="u32"))
    if name == "div_trunc":
        return w.op(f"shr.{kind}", cls, raised, by, type="u32")
    return w.op(f"sub.{kind}", cls, a, w.op(f"and.b{n}", cls, raised, -b))


def _quotient(
    e: Emitter, name: str, kind: str, a: Integer, b: Integer, value: Sequence[SSAValue]
) -> str:
    """A quotient, or remainder: of 32 bits where both numbers are known to have no more, since the
    assembler calls a function for one of 64.
    """
    w, short, signed = e.w, f"{kind[0]}32", kind[0] == "s"
    most = (1 << 32 - signed) - 1

    def is_short(i: int, x: Integer) -> bool:
        if not isinstance(x, str):
            return abs(x) <= most
        known = e.ranges.of(value[i]) if i < len(value) else None
        # the least dividend of 32 bits has no quotient by -1
        return known is not None and -(most + i) * signed <= known.lo and known.hi <= most

    if kind[1:] != "64" or not (is_short(0, a) and is_short(1, b)):
        return w.op(f"{name}.{kind}", f"b{kind[1:]}", a, b)
    low = [w.op(f"cvt.{short}.{kind}", "b32", x) if isinstance(x, str) else x for x in (a, b)]
    return w.op(f"cvt.{kind}.{short}", "b64", w.op(f"{name}.{short}", "b32", *low))


def _unless_zero(
    e: Emitter, t: Attribute, b: Integer, found: str, value: Sequence[SSAValue]
) -> Operand:
    """Division by zero is 0."""
    if not isinstance(b, str):
        return found if b else 0
    known = e.ranges.of(value[1]) if len(value) > 1 else None
    if known is not None and (known.lo > 0 or known.hi < 0):
        return found
    n = compute_type(t)[1:]
    return e.w.op(f"selp.b{n}", compute_class(t), found, 0, e.w.op(f"setp.ne.b{n}", "pred", b, 0))


# ---- scalars
@emitter(*ew.CLASSES.values(), ew.Select, ew.Cast, ew.PointerAdd)
def elementwise(e: Emitter, op: Fusable) -> None:
    """One operation, of scalars or of tiles."""
    if isinstance(op.result.type, TileType):
        return emit_run(e, [op])
    found = compute(e, op, [e.operand(v) for v in op.operands])
    is_choice = isinstance(op, ew.Select)  # which is as its type has it
    e.set(op.result, found if is_choice else normal(e, found, element_of(op.result.type)))


# ---- tiles
def shape_of(op: Operation) -> int | None:
    """How many elements a thread has of a fusable tile operation's result; None for others."""
    if not isinstance(op, Fusable) or not isinstance(op.result.type, TileType):
        return None
    return element_count(op.result.type)


def run_length(e: Emitter, ops: Sequence[Operation], start: int) -> int:
    """How many operations from `start` on may go register by register together."""
    first = shape_of(ops[start])
    if first is None:
        return 0
    seen: dict[str, int] = {}
    _record_reads(e, ops[start], seen)
    n = start + 1
    while (
        n < len(ops)
        and shape_of(ops[n]) == first
        and not _overwrites(e.destination(ops[n].results[0]), seen)
    ):
        _record_reads(e, ops[n], seen)
        n += 1
    return n - start


def _record_reads(e: Emitter, op: Operation, seen: dict[str, int]) -> None:
    """Records at which position each register is read: −1 if at several."""
    if not e.coalesced:
        return
    for v in op.operands:
        if isinstance(found := e.values.get(v), Tile):
            for i, r in enumerate(found.registers):
                if isinstance(r, str):
                    seen[r] = i if seen.get(r, i) == i else -1


def _overwrites(destination: list[str] | None, seen: dict[str, int]) -> bool:
    """Whether writing a destination position by position would change what is read, at another
    position, later on: a transposed view, say.
    """
    return destination is not None and any(seen.get(r, i) != i for i, r in enumerate(destination))


def emit_run(e: Emitter, ops: Sequence[Operation]) -> None:
    """A run of element-wise tile operations, group by group of elements."""
    Run(e, [op for op in ops if isinstance(op, Fusable)]).emit()


RUNS.append((run_length, emit_run))


class Run:
    """Element-wise operations on tiles of one thread-to-register shape."""

    def __init__(self, e: Emitter, ops: Sequence[Fusable]):
        self.e, self.all_ops = e, ops
        self.count = element_count(tile_type(ops[0].result))
        self.results: dict[SSAValue, list[Integer]] = {op.result: [] for op in ops}
        self.tiles = {
            v: e.tile(v)
            for op in ops
            for v in op.operands
            if isinstance(v.type, TileType) and v not in self.results
        }
        self.fused = contracted(e, ops)
        self.fields = {op: field for op in ops if (field := halves.field_of(e, op)) is not None}
        self.ops = [op for op in ops if not self._is_within(op)]
        self.destinations = {op: e.destination(op.result) for op in self.ops}
        seen: dict[str, int] = {}
        _record_reads(e, ops[0], seen)
        if _overwrites(self.destinations[self.ops[0]], seen):
            self.destinations[self.ops[0]] = None
        self.alike = {op: _alike(e, op) for op in self.ops}
        self.origins = {op: f for op in self.ops if (f := _origin(e, op)) is not None}
        self.truths = _known_truths(e, self.ops)

    def _is_within(self, op: Fusable) -> bool:
        """Whether another operation of the run computes what this one would."""
        if any(op is product for product, _ in self.fused.values()):
            return True
        is_shift = any(op is field.shift for field in self.fields.values())
        return is_shift and op.result.has_one_use()

    def emit(self) -> None:
        """The whole run; records what its results are."""
        count = self.count
        if count < MAX_GROUP_ELEMENTS:
            step = count
        else:
            step = next(n for n in (MAX_GROUP_ELEMENTS, 2, 1) if count % n == 0)
        for start in range(0, count, step):
            for op in self.ops:
                self._emit_group(op, start, step)
        for op in self.ops:
            self.e.set(op.result, Tile.of(tile_type(op.result), self.results[op.result]))

    def _emit_group(self, op: Fusable, start: int, step: int) -> None:
        """`step` elements of one operation."""
        e, t, found = self.e, tile_type(op.result), self.results[op.result]
        if self.destinations[op] is None:
            if op in self.origins:
                for i in range(start, start + step):
                    found.append(beyond(e, *self.origins[op], number(layout_of(t), i, 0)))
                return
            if (alike := self.alike[op]) > 1:
                for i in range(start, start + step):
                    if i % alike == 0:
                        truth = as_integer(self._of_operands(op, i, self._operands(op, i)))
                        found.append(e.owned(truth))
                    else:
                        found.append(found[-1])
                return
        p = packing(t.element, self.count)
        for first in range(start, start + step, p):
            found.append(self._emit_register(op, first, p))

    def _emit_register(self, op: Fusable, first: int, p: int) -> Integer:
        """The `p` elements that share a register."""
        e, element, destination = self.e, tile_type(op.result).element, self.destinations[op]
        since = e.w.count(compute_class(element))
        into = destination[first // p] if destination else None
        if (pair := self._float8_pair(op, first, p)) is not None:
            return widen_pair(e, *pair, into)
        if (found := self._halves(op, first, p, into)) is not None:
            return found
        elements = [self._compute(op, i) for i in range(first, first + p)]
        is_choice = isinstance(op, ew.Select)
        if isinstance(op, ew.Elementwise) and op.fn.name == "sub" and element == i32:
            self._record_differences(op, first, elements)
        if into is None:
            raw = e.owned(e.packed(elements, element, exact=is_choice))
            if p > 1 and not is_float(element) and _stays_in_range(e, op):
                e.remember(raw, elements, element)
            return raw
        if p > 1:
            return e.packed(elements, element, into, is_choice)
        e.w.deliver(into, e.packed(elements, element, exact=is_choice), since)
        return into

    def _compute(self, op: Fusable, i: int) -> Operand:
        """One element, widened."""
        if op in self.fused:
            product, other = self.fused[op]
            operands = [self._element(v, i) for v in (*product.operands, other)]
            return self.e.w.op("fma.rn.f32", "b32", *operands)
        args = self._operands(op, i)
        if _is_integer_comparison(op):
            args = _apart(self.e, op, *args)
        if "small" in op.attributes and args[0] in self.e.sums:
            return self._converted_sum(*self.e.sums[args[0]])
        return self._of_operands(op, i, args)

    def _of_operands(self, op: Fusable, i: int, args: Sequence[Operand]) -> Operand:
        """One element, which may be known without them."""
        if op in self.truths and (truth := self.truths[op][i]) is not None:
            return bool(truth)
        return compute(self.e, op, args)

    def _converted_sum(self, origin: Integer, distance: int) -> str:
        """origin + distance as a float32, both of which it has exactly: the conversion of the
        origin, which many elements share, and a sum of floats, which is twice as fast.
        """
        w = self.e.w
        first = w.memo(("float", origin), lambda: w.op("cvt.rn.f32.s32", "b32", origin))
        return w.op("add.f32", "b32", first, float(distance)) if distance else first

    def _operands(self, op: Fusable, i: int) -> list[Operand]:
        return [self._element(v, i) for v in op._operands]

    def _element(self, v: SSAValue, i: int) -> Operand:
        if v in self.tiles:
            return self.e.element(self.tiles[v], i)
        if v not in self.results:
            return self.e.operand(v)  # a scalar
        return self.e.element(self._held(v), i)

    def _record_differences(self, op: ew.Elementwise, first: int, found: list[Operand]) -> None:
        """Differences of sums with constants, where none wraps, are one value for many elements and
        constants: what compares these may compare that.
        """
        e = self.e
        if "exact" not in op.attributes and e.ranges.overflow(op) is not Overflow.NEVER:
            return
        for i, x in enumerate(found, first):
            sums = _sums(e, *self._operands(op, i))
            if sums is None or not isinstance(x, str):
                continue
            (left, more), (right, less) = sums
            e.sums[x] = _shared_difference(e, "difference", "sub.s32", left, right), more - less

    def _halves(self, op: Fusable, first: int, p: int, into: str | None) -> Integer | None:
        """Two elements that share a register, by one instruction if there is one."""
        i = first // p
        if p != 2:
            return None
        if op in self.fields:
            return self.fields[op].emit(self.e, i, into)
        if isinstance(op, ew.Cast):
            known, target = self.e.ranges.of(op.arg), tile_type(op.result).element
            return small_integers.pair(self.e, self._held(op.arg), first, known, target, into)
        return halves.together(self.e, op, lambda v: self._register(v, i), into)

    def _register(self, v: SSAValue, i: int) -> Integer | None:
        """A register of a tile of which two elements share one."""
        if v not in self.tiles and v not in self.results:
            return None
        found = self._held(v)
        return found.registers[i] if found.pack == 2 else None

    def _held(self, v: SSAValue) -> Tile:
        """What there is of a tile so far."""
        return self.tiles.get(v) or Tile.of(tile_type(v), self.results[v])

    def _float8_pair(self, op: Fusable, first: int, p: int) -> tuple[str, Attribute, int] | None:
        """The register, type and half of it that two elements of a cast from float8 to float16 come
        from.
        """
        if not isinstance(op, ew.Cast) or p != 2 or op.arg not in self.tiles:
            return None
        source = tile_type(op.arg).element
        if tile_type(op.result).element != f16 or source not in (f8e4m3, f8e5m2):
            return None
        per_register = packing(source, self.count)
        if per_register != 4 or not self.e.has_float8():
            return None
        raw = self.tiles[op.arg].registers[first // per_register]
        return (raw, source, first % per_register // 2) if isinstance(raw, str) else None


def _stays_in_range(e: Emitter, op: Fusable) -> bool:
    """Whether what is computed of an integer operation's widened operands is its result, extended
    as its narrow type has it.
    """
    match op:
        case ew.Select():
            return True
        case ew.Cast():
            found, whole = e.ranges.of(op.arg), bounds(tile_type(op.result).element)
            if found is None or whole is None:
                return False
            return whole.lo <= found.lo and found.hi <= whole.hi
        case ew.Elementwise() if op.fn.name in ("and", "or", "xor", "min", "max", "shr"):
            return True
        case ew.Elementwise() if op.fn.name in ("add", "sub", "mul"):
            return e.ranges.overflow(op) is Overflow.NEVER
    return False


def _origin(e: Emitter, op: Fusable) -> tuple[Integer, bool] | None:
    """Where a thread's part of splat(x) + arange begins (its elements are that and constants), and
    that no sum wraps. Added to x one by one they would be as many values that do not change in a
    loop over x, which an assembler would keep in registers all through the loop, though only a mask
    at its end needs them.
    """
    if not _is_elementwise(op, "add", i32):
        return None
    for x, index in (op.args, op.args[::-1]):
        splat, arange = defining_op(x, tile.Splat), defining_op(index, tile.Arange)
        if splat is None or arange is None:
            continue
        if isinstance(scalar := e.operand(splat.arg), str):
            first = base(e, layout_of(tile_type(op.result)), 0)
            begin = add(e, scalar, add(e, first, arange.start.value.data))
            return begin, "exact" in op.attributes or e.ranges.overflow(op) is Overflow.NEVER
    return None


def _is_elementwise(op: Operation, name: str, element: Attribute) -> TypeGuard[ew.Elementwise]:
    """Whether an operation is that function, of that element type."""
    return (
        isinstance(op, ew.Elementwise)
        and op.fn.name == name
        and element_of(op.result.type) == element
    )


def _is_integer_comparison(op: Fusable) -> TypeGuard[ew.Elementwise]:
    return (
        isinstance(op, ew.Elementwise)
        and op.fn.name in ew.COMPARISONS
        and element_of(op.args[0].type) == i32
    )


Sum = tuple[Integer, int]


def _sums(e: Emitter, a: Operand, b: Operand) -> tuple[Sum, Sum] | None:
    """Two registers as operands plus constants, if one of them at least is known as such."""
    if not isinstance(a, str) or not isinstance(b, str):
        return None
    if a not in e.sums and b not in e.sums:
        return None
    return e.sums.get(a, (a, 0)), e.sums.get(b, (b, 0))


def _shared_difference(e: Emitter, key: str, name: str, left: Integer, right: Integer) -> str:
    return e.w.memo((key, left, right), lambda: e.w.op(name, "b32", left, right))


def _apart(e: Emitter, op: ew.Elementwise, a: Operand, b: Operand) -> list[Operand]:
    """What is compared for a comparison of (o + k) with a value that many elements share: their
    difference, which is one value for all of them, with a constant. Saturated, it is on the same
    side of a small constant as the true one.
    """
    sums = _sums(e, a, b) if any(_repeats(v) for v in op.args) else None
    if sums is None:
        return [a, b]
    (left, more), (right, less) = sums
    return [_shared_difference(e, "apart", "sub.sat.s32", left, right), less - more]


def _known_truths(e: Emitter, ops: Sequence[Fusable]) -> dict[Fusable, list[int | None]]:
    """Of each register the truth value that all threads hold there, where it depends on places in
    the tile alone: that no register but a thread's first is at the tile's first place, say.
    """
    found = {}
    for op in ops:
        t = tile_type(op.result)
        elements = known_elements(op.result, e.known) if is_bool(t.element) else None
        if elements is not None:
            found[op] = known_in_registers(elements, layout_of(t))
    return found


def _alike(e: Emitter, op: Fusable) -> int:
    """For how many elements that a thread holds one after the other a truth value is the same:
    whether a vector lies inside an array, say.
    """
    t = tile_type(op.result)
    axis = fast_axis(layout_of(t)) if is_bool(t.element) else None
    if axis is None:
        return 1
    return alike_along(e, op.result, axis, layout_of(t).vector(axis, 16))


def contracted(e: Emitter, ops: Sequence[Fusable]) -> dict[Operation, tuple[Operation, SSAValue]]:
    """The float32 sums of a run one of whose terms is a product that nothing else uses: fma, said
    outright. ptxas would contract most of them, but not those beside dots in flight. The operands
    of the product must still be there: nothing between the two is written to their registers.
    """
    found: dict[Operation, tuple[Operation, SSAValue]] = {}

    def kept(product: Fusable, at: int) -> bool:
        between = ops[ops.index(product) + 1 : at]
        written = [e.destination(other.result) for other in between]
        read = [e.destination(v) for v in product.operands]
        return not any(r is not None and r is w for r in read for w in written)

    for at, op in enumerate(ops):
        if not _is_elementwise(op, "add", f32):
            continue
        for term, other in (op.args, op.args[::-1]):
            product = next((o for o in ops if o is term.owner), None)
            if term is other or product is None or not _is_elementwise(product, "mul", f32):
                continue
            if term.has_one_use() and kept(product, at):
                found[op] = product, other
                break
    return found
