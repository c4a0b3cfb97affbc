"""Kernels of Liger, fla, mamba, flash-attn and sglang, as `triton_kernels` races them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.triton_cases import Operands, Run, backward, case


# ---- Liger
def _liger(o: Operands) -> ModuleType:
    return o.package("liger_kernel.transformers.functional", "liger")


def _rows(o: Operands, grad: bool = True) -> tuple[Any, Any]:
    """Rows of a hidden state, and a weight of their width."""
    return o.normal(o.of(8192), o.of(4096), grad=grad), o.normal(o.of(4096), grad=grad)


@case("liger", "rms_norm")
def _(o: Operands) -> Run:
    f, (x, w) = _liger(o), _rows(o)
    return lambda: f.liger_rms_norm(x, w, 1e-6)


@case("liger", "rms_norm, backward")
def _(o: Operands) -> Run:
    f, (x, w) = _liger(o), _rows(o)
    return backward(o, lambda: f.liger_rms_norm(x, w, 1e-6), x, w)


@case("liger", "layer_norm")
def _(o: Operands) -> Run:
    f, (x, w) = _liger(o), _rows(o)
    return lambda: f.liger_layer_norm(x, w, w, 1e-6)


@case("liger", "layer_norm, backward")
def _(o: Operands) -> Run:
    f, (x, w) = _liger(o), _rows(o)
    b = w.detach().clone().requires_grad_()
    return backward(o, lambda: f.liger_layer_norm(x, w, b, 1e-6), x, w, b)


@case("liger", "cross_entropy, 4096 x 32768")
def _(o: Operands) -> Run:
    f, rows, words = _liger(o), o.of(4096), o.of(32768)
    x, target = o.normal(rows, words, grad=True), o.index(words, rows)
    return lambda: f.liger_cross_entropy(x.detach().clone().requires_grad_(), target)


@case("liger", "fused_linear_cross_entropy")
def _(o: Operands) -> Run:
    f, words = _liger(o), o.of(32768)
    x, target = o.normal(o.of(4096), o.of(2048), grad=True), o.index(words, o.of(4096))
    w = o.normal(words, o.of(2048), grad=True)
    return lambda: f.liger_fused_linear_cross_entropy(x, w, target)


@case("liger", "rope")
def _(o: Operands) -> Run:
    f, n = _liger(o), o.of(2048)
    q, k = o.normal(4, 32, n, 128), o.normal(4, 8, n, 128)
    cos, sin = o.normal(1, n, 128), o.normal(1, n, 128)
    return lambda: f.liger_rope(q, k, cos, sin)


def _gated(o: Operands, name: str) -> tuple[Run, tuple]:
    f = _liger(o)
    a, b = (o.normal(o.of(4096), o.of(11008), grad=True) for _ in range(2))
    return lambda: getattr(f, name)(a, b), (a, b)


@case("liger", "swiglu")
def _(o: Operands) -> Run:
    return _gated(o, "liger_swiglu")[0]


@case("liger", "swiglu, backward")
def _(o: Operands) -> Run:
    run, leaves = _gated(o, "liger_swiglu")
    return backward(o, run, *leaves)


@case("liger", "geglu")
def _(o: Operands) -> Run:
    return _gated(o, "liger_geglu")[0]


@case("liger", "geglu, backward")
def _(o: Operands) -> Run:
    run, leaves = _gated(o, "liger_geglu")
    return backward(o, run, *leaves)


def _distributions(o: Operands) -> tuple[Any, Any]:
    x, y = (o.normal(o.of(2048), o.of(32768), dtype="float32", grad=True) for _ in range(2))
    return x.log_softmax(-1), y.detach().log_softmax(-1)


@case("liger", "kl_div")
def _(o: Operands) -> Run:
    f, (x, y) = _liger(o), _distributions(o)
    return lambda: f.liger_kl_div(x, y, log_target=True)


@case("liger", "jsd")
def _(o: Operands) -> Run:
    f, (x, y) = _liger(o), _distributions(o)
    return lambda: f.liger_jsd(x, y)


@case("liger", "tvd")
def _(o: Operands) -> Run:
    f, (x, y) = _liger(o), _distributions(o)
    p, q = x.exp().detach().requires_grad_(), y.exp()
    return lambda: f.liger_tvd(p, q)


@case("liger", "group_norm")
def _(o: Operands) -> Run:
    f, x = _liger(o), o.normal(o.of(128, 4), 64, o.of(4096), grad=True)
    w, b = o.normal(64, grad=True), o.normal(64, grad=True)
    return lambda: f.liger_group_norm(x, w, b, 64, 8, 1e-5)


@case("liger", "softmax")
def _(o: Operands) -> Run:
    f, (x, _) = _liger(o), _rows(o)
    return lambda: f.liger_softmax(x)


@case("liger", "sparsemax")
def _(o: Operands) -> Run:
    f, x = _liger(o), o.normal(o.of(4096), o.of(1024), dtype="float32", grad=True)
    return lambda: f.liger_sparsemax(x)


@case("liger", "dyt, backward")
def _(o: Operands) -> Run:
    f, (x, w) = _liger(o), _rows(o)
    a, b = o.normal(1, grad=True), w.detach().clone().requires_grad_()
    return backward(o, lambda: f.liger_dyt(x, a, w, b), x, a, w, b)


@case("liger", "poly_norm")
def _(o: Operands) -> Run:
    f, (x, _) = _liger(o), _rows(o)
    w, b = o.normal(3, grad=True), o.normal(1, grad=True)
    return lambda: f.liger_poly_norm(x, w, b)


@case("liger", "fused_add_rms_norm")
def _(o: Operands) -> Run:
    f, (x, w) = _liger(o), _rows(o)
    r = o.normal(*x.shape)
    return lambda: f.liger_fused_add_rms_norm(x, r, w, 1e-6)


# ---- fla
def _heads(o: Operands, count: int, grad: bool = True) -> list[Any]:
    shape = (4, o.of(2048, 128), o.of(16, 2), 128)
    return [o.normal(*shape, grad=grad) for _ in range(count)]


def _decay(o: Operands, *shape: int) -> Any:
    """Logarithms of numbers below 1."""
    return o.torch.nn.functional.logsigmoid(o.normal(*shape, dtype="float32")) / 16


def _unit(o: Operands, x: Any) -> Any:
    return o.torch.nn.functional.normalize(x.detach().float(), dim=-1).to(x.dtype).requires_grad_()


def _fla(o: Operands, name: str) -> Callable:
    module, _, function = name.rpartition(".")
    return getattr(o.package(f"fla.{module}", "fla"), function)


def _retention(o: Operands) -> tuple[Run, tuple]:
    f, (q, k, v) = _fla(o, "ops.retention.chunk_retention"), _heads(o, 3)
    return lambda: f(q, k, v), (q, k, v)


def _gla(o: Operands) -> tuple[Run, tuple]:
    f, (q, k, v) = _fla(o, "ops.gla.chunk_gla"), _heads(o, 3)
    g = _decay(o, *q.shape).requires_grad_()
    return lambda: f(q, k, v, g), (q, k, v, g)


def _simple_gla(o: Operands) -> tuple[Run, tuple]:
    f, (q, k, v) = _fla(o, "ops.simple_gla.chunk_simple_gla"), _heads(o, 3)
    g = _decay(o, *q.shape[:3])
    return lambda: f(q, k, v, g), (q, k, v)


def _delta(o: Operands) -> tuple[Run, tuple]:
    f, (q, k, v) = _fla(o, "ops.delta_rule.chunk_delta_rule"), _heads(o, 3)
    k, beta = _unit(o, k), o.normal(*q.shape[:3]).sigmoid().detach()
    return lambda: f(q, k, v, beta), (q, k, v)


def _gated_delta(o: Operands) -> tuple[Run, tuple]:
    f, (q, k, v) = _fla(o, "ops.gated_delta_rule.chunk_gated_delta_rule"), _heads(o, 3)
    k, beta = _unit(o, k), o.normal(*q.shape[:3]).sigmoid().detach()
    g = _decay(o, *q.shape[:3])
    return lambda: f(q, k, v, g, beta), (q, k, v)


def _kda(o: Operands) -> tuple[Run, tuple]:
    f, (q, k, v) = _fla(o, "ops.kda.chunk_kda"), _heads(o, 3)
    q, k, beta = _unit(o, q), _unit(o, k), o.normal(*q.shape[:3]).sigmoid().detach()
    g = _decay(o, *q.shape)
    return lambda: f(q, k, v, g, beta), (q, k, v)


def _rwkv6(o: Operands) -> tuple[Run, tuple]:
    f, (r, k, v) = _fla(o, "ops.rwkv6.chunk_rwkv6"), _heads(o, 3)
    w, u = _decay(o, *r.shape), o.normal(r.shape[2], 128)
    return lambda: f(r, k, v, w, u), (r, k, v)


def _softmax_attention(o: Operands) -> tuple[Run, tuple]:
    f, (q, k, v) = _fla(o, "ops.attn.parallel_attn"), _heads(o, 3)
    return lambda: f(q, k, v), (q, k, v)


def _hgrn(o: Operands) -> tuple[Run, tuple]:
    f = _fla(o, "ops.hgrn.chunk.chunk_hgrn")
    x = o.normal(4, o.of(2048, 128), o.of(2048), grad=True)
    g = _decay(o, *x.shape).to(x.dtype)
    return lambda: f(x, g), (x,)


def _rms_gated(o: Operands) -> tuple[Run, tuple]:
    f = _fla(o, "modules.fused_norm_gate.rms_norm_gated")
    x, g = (o.normal(o.of(8192), o.of(2048), grad=True) for _ in range(2))
    w = o.normal(o.of(2048), grad=True)
    return lambda: f(x, g, w, None), (x, g, w)


def _conv(o: Operands) -> tuple[Run, tuple]:
    f = _fla(o, "modules.conv.causal_conv1d.causal_conv1d")
    x = o.normal(4, o.of(2048, 128), o.of(2048), grad=True)
    w = o.normal(o.of(2048), 4, grad=True)
    return lambda: f(x, w, activation="silu"), (x, w)


def _l2(o: Operands) -> tuple[Run, tuple]:
    f, (x,) = _fla(o, "modules.l2norm.l2norm"), _heads(o, 1)
    return lambda: f(x), (x,)


_OF_FLA: dict[str, Callable[[Operands], tuple[Run, tuple]]] = {
    "chunk_retention": _retention,
    "chunk_gla": _gla,
    "chunk_simple_gla": _simple_gla,
    "chunk_delta_rule": _delta,
    "chunk_gated_delta_rule": _gated_delta,
    "chunk_kda": _kda,
    "chunk_rwkv6": _rwkv6,
    "parallel_attn": _softmax_attention,
    "chunk_hgrn": _hgrn,
    "rms_norm_gated": _rms_gated,
    "causal_conv1d": _conv,
    "l2norm": _l2,
}


def _add_both(name: str, made: Callable[[Operands], tuple[Run, tuple]]) -> None:
    def gradient(o: Operands) -> Run:
        run, leaves = made(o)
        return backward(o, run, *leaves)

    case("fla", name)(lambda o: made(o)[0])
    case("fla", f"{name}, backward")(gradient)


for _name, _made in _OF_FLA.items():
    _add_both(_name, _made)


# ---- mamba
def _ssd(o: Operands) -> tuple[Run, tuple]:
    f = o.package("mamba_ssm.ops.triton.ssd_combined", "mamba")
    n, heads = o.of(4096, 256), o.of(32, 2)
    x = o.normal(4, n, heads, 64, grad=True)
    dt = o.normal(4, n, heads).float().sigmoid() / 10
    a = -o.normal(heads, dtype="float32").exp()
    b, c = (o.normal(4, n, 1, 128, grad=True) for _ in range(2))
    return lambda: f.mamba_chunk_scan_combined(x, dt, a, b, c, 256), (x, b, c)


@case("mamba", "chunk_scan_combined")
def _(o: Operands) -> Run:
    return _ssd(o)[0]


@case("mamba", "chunk_scan_combined, backward")
def _(o: Operands) -> Run:
    run, leaves = _ssd(o)
    return backward(o, run, *leaves)


@case("mamba", "rmsnorm_fn, gated")
def _(o: Operands) -> Run:
    f = o.package("mamba_ssm.ops.triton.layernorm_gated", "mamba")
    x, w = _rows(o)
    z = o.normal(*x.shape)
    return lambda: f.rmsnorm_fn(x, w, None, z)


@case("mamba", "layer_norm_fn, residual")
def _(o: Operands) -> Run:
    f = o.package("mamba_ssm.ops.triton.layer_norm", "mamba")
    x, w = _rows(o)
    r = o.normal(*x.shape, dtype="float32")
    return lambda: f.layer_norm_fn(x, w, w, residual=r, prenorm=True, is_rms_norm=True)


@case("mamba", "selective_state_update")
def _(o: Operands) -> Run:
    f = o.package("mamba_ssm.ops.triton.selective_state_update", "mamba")
    batch, width, states = o.of(128, 2), o.of(4096), 16
    state, x = o.normal(batch, width, states), o.normal(batch, width)
    dt, bias = o.normal(batch, width), o.normal(width, dtype="float32") - 4
    a, d = -o.normal(width, states, dtype="float32").exp(), o.normal(width, dtype="float32")
    b, c = (o.normal(batch, states) for _ in range(2))
    return lambda: f.selective_state_update(
        state, x, dt, a, b, c, D=d, dt_bias=bias, dt_softplus=True
    )


@case("mamba", "swiglu")
def _(o: Operands) -> Run:
    f = o.package("mamba_ssm.ops.triton.k_activations", "mamba")
    x = o.normal(o.of(4096), o.of(16384), grad=True)
    return lambda: f.swiglu(x)


# ---- flash-attn
def _flash(o: Operands, name: str) -> ModuleType:
    return o.package(f"flash_attn.ops.triton.{name}", "flash-attn")


@case("flash-attn", "rotary")
def _(o: Operands) -> Run:
    f, n = _flash(o, "rotary"), o.of(4096)
    x, cos, sin = o.normal(4, n, o.of(32, 2), 128), o.normal(n, 64), o.normal(n, 64)
    return lambda: f.apply_rotary(x, cos, sin)


def _flash_loss(o: Operands) -> tuple[Run, tuple]:
    f, rows, words = _flash(o, "cross_entropy"), o.of(4096), o.of(32768)
    x, target = o.normal(rows, words, grad=True), o.index(words, rows)
    return lambda: f.cross_entropy_loss(x, target)[0], (x,)


@case("flash-attn", "cross_entropy, 4096 x 32768")
def _(o: Operands) -> Run:
    return _flash_loss(o)[0]


@case("flash-attn", "cross_entropy, backward")
def _(o: Operands) -> Run:
    run, leaves = _flash_loss(o)
    return backward(o, run, *leaves)


def _flash_norm(o: Operands) -> tuple[Run, tuple]:
    f, (x, w) = _flash(o, "layer_norm"), _rows(o)
    b, r = w.detach().clone().requires_grad_(), o.normal(*x.shape)
    return lambda: f.layer_norm_fn(x, w, b, residual=r), (x, w, b)


@case("flash-attn", "layer_norm, residual")
def _(o: Operands) -> Run:
    return _flash_norm(o)[0]


@case("flash-attn", "layer_norm, backward")
def _(o: Operands) -> Run:
    run, leaves = _flash_norm(o)
    return backward(o, run, *leaves)


# ---- sglang
def _assigned(o: Operands, tokens: int, experts: int, each: int, block: int) -> tuple[Any, Any]:
    """Places of `each` experts a token, in the order of experts, those of an expert padded to whole
    blocks by a place behind all; and the expert of every block.
    """
    torch = o.torch
    chosen = torch.rand(tokens, experts, device=o.device).topk(each).indices.flatten()
    places, of_block = [], []
    for expert in range(experts):
        found = (chosen == expert).nonzero().flatten()
        count = -(-len(found) // block)
        rest = (0, count * block - len(found))
        places.append(torch.nn.functional.pad(found, rest, value=tokens * each))
        of_block += [expert] * count
    return torch.cat(places).int(), torch.tensor(of_block, dtype=torch.int32, device=o.device)


def _experts(o: Operands, tokens: int, block: dict[str, int]) -> Run:
    """Tokens by the weights of two of eight experts each. block: sizes and hints as sglang's own
    tables have them for an H200 and so many tokens.
    """
    file = "sglang/kernels/ops/moe/fused_moe_triton_kernels.py"
    kernel = o.kernels(file, "sglang").fused_moe_kernel
    import triton

    each, experts, n, k = 2, 8, o.of(14336), o.of(4096)
    a, b = o.normal(tokens, k), o.normal(experts, n, k)
    c = o.torch.empty(tokens * each, n, device=o.device, dtype=a.dtype)
    places, of_block = _assigned(o, tokens, experts, each, block["BLOCK_SIZE_M"])
    count = o.torch.tensor([len(places)], dtype=o.torch.int32, device=o.device)
    given = {
        name: None if name.endswith(("_ptr", "_desc")) else 0
        for name in kernel.arg_names
        if name not in block
    }
    given |= {"a_ptr": a, "b_ptr": b, "c_ptr": c, "sorted_token_ids_ptr": places}
    given |= {"expert_ids_ptr": of_block, "num_tokens_post_padded_ptr": count}
    given |= {"N": n, "K": k, "EM": len(places), "num_valid_tokens": tokens * each}
    given |= {"stride_am": a.stride(0), "stride_ak": 1, "stride_be": b.stride(0), "stride_bk": 1}
    given |= {"stride_bn": b.stride(1), "stride_cm": c.stride(0), "stride_cn": 1}
    given |= {"top_k": each, "compute_type": triton.language.bfloat16, "even_Ks": True}
    programs = len(of_block) * triton.cdiv(n, block["BLOCK_SIZE_N"])

    def run() -> Any:
        kernel[(programs,)](**given, **block)
        return c

    return run


def _block(m: int, n: int, k: int, group: int, warps: int, stages: int) -> dict[str, int]:
    sizes = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group}
    return sizes | {"num_warps": warps, "num_stages": stages}


@case("sglang", "fused_moe, 4096 tokens")
def _(o: Operands) -> Run:
    return _experts(o, o.of(4096), _block(64, 128, 64, 8, 4, 3))


@case("sglang", "fused_moe, 64 tokens")
def _(o: Operands) -> Run:
    return _experts(o, 64, _block(16, 128, 128, 8, 4, 4))
