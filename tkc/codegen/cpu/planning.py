"""Which tiles become buffers, and when: liveness, costs and aliasing over the level 0 program.

Element-wise operations, shape operations and loads are *lazy*: they are written in the loop nest of
what uses them and must be executed (a store, a reduction, a dot, a loop). A lazy tile gets a buffer
only if computing it again would cost more than reading it back, if memory it reads is about to
change, or if a loop would compute it in every iteration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from xdsl.ir import Block, Operation, SSAValue

from tkc.codegen.cpu.nest import Nest, moves_elements
from tkc.codegen.cpu.numbers import is_short
from tkc.codegen.cpu.state import State
from tkc.codegen.cpu.values import Buffer, Index
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.axis_info import all_differ
from tkc.ir.types import TileType, element_of, is_float
from tkc.ir.values import ancestor, array_type, operands_first, owner_op, tile_type, tiles

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
LAZY = (*SHAPES, *POINTWISE, *LOADS)
WRITES = (tile.Store, tile.StorePointers, tile.Atomic, tile.AtomicBlock)
# instructions a chunk, roughly; of other functions one
COSTS = dict.fromkeys(
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
        "div_trunc",
        "rem_trunc",
    ],
    15,
) | dict.fromkeys(["div", "div_rn", "sqrt", "rsqrt", "reciprocal"], 5)
DIVISIONS = ("floordiv", "mod", "div_trunc", "rem_trunc")  # twice as slow of integers
MAX_RECOMPUTED_COST = 10  # of `costs_more`: what costs more is kept rather than computed again


def is_lazy(op: Operation) -> bool:
    """Whether an operation is written where its result is used."""
    if isinstance(op, tile.LoadPointers) and op.semantics is not None:
        return False
    return isinstance(op, LAZY) and isinstance(op.results[0].type, TileType)


def _own_cost(op: Operation) -> int:
    """Rough instructions a chunk of an operation without what it reads."""
    own = 0
    match op:
        case ew.Elementwise():
            of_integers = not is_float(element_of(op._operands[0].type))
            own = COSTS.get(op.fn.name, 1)
            own *= 2 if of_integers and op.fn.name in DIVISIONS else 1
        case ew.Select() | ew.PointerAdd() | ew.Cast() | ew.Bitcast():
            own = 1
        case tile.Load():
            own = 12 if tiles(op.offsets) else 2
        case tile.LoadPointers():
            own = 3
    short = isinstance(op, (ew.Elementwise, ew.Cast)) and is_short(element_of(op.results[0].type))
    return own + 3 * short


def base(v: SSAValue) -> SSAValue | None:
    """The kernel argument that a pointer or array comes from, None where that cannot be seen."""
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
    if isinstance(op, (tile.Load, tile.Store, tile.AtomicBlock)):
        return base(op.array)
    assert isinstance(op, (tile.LoadPointers, tile.StorePointers, tile.Atomic))
    return base(op.pointers)


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
        and all(same(p, q, depth - 1) for p, q in zip(x.operands, y.operands, strict=True))
    )


def same_place(load: Operation, store: Operation, folded: bool) -> bool:
    """A load of exactly the elements that a store writes, in the same order, no two of which are
    one in memory: the second would be what was stored to the first. folded: those of an argument
    may be.
    """
    match load, store:
        case tile.Load(), tile.Store():
            return (
                load.extents == store.extents
                and same(load.array, store.array)
                and all(same(a, b) for a, b in zip(load.offsets, store.offsets, strict=False))
                and not folded
                and not array_type(load.array).facts.overlaps_itself
                and all(map(all_differ, load.offsets))
            )
        case tile.LoadPointers(), tile.StorePointers():
            return same(load.pointers, store.pointers) and all_differ(load.pointers)
    return False


class Planning(State):
    """The part of the lowering that gives tiles buffers."""

    def pending(self, v: SSAValue, idle: set[SSAValue] | None = None) -> bool:
        """Whether code still to be written reads v. idle: values that none will read, as earlier
        calls found; what this one finds is added.
        """
        seen, left = {v}, deque([v])  # the nearest readers first
        while left:
            value = left.popleft()
            for use in value.uses:
                followed = self._computed_later(use.operation, value)
                if followed is None:
                    if self._is_written_later(use.operation, value):
                        return True
                elif followed not in seen and not (
                    followed in self.env
                    or followed in self.soon
                    or (idle is not None and followed in idle)
                ):
                    seen.add(followed)
                    left.append(followed)
        if idle is not None:
            idle |= seen
        return False

    def _computed_later(self, user: Operation, v: SSAValue) -> SSAValue | None:
        """The lazy tile of v's block that a user of v computes; None where it computes no such."""
        home = v.owner if isinstance(v.owner, Block) else v.owner.parent_block()
        if home is not self.block or user.parent_block() is not home or not is_lazy(user):
            return None
        return user.results[0]

    def _is_written_later(self, user: Operation, v: SSAValue) -> bool:
        """Whether a user of v that is no lazy operation of its block is still to be written."""
        home = v.owner if isinstance(v.owner, Block) else v.owner.parent_block()
        at = ancestor(user, home)
        # of a value from outside the block being written: a loop's next iteration may read it
        return at is None or home is not self.block or at not in self.done

    # ----------------------------------------------------------------------------------------------
    def costs_more(self, values: Sequence[SSAValue], limit: float) -> bool:
        """Whether computing tiles from what there is takes more instructions a chunk, roughly."""
        total, left = 0, list(values)
        while left and total <= limit < float("inf"):
            v = left.pop()
            if self._is_computed(v):
                total += _own_cost(owner_op(v))
                left += owner_op(v)._operands
        return total > limit

    def _is_computed(self, v: SSAValue) -> bool:
        """Whether a tile has no buffer, so that it is computed where it is read."""
        return isinstance(v.type, TileType) and v not in self.env

    def _lazy_operands(self, v: SSAValue) -> Sequence[SSAValue]:
        """What a tile without a buffer is computed from."""
        return owner_op(v)._operands if self._is_computed(v) else ()

    def reads_memory(self, v: SSAValue) -> bool:
        """Whether computing a tile loads."""
        return any(
            self._is_computed(x) and isinstance(x.owner, LOADS)
            for x in operands_first(v, self._lazy_operands)
        )

    def leaves(self, v: SSAValue) -> dict[SSAValue, bool]:
        """Tiles that a lazy tile is computed from: those in `env`, and lazy loads; True if read at
        the very index that is computed.
        """
        out: dict[SSAValue, bool] = {}

        def operands(at: tuple[SSAValue, bool]) -> list[tuple[SSAValue, bool]]:
            value, identity = at
            below = identity and isinstance(value.owner, POINTWISE)
            return [(x, below) for x in self._lazy_operands(value)]

        for x, identity in operands_first((v, True), operands):
            if isinstance(x.type, TileType) and (x in self.env or isinstance(x.owner, LOADS)):
                out[x] = out.get(x, True) and identity
        return out

    # ----------------------------------------------------------------------------------------------
    def prepare(
        self, roots: list[SSAValue], limit: float = MAX_RECOMPUTED_COST
    ) -> dict[SSAValue, Buffer]:
        """Buffers for what a nest over the roots' shape needs first; returns the tiles that the
        nest shall also store.

        Call it when the operation to be written is in `done`.
        """
        for v in self.needs(roots, limit):
            self.materialize(v)
        idle: set[SSAValue] = set()
        self.soon = {}
        for v, identity in self._computed_for(roots):
            if identity and self.costs_more([v], limit) and self.pending(v, idle):
                self.soon[v] = None
        wanted = {v: self.buffer_for(v) for v in self.soon if v not in self.env}
        self.soon = {}
        return wanted

    def needs(
        self, roots: Sequence[SSAValue], limit: float = MAX_RECOMPUTED_COST
    ) -> Iterator[SSAValue]:
        """Tiles that must be in buffers before a nest over the roots' shape is written; each is to
        be given one before the next is taken.
        """
        for v, identity in self._computed_for(roots):
            op = owner_op(v)
            if isinstance(op, tile.Reshape) and moves_elements(op):
                needed = op.arg
            elif not identity and self.costs_more([v], limit):
                needed = v
            else:
                continue
            if needed not in self.env:
                yield needed

    def _computed_for(self, roots: Sequence[SSAValue]) -> Iterator[tuple[SSAValue, bool]]:
        """The tiles without buffers that the roots are computed from, the roots among them; True
        if read at the very index that is computed.
        """
        seen: set[tuple[SSAValue, bool]] = set()
        left = [(v, True) for v in reversed(roots)]
        while left:
            v, identity = left.pop()
            if not self._is_computed(v) or (v, identity) in seen:
                continue
            seen.add((v, identity))
            yield v, identity
            below = identity and isinstance(v.owner, POINTWISE)
            left += [(x, below) for x in reversed(self._lazy_operands(v))]

    def fill(self, b: Buffer, v: SSAValue, shift: tuple[int, int] | None = None) -> None:
        """Compute a tile into a buffer (`shift`: along an axis, from an offset on)."""
        others = self.prepare([v])
        others.pop(v, None)
        nest = Nest(self.f, self.env)

        def chunk(index: tuple[Index, ...]) -> None:
            value = nest.eval(v, index)
            beside = nest.eval_all(others, index)
            at = index
            if shift is not None:
                axis, offset = shift
                at = (*index[:axis], nest.shift(index[axis], 1, offset), *index[axis + 1 :])
            nest.keep(b, at, value)
            nest.keep_all(beside, index)

        nest.walk(tile_type(v).extents, chunk)
        self.own_all(others)

    def materialize(self, v: SSAValue) -> Buffer:
        """The tile in a buffer."""
        for x in operands_first(v, lambda x: self.needs([x]), self.env):
            b = self.buffer_for(x)
            self.fill(b, x)
            self.own(x, b)
        return self.env.buffer(v)

    # ----------------------------------------------------------------------------------------------
    def may_alias(self, a: Operation, b: Operation) -> bool:
        """Whether two accesses may touch the same memory."""
        p, q = touched(a), touched(b)
        return p is None or q is None or p is q or self.overlapping

    def force_loads(self, op: Operation, writes: Sequence[Operation] | None = None) -> None:
        """Before memory changes: give a buffer to every pending load that could see the change.
        writes None: it may change anywhere.
        """
        # A buffer given below can only take readers away, so an answer that is late costs a buffer.
        needed: dict[SSAValue, bool] = {}
        needed_later: dict[SSAValue, bool] = {}
        for load in list(self.lazy_loads):
            v = load.results[0]
            if v in self.env or not self._pending(v, needed):
                self.lazy_loads.remove(load)
                continue
            if writes is not None and not any(self.may_alias(load, w) for w in writes):
                continue
            if writes == [op] and self._read_in_place(v, op, needed_later):
                continue
            self.materialize(v)
            self.lazy_loads.remove(load)

    def _read_in_place(
        self, v: SSAValue, store: Operation, needed_later: dict[SSAValue, bool]
    ) -> bool:
        """Whether the store reads each element of a load before it writes it, and nothing reads it
        afterwards.
        """
        if not isinstance(store, (tile.Store, tile.StorePointers)):
            return False
        if not same_place(owner_op(v), store, self.folded):
            return False
        self.done.add(store)
        later = self._pending(v, needed_later)
        self.done.discard(store)
        return (
            not later
            and self.leaves(store.value).get(v, False)
            and all(v not in self.leaves(x) for x in tiles(store.operands) if x is not store.value)
        )

    def _pending(self, v: SSAValue, memo: dict[SSAValue, bool]) -> bool:
        """`pending`, for many values at once: of all that are computed from v too."""

        def followed(x: SSAValue) -> list[SSAValue]:
            users = (self._computed_later(use.operation, x) for use in x.uses)
            return [r for r in users if r is not None and r not in self.env and r not in self.soon]

        for x in operands_first(v, followed, memo):
            memo[x] = any(memo[r] for r in followed(x)) or any(
                self._computed_later(use.operation, x) is None
                and self._is_written_later(use.operation, x)
                for use in x.uses
            )
        return memo[v]
