"""Every element-wise function of every element type on the little machine against level 0, on odd
values too.
"""

import re

import numpy as np
import pytest

import tkc
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir.dtypes import DTYPES
from tkc.ir.elementwise import FUNCTIONS
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.sim import level0
from tkc.sim.ptx import run

N = 256
LAYOUT = f"blocked {N} vector 4 warps 2"
TYPES = {str(t.ir): t for t in DTYPES}
CASES = [
    (name, t)
    for name, f in FUNCTIONS.items()
    for t, d in TYPES.items()
    if f.accepts(d.ir) and not (t == "f64" and name in ("erf", "atan2"))
]


def kernel(body: str, types: list[str], out: str, extra: str = "") -> str:
    """Loads arguments %0, %1, … of the types, runs `body`, which defines %r of type `out`, and
    stores it.
    """
    arrays = [*types, out]

    def shaped(t):
        return f'!tile.tile<{N}x{t}, "{LAYOUT}">'

    lines = [
        f'%x{i} = tile.load %a{i}[%zero] {{extents = array<i64: {N}>}} : (!tile.array<?x{t}, "shape'
        f' ={N} strides =1 align 16">, i32) -> {shaped(t)}'
        for i, t in enumerate(types)
    ]
    parameters = ", ".join(
        f'%a{i}: !tile.array<?x{t}, "shape ={N} strides =1 align 16">' for i, t in enumerate(arrays)
    )
    store = (
        f"tile.store %a{len(types)}[%zero] %r {{extents = array<i64: {N}>}} : (!tile.array<?x{out},"
        f' "shape ={N} strides =1 align 16">, i32, {shaped(out)})'
    )
    return (
        f"builtin.module {{ tile.kernel @k({parameters}{extra}) {{warps = 2 : i64, level = 4 :"
        " i64} { %zero = tile.constant 0 : i32\n"
        + "\n".join(lines)
        + f"\n{body}\n{store}\ntile.return }} }}"
    ).replace("SHAPED", f"{N}")


def values(d, seed: int, name: str = "") -> np.ndarray:
    r = np.random.default_rng(seed)
    if d.kind == "bool":
        return r.integers(0, 2, N).astype(bool)
    if d.is_float:
        x = r.standard_normal(N) * r.choice([0.1, 1, 20], N)
        if name == "pow":
            x = np.abs(x) if seed == 0 else np.clip(x, -8, 8)
        odd = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan, 3.0, 100.0, -100.0]
        if name not in ("fma", "atan2", "floordiv", "mod", "sin", "cos"):
            x[:12] = np.roll(odd, seed)
        return x.astype(d.numpy)
    info = np.iinfo(d.numpy)
    x = r.integers(info.min, info.max, N, endpoint=True, dtype=d.numpy)
    x[:5], x[5:100] = (
        [0, 1, info.max, info.min, 2],
        (x[5:100] % 11).astype(d.numpy) - (0 if d.kind == "uint" else 5),
    )
    if name in ("shl", "shr") and seed == 1:
        x = (np.arange(N) % (d.bits + 2)).astype(d.numpy)
    return x


def check(
    text: str,
    inputs: list[np.ndarray],
    out: np.ndarray,
    tolerance: float,
    machine: str = "sm_90a",
    near: float = 0,
) -> None:
    program = emit(parse(text), target(machine))
    got = run(program, [*inputs, out])[-1]
    level0.run(parse(text), [*(x.copy() for x in inputs), out], (1,))
    g, w = (x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (got, out))
    if tolerance:
        with np.errstate(all="ignore"):
            fine = (
                (np.abs(g - w) <= tolerance * np.abs(w) + near)
                | (g == w)
                | np.isnan(g) & np.isnan(w)
            )
        assert fine.all(), [
            (*(x[i] for x in inputs), got[i], out[i]) for i in np.flatnonzero(~fine)[:5]
        ]
    else:
        assert (g == w).all(), [
            (*(x[i] for x in inputs), got[i], out[i]) for i in np.flatnonzero(g != w)[:5]
        ]


def unit(d) -> float:
    return {
        "f16": 2.0**-10,
        "bf16": 2.0**-7,
        "f32": 2.0**-23,
        "f64": 2.0**-52,
        "f8E4M3FN": 2.0**-2,
        "f8E5M2": 2.0**-1,
    }.get(str(d.ir), 0)


@pytest.mark.parametrize("name, t", CASES)
def test_function(name, t):
    f, d = FUNCTIONS[name], TYPES[t]
    out = "i1" if f.truth else t
    inputs = [values(d, i, name) for i in range(f.arity)]
    if d.is_int and name in ("floordiv", "mod"):
        inputs[1][7] = 0
    body = (
        f"%r = tile.{name} {', '.join(f'%x{i}' for i in range(f.arity))} : !tile.tile<{N}x{t},"
        f' "{LAYOUT}">'
    )
    exact = (
        name
        in (
            "add",
            "sub",
            "mul",
            "neg",
            "abs",
            "max",
            "min",
            "floor",
            "ceil",
            "round",
            "trunc",
            "isnan",
            "isinf",
            "sqrt",
            "reciprocal",
        )
        or f.truth
    )
    tolerance = (
        0
        if not d.is_float or f.truth
        else unit(d) * (0.51 if exact else 4)
        if name != "pow"
        else max(unit(d) * 8, 1e-12)
    )
    near = (
        {"sin": 1e-6, "cos": 1e-6, "fma": 1e-6, "mod": 1e-4, "floordiv": 0}.get(name, 1e-44)
        if t != "f64"
        else 1e-12
        if name in ("sin", "cos", "fma", "mod")
        else 0
    )
    if t in ("f16", "bf16", "f8E4M3FN", "f8E5M2") and name == "mod":
        near = 8 * unit(d)
    check(
        kernel(body, [t] * f.arity, out),
        inputs,
        np.zeros(N, TYPES[out].numpy),
        tolerance,
        near=near,
    )


@pytest.mark.parametrize("t", ["i8", "i16", "i32", "i64", "ui64"])
@pytest.mark.parametrize("divisor", [1, 2, 64, -4, 3])
@pytest.mark.parametrize("name", ["div_trunc", "rem_trunc"])
def test_truncating_division_by_a_number(name, divisor, t):
    """Of all signs; by a power of two without a division, which is a function where it is of 64
    bits.
    """
    shaped = f'!tile.tile<{N}x{t}, "{LAYOUT}">'
    by = divisor if t[0] == "i" else abs(divisor)
    body = f"%by = tile.constant {by} : {shaped}\n%r = tile.{name} %x0, %by : {shaped}"
    text, d = kernel(body, [t], t), TYPES[t]
    check(text, [values(d, 0)], np.zeros(N, d.numpy), 0)
    if by > 0 and not by & by - 1:
        assert not re.search(r"\b(div|rem)\.", emit(parse(text), target("sm_90a")).text)


@pytest.mark.parametrize("t", ["i32", "ui32"])
@pytest.mark.parametrize("name", ["div_trunc", "rem_trunc", "floordiv", "mod"])
def test_short_numbers_of_64_bits_are_divided_as_32(name, t):
    wide = t.replace("32", "64")
    short, long = (f'!tile.tile<{N}x{x}, "{LAYOUT}">' for x in (t, wide))
    casts = "\n".join(f"%w{i} = tile.cast %x{i} : {short} to {long}" for i in range(2))
    text, d = kernel(f"{casts}\n%r = tile.{name} %w0, %w1 : {long}", [t, t], wide), TYPES[t]
    check(text, [values(d, 0), values(d, 1)], np.zeros(N, TYPES[wide].numpy), 0)


@pytest.mark.parametrize(
    "one, divisor, plain",
    [
        (1.0, "exp2 %x0|add %0 %ONE", True),
        (-0.3, "mul %x0 %x0|add %ONE %0", True),
        (1.0, "abs %x0|exp2 %0|max %1 %ONE", True),
        (1.0, "abs %x0|add %0 %x0|max %1 %ONE|add %2 %ONE", True),
        (1.0, "exp2 %x0", False),
        (3.0, "exp2 %x0|add %0 %ONE", False),
        (1.0, "add %x0 %ONE", False),
        (1.0, "exp2 %x0|sub %ONE %0", False),
        (1.0, "mul %x0 %ONE|add %0 %ONE", False),
    ],
    ids=str,
)
@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_a_constant_over_what_is_nowhere_small(one, divisor, plain, t):
    """One reciprocal where nothing has to be scaled, and as exact as a quotient, but for what is
    subnormal.
    """
    shaped, lines = f'!tile.tile<{N}x{t}, "{LAYOUT}">', []
    for i, words in enumerate(divisor.split("|")):
        name, *args = words.split()
        lines.append(
            f"%v{i} = tile.{name}"
            f" {', '.join('%v' + a[1:] if a[1:].isdigit() else a.lower() for a in args)} : {shaped}"
        )
    body = "\n".join(
        [
            f"%one = tile.constant 1.0 : {shaped}",
            f"%top = tile.constant {one} : {shaped}",
            *lines,
            f"%r = tile.div %top, %v{len(lines) - 1} : {shaped}",
        ]
    )
    text, d = kernel(body, [t], t), TYPES[t]
    program = emit(parse(text), target("sm_90a")).text
    assert ("rcp.approx.ftz.f32" in program, "div.full.f32" in program) == (plain, not plain)
    x = values(d, 0)
    x[20:40] = np.linspace(120, 130, 20).astype(d.numpy)
    x[40:50] = (np.float64(2) ** np.linspace(50, 64, 10)).astype(d.numpy)
    if plain:
        check(text, [x], np.zeros(N, d.numpy), 4 * unit(d), near=2.0**-126)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("wanted", TYPES)
def test_cast(source, wanted):
    if source == wanted:
        return
    body = (
        f'%r = tile.cast %x0 : !tile.tile<{N}x{source}, "{LAYOUT}"> to !tile.tile<{N}x{wanted},'
        f' "{LAYOUT}">'
    )
    d = TYPES[wanted]
    # rounded through float32
    wide = source in ("i64", "ui64", "i32", "ui32", "f64") and d.bits < 32 and d.is_float
    check(
        kernel(body, [source], wanted),
        [values(TYPES[source], 0)],
        np.zeros(N, d.numpy),
        unit(d) * (0.51 + wide / 2) if d.is_float else 0,
    )


@pytest.mark.skipif(
    ptxas.find("ptxas") is None, reason="ptxas is not installed (pip install nvidia-cuda-nvcc)"
)
@pytest.mark.parametrize("t", TYPES)
def test_all_functions_assemble(t):
    """One kernel with every function of a type."""
    d, lines, last = TYPES[t], [], "%x0"
    tile = f'!tile.tile<{N}x{t}, "{LAYOUT}">'
    for i, (name, f) in enumerate(FUNCTIONS.items()):
        if (name, t) not in CASES:
            continue
        lines.append(f"%v{i} = tile.{name} {', '.join([last, '%x1', '%x2'][: f.arity])} : {tile}")
        if f.truth:
            truth = f'!tile.tile<{N}xi1, "{LAYOUT}">'
            lines.append(
                f"%w{i} = tile.select %v{i}, {last}, %x1 : {truth}, {tile}"
                if False
                else f"%w{i} = tile.select %v{i}, {last}, %x1 : {tile}"
            )
            last = f"%w{i}"
        else:
            last = f"%v{i}"
    text = kernel(
        "\n".join(lines).replace("%r", "%r")
        + f"\n%r = tile.select %x0t, {last}, %x1 : {tile}".replace("%x0t", "%same"),
        [t] * 3,
        t,
    )
    text = text.replace("%r = tile.select", f"%same = tile.eq %x1, %x2 : {tile}\n%r = tile.select")
    for machine in ("sm_80", "sm_90a") if d.bits > 8 or not d.is_float else ("sm_89", "sm_90a"):
        found = ptxas.assemble(emit(parse(text), target(machine)).text, machine)
        assert found.clean, found.log


@tkc.jit
def _log1p(x, out):
    tkc.store(out, (0,), tkc.log1p(tkc.load(x, (0,), (N,))))


def test_log1p_has_no_branch():
    """ptxas makes div.rn a call of a slow path, which what is loaded later waits for."""
    assert "div" not in _log1p.compile("f32[256]", "f32[256]", target="sm_90a").ptx


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("t", ["f32", "f64"])
def test_angles_beyond_a_few_turns(t, name):
    """Of every exponent, and the float64 that is nearest to a multiple of pi/2: what NumPy says, to
    some units in the last place. Infinities have no angle.
    """
    d, r = TYPES[t], np.random.default_rng(5)
    exponents = np.linspace(10, 127 if t == "f32" else 1023, N).astype(int)
    x = np.ldexp(r.uniform(1, 2, N) * r.choice([-1, 1], N), exponents).astype(d.numpy)
    limit = np.finfo(d.numpy)
    x[:6] = [np.inf, -np.inf, np.nan, limit.max, limit.min, 1e9]
    x[6] = 2.0**797 * 6381956970095103 if t == "f64" else 2.0**40
    check(
        kernel(f'%r = tile.{name} %x0 : !tile.tile<{N}x{t}, "{LAYOUT}">', [t], t),
        [x],
        np.zeros(N, d.numpy),
        unit(d) * 4,
        near=1e-33 if t == "f64" else 0,  # NumPy's own error near that multiple
    )
