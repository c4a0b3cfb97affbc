"""swizzle-shared: how often a block in shared memory is read, and in which layouts."""

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import count
from tkc.ir import shared, tile
from tkc.ir.rewrite import after, replace, retype
from tkc.passes import swizzle_shared

B2 = aligned(tkc.bfloat16, 2)


def scaled(a, b, c, N: tkc.constexpr):
    """The left operand is computed of a block."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        left = tkc.load(a, (0, k), (N, 64)) * 2
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (0, 0), total.to(c.dtype))


def swizzled(converts: bool):
    """With the block in a layout in which matrices are read, and one more of it that is not."""
    module, given = traced(scaled, B2, B2, B2, N=64), context("sm_90a")
    through(module, "defer-reductions", given)
    load = next(op for op in module.walk() if isinstance(op, tile.Load))
    rows = load.result.type
    (use,) = load.result.uses
    matrix = use.operation
    assert isinstance(matrix, shared.Convert)
    retype(load.result, matrix.result.type)
    replace(matrix, [load.result])
    if converts:
        after(load, shared.Convert(load.result, rows))
    swizzle_shared.run(module, given)
    return module


def test_a_block_is_read_again_where_its_rows_lie_in_other_warps():
    """A matrix that threads had read would go through shared memory once more."""
    matrix, both = swizzled(False), swizzled(True)
    assert count(both, shared.Read) == count(matrix, shared.Read) + 1
    assert count(both, shared.Write) == count(matrix, shared.Write)
