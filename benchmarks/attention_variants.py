"""tkc.kernels.attention beside cuDNN (through torch): head dimensions, grouped queries, ragged
lengths, a window, ragged batches, a step of decoding, from pages and of float8 keys too; float8.
B·S = 16384. BENCH_ONLY=float8,paged in the environment picks groups (GROUPS).

Windows count the 128 x 128 blocks that have a visible pair, as work; ragged batches their visible
pairs; decoding the bytes of K and V, beside a copy of as many.
"""

from __future__ import annotations

import os

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

TOKENS = 16384


def contests(seed: int):
    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for group, make in GROUPS.items():
        if not only or group in only:
            yield from make(seed)


def widths(seed: int):
    for d in (96, 192, 256):
        for causal in (False, True):
            yield forward(seed, f"d{d}", 4096, 4096, d, causal)


def lengths(seed: int):
    yield forward(seed, "grouped", 4096, 4096, 128, True, shared=2)
    yield forward(seed, "5003-1000", 5003, 1000, 128, False, even=(5120, 1024))
    yield forward(seed, "4095", 4095, 4095, 128, True, even=(4096, 4096))


def window(seed: int):
    yield forward(seed, "window", 16384, 16384, 128, True, window=1024, even=(16384, 16384))


def float8(seed: int, s: int, causal: bool, d: int = 128) -> Contest:
    """Float8 with a scale a head, probabilities in float8; beside the same in bfloat16, ours and
    cuDNN's.
    """
    import torch

    from tkc import kernels

    heads, batch, generator = (
        2048 // d,
        max(1, TOKENS // s),
        torch.Generator("cuda").manual_seed(seed),
    )
    q, k, v = (
        torch.randn(batch, heads, s, d, device="cuda", generator=generator).to(torch.float8_e4m3fn)
        for _ in range(3)
    )
    one = torch.ones(heads, device="cuda")
    wide = [x.to(torch.bfloat16) for x in (q, k, v)]

    def cudnn() -> Runner:
        return Runner(rivals_torch.attention("CUDNN", *wide, is_causal=causal), None)

    def reference():
        return rivals_torch.attention(
            "EFFICIENT", *(x.float() for x in (q, k, v)), is_causal=causal
        )()

    kind, flops = (
        "causal" if causal else "full",
        4 * batch * heads * s * s * (0.5 if causal else 1) * d,
    )
    asked = harness.time_at_most(
        "tkc", flops / 900e12, f"900 TFLOP/s, {flops / 900e9:.4g} ms, at most"
    )
    return Contest(
        f"attention-float8-{kind}-{s}",
        f"Attention forward, float8_e4m3 with a scale a head, D = {d}, {kind}, S = {s}",
        (
            Contestant(
                "tkc",
                lambda: Runner(
                    lambda: kernels.attention(
                        q, k, v, causal=causal, q_scale=one, k_scale=one, v_scale=one
                    ),
                    None,
                ),
                "ours",
            ),
            Contestant(
                "tkc bfloat16",
                lambda: Runner(lambda: kernels.attention(*wide, causal=causal), None),
            ),
            Contestant("cuDNN bfloat16", cudnn),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        6e-2,
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=(asked,) if (s, causal) == (8192, False) else (),
    )


def forward(
    seed: int,
    name: str,
    queries: int,
    keys: int,
    d: int,
    causal: bool,
    shared: int | None = None,
    window: int | None = None,
    even: tuple[int, int] | None = None,
) -> Contest:
    import torch

    from tkc import kernels
    from tkc.kernels.attention_blocks import block_of

    heads, batch = 2048 // d, max(1, TOKENS // queries)
    generator = torch.Generator("cuda").manual_seed(seed)

    def make(h, n):
        return torch.randn(batch, h, n, d, device="cuda", dtype=torch.bfloat16, generator=generator)

    q, k, v = make(heads, queries), make(shared or heads, keys), make(shared or heads, keys)
    grouped = {"enable_gqa": True} if shared else {}

    def cudnn() -> Runner:
        return Runner(rivals_torch.attention("CUDNN", q, k, v, is_causal=causal, **grouped), None)

    def reference():
        spread = (
            (x.repeat_interleave(heads // (shared or heads), 1).float() for x in (k, v))
            if shared
            else (k.float(), v.float())
        )
        if window is None:
            return rivals_torch.attention("EFFICIENT", q.float(), *spread, is_causal=causal)()
        k_, v_ = spread
        parts = []
        for start in range(0, queries, 2048):  # a strip of rows sees a strip of columns
            first = max(0, start - window + 1)
            rows, columns = (
                torch.arange(start, start + 2048, device="cuda")[:, None],
                torch.arange(first, start + 2048, device="cuda"),
            )
            keep = (columns <= rows) & (rows - columns < window)
            parts.append(
                torch.nn.functional.scaled_dot_product_attention(
                    q[:, :, start : start + 2048].float(),
                    k_[:, :, first : start + 2048],
                    v_[:, :, first : start + 2048],
                    attn_mask=keep,
                )
            )
        return torch.cat(parts, 2)

    def ours() -> Runner:
        return Runner(lambda: kernels.attention(q, k, v, causal=causal, window=window), None)

    def evenly() -> Runner:
        a, b, c = (
            make(heads, even[0]),
            make(shared or heads, even[1]),
            make(shared or heads, even[1]),
        )
        return Runner(lambda: kernels.attention(a, b, c, causal=causal), None)

    pairs = queries * keys * (0.5 if causal else 1)
    if window is not None:
        pairs = _blocks(queries, window // 128)
    flops = 4 * batch * heads * pairs * d
    rivals, figures = (
        ((), ())
        if window is not None
        else ((Contestant("cuDNN", cudnn),), (harness.speed_ratio("tkc", "cuDNN", 1.0),))
    )
    if even:
        even_pairs = (
            even[0] * even[1] * (0.5 if causal else 1)
            if window is None
            else _blocks(even[0], even[0])
        )
        rivals, figures = (
            (*rivals, Contestant("tkc, even", evenly, "bound")),
            (
                *figures,
                work_ratio(
                    "tkc", "tkc, even", pairs / even_pairs, 0.95 if window is None else 0.90
                ),
            ),
        )
    kind, (rows, columns, co_resident, _) = (
        "causal" if causal else "full",
        block_of(q, k, v, causal, window),
    )
    return Contest(
        f"attention-{name}-{kind}-{queries}",
        f"Attention forward, {name}, D = {d}, {kind}, S ="
        f" {queries}{'' if keys == queries else f' and {keys}'}, bfloat16, blocks of {rows} x"
        f" {columns}{f', {co_resident} co-resident' * (co_resident > 1)}",
        (Contestant("tkc", ours, "ours"), *rivals),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=figures,
    )


def _blocks(rows: int, behind: int) -> int:
    """Pairs in the 128 x 128 blocks of which a causal row sees something, of so many blocks behind
    its own.
    """
    return sum(min(i, behind) + 1 for i in range(rows // 128)) * 128 * 128


def work_ratio(ours: str, other: str, work: float, bound: float) -> harness.Figure:
    """Ours must do `work` times the other's work, and each piece of it at `bound` times the other's
    speed.
    """
    return harness.Figure(
        f"{ours}: work a second at {bound:g} x that of {other} or more",
        (ours, other),
        lambda t: work * t[other] / t[ours],
        bound,
    )


def ragged(seed: int, count: int = 64) -> Contest:
    """Lengths uniform in 128 … 8192, seed 0."""
    import numpy as np
    import torch

    from tkc import kernels

    lengths = np.random.default_rng(0).integers(128, 8193, count)
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens, heads, d = int(cu_seqlens[-1]), 16, 128
    q, k, v = (torch.randn(tokens, heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    at = torch.tensor(cu_seqlens, device="cuda")

    def ours() -> Runner:
        return Runner(
            lambda: kernels.attention(
                q, k, v, causal=True, cu_seqlens=at, max_seqlen=int(lengths.max())
            ),
            None,
        )

    def even() -> Runner:
        """As many tokens in sequences of 4096, their time scaled to the ragged batch's pairs."""
        batch = tokens // 4096
        a, b, c = (
            torch.randn(batch, heads, 4096, d, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)
        )
        return Runner(lambda: kernels.attention(a, b, c, causal=True), None)

    pairs = float((lengths.astype(np.float64) ** 2).sum() / 2)
    even_pairs = tokens // 4096 * 4096**2 / 2
    return Contest(
        "attention-ragged",
        "Attention forward, 64 causal sequences of 128 to 8192 tokens, D = 128 (of a batch of even"
        f" ones of 4096 the time; its pairs are {even_pairs / pairs:.3f} of these)",
        (Contestant("tkc", ours, "ours"), Contestant("tkc, all of 4096", even, "bound")),
        harness.gpu_timer,
        harness.GPU_TIMING,
        None,
        amount=4 * heads * d * pairs / 1e12,
        unit="TFLOP/s",
        figures=(work_ratio("tkc", "tkc, all of 4096", pairs / even_pairs, 0.90),),
    )


def decode(
    seed: int,
    batch: int = 64,
    heads: int = 32,
    shared: int = 8,
    keys: int = 8192,
    d: int = 128,
    page: int = 0,
    short: bool = False,
) -> Contest:
    """page: the keys lie in shuffled pages of so many rows; short: keys and values are float8 with
    a scale a head, beside queries of bfloat16.
    """
    import torch

    from tkc import kernels

    q = torch.randn(batch, heads, 1, d, device="cuda", dtype=torch.bfloat16)
    k, v = (
        torch.randn(batch, shared, keys, d, device="cuda", dtype=torch.bfloat16).to(
            torch.float8_e4m3fn if short else torch.bfloat16
        )
        for _ in range(2)
    )
    scales = {name: torch.ones(shared, device="cuda") for name in ("k_scale", "v_scale") if short}
    lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    half = torch.empty_like(k[: batch // 2]), torch.empty_like(v[: batch // 2])
    bytes_ = 2 * k.numel() * k.element_size()

    pools, table = (k, v), None
    if page:
        table = (
            torch.randperm(
                batch * keys // page,
                device="cuda",
                generator=torch.Generator("cuda").manual_seed(seed),
            )
            .to(torch.int32)
            .view(batch, -1)
        )
        pools = []
        for x in (k, v):
            pool = torch.empty(batch * keys // page, page, shared, d, device="cuda", dtype=x.dtype)
            pool.view(torch.uint8)[table.long().flatten()] = (
                x.view(torch.uint8).transpose(1, 2).reshape(-1, page, shared, d * x.element_size())
            )
            pools.append(pool)

    def ours() -> Runner:
        return Runner(
            lambda: kernels.attention_decode(q, *pools, lengths, pages=table, **scales), None
        )

    def copy() -> Runner:
        # reads half of the bytes and writes half
        return Runner(
            lambda: (half[0].copy_(k[: batch // 2]), half[1].copy_(v[: batch // 2])), None
        )

    def reference():
        return torch.nn.functional.scaled_dot_product_attention(
            q.float(), *(x.float().repeat_interleave(heads // shared, 1) for x in (k, v))
        )

    where = f", pages of {page}" if page else ""
    return Contest(
        f"attention-decode{f'-paged-{page}' if page else ''}{'-float8' * short}",
        f"A step of decoding: batch 64, 32 query heads, 8 shared, 8192 keys{where}, D = 128,"
        f" {'float8_e4m3 keys and values, bfloat16 queries' if short else 'bfloat16'}",
        (Contestant("tkc", ours, "ours"), Contestant("copy", copy, "bound")),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=bytes_ / 1e9,
        unit="GB/s",
        figures=(harness.speed_ratio("tkc", "copy", 0.85),),
    )


GROUPS = {
    "widths": widths,
    "lengths": lengths,
    "window": window,
    "ragged": lambda seed: iter([ragged(seed)]),
    "decode": lambda seed: iter([decode(seed)]),
    "paged": lambda seed: (decode(seed, page=page) for page in (16, 64, 128)),
    "decode8": lambda seed: (decode(seed, page=page, short=True) for page in (0, 64)),
    "float8": lambda seed: (
        float8(seed, s, causal)
        for s, causal in ((8192, False), (1024, False), (16384, False), (8192, True))
    ),
}
