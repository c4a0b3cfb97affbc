"""`triton.runtime._allocation`: names that packages import; tkc's runtime allocates by itself."""

from __future__ import annotations

from typing import Any, NoReturn

from tkc.triton.errors import TritonError


class NullAllocator:
    """No allocator, which is what kernels of tkc need."""

    def __call__(self, size: int, alignment: int, stream: int | None) -> NoReturn:
        raise TritonError("no allocator was set; give one to triton.set_allocator")


def set_allocator(allocator: Any) -> None:
    """Nothing: kernels of tkc ask for no memory besides what the runtime keeps."""
