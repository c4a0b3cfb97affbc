"""merge-loads: loads of elements that are neighbours in memory become one load.

    %u = tile.load_pointers %p                       %q = tile.pointer_add %p[:, None], [0, 1]
    %o = tile.pointer_add %p, 1                ->    %b = tile.load_pointers %q : tile<32x2>
    %v = tile.load_pointers %o                       %u, %v = %b[:, 0], %b[:, 1]

Records in memory (coordinates, corners of boxes, pairs of sine and cosine) are read by their parts
in such programs. Each load of a part asks for lines of its own in every row; together they ask
once, and a thread reads them in one access of up to 16 bytes.

Merged are loads of one block of operations, under one mask, with nothing written between them,
whose pointers are affine (analysis/pointers.py) and differ by constants, where every row begins at
a multiple of what is read together: so are rows apart from one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.host_values import argument_number
from tkc.ir.rewrite import Builder, replace
from tkc.ir.types import TileType, bits, pointee_of
from tkc.ir.values import array_type, is_side_effect_free, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.folding import constant
from tkc.passes.analysis.pointers import Affine, Forms, Gathered
from tkc.passes.analysis.polynomials import ONE, Polynomial

VECTOR_BYTES = 16  # that one access of a thread moves


@dataclass(frozen=True)
class Place:
    """What loads that may be merged have in common: all of an address but a constant, and what is
    read where their mask does not hold.
    """

    type: TileType
    base: SSAValue
    rest: Polynomial
    strides: tuple[tuple[int, Polynomial], ...]
    repeated: tuple[tuple[int, int], ...]
    gathered: tuple[tuple[int, Gathered], ...]
    mask: SSAValue | None
    other: SSAValue | str | None  # a number as Python writes it: 0.0 is not -0.0

    @staticmethod
    def of(op: tile.LoadPointers, form: Affine) -> tuple[Place, int] | None:
        """With the constant; None where nothing can be merged with a load."""
        t = op.pointers.type
        if not isinstance(t, TileType) or form.base is None or form.wrapped:
            return None
        if argument_number(form.base) is None:  # nothing is known of where it begins
            return None
        number = dict(form.offset.terms).get(ONE, 0)
        other: SSAValue | str | None = op.other
        if op.other is not None and (same := constant(op.other)) is not None:
            other = repr(same)
        place = Place(
            t,
            form.base,
            form.offset - Polynomial.number(number),
            form.strides,
            form.repeated,
            form.gathered,
            op.mask,
            other,
        )
        return place, number

    def most(self, forms: Forms) -> int:
        """Elements, a power of two, that one access may read: every row begins at a multiple."""
        size = bits(pointee_of(self.type)) // 8
        count = VECTOR_BYTES // size
        steps = [self.rest, *(s for _, s in self.strides), *(g.stride for _, g in self.gathered)]
        while count > 1 and (
            any(forms.scalars.divisor(step) % count for step in steps)
            or array_type(self.base).facts.align % (count * size)
        ):
            count //= 2
        return count


Loads = dict[int, tile.LoadPointers]  # of a place, by the constant


def run(module: ModuleOp, context: PassContext) -> None:
    """Merges the loads of each kernel, and says how many."""
    for kernel in module.body.block.ops:
        if not isinstance(kernel, tile.Kernel) or not _may_gain(kernel):
            continue
        forms = Forms.of(kernel)
        found = [run for block in _blocks(kernel) for run in _runs(block, forms)]
        for run_ in found:
            _merge(run_)
        if found:
            context.decisions.append(
                f"merge-loads: {sum(map(len, found))} loads of neighbours are {len(found)}"
            )


def _blocks(kernel: tile.Kernel) -> list[Block]:
    regions = [region for op in kernel.walk() for region in op.regions]
    return [block for region in regions for block in region.blocks]


def _may_gain(kernel: tile.Kernel) -> bool:
    """Whether some loads are alike, so that their addresses are worth being looked at."""
    alike = Counter(
        (op.parent, op.pointers.type, op.mask)
        for op in kernel.walk()
        if isinstance(op, tile.LoadPointers) and isinstance(op.pointers.type, TileType)
    )
    return any(count > 1 for count in alike.values())


def _runs(block: Block, forms: Forms) -> Iterator[list[tile.LoadPointers]]:
    """Loads of a block that are neighbours, each by its place among them."""
    places: dict[Place, Loads] = {}
    for op in block.ops:
        if isinstance(op, tile.LoadPointers) and op.semantics is None:
            form = forms.get(op.pointers)
            if form is not None and (found := Place.of(op, form)) is not None:
                place, number = found
                places.setdefault(place, {}).setdefault(number, op)
        elif not isinstance(op, tile.Load) and not is_side_effect_free(op):
            yield from _neighbours(places, forms)
            places = {}
    yield from _neighbours(places, forms)


def _neighbours(places: dict[Place, Loads], forms: Forms) -> Iterator[list[tile.LoadPointers]]:
    for place, loads in places.items():
        count = place.most(forms) if len(loads) > 1 else 1
        left = dict(loads)
        while count > 1:
            for start in [n for n in left if n % count == 0]:
                numbers = range(start, start + count)
                if all(n in left for n in numbers):
                    yield [left.pop(n) for n in numbers]
            count //= 2


def _merge(loads: Sequence[tile.LoadPointers]) -> None:
    """One load where the first of some stands, of which each gives a part. loads: by place."""
    block = loads[0].parent
    assert block is not None
    first = next(op for op in block.ops if op in loads)
    build, count = Builder(first), len(loads)
    extents = tile_type(first.pointers).extents
    whole = (*extents, count)

    def spread(value: SSAValue) -> SSAValue:
        element = tile_type(value).element
        column = build(tile.Reshape(value, TileType((*extents, 1), element)))
        return build(tile.Broadcast(column, TileType(whole, element)))

    numbers = build(tile.Arange(-loads.index(first), TileType((count,), i32)))
    line = build(tile.Reshape(numbers, TileType((1,) * len(extents) + (count,), i32)))
    pointers = build(
        ew.PointerAdd(spread(first.pointers), build(tile.Broadcast(line, TileType(whole, i32))))
    )
    mask, other = (None if v is None else spread(v) for v in (first.mask, first.other))
    loaded = build(tile.LoadPointers(pointers, mask, other))
    t = tile_type(first.result)
    column, start = TileType((*extents, 1), t.element), [0] * len(extents)
    parts = [build(tile.Slice(loaded, [*start, i], column)) for i in range(count)]
    for op, part in zip(loads, [build(tile.Reshape(part, t)) for part in parts], strict=True):
        replace(op, [part])
