"""Level-4 programs with launches of them: the golden ones, and pipelined kernels as the passes make
them. `Program.run` runs one in a random schedule, `mutants.py` breaks them.

A launch's numbers are small and whole where sums are exact, and its result is compared with
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike
from xdsl.dialects.builtin import ModuleOp

import tkc
from tkc.fuzz import kernels
from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.report import Report, report_of

# where the repository is; an installed tkc has none
GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
BF16, F16, F32, E4M3 = ml_dtypes.bfloat16, np.float16, np.float32, ml_dtypes.float8_e4m3fn


@dataclass
class Launch:
    """Arguments, a grid, and a function that says whether the arguments are right afterwards."""

    arguments: list
    grid: tuple[int, ...]
    right: Callable[[], bool]


@dataclass(frozen=True, eq=False)
class Program:
    """`launch(shape, seed)` for one of its shapes. trials: shapes that together show every mutant,
    one a schedule. equivalent: mutants that no run can tell from the program, each with the reason.
    """

    name: str
    source: Callable[[], ModuleOp] = field(repr=False)
    launch: Callable[[Sequence, int], Launch] = field(repr=False)
    shapes: tuple = ()
    trials: tuple = ()
    golden: bool = False
    equivalent: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def module(self) -> ModuleOp:
        return _module(self)

    def run(
        self,
        shape: Sequence,
        seed: int,
        resident: int = 1,
        module: ModuleOp | None = None,
        **options: Any,
    ) -> Report | None:
        """What is wrong with a run: a finding of the simulator, or values."""
        launch = self.launch(shape, seed)
        try:
            level4.run(
                module or self.module, launch.arguments, launch.grid, seed, resident, **options
            )
        except SimulationError as e:
            return report_of(e)
        return None if launch.right() else Report("value", "another result than float64 gives")


@cache
def _modules() -> dict[str, ModuleOp]:
    return {}


def _module(program: Program) -> ModuleOp:
    if program.name not in _modules():
        module = program.source()
        verify(module)
        _modules()[program.name] = module
    return _modules()[program.name]


# --------------------------------------------------------------------------------------------------
Launcher = Callable[[Sequence, int], Launch]


def whole(
    rng: np.random.Generator, *shape: int, dtype: DTypeLike = BF16, most: int = 3
) -> np.ndarray:
    """An array of whole numbers of at most `most`."""
    return rng.integers(-most, most + 1, shape).astype(dtype)


def blocks(*extents_by_tile: tuple[int, int]) -> tuple[int, ...]:
    """The grid for extents, each with that of a tile."""
    return tuple(-(-n // tile) for n, tile in extents_by_tile)


def as_float64(x: np.ndarray) -> np.ndarray:
    """Floats of any type as float64."""
    return x.astype(np.float64)


def equal(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether a result is the one that is wanted, rounded to its type."""
    return np.array_equal(as_float64(got), as_float64(want.astype(got.dtype)), equal_nan=True)


def product(
    tile: tuple[int, int],
    dtype: DTypeLike = BF16,
    out: DTypeLike | None = None,
    transposed: bool = False,
    relu: bool = False,
) -> Launcher:
    """c = a b: shapes are (m, n, k). transposed: b as its rows are stored."""

    def launch(shape: Sequence[int], seed: int) -> Launch:
        (m, n, k), rng = shape, np.random.default_rng(seed)
        a, b, c = (
            whole(rng, m, k, dtype=dtype),
            whole(rng, k, n, dtype=dtype),
            np.full((m, n), np.nan, out or dtype),
        )
        want = a.astype(F32) @ b.astype(F32)
        return Launch(
            [a, np.ascontiguousarray(b.T) if transposed else b, c],
            blocks((m, tile[0]), (n, tile[1])),
            lambda: equal(c, np.maximum(want, 0) if relu else want),
        )

    return launch


def softmaxed(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the last axis: the weights (zeros where a row has only −inf), the logarithm of the sum of
    powers.
    """
    top = scores.max(-1, keepdims=True, initial=-inf)
    weights = np.exp(scores - np.where(top == -inf, 0, top))
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return (
            np.divide(weights, total, out=np.zeros_like(weights), where=total > 0),
            (top + np.log(total))[..., 0],
        )


def near(o: np.ndarray, weights: np.ndarray, v: np.ndarray) -> bool:
    """Probabilities and output are rounded to bfloat16: half an ulp of each, against the sum of |p
    v|.
    """
    return bool(
        (
            np.abs(as_float64(o) - weights @ v)
            <= 2.0**-8 * (weights @ np.abs(v) + np.abs(weights @ v)) + 1e-7
        ).all()
    )


def attention_of(tile: int, d: int, causal: bool = False) -> Launcher:
    """Of arrays [batch, heads, rows, d]; shapes are (heads, queries, keys)."""

    def launch(shape: Sequence[int], seed: int) -> Launch:
        (heads, queries, keys), rng, scale = shape, np.random.default_rng(seed), d**-0.5
        q, k, v = (
            rng.normal(size=(1, heads, max(n, 1), d)).astype(BF16)[:, :, :n]
            for n in (queries, keys, keys)
        )
        o = np.full_like(q, np.nan)

        def right() -> bool:
            x, y, z = map(as_float64, (q, k, v))
            scores = x @ y.swapaxes(-1, -2) * scale
            if causal:
                scores = np.where(np.tri(queries, keys, keys - queries, dtype=bool), scores, -inf)
            return near(o, softmaxed(scores)[0], z)

        return Launch([q, k, v, o, scale], (-(-queries // tile), heads, 1), right)

    return launch


def cosines_of(tile: int, d: int) -> Launcher:
    """Of arrays [rows, d], with keys that are normed; shapes are (queries, keys)."""

    def launch(shape: Sequence[int], seed: int) -> Launch:
        (queries, keys), rng = shape, np.random.default_rng(seed)
        q, k, v = (rng.normal(size=(n, d)).astype(BF16) for n in (queries, keys, keys))
        o = np.full_like(q, np.nan)

        def right() -> bool:
            y = k.astype(F32)
            y = (y / np.sqrt((y * y).sum(1, keepdims=True) + 1e-6)).astype(BF16)
            scores = as_float64(q) @ as_float64(y).T
            return near(o, softmaxed(scores)[0], as_float64(v))

        return Launch([q, k, v, o], (-(-queries // tile), 1, 1), right)

    return launch


def golden_attention(shape: Sequence[int], seed: int) -> Launch:
    """Of arrays [batch, rows, heads, 128] with the logarithms of the sums; shapes are (batches,
    rows, heads).
    """
    (batches, rows, heads), rng, scale = shape, np.random.default_rng(seed), 128**-0.5
    q, k, v = (rng.normal(size=(batches, rows, heads, 128)).astype(BF16) for _ in range(3))
    o, sums = np.full_like(q, np.nan), np.full((batches, heads, rows), np.nan, F32)

    def right() -> bool:
        x, y, z = (as_float64(t).transpose(0, 2, 1, 3) for t in (q, k, v))
        weights, logarithms = softmaxed(x @ y.swapaxes(-1, -2) * scale)
        return near(o.transpose(0, 2, 1, 3), weights, z) and np.allclose(
            sums, logarithms, rtol=1e-5, atol=1e-5
        )

    return Launch([q, k, v, o, sums, scale], (rows // 128, heads, batches), right)


def golden_sum(shape: Sequence[int], seed: int) -> Launch:
    """out = x + y; shapes are (n,)."""
    (n,), rng = shape, np.random.default_rng(seed)
    x, y, out = (
        rng.normal(size=n).astype(F32),
        rng.normal(size=n).astype(F32),
        np.full(n, np.nan, F32),
    )
    return Launch([x, y, out, n], (-(-n // 1024),), lambda: equal(out, x + y))


def scaled_product(tile: tuple[int, int]) -> Launcher:
    """o = x (w s), w of 8 bits; shapes are (m, n, k)."""

    def launch(shape: Sequence[int], seed: int) -> Launch:
        (m, n, k), rng = shape, np.random.default_rng(seed)
        x, w, s, o = (
            whole(rng, m, k),
            whole(rng, k, n, dtype=np.int8),
            whole(rng, n),
            np.full((m, n), np.nan, F32),
        )
        return Launch(
            [x, w, s, o],
            blocks((m, tile[0]), (n, tile[1])),
            lambda: equal(o, x.astype(F32) @ (w.astype(F32) * s.astype(F32))),
        )

    return launch


# --------------------------------------------------------------------------------------------------
def compiled(
    fn: Callable, launch: Launcher, shape: Sequence, target: str, **options: Any
) -> Callable[[], ModuleOp]:
    """The level-4 module of a kernel that is specialized for the arguments of a launch."""

    def source() -> ModuleOp:
        return parse(
            tkc.jit(fn).compile(*launch(shape, 0).arguments, target=target, **options).ir("final"),
            fn.__name__,
        )

    return source


def golden() -> list[Program]:
    """The programs of tests/golden, none where the repository is not here."""

    def of(
        name: str, launch: Launcher, shapes: tuple, trials: tuple, equivalent: Any = None
    ) -> Program:
        path = GOLDEN / f"{name}.mlir"

        def source() -> ModuleOp:
            return parse(path.read_text(), path.name)

        return Program(name, source, launch, shapes, trials, True, equivalent or {})

    if not GOLDEN.is_dir():
        return []
    return [
        of("vector_add", golden_sum, ((16,), (1024,), (2000,), (4016,)), ((2000,),) * 2),
        # tiles begin at every stage
        of(
            "cooperative_product",
            product((128, 256), transposed=True),
            (
                (256, 256, 64),
                (128, 256, 320),
                (300, 520, 136),
                (256, 512, 72),
                (8, 8, 8),
                (384, 256, 200),
            ),
            ((256, 512, 264), (256, 512, 136), (256, 512, 72), (256, 512, 136)),
        ),
        of(
            "pingpong_product",
            product((128, 192)),
            ((128, 192, 64), (256, 192, 328), (300, 520, 136), (384, 200, 72), (8, 8, 8)),
            ((512, 192, 136), (512, 192, 328), (512, 192, 72), (512, 192, 328)),
            EQUIVALENT["pingpong_product"],
        ),
        of(
            "attention_forward",
            golden_attention,
            ((1, 128, 1), (1, 256, 1), (1, 384, 1), (2, 128, 2), (1, 256, 2)),
            ((1, 512, 1), (1, 512, 1), (1, 256, 4), (1, 256, 2), (1, 128, 4)),
            EQUIVALENT["attention_forward"],
        ),
    ]


# the first shape of each is the one that a kernel is specialized for, and has no facts that the
# others lack
SMALL_SHAPES = ((40, 24, 8), (16, 16, 16), (32, 48, 96), (8, 8, 200), (64, 64, 128), (72, 16, 40))
LARGE_SHAPES = (
    (136, 264, 72),
    (128, 128, 64),
    (128, 64, 320),
    (8, 8, 8),
    (256, 128, 136),
    (72, 128, 384),
)
EVEN_SHAPES = ((128, 128, 64), (256, 128, 192), (128, 256, 320), (384, 256, 64))


def _steps(rows: int, columns: int, stages: int) -> tuple:
    """Products of five clusters' blocks whose rings of so many stages go round more than twice,
    once, not at all; programs begin and end at every stage.
    """
    return tuple(
        (5 * rows, columns, 64 * steps) for steps in (2 * stages + 1, stages + 1, 1, stages)
    ) + ((3 * rows + 8, columns, 64 * stages + 40),)


def _product(
    name: str,
    target: str,
    tile: tuple[int, int, int],
    fn=kernels.matmul,
    dtype=BF16,
    shapes=SMALL_SHAPES,
    trials=(),
    out=None,
    relu=False,
    **options,
) -> Program:
    launch = product(tile[:2], dtype, out, fn is kernels.matmul_nt, relu)
    given = dict(zip(("BM", "BN", "BK"), tile, strict=False)) | ({"RELU": True} if relu else {})
    return Program(
        name,
        compiled(fn, launch, shapes[0], target, **given, **options),
        launch,
        shapes,
        trials or shapes,
        equivalent=EQUIVALENT.get(name, {}),
    )


def _with_roles(
    what: str,
    block: tuple[int, int],
    stages: int,
    cluster: tuple[int, int] = (1, 1),
    roles: str = "cooperative",
    fn: Callable[..., None] = kernels.matmul,
) -> Program:
    """A product for sm_90a, by a producer and consumers."""
    return _product(
        f"product, {what}, sm_90a",
        "sm_90a",
        (*block, 64),
        fn=fn,
        shapes=LARGE_SHAPES,
        trials=_steps(block[0] * cluster[0], block[1] * cluster[1], stages),
        roles=roles,
        num_stages=stages,
        cluster=cluster,
    )


def _attention(
    name: str,
    target: str,
    tile: tuple[int, int],
    d: int,
    causal: bool,
    shapes,
    trials=(),
    **options,
) -> Program:
    launch = attention_of(tile[0], d, causal)
    return Program(
        name,
        compiled(
            kernels.attention,
            launch,
            shapes[0],
            target,
            CAUSAL=causal,
            D=d,
            BM=tile[0],
            BN=tile[1],
            **options,
        ),
        launch,
        shapes,
        trials or shapes,
        equivalent=EQUIVALENT.get(name, {}),
    )


def _by_cosines() -> Program:
    """Keys are normed by a role of their own, between two rings."""
    name, launch = "attention by cosines, sm_90a", cosines_of(128, 32)
    shapes = ((128, 192), (768, 64), (384, 192), (512, 320), (128, 704), (512, 256))
    source = compiled(
        kernels.by_cosines, launch, shapes[0], "sm_90a", D=32, num_stages=4, dynamic_schedule=False
    )
    return Program(name, source, launch, shapes, shapes, equivalent=EQUIVALENT.get(name, {}))


def pipelined() -> list[Program]:
    """Kernels as the passes make them: cp.async rings of one role, TMA rings of several."""
    # Of two heads each, for which the kernel is made. Whole blocks, and with an iteration behind a
    # mask; one block of keys where the schedule's copies are late (the second).
    loops = tuple((2, 200, 64 * n) for n in (5, 1, 4, 2, 3)) + (
        (2, 300, 0),
        (2, 200, 300),
        (2, 200, 150),
        (2, 100, 230),
    )
    scaled = scaled_product((32, 32))
    few, many = (
        ((2, 33, 71), (2, 70, 64), (2, 33, 0), (2, 16, 30), (2, 64, 129)),
        (
            (2, 131, 133),
            (2, 64, 192),
            (2, 128, 128),
            (2, 128, 0),
            (2, 100, 320),
        ),
    )
    return [
        _product("product, 3 stages, sm_80", "sm_80", (32, 32, 16), num_stages=3),
        _product(
            "product, 5 stages, sm_80", "sm_80", (16, 32, 32), fn=kernels.matmul_nt, num_stages=5
        ),
        _product(
            "product, 2 stages, float16, sm_89",
            "sm_89",
            (16, 32, 16),
            dtype=F16,
            num_stages=2,
            relu=True,
        ),
        _product(
            "product, float8, sm_89",
            "sm_89",
            (32, 32, 32),
            fn=kernels.matmul_nt,
            dtype=E4M3,
            out=F32,
            num_stages=3,
        ),
        _product("product, 1 stage, sm_80", "sm_80", (32, 32, 16), num_stages=1),
        _with_roles("one block", (128, 128), 3),
        _with_roles("a cluster", (128, 128), 2, (2, 1)),
        _with_roles("a cluster of 2 x 2", (64, 64), 2, (2, 2)),
        _with_roles("128 x 256", (128, 256), 3, (2, 1), fn=kernels.matmul_nt),
        _with_roles("ping-pong", (128, 128), 3, roles="pingpong"),
        _with_roles("ping-pong, a cluster", (128, 128), 2, (2, 1), roles="pingpong"),
        _product(
            "product of whole blocks, sm_90a",
            "sm_90a",
            (64, 128, 64),
            dtype=F16,
            shapes=EVEN_SHAPES,
            trials=((128, 384, 640), (128, 384, 384), (256, 128, 192), (128, 256, 64)),
            roles="cooperative",
            num_stages=2,
        ),
        Program(
            "weights of 8 bits, sm_80",
            compiled(
                kernels.dequantized,
                scaled,
                SMALL_SHAPES[0],
                "sm_80",
                BM=32,
                BN=32,
                BK=32,
                num_stages=3,
            ),
            scaled,
            SMALL_SHAPES,
            SMALL_SHAPES,
        ),
        _attention("attention, sm_80", "sm_80", (32, 32), 32, False, few),
        _attention("attention, causal, sm_80", "sm_80", (32, 32), 32, True, few),
        _by_cosines(),
        _attention("attention, sm_90a", "sm_90a", (128, 64), 64, False, many, loops, num_stages=2),
        _attention(
            "attention, causal, sm_90a",
            "sm_90a",
            (128, 64),
            64,
            True,
            many,
            (*loops, (2, 200, 384)),
            num_stages=2,
        ),
    ]


EQUIVALENT: dict[str, dict[str, str]] = {
    "product, 5 stages, sm_80": {
        f"stages + 1: ring_next{nth}": (
            "before the loop stages are counted on from the first to the fourth of five, and none"
            " comes to the end of the ring"
        )
        for nth in ("", ", 2", ", 3")
    },
    "pingpong_product": {
        "drop: mbarrier_wait empty in producer, 2": (
            "the drain, which a block without a cluster does not need"
        ),
        "stage: stage subtiles in consumer": "the consumers exchange their subtiles",
    },
    "attention_forward": {
        "earlier: mbarrier_expect q_full in producer": (
            "the phase cannot end before its bytes, which come after the wait"
        ),
        "stage: mbarrier_wait k_empty in producer, 3": (
            "the other stage is released later than the one waited for"
        ),
        **{
            f"{change}: mbarrier_arrive v_empty in consumer, 4": (
                "the last release: nobody waits for it"
            )
            for change in ("drop", "twice", "earlier", "stage")
        },
        **dict.fromkeys(
            (
                "first parity: mbarrier_wait v_empty in producer, 3",
                "stages + 1: ring_next v_empty in producer, 3",
            ),
            "behind the last tile: nobody uses what comes of it",
        ),
        **dict.fromkeys(
            (
                "parity stays: ring_next k_full in consumer",
                "stages + 1: ring_next k_full in consumer",
            ),
            "behind the last tile: nobody uses what comes of it",
        ),
        "first parity: mbarrier_wait k_full in consumer, 2": (
            "the second stage of a fresh ring: its parity is 0 as it is"
        ),
    },
    **dict.fromkeys(
        ("attention, sm_80", "attention, causal, sm_80"),
        {
            "stages + 1: ring_next, 2": (
                "before the loop: the third of a fresh ring's four stages follows the second"
            ),
        },
    ),
    **dict.fromkeys(
        ("attention, sm_90a", "attention, causal, sm_90a"),
        {
            "drop: mbarrier_wait empty 2 in producer, 3": (
                "K of the program behind one that sees nothing: its stage was given back before a"
                " stage of Q, for which the producer has waited"
            ),
            "earlier: mbarrier_arrive empty 3 in consumer, 3": (
                "the last V's stage is filled again behind one of K that the next program's first"
                " dot reads, and that dot ends behind the last one"
            ),
        },
    ),
}


@cache
def programs() -> dict[str, Program]:
    """All programs by name."""
    return {p.name: p for p in (*golden(), *pipelined())}
