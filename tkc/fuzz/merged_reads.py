"""Instructions of a PTX text that ptxas would merge although a wgmma lies between them: a check
of the emitter's promise in codegen/ptx/equal_readers.py, on the text alone.

    for first, second in merged_reads(text):  # numbers of lines, from 1
        …

Values are numbered as ptxas does within a basic block: equal instructions on equal values give
equal values. What a wgmma writes has the number of its register, whichever wgmma wrote it, which is
where ptxas errs. Beside it, each value knows the wgmma that really wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Instructions that ptxas does not merge: they read or write memory, or all threads take part.
EFFECTS = re.compile(
    r"(?:ld|st|atom|red|bar|barrier|mbarrier|wgmma|cp|fence|membar|shfl|vote|match|activemask"
    r"|elect|setmaxnreg|ret|bra|exit|trap|nanosleep|prefetch|ldmatrix|stmatrix|mma|mapa|getctarank"
    r"|tensormap|griddepcontrol|brkpt|isspacep|discard|applypriority|createpolicy|redux)\b"
)
INSTRUCTION = re.compile(r"(@!?%\w+\s+)?([a-z][\w.:]*)\s*(.*?);")
LIST = re.compile(r"\{[^}]*\}")
OPERAND = re.compile(r"[%$\w.]+|-\d+")


@dataclass
class _Block:
    """What is known in a basic block. values: a register's number; writes: how many wgmma there
    were; written: which of them wrote a register last; seen: the instructions so far, by what they
    compute.
    """

    values: dict[str, object] = field(default_factory=dict)
    writes: int = 0
    written: dict[str, int] = field(default_factory=dict)
    seen: dict[tuple, tuple[int, list[object], frozenset]] = field(default_factory=dict)

    def of(self, operand: str) -> object:
        """The number of an operand's value."""
        if not operand.startswith("%"):
            return operand
        return self.values.setdefault(operand, ("at the start", operand))

    def define(self, register: str, value: object) -> None:
        """An instruction that is no wgmma wrote a register."""
        self.values[register] = value
        self.written.pop(register, None)


def merged_reads(text: str) -> Iterator[tuple[int, int]]:
    """Pairs of instructions, by their lines' numbers, that are equal but for the wgmma that wrote
    what they read.
    """
    for lines in _basic_blocks(text):
        block = _Block()
        for number, line in lines:
            if (found := INSTRUCTION.match(line)) is None:
                continue
            predicate, name, rest = found.groups()
            if name.startswith("wgmma.mma_async"):
                block.writes += 1
                for register in OPERAND.findall(LIST.findall(rest)[0]):
                    block.values[register] = "accumulator", register
                    block.written[register] = block.writes
            elif predicate or EFFECTS.match(name):
                for register in results_of(rest):
                    block.define(register, (number, register))
            elif (first := _computed(block, number, name, rest)) is not None:
                yield first, number


def _basic_blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """The lines of each basic block, with their numbers; twice, of a loop of one block that ptxas
    may unroll.
    """
    lines: list[tuple[int, str]] = []
    label = ""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        found = INSTRUCTION.match(line)
        if line.endswith(":"):
            yield lines
            lines, label = [], line[:-1]
        elif found and (found[2].startswith("bra") or found[1] and EFFECTS.match(found[2])):
            loops = found[2].startswith("bra") and found[3] == label
            unrolled = loops and not any("nounroll" in text for _, text in lines)
            yield lines * (1 + unrolled)
            lines, label = [], ""  # ptxas makes a branch of each
        else:
            lines.append((number, line))
    yield lines


def results_of(operands: str) -> list[str]:
    """The registers of the first operand, if it is one or a list of them."""
    listed = LIST.match(operands)
    first = listed[0] if listed else operands.split(",", 1)[0]
    return [] if "[" in first else [r for r in OPERAND.findall(first) if r.startswith("%")]


def _computed(block: _Block, number: int, name: str, operands: str) -> int | None:
    """Notes an instruction that computes; gives the line of an equal one on other values."""
    results = results_of(operands)
    listed = LIST.match(operands)
    others = operands[listed.end() :] if listed else operands.partition(",")[2]
    sources = OPERAND.findall(others)
    key = name, tuple(map(block.of, sources))
    truth = frozenset((r, block.written[r]) for r in sources if r in block.written)
    if key not in block.seen:
        values: list[object] = [(number, r) for r in results]
        block.seen[key] = number, values, truth
        wrong = None
    else:
        first, values, true = block.seen[key]
        wrong = first if true != truth else None
    for register, value in zip(results, values, strict=False):
        block.define(register, value)
    return wrong
