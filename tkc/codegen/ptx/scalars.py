"""Constants, program ids, extents and views of arrays: what gives scalars, and costs little or
nothing.
"""

from __future__ import annotations

from xdsl.ir import BlockArgument

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import Array, Tile, packing, registers_of, to_bits
from tkc.codegen.ptx.writer import Operand
from tkc.ir import shared, threads, tile
from tkc.ir.interface import Parameter
from tkc.ir.types import PointerType, TileType, bits, is_bool


# ---- integers with folding
# ------------------------------------------------------------------------------------------
def add(e: Emitter, a: Operand, b: Operand, type: str = "s32") -> Operand:
    """a + b; addresses and offsets: no wrapping to think of."""
    if not isinstance(a, str) and not isinstance(b, str):
        return a + b
    if a == 0 or b == 0:
        return b if a == 0 else a
    if not isinstance(a, str):
        a, b = b, a
    return e.w.op(f"add.{type}", "b64" if type[1:] == "64" else "b32", a, b)


def mul(e: Emitter, a: Operand, b: Operand, type: str = "s32") -> Operand:
    if not isinstance(a, str) and not isinstance(b, str):
        return a * b
    if not isinstance(a, str):
        a, b = b, a
    if not isinstance(b, str):
        if b == 0:
            return 0
        if b == 1:
            return a
        if b > 0 and b & b - 1 == 0:
            return e.w.op(
                f"shl.b{type[1:]}",
                "b64" if type[1:] == "64" else "b32",
                a,
                b.bit_length() - 1,
                type="u32",
            )
    return e.w.op(f"mul.lo.{type}", "b64" if type[1:] == "64" else "b32", a, b)


def wide(e: Emitter, x: Operand, unsigned: bool = False) -> Operand:
    """A 32-bit integer in 64 bits."""
    return (
        e.w.op("cvt.u64.u32" if unsigned else "cvt.s64.s32", "b64", x)
        if isinstance(x, str) and x.startswith("%r")
        else x
    )


def displaced(
    e: Emitter, base: Operand, index: Operand, scale: Operand, bytes: int = 1, near: bool = False
) -> Operand:
    """base + index * scale * bytes: base 64 bits, index 32 or 64 (signed), scale 64 bits or a
    number. near: 32 bits hold scale * bytes, or index is 0.
    """
    if (
        near
        and isinstance(scale, str)
        and isinstance(base, str)
        and isinstance(index, str)
        and index.startswith("%r")
    ):
        step = e.w.op("cvt.u32.u64", "b32", scale)
        return e.w.op(
            "mad.wide.s32",
            "b64",
            index,
            e.w.op("shl.b32", "b32", step, bytes.bit_length() - 1) if bytes > 1 else step,
            base,
        )
    if not isinstance(index, str) and not isinstance(scale, str):
        return add(e, base, index * scale * bytes, "s64")
    if not isinstance(index, str):
        return add(e, base, mul(e, scale, index * bytes, "s64"), "s64")
    narrow = index.startswith("%r")
    if not isinstance(scale, str):
        step = scale * bytes
        if step == 0:
            return base
        if narrow and abs(step) < 1 << 31 and isinstance(base, str):
            return e.w.op("mad.wide.s32", "b64", index, step, base)
        return add(e, base, mul(e, wide(e, index), step, "s64"), "s64")
    step = mul(e, scale, bytes, "s64")
    return e.w.op("mad.lo.s64", "b64", wide(e, index), step, base)


# ---- constants and ids
# ----------------------------------------------------------------------------------------------
@emitter(tile.Constant)
def constant(e: Emitter, op: tile.Constant) -> None:
    t, n = op.result.type, op.number
    if not isinstance(t, TileType):
        return e.set(op.result, bool(n) if is_bool(t) else n)
    e.set(op.result, splat_constant(t, n))


def splat_constant(t: TileType, n: int | float) -> Tile:
    kind, count = registers_of(t)
    if kind == "pred":
        return Tile.of(t, [bool(n)] * count)
    raw, p = to_bits(n, t.element), packing(t.element, t.register_layout.num_registers)
    return Tile.of(t, [sum(raw << i * bits(t.element) for i in range(p))] * count)


@emitter(tile.ProgramId)
def program_id(e: Emitter, op: tile.ProgramId) -> None:
    if e.persistent:
        e.fail(
            "a persistent kernel has no program id of its own at level 4: its programs are those of"
            " the loop over them"
        )
    e.set(
        op.result,
        e.special(
            f"%{'cluster' if 'spread' in e.kernel.attributes else 'cta'}id.{'xyz'[op.axis.value.data]}"
        ),
    )


@emitter(tile.NumPrograms)
def num_programs(e: Emitter, op: tile.NumPrograms) -> None:
    e.set(op.result, e.parameter(Parameter("grid", "u32", axis=op.axis.value.data)))


@emitter(threads.Identity)
def identity(e: Emitter, op: threads.Identity) -> None:
    match op.what.data:
        case "thread":
            e.set(op.result, e.thread())
        case "warp":
            e.set(op.result, e.warp())
        case "block":
            e.set(op.result, e.special("%ctaid.x"))
        case "blocks":
            e.set(op.result, e.special("%nctaid.x"))
        case "cluster":
            e.set(
                op.result,
                e.special("%clusterid.x") if e.cluster != (1, 1) else e.special("%ctaid.x"),
            )
        case "clusters":
            e.set(
                op.result,
                e.special("%nclusterid.x") if e.cluster != (1, 1) else e.special("%nctaid.x"),
            )
        case "cluster_rank":
            e.set(op.result, e.special("%cluster_ctarank") if e.cluster != (1, 1) else 0)


@emitter(tile.Multiple)
def multiple(e: Emitter, op: tile.Multiple) -> None:
    e.set(op.result, e.value(op.arg))
    if e.debug:
        promised_multiple(e, op)


def promised_multiple(e: Emitter, op: tile.Multiple) -> None:
    from tkc.codegen.ptx.traps import check

    n, t = op.divisor.value.data, op.arg.type
    if isinstance(t, (TileType, PointerType)):
        return  # their accesses are checked
    x = e.operand(op.arg)
    if isinstance(x, str):
        check(
            e,
            e.w.op(
                f"setp.ne.s{bits(t)}" if bits(t) == 64 else "setp.ne.s32",
                "pred",
                remainder(e, x, n, bits(t) == 64),
                0,
            ),
            f"expected a multiple of {n}, as tkc.multiple_of or the arguments it was compiled for"
            " promised, got {0}",
            x,
        )


def remainder(e: Emitter, x: str, n: int, long: bool) -> str:
    if long:
        return (
            e.w.op("and.b64", "b64", x, n - 1) if n & n - 1 == 0 else e.w.op("rem.s64", "b64", x, n)
        )
    return e.w.op("and.b32", "b32", x, n - 1) if n & n - 1 == 0 else e.w.op("rem.s32", "b32", x, n)


@emitter(tile.Assume)
def assume(e: Emitter, op: tile.Assume) -> None:
    """A promise is no code; TKC_DEBUG=1 looks whether it is kept."""
    if not e.debug:
        return
    from tkc.codegen.ptx.traps import check

    held = e.operand(op.condition)
    check(
        e,
        e.w.op("not.pred", "pred", held) if isinstance(held, str) else not held,
        "what tkc.assume promised does not hold",
    )


@emitter(tile.Return)
def finish(e: Emitter, op: tile.Return) -> None:
    e.w.emit("ret")


def _fewer(op: threads.RingNext, steps: str | int, stages: int) -> bool:
    """Whether a ring goes on by fewer steps than it has stages, so that it wraps once at most: a
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
    stage, parity, steps = (
        e.operand(op.stage),
        e.operand(op.parity),
        1 if op.steps is None else e.operand(op.steps),
    )

    def flip(by):
        return (
            parity ^ by
            if not isinstance(parity, str) and not isinstance(by, str)
            else w.op(
                "xor.b32", "b32", parity if isinstance(parity, str) else w.register(parity), by
            )
        )

    if not isinstance(steps, str) and steps % n == 0:
        e.set(op.next_stage, stage)
        return e.set(op.next_parity, flip(1) if steps // n & 1 else parity)
    total = add(e, stage, steps)
    if not isinstance(total, str):
        wraps, rest = divmod(total, n)
        e.set(op.next_stage, rest)
        return e.set(op.next_parity, flip(1) if wraps & 1 else parity)
    if n & n - 1 and _fewer(op, steps, n):
        wrap = (
            w.op("setp.eq.s32", "pred", total, n)
            if steps == 1
            else w.op("setp.ge.s32", "pred", total, n)
        )
        e.set(
            op.next_stage,
            w.op(
                "selp.b32",
                "b32",
                0 if steps == 1 else w.op("sub.s32", "b32", total, n),
                total,
                wrap,
            ),
        )
        return e.set(op.next_parity, flip(w.op("selp.b32", "b32", 1, 0, wrap)))
    if n & n - 1 == 0:
        wraps, rest = (
            w.op("shr.u32", "b32", total, n.bit_length() - 1),
            w.op("and.b32", "b32", total, n - 1),
        )
    else:
        wraps = w.op("div.u32", "b32", total, n)
        rest = w.op("sub.s32", "b32", total, w.op("mul.lo.s32", "b32", wraps, n))
    e.set(op.next_stage, rest)
    e.set(op.next_parity, w.op("and.b32", "b32", w.op("xor.b32", "b32", wraps, parity), 1))


# ---- arrays
# --------------------------------------------------------------------------------------------------
@emitter(tile.Dim)
def dim(e: Emitter, op: tile.Dim) -> None:
    a, axis = e.value(op.arg), op.axis.value.data
    e.set(
        op.result,
        (
            a.extent(axis)
            if bits(op.result.type) < 64
            else a.long(axis)
            if a.long
            else wide(e, a.extent(axis))
        ),
    )


@emitter(tile.Stride)
def stride(e: Emitter, op: tile.Stride) -> None:
    n = e.value(op.arg).stride(op.axis.value.data)
    e.set(
        op.result,
        e.w.op("cvt.u32.u64", "b32", n) if isinstance(n, str) and bits(op.result.type) == 32 else n,
    )


@emitter(tile.Pointer)
def pointer(e: Emitter, op: tile.Pointer) -> None:
    e.set(op.result, e.value(op.arg).pointer())


@emitter(tile.View)
def view(e: Emitter, op: tile.View) -> None:
    """Offsets are added where the view is used: one never used costs no parameter."""
    a, offsets, key = e.value(op.array), list(op.offsets), op.result
    starts, axes, extents, longs = (
        [],
        [],
        [],
        [],
    )  # (axis, operand); axes that stay; their extents; those of wide arrays in 64 bits
    for axis, kind in enumerate(k.data for k in op.kinds):
        if kind == "index":
            starts.append((axis, e.operand(offsets.pop(0))))
            continue
        axes.append(axis)
        if kind == "slice":
            first, stop = e.operand(offsets.pop(0)), e.operand(offsets.pop(0))
            starts.append((axis, first))
            longs.append(
                lambda axis=axis, first=first, stop=stop: _long_part(e, a.long(axis), first, stop)
            )
            if a.long:
                extents.append(
                    lambda i=len(longs) - 1: _clamped(e, e.w.memo((key, i, "long"), longs[i]))
                )
            else:
                extents.append(
                    lambda axis=axis, first=first, stop=stop: _part(e, a.extent(axis), first, stop)
                )
        else:
            extents.append(lambda axis=axis: a.extent(axis))
            longs.append(lambda axis=axis: a.long(axis))

    def base() -> Operand:
        p = a.pointer()
        for axis, first in starts:
            p = displaced(e, p, first, a.stride(axis), a.itemsize, a.near)
        return p

    e.set(
        op.result,
        Array(
            a.element,
            op.result.type.facts,
            lambda: e.w.memo((key, "pointer"), base),
            lambda i: e.w.memo((key, i), extents[i]),
            lambda i: a.stride(axes[i]),
            long=(lambda i: e.w.memo((key, i, "long"), longs[i])) if a.long else None,
            near=a.near,
        ),
    )


def _long_part(e: Emitter, extent: Operand, first: Operand, stop: Operand) -> Operand:
    """max(0, min(stop, extent) - first) in 64 bits."""
    if not any(isinstance(x, str) for x in (extent, first, stop)):
        return max(0, min(stop, extent) - first)
    first, stop, extent = (e.w.register(wide(e, x), "b64") for x in (first, stop, extent))
    return e.w.op(
        "max.s64", "b64", e.w.op("sub.s64", "b64", e.w.op("min.s64", "b64", stop, extent), first), 0
    )


def _clamped(e: Emitter, x: Operand) -> Operand:
    """An extent of 64 bits in 32, at most 2^31 - 1."""
    return (
        e.w.op("cvt.u32.u64", "b32", e.w.op("min.s64", "b64", x, 2**31 - 1))
        if isinstance(x, str)
        else min(x, 2**31 - 1)
    )


def _part(e: Emitter, extent: Operand, first: Operand, stop: Operand) -> Operand:
    """max(0, min(stop, extent) - first)."""
    w = e.w
    if isinstance(stop, str) and stop.startswith("%d"):
        stop = w.op("cvt.u32.u64", "b32", w.op("min.s64", "b64", stop, wide(e, extent)))
    elif not isinstance(stop, str) and not isinstance(extent, str):
        stop = min(stop, extent)
    else:
        stop = w.op(
            "min.s32", "b32", *((stop, extent) if isinstance(stop, str) else (extent, stop))
        )
    first = narrowed(e, first)
    if first == 0:
        return stop
    if not isinstance(stop, str) and not isinstance(first, str):
        return max(0, stop - first)
    return w.op("max.s32", "b32", w.op("sub.s32", "b32", stop, first), 0)


def narrowed(e: Emitter, x: Operand) -> Operand:
    """A 64-bit integer that is known to fit as 32 bits."""
    return e.w.op("cvt.u32.u64", "b32", x) if isinstance(x, str) and x.startswith("%d") else x


@emitter(tile.MakeArray)
def make_array(e: Emitter, op: tile.MakeArray) -> None:
    facts = op.result.type.facts

    def known(fact, value):
        return fact.exact if fact.exact is not None else value

    shape = [
        known(f, narrowed(e, e.operand(s))) for f, s in zip(facts.shape, op.shape, strict=False)
    ]
    strides = [
        known(f, wide(e, e.operand(s))) for f, s in zip(facts.strides, op.strides, strict=False)
    ]
    base = e.register(op.pointer)
    e.set(
        op.result,
        Array(op.result.type.element, facts, lambda: base, shape.__getitem__, strides.__getitem__),
    )


@emitter(shared.NoToken, shared.JoinTokens)
def no_token(e: Emitter, op) -> None:
    e.set(op.results[0], None)
