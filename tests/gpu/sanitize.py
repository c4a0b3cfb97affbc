"""compute-sanitizer over every example and library function on this machine's GPU: `make sanitize`, or

    python -m tests.gpu.sanitize [--tool memcheck --tool …] [--seconds N] [NAME …]

memcheck sees accesses outside allocations (torch's pool is off, so that an allocation is one array), racecheck hazards in shared memory, synccheck barriers used wrongly, initcheck reads of
global memory that nobody wrote. One process a tool; a table at the end; exit 1 unless every tool is clean.
"""
from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = {"memcheck": ["--padding", "32", "--report-api-errors", "no"], "racecheck": ["--racecheck-report", "analysis"], "synccheck": [], "initcheck": []}
FOUND = re.compile(r"========= (Invalid|Uninitialized|Misaligned|Error: (?:Race|Potential)|Warning: Race|Barrier error|Program hit|Race reported|Target application|Host API)")


def find() -> str | None:
    """The path of compute-sanitizer, None where it is not installed."""
    places = ["/usr/local/cuda/bin", *(os.path.join(os.environ[v], "bin") for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v))]
    for root in sys.path: places += [str(p) for p in Path(root).glob("nvidia/*/bin")] if root and Path(root).is_dir() else []
    return shutil.which("compute-sanitizer") or next((f"{p}/compute-sanitizer" for p in places if os.access(f"{p}/compute-sanitizer", os.X_OK)), None)


def sanitized(tool: str, names: list[str], seconds: int) -> tuple[Counter, list[str], int | None]:
    """Findings of each case, what the tool said, exit status (None: it ran out of time)."""
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]), "PYTHONUNBUFFERED": "1"}
    command = [find(), "--tool", tool, *TOOLS[tool], "--error-exitcode", "9", "--print-limit", "40", sys.executable, "-m", "tests.gpu.sanitized", *names]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as e: text, status = (e.stdout or b"").decode(errors="replace") if isinstance(e.stdout, bytes) else e.stdout or "", None
    found, case, cases = Counter(), "start", []
    for line in text.splitlines():
        if line.startswith("== "): case = line[3:]; cases.append(case); found[case] += 0
        elif FOUND.match(line): found[case] += 1
    return found, text.splitlines(), status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("--seconds", type=int, default=600, help="for one tool")
    given = parser.parse_args()
    if find() is None: print("compute-sanitizer is not installed: it is in the CUDA toolkit, or pip install nvidia-cuda-sanitizer-api"); return 2
    tables, clean = {}, True
    for tool in given.tool or TOOLS:
        tables[tool], said, status = sanitized(tool, given.names, given.seconds)
        wrong = status != 0 or any(tables[tool].values())
        clean = clean and not wrong
        summary = next((line for line in reversed(said) if "SUMMARY" in line), "no summary")
        print(f"{tool}: {'clean' if not wrong else 'ran out of time' if status is None else f'exit {status}'}; {len(tables[tool])} cases; {summary.strip('= ')}", flush=True)
        if wrong: print("\n".join(line[:240] for line in said if "Host Frame" not in line)[-12_000:], flush=True)
    width = max((len(n) for t in tables.values() for n in t), default=0)
    print("\n" + "".ljust(width), *(t.rjust(10) for t in tables))
    for name in dict.fromkeys(n for t in tables.values() for n in t): print(name.ljust(width), *(str(t[name] if name in t else "-").rjust(10) for t in tables.values()))
    return 0 if clean else 1


if __name__ == "__main__": sys.exit(main())
