"""The kernels people train with, written in tkc's public language and nothing else; operator.py
says how to add one.

    from tkc import kernels
    # x: a tensor or array of torch, cupy, jax or NumPy, on a GPU or in host memory
    y = kernels.softmax(x)

Functions give new arrays of the caller's library on the caller's device; a name that ends in _
changes arguments in place. With torch, each is also `torch.ops.tkc.<name>`: differentiable where
training needs it, and torch.compile takes it as it is. (Where torch is imported after this package,
each is an op from its first call on.)
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
from tkc.kernels.attention import attention_decode
from tkc.kernels.attention_call import attention, attention_backward
from tkc.kernels.block_mask import BlockMask as BlockMask
from tkc.kernels.block_mask import create_block_mask
from tkc.kernels.cache import append_to_cache_
from tkc.kernels.convolution import (
    causal_conv1d,
    causal_conv1d_backward,
    causal_conv1d_step,
)
from tkc.kernels.delta_rule import delta_rule, delta_rule_backward, delta_rule_step
from tkc.kernels.divergences import (
    divergence,
    divergence_backward,
    grpo_loss,
    kto_loss,
    preference_loss,
)
from tkc.kernels.experts import (
    mixture_of_experts,
    mixture_of_experts_backward,
    route,
    route_backward,
    sort_by_expert,
)
from tkc.kernels.feature_maps import (
    based,
    based_backward,
    based_step,
    normalized_linear_attention,
    normalized_linear_attention_backward,
    normalized_linear_attention_step,
    taylor_features,
    taylor_features_backward,
)
from tkc.kernels.fourier import fft, fft_conv, fft_conv_backward
from tkc.kernels.fused_losses import linear_cross_entropy
from tkc.kernels.gated_scan import hgrn, hgrn_backward, hgrn_step
from tkc.kernels.group_norm import group_norm, group_norm_backward
from tkc.kernels.grouped import grouped_matmul, grouped_outer
from tkc.kernels.hedgehog import (
    hedgehog,
    hedgehog_backward,
    hedgehog_features,
    hedgehog_features_backward,
)
from tkc.kernels.latent_attention import attention_latent
from tkc.kernels.linear_attention import (
    linear_attention,
    linear_attention_backward,
    linear_attention_step,
)
from tkc.kernels.losses import cross_entropy, cross_entropy_, cross_entropy_backward
from tkc.kernels.matmul import matmul
from tkc.kernels.mlp import gated_mlp, gated_mlp_backward, linear_gate_add, lora_linear
from tkc.kernels.movement import embedding, embedding_backward, transpose
from tkc.kernels.norms import (
    add_layer_norm,
    add_rms_norm,
    dropout_add_layer_norm,
    gated_rms_norm,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from tkc.kernels.optimizers import adam_, adam_variant_, lion_
from tkc.kernels.packed import (
    dequantize_packed,
    pack_codes,
    packed_matmul,
    quantize_packed,
    unpack_zeros,
)
from tkc.kernels.quantize import dequantize, quantize, quantize_blocks, quantize_rows
from tkc.kernels.rotary import rotary
from tkc.kernels.rows import dyt, dyt_backward, sparsemax, sparsemax_backward
from tkc.kernels.rwkv import rwkv7, rwkv7_backward, rwkv7_step
from tkc.kernels.sampling import argmax, beam_gather, sample, sort
from tkc.kernels.scaled import scaled_matmul
from tkc.kernels.scans import cumsum, sum
from tkc.kernels.selection import histogram, topk
from tkc.kernels.selective_scan import (
    selective_scan,
    selective_scan_backward,
    selective_scan_step,
)
from tkc.kernels.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from tkc.kernels.state_space import ssd, ssd_backward, ssd_step
from tkc.kernels.windows import conv, conv_backward

__all__ = [
    "adam_",
    "adam_variant_",
    "add_layer_norm",
    "add_rms_norm",
    "append_to_cache_",
    "argmax",
    "attention",
    "attention_backward",
    "attention_decode",
    "attention_latent",
    "based",
    "based_backward",
    "based_step",
    "beam_gather",
    "causal_conv1d",
    "causal_conv1d_backward",
    "causal_conv1d_step",
    "conv",
    "conv_backward",
    "create_block_mask",
    "cross_entropy",
    "cross_entropy_",
    "cross_entropy_backward",
    "cumsum",
    "delta_rule",
    "delta_rule_backward",
    "delta_rule_step",
    "dequantize",
    "dequantize_packed",
    "divergence",
    "divergence_backward",
    "dropout",
    "dropout_add_layer_norm",
    "dyt",
    "dyt_backward",
    "embedding",
    "embedding_backward",
    "fft",
    "fft_conv",
    "fft_conv_backward",
    "gated_mlp",
    "gated_mlp_backward",
    "gated_rms_norm",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "group_norm",
    "group_norm_backward",
    "grouped_matmul",
    "grouped_outer",
    "grpo_loss",
    "hedgehog",
    "hedgehog_backward",
    "hedgehog_features",
    "hedgehog_features_backward",
    "hgrn",
    "hgrn_backward",
    "hgrn_step",
    "histogram",
    "kto_loss",
    "layer_norm",
    "layer_norm_backward",
    "linear_attention",
    "linear_attention_backward",
    "linear_attention_step",
    "linear_cross_entropy",
    "linear_gate_add",
    "lion_",
    "log_softmax",
    "log_softmax_backward",
    "lora_linear",
    "matmul",
    "mixture_of_experts",
    "mixture_of_experts_backward",
    "normalized_linear_attention",
    "normalized_linear_attention_backward",
    "normalized_linear_attention_step",
    "pack_codes",
    "packed_matmul",
    "preference_loss",
    "quantize",
    "quantize_blocks",
    "quantize_packed",
    "quantize_rows",
    "rms_norm",
    "rms_norm_backward",
    "rotary",
    "route",
    "route_backward",
    "rwkv7",
    "rwkv7_backward",
    "rwkv7_step",
    "sample",
    "scaled_matmul",
    "selective_scan",
    "selective_scan_backward",
    "selective_scan_step",
    "silu",
    "silu_backward",
    "softmax",
    "softmax_backward",
    "sort",
    "sort_by_expert",
    "sparsemax",
    "sparsemax_backward",
    "ssd",
    "ssd_backward",
    "ssd_step",
    "sum",
    "swiglu",
    "swiglu_backward",
    "taylor_features",
    "taylor_features_backward",
    "topk",
    "transpose",
    "unpack_zeros",
]


def _register(op: operator.Operator) -> None:
    from tkc.kernels import torch_ops

    torch_ops.register(op)


def _trace(op: operator.Operator, args: tuple, kwargs: dict) -> object:
    from tkc.kernels import jax_ops

    return jax_ops.call(op, args, kwargs)


operator.on_torch, operator.on_jax = _register, _trace
if "torch" in sys.modules:  # so that torch.compile meets ops that are registered
    from tkc.kernels import torch_ops

    torch_ops.register_all()
