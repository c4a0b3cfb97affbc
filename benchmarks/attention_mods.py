"""Attention by score_mod and mask_mod, forward and its gradients, beside torch's FlexAttention with
the same functions and the same BlockMask: compiled by torch.compile with its own defaults, and by
`tkc.integrations.flex_attention` as it is. B·S = 16384, heads·D = 2048, S = 8192, D = 128; the
gradients are a whole call of autograd. Work is counted by the pairs that are seen, whatever is
executed. BENCH_ONLY=causal,alibi-backward picks rows by how their names begin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

TOKENS, WIDTH = 16384, 2048
LENGTH, D = 8192, 128
PIXELS = 128  # of a row of the picture that `neighbourhood` sees
ASKED = {False: 1.5, True: 1.35}  # of FlexAttention's speed: forward, backward
SEEN_AT_ONCE = 512  # rows of a mask that are counted at once


class Mods(NamedTuple):
    """The two functions, as torch wants them, and whether the mask differs by batch."""

    score: Callable | None
    mask: Callable
    by_batch: bool = False


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def mods_of(name: str, batch: int, heads: int, length: int, device: Any) -> Mods:
    """By name; captured tensors lie on the device."""
    import torch

    def numbers(*values: float, of: Any = torch.int32) -> torch.Tensor:
        return torch.tensor(values, device=device, dtype=of)

    if name == "causal":
        return Mods(None, _causal)
    if name == "window":
        return Mods(None, lambda b, h, i, j: (i >= j) & (i - j < length // 8))
    if name == "prefix":
        seen = numbers(*(length // 8 * (1 + n) for n in range(batch)))
        return Mods(None, lambda b, h, i, j: (i >= j) | (j < seen[b]), by_batch=True)
    if name == "document":
        made = torch.Generator().manual_seed(3)
        ends = torch.randperm(length - 1, generator=made)[:11].sort().values + 1
        of = torch.bucketize(torch.arange(length), ends, right=True).int().to(device)
        return Mods(None, lambda b, h, i, j: (of[i] == of[j]) & (i >= j))
    if name == "alibi":
        slopes = numbers(*(2.0 ** (-8 * (n + 1) / heads) for n in range(heads)), of=torch.float32)
        return Mods(lambda s, b, h, i, j: s - slopes[h] * (i - j), _causal)
    if name == "softcap":
        return Mods(lambda s, b, h, i, j: 20 * torch.tanh(s / 20), _causal)
    if name == "relative":
        table = torch.linspace(-1, 1, heads * 129, device=device).reshape(heads, 129)

        def relative(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + table[h, torch.clamp(i - j, -64, 64) + 64]

        return Mods(relative, lambda b, h, i, j: i - j < length)
    if name == "neighbourhood":

        def near(b: Any, h: Any, i: Any, j: Any) -> Any:
            rows, columns = i // PIXELS - j // PIXELS, i % PIXELS - j % PIXELS
            return (torch.abs(rows) <= 8) & (torch.abs(columns) <= 32)

        return Mods(None, near)
    if name == "dilated":
        return Mods(None, lambda b, h, i, j: (i >= j) & (i - j < length // 2) & ((i - j) % 4 == 0))
    raise ValueError(f"no modifier is named {name!r}; there are {', '.join(NAMES)}")


NAMES = (
    *("causal", "window", "prefix", "document", "alibi"),
    *("softcap", "relative", "neighbourhood", "dilated"),
)


def seen(mods: Mods, batch: int, length: int, device: Any) -> int:
    """Pairs of a head that the mask lets through, of all batches."""
    import torch

    columns, found = torch.arange(length, device=device)[None, :], 0
    for b in range(batch):
        for first in range(0, length, SEEN_AT_ONCE):
            rows = torch.arange(first, min(length, first + SEEN_AT_ONCE), device=device)[:, None]
            keep = mods.mask(torch.tensor(b, device=device), 0, rows, columns)
            found += int(keep.expand(len(rows), length).sum())
    return found


def contests(seed: int) -> Iterator[Contest]:
    only = tuple(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name in NAMES:
        for backward in (False, True):
            if not only or f"{name}-{'backward' if backward else 'forward'}".startswith(only):
                yield contest(seed, name, backward)


def contest(
    seed: int, name: str = "causal", backward: bool = False, length: int = LENGTH, d: int = D
) -> Contest:
    import torch
    from torch.nn.attention import flex_attention as flex

    from tkc.integrations.flex_attention import flex_attention

    batch, heads = TOKENS // length, WIDTH // d
    mods = mods_of(name, batch, heads, length, "cuda")
    made = torch.Generator("cuda").manual_seed(seed)
    q, k, v, grad = (
        torch.randn(batch, heads, length, d, device="cuda", dtype=torch.bfloat16, generator=made)
        for _ in range(4)
    )
    inputs = [x.requires_grad_(backward) for x in (q, k, v)]
    mask = flex.create_block_mask(
        mods.mask, batch if mods.by_batch else None, None, length, length, device="cuda"
    )

    def of(attend: Callable) -> Callable:
        def forward() -> Any:
            return attend(*inputs, score_mod=mods.score, block_mask=mask)

        if not backward:
            return forward
        out = forward()
        return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)

    def theirs() -> Callable:
        torch._dynamo.reset()
        return of(torch.compile(flex.flex_attention, dynamic=False))

    def ours() -> Runner:
        """Compared once, with FlexAttention's: in float64 the scores alone are 16 GB."""
        run, rival = of(flex_attention), theirs()
        got, want = ([x] if torch.is_tensor(x) else x for x in (run(), rival()))
        for one, other in zip(got, want, strict=True):
            if not (error := harness.relative_error(one, other)) <= 1e-2:
                raise harness.Wrong(f"relative error {error:.3g} to FlexAttention's")
        return Runner(run, None)

    kind = "backward" if backward else "forward"
    pairs = seen(mods, batch, length, "cuda")
    flops = (10 if backward else 4) * heads * pairs * d
    return Contest(
        f"attention-mods-{name}-{kind}",
        f"Attention {kind} by score_mod and mask_mod: {name}, D = {d}, S = {length}, bfloat16",
        (
            Contestant("tkc", ours, "ours"),
            Contestant("FlexAttention", lambda: Runner(theirs(), None)),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=(harness.speed_ratio("tkc", "FlexAttention", ASKED[backward]),),
    )
