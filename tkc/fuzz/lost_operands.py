"""Left operands that a wgmma of a PTX text reads in every iteration of a loop, and that ptxas
before 13.1 may overwrite: a check of the emitter's promise in codegen/ptx/kept_operands.py, on the
text alone.

    for line, register in lost_operands(text):  # the number of a wgmma's line, from 1
        …
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tkc.fuzz.merged_reads import INSTRUCTION, LIST, OPERAND, results_of


@dataclass
class _Line:
    """What a line reads and writes; of a wgmma its left operand alone, if that is in registers."""

    number: int
    reads: frozenset[str]
    writes: frozenset[str]
    left: tuple[str, ...] = ()


def lost_operands(text: str) -> Iterator[tuple[int, str]]:
    """Registers that a wgmma in a loop reads, that the loop does not write, and that nothing but
    wgmma reads behind it.
    """
    lines, labels, branches = _read(text)
    for at, label in branches:
        body = lines[labels.get(label, at) : at]
        written = {register for line in body for register in line.writes}
        for line in body:
            for register in line.left:
                if register not in written and not _is_read(register, lines[at:]):
                    yield line.number, register


def _read(text: str) -> tuple[list[_Line], dict[str, int], list[tuple[int, str]]]:
    """The instructions, where labels stand among them, and where branches do, with their labels."""
    lines: list[_Line] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for number, text_of_line in enumerate(map(str.strip, text.splitlines()), 1):
        if text_of_line.startswith("$") and text_of_line.endswith(":"):
            labels[text_of_line[:-1]] = len(lines)
        elif found := INSTRUCTION.match(text_of_line):
            predicate, name, operands = found.groups()
            if name.startswith("bra"):
                branches.append((len(lines), operands.strip()))
            lines.append(_line(number, predicate or "", name, operands))
    return lines, labels, branches


def _line(number: int, predicate: str, name: str, operands: str) -> _Line:
    named = frozenset(r for r in OPERAND.findall(operands) if r.startswith("%"))
    if name.startswith("wgmma.mma_async"):
        lists = LIST.findall(operands)
        left = tuple(OPERAND.findall(lists[1])) if len(lists) > 1 else ()
        return _Line(number, frozenset(), frozenset(OPERAND.findall(lists[0])), left)
    if name.startswith(("st", "red", "bra", "bar", "mbarrier", "cp", "fence", "prefetch")):
        return _Line(number, named, frozenset())
    written = frozenset(results_of(operands))
    listed = LIST.match(operands)
    sources = operands[listed.end() :] if listed else operands.partition(",")[2]
    reads = frozenset(r for r in OPERAND.findall(sources) if r.startswith("%"))
    return _Line(number, reads, frozenset() if predicate else written)


def _is_read(register: str, behind: Sequence[_Line]) -> bool:
    """Whether a register is read, other than by wgmma, before it is written."""
    for line in behind:
        if register in line.reads:
            return True
        if register in line.writes:
            return False
    return False
