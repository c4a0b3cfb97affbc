"""What operations demand of layouts from level 1 on, checked element by element: the promise in
select-layouts' docstring.
"""

import numpy as np
from xdsl.dialects import scf

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.layout import WARP, Layout
from tkc.ir.types import TileType
from tkc.passes.layouts.movers import crosses


def elements(layout: Layout) -> np.ndarray:
    """[threads, registers, rank]: what each thread holds; −1 where it is padding."""
    at = layout.table().reshape(-1, layout.num_registers, layout.rank)
    assert at.shape[0] == WARP * layout.num_warps * layout.num_blocks
    return np.where((at < layout.shape).all(-1, keepdims=True), at, -1)


def numbers(layout: Layout, index=None) -> np.ndarray:
    """[threads, registers]: the row-major number of what each register holds, of a tile of
    `index`'s own coordinates where that is given.
    """
    at = elements(layout)
    real = (at >= 0).all(-1)
    return np.where(
        real,
        (
            index(at)
            if index
            else np.ravel_multi_index(tuple(np.moveaxis(np.maximum(at, 0), -1, 0)), layout.shape)
        ),
        -1,
    )


def held(have: np.ndarray, want: np.ndarray) -> bool:
    """Whether every thread has what it wants."""
    return all(set(w.tolist()) - {-1} <= set(h.tolist()) for h, w in zip(have, want, strict=False))


def of(value) -> Layout:
    return value.type.register_layout


def check(kernel: tile.Kernel) -> None:
    """Fails with the operation that does not get what it demands."""
    for op in kernel.walk():
        assert _satisfied(op), (
            f"{op.name} of {[str(v.type) for v in op.operands]} ->"
            f" {[str(v.type) for v in op.results]}"
        )
        for v in (*op.results, *op.operands):
            if isinstance(v.type, TileType):
                assert (
                    of(v) is not None
                    and of(v).shape == v.type.extents
                    and of(v).num_warps == kernel.warps
                ), f"{op.name}: {v.type} with {kernel.warps} warps"


def _satisfied(op) -> bool:
    tiles = [v for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
    match op:
        case (
            ew.Elementwise()
            | ew.Select()
            | ew.Cast()
            | ew.Bitcast()
            | ew.PointerAdd()
            | tile.Multiple()
            | tile.Scan()
            | tile.LoadPointers()
            | tile.StorePointers()
            | tile.Atomic()
        ):
            return len({of(v) for v in tiles}) <= 1
        case tile.Transpose():
            return of(op.result) == of(op.arg).transpose(op.permutation.get_values())
        case tile.Broadcast():
            a, r = op.arg.type.extents, op.result.type.extents

            def narrow(at):
                return np.ravel_multi_index(
                    tuple(np.where(np.array(a) > 1, np.maximum(at, 0), 0).transpose(2, 0, 1)), a
                )

            return held(numbers(of(op.arg)), numbers(of(op.result), narrow))
        case tile.Reshape():
            return held(numbers(of(op.arg)), numbers(of(op.result))) or crosses(
                op, of(op.arg).num_warps
            )
        case tile.Slice():
            offsets, steps = np.array(op.offsets.get_values()), np.array(op.steps)

            def source(at):
                return np.ravel_multi_index(
                    tuple((np.maximum(at, 0) * steps + offsets).transpose(2, 0, 1)),
                    op.arg.type.extents,
                )

            return held(numbers(of(op.arg)), numbers(of(op.result), source))
        case tile.Concat():
            return _concatenates(op)
        case tile.Reduce():
            drop = of(op.args[0]).drop(op.axis.value.data)
            return len({of(a) for a in op.args}) == 1 and all(
                of(r) == drop for r in op.results if isinstance(r.type, TileType)
            )
        case tile.Sort():
            return of(op.arg) == of(op.result) and of(op.arg).warps_along(op.arg.type.rank - 1) == 1
        case tile.Flip():
            axis = op.axis.value.data
            return of(op.arg) == of(op.result) and not of(op.arg).digits(
                axis, ["lanes", "warps", "blocks"]
            )
        case tile.Dot():
            return op.instruction is not None and of(op.acc) == of(op.result) and _operands_meet(op)
        case tile.Store() | tile.Load() if tiles:
            return len({of(v) for v in tiles if v.type.extents == tiles[-1].type.extents}) == 1
        case scf.ForOp():
            return all(
                a.type == b.type == c.type
                for a, b, c in zip(op.iter_args, op.body.block.args[1:], op.results, strict=False)
            )
    return True


def _concatenates(op: tile.Concat) -> bool:
    """Every thread has the elements of the parts that its share of the whole is made of."""
    axis, whole = op.axis.value.data, op.result.type.extents
    start, have = 0, []
    for a in op.args:
        move = np.array([start if i == axis else 0 for i in range(len(whole))])

        def index(at, move=move):
            return np.ravel_multi_index(tuple((np.maximum(at, 0) + move).transpose(2, 0, 1)), whole)

        have.append(numbers(of(a), index))
        start += a.type.extents[axis]
    return held(np.concatenate(have, 1), numbers(of(op.result)))


def _operands_meet(op: tile.Dot) -> bool:
    """fma: a thread has the row of a and the column of b of every element it computes. mma: the
    warp has them.
    """
    k, share = op.a.type.extents[-1], 1 if op.instruction.data == "fma" else WARP
    a, b, acc = (elements(of(v)) for v in (op.a, op.b, op.acc))
    for t in range(0, len(acc), share):
        rows, columns = (
            {tuple(x) for x in a[t : t + share].reshape(-1, a.shape[-1]).tolist()},
            {tuple(x) for x in b[t : t + share].reshape(-1, b.shape[-1]).tolist()},
        )
        for *batch, m, n in {
            tuple(x) for x in acc[t : t + share].reshape(-1, acc.shape[-1]).tolist()
        } - {(-1,) * acc.shape[-1]}:
            if any(
                (*batch, m, i) not in rows or (*batch, i, n) not in columns
                for i in (0, k // 2, k - 1)
            ):
                return False
    return True
