"""Answers about a program that are remembered while nothing changes it.

    with unchanged():            # plan makes a hundred plans of one program
        unmapped(load)           # computed
        unmapped(load)           # remembered
    unmapped(load)               # computed: the program may be another one now

`plan` asks the same questions of the same loads for every plan that it weighs. Elsewhere passes
change the program between two questions, so nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from xdsl.ir import Attribute, Operation

P = ParamSpec("P")
R = TypeVar("R")

_answers: ContextVar[dict[Any, Any] | None] = ContextVar("answers", default=None)


@contextmanager
def unchanged() -> Iterator[None]:
    """Nothing changes the program inside, but for marks (`mark`)."""
    if _answers.get() is not None:
        yield
        return
    token = _answers.set({})
    try:
        yield
    finally:
        _answers.reset(token)


def mark(op: Operation, name: str, attribute: Attribute) -> None:
    """Marks an operation: where that is new, what was remembered may be another answer now."""
    if op.attributes.get(name) == attribute:
        return
    op.attributes[name] = attribute
    if (answers := _answers.get()) is not None:
        answers.clear()


def unmark(op: Operation, name: str) -> None:
    """Takes a mark away."""
    if op.attributes.pop(name, None) is not None and (answers := _answers.get()) is not None:
        answers.clear()


def remembered(question: Callable[P, R]) -> Callable[P, R]:
    """A function of operations and values, whose answers are kept inside `unchanged`."""

    @wraps(question)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        answers = _answers.get()
        if answers is None or kwargs:
            return question(*args, **kwargs)
        key = question, args
        if key not in answers:
            answers[key] = question(*args, **kwargs)
        found: R = answers[key]
        return found

    return answer
