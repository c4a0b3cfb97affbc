"""Definitions of operations: those of xDSL, with operands and results that are read at once.

xDSL finds a named operand through a view of all operands, which it makes anew each time, and four
calls. A compilation asks for some hundred thousand. Here a name is a property that indexes the
operation's own tuple; what it gives is the same.

So are the identity of values, blocks and operations, a value's type, what is around an operation,
and whether something is of a class of xDSL's that nothing is registered with: xDSL says in Python
what C does (`read_at_once`). An operation is made in fewer calls (`made_at_once`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from operator import attrgetter, getitem
from typing import Any, TypeVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import (
    Attribute,
    Block,
    BlockArgument,
    Data,
    Operation,
    OpResult,
    ParametrizedAttribute,
    Region,
    SSAValue,
    Use,
)
from xdsl.ir.core import BlockOps, OpOperands, RegionBlocks, SSAValues
from xdsl.irdl import IRDLOperation, OptionalDef, irdl_op_definition
from xdsl.irdl.operations import (
    AfterVariadicSingleAccessor,
    BeforeVariadicSingleAccessor,
    OptionalAttrAccessor,
    OptionalPropertyAccessor,
    PropertyAccessor,
    SingleAttrAccessor,
    UniqueVariadicAccessor,
    VariadicAttrAccessor,
    VarIRConstruct,
)

from tkc.ir.attributes import Concrete
from tkc.ir.syntax import walked

T = TypeVar("T", bound=IRDLOperation)
Values = Callable[[Operation], tuple[Any, ...]]
_VALUES: dict[VarIRConstruct, Values] = {
    VarIRConstruct.OPERAND: attrgetter("_operands"),
    VarIRConstruct.RESULT: attrgetter("results"),
    VarIRConstruct.REGION: attrgetter("regions"),
}
_item = tuple.__getitem__  # the tuples' own class has one in Python


def op_definition(cls: type[T]) -> type[T]:
    """xDSL's `irdl_op_definition`, with direct access to what an operation has by its name."""
    cls = irdl_op_definition(cls)
    _read_directly(cls)
    return cls


def _read_directly(cls: type[Operation]) -> None:
    """Replaces what gives operands, results, regions and properties of a class by their names."""
    for name, accessor in list(vars(cls).items()):
        if isinstance(accessor, (PropertyAccessor, OptionalPropertyAccessor)):
            setattr(cls, name, _property_of(accessor))
            continue
        values = _VALUES.get(getattr(accessor, "construct", None))  # type: ignore[arg-type]
        if values is not None and (get := _getter(accessor, values)) is not None:
            setattr(cls, name, property(get))


def _property_of(accessor: PropertyAccessor | OptionalPropertyAccessor) -> property:
    name = accessor.property_name
    if isinstance(accessor, OptionalPropertyAccessor):
        default = accessor.default_value
        return property(lambda op: op.properties.get(name, default), accessor.__set__)
    return property(lambda op: op.properties[name], accessor.__set__)


def _getter(accessor: Any, values: Values) -> Callable[[Operation], Any] | None:
    """The function of an operation that gives what an accessor does; None of a kind that no
    operation of ours has.
    """
    index = accessor.idx
    of_regions = accessor.construct is VarIRConstruct.REGION
    item: Any = getitem if of_regions else _item  # regions are a list
    match accessor:
        case BeforeVariadicSingleAccessor():
            return lambda op: item(values(op), index)
        case AfterVariadicSingleAccessor():
            from_end = index - accessor.num_defs
            return lambda op: item(values(op), from_end)
        case UniqueVariadicAccessor():
            after = accessor.num_defs - index - 1
            if index == after == 0 and not of_regions:
                return values
            return lambda op: (found := values(op))[index : len(found) - after]
        case SingleAttrAccessor() | VariadicAttrAccessor() | OptionalAttrAccessor():
            return None if of_regions else _getter_by_sizes(accessor, values)
    return None


def _getter_by_sizes(accessor: Any, values: Values) -> Callable[[Operation], Any]:
    """Of an operation that says in a property how many values each name has."""
    index, container = accessor.idx, accessor.option.container
    sizes = accessor.option.attribute_name

    def bounds(op: Operation) -> tuple[int, int]:
        starts = _starts(container(op)[sizes].data.data)
        return starts[index], starts[index + 1]

    def optional(op: Operation) -> Any:
        start, end = bounds(op)
        return _item(values(op), start) if end > start else None

    def several(op: Operation) -> Any:
        start, end = bounds(op)
        return values(op)[start:end]

    match accessor:
        case OptionalAttrAccessor():
            return optional
        case VariadicAttrAccessor():
            return several
    return lambda op: _item(values(op), bounds(op)[0])


@lru_cache(maxsize=1 << 12)
def _starts(sizes: bytes) -> Sequence[int]:
    """Where the values of each name begin, and where the last ones end; sizes: of 32 bits each."""
    starts = [0]
    for (size,) in struct.iter_unpack("<i", sizes):
        starts.append(starts[-1] + size)
    return starts


def _value_at(values: SSAValues, at: Any) -> Any:
    return _item(values, at) if type(at) is int else SSAValues(_item(values, at))


def _operands_of(op: Operation) -> OpOperands:
    found = object.__new__(OpOperands)
    found._op = op
    return found


def _ops_of(ops: BlockOps) -> Iterator[Operation]:
    op = ops.block._first_op
    while op is not None:
        following = op._next_op  # this one may be erased
        yield op
        op = following


def _blocks_of(blocks: RegionBlocks) -> Iterator[Block]:
    block = blocks._region._first_block
    while block is not None:
        yield block
        block = block._next_block


def _parent_op(op: Operation) -> Operation | None:
    region = None if op.parent is None else op.parent.parent
    return None if region is None else region.parent


def _walk(
    self: Operation, *, reverse: bool = False, region_first: bool = False
) -> Iterator[Operation]:
    if reverse or region_first:
        return _walk_of_xdsl(self, reverse=reverse, region_first=region_first)
    return walked(self)


_walk_of_xdsl = Operation.walk


Known = dict[Any, Any]  # blocks and values of one program, and those in their place in another


def _is_alike(op: Operation, other: Any) -> bool:
    """Whether two operations have the same name and attributes, and as much of all else."""
    return (
        isinstance(other, Operation)
        and op.name == other.name
        and len(op._operands) == len(other._operands)
        and len(op.results) == len(other.results)
        and len(op.regions) == len(other.regions)
        and len(op._successors) == len(other._successors)
        and op.attributes == other.attributes
        and op.properties == other.properties
    )


def _is_equivalent(self: Operation, other: Any, context: Known | None = None) -> bool:
    known: Known = {} if context is None else context
    if not _is_alike(self, other):
        return False
    both_are_placed = self.parent is not None and other.parent is not None
    if both_are_placed and known.get(self.parent) is not other.parent:
        return False
    named = chain(
        zip(self._operands, other._operands, strict=True),
        zip(self._successors, other._successors, strict=True),
    )
    if any([known.get(x, x) is not y for x, y in named]):
        return False
    for region, in_its_place in zip(self.regions, other.regions, strict=True):
        if not region.is_structurally_equivalent(in_its_place, known):
            return False
    known.update(zip(self.results, other.results, strict=True))
    return True


def _are_equivalent(self: Block, other: Any, context: Known | None = None) -> bool:
    known: Known = {} if context is None else context
    if not isinstance(other, Block) or len(self._args) != len(other._args):
        return False
    if any([a._type != b._type for a, b in zip(self._args, other._args, strict=True)]):
        return False
    known.update(zip(self._args, other._args, strict=True))
    known[self] = other
    op, in_its_place = self._first_op, other._first_op
    while op is not None and in_its_place is not None:
        if not op.is_structurally_equivalent(in_its_place, known):
            return False
        op, in_its_place = op._next_op, in_its_place._next_op
    return op is in_its_place  # both have ended


def read_at_once() -> None:
    """Has classes of xDSL do in C, or in one call, what they take many calls of Python for. What
    they do stays the same.
    """
    for identical in (SSAValue, Operation, IRDLOperation, Block, Region):
        identical.__hash__ = object.__hash__  # type: ignore[method-assign]
        identical.__eq__ = object.__eq__  # type: ignore[method-assign]
    controls = (scf.ForOp, scf.IfOp, scf.WhileOp, scf.YieldOp, scf.ConditionOp)
    values = (SSAValue, OpResult, BlockArgument)
    attributes = (Attribute, Data, ParametrizedAttribute)
    for concrete in (*values, *attributes, Operation, Block, Region, *controls):
        concrete.__class__ = Concrete  # type: ignore[method-assign,assignment]
    for control in controls:
        _read_directly(control)
    for owner, name, at in (
        (SSAValue, "type", "_type"),
        (OpResult, "owner", "op"),
        (BlockArgument, "owner", "block"),
        (Operation, "next_op", "_next_op"),
        (Operation, "prev_op", "_prev_op"),
        (Use, "operation", "_operation"),
        (Use, "index", "_index"),
    ):
        setattr(owner, name, property(attrgetter(at)))
    Operation.walk = _walk  # type: ignore[method-assign]
    SSAValues.__getitem__ = _value_at  # type: ignore[method-assign,assignment]
    Operation.parent_op = _parent_op  # type: ignore[method-assign,assignment]
    BlockOps.__iter__ = _ops_of  # type: ignore[method-assign]
    RegionBlocks.__iter__ = _blocks_of  # type: ignore[method-assign]
    Operation.is_structurally_equivalent = _is_equivalent  # type: ignore[method-assign]
    Block.is_structurally_equivalent = _are_equivalent  # type: ignore[method-assign]
    # an attribute is what it consists of: equal ones keep the same rules
    ParametrizedAttribute._verify = lru_cache(1 << 14)(ParametrizedAttribute._verify)  # type: ignore[method-assign]


def _set_operands(op: Operation, new: Sequence[SSAValue]) -> None:
    values = SSAValues(new)
    for operand, use in zip(op._operands, op._operand_uses, strict=True):
        operand.remove_use(use)
    uses = []
    for index, value in enumerate(values):
        first = value.first_use
        value.first_use = use = Use(op, index, None, first)
        if first is not None:
            first._prev_use = use
        uses.append(use)
    op._operands, op._operand_uses = values, tuple(uses)


def _make(
    op: Operation,
    *,
    operands: Sequence[SSAValue] = (),
    result_types: Sequence[Attribute] = (),
    properties: Mapping[str, Attribute] | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    location: LocationAttr | None = None,
    successors: Sequence[Block] = (),
    regions: Sequence[Region] = (),
) -> None:
    """Initialises an operation. What it has none of stays as its class has it."""
    _set_operands(op, operands)
    op.results = SSAValues([OpResult(t, op, i) for i, t in enumerate(result_types)])
    op.properties, op.attributes = dict(properties or ()), dict(attributes or ())
    op.location = UNKNOWN_LOC if location is None else location
    if successors:
        op.successors = successors
    for region in regions:
        op.add_region(region)
    op.__post_init__()


@cache
def _defaults(operation: type[IRDLOperation]) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """The properties and attributes that an operation has where none are given."""
    definition = operation.get_irdl_definition()
    properties, attributes = (
        {
            name: each.default_value
            for name, each in defined.items()
            if not isinstance(each, OptionalDef) and each.default_value is not None
        }
        for defined in (definition.properties, definition.attributes)
    )
    return properties, attributes


def _fill_in(op: IRDLOperation) -> None:
    properties, attributes = _defaults(type(op))
    for name, value in properties.items():
        op.properties.setdefault(name, value)
    for name, value in attributes.items():
        op.attributes.setdefault(name, value)
    Operation.__post_init__(op)  # which xDSL's ImplicitBuilder changes


class _Copying:
    """Of one call of `clone`: the copies of values and blocks, and of operations, each with what it
    is a copy of, as `walk` meets them.
    """

    def __init__(
        self, values: dict[SSAValue, SSAValue], blocks: dict[Block, Block], hints: bool
    ) -> None:
        self.values, self.blocks, self.hints = values, blocks, hints
        self.copies: list[tuple[Operation, Operation]] = []

    def _note(self, value: SSAValue, copy: SSAValue) -> None:
        self.values[value] = copy
        if self.hints:
            copy._name = value._name  # it is valid: it need not be looked at again

    def operation(self, op: Operation) -> Operation:
        """A copy that has no operands yet."""
        copy: Operation = object.__new__(type(op))
        self.copies.append((op, copy))
        copy.results = SSAValues([OpResult(r._type, copy, r.index) for r in op.results])
        copy.properties, copy.attributes = op.properties.copy(), op.attributes.copy()
        copy.location = op.location
        for value, result in zip(op.results, copy.results, strict=True):
            self._note(value, result)
        if op._successors:
            copy.successors = [self.blocks.get(block, block) for block in op._successors]
        for region in op.regions:
            copy.add_region(self._region(region))
        return copy

    def _region(self, region: Region) -> Region:
        copy = Region()
        blocks = list(region.blocks)
        for block in blocks:  # all of them first: an operation may name one that follows
            self.blocks[block] = Block(arg_types=[a._type for a in block._args])
            copy.add_block(self.blocks[block])
        for block in blocks:
            self._fill(self.blocks[block], block)
        return copy

    def _fill(self, into: Block, block: Block) -> None:
        for argument, copy in zip(block._args, into._args, strict=True):
            copy.location = argument.location
            self._note(argument, copy)
        last: Operation | None = None
        for op in block.ops:
            inner = self.operation(op)
            inner.parent, inner._prev_op = into, last
            if last is None:
                into._first_op = inner
            else:
                last._next_op = inner
            last = inner
        into._last_op = last


def _clone(
    self: Operation,
    value_mapper: dict[SSAValue, SSAValue] | None = None,
    block_mapper: dict[Block, Block] | None = None,
    *,
    clone_name_hints: bool = True,
    clone_operands: bool = True,
) -> Operation:
    values: dict[SSAValue, SSAValue] = {} if value_mapper is None else value_mapper
    copying = _Copying(values, {} if block_mapper is None else block_mapper, clone_name_hints)
    made = copying.operation(self)
    if clone_operands:
        for op, copy in copying.copies:
            _set_operands(copy, [values.get(v, v) for v in op._operands])
    Operation.__post_init__(made)
    return made


def made_at_once() -> None:
    """Has xDSL make an operation, and copies of one, in fewer calls: it asks each time for what its
    class defines, adds uses one by one, and looks at the names of values again."""
    Operation.operands = property(_operands_of, _set_operands)  # type: ignore[method-assign,assignment]
    Operation.__init__ = _make  # type: ignore[method-assign,assignment]
    Operation.clone = _clone  # type: ignore[method-assign,assignment]
    IRDLOperation.__post_init__ = _fill_in  # type: ignore[method-assign]


read_at_once()
made_at_once()
