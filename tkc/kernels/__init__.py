"""The kernels people train with, written in tkc's public language and nothing else; operator.py
says how to add one.

    from tkc import kernels
    # x: a tensor or array of torch, cupy, jax or NumPy, on a GPU or in host memory
    y = kernels.softmax(x)

Functions give new arrays of the caller's library on the caller's device; a name that ends in _
changes arguments in place. With torch, each is also `torch.ops.tkc.<name>`: differentiable where
training needs it, and torch.compile takes it as it is.
"""

from __future__ import annotations

import sys

from tkc.kernels import operator
from tkc.kernels.activations import (
    dropout,
    geglu,
    geglu_backward,
    gelu,
    gelu_backward,
    silu,
    silu_backward,
    swiglu,
    swiglu_backward,
)
from tkc.kernels.attention import attention, attention_decode
from tkc.kernels.grouped import grouped_matmul, grouped_outer
from tkc.kernels.losses import cross_entropy, cross_entropy_, cross_entropy_backward
from tkc.kernels.matmul import matmul
from tkc.kernels.movement import embedding, embedding_backward, transpose
from tkc.kernels.norms import (
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from tkc.kernels.optimizers import adam_
from tkc.kernels.quantize import dequantize, quantize, quantize_blocks, quantize_rows
from tkc.kernels.rotary import rotary
from tkc.kernels.scaled import scaled_matmul
from tkc.kernels.scans import cumsum, sum
from tkc.kernels.selection import histogram, topk
from tkc.kernels.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward

__all__ = [
    "adam_",
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "attention_decode",
    "cross_entropy",
    "cross_entropy_",
    "cross_entropy_backward",
    "cumsum",
    "dequantize",
    "dropout",
    "embedding",
    "embedding_backward",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "grouped_matmul",
    "grouped_outer",
    "histogram",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "quantize",
    "quantize_blocks",
    "quantize_rows",
    "rms_norm",
    "rms_norm_backward",
    "rotary",
    "scaled_matmul",
    "silu",
    "silu_backward",
    "softmax",
    "softmax_backward",
    "sum",
    "swiglu",
    "swiglu_backward",
    "topk",
    "transpose",
]


def _register(op: operator.Operator) -> None:
    from tkc.kernels import torch_ops

    torch_ops.register(op)


operator.on_torch = _register
if "torch" in sys.modules:  # so that torch.compile meets ops that are registered
    from tkc.kernels import torch_ops

    torch_ops.register_all()
