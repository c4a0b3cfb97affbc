"""The operators of this library as torch custom ops: `torch.ops.tkc.<name>`, with fake functions
and autograd.

The only file of tkc that imports torch, and it is imported only where torch was: by `import
tkc.kernels`, or by the first call of an operator. What it registers is what an Operator says of
itself (operator.py):

    schema       from the annotations; mutated arguments as Tensor(a!)
    CPU, CUDA    Operator.run, which counts up the versions of mutated arguments, or what it did before (calls.py)
    fake         Operator.shapes: the generator up to its `yield`, where torch.compile needs nothing else
    autograd     Operator.gradient, on what Operator.saves names. It calls operators, so that it compiles too

The dispatcher takes longer than a launch (15 us and 5 on an H200's host). A call that it would hand
on as it is (plain tensors, no gradient wanted, nobody who compiles, traces, transforms or watches)
goes past it: `alone`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tkc
from tkc.kernels.calls import Calls, Script
from tkc.kernels.operator import OPERATORS, Operator

LIBRARY = torch.library.Library("tkc", "FRAGMENT")


def register(op: Operator) -> None:
    """Makes torch.ops.tkc.<op>; `op` called with a tensor goes there from now on."""
    if op.torch is not None:
        return
    qualified = f"tkc::{op.name}"
    LIBRARY.define(op.schema, tags=(torch.Tag.pt2_compliant_tag,))
    if op.mutates:
        op.written = _written(op)
    calls = Calls(op, torch, _WATCHERS or (lambda: True,), alone, _recorded)
    for device in "CPU", "CUDA":
        LIBRARY.impl(op.name, calls.behind, device)
    torch.library.register_fake(qualified, op.shapes, lib=LIBRARY)
    if op.gradient is not None:
        torch.library.register_autograd(
            qualified, _backward(op), setup_context=_setup(op), lib=LIBRARY
        )
    op.compiling, op.torch, op.first = (
        torch.compiler.is_compiling,
        getattr(torch.ops.tkc, op.name),
        calls.first,
    )  # the last says that the others are there
    op.__class__ = type(
        "Operator", (Operator,), {"__call__": calls.called(), "__doc__": Operator.__doc__}
    )


try:
    _WATCHERS = (
        torch._C._len_torch_function_stack,
        torch._C._len_torch_dispatch_stack,
        torch._C._functorch.peek_interpreter_stack,
        torch._C._get_tracing_state,
        torch.autograd._profiler_enabled,
    )
except AttributeError:
    _WATCHERS = None  # another torch: everything through the dispatcher
_TENSORS = torch.Tensor, torch.nn.Parameter
_compiling, _grad = torch.compiler.is_compiling, torch.is_grad_enabled


def alone(args: tuple, kwargs: dict) -> bool:
    """Whether torch's dispatcher would hand these arguments on as they are: dense memory of a CPU
    or a CUDA device and nothing else, no gradient wanted, nobody watching. True where there is no
    tensor.
    """
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if not tensors:
        return True
    if _compiling() or _WATCHERS is None or any([watcher() for watcher in _WATCHERS]):
        return False
    for x in tensors:
        if (
            type(x) not in _TENSORS
            or x.requires_grad
            and _grad()
            or not (x.is_cuda or x.is_cpu)
            or x.is_neg()
            or x._is_zerotensor()
            or x.layout is not torch.strided
        ):
            return False
    return True


def _told(x: torch.Tensor) -> None:
    """Tells autograd that a tensor was changed in place, as torch's own operators do: a graph that
    kept one before refuses to go back, where it would compute another gradient.
    """
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)


def _written(op: Operator):
    """Tells so of the arguments of a call that an operator changes."""
    places = [(i, p.name) for i, p in enumerate(op.parameters) if p.name in op.mutates]

    def written(args: tuple, kwargs: dict) -> None:
        for i, name in places:
            x = args[i] if i < len(args) else kwargs.get(name)
            if isinstance(x, torch.Tensor):
                _told(x)

    return written


class _Reading(TorchFunctionMode):
    """Sees who looks at what a tensor holds past the dispatcher."""

    def __init__(self, script: Script):
        super().__init__()
        self.script = script

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in (
            "tolist",
            "numpy",
            "__array__",
            "__dlpack__",
            "storage",
            "untyped_storage",
        ):
            self.script.whole = False
        return func(*args, **(kwargs or {}))


class _Writing(TorchDispatchMode):
    """Writes down what is asked of torch."""

    def __init__(self, script: Script):
        super().__init__()
        self.script = script

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's: else the first call would import all of torch.compile, which takes a second
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        nested, self.script.nested = self.script.nested, True
        try:
            result = func(*args, **(kwargs or {}))  # an operator of ours launches for itself
        finally:
            self.script.nested = nested
        self.script.operation(func, args, kwargs or {}, result)
        return result


def _recorded(
    op: Operator, values: tuple, pairs: Sequence[tuple[str, str, bool]], otherwise: Callable
):
    """The result of a call, and a function that makes one like it; None where there can be none."""
    script = Script(op, values, torch)
    with _Reading(script), _Writing(script), tkc.handed(script.launch):
        result = op.run(*script.arguments)
    return result, script.function(result, _told, pairs, otherwise)


def register_all() -> None:
    for op in list(OPERATORS.values()):
        register(op)


def _setup(op: Operator):
    names = [p.name for p in op.parameters]

    def setup(ctx, inputs, output):
        known = dict(zip(names, inputs, strict=False)) | {"result": output}
        tensors, ctx.kept = [], {}
        for name in op.saves:
            value = known[name]
            parts = value if isinstance(value, tuple) else (value,)
            ctx.kept[name] = (
                [
                    (
                        len(tensors) + i if isinstance(part, torch.Tensor) else None,
                        None if isinstance(part, torch.Tensor) else part,
                    )
                    for i, part in enumerate(parts)
                ],
                isinstance(value, tuple),
            )
            tensors += [part for part in parts if isinstance(part, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.needs = dict(zip(names, ctx.needs_input_grad, strict=False))

    return setup


def _backward(op: Operator):
    def backward(ctx, *grads):
        found = {}
        for name, (parts, many) in ctx.kept.items():
            values = tuple(value if at is None else ctx.saved_tensors[at] for at, value in parts)
            found[name] = values if many else values[0]
        return op.gradient(SimpleNamespace(**found, needs=ctx.needs), *grads)

    return backward
