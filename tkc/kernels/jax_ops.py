"""The operators of this library under jax's transformations: what a call does that jax traces.

    jax.grad, jax.vjp    `custom_vjp`: forward and backward get arrays, and kernels run on them;
                         Operator.gradient gives the gradient, where it is written for arrays of
                         every library
    jax.jit, jax.vmap    `pure_callback`: kernels run on the host, on arrays of NumPy, when jax runs
                         what it compiled; on GPUs that would wait for itself, and is an error

Imported where jax was, by the first call that it traces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import tkc
from tkc.kernels.arrays import is_traced
from tkc.kernels.views import of_jax

if TYPE_CHECKING:
    from tkc.kernels.operator import Operator


def call(op: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a call in which jax traces some argument. Raises LaunchError where there is no
    gradient for what jax differentiates, or it traces a number.
    """
    given = dict(zip((p.name for p in op.parameters), args, strict=False)) | kwargs
    for p in op.parameters:
        x: Any = given.get(p.name)
        if _is_array(x) and not str(p.annotation).startswith("Array"):
            if is_traced(x):
                raise tkc.LaunchError(
                    f"{op.name}: {p.name} is a number that the call depends on, and jax traces it;"
                    " name it in static_argnames, or bind it by functools.partial"
                )
            given[p.name] = x.item()
    names = tuple(name for name, x in given.items() if _is_array(x))
    others = {name: x for name, x in given.items() if name not in names}
    made = _Call(op, names, others)
    function = sys.modules["jax"].custom_vjp(made.result)
    function.defvjp(made.forward, made.backward, symbolic_zeros=True)
    return function(*(given[name] for name in names))


def _is_array(x: Any) -> bool:
    return isinstance(x, sys.modules["jax"].Array) or is_traced(x)


class _Needs:
    """Which arrays need a gradient: what forward hands to backward beside arrays."""

    def __init__(self, of: dict[str, bool]):
        self.of = of


class _Call:
    """A call as functions of its arrays of jax. names: of these arrays; others: the other
    arguments.
    """

    def __init__(self, op: Operator, names: tuple[str, ...], others: dict[str, Any]):
        self.op, self.names, self.others = op, names, others

    def given(self, arrays: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.names, arrays, strict=True)) | self.others

    def result(self, *arrays: Any) -> Any:
        """The operator's."""
        blank = self.op.shapes(**self.given([_blank(x) for x in arrays]))
        return _run(self.op, lambda *given: self.op.run(**self.given(given)), blank, arrays)

    def forward(self, *primals: Any) -> tuple[Any, Any]:
        """The result, and what backward needs: arrays, the result, and who needs a gradient."""
        arrays = tuple(x.value for x in primals)
        needs = {
            name: x.perturbed and _is_float(x.value)
            for name, x in zip(self.names, primals, strict=True)
        }
        self._check([name for name, is_needed in needs.items() if is_needed])
        result = self.result(*arrays)
        return result, (arrays, result, _Needs(needs))

    def _check(self, wanted: list[str]) -> None:
        """Raises LaunchError where one of these arrays gets no gradient."""
        op = self.op
        if op.gradient is not None and wanted and not op.everywhere:
            raise tkc.LaunchError(
                f"{op.name} has a gradient for tensors of torch, and jax differentiates it; wrap it"
                " with jax.custom_vjp, or pass jax.lax.stop_gradient of its arguments"
            )
        refused = [name for name in wanted if op.gradient is None or name in op.without]
        op.check_gradients(refused, "jax.lax.stop_gradient({})")

    def backward(self, kept: Any, cotangents: Any) -> tuple[Any, ...]:
        """The gradients of the arrays; of integers what jax has for them."""
        (arrays, result, needs), jax = kept, sys.modules["jax"]
        grads = cotangents if isinstance(cotangents, tuple) else (cotangents,)
        grads = tuple(map(self._gradient_of_result, grads))

        def gradients(arrays: Any, result: Any, grads: Any) -> tuple[Any, ...]:
            found = self._gradients(arrays, result, grads, needs.of)
            return tuple(map(_as_array, arrays, found))

        blank = tuple(map(_blank, arrays))
        found = _run(self.op, gradients, blank, (arrays, result, grads))
        return tuple(x if _is_float(x) else np.zeros(x.shape, jax.dtypes.float0) for x in found)

    def _gradient_of_result(self, grad: Any) -> Any:
        """What Operator.gradient gets where nothing depends on a result."""
        if not isinstance(grad, import_module("jax.custom_derivatives").SymbolicZero):
            return grad
        return sys.modules["jax"].numpy.zeros(grad.shape, grad.dtype) if self.op.zeros else None

    def _gradients(self, arrays: Any, result: Any, grads: Any, needs: dict[str, bool]) -> list[Any]:
        """Operator.gradients', of the arrays alone."""
        op = self.op
        values = {p.name: p.default for p in op.parameters} | self.given(arrays)
        values["result"] = result
        kept = {name: values[name] for name in op.saves}
        found = op.gradients(SimpleNamespace(**kept, needs=needs), grads)
        by_name = dict(zip((p.name for p in op.parameters), found, strict=True))
        return [by_name[name] for name in self.names]


def _is_float(x: Any) -> bool:
    return bool(sys.modules["jax"].numpy.issubdtype(x.dtype, np.floating))


def _blank(x: Any) -> np.ndarray:
    """An array of NumPy of the same shape and element type."""
    return np.empty(x.shape, x.dtype)


def _as_array(x: Any, found: Any) -> Any:
    """A gradient as an array of the type of x; zeros where there is none."""
    if found is None:
        return np.zeros(x.shape, x.dtype)
    return found if found.dtype == x.dtype else found.astype(x.dtype)


def _run(op: Operator, f: Callable, blank: Any, arguments: tuple) -> Any:
    """f of arrays in tuples, now or, where jax compiles or maps, when it runs what it made; `blank`
    has the shapes and types of the results. Raises LaunchError where that would be on a GPU.
    """
    jax = sys.modules["jax"]
    if not any(map(is_traced, jax.tree_util.tree_leaves(arguments))):
        return f(*arguments)
    if jax.default_backend() != "cpu":
        raise tkc.LaunchError(
            f"{op.name} runs when it is called, and jax.jit and jax.vmap run later; on a GPU call"
            " it outside of them (jax.grad and jax.vjp can be used)"
        )

    def on_host(*values: Any) -> Any:
        found = f(*jax.tree_util.tree_map(np.asarray, values))
        return jax.tree_util.tree_map(lambda x: x.astype(of_jax(x.dtype), copy=False), found)

    shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, of_jax(x.dtype)), blank)
    return jax.pure_callback(on_host, shapes, *arguments, vmap_method="sequential")


# without leaves
import_module("jax").tree_util.register_pytree_node(
    _Needs, lambda x: ((), tuple(x.of.items())), lambda items, _: _Needs(dict(items))
)
