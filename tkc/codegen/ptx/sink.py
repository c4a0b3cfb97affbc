"""PTX text with fewer registers live in its loops: what is computed before a loop, and used only
behind it, is computed behind it.

    and.b32 %lane4, %lane, 3;                          $for_1: …
    $for_1: …               (a register more)          @%p bra.uni $for_1;
    @%p bra.uni $for_1;                       ->       and.b32 %lane4, %lane, 3;
    setp.eq.s32 %first, %lane4, 0;                     setp.eq.s32 %first, %lane4, 0;

The writer hoists all that does not change to the start of a role (`hoist`), which is cheapest as
long as registers last; ptxas moves nothing back and spills instead. Sunk are pure instructions
whose operands are assigned once in the whole text and whose result only one basic block reads,
outside the innermost loops: whatever dominated the uses still does. A loop around the loop then
computes them once a round, so what such a loop reads before the inner one moves there as well: it
need not live until the next round.

Where that is not enough, `rematerialise` computes what is a few instructions from the thread's
number again in each block that reads it, so that it need not live from one to the other:

                                            mov.u32 %t, %tid.x;
                                            and.b32 %l, %t, 31;
    and.b32 %four, %lane, 3;                and.b32 %four, %l, 3;
    shl.b32 %column, %four, 1;       ->     shl.b32 %column, %four, 1;
    …                                       …
    setp.eq.s32 %first, %four, 0;           mov.u32 %u, %tid.x;
                                            and.b32 %k, %u, 31;
                                            and.b32 %again, %k, 3;
                                            setp.eq.s32 %first, %again, 0;
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tkc.codegen.ptx.inline_text import inline_texts

PURE = frozenset(
    ["abs", "add", "and", "bfe", "bfi", "clz", "cvt", "fma", "lop3", "mad", "max", "min", "mov"]
    + ["mul", "neg", "not", "or", "popc", "prmt", "selp", "setp", "shl", "shr", "sub", "xor"]
)
_INSTRUCTION = re.compile(r"\t(@!?%\w+ )?([a-z]\w*)([\w.:]*)( .*)?;")
_REGISTER, _ADDRESS = re.compile(r"%[a-z]+\d+"), re.compile(r"\[[^]]*]")
_BRANCH = re.compile(r"\bbra(?:\.uni)? (\$\w+);")
_LABEL = re.compile(r"\s*[$\w]+:(?!:)")  # an instruction may follow it
_DECLARED = re.compile(r"\t\.reg \.b32 %r<(\d+)>;")
_WAIT = "$wait"  # loops that only wait for a barrier: nothing is computed there
MAX_REMATERIALISED_INSTRUCTIONS = 3  # for one register

Loop = tuple[int, int]  # its first and its last line


@dataclass(frozen=True)
class Instruction:
    """An instruction of the text. modifiers: what follows the name, such as ".s32"; operands: as
    text.
    """

    predicate: str
    name: str
    modifiers: str
    operands: str

    @staticmethod
    @lru_cache(maxsize=1 << 14)
    def parse(line: str) -> Instruction | None:
        """None of labels, directives, comments and what is in braces. Texts that keep less alive
        are made of the lines of one.
        """
        m = _INSTRUCTION.match(line)
        return m and Instruction(m[1] or "", m[2], m[3], (m[4] or "").lstrip())

    @cached_property
    def is_pure(self) -> bool:
        """Whether it only writes the first of its registers, always the same from the same."""
        return (
            self.name in PURE
            and ".cc" not in self.modifiers
            and self.operands.startswith("%")
            and not any(c in self.operands for c in ("|", ";", "%clock", "%globaltimer"))
        )

    @cached_property
    def registers(self) -> list[str]:
        """Those of the operands, in order."""
        return _REGISTER.findall(self.operands)

    @property
    def reads(self) -> list[str]:
        """Registers that may be read."""
        return _REGISTER.findall(self.predicate) + self.registers[self.is_pure :]

    @property
    def writes(self) -> list[str]:
        """Registers that may be written: of a load, a dot, … any but those of addresses."""
        if self.is_pure:
            return self.registers[:1]
        return _REGISTER.findall(_ADDRESS.sub("", self.operands))


def _instructions(lines: Sequence[str]) -> list[Instruction | None]:
    """Of each line the instruction, None also where it is the user's own."""
    found = [Instruction.parse(line) for line in lines]
    for own, _ in inline_texts(lines):
        for i in own:
            found[i] = None
    return found


class Text:
    """The lines of a PTX text, and where each register is written and read. Those of the user's
    inline PTX are no instructions: nothing moves into them or out of them, and they may write all
    registers that they name.
    """

    def __init__(self, text: str):
        self.text, self.lines = text, text.splitlines()
        self.instructions = _instructions(self.lines)
        self.written: dict[str, list[int]] = defaultdict(list)
        self.read: dict[str, list[int]] = defaultdict(list)
        for i, op in enumerate(self.instructions):
            if op is None:  # it may do anything with the registers that it names
                named = _REGISTER.findall(self.lines[i])
            for r in named if op is None else op.writes:
                self.written[r].append(i)
            for r in named if op is None else op.reads:
                self.read[r].append(i)
        self.loops = list(self._find_loops())
        self.innermost = [
            loop for loop in self.loops if not any(_encloses(loop, x) for x in self.loops)
        ]
        self._edges = [
            i for i, line in enumerate(self.lines) if _LABEL.match(line) or " bra" in line
        ]

    def _find_loops(self) -> Iterable[Loop]:
        """The loops that do more than wait."""
        labels = {line.rstrip(":"): i for i, line in enumerate(self.lines) if line.startswith("$")}
        for i, line in enumerate(self.lines):
            m = _BRANCH.search(line)
            if m and not m[1].startswith(_WAIT) and labels.get(m[1], i) < i:
                yield labels[m[1]], i

    def block(self, i: int) -> int:
        """The number of the basic block of a line."""
        return bisect_right(self._edges, i)

    def defined_once(self, r: str) -> Instruction | None:
        """The pure instruction without a predicate that alone writes a register."""
        if len(self.written[r]) != 1:
            return None
        op = self.instructions[self.written[r][0]]
        return op if op is not None and not op.predicate and op.is_pure else None

    def with_lines(self, lines: Iterable[str]) -> str:
        """The text with other lines."""
        return "\n".join(lines) + "\n" * self.text.endswith("\n")


def _encloses(outer: Loop, inner: Loop) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _inside(loop: Loop, at: int) -> bool:
    return loop[0] <= at <= loop[1]


def sink_to_uses(text: str) -> str:
    """The same program; the text itself where nothing can move."""
    t = Text(text)
    moved: dict[int, list[str]] = defaultdict(list)
    now_at: dict[int, int] = {}  # the new place of a line that moved
    for i in reversed(range(len(t.lines))):
        to = _first_use(t, i, now_at)
        if to is not None:
            moved[to].insert(0, t.lines[i])  # before those that read it, which were behind it
            now_at[i] = to
    if not now_at:
        return text
    return t.with_lines(
        line
        for i, here in enumerate(t.lines)
        for line in [*moved[i], *([] if i in now_at else [here])]
    )


def _first_use(t: Text, i: int, now_at: Mapping[int, int]) -> int | None:
    """The line before which a line may be moved; None where it stays."""
    op = t.instructions[i]
    if op is None or op.predicate or not op.is_pure:
        return None
    result, *operands = op.registers
    if t.written[result] != [i] or any(len(t.written[r]) > 1 for r in operands):
        return None
    uses = [now_at.get(u, u) for u in t.read[result]]
    return _target(t, i, uses) if uses else None


def _target(t: Text, i: int, uses: Sequence[int]) -> int | None:
    """The first of the lines that read a result, if line i may be moved before it."""
    first = min(uses)
    if t.block(first) != t.block(max(uses)):
        return None
    entered = [loop for loop in t.loops if _inside(loop, first) and not _inside(loop, i)]
    if any(loop in t.innermost for loop in entered):
        return None
    behind = any(i < start <= first for start, _ in t.innermost)
    return first if behind or entered else None


def rematerialise(text: str) -> str:
    """The same program; the text itself where nothing is computed again."""
    t, declared = Text(text), _DECLARED.search(text)
    if declared is None:
        return text
    count = int(declared[1])
    before: dict[int, list[str]] = defaultdict(list)
    renamed: dict[int, dict[str, str]] = defaultdict(dict)
    for r in list(t.read):
        reads = sorted(set(t.read[r]))
        if not _lives_across_blocks(t, r, reads):
            continue
        chain = _chain(t, r)
        for i, at in enumerate(reads if chain else ()):
            if i == 0 or t.block(at) != t.block(reads[i - 1]):
                names = {old: f"%r{count + n}" for n, old in enumerate(chain)}
                count += len(chain)
                before[at] += [_renamed(t.lines[t.written[old][0]], names) for old in chain]
            renamed[at][r] = names[r]
    if not before:
        return text
    found = t.with_lines(
        line
        for i, here in enumerate(t.lines)
        for line in [*before.get(i, ()), _renamed(here, renamed.get(i, {}))]
    )
    return _DECLARED.sub(f"\t.reg .b32 %r<{count}>;", found, count=1)


def _lives_across_blocks(t: Text, r: str, reads: list[int]) -> bool:
    """Whether a 32-bit register is read in several blocks, and in no innermost loop."""
    if not r.startswith("%r") or len({t.block(i) for i in reads}) < 2:
        return False
    return not any(_inside(loop, i) for i in reads for loop in t.innermost)


def _renamed(line: str, names: Mapping[str, str]) -> str:
    return _REGISTER.sub(lambda m: names.get(m[0], m[0]), line) if names else line


def _chain(t: Text, r: str) -> list[str]:
    """The registers from which one is computed from the thread's number on, in order; empty where
    they are many, or where something else is among them.
    """
    found: list[str] = []

    def follow(r: str) -> bool:
        if r in found:
            return True
        op = t.defined_once(r)
        if op is None or not r.startswith("%r"):
            return False
        operands = op.registers[1:]
        if not operands and not op.operands.endswith("%tid.x"):
            return False
        if not all(map(follow, operands)):
            return False
        found.append(r)
        return len(found) <= MAX_REMATERIALISED_INSTRUCTIONS

    return found if follow(r) and len(found) > 1 else []
