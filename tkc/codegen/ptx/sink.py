"""PTX text with fewer registers alive in its loops: what is computed before a loop, and used only
behind it, is computed behind it.

    and.b32 %lane4, %lane, 3;                          $for_1: …                          (a register more in the loop)
    $for_1: …                                          @%p bra.uni $for_1;
    @%p bra.uni $for_1;                       ->       and.b32 %lane4, %lane, 3;
    setp.eq.s32 %first, %lane4, 0;                     setp.eq.s32 %first, %lane4, 0;

The writer hoists all that does not change to the start of a role (`hoist`), which is cheapest as
long as registers last; ptxas takes nothing back and spills instead. Moved are pure instructions
whose operands are assigned once in the whole text and whose result only one basic block reads,
outside the innermost loops: whatever dominated the uses still does. A loop around the loop then
computes them once a round, so what such a loop reads before the inner one moves there as well: it
need not live until the next round.

Where that is not enough, `afresh` has what is a few instructions from the thread's number computed
anew in each block that reads it, so that it need not live from one to the other:

    and.b32 %four, %lane, 3;                           mov.u32 %t, %tid.x;  and.b32 %l, %t, 31;  and.b32 %four, %l, 3;
    shl.b32 %column, %four, 1;                ->       shl.b32 %column, %four, 1;
    …                                                  …
    setp.eq.s32 %first, %four, 0;                      mov.u32 %u, %tid.x;  and.b32 %k, %u, 31;  and.b32 %again, %k, 3;
                                                       setp.eq.s32 %first, %again, 0;
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable

PURE = frozenset(
    [
        "abs",
        "add",
        "and",
        "bfe",
        "bfi",
        "clz",
        "cvt",
        "fma",
        "lop3",
        "mad",
        "max",
        "min",
        "mov",
        "mul",
        "neg",
        "not",
        "or",
        "popc",
        "prmt",
        "selp",
        "setp",
        "shl",
        "shr",
        "sub",
        "xor",
    ]
)
_LINE = re.compile(r"\t(@!?%\w+ )?([a-z]\w*)([\w.:]*) (.*);")
_REGISTER, _ADDRESS = re.compile(r"%[a-z]+\d+"), re.compile(r"\[[^]]*]")
_WAIT = "$wait"  # loops that only wait for a barrier: nothing is computed there
_DECLARED = re.compile(r"\t\.reg \.b32 %r<(\d+)>;")
SHORT = 3  # instructions that are computed anew


def sunk(text: str) -> str:
    """The same program; the text itself where nothing can move."""
    lines = text.splitlines()
    written, read = _users(lines)
    block, loops = _blocks(lines), _loops(lines)
    innermost = _innermost(loops)
    around = [loop for loop in loops if loop not in innermost]
    moved: dict[int, list[str]] = defaultdict(list)
    gone: dict[int, int] = {}  # where a line that moved now stands
    for i in reversed(range(len(lines))):
        m = _LINE.match(lines[i])
        if m is None or m[1] or not _pure(m):
            continue
        result, *operands = _REGISTER.findall(m[4])
        if not read[result] or written[result] != [i] or any(len(written[r]) > 1 for r in operands):
            continue
        uses = [gone.get(u, u) for u in read[result]]
        first, last = min(uses), max(uses)

        def inside(loop, at):
            return loop[0] <= at <= loop[1]

        behind = any(i < start <= first for start, _ in innermost) or any(
            inside(loop, first) and not inside(loop, i) for loop in around
        )
        if (
            block(first) != block(last)
            or not behind
            or any(inside(loop, first) and not inside(loop, i) for loop in innermost)
        ):
            continue
        moved[first].insert(0, lines[i])  # before those that read it: they stood behind it
        gone[i] = first
    if not gone:
        return text
    return "\n".join(
        line for i, here in enumerate(lines) for line in [*moved[i], *([] if i in gone else [here])]
    ) + "\n" * text.endswith("\n")


def _pure(m: re.Match) -> bool:
    """Whether an instruction only writes the first of its registers, always the same from the same."""
    return (
        m[2] in PURE
        and ".cc" not in m[3]
        and m[4].startswith("%")
        and not any(c in m[4] for c in ("|", ";", "%clock", "%globaltimer"))
    )


def afresh(text: str) -> str:
    """The same program; the text itself where nothing is computed anew."""
    lines = text.splitlines()
    written, read = _users(lines)
    block, innermost, declared = _blocks(lines), _innermost(_loops(lines)), _DECLARED.search(text)
    if declared is None:
        return text
    count = int(declared[1])
    before: dict[int, list[str]] = defaultdict(list)
    renamed: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for r in list(read):
        reads = sorted(set(read[r]))
        if (
            not r.startswith("%r")
            or len({block(i) for i in reads}) < 2
            or any(start <= i <= end for i in reads for start, end in innermost)
        ):
            continue
        if not (made := _chain(r, lines, written)):
            continue
        for i, at in enumerate(reads):
            if i == 0 or block(at) != block(reads[i - 1]):
                names = {old: f"%r{count + n}" for n, (old, _) in enumerate(made)}
                count += len(made)
                before[at] += [
                    _REGISTER.sub(lambda m, names=names: names[m[0]], line) for _, line in made
                ]
            renamed[at].append((r, names[r]))
    if not before:
        return text
    out = []
    for i, line in enumerate(lines):
        change = dict(renamed[i]) if i in renamed else {}
        out += [
            *before.get(i, ()),
            _REGISTER.sub(lambda m, change=change: change.get(m[0], m[0]), line),
        ]
    return _DECLARED.sub(
        f"\t.reg .b32 %r<{count}>;", "\n".join(out) + "\n" * text.endswith("\n"), count=1
    )


def _chain(r: str, lines: list[str], written) -> list[tuple[str, str]]:
    """What a register is made of from the thread's number on, in order, each with its line; empty
    where that is long, or where something else is in it.
    """
    found: dict[str, str] = {}

    def follow(r: str) -> bool:
        if r in found:
            return True
        if (
            len(written[r]) != 1
            or (m := _LINE.match(lines[written[r][0]])) is None
            or m[1]
            or not _pure(m)
            or not r.startswith("%r")
        ):
            return False
        if not (operands := _REGISTER.findall(m[4])[1:]) and not m[4].endswith("%tid.x"):
            return False
        if not all(map(follow, operands)):
            return False
        found[r] = lines[written[r][0]]
        return len(found) <= SHORT

    return list(found.items()) if follow(r) and len(found) > 1 else []


def _users(lines: list[str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Where each register is written and where it is read, by the number of the line."""
    written, read = defaultdict(list), defaultdict(list)
    for i, line in enumerate(lines):
        if (m := _LINE.match(line)) is None:
            continue
        registers, single = _REGISTER.findall(m[4]), []
        if _pure(m):
            single = registers[:1]
        for r in single:
            written[r].append(i)
        for r in [*_REGISTER.findall(m[1] or ""), *registers[len(single) :]]:
            read[r].append(i)
        if (
            not single
        ):  # a load, a dot …: any of its registers may be written but those of addresses
            for r in _REGISTER.findall(_ADDRESS.sub("", m[4])):
                written[r].append(i)
    return written, read


def _blocks(lines: list[str]) -> Callable[[int], int]:
    """The number of the basic block of a line."""
    edges = [i for i, line in enumerate(lines) if line.endswith(":") or " bra" in line]
    return lambda i: bisect_right(edges, i)


def _loops(lines: list[str]) -> list[tuple[int, int]]:
    """First and last line of each loop that does more than wait."""
    labels = {line.rstrip(":"): i for i, line in enumerate(lines) if line.startswith("$")}
    back = (
        (labels.get(m[1], i), i)
        for i, line in enumerate(lines)
        if (m := re.search(r"\bbra(?:\.uni)? (\$\w+);", line)) and not m[1].startswith(_WAIT)
    )
    return [(start, end) for start, end in back if start < end]


def _innermost(loops: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that have no other one in them."""
    return [
        loop
        for loop in loops
        if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)
    ]
