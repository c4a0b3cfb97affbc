"""Adam with decoupled weight decay: one step of one parameter, every array read once and written
once.

m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2
p = p (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    (Kingma and Ba, 2015; Loshchilov and Hutter, 2019)
"""

from __future__ import annotations

from collections.abc import Iterator

import tkc
from tkc.kernels.arrays import Array, contiguous, flat, floats, same_shape
from tkc.kernels.blocks import strip
from tkc.kernels.operator import operator

# bytes of a program's widest array: one vector a thread; with two, lanes write halves of sectors
VECTORS = 128 * 16


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
    shapes differ, t < 1, or an array is not contiguous."""
    same_shape(param=param, grad=grad, m=m, v=v, master=master)
    floats(param, grad, m, v, master)
    if t < 1:
        raise tkc.LaunchError(f"adam_: t counts steps from 1, got {t}")
    yield None
    arrays = [param, m, v] + ([] if master is None else [master])
    if any(contiguous(x) is not x for x in arrays):
        raise tkc.LaunchError("adam_ changes its arrays in place: pass contiguous ones")
    p, first, second, whole = (*map(flat, arrays), None)[:4]
    n = p.shape[0]
    block = min(strip(n), VECTORS // max(x.dtype.itemsize for x in (grad, *arrays)))
    _adam[tkc.cdiv(n, block)](
        p,
        flat(contiguous(grad)),
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
