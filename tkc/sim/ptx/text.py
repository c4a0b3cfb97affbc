"""PTX text as data: the instructions of the entry, where its labels stand, what its registers hold.

Statements end at `;`, a label at `:`. A brace that begins a statement opens a scope, whose
registers and labels are its own (inline PTX has such): they get a name that nobody else has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tkc.sim.ptx.faults import Unknown

# the NumPy type that holds a register of each declared kind, as plain bits
REGISTER_TYPES: dict[str, type[Any]] = {
    "pred": np.bool_,
    "b8": np.uint8,
    "u8": np.uint8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.uint16,
    "f16": np.uint16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.uint32,
    "f32": np.uint32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.uint64,
    "f64": np.uint64,
}
OPERAND = re.compile(r"\{([^}]*)\}|(\[[^\]]*\])|([^,\s]+)")
DECLARATION = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.S)
TOKEN = re.compile(r"\s*(?:(\{)|(\})|([$\w]+):(?!:)|(\.loc[^\n]*)|([^;]+);)", re.S)
STATEMENT = re.compile(r"(?:@(!?)(%?[\w$']+)\s+)?([\w.:]+)(?:\s+(.*))?", re.S)


def _without_rule(*_: object) -> None:
    raise TypeError("an instruction is executed before its rule was looked up")


@dataclass(eq=False)
class Instruction:
    """One instruction. operands: each a text, or a list of texts where they stood in braces. rule:
    what it does; together: how many neighbouring threads must reach it before any executes it (1:
    each by itself). The rule and that number are filled in by `tkc.sim.ptx.launch`.
    """

    line: str
    name: str
    operands: list[Any]
    guard: str | None = None
    negated: bool = False
    rule: Callable[..., Any] = _without_rule
    together: int = 1

    @cached_property
    def parts(self) -> list[str]:
        return self.name.split(".")

    @cached_property
    def kind(self) -> str:
        return self.parts[-1]

    @cached_property
    def registers(self) -> frozenset[str]:
        return frozenset(re.findall(r"%[\w$']+", self.line))


@dataclass(eq=False)
class Program:
    """The entry of a text. holds: the NumPy type of each register; parameters: names, in order;
    shared: the name of shared memory; tables: the arrays declared with their contents; together:
    blocks that share a multiprocessor's registers.
    """

    code: list[Instruction]
    labels: dict[str, int]
    holds: dict[str, type[Any]]
    parameters: list[str]
    shared: str
    tables: dict[str, tuple[str, list[int]]]
    together: int

    @cached_property
    def tensor_registers(self) -> frozenset[str]:
        """Those that asynchronous dots read and fill."""
        return frozenset(
            r
            for i in self.code
            if i.name.startswith("wgmma.mma_async")
            for o in i.operands
            if isinstance(o, list)
            for r in o
        )


@dataclass
class Scope:
    """What stands between two braces. mark: what sets names apart that are declared there; first:
    the number of its first instruction; registers, labels: other names of those that it declares.
    """

    mark: str
    first: int
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class Scopes:
    """The registers and labels in reach, innermost braces last, and the instructions so far."""

    def __init__(self) -> None:
        self.stack = [Scope("", 0)]
        self.count = 0
        self.holds: dict[str, type[Any]] = {}
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}

    def open(self) -> None:
        self.count += 1
        self.stack.append(Scope(f"'{self.count}", len(self.code)))

    def close(self) -> bool:
        """The end of the innermost braces: jumps in them find labels that stand behind them, too.
        Whether that was not the end of all.
        """
        closed = self.stack.pop()
        for jump in self.code[closed.first :]:
            if jump.parts[0] == "bra":
                jump.operands[0] = closed.labels.get(jump.operands[0], jump.operands[0])
        return bool(self.stack)

    def label(self, name: str) -> None:
        """A label before the next instruction."""
        scope = self.stack[-1]
        scope.labels[name] = name + scope.mark
        self.labels[name + scope.mark] = len(self.code)

    def declare(self, text: str) -> None:
        declaration = DECLARATION.fullmatch(text)
        if declaration is None:
            raise Unknown(text)
        kind, names = declaration.groups()
        scope = self.stack[-1]
        for name in names.split(","):
            base, _, many = name.strip().rstrip(">").partition("<")
            for one in [f"{base}{i}" for i in range(int(many))] if many else [base]:
                scope.registers[one] = one + scope.mark
                self.holds[one + scope.mark] = REGISTER_TYPES[kind]

    def renamed(self, text: str) -> str:
        if len(self.stack) == 1:
            return text
        return re.sub(r"%?[A-Za-z_$][\w$]*", lambda m: self._found(m[0]), text)

    def _found(self, name: str) -> str:
        declared = (scope.registers for scope in reversed(self.stack))
        return next((names[name] for names in declared if name in names), name)


@lru_cache(64)
def parse(text: str) -> Program:
    """Raises Unknown at what is no PTX of ours."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    head, _, entry = text.partition(".entry")
    signature, body = entry.split("{", 1)
    scopes = Scopes()
    at = 0
    while m := TOKEN.match(body, at):
        at = m.end()
        opens, closes, label, loc, statement = m.groups()
        if opens:
            scopes.open()
        elif closes:
            if not scopes.close():
                break
        elif label:
            scopes.label(label)
        elif statement and statement.startswith(".reg"):
            scopes.declare(statement)
        elif statement and not statement.startswith(".pragma"):
            scopes.code.append(instruction(scopes.renamed(" ".join(statement.split()))))
    shared = re.search(r"^\s*\.extern \.shared .*?(\w+)\[\];", head, re.M)
    tables = {
        name: (kind, [int(n) for n in numbers.split(",")])
        for kind, name, numbers in re.findall(
            r"^\.global (?:\.align \d+ )?\.(\w+) (\w+)\[\d*\] = \{([^}]*)\};", head, re.M
        )
    }
    together = re.search(r"\.minnctapersm (\d+)", signature)
    return Program(
        scopes.code,
        scopes.labels,
        scopes.holds,
        re.findall(r"\.param\s+(?:\.align \d+ )?\.\w+ (\w+)", signature),
        shared[1] if shared else "",
        tables,
        int(together[1]) if together else 1,
    )


def instruction(line: str) -> Instruction:
    """One statement. Raises Unknown where it is none."""
    m = STATEMENT.fullmatch(line)
    if m is None:
        raise Unknown(line)
    negated, guard, name, rest = m.groups()
    operands = [
        [p.strip() for p in braced.split(",")] if braced else address or plain
        for braced, address, plain in OPERAND.findall(rest or "")
    ]
    return Instruction(line, name, operands, guard, bool(negated))
