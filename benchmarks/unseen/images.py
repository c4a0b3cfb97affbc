"""Stencils, filters and gathers on grids of points. A part of the unseen kernels."""

from __future__ import annotations

import math
from typing import Any

import tkc
from benchmarks.unseen.operands import Called, Operands, case, over


@tkc.jit
def jacobi(u, f, out, h2, BH: tkc.constexpr, BW: tkc.constexpr):
    """One step of a five-point stencil on u with a rim of 1; f and out are without it."""
    y, x = tkc.program_id(0) * BH, tkc.program_id(1) * BW
    around = (
        tkc.load(u, (y, x + 1), (BH, BW))
        + tkc.load(u, (y + 2, x + 1), (BH, BW))
        + tkc.load(u, (y + 1, x), (BH, BW))
        + tkc.load(u, (y + 1, x + 2), (BH, BW))
    )
    tkc.store(out, (y, x), 0.25 * (around - h2 * tkc.load(f, (y, x), (BH, BW))))


@tkc.jit
def heat(u, out, c, BY: tkc.constexpr, BX: tkc.constexpr, BZ: tkc.constexpr):
    """Seven points in three dimensions, walking along z with two planes kept; the rim stays."""
    y, x, z = tkc.program_id(0) * BY, tkc.program_id(1) * BX, tkc.program_id(2) * BZ
    below = tkc.load(u, (z - 1, y, x), (None, BY, BX))
    here = tkc.load(u, (z, y, x), (None, BY, BX))
    for k in range(z, tkc.minimum(z + BZ, u.shape[0])):
        above = tkc.load(u, (k + 1, y, x), (None, BY, BX))
        near = tkc.load(u, (k, y - 1, x), (None, BY, BX)) + tkc.load(
            u, (k, y + 1, x), (None, BY, BX)
        )
        near += tkc.load(u, (k, y, x - 1), (None, BY, BX))
        near += tkc.load(u, (k, y, x + 1), (None, BY, BX))
        tkc.store(out[k], (y, x), here + c * (below + above + near - 6 * here))
        below, here = here, above


@tkc.jit
def separable(image, taps, out, R: tkc.constexpr, BH: tkc.constexpr, BW: tkc.constexpr):
    """A blur of 2 R + 1 taps along columns of what the same blur along rows gives."""
    y, x = tkc.program_id(0) * BH, tkc.program_id(1) * BW
    acc = tkc.zeros((BH, BW))
    for dy in tkc.static_range(-R, R + 1):
        row = tkc.zeros((BH, BW))
        for dx in tkc.static_range(-R, R + 1):
            row += taps[dx + R] * tkc.load(image, (y + dy, x + dx), (BH, BW))
        acc += taps[dy + R] * row
    tkc.store(out, (y, x), acc)


@tkc.jit
def bilateral(image, out, s, r, R: tkc.constexpr, BH: tkc.constexpr, BW: tkc.constexpr):
    """Neighbours weighted by how far they are and how much they differ."""
    y, x = tkc.program_id(0) * BH, tkc.program_id(1) * BW
    centre = tkc.load(image, (y, x), (BH, BW))
    total, weights = tkc.zeros((BH, BW)), tkc.zeros((BH, BW))
    rows, columns = y + tkc.arange(BH), x + tkc.arange(BW)
    for dy in range(-R, R + 1):
        for dx in range(-R, R + 1):
            h, w = rows + dy, columns + dx
            inside = ((h >= 0) & (h < image.shape[0]))[:, None] & ((w >= 0) & (w < image.shape[1]))[
                None, :
            ]
            near = tkc.load(image, (y + dy, x + dx), (BH, BW))
            d = near - centre
            weight = tkc.where(inside, tkc.exp(-s * (dx * dx + dy * dy) - r * d * d), 0.0)
            total += weight * near
            weights += weight
    tkc.store(out, (y, x), total / weights)


@tkc.jit
def warp_image(image, flow, out, C: tkc.constexpr, BW: tkc.constexpr):
    """out[y, x] is what image has at (y, x) + flow[:, y, x], between its points, zero outside."""
    y, x = tkc.program_id(0), tkc.program_id(1) * BW
    height, width = image.shape[0], image.shape[1]
    v = y + tkc.load(flow, (0, y, x), (None, None, BW))
    u = x + tkc.arange(BW) + tkc.load(flow, (1, y, x), (None, None, BW))
    top, left = tkc.floor(v), tkc.floor(u)
    fy, fx = v - top, u - left
    h, w = top.to(tkc.int32), left.to(tkc.int32)
    acc = tkc.zeros((BW, C))
    for dy in tkc.static_range(2):
        for dx in tkc.static_range(2):
            r, c = h + dy, w + dx
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            at = image.ptr + ((r * width + c) * C)[:, None] + tkc.arange(C)[None, :]
            colour = tkc.load(at, mask=inside[:, None], other=0.0).to(tkc.float32)
            weight = (fy if dy else 1 - fy) * (fx if dx else 1 - fx)
            acc += weight[:, None] * colour
    tkc.store(out[y], (x, 0), acc.to(out.dtype))


@tkc.jit
def pooled(x, out, place, BW: tkc.constexpr, C: tkc.constexpr):
    """The largest of windows of 3 x 3 with stride 2, and where it was; x [H, W, C]."""
    y, x0 = tkc.program_id(0), tkc.program_id(1) * BW
    columns = x0 + tkc.arange(BW)
    best, which = tkc.full((BW, C), -tkc.inf), tkc.zeros((BW, C), tkc.int32)
    for dy in tkc.static_range(3):
        for dx in tkc.static_range(3):
            h, w = 2 * y + dy - 1, 2 * columns + dx - 1
            inside = (h >= 0) & (h < x.shape[0]) & (w >= 0) & (w < x.shape[1])
            at = x.ptr + ((h * x.shape[1] + w) * C)[:, None] + tkc.arange(C)[None, :]
            value = tkc.load(at, mask=inside[:, None], other=-tkc.inf).to(tkc.float32)
            which = tkc.where(value > best, dy * 3 + dx, which)
            best = tkc.maximum(best, value)
    tkc.store(out[y], (x0, 0), best.to(out.dtype))
    tkc.store(place[y], (x0, 0), which.to(place.dtype))


@tkc.jit
def mandelbrot(out, left, top, step, LIMIT: tkc.constexpr, BH: tkc.constexpr, BW: tkc.constexpr):
    """How many steps each point takes to leave; a block stops when all have."""
    i, j = tkc.program_id(0) * BH, tkc.program_id(1) * BW
    cy = (top + step * (i + tkc.arange(BH)))[:, None] + tkc.zeros((BH, BW))
    cx = (left + step * (j + tkc.arange(BW)))[None, :] + tkc.zeros((BH, BW))
    x, y, count, n = tkc.zeros((BH, BW)), tkc.zeros((BH, BW)), tkc.zeros((BH, BW), tkc.int32), 0
    while (n < LIMIT) and tkc.any(x * x + y * y < 4.0):
        inside = x * x + y * y < 4.0
        x, y = (
            tkc.where(inside, x * x - y * y + cx, x),
            tkc.where(inside, 2 * x * y + cy, y),
        )
        count += inside.to(tkc.int32)
        n += 1
    tkc.store(out, (i, j), count)


@case("Jacobi's step")
def _(o: Operands) -> Called:
    n, m = o.of(8192, 50), o.of(8192, 150)
    u, f, out = o.floats(n + 2, m + 2), o.floats(n, m), o.empty(n, m, dtype="float32")

    def function(u: Any, f: Any) -> Any:
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return 0.25 * (around - 0.01 * f)

    return Called(
        lambda: jacobi[over(n, 16), over(m, 128)](u, f, out, 0.01, 16, 128),
        (out,),
        function,
        (u, f),
        tolerance=1e-5,
    )


@case("heat in three dimensions")
def _(o: Operands) -> Called:
    d, h, w = o.of(512, 20), o.of(512, 30), o.of(512, 70)
    u, out = o.floats(d, h, w), o.empty(d, h, w, dtype="float32")

    def function(u: Any) -> Any:
        p = o.torch.nn.functional.pad(u, (1, 1, 1, 1, 1, 1))
        near = p[:-2, 1:-1, 1:-1] + p[2:, 1:-1, 1:-1] + p[1:-1, :-2, 1:-1] + p[1:-1, 2:, 1:-1]
        near = near + p[1:-1, 1:-1, :-2] + p[1:-1, 1:-1, 2:]
        return u + 0.1 * (near - 6 * u)

    return Called(
        lambda: heat[over(h, 8), over(w, 64), over(d, 32)](u, out, 0.1, 8, 64, 32),
        (out,),
        function,
        (u,),
        tolerance=1e-5,
    )


@case("separable blur")
def _(o: Operands) -> Called:
    n, m, r = o.of(8192, 50), o.of(8192, 150), 2
    image, taps = o.floats(n, m), o.floats(2 * r + 1)
    out = o.empty(n, m, dtype="float32")

    def function(image: Any, taps: Any) -> Any:
        f = o.torch.nn.functional
        x = f.conv2d(image[None, None], taps[None, None, None], padding=(0, r))
        return f.conv2d(x, taps[None, None, :, None], padding=(r, 0))[0, 0]

    return Called(
        lambda: separable[over(n, 16), over(m, 128)](image, taps, out, r, 16, 128),
        (out,),
        function,
        (image, taps),
        tolerance=1e-4,
    )


@case("bilateral filter")
def _(o: Operands) -> Called:
    n, m, r = o.of(4096, 40), o.of(4096, 100), 2
    image, out = o.floats(n, m), o.empty(n, m, dtype="float32")

    def function(image: Any) -> Any:
        f, t = o.torch.nn.functional, o.torch
        padded = f.pad(image, (r, r, r, r), value=math.nan)
        total, weights = t.zeros_like(image), t.zeros_like(image)
        for dy in range(2 * r + 1):
            for dx in range(2 * r + 1):
                near = padded[dy : dy + n, dx : dx + m]
                far = (dx - r) ** 2 + (dy - r) ** 2
                w = t.nan_to_num(t.exp(-0.1 * far - 0.5 * (near - image) ** 2))
                total = total + w * t.nan_to_num(near)
                weights = weights + w
        return total / weights

    return Called(
        lambda: bilateral[over(n, 16), over(m, 64)](image, out, 0.1, 0.5, r, 16, 64),
        (out,),
        function,
        (image,),
        tolerance=1e-4,
    )


@case("warped image")
def _(o: Operands) -> Called:
    h, w, c = o.of(2048, 30), o.of(2048, 70), 32
    image, flow = o.normal(h, w, c), o.floats(2, h, w, scale=3.0)
    out = o.empty(h, w, c)

    def function(image: Any, flow: Any) -> Any:
        torch = o.torch
        y = torch.arange(h, device=image.device, dtype=flow.dtype)[:, None] + flow[0]
        x = torch.arange(w, device=image.device, dtype=flow.dtype) + flow[1]
        at = torch.stack((2 * x / (w - 1) - 1, 2 * y / (h - 1) - 1), -1)
        found = torch.nn.functional.grid_sample(
            image.permute(2, 0, 1)[None].to(flow.dtype),
            at[None],
            align_corners=True,
            padding_mode="zeros",
        )
        return found[0].permute(1, 2, 0).to(image.dtype)

    return Called(
        lambda: warp_image[h, over(w, 64)](image, flow, out, c, 64),
        (out,),
        function,
        (image, flow),
    )


@case("Mandelbrot")
def _(o: Operands) -> Called:
    n, m = o.of(4096, 40), o.of(4096, 70)
    out = o.empty(n, m, dtype="int32")

    def function() -> Any:
        torch = o.torch
        step = 3.0 / m
        cy = -1.2 + step * torch.arange(n, device=o.device, dtype=torch.float32)[:, None]
        cx = -2.0 + step * torch.arange(m, device=o.device, dtype=torch.float32)
        cy, cx = cy + 0 * cx, cx + 0 * cy
        x, y, count = torch.zeros_like(cx), torch.zeros_like(cx), torch.zeros_like(cx).int()
        for _ in range(100):
            inside = x * x + y * y < 4
            x, y = (
                torch.where(inside, x * x - y * y + cx, x),
                torch.where(inside, 2 * x * y + cy, y),
            )
            count = count + inside.int()
        return count.float().mean()[None]

    return Called(
        lambda: mandelbrot[over(n, 16), over(m, 64)](out, -2.0, -1.2, 3.0 / m, 100, 16, 64),
        (out,),
        function,
        (),
        tolerance=0.02,
        # points at the edge leave by how a product and a sum are rounded, together or apart
        seen=lambda: (out.float().mean()[None],),
    )


@case("pooling with places")
def _(o: Operands) -> Called:
    h, w, c = o.of(2048, 21), o.of(2048, 45), 64
    x = o.normal(h, w, c)
    oh, ow = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    out, place = o.empty(oh, ow, c), o.empty(oh, ow, c, dtype="int8")

    def function(x: Any) -> Any:
        f = o.torch.nn.functional
        y, at = f.max_pool2d(x.permute(2, 0, 1)[None], 3, 2, 1, return_indices=True)
        y, at = y[0].permute(1, 2, 0), at[0].permute(1, 2, 0)
        dy = at // w - 2 * o.torch.arange(oh, device=x.device)[:, None, None] + 1
        dx = at % w - 2 * o.torch.arange(ow, device=x.device)[:, None] + 1
        return y, dy * 3 + dx

    return Called(
        lambda: pooled[oh, over(ow, 32)](x, out, place, 32, c), (out, place), function, (x,)
    )
