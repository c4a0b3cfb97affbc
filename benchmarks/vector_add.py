"""a + b of 2^30 bfloat16 elements: nothing but memory bandwidth."""

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

N = 1 << 30


def contest(seed: int, n: int = N) -> Contest:
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    x, y = (
        torch.randn(n, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(2)
    )
    out = torch.empty_like(x)

    def ours(block: int) -> Runner:
        import tkc

        add = harness.example("vector_add").add
        grid = (tkc.cdiv(n, block),)
        return Runner(lambda: (add[grid](x, y, out, n, BLOCK=block), out)[1], out)

    def triton() -> Runner:
        from benchmarks import rivals_triton

        return Runner(lambda: rivals_triton.add(x, y, out), out)

    return Contest(
        "vector-add",
        f"Vector add, {n} bfloat16 elements",
        (
            Contestant("tkc", lambda: ours(1024), "ours", risky=True),
            Contestant("tkc BLOCK 4096", lambda: ours(4096), "ours"),
            Contestant("torch", lambda: Runner(lambda: torch.add(x, y, out=out), out)),
            Contestant("triton", triton),
            Contestant("copy of as many bytes", lambda: Runner(copy(3 * n)), "bound"),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        lambda: Sum(x, y),
        amount=6 * n / 1e9,
        unit="GB/s",
        figures=(harness.speed_ratio("tkc", "torch", 0.95),),
    )


def copy(elements: int):
    """A device-to-device copy that moves as many bytes as `elements` bfloat16 elements, read or
    written, do.
    """
    import torch

    source = torch.randn(elements // 2, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)

    def run():
        target.copy_(source)

    return run


class Sum:
    """x + y in float64, made a slice at a time: as a whole it would take 8 bytes an element."""

    def __init__(self, x, y):
        self.x, self.y, self.shape = x, y, x.shape

    def reshape(self, *_):
        return self

    def __getitem__(self, part):
        return self.x[part].double() + self.y[part].double()
