"""What the operands, properties and results of an operation must be to each other: the part of
verification that looks at shapes.

`broken(op)` gives a sentence or None. Operations check in `verify_` what their own text could get
wrong; what is here keeps a module that a person or a tool wrote (or a pass broke) from reaching
code that takes these rules for granted. Layouts are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntegerType, i1, i32
from xdsl.ir import Attribute, Operation, Region

from tkc.ir import elementwise as ew
from tkc.ir import shared, threads, tile
from tkc.ir.types import (
    ArrayType,
    PointerType,
    SharedType,
    TileType,
    bits,
    element_of,
    is_float,
    is_integer,
    pointee_of,
)

SCANS = ("sum", "prod", "max", "min", "fmax", "fmin", "combine")
NUMBERS = (IntegerType, IndexType)


def extents(t: Attribute) -> tuple[int, ...] | None:
    """The extents of a tile, () of a scalar or pointer, None of what is neither."""
    return (
        t.extents
        if isinstance(t, TileType)
        else ()
        if isinstance(t, PointerType) or is_integer(t) or is_float(t) or t == i1
        else None
    )


def gives(op: Operation, shape: Sequence[int], element: Attribute) -> str | None:
    """A result of that shape and element type."""
    t = op.results[0].type
    return (
        None
        if extents(t) == tuple(shape) and element_of(t) == element
        else f"gives {list(shape)} of {element}, not {t}"
    )


def _axis(op, t: Attribute) -> str | None:
    if not isinstance(t, TileType):
        return f"takes a tile, not {t}"
    return None if 0 <= op.axis.value.data < t.rank else f"axis {op.axis.value.data} of {t}"


def _moved(op) -> str | None:
    if not isinstance(op.arg.type, TileType) or not isinstance(op.result.type, TileType):
        return f"takes and gives tiles, not {op.arg.type} and {op.result.type}"
    return (
        None
        if op.arg.type.element == op.result.type.element
        else f"keeps the elements, but makes {op.result.type} of {op.arg.type}"
    )


def _slice(op) -> str | None:
    if _moved(op):
        return _moved(op)
    ranks = {op.arg.type.rank, op.result.type.rank, len(op.offsets.get_values()), len(op.steps)}
    return (
        f"of {op.arg.type} gives {op.result.type} by {len(op.offsets.get_values())} offsets and"
        f" {len(op.steps)} steps"
        if len(ranks) > 1 or min(op.steps) < 1
        else None
    )


def _extract(op) -> str | None:
    t, index = op.arg.type, op.index.get_values()
    if (
        not isinstance(t, TileType)
        or len(index) != t.rank
        or any(not 0 <= i < n for i, n in zip(index, t.extents, strict=False))
    ):
        return f"index {list(index)} of {t}"
    return gives(op, (), t.element)


def _concat(op) -> str | None:
    types, axis = [a.type for a in op.args], op.axis.value.data
    if not types:
        return "takes one tile at least"
    if any(_axis(op, t) or t.rank != types[0].rank or t.element != types[0].element for t in types):
        return f"along axis {axis} of {', '.join(map(str, types))}"
    rest = {t.extents[:axis] + t.extents[axis + 1 :] for t in types}
    if len(rest) > 1:
        return f"along axis {axis}: the other extents differ"
    first = types[0].extents
    return gives(
        op,
        (*first[:axis], sum(t.extents[axis] for t in types), *first[axis + 1 :]),
        types[0].element,
    )


def _combination(op, args, results) -> str | None:
    """Operands of one shape; a region of 2n scalars that yields n, where there is to be one; as
    many results.
    """
    kind, types = op.kind.data, [a.type for a in args]
    if not types:
        return "takes one tile at least"
    if problem := next(filter(None, (_axis(op, t) for t in types)), None):
        return problem
    if any(t.extents != types[0].extents for t in types):
        return "takes tiles of one shape"
    if (kind == "combine") != (op.combine is not None):
        return f"of kind {kind} with{'out' if kind == 'combine' else ''} a region"
    if kind != "combine" and len(types) > 1:
        return f"of kind {kind} takes one tile"
    elements = [t.element for t in types]
    if op.combine is not None and not _combines(op.combine, elements):
        return (
            f"combines {', '.join(map(str, elements * 2))} to {', '.join(map(str, elements))}"
            " in one block"
        )
    if len(results) != len(types):
        return f"of {len(types)} tiles has {len(results)} results"
    return None


def _combines(region: Region, elements: list[Attribute]) -> bool:
    """Whether a region is one block that makes n scalars of 2n."""
    blocks = list(region.blocks)
    return (
        len(blocks) == 1
        and [a.type for a in blocks[0].args] == elements * 2
        and isinstance(blocks[0].last_op, tile.Yield)
        and [v.type for v in blocks[0].last_op.operands] == elements
    )


def _reduce(op) -> str | None:
    if problem := _combination(op, op.args, op.results):
        return problem
    axis, kind = op.axis.value.data, op.kind.data
    for a, r in zip(op.args, op.results, strict=False):
        shape = a.type.extents[:axis] + a.type.extents[axis + 1 :]
        element = i32 if kind.startswith("arg") else a.type.element
        if extents(r.type) != shape or element_of(r.type) != element:
            return f"of {a.type} along axis {axis} gives {list(shape)} of {element}, not {r.type}"
    if kind in ("any", "all") and op.args[0].type.element != i1:
        return f"of kind {kind} takes truth values, not {op.args[0].type}"
    if kind in ("fmax", "fmin") and not is_float(op.args[0].type.element):
        return f"of kind {kind} takes floats, not {op.args[0].type}"
    if kind == "xor" and is_float(op.args[0].type.element):
        return f"of kind xor takes integers, not {op.args[0].type}"
    return None


def _take(op) -> str | None:
    if problem := _axis(op, op.arg.type):
        return problem
    axis, t, found = op.axis.value.data, op.arg.type, op.result.type
    shape = t.extents[:axis] + t.extents[axis + 1 :]
    if extents(found) != shape or element_of(found) != t.element:
        return f"of {t} along axis {axis} gives {list(shape)} of {t.element}, not {found}"
    return None


def _reduce_partial(op) -> str | None:
    return _combination(op, op.args, op.results) or _totals(op, op.args, op.results)


def _scan(op) -> str | None:
    return _scanned(op, op.args, op.results)


def _scanned(op, args, results) -> str | None:
    """Of a scan whose operands and results are these."""
    if op.kind.data not in SCANS:
        return f"has no kind {op.kind.data!r}; there are {', '.join(SCANS)}"
    if problem := _combination(op, args, results):
        return problem
    return next(
        (
            f"of {a.type} gives {r.type}"
            for a, r in zip(args, results, strict=False)
            if extents(a.type) != extents(r.type) or element_of(a.type) != element_of(r.type)
        ),
        None,
    )


def _scan_total(op) -> str | None:
    if len(op.results) != 2 * len(op.args):
        return f"of {len(op.args)} tiles has {len(op.results)} results, not twice as many"
    if problem := _scanned(op, op.args, op.prefixes):
        return problem
    if any(not isinstance(u.operation, shared.ScanCarry) for r in op.prefixes for u in r.uses):
        return "gives prefixes of runs to another operation than 'tile.scan_carry'"
    return _totals(op, op.args, op.totals)


def _scan_carry(op) -> str | None:
    if len(op.args) != 2 * len(op.results):
        return f"of {len(op.args)} tiles has {len(op.results)} results, not half as many"
    return _scanned(op, op.prefixes, op.results) or _totals(op, op.prefixes, op.totals)


def _totals(op, args, totals) -> str | None:
    """What runs come to: of the elements and the extents of what they are of, but for the axis."""
    axis = op.axis.value.data
    for a, t in zip(args, totals, strict=True):
        have, wanted = list(extents(t.type) or ()), list(extents(a.type) or ())
        if element_of(t.type) != element_of(a.type) or len(have) != len(wanted):
            return f"of {a.type} has totals of {t.type}"
        wanted[axis] = have[axis]
        if have != wanted:
            return f"of {a.type} along axis {axis} has totals of {t.type}"
    return None


def _same(op) -> str | None:
    if not isinstance(op.arg.type, TileType):
        return f"takes a tile, not {op.arg.type}"
    return gives(op, op.arg.type.extents, op.arg.type.element)


def _gather(op) -> str | None:
    t, index, axis = op.arg.type, op.index.type, op.axis.value.data
    if problem := _axis(op, t) or _axis(op, index):
        return problem
    if not is_integer(index.element) or index.rank != t.rank:
        return f"takes a tile and one of integers of its rank, not {t} and {index}"
    if any(
        a != b for i, (a, b) in enumerate(zip(t.extents, index.extents, strict=True)) if i != axis
    ):
        return f"along axis {axis}: the other extents of {t} and {index} differ"
    return gives(op, index.extents, t.element)


def _histogram(op) -> str | None:
    t, r = op.arg.type, op.result.type
    if not isinstance(t, TileType) or t.rank != 1 or not is_integer(t.element):
        return f"takes a rank-1 tile of integers, not {t}"
    if not isinstance(r, TileType) or r.rank != 1 or r.element != i32:
        return f"gives a rank-1 tile of i32, not {r}"
    return _mask(op, t.extents)


def _mask(op, shape) -> str | None:
    """Mask and filling of a block or of pointers."""
    for name, element in (
        ("mask", i1),
        ("other", element_of(op.results[0].type) if op.results else None),
    ):
        value = getattr(op, name, None)
        if value is not None and (
            extents(value.type) not in (tuple(shape), ()) or element_of(value.type) != element
        ):
            return f"of {list(shape)} has the {name} {value.type}"
    return None


def _dot(op) -> str | None:
    a, b, c = (element_of(v.type) for v in (op.a, op.b, op.acc))
    if not isinstance(op.acc.type, TileType) or not all(
        isinstance(v.type, (TileType, SharedType)) and v.type.rank >= 2
        for v in (op.a, op.b, op.acc)
    ):
        return "takes tiles (operands may be buffers) of rank 2 and more"
    if a != b and not (is_float(a) and is_float(b) and bits(a) == bits(b) == 8):
        return f"takes operands of one element type, not {a} and {b}"
    return None if is_float(a) == is_float(c) and a != i1 else f"of {a} cannot be added to {c}"


def _array_axis(op) -> str | None:
    t = op.arg.type
    if not isinstance(t, ArrayType):
        return f"takes an array, not {t}"
    if not 0 <= op.axis.value.data < t.rank:
        return f"axis {op.axis.value.data} of {t}"
    return None if is_integer(op.result.type) else f"gives an integer, not {op.result.type}"


def _view(op) -> str | None:
    rank = sum(k.data != "index" for k in op.kinds)
    if op.result.type.rank != rank or op.result.type.element != op.array.type.element:
        return f"of {op.array.type} gives rank {rank}, not {op.result.type}"
    return _integers(op.offsets)


def _integers(values) -> str | None:
    return next((f"takes integers, not {v.type}" for v in values if not is_integer(v.type)), None)


def _make_array(op) -> str | None:
    t = op.result.type
    if len(op.shape) != t.rank or len(op.strides) != t.rank:
        return f"gives {t} of {len(op.shape)} extents and {len(op.strides)} strides"
    return _integers((*op.shape, *op.strides))


def _block(op, value: Attribute) -> str | None:
    if element_of(value) != op.array.type.element:
        return f"moves {value} to or from {op.array.type}"
    for offset, n in zip(op.offsets, op.extents.get_values(), strict=False):
        t = offset.type
        if not is_integer(element_of(t)) or isinstance(t, TileType) and t.extents != (n,):
            return f"has the offset {t} along an extent of {n}"
    return _mask(op, extents(value))


def _addresses(op, value: Attribute) -> str | None:
    t = op.pointers.type
    if not isinstance(element_of(t), PointerType):
        return f"takes pointers, not {t}"
    if extents(value) != extents(t) or element_of(value) != pointee_of(t):
        return f"moves {value} at {t}"
    return _mask(op, extents(t))


def _atomic(op) -> str | None:
    if op.kind.data not in tile.ATOMICS:
        return f"has no kind {op.kind.data!r}; there are {', '.join(tile.ATOMICS)}"
    if isinstance(op, tile.AtomicBlock):
        return (
            f"of kind {op.kind.data}"
            if op.kind.data in ("compare", "exchange")
            else _block(op, op.value.type)
        )
    if (op.kind.data == "compare") != (op.expected is not None):
        return "compares with an expected value, and other kinds have none"
    if op.expected is not None and op.expected.type != op.value.type:
        return f"expects {op.expected.type} where {op.value.type} is written"
    return _addresses(op, op.value.type)


def _for(op) -> str | None:
    kinds = {v.type for v in (op.lb, op.ub, op.step)}
    return (
        None
        if len(kinds) == 1 and isinstance(op.lb.type, NUMBERS) and op.lb.type != i1
        else f"counts from {op.lb.type} to {op.ub.type} by {op.step.type}"
    )


def _grid_axis(op) -> str | None:
    return (
        None if 0 <= op.axis.value.data < 3 else f"axis {op.axis.value.data}; a grid has 0, 1 and 2"
    )


RULES: dict[type[Operation], Callable] = {
    tile.ProgramId: _grid_axis,
    tile.NumPrograms: _grid_axis,
    tile.Multiple: lambda op: (
        "is of an integer or a pointer and a divisor of 1 and more"
        if op.divisor.value.data < 1
        or not is_integer(element_of(op.arg.type))
        and not isinstance(element_of(op.arg.type), PointerType)
        else None
    ),
    tile.Broadcast: _moved,
    tile.Reshape: _moved,
    tile.Transpose: _moved,
    tile.Slice: _slice,
    tile.Extract: _extract,
    tile.Flip: lambda op: _axis(op, op.arg.type) or _same(op),
    tile.Sort: _same,
    tile.Concat: _concat,
    tile.Reduce: _reduce,
    tile.Scan: _scan,
    shared.ReducePartial: _reduce_partial,
    shared.SpreadPartial: lambda op: (
        _axis(op, op.result.type) or _totals(op, [op.result], [op.arg])
    ),
    threads.Take: _take,
    shared.ScanTotal: _scan_total,
    shared.ScanCarry: _scan_carry,
    tile.Histogram: _histogram,
    tile.Gather: _gather,
    tile.Dot: _dot,
    tile.Dim: _array_axis,
    tile.Stride: _array_axis,
    tile.View: _view,
    tile.MakeArray: _make_array,
    tile.Pointer: lambda op: (
        None
        if isinstance(op.arg.type, ArrayType) and op.result.type == PointerType(op.arg.type.element)
        else f"of {op.arg.type} is no {op.result.type}"
    ),
    tile.Load: lambda op: _block(op, op.result.type),
    tile.Store: lambda op: _block(op, op.value.type),
    tile.LoadPointers: lambda op: _addresses(op, op.result.type),
    tile.StorePointers: lambda op: _addresses(op, op.value.type),
    tile.Atomic: _atomic,
    tile.AtomicBlock: _atomic,
    scf.ForOp: _for,
    tile.Assert: lambda op: (
        None
        if element_of(op.condition.type) == i1
        else f"takes truth values, not {op.condition.type}"
    ),
    ew.PointerAdd: lambda op: (
        None
        if op.result.type == op.pointer.type
        else f"gives {op.pointer.type}, not {op.result.type}"
    ),
}


def broken(op: Operation) -> str | None:
    """Which rule an operation breaks, as the rest of a sentence that begins with its name; None if
    it keeps them all.
    """
    for t in (
        *(r.type for r in op.results),
        *(a.type for region in op.regions for block in region.blocks for a in block.args),
    ):
        if isinstance(t, TileType) and (
            not t.rank or min(t.extents) < 1 or prod(t.extents) >= 1 << 31
        ):
            return f"has {t}: a tile has extents of 1 and more, and less than 2^31 elements"
    rule = RULES.get(type(op))
    return rule(op) if rule else None
