"""From a kernel to a program: lowering, LLVM's optimizer, the object file and its description."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tkc.codegen.cpu.checked import check
from tkc.codegen.cpu.dot import AVX2, AVX512
from tkc.codegen.cpu.lower import Lowering
from tkc.codegen.cpu.planning import WRITES, touched
from tkc.codegen.cpu.running import CpuProgram, host
from tkc.errors import CompileError
from tkc.ir import tile
from tkc.ir.dtypes import BY_IR
from tkc.ir.types import ArrayType, PointerType

# LLVM's global value numbering numbers what follows n loops that write n times over, and an LLVM
# that was built with assertions aborts at the hundredth.
MAX_NUMBERED_BLOCKS = 256


def optimized(text: str):
    """The parsed and optimized LLVM module."""
    llvm, machine, *_ = host()
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as e:
        raise CompileError(f"the CPU back end wrote bad LLVM IR (a bug of tkc): {e}") from None
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = (
        options.loop_interleaving
    ) = False
    options.inlining_threshold = 0
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    if text.count(":\n") <= MAX_NUMBERED_BLOCKS:
        passes.add_new_gvn_pass()
    passes.run(module, builder)
    return module


def compile(
    kernel: tile.Kernel | ModuleOp, careful: bool = False, checks: bool = False
) -> CpuProgram:
    """Compile a level 0 kernel (or a module of one) for this processor.

    careful: arrays among the arguments may overlap where one of them is written.  checks: accesses and promises are checked (checked.py).  Raises CompileError with the user's source line.
    """
    if isinstance(kernel, ModuleOp):
        kernels = [op for op in kernel.body.block.ops if isinstance(op, tile.Kernel)]
        if len(kernels) != 1:
            raise CompileError(f"the module holds {len(kernels)} kernels; pass the one to compile")
        kernel = kernels[0]
    if kernel.level != 0:
        raise CompileError(
            f"the CPU compiles level 0, @{kernel.sym_name.data} is at level {kernel.level}"
        )
    if checks:
        check(kernel := kernel.clone())
    llvm, machine, processor, wide = host()
    Lowering.blocking = AVX512 if wide else AVX2
    lowering = Lowering(kernel, careful)
    module = optimized(text := str(lowering.module))
    from tkc.ir.text import show

    written = sorted(
        {
            kernel.arguments.index(a)
            for op in kernel.walk()
            if isinstance(op, WRITES) and (a := touched(op)) is not None
        }
    )
    metadata = {
        "name": kernel.sym_name.data,
        "processor": processor,
        "workspace": lowering.workspace,
        "messages": lowering.messages,
        "waits": lowering.waits,
        "arguments": [_describe(a.type) | {"name": a.name_hint} for a in kernel.arguments],
        "careful": careful,
        "kernel": "" if careful else show(kernel, locations=bool(lowering.messages)),
        "written": written,
    }
    return CpuProgram(machine.emit_object(module), metadata, text)


def _describe(t) -> dict:
    """An argument type as plain data."""
    if isinstance(t, ArrayType):
        pointers = isinstance(t.element, PointerType)
        facts = t.facts
        dtype = "int64" if pointers else BY_IR[t.element].name
        return {
            "kind": "array",
            "rank": t.rank,
            "dtype": dtype,
            "shape": [f.exact for f in facts.shape],
            "strides": [f.exact for f in facts.strides],
        }
    if isinstance(t, PointerType):
        return {
            "kind": "pointer",
            "dtype": "int64" if isinstance(t.element, PointerType) else BY_IR[t.element].name,
        }
    return {"kind": "scalar", "dtype": BY_IR[t].name}
