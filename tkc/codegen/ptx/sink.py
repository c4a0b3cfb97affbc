"""PTX text with fewer registers alive in its loops: what is computed before a loop, and used only behind it, is computed behind it.

    and.b32 %lane4, %lane, 3;                          $for_1: …                          (a register more in the loop)
    $for_1: …                                          @%p bra.uni $for_1;
    @%p bra.uni $for_1;                       ->       and.b32 %lane4, %lane, 3;
    setp.eq.s32 %first, %lane4, 0;                     setp.eq.s32 %first, %lane4, 0;

The writer hoists all that does not change to the start of a role (`hoist`), which is cheapest as long as registers last; ptxas takes nothing back and spills
instead. Moved are pure instructions whose operands are assigned once in the whole text and whose result only one basic block reads, outside the innermost loops:
whatever dominated the uses still does. A loop around the loop then computes them once a round.
"""
from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict

PURE = frozenset("abs add and bfe bfi clz cvt fma lop3 mad max min mov mul neg not or popc prmt selp setp shl shr sub xor".split())
_LINE = re.compile(r"\t(@!?%\w+ )?([a-z]\w*)([\w.:]*) (.*);")
_REGISTER, _ADDRESS = re.compile(r"%[a-z]+\d+"), re.compile(r"\[[^]]*]")
_WAIT = "$wait"                                        # loops that only wait for a barrier: nothing is computed there


def sunk(text: str) -> str:
    """The same program; the text itself where nothing can move."""
    lines = text.splitlines()
    written, read = defaultdict(list), defaultdict(list)
    for i, line in enumerate(lines):
        if (m := _LINE.match(line)) is None: continue
        registers, single = _REGISTER.findall(m[4]), []
        if _pure(m): single = registers[:1]
        for r in single: written[r].append(i)
        for r in [*_REGISTER.findall(m[1] or ""), *registers[len(single):]]: read[r].append(i)
        if not single:                                 # a load, a dot …: any of its registers may be written but those of addresses
            for r in _REGISTER.findall(_ADDRESS.sub("", m[4])): written[r].append(i)
    edges = [i for i, line in enumerate(lines) if line.endswith(":") or " bra" in line]
    block = lambda i: bisect_right(edges, i)
    innermost = _innermost(lines)
    moved: dict[int, list[str]] = defaultdict(list)
    gone: dict[int, int] = {}                          # where a line that moved now stands
    for i in reversed(range(len(lines))):
        m = _LINE.match(lines[i])
        if m is None or m[1] or not _pure(m): continue
        result, *operands = _REGISTER.findall(m[4])
        if not read[result] or written[result] != [i] or any(len(written[r]) > 1 for r in operands): continue
        uses = [gone.get(u, u) for u in read[result]]
        first, last = min(uses), max(uses)
        inside = lambda loop, at: loop[0] <= at <= loop[1]
        if block(first) != block(last) or not any(i < start <= first for start, _ in innermost) or any(inside(loop, first) and not inside(loop, i) for loop in innermost): continue
        moved[first].insert(0, lines[i])               # before those that read it: they stood behind it
        gone[i] = first
    if not gone: return text
    return "\n".join(line for i, here in enumerate(lines) for line in [*moved[i], *([] if i in gone else [here])]) + "\n" * text.endswith("\n")


def _pure(m: re.Match) -> bool:
    """Whether an instruction only writes the first of its registers, always the same from the same."""
    return m[2] in PURE and ".cc" not in m[3] and m[4].startswith("%") and not any(c in m[4] for c in ("|", ";", "%clock", "%globaltimer"))


def _innermost(lines: list[str]) -> list[tuple[int, int]]:
    """First and last line of each loop that has no other one in it."""
    labels = {line.rstrip(":"): i for i, line in enumerate(lines) if line.startswith("$")}
    back = ((labels.get(m[1], i), i) for i, line in enumerate(lines) if (m := re.search(r"\bbra(?:\.uni)? (\$\w+);", line)) and not m[1].startswith(_WAIT))
    loops = [(start, end) for start, end in back if start < end]
    return [loop for loop in loops if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)]
