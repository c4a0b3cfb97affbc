"""What `tkc explain` gathers, and the page that it makes of it, without a browser."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from xdsl.dialects.builtin import FileLineColLoc

import tkc
from tests.tools import explained as kernels
from tests.tools.explained import ARGUMENTS, about, explained, page
from tkc.codegen.ptx.ptxas import find
from tkc.ir.text import show
from tkc.passes.pipeline import PIPELINE
from tkc.tools.cli import main
from tkc.tools.explain import changes, listing, measured, memory, registers
from tkc.tools.explain.compilation import compilation
from tkc.tools.explain.explanation import gather
from tkc.tools.explain.page import data_of
from tkc.tools.explain.subject import subject

TOOLS = pytest.mark.skipif(
    not (find("ptxas") and find("nvdisasm")), reason="ptxas or nvdisasm is not installed"
)
EVERY = [("product", "sm_80"), ("product", "sm_90a"), ("rows", "sm_89"), ("turned", "sm_80")]


@cache
def made(name: str, target: str):
    s = about(name, target)
    return compilation(s.kernel, s.infos, s.options, target)


def lines(data: dict, name: str) -> list[tuple[str, int]]:
    """(text, number of the source line) of a stage."""
    stage = next(s for s in data["stages"] if s["name"] == name)
    return [(data["texts"][t], s) for t, s in zip(stage["lines"], stage["source"], strict=True)]


def source(data: dict) -> list[str]:
    return [line for part in data["sources"] for line in part["lines"]]


# ---- listings
@pytest.mark.parametrize("name, target", EVERY)
def test_a_listing_is_the_ir_with_the_place_of_each_operation(name, target):
    module = made(name, target).final
    found = listing.of_ir(show(module, locations=True))
    assert found.lines == tuple(show(module).rstrip("\n").splitlines())
    want = Counter(
        (op.location.filename.data, op.location.line.data)
        for op in module.walk()
        if isinstance(op.location, FileLineColLoc)
    )
    assert set(want) == set(found.places) - {None}
    # one with regions is where it begins and where it ends
    for op in (op for op in module.walk() if op.regions and op.name != "builtin.module"):
        if isinstance(op.location, FileLineColLoc):
            want[op.location.filename.data, op.location.line.data] += len(
                [region for region in op.regions if region.blocks]
            )
    # a reduction prints its body within its line
    assert all(0 < found.places.count(place) <= want[place] for place in want)


def test_ptx_and_machine_code_say_where_they_are_from():
    ptx = '.file 1 "/a b.py"\n\t.loc 1 7 3\n\tadd.s32 %r1, %r2, %r3;\n\t// ---- consumer\n\tret;'
    found = listing.of_ptx(ptx)
    assert found.lines[1:] == ("    add.s32 %r1, %r2, %r3;", "    // ---- consumer", "    ret;")
    assert found.places == (None, ("/a b.py", 7), None, None)
    sass = (
        '\t.headerflags\n.text.f:\n\t//## File "/a.py", line 7\n'
        '        /*0010*/              @!P0 BRA `(.L_1) ;\n\t//## File "/a.py", line 9\n.L_1:\n'
        "        /*0020*/                   EXIT ;\n"
    )
    found = listing.of_sass(sass)
    assert [line.split() for line in found.lines] == [
        [".text.f:"],
        ["/*0010*/", "@!P0", "BRA", "`(.L_1)", ";"],
        [".L_1:"],
        ["/*0020*/", "EXIT", ";"],
    ]
    assert found.places == (None, ("/a.py", 7), ("/a.py", 9), ("/a.py", 9))


def test_changes_make_the_new_lines_of_the_old_ones():
    steps = list(made("product", "sm_90a").steps.values())
    for old, new in zip(steps, steps[1:], strict=False):
        found = changes.changes(old, new)
        if not found:
            assert [changes._VALUE.sub("%", a) for a in old.lines] == [
                changes._VALUE.sub("%", b) for b in new.lines
            ]
            continue
        assert found[0][1] == found[0][3] == 0
        assert (found[-1][2], found[-1][4]) == (len(old.lines), len(new.lines))
        for (tag, i, j, k, n), after in zip(found, [*found[1:], None], strict=True):
            assert after is None or (j, n) == (after[1], after[3])
            if tag == "equal":
                assert old.places[i:j] == new.places[k:n]
        added, removed = changes.counts(found)
        assert len(new.lines) - len(old.lines) == added - removed


def test_other_numbers_of_values_are_no_change():
    old = listing.of_plain("%0 = a\n%1 = b %0")
    assert changes.changes(old, listing.of_plain("%8 = a\n%x = b %8")) == []
    assert changes.changes(old, listing.of_plain("%0 = a\n%1 = c\n%2 = b %0")) == [
        ("equal", 0, 1, 0, 1),
        ("insert", 1, 1, 1, 2),
        ("equal", 1, 2, 2, 3),
    ]


def test_the_source_is_the_kernel_and_the_functions_it_calls():
    data = explained("product")
    text = "\n".join(source(data))
    assert text.startswith("@tkc.jit\ndef product(") and "def positive(x):" in text
    assert "def rows" not in text
    line = next(i for i, t in enumerate(source(data)) if "tkc.dot" in t)
    stages = [s for s in data["stages"] if not s.get("same")]
    assert {s["kind"] for s in stages} >= {"ir", "ptx"}
    assert all(line in s["source"] for s in stages)
    dots = [s for t, s in lines(data, "trace") if "tile.dot" in t]
    assert dots == [line]


def test_a_file_without_its_source_has_no_parts():
    s = listing.Sources(("/nowhere.py", 3))
    s.add(listing.Listing(("x",), (("<string>", 1),)))
    assert s.parts == () and s.number(("<string>", 1)) == -1 and s.number(None) == -1


# ---- choices
@pytest.mark.parametrize("name, target", EVERY)
def test_one_of_the_candidates_is_the_plan(name, target):
    data = explained(name, target)
    rows = data["candidates"]["rows"]
    (chosen,) = [row for row in rows if row["chosen"]]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert chosen["predicted"] == pytest.approx(data["prediction"]["seconds"])
    assert sum(row["predicted"] is not None for row in rows) >= min(3, len(rows))
    assert chosen["spills"] == (data["launch"]["spills"][0] if find("ptxas") else None)
    assert len({tuple(row["values"]) for row in rows}) == len(rows)
    parts = data["plan"]["parts"]
    kinds = Counter(part["what"].split()[0] for part in parts)
    assert kinds == {"product": {"dot": 1, "load": 2}}.get(name, {"load": 1})
    assert all("tkc." in source(data)[part["source"]] for part in parts)


def test_decisions_are_the_compilers_sentences():
    data = explained("product")
    steps = [d["step"] for d in data["decisions"]]
    assert {"plan", "schedule-warpgroups", "allocate-shared"} <= set(steps)
    place = next(d for d in data["decisions"] if d["step"] == "assign-registers")
    assert place["source"] >= 0 and ".py" not in place["text"]
    (shuffled,) = [d for d in explained("turned", "sm_80")["decisions"] if "moves" in d["text"]]
    assert "tkc.load" in source(explained("turned", "sm_80"))[shuffled["source"]]


# ---- time
def test_the_roofline_is_that_of_a_product():
    data = explained("product")
    r, size = data["roofline"], 2048
    assert r["tensor"] == 2 * size**3
    assert r["tensor"] < r["operations"] < 1.01 * r["tensor"]
    assert 3 * 2 * size**2 <= r["bytes"] < 20 * size**2
    assert 0 < r["bound"] <= data["prediction"]["seconds"]
    rows = explained("rows", "sm_89")["roofline"]
    assert rows["tensor"] == 0 and rows["bytes"] == 2 * 4 * 4096 * 2048


def test_the_timeline_is_of_engines_and_agents():
    t = explained("product")["timeline"]
    assert "producer" in t["agents"] and t["steady"][1] > t["steady"][0]
    for agent, engine, what, begin, end, clocks in t["segments"]:
        assert 0 <= begin < end and t["agents"][agent] and t["engines"][engine]
        assert 0 <= what < len(t["names"]) and all(c > 0 for _, c in clocks)
    assert any(t["engines"][s[1]] == "tensor" for s in t["segments"])


def test_what_cannot_be_measured_says_why(monkeypatch):
    s = about("product")
    monkeypatch.setattr(measured.driver, "available", lambda: False)
    assert measured.why_not(s) == "there is no GPU"
    other = subject(s.kernel, ARGUMENTS["product"][1], None, "sm_90a")
    assert "--grid" in measured.why_not(other)
    with pytest.raises(tkc.Error, match="product cannot be measured: there is no GPU"):
        measured.seconds(s)


def test_a_launch_on_the_cpu_is_measured():
    kernel, arguments, extents = ARGUMENTS["turned"]
    assert 0 < measured.seconds(subject(kernel, arguments, extents, "cpu")) < 5


# ---- memory and registers
@pytest.mark.parametrize("name, target", EVERY)
def test_buffers_that_are_in_use_together_are_apart(name, target):
    module = made(name, target).final
    found = memory.buffers(module)
    assert found or (name, target) == ("turned", "sm_80")  # which shuffles
    assert memory.buffers(module, 1 << 20)[-1].what.startswith("histograms")
    for i, a in enumerate(found):
        assert a.begin <= a.end <= memory.length(module)
        assert a.uses and a.offset + a.bytes <= 232448
        for b in found[:i]:
            apart = a.offset >= b.offset + b.bytes or b.offset >= a.offset + a.bytes
            assert apart or a.end < b.begin or b.end < a.begin


@pytest.mark.parametrize("name, target", EVERY)
def test_banks_meet_as_often_as_the_compiler_counts(name, target):
    for access in memory.accesses(made(name, target).final):
        words = max(len(lanes) for lanes in access.lanes)
        assert words == access.degree >= 1, access
        assert len(access.lanes) == 32


def test_layouts_are_those_of_the_tiles():
    data = explained("product")
    first = data["layouts"]["registers"][0]
    assert first["tile"] == "128x128xf32" and first["shape"] == (128, 128)
    per_thread = 1
    for extent, _, _ in first["registers"]:
        per_thread *= extent
    assert per_thread == 128
    swizzled = next(s for s in data["layouts"]["shared"] if "swizzle 128" in s["text"])
    column = [row[0] for row in swizzled["banks"][:8]]
    assert len(set(column)) == 8


@pytest.mark.parametrize("name, target", EVERY)
def test_tiles_live_from_their_maker_to_their_last_reader(name, target):
    module = made(name, target).final
    found, length = registers.tiles(module), memory.length(module)
    assert all(0 <= t.begin <= t.end < length for t in found)
    together = [sum(t.registers for t in found if t.begin <= i <= t.end) for i in range(length)]
    (kernel,) = module.body.block.ops
    assert max(together) >= kernel.integer("registers") > 0


def test_lives_are_read_from_what_nvdisasm_marks():
    text = """
    junk                           // |     GPR       | PRED |
                                   // |   # 0123      |      |
        /*0000*/   MOV R0, 1 ;     // |   1 ^         |      |
.L_1:                              // |   1 :         |      |
        /*0010*/   MOV R2, R0 ;    // |   2 v ^       |      |
        /*0020*/   MOV R1, R2 ;    // |   2  ^v       |      |
        /*0030*/   EXIT ;          // |      v        |      |
"""
    found = registers.parsed(text)
    assert found.live == (1, 2, 2, 0)
    assert found.stretches == (((0, 1),), ((2, 3),), ((1, 2),))
    assert registers.parsed("nothing") is None


@TOOLS
def test_machine_code_comes_with_its_lines_and_the_lives_of_its_registers():
    data = explained("product")
    sass = lines(data, "SASS")
    instructions = [t for t, _ in sass if t.startswith("  /*")]
    machine = data["registers"]["machine"]
    assert len(instructions) == len(machine["live"]) > 100
    assert max(machine["live"]) <= data["launch"]["granted"]
    dot = next(i for i, t in enumerate(source(data)) if "tkc.dot" in t)
    assert any("GMMA" in t and s == dot for t, s in sass)


# ---- whatever there is to explain
def test_a_kernel_that_cannot_be_traced_has_its_source_and_the_error():
    data = explained("mistaken")
    assert data["stages"] == [] and "do not broadcast" in data["error"]["message"]
    assert "a + b" in source(data)[data["error"]["source"]]


def test_a_kernel_that_does_not_fit_has_the_steps_it_reached():
    data = explained("crowded", "sm_80")
    before = PIPELINE[PIPELINE.index("plan") - 1]
    assert data["error"]["reached"] == before and "12 stages" in data["error"]["text"]
    assert [s["name"] for s in data["stages"]][:2] == ["trace", PIPELINE[0]]
    assert data["timeline"] is None and "does not compile" in data["missing"]["timeline"]


def test_a_kernel_for_the_cpu_has_llvm_ir():
    data = explained("rows", "cpu")
    assert [s["kind"] for s in data["stages"]] == ["ir", "llvm"]
    assert "level 0" in data["missing"]["plan"] and data["error"] is None


def test_a_function_of_the_library_is_one_of_its_launches():
    from tkc import kernels as library

    x = {"x": "bf16[8192, 512]"}
    s = subject(library.softmax, x, None, "sm_90a")
    assert s.kernel.__name__ == "_softmax" and "launch 1 of 1" in s.notes[0]
    assert ("x", "bfloat16[8192, 512]") in s.arguments and s.extents[0] > 1
    with pytest.raises(tkc.Error, match="--launch is 1 to 1"):
        subject(library.softmax, x, None, "sm_90a", launch=2)
    with pytest.raises(tkc.LaunchError, match="unexpected keyword"):
        subject(library.softmax, {"y": "bf16[8, 8]"}, None, "sm_90a")


def test_a_tuned_kernel_has_the_configuration_of_its_target():
    tuned = tkc.autotune([tkc.Config(BM=64), tkc.Config(BM=128)], measure=False)(kernels.product)
    operands = ARGUMENTS["product"][1]
    s = subject(tuned, operands, (16, 16), "sm_90a")
    assert dict(s.arguments)["BM"] in ("64", "128") and "from the model" in s.notes[0]
    assert s.others
    with pytest.raises(tkc.Error, match="--grid"):
        subject(tuned, operands, None, "sm_90a")


def test_arrays_in_host_memory_count_as_being_of_the_target_that_is_asked_for():
    import numpy as np

    x, seen = np.zeros(4, np.float32), []
    with tkc.handed(lambda *launch: None, "sm_80"):
        seen.append(tkc.target_of(x))
        with tkc.handed(lambda *launch: None, "sm_90a"):
            seen.append(tkc.target_of(x))
        with tkc.handed(lambda *launch: None):
            seen.append(tkc.target_of(x))
    assert [*seen, tkc.target_of(x)] == ["sm_80", "sm_90a", "sm_80", "cpu"]


# ---- the page
class Nesting(HTMLParser):
    """Complains where an element is closed that is not open."""

    VOID = {"meta", "link", "input", "br", "hr", "img"}

    def __init__(self):
        super().__init__()
        self.open, self.links, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.links += [given[name] for name in ("src", "href", "action", "data") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        assert len(given) == len(attributes), f"{tag} names an attribute twice"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


@pytest.mark.parametrize("name", ["product", "mistaken"])
def test_the_page_is_well_formed_and_loads_nothing(name):
    text = page(name)
    nesting = Nesting()
    nesting.feed(text)
    nesting.close()
    assert not nesting.open and len(set(nesting.ids)) == len(nesting.ids)
    assert text.startswith("<!doctype html>") and "default-src 'none'" in text
    assert set(nesting.links) == {"#main", "data:,"}
    assert "{{" not in text.partition("<script")[0]
    outside = re.findall(r"https?://[^\s\"'`)]+", text)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    for word in ("@import", "url(", "fetch(", "XMLHttpRequest", "import(", "WebSocket", "eval("):
        assert word not in text, word
    assert data_of(text) == json.loads(json.dumps(explained(name)))


def test_no_text_of_a_kernel_ends_the_script():
    data = explained("product") | {"kernel": "</script><b>", "notes": ["</script>"]}
    from tkc.tools.explain.page import rendered

    text = rendered(data)
    assert "</script><b>" not in text and text.count("</script>") == page("product").count(
        "</script>"
    )


def colours(theme: str) -> dict[str, str]:
    css = (Path(listing.__file__).parent / "page" / "page.css").read_text()
    light, dark = re.findall(r":root[^{]*\{(.*?)\}", css, re.S)[:2]
    names = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return names | (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark)) if theme == "dark" else {}
    )


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_what_is_behind_it(theme):
    """Contrast by WCAG 2: 4.5 to 1 for text."""
    names = colours(theme)
    texts = ("text", "soft", "faint", "value", "word", "number", "string", "comment", "accent")
    behind = {text: ("page", "panel") for text in texts}
    behind |= {"text": ("page", "panel", "raised", "pick", "add", "remove", "accent-soft")}
    behind |= {"bad": ("panel", "bad-soft"), "accent-text": ("accent",)}
    for text, grounds in behind.items():
        for ground in grounds:
            pair = sorted((luminance(names[text]), luminance(names[ground])))
            contrast = (pair[1] + 0.05) / (pair[0] + 0.05)
            assert contrast >= 4.5, f"{theme}: {text} on {ground}: {contrast:.2f}"


# ---- the command
def run(*words: str):
    return CliRunner().invoke(main, ["explain", *words])


FILE = str(Path(kernels.__file__))


def test_the_command_writes_one_file(tmp_path):
    path = tmp_path / "page.html"
    words = ["x=f32[512,512]", "out=f32[512,512]", "--target", "sm_80", "-o", str(path)]
    done = run(f"{FILE}:turned", *words, "--no-measure")
    assert done.exit_code == 0 and done.stdout.strip() == str(path)
    data = data_of(path.read_text())
    assert data["grid"] == [16, 16, 1] and data["target"] == "sm_80"
    assert any(Path(part["file"]).name == "explained.py" for part in data["sources"])


def test_a_page_about_a_failure_ends_with_1(tmp_path):
    path = tmp_path / "page.html"
    done = run(f"{FILE}:mistaken", "x=f32[64]", "out=f32[64]", "-o", str(path))
    assert done.exit_code == 1 and "do not broadcast" in done.stderr and path.exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (("nothing",), "names no kernel"),
        (("nowhere.py:f",), "no such file"),
        (("tkc.nowhere:f",), "a file is named with its .py"),
        (("tkc.kernels:nothing",), "it has adam_"),
        ((f"{FILE}:nothing",), "it has product, rows"),
        ((f"{FILE}:product", "z=3"), "it has a, b, c"),
        ((f"{FILE}:product", "--target", "sm_1"), "unknown target"),
        (
            (f"{FILE}:turned", "x=f32[8,8]", "out=f32[8,8]", "-o", "/nowhere/x"),
            "/nowhere is no directory",
        ),
        (("tkc.kernels:softmax", "y=3"), "it has x, axis"),
    ],
)
def test_words_that_name_nothing_are_refused(words, said):
    done = run(*words)
    assert done.exit_code == 2 and said in done.stderr, done.output
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_help_has_an_example_that_works():
    from tkc.tools.cli import EXPLAIN_EXAMPLES

    assert "tkc explain examples/attention.py:attention" in run("--help").stdout
    assert "tkc explain tkc.kernels:softmax" in EXPLAIN_EXAMPLES


@pytest.mark.gpu
def test_a_launch_on_a_gpu_is_measured():
    from tkc.runtime import driver

    kernel, arguments, extents = ARGUMENTS["rows"]
    s = subject(kernel, arguments, extents, driver.planned_for(0))
    assert measured.why_not(s) == "" and 1e-6 < measured.seconds(s) < 1e-2


def test_what_the_library_did_not_choose_is_kept():
    from tkc import kernels as library

    square = "bf16[2048, 2048]"
    s = subject(library.matmul, {"a": square, "b": square}, None, "sm_90a:h100_pcie")
    assert s.others and "BM" in dict(s.arguments)


@TOOLS
def test_a_named_device_has_machine_code_of_its_architecture():
    """ptxas knows architectures alone."""
    data = explained("rows", "sm_90a:h100_pcie")
    assert data["error"] is None and "resources" not in data["missing"]
    assert data["launch"]["registers"] > 0 and data["stages"][-1]["kind"] == "sass"


def test_without_a_grid_what_depends_on_sizes_is_missing():
    """And the rest is there: costs are relative, the timeline is of a kernel that persists."""
    kernel, arguments, _ = ARGUMENTS["product"]
    data = gather(subject(kernel, arguments, None, "sm_90a"), measure=False)
    assert not data["candidates"]["sized"] and data["grid"] is None
    assert data["timeline"] and data["prediction"]["seconds"] is None
    assert "--grid" in data["missing"]["roofline"]
