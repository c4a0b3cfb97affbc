"""schedule-programs: the order in which programs run.

The kernel's own ids are those of the logical grid. Blocks start roughly in order of their physical ids, axis 0 fastest; a
`raster` of g makes g programs of axis 0 stand together for each step of axis 1:

    raster 2, grid 4 x 3        order of start:   0  2  4
                                                  1  3  5          a wave of six programs reads 2 rows and 3 columns,
                                                  6  8 10          not 4 and 2
                                                  7  9 11

    %m = tile.program_id 0           %m = (id / (2·3))·2 + id mod (2·3) mod 2      (the last group may be narrower)
    %n = tile.program_id 1    ->     %n = id mod (2·3) / 2                         with id = program_id 0 + program_id 1 · num_programs 0

The map is a bijection of the grid onto itself, so every program still runs once.
"""
from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before, replace
from tkc.passes import PassContext


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        group = context.plan.raster if context.plan else 1
        if group > 1: _raster(kernel, group)


def _raster(kernel: tile.Kernel, group: int) -> None:
    ids = [op for op in kernel.walk() if isinstance(op, tile.ProgramId) and op.axis.value.data < 2]
    if not ids: return
    first = kernel.body.block.first_op
    new = lambda op: before(first, op).results[0]
    number = lambda n: new(tile.Constant(n, i32))
    calc = lambda name, a, b: new(CLASSES[name](a, b))
    x, y, rows, columns = new(tile.ProgramId(0)), new(tile.ProgramId(1)), new(tile.NumPrograms(0)), new(tile.NumPrograms(1))
    linear, size = calc("add", calc("mul", y, rows), x), number(group)
    wide = calc("mul", size, columns)
    start = calc("mul", calc("floordiv", linear, wide), size)
    height = calc("min", size, calc("sub", rows, start))
    inside = calc("mod", linear, wide)
    place: list[SSAValue] = [calc("add", start, calc("mod", inside, height)), calc("floordiv", inside, height)]
    place[0].name_hint, place[1].name_hint = "program_0", "program_1"
    for op in ids: replace(op, [place[op.axis.value.data]])
