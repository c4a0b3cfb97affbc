"""Every Python block of the guides runs, in order, as the module that a reader would write."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    p
    for p in (ROOT / "docs").glob("*.md")
    if p.name not in ("architecture.md", "coverage.md", "glossary.md", "ir.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_blocks_run(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    file = tmp_path / f"{page.stem.replace('-', '_')}_page.py"
    file.write_text("\n\n".join(blocks))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    # of reliability the commands run: tests/test_reliability.py
    assert blocks or page.stem in (
        "extending",
        "reliability",
    )


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([\w./-]+\.md)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
        for path in re.findall(r"`((?:tkc|tests|docs|examples)/[\w/]+\.py)`", page.read_text()):
            assert (page.parents[1] / path).exists(), f"{page.name}: {path}"


def test_the_glossary_is_sorted_and_its_places_exist():
    text = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    terms = [term for term, *_ in rows[2:]]
    assert len(terms) >= 50 and terms == sorted(terms, key=str.lower)
    for term, meaning, where in rows[2:]:
        assert meaning.endswith(".") and (Path(__file__).parents[1] / where.strip("`")).exists(), (
            term
        )


def test_the_reasons_without_wgmma_are_those_of_the_planner():
    """docs/tensor-cores.md lists sentences that the plan says."""
    table = (ROOT / "docs" / "tensor-cores.md").read_text()
    said = " ".join(
        (ROOT / "tkc" / "passes" / name).read_text()
        for name in (
            "planning/roles/request.py",
            "planning/roles/sharing.py",
            "planning/roles/dots.py",
            "planning/roles/loads.py",
            "planning/roles/memory.py",
            "planning/operands.py",
            "planning/gathers.py",
            "planning/order.py",
        )
    )
    reasons = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(reasons) > 15
    for reason in reasons:
        assert reason in said, reason
