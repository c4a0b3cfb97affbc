"""The watch that ends a process whose GPU waits for a rank that has died."""

import threading
import time

from tkc.kernels.distributed.watch import Watch

FAST = {"look": 0.01, "patience": 0.1}


def watched(lost, idle):
    """What a watch ends the process with, and the watch."""
    said, done = [], threading.Event()
    watch = Watch(lost, idle, lambda why: (said.append(why), done.set()), **FAST)
    return said, done, watch


def test_work_that_never_ends_because_a_rank_died():
    said, done, watch = watched(lambda: "rank 1 has died", lambda: False)
    assert done.wait(20) and said == ["rank 1 has died"]
    watch.stop()


def test_a_rank_that_left_when_all_was_done():
    said, done, watch = watched(lambda: "rank 1 has died", lambda: True)
    assert not done.wait(0.5)
    watch.stop()
    assert not said


def test_work_goes_on_while_all_live():
    said, done, watch = watched(lambda: None, lambda: False)
    assert not done.wait(0.5)
    watch.stop()
    assert not said


def test_it_stops_while_it_is_patient():
    looked = threading.Event()
    watch = Watch(
        lambda: looked.set() or "rank 1 has died", lambda: False, [].append, 0.01, patience=60
    )
    assert looked.wait(20)
    began = time.monotonic()
    watch.stop()
    assert time.monotonic() - began < 10
