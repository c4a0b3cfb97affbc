"""Where a PTX text has the user's own: a comment before each text of tkc.inline_ptx says how many
lines it has, and where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tkc.errors import Location

_MARK = re.compile(r"\s*// tkc\.inline_ptx, (\d+) lines(?: of (.*):(\d+):(\d+))?$")


def mark(lines: int, place: Location | None) -> str:
    """The comment before so many lines."""
    return f"tkc.inline_ptx, {lines} lines" + (f" of {place}" if place is not None else "")


def inline_texts(lines: Sequence[str]) -> Iterator[tuple[range, Location | None]]:
    """The lines of each of the user's texts, and where it begins in the user's source."""
    i = 0
    while i < len(lines):
        found = _MARK.match(lines[i])
        i += 1
        if found:
            place = Location(found[2], int(found[3]), int(found[4]) - 1) if found[2] else None
            text = range(i, min(i + int(found[1]), len(lines)))
            yield text, place
            i = text.stop
