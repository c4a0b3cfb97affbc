"""The hard trials of the cache, of forks and of the compiler's determinism: `make trials`.

    python -m benchmarks.trials

32 processes share 200 keys, 1000 writers are killed, PTX is emitted under 20 hash seeds, kernels
run in forks. Each trial gives the number of its faults; the tests run the same in small.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tkc.runtime.cache import DiskCache

ROOT = Path(__file__).resolve().parents[1]

SHARING = """
import random, sys
from pathlib import Path
from tkc.runtime.cache import DiskCache
path, seed, count, steps, megabytes = sys.argv[1], *map(int, sys.argv[2:])
disk, r = DiskCache(Path(path), megabytes=megabytes), random.Random(seed)
keys = [f"{i:064x}" for i in range(count)]
for _ in range(steps):
    k = r.choice(keys)
    data = k.encode() * (1 + int(k, 16) % 97)
    if r.random() < .5:
        disk.put(k, {"data": data})
    else:
        found = disk.get(k)
        assert found is None or found == {"data": data}, k
"""

WRITING = """
import sys
from pathlib import Path
from tkc.runtime.cache import DiskCache
d, k = DiskCache(Path(sys.argv[1])), sys.argv[2]
print("go", flush=True)
n = 0
while 1: n += 1; d.put(k, {"data": bytes([n % 251]) * 300_000, "n": str(n % 251).encode()})
"""

SUITE = """
import hashlib
import numpy as np
from tests.language import kernels as K
from tkc.runtime.jit import JitFunction
texts = []
for target in ("sm_80", "sm_89", "sm_90a"):

    def emit(kernel, *signature, **constants):
        compiled = JitFunction(kernel).compile(*signature, **constants, target=target)
        texts.append(compiled.ptx)

    emit(K.add, *["f32[1000]"] * 3, "i32")
    emit(K.matmul, *["bf16[512, 512]"] * 3)
    emit(K.attention, *["bf16[2, 4, 256, 64]"] * 4, "f32", True, 64)
    x, dt, bc = "f32[1, 100, 2, 32]", "f32[1, 100, 2]", "f32[1, 100, 64]"
    emit(K.mamba2, x, dt, "f32[2]", bc, bc, x, L=32, N=64, P=32)
    emit(K.histogram, "i32[1000]", "i32[10]", 10, BLOCK=256)
print(hashlib.sha256(chr(0).join(texts).encode()).hexdigest())
"""

FORKED = """
import os, sys
import numpy as np
from tests.runtime.kernels import add, grid
x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
add[grid](x, x, out, 1000)
faults = 0
for i in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        y, o = np.full(500 + i, 3, np.float32), np.zeros(500 + i, np.float32)
        add[grid](x, x, out, 1000)                                 # known to the parent
        add[grid](y, y, o, len(y), BLOCK=128)                      # new to it
        os._exit(0 if (o == 6).all() and (out == 2).all() else 1)
    faults += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
sys.exit(faults)
"""


def _run(program: str, *arguments, **more) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | more.pop("environment", {}),
        **more,
    )


def shared_directory(
    folder: Path, processes: int = 32, keys: int = 200, rounds: int = 400, megabytes: int = 1
) -> int:
    """Processes read, write and drop entries of one directory at once: how many read something
    wrong, raised, or left a file behind.
    """
    running = [_run(SHARING, folder, i, keys, rounds, megabytes) for i in range(processes)]
    return sum(p.wait() != 0 for p in running) + len(list(folder.glob("*/.new-*")))


def killed_writers(folder: Path, kills: int = 1000) -> int:
    """A process that writes one entry over and over is killed at random: how often the entry was
    neither absent nor whole.
    """
    disk, r, key, faults = DiskCache(folder), random.Random(0), "ab" * 32, 0
    for _ in range(kills):
        p = _run(WRITING, folder, key, stdout=subprocess.PIPE)
        p.stdout.readline()
        time.sleep(r.random() * 0.01)
        p.kill()
        p.wait()
        p.stdout.close()
        found = disk.get(key)
        faults += found is not None and found["data"] != bytes([int(found["n"])]) * 300_000
        for left in folder.glob("*/.new-*"):
            left.unlink()  # a killed writer cannot clear up; the next compiler ignores them
    return faults


def ptx_of_suite(seed: int) -> str:
    """The hash of the PTX of fifteen kernels, compiled under a hash seed."""
    p = _run(
        SUITE, stdout=subprocess.PIPE, environment={"PYTHONHASHSEED": str(seed), "TKC_CACHE": "0"}
    )
    text = p.communicate()[0].decode().strip()
    if p.returncode or len(text) != 64:
        raise RuntimeError(f"the suite did not compile under hash seed {seed}")
    return text


def forked_children(folder: Path, children: int = 32) -> int:
    """Children of a process that has compiled and run: how many failed to do so too."""
    p = _run(FORKED, children, environment={"TKC_CACHE_DIR": str(folder)}, start_new_session=True)
    try:
        return p.wait(60 + 2 * children)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)  # its own session: the children that hang too
        return children


def trials() -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory(prefix="tkc-trials-") as folder:
        yield "32 processes x 200 keys x 400 calls, 1 MiB", shared_directory(Path(folder, "shared"))
        yield (
            "32 processes x 200 keys x 400 calls, 64 MiB",
            shared_directory(Path(folder, "roomy"), megabytes=64),
        )
        yield "1000 writers killed", killed_writers(Path(folder, "killed"))
        yield "15 kernels, 20 hash seeds", len({ptx_of_suite(s) for s in range(20)}) - 1
        yield "32 forked children", forked_children(Path(folder, "forked"))


if __name__ == "__main__":
    failed = 0
    for name, faults in trials():
        failed += faults
        print(f"{name:<48} {faults} faults", flush=True)
    sys.exit(failed > 0)
