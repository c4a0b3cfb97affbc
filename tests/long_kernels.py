"""Kernels of a size that is asked for: `n` operations that Python's loops write one after the
other, in the ways in which programs grow. What compiling one takes must grow as its size does
(tests/test_growth.py).
"""

import tkc


@tkc.jit
def elementwise(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for i in range(n):
        v = v * 1.5 + i
    tkc.store(a, (0,), v)


@tkc.jit
def used_twice(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for i in range(n):
        v = tkc.where(v > i, v * v, v + 1)
    tkc.store(a, (0,), v)


@tkc.jit
def wide(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    terms = [v + i for i in range(n)]
    while len(terms) > 1:
        rest = terms[-1:] if len(terms) % 2 else []
        terms = [x * y for x, y in zip(terms[::2], terms[1::2], strict=False)] + rest
    tkc.store(a, (0,), terms[0])


@tkc.jit
def scalars(a, s, n: tkc.constexpr):
    for i in range(n):
        s = s * 3 + i
    tkc.store(a, (0,), tkc.load(a, (0,), (256,)) + s)


@tkc.jit
def offsets(a, s, n: tkc.constexpr):
    for i in range(n):
        s = tkc.maximum(s + i % 7, 3)
    tkc.store(a, (s,), tkc.load(a, (s,), (256,)) + 1)


@tkc.jit
def indices(a, n: tkc.constexpr):
    v = tkc.arange(0, 256)
    for i in range(n):
        v = (v + i) ^ 5
    tkc.store(a.ptr + v % 256, tkc.load(a.ptr + v % 256) + 1)


@tkc.jit
def masks(a, n: tkc.constexpr):
    v = tkc.arange(0, 256)
    mask = v < 100
    for i in range(n):
        mask = mask & (v != i)
    tkc.store(a.ptr + v, tkc.load(a.ptr + v, mask=mask, other=0.0) + 1, mask=mask)


@tkc.jit
def casts(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for _ in range(n):
        v = (v.to(tkc.float16) + 1).to(tkc.float32)
    tkc.store(a, (0,), v)


@tkc.jit
def transposes(a, n: tkc.constexpr):
    v = tkc.load(a, (0, 0), (16, 16))
    for i in range(n):
        v = v.T + i
    tkc.store(a, (0, 0), v)


@tkc.jit
def reductions(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for _ in range(n):
        v = v - tkc.sum(v)
    tkc.store(a, (0,), v)


@tkc.jit
def before_dot(a, n: tkc.constexpr):
    v = tkc.load(a, (0, 0), (64, 64))
    for i in range(n):
        v = v * 1.5 + i
    w = tkc.load(a, (0, 64), (64, 64))
    tkc.store(a, (0, 0), tkc.dot(v.to(tkc.float16), w.to(tkc.float16)))


@tkc.jit
def after_dot(a, n: tkc.constexpr):
    v = tkc.load(a, (0, 0), (64, 64)).to(tkc.float16)
    v = tkc.dot(v, v)
    for i in range(n):
        v = v * 1.5 + i
    tkc.store(a, (0, 0), v)


@tkc.jit
def in_loop(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for _ in range(a.shape[0]):
        for i in range(n):
            v = v * 1.5 + i
    tkc.store(a, (0,), v)


@tkc.jit
def loops(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for _ in range(n):
        for j in range(a.shape[0]):
            v = v * 2 + j
    tkc.store(a, (0,), v)


@tkc.jit
def branches(a, s, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for i in range(n):
        if s > i:
            v = v + 1
    tkc.store(a, (0,), v)


@tkc.jit
def loads(a, n: tkc.constexpr):
    v = tkc.load(a, (0,), (256,))
    for i in range(n):
        v = v + tkc.load(a, (i,), (256,))
    tkc.store(a, (0,), v)


@tkc.jit
def stores(a, b, n: tkc.constexpr):
    for i in range(n):
        tkc.store(b, (i * 256,), tkc.load(a, (i * 256,), (256,)) + 1)


@tkc.jit
def dots(a, b, c, n: tkc.constexpr):
    acc = tkc.zeros((64, 64))
    for i in range(0, n * 32, 32):
        acc = tkc.dot(tkc.load(a, (0, i), (64, 32)), tkc.load(b, (i, 0), (32, 64)), acc)
    tkc.store(c, (0, 0), acc)


VECTOR, SCALAR = "f32[1000000]", "i32"
ARGUMENTS = {
    elementwise: (VECTOR,),
    used_twice: (VECTOR,),
    wide: (VECTOR,),
    scalars: (VECTOR, SCALAR),
    offsets: (VECTOR, SCALAR),
    indices: (VECTOR,),
    masks: (VECTOR,),
    casts: (VECTOR,),
    transposes: ("f32[16, 16]",),
    reductions: (VECTOR,),
    before_dot: ("f32[64, 128]",),
    after_dot: ("f32[64, 128]",),
    in_loop: (VECTOR,),
    loops: (VECTOR,),
    branches: (VECTOR, SCALAR),
    loads: (VECTOR,),
    stores: (VECTOR, VECTOR),
    dots: ("f16[64, 65536]", "f16[65536, 64]", "f32[64, 64]"),
}
