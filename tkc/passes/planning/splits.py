"""The dots of tensor cores, and of multiply-adds, in one role: their instructions, and how warps
share their results.
"""

from __future__ import annotations

from math import prod

from tkc.ir import tile
from tkc.ir.fragments import Mma, instructions_for
from tkc.ir.types import TileType, element_of
from tkc.ir.values import tile_type
from tkc.passes.analysis.remembered import remembered
from tkc.passes.analysis.values import POINTWISE


@remembered
def instruction_of(dot: tile.Dot, capability: int) -> tuple[Mma | None, str]:
    """The tensor-core instruction for a dot, or None with the reason."""
    a, b, acc = (element_of(v.type) for v in (dot.a, dot.b, dot.acc))
    short = dot.precision.data.startswith("tf32")
    names = ("tf32", "tf32") if short and str(a) == str(b) == "f32" else (str(a), str(b))
    fit = [i for i in instructions_for(*names, str(acc), capability) if i.name.startswith("mma")]
    k = tile_type(dot.a).extents[-1]
    if not fit:
        return (
            None,
            (
                f"no tensor-core instruction of sm_{capability} multiplies {names[0]} by {names[1]}"
                f" into {acc}"
            ),
        )
    if k % fit[0].k:
        return None, f"k = {k} is not a multiple of {fit[0].k}, the depth of {fit[0].name}"
    return fit[0], ""


def bound_to_rows(dot: tile.Dot) -> bool:
    """Whether a dot's result is reduced along its columns, or is the left operand of another dot: a
    row should stay in one warp.
    """
    seen, work = set(), [dot.result]
    while work:
        value = work.pop()
        for use in value.uses:
            op = use.operation
            if isinstance(op, tile.Dot) and use.index == 0:
                return True
            if (
                isinstance(op, (tile.Reduce, tile.Scan))
                and op.axis.value.data == tile_type(value).rank - 1
            ):
                return True
            if isinstance(op, POINTWISE) and op not in seen:
                seen.add(op)
                work += [r for r in op.results if isinstance(r.type, TileType)]
    return False


def split_as_asked(
    m: int, n: int, least: tuple[int, int], warps: int, asked: tuple[int, int]
) -> tuple[int, int] | None:
    """How warps are asked to share a dot of m rows and n columns, of which each has at least so
    many; None where it is not asked, or impossible.
    """
    if prod(asked) != warps:
        return None
    sides = zip((m, n), least, asked, strict=True)
    return asked if all(p == 1 or extent >= each * p for extent, each, p in sides) else None


def split_of(dot: tile.Dot, instruction: Mma, warps: int, rows: bool) -> tuple[int, int]:
    """Warps along m and n of a dot of the tensor cores. rows: one should stay in one warp."""
    *_, m, n = tile_type(dot.acc).extents
    alone = rows and m >= 16 * warps
    return (warps, 1) if alone else evenly(warps, m, n, instruction.m, 8)


def evenly(warps: int, m: int, n: int, least_m: int, least_n: int) -> tuple[int, int]:
    """Warps along m and n: the smallest sum of a warp's rows and columns, idle warps counted as
    work.
    """
    options = [(wm, warps // wm) for wm in range(1, warps + 1) if warps % wm == 0]

    def padded(size, parts, least):
        return -(-size // (parts * least)) * least

    def waste(wm, wn):
        return padded(m, wm, least_m) * wm * padded(n, wn, least_n) * wn

    return min(
        options,
        key=lambda o: (waste(*o), padded(m, o[0], least_m) + padded(n, o[1], least_n), -o[0]),
    )
