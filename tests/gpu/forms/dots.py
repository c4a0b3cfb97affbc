"""Tensor cores: which element of a fragment is in which register, what a descriptor says, when a
sum is there. Matrices and words between registers and memory and lanes.
"""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np

from tests.gpu.forms.belief import belief, dump, fill, put, take
from tests.gpu.forms.tensor import image
from tkc.ir.fragments import (
    matrix_access,
    mma_a,
    mma_accumulator,
    mma_b,
    wgmma_a,
    wgmma_accumulator,
)
from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout

R = np.random.default_rng(7)
TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f32": np.float32,
    "s32": np.int32,
}
FENCE, COMMIT, WAIT = (
    "wgmma.fence.sync.aligned",
    "wgmma.commit_group.sync.aligned",
    "wgmma.wait_group.sync.aligned",
)


def zeros(*shape):
    return np.zeros(shape, np.uint32)


def whole(*shape, kind: str) -> np.ndarray:
    """Small integers, so that every sum is exact in every type."""
    return R.integers(0 if kind == "u8" else -3, 4, shape).astype(TYPES[kind])


def registers(values: np.ndarray, layout: Layout) -> np.ndarray:
    """[threads, words]: what each thread holds of a tile."""
    table = layout.table()  # [warps, lanes, registers, rank]
    held = values[tuple(np.moveaxis(table, -1, 0))]
    return np.ascontiguousarray(held).reshape(len(table) * 32, -1).view(np.uint32)


def take_row(first: int, array: int, count: int) -> str:
    """The thread's row of an array [threads, count] to the registers from %r`first` on."""
    return "".join(
        f"mad.lo.u32 %r0, %t, {count}, {i}; {take(f'%r{first + i}', array, '%r0')}\n"
        for i in range(count)
    )


def put_row(array: int, first: int, count: int) -> str:
    """The registers from %r`first` on to the thread's row of an array [threads, count]."""
    return "".join(
        f"mad.lo.u32 %r0, %t, {count}, {i}; {put(array, '%r0', f'%r{first + i}')}\n"
        for i in range(count)
    )


def bits_of(kind: str) -> int:
    return np.dtype(TYPES[kind]).itemsize * 8


# ---- mma.sync ------------------------------------------------------------------------------------
def mma(a: str, b: str, sums: str) -> None:
    k, s = 256 // bits_of(a), sums
    x, y, c = whole(16, k, kind=a), whole(k, 8, kind=b), whole(16, 8, kind=sums)
    exact = np.int64 if sums == "s32" else np.float64
    d = (x.astype(exact) @ y.astype(exact) + c.astype(exact)).astype(TYPES[sums])
    la, lb, lc = mma_a(16, k, bits=bits_of(a)), mma_b(k, 8, bits=bits_of(b)), mma_accumulator(16, 8)
    name, given = (
        f"mma.sync.aligned.m16n8k{k}.row.col.{s}.{a}.{b}.{s}",
        [registers(v, layout) for v, layout in ((x, la), (y, lb), (c, lc))],
    )
    na, nb, nc = (g.shape[1] for g in given)

    def group(first, n):
        return "{" + ", ".join(f"%r{first + i}" for i in range(n)) + "}"

    reads = "".join(
        f"mad.lo.u32 %r0, %t, {n}, {i}; {take(f'%r{first + i}', array, '%r0')}\n"
        for array, (first, n) in enumerate(((10, na), (20, nb), (30, nc)))
        for i in range(n)
    )
    writes = "".join(
        f"mad.lo.u32 %r0, %t, {nc}, {i}; {put(3, '%r0', f'%r{40 + i}')}\n" for i in range(nc)
    )
    belief(
        f"mma_of_{a}_and_{b}_in_{s}",
        f"{reads} {name} {group(40, nc)}, {group(10, na)}, {group(20, nb)},"
        f" {group(30, nc)};\n{writes}",
        [*given, given[2] * 0],
        [None, None, None, registers(d, lc)],
        [name],
    )


for a, b, s in (
    ("bf16", "bf16", "f32"),
    ("f16", "f16", "f32"),
    ("f16", "f16", "f16"),
    ("tf32", "tf32", "f32"),
    ("e4m3", "e4m3", "f32"),
    ("e5m2", "e5m2", "f32"),
    ("e4m3", "e5m2", "f32"),
    ("e5m2", "e4m3", "f32"),
    ("s8", "s8", "s32"),
    ("u8", "u8", "s32"),
    ("s8", "u8", "s32"),
    ("u8", "s8", "s32"),
):
    mma(a, b, s)


# ---- wgmma ---------------------------------------------------------------------------------------
def _adds(scale: str, step: int) -> str:
    """The operand that says whether an instruction adds to its accumulator."""
    if scale == "predicate" and step == 0:
        return "%p1"
    return str(int(scale != "first" or step > 0))


def _layout(shape: tuple[int, int], bits: int, swizzle: int, by_column: bool) -> SharedLayout:
    if by_column:
        return SharedLayout(shape, bits, swizzle, order=(0, 1))
    return SharedLayout(shape, bits, swizzle)


def wgmma(
    name: str,
    n: int,
    kind: str = "bf16",
    sums: str = "f32",
    b_kind: str = "",
    a_major: str = "k",
    b_major: str = "k",
    swizzle: int = 128,
    steps: int = 2,
    held: bool = False,
    scale: str = "first",
) -> None:
    """64 x n, over `steps` instructions of k.  scale: "first" starts from nothing although the
    registers are full, "keep" adds to them, "predicate" reads a predicate.
    """
    b_kind, bits = b_kind or kind, bits_of(kind)
    depth = 256 // bits
    k = steps * depth
    x, y, c = whole(64, k, kind=kind), whole(k, n, kind=b_kind), whole(64, n, kind=sums)
    exact = np.int64 if sums == "s32" else np.float64
    d = (x.astype(exact) @ y.astype(exact) + (c.astype(exact) if scale == "keep" else 0)).astype(
        TYPES[sums]
    )
    la = _layout((64, k), bits, swizzle, a_major != "k")
    lb = _layout((k, n), bits, swizzle, b_major == "k")
    acc, fa, fb = wgmma_accumulator(64, n), la.descriptor(a_major), lb.descriptor(b_major)
    start = -(-la.bytes // 1024) * 1024
    memory = np.zeros(start // 4 + -(-lb.bytes // 4), np.uint32)
    memory[: la.bytes // 4], memory[start // 4 :] = image(x, la)[: la.bytes // 4], image(y, lb)
    old, new = registers(c, acc), registers(d, acc)
    count, pieces = old.shape[1], registers(x, wgmma_a(64, k, bits=bits))
    few = pieces.shape[1] // steps
    into = "{" + ", ".join(f"%r{100 + i}" for i in range(count)) + "}"
    form = f"wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{sums}.{kind}.{b_kind}"
    signs = ", 1, 1" if sums != "s32" else ""
    majors = ""
    if bits == 16:
        majors = ("" if held else f", {int(a_major == 'mn')}") + f", {int(b_major == 'mn')}"
    lines = []
    for step in range(steps):
        used = _adds(scale, step)
        first = "%d1"
        if held:
            first = "{" + ", ".join(f"%r{40 + step * few + i}" for i in range(few)) + "}"
        else:
            lines.append(f"add.s64 %d1, %d10, {fa.k_offset(step) // 16};")
        lines.append(f"add.s64 %d2, %d11, {fb.k_offset(step) // 16};")
        lines.append(f"{form} {into}, {first}, %d2, {used}{signs}{majors};")
    given = take_row(40, 3, pieces.shape[1]) if held else ""
    belief(
        name,
        f"""
    {fill(len(memory), 128, array=0)}
    fence.proxy.async.shared::cta; bar.sync 0;
    {take_row(100, 1, count)} {given} setp.ne.u32 %p1, 0, 0;
    and.b32 %r1, %s, 0x3ffff; shr.u32 %r1, %r1, 4; cvt.u64.u32 %d10, %r1; add.u32 %r2, %s, {start};
    and.b32 %r2, %r2, 0x3ffff; shr.u32 %r2, %r2, 4; cvt.u64.u32 %d11, %r2;
    or.b64 %d10, %d10, {fa.bits}; or.b64 %d11, %d11, {fb.bits};
    {FENCE};
    {" ".join(lines)}
    {COMMIT}; {WAIT} 0;
    {put_row(2, 100, count)}""",
        [memory, old, old * 0, pieces],
        [None, None, new, None],
        [form, FENCE, COMMIT, WAIT],
        threads=128,
        shared=memory.nbytes,
    )


for n in (8, 24, 64, 96, 160, 256):
    wgmma(f"wgmma_of_width_{n}", n, scale="keep")
for kind, b_kind, sums in (
    ("f16", "", "f32"),
    ("f16", "", "f16"),
    ("tf32", "", "f32"),
    ("e4m3", "", "f32"),
    ("e5m2", "", "f32"),
    ("e4m3", "e5m2", "f32"),
    ("e5m2", "e4m3", "f32"),
    ("s8", "", "s32"),
    ("u8", "", "s32"),
    ("s8", "u8", "s32"),
    ("u8", "s8", "s32"),
    *((a, b, "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
):
    wgmma(
        f"wgmma_of_{kind}_{b_kind or kind}_in_{sums}", 64, kind, sums, b_kind, scale="keep", steps=4
    )
for swizzle in (16, 32, 64, 128):
    wgmma(f"wgmma_reads_swizzle_{swizzle}_along_k", 32, swizzle=swizzle, steps=8)
    wgmma(
        f"wgmma_reads_swizzle_{swizzle}_across",
        128,
        swizzle=swizzle,
        steps=4,
        a_major="mn",
        b_major="mn",
    )
    wgmma(f"wgmma_reads_swizzle_{swizzle}_of_8_bits", 32, "s8", "s32", swizzle=swizzle, steps=8)
    wgmma(f"wgmma_reads_swizzle_{swizzle}_of_32_bits", 32, "tf32", "f32", swizzle=swizzle, steps=8)
wgmma("wgmma_of_transposed_a_alone", 64, "f16", a_major="mn", steps=4)
wgmma("wgmma_of_transposed_b_alone", 64, "f16", b_major="mn", steps=4)
for kind, sums in (
    ("bf16", "f32"),
    ("f16", "f16"),
    ("tf32", "f32"),
    ("e4m3", "f32"),
    ("s8", "s32"),
):
    wgmma(f"wgmma_with_{kind}_in_registers", 64, kind, sums, held=True, scale="keep")
wgmma("wgmma_in_registers_and_transposed_b", 128, held=True, b_major="mn", steps=4)
wgmma("wgmma_reads_a_predicate_whether_to_add", 64, scale="predicate")

N = 64


def depth_of_groups() -> None:
    """Two groups; when one may be pending the first is there, and its operand's memory may be
    written again.
    """
    x, y = whole(64, 64, kind="bf16"), whole(64, N, kind="bf16")
    la, lb = SharedLayout((64, 64), 16, 128), SharedLayout((64, N), 16, 128, order=(0, 1))
    memory = np.concatenate([image(x, la), image(x * 2, la), image(y, lb)])
    d = registers(
        (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32), wgmma_accumulator(64, N)
    )
    twice = registers(
        (2 * x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32),
        wgmma_accumulator(64, N),
    )
    count, fa, fb = d.shape[1], la.descriptor("k"), lb.descriptor("k")
    form, many = f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16", 16

    def group(which: int, first: int) -> str:
        into = "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"
        one = "".join(
            f"add.s64 %d1, %d10, {which * 512 + fa.k_offset(s) // 16}; add.s64 %d2, %d11,"
            f" {fb.k_offset(s) // 16}; {form} {into}, %d1, %d2, {int(s > 0)}, 1, 1, 0, 0;\n"
            for s in range(4)
        )
        return one + f"{COMMIT};\n"

    # the second group is long: it starts again and again
    belief(
        "with_one_group_pending_the_one_before_is_there",
        f"""
    {fill(len(memory), 128, array=0)} fence.proxy.async.shared::cta; bar.sync 0;
    and.b32 %r1, %s, 0x3ffff; shr.u32 %r1, %r1, 4; cvt.u64.u32 %d10, %r1; add.s64 %d11, %d10, 1024;
    or.b64 %d10, %d10, {fa.bits}; or.b64 %d11, %d11, {fb.bits};
    {FENCE};
    {group(0, 100)} {group(1, 200).replace(COMMIT + ";", "") * many} {COMMIT};
    {WAIT} 1;
    {put_row(1, 100, count)}
    {fill(2048, 128, value="0x7fc07fc0")}
    {WAIT} 0;
    {put_row(2, 200, count)}""",
        [memory, d * 0, d * 0],
        [None, d, twice],
        [WAIT, COMMIT, FENCE, form],
        threads=128,
        shared=memory.nbytes,
    )


depth_of_groups()


# ---- ldmatrix and stmatrix -----------------------------------------------------------------------
def matrices(name: str, layout: Layout, shared: SharedLayout, bits: int = 16) -> None:
    """A tile from shared memory and back, as shared_memory.py plans it: addresses of lanes and
    registers of words come from the plan.
    """
    values = (
        (np.arange(prod(layout.shape)) % (1 << bits)).astype(f"u{bits // 8}").reshape(layout.shape)
    )
    held = registers(values, layout)
    memory, words = image(values, shared), held.shape[1]
    for storing in (False, True):
        plan = matrix_access(layout, shared, bits, storing)
        if plan is None:
            raise AssertionError(f"{name}: these layouts have no plan")
        at = np.ascontiguousarray(
            plan.addresses().swapaxes(1, 2).reshape(-1, plan.rows.shape[1])
        ).astype(np.uint32)  # [threads, instructions]
        opcode, trans = "stmatrix" if storing else "ldmatrix", ".trans" * plan.trans
        form = f"{opcode}.sync.aligned.m8n8.x{plan.count}{trans}.shared.b16"
        moves = ""
        for i, group in enumerate(plan.words):
            regs = "{" + ", ".join(f"%r{100 + word[0] * bits // 32}" for word in group) + "}"
            moves += (
                f"mad.lo.u32 %r0, %t, {at.shape[1]}, {i}; {take('%r1', 1, '%r0')} add.u32 %r1, %r1,"
                " %s; " + (f"{form} [%r1], {regs};\n" if storing else f"{form} {regs}, [%r1];\n")
            )
        threads = 32 * layout.num_warps

        def lists(move, array):
            return "".join(
                f"mad.lo.u32 %r0, %t, {words}, {i}; {move(array, '%r0', f'%r{100 + i}')}\n"
                for i in range(words)
            )

        if storing:
            body = (
                f"{fill(len(memory), threads, value='0')} bar.sync"
                f" 0;\n{lists(lambda a, i, r: take(r, a, i), 0)} {moves} bar.sync"
                f" 0;\n{dump(len(memory), threads, 2)}"
            )
        else:
            body = f"{fill(len(memory), threads, array=0)} bar.sync 0;\n{moves} {lists(put, 2)}"
        given, want = (held, memory) if storing else (memory, held)
        belief(
            f"{'stmatrix' if storing else 'ldmatrix'}_{name}",
            body,
            [given, at, want * 0],
            [None, None, want],
            [form],
            threads=threads,
            shared=memory.nbytes,
        )


matrices("x1", Layout.parse("8x8: 2:1@1 | 4:2@1 8:1@0 | -"), SharedLayout((8, 8), 16))
matrices(
    "x1_trans", Layout.parse("8x8: 2:1@1 | 4:2@1 8:1@0 | -"), SharedLayout((8, 8), 16, order=(0, 1))
)
matrices("x2", Layout.parse("16x8: 2:1@1 2:8@0 | 4:2@1 8:1@0 | -"), SharedLayout((16, 8), 16))
matrices("x2_trans", mma_accumulator(16, 8), SharedLayout((16, 8), 16, order=(0, 1)))
matrices("x4_of_a", mma_a(32, 32, 2, 1), SharedLayout((32, 32), 16, 64))
matrices("x4_of_b_turned", mma_b(32, 64, 1, 2), SharedLayout((32, 64), 16, 128))
matrices("x4_of_b", mma_b(32, 64, 1, 2), SharedLayout((32, 64), 16, 64, order=(0, 1)))
matrices("x4_of_an_accumulator", wgmma_accumulator(64, 64), SharedLayout((64, 64), 16, 128))
matrices(
    "x4_of_an_accumulator_turned",
    wgmma_accumulator(64, 64),
    SharedLayout((64, 64), 16, 128, order=(0, 1)),
)
matrices("x4_of_8_bits", mma_a(16, 64, bits=8), SharedLayout((16, 64), 8, 64), bits=8)


# ---- lanes ---------------------------------------------------------------------------------------
given = R.integers(0, 1 << 32, 64, dtype=np.uint32)
for mask in (1, 2, 4, 8, 16, 31):
    belief(
        f"shuffle_with_lanes_{mask}_off",
        f"{take('%r1', 0, '%t')} shfl.sync.bfly.b32 %r2, %r1, {mask}, 31, -1;"
        f" {put(1, '%t', '%r2')}",
        [given, zeros(64)],
        [given, given[np.arange(64) ^ mask]],
        ["shfl.sync.bfly.b32"],
        threads=64,
    )
for who in (None, 0, 31, 40):  # the thread that says no
    no = "setp.eq.u32 %p1, 0, 0;" if who is None else f"setp.ne.u32 %p1, %t, {who};"
    agreed = np.array([who is None or t // 32 != who // 32 for t in range(64)], np.uint32)
    belief(
        f"a_vote_of_all_but_{'nobody' if who is None else who}",
        f"{no} vote.sync.all.pred %p2, %p1, -1; selp.b32 %r1, 1, 0, %p2; {put(0, '%t', '%r1')}",
        [zeros(64) + 9],
        [agreed],
        ["vote.sync.all.pred"],
        threads=64,
    )
    belief(
        f"a_vote_of_the_block_but_{'nobody' if who is None else who}",
        f"{no} bar.red.and.pred %p2, 0, %p1; selp.b32 %r1, 1, 0, %p2; {put(0, '%t', '%r1')}",
        [zeros(64) + 9],
        [zeros(64) + (who is None)],
        ["bar.red.and.pred"],
        threads=64,
    )
for kind, function in {"add": np.add, "min": np.minimum, "max": np.maximum}.items():
    for t in (np.int32, np.uint32):
        together = function.reduce(given.view(t).reshape(2, 32), axis=1, dtype=t)
        opcode = f"redux.sync.{kind}.{'s' if t is np.int32 else 'u'}32"
        belief(
            f"{kind}_of_a_warp_{t.__name__}",
            f"{take('%r1', 0, '%t')} {opcode} %r2, %r1, -1; {put(1, '%t', '%r2')}",
            [given, zeros(64)],
            [given, np.repeat(together, 32).view(np.uint32)],
            [opcode],
            threads=64,
        )
belief(
    "xor_of_a_warp",
    f"{take('%r1', 0, '%t')} redux.sync.xor.b32 %r2, %r1, -1; {put(1, '%t', '%r2')}",
    [given, zeros(64)],
    [given, np.repeat(np.bitwise_xor.reduce(given.reshape(2, 32), axis=1), 32)],
    ["redux.sync.xor.b32"],
    threads=64,
)
chosen = R.integers(0, 32, 64, dtype=np.uint32)
belief(
    "shuffle_from_the_lane_that_each_names",
    f"{take('%r1', 0, '%t')} {take('%r3', 2, '%t')} shfl.sync.idx.b32 %r2, %r1, %r3, 31, -1;"
    f" {put(1, '%t', '%r2')}",
    [given, zeros(64), chosen],
    [given, given[np.arange(64) // 32 * 32 + chosen], chosen],
    ["shfl.sync.idx.b32"],
    threads=64,
)
