"""Constants, program ids, extents and views of arrays: scalars of few instructions or none."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import BlockArgument

from tkc.codegen.ptx import traps
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.integers import (
    add,
    displaced,
    is_narrow,
    is_power_of_two,
    narrowed,
    remainder,
    saturated,
    wide,
)
from tkc.codegen.ptx.values import Array, Tile, element_count, packing, registers_of, to_bits
from tkc.codegen.ptx.writer import Integer
from tkc.ir import shared, threads, tile
from tkc.ir.interface import Parameter
from tkc.ir.ranges import Range
from tkc.ir.types import PointerType, TileType, bits, is_bool
from tkc.ir.values import array_type


# ---- constants and ids
@emitter(tile.Constant)
def constant(e: Emitter, op: tile.Constant) -> None:
    """A number, or a tile of it."""
    t, n = op.result.type, op.number
    if isinstance(t, TileType):
        return e.set(op.result, splat_constant(t, n))
    e.set(op.result, bool(n) if is_bool(t) else n)


def splat_constant(t: TileType, n: int | float) -> Tile:
    """A tile each of whose elements is a number."""
    kind, count = registers_of(t)
    if kind == "pred":
        return Tile.of(t, [bool(n)] * count)
    raw, p = to_bits(n, t.element), packing(t.element, element_count(t))
    return Tile.of(t, [sum(raw << i * bits(t.element) for i in range(p))] * count)


@emitter(tile.ProgramId)
def program_id(e: Emitter, op: tile.ProgramId) -> None:
    """The number of the thread block, or of the cluster where its blocks share a program."""
    if e.persistent:
        e.fail(
            "a persistent kernel has no program id of its own at level 4: its programs are those of"
            " the loop over them"
        )
    axis = "xyz"[op.axis.value.data]
    e.set(op.result, e.special(f"%{'cluster' if shares_programs(e) else 'cta'}id.{axis}"))


def shares_programs(e: Emitter) -> bool:
    """Whether the thread blocks of a cluster compute one program together."""
    return "spread" in e.kernel.attributes


@emitter(tile.NumPrograms)
def num_programs(e: Emitter, op: tile.NumPrograms) -> None:
    """The extent of the grid, which is a parameter."""
    e.set(op.result, e.parameter(Parameter("grid", "u32", axis=op.axis.value.data)))


# special registers, by what they count; where there is no cluster, a block is one
_IDENTITIES = {
    "block": "%ctaid.x",
    "blocks": "%nctaid.x",
    "cluster": "%clusterid.x",
    "clusters": "%nclusterid.x",
    "cluster_rank": "%cluster_ctarank",
}
_OF_BLOCKS = {"cluster": "block", "clusters": "blocks"}


@emitter(threads.Identity)
def identity(e: Emitter, op: threads.Identity) -> None:
    """Which thread, warp, block or cluster this is."""
    what = op.what.data
    if e.cluster == (1, 1):
        what = _OF_BLOCKS.get(what, what)
    match what:
        case "thread":
            e.set(op.result, e.thread())
        case "warp":
            e.set(op.result, e.warp())
        case "cluster_rank" if e.cluster == (1, 1):
            e.set(op.result, 0)
        case _:
            e.set(op.result, e.special(_IDENTITIES[what]))


# ---- promises
@emitter(tile.Multiple)
def multiple(e: Emitter, op: tile.Multiple) -> None:
    """The operand itself; TKC_DEBUG=1 checks that it is a multiple."""
    e.set(op.result, e.value(op.arg))
    if e.debug:
        check_multiple(e, op)


def check_multiple(e: Emitter, op: tile.Multiple) -> None:
    """Traps where a scalar is not the multiple that was promised."""
    n, t = op.divisor.value.data, op.arg.type
    if isinstance(t, (TileType, PointerType)):
        return  # their accesses are checked
    x = e.integer(op.arg)
    if isinstance(x, str):
        type = "s64" if bits(t) == 64 else "s32"
        traps.check(
            e,
            e.w.op(f"setp.ne.{type}", "pred", remainder(e, x, n, type), 0),
            f"expected a multiple of {n}, as tkc.multiple_of or the arguments it was compiled for"
            " promised, got {0}",
            x,
        )


@emitter(tile.Assume)
def assume(e: Emitter, op: tile.Assume) -> None:
    """A promise is no code; TKC_DEBUG=1 checks whether it is kept."""
    if not e.debug:
        return
    held = e.operand(op.condition)
    wrong = e.w.op("not.pred", "pred", held) if isinstance(held, str) else not held
    traps.check(e, wrong, "what tkc.assume promised does not hold")


@emitter(tile.Return)
def finish(e: Emitter, op: tile.Return) -> None:
    """The end of the kernel."""
    e.w.emit("ret")


# ---- rings
def _wraps_once(op: threads.RingNext, steps: Integer, stages: int) -> bool:
    """Whether a ring advances by fewer steps than it has stages, so that it wraps once at most: a
    number, or which of so many instances of a role this is.
    """
    if not isinstance(steps, str):
        return 0 < steps < stages
    role = op.steps.block.parent_op() if isinstance(op.steps, BlockArgument) else None
    return isinstance(role, threads.Role) and role.instances <= stages


@emitter(threads.RingNext)
def ring_next(e: Emitter, op: threads.RingNext) -> None:
    """stage + steps mod stages; the parity flips for every wrap.  As arithmetic, not branches:
    ptxas keeps it uniform.
    """
    w, n = e.w, op.stages.value.data
    stage, parity = e.integer(op.stage), e.integer(op.parity)
    steps = 1 if op.steps is None else e.integer(op.steps)

    def flipped(by: Integer) -> Integer:
        if not isinstance(parity, str) and not isinstance(by, str):
            return parity ^ by
        return w.op("xor.b32", "b32", w.register(parity), by)

    def after(wraps: int, next_stage: Integer) -> None:
        e.set(op.next_stage, next_stage)
        e.set(op.next_parity, flipped(1) if wraps & 1 else parity)

    if not isinstance(steps, str) and steps % n == 0:
        return after(steps // n, stage)
    total = add(e, stage, steps)
    if not isinstance(total, str):
        return after(*divmod(total, n))
    if not is_power_of_two(n) and _wraps_once(op, steps, n):
        wrap = w.op(f"setp.{'eq' if steps == 1 else 'ge'}.s32", "pred", total, n)
        wrapped = 0 if steps == 1 else w.op("sub.s32", "b32", total, n)
        e.set(op.next_stage, w.op("selp.b32", "b32", wrapped, total, wrap))
        return e.set(op.next_parity, flipped(w.op("selp.b32", "b32", 1, 0, wrap)))
    if is_power_of_two(n):
        wraps = w.op("shr.u32", "b32", total, n.bit_length() - 1)
        rest = w.op("and.b32", "b32", total, n - 1)
    else:
        wraps = w.op("div.u32", "b32", total, n)
        rest = w.op("sub.s32", "b32", total, w.op("mul.lo.s32", "b32", wraps, n))
    e.set(op.next_stage, rest)
    e.set(op.next_parity, w.op("and.b32", "b32", w.op("xor.b32", "b32", wraps, parity), 1))


# ---- arrays
@emitter(tile.Dim)
def dim(e: Emitter, op: tile.Dim) -> None:
    """An extent, in 32 or 64 bits; of an array that the kernel made as it was given."""
    a, axis = e.array(op.arg), op.axis.value.data
    if isinstance(made := op.arg.owner, tile.MakeArray):
        given = e.integer(made.shape[axis])
        return e.set(op.result, (narrowed if bits(op.result.type) < 64 else wide)(e, given))
    if bits(op.result.type) < 64:
        e.set(op.result, a.extent(axis))
    else:
        e.set(op.result, a.long(axis) if a.long else wide(e, a.extent(axis)))


@emitter(tile.Stride)
def stride(e: Emitter, op: tile.Stride) -> None:
    """A stride in elements, in 32 or 64 bits."""
    n = e.array(op.arg).stride(op.axis.value.data)
    e.set(op.result, narrowed(e, n) if bits(op.result.type) == 32 else n)


@emitter(tile.Pointer)
def pointer(e: Emitter, op: tile.Pointer) -> None:
    """The address of an array's first element."""
    e.set(op.result, e.array(op.arg).pointer())


@emitter(tile.View)
def view(e: Emitter, op: tile.View) -> None:
    """Offsets are added where the view is used: one never used costs no parameter."""
    View(e, op).set()


Part = tuple[Integer, Range | None, Integer]


class View:
    """An array seen through indices and slices."""

    def __init__(self, e: Emitter, op: tile.View):
        self.e, self.op, self.array = e, op, e.array(op.array)
        offsets = iter([(e.integer(v), e.ranges.of(v)) for v in op.offsets])
        self.starts: list[tuple[int, Integer]] = []  # (axis of the array, first element)
        # axes of the array that stay, with the first element of those that are sliced, its range,
        # and the last element
        self.axes: list[tuple[int, Part | None]] = []
        for axis, kind in enumerate(k.data for k in op.kinds if isinstance(k, StringAttr)):
            part: Part | None = None
            if kind != "all":
                first, known = next(offsets)
                self.starts.append((axis, first))
                if kind == "slice":
                    part = first, known, next(offsets)[0]
            if kind != "index":
                self.axes.append((axis, part))

    def set(self) -> None:
        """Records the view as what the operation's result is."""
        a, memo = self.array, self.e.w.memo
        view = Array(
            a.element,
            array_type(self.op.result).facts,
            lambda: memo((self.op.result, "pointer"), self._pointer),
            lambda i: memo((self.op.result, i), lambda: self._extent(i)),
            lambda i: a.stride(self.axes[i][0]),
            long=self._long if a.long else None,
            near=a.near,
        )
        self.e.set(self.op.result, view)

    def _pointer(self) -> Integer:
        a = self.array
        p = a.pointer()
        for axis, first in self.starts:
            p = displaced(self.e, p, first, a.stride(axis), a.itemsize, a.near)
        return p

    def _extent(self, i: int) -> Integer:
        axis, part = self.axes[i]
        if part is None:
            return self.array.extent(axis)
        if self.array.long:
            return _clamped(self.e, self._long(i))
        return _part(self.e, self.array.extent(axis), *part)

    def _long(self, i: int) -> Integer:
        """An extent in 64 bits."""
        axis, part = self.axes[i]
        long = self.array.long
        assert long is not None

        def make() -> Integer:
            if part is None:
                return long(axis)
            first, _, stop = part
            return _long_part(self.e, long(axis), first, stop)

        return self.e.w.memo((self.op.result, i, "long"), make)


def _long_part(e: Emitter, extent: Integer, first: Integer, stop: Integer) -> Integer:
    """max(0, min(stop, extent) - first) in 64 bits."""
    if isinstance(extent, int) and isinstance(first, int) and isinstance(stop, int):
        return max(0, min(stop, extent) - first)
    w = e.w
    first, stop, extent = (w.register(wide(e, x), "b64") for x in (first, stop, extent))
    last = w.op("min.s64", "b64", stop, extent)
    return w.op("max.s64", "b64", w.op("sub.s64", "b64", last, first), 0)


def _clamped(e: Emitter, x: Integer) -> Integer:
    """An extent of 64 bits in 32, at most 2^31 - 1."""
    largest = 2**31 - 1
    if not isinstance(x, str):
        return min(x, largest)
    return e.w.op("cvt.u32.u64", "b32", e.w.op("min.s64", "b64", x, largest))


def _part(
    e: Emitter, extent: Integer, first: Integer, known: Range | None, stop: Integer
) -> Integer:
    """max(0, min(stop, extent) - first), for a first element of range `known`."""
    w = e.w
    if isinstance(stop, str) and stop.startswith("%d"):
        stop = w.op("cvt.u32.u64", "b32", w.op("min.s64", "b64", stop, wide(e, extent)))
    elif isinstance(stop, str):
        stop = w.op("min.s32", "b32", stop, extent)
    elif isinstance(extent, str):
        stop = w.op("min.s32", "b32", extent, stop)
    else:
        stop = min(stop, extent)
    first = saturated(e, first, known)
    if first == 0:
        return stop
    if not isinstance(stop, str) and not isinstance(first, str):
        return max(0, stop - first)
    return w.op("max.s32", "b32", w.op("sub.s32", "b32", stop, first), 0)


@emitter(tile.MakeArray)
def make_array(e: Emitter, op: tile.MakeArray) -> None:
    """An array from a pointer, extents and strides."""
    t, base = array_type(op.result), e.register(op.pointer)
    facts, sizes = t.facts.shape, [e.integer(v) for v in op.shape]
    strides = [
        wide(e, e.integer(v)) if fact.exact is None else fact.exact
        for fact, v in zip(t.facts.strides, op.strides, strict=True)
    ]

    def held(axis: int) -> Integer:
        """As wide as it is given; an array of fewer elements than none has none, too."""
        if (exact := facts[axis].exact) is not None:
            return exact
        x, known = sizes[axis], e.ranges.of(op.shape[axis])
        if known is not None and known.lo >= 0:
            return x
        if not isinstance(x, str):
            return max(x, 0)
        kind = "32" if is_narrow(x) else "64"
        return e.w.memo((op.result, axis, "held"), lambda: e.w.op(f"max.s{kind}", f"b{kind}", x, 0))

    def extent(axis: int) -> Integer:
        """In 32 bits, as many as these hold: it is compared with `long`."""
        x = held(axis)
        return x if is_narrow(x) else e.w.memo((op.result, axis), lambda: _clamped(e, x))

    long = None if all(map(is_narrow, sizes)) else lambda axis: wide(e, held(axis))
    made = Array(t.element, t.facts, lambda: base, extent, strides.__getitem__, long=long)
    e.set(op.result, made)


@emitter(shared.NoToken, shared.JoinTokens)
def no_token(e: Emitter, op: shared.NoToken | shared.JoinTokens) -> None:
    """Tokens order operations; they are no code."""
    e.set(op.results[0], None)
