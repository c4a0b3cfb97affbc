"""From a kernel to object files and their description: lowering, then LLVM."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute

from tkc.codegen.cpu.checked import check
from tkc.codegen.cpu.entry import entry
from tkc.codegen.cpu.host import host
from tkc.codegen.cpu.lower import Lowering
from tkc.codegen.cpu.planning import WRITES, touched
from tkc.codegen.cpu.state import AVX2, AVX512
from tkc.errors import CompileError
from tkc.ir import tile
from tkc.ir.dtypes import BY_IR
from tkc.ir.types import ArrayType, PointerType
from tkc.ir.values import operations_in

if TYPE_CHECKING:
    from llvmlite.binding import ModuleRef, TargetMachine


def parsed(text: str) -> ModuleRef:
    """The module that LLVM reads. It goes to the code generator as it is: the lowering keeps values
    in registers and moves what does not change out of loops, so that LLVM's passes over the IR,
    even the folding of single instructions, take time and give code that is no faster.
    """
    llvm, *_ = host()
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as e:
        raise CompileError(f"the CPU back end wrote bad LLVM IR (a bug of tkc): {e}") from None
    module.verify()
    return module


def emitted(machine: TargetMachine, text: str) -> bytes:
    """The object file of a module."""
    return machine.emit_object(parsed(text))


# of functions that programs call, most of which other kernels call, too
_emitted_once = lru_cache(maxsize=512)(emitted)


def compile(
    kernel: tile.Kernel | ModuleOp,
    overlapping: bool = False,
    checks: bool = False,
    processor: str | None = None,
    folded: bool = False,
) -> tuple[tuple[bytes, ...], dict[str, Any], str]:
    """Compile a level 0 kernel (or a module of one) for this processor, or one that LLVM names:
    the object files, their description as JSON data, and the LLVM IR.

    overlapping: arrays among the arguments may overlap where one of them is written. checks:
    accesses and promises are checked (checked.py). folded: elements of an array that is written may
    share memory with others of it. Raises CompileError with the user's source line.
    """
    kernel = _only_kernel(kernel)
    if checks:
        check(kernel := kernel.clone())
    _, machine, described, wide = host(processor)
    lowering = Lowering(kernel, AVX512 if wide else AVX2, overlapping, folded)
    called = lowering.module.texts()
    main = emitted(machine, called.pop("program"))
    objects = entry(), main, *(_emitted_once(machine, text) for text in called.values())
    written = {
        kernel.arguments.index(array)
        for op in operations_in(kernel, WRITES)
        if (array := touched(op)) is not None
    }
    metadata = {
        "name": kernel.sym_name.data,
        "processor": described,
        "workspace": lowering.workspace,
        "messages": lowering.messages,
        "waits": lowering.waits,
        "arguments": [_described(a.type) | {"name": a.name_hint} for a in kernel.arguments],
        "overlapping": overlapping,
        "folded": folded,
        "written": sorted(written),
    }
    return objects, metadata, str(lowering.module)


def _only_kernel(kernel: tile.Kernel | ModuleOp) -> tile.Kernel:
    """The kernel of a module. Raises CompileError where there is not one, of level 0."""
    if isinstance(kernel, ModuleOp):
        kernels = [op for op in kernel.body.block.ops if isinstance(op, tile.Kernel)]
        if len(kernels) != 1:
            raise CompileError(f"the module holds {len(kernels)} kernels; pass the one to compile")
        kernel = kernels[0]
    if kernel.level != 0:
        raise CompileError(
            f"the CPU compiles level 0, @{kernel.sym_name.data} is at level {kernel.level}"
        )
    return kernel


def _described(t: Attribute) -> dict[str, Any]:
    """An argument type as plain data."""
    if isinstance(t, ArrayType):
        return {
            "kind": "array",
            "rank": t.rank,
            "dtype": _dtype_name(t.element),
            "shape": [f.exact for f in t.facts.shape],
            "strides": [f.exact for f in t.facts.strides],
        }
    if isinstance(t, PointerType):
        return {"kind": "pointer", "dtype": _dtype_name(t.element)}
    return {"kind": "scalar", "dtype": _dtype_name(t)}


def _dtype_name(t: Attribute) -> str:
    return "int64" if isinstance(t, PointerType) else BY_IR[t].name
