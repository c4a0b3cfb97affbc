"""The plain attention of examples/attention.py through the passes for the device's own target, beside cuDNN, at RIVALS' shapes: D = 128, B·S = 16384, 16 heads."""
from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

CASES = tuple((s, causal) for causal in (False, True) for s in (1024, 4096, 8192, 16384))


def contests(seed: int):
    for case in CASES: yield contest(seed, *case)


def contest(seed: int, s: int = 8192, causal: bool = False, d: int = 128, heads: int = 16) -> Contest:
    import torch
    generator = torch.Generator("cuda").manual_seed(seed)
    batch = 16384 // s
    q, k, v = (torch.randn(batch, heads, s, d, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(3))
    out = torch.empty_like(q)

    def ours() -> Runner:
        import tkc
        attention = harness.example("attention").attention
        launch = attention.prepare(q, k, v, out, d ** -0.5, CAUSAL=causal, D=d, BM=128, BN=128, grid=(tkc.cdiv(s, 128), heads, batch))
        return Runner(lambda: (launch(), out)[1], out)

    def cudnn() -> Runner: return Runner(rivals_torch.attention("CUDNN", q, k, v, is_causal=causal), None)
    def reference(): return rivals_torch.attention("EFFICIENT", q.float(), k.float(), v.float(), is_causal=causal)()

    flops = 4 * batch * heads * s * s * d * (0.5 if causal else 1)
    kind = "causal" if causal else "full"
    return Contest(f"attention-{kind}-{s}", f"Attention forward, D = {d}, {kind}, S = {s}, bfloat16", (
        Contestant("tkc", ours, "ours", risky=True), Contestant("cuDNN", cudnn),
    ), harness.gpu_timer, harness.GPU_TIMING, reference, amount=flops / 1e12, unit="TFLOP/s")
