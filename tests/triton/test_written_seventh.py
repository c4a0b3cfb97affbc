"""The seventh set of kernels that are raced (benchmarks/triton_written_seventh.py), small on the
CPU: against torch in float64, or exactly. Skipped where torch is not installed.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

from benchmarks import triton_written_scenes, triton_written_seventh  # noqa: E402, F401
from benchmarks.triton_cases import CASES  # noqa: E402
from tests.triton.written import References, check, tkc_as_triton, wide  # noqa: E402

SEVENTH = {c.name: c for c in CASES if c.suite == "seventh"}
KERNELS = [f"benchmarks.triton_{name}" for name in ("heads", "weights", "scenes", "updates")]
reference = References()


def causal(s: Any) -> Any:
    n, m = s.shape[-2:]
    return s.masked_fill(torch.arange(n)[:, None] < torch.arange(m), -torch.inf).softmax(-1)


# ---- attention
@reference("attention of latents")
def _(v):
    q, k, u, turned = wide(v.q, v.k, v.v, v.turned)
    keys = torch.cat([k, turned[:, None].expand(v.s, v.h, v.r)], 2)
    s = torch.einsum("ahd,bhd->hab", q, keys) * (v.d + v.r) ** -0.5
    return torch.einsum("hab,bhd->ahd", causal(s), u)


@reference("difference of two")
def _(v):
    q, k, u = wide(v.q, v.k, v.v)
    a = causal(q @ k.mT * v.d**-0.5) @ u[:, None]
    out = a[:, 0] - v.share.double()[:, None, None] * a[:, 1]
    return out * torch.rsqrt((out * out).mean(2, keepdim=True) + 1e-5) * v.w


@reference("attention in float8")
def _(v):
    q, k, u = wide(v.q, v.k, v.v)
    s = q @ k.mT * (v.qs * v.ks).double()[:, None, None]
    return s.softmax(2) @ u.mT * v.vs[:, None, None]


@reference("attention in windows")
def _(v):
    q, k, u = v.qkv.double().permute(2, 0, 3, 1, 4)
    s = q @ k.mT * v.d**-0.5 + v.bias.double()
    s += v.hidden.double().repeat(v.images, 1, 1)[:, None]
    return (s.softmax(3) @ u).transpose(1, 2)


@reference("decoding from int8")
def _(v):
    page = v.given["PAGE"]
    out = torch.zeros(v.b, v.h, v.g, v.d).double()
    k, u = (
        (t.double() * s.double()[..., None]).reshape(-1, page, v.h, v.d)
        for t, s in ((v.k, v.ks), (v.v, v.vs))
    )
    for b, have in enumerate(v.length.tolist()):
        token = torch.arange(have)
        token = token[(token < v.sinks) | (token >= have - v.window)]
        at = v.place[b, token // page].long(), token % page
        s = torch.einsum("hgd,nhd->hgn", v.q[b].double().view(v.h, v.g, v.d), k[at])
        out[b] = torch.einsum("hgn,nhd->hgd", (s * v.d**-0.5).softmax(2), u[at])
    return out.view(v.b, v.h * v.g, v.d)


@reference("scores of 64 heads")
def _(v):
    s = torch.einsum("thd,sd->ths", *wide(v.q, v.k)).relu()
    s = (s * v.weight.double()[:, :, None]).sum(1) * v.scale
    at = torch.arange(v.s)[None]
    return torch.where((at >= v.begin[:, None]) & (at < v.end[:, None]), s, 0.0)


# ---- products
@reference("experts in float8")
def _(v):
    x = v.x.double() * v.xs.double().repeat_interleave(128, 1)
    w = v.w.double() * v.ws.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    out = torch.zeros(v.t * v.top, v.n).double()
    for block, expert in zip(v.token.view(-1, v.least).long(), v.expert, strict=True):
        rows = block[block < len(out)]
        out[rows] = x[rows // v.top] @ w[expert].T * v.share[rows].double()[:, None]
    return out


@reference("products at 4096 listed")
def _(v):
    x, z = wide(v.x.view(-1, 64, v.k), v.z.view(-1, 64, v.k))
    return x[v.row.long()] @ z[v.column.long()].mT


@reference("gradients of 32 experts")
def _(v):
    ends = v.first.tolist()
    return torch.stack(
        [v.x[a:b].double().T @ v.dy[a:b].double() for a, b in zip(ends, ends[1:], strict=False)]
    )


@reference("gates in turn")
def _(v):
    gate, up = (v.x.double() @ v.w.double().T).view(v.m, v.n // 2, 2).unbind(2)
    out = (F.silu(gate) * up).view(v.m, -1, 128)
    scale = out.abs().amax(2) / 448
    return (out / scale[..., None]).flatten(1), scale


@reference("products of 65536")
def _(v):
    return v.x.double() @ v.z.double()


@reference("gradients of rows")
def _(v):
    p = (v.x.double() @ v.w.double().T - v.lse[:, None]).exp()
    p[torch.arange(v.t), v.target.long()] -= 1
    return p / v.t @ v.w.double()


@reference("weights of 4 bits")
def _(v):
    each = torch.stack([v.packed >> 4, v.packed & 15], 2).view(v.n, v.k).long()
    scale = v.most_scale.double().repeat_interleave(256)[: len(v.most)] * v.most + v.most_mean
    return v.x.double() @ (v.table.double()[each] * scale.view(v.n, -1).repeat_interleave(64, 1)).T


@reference("triangles of pairs")
def _(v):
    return torch.einsum("ikc,jkc->ijc", *wide(v.x, v.z))


@reference("mel spectra")
def _(v):
    width, step = v.given["WIDTH"], v.given["STEP"]
    sound = F.pad(v.sound.double(), (0, v.t * step + width - v.length))
    frames = sound.unfold(1, width, step)[:, : v.t]
    power = (frames @ v.real.double()) ** 2 + (frames @ v.imaginary.double()) ** 2
    return (power @ v.filters.double()).clamp(min=1e-10).log10()


@reference("learned polynomials")
def _(v):
    u = v.x.double().tanh().clamp(-1, 1)
    each = torch.stack([(i * u.acos()).cos() for i in range(v.degree + 1)])
    return (each @ v.coefficient.double()).sum(0)


@reference("convolution of 131072")
def _(v):
    rows = F.pad(v.x.double(), (0, 0, 0, 1))[v.near.long()]  # the last one is of zeros
    return (rows @ v.w.double()).sum(0).relu()


# ---- scenes
@reference("messages of")
def _(v):
    each = (v.x.double()[v.source.long()] + v.edge.double()).relu()
    return torch.zeros_like(v.y).double().index_add_(0, v.to.long(), each)


@reference("attention to 4 places")
def _(v):
    (levels, points, d), n = (v.given[key] for key in ("LEVELS", "POINTS", "D")), v.b * v.h
    out = torch.zeros(n, d, v.q, 1).double()
    for level, (side, start) in enumerate(zip(v.sides[:, 0].tolist(), v.first, strict=False)):
        image = v.value[:, start : start + side * side].double().permute(0, 2, 3, 1)
        places = 2 * v.place[:, :, :, level].double().transpose(1, 2).flatten(0, 1) - 1
        found = F.grid_sample(
            image.reshape(n, d, side, side), places, "bilinear", "zeros", align_corners=False
        )
        weight = v.weight.double().view(v.b, v.q, v.h, levels, points)[:, :, :, level]
        weight = weight.transpose(1, 2).flatten(0, 1)
        out += (found * weight[:, None]).sum(3, keepdim=True)
    return out.view(v.b, v.h, d, v.q).permute(0, 3, 1, 2)


@reference("colours along")
def _(v):
    dense = v.density.double() * v.step.double()
    share = (dense - dense.cumsum(1)).exp() * (1 - (-dense).exp())
    colour = (share[..., None] * v.colour.double()).sum(1) + (1 - share.sum(1, keepdim=True))
    middle = v.step.double().cumsum(1) - v.step.double() / 2
    return colour, (share * middle).sum(1), share


@reference("image of 1024")
def _(v):
    out, at = torch.zeros(v.side, v.side, 4).double(), torch.arange(16) + 0.5
    ends = v.first.tolist()
    for tile, (k, end) in enumerate(zip(ends, ends[1:], strict=False)):
        i, j = tile // (v.side // 16) * 16, tile % (v.side // 16) * 16
        image = out[i : i + 16, j : j + 16]
        image[..., 3] = 1
        for n, g in enumerate(v.listed[k:end].tolist()):
            if n % 32 == 0 and image[..., 3].max() <= 1e-4:
                break
            (u, w), (a, b, c) = v.mean[g].double(), v.shape[g].double()
            du, dv = (j + at - u)[None, :], (i + at - w)[:, None]
            power = -(a * du * du + c * dv * dv) / 2 - b * du * dv
            alpha = (v.opaque[g] * power.exp()).clamp(max=0.99)
            alpha = torch.where((power <= 0) & (alpha >= 1 / 255), alpha, 0.0)
            image[..., :3] += (image[..., 3] * alpha)[..., None] * v.colour[g].double()
            image[..., 3] *= 1 - alpha
    return out


@reference("loss of mixtures")
def _(v):
    y, mean, spread = wide(v.y[:, None], v.mean, v.spread)
    each = torch.distributions.Normal(mean, spread.exp()).log_prob(y).sum(2)
    return -(each + v.logit.double().log_softmax(1)).logsumexp(1)


@reference("nearest of 16384")
def _(v):
    bits = [(t[..., None] >> torch.arange(32) & 1).double() for t in (v.x, v.z.T)]
    far = torch.cdist(bits[0].flatten(1), bits[1].flatten(1), 1).round()
    least = far.min(1).values
    return (far == least[:, None]).int().argmax(1), least


@reference("1048576 matrices")
def _(v):
    a = (v.x.double() - v.x.double().amax((1, 2), keepdim=True)).exp()
    for _ in range(20):
        a = a / (a.sum(2, keepdim=True) + 1e-8)
        a = a / (a.sum(1, keepdim=True) + 1e-8)
    return a


# ---- updates
@reference("AdamW with moments")
def _(v):
    rate, decay, scale1, scale2 = v.given
    grad, wide_p = v.g.double().view(-1, v.size), v.p.double().view(-1, v.size)
    signed, positive = wide(v.signed, v.positive)
    mean = 0.9 * signed[v.m.long()].view(-1, v.size) * v.most_m[:, None] + 0.1 * grad
    square = positive[v.v.long()].view(-1, v.size) * v.most_v[:, None]
    square = 0.999 * square + 0.001 * grad * grad
    new = wide_p * (1 - rate * decay)
    new -= rate * mean * scale1 / ((square * scale2).sqrt() + 1e-8)
    tops = mean.abs().amax(1), square.amax(1)
    codes = (
        (value / top[:, None]).flatten() for value, top in zip((mean, square), tops, strict=True)
    )
    codes = [
        torch.searchsorted((table[1:] + table[:-1]) / 2, code)
        for table, code in zip((signed, positive), codes, strict=True)
    ]
    return new.flatten(), *codes, *tops


@reference("layer norm by moments")
def _(v):
    x = v.x.double()
    mean, spread = x.mean(1), (x.var(1, correction=0) + 1e-5).rsqrt()
    return (x - mean[:, None]) * spread[:, None] * v.w.double() + v.b.double(), mean, spread


@reference("short convolution")
def _(v):
    out, after = torch.zeros_like(v.x).double(), torch.zeros_like(v.state).double()
    for slot, a, b in zip(v.slot.tolist(), v.first.tolist(), v.first[1:].tolist(), strict=False):
        x = torch.cat([v.state[slot].double(), v.x[a:b].double().T], 1)
        z = F.conv1d(x[None], v.w.double()[:, None], v.bias.double(), groups=v.c)[0]
        out[a:b], after[slot] = F.silu(z).T, x[:, -3:]
    return out, after


@reference("drafted tokens")
def _(v):
    chances = (v.target - v.draft).clamp(min=0) / v.noise[v.owner.long()]
    recovered, y = chances.argmax(1), torch.full((v.b, v.most + 1), -1)
    for b, (begin, end) in enumerate(zip(v.first.tolist(), v.first[1:].tolist(), strict=False)):
        for n in range(begin, end):
            own = v.token[n].item()
            if v.target[n, own] < v.chance[n] * v.draft[n, own]:
                y[b, n - begin] = recovered[n]
                break
            y[b, n - begin] = own
        else:
            y[b, end - begin] = v.bonus[b]
    return y, recovered


@reference("heads normed")
def _(v):
    qkv = v.qkv.double().view(v.t, -1, v.d)
    cos, sin = v.table.double()[v.position.long()][:, None].chunk(2, 2)

    def turned(a, w):
        a = a * (a.square().mean(2, keepdim=True) + 1e-6).rsqrt() * w.double()
        low, high = a.chunk(2, 2)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], 2)

    q, k = turned(qkv[:, : v.h], v.wq), turned(qkv[:, v.h : v.h + v.hk], v.wk)
    caches = torch.zeros(2, 2 * v.t, v.hk, v.d).double()
    kept = v.slot >= 0
    caches[0, v.slot[kept].long()] = k[kept] / 0.5
    caches[1, v.slot[kept].long()] = qkv[kept, v.h + v.hk :] / 0.25
    return q, *caches


@reference("gates of 32")
def _(v):
    gate, up = v.x.double().chunk(2, 2)
    out = (F.silu(gate) * up) * (torch.arange(v.t) < v.count[:, None])[..., None]
    each = out.view(*out.shape[:2], -1, v.block)
    scale = each.abs().amax(3)
    return (each / (scale[..., None] / 448).clamp(min=1e-30)).flatten(2), scale.mT / 448


@reference("gradients of a gated scan")
def _(v):
    a, h, dh = wide(v.a, v.h, v.dh)
    dx, later = torch.zeros_like(dh), torch.zeros_like(dh[:, 0])
    for t in reversed(range(v.t)):
        later = dh[:, t] + (a[:, t + 1] * later if t + 1 < v.t else 0)
        dx[:, t] = later
    return dx, dx * F.pad(h[:, :-1], (0, 0, 1, 0))


# ---- the cases
TOLERANCES = {"attention in float8": 5e-2, "gates in turn": 4e-2, "gates of 32": 4e-2}
TOLERANCES |= {"heads normed": 4e-2}  # float8 has 4 bits


@pytest.fixture(scope="module")
def in_place():
    with tkc_as_triton(KERNELS):
        yield


@pytest.mark.parametrize("name", SEVENTH)
def test_as_torch_on_the_cpu(name, in_place):
    check(SEVENTH[name], reference, TOLERANCES)
