"""tkc.kernels.scaled_matmul and quantize_blocks against float64: every kind of scales, ragged ends,
epilogues, memory orders; what is launched on GPUs compiles clean.
"""

import itertools
from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, launches, numbers, torch_with_ops
from tests.runtime.conftest import gpu  # noqa: F401
from tkc import kernels
from tkc.kernels.scaled import _blocks, _grid, _scaled

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SHAPES = [(33, 65, 130), (1, 129, 128), (129, 1, 257), (130, 257, 100), (257, 131, 1), (1, 1, 7)]
WAYS = {
    "whole": ("whole", "whole"),
    "rows": ("each", "each"),
    "rows of one": ("each", "whole"),
    "columns of one": ("whole", "each"),
    "blocks": ("1", "128"),
    "blocks of columns": ("128", "1"),
    "wide blocks": ("128", "128"),
    "narrow blocks": ("1", "1"),
}


def blocks(n: int) -> int:
    return -(-n // 128)


def scale(kind: str, m: int, k: int, seed: int) -> np.ndarray:
    """Of a factor [m, k]; sums of what is not the same in each block differ where a scale is
    another's.
    """
    shape = {"whole": (1,), "each": (m,), "1": (m, blocks(k)), "128": (blocks(m), blocks(k))}[kind]
    return np.random.default_rng(seed).uniform(0.25, 4, shape).astype(np.float32)


def spread(s: np.ndarray, kind: str, m: int, k: int) -> np.ndarray:
    """The scale of each element."""
    if kind in ("whole", "each"):
        return np.broadcast_to(s.reshape(-1, 1), (m, k)).astype(np.float64)
    rows = np.repeat(s, 1 if kind == "1" else 128, axis=0)[:m]
    return np.repeat(rows, 128, axis=1)[:, :k].astype(np.float64)


@cache
def given(way: str, m: int, n: int, k: int, kinds=(E4M3, E4M3)):
    """(a, w [N, K], their scales as [M, …] and [N, …]) and the product in float64."""
    one, two = WAYS[way]

    def make(shape, kind, seed):
        return (
            np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)
            if kind is np.int8
            else numbers(shape, seed=seed).astype(kind)
        )

    a, w, sa, sb = (
        make((m, k), kinds[0], 0),
        make((n, k), kinds[1], 1),
        scale(one, m, k, 2),
        scale(two, n, k, 3),
    )
    return a, w, sa, sb, (double(a) * spread(sa, one, m, k)) @ (double(w) * spread(sb, two, n, k)).T


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_of_scales(way, shape):
    a, w, sa, sb, want = given(way, *shape)
    got = kernels.scaled_matmul(a, w.T, sa, sb.T, dtype="float32")
    assert got.dtype == np.float32
    close(got, want, ulps=32)
    close(kernels.scaled_matmul(a, w.T, sa, sb.T, exact=False), want, "bfloat16")


@pytest.mark.parametrize("way", WAYS)
def test_every_memory_order(way):
    a, w, sa, sb, want = given(way, 130, 140, 260)

    def turn(x):
        return np.asfortranarray(x) if x.ndim == 2 else x

    for one, two, three in itertools.product((a, turn(a)), (w, turn(w)), "CF"):
        out = np.full((130, 140), np.nan, np.float32, order=three)
        assert (
            kernels.scaled_matmul(
                one,
                two.T,
                turn(sa) if three == "C" else sa,
                turn(sb).T if two is w else sb.T,
                out=out,
            )
            is out
        )
        close(out, want, ulps=32)
    padded = (
        np.full((3, 260), np.nan, np.float32)[:, : sa.shape[0]].T if WAYS[way][0] == "1" else None
    )
    if padded is not None:
        padded[...] = sa
        close(kernels.scaled_matmul(a, w.T, padded, sb.T, dtype="float32"), want, ulps=32)


@pytest.mark.parametrize(
    "a, b", [((), ()), ((1, 1), (1,)), ((33, 1), (1, 65)), ((33,), ()), ((), (65,))]
)
def test_shapes_of_scales(a, b):
    x, w = numbers((33, 40)).astype(E4M3), numbers((65, 40), seed=1).astype(E5M2)
    sa, sb = (
        np.random.default_rng(i).uniform(0.5, 2, s).astype(np.float32) for i, s in enumerate((a, b))
    )
    close(
        kernels.scaled_matmul(x, w.T, sa, sb, dtype="float32"),
        double(x) * sa.reshape(-1, 1) @ (double(w).T * sb.reshape(1, -1)),
        ulps=32,
    )


@pytest.mark.parametrize(
    "kinds",
    [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2), (np.int8, np.int8)],
    ids=lambda kinds: " ".join(np.dtype(k).name for k in kinds),
)
def test_element_types(kinds):
    for way in WAYS if kinds[0] is not np.int8 else ("whole", "rows", "rows of one"):
        a, w, sa, sb, want = given(way, 33, 65, 300, kinds)
        for dtype in ("float32", "float16", "bfloat16"):
            close(
                kernels.scaled_matmul(a, w.T, sa * np.float32(1e-2), sb.T, dtype=dtype),
                want * 1e-2,
                ulps=32 if dtype == "float32" else 2,
            )


@pytest.mark.parametrize("way", ["whole", "rows", "blocks"])
@pytest.mark.parametrize(
    "activation", [None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"]
)
def test_epilogues(activation, way):
    a, w, sa, sb, want = given(way, 33, 65, 130)
    bias, sa, want = numbers(65, "bfloat16", seed=4), sa / 20, want / 20
    apply = {
        None: lambda z: z,
        "relu": lambda z: np.maximum(z, 0),
        "tanh": np.tanh,
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "silu": lambda z: z / (1 + np.exp(-z)),
    }
    got = kernels.scaled_matmul(a, w.T, sa, sb.T, bias, activation, dtype="float32")
    z = want + double(bias)
    if activation in apply:
        close(got, apply[activation](z), ulps=64)
    else:
        close(
            got,
            double(
                kernels.gelu(z.astype(np.float32), "tanh" if activation == "gelu_tanh" else "none")
            ),
            ulps=64,
        )


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("way", WAYS)
def test_empty(way, shape):
    a, w, sa, sb, _ = given(way, *shape)
    bias = numbers(shape[1])
    got = kernels.scaled_matmul(a, w.T, sa, sb.T, bias, dtype="float32")
    assert got.shape == shape[:2] and np.array_equal(got, np.broadcast_to(bias, shape[:2]))


def f32(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(b=f32(300, 20).astype(E4M3)), "transpose one"),
        (dict(a=f32(2, 8, 256).astype(E4M3)), "reshape them to matrices"),
        (dict(a=numbers((140, 256), "bfloat16")), "quantize them, or call matmul"),
        (dict(a=np.ones((140, 256), np.int8)), "or both of int8"),
        (
            dict(a_scale=f32(139)),
            r"a_scale is \[1\], \[140\], or of blocks \[140, 2\] or \[2, 2\], got \[139\]",
        ),
        (
            dict(b_scale=f32(150, 2)),
            r"b_scale is \[1\], \[150\], or of blocks \[2, 150\] or \[2, 2\], got \[150, 2\]",
        ),
        (dict(a_scale=f32(140, 2)), "scales of blocks go with scales of blocks"),
        (dict(a_scale=np.ones(1)), "scales are float32, got a_scale of float64"),
        (dict(bias=f32(140)), "expected a bias of .150."),
        (dict(activation="swish"), "activation is None or one of"),
        (dict(dtype="int8"), "dtype is one of"),
        (dict(out=f32(150, 140)), r"expected out of \[140, 150\]"),
        (dict(out=np.zeros((140, 150))), "out is of bfloat16, float16, float32, got float64"),
        (dict(b=object()), "expected an array of torch"),
    ],
)
def test_what_cannot_be_is_refused(change, words):
    made = dict(
        a=f32(140, 256).astype(E4M3), b=f32(256, 150).astype(E4M3), a_scale=f32(1), b_scale=f32(1)
    )
    with pytest.raises(tkc.LaunchError, match=words):
        kernels.scaled_matmul(**made | change)


def test_integers_have_no_blocks():
    with pytest.raises(tkc.LaunchError, match="those of float8 factors"):
        kernels.scaled_matmul(
            np.ones((140, 256), np.int8), np.ones((256, 150), np.int8), f32(140, 2), f32(2, 2)
        )


# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("block", [(1, 128), (128, 128), (1, 32), (64, 16), (2, 1)], ids=str)
@pytest.mark.parametrize(
    "shape", [(0, 5), (5, 0), (1, 1), (3, 129), (131, 257), (130, 100)], ids=str
)
def test_quantize_blocks(shape, block, dtype):
    (m, n), (rows, columns) = shape, block
    x, most = (
        numbers(shape, scale=5),
        {"int8": 127, "float8_e4m3": 448, "float8_e5m2": 57344}[dtype],
    )
    x[m // 2 : m // 2 + 1, :columns] = 0
    step = {"int8": 1 / 254, "float8_e4m3": 2.0**-4, "float8_e5m2": 2.0**-3}[dtype] * 1.01
    q, scales = kernels.quantize_blocks(x, rows, columns, dtype)
    assert (
        q.shape == x.shape
        and scales.shape == (-(-m // rows), -(-n // columns))
        and scales.dtype == np.float32
    )
    padded = np.zeros((scales.shape[0] * rows, scales.shape[1] * columns), np.float32)
    padded[:m, :n] = x
    tops = (
        np.abs(padded)
        .reshape(scales.shape[0], rows, scales.shape[1], columns)
        .max((1, 3), initial=0)
    )
    close(scales, np.where(tops > 0, tops / most, 1))

    def of(each):
        return np.repeat(np.repeat(each, rows, 0), columns, 1)[:m, :n]

    assert (
        np.abs(double(q) * of(scales) - x)
        <= step * (of(tops) if dtype == "int8" else np.abs(x) + of(tops) / most)
    ).all()


def test_the_order_of_scales():
    """Dense columns of 16 bytes for blocks of one row, dense rows else; both as a product takes
    them, of a transpose too.
    """
    x, w = numbers((131, 300), "bfloat16"), numbers((140, 300), "bfloat16", seed=1)
    (a, sa), (b, sb) = (
        kernels.quantize_blocks(np.asfortranarray(x)),
        kernels.quantize_blocks(w, 128),
    )
    assert (
        sa.shape == (131, 3)
        and sa.strides == (4, 4 * 132)
        and sb.shape == (2, 3)
        and sb.strides == (12, 4)
    )
    want = double(x) @ double(w).T
    for got in (
        kernels.scaled_matmul(a, b.T, sa, sb.T, dtype="float32"),
        kernels.scaled_matmul(b, a.T, sb, sa.T, dtype="float32").T,
    ):
        assert np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) < 0.05


def test_what_is_not_quantized_in_blocks():
    x = numbers((4, 8))
    for call, words in (
        (lambda: kernels.quantize_blocks(x, 3), "powers of two"),
        (lambda: kernels.quantize_blocks(x, 256, 128), "16384 elements at most"),
        (lambda: kernels.quantize_blocks(x[0]), "takes a matrix"),
        (lambda: kernels.quantize_blocks(x, dtype="int4"), "quantization is to"),
        (lambda: kernels.quantize_blocks(x.astype(np.int32)), "expected elements of a float type"),
    ):
        with pytest.raises(tkc.LaunchError, match=words):
            call()


# --------------------------------------------------------------------------------------------------
def texts(m: int, n: int, k: int, way: str, order: str = "F", dtype: str = "e4m3") -> tuple:
    """Stand-ins for the arrays of a product as it is best given: w.T, scales with dense columns (or
    rows, of order "C").
    """
    one, two = WAYS[way]
    shapes = {
        "whole": ("f32[1]",) * 2,
        "each": (f"f32[{m}, 1]", f"f32[1, {n}]"),
        "1": (
            f"f32[{m}:1, {blocks(k)}:{m}]" if order == "F" else f"f32[{m}, {blocks(k)}]",
            f"f32[{blocks(k)}, {n}]",
        ),
        "128": (f"f32[{blocks(m)}, {blocks(k)}]", f"f32[{blocks(k)}:1, {blocks(n)}:{blocks(k)}]"),
    }
    return f"{dtype}[{m}, {k}]", f"{dtype}[{k}:1, {n}:{k}]", shapes[one][0], shapes[two][1]


def chosen(
    m, n, k, way, exact=True, target="sm_90a", order="F", dtype="e4m3", bias=None, activation=None
):
    kernel, more = (
        (_blocks, {"ROWS": int(WAYS[way][0]), "COLUMNS": int(WAYS[way][1])})
        if way.endswith(("blocks", "blocks of columns"))
        else (_scaled, {"EXACT": exact})
    )
    given = *texts(m, n, k, way, order, dtype), bias, f"bf16[{m}, {n}]"
    choice = kernel.choose(
        *given, ACTIVATION=activation, **more, grid=_grid, target=target, measure=False
    )
    return choice, lambda: kernel.kernel.compile(
        *given, ACTIVATION=activation, **more, **dict(choice.config.items), target=target
    )


@pytest.mark.parametrize(
    "m, n, k, way, exact, block",
    [
        (8192, 8192, 8192, "whole", False, (128, 192)),
        (8192, 8192, 8192, "rows", True, (128, 256)),
        (4096, 4096, 4096, "rows of one", False, (128, 128)),
        (8192, 8192, 8192, "blocks", True, (256, 128)),
        (8192, 14336, 4096, "blocks", True, (256, 128)),
        (8192, 8192, 8192, "wide blocks", True, (128, 128)),
        (8192, 8192, 8192, "narrow blocks", True, (128, 192)),
        (64, 8192, 8192, "blocks", True, (64, 64)),
        (64, 8192, 8192, "whole", False, (64, 64)),
    ],
)
def test_choices_on_hopper(m, n, k, way, exact, block):
    """The blocks that were the fastest measured (benchmarks/product_types.py, history.md); their
    kernels are the tensor core's, with an epilogue too.
    """
    choice, make = chosen(m, n, k, way, exact)
    assert (
        choice.config.constants["BM"],
        choice.config.constants["BN"],
    ) == block and choice.source == "model"
    for compiled in (
        make(),
        chosen(m, n, k, way, exact, bias=f"bf16[{n}]", activation="gelu")[1](),
    ):
        assert (
            "wgmma" in compiled.ptx
            and compiled.resources.clean
            and not [line for line in compiled.decisions if "is not used" in line]
        ), compiled.resources.log


@pytest.mark.parametrize("target", ["sm_90a", "sm_89", "sm_80"])
@pytest.mark.parametrize("way", ["rows", *(way for way in WAYS if "blocks" in way)])
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (300, 500, 700), (1, 129, 130)], ids=str)
def test_it_assembles_clean(shape, way, target):
    """Rows that tensor maps copy, and such that they do not; scales in either order."""
    for order, exact in (("F", True), ("C", False)):
        compiled = chosen(*shape, way, exact, target, order)[1]()
        assert compiled.resources.clean, compiled.resources.log


def test_the_rest_assembles_clean():
    x = np.zeros((1024, 4096), ml_dtypes.bfloat16)
    assembles(
        lambda: (
            kernels.quantize_blocks(x),
            kernels.quantize_blocks(x, 128),
            kernels.quantize_blocks(x[:, 1:1000], 128, dtype="int8"),
        )
    )
    assembles(
        lambda: kernels.scaled_matmul(
            np.zeros((512, 512), np.int8), np.zeros((512, 512), np.int8), f32(1), f32(512)
        )
    )


def test_results_with_odd_rows_may_be_computed_as_transposes(monkeypatch):
    """On a GPU, where the model finds that faster: what the transpose's product is given, of every
    kind of scales, is right.
    """
    from tkc.kernels import scaled

    monkeypatch.setattr(scaled, "narrow", lambda c: True)
    # of two ways to launch the one whose result has so many rows
    monkeypatch.setattr(scaled, "_seconds", lambda way: way[1][-1].shape[0] != 65)
    for way in WAYS:
        a, w, sa, sb, want = given(way, 33, 65, 130)
        bias = numbers(65, seed=4)
        with launches() as found:
            kernels.scaled_matmul(a, w.T, sa, sb.T)
        assert found[0][1][0].shape == (65, 130)
        close(kernels.scaled_matmul(a, w.T, sa, sb.T, bias, dtype="float32"), want + bias, ulps=32)


def test_factors_that_hoppers_engines_do_not_take_are_copied_first(gpu, monkeypatch):  # noqa: F811
    """b with dense rows, and rows of a that start anywhere: one launch for both, before the
    product.
    """
    from tests.kernels.test_launch_plans import Tensor
    from tkc.kernels import arrays

    monkeypatch.setitem(arrays._libraries, Tensor, "torch")
    monkeypatch.setattr(arrays, "_dtype", lambda name, lib: f"torch.{name}")
    one, names = Tensor((1,), "float32"), lambda found: [kernel.__name__ for kernel, _, _ in found]
    one.reshape = lambda shape: one
    for a, b, want in (
        ((2048, 2048), (1, 2048), ["_scaled"]),
        ((2048, 2048), None, ["_copies", "_scaled"]),
        ((2048, 2047), (1, 2047), ["_copies", "_scaled"]),
    ):
        with launches() as found:
            kernels.scaled_matmul(
                Tensor(a, "float8_e4m3fn"),
                Tensor((a[1], 2048), "float8_e4m3fn", strides=b),
                one,
                one,
                out=Tensor((2048, 2048), "bfloat16", pointer=0x2000_0000),
            )
        assert names(found) == want


def test_torch():
    torch = torch_with_ops()
    from tests.kernels.test_torch import DEVICE, tensors

    x, w, bias = tensors((33, 260), (48, 260), (48,), grad=False)
    (a, sa), (b, sb), scale = (
        kernels.quantize_blocks(x),
        kernels.quantize_blocks(w, 128),
        torch.ones((), device=DEVICE),
    )
    assert sa.stride() == (1, 36)

    def f(*given):
        return kernels.scaled_matmul(*given, activation="relu", dtype="float32")

    for one, two in ((sa, sb.t()), (scale, scale), (sa[:, 0], sb[0, 0])):
        torch.testing.assert_close(
            torch.compile(f, fullgraph=True)(a, b.t(), one, two, bias), f(a, b.t(), one, two, bias)
        )
    want = torch.relu(x @ w.t() + bias)
    assert (f(a, b.t(), sa, sb.t(), bias) - want).norm() <= 0.1 * want.norm()
    (a, sa), (b, sb) = kernels.quantize_rows(x, "int8"), kernels.quantize(w, "int8")
    torch.library.opcheck(torch.ops.tkc.scaled_matmul, (a, b.t(), sa, sb, bias, "relu"))
