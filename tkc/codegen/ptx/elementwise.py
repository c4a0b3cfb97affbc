"""Element-wise operations: one function computes a scalar of widened operands; tiles apply it
element by element.

Runs of consecutive element-wise operations on tiles of one thread-to-register shape go group by
group through the whole run, so that intermediate values live for a few instructions only, and
results may overwrite operands that end there.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Operation, SSAValue

from tkc.codegen.ptx import mathematics
from tkc.codegen.ptx.blocks import fast_axis, vector_of_mask
from tkc.codegen.ptx.conversions import cast, halves, has_fp8, normal
from tkc.codegen.ptx.coordinates import base, beyond, number
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.scalars import add, displaced
from tkc.codegen.ptx.values import Tile, compute_class, compute_type, packing, wrapped
from tkc.codegen.ptx.writer import Operand
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.ranges import Overflow, inverse
from tkc.ir.types import (
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

FUSABLE = (ew.Elementwise, ew.Select, ew.Cast, ew.PointerAdd)
GROUP = 4  # elements: the most that share a register


# ---- one element
# --------------------------------------------------------------------------------------------------
def compute(e: Emitter, op: Operation, args: Sequence[Operand]) -> Operand:
    """One element of an operation's result, widened, not yet rounded to a narrow type."""
    match op:
        case ew.Cast():
            return cast(e, args[0], element_of(op.arg.type), element_of(op.result.type))
        case ew.Select():
            return select(e, element_of(op.result.type), *args)
        case ew.Elementwise() if (
            op.fn.name == "div"
            and _repeats(op.args[1])
            and all(isinstance(a, str) for a in args)
            and bits(element_of(op.result.type)) < 64
        ):
            shared = op.args[1].owner.operands[
                0
            ]  # several operations may divide by it, those of an epilogue in pieces, say
            return mathematics.quotient(
                e,
                args[0],
                *e.w.memo(("divisor", shared, args[1]), lambda: mathematics.divisor(e, args[1])),
            )
        case ew.Elementwise() if (
            op.fn.name == "div" and not isinstance(args[0], str) and inverse(op)
        ):
            return mathematics.inverse(e, args[0], args[1])
        case ew.PointerAdd():
            return displaced(e, args[0], args[1], 1, bits(element_of(op.pointer.type).element) // 8)
        case _:
            return function(e, op.fn.name, element_of(op.operands[0].type), args, value=op.operands)


def _repeats(value: SSAValue) -> bool:
    """Whether a tile holds each of its elements many times: a statistic of rows, say."""
    return isinstance(value.owner, (tile.Broadcast, tile.Splat)) and isinstance(
        value.type, TileType
    )


def select(e: Emitter, t: Attribute, condition: Operand, yes: Operand, no: Operand) -> Operand:
    if not isinstance(condition, str):
        return yes if condition else no
    if yes == no and type(yes) is type(no):
        return yes
    w = e.w
    if is_bool(t):

        def otherwise():
            return w.op("not.pred", "pred", condition)

        if yes is True and no is False:
            return condition
        if yes is False and no is True:
            return otherwise()
        chosen = (
            condition
            if yes is True
            else False
            if yes is False
            else w.op("and.pred", "pred", condition, yes)
        )
        spared = (
            otherwise()
            if no is True
            else False
            if no is False
            else w.op("and.pred", "pred", otherwise(), no)
        )
        return (
            spared
            if chosen is False
            else chosen
            if spared is False
            else w.op("or.pred", "pred", chosen, spared)
        )
    kind = compute_type(t)
    return w.op(
        f"selp.{kind if kind[0] == 'f' else 'b' + kind[1:]}", compute_class(t), yes, no, condition
    )


COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_FOLD = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "max": max,
    "min": min,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "neg": lambda a: -a,
    "abs": abs,
    "not": lambda a: ~a,
}


def function(
    e: Emitter, name: str, t: Attribute, args: Sequence[Operand], value: Sequence[SSAValue] = ()
) -> Operand:
    """A function of FUNCTIONS on one element of type `t`; `value`: the SSA operands, where their
    ranges may help.
    """
    if not any(isinstance(a, str) for a in args):
        if not is_float(t) and name in _FOLD:
            return _folded(name, t, args)
        if not is_float(t) and name in ("floordiv", "mod") and args[1]:
            return wrapped(args[0] // args[1] if name == "floordiv" else args[0] % args[1], t)
        args = [e.w.register(a, compute_class(t)) if i == 0 else a for i, a in enumerate(args)]
    kind, w = compute_type(t), e.w
    if kind == "pred":
        return _boolean(e, name, args)
    if kind[0] == "f" and name in mathematics.FUNCTIONS:
        return mathematics.FUNCTIONS[name](e, t, *args)
    if name in COMPARISONS:
        relation = "neu" if name == "ne" and kind[0] == "f" else name
        if not isinstance(args[0], str):
            args, relation = (
                args[::-1],
                {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(relation, relation),
            )
        return w.op(f"setp.{relation}.{kind}", "pred", *args)
    if kind[0] == "f":
        e.fail(f"'{name}' of {t} has no PTX form yet")
    return integer(e, name, t, args, value)


def _folded(name: str, t: Attribute, args: Sequence[int]) -> Operand:
    found = _FOLD[name](*args)
    if name == "not" and is_bool(t):
        return not args[0]
    return bool(found) if name in COMPARISONS or is_bool(t) else wrapped(found, t)


def _boolean(e: Emitter, name: str, args: Sequence[Operand]) -> Operand:
    w = e.w
    if name == "not":
        return w.op("not.pred", "pred", args[0])
    a, b = args
    if not isinstance(a, str):
        a, b = b, a
    if name in ("lt", "gt", "le", "ge"):  # False < True
        x, y = args if name in ("lt", "le") else args[::-1]
        x, y = w.register(x, "pred"), w.register(y, "pred")
        return w.op(
            "and.pred" if name in ("lt", "gt") else "or.pred",
            "pred",
            w.op("not.pred", "pred", x),
            y,
        )
    if not isinstance(b, str):
        if name == "and":
            return a if b else False
        if name == "or":
            return True if b else a
        return a if bool(b) == (name == "eq") else w.op("not.pred", "pred", a)
    if name == "eq":
        return w.op("not.pred", "pred", w.op("xor.pred", "pred", a, b))
    return w.op(f"{'xor' if name == 'ne' else name}.pred", "pred", a, b)


# ---- integers
# --------------------------------------------------------------------------------------------------
def integer(
    e: Emitter, name: str, t: Attribute, args: Sequence[Operand], value: Sequence[SSAValue] = ()
) -> Operand:
    w, kind, cls = e.w, compute_type(t), compute_class(t)
    n = kind[1:]
    a, b = (*args, 0)[:2]
    match name:
        case "add" | "sub" | "mul" if not isinstance(a, str) and name != "sub":
            a, b = b, a
    match name:
        case "add" | "sub" if b == 0:
            return a
        case "mul" if not isinstance(b, str) and b in (0, 1):
            return a if b else 0
        case "mul" if not isinstance(b, str) and b > 0 and b & b - 1 == 0:
            return w.op(f"shl.b{n}", cls, a, b.bit_length() - 1, type="u32")
        case "add" | "sub":
            return w.op(f"{name}.{kind}", cls, a, b)
        case "mul":
            return w.op(f"mul.lo.{kind}", cls, a, b)
        case "mulhi":
            if bits(t) < 32:
                return w.op(
                    f"shr.{kind}", cls, w.op(f"mul.lo.{kind}", cls, a, b), bits(t), type="u32"
                )
            return w.op(f"mul.hi.{kind}", cls, a, b)
        case "max" | "min":
            return w.op(f"{name}.{kind}", cls, a, b)
        case "neg":
            return w.op(f"neg.s{n}", cls, a)
        case "abs":
            return w.op(f"abs.s{n}", cls, a) if kind[0] == "s" else a
        case "not":
            return w.op(f"not.b{n}", cls, a)
        case "and" | "or" | "xor":
            return w.op(f"{name}.b{n}", cls, a, b)
        case "popcount" | "clz":
            narrow_bits = bits(t) if bits(t) < 32 else 0
            if narrow_bits and kind[0] == "s":
                a = w.op("and.b32", "b32", a, (1 << narrow_bits) - 1)
            found = w.op(f"{'popc' if name == 'popcount' else 'clz'}.b{n}", "b32", a)
            if name == "clz" and narrow_bits:
                found = w.op("sub.s32", "b32", found, 32 - narrow_bits)
            return w.op("cvt.u64.u32", "b64", found) if n == "64" else found
        case "shl" | "shr":  # amounts of 64-bit shifts are 32-bit operands; PTX clamps them
            if isinstance(b, str) and n == "64":
                b = w.op("cvt.u32.u64", "b32", b)
            return w.op(f"shl.b{n}" if name == "shl" else f"shr.{kind}", cls, a, b, type="u32")
        case "floordiv" | "mod":
            return _floor_division(e, name, t, a, b, value)
    e.fail(f"'{name}' of {t} has no PTX form")


def _floor_division(
    e: Emitter, name: str, t: Attribute, a: Operand, b: Operand, value: Sequence[SSAValue]
) -> Operand:
    """Quotients round down, remainders take the sign of the divisor."""
    w, kind, cls = e.w, compute_type(t), compute_class(t)
    n = kind[1:]
    if not isinstance(b, str) and b > 0 and b & b - 1 == 0:
        return (
            w.op(f"shr.{kind}", cls, a, b.bit_length() - 1, type="u32")
            if name == "floordiv"
            else w.op(f"and.b{n}", cls, a, b - 1)
        )

    def positive(i, x):
        return x > 0 if not isinstance(x, str) else i < len(value) and e.nonnegative(value[i])

    if kind[0] == "u" or positive(0, a) and positive(1, b):
        return _unless_zero(
            e, t, b, w.op(f"{'div' if name == 'floordiv' else 'rem'}.u{n}", cls, a, b), value
        )
    quotient = w.op(f"div.{kind}", cls, a, b)
    rest = w.op(f"sub.{kind}", cls, a, w.op(f"mul.lo.{kind}", cls, quotient, b))
    other = w.op(f"setp.lt.{kind}", "pred", w.op(f"xor.b{n}", cls, rest, b), 0)
    off = w.op("and.pred", "pred", w.op(f"setp.ne.{kind}", "pred", rest, 0), other)
    found = (
        w.op(f"add.{kind}", cls, quotient, w.op(f"selp.b{n}", cls, -1, 0, off))
        if name == "floordiv"
        else w.op(f"add.{kind}", cls, rest, w.op(f"selp.b{n}", cls, b, 0, off))
    )
    return _unless_zero(e, t, b, found, value)


def _unless_zero(
    e: Emitter, t: Attribute, b: Operand, found: str, value: Sequence[SSAValue]
) -> Operand:
    """Division by zero gives 0."""
    if not isinstance(b, str):
        return found if b else 0
    known = e.ranges.of(value[1]) if len(value) > 1 else None
    if known is not None and (known.lo > 0 or known.hi < 0):
        return found
    n = compute_type(t)[1:]
    return e.w.op(f"selp.b{n}", compute_class(t), found, 0, e.w.op(f"setp.ne.b{n}", "pred", b, 0))


# ---- scalars
# --------------------------------------------------------------------------------------------------
@emitter(*ew.CLASSES.values(), ew.Select, ew.Cast, ew.PointerAdd)
def elementwise(e: Emitter, op: Operation) -> None:
    if isinstance(op.result.type, TileType):
        return emit_run(e, [op])
    t = element_of(op.result.type)
    e.set(op.result, normal(e, compute(e, op, [e.operand(v) for v in op.operands]), t))


# ---- tiles
# --------------------------------------------------------------------------------------------------
def shape_of(op: Operation) -> int | None:
    """How many elements a thread has of a fusable tile operation's result; None for others."""
    if not isinstance(op, FUSABLE) or not isinstance(op.results[0].type, TileType):
        return None
    return op.results[0].type.register_layout.num_registers


def run_length(e: Emitter, ops: list[Operation], start: int) -> int:
    """How many operations from `start` on may go register by register together."""
    first = shape_of(ops[start])
    if first is None:
        return 0
    seen: dict[str, int] = {}
    _expose(e, ops[start], seen)
    n = start + 1
    while (
        n < len(ops)
        and shape_of(ops[n]) == first
        and not (n > start and _clash(e.home(ops[n].result), seen))
    ):
        _expose(e, ops[n], seen)
        n += 1
    return n - start


def _expose(e: Emitter, op: Operation, seen: dict[str, int]) -> None:
    """Notes at which place each register is read: −1 if at several."""
    if not e.home_registers:
        return
    for v in op.operands:
        if isinstance(found := e.values.get(v), Tile):
            for i, r in enumerate(found.registers):
                if isinstance(r, str):
                    seen[r] = i if seen.get(r, i) == i else -1


def _clash(home: list[str] | None, seen: dict[str, int]) -> bool:
    """Whether writing a home place by place would change what is read, under another place, later
    on: a transposed view, say.
    """
    return home is not None and any(seen.get(r, i) != i for i, r in enumerate(home))


def emit_run(e: Emitter, ops: Sequence[Operation]) -> None:
    """A run of element-wise operations, group by group of elements."""
    count = shape_of(ops[0])
    results: dict[SSAValue, list[Operand]] = {op.result: [] for op in ops}
    tiles, seen = {}, {}
    for op in ops:
        for v in op.operands:
            if isinstance(v.type, TileType) and v not in results:
                tiles[v] = e.tile(v)
    _expose(e, ops[0], seen)
    fused = contracted(e, ops)
    products = {m for m, _ in fused.values()}
    ops = [op for op in ops if op not in products]
    step = GROUP if count % GROUP == 0 else count if count < GROUP else 2 if count % 2 == 0 else 1
    homes = {
        op: None if op is ops[0] and _clash(e.home(op.result), seen) else e.home(op.result)
        for op in ops
    }
    alike, origins = (
        {op: _alike(e, op) for op in ops},
        {op: found for op in ops if (found := _origin(e, op)) is not None},
    )
    for start in range(0, count, step):
        for op in ops:
            element, home = op.result.type.element, homes[op]
            if op in origins and home is None:
                for i in range(start, start + step):
                    results[op.result].append(
                        beyond(e, *origins[op], number(op.result.type.register_layout, i, 0))
                    )
                continue
            if alike[op] > 1 and home is None:
                for i in range(start, start + step):
                    results[op.result].append(
                        e.owned(
                            compute(e, op, [_element(e, v, i, tiles, results) for v in op.operands])
                        )
                        if i % alike[op] == 0
                        else results[op.result][-1]
                    )
                continue
            p = packing(element, count)
            for first in range(start, start + step, p):
                since = e.w.count(compute_class(element))
                if (pair := _float8_pair(e, op, first, p, count, tiles)) is not None:
                    results[op.result].append(halves(e, *pair, home[first // p] if home else None))
                    continue
                if op in fused:
                    product, other = fused[op]
                    elements = [
                        e.w.op(
                            "fma.rn.f32",
                            "b32",
                            *(
                                _element(e, v, i, tiles, results)
                                for v in (*product.operands, other)
                            ),
                        )
                        for i in range(first, first + p)
                    ]
                else:
                    near = (
                        isinstance(op, ew.Elementwise)
                        and op.fn.name in COMPARISONS
                        and op.args[0].type.element == i32
                    )
                    elements = [
                        compute(e, op, _apart(e, op, *found) if near else found)
                        for i in range(first, first + p)
                        for found in [[_element(e, v, i, tiles, results) for v in op.operands]]
                    ]
                if isinstance(op, ew.CLASSES["sub"]) and element == i32:
                    _note(e, op, first, elements, tiles, results)
                found = e.packed(elements, element, home[first // p] if home and p > 1 else None)
                if home and p == 1:
                    e.w.deliver(home[first], found, since)
                    found = home[first]
                results[op.result].append(found if home else e.owned(found))
    for op in ops:
        e.set(op.result, Tile.of(op.result.type, results[op.result]))


def _origin(e: Emitter, op: Operation) -> tuple[str, bool] | None:
    """Where a thread's part of splat(x) + arange begins (its elements are that and constants), and
    that no sum wraps. Added to x one by one they would be as many values that do not change in a
    loop over x, which an assembler would keep in registers all the way through, though only a mask
    at the loop's end needs them.
    """
    if not isinstance(op, ew.CLASSES["add"]) or op.result.type.element != i32:
        return None
    for x, index in (op.args, op.args[::-1]):
        if (
            isinstance(x.owner, tile.Splat)
            and isinstance(index.owner, tile.Arange)
            and isinstance(scalar := e.operand(x.owner.arg), str)
        ):
            return (
                add(
                    e,
                    scalar,
                    add(
                        e, base(e, op.result.type.register_layout, 0), index.owner.start.value.data
                    ),
                ),
                e.ranges.overflow(op) is Overflow.NEVER,
            )
    return None


def _apart(e: Emitter, op: Operation, a: Operand, b: Operand) -> list[Operand]:
    """What is compared for a comparison of (o + k) with something that many elements share: their
    difference, which is one value for all of them, with a constant. Saturated, it is on the same
    side of a small constant as the true one."""
    if (
        not any(_repeats(v) for v in op.args)
        or not isinstance(a, str)
        or not isinstance(b, str)
        or a not in e.sums
        and b not in e.sums
    ):
        return [a, b]
    (left, more), (right, less) = e.sums.get(a, (a, 0)), e.sums.get(b, (b, 0))
    return [
        e.w.memo(("apart", left, right), lambda: e.w.op("sub.sat.s32", "b32", left, right)),
        less - more,
    ]


def _note(
    e: Emitter,
    op: Operation,
    first: int,
    elements: list[Operand],
    tiles: dict[SSAValue, Tile],
    results: dict,
) -> None:
    """Differences of such values, where none wraps, are one value for many elements and constants:
    what compares these may compare that.
    """
    if "exact" not in op.attributes and e.ranges.overflow(op) is not Overflow.NEVER:
        return
    for i, found in enumerate(elements, first):
        a, b = (_element(e, v, i, tiles, results) for v in op.operands)
        if (
            not isinstance(found, str)
            or not isinstance(a, str)
            or not isinstance(b, str)
            or a not in e.sums
            and b not in e.sums
        ):
            continue
        (left, more), (right, less) = e.sums.get(a, (a, 0)), e.sums.get(b, (b, 0))
        e.sums[found] = (
            e.w.memo(
                ("difference", left, right),
                lambda left=left, right=right: e.w.op("sub.s32", "b32", left, right),
            ),
            more - less,
        )


def _alike(e: Emitter, op: Operation) -> int:
    """For how many elements that a thread holds one after the other a truth value is the same:
    whether a vector lies inside an array, say.
    """
    t = op.result.type
    axis = fast_axis(t.register_layout) if is_bool(t.element) else None
    return (
        1
        if axis is None
        else vector_of_mask(e, op.result, axis, t.register_layout.vector(axis, 16))
    )


def _float8_pair(
    e: Emitter, op: Operation, first: int, p: int, count: int, tiles: dict[SSAValue, Tile]
) -> tuple[str, Attribute, int] | None:
    """The register, type and half of it that two elements of a cast from float8 to float16 come
    from.
    """
    if (
        not isinstance(op, ew.Cast)
        or p != 2
        or op.result.type.element != f16
        or op.arg not in tiles
    ):
        return None
    source = op.arg.type.element
    each = packing(source, count)
    if source not in (f8e4m3, f8e5m2) or each != 4 or not has_fp8(e):
        return None
    raw = tiles[op.arg].registers[first // each]
    return (raw, source, first % each // 2) if isinstance(raw, str) else None


def contracted(e: Emitter, ops: Sequence[Operation]) -> dict[Operation, tuple[Operation, SSAValue]]:
    """The float32 sums of a run one of whose terms is a product that nothing else uses: fma, said
    outright. ptxas would contract most of them, but not those beside dots in flight. What is
    multiplied must still be there: nothing between the two is written to its home.
    """
    found: dict[Operation, tuple[Operation, SSAValue]] = {}

    def is_a(op, name):
        return isinstance(op, ew.CLASSES[name]) and element_of(op.result.type) == f32

    def kept(product, at):
        return not any(
            e.home(v) is not None and e.home(v) is e.home(other.result)
            for v in product.operands
            for other in ops[ops.index(product) + 1 : at]
        )

    for at, op in enumerate(ops):
        if not is_a(op, "add"):
            continue
        for term, other in (op.args, op.args[::-1]):
            if (
                term is not other
                and term.owner in ops
                and is_a(term.owner, "mul")
                and term.has_one_use()
                and kept(term.owner, at)
            ):
                found[op] = term.owner, other
                break
    return found


def _element(
    e: Emitter,
    v: SSAValue,
    i: int,
    tiles: dict[SSAValue, Tile],
    results: dict[SSAValue, list[Operand]],
) -> Operand:
    if v in tiles:
        return e.element(tiles[v], i)
    if v not in results:
        return e.operand(v)  # a scalar
    return e.element(Tile.of(v.type, results[v]), i)
