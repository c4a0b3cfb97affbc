"""A small GPT in torch, trained with attention by torch and by tkc: the loss curves are the same.

    python examples/training/gpt.py 200 losses.json       # needs torch; on a GPU where there is one
    python examples/training/plot.py losses.json losses.svg

The model has grouped heads (4 of queries on 2 of keys and values), root-mean-square norms and a
gated layer, all of torch but for attention. Both runs have the same weights at first and see the
same batches: sentences of a random machine, whose next word depends on the two words before. On a
GPU the model is in bfloat16, and the curves differ by the noise of its sums; on the CPU in float32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tkc import kernels

WORDS, LENGTH, BATCH = 64, 96, 8
WIDTH, HEADS, SHARED, LAYERS = 128, 4, 2, 2
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [batch, heads, positions, width]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def by_tkc(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same; its backward is `attention_backward`'s kernels."""
    return kernels.attention(q, k, v, causal=True)


def by_modifiers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, by a mask written in Python."""
    return kernels.attention(q, k, v, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)


ATTENTIONS: dict[str, Attention] = {
    "torch": by_torch,
    "tkc": by_tkc,
    "tkc, mask_mod": by_modifiers,
}


class Layer(nn.Module):
    """Attention, and a gated layer, each added to what it reads."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention, each = attention, WIDTH // HEADS
        self.shapes = (HEADS, each), (SHARED, each), (SHARED, each)
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * SHARED) * each, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).split([h * each for h, each in self.shapes], -1)
        q, k, v = (
            part.unflatten(-1, shape).transpose(1, 2)
            for part, shape in zip(parts, self.shapes, strict=True)
        )
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Gpt(nn.Module):
    """Logits of the next word at each position."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*(Layer(attention) for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places.weight[: words.shape[1]]
        return self.head(self.norm(self.layers(x)))


def sentences(steps: int) -> Tensor:
    """Words of [steps, batch, positions + 1]."""
    made = torch.Generator().manual_seed(1)
    table = torch.randint(WORDS, (WORDS, WORDS, 2), generator=made)
    found = torch.randint(WORDS, (steps, BATCH, LENGTH + 1), generator=made)
    turns = torch.randint(2, found.shape, generator=made)
    for t in range(2, LENGTH + 1):
        found[..., t] = table[found[..., t - 2], found[..., t - 1] % 8, turns[..., t]]
    return found


def train(name: str, steps: int, device: str) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    model = Gpt(ATTENTIONS[name]).to(device)
    if device == "cuda":
        model = model.bfloat16()
    adam, losses = torch.optim.AdamW(model.parameters(), lr=2e-3), []
    for words in sentences(steps).to(device):
        logits = model(words[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def main(steps: int, path: str) -> None:
    """Trains with each attention, and writes the losses as JSON."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    losses = {name: train(name, steps, device) for name in ATTENTIONS}
    Path(path).write_text(json.dumps(losses) + "\n")
    for name, curve in losses.items():
        most = max(abs(x - y) for x, y in zip(curve, losses["torch"], strict=True))
        print(f"{name}: loss {curve[0]:.4f} to {curve[-1]:.4f}, at most {most:.1e} from torch's")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
