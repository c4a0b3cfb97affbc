"""The picture in the README is that of the races, and the site's pictures show the layouts."""

import pytest

from benchmarks.plot import OUT, draw, rows
from docs import build_site, pictures


def test_the_picture_is_that_of_the_races():
    """`python -m benchmarks.plot` after new races."""
    assert len(rows()) >= 10 and draw(rows()) == OUT.read_text()


def test_layouts_are_drawn():
    page = pictures.page()
    assert page.count("<svg") == 6 and ">31:3<" in page


@pytest.mark.parametrize("name", ["softmax", "attention"])
def test_an_example_is_a_tutorial(name):
    page = build_site.tutorial(build_site.ROOT / "examples" / f"{name}.py")
    assert page.startswith("# ") and f"def {name}(" in page and '"""' not in page.split("```")[1]


def test_links_lead_to_pages_of_the_site():
    pages = {"docs/ir.md": "ir.md", "README.md": "index.md"}
    folder = build_site.ROOT / "docs"
    text = build_site.relinked("[a](ir.md#x) [b](../README.md) [c](../LICENSE)", folder, pages)
    assert text == "[a](ir.md#x) [b](index.md) `c`"
