"""A layer of a Llama on several GPUs: heads and hidden columns are dealt out over ranks, rows too
between the products.

    q, k, v = gather of rms_norm(x) times own columns        all_gather_matmul
    x = x + scatter of attention(q, k, v) times own rows     matmul_reduce_scatter
    h = gather of rms_norm(x) times own columns              all_gather_matmul
    x = x + scatter of swiglu(h) times own rows              matmul_reduce_scatter

Each rank has x of its rows alone: norms and residuals are not done twice, and what the exchange
moves is what a sum over ranks would move. Rows of other ranks travel while a rank multiplies its
own (tkc/kernels/distributed).

In this process the ranks are threads over NumPy arrays. With torchrun each is a process that has a
GPU; where there are none, processes over memory of the host. Each compares its rows with those that
one rank computes alone:

    torchrun --nproc_per_node 2 examples/tensor_parallel.py
"""

import os
import sys

import numpy as np
from _arrays import largest_error, main, normal
from _arrays import on_host as host

from tkc import kernels as library
from tkc.kernels import distributed

BASE = 10000.0  # of the angles by which queries and keys are turned


def layer(x, weights, group, cos, sin, head):
    """x [n / W, D]: this rank's rows; weights: this rank's (`shard`); head: channels of a head."""
    width = weights["out"].shape[0]
    qkv = distributed.all_gather_matmul(library.rms_norm(x), weights["qkv"], group)
    rows = qkv.shape[0]
    q, k, v = (qkv[:, i * width : (i + 1) * width].reshape(1, rows, -1, head) for i in range(3))
    q, k = library.rotary(q, cos, sin), library.rotary(k, cos, sin)
    seen = library.attention(q, k, v, causal=True, heads_first=False)
    x = x + distributed.matmul_reduce_scatter(seen.reshape(rows, width), weights["out"], group)
    hidden = weights["down"].shape[0]
    h = distributed.all_gather_matmul(library.rms_norm(x), weights["up"], group)
    h = library.swiglu(h[:, :hidden], h[:, hidden:])
    return x + distributed.matmul_reduce_scatter(h, weights["down"], group)


def shard(whole, rank, world):
    """The columns of the first products, and rows of the second ones, that a rank has."""

    def columns(w):
        return np.ascontiguousarray(np.split(w, world, 1)[rank])

    def rows(w):
        return np.ascontiguousarray(np.split(w, world, 0)[rank])

    return {
        "qkv": np.concatenate([columns(whole[name]) for name in ("q", "k", "v")], 1),
        "out": rows(whole["out"]),
        "up": np.concatenate([columns(whole["gate"]), columns(whole["value"])], 1),
        "down": rows(whole["down"]),
    }


def made(rows, width, hidden, head):
    """x, weights and the tables of angles."""
    shapes = {
        "q": (width, width),
        "k": (width, width),
        "v": (width, width),
        "out": (width, width),
        "gate": (width, hidden),
        "value": (width, hidden),
        "down": (hidden, width),
    }
    whole = {
        name: normal(shape, "float32", seed) / np.float32(np.sqrt(shape[0]))
        for seed, (name, shape) in enumerate(shapes.items(), 1)
    }
    angles = np.outer(np.arange(rows), BASE ** -(np.arange(head // 2) / (head // 2)))
    return (
        normal((rows, width), "float32"),
        whole,
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
    )


def run(world, rows, width, hidden, head):
    """The layer on so many ranks."""
    x, whole, cos, sin = made(rows, width, hidden, head)
    parts = distributed.threads(
        world,
        lambda group: layer(
            np.split(x, world)[group.rank],
            shard(whole, group.rank, world),
            group,
            cos,
            sin,
            head,
        ),
    )
    return np.concatenate(parts)


def reference(rows, width, hidden, head):
    x, whole, cos, sin = made(rows, width, hidden, head)
    x, cos, sin = x.astype(np.float64), cos[:, None], sin[:, None]
    w = {name: one.astype(np.float64) for name, one in whole.items()}

    def norm(x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def turned(x):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    q, k, v = ((norm(x) @ w[n]).reshape(rows, -1, head) for n in ("q", "k", "v"))
    scores = np.einsum("ihd,jhd->hij", turned(q), turned(k)) / np.sqrt(head)
    powers = np.exp(np.where(np.tri(rows, dtype=bool), scores, -np.inf))
    weight = powers / powers.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", weight, v).reshape(rows, width) @ w["out"]
    gate, value = norm(x) @ w["gate"], norm(x) @ w["value"]
    return x + gate / (1 + np.exp(-gate)) * value @ w["down"]


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def cases(device, rows=48, width=64, hidden=128, head=16):
    if device != "cpu":
        return  # a process a GPU: torchrun starts them
    sizes = rows, width, hidden, head
    results = {}
    yield {
        "name": "tensor parallel",
        "shape": (2, *sizes),
        "dtype": "float32",
        "tolerance": 1e-5,
        "run": lambda: results.update(two=run(2, *sizes)),
        "error": lambda: max(
            largest_error(results["two"], reference(*sizes)),
            largest_error(results["two"], run(1, *sizes).astype(np.float64)),
        ),
    }


def kernels():
    """None of its own: they are the library's."""
    return []


def of_process(rank, world):
    """A rank that is a process: whether its rows are what one rank computes alone."""
    group, alone, there, sizes, tolerance = (on_gpu if has_gpus() else on_host)(rank, world)
    x, whole, cos, sin = made(*sizes)

    def rows(group):
        part = np.split(x, group.world)[group.rank]
        weights = {n: there(w, True) for n, w in shard(whole, group.rank, group.world).items()}
        return layer(there(part, True), weights, group, there(cos), there(sin), sizes[-1])

    one = np.split(host(rows(alone)), world)[rank]
    errors = [largest_error(rows(group), one) for _ in range(3)]
    print(f"rank {rank} of {world}: {max(errors):.1e} from what one computes", flush=True)
    alone.close()
    group.close()
    return max(errors) <= tolerance


def has_gpus():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def on_gpu(rank, world):
    """The group of all ranks and that of this one, what makes tensors, sizes, a tolerance."""
    import torch

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    groups = [torch.distributed.new_group([r]) for r in range(world)]

    def there(array, narrow=False):
        tensor = torch.from_numpy(array).cuda()
        return tensor.bfloat16() if narrow else tensor

    group, alone = distributed.group_of_torch(), distributed.group_of_torch(groups[rank])
    return group, alone, there, (2048, 2048, 5632, 128), 1e-2


def on_host(rank, world):
    """Likewise, of processes of this host."""
    name = f"tensor-parallel-{os.environ['MASTER_PORT']}"
    group = distributed.Processes(name, rank, world)
    alone = distributed.Processes(f"{name}-{rank}", 0, 1)
    return group, alone, lambda array, narrow=False: array, (48, 64, 128, 16), 1e-5


if __name__ == "__main__":
    if "RANK" in os.environ:
        right = of_process(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        sys.exit(0 if right else "the rows of this rank are wrong")
    main(cases)
