"""What a pass changed, as opcodes of difflib over lines: names of values are left out of the
comparison, since one operation more renumbers all that follow.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from tkc.tools.explain.listing import Listing

# (tag, begin and end in the old lines, begin and end in the new ones)
Change = tuple[str, int, int, int, int]

MAX_EXACT_LINES = 6000  # of both together; longer ones are compared by their rarer lines
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")


def changes(old: Listing, new: Listing) -> list[Change]:
    """What makes the new listing of the old one; nothing where only names of values differ."""
    a, b = _keys(old), _keys(new)
    same = min(len(a), len(b))
    head = next((i for i in range(same) if a[i] != b[i]), same)
    tail = next((i for i in range(same - head) if a[-1 - i] != b[-1 - i]), same - head)
    if head + tail == len(a) == len(b):
        return []
    matcher = SequenceMatcher(
        None,
        a[head : len(a) - tail],
        b[head : len(b) - tail],
        autojunk=len(a) + len(b) > MAX_EXACT_LINES,
    )
    inner = [
        (tag, i + head, j + head, k + head, n + head) for tag, i, j, k, n in matcher.get_opcodes()
    ]
    ends: list[Change] = [("equal", 0, head, 0, head)] if head else []
    rest: list[Change] = [("equal", len(a) - tail, len(a), len(b) - tail, len(b))] if tail else []
    return [*ends, *inner, *rest]


def counts(found: list[Change]) -> tuple[int, int]:
    """Lines added and lines removed."""
    apart = [c for c in found if c[0] != "equal"]
    return sum(n - k for *_, k, n in apart), sum(j - i for _, i, j, _, _ in apart)


def _keys(listing: Listing) -> list[tuple]:
    return [
        (_VALUE.sub("%", line), place)
        for line, place in zip(listing.lines, listing.places, strict=True)
    ]
