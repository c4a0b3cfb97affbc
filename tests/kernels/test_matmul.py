"""tkc.kernels.matmul: shapes by NumPy's rules, every memory order, every epilogue; what it launches
on Hopper compiles clean.
"""

import itertools
import json
import re
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels
from tkc.kernels.matmul import TABLES, _grid, _product

SHAPES = (
    ((5,), (5,)),
    ((7,), (7, 9)),
    ((9, 7), (7,)),
    ((1, 1), (1, 1)),
    ((33, 65), (65, 17)),
    ((130, 70), (70, 257)),
    ((3, 33, 20), (20, 9)),
    ((3, 33, 20), (3, 20, 9)),
    ((2, 1, 5, 8), (3, 8, 4)),
    ((4, 20), (2, 20, 6)),
    ((1, 257), (257, 100)),
    ((100, 257), (257, 1)),
)
BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("a, b", SHAPES)
def test_shapes_are_numpys(a, b):
    x, y = numbers(a), numbers(b, seed=1)
    got = kernels.matmul(x, y)
    want = double(x) @ double(y)
    assert got.shape == want.shape and got.dtype == np.float32
    close(got, want, ulps=16)


@pytest.mark.parametrize("a, b", [((0, 3), (3, 4)), ((3, 0), (0, 4)), ((2, 3, 0), (0, 4))])
def test_empty(a, b):
    assert np.array_equal(kernels.matmul(numbers(a), numbers(b)), numbers(a) @ numbers(b))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("orders", list(itertools.product("CF", repeat=3)), ids="".join)
def test_every_memory_order(dtype, orders):
    x, y = numbers((70, 40), dtype), numbers((40, 33), dtype, seed=1)
    out = np.zeros((70, 33), x.dtype, order=orders[2])
    assert (
        kernels.matmul(np.asarray(x, order=orders[0]), np.asarray(y, order=orders[1]), out=out)
        is out
    )
    close(out, double(x) @ double(y), dtype)


def test_types_of_results():
    x, y = numbers((20, 32), "bfloat16"), numbers((32, 8), "bfloat16", seed=1)
    assert (
        kernels.matmul(x, y, dtype="float32").dtype == np.float32
        and kernels.matmul(x, y).dtype == BF16
    )
    i = np.arange(64, dtype=np.int8).reshape(8, 8)
    assert np.array_equal(kernels.matmul(i, i), i.astype(np.int32) @ i.astype(np.int32))
    e = numbers((16, 32), "float8_e4m3fn")
    close(kernels.matmul(e, e.T), double(e) @ double(e).T, "bfloat16")


def test_float64_is_summed_in_float64():
    a, b = numbers((70, 130), "float64"), numbers((130, 45), "float64", seed=1)
    for got, want in (
        (kernels.matmul(a, b), a @ b),
        (kernels.matmul(a[:1], b), a[:1] @ b),
        (kernels.grouped_matmul(a, np.stack([b, b]), np.array([20, 70])), a @ b),
        (kernels.grouped_outer(a, a, np.array([70]))[0], a.T @ a),
    ):
        assert got.dtype == np.float64 and np.abs(got - want).max() <= 1e-13 * np.abs(want).max()


@pytest.mark.parametrize(
    "activation", [None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"]
)
def test_epilogues(activation):
    from math import erf, pi, sqrt

    x, y, bias = numbers((33, 40)), numbers((40, 65), seed=1), numbers(65, seed=2)
    z = double(x) @ double(y) + double(bias)
    want = {
        None: lambda: z,
        "relu": lambda: np.maximum(z, 0),
        "gelu": lambda: z * (0.5 + 0.5 * np.vectorize(erf)(z * sqrt(0.5))),
        "tanh": lambda: np.tanh(z),
        "gelu_tanh": lambda: 0.5 * z * (1 + np.tanh(sqrt(2 / pi) * (z + 0.044715 * z**3))),
        "silu": lambda: z / (1 + np.exp(-z)),
        "sigmoid": lambda: 1 / (1 + np.exp(-z)),
    }[activation]()
    close(kernels.matmul(x, y, bias, activation), want, ulps=64)


def test_a_result_may_not_lie_where_operands_do():
    """Nor on itself; beside them in one array it may."""
    a, b = numbers((9, 9)), numbers((9, 9), seed=1)
    both = np.concatenate([a, np.zeros((9, 9), np.float32)], 1)
    kernels.matmul(both[:, :9], b, out=both[:, 9:])
    close(both[:, 9:], double(a) @ double(b), ulps=8)
    with pytest.raises(tkc.LaunchError, match="out, which shares memory with a"):
        kernels.matmul(both[:, :9], b, out=both[:, 8:17])
    c = numbers((9, 9), seed=2)
    with pytest.raises(tkc.LaunchError, match="out, which shares memory with bias"):
        kernels.matmul(a, b, c[0], out=c)
    row = np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (9, 9), (0, 4))
    with pytest.raises(tkc.LaunchError, match="several elements are one in memory"):
        kernels.matmul(a, b, out=row)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: kernels.matmul(x, numbers((5, 4))), "transpose one"),
        (lambda x: kernels.matmul(x, numbers((4, 4), "bfloat16")), "convert one"),
        (
            lambda x: kernels.matmul(x, numbers((4, 4)), activation="swish"),
            "activation is None or one of",
        ),
        (lambda x: kernels.matmul(x, numbers((4, 4)), numbers(3)), "a bias of"),
        (lambda x: kernels.matmul(x, numbers((4, 4)), out=numbers((3, 3))), "expected out of"),
        (lambda x: kernels.matmul(numbers((2, 3, 4)), numbers((3, 4, 4))), "cannot be broadcast"),
        (
            lambda x: kernels.matmul(x[:, :3], (y := numbers((3, 3))), out=y),
            "out, which shares memory with b",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(tkc.LaunchError, match=words):
        call(numbers((3, 4)))


@pytest.mark.parametrize(
    "shape, wasted",
    [
        ((8192, 8192, 8192), 0.08),
        ((4096, 4096, 16384), 0.04),
        ((6150, 6008, 6152), 0.15),
        ((5120, 5120, 5120), 0.031),
        ((1536, 1536, 1536), 0.15),
        ((7168, 576, 7168), 0.2),
        ((64, 8192, 8192), 0.05),
    ],
)
def test_choices_on_hopper_leave_few_multiprocessors_idle(shape, wasted):
    """In the last wave too, by blocks of whatever width, or by parts of k."""
    m, n, k = shape
    choice = _product.choose(
        f"bf16[{m}, {k}]",
        f"bf16[{k}, {n}]",
        None,
        f"bf16[{m}, {n}]",
        ACTIVATION=None,
        grid=_grid,
        target="sm_90a",
        measure=False,
    )
    made = dict(choice.config.items)
    assert choice.source == "model"
    parts = max(made.get("split_k", 1), made.get("stream_k", 1))
    programs = tkc.cdiv(m, made["BM"]) * tkc.cdiv(n, made["BN"]) * parts
    places = tkc.target("sm_90a").multiprocessors
    waves = tkc.cdiv(programs, places)
    done = waves * places * made["BM"] * made["BN"] / parts
    assert m * n / done > 1 - wasted


def test_hopper_takes_every_memory_order_without_a_copy():
    for a, b in itertools.product(("bf16[512, 512]", "bf16[512:1, 512:512]"), repeat=2):
        compiled = _product.kernel.compile(
            a, b, None, "bf16[512, 512]", ACTIVATION=None, BM=128, BN=128, BK=64, target="sm_90a"
        )
        # of both operands, in two or more panels with a third dimension
        copies = re.findall(r"cp\.async\.bulk\.tensor\.[23]d\.shared", compiled.ptx)
        assert "wgmma" in compiled.ptx and len(copies) == 2 and compiled.resources.clean


LARGE = {
    tkc.Config(**entry["config"])
    for entry in json.loads(TABLES.read_text())["entries"]
    if entry["config"]["BM"] * entry["config"]["BN"] > 128 * 256
}


@pytest.mark.parametrize("activation", [None, "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("config", sorted(LARGE, key=repr), ids=repr)
def test_the_tables_large_blocks_have_room_for_an_epilogue(config, activation):
    """A choice is made without it: of 192 x 256, 160 registers a thread are not 240."""
    made = _product.kernel.compile(
        "bf16[8192, 4096]",
        "bf16[4096, 8192]",
        "bf16[8192]",
        "bf16[8192, 8192]",
        ACTIVATION=activation,
        **dict(config.items),
        target="sm_90a",
    )
    assert made.resources.clean, made.resources.log


def test_what_it_launches_assembles():
    x, y = numbers((64, 64), "bfloat16"), numbers((64, 64), "bfloat16", seed=1)
    assembles(lambda: kernels.matmul(x[:1], y))


@pytest.mark.parametrize("m, n, k", [(1, 1, 20000), (1, 300, 5000), (300, 1, 5000)])
def test_vectors_in_parts(m, n, k):
    x, y = numbers((m, k)), numbers((k, n), seed=1)
    for b in (y, np.asfortranarray(y)):
        close(kernels.matmul(x, b), double(x) @ double(y), ulps=64)
    assembles(lambda: kernels.matmul(x, y), ("sm_90a",))


@pytest.mark.parametrize("m, n, k", [(33, 65, 5000), (64, 64, 8192), (130, 20, 4099)])
def test_few_blocks_and_a_long_k(m, n, k):
    x, y, bias = numbers((m, k)), numbers((k, n), seed=1), numbers(n, seed=2)
    close(
        kernels.matmul(x, y, bias, "relu"),
        np.maximum(double(x) @ double(y) + double(bias), 0),
        ulps=256,
    )


def model(kernel, *texts, grid, **more):
    return kernel.choose(*texts, **more, grid=grid, target="sm_90a", measure=False)


def whole(m, n, k):
    return model(
        _product,
        f"bf16[{m}, {k}]",
        f"bf16[{k}, {n}]",
        None,
        f"bf16[{m}, {n}]",
        grid=_grid,
        ACTIVATION=None,
    )


# in parts 43.5 and 48.1
@pytest.mark.parametrize(
    "shape, parts, us",
    [  # measured on an H200, 2026-11-22, by the fastest plan of its kind
        ((64, 64, 65536), True, 14.7),
        ((64, 128, 131072), True, 25.3),
        ((256, 256, 100000), True, 43.5),  # in one launch 21.3, 37.1 and 60.6
        ((17, 4096, 14336), False, 40.5),
        ((31, 8192, 8192), False, 43.3),
    ],
)
def test_few_blocks_are_cut_in_parts_where_that_is_faster(shape, parts, us):
    from tkc.kernels.copies import Laid
    from tkc.kernels.matmul import MIN_PART_K, _is_short_of_blocks, _parted

    m, n, k = shape
    one = whole(*shape).seconds
    given = (Laid("bfloat16", (x, y), (y, 1)) for x, y in ((m, k), (k, n), (m, n)))
    two, _ = _parted(*given, None, "sm_90a")
    assert (
        (two < one) == parts
        and 0.85 < min(one, two) * 1e6 / us < 1.1
        and (_is_short_of_blocks(m, n, k, MIN_PART_K, "sm_90a") or not parts)
    )


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "cpu"])
@pytest.mark.parametrize(
    "shape", [(832, 192, 4736), (237, 58, 1494), (16, 64, 4032), (64, 64, 65536)]
)
def test_parts_end_where_steps_do(shape, target):
    """Parts of 320 in steps of 128 counted 64 of k twice: 832 x 192 x 4736 was wrong on an H200."""
    from tkc.kernels.matmul import _parts

    m, n, k = shape
    a, b, c = (np.empty(s, ml_dtypes.bfloat16) for s in ((m, k), (k, n), (m, n)))
    configs = _parts({"a": a, "b": b, "c": c}, target)
    assert configs and all(x.constants["DEPTH"] % x.constants["BK"] == 0 for x in configs)


def test_k_is_left_whole_where_blocks_fill_the_device():
    """64 x 8192 x 8192 has 128 blocks of 64 x 64: in parts it took 51 us on an H200, whole 43."""
    from tkc.kernels.matmul import MIN_PART_K, _is_short_of_blocks

    short = partial(_is_short_of_blocks, part=MIN_PART_K, target="sm_90a")
    assert not short(64, 8192, 8192) and short(64, 256, 8192)


# in two parts 18.6 and 38.3
@pytest.mark.parametrize("shape, us", [((1, 4096, 4096), 15.7), ((1, 11008, 4096), 28.6)])
def test_a_row_is_multiplied_whole(shape, us):
    choice = whole(*shape)
    assert (
        "split_k" not in choice.config.options
        and choice.config.constants["BM"] == 16
        and 0.9 < choice.seconds * 1e6 / us < 1.1
    )


def test_parts_use_hoppers_engines():
    from tkc.kernels.matmul import _partial

    compiled = _partial.kernel.compile(
        "bf16[256, 100000]",
        "bf16[100000, 256]",
        "f32[33, 256, 256]",
        DEPTH=3072,
        BM=128,
        BN=128,
        BK=64,
        target="sm_90a",
    )
    assert "wgmma" in compiled.ptx and compiled.resources.clean


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize(
    "n, k, bn, bk",
    [
        (4096, 4096, 1, 4096),
        (1, 100000, 1, 1 << 17),
        (64, 20000, 1, 1 << 15),
        (4096, 20000, 4, 2048),
        (528, 131073, 4, 2048),
    ],
)
def test_rows_times_a_vector_compile_clean(n, k, bn, bk, kind):
    from tkc.kernels.matmul import _rows

    assert _rows.compile(
        f"{kind}[1, {k}]",
        f"{kind}[{n}, {k}]",
        None,
        f"{kind}[1, {n}]",
        ACTIVATION=None,
        STEPS=-(-k // bk),
        BN=bn,
        BK=bk,
        target="sm_90a",
    ).resources.clean


@pytest.mark.parametrize("biased", [False, True])
def test_transposes_with_a_bias_of_rows(biased):
    """What is launched where rows of the result start at odd elements."""
    x, y, bias, out = (
        numbers((70, 40)),
        numbers((40, 33), seed=1),
        numbers(33, seed=2),
        np.zeros((70, 33), np.float32),
    )
    _product[_grid](y.T, x.T, bias[:, None] if biased else None, out.T, ACTIVATION="relu")
    close(out, np.maximum(double(x) @ double(y) + double(bias) * biased, 0), ulps=64)
    compiled = _product.kernel.compile(
        "bf16[1013:1, 1019:1024]",
        "bf16[1019:1, 1009:1024]",
        "bf16[1013, 1]" if biased else None,
        "bf16[1013:1, 1009:1013]",
        ACTIVATION=None,
        BM=128,
        BN=64,
        BK=64,
        target="sm_90a",
    )
    assert "wgmma" in compiled.ptx and compiled.resources.clean


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, True)])
def test_copies_in_one_launch(turned):
    from tkc.kernels.copies import _copies

    x, y = numbers((70, 300), "bfloat16"), numbers((33, 90), "bfloat16", seed=1)
    given = [
        np.asarray(array, order="F" if t else "C") for array, t in zip((x, y), turned, strict=False)
    ]
    made = [
        np.zeros(array.shape, array.dtype, order="F" if t else "C")
        for array, t in zip((x, y), turned, strict=False)
    ]
    programs = sum(
        -(-rows // 32) * -(-columns // 256)
        for rows, columns in (
            array.shape[::-1] if t else array.shape
            for array, t in zip((x, y), turned, strict=False)
        )
    )
    _copies[programs](
        given[0], made[0], given[1], made[1], HOW=turned[0] + 4 * turned[1], ROWS=32, COLUMNS=256
    )
    for array, out in zip((x, y), made, strict=False):
        assert np.array_equal(array, out)
    texts = ["bf16[1009:1, 1019:1009]" if t else "bf16[1009, 1019]" for t in turned]
    padded = ["bf16[1009:1, 1019:1024]" if t else "bf16[1009:1024, 1019:1]" for t in turned]
    assert _copies.compile(
        texts[0],
        padded[0],
        texts[1],
        padded[1],
        HOW=turned[0] + 4 * turned[1],
        ROWS=32,
        COLUMNS=256,
        target="sm_90a",
    ).resources.clean


def test_copies_across():
    """Rows to the rows of a transpose, beside a copy as it is: bytes change places in registers."""
    from tkc.kernels.copies import ACROSS, ALONG, _copies

    x, y = numbers((70, 300), "bfloat16"), numbers((33, 90), "bfloat16", seed=1)
    first, second = np.zeros((300, 70), x.dtype), np.zeros_like(y)
    _copies[2 * 3 + 1](x, first, y, second, HOW=ACROSS + 4 * ALONG, ROWS=64, COLUMNS=128)
    assert np.array_equal(first, x.T) and np.array_equal(second, y)
    compiled = _copies.compile(
        "e4m3[1024, 2048]",
        "e4m3[2048, 1024]",
        None,
        None,
        HOW=ACROSS,
        ROWS=64,
        COLUMNS=128,
        target="sm_90a",
    )
    assert (
        compiled.resources.clean and ".v2.b32" in compiled.ptx and "st.shared" not in compiled.ptx
    )


def test_the_table_it_is_shipped_with():
    """Every entry is read, and still compiles for the arrays it speaks of."""
    from tkc.kernels.matmul import TABLES, _key
    from tkc.runtime.tuning import Table

    entries = Table.read(TABLES).entries
    assert len(entries) > 20 and {device for device, _, _ in entries} == {"NVIDIA H200"}
    for (_, kernel, name), entry in list(entries.items())[::5]:
        kind, shape, order = name.split()
        (m, n, k), config = (
            map(int, shape.split("x")),
            {key: tuple(v) if isinstance(v, list) else v for key, v in entry["config"].items()},
        )
        assert kernel == "_product" and order == "nn" and kind == "bfloat16"
        compiled = _product.kernel.compile(
            f"bf16[{m}, {k}]",
            f"bf16[{k}, {n}]",
            None,
            f"bf16[{m}, {n}]",
            ACTIVATION=None,
            **config,
            target="sm_90a",
        )
        assert "wgmma" in compiled.ptx and not [
            line for line in compiled.decisions if "is not used" in line
        ]
    values, _ = _product.bound(
        "bf16[64, 128]", "bf16[128:1, 256:128]", None, "bf16[64, 256]", ACTIVATION=None
    )
    assert _key(dict(zip(_product.kernel.names, values, strict=False))) == "bfloat16 64x256x128 nt"


def test_the_key_of_a_choice_says_how_operands_lie():
    """Rows that are farther apart cut sectors and lines elsewhere; operands of a batch may be
    shared.
    """
    from tkc.kernels.matmul import _key

    def key(*arrays):
        values, _ = _product.bound(*arrays, ACTIVATION=None)
        return _key(dict(zip(_product.kernel.names, values, strict=False)))

    b, c = "bf16[128, 256]", "bf16[64, 256]"
    assert key("bf16[64:136, 128:1]", b, None, c) == "bfloat16 64x256x128 nn a by 136"
    batch = "bf16[3, 64, 128]", "bf16[3, 64, 256]"
    assert key(batch[0], b, None, batch[1]) == "bfloat16 64x256x128 nn of 3 one b"
    assert key(batch[0], f"bf16[3, {b[5:]}", None, batch[1]) == "bfloat16 64x256x128 nn of 3"


def test_a_vector_before_a_batch_and_results_that_are_views():
    x, y = numbers(20), numbers((3, 20, 9), seed=1)
    close(kernels.matmul(x, y), double(x) @ double(y), ulps=16)
    a, b = numbers((2, 3, 33, 20)), numbers((3, 20, 9), seed=1)
    out = np.zeros((3, 2, 33, 9), np.float32).swapaxes(0, 1)
    assert kernels.matmul(a, b, out=out) is out
    close(out, double(a) @ double(b), ulps=16)
    wide = np.full((5, 33, 18), np.nan, np.float32)
    kernels.matmul(numbers((5, 33, 20)), numbers((20, 9)), out=wide[..., ::2])
    close(
        np.ascontiguousarray(wide[..., ::2]),
        double(numbers((5, 33, 20))) @ double(numbers((20, 9))),
        ulps=16,
    )
    assert np.isnan(wide[..., 1::2]).all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", ["bfloat16", "float32", "int8"])
def test_copies_have_whole_lines_where_their_blocks_cover_them(kind, turned):
    """What a product reads beyond a matrix is zero."""
    from tkc.kernels.copies import copier, filled_shape

    x = numbers((130, 515), "float32").astype(getattr(ml_dtypes, kind, kind))
    x = np.asfortranarray(x) if turned else x
    [copy] = copier([x], [turned], filled=True)(x)
    line = 128 // x.dtype.itemsize
    lengths = {"int8": (130, 515)}.get(kind) or (
        (-(-130 // line) * line, 515) if turned else (130, -(-515 // line) * line)
    )
    assert copy.shape == filled_shape(x, turned) == lengths
    assert np.array_equal(copy[:130, :515], x)
    assert not np.any(copy[130:].astype("f4")) and not np.any(copy[:, 515:].astype("f4"))


def test_sectors_that_neighbours_share_stay_in_the_cache():
    """Of 40 x 7272 x 13080, whose b has rows of 14544 bytes, on an H200, 2026-11-28: 65.5 us, 72.4
    where lines of b give way first. Of 64 x 8192 x 8192 43.8, and 40.0 where they do.
    """
    assert "retain" not in whole(40, 7272, 13080).config.options
    assert whole(64, 8192, 8192).config.options["retain"]
