"""`flex_attention` with the arguments of torch.nn.attention.flex_attention.flex_attention.

    from tkc.integrations.flex_attention import flex_attention

takes tensors, score_mods and BlockMasks of torch (or of `tkc.kernels.create_block_mask`), needs no
torch.compile, and is differentiable on the CPU too, with respect to captured tensors as well.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import tkc
from tkc import kernels


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: Any = None,
) -> Any:
    """softmax(score_mod(query keyᵀ · scale)) value where the mask of block_mask lets it through.

    query: [B, Hq, L, E]; key: [B, Hkv, S, E]; value: [B, Hkv, S, Ev]; with enable_gqa Hq is a
    multiple of Hkv, else both are equal. kernel_options are those of other kernels, and change
    nothing. return_lse, or return_aux=AuxRequest(lse=True): also the log-sum-exp, [B, Hq, L]. The
    maxima of scores are not kept. Raises LaunchError where shapes, types or options do not fit.
    """
    try:
        if not enable_gqa and query.shape[1] != key.shape[1]:
            raise tkc.LaunchError(
                f"flex_attention: query has {query.shape[1]} heads and key {key.shape[1]}; pass"
                " enable_gqa=True to share heads"
            )
        if return_aux is not None and (return_lse or return_aux.max_scores):
            raise tkc.LaunchError(
                "flex_attention: return_aux gives lse alone, without return_lse; maxima of scores"
                " are not kept"
            )
        with_lse = return_lse or return_aux is not None and return_aux.lse
        found = kernels.attention(
            query,
            key,
            value,
            scale=scale,
            score_mod=score_mod,
            block_mask=block_mask,
            with_lse=with_lse,
        )
        if return_aux is None:
            return found
        theirs = import_module("torch.nn.attention.flex_attention")
        out, lse = found if with_lse else (found, None)
        return out, theirs.AuxOutput(lse=lse, max_scores=None)
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
