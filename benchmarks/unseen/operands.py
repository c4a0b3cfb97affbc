"""How an unseen kernel is called: its operands, what it computes in torch, and what it must read,
write and multiply. A case's function in torch is its reference in float64, and its rival.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BANDWIDTH, TENSOR = 4.8e12, 989e12  # bytes and operations a second of an H200, by its vendor


@dataclass(frozen=True)
class Called:
    """A kernel called on operands.

    launch: launches it. out: the tensors that it writes. function: what these are, by torch, of
    inputs. operations: multiplications and additions of its dots. reset: what is done before each
    launch, where one begins with given contents.
    """

    launch: Callable[[], Any]
    out: tuple[Any, ...]
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    operations: float = 0
    tolerance: float = 1e-2
    reset: Callable[[], Any] | None = None
    moved: float | None = None  # bytes, where they are not those of inputs and out
    seen: Callable[[], tuple[Any, ...]] | None = None  # what is compared, if it is not out
    rival: Callable[..., Any] | None = None  # where torch has a faster way than function

    @property
    def bytes(self) -> float:
        """What must cross the memory's bus."""
        if self.moved is not None:
            return self.moved
        tensors = [t for t in (*self.inputs, *self.out) if hasattr(t, "numel")]
        return sum(t.numel() * t.element_size() for t in tensors)

    @property
    def bound(self) -> float:
        """Seconds that no kernel is faster than."""
        return max(self.bytes / BANDWIDTH, self.operations / TENSOR)


Make = Callable[["Operands"], Called]


CASES: dict[str, Make] = {}


def case(name: str) -> Callable[[Make], Make]:
    """Adds a case."""

    def add(make: Make) -> Make:
        CASES[name] = make
        return make

    return add


class Operands:
    """Random tensors. large: as they are raced; else as small as shows every path. real: False for
    tensors that are only compiled for.
    """

    def __init__(self, device: str = "cpu", large: bool = False, real: bool = True):
        import torch

        self.torch, self.device, self.large, self.real = torch, device, large, real
        torch.manual_seed(0)

    def of(self, large: int, small: int) -> int:
        """An extent."""
        return large if self.large else small

    def normal(self, *shape: int, dtype: str = "bfloat16", scale: float = 1.0) -> Any:
        """Normal numbers."""
        t = getattr(self.torch, dtype)
        if not self.real:
            return self.torch.empty(*shape, dtype=t)
        return (self.torch.randn(*shape, device=self.device) * scale).to(t)

    def floats(self, *shape: int, scale: float = 1.0) -> Any:
        """Normal numbers of float32."""
        return self.normal(*shape, dtype="float32", scale=scale)

    def integers(self, low: int, high: int, *shape: int, dtype: str = "int32") -> Any:
        """Uniform integers of low … high - 1."""
        t = getattr(self.torch, dtype)
        if not self.real:
            return self.torch.zeros(*shape, dtype=t)
        return self.torch.randint(low, high, shape, device=self.device).to(t)

    def empty(self, *shape: int, dtype: str = "bfloat16") -> Any:
        """What a kernel writes."""
        return self.torch.zeros(*shape, dtype=getattr(self.torch, dtype), device=self.device)


def over(n: int, block: int) -> int:
    """Blocks that cover n."""
    return -(-n // block)


def _listed(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


def _wide(value: Any) -> Any:
    return value.double() if getattr(value, "is_floating_point", bool)() else value


def error(made: Called) -> float:
    """The largest relative error of a launch, against torch in float64."""
    if made.reset:
        made.reset()
    made.launch()
    worst = 0.0
    expected = _listed(made.function(*map(_wide, made.inputs)))
    found = made.seen() if made.seen else made.out
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape, (got.shape, wanted.shape)
        difference = (got.double() - wanted.double()).abs().max().item()
        worst = max(worst, difference / max(wanted.double().abs().max().item(), 1e-30))
        if difference != difference:
            return math.nan
    return worst
