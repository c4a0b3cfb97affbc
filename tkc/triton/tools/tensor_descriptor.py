"""Descriptors that the host makes: an array, and the extents of the blocks that are read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tkc.errors import LaunchError


@dataclass
class TensorDescriptor:
    """An array of 1 to 5 axes, the last one contiguous, whose other strides are multiples of 16
    bytes.
    """

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    def __post_init__(self):
        rank = len(self.shape)
        if len(self.strides) != rank or len(self.block_shape) != rank or not 1 <= rank <= 5:
            raise LaunchError(
                "a descriptor has 1 to 5 axes, with an extent, a stride and a block's extent for"
                f" each; got {rank}, {len(self.strides)} and {len(self.block_shape)}"
            )
        if self.strides[-1] != 1:
            raise LaunchError(f"the last stride of a descriptor is 1, got {self.strides[-1]}")
        if self.padding not in ("zero", "nan"):
            raise LaunchError(f"the padding of a descriptor is 'zero' or 'nan': {self.padding!r}")

    @staticmethod
    def from_tensor(
        tensor: Any, block_shape: Sequence[int], padding: str = "zero"
    ) -> TensorDescriptor:
        """Of a whole tensor."""
        own = getattr(tensor, "stride", None)
        strides = own() if callable(own) else [s // tensor.itemsize for s in tensor.strides]
        return TensorDescriptor(tensor, list(tensor.shape), list(strides), block_shape, padding)
