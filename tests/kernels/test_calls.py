"""What calls of operators did is remembered (tkc/kernels/calls.py): with and without it results are
the same, and what a call depends on is all in the key. Skipped where torch is not installed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import count

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tkc  # noqa: E402
from tkc import kernels  # noqa: E402
from tkc.kernels import calls, torch_ops  # noqa: E402
from tkc.kernels.arrays import Array, contiguous, empty, library, zeros  # noqa: E402
from tkc.kernels.operator import OPERATORS, operator  # noqa: E402
from tkc.runtime import handed  # noqa: E402

torch_ops.register_all()  # whoever imported tkc.kernels before torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
MAX_SECONDS, DEVICES = 1.0, torch.cuda.device_count()


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(
        shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed)
    ).to(dtype)


def memory(op):
    return {
        (types, key): call
        for types, kind in op.first.__globals__["_behind"].__self__.kinds.items()
        if kind
        for key, call in kind.entries.items()
    }


def made(op):
    return {call for call in memory(op).values() if call != op.run}


def mine(fn=None, **options):
    """An operator of a test: not among the library's."""

    def make(f):
        op = operator(**options)(f)
        op.name = f"{op.name}_{next(NUMBER)}"
        for name in (f.__name__, op.name):
            OPERATORS.pop(name, None)
        torch_ops.register(op)
        return op

    return make(fn) if fn else make


NUMBER = count()


@tkc.jit
def _filled(out, value, N: tkc.constexpr):
    tkc.store(out, (0,), tkc.full((N,), value, tkc.float32))


def says(*, of, **options):
    """An operator whose result is `of` its arguments, which its generator finds out."""

    @mine(**options)
    def told(
        x: Array, y: Array | None = None, n: int = 3, f: float = 1.0, s: str = "", b: bool = False
    ) -> Array:
        out = empty(x, (1,), "float32")
        yield out
        _filled[1](out, float(of(x, y, n, f, s, b)), N=1)

    return told


def after(op, *before):
    """op of other arguments, after it has come to know the first."""
    for _ in range(3):
        op(*before)
    assert made(op)
    return lambda *args, **kwargs: op(*args, **kwargs).item()


class Other(torch.Tensor):
    pass


def X():
    return torch.zeros(8, 8, device=DEVICE)


PARTS = {
    "extents": (
        lambda x, *_: x.shape[0],
        lambda: (X(),),
        lambda: (torch.zeros(4, 8, device=DEVICE),),
        4,
    ),
    "strides": (lambda x, *_: x.stride()[0], lambda: (X(),), lambda: (X().T,), 1),
    "element type": (lambda x, *_: x.element_size(), lambda: (X(),), lambda: (X().half(),), 2),
    "alignment": (
        lambda x, *_: x.data_ptr() % 16,
        lambda: (X()[:4],),
        lambda: (torch.zeros(65, device=DEVICE)[1:33].reshape(4, 8),),
        4,
    ),
    "what is not there": (lambda x, y, *_: y is None, lambda: (X(), X()), lambda: (X(), None), 1),
    "the second's extents": (
        lambda x, y, *_: y.shape[0],
        lambda: (X(), X()),
        lambda: (X(), torch.zeros(4, 8, device=DEVICE)),
        4,
    ),
    "integers": (lambda x, y, n, *_: n, lambda: (X(), None, 3), lambda: (X(), None, 4), 4),
    "floats": (
        lambda x, y, n, f, *_: f,
        lambda: (X(), None, 3, 1.5),
        lambda: (X(), None, 3, 2.5),
        2.5,
    ),
    "the sign of 0": (
        lambda x, y, n, f, *_: str(f) == "-0.0",
        lambda: (X(), None, 3, 0.0),
        lambda: (X(), None, 3, -0.0),
        1,
    ),
    "types of numbers": (
        lambda x, y, n, *_: type(n) is bool,
        lambda: (X(), None, 1),
        lambda: (X(), None, True),
        1,
    ),
    "a parameter": (
        lambda x, *_: type(x) is torch.nn.Parameter,
        lambda: (X(),),
        lambda: (torch.nn.Parameter(X(), requires_grad=False),),
        1,
    ),
    "texts": (
        lambda x, y, n, f, s, b: len(s),
        lambda: (X(), None, 3, 1.0, "a"),
        lambda: (X(), None, 3, 1.0, "bcd"),
        3,
    ),
    "truth": (
        lambda x, y, n, f, s, b: b,
        lambda: (X(), None, 3, 1.0, "", False),
        lambda: (X(), None, 3, 1.0, "", True),
        1,
    ),
    "one array twice": (lambda x, y, *_: x is y, lambda: (X(), X()), lambda: (X(),) * 2, 1),
    "one memory twice": (
        lambda x, y, *_: x.data_ptr() == y.data_ptr(),
        lambda: (X(), X()),
        lambda: (lambda x: (x, x.view(8, 8)))(X()),
        1,
    ),
    "one array, not one memory": (
        lambda x, y, *_: 2 if x is y else x.data_ptr() == y.data_ptr(),
        lambda: (lambda x: (x, x.view(8, 8)))(X()),
        lambda: (X(),) * 2,
        2,
    ),
    "bytes that meet": (
        lambda x, y, *_: abs(x.data_ptr() - y.data_ptr()) < 128,
        lambda: (X()[:4], X()[:4]),
        lambda: (lambda x: (x[:4], x[2:6]))(X()),
        1,
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_a_call_depends_on_is_in_its_key(part):
    of, before, other, want = PARTS[part]
    op = says(of=of)
    arguments = before()
    first = after(op, *arguments)(*arguments)
    for _ in range(4):
        assert op(*other()).item() == want != first
    assert op(*arguments).item() == first


def test_the_device_is_in_the_key():
    if DEVICE == "cpu":
        pytest.skip("one device")
    op = says(of=lambda x, *_: x.is_cuda)
    known = after(op, X())
    assert known(X()) == 1 and known(X().cpu()) == 0


def test_tables_of_choices_are_in_the_key():
    now = [1]
    op = says(of=lambda *_: now[0])
    known = after(op, X())
    now[0] = 2
    assert known(X()) == 1  # nobody is to look at such a thing …
    handed.tables_changed()
    assert known(np.zeros((8, 8), np.float32)) == 2  # another call comes first
    assert known(X()) == 2  # … but at tables, which count


def test_importing_a_table_counts(tmp_path):
    @tkc.autotune([dict(N=8), dict(N=16)], measure=False)
    @tkc.jit
    def kernel(out, N: tkc.constexpr):
        tkc.store(out, (tkc.program_id(0) * N,), tkc.full((N,), 1.0, tkc.float32))

    before = handed.watch_tables()
    kernel.export_table(tmp_path / "table.json")
    kernel.import_table(tmp_path / "table.json")
    assert handed.watch_tables() != before


def test_whoever_watches_is_asked_each_time(monkeypatch):
    op, went = says(of=lambda *_: 1), []
    x = X()
    known = after(op, x)
    theirs = op.torch
    monkeypatch.setattr(op, "torch", lambda *args: went.append(args) or theirs(*args))

    def past(f):
        return (went.clear(), f(), not went)[2]

    assert past(lambda: op(x)) and past(lambda: op(torch.nn.Parameter(x, requires_grad=False)))
    wanted = X().requires_grad_()
    with pytest.raises(tkc.LaunchError, match="no gradient"):
        op(wanted)
    with torch.no_grad():
        assert past(lambda: op(wanted))
    with torch.utils._python_dispatch._disable_current_modes():
        assert past(lambda: op(x))

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Watching():
        assert not past(lambda: op(x))
    with torch.device(DEVICE):
        assert not past(lambda: op(x))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert not past(lambda: op(x))
    assert (
        not past(lambda: op(x.as_subclass(Other)))
        and not past(lambda: op(torch._neg_view(x)))
        and not past(lambda: op(torch._efficientzerotensor((8, 8), device=DEVICE)))
    )
    assert known(x) == 1


CALLS = {
    "softmax": lambda s: kernels.softmax(randn(3, 65, seed=s)),
    "softmax of columns": lambda s: kernels.softmax(randn(2, 65, 7, seed=s), axis=1),
    "softmax, turned": lambda s: kernels.softmax(randn(65, 7, seed=s).T),
    "rms_norm": lambda s: kernels.rms_norm(randn(5, 65, seed=s), randn(65, seed=s + 1)),
    "add_layer_norm": lambda s: kernels.add_layer_norm(
        randn(2, 5, 65, seed=s), randn(2, 5, 65, seed=s + 1), randn(65, seed=s + 2), None
    ),
    "layer_norm_backward": lambda s: kernels.layer_norm_backward(
        randn(5, 65, seed=s), randn(5, 65, seed=s + 1), randn(65, seed=s + 2)
    ),
    "swiglu": lambda s: kernels.swiglu(randn(5, 65, seed=s), randn(65, 5, seed=s + 1).T),
    "dropout": lambda s: kernels.dropout(randn(5, 65), 0.5, 1000 + s),
    "transpose": lambda s: kernels.transpose(randn(3, 65, 31, seed=s)),
    "embedding_backward": lambda s: kernels.embedding_backward(
        randn(9, 33, seed=s), torch.arange(9, device=DEVICE) * s % 5, 5
    ),
    "cumsum": lambda s: kernels.cumsum(randn(7, 65, seed=s), 0),
    "cumsum of long rows": lambda s: kernels.cumsum(randn(2, 9001, seed=s)),
    "sum": lambda s: kernels.sum(randn(300, 65, seed=s)),
    "topk": lambda s: kernels.topk(randn(3, 3000, seed=s), 5),
    "histogram": lambda s: kernels.histogram(randn(3, 3000, seed=s), 16),
    "quantize": lambda s: kernels.quantize(randn(3, 65, seed=s), "int8"),
    "quantize_rows": lambda s: kernels.quantize_rows(randn(3, 65, seed=s), "int8"),
    "quantize_blocks": lambda s: kernels.quantize_blocks(randn(9, 265, seed=s), dtype="int8"),
    "scaled_matmul": lambda s: kernels.scaled_matmul(
        randn(33, 65, seed=s).to(torch.float8_e4m3fn),
        randn(17, 65, seed=s + 1).to(torch.float8_e4m3fn).T,
        randn(33, seed=s),
        randn(1, seed=s)[0],
        randn(17, seed=s),
        "relu",
    ),
    "scaled_matmul of blocks": lambda s: kernels.scaled_matmul(
        randn(33, 265, seed=s).to(torch.float8_e4m3fn),
        randn(265, 17, seed=s + 1).to(torch.float8_e5m2),
        randn(3, 33, seed=s).T,
        randn(3, 1, seed=s),
    ),
    "rotary": lambda s: kernels.rotary(
        randn(2, 5, 3, 16, seed=s), randn(7, 8), randn(7, 8, seed=1)
    ),
    "cross_entropy": lambda s: kernels.cross_entropy(
        randn(4, 65, seed=s), torch.arange(4, device=DEVICE)
    ),
    "matmul": lambda s: kernels.matmul(randn(33, 65, seed=s), randn(17, 65, seed=s + 1).T),
    "matmul of one": lambda s: (lambda x: kernels.matmul(x, x))(randn(33, 33, seed=s)),
    "matmul of batches": lambda s: kernels.matmul(
        randn(3, 2, 9, 33, seed=s), randn(33, 17, seed=s + 1), randn(17, seed=s), "relu"
    ),
    "matmul of a vector": lambda s: kernels.matmul(randn(65, seed=s), randn(65, 31, seed=s + 1)),
    "attention": lambda s: kernels.attention(
        *(randn(1, 2, 33, 16, seed=s + i) for i in range(3)), causal=True, with_lse=True
    ),
    "attention of slices": lambda s: kernels.attention(
        *randn(1, 33, 3, 2, 16, seed=s).unbind(2), heads_first=False
    ),
    "attention of ragged batches": lambda s: kernels.attention(
        *(randn(33, 2, 16, seed=s + i) for i in range(3)),
        cu_seqlens=torch.tensor([0, 10, 33], device=DEVICE, dtype=torch.int32),
        max_seqlen=23,
    ),
    "attention_decode": lambda s: kernels.attention_decode(
        randn(2, 4, 1, 16, seed=s),
        *(randn(2, 2, 70, 16, seed=s + i) for i in (1, 2)),
        torch.tensor([70, 3 + s], device=DEVICE, dtype=torch.int32),
    ),
    "attention_latent": lambda s: kernels.attention_latent(
        randn(2, 1, 4, 80, seed=s).bfloat16(),
        randn(2, 70, 80, seed=s + 1).bfloat16(),
        torch.tensor([70, 3 + s], device=DEVICE, dtype=torch.int32),
        64,
    ),
    "grouped_matmul": lambda s: kernels.grouped_matmul(
        randn(33, 16, seed=s),
        randn(3, 16, 32, seed=s + 1),
        torch.tensor([5, 5 + s, 33], device=DEVICE, dtype=torch.int32),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_same(name, monkeypatch):
    """Bit by bit, of other numbers in other places, with strides and types; and no two calls share
    memory.
    """
    call, ran = CALLS[name], []

    def parts(result):
        return result if isinstance(result, tuple) else (result,)

    def noting(name, run):
        return lambda *args, **kwargs: (ran.append(name), run(*args, **kwargs))[1]

    for op in OPERATORS.values():
        monkeypatch.setattr(op, "run", noting(op.name, op.run))
    found = [call(9)][1:]  # tables of choices are read by the first
    for seed in range(5):
        ran.clear()
        found.append(parts(call(seed)))
        assert not ran or seed < 2, ran
    for op in OPERATORS.values():
        monkeypatch.setattr(op, "first", op.run)
    for seed in range(5):
        for got, want in zip(found[seed], parts(call(seed)), strict=True):
            assert (
                got.shape == want.shape
                and got.stride() == want.stride()
                and got.dtype is want.dtype
                and got.device == want.device
                and torch.equal(got, want)
            )
    places = [x.untyped_storage().data_ptr() for result in found for x in result]
    assert len(set(places)) == len(places)


def test_a_view_that_begins_elsewhere():
    @mine
    def second(x: Array) -> Array:
        out = empty(x, (2, 8), "float32")
        yield out[1]
        _copied[1](x[1:].reshape((-1,)), out[1], N=8)

    x = randn(6, 8)
    for i in (0, 1, 2, 3, 4):
        assert torch.equal(second(x[i : i + 2]), x[i + 1])
    assert len(made(second)) == 1


@tkc.jit
def _copied(x, out, N: tkc.constexpr):
    tkc.store(out, (0,), tkc.load(x, (0,), (N,)))


def test_what_it_asks_of_torch_is_asked_again():
    """Copies, sorts, changes in place, zeros, and views of other elements."""

    @mine
    def sorted_(x: Array) -> tuple[Array, Array]:
        values, order = x.sort()
        counts = zeros(x, (8,), "int32")
        yield values, order
        order[:4].fill_(7)
        _copied[1](contiguous(x.flip(0)), values, N=8)
        counts.view(torch.float32).fill_(2.0)
        values.add_(counts.view(torch.float32))

    for seed in range(5):
        x = randn(8, seed=seed)
        values, order = sorted_(x)
        assert (
            torch.equal(values, x.flip(0) + 2)
            and order[:4].tolist() == [7] * 4
            and order[4:].tolist() == x.sort()[1][4:].tolist()
        )
    assert len(made(sorted_)) == 1


CONSTANT = torch.arange(8.0, device=DEVICE)


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: (x + CONSTANT).sum(),
        lambda x: x + torch.tensor(1.0, device=DEVICE),
    ],
)
def test_who_looks_elsewhere_is_not_remembered(look):
    @mine
    def looks(x: Array) -> Array:
        out = empty(x)
        yield out
        out.copy_(x).add_(look(x))

    for seed in range(5):
        x = randn(8, seed=seed)
        assert torch.equal(looks(x), x + look(x))
    assert not made(looks) and memory(looks)


@pytest.mark.parametrize(
    "many",
    [
        lambda x: sum(x.tolist()),
        lambda x: float(x.cpu().numpy().sum()),
        lambda x: len(x.nonzero()),
        lambda x: len(x[x > 0]),
        lambda x: len(x[x.bool()]),
    ],
)
def test_who_counts_what_an_array_holds_is_not_remembered(many):
    @mine
    def counts(x: Array) -> Array:
        out = empty(x, (1,), "float32")
        yield out
        _filled[1](out, float(many(x)), N=1)

    for i in range(6):
        assert counts((torch.arange(8, device=DEVICE) < i).float()).item() == i


def test_operators_in_operators():
    """Done once, and by the operator: not by torch's method of that name, nor by its kernels."""

    @mine(mutates="x")
    def inner(x: Array) -> Array:
        count = zeros(x, (1,))
        yield count
        _more[1](x, N=8)

    @mine(mutates="x")
    def outer(x: Array) -> Array:
        out = empty(x)
        yield out
        inner(x)
        out.copy_(kernels.transpose(x.reshape(2, 4)).reshape(8))

    for seed in range(5):
        x = randn(8, seed=seed)
        assert torch.equal(outer(x.clone()), (x + 1).reshape(2, 4).T.reshape(8))
    assert len(made(outer)) == 1


@tkc.jit
def _more(x, N: tkc.constexpr):
    tkc.store(x, (0,), tkc.load(x, (0,), (N,)) + 1)


def test_views_without_elements_negative_ones_and_places_that_are_none():
    @mine
    def f(x: Array, i: Array) -> Array:
        out = zeros(x)
        yield out
        _copied[0](x[:0].reshape((-1,)), out.reshape((-1,)), N=8)
        out[:, i] = torch._neg_view(x)[:, i]

    for seed in range(5):
        x, i = randn(3, 5, seed=seed), torch.tensor([seed % 5, 1], device=DEVICE)
        want = torch.zeros_like(x)
        want[:, i] = -x[:, i]
        assert torch.equal(f(x, i), want)
    assert len(made(f)) == 1


def test_texts_of_the_dispatcher_are_others_each_time(monkeypatch):
    """It makes a str of each call."""
    x, op, count = randn(8, 8), OPERATORS["gelu"], []
    kernels.gelu(x)
    known = op.first.__globals__["_behind"].__self__
    record = known.record
    monkeypatch.setattr(known, "record", lambda *args: count.append(args) or record(*args))
    for _ in range(50):
        op.torch(x, "tanh")
    assert len(count) <= 1


def test_none_for_an_array():
    """For which the schema has no None: the same, each time."""
    x = randn(8, 8)
    for _ in range(4):
        assert torch.equal(kernels.add_rms_norm(x, None), kernels.rms_norm(x))


def test_numbers_that_vary_below_0_and_as_integers():
    @mine(varies="n f")
    def powers(x: Array, n: int, f: float) -> Array:
        out = empty(x, (1,), "float32")
        yield out
        _filled[1](out, (-0.5) ** n + int(f) + (n == None), N=1)  # noqa: E711

    for n in range(2, 8):
        assert powers(X(), n, 2.5).item() == (-0.5) ** n + 2


def test_adam_counts_and_nothing_fills():
    op, kept = OPERATORS["adam_"], []
    for way in op.first, op.run:
        p, m, v = randn(33), torch.zeros(33, device=DEVICE), torch.zeros(33, device=DEVICE)
        before = len(made(op))
        for t in range(1, 40):
            way(p, randn(33, seed=t), m, v, t, 1e-3 / t, 0.9, 0.999, 1e-8, 0.1, None)
        kept.append((p, m, v))
        # 1, multiples of 16 and others are three kinds of numbers, as for kernels
        assert len(made(op)) <= before + 3
    for one, other in zip(*kept, strict=False):
        assert torch.equal(one, other)
    with pytest.raises(tkc.LaunchError, match="counts steps from 1"):
        kernels.adam_(p, m, m.clone(), v, 0)
    with pytest.raises(tkc.LaunchError, match="expected one shape"):
        kernels.adam_(p, m[:5], m.clone(), v, 3)
    a, b = (
        (randn(33), *(torch.zeros(33, device=DEVICE) for _ in range(2))),
        (
            randn(33),
            *(torch.zeros(33, device=DEVICE) for _ in range(2)),
        ),
    )
    for t in range(1, 5):
        kernels.adam_(a[0], randn(33, seed=t), *a[1:], t, 1)  # an integer for a float
        op.run(b[0], randn(33, seed=t), *b[1:], t, 1.0)
    for one, other in zip(a, b, strict=False):
        assert torch.equal(one, other)


def test_a_number_that_varies_may_be_compared_but_asked_for_it_is_this_one():
    @mine(varies="n f")
    def chooses(x: Array, n: int, f: float) -> Array:
        out = empty(x, (1,), "float32")
        yield out
        big = n > 10
        _filled[1](
            out, -f * 2**n + (100.0 if big else 0.0) + (int(f) if f > 50 else 0) - 1 / n, N=1
        )

    def want(n, f):
        return -f * 2**n + (100.0 if n > 10 else 0.0) + (int(f) if f > 50 else 0) - 1 / n

    x = X()
    for n, f in (
        (1, 2.0),
        (1, 2.0),
        (2, 3.5),
        (4, 1.25),
        (11, 0.5),
        (12, 0.25),
        (3, 60.5),
        (3, 60.5),
        (3, 61.5),
        (3, 2),
        (5, 7),
        (5, 9),
    ):
        torch.testing.assert_close(chooses(x, n, f), torch.tensor([want(n, f)], device=DEVICE))
    with pytest.raises(ZeroDivisionError):
        chooses(x, 0, 1.0)


def test_memory_is_bounded(monkeypatch):
    for name, most in (("MAX_FUNCTIONS_PER_KIND", 4), ("MAX_KEYS_SEEN", 8)):
        monkeypatch.setattr(calls, name, most)
    op, x = says(of=lambda x, y, n, *_: n), X()
    for n in range(40):
        assert op(x, None, n).item() == n
    assert not memory(op)
    for n in range(40):
        for _ in range(3):
            assert op(x, None, n).item() == n
        assert 0 < len(memory(op)) <= 5
    for y in (None, x, X(), x.view(8, 8), x[2:], x[3:], X(), torch.nn.Parameter(X(), False)):
        for _ in range(3):
            assert op(x, y, 7).item() == 7
        assert 0 < len(memory(op)) <= 15  # of three types of y
    for i in range(40):
        for _ in range(3):
            # another object each time
            assert op(x, None, 7, s="".join(["text", str(i)])).item() == 7
        assert len(memory(op)) <= 15
    assert len(op.first.__globals__["_behind"].__self__.seen) <= 8


def test_a_text_is_told_by_its_place_and_keeps_it():
    op, x = says(of=lambda x, y, n, f, s, b: ord(s[-1])), X()
    for i in range(200):
        text = "".join(["some text ", chr(65 + i % 26)])
        for _ in range(3):
            assert op(x, None, 3, 1.0, text).item() == 65 + i % 26


def test_calls_with_other_types_take_turns():
    """With and without a second array, a number for none: each is found, whichever was last."""
    op, x, general = says(of=lambda x, y, n, *_: n + 10 * (y is not None)), X(), []
    some = [
        ((x, None, 3), 3),
        ((x, X(), 3), 13),
        ((torch.nn.Parameter(X(), requires_grad=False), None, 3), 3),
        ((x, None, True), 1),
    ]
    for args, want in some * 2:
        assert op(*args).item() == want
    calls_ = op.first.__globals__["_behind"].__self__
    op.first.__globals__["_first"] = lambda *values: (
        general.append(values) or calls_.behind(*values)
    )
    for args, want in some * 3:
        assert op(*args).item() == want
    assert not general and len(made(op)) == 4


def test_arrays_without_elements():
    op = says(of=lambda x, y, *_: x is y)
    for _ in range(4):
        empty_ = X()[:0]
        assert op(empty_, X()[:0]).item() == 0 and op(empty_, empty_).item() == 1
    assert not memory(op)


def test_of_several_devices_the_array_s_own_gets_the_result(monkeypatch):
    """Memory past torch's dispatcher is the current device's."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: max(2, DEVICES))
    op, home = says(of=lambda x, *_: x.device.index or 0), torch.device(DEVICE)
    for place in [home] if DEVICE == "cpu" else [torch.device(DEVICE, i) for i in range(DEVICES)]:
        for x in (X().to(place) for _ in range(4)):
            result = op(x)
            assert result.device == x.device and result.item() == (x.device.index or 0)
    assert made(op)


def test_what_changes_may_lie_beside_what_is_read_and_not_on_it():
    """How far apart they are is not in the key of a call."""
    rows = randn(8, 24)
    for first in (8, 16, 8, 8, 16):
        want = rows[:, :8] @ rows[:, :8]
        kernels.matmul(rows[:, :8], rows[:, :8], out=rows[:, first : first + 8])
        torch.testing.assert_close(rows[:, first : first + 8], want)
    with pytest.raises(tkc.LaunchError, match="shares memory with a"):
        kernels.matmul(rows[:, :8], rows[:, :8], out=rows[:, 4:12])


def test_a_state_is_not_one_of_several():
    """States that an expanded tensor only seems to have are refused, recorded or not."""
    x, g = randn(4, 32), randn(4, 32, seed=1)
    for _ in range(3):
        kernels.hgrn_step(x, g, X().new_zeros(4, 32))
        with pytest.raises(tkc.LaunchError, match="state, of which several elements"):
            kernels.hgrn_step(x, g, X().new_zeros(1, 32).expand(4, 32))


def test_errors_are_the_same():
    """Of a bad call beside a good one that is remembered."""
    a, b, out = randn(8, 8), randn(8, 8), X()
    for _ in range(3):
        kernels.matmul(a, b, out=out)
    with pytest.raises(tkc.LaunchError, match="shares memory with a"):
        kernels.matmul(a, b, out=a)
    with pytest.raises(tkc.LaunchError, match="expected out of"):
        kernels.matmul(a, b, out=out[:4])
    with pytest.raises(tkc.LaunchError, match="activation"):
        kernels.matmul(a, b, activation="no", out=out)
    with pytest.raises(tkc.LaunchError, match="expected an array"):
        kernels.softmax([1, 2])
    for _ in range(3):
        with pytest.raises(tkc.LaunchError, match="has no|axis 5"):
            kernels.softmax(a, axis=5)
    with pytest.raises(TypeError, match=r"^softmax\(\) missing .*'x'"):
        kernels.softmax()
    with pytest.raises(TypeError, match=r"^softmax\(\) .*'width'"):
        kernels.softmax(a, width=3)


def test_arrays_of_numpy_and_tensors_take_turns():
    for _ in range(4):
        x = randn(3, 65)
        ours = kernels.softmax(x.cpu().numpy())
        assert library(ours) == "numpy" and torch.allclose(
            torch.from_numpy(ours), kernels.softmax(x).cpu(), atol=1e-6
        )


def test_what_the_kernel_reads_and_how_it_is_checked_is_the_launchs_business(monkeypatch):
    @tkc.jit
    def kernel(x, out, N: tkc.constexpr):
        tkc.store(out, (0,), tkc.load(x, (0,), (N,)) * FACTOR + 0 * tkc.load(x.ptr + 50))

    @mine
    def times(x: Array) -> Array:
        out = empty(x)
        yield out
        kernel[1](x, out, N=8)

    x = randn(64)[:8]  # which the kernel leaves
    for _ in range(3):
        assert torch.equal(times(x), x * 2)
    assert made(times)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    for _ in range(3):
        assert torch.equal(times(x), x * 4)
    if DEVICE == "cuda":
        return  # a trap is the end of a GPU's context
    monkeypatch.setenv("TKC_DEBUG", "1")
    with pytest.raises(tkc.TrapError):
        times(x)
    monkeypatch.delenv("TKC_DEBUG")
    assert torch.equal(times(x), x * 4)


FACTOR = 2.0


def test_threads_call_at_once():
    made_, wrong = [], []
    op = says(of=lambda x, y, n, *_: n)

    def work(i):
        for round_ in range(30):
            x = randn(3, 65, seed=i)
            if not torch.equal(kernels.softmax(x), want[i]):
                wrong.append((i, round_))
            if op(x, None, i % 4).item() != i % 4:
                wrong.append((i, "n"))
            made_.append(i)

    want = [OPERATORS["softmax"].run(randn(3, 65, seed=i)) for i in range(16)]
    workers = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong and len(made_) == 16 * 30 and len(made(op)) == 4


def test_gradients_versions_and_compilation_stay():
    w = randn(65, seed=1)
    for seed in range(4):
        x = randn(3, 65, seed=seed).requires_grad_()
        y = x.detach().clone().requires_grad_()
        kernels.rms_norm(kernels.softmax(x), w).square().sum().backward()
        torch.nn.functional.rms_norm(torch.softmax(y, -1), (65,), w, 1e-6).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    out, a = X(), randn(8, 8)
    for _ in range(4):
        before, loss = out._version, (randn(8, 8).requires_grad_() * out).sum()
        kernels.matmul(a, a, out=out)
        assert out._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():
        for _ in range(3):
            assert kernels.softmax(a).is_inference()
    assert not kernels.softmax(a).is_inference()
    compiled = torch.compile(lambda t: kernels.softmax(t) + 1, fullgraph=True)
    for seed in range(3):
        torch.testing.assert_close(
            compiled(randn(3, 65, seed=seed)), torch.softmax(randn(3, 65, seed=seed), -1) + 1
        )


def test_a_graph_replays_what_was_captured():
    if DEVICE == "cpu":
        pytest.skip("graphs are of GPUs")
    x, g = randn(64, 65), torch.cuda.CUDAGraph()
    for _ in range(3):
        kernels.softmax(x)
    with torch.cuda.graph(g):
        y = kernels.softmax(x)
    x.copy_(randn(64, 65, seed=5))
    g.replay()
    torch.testing.assert_close(y, torch.softmax(x, -1))
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        z = kernels.softmax(x)
    s.synchronize()
    torch.testing.assert_close(z, y)


def test_torchs_compiler_is_not_imported():
    """By a program that does not compile: it takes a second."""
    program = """
import sys, torch
from tkc import kernels
before = 'torch._dynamo' in sys.modules
for _ in range(3):
    kernels.softmax(torch.zeros(3, 5))
kinds = kernels.softmax.first.__globals__['_kinds'].values()
print('torch._dynamo' in sys.modules and not before, [len(k.entries) for k in kinds])
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True
        ).stdout.strip()
        == "False [2]"
    )
