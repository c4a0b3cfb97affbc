"""The golden programs on a GPU: right, repeatable, and as fast as kernels written by hand.

    python benchmarks/golden.py [--prototypes DIR] [--rounds 8] [--only cooperative_product,…]
    [--checks]

Each program is emitted, loaded by the driver and checked against float64 on poisoned output,
launches bit-equal; then timed in shuffled rounds beside cuBLAS or cuDNN and, where DIR holds
gemm_ptx.py and attn_ptx.py, beside those kernels of the same schedules. The clock of a busy card
wanders, so a ratio is taken within each round; its median and quartiles are the result. Every
launch happens in a child process with a deadline.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
PROGRAMS = ("cooperative_product", "pingpong_product", "attention_forward")
CHECK_SECONDS, TIME_SECONDS = 60, 90
PRODUCTS = {
    "cooperative_product": ((128, 256), "nt", dict()),
    "pingpong_product": ((128, 192), "nn", dict(bn=192, cm=1, pingpong=True, subtiles=1, b="nn")),
}
PRODUCT_SHAPES = (
    (256, 256, 64),
    (512, 768, 128),
    (1024, 1024, 256),
    (77, 296, 200),
    (1000, 1096, 72),
    (129, 264, 8),
    (4000, 4000, 328),
    (640, 2048, 2048),
)
PRODUCT_TIMES = (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048)
ATTENTION_SHAPES = (1, 128, 1), (9, 128, 40), (2, 512, 3), (1, 1024, 40), (3, 384, 50), (2, 2048, 8)
ATTENTION_TIMES = 1024, 4096, 16384
HEAD = 128
FLOOR = {"cooperative_product": 0.98, "pingpong_product": 0.98, "attention_forward": 0.97}


# ---- in the child --------------------------------------------------------------------------------
def say(**found) -> None:
    print("@" + json.dumps(found), flush=True)


class Golden:
    """A golden program, emitted and loaded; `bind` gives a launch of it."""

    def __init__(self, name: str):
        import torch

        from tkc.codegen.ptx.emit import emit
        from tkc.ir.target import target
        from tkc.ir.text import parse
        from tkc.ir.verify import verify
        from tkc.runtime import driver

        torch.empty(1, device="cuda")  # torch's context is the one
        started = time.perf_counter()
        module = parse((GOLDEN / f"{name}.mlir").read_text(), name)
        verify(module, name)
        parsed = time.perf_counter()
        self.program = emit(module, target("sm_90a"))
        emitted = time.perf_counter()
        i = self.program.interface
        self.function = driver.load(
            self.program.text.encode(), i.entry, 0, i.shared_bytes, math.prod(i.cluster)
        )
        print(
            f"{name}: parsed in {parsed - started:.2f} s, emitted in {emitted - parsed:.2f} s,"
            f" loaded in {time.perf_counter() - emitted:.2f} s; {self.function.registers} registers"
            f" at entry, {i.shared_bytes} bytes of shared memory",
            flush=True,
        )

    def bind(self, arguments, grid):
        import torch

        from tkc.runtime.launch import Launch
        from tkc.runtime.specialize import argument

        infos = [argument(a, f"argument {n}", False) for n, a in enumerate(arguments)]
        stream = torch.cuda.current_stream().cuda_stream
        return Launch(
            self.program.interface,
            self.function,
            [str(n) for n in range(len(infos))],
            infos,
            (*grid, 1, 1)[:3],
            lambda: stream,
            self.program.interface.entry,
        )


def product(name: str, m: int, n: int, k: int):
    """Arrays of a product, and its grid."""
    import torch

    (bm, bn), order, _ = PRODUCTS[name]
    a, b = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((m, k), (n, k) if order == "nt" else (k, n))
    )
    return (
        a,
        b,
        torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16),
        (-(-m // bm), -(-n // bn)),
    )


def distance(found, want) -> float:
    error = (found.double() - want).norm() / want.norm()
    return float(error) if bool(error.isfinite()) else math.inf


def repeated(launch, outputs, times: int = 8) -> bool:
    """Whether launches on poisoned outputs agree bit by bit with what is there."""
    import torch

    first = [o.clone() for o in outputs]
    for _ in range(times):
        for o in outputs:
            o.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        if not all(torch.equal(o, f) for o, f in zip(outputs, first, strict=False)):
            return False
    return True


def check(name: str) -> None:
    import torch

    torch.manual_seed(0)
    golden = Golden(name)
    if name in PRODUCTS:
        for m, n, k in PRODUCT_SHAPES:
            a, b, out, grid = product(name, m, n, k)
            launch = golden.bind([a, b, out], grid)
            launch()
            torch.cuda.synchronize()
            error = distance(out, a.double() @ (b.T if PRODUCTS[name][1] == "nt" else b).double())
            same = repeated(launch, [out])
            say(
                program=name, shape=f"{m}x{n}x{k}", error=error, same=same, ok=error < 3e-3 and same
            )
        return
    for batch, length, heads in ATTENTION_SHAPES:
        q, k, v = (
            torch.randn(batch, length, heads, HEAD, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)
        )
        if length == 2048:
            # peaked rows: the maxima move
            q = q * 64 * torch.rand(batch, length, heads, 1, device="cuda", dtype=torch.bfloat16)
        out, lse = (
            torch.full_like(q, float("nan")),
            torch.full((batch, heads, length), float("nan"), device="cuda"),
        )
        launch = golden.bind(
            [q, k, v, out, lse, 1 / math.sqrt(HEAD)], (length // 128, heads, batch)
        )
        launch()
        torch.cuda.synchronize()
        x, y, z = (t.double().transpose(1, 2) for t in (q, k, v))
        scores = x @ y.transpose(2, 3) / math.sqrt(HEAD)
        error, error_lse = (
            distance(out.transpose(1, 2), torch.softmax(scores, 3) @ z),
            distance(lse, torch.logsumexp(scores, 3)),
        )
        same = repeated(launch, [out, lse])
        say(
            program=name,
            shape=f"{batch}x{length}x{heads}",
            error=error,
            lse=error_lse,
            same=same,
            ok=error < 5e-3 and error_lse < 1e-5 and same,
        )


def contestants_of_product(name: str, golden: Golden, shape, prototypes):
    import torch

    a, b, out, grid = product(name, *shape)
    other = b.T.contiguous()
    nt, nn = (b, other) if PRODUCTS[name][1] == "nt" else (other, b)
    runs = {"tkc": golden.bind([a, b, out], grid), "cuBLAS": None}
    best = min(
        ("nt", nt.T), ("nn", nn), key=lambda pair: _quick(lambda: torch.matmul(a, pair[1], out=out))
    )
    runs["cuBLAS"] = lambda: torch.matmul(a, best[1], out=out)
    if prototypes is not None:
        runs["prototype"] = prototypes[0](a, b, out)
    want = torch.matmul(a, nn).float()
    for label, run in runs.items():
        out.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        if not distance(out, want.double()) < 1e-2:
            say(wrong=label, program=name, shape="x".join(map(str, shape)))
    return runs, 2 * math.prod(shape)


def contestants_of_attention(golden: Golden, length: int, prototypes):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, heads = max(1, 16384 // length), 16
    q, k, v = (
        torch.randn(batch, length, heads, HEAD, device="cuda", dtype=torch.bfloat16)
        for _ in range(3)
    )
    x, y, z = (t.transpose(1, 2).contiguous() for t in (q, k, v))
    out, lse = (
        torch.full_like(q, float("nan")),
        torch.full((batch, heads, length), float("nan"), device="cuda"),
    )

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(x, y, z)

    runs = {
        "tkc": golden.bind([q, k, v, out, lse, 1 / math.sqrt(HEAD)], (length // 128, heads, batch)),
        "cuDNN": cudnn,
    }
    runs["tkc"]()
    torch.cuda.synchronize()
    if not distance(out, cudnn().transpose(1, 2).double()) < 1e-2:
        say(wrong="tkc", program="attention_forward", shape=str(length))
    if prototypes is not None:
        runs["prototype"] = prototypes[1](q, k, v)
    return runs, 4 * batch * heads * length * length * HEAD


def _quick(run) -> float:
    import triton

    return triton.testing.do_bench(run, warmup=5, rep=20, return_mode="median")


def load_prototypes(name: str, folder: str | None):
    """(launcher of the product, launcher of attention), None without a folder."""
    if not folder:
        return None
    sys.path.insert(0, folder)
    import attn_ptx
    import gemm_ptx

    kernel = gemm_ptx.Kernel(gemm_ptx.Config(**PRODUCTS[name][2])) if name in PRODUCTS else None
    return (lambda a, b, out: kernel.bind(a, b, out)), (
        lambda q, k, v: attn_ptx.Kernel("default", q, k, v, False)
    )


def race(name: str, prototypes: str | None, rounds: int) -> None:
    import torch
    import triton

    torch.manual_seed(0)
    golden = Golden(name)
    made = load_prototypes(name, prototypes)
    for shape in PRODUCT_TIMES if name in PRODUCTS else ATTENTION_TIMES:
        runs, work = (
            contestants_of_product(name, golden, shape, made)
            if name in PRODUCTS
            else contestants_of_attention(golden, shape, made)
        )
        times = {label: [] for label in runs}
        for turn in range(rounds):  # a shuffled order in each: the card's power limit has a memory
            for label, run in random.Random(turn).sample(list(runs.items()), len(runs)):
                times[label].append(
                    triton.testing.do_bench(run, warmup=10, rep=50, return_mode="median")
                )
        say(
            program=name,
            timed="x".join(map(str, shape)) if name in PRODUCTS else f"S={shape}",
            times=times,
            work=work,
        )
        del runs
        torch.cuda.empty_cache()


# ---- in the parent -------------------------------------------------------------------------------
def child(arguments: list[str], seconds: float) -> list[dict]:
    """What a child found before its end or its deadline."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    try:
        text, late = process.communicate(timeout=seconds)[0], False
    except subprocess.TimeoutExpired:
        process.kill()
        text, late = process.communicate()[0], True
    lines = text.splitlines()
    found = [json.loads(line[1:]) for line in lines if line.startswith("@{")]
    for line in [line for line in lines if not line.startswith("@{")][-12:]:
        print("   ", line)
    if late or process.returncode:
        found.append(
            dict(
                failed=(
                    f"{' '.join(arguments[:3])}:"
                    f" {'still running' if late else f'exit code {process.returncode}'} after"
                    f" {time.perf_counter() - started:.0f} s"
                )
            )
        )
        print("   ", found[-1]["failed"], flush=True)
    return found


def ratio(times: dict, other: str) -> tuple[float, float, float] | None:
    """Quartiles of tkc's speed over another's, paired by round."""
    if other not in times:
        return None
    paired = [b / a for a, b in zip(times["tkc"], times[other], strict=False)]
    return (
        tuple(statistics.quantiles(paired, n=4, method="inclusive"))
        if len(paired) > 1
        else (paired[0],) * 3
    )


def row(found: dict) -> str:
    times, rates = (
        found["times"],
        {
            label: found["work"] / statistics.median(ms) / 1e9
            for label, ms in found["times"].items()
        },
    )
    rival = next(label for label in times if label.startswith("cu"))
    text = (
        f"{found['program']:20s} {found['timed']:16s} tkc {rates['tkc']:5.0f}   {rival}"
        f" {rates[rival]:5.0f}"
    )
    for label in ("prototype", rival):
        if (quartiles := ratio(times, label)) is None:
            continue
        low, middle, high = quartiles
        text += f"   / {label} {middle:.3f} [{low:.3f} {high:.3f}]"
        if label == "prototype":
            text += "" if middle >= FLOOR[found["program"]] else " SLOW"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Golden programs on a GPU: checks and speed.")
    parser.add_argument("--prototypes", help="folder of gemm_ptx.py and attn_ptx.py")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--checks", action="store_true", help="no timing")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.path.insert(0, str(ROOT))
        what, name = options.child
        check(name) if what == "check" else race(name, options.prototypes, options.rounds)
        return 0
    names = [n for n in options.only.split(",") if n]
    if unknown := set(names) - set(PROGRAMS):
        parser.error(f"unknown {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    started, checks, races, failures = time.perf_counter(), [], [], []
    more = ["--prototypes", str(Path(options.prototypes).resolve())] if options.prototypes else []
    for name in names:
        found = child(["--child", "check", name], CHECK_SECONDS)
        for c in found:
            if "shape" in c:
                print(
                    "ok   " if c["ok"] else "WRONG",
                    json.dumps({k: v for k, v in c.items() if k != "ok"}),
                    flush=True,
                )
        checks += [c for c in found if "shape" in c]
        failures += [c["failed"] for c in found if "failed" in c]
        if options.checks or not found or any(not c.get("ok", False) for c in found):
            continue
        found = child(
            ["--child", "race", name, "--rounds", str(options.rounds), *more], TIME_SECONDS
        )
        races += [r for r in found if "timed" in r]
        failures += [r["failed"] for r in found if "failed" in r] + [
            f"{r['wrong']} wrong at {r['shape']}" for r in found if "wrong" in r
        ]
    print(
        f"\n{sum(c['ok'] for c in checks)} of {len(checks)} checks,"
        f" {time.perf_counter() - started:.0f} s; TFLOP/s, and tkc's speed over others' [quartiles]"
    )
    for name in names:
        mine = [c for c in checks if c["program"] == name]
        if mine:
            print(
                f"{name:20s} {sum(c['ok'] for c in mine)}/{len(mine)} right, worst error"
                f" {max(c['error'] for c in mine):.2e}, bit-equal {all(c['same'] for c in mine)}"
            )
    for r in races:
        print(row(r))
    for f in failures:
        print("FAILED", f)
    return int(bool(failures) or not checks or not all(c["ok"] for c in checks))


if __name__ == "__main__":
    sys.exit(main())
