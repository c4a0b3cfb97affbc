"""Launches like one that was made before, with little work in Python.

A call's form (forms.py) follows from the types of its arguments, the signs of its integers and the
blocks of its descriptors. So after a launch a function is written for calls of these types: it
looks at signs and blocks, and hands the arguments to tkc's kernel of that form, whose own launch
cache does the rest.

    def launch(args, kwargs, grid):                # of kernel[grid](x, n, BLOCK=64)
        a0, a1, = args
        k0 = kwargs["BLOCK"]
        if not 0 <= a1 < LIMIT: return None        # a call of another form
        …
        kernel[grid](a0, a1, k0, form)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tkc.triton.runtime import forms
from tkc.triton.runtime.compiled import HINTS, CompiledKernel

if TYPE_CHECKING:
    from tkc.runtime.jit import JitFunction

NATURAL = 2**63  # integers from 0 to here are of one form
MAX_OF_A_KIND = 16  # functions that are kept for calls of the same types
Quick = Callable[[Sequence, Mapping[str, Any], Any], CompiledKernel | None]


def kind(args: Sequence, kwargs: Mapping[str, Any]) -> tuple:
    """What calls for one function share: the types of what is given, and names."""
    return (*map(type, args), None, *kwargs, *map(type, kwargs.values()))


def quick_launch(
    function: Any,
    kernel: JitFunction,
    found: Sequence[tuple[str, forms.Form]],
    call: tuple[Sequence, Mapping[str, Any]],
    given: Mapping[str, Any],
    mark: str,
    debugging: tuple[Callable[[], bool], bool],
) -> Quick | None:
    """The function for calls like one that was just made. found: the form of each parameter; given:
    the arguments by parameter; mark: what tells forms apart, the kernel's last argument; debugging:
    what says whether programs are checked, and what it said. None where arguments are of kinds that
    take more work.
    """
    args, kwargs = call
    places = [f"a{i}" for i in range(len(args))]
    named = {name: f"k{i}" for i, name in enumerate(kwargs)}
    variables = named | dict(zip(function.arg_names, places, strict=False))
    space: dict[str, Any] = {
        "_kernel": kernel,
        "_mark": mark,
        "_of": CompiledKernel,
        "_function": function,
        "_constant": forms.constant,
        "_view": forms.view,
        "_extents": extents,
        "_limit": NATURAL,
        "_checking": debugging[0],
        "_checks": debugging[1],
    }
    tests, handed = ["_checking() is not _checks"], []
    for i, (name, form) in enumerate(found):
        if name not in variables:
            variables[name] = f"d{i}"
            space[f"d{i}"] = given[name]  # its default
        written = _handed(form, given[name], variables[name], space)
        if written is None:
            return None
        handed.append(written[0])
        tests += written[1]
    for warps in _only(named, ["num_warps"], function).values():
        tests.append(f"{warps} is not None and {warps} & ({warps} - 1)")
    own = _items({name: variables[name] for name, _ in found})
    hints, options = _items(_only(named, HINTS, function)), _items(_only(named, named, function))
    lines = [
        "def launch(args, kwargs, grid):",
        f"    ({_listed(places)}) = args",
        *(f"    {v} = kwargs[{n!r}]" for n, v in named.items()),
        f"    if {' or '.join(tests)}:",
        "        return None",
        f"    given = {{{own}}}",
        "    if callable(grid):",
        f"        grid = grid({{**given, {hints}}})",
        f"    _kernel[_extents(grid)]({_listed(handed)}_mark)",
        f"    return _of(_function, _kernel, given, {{{options}}})",
    ]
    exec("\n".join(lines), space)
    return space["launch"]


def _only(named: Mapping[str, str], names: Iterable[str], function: Any) -> dict[str, str]:
    """Of what is given by name, some that are no parameters."""
    return {n: named[n] for n in names if n in named and n not in function.arg_names}


def _listed(words: Iterable[str]) -> str:
    return "".join(f"{word}, " for word in words)


def _items(names: Mapping[str, str]) -> str:
    """What stands in the braces of a dictionary of variables."""
    return "".join(f"{name!r}: {variable}, " for name, variable in names.items())


def _handed(
    form: forms.Form, value: Any, variable: str, space: dict[str, Any]
) -> tuple[str, list[str]] | None:
    """What the kernel is given of an argument, and tests that a call is of another form."""
    match form:
        case forms.Pointer() if forms.is_plain_array(value):
            return variable, []
        case forms.Number(natural=natural) if type(value) is int:
            inside = f"0 <= {variable} < _limit"
            return variable, [f"not {inside}" if natural else inside]
        case forms.Number() if type(value) in (float, bool):
            return variable, []
        case forms.Constant() if type(value) in (int, float, bool, str, type(None)):
            return variable, []
        case forms.Constant():
            return f"_constant({variable})", []
        case forms.Descriptor(block=block, padding=padding) if forms.is_plain_array(value.base):
            space[f"{variable}_block"], space[f"{variable}_padding"] = block, padding
            return f"_view({variable})", [
                f"tuple({variable}.block_shape) != {variable}_block",
                f"{variable}.padding != {variable}_padding",
            ]
    return None


def extents(grid: Any) -> Any:
    """A grid of integers of any kind."""
    if isinstance(grid, (tuple, list)):
        return tuple([n if type(n) is int else int(forms.unwrap(n)) for n in grid])
    return int(forms.unwrap(grid))
