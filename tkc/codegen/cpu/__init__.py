"""The CPU back end: a level 0 kernel to vector code for this processor, through llvmlite.

    program = compile(kernel)
    program.run([x, y, out, n], grid=(64,))

numbers, functions    what an element is and what can be done to it
nest                  tile expressions, 16 lanes at a time
planning              which tiles get a buffer
lower, memory, messages, collective, sorting, dot     one method an operation
program, host         LLVM, the object file, this processor
running, arguments, signals     launches: threads, arguments, Ctrl-C
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tkc.codegen.cpu.running import CpuProgram, unpack

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tkc.ir import tile


def compile(
    kernel: tile.Kernel | ModuleOp,
    overlapping: bool = False,
    checks: bool = False,
    processor: str | None = None,
    folded: bool = False,
) -> CpuProgram:
    """`tkc.codegen.cpu.program.compile` as a program that can be launched. The compiler is imported
    when something is compiled: what only runs needs none.
    """
    from tkc.codegen.cpu import program

    return CpuProgram(*program.compile(kernel, overlapping, checks, processor, folded))


__all__ = ["CpuProgram", "compile", "unpack"]
