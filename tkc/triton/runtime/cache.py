"""`triton.runtime.cache`: names that packages import; tkc's cache is its own (TKC_CACHE_DIR)."""

from __future__ import annotations

from hashlib import sha256
from typing import NoReturn

from tkc.errors import CacheError
from tkc.runtime.toolchain import package_hash


def triton_key() -> str:
    """What compiled kernels depend on besides their source."""
    return sha256(package_hash().encode()).hexdigest()


def get_cache_manager(key: str) -> NoReturn:
    """Refused: tkc keeps its own cache."""
    raise CacheError("triton.runtime.cache: tkc keeps its own cache; see TKC_CACHE_DIR")
