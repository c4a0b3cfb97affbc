"""How large the code is, in tokens: `python -m tests.tokens` prints them by package of tkc.

Counted are NAME, OP, NUMBER and STRING of `tokenize`; docstrings and annotations are left out, so
that explaining and typing the code does not make it larger. A formatted string is one STRING under
every Python, though the tokenizer takes it apart from 3.12 on.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

KINDS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
# of Python 3.12 and later; no token of an older one has this type
FSTRING_START, FSTRING_END = (getattr(tokenize, f"FSTRING_{end}", -1) for end in ("START", "END"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
WORDS_AND_SIGNS = re.compile(r"\w+|[^\w\s]")
Position = tuple[int, int]
NOWHERE: tuple[Position, Position] = ((1 << 60, 0), (1 << 60, 1))  # after every text


def _left_out(tree: ast.Module) -> list[ast.expr]:
    """Docstrings and annotations."""
    found: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            found.append(node.body[0].value)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.returns)
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            found.append(node.annotation)
    return [node for node in found if node is not None]


def _whole(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """The tokens that count; of a formatted string, which may have others in it, the first."""
    depth = 0
    for token in tokens:
        if token.type == FSTRING_START:
            depth += 1
            if depth == 1:
                yield token
        elif token.type == FSTRING_END:
            depth -= 1
        elif depth == 0 and token.type in KINDS:
            yield token


def count(source: str) -> int:
    """The tokens of a source text."""
    spans: list[tuple[Position, Position]] = sorted(
        ((n.lineno, n.col_offset), (n.end_lineno or 0, n.end_col_offset or 0))
        for n in _left_out(ast.parse(source))
    )
    lines = source.splitlines(keepends=True)
    total, left = 0, iter([*spans, NOWHERE])
    begin, end = next(left)
    for token in _whole(tokenize.generate_tokens(io.StringIO(source).readline)):
        row, column = token.start
        at = (row, len(lines[row - 1][:column].encode()))  # ast counts bytes
        # tokens and spans come in order; a span may lie in the one before it
        while at >= end:
            begin, end = next(left)
        total += at < begin
    return total


def at_most(source: str) -> int:
    """A bound of `count` that takes no tokenizer: the words and the signs of a source text.

    Holds where no number touches a name, as in every formatted text.
    """
    return len(WORDS_AND_SIGNS.findall(source))


def main() -> None:
    """Prints the tokens of each package of tkc and of all."""
    root = Path(__file__).resolve().parents[1] / "tkc"
    by_package: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        by_package[path.relative_to(root).parts[0]] += count(path.read_text())
    for name, tokens in sorted(by_package.items()):
        print(f"{tokens:8} {name}")
    print(f"{sum(by_package.values()):8} tkc")


if __name__ == "__main__":
    main()
