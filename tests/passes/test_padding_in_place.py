"""Padding tiles: programs of a tile group that lie outside of the grid read nothing that another
program writes.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tkc.ir.target import TARGETS
from tkc.language.trace import trace
from tkc.passes import PassContext, pipeline
from tkc.runtime.specialize import signature
from tkc.sim import level4


@tkc.jit
def added_in_place(a, b, w, n):
    """Of each program's own array: w[p] += clipped(a[p] b) bᵀ."""
    p = tkc.program_id(0)
    own, total = w[p], tkc.zeros((64, 64), tkc.float32)
    block = tkc.load(a[p], (0, 0), (64, 64))
    for k in tkc.range(0, n * 64, 64):
        some = tkc.load(b, (k, 0), (64, 64))
        scores = tkc.minimum(tkc.maximum(tkc.dot(block, some.T), -4), 4)
        total = tkc.dot(scores.to(tkc.bfloat16), some, total)
    total = total + tkc.load(own, (0, 0), (64, 64)).to(tkc.float32)
    tkc.store(own, (0, 0), total.to(tkc.bfloat16))


@tkc.jit
def multiplied_in_place(a, b, n):
    """Of each program's own array: a[p] becomes a[p] b."""
    p = tkc.program_id(0)
    own, total = a[p], tkc.zeros((128, 128), tkc.float32)
    for k in tkc.range(0, n * 64, 64):
        total = tkc.dot(tkc.load(own, (0, k), (128, 64)), tkc.load(b, (k, 0), (64, 128)), total)
    tkc.store(own, (0, 0), total.to(tkc.bfloat16))


def numbers(*shape):
    values = np.random.default_rng(sum(shape)).integers(-2, 3, shape)
    return values.astype(ml_dtypes.bfloat16)


def compiled(kernel, *args, **options):
    values, given = kernel.bound(*args, **options)
    infos = kernel._describe(values)
    s = signature(kernel._specialize(infos, tuple(given.items())))
    module = trace(kernel.fn, s)
    context = PassContext(TARGETS["sm_90a"], s.options)
    pipeline.run(module, TARGETS["sm_90a"], s.options, context=context)
    return module, context


@pytest.mark.parametrize("programs", [1, 3, 5])
@pytest.mark.parametrize("members", [2, 4])
def test_co_resident_programs_update_arrays_of_their_own(members, programs):
    a, b, w = numbers(programs, 64, 64), numbers(128, 64), numbers(programs, 64, 64)
    module, context = compiled(added_in_place, a, b, w, 2, programs=members, roles="co_resident")
    assert context.plan.members == members
    want = w.astype(np.float32)
    for some in b[:64], b[64:]:
        scores = np.clip(a.astype(np.float32) @ some.T.astype(np.float32), -4, 4)
        want += scores @ some.astype(np.float32)
    level4.run(module, [a, b, w, 2], (programs, 1, 1), 0)
    assert np.array_equal(w, want.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("programs", [1, 3])
def test_a_cluster_multiplies_in_place(programs):
    a, b = numbers(programs, 128, 128), numbers(128, 128)
    module, context = compiled(multiplied_in_place, a, b, 2, cluster=(2, 1))
    assert context.plan.roles
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    level4.run(module, [a, b, 2], (programs, 1, 1), 0)
    assert np.array_equal(a, want)


def test_operands_of_co_resident_programs_that_each_writes():
    a, b = numbers(3, 64, 64), numbers(128, 64)
    _, context = compiled(added_in_place, a, b, a, 2, programs=2, roles="co_resident")
    assert context.plan.members == 1
