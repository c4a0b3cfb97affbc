import pytest

from tests.runtime.fake_driver import FakeDriver
from tkc.runtime import driver, launch


@pytest.fixture
def gpu(monkeypatch):
    """A machine with one made-up GPU."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "_api", fake)
    monkeypatch.setattr(driver, "poison", None)
    monkeypatch.setattr(driver, "_contexts", {})
    monkeypatch.setattr(driver, "_records", [])
    driver._attribute.cache_clear()
    launch._encoded.clear()
    yield fake
    driver._attribute.cache_clear()
    launch._encoded.clear()
