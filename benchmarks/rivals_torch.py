"""Torch's own attention, by a backend of one's choice."""

from collections.abc import Callable


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
