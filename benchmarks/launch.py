"""Host time of one launch, with three tensors, and with four tensors and eight numbers: the bare
driver call, tkc, and others. Host time of calls of the library on small tensors, beside torch's
own.
"""

import ast
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import tkc
from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

N = 1024
PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 px, .param .u64 py, .param .u64 po, .param .u32 pn)
{
  .reg .pred %p; .reg .u32 %n, %i, %t; .reg .u64 %x, %y, %o, %d; .reg .f32 %a, %b;
  ld.param.u64 %x, [px]; ld.param.u64 %y, [py]; ld.param.u64 %o, [po]; ld.param.u32 %n, [pn];
  mov.u32 %i, %ctaid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %i, 128, %t;
  setp.ge.u32 %p, %i, %n; @%p ret;
  mul.wide.u32 %d, %i, 4; add.u64 %x, %x, %d; add.u64 %y, %y, %d; add.u64 %o, %o, %d;
  ld.global.f32 %a, [%x]; ld.global.f32 %b, [%y]; add.f32 %a, %a, %b; st.global.f32 [%o], %a;
  ret;
}
"""


NUMBERS = 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5


@tkc.jit
def blend(x, y, z, out, n, a, b, c, d, e, f, g, BLOCK: tkc.constexpr = 128):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    inside = i < n
    tkc.store(
        out.ptr + i,
        tkc.load(x.ptr + i, mask=inside) * a
        + tkc.load(y.ptr + i, mask=inside) * b
        + tkc.load(z.ptr + i, mask=inside) * c
        + (d + e + f + g),
        mask=inside,
    )


def bare(x, y, out):
    """cuLaunchKernel of cuda-python with parameters packed beforehand."""
    import ctypes

    import torch
    from cuda.bindings import driver

    def checked(result):
        if result[0]:
            raise RuntimeError(str(result[0]))
        return result[1] if len(result) > 1 else None

    module = checked(driver.cuModuleLoadData(PTX.encode() + b"\0"))
    function = checked(driver.cuModuleGetFunction(module, b"add"))
    values = [*(ctypes.c_void_p(t.data_ptr()) for t in (x, y, out)), ctypes.c_uint32(out.numel())]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    stream, blocks, launch, address = (
        torch.cuda.current_stream().cuda_stream,
        -(-out.numel() // 128),
        driver.cuLaunchKernel,
        ctypes.addressof(pointers),
    )

    def run():
        launch(function, blocks, 1, 1, 128, 1, 1, 0, stream, address, 0)
        return out

    run.keep = values, pointers, module
    return run


@cache
def rivals_by_tkc() -> Any:
    """The kernels in Triton, with tkc in its place."""
    import tkc.triton

    tree = ast.parse((Path(__file__).parent / "rivals_triton.py").read_text())
    module = ModuleType("rivals_by_tkc")
    module.__file__ = str(Path(__file__).parent / "rivals_triton.py")
    module.__dict__.update(triton=tkc.triton, tl=tkc.triton.language)
    rest = [s for s in tree.body if not isinstance(s, ast.Import)]
    exec(compile(ast.Module(rest, []), module.__file__, "exec"), module.__dict__)
    return module


def contest(seed: int, n: int = N) -> Contest:
    import torch

    x, y = (
        torch.randn(n, device="cuda", generator=torch.Generator("cuda").manual_seed(seed + i))
        for i in range(2)
    )
    out = torch.empty_like(x)

    def ours() -> Runner:
        add = harness.example("vector_add").add
        return Runner(lambda: (add[(1,)](x, y, out, n), out)[1], out)

    def prepared() -> Runner:
        add = harness.example("vector_add").add
        launch = add.prepare(x, y, out, n, grid=1)
        return Runner(lambda: (launch(), out)[1], out)

    def elsewhere() -> Runner:
        add, pools = (
            harness.example("vector_add").add,
            [
                itertools.cycle([t.clone() for _ in range(many)])
                for t, many in ((x, 61), (y, 67), (out, 71))
            ],
        )

        def run():
            at = [next(pool) for pool in pools]
            add[(1,)](*at, n)
            return at[2]

        return Runner(run)

    def launching(kernel: Any) -> Runner:
        return Runner(lambda: (kernel[(1,)](x, y, out, n, BLOCK=n), out)[1], out)

    def triton() -> Runner:
        from benchmarks import rivals_triton

        return launching(rivals_triton.add_kernel)

    def unmodified() -> Runner:
        return launching(rivals_by_tkc().add_kernel)

    return Contest(
        "launch",
        "Host time of one launch, 3 tensors",
        (
            Contestant("tkc", ours, "ours", risky=True),
            Contestant("tkc prepared", prepared, "ours", risky=True),
            Contestant("tkc, other arrays each time", elsewhere, "ours"),
            Contestant("bare cuLaunchKernel", lambda: Runner(bare(x, y, out), out), "bound"),
            Contestant("torch.add(out=)", lambda: Runner(lambda: torch.add(x, y, out=out), out)),
            Contestant("triton", triton),
            Contestant("tkc, Triton's kernel", unmodified, "ours", risky=True),
        ),
        lambda run: harness.launch_timer(run, torch.cuda.synchronize),
        TIMING,
        lambda: x.double() + y.double(),
        tolerance=1e-6,
        figures=(
            harness.time_beyond(
                "tkc", "bare cuLaunchKernel", 2e-6, "tkc at most 2 us beyond the bare call"
            ),
            harness.time_beyond(
                "tkc prepared",
                "bare cuLaunchKernel",
                0.5e-6,
                "prepared at most 0.5 us beyond the bare call",
            ),
            harness.speed_ratio("tkc, Triton's kernel", "tkc", 1 / 1.1),
        ),
    )


TIMING = "Host wall time of 5000 launches in a row, median of five rows"


def many(seed: int, n: int = N) -> Contest:
    """Four tensors and eight numbers."""
    import torch

    x, y, z = (
        torch.randn(n, device="cuda", generator=torch.Generator("cuda").manual_seed(seed + i))
        for i in range(3)
    )
    out = torch.empty_like(x)
    arguments, blocks = (x, y, z, out, n, *NUMBERS), -(-n // 128)

    def launching(kernel: Any) -> Runner:
        return Runner(lambda: (kernel[(blocks,)](*arguments, BLOCK=128), out)[1], out)

    def triton() -> Runner:
        from benchmarks import rivals_triton

        return launching(rivals_triton.blend_kernel)

    def unmodified() -> Runner:
        return launching(rivals_by_tkc().blend_kernel)

    def prepared() -> Runner:
        launch = blend.prepare(*arguments, grid=blocks)
        return Runner(lambda: (launch(), out)[1], out)

    def bare_blend() -> Runner:
        blend[blocks](*arguments)  # any kernel will do: what is timed is the call
        return Runner(bare(x, y, out), out)

    a, b, c, *rest = NUMBERS
    return Contest(
        "launch-many",
        "Host time of one launch, 4 tensors and 8 numbers",
        (
            Contestant(
                "tkc",
                lambda: Runner(lambda: (blend[(blocks,)](*arguments), out)[1], out),
                "ours",
                risky=True,
            ),
            Contestant("tkc prepared", prepared, "ours", risky=True),
            Contestant("bare cuLaunchKernel", bare_blend, "bound"),
            Contestant("triton", triton),
            Contestant("tkc, Triton's kernel", unmodified, "ours", risky=True),
        ),
        lambda run: harness.launch_timer(run, torch.cuda.synchronize),
        TIMING,
        lambda: x.double() * a + y.double() * b + z.double() * c + sum(rest),
        tolerance=1e-5,
        figures=(
            harness.time_beyond(
                "tkc", "bare cuLaunchKernel", 4e-6, "tkc at most 4 us beyond the bare call"
            ),
            harness.time_beyond(
                "tkc prepared",
                "bare cuLaunchKernel",
                0.5e-6,
                "prepared at most 0.5 us beyond the bare call",
            ),
            harness.speed_ratio("tkc, Triton's kernel", "tkc", 1 / 1.1),
        ),
    )


def library(seed: int) -> Iterator[Contest]:
    """Calls like one before, of arrays so small that the device is always done."""
    import torch

    from tkc import kernels

    F = torch.nn.functional

    def made(*shape):
        return torch.randn(
            shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed + len(shape))
        ).bfloat16()

    x, w, q = made(64, 64), made(64), made(1, 2, 64, 64)
    out = torch.empty_like(x)
    calls = {
        "matmul": (lambda: kernels.matmul(x, x), lambda: torch.matmul(x, x)),
        "matmul out=": (lambda: kernels.matmul(x, x, out=out), lambda: torch.matmul(x, x, out=out)),
        "softmax": (lambda: kernels.softmax(x), lambda: torch.softmax(x, -1)),
        "rms_norm": (lambda: kernels.rms_norm(x, w), lambda: F.rms_norm(x, (64,), w, 1e-6)),
        "attention": (
            lambda: kernels.attention(q, q, q),
            lambda: F.scaled_dot_product_attention(q, q, q),
        ),
    }
    for name, (ours, theirs) in calls.items():
        expected, where = theirs().double(), out if "out=" in name else None
        yield Contest(
            f"call-{name.strip('=').replace(' ', '-')}",
            f"Host time of kernels.{name}",
            (
                Contestant(
                    "tkc", lambda ours=ours, where=where: Runner(ours, where), "ours", risky=True
                ),
                Contestant("torch", lambda theirs=theirs, where=where: Runner(theirs, where)),
            ),
            lambda run: harness.launch_timer(run, torch.cuda.synchronize),
            TIMING,
            lambda expected=expected: expected,
            tolerance=2e-2,
            figures=(harness.speed_ratio("tkc", "torch", 1.0),),
        )


def contests(seed: int) -> Iterator[Contest]:
    yield contest(seed)
    yield many(seed)
    yield from library(seed)
