"""The time that Triton itself takes for the launches of a script, in a process of its own.

    times("script.py", ["--fast"])       {"add(*float32[1024] …)": 3.2e-06, …}

The script runs with Triton as it is; then the last launch of each kernel with arguments of the same
types and extents is made again and again. What it printed is not shown.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

MAX_SECONDS = 600.0  # seconds of the script and of measuring
MILLISECONDS = 1e-3


def is_installed() -> bool:
    """Whether `import triton` finds Triton."""
    return importlib.util.find_spec("triton") is not None


def named(kernel: str, arguments: Mapping[str, Any]) -> str:
    """What a launch is called on both sides: the kernel, its tensors' types and extents, and its
    numbers; not its compile-time values, which each side may tune.
    """
    return f"{kernel}({' '.join(_described(n, v) for n, v in arguments.items())})"


def _described(name: str, value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{name}={str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{name}={value if isinstance(value, (bool, int, float, type(None))) else '…'}"


def times(path: str, arguments: Sequence[str]) -> dict[str, float]:
    """Seconds of each launch by what it is called; none where the script fails with Triton."""
    with tempfile.TemporaryDirectory() as room:
        found = Path(room, "times.json")
        try:
            subprocess.run(
                [sys.executable, "-m", "tkc.tools.triton_itself", str(found), path, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=MAX_SECONDS,
                # its own folder, as Python gives a script
                env=os.environ | {"PYTHONPATH": _path_of(path)},
            )
        except subprocess.TimeoutExpired:
            return {}
        return json.loads(found.read_text()) if found.exists() else {}


def _path_of(script: str) -> str:
    here = str(Path(script).resolve().parent)
    return os.pathsep.join([here, *filter(None, sys.path)])


def main(found: str, path: str, arguments: Sequence[str]) -> None:
    """In the other process."""
    # by name: Triton is not a package that tkc needs
    JITFunction = importlib.import_module("triton.runtime.jit").JITFunction
    do_bench = importlib.import_module("triton.testing").do_bench

    launches: dict[str, tuple[Any, Any, tuple, dict]] = {}
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if not warmup:
            given = dict(zip(self.arg_names, args, strict=False)) | kwargs
            fixed = {p.name for p in self.params if p.is_constexpr}
            plain = {n: given[n] for n in self.arg_names if n in given and n not in fixed}
            launches[named(self.fn.__name__, plain)] = self, grid, args, kwargs
        return launch(self, *args, grid=grid, warmup=warmup, **kwargs)

    JITFunction.run = run
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")
    JITFunction.run = launch
    seconds = {}
    for name, (kernel, grid, args, kwargs) in launches.items():
        again = partial(kernel.run, *args, grid=grid, **kwargs)
        seconds[name] = do_bench(again, warmup=5, rep=50, return_mode="median") * MILLISECONDS
    Path(found).write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
