"""What all tests share: a cache of their own, the marker `gpu`, and how often Python looks for
cycles.
"""

import gc
import os
import sys

# the products of tests are small: threads that spin only take each other's time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest  # noqa: E402

from tests import sampling  # noqa: E402
from tests.hardware import no_gpu  # noqa: E402


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """No test reads or fills the user's cache, nor goes without one because the user does. Workers
    of one session share it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ.pop("TKC_CACHE", None)
    os.environ["TKC_CACHE_DIR"] = str(folder / "cache")


@pytest.fixture(autouse=True)
def share_the_device(request):
    """What a test on a GPU took of its memory goes back: torch keeps what was freed, and a dozen
    processes beside this one want some, too.
    """
    yield
    if request.node.get_closest_marker("gpu") is None:
        return
    if (
        (torch := sys.modules.get("torch")) is not None
        and torch.cuda.is_initialized()
        and torch.cuda.memory_reserved() > 1 << 28
    ):
        torch.cuda.empty_cache()


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write what the golden tests compare with anew"
    )


@pytest.fixture
def golden(request):
    """`golden(path, text)`: the text is what the file says; with --update-golden the file is
    written first.
    """

    def compare(path, text):
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.exists(), (
            f"{path} does not exist: run pytest with --update-golden and look at it"
        )
        assert text == path.read_text(), (
            f"{path} says otherwise: if the new text is right, run pytest with --update-golden"
        )

    return compare


# Collecting makes a few objects for each of 20,000 cases, none of which ends before the tests do:
# walking them again and again finds nothing.
gc.disable()
# objects that are made between two walks of the youngest (Python's own number is 700), and how
# many such walks there are between two of those that survived one
GC_THRESHOLD, GC_ROUNDS = 500_000, 50


def settle():
    """No later walk is of what is there now: what was collected and imported, and what tests keep,
    which is programs after each pass.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    gc.freeze()  # next to nothing of what was collected and imported has ended
    gc.set_threshold(GC_THRESHOLD, GC_ROUNDS, 1 << 20)
    gc.enable()


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        settle()


def pytest_report_header():
    """The seed of the sample, so that a failure can be run again."""
    day = sampling.seed()
    return "every case" if day is None else f"TKC_TEST_SEED={day}: a seventh of long families"


def _asked_for_by_name(config) -> bool:
    """Whether somebody wants these cases: a node id, or names, or only tests of the GPU."""
    given = config.option
    return bool(given.keyword or given.markexpr) or any("::" in str(a) for a in config.args)


@pytest.hookimpl(tryfirst=True)  # pytest sorts what is left by its fixtures
def pytest_collection_modifyitems(config, items):
    if not _asked_for_by_name(config):
        programs = {
            item.nodeid: sampling.program(item.module, item.callspec.params)
            for item in items
            if hasattr(item, "callspec")
        }
        today = sampling.chosen([item.nodeid for item in items], sampling.seed(), programs)
        left_out = [item for item in items if item.nodeid not in today]
        items[:] = [item for item in items if item.nodeid in today]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
    marked = [i for i in items if i.get_closest_marker("gpu")]
    if marked and (reason := no_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
