"""The functions of several ranks as torch's custom ops: results, gradients, fake functions, CUDA
graphs, and several process groups; beside float64 of all ranks in one process.

    python -m tests.gpu.torch_ranks [NAME...]           two GPUs, NCCL
    python -m tests.gpu.torch_ranks --cpu [NAME...]     two processes of this host, gloo
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import ranks
from tests.gpu.ranks import Place as _Place

MAX_SECONDS, EACH = 120.0, 40.0  # seconds of all cases, and of one
OPS = torch.ops.tkc
Tensors = Sequence[Any]


class Place:
    """Where a rank's tensors are, and the name of its group."""

    agree = _Place.agree

    def __init__(self, cpu: bool):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cpu = False  # `agree` asks torch's store
        self.device = torch.device("cpu" if cpu else f"cuda:{self.rank}")
        self.low = torch.float32 if cpu else torch.bfloat16
        self.tolerance = 1e-5 if cpu else 2e-2
        if cpu:
            dist.init_process_group("gloo", rank=self.rank, world_size=self.world)
        else:
            torch.cuda.set_device(self.rank)
            dist.init_process_group("nccl", device_id=self.device)
        from tkc.kernels.distributed import torch_ops

        self.ops = torch_ops
        self.group = dist.group.WORLD.group_name

    def leave(self) -> None:
        """Rank 0, which has torch's store, leaves last."""
        self.ops.close_groups()
        store = dist.distributed_c10d._get_default_store()
        if self.rank:
            store.set(f"left-{self.rank}", "1")
        else:
            store.wait([f"left-{r}" for r in range(1, self.world)])

    def made(self, shapes: Sequence[tuple], seed: int = 0) -> list[list[torch.Tensor]]:
        """Tensors of each rank, float64, that are numbers of the low type; all ranks make the
        same.
        """
        make = torch.Generator().manual_seed(seed)
        return [
            [torch.randn(s, generator=make).to(self.low).double() for s in shapes]
            for _ in range(self.world)
        ]


class Case(NamedTuple):
    """shapes: of a rank's tensors; call(place, *tensors): its result; want(tensors of every rank):
    what every rank gets; more: tensors of each rank without gradients.
    """

    shapes: Sequence[tuple]
    call: Callable
    want: Callable[[Sequence[Tensors]], list[torch.Tensor]]
    more: Callable[[int], list[torch.Tensor]] = lambda rank: []


def total(every: Sequence[Tensors]) -> torch.Tensor:
    return sum(x[0] for x in every)


def product(every: Sequence[Tensors]) -> torch.Tensor:
    return sum(a @ w for a, w in every)


def gathered_product(every: Sequence[Tensors]) -> list[torch.Tensor]:
    return [torch.cat([a for a, _ in every]) @ w for _, w in every]


def attended(causal: bool, balanced: bool, every: Sequence[Tensors]) -> list[torch.Tensor]:
    world, n = len(every), every[0][0].shape[1]
    pieces = torch.arange(world * n).chunk(2 * world)
    order = [(r, -1 - r) if balanced else (2 * r, 2 * r + 1) for r in range(world)]
    places = torch.cat([pieces[i] for both in order for i in both])
    q, k, v = (torch.cat([x[i] for x in every], 1) for i in range(3))
    scores = q @ k.mT / q.shape[2] ** 0.5
    if causal:
        scores = scores.masked_fill(places[:, None] < places, -torch.inf)
    return list((scores.softmax(-1) @ v).chunk(world, 1))


EXPERTS, TOP = 8, 2


def experts_of(rank: int) -> torch.Tensor:
    make = torch.Generator().manual_seed(90 + rank)
    return torch.randint(0, EXPERTS, (24, TOP), generator=make).int()


def goes(source: int, to: int, world: int) -> torch.Tensor:
    each = EXPERTS // world
    return (experts_of(source) // each == to).any(1).double()[:, None]


def dispatched(every: Sequence[Tensors]) -> list[torch.Tensor]:
    world = len(every)
    return [
        torch.stack([every[s][0] * goes(s, r, world) for s in range(world)]) for r in range(world)
    ]


def combined(every: Sequence[Tensors]) -> list[torch.Tensor]:
    world = len(every)
    return [sum(every[r][0][s] * goes(s, r, world) for r in range(world)) for s in range(world)]


def ring(causal: bool, balanced: bool) -> Case:
    def call(p: Place, q: Any, k: Any, v: Any) -> Any:
        return OPS.ring_attention(q, k, v, causal, balanced, True, p.group)[0]

    return Case([(2, 64, 64)] * 3, call, partial(attended, causal, balanced))


W = 2
CASES = {
    "all_reduce": Case(
        [(3, 500)], lambda p, x: OPS.all_reduce(x, p.group), lambda e: [total(e)] * len(e)
    ),
    "all_gather": Case(
        [(7, 33)],
        lambda p, x: OPS.all_gather(x, p.group),
        lambda e: [torch.stack([x for (x,) in e])] * len(e),
    ),
    "reduce_scatter": Case(
        [(W, 5, 40)], lambda p, x: OPS.reduce_scatter(x, p.group), lambda e: list(total(e))
    ),
    "all_to_all": Case(
        [(W, 6, 20)],
        lambda p, x: OPS.all_to_all(x, p.group),
        lambda e: [torch.stack([x[r] for (x,) in e]) for r in range(len(e))],
    ),
    "all_gather_matmul": Case(
        [(64, 128), (128, 96)],
        lambda p, a, w: OPS.all_gather_matmul(a, w, p.group),
        gathered_product,
    ),
    "all_gather_matmul, of a transpose": Case(
        [(128, 64), (96, 128)],
        lambda p, a, w: OPS.all_gather_matmul(a.T, w.T, p.group),
        lambda e: gathered_product([(a.T, w.T) for a, w in e]),
    ),
    "matmul_reduce_scatter": Case(
        [(128, 64), (64, 96)],
        lambda p, a, w: OPS.matmul_reduce_scatter(a, w, p.group),
        lambda e: list(product(e).chunk(len(e))),
    ),
    "matmul_all_reduce": Case(
        [(128, 64), (64, 96)],
        lambda p, a, w: OPS.matmul_all_reduce(a, w, p.group),
        lambda e: [product(e)] * len(e),
    ),
    "ring_attention": ring(False, False),
    "ring_attention, causal": ring(True, False),
    "ring_attention, balanced": ring(True, True),
    "dispatch": Case(
        [(24, 64)],
        lambda p, x, experts: OPS.dispatch(x, experts, EXPERTS, p.group)[0],
        dispatched,
        lambda r: [experts_of(r)],
    ),
    "combine": Case(
        [(W, 24, 64)],
        lambda p, rows, experts: OPS.combine(rows, experts, EXPERTS, p.group),
        combined,
        lambda r: [torch.stack([experts_of(s) for s in range(W)])],
    ),
}


def close(place: Place, got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    error = (got.detach().double().cpu() - want).abs().max() / want.abs().max()
    assert got.shape == want.shape and error <= place.tolerance, f"{what}: error {error:.1e}"


def differentiated(case: Case, place: Place) -> None:
    """The result and the gradients of the sum of all ranks' losses, twice with other numbers; and
    the same compiled, by torch's own compiler without its back end.
    """
    call = partial(case.call, place)
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for turn, run in enumerate((call, call, compiled)):
        every = place.made(case.shapes, turn)
        for one in every:
            for x in one:
                x.requires_grad_()
        want = case.want(every)
        shares = [r + torch.linspace(-1, 1, y.numel()).reshape(y.shape) for r, y in enumerate(want)]
        shares = [x.to(place.low).double() for x in shares]
        sum((y * share).sum() for y, share in zip(want, shares, strict=True)).backward()
        mine = [x.detach().to(place.device, place.low) for x in every[place.rank]]
        for x in mine:
            x.requires_grad_()
        got = run(*mine, *(x.to(place.device) for x in case.more(place.rank)))
        close(place, got, want[place.rank].detach(), f"turn {turn}, the result")
        got.backward(shares[place.rank].to(place.device, place.low))
        for i, x in enumerate(mine):
            close(place, x.grad, every[place.rank][i].grad, f"turn {turn}, gradient {i}")


class Seen(TorchDispatchMode):
    """Sees calls of our ops."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).startswith("tkc."):
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def checked(place: Place) -> None:
    """Schemas, fake functions and autograd, by torch's own check, of every op that has a case."""
    for case in CASES.values():
        mine = [x.to(place.device, place.low) for x in place.made(case.shapes)[place.rank]]
        more = [x.to(place.device) for x in case.more(place.rank)]
        with Seen() as seen:
            case.call(place, *mine, *more)
        ((op, arguments),) = seen.calls
        arguments = tuple(
            x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x
            for x in arguments
        )
        tests = "test_schema", "test_autograd_registration", "test_faketensor"
        torch.library.opcheck(op, arguments, test_utils=tests)


def several_groups(place: Place) -> None:
    """Calls of two groups of the same ranks by turns, and of a group of this rank alone."""
    names = [place.group, dist.new_group([*range(place.world)]).group_name]
    alone = [dist.new_group([r]) for r in range(place.world)][place.rank].group_name
    a, w = (x.to(place.device, place.low) for x in place.made([(64, 64), (64, 64)], 5)[place.rank])
    want = gathered_product(place.made([(64, 64), (64, 64)], 5))[place.rank]
    for turn in range(6):
        close(place, OPS.all_gather_matmul(a, w, names[turn % 2]), want, f"turn {turn}")
        got = OPS.all_reduce(a, names[(turn + 1) % 2])
        close(place, got, total(place.made([(64, 64), (64, 64)], 5)), f"turn {turn}, the sum")
        close(place, OPS.all_reduce(a, alone), a.double().cpu(), f"turn {turn}, alone")


def recorded(place: Place) -> None:
    """Results and gradients that a CUDA graph has, replayed with other numbers."""
    a = torch.zeros(256, 1024, device=place.device, dtype=place.low, requires_grad=True)
    w = torch.zeros(1024, 640, device=place.device, dtype=place.low, requires_grad=True)

    def step() -> tuple:
        y = OPS.all_gather_matmul(a, w, place.group)
        z = OPS.matmul_reduce_scatter(y, w.T, place.group)
        return z, *torch.autograd.grad(z.square().sum(), (a, w))

    def filled(turn: int) -> list[torch.Tensor]:
        every = place.made([(256, 1024), (1024, 640)], turn)
        with torch.no_grad():
            for x, one in zip((a, w), every[place.rank], strict=True):
                x.copy_(one / 32)
        for one in every:
            for x in one:
                x.div_(32).requires_grad_()
        y = gathered_product(every)
        z = sum(one @ w.T for one, (_, w) in zip(y, every, strict=True)).chunk(place.world)
        sum(one.square().sum() for one in z).backward()
        mine = every[place.rank]
        return [z[place.rank].detach(), mine[0].grad, mine[1].grad]

    filled(0)
    step()
    if place.device.type == "cpu":
        return
    torch.cuda.synchronize()
    assert not place.agree(False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for turn in range(1, 6):
        want = filled(turn)
        graph.replay()
        torch.cuda.synchronize()
        for i, (x, y) in enumerate(zip(found, want, strict=True)):
            close(place, x, y, f"replay {turn}, {i}")


PARTS: dict[str, Callable[[Place], None]] = {
    **{name: partial(differentiated, case) for name, case in CASES.items()},
    "schemas and fake functions": checked,
    "several groups": several_groups,
    "in a graph": recorded,
}


def outcomes(
    names: Sequence[str], cpu: bool, limit: float = MAX_SECONDS, each: float = EACH
) -> dict[str, str]:
    """What became of each part on two ranks."""
    os.environ["RANKS_CPU"] = str(int(cpu))
    return ranks.run("tests.gpu.torch_ranks", names, limit, each)


def main() -> int:
    names = [a for a in sys.argv[1:] if a in PARTS]
    if "--rank" in sys.argv:
        place = Place(os.environ["RANKS_CPU"] == "1")
        ranks.work(names, PARTS, place, place.agree)
        place.leave()
        ranks.end()
    became = outcomes(names or list(PARTS), "--cpu" in sys.argv)
    return ranks.report("torch's ops of several ranks", became)


if __name__ == "__main__":
    sys.exit(main())
