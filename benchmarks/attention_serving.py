"""What serving needs of attention beside attention_variants.py: steps of decoding by latents (MLA)
and with a prefix that sequences share, several tokens and parts of prompts on pages, and new keys
and values into a cache. BENCH_ONLY=prefill,tokens-paged picks races by parts of their names.

By latents the bound is the larger one of two times: of the cache's bytes at the speed of a copy
that only reads, and of the dots at the rate of tensor cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

# what the shares of `latent` are of: bytes and operations a second
READ_RATE, DOT_RATES = 4.24e12, {16: 700e12, 8: 1300e12}


def contests(seed: int) -> Iterator[Contest]:
    only = tuple(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for contest in _all(seed):
        if not only or any(part in contest.name for part in only):
            yield contest


def _all(seed: int) -> Iterator[Contest]:
    for heads in (128, 64, 16):
        yield latent(seed, heads)
    yield latent(seed, 128, page=64)
    yield latent(seed, 128, page=64, bits=8)
    yield prefix(seed, 64, 8192, 512)
    yield prefix(seed, 64, 2048, 512)
    yield prefill(seed)
    for queries in (4, 16):
        yield tokens(seed, queries)
    yield append(seed, 64, 1)
    yield append(seed, 4, 2048)


def latent(
    seed: int,
    heads: int,
    page: int = 0,
    bits: int = 16,
    batch: int = 64,
    keys: int = 8192,
    rank: int = 512,
    d: int = 576,
) -> Contest:
    """page: the cache lies in shuffled pages of so many rows; bits: 8: it is float8, and so are the
    queries; beside that with queries of 16 bits, which cannot use tensor cores of 8.
    """
    import torch

    from tkc import kernels

    made = torch.Generator("cuda").manual_seed(seed)
    kind = torch.bfloat16 if bits == 16 else torch.float8_e4m3fn
    q = torch.randn(batch, 1, heads, d, device="cuda", dtype=torch.bfloat16, generator=made)
    cache = torch.randn(batch, keys, d, device="cuda", generator=made).to(kind)
    lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    store, pages = cache, None
    if page:
        count = batch * keys // page
        pages = torch.randperm(count, device="cuda", generator=made).int().view(batch, -1)
        store = torch.empty(count, page, d, device="cuda", dtype=kind)
        rows = cache.view(torch.uint8).view(count, -1)
        store.view(torch.uint8).view(count, -1)[pages.long().flatten()] = rows
    half, given = torch.empty_like(cache[: batch // 2]), q.to(kind)

    def of(queries: Any) -> Runner:
        return Runner(
            lambda: kernels.attention_latent(queries, store, lengths, rank, pages=pages), None
        )

    def copy() -> Runner:
        # reads half of the bytes and writes half
        return Runner(lambda: half.copy_(cache[: batch // 2]), None)

    def reference():
        wide = cache.float()
        p = torch.softmax(torch.einsum("bqhd,bkd->bqhk", given.float(), wide) * d**-0.5, -1)
        return torch.einsum("bqhk,bkd->bqhd", p, wide[..., :rank])

    flops = 2 * batch * heads * keys * (d + rank)
    bound = max(cache.numel() * cache.element_size() / READ_RATE, flops / DOT_RATES[bits])
    asked = harness.time_at_most(
        "tkc", bound / 0.75, f"0.75 of the bound's speed, {bound / 0.75e-3:.4g} ms, at most"
    )
    where = f", pages of {page}" if page else ""
    contestants = [Contestant("tkc", lambda: of(given), "ours")]
    if bits == 8:
        contestants.append(Contestant("tkc, q of bfloat16", lambda: of(q)))
    contestants.append(Contestant("copy", copy, "bound"))
    return Contest(
        f"attention-latent-{heads}{f'-paged-{page}' if page else ''}{'-float8' * (bits == 8)}",
        f"A step of decoding by latents (MLA): batch {batch}, {heads} heads, {keys} keys{where}, D"
        f" = {d}, {rank} of them values, {'float8_e4m3' if bits == 8 else 'bfloat16'}",
        tuple(contestants),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=(asked,) if heads == 128 else (),
    )


def prefix(
    seed: int,
    batch: int,
    length: int,
    keys: int,
    heads: int = 32,
    shared: int = 8,
    d: int = 128,
) -> Contest:
    """Beside the same with a copy of the prefix before each sequence's own keys."""
    import torch

    from tkc import kernels

    made = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=made)

    q = normal(batch, heads, 1, d)
    before, own = [
        [normal(*shape, d) for _ in range(2)] for shape in ((shared, length), (batch, shared, keys))
    ]
    whole = [
        torch.cat([a.expand(batch, -1, -1, -1), b], 2) for a, b in zip(before, own, strict=True)
    ]
    lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)

    def ours() -> Runner:
        given = dict(prefix_k=before[0], prefix_v=before[1])
        return Runner(lambda: kernels.attention_decode(q, *own, lengths, **given), None)

    def copied() -> Runner:
        return Runner(lambda: kernels.attention_decode(q, *whole, lengths + length), None)

    def reference():
        wide = (x.float().repeat_interleave(heads // shared, 1) for x in whole)
        return torch.nn.functional.scaled_dot_product_attention(q.float(), *wide)

    # each sequence's own bytes, and the prefix's once
    bytes_ = 4 * (batch * keys + length) * shared * d
    return Contest(
        f"attention-prefix-{length}-{keys}",
        f"A step of decoding: batch {batch}, {heads} query heads, {shared} shared, {length} keys"
        f" that all sequences share before {keys} of their own, D = {d}, bfloat16",
        (Contestant("tkc", ours, "ours"), Contestant("tkc, prefix in each", copied, "bound")),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=bytes_ / 1e9,
        unit="GB/s",
        figures=(harness.speed_ratio("tkc", "tkc, prefix in each", 1.0),),
    )


def in_pages(x: Any, page: int, table: Any) -> Any:
    """Keys or values [batch, heads, rows, D] as a pool of pages [pages, page, heads, D]. table:
    which pages a sequence has.
    """
    import torch

    batch, heads, rows, d = x.shape
    pool = torch.empty(batch * rows // page, page, heads, d, device=x.device, dtype=x.dtype)
    pool[table.long().flatten()] = x.transpose(1, 2).reshape(-1, page, heads, d)
    return pool


class _Paged(NamedTuple):
    """Queries, keys and values of sequences that are as long as one another, and the keys and
    values in shuffled pages."""

    q: Any
    k: Any
    v: Any
    pools: tuple[Any, Any]
    lengths: Any
    pages: Any

    @classmethod
    def made(cls, seed: int, batch: int, queries: int, keys: int, page: int = 64) -> _Paged:
        """32 heads on 8 of 128 elements, bfloat16."""
        import torch

        made = torch.Generator("cuda").manual_seed(seed)
        q, k, v = (
            torch.randn(batch, h, n, 128, device="cuda", dtype=torch.bfloat16, generator=made)
            for h, n in ((32, queries), (8, keys), (8, keys))
        )
        count = batch * keys // page
        pages = torch.randperm(count, device="cuda", generator=made).int().view(batch, -1)
        pools = in_pages(k, page, pages), in_pages(v, page, pages)
        lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
        return cls(q, k, v, pools, lengths, pages)

    def ours(self) -> Runner:
        from tkc import kernels

        given = self.q, *self.pools, self.lengths
        return Runner(lambda: kernels.attention_decode(*given, pages=self.pages), None)

    def dense(self) -> Runner:
        from tkc import kernels

        return Runner(lambda: kernels.attention(self.q, self.k, self.v, causal=True), None)

    def copy(self) -> Runner:
        """Reads half of the bytes of the keys and values, and writes half."""
        import torch

        half = self.k.shape[0] // 2
        pairs = [(torch.empty_like(x[:half]), x[:half]) for x in (self.k, self.v)]
        return Runner(lambda: [to.copy_(x) for to, x in pairs], None)

    def reference(self) -> Any:
        """The last query sees all keys."""
        import torch

        keep = torch.ones(self.q.shape[2], self.k.shape[2], device="cuda", dtype=torch.bool)
        keep = keep.tril(self.k.shape[2] - self.q.shape[2])
        found = []
        for q, k, v in zip(self.q.split(1), self.k.split(1), self.v.split(1), strict=True):
            wide = (x.float().repeat_interleave(4, 1) for x in (k, v))
            found.append(
                torch.nn.functional.scaled_dot_product_attention(q.float(), *wide, attn_mask=keep)
            )
        return torch.cat(found)


def prefill(seed: int, batch: int = 8, queries: int = 2048, keys: int = 16384) -> Contest:
    """A part of a prompt on keys in pages, beside keys one behind the other."""
    given = _Paged.made(seed, batch, queries, keys)
    pairs = queries * keys - queries * (queries - 1) / 2
    return Contest(
        f"attention-prefill-paged-{batch}x{queries}-{keys}",
        f"{batch} parts of prompts of {queries} tokens on {keys} keys each, in pages of 64, 32"
        " heads on 8, D = 128, bfloat16",
        (Contestant("tkc", given.ours, "ours"), Contestant("tkc, dense", given.dense, "bound")),
        harness.gpu_timer,
        harness.GPU_TIMING,
        given.reference,
        amount=4 * batch * 32 * 128 * pairs / 1e12,
        unit="TFLOP/s",
        figures=(harness.speed_ratio("tkc", "tkc, dense", 0.95),),
    )


def tokens(seed: int, queries: int, batch: int = 64, keys: int = 8192) -> Contest:
    """Several tokens of each sequence at once, as in speculative decoding."""
    given = _Paged.made(seed, batch, queries, keys)
    return Contest(
        f"attention-tokens-paged-{batch}x{queries}-{keys}",
        f"A step of decoding of {queries} tokens: {batch} sequences on {keys} keys each, in pages"
        " of 64, 32 heads on 8, D = 128, bfloat16",
        (Contestant("tkc", given.ours, "ours"), Contestant("copy", given.copy, "bound")),
        harness.gpu_timer,
        harness.GPU_TIMING,
        given.reference,
        amount=4 * given.k.numel() / 1e9,
        unit="GB/s",
        figures=(harness.speed_ratio("tkc", "copy", 0.85),),
    )


def append(
    seed: int, batch: int, tokens: int, heads: int = 8, d: int = 128, page: int = 64
) -> Contest:
    """Keys turned and written with the values into shuffled pages; the rival in torch's own
    operations, by torch.compile.
    """
    import torch

    from tkc import kernels

    made = torch.Generator("cuda").manual_seed(seed)
    k, v = (
        torch.randn(batch, tokens, heads, d, device="cuda", dtype=torch.bfloat16, generator=made)
        for _ in range(2)
    )
    room = 4096
    count = batch * room // page
    pages = torch.randperm(count, device="cuda", generator=made).int().view(batch, -1)
    pools = [
        torch.zeros(count, page, heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    ]
    lengths = torch.full((batch,), room, device="cuda", dtype=torch.int32)
    angles = torch.arange(room, device="cuda")[:, None] * 1e4 ** (
        -torch.arange(0, d, 2, device="cuda") / d
    )
    cos, sin = angles.cos(), angles.sin()

    def theirs(k, v, keys, values, lengths, cos, sin, pages):
        at = lengths[:, None].long() - tokens + torch.arange(tokens, device="cuda")
        c, s = cos[at][:, :, None], sin[at][:, :, None]
        a, b = k.float().chunk(2, -1)
        place = torch.gather(pages.long(), 1, at // page), at % page
        keys[place] = torch.cat([a * c - b * s, b * c + a * s], -1).to(k.dtype)
        values[place] = v

    given = k, v, *pools, lengths, cos, sin, pages

    def ours() -> Runner:
        return Runner(lambda: kernels.append_to_cache_(*given), None)

    bytes_ = 4 * k.numel() * k.element_size()
    return Contest(
        f"append-to-cache-{batch}x{tokens}",
        f"Keys turned and written with values into pages of {page}: {batch} sequences, {tokens} new"
        f" tokens, {heads} heads, D = {d}, bfloat16",
        (Contestant("tkc", ours, "ours"), *rivals_torch.compiled(lambda: theirs(*given))),
        harness.gpu_timer,
        harness.GPU_TIMING,
        None,
        amount=bytes_ / 1e9,
        unit="GB/s",
        figures=tuple(harness.speed_ratio("tkc", name, 1.0) for name in rivals_torch.MODES),
    )
