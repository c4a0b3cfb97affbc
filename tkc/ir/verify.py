"""What makes a module well formed at a level.

Dominance, no value used outside its region, the operations that the level permits. xDSL's own
verifier checks types and terminators; it accepts a use before its definition and a value that
leaves its region. `verify(module)` runs everything and raises VerifyError naming the operation and
the user's source line.

After each of some twenty passes most operations are what they were: `Verified` remembers what each
was made of when it was found sound, and xDSL's rules, which depend only on an operation's operands,
types and properties, are not checked again. Nor are those of an operation like another that was
found sound, in whatever module (`SOUND`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
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
    *shared.VIEWS,
    shared.Read,
    shared.Write,
    shared.Copy,
    shared.CopyOut,
    shared.ReducePartial,
    shared.SpreadPartial,
    shared.ScanTotal,
    shared.ScanCarry,
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


# operations whose rules look at more than `_description` has: names of kernels, uses of results
LOOK_AROUND = {ModuleOp, threads.Vote, shared.ScanTotal}
MAX_SOUND = 1 << 14  # descriptions that are remembered


class Verified(dict[Operation, tuple[Any, ...]]):
    """Operations that were found sound, and of what: their operands, types, properties and
    attributes, none of which changes in itself. It holds them, so no other object takes their
    place.
    """

    def new(self, op: Operation) -> bool:
        """Whether the operation is not remembered as it is now; it is from here on."""
        types = [v._type for v in op._operands], [r._type for r in op.results]
        now = op._operands, *types, op.properties, op.attributes
        if self.get(op) == now:
            return False
        self[op] = op._operands, *types, op.properties.copy(), op.attributes.copy()
        return True


class _Sound(set[tuple[Any, ...]]):
    """Descriptions of operations that kept every rule: many operations have the same."""

    def remember(self, description: tuple[Any, ...]) -> None:
        if len(self) >= MAX_SOUND:
            self.clear()
        self.add(description)


SOUND = _Sound()


class Changed(set[Operation]):
    """Operations whose rules are checked now: one of each description that is not remembered, and
    those that look around.
    """

    def __init__(self) -> None:
        self.descriptions: set[tuple[Any, ...]] = set()

    def has_new(self, op: Operation, block: Block | None) -> bool:
        """Whether the rules of an operation must be checked; it is one of them from here on."""
        if type(op) not in LOOK_AROUND:
            description = _description(op, block)
            if description in SOUND or description in self.descriptions:
                return False
            self.descriptions.add(description)
        self.add(op)
        return True


def _types(values: Iterable[SSAValue]) -> tuple[Attribute, ...]:
    return tuple(v._type for v in values)


def _count(region: Region) -> int:
    """How many blocks a region has; most have one."""
    return 1 if region._first_block is region._last_block else len(region.blocks)


def _regions(op: Operation) -> tuple[Any, ...]:
    """What the rules of an operation ask of its regions: arguments and ends of their blocks."""
    return tuple(
        tuple(
            (_types(block.args), type(last), () if last is None else _types(last._operands))
            for block in region.blocks
            for last in (block.last_op,)
        )
        for region in op.regions
    )


def _description(op: Operation, block: Block | None) -> tuple[Any, ...]:
    """All that the rules of an operation depend on, but for those that LOOK_AROUND."""
    region = None if block is None else block.parent
    return (
        type(op),
        _types(op._operands),
        _types(op.results),
        tuple(op.properties.items()),
        tuple(op.attributes.items()),
        _regions(op) if op.regions else (),
        op._next_op is None,
        None if region is None else (type(region.parent), _count(region)),
    )


def verify(module: ModuleOp, what: str = "the IR", verified: Verified | None = None) -> None:
    """Raises VerifyError if the module, or a kernel in it at its own level, breaks a rule.
    verified: what a verification of the same module before this one found; this one adds to it.
    """
    verified = Verified() if verified is None else verified
    try:
        _verify_all(module, what, verified)
    except Exception as e:
        verified.clear()
        if isinstance(e, VerifyException):
            raise VerifyError(f"{what}: {str(e).strip().splitlines()[0]}") from None
        # a rule that met operands of a kind it cannot even look at
        if isinstance(e, (AttributeError, KeyError, IndexError, TypeError, ValueError)):
            raise VerifyError(
                f"{what}: an operation has operands or properties of the wrong kind ({e})"
            ) from None
        raise


def _verify_all(module: ModuleOp, what: str, verified: Verified) -> None:
    changed = Changed()
    _verify_operation(module, None, verified, changed)
    for op in module.body.block.ops:
        if not isinstance(op, tile.Kernel):
            raise VerifyError(f"{what}: a module holds kernels, not '{op.name}'")
        level = op.level
        if not 0 <= level < len(LEVELS):
            raise VerifyError(
                f"{what}: kernel @{op.sym_name.data} says level {level}; there are 0 to"
                f" {len(LEVELS) - 1}"
            )
        _verify_block(op.body.block, set(), level, what, changed)
        if not isinstance(op.body.block.last_op, tile.Return):
            _fail(op, what, "a kernel ends with tile.return")
    for description in changed.descriptions:
        SOUND.remember(description)


def _verify_operation(
    op: Operation, block: Block | None, verified: Verified, changed: Changed
) -> None:
    """xDSL's rules, of an operation in a block and those in it. One with regions, and the last of a
    block, have rules about what is round them: that they did not change is not enough.
    """
    for region in op.regions:
        only = region._first_block is region._last_block
        for inside in region.blocks:
            if inside.parent is not region:
                raise ValueError("a block is not in the region that holds it")
            if inside._first_op is None and only and not op.has_trait(NoTerminator):
                raise VerifyException(
                    f"Operation {op.name} contains empty block in single-block region that expects"
                    " at least a terminator"
                )
            inner = inside._first_op
            while inner is not None:
                if inner.parent is not inside:
                    raise ValueError("an operation is not in the block that holds it")
                round_it = inner.regions or inner._next_op is None or type(inner) in LOOK_AROUND
                if round_it or verified.new(inner):
                    _verify_operation(inner, inside, verified, changed)
                inner = inner._next_op
    if changed.has_new(op, block):
        op.verify(verify_nested_ops=False)


def _fail(op: Operation, what: str, message: str) -> None:
    place = location_of(op)
    raise VerifyError(f"{what}: {f'{place}: ' if place else ''}'{op.name}': {message}")


def _verify_block(block: Block, visible: set[int], level: int, what: str, changed: Changed) -> None:
    """Every operand is defined earlier in this block or in a block round it; the level permits
    every operation; what changed keeps its rules. No tile enters a role: it is spread over the
    warps of whoever makes it. visible: values, by `id`.
    """
    permitted = LEVELS[level]
    visible = visible | set(map(id, block.args))
    op = block._first_op
    while op is not None:
        if not visible.issuperset(map(id, op._operands)):
            _fail_on_operands(op, visible, what)
        if type(op) not in permitted:
            _fail(op, what, f"is not permitted at level {level} ({NAMES[level]})")
        if op in changed and (problem := rules.broken(op)):
            _fail(op, what, problem)
        if level and (problem := _without_layout(op, level)):
            _fail(op, what, problem)
        for region in op.regions:
            seen = visible if not isinstance(op, threads.Role) else visible - _tiles(op)
            for inner in region.blocks:
                _verify_block(inner, seen, level, what, changed)
        visible.update(map(id, op.results))
        op = op._next_op


def _fail_on_operands(op: Operation, visible: set[int], what: str) -> None:
    for i, operand in enumerate(op.operands):
        if id(operand) not in visible:
            _fail(
                op,
                what,
                f"operand {i} ({operand.name_hint or 'unnamed'}) is used before, or outside the"
                " region of, its definition",
            )


def _tiles(op: Operation) -> set[int]:
    """Of the operands inside an operation those that are tiles, by `id`."""
    return {id(v) for inner in op.walk() for v in inner._operands if isinstance(v.type, TileType)}


def _without_layout(op: Operation, level: int) -> str | None:
    """The tile among the results that has no layout, where it must have one."""
    for result in op.results:
        t = result._type
        if type(t) is TileType and t.register_layout is None and t.shared_layout is None:
            return f"result {t} has no layout at level {level}"
    return None
