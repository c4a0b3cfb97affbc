"""The operators of this library as torch custom ops: `torch.ops.tkc.<name>`, with fake functions and autograd.

The only file of tkc that imports torch, and it is imported only where torch was: by `import tkc.kernels`, or by the first call of
an operator. What it registers is what an Operator says of itself (operator.py):

    schema       from the annotations; mutated arguments as Tensor(a!)
    CPU, CUDA    Operator.run
    fake         Operator.shapes: the generator up to its `yield`, where torch.compile needs nothing else
    autograd     Operator.gradient, on what Operator.saves names. It calls operators, so that it compiles too
"""
from __future__ import annotations

from types import SimpleNamespace

import torch

from tkc.kernels.operator import OPERATORS, Operator

LIBRARY = torch.library.Library("tkc", "FRAGMENT")


def register(op: Operator) -> None:
    """Makes torch.ops.tkc.<op>; `op` called with a tensor goes there from now on."""
    if op.tensor is not None: return
    qualified = f"tkc::{op.name}"
    LIBRARY.define(op.schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in "CPU", "CUDA": LIBRARY.impl(op.name, op.run, device)
    torch.library.register_fake(qualified, op.shapes, lib=LIBRARY)
    if op.gradient is not None: torch.library.register_autograd(qualified, _backward(op), setup_context=_setup(op), lib=LIBRARY)
    op.torch, op.tensor = getattr(torch.ops.tkc, op.name), torch.Tensor


def register_all() -> None:
    for op in list(OPERATORS.values()): register(op)


def _setup(op: Operator):
    names = [p.name for p in op.parameters]

    def setup(ctx, inputs, output):
        known = dict(zip(names, inputs)) | {"result": output}
        tensors, ctx.kept = [], {}
        for name in op.saves:
            value = known[name]
            parts = value if isinstance(value, tuple) else (value,)
            ctx.kept[name] = [(len(tensors) + i if isinstance(part, torch.Tensor) else None, None if isinstance(part, torch.Tensor) else part) for i, part in enumerate(parts)], isinstance(value, tuple)
            tensors += [part for part in parts if isinstance(part, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.needs = dict(zip(names, ctx.needs_input_grad))
    return setup


def _backward(op: Operator):
    def backward(ctx, *grads):
        found = {}
        for name, (parts, many) in ctx.kept.items():
            values = tuple(value if at is None else ctx.saved_tensors[at] for at, value in parts)
            found[name] = values if many else values[0]
        return op.gradient(SimpleNamespace(**found, needs=ctx.needs), *grads)
    return backward
