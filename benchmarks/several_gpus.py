"""Functions of several ranks beside NCCL and torch's symmetric memory, on two GPUs of a host.

    python -m benchmarks.several_gpus [--quick] [--out DIR] [--limit SECONDS] [PART...]

A round's time is the median of calls, each between two CUDA events, queued behind a sleeping
kernel so that the host is not measured; of two ranks, the slower one's. Rounds go through all
contenders in shuffled order; tables have the median of rounds and their quartiles. What the library
does is the first of ours, others are variants. A part that hangs costs itself alone.
Tables are printed at the end and written to DIR/several_gpus.txt, figures to several_gpus.jsonl.
Every result of ours is compared with the rivals' before it is timed. Multicast stays off.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import ranks

PARTS = ("all_reduce", "collectives", "gather_product", "product_scatter", "dispatch", "ring")
EACH = 55.0  # seconds of a part, compilation too
QUICK = 5, 6  # rounds, and calls of one that are timed
FULL = 11, 10
WARM = 2  # calls before them
GATHERED = {"mlp up": (8192, 14336), "qkv": (8192, 5120)}  # K, N of a rank: Llama 70B on two
SUMMED = {"mlp down": (14336, 8192), "out": (4096, 8192)}
ROWS = (512, 2048, 8192)
KIB = 1024


class Race:
    """What a part needs: this rank's device and group, a clock, and where figures go."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric

        from tkc.kernels import distributed

        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(self.rank)
        self.device = torch.device("cuda", self.rank)
        dist.init_process_group("nccl", device_id=self.device)
        self.torch, self.dist, self.symmetric, self.tkc = torch, dist, symmetric, distributed
        self.group, self.name = distributed.group_of_torch(), dist.group.WORLD.group_name
        self.rounds, self.calls = QUICK if os.environ["RACES_QUICK"] == "1" else FULL
        self.meetings = 0

    def agree(self, failed: bool) -> bool:
        """Whether any rank has failed; not through NCCL, which a lost device would hold up."""
        self.meetings += 1
        store = self.dist.distributed_c10d._get_default_store()
        keys = [f"races-{self.meetings}-{r}" for r in range(self.world)]
        store.set(keys[self.rank], "1" if failed else "0")
        seen = [store.get(key) for key in keys]
        return b"1" in seen

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device=self.device, dtype=self.torch.bfloat16)

    def weights(self, k: int, n: int) -> Any:
        return self.normal(k, n).mul_(k**-0.5)

    def meet(self) -> None:
        self.torch.cuda.synchronize()
        self.agree(False)

    def microseconds(self, call: Callable[[], Any]) -> float:
        """The median time of a call, of the slower rank."""
        torch = self.torch
        for _ in range(WARM):
            call()
        self.meet()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(self.calls + 1)]
        torch.cuda._sleep(int(12e-3 * 1.6e9))
        call()
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        pairs = zip(events, events[1:], strict=False)
        took = torch.tensor(
            statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3, device=self.device
        )
        self.dist.all_reduce(took, op=self.dist.ReduceOp.MAX)
        return float(took)

    def row(
        self,
        part: str,
        what: str,
        ours: dict[str, Callable[[], Any]],
        rivals: dict[str, Callable[[], Any]],
        want: Any,
        bounds: dict[str, Callable[[], Any]] | None = None,
        **figures: float,
    ) -> None:
        """Times all, ours and rivals, and writes a row of a part's table. want: the result that
        ours has to have; where one has not, its error stands in place of the times. bounds: parts
        of the work alone, none of which can be beaten by the whole.
        """
        line: dict[str, Any] = {"part": part, "what": what}
        calls: dict[tuple[str, str], Callable[[], Any]] = {}
        for kind, of in ("rivals", rivals), ("ours", ours), ("bounds", bounds or {}):
            line[kind] = {}
            for name, call in of.items():
                # told before it is begun: the last line before a hang says what hung
                if self.rank == 0:
                    print(f"   {part}, {what}: {kind}, {name}", flush=True)
                line[kind][name] = wrong = self._wrong(call, want if kind == "ours" else None)
                if not wrong:
                    calls[kind, name] = call
        for (kind, name), times in self._rounds(calls).items():
            line[kind][name] = [statistics.median(times), *statistics.quantiles(times, n=4)[::2]]
        if self.rank == 0:
            line |= figures
            with open(os.environ["RACES_FILE"], "a") as file:
                file.write(json.dumps(line) + "\n")
            print(shown(line), flush=True)

    def _wrong(self, call: Callable[[], Any], want: Any) -> str:
        """What is wrong with a call on any rank; empty if nothing is."""
        wrong = ""
        try:
            got = call()
            if want is not None and not (error := self._error(got, want)) < 2e-2:
                wrong = f"WRONG, error {error:.1e}"
        except Exception as caught:  # of one contender: the others go on
            wrong = f"{type(caught).__name__}: {str(caught)[:120]}"
        return (wrong or "failed on another rank") if self.agree(bool(wrong)) else ""

    def _rounds(
        self, calls: dict[tuple[str, str], Callable[[], Any]]
    ) -> dict[tuple[str, str], list[float]]:
        """The times of all rounds, of each call."""
        times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for number in range(self.rounds):
            order = list(calls)
            random.Random(number).shuffle(order)  # alike on all ranks
            for key in order:
                times[key].append(self.microseconds(calls[key]))
        return times

    def _error(self, got: Any, want: Any) -> float:
        got, want = got.double().reshape(-1), want.double().reshape(-1)
        return float((got - want).norm() / want.norm())

    def symmetric_buffer(self, n: int) -> Any:
        """A buffer for torch's own functions; refuses where torch would use multicast."""
        t = self.symmetric.empty(n, dtype=self.torch.bfloat16, device=self.device)
        if self.symmetric.rendezvous(t, self.dist.group.WORLD).multicast_ptr:
            raise RuntimeError("torch has made a multicast address")
        return t


# ---- parts --------------------------------------------------------------------------------------
def all_reduce(r: Race) -> None:
    ops, sizes = r.torch.ops.symm_mem, (64, 256, 1024, 4096, 16384)
    room = r.symmetric_buffer(max(sizes) * KIB // 2)
    for kib in sizes:
        x = r.normal(kib * KIB // 2)
        n = len(x)
        own, want = x.clone(), x.float()
        r.dist.all_reduce(want)
        room[:n].copy_(x)
        ours = {
            "tkc" if shots is None else f"{shots} shots": lambda s=shots, x=x: r.tkc.all_reduce(
                x, r.group, s
            )
            for shots in (None, 2)
        }
        rivals = {
            "nccl": lambda x=own: r.dist.all_reduce(x),
            "one_shot": lambda n=n: ops.one_shot_all_reduce(room[:n], "sum", r.name),
            "two_shot": lambda n=n: ops.two_shot_all_reduce_(room[:n], "sum", r.name),
        }
        r.row("all_reduce", f"{kib} KiB", ours, rivals, want, must=1.0, goal=0.8)


def collectives(r: Race) -> None:
    for kib in (64, 1024, 16384):
        x = r.normal(r.world, kib * KIB // 2 // r.world)
        part, whole, other = r.torch.empty_like(x[0]), r.torch.empty_like(x), x.clone()
        own, gather = x[0].contiguous(), r.dist.all_gather_into_tensor
        gather(whole.view(-1), own)
        gathered = whole.clone()
        r.row(
            "collectives",
            f"all_gather {kib} KiB",
            {"tkc": lambda own=own: r.tkc.all_gather(own, r.group)},
            {"nccl": lambda own=own, y=whole, gather=gather: gather(y.view(-1), own)},
            gathered,
        )
        r.dist.reduce_scatter_tensor(part, x.view(-1))
        summed = part.clone()
        r.row(
            "collectives",
            f"reduce_scatter {kib} KiB",
            {"tkc": lambda x=x: r.tkc.reduce_scatter(x, r.group)},
            {"nccl": lambda x=x, p=part: r.dist.reduce_scatter_tensor(p, x.view(-1))},
            summed,
        )
        r.dist.all_to_all_single(whole, x)
        r.row(
            "collectives",
            f"all_to_all {kib} KiB",
            {"tkc": lambda x=x: r.tkc.all_to_all(x, r.group)},
            {"nccl": lambda x=x, y=other: r.dist.all_to_all_single(y, x)},
            whole,
        )


def gather_product(r: Race) -> None:
    torch, kernels = r.torch, library()
    r.symmetric_buffer(1 << 20)
    for name, (k, n) in GATHERED.items():
        w = r.weights(k, n)
        for m in ROWS:
            a, full = r.normal(m // r.world, k), r.normal(m, k)
            y = torch.empty(m, n, device=r.device, dtype=torch.bfloat16)

            def gather(a: Any = a, full: Any = full) -> None:
                r.dist.all_gather_into_tensor(full, a)

            def then(full: Any = full, y: Any = y, w: Any = w, gather: Any = gather) -> None:
                gather()
                torch.mm(full, w, out=y)

            then()
            bounds = {
                "mm": lambda full=full, y=y, w=w: torch.mm(full, w, out=y),
                "tkc.matmul": lambda full=full, w=w: kernels.matmul(full, w),
                "gather": gather,
            }
            must = {("qkv", 512): 0.90, ("qkv", 2048): 0.95, ("mlp up", 512): 0.95}
            r.row(
                "gather_product",
                f"{name} M={m} K={k} N={n}",
                {"tkc": lambda a=a, w=w: r.tkc.all_gather_matmul(a, w, r.group)},
                {
                    "nccl, mm": then,
                    "fused": lambda a=a, w=w: torch.ops.symm_mem.fused_all_gather_matmul(
                        a, [w], 0, r.name
                    ),
                },
                y.clone(),
                must=must.get((name, m), 1.01),
                bounds=bounds,
            )


def product_scatter(r: Race) -> None:
    torch, kernels = r.torch, library()
    r.symmetric_buffer(1 << 20)
    for name, (k, n) in SUMMED.items():
        w = r.weights(k, n)
        for m in ROWS:
            a, full = r.normal(m, k), r.normal(m, n)
            part = torch.empty(m // r.world, n, device=r.device, dtype=torch.bfloat16)

            def scatter(part: Any = part, full: Any = full) -> None:
                r.dist.reduce_scatter_tensor(part, full)

            def then(a: Any = a, w: Any = w, full: Any = full, scatter: Any = scatter) -> None:
                torch.mm(a, w, out=full)
                scatter()

            then()
            want = part.clone()
            bounds = {
                "mm": lambda a=a, w=w, full=full: torch.mm(a, w, out=full),
                "tkc.matmul": lambda a=a, w=w: kernels.matmul(a, w),
                "scatter": scatter,
            }
            r.row(
                "product_scatter",
                f"{name} M={m} K={k} N={n}",
                {"tkc": lambda a=a, w=w: r.tkc.matmul_reduce_scatter(a, w, r.group)},
                {
                    "mm, nccl": then,
                    "fused": lambda a=a, w=w: torch.ops.symm_mem.fused_matmul_reduce_scatter(
                        a, w, "sum", 0, r.name
                    ),
                },
                want,
                must=1.01,
                bounds=bounds,
            )


def dispatch(r: Race) -> None:
    """8192 rows a rank, 7168 wide, the 8 best of 256 experts, half of which the peer has."""
    torch, dist = r.torch, r.dist
    rows, width, top, number = 8192, 7168, 8, 256
    torch.manual_seed(r.rank)
    x = r.normal(rows, width)
    experts = torch.rand(rows, number, device=r.device).topk(top, 1).indices.int()
    home = experts // (number // r.world)
    once = [torch.nonzero((home == p).any(1)).flatten() for p in range(r.world)]
    source, give = torch.cat(once), torch.tensor([len(o) for o in once], device=r.device)
    take = torch.empty_like(give)
    dist.all_to_all_single(take, give)
    give, take = give.tolist(), take.tolist()
    sent = torch.empty(sum(give), width, device=r.device, dtype=x.dtype)
    came = torch.empty(sum(take), width, device=r.device, dtype=x.dtype)

    def there() -> None:
        torch.index_select(x, 0, source, out=sent)
        dist.all_to_all_single(came, sent, take, give)

    there()
    # what ours gives has the same rows, at their own places, zeros between
    every = torch.empty(r.world, rows, top, device=r.device, dtype=torch.int32)
    dist.all_gather_into_tensor(every, experts)
    mine = (every // (number // r.world) == r.rank).any(2)
    want = torch.zeros(r.world, rows, width, device=r.device, dtype=x.dtype)
    want[mine] = came
    r.row(
        "dispatch",
        f"dispatch {rows} x {width}, top {top}",
        {"tkc": lambda: r.tkc.dispatch(x, experts, number, r.group)[0]},
        {"nccl, a copy a rank": there},
        want,
        must=0.65,
        goal=0.59,
    )
    back = x * (
        torch.stack([(home == p).any(1) for p in range(r.world)]).sum(0)[:, None].to(x.dtype)
    )
    r.row(
        "dispatch",
        f"combine {rows} x {width}, top {top}",
        {"tkc": lambda: r.tkc.combine(want, every, number, r.group)},
        {"nccl, rows alone": lambda: dist.all_to_all_single(sent, came, give, take)},
        back,
    )


def ring(r: Race) -> None:
    """16384 rows a rank, 16 heads of 128."""
    torch, kernels = r.torch, library()
    rows, heads, d = 16384, 16, 128
    q, k, v = (r.normal(heads, rows, d) for _ in range(3))
    far = torch.empty(r.world, 2, heads, rows, d, device=r.device, dtype=q.dtype)
    both = torch.stack((k, v))
    r.dist.all_gather_into_tensor(far, both)
    keys, values = (torch.cat([far[p, i] for p in range(r.world)], 1)[None] for i in (0, 1))
    attend = torch.nn.functional.scaled_dot_product_attention
    want = attend(q[None], keys, values)[0]

    def exchanged() -> None:
        r.dist.all_gather_into_tensor(far, both)
        attend(q[None], keys, values)

    bounds = {
        "2 local, torch": lambda: [attend(q[None], k[None], v[None]) for _ in range(2)],
        "2 local, tkc": lambda: [kernels.attention(q[None], k[None], v[None]) for _ in range(2)],
    }
    r.row(
        "ring",
        f"2 x {rows}, H={heads}, D={d}",
        {"tkc": lambda: r.tkc.ring_attention(q, k, v, r.group)},
        {"nccl gather, sdpa": exchanged},
        want,
        must_of_2_local=1.05,
        bounds=bounds,
    )


def library() -> Any:
    from tkc import kernels

    return kernels


# ---- tables -------------------------------------------------------------------------------------
def shown(line: dict[str, Any]) -> str:
    """A row: ours, the best rival's, their ratio, and what was asked for."""

    def times(of: dict[str, Any]) -> str:
        return "  ".join(f"{name} {_figure(t)}" for name, t in of.items())

    (ours, *_), best = (list(map(_median, line[of].values())) for of in ("ours", "rivals"))
    rival = min((t for t in best if not math.isnan(t)), default=math.nan)
    said = f"  {line['what']:<32} ours: {times(line['ours'])} | rivals: {times(line['rivals'])}"
    said += f" | ours / best rival {ours / rival:.3f}"
    if "must" in line:
        said += f" (must {line['must']}: {'met' if ours <= line['must'] * rival else 'MISSED'})"
    if bounds := line.get("bounds"):
        said += f" | bounds: {times(bounds)}"
        greatest = max((_median(t) for t in bounds.values()), default=math.nan)
        said += f" | greatest bound / ours {greatest / ours:.3f}"
    return said


def _figure(times: Any) -> str:
    if isinstance(times, str):
        return f"[{times}]"
    median, low, high = times
    return f"{median:.1f} ({low:.1f}-{high:.1f})"


def _median(times: Any) -> float:
    return math.nan if isinstance(times, str) else float(times[0])


def table(lines: list[dict[str, Any]], became: dict[str, str]) -> str:
    """All parts' rows, in microseconds."""
    said = ["== two GPUs, bf16, microseconds: medians and quartiles, the slower rank's"]
    for part, what in became.items():
        said.append(f"{part}: {what if what != 'right' else 'ran'}")
        said += [shown(line) for line in lines if line["part"] == part]
    return "\n".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half as many calls")
    parser.add_argument("--out", default=".", help="where tables are written")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of all parts")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}")
    asked = parser.parse_args()
    parts = {name: globals()[name] for name in asked.parts or PARTS}
    if asked.rank:
        race = Race()
        ranks.work(parts, parts, race, race.agree)
        ranks.end()
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "several_gpus.jsonl"
    file.unlink(missing_ok=True)
    os.environ |= {"RACES_FILE": str(file.resolve()), "RACES_QUICK": str(int(asked.quick))}
    became = ranks.run("benchmarks.several_gpus", parts, asked.limit, EACH)
    lines = file.read_text().splitlines() if file.exists() else []
    said = table([json.loads(line) for line in lines], became)
    (out / "several_gpus.txt").write_text(said + "\n")
    print("\n" + said)
    return int(any(what != "right" for what in became.values()))


if __name__ == "__main__":
    sys.exit(main())
