"""Linking where the address space has only small gaps far from one another, as beside CUDA."""

import subprocess
import sys

import pytest

# Compiles a kernel, takes the whole address space but for gaps of two pages that are 8 GB apart,
# and lets the kernel be linked.
SCRIPT = """
import ctypes
import numpy as np
import tkc
from tkc.codegen.cpu import host, running

@tkc.jit
def kernel(x, y):
    i = tkc.program_id(0) * 64
    tkc.store(y, i, tkc.exp(tkc.load(x, i, 64)) * 1.2345 + tkc.sin(tkc.load(x, i, 64)))

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PRIVATE_ANONYMOUS_NORESERVE, FAILED = 0x4022, ctypes.c_void_p(-1).value
linked, first = host.link, []

def link(image, names):
    size = 1 << 46
    while size >= 1 << 12:
        at = libc.mmap(None, size, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        if at in (None, FAILED):
            size >>= 1
        elif not first:
            first.append(at)
    for gap in range(200):
        libc.munmap(first[0] + gap * (8 << 30), 8 << 10)
    return linked(image, names)

running.link = link
host.engine()
x = np.linspace(0, 1, 64, dtype=np.float32)
y = np.zeros_like(x)
kernel[(1,)](x, y)
print("right" if np.allclose(y, np.exp(x) * 1.2345 + np.sin(x), atol=1e-5) else "wrong")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the flags of mmap are Linux's")
def test_sections_stay_together():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout.strip()) == (0, "right"), run.stderr[-2000:]
