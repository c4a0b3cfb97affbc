"""Moving elements: a transposed copy, rows of an embedding table, and the gradient of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tkc
from tkc.kernels.arrays import Array, contiguous, empty, flat, library, matrix, power, zeros
from tkc.kernels.blocks import parts
from tkc.kernels.operator import operator

# what makes argsort stable; cupy's always is
STABLE: dict[str, dict[str, Any]] = {
    "torch": {"stable": True},
    "jax": {"stable": True},
    "numpy": {"kind": "stable"},
    "cupy": {},
}
GATHERED_ROWS, GATHERED_COLUMNS = 16, 1024  # of a block whose rows are gathered
# rows and columns of a block that is transposed where vectors can be moved, and where rows begin
# anywhere
VECTOR_BLOCK, SCALAR_BLOCK = (128, 64), (128, 32)


@tkc.jit
def _transpose(x, out, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    # neighbours in time write neighbours: lines leave the cache whole
    row, column, batch = (
        tkc.program_id(0) * ROWS,
        tkc.program_id(1) * COLUMNS,
        tkc.program_id(2),
    )
    tkc.store(out[batch], (column, row), tkc.load(x[batch], (row, column), (ROWS, COLUMNS)).T)


@tkc.jit
def _embedding(table, indices, out, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    row, column = tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS
    which = tkc.load(indices, (row,), (ROWS,), other=-1)
    tkc.store(out, (row, column), tkc.load(table, (which, column), (ROWS, COLUMNS)))


@tkc.jit
def _embedding_backward(
    grad, order, indices, out, padding, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr
):
    column, start = tkc.program_id(1) * COLUMNS, tkc.program_id(0)
    which = indices[start]
    first = which >= 0 and which < out.shape[0] and which != padding
    if start > 0:
        first = first and indices[start - 1] != which
    if first:
        total, at, more = tkc.zeros((ROWS, COLUMNS)), start, True
        while more:
            same = tkc.load(indices, (at,), (ROWS,), other=-1) == which
            rows = tkc.where(same, tkc.load(order, (at,), (ROWS,)), -1)
            total = total + tkc.load(grad, (rows, column), (ROWS, COLUMNS)).to(tkc.float32)
            at, more = at + ROWS, tkc.all(same)
        tkc.store(out, (which, column), tkc.sum(total, axis=0).to(out.dtype)[None, :])


@operator
def transpose(x: Array) -> Iterator[Array]:
    """The last two axes swapped, as a contiguous copy. Raises LaunchError for rank 0 and 1."""
    if len(x.shape) < 2:
        raise tkc.LaunchError(
            f"transpose swaps the last two axes; got an array of rank {len(x.shape)}"
        )
    *batch, rows, columns = x.shape
    out = empty(x, (*batch, columns, rows))
    yield out
    n, (height, width) = 1, VECTOR_BLOCK if rows % 8 == columns % 8 == 0 else SCALAR_BLOCK
    for b in batch:
        n *= b
    source, target = x.reshape((n, rows, columns)), out.reshape((n, columns, rows))
    for part in parts(tkc.cdiv(columns, width)):
        some = slice(part.start * width, part.stop * width)
        _transpose[tkc.cdiv(rows, height), part.stop - part.start, n](
            source[:, :, some], target[:, some], ROWS=height, COLUMNS=width
        )


@operator
def embedding(table: Array, indices: Array, padding: int = -1) -> Iterator[Array]:
    """Rows of a table [rows, columns] by integer indices [...]: [..., columns]. An index outside of
    the table gives zeros. padding: the index of a row that gets no gradient."""
    if len(table.shape) != 2:
        raise tkc.LaunchError(f"embedding: a table is [rows, columns], got rank {len(table.shape)}")
    out = empty(table, (*indices.shape, table.shape[1]))
    yield out
    which, target = flat(contiguous(indices)), matrix(out)
    width = min(GATHERED_COLUMNS, power(table.shape[1]))
    height = min(power(which.shape[0]), max(1, GATHERED_ROWS * GATHERED_COLUMNS // 4 // width))
    _embedding[tkc.cdiv(which.shape[0], height), tkc.cdiv(table.shape[1], width)](
        table, which, target, ROWS=height, COLUMNS=width
    )


@operator
def embedding_backward(
    grad: Array, indices: Array, rows: int, padding: int = -1
) -> Iterator[Array]:
    """The gradient of a table of `rows` rows: the sum of grad's rows that have the same index, in
    the order in which they stand, whatever runs when.
    """
    out = zeros(grad, (rows, grad.shape[-1]))
    yield out
    which = flat(contiguous(indices))
    order = which.argsort(**STABLE[library(which)])
    columns = grad.shape[-1]
    width, n = min(512, power(columns)), which.shape[0]
    _embedding_backward[n, tkc.cdiv(columns, width)](
        matrix(contiguous(grad)),
        order,
        which[order],
        out,
        padding,
        ROWS=min(4, power(n)),
        COLUMNS=width,
    )


@transpose.backward()
def _(saved, grad):
    return transpose(grad)


@embedding.backward(saves="table indices padding")
def _(saved, grad):
    return embedding_backward(grad, saved.indices, saved.table.shape[0], saved.padding)
