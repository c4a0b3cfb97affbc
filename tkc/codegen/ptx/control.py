"""Loops and branches. (Which tiles keep their registers through a loop: homes.py.)

Scalars are uniform over the instance, so every branch is.  A carried value lives in registers of its own; where a loop ends or
starts again they are moved all at once.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import SharedView, Tile, compute_class, compute_type, registers_of
from tkc.codegen.ptx.writer import Operand
from tkc.ir.tile import Atomic, LoadPointers, Yield
from tkc.ir.types import PendingType, PointerType, SharedType, TileType, TokenType, is_float


def fresh(e: Emitter, value: SSAValue, like):
    """Registers for a carried value (its home, if it has one), in a value of the same kind as
    `like`.
    """
    t = value.type.tile if isinstance(value.type, PendingType) else value.type
    match t:
        case TileType():
            kind, count = registers_of(t)
            return Tile.of(t, e.home(value) or e.w.many(kind, count))
        case TokenType():
            return None
        case SharedType():
            return SharedView(
                e.w.new("b32"),
                0,
                like.memory,
                like.stages,
                like.stage_bytes,
                align=like.memory.itemsize,
            )
        case _ if isinstance(t, PointerType) or is_float(t) or hasattr(t, "width"):
            return e.w.new(compute_class(t))
    e.fail(f"a loop or branch cannot carry {t}")


def pairs(e: Emitter, into, found) -> list[tuple[str, Operand]]:
    """The moves that make `into` what `found` is."""
    match into:
        case Tile():
            return list(zip(into.registers, found.registers, strict=True))
        case SharedView():
            at = e.w.op("add.s32", "b32", found.base, found.offset) if found.offset else found.base
            return [(into.base, at)]
        case None:
            return []
        case _:
            return [(into, found)]


def assign(e: Emitter, into: list, values) -> None:
    """Carried values take the values yielded, all at once."""
    e.w.moves(
        [
            move
            for target, v in zip(into, values, strict=True)
            for move in pairs(e, target, e.value(v))
        ]
    )


def bind(e: Emitter, names, into: list) -> None:
    for name, value in zip(names, into, strict=True):
        e.values[name] = value


def branch(e: Emitter, condition: str, label: str, negate: bool = False) -> None:
    e.w.raw(f"\t@{'!' if negate else ''}{condition} bra{e.uniform} {label};")


@emitter(scf.ForOp)
def for_loop(e: Emitter, op: scf.ForOp) -> None:
    w, body = e.w, op.body.block
    t = op.lb.type
    kind, cls = compute_type(t), compute_class(t)
    lower, upper, step = e.operand(op.lb), e.operand(op.ub), e.operand(op.step)
    carried = [fresh(e, a, e.value(v)) for a, v in zip(body.args[1:], op.iter_args, strict=False)]
    assign(e, carried, op.iter_args)
    bind(e, op.results, carried)
    known = not isinstance(lower, str) and not isinstance(upper, str)
    if known and lower >= upper:
        return
    top, end = w.label("for"), w.label("end")
    counter = w.new(cls)
    w.move(counter, lower)
    if not known:
        branch(e, w.op(f"setp.ge.{kind}", "pred", counter, upper), end)
    w.place(top)
    with w.scope():
        e.values[body.args[0]] = counter
        bind(e, body.args[1:], carried)
        following = again = None
        if (
            "ahead" in op.attributes
            # at the end some forty clocks of uniform arithmetic would stand between two iterations'
            # dots
        ):
            following = w.op(f"add.{kind}", cls, counter, step)
            again = w.op(f"setp.lt.{kind}", "pred", following, upper)
        e.block(body)
        assign(e, carried, body.last_op.operands)
    if following:
        w.move(counter, following)
    else:
        w.op(f"add.{kind}", cls, counter, step, into=counter)
    branch(e, again or w.op(f"setp.lt.{kind}", "pred", counter, upper), top)
    w.place(end)


@emitter(scf.IfOp)
def if_branch(e: Emitter, op: scf.IfOp) -> None:
    w, condition = e.w, e.operand(op.cond)
    blocks = [
        region.block if region.blocks else None for region in (op.true_region, op.false_region)
    ]
    if not isinstance(condition, str):
        taken = blocks[0 if condition else 1]
        if taken is None:
            return
        e.block(taken)
        for result, v in zip(
            op.results, taken.last_op.operands if op.results else (), strict=False
        ):
            e.set(result, e.value(v))
        return
    otherwise, end = w.label("else"), w.label("end")
    into: list | None = None
    for block, before, after in ((blocks[0], otherwise, end), (blocks[1], None, None)):
        if before:
            branch(e, condition, before, negate=True)
        with w.scope():
            if block is not None:
                e.block(block)
                if op.results:
                    yielded = block.last_op.operands
                    if into is None:
                        into = [
                            fresh(e, r, e.value(v))
                            for r, v in zip(op.results, yielded, strict=False)
                        ]
                    assign(e, into, yielded)
        if before:
            if blocks[1] is not None and blocks[1].first_op is not blocks[1].last_op or op.results:
                w.raw(f"\tbra{e.uniform} {after};")
            w.place(before)
    w.place(end)
    bind(e, op.results, into or [])


@emitter(scf.WhileOp)
def while_loop(e: Emitter, op: scf.WhileOp) -> None:
    """before: computes and tests; after: the body."""
    w, before, after = e.w, op.before_region.block, op.after_region.block
    carried = [fresh(e, a, e.value(v)) for a, v in zip(before.args, op.arguments, strict=False)]
    assign(e, carried, op.arguments)
    top, end = w.label("while"), w.label("end")
    began = w.op("mov.u64", "b64", "%globaltimer") if e.debug and awaits(op) else None
    w.place(top)
    with w.scope():
        bind(e, before.args, carried)
        e.block(before)
        test = before.last_op
        passed = [
            fresh(e, r, e.value(v)) for r, v in zip(op.results, test.operands[1:], strict=False)
        ]
        assign(e, passed, test.operands[1:])
        branch(e, w.register(e.operand(test.operands[0]), "pred"), end, negate=True)
        if began:
            bounded(e, op, began)
        with w.scope():
            bind(e, after.args, passed)
            e.block(after)
            assign(e, carried, after.last_op.operands)
        w.raw(f"\tbra{e.uniform} {top};")
    w.place(end)
    bind(e, op.results, passed)


def awaits(op: scf.WhileOp) -> bool:
    """Whether a loop looks again and again at what other programs write."""
    return any(
        isinstance(inner, Atomic) or isinstance(inner, LoadPointers) and inner.semantics is not None
        for inner in op.walk()
    )


def bounded(e: Emitter, op: scf.WhileOp, began: str) -> None:
    """TKC_DEBUG=1: such a loop ends."""
    from tkc.codegen.ptx.traps import check

    e.at(op)
    late = e.w.op(
        "setp.gt.s64",
        "pred",
        e.w.op("sub.s64", "b64", e.w.op("mov.u64", "b64", "%globaltimer"), began),
        e.debug * 10**9,
    )
    check(
        e,
        late,
        f"a loop that waits for other programs has not ended within {e.debug} s: what it waits for"
        " is not written, or by a program that has no room on the GPU until this one ends",
    )


@emitter(scf.YieldOp, scf.ConditionOp, Yield)
def terminator(e: Emitter, op) -> None:
    """The operation round it takes the operands."""
