"""Inline PTX: its registers, several results, its meaning on the CPU, what is refused."""

import inspect

import numpy as np
import pytest

import tkc
from tkc.codegen.ptx.ptxas import find


def logarithm(x):
    return np.log2(x)


def halves(x):
    return (x & 0xFFFFFFFF).astype(np.uint32), (x >> 32).astype(np.uint32)


def sums(a, b):
    return a + b


def mixed(p, x):
    return np.where(p, x, 0)


@tkc.jit
def kernel(x, w, h, o, low, high, s, N: tkc.constexpr):
    a, b, c = tkc.load(x, (0,), (N,)), tkc.load(w, (0,), (N,)), tkc.load(h, (0,), (N,))
    tkc.store(o, (0,), tkc.inline_ptx("lg2.approx.f32 $0, $1;", a, meaning=logarithm))
    first, second = tkc.inline_ptx(
        "mov.b64 {$0, $1}, $2;", b, result=(tkc.uint32, tkc.uint32), meaning=halves
    )
    tkc.store(low, (0,), first)
    tkc.store(high, (0,), second)
    d = tkc.inline_ptx("add.f16 $0, $1, $2;", c, c[:, None][:, 0], meaning=sums)
    e = tkc.inline_ptx(
        "{ .reg .b16 t; mov.b16 t, 0; selp.b16 $0, $2, t, $1; }",
        tkc.arange(N) < 3,
        d,
        result=tkc.float16,
        meaning=mixed,
    )
    tkc.store(s, (0,), e)


def arrays(n):
    r = np.random.default_rng(0)
    return (
        r.uniform(1, 9, n).astype(np.float32),
        r.integers(0, 2**63, n, np.uint64),
        r.integers(-9, 9, n).astype(np.float16),
        np.zeros(n, np.float32),
        np.zeros(n, np.uint32),
        np.zeros(n, np.uint32),
        np.zeros(n, np.float16),
    )


def expected(a, n):
    x, w, h, o, low, high, s = a
    np.testing.assert_allclose(o, np.log2(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(low, w & 0xFFFFFFFF)
    np.testing.assert_array_equal(high, w >> 32)
    np.testing.assert_array_equal(s, np.where(np.arange(n) < 3, h + h, 0))


@pytest.mark.parametrize("variable", ["", "TKC_INTERPRET", "TKC_SIM", "TKC_VALIDATE"])
@pytest.mark.parametrize("n", [1, 7, 96, 1000])
def test_by_its_meaning(n, variable, monkeypatch):
    if variable:
        monkeypatch.setenv(variable, "1")
    a = arrays(n)
    kernel[1](*a, n)
    expected(a, n)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 7, 96, 1000])
def test_on_a_gpu(n):
    torch = pytest.importorskip("torch")
    a = arrays(n)
    tensors = [torch.from_numpy(x).cuda() for x in a]
    kernel[1](*tensors, n)
    expected([t.cpu().numpy() for t in tensors], n)


@pytest.mark.skipif(not find("ptxas"), reason="no ptxas")
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_it_assembles(target):
    compiled = kernel.compile(*arrays(100), 100, target=target)
    assert (
        compiled.resources.clean
        and "lg2.approx.f32" in compiled.ptx
        and tuple(map(int, compiled.ptx.split()[1].split("."))) >= (8, 0)
    )


def test_scalars_and_no_operands():
    @tkc.jit
    def clock(o):
        tkc.store(o, (0,), tkc.inline_ptx("mov.u32 $0, %clock;", result=tkc.uint32))
        tkc.store(
            o,
            (1,),
            tkc.inline_ptx(
                "mul.lo.u32 $0, $1, 3; // costs 5$$", tkc.program_id(0).to(tkc.uint32) + 5
            ),
        )

    text = clock.compile("u32[2]", target="sm_80").ptx
    assert "%clock;" in text and "costs 5$" in text


def test_two_readings_of_a_clock_stay_two():
    @tkc.jit
    def clocks(o):
        a = tkc.inline_ptx("mov.u32 $0, %clock;", result=tkc.uint32)
        b = tkc.inline_ptx("mov.u32 $0, %clock;", result=tkc.uint32)
        tkc.store(o, (0,), b - a)

    assert clocks.compile("u32[2]", target="sm_80").ptx.count("%clock") == 2


REFUSED = [
    (
        lambda x: tkc.inline_ptx("add.f32 $0, $1, $3;", x),
        r"the text names \$3, but there are 1 results and 1 operands: \$0 to \$1",
    ),
    (lambda x: tkc.inline_ptx("mov.u32 $0, %clock;"), "needs result="),
    (lambda x: tkc.inline_ptx("neg.f32 $0, $1;", x, result=3), "is a dtype"),
    (lambda x: tkc.inline_ptx(x), "takes the text of PTX first"),
    (lambda x: tkc.inline_ptx("neg.f32 $0, $1;", x, isa="new"), "version of the PTX ISA"),
    (lambda x: tkc.inline_ptx("neg.f32 $0, $1;", x, meaning=3), "NumPy function"),
]


@pytest.mark.parametrize("use,message", REFUSED, ids=[m[:20] for _, m in REFUSED])
def test_refused(use, message):
    @tkc.jit
    def wrong(x):
        tkc.store(x, (0,), use(tkc.load(x, (0,), (8,))))

    with pytest.raises(tkc.CompileError, match=message):
        wrong.compile("f32[8]", target="sm_80")


def test_without_a_meaning_a_cpu_refuses_it_and_says_so():
    @tkc.jit
    def bare(x):
        tkc.store(x, (0,), tkc.inline_ptx("neg.f32 $0, $1;", tkc.load(x, (0,), (8,))))

    with pytest.raises(tkc.CompileError, match="meaning=") as e:
        bare[1](np.zeros(8, np.float32))
    assert e.value.location.file == __file__


@pytest.mark.skipif(not find("ptxas"), reason="no ptxas")
def test_text_that_is_no_ptx_is_ptxas_to_refuse():
    @tkc.jit
    def odd(x):
        tkc.store(x, (0,), tkc.inline_ptx("frobnicate $0, $1;", tkc.load(x, (0,), (8,))))

    with pytest.raises(
        tkc.CompileError, match="ptxas refuses the text of tkc.inline_ptx: .*frobnicate"
    ) as e:
        _ = odd.compile("f32[8]", target="sm_80").resources
    assert (
        e.value.location.file == __file__
        and "bug of tkc" not in str(e.value)
        and "tkc.inline_ptx(" in str(e.value)
    )

    @tkc.jit
    def later(x):
        tkc.store(
            x,
            (0,),
            tkc.inline_ptx(
                "{ .reg .f32 t;\nneg.f32 t, $1;\nnot.f32 $0, t; }", tkc.load(x, (0,), (8,))
            ),
        )

    with pytest.raises(tkc.CompileError, match="tkc.inline_ptx: .*`not.f32") as e:
        _ = later.compile("f32[8]", target="sm_80").resources
    called = next(
        number
        for number, line in enumerate(inspect.getsource(later.fn).splitlines())
        if "tkc.inline_ptx(" in line
    )
    assert e.value.location.line == later.fn.__code__.co_firstlineno + called
