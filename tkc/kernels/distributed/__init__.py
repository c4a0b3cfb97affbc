"""Functions of several ranks: collectives, products and attention over the memory of several GPUs,
written in the public language alone. docs/several-gpus.md has examples.

Each takes this rank's arrays and a group (groups.py), and is called by all ranks in the same order.
"""

from typing import Any

from tkc.kernels.distributed.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from tkc.kernels.distributed.experts import combine, dispatch
from tkc.kernels.distributed.groups import MAX_SECONDS, Group, Processes, Threads, threads
from tkc.kernels.distributed.products import (
    all_gather_matmul,
    matmul_all_reduce,
    matmul_reduce_scatter,
)
from tkc.kernels.distributed.ring import ring_attention, ring_attention_backward


def group_of_torch(group: Any = None, seconds: float = MAX_SECONDS) -> Group:
    """The group of a torch.distributed process group (the default one if None): with NCCL, GPUs
    over symmetric memory; with gloo, processes of one host over shared memory. All ranks call it
    together.
    """
    from tkc.kernels.distributed.torch_group import group_of

    return group_of(group, seconds)


__all__ = [
    "Group",
    "Processes",
    "Threads",
    "all_gather",
    "all_gather_matmul",
    "all_reduce",
    "all_to_all",
    "combine",
    "dispatch",
    "group_of_torch",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "reduce_scatter",
    "ring_attention",
    "ring_attention_backward",
    "threads",
]
