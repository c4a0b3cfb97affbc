"""The eighth set of kernels that are raced (benchmarks/triton_written_eighth.py), small on the CPU:
against torch in float64, or exactly. Skipped where torch is not installed.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

from benchmarks import triton_written_eighth  # noqa: E402, F401
from benchmarks.triton_cases import CASES  # noqa: E402
from tests.triton.written import References, check, tkc_as_triton, wide  # noqa: E402

EIGHTH = {c.name: c for c in CASES if c.suite == "eighth"}
KERNELS = [f"benchmarks.triton_{name}" for name in ("mixers", "taps", "streams")]
reference = References()


def nibbles(words, dim):
    """The numbers of 4 bits of words along an axis, the lowest bits first."""
    shifts = torch.arange(0, 32, 4)
    return (words.unsqueeze(-1) >> shifts & 15).movedim(-1, dim + 1).flatten(dim, dim + 1).double()


# ---- attention
@reference("attention by silu")
def _(v):
    out, ends = torch.zeros_like(v.q).double(), v.first.tolist()
    for a, b in zip(ends, ends[1:], strict=False):
        q, k, u = (t[a:b].double().transpose(0, 1) for t in (v.q, v.k, v.v))
        place = torch.arange(b - a)
        apart = place[:, None] - place
        passed = (v.times[a:b, None] - v.times[None, a:b]).clamp(min=1)
        bucket = (passed.float().log() / 0.301).long().clamp(max=v.buckets)
        s = q @ k.mT * v.d**-0.5 + v.by_place.double()[apart.clamp(min=0)]
        s = F.silu(s + v.by_time.double()[bucket]) / v.most
        out[a:b] = (s * (apart >= 0) @ u).transpose(0, 1)
    return out


@reference("decoding from 4 bits")
def _(v):
    b, h, g, d = v.b, v.h, v.g, v.d
    k = nibbles(v.keys, 3) * v.ks.double().repeat_interleave(v.group, 3)
    k += v.kz.double().repeat_interleave(v.group, 3)
    u = nibbles(v.values, 3) * v.vs.double().repeat_interleave(v.group, 3)
    u += v.vz.double().repeat_interleave(v.group, 3)
    s = v.q.double().view(b, h, g, d) @ k * d**-0.5
    far = torch.arange(v.s) >= v.length[:, None]
    return (s.masked_fill(far[:, None, None], -torch.inf).softmax(3) @ u).view(b, h * g, d)


@reference("gradients of attention")
def _(v):
    k, u = (t.double().repeat_interleave(v.g, 0) for t in (v.k, v.v))
    q, do, out = wide(v.q, v.do, v.out)
    p = (q @ k.mT * v.d**-0.5 - v.lse.double()[..., None]).exp().tril()
    ds = p * (do @ u.mT - (do * out).sum(2, keepdim=True)) * v.d**-0.5
    heads = (v.h, v.g, v.s, v.d)
    return ds @ k, (ds.mT @ q).view(heads).sum(1), (p.mT @ do).view(heads).sum(1)


@reference("attention to 77 words")
def _(v):
    q, k, u = (t.double().transpose(1, 2) for t in (v.q, v.k, v.v))
    return ((q @ k.mT * v.d**-0.5).softmax(3) @ u).transpose(1, 2)


@reference("attention to 7 x 7")
def _(v):
    q, k, u = (t.double().flatten(1, 2).transpose(1, 2) for t in (v.q, v.k, v.v))
    i, j = torch.arange(v.tall * v.wide) // v.wide, torch.arange(v.tall * v.wide) % v.wide
    window, seen, at = v.given["WINDOW"], True, []
    for place, extent in ((i, v.tall), (j, v.wide)):
        first = (place - window // 2).clamp(0, extent - window)[:, None]
        seen = seen & (place >= first) & (place < first + window)
        at.append((place - place[:, None] + window - 1).clamp(0, 2 * window - 2))
    s = q @ k.mT * v.d**-0.5 + v.bias.double()[:, at[0], at[1]]
    s = s.masked_fill(~seen, -torch.inf).softmax(3) @ u
    return s.transpose(1, 2).view(v.out.shape)


# ---- products and convolutions
@reference("weights of 4 bits that groups")
def _(v):
    w = torch.stack([v.packed & 15, v.packed >> 4], 2).view(v.n, -1, 128).double()
    w = (w * v.scale.double()[..., None] - v.zero.double()[..., None]).flatten(1)
    return v.x.double() @ w.T * v.xs.double()[:, None] * v.ws.double()


@reference("gradients of weights")
def _(v):
    x, dy = (t.double().permute(0, 3, 1, 2) for t in (v.x, v.dy))
    dw = torch.nn.grad.conv2d_weight(x, (v.f, v.c, 3, 3), dy, padding=1)
    return dw.permute(2, 3, 1, 0).reshape(9, v.c, v.f)


@reference("transposed convolution")
def _(v):
    x, w = v.x.double().permute(0, 3, 1, 2), v.w.double().permute(2, 3, 0, 1)
    return F.conv_transpose2d(x, w, v.bias.double(), 2, 1).permute(0, 2, 3, 1)


@reference("gated filters")
def _(v):
    u = (v.k * v.v).double()
    x = F.pad(u.permute(0, 3, 2, 1).flatten(0, 1), (v.length - 1, 0))
    out = F.conv1d(x, v.filters.double().flip(1)[:, None], groups=v.groups)
    out = out.view(v.b, v.width, v.groups, v.t).permute(0, 3, 2, 1)
    return (out + v.skip.double().view(v.groups, v.width) * u) * v.q.double()


@reference("residual codes")
def _(v):
    rest, codes = v.x.double(), []
    for book in v.books.double():
        far = book.square().sum(1) - 2 * rest.to(v.x.dtype).double() @ book.T
        codes.append(far.argmin(1))
        rest = rest - book[codes[-1]]
    return torch.stack(codes, 1), rest


# ---- without dots
@reference("filters of second order")
def _(v):
    c = v.coefficient.double().repeat_interleave(v.frame, 1)
    x, out = F.pad(v.x.double(), (2, 0)), torch.zeros(v.b, v.t + 2).double()
    for t in range(v.t):
        ahead = (c[:, t, :3] * x[:, t : t + 3].flip(1)).sum(1)
        out[:, t + 2] = ahead - (c[:, t, 3:] * out[:, t : t + 2].flip(1)).sum(1)
    return out[:, 2:]


@reference("likeliest tokens")
def _(v):
    p = (v.x.double() / v.temperature.double()[:, None]).softmax(1)
    ordered = p.sort(1, descending=True).values
    many = (ordered.cumsum(1) < v.part.double()[:, None]).sum(1, keepdim=True)
    p = torch.where(p >= ordered.gather(1, many), p, 0.0)
    return p / p.sum(1, keepdim=True)


@reference("layer norm of channels")
def _(v):
    x, w, bias = wide(v.x.transpose(1, 2), v.w, v.bias)
    return F.layer_norm(x, (v.c,), w, bias, 1e-6).transpose(1, 2)


@reference("farthest 512")
def _(v):
    out = torch.zeros(v.b, v.count, dtype=torch.int32)
    far, each = torch.full((v.b, v.n), torch.inf), torch.arange(v.b)
    for i in range(1, v.count):
        last = v.points[each, :, out[:, i - 1].long()]
        far = torch.minimum(far, (v.points - last[..., None]).square().sum(1))
        out[:, i] = (far == far.amax(1, keepdim=True)).int().argmax(1)
    return out


# ---- the cases
TOLERANCES = {"farthest 512": 0.0}


@pytest.fixture(scope="module")
def in_place():
    with tkc_as_triton(KERNELS):
        yield


@pytest.mark.parametrize("name", EIGHTH)
def test_as_torch_on_the_cpu(name, in_place):
    check(EIGHTH[name], reference, TOLERANCES)
