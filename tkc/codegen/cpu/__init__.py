"""The CPU back end: a level 0 kernel to vector code for this processor, through llvmlite.

    program = compile(kernel)                       numbers, functions   what an element is and what can be done to it
    program.run([x, y, out, n], grid=(64,))         nest                 tile expressions, 16 lanes at a time
                                                    planning             which tiles get a buffer
                                                    lower, memory, collective, dot: one method an operation
                                                    program              LLVM, threads, the object cache
"""
from tkc.codegen.cpu.program import CpuProgram, compile, unpack

__all__ = ["CpuProgram", "compile", "unpack"]
