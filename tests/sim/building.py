"""Small level-0 kernels built in Python: whole arrays are loaded as tiles, a function of them is
stored.
"""

import numpy as np
from xdsl.builder import ImplicitBuilder
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Region

from tkc.ir import tile
from tkc.ir.types import ArrayType, TileType
from tkc.ir.verify import verify
from tkc.sim.level0 import NUMPY, dtype_of, run

ELEMENTS = {np.dtype(v): k for k, v in NUMPY.items()}


def kernel(types, body, level=0) -> ModuleOp:
    """A module with one kernel; `body` gets the arguments and emits operations."""
    block = Block(arg_types=types)
    with ImplicitBuilder(block):
        body(*block.args)
        tile.Return()
    k = tile.Kernel("k", [], region=Region(block))
    k.set_integer("level", level)
    module = ModuleOp([k])
    verify(module)
    return module


def integer(n, t=i32):
    return tile.Constant(n, t).result


def whole(array, shape):
    zeros = [integer(0) for _ in shape]
    return tile.Load(array, zeros, shape).result


def put(array, value):
    t = value.type
    extents = t.extents if isinstance(t, TileType) else ()
    tile.Store(array, [integer(0) for _ in extents], value, extents)


def evaluate(function, *inputs, scalars=()):
    """What `function` (of tiles, then of scalars) makes of arrays, as arrays. Rank 0 inputs are
    loaded as scalars.
    """
    inputs = [np.asarray(x) for x in inputs]
    outputs = []

    def trace(*arguments):
        results = function(
            *(whole(a, x.shape) for a, x in zip(arguments, inputs, strict=False)),
            *arguments[len(inputs) :],
        )
        return results if isinstance(results, (tuple, list)) else (results,)

    scratch = Block(
        arg_types=[ArrayType(x.ndim, ELEMENTS[x.dtype]) for x in inputs] + [i32 for _ in scalars]
    )
    with ImplicitBuilder(scratch):
        types = [v.type for v in trace(*scratch.args)]
    for t in types:
        outputs.append(np.zeros(t.extents if isinstance(t, TileType) else (), dtype_of(t)))
    signature = [a.type for a in scratch.args] + [
        ArrayType(x.ndim, ELEMENTS[x.dtype]) for x in outputs
    ]

    def body(*arguments):
        split = len(inputs) + len(scalars)
        for target, value in zip(arguments[split:], trace(*arguments[:split]), strict=False):
            put(target, value)

    run(kernel(signature, body), [*inputs, *scalars, *outputs], (1,))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
