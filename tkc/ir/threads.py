"""Level 4: threads. Warp roles, barriers, fences, clusters, TMA, asynchronous dots.

A kernel's body is run by every thread of the block. `tile.roles` splits it into concurrent roles,
each a group of warps:

    tile.roles {
      tile.role producer {warps = 4, registers = 40, single} { ^0(%instance: i32): … }
      tile.role consumer {warps = 4, copies = 2, registers = 232} { ^0(%instance: i32): … }
    }

`single`: one elected thread runs the body. `copies`: so many instances of 4 warps each; `%instance`
is the number of the instance.

Inside a role every tile is distributed over one instance's warps, and every operation that issues a
copy, an arrival or a commit does so once for the instance (its first thread), unless it says
otherwise. A kernel without roles is one instance of all its warps. Scalars are uniform: every
thread of the instance has the same value.

    tile.mbarrier_init %full {count = 1}
        by one thread; made visible by `tile.fence mbarrier_init` and a barrier
    tile.mbarrier_wait %full[%s] %parity
        until the phase of that parity is complete (of a fresh barrier: parity 1 is)
    tile.mbarrier_arrive %empty[%s]
        … to %mask: in each block of the cluster whose bit is set
    tile.mbarrier_expect %full[%s] {bytes = 49152}
        arrive and expect so many bytes
    tile.tma_load %map[%row, %col] %stage, %full[%s]
        the box of %map at coordinates in the array's axes
    tile.tma_store %map[%row, %col] %subtile
        then tile.bulk_commit, tile.bulk_wait 1 {read}
    tile.fence dot
    %p = tile.dot_async %a, %b acc %old
        wgmma: a, b shared views (or a in registers), old a tile or pending
    tile.dot_commit
    %d = tile.dot_wait 0 [%p]
        the only way from pending to a readable tile
    tile.cp_async %a[…] %stage
    tile.cp_commit
    tile.cp_wait 2
    tile.send %box %x %full[%s]
        registers to the same place in every block of the cluster, counted by that barrier of each

Ring state is two scalars: `%s1, %p1 = tile.ring_next %s, %p {stages = 4}` steps the stage and flips
the parity as it wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i1, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import (
    HasParent,
    MemoryAllocEffect,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
    Pure,
    is_side_effect_free,
)
from xdsl.utils.exceptions import VerifyException

from tkc.ir.definition import op_definition
from tkc.ir.layout import Layout, blocked
from tkc.ir.shared import CopyIn
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.syntax import OneToOne, Source, TileOperation, check_word
from tkc.ir.tile import SEGMENTED, Reduce
from tkc.ir.types import (
    ArrayType,
    BarriersType,
    MapType,
    PendingType,
    PointerType,
    SharedType,
    TileType,
    bits,
    element_of,
)
from tkc.ir.values import extents_of, pending_type, shared_type, tile_type, type_of

EFFECT = traits_def(MemoryReadEffect(), MemoryWriteEffect())


# --------------------------------------------------------------------------------------------------
@op_definition
class Roles(TileOperation):
    """The block's warps part into the roles inside, in order of their warps; what follows runs
    after all of them.
    """

    name = "tile.roles"
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, roles: Sequence[Role] = ()):
        super().__init__(regions=[Region(Block(list(roles)))])


def making_warp(kernel: Operation) -> int:
    """The warp whose first thread makes barriers and prefetches tensor maps: the second where there
    are roles, because the first computes the addresses of the first copies meanwhile; else the
    first, which may use them at once.
    """
    return int(any(isinstance(op, Roles) for region in kernel.regions for op in region.block.ops))


@op_definition
class Role(TileOperation):
    """`copies` instances of `warps` warps. registers: setmaxnreg. single: one elected thread runs
    the body.
    """

    name = "tile.role"
    __form__ = "@sym_name"
    sym_name = prop_def(StringAttr)
    warps = prop_def(IntegerAttr)
    copies = opt_prop_def(IntegerAttr)
    registers = opt_prop_def(IntegerAttr)
    single = opt_prop_def(UnitAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), HasParent(Roles), MemoryReadEffect(), MemoryWriteEffect())

    def __init__(
        self,
        name: str,
        warps: int,
        copies: int = 1,
        registers: int | None = None,
        single: bool = False,
        region: Region | None = None,
    ):
        super().__init__(
            sym_name=name,
            warps=warps,
            copies=copies,
            single=single,
            registers=registers or None,
            regions=[region or Region(Block(arg_types=[i32]))],
        )

    @property
    def instances(self) -> int:
        return self.copies.value.data if self.copies else 1

    @property
    def instance(self) -> SSAValue:
        """The number of the instance that runs the body (i32)."""
        return self.body.block.args[0]


IDENTITIES = ("block", "blocks", "cluster", "clusters", "cluster_rank", "member", "thread", "warp")


@op_definition
class Identity(Source):
    """A physical index: block (linear ctaid.x) and their number, cluster and their number, this
    block's rank in its cluster; member: which of the programs that a block runs side by side (to
    level 3); thread and warp within the instance (the two that are not uniform).
    """

    name = "tile.identity"
    __form__ = "@what"
    what = prop_def(StringAttr)

    def __init__(self, what: str):
        super().__init__(what=what, result_types=[i32])

    def verify_(self) -> None:
        check_word(self.what, IDENTITIES, "unknown identity")


@op_definition
class Workspace(Source):
    """Memory of the launch: `bytes` for every program of the user's grid, or in all (`whole`),
    aligned to 256, all zero before the kernel's first launch; what one launch leaves there the next
    one finds. Two of these operations have two places."""

    name = "tile.workspace"
    bytes = prop_def(IntegerAttr)
    whole = opt_prop_def(UnitAttr)

    def __init__(self, element: Attribute, bytes: int, whole: bool = False):
        super().__init__(bytes=bytes, whole=whole, result_types=[PointerType(element)])


@op_definition
class NextProgram(TileOperation):
    """The number of the program that a block takes next, of `total` in their order: blocks start
    with those of their own numbers and claim the rest one by one from a counter of the launch. What
    is claimed past the last is at least `total`; it is claimed once by each block, at its end. From
    level 2 on the first thread alone has the number, of a cluster that shares programs that of its
    first block, and gives it to the others through shared memory.
    """

    name = "tile.next_program"
    __form__ = "total"
    total, result = operand_def(i32), result_def(i32)
    traits = EFFECT

    def __init__(self, total: SSAValue):
        super().__init__(total=total)


# --------------------------------------------------------------------------------------------------
class _Box(TileOperation):
    if TYPE_CHECKING:
        box: SSAValue

    traits = EFFECT

    def verify_(self) -> None:
        t = shared_type(self.box)
        if t.stages != 1 or t.element != i32:
            raise VerifyException(f"'{self.name}' takes one stage of a buffer of i32, got {t}")


@op_definition
class BroadcastStore(_Box):
    """One thread leaves a scalar in a buffer, in its first element."""

    name = "tile.broadcast_store"
    __form__ = "box value"
    box, value = operand_def(SharedType), operand_def(i32)

    def __init__(self, box: SSAValue, value: SSAValue):
        super().__init__(box=box, value=value)


@op_definition
class BroadcastLoad(_Box):
    """Every thread of the instance reads the scalar in a buffer."""

    name = "tile.broadcast_load"
    __form__ = "box"
    box, result = operand_def(SharedType), result_def(i32)

    def __init__(self, box: SSAValue):
        super().__init__(box=box)


@op_definition
class Vote(TileOperation):
    """Whether every element of truth values is true: all of the block (scope "block", where all its
    threads meet), or those that a warp holds (scope "warp"), so that results of warps may differ.
    No result may depend on which it is: only branches use it, and where all that a warp holds is
    true, both of their sides yield it the same; of scope "warp", nothing in them leaves the warp.
    The result of scope "block" is a number like any other.
    """

    name = "tile.vote"
    __form__ = "arg"
    arg, result = operand_def(TileType), result_def(i1)
    scope = opt_prop_def(StringAttr)
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue):
        super().__init__(arg=arg)

    def verify_(self) -> None:
        if element_of(self.arg.type) != i1:
            raise VerifyException(f"'tile.vote' takes truth values, not {self.arg.type}")
        scope = "" if self.scope is None else self.scope.data
        if scope not in ("", "warp", "block"):
            raise VerifyException(f"'tile.vote' has no scope {scope!r}; there are warp and block")
        branches = [use.operation for use in self.result.uses]
        if scope != "block" and any(branch.name != "scf.if" for branch in branches):
            raise VerifyException("only branches ask 'tile.vote'")
        if scope == "warp":
            inner = (op for branch in branches for region in branch.regions for op in region.walk())
            if (for_all := next(filter(_is_for_all_warps, inner), None)) is not None:
                raise VerifyException(
                    f"a branch that each warp takes for itself holds '{for_all.name}', which is for"
                    " all warps together"
                )


@op_definition
class Take(TileOperation):
    """The elements of a tile at one place along an axis, which disappears: a sum of those and of
    zeros, so that -0 is 0. A scalar names the place, of which the first is number `first`; where
    there is none of that number, zeros. The axis lies within a warp.
    """

    name = "tile.take"
    __form__ = "arg number"
    arg, number, result = operand_def(TileType), operand_def(i32), result_def()
    axis, first = prop_def(IntegerAttr), prop_def(IntegerAttr)
    traits = traits_def(Pure())

    def __init__(self, arg: SSAValue, number: SSAValue, axis: int, first: int, result: Attribute):
        super().__init__(arg=arg, number=number, axis=axis, first=first, result_types=[result])

    def place(self, number: int) -> int | None:
        """The place of that number; None where there is none."""
        at = number - self.first.value.data
        return at if 0 <= at < tile_type(self.arg).extents[self.axis.value.data] else None


def _is_for_all_warps(op: Operation) -> bool:
    """Whether the warps of an instance meet in an operation, or others see its effects."""
    if isinstance(op, Reduce):
        layouts = (tile_type(a).register_layout for a in op.args)
        axis = op.axis.value.data
        if any(layout is not None and layout.warps_along(axis) > 1 for layout in layouts):
            return True
    return not op.regions and op.name != "scf.yield" and not is_side_effect_free(op)


# --------------------------------------------------------------------------------------------------
class _HardwareBarrier(TileOperation):
    """Base of what `threads` threads do at hardware barrier `id`."""

    __form__ = "id"
    id = operand_def(i32)
    threads = prop_def(IntegerAttr)
    traits = EFFECT

    def __init__(self, id: SSAValue, threads: int):
        super().__init__(id=id, threads=threads)


@op_definition
class Barrier(_HardwareBarrier):
    """bar.sync: `threads` threads meet at hardware barrier `id`."""

    name = "tile.barrier"


@op_definition
class BarrierArrive(_HardwareBarrier):
    """bar.arrive: counts as arrived without waiting."""

    name = "tile.barrier_arrive"


TURNS = ("start", "begin", "end")


@op_definition
class Turn(TileOperation):
    """The warpgroups of an instance take turns at the tensor cores: `start` once, before the first;
    then `begin` waits for one's turn, `end` hands it to the next. A matter of speed alone: it
    orders no memory, and every thread meets the same turns.
    """

    name = "tile.turn"
    __form__ = "@what"
    what = prop_def(StringAttr)
    traits = EFFECT

    def __init__(self, what: str):
        super().__init__(what=what)

    def verify_(self) -> None:
        check_word(self.what, TURNS, "unknown turn")


@op_definition
class BlockBarrier(TileOperation):
    """All threads of the instance (of the block, outside roles): __syncthreads. Instances meet on
    hardware barriers counted down from 15; `tile.barrier` counts up from 1. each "warpgroup": those
    of every warpgroup among themselves.
    """

    name = "tile.block_barrier"
    each = opt_prop_def(StringAttr)
    traits = EFFECT

    def __init__(self, each: str | None = None):
        super().__init__(each=each)


@op_definition
class ClusterArrive(TileOperation):
    """barrier.cluster.arrive; relaxed: orders nothing (enough after an mbarrier_init fence)."""

    name = "tile.cluster_arrive"
    relaxed = opt_prop_def(UnitAttr)
    traits = EFFECT

    def __init__(self, relaxed: bool = False):
        super().__init__(relaxed=relaxed)


@op_definition
class ClusterWait(TileOperation):
    """barrier.cluster.wait: until every thread of the cluster has arrived."""

    name = "tile.cluster_wait"
    traits = EFFECT


FENCES = ("mbarrier_init", "async_shared", "async_global", "dot", "block", "gpu")


@op_definition
class Fence(TileOperation):
    """mbarrier_init: initialised barriers become visible to the cluster and to async copies.
    async_shared/async_global: this thread's ordinary accesses become visible to the asynchronous
    proxy. dot: wgmma.fence, before the first dot of a group and wherever registers of a dot were
    touched since. block, gpu: memory fences."""

    name = "tile.fence"
    __form__ = "@kind"
    kind = prop_def(StringAttr)
    traits = EFFECT

    def __init__(self, kind: str):
        super().__init__(kind=kind)

    def verify_(self) -> None:
        check_word(self.kind, FENCES, "unknown fence")


@op_definition
class Barriers(TileOperation):
    """Shared memory for the mbarriers of a ring; `offset` as in tile.alloc."""

    name = "tile.mbarriers"
    __form__ = "@offset?"
    offset = opt_prop_def(IntegerAttr)
    result = result_def(BarriersType)
    traits = traits_def(MemoryAllocEffect())

    def __init__(self, stages: int, offset: int | None = None):
        super().__init__(offset=offset, result_types=[BarriersType(stages)])


@op_definition
class MbarrierInit(TileOperation):
    """Every mbarrier of the ring expects `count` arrivals a phase; by one thread of the block."""

    name = "tile.mbarrier_init"
    __form__ = "barriers"
    barriers = operand_def(BarriersType)
    count = prop_def(IntegerAttr)
    traits = EFFECT

    def __init__(self, barriers: SSAValue, count: int):
        super().__init__(barriers=barriers, count=count)


@op_definition
class MbarrierWait(TileOperation):
    """Until the phase of that parity has completed. unless: skipped where this earlier test already
    said so.
    """

    name = "tile.mbarrier_wait"
    __form__ = "barriers [index] parity unless?"
    barriers, index, parity, unless = (
        operand_def(BarriersType),
        var_operand_def(),
        operand_def(i32),
        opt_operand_def(i1),
    )
    irdl_options = SEGMENTED
    traits = EFFECT

    def __init__(
        self,
        barriers: SSAValue,
        index: SSAValue,
        parity: SSAValue,
        unless: SSAValue | None = None,
    ):
        super().__init__(barriers=barriers, index=[index], parity=parity, unless=unless)


@op_definition
class MbarrierTest(TileOperation):
    """Whether the phase of that parity has completed, without waiting."""

    name = "tile.mbarrier_test"
    __form__ = "barriers [index] parity"
    barriers, index, parity, result = (
        operand_def(BarriersType),
        var_operand_def(),
        operand_def(i32),
        result_def(i1),
    )
    traits = EFFECT

    def __init__(self, barriers: SSAValue, index: SSAValue, parity: SSAValue):
        super().__init__(barriers=barriers, index=[index], parity=parity)


ARRIVE_EACH = ("warp", "copies")


@op_definition
class MbarrierArrive(TileOperation):
    """One arrival by the instance; `to`: a bit mask of blocks of the cluster, one arrival at the
    same barrier of each. each "warp": one arrival by every warp of the instance. each "copies": one
    by every thread, which does not wait for it, when what it has copied by cp.async has landed.
    `when`: only if that holds."""

    name = "tile.mbarrier_arrive"
    __form__ = "barriers [index] to? when?"
    barriers, index, to, when = (
        operand_def(BarriersType),
        var_operand_def(),
        opt_operand_def(i32),
        opt_operand_def(i1),
    )
    each = opt_prop_def(StringAttr)
    irdl_options = SEGMENTED
    traits = EFFECT

    def __init__(
        self,
        barriers: SSAValue,
        index: SSAValue,
        to: SSAValue | None = None,
        each: str | None = None,
        when: SSAValue | None = None,
    ):
        super().__init__(barriers=barriers, index=[index], to=to, each=each, when=when)

    def verify_(self) -> None:
        if self.each is not None:
            check_word(self.each, ARRIVE_EACH, "unknown arrivals")
        if self.of_copies and self.to is not None:
            raise VerifyException("what copies arrive at is an mbarrier of their own block")

    @property
    def of_copies(self) -> bool:
        """Whether threads arrive when their copies have landed."""
        return self.each is not None and self.each.data == "copies"


@op_definition
class MbarrierExpect(TileOperation):
    """One arrival that also announces bytes of asynchronous copies to this phase."""

    name = "tile.mbarrier_expect"
    __form__ = "barriers [index]"
    barriers, index = operand_def(BarriersType), var_operand_def()
    bytes = prop_def(IntegerAttr)
    traits = EFFECT

    def __init__(self, barriers: SSAValue, index: SSAValue, bytes: int):
        super().__init__(barriers=barriers, index=[index], bytes=bytes)


@op_definition
class Send(TileOperation):
    """Registers to the same place in the shared memory of every block of the cluster, or of the one
    of rank `to` (st.async). Each block's mbarrier at that index counts the bytes that arrive there:
    whoever waits for a phase that expects all of them sees them. lone: as of a tile.write."""

    name = "tile.send"
    __form__ = "buffer value barriers [index] to?"
    buffer, value, barriers, index, to = (
        operand_def(SharedType),
        operand_def(TileType),
        operand_def(BarriersType),
        var_operand_def(),
        opt_operand_def(i32),
    )
    lone = opt_prop_def(UnitAttr)
    irdl_options = SEGMENTED
    traits = EFFECT

    def __init__(
        self,
        buffer: SSAValue,
        value: SSAValue,
        barriers: SSAValue,
        index: SSAValue,
        lone: bool = False,
        to: SSAValue | None = None,
    ):
        super().__init__(
            buffer=buffer, value=value, barriers=barriers, index=[index], to=to, lone=lone
        )

    def verify_(self) -> None:
        if bits(element_of(self.value.type)) not in (32, 64):
            raise VerifyException(
                f"'tile.send' takes elements of 32 or 64 bits, not {element_of(self.value.type)}"
            )


@op_definition
class RingNext(TileOperation):
    """The next stage and its parity: stage + steps mod stages, parity flipped for each wrap.
    `steps`: an operand (i32), 1 where absent."""

    name = "tile.ring_next"
    __form__ = "stage parity steps?"
    stage, parity, steps = operand_def(i32), operand_def(i32), opt_operand_def(i32)
    next_stage, next_parity = result_def(i32), result_def(i32)
    stages = prop_def(IntegerAttr)
    traits = traits_def(Pure())

    def __init__(
        self, stage: SSAValue, parity: SSAValue, stages: int, steps: SSAValue | None = None
    ):
        super().__init__(stage=stage, parity=parity, steps=steps, stages=stages)


# --------------------------------------------------------------------------------------------------
@op_definition
class TensorMap(OneToOne):
    """The tensor map of an array argument for boxes of the result's type: the host builds it, the
    kernel gets it as a parameter. `order`: the array's axes in the map's order, where that is
    another (the last one is dense in memory). tf32: copies round float32 to tf32. fetch: the most
    bytes that the L2 cache reads from memory at once (absent: as many as it can).
    """

    name = "tile.tensor_map"
    __form__ = "arg"
    arg, result = operand_def(ArrayType), result_def(MapType)
    order = opt_prop_def(DenseArrayBase)
    tf32 = opt_prop_def(UnitAttr)
    fetch = opt_prop_def(IntegerAttr)

    def __init__(
        self,
        arg: SSAValue,
        result: MapType,
        order: Sequence[int] = (),
        tf32: bool = False,
        fetch: int = 0,
    ):
        other = list(order) if list(order) != sorted(order) else None
        super().__init__(arg, result, order=other, tf32=tf32, fetch=fetch or None)

    @property
    def axes(self) -> tuple[int, ...]:
        return (
            tuple(self.order.get_values())
            if self.order is not None
            else tuple(range(type_of(self.result, MapType).rank))
        )


@op_definition
class TmaLoad(TileOperation):
    """A box to shared memory; completes its bytes on the mbarrier. `to`: multicast to the blocks of
    that bit mask, at the same offsets and barrier of each. hint: "evict_first" or "evict_last"."""

    name = "tile.tma_load"
    __form__ = "map [offsets] buffer barriers [index] to?"
    map, offsets, buffer, barriers, index, to = (
        operand_def(MapType),
        var_operand_def(),
        operand_def(SharedType),
        operand_def(BarriersType),
        var_operand_def(),
        opt_operand_def(i32),
    )
    hint = opt_prop_def(StringAttr)
    irdl_options = SEGMENTED
    traits = EFFECT

    def __init__(
        self,
        map: SSAValue,
        offsets: Sequence[SSAValue],
        buffer: SSAValue,
        barriers: SSAValue,
        index: SSAValue,
        to: SSAValue | None = None,
        hint: str | None = None,
    ):
        super().__init__(
            map=map,
            offsets=list(offsets),
            buffer=buffer,
            barriers=barriers,
            index=[index],
            to=to,
            hint=hint,
        )


@op_definition
class TmaStore(TileOperation):
    """A buffer to the array; part of the issuing thread's current bulk group. reduce: "add", "max",
    "min" instead of a store. each "warpgroup": one thread of every warpgroup sends its share of the
    buffer, a box; the shares lie one behind the other along `axis` of the array.
    """

    name = "tile.tma_store"
    __form__ = "map [offsets] buffer"
    map, offsets, buffer = operand_def(MapType), var_operand_def(), operand_def(SharedType)
    reduce, each, axis = (
        opt_prop_def(StringAttr),
        opt_prop_def(StringAttr),
        opt_prop_def(IntegerAttr),
    )
    traits = EFFECT

    def __init__(
        self,
        map: SSAValue,
        offsets: Sequence[SSAValue],
        buffer: SSAValue,
        reduce: str | None = None,
        each: str | None = None,
        axis: int | None = None,
    ):
        super().__init__(
            map=map, offsets=list(offsets), buffer=buffer, reduce=reduce, each=each, axis=axis
        )

    def verify_(self) -> None:
        if self.each is None:
            return
        if self.axis is None or not 0 <= self.axis.value.data < type_of(self.map, MapType).rank:
            raise VerifyException(
                "'tile.tma_store' by each warpgroup names the axis of the array along which they"
                " share"
            )
        box = type_of(self.map, MapType).extents[self.axis.value.data]
        whole = shared_type(self.buffer).extents[self.shared_axis]
        if whole % box:
            raise VerifyException(
                f"'tile.tma_store' by each warpgroup sends boxes of {box} of a buffer's {whole}"
                " along the axis that they share"
            )

    @property
    def shared_axis(self) -> int:
        """The axis of the buffer along which warpgroups share it: it has those of the map along
        which a box is longer than 1.
        """
        assert self.axis is not None
        extents = type_of(self.map, MapType).extents
        return sum(n > 1 for n in extents[: self.axis.value.data])

    def share(self, memory: SharedLayout, number: int) -> tuple[SharedLayout, int]:
        """How the share of a warpgroup lies in the buffer, and the byte where it starts."""
        assert self.axis is not None
        axis, n = self.shared_axis, type_of(self.map, MapType).extents[self.axis.value.data]
        start, extents = [0] * len(memory.shape), list(memory.shape)
        start[axis], extents[axis] = number * n, n
        return memory.slice(start, extents)


@op_definition
class BulkCommit(TileOperation):
    """Ends the current group of bulk stores of the issuing thread (each "warpgroup": of one of
    every warpgroup).
    """

    name = "tile.bulk_commit"
    each = opt_prop_def(StringAttr)
    traits = EFFECT

    def __init__(self, each: str | None = None):
        super().__init__(each=each)


@op_definition
class BulkWait(TileOperation):
    """The issuing thread (each "warpgroup": one of every warpgroup) waits until at most `pending`
    groups are in flight; read: until they have read their source.
    """

    name = "tile.bulk_wait"
    __form__ = "@pending"
    pending = prop_def(IntegerAttr)
    read, each = opt_prop_def(UnitAttr), opt_prop_def(StringAttr)
    traits = EFFECT

    def __init__(self, pending: int, read: bool = True, each: str | None = None):
        super().__init__(pending=pending, read=read, each=each)


# --------------------------------------------------------------------------------------------------
CP_ASYNC_BYTES = 16  # the most that one cp.async moves
LEAST_COPIED_BYTES = 4  # the least


@op_definition
class CpAsync(CopyIn):
    """The instance's threads copy a block by cp.async; part of each thread's current group. Zero
    fill outside the array.
    """

    name = "tile.cp_async"
    traits = EFFECT

    def layout_among(self, warps: int, memory: SharedLayout) -> Layout:
        """Which thread of an instance of so many warps copies which elements into a buffer."""
        if self.threads is not None:
            return self.threads.data
        most = CP_ASYNC_BYTES if self.vector is None else self.vector.value.data
        return blocked(memory.shape, max(most // memory.itemsize, 1), warps, memory.order)


@op_definition
class CpCommit(TileOperation):
    """Each thread's cp.async copies since its last commit become one group."""

    name = "tile.cp_commit"
    traits = EFFECT


@op_definition
class CpWait(TileOperation):
    """Each thread waits until at most `pending` of its groups are in flight. (A barrier makes them
    visible to the others.)
    """

    name = "tile.cp_wait"
    __form__ = "@pending"
    pending = prop_def(IntegerAttr)
    traits = EFFECT

    def __init__(self, pending: int):
        super().__init__(pending=pending)


# --------------------------------------------------------------------------------------------------
@op_definition
class DotAsync(TileOperation):
    """wgmma of one warpgroup: acc + a·b for a: M×K (shared view, or a tile in the A fragment's
    layout), b: K×N shared view.

    acc is a tile or pending, and the result is in its registers. Without acc the sum starts from
    nothing (the first instruction does not add); `keep` decides at run time whether acc's old value
    counts (false: it does not).
    """

    name = "tile.dot_async"
    __form__ = "a b acc? keep?"
    a, b, acc, keep, result = (
        operand_def(),
        operand_def(SharedType),
        opt_operand_def(),
        opt_operand_def(i1),
        result_def(PendingType),
    )
    irdl_options = SEGMENTED
    traits = EFFECT

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        acc: SSAValue | None = None,
        result: PendingType | None = None,
        keep: SSAValue | None = None,
    ):
        if result is None:
            assert acc is not None
            t = acc.type
            result = t if isinstance(t, PendingType) else PendingType(tile_type(acc))
        super().__init__(a=a, b=b, acc=acc, keep=keep, result_types=[result])

    def verify_(self) -> None:
        if self.keep is not None and self.acc is None:
            raise VerifyException("'tile.dot_async' has no accumulator to keep")
        a, b = extents_of(self.a), extents_of(self.b)
        d = pending_type(self.result).tile.extents
        if len(a) != 2 or len(b) != 2 or a[1] != b[0] or d != (a[0], b[1]):
            raise VerifyException(
                f"'tile.dot_async' of {list(a)} and {list(b)} does not give {list(d)}"
            )
        if self.acc is not None and self.acc.type not in (self.result.type, self.result.type.tile):
            raise VerifyException(
                f"accumulator {self.acc.type} of a dot that gives {self.result.type}"
            )


@op_definition
class Undefined(Source):
    """An accumulator whose old value nobody will use: registers as they are."""

    name = "tile.undefined"

    def __init__(self, result: PendingType):
        super().__init__(result_types=[result])


@op_definition
class Accumulator(OneToOne):
    """A tile as the accumulator of asynchronous dots, none of which is in flight yet."""

    name = "tile.accumulator"
    __form__ = "arg"

    def __init__(self, arg: SSAValue):
        super().__init__(arg, PendingType(tile_type(arg)))

    def verify_(self) -> None:
        if not isinstance(self.arg.type, TileType) or self.result.type != PendingType(
            self.arg.type
        ):
            raise VerifyException(
                f"'tile.accumulator' of {self.arg.type} cannot give {self.result.type}"
            )


@op_definition
class DotCommit(TileOperation):
    """Ends the current group of asynchronous dots."""

    name = "tile.dot_commit"
    traits = EFFECT


@op_definition
class DotWait(TileOperation):
    """Waits until at most `pending` groups are in flight. Operands are all dots in flight; those
    results that are tiles are ready.
    """

    name = "tile.dot_wait"
    __form__ = "@pending [args]"
    args, results_ = var_operand_def(PendingType), var_result_def()
    pending = prop_def(IntegerAttr)
    traits = EFFECT

    def __init__(self, pending: int, args: Sequence[SSAValue], ready: Sequence[bool] | None = None):
        ready = [pending == 0] * len(args) if ready is None else ready
        types = [pending_type(a).tile if r else a.type for a, r in zip(args, ready, strict=False)]
        super().__init__(args=list(args), pending=pending, result_types=[types])

    def verify_(self) -> None:
        for a, r in zip(self.args, self.results, strict=False):
            if r.type != a.type and r.type != pending_type(a).tile:
                raise VerifyException(f"'tile.dot_wait' of {a.type} cannot give {r.type}")
            if self.pending.value.data == 0 and isinstance(r.type, PendingType):
                raise VerifyException("after 'tile.dot_wait 0' nothing is pending")


OPERATIONS: tuple[type[Operation], ...] = (
    Roles,
    Role,
    Identity,
    Vote,
    Take,
    Workspace,
    NextProgram,
    BroadcastStore,
    BroadcastLoad,
    Barrier,
    BarrierArrive,
    Turn,
    BlockBarrier,
    ClusterArrive,
    ClusterWait,
    Fence,
    Barriers,
    MbarrierInit,
    MbarrierWait,
    MbarrierTest,
    MbarrierArrive,
    MbarrierExpect,
    Send,
    RingNext,
    TensorMap,
    TmaLoad,
    TmaStore,
    BulkCommit,
    BulkWait,
    CpAsync,
    CpCommit,
    CpWait,
    DotAsync,
    Undefined,
    Accumulator,
    DotCommit,
    DotWait,
)
