"""What tests of kernels that are raced share: cases of benchmarks, small on the CPU, against what
torch computes in float64.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.triton_cases import Case, Operands
from tkc.triton.installation import install, uninstall


class References(dict[str, Callable]):
    """What the case whose name begins with a word should give, from what its run has (`v`)."""

    def __call__(self, word: str) -> Callable:
        def add(function: Callable) -> Callable:
            self[word] = function
            return function

        return add


@contextmanager
def tkc_as_triton(modules: list[str]) -> Iterator[None]:
    """tkc in Triton's place, for modules that are imported while it is there."""
    before = {
        name: module
        for name, module in sys.modules.items()
        if name in modules or name.partition(".")[0] == "triton"
    }
    for name in before:
        del sys.modules[name]
    install()
    try:
        yield
    finally:
        uninstall()
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def wide(*tensors: Any) -> Any:
    """In float64."""
    return tuple(t.double() for t in tensors) if len(tensors) > 1 else tensors[0].double()


def relative(got: Any, wanted: Any) -> float:
    assert got.shape == wanted.shape
    got, wanted = wide(got, wanted)
    return ((got - wanted).norm() / wanted.norm().clamp(min=1e-30)).item()


def check(case: Case, references: References, tolerances: dict[str, float]) -> None:
    """A case, small, gives what its reference does, within what its word has or 0.01."""
    word = next(word for word in references if case.name.startswith(word))
    run = case.make(Operands(Path(), "cpu", scale=1000))
    got = run()
    v = SimpleNamespace(**inspect.getclosurevars(run).nonlocals)
    wanted = references[word](v)
    assert got is not None
    got, wanted = (t if isinstance(t, tuple) else (t,) for t in (got, wanted))
    for a, b in zip(got, wanted, strict=True):
        assert relative(a, b) <= tolerances.get(word, 1e-2)
