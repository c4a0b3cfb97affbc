"""Random level 0 programs for the differential test: whole numbers only, so that the simulator and
the machine agree to the bit.

They exercise what is hard here: tiles used by several loops, loads pending across stores, tiles
that loops carry and swap, in-place sums, views under shape operations.
"""

import numpy as np
from xdsl.builder import ImplicitBuilder
from xdsl.dialects import scf
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Block, Region

from tests.sim.building import integer, kernel
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, ArrayType, Fact, TileType

C = ew.CLASSES
ARRAYS, EXTENT = 3, 23


class Writer:
    """Emits random operations over a pool of tiles; `tiles` are those visible here."""

    def __init__(self, random: np.random.Generator, arrays, numbers):
        self.random, self.arrays, self.numbers, self.tiles = random, arrays, list(numbers), []

    def pick(self, things):
        return things[self.random.integers(len(things))]

    def shape(self):
        return tuple(
            int(self.pick([1, 2, 3, 5, 7, 16, 17, 19, 33]))
            for _ in range(self.pick([1, 2, 2, 2, 3]))
        )

    def bounded(self, v):
        """Keeps numbers small, with an operation that costs enough to be kept."""
        return (
            C["mod"](v, tile.Constant(self.pick([7, 13, 31]), v.type).result).result
            if self.random.random() < 0.7
            else C["min"](v, tile.Constant(50, v.type).result).result
        )

    def tile(self, shape=None):
        """A tile of a shape: one that is there, or a new one."""
        found = [
            t
            for t in self.tiles
            if (shape is None or t.type.extents == shape) and t.type.element == f32
        ]
        if found and self.random.random() < 0.8:
            return self.pick(found)
        return self.source(shape or self.shape())

    def source(self, shape):
        if len(shape) == 1 and self.random.random() < 0.3:
            return ew.Cast(
                tile.Arange(int(self.random.integers(-3, 3)), TileType(shape, i32)).result,
                TileType(shape, f32),
            ).result
        if len(shape) == 2 and self.random.random() < 0.7:
            return self.load(shape)
        return tile.Constant(float(self.random.integers(-3, 4)), TileType(shape, f32)).result

    def offset(self):
        return (
            self.pick(self.numbers)
            if self.random.random() < 0.3
            else integer(int(self.random.integers(-3, 9)))
        )

    def load(self, shape):
        other = (
            tile.Constant(float(self.random.integers(-5, 5)), f32).result
            if self.random.random() < 0.5
            else None
        )
        offsets = [self.offset(), self.offset()]
        if self.random.random() < 0.2:
            rows = C["mod"](
                C["mul"](
                    tile.Arange(0, TileType([shape[0]], i32)).result,
                    tile.Constant(5, TileType([shape[0]], i32)).result,
                ).result,
                tile.Constant(EXTENT + 2, TileType([shape[0]], i32)).result,
            )
            offsets[0] = rows.result
        return tile.Load(self.pick(self.arrays), offsets, shape, other=other).result

    def store(self, v):
        while v.type.rank > 2:
            v = tile.Reduce("max", v, 0).result
        if v.type.rank == 1:
            v = tile.Reshape(v, TileType((1, *v.type.extents), f32)).result
        mask = (
            C["lt"](v, tile.Constant(9.0, v.type).result).result
            if self.random.random() < 0.3
            else None
        )
        tile.Store(self.pick(self.arrays), [self.offset(), self.offset()], v, v.type.extents, mask)

    def step(self, depth):
        r, pool = self.random.random(), self.tiles
        if r < 0.30:
            a = self.tile()
            pool.append(
                self.bounded(
                    C[self.pick(["add", "sub", "mul", "max", "min"])](
                        a, self.tile(a.type.extents)
                    ).result
                )
            )
        elif r < 0.36:
            a = self.tile()
            pool.append(
                ew.Select(
                    C["lt"](a, self.tile(a.type.extents)).result, a, self.tile(a.type.extents)
                ).result
            )
        elif r < 0.46:
            pool.append(self.reshaped(self.tile()))
        elif r < 0.56:
            a = self.tile()
            axis = int(self.random.integers(a.type.rank))
            out = tile.Reduce(self.pick(["sum", "max", "min"]), a, axis).result
            pool.append(
                self.bounded(
                    out
                    if isinstance(out.type, TileType)
                    else tile.Splat(out, TileType([3], f32)).result
                )
            )
        elif r < 0.60:
            a = self.tile()
            pool.append(
                self.bounded(
                    tile.Scan(
                        self.pick(["sum", "max"]),
                        a,
                        int(self.random.integers(a.type.rank)),
                        bool(self.random.integers(2)),
                    ).result
                )
            )
        elif r < 0.68:
            m, n, k = (int(self.pick([1, 3, 8, 16, 17, 35])) for _ in range(3))
            flat = [
                t.type.extents
                for t in pool
                if t.type.rank == 2 and t.type.element == f32 and max(t.type.extents) < 50
            ]
            if flat and self.random.random() < 0.7:
                m, n = self.pick(flat)
            a, b = (
                (
                    tile.Transpose(self.tile((q, p)), (1, 0)).result
                    if self.random.random() < 0.4
                    else self.tile((p, q))
                )
                for p, q in ((m, k), (k, n))
            )
            pool.append(self.bounded(tile.Dot(a, b, self.tile((m, n))).result))
        elif r < 0.72:
            pool.append(tile.Sort(self.tile(), bool(self.random.integers(2))).result)
        elif r < 0.82:
            self.store(self.tile())
        elif depth and r < 0.94:
            self.loop(depth - 1)
        elif depth:
            self.branch(depth - 1)

    def reshaped(self, a):
        t, kind = a.type, self.random.integers(7)
        axis = int(self.random.integers(t.rank))
        n = t.extents[axis]

        def of(*extents):
            return TileType(extents, f32)

        if kind == 0:
            return tile.Transpose(a, [int(p) for p in self.random.permutation(t.rank)]).result
        if kind == 1:
            return tile.Flip(a, axis).result
        if kind == 2:
            return tile.Reshape(a, of(*t.extents[::-1])).result
        if kind == 3:
            wide = list(t.extents)
            wide.insert(axis, 1)
            full = list(wide)
            full[axis] = 4
            return (
                tile.Broadcast(tile.Reshape(a, of(*wide)).result, of(*full)).result
                if t.rank < 3
                else a
            )
        if kind == 4:
            return (
                tile.Concat(
                    [a, a], axis, of(*(2 * m if i == axis else m for i, m in enumerate(t.extents)))
                ).result
                if n < 40
                else a
            )
        if kind == 5:
            low, step = int(self.random.integers(n)), int(self.pick([1, 1, 2, 3]))
            count = -(-(n - low) // step)
            return tile.Slice(
                a,
                [low if i == axis else 0 for i in range(t.rank)],
                of(*(count if i == axis else m for i, m in enumerate(t.extents))),
                [step if i == axis else 1 for i in range(t.rank)],
            ).result
        return tile.Splat(
            tile.Extract(a, [int(self.random.integers(m)) for m in t.extents]).result,
            of(*t.extents),
        ).result

    def inner(self, block, depth, extra=()):
        """Random operations in a region that sees our tiles."""
        saved = self.tiles, self.numbers
        self.tiles, self.numbers = (
            [
                *self.tiles,
                *(v for v in block.args if isinstance(v.type, TileType)),
            ],
            [*self.numbers, *extra],
        )
        for _ in range(self.random.integers(1, 6)):
            self.step(depth)

        def restore():
            self.tiles, self.numbers = saved

        return restore

    def loop(self, depth):
        carried = [self.tile() for _ in range(self.random.integers(1, 4))]
        if self.random.random() < 0.6:
            carried.append(self.tile(carried[0].type.extents))
        block = Block(arg_types=[i32, *(v.type for v in carried)])
        with ImplicitBuilder(block):
            restore = self.inner(block, depth, [block.args[0]])
            last = [self.tile(v.type.extents) for v in carried]
            if self.random.random() < 0.6:  # values that change places
                last = [
                    self.pick([w, w, *(a for a in block.args[1:] if a.type == v.type)])
                    for v, w in zip(carried, last, strict=False)
                ]
            scf.YieldOp(*last)
            restore()
        high = (
            self.pick(self.numbers)
            if self.random.random() < 0.3
            else integer(int(self.random.integers(0, 4)))
        )
        self.tiles += scf.ForOp(integer(0), high, integer(1), carried, block).results

    def branch(self, depth):
        results, regions = [self.shape() for _ in range(self.random.integers(0, 3))], []
        condition = C["lt"](self.pick(self.numbers), integer(2)).result
        for _ in range(2):
            block = Block()
            with ImplicitBuilder(block):
                restore = self.inner(block, depth)
                scf.YieldOp(*(self.tile(s) for s in results))
                restore()
            regions.append(Region(block))
        self.tiles += scf.IfOp(condition, [TileType(s, f32) for s in results], *regions).results


def program(seed: int, steps: int = 12):
    """(module, arguments): one program over a few square arrays of whole numbers."""
    random = np.random.default_rng(seed)

    def body(*arguments):
        w = Writer(random, arguments[:ARRAYS], arguments[ARRAYS:])
        for _ in range(steps):
            w.step(2)
        w.store(w.tile())

    orders = [
        int(random.integers(3)) for _ in range(ARRAYS)
    ]  # strides unknown, rows dense, columns dense
    facts = [
        ArrayFacts((Fact(),) * 2, [(Fact(),) * 2, (Fact(), Fact(1, 1)), (Fact(1, 1), Fact())][o])
        for o in orders
    ]
    module = kernel([ArrayType(2, f32, f) for f in facts] + [i32, i32], body)
    arrays = [
        np.array(random.integers(-9, 9, (EXTENT, EXTENT)), np.float32, order="CCF"[o])
        for o in orders
    ]
    return module, [*arrays, int(random.integers(0, 4)), int(random.integers(0, 6))]
