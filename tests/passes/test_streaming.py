"""Plans of programs without dots; rows over a cluster, at every stage and with every barrier of the
cluster missing in turn; scans over warps.
"""

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, i32, traced
from tests.passes.kernels import BF16, aligned
from tests.passes.test_plan import planned
from tkc.ir import shared, threads, tile
from tkc.ir.plan import Plan
from tkc.ir.target import TARGETS
from tkc.ir.text import parse
from tkc.kernels.losses import _cross_entropy as tuned_cross_entropy
from tkc.kernels.norms import _norm as tuned_norm
from tkc.kernels.norms import _norm_backward
from tkc.kernels.scans import _cumsum
from tkc.kernels.scans import _cumsum_rows as tuned_cumsum_rows
from tkc.kernels.softmax import _softmax as tuned_softmax
from tkc.language.signature import Options
from tkc.passes import PassContext, fetch_ahead
from tkc.passes.planning.streaming import row_of
from tkc.sim import dataflow, level0, level4
from tkc.sim.check import check
from tkc.sim.errors import SimulationError
from tkc.sim.report import Violation

# without the choice of blocks
_cross_entropy, _cumsum_rows, _norm, _softmax = (
    tuned.kernel for tuned in (tuned_cross_entropy, tuned_cumsum_rows, tuned_norm, tuned_softmax)
)


def plan_of(kernel, *arguments, target="sm_90a", **keywords):
    compiled = kernel.compile(*arguments, target=target, **keywords)
    (op,) = parse(compiled.ir("plan")).body.block.ops
    return Plan.from_text(op.attributes["plan"].data), compiled


class Stages(dict):
    """Modules by the passes behind which they stand: read from their texts where one is used."""

    def __init__(self, texts):
        self.texts = texts

    def __missing__(self, name):
        self[name] = module = parse(self.texts[name])
        return module


def stages_of(kernel, *arguments, target="sm_90a", **keywords):
    return Stages(kernel.compile(*arguments, target=target, **keywords).stages)


# ---- choices -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "columns, target, warps, blocks",
    [
        (512, "sm_90a", 4, 1),
        (8192, "sm_90a", 8, 1),
        (32768, "sm_80", 32, 1),
        (32768, "sm_90a", 4, 2),
        (131072, "sm_90a", 4, 8),
        (4096, "sm_80", 4, 1),
    ],
)
def test_warps_and_blocks_follow_the_row(columns, target, warps, blocks):
    rows = max(1, 2048 // columns)
    found, compiled = plan_of(
        _softmax,
        f"bf16[64, {columns}]",
        f"bf16[64, {columns}]",
        LOG=False,
        ROWS=rows,
        COLUMNS=columns,
        target=target,
    )
    assert (found.warps, found.cluster_split[0]) == (warps, blocks)
    assert any(line.startswith(f"plan: {warps} warps") for line in compiled.decisions)
    assert compiled.interface.cluster == (blocks, 1) and compiled.resources.clean


def test_more_live_tiles_take_more_warps():
    few, _ = plan_of(_softmax, "bf16[64, 4096]", "bf16[64, 4096]", LOG=False, ROWS=1, COLUMNS=4096)
    many, _ = plan_of(
        _norm_backward,
        "bf16[64, 4096]",
        "bf16[64, 4096]",
        "bf16[64, 4096]",
        "bf16[4096]",
        "bf16[64, 4096]",
        "f32[4, 4096]",
        "f32[4, 4096]",
        None,
        None,
        "f32",
        CENTRE=True,
        ROWS=1,
        COLUMNS=4096,
    )
    assert many.warps > few.warps


def test_blocks_that_carry_sums_share_a_multiprocessor():
    """While one waits where its threads meet, another computes: small blocks, and nothing read
    ahead where that would leave a multiprocessor one. Long rows come to one block through rings.
    """

    def found(columns, rows="bf16"):
        row = f"{rows}[64, {columns}]"
        return plan_of(
            _norm_backward,
            row,
            None,
            row,
            f"bf16[{columns}]",
            row,
            f"f32[4, {columns}]",
            f"f32[4, {columns}]",
            None,
            None,
            "f32",
            CENTRE=True,
            ROWS=1,
            COLUMNS=-(-columns // 64) * 64,
        )

    for columns, warps, blocks, resident, ahead in (
        (4096, 8, 1, 2, True),
        (4099, 8, 1, 2, False),
    ):
        plan, compiled = found(columns)
        assert (plan.warps, plan.cluster_split[0], plan.blocks, plan.prefetch) == (
            warps,
            blocks,
            resident,
            ahead,
        ) and compiled.resources.clean
        assert (
            f".minnctapersm {resident}" in compiled.ptx
            and compiled.resources.registers * 32 * warps * resident <= 65536
        )
    plan, compiled = found(8192)
    assert (plan.warps, plan.cluster_split[0], plan.prefetch) == (16, 1, False)
    assert any("ring" in line or "stages" in line for line in compiled.decisions)
    assert compiled.resources.clean
    plan, _ = plan_of(
        _norm_backward,
        "bf16[64, 4096]",
        None,
        "bf16[64, 4096]",
        None,
        "bf16[64, 4096]",
        None,
        None,
        None,
        None,
        "f32",
        CENTRE=False,
        ROWS=1,
        COLUMNS=4096,
        maxnreg=96,
    )
    assert plan.blocks == 0  # the user's limit is the limit


def test_reductions_that_do_not_need_one_another_share_a_barrier():
    """Mean and sum of one row at one barrier, squares and products of what the mean was taken from
    at another.
    """
    row = "bf16[64, 4096]"
    compiled = _norm_backward.compile(
        row,
        None,
        row,
        "bf16[4096]",
        row,
        "f32[4, 4096]",
        "f32[4, 4096]",
        None,
        None,
        "f32",
        CENTRE=True,
        ROWS=1,
        COLUMNS=4096,
        target="sm_90a",
    )
    assert any("insert-synchronization: 2 barriers" in line for line in compiled.decisions)
    kinds = [
        type(op)
        for op in parse(compiled.ir("final")).walk()
        if isinstance(op, (shared.ReducePartial, shared.Write, shared.Read))
    ]
    assert kinds == 2 * [
        shared.ReducePartial,
        shared.Write,
        shared.ReducePartial,
        shared.Write,
        shared.Read,
        shared.Read,
    ]


@tkc.jit
def _first_column(x, out, N: tkc.constexpr):
    """Reads an element of the row for all: no plain row program."""
    values = tkc.load(x, (tkc.program_id(0), 0), (None, N))
    tkc.store(out, (tkc.program_id(0), 0), (values - values[0] + tkc.max(values))[None, :])


def test_what_cannot_be_split_stays_in_one_block():
    assert plan_of(_first_column, "f32[4, 4096]", "f32[4, 4096]", N=4096, num_ctas=2)[
        0
    ].cluster_split == (
        1,
        0,
    )
    assert plan_of(
        _softmax, "f32[4, 4096]", "f32[4, 4096]", LOG=False, ROWS=1, COLUMNS=4096, num_ctas=2
    )[0].cluster_split == (2, 4096)
    found, compiled = plan_of(
        _softmax, "f32[4, 1000]", "f32[4, 1000]", LOG=False, ROWS=1, COLUMNS=1000, num_ctas=2
    )
    assert found.cluster_split == (1, 0) and any(
        "num_ctas = 2 is not used" in line for line in compiled.decisions
    )


def _two_lengths(x, w, out, other, N: tkc.constexpr, M: tkc.constexpr):
    row = tkc.program_id(0)
    values = tkc.load(x, (row, 0), (None, N))
    tkc.store(out, (row, 0), (values - tkc.max(values))[None, :])
    tkc.store(other, (row, 0), tkc.load(w, (row, 0), (None, M))[None, :] * 2)


def _sums_of_a_square(x, rows, columns, N: tkc.constexpr):
    values = tkc.load(x, (0, 0), (N, N))
    tkc.store(rows, (0,), tkc.sum(values, axis=1))
    tkc.store(columns, (0,), tkc.sum(values, axis=0))


@pytest.mark.parametrize(
    "kernel, ranks, constants, extent",
    [
        (_two_lengths, (2, 2, 2, 2), {"N": 4096, "M": 4096}, 4096),
        (_two_lengths, (2, 2, 2, 2), {"N": 4096, "M": 2048}, 0),
        (_sums_of_a_square, (2, 1, 1), {"N": 1024}, 0),
    ],
)
def test_blocks_share_rows_of_one_length_along_one_axis(kernel, ranks, constants, extent):
    """Of a tile without that axis no part is one block's own; of one with two such, either is."""
    module = traced(kernel, *(array(tkc.float32, rank) for rank in ranks), **constants)
    assert row_of(level0.kernel_of(module), ()) == extent


def _doubled_tile(x, out, N: tkc.constexpr):
    place = tkc.program_id(0) * N
    tkc.store(out, (place,), tkc.load(x, (place,), (N,)) * 2)


def _changed_again_and_again(x, out, n, N: tkc.constexpr):
    row = tkc.program_id(0)
    values = tkc.load(x, (row, 0), (None, N))
    for _ in tkc.range(0, n):
        values = values - tkc.max(values) / 2
    tkc.store(out, (row, 0), values[None, :])


@pytest.mark.parametrize(
    "kernel, arguments, size",
    [
        (_doubled_tile, (array(tkc.float32, 1, shape=(65536,)),) * 2, 16384),
        (_changed_again_and_again, (aligned(tkc.float32, 2),) * 2 + (i32(),), 32768),
    ],
)
def test_programs_without_rows_and_with_loops_do_not_stream(kernel, arguments, size):
    plan = planned(traced(kernel, *arguments, N=size), "sm_90a")
    assert not plan.persistent and not any("stream" in line for line in plan.decisions)


# ---- a row over a cluster ------------------------------------------------------------------------
def softmax_data(columns=4093, block=4096):
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return (
        _softmax,
        (x, np.full_like(x, np.nan)),
        dict(LOG=False, ROWS=1, COLUMNS=block),
        [None, e / e.sum(1, keepdims=True)],
        (2,),
    )


def norm_data(columns=4096):
    x, w = (
        np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32),
        np.ones(columns, np.float32),
    )
    h = x.astype(np.float64) - x.mean(1, keepdims=True)
    return (
        _norm,
        (x, None, w, w, np.full_like(x, np.nan), None, 1e-5),
        dict(CENTRE=True, ROWS=1, COLUMNS=columns),
        [None, None, None, h / np.sqrt((h * h).mean(1, keepdims=True) + 1e-5) + 1],
        (3,),
    )


def backward_data(columns=4096):
    rng = np.random.default_rng(0)
    g, x, w = (
        rng.standard_normal((3, columns)).astype(np.float32),
        rng.standard_normal((3, columns)).astype(np.float32),
        rng.standard_normal(columns).astype(np.float32),
    )
    s = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
    n, d = x * s, g.astype(np.float64) * w
    sums = np.stack([(g * n)[0::2].sum(0), (g * n)[1::2].sum(0)])
    return (
        _norm_backward,
        (
            g,
            None,
            x,
            w,
            np.full_like(x, np.nan),
            np.full((2, columns), np.nan, np.float32),
            None,
            None,
            None,
            1e-5,
        ),
        dict(CENTRE=False, ROWS=1, COLUMNS=columns),
        [None, None, None, s * (d - n * (d * n).mean(1, keepdims=True)), sums],
        (2,),
    )


def loss_data(columns=4096):
    x, target = (
        np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32),
        np.array([5, 4000]),
    )
    lse = np.log(np.exp(x.astype(np.float64)).sum(1))
    return (
        _cross_entropy,
        (x, target, np.full(2, np.nan, np.float32), np.full(2, np.nan, np.float32), 1.0),
        dict(IGNORE=-100, GRAD=False, ROWS=1, COLUMNS=columns),
        [None, None, lse - x[[0, 1], target], lse],
        (2,),
    )


def overwritten_data():
    """Rows that are read at one more place before they are overwritten."""
    kernel, given, constants, want, grid = loss_data()
    x, target = given[:2]
    slopes = np.exp(x.astype(np.float64) - want[3][:, None])
    slopes[[0, 1], target] -= 1
    return kernel, given, constants | {"GRAD": True}, [slopes, *want[1:]], grid


DATA = {
    "softmax": softmax_data,
    "norm": norm_data,
    "norm backward": backward_data,
    "cross-entropy": loss_data,
    "cross-entropy in place": overwritten_data,
}


def run(module, arrays, scalars, grid, seed):
    if level0.kernel_of(module).level < 4:
        dataflow.run(module, [*arrays, *scalars], grid)
    else:
        level4.run(module, [*arrays, *scalars], grid, seed, resident=2)


@pytest.mark.parametrize("name", DATA)
def test_every_stage_of_a_program_split_over_a_cluster_means_the_same(name):
    kernel, given, constants, want, grid = DATA[name]()
    for blocks in 2, 4:
        stages = stages_of(
            kernel, *given, **constants, num_ctas=blocks, num_warps=2 if blocks == 4 else 4
        )
        assert (
            level0.kernel_of(stages["assign-registers"]).attributes["cluster"].data[0].value.data
            == blocks
        )
        for stage in "plan", "select-layouts", "swizzle-shared", "assign-registers":
            scalars = [a for a in given if isinstance(a, float)]
            for seed in range(4) if stage == "assign-registers" else (0,):
                arrays = [a.copy() for a in given if isinstance(a, np.ndarray)]
                run(stages[stage], arrays, scalars, grid, seed)
                for got, right in zip(arrays, want, strict=False):
                    if right is not None:
                        np.testing.assert_allclose(got, right, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", DATA)
def test_what_the_text_of_a_program_split_over_a_cluster_computes(name):
    kernel, given, constants, want, grid = DATA[name]()
    arrays, scalars = (
        [a.copy() for a in given if isinstance(a, np.ndarray)],
        [a for a in given if isinstance(a, float)],
    )
    machine.run(
        stages_of(kernel, *given, **constants, num_ctas=2, num_warps=4)["assign-registers"],
        [*arrays, *scalars],
        grid,
        seed=1,
    )
    for got, right in zip(arrays, want, strict=False):
        if right is not None:
            np.testing.assert_allclose(got, right, rtol=3e-5, atol=3e-5)


def dropped(final, kind):
    """The program without each operation of a kind in turn."""
    for missing in range(sum(isinstance(op, kind) for op in parse(final).walk())):
        module = parse(final)
        op = [op for op in module.walk() if isinstance(op, kind)][missing]
        if kind is threads.ClusterWait:
            arrive = op.prev_op
            while not isinstance(arrive, threads.ClusterArrive):
                arrive = arrive.prev_op
            arrive.detach()
        op.detach()
        yield module


@pytest.mark.parametrize(
    "kind",
    [
        threads.ClusterWait,
        threads.MbarrierInit,
        threads.MbarrierExpect,
        threads.Send,
        threads.MbarrierWait,
    ],
)
def test_all_that_orders_an_exchange_is_needed(kind):
    kernel, given, constants, _, grid = backward_data()
    compiled = kernel.compile(*given, **constants, target="sm_90a", num_ctas=2, num_warps=4)
    assert any("2 exchanges between the blocks" in line for line in compiled.decisions) and any(
        "1 of the cluster" in line for line in compiled.decisions
    )
    for module in dropped(compiled.ir("final"), kind):
        with pytest.raises(SimulationError):
            [
                run(
                    module,
                    [a.copy() for a in given if isinstance(a, np.ndarray)],
                    [1e-5],
                    grid,
                    seed,
                )
                for seed in range(8)
            ]


@tkc.jit
def _range(x, out, N: tkc.constexpr):
    for row in tkc.range(tkc.program_id(0), x.shape[0], tkc.num_programs(0)):
        values = tkc.load(x, (row, 0), (1, N))
        tkc.store(
            out, (row, 0), values * 0 + (tkc.max(values, axis=1) - tkc.min(values, axis=1))[:, None]
        )


@tkc.jit
def _mixed(x, out, N: tkc.constexpr):
    """Truth values, which no store sends with a barrier."""
    for row in tkc.range(tkc.program_id(0), x.shape[0], tkc.num_programs(0)):
        values = tkc.load(x, (row, 0), (1, N))
        tkc.store(
            out,
            (row, 0),
            tkc.where(
                (tkc.any(values > 8, axis=1) & ~tkc.all(values < 9, axis=1))[:, None], values, 0
            ),
        )


def test_narrow_elements_are_sent_as_words():
    x = np.random.default_rng(0).integers(-9, 9, (3, 2048)).astype(np.float16)
    compiled, out = (
        _range.compile(x, x.copy(), N=2048, target="sm_90a", num_ctas=2, num_warps=4),
        np.zeros_like(x),
    )
    assert any("2 exchanges" in line for line in compiled.decisions)
    for stage in "swizzle-shared", "final":
        run(parse(compiled.ir(stage)), [x, out], [], (2,), 0)
        np.testing.assert_array_equal(out, np.broadcast_to(np.ptp(x, 1, keepdims=True), x.shape))
        out[...] = 0


def test_every_barrier_of_the_cluster_is_needed():
    x = np.random.default_rng(0).integers(-9, 9, (3, 2048)).astype(np.float32)
    x[1, 2000] = 9
    compiled = _mixed.compile(x, x.copy(), N=2048, target="sm_90a", num_ctas=2, num_warps=4)
    final = compiled.ir("final")
    assert (
        final.count("tile.cluster_wait") == 3
        and "st.shared::cluster" in compiled.ptx
        and not any("exchange" in line for line in compiled.decisions)
    )
    out = np.zeros_like(x)
    for seed in range(4):
        run(parse(final), [x, out], [], (2,), seed)
    np.testing.assert_array_equal(out, np.where((x > 8).any(1, keepdims=True), x, 0))
    for module in dropped(final, threads.ClusterWait):
        with pytest.raises(Violation):
            [run(module, [x, out], [], (2,), seed) for seed in range(8)]


def test_blocks_send_one_another_partial_results():
    kernel, given, constants, _, _ = softmax_data()
    compiled = kernel.compile(*given, **constants, target="sm_90a", num_ctas=2)
    writes = [
        op for op in parse(compiled.ir("swizzle-shared")).walk() if isinstance(op, shared.Write)
    ]
    sends = [op for op in parse(compiled.ir("final")).walk() if isinstance(op, threads.Send)]
    assert len(writes) == len(sends) == 2 and all(op.everywhere is not None for op in writes)
    assert (
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes" in compiled.ptx
        and "mapa.shared::cluster" in compiled.ptx
        and "%clusterid.x" in compiled.ptx
    )
    # one in release order would wait for all of memory
    assert (
        compiled.ptx.count("barrier.cluster.arrive") == 1
        and "barrier.cluster.arrive.relaxed" in compiled.ptx
    )


# ---- scans over warps ----------------------------------------------------------------------------
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "shape, dtype", [((1, 2048), np.float32), ((3, 1024), np.int32), ((1, 4096), BF16)]
)
def test_scans_of_runs_mean_the_same(shape, dtype, reverse):
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    out = np.zeros(shape, np.int32 if dtype is np.int32 else np.float32)
    turn = (lambda a: a[:, ::-1]) if reverse else lambda a: a
    want = turn(np.cumsum(turn(x.astype(np.float64)), 1))
    stages = stages_of(_cumsum_rows, x, out, REVERSE=reverse, ROWS=1, COLUMNS=shape[1], num_warps=8)
    # totals, not the row
    assert level0.kernel_of(stages["assign-registers"]).integer("shared_bytes") <= 1024
    for stage in "plan", "select-layouts", "swizzle-shared", "assign-registers":
        out[...] = 0
        run(stages[stage], [x, out], [], (shape[0],), 0)
        np.testing.assert_array_equal(out, want)


@tkc.jit
def _scanned_softmax(x, out, REVERSE: tkc.constexpr, N: tkc.constexpr):
    value = tkc.load(x, (tkc.program_id(0), 0), (1, N)).to(tkc.float32)
    power = tkc.exp2(value - tkc.max(value, axis=1)[:, None])
    tkc.store(
        out,
        (tkc.program_id(0), 0),
        (tkc.cumsum(power, axis=1, reverse=REVERSE) + tkc.sum(power, axis=1)[:, None]).to(
            out.dtype
        ),
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "columns, options",
    [
        (32768, {}),
        (4096, dict(num_warps=32)),
        (2048, dict(num_warps=32, persistent=True)),
        (1024, dict(num_warps=8)),
    ],
)
@pytest.mark.parametrize("target, dtype", [("sm_90a", np.float32), ("sm_89", BF16)])
def test_scans_of_as_many_runs_as_there_are_lanes(target, dtype, columns, options, reverse):
    """What 32 warps come to is read by the lanes of each, one each. Powers of two, whose sums are
    exact.
    """
    x = np.random.default_rng(0).integers(-2, 1, (2, columns)).astype(dtype)
    out, turn = (
        np.zeros((2, columns), np.float32),
        ((lambda a: a[:, ::-1]) if reverse else (lambda a: a)),
    )
    power = np.exp2(x.astype(np.float64) - x.astype(np.float64).max(axis=1, keepdims=True))
    want = turn(np.cumsum(turn(power), 1)) + power.sum(1, keepdims=True)
    stages = stages_of(
        _scanned_softmax, x, out, REVERSE=reverse, N=columns, target=target, **options
    )
    for stage in "plan", "select-layouts", "swizzle-shared", "assign-registers", "PTX":
        out[...] = 0
        if stage == "PTX":
            machine.run(stages["assign-registers"], [x, out], (2, 1, 1))
        else:
            run(stages[stage], [x, out], [], (2,), 0)
        np.testing.assert_array_equal(out, want)


# ---- reading ahead -------------------------------------------------------------------------------
@tkc.jit
def _total(x, y, out, N: tkc.constexpr):
    total = tkc.zeros((N,))
    for i in tkc.range(tkc.program_id(0) * N, x.shape[0], tkc.num_programs(0) * N):
        values = tkc.load(x, (i,), (N,))
        total = total + values * tkc.load(y, (i // 2,), (N,))
        tkc.store(out, (i,), total)


@pytest.mark.parametrize("n", [0, 1, 127, 128, 1000])
def test_loops_read_one_iteration_ahead(n):
    x, y = np.arange(n, dtype=np.float32) % 7, np.arange(n, dtype=np.float32) % 5
    out = np.full(n, np.nan, np.float32)
    stages, results = stages_of(_total, x, y, out, N=128, num_stages=1), []
    text = str(level0.kernel_of(stages["fetch-ahead"]))
    assert text.count("tile.load") == 4 * (n > 0) and str(
        level0.kernel_of(stages["schedule-programs"])
    ).count("tile.load") == 2 * (n > 0)  # over an empty array there is no loop
    for stage in "plan", "fetch-ahead", "assign-registers":
        out[...] = np.nan
        run(stages[stage], [x, y, out], [], (2,), 0)
        results.append(out.copy())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_what_a_loop_writes_is_not_read_ahead():
    x = np.zeros(512, np.float32)
    assert "fetch-ahead" in " ".join(
        _total.compile(x, x.copy(), x.copy(), N=128, num_stages=1, target="sm_90a").decisions
    )
    # out is x: only y is read ahead
    assert "fetch-ahead: 1 load " in " ".join(
        _total.compile(x, x.copy(), x, N=128, num_stages=1, target="sm_90a").decisions
    )


@tkc.jit
def _of_views(x, out, N: tkc.constexpr):
    """Sums matrices, each a view that the counter chooses: behind the last there is none to read
    ahead of.
    """
    total = tkc.zeros((N,))
    for i in tkc.range(x.shape[0]):
        total = total + tkc.load(x[i], (0,), (N,))
    tkc.store(out, (0,), total)


def test_a_view_that_the_counter_chooses_is_not_read_ahead():
    x, out = np.arange(3 * 100, dtype=np.float32).reshape(3, 100), np.zeros(100, np.float32)
    compiled = _of_views.compile(x, out, N=128, target="sm_90a")
    assert not any(line.startswith("fetch-ahead") for line in compiled.decisions)
    for stage in "plan", "fetch-ahead", "assign-registers":
        out[...] = np.nan
        module = parse(compiled.ir(stage))
        (level4 if stage == "assign-registers" else dataflow).run(module, [x, out], (1,))
        np.testing.assert_array_equal(out, x.sum(0))


# ---- a block takes one program after the other ---------------------------------------------------
def many(data, programs):
    """The same arrays with so many rows."""
    kernel, given, constants, _, _ = data

    def rows(a):
        return (
            np.resize(a, (programs, a.shape[1])) if isinstance(a, np.ndarray) and a.ndim == 2 else a
        )

    return kernel, tuple(map(rows, given)), constants


def added_norm(columns=1024):
    x, w = (
        np.random.default_rng(0).standard_normal((2, 5, columns)).astype(np.float32),
        np.ones(columns, np.float32),
    )
    return (
        _norm,
        (x[0], x[1], w, w, np.full_like(x[0], np.nan), np.full_like(x[0], np.nan), 1e-5),
        dict(CENTRE=True, ROWS=1, COLUMNS=columns),
        None,
        (5,),
    )


PERSISTENT = {
    "norm": lambda: norm_data(1024),
    "long norm": lambda: norm_data(4096),
    "softmax": lambda: softmax_data(1021, 1024),
    "short softmax": lambda: softmax_data(1008, 1024),
    "two in, two out": added_norm,
}


@pytest.mark.parametrize(
    "name, options",
    [
        ("norm", {"num_warps": 2}),
        ("softmax", {"num_warps": 2, "num_ctas": 2}),
        ("norm", {"num_warps": 2, "num_stages": 1}),
        ("long norm", {"num_warps": 2, "num_stages": 2}),
        ("short softmax", {"num_warps": 2, "num_stages": 3}),
        ("short softmax", {"num_warps": 1, "num_ctas": 4, "num_stages": 2}),
        ("two in, two out", {"num_warps": 2, "num_ctas": 2, "num_stages": 3}),
    ],
)
def test_a_persistent_program_means_the_same(name, options):
    """Of five programs each of two blocks (or clusters) takes two or three, and reads the next
    ones' rows while it computes: into registers, or into a ring that each thread fills for itself.
    """
    kernel, given, constants = many(PERSISTENT[name](), 5)
    compiled, scalars = (
        kernel.compile(*given, **constants, target="sm_90a", persistent=True, **options),
        [1e-5] * ("softmax" not in name),
    )
    ring = "num_stages" in options
    assert (
        compiled.interface.persistent
        and compiled.resources.clean
        and any(
            line.startswith("pipeline-async-copies: " if ring else "fetch-ahead: ")
            for line in compiled.decisions
        )
    )
    # a ring costs none
    assert any(
        "insert-synchronization: "
        + ("0 barriers, 1 of the cluster" if "num_ctas" in options else "2 barriers")
        in line
        for line in compiled.decisions
    )
    assert any("stays in 32768 bytes of shared memory" in line for line in compiled.decisions) == (
        name == "long norm"
    )
    want = [a.copy() for a in given if isinstance(a, np.ndarray)]
    run(parse(compiled.ir("trace")), want, scalars, (5,), 0)
    for stage in ("pipeline-async-copies" if ring else "fetch-ahead"), "assign-registers", "text":
        for seed in range(2) if stage == "assign-registers" else (0,):
            arrays = [a.copy() for a in given if isinstance(a, np.ndarray)]
            if stage == "text":
                machine.run(
                    parse(compiled.ir("assign-registers")), [*arrays, *scalars], (5,), seed=1
                )
            else:
                run(parse(compiled.ir(stage)), arrays, scalars, (5,), seed)
            for got, right in zip(arrays, want, strict=False):
                np.testing.assert_allclose(got, right, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("kind", [threads.CpWait, threads.CpCommit])
def test_a_ring_of_ones_own_waits_for_its_copies(kind):
    kernel, given, constants = many(softmax_data(1008, 1024), 5)
    final = kernel.compile(
        *given, **constants, target="sm_90a", persistent=True, num_warps=2, num_stages=2
    ).ir("final")
    for module in dropped(final, kind):
        with pytest.raises(SimulationError):
            [run(module, [a.copy() for a in given], [], (5,), seed) for seed in range(8)]


CLAIMED = {
    "a block": {"num_warps": 2, "num_stages": 1},
    "two rows ahead": {"num_warps": 2, "num_stages": 2},
    "a cluster": {"num_warps": 1, "num_ctas": 2, "num_stages": 1},
}


@pytest.mark.parametrize("name", CLAIMED)
def test_programs_that_stream_are_claimed_one_by_one(name):
    """Each is run once, however quick the blocks are, and the counter is zero again for the next
    launch; one barrier of the row's own reductions tells a block what was claimed.
    """
    kernel, given, constants = many(PERSISTENT["short softmax"](), 9)
    compiled = kernel.compile(
        *given, **constants, target="sm_90a", persistent=True, **CLAIMED[name]
    )
    final = compiled.ir("final")
    assert (
        sum(isinstance(op, threads.NextProgram) for op in parse(final).walk()) == 1
        and compiled.resources.clean
    )
    for programs in 1, 2, 3, 9:
        x, out = (a[:programs].copy() for a in given)
        for seed in range(3):
            out[...] = np.nan
            level4.run(parse(final), [x, out], (programs,), seed, resident=2)
            np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)
    x, out = given[0].copy(), np.full_like(given[1], np.nan)
    machine.run(parse(final), [x, out], (9,), seed=1)
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["a block", "two rows ahead", "a cluster"])
def test_what_a_program_looks_up_arrives_with_its_row(name):
    """In place: the class is loaded a program early, its score before the wait for the row."""
    x, target = (
        np.random.default_rng(0).standard_normal((9, 1024)).astype(np.float32),
        np.array([5, 900, 0, -100, 1023, 7, 2000, 64, 1]),
    )
    e = np.exp(x.astype(np.float64))
    share = e / e.sum(1, keepdims=True)
    counts, inside = target != -100, (target >= 0) & (target < 1024)
    loss = np.where(
        inside, -np.log(share[range(9), np.where(inside, target, 0)]), np.where(counts, np.inf, 0)
    )
    grad = counts[:, None] * (share - (target[:, None] == np.arange(1024)))
    compiled = _cross_entropy.compile(
        x,
        target,
        np.zeros(9, np.float32),
        None,
        1.0,
        IGNORE=-100,
        GRAD=True,
        ROWS=1,
        COLUMNS=1024,
        target="sm_90a",
        persistent=True,
        **CLAIMED[name],
    )
    (body,) = (
        op.after_region.block
        for op in parse(compiled.ir("final")).walk()
        if isinstance(op, scf.WhileOp)
    )
    asked = [
        op.extents.get_values() if isinstance(op, tile.Load) else "wait"
        for op in body.ops
        if isinstance(op, (tile.Load, threads.CpWait))
    ]
    assert asked == [(-1, -1), (1,), (-1,), "wait"] and compiled.resources.clean
    for programs in 1, 2, 9:
        for seed in range(3):
            arrays = [a[:programs].copy() for a in (x, target, np.zeros(9, np.float32))]
            level4.run(parse(compiled.ir("final")), [*arrays, 1.0], (programs,), seed, resident=2)
            np.testing.assert_allclose(arrays[0], grad[:programs], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(arrays[2], loss[:programs], rtol=1e-5, atol=1e-6)


@tkc.jit
def _doubled(x, out, N: tkc.constexpr):
    row = tkc.program_id(0)
    tkc.store(out, (row, 0), tkc.load(x, (row, 0), (1, N)) * 2)


def test_claims_are_broadcast_where_nothing_else_is_written():
    x, out = np.arange(7 * 1024, dtype=np.float32).reshape(7, 1024), np.zeros((7, 1024), np.float32)
    compiled = _doubled.compile(
        x, out, N=1024, target="sm_90a", persistent=True, num_stages=2, num_warps=4
    )
    assert any("claimed one by one" in line for line in compiled.decisions)
    for seed in range(6):
        out[...] = 0
        level4.run(parse(compiled.ir("final")), [x, out], (7,), seed, resident=3)
        np.testing.assert_array_equal(out, 2 * x)
    machine.run(parse(compiled.ir("final")), [x, (again := np.zeros_like(x))], (7,), seed=1)
    np.testing.assert_array_equal(again, 2 * x)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("a block", threads.BlockBarrier),
        ("a block", threads.BroadcastStore),
        ("a cluster", threads.MbarrierWait),
        ("a cluster", threads.MbarrierExpect),
        ("a cluster", threads.Send),
    ],
)
def test_all_that_broadcasts_a_claim_is_needed(name, kind):
    kernel, given, constants = many(PERSISTENT["short softmax"](), 9)
    for module in dropped(
        kernel.compile(*given, **constants, target="sm_90a", persistent=True, **CLAIMED[name]).ir(
            "final"
        ),
        kind,
    ):
        with pytest.raises(SimulationError):
            [run(module, [a.copy() for a in given], [], (9,), seed) for seed in range(8)]


def test_a_row_over_a_cluster_is_predicted():
    found = _softmax.predict(
        "bf16[2048, 131072]",
        "bf16[2048, 131072]",
        LOG=False,
        ROWS=1,
        COLUMNS=131072,
        target="sm_90a",
        grid=(2048,),
    )
    assert 230e-6 < found.seconds < 350e-6  # measured: 273 us


def test_a_cluster_of_sixteen_blocks_by_keyword():
    kernel, given, constants, want, grid = softmax_data()
    final = parse(
        kernel.compile(*given, **constants, target="sm_90a", num_ctas=16, num_warps=1).ir("final")
    )
    for runner in (
        lambda arrays: run(final, arrays, [], grid, 0),
        lambda arrays: machine.run(final, arrays, grid, seed=1),
    ):
        runner(arrays := [a.copy() for a in given])
        np.testing.assert_allclose(arrays[1], want[1], rtol=3e-5, atol=3e-5)


def test_what_all_programs_read_is_kept_where_there_is_room():
    arguments = "bf16[64, 1024]", None, "bf16[1024]", "bf16[1024]", "bf16[64, 1024]", None, "f32"
    found, compiled = plan_of(_norm, *arguments, CENTRE=True, ROWS=1, COLUMNS=1024, persistent=True)
    assert (
        found.persistent and found.prefetch and found.resident_operands and compiled.resources.clean
    )
    loop = next(
        op
        for op in level0.kernel_of(parse(compiled.ir("select-layouts"))).walk()
        if op.name == "scf.for"
    )
    # the next row: weight and bias were read before
    assert sum(op.name == "tile.load" for op in loop.walk()) == 1
    short, _ = plan_of(
        _norm,
        "bf16[64, 1024]",
        None,
        None,
        None,
        "bf16[64, 1024]",
        None,
        "f32",
        CENTRE=True,
        ROWS=1,
        COLUMNS=1024,
    )
    assert not short.persistent


@pytest.mark.parametrize(
    "options", [{}, {"persistent": True}, {"persistent": False}, {"num_stages": 2}]
)
def test_programs_that_fill_a_multiprocessor_stream_through_blocks(options):
    """Of a row of 32768: 16 warps hold it, the next one is on its way to shared memory, which has
    weight and bias too; two that are on their way leave no room for those.
    """
    arguments = (
        "bf16[64, 32768]",
        None,
        "bf16[32768]",
        "bf16[32768]",
        "bf16[64, 32768]",
        None,
        "f32",
    )
    found, compiled = plan_of(_norm, *arguments, CENTRE=True, ROWS=1, COLUMNS=32768, **options)
    streams = options.get("persistent", True)
    assert (
        compiled.interface.persistent == found.persistent == streams
        and (found.warps, found.stages)
        == ((16, options.get("num_stages", 1)) if streams else (32, 1))
        and compiled.resources.clean
    )
    assert (
        [load.path for load in found.loads] == ["own", "own", "own"]
        if found.resident_operands
        else ["own", "registers", "registers"]
        if streams
        else ["registers"] * 3
    )
    assert found.resident_operands == (streams and "num_stages" not in options)
    two, _ = plan_of(
        _norm,
        arguments[0],
        *arguments[:1],
        *arguments[2:5],
        arguments[0],
        "f32",
        CENTRE=True,
        ROWS=1,
        COLUMNS=32768,
    )
    assert (two.warps, two.persistent) == (32, False)  # two such rows keep memory busy


@tkc.jit
def _two_axes(x, out, N: tkc.constexpr):
    row, column = tkc.program_id(1), tkc.program_id(0) * N
    tkc.store(
        out,
        (row, column),
        tkc.load(x, (row, column), (1, N)) * (tkc.program_id(1) + 10 * tkc.program_id(0)),
    )


def test_persistent_programs_of_two_axes_in_place():
    x = np.ones((3, 700), np.float32)
    compiled = _two_axes.compile(x, x, N=256, target="sm_90a", persistent=True)
    # what other programs write, this one does not read: nothing orders them in any launch
    assert any(line.startswith("fetch-ahead: 1 load ") for line in compiled.decisions)
    module = parse(compiled.ir("assign-registers"))
    level4.run(module, [x, x], (3, 3), 0, 2)
    np.testing.assert_array_equal(x, np.arange(3)[:, None] + 10 * (np.arange(700) // 256)[None, :])


@pytest.mark.parametrize("rows, columns, group", [(1, 9 * 1024 + 5, 4), (3, 4 * 1024 + 7, 2)])
def test_persistent_programs_that_wait_for_one_another(rows, columns, group):
    """A view that the counter chooses (x[row]) is there for every program of the loop; the next
    block is published before this one waits, the one after that arrives meanwhile.
    """
    x = np.random.default_rng(0).integers(-3, 4, (rows, columns)).astype(BF16)
    blocks = -(-columns // 1024)

    def empty():
        return [x, np.zeros_like(x), np.zeros((rows, blocks), np.uint64)]

    compiled = _cumsum.compile(*empty(), REVERSE=False, N=1024, GROUP=group, target="sm_90a")
    assert (
        compiled.interface.persistent and compiled.interface.together and compiled.resources.clean
    )
    assert all(
        any(line.startswith(begun) for line in compiled.decisions)
        for begun in ("stagger-programs: ", "fetch-ahead: 1 load")
    )
    want = np.cumsum(x.astype(np.float64), 1).astype(BF16)
    for stage, seed, resident in (
        ("stagger-programs", 0, 1),
        ("fetch-ahead", 0, 1),
        *(("assign-registers", seed, n) for seed, n in enumerate((1, 2, 5))),
    ):
        arrays, module = empty(), parse(compiled.ir(stage))
        if stage != "assign-registers":
            run(module, arrays, [], (blocks, rows), seed)
        else:
            level4.run(module, arrays, (blocks, rows, 1), seed, resident)
        np.testing.assert_array_equal(arrays[1], want)
    assert not check(module, empty(), (blocks, rows, 1), runs=3).findings


@tkc.jit
def _taking_turns(out, words, WAITING: tkc.constexpr):
    """Each program adds to what the one before it has left; it says nothing before it waits."""
    i = tkc.program_id(0)
    told = tkc.load(words.ptr + i, sem="relaxed")
    while WAITING and told == 0:
        told = tkc.load(words.ptr + i, sem="relaxed")
    tkc.store(words.ptr + i + 1, told + 1, sem="relaxed")
    tkc.store(out, (i,), told)


@tkc.jit
def _telling_first(x, at, out, words):
    """Each program tells the next what an address that it loads holds, before it waits."""
    i = tkc.program_id(0)
    own = tkc.load(x.ptr + tkc.load(at, (i,), (None,)))
    tkc.store(words.ptr + i + 1, own, sem="release")
    told = tkc.load(words.ptr + i, sem="acquire")
    while told == 0:
        told = tkc.load(words.ptr + i, sem="acquire")
    tkc.store(out, (i,), told + own)


def test_what_is_told_early_may_be_loaded_by_address():
    x, at = np.arange(1, 9, dtype=np.int32), np.array([3, 0, 7, 5], np.int32)
    given = "i32[8]", "i32[4]", "i32[4]", "i32[5]"
    compiled = _telling_first.compile(*given, target="sm_90a", persistent=True)
    assert any("stagger-programs: " in line for line in compiled.decisions)
    for stage in ("stagger-programs", "assign-registers"):
        out, words = np.zeros(4, np.int32), np.array([9, 0, 0, 0, 0], np.int32)
        module = parse(compiled.ir(stage))
        run(module, [x, at, out, words], [], (4, 1, 1), 0)
        np.testing.assert_array_equal(out, x[at] + [9, *x[at][:3]])


@tkc.jit
def _counting(out, words):
    """Each program stores, and counts itself: it waits for no other."""
    i = tkc.program_id(0)
    tkc.store(out, (i,), i)
    tkc.atomic_add(words.ptr, 1)


def test_programs_that_wait_for_none_begin_one_after_the_other():
    compiled = _counting.compile("i32[16]", "i32[1]", target="sm_90a", persistent=True)
    assert compiled.interface.persistent and not compiled.interface.together
    assert not any("stagger" in line for line in compiled.decisions)


def test_which_kernels_run_one_program_a_block():
    """Programs that read nothing ahead of their waiting, and those with the option."""
    given = "i32[16]", "i32[17]"
    turns, none, asked = (
        _taking_turns.compile(*given, target="sm_90a", WAITING=w, persistent=p)
        for w, p in ((True, None), (False, None), (True, True))
    )
    assert (
        not turns.interface.persistent
        and not none.interface.together
        and asked.interface.together
        and not any("stagger" in line for line in asked.decisions)
    )
    assert not _cumsum.compile(
        "f32[1, 65536]",
        "f32[1, 65536]",
        "u64[1, 8]",
        REVERSE=False,
        N=8192,
        GROUP=4,
        target="sm_90a",
        persistent=False,
    ).interface.persistent
    out, words = np.zeros(16, np.int32), np.zeros(17, np.int32)
    words[0] = 1
    level4.run(parse(asked.ir("assign-registers")), [out, words], (16, 1, 1), 0, 3)
    np.testing.assert_array_equal(out, 1 + np.arange(16))


@pytest.mark.parametrize("change, ahead", [("", True), (" acquire", False), (" in place", False)])
def test_what_is_read_ahead_of_a_wait(change, ahead):
    """Nothing that another program may write, and nothing ahead of an acquire, which may say that
    something was written.
    """
    given = "f32[1, 65536]", "f32[1, 65536]", "u64[1, 8]"
    compiled = _cumsum.compile(
        *given, REVERSE=False, N=8192, GROUP=4, target="sm_90a", persistent=True
    )
    module, context = (
        parse(compiled.ir("schedule-programs")),
        PassContext(
            TARGETS["sm_90a"],
            Options(extra=(("overlaps", ((0, 1),)),)) if change == " in place" else Options(),
        ),
    )
    if change == " acquire":
        for op in module.walk():
            if isinstance(op, tile.LoadPointers):
                op.properties["semantics"] = StringAttr("acquire")
    context.plan = Plan(8, prefetch=True, persistent=True)
    fetch_ahead.run(module, context)
    assert any("fetch-ahead" in line for line in context.decisions) == ahead


@tkc.jit
def counted(x, out, counter, N: tkc.constexpr):
    """A row in each program, which also counts itself, at one place for all."""
    p = tkc.program_id(0)
    v = tkc.load(x[p], (0,), (N,))
    tkc.store(out[p], (0,), v / tkc.max(v))
    tkc.atomic_add(counter.ptr, 1)


@pytest.mark.parametrize("persistent", [True, False])
def test_effects_that_are_alike_in_all_programs_happen_in_each(persistent, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rows = 140  # more than there are multiprocessors
    x = np.random.default_rng(0).uniform(1, 2, (rows, 1024)).astype(np.float32)
    out, counter = np.zeros_like(x), np.zeros(1, np.int32)
    counted[rows](x, out, counter, 1024, persistent=persistent)
    assert counter[0] == rows


@tkc.jit
def _gathered_sums(x, place, out, N: tkc.constexpr):
    """Sums of rows that a table names, anew in each iteration."""
    total = tkc.zeros((N, N))
    for k in tkc.range(0, place.shape[0]):
        rows = tkc.load(place, (k, 0), (None, N))
        total = total + tkc.load(x, (rows, 0), (N, N))
    tkc.store(out, (0, 0), total)


def test_what_cannot_be_read_ahead_takes_no_registers():
    """Rows are where an iteration has loaded that they are: none of them is there before."""
    arrays = "f32[4096, 32]", "i32[64, 32]", "f32[32, 32]"
    plan, *_ = plan_of(_gathered_sums, *arrays, N=32)
    assert not plan.prefetch
