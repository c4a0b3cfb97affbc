"""Loops and branches of scalar numbers, of which Python itself says what they compute: an oracle
for the language, which level 0 is not. The difference from what Python computes goes to an array z,
which must be 0 everywhere.
"""

from __future__ import annotations

from types import SimpleNamespace

from tkc.fuzz.grammar import ArraySpec
from tkc.fuzz.large_productions import LargeWriter

MAX_DEPTH = 3  # loops and branches in one another
MODULUS = 1009  # a prime: numbers stay below it


class CountingWriter(LargeWriter):
    """Writes scalar control flow with its result."""

    def _count(self, depth: int) -> None:
        if len(self.arrays) > 14:
            return
        total, numbers = self.fresh("c"), dict(self.numbers)
        for _ in range(self.random.randint(1, 3)):
            name = f"m{len(self.extra_numbers)}"
            self.extra_numbers[name] = self.pick((-3, -2, -1, -1, 2, 3, 5))
        numbers |= self.extra_numbers
        scope = [n for n, value in numbers.items() if value <= 5]
        lines = [f"{total} = {self.random.randint(0, 9)}"]
        for _ in range(self.random.randint(1, 2)):
            lines += self._counted(total, scope, numbers, MAX_DEPTH)
        result = _as_python(lines, numbers)[total]
        for text in lines:
            self.line(text)
        # zeros, since a loop or a branch around this may not run
        z = ArraySpec(f"z{len(self.arrays)}", "int32", (self.programs, 1), bound=0)
        self.add_own(z)
        self.line(f"tkc.store({z.name}p, (0,), tkc.full((1,), {total} - ({result}), tkc.int32))")

    def _counted(
        self, total: str, scope: list[str], numbers: dict[str, int], depth: int
    ) -> list[str]:
        """Statements that change a total; scope: names of numbers that they may read."""
        if not depth or self.chance(0.3):
            return [self._changed_total(total, scope)]
        if self.chance(0.3):
            inner = self._counted(total, scope, numbers, depth - 1)
            other = self._counted(total, scope, numbers, depth - 1)
            sign = self.pick(("<", "==", ">=", "!="))
            head = f"if {total} % 3 {sign} {self.pick(scope)}:"
            return [head, *_indented(inner), "else:", *_indented(other)]
        i = self.fresh("i")
        inner = [
            text
            for _ in range(self.random.randint(1, 2))
            for text in self._counted(total, [*scope, i], numbers, depth - 1)
        ]
        return [self._range_of(i, scope, numbers), *_indented(inner)]

    def _changed_total(self, total: str, scope: list[str]) -> str:
        other = self.pick((*scope, str(self.random.randint(-3, 9))))
        form = self.pick(("{0} * 3 + {1}", "{0} - {1}", "{0} + {1} * {1}", "{0} // 2 + {1}"))
        return f"{total} = ({form.format(total, other)}) % {MODULUS}"

    def _range_of(self, i: str, scope: list[str], numbers: dict[str, int]) -> str:
        """The line of a loop whose step may be of either sign, known when traced or not."""

        def bound() -> str:
            return self.pick((*scope, str(self.random.randint(-4, 6))))

        steps = [n for n in scope if numbers.get(n)]
        step = self.pick((*steps, *steps, "1", "2", "-1", "-3"))
        function = self.pick(("range", "tkc.range"))
        return f"for {i} in {function}({bound()}, {bound()}, {step}):"


def _indented(lines: list[str]) -> list[str]:
    return [f"    {text}" for text in lines]


def _as_python(lines: list[str], numbers: dict[str, int]) -> dict[str, int]:
    """The names after statements, run by Python."""
    names = dict(numbers)
    exec("\n".join(lines), {"tkc": SimpleNamespace(range=range)}, names)
    return names
