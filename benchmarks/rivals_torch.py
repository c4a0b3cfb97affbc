"""What torch makes of the same work: its own attention, by a backend of one's choice, and functions
by torch.compile; and FlashAttention-3 where its package is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.harness import Contestant, Runner

# by the name of a contestant; the last without CUDA graphs, which would copy what is given
MODES = {"torch.compile": None, "torch.compile, max-autotune": "max-autotune-no-cudagraphs"}


def attention(backend: str, q, k, v, **how) -> Callable:
    """A run of scaled_dot_product_attention by that backend alone ("CUDNN", "EFFICIENT"), which
    raises where it cannot; `how`: is_causal, enable_gqa, …
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    chosen = getattr(SDPBackend, f"{backend}_ATTENTION")

    def run():
        with sdpa_kernel(chosen):
            return scaled_dot_product_attention(q, k, v, **how)

    return run


def compiled(function: Callable[[], Any]) -> tuple[Contestant, ...]:
    """A function of nothing by torch.compile, by default and with its own autotuning, for the
    sizes of now: what was compiled for other sizes before is forgotten, so that none of them is
    taken for one that varies.
    """
    import torch

    torch._dynamo.reset()
    torch._dynamo.config.cache_size_limit = 256

    def make(mode: str | None) -> Runner:
        return Runner(torch.compile(function, dynamic=False, mode=mode))

    return tuple(Contestant(name, partial(make, mode)) for name, mode in MODES.items())


def flash3(q: Any, k: Any, v: Any, causal: bool) -> Callable[[], Any]:
    """A run of FlashAttention-3 on arrays of [batch, heads, rows, D], its result likewise, which
    autograd follows. Raises ImportError where the package `flash_attn_interface` is missing.
    """
    attend = import_module("flash_attn_interface").flash_attn_func
    turned = [x.transpose(1, 2) for x in (q, k, v)]  # it wants rows before heads

    def run() -> Any:
        found = attend(*turned, causal=causal)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return run
