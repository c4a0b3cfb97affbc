"""Arguments of a random kernel on a GPU, played by a part of the host's memory."""

import ctypes
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from tkc.errors import DeviceError
from tkc.fuzz import campaign
from tkc.fuzz import device as d
from tkc.fuzz.check import Failure
from tkc.runtime import driver


class Driver:
    """The functions of the driver that are called, on memory of the host."""

    def cuMemAlloc(self, size):
        self.memory = np.full(size + d.ALIGNMENT, 0xAB, np.uint8)
        return 0, -(-self.memory.ctypes.data // d.ALIGNMENT) * d.ALIGNMENT

    def cuMemcpyHtoD(self, target, source, size):
        ctypes.memmove(target, source, size)
        return (0,)

    def cuMemcpyDtoH(self, target, source, size):
        return self.cuMemcpyHtoD(target, source, size)

    def cuCtxSynchronize(self):
        return (0,)

    def cuMemFree(self, base):
        return (0,)


@pytest.fixture
def faked(monkeypatch):
    one = Driver()
    monkeypatch.setattr(driver, "api", lambda: one)
    monkeypatch.setattr(driver, "context", lambda number: nullcontext())
    return one


def on_host(info):
    return replace(info, device=-1).numpy()


def test_views_share_memory_and_results_come_back(faked):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    window, backwards = base[1:3, 2:5], np.arange(5, dtype=np.int16)[::-1]

    def launch(a, w, b, n, C):
        assert (a.device, n, C) == (0, 7, "c") and a.pointer % d.ALIGNMENT == 0
        assert (on_host(w) == window).all() and (on_host(b) == [4, 3, 2, 1, 0]).all()
        on_host(a)[...] += 1
        assert on_host(w)[0, 0] == 9  # the same memory
        on_host(b)[0] = -1

    d.launched(launch, {"a": base, "w": window, "b": backwards, "n": 7}, {"C": "c"})
    assert (base == np.arange(1, 25).reshape(4, 6)).all()
    assert (backwards == [-1, 3, 2, 1, 0]).all()


def test_tables_hold_addresses_of_the_device(faked):
    base = np.arange(8, dtype=np.int32).reshape(2, 4)
    table = np.array([base.ctypes.data + 16, base.ctypes.data], np.int64)
    before = table.copy()

    def launch(base, table):
        assert list(on_host(table)) == [base.pointer + 16, base.pointer]

    d.launched(launch, {"base": base, "table": table}, {})
    assert (table == before).all()


def test_the_process_of_a_lost_device_ends(monkeypatch):
    monkeypatch.setattr(
        d, "check", lambda kernel: [Failure("device", DeviceError.__name__, "an illegal address")]
    )

    def ended(status):
        raise SystemExit(status)

    monkeypatch.setattr(campaign.os, "_exit", ended)
    with pytest.raises(SystemExit, match=str(campaign.DEVICE_LOST)):
        campaign.device(0)


def test_devices_run_only_where_asked():
    assert not campaign.CAMPAIGNS["devices"].by_default
