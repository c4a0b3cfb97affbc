"""Adam with decoupled weight decay: one step of one parameter, every array read once and written
once.

m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2
p = p (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    (Kingma and Ba, 2015; Loshchilov and Hutter, 2019)

amsgrad   with the largest v so far in v's place                        (Reddi et al., 2018)
adamax    v = max(b2 v, |g|) + eps,  p -= lr m / ((1 - b1^t) v)          (Kingma and Ba, 2015)
radam     m / (1 - b1^t) alone while v's variance is unknown, then rectified (Liu et al., 2020)
lion      p -= lr sign(b1 m + (1 - b1) g),  m = b2 m + (1 - b2) g        (Chen et al., 2023)
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import (
    Array,
    axes_in_memory,
    contiguous,
    flat,
    floats,
    permuted,
    same_shape,
)
from tkc.kernels.blocks import strip
from tkc.kernels.operator import operator

# bytes of a program's widest array: one vector a thread; with two, lanes write halves of sectors
VECTORS = 128 * 16


def _as_rows(name: str, grad: Array, held: list[Array]) -> list[Array]:
    """The gradient and the arrays that change, each as one row in the order of their memory. Raises
    LaunchError where those do not have one order without gaps.
    """
    order = axes_in_memory(held[0])
    grad, *held = (permuted(x, order) for x in (grad, *held))
    if any(contiguous(x) is not x for x in held):
        raise tkc.LaunchError(
            f"{name} changes its arrays in place: pass arrays of one memory order without gaps, as"
            " contiguous ones are"
        )
    return [flat(contiguous(grad)), *map(flat, held)]


@tkc.jit
def _adam(param, grad, m, v, master, w1, w2, step, root, eps, keep, N: tkc.constexpr):
    i = tkc.program_id(0) * N
    g = tkc.load(grad, (i,), (N,)).to(tkc.float32)
    first = tkc.load(m, (i,), (N,)).to(tkc.float32)
    first = first + w1 * (g - first)  # by 1 - b, which says more of a b near 1 than b does
    second = tkc.load(v, (i,), (N,)).to(tkc.float32)
    second = second + w2 * (g * g - second)
    weights = param if master is None else master
    p = tkc.load(weights, (i,), (N,)).to(tkc.float32) * keep - step * first / (
        tkc.sqrt(second) * root + eps
    )
    tkc.store(m, (i,), first.to(m.dtype))
    tkc.store(v, (i,), second.to(v.dtype))
    tkc.store(param, (i,), p.to(param.dtype))
    if master is not None:
        tkc.store(master, (i,), p)


@operator(mutates="param m v master", varies="t lr")
def adam_(
    param: Array,
    grad: Array,
    m: Array,
    v: Array,
    t: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    master: Array | None = None,
) -> Iterator[None]:
    """Step t = 1, 2, … of AdamW: param, m and v change in place, computed in float32. master: the
    parameter in float32, from which `param`, in fewer bits, is rounded. Raises LaunchError where
    shapes differ, t < 1, or the arrays have no common memory order without gaps."""
    same_shape(param=param, grad=grad, m=m, v=v, master=master)
    floats(param, grad, m, v, master)
    if t < 1:
        raise tkc.LaunchError(f"adam_: t counts steps from 1, got {t}")
    yield None
    arrays = [param, m, v] + ([] if master is None else [master])
    g, p, first, second, whole = (*_as_rows("adam_", grad, arrays), None)[:5]
    n = p.shape[0]
    block = min(strip(n), VECTORS // max(x.dtype.itemsize for x in (grad, *arrays)))
    _adam[tkc.cdiv(n, block)](
        p,
        g,
        first,
        second,
        whole,
        1 - beta1,
        1 - beta2,
        lr / (1 - beta1**t),
        (1 - beta2**t) ** -0.5,
        eps,
        1 - lr * weight_decay,
        N=block,
    )


@tkc.jit
def _step(
    param,
    grad,
    m,
    v,
    top,
    w1,
    w2,
    step,
    root,
    eps,
    keep,
    KIND: tkc.constexpr,
    N: tkc.constexpr,
):
    i = tkc.program_id(0) * N
    g, p, first = (tkc.load(x, (i,), (N,)).to(tkc.float32) for x in (grad, param, m))
    moved = first + w1 * (g - first)
    if KIND == "lion":
        direction = tkc.where(moved > 0, 1.0, tkc.where(moved < 0, -1.0, 0.0))
        moved = first + w2 * (g - first)
    elif KIND == "unrectified":
        direction = moved
    if v is not None:
        second = tkc.load(v, (i,), (N,)).to(tkc.float32)
        if KIND == "adamax":
            second = tkc.maximum(second * (1 - w2), tkc.abs(g) + eps)
            direction = moved / second
        else:
            second = second + w2 * (g * g - second)
            largest = second
            if top is not None:
                largest = tkc.maximum(second, tkc.load(top, (i,), (N,)).to(tkc.float32))
                tkc.store(top, (i,), largest.to(top.dtype))
            if KIND != "unrectified":
                direction = moved / (tkc.sqrt(largest) * root + eps)
        tkc.store(v, (i,), second.to(v.dtype))
    tkc.store(m, (i,), moved.to(m.dtype))
    tkc.store(param, (i,), (p * keep - step * direction).to(param.dtype))


def _take_step(arrays: tuple, kind: str, numbers: tuple) -> None:
    """Launches a step of (param, grad, m, v, top)."""
    param, grad, m, v, top = arrays
    held = [x for x in (param, m, v, top) if x is not None]
    name = "lion_" if kind == "lion" else "adam_variant_"
    g, p, first, *more = _as_rows(name, grad, held)
    second, largest = (*more, None, None)[:2]
    n = p.shape[0]
    block = min(strip(n), VECTORS // max(x.dtype.itemsize for x in (grad, *held)))
    _step[tkc.cdiv(n, block)](p, g, first, second, largest, *numbers, KIND=kind, N=block)


@operator(mutates="param m v top", varies="t lr")
def adam_variant_(
    param: Array,
    grad: Array,
    m: Array,
    v: Array,
    t: int,
    kind: str = "amsgrad",
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    top: Array | None = None,
) -> Iterator[None]:
    """Step t = 1, 2, … of "amsgrad" (top: its largest v, from zeros), "adamax" or "radam", with
    decoupled weight decay; arrays change in place, computed in float32. Raises LaunchError where
    shapes differ, t < 1, or the arrays have no common memory order without gaps.
    """
    same_shape(param=param, grad=grad, m=m, v=v, top=top)
    floats(param, grad, m, v, top)
    if kind not in ("amsgrad", "adamax", "radam") or (kind == "amsgrad") != (top is not None):
        raise tkc.LaunchError(
            "adam_variant_: kind is 'amsgrad' with top, 'adamax' or 'radam' without, got"
            f" {kind!r}{'' if top is None else ' with top'}"
        )
    if t < 1:
        raise tkc.LaunchError(f"adam_variant_: t counts steps from 1, got {t}")
    yield None
    step, root = lr / (1 - beta1**t), (1 - beta2**t) ** -0.5
    if kind == "radam":
        most = 2 / (1 - beta2) - 1
        known = most - 2 * t * beta2**t / (1 - beta2**t)
        if known > 5:
            share = (known - 4) * (known - 2) * most / ((most - 4) * (most - 2) * known)
            step = step * share**0.5
        else:
            kind = "unrectified"
    numbers = (1 - beta1, 1 - beta2, step, root, eps, 1 - lr * weight_decay)
    _take_step((param, grad, m, v, top), kind, numbers)


@operator(mutates="param m", varies="lr")
def lion_(
    param: Array,
    grad: Array,
    m: Array,
    lr: float = 1e-4,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.0,
) -> Iterator[None]:
    """A step of Lion with decoupled weight decay; param and m change in place, computed in float32.
    Raises LaunchError where shapes differ or the arrays have no common memory order without gaps.
    """
    same_shape(param=param, grad=grad, m=m)
    floats(param, grad, m)
    yield None
    numbers = (1 - beta1, 1 - beta2, lr, 1.0, 0.0, 1 - lr * weight_decay)
    _take_step((param, grad, m, None, None), "lion", numbers)
