"""The CPU back end: a level 0 kernel to vector code for this processor, through llvmlite.

program = compile(kernel)                       numbers, functions   what an element is and what can be done to it
program.run([x, y, out, n], grid=(64,))         nest                 tile expressions, 16 lanes at a time
                                                planning             which tiles get a buffer
                                                lower, memory, collective, dot: one method an
                                                operation
                                                program, running     LLVM and the object; threads, arguments, the object cache
"""

from __future__ import annotations

from tkc.codegen.cpu.running import CpuProgram, unpack


def compile(kernel, careful: bool = False, checks: bool = False) -> CpuProgram:
    """tkc.codegen.cpu.program.compile, imported when something is compiled: what only runs needs no
    compiler.
    """
    from tkc.codegen.cpu import program

    return program.compile(kernel, careful, checks)


__all__ = ["CpuProgram", "compile", "unpack"]
