"""A smaller module with the same fault: `reduce(module, interesting)`.

Delta debugging over the IR. Each *move* makes candidates from a module; one that still verifies and
is still interesting takes its place; moves go on until none helps. Operations go in halves,
quarters, … down to single ones (what used their results gets a constant or an operand of the same
type), regions are inlined, carried values and arguments dropped, masks removed, extents and
constants made smaller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation, VarOperandDef
from xdsl.rewriter import Rewriter

from tkc.errors import Error
from tkc.ir import tile
from tkc.ir.text import parse, show
from tkc.ir.types import ArrayType, PointerType, element_of, is_float
from tkc.ir.values import block_of, operations_in, terminator_of
from tkc.ir.verify import verify

Interesting = Callable[[ModuleOp], bool]
# Changes a module, as its number says: the module, or whether it changed; None behind the last
Move = Callable[[ModuleOp, int], ModuleOp | bool | None]
Changed = ModuleOp | bool | None  # what a move gives
Value = TypeVar("Value")
FIXED = (ModuleOp, tile.Kernel, tile.Return, tile.Yield, scf.YieldOp, scf.ConditionOp)


def reduce(
    module: ModuleOp, interesting: Interesting, tell: Callable[[str], None] = lambda text: None
) -> ModuleOp:
    """The smallest module found that is interesting. Raises tkc.Error where the first is not."""
    module = clean(module)
    if not interesting(module.clone()):
        raise Error(
            "the module is not interesting to begin with: the test must accept it unchanged"
        )
    while True:
        before = show(module)
        for move in MOVES:
            module = _exhaust(module, move, interesting, tell)
        if show(module) == before:
            return module


def _exhaust(
    module: ModuleOp, move: Move, interesting: Interesting, tell: Callable[[str], None]
) -> ModuleOp:
    """A move as often as it helps: after a success the same number is tried again, for what was
    next has its place now.
    """
    number = 0
    tried: set[str] = set()
    while True:
        candidate = module.clone()
        found = move(candidate, number)
        if found is None:
            return module
        if (
            found is not False
            and (text := _sound(found if isinstance(found, ModuleOp) else candidate))
            and text not in tried
        ):
            tried.add(text)
            smaller = parse(text)
            if interesting(smaller.clone()):
                name = getattr(move, "__name__", "").replace("_", " ")
                tell(f"{name}: {len(text.splitlines())} lines")
                module = smaller
                continue
        number += 1


def clean(module: ModuleOp) -> ModuleOp:
    """The module by way of its text: source locations go."""
    return parse(show(module))


def _sound(module: ModuleOp) -> str | None:
    """The text of a module that verifies."""
    try:
        verify(module)
        text = show(module)
        verify(parse(text))
        return text
    except Exception:
        return None


# --------------------------------------------------------------------------------------------------
def _operations(module: ModuleOp) -> list[Operation]:
    return [op for op in module.walk() if not isinstance(op, FIXED)]


def _stand_in(value: SSAValue, op: Operation) -> SSAValue | None:
    """Something of the same type in place of an operation's result."""
    for operand in op.operands:
        if operand.type == value.type:
            return operand
    t = value.type
    if isinstance(t, ArrayType) or isinstance(element_of(t), PointerType) or not _is_number(t):
        return None
    constant = tile.Constant(1.0 if is_float(element_of(t)) else 1, t)
    block_of(op).insert_op_before(constant, op)
    return constant.result


def _is_number(t: Attribute) -> bool:
    try:
        tile.Constant(0, t)
        return True
    except Exception:
        return False


def _remove(op: Operation) -> bool:
    if op.parent is None:
        return True
    for result in op.results:
        if not result.has_one_use() and not list(result.uses):
            continue
        other = _stand_in(result, op)
        if other is None:
            return False
        result.replace_all_uses_with(other)
    op.detach()
    op.erase()
    return True


def _spans(n: int) -> Iterator[tuple[int, int]]:
    """Halves, quarters, … single ones, from the end."""
    size = n
    while size:
        for start in range(n - size, -size, -size):
            yield max(start, 0), start + size
        size = size // 2


def fewer_operations(module: ModuleOp, number: int) -> Changed:
    operations = _operations(module)
    spans = list(_spans(len(operations)))
    if number >= len(spans):
        return None
    low, high = spans[number]
    done = False
    for op in reversed(operations[low:high]):
        if isinstance(op, tile.Constant) and any(list(r.uses) for r in op.results):
            continue
        if op.parent is not None:
            done |= _remove(op)
    drop_unused(module)
    return module if done else False


def drop_unused(module: ModuleOp) -> None:
    """Drops operations without effect of which nothing uses a result."""
    again = True
    while again:
        again = False
        for op in reversed(_operations(module)):
            if (
                op.parent is not None
                and not op.regions
                and op.results
                and not any(list(r.uses) for r in op.results)
                and not isinstance(op, tile.Atomic)
            ):
                op.detach()
                op.erase()
                again = True


# --------------------------------------------------------------------------------------------------
def _inline(op: Operation, block: Block, arguments: Sequence[SSAValue]) -> None:
    last = terminator_of(block)
    for argument, value in zip(block.args, arguments, strict=False):
        argument.replace_all_uses_with(value)
    results = list(last.operands)[1:] if isinstance(last, scf.ConditionOp) else list(last.operands)
    last.detach()
    last.erase()
    for inner in list(block.ops):
        inner.detach()
        block_of(op).insert_op_before(inner, op)
    for result, value in zip(op.results, results, strict=False):
        result.replace_all_uses_with(value)
    op.detach()
    op.erase()


def flat_control(module: ModuleOp, number: int) -> Changed:
    """A loop becomes one round of it, or what it starts from; a branch one of its sides."""
    found = [
        (op, way)
        for op in module.walk()
        if isinstance(op, (scf.ForOp, scf.IfOp, scf.WhileOp))
        for way in range(2)
    ]
    if number >= len(found):
        return None
    op, way = found[number]
    match op:
        case scf.ForOp() if way:
            _inline(op, op.body.block, (op.lb, *op.iter_args))
        case scf.IfOp():
            region = op.false_region if way else op.true_region
            if not region.blocks:
                return False
            _inline(op, region.block, ())
        case scf.WhileOp() if way:
            _inline(op, op.before_region.block, op.arguments)
        case scf.ForOp() | scf.WhileOp():
            starts = op.iter_args if isinstance(op, scf.ForOp) else op.arguments
            if len(starts) != len(op.results):
                return False
            for result, value in zip(op.results, starts, strict=False):
                result.replace_all_uses_with(value)
            op.detach()
            op.erase()
    return module


def fewer_carried(module: ModuleOp, number: int) -> Changed:
    """A loop carries one value less; a branch gives one less."""
    found = [
        (op, i)
        for op in module.walk()
        if isinstance(op, (scf.ForOp, scf.IfOp))
        for i in range(len(op.results))
    ]
    if number >= len(found):
        return None
    op, i = found[number]
    value = op.iter_args[i] if isinstance(op, scf.ForOp) else _stand_in(op.results[i], op)
    if value is None:
        return False
    op.results[i].replace_all_uses_with(value)
    for region in op.regions:
        if region.blocks:
            last = terminator_of(region.block)
            Rewriter.replace_op(last, scf.YieldOp(*_without(last.operands, i)))
    new = _loop_without(op, i, value) if isinstance(op, scf.ForOp) else _branch_without(op, i)
    block_of(op).insert_op_before(new, op)
    for old, fresh in zip(_without(op.results, i), new.results, strict=True):
        old.replace_all_uses_with(fresh)
    op.detach()
    op.erase()
    drop_unused(module)
    return module


def _without(values: Sequence[Value], number: int) -> list[Value]:
    return [v for i, v in enumerate(values) if i != number]


def _loop_without(op: scf.ForOp, i: int, value: SSAValue) -> scf.ForOp:
    """The loop with its body, where a value stands in for one that it carries."""
    argument = op.body.block.args[i + 1]
    argument.replace_all_uses_with(value)
    op.body.block.erase_arg(argument)
    body = op.detach_region(op.body)
    return scf.ForOp(op.lb, op.ub, op.step, _without(op.iter_args, i), body)


def _branch_without(op: scf.IfOp, i: int) -> scf.IfOp:
    true, false = (op.detach_region(r) for r in list(op.regions))
    return scf.IfOp(op.cond, _without([r.type for r in op.results], i), true, false)


# --------------------------------------------------------------------------------------------------
def fewer_arguments(module: ModuleOp, number: int) -> Changed:
    kernel = operations_in(module, tile.Kernel)[0]
    if number >= len(kernel.arguments):
        return None
    if list(kernel.arguments[number].uses):
        return False
    names = kernel.attributes.get("argument_names")
    kernel.body.block.erase_arg(kernel.arguments[number])
    if isinstance(names, ArrayAttr):
        kernel.attributes["argument_names"] = ArrayAttr(
            [n for i, n in enumerate(names) if i != number]
        )
    return module


def fewer_operands(module: ModuleOp, number: int) -> Changed:
    """Loads and stores without mask and filling."""
    found = [
        (op, name)
        for op in module.walk()
        if isinstance(op, IRDLOperation)
        for name in ("mask", "other")
        if isinstance(getattr(op, name, None), SSAValue)
    ]
    if number >= len(found):
        return None
    op, dropped = found[number]
    definition = op.get_irdl_definition()
    groups = [
        [] if name == dropped else _operands_of(op, name, isinstance(d, VarOperandDef))
        for name, d in definition.operands
    ]
    segments = ("operandSegmentSizes", "resultSegmentSizes")
    Rewriter.replace_op(
        op,
        type(op).build(
            operands=groups,
            result_types=[r.type for r in op.results] or [[]] * len(definition.results),
            properties={k: v for k, v in op.properties.items() if k not in segments},
            attributes=dict(op.attributes),
        ),
    )
    drop_unused(module)
    return module


def _operands_of(op: Operation, name: str, several: bool) -> SSAValue | Sequence[SSAValue]:
    """Operands under a name: one, or a list where there may be none or several."""
    value = getattr(op, name)
    if value is None:
        return []
    return [value] if several and isinstance(value, SSAValue) else value


# --------------------------------------------------------------------------------------------------
def smaller_extents(module: ModuleOp, number: int) -> Changed:
    """An extent halved, or one less, wherever it stands in types and extents."""
    text = show(module)
    sizes = sorted({int(n) for n in re.findall(r"(?<=[<x])(\d+)(?=x)", text)} - {1}, reverse=True)
    found = [(n, m) for n in sizes for m in dict.fromkeys((1, 2, n // 2, n - 1)) if 0 < m < n]
    if number >= len(found):
        return None
    n, m = found[number]
    changed = re.sub(rf"(?<=[<x]){n}(?=x)", str(m), text)
    changed = re.sub(
        r"array<i64: [^>]*>", lambda a: re.sub(rf"\b{n}\b", str(m), a.group()), changed
    )
    try:
        return parse(changed)
    except Error:
        return False


def smaller_constants(module: ModuleOp, number: int) -> Changed:
    text = show(module).splitlines()
    found = [
        (i, value)
        for i, line in enumerate(text)
        if (c := re.search(r"tile\.constant (-?\d+) : (i32|i64|!)", line))
        for value in ("0", "1")
        if c[1] not in ("0", "1") or c[1] != value and value == "0"
    ]
    if number >= len(found):
        return None
    i, value = found[number]
    text[i] = re.sub(r"tile\.constant -?\d+", f"tile.constant {value}", text[i])
    try:
        return parse("\n".join(text))
    except Error:
        return False


def fewer_facts(module: ModuleOp, number: int) -> Changed:
    """An array of which less is known; without names of arguments."""
    text = show(module)
    found = sorted(set(re.findall(r', "shape [^"]*"', text)))
    if number >= len(found):
        return None
    try:
        return parse(text.replace(found[number], ""))
    except Error:
        return False


MOVES = (
    fewer_operations,
    flat_control,
    fewer_carried,
    fewer_operands,
    fewer_operations,
    fewer_arguments,
    smaller_extents,
    smaller_constants,
    fewer_facts,
)
