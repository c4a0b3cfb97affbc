"""How large a program's block is: functions of the shape alone, so that the same shapes give the same kernels.

A program should have enough bytes in flight (some 16 KiB a multiprocessor's share of threads) and few enough elements a thread that they stay in registers.
"""
from __future__ import annotations

from tkc.kernels.arrays import power

ELEMENTS, LONGEST = 4096, 1 << 17              # of a program that holds short rows; of a row that is held as a whole


def row_block(rows: int, columns: int) -> tuple[int, int]:
    """(rows, columns) of the block of a program that holds whole rows."""
    columns = max(1, columns)
    block = columns if columns >= 1024 and columns % 64 == 0 else power(columns)
    return max(1, min(power(rows), ELEMENTS // block)), block


def strip(n: int) -> int:
    """Elements of a program of an element-by-element kernel."""
    return min(ELEMENTS, max(128, power(n)))
