"""Answers about a program that are remembered while nothing changes it.

    with unchanged():            # plan makes a hundred plans of one program
        unmapped(load)           # computed
        unmapped(load)           # remembered
    unmapped(load)               # computed: the program may be another one now

`plan` asks the same questions of the same loads for every plan that it weighs. Elsewhere passes
change the program between two questions, so nothing is remembered; but passes that plan a program
before `plan` does may leave it as it is. What is answered with a `Memory` is remembered in the next
block with that one, if the module is then the same, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Memory:
    """Answers, and the program that they are of (`_described`); None where it was marked since."""

    program: list[tuple[Any, ...]] | None = None
    answers: dict[Any, Any] = field(default_factory=dict)

    def marked(self) -> None:
        """What was remembered may be another answer now."""
        self.program = None
        self.answers.clear()


_memory: ContextVar[Memory | None] = ContextVar("memory", default=None)


def _described(module: ModuleOp) -> list[tuple[Any, ...]]:
    """All that a program consists of: equal descriptions are of the same operations, unchanged."""
    return [
        (
            op,
            op.parent,
            op._operands,
            [r._type for r in op.results],
            op.properties.copy(),
            op.attributes.copy(),
            [[a._type for a in block.args] for region in op.regions for block in region.blocks],
        )
        for op in module.walk()
    ]


@contextmanager
def unchanged(module: ModuleOp | None = None, memory: Memory | None = None) -> Iterator[None]:
    """Nothing changes the program inside, but for marks (`mark`). memory: of the last block about
    this module, if its answers are to be remembered where they still hold.
    """
    if _memory.get() is not None:
        yield
        return
    if module is None or memory is None:
        memory = Memory()
    elif memory.program != (now := _described(module)):
        memory.program, memory.answers = now, {}
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)
        if module is not None and memory.program is None:
            memory.program = _described(module)


def mark(op: Operation, name: str, attribute: Attribute) -> None:
    """Marks an operation: where that is new, what was remembered may be another answer now."""
    if op.attributes.get(name) == attribute:
        return
    op.attributes[name] = attribute
    if (memory := _memory.get()) is not None:
        memory.marked()


def unmark(op: Operation, name: str) -> None:
    """Takes a mark away."""
    if op.attributes.pop(name, None) is not None and (memory := _memory.get()) is not None:
        memory.marked()


def remembered(question: Callable[P, R]) -> Callable[P, R]:
    """A function of operations and values, whose answers are kept inside `unchanged`."""

    @wraps(question)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        memory = _memory.get()
        if memory is None or kwargs:
            return question(*args, **kwargs)
        answers, key = memory.answers, (question, args)
        if key not in answers:
            answers[key] = question(*args, **kwargs)
        found: R = answers[key]
        return found

    return answer
