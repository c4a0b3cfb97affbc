"""Pictures of layouts as SVG text: which lane holds an element, where it lies in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tkc.ir.fragments import mma_a, mma_accumulator, mma_b, wgmma_accumulator
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout

CELL_WIDTH, CELL_HEIGHT = 34, 18  # pixels
BANK_BYTES = 4
BANKS = 32


def _hue(index: int, of: int) -> str:
    return f"hsl({360 * index // of} 70% 82%)"


def grid(rows: int, columns: int, cell: Callable[[int, int], tuple[str, str]]) -> str:
    """An SVG table; `cell(row, column)` gives a cell's text and colour."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * CELL_WIDTH + 2}"'
        f' height="{rows * CELL_HEIGHT + 2}" font-family="monospace" font-size="9">'
    ]
    for row in range(rows):
        for column in range(columns):
            text, colour = cell(row, column)
            x, y = column * CELL_WIDTH + 1, row * CELL_HEIGHT + 1
            parts.append(
                f'<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}"'
                f' fill="{colour}" stroke="#888" stroke-width="0.5"/>'
                f'<text x="{x + CELL_WIDTH / 2}" y="{y + 12}" text-anchor="middle">{text}</text>'
            )
    return "".join([*parts, "</svg>"])


def registers(layout: Layout, rows: int, columns: int) -> str:
    """Lane and register (`lane:register`) of each element of a tile's first rows and columns."""

    def cell(row: int, column: int) -> tuple[str, str]:
        register, lane, _, _ = layout.owners((row, column))[0]
        return f"{lane}:{register}", _hue(lane, 32)

    return grid(rows, columns, cell)


def shared(layout: SharedLayout, rows: int, columns: int, step: int) -> str:
    """The first bank of every `step` elements of a buffer's first rows; colours are banks."""

    def cell(row: int, column: int) -> tuple[str, str]:
        byte = layout.offset((row, column * step)) * layout.bits // 8
        bank = byte // BANK_BYTES % BANKS
        return str(bank), _hue(bank, BANKS)

    return grid(rows, columns // step, cell)


def page() -> str:
    """The Markdown of the page "Layouts in pictures"."""
    sections: Sequence[tuple[str, str, str]] = (
        (
            "Accumulator of `mma.sync` (16 x 8)",
            "`lane:register` of each element: four lanes share a row, each holds two neighbours.",
            registers(mma_accumulator(16, 8), 16, 8),
        ),
        (
            "Operand A of `mma.sync` (16 x 16, 16 bits)",
            "Elements of one register of 32 bits are neighbours along K.",
            registers(mma_a(16, 16), 16, 16),
        ),
        (
            "Operand B of `mma.sync` (16 x 8, 16 bits)",
            "The same, with K along the rows of the picture.",
            registers(mma_b(16, 8), 16, 8),
        ),
        (
            "Accumulator of `wgmma` (first 16 rows of 64 x 16)",
            "Each warp of the warpgroup holds 16 rows, in the pattern of `mma.sync`.",
            registers(wgmma_accumulator(64, 16), 16, 16),
        ),
        (
            "Shared memory without swizzle (64 columns of 16 bits)",
            "The first bank of every 8 elements: a column of 16-byte pieces lies in four banks.",
            shared(SharedLayout((8, 64), 16), 8, 64, 8),
        ),
        (
            "Shared memory with the 128-byte swizzle",
            "The pieces of a column lie in different banks, so eight rows are read at once.",
            shared(SharedLayout((8, 64), 16, swizzle=128), 8, 64, 8),
        ),
    )
    lines = [
        "# Layouts in pictures",
        "",
        "A layout says which thread holds which element of a tile (`tkc/ir/layout.py`), or where an"
        " element lies in shared memory (`tkc/ir/shared_layout.py`).",
    ]
    for title, text, picture in sections:
        lines += ["", f"## {title}", "", text, "", picture]
    return "\n".join(lines) + "\n"
