"""What a kernel that is being traced was told at its launch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """strict: hints such as num_stages are taken as given. debug: assertions are checked.
    precision: of dots of float32.
    """

    strict: bool = False
    debug: bool = False
    precision: str = "tf32"


_local = threading.local()


def settings() -> Settings:
    return getattr(_local, "settings", None) or Settings()


@contextmanager
def using(chosen: Settings) -> Iterator[None]:
    before = getattr(_local, "settings", None)
    _local.settings = chosen
    try:
        yield
    finally:
        _local.settings = before
