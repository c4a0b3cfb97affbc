"""What makes a module well formed at a level.

Dominance, no value used outside its region, the operations that the level permits. xDSL's own
verifier checks types and terminators; it accepts a use before its definition and a value that
leaves its region. `verify(module)` runs everything and raises VerifyError naming the operation and
the user's source line.

After each of some twenty passes most operations are what they were: `Verified` remembers what each
was made of when it was found sound, and xDSL's rules, which depend only on an operation's operands,
types and properties, are not checked again.
"""

from __future__ import annotations

from operator import is_
from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from tkc.errors import VerifyError
from tkc.ir import elementwise, rules, shared, threads, tile
from tkc.ir.text import location_of
from tkc.ir.types import TileType

CONTROL = (scf.ForOp, scf.IfOp, scf.WhileOp, scf.YieldOp, scf.ConditionOp)
LEVEL_0: set[type[Operation]] = {
    ModuleOp,
    *CONTROL,
    *elementwise.OPERATIONS,
    *tile.OPERATIONS,
    threads.Identity,
    threads.Workspace,
    threads.NextProgram,
    threads.Vote,
}
LEVEL_1: set[type[Operation]] = {*LEVEL_0, shared.Convert, shared.SortFirst}
LEVEL_2 = LEVEL_1 | {
    shared.Alloc,
    shared.Stage,
    shared.SharedTranspose,
    shared.SharedReshape,
    shared.SharedSlice,
    shared.Read,
    shared.Write,
    shared.Copy,
    shared.CopyOut,
    shared.ReducePartial,
    shared.ScanTotal,
    threads.BroadcastStore,
    threads.BroadcastLoad,
}
LEVEL_3 = LEVEL_2 | {
    shared.CopyAsync,
    shared.WaitCopies,
    shared.JoinTokens,
    shared.NoToken,
    threads.RingNext,
}
LEVEL_4 = (LEVEL_2 | set(threads.OPERATIONS)) - {shared.Copy, shared.CopyOut}
LEVELS = (LEVEL_0, LEVEL_1, LEVEL_2, LEVEL_3, LEVEL_4)
NAMES = ("tile", "layout", "shared", "async", "roles")


class Verified(dict[Operation, tuple[Any, ...]]):
    """Operations that were found sound, and of what: their operands, types, properties and
    attributes, none of which changes in itself. It holds them, so no other object takes their
    place.
    """

    def new(self, op: Operation) -> bool:
        """Whether the operation is not remembered as it is now; it is from here on."""
        now = (
            *op.operands,
            *(v.type for v in op.operands),
            *(r.type for r in op.results),
            *op.properties,
            *op.properties.values(),
            *op.attributes,
            *op.attributes.values(),
        )
        before, self[op] = self.get(op), now
        return before is None or len(before) != len(now) or not all(map(is_, before, now))


def verify(module: ModuleOp, what: str = "the IR", verified: Verified | None = None) -> None:
    """Raises VerifyError if the module, or a kernel in it at its own level, breaks a rule.
    verified: what a verification of the same module before this one found; this one adds to it.
    """
    try:
        _verify_operation(module, Verified() if verified is None else verified)
    except VerifyException as e:
        raise VerifyError(f"{what}: {str(e).strip().splitlines()[0]}") from None
    except (
        AttributeError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
    ) as e:  # a rule that met operands of a kind it cannot even look at
        raise VerifyError(
            f"{what}: an operation has operands or properties of the wrong kind ({e})"
        ) from None
    for op in module.body.block.ops:
        if not isinstance(op, tile.Kernel):
            raise VerifyError(f"{what}: a module holds kernels, not '{op.name}'")
        level = op.level
        if not 0 <= level < len(LEVELS):
            raise VerifyError(
                f"{what}: kernel @{op.sym_name.data} says level {level}; there are 0 to"
                f" {len(LEVELS) - 1}"
            )
        try:
            _verify_block(op.body.block, set(), level, what)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as e:
            raise VerifyError(
                f"{what}: an operation has operands or properties of the wrong kind ({e})"
            ) from None
        if not isinstance(op.body.block.last_op, tile.Return):
            _fail(op, what, "a kernel ends with tile.return")


def _verify_operation(op: Operation, verified: Verified) -> None:
    """xDSL's rules, of an operation and those in it. One with regions, and the last of a block,
    have rules about what is round them: they are always asked.
    """
    for region in op.regions:
        for block in region.blocks:
            if block.parent is not region:
                raise ValueError("a block is not in the region that holds it")
            if (
                block.first_op is None
                and len(region.blocks) == 1
                and not op.has_trait(NoTerminator)
            ):
                raise VerifyException(
                    f"Operation {op.name} contains empty block in single-block region that expects"
                    " at least a terminator"
                )
            for inner in block.ops:
                if inner.parent is not block:
                    raise ValueError("an operation is not in the block that holds it")
                _verify_operation(inner, verified)
    if op.regions or op.next_op is None or verified.new(op):
        op.verify(verify_nested_ops=False)


def _fail(op: Operation, what: str, message: str) -> None:
    place = location_of(op)
    raise VerifyError(f"{what}: {f'{place}: ' if place else ''}'{op.name}': {message}")


def _verify_block(block: Block, visible: set[SSAValue], level: int, what: str) -> None:
    """Every operand is defined earlier in this block or in a block round it; the level permits
    every operation. No tile enters a role: it is spread over the warps of whoever makes it."""
    if isinstance(block.parent_op(), threads.Role):
        visible = {v for v in visible if not isinstance(v.type, TileType)}
    visible = visible | set(block.args)
    for op in block.ops:
        for i, operand in enumerate(op.operands):
            if operand not in visible:
                _fail(
                    op,
                    what,
                    f"operand {i} ({operand.name_hint or 'unnamed'}) is used before, or outside the"
                    " region of, its definition",
                )
        if type(op) not in LEVELS[level]:
            _fail(op, what, f"is not permitted at level {level} ({NAMES[level]})")
        if problem := rules.broken(op) or _without_layout(op, level):
            _fail(op, what, problem)
        for region in op.regions:
            for inner in region.blocks:
                _verify_block(inner, visible, level, what)
        visible.update(op.results)


def _without_layout(op: Operation, level: int) -> str | None:
    """The tile among the results that has no layout, where it must have one."""
    for t in op.result_types if level else ():
        if isinstance(t, TileType) and t.register_layout is None and t.shared_layout is None:
            return f"result {t} has no layout at level {level}"
    return None
