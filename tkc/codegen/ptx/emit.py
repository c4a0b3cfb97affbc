"""Level 4 to PTX: one walk over the kernel, one function an operation (emitter.py), and the text of
the module round what they wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.ptxas import roomy
from tkc.codegen.ptx.register_coalescing import coalesce
from tkc.codegen.ptx.traps import CLAIMED, handler
from tkc.codegen.ptx.writer import Operand
from tkc.errors import CompileError, RoomError
from tkc.ir.interface import Interface, Parameter
from tkc.ir.target import Target
from tkc.ir.text import location_of
from tkc.ir.tile import Dependency, Kernel
from tkc.ir.types import ArrayType, PointerType, bits, is_bool, is_float, is_unsigned

FAMILIES = (
    "scalars",
    "conversions",
    "control",
    "elementwise",
    "shape",
    "reduce",
    "take",
    "global_memory",
    "atomics",
    "shared_views",
    "shared_memory",
    "cp_async",
    "mma",
    "barriers",
    "convert",
    "debugging",
    "sort",
    "gather",
    "wgmma",
    "tma",
    "mbarrier",
    "roles",
    "inline",
    "programs",
)


@dataclass(frozen=True)
class PtxProgram:
    """A kernel as PTX, how to launch it, and remarks of the emission (accesses that could not be
    vectorised, copies).
    """

    text: str
    interface: Interface
    notes: list[str]

    @property
    def roomy(self) -> str:
        """ptxas.roomy of the text."""
        return roomy(self.text, self.interface.threads)


@cache
def _load_families() -> None:
    """Family files register themselves when they are imported."""
    for name in FAMILIES:
        import_module(f"tkc.codegen.ptx.{name}")


def emit(module: ModuleOp | Kernel, target: Target, debug: int = 0) -> PtxProgram:
    """The PTX of a level-4 kernel (of a module: its only one). debug: with the checks of traps.py,
    where a wait may take so many seconds.

    Raises CompileError where an operation has no PTX form.
    """
    _load_families()
    kernel = module if isinstance(module, Kernel) else _only_kernel(module)
    e = Emitter(kernel, target, debug)
    for number, argument in enumerate(kernel.arguments):
        if isinstance(argument.type, ArrayType):
            e.values[argument] = e.array_argument(argument.type, number)
        elif argument.first_use is not None:
            e.values[argument] = _scalar_argument(e, argument.type, number)
    coalesce(e, kernel)
    e.block(kernel.body.block)
    return _program(e)


def _only_kernel(module: ModuleOp) -> Kernel:
    kernels = [op for op in module.body.block.ops if isinstance(op, Kernel)]
    if len(kernels) != 1:
        raise CompileError(f"one kernel is emitted at a time, but the module has {len(kernels)}")
    return kernels[0]


def _parameter_type(t: Attribute) -> str:
    """The PTX type of a scalar parameter."""
    width = bits(t)
    if is_float(t):
        return f"{'f' if width >= 32 else 'b'}{width}"
    if isinstance(t, PointerType):
        return "u64"
    return f"{'u' if is_unsigned(t) or is_bool(t) else 's'}{width}"


def _scalar_argument(e: Emitter, t: Attribute, number: int) -> Operand:
    w, width, type = e.w, bits(t), _parameter_type(t)
    raw = e.parameter(Parameter("scalar", type, number, element=str(t)))
    if is_bool(t):
        return w.hoist(("truth", number), lambda: w.op("setp.ne.b32", "pred", raw, 0), root=True)

    def widened() -> str:
        if width == 8:
            return e.unpacked(raw, t)
        if is_float(t):
            return e.unpacked(w.op("cvt.u32.u16", "b32", raw), t)
        return w.op(f"cvt.{type[0]}32.{type}", "b32", raw)

    if width == 16 or width == 8 and is_float(t):
        return w.hoist(("wide", number), widened, root=True)
    return raw


def _program(e: Emitter) -> PtxProgram:
    kernel = e.kernel
    name = kernel.sym_name.data
    if e.shared_bytes > e.target.shared_bytes:
        raise RoomError(
            f"kernel {name} needs {e.shared_bytes} bytes of shared memory,"
            f" {e.shared_bytes - kernel.integer('shared_bytes')} of them for histograms and results"
            f" of atomics, and {e.target.name} has {e.target.shared_bytes}; use smaller tiles,"
            " fewer bins or fewer stages",
            location_of(kernel),
            e.shared_bytes - e.target.shared_bytes,
        )
    # adds parameters, registers and sites, and so comes first
    end = [handler(e)] if e.sites else []
    interface = Interface(
        name,
        e.target.name,
        e.threads,
        e.shared_bytes,
        e.cluster,
        e.persistent,
        tuple(e.parameters),
        e.debug,
        tuple(e.sites),
        kernel.integer("split", 1),
        "together" in kernel.attributes,
        e.nonzero,
        kernel.cluster_programs,
        any(isinstance(op, Dependency) and op.kind.data == "wait" for op in kernel.walk()),
        kernel.integer("registers"),
    )
    text = "\n".join(
        [
            f".version {e.isa[0]}.{e.isa[1]}",
            f".target {e.target.name}",
            ".address_size 64",
            *(f'.file {number} "{_quoted(file)}"' for file, number in e.w.files.items()),
            *([".extern .shared .align 1024 .b8 shared[];"] if e.uses_shared else []),
            *e.globals,
            *([CLAIMED] if e.sites else []),
            f".visible .entry {name}(",
            ",\n".join(_declaration(p, n) for p, n in e.parameters.items()),
            ")",
            *_directives(e),
            "{",
            e.w.text(),
            *end,
            "}",
            "",
        ]
    )
    return PtxProgram(text, interface, e.notes)


def _declaration(p: Parameter, name: str) -> str:
    if p.kind == "map":
        return f"\t.param .align 128 .b8 {name}[128]"
    return f"\t.param .{p.type} {name}"


def _directives(e: Emitter) -> list[str]:
    """What the entry says of its threads, registers and cluster."""
    found = [f".reqntid {e.threads}, 1, 1", *e.directives]
    if not e.directives:
        if most := e.kernel.integer("maxnreg"):
            found.append(f".maxnreg {most}")
        elif (blocks := e.kernel.integer("blocks")) > 1:
            found.append(f".minnctapersm {blocks}")
    if e.cluster != (1, 1):
        rows, columns = e.cluster
        found += [".explicitcluster", f".reqnctapercluster {rows}, {columns}, 1"]
    return found


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"')
