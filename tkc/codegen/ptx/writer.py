"""PTX text: virtual registers, labels, sections with a prologue, and the header of a function.

A register's name tells its class: %p a predicate, %h 16 bits, %r 32 bits, %d 64 bits.  Registers
are untyped (.b32, not .f32 and .u32): PTX lets every instruction read them as it likes, so a bit
cast costs nothing.

An *operand* is a register's name, or a Python number, which becomes an immediate.  Code that is the
same in every iteration goes through `hoist`: it lands in the prologue of the current *section* (the
kernel, or one role), once for each key. `memo` keeps what was computed in the block being written,
as long as that block is open: what is remembered dominates its uses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Operand = str | int | float
Integer = str | int
T = TypeVar("T")

CLASSES = {"pred": "%p", "b16": "%h", "b32": "%r", "b64": "%d"}
# Instructions on integers of which it is kept how they made a register.
TRACED = frozenset(
    f"{name}.{kind}"
    for kind, names in {
        "b32": ("and", "prmt", "shl"),
        "s32": ("add", "shr", "sub"),
        "u32": ("add", "shr", "sub"),
    }.items()
    for name in names
)
_BY_PREFIX = {prefix: name for name, prefix in CLASSES.items()}


def class_of(register: str) -> str:
    """ "b32" of "%r17"."""
    return _BY_PREFIX[register[:2]]


def as_integer(operand: Operand) -> Integer:
    """The operand of an integer instruction. Raises TypeError for a float constant."""
    if isinstance(operand, float):
        raise TypeError(f"expected an integer operand, got {operand}")
    return operand


def immediate(operand: Operand, type: str = "b32") -> str:
    """The text of an operand where an instruction of PTX type `type` reads it. Raises TypeError for
    a float constant where an integer is read.
    """
    if isinstance(operand, str):
        return operand
    if type == "f32":
        return f"0f{struct.unpack('<I', struct.pack('<f', _fit(operand)))[0]:08X}"
    if type == "f64":
        return f"0d{struct.unpack('<Q', struct.pack('<d', operand))[0]:016X}"
    if isinstance(operand, float):
        raise TypeError(f"the constant {operand} read as {type}")
    return str(int(operand))


def braced(registers: Iterable[str]) -> str:
    """A vector operand: {%r0, %r1}."""
    return f"{{{', '.join(registers)}}}"


def _registers_in(value: object) -> Iterator[str]:
    """A register, or those of several values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _registers_in(one)


def _fit(x: float) -> float:
    try:
        struct.pack("<f", x)
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")
    return x


@dataclass
class Section:
    """Lines of a function, or of one role: a prologue that grows by `hoist`, and the body."""

    prologue: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)


class Writer:
    """The text of one entry function, written front to back."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(CLASSES, 0)
        self._labels = 0
        self._sections = [Section()]
        self._scopes: list[dict[Hashable, Any]] = [{}]
        self._remembered: set[str] = set()  # registers that are read again for what they hold
        self._section_scopes = [0]  # the index of each section's outermost scope
        self._lines = self._sections[0].body
        self._place: tuple[str, int] | None = None
        self._guard = ""
        self.files: dict[str, int] = {}
        # of registers that nothing else writes: see tkc.codegen.ptx.provenance
        self.made: dict[str, tuple[Integer, ...]] = {}

    # ---- registers and labels
    def new(self, kind: str = "b32") -> str:
        """A new register of a class."""
        n = self._counts[kind]
        self._counts[kind] = n + 1
        return f"{CLASSES[kind]}{n}"

    def many(self, kind: str, count: int) -> list[str]:
        """New registers of a class."""
        return [self.new(kind) for _ in range(count)]

    def count(self, kind: str) -> int:
        """How many registers of a class there are: newer ones have higher numbers."""
        return self._counts[kind]

    def label(self, hint: str = "L") -> str:
        """A new label; `place` puts it."""
        self._labels += 1
        return f"${hint}_{self._labels}"

    # ---- instructions
    def emit(self, text: str) -> None:
        """One instruction, without its semicolon."""
        self._lines.append(f"\t{self._guard}{text};")

    def op(
        self,
        name: str,
        kind: str,
        *operands: Operand,
        type: str | None = None,
        into: str | None = None,
    ) -> str:
        """`name into, operands`: into a new register of class `kind` unless one is given; returns
        it.  Immediates are spelled for `type`, by default the last part of the name: add.rn.f32
        reads f32.
        """
        if into is None:
            into = self.new(kind)
            if name in TRACED:
                self.made[into] = (name, *map(as_integer, operands))
        type = type or name.rpartition(".")[2]
        texts = [o if isinstance(o, str) else immediate(o, type) for o in operands]
        self.emit(f"{name} {into}, {', '.join(texts)}")
        return into

    def move(self, into: str, operand: Operand) -> None:
        """Registers are untyped: a float constant is its bits."""
        if operand == into:
            return
        kind = class_of(into)
        if kind == "pred" and not isinstance(operand, str):
            self.emit(f"setp.{'eq' if operand else 'ne'}.b32 {into}, 0, 0")
            return
        read_as = {"b32": "f32", "b64": "f64"}[kind] if isinstance(operand, float) else kind
        self.emit(f"mov.{kind} {into}, {immediate(operand, read_as)}")

    def deliver(self, into: str, operand: Operand, since: int) -> None:
        """A move; but if the operand is newer than `since` registers, the last instruction made it
        and nothing will ask for it again, that writes to `into` instead.
        """
        last = self._lines[-1] if self._lines else ""
        name, _, rest = last.partition(" ")
        if (
            isinstance(operand, str)
            and rest.startswith(operand + ",")
            and int(operand[2:]) >= since
            and operand not in self._remembered
            and not self._guard
            and last.count(operand + ",") == 1
        ):
            self._lines[-1] = f"{name} {into}{rest[len(operand) :]}"
        else:
            self.move(into, operand)

    def register(self, operand: Operand, kind: str = "b32") -> str:
        """The operand in a register."""
        if isinstance(operand, str):
            return operand
        into = self.new(kind)
        self.move(into, operand)
        return into

    def moves(self, pairs: Iterable[tuple[str, Operand]]) -> None:
        """All moves at once: no source is overwritten before it is read."""
        todo = [(target, source) for target, source in pairs if target != source]
        while todo:
            sources = {source for _, source in todo if isinstance(source, str)}
            blocked = [pair for pair in todo if pair[0] in sources]
            for target, source in todo:
                if target not in sources:
                    self.move(target, source)
            if len(blocked) == len(todo):  # a cycle: one value is copied out of it
                first = todo[0][0]
                spare = self.new(class_of(first))
                self.move(spare, first)
                blocked = [(t, spare if source == first else source) for t, source in todo]
            todo = blocked

    def place(self, label: str) -> None:
        """Puts a label here."""
        self._lines.append(f"{label}:")
        self._place = None

    def branch(self, label: str, when: str = "", negate: bool = False, uniform: str = "") -> None:
        """A jump to a label, where a predicate holds (or does not). uniform: ".uni" where all
        threads of the warp agree.
        """
        guard = f"@{'!' if negate else ''}{when} " if when else ""
        self._lines.append(f"\t{guard}bra{uniform} {label};")

    def comment(self, text: str) -> None:
        """A comment on a line of its own."""
        self._lines.append(f"\t// {text}")

    def raw(self, text: str) -> None:
        """Lines as they are."""
        self._lines.append(text)

    def location(self, file: str, line: int, column: int) -> None:
        """The user's source of what follows; what has none stands at the last place: ptxas takes no
        file without a name.
        """
        if not file or (file, line) == self._place:
            return
        self._place = file, line
        number = self.files.setdefault(file, len(self.files) + 1)
        self._lines.append(f"\t.loc {number} {max(line, 1)} {max(column, 0)}")

    @contextmanager
    def predicated(self, predicate: Operand | None, negate: bool = False) -> Iterator[None]:
        """What is emitted inside runs where the predicate holds (instructions only, no labels); a
        known truth value, or None, is no predicate.
        """
        before = self._guard
        if isinstance(predicate, str):
            self._guard = f"@{'!' if negate else ''}{predicate} "
        try:
            yield
        finally:
            self._guard = before

    # ---- sections, scopes
    @contextmanager
    def section(self) -> Iterator[None]:
        """A part of the function with a prologue of its own (a role)."""
        parent, part = self._lines, Section()
        self._sections.append(part)
        self._section_scopes.append(len(self._scopes))
        self._scopes.append({})
        self._lines = part.body
        try:
            yield
        finally:
            self._scopes.pop()
            self._section_scopes.pop()
            self._sections.pop()
            parent += part.prologue + part.body
            self._lines, self._place = parent, None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block of structured control flow: memos made inside are forgotten at its end."""
        self._scopes.append({})
        try:
            yield
        finally:
            self._scopes.pop()

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` computed for the key in an open block, computed here if nowhere yet."""
        for scope in reversed(self._scopes):
            if key in scope:
                return scope[key]
        self._scopes[-1][key] = value = make()
        self._remembered.update(_registers_in(value))
        return value

    def hoist(self, key: Hashable, make: Callable[[], T], root: bool = False) -> T:
        """What `make` computes in the prologue of the section (of the kernel, if `root`), once for
        each key.  It may use only what dominates the section: parameters, special registers, other
        hoisted values.
        """
        for scope in reversed(self._scopes):
            if key in scope:
                return scope[key]
        saved = dict(vars(self))
        if root:
            self._sections, self._section_scopes = self._sections[:1], self._section_scopes[:1]
        self._lines, self._guard = self._sections[-1].prologue, ""
        self._scopes = self._scopes[: self._section_scopes[-1] + 1]
        try:
            self._scopes[-1][key] = value = make()
        finally:
            for name in _POSITION:
                setattr(self, name, saved[name])
        return value

    # ---- the function
    def text(self) -> str:
        """Declarations of the registers and the lines so far."""
        root = self._sections[0]
        declared = [
            f"\t.reg .{kind} {CLASSES[kind]}<{n}>;" for kind, n in self._counts.items() if n
        ]
        return "\n".join([*declared, *root.prologue, *root.body])


# what says where a writer writes
_POSITION: Sequence[str] = (
    "_lines",
    "_place",
    "_guard",
    "_scopes",
    "_sections",
    "_section_scopes",
)
