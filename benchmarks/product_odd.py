"""Products of bfloat16 matrices at twenty shapes nobody tunes for: primes, one row or column, one
more or less than thousands, tall, wide, K from 16 to 100000. BENCH_ONLY=3000x5000x7000 in the
environment picks shapes."""

import os

from benchmarks.product import contest

SHAPES = (
    (4095, 4097, 4093),
    (1009, 1013, 1019),
    (8191, 8193, 8192),
    (7919, 1009, 2003),
    (4096, 4096, 4097),
    (4096, 4097, 4096),
    (1, 4096, 4096),
    (4096, 1, 4096),
    (1, 1, 100000),
    (100003, 128, 64),
    (128, 100003, 256),
    (100000, 64, 1024),
    (256, 256, 100000),
    (64, 64, 65536),
    (4096, 4096, 16),
    (8192, 8192, 24),
    (63, 8191, 8193),
    (17, 4096, 14336),
    (3000, 5000, 7000),
    (6144, 24576, 1536),
)


def contests(seed: int):
    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for shape in SHAPES:
        if not only or "x".join(map(str, shape)) in only:
            yield contest(seed, shape, rivals=False)
