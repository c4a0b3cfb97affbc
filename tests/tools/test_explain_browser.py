"""The page of `tkc explain` in a real browser: skipped where there is none."""

from __future__ import annotations

import copy
import json

import pytest

from tests.tools import browser
from tests.tools.browser import Browser
from tests.tools.explained import explained, page
from tkc.ir.layout import Layout
from tkc.tools.explain.page import rendered

pytestmark = pytest.mark.skipif(
    browser.find() is None, reason="no browser; install chromium, or set TKC_BROWSER"
)
READY = "document.documentElement.dataset.ready === 'yes'"
VIEWS = ("code", "choices", "timeline", "speed", "memory", "layouts", "registers")
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def seen():
    with Browser.start() as b:
        yield b


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")

    def file(name: str, text: str):
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(text)
        return path

    return file


@pytest.fixture
def product(seen, files):
    """The browser with the page of a product, as it is when opened."""
    seen.events.clear()
    seen.run("try { localStorage.clear() } catch {}")
    seen.open(files("product", page("product")), READY)
    yield seen
    assert seen.problems == []


def dot_line() -> int:
    lines = [line for part in explained("product")["sources"] for line in part["lines"]]
    return next(i for i, line in enumerate(lines) if "tkc.dot" in line)


def test_it_asks_for_nothing_but_itself(product):
    assert [url.rpartition("/")[2] for url in product.requests] == ["product.html"]


@pytest.mark.parametrize("width", [1280, 1024])
@pytest.mark.parametrize("dark", [False, True])
def test_every_view_is_drawn_and_fits(product, width, dark):
    metrics = {"width": width, "height": 720, "deviceScaleFactor": 1, "mobile": False}
    product.send("Emulation.setDeviceMetricsOverride", **metrics)
    if dark:
        product.click("#theme")
    assert product.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    for i, view in enumerate(VIEWS):
        product.press(str(i + 1))
        product.run(SETTLED)
        assert product.run("location.hash") == f"#{view}"
        assert product.run("document.documentElement.scrollWidth") <= width, view
        assert product.run("document.getElementById('main').textContent.length") > 100, view
        blank = product.run(
            "[...document.querySelectorAll('main canvas')].filter((c) => !new Uint32Array("
            "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer).some((p) => p)"
            ").length"
        )
        assert blank == 0, view
        assert product.run("document.querySelectorAll('main canvas, main svg').length") > 0 or (
            view in ("code", "choices")
        )


def test_a_source_line_is_found_in_every_stage(product):
    line, data = dot_line(), explained("product")
    product.click(f".pane .row[data-source='{line}'] .t", dx=0.2)
    assert product.run("explained.selection.line") == line
    stages = [s for s in data["stages"] if not s.get("same")]
    told = product.run(
        "[...document.querySelectorAll('.strip button:not(.same)')].map((b) => ["
        "b.querySelector('span').textContent, b.querySelector('.from')?.textContent ?? '0'])"
    )
    assert told == [[s["name"], str(s["source"].count(line))] for s in stages]
    assert all(int(count) > 0 for _, count in told)
    for pane in (1, 2, 3):
        rows = product.run(
            f"[...document.querySelectorAll('.pane')][{pane - 1}].querySelectorAll('.row.pick')"
            ".length"
        )
        assert rows > 0, f"pane {pane} shows none of the line's"
    # and back: a line of the machine code selects its source
    product.press("Escape")
    assert product.run("explained.selection.line") == -1
    product.run("[...document.querySelectorAll('.pane')][2].querySelector('.lines').scrollTop = 0")
    product.run(SETTLED)
    product.click(".pane:last-child .row[data-source] .t", dx=0.3)
    picked = product.run("explained.selection.line")
    assert picked >= 0 and product.run(
        f"document.querySelector('.pane .row[data-source=\"{picked}\"]').classList.contains('pick')"
    )


def test_it_is_used_by_keys_alone(product):
    product.run("document.querySelector('.pane .lines').focus()")
    product.press("ArrowDown")
    first = product.run("explained.selection.line")
    product.press("j")
    assert product.run("explained.selection.line") > first >= 0
    product.press("k")
    assert product.run("explained.selection.line") == first
    product.press("[")
    chosen = product.run("document.querySelectorAll('.pane select')[0].selectedOptions[0].text")
    assert chosen == "allocate-shared"
    product.press("d")
    product.run(SETTLED)
    assert product.run("document.querySelectorAll('.row.plus').length") > 0
    product.run("document.getElementById('tab-code').focus()")
    product.press("ArrowRight")
    assert product.run("document.activeElement.id") == "tab-choices"
    assert product.run("document.activeElement.getAttribute('aria-selected')") == "true"
    product.press("?")
    assert product.run("document.getElementById('keys').open")


def test_a_diff_has_the_lines_that_a_pass_removed_and_added(product):
    stage = next(s for s in explained("product")["stages"] if s["name"] == "schedule-warpgroups")
    product.run(
        "(() => { const [stage, mode] = document.querySelectorAll('.pane select');"
        " stage.value = explained.data.stages.findIndex((s) => s.name === 'schedule-warpgroups');"
        " stage.dispatchEvent(new Event('change')); mode.selectedIndex = 2;"
        " mode.dispatchEvent(new Event('change')); })()"
    )
    height = product.run("document.querySelectorAll('.lines .inside')[1].clientHeight")
    assert height / 18 >= stage["added"] + stage["removed"]
    product.run("document.querySelectorAll('.lines')[1].scrollTop = 1e6")
    product.run(SETTLED)
    assert product.run("document.querySelectorAll('.row.plus, .row.minus').length") > 5


def test_the_timeline_zooms(product):
    product.run("explained.open('timeline')")
    product.run(SETTLED)
    canvas = "main canvas[tabindex='0']"
    drawn = f'document.querySelector("{canvas}").toDataURL()'
    before = product.run(drawn)
    product.wheel(canvas, -600)
    product.run(SETTLED)
    near = product.run(drawn)
    assert near != before
    product.run(f'document.querySelector("{canvas}").focus()')
    product.press("Home")
    product.run(SETTLED)
    assert product.run(drawn) not in (before, near)
    product.click(canvas, dx=0.3, dy=0.1)
    assert "clocks" in product.run("document.querySelector('[aria-live]').textContent")


@pytest.mark.parametrize(
    "text",
    [
        "16x8: 2:1@1 2:8@0 | 4:2@1 8:1@0 | -",
        "7x96: 3:1@1 | 32:3@1 | 8:1@0",
        "2x4x16: 4:1@2 | 4:4@2 4:1@1 2:* | 2:1@0",
        "48: 2:1@0 | 4:2@0 8:* | 6:8@0",
    ],
)
def test_the_picture_of_a_layout_has_the_owners_that_the_layout_has(product, text):
    layout = Layout.parse(text)
    given = {"shape": layout.shape} | {
        section: [[d.extent, d.axis, d.stride] for d in getattr(layout, section)]
        for section in ("registers", "lanes", "warps", "blocks")
    }
    found = product.run(f"explained.owners({json.dumps(given)})")
    rows, columns = (1, layout.shape[0]) if layout.rank == 1 else layout.shape[-2:]
    assert (found["rows"], found["columns"]) == (rows, columns)
    for i, owner in enumerate(found["owner"]):
        coordinates = (0, *divmod(i, columns))[-layout.rank :]
        owners = layout.owners(coordinates)
        assert tuple(owner) in owners and found["copies"][str(i)] == len(owners)


def test_a_link_to_a_line_opens_the_code(product):
    product.run("explained.open('choices')")
    product.click("main .line-link")
    assert product.run("location.hash") == "#code"
    assert product.run("document.querySelectorAll('.row.pick').length") > 0


def test_thousands_of_lines_stay_quick(seen, files):
    data = copy.deepcopy(explained("product"))
    for stage in data["stages"]:
        if "lines" in stage:
            times = -(-30_000 // len(stage["lines"]))
            for key in ("lines", "source"):
                stage[key] = stage[key] * times
        stage["changes"] = []
    seen.events.clear()
    seen.open(files("long", rendered(data)), READY)
    assert seen.run("document.querySelectorAll('.row').length") < 400
    slowest = seen.run(
        "(async () => { let most = 0; const panes = document.querySelectorAll('.lines');"
        " for (let i = 0; i < 12; i++) { const begin = performance.now();"
        " for (const pane of panes) pane.scrollTop = i * 40000;"
        " explained.selection.set(i % 2 ? -1 : " + str(dot_line()) + ");"
        " await new Promise(requestAnimationFrame);"
        " most = Math.max(most, performance.now() - begin); } return most; })()"
    )
    assert slowest < 1000  # milliseconds, on a machine that does other things beside
    assert seen.problems == []


def test_a_launch_that_only_moves_is_shown(seen, files):
    """It has no operations, of which a roofline has the logarithm."""
    assert explained("turned", "sm_80")["roofline"]["operations"] == 0
    seen.events.clear()
    seen.open(files("turned", page("turned", "sm_80")), READY)
    for view in VIEWS:
        seen.run(f"explained.open('{view}')")
    seen.run("explained.open('speed')")
    assert "it moves" in seen.run("document.getElementById('main').innerText")
    assert seen.problems == []


def test_a_failure_is_shown_with_its_line(seen, files):
    seen.events.clear()
    seen.open(files("mistaken", page("mistaken")), READY)
    assert "do not broadcast" in seen.run("document.getElementById('error').innerText")
    assert "a + b" in seen.run("document.querySelector('.row.wrong.pick').innerText")
    for view in VIEWS:
        seen.run(f"explained.open('{view}')")
    seen.open(files("crowded", page("crowded", "sm_80")), READY)
    assert "12 stages" in seen.run("document.getElementById('error').innerText")
    seen.open(files("cpu", page("rows", "cpu")), READY)
    for view in VIEWS:
        seen.run(f"explained.open('{view}')")
    assert seen.problems == []


def test_a_launch_of_unknown_sizes_is_shown(seen, files):
    data = copy.deepcopy(explained("product"))
    data["candidates"]["sized"] = False
    data |= {"grid": None, "roofline": None, "missing": {"roofline": "the grid is not known"}}
    data["prediction"]["seconds"] = None
    seen.events.clear()
    seen.open(files("unsized", rendered(data)), READY)
    for view in VIEWS:
        seen.run(f"explained.open('{view}')")
    assert seen.problems == []
