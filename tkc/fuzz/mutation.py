"""Broken texts of IR and broken command lines: `python -m tkc.fuzz texts 10000`.

A mutant of a text is read and verified, and what verifies goes through the passes. It may be
refused in one sentence; it may not raise anything else, nor take longer than `SECONDS`.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp

from tkc.errors import CompileError, VerifyError

SECONDS = 2.0
TOKEN = re.compile(r'"[^"\n]*"|[A-Za-z_][\w.]*|%\w+|[-\d.]+|->|\s+|.')
ODD = (
    "0",
    "-1",
    "1",
    "99999999999",
    "9223372036854775807",
    "1e400",
    "0x7ff0000000000000",
    "true",
    '""',
    '"a"',
    "%unknown",
    "!tile.tile<0xf32>",
    "!tile.tile<1x1x1x1x1x1x1x1xf32>",
    "i1",
    "f8E4M3FN",
    "index",
    "tile.add",
    "tile.dot",
    "scf.for",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ":",
    "=",
    "?",
    "x",
    "@",
    "^bb0",
    "array<i64: -1>",
    "array<i64>",
    "[]",
    "{}",
    "dense<1>",
    "unit",
    "loc(unknown)",
    "\\",
    "\0",
    "é",
)


ODD_NUMBERS = ODD[:7] + ("2", "3", "17", "64", "128")


def mutant(random: random.Random, texts: list[str]) -> str:
    """A text with one to four of its tokens dropped, doubled, exchanged or replaced; or with lines
    of another text; or cut off.
    """
    text = random.choice(texts)
    kind = random.random()
    if kind < 0.1:
        return _with_lines_of(random, text, random.choice(texts))
    if kind < 0.15:
        return text[: random.randrange(len(text))]
    return _with_other_characters(random, text) if kind < 0.25 else _with_other_tokens(random, text)


def _with_lines_of(random: random.Random, text: str, other: str) -> str:
    lines, others = text.splitlines(), other.splitlines()
    for _ in range(random.randint(1, 3)):
        lines[random.randrange(len(lines))] = random.choice(others)
    return "\n".join(lines)


def _with_other_characters(random: random.Random, text: str) -> str:
    at, n = random.randrange(len(text)), random.choice((1, 1, 2, 8))
    other = random.choice(("", chr(random.randrange(1, 256)), text[at : at + n] * 3))
    return text[:at] + other + text[at + n :]


def _with_other_tokens(random: random.Random, text: str) -> str:
    tokens = TOKEN.findall(text)
    solid = [i for i, t in enumerate(tokens) if not t.isspace()]
    numbers = [i for i in solid if tokens[i].lstrip("-").isdigit()]
    for _ in range(random.randint(1, 4)):
        i, j = random.choice(solid), random.choice(solid)
        match random.randrange(6):
            case 0:
                tokens[i] = ""
            case 1:
                tokens[i] += " " + tokens[i]
            case 2:
                tokens[i], tokens[j] = tokens[j], tokens[i]
            case 3:
                tokens[i] = random.choice(ODD)
            case 4:
                tokens[random.choice(numbers or solid)] = random.choice(ODD_NUMBERS)
            case 5:
                tokens[i] = random.choice(_alike(tokens[i], tokens) or [tokens[i]])
    return "".join(tokens)


def _alike(token: str, tokens: list[str]) -> list[str]:
    """Other tokens that begin with the same character."""
    return [t for t in tokens if t[0:1] == token[0:1] and t != token and not t.isspace()]


def fault(text: str, passes: bool = False) -> str | None:
    """What is wrong with how a text was taken; None if it was read, or refused in a sentence."""
    from tkc.ir.text import parse, show
    from tkc.ir.verify import verify

    began = time.process_time()  # of this process: others may keep the machine busy
    try:
        module = parse(text, "mutant")
        verify(module)
        verify(parse(show(module)))
        if passes:
            _through(module)
    except (VerifyError, CompileError) as e:
        if "Traceback" in str(e) or not str(e).strip():
            return f"message: {e}"
    except RecursionError:
        return "RecursionError"
    except Exception as e:
        return f"{type(e).__name__}: {e}"[:300]
    took = time.process_time() - began
    return f"took {took:.1f} s" if took > SECONDS * (5 if passes else 1) else None


def _through(module: ModuleOp) -> None:
    from tkc.ir.target import TARGETS
    from tkc.passes import Free, pipeline
    from tkc.sim.level0 import kernel_of

    if (
        any(op.name == "tile.kernel" for op in module.body.block.ops)
        and kernel_of(module).level == 0
    ):
        pipeline.run(module, TARGETS["sm_80"], Free())


def corpus() -> list[str]:
    """Texts of small kernels at several levels."""
    from tkc.fuzz.check import arguments, traced
    from tkc.fuzz.productions import kernel
    from tkc.ir.target import TARGETS
    from tkc.ir.text import show
    from tkc.passes import Free, pipeline

    texts = []
    for seed, policy in enumerate(
        ("pipelines", "layouts", "memory", "control", "numbers", "mixed")
    ):
        k = kernel(seed + 100, policy, 2)
        module = traced(k, arguments(k))
        texts.append(show(module))
        with contextlib.suppress(CompileError):
            pipeline.run(
                module,
                TARGETS["sm_90a" if seed % 2 else "sm_80"],
                Free(),
                lambda name, m: (
                    texts.append(show(m))
                    if name in ("select-layouts", "pipeline-async-copies", "assign-registers")
                    else None
                ),
            )
    return [t for t in texts if len(t) < 6_000]


COMMANDS = ("opt", "compile", "reduce", "check", "report")
WORDS = (
    "opt",
    "compile",
    "doctor",
    "reduce",
    "bench",
    "demo",
    "-",
    "--list",
    "--verify-only",
    "--target",
    "sm_90a",
    "sm_1",
    "-p",
    "simplify",
    "--print",
    "--stop-after",
    "--resume-from",
    "plan",
    "-o",
    "/nowhere/x",
    "--emit",
    "ptx",
    "--option",
    "num_warps=x",
    "x=f32[",
    "kernel.py:k",
    "",
    "=",
    "--",
    "--nonsense",
    "-h",
    "\udcff",
    "a" * 5000,
    "../..",
    "%s",
    "--debug",
    "--grid",
    "0",
    "--stages",
    "-1",
    "--validate",
    "--against",
    "--inputs",
    "--signature",
    "--stage",
    "final",
    "ir",
    "report",
    "--seconds",
    "0.1",
    "--test",
    "true",
    "--warps",
    "3",
    "k.mlir",
    "k.mlir",
    "k.py:add",
    "k.py:add",
    "x=f32[64]",
    "y=f32[64]",
    "out=f32[64]",
    "n=64",
    "f32[64], f32[64], f32[64], 64",
    "2,2",
    "cpu",
    "sm_80",
    "--picture",
    "cluster=2,1",
    "num_warps=64",
    "maxnreg=1",
    "BLOCK=0",
    "BLOCK=1e9",
    "n=i32",
    "x=f32[-1]",
    "x=f32[99999999999]",
)
KERNEL = (
    "import tkc\n\n@tkc.jit\ndef add(x, y, out, n, BLOCK: tkc.constexpr = 64):\n    i ="
    " tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)\n    tkc.store(out.ptr + i, tkc.load(x.ptr + i,"
    " mask=i < n) + tkc.load(y.ptr + i, mask=i < n), mask=i < n)\n\ndef grid(a): return (1,)\n"
)


def command_lines(seed: int, count: int) -> Iterator[list[str]]:
    """Words in any order, none of which runs the examples or the benchmarks; beside a k.py (KERNEL)
    and a k.mlir some of them mean something.
    """
    r = random.Random(seed)
    for _ in range(count):
        about = r.choice(
            (
                [],
                ["k.mlir"],
                ["k.py:add"],
                ["k.py:add", "x=f32[64]", "y=f32[64]", "out=f32[64]", "n=64"],
            )
        )
        words = [
            r.choice(COMMANDS),
            *about,
            *(
                r.choice(WORDS[6:] if r.random() < 0.9 else WORDS[:4])
                for _ in range(r.choice((0, 1, 1, 2, 2, 3, 6)))
            ),
        ]
        yield [w for w in words if w != "--debug"]


def run(count: int, seed: int, passes: bool) -> int:
    """Prints each kind of fault once, with the text that shows it; gives how many there are."""
    seen: set[str] = set()
    r, texts, began = random.Random(seed), corpus(), time.perf_counter()
    for _ in range(count):
        text = mutant(r, texts)
        problem = fault(text, passes)
        if problem and (short := re.sub(r"\d+", "N", problem)[:80]) not in seen:
            seen.add(short)
            print(f"{problem}\n{text[:3000]}\n", flush=True)
    print(f"{count} mutants in {time.perf_counter() - began:.0f} s: {len(seen)} kinds of faults")
    return len(seen)
