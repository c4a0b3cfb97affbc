"""A device that reported a sticky error is lost to the process: then this worker stops, and
pytest-xdist starts a fresh one.
"""

import os
from collections import Counter

import pytest

from tests.hardware import no_gpu


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    from tkc.errors import DeviceError
    from tkc.runtime import driver

    if (
        call.excinfo is not None
        and call.excinfo.errisinstance(DeviceError)
        and driver.poison is not None
        and os.environ.get("PYTEST_XDIST_WORKER")
    ):
        # standard output goes to xdist, which loses what a lost worker said
        os.write(2, f"{item.nodeid}: {call.excinfo.value}\n".encode())
        os._exit(1)
    return outcome


class Unrun(pytest.Module):
    """A file of tests where there is no GPU: it must load, and is skipped as one. Making its cases,
    4,000 in all, and skipping each takes longer than many tests.
    """

    def collect(self):
        assert self.obj
        pytest.skip(no_gpu(), allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    return Unrun.from_parent(parent, path=module_path) if no_gpu() else None


def pytest_collection_modifyitems(items):
    """The tests of each file are spread over the whole run: pytest-xdist deals out neighbours
    together, and the file with the longest ones went to one worker.
    """
    ours, places, taken = (
        [i for i in items if "tests/gpu" in str(i.path)],
        [n for n, i in enumerate(items) if "tests/gpu" in str(i.path)],
        Counter(),
    )
    of_file = Counter(item.path for item in ours)
    shares = {}
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        shares[item] = (taken[item.path] + 0.5) / of_file[item.path]
        taken[item.path] += 1
    for place, item in zip(places, sorted(ours, key=shares.__getitem__), strict=False):
        items[place] = item
