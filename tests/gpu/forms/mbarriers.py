"""mbarriers: phases and parity, counts of arrivals and of bytes, waits and tests, arrivals from
other blocks, who may arrive for whom.
"""

from __future__ import annotations

import numpy as np

from tests.gpu.forms.belief import belief, only, pause, put, truth, wait
from tests.gpu.forms.belief import loop as repeat
from tkc.ir.interface import Parameter
from tkc.sim.barriers import MAX_MBARRIER_BYTES, Mbarrier
from tkc.sim.clocks import Clocks, Knowing

INIT, ARRIVE, EXPECT, TEST = (
    "mbarrier.init.shared::cta.b64",
    "mbarrier.arrive.shared::cta.b64",
    "mbarrier.arrive.expect_tx.shared::cta.b64",
    "mbarrier.test_wait.parity.shared::cta.b64",
)
FAR, TRY, MAPA = (
    "mbarrier.arrive.shared::cluster.b64",
    "mbarrier.try_wait.parity.shared::cta.b64",
    "mapa.shared::cluster.u32",
)
VISIBLE, MEET, PASS = (
    "fence.mbarrier_init.release.cluster",
    "barrier.cluster.arrive.relaxed.aligned",
    "barrier.cluster.wait.aligned",
)
LOAD_1D = "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"


def zeros(*shape):
    return np.zeros(shape, np.uint32)


def script(name: str, count: int, steps: str) -> None:
    """One thread does one step after the other, and looks at both parities after each; what it must
    see is what the simulator's mbarrier says.

    a: arrives; e N: arrives and expects N bytes; b N: N bytes arrive (mbarrier.complete_tx, which
    does what the end of a copy does).
    """
    by = Knowing(Clocks(), "the thread")
    oracle, lines, seen = Mbarrier("the barrier", count, by), [], []

    def look() -> None:
        for parity in (0, 1):
            lines.append(f"{TEST} %p0, [%s+64], {parity}; {truth(0, len(seen), '%p0')}")
            seen.append(int(oracle.complete(parity)))

    look()
    for step in steps.split(", "):
        kind, _, n = step.partition(" ")
        match kind:
            case "a":
                lines.append(f"{ARRIVE} _, [%s+64];")
                oracle.arrive(by.knows, 1, None, "the thread")
            case "e":
                lines.append(f"{EXPECT} _, [%s+64], {n};")
                oracle.expect(int(n), None)
                oracle.arrive(by.knows, 1, None, "the thread")
            case "b":
                lines.append(f"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%s+64], {n};")
                oracle.deliver(by.knows, int(n), None)
        look()
    belief(
        name,
        only(0, f"{INIT} [%s+64], {count};", *lines),
        [zeros(len(seen))],
        [np.array(seen, np.uint32)],
        [INIT, TEST, *[ARRIVE] * ("a" in steps), *[EXPECT] * ("e" in steps)],
        shared=128,
    )


script("phases_alternate_and_start_at_parity_0", 2, "a, a, a, a, a, a")
script("a_phase_waits_for_its_bytes", 1, "e 64, b 32, b 32, e 16, b 16, a")
script("bytes_may_come_before_they_are_expected", 1, "b 32, b 32, e 64, e 0, a")
script("arrivals_and_bytes_both_count", 3, "e 128, a, b 128, a, a, e 32, b 16, a, b 16")
script("bytes_up_to_the_limit", 1, f"e {MAX_MBARRIER_BYTES}, b {MAX_MBARRIER_BYTES - 1}, b 1")

THREADS, ROUNDS = 128, 200
belief(
    "who_waits_sees_what_was_written_before_the_arrivals",
    f"""
    {only(0, f"{INIT} [%s], {THREADS};", f"{VISIBLE};")}
    bar.sync 0;
    mad.lo.u32 %r1, %t, 4, %s; add.u32 %r2, %t, 37; and.b32 %r2, %r2, {
        THREADS - 1
    }; mad.lo.u32 %r2, %r2, 4, %s; mov.u32 %r3, 0;
    {
        repeat(
            "%r4",
            ROUNDS,
            f'''
    mad.lo.u32 %r5, %r4, 1000, %t; and.b32 %r6, %r4, 1; mad.lo.u32 %r7, %r6, 1024, %r1;
    st.shared.b32 [%r7+1024], %r5;
    {ARRIVE} _, [%s];''',
            wait("[%s]", "%r6"),
            '''
    mad.lo.u32 %r7, %r6, 1024, %r2; ld.shared.b32 %r5, [%r7+1024];
    add.u32 %r8, %t, 37; and.b32 %r8, %r8, 127; mad.lo.u32 %r8, %r4, 1000, %r8;
    setp.ne.u32 %p1, %r5, %r8; @%p1 add.u32 %r3, %r3, 1;''',
        )
    }
    {put(0, "%t", "%r3")}""",
    [zeros(THREADS) + 9],
    [zeros(THREADS)],
    [ARRIVE, TRY, INIT],
    threads=THREADS,
    shared=4096,
)

belief(
    "a_wait_ends_when_the_phase_does_and_not_before",
    f"""
    {only(0, f"{INIT} [%s], 1;", "mov.b32 %r1, 0; st.shared.b32 [%s+64], %r1;")}
    bar.sync 0;
    setp.ne.u32 %p1, %warp, 1; @%p1 bra OTHER;
    {pause(30_000_000)} mov.b32 %r2, 77;
    {only(32, "st.shared.b32 [%s+64], %r2;", f"{ARRIVE} _, [%s];")}
    bra END;
OTHER:
    mov.u32 %r3, 0;
AGAIN:
    {TRY} %p2, [%s], 0, 0x989680; @%p2 bra THERE; add.u32 %r3, %r3, 1; bra AGAIN;
THERE:
    ld.shared.b32 %r4, [%s+64]; {put(0, "%t", "%r4")} {put(1, "%t", "%r3")}""",
    [zeros(32), zeros(32)],
    [zeros(32) + 77, None],
    [TRY, ARRIVE],
    threads=64,
    shared=128,
)

PREPARED = f"""
    {only(0, f"{INIT} [%s+16], 4;", f"{INIT} [%s+24], 1;", f"{VISIBLE};")}
    {MEET}; {PASS};"""
belief(
    "thread_i_arrives_at_block_i_of_the_cluster",
    f"""
    {PREPARED}
    min.u32 %r1, %t, 3; {MAPA} %r2, %s, %r1; setp.lt.u32 %p1, %t, 4;
    {TEST} %p2, [%s+16], 0; selp.b32 %r3, 1, 0, %p2; barrier.cluster.arrive.aligned; {PASS};
    @%p1 {FAR} _, [%r2+16];
    {wait("[%s+16]", 0)}
    setp.ne.u32 %p3, %rank, 3; and.pred %p3, %p3, %p1; @%p3 {FAR} _, [%r2+16];
    barrier.cluster.arrive.aligned; {PASS}; {pause(100_000)} {TEST} %p4, [%s+16], 1;
    {TEST} %p5, [%s+24], 0; barrier.cluster.arrive.aligned; {PASS};
    setp.eq.u32 %p3, %rank, 3; and.pred %p3, %p3, %p1; @%p3 {FAR} _, [%r2+16];
    {wait("[%s+16]", 1)}
    mul.lo.u32 %r9, %block, 4;
    {
        only(
            0,
            put(0, "%r9", "%r3"),
            "add.u32 %r9, %r9, 1;",
            truth(0, "%r9", "%p4"),
            "add.u32 %r9, %r9, 1;",
            truth(0, "%r9", "%p5"),
            "add.u32 %r9, %r9, 1; mov.b32 %r3, 1;",
            put(0, "%r9", "%r3"),
        )
    }
    barrier.cluster.arrive.aligned; {PASS};""",
    [zeros(8, 4) + 9],
    [np.tile(np.array([0, 0, 0, 1], np.uint32), (8, 1))],
    [FAR, MAPA, INIT, VISIBLE, MEET, PASS],
    blocks=8,
    cluster=4,
    shared=64,
)

belief(
    "an_arrival_from_another_block_follows_its_loads",
    f"""
    // block 1 reads what block 0 wrote in block 1's memory, arrives at block 0, which then
    // overwrites it: no value may be seen early
    {only(0, f"{INIT} [%s+16], 1;", f"{INIT} [%s+24], 32;", f"{VISIBLE};")}
    {MEET}; {PASS};
    xor.b32 %r1, %rank, 1; {
        MAPA
    } %r2, %s, %r1; mov.u32 %r3, 0; mad.lo.u32 %r6, %t, 4, %s; mad.lo.u32 %r7, %t, 4, %r2;
    setp.ne.u32 %p1, %rank, 0; @%p1 bra READER;
    {
        repeat(
            "%r4",
            ROUNDS,
            "and.b32 %r5, %r4, 1; xor.b32 %r8, %r5, 1;",
            wait("[%s+16]", "%r8"),
            "st.shared::cluster.b32 [%r7+128], %r4; "
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2+24];",
        )
    }
    bra MET;
READER:
    {
        repeat(
            "%r4",
            ROUNDS,
            "and.b32 %r5, %r4, 1;",
            '''{ .reg .pred %there;
ACQUIRE: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %there, [%s+24], %r5, 0x989680;
@!%there bra ACQUIRE; }''',
            f"ld.shared.b32 %r8, [%r6+128]; setp.ne.u32 %p2, %r8, %r4; @%p2 add.u32 %r3, %r3, 1; "
            f"bar.warp.sync -1; setp.eq.u32 %p3, %t, 0; @%p3 {FAR} _, [%r2+16];",
        )
    }
MET:
    barrier.cluster.arrive.aligned; {PASS}; mad.lo.u32 %r9, %rank, 32, %t; {
        put(0, "%r9", "%r3")
    }""",
    [zeros(64) + 9],
    [zeros(64)],
    [FAR, MAPA],
    blocks=2,
    cluster=2,
    shared=512,
)

# ---- stores into the next block's shared memory whose bytes its mbarrier counts: the blocks do not
# meet, and who waits sees all of them, in each of many rounds --------
SEND = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
for size, count in (("b32", 1), ("b64", 1), ("v2.b32", 2), ("v4.b32", 4), ("v2.b64", 2)):
    width = int(size[-2:])
    each = width * count // 8  # bytes of a thread; two places for them, by turns
    names = [f"{'%r' if width == 32 else '%d'}{20 + i}" for i in range(count)]
    value = " ".join(
        (
            f"add.u32 {n}, %r10, {i};"
            if width == 32
            else f"add.u32 %r11, %r10, {i}; cvt.u64.u32 {n}, %r11;"
        )
        for i, n in enumerate(names)
    )
    sent = names[0] if count == 1 else "{" + ", ".join(names) + "}"
    found = [f"{n[:2]}4{i}" for i, n in enumerate(names)]
    received = found[0] if count == 1 else "{" + ", ".join(found) + "}"
    wrong = " ".join(
        f"setp.ne.u{width} %p2, {want}, {got}; @%p2 add.u32 %r3, %r3, 1;"
        for want, got in zip(names, found, strict=True)
    )
    sends = f"""
    and.b32 %r5, %r4, 1; shr.u32 %r6, %r4, 1; and.b32 %r6, %r6, 1; mad.lo.u32 %r7, %r5, 8, %s;
    mad.lo.u32 %r8, %r5, 8, %r2; mad.lo.u32 %r9, %r5, {64 * each}, 64;
    mad.lo.u32 %r9, %t, {each}, %r9;
    {only(0, f"{EXPECT} _, [%r7], {64 * each};")}
    mad.lo.u32 %r10, %r4, 4, %rank; mad.lo.u32 %r10, %r10, 64, %t; shl.b32 %r10, %r10, 3; {value}
    add.u32 %r13, %r2, %r9; {SEND}.{size} [%r13], {sent}, [%r8];"""
    reads = f"""
    mad.lo.u32 %r10, %r4, 4, %r12; mad.lo.u32 %r10, %r10, 64, %t; shl.b32 %r10, %r10, 3; {value}
    add.u32 %r14, %s, %r9;
    ld.shared.{size} {received}, [%r14];
    {wrong}
    {MEET}; {PASS};"""
    belief(
        f"bytes_of_{size.replace('.', '_')}_sent_to_the_next_block_are_counted_there",
        f"""
    {only(0, f"{INIT} [%s], 1;", f"{INIT} [%s+8], 1;", f"{VISIBLE};")}
    {MEET}; {PASS};
    add.u32 %r1, %rank, 1; and.b32 %r1, %r1, 3; {MAPA} %r2, %s, %r1; add.u32 %r12, %rank, 3;
    and.b32 %r12, %r12, 3; mov.u32 %r3, 0;
    {repeat("%r4", 20, sends, wait("[%r7]", "%r6"), reads)}
    mad.lo.u32 %r15, %rank, 64, %t; {put(0, "%r15", "%r3")}""",
        [zeros(256) + 9],
        [zeros(256)],
        [f"{SEND}.{size}", EXPECT, TRY, MAPA],
        threads=64,
        blocks=4,
        cluster=4,
        shared=64 + 128 * each,
    )

STAGES, STEPS, WORDS, READERS = 2, 64, 256, 4
source = np.arange(STEPS * WORDS, dtype=np.uint32)
belief(
    "the_first_lane_arrives_for_its_warp_and_the_stage_is_filled_again",
    f"""
    {
        only(
            0,
            *[
                f"{INIT} [%s+{8 * i}], 1; {INIT} [%s+{64 + 8 * i}], {READERS};"
                for i in range(STAGES)
            ],
            f"{VISIBLE};",
        )
    }
    bar.sync 0; mov.u32 %r3, 0;
    setp.eq.u32 %p1, %warp, {READERS}; @!%p1 bra READER;
    {
        only(
            32 * READERS,
            repeat(
                "%r4",
                STEPS,
                '''
    and.b32 %r5, %r4, 1; shr.u32 %r6, %r4, 1; and.b32 %r6, %r6, 1; xor.b32 %r7, %r6, 1;
    mad.lo.u32 %r8, %r5, 8, %s;''',
                wait("[%r8+64]", "%r7"),
                f'''
    {EXPECT} _, [%r8], {4 * WORDS}; mad.lo.u32 %r9, %r5, {4 * WORDS}, %s;
    mul.lo.u32 %r10, %r4, {WORDS};
    {LOAD_1D} [%r9+1024], [%m0, {{%r10}}], [%r8];''',
            ),
        )
    }
    bra END;
READER:
    {
        repeat(
            "%r4",
            STEPS,
            '''
    and.b32 %r5, %r4, 1; shr.u32 %r6, %r4, 1; and.b32 %r6, %r6, 1; mad.lo.u32 %r8, %r5, 8, %s;''',
            wait("[%r8]", "%r6"),
            f'''
    mad.lo.u32 %r9, %r5, {4 * WORDS}, %s; mad.lo.u32 %r9, %t, 8, %r9;
    ld.shared.v2.b32 {{%r10, %r11}}, [%r9+1024];
    setp.eq.u32 %p2, %lane, 0; @%p2 {ARRIVE} _, [%r8+64];
    mul.lo.u32 %r12, %r4, {WORDS}; mad.lo.u32 %r12, %t, 2, %r12; setp.ne.u32 %p3, %r10, %r12;
    @%p3 add.u32 %r3, %r3, 1; add.u32 %r12, %r12, 1; setp.ne.u32 %p3, %r11, %r12;
    @%p3 add.u32 %r3, %r3, 1;''',
        )
    }
    {put(1, "%t", "%r3")}""",
    [source, zeros(32 * READERS) + 9],
    [source, zeros(32 * READERS)],
    [ARRIVE, EXPECT, TRY, LOAD_1D],
    threads=32 * READERS + 32,
    shared=1024 + STAGES * 4 * WORDS,
    maps=[(0, Parameter("map", "", element="ui32", box=(WORDS,)))],
)
