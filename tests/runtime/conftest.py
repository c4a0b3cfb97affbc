from contextlib import contextmanager

import pytest

from tests.runtime.fake_driver import FakeDriver, FakeDrivers
from tkc.runtime import driver, launch


@contextmanager
def made_up(monkeypatch, fake):
    """A machine with this driver, used for the first time."""
    monkeypatch.setattr(driver, "_api", fake)
    monkeypatch.setattr(driver, "poison", None)
    monkeypatch.setattr(driver, "_contexts", {})
    monkeypatch.setattr(driver, "_records", [])
    driver._attribute.cache_clear()
    launch._encoded.clear()
    yield fake
    driver._attribute.cache_clear()
    launch._encoded.clear()


@pytest.fixture
def gpu(monkeypatch):
    """A machine with one made-up GPU."""
    with made_up(monkeypatch, FakeDriver()) as fake:
        yield fake


@pytest.fixture
def gpus(monkeypatch):
    """A machine with two."""
    with made_up(monkeypatch, FakeDrivers()) as fake:
        yield fake
