"""cp.async: what is filled with zeros, which copies a wait or an arrival waits for."""

from __future__ import annotations

import numpy as np

from tests.gpu.forms.belief import belief, dump, fill, only, put, wait


def words(n):
    return np.arange(n, dtype=np.uint32) * 2654435761 % 4294967291


FAR = 1 << 22  # words: more than an L2 holds, so that a copy takes its time


def names(size: int) -> str:
    return f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global"


for size in (4, 8, 16):
    data = words(32 * size // 4)
    # every third thread copies nothing, from an address that nobody may read
    kept = np.where(np.repeat(np.arange(32) % 3 == 1, size // 4), 0, data).astype(np.uint32)
    belief(
        f"copies_of_{size}_bytes_and_of_none",
        f"""
    {fill(32 * size // 4, 32)} bar.warp.sync -1;
    rem.u32 %r1, %t, 3; setp.eq.u32 %p0, %r1, 1; selp.b32 %r2, 0, {size}, %p0;
    mad.wide.u32 %d1, %t, {size}, %a0; selp.b64 %d1, 64, %d1, %p0; mad.lo.u32 %r3, %t, {size}, %s;
    {names(size)} [%r3], [%d1], {size}, %r2; cp.async.wait_all; bar.warp.sync -1;
    {dump(32 * size // 4, 32, 1)}""",
        [data, data * 0],
        [data, kept],
        [names(size), "cp.async.wait_all"],
        shared=1024,
    )
    belief(
        f"copies_of_{size}_bytes_without_a_size",
        f"""
    {fill(32 * size // 4, 32)} bar.warp.sync -1; mad.wide.u32 %d1, %t, {size}, %a0;
    mad.lo.u32 %r3, %t, {size}, %s;
    {names(size)} [%r3], [%d1], {size}; cp.async.wait_all; bar.warp.sync -1;
    {dump(32 * size // 4, 32, 1)}""",
        [data, data * 0],
        [data, data],
        [names(size), "cp.async.wait_all"],
        shared=1024,
    )

COLD = np.arange(FAR, dtype=np.uint32)
STRIDE = FAR // (4 * 128)  # words from one copy to the next


def groups(name: str, commits: str, depth: str, ready: int, confirms, begin: str = "") -> None:
    """Each thread copies four words from far apart; after the wait the first `ready` must be there,
    for its neighbour too. begin: what comes before the copies.
    """
    copies = "".join(
        f"mad.lo.u32 %r2, %t, 4, {i}; mul.lo.u32 %r2, %r2, {STRIDE}; mad.wide.u32 %d1, %r2, 4, %a0;"
        f" mad.lo.u32 %r3, %t, 16, %s; cp.async.ca.shared.global [%r3+{4 * i}], [%d1], 4; {c}\n"
        for i, c in enumerate(commits.split("|"))
    )
    look = "".join(
        f"ld.shared.b32 %r6, [%r5+{4 * i}]; mad.lo.u32 %r2, %r4, 4, {i}; mul.lo.u32 %r2, %r2,"
        f" {STRIDE}; setp.ne.u32 %p1, %r6, %r2; @%p1 add.u32 %r7, %r7, 1;\n"
        for i in range(ready)
    )
    belief(
        name,
        f"{fill(512, 128)} {begin} bar.sync 0;\n{copies} {depth}; bar.sync 0; xor.b32 %r4, %t, 33;"
        f" mad.lo.u32 %r5, %r4, 16, %s; mov.u32 %r7, 0;\n{look}\n{put(1, '%t', '%r7')}"
        " cp.async.wait_all;",
        [COLD, words(128)],
        [None, np.zeros(128, np.uint32)],
        confirms,
        threads=128,
        shared=2176,
    )


C = "cp.async.commit_group;"
for pending in (1, 2, 3):
    groups(
        f"all_but_{pending}_groups_have_arrived",
        "|".join([C] * 4),
        f"cp.async.wait_group {pending}",
        4 - pending,
        ["cp.async.commit_group", "cp.async.wait_group"],
    )
groups(
    "a_group_holds_all_copies_since_the_last",
    f"|{C}||{C}",
    "cp.async.wait_group 1",
    2,
    ["cp.async.commit_group", "cp.async.wait_group"],
)
groups(
    "empty_groups_count",
    f"|||{C} {C} {C} {C}",
    "cp.async.wait_group 3",
    4,
    ["cp.async.commit_group", "cp.async.wait_group"],
)
groups(
    "waiting_for_all_includes_copies_of_no_group",
    f"{C}|||",
    "cp.async.wait_all",
    4,
    ["cp.async.wait_all"],
)
ARRIVE, AT = "cp.async.mbarrier.arrive.noinc.shared::cta.b64", "[%s+2048]"
groups(
    "copies_arrive_at_a_barrier_when_they_have_landed",
    f"{C}|||",
    f"{ARRIVE} {AT}; {wait(AT, 0)} mov.u32 %r7, 0",
    4,
    [ARRIVE],
    begin=only(0, f"mbarrier.init.shared::cta.b64 {AT}, 128;"),
)
