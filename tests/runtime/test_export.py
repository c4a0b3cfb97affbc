"""Exported kernels: a C program is compiled against them and run on a stub of the driver."""
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.kernels import add
from tests.runtime.stub_cuda import CUDA_H, LIBCUDA
from tkc.errors import ExportError
from tkc.ir.interface import Interface, Parameter
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.export import export, header, source
from tkc.runtime.specialize import facts
from tkc.runtime.tensor_maps import describe

CC = shutil.which("cc") or shutil.which("gcc")
needs_c = pytest.mark.skipif(CC is None, reason="no C compiler here")
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]


def built(folder: Path, sources: list[Path], main: str, sizes) -> list[str]:
    """Lines that the program prints."""
    (folder / "cuda.h").write_text(CUDA_H); (folder / "libcuda.c").write_text(LIBCUDA); (folder / "main.c").write_text(main)
    files = [*map(str, sources), str(folder / "libcuda.c"), str(folder / "main.c")]
    done = subprocess.run([CC, *FLAGS, f"-DSIZES={','.join(map(str, sizes)) or 0}", f"-I{folder}", *files, "-o", str(folder / "program")], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return subprocess.run([str(folder / "program")], capture_output=True, text=True, check=True).stdout.splitlines()


def hexed(*pieces: bytes) -> list[str]: return ["parameter " + p.hex(" ") for p in pieces]


@needs_c
def test_a_c_program_launches_a_compiled_kernel(tmp_path):
    paths = export(add, "f32[1024]", "f32[1024]", "f32[1024]", "i32", target="sm_80", path=tmp_path)
    assert [p.name for p in paths] == ["add.sm_80.ptx", "add.json", "add.h", "add.c"]
    description = json.loads(paths[1].read_text())
    interface = Interface.from_json(description["interface"])
    lines = built(tmp_path, [paths[3]], r"""
        #include <stdio.h>
        #include "add.h"
        int main(void) {
            tkc_add k;
            tkc_array x = { 0x10000, { 1024 }, { 1 } }, y = { 0x20000, { 1024 }, { 1 } }, out = { 0x30000, { 1024 }, { 1 } };
            tkc_array odd = { 0x10004, { 1024 }, { 1 } }, strided = { 0x10000, { 1024 }, { 2 } }, ragged = { 0x10000, { 1000 }, { 1 } };
            unsigned grid[3] = { 16, 1, 1 }, empty[3] = { 16, 0, 1 }, huge[3] = { 1, 70000, 1 };
            if (tkc_add_load(&k)) return 1;
            printf("%d\n", tkc_add_launch(&k, grid, (CUstream)77, &x, &y, &out, 1000));
            printf("%d\n", tkc_add_launch(&k, empty, 0, &x, &y, &out, 1000));
            printf("%d %s\n", tkc_add_launch(&k, huge, 0, &x, &y, &out, 1000), tkc_add_error());
            printf("%d %s\n", tkc_add_launch(&k, grid, 0, &odd, &y, &out, 1000), tkc_add_error());
            printf("%d %s\n", tkc_add_launch(&k, grid, 0, &x, &strided, &out, 1000), tkc_add_error());
            printf("%d %s\n", tkc_add_launch(&k, grid, 0, &x, &y, &ragged, 1000), tkc_add_error());
            return tkc_add_unload(&k);
        }""", [p.size for p in interface.parameters])
    ptx = paths[0].read_text()
    values = {"pointer": lambda p: struct.pack("<Q", 0x10000 * (p.argument + 1)), "scalar": lambda p: struct.pack("<i", 1000), "shape": lambda p: (1024).to_bytes(p.size, "little"),
              "stride": lambda p: (1).to_bytes(p.size, "little"), "grid": lambda p: ((16, 1, 1)[p.axis]).to_bytes(p.size, "little")}
    n = len(interface.parameters)
    assert lines[:2] == [f"load {len(ptx.encode())}", f"function {interface.entry}"]
    assert lines[2] == f"launch 16 1 1 x {interface.threads} shared {interface.shared_bytes} stream 77 cluster 1 1"
    assert lines[3:3 + n] == hexed(*(values[p.kind](p) for p in interface.parameters))
    rest = lines[3 + n:]
    assert rest[:2] == ["0", "0"]
    assert [r[:1] for r in rest[2:6]] == ["1"] * 4 and rest[6] == "unload"
    for line, words in zip(rest[2:6], ("grid is too large", "argument x: expected an address that is a multiple of 16", "argument y: expected strides[0] to be 1", "argument out: expected shape[0]")):
        assert words in line


PARAMETERS = (Parameter("map", "b8[128]", 0, element="bf16", box=(64, 128), swizzle=128, panelled=True), Parameter("map", "b8[128]", 1, element="f32", box=(1, 32, 32), swizzle=128),
              Parameter("map", "b8[128]", 0, element="bf16", box=(8, 256), swizzle=128), Parameter("workspace", "u64", bytes=512), Parameter("grid", "u32", axis=1), Parameter("workspace", "u64", bytes=10), Parameter("scalar", "f64", 2), Parameter("stride", "s32", 1, 0))
ARRAYS = (ArrayInfo(0x10000, (100, 256), (512, 1), "bfloat16", 0), ArrayInfo(0x20000, (1, 40, 36), (7, 64, 1), "float32", 0))


@needs_c
@pytest.mark.parametrize("cluster,persistent,grid", [((1, 1), False, (3, 4, 5)), ((2, 1), False, (3, 4, 5)), ((1, 1), True, (3, 40, 5)), ((2, 1), True, (3, 1, 1)), ((2, 2), True, (100, 9, 1))])
def test_maps_grids_and_workspaces_are_those_of_the_python_launcher(tmp_path, gpu, cluster, persistent, grid):
    from tkc.runtime import driver
    from tkc.runtime.launch import launch
    interface = Interface("entry", "sm_90a", 384, 100000, cluster, persistent, PARAMETERS)
    arguments = [("a", facts(ARRAYS[0])), ("grid", facts(ARRAYS[1])), ("p1", ("scalar", "float64", 1))]
    (tmp_path / "k.h").write_text(header("k", interface, arguments)); (tmp_path / "k.c").write_text(source("k", interface, arguments, '// "text"\t\\ ??/\n.entry entry'))
    array = lambda i: f"{{ {i.pointer}, {{ {', '.join(map(str, i.shape))} }}, {{ {', '.join(map(str, i.strides))} }} }}"
    lines = built(tmp_path, [tmp_path / "k.c"], f"""
        #include "k.h"
        int main(void) {{
            tkc_k k; tkc_array a = {array(ARRAYS[0])}, b = {array(ARRAYS[1])}; unsigned g[3] = {{ {', '.join(map(str, grid))} }};
            return tkc_k_load(&k) || tkc_k_launch(&k, g, 0, &a, &b, 0.5) || tkc_k_unload(&k);
        }}""", [p.size for p in PARAMETERS])
    gpu.sizes = [p.size for p in PARAMETERS]
    launch(interface, driver.load(b"", "entry", 0, 100000), [*ARRAYS, 0.5], grid)
    _, (x, y, z), *_, given = gpu.named("launch")[0][:6]
    maps = [describe(p, ARRAYS[p.argument], "x") for p in PARAMETERS if p.kind == "map"]
    text = lambda words: " ".join(map(str, words))
    steps = lambda m: [s if n > 1 else 16 for n, s in zip(m.extents[1:], m.strides)]
    assert [line for line in lines if line.startswith("map")] == [f"map {m.pointer} : {text(m.extents)} : {text(steps(m))} : {text(m.box)} : 3" for m in maps]
    assert f"launch {x} {y} {z} x 384 shared 100000 stream 0 cluster {cluster[0]} {cluster[1]}" in lines
    assert "attribute 8 = 100000" in lines and "allocate 768" in lines and "clear 768" in lines and lines[-2:] == ["free", "unload"]
    at = next(i for i, line in enumerate(lines) if line.startswith("launch"))
    assert [lines[at + 5], *lines[at + 7:at + 9]] == hexed(given[4], *given[6:])
    assert [lines[at + 4], lines[at + 6]] == hexed(*((0x7000 + n).to_bytes(8, "little") for n in (0, 512)))
    assert [int.from_bytes(given[n], "little") - 0x7000_0000_0000 for n in (3, 5)] == [0, 512]


def _real_headers() -> str | None:
    return next((os.path.dirname(p) for root in sys.path for p in glob.glob(f"{root}/nvidia/cu*/include/cuda.h")), None)


@needs_c
@pytest.mark.skipif(_real_headers() is None, reason="NVIDIA's cuda.h is not installed")
def test_the_c_is_right_with_the_real_header(tmp_path):
    for name, cluster in (("k", (2, 1)), ("l", (1, 1))):
        interface = Interface("entry", "sm_90a", 384, 100000, cluster, True, PARAMETERS)
        arguments = [("a", facts(ARRAYS[0])), ("b", facts(ARRAYS[1])), ("c", ("scalar", "float64", 1))]
        (tmp_path / f"{name}.h").write_text(header(name, interface, arguments)); (tmp_path / f"{name}.c").write_text(source(name, interface, arguments, ".entry entry"))
        done = subprocess.run([CC, *FLAGS, f"-I{_real_headers()}", "-c", str(tmp_path / f"{name}.c"), "-o", str(tmp_path / "k.o")], capture_output=True, text=True)
        assert not done.returncode, done.stderr


@pytest.mark.parametrize("name", ["../x", "/abs", "a b", "", "a\0b", "int", "9a", "ä", "x" * 129, "x" * 10000, "a-b"])
def test_names_that_c_or_a_directory_would_take_amiss(tmp_path, name):
    with pytest.raises(ExportError if name else ExportError, match="cannot name"): export(add, "f32[4]", "f32[4]", "f32[4]", "i32", target="sm_80", path=tmp_path, name=name or " ")
    assert not list(tmp_path.iterdir())


def test_files_are_not_overwritten_unasked(tmp_path):
    arguments = ("f32[4]", "f32[4]", "f32[4]", "i32")
    export(add, *arguments, target="sm_80", path=tmp_path / "deep" / "er", name="mine")
    with pytest.raises(ExportError, match="overwrite=True"): export(add, *arguments, target="sm_80", path=tmp_path / "deep" / "er", name="mine")
    export(add, *arguments, target="sm_80", path=tmp_path / "deep" / "er", name="mine", overwrite=True)


def test_a_link_out_of_the_directory_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "add.c").symlink_to(victim)
    with pytest.raises(ExportError, match="link"): export(add, "f32[4]", "f32[4]", "f32[4]", "i32", target="sm_80", path=tmp_path / "out", overwrite=True)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("target", ["cpu", "sm_70", "../sm_80"])
def test_other_targets(tmp_path, target):
    with pytest.raises(ExportError, match="sm_90a"): export(add, "f32[4]", "f32[4]", "f32[4]", "i32", target=target, path=tmp_path)
