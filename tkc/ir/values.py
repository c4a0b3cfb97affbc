"""Typed questions about SSA values: what defines one, and of which type it is.

xDSL says of a value's owner only that it is an operation or a block, and of its type only that it
is an attribute. These functions narrow both, for readers and for the type checker:

    load = defining_op(value, tile.Load)        the load, or None where something else defines it
    tile_type(value).extents                    raises TypeError where the value is not a tile
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Container,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any, TypeVar

from xdsl import traits
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, Region, SSAValue
from xdsl.traits import RecursiveMemoryEffect

from tkc.ir.layout import Layout
from tkc.ir.types import ArrayType, MapType, PendingType, SharedType, TileType

Op = TypeVar("Op", bound=Operation)
A = TypeVar("A", bound=Attribute)
H = TypeVar("H", bound=Hashable)
T = TypeVar("T")
Walk = Generator[Any, Any, T]  # a recursive walk for `without_recursion`


def defining_op(value: SSAValue | None, kind: type[Op]) -> Op | None:
    """The operation of this class that defines a value; None of other values, and of None."""
    owner = None if value is None else value.owner
    return owner if isinstance(owner, kind) else None


def operations_in(within: Operation | Block, kind: type[Op] | tuple[type[Op], ...]) -> list[Op]:
    """The operations of a class, or of several, in an operation or a block, in their order; the
    operation itself may be one. They stand in a list, so that they may be changed one by one.
    """
    return [op for op in within.walk() if isinstance(op, kind)]


def holds(
    op: Operation | Block | Region, kind: type[Operation] | tuple[type[Operation], ...]
) -> bool:
    """Whether an operation is of a class, or of one of several, or has one inside."""
    return any(isinstance(inner, kind) for inner in op.walk())


# by class, of operations whose own traits say it
_FREE: dict[type[Operation], bool] = {}


def is_side_effect_free(op: Operation) -> bool:
    """Whether an operation, and all inside it, neither reads nor writes memory."""
    found = _FREE.get(type(op))
    if found is not None:
        return found
    if op.has_trait(RecursiveMemoryEffect):
        return all(
            is_side_effect_free(inner)
            for region in op.regions
            for block in region.blocks
            for inner in block.ops
        )
    found = _FREE[type(op)] = traits.is_side_effect_free(op)
    return found


def reached(start: Iterable[T], behind: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """What some things lead to, themselves first, each once."""
    seen, work = set[T](), list(start)
    while work:
        if (at := work.pop()) not in seen:
            seen.add(at)
            yield at
            work += behind(at)


def made_of(value: SSAValue) -> Sequence[SSAValue]:
    """What the operation that makes a value reads, inside it too."""
    if isinstance(value.owner, Block):
        return ()
    return [v for inner in value.owner.walk() for v in inner._operands]


def tiles(values: Iterable[SSAValue]) -> list[SSAValue]:
    """Those of some values that are tiles."""
    return [v for v in values if isinstance(v.type, TileType)]


def owner_op(value: SSAValue) -> Operation:
    """The operation that defines a value. Raises TypeError for a block's argument."""
    if not isinstance(value, OpResult):
        raise TypeError(f"{value} is an argument of a block; expected the result of an operation")
    return value.op


def owner_of(value: SSAValue, kind: type[Op]) -> Op:
    """The operation of this class that defines a value. Raises TypeError for another."""
    if not isinstance(value.owner, kind):
        raise TypeError(f"{value} is not the result of {kind.__name__}")
    return value.owner


def only_user(value: SSAValue) -> Operation:
    """The operation of a value's only use. Raises TypeError where there are none or several."""
    if value.first_use is None or not value.has_one_use():
        raise TypeError(f"{value} has not exactly one use")
    return value.first_use.operation


def block_of(op: Operation) -> Block:
    """The block an operation stands in. Raises TypeError for one that stands in none."""
    if op.parent is None:
        raise TypeError(f"{op.name} stands in no block")
    return op.parent


def parent_of(op: Operation, kind: type[Op]) -> Op:
    """The operation of this class around an operation's block. Raises TypeError for another."""
    parent = op.parent_op()
    if not isinstance(parent, kind):
        raise TypeError(f"{op.name} does not stand directly inside {kind.__name__}")
    return parent


def parents(op: Operation) -> Iterator[Operation]:
    """The operations round another, from the inside."""
    around = op.parent_op()
    while around is not None:
        yield around
        around = around.parent_op()


def enclosing(op: Operation, *kinds: type[Op]) -> Op | None:
    """The innermost operation of some classes round another."""
    return next((around for around in parents(op) if isinstance(around, kinds)), None)


def ancestor(op: Operation, block: Block | None) -> Operation | None:
    """The operation of a block that another is, or is in; None where it is outside."""
    return next((at for at in (op, *parents(op)) if at.parent is block), None)


def last_inside(op: Operation) -> Operation:
    """The operation that a walk of another, and of all inside it, meets last."""
    inner: Operation | None = op
    while inner is not None:
        op, blocks = inner, [b for region in inner.regions for b in region.blocks]
        inner = next((b.last_op for b in reversed(blocks) if b.last_op is not None), None)
    return op


def next_of(op: Operation) -> Operation:
    """The operation behind another in its block. Raises TypeError behind the last one."""
    if op.next_op is None:
        raise TypeError(f"nothing follows {op.name}")
    return op.next_op


def previous_of(op: Operation) -> Operation:
    """The operation before another in its block. Raises TypeError before the first one."""
    if op.prev_op is None:
        raise TypeError(f"nothing precedes {op.name}")
    return op.prev_op


def first_of(block: Block) -> Operation:
    """The first operation of a block. Raises TypeError for an empty block."""
    if block.first_op is None:
        raise TypeError("a block without operations")
    return block.first_op


def terminator_of(block: Block) -> Operation:
    """The last operation of a block. Raises TypeError for an empty block."""
    if block.last_op is None:
        raise TypeError("a block without a terminator")
    return block.last_op


def yielded_by(block: Block) -> Sequence[SSAValue]:
    """The operands of a block's terminator. Raises TypeError for an empty block."""
    return terminator_of(block)._operands


def index_of(value: SSAValue) -> int:
    """The position of a value among the results, or the arguments, of its owner."""
    if not isinstance(value, (OpResult, BlockArgument)):
        raise TypeError(f"{value} is neither a result nor an argument of a block")
    return value.index


def operands_first(
    root: H, operands: Callable[[H], Iterable[H]], known: Container[H] = ()
) -> Iterator[H]:
    """What `root` is computed from, and `root` last: each once, behind its operands, in the order
    of a recursive walk. Nothing is yielded that is in `known`, nor what only such a value reads.

    It takes no recursion, for a chain of operations can be longer than Python's stack.
    """
    if root in known:
        return
    seen, path = {root}, [(root, iter(operands(root)))]
    while path:
        at, rest = path[-1]
        below = next((x for x in rest if x not in seen and x not in known), None)
        if below is None:
            path.pop()
            yield at
        else:
            seen.add(below)
            path.append((below, iter(operands(below))))


def without_recursion(walk: Walk[T]) -> T:
    """The result of a generator that yields a generator where it would call itself, and is given
    its result, or its exception: a recursive walk whose depth Python's stack does not limit.

        def depth(op):
            below = [(yield depth(x)) for x in operands(op)]
            return 1 + max(below, default=0)

        without_recursion(depth(op))
    """
    calls = [walk]
    result: Any = None
    error: Exception | None = None
    while calls:
        try:
            called = calls[-1].send(result) if error is None else calls[-1].throw(error)
        except StopIteration as done:
            calls.pop()
            result, error = done.value, None
        except Exception as e:
            calls.pop()
            result, error = None, e
        else:
            calls.append(called)
            result, error = None, None
    if error is not None:
        raise error
    return result


def type_of(value: SSAValue, kind: type[A]) -> A:
    """A value's type, which is of this class. Raises TypeError for another."""
    if not isinstance(value.type, kind):
        raise TypeError(f"expected a value of {kind.__name__}, got {value.type}")
    return value.type


def tile_type(value: SSAValue) -> TileType:
    """The type of a tile. Raises TypeError for other values."""
    return type_of(value, TileType)


def layout_of(value: SSAValue) -> Layout:
    """The layout of a tile in registers. Raises TypeError for other values."""
    layout = tile_type(value).register_layout
    if layout is None:
        raise TypeError(f"expected a tile in registers, got {value.type}")
    return layout


def shared_type(value: SSAValue) -> SharedType:
    """The type of a shared buffer or view. Raises TypeError for other values."""
    return type_of(value, SharedType)


def pending_type(value: SSAValue) -> PendingType:
    """The type of a tile that is not ready yet. Raises TypeError for other values."""
    return type_of(value, PendingType)


def extents_of(value: SSAValue) -> tuple[int, ...]:
    """The extents of a tile, a shared buffer or a tensor map's box. Raises TypeError for others."""
    if not isinstance(value.type, (TileType, SharedType, MapType)):
        raise TypeError(f"expected a value with extents, got {value.type}")
    return value.type.extents


def array_type(value: SSAValue) -> ArrayType:
    """The type of an array argument or view. Raises TypeError for other values."""
    return type_of(value, ArrayType)
