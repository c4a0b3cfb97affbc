"""tkc.kernels.attention beside cuDNN (through torch): head dimensions, grouped queries, ragged lengths, a window, ragged batches, a step of decoding. bfloat16, B·S = 16384.

Windows count the 128 x 128 blocks that have a visible pair, as work; ragged batches their visible pairs; decoding the bytes of K and V, beside a copy of as many.
"""
from __future__ import annotations

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

TOKENS = 16384


def contests(seed: int):
    for d in (64, 96, 192, 256):
        for causal in (False, True):
            for s in (1024, 4096, 16384) if d == 64 else (4096,): yield forward(seed, f"d{d}", s, s, d, causal)
    yield forward(seed, "grouped", 4096, 4096, 128, True, shared=2)
    yield forward(seed, "5003-1000", 5003, 1000, 128, False)
    yield forward(seed, "4095", 4095, 4095, 128, True)
    yield forward(seed, "window", 16384, 16384, 128, True, window=1024)
    yield ragged(seed)
    yield decode(seed)


def forward(seed: int, name: str, queries: int, keys: int, d: int, causal: bool, shared: int | None = None, window: int | None = None) -> Contest:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from tkc import kernels
    heads, batch = 2048 // d, max(1, TOKENS // queries)
    generator = torch.Generator("cuda").manual_seed(seed)
    make = lambda h, n: torch.randn(batch, h, n, d, device="cuda", dtype=torch.bfloat16, generator=generator)
    q, k, v = make(heads, queries), make(shared or heads, keys), make(shared or heads, keys)
    grouped = {"enable_gqa": True} if shared else {}

    def cudnn() -> Runner:
        def run():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION): return sdpa(q, k, v, is_causal=causal, **grouped)
        return Runner(run, None)

    def reference():
        spread = (x.repeat_interleave(heads // (shared or heads), 1).float() for x in (k, v)) if shared else (k.float(), v.float())
        if window is None:
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION): return sdpa(q.float(), *spread, is_causal=causal)
        k_, v_ = spread
        parts = []
        for start in range(0, queries, 2048):                   # a strip of rows sees a strip of columns
            first = max(0, start - window + 1)
            rows, columns = torch.arange(start, start + 2048, device="cuda")[:, None], torch.arange(first, start + 2048, device="cuda")
            keep = (columns <= rows) & (rows - columns < window)
            parts.append(sdpa(q[:, :, start:start + 2048].float(), k_[:, :, first:start + 2048], v_[:, :, first:start + 2048], attn_mask=keep))
        return torch.cat(parts, 2)

    def ours() -> Runner: return Runner(lambda: kernels.attention(q, k, v, causal=causal, window=window), None)

    pairs = queries * keys * (0.5 if causal else 1)
    if window is not None: pairs = sum(min(i, window // 128) + 1 for i in range(queries // 128)) * 128 * 128
    flops = 4 * batch * heads * pairs * d
    rivals = () if window is not None else (Contestant("cuDNN", cudnn),)
    kind = "causal" if causal else "full"
    return Contest(f"attention-{name}-{kind}-{queries}", f"Attention forward, {name}, D = {d}, {kind}, S = {queries}{'' if keys == queries else f' and {keys}'}, bfloat16",
                   (Contestant("tkc", ours, "ours"), *rivals), harness.gpu_timer, harness.GPU_TIMING, reference, amount=flops / 1e12, unit="TFLOP/s")


def ragged(seed: int, count: int = 64) -> Contest:
    """Lengths uniform in 128 … 8192, seed 0."""
    import numpy as np
    import torch

    from tkc import kernels
    lengths = np.random.default_rng(0).integers(128, 8193, count)
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens, heads, d = int(begins[-1]), 16, 128
    q, k, v = (torch.randn(tokens, heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    at = torch.tensor(begins, device="cuda")

    def ours() -> Runner: return Runner(lambda: kernels.attention(q, k, v, causal=True, begins=at, longest=int(lengths.max())), None)

    def even() -> Runner:
        """As many tokens in sequences of 4096, their time scaled to the ragged batch's pairs."""
        batch = tokens // 4096
        a, b, c = (torch.randn(batch, heads, 4096, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        return Runner(lambda: kernels.attention(a, b, c, causal=True), None)
    pairs = float((lengths.astype(np.float64) ** 2).sum() / 2)
    even_pairs = tokens // 4096 * 4096 ** 2 / 2
    return Contest("attention-ragged", f"Attention forward, 64 causal sequences of 128 to 8192 tokens, D = 128 (of a batch of even ones of 4096 the time; its pairs are {even_pairs / pairs:.3f} of these)",
                   (Contestant("tkc", ours, "ours"), Contestant("tkc, all of 4096", even)), harness.gpu_timer, harness.GPU_TIMING, None, amount=4 * heads * d * pairs / 1e12, unit="TFLOP/s")


def decode(seed: int, batch: int = 64, heads: int = 32, shared: int = 8, keys: int = 8192, d: int = 128) -> Contest:
    import torch

    from tkc import kernels
    q = torch.randn(batch, heads, 1, d, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, shared, keys, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    half = torch.empty_like(k[:batch // 2]), torch.empty_like(v[:batch // 2])
    bytes_ = 2 * k.numel() * 2

    def ours() -> Runner: return Runner(lambda: kernels.attention_decode(q, k, v, lengths), None)
    def copy() -> Runner: return Runner(lambda: (half[0].copy_(k[:batch // 2]), half[1].copy_(v[:batch // 2])), None)      # reads half of the bytes and writes half
    def reference():
        return torch.nn.functional.scaled_dot_product_attention(q.float(), *(x.float().repeat_interleave(heads // shared, 1) for x in (k, v)))
    return Contest("attention-decode", "A step of decoding: batch 64, 32 query heads, 8 shared, 8192 keys, D = 128, bfloat16", (Contestant("tkc", ours, "ours"), Contestant("copy", copy, "bound")),
                   harness.gpu_timer, harness.GPU_TIMING, reference, amount=bytes_ / 1e9, unit="GB/s")
