"""Kernels called as users call them: on the CPU for real, on a made-up GPU as far as the driver."""

import contextlib
import copy
import importlib
import pickle
import pkgutil
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import tkc
import tkc.kernels  # noqa: F401
from tests.runtime import kernels
from tests.runtime.fake_driver import FakeTensor
from tests.runtime.kernels import add, grid, scaled, shift
from tkc.errors import CompileError, LaunchError
from tkc.runtime import cache, jit
from tkc.runtime.jit import JitFunction


def fresh(kernel) -> JitFunction:
    return JitFunction(kernel.fn)


def counted_binds(monkeypatch, kernel: JitFunction) -> list:
    """The arguments of each later call that the kernel binds."""
    bound, bind = [], kernel._bind
    monkeypatch.setattr(
        kernel, "_bind", lambda *args, **kwargs: (bound.append(args), bind(*args, **kwargs))[1]
    )
    return bound


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1009])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int64])
def test_a_kernel_runs_on_numpy_arrays(n, dtype):
    x, y = (np.arange(k, k + n).astype(dtype) for k in (0, 5))
    out = np.zeros(n, dtype)
    add[grid](x, y, out, n)
    assert np.array_equal(out, x + y)


def test_the_same_call_again_follows_its_arrays():
    k, x = fresh(add), np.ones(100, np.float32)
    out = np.zeros(100, np.float32)
    for round in range(5):
        x[:] = round
        k[grid](x, x, out, 100)
        assert (out == 2 * round).all()
    assert len(k._compiled) == 1
    (launcher,) = k._launchers.values()
    assert [len(cache.entries) for cache in launcher.caches.values()] == [1]


def test_a_call_like_the_one_before_is_found_in_the_launch_cache(monkeypatch):
    """It neither binds nor describes the arguments; calls by name and with options of the kernel
    too.
    """
    x, out = np.ones(100, np.float32), np.zeros(100, np.float32)
    for k, named, blocks in (
        (fresh(add), {}, 2),
        (fresh(add), {"BLOCK": 32}, 4),
        (JitFunction(add.fn, {"num_warps": 2}), {"n": 100, "BLOCK": 64}, 2),
    ):
        arguments = (x, x, out, 100)[: 4 - ("n" in named)]
        k[blocks](*arguments, **named)
        bound = counted_binds(monkeypatch, k)
        out[:] = 0
        k[blocks](*arguments, **named)
        assert (out == 2).all() and not bound
        integers = np.ones(100, np.int32), np.ones(100, np.int32), np.zeros(100, np.int32)
        k[blocks](*integers, *arguments[3:], **named)
        assert bound  # an array of the same library, with other elements
        bound.clear()
        if "n" in named:
            k[blocks](*arguments, **named | {"n": np.int64(100)})
        else:
            k[blocks](x, x, out, np.int64(100), **named)
        assert bound  # another type
    monkeypatch.setenv("TKC_DEBUG", "1")
    before = len(k._compiled)
    k[blocks](*arguments, **named)
    assert len(k._compiled) > before  # a kernel with checks is another kernel


def test_other_arrays_numbers_and_constants_are_other_launches():
    k = fresh(add)
    for n in (1, 5, 16, 17, 64, 100):
        for block in (16, 64):
            x, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
            k[grid](x, x, out, n, BLOCK=block)
            assert np.array_equal(out, 2 * x)


def test_arguments_by_name_and_by_place_are_the_same():
    k, x, out = fresh(add), np.ones(70, np.float32), np.zeros(70, np.float32)
    k[2](x, x, out, 70)
    k[(2,)](out=out, x=x, n=70, y=x)
    k[2, 1, 1](x, x, out, n=70, BLOCK=64)
    assert len(k._compiled) == 1


def test_one_and_true_and_one_point_zero_are_different_constants():
    @tkc.jit
    def fill(out, value: tkc.constexpr):
        tkc.store(
            out, (0,), tkc.full((4,), value).to(out.dtype) + (1 if isinstance(value, float) else 0)
        )

    out = np.zeros(4, np.float32)
    for value, expected in ((2, 2), (2.0, 3), (1, 1), (1.0, 2)):
        fill[1](out, value)
        assert (out == expected).all(), value


def test_a_number_that_equals_one_is_compiled_for():
    out = np.zeros(4, np.float32)
    shift[1](np.arange(10, dtype=np.float32), 1, out)
    assert list(out) == [1, 2, 3, 4]


def test_overlapping_arguments_are_another_specialization():
    k, x = fresh(shift), np.arange(300, dtype=np.float32)
    k[1](x, 0, x[:64])
    k[1](x, 0, np.zeros(64, np.float32))
    assert len(k._compiled) == 2


def test_a_rebound_global_is_noticed(monkeypatch):
    k, x, out = fresh(scaled), np.ones(4, np.float32), np.zeros(4, np.float32)
    k[1](x, out, 4)
    first = out[0]
    monkeypatch.setattr(kernels, "OFFSETS", (5, 2))
    k[1](x, out, 4)
    assert out[0] == pytest.approx(first + 4)


def test_a_rebound_global_of_a_helper_is_noticed(monkeypatch):
    k, x, out = fresh(scaled), np.ones(4, np.float32), np.zeros(4, np.float32)
    k[1](x, out, 4)
    first = out[0]
    monkeypatch.setattr(kernels, "SCALE", 4.0)
    k[1](x, out, 4)
    assert out[0] == pytest.approx(first + 1)


STEPS, LIMITS, TABLE = [1, 2], {"most": 3}, np.array([1, 2])


class Settings:
    pass


ODD = Settings()  # has no spelling: such a kernel is not in the disk cache


@tkc.jit
def steps(out):
    tkc.store(
        out,
        (0,),
        tkc.full((4,), 0.0)
        + STEPS[0]
        + LIMITS["most"]
        + int(TABLE[1])
        + kernels.SCALE
        + (ODD is None),
    )


def test_what_changes_in_place_or_in_a_module_is_noticed(monkeypatch):
    k, out = fresh(steps), np.zeros(4, np.float32)

    def check():
        for _ in range(2):
            k[1](out)
            assert (out == STEPS[0] + LIMITS["most"] + TABLE[1] + kernels.SCALE).all()

    check()
    for values, place, new in ((STEPS, 0, 7), (LIMITS, "most", 9), (TABLE, 1, 4), (STEPS, 0, 1)):
        values[place] = new
        check()
    monkeypatch.setattr(kernels, "SCALE", 2.0)
    check()
    monkeypatch.undo()
    check()


def tripled(x):
    return x * kernels.SCALE


@tkc.jit
def applied(x, out, F: tkc.constexpr):
    tkc.store(out, (0,), F(tkc.load(x, (0,), (4,))))


def test_what_a_function_among_the_constants_reads_is_noticed(monkeypatch):
    k, x, out = fresh(applied), np.ones(4, np.float32), np.zeros(4, np.float32)
    k[1](x, out, tkc.exp)
    k[1](x, out, tripled)
    assert (out == 3).all()
    monkeypatch.setattr(kernels, "SCALE", 5.0)
    for _ in range(2):
        k[1](x, out, tripled)
        assert (out == 5).all()


def test_nothing_that_the_library_reads_is_compared_at_each_launch():
    """Its kernels may be launched by machine code."""
    from tkc.runtime.fingerprint import Fingerprint

    for m in pkgutil.walk_packages(tkc.kernels.__path__, "tkc.kernels."):
        # some are for torch and jax alone
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(m.name)
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("tkc.kernels.")]
    found = [
        k
        for m in modules
        for v in vars(m).values()
        if isinstance(k := getattr(v, "kernel", v), JitFunction)
    ]
    assert len(found) > 40
    for k in found:
        f = Fingerprint(k.fn)
        assert not (f.mutable or f.unstable), k


def test_a_rebound_variable_of_a_closure_is_noticed():
    step = 1

    @tkc.jit
    def k(out):
        tkc.store(out, (0,), tkc.full((4,), 0.0) + step)

    out = np.zeros(4, np.float32)
    for step in (1, 2, 3, 2):
        k[1](out)
        assert (out == step).all()


def test_the_disk_cache_gives_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "c"))
    x, out = np.arange(9, dtype=np.float32), np.zeros(9, np.float32)
    found = []
    for _ in range(2):
        k = fresh(add)
        out[:] = 0
        k[1](x, x, out, 9)
        assert np.array_equal(out, 2 * x)
        found.append(next(iter(k._compiled.values())).cached)
    assert found == [False, True] and "tile.kernel @add" in k.compile(x, x, out, 9).ir()


def test_ptx_from_the_disk_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "c"))
    one, two = (
        fresh(add).compile("f32[64]", "f32[64]", "f32[64]", "i32", target="sm_80") for _ in range(2)
    )
    assert two.cached and not one.cached
    assert (two.ptx, two.interface, two.decisions) == (
        one.ptx,
        one.interface,
        one.decisions,
    ) and ".entry" in two.ptx
    assert two.ir("final") == one.ir("final") != two.ir()


def test_interpreted(monkeypatch):
    monkeypatch.setenv("TKC_INTERPRET", "1")
    x, out = np.arange(70).astype(ml_dtypes.bfloat16), np.zeros(70, ml_dtypes.bfloat16)
    k = fresh(add)
    k[grid](x, x, out, 70)
    assert np.array_equal(out, x + x) and not k._compiled


def test_prepared(monkeypatch):
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    launch = add.prepare(x, x, out, 8, grid=1)
    launch()
    assert (out == 2).all()
    x[:] = 4
    launch()
    assert (out == 8).all()


def test_torch_tensors_in_host_memory():
    x, out = np.arange(8).astype(ml_dtypes.bfloat16), np.zeros(8, ml_dtypes.bfloat16)

    def tensor(a):
        return FakeTensor(a.shape, "bfloat16", a.ctypes.data, device=-1)

    add[1](tensor(x), tensor(x), tensor(out), 8)
    assert np.array_equal(out, x + x)


def test_an_empty_grid_and_empty_arrays():
    x = np.zeros(0, np.float32)
    add[0](x, x, x, 0)
    add[1](x, x, x, 0)


def test_from_many_threads():
    k, wrong = fresh(add), []

    def work(seed):
        x = np.full(1000 + seed % 3, seed, np.float32)
        for _ in range(20):
            out = np.zeros_like(x)
            k[grid](x, x, out, len(x))
            if not (out == 2 * seed).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_threads_that_compile_different_kernels(monkeypatch):
    monkeypatch.setenv("TKC_CACHE", "0")
    results = {}

    def work(i):
        space = {"tkc": tkc, "by": i}
        lines = "".join(f"    v = v * 2 + {i}\n" for _ in range(20))
        exec(
            f"def k(x, out):\n    v = tkc.load(x, (0,), (8,))\n{lines}    tkc.store(out, (0,), v -"
            " by)\n",
            space,
        )
        x, out = np.arange(8, dtype=np.int64), np.zeros(8, np.int64)
        JitFunction(space["k"])[1](x, out)
        results[i] = np.array_equal(out, x * 2**20 + i * (2**20 - 1) - i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == dict.fromkeys(range(8), True)


BAD = [
    (
        "an extent beyond 64 bits",
        lambda x: add.compile("f32[99999999999999999999]", "f32[4]", "f32[4]", 4),
        "more bytes than 64 bits",
    ),
    (
        "strides beyond 64 bits",
        lambda x: add.compile("f32[4, 4611686018427387904:4]", "f32[4]", "f32[4]", 4),
        "more bytes than 64 bits",
    ),
    (
        "a read-only result",
        lambda x: add[1](x, x, np.broadcast_to(x[:1], (4,)), 4),
        "argument out is read-only",
    ),
    ("too few", lambda x: add[1](x, x), "missing 2 required"),
    ("too many", lambda x: add[1](x, x, x, 4, 64, 5), "positional arguments"),
    ("twice", lambda x: add[1](x, x, x, 4, x=x), "multiple values"),
    ("an unknown option", lambda x: add[1](x, x, x, 4, warps=4), "'warps' is neither"),
    ("a bad option", lambda x: add[1](x, x, x, 4, num_warps="4"), "num_warps"),
    ("a bad grid", lambda x: add["x"](x, x, x, 4), "grid"),
    ("a bad grid function", lambda x: add[lambda a: None](x, x, x, 4), "grid"),
    ("no grid", lambda x: add(x, x, x, 4), "with a grid"),
    ("a list for a constant", lambda x: add[1](x, x, x, 4, BLOCK=[64]), "hashable"),
    ("a string for an array", lambda x: add[1]("hello", x, x, 4), "stands for no argument"),
    ("a stand-in", lambda x: add[1]("f32[64]", x, x, 4), "not launched"),
    ("a stand-in for a number", lambda x: add[1](x, x, x, "i32"), "not launched"),
    ("complex", lambda x: add[1](x.astype(complex), x, x, 4), "complex128"),
    ("an object", lambda x: add[1](object(), x, x, 4), "expected an array"),
    ("a huge number", lambda x: add[1](x, x, x, 1 << 70), "64 bits"),
    ("a GPU's array and ours", lambda x: add[1](FakeTensor((4,)), x, x, 4), "one device"),
    (
        "two GPUs",
        lambda x: add[1](FakeTensor((4,)), FakeTensor((4,), device=1), FakeTensor((4,)), 4),
        "cuda:0, cuda:1",
    ),
    ("read-only", lambda x: add[1](x, x, _read_only(x), 4), "read-only"),
]


@pytest.mark.parametrize(
    "variable, called",
    [
        ("TKC_SIM", "simulate.simulated"),
        ("TKC_VALIDATE", "simulate.validate_once"),
        ("TKC_INTERPRET", "interpret.interpreted"),
    ],
)
def test_a_variable_that_is_set_after_a_remembered_launch(variable, called, monkeypatch):
    """It counts at once, and what it did ends where it is unset."""
    k, x = fresh(add), np.arange(100, dtype=np.float32)
    out, seen = np.zeros_like(x), []

    def launch():
        out[:] = 0
        k[2](x, x, out, 100)
        assert (out == 2 * x).all()

    module, _, name = called.partition(".")
    module = importlib.import_module(f"tkc.runtime.{module}")
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: (seen.append(variable), real(*given))[1])
    for _ in range(3):
        launch()
    assert not seen
    monkeypatch.setenv(variable, "1")
    launch()
    assert seen
    monkeypatch.delenv(variable)
    seen.clear()
    for _ in range(3):
        launch()
    assert not seen
    bound = counted_binds(monkeypatch, k)
    launch()
    assert not bound  # remembered again


def test_a_variable_that_the_passes_read_compiles_anew(monkeypatch):
    k, x = fresh(add), np.ones(100, np.float32)
    k[grid](x, x, x.copy(), 100)
    one = set(map(id, k._compiled.values()))
    monkeypatch.setenv("TKC_RELAX", "0")
    k[grid](x, x, x.copy(), 100)
    assert one.isdisjoint(map(id, k._compiled.values()))


@pytest.mark.parametrize("how", ["TKC_INTERPRET", "TKC_SIM", "TKC_VALIDATE", "TKC_DEBUG", None])
@pytest.mark.parametrize("make", [np.zeros, FakeTensor], ids=["host", "gpu"])
def test_an_unhashable_constant_is_refused_alike_everywhere(make, how, monkeypatch):
    if how:
        monkeypatch.setenv(how, "1")
    x = make((4,))
    words = r"argument BLOCK of add: a constexpr must be hashable \(unhashable type: 'list'\)"
    with pytest.raises(tkc.LaunchError, match=words):
        add[1](x, x, x, 4, BLOCK=[64])
    with pytest.raises(tkc.LaunchError, match=words):
        add.predict(x, x, x, 4, BLOCK=[64], grid=1)


def _read_only(x):
    y = x.copy()
    y.flags.writeable = False
    return y


@pytest.mark.parametrize("call,message", [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_calls(call, message):
    with pytest.raises(LaunchError, match=message):
        call(np.zeros(4, np.float32))


def test_only_functions_with_named_parameters_are_kernels():
    with pytest.raises(TypeError):
        tkc.jit(3)
    with pytest.raises(TypeError, match="a lambda; write def"):
        tkc.jit(lambda x: None)

    def k(*a):
        pass

    with pytest.raises(LaunchError, match="name every parameter"):
        tkc.jit(k)


def test_a_kernel_with_options_of_its_own():
    @tkc.jit(num_warps=8)
    def k(x):
        tkc.store(x, (0,), tkc.zeros((64,)))

    assert k.compile("f32[64]", target="sm_80").interface.threads == 256
    assert k.compile("f32[64]", target="sm_80", num_warps=2).interface.threads == 64


def test_running_maxima_are_exact_where_asked():
    def k(x, o):
        top, total = tkc.full((8,), -float("inf")), tkc.zeros((8,))
        for n in tkc.range(0, x.shape[1], 64):
            v = tkc.load(x, (0, n), (8, 64))
            new = tkc.maximum(top, tkc.max(v, axis=1))
            total, top = (
                total * tkc.exp(top - new) + tkc.sum(tkc.exp(v - new[:, None]), axis=1),
                new,
            )
        tkc.store(o, (0,), top + tkc.log(total))

    def relaxed(**options):
        return any(
            "only keeps powers small" in text
            for text in (
                tkc.jit(k).compile("f32[8, 640]", "f32[8]", target="sm_80", **options).decisions
            )
        )

    assert relaxed() and relaxed(relax=True) and not relaxed(relax=False)
    with pytest.raises(LaunchError, match="relax is expected to be True or False, got 3"):
        relaxed(relax=3)
    with pytest.raises(LaunchError, match="persistent is expected to be True or False, got 1"):
        relaxed(persistent=1)


def test_a_result_says_what_it_has():
    c = fresh(add).compile("f32[64]", "f32[64]", "f32[64]", "i32", target="sm_80")
    with pytest.raises(CompileError, match="there are trace"):
        c.ir("nonsense")
    assert "together" in c.report() and [s for s, _ in c.times][0] == "trace"


# --------------------------------------------------------------------------------------------------
def on_gpu(n=256, dtype="float32"):
    return [FakeTensor((n,), dtype, pointer=0x1000_0000 * (i + 1)) for i in range(3)]


def test_a_launch_reaches_the_driver(gpu):
    k = fresh(add)
    for _ in range(3):
        k[grid](*on_gpu(), 256)
    assert len(gpu.named("launch")) == 3 and len(gpu.named("cuModuleLoadDataEx")) == 1
    assert gpu.named("launch")[0][1] == (4, 1, 1)


def test_the_second_launch_asks_the_driver_for_nothing_else(gpu):
    k = fresh(add)
    k[grid](*on_gpu(), 256)
    before = len(gpu.calls)
    k[grid](*on_gpu(), 256)
    assert [c[0] for c in gpu.calls[before:]] == ["launch"]


def test_kernels_of_the_same_facts_are_compiled_once(gpu):
    k = fresh(add)
    for n in (256, 512, 1024):
        k[grid](*on_gpu(n), n)
    for n in (257, 511, 1001):
        k[grid](*on_gpu(n), n)
    assert len(k._compiled) == 2 == len(gpu.named("cuModuleLoadDataEx"))


def test_constants_between_the_arguments(gpu):
    """`by` is 1, so compiled in: the kernel's parameters are numbered without it."""
    k = fresh(shift)
    x, out = FakeTensor((256,), pointer=0x1000_0000), FakeTensor((64,), pointer=0x2000_0000)
    i = k.compile(x, 1, out).interface
    gpu.sizes = [p.size for p in i.parameters]
    k[1](x, 1, out)
    given = {
        p: int.from_bytes(b, "little")
        for p, b in zip(i.parameters, gpu.named("launch")[0][-1], strict=False)
    }
    assert {p.argument: v for p, v in given.items() if p.kind == "pointer"} == {
        0: 0x1000_0000,
        1: 0x2000_0000,
    }


def test_dumps_of_every_pass(monkeypatch, tmp_path):
    monkeypatch.setenv("TKC_DUMP", str(tmp_path))
    fresh(add).compile("f32[64]", "f32[64]", "f32[64]", "i32", target="sm_80")
    names = sorted(p.name for p in (tmp_path / "add").iterdir())
    from tkc.passes.pipeline import PIPELINE

    assert names == [f"{i:02}-{s}.mlir" for i, s in enumerate(["trace", *PIPELINE])]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TKC_DUMP", str(tmp_path / "file"))
    with pytest.raises(CompileError, match="TKC_DUMP: cannot write to .*file/add: ") as e:
        fresh(add).compile("f32[64]", "f32[64]", "f32[64]", "i32", target="sm_80")
    assert "bug of tkc" not in str(e.value)


def test_ptx_names_the_files_of_kernels_alone():
    """Not the one that calls, nor ours."""
    texts = ["f32[64]"] * 3
    for target in ("sm_80", "sm_90a"):
        for options in ({}, {"debug": True}):
            ptx = fresh(add).compile(*texts, "i32", target=target, **options).ptx
            files = [line for line in ptx.splitlines() if line.startswith(".file")]
            assert files == [f'.file 1 "{kernels.__file__}"']


def test_dumps_of_what_is_simulated(monkeypatch, tmp_path):
    from tkc.passes.pipeline import PIPELINE

    monkeypatch.setenv("TKC_DUMP", str(tmp_path))
    monkeypatch.setenv("TKC_SIM", "1")
    x, out = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
    fresh(add)[grid](x, x, out, 70)
    names = sorted(p.name for p in (tmp_path / "add").iterdir())
    assert names == [f"{i:02}-{s}.mlir" for i, s in enumerate(["trace", *PIPELINE])]


def test_simulated(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    for target in ("sm_80", "sm_90a"):
        monkeypatch.setenv("TKC_TARGET", target)
        x, out = np.arange(70).astype(ml_dtypes.bfloat16), np.zeros(70, ml_dtypes.bfloat16)
        k = fresh(add)
        k[grid](x, x, out, 70)
        assert np.array_equal(out, x + x) and not k._compiled
    monkeypatch.setenv("TKC_TARGET", "sm_7")
    with pytest.raises(CompileError, match="TKC_TARGET"):
        fresh(add)[grid](x, x, out, 70)


def test_validated(monkeypatch, capsys):
    monkeypatch.setenv("TKC_VALIDATE", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_80")
    x, out = np.arange(70).astype(np.float32), np.zeros(70, np.float32)
    k = fresh(add)
    for _ in range(2):
        k[grid](x, x, out, 70)
    reports = capsys.readouterr().err.strip().splitlines()
    assert (
        np.array_equal(out, x + x)
        and len(reports) == 1
        and "passes change nothing" in reports[0]
        and "sm_80" in reports[0]
    )


FACTOR = 2.0


@tkc.jit
def raised(x):
    tkc.store(x, (0,), tkc.load(x, (0,), (8,)) * FACTOR)


@tkc.jit
def lowered(x):
    tkc.store(x, (0,), tkc.load(x, (0,), (8,)) - FACTOR)


def test_each_program_of_the_same_arguments_is_validated(monkeypatch, capsys):
    """Another kernel, and one that reads something else by now, are other programs."""
    monkeypatch.setenv("TKC_VALIDATE", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_80")
    one, other = fresh(raised), fresh(lowered)
    x = np.ones(8, np.float32)
    for _ in range(2):
        one[1](x)
        other[1](x)
    monkeypatch.setitem(one.fn.__globals__, "FACTOR", 4.0)
    one[1](x)
    reports = capsys.readouterr().err.strip().splitlines()
    assert [r.split()[1] for r in reports] == ["raised", "lowered", "raised"]


def test_a_prepared_launch_is_of_what_the_kernel_reads_then(monkeypatch):
    kernel = fresh(raised)
    kernel[1](np.ones(8, np.float32))
    monkeypatch.setitem(kernel.fn.__globals__, "FACTOR", 5.0)
    x = np.ones(8, np.float32)
    kernel.prepare(x, grid=1)()
    assert np.array_equal(x, np.full(8, 5.0))


def test_launches_are_handed_to_who_asked():
    """To the innermost, whose own go to the one around it; another thread's to nobody; after an
    error as before.
    """
    out, seen = np.zeros(4, np.float32), []

    @tkc.jit
    def put(out, value, N: tkc.constexpr):
        tkc.store(out, (0,), tkc.full((N,), value, tkc.float32))

    def outer(kernel, grid, args, kwargs):
        seen.append(("outer", kernel, grid, args[1:], kwargs))

    def inner(kernel, grid, args, kwargs):
        seen.append(("inner", args[1]))
        kernel[grid](args[0], args[1] + 1, **kwargs)

    with tkc.handed(outer):
        put[1](out, 1.0, N=4)
        with tkc.handed(inner):
            put[1](out, 2.0, N=4)
        worker = threading.Thread(target=lambda: put[1](out, 7.0, N=4))
        worker.start()
        worker.join()
        put[(1,)](out, 4.0, N=4)
    assert (
        seen
        == [
            ("outer", put, 1, (1.0,), {"N": 4}),
            ("inner", 2.0),
            ("outer", put, 1, (3.0,), {"N": 4}),
            ("outer", put, (1,), (4.0,), {"N": 4}),
        ]
        and (out == 7).all()
    )
    with pytest.raises(ZeroDivisionError), tkc.handed(lambda *launch: 1 / 0):
        put[1](out, 1.0, N=4)
    with tkc.handed(inner):
        put[1](out, 1.0, N=4)
    assert (out == 2).all()
    put[1](out, 9.0, N=4)
    assert (out == 9).all()


@pytest.mark.parametrize("value", [np.int32(7), np.float32(-0.0), np.int64(3), np.bool_(True)])
def test_a_numpy_scalar_is_a_number_in_every_launch(value):
    @tkc.jit
    def fill(x, n):
        tkc.store(x.ptr + tkc.arange(4), n)

    x = np.zeros(4, type(value))
    for n in (value, value, type(value)(1), value):
        x[:] = 0
        fill[1](x, n)
        assert (
            (x == n).all() and (np.signbit(x) == np.signbit(n)).all()
            if x.dtype.kind == "f"
            else (x == n).all()
        )


@tkc.jit
def last_of_a_row(x, extents, o):
    tkc.store(extents, (0,), tkc.full((1,), 1, tkc.int64) * x.shape[0])
    tkc.store(o, (0,), tkc.load(x, (x.shape[0] - 3,), (8,), other=7))


def test_an_extent_beyond_32_bits_of_few_bytes():
    """One element, seen more often than 32 bits count."""
    for extent in (5, (1 << 31) - 1, (1 << 32) + 5):
        extents, o = np.zeros(1, np.int64), np.zeros(8, np.int8)
        last_of_a_row[1](np.broadcast_to(np.ones(1, np.int8), (extent,)), extents, o)
        assert extents[0] == extent and o.tolist() == [1] * 3 + [7] * 5


@tkc.jit
def divides_by(x, s):
    tkc.store(x, (0,), tkc.full((4,), 1.0, tkc.float32) / s.to(tkc.float32))


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16, np.float32, float])
def test_a_zero_that_is_negative_is_another_number(kind):
    x = np.zeros(4, np.float32)
    for zero in (0.0, -0.0, 0.0):
        divides_by[1](x, kind(zero))
        assert (x == np.copysign(np.inf, zero)).all()


read_by_threads = 1.0


@tkc.jit
def stores_what_threads_change(x):
    tkc.store(x, (0,), tkc.full((4,), read_by_threads, tkc.float32))


def test_code_that_was_old_when_it_was_compiled_is_not_kept(monkeypatch):
    """One thread compiles, a name is rebound, another one launches: it sees the new value."""
    kernel, real = fresh(stores_what_threads_change), jit.compile
    compiled, go = threading.Event(), threading.Event()

    def slow(*args):
        made = real(*args)
        compiled.set()
        assert go.wait(20)
        return made

    monkeypatch.setattr(jit, "compile", slow)
    found = [np.zeros(4, np.float32) for _ in range(2)]
    threads = [threading.Thread(target=kernel[1], args=(x,)) for x in found]
    threads[0].start()
    assert compiled.wait(20)
    monkeypatch.setitem(globals(), "read_by_threads", 2.0)
    threads[1].start()
    threads[1].join(0.3)
    go.set()
    for thread in threads:
        thread.join(20)
    assert (found[1] == 2).all()
    kernel[1](found[0])
    assert (found[0] == 2).all()


def test_code_that_read_what_was_rebound_meanwhile_has_no_entry(monkeypatch):
    kernel, real, entries = fresh(stores_what_threads_change), jit.compile, []

    def rebinding(*args):
        monkeypatch.setitem(globals(), "read_by_threads", 3.0)
        return real(*args)

    monkeypatch.setattr(jit, "compile", rebinding)
    monkeypatch.setattr(cache.DiskCache, "put", lambda self, key, parts: entries.append(key))
    kernel[1](np.zeros(4, np.float32))
    assert not entries and not kernel._compiled


def test_functions_that_are_made_for_each_launch_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(jit, "MAX_COMPILED", 4)
    kernel, x = fresh(stores_what_is_given), np.zeros(4, np.float32)
    for n in range(12):
        kernel[1](x, lambda n=n: float(n))
        assert (x == n).all()
        assert len(kernel._compiled) <= 4 and len(kernel._watched) < 40


@tkc.jit
def stores_what_is_given(x, F: tkc.constexpr):
    tkc.store(x, (0,), tkc.full((4,), F(), tkc.float32))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))]
)
def test_a_copy_of_a_kernel_is_the_kernel(copied):
    """As of a function. (Copies shared what was compiled, but not what was watched for it.)"""
    x = np.zeros(4, np.float32)
    stores_what_is_given[1](x, float)
    assert copied(stores_what_is_given) is stores_what_is_given
    tuned = tkc.autotune([tkc.Config()])(stores_what_is_given)
    assert copy.deepcopy([tuned])[0] is tuned
