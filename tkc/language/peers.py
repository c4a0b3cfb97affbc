"""Several GPUs: arrays that each rank has one of, and signals between them.

    p: tkc.peers                 p[r] is the array of rank r
    tkc.rank(), tkc.world()      Python integers: a kernel is compiled for its rank
    tkc.signal, tkc.wait         numbers in memory by which ranks wait for one another

A signal is a release of scope "system", a wait a loop that acquires: what the happens-before check,
the back ends and the passes already know of memory is all that there is to know of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from xdsl.dialects import scf
from xdsl.ir import Block, Region

from tkc.language import operations
from tkc.language.arrays import Array, Extents, array
from tkc.language.dtypes import DType, int32, int64
from tkc.language.memory import atomic_add, converted, load, store
from tkc.language.tracer import fail, tracer
from tkc.language.values import Operand, Scalar, Value, describe, lift, unpack

HOW = "set", "add"


@dataclass(frozen=True, eq=False)
class PeerArrays:
    """What a parameter annotated `tkc.peers` is: one array a rank, all alike."""

    name: str
    arrays: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, rank: Operand) -> Array:
        """The array of a rank, which is a Python integer or a traced one."""
        r = unpack(rank)
        if isinstance(r, int) and not isinstance(r, bool):
            if not -len(self) <= r < len(self):
                fail(f"`{self.name}` has {len(self)} ranks; rank {r} is none of them")
            return self.arrays[r]
        if not isinstance(r, Scalar) or not r.dtype.is_int:
            fail(f"peers are indexed by one integer, the rank, got {describe(r)}")
        own = self.arrays[0]
        pointer = own.ptr
        for i, other in enumerate(self.arrays[1:], 1):
            pointer = lift(operations.where(r == i, other.ptr, pointer))
        return array(pointer, own.dtype, tuple(own.shape), tuple(own.strides))

    @property
    def shape(self) -> Extents:
        return self.arrays[0].shape

    @property
    def strides(self) -> Extents:
        return self.arrays[0].strides

    @property
    def dtype(self) -> DType:
        return self.arrays[0].dtype

    @property
    def ndim(self) -> int:
        return self.arrays[0].ndim

    def _describe(self) -> str:
        return f"peers of {self.dtype.name}, rank {self.ndim}"

    def __iter__(self) -> NoReturn:
        fail("go over peers by number: for r in tkc.static_range(tkc.world())")


def _ranks(what: str) -> tuple[int, int]:
    found = tracer().ranks
    if found is None:
        fail(f"{what} is known in kernels that take peers; annotate a parameter `x: tkc.peers`")
    return found


def rank() -> int:
    """The rank that the kernel runs on, 0 to tkc.world() - 1; known when the kernel is compiled."""
    return _ranks("tkc.rank()")[0]


def world() -> int:
    """How many ranks there are; known when the kernel is compiled."""
    return _ranks("tkc.world()")[1]


def _at(target: Array | Value, place: Operand | tuple, what: str) -> Value:
    """The address of a number in memory."""
    if isinstance(target, PeerArrays):
        fail(f"{what} takes one rank's array: write peers[r]")
    if not isinstance(target, Array):
        fail(f"{what}(array, place, value) takes an array of integers, got {describe(target)}")
    places = place if isinstance(place, tuple) else (place,)
    if len(places) != target.ndim:
        fail(f"{what} in an array of rank {target.ndim} takes {target.ndim} offsets")
    if not target.dtype.is_int or target.dtype.bits not in (32, 64):
        fail(f"{what} takes an array of int32, uint32, int64 or uint64, got {target.dtype.name}")
    pointer = target.ptr
    for i, step in zip(places, target.strides, strict=True):
        i = unpack(i)
        if not isinstance(i, int) and not (isinstance(i, Scalar) and i.dtype.is_int):
            fail(f"{what}: a place is an integer, got {describe(i)}")
        pointer = pointer + i * step
    return pointer


def signal(array: Array, place: Operand | tuple, value: Operand = 1, *, how: str = "set") -> None:
    """Tells whoever waits at a place of an array of integers that all that this program has written
    before is there, on every rank: writes `value`, or adds it (how="add"), as a release of scope
    "system".

    One program sets a place, so that numbers there only grow; several add to it (between GPUs that
    takes atomics over the link, which NVLink has).
    """
    pointer = _at(array, place, "tkc.signal")
    if how not in HOW:
        fail(f'tkc.signal: how is "set" or "add", got {how!r}')
    if how == "set":
        store(pointer, value, sem="release", scope="system")
    else:
        atomic_add(pointer, value, sem="release", scope="system")


def wait(array: Array, place: Operand | tuple, value: Operand = 1) -> None:
    """Waits until the number at a place of an array is `value` or more; what was written before the
    signal is then seen. The difference is compared, so that numbers may wrap.

    Loads before it stay before it, those behind it behind. On one GPU, the programs that wait and
    those that signal must run at the same time, or what signals come first.
    """
    pointer = _at(array, place, "tkc.wait")
    t, test, body = tracer(), Block(), Block()
    signed = int32 if array.dtype.bits == 32 else int64
    with t.inside(test):
        seen = load(pointer, sem="acquire", scope="system")
        missing = (seen - converted(value, seen.dtype, "a place")).to(signed, bitcast=True)
        t.emit(scf.ConditionOp((missing < 0).use()))
    with t.inside(body):
        t.emit(scf.YieldOp())
    t.emit(scf.WhileOp([], [], Region(test), Region(body)))
