"""Random programs of nested control flow over names, aliases, containers, closures and helpers: the
trace does what Python does, or refuses.
"""

import linecache
import random
from types import SimpleNamespace

import numpy as np
import pytest

import tkc
from tests.language.oracle import python, simulated

HEAD = """
def helper(s, x):
    s[0] = (s[0] + x) & 1023
    if x > 3: s[1] = s[1] ^ x
    return s[0]

def choose(x, y):
    if x > y: return x
    if x == y: return 7
    return y - x

def make():
    outer = 3
    def kernel(out, n, c):
        nonlocal outer
        outer = 3
        a, b, d = 1, c, n
        s = [1, c]
        t = s
        u = {"k": 2, "l": [n]}
        o = SimpleNamespace(x=0, y=s)
        p = (1, n)
        def add(v):
            nonlocal a, outer
            a = (a + v) & 1023
            outer = (outer + a) & 1023
            return a
"""
# what each element of the output is
RESULTS = (
    *("a", "b", "d", "s[0]", "s[1]", "t[0]", "t[1]", "u['k']", "u['l'][0]"),
    *("o.x", "o.y[1]", "p[0]", "p[1]", "outer"),
)
TAIL = "\n".join(
    (
        "",
        *(f"        tkc.store(out, ({i},), {name})" for i, name in enumerate(RESULTS)),
        "    return kernel",
        "",
    )
)
PLACES = [
    "a",
    "b",
    "d",
    "s[0]",
    "s[1]",
    "t[0]",
    "t[1]",
    "u['k']",
    "u['l'][0]",
    "o.x",
    "o.y[0]",
    "outer",
]


class Program:
    def __init__(self, seed: int):
        self.r, self.lines, self.count = random.Random(seed), [], 0
        for _ in range(self.r.randint(2, 4)):
            self.statement(2, 0)

    def value(self, depth: int = 2) -> str:
        r = self.r
        if depth == 0 or r.random() < 0.3:
            return r.choice([*PLACES, "p[0]", "p[1]", "n", "c", str(r.randint(0, 5))])
        x, y = self.value(depth - 1), self.value(depth - 1)
        return r.choice(
            [
                f"({x} + {y} & 1023)",
                f"({x} ^ {y})",
                f"({x} * 3 + {y}) % 101",
                f"{r.choice(['min', 'max'])}({x}, {y})",
                f"({x} if {self.test(0)} else {y})",
                f"choose({x}, {y})",
                f"abs({x} - {y})",
                f"{x}",
            ]
        )

    def test(self, depth: int = 1) -> str:
        r = self.r
        x, y = self.value(1 if depth else 0), self.value(0)
        simple = r.choice(
            [
                f"{x} > {y}",
                f"{x} % 2 == 0",
                f"{x} != {y}",
                f"0 < {x} < 5",
                f"{x} % 3",
                f"{x} in ({y}, 2, n)",
                f"{x} not in range({r.randint(0, 4)}, 9, {r.randint(1, 3)})",
            ]
        )
        if depth == 0:
            return simple
        return r.choice(
            [
                simple,
                f"{simple} and {self.test(0)}",
                f"{simple} or {self.test(0)}",
                f"not ({simple})",
            ]
        )

    def statement(self, indent: int, nested: int, skips: bool = False) -> None:
        """skips: the innermost loop is one that `continue` may skip iterations of."""
        r, pad = self.r, "    " * indent

        def put(line):
            self.lines.append(pad + line)

        def body(skips=skips):
            for _ in range(r.randint(1, 3)):
                self.statement(indent + 1, nested + 1, skips)

        kind = r.random()
        self.count += 1
        name = f"i{self.count}"
        if nested < 3 and kind < 0.2:
            put(f"for {name} in tkc.range({r.choice(['n', 'c', 'n % 3', '2', 'c + 1'])}):")
            body(skips=True)
            if r.random() < 0.5:
                self.lines.append(
                    pad + f"    {r.choice(PLACES)} = ({name} + {self.value(1)}) & 1023"
                )
        elif nested < 3 and kind < 0.27:
            put(f"{name} = 0")
            put(f"while {name} < {r.choice(['n', '3', 'c + 1'])} and {self.test(0)}:")
            body(skips=False)
            self.lines.append(pad + f"    {name} = {name} + 1")
        elif nested < 3 and kind < 0.32:
            put(f"for {name} in range({r.randint(1, 2)}):")
            body(skips=True)
        elif nested < 3 and kind < 0.52:
            put(f"if {self.test()}:")
            body()
            if skips and r.random() < 0.3:
                put("    continue")
            if r.random() < 0.6:
                put("else:")
                body()
        else:
            put(self.assignment(kind))

    def assignment(self, kind: float) -> str:
        """A statement of one line; `kind`, from 0 to 1, says of which form."""
        r = self.r
        if kind < 0.56:
            # two places: CPython 3.11.2 itself has b, b = x, y wrong
            return f"{', '.join(r.sample(PLACES, 2))} = {self.value()}, {self.value()}"
        if kind < 0.60:
            return f"{r.choice(PLACES)} = helper({r.choice(['s', 't', 'o.y'])}, {self.value()})"
        if kind < 0.64:
            return f"{r.choice(PLACES)} = add({self.value()})"
        if kind < 0.68:
            return f"p = (p[1], {self.value()})"
        if kind < 0.71:
            source = "[v + 1 & 1023 for v in t]"
            return f"{r.choice(['s', 't', 'o.y'])} = {r.choice(['s', 't', source])}"
        if kind < 0.75:
            return f"{r.choice(PLACES)} += {self.value(1)} & 7"
        return f"{r.choice(PLACES)} = {self.value()}"

    @property
    def text(self) -> str:
        return HEAD + "\n".join(self.lines) + TAIL


def compiled(seed: int):
    """make() of the program, with its source where tracebacks and the rewrite find it."""
    name, text = f"<random {seed}>", Program(seed).text
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"tkc": tkc, "SimpleNamespace": SimpleNamespace, "__name__": "random_program"}
    exec(compile(text, name, "exec"), scope)
    return scope["make"], text


def outcome(seed: int) -> bool:
    """Whether the program compiled; an assertion if it then did something else than Python."""
    make, text = compiled(seed)
    for n, c in ((0, 1), (3, 0), (4, 2)):
        try:
            got = simulated(make, n, c)
        except tkc.CompileError:
            return False
        np.testing.assert_array_equal(
            got, python(make, n, c), err_msg=f"seed {seed}, n={n}, c={c}\n{text}"
        )
    return True


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_programs(start):
    compiled_ones = sum(outcome(seed) for seed in range(start, start + 20))
    assert compiled_ones >= 5, f"only {compiled_ones} of 20 programs were accepted"
