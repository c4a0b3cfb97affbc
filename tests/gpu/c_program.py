"""A C program round an exported kernel: it reads arrays from files, launches, writes them back.
(tests/gpu/test_export.py runs it, tests/runtime/test_export.py only compiles it.)
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from tkc.runtime.arrays import contiguous

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def headers() -> str | None:
    """A directory with NVIDIA's cuda.h: of the toolkit, of the wheels, of Triton."""
    places = [
        os.path.join(os.environ.get(v, "/nowhere"), "include") for v in ("CUDA_HOME", "CUDA_PATH")
    ] + ["/usr/local/cuda/include"]
    for root in sys.path:
        places += sorted(glob.glob(f"{root}/nvidia/*/include")) + [
            f"{root}/triton/backends/nvidia/include"
        ]
    return next((p for p in places if os.path.isfile(f"{p}/cuda.h")), None)


def library() -> str | None:
    """The driver's library."""
    listed = (
        subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
        if shutil.which("ldconfig")
        else ""
    )
    found = [line.split()[-1] for line in listed.splitlines() if "libcuda.so.1 " in line]
    return next(
        (
            p
            for p in [
                *found,
                "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                "/usr/lib64/libcuda.so.1",
                "/usr/local/nvidia/lib64/libcuda.so.1",
            ]
            if os.path.exists(p)
        ),
        None,
    )


def program(name: str, arguments: dict, grid: tuple[int, int, int]) -> str:
    """The C text. arguments: NumPy arrays, read from and written to <argument>.bin, or numbers."""
    arrays = {n: a for n, a in arguments.items() if isinstance(a, np.ndarray)}
    words = ", ".join(f"&{n}" if n in arrays else repr(v) for n, v in arguments.items())

    def numbers(values):
        return ", ".join(map(str, values))

    declared = "\n    ".join(
        f"tkc_array {n} = {{ 0, {{ {numbers(a.shape)} }}, {{ {numbers(contiguous(a.shape))} }} }};"
        f' {n}.data = moved("{n}.bin", 0, {a.nbytes});'
        for n, a in arrays.items()
    )
    written = "\n    ".join(f'moved("{n}.bin", {n}.data, {a.nbytes});' for n, a in arrays.items())
    first = next(iter(arrays))
    return f"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "{name}.h"

static void must(CUresult e, const char *what)
{{
    if (!e) return;
    fprintf(stderr, "%s gave %d: %s\\n", what, e, tkc_{name}_error());
    exit(1);
}}

/* A file's bytes to new memory of the device, or back. */
static CUdeviceptr moved(const char *path, CUdeviceptr p, size_t n)
{{
    void *bytes = malloc(n);
    FILE *f = fopen(path, p ? "wb" : "rb");
    if (!bytes || !f) exit(2);
    if (p) {{
        must(cuMemcpyDtoH(bytes, p, n), "copying back");
        if (fwrite(bytes, 1, n, f) != n) exit(2);
    }} else {{
        must(cuMemAlloc(&p, n), "allocating");
        if (fread(bytes, 1, n, f) != n) exit(2);
        must(cuMemcpyHtoD(p, bytes, n), "copying");
    }}
    fclose(f);
    free(bytes);
    return p;
}}

static void report(int status)
{{
    printf("%d %s\\n", status, tkc_{name}_error());
}}

int main(void)
{{
    CUdevice device; CUcontext context; CUstream stream; tkc_{name} kernel;
    must(cuInit(0), "starting");
    must(cuDeviceGet(&device, 0), "finding a GPU");
    must(cuDevicePrimaryCtxRetain(&context, device), "using it");
    must(cuCtxSetCurrent(context), "using it");
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream");
    {declared}
    unsigned grid[3] = {{ {numbers(grid)} }}, huge[3] = {{ 70000, 70000, 70000 }};
    must(tkc_{name}_load(&kernel), "loading");
    /* the workspace is as it was each time */
    for (int i = 0; i < 3; i++)
        must(tkc_{name}_launch(&kernel, grid, stream, {words}), "launching");
    must(cuStreamSynchronize(stream), "running");
    tkc_array kept = {first};
    {first}.data += 2;
    report(tkc_{name}_launch(&kernel, grid, stream, {words}));
    {first} = kept;
    {first}.shape[0] = -1;
    report(tkc_{name}_launch(&kernel, grid, stream, {words}));
    {first} = kept;
    report(tkc_{name}_launch(&kernel, huge, stream, {words}));
    {written}
    must(tkc_{name}_unload(&kernel), "unloading");
    return 0;
}}
"""


def build(
    folder: Path, name: str, arguments: dict, grid: tuple[int, int, int], link: bool = True
) -> Path:
    """Compiles the program beside the exported files; without `link` only to an object. Raises
    AssertionError with what the compiler said.
    """
    (folder / "main.c").write_text(program(name, arguments, grid))
    made = folder / ("program" if link else "main.o")
    parts = (
        [str(folder / "main.c"), str(folder / f"{name}.c"), library()]
        if link
        else ["-c", str(folder / "main.c")]
    )
    done = subprocess.run(
        [
            CC,
            "-std=c11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{headers()}",
            f"-I{folder}",
            *parts,
            "-o",
            str(made),
        ],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return made


def run(
    folder: Path, name: str, arguments: dict, grid: tuple[int, int, int]
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Lines that the program printed, and the arrays afterwards."""
    for n, a in arguments.items():
        if isinstance(a, np.ndarray):
            (folder / f"{n}.bin").write_bytes(np.ascontiguousarray(a).tobytes())
    done = subprocess.run(
        [str(build(folder, name, arguments, grid))],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines(), {
        n: np.frombuffer((folder / f"{n}.bin").read_bytes(), a.dtype).reshape(a.shape)
        for n, a in arguments.items()
        if isinstance(a, np.ndarray)
    }
