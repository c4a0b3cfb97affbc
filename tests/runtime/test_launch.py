"""The launch path on a made-up driver: what it is given, and what it is never asked."""

import math
import struct

import numpy as np
import pytest

from tests.runtime.fake_driver import FakeTensor
from tkc.errors import DeviceError, LaunchError, MapError
from tkc.ir.interface import Interface, Parameter
from tkc.runtime import driver
from tkc.runtime.arrays import describe
from tkc.runtime.launch import Launch, launch


def interface(*p, threads=128, **more):
    return Interface("k", more.pop("target", "sm_90a"), threads, parameters=p, **more)


POINTER = Parameter("pointer", "u64", 0)
MAP = Parameter("map", "b8[128]", 0, element="bf16", box=(64, 64), swizzle=128)


@pytest.fixture
def function(gpu):
    return driver.load(b"// text", "k", 0)


def test_parameters_are_packed_as_the_interface_says(gpu, function):
    p = (
        POINTER,
        Parameter("shape", "u32", 0, 1),
        Parameter("stride", "s64", 0, 0),
        Parameter("scalar", "f32", 1),
        Parameter("scalar", "s32", 2),
        Parameter("grid", "u32", axis=1),
    )
    gpu.sizes = [q.size for q in p]
    launch(interface(*p), function, [FakeTensor((5, 7)), 0.5, -3], (4, 3), 99)
    ((_, grid, block, shared, stream, given),) = gpu.named("launch")
    assert (grid, block, shared, stream) == ((4, 3, 1), (128, 1, 1), 0, 99)
    assert given == [
        struct.pack("<Q", 0x1000_0000),
        struct.pack("<I", 7),
        struct.pack("<q", 7),
        struct.pack("<f", 0.5),
        struct.pack("<i", -3),
        struct.pack("<I", 3),
    ]


def test_one_is_an_ordinary_number_at_this_level(gpu, function):
    gpu.sizes = [4]
    launch(interface(Parameter("scalar", "s32", 0)), function, [1], (1,))
    assert gpu.named("launch")[0][-1] == [b"\1\0\0\0"]


@pytest.mark.parametrize(
    "dtype,ptx,value,expected",
    [
        (np.float16, "b16", 1.5, np.float16(1.5).tobytes()),
        (np.float64, "f64", 0.1, struct.pack("<d", 0.1)),
        (np.int8, "s16", -2, struct.pack("<h", -2)),
        (np.uint64, "u64", 2**63, struct.pack("<Q", 2**63)),
        (np.bool_, "u8", True, b"\1"),
        (np.float32, "f32", np.inf, struct.pack("<f", np.inf)),
    ],
)
def test_numpy_scalars_keep_their_type(gpu, function, dtype, ptx, value, expected):
    gpu.sizes = [len(expected)]
    launch(interface(Parameter("scalar", ptx, 0)), function, [dtype(value)], (1,))
    assert gpu.named("launch")[0][-1] == [expected]


def test_a_bfloat16_scalar(gpu, function):
    import ml_dtypes

    gpu.sizes = [2]
    launch(interface(Parameter("scalar", "b16", 0)), function, [ml_dtypes.bfloat16(3.0)], (1,))
    assert gpu.named("launch")[0][-1] == [ml_dtypes.bfloat16(3.0).tobytes()]


def test_tensor_maps_are_aligned_and_made_once(gpu, function):
    i = interface(Parameter("scalar", "s32", 1), MAP)
    x, gpu.sizes = FakeTensor((256, 128), "bfloat16"), [4, 128]
    for _ in range(3):
        launch(i, function, [x, 5], (1,))
    assert gpu.aligned and len(gpu.maps) == 1


@pytest.mark.parametrize("others", [(), (Parameter("workspace", "u64", bytes=64),)])
def test_an_array_without_a_map_is_told_before_the_launch(gpu, function, others):
    """There another program is taken, with memory of its own or not."""
    x = describe(FakeTensor((64, 64), "bfloat16", strides=(-64, 1)), "x")
    with pytest.raises(MapError, match="positive multiples of 16 bytes, got -128"):
        Launch(interface(MAP, *others), function, ["x"], [x], (1, 1, 1), lambda: 0, "k")


def test_clusters_multiply_the_grid(gpu, function):
    launch(interface(POINTER, cluster=(2, 1)), function, [FakeTensor((8,))], (5, 3, 2))
    *_, config = gpu.named("launch")[0]
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (10, 3, 2)
    assert (config.attrs[0].value.clusterDim.x, config.attrs[0].value.clusterDim.y) == (2, 1)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_a_dependent_launch_may_begin_early(gpu, function, cluster):
    launch(interface(POINTER, cluster=cluster, dependent=True), function, [FakeTensor((8,))], (5,))
    *_, config = gpu.named("launch")[0]
    assert config.numAttrs == len(config.attrs) == 1 + (cluster != (1, 1))
    assert config.attrs[-1].id == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert config.attrs[-1].value.programmaticStreamSerializationAllowed == 1


def test_blocks_that_wait_for_one_another_do_not_begin_early(gpu, function):
    together = interface(POINTER, persistent=True, together=True, dependent=True)
    launch(together, function, [FakeTensor((8,))], (5,))
    assert gpu.named("launch together") and not gpu.named("launch")


@pytest.mark.parametrize(
    "grid,cluster,blocks,expected",
    [
        ((10, 10), (1, 1), 1, 100),
        ((100, 10), (1, 1), 1, 132),
        ((100, 10), (1, 1), 2, 264),
        ((1, 3), (2, 1), 1, 4),
        ((300, 3), (2, 1), 1, 132),
    ],
)
def test_a_persistent_grid_is_what_is_resident(gpu, function, grid, cluster, blocks, expected):
    gpu.blocks = blocks
    launch(interface(POINTER, persistent=True, cluster=cluster), function, [FakeTensor((8,))], grid)
    assert gpu.named("launch")[0][1] == (expected, 1, 1)


@pytest.mark.parametrize(
    "grid, cluster, together, split, expected",
    [
        ((25, 5), (2, 1), (2, 1), 1, 130),  # 125 tiles: 13 pairs in each of 5 columns
        ((25, 5), (2, 1), (1, 2), 1, 132),  # 25 x 3 pairs are more than fit
        ((5, 3, 2), (4, 1), (2, 2), 1, 48),
        ((5, 3), (2, 1), (2, 1), 3, 54),
    ],
)
def test_a_cluster_that_the_grid_ends_in_has_all_its_blocks(
    gpu, function, grid, cluster, together, split, expected
):
    """3200 x 832 x 6912 took twice its time on an H200: two of 65 clusters waited for others."""
    gpu.blocks = 1
    form = interface(
        POINTER, persistent=True, cluster=cluster, cluster_programs=together, split=split
    )
    launch(form, function, [FakeTensor((8,))], grid)
    assert gpu.named("launch")[0][1] == (expected, 1, 1)


def test_blocks_that_wait_for_one_another_begin_together(gpu, function):
    launch(
        interface(POINTER, persistent=True, together=True), function, [FakeTensor((8,))], (100, 10)
    )
    assert gpu.named("launch together")[0][1] == (132 * gpu.blocks, 1, 1) and not gpu.named(
        "launch"
    )


@pytest.mark.parametrize("grid", [(0,), (4, 0), (4, 4, 0)])
def test_an_empty_grid_launches_nothing(gpu, function, grid):
    launch(interface(POINTER), function, [FakeTensor((8,))], grid)
    assert not gpu.named("launch")


def test_an_empty_array_may_have_no_address(gpu, function):
    launch(interface(POINTER), function, [FakeTensor((0, 4), pointer=0)], (1,))
    assert gpu.named("launch")


def test_a_workspace_is_cleared_once_for_each_stream(gpu, function):
    i = interface(Parameter("workspace", "u64", bytes=4096))
    for stream in (1, 1, 2):
        launch(i, function, [], (1,), stream)
    assert len(gpu.named("cuMemAlloc")) == len(gpu.named("cuMemsetD8Async")) == 2


def test_workspaces_are_few_and_a_launch_never_uses_a_freed_one(gpu, function):
    i, stream = interface(Parameter("workspace", "u64", bytes=4096)), [1]
    gpu.sizes = [8]
    again = Launch(i, function, [], [], (1, 1, 1), lambda: stream[0], "k")
    for s in [*range(1, 21), 1, 20]:
        stream[0] = s
        again()
    freed = {c[1] for c in gpu.named("cuMemFree")}
    assert len(freed) == 5 and len(function.scratch) == 16
    used = [int.from_bytes(c[-1][0], "little") for c in gpu.named("launch")]
    assert used[0] in freed and used[20] not in freed and used[21] == used[19]


def test_a_captured_stream_gets_memory_outside_of_its_capture_that_is_never_freed(gpu, function):
    i, stream = interface(Parameter("workspace", "u64", bytes=64)), [7]
    again = Launch(i, function, [], [], (1, 1, 1), lambda: stream[0], "k")
    gpu.captured = {7}
    again()
    names = [c[0] for c in gpu.calls]
    assert names.count("cuThreadExchangeStreamCaptureMode") == 2 and names.index(
        "cuThreadExchangeStreamCaptureMode"
    ) < names.index("cuMemAlloc")
    assert (
        "cuMemsetD8Async",
        function.scratch[7, 256],
        0,
        256,
        0x51DE,
    ) in gpu.calls and "cuCtxSynchronize" not in names
    for s in range(8, 40):
        stream[0] = s
        again()
    assert (7, 256) in function.scratch and function.scratch[7, 256] not in {
        c[1] for c in gpu.named("cuMemFree")
    }


REFUSED = [
    ("host memory", interface(POINTER), [np.zeros(4, np.float32)], (1,), "host memory"),
    ("a number for an array", interface(POINTER), [3], (1,), "expected an array"),
    (
        "an array for a number",
        interface(Parameter("scalar", "s32", 0)),
        [FakeTensor((4,))],
        (1,),
        "expected a number",
    ),
    ("nothing", interface(POINTER), [], (1,), "expected 1 arguments"),
    ("a freed array", interface(POINTER), [FakeTensor((4,), pointer=0)], (1,), "address is 0"),
    (
        "a crooked address",
        interface(POINTER),
        [FakeTensor((4,), pointer=0x1001)],
        (1,),
        "no multiple",
    ),
    (
        "too low a rank",
        interface(Parameter("shape", "u32", 0, 1)),
        [FakeTensor((4,))],
        (1,),
        "rank",
    ),
    (
        "two devices",
        interface(POINTER, Parameter("pointer", "u64", 1)),
        [FakeTensor((4,)), FakeTensor((4,), device=1)],
        (1,),
        "one device",
    ),
    (
        "an extent too long for 32 bits",
        interface(Parameter("shape", "u32", 0, 0)),
        [FakeTensor((1 << 33,))],
        (1,),
        "does not fit",
    ),
    (
        "a number too long for 32 bits",
        interface(Parameter("scalar", "s32", 0)),
        [1 << 40],
        (1,),
        "does not fit",
    ),
    ("a negative unsigned", interface(Parameter("scalar", "u32", 0)), [-1], (1,), "does not fit"),
    ("a stand-in", interface(Parameter("scalar", "s32", 0)), ["i32"], (1,), "stands for a number"),
    ("a long y", interface(POINTER), [FakeTensor((4,))], (1, 65536), "grid axis 1"),
    ("a long z", interface(POINTER), [FakeTensor((4,))], (1, 1, 65536), "grid axis 2"),
    ("a long x", interface(POINTER), [FakeTensor((4,))], (1 << 31,), "grid axis 0"),
    (
        "a cluster makes it long",
        interface(POINTER, cluster=(1, 2)),
        [FakeTensor((4,))],
        (1, 40000),
        "grid axis 1",
    ),
    (
        "a large persistent grid",
        interface(POINTER, persistent=True),
        [FakeTensor((4,))],
        (65536, 65535),
        "split the launch",
    ),
    ("a large block", interface(POINTER, threads=2048), [FakeTensor((4,))], (1,), "2048 threads"),
    (
        "much shared memory",
        interface(POINTER, shared_bytes=240000),
        [FakeTensor((4,))],
        (1,),
        "shared memory",
    ),
    ("a large cluster", interface(POINTER, cluster=(32, 1)), [FakeTensor((4,))], (1,), "cluster"),
    (
        "clusters before sm_90",
        interface(POINTER, cluster=(2, 1), target="sm_80"),
        [FakeTensor((4,))],
        (1,),
        "no clusters",
    ),
    ("an unknown parameter", interface(Parameter("colour", "u32")), [], (1,), "another version"),
    ("map: rank", interface(MAP), [FakeTensor((64,), "bfloat16")], (1,), "rank 2"),
    ("map: type", interface(MAP), [FakeTensor((64, 64), "float32")], (1,), "elements bf16"),
    (
        "map: address",
        interface(MAP),
        [FakeTensor((64, 64), "bfloat16", pointer=0x1008)],
        (1,),
        "multiple of 16",
    ),
    (
        "map: stride",
        interface(MAP),
        [FakeTensor((64, 60), "bfloat16", strides=(60, 1))],
        (1,),
        "multiples of 16",
    ),
    (
        "map: negative stride",
        interface(MAP),
        [FakeTensor((64, 64), "bfloat16", strides=(-64, 1))],
        (1,),
        "multiples of 16",
    ),
    (
        "map: last axis",
        interface(MAP),
        [FakeTensor((64, 64), "bfloat16", strides=(1, 64))],
        (1,),
        "contiguous",
    ),
    ("map: empty", interface(MAP), [FakeTensor((0, 64), "bfloat16")], (1,), "at least 1"),
    (
        "map: box",
        interface(Parameter("map", "b8[128]", 0, element="bf16", box=(512, 64), swizzle=128)),
        [FakeTensor((1024, 64), "bfloat16")],
        (1,),
        "at most 256",
    ),
    (
        "map: narrow box",
        interface(Parameter("map", "b8[128]", 0, element="bf16", box=(64, 4))),
        [FakeTensor((64, 64), "bfloat16")],
        (1,),
        "multiple of 16",
    ),
    (
        "map: panels",
        interface(
            Parameter(
                "map", "b8[128]", 0, element="bf16", box=(64, 128), swizzle=128, panelled=True
            )
        ),
        [FakeTensor((64, 96), "bfloat16")],
        (1,),
        "multiple of 64",
    ),
    (
        "map: dimensions",
        interface(
            Parameter("map", "b8[128]", 0, element="bf16", box=(1,) * 5 + (64,), swizzle=128)
        ),
        [FakeTensor((1,) * 5 + (64,), "bfloat16")],
        (1,),
        "at most 5",
    ),
]


@pytest.mark.parametrize(
    "i,arguments,grid,message", [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_a_bad_launch_is_refused_before_the_driver_is_asked(
    gpu, function, i, arguments, grid, message
):
    with pytest.raises(LaunchError, match=message):
        launch(i, function, arguments, grid)
    assert not gpu.named("launch") and not gpu.maps


def test_code_for_another_machine_is_refused(gpu, function):
    gpu.attributes["COMPUTE_CAPABILITY_MAJOR"], gpu.attributes["COMPUTE_CAPABILITY_MINOR"] = 8, 6
    driver._attribute.cache_clear()
    with pytest.raises(LaunchError, match="cuda:0 is sm_86"):
        launch(interface(POINTER), function, [FakeTensor((4,))], (1,))


def test_registers_of_a_whole_block(gpu):
    gpu.registers = 255
    function = driver.load(b"", "k", 0)
    with pytest.raises(LaunchError, match="255 registers"):
        launch(interface(POINTER, threads=512), function, [FakeTensor((4,))], (1,))


def test_large_shared_memory_is_asked_for(gpu):
    driver.load(b"", "k", 0, shared_bytes=100000)
    assert gpu.named("cuFuncSetAttribute")[0][2] == 100000


def test_a_thread_without_a_context_gets_ours(gpu, function):
    gpu.errors["launch"], gpu.current = [201], [0]
    launch(interface(POINTER), function, [FakeTensor((4,))], (1,))
    assert len(gpu.named("launch")) == 2 and gpu.current == [1]


def test_a_thread_with_another_context_keeps_it(gpu, function):
    gpu.errors["launch"], gpu.current = [400], [7]
    launch(interface(POINTER), function, [FakeTensor((4,))], (1,))
    assert len(gpu.named("launch")) == 2 and gpu.current == [7]
    driver.load(b"", "k", 0)
    driver.synchronize()
    assert (
        gpu.current == [7]
        and len(gpu.named("cuCtxPushCurrent")) == len(gpu.named("cuCtxPopCurrent")) == 3
    )


def test_a_refused_launch_names_the_kernel_and_its_arguments(gpu, function):
    gpu.errors["launch"] = [1]
    with pytest.raises(
        DeviceError, match=r"launching k on grid \(2, 1, 1\) with 0=float32\[4\].*CUDA_ERROR_1"
    ):
        launch(interface(POINTER), function, [FakeTensor((4,))], (2,))
    launch(interface(POINTER), function, [FakeTensor((4,))], (1,))  # and the next one is made


def test_after_a_sticky_error_nothing_is_launched(gpu, function):
    gpu.errors["launch"] = [700]
    for _ in range(3):
        with pytest.raises(DeviceError, match="dead until the process ends"):
            launch(interface(POINTER), function, [FakeTensor((4,))], (1,))
    assert len(gpu.named("launch")) == 1


def test_a_forked_child_is_refused(gpu, function):
    function.pid -= 1
    gpu.errors["launch"] = [3]
    with pytest.raises(DeviceError, match="spawn"):
        launch(interface(POINTER), function, [FakeTensor((4,))], (1,))


def test_a_module_that_does_not_load_says_why(gpu):
    gpu.errors["cuModuleLoadDataEx"] = [218]
    with pytest.raises(DeviceError, match="loading k on cuda:0"):
        driver.load(b"", "k", 0)


@pytest.mark.parametrize(
    "major,minor,expected",
    [
        (9, 0, "sm_90a"),
        (8, 9, "sm_89"),
        (8, 6, "sm_86"),
        (8, 7, "sm_86"),
        (8, 0, "sm_80"),
        (10, 0, "sm_89"),
        (12, 0, "sm_89"),
    ],
)
def test_the_target_of_a_device(gpu, major, minor, expected):
    gpu.attributes |= {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
    driver._attribute.cache_clear()
    assert driver.target_of(0) == expected


def test_a_device_that_is_too_old(gpu):
    gpu.attributes |= {"COMPUTE_CAPABILITY_MAJOR": 7}
    driver._attribute.cache_clear()
    with pytest.raises(DeviceError, match="sm_70"):
        driver.target_of(0)


def test_without_cuda_python_one_sentence_says_so(monkeypatch):
    import sys

    monkeypatch.setattr(driver, "_api", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match="pip install cuda-bindings"):
        driver.api()
    assert not driver.available()


def test_grids_as_numbers(gpu, function):
    from tkc.runtime.jit import normalized

    assert normalized(5, "k") == (5, 1, 1) and normalized((np.int64(2), 3), "k") == (2, 3, 1)
    for bad in ((), (1, 2, 3, 4), -1, 2.5, (1, "x")):
        with pytest.raises(LaunchError, match="grid"):
            normalized(bad, "k")
    assert math.prod(normalized((0, 7), "k")) == 0


def test_there_are_more_than_forty_classes():
    from tests.runtime.test_jit import BAD

    assert len({name for name, *_ in (*REFUSED, *BAD)}) >= 50


def test_rows_that_cut_sectors_promote_less():
    """3000 x 5000 x 7000 in bfloat16, whose rows start 16 bytes behind multiples of 32, ran 1 %
    faster so in two races on an H200.
    """
    from tkc.runtime.tensor_maps import promotion

    assert (
        promotion((14000,)) == promotion((8192, 16)) == 128
        and promotion((8192,)) == promotion(()) == 256
    )


def test_a_plan_may_have_the_cache_read_less():
    """A block of 64 columns of bfloat16 is a line wide, one of 128 two, and what lies beside is
    asked for apart.
    """
    from tkc.kernels.matmul import _product
    from tkc.runtime.tensor_maps import promotion

    assert (
        promotion((8192,), 128) == promotion((14000,), 128) == 128
        and promotion((8192,), 256) == 256
    )

    def maps(b, columns):
        return [
            p.fetch
            for p in _product.kernel.compile(
                "bf16[64, 8192]",
                b,
                None,
                "bf16[64, 8192]",
                ACTIVATION=None,
                BM=64,
                BN=columns,
                BK=64,
                programs=1,
                target="sm_90a",
            ).interface.parameters
            if p.kind == "map"
        ]

    assert maps("bf16[8192, 8192]", 64) == maps("bf16[8192, 8192]", 128) == [0, 128, 0] and maps(
        "bf16[8192, 8192]", 256
    ) == [0, 0, 0]
    # along k, what comes next is the next iteration's
    assert maps("bf16[8192:1, 8192:8192]", 64) == [
        0,
        0,
        0,
    ]
