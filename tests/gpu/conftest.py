"""A device that reported a sticky error is lost to the process: then this worker stops, and pytest-xdist starts a fresh one."""
import os

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    from tkc.errors import DeviceError
    if call.excinfo is not None and call.excinfo.errisinstance(DeviceError) and os.environ.get("PYTEST_XDIST_WORKER"):
        print(f"{item.nodeid}: {call.excinfo.value}", flush=True)
        os._exit(1)
    return outcome


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path): item.add_marker(pytest.mark.gpu)
