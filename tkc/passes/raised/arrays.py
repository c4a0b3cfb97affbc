"""Arrays that a kernel makes at a place of its own become parts of arrays that the host knows.

    %p = tile.pointer_add %x, (%batch * %H + %head) * %S * %D
    %a = tile.make_array %p [%S, %D] …         ->      %w = tile.make_array %x [2^31 - 1, %S, %D] …
                                                       %a = tile.view %w [%batch * %H + %head, :, :]

So blocks of them have tensor maps, as those of pointers have that raise-pointers finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.host_values import argument_number, host_array, host_value
from tkc.ir.target import ROW_ALIGNMENT
from tkc.ir.types import ArrayType, bits
from tkc.ir.values import array_type
from tkc.passes.analysis.mapped import MAX_MAP_RANK, dense_axis
from tkc.passes.analysis.pointers import Forms
from tkc.passes.analysis.polynomials import Polynomial, TooLarge
from tkc.passes.raised.blocks import MEMORY_BYTES, ROWS_BEFORE, Axis, is_large
from tkc.passes.raised.outer import outer_axes


@dataclass
class Part:
    """A made array that is one of many: `offset` elements behind an argument's first, at one place
    along each of some outer axes. assumed: divisors taken to be positive.
    """

    op: tile.MakeArray
    base: SSAValue
    offset: Polynomial
    axes: list[Axis]
    assumed: set[SSAValue] = field(default_factory=set)


def made_at_places(kernel: tile.Kernel) -> list[tile.MakeArray]:
    """The arrays that only their addresses keep the host from knowing."""
    return [
        op
        for op in kernel.walk()
        if isinstance(op, tile.MakeArray)
        and all(host_value(v) is not None for v in (*op.shape, *op.strides))
        and host_array(op.result) is None
    ]


def parts(arrays: list[tile.MakeArray], forms: Forms) -> Iterator[Part]:
    """Those of them that are parts of arrays that the host knows."""
    for op in arrays:
        try:
            part = _part(op, forms)
        except TooLarge:
            continue
        if part is not None:
            yield part


def _part(op: tile.MakeArray, forms: Forms) -> Part | None:
    form, scalars = forms.get(op.pointer), forms.scalars
    if form is None or form.base is None or argument_number(form.base) is None:
        return None
    if not isinstance(form.base.type, ArrayType):
        return None
    known = [m for m, _ in form.offset.terms if scalars.is_host(Polynomial(((m, 1),)))]
    offset = form.offset.part(known)
    axes = outer_axes(form.offset - offset, MAX_MAP_RANK - len(op.shape), scalars.is_host)
    part = Part(op, form.base, offset, axes)
    if len(axes) + len(op.shape) > MAX_MAP_RANK or not _is_aligned(part, forms):
        return None
    size = bits(array_type(op.result).element) // 8
    for axis in axes:
        rows = MEMORY_BYTES // max(1, scalars.divisor(axis.stride) * size)
        if is_large(form.base) and rows > ROWS_BEFORE and not forms.is_narrow(axis.start):
            return None
        if not scalars.is_never_negative(axis.start, part.assumed):
            return None
    return part


def _is_aligned(part: Part, forms: Forms) -> bool:
    """Whether rows begin at such multiples of bytes as tensor maps take."""
    t = array_type(part.op.result)
    size, dense = bits(t.element) // 8, dense_axis(part.op.result)
    steps = [s.divisor if s.exact is None else s.exact for s in t.facts.strides]
    del steps[dense]
    steps += [forms.scalars.divisor(p) for p in (part.offset, *(a.stride for a in part.axes))]
    align = array_type(part.base).facts.align
    return not any(n * size % ROW_ALIGNMENT for n in steps) and not align % ROW_ALIGNMENT
