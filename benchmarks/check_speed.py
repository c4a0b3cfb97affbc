"""The happens-before check of a role-specialised product for sm_90a: blocks of 128 x 128, 16 steps
of 64 along K, a ring of 4 stages, one random schedule a run.

The simulator runs on the CPU, with values; "without products" leaves multiplication out, as `tkc
check` does.
"""

import itertools

import ml_dtypes
import numpy as np

from benchmarks.harness import Contest, Contestant, Runner, example, host_timer, time_at_most

M, N, K, STEPS, STAGES = 128, 128, 64, 16, 4


def compiled(cluster: int = 1):
    """The level-4 module for clusters of so many blocks, its arguments and its grid."""
    from tkc.ir.text import parse

    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16)
        for shape in ((M * cluster, K * STEPS), (K * STEPS, N))
    )
    arguments = [a, b, np.zeros((M * cluster, N), ml_dtypes.bfloat16)]
    return (
        parse(
            example("matmul")
            .matmul.compile(
                *arguments,
                BM=M,
                BN=N,
                BK=K,
                num_stages=STAGES,
                roles="cooperative",
                cluster=(cluster, 1),
                target="sm_90a",
            )
            .ir("final")
        ),
        arguments,
        (cluster, 1),
    )


def contest(seed: int) -> Contest:
    def contestant(name: str, cluster: int, **options) -> Contestant:
        def make() -> Runner:
            from tkc.sim import level4

            (module, arguments, grid), seeds = compiled(cluster), itertools.count(seed)
            return Runner(lambda: level4.run(module, arguments, grid, next(seeds), **options))

        return Contestant(name, make, "ours")

    names = "one block", "one block, without products", "a cluster of two blocks"
    return Contest(
        "check-speed",
        f"Happens-before check of a product of {M} x {N} x {K} blocks, {STEPS} steps, {STAGES}"
        " stages",
        (contestant(names[0], 1), contestant(names[1], 1, products=False), contestant(names[2], 2)),
        lambda run: host_timer(run, 9),
        "Median wall time of 9 schedules",
        figures=(time_at_most(names[0], 0.1, "one block: 100 ms at most"),),
    )
