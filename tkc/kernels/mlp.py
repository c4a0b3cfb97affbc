"""Linear layers with something around them: gated layers in a pair of launches, low-rank updates
whose last product joins the layer's own sum, layers whose result is scaled and added to another.

    gated    y = (silu(x Gᵀ) ∘ (x Uᵀ)) Dᵀ                              (Shazeer, 2020)
    branch   y = r + g ∘ (x Wᵀ + bias),  g a row of each image         (Peebles and Xie, 2022)
             dx = (dy ∘ g) W,  dW = (dy ∘ g)ᵀ x,  dg = Σ dy ∘ (x Wᵀ + bias),  dr = dy
    LoRA     y = x Wᵀ + s (x Aᵀ) Bᵀ + bias                            (Hu et al., 2022)
             dx = dy W + s (dy B) A,  dA = s (dy B)ᵀ x,  dB = s dyᵀ (x Aᵀ)

The gated product is that of a layer of experts with one group of rows; the gradient of LoRA's x is
LoRA again.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    full,
    matrix,
    power,
)
from tkc.kernels.blocks import grid_of
from tkc.kernels.experts import gate_backward
from tkc.kernels.grouped import multiply_gated
from tkc.kernels.matmul import gated_product, matmul
from tkc.kernels.operator import first_order_only, operator

TILES = ((128, 256), (256, 128), (128, 128), (64, 128), (64, 64))


# ---- gated ---------------------------------------------------------------------------------------
def _check_gated(x: Array, gate_up: Array, down: Array) -> None:
    floats(x, gate_up, down)
    if not len(x.shape) or len(gate_up.shape) != 2 or len(down.shape) != 2:
        raise tkc.LaunchError(
            "gated_mlp: x is [..., width], gate_up [2 hidden, width] and down [width, hidden], got"
            f" {list(x.shape)}, {list(gate_up.shape)} and {list(down.shape)}"
        )
    expect(gate_up, (2 * down.shape[1], x.shape[-1]), "gate_up")
    if len({dtype_of(a) for a in (x, gate_up, down)}) > 1:
        raise tkc.LaunchError(
            f"gated_mlp: expected one element type, got {dtype_of(x)}, {dtype_of(gate_up)} and"
            f" {dtype_of(down)}; convert to one"
        )


@operator(name="gated_mlp")
def _mlp(
    x: Array, gate_up: Array, down: Array, with_grad: bool = True
) -> Iterator[tuple[Array, Array, Array]]:
    """The layer's result, then what its gradient needs: gates before, hidden rows."""
    _check_gated(x, gate_up, down)
    rows = matrix(contiguous(x))
    m, hidden = rows.shape[0], down.shape[1]
    out = empty(x, (*x.shape[:-1], down.shape[0]))
    kept = empty(x, (m if with_grad else 0, 2 * hidden))
    held = empty(x, (m, hidden))
    yield out, kept, held
    if 0 in (*rows.shape, *down.shape):
        return
    ends = full(x, (1,), m, "int32")
    w = gate_up.reshape((1, *gate_up.shape)).swapaxes(1, 2)
    multiply_gated(rows, w, held, ends, kept=kept if with_grad else None)
    matmul(held, down.T, out=matrix(out))


@operator
def gated_mlp_backward(grad: Array, kept: Array) -> Iterator[tuple[Array, Array]]:
    """The gradient of both gates [rows, 2 hidden], from that of the hidden rows and the gates
    before; and the hidden rows.
    """
    floats(grad, kept)
    expect(kept, (grad.shape[0], 2 * grad.shape[1]), "kept")
    out, held = empty(kept), empty(grad)
    yield out, held
    if 0 not in grad.shape:
        gate_backward[grad.shape[0]](
            contiguous(grad),
            kept,
            None,
            None,
            None,
            out,
            held,
            None,
            N=min(power(grad.shape[1]), 2048),
        )


@_mlp.backward(saves="x gate_up down result", zeros=False)
def _(saved, grad, *of_kept):
    first_order_only("gated_mlp", *of_kept)
    x, gate_up, down, (_, kept, held) = saved.x, saved.gate_up, saved.down, saved.result
    if not kept.shape[0] and x.numel():
        raise tkc.LaunchError("gated_mlp: pass with_grad=True where a gradient is wanted")
    rows, g = matrix(x), matrix(grad.to(x.dtype))
    of_gates: Any = None
    g, dx = g.contiguous(), None
    if saved.needs["x"] or saved.needs["gate_up"]:
        of_gates, _ = gated_mlp_backward(matmul(g, down), kept)
    if saved.needs["x"]:
        dx = matmul(of_gates, gate_up).reshape(x.shape)
    of_up = matmul(of_gates.T, rows) if saved.needs["gate_up"] else None
    of_down = matmul(g.T, held) if saved.needs["down"] else None
    return dx, of_up, of_down


def gated_mlp(x: Array, gate_up: Array, down: Array, with_grad: bool = True) -> Array:
    """(silu(x Gᵀ) ∘ (x Uᵀ)) downᵀ in two launches and a small one. x: [..., width]; gate_up: [2
    hidden, width], G above U; down: [width, hidden]; one float type. with_grad: keeps the gates for
    the gradient. Differentiable with torch. Raises LaunchError where shapes or types do not fit.
    """
    try:
        return _mlp(x, gate_up, down, with_grad)[0]
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise


# ---- low rank ------------------------------------------------------------------------------------
def _configs(args: dict) -> list[tkc.Config]:
    (m, n), rank = args["y"].shape, args["low"].shape[1]
    tiles = [(bm, bn) for bm, bn in TILES if bm <= max(64, power(m)) and bn <= max(64, power(n))]
    host = (min(64, max(16, power(m))), min(64, max(16, power(n))))
    line = min(64, max(16, power(rank)))
    return [tkc.Config(BM=bm, BN=bn, BK=64, BR=line) for bm, bn in dict.fromkeys([host, *tiles])]


_grid = grid_of("y")


@tkc.autotune(_configs, measure=False)
@tkc.jit
def _low_rank(
    x,
    w,
    low,
    up,
    bias,
    y,
    scale,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    BR: tkc.constexpr,
):
    """y = x w + scale · low up + bias."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for r in tkc.range(0, low.shape[1], BR):
        acc = tkc.dot(tkc.load(low, (m, r), (BM, BR)), tkc.load(up, (r, n), (BR, BN)), acc)
    acc = acc * scale
    for k in tkc.range(0, x.shape[1], BK):
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (k, n), (BK, BN)), acc)
    if bias is not None:
        acc = acc + tkc.load(bias, (n,), (BN,)).to(tkc.float32)[None, :]
    tkc.store(y, (m, n), acc.to(y.dtype))


@operator
def lora_linear(
    x: Array,
    weight: Array,
    a: Array,
    b: Array,
    scale: float = 1.0,
    bias: Array | None = None,
) -> Iterator[tuple[Array, Array]]:
    """x weightᵀ + scale (x aᵀ) bᵀ + bias, and x aᵀ, which the gradient needs. x: [..., width];
    weight: [outputs, width]; a: [rank, width]; b: [outputs, rank]; one float type, summed in
    float32; bias: [outputs]. Differentiable with torch. Raises LaunchError where shapes or types do
    not fit.
    """
    floats(x, weight, a, b, bias)
    if not len(x.shape) or any(len(w.shape) != 2 for w in (weight, a, b)):
        raise tkc.LaunchError(
            "lora_linear: x is [..., width], weight, a and b are matrices, got"
            f" {list(x.shape)}, {list(weight.shape)}, {list(a.shape)} and {list(b.shape)}"
        )
    expect(weight, (weight.shape[0], x.shape[-1]), "weight")
    expect(a, (a.shape[0], x.shape[-1]), "a")
    expect(b, (weight.shape[0], a.shape[0]), "b")
    expect(bias, weight.shape[:1], "bias")
    if len({dtype_of(v) for v in (x, weight, a, b)}) > 1:
        raise tkc.LaunchError(
            f"lora_linear: expected one element type, got {dtype_of(x)}, {dtype_of(weight)},"
            f" {dtype_of(a)} and {dtype_of(b)}; convert to one"
        )
    out = empty(x, (*x.shape[:-1], weight.shape[0]))
    low = empty(x, (*x.shape[:-1], a.shape[0]))
    yield out, low
    rows, result, held = matrix(contiguous(x)), matrix(out), matrix(low)
    matmul(rows, a.T, out=held)
    if 0 in result.shape:
        return
    _low_rank[_grid](rows, weight.T, held, b.T, bias, result, float(scale))


@lora_linear.backward(saves="x weight a b scale result")
def _(saved, grad, of_low):
    x, w, a, b, scale, wanted = (
        saved.x,
        saved.weight,
        saved.a,
        saved.b,
        saved.scale,
        saved.needs,
    )
    rows, g = matrix(x), matrix(grad.to(x.dtype)).contiguous()
    low = matrix(saved.result[1])
    dx, back = lora_linear(g, w.T, b.T, a.T, scale)  # back: dy B
    more = of_low.reshape(low.shape).to(x.dtype)
    if wanted["x"]:
        dx = (dx + matmul(more.contiguous(), a)).reshape(x.shape)
    of_a = matmul((back * scale + more).to(x.dtype).T, rows) if wanted["a"] else None
    return dict(
        x=dx,
        weight=matmul(g.T, rows) if wanted["weight"] else None,
        a=of_a,
        b=matmul(g.T, low) * scale if wanted["b"] else None,
        bias=g.sum(0) if wanted["bias"] else None,
    )


# ---- branches ------------------------------------------------------------------------------------
@operator
def linear_gate_add(
    x: Array, weight: Array, gate: Array, residual: Array, bias: Array | None = None
) -> Iterator[Array]:
    """residual + gate (x weightᵀ + bias), as blocks of diffusion transformers end, in one launch.

    x: [..., positions, width]; weight: [outputs, width]; residual: [..., positions, outputs]; gate:
    [outputs], or [..., outputs], a row of each matrix of x; bias: [outputs]; one float type, summed
    in float32. Differentiable with torch. Raises LaunchError where shapes or types do not fit.
    """
    floats(x, weight, gate, residual, bias)
    if len(x.shape) < 2 or len(weight.shape) != 2:
        raise tkc.LaunchError(
            "linear_gate_add: x is [..., positions, width] and weight a matrix, got"
            f" {list(x.shape)} and {list(weight.shape)}"
        )
    (*batch, positions, width), outputs = x.shape, weight.shape[0]
    expect(weight, (outputs, width), "weight")
    expect(residual, (*batch, positions, outputs), "residual")
    expect(gate, (outputs,) if len(gate.shape) == 1 else (*batch, outputs), "gate")
    expect(bias, (outputs,), "bias")
    if len({dtype_of(v) for v in (x, weight, gate, residual)}) > 1:
        raise tkc.LaunchError(
            f"linear_gate_add: expected one element type, got {dtype_of(x)}, {dtype_of(weight)},"
            f" {dtype_of(gate)} and {dtype_of(residual)}; convert to one"
        )
    out = empty(x, residual.shape)
    yield out
    if 0 in out.shape:
        return
    count = prod(batch)
    rows, added, result = (
        contiguous(v).reshape((count, positions, v.shape[-1])) for v in (x, residual, out)
    )
    factors = contiguous(gate).reshape((1 if len(gate.shape) == 1 else count, outputs))
    gated_product(rows, weight.T, bias, factors, added, result)


@linear_gate_add.backward(saves="x weight gate bias")
def _(saved, grad):
    x, w, gate, bias, wanted = saved.x, saved.weight, saved.gate, saved.bias, saved.needs
    rows = matrix(x)
    each = gate if len(gate.shape) == 1 else gate[..., None, :]
    g = matrix((grad * each).to(x.dtype)).contiguous()
    of_gate = None
    if wanted["gate"]:
        branch = matmul(rows, w.T, bias).reshape(grad.shape)
        of_gate = (grad.float() * branch).sum(-2)
        of_gate = matrix(of_gate).sum(0) if len(gate.shape) == 1 else of_gate
    return (
        matmul(g, w).reshape(x.shape) if wanted["x"] else None,
        matmul(g.T, rows) if wanted["weight"] else None,
        of_gate,
        grad,
        g.sum(0) if wanted["bias"] else None,
    )
