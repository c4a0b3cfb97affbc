"""Kernels of the language, for tests: plain functions, traced with `arguments` below."""
import tkc
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument, ConstantArgument, Options, ScalarArgument, Signature
from tkc.language.trace import trace

LOG2E = 1.4426950408889634
inf = tkc.inf


def array(dtype, rank: int = 1, wide: bool = False, shape=None, strides=None, align: int = 16) -> ArrayArgument:
    """A contiguous array whose last stride is known to be 1."""
    fact = lambda n: Fact(exact=n) if n is not None else Fact()
    shape, strides = shape or (None,) * rank, strides or (None,) * (rank - 1) + (1,)
    return ArrayArgument(dtype, ArrayFacts(tuple(map(fact, shape)), tuple(map(fact, strides)), align), wide)


def i32(divisor: int = 1) -> ScalarArgument: return ScalarArgument(tkc.int32, divisor)
def f32() -> ScalarArgument: return ScalarArgument(tkc.float32)


def traced(fn, *args, num_warps=None, **named):
    """The module of a function; what is no argument is a constant."""
    import inspect
    bound = inspect.signature(fn).bind(*args, **named)
    bound.apply_defaults()
    as_argument = lambda v: v if isinstance(v, (ArrayArgument, ScalarArgument)) else ConstantArgument(v)
    return trace(fn, Signature(tuple((n, as_argument(v)) for n, v in bound.arguments.items()), Options(num_warps=num_warps)))


def add(x, y, out, n, BLOCK: tkc.constexpr = 1024):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    inside = i < n
    tkc.store(out.ptr + i, tkc.load(x.ptr + i, mask=inside) + tkc.load(y.ptr + i, mask=inside), mask=inside)


def matmul(a, b, c, BM: tkc.constexpr = 128, BN: tkc.constexpr = 256, BK: tkc.constexpr = 64):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def attention(q, k, v, o, scale, CAUSAL: tkc.constexpr, D: tkc.constexpr, BM: tkc.constexpr = 128, BN: tkc.constexpr = 128):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    q, k, v, o = q[b, h], k[b, h], v[b, h], o[b, h]
    c, shift = scale * LOG2E, k.shape[0] - q.shape[0]
    rows, qi = m + tkc.arange(BM) + shift, tkc.load(q, (m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, tkc.minimum(k.shape[0], m + BM + shift) if CAUSAL else k.shape[0], BN):
        cols = n + tkc.arange(BN)
        keep = cols[None, :] < k.shape[0]
        if CAUSAL: keep = keep & (rows[:, None] >= cols[None, :])
        s = tkc.where(keep, tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T), -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * c)
        base = tkc.where(new == -inf, 0, new)
        p, shrink = tkc.exp2(s * c - base[:, None]), tkc.exp2(top - base)
        total = total * shrink + tkc.sum(p, axis=1)
        acc = tkc.dot(p.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc * shrink[:, None])
        top = new
    tkc.store(o, (m, 0), tkc.where(total[:, None] > 0, acc / total[:, None], 0).to(o.dtype))
