"""What the PTX means that we emit: a machine that runs its text on NumPy, so that addresses,
descriptors, swizzles, fragments and registers are checked where there is no GPU.

    run(program, arguments, grid)      a PtxProgram on arrays and numbers; the arrays afterwards

    text.py         the text as instructions
    machine.py      threads, their program counters and registers; the launch
    memory.py       global and shared memory, loads, stores, copies, atomics
    arithmetic.py   what computes
    warps.py        what the lanes of a warp do together; mma
    barriers.py     barriers of threads and clusters, mbarriers, the registers of roles
    tensor.py       tensor maps and copies of boxes
    wgmma.py        asynchronous dots and their descriptors

Threads that stand at the same instruction take it together, of all warps and all blocks of a
cluster; those furthest back go first, so that they meet again. Whatever is asynchronous happens as
late as it may: copies land when nobody can go on without, their destination holding 0xff until
then; a dot is computed, and reads its operands, when it is waited for. With a seed, copies land at
any time and warps drift apart. Order between threads and proxies is for level 4 to judge: one run
shows one order. What an instruction means here is what tests/gpu/forms confirmed on an H200:
tests/codegen/ptx/test_machine.py runs those kernels too.
"""

from tkc.sim.ptx.machine import Fault, Trapped, Unknown, run

__all__ = ["Fault", "Trapped", "Unknown", "run"]
