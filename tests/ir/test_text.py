"""Types and operations as text: everything that prints parses back; malformed text is one located
sentence.
"""

import contextlib
import random
import time

import pytest

from tests.sampling import sampled
from tkc.errors import VerifyError
from tkc.ir.messages import escaped, filled
from tkc.ir.text import location_of, parse, show
from tkc.ir.tile import Kernel
from tkc.ir.verify import verify

TYPES = [
    "!tile.tile<128x64xbf16>",
    "!tile.tile<1xi1>",
    "!tile.tile<7x!tile.ptr<f8E4M3FN>>",
    '!tile.tile<64x256xf32, "wgmma 64x256">',
    "!tile.ptr<ui32>",
    "!tile.array<?x?xbf16>",
    "!tile.array<f64>",
    '!tile.array<?x?xf16, "shape 16 =4096 strides 8 =1 align 16">',
    '!tile.shared<4, 128x64xbf16, "128x64xb16 swizzle 128">',
    "!tile.barriers<4>",
    "!tile.token",
    "!tile.pending<!tile.tile<64x64xf32>>",
    "!tile.map<128x64xbf16, 128>",
    "!tile.map<1x128x1x128xbf16, 128, panelled>",
    "!tile.tile<3x5x7xf8E5M2>",
    "!tile.tile<2xui8>",
]


def around(body: str, arguments: str = "", attributes: str = "") -> str:
    return f"tile.kernel @k({arguments}) {attributes} {{\n{body}\n  tile.return\n}}"


@pytest.mark.parametrize("t", TYPES)
def test_types_round_trip(t):
    module = parse(around("", f"%x: {t}"))
    text = show(module)
    assert show(parse(text)) == text
    argument = module.body.block.first_op.arguments[0].type
    assert argument == parse(text).body.block.first_op.arguments[0].type
    if "wgmma" not in t and "facts" not in t and "shape" not in t:
        assert f"%x: {t}" in text


def test_what_is_wrong_in_a_type_is_found_where_it_stands():
    """A type is read once for all that have its text; one that cannot be read, each time."""
    text = around("", '%x: !tile.tile<64x64xf32>, %y: !tile.tile<64x64xf32, "no layout">')
    for before in ("", "\n\n"):
        with pytest.raises(VerifyError, match=rf"<ir>:{1 + len(before)}:\d+: .*no layout"):
            parse(before + text)


OPERATIONS = """
  %c0 = tile.constant 0 : i32
  %c1 = tile.constant -1.500000e+00 : f32
  %c2 = tile.constant 0xff800000 : f32
  %c3 = tile.constant true : i1
  %c4 = tile.constant 7 : !tile.tile<4x8xi64>
  %p = tile.program_id 2 : i32
  %q = tile.num_programs 0 : i32
  %r = tile.arange 3 : !tile.tile<8xi32>
  %m = tile.multiple %c0, 16 : (i32) -> i32
  tile.assume %c3 : (i1)
  %s = tile.splat %c0 : (i32) -> !tile.tile<8xi32>
  %t = tile.add %r, %s : !tile.tile<8xi32>
  %u = tile.lt %t, %s : !tile.tile<8xi32>
  %v = tile.select %u, %t, %s : !tile.tile<8xi32>
  %w = tile.select %c3, %t, %s : i1, !tile.tile<8xi32>
  %x = tile.cast %t : !tile.tile<8xi32> to !tile.tile<8xbf16>
  %y = tile.reshape %t : (!tile.tile<8xi32>) -> !tile.tile<1x8xi32>
  %z = tile.broadcast %y : (!tile.tile<1x8xi32>) -> !tile.tile<4x8xi32>
  %a = tile.transpose %z {permutation = array<i64: 1, 0>} \
: (!tile.tile<4x8xi32>) -> !tile.tile<8x4xi32>
  %b = tile.slice %z {offsets = array<i64: 1, 2>} : (!tile.tile<4x8xi32>) -> !tile.tile<2x3xi32>
  %d = tile.extract %r {index = array<i64: 5>} : (!tile.tile<8xi32>) -> i32
  %e = tile.flip %r {axis = 0 : i64} : (!tile.tile<8xi32>) -> !tile.tile<8xi32>
  %f = tile.concat[%r, %s] {axis = 0 : i64} \
: (!tile.tile<8xi32>, !tile.tile<8xi32>) -> !tile.tile<16xi32>
  %g = tile.reduce sum[%z] {axis = 1 : i64} : (!tile.tile<4x8xi32>) -> !tile.tile<4xi32>
  %h = tile.reduce combine[%r] {axis = 0 : i64} : (!tile.tile<8xi32>) -> i32 {
  ^bb0(%i0: i32, %i1: i32):
    %i2 = tile.mul %i0, %i1 : i32
    tile.yield[%i2] : (i32)
  }
  %j = tile.scan sum[%r] {axis = 0 : i64, reverse} : (!tile.tile<8xi32>) -> !tile.tile<8xi32>
  %k = tile.sort %r : (!tile.tile<8xi32>) -> !tile.tile<8xi32>
  %l = tile.histogram %r mask %u : (!tile.tile<8xi32>, !tile.tile<8xi1>) -> !tile.tile<16xi32>
  %n = tile.dim %arr, 1 : (!tile.array<?x?xf32>) -> i32
  %o = tile.pointer %arr : (!tile.array<?x?xf32>) -> !tile.ptr<f32>
  %aa = tile.pointer_add %o, %c0 : (!tile.ptr<f32>, i32) -> !tile.ptr<f32>
  %ab = tile.view %arr[%c0, %c0, %c0] {kinds = ["index", "slice"]} \
: (!tile.array<?x?xf32>, i32, i32, i32) -> !tile.array<?xf32>
  %ac = tile.make_array %o[%c0, %c0] strides(%c0, %c0) \
: (!tile.ptr<f32>, i32, i32, i32, i32) -> !tile.array<?x?xf32>
  %ad = tile.load %arr[%c0, %r] mask %u other %c1 {extents = array<i64: -1, 8>} \
: (!tile.array<?x?xf32>, i32, !tile.tile<8xi32>, !tile.tile<8xi1>, f32) -> !tile.tile<8xf32>
  tile.store %arr[%c0, %r] %ad {extents = array<i64: -1, 8>} \
: (!tile.array<?x?xf32>, i32, !tile.tile<8xi32>, !tile.tile<8xf32>)
  %ae = tile.load_pointers %aa : (!tile.ptr<f32>) -> f32
  tile.store_pointers %aa, %ae : (!tile.ptr<f32>, f32)
  %af = tile.atomic add %aa, %ae {scope = "gpu"} : (!tile.ptr<f32>, f32) -> f32
  tile.print "the value"[%ae] : (f32)
""".strip("\n")


def test_operations_round_trip():
    text = around(OPERATIONS, "%arr: !tile.array<?x?xf32>")
    module = parse(text)
    verify(module)
    printed = show(module)
    assert show(parse(printed)) == printed
    body = [line.strip() for line in printed.splitlines()]
    for line in OPERATIONS.splitlines():
        assert any(line.strip().split(" {\n")[0][:60] in other for other in body), line


def test_a_copy_is_what_it_is_a_copy_of():
    module = parse(around(OPERATIONS, "%arr: !tile.array<?x?xf32>"))
    copy = module.clone()
    assert copy.is_structurally_equivalent(module)
    assert show(copy, locations=True) == show(module, locations=True)
    for old, new in zip(module.walk(), copy.walk(), strict=True):
        assert [len(list(r.uses)) for r in old.results] == [len(list(r.uses)) for r in new.results]
        assert not {id(v) for v in old.results} & {id(v) for v in new.operands}


def test_locations_survive_the_text():
    text = show(parse(around("  %c = tile.constant 1 : i32", "%x: i32")), locations=True).replace(
        "loc(unknown)", 'loc("kernel.py":3:4)'
    )
    module = parse(text)
    assert show(module, locations=True) == text
    assert str(location_of(module.body.block.first_op.body.block.first_op)) == "kernel.py:3:5"


@pytest.mark.parametrize(
    "body, message",
    [
        ("%y = tile.add %x, %z : i32\n%z = tile.constant 1 : i32", "defined|before"),
        (
            (
                "%c = tile.constant true : i1\nscf.if %c {\n%z = tile.constant 1 : i32\n}\n%y ="
                " tile.add %x, %z : i32"
            ),
            "before|outside|undefined|undeclared|not defined|use",
        ),
        (
            "%y = tile.convert %t : (!tile.tile<4xf32>) -> !tile.tile<4xf32>",
            "not permitted at level 0",
        ),
        ("%y = tile.sqrt %x : i32", "does not take i32"),
        ("%y = tile.broadcast %t : (!tile.tile<4xf32>) -> !tile.tile<8xf32>", "does not broadcast"),
        ("%y = tile.reshape %t : (!tile.tile<4xf32>) -> !tile.tile<8xf32>", "elements"),
        (
            (
                '%y = tile.dot %m, %m, %m {precision = "ieee"} : (!tile.tile<4x8xf32>,'
                " !tile.tile<4x8xf32>, !tile.tile<4x8xf32>) -> !tile.tile<4x8xf32>"
            ),
            "does not give",
        ),
        (
            (
                "%y = tile.slice %t {offsets = array<i64: 3>} : (!tile.tile<4xf32>) ->"
                " !tile.tile<2xf32>"
            ),
            "leaves an extent",
        ),
        (
            "%y = tile.reduce mean[%t] {axis = 0 : i64} : (!tile.tile<4xf32>) -> f32",
            "unknown reduction",
        ),
        ("tile.fence everything", "unknown fence"),
    ],
)
def test_broken_rules_are_named(body, message):
    with pytest.raises(VerifyError, match=message):
        verify(parse(around(body, "%x: i32, %t: !tile.tile<4xf32>, %m: !tile.tile<4x8xf32>")))


@pytest.mark.parametrize(
    "text",
    [
        '"' + "a" * 40,
        "{" * 400,
        "tile.kernel @k(%x: !tile.tile<" + "9" * 40 + "xf32>) {}",
        "tile.kernel @k(",
        "",
        "%",
        "tile.kernel",
        "\0",
        "é" * 100,
        'tile.kernel @k(%x: !tile.tile<4xf32, "64x64: nonsense">) { tile.return }',
        'tile.kernel @k(%x: !tile.shared<1, 4xf32, "swizzle">) { tile.return }',
        "func.func @f() { return }",
        "tile.kernel @k() { tile.return } tile.kernel @k() {",
    ],
)
def test_malformed_text_is_one_sentence(text):
    start = time.perf_counter()
    try:
        verify(parse(text))
    except VerifyError as e:
        assert "Traceback" not in str(e) and "\n" not in str(e)
    assert time.perf_counter() - start < 2


def test_mutated_text_never_escapes_as_another_error():
    source, rng = around(OPERATIONS, "%arr: !tile.array<?x?xf32>"), random.Random(0)

    def mutated() -> str:
        at = rng.randrange(len(source))
        kind = rng.randrange(3)
        return (
            source[:at]
            + (rng.choice('"{}()<>[]%@#!,:x0-\\') if kind else "")
            + source[at + (kind < 2) * rng.randrange(1, 6) :]
        )

    for text in sampled([mutated() for _ in range(400)]):
        with contextlib.suppress(VerifyError):
            verify(parse(text))


def test_no_tile_enters_a_role():
    """It would be spread over other warps than its user's: a causal mask made before the roles was
    wrong on the GPU alone.
    """
    t = '!tile.tile<64xi32, "blocked 64 vector 1 warps 4">'
    inside = f"%r = tile.arange 0 : {t}\n"

    def text(outer, inner):
        return (
            f"tile.kernel @k() {{level = 4 : i64}} {{\n{outer}tile.roles {{\ntile.role one {{warps"
            f" = 4 : i64}} {{\n^bb0(%who: i32):\n{inner}%s = tile.add %r, %r :"
            f" {t}\n}}\n}}\ntile.return\n}}"
        )

    verify(parse(text("", inside)))
    with pytest.raises(VerifyError, match="outside the region"):
        verify(parse(text(inside, "")))


def test_kernel_attributes():
    module = parse(around("", "", "{warps = 8 : i64}"))
    kernel = module.body.block.first_op
    assert isinstance(kernel, Kernel) and kernel.warps == 8 and kernel.level == 0


@pytest.mark.parametrize(
    "text, values, want",
    [
        ("n is {} of {}!", ["1", "2"], "n is 1 of 2!"),
        ("the value", ["3"], "the value 3"),
        ("", ["1", "2"], "1 2"),
        ("{}", ["1", "2"], "1 2"),
        ("{{{}}}", ["5"], "{5}"),
        ("a { alone", ["1"], "a { alone 1"),
        ("{} {}", ["1"], "{} {} 1"),
        ("none", [], "none"),
        ("100%", ["7"], "100% 7"),
    ],
)
def test_the_text_of_a_print(text, values, want):
    assert filled(text, values) == want


def test_braces_stay_braces():
    for text in ("{", "}", "{}", "{{x}}", "a{b"):
        assert filled(escaped(text) + " {}", ["1"]) == f"{text} 1"
