"""TMA: where a box lands, what lies outside, when its bytes have arrived; stores, reductions and
their groups; multicast; proxy fences.
"""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np

from tests.gpu.forms.belief import belief, dump, fill, only, put, take, wait
from tests.gpu.forms.belief import loop as repeat
from tkc.codegen.ptx.tma import POLICIES
from tkc.ir.interface import Parameter, map_dimensions
from tkc.ir.shared_layout import SharedLayout

ELEMENTS = {
    "ui8": np.uint8,
    "ui16": np.uint16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "ui32": np.uint32,
    "i32": np.int32,
    "ui64": np.uint64,
}
INIT, EXPECT, TRY = (
    "mbarrier.init.shared::cta.b64",
    "mbarrier.arrive.expect_tx.shared::cta.b64",
    "mbarrier.try_wait.parity.shared::cta.b64",
)
COMMIT, WAIT, READ, FENCE = (
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "cp.async.bulk.wait_group.read",
    "fence.proxy.async.shared::cta",
)
BASE = 1024  # of the box in shared memory


def zeros(*shape):
    return np.zeros(shape, np.uint32)


def load_name(n: int, more: str = "") -> str:
    return f"cp.async.bulk.tensor.{n}d.shared::cluster.global.mbarrier::complete_tx::bytes{more}"


def store_name(n: int, kind: str = "") -> str:
    return (
        f"cp.reduce.async.bulk.tensor.{n}d.global.shared::cta.{kind}.bulk_group"
        if kind
        else f"cp.async.bulk.tensor.{n}d.global.shared::cta.bulk_group"
    )


def array(shape, element: str) -> np.ndarray:
    """Every element another (mod what it can hold), none of them zero."""
    n, t = prod(shape), ELEMENTS[element]
    return (
        (np.arange(n) % (251 if np.dtype(t).itemsize == 1 else 255) + 1).astype(t).reshape(shape)
        if element in ("ui8", "bf16")
        else (np.arange(n) + 1).astype(t).reshape(shape)
    )


def boxed(source: np.ndarray, starts, box) -> np.ndarray:
    """The box, zeros outside the array: as in sim/asynchronous.py."""
    index, live = [], np.bool_(True)
    for axis, (start, extent, bound) in enumerate(zip(starts, box, source.shape, strict=False)):
        at = (start + np.arange(extent)).reshape([-1 if a == axis else 1 for a in range(len(box))])
        index.append(np.clip(at, 0, bound - 1))
        live = live & (at >= 0) & (at < bound)
    return np.where(live, source[tuple(np.broadcast_arrays(*index))], source.dtype.type(0)).astype(
        source.dtype
    )


def image(values: np.ndarray, layout: SharedLayout) -> np.ndarray:
    """The bytes of shared memory, as words."""
    out = np.zeros(-(-layout.bytes // 4) * 4, np.uint8)
    size = values.dtype.itemsize
    at = layout.table().reshape(-1)[:, None] + np.arange(size)
    out[at] = values.reshape(-1).view(np.uint8).reshape(-1, size)
    return out.view(np.uint32)


def slim(box) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(box) if any(e > 1 for e in box[: i + 1])) or (1,)


def coordinates(starts, p: Parameter, bits: int) -> str:
    """What the emitter writes for these offsets."""
    panel = p.swizzle * 8 // bits
    return (
        "{"
        + ", ".join(
            str({"within": 0, "panel": starts[a] // panel if panel else 0}.get(part, starts[a]))
            for a, part in map_dimensions(p.box, bits, p.swizzle, p.panelled)
        )
        + "}"
    )


def load(
    name: str,
    element: str,
    shape,
    box,
    starts,
    swizzle: int,
    panelled: bool = False,
    hint: str = "",
) -> None:
    """One box; every thread waits for it and reads a part."""
    source, p = (
        array(shape, element),
        Parameter("map", "", element=element, box=tuple(box), swizzle=swizzle, panelled=panelled),
    )
    bits = source.dtype.itemsize * 8
    layout = SharedLayout(slim(box), bits, swizzle)
    want = image(boxed(source, starts, box), layout)
    n, extra, policy = (
        len(map_dimensions(p.box, bits, swizzle, panelled)),
        ".L2::cache_hint" if hint else "",
        f"mov.b64 %d1, {POLICIES[hint]};" if hint else "",
    )
    count, at = prod(box) * bits // 8, coordinates(starts, p, bits)
    load = f"{load_name(n, extra)} [%s+{BASE}], [%m0, {at}], [%s]{', %d1' if hint else ''};"
    belief(
        name,
        f"""
    {fill(len(want), 128, at=BASE)}
    {only(0, f"{INIT} [%s], 1;", "fence.mbarrier_init.release.cluster;")} {FENCE}; bar.sync 0;
    {only(0, "prefetch.tensormap [%m0];", f"{EXPECT} _, [%s], {count};", policy, load)}
    {wait("[%s]", 0)}
    {dump(len(want), 128, 1, at=BASE)}""",
        [source, zeros(len(want))],
        [source, want],
        [load_name(n, extra), EXPECT, TRY, "prefetch.tensormap"],
        threads=128,
        shared=BASE + layout.bytes,
        maps=[(0, p)],
    )


for swizzle in (0, 32, 64, 128):
    for element in ("ui8", "bf16", "f32", "ui64"):
        size = np.dtype(ELEMENTS[element]).itemsize
        wide = (swizzle or 64) // size
        load(
            f"a_box_of_{element}_lands_with_swizzle_{swizzle}",
            element,
            (40, 2 * wide),
            (24, wide),
            (8, wide),
            swizzle,
        )
load("rows_outside_are_zero_and_their_bytes_count", "bf16", (40, 128), (32, 64), (24, 64), 128)
load("columns_outside_are_zero", "bf16", (40, 104), (32, 64), (3, 64), 128)
load("a_box_may_start_before_the_array", "f32", (16, 32), (16, 32), (-5, -8), 128)
load("a_box_may_lie_wholly_outside", "bf16", (16, 64), (16, 64), (160, 640), 128)
load("one_dimension", "f32", (1000,), (256,), (800,), 0)
load("three_dimensions", "bf16", (3, 20, 64), (2, 16, 64), (1, 8, 0), 128)
load("four_dimensions_with_boxes_of_one", "bf16", (2, 3, 20, 64), (1, 1, 16, 64), (1, 2, 8, 0), 128)
load("five_dimensions", "bf16", (2, 3, 4, 20, 64), (1, 1, 2, 8, 64), (1, 2, 1, 16, 0), 128)
load("panels_of_the_last_axis", "bf16", (50, 256), (40, 192), (5, 64), 128, panelled=True)
load(
    "panels_and_heads", "bf16", (2, 50, 3, 128), (1, 40, 1, 128), (1, 12, 2, 0), 128, panelled=True
)
load("a_policy_for_the_cache_first", "bf16", (40, 64), (32, 64), (8, 0), 128, hint="evict_first")
load("a_policy_for_the_cache_last", "bf16", (40, 64), (32, 64), (8, 0), 128, hint="evict_last")


# ---- stores --------------------------------------------------------------------------------------
def store(
    name: str, element: str, shape, box, starts, swizzle: int, kind: str = "", blocks: int = 1
) -> None:
    """Threads write a tile to shared memory; one thread stores it. What lies outside the array is
    left alone.
    """
    t = ELEMENTS[element]
    values, old = (
        ((np.arange(prod(box)) % 61 + 2).astype(t).reshape(box)),
        (np.arange(prod(shape)) % 53 + 1).astype(t).reshape(shape),
    )
    p, bits = (
        Parameter("map", "", element=element, box=tuple(box), swizzle=swizzle),
        np.dtype(t).itemsize * 8,
    )
    layout, new = SharedLayout(slim(box), bits, swizzle), old.copy()
    at = tuple(slice(max(s, 0), min(s + n, e)) for s, n, e in zip(starts, box, shape, strict=False))
    part = values[tuple(slice(a.start - s, a.stop - s) for a, s in zip(at, starts, strict=False))]
    for _ in range(blocks):
        new[at] = {"": lambda a, b: b, "add": np.add, "max": np.maximum, "min": np.minimum}[kind](
            new[at].astype(np.float64), part.astype(np.float64)
        ).astype(t)
    data, n = image(values, layout), len(map_dimensions(p.box, bits, swizzle, False))
    padded = np.zeros(shape, t)
    padded[...] = old
    belief(
        name,
        f"""
    {fill(len(data), 128, array=1, at=BASE)}
    {FENCE}; bar.sync 0;
    {
            only(
                0,
                f"{store_name(n, kind)} [%m0, {coordinates(starts, p, bits)}], [%s+{BASE}];",
                f"{COMMIT};",
                f"{WAIT} 0;",
                "ld.global.b32 %r1, [%a0];",
                put(2, "%block", "%r1"),
            )
        }""",
        [padded, data, zeros(blocks)],
        [new, data, None],
        [store_name(n, kind), COMMIT, WAIT, FENCE],
        threads=128,
        blocks=blocks,
        shared=BASE + layout.bytes,
        maps=[(0, p)],
    )


for swizzle in (0, 64, 128):
    store(
        f"a_store_takes_a_box_with_swizzle_{swizzle}",
        "bf16",
        (40, 64),
        (16, (swizzle or 64) // 2),
        (8, 32),
        swizzle,
    )
store("a_store_leaves_out_what_lies_outside", "f32", (20, 40), (16, 32), (10, 16), 128)
store("a_store_of_one_dimension", "f32", (1000,), (256,), (800,), 0)
store("a_store_of_three_dimensions", "bf16", (2, 20, 64), (1, 16, 64), (1, 8, 0), 128)
store("a_store_of_four_dimensions", "bf16", (2, 3, 20, 64), (1, 1, 16, 64), (1, 2, 8, 0), 128)
store(
    "a_store_of_five_dimensions", "bf16", (2, 2, 3, 20, 64), (1, 1, 1, 16, 64), (1, 0, 2, 8, 0), 128
)
for element in ("f32", "bf16", "i32"):
    for kind in ("add", "max", "min"):
        if (element, kind) in (("f32", "max"), ("f32", "min")):
            continue  # the accelerator has no maximum of float32
        store(
            f"a_reduction_{kind}_of_{element}",
            element,
            (20, 64),
            (16, 32),
            (10, 32),
            64 if element == "bf16" else 128,
            kind,
            blocks=4,
        )

TILES, ROWS = 16, 64
belief(
    "a_source_may_be_overwritten_once_it_is_read",
    f"""
    // one tile of shared memory is stored again and again, each time with other contents
    {
        repeat(
            "%r1",
            TILES,
            f'''add.u32 %r2, %r1, 1; mad.lo.u32 %r3, %t, 4, %s; st.shared.b32 [%r3+{BASE}], %r2; '''
            + "".join(f"st.shared.b32 [%r3+{BASE + 512 * i}], %r2;" for i in range(1, 16)),
            f"{FENCE}; bar.sync 0;",
            only(
                0,
                f"mul.lo.u32 %r4, %r1, {ROWS}; {store_name(2)} [%m0, {{0, %r4}}], [%s+{BASE}]; "
                f"{COMMIT}; {READ} 0;",
            ),
            "bar.sync 0;",
        )
    }
    {only(0, f"{WAIT} 0;")}""",
    [zeros(TILES * ROWS, 32)],
    [np.repeat(np.arange(TILES, dtype=np.uint32) + 1, ROWS * 32).reshape(TILES * ROWS, 32)],
    [READ, WAIT, COMMIT, store_name(2)],
    threads=128,
    shared=BASE + 8192,
    maps=[(0, Parameter("map", "", element="ui32", box=(ROWS, 32)))],
)

belief(
    "all_but_the_last_groups_have_been_read",
    f"""
    // two tiles in turn: a tile is overwritten as soon as at most one group is pending
    {
        repeat(
            "%r1",
            TILES,
            "and.b32 %r5, %r1, 1; mad.lo.u32 %r6, %r5, 8192, %s;",
            only(0, f"{READ} 1;"),
            '''bar.sync 0; add.u32 %r2, %r1, 1; mad.lo.u32 %r3, %t, 4, %r6;'''
            + "".join(f"st.shared.b32 [%r3+{BASE + 512 * i}], %r2;" for i in range(16)),
            f"{FENCE}; bar.sync 0;",
            only(
                0,
                f"mul.lo.u32 %r4, %r1, {ROWS}; {store_name(2)} [%m0, {{0, %r4}}], [%r6+{BASE}]; "
                f"{COMMIT};",
            ),
        )
    }
    {only(0, f"{WAIT} 0;")}""",
    [zeros(TILES * ROWS, 32)],
    [np.repeat(np.arange(TILES, dtype=np.uint32) + 1, ROWS * 32).reshape(TILES * ROWS, 32)],
    [READ, WAIT, COMMIT, store_name(2)],
    threads=128,
    shared=BASE + 16384,
    maps=[(0, Parameter("map", "", element="ui32", box=(ROWS, 32)))],
)

belief(
    "a_finished_store_is_seen_by_its_thread_and_after_a_release_by_others",
    f"""
    mov.u32 %r9, 0; setp.ne.u32 %p0, %block, 0; @%p0 bra READER;
    {
        repeat(
            "%r1",
            TILES,
            '''add.u32 %r2, %r1, 1; mad.lo.u32 %r3, %t, 4, %s;'''
            + "".join(f"st.shared.b32 [%r3+{BASE + 512 * i}], %r2;" for i in range(16)),
            f"{FENCE}; bar.sync 0;",
            only(
                0,
                f"mul.lo.u32 %r4, %r1, {ROWS}; {store_name(2)} [%m0, {{0, %r4}}], [%s+{BASE}]; "
                f"{COMMIT}; {WAIT} 0; mad.wide.u32 %d1, %r4, 128, %a0; "
                f"ld.global.b32 %r5, [%d1+8188]; setp.ne.u32 %p1, %r5, %r2;",
                "@%p1 add.u32 %r9, %r9, 1; st.release.gpu.global.b32 [%a1], %r2;",
            ),
            "bar.sync 0;",
        )
    }
    bra DONE;
READER:
    {
        repeat(
            "%r1",
            TILES,
            '''add.u32 %r2, %r1, 1;
SEEN: ld.acquire.gpu.global.b32 %r5, [%a1]; setp.lt.u32 %p1, %r5, %r2; @%p1 bra SEEN;''',
            f"mad.lo.u32 %r4, %r1, {ROWS * 32}, %t; "
            + "".join(
                f"{take('%r5', 0, '%r4')} setp.ne.u32 %p1, %r5, %r2; @%p1 add.u32 %r9, %r9, 1; "
                f"add.u32 %r4, %r4, 128;"
                for _ in range(16)
            ),
        )
    }
DONE:
    mad.lo.u32 %r8, %block, 128, %t; {put(2, "%r8", "%r9")}""",
    [zeros(TILES * ROWS, 32), zeros(32), zeros(256) + 9],
    [None, None, zeros(256)],
    [WAIT, store_name(2)],
    threads=128,
    blocks=2,
    shared=BASE + 8192,
    maps=[(0, Parameter("map", "", element="ui32", box=(ROWS, 32)))],
)

# ---- proxies -------------------------------------------------------------------------------------
for fenced in (True, False):
    fence = "fence.proxy.async.global;" if fenced else ""
    belief(
        (
            "what_was_stored_is_loaded_by_tma_after_a_fence"
            if fenced
            else "control_without_a_fence_before_a_load_by_tma"
        ),
        f"""
    {
            only(0, f"{INIT} [%s], 1;", "fence.mbarrier_init.release.cluster;")
        } bar.sync 0; mov.u32 %r9, 0;
    {
            repeat(
                "%r1",
                64,
                "mad.lo.u32 %r2, %r1, 128, %t;",
                *(
                    f"mad.lo.u32 %r6, %t, 64, %r1; add.u32 %r6, %r6, {8192 * i}; "
                    f"{put(2, '%r6', '%r2')}"
                    for i in range(16)
                ),
                f"{put(0, '%t', '%r2')} {fence} bar.sync 0;",
                only(0, f"{EXPECT} _, [%s], 512; {load_name(1)} [%s+{BASE}], [%m0, {{0}}], [%s];"),
                "and.b32 %r3, %r1, 1;",
                wait("[%s]", "%r3"),
                f"mad.lo.u32 %r4, %t, 4, %s; ld.shared.b32 %r5, [%r4+{BASE}]; "
                f"setp.ne.u32 %p1, %r5, %r2; @%p1 add.u32 %r9, %r9, 1; bar.sync 0;",
            )
        }
    {put(1, "%t", "%r9")}""",
        [zeros(128), zeros(128) + 9, zeros(1 << 18)],
        [None, zeros(128) if fenced else None, None],
        ["fence.proxy.async.global"] if fenced else [],
        threads=128,
        shared=BASE + 512,
        maps=[(0, Parameter("map", "", element="ui32", box=(128,)))],
    )
    fence = f"{FENCE};" if fenced else ""
    taken = take("%r5", 0, "%r2")
    belief(
        (
            "what_was_written_is_stored_by_tma_after_a_fence"
            if fenced
            else "control_without_a_fence_before_a_store_by_tma"
        ),
        f"""
    {
            repeat(
                "%r1",
                64,
                "mad.lo.u32 %r2, %r1, 128, %t; mad.lo.u32 %r4, %t, 4, %s;",
                f"st.shared.b32 [%r4+{BASE}], %r2; {fence} bar.sync 0;",
                only(
                    0,
                    f"mul.lo.u32 %r3, %r1, 128; {store_name(1)} [%m0, {{%r3}}], [%s+{BASE}]; "
                    f"{COMMIT}; {READ} 0;",
                ),
                "bar.sync 0;",
            )
        }
    {only(0, f"{WAIT} 0;")} bar.sync 0; mov.u32 %r9, 0;
    {
            repeat(
                "%r1",
                64,
                f"mad.lo.u32 %r2, %r1, 128, %t; {taken} setp.ne.u32 %p1, %r5, %r2; "
                f"@%p1 add.u32 %r9, %r9, 1;",
            )
        }
    {put(1, "%t", "%r9")}""",
        [zeros(64 * 128), zeros(128) + 9],
        [np.arange(64 * 128, dtype=np.uint32), zeros(128)] if fenced else [None, None],
        [FENCE] if fenced else [],
        threads=128,
        shared=BASE + 512,
        maps=[(0, Parameter("map", "", element="ui32", box=(128,)))],
    )


# ---- multicast -----------------------------------------------------------------------------------
def multicast(name: str, cluster: int, masks: dict[int, int], hint: bool = False) -> None:
    """Block r of the cluster loads part r of the array for the blocks of masks[r]; each block waits
    for what it is due, at the same place and barrier as the sender's.
    """
    size, parts = 256, array((cluster, 256), "ui32")
    due = [sum(mask >> r & 1 for mask in masks.values()) for r in range(cluster)]
    want = np.full((2, cluster, cluster, size), 0xAAAAAAAA, np.uint32)
    for r in range(cluster):
        for sender, mask in masks.items():
            if mask >> r & 1:
                want[:, r, sender] = parts[sender]
    more = ".multicast::cluster" + (".L2::cache_hint" if hint else "")
    sends = "\n".join(
        f"setp.eq.u32 %p1, %rank, {r}; mov.b16 %h1, {mask}; @%p1 {load_name(2, more)}"
        f" [%s+{BASE + 4 * size * r}], [%m0, {{0, {r}}}], [%s+8], %h1{', %d1' if hint else ''};"
        for r, mask in masks.items()
    )
    expects = "\n".join(
        f"setp.eq.u32 %p1, %rank, {r}; @%p1 {EXPECT} _, [%s+8], {4 * size * n};"
        for r, n in enumerate(due)
    )
    belief(
        name,
        f"""
    {fill(cluster * size, 128, at=BASE)} mov.b64 %d1, {POLICIES["evict_last"]};
    {only(0, f"{INIT} [%s+8], 1;", "fence.mbarrier_init.release.cluster;", expects)} {FENCE};
    bar.sync 0;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    {only(0, sends)}
    {wait("[%s+8]", 0)}
    mul.lo.u32 %r5, %block, {cluster * size}; {dump(cluster * size, 128, 1, at=BASE, first="%r5")}
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;""",
        [parts, zeros(2 * cluster * cluster * size)],
        [parts, want],
        [load_name(2, more), EXPECT, "barrier.cluster.arrive.aligned"],
        threads=128,
        blocks=2 * cluster,
        cluster=cluster,
        shared=BASE + 4 * cluster * size,
        maps=[(0, Parameter("map", "", element="ui32", box=(1, size)))],
    )


multicast("one_block_loads_for_both", 2, {0: 0b11})
multicast("each_block_loads_a_part_for_both", 2, {0: 0b11, 1: 0b11})
multicast("a_mask_chooses_the_blocks", 4, {0: 0b1110, 1: 0b0101, 3: 0b1010}, hint=True)
