"""Ahead of time: `export` writes a kernel as PTX, a JSON description and C that launches it through
the driver API.

    add.sm_90a.ptx      the kernel; add.sm_90a.cubin where ptxas is installed
    add.json            its interface (tkc.ir.interface.Interface) and its arguments
    add.h, add.c        tkc_add_load, tkc_add_launch, tkc_add_unload; the code is inside (machine
                        code, and PTX for GPUs that it does not fit), so the C needs no file at run
                        time

The C computes what the Python launcher computes: tensor maps, the physical grid, the workspace, and
the same refusals (a code, and a sentence from tkc_add_error).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.errors import ExportError
from tkc.ir.interface import (
    HOST_FUNCTIONS,
    HostValue,
    Interface,
    Parameter,
    map_dimensions,
)
from tkc.ir.target import TARGETS
from tkc.runtime.arrays import ITEMSIZE
from tkc.runtime.cache import write_whole
from tkc.runtime.jit import JitFunction
from tkc.runtime.launch import cubin, workspaces
from tkc.runtime.specialize import Specialization, signature
from tkc.runtime.tensor_maps import SWIZZLES, TYPES
from tkc.runtime.tuning import accessed

if TYPE_CHECKING:
    from tkc.compiler import Compiled

KEYWORDS = set(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
        "bool",
        "true",
        "false",
    ]
)
TAKEN = set(
    [
        "grid",
        "stream",
        "kernel",
        "reach",
        "meet",
        "folded",
        "parameters",
        "gx",
        "gy",
        "gz",
        "programs",
        "config",
        "cluster",
        "text",
        "code",
        "message",
        "refused",
        "NULL",
        "main",
    ]
)
C_TYPES = {
    "bool_": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float8_e4m3": "uint8_t",
    "float8_e5m2": "uint8_t",
    "float32": "float",
    "float64": "double",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}


def export(
    kernel: JitFunction,
    *args: Any,
    target: str,
    path: str | os.PathLike,
    name: str | None = None,
    overwrite: bool = False,
    **kwargs: Any,
) -> list[Path]:
    """Compiles `kernel` for these arguments (as in `kernel.compile`) and writes its files to the
    directory `path`; gives their paths.

    name: of the files and C functions, default the kernel's. Raises ExportError, CompileError.
    """
    if target not in TARGETS:
        raise ExportError(
            f"there is no C launcher for target {target!r}; export for one of {', '.join(TARGETS)}"
        )
    name = name or kernel.__name__
    check_name(name)
    compiled = kernel.compile(*args, target=target, **kwargs)
    code = machine_code(compiled)
    values, options = kernel.bound(*args, **kwargs)
    specialization = kernel._specialize(kernel._describe(values), tuple(options.items()))
    arguments = [one for n, plain in specialization.arguments for one in _at_run_time(n, plain)]
    interface = compiled.interface
    assert interface is not None and compiled.ptx is not None  # a GPU's code has both
    description = {
        "name": name,
        "format": 1,
        "interface": interface.to_json(),
        "arguments": [{"name": n, "specialization": plain} for n, plain in arguments],
    }
    texts: dict[str, str | bytes] = {
        f"{name}.{target}.ptx": compiled.ptx,
        **({f"{name}.{target}.cubin": code} if code else {}),
        f"{name}.json": json.dumps(description, indent=1) + "\n",
        f"{name}.h": header(name, interface, arguments),
        f"{name}.c": source(
            name, interface, arguments, compiled.ptx, code, _apart(kernel, specialization)
        ),
    }
    return write(Path(path), texts, overwrite)


def _at_run_time(name: str, plain: tuple) -> list[tuple[str, tuple]]:
    """What a kernel has of an argument at run time: nothing of a constant, of peers an array a
    rank.
    """
    if plain[0] == "peers":
        _, world, _, array = plain
        return [(f"{name}_{rank}", array) for rank in range(world)]
    return [] if plain[0] == "constant" else [(name, plain)]


def _apart(kernel: JitFunction, specialization: Specialization) -> list[tuple[int, int]]:
    """Pairs of array arguments that the code has apart, of which one at least is written; a number
    twice where elements of one array are. (What is written at addresses of which nothing is known
    may be anywhere.)
    """
    from tkc.ir.types import ArrayType
    from tkc.language.trace import trace
    from tkc.passes.plan import kernel_of

    body = kernel_of(trace(kernel.fn, signature(specialization)))
    _, written = accessed(body)
    arrays = [v for v in body.arguments if isinstance(v.type, ArrayType)]
    pairs = [
        (a.index, b.index)
        for i, a in enumerate(arrays)
        for b in arrays[i:]
        if a in written or b in written
    ]
    return [pair for pair in pairs if pair not in specialization.overlaps]


def machine_code(compiled: Compiled) -> bytes:
    """What ptxas makes of a kernel; nothing where it is not installed."""
    from tkc.codegen.ptx.ptxas import find

    return cubin(compiled) if find("ptxas") else b""


def check_name(name: str) -> None:
    """Raises ExportError unless it can name C functions and files."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name) or name in KEYWORDS:
        shown = name if len(name) <= 40 else name[:37] + "..."
        raise ExportError(
            f"{shown!r} cannot name an exported kernel; use up to 128 letters, digits and _, no"
            " keyword of C, and pass it as name="
        )


def write(folder: Path, texts: dict[str, str | bytes], overwrite: bool) -> list[Path]:
    """Writes the files, each at once. Raises ExportError, before anything is written, if one is
    there already.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ExportError(f"cannot make {folder}: {e.strerror}; pass another path=") from None
    paths = [folder / n for n in texts]
    for p in paths:
        if p.resolve().parent != folder.resolve():
            raise ExportError(f"{p.name} in {folder} is a link that leads elsewhere; remove it")
        if p.exists() and not overwrite:
            raise ExportError(f"{p} exists; pass overwrite=True, or another path=")
    for p, text in zip(paths, texts.values(), strict=False):
        try:
            write_whole(p, text if isinstance(text, bytes) else text.encode(), 0o644)
        except OSError as e:
            raise ExportError(f"cannot write {p}: {e.strerror}") from None
    return paths


# --------------------------------------------------------------------------------------------------
def is_array(plain: tuple) -> bool:
    return plain[0] == "array"


def c_name(n: str) -> str:
    """An argument's name where C, or a variable of ours, has taken it."""
    return (
        n + "_"
        if n in KEYWORDS or n in TAKEN or re.fullmatch(r"[besopr]\d+|tkc_.*|cu.*|CU.*", n)
        else n
    )


def prototype(name: str, arguments: Sequence) -> str:
    words = [
        f"tkc_{name} *kernel",
        "const unsigned grid[3]",
        "CUstream stream",
        *(
            f"const tkc_array *{c_name(n)}" if is_array(p) else f"{C_TYPES[p[1]]} {c_name(n)}"
            for n, p in arguments
        ),
    ]
    return f"CUresult tkc_{name}_launch({', '.join(words)})"


def header(name: str, interface: Interface, arguments: Sequence) -> str:
    guard = f"TKC_{name.upper()}_H"
    notes = "\n".join(f" *   {c_name(n)}: {_what(p)}" for n, p in arguments)
    return f"""/* Kernel {name} for {interface.target}. Made by tkc; do not edit.
{notes}
 */
#ifndef {guard}
#define {guard}
#include <stdint.h>
#include <cuda.h>
#ifdef __cplusplus
extern "C" {{
#endif

#ifndef TKC_ARRAY
#define TKC_ARRAY
/* An array on the device: extents and strides in elements, slowest axis first. */
typedef struct {{ CUdeviceptr data; int64_t shape[8], strides[8]; }} tkc_array;
#endif

typedef struct {{
    CUmodule module;
    CUfunction function;
    CUdeviceptr workspace;
    uint64_t programs;
    int resident;
}} tkc_{name};

/* Loads the kernel into the current context. */
CUresult tkc_{name}_load(tkc_{name} *kernel);
/* Launches it: grid is the number of programs along each axis, as in kernel[grid].
 * Asynchronous; one stream at a time where there is a workspace.
 */
{prototype(name, arguments)};
CUresult tkc_{name}_unload(tkc_{name} *kernel);
/* Why the last call on this thread gave CUDA_ERROR_INVALID_VALUE: a sentence. */
const char *tkc_{name}_error(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _what(plain: tuple) -> str:
    if plain[0] == "scalar":
        return (
            plain[1]
            + (f", a multiple of {plain[2]}" if plain[2] > 1 else "")
            + (", at least 0" if plain[3] else "")
        )
    _, dtype, shape, strides, align, *_ = plain

    def fact(pairs):
        return (
            "["
            + ", ".join(
                f"= {exact}" if exact is not None else f"multiple of {d}" if d > 1 else "any"
                for d, exact, *_ in pairs
            )
            + "]"
        )

    return f"{dtype}, extents {fact(shape)}, strides {fact(strides)}, address a multiple of {align}"


def source(
    name: str,
    interface: Interface,
    arguments: Sequence,
    ptx: str,
    code: bytes = b"",
    apart: Sequence[tuple[int, int]] = (),
) -> str:
    """The C file. ptx, code: the kernel as text and, where there is any, machine code. apart: pairs
    of arrays that may not share memory.
    """
    body: list[str] = []
    values: list[str] = []
    places, workspace = _places(interface)
    for n, plain in arguments:
        body += _checks(c_name(n), plain)
    body += [_check_apart(a, b, arguments) for a, b in apart]
    for at in interface.nonzero:
        n = c_name(arguments[at][0])
        body.append(f'if (!{n}) return refused("argument {n}: the step of a range may not be 0");')
    for n, p in enumerate(interface.parameters):
        checks, value = _parameter(name, n, p, arguments, places.get(n, "0"))
        body += checks
        values.append(value)
    i = interface
    lines = "\n".join("    " + line for line in body)
    return f"""/* Kernel {name} for {i.target}: loading and launching. Made by tkc; do not edit. */
#include <stdio.h>
#include <string.h>
#include "{name}.h"

static const char text[] =
{_literal(ptx)};
{_bytes(code)}
static _Thread_local char message[200];
const char *tkc_{name}_error(void) {{ return message; }}

static CUresult refused(const char *why)
{{
    snprintf(message, sizeof message, "{name}: %s", why);
    return CUDA_ERROR_INVALID_VALUE;
}}
{_SHARING if apart else ""}
CUresult tkc_{name}_load(tkc_{name} *kernel)
{{
    memset(kernel, 0, sizeof *kernel);
    CUresult e = cuModuleLoadData(&kernel->module, {"code" if code else "text"});
    {"if (e) e = cuModuleLoadData(&kernel->module, text);" if code else ""}
    if (e) return e;
    if ((e = cuModuleGetFunction(&kernel->function, kernel->module, "{i.entry}"))) return e;
{_load(i, "0" if _varies(i) else workspace)}    return CUDA_SUCCESS;
}}

CUresult tkc_{name}_unload(tkc_{name} *kernel)
{{
    if (kernel->workspace) cuMemFree(kernel->workspace);
    CUresult e = kernel->module ? cuModuleUnload(kernel->module) : CUDA_SUCCESS;
    memset(kernel, 0, sizeof *kernel);
    return e;
}}

{prototype(name, arguments)}
{{
    if (!grid[0] || !grid[1] || !grid[2]) return CUDA_SUCCESS;
    if ({_exceeded_limits(i)}) return refused("the grid is too large; split the launch");
{_grown(workspace) if _varies(i) else ""}{lines}
    void *parameters[] = {{ {", ".join(values) or "NULL"} }};
    {_physical_grid(i)}
    {_launch_statement(i)}
}}
"""


# of an array the first address and the one behind the last; whether two arrays meet; whether
# elements of one do, as tkc.ir.strides.share_elements says
_SHARING = """
static void reach(const tkc_array *a, int rank, int64_t size, int64_t *low, int64_t *high)
{
    *low = 0; *high = size;
    for (int i = 0; i < rank; i++) {
        int64_t far = (a->shape[i] - 1) * a->strides[i] * size;
        if (a->shape[i] < 1) { *low = *high = 0; return; }
        if (far < 0) *low += far; else *high += far;
    }
    *low += (int64_t)a->data; *high += (int64_t)a->data;
}

static inline int meet(const tkc_array *a, int n, int64_t size, const tkc_array *b, int m,
                       int64_t width)
{
    int64_t low, high, from, to;
    reach(a, n, size, &low, &high);
    reach(b, m, width, &from, &to);
    return low < high && from < to && low < to && from < high;
}

static inline int folded(const tkc_array *a, int rank)
{
    int64_t far = 0;
    int seen[8] = { 0 };
    for (int i = 0; i < rank; i++) if (a->shape[i] < 1) return 0;
    for (;;) {
        int next = -1;
        int64_t step = 0;
        for (int i = 0; i < rank; i++) {
            int64_t own = a->strides[i] < 0 ? -a->strides[i] : a->strides[i];
            if (seen[i] || a->shape[i] < 2 || (next >= 0 && own >= step)) continue;
            next = i; step = own;
        }
        if (next < 0) return 0;
        if (step <= far) return 1;
        far += (a->shape[next] - 1) * step;
        seen[next] = 1;
    }
}
"""


def _check_apart(a: int, b: int, arguments: Sequence) -> str:
    """What refuses two arrays that share memory, or one whose elements do."""
    two = [arguments[n] for n in (a, b)]
    x, y = (n for n, _ in two)
    why = "; export the kernel for arrays that do"
    if a == b:
        condition = f"folded({c_name(x)}, {len(two[0][1][2])})"
        return f'if ({condition}) return refused("elements of argument {x} share memory{why}");'
    spans = ", ".join(f"{c_name(n)}, {len(of[2])}, {ITEMSIZE[of[1]]}" for n, of in two)
    return f'if (meet({spans})) return refused("arguments {x} and {y} share memory{why}");'


def _physical_grid(i: Interface) -> str:
    if i.persistent:
        return _persistent(i)
    x, y = i.cluster
    return f"unsigned gx = grid[0] * {x}u, gy = grid[1] * {y}u, gz = grid[2];"


def _exceeded_limits(i: Interface) -> str:
    """The condition in C under which a grid is too large."""
    if i.persistent:
        split = f" * {i.split}" if i.split > 1 else ""
        return f"(uint64_t)grid[0] * grid[1] * grid[2]{split} > 0x7fffffffu"
    x, y = i.cluster
    return (
        f"(uint64_t)grid[0] * {x}u > 0x7fffffffu || (uint64_t)grid[1] * {y}u > 65535 || grid[2]"
        " > 65535"
    )


def _launch_attributes(i: Interface) -> list[tuple[str, ...]]:
    """The assignments in C that each attribute of a launch takes."""
    found: list[tuple[str, ...]] = []
    if i.cluster != (1, 1):
        x, y = i.cluster
        found.append(
            (
                "id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
                *(
                    f"value.clusterDim.{axis} = {n}"
                    for axis, n in zip("xyz", (x, y, 1), strict=True)
                ),
            )
        )
    if i.dependent:
        found.append(
            (
                "id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
                "value.programmaticStreamSerializationAllowed = 1",
            )
        )
    return found


def _launch_statement(i: Interface) -> str:
    if i.together:
        return (
            f"return cuLaunchCooperativeKernel(kernel->function, gx, gy, gz, {i.threads}, 1, 1,"
            f" {i.shared_bytes}, stream, parameters);"
        )
    attributes = _launch_attributes(i)
    if not attributes:
        return (
            f"return cuLaunchKernel(kernel->function, gx, gy, gz, {i.threads}, 1, 1,"
            f" {i.shared_bytes}, stream, parameters, NULL);"
        )
    return "\n    ".join(
        (
            "CUlaunchConfig config; memset(&config, 0, sizeof config);",
            f"CUlaunchAttribute listed[{len(attributes)}]; memset(listed, 0, sizeof listed);",
            *(f"listed[{n}].{a};" for n, of in enumerate(attributes) for a in of),
            "config.gridDimX = gx; config.gridDimY = gy; config.gridDimZ = gz;"
            f" config.blockDimX = {i.threads}; config.blockDimY = config.blockDimZ = 1;",
            f"config.sharedMemBytes = {i.shared_bytes}; config.hStream = stream; config.attrs"
            f" = listed; config.numAttrs = {len(attributes)};",
            "return cuLaunchKernelEx(&config, kernel->function, parameters, NULL);",
        )
    )


def _literal(ptx: str) -> str:
    def escape(line):
        return (
            line.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("?", "\\?")
        )

    return "\n".join(f'    "{escape(line)}\\n"' for line in ptx.splitlines())


def _bytes(code: bytes) -> str:
    """Machine code as an array of words."""
    if not code:
        return ""
    words = [f"0x{int.from_bytes(code[i : i + 8], 'little'):x}u" for i in range(0, len(code), 8)]
    lines = "\n".join("    " + ", ".join(words[i : i + 10]) + "," for i in range(0, len(words), 10))
    return f"static const uint64_t code[] = {{\n{lines}\n}};\n"


def _varies(i: Interface) -> bool:
    """Whether the workspace depends on the grid."""
    return any(p.each for p in i.parameters)


def _places(i: Interface) -> tuple[dict[int, str], str]:
    """As tkc.runtime.launch.workspaces, in C where it depends on the number of programs."""
    if not _varies(i):
        offsets, total = workspaces(i, 0)
        return {k: str(v) for k, v in offsets.items()}, str(total)
    places: dict[int, str] = {}
    sizes: list[str] = []
    for k, p in enumerate(i.parameters):
        if p.kind == "workspace":
            places[k] = " + ".join(sizes) or "0"
            sizes.append(f"({p.bytes}u + {p.each}u * all + 255) / 256 * 256")
    return places, " + ".join(sizes)


def _grown(workspace: str) -> str:
    """A workspace for another number of programs is another one: a counter is never where something
    else has been.
    """
    return f"""    uint64_t all = (uint64_t)grid[0] * grid[1] * grid[2];
    if (kernel->programs != all) {{
        CUresult e = kernel->workspace ? cuMemFree(kernel->workspace) : CUDA_SUCCESS;
        kernel->workspace = 0; kernel->programs = 0;
        if (e
            || (e = cuMemAlloc(&kernel->workspace, {workspace}))
            || (e = cuMemsetD8(kernel->workspace, 0, {workspace}))
            || (e = cuCtxSynchronize()))
            return e;
        kernel->programs = all;
    }}
"""


def _load(i: Interface, workspace: str) -> str:
    lines = []
    if i.shared_bytes > 48 << 10:
        lines.append(
            "if ((e = cuFuncSetAttribute(kernel->function,"
            f" CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {i.shared_bytes}))) return e;"
        )
    if workspace != "0":
        lines += [
            f"if ((e = cuMemAlloc(&kernel->workspace, {workspace}))) return e;",
            f"if ((e = cuMemsetD8(kernel->workspace, 0, {workspace}))) return e;",
        ]
    x, y = i.cluster
    if x * y > 8:
        lines.append(
            "if ((e = cuFuncSetAttribute(kernel->function,"
            " CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))) return e;"
        )
    if i.persistent and x * y == 1:
        lines += [
            "CUdevice device; int each, processors;",
            "if ((e = cuCtxGetDevice(&device))) return e;",
            (
                "if ((e = cuDeviceGetAttribute(&processors,"
                " CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device))) return e;"
            ),
            (
                "if ((e = cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel->function,"
                f" {i.threads}, {i.shared_bytes}))) return e;"
            ),
            "kernel->resident = each * processors;",
        ]
    elif i.persistent:
        lines += [
            "CUlaunchConfig config; memset(&config, 0, sizeof config);",
            "CUlaunchAttribute cluster; memset(&cluster, 0, sizeof cluster);",
            (
                "cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION; cluster.value.clusterDim.x ="
                f" {x}; cluster.value.clusterDim.y = {y}; cluster.value.clusterDim.z = 1;"
            ),
            (
                f"config.gridDimX = {x}; config.gridDimY = {y}; config.gridDimZ = 1;"
                f" config.blockDimX = {i.threads}; config.blockDimY = config.blockDimZ = 1;"
            ),
            (
                f"config.sharedMemBytes = {i.shared_bytes}; config.attrs = &cluster;"
                " config.numAttrs = 1;"
            ),
            "int clusters;",
            (
                "if ((e = cuOccupancyMaxActiveClusters(&clusters, kernel->function, &config)))"
                " return e;"
            ),
            f"kernel->resident = clusters * {x * y};",
        ]
    return "".join(f"    {line}\n" for line in lines)


def _persistent(i: Interface) -> str:
    size, parts = i.cluster[0] * i.cluster[1], f" * {i.split}u" if i.split > 1 else ""
    padded = " * ".join(
        f"((grid[{axis}] + {n - 1}u) / {n}u * {n}u)" if n > 1 else f"grid[{axis}]"
        for axis, n in enumerate((*i.cluster_programs, 1))
    )
    return (
        f"unsigned programs = {padded}, gx = (programs{parts} + {size - 1}u) /"
        f" {size}u * {size}u, gy = 1, gz = 1;\n    if (gx > (unsigned)kernel->resident) gx ="
        f" (unsigned)kernel->resident;\n    if (gx < {size}u) gx = {size}u;"
    )


def _refused_unless(condition: str, n: str, why: str) -> str:
    return f'if (!({condition})) return refused("argument {n}: {why}");'


def _checks_of_number(n: str, plain: tuple) -> list[str]:
    _, _, divisor, nonnegative = plain
    known = []
    if divisor > 1:
        known.append((f"{n} % {divisor} == 0", f"a multiple of {divisor}; export the kernel for"))
    if nonnegative:
        known.append((f"{n} >= 0", "a number >= 0; export the kernel for"))
    return [
        _refused_unless(condition, n, f"expected {what} other numbers too")
        for condition, what in known
    ]


def _checks(n: str, plain: tuple) -> list[str]:
    """What the code was compiled for, of one argument."""
    if plain[0] == "scalar":
        return _checks_of_number(n, plain)
    lines: list[str] = []

    def need(condition: str, why: str) -> None:
        lines.append(_refused_unless(condition, n, why))

    _, _, shape, strides, align, wide, *_ = plain
    elements = " && ".join(f"{n}->shape[{a}]" for a in range(len(shape))) or "1"
    need(f"{n}->data || !({elements})", "its address is 0 although it has elements")
    if shape:
        need(
            " && ".join(f"{n}->shape[{a}] >= 0" for a in range(len(shape))), "an extent is negative"
        )
    for what, facts in (("shape", shape), ("strides", strides)):
        for axis, (divisor, exact, *_) in enumerate(facts):
            if exact is not None:
                need(f"{n}->{what}[{axis}] == {exact}", f"expected {what}[{axis}] to be {exact}")
            elif divisor > 1:
                need(
                    f"{n}->{what}[{axis}] % {divisor} == 0",
                    f"expected {what}[{axis}] to be a multiple of {divisor}",
                )
    if align > 1:
        need(f"{n}->data % {align} == 0", f"expected an address that is a multiple of {align}")
    if not wide and shape:
        reach = " + ".join(
            f"({n}->shape[{a}] ? {n}->shape[{a}] - 1 : 0) * ({n}->strides[{a}] < 0 ?"
            f" -{n}->strides[{a}] : {n}->strides[{a}])"
            for a in range(len(shape))
        )
        # a stride of an axis of one element, and an extent that is stepped through by none, too
        size, largest = ITEMSIZE[plain[1]], "INT64_C(0x7fffffff)"
        held = [f"({reach} + 1) * {size} <= {largest}"]
        for a in range(len(shape)):
            step = f"({n}->strides[{a}] < 0 ? -{n}->strides[{a}] : {n}->strides[{a}])"
            held += [f"{n}->shape[{a}] <= {largest}"]
            held += [f"(!({elements}) || {step} <= {largest} / {size})"]
        need(
            " && ".join(held), "too large for 32-bit offsets; export the kernel for a larger array"
        )
    return lines


def _parameter(name: str, i: int, p: Parameter, arguments, place: str) -> tuple[list[str], str]:
    """The C that computes one physical parameter, and its address."""
    n = c_name(arguments[p.argument][0]) if p.argument >= 0 else ""
    kind = _c_type(p)
    match p.kind:
        case "map":
            return _map(i, p, arguments), f"&p{i}"
        case "pointer":
            value = f"{n}->data"
        case "shape" if p.type == "s32":
            return [
                f"int32_t p{i} = (int32_t)({n}->shape[{p.axis}] < INT32_MAX ? {n}->shape[{p.axis}]"
                " : INT32_MAX);"
            ], f"&p{i}"
        case "shape" | "stride":
            value = f"{n}->{'shape' if p.kind == 'shape' else 'strides'}[{p.axis}]"
        case "trap":
            value = "0"  # a check that fails traps without a record
        case "grid":
            value = f"grid[{p.axis}]"
        case "workspace":
            value = f"(kernel->workspace + {place})"
        case "scalar":
            if C_TYPES[arguments[p.argument][1][1]] == kind:
                return [], f"&{n}"
            value = n
        case _:
            raise ExportError(f"{name}: a parameter of unknown kind {p.kind!r}")
    lines = [f"{kind} p{i} = ({kind}){value};"]
    if p.kind in ("shape", "stride") and p.size < 8:
        lines.append(
            f'if (p{i} != {value}) return refused("argument {n}: {p.kind} {p.axis} does not fit'
            f' {8 * p.size} bits");'
        )
    return lines, f"&p{i}"


def _c_type(p: Parameter) -> str:
    """The C type of a parameter."""
    floats, signed = {4: "float", 8: "double"}, {k: f"int{8 * k}_t" for k in (1, 2, 4, 8)}
    return {"f": floats, "s": signed}.get(p.type[0], {}).get(p.size) or f"uint{8 * p.size}_t"


def _host_value(value: HostValue, arguments: Sequence) -> str:
    """The C of an integer that the host computes."""
    if isinstance(value, int):
        return f"INT64_C({value})"
    kind, *rest = value
    if kind in HOST_FUNCTIONS:
        a, b = (_host_value(part, arguments) for part in rest)
        match kind:
            case "min" | "max":
                return f"({a} {'<' if kind == 'min' else '>'} {b} ? {a} : {b})"
            case "floordiv":
                return f"({b} ? {a} / {b} - ({a} % {b} != 0 && ({a} < 0) != ({b} < 0)) : 0)"
            case "mod":
                return f"({b} ? ({a} % {b} + {b}) % {b} : 0)"
        return f"({a} { ({'add': '+', 'sub': '-', 'mul': '*'}[kind]) } {b})"
    n = c_name(arguments[rest[0]][0])
    if kind == "scalar":
        return f"(int64_t){n}"
    return f"{n}->{'shape' if kind == 'shape' else 'strides'}[{rest[1]}]"


def _mapped_array(i: int, p: Parameter, arguments: Sequence) -> tuple[list[str], str]:
    """The array that a tensor map is of, as tkc.runtime.launch.mapped_array: its C, and what points
    to it.
    """
    n, size = c_name(arguments[p.argument][0]), ITEMSIZE[arguments[p.argument][1][1]]
    if not p.shape:
        return [], n
    offset = _host_value(p.offset, arguments)
    shape = ", ".join(_host_value(v, arguments) for v in p.shape)
    strides = ", ".join(_host_value(v, arguments) for v in p.strides)
    made = f"{{ {n}->data + {offset} * {size}, {{ {shape} }}, {{ {strides} }} }}"
    return [f"tkc_array m{i} = {made};"], f"(&m{i})"


def _map(i: int, p: Parameter, arguments: Sequence) -> list[str]:
    """A tensor map, dimension by dimension as tkc.runtime.tensor_maps.describe."""
    given, plain = arguments[p.argument]
    made, n = _mapped_array(i, p, arguments)
    name = c_name(given)
    size, last = ITEMSIZE[plain[1]], len(p.box) - 1
    panel = p.swizzle // size or p.box[last]
    extents, strides, box = [], [], []
    for axis, part in map_dimensions(p.box, size * 8, p.swizzle, p.panelled):
        extent, stride, width = (
            f"{n}->shape[{p.axes[axis]}]",
            f"{n}->strides[{p.axes[axis]}] * {size}",
            p.box[axis],
        )
        match part:
            case "within":
                extent, width = f"({extent} < {panel} ? {extent} : {panel})", panel
            case "panel":
                extent, stride, width = (
                    f"({extent} + {panel - 1}) / {panel}",
                    str(panel * size),
                    -(-width // panel),
                )
            case _ if axis == last:
                width = min(width, panel)
        extents.append(extent)
        strides.append(stride)
        box.append(width)
    within = f"{n}->shape[{p.axes[last]}]"
    panels = (
        [
            f'if ({within} % {panel}) return refused("argument {name}: expected'
            f' shape[{p.axes[last]}] to be a multiple of {panel}; pad it");'
        ]
        if p.panelled and p.swizzle
        else []
    )
    empty = " || ".join(f"{n}->shape[{a}] < 1" for a in range(len(p.box)))
    odd = " || ".join(f"({x}) % 32" for x in strides[1:])  # as tensor_maps.promotion
    promoted = (
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"
        if 0 < p.fetch <= 128
        else (
            f"{odd} ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B"
            if odd
            else "CU_TENSOR_MAP_L2_PROMOTION_L2_256B"
        )
    )
    # the stride of an extent of 1 is never used, but checked
    steps = ", ".join(
        f"e{i}[{k}] > 1 ? (cuuint64_t)({x}) : 16" for k, x in enumerate(strides[1:], 1)
    )
    lines = [
        *made,
        (
            f'if ({empty}) return refused("argument {name}: a tensor map needs extents of at least'
            ' 1; skip the launch, there is nothing to read");'
        ),
        *panels,
        (
            f'if ({n}->data % 16 || {n}->strides[{p.axes[last]}] != 1) return refused("argument'
            f" {name}: a tensor map needs an address that is a multiple of 16 and a contiguous axis"
            f' {p.axes[last]}");'
        ),
        f"cuuint64_t e{i}[] = {{ {', '.join(f'(cuuint64_t)({x})' for x in extents)} }};",
        f"cuuint64_t s{i}[] = {{ {steps or '16'} }};",
        (
            f"cuuint32_t b{i}[] = {{ {', '.join(map(str, box))} }}, o{i}[] = {{"
            f" {', '.join('1' for _ in box)} }};"
        ),
        f"CUtensorMap p{i};",
        (
            f"CUresult r{i} = cuTensorMapEncodeTiled(&p{i},"
            f" CU_TENSOR_MAP_DATA_TYPE_{TYPES[p.element]}, {len(box)}, (void"
            f" *)(uintptr_t){n}->data, e{i}, s{i}, b{i}, o{i},"
        ),
        (
            f"    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[p.swizzle]},"
            f" {promoted}, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);"
        ),
        (
            f'if (r{i}) {{ refused("argument {name}: the driver refused its tensor map: extents and'
            f' strides must be multiples of 16 bytes"); return r{i}; }}'
        ),
    ]
    return lines
