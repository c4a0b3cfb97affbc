"""No function of tkc/ has a cyclomatic complexity over 15 by radon, but for those that are listed.

pyproject.toml lists the exceptions, each with the issue that replaces the function or the reason
why it stays: `[tool.tkc.complexity]`.  A function that is listed and simple enough by now fails
too.
"""

import tomllib
from functools import cache
from pathlib import Path

from radon.complexity import cc_visit_ast
from radon.visitors import Class

from tests.sources import tree

ROOT = Path(__file__).parents[1]
MAX_COMPLEXITY = 15


def _functions(blocks):
    """Every function and method of these blocks, the nested ones and those of inner classes too."""
    for block in blocks:
        if isinstance(block, Class):
            yield from _functions([*block.methods, *block.inner_classes])
        else:
            yield block
            yield from _functions(block.closures)


@cache
def _complex_functions():
    """`path:function` to complexity, of the functions over the limit."""
    found = {}
    for path in sorted((ROOT / "tkc").rglob("*.py")):
        for function in _functions(cc_visit_ast(tree(path))):
            if function.complexity > MAX_COMPLEXITY:
                owner = f"{function.classname}." if getattr(function, "classname", None) else ""
                found[f"{path.relative_to(ROOT)}:{owner}{function.name}"] = function.complexity
    return found


def _tools():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def _exceptions():
    return _tools()["tkc"]["complexity"]


def test_a_function_is_simple_or_listed_with_the_issue_that_replaces_it():
    unlisted = {
        name: score for name, score in _complex_functions().items() if name not in _exceptions()
    }
    assert not unlisted, f"complexity over {MAX_COMPLEXITY}: split these functions: {unlisted}"


def test_the_list_names_only_functions_that_are_still_complex():
    stale = sorted(set(_exceptions()) - set(_complex_functions()))
    assert not stale, f"no longer over {MAX_COMPLEXITY}: remove from pyproject.toml: {stale}"


def test_ruff_excepts_only_files_of_functions_that_issues_replace():
    """ruff's own measure (C901) has exceptions only for files with such a function."""
    files = {name.partition(":")[0] for name in _tools()["tkc"]["complexity"]}
    ignored = _tools()["ruff"]["lint"]["per-file-ignores"]
    assert {path for path, codes in ignored.items() if "C901" in codes} <= files
