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

import tkc
from benchmarks.harness import example
from tests.runtime.fake_driver import FakeTensor
from tests.runtime.kernels import add
from tests.runtime.stub_cuda import CUDA_H, LIBCUDA
from tkc.codegen.ptx.ptxas import find
from tkc.errors import ExportError
from tkc.ir.interface import Interface, Parameter
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.export import export, header, source
from tkc.runtime.specialize import facts
from tkc.runtime.tensor_maps import describe, promotion

CC = shutil.which("cc") or shutil.which("gcc")
needs_c = pytest.mark.skipif(CC is None, reason="no C compiler here")
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]


def built(folder: Path, sources: list[Path], main: str, sizes) -> list[str]:
    """Lines that the program prints."""
    (folder / "cuda.h").write_text(CUDA_H)
    (folder / "libcuda.c").write_text(LIBCUDA)
    (folder / "main.c").write_text(main)
    files = [*map(str, sources), str(folder / "libcuda.c"), str(folder / "main.c")]
    done = subprocess.run(
        [
            CC,
            *FLAGS,
            f"-DSIZES={','.join(map(str, sizes)) or 0}",
            f"-I{folder}",
            *files,
            "-o",
            str(folder / "program"),
        ],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return subprocess.run(
        [str(folder / "program")], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def hexed(*pieces: bytes) -> list[str]:
    return ["parameter " + p.hex(" ") for p in pieces]


@needs_c
def test_a_c_program_launches_a_compiled_kernel(tmp_path):
    paths = export(add, "f32[1024]", "f32[1024]", "f32[1024]", "i32", target="sm_80", path=tmp_path)
    assert [p.name for p in paths] == [
        "add.sm_80.ptx",
        *["add.sm_80.cubin"] * (find("ptxas") is not None),
        "add.json",
        "add.h",
        "add.c",
    ]
    paths = [p for p in paths if p.suffix != ".cubin"]
    description = json.loads(paths[1].read_text())
    interface = Interface.from_json(description["interface"])
    lines = built(
        tmp_path,
        [paths[3]],
        r"""
        #include <stdio.h>
        #include "add.h"
        static void refused(int status) { printf("%d %s\n", status, tkc_add_error()); }
        int main(void) {
            tkc_add k;
            tkc_array x = { 0x10000, { 1024 }, { 1 } };
            tkc_array y = { 0x20000, { 1024 }, { 1 } };
            tkc_array out = { 0x30000, { 1024 }, { 1 } };
            tkc_array odd = { 0x10004, { 1024 }, { 1 } };
            tkc_array strided = { 0x10000, { 1024 }, { 2 } };
            tkc_array ragged = { 0x10000, { 1000 }, { 1 } };
            unsigned grid[3] = { 16, 1, 1 }, empty[3] = { 16, 0, 1 }, huge[3] = { 1, 70000, 1 };
            if (tkc_add_load(&k)) return 1;
            printf("%d\n", tkc_add_launch(&k, grid, (CUstream)77, &x, &y, &out, 1000));
            printf("%d\n", tkc_add_launch(&k, empty, 0, &x, &y, &out, 1000));
            refused(tkc_add_launch(&k, huge, 0, &x, &y, &out, 1000));
            refused(tkc_add_launch(&k, grid, 0, &odd, &y, &out, 1000));
            refused(tkc_add_launch(&k, grid, 0, &x, &strided, &out, 1000));
            refused(tkc_add_launch(&k, grid, 0, &x, &y, &ragged, 1000));
            return tkc_add_unload(&k);
        }""",
        [p.size for p in interface.parameters],
    )
    ptx = paths[0].read_text()
    values = {
        "pointer": lambda p: struct.pack("<Q", 0x10000 * (p.argument + 1)),
        "scalar": lambda p: struct.pack("<i", 1000),
        "shape": lambda p: (1024).to_bytes(p.size, "little"),
        "stride": lambda p: (1).to_bytes(p.size, "little"),
        "grid": lambda p: ((16, 1, 1)[p.axis]).to_bytes(p.size, "little"),
    }
    n = len(interface.parameters)
    assert lines[:2] == [
        "load code" if find("ptxas") else f"load {len(ptx.encode())}",
        f"function {interface.entry}",
    ]
    assert (
        lines[2] == f"launch 16 1 1 x {interface.threads} shared {interface.shared_bytes} stream 77"
        " cluster 1 1"
    )
    assert lines[3 : 3 + n] == hexed(*(values[p.kind](p) for p in interface.parameters))
    rest = lines[3 + n :]
    assert rest[:2] == ["0", "0"]
    assert [r[:1] for r in rest[2:6]] == ["1"] * 4 and rest[6] == "unload"
    for line, words in zip(
        rest[2:6],
        (
            "grid is too large",
            "argument x: expected an address that is a multiple of 16",
            "argument y: expected strides[0] to be 1",
            "argument out: expected shape[0]",
        ),
        strict=False,
    ):
        assert words in line


@needs_c
def test_a_step_of_zero_is_refused(tmp_path):
    @tkc.jit
    def stepping(out, n, step):
        total = tkc.zeros((1,), tkc.int32)
        for i in range(0, n, step):
            total = total + i
        tkc.store(out.ptr + tkc.arange(1), total)

    path = export(stepping, "i32[256]", "i32", "i32", target="sm_80", path=tmp_path)[-1]
    lines = built(
        tmp_path,
        [path],
        r"""
        #include <stdio.h>
        #include "stepping.h"
        int main(void) {
            tkc_stepping k;
            tkc_array out = { 0x10000, { 256 }, { 1 } };
            unsigned grid[3] = { 1, 1, 1 };
            if (tkc_stepping_load(&k)) return 1;
            int status = tkc_stepping_launch(&k, grid, 0, &out, 100, 0);
            printf("%d %s\n", status, tkc_stepping_error());
            printf("%d\n", tkc_stepping_launch(&k, grid, 0, &out, 100, -3));
            return 0;
        }""",
        [],
    )
    assert lines[2] == "1 stepping: argument step: the step of a range may not be 0"
    assert lines[-1] == "0"


@needs_c
def test_a_negative_number_is_refused_where_the_code_knows_of_none(tmp_path):
    @tkc.jit
    def filling(out, n):
        tkc.store(out.ptr + tkc.arange(64), n)

    path = export(filling, "i32[64]", "i32+", target="sm_80", path=tmp_path)[-1]
    lines = built(
        tmp_path,
        [path],
        r"""
        #include <stdio.h>
        #include "filling.h"
        int main(void) {
            tkc_filling k;
            tkc_array out = { 0x10000, { 64 }, { 1 } };
            unsigned grid[3] = { 1, 1, 1 };
            if (tkc_filling_load(&k)) return 1;
            int status = tkc_filling_launch(&k, grid, 0, &out, -5);
            printf("%d %s\n", status, tkc_filling_error());
            printf("%d\n", tkc_filling_launch(&k, grid, 0, &out, 5));
            return 0;
        }""",
        [],
    )
    why = "expected a number >= 0; export the kernel for other numbers too"
    assert lines[2] == f"1 filling: argument n: {why}"
    assert lines[-1] == "0"


@needs_c
def test_arrays_that_share_memory_are_refused_where_the_code_has_them_apart(tmp_path):
    """What is read alone may be given twice."""

    @tkc.jit
    def adding(x, y: tkc.pointer, out):
        i = tkc.program_id(0) * 64
        tkc.store(out, (0, i), tkc.load(x, (0, i), (2, 64)) + tkc.load(y + tkc.arange(64)))

    array = "f32[2, 63]"
    path = export(adding, array, array, array, target="sm_80", path=tmp_path)[-1]
    places = {
        (0x10000, 0x20000): "0",
        (0x10000, 0x10000): "0",
        (0x10000, 0x30000): "1 adding: arguments y and out share memory",
        (0x10000, 0x30100): "1 adding: arguments y and out share memory",
        (0x2FF00, 0x10000): "1 adding: arguments x and out share memory",
    }
    tries = [f"x.data = {x}; y.data = {y}; TRY" for x, y in places]
    lines = built(
        tmp_path,
        [path],
        r"""
        #include <stdio.h>
        #include "adding.h"
        #define TRY printf("%d %s\n", tkc_adding_launch(&k, grid, 0, &x, &y, &out), \
            tkc_adding_error());
        int main(void) {
            tkc_adding k;
            tkc_array x = { 0, { 2, 63 }, { 63, 1 } }, out = { 0x30000, { 2, 63 }, { 63, 1 } };
            tkc_array y = { 0, { 126 }, { 1 } };
            unsigned grid[3] = { 1, 1, 1 };
            if (tkc_adding_load(&k)) return 1;
            TRIES
            x.data = 0x10000; y.data = 0x20000; out.strides[0] = 16; TRY
            return 0;
        }""".replace("TRIES", "\n".join(tries)),
        [],
    )
    said = [line for line in lines if line[:2] in ("0 ", "1 ")]
    expected = [*places.values(), "1 adding: elements of argument out share memory"]
    for line, words in zip(said, expected, strict=True):
        assert line.startswith(words)


PARAMETERS = (
    Parameter("map", "b8[128]", 0, element="bf16", box=(64, 128), swizzle=128, panelled=True),
    Parameter("map", "b8[128]", 1, element="f32", box=(1, 32, 32), swizzle=128),
    Parameter("map", "b8[128]", 0, element="bf16", box=(8, 256), swizzle=128),
    Parameter("workspace", "u64", bytes=512),
    Parameter("grid", "u32", axis=1),
    Parameter("workspace", "u64", bytes=10),
    Parameter("scalar", "f64", 2),
    Parameter("stride", "s32", 1, 0),
)
ARRAYS = (
    ArrayInfo(0x10000, (100, 256), (512, 1), "bfloat16", 0),
    ArrayInfo(0x20000, (1, 40, 36), (7, 64, 1), "float32", 0),
)


@needs_c
@pytest.mark.parametrize("split", [1, 3])
def test_a_workspace_that_depends_on_the_grid(tmp_path, gpu, split):
    """Made at the launch, and anew for another number of programs; several blocks may work on one
    program.
    """
    from tkc.runtime import driver
    from tkc.runtime.launch import launch

    parameters = (
        Parameter("workspace", "u64", bytes=10),
        Parameter("workspace", "u64", each=1000),
        Parameter("workspace", "u64", each=4),
    )
    interface = Interface("entry", "sm_90a", 128, 0, (1, 1), True, parameters, split=split)
    (tmp_path / "k.h").write_text(header("k", interface, []))
    (tmp_path / "k.c").write_text(source("k", interface, [], ".entry entry"))
    lines = built(
        tmp_path,
        [tmp_path / "k.c"],
        """
        #include "k.h"
        int main(void) {
            tkc_k k; unsigned g[3] = { 3, 2, 1 }, other[3] = { 5, 1, 1 };
            return tkc_k_load(&k)
                || tkc_k_launch(&k, g, 0)
                || tkc_k_launch(&k, g, 0)
                || tkc_k_launch(&k, other, 0)
                || tkc_k_unload(&k);
        }""",
        [8, 8, 8],
    )
    gpu.sizes = [8, 8, 8]
    launch(interface, driver.load(b"", "entry", 0, 0), [], (3, 2, 1))
    ((_, (x, *_), *_, given),) = (call[:6] for call in gpu.named("launch"))
    assert [
        int.from_bytes(raw, "little") - int.from_bytes(given[0], "little") for raw in given
    ] == [0, 256, 256 + 6144]
    assert [line for line in lines if line.split()[0] in ("allocate", "clear", "free")] == [
        "allocate 6656",
        "clear 6656",
        "free",
        "allocate 5632",
        "clear 5632",
        "free",
    ]
    at = lines.index(next(line for line in lines if line.startswith("launch")))
    assert lines[at].startswith(f"launch {x} 1 1 x 128") and lines[at + 1 : at + 4] == hexed(
        *((0x7000 + place).to_bytes(8, "little") for place in (0, 256, 256 + 6144))
    )


def test_what_the_cache_reads_at_once():
    """As in tensor_maps.promotion: fewer bytes where rows cut sectors or the plan says so."""

    def text(fetch):
        return source(
            "k",
            Interface(
                "entry",
                "sm_90a",
                128,
                parameters=(
                    Parameter(
                        "map", "b8[128]", 0, element="bf16", box=(64, 64), swizzle=128, fetch=fetch
                    ),
                ),
            ),
            [("a", facts(ARRAYS[0]))],
            ".entry entry",
        )

    assert (
        "(a->strides[0] * 2) % 32 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B :"
        " CU_TENSOR_MAP_L2_PROMOTION_L2_256B" in text(0)
    )
    assert "L2_128B" in text(128) and "L2_256B" not in text(128)


@needs_c
@pytest.mark.parametrize(
    "cluster,persistent,grid,together",
    [
        ((1, 1), False, (3, 4, 5), False),
        ((2, 1), False, (3, 4, 5), False),
        ((1, 1), True, (3, 40, 5), False),
        ((1, 1), True, (3, 40, 5), True),
        ((2, 1), True, (3, 1, 1), False),
        ((2, 2), True, (100, 9, 1), False),
    ],
)
def test_maps_grids_and_workspaces_are_those_of_the_python_launcher(
    tmp_path, gpu, cluster, persistent, grid, together
):
    from tkc.runtime import driver
    from tkc.runtime.launch import launch

    interface = Interface(
        "entry", "sm_90a", 384, 100000, cluster, persistent, PARAMETERS, together=together
    )
    arguments = [
        ("a", facts(ARRAYS[0])),
        ("grid", facts(ARRAYS[1])),
        ("p1", ("scalar", "float64", 1, False)),
    ]
    (tmp_path / "k.h").write_text(header("k", interface, arguments))
    (tmp_path / "k.c").write_text(
        source("k", interface, arguments, '// "text"\t\\ ??/\n.entry entry')
    )

    def array(i):
        return (
            f"{{ {i.pointer}, {{ {', '.join(map(str, i.shape))} }}, {{"
            f" {', '.join(map(str, i.strides))} }} }}"
        )

    lines = built(
        tmp_path,
        [tmp_path / "k.c"],
        f"""
        #include "k.h"
        int main(void) {{
            tkc_k k;
            tkc_array a = {array(ARRAYS[0])}, b = {array(ARRAYS[1])};
            unsigned g[3] = {{ {", ".join(map(str, grid))} }};
            return tkc_k_load(&k) || tkc_k_launch(&k, g, 0, &a, &b, 0.5) || tkc_k_unload(&k);
        }}""",
        [p.size for p in PARAMETERS],
    )
    gpu.sizes = [p.size for p in PARAMETERS]
    launch(interface, driver.load(b"", "entry", 0, 100000), [*ARRAYS, 0.5], grid)
    _, (x, y, z), *_, given = gpu.named("launch together" if together else "launch")[0][:6]
    maps = [describe(p, ARRAYS[p.argument], "x") for p in PARAMETERS if p.kind == "map"]

    def text(words):
        return " ".join(map(str, words))

    def steps(m):
        return [s if n > 1 else 16 for n, s in zip(m.extents[1:], m.strides, strict=False)]

    assert [line for line in lines if line.startswith("map")] == [
        f"map {m.pointer} : {text(m.extents)} : {text(steps(m))} : {text(m.box)} : 3"
        f" {promotion(m.strides, m.fetch)}"
        for m in maps
    ]
    assert (
        f"launch {x} {y} {z} x 384 shared 100000 stream 0 cluster {cluster[0]} {cluster[1]}"
        in lines
        and ("together" in lines) == together
    )
    assert (
        "attribute 8 = 100000" in lines
        and "allocate 768" in lines
        and "clear 768" in lines
        and lines[-2:] == ["free", "unload"]
    )
    at = next(i for i, line in enumerate(lines) if line.startswith("launch"))
    assert [lines[at + 5], *lines[at + 7 : at + 9]] == hexed(given[4], *given[6:])
    assert [lines[at + 4], lines[at + 6]] == hexed(
        *((0x7000 + n).to_bytes(8, "little") for n in (0, 512))
    )
    assert [int.from_bytes(given[n], "little") - 0x7000_0000_0000 for n in (3, 5)] == [0, 512]


def _real_headers() -> str | None:
    return next(
        (
            os.path.dirname(p)
            for root in sys.path
            for p in glob.glob(f"{root}/nvidia/cu*/include/cuda.h")
        ),
        None,
    )


@needs_c
@pytest.mark.skipif(_real_headers() is None, reason="NVIDIA's cuda.h is not installed")
def test_the_c_is_right_with_the_real_header(tmp_path):
    for name, cluster in (("k", (2, 1)), ("l", (1, 1))):
        interface = Interface("entry", "sm_90a", 384, 100000, cluster, True, PARAMETERS)
        arguments = [
            ("a", facts(ARRAYS[0])),
            ("b", facts(ARRAYS[1])),
            ("c", ("scalar", "float64", 1, False)),
        ]
        (tmp_path / f"{name}.h").write_text(header(name, interface, arguments))
        (tmp_path / f"{name}.c").write_text(source(name, interface, arguments, ".entry entry"))
        done = subprocess.run(
            [
                CC,
                *FLAGS,
                f"-I{_real_headers()}",
                "-c",
                str(tmp_path / f"{name}.c"),
                "-o",
                str(tmp_path / "k.o"),
            ],
            capture_output=True,
            text=True,
        )
        assert not done.returncode, done.stderr


@pytest.mark.parametrize(
    "name", ["../x", "/abs", "a b", "", "a\0b", "int", "9a", "ä", "x" * 129, "x" * 10000, "a-b"]
)
def test_names_that_c_or_a_directory_would_take_amiss(tmp_path, name):
    with pytest.raises(ExportError if name else ExportError, match="cannot name"):
        export(
            add,
            "f32[4]",
            "f32[4]",
            "f32[4]",
            "i32",
            target="sm_80",
            path=tmp_path,
            name=name or " ",
        )
    assert not list(tmp_path.iterdir())


def test_files_are_not_overwritten_unasked(tmp_path):
    arguments = ("f32[4]", "f32[4]", "f32[4]", "i32")
    export(add, *arguments, target="sm_80", path=tmp_path / "deep" / "er", name="mine")
    with pytest.raises(ExportError, match="overwrite=True"):
        export(add, *arguments, target="sm_80", path=tmp_path / "deep" / "er", name="mine")
    export(
        add, *arguments, target="sm_80", path=tmp_path / "deep" / "er", name="mine", overwrite=True
    )


def test_a_link_out_of_the_directory_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "add.c").symlink_to(victim)
    with pytest.raises(ExportError, match="link"):
        export(
            add,
            "f32[4]",
            "f32[4]",
            "f32[4]",
            "i32",
            target="sm_80",
            path=tmp_path / "out",
            overwrite=True,
        )
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("target", ["cpu", "sm_70", "../sm_80"])
def test_other_targets(tmp_path, target):
    with pytest.raises(ExportError, match="sm_90a"):
        export(add, "f32[4]", "f32[4]", "f32[4]", "i32", target=target, path=tmp_path)


# ---- whole kernels: the C computes what the Python launcher computes -----------------------------
def arguments_of(kernel, values: dict) -> tuple[list[str], list[str]]:
    """C that declares the run-time arguments, and their names; arrays as FakeTensor, numbers as
    they are.
    """
    lines, names = [], []
    for name, v in values.items():
        if isinstance(v, FakeTensor):
            lines.append(
                f"tkc_array {name}_ = {{ {v.data_ptr()}ull, {{ {', '.join(map(str, v.shape))} }},"
                f" {{ {', '.join(map(str, v.stride()))} }} }};"
            )
            names.append(f"&{name}_")
        else:
            names.append(repr(v))
    return lines, names


def tensors(shape, dtype, names) -> dict:
    return {n: FakeTensor(shape, dtype, pointer=0x1000_0000 * (i + 1)) for i, n in enumerate(names)}


def cases():
    add_, matmul, attention = (
        getattr(example(m), k)
        for m, k in (("vector_add", "add"), ("matmul", "matmul"), ("attention", "attention"))
    )
    yield (
        add_,
        tensors((100_003,), "float32", ("x", "y", "out")) | {"n": 100_003},
        {"BLOCK": 1024},
        (98, 1, 1),
    )
    yield matmul, tensors((1000, 1024), "bfloat16", ("a", "b", "c")), {"RELU": True}, (8, 8, 1)
    yield (
        matmul,
        tensors((8192, 8192), "bfloat16", ("a", "b", "c")),
        {"RELU": False, "BN": 256},
        (64, 32, 1),
    )
    yield (
        attention,
        tensors((2, 8, 1000, 64), "bfloat16", ("q", "k", "v", "o")) | {"scale": 0.125},
        {"CAUSAL": False, "D": 64},
        (8, 8, 2),
    )
    yield (
        attention,
        tensors((2, 8, 4096, 128), "bfloat16", ("q", "k", "v", "o")) | {"scale": 0.125},
        {"CAUSAL": True, "D": 128},
        (32, 8, 2),
    )


CASES = list(cases())
case_of = pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{k.__name__}{i}" for i, (k, *_) in enumerate(CASES)]
)


def exported(tmp_path, number: int, target: str):
    kernel, values, constants, extents = CASES[number]
    paths = {
        p.suffix: p
        for p in export(kernel, **values, **constants, target=target, path=tmp_path, name="k")
    }
    return (
        kernel,
        values,
        constants,
        extents,
        paths,
        Interface.from_json(json.loads(paths[".json"].read_text())["interface"]),
    )


@needs_c
@case_of
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_whole_kernels_are_launched_as_from_python(tmp_path, gpu, number, target):
    kernel, values, constants, extents, paths, interface = exported(tmp_path, number, target)
    declared, names = arguments_of(kernel, values)
    lines = built(
        tmp_path,
        [paths[".c"]],
        f"""
        #include "k.h"
        int main(void) {{
            tkc_k k;
            unsigned grid[3] = {{ {", ".join(map(str, extents))} }};
            {" ".join(declared)}
            return tkc_k_load(&k)
                || tkc_k_launch(&k, grid, 0, {", ".join(names)})
                || tkc_k_unload(&k);
        }}""",
        [p.size for p in interface.parameters],
    )
    gpu.sizes = [p.size for p in interface.parameters]
    kernel.prepare(**values, **constants, grid=extents, target=target)()
    ((_, (x, y, z), (threads, *_), shared, _, given, *_),) = gpu.named("launch")
    assert (
        f"launch {x} {y} {z} x {threads} shared {shared} stream 0 cluster {interface.cluster[0]}"
        f" {interface.cluster[1]}" in lines
    )
    at = next(i for i, line in enumerate(lines) if line.startswith("launch")) + 1
    for p, line, raw in zip(interface.parameters, lines[at:], given, strict=False):
        if p.kind not in ("map", "workspace"):
            assert [line] == hexed(raw), p
    maps = [line for line in lines if line.startswith("map")]
    assert len(maps) == len(gpu.maps)

    def text(words):
        return " ".join(map(str, words))

    for line, (_, rank, pointer, extents_, strides, box, *_, _swizzle, _, _) in zip(
        maps, gpu.maps, strict=False
    ):
        assert line.startswith(
            f"map {pointer} : {text(extents_)} : {text(strides[: rank - 1])} : {text(box)} :"
        )
    total = sum(-(-p.bytes // 256) * 256 for p in interface.parameters if p.kind == "workspace")
    assert (f"allocate {total}" in lines and f"clear {total}" in lines) == (total > 0)
    if target == "sm_90a" and kernel.__name__ != "add":
        assert maps and interface.persistent


@needs_c
@case_of
def test_whole_kernels_refuse_what_they_were_not_compiled_for(tmp_path, number):
    kernel, values, constants, extents, paths, interface = exported(tmp_path, number, "sm_90a")
    declared, names = arguments_of(kernel, values)
    first = next(n for n, v in values.items() if isinstance(v, FakeTensor))
    spoiled = [
        ("data += 4", "multiple of 16"),
        ("shape[0] = -64", "an extent is negative"),
        ("data = 0", "its address is 0"),
        (f"strides[{len(values[first].shape) - 1}] = 2", "strides"),
    ]
    tries = "\n".join(
        f'{{ tkc_array kept = {first}_; {first}_.{change}; printf("%d %s\\n", tkc_k_launch(&k,'
        f" grid, 0, {', '.join(names)}), tkc_k_error()); {first}_ = kept; }}"
        for change, _ in spoiled
    )
    lines = built(
        tmp_path,
        [paths[".c"]],
        f"""
        #include <stdio.h>
        #include "k.h"
        int main(void) {{
            tkc_k k;
            unsigned grid[3] = {{ {", ".join(map(str, extents))} }};
            unsigned huge[3] = {{ 70000, 70000, 70000 }};
            {" ".join(declared)}
            tkc_k_load(&k);
            {tries}
            printf("%d %s\\n", tkc_k_launch(&k, huge, 0, {", ".join(names)}), tkc_k_error());
            return tkc_k_unload(&k);
        }}""",
        [],
    )
    said = [line for line in lines if line.startswith("1 k: ")]
    assert len(said) == 5 and not [line for line in lines if line.startswith("launch")]
    for line, (_, words) in zip(said, spoiled, strict=False):
        assert words in line
    assert "the grid is too large" in said[4]


@needs_c
def test_whole_kernels_refuse_arrays_that_32_bits_do_not_describe(tmp_path):
    """Of few bytes too: a row seen often, the only one of a large array."""
    kernel, _, constants, extents = CASES[-1]
    values = tensors((1, 8, 4096, 128), "bfloat16", ("q", "k", "v", "o")) | {"scale": 0.125}
    made = export(kernel, **values, **constants, target="sm_80", path=tmp_path, name="k")
    paths = {p.suffix: p for p in made}
    declared, names = arguments_of(kernel, values)
    spoiled = ("shape[1] = 1LL << 32; q_.strides[1] = 0", "strides[0] = 1LL << 32")
    tries = "\n".join(
        f'{{ tkc_array kept = q_; q_.{change}; printf("%d %s\\n", tkc_k_launch(&k, grid, 0,'
        f" {', '.join(names)}), tkc_k_error()); q_ = kept; }}"
        for change in spoiled
    )
    lines = built(
        tmp_path,
        [paths[".c"]],
        f"""
        #include <stdio.h>
        #include "k.h"
        int main(void) {{
            tkc_k k;
            unsigned grid[3] = {{ {", ".join(map(str, extents))} }};
            {" ".join(declared)}
            tkc_k_load(&k);
            {tries}
            return tkc_k_unload(&k);
        }}""",
        [],
    )
    said = [line for line in lines if line.startswith("1 k: ")]
    assert len(said) == len(spoiled) and all("too large for 32-bit offsets" in s for s in said)


@needs_c
@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
def test_machine_code_first_then_text(tmp_path, monkeypatch):
    _, values, _, extents, paths, interface = exported(tmp_path, 0, "sm_90a")
    assert paths[".cubin"].read_bytes()[:4] == b"\x7fELF"
    main = '#include "k.h"\nint main(void) { tkc_k k; return tkc_k_load(&k); }'
    assert built(tmp_path, [paths[".c"]], main, []) == ["load code", f"function {interface.entry}"]
    monkeypatch.setenv("REFUSE_CODE", "1")
    assert subprocess.run(
        [str(tmp_path / "program")], capture_output=True, text=True
    ).stdout.splitlines() == [
        "load code",
        f"load {len(paths['.ptx'].read_bytes())}",
        f"function {interface.entry}",
    ]


@needs_c
def test_checks_are_exported_too(tmp_path, gpu, monkeypatch):
    """A kernel with the checks of TKC_DEBUG gets no record: it traps all the same."""
    monkeypatch.setenv("TKC_DEBUG", "1")
    paths = {
        p.suffix: p
        for p in export(
            add, "f32[1024]", "f32[1024]", "f32[1024]", "i32", target="sm_90a", path=tmp_path
        )
    }
    interface = Interface.from_json(json.loads(paths[".json"].read_text())["interface"])
    lines = built(
        tmp_path,
        [paths[".c"]],
        """
        #include "add.h"
        int main(void) {
            tkc_array x = { 0x10000, { 1024 }, { 1 } }, out = { 0x20000, { 1024 }, { 1 } };
            tkc_add k; unsigned grid[3] = { 16, 1, 1 };
            return tkc_add_load(&k) || tkc_add_launch(&k, grid, 0, &x, &x, &out, 1000);
        }""",
        [p.size for p in interface.parameters],
    )
    at = [p.kind for p in interface.parameters].index("trap")
    assert (
        interface.sites
        and [line for line in lines if line.startswith("parameter")][at] == "parameter" + " 00" * 8
    )


@needs_c
@case_of
@pytest.mark.skipif(_real_headers() is None, reason="NVIDIA's cuda.h is not installed")
def test_whole_kernels_compile_with_the_real_header(tmp_path, number):
    *_, paths, _ = exported(tmp_path, number, "sm_90a")
    for compiler, language in ((CC, "c11"), (shutil.which("c++") or shutil.which("g++"), None)):
        source = paths[".c"] if language else tmp_path / "user.cpp"
        if compiler is None:
            continue
        if not language:
            source.write_text('#include "k.h"\nint main() { tkc_k k; return tkc_k_load(&k); }')
        done = subprocess.run(
            [
                compiler,
                *([f"-std={language}"] if language else []),
                "-Wall",
                "-Wextra",
                "-Werror",
                f"-I{_real_headers()}",
                f"-I{tmp_path}",
                "-c",
                str(source),
                "-o",
                str(tmp_path / "k.o"),
            ],
            capture_output=True,
            text=True,
        )
        assert not done.returncode, done.stderr


@needs_c
@pytest.mark.skipif(_real_headers() is None, reason="NVIDIA's cuda.h is not installed")
def test_the_program_that_runs_them_on_a_gpu_compiles(tmp_path, monkeypatch):
    import numpy as np

    from tests.gpu import c_program

    monkeypatch.setattr(c_program, "headers", _real_headers)
    export(add, "f32[1024]", "f32[1024]", "f32[1024]", "i32", target="sm_90a", path=tmp_path)
    x = np.zeros(1024, np.float32)
    assert c_program.build(
        tmp_path, "add", {"x": x, "y": x, "out": x, "n": 1000}, (16, 1, 1), link=False
    ).exists()
