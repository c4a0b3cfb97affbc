"""Inline PTX: its registers, several results, its meaning on the CPU, what is refused."""

import inspect

import numpy as np
import pytest

import tkc
from tests.operations.case import Case, run
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


@pytest.mark.parametrize("variable", ["", "TKC_INTERPRET", "TKC_SIM", "TKC_VALIDATE"])
def test_without_a_meaning_the_ptx_itself_runs(variable, monkeypatch):
    @tkc.jit
    def bare(x, o, N: tkc.constexpr):
        tile = tkc.load(x, (0,), (N,))
        text = "{ .reg .f32 t; neg.f32 t, $1; add.f32 $0, t, 0f3F800000; }"
        tkc.store(o, (0,), tkc.inline_ptx(text, tile))

    if variable:
        monkeypatch.setenv(variable, "1")
    x, o = np.arange(9, dtype=np.float32), np.zeros(9, np.float32)
    bare[1](x, o, 9)
    assert (o == 1 - x).all()


def test_labels_and_registers_are_of_their_braces():
    @tkc.jit
    def clipped(x, o, N: tkc.constexpr):
        text = (
            "{ .reg .pred p; mov.b32 $0, $1; { .reg .b32 t; mov.b32 t, 7; setp.lt.s32 p, $1, t;"
            " @p bra L; mov.b32 $0, t; L: } .reg .b32 t; mov.b32 t, 1; setp.gt.s32 p, $1, t;"
            " @p bra L; mov.b32 $0, t; L: }"
        )
        tkc.store(o, (0,), tkc.inline_ptx(text, tkc.load(x, (0,), (N,))))

    x, o = np.arange(9, dtype=np.int32), np.zeros(9, np.int32)
    clipped[1](x, o, 9)
    assert (o == np.clip(x, 1, 7)).all()


def test_instructions_that_are_not_simulated_are_refused():
    @tkc.jit
    def bare(x):
        tkc.store(x, (0,), tkc.inline_ptx("testp.normal.f32 $0, $1;", tkc.load(x, (0,), (8,))))

    with pytest.raises(tkc.CompileError, match="testp.*meaning=") as e:
        bare[1](np.zeros(8, np.float32))
    assert e.value.location.file == __file__


@tkc.jit
def commented(x, out):
    text = "mov.b32 $0, $1; // the number\nadd.s32 $0, $0, $1; // and once more"
    tkc.store(out, 0, tkc.inline_ptx(text, tkc.load(x, 0, 32), result=tkc.int32))


@pytest.mark.skipif(not find("ptxas"), reason="no ptxas")
def test_a_comment_ends_with_its_line():
    given = np.arange(32, dtype=np.int32)
    assert commented.compile("i32[32]", "i32[32]", target="sm_90a").resources.cubin
    out = np.zeros_like(given)
    commented[1](given, out)
    assert (out == 2 * given).all()


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


PACKED = {
    # element type: the operation on one register that it is
    "uint8": "vadd4.u32.u32.u32 $0, $1, $2, 0;",
    "float16": "add.f16x2 $0, $1, $2;",
    "bfloat16": "max.bf16x2 $0, $1, $2;",
    "int16": "add.u16x2 $0, $1, $2;",
}


def added(a, b):
    return a + b


def added_and_larger(a, b):
    return a + b, a > b


@tkc.jit
def packed(x, y, o, TEXT: tkc.constexpr, PACK: tkc.constexpr, N: tkc.constexpr):
    a, b = tkc.load(x, (0,), (N,)), tkc.load(y, (0,), (N,))
    tkc.store(o, (0,), tkc.inline_ptx(TEXT, a, b, pack=PACK, meaning=added, isa="8.0"))


@tkc.jit
def mixed_widths(x, y, o, p, N: tkc.constexpr):
    """One register of bytes, four of words, four predicates."""
    a, b = tkc.load(x, (0,), (N,)), tkc.load(y, (0,), (N,))
    text = "".join(
        f"prmt.b32 ${i}, $12, 0, {0x888 + 0x111 * i << 4 | i};"
        f" setp.gt.s32 ${4 + i}, ${8 + i}, ${i}; add.s32 ${i}, ${i}, ${8 + i}; "
        for i in range(4)
    )
    total, larger = tkc.inline_ptx(
        text, a, b, result=(tkc.int32, tkc.bool_), pack=4, meaning=added_and_larger
    )
    tkc.store(o, (0,), total)
    tkc.store(p, (0,), larger)


@pytest.mark.parametrize("n", [1, 7, 96, 1000])
def test_packed_elements(n, monkeypatch):
    r = np.random.default_rng(n)
    x, y = r.integers(-99, 99, n).astype(np.int32), r.integers(-99, 99, n).astype(np.int8)
    o, p = np.zeros(n, np.int32), np.zeros(n, np.bool_)
    for how in ("", "TKC_INTERPRET", "TKC_SIM"):
        monkeypatch.setenv(how or "TKC_NONE", "1")
        o[:], p[:] = 0, 0
        mixed_widths[1](x, y, o, p, n)
        assert (o == x + y).all() and (p == (x > y)).all()
    if n < 1000:
        run(
            Case(
                f"mixed widths {n}",
                mixed_widths.fn,
                lambda _: dict(x=x, y=y, o=0 * o, p=p & False, N=n),
                lambda _: dict(o=x + y, p=x > y),
            ),
            "sm_90a",
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16"])
@pytest.mark.parametrize("pack", [2, 4])
def test_pairs_in_one_register(dtype, pack):
    text = PACKED[dtype]
    if pack == 4:  # two registers each
        text = text.replace("$2", "$4").replace("$1", "$2") + text.replace("$2", "$5").replace(
            "$1", "$3"
        ).replace("$0", "$1")
    short = {"float16": "f16", "bfloat16": "bf16", "int16": "i16"}[dtype]
    for n in (1, 7, 100):
        args = [f"{short}[{n}]"] * 3
        target = "sm_90a"
        compiled = packed.compile(*args, text, pack, n, target=target)
        assert not find("ptxas") or compiled.resources.registers > 0


def test_packs_are_1_2_or_4():
    x = np.zeros(8, np.float16)
    with pytest.raises(tkc.CompileError, match="pack is 1, 2 or 4, got 3"):
        packed[1](x, x, x, PACKED["float16"], 3, 8)
    with pytest.raises(tkc.CompileError, match="names .6"):
        packed[1](x, x, x, "mov.b32 $0, $6;", 4, 8)
