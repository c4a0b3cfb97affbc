"""`triton.backends`: there is one, tkc, which is none of Triton's kind."""

from __future__ import annotations

from typing import Any

backends: dict[str, Any] = {}
