"""Gradients of attention against float64: masks, windows, soft caps, grouped queries, both orders
of axes, ragged batches, the log-sum-exp's own gradient; compiled for GPUs.
"""

import importlib
from itertools import pairwise

import numpy as np
import pytest

import tkc
from tests.kernels.checks import double, launches, numbers
from tests.kernels.test_attention import attention, operands, zeros
from tkc import kernels
from tkc.codegen.ptx.ptxas import find

module = importlib.import_module("tkc.kernels.attention_backward")

TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02, "float16": 0.003}


def everything(
    q,
    k,
    v,
    grad,
    lse_grad,
    causal=False,
    scale=None,
    window=None,
    softcap=0.0,
    sinks=None,
    slopes=None,
):
    """((result, log-sum-exp), (dQ, dK, dV, dsinks)) in float64; grad and lse_grad: of the two."""
    q, k, v, grad = map(double, (q, k, v, grad))
    (_, heads, queries, d), (_, shared, keys, _) = q.shape, k.shape
    k, v = (np.repeat(x, heads // shared, 1) for x in (k, v))
    scale = d**-0.5 if scale is None else scale
    s = q @ k.swapaxes(-1, -2) * scale
    bent = np.tanh(s / softcap) if softcap else np.zeros(())
    s = softcap * bent if softcap else s
    distance = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    if slopes is not None:
        s = s - double(slopes)[:, None, None] * abs(distance)
    keep = distance >= 0 if causal else np.ones(distance.shape, bool)
    keep = keep & (distance < window) if window is not None else keep
    s = np.where(keep, s, -np.inf)
    extra = np.full((heads, 1), -np.inf) if sinks is None else double(sinks)[:, None]
    top = np.maximum(s.max(-1, initial=-np.inf), extra)
    base = np.where(np.isinf(top), 0, top)
    with np.errstate(divide="ignore"):
        lse = base + np.log(np.exp(s - base[..., None]).sum(-1) + np.exp(extra - base))
    p = np.exp(s - np.where(np.isinf(lse), 0, lse)[..., None])
    out = p @ v
    term = (grad * out).sum(-1) - lse_grad
    ds = p * (grad @ v.swapaxes(-1, -2) - term[..., None]) * (1 - bent * bent) * scale

    def folded(x):
        return x.reshape(x.shape[0], shared, heads // shared, *x.shape[2:]).sum(2)

    found = ds @ k, folded(ds.swapaxes(-1, -2) @ q), folded(p.swapaxes(-1, -2) @ grad)
    if sinks is not None:
        shares = np.exp(extra - np.where(np.isinf(lse), 0, lse))
        found += ((shares * -term).sum((0, 2)),)
    return (out, lse), found


def gradients(*arrays, **options):
    return everything(*arrays, **options)[1]


def near(got, want, dtype: str = "float32", slack: float = 1) -> None:
    assert len(got) == len(want)
    for name, one, other in zip(("dQ", "dK", "dV", "dsinks"), got, want, strict=False):
        assert tuple(one.shape) == other.shape
        assert str(one.dtype) == (dtype if name != "dsinks" else "float32")
        error = np.abs(double(one) - other).max(initial=0)
        assert error <= slack * TOLERANCE[dtype] * max(1, np.abs(other).max(initial=0)), name


def both(q, k, v, **options):
    """(what kernels.attention_backward gives, float64), of results with random gradients."""
    out, lse = kernels.attention(q, k, v, with_lse=True, **options)
    grad, lse_grad = numbers(out.shape, str(out.dtype), 5), numbers(lse.shape, seed=6)
    # a row that sees nothing has a constant sum
    lse_grad[np.isinf(lse)] = 0
    got = kernels.attention_backward(grad, q, k, v, out, lse, lse_grad, **options)
    ours = {name.removeprefix("alibi_"): x for name, x in options.items()}
    want, found = everything(q, k, v, grad, lse_grad, **ours)
    kind, scale = str(out.dtype), max(1, np.abs(want[0]).max(initial=0))
    assert np.abs(double(out) - want[0]).max(initial=0) <= TOLERANCE[kind] * scale
    np.testing.assert_allclose(lse, want[1], rtol=2e-3, atol=2e-3)
    return got, found


SHAPES = [
    (1, 2, 2, 70, 70, 64, 64),
    (2, 4, 2, 33, 150, 32, 32),
    (1, 3, 1, 129, 5, 16, 16),
    (1, 1, 1, 1, 1, 7, 9),
    (2, 4, 4, 1, 600, 64, 32),
    (1, 7, 1, 65, 63, 72, 40),
    (1, 1, 1, 130, 66, 192, 128),
    (1, 1, 1, 40, 33, 256, 256),
    (1, 1, 1, 3, 0, 16, 16),
    (1, 2, 1, 0, 3, 16, 16),
    (0, 2, 2, 4, 4, 8, 8),
]
VARIANTS = [
    {},
    dict(causal=True),
    dict(causal=True, window=17),
    dict(causal=True, window=1),
    dict(softcap=2.0),
    dict(scale=0.3),
    dict(causal=True, window=40, softcap=3.0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda o: " ".join(f"{k} {v}" for k, v in o.items()) or "full"
)
def test_variants(shape, options):
    near(*both(*operands(*shape), **options))


@pytest.fixture
def adding(monkeypatch):
    """dQ is added up in memory, as on Hopper with D = 128."""
    chosen = module._blocks
    monkeypatch.setattr(
        module, "_blocks", lambda *given: chosen(*given)._replace(adds_queries=True)
    )


@pytest.mark.parametrize("shape", SHAPES[:6] + SHAPES[8:], ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda o: " ".join(f"{k} {v}" for k, v in o.items()) or "full"
)
def test_sums_in_memory(shape, options, adding):
    near(*both(*operands(*shape), **options))


def test_sums_in_memory_of_scores_far_below_zero(adding):
    """exp2(0 - L) of columns behind the last one is infinite where L is below -128."""
    q, k, v = operands(1, 1, 1, 70, 100, 32, 32)
    near(*both(q * 0.1 + 4.1, k * 0.1 - 4.1, v))


@pytest.mark.parametrize("options", [{}, dict(causal=True)], ids=["full", "causal"])
@pytest.mark.parametrize("lengths, lengths_k", [((5, 0, 130, 64, 1), None), ((1, 9), (129, 0))])
def test_sums_in_memory_of_ragged_batches(lengths, lengths_k, options, adding):
    test_ragged(lengths, lengths_k, options)


@pytest.mark.parametrize("d, dv", [(72, 80), (96, 96), (24, 20), (40, 48)])
def test_sums_of_rows_with_padding(d, dv, monkeypatch):
    """Warpgroups share columns of dQ's parts, some of which are none, or their rows, by their
    threads.
    """
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a")
    q, k, v = operands(1, 2, 1, 70, 130, d, dv, "bfloat16")
    out, lse = (x.astype(t) for x, t in zip(attention(q, k, v), (q.dtype, np.float32), strict=True))
    grad = numbers(out.shape, "bfloat16", 5)
    with launches() as found:
        kernels.attention_backward(grad, q, k, v, out, lse)
    assert [kernel.__name__ for kernel, *_ in found][2:] == ["_scaled_queries"]
    assert found[1][2]["D"] == {72: 96, 96: 96, 24: 32, 40: 64}[d]
    got = kernels.attention_backward(grad, q, k, v, out, lse)
    near(got, gradients(q, k, v, grad, np.zeros(lse.shape)), "bfloat16", slack=2)


def test_who_asks_for_equal_bits_gets_no_sums_in_memory(adding):
    arrays = operands(1, 2, 2, 70, 90, 32, 32)
    out, lse = kernels.attention(*arrays, with_lse=True)
    for deterministic, name in ((False, "_scaled_queries"), (True, "_queries")):
        with launches() as found:
            kernels.attention_backward(out, *arrays, out, lse, deterministic=deterministic)
        names = {kernel.__name__ for kernel, _, _ in found}
        assert names == {"_row_terms", "_keys_and_values", name}


OF_HEADS = {
    "sinks": dict(sinks=np.array([1, -2, 5, -np.inf], np.float32)),
    "slopes": dict(alibi_slopes=np.array([0.5, 0.1, 0, 1], np.float32)),
    "both": dict(
        sinks=np.array([0.5, 0, 3, -1], np.float32),
        alibi_slopes=np.array([0.5, 0.1, 0, 1], np.float32),
        softcap=4.0,
    ),
}


@pytest.mark.parametrize("name", OF_HEADS)
@pytest.mark.parametrize("mask", [{}, dict(causal=True), dict(causal=True, window=17)])
@pytest.mark.parametrize("lengths", [(70, 70), (33, 150), (150, 33), (1, 600)])
def test_sinks_and_slopes(name, mask, lengths):
    near(*both(*operands(2, 4, 2, *lengths, 32, 16), **mask, **OF_HEADS[name]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, True])
def test_short_floats(dtype, causal):
    got, want = both(*operands(1, 4, 2, 150, 170, 64, 64, dtype), causal=causal)
    near(got, want, dtype, slack=2)


def test_without_a_gradient_of_the_sums():
    q, k, v = operands(1, 2, 1, 40, 50, 32, 32)
    out, lse = kernels.attention(q, k, v, causal=True, with_lse=True)
    grad = numbers(out.shape, seed=5)
    got = kernels.attention_backward(grad, q, k, v, out, lse, causal=True)
    near(got, gradients(q, k, v, grad, np.zeros(lse.shape), causal=True))


def test_finite_differences():
    """Without formulas: how a random sum of both results changes along a random direction."""
    q, k, v = (double(x) for x in operands(1, 2, 1, 30, 40, 16, 16))
    options = dict(causal=True, window=25, softcap=3.0)
    grad, lse_grad = numbers((1, 2, 30, 16), seed=5), numbers((1, 2, 30), seed=6)
    lower = [x.astype(np.float32) for x in (q, k, v)]
    out, lse = kernels.attention(*lower, with_lse=True, **options)
    got = kernels.attention_backward(grad, *lower, out, lse, lse_grad, **options)

    def value(*arrays):
        o, sums = attention(*arrays, **options)
        return (o * grad).sum() + (sums * lse_grad).sum()

    for i, x in enumerate(lower):
        way = double(numbers(x.shape, seed=7 + i))
        ends = []
        for step in (1e-5, -1e-5):
            moved = [double(y) for y in lower]
            moved[i] = moved[i] + step * way
            ends.append(value(*moved))
        slope = (ends[0] - ends[1]) / 2e-5
        assert abs((double(got[i]) * way).sum() - slope) <= 1e-4 * max(1, abs(slope))


def test_heads_second():
    q, k, v = operands(2, 4, 2, 40, 60, 32, 32)
    out, lse = kernels.attention(q, k, v, causal=True, with_lse=True)
    grad = numbers(out.shape, seed=5)
    want = kernels.attention_backward(grad, q, k, v, out, lse, causal=True)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (grad, q, k, v, out)]
    got = kernels.attention_backward(*turned, lse, causal=True, heads_first=False)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one.swapaxes(1, 2), other)


def ragged(lengths, lengths_k, options, d=32, dv=16):
    """Arrays of sequences one after the other, where they begin, and the results' gradients."""
    at, at_k = (np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (lengths, lengths_k))
    q, k, v = (
        numbers((at[-1], 4, d)),
        numbers((at_k[-1], 2, d), seed=1),
        numbers((at_k[-1], 2, dv), seed=2),
    )
    how = dict(options, cu_seqlens=at, max_seqlen=max(lengths))
    if lengths is not lengths_k:
        how |= dict(cu_seqlens_k=at_k, max_seqlen_k=max(lengths_k))
    return (q, k, v), (at, at_k), how


RAGGED = [
    ((70,), None),
    ((5, 0, 130, 64, 1), None),
    ((0, 0), None),
    ((5, 0, 130, 64, 1), (7, 40, 100, 64, 0)),
    ((1, 1, 1), (129, 0, 300)),
]


@pytest.mark.parametrize(
    "options",
    [{}, dict(causal=True), dict(causal=True, window=20)],
    ids=["full", "causal", "window"],
)
@pytest.mark.parametrize("lengths, lengths_k", RAGGED)
def test_ragged(lengths, lengths_k, options):
    """Each sequence as if it were alone, forward and backward."""
    arrays, (at, at_k), how = ragged(lengths, lengths_k or lengths, options)
    out, lse = kernels.attention(*arrays, with_lse=True, **how)
    grad = numbers(out.shape, seed=5)
    lse_grad = np.where(np.isinf(lse), 0, numbers(lse.shape, seed=6))
    found = kernels.attention_backward(grad, *arrays, out, lse, lse_grad, **how)

    def alone(x, start, end):
        return np.ascontiguousarray(x[start:end].swapaxes(0, 1)[None])

    for (start, end), (first, last) in zip(pairwise(at), pairwise(at_k), strict=True):
        q, g, dq = (alone(x, start, end) for x in (arrays[0], grad, found[0]))
        k, v, dk, dv = (alone(x, first, last) for x in (*arrays[1:], *found[1:]))
        want = attention(q, k, v, **options)
        np.testing.assert_allclose(alone(out, start, end), want[0], atol=1e-5)
        np.testing.assert_allclose(lse[None, :, start:end], want[1], atol=1e-5)
        near((dq, dk, dv), gradients(q, k, v, g, lse_grad[None, :, start:end], **options))


def test_what_lies_behind_the_end_does_not_matter():
    """Rows and columns of the same memory that are NaN."""
    whole = operands(1, 2, 2, 128, 128, 32, 32)
    for x in whole:
        x[:, :, 70:] = np.nan
    q, k, v = (x[:, :, :70] for x in whole)
    got, want = both(q, k, v, causal=True)
    near(got, want)


def test_rows_whose_scores_are_large():
    q, k, v = operands(1, 2, 2, 64, 200, 32, 32)
    got, want = both(q, k * 60, v)
    near(got, want, slack=256)


def test_the_same_bits():
    """Nothing is added up in an order that could differ."""
    arrays = operands(2, 4, 2, 70, 90, 32, 32, "bfloat16")
    out, lse = kernels.attention(*arrays, causal=True, with_lse=True)
    with launches() as found:
        kernels.attention_backward(out, *arrays, out, lse, causal=True)
    for kernel, args, options in found:
        compiled = kernel.compile(*args, target="sm_90a", **options)
        assert "red.global" not in compiled.ptx
        assert "reduce.async" not in compiled.ptx


BAD = [
    (
        lambda g, q, k, v, o, s: kernels.attention(q, k, v, sinks=np.zeros(2, np.float32)),
        "sinks: expected the shape",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(
            g, q, k, v, o, s, alibi_slopes=np.zeros(4)
        ),
        "alibi_slopes is float32, got float64",
    ),
    (lambda g, q, k, v, o, s: kernels.attention_backward(g[:, :, :3], q, k, v, o, s), "grad: exp"),
    (lambda g, q, k, v, o, s: kernels.attention_backward(g, q, k, v, o[..., :3], s), "out: exp"),
    (lambda g, q, k, v, o, s: kernels.attention_backward(g, q, k, v, o, s[:1]), "lse: expected"),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(g, q, k, v, o, s, s[:, :1]),
        "lse_grad: expected",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(g.astype(np.float16), q, k, v, o, s),
        "grad is float16 and q float32",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(g, q, k, v, o, s.astype(np.float64)),
        "lse is float32, got float64",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(g, q, k, v, o, s, window=3),
        "window is a number of keys",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(g, q, k, v, o, s, max_seqlen=3),
        "come together",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(
            g, q, k, v, o, s, cu_seqlens_k=np.zeros(2, np.int32), max_seqlen_k=3
        ),
        "cu_seqlens_k comes beside cu_seqlens",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention_backward(g[0], q[0], k[0], v[0], o[0], s[0]),
        r"\[batch, heads, queries, D\]",
    ),
    (
        lambda g, q, k, v, o, s: kernels.attention(
            q[0], k[0], v[0], cu_seqlens=np.zeros(2, np.int32), max_seqlen=4
        ),
        "q has 4 tokens and k 2; pass cu_seqlens_k",
    ),
]


@pytest.mark.parametrize("call, says", BAD, ids=[says for _, says in BAD])
def test_errors(call, says):
    arrays = operands(2, 4, 2, 5, 6, 16, 16)
    out, lse = kernels.attention(*arrays, with_lse=True)
    with pytest.raises(tkc.LaunchError, match=says):
        call(out, *arrays, out, lse)


def backward_of(q, k, v, **options):
    """The gradient's launches alone."""
    tokens = "cu_seqlens" in options
    sums = np.zeros(q.shape[1::-1] if tokens else q.shape[:3], np.float32)
    out = zeros(*q.shape[:-1], v.shape[-1]).astype(q.dtype)
    kernels.attention_backward(out, q, k, v, out, sums, **options)


FORMS = {
    "full": lambda d: backward_of(*[zeros(1, 8, 512, d)] * 3),
    "causal": lambda d: backward_of(*[zeros(1, 8, 512, d)] * 3, causal=True),
    "grouped": lambda d: backward_of(zeros(2, 8, 512, d), *[zeros(2, 2, 512, d)] * 2, causal=True),
    "window": lambda d: backward_of(*[zeros(1, 8, 2048, d)] * 3, causal=True, window=256),
    "soft cap": lambda d: backward_of(*[zeros(1, 8, 512, d)] * 3, causal=True, softcap=30.0),
    "odd lengths": lambda d: backward_of(
        zeros(1, 8, 501, d), *[zeros(1, 8, 777, d)] * 2, causal=True
    ),
    "ragged": lambda d: backward_of(
        *[zeros(3000, 8, d)] * 3, causal=True, cu_seqlens=np.zeros(4, np.int32), max_seqlen=1500
    ),
    "sinks and slopes": lambda d: backward_of(
        *[zeros(1, 8, 512, d)] * 3,
        causal=True,
        sinks=np.zeros(8, np.float32),
        alibi_slopes=np.zeros(8, np.float32),
    ),
    "float32": lambda d: backward_of(*[np.zeros((1, 4, 512, d), np.float32)] * 3, causal=True),
}


STARTS = dict(cu_seqlens=np.zeros(4, np.int32), max_seqlen=4096)
SLOPES = dict(alibi_slopes=np.zeros(8, np.float32))
LONG = {
    "causal": (True, dict(causal=True)),
    "grouped": (True, dict(causal=True, shared=2)),
    "window": (True, dict(causal=True, window=2048)),
    "ragged": (True, dict(causal=True, **STARTS)),
    "ragged, full": (True, STARTS),
    "ragged slopes, full": (True, STARTS | SLOPES),
    "narrow window": (False, dict(causal=True, window=1024)),
    "slopes": (False, dict(causal=True, **SLOPES)),
}


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("name", LONG)
def test_scores_are_computed_once_where_columns_are_seen_by_many_rows(name, monkeypatch):
    (once, options), target = LONG[name], "sm_90a"
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    shared = (options := dict(options)).pop("shared", 8)
    ragged = "cu_seqlens" in options
    shapes = [(8192, heads, 64) if ragged else (1, heads, 8192, 64) for heads in (8, shared)]
    with launches() as found:
        backward_of(zeros(*shapes[0]), *[zeros(*shapes[1])] * 2, **options)
    names = [kernel.__name__ for kernel, *_ in found]
    assert ("_scaled_queries" in names) == once and ("_queries" in names) != once
    for kernel, args, how in found:
        compiled = kernel.compile(*args, target=target, **how)
        assert compiled.resources.clean, f"{kernel.__name__}: {compiled.resources.log}"


def test_registers_hold_what_a_loop_does_not_change_where_asked():
    """With mma.sync, though sums and scores take most: a loop reads Q and dO no more."""
    with launches("sm_80") as found:
        FORMS["full"](64)
    kernel, args, options = next(x for x in found if x[0].__name__ == "_queries")
    assert options["left_operand"] == "registers"

    def reads_of_a_loop():
        text = kernel.compile(*args, target="sm_80", **options).ir("final")
        return text[text.index("scf.for") :].count("tile.read ")

    held = reads_of_a_loop()
    del options["left_operand"]
    assert held == reads_of_a_loop() - 2


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    "name, d, target, deterministic",
    [
        (name, d, target, deterministic)
        for name in FORMS
        for d in (32, 64, 96, 128, 256)
        for target in ("sm_80", "sm_89", "sm_90a")
        for deterministic in (True, False)
        if (deterministic and d not in (32, 96))
        or (not deterministic and d < 256 and target == "sm_90a")
    ],
)
def test_it_assembles(name, d, target, deterministic, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    monkeypatch.setattr(module, "wants_equal_bits", lambda x, asked: deterministic)
    with launches() as found:
        FORMS[name](d)
    names = [kernel.__name__ for kernel, *_ in found if kernel.__name__ != "_sink_gradients"]
    adds = "_scaled_queries" in names
    if adds:
        assert target == "sm_90a" and not deterministic
        assert names == ["_row_terms", "_keys_and_values", "_scaled_queries"]
    else:
        assert deterministic or name in ("float32", "soft cap") or (d <= 64 and name != "full")
        assert names[:2] == ["_row_terms", "_queries"]
        assert names[-1] == "_keys_and_values"
    for kernel, args, options in found:
        compiled = kernel.compile(*args, target=target, **options)
        assert compiled.resources.clean, f"{kernel.__name__}: {compiled.resources.log}"
        if (
            kernel.__name__ in ("_row_terms", "_sink_gradients", "_scaled_queries")
            or target != "sm_90a"
            or name == "float32"
        ):
            continue
        assert "wgmma" in compiled.ptx, compiled.decisions
        assert any("roles: a producer" in line for line in compiled.decisions), compiled.decisions
        if adds:
            assert "cp.reduce.async.bulk.tensor" in compiled.ptx
