"""The hashes of the recorded kernels, computed by several processes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

RECORD = Path(__file__).with_name("record.json")


def part(job: tuple[int, int, str | None, str | None]) -> dict[str, str]:
    """The hashes of every `of`-th case, beginning with case `first`; texts go to a folder if one is
    given.
    """
    first, of, folder, only = job
    os.environ["TKC_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ["TKC_CACHE"] = "0"
    from tests.ptx_record.cases import cases
    from tests.ptx_record.normal import digest, normalized
    from tkc.fuzz.lost_operands import lost_operands
    from tkc.fuzz.merged_reads import merged_reads

    found = {}
    for i, (name, ptx) in enumerate(cases().items()):
        if i % of != first or (only and only not in name):
            continue
        try:
            text = ptx()
        except Exception as e:
            found[name] = f"{type(e).__name__}: {str(e).splitlines()[0][:100]}"
            continue
        found[name] = digest(text)
        if any(merged_reads(text)):
            found[name] += " with reads of two wgmma that ptxas merges"
        if any(lost_operands(text)):
            found[name] += " with left operands that ptxas may overwrite"
        if folder:
            file = Path(folder) / f"{found[name]}.ptx"
            file.write_text(normalized(text))
    return found
