"""Loops and branches. (Which tiles keep their registers through a loop: register_coalescing.py.)

Scalars are uniform over the instance, so every branch is.  A carried value is in registers of its
own; where a loop ends or starts again they are moved all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.codegen.ptx import kept_operands, traps
from tkc.codegen.ptx.conversions import limits
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.equal_readers import merges_iterations
from tkc.codegen.ptx.values import (
    SharedView,
    Tile,
    Value,
    compute_class,
    compute_type,
    registers_of,
)
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir.tile import Atomic, LoadPointers, Yield
from tkc.ir.types import PendingType, PointerType, SharedType, TileType, TokenType, is_float
from tkc.ir.values import terminator_of, yielded_by


def fresh(e: Emitter, value: SSAValue, like: Value) -> Value:
    """Registers for a carried value (those that register coalescing chose, if it did), in a value
    of the same kind as `like`. Raises CompileError for a type that nothing can carry.
    """
    t = value.type.tile if isinstance(value.type, PendingType) else value.type
    match t:
        case TileType():
            return Tile.of(t, e.destination(value) or e.w.many(*registers_of(t)))
        case TokenType():
            return None
        case SharedType() if isinstance(like, SharedView):
            memory = like.memory
            return SharedView(
                e.w.new("b32"), 0, memory, like.stages, like.stage_bytes, align=memory.itemsize
            )
        case _ if isinstance(t, PointerType) or is_float(t) or hasattr(t, "width"):
            return e.w.new(compute_class(t))
    e.fail(f"a loop or branch cannot carry {t}")


def carry(e: Emitter, names: Sequence[SSAValue], values: Sequence[SSAValue]) -> list[Value]:
    """Registers for `names`, in values of the kinds of `values`."""
    return [fresh(e, name, e.value(v)) for name, v in zip(names, values, strict=True)]


def moves_of(e: Emitter, into: Value, found: Value) -> Iterable[tuple[str, Operand]]:
    """The moves that make `into` what `found` is."""
    match into, found:
        case Tile(), Tile():
            registers = [r for r in into.registers if isinstance(r, str)]
            return zip(registers, found.registers, strict=True)
        case SharedView(), SharedView():
            at = e.w.op("add.s32", "b32", found.base, found.offset) if found.offset else found.base
            return [(e.w.register(into.base), at)]
        case str(), str() | int() | float():
            return [(into, found)]
        case _:
            return []


def assign(e: Emitter, into: Sequence[Value], values: Sequence[SSAValue]) -> None:
    """Carried values take the values yielded, all at once."""
    pairs = zip(into, values, strict=True)
    e.w.moves([move for target, v in pairs for move in moves_of(e, target, e.value(v))])


def bind(e: Emitter, names: Sequence[SSAValue], into: Sequence[Value]) -> None:
    """Records what each of `names` is."""
    e.values.update(zip(names, into, strict=True))


def branch(e: Emitter, condition: str, label: str, negate: bool = False) -> None:
    """A jump that all threads of the instance take, or none."""
    e.w.branch(label, condition, negate, e.uniform)


def _end_of(e: Emitter, op: scf.ForOp, upper: Integer, step: Integer) -> tuple[str, Integer, bool]:
    """The test that a loop goes on, what it compares with, and whether that is the counter before
    its step, not after it.
    """
    kind, cls = compute_type(op.lb.type), compute_class(op.lb.type)
    test = f"setp.lt.{kind}"
    if not e.ranges.may_wrap(op):
        return test, upper, False
    if kind[0] == "s" and e.ranges.known(op.lb).lo >= 0:
        # twice the largest number of the type is one without a sign
        return f"setp.lt.u{kind[1:]}", upper, False
    w, least = e.w, limits(op.lb.type)[0]
    if not isinstance(upper, str) and not isinstance(step, str):
        return test, max(upper, least + step) - step, True
    reached = w.op(f"add.{kind}", cls, step, least) if isinstance(step, str) else least + step
    return test, w.op(f"sub.{kind}", cls, w.op(f"max.{kind}", cls, upper, reached), step), True


@emitter(scf.ForOp)
def for_loop(e: Emitter, op: scf.ForOp) -> None:
    """The test is at the end; at the start there is one if the bounds are unknown."""
    w, body = e.w, op.body.block
    kind, cls = compute_type(op.lb.type), compute_class(op.lb.type)
    lower, upper, step = e.integer(op.lb), e.integer(op.ub), e.integer(op.step)
    variable, *arguments = body.args
    carried = carry(e, arguments, op.iter_args)
    assign(e, carried, op.iter_args)
    bind(e, op.results, carried)
    known = not isinstance(lower, str) and not isinstance(upper, str)
    if not isinstance(lower, str) and not isinstance(upper, str) and lower >= upper:
        return
    top, end = w.label("for"), w.label("end")
    test, bound, is_early = _end_of(e, op, upper, step)
    counter = w.new(cls)
    w.move(counter, lower)
    if not known:
        branch(e, w.op(f"setp.ge.{kind}", "pred", counter, upper), end)
    w.place(top)
    if merges_iterations(op.body.block):
        w.emit('.pragma "nounroll"')
    with w.scope():
        e.values[variable] = counter
        bind(e, arguments, carried)
        following = again = ""
        # at the end this uniform arithmetic would delay the dots of the next iteration
        if "ahead" in op.attributes:
            following = w.op(f"add.{kind}", cls, counter, step)
            again = w.op(test, "pred", counter if is_early else following, bound)
        e.block(body)
        assign(e, carried, yielded_by(body))
    if is_early and not again:
        again = w.op(test, "pred", counter, bound)
    if following:
        w.move(counter, following)
    else:
        w.op(f"add.{kind}", cls, counter, step, into=counter)
    branch(e, again or w.op(test, "pred", counter, bound), top)
    w.place(end)
    kept_operands.keep(e, op)


def _only_block(region: Region) -> Block | None:
    return region.block if region.blocks else None


def _is_more_than_a_yield(block: Block | None) -> bool:
    return block is not None and block.first_op is not block.last_op


@emitter(scf.IfOp)
def if_branch(e: Emitter, op: scf.IfOp) -> None:
    """One of two blocks; known conditions cost nothing."""
    w, condition = e.w, e.operand(op.cond)
    then, otherwise = _only_block(op.true_region), _only_block(op.false_region)
    if not isinstance(condition, str):
        return _taken(e, op, then if condition else otherwise)
    into: list[Value] = []

    def arm(block: Block | None) -> None:
        with w.scope():
            if block is None:
                return
            e.block(block)
            if op.results:
                yielded = yielded_by(block)
                into[:] = into or carry(e, op.results, yielded)
                assign(e, into, yielded)

    start_of_else, end = w.label("else"), w.label("end")
    branch(e, condition, start_of_else, negate=True)
    arm(then)
    if _is_more_than_a_yield(otherwise) or op.results:
        w.branch(end, uniform=e.uniform)
    w.place(start_of_else)
    arm(otherwise)
    w.place(end)
    bind(e, op.results, into)


def _taken(e: Emitter, op: scf.IfOp, block: Block | None) -> None:
    """The block of a condition that is known."""
    if block is None:
        return
    e.block(block)
    if op.results:
        for result, v in zip(op.results, yielded_by(block), strict=True):
            e.set(result, e.value(v))


@emitter(scf.WhileOp)
def while_loop(e: Emitter, op: scf.WhileOp) -> None:
    """before: computes and tests; after: the body."""
    w, before, after = e.w, op.before_region.block, op.after_region.block
    carried = carry(e, before.args, op.arguments)
    assign(e, carried, op.arguments)
    top, end = w.label("while"), w.label("end")
    began = w.op("mov.u64", "b64", "%globaltimer") if e.debug and polls(op) else None
    w.place(top)
    with w.scope():
        bind(e, before.args, carried)
        e.block(before)
        test, *values = terminator_of(before).operands
        passed = carry(e, op.results, values)
        assign(e, passed, values)
        branch(e, w.register(e.operand(test), "pred"), end, negate=True)
        if began:
            trap_if_late(e, op, began)
        with w.scope():
            bind(e, after.args, passed)
            e.block(after)
            assign(e, carried, yielded_by(after))
        w.branch(top, uniform=e.uniform)
    w.place(end)
    kept_operands.keep(e, op)
    bind(e, op.results, passed)


def polls(op: scf.WhileOp) -> bool:
    """Whether a loop reads again and again what other programs write."""
    return any(
        isinstance(inner, Atomic) or isinstance(inner, LoadPointers) and inner.semantics is not None
        for inner in op.walk()
    )


def trap_if_late(e: Emitter, op: scf.WhileOp, began: str) -> None:
    """TKC_DEBUG=1: such a loop ends."""
    e.at(op)
    spent = e.w.op("sub.s64", "b64", e.w.op("mov.u64", "b64", "%globaltimer"), began)
    traps.check(
        e,
        e.w.op("setp.gt.s64", "pred", spent, e.debug * 10**9),
        f"a loop that waits for other programs has not ended within {e.debug} s: what it waits for"
        " is not written, or by a program that has no room on the GPU until this one ends",
    )


@emitter(scf.YieldOp, scf.ConditionOp, Yield)
def terminator(e: Emitter, op: Operation) -> None:
    """The operation around the block takes the operands."""
