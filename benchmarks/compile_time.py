"""From the start of a Python process to the PTX of `matmul`, with an empty and with a filled disk cache."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import numpy as np, ml_dtypes
from matmul import matmul
a, b, c = (np.zeros((1024, 1024), ml_dtypes.bfloat16) for _ in range(3))
ptx = matmul.compile(a, b, c, target={target!r}).ptx
assert ".entry" in ptx
"""


def start(target: str, cache: Path) -> None:
    """One process; its standard error is shown if it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]), "TKC_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(target=target)], env=environment, capture_output=True, text=True)
    if done.returncode: raise RuntimeError(harness.last_words(done.stderr, done.returncode))


def contest(seed: int, target: str = "sm_80") -> Contest:
    folder = Path(tempfile.mkdtemp(prefix="tkc-cache-"))

    def cold() -> None:
        shutil.rmtree(folder / "cold", ignore_errors=True)
        start(target, folder / "cold")

    def warm() -> Runner:
        start(target, folder / "warm")
        return Runner(lambda: start(target, folder / "warm"))

    imports = "import numpy, ml_dtypes, tkc"
    return Contest("compile-time", f"Process start to the PTX of matmul for {target}", (
        Contestant("tkc, empty cache", lambda: Runner(cold), "ours"),
        Contestant("tkc, filled cache", warm, "ours"),
        Contestant(imports, lambda: Runner(lambda: subprocess.run([sys.executable, "-c", imports], cwd=ROOT, check=True)), "bound"),
    ), lambda run: harness.host_timer(run, 1), "Wall time of one process", figures=(
        harness.time_at_most("tkc, empty cache", 1.2, "empty cache: 1.2 s at most"),
        harness.time_at_most("tkc, filled cache", 0.5, "filled cache: 0.5 s at most")))
