"""How large a program's block is: functions of the shape alone, so that the same shapes give the
same kernels.

A program should have enough bytes in flight to hide memory's latency, and few enough elements a
thread that they stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tkc
from tkc.kernels.arrays import power

ELEMENTS = 4096  # of a program that holds short rows, or a strip
ROW_ELEMENTS = 2048, 5120  # likewise, at most, of which the planner takes its choice
# that walk over rows and hold sums over them: two for each multiprocessor of the largest GPU, one
# where a row fills it
PROGRAMS = 264


def row_block(rows: int, columns: int) -> tuple[int, int]:
    """(rows, columns) of the block of a program that holds whole rows."""
    columns = max(1, columns)
    # a long row is dealt out in equal parts
    step = 64 if columns <= 16384 else 16384 if columns <= 65536 else 32768
    block = power(columns) if columns < 1024 else -(-columns // step) * step
    return max(1, min(power(rows), ELEMENTS // block)), block


def row_configs(
    name: str, width: Callable[[int], int] | None = None
) -> Callable[[dict[str, Any], str], list[tkc.Config]]:
    """Blocks of ROWS whole rows of the matrix that is the argument `name`, of which the planner
    takes the one that is done first; for the CPU one of about ELEMENTS elements. width: COLUMNS for
    rows of so many elements, if they are not those of `row_block`.
    """

    def configs(args: dict[str, Any], target: str) -> list[tkc.Config]:
        rows, columns = args[name].shape
        usual, block = row_block(rows, columns)
        if width is not None:
            block = width(max(1, columns))
            usual = max(1, min(power(max(1, rows)), ELEMENTS // block))
        if target == "cpu":
            return [tkc.Config(ROWS=usual, COLUMNS=block)]
        whole = (1 << max(1, n // block).bit_length() - 1 for n in ROW_ELEMENTS)
        counts = {min(power(max(1, rows)), n) for n in whole}
        return [tkc.Config(ROWS=count, COLUMNS=block) for count in sorted(counts)]

    return configs


def rows_grid(name: str) -> Callable[[dict[str, Any]], int]:
    """A program for each ROWS rows of the matrix that is the argument `name`."""

    def grid(args: dict[str, Any]) -> int:
        return max(1, -(-args[name].shape[0] // args["ROWS"]))

    return grid


def grid_of(name: str) -> Callable[[dict[str, Any]], tuple[int, int]]:
    """A program for each block of BM x BN elements of the matrix that is the argument `name`."""

    def grid(args: dict[str, Any]) -> tuple[int, int]:
        rows, columns = args[name].shape
        return -(-rows // args["BM"]), -(-columns // args["BN"])

    return grid


def row_programs(blocks: int, elements: int) -> int:
    """Programs that share so many blocks of rows, of so many elements each."""
    return max(1, min(blocks, PROGRAMS if elements <= ELEMENTS else PROGRAMS // 2))


def columns_block(rows: int, columns: int) -> tuple[int, int]:
    """(rows, columns) of a step of a program that sums over rows: few columns, so that there are
    many programs, and as many elements as a program has, so that there are not too many.
    """
    height, width = min(power(max(rows, 1)), 64), min(power(max(columns, 1)), 64)
    while height * width < ELEMENTS and columns >= 2 * PROGRAMS * width:
        width *= 2
    return height, width


def parts(rows: int) -> list[slice]:
    """Rows in parts that the second axis of a grid can count."""
    return [slice(i, min(i + 65535, rows)) for i in range(0, rows, 65535)]


def strip(n: int) -> int:
    """Elements of a program of an element-by-element kernel."""
    return min(ELEMENTS, max(128, power(n)))
