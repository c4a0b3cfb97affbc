"""Attention by score_mod, mask_mod, block masks, bias and dropout, and its gradients, against
float64; compiled for GPUs.
"""

from functools import partial

import numpy as np
import pytest

import tkc
from tests.kernels.checks import double, launches, numbers
from tests.kernels.test_attention import operands, zeros
from tkc import kernels
from tkc.codegen.ptx.ptxas import find
from tkc.kernels import attention_mods as module

TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02, "float16": 0.003}
STEP = 1e-6  # of differences in float64


class Plain:
    """The functions of tkc that the modifiers below use, of NumPy."""

    tanh, where, abs = np.tanh, np.where, np.abs


def attend(q, k, v, score, mask, captured=(), scale=None, sinks=None, kept=1.0):
    """A function of q, k, v and what was captured that gives (result, log-sum-exp) in float64,
    with what its gradients need.
    """
    q, k, v = map(double, (q, k, v))
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    k, v = (np.repeat(x, heads // k.shape[1], 1) for x in (k, v))
    place = np.ogrid[:batch, :heads, :queries, :keys]
    raw = q @ k.swapaxes(-1, -2) * (d**-0.5 if scale is None else scale)
    s = np.broadcast_to(score(raw, *place), raw.shape)
    s = np.where(np.broadcast_to(mask(*place), raw.shape), s, -np.inf)
    extra = np.full((heads, 1), -np.inf) if sinks is None else double(sinks)[:, None]
    top = np.maximum(s.max(-1, initial=-np.inf), extra)
    base = np.where(np.isinf(top), 0, top)
    with np.errstate(divide="ignore"):
        lse = base + np.log(np.exp(s - base[..., None]).sum(-1) + np.exp(extra - base))
    p = np.exp(s - np.where(np.isinf(lse), 0, lse)[..., None])
    return (p * kept) @ v, lse, (q, k, v, raw, p, place)


def gradients(arrays, grad, lse_grad, score, mask, captured=(), kept=1.0, bias=None, **options):
    """(dQ, dK, dV, of each captured array, of what `score` adds) in float64; slopes of `score` by
    differences.
    """
    shared = arrays[1].shape[1]
    out, _, (q, k, v, raw, p, place) = attend(*arrays, score, mask, kept=kept, **options)
    grad = double(grad)
    term = (grad * out).sum(-1) - lse_grad
    ds = p * ((grad @ v.swapaxes(-1, -2)) * kept - term[..., None])

    def change(of):
        """What the scores gain, by how much their gradients weigh it, as `of` moves them."""
        up, down = (np.broadcast_to(of(step), raw.shape) for step in (STEP, -STEP))
        with np.errstate(invalid="ignore"):
            return np.where(ds == 0, 0, (up - down) / (2 * STEP) * ds)

    draw = change(lambda step: score(raw + step, *place))
    scale = options.get("scale") or q.shape[-1] ** -0.5

    def folded(x):
        return x.reshape(x.shape[0], shared, x.shape[1] // shared, *x.shape[2:]).sum(2)

    found = [
        scale * draw @ k,
        folded(scale * draw.swapaxes(-1, -2) @ q),
        folded((p * kept).swapaxes(-1, -2) @ grad),
    ]
    for x in captured:
        slopes = np.zeros(x.shape)
        for i in np.ndindex(*x.shape):
            before = x[i].copy()

            def moved(step, i=i, x=x, before=before):
                x[i] = before + step
                result = score(raw, *place)
                x[i] = before
                return result

            slopes[i] = change(moved).sum()
        found.append(slopes)
    if bias is not None:
        shape = (*[1] * (4 - bias.ndim), *bias.shape)
        axes = tuple(i for i, n in enumerate(shape) if n == 1)
        found.append(ds.sum(axes).reshape(bias.shape))
    return found


# By name: a function of (tkc or Plain, arrays by name) that gives score_mod and mask_mod.
def causal(x, a):
    return None, lambda b, h, i, j: i >= j


def window(x, a):
    return None, lambda b, h, i, j: (i >= j) & (i - j < 17)


def two_sided(x, a):
    return None, lambda b, h, i, j: (i - j <= 9) & (j - i <= 30)


def prefix(x, a):
    prefixes = a["prefixes"]
    return None, lambda b, h, i, j: (i >= j) | (j < prefixes[b])


def document(x, a):
    of = a["documents"]
    return None, lambda b, h, i, j: (of[b, i] == of[b, j]) & (i >= j)


def alibi(x, a):
    slopes = a["slopes"]
    return lambda s, b, h, i, j: s - slopes[h] * (i - j), lambda b, h, i, j: i >= j


def softcap(x, a):
    return lambda s, b, h, i, j: 3 * x.tanh(s / 3), lambda b, h, i, j: i >= j


def relative(x, a):
    """The distance's own bias, by head, clipped."""
    table = a["table"]

    def score(s, b, h, i, j):
        away = x.where(i - j > 7, 7, x.where(i - j < -7, -7, i - j))
        return s + table[h, away + 7]

    return score, None


def neighbourhood(x, a):
    """Of pixels in rows of 9, those up to 2 rows and columns away."""
    return None, lambda b, h, i, j: (x.abs(i // 9 - j // 9) <= 2) & (x.abs(i % 9 - j % 9) <= 2)


def dilated(x, a):
    return None, lambda b, h, i, j: ((i - j) % 4 == 0) & (i >= j) & (i - j < 60)


def products(x, a):
    """Slopes of all kinds: of the score, of numbers of heads, rows, and one for all."""
    rates, rows, one = a["rates"], a["rows"], a["one"]

    def score(s, b, h, i, j):
        return x.where(j % 2 == 0, s * rates[h] + rows[b, i], s * s * one * 0.1)

    return score, lambda b, h, i, j: i + 5 * h >= j


MODS = [
    causal,
    window,
    two_sided,
    prefix,
    document,
    alibi,
    softcap,
    relative,
    neighbourhood,
    dilated,
    products,
]
FLOATS = ("slopes", "table", "rates", "rows", "one")


def captured(batch, heads, queries, keys, dtype=np.float32):
    longest, random = max(queries, keys, 1), np.random.default_rng(3)
    return dict(
        prefixes=np.arange(5, 5 + batch, dtype=np.int32) * 3,
        documents=np.sort(random.integers(0, 4, (batch, longest)), 1).astype(np.int32),
        slopes=random.uniform(0, 0.5, heads).astype(dtype),
        table=random.uniform(-1, 1, (heads, 15)).astype(dtype),
        rates=random.uniform(0.5, 1.5, heads).astype(dtype),
        rows=random.uniform(-1, 1, (batch, longest)).astype(dtype),
        one=np.array(0.7, dtype),
    )


def everywhere(*place):
    return np.ones((1, 1, 1, 1), bool)


def as_it_is(s, *place):
    return s


class Case:
    """A call with the functions of a modifier, in float32 and in float64."""

    def __init__(self, mod, shape, dtype="float32", block=None, **options):
        batch, heads, _, queries, keys, *_ = shape
        self.options, self.arrays = options, operands(*shape, dtype)
        given = captured(batch, heads, queries, keys)
        self.score, self.mask = mod(tkc, given)
        self.wide = {n: x.astype(np.float64) if n in FLOATS else x for n, x in given.items()}
        score, mask = mod(Plain, self.wide)
        self.plain = score or as_it_is, mask or everywhere
        self.ours = dict(score_mod=self.score, **options)
        if block is None:
            self.ours["mask_mod"] = self.mask
        else:
            mask = self.mask or (lambda b, h, i, j: i >= 0)
            extents = (batch, heads) if mod in (prefix, document, products) else (None, None)
            self.ours["block_mask"] = kernels.create_block_mask(
                mask, *extents, queries, keys, block, like=self.arrays[0]
            )
        found = [] if self.score is None else tkc.lambda_lift(self.score)[1]
        names = {id(x): n for n, x in given.items()}
        # of rank 0: captured as a view of rank 1
        self.names = [names.get(id(x), "one") for x in found]
        self.names = [n for n in self.names if n in FLOATS]

    def check(self, dtype="float32", slack=1):
        out, lse = kernels.attention(*self.arrays, with_lse=True, **self.ours)
        wanted, sums, _ = attend(*self.arrays, *self.plain, **self.options)
        tolerance = slack * TOLERANCE[dtype]
        assert str(out.dtype) == dtype
        assert np.abs(double(out) - wanted).max(initial=0) <= tolerance * max(
            1, np.abs(wanted).max(initial=0)
        )
        np.testing.assert_allclose(lse, sums, rtol=2e-3 * slack, atol=2e-3 * slack)
        grad, lse_grad = numbers(out.shape, dtype, 5), numbers(lse.shape, seed=6)
        lse_grad[np.isinf(sums)] = 0  # a row that sees nothing has a constant sum
        got = kernels.attention_backward(grad, *self.arrays, out, lse, lse_grad, **self.ours)
        want = gradients(
            self.arrays,
            grad,
            lse_grad,
            *self.plain,
            [self.wide[n] for n in self.names],
            **self.options,
        )
        got = [*got[:3], *(got[3] if self.score is not None else ())]
        names = ("dQ", "dK", "dV", *self.names)
        for name, one, other in zip(names, got, want, strict=True):
            most = max(1, np.abs(other).max(initial=0))
            error = np.abs(double(one).reshape(other.shape) - other).max(initial=0)
            assert error <= 2 * tolerance * most, (name, error, most)


SHAPES = [
    (2, 2, 1, 70, 45, 64, 64),
    (1, 4, 2, 33, 90, 32, 16),
    (1, 3, 1, 129, 65, 16, 40),
    (1, 1, 1, 1, 1, 7, 9),
]
NAMES = dict(ids=lambda x: getattr(x, "__name__", None) or "x".join(map(str, x)))


@pytest.mark.parametrize("shape", SHAPES, **NAMES)
@pytest.mark.parametrize("mod", MODS, **NAMES)
def test_mods(mod, shape):
    Case(mod, shape).check()


@pytest.mark.parametrize("block", [(32, 32), (64, 16), (16, 48), (128, 128)], **NAMES)
@pytest.mark.parametrize("mod", MODS, **NAMES)
def test_block_masks(mod, block):
    Case(mod, (2, 2, 1, 133, 90, 32, 16), block=block).check()


@pytest.fixture
def adding(monkeypatch):
    """dQ is added up in memory, as on Hopper with D = 128."""
    chosen = module._blocks_of
    monkeypatch.setattr(
        module,
        "_blocks_of",
        lambda *given: tuple(of._replace(adds_queries=True) for of in chosen(*given)),
    )


@pytest.mark.parametrize("block", [None, (32, 32), (16, 48), (48, 64), (256, 128)], ids=str)
@pytest.mark.parametrize("mod", [causal, prefix, document, softcap], **NAMES)
def test_sums_in_memory(mod, block, adding):
    Case(mod, (2, 2, 1, 133, 90, 32, 32), block=block).check()


def test_sums_in_memory_of_scores_far_below_zero(adding):
    """exp2(0 - L) of columns behind the last one is infinite where L is below -128."""
    case = Case(two_sided, (1, 1, 1, 70, 100, 32, 32))
    q, k, v = case.arrays
    case.arrays = q * np.float32(0.1) + 4, k * np.float32(0.1) - 4, v
    case.check()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mod", [document, relative], **NAMES)
def test_short_floats(mod, dtype):
    Case(mod, (1, 2, 1, 90, 100, 64, 64), dtype, block=64).check(dtype, slack=2)


@pytest.mark.parametrize("shape", [(1, 1, 1, 3, 0, 16, 16), (0, 2, 2, 4, 4, 8, 8)], **NAMES)
def test_nothing(shape):
    q, k, v = operands(*shape)
    out, lse = kernels.attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j, with_lse=True)
    assert (out == 0).all() and np.isneginf(lse).all()
    found = kernels.attention_backward(out, q, k, v, out, lse, mask_mod=lambda b, h, i, j: i >= j)
    assert all((x == 0).all() for x in found)


@pytest.mark.parametrize("size", [16, 48, 128])
@pytest.mark.parametrize("extents", [(133, 150), (16, 300), (257, 1)], **NAMES)
def test_the_lists_of_a_block_mask(size, extents):
    queries, keys = extents
    given = captured(2, 3, queries, keys)
    rows, columns = -(-queries // size), -(-keys // size)
    for mod in (causal, document, dilated, products):
        mask = mod(tkc, given)[1]
        made = kernels.create_block_mask(mask, 2, 3, queries, keys, size, like=given["rows"])
        place = np.ogrid[:2, :3, :queries, :keys]
        dense = np.broadcast_to(mod(Plain, given)[1](*place), (2, 3, queries, keys))
        for b, h in np.ndindex(2, 3):
            seen = {
                (r, c): dense[b, h, r * size : (r + 1) * size, c * size : (c + 1) * size]
                for r in range(rows)
                for c in range(columns)
            }
            for kind in (False, True):
                chosen = {at for at, part in seen.items() if part.any() and part.all() == kind}
                prefix_ = "full_" if kind else ""
                for name, axis, n in (("kv", 0, rows), ("q", 1, columns)):
                    counts = getattr(made, f"{prefix_}{name}_num_blocks")[b, h]
                    places = getattr(made, f"{prefix_}{name}_indices")[b, h]
                    for i in range(n):
                        want = sorted(at[1 - axis] for at in chosen if at[axis] == i)
                        assert places[i, : counts[i]].tolist() == want


BIASES = [(2, 2, 33, 40), (2, 1, 40), (1, 1, 33, 40), (2, 1, 1, 40), (33, 1), ()]


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_bias(shape):
    arrays, bias = operands(2, 2, 1, 33, 40, 32, 16), numbers(shape, seed=8)
    wide = double(bias)
    options = dict(causal=True, bias=bias)
    out, lse = kernels.attention(*arrays, with_lse=True, **options)
    plain = lambda s, *place: s + wide, lambda b, h, i, j: i + 7 >= j
    want = attend(*arrays, *plain)
    np.testing.assert_allclose(out, want[0], rtol=2e-5, atol=2e-5)
    grad = numbers(out.shape, seed=5)
    *got, of_bias = kernels.attention_backward(grad, *arrays, out, lse, **options)
    *wanted, want_bias = gradients(arrays, grad, np.zeros(lse.shape), *plain, bias=wide)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_bias.reshape(shape), want_bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", BIASES[1:], ids=str)
def test_who_asks_for_equal_bits_gets_no_bias_that_is_added_to_in_any_order(shape):
    arrays, bias = operands(2, 2, 1, 33, 40, 32, 16), numbers(shape, seed=8)
    out, lse = kernels.attention(*arrays, bias=bias, deterministic=True, with_lse=True)
    given = out, *arrays, out, lse
    with pytest.raises(tkc.LaunchError, match=r"no fixed order .* expand bias to \[batch") as error:
        kernels.attention_backward(*given, bias=bias, deterministic=True)
    assert "\n" not in str(error.value)
    wide = np.broadcast_to(bias, (2, 2, 33, 40))
    got = kernels.attention_backward(*given, bias=wide, deterministic=True)
    want = kernels.attention_backward(*given, bias=bias)
    axes = tuple(i for i in range(4) if ([1] * (4 - bias.ndim) + [*shape])[i] == 1)
    summed = got[3].sum(axes).reshape(shape)
    np.testing.assert_allclose(summed, want[3].reshape(shape), rtol=1e-4, atol=1e-4)


def test_who_asks_for_equal_bits_gets_no_gradients_of_what_score_mod_captured():
    arrays, table = operands(1, 2, 2, 33, 40, 32, 16), numbers((2,))
    places = np.arange(2, dtype=np.int32)
    out, lse = kernels.attention(*arrays, with_lse=True)
    given = out, *arrays, out, lse

    def of_floats(s, b, h, i, j):
        return s * table[h]

    def of_integers(s, b, h, i, j):
        return s * places[h]

    how = dict(deterministic=True)
    with pytest.raises(tkc.LaunchError, match="no fixed order"):
        kernels.attention_backward(*given, score_mod=of_floats, **how)
    kernels.attention_backward(*given, score_mod=of_integers, **how)
    full = numbers((1, 2, 33, 40))

    def beside(s, b, h, i, j):
        return s + full[b, h, j % 33, i]

    with pytest.raises(tkc.LaunchError, match="no fixed order"):
        kernels.attention_backward(*given, score_mod=beside, bias=full, **how)


def test_masks_beside_modifiers():
    """Windows, soft caps, slopes and sinks are those of a call without modifiers."""
    q, k, v = operands(2, 4, 2, 60, 90, 32, 16)
    heads = dict(
        sinks=np.array([0.5, 0, 3, -1], np.float32),
        alibi_slopes=np.array([0.5, 0.1, 0, 1], np.float32),
    )
    for options in (
        dict(causal=True, window=17),
        dict(causal=True, softcap=2.0, **heads),
        dict(heads_first=False, causal=True),
    ):
        given = (q, k, v)
        if "heads_first" in options:
            given = tuple(np.ascontiguousarray(x.swapaxes(1, 2)) for x in given)
        want = kernels.attention(*given, with_lse=True, **options)
        grad, lse_grad = numbers(want[0].shape, seed=5), numbers(want[1].shape, seed=6)
        mod = dict(mask_mod=lambda b, h, i, j: j >= 0)
        got = kernels.attention(*given, with_lse=True, **options, **mod)
        got += kernels.attention_backward(grad, *given, *got, lse_grad, **options, **mod)
        want += kernels.attention_backward(grad, *given, *want, lse_grad, **options)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lengths", [(70, 70), (33, 90), (90, 33)], **NAMES)
@pytest.mark.parametrize("sides", [(9, 30), (0, 3), (None, 5), (20, None), (7, 0)], ids=str)
def test_windows_of_two_sides(sides, lengths):
    arrays, shift = operands(1, 2, 1, *lengths, 32, 16), lengths[1] - lengths[0]
    left, right = (10**6 if n is None else n for n in sides)

    def mask(b, h, i, j):
        return (i + shift - j <= left) & (j - i - shift <= right)

    out, lse = kernels.attention(*arrays, window=sides, with_lse=True)
    want, sums, _ = attend(*arrays, as_it_is, mask)
    np.testing.assert_allclose(out, want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, sums, rtol=2e-5, atol=2e-5)
    grad = numbers(out.shape, seed=5)
    got = kernels.attention_backward(grad, *arrays, out, lse, window=sides)
    wanted = gradients(arrays, grad, np.zeros(lse.shape), as_it_is, mask)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def kept(shape, keys, seed, dropout):
    """What dropout leaves of each probability: read off results of attention whose probabilities
    are known, values being units.
    """
    batch, heads, queries = shape
    zero = np.zeros((batch, heads, queries, 16), np.float32)
    found = np.zeros((batch, heads, queries, keys))
    for first in range(0, keys, 64):
        values = np.zeros((batch, heads, keys, 64), np.float32)
        size = min(64, keys - first)
        values[:, :, first : first + size, :size] = np.eye(size)
        none = np.zeros((batch, heads, keys, 16), np.float32)
        out = kernels.attention(zero, none, values, dropout=dropout, seed=seed)
        found[..., first : first + size] = out[..., :size] * keys
    return found


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])
def test_dropout(seed):
    q, k, v = operands(2, 4, 2, 70, 90, 32, 16)
    mask = kept((2, 4, 70), 90, seed, 0.25)
    assert np.isclose(mask, 0).any() and set(np.unique(np.round(mask, 4))) == {0, 1.3333}
    assert abs((mask > 0).mean() - 0.75) < 0.01
    # neither rows, columns nor heads are drawn alike
    for axis in range(4):
        one, other = np.take(mask, 0, axis), np.take(mask, 1, axis)
        assert 0.3 < ((one > 0) == (other > 0)).mean() < 0.75
    options = dict(causal=True, dropout=0.25, seed=seed)
    out, lse = kernels.attention(q, k, v, with_lse=True, **options)
    plain = as_it_is, lambda b, h, i, j: i + 20 >= j
    want, sums, _ = attend(q, k, v, *plain, kept=mask)
    np.testing.assert_allclose(out, want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, sums, rtol=2e-5, atol=2e-5)
    grad = numbers(out.shape, seed=5)
    got = kernels.attention_backward(grad, q, k, v, out, lse, **options)
    wanted = gradients((q, k, v), grad, np.zeros(lse.shape), *plain, kept=mask)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    again = kernels.attention(q, k, v, **options)
    assert (again == out).all()
    assert (kernels.attention(q, k, v, **{**options, "seed": seed + 1}) != out).any()


class Ragged:
    """Sequences one after the other, each of which is attention of its own."""

    def __init__(self, lengths, keys=None, dtype="float32"):
        self.lengths, self.keys, heads, shared = lengths, keys or lengths, 4, 2
        starts, starts_k = (np.cumsum([0, *n]).astype(np.int32) for n in (lengths, self.keys))
        self.bounds = [(*starts[b : b + 2], *starts_k[b : b + 2]) for b in range(len(lengths))]
        q = numbers((sum(lengths), heads, 32), dtype, 1)
        k = numbers((sum(self.keys), shared, 32), dtype, 2)
        self.arrays = q, k, numbers((sum(self.keys), shared, 16), dtype, 3)
        self.options = dict(cu_seqlens=starts, max_seqlen=max(lengths))
        if keys is not None:
            self.options |= dict(cu_seqlens_k=starts_k, max_seqlen_k=max(keys))

    def extents(self):
        return len(self.lengths), 4, max(self.lengths), max(self.keys)

    def parts(self):
        """Of each sequence its rows of Q, those of K and V, and its q, k and v as one batch."""
        for b, (start, end, first, last) in enumerate(self.bounds):
            of = slice(start, end), slice(first, last)
            arrays = [
                x[s].swapaxes(0, 1)[None] for x, s in zip(self.arrays, (*of, of[1]), strict=True)
            ]
            yield b, *of, arrays

    def check(self, score, mask, names=(), kept=None, **options):
        """score, mask: in float64, of a sequence's number. names: what has gradients besides."""
        out, lse = kernels.attention(*self.arrays, with_lse=True, **self.options, **options)
        grad, lse_grad = numbers(out.shape, seed=5), numbers(lse.shape, seed=6)
        lse_grad[np.isinf(lse)] = 0
        found = kernels.attention_backward(
            grad, *self.arrays, out, lse, lse_grad, **self.options, **options
        )
        sums = [0.0 for _ in names]
        for b, rows, columns, arrays in self.parts():
            of = dict(kept=1.0 if kept is None else kept[b][None])
            plain = partial(score, b), partial(mask, b)
            if not arrays[0].size:
                continue
            want, sums_of, _ = attend(*arrays, *plain, **of)
            np.testing.assert_allclose(out[rows].swapaxes(0, 1), want[0], rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(lse[:, rows], sums_of[0], rtol=2e-5, atol=2e-5)
            given = grad[rows].swapaxes(0, 1)[None], lse_grad[:, rows][None]
            got = gradients(arrays, *given, *plain, names, **of)
            for x, other, at in zip(found, got[:3], (rows, columns, columns), strict=False):
                np.testing.assert_allclose(x[at].swapaxes(0, 1), other[0], rtol=1e-4, atol=1e-4)
            sums = [x + y for x, y in zip(sums, got[3:], strict=True)]
        if names:
            for x, other in zip(found[3], sums, strict=True):
                np.testing.assert_allclose(
                    x.reshape(other.shape), other, rtol=1e-3, atol=1e-3 * max(1, abs(other).max())
                )


LENGTHS = [((70, 0, 1, 133), None), ((33, 64, 5), (90, 10, 0))]


@pytest.mark.parametrize("lengths, keys", LENGTHS, ids=str)
@pytest.mark.parametrize("block", [None, 64])
@pytest.mark.parametrize("mod", MODS, **NAMES)
def test_ragged_batches(mod, block, lengths, keys):
    case = Ragged(lengths, keys)
    batch, heads, *longest = case.extents()
    given = captured(batch, heads, *longest)
    score, mask = mod(tkc, given)
    wide = {n: x.astype(np.float64) if n in FLOATS else x for n, x in given.items()}
    plain, seen = (
        f or other for f, other in zip(mod(Plain, wide), (as_it_is, everywhere), strict=True)
    )
    options = dict(score_mod=score, mask_mod=mask)
    if block is not None:
        listed = mask or (lambda b, h, i, j: i >= 0)
        options["mask_mod"], options["block_mask"] = (
            None,
            kernels.create_block_mask(listed, batch, heads, *longest, block, like=given["rows"]),
        )
    names = {id(x): n for n, x in given.items()}
    found = [] if score is None else tkc.lambda_lift(score)[1]
    floats = [n for x in found if (n := names.get(id(x), "one")) in FLOATS]
    case.check(
        lambda at, s, b, *place: plain(s, b + at, *place),
        lambda at, b, *place: seen(b + at, *place),
        [wide[n] for n in floats],
        **options,
    )


@pytest.mark.parametrize("lengths, keys", LENGTHS, ids=str)
@pytest.mark.parametrize("sides", [(9, 30), (None, 5), (20, None)], ids=str)
def test_ragged_windows_of_two_sides(sides, lengths, keys):
    case = Ragged(lengths, keys)
    left, right = (10**6 if n is None else n for n in sides)

    def mask(at, b, h, i, j):
        row = i + (case.keys[at] - case.lengths[at])
        return (row - j <= left) & (j - row <= right)

    case.check(lambda at, s, *place: s, mask, window=sides)


@pytest.mark.parametrize("lengths, keys", LENGTHS, ids=str)
def test_ragged_slopes_soft_caps_and_bias_beside_a_mask(lengths, keys):
    case, slopes = Ragged(lengths, keys), np.array([0.5, 0.1, 0, 1], np.float32)
    _, _, *longest = case.extents()
    bias = numbers((1, 4, *longest), seed=8)

    def score(at, s, b, h, i, j):
        away = np.abs(i + (case.keys[at] - case.lengths[at]) - j)
        capped = 3 * np.tanh(s / 3) - slopes[h] * away
        return capped + double(bias)[:, :, : i.size, : j.size]

    options = dict(softcap=3.0, alibi_slopes=slopes, bias=bias)
    case.check(
        score, lambda at, b, h, i, j: j % 3 != 1, mask_mod=lambda b, h, i, j: j % 3 != 1, **options
    )


def test_ragged_dropout_draws_by_sequence_and_place():
    case = Ragged((70, 0, 33))
    mask = kept((3, 4, 70), 70, 7, 0.25)
    parts = [mask[b, :, :n, :n] for b, n in enumerate(case.lengths)]
    options = dict(causal=True, dropout=0.25, seed=7)
    case.check(lambda at, s, *place: s, lambda at, b, h, i, j: i >= j, kept=parts, **options)


Q = zeros(1, 2, 64, 32)
MASK = kernels.create_block_mask(lambda b, h, i, j: i >= j, None, None, 64, 64, 16, like=Q)
MANY = [np.zeros(3, np.float32) for _ in range(9)]
WRONG = {
    "a function": (dict(score_mod=3), "score_mod is a function of elements, got int"),
    "sides": (dict(window=(3, -1)), r"on the left and on the right .* got \(3, -1\)"),
    "probability": (dict(dropout=1.0), "dropout is a probability below 1, got 1.0"),
    "bias": (dict(bias=zeros(3, 64, 64)), r"broadcasts to \[1, 2, 64, 64\].*got \[3, 64, 64\]"),
    "length": (dict(block_mask=MASK, length=80), r"make one for 80 queries and 80 keys"),
    "no block mask": (dict(block_mask=3), "create_block_mask or of torch, got int"),
    "many": (
        dict(score_mod=lambda s, b, h, i, j: s + MANY[0][h]),
        "captured 9 arrays, at most 8 fit",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name):
    options, says = WRONG[name]
    options = dict(options)
    q = zeros(1, 2, options.pop("length", 64), 32)
    with pytest.raises(tkc.LaunchError, match=says):
        kernels.attention(q, q, q, **options)


def test_errors_of_block_masks():
    with pytest.raises(tkc.LaunchError, match="multiples of 16, got 10 and 10"):
        kernels.create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, 10, like=Q)
    with pytest.raises(tkc.LaunchError, match="pass like=q"):
        kernels.create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8)


def test_what_is_not_elementwise_has_no_gradient():
    def score(s, b, h, i, j):
        return s + tkc.cumsum(s, 1)

    q = zeros(1, 1, 16, 16).astype(np.float32)
    out, lse = kernels.attention(q, q, q, score_mod=score, with_lse=True)
    with pytest.raises(tkc.CompileError, match="no derivative in tkc.vjp"):
        kernels.attention_backward(q, q, q, q, out, lse, score_mod=score)


def test_a_function_made_anew_compiles_nothing():
    q = zeros(1, 1, 32, 16).astype(np.float32)

    def call(slopes):
        return lambda: kernels.attention(q, q, q, score_mod=lambda s, b, h, i, j: s - slopes[h])

    with launches() as found:
        call(np.zeros(1, np.float32))()
        call(np.ones(1, np.float32))()
    assert found[0][2]["MODS"] is found[1][2]["MODS"]


def both(mod, d, block=128, shape=(1, 8, 8, 1024, 1024), dtype="bfloat16", **options):
    """A call and its gradients, to be compiled."""
    batch, heads, shared, queries, keys = shape
    q, k = (
        np.zeros((batch, h, n, d), zeros(1).dtype if dtype == "bfloat16" else dtype)
        for h, n in ((heads, queries), (shared, keys))
    )
    score, mask = mod(tkc, captured(batch, heads, queries, keys))
    if block is None:
        options["mask_mod"] = mask
    else:
        made = np.zeros((1, 1, 8), np.int32), np.zeros((1, 1, 8, 8), np.int32)
        seen = mask or (lambda b, h, i, j: i >= 0)
        options["block_mask"] = kernels.BlockMask((queries, keys), *made * 4, (block, block), seen)
    options["score_mod"] = score
    kernels.attention(q, k, k, **options)
    sums = np.zeros((batch, heads, queries), np.float32)
    kernels.attention_backward(q, q, k, k, q, sums, **options)


COMPILED = [
    (causal, 64, 128, {}),
    (causal, 128, None, {}),
    (neighbourhood, 64, None, {}),
    (causal, 256, None, {}),
    (causal, 64, 128, dict(dtype="float32")),
    (alibi, 128, 128, {}),
    (relative, 128, None, {}),
    (document, 128, 128, dict(shape=(1, 8, 2, 1024, 1024))),
    (causal, 128, None, dict(dropout=0.1)),
]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("mod, d, block, options", COMPILED, ids=lambda x: str(x)[:20])
def test_it_assembles(mod, d, block, options, target, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: target, raising=False)
    if find("ptxas") is None:
        pytest.skip("ptxas is not installed")
    with launches() as found:
        both(mod, d, block, **options)
    for kernel, args, kwargs in found:
        compiled = kernel.compile(*args, target=target, **kwargs)
        assert compiled.resources.clean, f"{kernel.__name__}: {compiled.resources.log}"
        short = target == "sm_90a" and options.get("dtype") is None
        # what is read by place, and what is added up in memory, keep a kernel from wgmma
        if short and mod is causal and kernel.__name__ not in ("_row_terms", "_scaled_queries"):
            assert "wgmma" in compiled.ptx, compiled.decisions


@pytest.mark.gpu
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("mod", MODS, **NAMES)
def test_on_a_gpu(mod, d):
    torch = pytest.importorskip("torch")
    case = Case(mod, (1, 4, 2, 300, 300, d, d), "bfloat16", block=64)
    q, k, v = (torch.from_numpy(double(x)).cuda().bfloat16() for x in case.arrays)
    given = {n: torch.from_numpy(x).cuda() for n, x in captured(1, 4, 300, 300).items()}
    score, mask = mod(tkc, given)
    mask = mask or (lambda b, h, i, j: i >= 0)
    made = kernels.create_block_mask(mask, 1, 4, 300, 300, 64, like=q)
    options = dict(score_mod=score, block_mask=made)
    out, lse = kernels.attention(q, k, v, with_lse=True, **options)
    found = kernels.attention_backward(out, q, k, v, out, lse, **options)
    wide = [double(x.float().cpu()) for x in (q, k, v)]
    want, _, _ = attend(*wide, *case.plain)
    assert np.abs(double(out.float().cpu()) - want).max() <= 0.02 * np.abs(want).max()
    wanted = gradients(wide, out.float().cpu(), np.zeros(lse.shape), *case.plain)
    for one, other in zip(found, wanted, strict=False):
        assert np.abs(double(one.float().cpu()) - other).max() <= 0.03 * np.abs(other).max()
