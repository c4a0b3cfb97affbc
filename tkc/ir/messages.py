"""The text of a `tile.print`: `{}` stands for a value, `{{` and `}}` for braces. Values without a
place come at the end.
"""

from __future__ import annotations

from string import Formatter


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def literals(text: str, count: int) -> list[str]:
    """What stands before, between and behind `count` values; a text that is no format stands before
    them as it is.
    """
    try:
        found = [(literal, field) for literal, field, *_ in Formatter().parse(text)]
    except ValueError:
        found = [(text, None)]
    parts = [""]
    for literal, field in found:
        parts[-1] += literal
        if field is not None:
            parts.append("")
    if len(parts) > count + 1:
        parts = [text]
    missing = count + 1 - len(parts)
    return (
        parts
        if not missing
        else [
            *parts[:-1],
            f"{parts[-1]} " if parts[-1] or len(parts) > 1 else "",
            *[" "] * (missing - 1),
            "",
        ]
    )


def filled(text: str, values: list[str]) -> str:
    """The text with its values."""
    first, *rest = literals(text, len(values))
    return first + "".join(value + literal for value, literal in zip(values, rest, strict=False))
