"""`triton.knobs`: settings that packages read. tkc's own are TKC_* variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tkc.codegen.ptx import ptxas


class Settings:
    """Settings of one subject; what is not there is None. Packages may set others."""

    def __init__(self, **given: Any):
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def copy(self) -> Settings:
        """Others with the same values."""
        return Settings(**self.__dict__)

    def reset(self) -> Settings:
        """Themselves: no variable of the environment changed them."""
        return self

    @property
    def knob_descriptors(self) -> dict[str, Any]:
        """None: settings are read from TKC_* variables, by what they concern."""
        return {}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is set within is set back after."""
        before = dict(self.__dict__)
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)


class _Tool:
    """A tool of NVIDIA's, as far as packages ask for it."""

    def __init__(self, name: str):
        self.name = name

    @property
    def path(self) -> str:
        return ptxas.require(self.name)

    @property
    def version(self) -> str:
        """Of CUDA: `12.8`."""
        return ".".join(ptxas.version(self.path).split(".")[:2])


def _asks(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


runtime = Settings(interpret=False, debug=_asks("TRITON_DEBUG"), override_arch=None)
compilation = Settings(allow_non_constexpr_globals=True)
autotuning = Settings(cache=False, print=_asks("TRITON_PRINT_AUTOTUNING"))
cache, language, amd, proton = (Settings() for _ in range(4))
nvidia = Settings(ptxas=_Tool("ptxas"))
base_knobs = Settings
propagate_env = True
