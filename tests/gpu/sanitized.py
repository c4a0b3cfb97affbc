"""Every example and every function of tkc.kernels, at small odd shapes: what compute-sanitizer
watches (tests/gpu/sanitize.py) and tests/gpu/test_library.py compares with the CPU.

    python -m tests.gpu.sanitized [NAME …]    runs them on the GPU, in this order, each after a line
                                              `== NAME`, `== end` after the last

initcheck does not see what the tensor memory accelerator stores, so that no case here reads by
other means what another kernel stored by it. What it would miss by that, `unset` finds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ml_dtypes
import numpy as np

from benchmarks.harness import example
from tests.gpu import models, recurrences

# give(shape, dtype="float32", seed=0): an array of the library and device that are tested
Give = Callable[..., object]


def numbers(
    shape,
    dtype: str = "float32",
    seed: int = 0,
    low: int | None = None,
    high: int | None = None,
    scale: float = 1.0,
) -> np.ndarray:
    """Whole numbers from low (0) to high, or normal ones of this scale."""
    rng = np.random.default_rng(seed)
    if high is not None:
        return rng.integers(low or 0, high, shape).astype(dtype)
    return (scale * rng.standard_normal(shape)).astype(getattr(ml_dtypes, dtype, dtype))


def examples(device: str) -> dict[str, Callable[[], list[dict]]]:
    """The examples' own cases, small, with edges that no block fits."""
    sizes = {
        "vector_add": {"n": 10_007},
        "softmax": {"rows": 37, "columns": 1000},
        "layer_norm": {"rows": 37, "columns": 1000},
        "matmul": {"size": 264},
        "attention": {"batch": 1, "heads": 2, "sequence": 200},
        "matmul_steps": {"size": 264, "k": 192},
        "attention_steps": {"heads": 2, "sequence": 200},
        "float8_matmul": {"size": 272},
        "float8_attention": {"heads": 2, "sequence": 200, "d": 64},
        "quantized_linear": {"size": 272},
        "gated_mlp": {"rows": 264, "columns": 200, "k": 136},
        "cumulative_sum": {"n": 10_007, "block": 1024, "group": 4},
        "dropout": {"n": 10_007},
        "histogram": {"n": 10_007},
    }

    def made(name, given):
        # which times the same kernels again and again
        return [
            case for case in example(name).cases(device, **given) if "autotune" not in case["name"]
        ]

    return {name: lambda name=name, given=given: made(name, given) for name, given in sizes.items()}


def step(give: Give):
    from tkc import kernels

    p, grad, m, v = (give((1000,), seed=i) for i in range(4))
    m, v = m * 0, v * v
    kernels.adam_(p, grad, m, v, 2)
    return p, m, v


def append(give: Give):
    from tkc import kernels

    k, v = (give((2, 3, 2, 32), "bfloat16", i) for i in range(2))
    caches = [give((2, 2, 50, 32), "bfloat16", i) for i in (2, 3)]
    lengths, angles = give((2,), "int32", 4, low=1, high=50), [give((50, 16), seed=5)] * 2
    kernels.append_to_cache_(k, v, *caches, lengths, *angles)
    return tuple(caches)


def entropy(give: Give):
    from tkc import kernels

    logits, target = give((7, 1025), seed=1), give((7,), "int64", 2, low=0, high=1025)
    loss, lse = kernels.cross_entropy(logits, target)
    return loss, lse, kernels.cross_entropy_backward(give((7,), seed=3), logits, target, lse)


def entropy_in_place(give: Give):
    from tkc import kernels

    logits = give((7, 1025), seed=1)
    return kernels.cross_entropy_(logits, give((7,), "int64", 2, low=0, high=1025), 0.5), logits


def quantized(give: Give, rows: bool):
    from tkc import kernels

    q, scales = (kernels.quantize_rows if rows else kernels.quantize)(give((7, 257)))
    return scales, kernels.dequantize(q, scales, "float32")


def scaled(give: Give):
    from tkc import kernels

    a, w, bias = give((130, 300)), give((72, 300), seed=1), give((72,), seed=2)
    (x, sx), (y, sy), (z, sz) = (
        kernels.quantize_blocks(a),
        kernels.quantize_blocks(w, 128),
        kernels.quantize_rows(w, "int8"),
    )
    yield (
        sx,
        sy,
        kernels.scaled_matmul(x, y.T, sx, sy.T, bias, "silu"),
        kernels.scaled_matmul(y, x.T, sy, sx.T),
    )
    (x, sx), (y, sy) = kernels.quantize_rows(a, "float8_e5m2"), kernels.quantize(w)
    yield from (kernels.scaled_matmul(x, y.T, sx, sy, exact=exact) for exact in (True, False))
    yield kernels.scaled_matmul(
        kernels.quantize(a, "int8")[0], z.T, kernels.quantize(a, "int8")[1], sz
    )


def products(give: Give):
    from tkc import kernels

    for dtype in ("bfloat16", "float32"):
        for m, n, k in ((1, 33, 65), (130, 200, 96), (264, 256, 128)):
            yield kernels.matmul(
                give((m, k), dtype), give((k, n), dtype, 1), give((n,), dtype, 2), "gelu"
            )


def attentions(give: Give, **how: bool):
    """The result of each call, and what it was given."""
    from tkc import kernels

    for heads, shared, queries, keys, d, options in (
        (2, 2, 200, 264, 64, {}),
        (4, 2, 130, 130, 128, {"causal": True}),
        (2, 1, 70, 70, 64, {"causal": True, "window": 30, "softcap": 4.0}),
    ):
        given = (
            give((1, heads, queries, d), "bfloat16"),
            *(give((1, shared, keys, d), "bfloat16", i) for i in (1, 2)),
        )
        yield kernels.attention(*given, **options, **how), (given, options)


def attention_gradients(give: Give):
    from tkc import kernels

    for (out, lse), (given, options) in attentions(give, with_lse=True):
        grad = give(tuple(out.shape), "bfloat16", 3)
        yield from kernels.attention_backward(grad, *given, out, lse, **options)


def modified_attentions(give: Give):
    from tkc import kernels

    q, k, v = (give((1, h, 70, 64), "bfloat16", i) for i, h in enumerate((4, 2, 2)))
    slopes = give((4,), seed=3)
    mask = kernels.create_block_mask(lambda b, h, i, j: i >= j, None, None, 70, 70, 16, like=q)
    options = dict(
        score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j), block_mask=mask, dropout=0.1
    )
    out, lse = kernels.attention(q, k, v, with_lse=True, **options)
    yield out
    found = kernels.attention_backward(out, q, k, v, out, lse, **options)
    yield from found[:3]  # what was captured is added up in any order


def experts(give: Give):
    from tkc import kernels

    ends = kernels.cumsum(give((3,), "int32", 3, low=30, high=75))
    a = give((200, 72), "bfloat16")
    return kernels.grouped_matmul(a, give((3, 72, 40), "bfloat16", 1), ends), kernels.grouped_outer(
        a, give((200, 40), "bfloat16", 2), ends
    )


@functools.cache
def library() -> dict[str, Callable[[Give], object]]:
    """Function of tkc.kernels -> a call of it; `+` joins names that one call covers. Cached, so
    that the sampler (tests/sampling.py) gives what calls one function to one day, in every file.
    """
    from tkc import kernels as t

    x, y, rows = (7, 257), (3, 5, 7), (5, 1000)
    return {
        "softmax + softmax_backward": lambda g: t.softmax_backward(
            g(rows), t.softmax(g(rows, seed=1))
        ),
        "log_softmax + log_softmax_backward": lambda g: t.log_softmax_backward(
            g(rows), t.log_softmax(g(rows, seed=1))
        ),
        "layer_norm": lambda g: t.layer_norm(g(x), g(257, seed=1), g(257, seed=2)),
        "rms_norm": lambda g: t.rms_norm(g(x, "bfloat16"), g(257, "bfloat16", 1)),
        "add_layer_norm": lambda g: t.add_layer_norm(g(x), g(x, seed=1), g(257, seed=2)),
        "gated_rms_norm": lambda g: t.gated_rms_norm(g(x), g(x, seed=1), g(257, seed=2)),
        "add_rms_norm": lambda g: t.add_rms_norm(g(x), g(x, seed=1), g(257, seed=2)),
        "layer_norm_backward": lambda g: t.layer_norm_backward(g(x), g(x, seed=1), g(257, seed=2)),
        "rms_norm_backward": lambda g: t.rms_norm_backward(
            g(x), g(x, seed=1), g(257, seed=2), g(x, seed=3)
        ),
        "gelu + gelu_backward": lambda g: (
            t.gelu(g(y)),
            t.gelu_backward(g(y), g(y, seed=1), "tanh"),
        ),
        "silu + silu_backward": lambda g: (t.silu(g(y)), t.silu_backward(g(y), g(y, seed=1))),
        "swiglu + swiglu_backward": lambda g: (
            t.swiglu(g(x), g(x, seed=1)),
            *t.swiglu_backward(g(x), g(x, seed=1), g(x, seed=2)),
        ),
        "geglu + geglu_backward": lambda g: (
            t.geglu(g(x), g(x, seed=1)),
            *t.geglu_backward(g(x), g(x, seed=1), g(x, seed=2)),
        ),
        "dropout": lambda g: t.dropout(g(x), 0.3, 42),
        "cross_entropy + cross_entropy_backward": entropy,
        "cross_entropy_": entropy_in_place,
        "adam_": step,
        "quantize + dequantize": lambda g: quantized(g, False),
        "quantize_rows": lambda g: quantized(g, True),
        "rotary": lambda g: t.rotary(g((2, 5, 3, 64)), g((5, 32), seed=1), g((5, 32), seed=2)),
        "cumsum": lambda g: (t.cumsum(g((5, 31))), t.cumsum(g((2, 8193)), reverse=True)),
        "sum": lambda g: t.sum(g((7, 1025))),
        "topk": lambda g: t.topk(g((3, 1025)), 7),
        "histogram": lambda g: t.histogram(g((4097,)), 10, -3.0, 3.0),
        "transpose": lambda g: t.transpose(g((65, 131))),
        "embedding": lambda g: t.embedding(g((50, 70)), g((3, 33), "int64", 1, low=0, high=50)),
        "embedding_backward": lambda g: t.embedding_backward(
            g((3, 33, 70)), g((3, 33), "int64", 1, low=0, high=50), 50
        ),
        "matmul": lambda g: tuple(products(g)),
        "grouped_matmul + grouped_outer": experts,
        "scaled_matmul + quantize_blocks": lambda g: tuple(scaled(g)),
        "attention": lambda g: tuple(out for out, _ in attentions(g)),
        "attention_backward": lambda g: tuple(attention_gradients(g)),
        "create_block_mask": lambda g: tuple(modified_attentions(g)),
        "attention_decode": lambda g: t.attention_decode(
            g((2, 4, 1, 64), "bfloat16"),
            *(g((2, 2, 600, 64), "bfloat16", i) for i in (1, 2)),
            g((2,), "int32", 3, low=1, high=600),
        ),
        "append_to_cache_": append,
        "attention_latent": lambda g: t.attention_latent(
            g((2, 3, 24, 80), "bfloat16"),
            g((2, 300, 80), "bfloat16", 1),
            g((2,), "int32", 2, low=1, high=300),
            64,
        ),
        **recurrences.library(),
        **models.library(),
    }


def cases(give: Give, device: str) -> dict[str, Callable[[], object]]:
    """Everything by name; what each does is launched when it is called."""

    def run(make) -> None:
        for case in make():
            case["run"]()

    return {
        f"examples/{name}": lambda make=make: run(make) for name, make in examples(device).items()
    } | {f"kernels.{name}": lambda call=call: call(give) for name, call in library().items()}


@contextmanager
def unset(byte: int) -> Iterator[None]:
    """Every array that the library allocates without setting its elements begins with this byte
    everywhere: a result that depends on it has elements that nobody wrote, or was computed from
    some.
    """
    from tkc.kernels import arrays

    empty, homes = (
        arrays.empty,
        [
            m
            for name, m in sys.modules.items()
            if name.startswith("tkc.kernels.") and getattr(m, "empty", None) is arrays.empty
        ],
    )

    def filled(*args, **kwargs):
        array = empty(*args, **kwargs)
        if isinstance(array, np.ndarray):
            array.reshape(-1).view(np.uint8)[...] = byte
        else:
            array.reshape(-1).view(sys.modules["torch"].uint8).fill_(byte)
        return array

    for m in homes:
        m.empty = filled
    try:
        yield
    finally:
        for m in homes:
            m.empty = empty


def flat(results) -> list:
    """The arrays of a result."""
    return (
        [a for r in results for a in flat(r)] if isinstance(results, (tuple, list)) else [results]
    )


def main(names: list[str]) -> None:
    import torch

    from tests.gpu.device import on_gpu

    def give(*args, **kwargs):
        return on_gpu(numbers(*args, **kwargs))

    made = cases(give, "cuda")
    for name in names or made:
        run = made[name]
        print(f"== {name}", flush=True)
        run()
        torch.cuda.synchronize()
    print("== end", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
