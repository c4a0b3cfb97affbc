"""Launches through machine code: whatever changes between two calls, the driver is asked for
exactly what a kernel that was never launched before would ask for.
"""

import ctypes
import gc
import inspect
import json
import math
import os
import random
import sys
import threading
import weakref
from types import BuiltinFunctionType, SimpleNamespace

import pytest

import tkc
from tests.runtime.fake_driver import FakeTensor
from tests.runtime.kernels import add, grid, scaled
from tkc.errors import DeviceError, LaunchError
from tkc.kernels.calls import Script
from tkc.objects import own_dict
from tkc.runtime import driver, handed, launch, launch_cache
from tkc.runtime.fingerprint import DICT, NAMES_OF_CLASSES, NAMES_OF_FUNCTIONS, SIZE, Parts
from tkc.runtime.jit import JitFunction

CODES = {"float32": (2, 32), "int32": (0, 32), "bfloat16": (4, 16)}
stream = [0]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
def describe(t, out):
    t.words = (
        (ctypes.c_int64 * len(t.shape))(*t.shape),
        (ctypes.c_int64 * len(t.shape))(*t.stride()),
    )
    out[0] = DLTensor(
        t.data_ptr(),
        (2, t.device.index),
        len(t.shape),
        *CODES[str(t.dtype).removeprefix("torch.")],
        1,
        *map(ctypes.addressof, t.words),
        0,
    )
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_uint64))
def current(kind, device, out):
    out[0] = stream[0]
    return 0


API = (ctypes.c_void_p * 7)(
    1 | 3 << 32,
    None,
    None,
    None,
    None,
    *(ctypes.cast(f, ctypes.c_void_p).value for f in (describe, current)),
)
# a table of version 2, which knows that of version 1
NEXT = (ctypes.c_void_p * 2)(2, ctypes.addressof(API))
capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype, capsule.argtypes = (
    ctypes.py_object,
    [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_void_p,
    ],
)
NAME = b"dlpack_exchange_api"


class Tensor(FakeTensor):
    __dlpack_c_exchange_api__ = capsule(ctypes.addressof(NEXT), NAME, None)
    negated = False

    def is_neg(self):
        return self.negated


@pytest.fixture
def machine(gpu, monkeypatch):
    """A GPU whose driver is called from machine code; `launched` is what it was asked for: the
    code, grid, stream and parameters.
    """
    images, launched, sizes = [], [], {}
    monkeypatch.setattr(
        gpu, "cuModuleLoadDataEx", lambda image, *_: (0, images.append(image) or len(images))
    )
    monkeypatch.setattr(gpu, "cuModuleGetFunction", lambda module, entry: (0, module))
    loading = launch.load

    def load(compiled, device):
        function = loading(compiled, device)
        sizes[function.handle] = [p.size for p in compiled.interface.parameters]
        return function

    monkeypatch.setattr(launch, "load", load)
    monkeypatch.setattr(launch, "stream_source", lambda values, device: lambda: stream[0])
    gpu.codes = []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def entry(config, function, parameters, extra):
        if gpu.codes:
            return gpu.codes.pop(0)
        gpu.sizes, words = sizes[function], (ctypes.c_uint * 8).from_address(config)
        launched.append(
            (
                images[function - 1],
                tuple(words[:7]),
                ctypes.c_uint64.from_address(config + 32).value,
                gpu._read(parameters),
            )
        )
        return 0

    monkeypatch.setattr(driver, "launch_entry", lambda: entry)
    stream[0] = 0
    gpu.launched = launched
    return gpu


def doubled(x, y, out, n):
    """Its parameters have extents and strides."""
    i = tkc.program_id(0) * 64
    tkc.store(out, (i,), tkc.load(x, (i + n,), (64,)) + tkc.load(y, (i,), (64,)))


def number(x, n):
    tkc.store(x.ptr + tkc.arange(1), tkc.zeros((1,), tkc.int64) + n.to(tkc.int64))


def of(pointer=0x1000_0000, n=256, dtype="float32", strides=None):
    return Tensor((n,), dtype, pointer, strides)


def three(**changes):
    return [of(0x1000_0000 * (i + 1), **changes) for i in range(3)]


def addresses(m) -> list[int]:
    return sorted(n for p in m[3] if (n := int.from_bytes(p, "little")) >= 0x1000_0000)


def is_native(launcher) -> bool:
    return type(launcher) is BuiltinFunctionType


@pytest.fixture
def general(monkeypatch):
    """The Python that was run: how many calls went the general way."""
    calls, made = [], JitFunction._prepare
    monkeypatch.setattr(
        JitFunction,
        "_prepare",
        lambda self, values, *rest: (calls.append(values), made(self, values, *rest))[1],
    )
    return calls


def test_a_launch_made_before_runs_no_python(machine, general):
    k = JitFunction(add.fn)
    for _ in range(2):
        k[4](*three(), 256)
    before = len(general)
    for _ in range(3):
        k[4](*three(), 256)
    assert (
        is_native(k[4])
        and len(general) == before == 1
        and len(machine.launched) == 5
        and len(set(map(str, machine.launched))) == 1
    )


def test_a_choice_read_from_a_file_runs_no_python_either(machine, general, tmp_path):
    """Names of options are told by identity, and JSON makes its own."""
    tuned = tkc.autotune([tkc.Config(num_warps=4)], key=lambda arguments: "one", measure=False)(
        JitFunction(add.fn)
    )
    entry = {
        "device": driver.name(0),
        "kernel": "add",
        "key": "one",
        "config": {"BLOCK": 64, "num_warps": 8},
        "seconds": None,
    }
    (tmp_path / "table.json").write_text(json.dumps({"format": "tkc-table-1", "entries": [entry]}))
    tuned.key = lambda arguments: "one"
    tuned.import_table(tmp_path / "table.json")
    for _ in range(2):
        tuned[4](*three(), 256)
    before = len(general)
    for _ in range(3):
        tuned[4](*three(), 256)
    assert (
        len(general) == before == 1
        and len(machine.launched) == 5
        and tuned.choose(*three(), 256, grid=4).source == "table"
    )


def test_arrays_elsewhere_are_the_same_launch(machine, general):
    """Of the same alignment, and overlapping as before: the addresses are written into the
    parameters on the way.
    """
    k = JitFunction(add.fn)
    for _ in range(2):
        k[4](*three(), 256)
    k[4](*(of(0x5000_0000 + 0x10_0000 * i) for i in range(3)), 256)
    assert len(general) == 1 and addresses(machine.launched[-1]) == [
        0x5000_0000,
        0x5010_0000,
        0x5020_0000,
    ]
    assert (
        machine.launched[-1][:3] == machine.launched[0][:3]
        and machine.launched[-1][3] != machine.launched[0][3]
    )


def test_numbers_of_the_other_sign_are_refused_behind_others(machine, general):
    """torch's tensors say so of views of a conjugate's imaginary part: no two of their elements are
    neighbours. DLPack says nothing of it.
    """
    k = JitFunction(add.fn)
    x, y, out = three(strides=(2,))
    for _ in range(3):
        k[4](x, y, out, 256)
    assert len(general) == 1 and is_native(k[4])
    x.negated = True
    with pytest.raises(LaunchError, match="resolve_neg"):
        k[4](x, y, out, 256)
    x.negated = False
    k[4](x, y, out, 256)
    assert len(machine.launched) == 4


def test_numbers_elsewhere_are_the_same_launch(machine, general):
    """Of the same facts (1, a multiple of 16, negative, 32 bits): they are written into the
    parameters too, as wide as these are.
    """

    def axpy(x, out, n, a, b, W: tkc.constexpr = 3):
        i = tkc.program_id(0) * 64 + tkc.arange(64)
        tkc.store(out.ptr + i, tkc.load(x.ptr + i) * a + b + W, mask=i < n)

    k, (x, out, _) = JitFunction(axpy), three()
    for _ in range(2):
        for n in (100, 32, 1 << 40, -3, -48):
            k[4](x, out, n, 2.5, -0.0)
    before, said = len(general), []
    for n, a, b in (
        (-7, 1e300, 0.0),
        (255, -0.0, 3.5),
        (-16, 2.5, float("inf")),
        ((1 << 41) + 16, -1e-320, 1.0),
    ):
        k[4](x, out, n, a, b)
        JitFunction(axpy).made((x, out, n, a, b), {}, 4)()
        ours, wanted = machine.launched[-2:]
        said.append(ours[3])
        assert ours == wanted
    assert len(general) == before + 4 and len(set(map(str, said))) == 4  # the other kernel's alone
    k[4](x, out, 100, 2.5, -0.0, W=4)
    assert machine.launched[-1][0] != machine.launched[0][0] and len(general) == before + 5


def test_a_prepared_launch(machine):
    launch = add.prepare(*three(), 256, grid=4)
    for stream[0] in (0, 0, 77, 0, 77):
        launch()
    assert (
        type(launch) is BuiltinFunctionType
        and [m[2] for m in machine.launched] == [0, 0, 77, 0, 77]
        and len({str(m[:2] + m[3:]) for m in machine.launched}) == 1
    )
    machine.codes[:] = [1, 1]
    with pytest.raises(DeviceError, match="CUDA_ERROR_1"):
        launch()
    driver.generation.value += 1
    launch()
    assert len(machine.launched) == 6


def changes():
    x, y, out = three()
    return {
        "nothing": (x, y, out, 256),
        "alignment": (of(0x1000_0004), y, out, 256),
        "address": (of(0x7000_0000), y, out, 256),
        "overlap": (x, y, of(0x1000_0010), 256),
        "the same": (x, x, out, 256),
        "in place": (x, y, x, 256),
        "touching": (x, of(0x1000_0400), out, 256),
        "one byte": (x, of(0x1000_03F0), out, 256),
        "extent": (of(n=250), y, out, 250),
        "stride": (of(strides=(2,)), y, out, 256),
        "backwards": (of(0x1000_0400, strides=(-1,)), y, out, 256),
        "type": (*three(dtype="int32"), 256),
        "narrow": (*three(dtype="bfloat16"), 256),
        "number": (x, y, out, 255),
        "one": (x, y, out, 1),
        "long": (x, y, out, 1 << 40),
        "odd": (x, y, out, (1 << 40) + 1),
        "negative": (x, y, out, -1),
        "true": (x, y, out, True),
        "empty": (of(n=0), of(n=0), of(n=0), 0),
        "rank": (
            Tensor((16, 16)),
            Tensor((16, 16), pointer=0x2000_0000),
            Tensor((16, 16), pointer=0x3000_0000),
            256,
        ),
    }


def test_every_change_reaches_the_driver(machine):
    """Random calls, each also made by a kernel without launch caches: the driver sees the same.
    Every fact of a specialization is among what changes.
    """
    random_, calls, grids, seen = random.Random(6), changes(), (1, (4,), (2, 2)), set()
    pairs = [(k := JitFunction(fn), plain := JitFunction(fn)) for fn in (add.fn, doubled)]
    for k, plain in pairs:
        plain._compiled = k._compiled
    for _ in range(600):
        (k, plain), name, by_name, stream[0] = (
            random_.choice(pairs),
            random_.choice(list(calls)),
            random_.random() < 0.3,
            random_.choice((0, 0, 77)),
        )
        if k is not pairs[0][0] and name in ("rank", "true", "backwards"):
            continue  # not what `doubled` takes
        args, where = calls[name], random_.choice(grids)
        start = len(machine.launched)
        k[where](*args[:3], n=args[3]) if by_name else k[where](*args)
        plain.made(args, {}, where)()
        assert len(machine.launched) == start + 2
        ours, wanted = machine.launched[start:]
        seen.add(ours[0])
        assert ours == wanted, name
    assert all(is_native(k[1]) for k, _ in pairs) and len(seen) >= 12


def test_numbers_of_every_size(machine):
    k, x = JitFunction(number), of(dtype="float32")
    for n in (-1, (1 << 64) - 1, -1, (1 << 64) - 1, 1 << 31, 0):
        k[1](x, n)
    codes = [m[0] for m in machine.launched]
    assert (
        codes[0] == codes[2] != codes[1] == codes[3] != codes[4] != codes[0]
        and machine.launched[1] == machine.launched[3]
    )
    with pytest.raises(LaunchError, match="64 bits"):
        k[1](x, 1 << 64)


def stepping(out, n, step):
    total = tkc.zeros((1,), tkc.int32)
    for i in range(0, n, step):
        total = total + i
    tkc.store(out.ptr + tkc.arange(1), total)


def test_a_step_of_zero_is_refused(machine):
    """In the first launch and in later ones; a loop that may not be reached refuses nothing."""
    k, out = JitFunction(stepping), of(dtype="int32")
    for _ in range(2):
        with pytest.raises(LaunchError, match="argument step of stepping is the step of a range"):
            k[1](out, 100, 0)
        for step in (16, -16, 32, 3):
            k[1](out, 100, step)
    assert len(machine.launched) == 8 and is_native(k[1])

    def inside(out, n, step):
        total = tkc.zeros((1,), tkc.int32)
        if n > 5:
            for i in range(0, n, step):
                total = total + i
        tkc.store(out.ptr + tkc.arange(1), total)

    JitFunction(inside)[1](out, 3, 0)
    assert len(machine.launched) == 9


def test_what_is_no_argument_is_watched(machine, monkeypatch):
    k, (x, out, _) = JitFunction(scaled.fn), three()
    for _ in range(3):
        k[4](x, out, 256)
    count = len(machine.launched)
    monkeypatch.setitem(k.fn.__globals__, "SCALE", 5.0)
    held = k[4]
    held(x, out, 256)
    assert len(machine.launched) == count + 1 and machine.launched[-1][0] != machine.launched[0][0]
    for _ in range(3):
        k[4](x, out, 256)
    assert is_native(k[4]) and machine.launched[-1][0] == machine.launched[count][0]
    monkeypatch.setenv("TKC_DEBUG", "1")
    k[4](x, out, 256)
    assert machine.launched[-1][0] != machine.launched[count][0]  # with checks
    monkeypatch.delenv("TKC_DEBUG")
    k[4](x, out, 256)
    assert machine.launched[-1][0] == machine.launched[count][0]


def test_a_kernel_launched_with_checks_first(machine, monkeypatch, general):
    k = JitFunction(add.fn)
    monkeypatch.setenv("TKC_DEBUG", "1")
    for _ in range(3):
        k[4](*three(), 256)
    monkeypatch.delenv("TKC_DEBUG")
    before = len(general)
    for _ in range(5):
        k[4](*three(), 256)
    assert (
        is_native(k[4])
        and len(general) <= before + 2
        and machine.launched[-1][0] != machine.launched[0][0]
    )


def test_options_and_constants(machine, general):
    k = JitFunction(add.fn)
    for warps in (1, 2, 1, 2):
        k[4](*three(), 256, num_warps=warps)
    assert [m[1][3] for m in machine.launched] == [32, 64, 32, 64]
    assert len(general) == 2  # the second of each is known
    for block in (64, 128, 64, 128):
        k[4](*three(), 256, BLOCK=block)
    assert (
        machine.launched[-1][0] != machine.launched[-2][0]
        and machine.launched[-1] == machine.launched[-3]
    )


def test_calls_of_several_kinds(machine, general):
    """Each has its launch cache; the one made last asks the others."""

    def bias(x, b, out, n):
        i = tkc.program_id(0) * 64 + tkc.arange(64)
        tkc.store(out.ptr + i, tkc.load(x.ptr + i) + (0 if b is None else tkc.load(b.ptr + i)))

    k, (x, b, out) = JitFunction(bias), three()
    for _ in range(3):
        k[4](x, b, out, 256)
        k[4](x, None, out, n=256)
        k[4](x, None, out, 256)
    assert [m[0] for m in machine.launched[:3]] == [
        m[0] for m in machine.launched[3:6]
    ] and machine.launched[0][0] != machine.launched[1][0] == machine.launched[2][0]
    before = len(general)
    for at in (0x5000_0000, 0x6000_0000):
        k[4](of(at), b, out, 256)
        k[4](of(at), None, out, n=256)
        k[4](of(at), None, out, 256)
    assert len(general) == before


def test_a_grid_that_is_a_function(machine, general):
    k, sizes = JitFunction(add.fn), (256, 512, 256, 512, 256, 512)
    for n in sizes:
        k[grid](*three(n=n), n)
    assert [m[1][0] for m in machine.launched] == [n // 64 for n in sizes]
    before = len(general)
    for n in sizes:
        k[grid](*three(n=n), n)
    assert len(general) == before


def test_an_error_of_the_driver(machine):
    k = JitFunction(add.fn)
    for _ in range(3):
        k[4](*three(), 256)
    machine.codes[:] = [1, 1]
    with pytest.raises(DeviceError, match="CUDA_ERROR_1"):
        k[4](*three(), 256)
    machine.codes[:] = [201, 201]  # no context on this thread: asked again with ours
    k[4](*three(), 256)
    assert len(machine.launched) == 4
    machine.codes[:] = [700, 700]
    for _ in range(3):
        with pytest.raises(DeviceError, match="dead until the process ends"):
            k[4](*three(), 256)
    assert not machine.codes and len(machine.launched) == 4


def test_what_the_runtime_took_back_is_not_launched(machine, general):
    """A workspace was freed, or the context died: launches remembered before are made again."""
    k = JitFunction(add.fn)
    for _ in range(3):
        k[4](*three(), 256)
    driver.generation.value += 1
    before = len(general)
    for _ in range(3):
        k[4](*three(), 256)
    assert len(general) == before + 1 and len(machine.launched) == 6


def test_arrays_of_tensor_maps_are_remembered_by_address(machine, general):
    @tkc.jit
    def product(a, b, c, K: tkc.constexpr = 128):
        i, total = tkc.program_id(0), tkc.zeros((128, 128), tkc.float32)
        for k in tkc.range(0, K, 64):
            total = tkc.dot(
                tkc.load(a, (i * 128, k), (128, 64)), tkc.load(b, (k, 0), (64, 128)), acc=total
            )
        tkc.store(c, (i * 128, 0), total.to(tkc.bfloat16))

    def matrices(at):
        return [
            Tensor(s, "bfloat16", at + (i << 24))
            for i, s in enumerate(((256, 128), (128, 128), (256, 128)))
        ]

    for _ in range(3):
        for at in (0x1000_0000, 0x7000_0000):
            product[2](*matrices(at))
    assert any(
        p.kind == "map" for p in product.compile(*matrices(0x1000_0000)).interface.parameters
    )
    assert (
        len(general) == 2
        and machine.launched[0]
        == machine.launched[2]
        == machine.launched[4]
        != machine.launched[1]
        == machine.launched[3]
        == machine.launched[5]
    )


def test_from_threads(machine):
    k, failed = JitFunction(add.fn), []
    k[4](*three(), 256)

    def work(i):
        try:
            for j in range(50):
                k[4](
                    *(of(0x1000_0000 * (i + 1) + 0x10_0000 * (m + 3 * (j % 5))) for m in range(3)),
                    256,
                )
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (
        not failed
        and len(machine.launched) == 401
        and all(b - a == c - b for a, b, c in map(addresses, machine.launched))
    )


def test_nothing_is_kept(machine):
    """References are given back; a kernel that is dropped goes with its launch caches, and only the
    caller keeps its arrays.
    """
    k, arguments = JitFunction(add.fn), (*three(), int("1000"))  # a number of its own
    for _ in range(3):
        k[4](*arguments)
    before = [sys.getrefcount(a) for a in arguments]
    for _ in range(100):
        k[4](*arguments)
    assert [sys.getrefcount(a) for a in arguments] == before
    held, gone, array = k[4], weakref.ref(k), weakref.ref(arguments[0])
    del k, held, arguments
    gc.collect()
    assert gone() is None and array() is None


def test_where_there_is_no_machine_code_python_launches(machine, monkeypatch):
    for name, value in (("_methods", lambda: None), ("_exchange", lambda kind: None)):
        with monkeypatch.context() as m:
            m.setattr(launch_cache, name, value)
            k = JitFunction(add.fn)
            for _ in range(3):
                k[4](*three(), 256)
            assert not is_native(k[4])
    k = JitFunction(add.fn)
    for _ in range(3):
        k[4](*(FakeTensor((256,), pointer=0x1000_0000 * (i + 1)) for i in range(3)), 256)
    assert not is_native(k[4]) and len(machine.launched) == 9


@pytest.mark.parametrize("count", [3, 64, 66, 90])
def test_a_key_of_many_tensors_says_which_share_bytes(count):
    """Whichever two they are; for more than a word has bits there is none in machine code."""

    def apart() -> list:
        return [of(0x1000_0000 * (i + 1)) for i in range(count)]

    known = tkc.launch_key(apart())
    if known is None:
        assert count > 64
        return
    found = {known.words(known.key(*apart()))}
    pairs = {(0, 1), (0, count - 1), (1, count - 1), (count - 2, count - 1)}
    for i, j in pairs:
        tensors = apart()
        tensors[j] = of(0x1000_0000 * (i + 1) + 16)
        found.add(known.words(known.key(*tensors)))
    assert len(found) == 1 + len(pairs)


def test_a_launch_key_holds_what_launches_depend_on():
    """In `words` what launches depend on, and nothing else."""
    known = tkc.launch_key((of(), of(), 2, 0.5, 7, None), [False] * 4 + [True, False])
    write, find, entries = known.key, known.find, known.entries

    def key_of(*values):
        return (lambda words: words and known.words(words))(write(*values))

    x, y = of(), of(0x2000_0000)
    want = key_of(x, y, 2, 0.5, 7, None)
    assert (
        want
        and key_of(of(0x3000_0000), of(0x2000_0400), 2, 0.5, 9, None) == want
        and write(of(0x3000_0000), y, 2, 0.5, 9, None) != write(x, y, 2, 0.5, 7, None)
    )
    assert key_of(x, of(0x1000_0100), 2, 0.5, 7, None) == key_of(x, x, 2, 0.5, 7, None)
    others = [
        (x, x, 2, 0.5, 7, None),
        (of(0x1000_0004), y, 2, 0.5, 7, None),
        (of(n=255), y, 2, 0.5, 7, None),
        (of(strides=(2,)), y, 2, 0.5, 7, None),
        (of(dtype="int32"), y, 2, 0.5, 7, None),
        (x, y, 3, 0.5, 7, None),
        (x, y, 2, -0.5, 7, None),
        (x, y, 2, 0.5, 1, None),
        (x, y, 2, 0.5, 32, None),
        (x, y, 2, 0.5, -7, None),
        (x, y, 2, 0.5, -32, None),
        (x, y, 2, 0.5, 1 << 40, None),
    ]
    assert len({want, *(key_of(*o) for o in others)}) == len(others) + 1 and all(
        key_of(*o) for o in others
    )
    assert find(x, y, 2, 0.5, 7, None) is None and not entries
    entries[want] = found = ["something"]
    assert (
        find(x, y, 2, 0.5, 7, None)
        is found
        is find(of(0x3000_0000), of(0x2000_0400), 2, 0.5, 9, None)
        and not any(find(*o) for o in others)
        and find(x, y, 2, 0.5, 7, x) is None
    )
    stream[0] = 5
    try:
        assert key_of(x, y, 2, 0.5, 7, None) == want
    finally:
        stream[0] = 0
    for o in (
        (x, y, 2.0, 0.5, 7, None),
        (x, y, True, 0.5, 7, None),
        (x, y, 2, 0.5, 7, x),
        (x, y, 2, 0.5, 7),
        (x, y, 1 << 70, 0.5, 7, None),
        (of(0), y, 2, 0.5, 7, None),
    ):
        assert write(*o) is None
    assert (
        tkc.launch_key((x, object())) is None
        and tkc.launch_key((1, 2)) is None
        and tkc.launch_key(([x],)) is None
        and tkc.launch_key((x, "a text", (1, 2), True)) is not None
    )


class Base(Tensor):
    """One that has views."""

    __dlpack_c_exchange_api__ = Tensor.__dlpack_c_exchange_api__

    def element_size(self):
        return CODES[self.dtype.removeprefix("torch.")][1] // 8

    def storage_offset(self):
        return 5  # of whatever it is a part

    def as_strided(self, shape, strides, start):
        return Base(
            shape,
            self.dtype.removeprefix("torch."),
            self._pointer + (start - 5) * self.element_size(),
            strides,
        )


def shown(x, view):
    return x if view is None else x.as_strided(view[0], view[1], view[2] + 5)


def base(pointer=0x1000_0000, shape=(16, 32), **more):
    return Base(shape, pointer=pointer, **more)


def several(k, grid, given, views, number=256, **options):
    """`doubled` of views of what is given, again and again."""
    args = [shown(x, view) for x, view in zip(given, views, strict=False)]
    return tkc.repeated(
        k,
        grid,
        [*args, number],
        options,
        [*given, number],
        {
            n: (i, v)
            for i, (n, v) in enumerate(zip(("x", "y", "out", "n"), (*views, None), strict=False))
        },
    )


ROWS = ((256,), (1,), 64), None, ((256,), (1,), 16)


def test_what_is_launched_again_of_others(machine, general):
    """Views of what is given, other numbers, streams and alignments: what the driver is asked for
    is what a kernel of those views asks for, and Python runs once for each alignment, stream and
    kind of number.
    """
    random_, k, plain = random.Random(3), JitFunction(doubled), JitFunction(doubled)
    given = base(), of(0x2000_0000), base(0x3000_0000)
    k[4](*map(shown, given, ROWS), 256)
    again, known = several(k, 4, given, ROWS), set()
    for _ in range(200):
        at, number, stream[0] = (
            [random_.choice((0, 16, 0x40_0000, 4)) for _ in range(3)],
            random_.choice((1, 7, 256, 4096, -7)),
            random_.choice((0, 77)),
        )
        given, before = (
            (
                base(0x1000_0000 + at[0]),
                of(0x2000_0000 + at[1]),
                base(0x3000_0000 + at[2]),
            ),
            len(general),
        )
        again.call(*given, number)
        kind = *(a % 16 for a in at), number == 1, number % 16 == 0, number < 0, stream[0]
        assert len(general) - before == (kind not in known)
        known.add(kind)
        plain.made((*map(shown, given, ROWS), number), {}, 4)()
        assert machine.launched[-1] == machine.launched[-2]
    for x, *_ in again.kinds:
        assert x in (Base, Tensor, int)


def test_what_is_launched_again_watches(machine, general, monkeypatch):
    """Globals, TKC_DEBUG, who is handed launches, the driver's errors and what the runtime took
    back.
    """
    k, given, space = JitFunction(scaled.fn), (base(shape=(256,)), of(0x2000_0000)), {}
    k[4](*given, 256)
    first = tkc.repeated(k, 4, [*given, 256], {}, given, {"x": (0, None), "out": (1, None)})
    first.place, space["f"] = (space, "f"), first.call

    def images():
        return [space["f"](*given), machine.launched[-1][0]][1]

    one, before = images(), len(general)
    assert images() == one == images() and len(general) == before
    monkeypatch.setitem(k.fn.__globals__, "SCALE", 5.0)
    other = images()
    assert other != one and images() == other
    before = len(general)
    # another one took its place
    assert space["f"] is not first.call and images() == other == images() and len(general) == before
    monkeypatch.setenv("TKC_DEBUG", "1")
    assert images() not in (one, other)
    monkeypatch.delenv("TKC_DEBUG")
    assert images() == other
    found, count = [], len(machine.launched)
    with tkc.handed(lambda kernel, grid, args, kwargs: found.append((kernel, grid, *args))):
        space["f"](*given)
    assert found == [(k, 4, *given, 256)] and len(machine.launched) == count
    driver.generation.value += 1
    assert images() == other
    machine.codes[:] = [1, 1]
    with pytest.raises(DeviceError, match="CUDA_ERROR_1"):
        images()
    assert images() == other


def test_what_cannot_be_launched_again_so(machine, monkeypatch):
    """Views of arrays that share bytes, constants that may change, host memory, another kind of
    number where one was.
    """
    k, given = JitFunction(doubled), (base(), of(0x2000_0000), base(0x3000_0000))
    k[4](*map(shown, given, ROWS), 256)
    assert (
        several(k, 4, given, ROWS)
        and several(k, (4, 1), given, ROWS)
        and several(k, 4, (base(), of(0x1000_0100), base(0x3000_0000)), (None,) * 3)
    )
    assert (
        several(k, 4, (base(), of(0x1000_0100), base(0x3000_0000)), ROWS) is None
        and several(k, lambda a: 4, given, ROWS) is None
    )
    assert (
        several(k, 4, (base(device=-1), of(0x2000_0000), base(0x3000_0000)), ROWS) is None
        and several(k, 4, given, ROWS, num_warps=[4]) is None
    )
    again = several(k, 4, given, ROWS)
    for _ in range(3):
        for number in 256, True, (1 << 40) + 16:
            again.call(*given, number)
            (
                JitFunction(doubled).made((*map(shown, given, ROWS), number), {}, 4)()
                if number is not True
                else None
            )
            assert number is True or machine.launched[-1] == machine.launched[-2]
    gone = weakref.ref(given[0])
    del given
    gc.collect()
    assert gone() is None
    monkeypatch.setattr(launch_cache, "_methods", lambda: None)
    assert several(k, 4, (base(), of(0x2000_0000), base(0x3000_0000)), ROWS) is None


class Stored(Base):
    """One that an operator's script looks at."""

    __dlpack_c_exchange_api__ = Tensor.__dlpack_c_exchange_api__

    def numel(self):
        return math.prod(self.shape)

    def is_neg(self):
        return False

    def untyped_storage(self):
        return SimpleNamespace(_cdata=self.data_ptr())

    def as_strided(self, shape, strides, start=5):
        return Stored(
            shape,
            self.dtype.removeprefix("torch."),
            self._pointer + (start - 5) * self.element_size(),
            strides,
        )


def script(*values):
    """Of an operator (x, y)."""
    op = SimpleNamespace(
        parameters=tuple(inspect.signature(lambda x, y: None).parameters.values()),
        varies=(),
        numbers=(),
        mutates=(),
        fn=script,
        run=None,
    )
    return Script(
        op,
        values,
        SimpleNamespace(
            Tensor=FakeTensor,
            empty_strided=None,
            _C=None,
            cuda=SimpleNamespace(device_count=lambda: 1),
        ),
    )


def test_parts_of_arrays_that_share_bytes_may_share_some_or_not(machine):
    """A view that was named by a launch before is a view all the same."""
    k, plain, at = (
        JitFunction(doubled),
        JitFunction(doubled),
        lambda start: Stored((256,), pointer=0x1000_0000 + start),
    )
    x, out = Stored((16, 32)), Stored((256,), pointer=0x3000_0000)
    view, made = shown(x, ((256,), (1,), 0)), script(x, at(0x400))
    made.views[id(view)] = None, (x,), {}
    made.names[id(out)], made.space["_out"] = "_out", out
    for _ in range(2):
        made.launch(k, 4, (view, made.values["y"], out, 256), {})
    again = made.function(None, print, (), print)
    for start in (0x400, 0x200, 0x400, 0, 0x500):  # each meets x
        before = len(machine.launched)
        again(x, at(start))
        plain.made((view, at(start), out, 256), {}, 4)()
        assert machine.launched[before : before + 2] == [machine.launched[-1]] * 2, hex(start)


def test_what_torch_answers_is_of_another_type_within_autocast(machine):
    k, plain, kinds = JitFunction(doubled), JitFunction(doubled), ["float32"]

    def call(x):
        return Stored((256,), kinds[0], 0x5000_0000)

    call.tags, call.overloadpacket, call.namespace, call._schema = (
        (),
        SimpleNamespace(__name__="matmul"),
        "mine",
        SimpleNamespace(is_mutable=False),
    )
    x, y = Stored((16, 32)), Stored((256,), pointer=0x3000_0000)
    made, result = script(x, y), call(x)
    made.operation(call, (x,), {}, result)
    made.launch(k, 4, (result, result, y, 256), {})
    again = made.function(None, print, (), print)
    for kinds[0] in ("float32", "bfloat16") * 2:
        again(x, y)
        plain.made((call(x), call(x), y, 256), {}, 4)()
        assert machine.launched[-1] == machine.launched[-2]


def test_what_was_asked_for_last_lives(machine):
    """Machine code holds its address: it is not gone before that is, whatever other threads put
    there, or ask for, between two lines.
    """

    class Entry:
        pass

    cache = tkc.launch_key((of(), None))
    find, known = cache.find, cache.entries
    x, entries, gone = of(), [], []
    key = cache.words(cache.key(x, None))

    def entry():
        made = Entry()
        entries.append(weakref.ref(made))
        return made

    def another(frame, event, _):
        if frame.f_code not in (
            launch_cache.Entries.__setitem__.__code__,
            launch_cache.Entries.clear.__code__,
        ):
            return None
        count, place = (ctypes.c_uint64 * 2).from_buffer(known.last)
        if count and place not in {id(e()) for e in entries if e() is not None}:
            gone.append(frame.f_lineno)
        if not gone and len(entries) % 5:
            known[key] = entry()
        if not gone:
            find(x, None)
        return another

    before = sys.gettrace()
    sys.settrace(another)
    try:
        for i in range(20):
            if i % 4 == 3:
                known.clear()
            known[key] = entry()
            entries.append(lambda: None)
    finally:
        sys.settrace(before)
    assert not gone
    known[key] = last = entry()
    assert find(x, None) is last is find(x, None) and sum(e() is not None for e in entries) == 1
    known.clear()
    assert find(x, None) is None and not known


def test_a_child_hands_nothing_to_the_parents_threads():
    """Which are not there, and whose numbers its own threads may get."""
    held, done = threading.Event(), threading.Event()

    def work():
        with tkc.handed(print):
            held.set()
            done.wait()

    other = threading.Thread(target=work)
    other.start()
    held.wait()
    try:
        with tkc.handed(print):
            if not (child := os.fork()):
                os._exit(
                    10 * (other.ident in handed.takers)
                    + 2 * (not handed.handing())
                    + (handed._handing is not True)
                )
            ours = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not (child := os.fork()):
            os._exit(10 * (other.ident in handed.takers) + (handed._handing is not None))
        assert (ours, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) == (0, 0)
    finally:
        done.set()
        other.join()
    assert handed._handing is None and not handed.takers


def test_machine_code_sees_what_a_class_gets_and_derives_from():
    class Behind: ...

    class Another: ...

    class Own(Behind): ...

    def getting() -> None:
        Own.value = 1

    def deriving() -> None:
        Own.__bases__ = (Another,)

    def naming() -> None:
        Own.__name__ = "Other"

    def renaming() -> None:
        getting.__name__ = "other"

    def describing() -> None:
        getting.__doc__ = "Other."

    def replacing() -> None:
        own.__dict__ = {"x": 2}

    def replacing_of_a_number() -> None:
        number.__dict__ = {"x": 2}

    class Number(int): ...

    own, number = Own(), Number(5)
    own.x = number.x = 1
    if (methods := launch_cache._methods()) is None:
        pytest.skip("no machine code")
    changes = getting, deriving, naming, renaming, describing, replacing, replacing_of_a_number
    for change in changes:
        spaces = [(Parts(Own), launch_cache.BASES), (Parts(own_dict(Own)), SIZE)]
        spaces += [(Parts(Own), name) for name in NAMES_OF_CLASSES]
        spaces += [(Parts(getting), name) for name in NAMES_OF_FUNCTIONS]
        spaces += [(Parts(own), DICT), (Parts(number), DICT)]
        watched = tuple((space, name, space.get(name)) for space, name in spaces)
        assert launch_cache._methods_for(watched) is not None
        cache = launch_cache.LaunchCache([(int, launch_cache.INT)], 1, (), watched, methods=methods)
        assert cache.key(5) is not None and cache.unchanged()
        change()
        assert cache.key(5) is None and not cache.unchanged()
