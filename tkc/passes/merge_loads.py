"""merge-loads: loads of elements that are neighbours in memory become one load.

    %u = tile.load_pointers %p                       %q = tile.pointer_add %p[:, None], [0, 1]
    %o = tile.pointer_add %p, 1                ->    %b = tile.load_pointers %q : tile<32x2>
    %v = tile.load_pointers %o                       %u, %v = %b[:, 0], %b[:, 1]

and so are blocks of an array that lie at places 0 and 1 of its last axis.

Records in memory (coordinates, corners of boxes, pairs of sine and cosine) are read by their parts
in such programs. Each load of a part asks for lines of its own in every row; together they ask
once, and a thread reads them in one access of up to 16 bytes.

Merged are loads of one block of operations in a program without dots, under one mask, with nothing
written between them, whose places differ by constants (pointers that are affine:
analysis/pointers.py), where every row begins at a multiple of what is read together: so are rows
apart from one another. Less than 8 bytes gain nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.host_values import argument_number
from tkc.ir.rewrite import Builder, replace
from tkc.ir.types import ArrayFacts, TileType, bits
from tkc.ir.values import array_type, is_side_effect_free, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.parts import MAX_BYTES
from tkc.passes.analysis.pointers import Forms
from tkc.passes.analysis.polynomials import ONE, Polynomial, TooLarge

MIN_BYTES = 8  # of an access that is worth it


@dataclass(frozen=True)
class Place:
    """What loads that may be merged have in common: all that says where they read but a constant,
    and what is read where their mask does not hold. axis: of the tile that is read together, along
    which they are neighbours. most: elements, a power of two, that one access may read; size: of
    one, in bytes.
    """

    where: tuple[Hashable, ...]
    mask: SSAValue | None
    other: SSAValue | str | None  # a number as Python writes it: 0.0 is not -0.0
    axis: int
    most: int
    size: int

    @staticmethod
    def of(op: tile.Load | tile.LoadPointers, forms: Forms) -> tuple[Place, int] | None:
        """With the constant; None where nothing can be merged with a load."""
        if not isinstance(op.result.type, TileType):
            return None
        found = _by_pointers(op, forms) if isinstance(op, tile.LoadPointers) else _block(op, forms)
        if found is None:
            return None
        (where, axis, facts, steps), number = found
        size = bits(op.result.type.element) // 8
        count = max(MAX_BYTES // size, 1)
        while count > 1 and (any(n % count for n in steps) or facts.align % (count * size)):
            count //= 2
        other: SSAValue | str | None = op.other
        if op.other is not None and (same := constant(op.other)) is not None:
            other = repr(same)
        return Place(where, op.mask, other, axis, count, size), number


# what says where loads read, the axis along which they are neighbours, what is known of the array,
# and of what their rows' places are multiples; and the constant
Found = tuple[tuple[tuple[Hashable, ...], int, ArrayFacts, Sequence[int]], int]


def _apart(offset: Polynomial) -> tuple[Polynomial, int]:
    """A place without its constant, and that."""
    number = dict(offset.terms).get(ONE, 0)
    return offset - Polynomial.number(number), number


def _by_pointers(op: tile.LoadPointers, forms: Forms) -> Found | None:
    form = forms.get(op.pointers)
    if op.semantics is not None or form is None or form.base is None:
        return None
    if argument_number(form.base) is None:  # nothing is known of where it begins
        return None
    rest, number = _apart(form.offset)
    steps = [rest, *(s for _, s in form.strides), *(g.stride for _, g in form.gathered)]
    t = tile_type(op.pointers)
    where = t, form.base, rest, form.strides, form.wrapped, form.repeated, form.gathered
    divisors = [forms.scalars.divisor(step) for step in steps]
    return (where, t.rank, array_type(form.base).facts, divisors), number


def _dense(op: tile.Load) -> int:
    """The axis of a load's array, of which it has one place alone, along which neighbours are
    neighbours in memory; -1 where there is none.
    """
    extents, strides = op.extents.get_values(), array_type(op.array).facts.strides
    return next((a for a, s in enumerate(strides) if s.exact == 1 and extents[a] < 0), -1)


def _block(op: tile.Load, forms: Forms) -> Found | None:
    extents, facts = op.extents.get_values(), array_type(op.array).facts
    axis = _dense(op)
    if axis < 0 or op.fetch is not None:
        return None
    try:
        rest, number = _apart(forms.scalars.of(op.offsets[axis]))
    except TooLarge:
        return None
    others = tuple(v for a, v in enumerate(op.offsets) if a != axis)
    where = op.array, tuple(extents), others, rest
    strides = [
        s.divisor if s.exact is None else s.exact for a, s in enumerate(facts.strides) if a != axis
    ]
    before = sum(n >= 0 for n in extents[:axis])
    return (where, before, facts, [forms.scalars.divisor(rest), *strides]), number


Load = tile.Load | tile.LoadPointers
Loads = dict[int, Load]  # of a place, by the constant


def run(module: ModuleOp, context: PassContext) -> None:
    """Merges the loads of each kernel, and says how many."""
    for kernel in module.body.block.ops:
        if isinstance(kernel, tile.Kernel) and _may_gain(kernel):
            _merge_all(kernel, context)


def _merge_all(kernel: tile.Kernel, context: PassContext) -> None:
    forms = Forms.of(kernel)
    found = [run for block in _blocks(kernel) for run in _runs(block, forms)]
    for place, loads in found:
        _merge(loads, place.axis)
    if found:
        context.decisions.append(
            f"merge-loads: {sum(len(loads) for _, loads in found)} loads of neighbours are"
            f" {len(found)}"
        )


def _blocks(kernel: tile.Kernel) -> list[Block]:
    regions = [region for op in kernel.walk() for region in op.regions]
    return [block for region in regions for block in region.blocks]


def _may_gain(kernel: tile.Kernel) -> bool:
    """Whether some loads are alike, so that their addresses are worth being looked at; beside dots
    roles may have to compute them again, each in its own threads.
    """
    if any(isinstance(op, tile.Dot) for op in kernel.walk()):
        return False
    alike = Counter(
        (op.parent, op.result.type, op.mask)
        for op in kernel.walk()
        if isinstance(op, Load) and isinstance(op.result.type, TileType)
        if not isinstance(op, tile.Load) or _dense(op) >= 0
    )
    return any(count > 1 for count in alike.values())


def _runs(block: Block, forms: Forms) -> Iterator[tuple[Place, list[Load]]]:
    """Loads of a block that are neighbours, each by its place among them."""
    places: dict[Place, Loads] = {}
    for op in block.ops:
        if isinstance(op, Load) and (found := Place.of(op, forms)) is not None:
            place, number = found
            places.setdefault(place, {}).setdefault(number, op)
        elif not _is_plain_load(op) and not is_side_effect_free(op):
            yield from _neighbours(places)
            places = {}
    yield from _neighbours(places)


def _is_plain_load(op: Operation) -> bool:
    """Whether an operation reads memory, and orders nothing."""
    return isinstance(op, tile.Load) or isinstance(op, tile.LoadPointers) and op.semantics is None


def _neighbours(places: dict[Place, Loads]) -> Iterator[tuple[Place, list[Load]]]:
    for place, loads in places.items():
        count, left = place.most, dict(loads)
        while count > 1 and count * place.size >= MIN_BYTES:
            for start in [n for n in left if n % count == 0]:
                numbers = range(start, start + count)
                if all(n in left for n in numbers):
                    yield place, [left.pop(n) for n in numbers]
            count //= 2


def _merge(loads: Sequence[Load], axis: int) -> None:
    """One load where the first of some stands, of which each gives a part. loads: by place; axis:
    of the tile that is read, along which they are.
    """
    block = loads[0].parent
    assert block is not None
    first = next(op for op in block.ops if op in loads)
    build, count, place = Builder(first), len(loads), loads.index(first)
    t = tile_type(first.result)
    one, whole = ([*t.extents[:axis], n, *t.extents[axis:]] for n in (1, count))

    def spread(value: SSAValue | None) -> SSAValue | None:
        if value is None or not isinstance(value.type, TileType):
            return value
        column = build(tile.Reshape(value, TileType(one, value.type.element)))
        return build(tile.Broadcast(column, TileType(whole, value.type.element)))

    mask, other = spread(first.mask), spread(first.other)
    if isinstance(first, tile.LoadPointers):
        numbers = build(tile.Arange(-place, TileType((count,), i32)))
        line = build(tile.Reshape(numbers, TileType([*[1] * len(t.extents), count], i32)))
        steps = build(tile.Broadcast(line, TileType(whole, i32)))
        pointers = spread(first.pointers)
        assert pointers is not None
        loaded = build(tile.LoadPointers(build(ew.PointerAdd(pointers, steps)), mask, other))
    else:
        extents, offsets = list(first.extents.get_values()), list(first.offsets)
        dense = _dense(first)
        extents[dense], offsets[dense] = count, build.sub(offsets[dense], place)
        loaded = build(tile.Load(first.array, offsets, extents, mask, other))
    start, part = [0] * len(whole), TileType(one, t.element)
    columns = []
    for i in range(count):
        start[axis] = i
        columns.append(build(tile.Slice(loaded, start, part)))
    for op, column in zip(loads, [build(tile.Reshape(c, t)) for c in columns], strict=True):
        replace(op, [column])
