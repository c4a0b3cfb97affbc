"""Kernels that do something wrong, one a process: `python -m tests.gpu.trapping NAME` ends with 0
if TKC_DEBUG says what it was.
"""

from __future__ import annotations

import struct
import sys

import tkc
from tkc.errors import DeviceError, TrapError


@tkc.jit
def beyond(x, out, n, BLOCK: tkc.constexpr = 128):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    tkc.store(out.ptr + i, tkc.load(x.ptr + i) * 2, mask=i < n)


@tkc.jit
def before(x, n):
    tkc.atomic_add(x.ptr - n, 1.0)


@tkc.jit
def crooked(x, out, BLOCK: tkc.constexpr = 32):
    words = (x.ptr.to(tkc.int64, bitcast=True) + 2).to(tkc.pointer(tkc.float32), bitcast=True)
    tkc.store(out, (0,), tkc.load(words + tkc.arange(BLOCK)))


@tkc.jit
def promised(x, out, n, BLOCK: tkc.constexpr = 32):
    tkc.assume(n < 100)
    tkc.store(out, (0,), tkc.load(x, (n,), (BLOCK,)))


@tkc.jit
def asserted(x, BLOCK: tkc.constexpr = 256):
    tkc.device_assert(tkc.load(x, (0,), (BLOCK,)) >= 0, "roots of what is negative")


@tkc.jit
def spinning(flag):
    while tkc.load(flag.ptr, sem="acquire", scope="gpu") == 0:
        pass


RIGHT = """%z = tile.constant 0 : i32 %one = tile.constant 1 : i32
%full = tile.mbarriers 0 : !tile.barriers<2>
tile.mbarrier_init %full {count = 2 : i64} : (!tile.barriers<2>)
tile.fence mbarrier_init
tile.block_barrier
tile.mbarrier_arrive %full[%one] : (!tile.barriers<2>, i32)
tile.mbarrier_wait %full[%one] %z : (!tile.barriers<2>, i32, i32)"""


def stuck() -> None:
    """An mbarrier of two arrivals that gets one: level 4 by hand, for the compiler makes no such
    thing.
    """
    from tkc.codegen.ptx.emit import emit
    from tkc.compiler import Compiled
    from tkc.ir.target import target
    from tkc.ir.text import parse
    from tkc.runtime import launch

    program = emit(
        parse(
            'builtin.module { tile.kernel @stuck() {level = 4 : i64, target = "sm_90a", warps ='
            f" 4 : i64, shared_bytes = 16 : i64}} {{ {RIGHT} tile.return }} }}"
        ),
        target("sm_90a"),
        debug=2,
    )
    from tkc.runtime import driver

    with driver.context(0):
        function = launch.load(Compiled("stuck", "sm_90a", program.text, program.interface), 0)
    launch.CheckedLaunch(program.interface, function, [], [], (1, 1, 1), lambda: 0, "stuck")()


def filled(n: int, x: float = 1.0):
    """n floats on the GPU, without a library that takes seconds to load."""
    from tkc.runtime import driver
    from tkc.runtime.arrays import ArrayInfo

    d = driver.api()
    with driver.context(0):
        address = int(driver.check(d.cuMemAlloc(4 * n), "allocating"))
        driver.check(
            d.cuMemsetD32(address, struct.unpack("<I", struct.pack("<f", x))[0], n), "filling"
        )
        driver.check(d.cuCtxSynchronize(), "filling")
    return ArrayInfo(address, (n,), (1,), "float32", 0)


KERNELS = {
    "beyond": (
        lambda: beyond[8](filled(1000), filled(1000), 1000),
        "reads 16 bytes at .* bytes from the first of argument x, whose bytes end at 4000",
        "tkc.load(x.ptr + i)",
    ),
    "before": (
        lambda: before[1](filled(100), 3),
        "updates 4 bytes at -12 bytes from the first of argument x",
        "tkc.atomic_add",
    ),
    "crooked": (
        lambda: crooked[1](filled(100), filled(32)),
        "which is no multiple of",
        "tkc.load(words",
    ),
    "promised": (
        lambda: promised[1](filled(1000), filled(32), 100),
        "what tkc.assume promised does not hold",
        "tkc.assume",
    ),
    "asserted": (
        lambda: asserted[1](filled(256, -1.0)),
        "tkc.device_assert failed: roots of what is negative at element",
        "tkc.device_assert",
    ),
    "spinning": (
        lambda: spinning[4](filled(1, 0.0)),
        "waits for other programs has not ended within 2 s",
        "while tkc.load",
    ),
    "stuck": (
        stuck,
        r"waits for parity 0 of mbarrier full\[1\], and no such phase ended within 2 s",
        None,
    ),
}


def main(name: str) -> None:
    import re

    run, said, line = KERNELS[name]
    try:
        run()
    except TrapError as e:
        print(e)
        assert re.search(said, e.message) and (line is None or line in str(e)), f"expected {said}"
        assert e.kernel == name
    else:
        raise SystemExit("nothing was raised")
    try:
        KERNELS["asserted"][0]()
    except DeviceError as e:
        assert "dead until the process ends" in str(e), e
    else:
        raise SystemExit("went on")


if __name__ == "__main__":
    main(sys.argv[1])
