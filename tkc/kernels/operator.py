"""`@operator`: a function of arrays that launches kernels, for every library at once, and a custom
op for torch.

How to add a kernel. Write the kernel with `tkc` alone, and below it a *generator* that checks its
arguments, allocates and yields its results, and then launches:

    @tkc.jit
    def _scale(x, out, factor, N: tkc.constexpr):
        i = tkc.program_id(0) * N
        tkc.store(out, (i,), (tkc.load(x, (i,), (N,)) * factor).to(out.dtype))

    @operator
    def scale(x: Array, factor: float = 2.0) -> Iterator[Array]:
        \"\"\"x · factor. Any shape, any float type.\"\"\"
        out = empty(x)
        yield out                        # torch.compile runs it up to here
        _scale[tkc.cdiv(out.size, 1024)](flat(x), flat(out), factor, N=1024)

    @scale.backward(saves="factor")      # parameters by name, or `result`
    def _(saved, grad):
        return scale(grad, saved.factor)  # a gradient a parameter, in order, or a dict by name

Where another operator computes the gradient, of parameters and results with the same names, that is
a line: `softmax.gradient_by(softmax_backward, "x")`.

`scale(x)` then takes arrays of torch, cupy, jax and NumPy and gives an array of the same library on
the same device. A torch tensor goes through `torch.ops.tkc.scale`, whose schema is read from the
annotations (Array, Array | None, int, float, bool, str), whose fake function is the generator up to
its `yield`, and whose autograd is `backward`: see torch_ops.py; or past it, where it had nothing to
do. An array of jax that jax traces (differentiates, compiles) goes through jax_ops.py. A function
that changes arguments in place names them: `@operator(mutates="x")`; it yields what it returns, or
None. What a call did is remembered (calls.py), so a generator looks at extents, strides, element
types, devices, addresses modulo 16 and numbers, and at nothing else. Numbers that are others in
each call (a step, a seed) it names too: `@operator(varies="seed")`. Put its name into the list in
__init__.py and a test into tests/kernels/.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, overload

import tkc
from tkc.kernels.arrays import Array, is_traced, overlaps_itself, share_memory, zeros

TYPES = {
    "Array": "Tensor",
    "Array | None": "Tensor?",
    "int": "int",
    "int | None": "int?",
    "float": "float",
    "float | None": "float?",
    "bool": "bool",
    "str": "str",
    "str | None": "str?",
}
OPERATORS: dict[str, Operator] = {}
# makes a custom op of torch of an Operator: set by tkc.kernels, since that imports this file
on_torch: Callable[[Operator], None] | None = None
# a call of an Operator that jax traces: likewise
on_jax: Callable[[Operator, tuple, dict], Any] | None = None


@overload
def operator(fn: Callable) -> Operator: ...


@overload
def operator(
    *, mutates: str = "", varies: str = "", name: str | None = None
) -> Callable[[Callable], Operator]: ...


def operator(
    fn: Callable | None = None, *, mutates: str = "", varies: str = "", name: str | None = None
) -> Operator | Callable[[Callable], Operator]:
    """Makes an Operator of a generator function. mutates: names of the parameters that it writes
    to. varies: of numbers that are others in each call, of which it computes by + − · / and powers,
    or compares them, but nothing else. name: torch's, by default the function's own."""
    if fn is None:
        return lambda f: Operator(f, tuple(mutates.split()), tuple(varies.split()), name)
    return Operator(fn, (), (), name)


def first_order_only(name: str, *of_derivatives: Any) -> None:
    """Raises LaunchError where a gradient reaches what a function returns for its own gradient."""
    if any(g is not None for g in of_derivatives):
        raise tkc.LaunchError(
            f"{name} has no gradient of its gradients, nor of what else it gives for them; detach"
            " them, or pass create_graph=False"
        )


def _has_no_elements(value: Any) -> bool:
    return 0 in getattr(value, "shape", ())


def _clear(result: Any) -> None:
    """Sets results to 0, which is what no elements add up to: where there is nothing to read the
    function need not launch anything. Those of jax are zeros from the start.
    """
    for x in result if isinstance(result, tuple) else (result,):
        if x is not None:
            x[...] = 0


def _is_of_jax(value: Any) -> bool:
    return type(value).__module__.startswith("jax")


class Operator:
    """A function of arrays. Call it; `run` is the function without torch's dispatcher, `shapes` its
    results without a launch.
    """

    def __init__(
        self,
        fn: Callable,
        mutates: tuple[str, ...],
        varies: tuple[str, ...],
        name: str | None = None,
    ):
        functools.update_wrapper(self, fn)
        self.fn, self.name, self.mutates, self.varies = fn, name or fn.__name__, mutates, varies
        self.parameters = tuple(inspect.signature(fn).parameters.values())
        self.returns = str(inspect.signature(fn).return_annotation)
        self.gradient: Callable | None = None
        self.saves: tuple[str, ...] = ()
        self.without: tuple[str, ...] = ()  # arrays that the gradient leaves out
        self.zeros, self.everywhere = True, False
        self.numbers = tuple(
            (i, p.name)
            for i, p in enumerate(self.parameters)
            if str(p.annotation).startswith("float")
        )
        # set by torch_ops.register:
        self.torch: Any = None  # torch.ops.tkc.<name>
        self.first: Any = None  # a call, by what was recorded of one like it
        self.compiling: Any = None  # whether torch compiles
        self.on_mutation: Callable[[tuple, dict], None] | None = None  # of arguments, after a call
        OPERATORS[self.name] = self

    def __repr__(self) -> str:
        return f"<operator tkc::{self.schema}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.first is None and "torch" in sys.modules:
            assert on_torch is not None  # set where the package is imported
            on_torch(self)
        if self.first is not None and self.compiling():
            return self.torch(*args, **kwargs)
        try:
            return (self.first or self.run)(*args, **kwargs)
        except tkc.Error as error:
            tkc.hide_own_frames(error)
            raise

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Allocates, launches, returns."""
        foreign = "jax" in sys.modules and any(map(_is_of_jax, (*args, *kwargs.values())))
        if foreign:
            self._check_changed(args, kwargs)
            if any(map(is_traced, (*args, *kwargs.values()))):
                assert on_jax is not None  # set where the package is imported
                return on_jax(self, args, kwargs)
        for i, name in self.numbers:  # 1 is 1.0: it would be another kernel
            if i < len(args):
                if type(args[i]) is int:
                    args = (*args[:i], float(args[i]), *args[i + 1 :])
            elif type(kwargs.get(name)) is int:
                kwargs[name] = float(kwargs[name])
        steps = self.fn(*args, **kwargs)
        result = next(steps)
        self._check_shared(args, kwargs)
        if not foreign and any(map(_has_no_elements, (*args, *kwargs.values()))):
            _clear(result)
        for _ in steps:
            raise RuntimeError(f"{self.name} yields more than once")
        if self.on_mutation is not None:
            self.on_mutation(args, kwargs)
        if not foreign:
            return result
        from tkc.kernels.views import given

        return tuple(map(given, result)) if isinstance(result, tuple) else given(result)

    def _check_changed(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raises LaunchError where what the function writes to is an array of jax."""
        passed = dict(zip((p.name for p in self.parameters), args, strict=False)) | kwargs
        if any(_is_of_jax(passed.get(name)) for name in self.mutates):
            raise tkc.LaunchError(
                f"{self.name} changes {', '.join(self.mutates)} in place, and arrays of jax never"
                " change; pass an array of another library"
            )

    def _check_shared(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raises LaunchError where an array that the function writes to shares memory with itself
        or another argument, which would change while it is read.
        """
        if not self.mutates:
            return
        passed = dict(zip((p.name for p in self.parameters), args, strict=False)) | kwargs
        of_arrays = (p.name for p in self.parameters if str(p.annotation).startswith("Array"))
        arrays = {name: passed[name] for name in of_arrays if passed.get(name) is not None}
        for name in (n for n in self.mutates if n in arrays):
            if overlaps_itself(arrays[name]):
                raise tkc.LaunchError(
                    f"{self.name} writes to {name}, of which several elements are one in memory;"
                    " pass a copy"
                )
            for other, x in arrays.items():
                if other != name and share_memory(arrays[name], x):
                    raise tkc.LaunchError(
                        f"{self.name} writes to {name}, which shares memory with {other}; pass a"
                        " copy of one"
                    )

    def shapes(self, *args: Any, **kwargs: Any) -> Any:
        """What `run` would return, not computed: its arrays have the right shapes and element
        types.
        """
        steps = self.fn(*args, **kwargs)
        result = next(steps)
        steps.close()
        return result

    def backward(
        self, saves: str = "", without: str = "", zeros: bool = True, everywhere: bool = False
    ) -> Callable:
        """Gives the gradient: a function (saved, *gradients of the results) that returns those of
        the parameters, in order (the last ones may be missing) or by name; they become the element
        types of the arguments, and what needs none gets none. without: arrays that may not require
        one. zeros: whether the gradient of a result that nothing depends on is zeros, not None.
        everywhere: whether the function takes arrays of every library, for jax's transformations,
        and not tensors of torch alone.
        """

        def decorate(fn: Callable) -> Callable:
            self.gradient, self.saves = fn, tuple(saves.split())
            self.without, self.zeros = tuple(without.split()), zeros
            self.everywhere = everywhere
            return fn

        return decorate

    def gradient_by(
        self,
        other: Operator,
        of: str,
        grads: str = "grad",
        results: str = "result",
        like: str = "",
        without: str = "",
        everywhere: bool = False,
        **renamed: str,
    ) -> None:
        """Gives the gradient, which `other` computes. It takes parameters of this operator by their
        names (renamed: its names of those that it calls otherwise), results by the names in
        `results` and their gradients by those in `grads`; its own results are gradients of the
        parameters `of`, in this order. like: the argument that the first result is like, where its
        gradient may be missing; those of other results are then None.
        """
        known = {p.name for p in self.parameters}
        taken = [renamed.get(p.name, p.name) for p in other.parameters]
        named_results, named_grads = results.split(), grads.split()
        kept = [name for name in taken if name in known]
        if not set(named_results).isdisjoint(taken):
            kept.append("result")

        def gradient(saved: Any, *given: Array | None) -> dict[str, Array]:
            if like:
                first_order_only(self.name, *given[len(named_grads) :])
            values = dict(vars(saved), **dict(zip(named_grads, given, strict=False)))
            if "result" in kept:
                result = saved.result if isinstance(saved.result, tuple) else (saved.result,)
                values.update(zip(named_results, result, strict=True))
            if like and given[0] is None:
                values[named_grads[0]] = zeros(values[like])
            found = other(*map(values.get, taken))
            found = found if isinstance(found, tuple) else (found,)
            return dict(zip(of.split(), found, strict=True))

        self.backward(" ".join(kept), without, not like, everywhere)(gradient)

    def gradients(self, saved: Any, grads: Sequence[Any]) -> list[Any]:
        """One gradient, or None, a parameter. saved: what `saves` names, and `needs`: of parameters
        by name, whether they need one. grads: of the results.
        """
        assert self.gradient is not None  # check_gradients has looked
        found = self.gradient(saved, *grads)
        names = [p.name for p in self.parameters]
        if not isinstance(found, dict):
            found = found if isinstance(found, tuple) else (found,)
            found = dict(zip(names, found, strict=False))
        return [found.get(name) if saved.needs.get(name) else None for name in names]

    def check_gradients(self, required: Sequence[str], without: str = "{}.detach()") -> None:
        """Raises LaunchError where one of these arrays, which require a gradient, gets none.
        without: how to write an array that requires none.
        """
        refused = [n for n in required if self.gradient is None or n in self.without]
        if not refused:
            return
        which, verb = ", ".join(refused), "require" if len(refused) > 1 else "requires"
        what = f" for {which}" if self.gradient else f", and {which} {verb} one"
        known = ", ".join(sorted(o.name for o in OPERATORS.values() if o.gradient))
        raise tkc.LaunchError(
            f"{self.name} has no gradient{what}; pass {without.format(refused[0])}"
            f"{', or call it within torch.no_grad()' if 'detach' in without else ''}."
            f" Functions with gradients are {known}"
        )

    @property
    def schema(self) -> str:
        """In torch's language: softmax(Tensor x, int axis=-1) -> Tensor."""
        letters, words = iter("abcdefgh"), []
        for p in self.parameters:
            kind = TYPES[str(p.annotation)]
            if p.name in self.mutates:
                kind = kind.replace("Tensor", f"Tensor({next(letters)}!)")
            words.append(f"{kind} {p.name}{_schema_default(p.default)}")
        tensors = ["Tensor"] * self.returns.count("Array")
        results = "Tensor" if len(tensors) == 1 else f"({', '.join(tensors)})"
        return f"{self.name}({', '.join(words)}) -> {results}"


def _schema_default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    return f'="{value}"' if isinstance(value, str) else f"={value}"
