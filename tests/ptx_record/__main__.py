"""Compares the PTX of the recorded kernels with record.json, or writes it: see the package."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from pathlib import Path

from tests.ptx_record.record import RECORD, part


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ptx_record", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write record.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--texts", help="a folder for the normalized texts, by hash")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="every n-th case alone")
    parser.add_argument("--first", type=int, default=0, help="with --every: which of these")
    given = parser.parse_args()
    if given.texts:
        Path(given.texts).mkdir(parents=True, exist_ok=True)
    spread = given.jobs * given.every
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        jobs = [
            (given.first * given.jobs + i, spread, given.texts, given.only)
            for i in range(given.jobs)
        ]
        parts = pool.map(part, jobs, chunksize=1)
    found = {name: value for one in parts for name, value in one.items()}
    whole = not given.only and given.every == 1
    if given.update:
        kept = {} if whole else json.loads(RECORD.read_text())
        RECORD.write_text(json.dumps(dict(sorted((kept | found).items())), indent=0) + "\n")
        print(f"{len(found)} kernels recorded")
        return 0
    record = json.loads(RECORD.read_text())
    missing = sorted(set(record) - set(found)) if whole else []
    differ = sorted(name for name, value in found.items() if record.get(name) != value)
    for name in missing:
        print(f"missing: {name}")
    for name in differ:
        print(f"differs: {name}: {record.get(name)} is now {found[name]}")
    print(f"{len(found)} kernels, {len(differ)} differ, {len(missing)} are missing")
    return int(bool(missing or differ))


if __name__ == "__main__":
    sys.exit(main())
