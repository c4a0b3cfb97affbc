"""PTX without what a refactoring may change: source lines, comments, names."""

from __future__ import annotations

import hashlib
import re

LABEL = re.compile(r"\$[A-Za-z_]\w*")


def normalized(ptx: str) -> str:
    """The text with `.file`, `.loc` and comments left out, and with labels and the kernel's name
    numbered.
    """
    names: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"$L{len(names)}")

    lines = []
    for line in ptx.splitlines():
        code = line.split("//")[0].rstrip()
        if not code or code.lstrip().startswith((".file", ".loc")):
            continue
        code = re.sub(r"\.entry \w+", ".entry kernel", code)
        lines.append(LABEL.sub(numbered, code))
    return "\n".join(lines)


def digest(ptx: str) -> str:
    """The first 16 digits of the SHA-256 of the normalized text."""
    return hashlib.sha256(normalized(ptx).encode()).hexdigest()[:16]
