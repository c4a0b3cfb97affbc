"""Models that torch.compile turns into Triton kernels, which tkc compiles; beside torch itself.

    python -m tests.outside.inductor [MODEL ...] [--small] [--seconds 120] [--device cuda]

Each model runs in a process of its own with a deadline, forward and backward, and prints a row: how
far its results and gradients are from those in float64, beside how far torch's own are, what was
compiled, and how long that took. Inductor is unchanged; tkc is in Triton's place. Without a GPU
Inductor's Triton code runs in host memory (`cpu_backend = "triton"`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Made = tuple[Any, tuple]  # a module, and what it is called on


# ---- models
def mlp(torch: Any, small: bool) -> Made:
    nn, width = torch.nn, 64 if small else 1024
    layers = (nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width))
    model = nn.Sequential(*layers, nn.Linear(4 * width, width), nn.Softmax(-1))
    return model, (torch.randn(32 if small else 4096, width),)


def gpt2(torch: Any, small: bool) -> Made:
    """GPT-2 small: learned positions, twelve layers, tied embeddings, a loss."""
    nn, F = torch.nn, torch.nn.functional
    width, heads, depth, words, n = (64, 2, 2, 512, 32) if small else (768, 12, 12, 50257, 512)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch = x.shape[0]
            parts = self.qkv(self.before(x)).view(batch, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
            found = F.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(found.transpose(1, 2).reshape(batch, n, width))
            return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(n, width)
            self.layers = nn.ModuleList(Layer() for _ in range(depth))
            self.norm = nn.LayerNorm(width)
            nn.init.normal_(self.words.weight, std=0.02)

        def forward(self, tokens):
            x = self.words(tokens) + self.places(torch.arange(n, device=tokens.device))
            for layer in self.layers:
                x = layer(x)
            logits = self.norm(x) @ self.words.weight.T
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return Model(), (torch.randint(0, words, (2 if small else 4, n)),)


def resnet(torch: Any, small: bool) -> Made:
    """ResNet-50 in training mode: bottlenecks of batch norms and convolutions."""
    nn = torch.nn
    counts, width = ((1, 1), 8) if small else ((3, 4, 6, 3), 64)

    def conv(a: int, b: int, extent: int, stride: int = 1) -> Any:
        made = nn.Conv2d(a, b, extent, stride, extent // 2, bias=False)
        return nn.Sequential(made, nn.BatchNorm2d(b))

    class Bottleneck(nn.Module):
        def __init__(self, a: int, b: int, stride: int):
            super().__init__()
            relu = nn.ReLU()
            self.main = nn.Sequential(
                conv(a, b, 1), relu, conv(b, b, 3, stride), relu, conv(b, 4 * b, 1)
            )
            self.side = nn.Identity() if a == 4 * b else conv(a, 4 * b, 1, stride)

        def forward(self, x):
            return torch.relu(self.main(x) + self.side(x))

    layers, a = [conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for stage, count in enumerate(counts):
        b = width << stage
        for i in range(count):
            layers.append(Bottleneck(a, b, 2 if stage and not i else 1))
            a = 4 * b
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 10 if small else 1000)]
    extent = 32 if small else 224
    return nn.Sequential(*layers), (torch.randn(2 if small else 32, 3, extent, extent),)


def llama(torch: Any, small: bool) -> Made:
    """A layer of Llama: rotary positions, grouped heads, a gated MLP."""
    nn, F = torch.nn, torch.nn.functional
    width, heads, groups, inner, n = (64, 4, 2, 128, 32) if small else (4096, 32, 8, 14336, 1024)
    deep = width // heads

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q = nn.Linear(width, width, bias=False)
            self.k, self.v = (nn.Linear(width, groups * deep, bias=False) for _ in range(2))
            self.out = nn.Linear(width, width, bias=False)
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def turned(self, x):
            places = torch.arange(n, device=x.device, dtype=torch.float32)
            rates = 10000.0 ** (-torch.arange(0, deep, 2, device=x.device) / deep)
            angles = torch.outer(places, rates).repeat(1, 2)
            a, b = x.chunk(2, -1)
            turned = torch.cat([-b, a], -1)
            return (x * angles.cos() + turned * angles.sin()).to(x.dtype)

        def forward(self, x):
            y, batch = self.before(x), x.shape[0]
            q, k, v = (
                p(y).view(batch, n, -1, deep).transpose(1, 2) for p in (self.q, self.k, self.v)
            )
            found = F.scaled_dot_product_attention(
                self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
            )
            x = x + self.out(found.transpose(1, 2).reshape(batch, n, width))
            y = self.between(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    return Layer(), (torch.randn(2, n, width),)


MODELS: dict[str, Callable[[Any, bool], Made]] = {
    "mlp": mlp,
    "gpt2": gpt2,
    "resnet": resnet,
    "llama": llama,
}


# ---- one of them
def outcome(run: Callable, model: Any, given: tuple) -> list[Any]:
    """The result, and the gradients of the parameters."""
    model.zero_grad()
    out = run(*given)
    (out if out.ndim == 0 else (out * out).mean()).backward()
    return [out.detach().double(), *(p.grad.double() for p in model.parameters())]


def distance(found: list[Any], exact: list[Any]) -> float:
    """The largest relative distance of a tensor of results."""
    pairs = zip(found, exact, strict=True)
    return max(float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in pairs)


def one(name: str, options: argparse.Namespace) -> None:
    """Prints the row of a model."""
    import tkc.triton
    from tkc.triton.runtime.jit import observed

    tkc.triton.install()
    import torch
    import torch._inductor.config as inductor

    inductor.cpu_backend = "triton"
    torch.manual_seed(0)
    model, given = MODELS[name](torch, options.small)
    exact = (
        outcome(
            model.double(), model, tuple(x.double() if x.is_floating_point() else x for x in given)
        )
        if options.small
        else None
    )
    model = model.float().to(options.device)
    given = tuple(x.to(options.device) for x in given)
    theirs = outcome(model, model, given)
    kernels: set[str] = set()
    began = time.monotonic()
    with observed(lambda launched: kernels.add(launched.function.__name__)):
        ours = outcome(torch.compile(model), model, given)
    took = time.monotonic() - began
    ours = [x.cpu() for x in ours]
    theirs = [x.cpu() for x in theirs]
    exact = exact or theirs
    print(
        f"| {name} | {distance(ours, exact):.1e} | {distance(theirs, exact):.1e} |"
        f" {len(kernels)} | {took:.0f} s | |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--small", action="store_true", help="of few layers, for a trial")
    parser.add_argument("--seconds", type=float, default=120.0, help="of a model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.models[0], options)
        return
    print("| model | from float64 | torch's own | kernels | compiled and run | |")
    print("| --- | ---: | ---: | ---: | ---: | --- |", flush=True)
    for name in options.models or MODELS:
        given = [a for a in sys.argv[1:] if a not in MODELS]
        command = [sys.executable, "-m", "tests.outside.inductor", name, "--one", *given]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ,
                capture_output=True,
                text=True,
                timeout=options.seconds,
            )
        except subprocess.TimeoutExpired:
            print(f"| {name} | | | | | not done within {options.seconds:.0f} s |", flush=True)
            continue
        rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {name} |")]
        print(*rows or [f"| {name} | | | | | exit {done.returncode} |"], sep="\n", flush=True)
        if not rows:
            print(done.stderr[-4000:], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
