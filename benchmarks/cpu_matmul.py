"""Product of 1024 x 1024 float32 matrices on the CPU, beside numpy on as many threads."""

import os
import time

import numpy as np

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

SIZE = 1024


def threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def alone(run) -> float:
    """Seconds of a run when the other library's threads have gone to sleep: OpenBLAS's spin for
    some 2^26 cycles after a call, on cores that are wanted.
    """
    time.sleep(0.2)
    run()
    return harness.host_timer(run, 15)


def contest(seed: int, size: int = SIZE) -> Contest:
    generator = np.random.default_rng(seed)
    a, b = (generator.standard_normal((size, size), np.float32) for _ in range(2))
    out, theirs = np.empty_like(a), np.empty_like(a)

    def ours() -> Runner:
        import tkc

        matmul = harness.example("matmul").matmul
        bm, bn, bk = 256, 256, 64
        grid = tkc.cdiv(size, bm), tkc.cdiv(size, bn)
        return Runner(
            lambda: (matmul[grid](a, b, out, RELU=False, BM=bm, BN=bn, BK=bk), out)[1], out
        )

    return Contest(
        "cpu-matmul",
        f"Product {size}^3 float32 on the CPU, {threads()} threads",
        (
            Contestant("tkc", ours, "ours"),
            Contestant("numpy", lambda: Runner(lambda: np.matmul(a, b, out=theirs), theirs)),
        ),
        alone,
        "Wall time, median of 15 runs a turn, 0.2 s of rest before each (threads of the other"
        " library spin on for a while after their last call)",
        lambda: a.astype(np.float64) @ b.astype(np.float64),
        tolerance=1e-5,
        amount=2 * size**3 / 1e9,
        unit="GFLOP/s",
        figures=(harness.speed_ratio("tkc", "numpy", 1.2),),
    )
