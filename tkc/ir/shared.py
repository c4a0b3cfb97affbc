"""Levels 1 to 3: layouts, shared buffers and asynchronous copies, ordered by data flow and tokens.

Level 1: one operation moves data between layouts.

    %r = tile.convert %x : (tile<…, "layout a">) -> tile<…, "layout b">

Level 2: shared memory. Views are address arithmetic, without code of their own; `write` and `read`
become ldmatrix, stmatrix or plain accesses, as the layouts allow; `copy` is complete when it
returns.

    %ring = tile.alloc : !tile.shared<4, 128x64xbf16, "…">
    %s = tile.stage %ring[%i] : (…) -> !tile.shared<1, 128x64xbf16, "…">
    %t = tile.shared_transpose %s {permutation = …}
    %u = tile.shared_slice %s [%row, %col] : …
    tile.write %s, %x                                   registers -> shared
    %x = tile.read %s                                   shared -> registers
    tile.copy %a[%m, %k], %s                            global -> shared

Level 3: a copy is in flight until a wait names its token. What is older than the 2 newest groups
has arrived after the wait below; `%ready` orders reads behind it.

    %tok = tile.copy_async %a[%m, %k], %s after?(%free) -> !tile.token
    %ready = tile.wait_copies [%tok …] {pending = 2}
    %x = tile.read %s after(%ready)

A token is a data dependency: a `read` takes the token that says its bytes have arrived, so no pass
can move it before the wait. That a stage is read before it is filled again is kept by the order of
the operations, and by what is derived from it at level 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from tkc.ir.definition import op_definition
from tkc.ir.digits import LayoutError
from tkc.ir.layout import Layout
from tkc.ir.syntax import OneToOne, TileOperation
from tkc.ir.tile import SEGMENTED, AlongAxis
from tkc.ir.types import ArrayType, LayoutAttr, SharedType, TileType, TokenType
from tkc.ir.values import (
    shared_type,
    tile_type,
)


@op_definition
class Convert(OneToOne):
    """The same tile in another layout."""

    name = "tile.convert"
    __form__ = "arg"

    def verify_(self) -> None:
        if tile_type(self.arg).with_layout(None) != tile_type(self.result).with_layout(None):
            raise VerifyException(
                f"'tile.convert' changes the layout alone: {self.arg.type} to {self.result.type}"
            )


@op_definition
class ReducePartial(AlongAxis):
    """A reduction within each warp alone: the axis keeps one element for each warp (of those of all
    blocks that share it; by a region, of those that hold more than padding). Its lanes along the
    axis have all of these (Layout.per_warp), or some of them each (Layout.per_lane).

    The second half of a reduction over warps is a write, a read with the axis in registers, and a
    tile.reduce.
    """

    name = "tile.reduce_partial"


@op_definition
class SpreadPartial(OneToOne):
    """What each warp's part of an axis comes to (tile.reduce_partial), at every element of the
    part: registers of the operand, which each lane of the warp has.
    """

    name = "tile.spread_partial"
    __form__ = "arg"
    axis = prop_def(IntegerAttr)

    def __init__(self, arg: SSAValue, axis: int, result: Attribute):
        super().__init__(arg, result, axis=axis)


class _PartOfScan(AlongAxis):
    """Base of the two parts of a tile.scan over warps."""

    reverse = opt_prop_def(UnitAttr)

    def __init__(
        self,
        kind: str,
        args: Sequence[SSAValue],
        axis: int,
        types: Sequence[Attribute],
        reverse: bool = False,
        combine: Region | None = None,
    ):
        super().__init__(kind, args, axis, types, combine, reverse=reverse)

    @property
    def of_runs(self) -> Sequence[SSAValue]:
        """The prefixes within each run, then as many totals of runs."""
        raise NotImplementedError

    @property
    def prefixes(self) -> Sequence[SSAValue]:
        """Those of each run."""
        return self.of_runs[: len(self.of_runs) // 2]

    @property
    def totals(self) -> Sequence[SSAValue]:
        """What the runs come to."""
        return self.of_runs[len(self.of_runs) // 2 :]


@op_definition
class ScanTotal(_PartOfScan):
    """The first part of a tile.scan over warps: each scans its own run of the axis. Results are the
    prefixes within the runs, which a tile.scan_carry alone may use, then what the runs come to, an
    element for each warp along the axis (of one that holds only padding, any).
    """

    name = "tile.scan_total"

    @property
    def of_runs(self) -> Sequence[SSAValue]:
        return self.results


@op_definition
class ScanCarry(_PartOfScan):
    """The second part of a tile.scan over warps: what the runs before come to in front of each
    run's prefixes. args: the prefixes of a tile.scan_total, then its totals, the axis of which lies
    in one warp.
    """

    name = "tile.scan_carry"

    @property
    def of_runs(self) -> Sequence[SSAValue]:
        return self.args


@op_definition
class SortFirst(OneToOne):
    """The first elements of a tile.sort along the last axis, as many as the result has; the order
    of the others is not needed.
    """

    name = "tile.sort_first"
    __form__ = "arg"
    descending = opt_prop_def(UnitAttr)

    def __init__(self, arg: SSAValue, result: Attribute, descending: bool = False):
        super().__init__(arg, result, descending=descending)


# --------------------------------------------------------------------------------------------------
@op_definition
class Alloc(TileOperation):
    """Shared memory of a block; `offset` (bytes from the start of dynamic shared memory) is given
    by allocate-shared.
    """

    name = "tile.alloc"
    __form__ = "@offset?"
    offset = opt_prop_def(IntegerAttr)
    result = result_def(SharedType)
    traits = traits_def(MemoryAllocEffect())

    def __init__(self, result: SharedType, offset: int | None = None):
        super().__init__(offset=offset, result_types=[result])


@op_definition
class Stage(TileOperation):
    """One buffer of a ring."""

    name = "tile.stage"
    __form__ = "ring [index]"
    ring, index, result = operand_def(SharedType), var_operand_def(), result_def(SharedType)
    traits = traits_def(Pure())

    def __init__(self, ring: SSAValue, index: SSAValue):
        super().__init__(ring=ring, index=[index], result_types=[shared_type(ring).single()])


@op_definition
class SharedTranspose(OneToOne):
    """A buffer with its axes permuted (memory stays as it is)."""

    name = "tile.shared_transpose"
    __form__ = "arg"
    permutation = prop_def(DenseArrayBase)

    def __init__(self, arg: SSAValue, permutation: Sequence[int]):
        t, order = shared_type(arg), tuple(permutation)
        extents = [t.extents[p] for p in order]
        result = SharedType(1, extents, t.element, t.memory.transpose(order))
        super().__init__(arg, result, permutation=order)


@op_definition
class SharedReshape(OneToOne):
    """A buffer whose rows follow one another under other extents: a dense one under any, one with
    panels under those of its slow axes."""

    name = "tile.shared_reshape"
    __form__ = "arg"

    def __init__(self, arg: SSAValue, extents: Sequence[int]):
        t = shared_type(arg)
        super().__init__(arg, SharedType(1, extents, t.element, t.memory.reshape(extents)))

    def verify_(self) -> None:
        old, new = shared_type(self.arg), shared_type(self.result)
        try:
            is_same = old.memory.reshape(new.extents) == new.memory
        except LayoutError:
            is_same = False
        if not is_same or (old.element, old.stages, new.stages) != (new.element, 1, 1):
            raise VerifyException(
                f"{old} cannot be seen as {new}: rows follow one another in both, and have as many"
                " elements"
            )


@op_definition
class SharedSlice(TileOperation):
    """Part of a buffer at offsets in elements: multiples of the swizzle atom (8 rows, one panel)
    where they are not constants.
    """

    name = "tile.shared_slice"
    __form__ = "arg [offsets]"
    arg, offsets, result = operand_def(SharedType), var_operand_def(), result_def(SharedType)
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue, offsets: Sequence[SSAValue], result: SharedType):
        super().__init__(arg=arg, offsets=list(offsets), result_types=[result])


@op_definition
class Read(TileOperation):
    """Shared memory to registers in the result's layout."""

    name = "tile.read"
    __form__ = "buffer after*"
    buffer, after, result = (
        operand_def(SharedType),
        var_operand_def(TokenType),
        result_def(TileType),
    )
    # bank conflicts that a pass computed: the worst degree of one access, 1 where there is none
    conflicts = opt_prop_def(IntegerAttr)
    irdl_options = SEGMENTED
    traits = traits_def(MemoryReadEffect())

    def __init__(self, buffer: SSAValue, result: TileType, after: Sequence[SSAValue] = ()):
        super().__init__(buffer=buffer, after=list(after), result_types=[result])


@op_definition
class Write(TileOperation):
    """Registers to shared memory; everywhere: to that of every block of the cluster. lone: of
    copies, what a block's first thread holds is meant, and nothing else.
    """

    name = "tile.write"
    __form__ = "buffer value"
    buffer, value = operand_def(SharedType), operand_def(TileType)
    conflicts = opt_prop_def(IntegerAttr)
    everywhere = opt_prop_def(UnitAttr)
    lone = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryWriteEffect())

    def __init__(
        self, buffer: SSAValue, value: SSAValue, everywhere: bool = False, lone: bool = False
    ):
        super().__init__(buffer=buffer, value=value, everywhere=everywhere, lone=lone)


class CopyIn(TileOperation):
    """Operands of a copy from an array's block (as in tile.load) to a buffer."""

    __form__ = "array [offsets] buffer mask? other? after*"
    array, offsets, buffer, mask, other, after = (
        operand_def(ArrayType),
        var_operand_def(),
        operand_def(SharedType),
        opt_operand_def(),
        opt_operand_def(),
        var_operand_def(TokenType),
    )
    extents = prop_def(DenseArrayBase)
    # bytes of one thread's access: 4, 8 or 16
    vector = opt_prop_def(IntegerAttr)
    # "tma": the tensor memory accelerator; "cp_async": a role of threads fills a ring; absent: the
    # threads
    engine = opt_prop_def(StringAttr)
    # float32 rounded to tf32 on its way (by the tensor memory accelerator)
    tf32 = opt_prop_def(UnitAttr)
    # "evict_first" or "evict_last": the L2 cache's policy (by the tensor memory accelerator)
    hint = opt_prop_def(StringAttr)
    # bytes that the L2 cache reads where it misses some of them (by the tensor memory accelerator)
    fetch = opt_prop_def(IntegerAttr)
    # the buffer's axis along which blocks of the cluster share the copy, each for all of them:
    cut = opt_prop_def(IntegerAttr)
    # neighbours along these axes of the cluster (absent: along the first)
    among = opt_prop_def(DenseArrayBase)
    # which thread copies what; absent: the emitter's choice (16 bytes a thread, coalesced)
    threads = opt_prop_def(LayoutAttr)
    irdl_options = SEGMENTED
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        array: SSAValue,
        offsets: Sequence[SSAValue],
        buffer: SSAValue,
        extents: Sequence[int],
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
        after: Sequence[SSAValue] = (),
        vector: int | None = None,
        threads: Layout | None = None,
    ):
        super().__init__(
            array=array,
            offsets=list(offsets),
            buffer=buffer,
            mask=mask,
            other=other,
            after=list(after),
            extents=extents,
            vector=vector or None,
            threads=LayoutAttr(threads) if threads else None,
        )

    def verify_(self) -> None:
        t = None if self.mask is None else self.mask.type
        if self.threads is None or not isinstance(t, TileType) or t.layout is None:
            return
        if t.register_layout != self.threads.data:
            raise VerifyException(
                f"the mask of '{self.name}' is in other threads than those that copy"
            )


@op_definition
class Copy(CopyIn):
    """Global to shared memory, complete (for this thread block's next barrier) when it returns."""

    name = "tile.copy"


@op_definition
class CopyOut(TileOperation):
    """A buffer to a block of an array, by the tensor memory accelerator; what lies outside the
    array is not written. The buffer may be written again when `slots` more copies of its kind have
    been issued. reduce: "add", "max" or "min" of what is there, instead of a store.
    """

    name = "tile.copy_out"
    __form__ = "array [offsets] buffer"
    array, offsets, buffer = operand_def(ArrayType), var_operand_def(), operand_def(SharedType)
    extents = prop_def(DenseArrayBase)
    slots = prop_def(IntegerAttr)
    reduce = opt_prop_def(StringAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    @property
    def mask(self) -> None:
        return None

    def __init__(
        self,
        array: SSAValue,
        offsets: Sequence[SSAValue],
        buffer: SSAValue,
        extents: Sequence[int],
        slots: int,
        reduce: str | None = None,
    ):
        super().__init__(
            array=array,
            offsets=list(offsets),
            buffer=buffer,
            extents=extents,
            slots=slots,
            reduce=reduce,
        )


@op_definition
class CopyAsync(CopyIn):
    """Global to shared memory, in flight until a wait names the token. `after`: tokens of what must
    be over before.
    """

    name = "tile.copy_async"
    token = result_def(TokenType)


@op_definition
class JoinTokens(TileOperation):
    """One token (one commit group) for several copies."""

    name = "tile.join_tokens"
    __form__ = "[tokens]"
    tokens, token = var_operand_def(TokenType), result_def(TokenType)
    traits = traits_def(Pure())

    def __init__(self, tokens: Sequence[SSAValue]):
        super().__init__(tokens=list(tokens))


@op_definition
class WaitCopies(TileOperation):
    """Waits until at most `pending` of the groups issued so far are in flight; the tokens listed
    (oldest first) have then arrived.
    """

    name = "tile.wait_copies"
    __form__ = "[tokens]"
    tokens, ready = var_operand_def(TokenType), result_def(TokenType)
    pending = prop_def(IntegerAttr)
    traits = traits_def(MemoryWriteEffect())

    def __init__(self, tokens: Sequence[SSAValue], pending: int):
        super().__init__(tokens=list(tokens), pending=pending)


@op_definition
class NoToken(TileOperation):
    """The token of nothing: what a loop carries before its first copy."""

    name = "tile.no_token"
    token = result_def(TokenType)
    traits = traits_def(Pure())


# a buffer seen as another one: nothing moves
VIEWS = (SharedTranspose, SharedReshape, SharedSlice)
OPERATIONS: tuple[type[Operation], ...] = (
    Convert,
    SortFirst,
    ReducePartial,
    SpreadPartial,
    ScanTotal,
    ScanCarry,
    Alloc,
    Stage,
    *VIEWS,
    Read,
    Write,
    Copy,
    CopyOut,
    CopyAsync,
    JoinTokens,
    WaitCopies,
    NoToken,
)
