"""The page: one HTML file with its style, its script and its data, which loads nothing."""

from __future__ import annotations

import base64
import gzip
import html
import json
from functools import cache
from importlib.resources import files
from typing import Any

SCRIPTS = (
    "base",
    "load",
    "lines",
    "code",
    "choices",
    "zoom",
    "timeline",
    "speed",
    "memory",
    "layouts",
    "registers",
    "main",
)


def rendered(data: dict[str, Any]) -> str:
    """The HTML of what `explanation.gather` gives."""
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    title = f"{data['kernel']} for {data['target']}: tkc explain"
    parts = {
        "title": html.escape(title),
        "kernel": html.escape(data["kernel"]),
        "target": html.escape(data["target"]),
        "style": _file("page.css"),
        "script": '(() => {\n"use strict";\n' + "\n".join(map(_script, SCRIPTS)) + "\n})();",
        "data": base64.b64encode(packed).decode(),
    }
    page = _file("page.html")
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    return page


def data_of(page: str) -> dict[str, Any]:
    """The data that a page carries: what `rendered` was given."""
    _, _, rest = page.partition('<script type="application/gzip" id="data">')
    packed, _, _ = rest.partition("</script>")
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def _script(name: str) -> str:
    return _file(f"{name}.js")


@cache
def _file(name: str) -> str:
    return files("tkc.tools.explain").joinpath("page", name).read_text()
