"""Plans whose kernels need more shared memory behind the plan than it left are made again, and
leave so much more: with fewer stages, one program at a time, of one role, with operands in parts.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from benchmarks.unseen.products import solve_by_blocks
from tests.codegen.ptx import machine
from tkc.errors import CompileError, RoomError
from tkc.ir.plan import written_on
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.passes.pipeline import PIPELINE
from tkc.runtime.simulate import level4_of
from tkc.sim import level4
from tkc.tools.opt import optimize

BF16 = ml_dtypes.bfloat16


@tkc.jit
def scanned(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """What crosses warps does so once, behind the loop."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = acc + tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)))
    tkc.store(c, (m, n), tkc.cumsum(acc, 0).to(c.dtype))


@tkc.jit
def scanned_inside(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """And here in every iteration, beside the ring."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = acc + tkc.cumsum(
            tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN))), 0
        )
    tkc.store(c, (n, m), acc.T.to(c.dtype))


@tkc.jit
def scaled(a, b, s, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A tile of scales for each step, turned round as it lies in memory, used as the sum lies."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = acc + tkc.dot(
            tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN))
        ) * tkc.flip(tkc.load(s, (m, n), (BM, BN)), 1)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def counted(a, b, c, counts, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """Bytes that the emitter takes, beside the buffers."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = acc + tkc.cumsum(
            tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN))), 0
        )
    tkc.store(c, (n, m), acc.T.to(c.dtype))
    tkc.store(
        counts, (0,), tkc.histogram(tkc.abs(tkc.load(c, (n, m), (BN, 1)))[:, 0].to(tkc.int32), 2048)
    )


@tkc.jit
def once(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A product without a loop: there are no stages to have fewer of."""
    tkc.store(
        c,
        (0, 0),
        tkc.cumsum(
            tkc.dot(tkc.load(a, (0, 0), (BM, BK)), tkc.load(b, (0, 0), (BK, BN))), axis=0
        ).T.to(c.dtype),
    )


def data(kernel, m, n, k):
    """Small integers, whose sums are exact, and what the kernel makes of them."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-1, 2, (m, k)).astype(BF16), rng.integers(-1, 2, (k, n)).astype(BF16)
    whole = np.float64(a) @ np.float64(b)
    if kernel is scaled:
        s = rng.integers(-2, 3, (m, n)).astype(np.float32)
        return [a, b, s, np.zeros((m, n), np.float32)], whole * s[:, ::-1]
    if kernel is scanned:
        return [a, b, np.zeros((m, n), np.float32)], np.cumsum(whole, 0)
    return [a, b, np.zeros((n, m), np.float32)], np.cumsum(whole, 0).T


def made(kernel, arrays, name, blocks, **options):
    """Level 4 and what was compiled."""
    values, given = kernel.bound(
        *arrays, **dict(zip(("BM", "BN", "BK"), blocks, strict=False)), **options
    )
    infos = kernel._describe(values)
    return level4_of(kernel, infos, tuple(given.items()), target(name)), kernel.compile(
        *arrays, **dict(zip(("BM", "BN", "BK"), blocks, strict=False)), **options, target=name
    )


CASES = {  # kernel, target, block, steps of k, roles of the plan in the end
    "fewer stages in turn": (scanned, "sm_90a", (64, 192, 64), 2, "pingpong"),
    "one program at a time": (scanned, "sm_90a", (128, 128, 64), 2, "cooperative"),
    "fewer stages": (scaled, "sm_90a", (128, 128, 64), 2, "cooperative"),
    "one role": (scaled, "sm_90a", (128, 256, 128), 2, "one"),
    "operands in parts of a step": (scanned_inside, "sm_89", (128, 128, 128), 1, "one"),
    "operands in parts": (once, "sm_89", (128, 128, 192), 1, "one"),
    "more operands in parts": (once, "sm_80", (128, 256, 128), 1, "one"),
}


@pytest.mark.parametrize("case", CASES)
def test_again_with_less(case):
    kernel, name, blocks, steps, roles = CASES[case]
    arrays, want = data(kernel, *blocks[:2], blocks[2] * steps)
    module, compiled = made(kernel, arrays, name, blocks)
    assert written_on(module.body.block.first_op).roles == roles
    assert (
        any("later passes need them" in line for line in compiled.decisions)
        and compiled.interface.shared_bytes <= target(name).shared_bytes
    )
    level4.run(module, arrays, (1, 1, 1), 1)
    np.testing.assert_array_equal(arrays[-1], want)


def test_as_ptx():
    arrays, want = data(once, 128, 128, 192)
    module, _ = made(once, arrays, "sm_89", (128, 128, 192))
    machine.run(module, arrays, (1, 1, 1))
    np.testing.assert_array_equal(arrays[-1], want)


def test_the_emitters_bytes_count():
    """98304 bytes of buffers fit an sm_89, and 8192 more for a histogram do not."""
    given = ["bf16[512,512]", "bf16[512,512]", "f32[512,512]"]
    blocks = dict(BM=128, BN=128, BK=64)
    assert not any(
        "later passes need them" in line
        for line in scanned_inside.compile(*given, **blocks, target="sm_89").decisions
    )
    compiled = counted.compile(*given, "i32[2048]", **blocks, target="sm_89")
    assert (
        any("later passes need them" in line for line in compiled.decisions)
        and compiled.interface.shared_bytes <= 101376
    )


def test_float8_with_scales():
    """64 bytes too many cost one stage, and no more."""

    @tkc.jit
    def hoisted(
        a, b, s, c, BM: tkc.constexpr = 256, BN: tkc.constexpr = 128, BK: tkc.constexpr = 128
    ):
        m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
        acc = tkc.zeros((BM, BN), tkc.float32)
        scale = tkc.load(s, (m, 0), (BM, None))[:, None]
        for k in tkc.range(0, a.shape[1], BK):
            acc = (
                acc
                + tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (n, k), (BN, BK)).T) * scale
            )
        tkc.store(c, (m, n), acc.to(c.dtype))

    compiled = hoisted.compile(
        "e4m3[8192,8192]", "e4m3[8192,8192]", "f32[8192,64]", "bf16[8192,8192]", target="sm_90a"
    )
    assert "plan: ring 0: 4 stages of 49152 bytes" in compiled.decisions or not any(
        "later passes need them" in line for line in compiled.decisions
    )


TYPES, BLOCKS = ("bf16[4096,4096]",) * 3, dict(BM=128, BN=128, BK=64)


BUFFERS = r"kernel scanned needs \d+ bytes of shared memory and sm_90a has \d+ \(largest buffers: "
TILE = r"threads exchange 128x256 elements of a tile .*: 131072 bytes, of which sm_89 has 101376; "


@pytest.mark.parametrize(
    "kernel, name, options, said",
    [
        (scanned, "sm_90a", dict(**BLOCKS, num_stages=6), BUFFERS),
        (once, "sm_89", dict(BM=128, BN=256, BK=128), TILE),
        (scanned_inside, "sm_89", dict(BM=128, BN=256, BK=64), TILE),
    ],
    ids=["stages as asked", "nothing fits", "nothing fits in a loop"],
)
def test_the_first_refusal_stands(kernel, name, options, said):
    """The user's stages are the user's; and where no plan is left, the error is that of the plan
    that was best.
    """
    with pytest.raises(CompileError, match=said) as e:
        kernel.compile(*TYPES, **options, target=name)
    assert (
        e.type is RoomError
        and e.value.location.file == __file__
        and "use smaller tiles" in e.value.message
        and "later passes need them" not in e.value.message
    )


def test_kernels_that_fit_are_traced_once(monkeypatch):
    from tkc.language import trace

    calls, real = [], trace.trace
    monkeypatch.setattr(trace, "trace", lambda *a: calls.append(a) or real(*a))
    monkeypatch.setenv("TKC_CACHE", "0")
    for kernel in scanned, scanned_inside:
        tkc.jit(kernel.fn).compile(*TYPES, **BLOCKS, target="sm_89")
    assert len(calls) == 2


def test_who_watches_sees_the_last_plan(monkeypatch, tmp_path):
    monkeypatch.setenv("TKC_DUMP", str(tmp_path))
    monkeypatch.setenv("TKC_CACHE", "0")
    compiled = tkc.jit(scanned.fn).compile(*TYPES, **BLOCKS, target="sm_90a")
    assert [step for step, _ in compiled.times] == [
        "trace",
        *PIPELINE,
        "emit",
        "plans without room",
    ] and dict(compiled.times)["plans without room"] > 0
    assert list(compiled.stages) == ["trace", *PIPELINE]
    dumped = sorted((tmp_path / "scanned").iterdir())
    assert [path.name for path in dumped] == [
        f"{i:02}-{step}.mlir" for i, step in enumerate(compiled.stages)
    ]
    for text in dumped[PIPELINE.index("plan") + 1].read_text(), compiled.ir("plan"):
        assert written_on(parse(text).body.block.first_op).roles == "cooperative"
    assert "plans without room" in compiled.report()


def test_text_is_planned_again_too():
    compiled = scanned.compile(*TYPES, **BLOCKS, target="sm_90a")
    assert optimize(compiled.ir("trace"), "text", "sm_90a") == compiled.ir("final")
    seen = []
    optimize(
        compiled.ir("trace"),
        "text",
        "sm_90a",
        stop="plan",
        observe=lambda name, module: seen.append(name),
    )
    assert seen == list(PIPELINE[: PIPELINE.index("plan") + 1])
    with pytest.raises(RoomError):
        # who resumes brings a plan
        optimize(
            optimize(compiled.ir("trace"), "text", "sm_90a", stop="plan"),
            "text",
            resume="swap-dots",
        )


@tkc.jit
def biased(q, k, v, bias, o, scale, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Attention with a matrix of numbers to be added to its scores: three blocks an iteration."""
    m = tkc.program_id(0) * BM
    rows = tkc.load(q, (m, 0), (BM, D))
    most, total, acc = tkc.full((BM,), -1e30), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in range(0, k.shape[0], BN):
        s = tkc.dot(rows, tkc.load(k, (n, 0), (BN, D)).T) * scale
        s = s + tkc.load(bias, (m, n), (BM, BN)).to(tkc.float32)
        now = tkc.maximum(most, tkc.max(s, 1))
        p, less = tkc.exp(s - now[:, None]), tkc.exp(most - now)
        total = total * less + tkc.sum(p, 1)
        part = tkc.dot(p.to(v.dtype), tkc.load(v, (n, 0), (BN, D)))
        acc, most = acc * less[:, None] + part, now
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def test_results_leave_from_registers_where_operands_take_all_memory():
    """Two stages of all three blocks, and no byte for the result: roles, and no spill."""
    s, d = 256, 128
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((s, d)).astype(BF16) for _ in range(3))
    bias, o = rng.standard_normal((s, s)).astype(BF16), np.zeros((s, d), BF16)
    arrays = [q, k, v, bias, o, np.float32(d**-0.5)]
    sizes = {"BM": 128, "BN": 128, "D": d}
    values, given = biased.bound(*arrays, **sizes)
    module = level4_of(biased, biased._describe(values), tuple(given.items()), target("sm_90a"))
    plan = written_on(module.body.block.first_op)
    assert plan.roles == "cooperative" and plan.epilogue == "direct"
    compiled = biased.compile(*arrays, **sizes, target="sm_90a")
    assert any("no buffers in shared memory" in d for d in compiled.decisions)
    assert compiled.resources.spill_stores == 0
    level4.run(module, arrays, (2, 1, 1), 1)
    scores = q.astype(float) @ k.astype(float).T * d**-0.5 + bias.astype(float)
    p = np.exp(scores - scores.max(1, keepdims=True))
    want = p @ v.astype(float) / p.sum(1, keepdims=True)
    np.testing.assert_allclose(o.astype(float), want, atol=0.02)


@tkc.jit
def rotated(x, y, N: tkc.constexpr, TIMES: tkc.constexpr):
    """A tile that moves by a place, again and again: a loop that Python unrolls."""
    tile, before = tkc.load(x, (0,), (N,)), (tkc.arange(N) + N - 1) % N
    for _ in range(TIMES):
        tile = tkc.gather(tile, before, 0)
    tkc.store(y, (0,), tile)


def test_operations_that_take_memory_one_after_the_other_share_it():
    """Sixty tiles of 4 KiB in turn are in one place, and no thread reads another turn's."""
    compiled = rotated.compile("f32[1024]", "f32[1024]", 1024, 60, target="sm_90a")
    assert compiled.interface.shared_bytes == 4096
    x, y = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
    values, given = rotated.bound(x, y, 1024, 3)
    module = level4_of(rotated, rotated._describe(values), tuple(given.items()), target("sm_90a"))
    machine.run(module, [x, y], (1, 1, 1))
    np.testing.assert_array_equal(y, np.roll(x, 3))


def test_one_block_where_two_have_no_room(monkeypatch):
    """Each of two on a multiprocessor needs all that later passes had too little of."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng, n = np.random.default_rng(0), 192
    low = np.tril(rng.integers(-1, 2, (n, n)), -1).astype(np.float16)
    for i in range(0, n, 64):
        low[i : i + 64, i : i + 64] = 0
    b = rng.integers(-1, 2, (n, 128)).astype(np.float16)
    inverse = np.tile(np.eye(64, dtype=np.float16), (n // 64, 1))
    x = np.zeros_like(b)
    solve_by_blocks[1](low, inverse, b, x, 64, 128)
    want = np.linalg.solve(np.eye(n) + low.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(x, want, rtol=2e-2, atol=2e-2 * np.abs(want).max())
