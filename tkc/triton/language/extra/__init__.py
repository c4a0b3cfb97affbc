"""`triton.language.extra`: functions of devices."""

from __future__ import annotations

from tkc.triton.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
