"""Which tiles become buffers, and when: liveness, costs and aliasing over the level 0 program.

Element-wise operations, shape operations and loads are *lazy*: they are written where something
that must happen (a store, a
reduction, a dot, a loop) asks for them, in its loop nest.  A lazy tile gets a buffer only if computing it again would cost more than
reading it back, if memory it reads is about to change, or if a loop would compute it every time
round.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Block, Operation, SSAValue

from tkc.codegen.cpu.nest import unit_reshape
from tkc.codegen.cpu.numbers import is_short
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import TileType, element_of, is_float
from tkc.ir.values import tile_type

SHAPES = (
    tile.Constant,
    tile.Splat,
    tile.Arange,
    tile.Multiple,
    tile.Broadcast,
    tile.Transpose,
    tile.Slice,
    tile.Flip,
    tile.Reshape,
)
POINTWISE = (ew.Elementwise, ew.Select, ew.Cast, ew.Bitcast, ew.PointerAdd, tile.Multiple)
LOADS = (tile.Load, tile.LoadPointers)
WRITES = (tile.Store, tile.StorePointers, tile.Atomic, tile.AtomicBlock)
DEAR = dict.fromkeys(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log1p",
        "sin",
        "cos",
        "tanh",
        "erf",
        "pow",
        "atan2",
        "mod",
        "floordiv",
    ],
    15,
) | dict.fromkeys(["div", "div_rn", "sqrt", "rsqrt", "reciprocal"], 5)
LIMIT = 10  # of `cost`: what is dearer than this is kept rather than computed again


def is_lazy(op: Operation) -> bool:
    if isinstance(op, tile.LoadPointers) and op.semantics is not None:
        return False
    return isinstance(op, (*SHAPES, *POINTWISE, *LOADS)) and isinstance(
        op.results[0].type, TileType
    )


def tiles(values: Iterable[SSAValue]) -> list[SSAValue]:
    return [v for v in values if isinstance(v.type, TileType)]


def base(v: SSAValue) -> SSAValue | None:
    """The kernel argument that a pointer or array comes from, None where it is not plain to see."""
    while True:
        op = v.owner
        if isinstance(op, Block):
            return v if isinstance(op.parent_op(), tile.Kernel) else None
        match op:
            case tile.View():
                v = op.array
            case (
                tile.Pointer()
                | tile.Splat()
                | tile.Broadcast()
                | tile.Reshape()
                | tile.Transpose()
                | tile.Slice()
                | tile.Extract()
            ):
                v = op.arg
            case ew.PointerAdd():
                v = op.pointer
            case tile.MakeArray():
                v = op.pointer
            case _:
                return None


def touched(op: Operation) -> SSAValue | None:
    """`base` of the memory an access touches."""
    return base(op.array if hasattr(op, "array") else op.pointers)


def same(a: SSAValue | None, b: SSAValue | None, depth: int = 8) -> bool:
    """Two values that are computed alike."""
    if a is b:
        return True
    if (
        a is None
        or b is None
        or depth == 0
        or isinstance(a.owner, Block)
        or isinstance(b.owner, Block)
    ):
        return False
    x, y = a.owner, b.owner
    pure = isinstance(x, (*SHAPES, *POINTWISE, tile.ProgramId, tile.View, tile.Pointer, tile.Dim))
    return (
        pure
        and type(x) is type(y)
        and a.type == b.type
        and x.properties == y.properties
        and len(x.operands) == len(y.operands)
        and all(same(p, q, depth - 1) for p, q in zip(x.operands, y.operands, strict=False))
    )


def same_place(load: Operation, store: Operation) -> bool:
    """A load of exactly the elements that a store writes, in the same order."""
    match load, store:
        case tile.Load(), tile.Store():
            return (
                load.extents == store.extents
                and same(load.array, store.array)
                and all(same(a, b) for a, b in zip(load.offsets, store.offsets, strict=False))
            )
        case tile.LoadPointers(), tile.StorePointers():
            return same(load.pointers, store.pointers)
    return False


class Planning:
    """Mixed into the lowering: `env` holds what has been computed, `done` the operations already
    written.
    """

    env: dict
    done: set
    soon: dict  # tiles that the nest being written also stores
    careful: bool  # arguments may overlap

    # ----------------------------------------------------------------------------------------------
    def pending(self, v: SSAValue, memo: dict | None = None) -> bool:
        """Will code still to be written read v?"""
        memo = {} if memo is None else memo
        if v not in memo:
            memo[v] = False
            memo[v] = any(self._pending_use(use.operation, v, memo) for use in v.uses)
        return memo[v]

    def _pending_use(self, user: Operation, v: SSAValue, memo: dict) -> bool:
        home = v.owner if isinstance(v.owner, Block) else v.owner.parent_block()
        at = user
        while at is not None and at.parent_block() is not home:
            at = at.parent_op()
        if at is None or home is not self.block:
            return True  # defined outside the block being written: a loop may come round
        if at is not user:
            return at not in self.done
        if is_lazy(user):
            r = user.results[0]
            return r not in self.env and r not in self.soon and self.pending(r, memo)
        return user not in self.done

    # ----------------------------------------------------------------------------------------------
    def cost(self, v: SSAValue, memo: dict | None = None) -> int:
        """Rough instructions a chunk to compute a tile from what there is."""
        memo = {} if memo is None else memo
        if not isinstance(v.type, TileType) or v in self.env:
            return 0
        if v in memo:
            return memo[v]
        op = v.owner
        own = 0
        match op:
            case ew.Elementwise():
                own = DEAR.get(op.fn.name, 1) * (
                    1
                    if is_float(element_of(op.operands[0].type))
                    or op.fn.name not in ("floordiv", "mod")
                    else 2
                )
            case ew.Select() | ew.PointerAdd() | ew.Cast() | ew.Bitcast():
                own = 1
            case tile.Load():
                own = 12 if tiles(op.offsets) else 2
            case tile.LoadPointers():
                own = 3
        if (
            isinstance(op, (ew.Elementwise, ew.Cast))
            and is_short(element_of(op.results[0].type))
            and not isinstance(op, SHAPES)
        ):
            own += 3
        memo[v] = own + sum(self.cost(x, memo) for x in op.operands)
        return memo[v]

    def reads_memory(self, v: SSAValue, seen: set | None = None) -> bool:
        seen = set() if seen is None else seen
        if not isinstance(v.type, TileType) or v in self.env or v in seen:
            return False
        seen.add(v)
        return isinstance(v.owner, LOADS) or any(
            self.reads_memory(x, seen) for x in v.owner.operands
        )

    def leaves(
        self, v: SSAValue, identity: bool = True, out: dict | None = None
    ) -> dict[SSAValue, bool]:
        """Tiles that a lazy tile is computed from: those in `env`, and lazy loads; True if read at
        the very index that is computed.
        """
        out = {} if out is None else out
        if not isinstance(v.type, TileType):
            return out
        if v in self.env:
            out[v] = out.get(v, True) and identity
            return out
        if isinstance(v.owner, LOADS):
            out[v] = out.get(v, True) and identity
        for x in v.owner.operands:
            self.leaves(x, identity and isinstance(v.owner, POINTWISE), out)
        return out

    # ----------------------------------------------------------------------------------------------
    def prepare(self, roots: list[SSAValue], limit: float = LIMIT) -> dict[SSAValue, object]:
        """Buffers for what a nest over the roots' shape needs first; returns the tiles that the
        nest shall also store.

        Call it when the operation to be written is in `done`.
        """
        seen = set()

        def visit(v: SSAValue, identity: bool):
            if not isinstance(v.type, TileType) or v in self.env or (v, identity) in seen:
                return
            seen.add((v, identity))
            op = v.owner
            if (
                isinstance(op, tile.Reshape)
                and unit_reshape(tile_type(op.arg).extents, tile_type(op.result).extents) is None
            ):
                return self.materialize(op.arg)
            if not identity and self.cost(v) > limit:
                return self.materialize(v)
            if identity and self.cost(v) > limit and v not in self.soon and self.pending(v):
                self.soon[v] = None
            for x in op.operands:
                visit(x, identity and isinstance(op, POINTWISE))

        self.soon = {}
        for v in roots:
            visit(v, True)
        wanted = {v: self.buffer(v.type) for v in self.soon if v not in self.env}
        self.soon = {}
        return wanted

    # ----------------------------------------------------------------------------------------------
    def may_alias(self, a: Operation, b: Operation) -> bool:
        p, q = touched(a), touched(b)
        return p is None or q is None or p is q or self.careful

    def force_loads(self, op: Operation, writes: list[Operation] | None = None) -> None:
        """Before memory changes: give a buffer to every pending load that could see the change.
        writes None: it may change anywhere.
        """
        for load in list(self.lazy_loads):
            v = load.results[0]
            if v in self.env or not self.pending(v):
                self.lazy_loads.remove(load)
                continue
            if writes is not None and not any(self.may_alias(load, w) for w in writes):
                continue
            if writes == [op] and same_place(load, op):
                self.done.add(op)
                later = self.pending(v)
                self.done.discard(op)
                if (
                    not later
                    and self.leaves(op.value).get(v, False)
                    and all(
                        v not in self.leaves(x) for x in tiles(op.operands) if x is not op.value
                    )
                ):
                    continue
            self.materialize(v)
            self.lazy_loads.remove(load)
