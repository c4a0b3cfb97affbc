"""The kernels people train with, written in tkc's public language and nothing else; operator.py says how to add one.

    from tkc import kernels
    y = kernels.softmax(x)                      # x: a tensor or array of torch, cupy, jax or NumPy, on a GPU or in host memory

Functions give new arrays of the caller's library on the caller's device; a name that ends in _ changes its first argument in place. With torch,
each is also `torch.ops.tkc.<name>`: differentiable where training needs it, and torch.compile takes it as it is.
"""
from __future__ import annotations

import sys

from tkc.kernels.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward

__all__ = [name for name in dir() if name[0] != "_" and name not in ("annotations", "sys")]

if "torch" in sys.modules:                      # so that torch.compile meets ops that are registered
    from tkc.kernels import torch_ops
    torch_ops.register_all()
