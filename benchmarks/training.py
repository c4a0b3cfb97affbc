"""Steps of training of Llama 3's shapes, in tokens a second, beside torch under torch.compile, and
beside torch's attention with Liger's kernels, as its users call them.

One model for all: what is raced are its norms, rotary embedding, attention, gated layer and loss.
A step is the loss and the gradients of all weights; the optimizer is not part of it. The gradient
of the last norm's weight is compared with that of torch in float32. (Liger's step is not compiled:
with torch 2.11 that gradient was then another one, benchmarks/results/history.md.) `python -m
benchmarks.training` prints what a step takes beside weights and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Figure, Runner
from benchmarks.memory_bound import normal_of

EPS, BASE = 1e-5, 500000.0
ASKED = 1.10  # of the best rival's tokens a second


@dataclass(frozen=True)
class Model:
    """Extents of a decoder with grouped queries and gated layers."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    classes: int

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.width // self.heads


# Llama 3 of 8 billion weights, with fewer layers; sequences and positions of each
RACES = ((Model(4, 4096, 32, 8, 14336, 128256), (4, 2048)),)


@dataclass(frozen=True)
class Parts:
    """What a contestant brings. norm(x, weight); turn(q, k, cos, sin) and attend(q, k, v) of
    [sequences, heads, positions, channels]; gated(gate, up); loss(rows, weight, target)."""

    norm: Callable
    turn: Callable
    attend: Callable
    gated: Callable
    loss: Callable


def ours() -> Parts:
    """This library's, as `tkc.integrations.transformers.apply` puts them in a model's place."""
    from tkc import kernels

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        half = cos.shape[-1] // 2
        rows = kernels.rotary(x.transpose(1, 2), cos[0, :, :half], sin[0, :, :half])
        return rows.transpose(1, 2)

    return Parts(
        lambda x, weight: kernels.rms_norm(x, weight, EPS),
        lambda q, k, cos, sin: (turned(q, cos, sin), turned(k, cos, sin)),
        lambda q, k, v: kernels.attention(q, k, v, causal=True),
        kernels.swiglu,
        lambda rows, weight, target: kernels.linear_cross_entropy(rows, weight, target)[0][0],
    )


def plain() -> Parts:
    """torch's own."""
    import torch.nn.functional as F
    from torch import cat

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + cat((-second, first), -1) * sin[:, None]

    return Parts(
        lambda x, weight: F.rms_norm(x, weight.shape, weight, EPS),
        lambda q, k, cos, sin: (turned(q, cos, sin), turned(k, cos, sin)),
        partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True),
        lambda gate, up: F.silu(gate) * up,
        lambda rows, weight, target: F.cross_entropy(F.linear(rows, weight).float(), target),
    )


def liger() -> Parts:
    """Liger's, and torch's attention. Raises ImportError where Liger is not installed."""
    from liger_kernel.transformers import functional as L

    return Parts(
        lambda x, weight: L.liger_rms_norm(x, weight, EPS, in_place=False),
        L.liger_rope,
        plain().attend,
        L.liger_swiglu,
        L.liger_fused_linear_cross_entropy,
    )


def weights(model: Model, normal: Callable) -> list[Any]:
    """The embedding, nine of each layer, the last norm's and the last product's."""
    keys, wide = model.key_heads * model.head, model.width**-0.5

    def scaled(*shape: int) -> Any:
        return (normal(*shape) * wide).requires_grad_()

    def ones() -> Any:
        return (normal(model.width) * 0 + 1).requires_grad_()

    found = [scaled(model.classes, model.width)]
    for _ in range(model.layers):
        found += [ones(), scaled(model.width, model.width), scaled(keys, model.width)]
        found += [scaled(keys, model.width), scaled(model.width, model.width), ones()]
        found += [scaled(model.hidden, model.width), scaled(model.hidden, model.width)]
        found += [scaled(model.width, model.hidden)]
    return [*found, ones(), scaled(model.classes, model.width)]


def angles(model: Model, positions: int, like: Any) -> tuple[Any, Any]:
    """Cosines and sines of the rotary embedding, [1, positions, channels of a head]."""
    import torch

    half = torch.arange(model.head // 2, device=like.device) * (-2 / model.head)
    turns = torch.arange(positions, device=like.device)[:, None] * BASE**half
    twice = torch.cat((turns, turns), -1)[None]
    return twice.cos().to(like.dtype), twice.sin().to(like.dtype)


def loss_of(model: Model, parts: Parts, given: list[Any], tokens: Any, cos: Any, sin: Any) -> Any:
    """The mean cross-entropy of each token's next one."""
    import torch.nn.functional as F

    table, *of_layers, last, classes = given
    batch, positions = tokens.shape
    x = F.embedding(tokens, table)

    def heads(rows: Any) -> Any:
        return rows.view(batch, positions, -1, model.head).transpose(1, 2)

    for at in range(0, len(of_layers), 9):
        first, wq, wk, wv, wo, second, gate, up, down = of_layers[at : at + 9]
        rows = parts.norm(x, first)
        q, k, v = (heads(F.linear(rows, w)) for w in (wq, wk, wv))
        found = parts.attend(*parts.turn(q, k, cos, sin), v)
        x = x + F.linear(found.transpose(1, 2).reshape(x.shape), wo)
        rows = parts.norm(x, second)
        x = x + F.linear(parts.gated(F.linear(rows, gate), F.linear(rows, up)), down)
    rows = parts.norm(x, last)[:, :-1].reshape(-1, model.width)
    return parts.loss(rows, classes, tokens[:, 1:].reshape(-1))


def stepped(model: Model, parts: Parts, compiled: bool, *given: Any) -> Callable[[], Any]:
    """A run of a step, which gives the gradient of the last norm's weight."""
    import torch

    find = partial(loss_of, model, parts)
    if compiled:
        find = torch.compile(find, dynamic=False)

    def run() -> Any:
        return torch.autograd.grad(find(*given), given[0])[-2]

    return run


def in_float32(model: Model, given: list[Any], tokens: Any, cos: Any, sin: Any) -> Any:
    """What a step of torch gives in float32, for the same weights."""
    wide = [w.detach().float().requires_grad_() for w in given]
    return stepped(model, plain(), False, wide, tokens, cos.float(), sin.float())()


def contests(seed: int) -> Iterator[Contest]:
    import torch

    for model, (batch, positions) in RACES:
        normal = normal_of(seed)
        held = weights(model, normal)
        tokens = torch.randint(0, model.classes, (batch, positions), device=held[0].device)
        given = held, tokens, *angles(model, positions, held[0])

        def racer(name: str, parts: Callable, compiled: bool, given=given, model=model):
            role = "ours" if name == "tkc" else "rival"
            make = lambda: Runner(stepped(model, parts(), compiled, *given))  # noqa: E731
            return Contestant(name, make, role)

        rivals = ("Liger", liger, False), ("torch.compile", plain, True)
        racers = [racer("tkc", ours, False), *(racer(*rival) for rival in rivals)]
        extents = f"{model.layers}x{model.width}-{batch}x{positions}"
        yield Contest(
            f"training-{extents}",
            f"a step of training, {model.layers} layers of {model.width}, {batch} x {positions}",
            tuple(racers),
            harness.gpu_timer,
            harness.GPU_TIMING,
            partial(in_float32, model, *given),
            5e-2,
            amount=batch * positions,
            unit="tokens/s",
            figures=(
                Figure(
                    f"tkc at {ASKED} x the tokens a second of Liger or more",
                    ("tkc", rivals[0][0]),
                    lambda t: t["Liger"] / t["tkc"],
                    ASKED,
                ),
            ),
        )


def main() -> None:
    """Bytes of a step of each contestant beside its weights and tokens, and whether they agree."""
    import torch

    for contest in contests(1):
        for contestant in contest.contestants:
            run = contestant.make().run
            run()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            norm = float(run().double().norm())
            torch.cuda.synchronize()
            most = (torch.cuda.max_memory_allocated() - held) / 2**30
            print(f"{contest.name}, {contestant.name}: {most:.2f} GiB, gradient's norm {norm:.4g}")


if __name__ == "__main__":
    main()
