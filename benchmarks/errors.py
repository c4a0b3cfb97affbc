"""python -m benchmarks.errors: the RMS error against float64 of every kernel of the library that
rounds, beside torch's own on the same numbers. On a GPU, half a minute.

A case is our function, torch's, and what both take: bfloat16 but where said otherwise. The truth is
torch's function of the same numbers in float64 (`exact` where that is another one). Asked is at
most 1.1 times torch's error of each result; the exit status says whether all are. What rounds
nothing (EXACT) is compared bit by bit in tests/gpu; what torch does not have (WITHOUT_RIVAL), with
float64 alone in tests/kernels.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tkc import kernels

MIN_RATIO = 1.1
EXACT = {"argmax", "create_block_mask", "dropout", "embedding", "histogram", "sort", "topk"}
EXACT |= {"transpose"}
# torch has no function for them; tests/kernels holds them to their recurrences in float64
WITHOUT_RIVAL = {
    "append_to_cache_",
    "fft",
    "fft_conv",
    "fft_conv_backward",
    "adam_variant_",
    "divergence",
    "divergence_backward",
    "dropout_add_layer_norm",
    "dyt",
    "dyt_backward",
    "gated_mlp",
    "gated_mlp_backward",
    "gated_rms_norm",
    "group_norm",
    "group_norm_backward",
    "grpo_loss",
    "kto_loss",
    "linear_gate_add",
    "lion_",
    "lora_linear",
    "preference_loss",
    "sparsemax",
    "sparsemax_backward",
    "beam_gather",
    "conv_backward",
    "dequantize_packed",
    "mixture_of_experts",
    "mixture_of_experts_backward",
    "pack_codes",
    "packed_matmul",
    "quantize_packed",
    "route",
    "route_backward",
    "sample",
    "sort_by_expert",
    "unpack_zeros",
    "based",
    "based_backward",
    "based_step",
    "normalized_linear_attention",
    "normalized_linear_attention_backward",
    "normalized_linear_attention_step",
    "taylor_features",
    "taylor_features_backward",
    "causal_conv1d_step",
    "delta_rule",
    "delta_rule_backward",
    "delta_rule_step",
    "hedgehog",
    "hedgehog_backward",
    "hedgehog_features",
    "hedgehog_features_backward",
    "hgrn",
    "hgrn_backward",
    "hgrn_step",
    "rwkv7",
    "rwkv7_backward",
    "rwkv7_step",
    "selective_scan",
    "selective_scan_backward",
    "selective_scan_step",
    "linear_attention",
    "linear_attention_backward",
    "linear_attention_step",
    "ssd",
    "ssd_backward",
    "ssd_step",
}


@dataclass(frozen=True)
class Case:
    """inputs: of a function that makes normal numbers of a shape (and has `integers`)."""

    ours: Callable
    theirs: Callable
    inputs: Callable[[Normal], tuple]
    exact: Callable | None = None


class Normal:
    """normal(4, 8): normal numbers on the GPU, the same ones in every run."""

    def __init__(self):
        import torch

        self.torch, self.generator = torch, torch.Generator("cuda").manual_seed(0)

    def __call__(self, *shape: int, dtype: str = "bfloat16"):
        return self.torch.randn(*shape, device="cuda", generator=self.generator).to(
            getattr(self.torch, dtype)
        )

    def integers(self, n: int, *shape: int, dtype: str = "int64"):
        return self.torch.randint(
            n, shape, device="cuda", generator=self.generator, dtype=getattr(self.torch, dtype)
        )


def torch():
    import torch

    return torch


def functional():
    import torch.nn.functional as F

    return F


# ---- torch's, of bfloat16 and of float64 ---------------------------------------------------------
def gradients(f: Callable) -> Callable:
    """Of the sum of f's results times g, for (g, inputs): what f's backward pass gives."""

    def back(g, *inputs):
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        return torch().autograd.grad(f(*leaves), [x for x in leaves if x.requires_grad], g)

    return back


def layer_norm(x, w, b):
    return functional().layer_norm(x, w.shape, w, b)


def rms_norm(x, w):
    return functional().rms_norm(x, w.shape, w, 1e-6)


def swiglu(x, gate):
    return functional().silu(x) * gate


def geglu(x, gate):
    return functional().gelu(x) * gate


def losses(x, t):
    return functional().cross_entropy(x, t, reduction="none")


def attend(q, k, v, **how):
    return functional().scaled_dot_product_attention(q, k, v, **how)


def convolved(x, weight, bias):
    width = weight.shape[1]
    padded = functional().pad(x.transpose(1, 2), (width - 1, 0))
    y = functional().conv1d(padded, weight[:, None], bias, groups=len(weight))
    return functional().silu(y).transpose(1, 2)


def linear_loss(x, weight, target):
    return functional().cross_entropy((x @ weight.t()).float(), target).reshape(1)


def attention_gradients(grad, q, k, v):
    out, lse = kernels.attention(q, k, v, with_lse=True)
    return kernels.attention_backward(grad, q, k, v, out, lse)


def numbers_and_scales(q, scales):
    return q.to(scales.dtype) * (scales if scales.shape == (1,) else scales[..., None])


def turned(x, cos, sin):
    a, b = x.to(cos.dtype).chunk(2, -1)
    return (
        torch()
        .cat((a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]), -1)
        .to(x.dtype)
    )


def quantized(x, axes):
    scale = x.float().abs().amax(axes, keepdim=True) / 448
    return (x.float() / scale).to(torch().float8_e4m3fn).float() * scale


def spread(scales, rows: int, columns: int):
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


def scaled(a, b, s, t):
    return torch()._scaled_mm(a, b.t(), scale_a=s, scale_b=t, out_dtype=torch().bfloat16)


def groups(f: Callable) -> Callable:
    def each(a, b, ends):
        at = [0, *ends.tolist()]
        return [
            f(a[i:j], b[g] if b.ndim == 3 else b[i:j])
            for g, (i, j) in enumerate(zip(at, at[1:], strict=False))
        ]

    return each


def adam(p, g, m, v):
    p, m, v = p.clone(), m.clone(), v.clone()
    optimizer = torch().optim.AdamW([p], lr=1e-3, weight_decay=0, fused=True)
    p.grad, optimizer.state[p] = (
        g,
        {
            "step": torch().tensor(2.0, device="cuda"),
            "exp_avg": m,
            "exp_avg_sq": v,
        },
    )
    optimizer.step()
    return p, m, v


# ---- ours, where it is not one call --------------------------------------------------------------
def in_place(kernel: Callable) -> Callable:
    def run(x, *others):
        x = x.clone()
        return kernel(x, *others), x

    return run


def adam_(p, g, m, v):
    p, m, v = p.clone(), m.clone(), v.clone()
    kernels.adam_(p, g, m, v, 3)
    return p, m, v


def losses_and_gradients(x, t):
    return (
        losses(x, t),
        gradients(losses)(torch().ones(t.shape, device="cuda", dtype=x.dtype), x, t)[0],
    )


def rows(normal):
    return (normal(1024, 4096),)


def pair(normal):
    return normal(1024, 4096), normal(1024, 4096)


def three(normal):
    return (*pair(normal), normal(1024, 4096))


def of(*shapes: Sequence[int]) -> Callable:
    return lambda normal: tuple(normal(*shape) for shape in shapes)


def classes(r: int, c: int) -> Callable:
    return lambda normal: (normal(r, c), normal.integers(c, r))


def results(y: Callable) -> Callable:
    return lambda normal: (lambda x, g: (g, y(x)))(*pair(normal))


def steps(normal):
    p, g, m = (normal(1 << 20, dtype="float32") for _ in range(3))
    return p, g, m, normal(1 << 20, dtype="float32").square()


def short(*scales: Sequence[int]) -> Callable:
    """Two float8 factors [1024, 2048] and their scales: as cuBLAS wants those of blocks, columns
    dense.
    """

    def made(normal):
        turned = [(normal(*shape, dtype="float32").abs() + 0.5) for shape in scales]
        if 1 not in scales[0]:
            turned = [x.t() for x in turned]
        return *(normal(1024, 2048).to(torch().float8_e4m3fn) for _ in "ab"), *turned

    return made


def heads(normal):
    angles = normal(1024, 64, dtype="float32")
    return normal(2, 1024, 8, 128), angles.cos(), angles.sin()


CASES = {
    "softmax": Case(kernels.softmax, lambda x: x.softmax(-1), rows),
    "softmax, rows of 131072": Case(kernels.softmax, lambda x: x.softmax(-1), of((64, 131072))),
    "log_softmax": Case(kernels.log_softmax, lambda x: x.log_softmax(-1), rows),
    "softmax_backward": Case(
        kernels.softmax_backward,
        lambda g, y: torch().ops.aten._softmax_backward_data(g, y, -1, y.dtype),
        results(lambda x: x.softmax(-1)),
    ),
    "log_softmax_backward": Case(
        kernels.log_softmax_backward,
        lambda g, y: torch().ops.aten._log_softmax_backward_data(g, y, -1, y.dtype),
        results(lambda x: x.log_softmax(-1)),
    ),
    "layer_norm": Case(kernels.layer_norm, layer_norm, of((1024, 4096), (4096,), (4096,))),
    "layer_norm, rows of 131072": Case(
        kernels.layer_norm, layer_norm, of((64, 131072), (131072,), (131072,))
    ),
    "rms_norm": Case(kernels.rms_norm, rms_norm, of((1024, 4096), (4096,))),
    "rms_norm, rows of 131072": Case(kernels.rms_norm, rms_norm, of((64, 131072), (131072,))),
    "add_layer_norm": Case(
        kernels.add_layer_norm,
        lambda x, r, w, b: (layer_norm(x + r, w, b), x + r),
        of((1024, 4096), (1024, 4096), (4096,), (4096,)),
    ),
    "add_rms_norm": Case(
        kernels.add_rms_norm,
        lambda x, r, w: (rms_norm(x + r, w), x + r),
        of((1024, 4096), (1024, 4096), (4096,)),
    ),
    "layer_norm_backward": Case(
        lambda g, x, w, b: kernels.layer_norm_backward(g, x, w),
        gradients(layer_norm),
        of((1024, 4096), (1024, 4096), (4096,), (4096,)),
    ),
    "rms_norm_backward": Case(
        kernels.rms_norm_backward, gradients(rms_norm), of((1024, 4096), (1024, 4096), (4096,))
    ),
    "cross_entropy": Case(lambda x, t: kernels.cross_entropy(x, t)[0], losses, classes(1024, 4096)),
    "cross_entropy_, rows of 131072": Case(
        in_place(kernels.cross_entropy_), losses_and_gradients, classes(64, 131072)
    ),
    "cross_entropy_backward": Case(
        lambda g, x, t: kernels.cross_entropy_backward(g, x, t, kernels.cross_entropy(x, t)[1]),
        lambda g, x, t: gradients(losses)(g, x, t)[0],
        lambda normal: (normal(1024), *classes(1024, 4096)(normal)),
    ),
    "gelu": Case(kernels.gelu, lambda x: functional().gelu(x), rows),
    "gelu, tanh": Case(
        lambda x: kernels.gelu(x, "tanh"), lambda x: functional().gelu(x, approximate="tanh"), rows
    ),
    "silu": Case(kernels.silu, lambda x: functional().silu(x), rows),
    "swiglu": Case(kernels.swiglu, swiglu, pair),
    "geglu": Case(kernels.geglu, geglu, pair),
    "gelu_backward": Case(
        kernels.gelu_backward, lambda g, x: torch().ops.aten.gelu_backward(g, x), pair
    ),
    "silu_backward": Case(
        kernels.silu_backward, lambda g, x: torch().ops.aten.silu_backward(g, x), pair
    ),
    "swiglu_backward": Case(kernels.swiglu_backward, gradients(swiglu), three),
    "geglu_backward": Case(kernels.geglu_backward, gradients(geglu), three),
    "rotary": Case(kernels.rotary, turned, heads),
    "adam_, float32": Case(adam_, adam, steps),
    "quantize": Case(
        lambda x: numbers_and_scales(*kernels.quantize(x)),
        lambda x: quantized(x, (0, 1)),
        rows,
        lambda x: x,
    ),
    "quantize_rows": Case(
        lambda x: numbers_and_scales(*kernels.quantize_rows(x)),
        lambda x: quantized(x, (1,)),
        rows,
        lambda x: x,
    ),
    "quantize_blocks": Case(
        lambda x: (lambda q, s: q.float() * spread(s, 1, 128))(*kernels.quantize_blocks(x)),
        lambda x: quantized(x.reshape(1024, 32, 128), (2,)).reshape(x.shape),
        rows,
        lambda x: x,
    ),
    "dequantize": Case(
        kernels.dequantize,
        lambda q, s: numbers_and_scales(q, s).bfloat16(),
        lambda normal: (
            normal.integers(127, 1024, 4096, dtype="int8"),
            normal(1024, dtype="float32"),
        ),
        numbers_and_scales,
    ),
    "cumsum": Case(kernels.cumsum, lambda x: x.cumsum(-1), rows),
    "cumsum, one row": Case(kernels.cumsum, lambda x: x.cumsum(-1), of((1 << 22,))),
    "sum, float32": Case(
        lambda x: torch().stack([kernels.sum(row) for row in x]),
        lambda x: torch().stack([row.sum() for row in x]),
        lambda normal: (normal(512, 1 << 18, dtype="float32"),),
    ),
    "embedding_backward": Case(
        lambda g, at: kernels.embedding_backward(g, at, 512),
        lambda g, at: torch().ops.aten.embedding_dense_backward(g, at, 512, -1, False),
        lambda normal: (normal(4096, 1024), normal.integers(512, 4096)),
    ),
    "matmul": Case(kernels.matmul, lambda a, b: a @ b, of((1024, 2048), (2048, 1024))),
    "scaled_matmul, rows": Case(
        lambda a, b, s, t: kernels.scaled_matmul(a, b.t(), s, t),
        scaled,
        short((1024, 1), (1, 1024)),
        lambda a, b, s, t: (a * s) @ (b.t() * t),
    ),
    "scaled_matmul, blocks": Case(
        lambda a, b, s, t: kernels.scaled_matmul(a, b.t(), s, t),
        scaled,
        short((16, 1024), (8, 16)),
        lambda a, b, s, t: (a * spread(s, 1, 128)) @ (b.t() * spread(t, 128, 128)),
    ),
    "grouped_matmul": Case(
        kernels.grouped_matmul,
        groups(lambda a, b: a @ b),
        lambda normal: (
            normal(1024, 512),
            normal(4, 512, 256),
            torch().tensor([200, 456, 777, 1024], device="cuda", dtype=torch().int32),
        ),
    ),
    "grouped_outer": Case(
        kernels.grouped_outer,
        groups(lambda a, b: a.t() @ b),
        lambda normal: (
            normal(1024, 256),
            normal(1024, 256),
            torch().tensor([200, 456, 777, 1024], device="cuda", dtype=torch().int32),
        ),
    ),
    "attention": Case(kernels.attention, attend, of(*[(2, 8, 1024, 128)] * 3)),
    "attention, causal": Case(
        lambda q, k, v: kernels.attention(q, k, v, causal=True),
        lambda q, k, v: attend(q, k, v, is_causal=True),
        of(*[(2, 8, 1024, 64)] * 3),
    ),
    "attention_backward": Case(
        attention_gradients, gradients(attend), of(*[(2, 8, 1024, 128)] * 4)
    ),
    "causal_conv1d": Case(
        lambda x, w, b: kernels.causal_conv1d(x, w, b)[0],
        convolved,
        of((2, 1024, 512), (512, 4), (512,)),
    ),
    "causal_conv1d_backward": Case(
        lambda g, x, w, b: kernels.causal_conv1d_backward(g, x, w, b)[:3],
        gradients(convolved),
        of((2, 1024, 512), (2, 1024, 512), (512, 4), (512,)),
    ),
    "conv": Case(
        lambda x, w: kernels.conv(x, w, padding=1),
        lambda x, w: (
            functional()
            .conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1)
            .permute(0, 2, 3, 1)
        ),
        of((2, 32, 32, 64), (128, 3, 3, 64)),
    ),
    "linear_cross_entropy": Case(
        lambda x, w, t: kernels.linear_cross_entropy(x, w, t)[0],
        linear_loss,
        lambda normal: (normal(512, 256), normal(4096, 256), normal.integers(4096, 512)),
    ),
    "attention_decode": Case(
        lambda q, k, v: kernels.attention_decode(
            q, k, v, torch().full((4,), 2048, device="cuda", dtype=torch().int32)
        ),
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        of((4, 16, 1, 128), (4, 4, 2048, 128), (4, 4, 2048, 128)),
    ),
    "attention_latent": Case(
        lambda q, cache: kernels.attention_latent(
            q, cache, torch().full((4,), 2048, device="cuda", dtype=torch().int32), 512
        ),
        lambda q, cache: attend(
            q.transpose(1, 2), cache[:, None], cache[:, None, :, :512], enable_gqa=True
        ),
        of((4, 1, 16, 576), (4, 2048, 576)),
    ),
}


def flat(found: Any) -> list:
    """The results of a function, each in one row: one tensor, several, or a list of groups."""
    if isinstance(found, list):
        return [torch().cat([x.reshape(-1) for x in found])]
    return [x.reshape(-1) for x in (found if isinstance(found, tuple) else (found,))]


def errors(case: Case, normal: Normal) -> list[tuple[float, float]]:
    """The RMS errors of our results and of torch's."""
    given = case.inputs(normal)
    truth = flat(
        (case.exact or case.theirs)(*(x.double() if x.is_floating_point() else x for x in given))
    )

    def rms(got, right):
        return (got.double() - right).square().mean().sqrt().item()

    return [
        (rms(a, right), rms(b, right))
        for a, b, right in zip(
            flat(case.ours(*given)), flat(case.theirs(*given)), truth, strict=True
        )
    ]


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """The table of all cases, or of those that begin with one of NAMES."""
    table, normal, missed, began = (
        Table(
            "kernel",
            "tkc",
            "torch",
            "tkc / torch",
            "asked",
            title="RMS error against float64",
            title_justify="left",
        ),
        Normal(),
        0,
        time.monotonic(),
    )
    for name, case in CASES.items():
        if names and not name.startswith(names):
            continue
        try:
            found = errors(case, normal)
        except Exception as e:
            found, missed = [], missed + 1
            table.add_row(name, f"failed: {type(e).__name__}: {str(e).splitlines()[0]:.120}")
        for i, (ours, theirs) in enumerate(found):
            good = ours <= MIN_RATIO * theirs
            missed += not good
            table.add_row(
                name if len(found) == 1 else f"{name} [{i}]",
                f"{ours:.3e}",
                f"{theirs:.3e}",
                f"{ours / theirs:.3f}" if theirs else "-",
                "met" if good else "MISSED",
            )
    Console(soft_wrap=True, width=120).print(table)
    print(f"{missed or 'none'} missed, {time.monotonic() - began:.0f} s")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
