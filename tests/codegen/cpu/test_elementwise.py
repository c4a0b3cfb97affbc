"""Element-wise functions, casts and bitcasts of every type against the simulator, on widths round
the chunk of 16 lanes.
"""

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import f64

import tkc
from tests.sim import building
from tkc.codegen.cpu import compile
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import FLOATS, SCALARS, TileType, bits, is_bool, is_float
from tkc.sim.level0 import NUMPY, run

ULPS = {
    "exp": 2,
    "exp2": 2,
    "log": 2,
    "log2": 2,
    "sin": 2,
    "cos": 2,
    "tanh": 3,
    "erf": 3,
    "rsqrt": 1.5,
    "pow": 2,
    "expm1": 2,
    "log1p": 2,
    "atan2": 2,
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.5, 3.5, 1e-3, 100.0, 2.0, -7.0]
WIDTHS = (1, 7, 16, 35)


def cpu(module, arguments, grid):
    compile(module).run(arguments, grid)


@pytest.fixture
def both(monkeypatch):
    """evaluate(function, *inputs) by the simulator and by compiled code."""

    def pair(function, *inputs):
        out = []
        for runner in (run, cpu):
            monkeypatch.setattr(building, "run", runner)
            out.append(building.evaluate(function, *inputs))
        return out

    return pair


def numbers(t, n, seed=0) -> np.ndarray:
    """n values of an element type, special ones among them."""
    random, dtype = np.random.default_rng(seed), np.dtype(NUMPY[t])
    if is_bool(t):
        return random.integers(0, 2, n).astype(bool)
    if is_float(t):
        x = random.normal(size=n) * np.exp(random.uniform(-4, 4, n))
        take = random.permutation(n)[: n // 2]
        x[take] = random.permutation(np.resize(SPECIAL, len(take)))
        with np.errstate(all="ignore"):
            return x.astype(dtype)
    info = np.iinfo(dtype)
    x = random.integers(info.min, info.max, n, dtype, endpoint=True)
    take = random.permutation(n)[: n // 2]
    x[take] = random.permutation(
        np.resize(np.array([0, 1, 2, 3, info.max, info.min, 5, 7], dtype), len(take))
    )
    return x


def ulps(got, want, dtype) -> float:
    """Largest error in units of the type's last place; NaN and infinities must match."""
    g, w = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert (np.isnan(g) == np.isnan(w)).all(), (g, w)
    fine = np.isfinite(w) & np.isfinite(g)
    assert (g[~fine & ~np.isnan(w)] == w[~fine & ~np.isnan(w)]).all(), (g, w)
    info = ml_dtypes.finfo(dtype)
    unit = np.maximum(
        2.0 ** np.floor(np.log2(np.maximum(np.abs(w[fine]), float(info.tiny)))), float(info.tiny)
    ) * float(info.eps)
    return float(np.max(np.abs(g[fine] - w[fine]) / unit, initial=0))


CASES = [(name, t) for name, fn in ew.FUNCTIONS.items() for t in SCALARS if fn.accepts(t)]


@pytest.mark.parametrize("name,t", CASES, ids=[f"{n}-{t}" for n, t in CASES])
def test_function(name, t, both):
    fn = ew.FUNCTIONS[name]
    for n in (35,) if name not in ("add", "max", "lt", "exp", "mod") else WIDTHS:
        x = [numbers(t, n, seed) for seed in range(fn.arity)]
        want, got = both(lambda *v: ew.CLASSES[name](*v).result, *x)
        assert got.dtype == want.dtype
        if is_float(t) and not fn.truth:
            assert ulps(got, want, want.dtype) <= (
                4 if (name, t) == ("fma", f64) else ULPS.get(name, 0)
            ), (x, got, want)
        else:
            np.testing.assert_array_equal(got, want, err_msg=str(x))


@pytest.mark.parametrize("source", SCALARS, ids=str)
def test_casts(source, both):
    x = numbers(source, 67)
    for target in SCALARS:
        want, got = both(lambda v, t=target: ew.Cast(v, TileType([67], t)).result, x)
        if is_float(target):
            assert ulps(got, want, want.dtype) == 0, (source, target, x, got, want)
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"{source} to {target} of {x}")


@pytest.mark.parametrize("t", [t for t in FLOATS if bits(t) <= 16], ids=str)
def test_every_short_float_goes_through_memory_unchanged(t, both):
    words = np.arange(1 << bits(t), dtype=f"u{bits(t) // 8}")
    x = words.view(NUMPY[t])
    keep = ~np.isnan(x.astype(np.float32))
    _, got = both(lambda v: tile.Flip(v, 0).result, x)
    np.testing.assert_array_equal(got.view(words.dtype)[::-1][keep], words[keep])


@pytest.mark.parametrize("t", [t for t in FLOATS if bits(t) <= 16], ids=str)
def test_rounding_of_float32(t, both):
    """Ties, subnormals, overflow: values round every boundary between neighbours."""
    grid = np.sort(
        np.arange(1 << bits(t), dtype=f"u{bits(t) // 8}").view(NUMPY[t]).astype(np.float32)
    )
    grid = grid[np.isfinite(grid)]
    middle = (grid[1:].astype(np.float64) + grid[:-1]) / 2
    step = max(1, len(middle) // 4000)
    middle = middle[::step].astype(np.float32)
    x = np.concatenate(
        [
            middle,
            np.nextafter(middle, np.float32(np.inf)),
            np.nextafter(middle, np.float32(-np.inf)),
            np.float32([1e38, -1e38, np.inf, -np.inf, np.nan]),
        ]
    )
    want, got = both(lambda v: ew.Cast(v, TileType([len(x)], t)).result, x)
    assert ulps(got, want, want.dtype) == 0


@pytest.mark.parametrize(
    "a,b",
    [
        (a, b)
        for a in SCALARS
        for b in SCALARS
        if bits(a) == bits(b) and a != b and not is_bool(a) and not is_bool(b)
    ],
    ids=str,
)
def test_bitcasts(a, b, both):
    x = numbers(a, 19)
    if is_float(a):
        x = np.where(np.isnan(x), np.ones_like(x), x)
    if is_float(b):
        x = x & np.array(0x3F, x.dtype) if not is_float(a) else x
    want, got = both(lambda v: ew.Bitcast(v, TileType([19], b)).result, x)
    assert got.tobytes() == want.tobytes() or (is_float(b) and ulps(got, want, want.dtype) == 0)


@pytest.mark.parametrize(
    "name,low,high",
    [
        ("exp", -104, 89),
        ("exp2", -151, 129),
        ("log", 0, 1e3),
        ("log2", 0, 1e3),
        ("sin", -1e4, 1e4),
        ("cos", -1e4, 1e4),
        ("tanh", -10, 10),
        ("erf", -5, 5),
    ],
)
def test_ulps_of_float32_functions(name, low, high, both):
    random = np.random.default_rng(1)
    x = np.concatenate(
        [
            random.uniform(low, high, 20000),
            np.exp(random.uniform(-80, np.log(high), 20000))
            * (random.choice([-1, 1], 20000) if low < 0 else 1),
        ]
    ).astype(np.float32)
    want, got = both(lambda v: ew.CLASSES[name](v).result, x)
    assert ulps(got, want, np.float32) <= ULPS[name]


def test_integer_division_of_every_pair_of_bytes(both):
    a, b = (
        x.ravel()
        for x in np.meshgrid(
            np.arange(-128, 128, dtype=np.int8), np.arange(-128, 128, dtype=np.int8)
        )
    )
    for name in ("floordiv", "mod"):
        want, got = both(lambda p, q, name=name: ew.CLASSES[name](p, q).result, a, b)
        np.testing.assert_array_equal(got, want)


def chosen_of_two_constants(o1, o2):
    two = tkc.full((16, 1), 2, tkc.int32)
    bound = tkc.arange(32759, 32760) % 9
    other = tkc.full((16,), -1, tkc.float16)
    found = tkc.where(two % 7 >= bound[None, :], two.to(tkc.float16), other[:, None])
    tkc.store(o1, (0, 0), found)
    tkc.store(o2, 0, other)


def test_a_choice_between_two_constants_beside_one_of_them():
    """LLVM aborts on it where one float is chosen, of which it learns late which (its issue
    213251).
    """
    o1, o2 = np.zeros((16, 1), np.float16), np.zeros(16, np.float16)
    tkc.jit(chosen_of_two_constants).compile(o1, o2, target="cpu").program.run([o1, o2], 1)
    assert (o1 == -1).all()
    assert (o2 == -1).all()
