"""Functions of several ranks as custom ops of torch, with fake functions and autograd:

    torch.ops.tkc.all_gather_matmul(a, w, group)      group: the name of a process group,
                                                      dist.group.WORLD.group_name

Arguments and results are those of the functions of `tkc.kernels.distributed`, tensors of this
rank. Gradients are those of the sum of all ranks' losses, so all ranks run backward: what a
function gathers, its gradient scatters, and the other way round. The first call of a group, and the
first one with other shapes, allocates memory, together with the other ranks: it may not be one that
a CUDA graph records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.distributed.distributed_c10d import _resolve_process_group

import tkc
from tkc.kernels import distributed
from tkc.kernels.distributed.groups import Group
from tkc.kernels.distributed.torch_group import group_of
from tkc.kernels.torch_ops import Refusing

LIBRARY = torch.library.Library("tkc", "FRAGMENT")
OPS: list[str] = []  # names
_groups: dict[str, tuple[Any, Group]] = {}  # by name: of torch, and ours


def group_named(name: str) -> Group:
    """That of a process group's name, made by the first call, which all ranks make together."""
    there = _process_group(name)
    known, group = _groups.get(name, (None, None))
    if group is None or known is not there:
        if group is not None:  # of a process group that had this name before
            group.close()
        _groups[name] = there, (group := group_of(there))
    return group


def close_groups() -> None:
    """Gives back what the groups of the ops hold; before the process groups are destroyed."""
    while _groups:
        _, group = _groups.popitem()[1]
        group.close()


def _process_group(name: Any) -> Any:
    return _resolve_process_group(name)


def _world(name: str) -> int:
    return int(_process_group(name).size())


# ---- tensors of a CPU are arrays to the functions, which share their memory
def _array(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.is_cuda:
        return x
    if x.dtype != torch.bfloat16:
        return x.numpy()
    import ml_dtypes

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _tensor(y: Any) -> Any:
    if isinstance(y, tuple):
        return tuple(map(_tensor, y))
    if not isinstance(y, np.ndarray):
        return y
    if y.dtype.name != "bfloat16":
        return torch.from_numpy(y)
    return torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)


def _define(
    schema: str,
    run: Callable[..., Any],
    shapes: Callable[..., Any],
    gradient: Callable[..., tuple] | None = None,
) -> None:
    """torch.ops.tkc.<name>. run(group, *arguments), shapes(world, *arguments), both without the
    group's name, which is the last argument; gradient(saved arguments and results, changes, needs,
    name) gives a gradient for each argument but the name.
    """
    name = schema.partition("(")[0]
    OPS.append(name)
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

    def call(*arguments: Any) -> Any:
        *given, group = arguments
        return _tensor(run(group_named(group), *map(_array, given)))

    def fake(*arguments: Any) -> Any:
        *given, group = arguments
        return shapes(_world(group), *given)

    for device in "CPU", "CUDA":
        LIBRARY.impl(name, call, device)
    torch.library.register_fake(f"tkc::{name}", fake, lib=LIBRARY)
    torch.library.register_autograd(
        f"tkc::{name}",
        _backward(gradient or _no_gradient(name)),
        setup_context=_setup,
        lib=Refusing(name, LIBRARY),
    )


def _setup(ctx: Any, inputs: tuple, output: Any) -> None:
    results = output if isinstance(output, tuple) else (output,)
    kept = (*inputs[:-1], *results)
    ctx.set_materialize_grads(False)
    ctx.group = inputs[-1]
    ctx.numbers = [None if isinstance(x, torch.Tensor) else x for x in kept]
    ctx.save_for_backward(*(x for x in kept if isinstance(x, torch.Tensor)))


def _backward(gradient: Callable[..., tuple]) -> Callable:
    def backward(ctx: Any, *changes: Any) -> tuple:
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if x is None else x for x in ctx.numbers]
        whole = [None if x is None else x.contiguous() for x in changes]
        return *gradient(kept, whole, ctx.needs_input_grad, ctx.group), None

    return backward


def _no_gradient(name: str) -> Callable[..., tuple]:
    def gradient(*_: Any) -> tuple:
        raise tkc.LaunchError(f"{name} has no gradient; detach its results from the loss")

    return gradient


def _call(name: str) -> Callable:
    """An op of this file, for gradients of gradients."""
    return getattr(torch.ops.tkc, name)


def _of_changes(name: str) -> Callable[..., tuple]:
    """A gradient that is what an op makes of the result's change."""
    return lambda kept, changes, needs, group: (_call(name)(changes[0], group),)


# ---- collectives
_define(
    "all_reduce(Tensor x, str group) -> Tensor",
    lambda group, x: distributed.all_reduce(x, group),
    lambda world, x: x.new_empty(x.shape),
    _of_changes("all_reduce"),
)
_define(
    "all_gather(Tensor x, str group) -> Tensor",
    lambda group, x: distributed.all_gather(x, group),
    lambda world, x: x.new_empty((world, *x.shape)),
    _of_changes("reduce_scatter"),
)
_define(
    "reduce_scatter(Tensor x, str group) -> Tensor",
    lambda group, x: distributed.reduce_scatter(x, group),
    lambda world, x: x.new_empty(x.shape[1:]),
    _of_changes("all_gather"),
)
_define(
    "all_to_all(Tensor x, str group) -> Tensor",
    lambda group, x: distributed.all_to_all(x, group),
    lambda world, x: x.new_empty(x.shape),
    _of_changes("all_to_all"),
)


# ---- products
def _all_gather_matmul(kept: list, changes: list, needs: tuple, group: str) -> tuple:
    (a, w, _), (change,) = kept, changes
    of_a = _call("matmul_reduce_scatter")(change, w.T, group) if needs[0] else None
    of_w = _gathered(a, group).T @ change if needs[1] else None
    return of_a, of_w


def _matmul_reduce_scatter(kept: list, changes: list, needs: tuple, group: str) -> tuple:
    (a, w, _), (change,) = kept, changes
    of_a = _call("all_gather_matmul")(change, w.T, group) if needs[0] else None
    of_w = a.T @ _gathered(change, group) if needs[1] else None
    return of_a, of_w


def _matmul_all_reduce(kept: list, changes: list, needs: tuple, group: str) -> tuple:
    (a, w, _), change = kept, _call("all_reduce")(changes[0], group)
    return change @ w.T if needs[0] else None, a.T @ change if needs[1] else None


def _gathered(x: torch.Tensor, group: str) -> torch.Tensor:
    return _call("all_gather")(x, group).flatten(0, 1)


_define(
    "all_gather_matmul(Tensor a, Tensor w, str group) -> Tensor",
    lambda group, a, w: distributed.all_gather_matmul(a, w, group),
    lambda world, a, w: a.new_empty((world * a.shape[0], w.shape[1])),
    _all_gather_matmul,
)
_define(
    "matmul_reduce_scatter(Tensor a, Tensor w, str group) -> Tensor",
    lambda group, a, w: distributed.matmul_reduce_scatter(a, w, group),
    lambda world, a, w: a.new_empty((a.shape[0] // world, w.shape[1])),
    _matmul_reduce_scatter,
)
_define(
    "matmul_all_reduce(Tensor a, Tensor w, str group) -> Tensor",
    lambda group, a, w: distributed.matmul_all_reduce(a, w, group),
    lambda world, a, w: a.new_empty((a.shape[0], w.shape[1])),
    _matmul_all_reduce,
)


# ---- attention
def _ring_attention(kept: list, changes: list, needs: tuple, group: str) -> tuple:
    q, k, v, causal, balanced, deterministic, y, lse = kept
    if changes[1] is not None:
        raise tkc.LaunchError(
            "ring_attention has no gradient for its log-sum-exps; leave them out of the loss, or"
            " pass lse.detach()"
        )
    found = _call("ring_attention_backward")(
        changes[0], q, k, v, y, lse, causal, balanced, deterministic, group
    )
    return *found, None, None, None


_define(
    "ring_attention(Tensor q, Tensor k, Tensor v, bool causal, bool balanced, bool deterministic,"
    " str group) -> (Tensor, Tensor)",
    lambda group, q, k, v, causal, balanced, deterministic: distributed.ring_attention(
        q, k, v, group, causal, balanced, with_lse=True
    ),
    lambda world, q, k, v, *how: (
        q.new_empty(q.shape),
        q.new_empty(q.shape[:2], dtype=torch.float32),
    ),
    _ring_attention,
)
_define(
    "ring_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,"
    " bool causal, bool balanced, bool deterministic, str group) -> (Tensor, Tensor, Tensor)",
    lambda group, grad, q, k, v, out, lse, *how: distributed.ring_attention_backward(
        grad, q, k, v, out, lse, group, *how
    ),
    lambda world, grad, q, k, v, *rest: tuple(x.new_empty(x.shape) for x in (q, k, v)),
)


# ---- experts
def _dispatch(kept: list, changes: list, needs: tuple, group: str) -> tuple:
    (_, _, number, _, every), (change, _) = kept, changes
    return _call("combine")(change, every, number, group), None, None


def _combine(kept: list, changes: list, needs: tuple, group: str) -> tuple:
    (_, every, number, _), (change,) = kept, changes
    own = every[_process_group(group).rank()]
    return _call("dispatch")(change, own, number, group)[0], None, None


_define(
    "dispatch(Tensor x, Tensor experts, int number, str group) -> (Tensor, Tensor)",
    lambda group, x, experts, number: distributed.dispatch(x, experts, number, group),
    lambda world, x, experts, number: (
        x.new_empty((world, *x.shape)),
        experts.new_empty((world, *experts.shape)),
    ),
    _dispatch,
)
_define(
    "combine(Tensor rows, Tensor experts, int number, str group) -> Tensor",
    lambda group, rows, experts, number: distributed.combine(rows, experts, number, group),
    lambda world, rows, experts, number: rows.new_empty(rows.shape[1:]),
    _combine,
)
