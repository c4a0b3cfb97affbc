"""A simulator of the PTX that we emit: it runs the text on NumPy, so that addresses, descriptors,
swizzles, fragments and registers are checked where there is no GPU.

    run(program, arguments, grid)      a PtxProgram on arrays and numbers; the arrays afterwards

    text.py         the text as instructions
    kinds.py        the types that instructions name
    memory.py       global and shared memory
    tensor_maps.py  tensor maps
    machine.py      the threads of a cluster, their program counters and registers; branches
    launch.py       arguments in memory, the clusters of a grid
    accesses.py     loads, stores, copies of threads, atomics
    arithmetic.py   what computes
    conversions.py  from one type to another
    inline.py       the user's PTX, for every element of arrays
    warps.py        what the lanes of a warp do together; mma
    barriers.py     barriers of threads and clusters, mbarriers, the registers of roles
    tensor.py       copies of boxes
    wgmma.py        asynchronous dots and their descriptors

Threads that stand at the same instruction take it together, of all warps and all blocks of a
cluster; those furthest back go first, so that they meet again. Whatever is asynchronous happens as
late as it may: copies land when nobody can go on without, their destination holding 0xff until
then; a dot is computed, and reads its operands, when it is waited for. With a seed, copies land at
any time and warps drift apart. Order between threads and proxies is for level 4 to judge: one run
shows one order. What an instruction means here is what tests/gpu/forms confirmed on an H200:
tests/codegen/ptx/test_machine.py runs those kernels too.
"""

from tkc.sim.ptx.faults import Fault, Trapped, Unknown
from tkc.sim.ptx.inline import evaluate, program_of
from tkc.sim.ptx.launch import run

__all__ = ["Fault", "Trapped", "Unknown", "evaluate", "program_of", "run"]
