"""Functions of several ranks on GPUs, over torch's symmetric memory, against float64.

    python -m tests.gpu.ranks [NAME...]           two GPUs; a case that hangs costs itself alone
    python -m tests.gpu.ranks --cpu [NAME...]     the same cases as two processes of this host

A case makes a few variants of its data, each with its reference; launches go out one behind the
other, variants in turn, one rank or the other late, and every result is compared: with the
reference, and bit by bit with that of the same variant before it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tkc
from benchmarks import ranks
from tkc.kernels import distributed

TIMES, VARIANTS = 50, 5
MAX_SECONDS, EACH = 170.0, 30.0  # seconds of all cases, and of one


class Place:
    """Where a rank's arrays are. wide: a float type whose results are not exact."""

    def __init__(self, cpu: bool):
        self.cpu, self.rank = cpu, int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.low = "float32" if cpu else "bfloat16"
        self.times = 10 if cpu else TIMES
        if cpu:
            name = f"tkc-ranks-{os.environ['MASTER_PORT']}"
            self.group: Any = distributed.Processes(name, self.rank, self.world, 60)
            return
        import torch
        import torch.distributed as dist

        torch.cuda.set_device(self.rank)
        device = torch.device("cuda", self.rank)
        dist.init_process_group("nccl", device_id=device)
        self.group = distributed.group_of_torch()

    def array(self, values: np.ndarray, dtype: str | None = None) -> Any:
        """An array of this rank; of float64 as the 16-bit type, unless told otherwise."""
        dtype = dtype or self.low
        if self.cpu:
            return values.astype(dtype)
        import torch

        return torch.from_numpy(values).cuda().to(getattr(torch, dtype))

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """What `array` has of them, as float64: the reference starts from the same numbers."""
        return self.numbers(self.array(values))

    def numbers(self, x: Any) -> np.ndarray:
        return x.astype(np.float64) if self.cpu else x.double().cpu().numpy()

    def late(self, turn: int) -> None:
        """This rank comes late, or the other: by up to 0.3 ms."""
        if not self.cpu and turn % 3 == self.rank:
            import torch

            torch.cuda._sleep(1000 * (turn * 7919 % 500))

    def same(self, x: Any, y: Any) -> bool:
        return x.tobytes() == y.tobytes() if self.cpu else bool((x == y).all())

    def wait(self) -> None:
        if not self.cpu:
            import torch

            torch.cuda.synchronize()

    def agree(self, failed: bool) -> bool:
        """Whether any rank has failed; not through NCCL, which a lost device would hold up."""
        if self.cpu:
            total = distributed.all_reduce(np.full(1, failed, np.float32), self.group)
            return bool(total[0])
        import torch.distributed as dist

        self.calls = getattr(self, "calls", 0) + 1
        store = dist.distributed_c10d._get_default_store()
        keys = [f"ranks-{self.calls}-{r}" for r in range(self.world)]
        store.set(keys[self.rank], "1" if failed else "0")
        return any([store.get(key) == b"1" for key in keys])  # noqa: C419  (all of them: a meeting)


Made = tuple[Callable[[], Any], np.ndarray, float]  # a call, what it gives, and its tolerance


def repeated(place: Place, make: Callable[[np.random.Generator], Made]) -> None:
    """Calls variant after variant, and looks at all results when all have been launched."""
    made = [make(np.random.default_rng(100 + v)) for v in range(VARIANTS)]
    results = []
    for turn in range(place.times):
        place.late(turn)
        results.append(made[turn % VARIANTS][0]())
    place.wait()
    bad = []
    for turn, got in enumerate(results):
        _, want, tolerance = made[turn % VARIANTS]
        if turn >= VARIANTS:
            if not place.same(got, results[turn % VARIANTS]):
                bad.append(f"turn {turn} has other bits than turn {turn % VARIANTS}")
            continue
        error = compared(place.numbers(got), want)
        if not error <= tolerance:
            bad.append(f"turn {turn}: {error:.2e} > {tolerance:.0e}{places(place, got, want)}")
    if bad:
        raise AssertionError(f"{len(bad)} of {place.times} turns: " + "; ".join(bad[:6]))


def compared(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference beside the largest number; not a number where one is none."""
    if got.shape != want.shape:
        raise AssertionError(f"the shape is {got.shape}, not {want.shape}")
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


def places(place: Place, got: Any, want: np.ndarray) -> str:
    """Where a result is wrong: how many of how many numbers, the first and the last of them."""
    off = ~(np.abs(place.numbers(got) - want) <= 0.05 * np.abs(want).max())
    if not off.any():
        return ""
    at = np.argwhere(off)
    return f" ({off.sum()} of {off.size} far off, from {at[0].tolist()} to {at[-1].tolist()})"


def tolerance(place: Place) -> float:
    return 1e-5 if place.cpu else 1e-2


def normal(random: np.random.Generator, place: Place, *shape: int) -> list[np.ndarray]:
    """Numbers of each rank, as they are in its array; all ranks make the same."""
    return [place.rounded(random.standard_normal(shape)) for _ in range(place.world)]


# ---- what the functions stand on ----------------------------------------------------------------
def memory(place: Place) -> None:
    """Symmetric memory: zeros at first, and every rank reads what the others wrote."""
    arrays = place.group.allocate((3, 1000), "float32")
    assert len(arrays) == place.world
    assert all(tuple(a.shape) == (3, 1000) for a in arrays)
    if not place.cpu:
        assert all(a.device == arrays[place.rank].device for a in arrays)
        assert len({a.data_ptr() for a in arrays}) == place.world
    assert not place.numbers(arrays[place.rank]).any()
    assert not place.agree(False)
    arrays[place.rank][:] = place.rank + 1
    place.wait()
    assert not place.agree(False)
    for r, array in enumerate(arrays):
        assert (place.numbers(array) == r + 1).all(), f"rank {place.rank} reads rank {r}'s"
    assert not place.agree(False)


@tkc.jit
def _read(x: tkc.peers, y, N: tkc.constexpr):
    """y [W, N]: a row a rank, by a rank that is known when the kernel runs."""
    r = tkc.program_id(0)
    tkc.store(y, (r, 0), tkc.load(x[r], (0,), (N,))[None, :])


def peers(place: Place) -> None:
    """A kernel reads what is of each rank; nothing waits in it."""
    x = place.group.peers((256,), "float32")
    x.own[:] = place.rank + 1
    place.wait()
    assert not place.agree(False)
    y = place.group.zeros((place.world, 256), "float32")
    _read[place.world](x, y, N=256)
    place.wait()
    want = np.arange(1, place.world + 1)[:, None]
    assert (place.numbers(y) == want).all(), place.numbers(y)
    assert not place.agree(False)


@tkc.jit
def _shift(x: tkc.peers, flags: tkc.peers, y, turns, N: tkc.constexpr):
    """Gives each rank the block that the next one has written: by turns in halves of x."""
    me, W, i = tkc.rank(), tkc.world(), tkc.program_id(0)
    turn = turns[i] + 1
    tkc.store(x[me][turn % 2], (i * N,), tkc.full((N,), me * 1000 + turn, tkc.float32))
    for r in tkc.static_range(W):
        tkc.signal(flags[r], (me, i), turn)
    for r in tkc.static_range(W):
        tkc.wait(flags[me], (r, i), turn)
    tkc.store(y, (i * N,), tkc.load(x[(me + 1) % W][turn % 2], (i * N,), (N,)))
    tkc.store(turns, (i,), turn)


def signal(place: Place) -> None:
    """Signals and waits: what is read from a peer is of this turn."""
    group, programs, n = place.group, 64, 256
    x = group.peers((2, programs * n), "float32")
    flags = group.peers((place.world, programs), "int32")
    turns = group.zeros((programs,), "int32")
    results = []
    for turn in range(place.times):
        place.late(turn)
        results.append(group.empty((programs * n,), "float32"))
        group.begin()
        _shift[programs](x, flags, results[-1], turns, N=n)
    place.wait()
    peer = (place.rank + 1) % place.world
    for turn, got in enumerate(results, 1):
        seen = np.unique(place.numbers(got))
        assert seen.tolist() == [peer * 1000 + turn], f"turn {turn} has {seen[:8].tolist()}"


# ---- collectives --------------------------------------------------------------------------------
def all_reduce(n: int, shots: int) -> Callable[[Place], None]:
    def case(place: Place) -> None:
        def make(random: np.random.Generator) -> Made:
            data = normal(random, place, n)
            x = place.array(data[place.rank])
            call = lambda: distributed.all_reduce(x, place.group, shots)  # noqa: E731
            return call, sum(data), tolerance(place)

        repeated(place, make)

    return case


def all_gather(place: Place) -> None:
    def make(random: np.random.Generator) -> Made:
        data = normal(random, place, 37, 1111)
        x = place.array(data[place.rank])
        return lambda: distributed.all_gather(x, place.group), np.stack(data), 0.0

    repeated(place, make)


def reduce_scatter(place: Place) -> None:
    def make(random: np.random.Generator) -> Made:
        data = normal(random, place, place.world, 50_001)
        x, want = place.array(data[place.rank]), sum(data)[place.rank]
        return lambda: distributed.reduce_scatter(x, place.group), want, tolerance(place)

    repeated(place, make)


def all_to_all(place: Place) -> None:
    def make(random: np.random.Generator) -> Made:
        data = normal(random, place, place.world, 9, 4096)
        x, want = place.array(data[place.rank]), np.stack([d[place.rank] for d in data])
        return lambda: distributed.all_to_all(x, place.group), want, 0.0

    repeated(place, make)


def replayed(place: Place) -> None:
    """An all_reduce and a product of gathered rows that a CUDA graph has, of data that change
    between replays.
    """
    x, rows = place.array(np.zeros(100_000), "float32"), place.array(np.zeros((128, 256)))
    w = place.array(np.eye(256))

    def calls() -> tuple[Any, Any]:
        return (
            distributed.all_reduce(x, place.group),
            distributed.all_gather_matmul(rows, w, place.group),
        )

    calls()  # what they need is allocated
    if place.cpu:
        return
    import torch

    place.wait()
    assert not place.agree(False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total, product = calls()
    for turn in range(place.times):
        x.fill_(turn + place.rank)
        rows.fill_(turn + place.rank)
        graph.replay()
        want = place.world * turn + sum(range(place.world))
        seen = torch.unique(total).tolist()
        assert seen == [want], f"replay {turn} gave {seen[:8]}, not {want}"
        for r, part in enumerate(product.split(128)):
            seen = torch.unique(part).tolist()
            assert seen == [turn + r], f"replay {turn}: rank {r}'s rows are {seen[:8]}"


# ---- products, attention, experts ---------------------------------------------------------------
def all_gather_matmul(m: int, k: int, n: int) -> Callable[[Place], None]:
    def case(place: Place) -> None:
        def make(random: np.random.Generator) -> Made:
            a, w = normal(random, place, m, k), normal(random, place, k, n)
            own, columns = place.array(a[place.rank]), place.array(w[place.rank])
            want = np.concatenate(a) @ w[place.rank]
            call = lambda: distributed.all_gather_matmul(own, columns, place.group)  # noqa: E731
            return call, want, tolerance(place)

        repeated(place, make)

    return case


def summed(function: Callable, scattered: bool, m: int, k: int, n: int) -> Callable[[Place], None]:
    """m: rows of each rank."""

    def case(place: Place) -> None:
        def make(random: np.random.Generator) -> Made:
            a, w = normal(random, place, place.world * m, k), normal(random, place, k, n)
            own, rows = place.array(a[place.rank]), place.array(w[place.rank])
            want = sum(left @ right for left, right in zip(a, w, strict=True))
            if scattered:
                want = np.split(want, place.world)[place.rank]
            return lambda: function(own, rows, place.group), want, 2 * tolerance(place)

        repeated(place, make)

    return case


def _positions(place: Place, n: int, balanced: bool) -> list[np.ndarray]:
    """Where in the sequence the rows of each rank are."""
    pieces = np.split(np.arange(place.world * n), 2 * place.world)
    order = [(r, -1 - r) if balanced else (2 * r, 2 * r + 1) for r in range(place.world)]
    return [np.concatenate([pieces[i] for i in both]) for both in order]


def ring_attention(
    causal: bool, n: int = 512, balanced: bool = False, back: bool = False
) -> Callable[[Place], None]:
    """back: of the gradients, one behind the other."""

    def case(place: Place) -> None:
        shape = (2, n if not place.cpu else 96, 128)
        at = _positions(place, shape[1], balanced)

        def make(random: np.random.Generator) -> Made:
            q, k, v, grad = (normal(random, place, *shape) for _ in range(4))
            own = [place.array(x[place.rank]) for x in (q, k, v)]
            change = place.array(grad[place.rank])

            def call() -> Any:
                y, sums = distributed.ring_attention(*own, place.group, causal, balanced, True)
                if not back:
                    return y
                found = distributed.ring_attention_backward(
                    change, *own, y, sums, place.group, causal, balanced, deterministic=True
                )
                return np.stack(found) if place.cpu else stacked(found)

            results = _attention(*(np.concatenate(x, 1) for x in (q, k, v, grad)), at, causal)
            mine = slice(place.rank * shape[1], (place.rank + 1) * shape[1])
            want = [x[:, mine] for x in results]
            return call, np.stack(want[1:]) if back else want[0], (2 + back) * tolerance(place)

        repeated(place, make)

    return case


def stacked(arrays: Any) -> Any:
    import torch

    return torch.stack(arrays)


def _attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    grad: np.ndarray,
    at: list[np.ndarray],
    causal: bool,
) -> tuple[np.ndarray, ...]:
    """Attention of rows at these places, and the gradients of q, k and v."""
    places, scale = np.concatenate(at), q.shape[2] ** -0.5
    scores = q @ k.transpose(0, 2, 1) * scale
    if causal:
        scores = np.where(places[:, None] >= places, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    into = grad @ v.transpose(0, 2, 1)
    change = powers * (into - (powers * into).sum(-1, keepdims=True)) * scale
    return (
        powers @ v,
        change @ k,
        change.transpose(0, 2, 1) @ q,
        powers.transpose(0, 2, 1) @ grad,
    )


def experts(back: bool) -> Callable[[Place], None]:
    """dispatch, and with `back` also combine."""

    def case(place: Place) -> None:
        tokens, d, top, number = 200, 1000, 3, 16
        world, each = place.world, number // place.world

        def make(random: np.random.Generator) -> Made:
            x = normal(random, place, tokens, d)
            chosen = random.integers(0, number, (world, tokens, top))
            goes = (chosen[..., None] // each == np.arange(world)).any(2)  # [W, T, W]
            own = place.array(x[place.rank])
            mine = place.array(chosen[place.rank], "int32")

            def call() -> Any:
                rows, every = distributed.dispatch(own, mine, number, place.group)
                return distributed.combine(rows, every, number, place.group) if back else rows

            if back:
                return call, x[place.rank] * goes[place.rank].sum(1)[:, None], tolerance(place)
            return call, np.stack(x) * goes[:, :, place.rank, None], 0.0

        repeated(place, make)

    return case


CASES: dict[str, Callable[[Place], None]] = {
    "memory": memory,
    "peers": peers,
    "signal": signal,
    "all_reduce, one shot, few": all_reduce(1000, 1),
    "all_reduce, one shot": all_reduce(1_000_003, 1),
    "all_reduce, two shots": all_reduce(300_001, 2),
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "in a graph": replayed,
    "all_gather_matmul": all_gather_matmul(512, 512, 384),
    "all_gather_matmul, odd": all_gather_matmul(200, 328, 136),
    "all_gather_matmul, many rows": all_gather_matmul(4096, 256, 1024),
    "all_gather_matmul, single columns": all_gather_matmul(130, 77, 51),
    "matmul_reduce_scatter": summed(distributed.matmul_reduce_scatter, True, 256, 512, 384),
    "matmul_reduce_scatter, odd": summed(distributed.matmul_reduce_scatter, True, 199, 328, 136),
    "matmul_all_reduce": summed(distributed.matmul_all_reduce, False, 256, 256, 256),
    "ring_attention": ring_attention(False),
    "ring_attention, causal": ring_attention(True),
    "ring_attention, balanced": ring_attention(True, balanced=True),
    "ring_attention, backward": ring_attention(False, back=True),
    "ring_attention, balanced, backward": ring_attention(True, balanced=True, back=True),
    "dispatch": experts(False),
    "dispatch and combine": experts(True),
}


DYING_S = 40.0  # from the death of a rank to the end of the other one, and what comes before


def dying(in_a_graph: bool) -> None:
    """Rank 1 dies between two calls, or replays of one; rank 0 waits for it."""
    place = Place("--cpu" in sys.argv)
    x = place.array(np.zeros(1000), "float32")

    def call() -> Any:
        return distributed.all_reduce(x, place.group)

    call()
    place.wait()
    assert not place.agree(False)
    if in_a_graph:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        call = graph.replay
        call()
        place.wait()
        assert not place.agree(False)
    if place.rank == 1:
        os._exit(7)
    call()
    place.wait()


def of_a_death(cpu: bool, in_a_graph: bool = False) -> tuple[int | None, str]:
    """How rank 0 ends where rank 1 dies: its exit code (None: not at all), and what it said."""
    options = ["--cpu"] * cpu + ["--graph"] * in_a_graph
    started = ranks.processes("tests.gpu.ranks", ["--dying", *options], 2, stderr=subprocess.PIPE)
    try:
        _, said = started[0].communicate(timeout=DYING_S)
        return started[0].returncode, said.decode()
    except subprocess.TimeoutExpired:
        return None, "it goes on"
    finally:
        for process in started:
            process.kill()
            process.wait()


def outcomes(names: list[str], cpu: bool, limit: float = MAX_SECONDS) -> dict[str, str]:
    """What became of each case on two ranks."""
    os.environ["RANKS_CPU"] = str(int(cpu))
    return ranks.run("tests.gpu.ranks", names, limit, EACH)


def main() -> int:
    names = [a for a in sys.argv[1:] if a in CASES]
    if "--dying" in sys.argv:
        dying("--graph" in sys.argv)
        return 0
    if "--rank" in sys.argv:
        place = Place(os.environ["RANKS_CPU"] == "1")
        ranks.work(names, CASES, place, place.agree)
        place.group.close()
        ranks.end()
    became = outcomes(names or list(CASES), "--cpu" in sys.argv)
    return ranks.report("functions of several ranks", became)


if __name__ == "__main__":
    sys.exit(main())
