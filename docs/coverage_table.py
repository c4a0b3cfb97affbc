"""docs/coverage.md: the lines that the tests run, by package, of a report of coverage.py.

python docs/coverage_table.py out/coverage.json     after `pytest --cov`; `make coverage` does both
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "coverage.md"
TEXT = """# Coverage

The statements of each package that `make test` runs on a machine without a GPU, as coverage.py
counts them. `make coverage` writes this page.

What is missing is mostly code that runs on a GPU alone (the driver, launches, measuring), code for
torch and jax (this page is of an environment without them) and messages of faults that no test
provokes. Two kinds of code run without being counted: kernels, which are traced (their source is
rewritten first), and processes that tests start (`tkc` as a command, killed and forked processes).

| package | statements | run | share |
| --- | ---: | ---: | ---: |
{rows}
"""


def table(report: dict) -> str:
    """The rows of the table, packages in order, the sum last."""
    statements, covered = Counter[str](), Counter[str]()
    for path, file in report["files"].items():
        for package in (f"{Path(path).parent.as_posix()}/", "all"):
            statements[package] += file["summary"]["num_statements"]
            covered[package] += file["summary"]["covered_lines"]
    packages = sorted(name for name in statements if name != "all" and statements[name])
    return "\n".join(
        f"| {name if name == 'all' else f'`{name}`'} | {statements[name]} | {covered[name]} |"
        f" {covered[name] / statements[name]:.1%} |"
        for name in (*packages, "all")
    )


def main(path: str) -> None:
    PAGE.write_text(TEXT.format(rows=table(json.loads(Path(path).read_text()))))
    print(f"{PAGE.relative_to(ROOT)} is written")


if __name__ == "__main__":
    main(sys.argv[1])
