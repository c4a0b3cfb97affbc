"""Listings of IR, PTX and machine code as lines, each with the line of the user's source it is of.

%2 = tile.mul %0, %1 : i32 loc("/home/me/kernel.py":47:11)      IR says it behind each operation
.loc 1 47 11                                                     PTX before what follows
//## File "/home/me/kernel.py", line 47                          nvdisasm likewise
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Place = tuple[str, int]  # a file and a line of it, counted from 1

_LOCATION = re.compile(r' ?loc\((?:unknown|"((?:[^"\\]|\\.)*)":(\d+):\d+)\)')
_FILE = re.compile(r'\s*\.file (\d+) "((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\s*\.loc (\d+) (\d+) \d+")
_SASS_LINE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')


@dataclass(frozen=True)
class Listing:
    """Lines of a text, and of each the place in the source that it comes from, where one is
    known.
    """

    lines: tuple[str, ...]
    places: tuple[Place | None, ...]


def of_ir(text: str) -> Listing:
    """The IR as `tkc.ir.text.show` prints it with locations, which are taken off. The line that
    opens an operation's regions gets the location behind its closing brace.
    """
    lines: list[str] = []
    places: list[Place | None] = []
    opened: list[int] = []
    for line in text.rstrip("\n").splitlines():
        found = None
        for match in _LOCATION.finditer(line):
            found = (_unquoted(match[1]), int(match[2])) if match[1] is not None else None
        bare = _LOCATION.sub("", line)
        word = bare.strip()
        if word.startswith("}") and opened:
            opener = opened.pop()
            places[opener] = places[opener] or found
        if word.endswith("{"):
            opened.append(len(lines))
        lines.append(bare)
        places.append(found)
    return Listing(tuple(lines), tuple(places))


def of_ptx(text: str) -> Listing:
    """PTX without its .loc directives, which say where what follows them is from."""
    files: dict[str, str] = {}
    lines: list[str] = []
    places: list[Place | None] = []
    now: Place | None = None
    for line in text.rstrip("\n").splitlines():
        if file := _FILE.match(line):
            files[file[1]] = _unquoted(file[2])
        if loc := _LOC.match(line):
            now = (files.get(loc[1], ""), int(loc[2]))
            continue
        if line.startswith("\t// ----"):
            now = None  # another role begins
        lines.append(line.replace("\t", "    "))
        places.append(now)
    return Listing(tuple(lines), tuple(places))


def of_sass(text: str) -> Listing:
    """What nvdisasm prints with line information, from the first label on, without directives and
    without what fills the last line of the instruction cache.
    """
    lines: list[str] = []
    places: list[Place | None] = []
    now: Place | None = None
    for line in text.splitlines():
        if place := _SASS_LINE.match(line):
            now = (place[1], int(place[2]))
            continue
        if is_instruction(line) or re.match(r"[.\w$]+:", line):
            lines.append(_compact(line))
            places.append(now)
    while lines and re.search(r"\bNOP ?;$|^\.L\w+:$", lines[-1]):
        lines.pop()
        places.pop()
    return Listing(tuple(lines), tuple(places))


def _compact(line: str) -> str:
    """An instruction of nvdisasm without the spaces that line it up far to the right."""
    found = re.match(r"\s+(/\*[0-9a-f]+\*/)\s+(@!?U?P\w+)?\s*(.*?)\s*$", line)
    return line.rstrip() if found is None else f"  {found[1]} {found[2] or '':>5} {found[3]}"


def of_plain(text: str) -> Listing:
    """A text that says nothing about its source."""
    lines = tuple(text.rstrip("\n").expandtabs(4).splitlines())
    return Listing(lines, (None,) * len(lines))


def is_instruction(line: str) -> bool:
    """Whether a line of nvdisasm is an instruction."""
    return re.match(r"\s+/\*[0-9a-f]{4,}\*/", line) is not None


def _unquoted(text: str) -> str:
    return text.replace('\\"', '"').replace("\\\\", "\\")


# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Part:
    """A stretch of a source file that is shown: `first` is the number of its first line."""

    file: str
    first: int
    lines: tuple[str, ...]


@dataclass
class Sources:
    """The parts of the user's files that listings come from: the functions around the lines that
    were named, and the kernel itself.
    """

    kernel: Place
    named: set[Place] = field(default_factory=set)

    def add(self, listing: Listing) -> None:
        """Takes in the places of a listing. After `parts` was asked for, none are added."""
        self.named.update(place for place in listing.places if place is not None)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The kernel's part first, then those of other functions, by file and line."""
        wanted: dict[str, set[int]] = {}
        for file, line in {self.kernel, *self.named}:
            wanted.setdefault(file, set()).add(line)
        found = [part for file in sorted(wanted) for part in _parts_of(file, wanted[file])]
        return tuple(sorted(found, key=lambda part: not _holds(part, self.kernel)))

    @cached_property
    def _numbers(self) -> dict[Place, int]:
        places = (
            (part.file, part.first + i) for part in self.parts for i in range(len(part.lines))
        )
        return {place: number for number, place in enumerate(places)}

    def number(self, place: Place | None) -> int:
        """Which of the lines shown, counted from 0 over all parts, a place is; -1 for none."""
        return -1 if place is None else self._numbers.get(place, -1)


def _holds(part: Part, place: Place) -> bool:
    return part.file == place[0] and part.first <= place[1] < part.first + len(part.lines)


def _parts_of(file: str, lines: Iterable[int]) -> list[Part]:
    """The outermost functions of a file that hold these lines; of lines in none, the statements."""
    try:
        text = Path(file).read_text()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return []
    whole, spans = text.splitlines(), set()
    for line in lines:
        around = next((span for node in tree.body if (span := _span(node, line))), None)
        if around:
            spans.add(around)
    return [Part(file, first, tuple(whole[first - 1 : last])) for first, last in sorted(spans)]


def _span(node: ast.stmt, line: int) -> tuple[int, int] | None:
    """First and last line of the function around a line, decorators included; of a class, those of
    the method.
    """
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    last = node.end_lineno or node.lineno
    if not first <= line <= last:
        return None
    if isinstance(node, ast.ClassDef):
        inner = (span for inside in node.body if (span := _span(inside, line)))
        return next(inner, (first, last))
    return first, last


def place_of(fn: Callable) -> Place:
    """Where a function of the user begins."""
    return fn.__code__.co_filename, fn.__code__.co_firstlineno
