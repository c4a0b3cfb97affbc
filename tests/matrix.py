"""The tests under every supported version of Python that is installed: `make test-matrix`.

    python -m tests.matrix [pytest arguments]     all tests, or those that the arguments name

Each version has a virtual environment of its own, `.venv-3.x`. An interpreter is `python3.x` on the
path or of pyenv; a version without one is named and skipped. Prints a line for each version; the
output of pip and pytest is in out/matrix/3.x.log. Exit status: 1 if a version fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LAST_LINE = re.compile(r"^=*\s*(\d+ (?:passed|failed|errors?|skipped).*?) in [\d.]+s", re.MULTILINE)


def is_version(python: Path, version: str) -> bool:
    """Whether this file runs, as this version (a shim of pyenv may be there without one)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def interpreter(version: str) -> Path | None:
    """An interpreter of this version, None where none is installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f / "bin/python" for f in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    if found := shutil.which(f"python{version}"):
        candidates.insert(0, Path(found))
    return next((python for python in candidates if is_version(python, version)), None)


def tested(version: str, python: Path, arguments: list[str]) -> tuple[bool, str]:
    """Whether the tests pass in the environment of a version, and what pytest says of them."""
    environment, log = ROOT / f".venv-{version}", ROOT / f"out/matrix/{version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    inside = environment / "bin/python"
    steps = [
        [python, "-m", "venv", environment],
        [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", ".[dev]"],
        [inside, "-m", "pytest", "-q", *arguments],
    ]
    with log.open("w") as file:
        for step in steps[inside.exists() :]:
            status = subprocess.run(
                step, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
            ).returncode
            if status:
                break
    said = LAST_LINE.findall(log.read_text())
    summary = said[-1] if said else f"no test ran: see {log.relative_to(ROOT)}"
    return status == 0, summary


def main(arguments: list[str]) -> int:
    failed = False
    for version in VERSIONS:
        python, begin = interpreter(version), time.monotonic()
        if python is None:
            print(f"Python {version}: skipped, no python{version} is installed", flush=True)
            continue
        passed, summary = tested(version, python, arguments)
        failed |= not passed
        verdict = "passed" if passed else "FAILED"
        seconds = time.monotonic() - begin
        print(f"Python {version}: {verdict} in {seconds:.0f} s: {summary}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
