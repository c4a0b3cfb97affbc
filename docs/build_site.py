"""`python docs/build_site.py`: builds the documentation site into out/site (`make docs`).

The pages are docs/*.md, a tutorial for each example (its docstring, then its code), the API from
docstrings by mkdocstrings, pictures of layouts, and pages of `tkc explain`.  They are gathered in
out/site-source, where links into the rest of the repository become plain file names.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SOURCE = ROOT / "out" / "site-source"

# Pages of the site that stand elsewhere in the repository
ELSEWHERE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "standing.md": "benchmarks/results/standing.md",
}
# The public modules of the reference, by section
MODULES = {
    "Compiling and launching": ("tkc.runtime.jit", "tkc.compiler"),
    "Operations": ("tkc.language.operations",),
    "Memory": ("tkc.language.memory", "tkc.language.arrays"),
    "Loops": ("tkc.language.control",),
    "Derivatives": ("tkc.language.derivative",),
    "Random numbers": ("tkc.language.random",),
    "Inline PTX": ("tkc.language.inline",),
    "Autotuning": ("tkc.runtime.autotune",),
    "Export": ("tkc.runtime.export",),
    "Errors": ("tkc.errors",),
}
LIBRARY = ("matmul", "scaled", "grouped", "attention", "softmax", "norms", "activations", "losses")
LIBRARY += ("scans", "selection", "quantize", "movement", "rotary", "optimizers", "operator")
LIBRARY += ("experts", "packed", "windows", "sampling", "divergences", "group_norm", "rows", "mlp")
LIBRARY += ("fourier",)


def tutorial(path: Path) -> str:
    """An example as a page: the docstring's first line is the title, its code follows the text."""
    source = path.read_text()
    text = ast.get_docstring(ast.parse(source)) or path.stem
    title, _, rest = text.partition("\n")
    body = ast.parse(source).body
    code = "\n".join(source.splitlines()[body[0].end_lineno :]).strip()
    return f"# {title.rstrip('.')}\n\n```text\n{rest.strip()}\n```\n\n```python\n{code}\n```\n"


def reference(title: str, sections: dict[str, tuple[str, ...]]) -> str:
    """A page on which mkdocstrings shows modules."""
    lines = [f"# {title}"]
    for name, modules in sections.items():
        lines += ["", f"## {name}", *(f"\n::: {module}\n" for module in modules)]
    return "\n".join(lines) + "\n"


def relinked(text: str, folder: Path, pages: dict[str, str]) -> str:
    """Links between pages lead to their places on the site; other files keep their name alone."""

    def replaced(match: re.Match[str]) -> str:
        label, target = match[1], match[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        file, _, anchor = target.partition("#")
        path = (folder / file).resolve()
        inside = path.is_relative_to(ROOT)
        page = pages.get(path.relative_to(ROOT).as_posix()) if inside else None
        return f"[{label}]({page}{'#' + anchor if anchor else ''})" if page else f"`{label}`"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", replaced, text)


def gather() -> None:
    """Writes every page into out/site-source."""
    from docs import explained, pictures

    shutil.rmtree(SOURCE, ignore_errors=True)
    (SOURCE / "tutorials").mkdir(parents=True)
    own = {f"docs/{p.name}": p.name for p in (ROOT / "docs").glob("*.md")}
    pages = own | {where: name for name, where in ELSEWHERE.items()}
    for where, name in pages.items():
        path = ROOT / where
        (SOURCE / name).write_text(relinked(path.read_text(), path.parent, pages))
    for path in (ROOT / "docs").glob("*.svg"):
        shutil.copy(path, SOURCE / path.name)
    index = SOURCE / "index.md"
    index.write_text(index.read_text().replace("docs/speed.svg", "speed.svg"))
    for path in (ROOT / "examples").glob("[!_]*.py"):
        (SOURCE / "tutorials" / f"{path.stem}.md").write_text(tutorial(path))
    (SOURCE / "api.md").write_text(reference("Python API", MODULES))
    library = {name: (f"tkc.kernels.{name}",) for name in LIBRARY}
    (SOURCE / "kernels.md").write_text(reference("The library of kernels", library))
    (SOURCE / "layouts.md").write_text(pictures.page())
    explained.write(SOURCE / "explain")
    page = SOURCE / "explain.md"
    page.write_text(page.read_text().replace(explained.MARK, explained.listed()))


def main() -> int:
    """Gathers the pages and runs mkdocs; returns its exit status."""
    gather()
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-c"], cwd=ROOT
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
