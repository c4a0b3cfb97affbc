"""Atomic updates: none is lost, each gives back a value that stood there once, in every type and
scope; what red does, atom does.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.gpu.forms.belief import belief, put

THREADS, BLOCKS = 128, 8
N = THREADS * BLOCKS
MAY = {
    "add": lambda a, b: a + b,
    "max": max,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
KINDS = {
    "s32": np.int32,
    "u32": np.uint32,
    "s64": np.int64,
    "u64": np.uint64,
    "b32": np.uint32,
    "b64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
}
FORMS = (
    [f"add.{t}" for t in ("s32", "u32", "u64", "f32", "f64", "noftz.f16", "noftz.bf16")]
    + [f"{k}.{t}" for k in ("max", "min") for t in ("s32", "u32", "s64", "u64")]
    + [f"{k}.{t}" for k in ("and", "or", "xor") for t in ("b32", "b64")]
)


def operand(kind: str, t: str, width: int) -> tuple[str, list]:
    """PTX that puts a thread's operand in %x, from its number in %n, and those operands.  Numbers
    lie on both sides of zero where the type has a sign; 16-bit floats are exact up to 256: every
    eighth thread adds.
    """
    if t in ("f16", "bf16"):
        one = int(np.float16(1).view(np.uint16)) if t == "f16" else 0x3F80
        return (
            (
                f"and.b32 %r1, %n, 7; setp.eq.u32 %p0, %r1, 0; selp.b32 %r1, {one}, 0, %p0;"
                " cvt.u16.u32 %h0, %r1;"
            ),
            [float(n % 8 == 0) for n in range(N)],
        )
    if t[0] == "f":
        return f"cvt.rn.{t}.u32 %x, %n;", [float(n) for n in range(N)]
    if kind in ("and", "or", "xor"):  # one bit each
        bits = width
        if kind == "and":
            return (
                (
                    f"rem.u32 %r1, %n, {bits}; mov.b{width} %x, 1; shl.b{width} %x, %x, %r1;"
                    f" not.b{width} %x, %x;"
                ),
                [(1 << bits) - 1 - (1 << n % bits) for n in range(0, N)],
            )
        return f"rem.u32 %r1, %n, {bits}; mov.b{width} %x, 1; shl.b{width} %x, %x, %r1;", [
            1 << n % bits for n in range(N)
        ]
    wide = "cvt.u64.u32 %x, %n;" if width == 64 else "mov.b32 %x, %n;"
    if t[0] == "s" and kind != "add":
        return f"{wide} sub.s{width} %x, %x, {N // 2};", [n - N // 2 for n in range(N)]
    return wide, list(range(N))


def start(kind: str, t: str):
    if kind == "and":
        return (1 << np.dtype(KINDS[t]).itemsize * 8) - 1
    return {"max": -(1 << 30) if t[0] == "s" else 0, "min": (1 << 31) - 1}.get(kind, 0)


def update(form: str, scope: str, returns: bool) -> None:
    kind, t = form.split(".")[0], form.split(".")[-1]
    dtype = np.dtype(KINDS[t])
    width = dtype.itemsize * 8
    text, values = operand(kind, t, width)
    total = first = start(kind, t)
    for v in values:
        total = MAY[kind](total, v)
    x = "%h0" if width == 16 else "%x"
    old = "%h1" if width == 16 else "%old"
    name = f"{'atom' if returns else 'red'}.relaxed.{scope}.global.{form}"
    one = f"{name} {old}, [%a0], {x};" if returns else f"{name} [%a0], {x};"
    keep = (
        ""
        if not returns
        else (
            f"{{ .reg .b64 %at; mad.wide.u32 %at, %n, {width // 8}, %a1; st.global.b{width} [%at],"
            f" {old}; }}"
        )
    )
    cell, came = np.array([first], object).astype(dtype), np.zeros(N if returns else 1, dtype)

    def from_the_chain(got: np.ndarray) -> str | None:
        """Old values are those of some order of the updates: each old value, with its update, is
        another's old value or the last.
        """
        if t in ("f16", "bf16", "f32", "f64"):
            seen, given = got.astype(np.float64).tolist(), values
        else:
            seen, given = [int(v) for v in got], values
        after = sorted([MAY[kind](o, v) for o, v in zip(seen, given, strict=False)] + [first])
        return (
            None
            if after == sorted([*seen, total])
            else "the old values are of no order of the updates"
        )

    kinds = [np.array([total], object).astype(dtype), from_the_chain if returns else None]
    size = 64 if width == 64 else 32
    belief(
        f"{'atom' if returns else 'red'}_{form.replace('.', '_')}_{scope}",
        f"""
    {{ .reg .b32 %n; .reg .b{size} %x, %old; mad.lo.u32 %n, %block, {THREADS}, %t;
    {text} {one} {keep} }}""",
        [cell, came],
        kinds,
        [name],
        threads=THREADS,
        blocks=BLOCKS,
    )


for form in FORMS:
    for returns in (False, True):
        update(form, "gpu", returns)
for scope in ("cta", "sys"):
    for form in ("add.u32", "add.f32", "max.s64", "xor.b32"):
        for returns in (False, True):
            if scope == "sys":
                update(form, scope, returns)

for width in (32, 64):
    for scope in ("gpu", "sys"):
        dtype = np.uint32 if width == 32 else np.uint64
        wide = "mov.b32 %x, %n;" if width == 32 else "cvt.u64.u32 %x, %n;"

        def a_permutation(got: np.ndarray) -> str | None:
            return None if len(set(got.tolist())) == N + 1 else "a value was lost or came twice"

        belief(
            f"exchange_b{width}_{scope}",
            f"""
        {{ .reg .b32 %n; .reg .b{width} %x, %old; mad.lo.u32 %n, %block, {THREADS}, %t; {
                wide
            } add.u{width} %x, %x, 1; atom.relaxed.{scope}.global.exch.b{width} %old, [%a0], %x; {
                put(0, "%x", "%old", width)
                if width == 32
                else "{ .reg .b64 %at; mad.lo.u64 %at, %x, 8, %a0; st.global.b64 [%at], %old; }"
            } }}""",
            [np.zeros(N + 1, dtype)],
            [a_permutation],
            [f"atom.relaxed.{scope}.global.exch.b{width}"],
            threads=THREADS,
            blocks=BLOCKS,
        )
        # as atomics.py makes what has no instruction: swap until nobody came between; a maximum of
        # floats, none of which may get lost
        belief(
            f"compare_and_swap_b{width}_{scope}",
            f"""
        {{ .reg .b32 %n; .reg .b{width} %x, %old, %seen, %new; .reg .pred %lost;
        mad.lo.u32 %n, %block, {THREADS}, %t; {wide}
        ld.relaxed.{scope}.global.b{width} %old, [%a0];
AGAIN: add.u{width} %new, %old, %x;
atom.relaxed.{scope}.global.cas.b{width} %seen, [%a0], %old, %new;
setp.ne.b{width} %lost, %seen, %old; mov.b{width} %old, %seen; @%lost bra AGAIN; }}""",
            [np.zeros(1, dtype)],
            [np.array([N * (N - 1) // 2], dtype)],
            [f"atom.relaxed.{scope}.global.cas.b{width}", f"ld.relaxed.{scope}.global.b{width}"],
            threads=THREADS,
            blocks=BLOCKS,
        )

# neighbouring elements of 16 bits at once: every eighth thread adds 1 to the first of them, the
# others 0, and all threads of a block 1 / 128 to the last
for element, one, part in (("f16", 0x3C00, 0x2000), ("bf16", 0x3F80, 0x3C00)):
    for pairs in (1, 2, 4):
        wide = f".v{pairs}" if pairs > 1 else ""
        name = f"red.relaxed.gpu.global.add.noftz{wide}.{element}x2"
        registers = [f"%r{3 + i}" for i in range(pairs)]
        fill = " ".join(f"mov.b32 {r}, 0;" for r in registers[1:])
        source = registers[0] if pairs == 1 else f"{{{', '.join(registers)}}}"
        expected = np.zeros((BLOCKS, 2 * pairs), KINDS[element])
        expected[:, 0], expected[:, -1] = THREADS // 8, 1
        belief(
            f"red_packed_{element}x2_{pairs}",
            f"""and.b32 %r1, %t, 7; setp.eq.u32 %p0, %r1, 0; selp.b32 %r3, {one}, 0, %p0; {fill}
            or.b32 {registers[-1]}, {registers[-1]}, {part << 16};
            mad.wide.u32 %d1, %block, {4 * pairs}, %a0; {name} [%d1], {source};""",
            [np.zeros((BLOCKS, 2 * pairs), KINDS[element]).reshape(-1)],
            [expected.reshape(-1)],
            [name],
            threads=THREADS,
            blocks=BLOCKS,
        )

# neighbouring elements of 32 bits at once, in the same way
for count in (2, 4):
    name = f"red.relaxed.gpu.global.add.v{count}.f32"
    registers = [f"%r{3 + i}" for i in range(count)]
    fill = " ".join(f"mov.b32 {r}, 0;" for r in registers[1:-1])
    expected = np.zeros((BLOCKS, count), np.float32)
    expected[:, 0], expected[:, -1] = THREADS // 8, THREADS
    belief(
        f"red_neighbours_f32_{count}",
        f"""and.b32 %r1, %t, 7; setp.eq.u32 %p0, %r1, 0; selp.b32 %r3, 0x3F800000, 0, %p0; {fill}
        mov.b32 {registers[-1]}, 0x3F800000;
        mad.wide.u32 %d1, %block, {4 * count}, %a0; {name} [%d1], {{{", ".join(registers)}}};""",
        [np.zeros(BLOCKS * count, np.float32)],
        [expected.reshape(-1)],
        [name],
        threads=THREADS,
        blocks=BLOCKS,
    )

# of the block: each block has a cell of its own
for form in ("add.s32", "add.u32", "add.f32"):
    t = form.split(".")[1]
    dtype = KINDS[t]
    for returns in (False, True):
        name = f"{'atom' if returns else 'red'}.relaxed.cta.global.{form}"
        value = "mov.b32 %r2, %t;" if t != "f32" else "cvt.rn.f32.u32 %r2, %t;"
        belief(
            f"{'atom' if returns else 'red'}_{form.replace('.', '_')}_cta",
            f"{value} mad.wide.u32 %d1, %block, 4, %a0; {name} {'%r1, ' if returns else ''}[%d1],"
            " %r2;",
            [np.zeros(BLOCKS, dtype)],
            [np.full(BLOCKS, THREADS * (THREADS - 1) // 2, dtype)],
            [name],
            threads=THREADS,
            blocks=BLOCKS,
        )
for width in (32, 64):
    dtype = np.uint32 if width == 32 else np.uint64
    belief(
        f"compare_and_swap_b{width}_cta",
        f"""
    {{ .reg .b{width} %x, %old, %seen, %new; .reg .pred %lost;
    {"mov.b32 %x, %t;" if width == 32 else "cvt.u64.u32 %x, %t;"}
    mad.wide.u32 %d1, %block, {width // 8}, %a0;
    ld.relaxed.cta.global.b{width} %old, [%d1];
AGAIN: add.u{width} %new, %old, %x; atom.relaxed.cta.global.cas.b{width} %seen, [%d1], %old, %new;
setp.ne.b{width} %lost, %seen, %old; mov.b{width} %old, %seen; @%lost bra AGAIN; }}""",
        [np.zeros(BLOCKS, dtype)],
        [np.full(BLOCKS, THREADS * (THREADS - 1) // 2, dtype)],
        [f"atom.relaxed.cta.global.cas.b{width}", f"ld.relaxed.cta.global.b{width}"],
        threads=THREADS,
        blocks=BLOCKS,
    )

# as programs are claimed: the counter wraps after its limit, so that as many claims as there are
# programs leave it zero
for limit in (N - 1, 99):
    order = sorted(n % (limit + 1) for n in range(N))
    belief(
        f"a_counter_wraps_after_{limit}",
        f"mad.lo.u32 %r1, %block, {THREADS}, %t; atom.relaxed.gpu.global.inc.u32 %r2, [%a0],"
        f" {limit}; {put(1, '%r1', '%r2')}",
        [np.zeros(1, np.uint32), np.zeros(N, np.uint32)],
        [
            np.array([N % (limit + 1)], np.uint32),
            lambda got, order=order: (
                None if sorted(got.tolist()) == order else "a number was left out or came twice"
            ),
        ],
        ["atom.relaxed.gpu.global.inc.u32"],
        threads=THREADS,
        blocks=BLOCKS,
    )

belief(
    "counting_in_shared_memory",
    f"""
    mov.b32 %r1, 0; and.b32 %r2, %t, 7; mad.lo.u32 %r3, %r2, 4, %s; st.shared.b32 [%r3], %r1;
    bar.sync 0; red.relaxed.cta.shared.add.u32 [%r3], 1; bar.sync 0;
    setp.lt.u32 %p0, %t, 8; @!%p0 bra END; ld.shared.b32 %r4, [%r3]; {put(0, "%t", "%r4")}""",
    [np.zeros(8, np.uint32)],
    [np.full(8, THREADS // 8, np.uint32)],
    ["red.relaxed.cta.shared.add.u32"],
    threads=THREADS,
    shared=64,
)
