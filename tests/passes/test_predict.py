"""The timeline and the time that it predicts: against what was measured on an H200
(benchmarks/results), and against what a few clocks must be.
"""

import csv
import re
from functools import cache
from pathlib import Path
from statistics import median

import pytest

import tkc
from benchmarks import harness
from benchmarks.standing import newest
from tkc.errors import CompileError
from tkc.ir.target import TARGETS
from tkc.ir.text import parse
from tkc.kernels.attention import _attention
from tkc.passes.plan import kernel_of
from tkc.passes.planning.cost import Work
from tkc.passes.planning.numbers import Sizes
from tkc.runtime.simulate import level4_of
from tkc.timing.predict import predict

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
H200 = TARGETS["sm_90a"]


@cache
def compiled(kernel, options: tuple, *arguments):
    """(level 4, level 0) of a kernel; sizes are not in its code."""
    values, _ = kernel._bind(**dict(arguments))
    seen = {}
    module = level4_of(
        kernel,
        kernel._describe(values),
        options,
        H200,
        lambda step, m: seen.setdefault(step, m.clone() if step == "trace" else None),
    )
    return module, seen["trace"]


def predicted(kernel, options: dict, grid, shapes, **arguments):
    module, traced = compiled(kernel, tuple(options.items()), *arguments.items())
    sizes = Sizes(grid, tuple(shapes))
    return predict(module, Work.of(kernel_of(traced), sizes), H200, sizes)


# --------------------------------------------------------------------------------------------------
def attention(d: int, causal: bool, s: int, rows: int = 128, columns: int = 0):
    """A row of RIVALS: bfloat16, B·S = 16384, heads · D = 2048; in blocks of so many rows of Q and
    of K.
    """
    heads = 2048 // d
    q, any_ = (16384 // s, heads, s, d), f"bf16[8, {heads}, 2048, {d}]"
    return predicted(
        _attention,
        {"num_warps": rows // 16} if rows > 128 else {},
        (tkc.cdiv(s, rows), heads, 16384 // s),
        (q, q, q, q, 0.1, 0.0, 0),
        q=any_,
        k=any_,
        v=any_,
        o=any_,
        lse=None,
        cu_seqlens=None,
        cu_seqlens_k=None,
        qs=None,
        ks=None,
        vs=None,
        sinks=None,
        slopes=None,
        scale=0.1,
        cap=0.0,
        window=0,
        GROUP=1,
        CAUSAL=causal,
        WINDOW=False,
        CAP=False,
        D=d,
        DV=d,
        BM=rows,
        BN=columns or (128 if d <= 128 else 64),
    )


@cache
def measured() -> dict[tuple[int, bool, int, int, int], tuple[float, bool]]:
    """(D, causal, S, rows and columns of a block) to seconds, by the newest races' medians, and
    whether the library takes that block.
    """
    found = {}
    for race in newest([RESULTS]):
        if (
            name := re.fullmatch(
                r"attention-(blocks-)?(?:d(\d+)-)?(full|causal)-(\d+)", race["name"]
            )
        ) is None:
            continue
        row, said = (
            (int(name[2] or 128), name[3] == "causal", int(name[4])),
            re.search(r"by default blocks of (\d+) x (\d+)", race["title"]),
        )
        own = (
            tuple(map(int, said.groups()))
            if said
            else {128: (128, 128), 192: (128, 64), 256: (128, 64)}.get(row[0])
        )
        for contestant, seconds in race["seconds"].items():
            given = re.fullmatch(r"tkc(?: (\d+) x (\d+))?", contestant)
            if given and (block := tuple(map(int, given.groups())) if given[1] else own):
                found[*row, *block] = median(seconds), block == own
    return found


def test_all_rows_were_measured():
    """RIVALS' rows of D = 128, the other D, and blocks of two, three and four warpgroups."""
    assert {(d, c) for d, c, *_ in measured()} == {
        (d, c) for d in (32, 64, 96, 128, 192, 256) for c in (False, True)
    }
    assert {
        (128, c, s)
        for c in (False, True)
        for s in (768, 1024, 2048, 3072, 4096, 8192, 12288, 16384)
    } <= {row[:3] for row in measured()} and len({row[3:] for row in measured()}) >= 5


@pytest.mark.parametrize("d", [32, 64, 96, 128, 192, 256])
def test_attention_is_predicted_within_15_percent(d):
    """In the blocks that the library takes, and in those of as many warpgroups that it does not
    within a quarter: they leave more to what is not modelled.
    """
    rows = {
        row: attention(*row).seconds / seconds
        for row, (seconds, _) in sorted(measured().items())
        if row[0] == d
    }
    wrong = {
        row: round(ratio, 3)
        for row, ratio in rows.items()
        if abs(ratio - 1) > (0.15 if measured()[row][1] else 0.25)
    }
    assert not wrong, wrong


@pytest.mark.parametrize(
    "plan", ["128x128x64:programs=2:cluster=1x1", "128x256x64:programs=1:cluster=1x1"]
)
def test_long_products_are_predicted_within_15_percent(plan):
    """By the same model, which has no number for products."""
    from benchmarks.sweep import read

    bm, bn, bk = read(plan)["block"]
    options = {name: value for name, value in read(plan).items() if name != "block"}
    with open(RESULTS / "product_plans.csv") as file:
        rows = {r["shape"]: float(r["us"]) for r in csv.DictReader(file) if r["plan"] == plan}
    for shape in (
        "16384x16384x16384",
        "8192x8192x8192",
        "4096x4096x4096",
        "8192x14336x4096",
        "8192x4096x14336",
    ):
        m, n, k = map(int, shape.split("x"))
        found = predicted(
            harness.example("matmul").matmul,
            options,
            (-(-m // bm), -(-n // bn), 1),
            ((m, k), (k, n), (m, n)),
            a="bf16[4096, 4096]",
            b="bf16[4096, 4096]",
            c="bf16[4096, 4096]",
            RELU=False,
            BM=bm,
            BN=bn,
            BK=bk,
        )
        assert 0.85 <= found.seconds * 1e6 / rows[shape] <= 1.15, (
            shape,
            found.seconds * 1e6,
            rows[shape],
        )
        # the tensor cores never wait
        assert abs(found.step - bm * bn * bk * 2 / H200.tensor) < 0.05 * found.step


def test_shared_last_waves_are_shorter():
    """Products of 3.9 waves: with stream-K no block has more steps than another."""

    def call(**options):
        return predicted(
            harness.example("matmul").matmul,
            options,
            (32, 16, 1),
            ((4096, 4096),) * 3,
            a="bf16[4096, 4096]",
            b="bf16[4096, 4096]",
            c="bf16[4096, 4096]",
            RELU=False,
            BM=128,
            BN=256,
            BK=64,
        )

    whole, shared = call(programs=1, cluster=(1, 1)), call(programs=1, cluster=(1, 1), stream_k=4)
    assert (
        whole.programs == shared.programs == 512
        and 0.93 * whole.seconds < shared.seconds < whole.seconds
    )


# --------------------------------------------------------------------------------------------------
def test_a_steady_iteration_of_attention():
    p = attention(64, False, 4096)
    t, period = p.timeline, p.timeline.steady[1] - p.timeline.steady[0]
    assert (
        t.agents == ["producer", "consumer 0", "consumer 1"]
        and period == pytest.approx(p.step, rel=0.01)
        and p.programs == 4096
    )
    dots = {a: [s for s in t.window(2) if s.agent == a and s.engine == "tensor"] for a in t.agents}
    assert not dots["producer"] and all(len(d) >= 4 for a, d in dots.items() if a != "producer")
    spans = sorted((s.begin, s.end) for found in dots.values() for s in found)
    # one dot at a time
    assert all(b[0] >= a[1] - 1e-3 for a, b in zip(spans, spans[1:], strict=False))
    shares = t.shares()
    # two warpgroups, two dots of 256 clocks each
    assert shares["tensor"] == pytest.approx(1024 / period, rel=0.02)
    assert shares["mufu"] == pytest.approx(2 * 64 * 8.2 / period, rel=0.05)
    assert max(shares.values()) <= 1


def test_longer_loops_cost_iterations():
    short, long = attention(64, False, 4096), attention(64, False, 16384)
    assert long.step == pytest.approx(short.step) and long.fixed == pytest.approx(
        short.fixed, rel=0.02
    )
    # 96 more steps of 4096 programs, the last round not full
    assert long.clocks - short.clocks == pytest.approx(4096 / 132 * 96 * short.step, rel=0.04)


@tkc.jit
def product(a, b, c, BM: tkc.constexpr = 128):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BM
    acc = tkc.zeros((BM, BM))
    for k in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, 64)), tkc.load(b, (k, n), (64, BM)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def by_pointers(a, b, c, BM: tkc.constexpr = 128):
    m, n = tkc.program_id(0) * BM + tkc.arange(BM), tkc.program_id(1) * BM + tkc.arange(BM)
    k, acc = tkc.arange(64), tkc.zeros((BM, BM))
    left = a.ptr + m[:, None] * a.strides[0] + k[None, :]
    right = b.ptr + k[:, None] * b.strides[0] + n[None, :]
    for _ in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(left), tkc.load(right), acc)
        left += 64
        right += 64 * b.strides[0]
    tkc.store(c.ptr + m[:, None] * c.strides[0] + n[None, :], acc.to(c.dtype))


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_iterations_of_a_block_that_runs_one_program_are_counted_once(target):
    """All of a short loop's are run in the timeline; of a longer one each costs a step more."""

    def clocks(k: int):
        given = {"a": f"f16[1024, {k}]", "b": f"f16[{k}, 1024]", "c": "f16[1024, 1024]"}
        return product.predict(**given, grid=(8, 8), target=target)

    short, long = clocks(512), clocks(4096)
    kernel = TARGETS[target].engines.kernel
    assert short.clocks == pytest.approx(short.timeline.end + kernel, rel=0.02)
    assert long.fixed == pytest.approx(short.fixed, rel=0.1)
    assert long.clocks - short.clocks == pytest.approx(56 * long.step, rel=0.02)


def test_pointers_that_became_blocks_move_what_blocks_move():
    given = {name: "bf16[4096, 4096]" for name in "abc"}
    blocks, pointers = (
        kernel.predict(**given, grid=(32, 32), target="sm_90a", cluster=(1, 1))
        for kernel in (product, by_pointers)
    )
    assert pointers.memory == pytest.approx(blocks.memory, rel=0.01)
    assert pointers.seconds == pytest.approx(blocks.seconds, rel=0.02)


LITTLE = """builtin.module {
  tile.kernel @little(%x : !tile.array<?xf32, "shape 4 strides =1 align 16">) {
    level = 4 : i64, warps = 4 : i64, shared_bytes = 200000 : i64, target = "sm_90a",
    argument_names = ["x"]
  } {
    %full = tile.mbarriers 0 : !tile.barriers<1>
    tile.mbarrier_init %full {count = 1 : i64} : (!tile.barriers<1>)
    tile.roles {
      tile.role producer {warps = 4 : i64, copies = 1 : i64, single} { ^bb0(%p : i32):
        %zero = tile.constant 0 : i32
        ARRIVE
      }
      tile.role consumer {warps = 4 : i64, copies = 1 : i64} { ^bb0(%c : i32):
        %zero = tile.constant 0 : i32
        tile.mbarrier_wait %full[%zero] %zero : (!tile.barriers<1>, i32, i32)
        %y = tile.constant 1.000000e+00 : !tile.tile<128x64xf32, "128x64: 64:1@1 | 32:1@0 | 4:32@0">
        %z = tile.exp2 %y : !tile.tile<128x64xf32, "128x64: 64:1@1 | 32:1@0 | 4:32@0">
      }
    }
    tile.return
  }
}"""


def little(arrive: str):
    module = parse(LITTLE.replace("ARRIVE", arrive))
    return predict(module, Work.of(kernel_of(module)), H200)


def test_vector_work_waits_for_an_arrival():
    t = little("tile.mbarrier_arrive %full[%zero] : (!tile.barriers<1>, i32)").timeline
    (work,) = (s for s in t.segments if s.engine == "mufu")
    assert (
        work.end - work.begin == pytest.approx(64 * 8.2 + 20)
        and work.begin >= H200.engines.wait
        and dict(work.clocks)["issue"] == 64
    )


def test_who_waits_for_ever_is_named():
    with pytest.raises(CompileError, match="does not end: consumer 0 waits for full"):
        little("")
