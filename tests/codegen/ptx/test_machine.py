"""tkc.sim.ptx is what an H200 does: the kernels whose results were confirmed there
(tests/gpu/forms) give the same ones here, and a word that is wrong in a compiled text shows.
"""

import re
from collections.abc import Callable

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.gpu.forms import BELIEFS
from tests.gpu.forms.belief import NANOSECONDS
from tests.passes import test_roles as products
from tkc.codegen.ptx.emit import PtxProgram
from tkc.ir.interface import Parameter
from tkc.runtime import tensor_maps
from tkc.runtime.arrays import ArrayInfo
from tkc.sim.ptx import Fault, run
from tkc.sim.ptx.launch import decoded
from tkc.sim.ptx.tensor_maps import tensor_map

CONFIRMED = [
    b
    for b in BELIEFS.values()
    if not b.name.startswith("control_")
    and not (NANOSECONDS in b.text and "30000000" in b.text)
    and not re.match(r"compare_and_swap|an_update|atomic", b.name)
]


@pytest.mark.parametrize("part", range(8))
def test_what_an_H200_confirmed(part):
    for b in CONFIRMED[part::8]:
        wrong = b.wrong(run(b, list(b.arrays), (b.grid, 1, 1)))
        assert wrong is None, f"{b.name}: {wrong}"


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order(seed):
    """Those whose threads wait for one another, with warps that drift and copies that land at any
    time.
    """
    for b in CONFIRMED:
        if re.match(
            r"thread_i_arrives|the_first_lane_arrives|who_meets_waits|two_warpgroups|all_but_the_last_groups|with_one_group|each_block_loads",
            b.name,
        ):
            assert b.wrong(run(b, list(b.arrays), (b.grid, 1, 1), seed=seed)) is None, b.name


@pytest.mark.parametrize(
    "shape, box, swizzle, panelled, order",
    [
        ((40, 64), (32, 64), 128, False, ()),
        ((40, 72), (32, 32), 64, False, ()),
        ((50, 256), (40, 192), 128, True, ()),
        ((2, 50, 3, 128), (1, 40, 1, 128), 128, True, ()),
        ((64, 192), (64, 192), 128, False, ()),
        ((5, 40, 64), (1, 16, 64), 0, False, ()),
        ((64, 40, 3), (1, 16, 32), 64, False, (2, 1, 0)),
    ],
)
def test_tensor_maps_are_the_hosts(shape, box, swizzle, panelled, order):
    """What the host tells the driver, and what the machine thinks of an interface, written apart
    from each other.
    """
    array = np.zeros(tuple(shape[a] for a in np.argsort(order)) if order else shape, np.uint16)
    if order:
        array = np.zeros((shape[2], shape[1], shape[0]), np.uint16).transpose(2, 1, 0)
    p = Parameter(
        "map", "", element="bf16", box=box, swizzle=swizzle, panelled=panelled, order=order
    )
    host = tensor_maps.describe(
        p, ArrayInfo(4096, array.shape, tuple(s // 2 for s in array.strides), "uint16", 0), "x"
    )
    ours = tensor_map(p, [array], 4096)
    assert (host.extents, host.strides, host.box, host.swizzle) == (
        ours.extents,
        ours.strides[1:],
        ours.box,
        ours.swizzle,
    )


# ---- wrong words ---------------------------------------------------------------------------------
def word(pattern: str, new: str | Callable, after: str = "") -> Callable[[str], str]:
    """A text with the first match of a pattern, behind a comment, replaced."""

    def edit(text: str) -> str:
        front, mark, rest = text.partition(after) if after else ("", "", text)
        changed = re.sub(pattern, new, rest, count=1)
        assert changed != rest, pattern
        return front + mark + changed

    return edit


def more(by):
    return lambda m: f"{m[1]}{int(m[2]) + by}"


DESCRIPTOR = r"(mov\.b64 %d\d+, \{%r\d+, )(\d+)"
WRONG = {
    "a descriptor's stride": word(DESCRIPTOR, more(8)),
    "a descriptor's swizzle": word(DESCRIPTOR, more(1 << 30)),
    "a descriptor's address": word(
        r"(and\.b32 (?:%r\d+), %r\d+, 16383;\n\tadd\.s32 %r\d+, %r\d+, )(\d+)", more(16)
    ),
    "a descriptor's leading offset": word(
        r"(and\.b32 (?:%r\d+), %r\d+, 16383;\n\tadd\.s32 %r\d+, %r\d+, )(\d+)",
        more(1 << 16),
        "---- consumer",
    ),
    "the step along k": word(r"(add\.s64 %d\d+, %d\d+, )(\d+)", more(2)),
    "the major of an operand": word(r", 1, 1, 0, 1;", ", 1, 1, 0, 0;"),
    "the first dot adds": word(r"(%d\d+, %d\d+, )%p\d+, 1, 1", r"\g<1>1, 1, 1"),
    "the producer's parity": word(r"xor\.b32 (%r\d+, %r\d+), 1;(?=\n\tmad)", r"xor.b32 \1, 0;"),
    "the consumer's parity": word(r"(try_wait\S* %p\d+, \S+), %r\d+", r"\1, 1", "---- consumer"),
    "another stage's barrier": word(
        r"(try_wait\S* %p\d+, \[%r\d+\+)(\d+)", more(8), "---- consumer"
    ),
    "too few bytes": word(r"(expect_tx\S* _, \[\S+\], )(\d+)", more(-16)),
    "too many bytes": word(r"(expect_tx\S* _, \[\S+\], )(\d+)", more(16)),
    "coordinates of a load": word(r"\{(%r\d+), (%r\d+)\}\], \[", r"{\2, \1}], ["),
    "coordinates of a store": word(r"(bulk_group \[%d\d+, )\{(%r\d+), (%r\d+)\}", r"\1{\3, \2}"),
    "where a box lands": word(r"(complete_tx::bytes(?:\S*) \[%r\d+\+)(\d+)", more(1024)),
    "a dot is not waited for": word(r"(wgmma\.wait_group\.sync\.aligned )(0)", more(1)),
    "a stage is given back early": word(r"(wgmma\.wait_group\.sync\.aligned )(1)", more(1)),
    "no fence before a dot": word(r"\twgmma\.fence\.sync\.aligned;\n", ""),
    "no commit": word(r"\twgmma\.commit_group\.sync\.aligned;\n", ""),
    "threads of a barrier": word(r"(bar\.sync %?\w+, )(128)", more(128)),
    "a register of stmatrix": word(r"(stmatrix\S+ \S+ \{)(%r\d+), (%r\d+)", r"\1\3, \2"),
    "the swizzle of stmatrix": word(r"and\.b32 (%r\d+), (%r\d+), 112;", r"and.b32 \1, \2, 96;"),
    "a store that nobody waits for": word(
        r"\t@%p\d+ cp\.async\.bulk\.wait_group\.read 0;\n(?=\$end)", ""
    ),
    "arrivals of a stage": word(r"mbarrier\.init(\S+) (\S+), 16;", r"mbarrier.init\1 \2, 8;"),
    "registers": word(r"dec.sync.aligned.u32 40", "dec.sync.aligned.u32 152"),
    "blocks of a multicast": word(r"mov\.b16 (%h\d+), 3;", r"mov.b16 \1, 1;"),
    "the block of an arrival": word(r"(mapa\S+ %r\d+, %r\d+), %r\d+", r"\1, 0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_changed_word_shows(what):
    form = products.PAIR
    BM, BN, BK = form.block
    with pytest.raises((Fault, AssertionError)) as found:
        products.check(
            products.last(form),
            form,
            BM + 5,
            BN + 9 if "first" in what else BN // 2 + 9,
            4 * BK - 7,
            run=lambda *a, **how: machine.run(*a, edit=WRONG[what], resident=1, **how),
        )
    assert found.type is Fault or "Arrays are not equal" in str(found.value), found.value


def test_blocks_of_a_cluster_must_meet_before_they_copy_for_one_another():
    """Wrong in some order only: one block is slow."""
    apart = word(r"\tbarrier\.cluster\.wait\.aligned;\n", "")

    def faults(seed) -> bool:
        try:
            products.check(
                products.last(products.PAIR),
                products.PAIR,
                130,
                64,
                64,
                run=lambda *a, **how: machine.run(*a, edit=apart, seed=seed, **how),
            )
        except Fault as e:
            return "mbarrier that nobody initialised" in str(e)
        return False

    assert any(map(faults, range(20)))


TEXT = """
.visible .entry kernel()
{
    .reg .b64 %d<3>;
    .reg .b32 %r<3>;
    .reg .pred %p<1>;
    mov.b64 %d0, 1;
    mov.b32 %r0, 1;
    WRONG
    ret;
}
"""


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("prmt.b32 %r1, %d0, %d0, 0x5410;", "%d0 holds 64 bits, where .b32 has 32"),
        ("add.s64 %d1, %d0, %r0;", "%r0 holds 32 bits, where .s64 has 64"),
        ("setp.lt.s64 %p0, %d0, %r0;", "%r0 holds 32 bits"),
        ("mul.wide.s32 %d1, %r0, %r0;", ""),
        ("setp.lt.s64 %p0, %d0, 1;", ""),
        ("shl.b64 %d1, %d0, %r0;", ""),
    ],
)
def test_registers_have_the_width_of_their_instruction(wrong, message):
    text = TEXT.replace("WRONG", wrong)
    if not message:
        decoded(text)
        return
    with pytest.raises(Fault, match=message):
        decoded(text)


def test_who_waits_is_named():
    edit = WRONG["too many bytes"]
    with pytest.raises(
        Fault,
        match=(
            r"everybody waits: .*threads? from 0 on at 'mbarrier.try_wait.*; 512 threads from 128"
            r" on at 'mbarrier.try_wait"
        ),
    ):
        products.check(
            products.last(products.PAIR),
            products.PAIR,
            64,
            64,
            64,
            run=lambda *a, **how: machine.run(*a, edit=edit, **how),
        )


def test_addresses_of_arrays_that_share_memory_move_once():
    """A table's numbers lie in the spans of two arguments."""
    from tkc.sim.ptx.memory import Memory

    whole = np.arange(64, dtype=np.float32)
    table = np.array([whole.ctypes.data + 16], np.int64)
    memory = Memory()
    at, _, numbers = memory.put_all([whole, whole[2:], table])
    assert memory.get(numbers, table)[0] == at + 16


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_a_parameter_of_few_bits_has_its_sign(dtype):
    def widened(o, n):
        tkc.store(o, (0,), tkc.full((1,), 0, tkc.int64) + n.to(tkc.int64))

    kernel = tkc.jit(widened)
    for number in (np.iinfo(dtype).min, np.iinfo(dtype).max):
        n, o = np.dtype(dtype).type(number), np.zeros(1, np.int64)
        found = kernel.compile(o, n, target="sm_80", num_warps=1)
        [got] = run(PtxProgram(found.ptx, found.interface, []), [o, n])
        assert got[0] == number
