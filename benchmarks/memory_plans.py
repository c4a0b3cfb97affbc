"""Plans of kernels that move bytes, each forced by its keywords, against the plan as it is and a
copy: what decides whether one becomes the default.

    BENCH_ONLY=softmax,transpose python benchmarks/run.py memory_plans --rounds 8 --deadline 300
    --out /tmp/plans

    persistent            a block takes one program after the other and reads the next one's rows
                          while it computes (tkc/passes/planning/streaming.py)
    num_stages            stages of the ring in shared memory through which rows are copied; they
                          are loaded into registers without one
    register_transpose    a tile that is read along one axis and written along another is
                          transposed in registers (tkc/passes/analysis/access.py)
    cumsum                elements of a program and programs of a group (kernels/scans.py)

Operations and shapes are those of memory_bound.py, GB/s counted as there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tkc
from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner
from benchmarks.memory_bound import OPERATIONS, first, normal_of
from benchmarks.vector_add import copy

WIDER = ({"num_warps": 8}, {"num_warps": 16})
ROWS = ({"persistent": True}, *({"persistent": True} | w for w in WIDER), *WIDER)
PLANS: dict[str, tuple[dict, ...]] = {
    "softmax": ROWS,
    "layer_norm": ROWS,
    "rms_norm": ROWS,
    "cross_entropy": ROWS,
    "layer_norm_backward": ({"num_warps": 4}, {"num_warps": 8}, {"num_warps": 16}),
    "rms_norm_backward": ({"num_warps": 4}, {"num_warps": 8}, {"num_warps": 16}),
    "quantize": ({"persistent": True}, {"num_warps": 4}),
    "transpose": ({"register_transpose": False}, {"num_warps": 8}),
}
# of rows of 32768
STREAMS = tuple(
    {"persistent": True, "num_ctas": c, "num_warps": w, "num_stages": s}
    for c, w, s in ((1, 16, 1), (1, 16, 2), (2, 8, 1), (2, 16, 1), (4, 8, 1))
)
# of rows of 131072
CLUSTERS = (
    *(
        {"persistent": True, "num_ctas": c, "num_warps": w, "num_stages": s}
        for c, w, s in ((4, 16, 1), (4, 16, 2), (8, 8, 1), (8, 16, 1))
    ),
    {"persistent": False},
)
SCANS = ((4096, 128), (4096, 512), (8192, 256), (16384, 256))


@contextmanager
def launches() -> Iterator[list]:
    """Collects what is launched, and launches nothing."""
    found = []
    with tkc.handed(lambda *launch: found.append(launch)):
        yield found


def planned(call: Callable[[], object], options: dict) -> Runner:
    """The launches of a call, each with options, which come before what the call chose."""
    with launches() as found:
        result = call()
    runs = [
        kernel.prepare(*args, grid=grid, **(keywords | options))
        for kernel, grid, args, keywords in found
    ]

    def run():
        for each in runs:
            each()
        return first(result)

    return Runner(run)


def scanned(call: Callable[[], object], block: int, group: int) -> Runner:
    from tkc.kernels import scans

    def run():
        kept = scans.PART_ELEMENTS, scans.GROUP_PROGRAMS
        scans.PART_ELEMENTS, scans.GROUP_PROGRAMS = block, group
        try:
            return call()
        finally:
            scans.PART_ELEMENTS, scans.GROUP_PROGRAMS = kept

    return Runner(run)


def text(options: dict) -> str:
    return ", ".join(f"{k}={v}" for k, v in options.items())


def contests(seed: int) -> Iterator[Contest]:
    import torch

    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, shapes, build in OPERATIONS:
        if name not in (*PLANS, "cumsum") or only and name not in only:
            continue
        for shape in shapes:
            torch.cuda.empty_cache()
            yield contest(name, shape, *build(normal_of(seed), *shape))


def plans_of(name: str, columns: int) -> tuple[dict, ...]:
    """The options that an operation is forced to, on rows of so many elements."""
    if columns == 131072:
        return CLUSTERS
    if columns == 32768:
        return (*STREAMS, {"persistent": False})
    return PLANS[name]


def contest(name: str, shape: tuple[int, ...], moved: int, _, ours, __, reference) -> Contest:
    """The plans of one operation against each other and a copy of `moved` bytes."""
    if name == "cumsum":
        others = [
            (f"{n} elements, groups of {g}", lambda n=n, g=g: scanned(ours, n, g)) for n, g in SCANS
        ]
    else:
        others = [(text(o), lambda o=o: planned(ours, o)) for o in plans_of(name, shape[-1])]
    return Contest(
        f"{name}-plans-{'x'.join(map(str, shape))}",
        f"{name.replace('_', ' ')}, {' x '.join(map(str, shape))} bfloat16, by plan",
        (
            Contestant("tkc", lambda: Runner(lambda: first(ours())), "ours"),
            *(Contestant(n, make) for n, make in others),
            Contestant("copy of as many bytes", lambda: Runner(copy(moved // 2)), "bound"),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        1e-2,
        amount=moved / 1e9,
        unit="GB/s",
    )
