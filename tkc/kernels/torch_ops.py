"""The operators of this library as torch custom ops: `torch.ops.tkc.<name>`, with fake functions
and autograd.

The only file of tkc that imports torch, and it is imported only where torch was: by `import
tkc.kernels`, or by the first call of an operator. What it registers is what an Operator says of
itself (operator.py):

    schema       from the annotations; mutated arguments as Tensor(a!)
    CPU, CUDA    Operator.run, which increments the versions of mutated arguments, or a recorded
                 call (calls.py)
    fake         Operator.shapes: the generator up to its `yield`
    autograd     Operator.gradient, on what Operator.saves names. It calls operators, so that it can
                 be compiled too; an error where there is none and one is required, or where a
                 derivative is carried forward, which would be lost

The dispatcher takes longer than a launch. A call that it would pass on unchanged (plain tensors, no
gradient wanted, nothing compiles, traces, transforms or watches) does not go through it: `alone`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import forward_ad
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
        op.on_mutation = _on_mutation(op)
    calls = Calls(op, torch, _WATCHERS or (lambda: True,), alone, _watched(op), _recorded)
    for device in "CPU", "CUDA":
        LIBRARY.impl(op.name, calls.behind, device)
    torch.library.register_fake(qualified, _fake(op), lib=LIBRARY)
    if op.gradient is not None:
        torch.library.register_autograd(
            qualified, _backward(op), setup_context=_setup(op), lib=Refusing(op.name, LIBRARY)
        )
    else:
        LIBRARY.impl(op.name, _without_gradient(op), "Autograd", with_keyset=True)
    op.compiling = torch.compiler.is_compiling
    op.torch = getattr(torch.ops.tkc, op.name)
    op.first = calls.first  # last: where it is set, so are the others
    op.__class__ = type(
        "Operator", (Operator,), {"__call__": calls.called(), "__doc__": Operator.__doc__}
    )


def _fake(op: Operator) -> Callable:
    """Operator.shapes, which torch also calls where one of several tensors is on the device meta.
    Raises LaunchError then: the result would be memory that nobody writes.
    """

    def fake(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip((p.name for p in op.parameters), args, strict=False)), **kwargs}
        on_meta = {n: x.is_meta for n, x in given.items() if isinstance(x, torch.Tensor)}
        if len(set(on_meta.values())) > 1:
            which = ", ".join(name for name, there in on_meta.items() if there)
            raise tkc.LaunchError(
                f"{op.name}: {which} on the device meta, without elements, beside tensors that have"
                " some; move all to one device"
            )
        return op.shapes(*args, **kwargs)

    return fake


def _forward_level() -> bool:
    """Whether tensors may carry derivatives forward."""
    return forward_ad._current_level >= 0


_WATCHERS: tuple[Callable[[], Any], ...] | None
try:
    _WATCHERS = (
        torch._C._len_torch_function_stack,
        torch._C._len_torch_dispatch_stack,
        torch._C._functorch.peek_interpreter_stack,
        torch._C._get_tracing_state,
        torch.autograd._profiler_enabled,
        _forward_level,
    )
except AttributeError:
    _WATCHERS = None  # another torch: everything through the dispatcher
_TENSORS = torch.Tensor, torch.nn.Parameter
_compiling, _grad = torch.compiler.is_compiling, torch.is_grad_enabled


def alone(args: tuple, kwargs: dict) -> bool:
    """Whether torch's dispatcher would hand these arguments on as they are: dense memory of a CPU
    or a CUDA device and nothing else, no gradient wanted, nothing watching. True where there is no
    tensor.
    """
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if not tensors:
        return True
    if _compiling() or _WATCHERS is None or any([watcher() for watcher in _WATCHERS]):
        return False
    return all(_is_plain(x) and not (x.requires_grad and _grad()) for x in tensors)


def _is_plain(x: torch.Tensor) -> bool:
    """Dense memory of a CPU or a CUDA device."""
    if type(x) not in _TENSORS or not (x.is_cuda or x.is_cpu):
        return False
    return not x.is_neg() and not x._is_zerotensor() and x.layout is torch.strided


def _increment_version(x: torch.Tensor) -> None:
    """Tells autograd that a tensor was changed in place, as torch's own operators do: a graph that
    saved it before refuses to run backward, where it would compute another gradient.
    """
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)


def _on_mutation(op: Operator) -> Callable[[tuple, dict], None]:
    """Increments the versions of the arguments that a call of the operator changed."""
    places = [(i, p.name) for i, p in enumerate(op.parameters) if p.name in op.mutates]

    def on_mutation(args: tuple, kwargs: dict) -> None:
        for i, name in places:
            x = args[i] if i < len(args) else kwargs.get(name)
            if isinstance(x, torch.Tensor):
                _increment_version(x)

    return on_mutation


class _Reading(TorchFunctionMode):
    """Sees reads of what a tensor holds past the dispatcher."""

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
    """Records what is called in torch."""

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


def _watched(op: Operator) -> Callable:
    """A call that something watches: through the dispatcher. Raises LaunchError where torch.func
    differentiates by an argument, which ends in an error of torch's own.
    """

    def call(*args: Any) -> Any:
        if op.gradient is not None and any(map(_is_differentiated, args)):
            raise tkc.LaunchError(
                f"{op.name} is differentiated by torch.autograd, and not by torch.func (grad, vjp,"
                " jacrev); call backward() or torch.autograd.grad, or pass x.detach()"
            )
        return op.torch(*args)

    return call


def _check_tangents(name: str, args: Sequence[Any]) -> None:
    """Raises LaunchError where an argument has a tangent, which would be lost."""
    if _forward_level() and any(map(_has_tangent, args)):
        raise tkc.LaunchError(
            f"{name} has no derivative that is carried forward (torch.func.jvp, dual"
            " tensors); differentiate backward, or pass x.detach()"
        )


class Refusing:
    """A library in which torch registers the autograd of one op, so that it refuses tangents."""

    def __init__(self, name: str, of: torch.library.Library):
        self.name, self.of = name, of

    def impl(self, name: str, fn: Callable, key: str, **how: Any) -> None:
        def refusing(keys: Any, *args: Any, **kwargs: Any) -> Any:
            _check_tangents(self.name, (*args, *kwargs.values()))
            return fn(keys, *args, **kwargs)

        self.of.impl(name, refusing, key, **how)


def _has_tangent(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None


def _is_differentiated(x: Any) -> bool:
    """Whether a transform of torch.func differentiates by a tensor."""
    if not isinstance(x, torch.Tensor) or not _grad() or _WATCHERS is None:
        return False
    return torch._C._functorch.is_gradtrackingtensor(x) and x.requires_grad


def _recorded(
    op: Operator, values: tuple, pairs: Sequence[tuple[str, str, bool]], otherwise: Callable
):
    """The result of a call, and a function that makes one like it; None where there can be none."""
    script = Script(op, values, torch)
    with _Reading(script), _Writing(script), tkc.handed(script.launch):
        result = op.run(*script.arguments)
    return result, script.function(result, _increment_version, pairs, otherwise)


def register_all() -> None:
    """Makes torch.ops.tkc.<name> of every operator that is not one yet."""
    for op in list(OPERATORS.values()):
        register(op)


def _setup(op: Operator) -> Callable:
    names = [p.name for p in op.parameters]

    def setup(ctx, inputs, output):
        known = dict(zip(names, inputs, strict=False)) | {"result": output}
        op.check_gradients([n for n in op.without if _requires_gradient(known[n])])
        ctx.set_materialize_grads(op.zeros)
        tensors: list[torch.Tensor] = []
        ctx.kept = {}
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


def _without_gradient(op: Operator) -> Callable:
    """What autograd's place in the dispatcher does where there is no gradient."""
    names = [p.name for p in op.parameters]
    below = getattr(torch.ops.tkc, op.name).default.redispatch

    def forward(keys: Any, *args: Any, **kwargs: Any) -> Any:
        _check_tangents(op.name, (*args, *kwargs.values()))
        if _grad():
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            op.check_gradients([n for n, v in given.items() if _requires_gradient(v)])
        return below(keys & torch._C._after_autograd_keyset, *args, **kwargs)

    return forward


def _requires_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _backward(op: Operator) -> Callable:
    def backward(ctx, *grads):
        found, tensors = {}, ctx.saved_tensors  # read once: checkpointing computes them for that
        for name, (parts, many) in ctx.kept.items():
            values = tuple(value if at is None else tensors[at] for at, value in parts)
            found[name] = values if many else values[0]
        return tuple(op.gradients(SimpleNamespace(**found, needs=ctx.needs), grads))

    return backward
