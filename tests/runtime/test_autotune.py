"""tkc.autotune: what is chosen and from where, keys, narrowing, tables, assembly here and
measurement elsewhere, arrays put back, errors.
"""

import functools
import gc
import json
import sys
import weakref

import numpy as np
import pytest

import tkc
from tests.language.kernels import matmul as plain
from tests.runtime.kernels import add
from tkc.runtime import source_files, timing, workers
from tkc.runtime.tuning import Table, changed, key

CONFIGS = [tkc.Config(BM=m, BN=n, BK=32) for m, n in ((32, 32), (64, 64), (32, 64))]


def grid(args):
    return tkc.cdiv(args["c"].shape[0], args["BM"]), tkc.cdiv(args["c"].shape[1], args["BN"])


@tkc.jit
def scaled(x, out, N: tkc.constexpr):
    i = tkc.program_id(0) * N
    tkc.store(out, (i,), tkc.load(x, (i,), (N,)) * 2)


@tkc.jit
def doubled(x, N: tkc.constexpr):
    i = tkc.program_id(0) * N
    tkc.store(x, (i,), tkc.load(x, (i,), (N,)) * 2)


@tkc.jit
def counted(x, N: tkc.constexpr):
    tkc.atomic_add(x.ptr + tkc.program_id(0) * N + tkc.arange(N), 1)


@tkc.jit
def doubled_in_an_array_of_its_own(x, N: tkc.constexpr):
    own = tkc.array(x.ptr, tkc.float32, (x.shape[0],), (1,))
    i = tkc.program_id(0) * N
    tkc.store(own, (i,), tkc.load(own, (i,), (N,)) * 2)


@tkc.jit
def summed_in_parts(x, out, PARTS: tkc.constexpr, N: tkc.constexpr = 16):
    i, size = tkc.program_id(0) * N, x.shape[0] // PARTS
    total = tkc.zeros((N,))
    for k in tkc.range(tkc.program_id(1) * size, (tkc.program_id(1) + 1) * size):
        total += tkc.load(x, (k, i), (None, N))
    if PARTS == 1:
        tkc.store(out, (i,), total)
    else:
        tkc.atomic_add(out, (i,), total)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TKC_AUTOTUNE", raising=False)


def arrays(m=70, k=50, n=60, dtype=np.float32):
    r = np.random.default_rng(0)
    return (
        r.integers(-3, 4, (m, k)).astype(dtype),
        r.integers(-3, 4, (k, n)).astype(dtype),
        np.zeros((m, n), dtype),
    )


def tuned(configs=tuple(CONFIGS), **options):
    return tkc.autotune(configs, **options)(tkc.jit(plain))


def times(monkeypatch, seconds):
    """Measurements that take what a function of (number of candidates) says."""
    calls = []
    monkeypatch.setattr(
        timing,
        "measure",
        lambda launches, device, budget, failed: (
            calls.append(len(launches)),
            [launch() for launch in launches],
            seconds(len(launches)),
        )[2],
    )
    return calls


# --------------------------------------------------------------------------------------------------
def test_arrays_elsewhere_are_not_chosen_for_again(monkeypatch):
    t, chosen, kept = tuned(measure=False), [], []
    make = type(t)._make
    monkeypatch.setattr(
        type(t), "_make", lambda self, *args: (chosen.append(args), make(self, *args))[1]
    )
    for _round in range(4):
        kept.append(arrays())
        t[grid](*kept[-1])
        assert np.array_equal(kept[-1][2], kept[-1][0] @ kept[-1][1])
    assert len(chosen) == 1


def test_a_launch_is_right_and_tuned_once(monkeypatch):
    calls, t, (a, b, c) = times(monkeypatch, lambda n: [3.0, 1.0, 2.0]), tuned(), arrays()
    for _ in range(3):
        c[:] = 0
        t[grid](a, b, c)
        assert np.array_equal(c, a @ b)
    assert calls == [3] and t.choose(a, b, c, grid=grid).config == CONFIGS[1]
    again = tuned()
    assert again.choose(a, b, c, grid=grid).source == "measured" and calls == [3]  # from the disk
    # another shape: measured anew
    assert again.choose(*arrays(71), grid=grid).config == CONFIGS[1] and calls == [
        3,
        3,
    ]
    assert any("3000000.00 us" in line for line in t.choose(a, b, c, grid=grid).others)


def test_a_real_measurement_on_the_host():
    t, (a, b, c) = tuned(budget=0.2), arrays(200, 100, 130)
    t[grid](a, b, c)
    choice = t.choose(a, b, c, grid=grid)
    assert (
        np.array_equal(c, a @ b)
        and choice.source == "measured"
        and choice.seconds > 0
        and choice.config in CONFIGS
        and len(choice.others) == 2
    )


def test_without_measuring(monkeypatch):
    calls = times(monkeypatch, lambda n: [1.0] * n)
    assert tuned(measure=False).choose(*arrays(), grid=grid).source == "model" and not calls
    monkeypatch.setenv("TKC_AUTOTUNE", "0")
    assert tuned().choose(*arrays(), grid=grid).source == "model" and not calls
    monkeypatch.setenv("TKC_AUTOTUNE", "1")
    assert tuned(measure=False).choose(*arrays(), grid=grid).source == "measured" and calls == [3]
    monkeypatch.setenv("TKC_AUTOTUNE", "yes")
    with pytest.raises(tkc.TuningError, match="TKC_AUTOTUNE is 0 .* or 1 .*, got 'yes'"):
        tuned().choose(*arrays(), grid=grid)


def test_the_model_ranks_for_hopper():
    t = tuned([tkc.Config(BM=m, BN=n, BK=64) for m, n in ((64, 64), (128, 256), (128, 128))])
    array = "bf16[8192, 8192]"
    choice = t.choose(array, array, array, grid=grid, target="sm_90a")
    assert (
        dict(choice.config.items)["BN"] == 256
        and choice.source == "model"
        and len(choice.others) > 5
    )
    assert t.choose(
        "bf16[64, 8192]", array, "bf16[64, 8192]", grid=grid, target="sm_90a"
    ).config.constants == {"BM": 64, "BN": 64, "BK": 64}
    few = tkc.autotune(CONFIGS, limit=4)(tkc.jit(plain))
    assert len(few.candidates(*few.bound(array, array, array), grid, "sm_80")[0]) == 4


def test_narrowing_by_keywords():
    t, (a, b, c) = tuned(measure=False), arrays()
    # what was given is no part of the choice
    assert t.choose(a, b, c, BM=64, grid=grid).config == tkc.Config(BN=64, BK=32)
    array = "bf16[8192, 8192]"
    for options in ({"cluster": (1, 1)}, {"cluster": (2, 1)}, {"roles": "one", "num_warps": 8}):
        wide = tuned([tkc.Config(BM=128, BN=256, BK=64)])
        assert (
            options.items()
            <= (
                dict(
                    wide.choose(
                        array, array, array, grid=grid, target="sm_90a", **options
                    ).config.items
                )
                | options
            ).items()
        )
        found, _ = wide.candidates(*wide.bound(array, array, array, **options), grid, "sm_90a")
        assert {c.config.options.get("cluster", options.get("cluster")) for c in found} <= {
            options.get("cluster"),
            (1, 1),
        }
    with pytest.raises(tkc.TuningError, match="none of 3 configurations fits.*BM=128"):
        t.choose(a, b, c, BM=128, grid=grid)


def test_configurations_may_depend_on_the_arguments():
    seen = []
    t = tuned(lambda args: (seen.append(args["c"].shape), [dict(BM=32, BN=32, BK=32)])[1])
    a, b, c = arrays()
    t[grid](a, b, c)
    assert np.array_equal(c, a @ b) and seen == [(70, 60)]


def test_keys():
    t, (a, b, c) = tuned(), arrays()
    values, options = t.bound(a, np.asfortranarray(b), c, num_warps=8)
    name = t._named(values, t._described(values), options)
    assert name == "a: float32[70, 50] b: float32[50:1, 60:50] c: float32[70, 60] num_warps=8"
    by_rows = tuned(key=lambda args: args["a"].shape[0] > 64, measure=False)
    assert [
        by_rows._named(v, by_rows._described(v), o)
        for v, o in (by_rows.bound(*arrays(m)) for m in (65, 70, 8))
    ] == ["True", "True", "False"]
    assert "i: 3 f: float32" in key(("i", "f"), [tkc_scalar(3), tkc_scalar(0.5)], ())


def tkc_scalar(x):
    from tkc.runtime.specialize import argument

    return argument(x, "x", False)


# --------------------------------------------------------------------------------------------------
def test_what_a_kernel_reads_and_writes_is_put_back():
    x, want = np.arange(100, dtype=np.float32), np.arange(100, dtype=np.float32) * 2
    t = tkc.autotune([dict(N=16), dict(N=32)], budget=0.05)(doubled)
    t[lambda args: tkc.cdiv(100, args["N"])](x)
    assert np.array_equal(x, want)
    x = np.arange(100, dtype=np.float32)
    t = tkc.autotune([dict(N=16), dict(N=32)], budget=0.05)(doubled_in_an_array_of_its_own)
    t[lambda args: tkc.cdiv(100, args["N"])](x)
    assert np.array_equal(x, want)
    out = np.zeros(100, np.float32)
    for kernel, args, found in (
        (doubled, (x,), 1),
        (scaled, (x, out), 0),
        (scaled, (x, x), 1),
        (counted, (np.zeros(64, np.int32),), 1),
    ):
        values, options = kernel._bind(*args, N=16)
        assert len(changed(kernel, kernel._describe(values), options)) == found


def test_what_one_configuration_of_several_adds_to_is_put_back():
    x, out = np.ones((64, 48), np.float32), np.zeros(48, np.float32)
    t = tkc.autotune([dict(PARTS=1), dict(PARTS=4)], budget=0.05)(summed_in_parts)
    t[lambda args: (3, args["PARTS"])](x, out)
    values, options = t.bound(x, out)
    one, some = tkc.Config(PARTS=1, N=16), tkc.Config(PARTS=4, N=16)
    assert not t._changed([one], values, options)
    assert len(t._changed([one, some], values, options)) == 1
    assert (out == 64).all()


@tkc.jit
def added_at(addresses, x, N: tkc.constexpr):
    at = tkc.load(addresses, (0,), (1,)).to(tkc.pointer(tkc.float32), bitcast=True)
    tkc.atomic_add(at + tkc.arange(N), tkc.load(x, (0,), (N,)))


@tkc.jit
def doubled_at(addresses, n, N: tkc.constexpr):
    x = tkc.array(addresses[0], tkc.float32, (n,))
    tkc.store(x, (0,), tkc.load(x, (0,), (N,)) * 2)


def test_what_lies_at_addresses_cannot_be_put_back():
    """Then nothing is measured, for a launch would be many."""
    x = np.arange(16, dtype=np.float32)
    for kernel, given in ((added_at, np.copy(x)), (doubled_at, 16)):
        there = np.copy(x)
        t = tkc.autotune([dict(N=16), dict(N=16, num_warps=2)], budget=0.05)(kernel)
        t[1](np.array([there.ctypes.data], np.int64), given)
        assert np.array_equal(there, x * 2)
        assert t.latest.source == "model" and "by addresses" in t.latest.others[-1]


def test_on_a_gpu_events_lie_round_each_launch_and_the_cache_is_flushed(gpu, monkeypatch):
    from tests.runtime.fake_driver import FakeTensor

    monkeypatch.setattr(timing, "_filler", {})
    x, t = (
        FakeTensor((4096,), pointer=0x1000_0000),
        tkc.autotune([dict(N=n, num_warps=4) for n in (128, 256, 512)])(doubled),
    )
    t[lambda args: 4096 // args["N"]](x)
    choice = t.choose(x, grid=lambda args: 4096 // args["N"])
    assert choice.source == "measured" and choice.seconds == 0.5e-3 and len(choice.others) == 2
    launches, flushes = (
        gpu.named("launch"),
        [c for c in gpu.named("cuMemsetD8Async") if c[3] == timing.FLUSH_BYTES],
    )
    assert len(launches) == len(flushes) + 1 and 2 * len(flushes) == len(gpu.named("cuEventRecord"))
    keep, back = gpu.named("cuMemcpyDtoD")
    assert (
        keep[3] == back[3] == 4096 * 4 and keep[2] == back[1] == 0x1000_0000 and keep[1] == back[2]
    )
    gpu.capturing = 1
    # nothing can be measured in a capture
    assert t.choose(FakeTensor((8192,)), grid=1).source == "model"


def test_slow_candidates_are_dropped_early():
    turns = []

    class Clock:
        def __call__(self, launches):
            return [launch() for launch in launches]

    def launch(i, seconds):
        return lambda: (turns.append(i), seconds)[1]

    host, timing._host = timing._host, Clock()
    try:
        found = timing.measure([launch(0, 1.0), launch(1, 5.0), launch(2, 1.05)], -1, 10.0)
    finally:
        timing._host = host
    assert (
        found == [1.0, 5.0, 1.05]
        and turns.count(1) == 3
        and turns.count(2) == 8
        and turns.count(0) == 16
    )


def test_a_candidate_that_fails_is_out(monkeypatch):
    failures = []

    def bad():
        raise tkc.DeviceError("no")

    assert timing.measure([bad, lambda: None], -1, 0.01, lambda i, e: failures.append((i, str(e))))[
        0
    ] is None and failures == [(0, "no")]
    monkeypatch.setattr(
        timing,
        "measure",
        lambda launches, device, budget, failed: (
            failed(0, tkc.DeviceError("broke")),
            [None] * len(launches),
        )[1],
    )
    with pytest.raises(tkc.TuningError, match="none of 3 candidates ran.*broke"):
        tuned()[grid](*arrays())


def test_workers_compile_into_the_cache(monkeypatch):
    from tests.runtime import test_autotune as here

    specializations = [
        scaled._specialize(scaled._describe(scaled._bind("f32[4096]", "f32[4096]", N=n)[0]), ())
        for n in (64, 128, 256, 512, 1024, 2048, 32)
    ]
    assert workers._importable(here.scaled) and not workers._importable(tkc.jit(plain))
    workers._in_processes(here.scaled, specializations, "sm_80")
    fresh = tkc.jit(here.scaled.fn)
    assert all(fresh._get(s, "sm_80").cached for s in specializations)
    assert workers.compile_all(fresh, specializations, "sm_80") == [None] * 7


# -------------------------------------------------------------------------------------------------
def test_assembled_here_and_measured_there(tmp_path, monkeypatch):
    a, b, c = arrays()
    path = tmp_path / "m.asm"
    assert (
        tuned().assemble(
            "f32[70, 50]", "f32[50, 60]", "f32[70, 60]", grid=grid, target="cpu", path=path
        )
        == CONFIGS
    )
    times(monkeypatch, lambda n: [3.0, 2.0, 1.0])
    there = tuned()
    monkeypatch.setattr(
        tkc.runtime.jit.JitFunction, "_load_or_compile", lambda *_: pytest.fail("compiled again")
    )
    assert there.measure(path, a, b, c, grid=grid).config == CONFIGS[2]
    there[grid](a, b, c)
    assert np.array_equal(c, a @ b)
    with pytest.raises(tkc.TuningError, match="assembled for other arguments"):
        there.measure(path, *arrays(64, 64, 64), grid=grid)
    with pytest.raises(tkc.TuningError, match="is no assembly"):
        tkc.autotune([dict(N=16)])(doubled).measure(path, np.zeros(4, np.float32), grid=1)


FACTOR = 2.0


@tkc.jit
def by_factor(x, out, N: tkc.constexpr):
    tkc.store(out, (0,), tkc.load(x, (0,), (N,)) * FACTOR)


def test_assembled_of_another_text(tmp_path, monkeypatch):
    """Compiled code of before is not launched where the kernel, or what it reads, was changed."""
    path, x, out = tmp_path / "m.asm", np.ones(8, np.float32), np.zeros(8, np.float32)
    configs = [dict(N=8), dict(N=16)]
    tkc.autotune(configs)(by_factor).assemble("f32[8]", "f32[8]", grid=1, target="cpu", path=path)
    there = tkc.autotune(configs)(by_factor.fn)
    there.measure(path, x, out, grid=1)
    there[1](x, out)
    assert (out == 2).all()
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    there[1](x, out)
    assert (out == 3).all()
    with pytest.raises(tkc.TuningError, match="of another text of the kernel"):
        tkc.autotune(configs)(by_factor.fn).measure(path, x, out, grid=1)


def test_assembled_for_hopper(tmp_path):
    t, path = tuned([tkc.Config(BM=128, BN=128, BK=64)]), tmp_path / "m.asm"
    array = "bf16[4096, 4096]"
    found = t.assemble(array, array, array, grid=grid, target="sm_90a", path=path)
    assert len(found) > 2 and path.stat().st_size > 10000
    with pytest.raises(tkc.TuningError, match="assembled for sm_90a"):
        t.measure(path, *arrays(), grid=grid)


def test_tables(tmp_path, monkeypatch):
    times(monkeypatch, lambda n: [3.0, 2.0, 1.0])
    a, b, c = arrays()
    t, path = tuned(), tmp_path / "t.json"
    t[grid](a, b, c)
    assert t.export_table(path) == 1 and json.loads(path.read_text())["entries"][0]["config"] == {
        "BK": 32,
        "BM": 32,
        "BN": 64,
    }
    other = tuned(table=path, measure=False)
    choice = other.choose(a, b, c, grid=grid)
    assert (choice.source, choice.config, choice.seconds) == ("table", CONFIGS[2], 1.0)
    assert other.choose(*arrays(71), grid=grid).source == "model"
    assert t.export_table(path) == 1  # once more: the same
    entry = json.loads(path.read_text())["entries"][0] | {
        "config": {"BM": 32, "BN": 64, "BK": 32, "num_warps": 3}
    }
    path.write_text(json.dumps({"format": "tkc-table-1", "entries": [entry]}))
    for text, words in (
        ("{", "is no table"),
        ('{"format": "x"}', "this version"),
        ('{"format": "tkc-table-1", "entries": [{}]}', "an entry has no"),
    ):
        path.write_text(text)
        with pytest.raises(tkc.TuningError, match=words):
            Table.read(path)


def test_forced_choices_are_ranked_and_kept(tmp_path, monkeypatch):
    """What forces a plan is an option like others: of a configuration, of a launch, and in a table,
    whose lists are pairs again.
    """
    array, forced = (
        "bf16[4096, 4096]",
        [
            dict(left_operand="registers"),
            dict(swap_dots=True, store_columns=32),
            dict(epilogue="direct"),
            dict(split_warps=(4, 2)),
            dict(subtiles=1, dynamic_schedule=True),
        ],
    )
    t = tuned([tkc.Config(BM=128, BN=128, BK=64, **options) for options in forced])
    found, reasons = t.candidates(*t.bound(array, array, array), grid, "sm_90a")
    assert not reasons and all(
        any(options.items() <= dict(c.config.items).items() for c in found) for options in forced
    )
    assert (
        t.choose(
            array, array, array, grid=grid, target="sm_90a", measure=False, left_operand="registers"
        ).config.options.get("left_operand", "registers")
        == "registers"
    )
    times(monkeypatch, lambda n: [2.0, 1.0])
    a, b, c = arrays()
    two, path = (
        tuned(
            [
                tkc.Config(BM=32, BN=32, BK=32),
                tkc.Config(BM=32, BN=64, BK=32, split_warps=(1, 4), swap_dots=False),
            ]
        ),
        tmp_path / "t.json",
    )
    two[grid](a, b, c)
    assert two.export_table(path) == 1 and json.loads(path.read_text())["entries"][0]["config"][
        "split_warps"
    ] == [1, 4]
    choice = tuned(table=path, measure=False).choose(a, b, c, grid=grid)
    assert choice.source == "table" and choice.config.options == {
        "split_warps": (1, 4),
        "swap_dots": False,
    }


@pytest.mark.parametrize(
    "configs, words", [([], "at least one"), ([dict(BZ=3)], "'BZ', which is neither")]
)
def test_bad_configurations(configs, words):
    with pytest.raises(tkc.TuningError, match=words):
        tuned(configs)


def test_bad_calls():
    t = tuned()
    with pytest.raises(tkc.LaunchError, match="missing 1 required"):
        t[grid](*arrays()[:2])
    with pytest.raises(tkc.LaunchError, match="parameters are"):
        t[grid](*arrays(), 1, 2, 3, 4)
    with pytest.raises(TypeError, match="autotuned already"):
        tkc.autotune([dict(N=1)])(tkc.autotune([dict(N=1)])(doubled))
    with pytest.raises(tkc.TuningError, match="none of 1 configurations fits"):
        tuned([tkc.Config(BM=30000, BN=30000, BK=32)]).choose(
            *["f32[4, 4]"] * 3, grid=grid, target="sm_80"
        )


def test_a_choice_is_made_once(tmp_path):
    """For the same call; again where a table is read, by another thread too; no array is kept."""
    tuned = tkc.autotune(
        [tkc.Config(BLOCK=64), tkc.Config(BLOCK=128)], key=lambda arguments: "one", measure=False
    )(tkc.jit(add.fn))
    extents, counted, place = [], tuned.extents, tuned.kernel.names.index("BLOCK")
    tuned.extents = lambda grid, values: extents.append(values[place]) or counted(grid, values)
    one, two, out = (np.full(200, n, np.float32) for n in (1, 2, 0))
    launch = tuned[lambda args: tkc.cdiv(args["n"], args["BLOCK"])]
    for _ in range(3):
        out[:] = 0
        launch(one, two, out, 200)
        assert (out == 3).all()
    assert set(extents) == {64}
    before = len(extents)
    launch(one, two, out, 200)
    assert len(extents) == before
    launch(one, one, out, 200)
    assert (out == 2).all()
    device = next(iter(tuned._choices))[0]
    entry = {"device": device, "kernel": "add", "key": "one", "config": {"BLOCK": 128}}
    text = json.dumps({"format": "tkc-table-1", "entries": [entry | {"seconds": None}]})
    (tmp_path / "table.json").write_text(text)
    tuned.import_table(tmp_path / "table.json")
    launch(one, two, out, 200)
    assert extents[-1] == 128 and (out == 3).all()
    begun, choose = (
        tuned._choose,
        lambda *given: (begun(*given), tuned.import_table(tmp_path / "table.json"))[0],
    )
    tuned._choose = choose  # a table that another thread reads while the choice is made
    tuned.import_table(tmp_path / "table.json")
    launch(one, two, out, 200)
    tuned._choose = lambda *given: asked.append(1) or begun(*given)
    asked = []
    for _ in range(2):
        launch(one, two, out, 200)
    assert len(asked) == 1

    class Kept(np.ndarray):
        pass

    kept = np.ones(200, np.float32).view(Kept)
    gone = weakref.ref(kept)
    launch(kept, two, out, 200)
    del kept
    gc.collect()
    assert gone() is None


def test_a_function_of_configurations_that_was_edited_chooses_anew(tmp_path, monkeypatch):
    """What is on disk was chosen of the candidates that its file gave then."""
    calls, path = times(monkeypatch, lambda n: [2.0, 1.0][:n]), tmp_path / "candidates.py"

    def choice(first):
        text = "import tkc\n\n\ndef configs(args, target):\n    return [\n"
        for m in (first, 64):
            text += f"        tkc.Config(BM={m}, BN=32, BK=32),\n"
        path.write_text(text + "    ]\n")
        names = {"__name__": "candidates"}
        exec(compile(path.read_text(), str(path), "exec"), names)
        return tuned(names["configs"]).choose(*arrays(), grid=grid)

    assert choice(32).config.constants["BM"] == 64 and calls == [2]
    assert choice(32).source == "measured" and calls == [2]
    choice(16)
    assert calls == [2, 2]


def test_a_file_that_gives_candidates_their_numbers_was_edited(tmp_path, monkeypatch):
    """What is on disk was also chosen by what the function's file imports, however far away."""
    calls = times(monkeypatch, lambda n: [2.0, 1.0][:n])
    (tmp_path / "near.py").write_text("from far import (\n    WIDTH,  # of a block\n)\n")
    path = tmp_path / "given.py"
    path.write_text(
        "import tkc\n\n\ndef configs(args, target):\n    from near import WIDTH\n\n"
        "    return [tkc.Config(BM=m, BN=WIDTH, BK=32) for m in (32, 64)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def choice(width):
        (tmp_path / "far.py").write_text(f"WIDTH = {width}\n")
        source_files._file_of_users.cache_clear()
        for name in ("near", "far", "given"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        names = {"__name__": "given"}
        exec(compile(path.read_text(), str(path), "exec"), names)
        return tuned(names["configs"]).choose(*arrays(), grid=grid)

    assert choice(32).config.constants["BN"] == 32 and calls == [2]
    assert choice(32).source == "measured" and calls == [2]
    assert choice(128).config.constants["BN"] == 128 and calls == [2, 2]


def test_candidates_of_a_closure_are_told_apart(monkeypatch):
    calls = times(monkeypatch, lambda n: [2.0, 1.0][:n])

    def candidates(width):
        return lambda args: [tkc.Config(BM=m, BN=width, BK=32) for m in (32, 64)]

    for width, count in ((32, 1), (128, 2), (32, 2)):
        chosen = tuned(candidates(width)).choose(*arrays(), grid=grid)
        assert chosen.config.constants["BN"] == width and len(calls) == count


# ---- configurations whose seconds are known
@tkc.jit
def wide(x, out, N: tkc.constexpr):
    tkc.static_assert(N > 32, "blocks of more than 32")
    i = tkc.program_id(0) * N
    tkc.store(out, (i,), tkc.load(x, (i,), (N,)) * 2)


def of_strips(args):
    return tkc.cdiv(args["x"].shape[0], args["N"])


def expecting(**seconds):
    """Configurations of N, by what is expected of them."""
    return [tkc.Config(N=int(n[1:])).expected(s) for n, s in seconds.items()]


def test_what_is_known_is_not_traced(monkeypatch):
    t, x = tkc.autotune(expecting(N64=3e-6, N128=1e-6), measure=False)(wide), np.ones(300, "f4")
    monkeypatch.setattr("tkc.runtime.autotune.rank", None)
    choice = t.choose(x, x, grid=of_strips)
    assert choice.config == tkc.Config(N=128) and choice.seconds == 1e-6
    assert choice.source == "model" and choice.others == ("Config(N=64): 3.00 us",)


def test_what_is_known_of_one_is_not_known_of_all(monkeypatch):
    configs = [tkc.Config(N=64), *expecting(N128=1e-6)]
    t, x = tkc.autotune(configs, measure=False)(wide), np.ones(300, "f4")
    assert t.choose(x, x, grid=of_strips).config == tkc.Config(N=64)


def test_what_was_expected_but_cannot_be_compiled_gives_way():
    t, x = tkc.autotune(expecting(N32=1e-6, N64=3e-6), measure=False)(wide), np.ones(300, "f4")
    out = np.zeros_like(x)
    for _ in range(2):
        t[of_strips](x, out)
        assert (out == 2).all() and t.latest.config == tkc.Config(N=64)
    alone = tkc.autotune(expecting(N16=1e-6, N32=3e-6), measure=False)(wide)
    with pytest.raises(tkc.Error, match="blocks of more than 32"):
        alone[of_strips](x, out)


covered = 4  # elements, of the grid below


def of_covered(args):
    return (covered // args["N"],)


def enclosing_a_number():
    n = 4

    def grid(args):
        return (n // args["N"],)

    def change(to):
        nonlocal n
        n = to

    return grid, change


def enclosing_a_list():
    held = [4]
    return lambda args: (held[0] // args["N"],), lambda to: held.__setitem__(0, to)


def an_object():
    class Grid:
        def __init__(self):
            self.n = 4

        def __call__(self, args):
            return (self.n // args["N"],)

    made = Grid()
    return made, lambda to: setattr(made, "n", to)


def of_a_module():
    return of_covered, lambda to: globals().update(covered=to)


@pytest.mark.parametrize("make", [of_a_module, enclosing_a_number, enclosing_a_list, an_object])
def test_a_grid_is_what_its_function_gives_now(make):
    t = tkc.autotune([tkc.Config(N=4), tkc.Config(N=8)], measure=False)(scaled)
    grid, change = make()
    x, out = np.ones(64, "f4"), np.zeros(64, "f4")
    for n in (4, 64, 4, 4, 8):
        change(n)
        out[:] = 0
        t[grid](x, out)
        assert (out == 2).sum() == n
    change(4)


def test_functions_that_are_made_for_each_call_launch_what_was_launched():
    t = tkc.autotune([tkc.Config(N=4), tkc.Config(N=8)], measure=False)(scaled)
    x, out = np.ones(64, "f4"), np.zeros(64, "f4")
    for n in [8, 64] * 8:
        out[:] = 0
        t[lambda args, n=n: (n // args["N"],)](x, out)
        assert (out == 2).sum() == n
        t[lambda args: (n // args["N"],)](x, out)  # noqa: B023  # called at once
        t[functools.partial(lambda n, args: (n // args["N"],), n)](x, out)
    assert len(t._launchers) == 4


def test_a_grid_that_is_any_callable_is_chosen_for():
    t = tkc.autotune([tkc.Config(N=4), tkc.Config(N=8)], measure=False)(scaled)
    x, out = np.ones(64, "f4"), np.zeros(64, "f4")
    t[functools.partial(lambda n, args: (n // args["N"],), 64)](x, out)
    assert (out == 2).all()
