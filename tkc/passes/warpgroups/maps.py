"""The tensor maps of a kernel with roles: for the copies of its producer and for its epilogue
stores.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tkc.ir import threads, tile
from tkc.ir.ranges import divisor
from tkc.ir.rewrite import before
from tkc.ir.types import MapType, bits
from tkc.ir.values import array_type
from tkc.passes.analysis.mapped import MAX_MAP_RANK, dense_axis, through


class Maps:
    """The tensor maps of a kernel, one for each array and box, made before the roles part."""

    def __init__(self, anchor: Operation):
        self.anchor = anchor
        self.made: dict[tuple, SSAValue] = {}

    def of(
        self,
        array: SSAValue,
        offsets: list[SSAValue],
        box: list[int],
        swizzle: int,
        tf32: bool = False,
        fetch: int = 0,
    ) -> tuple[SSAValue, list[SSAValue]]:
        """The map for a box of an array or of a view of an argument, and the box's place in the
        map's axes (the dense one is the last).
        """
        dense = dense_axis(array)
        while isinstance(array.owner, tile.View):
            fixed, rest, extents = iter(array.owner.offsets), iter(offsets), iter(box)
            pairs = [
                (next(fixed), 1) if kind.data == "index" else (next(rest), next(extents))
                for kind in array.owner.kinds
            ]
            offsets, box, dense, array = (
                [o for o, _ in pairs],
                [n for _, n in pairs],
                through(array.owner, dense),
                array.owner.array,
            )
        order = [*(a for a in range(len(box)) if a != dense), dense]
        offsets, box = [offsets[a] for a in order], [box[a] for a in order]
        element, facts = array_type(array).element, array_type(array).facts
        panel = swizzle * 8 // bits(element) if swizzle else box[-1]
        t = MapType(
            box,
            element,
            swizzle,
            box[-1] > panel
            # panels are an axis more
            and len(box) < MAX_MAP_RANK
            and facts.shape[dense].divisible(panel)
            and divisor(offsets[-1]) % panel == 0,
        )
        if (key := (array, t, tf32, fetch, *order)) not in self.made:
            self.made[key] = before(
                self.anchor, threads.TensorMap(array, t, order, tf32, fetch)
            ).result
        return self.made[key], offsets
