"""The words NAME=VALUE of a command line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from tkc.errors import Error


def pairs(arguments: Sequence[str], options: Sequence[str], function: Any) -> dict:
    """Arguments and options by name, each once. Raises tkc.Error."""
    given: dict = {}
    for name, value in (*(pair(a, function) for a in arguments), *(pair(o, None) for o in options)):
        if name in given:
            raise Error(f"{name} is given twice")
        given[name] = value
    return given


def pair(text: str, function: Any) -> tuple:
    """NAME=VALUE; of a run-time argument the value is left as text where it stands for an array or
    number.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise Error(f"{text!r} is no argument; write name=value, for example x=f32[4096]")
    if function is not None and name not in function.names:
        raise Error(
            f"{function.__name__} has no parameter {name!r}; it has {', '.join(function.names)}"
        )
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, {"true": True, "false": False, "none": None}.get(value.lower(), value)
