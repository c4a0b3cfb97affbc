"""Barriers of threads, of warps, of clusters; fences; loads and stores that order; the producer's
and the consumers' registers.
"""

from __future__ import annotations

import numpy as np

from tests.gpu.forms.belief import NANOSECONDS, belief, dump, fill, pause, put, take
from tests.gpu.forms.belief import loop as repeat


def zeros(*shape):
    return np.zeros(shape, np.uint32)


ROUNDS = 50

belief(
    "all_threads_of_a_block_meet",
    f"""
    mov.u32 %r3, 0; add.u32 %r1, %t, 32; and.b32 %r1, %r1, 255;
    {
        repeat(
            "%r4",
            ROUNDS,
            '''add.u32 %r5, %warp, %r4; and.b32 %r5, %r5, 7; mul.wide.u32 %d1, %r5, 500;''',
            pause("%d1"),
            '''
    mad.lo.u32 %r6, %t, 4, %s; mad.lo.u32 %r7, %r4, 256, %t; st.shared.b32 [%r6], %r7; bar.sync 0;
    mad.lo.u32 %r6, %r1, 4, %s; mad.lo.u32 %r7, %r4, 256, %r1; ld.shared.b32 %r8, [%r6];
    setp.ne.u32 %p1, %r7, %r8; @%p1 add.u32 %r3, %r3, 1; bar.sync 0;''',
        )
    }
    {put(0, "%t", "%r3")}""",
    [zeros(256) + 9],
    [zeros(256)],
    ["bar.sync"],
    threads=256,
    shared=1024,
)

belief(
    "groups_meet_on_barriers_of_their_own",
    f"""
    // the second group meets five times before the first group comes to its barrier at all
    shr.u32 %r1, %t, 7; add.u32 %r2, %r1, 1; mov.u32 %r3, 0; setp.eq.u32 %p0, %r1, 0;
    @!%p0 bra FREE;
    {pause(200_000)}
FREE:
    {
        repeat(
            "%r4",
            5,
            '''and.b32 %r5, %warp, 3; mul.wide.u32 %d1, %r5, 2000;''',
            pause("%d1"),
            '''
    mad.lo.u32 %r6, %t, 4, %s; mad.lo.u32 %r7, %r4, 256, %t; st.shared.b32 [%r6], %r7;
    bar.sync %r2, 128;
    xor.b32 %r8, %t, 96; mad.lo.u32 %r6, %r8, 4, %s; mad.lo.u32 %r7, %r4, 256, %r8;
    ld.shared.b32 %r9, [%r6]; setp.ne.u32 %p1, %r7, %r9; @%p1 add.u32 %r3, %r3, 1;
    bar.sync %r2, 128;''',
        )
    }
    {put(0, "%t", "%r3")} mov.u64 %d2, {NANOSECONDS}; {put(1, "%t", "%d2", 64)}""",
    [zeros(256) + 9, np.zeros(256, np.uint64)],
    [
        zeros(256),
        lambda t: (
            None if t[128:].max() < t[:128].min() else "the second group waited for the first"
        ),
    ],
    ["bar.sync"],
    threads=256,
    shared=1024,
)

belief(
    "an_arrival_counts_and_does_not_wait",
    f"""
    // 64 threads arrive at once and go on; 64 others come 200 us later, and find what was written
    // before the arrivals
    setp.ge.u32 %p0, %t, 64; @%p0 bra LATE;
    mad.lo.u32 %r1, %t, 4, %s; add.u32 %r2, %t, 500; st.shared.b32 [%r1], %r2; bar.arrive 3, 128;
    mov.u64 %d1, {NANOSECONDS}; {put(0, "%t", "%d1", 64)} bra END;
LATE:
    {pause(200_000)} mov.u64 %d1, {NANOSECONDS}; bar.sync 3, 128;
    {put(0, "%t", "%d1", 64)} mad.lo.u32 %r1, %t, 4, %s; ld.shared.b32 %r2, [%r1+-256];
    {put(1, "%t", "%r2")}""",
    [np.zeros(128, np.uint64), zeros(128)],
    [
        lambda t: None if t[:64].max() < t[64:].min() else "the threads that arrived waited",
        np.concatenate([zeros(64), np.arange(500, 564, dtype=np.uint32)]),
    ],
    ["bar.arrive", "bar.sync"],
    threads=128,
    shared=512,
)

belief(
    "who_meets_waits_for_those_who_only_arrive",
    f"""
    mov.u32 %r3, 0; setp.ge.u32 %p0, %t, 64; @%p0 bra WAITING;
    {
        repeat(
            "%r4",
            ROUNDS,
            pause(3000),
            "mad.lo.u32 %r1, %t, 4, %s; mad.lo.u32 %r2, %r4, 64, %t; st.shared.b32 [%r1], %r2;",
            "bar.arrive 3, 128; bar.sync 4, 128;",
        )
    }
    bra END;
WAITING:
    {
        repeat(
            "%r4",
            ROUNDS,
            "bar.sync 3, 128; mad.lo.u32 %r1, %t, 4, %s; mad.lo.u32 %r2, %r4, 64, %t;",
            "sub.u32 %r2, %r2, 64; ld.shared.b32 %r5, [%r1+-256];",
            "setp.ne.u32 %p1, %r5, %r2; @%p1 add.u32 %r3, %r3, 1;",
            "bar.arrive 4, 128;",
        )
    }
    {put(0, "%t", "%r3")}""",
    [zeros(128)],
    [zeros(128)],
    ["bar.arrive", "bar.sync"],
    threads=128,
    shared=512,
)

belief(
    "two_warpgroups_take_turns",
    f"""
    // as tile.turn: barrier 1 + group is waited for, the other one is arrived at; a counter says
    // who came when
    shr.u32 %r1, %warp, 2; setp.eq.u32 %p0, %r1, 1; @%p0 bar.arrive 1, 256; add.u32 %r2, %r1, 1;
    sub.u32 %r3, 2, %r1; and.b32 %r4, %t, 127; setp.eq.u32 %p1, %r4, 0;
    {
        repeat(
            "%r5",
            ROUNDS,
            "bar.sync %r2, 256; @!%p1 bra PART;",
            "atom.relaxed.gpu.global.add.u32 %r6, [%a0], 1;",
            put(1, "%r6", "%r1"),
            "PART:",
            pause(500),
            "bar.arrive %r3, 256;",
        )
    }
    setp.eq.u32 %p0, %r1, 0; @%p0 bar.sync 1, 256;""",
    [zeros(1), zeros(2 * ROUNDS) + 9],
    [zeros(1) + 2 * ROUNDS, np.tile(np.array([0, 1], np.uint32), ROUNDS)],
    ["bar.arrive", "bar.sync"],
    threads=256,
)

belief(
    "lanes_meet_after_they_parted",
    f"""
    mov.u32 %r3, 0;
    {
        repeat(
            "%r4",
            ROUNDS,
            "add.u32 %r5, %lane, %r4; and.b32 %r5, %r5, 7; mul.wide.u32 %d1, %r5, 100;",
            pause("%d1"),
            '''
    mad.lo.u32 %r6, %t, 4, %s; mad.lo.u32 %r7, %r4, 64, %t; st.shared.b32 [%r6], %r7;
    bar.warp.sync -1;
    xor.b32 %r8, %t, 21; mad.lo.u32 %r6, %r8, 4, %s; mad.lo.u32 %r7, %r4, 64, %r8;
    ld.shared.b32 %r9, [%r6]; setp.ne.u32 %p1, %r7, %r9; @%p1 add.u32 %r3, %r3, 1;
    bar.warp.sync -1;''',
        )
    }
    {put(0, "%t", "%r3")}""",
    [zeros(64) + 9],
    [zeros(64)],
    ["bar.warp.sync"],
    threads=64,
    shared=256,
)

belief(
    "one_lane_is_elected",
    f"""
    mov.u32 %r1, 0; elect.sync _|%p0, -1; @%p0 mov.u32 %r1, 1; {put(0, "%t", "%r1")}""",
    [zeros(128) + 9],
    [
        lambda x: (
            None
            if (x.reshape(4, 32).sum(1) == 1).all() and x.max() == 1
            else f"elected of each warp: {x.reshape(4, 32).sum(1)}"
        )
    ],
    ["elect.sync"],
    threads=128,
)

for name, arrive, place in (
    ("release", "barrier.cluster.arrive.aligned", "global"),
    ("relaxed", "barrier.cluster.arrive.relaxed.aligned", None),
):
    data = (
        ""
        if place is None
        else f"""
    mad.lo.u32 %r5, %block, 64, %t; add.u32 %r6, %r5, 7;
    {put(0, "%r5", "%r6")} mad.lo.u32 %r7, %t, 4, %s; st.shared.b32 [%r7], %r6;"""
    )
    look = (
        ""
        if place is None
        else f"""
    xor.b32 %r1, %block, 1; mad.lo.u32 %r5, %r1, 64, %t;
    {take("%r6", 0, "%r5")} xor.b32 %r2, %rank, 1; mapa.shared::cluster.u32 %r3, %s, %r2;
    mad.lo.u32 %r7, %t, 4, %r3; ld.shared::cluster.b32 %r8, [%r7];
    mad.lo.u32 %r9, %block, 64, %t; {put(1, "%r9", "%r6")} {put(2, "%r9", "%r8")}"""
    )
    want = np.arange(4 * 64, dtype=np.uint32) + 7
    seen = None if place is None else want.reshape(2, 2, 64)[:, ::-1].reshape(-1)
    belief(
        f"blocks_of_a_cluster_meet_{name}",
        f"""
    mov.u64 %d1, 200000; setp.eq.u32 %p0, %rank, 1; setp.eq.u32 %p1, %warp, 1;
    and.pred %p0, %p0, %p1; @!%p0 bra PROMPT;
    {pause("%d1")}
PROMPT:
    mov.u64 %d2, {NANOSECONDS};{data}
    {arrive}; barrier.cluster.wait.aligned; mov.u64 %d3, {NANOSECONDS};{look}
    mad.lo.u32 %r9, %block, 64, %t; {put(3, "%r9", "%d2", 64)} {put(4, "%r9", "%d3", 64)} {arrive};
    barrier.cluster.wait.aligned;
    // what the simulator counts on: nobody passed before the last came
    """,
        [zeros(256), zeros(256), zeros(256), np.zeros(256, np.uint64), np.zeros(256, np.uint64)],
        [
            None if seen is None else want,
            seen,
            seen,
            None,
            lambda t: (
                None
                if all(c.max() - c.min() < 150_000 for c in t.reshape(2, 128))
                else "some passed before the last came"
            ),
        ],
        [
            arrive,
            "barrier.cluster.wait.aligned",
            *(["mapa.shared::cluster.u32"] if seen is not None else []),
        ],
        threads=64,
        blocks=4,
        cluster=2,
        shared=256,
    )

# ---- messages: the reader has old data in its L1, where only an acquire makes it look again ----
LINES, MESSAGES = 32, 100


def messages(name: str, publish: str, notice: str, confirms) -> None:
    """Block 0 writes 32 cache lines and then a flag; block 1 sees the flag and must see the lines.
    In each round block 1 first reads the lines as they were and says so, once all of them are
    there, and only then they are written: so each begins with the old ones in the reader's L1.
    """
    belief(
        name,
        f"""
    mov.u32 %r3, 0; mov.u32 %r10, 0; mul.wide.u32 %d1, %t, 128; add.u64 %d1, %d1, %a0;
    setp.eq.u32 %p0, %t, 0; setp.ne.u32 %p1, %block, 0; @%p1 bra READER;
    {
            repeat(
                "%r4",
                MESSAGES,
                '''add.u32 %r5, %r4, 1;
READY: ld.relaxed.gpu.global.b32 %r6, [%a1+128]; setp.ne.u32 %p2, %r6, %r5; @%p2 bra READY;
bar.warp.sync -1; st.global.b32 [%d1], %r5;''',
                f"bar.warp.sync -1; {publish}",
            )
        }
    bra END;
READER:
    {
            repeat(
                "%r4",
                MESSAGES,
                '''fence.acq_rel.gpu; ld.global.b32 %r7, [%d1]; add.u32 %r5, %r4, 1;
    sub.u32 %r8, %r5, %r7; add.u32 %r10, %r10, %r8;
    setp.ne.u32 %p3, %r7, %r5; vote.sync.all.pred %p4, %p3, -1; and.pred %p4, %p4, %p0;
    @%p4 st.relaxed.gpu.global.b32 [%a1+128], %r5;''',
                notice,
                '''
    ld.global.b32 %r7, [%d1]; setp.ne.u32 %p3, %r7, %r5; @%p3 add.u32 %r3, %r3, 1;
    bar.warp.sync -1;''',
            )
        }
    {put(2, "%t", "%r10")} {put(3, "%t", "%r3")}""",
        [zeros(LINES * 32), zeros(64), zeros(32) + 9, zeros(32) + 9],
        [None, None, zeros(32) + MESSAGES, None if name.startswith("control_") else zeros(32)],
        confirms,
        blocks=2,
    )


POLL = "SEEN: ld.relaxed.{scope}.global.b32 %r6, [%a1]; setp.ne.u32 %p2, %r6, %r5; @%p2 bra SEEN;"
for scope in ("gpu", "sys"):
    messages(
        f"release_and_acquire_{scope}",
        f"@%p0 st.release.{scope}.global.b32 [%a1], %r5;",
        f"SEEN: ld.acquire.{scope}.global.b32 %r6, [%a1]; setp.ne.u32 %p2, %r6, %r5; @%p2 bra SEEN;"
        " bar.warp.sync -1;",
        [f"st.release.{scope}.global.b32", f"ld.acquire.{scope}.global.b32"],
    )
    messages(
        f"fences_round_relaxed_accesses_{scope}",
        f"fence.acq_rel.{scope}; @%p0 red.relaxed.{scope}.global.max.u32 [%a1], %r5;",
        POLL.format(scope=scope) + f" fence.acq_rel.{scope};",
        [f"fence.acq_rel.{scope}", f"ld.relaxed.{scope}.global.b32"],
    )
messages(
    "control_without_acquire",
    "@%p0 st.release.gpu.global.b32 [%a1], %r5;",
    POLL.format(scope="gpu"),
    [],
)
messages(
    "membar_of_the_gpu",
    "membar.gl; @%p0 st.relaxed.gpu.global.b32 [%a1], %r5;",
    POLL.format(scope="gpu") + " membar.gl;",
    ["membar.gl"],
)

belief(
    "words_that_carry_their_own_numbers",
    f"""
    // block 0 writes 64 bits at once, the round above and a number below; block 1 asks until the
    // round is there, and needs no order to have the number
    mul.wide.u32 %d1, %t, 8; add.u64 %d1, %d1, %a0; mov.u32 %r3, 0; setp.ne.u32 %p1, %block, 0;
    @%p1 bra READER;
    {
        repeat(
            "%r4",
            MESSAGES,
            "add.u32 %r5, %r4, 1; mad.lo.u32 %r6, %r5, 77777, %t; mov.b64 %d2, {%r6, %r5}; "
            "st.relaxed.gpu.global.b64 [%d1], %d2;",
            "ANSWER: ld.relaxed.gpu.global.b32 %r6, [%a1]; setp.ne.u32 %p2, %r6, %r5; "
            "@%p2 bra ANSWER; bar.warp.sync -1;",
        )
    }
    bra END;
READER:
    setp.eq.u32 %p0, %t, 0;
    {
        repeat(
            "%r4",
            MESSAGES,
            "add.u32 %r5, %r4, 1; mad.lo.u32 %r6, %r5, 77777, %t;",
            "SEEN: ld.relaxed.gpu.global.b64 %d2, [%d1]; mov.b64 {%r7, %r8}, %d2; "
            "setp.ne.u32 %p2, %r8, %r5; @%p2 bra SEEN;",
            "setp.ne.u32 %p3, %r7, %r6; @%p3 add.u32 %r3, %r3, 1; bar.warp.sync -1; "
            "@%p0 st.relaxed.gpu.global.b32 [%a1], %r5;",
        )
    }
    {put(2, "%t", "%r3")}""",
    [np.zeros(32, np.uint64), zeros(64), zeros(32) + 9],
    [None, None, zeros(32)],
    ["st.relaxed.gpu.global.b64", "ld.relaxed.gpu.global.b64"],
    blocks=2,
)

for name, publish, notice, confirms in (
    (
        "release_and_acquire_cta",
        "st.release.cta.global.b32 [%a0+256], %r5;",
        "ld.acquire.cta.global.b32",
        ["st.release.cta.global.b32", "ld.acquire.cta.global.b32"],
    ),
    (
        "fences_of_the_block",
        "fence.acq_rel.cta; st.relaxed.cta.global.b32 [%a0+256], %r5;",
        "ld.relaxed.cta.global.b32",
        ["fence.acq_rel.cta", "ld.relaxed.cta.global.b32"],
    ),
    (
        "membar_of_the_block",
        "membar.cta; st.relaxed.cta.global.b32 [%a0+256], %r5;",
        "ld.relaxed.cta.global.b32",
        ["membar.cta"],
    ),
):
    fence = publish.split(";")[0] + ";" if "release" not in name else ""
    published = publish.replace("%a0", "%d1")
    belief(
        name,
        f"""
    // a lane of warp 0 to the same lane of warp 1, a word of data and a flag in global memory for
    // each
    mad.wide.u32 %d1, %lane, 512, %a0; mov.u32 %r3, 0; setp.eq.u32 %p1, %warp, 1; @%p1 bra READER;
    {
            repeat(
                "%r4",
                MESSAGES,
                f"add.u32 %r5, %r4, 1; st.global.b32 [%d1], %r5; {published}",
                "ANSWER: ld.relaxed.cta.global.b32 %r6, [%d1+384];",
                "setp.ne.u32 %p2, %r6, %r5; @%p2 bra ANSWER;",
            )
        }
    bra END;
READER:
    {
            repeat(
                "%r4",
                MESSAGES,
                "add.u32 %r5, %r4, 1;",
                f"SEEN: {notice} %r6, [%d1+256]; setp.ne.u32 %p2, %r6, %r5; @%p2 bra SEEN; {fence}",
                "ld.global.b32 %r7, [%d1]; setp.ne.u32 %p3, %r7, %r5; @%p3 add.u32 %r3, %r3, 1;",
                "st.relaxed.cta.global.b32 [%d1+384], %r5;",
            )
        }
    {put(1, "%lane", "%r3")}""",
        [zeros(32 * 128), zeros(32) + 9],
        [None, zeros(32)],
        confirms,
        threads=64,
    )

# ---- setmaxnreg ----------------------------------------------------------------------------------
GIVEN, TAKEN, LATE = 40, 232, 300_000
# values that stay alive in the registers of a thread
VALUES = TAKEN - 32


def mixed() -> np.ndarray:
    """The sums that the kernel below must find."""
    out = np.zeros(384, np.uint32)
    for t in range(128, 384):
        v = [(t * (2 * i + 3) + i) & 0xFFFFFFFF for i in range(VALUES)]
        for i in range(VALUES):
            v[i] ^= v[(i * 7 + 1) % VALUES]
        out[t] = sum(v) & 0xFFFFFFFF
    return out


belief(
    "registers_wait_until_the_producer_gives_his",
    f"""
    // 384 threads begin with 168 each; two warpgroups take 232, for which the third must have gone
    // down to 40
    setp.lt.u32 %p0, %warp, 4; @!%p0 bra.uni WORKERS;
    {pause(LATE)} mov.u64 %d1, {NANOSECONDS}; setmaxnreg.dec.sync.aligned.u32 {GIVEN};
    {put(0, "%t", "%d1", 64)} bra.uni END;
WORKERS:
    setmaxnreg.inc.sync.aligned.u32 {TAKEN}; mov.u64 %d1, {NANOSECONDS}; {put(0, "%t", "%d1", 64)}
    // as many registers are used: {VALUES} values stay alive
    {" ".join(f"mad.lo.u32 %r{100 + i}, %t, {2 * i + 3}, {i};" for i in range(VALUES))}
    bar.sync 1, 256;
    {
        " ".join(
            f"xor.b32 %r{100 + i}, %r{100 + i}, %r{100 + (i * 7 + 1) % VALUES};"
            for i in range(VALUES)
        )
    }
    mov.u32 %r3, 0;
    {" ".join(f"add.u32 %r3, %r3, %r{100 + i};" for i in range(VALUES))} {put(1, "%t", "%r3")}""",
    [np.zeros(384, np.uint64), zeros(384)],
    [
        lambda t: (
            None
            if t[:128].max() <= t[128:].min()
            else "the workers had their registers before the producer gave his"
        ),
        mixed(),
    ],
    ["setmaxnreg.dec.sync.aligned.u32", "setmaxnreg.inc.sync.aligned.u32"],
    threads=384,
    before=".minnctapersm 1",
)

# ---- another block's shared memory: each block writes into the next one's, at the place where its
# own would be ------------------------------------
for size, count in (
    ("b8", 1),
    ("b16", 1),
    ("b32", 1),
    ("b64", 1),
    ("v2.b32", 2),
    ("v4.b32", 4),
    ("v2.b64", 2),
):
    width = int(size[-2:].lstrip("b"))
    each = width * count // 8  # bytes of a thread
    kind = {8: "%r", 16: "%h", 32: "%r", 64: "%d"}[width]
    names = [f"{kind}{20 + i}" for i in range(count)]
    value = {
        8: "mov.b32 {0}, %r10;",
        16: "cvt.u16.u32 {0}, %r10;",
        32: "add.u32 {0}, %r10, {1};",
        64: "add.u32 %r11, %r10, {1}; cvt.u64.u32 {0}, %r11;",
    }[width]
    numbers = (np.arange(4 * 64).reshape(4, 64, 1) * 8 + np.arange(count)).astype(f"u{width // 8}")
    arrives = np.roll(numbers, 1, axis=0).reshape(-1).view(np.uint32)
    words = 64 * each // 4
    group = names[0] if count == 1 else "{" + ", ".join(names) + "}"
    belief(
        f"a_store_of_{size.replace('.', '_')}_into_the_next_block",
        f"""
    {fill(words, 64, at=64)} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    add.u32 %r1, %rank, 1; and.b32 %r1, %r1, 3; mad.lo.u32 %r2, %t, {each}, %s;
    mapa.shared::cluster.u32 %r3, %r2, %r1; mad.lo.u32 %r10, %rank, 64, %t; shl.b32 %r10, %r10, 3;
    {" ".join(value.format(n, i) for i, n in enumerate(names))}
    st.shared::cluster.{size} [%r3+64], {group};
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; mul.lo.u32 %r5, %rank, {words};
    {dump(words, 64, 0, at=64, first="%r5")}""",
        [zeros(4 * words)],
        [arrives],
        [
            f"st.shared::cluster.{size}",
            "mapa.shared::cluster.u32",
            "barrier.cluster.arrive.aligned",
        ],
        threads=64,
        blocks=4,
        cluster=4,
        shared=64 + 64 * each,
    )

# ---- launches that may overlap -------------------------------------------------------------------
# (tests/gpu has launches that do; alone, one waits for nothing)
belief(
    "a_launch_that_follows_none_waits_for_none",
    f"""
    griddepcontrol.wait; mad.lo.u32 %r3, %t, 7, 3; griddepcontrol.launch_dependents;
    {put(0, "%t", "%r3")}""",
    [zeros(64)],
    [7 * np.arange(64, dtype=np.uint32) + 3],
    ["griddepcontrol.wait", "griddepcontrol.launch_dependents"],
    threads=64,
)
